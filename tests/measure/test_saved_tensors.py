"""What autograd keeps equals the formula, to the byte, once the small change is named."""

import pytest
import torch

from course_lib.measure.gradients import count_held, saved_bytes
from course_lib.scratch.accumulation import loss_sum
from course_lib.scratch.gpt import GPT
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.recipe import RECIPES
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.memory.peak import memory_moments


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "samples"), [(1, 32, 2, 1), (2, 64, 4, 8), (3, 48, 6, 5)]
)
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


def test_parameters_do_not_count():
    layer = torch.nn.Linear(8, 8)
    inputs = torch.randn(4, 8)
    assert saved_bytes(lambda: layer(inputs).sum(), layer) == inputs.nbytes


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
