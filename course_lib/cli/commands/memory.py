"""`course memory`."""

import argparse
from dataclasses import asdict
from functools import partial
from typing import Any

from course_lib.cli import inputs
from course_lib.cli import options as read
from course_lib.cli.options import Answer, Options, add, add_json_option

ABOUT = "what is in the memory of a training GPU"


def add_options(parser: argparse.ArgumentParser) -> None:
    """A model, how it is trained, how it is spread, and what is shown."""
    inputs.add_model(parser)
    inputs.add_recipe(parser)
    inputs.add_recompute(parser)
    inputs.add_layout(parser)
    unit = "GB (default) or GiB, for the table; JSON is in bytes"
    meter = (
        "what it shows at the peak: allocated (tensors), reserved (PyTorch's cache of them, by a "
        "fitted factor) or nvidia-smi (CUDA and NCCL as well)"
    )
    options: Options = {
        "stage": (_stage, "pipeline rank, or worst (default)"),
        "unit": (partial(read.choice, allowed=("GB", "GiB")), unit),
        "meter": (read.plain, meter),
    }
    add(parser, options)
    parser.add_argument("--derive", action="store_true", help="show how the numbers come about")
    add_json_option(parser)


def _stage(name: str, text: str) -> int | None:
    """Parse a pipeline rank; None for "worst"."""
    if text == "worst":
        return None
    return read.digits(name, text, "a pipeline rank", "write worst, or a number from 0")


def run(arguments: argparse.Namespace) -> Answer:
    """The memory of one GPU by consumer, or with --derive how it comes about."""
    from course_lib.theory.inputs.job import FRAMEWORKS
    from course_lib.theory.inputs.units import format_bytes
    from course_lib.theory.memory.peak import (
        METERS,
        explain_memory,
        gpu_memory,
        metered_bytes,
        worst_stage,
    )

    model = inputs.model(arguments)
    job, unit = inputs.job(arguments, model.shape), arguments.unit or "GB"
    layout, framework = job.layout, inputs.framework(arguments)
    stage, which = arguments.stage, ""
    if stage is None:
        stage, which = worst_stage(job)[0], ", the fullest" if layout.pp > 1 else ""
    bill = gpu_memory(job, stage)
    table = explain_memory(job, stage, unit=unit) if arguments.derive else bill.explain(unit)
    title = (
        f"{model.name}, sequences of {job.sequence:,} tokens, {inputs.words(layout)}\n{model.size}"
        f"{model.notes}each GPU of pipeline rank {stage}{which}:"
    )
    totals: dict[str, float] = {
        "model_states_bytes": bill.model_states_bytes,
        "total_bytes": bill.total_bytes,
    }
    if arguments.meter is not None:
        own = FRAMEWORKS[framework].buffers_bytes if framework else 0
        meter = read.spelled(arguments.meter, METERS)
        shown = metered_bytes(bill, meter, layout, buffers_bytes=own)
        table += f"\nmeter {meter}: {format_bytes(shown, unit)} at the peak"
        totals["metered_bytes"] = shown
    data: dict[str, Any] = {
        **inputs.data(model, job),
        "stage": stage,
        "framework": framework,
        "leaves": asdict(bill),
        "totals": totals,
    }
    return Answer(f"{title}\n{table}", data)
