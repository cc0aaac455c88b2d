"""Comparing gradients."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course_lib import launch
from course_lib.measure.gradients import (
    count_held,
    flowing_gradients,
    log_backward,
    mean_square_norm,
    relative_difference,
    saved_bytes,
)
from course_lib.scratch.accumulation import loss_sum
from course_lib.scratch.gpt import GPT
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.recipe import RECIPES
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.memory.peak import memory_moments


def test_numbers_of_gradients_by_hand():
    a, b = torch.tensor([3.0, 4.0]), torch.tensor([3.0, 4.5])
    assert relative_difference(a, a) == 0
    assert relative_difference(b, a) == pytest.approx(0.1)
    assert mean_square_norm([torch.tensor([3.0, 4.0]), torch.tensor([1.0, 0.0])]) == 13.0


def test_flowing_gradients_are_those_of_the_outputs():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU(), torch.nn.Linear(2, 1))
    x = torch.rand(5, 3, requires_grad=True)
    flowing = flowing_gradients(model, lambda: model(x).sum())
    assert flowing.shape == (5 * 1 + 5 * 2,)
    assert flowing[:5].tolist() == [1.0] * 5  # the last layer comes first
    passed = (model[0](x) > 0) * model[2].weight
    torch.testing.assert_close(flowing[5:], passed.flatten())
    assert not any(layer._backward_hooks for layer in model)


@pytest.mark.parametrize(("layers", "hidden", "heads", "samples"), [(1, 32, 2, 1), (3, 48, 6, 5)])
def test_kept_bytes_are_the_formula_plus_named_small_change(layers, hidden, heads, samples):
    context = 16
    shape = TransformerShape(layers, hidden, heads, 4 * hidden, vocab=64, context=context)
    model = GPT(layers, hidden, heads, vocab=64, context=context)
    inputs, labels = torch.randint(0, 64, (2, samples, context)).clone().unbind()
    inputs, labels = inputs.clone(), labels.clone()
    measured = saved_bytes(lambda: loss_sum(model(inputs), labels), model)
    job = Job(shape, RECIPES["fp32-16"], Layout(micro_batch=samples))
    predicted = memory_moments(job)["loss"].consumers
    tokens = samples * context
    statistics = (2 * layers + 1) * 2 * tokens * 4  # mean and scale of each norm
    softmax = layers * heads * tokens * 4  # one log-sum-exp per head and token
    indices = 2 * tokens * 8 + context * 8 + 4  # inputs, labels, positions, a counter
    expected = predicted["intermediate results"] + statistics + softmax + indices
    assert measured == expected


def test_passes_are_held_until_output_and_graph_are_let_go():
    layer = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU())
    with count_held([layer]) as held:
        one, two = layer(torch.randn(4, 8)), layer(torch.randn(4, 8))
        assert held.most == 2
        one.sum().backward()  # lets go of the graph, but `one` is still here
        three = layer(torch.randn(4, 8))
        assert held.most == 3
        del one, three
        two.sum().backward(retain_graph=True)
        losses = [layer(torch.randn(4, 8)).sum() for _ in range(2)]
        assert held.most == 3
        losses.append(layer(torch.randn(4, 8)).sum())
        assert held.most == 4
    assert layer(torch.randn(4, 8)) is not None and held.most == 4


class Chain(nn.Module):
    """A forward of our own: torch's compiler passes over that of nn.Sequential."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512, bias=False) for _ in range(3))  # 1 MiB

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def order(cut):
    """Graphs and buckets in the order in which they happen, in the third pass."""
    launch.init()
    events = []

    def send(_, bucket):
        events.append("bucket")
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    ddp = DistributedDataParallel(Chain(), bucket_cap_mb=1)
    ddp.register_comm_hook(None, send)
    with log_backward(lambda: events.append("graph"), cut) as backend:
        compiled = torch.compile(ddp, backend=backend)
        for _ in range(3):
            events.clear()
            compiled(torch.ones(2, 512)).sum().backward()
    return events


def test_a_graph_for_each_bucket_or_one_for_all():
    [(cut, whole)] = launch.run(lambda: (order(True), order(False)), ranks=1)
    assert cut == ["graph", "bucket"] * 3
    assert whole == ["graph"] + ["bucket"] * 3
