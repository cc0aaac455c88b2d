"""ZeRO's four stages compared: memory of one GPU, bytes sent, and bytes between GPU and host."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

from course_lib.checked import Count, Positive, check_public
from course_lib.theory.inputs import Layout, Link, Recipe, TransformerShape
from course_lib.theory.inputs.hardware import PCIE4
from course_lib.theory.inputs.layout import ZeroStage
from course_lib.theory.memory.states import local_parameters, model_states
from course_lib.theory.memory.unit_life import UnitCosts
from course_lib.theory.network import collectives
from course_lib.theory.network.collectives import seconds
from course_lib.validation import whole

STAGES = (0, 1, 2, 3)


@dataclass(frozen=True)
class Shard:
    """Elements start … stop-1 owned by one rank, and the number of zeros that pad the shard."""

    start: int
    stop: int
    zeros: int


def shard(parameters: Count, ranks: Count, rank: int) -> Shard:
    """The shard of `rank` for a vector of `parameters` elements split over `ranks`.

    Each has s = ceil(P / n) elements; zero padding after the last parameter makes n·s.
    """
    whole("rank", rank, least=0, most=ranks - 1)
    size = -(-parameters // ranks)
    start, stop = min(rank * size, parameters), min((rank + 1) * size, parameters)
    return Shard(start, stop, size - (stop - start))


@dataclass(frozen=True)
class StageBill:
    """One ZeRO stage: bytes on one GPU and on its host, and bytes moved in one update.

    `optimizer_bytes` includes the fp32 master copy, like ZeRO's K. `sent_bytes`: from one GPU to
    the other ranks. `bus_bytes`: between this GPU and the host, both directions added.
    """

    zero_stage: int
    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    host_bytes: int
    sent_bytes: float
    bus_bytes: int

    @property
    def total_bytes(self) -> int:
        """Bytes of all model states on the GPU."""
        return self.weights_bytes + self.gradients_bytes + self.optimizer_bytes

    def bus_seconds(self, link: Link = PCIE4) -> float:
        """Seconds to move gradients to the host, then weights back: bytes / bandwidth.

        The GPU does not share `link`; latency is left out.
        """
        return self.bus_bytes / link.bytes_per_s


@dataclass(frozen=True)
class ZeroStages:
    """ZeRO stages 0 to 3 for the same model, ranks and recipe."""

    parameters: int
    ranks: int
    recipe: Recipe
    bills: tuple[StageBill, ...]


def zero_stages(parameters: int, ranks: int, recipe: Recipe) -> ZeroStages:
    """Memory and traffic of each ZeRO stage, for one micro-batch per update.

    With recipe.offload "optimizer" gradients go to the host and weights come back, for the
    parameters that this rank updates. Source: ZeRO, arXiv:1910.02054, sections 5 and 7;
    ZeRO-Offload, arXiv:2101.06840, section 4.
    """
    bills = tuple(_bill(parameters, ranks, recipe, stage) for stage in STAGES)
    return ZeroStages(parameters, ranks, recipe, bills)


def sent_bytes(
    parameters: Count, zero_stage: ZeroStage, ranks: int, recipe: Recipe, *, accumulation: Count = 1
) -> float:
    """Bytes that one GPU sends in an update of `accumulation` micro-batches.

    G and W are the bytes of all gradients and all weights, r = (n-1)/n, m the micro-batches.
    Stage 0: 2rG, once. Stage 1: r(G + W), once. Stage 2: r(mG + W), since whole gradients are not
    kept. Stage 3: r·m(G + 2W). With G = W and m = 1: 2, 2, 2 and 3 times rW.
    Source: ZeRO, arXiv:1910.02054, section 7.
    """
    gradients, weights = parameters * recipe.gradient_bytes, parameters * recipe.weight_bytes
    if zero_stage == 0:
        return collectives.sent_bytes("all-reduce", gradients, ranks)
    scatters = accumulation if zero_stage >= 2 else 1
    gathers = 2 * accumulation if zero_stage == 3 else 1
    scattered = collectives.sent_bytes("reduce-scatter", gradients, ranks)
    return scatters * scattered + gathers * collectives.sent_bytes("all-gather", weights, ranks)


def _bill(parameters: int, ranks: int, recipe: Recipe, stage: int) -> StageBill:
    layout = Layout(dp=ranks, zero_stage=stage)
    kept = model_states(parameters, recipe, layout)
    everything = model_states(parameters, replace(recipe, offload="none"), layout)
    offloaded = recipe.offload == "optimizer"
    part = -(-parameters // ranks) if stage else parameters
    return StageBill(
        zero_stage=stage,
        weights_bytes=kept.parameters_bytes,
        gradients_bytes=kept.consumers["gradients"],
        optimizer_bytes=kept.consumers["optimizer"],
        host_bytes=everything.total_bytes - kept.total_bytes,
        sent_bytes=sent_bytes(parameters, stage, ranks, recipe),
        bus_bytes=part * (recipe.gradient_bytes + recipe.weight_bytes) if offloaded else 0,
    )


# --- Costs of one FSDP unit: seconds of its passes and messages, and its unsharded bytes ---


def unit_costs(
    shape: TransformerShape,
    recipe: Recipe,
    ranks: Annotated[int, partial(whole, least=2)],
    link: Link,
    *,
    tokens: Count,
    flop_per_s: Positive,
) -> tuple[UnitCosts, ...]:
    """Costs of the root, then of each layer, for `tokens` on each GPU that reaches `flop_per_s`.

    A layer's forward pass takes 2 FLOP per weight and token, its backward pass 4; attention scores
    are left out. The root computes the head, 6 FLOP, between the two passes; the embedding is free.
    Messages are ring collectives on `link`: gathers in compute precision, reductions in gradient
    precision. Raises ValueError for one rank and for a mixture of experts.
    """
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


check_public(globals())
