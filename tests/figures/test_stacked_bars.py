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


def test_a_name_and_its_number_are_kept_apart() -> None:
    """A bucket has a number for its name, a process has one as well."""
    one = figures.stacked_bars({"a": {"12176": 782, "1": 400}}, "t", "{:.0f} MB".format)
    words = [text for text, _ in draw(one).extents]
    assert "12176: 782 MB" in words and "1: 400 MB" in words
    assert "12176: 782 MB" in one.sentence


def test_no_colour_stands_for_two_parts() -> None:
    """The first part has no meaning of its own, and must not take the colour of a later one."""
    parts = {"whatever": 1, "inputs and labels": 1, "intermediate results": 1, "computing": 1}
    one = draw(figures.stacked_bars({"a": parts, "b": {"gathered": 1, "update": 1}}, "t", str))
    fills = [fill for fill, _ in one.boxes]
    assert fills[1:4] == [style.PALE, style.ACTIVATIONS, style.COMPUTING]  # the last two are one
    assert len(set(fills)) == len(fills) - 1
