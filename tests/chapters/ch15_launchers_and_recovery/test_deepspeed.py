"""DeepSpeed's configuration; and, where it is installed, ZeRO 0 to 3 in it on real ranks."""

import sys
from importlib.util import find_spec

import pytest
import torch
from together import explained

from course_lib.chapters.ch15_launchers_and_recovery.demos.launchers import job as launchers_job
from course_lib.chapters.ch15_launchers_and_recovery.demos.launchers import lifeline
from course_lib.chapters.ch15_launchers_and_recovery.demos.launchers.program import (
    LAUNCHERS,
    Options,
    attempt,
)
from course_lib.demos.shared.deepspeed_config import deepspeed_config
from course_lib.demos.shared.training import one_process
from course_lib.theory.step.batching import Batching


def test_the_global_batch_is_the_theorys():
    for micro_batch, accumulation, ranks in ((1, 1, 1), (3, 4, 8), (2, 1, 6)):
        config = deepspeed_config(2, micro_batch, accumulation, ranks)
        batching = Batching(1000, micro_batch, accumulation, gpus_per_node=ranks)
        assert config["train_batch_size"] == batching.global_batch
        parts = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
        assert [config[name] for name in parts] == [micro_batch, accumulation]


def test_each_argument_changes_its_key():
    plain = deepspeed_config(1)
    assert plain["zero_optimization"]["stage"] == 1
    assert plain["gradient_clipping"] == 0.0  # its own default clips at 1.0
    assert deepspeed_config(1, clip=0.5)["gradient_clipping"] == 0.5
    assert "offload_optimizer" not in plain["zero_optimization"]
    offload = deepspeed_config(1, offload=True)
    assert offload["zero_optimization"]["offload_optimizer"]["device"] == "cpu"
    assert offload["zero_force_ds_cpu_optimizer"] is False
    assert deepspeed_config(1, bf16=True) == plain | {"bf16": {"enabled": True}}
    assert "stage3_param_persistence_threshold" in deepspeed_config(3)["zero_optimization"]


def test_a_bad_configuration_is_explained():
    explained(
        deepspeed_config,
        [
            ({"stage": 4}, "stage must be at most 3"),
            ({"stage": 1, "micro_batch": 0}, "micro_batch must be at least 1"),
            ({"stage": 1, "accumulation": 0}, "accumulation must be at least 1"),
            ({"stage": 1, "ranks": 0}, "ranks must be at least 1"),
            ({"stage": 1, "clip": -1}, "clip must be at least 0"),
            ({"stage": 0, "offload": True}, "needs a sharded optimizer"),
        ],
    )


with_deepspeed = pytest.mark.engine("deepspeed", "g++")


@with_deepspeed
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("stage", "offload"), [(0, False), (1, False), (2, False), (3, False), (1, True), (3, True)]
)
def test_deepspeed_trains_as_one_process(stage, offload):
    options = Options(stage=stage, offload=offload, limit_s=300.0)
    inside = next(entry for entry in LAUNCHERS if entry.framework == "deepspeed")
    found = attempt(inside, options, 2, gpus=False)
    assert not found.problem
    assert found.world == 2
    reference = one_process(options.training(2)).losses
    assert found.losses == pytest.approx(reference, rel=1e-6)


@with_deepspeed
def test_the_configuration_is_accepted():
    from deepspeed.runtime.constants import GRADIENT_CLIPPING_DEFAULT
    from deepspeed.runtime.zero.config import get_zero_config
    from deepspeed.runtime.zero.utils import ZERO_SUPPORTED_OPTIMIZERS

    assert torch.optim.AdamW in ZERO_SUPPORTED_OPTIMIZERS
    assert GRADIENT_CLIPPING_DEFAULT == 1.0  # as the comment beside the key says
    for stage in range(4):
        config = deepspeed_config(stage, offload=stage > 0)
        known = get_zero_config(config)  # refuses keys that it does not know
        assert int(known.stage) == stage
        assert (known.offload_optimizer is not None) == (stage > 0)


def test_without_deepspeed_the_job_says_what_is_missing(tmp_path):
    if find_spec("deepspeed") is not None:
        pytest.skip("deepspeed is installed")
    command = [sys.executable, "-m", launchers_job.__name__, "--framework", "deepspeed"]
    code, text = lifeline.run(command, tmp_path, 60.0)
    assert code == 1
    assert "No module named 'deepspeed'" in text
