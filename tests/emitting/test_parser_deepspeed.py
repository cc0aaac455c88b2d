"""DeepSpeed's own DeepSpeedConfig reads the emitted Hjson."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from plans import of

from course_lib import emitting
from course_lib.emitting.head import precision
from course_lib.theory.inputs.recipe import RECIPES

pytest.importorskip("deepspeed")
from deepspeed.runtime import config as deepspeed_config
from deepspeed.runtime.engine import DeepSpeedEngine

pytestmark = pytest.mark.engine("deepspeed", "g++")
PLANS = of("deepspeed")


@pytest.fixture
def read(tmp_path, monkeypatch):
    """DeepSpeed's reading of a file on so many ranks."""

    def load(text, ranks):
        of_ranks = SimpleNamespace(get_rank=lambda: 0, get_world_size=lambda: ranks)
        monkeypatch.setattr(deepspeed_config, "dist", of_ranks)
        path = tmp_path / "deepspeed.hjson"
        path.write_text(text, encoding="utf-8")
        return deepspeed_config.DeepSpeedConfig(str(path))

    return load


@pytest.mark.parametrize("name", PLANS)
def test_deepspeed_reads_what_was_planned(name, read):
    job, layout = PLANS[name], PLANS[name].layout
    text, *_ = emitting.files("deepspeed", job, name).values()
    found = read(text, layout.world)
    assert found.train_batch_size == layout.global_batch
    assert found.train_micro_batch_size_per_gpu == layout.micro_batch
    assert found.gradient_accumulation_steps == layout.accumulation
    assert found.zero_optimization_stage == layout.zero_stage
    assert found.bfloat16_config.enabled == (precision(job) == "bf16")
    assert not found.float16_config.enabled
    assert found.grad_accum_dtype == ("bf16" if precision(job) == "bf16" else None)
    assert found.zero_config.reduce_bucket_size == 500_000_000
    assert found.zero_config.param_persistence_threshold == 100_000  # its default
    if layout.zero_stage == 3:  # two layers, the embedding and the head, as in the plan's memory
        shape = job.shape
        ends = shape.embedding_parameters().total + shape.head_parameters().total
        layer = shape.layer_parameters(0).total
        assert found.zero_config.max_live_parameters == 2 * layer + ends
        assert found.zero_config.prefetch_bucket_size == layer
        assert found.zero_config.max_reuse_distance == 0


def test_other_precisions_and_offloading_are_read(read):
    job = PLANS["7b zero-3"]
    recipe = job.recipe
    half = replace(recipe, parameters="fp16", gradients="fp16", gradient_buffer=True)
    for changed in (
        replace(job, recipe=half),
        replace(job, recipe=replace(recipe, offload="optimizer")),
    ):
        text, *_ = emitting.files("deepspeed", changed, "").values()
        found = read(text, 8)
        assert found.float16_config.enabled == (precision(changed) == "fp16")
        assert found.grad_accum_dtype == ("fp32" if changed.recipe is half else "bf16")
        offloaded = changed.recipe.offload == "optimizer"
        assert (found.zero_config.offload_optimizer is not None) == offloaded


def optimizer_check(found):
    """DeepSpeedEngine's own: does it have an optimizer for these precisions and this stage?"""
    types = {True: torch.bfloat16, False: torch.float32}
    kept = types[found.bfloat16_config.enabled]
    sums = {"bf16": torch.bfloat16, "fp32": torch.float32, None: kept}[found.grad_accum_dtype]
    engine = SimpleNamespace(
        get_data_types=lambda: (kept, sums),
        zero_optimization=lambda: found.zero_enabled,
        pipeline_parallelism=False,
    )
    adamw = torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))])
    return DeepSpeedEngine._do_optimizer_sanity_check(engine, adamw)


@pytest.mark.parametrize("recipe", ["mixed-16", "megatron-18", "accumulate-20", "fp32-16"])
def test_stage_0_has_an_optimizer_for_what_is_emitted_and_for_nothing_else(recipe, read):
    job = replace(PLANS["7b ddp"], recipe=RECIPES[recipe])
    if recipe in ("megatron-18", "accumulate-20"):
        with pytest.raises(ValueError, match="its stage 0 sums gradients in the precision of"):
            emitting.files("deepspeed", job, "")
        text, *_ = emitting.files(
            "deepspeed", replace(job, recipe=RECIPES["mixed-16"]), ""
        ).values()
        with pytest.raises(RuntimeError, match="unsupported mix"):
            optimizer_check(read(text.replace('dtype": "bf16"', 'dtype": "fp32"'), 8))
        return
    text, *_ = emitting.files("deepspeed", job, "").values()
    optimizer_check(read(text, 8))
