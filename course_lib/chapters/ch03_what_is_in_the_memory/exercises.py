"""Exercises and quiz of chapter 3, what is in the memory."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from course_lib.chapters.ch03_what_is_in_the_memory import builds
from course_lib.checking import (
    exercise,
    expect_calls,
    expect_choice,
    expect_entries,
    expect_equal,
    expect_number,
    expect_parts,
    expect_raises,
)
from course_lib.theory.inputs import MODELS, Job, Layout, units
from course_lib.theory.inputs.recipe import RECIPES, Recipe
from course_lib.theory.memory.peak import RESERVED_OVER_ALLOCATED, memory_moments, training_memory
from course_lib.theory.memory.states import model_states

# A tool's output for LLaMA-2 70B: its recipe, whether its GB are GiB, and the explanation.
_TOOLS = {
    "1,028 GB": (RECIPES["mixed-16"], True, "2 + 2 + 4 + 8 bytes, in GiB"),
    "1,242 GB": (RECIPES["megatron-18"], False, "fp32 gradients: 2 + 4 + 4 + 8 bytes"),
    "1,285 GB": (RECIPES["accumulate-20"], True, "a buffer beside bf16 gradients: 20 B, in GiB"),
    "690 GB": (Recipe(optimizer="adamw-8bit"), False, "2 + 2 + 4, and 2 bytes of moments"),
}


@exercise("3.1")
def _seventy(answer: Any) -> None:
    expect_parts(answer, 3, "GB and two dicts, each with an entry for every tool")
    nominal = model_states(70 * 10**9, RECIPES["mixed-16"]).master_copy_bytes / units.GB
    because = "8 of the 12 bytes are Adam's; 4 are the fp32 master copy of the weights"
    expect_number(answer[0], nominal, because, rel=0.02, unit="GB")
    sizes = {printed: (tool.bytes_per_parameter, why) for printed, (tool, _, why) in _TOOLS.items()}
    expect_entries(answer[1], sizes, "a dict of bytes per parameter", each="a whole number")
    units_meant = {printed: (gib, because) for printed, (_, gib, because) in _TOOLS.items()}
    expect_entries(answer[2], units_meant, "a dict of True and False", each="True or False")


# For each sentence, the optimizer and weights it holds for, and the reason.
_SENTENCES: dict[str, tuple[object, str]] = {
    "the state is one number per parameter, and takes as much as the weights": (
        "SGD with momentum, fp32",
        "momentum keeps one fp32 number beside a weight of 4 bytes",
    ),
    "the state is two numbers per parameter, and takes as much as the weights": (
        "8-bit AdamW, bf16",
        "two numbers of one byte beside a weight of 2 bytes",
    ),
    "the state takes half of the weights": (
        "8-bit AdamW, fp32",
        "two numbers of one byte beside a weight of 4 bytes",
    ),
    "the state takes four times the weights": (
        "AdamW, bf16",
        "two fp32 numbers beside a weight of 2 bytes",
    ),
}


@exercise("3.3")
def _optimizers(answer: Any) -> None:
    expect_entries(answer, _SENTENCES, "a dict", each="an optimizer and weights")


@exercise("3.4")
def _bytes_per_parameter(function: Any) -> None:
    signature = "bytes_per_parameter(weights, gradients, fp32_buffer)"
    expect_calls(
        function,
        [
            (("bf16", "bf16"), 16, "2 + 2 + master 4 + Adam 8"),
            (("fp32", "fp32"), 16, "4 + 4 + Adam 8, and no master copy"),
            (("bf16", "fp32"), 18, "Megatron's convention: 2 + 4 + 4 + 8"),
            (("bf16", "bf16", True), 20, "an fp32 buffer adds 4"),
            (("bf16", "fp32", True), 18, "fp32 gradients need no second buffer"),
        ],
        signature=signature,
    )
    expect_raises(
        function, ("int4", "bf16"), ValueError, "int4 is neither fp32 nor bf16", signature=signature
    )


@exercise("3.6")
def _fits(answer: Any) -> None:
    usable = 23.65 * units.GIB
    model, fp32 = MODELS["gpt2-1.5b"], replace(_EAGER, update="fused")
    bf16 = replace(fp32, parameters="bf16", gradients="bf16", master_copy=True)
    alone = replace(bf16, optimizer="adamw-bf16", master_copy=False)
    bill = training_memory(model, fp32, micro_batch=1)
    recipes = {
        "bf16 weights and gradients, with a master copy": bf16,
        "bf16 weights, gradients and AdamW, without a master copy": alone,
        "SGD with momentum": replace(fp32, optimizer="momentum"),
        "8-bit AdamW": replace(fp32, optimizer="adamw-8bit"),
    }
    sizes = {
        "half the sequence": training_memory(model, fp32, micro_batch=1, sequence=512).total_bytes,
        "no intermediate results at all": bill.model_states_bytes + bill.overhead_bytes,
        **{name: training_memory(model, recipe, 1).total_bytes for name, recipe in recipes.items()},
    }
    expected = {
        name: (size <= usable, f"it takes {units.gib(size):.1f} GiB")
        for name, size in sizes.items()
    }
    expect_entries(answer, expected, "a dict of True and False", each="True or False")


@exercise("3.7")
def _gb_and_gib(answer: Any) -> None:
    expect_parts(answer, 2, "a list: GiB left, and 'yes' or 'no'")
    reserved = 129 * units.GB * RESERVED_OVER_ALLOCATED
    left = units.gib(143_771 * units.MIB - reserved) - 1
    expect_number(
        answer[0],
        left,
        "143,771 MiB are 140.4 GiB, and 148.35 GB are 138.2 GiB; the card has 150.8 GB in fact",
        rel=0.05,
        unit="GiB",
    )
    expect_choice(answer[1], "yes", "something is left", choices=("yes", "no"))


@exercise("3.10")
def _two_tracebacks(answer: Any) -> None:
    expected = {}
    for name, model, micro_batch in (("A", "gpt2-124m", 16), ("B", "gpt2-1.5b", 2)):
        moment, before = _peak(model, _EAGER, micro_batch)
        after = {change: _peak(model, recipe, micro_batch) for change, recipe in _CHANGED.items()}
        after["half the micro-batch"] = _peak(model, _EAGER, micro_batch // 2)
        for change, (_, size) in after.items():
            because = f"the peak of {name} is at the point '{moment}'"
            expected[f"{name}: {change}"] = (size < before, because)
    expect_entries(answer, expected, "a dict of True and False", each="True or False")


_EAGER = replace(RECIPES["fp32-16"], loss="eager", gradient_life="backward", update="foreach")
_CHANGED = {
    "fused=True in AdamW": replace(_EAGER, update="fused"),
    "a loss that writes its gradient over the logits": replace(_EAGER, loss="in-place"),
    "8-bit AdamW": replace(_EAGER, optimizer="adamw-8bit"),
}


def _peak(model: str, recipe: Recipe, micro_batch: int) -> tuple[str, float]:
    """The moment of peak memory, and its bytes."""
    job = Job(MODELS[model], recipe, Layout(micro_batch=micro_batch), sequence=1024)
    sizes = {name: bill.total_bytes for name, bill in memory_moments(job).items()}
    moment = max(sizes, key=lambda name: sizes[name])
    return moment, sizes[moment]


def loss_scale(overflows: Iterable[bool]) -> tuple[float, int]:
    """Loss scale after these batches by torch.amp.GradScaler's rules, and the number of updates."""
    scale, in_a_row, updates = 65_536.0, 0, 0
    for overflow in overflows:
        updates += not overflow
        in_a_row = 0 if overflow else in_a_row + 1
        if overflow:
            scale /= 2
        elif in_a_row == 2000:
            scale, in_a_row = 2 * scale, 0
    return scale, updates


_FIRST: dict[str, tuple[object, str]] = {
    "A": ("expandable segments", "memory that is reserved and unallocated is gaps"),
    "B": ("detach", "what grows with every step is a leak"),
    "C": ("micro-batch", "the states leave 56 GB, and the batch fills them"),
    "D": ("divide", "the model states alone are 24 GB, whatever the batch is"),
    "E": ("fused", "19.2 GB of states fit; the update's buffers of 4.8 GB do not"),
    "F": ("recompute", "a batch of one sequence cannot be halved; its layers can be recomputed"),
}


@exercise("3.14")
def _first_measure(answer: Any) -> None:
    measures = "'expandable segments', 'detach', 'micro-batch', 'fused', 'divide' or 'recompute'"
    expect_entries(answer, _FIRST, "a dict of runs", each=measures)


_BATCHES = [True] * 3 + [False] * 6000 + [True] + [False] * 1999


@exercise("3.13")
def _loss_scale(answer: Any) -> None:
    expect_equal(
        answer,
        list(loss_scale(_BATCHES)),
        "halved three times, doubled three times, halved once; the four batches made no update",
        wants="the scale and a number of updates",
    )


BUILDS = (builds.MASTER_ADAMW, builds.EIGHT_BIT)
