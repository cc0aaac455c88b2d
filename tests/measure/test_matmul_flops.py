"""The counter of FLOPs agrees with torch's own, and with the theory where torch's is blind."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

from course_lib.chapters.ch07_ddp.copies import copied_bytes
from course_lib.measure.times import matmul_flops
from course_lib.scratch.gpt import GPT
from course_lib.theory.compute.flops import training_flops
from course_lib.theory.inputs.shape import TransformerShape


def test_a_linear_layer():
    layer, x = torch.nn.Linear(8, 3), torch.randn(5, 8, requires_grad=True)

    def step():
        layer(x).sum().backward()

    assert matmul_flops(step) == 3 * 2 * 5 * 8 * 3
    with FlopCounterMode(display=False) as counter:
        step()
    assert matmul_flops(step) == counter.get_total_flops()


def test_flash_attention_on_a_cpu():
    q, k, v = torch.randn(3, 2, 4, 6, 8, requires_grad=True).unbind()  # batch 2, 4 heads
    product = 2 * 2 * 4 * 6 * 6 * 8
    assert matmul_flops(lambda: scaled_dot_product_attention(q, k, v)) == 2 * product
    out = scaled_dot_product_attention(q, k, v)
    assert matmul_flops(lambda: out.sum().backward()) == 5 * product


@pytest.mark.parametrize(("layers", "hidden", "heads"), [(1, 16, 2), (3, 48, 6)])
def test_a_gpt_is_as_the_theory_says(layers, hidden, heads):
    gpt = GPT(layers, hidden, heads, vocab=11, context=6)
    shape = TransformerShape(layers, hidden, heads, 4 * hidden, vocab=11, context=6)
    tokens = torch.zeros(2, 6, dtype=torch.long)
    predicted = training_flops(shape, sequences=2, attention="flash")
    assert matmul_flops(lambda: gpt(tokens).sum().backward()) == predicted.hardware_flop


def test_copies():
    x = torch.ones(4)
    assert copied_bytes(lambda: x.to("cpu")) == 0
    assert copied_bytes(lambda: x.to("cpu", copy=True)) == 16
    assert copied_bytes(lambda: x.double()) == 32
    assert copied_bytes(lambda: x.clone()) == 16
