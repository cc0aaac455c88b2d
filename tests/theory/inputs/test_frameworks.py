"""What frameworks decide: each names fields that exist, and changes the memory."""

from dataclasses import replace

from every import every
from probes import DENSE, JOB, TWO_STAGES, ZERO_3, Probe, by_name

from course_lib.theory.inputs.frameworks import FRAMEWORKS, Framework, as_framework_does
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.recipe import RECIPES
from course_lib.theory.memory.peak import gpu_memory

ALONE = Job(DENSE)


@every("name", FRAMEWORKS)
def test_every_framework_changes_the_memory_of_a_job(name):
    does = as_framework_does(replace(JOB, layout=TWO_STAGES), name)
    assert gpu_memory(does) != gpu_memory(replace(JOB, layout=TWO_STAGES))


@every("framework", FRAMEWORKS)
@every("recipe", RECIPES)
def test_every_framework_trains_by_every_recipe(framework, recipe):
    """Where it keeps gradients in fp32, a buffer in which 16-bit ones add up is not there twice."""
    for layout in (TWO_STAGES, ZERO_3, replace(TWO_STAGES, dp=2, zero_stage=3)):
        for compiled in (False, True):
            job = Job(DENSE, RECIPES[recipe], layout)
            its = as_framework_does(job, framework, compiled=compiled).recipe
            fp32 = FRAMEWORKS[framework].recipe.get("gradients") == "fp32"
            assert its.gradient_buffer == (recipe == "accumulate-20" and not fp32)
            assert its.accumulated_bytes == 4 or recipe == "mixed-16"


def test_torchtitan_keeps_weights_gathered_under_pipelines_only():
    pipeline = replace(TWO_STAGES, dp=2, zero_stage=3)
    layouts = [
        as_framework_does(Job(DENSE, layout=one), "torchtitan").layout
        for one in (ZERO_3, pipeline, replace(pipeline, zero_stage=1))
    ]
    assert [layout.reshard for layout in layouts] == [True, False, True]
    assert [layout.reduces for layout in layouts] == ["micro-batch", "update", "update"]


def test_compiling_fuses_norms_and_activations():
    recipes = [
        as_framework_does(ALONE, "thunder", compiled=compiled).recipe for compiled in (False, True)
    ]
    assert [(it.fused_norms, it.fused_swiglu) for it in recipes] == [(False, False), (True, True)]


def test_deepspeed_has_a_bucket_of_half_a_billion_16_bit_numbers():
    assert FRAMEWORKS["megatron-deepspeed"].buffers_bytes == 5 * 10**8 * 2


REFUSED = [
    (lambda: as_framework_does(ALONE, "torchtitn"), "framework 'torchtitn' is not one of"),
]
PROBES = by_name(
    Probe(
        Framework,
        {},
        {
            "recipe": {"loss": "eager"},
            "layout": {"keep_outputs": True},
            "pipelined": {"reshard": False},
            "buffers_bytes": 1,
            "attention_kernel": "new",
            "overlap": {"dp": 0.0},
            "token_nodes": 4,
        },
    ),
    Probe(
        as_framework_does, {"job": JOB, "name": "thunder"}, {"name": "torchtune", "compiled": True}
    ),
)
