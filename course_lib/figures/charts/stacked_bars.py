"""Bars that are made of parts: what a time, a memory or a count consists of."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.key import key, key_height
from course_lib.figures.paper.picture import WIDTH_PT
from course_lib.figures.paper.text import width_pt

_TOP, _BAR, _ROW, _LIMIT = 28.0, 20.0, 28.0, 16.0
_SIZE = 9.0
_MOST_ROWS = 12
# Parts whose colour has a meaning; a name may go on: "messages of tp".
_MEANINGS = {
    "weights": style.WEIGHTS,
    "gradients": style.GRADIENTS,
    "states": style.STATES,
    "optimizer": style.STATES,
    "activations": style.ACTIVATIONS,
    "intermediate results": style.ACTIVATIONS,
    "inputs and labels": style.PALE,
    "temporary": style.TEMPORARY,
    "messages": style.MESSAGES,
    "computing": style.COMPUTING,
    "forward": style.FORWARD,
    "backward": style.BACKWARD,
    "gradient of the input": style.INPUT_GRADIENT,
    "gradient of the weights": style.WEIGHT_GRADIENT,
    "update": style.UPDATE,
    "idle": style.IDLE,
    **style.AXES,
}
_OTHERS = (style.SKY, style.YELLOW, style.PINK, style.GREEN, style.BLUE, style.ORANGE)
Rows = Mapping[str, Mapping[str, float]]
Tell = Callable[[float], str]


class _Scale(NamedTuple):
    """Where bars begin, points for each unit, and where the line of the limit stands."""

    left: float
    points: float
    line: float


class _Piece(NamedTuple):
    """One part as it is drawn, and the words that fit into it."""

    name: str
    x: float
    width: float
    words: str


def stacked_bars(
    rows: Rows,
    title: str,
    told: Tell = "{:,.4g}".format,
    totals: Mapping[str, str] | None = None,
    *,
    colours: Mapping[str, str] | None = None,
    limit: tuple[str, float] | None = None,
) -> Drawing:
    """One bar for each row, all on one scale, from parts in order: {"1F1B": {"idle": 9, …}, …}.

    `told` turns a number into text; `totals` has the text behind a bar, by default its sum. A part
    keeps its colour in all rows: that of `colours`, or its meaning's, where its name begins with
    one. `limit` is a line with a name. Raises ValueError without a row, for more than 12, and for
    a part below 0.
    """
    _check(rows)
    sums = {row: sum(parts.values()) for row, parts in rows.items()}
    ends = {row: (totals or {}).get(row) or told(size) for row, size in sums.items()}
    largest = max(*sums.values(), limit[1] if limit else 0.0)
    scale = _scale(rows, ends, largest, limit[1] if limit else None)
    fills = _fills(rows, colours or {})
    pieces = {row: _pieces(parts, told, scale) for row, parts in rows.items()}
    written = {piece.name for each in pieces.values() for piece in each if piece.words}
    nameless = {name: fill for name, fill in fills.items() if name not in written}
    top = _TOP + (_LIMIT if limit else 0)
    bottom = top + _ROW * len(rows)
    sentence = _sentence(rows, title, told, ends, limit)
    drawing = Drawing(bottom + key_height(nameless, scale.left), sentence)
    drawing.title(title)
    for place, row in enumerate(rows):
        y = top + _ROW * place
        drawing.write(scale.left - 8, y + 14, row, size=_SIZE, align="right")
        _bar(drawing, pieces[row], y, fills)
        end = scale.left + sums[row] * scale.points
        if end < scale.line < end + width_pt(ends[row], _SIZE) + 10:
            end = scale.line  # the words must not lie on the line
        drawing.write(end + 6, y + 14, ends[row], size=_SIZE, bold=True)
    if limit:
        side = "right" if scale.line > WIDTH_PT / 2 else "left"
        line = [(scale.line, top - 8), (scale.line, bottom - 4)]
        drawing.line(line, style.WARNING, 1.5, dashed=True)
        words = f"{limit[0]}: {told(limit[1])}"
        drawing.write(scale.line, top - 12, words, _SIZE, side, style.WARNING_TEXT)
    key(drawing, nameless, scale.left, bottom + 4)
    return drawing


def _check(rows: Rows) -> None:
    if not 0 < len(rows) <= _MOST_ROWS:
        raise ValueError(f"rows has {len(rows)} bars: give 1 to {_MOST_ROWS}")
    for row, parts in rows.items():
        for name, size in parts.items():
            if size < 0:
                raise ValueError(f"part {name!r} of {row!r} is {size}: give 0 or more")


def _scale(rows: Rows, ends: Mapping[str, str], largest: float, limit: float | None) -> _Scale:
    left = max(width_pt(row, _SIZE) for row in rows) + 14
    right = 1.1 * max(width_pt(end, _SIZE) for end in ends.values()) + 8  # they are bold
    points = (WIDTH_PT - left - right) / (largest or 1.0)
    return _Scale(left, points, left + limit * points if limit else -1.0)


def _fills(rows: Rows, colours: Mapping[str, str]) -> dict[str, str]:
    """The colour of each part: the given one, its meaning's, or the next one that is free."""
    names = dict.fromkeys(name for parts in rows.values() for name in parts)
    meant = {
        name: look for name in names for word, look in _MEANINGS.items() if name.startswith(word)
    }
    known = {**meant, **colours}
    free = iter(
        [fill for fill in _OTHERS if fill not in known.values()] + [style.PALE] * len(names)
    )
    return {name: known.get(name) or next(free) for name in names}


def _pieces(parts: Mapping[str, float], told: Tell, scale: _Scale) -> list[_Piece]:
    """The parts of a bar from left to right, each with as many words as it has room for."""
    pieces, x = [], scale.left
    for name, size in parts.items():
        width = size * scale.points
        number = f"{name}: {told(size)}"  # a name may end in a number
        texts = (number, name) if len(parts) > 1 else (name,)  # the sum stands behind the bar
        words = next((text for text in texts if _has_room(text, x, width, scale.line)), "")
        pieces.append(_Piece(name, x, width, words))
        x += width
    return pieces


def _has_room(text: str, x: float, width: float, line: float) -> bool:
    half = width_pt(text, _SIZE) / 2 + 3
    return 2 * half <= width and abs(x + width / 2 - line) > half


def _bar(drawing: Drawing, pieces: list[_Piece], y: float, fills: Mapping[str, str]) -> None:
    for name, x, width, words in pieces:
        if width:
            drawing.boxes([(x, y, width, _BAR)], fills[name])
        if words:
            ink = style.on(fills[name])
            drawing.write(x + width / 2, y + 13.5, words, _SIZE, "center", ink)


def _sentence(
    rows: Rows,
    title: str,
    told: Tell,
    ends: Mapping[str, str],
    limit: tuple[str, float] | None,
) -> str:
    bars = [
        f"{row}, {ends[row]}: " + ", ".join(f"{name}: {told(size)}" for name, size in parts.items())
        for row, parts in rows.items()
    ]
    end = f"; {limit[0]}: {told(limit[1])}" if limit else ""
    return f"{title}. {'; '.join(bars)}{end}."
