"""One job: what is derived, what cannot be, and how many tokens it has."""

import dataclasses
from dataclasses import replace

import pytest
from every import every
from probes import CLUSTER, DENSE, JOB, PLAIN, SPREAD, TWO_STAGES, ZERO_3, Probe, by_name
from refused import rows

from course_lib.theory.inputs.hardware import Cluster, accelerator
from course_lib.theory.inputs.job import FRAMEWORKS, Framework, Job, Tokens, as_framework_does
from course_lib.theory.inputs.layout import ALONE, Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import RECIPES, Recipe


def test_a_shape_alone_trains_on_one_gpu_over_its_whole_context():
    shape = MODELS["llama2-7b"]
    job = Job(shape)
    assert (job.recipe, job.layout, job.sequence) == (RECIPES["mixed-16"], ALONE, 4096)
    assert job.cluster == Cluster(accelerator("H100-SXM"), nodes=1, gpus_per_node=8)
    assert job == Job(shape, Recipe(), Layout(), Cluster(accelerator("H100-SXM")), 4096)


def test_without_a_cluster_there_are_as_many_nodes_as_the_layout_needs():
    worlds = {
        layout.world: Job(MODELS["llama2-70b"], layout=layout).cluster.nodes
        for layout in (Layout(dp=8), Layout(dp=9), Layout(dp=16, tp=8, pp=4))
    }
    assert worlds == {8: 1, 9: 2, 512: 64}


def test_what_was_derived_stays_when_something_else_is_replaced():
    assert dataclasses.replace(Job(DENSE), recipe=PLAIN).sequence == 1024
    with pytest.raises(dataclasses.FrozenInstanceError):
        JOB.sequence = 5


def test_tokens_of_one_gpu():
    """The sequence is cut by cp, and outside the tensor-parallel region by tp as well."""
    cut = {"tp": 4, "cp": 2, "micro_batch": 3}
    plain, parallel = (
        Job(DENSE, layout=Layout(**cut, sequence_parallel=sp), sequence=512).local_tokens
        for sp in (False, True)
    )
    assert plain == Tokens(inside=3 * 512 // 2, outside=3 * 512 // 2)
    assert parallel == Tokens(inside=3 * 512 // 2, outside=3 * 512 // 8)


# --- frameworks ---


ALONE_JOB = Job(DENSE)


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
        for one in (ZERO_3, pipeline, replace(pipeline, zero_stage=2))
    ]
    assert [layout.reshard for layout in layouts] == [True, False, True]
    assert [layout.reduces for layout in layouts] == ["micro-batch", "update", "update"]


def test_compiling_fuses_norms_and_activations():
    recipes = [
        as_framework_does(ALONE_JOB, "thunder", compiled=compiled).recipe
        for compiled in (False, True)
    ]
    assert [(it.fused_norms, it.fused_swiglu) for it in recipes] == [(False, False), (True, True)]


REFUSED = [
    *rows(
        lambda changes: Job(DENSE, **changes),
        [
            ({"sequence": 2048}, "sequence 2048 is longer than the 1024 positions the model"),
            ({"sequence": 511, "layout": Layout(cp=2)}, "sequence 511 is not divisible by cp 2"),
            ({"layout": Layout(pp=7)}, "leaves a stage without a layer: take at most 6"),
            (
                {"layout": Layout(dp=33), "cluster": CLUSTER},
                r"world 32 is not dp\*tp\*pp\*cp = 33\*1\*1\*1 = 33: "
                "change a degree, or take 33 GPUs",
            ),
        ],
    )
]
PROBES = by_name(
    Probe(
        replace(JOB, recipe=Recipe(recompute="full", recompute_layers=1)).layers_of, {"chunk": 0}
    ),
    Probe(
        Framework,
        {},
        {
            "recipe": {"loss": "eager"},
            "layout": {"keep_outputs": True},
            "pipelined": {"reshard": False},
            "overlap": {"dp": 0.0},
        },
    ),
    Probe(as_framework_does, {"job": JOB, "name": "thunder"}, {"name": "torchtune"}),
)
RECORDS = {
    "Tokens": [
        Job(DENSE, layout=layout).local_tokens
        for layout in (SPREAD, Layout(tp=8, sequence_parallel=True))
    ]
}
