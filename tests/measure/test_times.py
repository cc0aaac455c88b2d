"""A call's time is the slowest rank's, and the fastest of the repeats counts."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

from course_lib import launch
from course_lib.measure import times
from course_lib.measure.times import Timeline, collective_seconds, matmul_flops, record, timeline
from course_lib.scratch.gpt import GPT
from course_lib.theory.compute.flops import training_flops
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.trace import Event


def timed():
    """Rank 1 takes twice as long as rank 0, and each call half as long as the one before."""
    rank, now_s = launch.init().rank, [0.0]
    times.time = SimpleNamespace(perf_counter=lambda: now_s[0])
    calls_s = iter([4.0, 2.0, 1.0])

    def call():
        now_s[0] += next(calls_s) * (rank + 1)

    return collective_seconds(call, 3, torch.device("cpu"))


def test_the_slowest_rank_of_the_fastest_call():
    assert launch.run(timed, ranks=2) == [2.0, 2.0]


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


def row(what, *spans):
    return tuple(Event(start, 0, what, end=end) for start, end in spans)


NODE = "autograd::engine::evaluate_function: "


def event(name, ts, dur, cat="cpu_op"):
    return {"ph": "X", "name": name, "cat": cat, "ts": ts, "dur": dur}


def test_lanes_of_a_cpu():
    found = timeline(
        {
            "traceEvents": [
                event(NODE + "AddmmBackward0", 1000, 2000),
                event("aten::mm", 1100, 500),
                event(NODE + "torch::autograd::AccumulateGrad", 3000, 9000),
                event("c10d::allreduce_", 3100, 100),
                event(NODE + "GeluBackward0", 4000, 1000),
                event("gloo:all_reduce", 2500, 2000, "user_annotation"),
                event("gloo:all_reduce", 4500, 1500, "user_annotation"),
                {"ph": "i", "name": "a mark without duration"},
            ]
        }
    )
    assert found == Timeline(
        row("computation", (0.0, 0.002), (0.003, 0.004)), row("communication", (0.0015, 0.005))
    )
    assert found.communication_ms == pytest.approx(3.5)
    assert found.overlapped_ms == pytest.approx(0.5 + 1.0)


def test_lanes_of_a_gpu_are_its_kernels():
    found = timeline(
        {
            "traceEvents": [
                event(NODE + "AddmmBackward0", 0, 100),
                event("nccl:all_reduce", 50, 10, "user_annotation"),
                event("ampere_sgemm", 500, 2000, "kernel"),
                event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 1500, 3000, "kernel"),
            ]
        }
    )
    assert found == Timeline(row("computation", (0.0, 0.002)), row("communication", (0.001, 0.004)))
    assert found.overlapped_ms == pytest.approx(1.0)


def test_a_trace_without_computation_is_refused():
    with pytest.raises(ValueError, match="record a whole backward pass"):
        timeline({"traceEvents": [event("gloo:all_reduce", 0, 1, "user_annotation")]})


def test_a_real_backward_pass_computes_and_sends_nothing():
    loss = torch.nn.Linear(8, 8)(torch.randn(4, 8)).square().sum()
    found = timeline(record(loss.backward))
    assert found.computation and not found.communication
    assert found.communication_ms == found.overlapped_ms == 0
