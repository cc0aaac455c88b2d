"""Fully sharded data parallelism: mini-FSDP beside `fully_shard` (FSDP2).

Both train the same GPT as one process: equal losses and gradients, as many collectives and bytes as
the theory says, and 1/n of weights, gradients and optimizer states on each rank.
Run it with `course demo fsdp --ranks 2`, or under torchrun.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from course_lib import launch, mine
from course_lib.demos.shared.comparison import GRADIENT_TOLERANCE, LOSS_TOLERANCE, Comparison
from course_lib.demos.shared.options import BatchOptions, option, whose_parts, with_yours
from course_lib.demos.shared.prediction import calls, fsdp, without_memory
from course_lib.demos.shared.result import Result
from course_lib.demos.shared.trainee import OnOwnRows
from course_lib.demos.shared.training import gradients_of
from course_lib.measure.peak import tensor_bytes
from course_lib.scratch.flat_parameter import clip_shards
from course_lib.scratch.fsdp import Hooked, defer
from course_lib.scratch.gpt import GPT, ledger
from course_lib.scratch.yafsdp import YaFSDP
from course_lib.trace import Trace

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
# Relative tolerances |a - b| / |b| of losses and of the first gradient. bf16 has 8 significant
# bits, so rounding errors are 0.4 %, and it is compared with fp32. Observed: 0.6 % and 2 %.
TOLERANCES = {"fp32": (LOSS_TOLERANCE, GRADIENT_TOLERANCE), "bf16": (0.03, 0.06)}


@dataclass(frozen=True)
class Options(BatchOptions):
    """The options of this demo."""

    precision: str = option(
        "fp32", "fp32 or bf16, in which units are gathered and computed", among=DTYPES
    )
    reshard: bool = option(True, "free a layer after its forward pass and gather it again")
    prefetch: bool = option(True, "fetch the next layer while one computes")
    clip: float = option(0.0, "limit of the gradient's norm; 0 for none", least=0)
    meta: bool = option(False, "build the model without memory and fill only the shards")
    parts: str = whose_parts()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.parts == "mine" and self.meta:
            raise ValueError("meta fills the shards of the course's own units: leave parts course")


class Sharded(OnOwnRows):
    """Base class of the versions: clipping, and bytes of the shards."""

    def __init__(self, options: Options, model: GPT, shards: Iterable[nn.Parameter]) -> None:
        self.max_norm, self.shards = options.clip, list(shards)
        super().__init__(model, options.training().optimizer(self.shards), model)

    def update(self) -> None:
        """Clip if requested, then step the optimizer."""
        if self.max_norm:
            self.clip()
        super().update()

    def clip(self) -> None:
        """Clip by the norm of the whole gradient."""
        clip_shards(self.shards, self.max_norm)

    def stored(self) -> dict[str, int]:
        """Bytes of this rank's shards, their gradients and their states."""
        sizes = ledger(nn.ParameterList(self.shards), self.optimizer)
        return {name: sizes[name] for name in ("weights", "gradients", "optimizer")}


Kind = Callable[[Options, launch.Rank], Sharded]  # a class below


class Scratch(Sharded):
    """Base class of both versions from scratch, which gather gradients through `fsdp`."""

    fsdp: Hooked | YaFSDP

    def gradients(self) -> Mapping[str, Tensor]:
        """The full gradients, gathered from all ranks."""
        return self.fsdp.gathered(gradients=True)


class MiniFSDP(Scratch):
    """scratch.fsdp, or the learner's if `parts` is "mine" and it is built."""

    def __init__(self, options: Options, rank: launch.Rank) -> None:
        self.name = f"mini-FSDP{with_yours(options.parts, 'FSDPUnit', 'FSDP')}"
        model, weights = first_model(options, rank)
        self.fsdp: Hooked = mine.get("FSDP", options.parts)(
            model,
            list(model.blocks),
            device=rank.device,
            reshard=options.reshard,
            prefetch=options.prefetch,
            dtype=DTYPES[options.precision],
            weights=weights,
        )
        super().__init__(options, model, self.fsdp.shards)


class Ya(Scratch):
    """scratch.yafsdp."""

    name = "YaFSDP"

    def __init__(self, options: Options, rank: launch.Rank) -> None:
        model, weights = first_model(options, rank)
        self.fsdp: YaFSDP = YaFSDP(
            model,
            [model.embedding, model.positions, *model.blocks, model.norm, model.head],
            device=rank.device,
            dtype=DTYPES[options.precision],
            weights=weights,
        )
        super().__init__(options, model, self.fsdp.shards)

    def stored(self) -> dict[str, int]:
        """Bytes of the shards and of the buffers."""
        gradients = self.fsdp.gradients.pair
        wide = [] if self.fsdp.wide is None else [self.fsdp.wide]
        return super().stored() | {
            "weight buffers": tensor_bytes(self.fsdp.weights.pair),
            "gradient buffers": tensor_bytes([*gradients, *wide]),
        }


class FullyShard(Sharded):
    """torch's FSDP2."""

    name = "fully_shard"

    def __init__(self, options: Options, rank: launch.Rank) -> None:
        model, weights = first_model(options, rank)
        names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
        mesh = init_device_mesh(rank.device.type, (rank.world,))
        policy = MixedPrecisionPolicy()
        if options.precision != "fp32":
            policy = MixedPrecisionPolicy(DTYPES[options.precision], torch.float32)
        for block in model.blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=options.reshard)
        fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
        if options.prefetch:  # by default torch prefetches in backward only
            blocks = [cast(FSDPModule, block) for block in model.blocks]
            for one, following in itertools.pairwise(blocks):
                one.set_modules_to_forward_prefetch([following])
        if weights:
            whole = ((names[p], value) for p, value in weights if p in names)
            _fill(model, whole, rank)
        super().__init__(options, model, model.parameters())

    def gradients(self) -> Mapping[str, Tensor]:
        """The full gradients, gathered from all ranks."""
        named = gradients_of(self.model).items()
        return {name: cast(DTensor, gradient).full_tensor() for name, gradient in named}

    def clip(self) -> None:
        """Clip by torch's own function."""
        nn.utils.clip_grad_norm_(self.shards, self.max_norm)


def _fill(model: GPT, weights: Iterable[tuple[str, Tensor]], rank: launch.Rank) -> None:
    """Fill this rank's shards, which `fully_shard` has cut along the first dimension."""
    model.to_empty(device=rank.device)
    shards = dict(model.named_parameters())
    for name, value in weights:
        rows = -(-len(value) // rank.world)
        cast(DTensor, shards[name]).to_local().data.copy_(value[rank.rank * rows :][:rows])


class Whole(Sharded):
    """No sharding and no gradient exchange: the model alone on this rank's rows."""

    name = "not sharded"

    def __init__(self, options: Options, rank: launch.Rank) -> None:
        model = options.training().build(rank.device)
        super().__init__(options, model, model.parameters())


def first_model(
    options: Options, rank: launch.Rank
) -> tuple[GPT, Iterable[tuple[Tensor, Tensor]] | None]:
    """The initialized model and None; or a meta model and an iterator over its weights."""
    training = options.training()
    if not options.meta:
        return training.build(rank.device), None
    deferred = defer(lambda: training.build("meta"))
    return deferred.model, deferred.replay()


def main(options: Options) -> Result:
    """Train both versions; compares each rank with one process and with the theory."""
    rank, training = launch.init(), options.training()
    comparison = Comparison(training, clip=options.clip)
    # Our clipping all-reduces one norm, torch's one norm per tensor.
    norms = len(list(without_memory(training).parameters()))
    kinds: tuple[tuple[Kind, int], ...] = ((MiniFSDP, 1), (FullyShard, norms))
    padding = []
    for kind, clipped in kinds:
        sharding = fsdp(
            training, rank.world, options.precision, options.reshard, by_tensor=kind is FullyShard
        )
        predicted = sharding.told()
        if options.clip and rank.world > 1:
            predicted = Trace([*predicted, *calls("all-reduce", 1, 4 * clipped)])
        comparison.follow(kind(options, rank), predicted, sharding.stored(rank.rank))
        padding.append([more for _, _, more in sharding.units().values()])
    note = (
        "padding, in parameters: {} a layer and {} in the root of mini-FSDP, {} and {} of "
        "fully_shard"
    ).format(*padding[0], *padding[1])
    return comparison.result("FSDP", notes=[note], tolerances=TOLERANCES[options.precision])
