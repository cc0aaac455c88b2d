"""Exercises and quiz of chapter 9, FSDP and YaFSDP."""

import re
from typing import Any

from course_lib.checking import (
    Question,
    exercise,
    expect_calls,
    expect_equal,
    expect_number,
    expect_parts,
    expect_raises,
)
from course_lib.checking.builds import fsdp
from course_lib.theory.compute import budget
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import RECIPES, Recipe
from course_lib.theory.inputs.units import GB
from course_lib.theory.memory import activations
from course_lib.theory.memory.gather_timeline import gather_timeline
from course_lib.theory.memory.states import local_parameters, model_states

_XL = MODELS["gpt2-1.5b"]
_FP32 = RECIPES["fp32-16"]


@exercise(
    "9.1",
    kind="calculate",
    title="GPT-2 XL",
    hints=("2 L + 1 and L + 1.", "Bytes: 2 · (2 · layers · layer + root)."),
)
def _collectives(answer: Any) -> None:
    step = gather_timeline(_XL, Recipe(), ranks=2)
    local = local_parameters(_XL)
    gathered = 2 * (2 * _XL.layers * local.layer_dense + local.ends_dense) / GB
    expect_equal(
        answer,
        [step.all_gathers, step.reduce_scatters, gathered],
        "layers are gathered twice, the root once; 2 bytes a number",
        wants="two counts and GB",
        rel=1e-3,
    )


_FLAT = "flat_shard(shapes, ranks)"


@exercise(
    "9.2",
    kind="implement",
    title="a flat parameter",
    hints=("Add up all numbers of the unit first.", "-(-numbers // ranks) rounds up."),
)
def _flat(function: Any) -> None:
    cases = [
        (([(3, 5), (3,)], 4), (5, 2), "18 numbers on 4 ranks are 5 each, and 2 of padding"),
        (([(4, 4)], 4), (4, 0), "16 numbers on 4 ranks need no padding"),
        (([(64, 64), (64,)], 3), (1387, 1), "4160 numbers on 3 ranks are 1387 each"),
        (([(5,), (5,)], 4), (3, 2), "the unit is padded as a whole, not each tensor"),
        (([(7, 2)], 1), (14, 0), "one rank keeps everything"),
    ]
    expect_calls(function, cases, signature=_FLAT)
    for ranks in (0, -1):
        expect_raises(function, ([(4,)], ranks), ValueError, "there is no rank", signature=_FLAT)


@exercise(
    "9.3",
    kind="debug",
    title="what FSDP is, and with what it goes",
    hints=(
        "Section 9.1: which shape did the rank compute with?",
        "states.local_parameters(MODELS['llama3-405b'], Layout(dp=64, tp=8, zero_stage=3))",
    ),
)
def _not_fsdp(answer: Any) -> None:
    expect_parts(answer, 3, "three numbers of parameters")
    shape = MODELS["llama3-405b"]
    layer = local_parameters(shape).layer_dense
    because = "a rank gathers the whole layer and computes with all of it"
    expect_number(answer[0], layer, because, rel=1e-3)
    expect_number(answer[1], layer / 64, "a 64th of the layer stays", rel=1e-3)
    cut = local_parameters(shape, Layout(dp=64, tp=8, zero_stage=3)).layer_dense
    # An eighth, norms included, would be smaller by 7e-5.
    because = "tensor parallelism cuts the matrices by 8, not the norms"
    expect_number(answer[2], cut, because, rel=2e-5)


def _year_and_month(date: object) -> object:
    """(2022, 3) for "2022-03" and "2022-03-10"; anything else as it is."""
    found = re.fullmatch(r"(\d{4})-(\d{1,2})(-\d{1,2})?", date) if isinstance(date, str) else None
    return (int(found[1]), int(found[2])) if found else date


@exercise(
    "9.4",
    kind="debug",
    title="the dates",
    hints=("arXiv:2304.11277: the first four digits.", "Sections 9.4 and 9.6."),
)
def _dates(answer: Any) -> None:
    expect_parts(answer, 4, "four pairs (year, month)")
    expect_equal(
        [_year_and_month(date) for date in answer],
        [(2022, 3), (2023, 4), (2024, 5), (2024, 6)],
        "PyTorch 1.11 is of March 2022; an arXiv number begins with year and month; YaFSDP's "
        "first commit is of 27 May 2024, its announcement of 11 June",
        wants="four pairs (year, month)",
    )


@exercise(
    "9.5",
    kind="debug",
    title="26 % faster",
    hints=("theory.compute.budget has both functions.", "Throughput is 1 / time."),
)
def _faster(answer: Any) -> None:
    saved = budget.saved_fraction(8.87, 6.97)
    gain = budget.throughput_gain(8.87, 6.97)
    expect_equal(
        answer,
        [saved, gain, 100 * (1 + gain)],
        "saved = (before - after) / before; throughput = before / after - 1",
        wants="two fractions and tokens per second",
        rel=2e-3,
    )


@exercise(
    "9.6",
    kind="debug",
    title="5 GB and a million",
    hints=("bytes · tokens · hidden · layers.", "150 · 730 hours a month."),
)
def _million(answer: Any) -> None:
    recipe, two = Recipe(recompute="full"), Layout(micro_batch=2)
    layer = activations.layer_activation_bytes(
        Job(MODELS["llama2-70b"], recipe, two, sequence=4096)
    )
    hours = 150 * 730
    expect_equal(
        answer,
        [80 * layer / GB, 0.5e6 / hours, 1.5e6 / hours, budget.cost(hours, 2)],
        "2 · 8192 · 8192 · 80 bytes; dollars / (150 · 730 hours)",
        wants="GB, two prices of an hour and dollars",
        rel=5e-3,
    )


@exercise(
    "9.7",
    kind="debug",
    title="GPT-2 Large and XL",
    hints=(
        "A layer: 12 h² + 13 h. Then (vocabulary + context) · h and a norm of 2 h.",
        "fp32 AdamW 16 bytes, momentum 12.",
    ),
)
def _gpt2(answer: Any) -> None:
    expect_parts(answer, 4, "a number of parameters and three sizes in GB")
    large = MODELS["gpt2-774m"].parameters().total
    expect_number(answer[0], large, "762 million is the paper's, the released model is larger")
    count = _XL.parameters().total
    momentum = Recipe("fp32", "fp32", "momentum", master_copy=False)
    bills = (
        (_FP32, Layout(), "4 + 4 + 8 bytes per parameter"),
        (_FP32, Layout(dp=2, zero_stage=3), "each of two cards holds half"),
        (momentum, Layout(), "momentum keeps one number: 4 + 4 + 4 bytes; this would fit"),
    )
    for given, (recipe, layout, because) in zip(answer[1:], bills, strict=True):
        size = model_states(count, recipe, layout).model_states_bytes / GB
        expect_number(given, size, because, rel=2e-3, unit="GB")


@exercise(
    "9.8",
    kind="predict",
    title="the optimizer that was too early",
    hints=("An optimizer skips parameters without gradients.", "Half of 9152 on each rank."),
)
def _early(answer: Any) -> None:
    expect_equal(
        answer,
        [0, 9152, 28, 4576],
        "too early: whole parameters that get no gradient; after it: shards, half of them",
        wants="four whole numbers",
    )


_TWO = "in_two_units(units)"


@exercise(
    "9.9",
    kind="implement",
    title="shared weights",
    hints=(
        "For each tensor, collect the units in which it lies.",
        "A set of units, not names.",
    ),
)
def _two_units(function: Any) -> None:
    tied = {"embedding": {"embedding.weight": 1}, "head": {"norm": 2, "head.weight": 1}}
    cases = [
        ((tied,), ["embedding.weight", "head.weight"], "tensor 1 is in both units"),
        (({"root": {"embedding.weight": 1, "head.weight": 1}},), [], "two names, but one unit"),
        (({"a": {"x": 1}, "b": {"y": 2}},), [], "nothing is shared"),
        (
            ({"a": {"z": 1, "x": 3}, "b": {"y": 1}, "c": {"b": 3, "w": 4}},),
            ["b", "x", "y", "z"],
            "tensors 1 and 3 are shared; names are sorted",
        ),
    ]
    expect_calls(function, cases, signature=_TWO)


@exercise(
    "9.10",
    kind="predict",
    title="the peak",
    hints=("k layers and the root, 2 bytes each.", "YaFSDP has no unit that stays whole."),
)
def _peak(answer: Any) -> None:
    expect_parts(answer, 4, "four sizes in GB")
    shape, yafsdp = MODELS["llama2-70b"], Recipe(gathering="yafsdp")
    steps = (
        (gather_timeline(shape, Recipe(), 64), "two layers and the root"),
        (gather_timeline(shape, Recipe(), 64, prefetch=False), "one layer and the root"),
        (
            gather_timeline(shape, Recipe(), 64, reshard=False),
            "all layers and the root: the whole model",
        ),
        (gather_timeline(shape, yafsdp, 64), "two buffers of the largest unit, a layer; no root"),
    )
    for given, (step, because) in zip(answer, steps, strict=True):
        expect_number(given, step.peak_weights_bytes / GB, because, rel=5e-3, unit="GB")


BUILDS = (fsdp.FSDP,)

QUIZ = (
    Question(
        "FULL_SHARD on 8 ranks. With how many of a layer's weights does a rank multiply?",
        ("an eighth", "all", "it depends on the strategy"),
        answer=1,
        why="It gathers the whole layer. Ranks differ in the data and in what they store.",
    ),
    Question(
        "A model has 30 layers. How many all-gathers has a step with resharding?",
        ("61", "30", "90"),
        answer=0,
        why="Each layer twice, the root once: 2 · 30 + 1.",
    ),
    Question(
        "You double the ranks. What does not shrink?",
        ("the optimizer states of a rank", "the shards", "the whole layers at the peak"),
        answer=2,
        why="A whole layer is a whole layer, on 8 ranks as on 8000.",
    ),
    Question(
        "Which order is right?",
        ("optimizer, fully_shard, fill", "meta, fully_shard, fill, optimizer", "fill, meta, cut"),
        answer=1,
        why="An optimizer that is built first holds parameters that never get a gradient.",
    ),
    Question(
        "A step takes 7.5 s instead of 10 s. Which sentence is right?",
        ("33 % more throughput", "25 % more throughput", "33 % less time"),
        answer=0,
        why="A quarter of the time is saved, and 10 / 7.5 - 1 is a third more throughput.",
    ),
)
