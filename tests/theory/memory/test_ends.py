"""Activations before the first layer and after the last."""

import dataclasses

from probes import JOB, Probe
from test_activations import GELU, GPT3

from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.memory.ends import (
    embedding_activation_bytes,
    head_activation_bytes,
    logits_bytes,
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
    assert logits_bytes(Job(GPT3, layout=Layout(tp=8), sequence=2048)) == 4 * 2048 * -(-50257 // 8)


def test_head_is_korthikanti_s_under_tensor_and_sequence_parallelism():
    # 4·s·b·h/t·(1 + v/h) and s·b·h/t: arXiv:2205.05198, section 4.3.
    shape = dataclasses.replace(GPT3, vocab=51200)
    s, b, h, t = 2048, 2, shape.hidden, 8
    layout = Layout(tp=t, sequence_parallel=True, micro_batch=b)
    job = Job(shape, GELU, layout, sequence=s)
    assert embedding_activation_bytes(job) == s * b * h / t
    assert output_activation_bytes(job) == 4 * s * b * h / t * (1 + shape.vocab / h)
    parts = embedding_activation_bytes(job) + output_activation_bytes(job)
    assert head_activation_bytes(job) == parts


PROBES = {
    function.__name__: Probe(function, {"job": JOB}, {}, silent=("cluster",))
    for function in (
        embedding_activation_bytes,
        output_activation_bytes,
        head_activation_bytes,
    )
} | {"logits_bytes": Probe(logits_bytes, {"job": JOB}, {}, silent=("recipe", "cluster"))}
