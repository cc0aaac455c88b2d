"""Data and tensor parallelism on a mesh of ranks, dp x tp: each tp group is one copy of the model.

Three ways to hold the copies: whole, with gradients averaged over dp; sharded over dp by our own
FSDP; and sharded by torch, `fully_shard` over `parallelize_module`. Run it with
`course demo fsdp_tp --ranks 4`, or under torchrun; 2 ranks are 1 x 2 with `--tp 2`, 2 x 1 with 1.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import loss_parallel

from course_lib import launch
from course_lib.demos.parts import torch_tp
from course_lib.demos.parts.command import option, run_as_program
from course_lib.demos.parts.command import parse as parse_options
from course_lib.demos.parts.training import Batch, Training, TrainingOptions, mean_loss, one_process
from course_lib.demos.parts.versions import FP32, Comparison, Sent, follow, predicted_sent
from course_lib.demos.text import VOCAB
from course_lib.demos.tp import add_calls, whole_loss
from course_lib.scratch.fsdp.flat_parameter import gathered
from course_lib.scratch.fsdp.mini import FSDP
from course_lib.scratch.ledger import ledger
from course_lib.scratch.tensor.region import TensorParallel
from course_lib.scratch.tensor.vocabulary import (
    cut_gpt,
    vocab_parallel_cross_entropy,
    whole_gradients,
)
from course_lib.scratch.wire import all_reduce
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.memory.states import local_parameters, sharded_states
from course_lib.theory.network.policy import CommunicationPolicy
from course_lib.validation import divisible, flag, whole


@dataclass(frozen=True)
class Options(TrainingOptions):
    """What the demo can be asked for."""

    tp: int = option(2, "ranks that share each matrix; the others are copies")
    library: bool = option(True, "train torch's version beside it")
    learning_rate: float = option(3e-3, "AdamW's learning rate")

    def __post_init__(self) -> None:
        whole("tp", self.tp)
        flag("library", self.library)
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


class _Trainee:
    """What the versions share: a model on a mesh, its rows of the batch, and AdamW."""

    name: str

    def __init__(self, model: nn.Module, training: Training, mesh: DeviceMesh) -> None:
        self.model, self.mesh = model, mesh
        self.optimizer = training.optimizer(list(model.parameters()))
        for group in self.optimizer.param_groups:
            group["foreach"] = False  # it refuses DTensors of different meshes

    def rows(self, batch: Batch) -> Batch:
        """The samples of this copy of the model."""
        dp = self.mesh["dp"]
        return tuple(part.chunk(dp.size())[dp.get_local_rank()] for part in batch)

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def stored(self) -> dict[str, int]:
        return ledger(self.model, self.optimizer)


class Copies(_Trainee):
    """Tensor parallelism from scratch; whole copies, whose gradients are averaged over dp."""

    name = "f and g, averaged over dp"

    def __init__(self, training: Training, mesh: DeviceMesh, device: torch.device) -> None:
        self.region = TensorParallel(mesh["tp"].get_group())
        super().__init__(cut_gpt(training.build(device), self.region), training, mesh)

    def backward(self, batch: Batch) -> Tensor:
        inputs, labels = self.rows(batch)
        loss = vocab_parallel_cross_entropy(self.model(inputs), labels, self.region).mean()
        loss.backward()
        self.exchange()
        return loss / self.mesh.size()

    def exchange(self) -> None:
        """Average the gradients over dp: one all-reduce of the layers', one of all others."""
        layers = list(self.model.blocks.parameters())
        ends = set(self.model.parameters()) - set(layers)
        for parameters in (layers, [p for p in self.model.parameters() if p in ends]):
            _average([p.grad for p in parameters], self.mesh["dp"].get_group())

    def gradients(self) -> dict[str, Tensor]:
        return whole_gradients(self.model, self.region)


class Sharded(Copies):
    """Tensor parallelism from scratch; our FSDP shards each copy over dp."""

    name = "f and g, FSDP from scratch over dp"

    def __init__(self, training: Training, mesh: DeviceMesh, device: torch.device) -> None:
        self.region = TensorParallel(mesh["tp"].get_group())
        model = cut_gpt(training.build(device), self.region)
        named = model.named_parameters()
        self.cuts = {name: p.cut for name, p in named if hasattr(p, "cut")}
        self.units = FSDP(model, model.blocks, group=mesh["dp"].get_group()).units
        _Trainee.__init__(self, model, training, mesh)

    def exchange(self) -> None:
        """Nothing: FSDP has scattered the gradients during the backward pass."""

    def gradients(self) -> dict[str, Tensor]:
        shares = gathered([unit.flat for unit in self.units], gradients=True)
        return {
            name: self.region.join(share, **self.cuts[name]) if name in self.cuts else share
            for name, share in shares.items()
        }


class Torch(_Trainee):
    """`fully_shard` over `parallelize_module`, on one mesh of two dimensions."""

    name = "fully_shard over parallelize_module"

    def __init__(self, training: Training, mesh: DeviceMesh, device: torch.device) -> None:
        model = torch_tp.parallelize(training.build(device), mesh["tp"])
        for module in (*model.blocks, model):
            fully_shard(module, mesh=mesh["dp"])
        super().__init__(model, training, mesh)

    def backward(self, batch: Batch) -> Tensor:
        with loss_parallel():
            loss = mean_loss(self.model, self.rows(batch))
            loss.backward()
        return whole_loss(loss) / self.mesh.size()

    def gradients(self) -> dict[str, Tensor]:
        return torch_tp.fused({name: p.grad for name, p in self.model.named_parameters()})


def main(options: Options) -> Comparison:
    """Train each version; every rank returns what it did, beside one process and the theory."""
    rank, training = launch.init(), options.training()
    copies, sharded = (options.layout(rank.world, stage) for stage in (0, 3))
    # The last dimension runs fastest: a tp group is made of neighbours, on the fastest links.
    mesh = init_device_mesh(rank.device.type, (copies.dp, copies.tp), mesh_dim_names=("dp", "tp"))
    reference = one_process(training, rank.device)
    plan = [(Copies, predict_scratch(training, copies), copies)]
    plan.append((Sharded, predict_scratch(training, sharded), sharded))
    if options.library:
        plan.append((Torch, predict_torch(training, sharded), sharded))
    versions = []
    for kind, sent, layout in plan:
        trainee = kind(training, mesh, rank.device)
        versions.append(
            follow(trainee, training, reference, sent, predict_stored(training, layout))
        )
    return Comparison.verified(
        f"data x tensor parallelism {copies.dp} x {copies.tp}",
        rank,
        training.model,
        reference,
        versions,
        notes=[f"  ranks, dp by tp: {mesh.mesh.tolist()}"],
    )


def predict_scratch(training: Training, layout: Layout) -> Sent:
    """The theory's collectives of both axes; gradients of whole copies in one bucket a part."""
    return predicted_sent(training, layout, habits=CommunicationPolicy(bucket_bytes=10**18))


def predict_torch(training: Training, layout: Layout) -> Sent:
    """The same, and 2 more all-reduces a layer for q, k and v; see the demo tp."""
    sent = predict_scratch(training, layout)
    layers, hidden, _ = training.size
    if layout.tp > 1:
        size = 4 * layout.micro_batch * training.sequence * hidden
        add_calls(sent, "all-reduce", 2 * layers, size)
    return sent


def predict_stored(training: Training, layout: Layout) -> dict[str, int]:
    """Bytes of each rank's states from theory, in a ledger's words."""
    states = sharded_states(local_parameters(training.shape(), layout), FP32, layout)
    return {
        "weights": states.parameters_bytes,
        "gradients": states.gradients_bytes,
        "optimizer": states.optimizer_state_bytes,
        "inputs and labels": 0,
    }


def _average(gradients: Iterable[Tensor], group: ProcessGroup) -> None:
    gradients = list(gradients)
    mean = all_reduce(torch.cat([g.flatten() for g in gradients]), group) / group.size()
    pieces = mean.split([g.numel() for g in gradients])
    for gradient, piece in zip(gradients, pieces, strict=True):
        gradient.copy_(piece.view_as(gradient))


def parse(argv: Sequence[str] | None = None) -> Options:
    """Options from command-line arguments."""
    return parse_options(Options, argv, __doc__)


if __name__ == "__main__":
    run_as_program(main, parse())
