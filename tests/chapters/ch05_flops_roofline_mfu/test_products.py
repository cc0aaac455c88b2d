"""The three products of a linear layer, by torch's own counter."""

import torch
from probes import Probe, by_name

from course_lib.chapters.ch05_flops_roofline_mfu.products import linear_products
from course_lib.measure.times import matmul_flops


def test_the_products_add_up_to_what_torch_counts():
    layer = torch.nn.Linear(3, 4, bias=False)
    tokens = torch.ones(2, 3, requires_grad=True)
    counted = matmul_flops(lambda: layer(tokens).sum().backward())
    assert sum(one.flop for one in linear_products(2, 3, 4)) == counted == 144


def test_the_sizes_are_those_of_the_tensors():
    x, w, dy = torch.ones(2, 3), torch.ones(3, 4), torch.ones(2, 4)
    made = (x @ w, x.T @ dy, dy @ w.T)
    sizes = [(one.rows, one.columns) for one in linear_products(2, 3, 4)]
    assert sizes == [tuple(each.shape) for each in made]


REFUSED = [
    (lambda: linear_products(0, 3, 4), "tokens must be at least 1"),
]
PROBES = by_name(
    Probe(
        linear_products,
        {"tokens": 2, "inputs": 3, "outputs": 4},
        {"tokens": 3, "inputs": 4, "outputs": 5},
    ),
)
RECORDS = {"Product": list(linear_products(2, 3, 4))}
