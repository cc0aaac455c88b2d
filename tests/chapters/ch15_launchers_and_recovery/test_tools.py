"""What the tools do by themselves: the lines of the table, and the groups of ranks."""

import os
import sys
import warnings
from unittest import mock

import pytest

from course_lib import launch
from course_lib.chapters.ch15_launchers_and_recovery.demos.launchers import lifeline
from course_lib.chapters.ch15_launchers_and_recovery.demos.launchers.tools import (
    AXES,
    SETTINGS,
    by_device_mesh,
    table,
)
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.network import mesh

IN_FORCE = {(one.what, one.tool, one.outside): one.in_force for one in SETTINGS}


def accelerate_says(outside, **code):
    """accelerate's Accelerator, made with these arguments where its launcher set these variables.

    `accelerate launch --mixed_precision no` sets ACCELERATE_MIXED_PRECISION=no.
    """
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    with mock.patch.dict(os.environ, outside):
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        return Accelerator(cpu=True, **code)


def accelerates_choice():
    """On a rank of its own: accelerate joins the group that is there."""
    outside = {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4", "ACCELERATE_MIXED_PRECISION": "no"}
    both = accelerate_says(outside, gradient_accumulation_steps=2, mixed_precision="bf16")
    found = both.gradient_accumulation_steps, both.mixed_precision
    outside_alone = accelerate_says(outside | {"ACCELERATE_MIXED_PRECISION": "bf16"})
    return found, (outside_alone.gradient_accumulation_steps, outside_alone.mixed_precision)


@pytest.mark.engine("accelerate")
def test_accelerate_takes_precision_from_the_code_and_accumulation_from_outside():
    both, outside_alone = launch.run(accelerates_choice, ranks=1, stream=False)[0]
    assert both == (4, "bf16")
    assert outside_alone == (4, "bf16")
    variable = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS=4"
    assert IN_FORCE["accumulation", "accelerate", variable] == "the variable: 4"
    assert IN_FORCE["precision", "accelerate", "--mixed_precision no"] == "the code: bf16"


PRINTS = "from accelerate import Accelerator as A; print(A(cpu=True).gradient_accumulation_steps)"


@pytest.mark.engine("accelerate")
def test_accelerate_launch_does_not_hand_accumulation_on(tmp_path):
    (tmp_path / "prints.py").write_text(PRINTS)
    ranks = ["--cpu", "--num_processes", "1", "--num_machines", "1", "--dynamo_backend", "no"]
    asked = ["--mixed_precision", "no", "--gradient_accumulation_steps", "4"]
    command = [sys.executable, "-m", "accelerate.commands.launch", *ranks, *asked]
    found = lifeline.run([*command, str(tmp_path / "prints.py")], tmp_path, 60.0)
    assert found[0] == 0 and found[1].splitlines()[-1] == "1"


def deepspeed_says(**config):
    """DeepSpeed's reading of a configuration, on one rank; AssertionError where it refuses."""
    from deepspeed.runtime.config import DeepSpeedConfig

    return DeepSpeedConfig(config)


@pytest.mark.engine("deepspeed")
def test_deepspeed_clips_unless_it_is_told_not_to():
    assert deepspeed_says(train_micro_batch_size_per_gpu=4).gradient_clipping == 1.0
    off = deepspeed_says(train_micro_batch_size_per_gpu=4, gradient_clipping=0.0)
    assert off.gradient_clipping == 0.0


@pytest.mark.engine("deepspeed")
def test_deepspeed_refuses_batches_that_do_not_multiply():
    batch = {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4}
    with pytest.raises(AssertionError, match="32 != 4 "):
        deepspeed_says(**batch, gradient_accumulation_steps=2)
    assert deepspeed_says(**batch).gradient_accumulation_steps == 8


def test_the_table_names_every_disagreement_and_what_to_do():
    assert table().count("in force:") == len(SETTINGS) == 9
    assert {one.what for one in SETTINGS} == {
        "world size", "precision", "accumulation", "clipping", "batch"
    }  # fmt: skip


LAYOUTS = [
    Layout(dp=2, tp=2, pp=2),
    Layout(dp=3, tp=4, pp=2),
    Layout(dp=2, tp=2, pp=2, cp=2),
    Layout(dp=1, tp=8, pp=3, cp=2),
    Layout(dp=8, tp=8, pp=16),
]


def tables():
    """On a rank of its own: this process has no group yet."""
    launch.finish()
    return {(n, axis): by_device_mesh(one, axis) for n, one in enumerate(LAYOUTS) for axis in AXES}


def test_device_mesh_has_the_same_groups():
    found = launch.run(tables, ranks=1, stream=False)[0]
    assert len(found) == 4 * len(LAYOUTS)
    for (number, axis), groups in found.items():
        assert groups == mesh.groups(LAYOUTS[number], axis), (LAYOUTS[number], axis)


@pytest.mark.engine("megatron")
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_megatron_core_has_the_same_groups(layout):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of packages for GPUs that are not installed
        from megatron.core.parallel_state import RankGenerator
    sizes = {name: getattr(layout, name) for name in AXES}
    generator = RankGenerator(**sizes, ep=1, order="tp-cp-ep-dp-pp")
    for axis in AXES:
        groups = tuple(map(tuple, generator.get_ranks(axis)))
        assert groups == mesh.groups(layout, axis), axis
