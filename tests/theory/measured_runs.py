"""Memory and time of real training runs, and the Job that each of them is.

The runs, with the place where each was published, are in measured_runs.json. A run names a model
or a shape, a layout and a recipe as far as its source does; what its framework adds is in
course_lib.theory.inputs.job.
"""

import json
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from course_lib.theory.inputs.hardware import NETWORK_LATENCY_S, Cluster, Link, accelerator
from course_lib.theory.inputs.job import FRAMEWORKS, Job, as_framework_does
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import RECIPES, Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.memory.peak import RESERVED_OVER_ALLOCATED, metered_bytes, worst_stage
from course_lib.theory.step.assumptions import Assumptions, framework_assumptions
from course_lib.theory.step.step_time import step_time

FILE = Path(__file__).with_name("measured_runs.json")
UNITS = {"GB": 1e9, "GiB": 2.0**30}
# Which part of a source's name stands for which framework.
NAMES = {name: name for name in FRAMEWORKS} | {"bigscience": "megatron-deepspeed"}
RECOMPUTE = {"every second matmul (torch selective op policy)": "operators"}
SLOW = accelerator("H100-SXM-500W")  # told by its memory's 2.4 TB/s


@dataclass(frozen=True)
class Run:
    """One measured run: `measured` in bytes, seconds or tokens per second and GPU."""

    id: str
    category: str
    unit: str
    measured: float
    source: str
    inputs: dict[str, Any]

    @property
    def framework(self) -> str | None:
        """The framework, or None for one that the library does not know."""
        found = [name for word, name in NAMES.items() if word in self.source.lower()]
        return found[0] if found else None

    @property
    def compiled(self) -> bool:
        """Whether the source says that the model was compiled."""
        said = self.source.partition(" ")[2]
        return "compile" in said and "not compiled" not in said

    @property
    def meter(self) -> str:
        """By which meter the memory was read."""
        return self.inputs["meter"].removeprefix("torch ")

    @property
    def bytes(self) -> float:
        """The measured memory in bytes."""
        return self.measured * UNITS[self.unit]


def runs(file: Path = FILE) -> list[Run]:
    """All runs of a file."""
    entries = json.loads(file.read_text(encoding="utf-8"))
    return [
        Run(it["id"], it["category"], it["unit"], it["expected"], it["source"], it["inputs"])
        for it in entries
    ]


def job(run: Run) -> Job:
    """What was run, with the habits of its framework."""
    does = as_said(run)
    if run.framework is not None:
        does = as_framework_does(does, run.framework, compiled=run.compiled)
    if "loss in chunks" in run.source:
        does = replace(does, recipe=replace(does.recipe, loss="chunked"))
    return does


def as_said(run: Run) -> Job:
    """What was run, as far as the source says it."""
    inputs = run.inputs
    return Job(shape(inputs), recipe(inputs), layout(run), cluster(inputs), inputs["seq"])


def shape(inputs: dict[str, Any]) -> TransformerShape:
    if "model" in inputs:
        return replace(MODELS[inputs["model"]], **inputs.get("changed", {}))
    given = inputs["shape"]
    sizes = {name: given[name] for name in ("layers", "hidden", "heads", "vocab")}
    if given["arch"] == "gpt":
        ffn = given.get("ffn", 4 * given["hidden"])
        return TransformerShape(**sizes, ffn=ffn, context=given["context"])
    return TransformerShape(
        **sizes,
        kv_heads=given["kv_heads"],
        ffn=given["ffn"],
        context=given.get("context", 131072),
        mlp="swiglu",
        norm="rmsnorm",
        biases=False,
        learned_positions=False,
        tied_embeddings=given["tied_embeddings"],
    )


def recipe(inputs: dict[str, Any]) -> Recipe:
    recompute = RECOMPUTE.get(inputs["recompute"], inputs["recompute"])
    if "states" in inputs:
        states = RECIPES[inputs["states"]]
    else:
        names = ("parameters", "gradients", "optimizer", "master_copy")
        states = Recipe(**{name: inputs[name] for name in names if name in inputs})
    dropout = inputs.get("dropout", False)
    more = {"dropout": dropout, "recompute_layers": inputs.get("recompute_layers")}
    return replace(states, attention=inputs["attention"], recompute=recompute, **more)


def layout(run: Run) -> Layout:
    inputs = run.inputs
    degrees = {axis: inputs.get(axis, 1) for axis in ("tp", "pp", "cp", "ep")}
    dp = inputs["gpus"] // (degrees["tp"] * degrees["pp"] * degrees["cp"])
    steps = inputs.get("accumulation") or inputs["global_batch"] // (inputs["micro_batch"] * dp)
    # What FSDP2 calls its ZeRO-2 mode shards weights, and keeps them gathered during an update.
    fsdp2 = inputs["zero_stage"] == 2 and "FSDP2" in run.source
    return Layout(
        dp=dp,
        **degrees,
        zero_stage=3 if fsdp2 else inputs["zero_stage"],
        reshard=inputs.get("reshard", True) and not fsdp2,
        sequence_parallel=inputs.get("sequence_parallel", False),
        micro_batch=inputs["micro_batch"],
        accumulation=steps,
        schedule=inputs.get("schedule", "1f1b"),
        virtual_stages=inputs.get("virtual", 1),
        stage_layers=tuple(inputs["stage_layers"]) if "stage_layers" in inputs else None,
        shard_group=inputs.get("shard_group"),
    )


def cluster(inputs: dict[str, Any]) -> Cluster:
    slow = inputs.get("memory_bytes_per_s") == SLOW.memory_bytes_per_s
    chip = SLOW if slow else accelerator(inputs["gpu"])
    per_node = min(inputs.get("gpus_per_node", 8), inputs["gpus"])
    more = {}
    if "between_bytes_per_s" in inputs:
        more["between"] = Link("network", inputs["between_bytes_per_s"], NETWORK_LATENCY_S)
    return Cluster(chip, inputs["gpus"] // per_node, per_node, **more)


def predicted_bytes(run: Run, ratio: float = RESERVED_OVER_ALLOCATED) -> float:
    """What the run's meter should show."""
    its = job(run)
    _, bill = worst_stage(its)
    buffers = FRAMEWORKS[run.framework].buffers_bytes if run.framework else 0
    return metered_bytes(
        bill, run.meter, its.layout, buffers_bytes=buffers, reserved_over_allocated=ratio
    )


def fitted_ratio(known: Iterable[Run]) -> float:
    """Reserved over allocated bytes: the median over runs whose meter shows reserved bytes."""
    ratios = []
    for run in known:
        if run.meter != "allocated":
            fixed = 2 * predicted_bytes(run, 1) - predicted_bytes(run, 2)  # linear in the ratio
            ratios.append((run.bytes - fixed) / (predicted_bytes(run, 1) - fixed))
    return statistics.median(ratios)


def left_out(memory: list[Run]) -> dict[str, float]:
    """Relative error of every run, predicted with the ratio that the other sources' runs give."""
    errors = {}
    for name in {run.framework for run in memory}:
        ratio = fitted_ratio(run for run in memory if run.framework != name)
        for run in memory:
            if run.framework == name:
                errors[run.id] = predicted_bytes(run, ratio) / run.bytes - 1
    return errors


def predicted_step(run: Run, layer_efficiency: float | None = None) -> float:
    """What the run's clock should show: seconds, or tokens per second and GPU."""
    guess = Assumptions(layer_efficiency=layer_efficiency)
    if run.framework:
        guess = framework_assumptions(run.framework, guess)
    if "attention_kernel" in run.inputs:  # as its source names it
        guess = replace(guess, attention_kernel=run.inputs["attention_kernel"])
    step = step_time(job(run), guess)
    return step.total_s if run.unit == "s" else step.tokens_per_s_per_gpu


def speed_error(run: Run, layer_efficiency: float | None = None) -> float:
    """How much faster than measured the prediction is, relative."""
    ratio = predicted_step(run, layer_efficiency) / run.measured
    return (1 / ratio if run.unit == "s" else ratio) - 1
