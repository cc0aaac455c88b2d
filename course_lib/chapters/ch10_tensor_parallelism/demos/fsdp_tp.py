"""A mesh of data and tensor parallelism: fully_shard over parallelize_module.

Each group of tp ranks holds one copy of the model. Three ways to hold the copies: whole, with
gradients averaged over dp, as in the demo three_d; sharded over dp by our own FSDP; and sharded by
torch, `fully_shard` over `parallelize_module`.
Run it with `course demo fsdp_tp --ranks 4`, or under torchrun; 2 ranks are 1 x 2 with `--tp 2`,
2 x 1 with `--tp 1`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from course_lib import launch
from course_lib.demos.shared.comparison import Comparison
from course_lib.demos.shared.options import BatchOptions, option
from course_lib.demos.shared.prediction import besides, predicted_stored, told, traffic
from course_lib.demos.shared.result import Result
from course_lib.demos.shared.text import VOCAB
from course_lib.demos.shared.training import Batch, Training, rows_of
from course_lib.demos.three_d import Mixed
from course_lib.demos.tp import torch_tp
from course_lib.demos.tp.program import Cut
from course_lib.demos.tp.program import Torch as TorchTP
from course_lib.scratch.flat_parameter import gathered
from course_lib.scratch.fsdp import FSDP
from course_lib.scratch.tensor import TensorParallel, cut_gpt, vocab_parallel_cross_entropy
from course_lib.scratch.three_d import Mesh
from course_lib.theory.inputs.layout import Layout
from course_lib.trace import Trace
from course_lib.validation import divisible


@dataclass(frozen=True)
class Options(BatchOptions):
    """The options of the demo."""

    tp: int = option(2, "ranks that share each matrix; the others are copies", least=1)
    library: bool = option(True, "train torch's version beside it")

    def layout(self, ranks: int, zero_stage: int) -> Layout:
        """The layout for theory and training.

        Raises ValueError unless model, batch and text divide evenly, so that no shard has padding.
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


def own_rows(batch: Batch, mesh: DeviceMesh) -> Batch:
    """The samples of this copy of the model."""
    dp = mesh["dp"]
    return rows_of(batch, dp.get_local_rank(), dp.size())


class Sharded(Cut):
    """Tensor parallelism from scratch; our FSDP shards each copy over dp, and its gradients."""

    name = "f and g, FSDP from scratch over dp"

    def __init__(self, training: Training, mesh: DeviceMesh, device: torch.device) -> None:
        region = TensorParallel(mesh["tp"].get_group())
        model = cut_gpt(training.build(device), region)
        named = model.named_parameters()
        self.cuts = {name: p.cut for name, p in named if hasattr(p, "cut")}
        self.units = FSDP(model, list(model.blocks), group=mesh["dp"].get_group()).units
        super().__init__(model, training, region)
        self.mesh, self.ranks = mesh, mesh.size()

    def loss(self, batch: Batch) -> Tensor:
        """The mean loss of this copy's rows."""
        inputs, labels = own_rows(batch, self.mesh)
        return vocab_parallel_cross_entropy(self.model(inputs), labels, self.region).mean()

    def gradients(self) -> dict[str, Tensor]:
        """Whole gradients: shards gathered over dp, then the parts of the tp ranks joined."""
        shares = gathered(self.units, gradients=True)
        return {
            name: self.region.join(share, **self.cuts[name]) if name in self.cuts else share
            for name, share in shares.items()
        }


class Torch(TorchTP):
    """`fully_shard` over `parallelize_module`, on one mesh of two dimensions."""

    name = "fully_shard over parallelize_module"

    def __init__(self, training: Training, mesh: DeviceMesh, device: torch.device) -> None:
        model = torch_tp.parallelize(training.build(device), mesh["tp"])
        for module in (*model.blocks, model):
            fully_shard(module, mesh=mesh["dp"])
        super().__init__(model, training, mesh.size())
        self.mesh = mesh

    def backward(self, batch: Batch) -> Tensor:
        """Forward and backward passes of this copy's rows."""
        return super().backward(own_rows(batch, self.mesh))


def main(options: Options) -> Result:
    """Train each version and compare it with one process and theory; each rank has its result."""
    rank, training = launch.init(), options.training()
    copies, sharded = (options.layout(rank.world, stage) for stage in (0, 3))
    # The last dimension varies fastest, so a tp group consists of neighbours on the fastest links.
    mesh = init_device_mesh(rank.device.type, (copies.dp, copies.tp), mesh_dim_names=("dp", "tp"))
    comparison = Comparison(training)
    whole = Mixed(training, copies, Mesh(copies.dp, copies.tp, 1), "course")
    whole.name = "f and g, averaged over dp"
    trainees: list[Mixed | Sharded | Torch] = [whole, Sharded(training, mesh, rank.device)]
    if options.library:
        trainees.append(Torch(training, mesh, rank.device))
    for trainee in trainees:
        layout = copies if trainee is whole else sharded
        sent = told(traffic(training, layout))
        if isinstance(trainee, Torch) and layout.tp > 1:
            sent = Trace([*sent, *besides("torch, separate q, k and v", training, layout)])
        comparison.follow(trainee, sent, predicted_stored(training, layout))
    technique = f"data x tensor parallelism {copies.dp} x {copies.tp}"
    notes = [f"  ranks, dp by tp: {mesh.mesh.tolist()}"]
    return comparison.result(technique, notes=notes)
