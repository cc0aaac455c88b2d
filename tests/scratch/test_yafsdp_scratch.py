"""YaFSDP: equal to one process, two buffers in turns, no memory asked for in a step."""

import pytest
import torch
from torch import nn

from course_lib import launch
from course_lib.demos.shared.batch import mean_loss
from course_lib.demos.shared.training import Training
from course_lib.measure.gradients import relative_difference
from course_lib.measure.peak import log_memory
from course_lib.scratch.yafsdp import YaFSDP

TRAINING = Training("3x16x2", steps=3, batch=12, sequence=8)


def layers_of(model):
    return [model.embedding, model.positions, *model.blocks, model.norm, model.head]


def build(**options):
    model = TRAINING.build()
    return model, YaFSDP(model, layers_of(model), **options)


def rows(batch, rank):
    return [part.chunk(rank.world)[rank.rank] for part in batch]


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def weights_after_training(accumulation):
    """Three updates beside one process: the largest difference of a weight."""
    rank, one = launch.init(), TRAINING.build()
    model, yafsdp = build()
    optimizers = momentum(yafsdp.shards), momentum(one.parameters())
    for batch in TRAINING.batches():
        pieces = zip(*[part.chunk(accumulation) for part in rows(batch, rank)], strict=True)
        for piece in pieces:
            (mean_loss(model, piece) / accumulation).backward()
        mean_loss(one, batch).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    found = yafsdp.gathered()
    expected = dict(one.named_parameters())
    assert set(found) == set(expected)
    return max(relative_difference(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(("ranks", "accumulation"), [(1, 1), (2, 1), (3, 1), (4, 1), (2, 2)])
def test_weights_after_three_updates_are_those_of_one_process(ranks, accumulation):
    assert max(launch.run(weights_after_training, accumulation, ranks=ranks)) < 1e-5


def step_memory():
    """Sizes of the storages that a second step makes, with and without YaFSDP."""
    rank, found = launch.init(), []
    for make in (lambda: (TRAINING.build(), None), build):
        with log_memory() as log:
            model, yafsdp = make()
            batch = rows(TRAINING.batches()[0], rank)
            mean_loss(model, batch).backward()
            model.zero_grad()
            for shard in yafsdp.shards if yafsdp else ():
                shard.grad = None
            mark = log.mark()
            mean_loss(model, batch).backward()
            changes = log.since(mark).changes
        found.append(sorted(change for change in changes if change > 0))
    shards = [layer.flat.shard.nbytes for layer in yafsdp.layers]
    return *found, shards, yafsdp.flats[0].size * 4


def test_a_step_asks_only_for_gradients_that_stay():
    whole, ours, shards, table = launch.run(step_memory, ranks=2)[0]
    # One process needs room for the sum of both gradients of the tied table; here a buffer has it.
    whole.remove(table)
    assert sorted(whole + shards) == ours


def buffers_in_turns():
    """Addresses of the weights of each layer, and whether they ever change."""
    rank = launch.init()
    model, _ = build()

    def addresses():
        return [next(m.parameters()).untyped_storage().data_ptr() for m in layers_of(model)]

    before = addresses()
    mean_loss(model, rows(TRAINING.batches()[0], rank)).backward()
    return before, addresses()


def test_odd_and_even_layers_have_one_buffer_each():
    before, after = launch.run(buffers_in_turns, ranks=2)[0]
    assert before == after
    assert len(set(before[::2])) == len(set(before[1::2])) == 1
    assert before[0] != before[1]


class HalfShared(nn.Module):
    """Two layers that share one of their tensors."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.layers[1].bias = self.layers[0].bias


class Unused(nn.Module):
    """A layer with a matrix that nothing uses."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.layers[1].spare = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.layers[1](self.layers[0](x))


def fault(name):
    model = TRAINING.build()
    if name == "optimizer":
        build()[0]
        optimizer = TRAINING.optimizer(list(model.parameters()))
        YaFSDP(model, layers_of(model))
        optimizer.step()
    if name == "weights":
        model, _ = build()
        TRAINING.optimizer(list(model.parameters())).step()
    if name == "frozen":
        model.embedding.weight.requires_grad_(False)
        YaFSDP(model, layers_of(model))
    if name == "forgotten":
        YaFSDP(model, layers_of(model)[:-2])
    if name == "meta":
        with torch.device("meta"):
            model = TRAINING.build("meta")
        YaFSDP(model, layers_of(model))
    if name == "shared":
        YaFSDP(shared := HalfShared(), shared.layers)
    if name == "unused":
        YaFSDP(unused := Unused(), unused.layers)
        unused(torch.ones(2, 4)).sum().backward()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("optimizer", "this AdamW holds parameters that are not shards"),
        ("weights", "this AdamW holds parameters that are not shards"),
        ("frozen", r"parameter embedding.weight is frozen .* take fully_shard"),
        ("forgotten", "parameter norm.weight is in none of the layers"),
        ("meta", "parameter embedding.weight is on the meta device"),
        ("shared", "parameter layers.0.bias is in two layers, which share only a part"),
        ("unused", "parameter spare got no gradient in this backward pass"),
    ],
)
def test_mistakes_get_one_sentence(name, message):
    with pytest.raises(launch.RankFailed, match=message):
        launch.run(fault, name, ranks=2)


def test_without_ranks():
    with pytest.raises(RuntimeError, match="needs a process group"):
        build()
