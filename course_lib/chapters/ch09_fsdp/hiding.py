"""How many tokens a GPU must process for its computation to hide FSDP's communication."""

from dataclasses import dataclass

from course_lib.checked import checked
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.network.collectives import bus_factor
from course_lib.validation import number, whole

_FORWARD_FLOP = 2  # for each weight and token


@dataclass(frozen=True)
class HidingTokens:
    """Tokens on one GPU at which a pass takes as long as the messages that overlap with it."""

    forward: float
    backward: float


@checked
def fsdp_hiding_tokens(
    recipe: Recipe, ranks: int, *, flop_per_s: float, bytes_per_s: float
) -> HidingTokens:
    """Tokens T of a micro-batch on one GPU whose computation takes as long as the communication.

    Forward, a layer of N weights computes 2NT / F seconds while the next one is gathered in
    (n-1)/n · wN / β: T = w/2 · (n-1)/n · F/β. Backward it computes 4NT / F (6NT / F if it repeats
    its forward pass: `recompute` "full") while one layer is gathered and the gradients of another
    are reduced, (n-1)/n · (w + g)N / β. The size N cancels. w: bytes of a gathered weight, g: of a
    gradient as it is reduced, F: FLOP/s that a GPU achieves, β: bytes/s of a ring one way, as
    in `links.group_link`. Latency, the root and attention's scores are left out. For DDP, whose
    one all-reduce hides behind backward, see `bucket_timeline.hiding_tokens`. In bf16 both are
    F/β: How to Scale Your Model, jax-ml.github.io/scaling-book/training and /gpus. Raises
    ValueError for one rank, and for rates that are not positive.
    """
    whole("ranks", ranks, least=2)
    number("flop_per_s", flop_per_s, above=0)
    number("bytes_per_s", bytes_per_s, above=0)
    weight, gradient = recipe.compute_bytes, recipe.gradient_bytes
    backward_flop = (3 if recipe.recompute == "full" else 2) * _FORWARD_FLOP
    flop_per_byte = bus_factor("all-gather", ranks) * flop_per_s / bytes_per_s
    return HidingTokens(
        forward=flop_per_byte * weight / _FORWARD_FLOP,
        backward=flop_per_byte * (weight + gradient) / backward_flop,
    )
