"""Products of a layer by torch's counter; a model on the roofline by hand, and at its ends."""

from dataclasses import replace

import pytest
import torch
from probes import DENSE

from course_lib.chapters.ch05_flops_roofline_mfu.roofline import linear_products, model_roofline
from course_lib.measure.times import matmul_flops
from course_lib.theory.inputs.hardware import accelerator
from course_lib.theory.inputs.models import MODELS

H100 = accelerator("H100-SXM")
GPT2 = MODELS["gpt2-124m"]


def test_the_products_are_those_of_the_tensors_with_the_flop_that_torch_counts():
    layer = torch.nn.Linear(3, 4, bias=False)
    tokens = torch.ones(2, 3, requires_grad=True)
    counted = matmul_flops(lambda: layer(tokens).sum().backward())
    products = linear_products(2, 3, 4)
    assert sum(one.flop for one in products) == counted == 144
    x, w, dy = torch.ones(2, 3), torch.ones(3, 4), torch.ones(2, 4)
    made = (x @ w, x.T @ dy, dy @ w.T)
    assert [(one.rows, one.columns) for one in products] == [tuple(each.shape) for each in made]


def operation(result, name):
    return next(op for op in result.operations if op.name == name)


def test_the_head_and_the_additions_by_hand():
    """The head is limited by the peak; additions wait for memory."""
    result = model_roofline(GPT2, H100, tokens=1024)
    head, additions = operation(result, "head"), operation(result, "additions")
    assert head.flop == 2 * 1024 * 768 * 50257
    assert head.moved_bytes == pytest.approx(2 * (1024 * 768 + 768 * 50257 + 1024 * 50257))
    assert head.attainable_flop_per_s == H100.peak_flop_per_s
    assert additions.flop == 2 * 12 * 1024 * 768
    assert additions.flop_per_byte == pytest.approx(1 / 6)
    assert additions.seconds == pytest.approx(additions.moved_bytes / H100.memory_bytes_per_s)
    text = result.explain()
    assert "MLP" in text and "limited by compute" in text and "limited by memory" in text


def test_one_token_waits_for_the_weights():
    """One token reads each weight for two FLOP: 1 FLOP/byte in bf16, time = weights / bandwidth."""
    result = model_roofline(MODELS["llama2-7b"], H100, tokens=1)
    weights = 2 * sum(
        matrix.inputs * matrix.outputs for matrix in MODELS["llama2-7b"].layer_matrices(0)
    )
    for name in ("attention", "MLP", "head"):
        assert operation(result, name).flop_per_byte == pytest.approx(1, rel=2e-3)
    layers = operation(result, "attention").seconds + operation(result, "MLP").seconds
    assert layers == pytest.approx(32 * weights / H100.memory_bytes_per_s, rel=2e-3)


def test_the_flop_are_those_of_the_matrices():
    result = model_roofline(GPT2, H100, tokens=8)
    matrices = sum(matrix.forward_flop for matrix in GPT2.layer_matrices(0))
    products = result.flop - operation(result, "additions").flop
    assert products == 8 * (12 * matrices + 2 * 768 * 50257)


def test_wider_numbers_halve_the_intensity():
    bf16, fp32 = (
        model_roofline(GPT2, replace(H100, number_format=name), 64) for name in ("bf16", "fp32")
    )
    ratio = operation(bf16, "MLP").flop_per_byte / operation(fp32, "MLP").flop_per_byte
    assert ratio == pytest.approx(2)


REFUSED = [
    (lambda: linear_products(0, 3, 4), "tokens must be at least 1"),
    (
        lambda: model_roofline(MODELS["mixtral-8x7b"], H100, tokens=64),
        "experts 8: the tokens of a matrix depend on the router",
    ),
]
RECORDS = {
    "Product": list(linear_products(2, 3, 4)),
    "Operation": list(model_roofline(DENSE, H100, 64).operations),
    "Roofline": [
        model_roofline(DENSE, H100, 64),
        model_roofline(DENSE, accelerator("RTX4090"), 128),
    ],
}
