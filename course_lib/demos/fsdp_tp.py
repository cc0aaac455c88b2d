"""A mesh of data and tensor parallelism: fully_shard over parallelize_module.

Each group of tp ranks holds one copy of the model. Three ways to hold the copies: whole, with
gradients averaged over dp; sharded over dp by our own FSDP; and sharded by torch, `fully_shard`
over `parallelize_module`. Run it with `course demo fsdp_tp --ranks 4`, or under torchrun; 2 ranks
are 1 x 2 with `--tp 2`, 2 x 1 with `--tp 1`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import loss_parallel

from course_lib import launch
from course_lib.demos.shared.batch import Batch, mean_loss, rows_of
from course_lib.demos.shared.comparison import Comparison, follow
from course_lib.demos.shared.options import BatchOptions, option
from course_lib.demos.shared.prediction import Sent, predicted_sent, predicted_stored, traffic
from course_lib.demos.shared.text import VOCAB
from course_lib.demos.shared.trainee import Trainee
from course_lib.demos.shared.training import Training, gradients_of, one_process
from course_lib.demos.tp import torch_tp
from course_lib.demos.tp.prediction import add_separate_qkv
from course_lib.scratch.fsdp.flat_parameter import gathered
from course_lib.scratch.fsdp.mini import FSDP
from course_lib.scratch.tensor.region import TensorParallel
from course_lib.scratch.tensor.vocabulary import (
    cut_gpt,
    vocab_parallel_cross_entropy,
    whole_gradients,
)
from course_lib.scratch.wire import all_reduce
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.network.policy import CommunicationPolicy
from course_lib.validation import divisible, whole


@dataclass(frozen=True)
class Options(BatchOptions):
    """What the demo can be asked for."""

    tp: int = option(2, "ranks that share each matrix; the others are copies")
    library: bool = option(True, "train torch's version beside it")

    def __post_init__(self) -> None:
        whole("tp", self.tp)
        super().__post_init__()

    def layout(self, ranks: int, zero_stage: int) -> Layout:
        """The same for the theory.

        Raises ValueError unless model, batch and text divide evenly: then no shard has padding.
        """
        divisible("ranks", ranks, "tp", self.tp)
        dp, training = ranks // self.tp, self.training()
        for name, size, by, parts in (
            ("batch", self.batch, "dp", dp),
            ("sequence", self.sequence, "dp", dp),
            ("vocabulary", VOCAB, "ranks", ranks),
            ("hidden", training.size[1], "ranks", ranks),
        ):
            divisible(name, size, by, parts)
        layout = Layout(dp, self.tp, zero_stage=zero_stage, micro_batch=self.batch // dp)
        layout.check(training.shape(), self.sequence)
        return layout


class OnMesh(Trainee):
    """What the versions share: a model on a mesh, and its rows of the batch."""

    def __init__(self, model: nn.Module, training: Training, mesh: DeviceMesh) -> None:
        super().__init__(model, training.optimizer(model.parameters()))
        torch_tp.update_one_by_one(self.optimizer)
        self.mesh = mesh

    def rows(self, batch: Batch) -> Batch:
        """The samples of this copy of the model."""
        dp = self.mesh["dp"]
        return rows_of(batch, dp.get_local_rank(), dp.size())


class InRegion(OnMesh):
    """Tensor parallelism from scratch."""

    def __init__(
        self, model: nn.Module, training: Training, mesh: DeviceMesh, region: TensorParallel
    ) -> None:
        super().__init__(model, training, mesh)
        self.region = region

    def backward(self, batch: Batch) -> Tensor:
        """Forward and backward passes of this copy's rows."""
        inputs, labels = self.rows(batch)
        loss = vocab_parallel_cross_entropy(self.model(inputs), labels, self.region).mean()
        loss.backward()
        return loss / self.mesh.size()


class Copies(InRegion):
    """Tensor parallelism from scratch; whole copies, whose gradients are averaged over dp."""

    name = "f and g, averaged over dp"

    def __init__(self, training: Training, mesh: DeviceMesh, device: torch.device) -> None:
        region = TensorParallel(mesh["tp"].get_group())
        self.gpt = cut_gpt(training.build(device), region)
        super().__init__(self.gpt, training, mesh, region)

    def backward(self, batch: Batch) -> Tensor:
        """Passes of this copy's rows; then the layers' gradients travel, and all others."""
        share = super().backward(batch)
        layers = list(self.gpt.blocks.parameters())
        inside = set(layers)
        for parameters in (layers, [p for p in self.gpt.parameters() if p not in inside]):
            gradients = [p.grad for p in parameters if p.grad is not None]
            _average(gradients, self.mesh["dp"].get_group())
        return share

    def gradients(self) -> Mapping[str, Tensor]:
        """The gradients of the tp ranks, joined."""
        return whole_gradients(self.gpt, self.region)


class Sharded(InRegion):
    """Tensor parallelism from scratch; our FSDP shards each copy over dp, and its gradients."""

    name = "f and g, FSDP from scratch over dp"

    def __init__(self, training: Training, mesh: DeviceMesh, device: torch.device) -> None:
        region = TensorParallel(mesh["tp"].get_group())
        model = cut_gpt(training.build(device), region)
        named = model.named_parameters()
        self.cuts = {name: p.cut for name, p in named if hasattr(p, "cut")}
        self.units = FSDP(model, list(model.blocks), group=mesh["dp"].get_group()).units
        super().__init__(model, training, mesh, region)

    def gradients(self) -> Mapping[str, Tensor]:
        """The shards over dp gathered, then the tp ranks' parts joined."""
        shares = gathered(self.units, gradients=True)
        return {
            name: self.region.join(share, **self.cuts[name]) if name in self.cuts else share
            for name, share in shares.items()
        }


class Torch(OnMesh):
    """`fully_shard` over `parallelize_module`, on one mesh of two dimensions."""

    name = "fully_shard over parallelize_module"

    def __init__(self, training: Training, mesh: DeviceMesh, device: torch.device) -> None:
        model = torch_tp.parallelize(training.build(device), mesh["tp"])
        for module in (*model.blocks, model):
            fully_shard(module, mesh=mesh["dp"])
        super().__init__(model, training, mesh)

    def backward(self, batch: Batch) -> Tensor:
        """Forward and backward passes of this copy's rows."""
        with loss_parallel():
            loss = mean_loss(self.model, self.rows(batch))
            loss.backward()
        return torch_tp.whole_loss(loss) / self.mesh.size()

    def gradients(self) -> Mapping[str, Tensor]:
        """The whole gradients, from both dimensions of the mesh."""
        return torch_tp.fused(gradients_of(self.model))


def main(options: Options) -> Comparison:
    """Train each version; every rank returns what it did, beside one process and the theory."""
    rank, training = launch.init(), options.training()
    copies, sharded = (options.layout(rank.world, stage) for stage in (0, 3))
    # The last dimension runs fastest: a tp group is made of neighbours, on the fastest links.
    mesh = init_device_mesh(rank.device.type, (copies.dp, copies.tp), mesh_dim_names=("dp", "tp"))
    reference = one_process(training, rank.device)
    plan: list[tuple[type[Copies | Sharded | Torch], Sent, Layout]] = [
        (Copies, scratch_sent(training, copies), copies),
        (Sharded, scratch_sent(training, sharded), sharded),
    ]
    if options.library:
        plan.append((Torch, torch_sent(training, sharded), sharded))
    versions = []
    for kind, sent, layout in plan:
        trainee, stored = kind(training, mesh, rank.device), predicted_stored(training, layout)
        versions.append(follow(trainee, training, reference, sent, stored))
    return Comparison.verified(
        f"data x tensor parallelism {copies.dp} x {copies.tp}",
        rank,
        training.model,
        reference,
        versions,
        notes=[f"  ranks, dp by tp: {mesh.mesh.tolist()}"],
    )


def scratch_sent(training: Training, layout: Layout) -> Sent:
    """The theory's collectives of both axes; gradients of whole copies in one bucket a part."""
    policy = CommunicationPolicy(bucket_bytes=10**18)
    return predicted_sent(traffic(training, layout, policy=policy))


def torch_sent(training: Training, layout: Layout) -> Sent:
    """The same, and what separate q, k and v cost; see the demo tp."""
    sent = scratch_sent(training, layout)
    if layout.tp > 1:
        add_separate_qkv(sent, training, layout)
    return sent


def _average(gradients: Sequence[Tensor], group: ProcessGroup) -> None:
    mean = all_reduce(torch.cat([g.flatten() for g in gradients]), group) / group.size()
    pieces = torch.split(mean, [g.numel() for g in gradients])
    for gradient, piece in zip(gradients, pieces, strict=True):
        gradient.copy_(piece.view_as(gradient))
