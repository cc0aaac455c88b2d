"""BatchNorm over ranks: outputs, gradients and statistics are those of one process."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course_lib import launch
from course_lib.measure.wire import log_wire
from course_lib.scratch.data_parallel import SyncBatchNorm

FEATURES, SAMPLES = 3, 12


def rows():
    torch.manual_seed(0)
    return torch.randn(SAMPLES, FEATURES) + torch.arange(SAMPLES)[:, None] / 4


def build(norm):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(FEATURES, FEATURES), norm(FEATURES), nn.Linear(FEATURES, 1))


def outcome(model, module, samples):
    """After two passes: outputs, gradients, running mean and variance."""
    for _ in range(2):
        model.zero_grad()
        output = model(samples)
        output.square().mean().backward()
    norm = module[1]
    gradients = [p.grad.clone() for p in module.parameters()]
    return output.detach(), gradients, norm.running_mean, norm.running_var


def on_a_rank(norm):
    rank = launch.init()
    module = build(norm)
    ddp = DistributedDataParallel(module, broadcast_buffers=False)
    return outcome(ddp, module, rows().chunk(rank.world)[rank.rank])


@pytest.mark.parametrize("ranks", [2, 3])
def test_all_is_as_with_the_whole_batch_in_one_process(ranks):
    module = build(nn.BatchNorm1d)
    output, *others = outcome(module, module, rows())
    found = launch.run(on_a_rank, SyncBatchNorm, ranks=ranks)
    torch.testing.assert_close(torch.cat([own for own, *_ in found]), output)
    for _, *theirs in found:
        torch.testing.assert_close(theirs, others, rtol=1e-4, atol=1e-5)


def test_torchs_own_batchnorm_differs_between_ranks():
    first, second = launch.run(on_a_rank, nn.BatchNorm1d, ranks=2)
    assert not torch.allclose(first[2], second[2])


def messages():
    launch.init()
    norm, found = SyncBatchNorm(FEATURES), []
    x = rows().requires_grad_()
    with log_wire() as log:
        output = norm(x)
        found.append([call.bytes for call in log.calls])
        output.square().sum().backward()
        found.append([call.bytes for call in log.calls])
    with log_wire() as log:
        norm.eval()(x)
    return [*found, log.calls]


def test_one_small_message_each_way_and_none_in_evaluation():
    size = 4 * (2 * FEATURES + 1)
    assert launch.run(messages, ranks=2) == [[[size], [size, size], []]] * 2
