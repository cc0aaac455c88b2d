"""What several machines did and when: one row each, one box for each stretch of time."""

from collections.abc import Mapping, Sequence

from course_lib.figures.paper import style
from course_lib.figures.paper.picture import WIDTH_PT
from course_lib.figures.paper.sheet import Sheet
from course_lib.figures.paper.style import Look
from course_lib.theory.inputs.units import format_duration

_LEFT, _RIGHT, _TOP, _ROW = 92.0, WIDTH_PT - 8, 30.0, 34.0
_TOLD = 6  # stretches of one row
_KNOWN: dict[str, Look] = {
    **dict.fromkeys(("training", "runs", "work", "computing"), (style.COMPUTING, None)),
    **dict.fromkeys(("dead", "lost", "hangs"), (style.WARNING, None)),
    **dict.fromkeys(("waits", "waiting", "starts", "restart"), (style.IDLE, None)),
    "save": (style.STATES, None),
    "rows": (style.WEIGHTS, None),
    "gradients": (style.GRADIENTS, None),
}
_MOST = 6  # kinds
Stretch = tuple[str, float, float]  # what, from, to


def who_did_what(rows: Mapping[str, Sequence[Stretch]], title: str = "") -> Sheet:
    """{"node n1": [("training", 0, 12.5), …]}, in seconds; each kind has its colour and hatch.

    Raises ValueError without a stretch, for more than six kinds, and for an end before its start.
    """
    stretches = [stretch for row in rows.values() for stretch in row]
    if not stretches:
        raise ValueError('rows holds no stretch of time: give {"node": [("training", 0, 10)]}')
    for what, start, end in stretches:
        if end < start:
            raise ValueError(f"{what!r} ends at {end:g}, before {start:g}: give its end last")
    kinds = list(dict.fromkeys(what for what, *_ in stretches))
    if len(kinds) > _MOST:
        raise ValueError(f"{len(kinds)} kinds of stretch: name at most {_MOST}")
    looks = style.looks(kinds, _KNOWN)
    first, last = min(start for _, start, _ in stretches), max(end for *_, end in stretches)
    lines = -(-len(kinds) // 3)
    sheet = Sheet(_TOP + _ROW * len(rows) + 26 + 18 * lines, _sentence(rows, first))
    sheet.title(title)
    scale = (_RIGHT - _LEFT) / max(last - first, 1e-9)
    for place, (name, row) in enumerate(rows.items()):
        y = _TOP + place * _ROW
        sheet.write(_LEFT - 6, y + 19, name, align="right")
        sheet.line([(_LEFT, y + 28), (_RIGHT, y + 28)], style.PALE)
        for kind, (fill, hatch) in looks.items():
            boxes = [
                (_LEFT + (start - first) * scale, y + 4, (end - start) * scale, 22.0)
                for what, start, end in row
                if what == kind
            ]
            sheet.boxes(boxes, fill, hatch)
    bottom = _TOP + _ROW * len(rows) + 12
    sheet.write(_LEFT, bottom, "0 s", size=9, colour=style.GREY)
    end_text = format_duration(last - first)
    sheet.write(_RIGHT, bottom, end_text, size=9, align="right", colour=style.GREY)
    for place, what in enumerate(kinds):
        x, y = 6 + (place % 3) * 172, bottom + 10 + 18 * (place // 3)
        sheet.boxes([(x, y, 14, 11)], *looks[what])
        sheet.write(x + 20, y + 10, what)
    return sheet


def _sentence(rows: Mapping[str, Sequence[Stretch]], first: float) -> str:
    return "; ".join(f"{name}: {_story(row, first)}" for name, row in rows.items()) + "."


def _story(row: Sequence[Stretch], first: float) -> str:
    """Each stretch in words; of many only how long each kind is."""
    if len(row) <= _TOLD:
        return ", ".join(
            f"{what} from {format_duration(start - first)} to {format_duration(end - first)}"
            for what, start, end in row
        )
    sums: dict[str, list[float]] = {}
    for what, start, end in row:
        sums.setdefault(what, []).append(end - start)
    return ", ".join(
        f"{what} {format_duration(sum(times))} in {len(times)}" for what, times in sums.items()
    )
