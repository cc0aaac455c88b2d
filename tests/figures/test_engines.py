"""What the engines draw: cells, bars and lanes in their places and lengths; faults are found."""

import re
from dataclasses import replace

import pytest
from checks import draw, faults
from listed import EIGHT_H100, FEW, FIGURES, judged, tasks

from course_lib import figures
from course_lib.figures.engines.cells import Cell, cells, matrix
from course_lib.figures.engines.lanes import Lanes, Levels
from course_lib.figures.engines.page import page
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing, Shapes
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.planner import plan, sturdy
from course_lib.theory.step.assumptions import CAUTIOUS, Assumptions
from course_lib.trace import Event

# --- cells --------------------------------------------------------------------------------------


def shapes(drawing: Drawing, kind: str, colour: str) -> list[Shapes]:
    every = [mark for mark in drawing.marks if isinstance(mark, Shapes)]
    return [one for one in every if one.kind == kind and colour in (one.fill, one.edge)]


def test_a_filled_slot_has_the_colour_of_its_word_and_a_share_of_the_cell() -> None:
    drawing = cells({"rank 0": {"a": Cell("", {1: "weights"}, 4)}})
    (filled,) = shapes(drawing, "box", style.WEIGHTS)
    ((outline,),) = [one.places for one in shapes(drawing, "box", style.WHITE)]
    ((x, y, wide, high),) = filled.places
    assert (round(x - outline[0], 3), y, round(wide, 3), high) == (
        round(outline[2] / 4, 3), outline[1], round(outline[2] / 4, 3), outline[3],
    )  # fmt: skip
    assert drawing.sentence == "rank 0: a 1 of 4 parts of weights."


def test_neighbours_of_one_word_are_one_piece_unless_lined() -> None:
    grid = {"rank 0": {"a": Cell("", {0: "weights", 1: "weights"}, 2)}}
    drawn = [shapes(cells(grid, lined=lined), "box", style.WEIGHTS) for lined in (False, True)]
    assert [sum(len(one.places) for one in each) for each in drawn] == [1, 2]


def test_a_sum_has_a_stripe_for_each_summand_at_the_foot_of_its_slot() -> None:
    drawing = cells({"all": {"sum": Cell("", {0: ("weights", "gradients")}, texts={0: "3"})}})
    (first,) = shapes(drawing, "box", style.WEIGHTS)[0].places
    (second,) = shapes(drawing, "box", style.GRADIENTS)[0].places
    assert first[1] == second[1] and first[0] + first[2] == second[0]


def test_frames_and_dots_stand_on_their_cells() -> None:
    drawing = cells({"a": {"b": Cell("", {}, 2, frame="messages", dots=(1,))}})
    (frame,) = shapes(drawing, "line", style.MESSAGES)
    (dot,) = shapes(drawing, "box", style.UPDATE)
    xs = [x for x, _ in frame.places[0]]
    assert min(xs) < dot.places[0][0] < max(xs)


def test_a_matrix_shows_the_numbers_that_are_held() -> None:
    one = draw(cells({"rank 0": {"A": matrix([[1, -2], [3, 4]], "weights", (1, 3))}}, square=24))
    assert [text for text, _ in one.extents if text not in ("rank 0", "A")] == ["−2", "4"]


def test_a_wide_cell_lies_over_all_its_columns() -> None:
    wide = {"x": Cell("", {0: "messages"}, wide=2)}
    drawing = cells({"a": {"x": Cell("1"), "y": Cell("2")}, "b": wide})
    (left, *_), (right, _, width, _) = shapes(drawing, "box", style.WHITE)[0].places
    (bar,) = shapes(drawing, "box", style.MESSAGES)[0].places
    assert (bar[0], round(bar[2], 3)) == (left, round(right + width - left, 3))


# --- bars ---------------------------------------------------------------------------------------


def test_a_bar_is_as_long_as_its_parts() -> None:
    drawn = draw(
        figures.stacked_bars({"a": {"computing": 3, "idle": 1}, "b": {"idle": 2}}, "t", str)
    )
    (one,) = (box for fill, box in drawn.boxes if fill == style.COMPUTING)
    short, long = sorted(box.width for fill, box in drawn.boxes if fill == style.IDLE)
    assert one.width == pytest.approx(3 * short) == pytest.approx(1.5 * long)


def test_a_name_and_its_number_are_kept_apart() -> None:
    """A bucket has a number for its name, a process has one as well."""
    one = figures.stacked_bars({"a": {"12176": 782, "1": 400}}, "t", "{:.0f} MB".format)
    assert {"12176: 782 MB", "1: 400 MB"} <= {text for text, _ in draw(one).extents}


def test_no_colour_stands_for_two_parts() -> None:
    """The first part has no meaning of its own, and must not take the colour of a later one."""
    parts = {"whatever": 1, "inputs and labels": 1, "intermediate results": 1, "computing": 1}
    one = draw(figures.stacked_bars({"a": parts, "b": {"gathered": 1, "update": 1}}, "t", str))
    fills = [fill for fill, _ in one.boxes]
    assert fills[1:4] == [style.PALE, style.ACTIVATIONS, style.COMPUTING]  # the last two are one
    assert len(set(fills)) == len(fills) - 1


# --- lanes --------------------------------------------------------------------------------------


def boxes(drawing):
    """Left, top, width, height of every box, hatches left out."""
    plain = re.sub(r'<path d="[^"]*" fill="url[^>]*>', "", drawing.to_svg())
    found = re.findall(r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)h", plain)
    return [tuple(map(float, box)) for box in found]


def test_every_event_has_a_box_of_its_length():
    rows = {
        "a": [Event(1, 0, "forward", end=2), Event(2, 0, "forward", end=4)],
        "b": [Event(1, 1, "forward", end=3), Event(1, 1, "forward", end=3)],
    }
    first, second, *halves = boxes(page("", Lanes(rows)))
    assert second[2] == pytest.approx(2 * first[2], abs=0.2)
    assert second[0] == pytest.approx(first[0] + first[2], abs=0.2)
    (upper, lower) = halves  # events of a row at the same time share its height
    assert upper[2] == lower[2] == second[2]
    assert lower[1] == pytest.approx(upper[1] + first[3] / 2, abs=0.1)


def test_blocks_of_a_page_share_the_left_edge_and_the_scale():
    long_name = Lanes({"the row with the long name": [Event(0, 0, "forward", end=2)]})
    short = Lanes({"b": [Event(5, 0, "forward", end=6)]}, name="half as long")
    below = Levels({"forward": [(0, 5), (1, 0)]}, over=(0, 2))
    one, two, three = boxes(page("", long_name, short, below))
    assert one[0] == two[0] == three[0]
    assert one[2] == pytest.approx(2 * two[2], abs=0.2) == pytest.approx(2 * three[2], abs=0.2)


def test_what_is_still_to_come_is_an_outline_and_the_height_stays():
    rows = {"a": [Event(n, 0, "backward", end=n + 1) for n in range(3)]}
    steps = [page("", Lanes(rows, now=now, marks={"over": 2}), key=["backward"]) for now in (0, 2)]
    assert steps[0].height_pt == steps[1].height_pt
    fills = [one.to_svg().count("stroke-dasharray") for one in steps]
    assert fills == [2, 1]  # the mark, and what has not begun


def test_the_height_of_a_pipeline_is_the_same_whatever_is_drawn():
    names = ("1f1b", "interleaved", "zbv", "dualpipe", "one stage")
    assert len({FIGURES[name]().height_pt for name in names}) == 1


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 1), (4, 8), (16, 8), (4, 32), (16, 32)])
def test_passes_of_a_kind_are_numbered_alike(stages, micro_batches):
    """All of them, every fourth, or none; numbers are explained where there are any."""
    text = figures.timeline({"a": tasks("1f1b", stages, micro_batches)}, False).to_svg()
    found = re.findall(r">(\d+)<", text.partition('font-size="7.5"')[2].partition("/g>")[0])
    numbers = [int(number) for number in found]
    assert set(numbers) in [set(range(micro_batches)), set(range(0, micro_batches, 4)), set()]
    assert {numbers.count(number) for number in numbers} <= {stages, 2 * stages}
    assert ("numbers: micro-batches" in text) == bool(numbers)


def test_a_bar_goes_on_to_the_cautious_time():
    eight = replace(EIGHT_H100, nodes=8)
    free = Assumptions(message_touches=0, message_sms=0)  # ZeRO-3 wins, and bets on hiding
    found = plan(MODELS["llama2-70b"], Recipe(), eight, 512, only=FEW, assumptions=free)
    plans = [found, found.under(CAUTIOUS)]
    drawing = judged(found, "70B")
    shown = [*found.ranked(4), sturdy(plans, 1)[0].option]
    times = [[each.step(option).total_s for each in plans] for option in shown]
    outlines = draw(drawing).outlines
    bar = next(one.extent for one in outlines if one.shapes.fill == style.WHITE)
    scale = bar.width / max(map(max, times))
    more = [one.extent for one in outlines if one.shapes.hatch][:-1]  # the last is in the key
    longer = [(start, end) for start, end in times if end > start + 0.5 / scale]
    assert len(more) == len(longer) and times[0][1] > 1.2 * times[0][0]
    for one, pair in zip(more, longer, strict=True):
        ends = [bar.x0 + scale * seconds for seconds in pair]
        assert [one.x0, one.x1] == pytest.approx(ends, abs=0.5)
    # The sturdiest is not among the fastest: it comes last, and it alone is marked.
    words = [
        text for text in re.findall(r"<text[^>]*>([^<]+)", drawing.to_svg()) if "ZeRO-" in text
    ]
    assert [text.startswith("◆ ") for text in words] == [False] * 4 + [True]
    assert f"the sturdiest is {words[-1][2:]}" in drawing.sentence


# --- what is wrong with a figure ----------------------------------------------------------------


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
