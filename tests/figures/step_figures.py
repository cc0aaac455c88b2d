"""One step of each story: extremes included, and what is refused."""

from collections.abc import Callable
from dataclasses import replace

from course_lib import figures
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.memory.buffer_turns import buffer_turns
from course_lib.theory.memory.layer_walk import LayerWalk, layer_walk
from course_lib.theory.memory.step_timeline import StepTimeline, step_timeline
from course_lib.theory.memory.unit_life import UnitCosts, unit_life
from course_lib.theory.step.failing_job import JobCosts, failing_job

ROOT, LAYER = UnitCosts(0, 4e-3, 9e-3, 9e-3, 5 * 10**8, 5 * 10**8), UnitCosts(*[7e-3] * 4, 4, 4)

LIFE, LONG_LIFE = unit_life([ROOT, *[LAYER] * 4]), unit_life([ROOT, *[LAYER] * 8], prefetch=2)

TURNS, MANY_TURNS = buffer_turns(8), buffer_turns(16)


JOB = failing_job(20, 4, 11, JobCosts(360, 60, 300, 120, 180))

EARLY_JOB = failing_job(2, 5, 1, JobCosts(1, 0, 0, 0, 0))


def step_of(layers: int, recompute: str = "none", **more: object) -> StepTimeline:
    """A step of a small GPT; `more` is for the layout."""
    shape = TransformerShape(layers, 64, 4, 256, 128, 64)
    recipe = Recipe("fp32", "fp32", master_copy=False, gradient_life="backward", loss="eager")
    recipe = replace(recipe, recompute=recompute)
    return step_timeline(Job(shape, recipe, Layout(**more)), overhead_bytes=0)  # type: ignore[arg-type]


def walk(recompute: str, attention: str = "standard") -> LayerWalk:
    recipe = Recipe(recompute=recompute, attention=attention, dropout=True)
    return layer_walk(Job(MODELS["gpt3-175b"], recipe, sequence=2048))


STEPS: dict[str, Callable[[], figures.Drawing]] = {
    "unit life, at first": lambda: figures.unit_life_step(LIFE, 0),
    "unit life, in the middle": lambda: figures.unit_life_step(LIFE, 14),
    "unit life, at the end": lambda: figures.unit_life_step(LIFE, len(LIFE.moments) - 1),
    "unit life, nine units": lambda: figures.unit_life_step(LONG_LIFE, 25),
    "buffers, at first": lambda: figures.buffer_turns_step(TURNS, 0),
    "buffers, at the turn": lambda: figures.buffer_turns_step(TURNS, 9),
    "buffers, sixteen layers": lambda: figures.buffer_turns_step(MANY_TURNS, 31),
    "job, at first": lambda: figures.failing_job_step(JOB, 0),
    "job, a node dies": lambda: figures.failing_job_step(JOB, 13),
    "job, done": lambda: figures.failing_job_step(JOB, len(JOB.moments) - 1),
    "job, at once": lambda: figures.failing_job_step(EARLY_JOB, 2),
    "memory step, first": lambda: figures.memory_step(step_of(2), 0),
    "memory step, middle": lambda: figures.memory_step(step_of(8, micro_batch=64), 9),
    "memory step, last": lambda: figures.memory_step(step_of(4), 13),
    "layer, before": lambda: figures.layer_step(walk("none"), 0, "one layer of GPT-3"),
    "layer, forward": lambda: figures.layer_step(walk("none", "flash"), 10, "one layer of GPT-3"),
    "layer, again": lambda: figures.layer_step(walk("full"), 13),
    "layer, attention again": lambda: figures.layer_step(walk("selective"), 18),
    "layer, backward": lambda: figures.layer_step(walk("full"), 28),
    "layer, last": lambda: figures.layer_step(walk("none"), 20),
}
BAD_STEPS: list[Callable[[], object]] = [
    lambda: figures.unit_life_step(LIFE, 99),
    lambda: figures.buffer_turns_step(TURNS, -1),
    lambda: figures.failing_job_step(JOB, 99),
]
