"""Horizontal bar charts on one scale, with a name before each bar and a label after it."""

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
# Prefixes of part names whose colour has a meaning.
_WORDS = (
    *("weights", "gradients", "gradient of the input", "gradient of the weights", "states"),
    *("optimizer", "activations", "intermediate results", "inputs and labels", "temporary"),
    *("messages", "computing", "forward", "backward", "update", "idle", *style.AXES),
)
Rows = Mapping[str, Mapping[str, float]]
Looks = Mapping[str, str | Look]


class Bar(NamedTuple):
    """One bar: its parts from left to right, its label `words`, and its size in points.

    It is `high`, and the next bar starts `step` below. The label is `bold`, or `warns` in red; the
    name is bold if `chosen`, and shifted down by `lower`, as for a name shared by two bars.
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
        """The sum of its parts."""
        return sum(self.parts.values())


class Limit(NamedTuple):
    """A vertical line through all bars, with its label above them."""

    words: str
    value: float
    warns: bool = False


class Bars:
    """A block of bars with its own key.

    `told` formats the value of a part, which is labelled inside if there is room. Parts that are
    labelled nowhere else are listed in the key. `note`: a grey line at the end.
    """

    words: tuple[str, ...] = ()  # nothing for the page's key

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
        """Height of limits, bars, key and note."""
        bars = sum(row.step for row in self.rows) + _MARK * len(self.limits)
        return bars + key_height(self.unnamed, self.left) + _NOTE * bool(self.note)

    def draw(self, drawing: Drawing, top: float) -> None:
        """Draw the block from `top` down."""
        y = top + _MARK * len(self.limits)
        for row, pieces in zip(self.rows, self.pieces, strict=True):
            base = y + row.high / 2 + 0.35 * self.size
            x, name_y = self.left - 8, base + row.lower
            drawing.write(x, name_y, row.name, self.size, "right", bold=row.chosen)
            for piece in pieces:
                if piece.width:
                    _draw(drawing, piece, y, row.high, self.looks[piece.name])
            end = self.left + row.total * self.scale
            for line, _ in self.limits:  # the label must not overlap a limit
                if end < line < end + width_pt(row.words, self.size) + 10:
                    end = line
            ink = style.WARNING_TEXT if row.warns else style.INK
            drawing.write(end + 6, base, row.words, self.size, colour=ink, bold=row.bold)
            y += row.step
        # The rightmost label is the lowest, so that no line crosses another label.
        for row_number, (x, limit) in enumerate(self.limits):
            over = top + _MARK * row_number + 8
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
            if told and name != row.name:  # with one part, the value is the bar's label
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
        """A drawing of the title and this block only."""
        drawing = Drawing(_TOP + self.height_pt, self.sentence)
        drawing.title(title)
        self.draw(drawing, _TOP)
        return drawing


class _Piece(NamedTuple):
    """One part of a bar: its position and the label that fits into it."""

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
    """Draw a bar for each amount, labelled with `told[name]` or `told(amount)`.

    With `tens` the axis is logarithmic, with squares: the lengths of bars would be meaningless.
    `marks` are named lines across all rows; `note` is a line of text below them.
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
    """Draw values on a logarithmic axis: a square each, with its label to the right."""
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
    """Draw a group of bars for each name: {name: {series: value}}.

    `words` overrides the label of a bar: {(name, series): label}.
    """
    sentence = "; ".join(
        f"{name}: " + ", ".join(f"{one}: {told(value)}" for one, value in series.items())
        for name, series in rows.items()
    )
    group_bars = []
    for name, series in rows.items():
        for index, (one, value) in enumerate(series.items()):
            last = index + 1 == len(series)
            text = (words or {}).get((name, one), told(value))
            group_bars.append(
                Bar(
                    name if index == (len(series) - 1) // 2 else "",
                    {one: value},
                    text,
                    11,
                    20 if last else 12,
                    lower=0.0 if len(series) % 2 else 6.0,
                )
            )
    looks = {name: _look(colour) for name, colour in colours.items()}
    return Bars(group_bars, looks, sentence=f"{title}. {sentence}.", size=_SIZE).alone(title)


def stacked_bars(
    rows: Rows,
    title: str,
    told: Tell = "{:,.4g}".format,
    totals: Mapping[str, str] | None = None,
    *,
    colours: Looks | None = None,
    limit: tuple[str, float] | None = None,
) -> Drawing:
    """Draw one stacked bar per row, all on one scale: {"1F1B": {"idle": 9, …}, …}.

    `told` formats a number; `totals` has the label after a bar, by default its sum. A part has the
    same colour in all rows: from `colours`, or by the meaning with which its name begins. `limit`
    is a (name, value) line.
    """
    ends = {
        row: (totals or {}).get(row) or told(sum(parts.values())) for row, parts in rows.items()
    }
    stacks = [Bar(row, parts, ends[row], 20, 28, bold=True) for row, parts in rows.items()]
    limits = [Limit(f"{limit[0]}: {told(limit[1])}", limit[1], warns=True)] if limit else []
    said = [
        f"{row}, {ends[row]}: " + ", ".join(f"{name}: {told(size)}" for name, size in parts.items())
        for row, parts in rows.items()
    ]
    sentence = f"{title}. {'; '.join([*said, *(one.words for one in limits)])}."
    names = dict.fromkeys(name for parts in rows.values() for name in parts)
    looks = _fills(names, colours or {})
    return Bars(stacks, looks, limits=limits, told=told, sentence=sentence, size=_SIZE).alone(title)


def _look(colour: str | Look) -> Look:
    return (colour, None) if isinstance(colour, str) else colour


def _fills(names: Iterable[str], colours: Looks) -> dict[str, Look]:
    """The look of each part: from `colours`, by meaning, or the next unused one."""
    known = {name: _look(colours[name]) for name in names if name in colours}
    known |= {name: look for name in names if name not in known and (look := _meant(name))}
    taken = [fill for fill, _ in known.values()]
    free = iter([fill for fill in _OTHERS if fill not in taken] + [style.PALE] * 99)
    return {name: known.get(name) or (next(free), None) for name in names}


def _meant(name: str) -> Look | None:
    """The look for the word with which a name begins, as "messages of tp"; None if unknown."""
    word = next((word for word in _WORDS if name.startswith(word)), None)
    return style.MEANINGS[word] if word else None
