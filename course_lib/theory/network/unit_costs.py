"""What a unit of FSDP takes alone: seconds of its passes and messages, bytes while whole."""

from course_lib.checked import checked
from course_lib.theory.inputs.hardware import Link
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.memory.states import local_parameters
from course_lib.theory.memory.unit_life import UnitCosts
from course_lib.theory.network.collectives import seconds
from course_lib.validation import number, whole


@checked
def unit_costs(
    shape: TransformerShape,
    recipe: Recipe,
    ranks: int,
    link: Link,
    *,
    tokens: int,
    flop_per_s: float,
) -> tuple[UnitCosts, ...]:
    """The root, then each layer, for `tokens` on each of `ranks` GPUs that reach `flop_per_s`.

    A layer's forward pass is 2 FLOP for each weight and token, its backward pass 4; attention's
    scores are left out. The root computes its head, 6 FLOP, at the turn; the embedding is free.
    Messages are rings on `link`, gathered in the precision of compute and reduced in that of
    gradients. Raises ValueError for one rank and for a mixture of experts.
    """
    whole("ranks", ranks, least=2)
    whole("tokens", tokens)
    number("flop_per_s", flop_per_s, above=0)
    if shape.experts:
        raise ValueError(
            f"experts {shape.experts}: the tokens of a matrix depend on the router: "
            "take a dense model"
        )
    local = local_parameters(shape)

    def costs(parameters: int, forward_s: float, backward_s: float, waiting: int = 0) -> UnitCosts:
        gathered = parameters * recipe.compute_bytes
        reduced = parameters * recipe.gradient_bytes
        return UnitCosts(
            forward_s,
            backward_s,
            seconds("all-gather", gathered, ranks, link),
            seconds("reduce-scatter", reduced, ranks, link),
            gathered,
            reduced,
            waiting * recipe.gradient_bytes,
        )

    forward_s = 2 * local.layer_dense * tokens / flop_per_s
    head_s = 6 * shape.hidden * shape.vocab * tokens / flop_per_s
    layer = costs(local.layer_dense, forward_s, 2 * forward_s)
    root = costs(local.ends_dense, 0.0, head_s, local.head_dense)
    return (root, *[layer] * shape.layers)
