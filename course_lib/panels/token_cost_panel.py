"""The panel of chapter 17: what a million tokens cost, trained and generated, on one card."""

from course_lib.figures.compute import economics as figure
from course_lib.panels.controls import choice, listed, powers_of_two, whole
from course_lib.panels.panel import View, panel
from course_lib.theory.inputs.hardware import ACCELERATORS
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.units import format_bytes, format_number, format_seconds
from course_lib.theory.step.decoding import Decoding, most_sequences
from course_lib.theory.step.token_cost import TokenCost

_CARDS = ("H100-SXM", "H200-SXM", "RTX4090", "A100-SXM-80GB", "B200-SXM", "L40S", "MI300X")
_SHAPES = ("llama2-7b", "llama2-13b", "llama2-70b", "llama3-8b", "llama3-70b", "llama3-405b")
_GPUS = 8  # one node
_CENTS = {f"{cents / 100:.2f}": cents for cents in (15, 34, 50, 75, 100, 150, 199, 250, 400, 600)}


@panel
def token_cost(
    model: str = choice("model", "llama2-70b", _SHAPES),
    card: str = choice("card", "H100-SXM", _CARDS),
    cents: int = listed("USD an hour", 199, _CENTS),
    batch: int = powers_of_two("sequences", 32, 1, 1024),
    context: int = powers_of_two("tokens before", 4096, 128, 32768),
    mfu_percent: int = whole("MFU", 40, 1, 70, "%"),
) -> View:
    """Controls for a node of eight cards; the result is its `TokenCost`.

    `cents`: the price of a card for an hour. `mfu_percent`: what training reaches, which is yours
    to know. Raises ValueError for starting values that are not offered.
    """
    one = Decoding(MODELS[model], ACCELERATORS[card], tp=_GPUS, batch=batch, context=context)
    cost = TokenCost(one, cents / 100, mfu_percent / 100)
    most = most_sequences(one)
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
    return View(cost, rows, lambda: figure.token_costs(bars, title))
