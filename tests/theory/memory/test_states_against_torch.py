"""Model states and gathered units against torch's own shards and tracker."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from course_lib.scratch.gpt import GPT
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.memory.states import (
    LocalParameters,
    local_parameters,
    sharded_states,
    sharding_buffers,
)

FP32 = Recipe(parameters="fp32", gradients="fp32", master_copy=False)
KINDS = ("parameters_bytes", "gradients_bytes", "optimizer_state_bytes")


@pytest.fixture
def fake_ranks():
    """Starts a process group whose other ranks do not exist; ends it afterwards."""

    def start(rank, world):
        dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
        return init_device_mesh("cpu", (world,))

    yield start
    dist.destroy_process_group()


def shard(model, blocks, mesh):
    from torch.distributed.fsdp import fully_shard  # slow to import, here and below

    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def local_bytes(model, optimizer):
    """Parameters, gradients and optimizer states that this rank holds."""
    moments = [
        tensor
        for state in optimizer.state.values()
        for name, tensor in state.items()
        if name != "step"
    ]
    groups = list(model.parameters()), [p.grad for p in model.parameters()], moments
    return tuple(sum(tensor.to_local().nbytes for tensor in group) for group in groups)


@pytest.mark.torch_internals
@pytest.mark.parametrize(
    ("vocab", "rank", "padding_rows"),
    # 50 rows of the embedding on 4 ranks are 13, 13, 13 and 11: half a row more than 12.5.
    [(64, 0, 0), (64, 3, 0), (50, 0, 0.5), (50, 3, -1.5)],
)
def test_fsdp_on_four_ranks_holds_what_the_formula_says(fake_ranks, vocab, rank, padding_rows):
    shape = TransformerShape(2, 32, 4, 128, vocab, context=16)
    model = GPT(2, 32, 4, vocab, 16)
    shard(model, model.blocks, fake_ranks(rank, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randint(0, vocab, (2, 16))).sum().backward()
    optimizer.step()
    layout = Layout(dp=4, zero_stage=3)
    states = sharded_states(local_parameters(shape, layout), FP32, layout)
    padding_bytes = 4 * padding_rows * shape.hidden
    expected = [getattr(states, kind) for kind in KINDS]
    measured = local_bytes(model, optimizer)
    for found, predicted, copies in zip(measured, expected, (1, 1, 2), strict=True):
        assert found == predicted + copies * padding_bytes


class Stack(nn.Module):
    """A root with two matrices of its own around equal layers of two matrices."""

    def __init__(self, hidden, layers):
        super().__init__()
        self.first, self.last = (nn.Linear(hidden, hidden, bias=False) for _ in range(2))
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.Linear(hidden, 4 * hidden, bias=False),
                nn.ReLU(),
                nn.Linear(4 * hidden, hidden, bias=False),
            )
            for _ in range(layers)
        )

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return self.last(x)


@pytest.mark.torch_internals
def test_fsdp_gathers_what_torch_s_tracker_sees(fake_ranks):
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker

    hidden, ranks = 128, 4
    model = Stack(hidden, layers=5)
    shard(model, model.layers, fake_ranks(0, ranks))
    tracker = FSDPMemTracker(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with tracker:
        model(torch.randn(1, hidden)).sum().backward()
    (peak,) = tracker.get_tracker_snapshot("peak").values()
    seen = {getattr(kind, "name", kind): size for kind, size in peak.items()}
    layer, ends = 8 * hidden**2, 2 * hidden**2
    local = LocalParameters(
        5 * layer + ends, layer_dense=layer, ends_dense=ends, head_dense=ends // 2
    )
    predicted = sharding_buffers(local, FP32, Layout(dp=ranks, zero_stage=3))
    weights = seen["UNSHARDED_PARAM"] + seen["ALL_GATHER"]
    assert weights == predicted["gathered_parameters_bytes"]
    # Whole gradients are "TEMP" until they are scattered; activations of one token are there too.
    gradients = seen["UNSHARDED_GRAD"] + seen["TEMP"] + seen["REDUCE_SCATTER"]
    # The first matrix's gradient is not there: it comes after those of the layers.
    assert gradients == pytest.approx(predicted["gathered_gradients_bytes"], abs=4 * 10 * hidden)
