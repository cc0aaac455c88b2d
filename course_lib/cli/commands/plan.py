"""`course memory`, `course flops` and `course plan`: the theory's results as tables or as JSON.

Options stay text until a command runs, so that help is quick and the theory's own checks speak.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from itertools import islice
from typing import TYPE_CHECKING, Any

from course_lib import theory_arguments as read
from course_lib.problem import Problem

if TYPE_CHECKING:
    from course_lib.theory.compute.budget import TrainingRun
    from course_lib.theory.compute.flops import FlopBreakdown
    from course_lib.theory.inputs.layout import Layout
    from course_lib.theory.planner import Plan, PlannedLayout

Run = Callable[[argparse.Namespace, list[str]], int]
Add = Callable[[str, Run, str], argparse.ArgumentParser]

_SEQUENCE = {"--sequence": "tokens of a sequence (default: the model's context)"}
_ATTENTION = {"--attention": "flash (default) or standard, which stores the scores"}
_RECOMPUTE = {"--recompute": "none (default), selective or full"}
_RECIPE = {
    "--recipe": "mixed-16 (default), megatron-18, accumulate-20 or fp32-16: bytes per parameter",
    "--optimizer": "adamw (default), adamw-8bit, momentum or sgd",
}
_GPU = {"--gpu": f"which GPU (default: {read.GPU})"}
_LAYOUT = {
    "--micro-batch": "sequences of one forward pass (default: 1)",
    "--accumulation": "micro-batches of one update (default: as many as fill the pipeline)",
    "--dp": "data parallel ranks",
    "--tp": "tensor parallel ranks",
    "--pp": "pipeline stages",
    "--cp": "context parallel ranks",
    "--ep": "expert parallel ranks, of the dp·cp ones",
    "--zero-stage": "0 (default), 1, 2 or 3",
    "--schedule": "1f1b (default), gpipe, interleaved, zb1p, dualpipe or naive",
    "--virtual-stages": "chunks of layers on each rank, for --schedule interleaved",
    "--stage": "pipeline rank, or worst (default)",
    "--unit": "GB (default) or GiB, for the table; JSON is in bytes",
}
_FLOPS = {
    "--attention": "standard (default) or flash, which computes the scores again in backward",
    "--sequences": "sequences of one step (default: 1)",
    "--mask": "full (default) or causal, which counts half of attention's scores",
    "--tokens": "of a whole training run, such as 15T: adds days, GPU-hours and money",
}
_RUN = {
    "--gpus": "GPUs of the training run",
    "--mfu": f"model FLOPs over the GPUs' peak (default: {read.MFU})",
    "--gpu-hour-usd": "price of one GPU for an hour (default: 2)",
}
_PLAN = {
    "--nodes": "number of nodes (default: 1)",
    "--gpus-per-node": "GPUs of one node (default: 8)",
    "--batch": "global batch: sequences of one update",
    "--top": "how many of the fastest layouts (default: 10)",
    "--rejected": "how many that do not fit, the closest first (default: 5)",
}
_NAMES = {"--gpu", "--mask", "--schedule", "--unit", *_RECIPE, *_ATTENTION, *_RECOMPUTE}


def add_commands(add: Add) -> None:
    """Add the three commands by the function that `course_lib.cli` adds its own with."""
    memory = add("memory", _printing(_memory), "what is in the memory of a training GPU")
    _add_options(memory, _RECIPE | _ATTENTION | _RECOMPUTE | _SEQUENCE | _LAYOUT)
    memory.add_argument("--sequence-parallel", action="store_true", help="tp cuts norms as well")
    memory.add_argument("--derive", action="store_true", help="show how the numbers come about")
    flops = add("flops", _printing(_flops), "computation of a step; days and money of a run")
    _add_options(flops, _SEQUENCE | _RECOMPUTE | _FLOPS | _GPU | _RUN)
    plan = add("plan", _printing(_plan), "rank all layouts of a model on a cluster")
    _add_options(plan, _GPU | _PLAN | _SEQUENCE | _RECIPE | _ATTENTION)


def _add_options(command: argparse.ArgumentParser, options: dict[str, str]) -> None:
    about = "such as llama3-8b; without it the models are listed"
    command.add_argument("model", metavar="MODEL", nargs="?", help=about)
    for name, about in options.items():
        command.add_argument(name, metavar="NAME" if name in _NAMES else "N", help=about)
    command.add_argument("--json", action="store_true", help="print JSON")


@dataclass(frozen=True)
class Answer:
    """What a command prints: `text`, or under --json `data`, whose keys name the units."""

    text: str
    data: dict[str, Any]
    code: int = 0


def _printing(answer: Callable[[argparse.Namespace], Answer]) -> Run:
    """The command that prints an answer; a ValueError of the theory becomes a Problem."""

    def run(arguments: argparse.Namespace, _rest: list[str]) -> int:
        try:
            found = answer(arguments)
        except ValueError as error:
            raise Problem(str(error)) from error
        print(json.dumps(found.data, indent=1) if arguments.json else found.text)
        return found.code

    return run


# --- memory -----------------------------------------------------------------------------------


def _memory(arguments: argparse.Namespace) -> Answer:
    from course_lib.theory.memory.peak import gpu_memory, worst_stage
    from course_lib.theory.memory.report import explain_memory

    name, shape = read.model(arguments)
    recipe, layout = read.recipe(arguments), read.layout(arguments)
    sequence, unit = read.sequence(arguments, shape), read.unit(arguments)
    where = (shape, recipe, layout, sequence)
    stage, which = read.stage(arguments), ""
    if stage is None:
        stage, which = worst_stage(*where)[0], ", the fullest" * (layout.pp > 1)
    bill = gpu_memory(*where, stage)
    table = explain_memory(*where, stage, unit) if arguments.derive else bill.explain(unit)
    title = (
        f"{name}, sequences of {sequence:,} tokens, {_words(layout)}\n"
        f"each GPU of pipeline rank {stage}{which}:"
    )
    inputs = {"model": name, "recipe": asdict(recipe), "layout": asdict(layout)}
    inputs |= {"gpus": layout.world, "sequence_tokens": sequence, "stage": stage}
    totals = {"model_states_bytes": bill.model_states_bytes, "total_bytes": bill.total_bytes}
    return Answer(f"{title}\n{table}", {**inputs, "leaves": asdict(bill), "totals": totals})


def _words(layout: "Layout") -> str:
    """The number of GPUs, and the fields of a layout that are not at their default."""
    values = {field.name: getattr(layout, field.name) for field in fields(layout)}
    standard = {field.name: field.default for field in fields(layout)}
    chosen = [f"{name}={value}" for name, value in values.items() if value != standard[name]]
    gpus = f"{layout.world:,} GPU{'s' * (layout.world > 1)}"
    return f"{gpus} ({' '.join(chosen)})" if chosen else gpus


# --- flops ------------------------------------------------------------------------------------


def _flops(arguments: argparse.Namespace) -> Answer:
    from course_lib.theory.compute.flops import six_nd, training_flops
    from course_lib.theory.inputs.units import format_flop

    name, shape = read.model(arguments)
    flops = training_flops(
        shape,
        read.count(arguments, "sequences", 1),
        read.sequence(arguments, shape),
        arguments.mask or "full",
        arguments.recompute or "none",
        arguments.attention or "standard",
    )
    run, active = _training_run(arguments, flops), shape.parameters().active
    simple = six_nd(active, flops.tokens)
    lines = [
        f"{name}, a step of {flops.tokens:,} tokens",
        flops.explain(),
        f"{'6·N·D':<15} {format_flop(simple)} with N = {active:,} active parameters; the model's "
        f"FLOP are {flops.model_flop / simple:.3f} times that",
    ]
    data = {"model": name, **_flops_data(flops), "six_nd_flop": simple}
    if run is not None:
        lines += ["", _assumed(arguments, flops), run.explain()]
        data["training"] = _run_data(arguments, run)
    return Answer("\n".join(lines), data)


def _flops_data(flops: "FlopBreakdown") -> dict[str, Any]:
    totals = ("forward_flop", "backward_flop", "model_flop", "hardware_flop")
    return {
        "tokens": flops.tokens,
        "convention": flops.convention,
        "leaves": flops.leaves(),
        "totals": {name: getattr(flops, name) for name in totals},
        "model_flop_per_token": flops.model_flop_per_token,
    }


def _assumed(arguments: argparse.Namespace, flops: "FlopBreakdown") -> str:
    """What a run of --tokens takes for granted. MFU counts no recomputation."""
    from course_lib.theory.inputs.units import format_flop

    chip, tokens = read.gpu(arguments), read.count(arguments, "tokens")
    peak = f"{chip.name}'s {chip.peak_flop_per_s / 1e12:g} TFLOP/s"
    each = format_flop(flops.model_flop_per_token)
    return f"{tokens:,} tokens × {each} at MFU {read.mfu(arguments):.1%} of {peak}:"


def _run_data(arguments: argparse.Namespace, run: "TrainingRun") -> dict[str, Any]:
    names = ("gpus", "gpu_hour_usd", "time_s", "days", "gpu_hours", "cost_usd")
    assumed = {"tokens": read.count(arguments, "tokens"), "gpu": read.gpu(arguments).name}
    numbers = {name: getattr(run, name) for name in names}
    return {**assumed, "mfu": read.mfu(arguments), **numbers}


def _training_run(arguments: argparse.Namespace, flops: "FlopBreakdown") -> "TrainingRun | None":
    """The run of --tokens on --gpus; None if nothing was asked about one."""
    from course_lib.theory.compute.budget import training_run

    if arguments.tokens is None:
        for name in ("gpus", "gpu", "mfu", "gpu_hour_usd"):
            if getattr(arguments, name) is not None:
                raise ValueError(f"{name} is about a training run: add its tokens, --tokens 15T")
        return None
    if arguments.gpus is None:
        raise ValueError(f"tokens {arguments.tokens} need GPUs to run on: add --gpus 1024")
    return training_run(
        flops.model_flop_per_token * read.count(arguments, "tokens"),
        read.count(arguments, "gpus"),
        read.gpu(arguments).peak_flop_per_s * read.mfu(arguments),
        read.number(arguments, "gpu_hour_usd", 2.0),
    )


# --- plan -------------------------------------------------------------------------------------


def _plan(arguments: argparse.Namespace) -> Answer:
    from course_lib.theory.planner import plan

    name, shape = read.model(arguments)
    batch, top = read.batch(arguments), read.count(arguments, "top", 10, least=1)
    rejected = read.count(arguments, "rejected", 5)
    where = (read.cluster(arguments), batch, read.sequence(arguments, shape))
    found = plan(shape, read.recipe(arguments), *where)
    unfit = list(islice(found.rejected(), rejected))
    # Where nothing fits, the planner's own table names the closest one already.
    rest = unfit if found.fitting else unfit[1:]
    text = "\n".join([f"{name} on {found.explain(top)}", *_front(found, top), *_unfit(rest)])
    data = {"model": name, **_plan_data(found, top, unfit)} if arguments.json else {}
    # 1 is "something did not pass": a program need not read the table to know that nothing fits.
    return Answer(text, data, code=0 if found.fitting else 1)


def _front(found: "Plan", most: int) -> list[str]:
    """Lines on the Pareto front: the fastest layout for each of at most `most` sizes of memory."""
    front = found.pareto()
    if not front:
        return []
    largest, smallest, steps = front[0].memory_bytes, front[-1].memory_bytes, max(1, most - 1)
    sizes = [largest - step * (largest - smallest) // steps for step in range(most)]
    chosen = {next(option for option in front if option.memory_bytes <= size) for size in sizes}
    shown = [option.explain() for option in front if option in chosen]
    title = f"Pareto front, none is both faster and smaller ({len(shown)} of {len(front)}):"
    return ["", title, *shown]


def _unfit(unfit: list[tuple["PlannedLayout", str]]) -> list[str]:
    """Lines on layouts that do not fit, and why."""
    if not unfit:
        return []
    lines = [line for option, why in unfit for line in (option.explain(), f"  {why}")]
    return ["", "Do not fit, the closest first:", *lines]


def _plan_data(found: "Plan", top: int, unfit: list[tuple["PlannedLayout", str]]) -> dict[str, Any]:
    question = found.question
    return {
        "gpu": question.cluster.accelerator.name,
        "nodes": question.cluster.nodes,
        "gpus": question.cluster.world,
        "capacity_bytes": found.capacity_bytes,
        "global_batch_sequences": question.global_batch,
        "sequence_tokens": question.sequence,
        "recipe": asdict(question.recipe),
        "layouts": found.layouts,
        "fitting": found.fitting,
        "best": [_option_data(found, option) for option in found.best(top)],
        "pareto": [option.as_dict() for option in found.pareto()],
        "rejected": [{**option.as_dict(), "reason": reason} for option, reason in unfit],
    }


def _option_data(found: "Plan", option: "PlannedLayout") -> dict[str, Any]:
    """One layout of the ranking, with the leaves of its memory and of its step."""
    step = found.step(option)
    return {
        **option.as_dict(),
        "mfu": step.mfu,
        "memory_leaves": asdict(found.memory(option)),
        "step_leaves": step.leaves(),
    }
