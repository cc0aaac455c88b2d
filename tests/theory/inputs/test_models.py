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
