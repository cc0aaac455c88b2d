"""The memory of one GPU: extremes included, and what is refused."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from course_lib import figures
from course_lib.figures.paper.drawing import Drawing
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import RECIPES, Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.memory.activations import activation_terms
from course_lib.theory.memory.peak import training_memory
from course_lib.theory.memory.segments import runs_again
from course_lib.theory.memory.snapshot_file import snapshot_pickle, timeline_events
from course_lib.theory.memory.step_timeline import StepTimeline, step_timeline

BREAKDOWN = training_memory(MODELS["llama3-405b"], RECIPES["accumulate-20"], 64, 8192)

SMALL = training_memory(MODELS["gpt2-124m"], RECIPES["mixed-16"], 1, 128)

TITLE = "llama3-405b, accumulate-20, adamw-8bit: 14 bytes per parameter"


class Curve(NamedTuple):
    phases: list[str]
    moments: list[str]
    sizes: dict[str, list[int]]


def step_of(layers: int, recompute: str = "none", **more: object) -> StepTimeline:
    """A step of a small GPT; `more` is for the layout."""
    shape = TransformerShape(layers, 64, 4, 256, 128, 64)
    recipe = Recipe("fp32", "fp32", master_copy=False, gradient_life="backward", loss="eager")
    recipe = replace(recipe, recompute=recompute)
    return step_timeline(Job(shape, recipe, Layout(**more)), overhead_bytes=0)  # type: ignore[arg-type]


def leaks(stacks: int) -> list[tuple[str, int, int, tuple[tuple[str, int, str], ...]]]:
    """So many leaks, in four rounds."""
    update, forward = ("torch/optim/adamw.py", 1, "step"), ("module.py", 2, "forward")
    events = []
    for number in range(4 * (stacks + 1)):
        stack = number % (stacks + 1)
        mine = ("a_script_with_a_rather_long_name.py", 10**5 + stack, "the_function_of_a_leak")
        events.append(("alloc", number, 10**9, (mine, forward) if stack else (update,)))
    return events


def written(events: Sequence[tuple[Any, ...]]) -> Drawing:
    """The figure of a snapshot with these events."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a snapshot with a name.pickle"
        path.write_bytes(snapshot_pickle(events))
        return figures.snapshot(path)


LEAKING = Curve(
    ["forward", "backward", "update"] * 400,
    ["an operator with a long name"] * 1200,
    {
        "weights": [10**12] * 1200,
        "leak": [number * 10**9 for number in range(1200)],
        "not known": [5 * 10**9] * 1200,
        "inputs and labels": [8] * 1200,
        "framework overhead": [2**30] * 1200,
        "gradients": [number % 3 * 10**11 for number in range(1200)],
        "optimizer": [2 * 10**9] * 1200,
        "intermediate results": [10**8] * 1200,
    },
)


MEMORY: dict[str, Callable[[], figures.Drawing]] = {
    "memory": lambda: figures.consumers(BREAKDOWN, "GiB", 24 * 10**9, TITLE),
    "memory, small": lambda: figures.consumers(SMALL, "GB", 141 * 10**9, TITLE),
    "memory, no GPU": lambda: figures.consumers(SMALL),
    "activations": lambda: figures.activation_terms(
        activation_terms(
            Job(
                MODELS["gpt3-175b"],
                Recipe(attention="standard"),
                Layout(micro_batch=64),
                sequence=2048,
            )
        ),
        96,
        TITLE,
    ),
    "activations, recomputed": lambda: figures.activation_terms(
        activation_terms(Job(MODELS["llama2-70b"], Recipe(recompute="full"), sequence=131072)),
        80,
        TITLE,
    ),
    "memory over time": lambda: figures.memory_over_time(
        {"predicted": step_of(6, micro_batch=8), "recomputed": step_of(6, "full", micro_batch=8)},
        TITLE,
    ),
    "memory over time, one moment": lambda: figures.memory_over_time(
        {"": Curve(["forward"], [""], {"weights": [1]})}
    ),
    "memory over time, many steps": lambda: figures.memory_over_time({"leaking": LEAKING}),
    "memory over time, 126 layers, sharded": lambda: figures.memory_over_time(
        {
            "ZeRO-3": step_timeline(
                Job(MODELS["llama3-405b"], layout=Layout(dp=512, zero_stage=3), sequence=8192)
            )
        }
    ),
    "consumer bars": lambda: figures.consumer_bars({"a": BREAKDOWN, "b": SMALL}, TITLE, 8e10),
    "consumer bars, no limit": lambda: figures.consumer_bars({"stage 0": SMALL}),
    "snapshot, predicted": lambda: written(timeline_events(step_of(3, micro_batch=8))),
    "snapshot, leaks": lambda: written(leaks(7)),
    "snapshot, one block": lambda: written([("alloc", 0, 512, ())]),
    "recomputed": lambda: figures.recomputed_layers(
        {"one input in all": runs_again(16, 16), "one for each layer": runs_again(16, 1)}
    ),
}
BAD_MEMORY: list[Callable[[], object]] = [
    lambda: figures.consumers(SMALL, "MB"),
    lambda: figures.consumer_bars({}),
]
