"""Bars of parts: as long as their parts, in their meanings' colours; and faults that are found."""

import pytest
from checks import draw, faults

from course_lib import figures
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing


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


def test_what_is_wrong_with_a_figure_is_found() -> None:
    """One fault each: otherwise a check that finds nothing would not be noticed."""
    one = Drawing(100, "1e+03 bytes")
    one.write(515, 20, "cut")
    one.write(10, 40, "on one another")
    one.write(12, 42, "on one another too")
    one.boxes([(10, 50, 60, 20)], style.BLUE)
    one.write(20, 64, "dark", colour=style.ON_FILL)
    one.boxes([(100, 50, 60, 20)], style.ORANGE, "/")
    one.write(110, 64, "thin", colour=style.ON_FILL)
    one.boxes([(200, 50, 20, 20)], style.ORANGE)
    one.write(205, 64, "too long", colour=style.ON_FILL)
    found = faults(draw(one))
    assert found[:3] == [
        "'cut' is cut",
        "'on one another too' lies on 'on one another'",
        "'1e+03 bytes' holds a number in scientific notation",
    ]
    assert {one.partition(",")[0] for one in found[3:-2]} == {"'dark'", "'too long'"}
    assert found[-2:] == [
        "'thin' stands thin on hatched #E69F00",
        "'too long' runs over the edge of a box in #E69F00",
    ]
