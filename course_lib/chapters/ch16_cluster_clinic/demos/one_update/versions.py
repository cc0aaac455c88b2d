"""The model of a technique, and one forward and backward pass of it on this rank."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from course_lib import launch
from course_lib.demos.shared.batch import Batch, own_rows, rows_of
from course_lib.demos.tp.versions import own_region
from course_lib.scratch.gpt import GPT
from course_lib.scratch.tensor import SequenceParallel, TensorParallel, sum_copied_gradients
from course_lib.scratch.vocabulary import cut_gpt, vocab_parallel_cross_entropy


@dataclass
class Version:
    """A model, what makes its loss, and what is exchanged after the backward pass.

    A fault replaces one of them. `whole` makes the uncut model once more.
    """

    model: nn.Module
    whole: Callable[[], GPT]
    loss: Callable[["Version", Batch], Tensor]
    exchange: Callable[[], None]
    region: TensorParallel | None = None


def nothing() -> None:
    """No exchange: the backward pass has made it, or there is none."""


def one(build: Callable[[], GPT], _rank: launch.Rank, _parts: str) -> Version:
    """One process; several would all do the same."""
    return Version(build(), build, mean_loss, nothing)


def ddp(build: Callable[[], GPT], _rank: launch.Rank, _parts: str) -> Version:
    """DistributedDataParallel."""
    return Version(DistributedDataParallel(build()), build, rows_loss, nothing)


def fsdp(build: Callable[[], GPT], rank: launch.Rank, _parts: str) -> Version:
    """`fully_shard`, a unit for each layer."""
    model = build()
    mesh = init_device_mesh(rank.device.type, (rank.world,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return Version(model, build, rows_loss, nothing)


def tp(build: Callable[[], GPT], _rank: launch.Rank, parts: str) -> Version:
    """Tensor parallelism from scratch."""
    region = own_region(parts, sequence_parallel=False)
    return Version(cut_gpt(build(), region), build, words_loss, nothing, region)


def sp(build: Callable[[], GPT], _rank: launch.Rank, parts: str) -> Version:
    """Tensor parallelism from scratch, with norms and residuals cut along the sequence."""
    region = own_region(parts, sequence_parallel=True)
    assert isinstance(region, SequenceParallel)
    model = cut_gpt(build(), region)
    return Version(model, build, words_loss, lambda: sum_copied_gradients(model, region), region)


def tp_ddp(build: Callable[[], GPT], rank: launch.Rank, _parts: str) -> Version:
    """Pairs of neighbours share each matrix; the pairs have their own rows."""
    if rank.world % 2:
        raise ValueError(f"technique tp_ddp needs pairs, and there are {rank.world} ranks: take 4")
    mesh = init_device_mesh(rank.device.type, (rank.world // 2, 2), mesh_dim_names=("dp", "tp"))
    region = TensorParallel(mesh.get_group("tp"))
    model, pairs = cut_gpt(build(), region), mesh["dp"]

    def loss(version: Version, batch: Batch) -> Tensor:
        return words_loss(version, rows_of(batch, pairs.get_local_rank(), pairs.size()))

    def exchange() -> None:
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad, group=pairs.get_group())
                parameter.grad /= pairs.size()

    return Version(model, build, loss, exchange, region)


TECHNIQUES = {"one": one, "ddp": ddp, "fsdp": fsdp, "tp": tp, "sp": sp, "tp_ddp": tp_ddp}


def mean_loss(version: Version, batch: Batch) -> Tensor:
    """Of the whole batch. The loss is computed in fp32, as everywhere, or in fp64."""
    inputs, labels = batch
    logits = _at_least_fp32(version.model(inputs))
    return cross_entropy(logits.flatten(0, 1), labels.flatten())


def rows_loss(version: Version, batch: Batch) -> Tensor:
    """Of this rank's rows."""
    return mean_loss(version, own_rows(batch, launch.init()))


def words_loss(version: Version, batch: Batch) -> Tensor:
    """Of the whole batch, from logits of which each rank has its own words."""
    inputs, labels = batch
    assert version.region is not None
    logits = _at_least_fp32(version.model(inputs))
    return vocab_parallel_cross_entropy(logits, labels, version.region).mean()


def _at_least_fp32(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
