"""Activations before the first layer and after the last."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from every import every
from probes import JOB, Probe
from test_activations import GELU, GPT3

from course_lib.measure.peak import log_memory
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import LOSSES, Recipe
from course_lib.theory.memory.ends import (
    embedding_activation_bytes,
    head_activation_bytes,
    logit_count,
    loss_copies,
    loss_temporary_bytes,
    output_activation_bytes,
)


def test_head_formula_is_korthikanti_s():
    # 4·s·b·h·(1 + v/h) and s·b·h of dropout mask, arXiv:2205.05198 section 4.3.
    shape, s, b = MODELS["gpt3-175b"], 2048, 1
    h, v = shape.hidden, shape.vocab
    kept = head_activation_bytes(
        Job(shape, Recipe(dropout=True), Layout(micro_batch=b), sequence=s)
    )
    assert kept == 4 * s * b * h * (1 + v / h) + s * b * h


def test_vocabulary_is_cut_and_rounded_up_over_tensor_ranks():
    assert logit_count(Job(GPT3, layout=Layout(tp=8), sequence=2048)) == 2048 * -(-50257 // 8)


def test_head_is_korthikanti_s_under_tensor_and_sequence_parallelism():
    # 4·s·b·h/t·(1 + v/h) and s·b·h/t: arXiv:2205.05198, section 4.3.
    shape = replace(GPT3, vocab=51200)
    s, b, h, t = 2048, 2, shape.hidden, 8
    layout = Layout(tp=t, sequence_parallel=True, micro_batch=b)
    job = Job(shape, GELU, layout, sequence=s)
    assert embedding_activation_bytes(job) == s * b * h / t
    assert output_activation_bytes(job) == 4 * s * b * h / t * (1 + shape.vocab / h)
    parts = embedding_activation_bytes(job) + output_activation_bytes(job)
    assert head_activation_bytes(job) == parts


@every("loss", ["eager", "in-place", "fused", "chunked"])
def test_each_loss_has_its_copies(loss):
    job = Job(GPT3, Recipe(loss=loss), sequence=2048)
    copies = loss_copies(job)
    expected = {"eager": (4, 8), "in-place": (4, 2), "fused": (2, 0), "chunked": (2, 12 / 8)}
    assert (copies.kept_bytes, copies.temporary_bytes) == expected[loss]
    assert loss_temporary_bytes(job) == expected[loss][1] * 2048 * 50257


@every("dtype", [torch.bfloat16, torch.float32])
def test_eager_cross_entropy_makes_the_copies_that_are_told(dtype):
    tokens, vocab, hidden = 64, 1024, 8
    weight = torch.randn(vocab, hidden, dtype=dtype, requires_grad=True)
    states = torch.randn(tokens, hidden, dtype=dtype, requires_grad=True)
    with log_memory() as log:
        loss = F.cross_entropy((states @ weight.T).float(), torch.randint(vocab, (tokens,)))
        forward = log.mark()
        kept = log.timeline[-1]
        loss.backward()
    precision = {torch.bfloat16: "bf16", torch.float32: "fp32"}[dtype]
    recipe = Recipe(precision, master_copy=False, gradients=precision, loss="eager")
    copies = loss_copies(Job(GPT3, recipe))
    count = tokens * vocab
    assert kept == pytest.approx(copies.kept_bytes * count, rel=0.01)
    together = copies.kept_bytes + copies.temporary_bytes
    assert log.since(forward).peak_bytes == pytest.approx(together * count, rel=0.01)


EAGER = replace(JOB, recipe=Recipe(loss="eager"))
PROBES = {
    function.__name__: Probe(function, {"job": JOB}, {}, silent=("cluster",))
    for function in (
        embedding_activation_bytes,
        output_activation_bytes,
        head_activation_bytes,
    )
} | {
    "logit_count": Probe(logit_count, {"job": JOB}, {}, silent=("recipe", "cluster")),
    "loss_copies": Probe(
        loss_copies,
        {"job": EAGER},
        {},
        silent=("shape", "micro_batch", "cluster", "sequence"),
    ),
    "loss_temporary_bytes": Probe(loss_temporary_bytes, {"job": EAGER}, {}, silent=("cluster",)),
}
RECORDS = {"LossCopies": [loss_copies(replace(JOB, recipe=Recipe(loss=name))) for name in LOSSES]}
