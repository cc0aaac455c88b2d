"""Bars on one scale, with their names before them and their words behind: one engine for all."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from course_lib.figures.engines.lines import Frame, Tell, fitting, powers
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import WIDTH_PT, Drawing, key, key_height, width_pt
from course_lib.figures.paper.style import Look

_TOP, _MARK, _NOTE, _DOT = 28.0, 14.0, 15.0, 9.0
_SIZE = 9.0
_OTHERS = (style.SKY, style.YELLOW, style.PINK, style.GREEN, style.BLUE, style.ORANGE)
# Parts whose colour has a meaning; a name may go on.
_WORDS = (
    *("weights", "gradients", "gradient of the input", "gradient of the weights", "states"),
    *("optimizer", "activations", "intermediate results", "inputs and labels", "temporary"),
    *("messages", "computing", "forward", "backward", "update", "idle", *style.AXES),
)
Rows = Mapping[str, Mapping[str, float]]
Looks = Mapping[str, str | Look]


class Bar(NamedTuple):
    """One bar: its parts from left to right, the words behind it, and the room that it takes.

    It takes `step` and is `high`. Its words are `bold`, or warn; a `chosen` one's name is bold.
    Its name stands so much `lower`, as that of two bars.
    """

    name: str
    parts: Mapping[str, float]
    words: str
    high: float = 16.0
    step: float = 25.0
    bold: bool = False
    chosen: bool = False
    warns: bool = False
    lower: float = 0.0

    @property
    def total(self) -> float:
        """How long it is."""
        return sum(self.parts.values())


class Limit(NamedTuple):
    """An upright line through all bars, and its words above them."""

    words: str
    value: float
    warns: bool = False


class Bars:
    """Bars below one another as a block; it has a key of its own.

    `told` gives the words of a part, which stand in it if it has room. What has a look and is named
    nowhere else stands in the key. `note`: a grey line at the end.
    """

    words: tuple[str, ...] = ()  # it has a key of its own

    def __init__(
        self,
        rows: Sequence[Bar],
        looks: Mapping[str, Look],
        *,
        limits: Sequence[Limit] = (),
        told: Tell | None = None,
        size: float = style.TEXT_PT,
        note: str = "",
        sentence: str = "",
    ) -> None:
        self.rows, self.looks, self.size = rows, looks, size
        self.note, self.sentence = note, sentence
        self.left = max(width_pt(row.name, size) for row in rows) + 14
        behind = max(width_pt(row.words, size) * (1.1 if row.bold else 1) for row in rows) + 8
        most = max([*(row.total for row in rows), *(limit.value for limit in limits)])
        self.scale = (WIDTH_PT - self.left - behind) / (most or 1.0)
        self.limits = sorted((self.left + it.value * self.scale, it) for it in limits)
        self.pieces = [self._pieces(row, told) for row in rows]
        named = {piece.name for each in self.pieces for piece in each if piece.words}
        named |= {row.name for row in rows if [*row.parts] == [row.name]}
        pieces = [piece for each in self.pieces for piece in each]
        seen = {piece.name for piece in pieces if piece.width > 0.5}
        named |= {piece.name for piece in pieces} - seen
        self.unnamed = {name: look for name, look in looks.items() if name not in named}

    @property
    def height_pt(self) -> float:
        """Limits, bars, key and note."""
        bars = sum(row.step for row in self.rows) + _MARK * len(self.limits)
        return bars + key_height(self.unnamed, self.left) + _NOTE * bool(self.note)

    def draw(self, drawing: Drawing, top: float) -> None:
        """From `top` down."""
        y = top + _MARK * len(self.limits)
        for row, pieces in zip(self.rows, self.pieces, strict=True):
            base = y + row.high / 2 + 0.35 * self.size
            x, name_y = self.left - 8, base + row.lower
            drawing.write(x, name_y, row.name, self.size, "right", bold=row.chosen)
            for piece in pieces:
                if piece.width:
                    _draw(drawing, piece, y, row.high, self.looks[piece.name])
            end = self.left + row.total * self.scale
            for line, _ in self.limits:  # the words must not lie on it
                if end < line < end + width_pt(row.words, self.size) + 10:
                    end = line
            ink = style.WARNING_TEXT if row.warns else style.INK
            drawing.write(end + 6, base, row.words, self.size, colour=ink, bold=row.bold)
            y += row.step
        # The name of the rightmost is the lowest, so that no line crosses the name of another.
        for place, (x, limit) in enumerate(self.limits):
            over = top + _MARK * place + 8
            colour, ink = style.INK, style.INK
            if limit.warns:
                colour, ink = style.WARNING, style.WARNING_TEXT
            drawing.line([(x, over + 3), (x, y - 4)], colour, 1.5, dashed=True)
            wide = width_pt(limit.words, _SIZE) * (1.1 if limit.warns else 1)
            at = max(0.0, min(x - 3, WIDTH_PT - wide))
            drawing.write(at, over, limit.words, _SIZE, colour=ink, bold=limit.warns)
        key(drawing, self.unnamed, self.left, y + 4)
        if self.note:
            y = top + self.height_pt - 4
            drawing.write(self.left, y, self.note, _SIZE, colour=style.GREY)

    def _pieces(self, row: Bar, told: Tell | None) -> list["_Piece"]:
        pieces, x = [], self.left
        for name, size in row.parts.items():
            width = size * self.scale
            texts: Sequence[str] = ()
            if told and name != row.name:  # with one part the sum stands behind the bar
                texts = (f"{name}: {told(size)}", name) if len(row.parts) > 1 else (name,)
            words = next((text for text in texts if self._has_room(text, x, width)), "")
            pieces.append(_Piece(name, x, width, words))
            x += width
        return pieces

    def _has_room(self, text: str, x: float, width: float) -> bool:
        half = width_pt(text, _SIZE) / 2 + 3
        clear = all(abs(x + width / 2 - line) > half for line, _ in self.limits)
        return 2 * half <= width and clear

    def alone(self, title: str) -> Drawing:
        """The bars below their title, and nothing else."""
        drawing = Drawing(_TOP + self.height_pt, self.sentence)
        drawing.title(title)
        self.draw(drawing, _TOP)
        return drawing


class _Piece(NamedTuple):
    """One part as it is drawn, and the words that fit into it."""

    name: str
    x: float
    width: float
    words: str


def _draw(drawing: Drawing, piece: _Piece, y: float, high: float, look: Look) -> None:
    drawing.boxes([(piece.x, y, max(0.8, piece.width), high)], *look)
    if piece.words:
        middle = piece.x + piece.width / 2
        base, ink = y + high / 2 + 3.5, style.on(look[0])
        drawing.write(middle, base, piece.words, _SIZE, "center", ink, bool(look[1]))


def bars(
    amounts: Mapping[str, float],
    told: Mapping[str, str] | Tell,
    title: str,
    fill: str | Mapping[str, Look] = style.MESSAGES,
    tens: bool = False,
    *,
    marks: Mapping[str, float] | None = None,
    note: str = "",
) -> Drawing:
    """A bar for each amount, and `told[name]` or `told(amount)` behind it.

    With `tens` the axis is logarithmic: squares instead of bars, since lengths would mean nothing.
    `marks` are lines across all rows, with their names; `note` is a line below them.
    """
    marks = marks or {}
    words = {
        name: told(amount) if callable(told) else told[name] for name, amount in amounts.items()
    }
    said = "; ".join([f"{name}: {text}" for name, text in words.items()] + [*marks])
    sentence = f"{title}. {said}{f'. {note}' if note else ''}"
    if tens and callable(told):
        return _squares(
            amounts, told, words, f"{sentence}; on a logarithmic scale.", title, fill, marks
        )
    rows = [Bar(name, {name: amount}, words[name]) for name, amount in amounts.items()]
    looks = {name: (fill, None) if isinstance(fill, str) else fill[name] for name in amounts}
    limits = [Limit(*mark) for mark in marks.items()]
    return Bars(rows, looks, limits=limits, sentence=f"{sentence}.", note=note).alone(title)


def _squares(
    amounts: Mapping[str, float],
    told: Tell,
    words: Mapping[str, str],
    sentence: str,
    title: str,
    fill: str | Mapping[str, Look],
    marks: Mapping[str, float],
) -> Drawing:
    """Values on a logarithmic axis: a square each, with its words to the right of it."""
    sizes = [*amounts.values(), *marks.values()]
    left = max(width_pt(name, style.TEXT_PT) for name in amounts) + 14
    room = WIDTH_PT - left - max(width_pt(text, style.TEXT_PT) for text in words.values()) - 8
    axis = fitting(powers, sizes, lambda value: re.sub(r"\.0+\b", "", told(value)), room)
    top = _TOP + _MARK * len(marks)
    bottom = top + 25 * len(amounts)
    drawing = Drawing(bottom + 18, sentence)
    drawing.title(title)
    frame = Frame(drawing, axis, axis, left, top, left + room, bottom)
    frame.ticks_across()
    for row, (name, amount) in enumerate(amounts.items()):
        x, y = frame.x(amount), top + 25 * row + 8
        after = x + 16 + width_pt(words[name], style.TEXT_PT)
        ways = [(left, x - _DOT / 2), (after, max(after, frame.right))]
        drawing.lines([[(a, y), (b, y)] for a, b in ways], style.PALE)
        colour = fill if isinstance(fill, str) else fill[name][0]
        drawing.boxes([(x - _DOT / 2, y - _DOT / 2, _DOT, _DOT)], colour)
        drawing.write(left - 12, y + 4, name, align="right")
        drawing.write(x + _DOT / 2 + 6, y + 4, words[name])
    frame.marks(marks)
    return drawing


def grouped_bars(
    rows: Rows,
    title: str,
    told: Tell,
    colours: Looks,
    *,
    words: Mapping[tuple[str, str], str] | None = None,
) -> Drawing:
    """For each name one bar below another, from the same line: {name: {series: value}}.

    `words` has what else stands behind a bar.
    """
    sentence = "; ".join(
        f"{name}: " + ", ".join(f"{one}: {told(value)}" for one, value in series.items())
        for name, series in rows.items()
    )
    found = []
    for name, series in rows.items():
        for place, (one, value) in enumerate(series.items()):
            last = place + 1 == len(series)
            text = (words or {}).get((name, one), told(value))
            found.append(
                Bar(
                    name if place == (len(series) - 1) // 2 else "",
                    {one: value},
                    text,
                    11,
                    20 if last else 12,
                    lower=0.0 if len(series) % 2 else 6.0,
                )
            )
    looks = {name: _look(colour) for name, colour in colours.items()}
    return Bars(found, looks, sentence=f"{title}. {sentence}.", size=_SIZE).alone(title)


def stacked_bars(
    rows: Rows,
    title: str,
    told: Tell = "{:,.4g}".format,
    totals: Mapping[str, str] | None = None,
    *,
    colours: Looks | None = None,
    limit: tuple[str, float] | None = None,
) -> Drawing:
    """One bar for each row, all on one scale, from parts in order: {"1F1B": {"idle": 9, …}, …}.

    `told` turns a number into text; `totals` has the text behind a bar, by default its sum. A part
    keeps its colour in all rows: that of `colours`, or its meaning's, where its name begins with
    one. `limit` is a line with a name.
    """
    ends = {
        row: (totals or {}).get(row) or told(sum(parts.values())) for row, parts in rows.items()
    }
    found = [Bar(row, parts, ends[row], 20, 28, bold=True) for row, parts in rows.items()]
    limits = [Limit(f"{limit[0]}: {told(limit[1])}", limit[1], warns=True)] if limit else []
    said = [
        f"{row}, {ends[row]}: " + ", ".join(f"{name}: {told(size)}" for name, size in parts.items())
        for row, parts in rows.items()
    ]
    sentence = f"{title}. {'; '.join([*said, *(one.words for one in limits)])}."
    names = dict.fromkeys(name for parts in rows.values() for name in parts)
    looks = _fills(names, colours or {})
    return Bars(found, looks, limits=limits, told=told, sentence=sentence, size=_SIZE).alone(title)


def _look(colour: str | Look) -> Look:
    return (colour, None) if isinstance(colour, str) else colour


def _fills(names: Iterable[str], colours: Looks) -> dict[str, Look]:
    """The look of each part: the given one, its meaning's, or the next one that is free."""
    known = {name: _look(colours[name]) for name in names if name in colours}
    known |= {name: look for name in names if name not in known and (look := _meant(name))}
    taken = [fill for fill, _ in known.values()]
    free = iter([fill for fill in _OTHERS if fill not in taken] + [style.PALE] * 99)
    return {name: known.get(name) or (next(free), None) for name in names}


def _meant(name: str) -> Look | None:
    """The look of the word with which a name begins: "messages of tp"."""
    word = next((word for word in _WORDS if name.startswith(word)), None)
    return style.MEANINGS[word] if word else None
