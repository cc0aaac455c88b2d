"""Assumptions: what each changes, and a sentence for those that cannot be."""

from dataclasses import replace

import pytest
from probes import CLUSTER, DENSE, H100, OFFLOADED, PLAIN, Probe, by_name

from course_lib.theory.inputs import Cluster, Job, Layout
from course_lib.theory.inputs.models import model
from course_lib.theory.network.traffic import CommunicationPolicy
from course_lib.theory.step.assumptions import DEEPSEEK_V3, Assumptions, framework_assumptions
from course_lib.theory.step.step_time import step_time


def test_collectives_reach_a_part_of_the_link_inside_and_all_of_the_one_between():
    reached = Assumptions(inside_efficiency=0.5).reached(CLUSTER)
    assert reached.inside.bytes_per_s == CLUSTER.inside.bytes_per_s / 2
    assert reached.between == CLUSTER.between


def test_a_framework_changes_what_it_decides_and_nothing_else():
    given = Assumptions(touches=3, attention_efficiency=0.5, overlap={"dp": 0.9, "tp": 0.7})
    deepspeed = framework_assumptions("megatron-deepspeed", given)
    assert deepspeed.overlap == {**given.overlap, "dp": 0.0}
    assert (deepspeed.touches, deepspeed.attention_efficiency) == (3, 0.5)
    assert framework_assumptions("llm-foundry", given).attention_kernel == "flash-1"
    assert framework_assumptions("automodel").policy.token_nodes == 1
    assert framework_assumptions("torchtitan", given) == given


def test_deepseek_v3_hides_what_it_sends_to_experts():
    """2,048 GPUs, 16 stages, experts on 8 nodes: over a third of the step if they waited."""
    layout = Layout(pp=16, dp=128, ep=64, accumulation=120, zero_stage=1, schedule="dualpipe")
    job = Job(model("deepseek-v3"), PLAIN, layout, Cluster(H100, nodes=256), 4096)
    hidden, waited = step_time(job, DEEPSEEK_V3), step_time(job)
    assert waited.ep_s > 0.35 * waited.total_s
    # It costs 20 of 132 SMs for as long as the messages last.
    shown = step_time(job, replace(DEEPSEEK_V3, overlap={}))
    assert hidden.ep_s == pytest.approx(20 / 132 * shown.ep_s)


def seen(assumptions):
    """Step times with context and data parallelism, with and without an offloaded optimizer."""
    jobs = [
        Job(DENSE, recipe, Layout(dp=2, cp=2, zero_stage=stage), CLUSTER, sequence=512)
        for recipe, stage in ((PLAIN, 0), (OFFLOADED, 3))
    ]
    return [step_time(job, assumptions).leaves() for job in jobs]


def test_a_line_names_each_axis_and_each_habit():
    guess = Assumptions(overlap={"cp": 0.25}, touches=6, policy=CommunicationPolicy(token_nodes=4))
    parts = guess.explain().split("; ")
    assert "hidden at most: tp 0%, cp 25%, ep 0%, dp 100%, pp 0%" in parts
    assert "each byte of activations passes the memory 6 times" in parts
    assert "a token is sent once to each of at most 4 nodes" in parts
    assert "what hides takes 4 passes of its bytes through the memory, or 15% of the SMs" in parts


REFUSED = [(lambda: framework_assumptions("torchtitn"), "did you mean 'torchtitan'")]
PROBES = by_name(
    Probe(Assumptions, {}, {"overlap": {"dp": 0.0}, "policy": CommunicationPolicy()}, see=seen),
    Probe(
        framework_assumptions,
        {"name": "llm-foundry", "assumptions": Assumptions()},
        {"name": "automodel"},
    ),
)
