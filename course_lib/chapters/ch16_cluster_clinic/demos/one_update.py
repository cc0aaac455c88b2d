"""One update of a small GPT, written down tensor by tensor: for `course compare`.

Run it with `course demo one_update --ranks 1 --folder one`, then with
`course demo one_update --ranks 2 --technique tp --folder two`, and ask `course compare one two`.
`--fault` breaks the second in one of the ways of real programs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy, linear
from torch.nn.parallel import DistributedDataParallel

from course_lib import launch
from course_lib.chapters.ch16_cluster_clinic import comparing
from course_lib.demos.shared.options import BatchOptions, option, whose_parts
from course_lib.demos.shared.result import Result
from course_lib.demos.shared.training import Batch, own_rows, rows_of
from course_lib.demos.tp.program import own_region
from course_lib.scratch.gpt import GPT
from course_lib.scratch.tensor import (
    ColumnParallelLinear,
    Pair,
    RowParallelLinear,
    SequenceParallel,
    TensorParallel,
    cut_gpt,
    sum_copied_gradients,
    vocab_parallel_cross_entropy,
)
from course_lib.scratch.wire import all_reduce
from course_lib.validation import fraction


@dataclass
class Version:
    """A parallelized model, its loss, and the gradient exchange after the backward pass.

    A fault replaces one of them. `whole` builds the model again, not parallelized.
    """

    model: nn.Module
    whole: Callable[[], GPT]
    loss: Callable[["Version", Batch], Tensor]
    exchange: Callable[[], None]
    region: TensorParallel | None = None


def nothing() -> None:
    """No gradient exchange after the backward pass."""


def one(build: Callable[[], GPT], _rank: launch.Rank, _parts: str) -> Version:
    """A single process, without parallelism; several ranks would all do the same."""
    return Version(build(), build, mean_loss, nothing)


def ddp(build: Callable[[], GPT], _rank: launch.Rank, _parts: str) -> Version:
    """Data parallelism by DistributedDataParallel."""
    return Version(DistributedDataParallel(build()), build, rows_loss, nothing)


def fsdp(build: Callable[[], GPT], rank: launch.Rank, _parts: str) -> Version:
    """FSDP2 by `fully_shard`, one unit per layer."""
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
    """Tensor parallelism from scratch, with norms and residuals sharded along the sequence."""
    region = own_region(parts, sequence_parallel=True)
    assert isinstance(region, SequenceParallel)
    model = cut_gpt(build(), region)
    return Version(model, build, words_loss, lambda: sum_copied_gradients(model, region), region)


def tp_ddp(build: Callable[[], GPT], rank: launch.Rank, _parts: str) -> Version:
    """A 2D mesh: tensor parallelism within pairs of ranks, data parallelism across the pairs."""
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
    """The mean loss over the whole batch, computed in fp32 or fp64."""
    inputs, labels = batch
    logits = _at_least_fp32(version.model(inputs))
    return cross_entropy(logits.flatten(0, 1), labels.flatten())


def rows_loss(version: Version, batch: Batch) -> Tensor:
    """The mean loss over this rank's rows."""
    return mean_loss(version, own_rows(batch, launch.init()))


def words_loss(version: Version, batch: Batch) -> Tensor:
    """The mean loss over the whole batch, from logits that are sharded over the vocabulary."""
    inputs, labels = batch
    assert version.region is not None
    logits = _at_least_fp32(version.model(inputs))
    return vocab_parallel_cross_entropy(logits, labels, version.region).mean()


def _at_least_fp32(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


LAYER = 1  # the layer that faults of a single layer break


class NoSum(Function):
    """The operator f or g of tensor parallelism without its all-reduce."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor, _group: Any) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class SumBoth(Function):
    """The operator g with an extra all-reduce in backward, of a gradient that is already whole."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return all_reduce(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return all_reduce(gradient, ctx.group), None


def no_f(version: Version) -> None:
    """The MLP's f lacks its all-reduce in the backward pass."""
    _mlp(version, 0).region = TensorParallel(pair=Pair(f=NoSum))


def no_g(version: Version) -> None:
    """The MLP's g lacks its all-reduce in the forward pass."""
    _mlp(version, 2).region = TensorParallel(pair=Pair(g=NoSum))


def g_twice(version: Version) -> None:
    """The MLP's g all-reduces in the backward pass as well."""
    _mlp(version, 2).region = TensorParallel(pair=Pair(g=SumBoth))


class BiasFirst(RowParallelLinear):
    """Adds the bias on each rank before the all-reduce, which sums it once per rank."""

    def forward(self, x: Tensor) -> Tensor:
        return self.region.leave(linear(x, self.weight, self.bias))


def bias(version: Version) -> None:
    """The bias is added before the all-reduce, once per rank."""
    _mlp(version, 2).__class__ = BiasFirst


def qkv(version: Version) -> None:
    """The fused matrix of q, k and v is sharded as a whole, not within each of its parts."""
    whole: Any = version.whole().blocks[LAYER]
    assert version.region is not None
    _block(version).attention.qkv = ColumnParallelLinear(whole.attention.qkv, version.region)


def weights(version: Version) -> None:
    """The last rank initializes its shard of a matrix with its own random numbers."""
    if dist.get_rank() == dist.get_world_size() - 1:
        nn.init.uniform_(_mlp(version, 0).weight, -0.1, 0.1)


def scale(version: Version) -> None:
    """A row-parallel matrix is initialized with the fan-in of one rank's shard."""
    with torch.no_grad():
        _mlp(version, 2).weight *= dist.get_world_size() ** 0.5


def eps(version: Version) -> None:
    """A norm uses the epsilon of another library."""
    _block(version).norm1.eps = 1e-6


def vocabulary(version: Version) -> None:
    """The vocabulary range of every rank but the first starts one too late."""
    _model(version).embedding.first += dist.get_rank() > 0


def seed(_version: Version) -> None:
    """Every rank has its own random seed for dropout."""
    torch.manual_seed(1000 + dist.get_rank())


def norms(version: Version) -> None:
    """Gradients of norms and biases, computed from each rank's own tokens, are not summed."""
    version.exchange = nothing


def places(version: Version) -> None:
    """Each rank numbers the positions of its tokens from 0."""

    class FromZero(SequenceParallel):
        def own_tokens(self, places: Tensor) -> Tensor:
            return places.chunk(self.ranks)[0]

    _model(version).positions.region = FromZero()


def no_average(version: Version) -> None:
    """DDP skips the gradient exchange, as under a `no_sync()` that was left on."""
    assert isinstance(version.model, DistributedDataParallel)
    version.model.require_backward_grad_sync = False


def summed(version: Version) -> None:
    """Gradients are summed over the ranks instead of averaged."""

    def multiply() -> None:
        for parameter in version.model.parameters():
            if parameter.grad is not None:
                parameter.grad *= dist.get_world_size()

    version.exchange = multiply


def _model(version: Version) -> Any:
    return version.model


def _block(version: Version) -> Any:
    return _model(version).blocks[LAYER]


def _mlp(version: Version, index: int) -> Any:
    return _block(version).mlp[index]


class Fault(NamedTuple):
    """How to break a correct version, for which techniques, and the first tensor that differs."""

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


DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Options(BatchOptions):
    """The options of the demo."""

    folder: str = option("", "the folder to write to")
    technique: str = option("one", f"one of {', '.join(TECHNIQUES)}", among=TECHNIQUES)
    fault: str = option("none", f"none, or one of {', '.join(FAULTS)}", among=("none", *FAULTS))
    precision: str = option("fp32", f"one of {', '.join(DTYPES)}", among=DTYPES)
    dropout: float = option(0.0, "probability of dropout behind each MLP")
    parts: str = whose_parts()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dropout:
            fraction("dropout", self.dropout)
        if self.fault != "none" and self.technique not in FAULTS[self.fault].techniques:
            fits = " or ".join(FAULTS[self.fault].techniques)
            raise ValueError(f"fault {self.fault} is one of {fits}: set technique to that")
        if self.dropout and self.technique not in ("one", "tp"):
            raise ValueError(
                f"dropout {self.dropout} with technique {self.technique} draws other numbers for "
                "each rank's own tokens: take technique one or tp"
            )
        if self.fault == "seed" and not self.dropout:
            raise ValueError("fault seed needs random numbers: set dropout, for example to 0.1")

    def build(self) -> GPT:
        """Build the model, with the same weights on every rank."""
        return self.training().build().to(launch.init().device, DTYPES[self.precision])


def main(options: Options) -> Result:
    """Record the forward and backward pass of one update; the weights are not changed."""
    rank = launch.init()
    if not options.folder:
        raise ValueError("folder is empty: say where to write, as in --folder one")
    version = TECHNIQUES[options.technique](options.build, rank, options.parts)
    if options.dropout:
        for name, module in list(version.model.named_modules()):
            if name.endswith(".mlp"):
                module.append(nn.Dropout(options.dropout))
    torch.manual_seed(options.seed)  # dropout's seed, the same on every rank
    if options.fault != "none":
        FAULTS[options.fault].apply(version)
    batch = options.training().batches(rank.device)[0]
    with comparing.record(version.model, options.folder) as run:
        loss = version.loss(version, batch)
        run.loss(loss)
        loss.backward()
        version.exchange()
    ranks, folder = "one rank" if rank.world == 1 else f"{rank.world} ranks", Path(options.folder)
    own = float(loss.detach())
    return Result(
        f"{folder}: one update on {ranks}, loss {own:.6f} on rank 0", loss=own, folder=str(folder)
    )
