"""What cannot be rehearsed: a sentence each."""

from dataclasses import replace

import pytest
from jobs import FSDP, LLAMA, job

from course_lib.rehearsal.program import check
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout


@pytest.mark.parametrize(
    ("refused", "sentence"),
    [
        (job(replace(LLAMA, experts=4, top_k=2)), r"experts 4 .* a model with experts=0"),
        (job(replace(LLAMA, qk_norm="head")), r"qk_norm 'head' .* qk_norm='none'"),
        (job(replace(LLAMA, layer_norms=4)), r"layer_norms 4 .* layer_norms=2"),
        (job(replace(LLAMA, layers=2), pp=2), r"pp 2 .* a layout with pp=1"),
        (job(cp=2), r"cp 2 .* cp=1"),
        (Job(LLAMA, FSDP, Layout(dp=2), sequence=8), r"zero_stage 0 .* zero_stage=3"),
        (job(replace(LLAMA, ffn=24), tp=8), "kv_heads 4 is not divisible by tp 8"),
        (
            job(replace(LLAMA, vocab=5), tp=4),
            "vocab 5 leaves the last of tp 4 ranks",
        ),
        (job(recipe=replace(FSDP, parameters="bf16", master_copy=True)), "master_copy True"),
        (job(recipe=replace(FSDP, recompute="full")), "recompute 'full'"),
        (job(recipe=replace(FSDP, optimizer="adamw-8bit")), "'adamw-8bit' is not in torch"),
        (job(recipe=replace(FSDP, optimizer="adamw-bf16")), r"moments in bf16, .* weights, fp32"),
    ],
)
def test_it_is_refused_with_its_remedy(refused, sentence):
    with pytest.raises(ValueError, match=sentence):
        check(refused)


def test_sgd_has_no_moments_to_refuse():
    check(job(recipe=replace(FSDP, parameters="bf16", optimizer="sgd")))
