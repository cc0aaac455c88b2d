"""Every frame of a schedule, of a mesh that talks and of the block: readable, small, quick."""

import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator

import pytest
from checks import draw, faults

from course_lib import figures
from course_lib.figures.paper import style
from course_lib.panels import steppers
from course_lib.panels.stepper import Stepper
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.network.who_talks import who_talks

SETTINGS = {
    "block": lambda: steppers.block(),
    "one rank in 16": lambda: steppers.talks(rank=5),
    "the last rank of a stage": lambda: steppers.talks("tp 8 × dp 4 × pp 4", 15),
    "context": lambda: steppers.talks("tp 4 × cp 2 × dp 2 × pp 4", 9),
    "experts": lambda: steppers.talks("tp 2 × dp 8 × pp 2, ep 4", 3),
    "naive": lambda: steppers.schedule("naive", 2, 3),
    "gpipe": lambda: steppers.schedule("gpipe", 4, 8),
    "1f1b": lambda: steppers.schedule(),
    "1f1b, one": lambda: steppers.schedule("1f1b", 6, 1),
    "interleaved": lambda: steppers.schedule("interleaved", 6, 12),
    "zb1p": lambda: steppers.schedule("zb1p", 6, 12),
    "zbv": lambda: steppers.schedule("zbv", 6, 12),
    "dualpipe": lambda: steppers.schedule("dualpipe", 4, 8),
}


def frames(stepper: Stepper) -> Iterator[tuple[int, figures.Drawing]]:
    """Six steps with the first and the last; all of them in a short story."""
    for step in sorted({round(part * (stepper.count - 1) / 5) for part in range(6)}):
        stepper.step.value = step
        yield step, stepper._sheet


@pytest.mark.parametrize("name", SETTINGS)
def test_frames_are_readable(name: str) -> None:
    for step, picture in frames(SETTINGS[name]()):
        drawn = draw(picture)
        assert not faults(drawn), (name, step, faults(drawn))
        assert ElementTree.fromstring(drawn.svg).get("aria-label") == picture.sentence
        most = 42_000 if name == "zbv" else 34_000  # six passes of each micro-batch on a stage
        assert len(drawn.svg) < most, (name, step)


def test_the_first_picture_of_the_course_is_small() -> None:
    for step, picture in frames(steppers.block()):
        assert len(picture.to_svg()) < 10_000, step


def test_frames_are_drawn_within_10_ms() -> None:
    for name in ("interleaved", "the last rank of a stage", "block"):
        stepper = SETTINGS[name]()
        view = stepper._view.draw
        view().to_svg()
        times = []
        for _ in range(9):
            start = time.process_time()
            view().to_svg()
            times.append(time.process_time() - start)
        assert min(times) < 0.010, (name, times)


def test_the_group_of_the_rank_is_filled() -> None:
    stepper = steppers.talks(rank=5)
    layout = Layout(tp=2, dp=4, pp=2, accumulation=8, zero_stage=1)
    job = Job(MODELS["llama2-70b"], layout=layout, sequence=4096)
    for step, talk in enumerate(who_talks(job, 5)):
        stepper.step.value = step
        fill = style.AXES[talk.message.axis]
        filled = [box for colour, box in draw(stepper._sheet).boxes if colour == fill]
        high = [box for box in filled if box.height > 15]  # the bars below are lower
        assert len(high) == len(talk.group), talk
        assert f"rank 5 with {', '.join(map(str, talk.group))}," in stepper.sentence


def test_as_many_boxes_as_are_held() -> None:
    stepper = steppers.schedule()
    for step in range(stepper.count):
        stepper.step.value = step
        trace, at = stepper.result
        time = trace.times[at]
        assert stepper.page.count(">done<") == 4 * (step == stepper.count - 1)
        boxes = [box for fill, box in draw(stepper._sheet).boxes if fill == style.ACTIVATIONS]
        slots = [box for box in boxes if box.y1 < 120 and box.x0 > 190]
        assert len(slots) == sum(len(its) for its in trace.held(time).values()), step
