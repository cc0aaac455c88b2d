"""torchtitan's ConfigManager loads the emitted module; its model has the plan's parameters."""

import sys
from itertools import chain

import pytest
import torch
from plans import of
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

from course_lib import emitting
from course_lib.emitting.head import precision
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.models import of_shape

pytest.importorskip("torchtitan")
pytest.importorskip("triton", reason="triton is missing: torchtitan imports it on a CPU, too")
from torchtitan.config import ConfigManager
from torchtitan.distributed import ParallelDims
from torchtitan.hf_datasets.text_datasets import DATASETS

pytestmark = pytest.mark.engine("torchtitan", "triton")
PLANS = of("torchtitan")


@pytest.fixture
def read(tmp_path, monkeypatch):
    """The configuration that `torchtitan.train` would start with."""

    def load(text, *arguments):
        (tmp_path / "titan_plan.py").write_text(text, encoding="utf-8")
        sys.modules.pop("titan_plan", None)
        line = ["--module", "titan_plan", "--config", "planned", *arguments]
        return ConfigManager().parse_args(line)

    monkeypatch.setenv("DATA", "/data/*.jsonl")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return load


@pytest.mark.parametrize("name", PLANS)
def test_torchtitan_reads_what_was_planned(name, read):
    job: Job = PLANS[name]
    layout = job.layout
    text, *_ = emitting.files("torchtitan", job, name).values()
    config = read(text)
    dims = ParallelDims.from_config(config.parallelism, layout.world)  # refuses other products
    assert (dims.tp, dims.cp, dims.pp, dims.ep) == (layout.tp, layout.cp, layout.pp, 1)
    if layout.zero_stage == 3:
        assert dims.dp_shard * dims.cp == layout.shard_ranks
        assert dims.dp_replicate == layout.shard_groups
    else:
        assert (dims.dp_shard, dims.dp_replicate) == (1, layout.dp)
    assert config.parallelism.enable_sequence_parallel == layout.sequence_parallel
    never = config.parallelism.fsdp_reshard_after_forward == "never"
    assert never != layout.reshard
    training, batch_ranks = config.training, dims.dp_shard * dims.dp_replicate
    steps = training.global_batch_size // (training.local_batch_size * batch_ranks)
    if layout.pp > 1:  # one pipeline with all micro-batches
        pieces = config.parallelism.pipeline_parallel_microbatch_size
        assert (steps, pieces) == (1, layout.micro_batch)
        steps = training.local_batch_size // pieces
    assert steps == layout.accumulation
    assert (training.global_batch_size, training.seq_len) == (layout.global_batch, job.sequence)
    assert training.mixed_precision_param == {"bf16": "bfloat16", "fp32": "float32"}[precision(job)]
    assert config.checkpoint.enable and DATASETS[config.dataloader.dataset].path == "/data/*.jsonl"
    full = type(config.activation_checkpoint).__qualname__ == "FullAC.Config"
    assert full == (job.recipe.recompute == "full")


@pytest.mark.parametrize("name", PLANS)
def test_its_model_is_that_of_the_plan(name, read):
    job: Job = PLANS[name]
    text, *_ = emitting.files("torchtitan", job, name).values()
    config = read(text)
    spec = config.model_spec.model
    spec.update_from_config(config=config)  # refuses what tp does not divide
    with torch.device("meta"):
        model = spec.build()
    counted = sum(p.numel() for p in model.parameters())
    assert counted == job.shape.parameters().total
    constants = of_shape(job.shape)
    first = spec.layers[0]
    assert first.attention.rope.theta == constants["rope_theta"]
    norms = (first.attention_norm, first.ffn_norm, spec.norm)
    assert {norm.eps for norm in norms} == {constants["rms_norm_eps"]}
    assert spec.get_nparams_and_flops(model, job.sequence)[0] == counted


@pytest.mark.parametrize("name", [name for name, job in PLANS.items() if job.layout.pp > 1])
def test_each_module_is_in_one_chunk(name, read):
    job: Job = PLANS[name]
    text, *_ = emitting.files("torchtitan", job, name).values()
    parallelism = read(text).parallelism
    looped = job.layout.chunks > job.layout.pp
    schedule = get_schedule_class(parallelism.pipeline_parallel_schedule)
    assert issubclass(schedule, PipelineScheduleMulti) == looped
    chunks = parallelism.module_fqns_per_model_part
    layers = [f"layers.{number}" for number in range(job.shape.layers)]
    assert list(chain(*chunks)) == ["tok_embeddings", *layers, "norm", "lm_head"]
    counts = [sum(name.startswith("layers.") for name in chunk) for chunk in chunks]
    assert tuple(counts) == job.layout.chunk_layers(job.shape)
