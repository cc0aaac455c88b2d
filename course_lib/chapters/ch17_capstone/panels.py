"""Panels of chapter 17."""

from course_lib.chapters.ch17_capstone import figures
from course_lib.chapters.ch17_capstone.costs import (
    Decoding,
    TokenCost,
    most_sequences,
    sharded_backward,
)
from course_lib.chapters.ch17_capstone.streams import SharedTimeline, Task, shared_timeline
from course_lib.panels.controls import choice, listed, powers_of_two, whole
from course_lib.panels.panel import Rows, View, panel
from course_lib.theory.inputs.hardware import ACCELERATORS
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.units import format_bytes, format_number, format_seconds

# --- give way -----------------------------------------------------------------------------------
# Small kernels that yield to large ones, and what finally waits for them.


# The case of section 17.4: eight layers of LLaMA-2 70B, 4096 tokens, on an A100.
_LAYERS = 8
_MULTIPROCESSORS = 108  # of an A100
_HELD = 100.0  # weight of a collective, whose blocks keep their multiprocessors until it ends
_SMALL_MS = {f"{ms:g}": ms for ms in (1, 2, 3, 3.4, 4, 5, 7, 10, 20)}
_WEIGHTS = {f"1 / {part}": 1 / part for part in (100, 50, 20, 10, 5, 2, 1)}


@panel
def give_way(
    backward_ms: int = whole("backward", 96, 10, 200, "ms"),
    message_ms: int = whole("a message", 34, 1, 100, "ms"),
    prepare_ms: float = listed("small kernels", 3.4, _SMALL_MS, "ms"),
    weight: float = listed("their weight", 1 / 20, _WEIGHTS),
    multiprocessors: int = whole("message SMs", 20, 0, 64),
) -> View:
    """Panel of `sharded_backward`; its result is the shared timeline.

    `weight`: weight of a small kernel, if that of a large one is 1. `multiprocessors`: how many of
    108 a collective occupies. Raises ValueError for starting values that are not offered.
    """
    backward = Task("backward", "computing", backward_ms / 1000, {"processor": 1.0})
    part = {"processor": multiprocessors / _MULTIPROCESSORS, "link": 1.0}
    message = Task("message", "messages", message_ms / 1000, part, weight=_HELD)
    small = Task("prepare", "messages", prepare_ms / 1000, {"processor": 1.0}, weight=weight)
    run, without = (
        shared_timeline(sharded_backward(_LAYERS, backward, message, message, prepare=prepare))
        for prepare in (small, None)
    )
    charts = {"small kernels before each scatter": run, "no small kernels": without}
    return View(run, _rows(run, without), lambda: figures.shared_rates(charts))


def _rows(run: SharedTimeline, without: SharedTimeline) -> Rows:
    middle = _LAYERS // 2 + 1
    slower = {task: run.slowdown(f"{task} {middle}") for task in ("prepare", "backward")}
    return (
        ("all of it", f"{format_seconds(run.total_s)} for {_LAYERS} layers"),
        ("without small kernels", format_seconds(without.total_s)),
        ("if nothing were shared", format_seconds(run.ideal_s)),
        ("a small kernel takes", f"{format_number(slower['prepare'])} times as long as alone"),
        ("a backward takes", f"{format_number(slower['backward'])} times as long as alone"),
        ("computing waits", format_seconds(run.waits_s("computing"))),
    )


# --- token cost ---------------------------------------------------------------------------------
# The cost of a million tokens, trained and generated, on one kind of GPU.


_CARDS = ("H100-SXM", "H200-SXM", "RTX4090", "A100-SXM-80GB", "B200-SXM", "L40S", "MI300X")
_SHAPES = ("llama2-7b", "llama2-13b", "llama2-70b", "llama3-8b", "llama3-70b", "llama3-405b")
_GPUS = 8  # one node
_RESERVE_BYTES = 1e9  # free on each GPU, as in section 17.6
_CENTS = {f"{cents / 100:.2f}": cents for cents in (15, 34, 50, 75, 100, 150, 199, 250, 400, 600)}


@panel
def token_cost(
    model: str = choice("model", "llama2-70b", _SHAPES),
    card: str = choice("card", "H100-SXM", _CARDS),
    cents: int = listed("USD an hour", 199, _CENTS),
    batch: int = whole("sequences", 32, 1, 1024),
    context: int = powers_of_two("tokens before", 4096, 128, 32768),
    mfu_percent: int = whole("MFU", 40, 1, 70, "%"),
) -> View:
    """Panel of the cost of tokens on a node of eight GPUs; its result is a `TokenCost`.

    `cents`: the price of a GPU-hour. `mfu_percent`: the MFU of training, an assumption of yours.
    Raises ValueError for starting values that are not offered.
    """
    one = Decoding(MODELS[model], ACCELERATORS[card], tp=_GPUS, batch=batch, context=context)
    cost = TokenCost(one, cents / 100, mfu_percent / 100)
    most = most_sequences(one, reserve_bytes=_RESERVE_BYTES)
    room = f"at most {most:,} sequences" if most else "not even the weights"
    rows = (
        (
            "training",
            f"{cost.trained_per_s:,.0f} tokens/s, {format_number(cost.training_usd)} USD a million",
        ),
        (
            "generating",
            f"{one.tokens_per_s:,.0f} tokens/s, {format_number(cost.generating_usd)} USD a million",
        ),
        ("a token", f"{format_seconds(one.token_s)} for each sequence"),
        ("of that, reading", f"{format_seconds(one.read_s)}, {format_bytes(one.weight_bytes)}"),
        ("of that, sums", format_seconds(one.latency_s + one.transfer_s)),
        ("fits on eight", f"{room}{'' if batch <= most else ': too many here'}"),
    )
    title = f"{model} on {_GPUS} {card} at {cents / 100:.2f} USD an hour"
    bars = {card: {"training": cost.training_usd, "generating": cost.generating_usd}}
    return View(cost, rows, lambda: figures.token_costs(bars, title))
