"""Bugs of real programs, each in a few lines: the program runs, and the loss falls."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.functional import linear
from torch.nn.parallel import DistributedDataParallel

from course_lib.chapters.ch16_cluster_clinic.demos.one_update.versions import Version, nothing
from course_lib.scratch.tensor import (
    ColumnParallelLinear,
    Pair,
    RowParallelLinear,
    SequenceParallel,
    TensorParallel,
)
from course_lib.scratch.wire import all_reduce

LAYER = 1  # the layer that is broken, where it is one


class NoSum(Function):
    """f or g without its all-reduce."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor, _group: Any) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class SumBoth(Function):
    """g whose backward pass sums as well: each rank has the whole gradient already."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return all_reduce(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return all_reduce(gradient, ctx.group), None


def no_f(version: Version) -> None:
    """The MLP's f forgets its all-reduce."""
    _mlp(version, 0).region = TensorParallel(pair=Pair(f=NoSum))


def no_g(version: Version) -> None:
    """The MLP's g forgets its all-reduce."""
    _mlp(version, 2).region = TensorParallel(pair=Pair(g=NoSum))


def g_twice(version: Version) -> None:
    """The MLP's g sums in the backward pass, too."""
    _mlp(version, 2).region = TensorParallel(pair=Pair(g=SumBoth))


class BiasFirst(RowParallelLinear):
    """Adds the bias on each rank, before the sum."""

    def forward(self, x: Tensor) -> Tensor:
        return self.region.leave(linear(x, self.weight, self.bias))


def bias(version: Version) -> None:
    """The bias is added before the sum, once for each rank."""
    _mlp(version, 2).__class__ = BiasFirst


def qkv(version: Version) -> None:
    """The fused matrix of q, k and v is cut in one piece."""
    whole: Any = version.whole().blocks[LAYER]
    assert version.region is not None
    _block(version).attention.qkv = ColumnParallelLinear(whole.attention.qkv, version.region)


def weights(version: Version) -> None:
    """The last rank has drawn its part of a matrix itself."""
    if dist.get_rank() == dist.get_world_size() - 1:
        nn.init.uniform_(_mlp(version, 0).weight, -0.1, 0.1)


def scale(version: Version) -> None:
    """A matrix cut by inputs was initialised by the inputs of one rank."""
    with torch.no_grad():
        _mlp(version, 2).weight *= dist.get_world_size() ** 0.5


def eps(version: Version) -> None:
    """A norm has the epsilon of another library."""
    _block(version).norm1.eps = 1e-6


def vocabulary(version: Version) -> None:
    """The words of every rank but the first begin one too late."""
    _model(version).embedding.first += dist.get_rank() > 0


def seed(_version: Version) -> None:
    """Every rank draws its own random numbers for dropout."""
    torch.manual_seed(1000 + dist.get_rank())


def norms(version: Version) -> None:
    """Gradients of norms and biases, which each rank has of its own tokens, are not summed."""
    version.exchange = nothing


def places(version: Version) -> None:
    """Each rank counts its tokens from 0."""

    class FromZero(SequenceParallel):
        def own_tokens(self, places: Tensor) -> Tensor:
            return places.chunk(self.ranks)[0]

    _model(version).positions.region = FromZero()


def no_average(version: Version) -> None:
    """DDP's exchange is skipped, as under a `no_sync()` that was left on."""
    assert isinstance(version.model, DistributedDataParallel)
    version.model.require_backward_grad_sync = False


def summed(version: Version) -> None:
    """Gradients are summed over the ranks, not averaged."""

    def multiply() -> None:
        for parameter in version.model.parameters():
            if parameter.grad is not None:
                parameter.grad *= dist.get_world_size()

    version.exchange = multiply


def _model(version: Version) -> Any:
    return version.model


def _block(version: Version) -> Any:
    return _model(version).blocks[LAYER]


def _mlp(version: Version, place: int) -> Any:
    return _block(version).mlp[place]


class Fault(NamedTuple):
    """What is done to a right version, of which techniques; the first tensor that differs then."""

    apply: Callable[[Version], None]
    techniques: tuple[str, ...]
    kind: str
    name: str


_TP = ("tp",)
FAULTS = {
    "no_f": Fault(no_f, _TP, "gradient of the output", "blocks.1.norm2"),
    "no_g": Fault(no_g, _TP, "output", "blocks.1.mlp.2"),
    "g_twice": Fault(g_twice, _TP, "gradient of the output", "blocks.1.mlp.1"),
    "bias": Fault(bias, _TP, "output", "blocks.1.mlp.2"),
    "qkv": Fault(qkv, _TP, "output", "blocks.1.attention.out"),
    "weights": Fault(weights, ("tp", "sp"), "weight", "blocks.1.mlp.0.weight"),
    "scale": Fault(scale, ("tp", "sp"), "weight", "blocks.1.mlp.2.weight"),
    "vocabulary": Fault(vocabulary, ("tp", "sp"), "output", "embedding"),
    "eps": Fault(eps, ("tp", "sp"), "output", "blocks.1.norm1"),
    "seed": Fault(seed, _TP, "output", "blocks.0.mlp.3"),
    "norms": Fault(norms, ("sp",), "gradient of the weight", "norm.weight"),
    "places": Fault(places, ("sp",), "output", "positions"),
    "no_average": Fault(no_average, ("ddp",), "gradient of the weight", "norm.weight"),
    "summed": Fault(summed, ("ddp",), "gradient of the weight", "norm.weight"),
}
