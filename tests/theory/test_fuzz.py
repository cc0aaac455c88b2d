"""Nasty arguments: no public function of the theory hangs, fills the memory, or fails obscurely.

fuzz.py draws the calls; 200,000 of them by `pytest -m slow tests/theory/test_fuzz.py`.
"""

import sys
import time
from math import inf, nan

import fuzz
import pytest
from every import every
from probes import Probe

from course_lib.chapters.ch09_fsdp.gather_timeline import gather_timeline
from course_lib.theory.inputs.hardware import Cluster, Link, accelerator
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.memory.peak import gpu_memory, training_memory
from course_lib.theory.network import mesh
from course_lib.theory.network.bucket_timeline import ddp_timeline
from course_lib.theory.network.tensor_parallel import qkv_rows
from course_lib.theory.pipelines.bubble import PassTimes
from course_lib.theory.pipelines.schedules import one_f_one_b_order, schedule
from course_lib.theory.pipelines.simulation import timeline
from course_lib.theory.planner import plan
from course_lib.theory.step.batching import rank_samples

SMALL, H100 = MODELS["gpt2-124m"], accelerator("H100-SXM")
ONE = Cluster(H100)


def test_two_thousand_calls_end_well():
    faults = fuzz.run(2000, seed=0)
    assert not faults, "\n".join(faults)


@pytest.mark.slow
def test_two_hundred_thousand_calls_end_well():
    faults = fuzz.run(200_000, seed=1)
    assert not faults, "\n".join(faults)


@every(
    ("call", "words"),
    [
        (lambda: schedule("naive", 10**7, 2), "stages must be at most 1024"),
        (lambda: schedule("1f1b", 2, 10**9), "passes 4000000000 is above 130,000"),
        (lambda: timeline("1f1b", 64, 10**5), "take fewer stages or micro-batches"),
        (lambda: one_f_one_b_order(0, 2, 10**9), "take fewer micro-batches"),
        (lambda: PassTimes().of(10**12), "stages 1000000000000 is above 130,000"),
        (lambda: mesh.groups(Layout(dp=10**9), "dp"), "world 1000000000 is above 1,000,000"),
        (lambda: mesh.nodes_of(Layout(dp=10**9), "dp"), "take smaller degrees"),
        (lambda: rank_samples(10**12, 2, 0), "take fewer samples, or more ranks"),
        (lambda: qkv_rows(4, 4, 10**12, tp=2, rank=0), "rows 6000000000000 is above"),
        (lambda: Layout(pp=10**9), "pp must be at most 1024"),
        (
            lambda: Layout(pp=2, schedule="interleaved", virtual_stages=10**4, accumulation=2),
            "pp*v",
        ),
        (lambda: plan(SMALL, Recipe(), Cluster(H100, 10**18), 8), "nodes*gpus_per_node must be"),
        (lambda: plan(SMALL, Recipe(), ONE, 10**18), "global_batch must be at most 1e+09"),
        (
            lambda: plan(SMALL, Recipe(), ONE, 64, sequence=1024).best(10**9),
            "count must be at most",
        ),
    ],
)
def test_what_would_take_forever_is_refused_with_a_bound_and_a_remedy(call, words):
    start = time.process_time()
    with pytest.raises(ValueError) as refusal:
        call()
    assert words in str(refusal.value) and ": " in str(refusal.value)
    assert time.process_time() - start < fuzz.SECONDS


def test_what_is_just_within_the_bounds_is_quick():
    start = time.process_time()
    assert len(rank_samples(10**6, 1, 0)) == 10**6
    assert len(mesh.groups(Layout(dp=10**6), "tp")) == 10**6
    assert timeline("gpipe", 1024, 16).stages == 1024
    deep = fuzz.dataclasses.replace(SMALL, layers=200)
    assert gather_timeline(deep, Recipe(), 2, reshard=False).peak_bytes > 0
    assert time.process_time() - start < 3 * fuzz.SECONDS


SHAPE = "TransformerShape, got str 'llama3-8b': use MODELS['llama3-8b'] or model('llama3-8b')"


@every(
    ("call", "sentence"),
    [
        (lambda: Job("llama3-8b"), f"shape must be a {SHAPE}"),
        (lambda: training_memory("llama3-8b", Recipe(), 1), f"shape must be a {SHAPE}"),
        (lambda: gpu_memory(None), "job must be a Job, got None: build one by Job(…)"),
        (
            lambda: Job(SMALL, "mixed-16"),
            "recipe must be a Recipe, got str 'mixed-16': use RECIPES",
        ),
        (
            lambda: Cluster("H100-SXM"),
            "accelerator must be an Accelerator, got str 'H100-SXM': use",
        ),
        (
            lambda: ddp_timeline([1], 2, Link("wire", 1e9)),
            "gradients[0] must be a Gradient, got int",
        ),
        (lambda: mesh.groups(Layout(), "dp", "dp"), "order must be a list, got str 'dp': give a"),
    ],
)
def test_a_wrong_kind_of_thing_is_named_with_a_remedy(call, sentence):
    with pytest.raises(TypeError) as refusal:
        call()
    assert str(refusal.value).startswith(sentence)


# --- these tests can fail ---


def endless(size=1):
    """Takes for ever where the size is large."""
    for _ in range(size):
        time.process_time()


@every(
    ("call", "words"),
    [
        (lambda size: nan, "is nan"),
        (lambda size: {"part": [-inf]}, "part is -inf"),
        (lambda size: [-1], "is -1"),
        (lambda size: size.width, "AttributeError"),
        (lambda size: size / 0, "ZeroDivisionError"),
        (lambda size: size["x"], "is refused by"),
    ],
)
def test_a_bad_end_is_noticed(call, words):
    assert words in fuzz.Call("call", Probe(call, {}, {}), {"size": 1}).fault()


@pytest.mark.skipif(sys.platform != "linux", reason="watched on Linux only")
def test_a_call_that_takes_too_much_is_noticed(monkeypatch):
    monkeypatch.setattr(fuzz, "SECONDS", 0.1)
    with fuzz.limited():
        slow = fuzz.Call("slow", Probe(endless, {}, {}), {"size": 10**12}).fault()
        large = fuzz.Call("large", Probe(lambda size: [0] * size, {}, {}), {"size": 10**9}).fault()
    assert slow.startswith("Slow") and large.startswith("MemoryError")


def test_a_refusal_needs_one_line_and_a_remedy():
    assert fuzz.bad_sentence("x must be above 0, got -1: give a larger number") is None
    for words in ("unsupported operand", "x: 1\ny: 2", f"x: {'9' * 1000}"):
        assert fuzz.bad_sentence(words)
