"""`course memory`."""

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from course_lib.cli import inputs
from course_lib.cli.answer import Answer, add_json_option, refusals
from course_lib.cli.text import MOST_DIGITS, add_text_options, spelled

if TYPE_CHECKING:
    from course_lib.theory.inputs.job import Job
    from course_lib.theory.memory.states import MemoryBreakdown

ABOUT = "what is in the memory of a training GPU"
_NAMES = {
    "--unit": "GB (default) or GiB, for the table; JSON is in bytes",
    "--meter": "what it shows at the peak: allocated (tensors), reserved (PyTorch's cache of them, "
    "by a fitted factor) or nvidia-smi (CUDA and NCCL as well)",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """A model, how it is trained, how it is spread, and what is shown."""
    inputs.add_model(parser)
    inputs.add_recipe(parser)
    inputs.add_recompute(parser)
    inputs.add_layout(parser)
    add_text_options(parser, {"--stage": "pipeline rank, or worst (default)"})
    add_text_options(parser, _NAMES, "NAME")
    parser.add_argument("--derive", action="store_true", help="show how the numbers come about")
    add_json_option(parser)


def run(arguments: argparse.Namespace) -> int:
    """The memory of one GPU by consumer, or with --derive how it comes about."""
    with refusals():
        answer = _answer(arguments)
    return answer.say(arguments.json)


def _answer(arguments: argparse.Namespace) -> Answer:
    from course_lib.theory.memory.peak import explain_memory, gpu_memory, worst_stage

    model = inputs.model(arguments)
    job, unit = inputs.job(arguments, model.shape), _unit(arguments)
    layout = job.layout
    stage, which = _stage(arguments), ""
    if stage is None:
        stage, which = worst_stage(job)[0], ", the fullest" if layout.pp > 1 else ""
    bill = gpu_memory(job, stage)
    table = explain_memory(job, stage, unit=unit) if arguments.derive else bill.explain(unit)
    title = (
        f"{model.name}, sequences of {job.sequence:,} tokens, {inputs.words(layout)}\n{model.size}"
        f"{model.notes}each GPU of pipeline rank {stage}{which}:"
    )
    asked: dict[str, Any] = {**model.data(), "recipe": asdict(job.recipe), "layout": asdict(layout)}
    asked |= {"gpus": layout.world, "sequence_tokens": job.sequence, "stage": stage}
    asked |= {"framework": inputs.framework(arguments)}
    totals: dict[str, float] = {
        "model_states_bytes": bill.model_states_bytes,
        "total_bytes": bill.total_bytes,
    }
    if arguments.meter is not None:
        words, totals["metered_bytes"] = _metered(arguments, bill, job, unit)
        table += f"\n{words}"
    return Answer(f"{title}\n{table}", {**asked, "leaves": asdict(bill), "totals": totals})


def _metered(
    arguments: argparse.Namespace, bill: "MemoryBreakdown", job: "Job", unit: str
) -> tuple[str, float]:
    """What --meter shows: in a sentence, and in bytes."""
    from course_lib.theory.inputs.job import FRAMEWORKS
    from course_lib.theory.inputs.units import format_bytes
    from course_lib.theory.memory.peak import METERS, metered_bytes

    name = inputs.framework(arguments)
    own = FRAMEWORKS[name].buffers_bytes if name else 0
    meter = spelled(arguments.meter, METERS)
    shown = metered_bytes(bill, meter, job.layout, buffers_bytes=own)
    return f"meter {meter}: {format_bytes(shown, unit)} at the peak", shown


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
