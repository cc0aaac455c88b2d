"""The presets: published totals and names."""

from every import every
from probes import DENSE, Probe, by_name

from course_lib.theory.inputs.models import (
    CONSTANTS,
    MODELS,
    model,
    of_configuration,
    of_shape,
    stretching,
    untold,
)


@every(
    ("name", "total"),
    [
        # config.json of the published weights, counted with transformers on the meta device.
        ("gpt2-124m", 124_439_808),
        ("gpt2-774m", 774_030_080),
        ("gpt2-1.5b", 1_557_611_200),
        ("gpt3-175b", 174_604_259_328),
        ("llama2-7b", 6_738_415_616),
        ("llama2-70b", 68_976_648_192),
        ("mixtral-8x7b", 46_702_792_704),
    ],
)
def test_published_totals(name, total):
    assert model(name).parameters().total == total


@every(
    ("family", "context"),
    [
        # config.json of the published weights; for GPT-3 and Megatron the papers in models.py.
        ("gpt2-", 1024),
        ("gpt3-", 2048),
        ("llama1-", 2048),
        ("llama2-", 4096),
        ("llama3-", 8192),
        ("llama3.1-", 131_072),
        ("mixtral-", 32_768),
        ("deepseek-v3", 163_840),
        ("mt-nlg-", 2048),
        ("gpt-", 2048),
    ],
)
def test_published_contexts(family, context):
    members = {name: shape.context for name, shape in MODELS.items() if name.startswith(family)}
    assert members and set(members.values()) == {context}, members


def test_narayanan_s_names_are_the_rounded_counts():
    # arXiv:2104.04473, table 1 prints billions with one digit after the point.
    for name, shape in MODELS.items():
        if name.startswith("gpt-"):
            printed = float(name.removeprefix("gpt-").removesuffix("b"))
            assert round(shape.parameters().total / 1e9, 1) == printed


def test_presets_cover_the_published_families():
    for name in ("gpt2-355m", "llama1-65b", "llama3.1-405b", "deepseek-v3", "mt-nlg-530b"):
        assert name in MODELS
    assert MODELS["llama3.1-8b"].context == 131072


# --- constants ---


V3 = CONSTANTS["deepseek-v3"]


def test_llama_3_1_stretches_what_llama_3_has():
    """config.json of both releases."""
    old, new = CONSTANTS["llama3-8b"], CONSTANTS["llama3.1-8b"]
    assert dict(new) == {**old, "rope_scaling": new["rope_scaling"]}
    assert stretching(old) == ({}, "") and stretching(new)[1] == "llama3"


def test_old_and_new_spelling_are_one():
    old = {"rope_theta": 1e6, "rope_scaling": {"type": "yarn", "factor": 4.0}}
    new = {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6}}
    assert stretching(of_configuration(old))[1] == stretching(of_configuration(new))[1] == "yarn"
    assert of_configuration(new)["rope_theta"] == 1e6


REFUSED = [(lambda: model("llama-2-70b"), "did you mean 'llama2-70b'")]
PROBES = by_name(
    Probe(model, {"name": "gpt2-124m"}, {"name": "llama2-7b"}),
    Probe(of_shape, {"shape": DENSE}, {"shape": MODELS["llama2-7b"]}),
    Probe(of_configuration, {"values": {}}, {"values": {"rope_theta": 10_000, "vocab_size": 9}}),
    Probe(stretching, {"constants": {}}, {"constants": V3}),
    Probe(
        untold,
        {"constants": V3, "methods": ["llama3"]},
        {"constants": {}, "methods": ["yarn"]},
        see=list,
    ),
)
