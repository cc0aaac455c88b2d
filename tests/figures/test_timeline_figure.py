"""Timelines of a pipeline and of buckets: every pass in its place, readable, quick to draw."""

import re
from collections import Counter
from dataclasses import replace

import checks
import pytest
from listed import EIGHT_H100, FEW, FIGURES, judged, tasks

from course_lib import figures
from course_lib.figures.engines.lanes import Lanes, Levels
from course_lib.figures.engines.page import page
from course_lib.figures.paper import style
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.planner import plan, sturdy
from course_lib.theory.step.assumptions import CAUTIOUS, Assumptions
from course_lib.trace import Event

PIPELINES = ("1f1b", "interleaved", "zbv", "dualpipe", "one stage")


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


def test_numbers_are_explained_where_there_are_any(drawn):
    """In a small box there is no room for a number."""
    for name in (*PIPELINES, "two"):
        one = drawn[name]
        numbers = [label for label in one.labels if label.size == 7.5]
        notes = [label for label in one.labels if label.text.startswith("numbers: micro")]
        assert len(notes) == bool(numbers), name


def test_a_kind_of_pass_has_one_colour_and_no_hatch(drawn):
    """A backward pass and its first half are one colour, and one box of the key."""
    words = {text: checks.beside(drawn["dualpipe"], box) for text, box in drawn["dualpipe"].extents}
    assert words["backward, or input's gradient"] == [style.BACKWARD]
    assert not any(shape.hatch for shape in drawn["dualpipe"].shapes)


def test_a_bar_goes_on_to_the_cautious_time():
    eight = replace(EIGHT_H100, nodes=8)
    free = Assumptions(message_touches=0, message_sms=0)  # ZeRO-3 wins, and bets on hiding
    found = plan(MODELS["llama2-70b"], Recipe(), eight, 512, only=FEW, assumptions=free)
    plans = [found, found.under(CAUTIOUS)]
    drawing = judged(found, "70B")
    shown = [*found.ranked(4), sturdy(plans, 1)[0].option]
    times = [[each.step(option).total_s for each in plans] for option in shown]
    outlines = checks.draw(drawing).outlines
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
    assert words[-1][2:] in drawing.sentence
    assert f"the sturdiest is {words[-1][2:]}" in drawing.sentence


def test_later_chunks_look_different():
    one, two = FIGURES["1f1b"]().to_svg(), FIGURES["interleaved"]().to_svg()
    light = f'fill="{style.lighter(style.FORWARD)}"'
    assert "later chunk" not in one and light not in one
    assert "lighter: a later chunk" in two and light in two


def test_the_height_is_the_same_whatever_is_drawn():
    assert len({FIGURES[name]().height_pt for name in PIPELINES}) == 1


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 1), (4, 8), (16, 8), (4, 32), (16, 32)])
def test_passes_of_a_kind_are_numbered_alike(stages, micro_batches):
    """All of them, every fourth, or none."""
    text = figures.timeline({"a": tasks("1f1b", stages, micro_batches)}, False).to_svg()
    numbers = Counter(
        re.findall(r">(\d+)<", text.partition('font-size="7.5"')[2].partition("/g>")[0])
    )
    every = {int(number) for number in numbers}
    assert every in [set(range(micro_batches)), set(range(0, micro_batches, 4)), set()]
    assert not numbers or set(numbers.values()) <= {stages, 2 * stages}
