"""What a learner has built: each part, whose it is, its lines and its speed beside the course's."""

from collections.abc import Mapping, Sequence
from typing import Any

from course_lib.figures.engines.bars import grouped_bars
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.theory.inputs.units import format_number


def built(parts: Sequence[Mapping[str, Any]]) -> Drawing:
    """Two bars for each part of `checking.races.report()["parts"]`: lines of code, on one scale.

    Where the report was measured, the time of yours over the course's stands behind.
    """
    yours = sum(bool(part["file"]) for part in parts)
    rows, words = {}, {}
    for part in parts:
        name = f"{part['build']} {part['title']}"
        rows[name] = {"yours": part["lines"]} if part["file"] else {}
        rows[name] |= {"the course's": part["lines_of_the_course"]}
        if "times_the_course" in part:
            speed = f"{format_number(part['times_the_course'], 2)} times the course's time"
            words[name, "yours"] = f"{part['lines']} lines, {speed}"
    title = f"Your parallel library: {yours} of {len(parts)} parts are yours"
    looks = {"yours": (style.SKY, None), "the course's": (style.PALE, None)}
    return grouped_bars(rows, title, "{:,} lines".format, looks, words=words)
