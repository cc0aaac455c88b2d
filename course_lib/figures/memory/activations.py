"""What one layer keeps for the backward pass, term by term."""

from course_lib.figures.engines.bars import bars
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.memory.activations import ActivationTerms

# Terms that only some models have: without them there is nothing to say about "not kept".
_OF_SOME_MODELS = ("latents", "routed experts", "shared experts", "router", "unused")


def activation_terms(
    terms: ActivationTerms, layers: int, title: str = "", unit: str = "GB"
) -> Drawing:
    """One bar for each term of a layer, and the sum over `layers` layers below them."""
    leaves = terms.leaves().items()
    sizes = {name: size for name, size in leaves if size or name not in _OF_SOME_MODELS}
    whole = terms.total_bytes
    told = {
        name: f"{format_bytes(size, unit)} ({size / max(whole, 1):.0%})" if size else "not kept"
        for name, size in sizes.items()
    }
    note = (
        f"One layer, one micro-batch: {format_bytes(whole, unit)}; × {layers} layers = "
        f"{format_bytes(layers * whole, unit)}"
    )
    return bars(sizes, told, title, style.ACTIVATIONS, note=note)
