"""Weight decay by marks: as one process with two groups of parameters."""

import pytest
import torch

from course_lib import launch
from course_lib.demos.shared.batch import mean_loss
from course_lib.demos.shared.training import Training
from course_lib.scratch.flat_parameter import FlatParameter
from course_lib.scratch.zero import Unit, Zero, decay, marks, units_of
from course_lib.scratch.zero3 import Zero3

TRAINING = Training(model="1x18x2", steps=3, batch=12, sequence=8)  # 18: units need padding
RATE, DECAY = 0.01, 0.5
EPS = 1e-3  # not AdamW's 1e-8, with which it enlarges the rounding of gradients that are nearly 0


def plain(parameters):
    return torch.optim.AdamW(parameters, lr=RATE, eps=EPS, weight_decay=0.0)


def alone():
    """The weights after training in one process, with two groups."""
    model = TRAINING.build()
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, eps=EPS)
    for batch in TRAINING.batches():
        mean_loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach() for p in model.parameters()]


def sharded(stage):
    rank, model = launch.init(), TRAINING.build()
    make = Zero3 if stage == 3 else Zero
    zero = make(model, model.blocks, plain, **({} if stage == 3 else {"stage": stage}))
    for batch in TRAINING.batches():
        rows = [part.chunk(rank.world)[rank.rank] for part in batch]
        (mean_loss(model, rows) / rank.world).backward()
        decay(zero, RATE * DECAY)
        zero.step()
    if stage == 3:
        for unit in zero.units.values():
            unit.gather()
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize(("stage", "ranks"), [(0, 2), (1, 3), (2, 2), (3, 3)])
def test_weights_are_those_of_one_process_with_two_groups(stage, ranks):
    for found in launch.run(sharded, stage, ranks=ranks):
        torch.testing.assert_close(found, alone(), rtol=1e-4, atol=1e-5)


def counted():
    model = TRAINING.build()
    rank = launch.init()
    return [float(marks(Unit(part, rank.world)).sum()) for _, part in units_of(model, model.blocks)]


def test_each_element_of_a_matrix_is_marked_once():
    model = TRAINING.build()
    matrices = [
        sum(p.numel() for p in part if p.ndim > 1) for _, part in units_of(model, model.blocks)
    ]
    found = launch.run(counted, ranks=3)
    assert [sum(ranks) for ranks in zip(*found, strict=True)] == matrices


def both_vectors():
    rank, block = launch.init(), TRAINING.build().blocks[0]
    flat = FlatParameter(dict(block.named_parameters()), rank.device)
    return Unit(block.parameters(), rank.world).own, flat.shard.detach()


@pytest.mark.parametrize("ranks", [2, 3])
def test_zero_and_fsdp_cut_one_vector_in_the_same_places(ranks):
    for own, shard in launch.run(both_vectors, ranks=ranks):
        assert torch.equal(own, shard)
