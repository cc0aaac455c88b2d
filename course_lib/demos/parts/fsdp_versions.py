"""The versions that the demos fsdp and yafsdp train: our own two, and torch's `fully_shard`."""

import itertools
from collections.abc import Iterable, Mapping
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from course_lib import launch
from course_lib.demos.parts.training import Batch, Training, mean_loss
from course_lib.scratch.fsdp.clipping import clip_shards
from course_lib.scratch.fsdp.deferred_init import defer
from course_lib.scratch.fsdp.mini import FSDP
from course_lib.scratch.fsdp.yafsdp import YaFSDP
from course_lib.scratch.gpt import GPT
from course_lib.scratch.ledger import tensor_bytes

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Settings(Protocol):
    """The options that both demos have."""

    precision: str
    reshard: bool
    prefetch: bool
    clip: float
    meta: bool

    def training(self) -> Training:
        """What is trained."""


def check_batch(batch: int, ranks: int) -> None:
    """Raise ValueError if a rank would have no sample."""
    if batch < ranks:
        raise ValueError(
            f"batch {batch} leaves some of {ranks} ranks without a sample: take at least {ranks}"
        )


class Sharded:
    """What the versions share: their rows of the batch, clipping, and bytes of the shards."""

    name: str
    model: nn.Module

    def __init__(self, options: Settings, rank: launch.Rank) -> None:
        self.options, self.rank = options, rank
        check_batch(options.training().batch, rank.world)

    def train(self, shards: Iterable[nn.Parameter]) -> None:
        """Build the optimizer, from what the sharded model trains."""
        self.shards = list(shards)
        self.optimizer = self.options.training().optimizer(self.shards)

    def backward(self, batch: Batch) -> Tensor:
        rows = [part.tensor_split(self.rank.world)[self.rank.rank] for part in batch]
        share = mean_loss(self.model, rows) * (len(rows[0]) / len(batch[0]))
        (share * self.rank.world).backward()  # gradients become the mean over ranks
        return share

    def update(self) -> None:
        if self.options.clip:
            self.clip(self.options.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def clip(self, max_norm: float) -> Tensor:
        """Clip by the norm of the whole gradient."""
        return clip_shards(self.shards, max_norm)

    def stored(self) -> dict[str, int]:
        states = [
            value
            for state in self.optimizer.state.values()
            for name, value in state.items()
            if name != "step"
        ]
        return {
            "weights": tensor_bytes(map(_local, self.shards)),
            "gradients": tensor_bytes(_local(p.grad) for p in self.shards),
            "optimizer": tensor_bytes(map(_local, states)),
        }


class MiniFSDP(Sharded):
    """scratch/fsdp/mini.py."""

    name = "mini-FSDP"

    def __init__(self, options: Settings, rank: launch.Rank) -> None:
        super().__init__(options, rank)
        self.model, weights = first_model(options, rank)
        self.fsdp = FSDP(
            self.model,
            self.model.blocks,
            device=rank.device,
            reshard=options.reshard,
            prefetch=options.prefetch,
            dtype=DTYPES[options.precision],
            weights=weights,
        )
        self.train(self.fsdp.shards)

    def gradients(self) -> Mapping[str, Tensor]:
        return self.fsdp.gathered(gradients=True)


class Ya(Sharded):
    """scratch/fsdp/yafsdp.py."""

    name = "YaFSDP"

    def __init__(self, options: Settings, rank: launch.Rank) -> None:
        super().__init__(options, rank)
        self.model, weights = first_model(options, rank)
        model = self.model
        self.yafsdp = YaFSDP(
            model,
            [model.embedding, model.positions, *model.blocks, model.norm, model.head],
            device=rank.device,
            dtype=DTYPES[options.precision],
            weights=weights,
        )
        self.train(self.yafsdp.shards)

    def gradients(self) -> Mapping[str, Tensor]:
        return self.yafsdp.gathered(gradients=True)

    def stored(self) -> dict[str, int]:
        gradients = self.yafsdp.gradients.pair
        wide = [] if self.yafsdp.wide is None else [self.yafsdp.wide]
        return super().stored() | {
            "weight buffers": tensor_bytes(self.yafsdp.weights.pair),
            "gradient buffers": tensor_bytes([*gradients, *wide]),
        }


class FullyShard(Sharded):
    """torch's FSDP2."""

    name = "fully_shard"

    def __init__(self, options: Settings, rank: launch.Rank) -> None:
        super().__init__(options, rank)
        self.model, weights = first_model(options, rank)
        names = {p: name for name, p in self.model.named_parameters()}
        mesh = init_device_mesh(rank.device.type, (rank.world,))
        policy = MixedPrecisionPolicy()
        if options.precision != "fp32":
            policy = MixedPrecisionPolicy(DTYPES[options.precision], torch.float32)
        for block in self.model.blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=options.reshard)
        fully_shard(self.model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
        if options.prefetch:  # torch itself fetches ahead in backward only
            for block, following in itertools.pairwise(self.model.blocks):
                block.set_modules_to_forward_prefetch([following])
        if weights:
            self._fill(names, weights)
        self.train(self.model.parameters())

    def _fill(self, names: dict[Tensor, str], weights: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Cut whole weights as `fully_shard` has cut the model: along the first dimension."""
        self.model.to_empty(device=self.rank.device)
        shards = dict(self.model.named_parameters())
        for parameter, value in weights:
            if parameter in names:
                rows = -(-len(value) // self.rank.world)
                own = value[self.rank.rank * rows :][:rows]
                shards[names[parameter]].to_local().data.copy_(own)

    def gradients(self) -> Mapping[str, Tensor]:
        return {name: p.grad.full_tensor() for name, p in self.model.named_parameters()}

    def clip(self, max_norm: float) -> Tensor:
        return nn.utils.clip_grad_norm_(self.shards, max_norm).full_tensor()


class Whole(Sharded):
    """Not sharded, and gradients not exchanged: what the model itself needs on this rank's rows."""

    name = "not sharded"

    def __init__(self, options: Settings, rank: launch.Rank) -> None:
        super().__init__(options, rank)
        self.model = options.training().build(rank.device)
        self.train(self.model.parameters())


def first_model(
    options: Settings, rank: launch.Rank
) -> tuple[GPT, Iterable[tuple[Tensor, Tensor]] | None]:
    """The model with its first weights; or on meta, and its weights one at a time."""
    training = options.training()
    if not options.meta:
        return training.build(rank.device), None
    deferred = defer(lambda: training.build("meta"))
    return deferred.model, deferred.replay()


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
