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
            ({"parameters": "fp32"}, "set master_copy=False"),
            ({"gradients": "fp32", "gradient_buffer": True}, "set gradient_buffer=False"),
            ({"recompute_layers": 3}, "recompute_layers 3 has nothing to repeat with recompute"),
            ({"gathering": "yafsdp", "gathered_units": 3}, "set gathered_units=2"),
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
