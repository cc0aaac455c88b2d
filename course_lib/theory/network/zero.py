"""ZeRO's four stages side by side: what one GPU stores, what it sends, what crosses the bus."""

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
    """The elements start … stop-1 that one rank owns, and the zeros that fill its part up."""

    start: int
    stop: int
    zeros: int


def shard(parameters: Count, ranks: Count, rank: int) -> Shard:
    """Rank `rank`'s part of a vector of `parameters` elements cut over `ranks`.

    s = ceil(P / n) elements a rank; zeros behind the last parameter make n·s.
    """
    whole("rank", rank, least=0, most=ranks - 1)
    size = -(-parameters // ranks)
    start, stop = min(rank * size, parameters), min((rank + 1) * size, parameters)
    return Shard(start, stop, size - (stop - start))


@dataclass(frozen=True)
class StageBill:
    """One stage: bytes on one GPU, on the host beside it, and what moves in one update.

    `optimizer_bytes` has the fp32 master copy in it, as ZeRO's K has. `sent_bytes`: by one GPU to
    the other ranks. `bus_bytes`: between this GPU and the host, both ways added.
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
        """Model states on the GPU."""
        return self.weights_bytes + self.gradients_bytes + self.optimizer_bytes

    def bus_seconds(self, link: Link = PCIE4) -> float:
        """Time of gradients to the host and weights back, one after the other: bytes / bandwidth.

        One GPU has `link` for itself; the latency is left out.
        """
        return self.bus_bytes / link.bytes_per_s


@dataclass(frozen=True)
class ZeroStages:
    """Stages 0 to 3 of the same model on the same ranks."""

    parameters: int
    ranks: int
    recipe: Recipe
    bills: tuple[StageBill, ...]


def zero_stages(parameters: int, ranks: int, recipe: Recipe) -> ZeroStages:
    """The bill of each stage, for one micro-batch an update: `states.model_states`, `sent_bytes`.

    Offloaded (recipe.offload "optimizer"), gradients go to the host and weights come back, of the
    part that this rank updates. Source: ZeRO, arXiv:1910.02054, sections 5 and 7; ZeRO-Offload,
    arXiv:2101.06840, section 4.
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


# --- What a unit of FSDP takes alone: seconds of its passes and messages, bytes while whole ---


def unit_costs(
    shape: TransformerShape,
    recipe: Recipe,
    ranks: Annotated[int, partial(whole, least=2)],
    link: Link,
    *,
    tokens: Count,
    flop_per_s: Positive,
) -> tuple[UnitCosts, ...]:
    """The root, then each layer, for `tokens` on each of `ranks` GPUs that reach `flop_per_s`.

    A layer's forward pass is 2 FLOP for each weight and token, its backward pass 4; attention's
    scores are left out. The root computes its head, 6 FLOP, at the turn; the embedding is free.
    Messages are rings on `link`, gathered in the precision of compute and reduced in that of
    gradients. Raises ValueError for one rank and for a mixture of experts.
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
