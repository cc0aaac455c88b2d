"""Bars of parts: as long as their parts, in the colours of their meanings."""

import pytest
from checks import draw

from course_lib import figures
from course_lib.figures.paper import style


def test_a_bar_is_as_long_as_its_parts() -> None:
    drawn = draw(
        figures.stacked_bars({"a": {"computing": 3, "idle": 1}, "b": {"idle": 2}}, "t", str)
    )
    (one,) = (box for fill, box in drawn.boxes if fill == style.COMPUTING)
    short, long = sorted(box.width for fill, box in drawn.boxes if fill == style.IDLE)
    assert one.width == pytest.approx(3 * short) == pytest.approx(1.5 * long)


def test_a_name_keeps_the_colour_of_its_meaning() -> None:
    parts = {"gradients of fp32": 2, "mine": 1, "yours": 1}
    svg = figures.stacked_bars({"a": parts}, "t", str, colours={"yours": style.PINK}).to_svg()
    assert style.GRADIENTS in svg and style.SKY in svg and style.PINK in svg
