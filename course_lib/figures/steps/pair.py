"""One step of a pair of cut matrices: what each rank has, and what the ranks exchange."""

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT, Box
from course_lib.figures.paper.text import counted
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.network.pair_steps import MLP, PairStep, PairSteps

_TOP, _ROW, _FOOT, _MOST_RANKS = 48.0, 74.0, 24.0, 4
_UNIT, _TOKENS = 16.0, 30.0  # points of the hidden size, and of all tokens
_F, _G, _MESSAGE = 76.0, 442.0, 30.0  # the columns where f and g stand, and their width
# Left edge of each tensor's place; A, X·A and Y have room for four hidden sizes.
_X = {"X": 52.0, "f(X)": 114.0, "A": 144.0, "XA": 224.0, "Y": 306.0, "B": 388.0}
_X |= {"YB": 418.0, "Z": 480.0}
# Where the gradient of a backward step lies: in the place of what it is the gradient of.
_BACK = {"dZ": "Z", "g(dZ)": "YB", "dY": "Y", "dXA": "XA", "dX part": "f(X)", "dX": "X"}
_UNFINISHED = ("YB", "dX part")  # to be summed over the ranks


def pair_step(result: PairSteps, step: int) -> Drawing:
    """A row for each rank: its part of X, A, X·A, Y, B, Y·B and Z as far as they are made.

    Blue are weights, light blue is what the forward pass made, orange are gradients; a frame is
    round what this step makes. Raises ValueError for more than four ranks and for a step that does
    not exist.
    """
    if result.ranks > _MOST_RANKS:
        raise ValueError(f"{result.ranks} ranks: draw at most {_MOST_RANKS}")
    if not 0 <= step < len(result.steps):
        raise ValueError(f"step {step}: give one from 0 to {len(result.steps) - 1}")
    now = result.steps[step]
    height = _TOP + _ROW * result.ranks + _FOOT
    drawing = Drawing(height, _sentence(result, now))
    _names(drawing, result, now)
    made = [one.makes for one in result.steps[: step + 1]]
    _messages(drawing, result, now)
    for rank in range(result.ranks):
        y = _TOP + rank * _ROW + _ROW / 2
        drawing.write(44, y + 4, f"rank {rank}", align="right", size=9, bold=True)
        _weights(drawing, result, rank, y, made)
        for place in ("X", "f(X)", "XA", "Y", "YB", "Z"):
            _tensor(drawing, result, rank, place, made)
    text = _message_words(result, now)
    drawing.write(WIDTH_PT / 2, height - 8, text, align="center", bold=bool(now.collective))
    return drawing


def _names(drawing: Drawing, result: PairSteps, now: PairStep) -> None:
    between = "GELU" if result.kind == MLP else "heads"
    backward = now.phase == "backward"
    mark = "∂" if backward else ""
    names = {
        "X": "X",
        "f(X)": "f(X)",
        "A": "A",
        "XA": "X·A",
        "Y": between,
        "B": "B",
        "YB": "Y·B",
        "Z": "Z",
    }
    for place, name in names.items():
        bold = place == _BACK.get(now.makes, now.makes)
        text = mark + name if place not in ("A", "B", "Y") else name
        text = f"∂({name})" if backward and place in ("XA", "YB") else text
        middle = _X[place] + _slot(place) / 2
        drawing.write(middle, _TOP - 8, text, size=9, align="center", bold=bold)
    direction = "forward: from left to right" if not backward else "backward: from right to left"
    drawing.write(0, 12, direction, bold=True)
    for x, name in ((_F, "f"), (_G, "g")):
        drawing.write(x + _MESSAGE / 2, _TOP - 8, name, align="center", bold=True)


def _slot(place: str) -> float:
    return 4 * _UNIT if place in ("A", "XA", "Y") else _UNIT


def _messages(drawing: Drawing, result: PairSteps, now: PairStep) -> None:
    """The columns of f and g: green while something is sent, lines where it is only copied."""
    high = _ROW * result.ranks - 8
    places = {"f(X)": _F, "dX": _F, "Z": _G, "g(dZ)": _G}
    for x in (_F, _G):
        active = places.get(now.makes) == x
        box = (x, _TOP + 4, _MESSAGE, high)
        if active and now.collective:
            drawing.boxes([box], style.MESSAGES, "/")
            middle = x + _MESSAGE / 2
            top, bottom = _TOP + 14, _TOP + high - 6
            drawing.line([(middle, top), (middle, bottom)], style.ON_FILL, width=2)
            for tip, side in ((top, 6), (bottom, -6)):
                head = [(middle - 5, tip + side), (middle, tip), (middle + 5, tip + side)]
                drawing.line(head, style.ON_FILL, width=2)
        else:
            drawing.boxes([box], style.WHITE, edge=style.PALE)
            if active:
                ways = [_TOP + (rank + 0.5) * _ROW for rank in range(result.ranks)]
                for y in ways:
                    drawing.line([(x + 3, y), (x + _MESSAGE - 3, y)], style.INK, width=1.5)


def _weights(
    drawing: Drawing, result: PairSteps, rank: int, middle: float, made: list[str]
) -> None:
    """A by columns and B by rows; half of a slice turns orange when it has its gradient."""
    wide, high = (size / result.hidden * _UNIT for size in (result.inner, result.middle))
    x = _X["A"] + (_slot("A") - wide) / 2
    whole_a = (x, middle - _UNIT / 2, wide, _UNIT)
    whole_b = (_X["B"], middle - high / 2, _UNIT, high)
    drawing.boxes([whole_a, whole_b], style.WHITE, edge=style.GREY)
    slices_a = _columns(result, rank, x, middle - _UNIT / 2, _UNIT)
    slice_b = (_X["B"], middle - high / 2 + rank * high / result.ranks, _UNIT, high / result.ranks)
    drawing.boxes([*slices_a, slice_b], style.WEIGHTS)
    gradients: list[Box] = []
    if "dX part" in made:
        gradients += [(a, top + size / 2, width, size / 2) for a, top, width, size in slices_a]
    if "dY" in made:
        left, top, width, size = slice_b
        gradients.append((left + width / 2, top, width / 2, size))
    drawing.boxes(gradients, style.GRADIENTS)


def _columns(result: PairSteps, rank: int, x: float, y: float, high: float) -> list[Box]:
    """This rank's columns of X·A or A: of an attention, its heads of queries, keys and values."""
    parts = 1 if result.kind == MLP else 3
    part = result.inner / result.hidden * _UNIT / parts
    each = part / result.ranks
    return [(x + number * part + rank * each, y, each, high) for number in range(parts)]


def _tensor(drawing: Drawing, result: PairSteps, rank: int, place: str, made: list[str]) -> None:
    """The outline of the whole tensor, and this rank's part of it once it is made."""
    numbers = {"XA": result.inner, "Y": result.middle}.get(place, result.hidden)
    wide = numbers / result.hidden * _UNIT
    x = _X[place] + (_slot(place) - wide) / 2
    y = _TOP + rank * _ROW + (_ROW - _TOKENS) / 2
    drawing.boxes([(x, y, wide, _TOKENS)], style.WHITE, edge=style.GREY)
    steps = [name for name in made if _BACK.get(name, name) == place]
    if not steps:
        return
    name = steps[-1]
    fill = style.GRADIENTS if name in _BACK else style.ACTIVATIONS
    parts = [(x, y, wide, _TOKENS)]
    if place == "XA":
        parts = _columns(result, rank, x, y, _TOKENS)
    if place == "Y":
        parts = [(x + rank * wide / result.ranks, y, wide / result.ranks, _TOKENS)]
    if place in ("X", "Z") and result.sequence_parallel:
        parts = [(x, y + rank * _TOKENS / result.ranks, wide, _TOKENS / result.ranks)]
    drawing.boxes(parts, fill, "/" if name in _UNFINISHED else None)
    if name == made[-1]:
        frame = (x - 3, y - 3, wide + 6, _TOKENS + 6)
        left, top, right, bottom = frame[0], frame[1], frame[0] + frame[2], frame[1] + frame[3]
        corners = [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]
        drawing.line(corners, style.INK, width=1.6)


def _message_words(result: PairSteps, now: PairStep) -> str:
    if now.collective:
        size = format_bytes(now.size_bytes)
        sent = format_bytes(now.sent_bytes)
        return f"{now.collective} of {size}: each rank sends {sent}"
    if now.makes in _UNFINISHED:
        return f"{result.ranks} unfinished results of full size, to be added up"
    return "nothing is sent"


def _sentence(result: PairSteps, now: PairStep) -> str:
    rows, columns = now.shape
    return (
        f"{counted(result.ranks, 'rank')}, {now.phase}: each makes {now.makes}, {rows:,} × "
        f"{columns:,} numbers; {_message_words(result, now)}."
    )
