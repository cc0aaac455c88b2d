"""What several machines did and when: one row each, one box for each stretch of time."""

from collections.abc import Mapping, Sequence

from course_lib.figures import style
from course_lib.figures.picture import WIDTH_PT
from course_lib.figures.sheet import Sheet
from course_lib.theory.inputs.units import format_duration

_LEFT, _RIGHT, _TOP, _ROW = 92.0, WIDTH_PT - 8, 30.0, 34.0
_TOLD = 6  # stretches of one row
_LOOKS = (
    (style.SKY, None),
    (style.YELLOW, "//"),
    (style.VERMILION, "xx"),
    (style.GREEN, "--"),
    (style.PINK, "\\\\"),
    (style.PALE, None),
)
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
    if len(kinds) > len(_LOOKS):
        raise ValueError(f"{len(kinds)} kinds of stretch: name at most {len(_LOOKS)}")
    first, last = min(start for _, start, _ in stretches), max(end for *_, end in stretches)
    lines = -(-len(kinds) // 3)
    sheet = Sheet(_TOP + _ROW * len(rows) + 26 + 18 * lines, _sentence(rows, first))
    sheet.write(0, 13, title, size=style.TITLE_PT, bold=True)
    scale = (_RIGHT - _LEFT) / max(last - first, 1e-9)
    for place, (name, row) in enumerate(rows.items()):
        y = _TOP + place * _ROW
        sheet.write(_LEFT - 6, y + 19, name, align="right")
        sheet.line([(_LEFT, y + 28), (_RIGHT, y + 28)], style.PALE)
        for (fill, hatch), kind in zip(_LOOKS, kinds, strict=False):
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
        fill, hatch = _LOOKS[place]
        sheet.boxes([(x, y, 14, 11)], fill, hatch)
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
