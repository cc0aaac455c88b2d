"""Timelines of a pipeline and of buckets: every pass in its place, readable, quick to draw."""

import re
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import replace

import checks
import pytest

from course_lib import figures
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
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
    "buckets": lambda: figures.bucket_timeline(
        {"GPT": ddp_timeline(model_gradients(MODELS["gpt2-124m"], A100, 16384), 8, HDR)}
    ),
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
    "naive": lambda: figures.timeline({"naive": tasks("naive", 4, 8)}, seconds=False),
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


def test_svg_is_labelled_and_well_formed(drawn):
    for name, one in drawn.items():
        root = ElementTree.fromstring(one.svg)
        assert root.get("role") == "img", name
        assert root.get("aria-label") == one.picture.sentence, name
        used = set(re.findall(r"url\(#([^)]+)", one.svg))
        assert used == set(re.findall(r'id="([^"]+)"', one.svg)), name


def test_figures_share_a_page():
    drawings = [Drawing(40, "1") for _ in range(2)]
    for drawing in drawings:
        drawing.boxes([(1, 1, 5, 5)], hatch="/")
    ids = [set(re.findall(r'id="([^"]+)"', drawing.to_svg())) for drawing in drawings]
    assert ids[0] and not ids[0] & ids[1]


def test_nothing_is_wrong_in_the_picture(drawn):
    assert {name: found for name, one in drawn.items() if (found := checks.faults(one))} == {}


def test_svg_holds_all_words(drawn):
    for name, one in drawn.items():
        written = [node.text for node in ElementTree.fromstring(one.svg).iter() if node.text]
        assert written == [label.text for label in one.labels], name


def boxes(drawing):
    """Left, top, width, height of every box, hatches left out."""
    plain = re.sub(r'<path d="[^"]*" fill="url[^>]*>', "", drawing.to_svg())
    found = re.findall(r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)h", plain)
    return [tuple(map(float, box)) for box in found]


def test_every_pass_has_a_box_of_its_length():
    frame, *rest = boxes(FIGURES["1f1b"]())
    passes, legend = rest[:-2], rest[-2:]
    assert len(passes) == 4 * 8 * 2 and len(legend) == 2
    unit = frame[2] / 33  # (m + p - 1) (F + B)
    widths = sorted(round(width / unit, 1) for _, _, width, _ in passes)
    assert widths == [1.0] * 32 + [2.0] * 32
    for _, top, _, _ in passes:
        assert frame[1] <= top < frame[1] + frame[3]


def test_both_halves_of_an_overlapped_pass_are_drawn():
    plan = simulation.timeline("dualpipe", 4, 8)
    together = sum(task.backward is not None for task in plan.tasks)
    assert together
    drawing = figures.timeline({"a": plan.tasks})
    legend = drawing.to_svg().count(">forward") + drawing.to_svg().count(">backward")
    legend += drawing.to_svg().count(">weights")
    assert len(boxes(drawing)) == 1 + len(plan.tasks) + together + legend


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


def test_buckets_share_one_scale(drawn):
    """The same backward pass is equally long in both charts, and the longer step is longer."""
    one = drawn["buckets, two charts"]
    short, long = SHORT_AND_LONG.values()
    passes = [box for fill, box in one.boxes if fill == style.BACKWARD]
    halves = [sum(box.width for box in passes if (box.y0 > 160) == top) for top in (True, False)]
    assert halves[0] == pytest.approx(halves[1], abs=0.5)
    ends = [
        max(box.x1 for fill, box in one.boxes if fill == style.MESSAGES and (box.y0 > 160) == top)
        for top in (True, False)
    ]
    assert (ends[0] - 66) / (ends[1] - 66) == pytest.approx(short.end_s / long.end_s, abs=1e-3)


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


def test_charts_share_one_scale():
    """A chart of half the time is half as wide."""
    one = figures.timeline({"long": ONE, "short": (ONE[0]._replace(end=0.001),)})
    frames = [box for box in boxes(one) if box[3] == 95]
    assert frames[0][2] == pytest.approx(2 * frames[1][2], abs=0.2)
    assert one.sentence.endswith("short: 1 stage, 1 micro-batch, from 0 to 1 ms.")


def test_sentences():
    assert FIGURES["1f1b"]().sentence == "1f1b: 4 stages, 8 micro-batches, from 0 to 33."
    assert FIGURES["two"]().sentence == (
        "predicted: 4 stages, 8 micro-batches, from 0 to 33 s; "
        "measured: 4 stages, 8 micro-batches, from 0 to 96 s."
    )
    assert FIGURES["dualpipe"]().sentence.startswith("both ways: 8 stages, 20 micro-batches")


def test_later_chunks_look_different():
    one, two = FIGURES["1f1b"]().to_svg(), FIGURES["interleaved"]().to_svg()
    light = f'fill="{style.lighter(style.FORWARD)}"'
    assert "later chunk" not in one and light not in one
    assert "lighter: a later chunk" in two and light in two


def test_the_height_is_the_same_whatever_is_drawn():
    alone = ("1f1b", "interleaved", "zb1p", "zbv", "dualpipe", "one stage")
    assert {FIGURES[name]().height_pt for name in alone} == {270}


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


def test_a_drawing_draws_what_it_is_told():
    drawing = Drawing(40, "a < b")
    drawing.boxes([])
    drawing.boxes([(1, 1, 5, 5)], hatch="x", dashed=True)
    drawing.line([(0, 0), (5, 5)], dashed=True)
    drawing.write(10, 20, "a & b", bold=True, align="right")
    root = ElementTree.fromstring(drawing.to_svg())
    assert root.get("aria-label") == "a < b"
    assert "a & b" in "".join(root.itertext())
    assert drawing.to_svg().count("stroke-dasharray") == 2


def test_a_redraw_is_quick_enough_for_a_slider():
    plan = tasks("1f1b", 8, 32)
    took = []
    for _ in range(5):
        start = time.perf_counter()
        figures.timeline({"1f1b": plan}).to_svg()
        took.append(time.perf_counter() - start)
    assert min(took) < 0.04


@pytest.mark.parametrize(
    ("charts", "message"),
    [
        ({}, "charts is empty"),
        ({"a": []}, "chart 'a' has no tasks"),
        ({"a": [ONE[0]._replace(kind="G")]}, "kind 'G' of a pass in chart 'a' is unknown"),
    ],
)
def test_bad_charts_are_explained(charts, message):
    with pytest.raises(ValueError, match=message):
        figures.timeline(charts)
