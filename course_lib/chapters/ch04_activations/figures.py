"""Figures of chapter 4, in addition to those of the library."""

from collections.abc import Mapping, Sequence

from course_lib.figures import *  # noqa: F403
from course_lib.figures.engines.bars import bars
from course_lib.figures.engines.lanes import Lanes
from course_lib.figures.engines.page import page
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing, counted
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.memory.activations import ActivationTerms
from course_lib.trace import Event

# --- Activations that one layer keeps for the backward pass, term by term -------------------------

# Terms that only some models have: they are left out, not drawn as "not kept".
_OF_SOME_MODELS = ("latents", "routed experts", "shared experts", "router", "unused")


def activation_terms(terms: ActivationTerms, layers: int, title: str = "") -> Drawing:
    """Draw a bar for each term of a layer, and below them the sum over `layers` layers."""
    leaves = terms.leaves().items()
    sizes = {name: size for name, size in leaves if size or name not in _OF_SOME_MODELS}
    whole = terms.total_bytes
    labels = {
        name: f"{format_bytes(size)} ({size / max(whole, 1):.0%})" if size else "not kept"
        for name, size in sizes.items()
    }
    all_layers = f"× {layers} layers = {format_bytes(layers * whole)}"
    note = f"One layer, one micro-batch: {format_bytes(whole)}; {all_layers}"
    return bars(sizes, labels, title, style.ACTIVATIONS, note=note)


# --- Layers recomputed before the backward pass of each layer -------------------------------------


def recomputed_layers(runs: Mapping[str, Sequence[range]]) -> Drawing:
    """Draw each strategy's backward passes, the last layer's first.

    `runs[strategy][i]` are the layers that are recomputed before the backward of layer i.
    """
    return page("", *[_chart(strategy, recomputed) for strategy, recomputed in runs.items()])


def _chart(name: str, again: Sequence[range]) -> Lanes:
    rows = {
        f"before {row + 1}'s backward": [
            Event(layer, 0, "forward", end=layer + 1, label=str(layer + 1)) for layer in again[row]
        ]
        for row in reversed(range(len(again)))
    }
    total = sum(map(len, again))
    said = f"{name}: {counted(total, 'layer')} run again, {total / len(again):g} × the forward pass"
    return Lanes(rows, name=said, over=(0, len(again)), high=11.5, foot=False, sentence=said)
