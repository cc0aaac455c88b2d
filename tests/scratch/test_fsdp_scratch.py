"""mini-FSDP and YaFSDP: equal to one process, free what they say, and say what went wrong."""

import re

import pytest
import torch
from together import sentence
from torch import nn

from course_lib import launch
from course_lib.demos.shared.training import Training, mean_loss, own_rows
from course_lib.measure.gradients import relative_difference
from course_lib.scratch.fsdp import FSDP
from course_lib.scratch.gpt import Block
from course_lib.scratch.yafsdp import YaFSDP

TRAINING = Training("2x16x2", steps=3, batch=12, sequence=8)


def layers_of(kind, model):
    if kind is FSDP:
        return model.blocks
    return [model.embedding, model.positions, *model.blocks, model.norm, model.head]


def build(kind=FSDP, **options):
    model = TRAINING.build()
    return model, kind(model, layers_of(kind, model), **options)


def momentum(parameters):
    """Not AdamW: its first updates are ±lr however small a gradient is, rounding included."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def weights_after_training(kind):
    """Three updates, each rank's rows in two pieces: the largest difference to one process."""
    rank, one = launch.init(), TRAINING.build()
    model, sharded = build(kind)
    optimizers = momentum(sharded.shards), momentum(one.parameters())
    for batch in TRAINING.batches():
        pieces = [part.chunk(2) for part in own_rows(batch, rank)]
        for piece in zip(*pieces, strict=True):
            (mean_loss(model, piece) / 2).backward()
        mean_loss(one, batch).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    found, expected = sharded.gathered(), dict(one.named_parameters())
    assert set(found) == set(expected)
    return max(relative_difference(found[name], expected[name]) for name in expected)


def of_both_kinds():
    return max(map(weights_after_training, (FSDP, YaFSDP)))


def test_accumulated_gradients_train_the_weights_of_one_process():
    assert max(launch.run(of_both_kinds, ranks=3)) < 1e-5


def evaluated_between_updates():
    """A pass without gradients sees the update before it, and leaves nothing old behind."""
    rank = launch.init()
    model, fsdp = build()
    optimizer = TRAINING.optimizer(list(model.parameters()))
    batch = own_rows(TRAINING.batches()[0], rank)
    losses = []
    for _ in range(3):
        with torch.no_grad():
            seen = float(mean_loss(model, batch))
        loss = mean_loss(model, batch)
        losses.append((seen, float(loss.detach())))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    mean_loss(model, batch).backward()
    unfinished = mean_loss(model, batch)  # its backward never comes: the root stays whole
    optimizer.step()
    whole = TRAINING.build()
    whole.load_state_dict(fsdp.gathered(), strict=False)
    latest = mean_loss(whole, batch), mean_loss(model, batch), unfinished
    return losses, [float(loss.detach()) for loss in latest]


def test_evaluation_between_updates():
    losses, (expected, latest, unfinished) = launch.run(evaluated_between_updates, ranks=2)[0]
    assert latest == pytest.approx(expected, rel=1e-6)
    assert latest < unfinished
    assert all(seen == trained for seen, trained in losses)
    assert losses[0] > losses[1] > losses[2]


class Pair(nn.Module):
    """Two layers with a tensor in common; of the second a matrix is used by nothing."""

    def __init__(self, shared, unused=False):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        if shared:
            self.layers[1].bias = self.layers[0].bias
        if unused:
            self.layers[1].spare = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.layers[1](self.layers[0](x))


def fault(kind, name):
    model = TRAINING.build()
    if name == "meta":
        with torch.device("meta"):
            kind(model := TRAINING.build("meta"), layers_of(kind, model))
    if name == "shared":
        kind(shared := Pair(shared=True), shared.layers)
    if name == "twice":
        model.blocks[1] = model.blocks[0]
    if name == "frozen":
        model.blocks[1].norm1.bias.requires_grad_(False)
    if name == "forgotten":
        kind(model, [Block(16, 2), *layers_of(kind, model)[:-2]])
    if name == "unused":
        kind(unused := Pair(shared=False, unused=True), unused.layers)
        unused(torch.ones(2, 4)).sum().backward()
    kind(model, layers_of(kind, model))


MISTAKES = [
    (FSDP, "meta", r"parameter embedding.weight is on the meta device .* give weights="),
    (FSDP, "shared", r"layers.1.bias is also layers.0.bias"),
    (FSDP, "twice", r"parameter blocks.1.norm1.weight is also blocks.0.norm1.weight"),
    (FSDP, "frozen", r"parameter blocks.1.norm1.bias is frozen .* take fully_shard"),
    (YaFSDP, "forgotten", "parameter norm.weight is in none of the layers"),
    (YaFSDP, "shared", r"parameter layers.0.bias is in two layers, which share only a part"),
    (YaFSDP, "unused", "parameter spare got no gradient in this backward pass"),
]


def all_faults():
    return [sentence(fault, kind, name) for kind, name, _ in MISTAKES]


def test_mistakes_get_one_sentence():
    for sentences in launch.run(all_faults, ranks=2):
        for (*case, message), said in zip(MISTAKES, sentences, strict=True):
            assert re.search(message, said) and "\n" not in said, f"{case}: {said}"
