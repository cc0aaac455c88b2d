"""Steppers: every step of every story, at both ends of each control."""

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator

import checks
import pytest
from all_rooms import steppers
from approved import expect_approved, without_ids

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.panels.controls import whole
from course_lib.panels.stepper import Stepper, Story
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.published import LLAMA3_405B
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.network.mesh import who_talks
from course_lib.theory.network.step_traffic import step_traffic
from course_lib.trace import Event, Trace

ONE_LINE = 95  # letters of a caption, 760 pixels wide in a wide font
STEPPERS = [*vars(steppers).values()]


class Toy(Story):
    """A box that moves on."""

    def __init__(self, count: int) -> None:
        if count == 7:
            raise ValueError("count must not be 7: take another")
        self.trace = Trace(Event(step, 0, "move", step) for step in range(count))

    def picture(self, step: int) -> Drawing:
        drawing = Drawing(40, f"step {step} of {self.count}")
        drawing.boxes([(10.0 * step, 5, 10, 10)])
        return drawing

    def caption(self, step: int) -> str:
        return f"Box {step} is drawn."

    def rows(self, step: int) -> tuple[tuple[str, str], ...]:
        return (("box", str(step)),)

    def result(self, step: int) -> tuple[int, int]:
        return self.count, step


def toy_stepper(count: int = 5) -> Stepper:
    return Stepper({"count": whole("count", count, 2, 9)}, Toy)


def test_a_story_is_walked_through_and_a_shorter_one_shows_its_last_step():
    stepper = toy_stepper()
    for step in range(stepper.count):
        stepper.step.value = step
        assert stepper.result == (5, step) and stepper.shown["caption"] == f"Box {step} is drawn."
    assert "Box 4 is drawn." in stepper.text
    stepper.values = {"count": 0, "step": 4}  # two steps, chosen by hand
    assert stepper.count == 2 and stepper.result == (2, 1)
    assert stepper.controls[-1]["most"] == 1 and stepper.values["step"] == 1
    stepper.values = {"count": 0, "step": 4}  # asked for before the browser knew how short it is
    assert stepper.result == (2, 1) and stepper.values["step"] == 1
    stepper._controls["count"].value = 9
    assert stepper.controls[-1]["most"] == 8 and stepper.step.value == 1


def test_an_impossible_story_leaves_the_last_one():
    stepper = toy_stepper()
    stepper.step.value = 3
    page = stepper.page
    stepper._controls["count"].value = 7
    assert stepper.problem == "count must not be 7: take another"
    assert stepper.page == page
    stepper.values = stepper.shown["mends"][-1]["values"]
    assert stepper.problem is None and stepper.result == (5, 3)


MORE = {  # settings beside the ends of each control
    "schedule": [
        *(("naive", 2, 3), ("gpipe", 4, 8), ("1f1b", 6, 1), ("interleaved", 6, 12)),
        *(("zb1p", 6, 12), ("zbv", 6, 12), ("dualpipe", 4, 8)),
    ],
    "talks": [("tp 8 × dp 4 × pp 4", 15), ("tp 4 × cp 2 × dp 2 × pp 4", 9)],
}


def settings(build: Callable[..., Stepper]) -> Iterator[tuple[str, Stepper]]:
    """As it starts, each control at both its ends, and more."""
    yield "", build()
    for name, control in build()._controls.items():
        for place in (0, -1) * (name != "step"):
            stepper = build()
            stepper._controls[name].value = control.options[place][1]
            assert stepper.problem is None, (name, place, stepper.problem)
            yield name, stepper
    for values in MORE.get(build.__name__, []):
        yield "more", build(*values)


@pytest.mark.parametrize("build", STEPPERS)
def test_every_step_says_and_shows_something_new(build: Callable[..., Stepper]) -> None:
    stories: dict[str, set[str]] = {}
    everything = []
    for name, stepper in settings(build):
        assert stepper.count >= 2, "one step is a figure, not a story"
        seen, heights = {}, set()
        for step in range(stepper.count):
            stepper.step.value = step
            where = f"{stepper.values}: step {step}"
            page, said = without_ids(stepper.page), stepper.text
            everything += [page, said]
            assert page not in seen, f"{where} looks like {seen[page]}"
            seen[page] = step
            caption = stepper.shown["caption"]
            assert caption and re.search(r"\d", stepper.sentence)
            # Six stages of a zero bubble may need a second line.
            assert len(caption) <= ONE_LINE or name == "more", (
                f"the caption wraps, the picture jumps: {caption}"
            )
            assert not re.search(r"\de[+-]\d", said + page), "scientific notation"
            heights.add(round(stepper._sheet.height_pt, 3))
            drawn = checks.draw(stepper._sheet)
            assert not checks.faults(drawn), where
            assert ElementTree.fromstring(drawn.svg).get("aria-label") == stepper.sentence
            assert len(drawn.svg) < (10_000 if build is steppers.block else 42_000), where
        assert len(heights) == 1, f"{where}: the page jumps between {heights}"
        stories.setdefault(name, set()).add("".join(seen))
    for name in stories.keys() - {"", "more"}:
        assert len(stories[name]) == 2, f"{name} changes nothing"
    expect_approved(f"stepper {build.__name__}", *everything)


def test_results_come_back_from_the_rank_that_sends_them_in_that_turn() -> None:
    stepper = steppers.expert_exchange(ranks=4)
    told = []
    for step in range(stepper.count):
        stepper.step.value = step
        told.append(stepper.shown["caption"])
    sizes = {event.part: event.bytes for event in stepper.result[0]}
    there, back = sizes["rows", 0, 1], sizes["results", 0, 3]
    assert told[3] == f"Dispatch: rank 0 sends {there} rows to rank 1, the others likewise."
    assert told[8] == f"Combine: rank 3 gives rank 0 its {back} results back."


def test_the_group_of_the_rank_is_filled() -> None:
    stepper = steppers.talks(rank=5)
    layout = Layout(tp=2, dp=4, pp=2, accumulation=8, zero_stage=1)
    job = Job(MODELS["llama2-70b"], layout=layout, sequence=4096)
    for step, talk in enumerate(who_talks(job, 5)):
        stepper.step.value = step
        fill = style.AXES[talk.message.axis]
        filled = [box for colour, box in checks.draw(stepper._sheet).boxes if colour == fill]
        high = [box for box in filled if box.height > 15]  # the bars below are lower
        assert len(high) == len(talk.group), talk
        assert f"rank 5 with {', '.join(map(str, talk.group))}," in stepper.sentence


def test_as_many_boxes_as_are_held_and_as_many_arrows_as_messages() -> None:
    stepper = steppers.schedule()
    for step in range(stepper.count):
        stepper.step.value = step
        trace, at = stepper.result
        now = trace.times[at]
        assert stepper.page.count(">done<") == 4 * (step == stepper.count - 1)
        drawn = checks.draw(stepper._sheet)
        boxes = [box for fill, box in drawn.boxes if fill == style.ACTIVATIONS]
        slots = [box for box in boxes if box.y1 < 150 and box.x0 > 225]
        assert len(slots) == sum(len(its) for its in trace.held(now).values()), step
        sent = [event for event in trace.at(now) if event.to is not None]
        assert stepper.sentence.count(" in stage ") == len(sent)


# --- chapter 0: Llama 3 405B on 16,384 GPUs -------------------------------------------------------


def test_the_block_shows_what_follows_by_hand_from_the_paper() -> None:
    """arXiv:2407.21783, tables 3 and 4 and section 3.3.2, whose first stage has 7 layers."""
    stepper, told = steppers.block(), {}
    for step in range(stepper.count):
        stepper.step.value = step
        lit, (number, _) = stepper.result
        told[lit] = number, stepper.shown["caption"]
    # Table 4: 16,384 GPUs, tp 8, pp 16, dp 128, and 16M tokens in a batch.
    assert "So 8 GPUs of one computer" in told["tp"][1]
    assert told["pp"][1].startswith("16 groups hold the 126 layers")
    assert "8 × 16 = 128 GPUs" in told["copy"][1] and "128 copies" in told["dp"][1]
    assert "All 16,384 GPUs" in told["all"][1]
    assert told["all"][0] == f"{2**24 / 1e6:.1f} million"
    h, kv, ffn, vocab, micro_batches = 16_384, 1024, 53_248, 128_256, 16
    tensor = 2 * 8192 * h  # one sequence in bf16
    # Two blocks in a layer, each two collectives forward and three backward; the embedding has two.
    tp = 7 / 8 * tensor * micro_batches * (7 * 2 * 5 + 2)
    # A tp rank sends its eighth from each of 8 chunks, and back from all but the first.
    pp = tensor / 8 * micro_batches * (8 + 7)
    layer = 2 * h * h + 2 * h * kv + 3 * h * ffn
    held, all_weights = (7 * layer + vocab * h) / 8, 126 * layer + 2 * vocab * h
    dp = 127 / 128 * held * (4 + 2)  # fp32 gradients out, bf16 weights back
    by_hand = {"tp": tp, "pp": pp, "dp": dp, "groups": tp + pp + dp, "one": 2 * all_weights}
    for lit, size_bytes in by_hand.items():
        shown, unit = told[lit][0].split()
        assert unit == "GB" and float(shown) == pytest.approx(size_bytes / 1e9, abs=0.5)
    assert told["copy"][0] == f"{all_weights / 128 / 1e9:.1f} billion"  # of a GPU on the average
    # And it is what the planner counts, in buckets of the usual size.
    traffic = step_traffic(LLAMA3_405B)
    for axis, sent in traffic.bytes_by_axis.items():
        assert told[axis][0] == format_bytes(sent, digits=0)
    assert told["groups"][0] == format_bytes(traffic.total_bytes, digits=0)
