"""Copies of a model: on several devices of a process, averaged at times, or in step in norms."""

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.parallel import DistributedDataParallel

from course_lib import launch
from course_lib.measure.gradients import flat_gradient
from course_lib.measure.wire import log_wire
from course_lib.scratch.data_parallel import DataParallel, LocalSGD, SyncBatchNorm
from course_lib.scratch.ddp import Spread
from course_lib.scratch.gpt import GPT

# -- several devices -------------------------------------------------------------------------------

TOKENS = torch.arange(42).view(7, 6) % 11


def gpt():
    torch.manual_seed(0)
    return GPT(layers=3, hidden=16, heads=2, vocab=11, context=6)


def outcome(wrapped, model):
    output = wrapped(TOKENS)
    output.square().sum().backward()
    return output.detach(), flat_gradient(model)


@pytest.mark.parametrize(
    ("kind", "devices"), [(DataParallel, 1), (DataParallel, 3), (DataParallel, 9), (Spread, 3)]
)
def test_outputs_and_gradients_are_those_of_the_model(kind, devices):
    model, other = gpt(), gpt()
    found = outcome(kind(other, ["cpu"] * devices), other)
    torch.testing.assert_close(found, outcome(model, model))


def test_an_updated_model_reaches_every_copy_and_evaluation_needs_no_graph():
    model = gpt()
    parallel = DataParallel(model, ["cpu", "cpu"])
    (shell,) = parallel._shells  # without memory, and shared where the model shares
    assert {p.device.type for p in shell.parameters()} == {"meta"}
    assert shell.head.weight is shell.embedding.weight
    with torch.no_grad():
        model.norm.weight.zero_()
        model.norm.bias.fill_(1.0)
        found = parallel(TOKENS)
        assert torch.equal(found, model(TOKENS)) and not found.requires_grad


def test_layers_are_shared_out_in_runs_and_not_over_more_devices():
    spread = Spread(gpt(), [torch.device("cpu"), torch.device("cpu", 0)])
    assert [place.index for place in spread.places] == [None, None, 0]
    with pytest.raises(ValueError, match="devices are 4, more than the model's 3 layers"):
        Spread(gpt(), ["cpu"] * 4)


# -- local SGD -------------------------------------------------------------------------------------


def trained(rank, every=0, momentum=0.0, by_torch=False):
    """The weights after six updates: averaged after `every`, or by DDP where that is 0."""
    torch.manual_seed(0)
    model = nn.Linear(4, 5)
    module = model if every else DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum)
    local = LocalSGD(model, optimizer, every)
    averager = PeriodicModelAverager(period=every or 1, warmup_steps=max(0, every - 1))
    torch.manual_seed(1 + rank)
    for _ in range(6):
        module(torch.randn(3, 4)).square().mean().backward()
        if every and not by_torch:
            local.step()
            continue
        optimizer.step()
        if by_torch:
            averager.average_parameters(model.parameters())  # of those that have a gradient
        optimizer.zero_grad()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def averaged():
    rank = launch.init().rank
    pairs = [
        (trained(rank, every=1), trained(rank)),
        (trained(rank, every=1, momentum=0.9), trained(rank, momentum=0.9)),
        (trained(rank, every=3), trained(rank, every=3, by_torch=True)),
    ]
    return pairs, trained(rank, every=7)


def test_every_update_is_ddp_and_every_third_is_torchs_averager():
    results = launch.run(averaged, ranks=3)
    for pairs, _ in results:
        for ours, theirs in pairs:
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert not torch.equal(results[0][1], results[1][1])  # never averaged


# -- norms over ranks ------------------------------------------------------------------------------

FEATURES, SAMPLES = 3, 12


def rows():
    torch.manual_seed(0)
    return torch.randn(SAMPLES, FEATURES) + torch.arange(SAMPLES)[:, None] / 4


def normed(kind, samples, wrap=lambda module: module):
    """After two passes: outputs, gradients, running mean and variance."""
    torch.manual_seed(1)
    layers = nn.Linear(FEATURES, FEATURES), kind(FEATURES), nn.Linear(FEATURES, 1)
    module = nn.Sequential(*layers)
    model = wrap(module)
    for _ in range(2):
        model.zero_grad()
        output = model(samples)
        output.square().mean().backward()
    gradients = [p.grad.clone() for p in module.parameters()]
    return output.detach(), gradients, module[1].running_mean, module[1].running_var


def normed_on_a_rank():
    rank = launch.init()

    def wrap(module):
        return DistributedDataParallel(module, broadcast_buffers=False)

    own = rows().chunk(rank.world)[rank.rank]
    norm = SyncBatchNorm(FEATURES)
    with log_wire() as log:
        norm(own.requires_grad_()).square().sum().backward()
        norm.eval()(own)  # sends nothing
    sizes = [call.bytes for call in log.calls]
    return normed(SyncBatchNorm, own, wrap), normed(nn.BatchNorm1d, own, wrap), sizes


def test_norms_over_ranks_are_those_of_the_whole_batch():
    output, *others = normed(nn.BatchNorm1d, rows())
    results = launch.run(normed_on_a_rank, ranks=3)
    torch.testing.assert_close(torch.cat([ours[0] for ours, _, _ in results]), output)
    for (_, *ours), (_, _, mean, _), sizes in results:
        torch.testing.assert_close(ours, others, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(mean, others[1])  # torch's own norm knows its rows only
        assert sizes == [4 * (2 * FEATURES + 1)] * 2  # one small message each way
