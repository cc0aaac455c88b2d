"""`course flops`."""

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any

from course_lib.cli import inputs
from course_lib.cli import options as read
from course_lib.cli.options import Answer, Options, add, add_json_option, given

if TYPE_CHECKING:
    from course_lib.theory.compute.flops import FlopBreakdown

ABOUT = "computation of a step; days and money of a run"
MFU = 0.4
GPU_HOUR_USD = 2.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """A model and a step; with --tokens a whole run."""
    inputs.add_model(parser)
    inputs.add_recompute(parser)
    attention = "standard (default) or flash, which computes the scores again in backward"
    mask = "full (default) or causal, which counts half of attention's scores"
    add(parser, {"attention": (read.plain, attention), "mask": (read.plain, mask)})
    inputs.add_gpu(parser)
    tokens = "of a whole training run, such as 15T: adds days, GPU-hours and money"
    mfu = f"model FLOPs over the GPUs' peak (default: {MFU})"
    usd = f"price of one GPU for an hour (default: {GPU_HOUR_USD:g})"
    options: Options = {
        "sequences": (read.count, "sequences of one step (default: 1)"),
        "tokens": (read.count, tokens),
        "gpus": (read.count, "GPUs of the training run"),
        "mfu": (partial(read.number, above=0), mfu),
        "gpu_hour_usd": (read.number, usd),
    }
    add(parser, options)
    add_json_option(parser)


def run(arguments: argparse.Namespace) -> Answer:
    """The FLOP of a step; the days, GPU-hours and money of a run."""
    from course_lib.theory.compute.flops import six_nd, training_flops
    from course_lib.theory.inputs.units import format_flop

    model = inputs.model(arguments)
    shape = model.shape
    options = given(arguments, ("sequences", "sequence", "mask", "recompute", "attention"))
    flops, active = training_flops(shape, **options), shape.parameters().active
    simple = six_nd(active, flops.tokens)
    text = (
        f"{model.name}, a step of {flops.tokens:,} tokens\n{model.size}{model.notes}"
        f"{flops.explain()}\n"
        f"{'6·N·D':<15} {format_flop(simple)} with N = {active:,} active parameters; the model's "
        f"FLOP are {flops.model_flop / simple:.3f} times that"
    )
    totals = ("forward_flop", "backward_flop", "model_flop", "hardware_flop")
    data = {
        **model.data(),
        "tokens": flops.tokens,
        "convention": flops.convention,
        "leaves": flops.leaves(),
        "totals": {name: getattr(flops, name) for name in totals},
        "model_flop_per_token": flops.model_flop_per_token,
        "six_nd_flop": simple,
    }
    if arguments.tokens is not None:
        words, data["training"] = _whole_run(arguments, flops)
        text += f"\n\n{words}"
    for name in given(arguments, ("gpus", "gpu", "mfu", "gpu_hour_usd")):
        if arguments.tokens is None:
            raise ValueError(f"{name} is about a training run: add its tokens, --tokens 15T")
    return Answer(text, data)


def _whole_run(arguments: argparse.Namespace, flops: "FlopBreakdown") -> tuple[str, dict[str, Any]]:
    """The training run of --tokens, as text and as data. MFU excludes recomputation."""
    from course_lib.theory.compute.budget import training_run
    from course_lib.theory.inputs.units import format_flop

    tokens, chip = arguments.tokens, inputs.gpu(arguments)
    if arguments.gpus is None:
        raise ValueError(f"tokens {tokens} need GPUs to run on: add --gpus 1024")
    mfu = arguments.mfu or MFU
    if mfu > 1:
        raise ValueError(f"mfu must be at most 1, got {mfu:g}: write 0.4 for 40 %")
    usd = GPU_HOUR_USD if arguments.gpu_hour_usd is None else arguments.gpu_hour_usd
    flop_per_token, peak = flops.model_flop_per_token, chip.peak_flop_per_s
    totals = training_run(flop_per_token * tokens, arguments.gpus, peak * mfu, usd)
    text = (
        f"{tokens:,} tokens × {format_flop(flop_per_token)} at MFU {mfu:.1%} of {chip.name}'s "
        f"{peak / 1e12:g} TFLOP/s:\n{totals.explain()}"
    )
    names = ("gpus", "gpu_hour_usd", "time_s", "days", "gpu_hours", "cost_usd")
    numbers = {name: getattr(totals, name) for name in names}
    return text, {"tokens": tokens, "gpu": chip.name, "mfu": mfu, **numbers}
