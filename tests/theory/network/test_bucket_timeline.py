"""Exchanges and buckets of DDP; the demo's test compares them with real all-reduces."""

import pytest
from every import every
from probes import DENSE, H100, SLOW_LINK, Probe, by_name

from course_lib.theory.inputs.hardware import HDR, Link, accelerator
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.units import MIB
from course_lib.theory.network import collectives
from course_lib.theory.network.bucket_timeline import (
    Gradient,
    ddp_all_reduces,
    ddp_buckets,
    ddp_timeline,
    gradient_syncs,
    hiding_tokens,
    model_gradients,
)


def test_no_sync_exchanges_once_per_window():
    assert gradient_syncs(320, 32, no_sync=False) == 320
    assert gradient_syncs(320, 32, no_sync=True) == 10
    assert gradient_syncs(321, 32, no_sync=True) == 11


def test_a_bucket_closes_once_its_limit_is_reached_and_the_first_one_has_its_own():
    assert ddp_buckets([MIB // 2] * 60) == [MIB, 25 * MIB, 4 * MIB]
    assert ddp_buckets([30 * MIB, 1], cap_bytes=25 * MIB) == [30 * MIB, 1]
    assert ddp_buckets([4, 4, 4], cap_bytes=4, first_bytes=100) == [4, 4, 4]
    assert ddp_buckets([]) == []
    assert ddp_all_reduces(syncs=10, buckets=3) == 1 + 9 * 3


# --- bucket timeline ---


A100 = accelerator("A100-SXM-80GB")
SLOW = Link("one byte a second", 1.0, 0.0)
THREE = [Gradient(name, 10, 5.0) for name in "cba"]


def spans(timeline):
    return [(each.size_bytes, each.start_s, each.end_s) for each in timeline.exchanges]


def test_three_layers_by_hand():
    """Two ranks send each byte once: 10 s a bucket, full at 5, 10 and 15 s."""
    result = ddp_timeline(THREE, 2, SLOW, cap_bytes=10)
    assert spans(result) == [(10, 5, 15), (10, 15, 25), (10, 25, 35)]
    assert (result.backward_s, result.communication_s) == (15, 30)
    assert (result.exposed_s, result.hidden_s) == (20, 10)
    assert result.efficiency == pytest.approx(22.5 / 42.5)
    waited = ddp_timeline(THREE, 2, SLOW, cap_bytes=10, overlap=False)
    assert spans(waited) == [(10, 15, 25), (10, 25, 35), (10, 35, 45)]
    assert [each.ready_s for each in waited.exchanges] == [5, 10, 15]
    later = ddp_timeline([Gradient("no gradient", 0, 7.0), *THREE], 2, SLOW, cap_bytes=10)
    assert spans(later)[0] == (10, 12, 22)


@every("name", ["gpt2-124m", "llama2-7b"])
@every("cap", [10**6, 25 * 2**20, 10**12])
def test_all_gradients_travel_in_the_buckets_of_ddp(name, cap):
    gradients = model_gradients(MODELS[name], A100, tokens=1024)
    result = ddp_timeline(gradients, 8, HDR, cap_bytes=cap, first_bytes=cap)
    sizes = [gradient.size_bytes for gradient in gradients if gradient.size_bytes]
    assert [each.size_bytes for each in result.exchanges] == ddp_buckets(sizes, cap, cap)
    assert result.size_bytes == 4 * MODELS[name].parameters().total
    ends = [each.end_s for each in result.exchanges]
    assert ends == sorted(ends)
    assert result.exposed_s + result.hidden_s == pytest.approx(result.communication_s)


def test_backward_is_four_flop_a_weight_and_token():
    """Second source: FLOPs of the whole model without attention's scores."""
    from course_lib.theory.compute.flops import training_flops

    shape = MODELS["gpt2-124m"]
    flop = training_flops(shape, 1, 1024)
    matrices = flop.model_flop - flop.scores_flop
    rate = A100.peak_flop_per_s * A100.matmul_efficiency
    backward = sum(g.backward_s for g in model_gradients(shape, A100, 1024))
    assert backward == pytest.approx(matrices * 2 / 3 / rate)


def test_a_tied_embedding_comes_last_and_an_untied_head_first():
    gpt2, llama = (model_gradients(MODELS[n], A100, 64) for n in ("gpt2-124m", "llama2-7b"))
    assert gpt2[-1].size_bytes == 4 * (50257 + 1024) * 768
    assert gpt2[0].size_bytes == 4 * 2 * 768  # the last norm
    assert llama[0].size_bytes == 4 * (32000 * 4096 + 4096)


@every("name", ["gpt2-1.5b", "llama2-70b"])
def test_the_size_of_the_model_cancels(name):
    """At `hiding_tokens` both take equally long, but for latency, embedding and norms."""
    chip = accelerator("H100-SXM")
    rate = chip.peak_flop_per_s * chip.matmul_efficiency
    link = Link("no latency", 50e9, 0.0)
    tokens = round(hiding_tokens(rate, link.bytes_per_s, ranks=8))
    result = ddp_timeline(model_gradients(MODELS[name], chip, tokens), 8, link)
    assert result.communication_s == pytest.approx(result.backward_s, rel=0.01)
    assert tokens == round(7 / 16 * 4 * rate / 50e9)
    sent = collectives.sent_bytes("all-reduce", result.size_bytes, 8)
    assert result.communication_s == pytest.approx(sent / 50e9)


GRADIENTS = model_gradients(DENSE, H100, tokens=64)
TIMELINES = [ddp_timeline(GRADIENTS, 2, SLOW_LINK, cap_bytes=cap) for cap in (10**6, 10**9)]


REFUSED = [
    (lambda: ddp_timeline([Gradient("head", 0, 1.0)], 2, SLOW), "gradients have 0 bytes"),
    (lambda: model_gradients(MODELS["mixtral-8x7b"], A100, 64), "experts 8"),
]
PROBES = by_name(
    Probe(ddp_buckets, {"gradient_bytes": [4] * 8, "cap_bytes": 8, "first_bytes": 4}),
    Probe(
        ddp_timeline, {"gradients": GRADIENTS, "ranks": 2, "link": SLOW_LINK, "cap_bytes": 10**6}
    ),
)
RECORDS = {
    "Gradient": list(GRADIENTS),
    "Exchange": list(TIMELINES[0].exchanges),
    "BucketTimeline": [*TIMELINES, ddp_timeline(GRADIENTS[1:], 2, SLOW_LINK)],
}
