"""Local SGD: DDP where the weights are averaged after each update, else fewer bytes."""

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.parallel import DistributedDataParallel

from course_lib import launch
from course_lib.chapters.ch14_parameter_servers.exchanges import averaged_bytes
from course_lib.measure.wire import log_wire
from course_lib.scratch.data_parallel import LocalSGD

UPDATES, PARAMETERS = 6, 4 * 5 + 5


def model():
    torch.manual_seed(0)
    return nn.Linear(4, 5)


def losses_of(rank, module):
    """The loss of each update on this rank's own samples."""
    torch.manual_seed(1 + rank)
    for _ in range(UPDATES):
        yield module(torch.randn(3, 4)).square().mean()


def weights_of(module):
    return nn.utils.parameters_to_vector(module.parameters()).detach()


def local(everies, momentum=0.0):
    rank, found = launch.init().rank, {}
    for every in everies:
        ours = model()
        trainer = LocalSGD(ours, torch.optim.SGD(ours.parameters(), 0.1, momentum), every)
        with log_wire() as log:
            for loss in losses_of(rank, ours):
                loss.backward()
                trainer.step()
        found[every] = weights_of(ours), log.sent().get("all-reduce")
    theirs = model()
    ddp = DistributedDataParallel(theirs)
    optimizer = torch.optim.SGD(theirs.parameters(), 0.1, momentum)
    for loss in losses_of(rank, ddp):
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return found, weights_of(theirs), by_torch(rank, 3, momentum)


def by_torch(rank, every, momentum):
    ours = model()
    optimizer = torch.optim.SGD(ours.parameters(), 0.1, momentum)
    averager = PeriodicModelAverager(period=every, warmup_steps=every - 1)  # counts from 0
    for loss in losses_of(rank, ours):
        loss.backward()
        optimizer.step()
        averager.average_parameters(ours.parameters())  # of those that have a gradient
        optimizer.zero_grad()
    return weights_of(ours)


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_update_is_ddp_and_fewer_averages_are_not(ranks):
    results = launch.run(local, (1, 2, 3, 7), ranks=ranks)
    for found, ddp, torchs in results:
        assert torch.allclose(found[1][0], ddp, atol=1e-6)
        assert torch.allclose(found[3][0], torchs, atol=1e-6)
        for every in (2, 3, 7):
            assert not torch.allclose(found[every][0], ddp, atol=1e-4)
            assert not torch.allclose(found[every][0], found[1][0], atol=1e-4)
    for every in (2, 3):  # averaged last: the same on all ranks
        assert all(torch.equal(results[0][0][every][0], one[0][every][0]) for one in results)
    assert not torch.equal(results[0][0][7][0], results[1][0][7][0])  # never averaged


def test_bytes_fall_by_the_updates_between_two_averages():
    (found, _, _), _ = launch.run(local, (1, 2, 3, 7), ranks=2)
    for every in (1, 2, 3):
        calls, size = found[every][1]
        assert (calls, size) == (UPDATES // every, UPDATES // every * 4 * PARAMETERS)
        # On two ranks a ring sends each all-reduced byte once.
        assert size / UPDATES == averaged_bytes(4 * PARAMETERS, 2, every)
    assert found[7][1] is None


def test_momentum_is_not_averaged():
    """With a state that stays on its rank, H = 1 is DDP still, and H = 2 is farther away."""
    (found, ddp, _), _ = launch.run(local, (1, 2), 0.9, ranks=2)
    assert torch.allclose(found[1][0], ddp, atol=1e-6)
