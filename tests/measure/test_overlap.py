"""Overlap from a trace: lanes of a CPU and of a GPU, and the milliseconds that both share."""

import pytest
import torch

from course_lib.measure.times import Timeline, record, timeline
from course_lib.trace import Event


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
