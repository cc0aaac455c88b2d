"""Recipes: bytes per parameter, and what cannot be meant."""

from probes import MIXTURE, TWO_STAGES, ZERO_3, Given, Probe, by_name
from refused import rows

from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.recipe import RECIPES, Recipe
from course_lib.theory.memory.peak import gpu_memory
from course_lib.theory.step.step_time import step_time


def test_conventions_have_the_bytes_in_their_names():
    for name, recipe in RECIPES.items():
        assert recipe.bytes_per_parameter == int(name.rsplit("-", 1)[1])


def seen(recipe):
    """Memory with copies of the gradients, and with gathered layers; time with accumulation."""
    layouts = Layout(dp=4), ZERO_3
    memory = [gpu_memory(Job(MIXTURE, recipe, layout, sequence=512)) for layout in layouts]
    return [*memory, step_time(Job(MIXTURE, recipe, TWO_STAGES, sequence=512)).total_s]


REFUSED = [
    *rows(
        lambda change: Recipe(**change),
        [
            ({"parameters": "bf8"}, "did you mean 'bf16'"),
            ({"optimizer": "adam"}, "did you mean 'adamw'"),
            ({"parameters": "fp32"}, "set master_copy=False"),
            ({"gradients": "fp32", "gradient_buffer": True}, "set gradient_buffer=False"),
            ({"attention": "flesh"}, "did you mean 'flash'"),
            ({"recompute": "some"}, "recompute 'some' is not one of"),
            ({"recompute_layers": 3}, "recompute_layers 3 has nothing to repeat with recompute"),
            ({"recompute_layers": 0, "recompute": "full"}, "recompute_layers must be at least 1"),
            ({"dropout": 0.1}, "dropout must be True or False"),
            ({"fused_norms": 1}, "fused_norms must be True or False"),
            ({"imbalance": 0.5}, "imbalance must be at least 1"),
            ({"gathered_units": 0}, "gathered_units must be at least 1"),
            ({"gathering": "yafsd"}, "did you mean 'yafsdp'"),
            ({"gathering": "yafsdp", "gathered_units": 3}, "set gathered_units=2"),
            ({"offload": "optimiser"}, "did you mean 'optimizer'"),
        ],
    )
]
PROBES = by_name(
    Probe(
        Recipe,
        {},
        {
            "parameters": Given("fp32", {"master_copy": False}),
            "gradients": "fp32",
            "optimizer": "sgd",
            "master_copy": False,
            "gradient_buffer": True,
            "compute": "fp32",
            "gradient_life": "backward",
            "update": "foreach",
            "attention": "standard",
            "recompute": "full",
            "recompute_layers": Given(3, {"recompute": "full"}),
            "loss": "eager",
            "loss_chunks": Given(4, {"loss": "chunked"}),
            "dropout": True,
            "fused_norms": False,
            "fused_swiglu": True,
            "repeat_kv": True,
            "imbalance": 1.5,
            "gathering": "yafsdp",
            "gathered_units": 3,
            "gradient_as_bucket_view": True,
            "offload": "optimizer",
            "fused_accumulation": True,
        },
        see=seen,
    )
)
