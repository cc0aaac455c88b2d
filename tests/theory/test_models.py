"""Parameter counts against published totals and a torch module on the meta device."""

import dataclasses

import pytest
import torch

from course_lib.scratch.gpt import GPT
from course_lib.theory.models import MODELS, TransformerShape, model


@pytest.mark.parametrize(
    ("name", "total"),
    [
        # config.json of the published weights, counted with transformers on the meta device.
        ("gpt2-124m", 124_439_808),
        ("gpt2-774m", 774_030_080),
        ("gpt2-1.5b", 1_557_611_200),
        ("gpt3-175b", 174_604_259_328),
        ("llama2-7b", 6_738_415_616),
        ("llama2-70b", 68_976_648_192),
    ],
)
def test_published_totals(name, total):
    assert model(name).parameters().total == total


@pytest.mark.parametrize("name", ["gpt2-124m", "gpt2-355m", "gpt2-1.5b"])
def test_counts_equal_those_of_a_torch_module(name):
    shape = MODELS[name]
    with torch.device("meta"):
        module = GPT(shape.layers, shape.hidden, shape.heads, shape.vocab, shape.context)
    count = shape.parameters()
    assert count.total == sum(p.numel() for p in module.parameters())
    assert count.attention == sum(
        p.numel() for block in module.blocks for p in block.attention.parameters()
    )
    assert count.mlp == sum(p.numel() for block in module.blocks for p in block.mlp.parameters())


SMALL = TransformerShape(layers=2, hidden=8, heads=4, ffn=32, vocab=50, context=16)


@pytest.mark.parametrize(
    "change",
    [
        {"layers": 3},
        {"hidden": 16},
        {"kv_heads": 2},
        {"ffn": 33},
        {"vocab": 51},
        {"context": 17},
        {"mlp": "swiglu"},
        {"norm": "rmsnorm"},
        {"biases": False},
        {"learned_positions": False},
        {"tied_embeddings": False},
    ],
)
def test_each_size_changes_the_count(change):
    changed = dataclasses.replace(SMALL, **change)
    assert changed.parameters().total != SMALL.parameters().total


def test_heads_change_the_count_under_grouped_query_attention():
    two, four = (
        TransformerShape(2, 8, heads, 32, 50, 16, kv_heads=2).parameters().total for heads in (2, 4)
    )
    assert two != four


def test_explain_has_every_leaf_and_the_total():
    text = SMALL.parameters().explain()
    for word in ("embedding", "attention", "mlp", "norms", "head", "total"):
        assert word in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 3}, "hidden 8 is not divisible by heads 3"),
        ({"kv_heads": 3}, "heads 4 is not divisible by kv_heads 3"),
        ({"layers": 0}, "layers must be at least 1"),
        ({"vocab": 2.5}, "vocab must be a whole number"),
        ({"mlp": "swigloo"}, "did you mean 'swiglu'"),
        ({"norm": "layer norm"}, "did you mean 'layernorm'"),
        ({"biases": 1}, "biases must be True or False"),
    ],
)
def test_bad_shapes_are_explained(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SMALL, **change)


def test_an_unknown_model_gets_the_nearest_name():
    with pytest.raises(ValueError, match="did you mean 'llama2-70b'"):
        model("llama-2-70b")
