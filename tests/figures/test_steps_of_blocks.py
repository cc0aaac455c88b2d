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
from course_lib.theory.pipelines.moments import pipeline_moments
from course_lib.theory.pipelines.simulation import timeline

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
            start = time.perf_counter()
            view().to_svg()
            times.append(time.perf_counter() - start)
        assert min(times) < 0.010, (name, times)


def test_an_unknown_light_is_refused() -> None:
    with pytest.raises(ValueError, match="'cp' is not one of one, tp"):
        figures.block_step(Layout(tp=2), "cp", "", ("", ""))


def test_the_group_of_the_rank_is_filled() -> None:
    layout = Layout(tp=2, dp=4, pp=2, accumulation=4)
    job = Job(MODELS["llama2-70b"], layout=layout, sequence=4096)
    talks = who_talks(job, 5)
    for step, talk in enumerate(talks):
        picture = figures.mesh_step(job, talks, step, 5)
        fill = style.AXES[talk.message.axis]
        filled = [box for colour, box in draw(picture).boxes if colour == fill]
        wide = [box for box in filled if box.height > 15]  # the bars below are lower
        assert len(wide) == len(talk.group), talk
        assert f"rank 5 with {', '.join(map(str, talk.group))}," in picture.sentence


def test_as_many_boxes_as_are_held() -> None:
    line = timeline("1f1b", 4, 8)
    moments = pipeline_moments(line)
    last = figures.pipeline_step(line, moments, len(moments) - 1).to_svg()
    assert last.count(">done<") == 4 and ">waits<" not in last
    for step, moment in enumerate(moments):
        picture = figures.pipeline_step(line, moments, step)
        assert f"hold {', '.join(str(len(at.held)) for at in moment.stages)} micro" in (
            picture.sentence
        )
        slots = [
            box
            for fill, box in draw(picture).boxes
            if fill == style.ACTIVATIONS and box.y1 < 120 and box.x0 > 190
        ]
        assert len(slots) == sum(len(at.held) for at in moment.stages), step
