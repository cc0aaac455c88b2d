"""Exercises and quiz of chapter 4, activations and recomputation."""

from dataclasses import replace
from typing import Any

from course_lib.chapters.ch04_activations import builds
from course_lib.checking import (
    exercise,
    expect_calls,
    expect_entries,
    expect_equal,
    expect_numbers,
)
from course_lib.theory.inputs import MODELS, Job, Layout, Recipe, TransformerShape
from course_lib.theory.memory.activations import layer_activation_bytes

_GPT3 = MODELS["gpt3-175b"]
_LLAMA = MODELS["llama2-70b"]


def _paper(recompute: str) -> Recipe:
    """The recipe of the paper on activations: all scores and dropout masks are kept."""
    return Recipe(attention="standard", dropout=True, recompute=recompute)


@exercise("4.1")
def _one_layer(answer: Any) -> None:
    sizes = [
        layer_activation_bytes(Job(_GPT3, _paper(mode), Layout(micro_batch=2), sequence=2048))
        for mode in ("none", "selective", "full")
    ]
    expect_equal(
        answer,
        sizes,
        "34 sbh and 5 a s² b; without the scores; 2 sbh for the input",
        wants="three whole numbers of bytes",
        unit="B",
    )


@exercise("4.2")
def _corrected(answer: Any) -> None:
    gelu = replace(_LLAMA, mlp="gelu", ffn=4 * _LLAMA.hidden, kv_heads=_LLAMA.heads)
    corrected = {
        "the two masks are gone, 32 are left": gelu,
        "SwiGLU keeps 4 · 3.5 · 2 = 28 in place of 16": replace(_LLAMA, kv_heads=_LLAMA.heads),
        "keys and values are 2 · 2 / 8 in place of 4": _LLAMA,
    }
    jobs = [Job(shape, layout=Layout(micro_batch=8), sequence=4096) for shape in corrected.values()]
    sizes = [_LLAMA.layers * layer_activation_bytes(job) / 1e9 for job in jobs]
    rows = zip(sizes, corrected, strict=True)
    expect_numbers(answer, "three sizes in GB", *rows, rel=5e-3, unit="GB")


@exercise("4.3")
def _forty_times(answer: Any) -> None:
    expected: dict[str, tuple[object, str]] = {}
    for plan, groups in _PLANS.items():
        repeated = sum(groups)
        because = f"{repeated} layers run once more, from {len(groups)} stored inputs"
        expected[plan] = ([80 + repeated, len(groups)], because)
    wants = "a list of two whole numbers: [forward passes, stored inputs]"
    expect_entries(answer, expected, "a dict of lists", each=wants)


# For each plan: the number of layers recomputed from each stored input.
_PLANS = {
    "each of 80 layers checkpointed": [1] * 80,
    "8 groups of 10 layers checkpointed": [10] * 8,
    "every second layer checkpointed": [1] * 40,
    "2 groups of 5 layers checkpointed, 70 layers not": [5] * 2,
}


@exercise("4.4")
def _five_gigabytes(answer: Any) -> None:
    kept, inputs = _both()
    gelu = replace(_LLAMA, mlp="gelu", ffn=4 * _LLAMA.hidden)
    explanations = {
        "4096 tokens": _both(sequence=4096),
        "each of two GPUs has 40 layers": (kept / 2, inputs / 2),
        "each of two GPUs has half of the tokens": _both(layout=Layout(cp=2)),
        "each of two GPUs has half of every matrix, without sequence parallelism": _both(
            layout=Layout(tp=2)
        ),
        "an MLP with GELU, 4h wide": _both(gelu),
        "segments of two layers": (kept, inputs / 2),
    }
    expected = {}
    for name, (kept, inputs) in explanations.items():
        fits = abs(kept / 110e9 - 1) < 0.1 and abs(inputs / 5e9 - 1) < 0.1
        expected[name] = (fits, f"that makes {kept / 1e9:.0f} and {inputs / 1e9:.1f} GB")
    expect_entries(answer, expected, "a dict of True and False", each="True or False")


def _both(
    shape: TransformerShape = _LLAMA, sequence: int = 8192, layout: Layout | None = None
) -> tuple[float, float]:
    """Bytes that 80 layers keep without checkpointing, and with it, when only inputs are kept."""
    recipes = (Recipe(recompute=mode) for mode in ("none", "full"))
    jobs = [Job(shape, recipe, layout or Layout(), sequence=sequence) for recipe in recipes]
    kept, inputs = (80 * layer_activation_bytes(job) for job in jobs)
    return kept, inputs


@exercise("4.5")
def _formula(function: Any) -> None:
    sbh, pairs = 64 * 2 * 32, 4 * 64**2 * 2
    cases = [
        ((64, 2, 32, 4, False, True), 34 * sbh + 5 * pairs, "34 sbh + 5 a s² b"),
        ((64, 2, 32, 4, True, True), 34 * sbh, "flash attention keeps no scores"),
        ((64, 2, 32, 4, True, False), 32 * sbh, "two masks of one byte are gone"),
        ((64, 2, 32, 4, False, False), 32 * sbh + 2 * pairs, "only softmax's result is left"),
        ((128, 1, 32, 8, False, True), 34 * 128 * 32 + 5 * 8 * 128**2, "scores grow with s²"),
    ]
    signature = "layer_bytes(sequence, batch, hidden, heads, flash, dropout)"
    expect_calls(function, cases, signature=signature)


@exercise("4.7")
def _segments(function: Any) -> None:
    calls = {
        (100, 1, 1): "equal sizes: the square root of 100",
        (80, 134_217_728, 2_000_000_000): "a layer is much larger than its input",
        (16, 1, 16): "√(L · i / a) = 1",
        (16, 4, 1): "large inputs want long segments",
        (7, 1, 1): "7 layers: ⌈7/k⌉ + k",
    }
    cases = []
    for (layers, stored, alive), because in calls.items():
        peaks = [-(-layers // k) * stored + k * alive for k in range(1, layers + 1)]
        cases.append(((layers, stored, alive), 1 + peaks.index(min(peaks)), because))
    expect_calls(function, cases, signature="best_segment(layers, input_bytes, layer_bytes)")


# micro-batch; GB of the model states, of one sequence's activations, of its scores, of the inputs
_RUNS = {
    "A": (8, 30, 9.0, 0, 0.5),
    "B": (1, 20, 90, 60, 1.5),
    "C": (1, 30, 60, 0, 3.0),
    "D": (2, 72, 4.0, 0, 0.2),
    "E": (8, 20, 6.6, 0, 0.4),
    "F": (4, 10, 20, 8.0, 1.0),
}


@exercise("4.8")
def _measure_first(answer: Any) -> None:
    expected: dict[str, tuple[object, str]] = {}
    for run, (samples, states, kept, scores, inputs) in _RUNS.items():
        tensors = {
            "nothing": states + samples * kept,
            "flash attention": states + samples * (kept - scores),
            "micro-batch 1": states + kept,
            "recompute": states + samples * (inputs + kept / 80),
            "more GPUs": 0,
        }
        first = next(name for name, size in tensors.items() if size <= 69)
        sizes = ", ".join(f"{size:.0f} GB with {name}" for name, size in tensors.items() if size)
        expected[run] = (first, sizes)
    wants = "one of " + ", ".join(map(repr, tensors))
    expect_entries(answer, expected, "a dict with a measure for each run", each=wants)


BUILDS = (builds.CHECKPOINTING,)
