"""Timelines of a pipeline and of buckets: every pass in its place, readable, quick to draw."""

import re
import time
from collections import Counter
from dataclasses import replace

import checks
import pytest

from course_lib import figures
from course_lib.figures.engines.lanes import Lanes, Levels
from course_lib.figures.engines.page import page
from course_lib.figures.paper import style
from course_lib.theory.inputs.cluster import Cluster
from course_lib.theory.inputs.hardware import HDR, accelerator
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.network.bucket_timeline import ddp_timeline, model_gradients
from course_lib.theory.pipelines import simulation
from course_lib.theory.pipelines.pass_times import PassTimes
from course_lib.theory.pipelines.timeline import Task
from course_lib.theory.planner import plan, sturdy
from course_lib.theory.step.assumptions import CAUTIOUS, Assumptions
from course_lib.trace import Event

A100 = accelerator("A100-SXM-80GB")
EIGHT_H100 = Cluster(accelerator("H100-SXM"))
ONE = (Task(0, "F", 0, 0, 0.0, 0.002),)


FEW = {"cp": (1,), "virtual_stages": (1,), "micro_batch": (1, 2)}


def judged(found, title):
    return figures.ranked_layouts(found, title, careful=found.under(CAUTIOUS))


def tasks(name, stages, micro_batches, chunks=1, times=None):
    return simulation.timeline(name, stages, micro_batches, chunks, times=times).tasks


GRADIENTS = model_gradients(MODELS["gpt2-124m"], A100, 512)
SHORT_AND_LONG = {
    "a short pass": ddp_timeline(GRADIENTS, 8, HDR),
    "a long one": ddp_timeline(GRADIENTS, 8, HDR, overlap=False),
}


# Extremes included: one pass, one stage, 64 stages, every kind of pass, a short chart below a long.
FIGURES = {
    "buckets, nothing hidden": lambda: figures.bucket_timeline(
        {"GPT": ddp_timeline(GRADIENTS, 1024, HDR, cap_bytes=2**20)}
    ),
    "buckets, two charts": lambda: figures.bucket_timeline(SHORT_AND_LONG),
    "buckets of a large model": lambda: figures.bucket_timeline(
        {"GPT": ddp_timeline(model_gradients(MODELS["llama2-70b"], A100, 131072), 2, HDR)}
    ),
    "plan": lambda: figures.ranked_layouts(
        plan(MODELS["llama2-7b"], Recipe(), EIGHT_H100, 64), "LLaMA-2 7B on 8 H100"
    ),
    "plan under two assumptions": lambda: judged(
        plan(MODELS["llama2-7b"], Recipe(), EIGHT_H100, 64), "LLaMA-2 7B on 8 H100"
    ),
    "plan of experts": lambda: judged(
        plan(MODELS["mixtral-8x7b"], Recipe(), replace(EIGHT_H100, nodes=16), 512, only=FEW),
        "Mixtral on 128 H100",
    ),
    "plan, nothing fits": lambda: figures.ranked_layouts(
        plan(MODELS["llama3.1-405b"], Recipe(), EIGHT_H100, 64, only={"cp": (1,)}), "405B"
    ),
    "one pass": lambda: figures.timeline({"one": ONE}),
    "one stage": lambda: figures.timeline({"alone": tasks("1f1b", 1, 4)}, seconds=False),
    "1f1b": lambda: figures.timeline({"1f1b": tasks("1f1b", 4, 8)}, seconds=False),
    "interleaved": lambda: figures.timeline({"a": tasks("interleaved", 4, 8, 2)}, seconds=False),
    "zb1p": lambda: figures.timeline({"zb1p": tasks("zb1p", 4, 8)}, seconds=False),
    "zbv": lambda: figures.timeline({"V": tasks("zbv", 4, 8)}, seconds=False),
    "dualpipe": lambda: figures.timeline({"both ways": tasks("dualpipe", 8, 20)}, seconds=False),
    "large": lambda: figures.timeline({"1f1b": tasks("1f1b", 64, 64)}, seconds=False),
    "two": lambda: figures.timeline(
        {"predicted": tasks("1f1b", 4, 8), "measured": tasks("naive", 4, 8)}
    ),
    "short below long": lambda: figures.timeline(
        {"long": tasks("1f1b", 2, 8), "short": tasks("1f1b", 2, 8, times=PassTimes(0.01, 0.01))}
    ),
}


@pytest.fixture(scope="module")
def drawn():
    """By name: the drawing and its marks."""
    return {name: checks.draw(make()) for name, make in FIGURES.items()}


def test_nothing_is_wrong_in_the_picture(drawn):
    assert {name: found for name, one in drawn.items() if (found := checks.faults(one))} == {}


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
    for name, one in drawn.items():
        numbers = [label for label in one.labels if label.size == 7.5]
        notes = [label for label in one.labels if label.text.startswith("numbers: micro")]
        assert len(notes) == bool(numbers), name


def test_a_kind_of_pass_has_one_colour_and_no_hatch(drawn):
    """A backward pass and its first half are one colour, and one box of the key."""
    words = {text: checks.beside(drawn["dualpipe"], box) for text, box in drawn["dualpipe"].extents}
    assert words["backward, or input's gradient"] == [style.BACKWARD]
    assert not any(shape.hatch for shape in drawn["dualpipe"].shapes)


def test_a_line_leads_to_the_cautious_time():
    eight = replace(EIGHT_H100, nodes=8)
    free = Assumptions(message_touches=0, message_sms=0)  # ZeRO-3 wins, and bets on hiding
    found = plan(MODELS["llama2-70b"], Recipe(), eight, 512, only=FEW, assumptions=free)
    plans = [found, found.under(CAUTIOUS)]
    drawing = judged(found, "70B")
    lines = (
        r'd="M([\d.]+) [\d.]+L([\d.]+) [\d.]+" fill="none" stroke="var\(--i\)" stroke-width="1.5"'
    )
    pairs = [tuple(map(float, pair)) for pair in re.findall(lines, drawing.to_svg())][2:]
    (whiskers, stops), best = (pairs[::2], pairs[1::2]), sturdy(plans, 1)[0]
    shown = [*found.ranked(4), best.option]
    times = [[each.step(option).total_s for each in plans] for option in shown]
    scale = 180 / max(map(max, times))
    for line, (start, end), pair in zip(whiskers, stops, times, strict=True):
        assert line == pytest.approx([scale * seconds for seconds in pair], abs=0.2)
        assert start == end == line[1]
    assert times[0][1] > 1.2 * times[0][0]
    # The sturdiest is not among the fastest: it comes last, and it alone is marked.
    words = [
        text for text in re.findall(r"<text[^>]*>([^<]+)", drawing.to_svg()) if "ZeRO-" in text
    ]
    assert [text.startswith("◆ ") for text in words] == [False] * 4 + [True]
    assert words[-1][2:] in drawing.sentence
    assert f"the sturdiest is {words[-1][2:]}" in drawing.sentence


def test_of_two_equal_times_one_is_written():
    alone = plan(MODELS["llama2-7b"], Recipe(), EIGHT_H100, 64, only={**FEW, "dp": (1,)})
    assert alone.under(CAUTIOUS).best(1)[0].step_s == alone.best(1)[0].step_s
    text = (
        f">{alone.best(1)[0].step_s:#.3g} s, MFU {100 * alone.mfu(alone.best(1)[0].step_s):.0f} %<"
    )
    assert text in judged(alone, "alone").to_svg()


def test_sentences():
    assert FIGURES["two"]().sentence == (
        "predicted: 4 stages, 8 micro-batches, from 0 to 33 s. "
        "measured: 4 stages, 8 micro-batches, from 0 to 96 s."
    )


def test_later_chunks_look_different():
    one, two = FIGURES["1f1b"]().to_svg(), FIGURES["interleaved"]().to_svg()
    light = f'fill="{style.lighter(style.FORWARD)}"'
    assert "later chunk" not in one and light not in one
    assert "lighter: a later chunk" in two and light in two


def test_the_height_is_the_same_whatever_is_drawn():
    alone = ("1f1b", "interleaved", "zb1p", "zbv", "dualpipe", "one stage")
    assert len({FIGURES[name]().height_pt for name in alone}) == 1


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


def test_a_redraw_is_quick_enough_for_a_slider():
    plan = tasks("1f1b", 8, 32)
    took = []
    for _ in range(5):
        start = time.process_time()
        figures.timeline({"1f1b": plan}).to_svg()
        took.append(time.process_time() - start)
    assert min(took) < 0.04
