"""`course rehearse`."""

import argparse
import sys
from typing import TYPE_CHECKING, Any

from course_lib.cli import inputs
from course_lib.cli import options as read
from course_lib.cli.options import Answer, Options, add, add_json_option, given

if TYPE_CHECKING:
    from course_lib.chapters.ch15_launchers_and_recovery.rehearsal import Rehearsal
    from course_lib.theory.inputs.hardware import Accelerator
    from course_lib.theory.inputs.layout import Layout
    from course_lib.theory.inputs.recipe import Recipe

ABOUT = "run FSDP2 and tensor parallelism on one rank of many, and compare it with the theory"
_LAYOUT: Options = {
    "dp": (read.count, "data parallel ranks, which share the weights (FSDP2)"),
    "tp": (read.count, "tensor parallel ranks"),
    "shard_group": (
        read.count,
        "ranks over which weights are sharded (default: dp; fewer are HSDP)",
    ),
    "micro_batch": (read.count, "sequences of one forward pass (default: 1)"),
    "accumulation": (read.count, "micro-batches of one update (default: 1)"),
    "reduce": (read.plain, "micro-batch (default) or update: when gradients are reduced"),
    "reshard": (read.yes_or_no, "free a layer's weights behind each pass"),
}
_RECIPE: Options = {
    "parameters": (read.plain, "fp32 (default) or bf16: precision of the shards"),
    "gradients": (
        read.plain,
        "fp32 or bf16: precision in which they are reduced (default: as the shards)",
    ),
    "compute": (
        read.plain,
        "bf16 (default) or fp32: precision of the passes and of gathered weights",
    ),
    "optimizer": (read.plain, "adamw (default), adamw-bf16, momentum or sgd"),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the model, the rank, the layout, the recipe and the GPU."""
    inputs.add_model(parser)
    add(
        parser,
        {"rank": (read.count, "which rank, tp innermost (default: 0)"), **_LAYOUT, **_RECIPE},
    )
    parser.add_argument("--sequence-parallel", action="store_true", help="tp cuts norms as well")
    add(parser, {"gpu": (read.plain, "say whether the rank fits into this GPU, such as H100-SXM")})
    add_json_option(parser)


def run(arguments: argparse.Namespace) -> Answer:
    """Rehearse the rank; exit code 1 if a byte is not explained or the rank does not fit."""
    from course_lib.chapters.ch15_launchers_and_recovery.rehearsal import rehearse
    from course_lib.theory.inputs.job import Job

    model = inputs.model(arguments)
    length = inputs.sequence(arguments, model.shape)
    job = Job(model.shape, _recipe(arguments), _layout(arguments), sequence=length)
    chip = inputs.gpu(arguments) if arguments.gpu else None
    if job.layout.world >= 1000:  # torch makes a tensor for each shard of each tensor
        print(f"cutting {model.shape.layers} layers, which takes minutes", file=sys.stderr)
    result = rehearse(job, arguments.rank or 0)
    text = f"{model.name}, sequences of {length:,} tokens\n{model.notes}{result.report()}"
    data = {**inputs.data(model, job), "rank": result.rank, **result.data()}
    ok = result.explained
    if chip is not None:
        sentence, data["fit"] = _fit(result, chip)
        text, ok = f"{text}\n{sentence}", ok and data["fit"]["fits"]
    return Answer(text, data, code=0 if ok else 1)


def _fit(result: "Rehearsal", chip: "Accelerator") -> tuple[str, dict[str, Any]]:
    """Whether the rehearsed states plus the predicted activations and buffers fit `chip`."""
    from course_lib.theory.inputs.units import format_bytes
    from course_lib.theory.memory.peak import gpu_memory
    from course_lib.theory.planner.space import MARGIN

    bill = gpu_memory(result.job)
    rest = bill.total_bytes - bill.model_states_bytes
    need, room = result.stored_bytes + rest, int((1 - MARGIN) * chip.memory_bytes)
    sentence = (
        f"{format_bytes(result.stored_bytes)} are kept, and activations, buffers and overhead are "
        f"{format_bytes(rest)} by the theory:\n{format_bytes(need)} "
        f"{'fit' if need <= room else 'do not fit'} into the {format_bytes(room)} of {chip.name} "
        f"({format_bytes(chip.memory_bytes)} less a margin of {MARGIN:.0%})"
    )
    return sentence, {"need_bytes": need, "capacity_bytes": room, "fits": need <= room}


def _layout(arguments: argparse.Namespace) -> "Layout":
    """The layout asked for: ZeRO-3 over dp, which is what `fully_shard` does."""
    from course_lib.theory.inputs.layout import Layout

    asked = given(arguments, _LAYOUT)
    asked.setdefault("shard_group", asked.get("dp", 1))
    return Layout(zero_stage=3, sequence_parallel=arguments.sequence_parallel, **asked)


def _recipe(arguments: argparse.Namespace) -> "Recipe":
    """The recipe asked for, within what `MixedPrecisionPolicy` and torch's optimizers support."""
    from course_lib.theory.inputs.recipe import Recipe

    asked = {"parameters": "fp32", "compute": "bf16", **given(arguments, _RECIPE)}
    asked.setdefault("gradients", asked["parameters"])
    asked.setdefault("optimizer", "adamw" if asked["parameters"] == "fp32" else "adamw-bf16")
    return Recipe(master_copy=False, **asked)
