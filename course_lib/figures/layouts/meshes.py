"""The ranks of a mesh, and the groups that they form along each axis."""

from collections.abc import Mapping, Sequence

from course_lib.figures.paper import style
from course_lib.figures.paper.picture import WIDTH_PT
from course_lib.figures.paper.sheet import Sheet
from course_lib.figures.paper.text import counted

_AXES = ("pp", "dp", "tp")
_LEFT, _TOP, _BOX, _GAP, _ROW = 74, 62, 28, 20, 48
_BETWEEN = 60  # from one stage to the next
_MOST = 64
Places = Sequence[Mapping[str, int]]
Sent = Mapping[str, Sequence[int]]


def rank_mesh(places: Places, sent: Sent | None = None) -> Sheet:
    """One box a rank: stages of the pipeline side by side, replicas below each other.

    Lines connect rank 0 with its groups. `places[rank]` holds the coordinates pp, dp and tp; `sent`
    the calls and bytes of rank 0 by "axis operation", as a demo's version has them.
    Raises ValueError without a rank, with more than 64, and for a mesh wider than the sheet.
    """
    if not 0 < len(places) <= _MOST:
        raise ValueError(f"places has {len(places)} ranks: give 1 to {_MOST}")
    size = {axis: 1 + max(place[axis] for place in places) for axis in _AXES}
    step = size["tp"] * (_BOX + _GAP) + _BETWEEN
    if _LEFT + size["pp"] * step - _BETWEEN > WIDTH_PT:
        raise ValueError(f"pp {size['pp']} × tp {size['tp']} ranks are too wide: draw fewer")
    lines = _sent_lines(sent or {})
    bottom = _TOP + size["dp"] * _ROW
    sheet = Sheet(bottom + 36 + 16 * len(lines), _sentence(places, size, lines))
    title = f"{counted(len(places), 'rank')}: pp {size['pp']} × dp {size['dp']} × tp {size['tp']}"
    sheet.title(title)
    _lines(sheet, size, step)
    for rank, place in enumerate(places):
        x = _LEFT + place["pp"] * step + place["tp"] * (_BOX + _GAP)
        y = _TOP + place["dp"] * _ROW
        ink = style.INK if rank else style.ON_FILL
        sheet.boxes([(x, y, _BOX, _BOX)], style.PALE if rank else style.YELLOW)
        sheet.write(x + _BOX / 2, y + 18, str(rank), align="center", colour=ink, bold=not rank)
    _legend(sheet, bottom, lines)
    return sheet


def _lines(sheet: Sheet, size: Mapping[str, int], step: float) -> None:
    """The names of stages and replicas, and a line through each group of rank 0."""
    for stage in range(size["pp"]):
        sheet.write(_LEFT + stage * step, 38, f"stage {stage}", colour=style.GREY)
    for replica in range(size["dp"]):
        sheet.write(0, _TOP + replica * _ROW + 18, f"replica {replica}", colour=style.GREY)
    x, y, above = _LEFT + _BOX / 2, _TOP + _BOX / 2, _TOP - 10
    if size["tp"] > 1:
        sheet.line([(x, y), (x + (size["tp"] - 1) * (_BOX + _GAP), y)], style.AXES["tp"], 4)
    if size["dp"] > 1:
        sheet.line([(x, y), (x, y + (size["dp"] - 1) * _ROW)], style.AXES["dp"], 4)
    for stage in range(1, size["pp"]):
        left, right = x + (stage - 1) * step, x + stage * step
        sheet.line([(left, y), (left, above), (right, above), (right, y)], style.AXES["pp"], 4)


def _legend(sheet: Sheet, bottom: float, lines: Sequence[str]) -> None:
    words = {"tp": "tp group of rank 0", "dp": "its dp group", "pp": "its pipeline (pp)"}
    for place, (axis, text) in enumerate(words.items()):
        x = 6 + 150 * place
        sheet.line([(x, bottom + 6), (x + 20, bottom + 6)], style.AXES[axis], 3)
        sheet.write(x + 26, bottom + 10, text)
    for row, line in enumerate(lines):
        sheet.write(6, bottom + 32 + 16 * row, line)


def _sent_lines(sent: Sent) -> list[str]:
    """What rank 0 called in an update, a line for each kind of message."""
    return [
        f"rank 0, each update: {calls:,} × {what}, {size:,} B in all"
        for what, (calls, size) in sent.items()
    ]


def _sentence(places: Places, size: Mapping[str, int], lines: Sequence[str]) -> str:
    def group(axis: str) -> str:
        first = places[0]
        same = [
            str(rank)
            for rank, place in enumerate(places)
            if all(place[other] == first[other] for other in _AXES if other != axis)
        ]
        return f"{axis} group {', '.join(same)}"

    groups = "; ".join(group(axis) for axis in ("tp", "dp", "pp") if size[axis] > 1)
    start = f"{counted(len(places), 'rank')} as pp {size['pp']} × dp {size['dp']} × tp {size['tp']}"
    return f"{start}. Rank 0 is in {groups or 'no group'}. {'; '.join(lines)}".rstrip() + "."
