"""`course flops`."""

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from course_lib.cli import inputs
from course_lib.cli.answer import Answer, add_json_option, refusals
from course_lib.cli.text import add_text_options, count, number

if TYPE_CHECKING:
    from course_lib.theory.compute.budget import TrainingRun
    from course_lib.theory.compute.flops import FlopBreakdown
    from course_lib.theory.inputs.hardware import Accelerator

ABOUT = "computation of a step; days and money of a run"
MFU = 0.4
GPU_HOUR_USD = 2.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """A model and a step; with --tokens a whole run."""
    inputs.add_model(parser)
    inputs.add_recompute(parser)
    about = "standard (default) or flash, which computes the scores again in backward"
    add_text_options(parser, {"--attention": about}, "NAME")
    about = "full (default) or causal, which counts half of attention's scores"
    add_text_options(parser, {"--mask": about}, "NAME")
    inputs.add_gpu(parser)
    options = {
        "--sequences": "sequences of one step (default: 1)",
        "--tokens": "of a whole training run, such as 15T: adds days, GPU-hours and money",
        "--gpus": "GPUs of the training run",
        "--mfu": f"model FLOPs over the GPUs' peak (default: {MFU})",
        "--gpu-hour-usd": f"price of one GPU for an hour (default: {GPU_HOUR_USD:g})",
    }
    add_text_options(parser, options)
    add_json_option(parser)


@dataclass(frozen=True)
class _RunOptions:
    """The training run that --tokens asks about."""

    tokens: int
    gpus: int
    chip: "Accelerator"
    mfu: float
    gpu_hour_usd: float


def run(arguments: argparse.Namespace) -> int:
    """The FLOP of a step; the days, GPU-hours and money of a run."""
    with refusals():
        answer = _answer(arguments)
    return answer.say(arguments.json)


def _answer(arguments: argparse.Namespace) -> Answer:
    from course_lib.theory.compute.flops import six_nd, training_flops

    model = inputs.model(arguments)
    flops = training_flops(
        model.shape,
        count(arguments, "sequences", 1),
        inputs.sequence(arguments, model.shape),
        mask=arguments.mask or "full",
        recompute=arguments.recompute or "none",
        attention=arguments.attention or "standard",
    )
    asked, active = _run_options(arguments), model.shape.parameters().active
    simple = six_nd(active, flops.tokens)
    title = f"{model.name}, a step of {flops.tokens:,} tokens\n{model.size}{model.notes}"
    text = f"{title}{_step_text(flops, simple, active)}"
    data = {**model.data(), **_step_data(flops), "six_nd_flop": simple}
    if asked is not None:
        whole = _training_run(asked, flops)
        text += f"\n\n{_assumed(asked, flops)}\n{whole.explain()}"
        data["training"] = _run_data(asked, whole)
    return Answer(text, data)


def _run_options(arguments: argparse.Namespace) -> _RunOptions | None:
    """The options of a run; None if nothing was asked about one."""
    if arguments.tokens is None:
        for name in ("gpus", "gpu", "mfu", "gpu_hour_usd"):
            if getattr(arguments, name) is not None:
                raise ValueError(f"{name} is about a training run: add its tokens, --tokens 15T")
        return None
    if arguments.gpus is None:
        raise ValueError(f"tokens {arguments.tokens} need GPUs to run on: add --gpus 1024")
    return _RunOptions(
        count(arguments, "tokens"),
        count(arguments, "gpus"),
        inputs.gpu(arguments),
        _mfu(arguments),
        number(arguments, "gpu_hour_usd", GPU_HOUR_USD),
    )


def _mfu(arguments: argparse.Namespace) -> float:
    """Part of the peak that is used, above 0 and at most 1."""
    from course_lib import validation

    value = number(arguments, "mfu", MFU)
    validation.number("mfu", value, above=0)
    if value > 1:
        raise ValueError(f"mfu must be at most 1, got {value:g}: write 0.4 for 40 %")
    return value


def _training_run(asked: _RunOptions, flops: "FlopBreakdown") -> "TrainingRun":
    from course_lib.theory.compute.budget import training_run

    return training_run(
        flops.model_flop_per_token * asked.tokens,
        asked.gpus,
        asked.chip.peak_flop_per_s * asked.mfu,
        asked.gpu_hour_usd,
    )


def _step_text(flops: "FlopBreakdown", simple: float, active: int) -> str:
    from course_lib.theory.inputs.units import format_flop

    return (
        f"{flops.explain()}\n"
        f"{'6·N·D':<15} {format_flop(simple)} with N = {active:,} active parameters; the model's "
        f"FLOP are {flops.model_flop / simple:.3f} times that"
    )


def _step_data(flops: "FlopBreakdown") -> dict[str, Any]:
    totals = ("forward_flop", "backward_flop", "model_flop", "hardware_flop")
    return {
        "tokens": flops.tokens,
        "convention": flops.convention,
        "leaves": flops.leaves(),
        "totals": {name: getattr(flops, name) for name in totals},
        "model_flop_per_token": flops.model_flop_per_token,
    }


def _assumed(asked: _RunOptions, flops: "FlopBreakdown") -> str:
    """What a run takes for granted. MFU counts no recomputation."""
    from course_lib.theory.inputs.units import format_flop

    peak = f"{asked.chip.name}'s {asked.chip.peak_flop_per_s / 1e12:g} TFLOP/s"
    each = format_flop(flops.model_flop_per_token)
    return f"{asked.tokens:,} tokens × {each} at MFU {asked.mfu:.1%} of {peak}:"


def _run_data(asked: _RunOptions, whole: "TrainingRun") -> dict[str, Any]:
    names = ("gpus", "gpu_hour_usd", "time_s", "days", "gpu_hours", "cost_usd")
    assumed = {"tokens": asked.tokens, "gpu": asked.chip.name, "mfu": asked.mfu}
    return {**assumed, **{name: getattr(whole, name) for name in names}}
