"""Constants: by the released configurations, and what a program is told that it lacks."""

from probes import DENSE, Probe, by_name

from course_lib.theory.inputs.constants import (
    CONSTANTS,
    of_configuration,
    of_shape,
    stretching,
    untold,
)
from course_lib.theory.inputs.models import MODELS

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


PROBES = by_name(
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
