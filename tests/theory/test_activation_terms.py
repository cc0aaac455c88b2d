"""The terms of one layer: by the paper's table, and always in sum the formula."""

from dataclasses import replace

import pytest
from course_lib.theory.memory.activation_terms import activation_terms
from hypothesis import given
from hypothesis import strategies as st

from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.memory.activations import layer_activation_bytes

GPT3 = MODELS["gpt3-175b"]
PAPER = Recipe(dropout=True, attention="standard")


def test_the_papers_34_and_5as_over_h():
    """Korthikanti et al. 2022, section 4.1: attention 11, MLP 19, norms 4, and the scores."""
    terms = activation_terms(Job(GPT3, PAPER, sequence=2048))
    sbh = 2048 * GPT3.hidden
    sizes = {name: size / sbh for name, size in terms.leaves().items() if size}
    assert sizes == {
        "norms": 4,
        "matrix inputs": 4,
        "queries": 2,
        "keys values": 4,
        "scores": 5 * 96 * 2048 / GPT3.hidden,
        "attention output": 2,
        "mlp inside": 16,
        "dropout masks": 2,
    }
    assert sum(sizes.values()) == 34 + 80


@given(
    name=st.sampled_from(["gpt2-124m", "llama2-7b", "llama2-70b", "gpt3-175b"]),
    dropout=st.booleans(),
    repeat_kv=st.booleans(),
    fused=st.booleans(),
    recompute=st.sampled_from(["none", "selective", "full"]),
    attention=st.sampled_from(["flash", "standard"]),
    micro_batch=st.integers(1, 4),
    tp=st.sampled_from([1, 2, 4]),
    sp=st.booleans(),
    parameters=st.sampled_from(["fp32", "bf16"]),
)
def test_the_terms_sum_to_the_formula(
    name, dropout, repeat_kv, fused, recompute, attention, micro_batch, tp, sp, parameters
):
    recipe = Recipe(
        parameters=parameters,
        master_copy=parameters == "bf16",
        gradients=parameters,
        dropout=dropout,
        repeat_kv=repeat_kv,
        fused_norms=not fused,
        fused_swiglu=fused,
        recompute=recompute,
        attention=attention,
    )
    layout = Layout(tp=tp, sequence_parallel=sp and tp > 1)
    case = (MODELS[name], recipe, micro_batch, 512, layout)
    assert activation_terms(*case).total_bytes == layer_activation_bytes(*case)


def test_full_recomputation_keeps_the_input_alone():
    terms = activation_terms(
        Job(GPT3, replace(PAPER, recompute="full"), Layout(micro_batch=2), sequence=2048)
    )
    assert terms.total_bytes == terms.layer_input_bytes == 2 * 2 * 2048 * 12288
    assert terms.explain("GiB").splitlines() == [
        f"{'layer input':<18}{'96.00 MiB':>12}",
        f"{'total':<18}{'96.00 MiB':>12}",
    ]


@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v3"])
def test_experts_are_refused(name):
    with pytest.raises(ValueError, match="the terms are those of a dense layer"):
        activation_terms(Job(MODELS[name], PAPER, sequence=512))
