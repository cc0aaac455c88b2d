"""`course memory`."""

import argparse
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from course_lib.cli import inputs
from course_lib.cli.answer import Answer, add_json_option, refusals
from course_lib.cli.text import MOST_DIGITS, add_text_options, count, spelled

if TYPE_CHECKING:
    from course_lib.theory.inputs.layout import Layout

ABOUT = "what is in the memory of a training GPU"
_COUNTS = {
    "--micro-batch": "sequences of one forward pass (default: 1)",
    "--dp": "data parallel ranks",
    "--tp": "tensor parallel ranks",
    "--pp": "pipeline stages",
    "--cp": "context parallel ranks",
    "--ep": "expert parallel ranks, of the dp·cp ones",
    "--virtual-stages": "chunks of layers on each rank, for --schedule interleaved",
    "--accumulation": "micro-batches of one update (default: as many as fill the pipeline)",
    "--zero-stage": "0 (default), 1, 2 or 3",
    "--stage": "pipeline rank, or worst (default)",
}
_NAMES = {
    "--schedule": "1f1b (default), gpipe, interleaved, zb1p, zbv, dualpipe or naive",
    "--unit": "GB (default) or GiB, for the table; JSON is in bytes",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """A model, how it is trained, how it is spread, and what is shown."""
    inputs.add_model(parser)
    inputs.add_recipe(parser)
    inputs.add_recompute(parser)
    add_text_options(parser, _COUNTS)
    add_text_options(parser, _NAMES, "NAME")
    parser.add_argument("--sequence-parallel", action="store_true", help="tp cuts norms as well")
    parser.add_argument("--derive", action="store_true", help="show how the numbers come about")
    add_json_option(parser)


def run(arguments: argparse.Namespace) -> int:
    """The memory of one GPU by consumer, or with --derive how it comes about."""
    with refusals():
        answer = _answer(arguments)
    return answer.say(arguments.json)


def _answer(arguments: argparse.Namespace) -> Answer:
    from course_lib.theory.inputs.job import Job
    from course_lib.theory.memory.peak import gpu_memory, worst_stage
    from course_lib.theory.memory.report import explain_memory

    model = inputs.model(arguments)
    layout, unit = _layout(arguments), _unit(arguments)
    length = inputs.sequence(arguments, model.shape)
    job = Job(model.shape, inputs.recipe(arguments), layout, sequence=length)
    stage, which = _stage(arguments), ""
    if stage is None:
        stage, which = worst_stage(job)[0], ", the fullest" if layout.pp > 1 else ""
    bill = gpu_memory(job, stage)
    table = explain_memory(job, stage, unit=unit) if arguments.derive else bill.explain(unit)
    title = (
        f"{model.name}, sequences of {length:,} tokens, {_words(layout)}\n{model.notes}"
        f"each GPU of pipeline rank {stage}{which}:"
    )
    asked: dict[str, Any] = {**model.data(), "recipe": asdict(job.recipe), "layout": asdict(layout)}
    asked |= {"gpus": layout.world, "sequence_tokens": length, "stage": stage}
    totals = {"model_states_bytes": bill.model_states_bytes, "total_bytes": bill.total_bytes}
    return Answer(f"{title}\n{table}", {**asked, "leaves": asdict(bill), "totals": totals})


def _layout(arguments: argparse.Namespace) -> "Layout":
    """The layout that is asked for, with enough micro-batches to show the pipeline's peak."""
    from course_lib.theory.inputs.layout import Layout

    schedule = arguments.schedule or "1f1b"
    pp = count(arguments, "pp", 1)
    # No more micro-batches than this are ever in flight, under any schedule but gpipe.
    filled = pp * (2 if schedule in ("interleaved", "zbv", "dualpipe") else 1)
    return Layout(
        micro_batch=count(arguments, "micro_batch", 1),
        accumulation=count(arguments, "accumulation", filled),
        dp=count(arguments, "dp", 1),
        tp=count(arguments, "tp", 1),
        pp=pp,
        cp=count(arguments, "cp", 1),
        ep=count(arguments, "ep", 1),
        zero_stage=count(arguments, "zero_stage", 0),
        schedule=schedule,
        virtual_stages=count(arguments, "virtual_stages", 1),
        sequence_parallel=arguments.sequence_parallel,
    )


def _stage(arguments: argparse.Namespace) -> int | None:
    """A pipeline rank, or None for the worst one."""
    text: str | None = arguments.stage
    if text in (None, "worst"):
        return None
    if not text.isdecimal() or len(text) > MOST_DIGITS:
        from course_lib.validation import told

        raise ValueError(
            f"stage {told(text)} is not a pipeline rank: write worst, or a number from 0"
        )
    return int(text)


def _unit(arguments: argparse.Namespace) -> str:
    """GB or GiB."""
    from course_lib.validation import choice

    name = spelled(arguments.unit or "GB", ("GB", "GiB"))
    choice("unit", name, ("GB", "GiB"))
    return name


def _words(layout: "Layout") -> str:
    """The number of GPUs, and the fields of a layout that are not at their default."""
    values = {field.name: getattr(layout, field.name) for field in fields(layout)}
    standard = {field.name: field.default for field in fields(layout)}
    chosen = [f"{name}={value}" for name, value in values.items() if value != standard[name]]
    gpus = f"{layout.world:,} GPU{'s' * (layout.world > 1)}"
    return f"{gpus} ({' '.join(chosen)})" if chosen else gpus
