"""Megatron-LM's argument parser reads what the emitted script would start."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from plans import of

from course_lib import emitting
from course_lib.emitting.head import precision
from course_lib.theory.inputs.models import of_shape

if "MEGATRON_LM" not in os.environ and (
    find_spec("megatron") is None or find_spec("megatron.training") is None
):
    pytest.skip("needs Megatron-LM: set MEGATRON_LM to a clone of it", allow_module_level=True)
pytest.importorskip("triton", reason="triton is missing: Megatron-LM imports it on a CPU, too")

pytestmark = pytest.mark.engine("triton")
PLANS = of("megatron")
READER = Path(__file__).with_name("megatron_reads.py")
READ_AS = {
    **{"rope_theta": "rotary_base", "scoring_func": "moe_router_score_function"},
    **dict.fromkeys(("rms_norm_eps", "layer_norm_epsilon"), "layernorm_epsilon"),
    **dict.fromkeys(("router_aux_loss_coef", "aux_loss_alpha"), "moe_aux_loss_coeff"),
    **{"n_group": "moe_router_num_groups", "topk_group": "moe_router_group_topk"},
}
# It tells what it was asked for instead of doing it.
TORCHRUN = """#!/bin/bash
printf '%s\\n' "${CUDA_DEVICE_MAX_CONNECTIONS-}" "$@"
"""
GIVEN = {
    **{"HEAD": "first", "PORT": "29500", "STEPS": "7"},
    **{"MEGATRON": "/clone", "DATA": "/data/text", "TOKENIZER": "/tok", "CHECKPOINTS": "/saved"},
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What each script would start, as Megatron's parser takes it; it takes seconds to start."""
    folder = tmp_path_factory.mktemp("megatron")
    (folder / "torchrun").write_text(TORCHRUN)
    (folder / "torchrun").chmod(0o755)
    own, questions = {**GIVEN, "PATH": f"{folder}:{os.environ['PATH']}"}, []
    for name, job in PLANS.items():
        text, *_ = emitting.files("megatron", job, name).values()
        (folder / "megatron.sh").write_text(text)
        command = ["bash", str(folder / "megatron.sh")]
        found = subprocess.run(command, env=own, capture_output=True, text=True, check=True)
        connections, *words = found.stdout.splitlines()
        variables = {"WORLD_SIZE": str(job.layout.world), "RANK": "0"}
        if connections:
            variables["CUDA_DEVICE_MAX_CONNECTIONS"] = connections
        questions.append((words[words.index("/clone/pretrain_gpt.py") + 1 :], variables))
    asked, answered = folder / "questions.json", folder / "answers.json"
    asked.write_text(json.dumps(questions))
    command = [sys.executable, str(READER), str(asked), str(answered)]
    found = subprocess.run(command, capture_output=True, text=True)
    assert not found.returncode, found.stderr[-3000:]
    return dict(zip(PLANS, json.loads(answered.read_text()), strict=True))


@pytest.mark.parametrize("name", PLANS)
def test_megatron_reads_what_was_planned(name, answers):
    job, found = PLANS[name], answers[name]
    layout, shape = job.layout, job.shape
    assert "refused" not in found, found["refused"]
    degrees = {
        "tensor_model_parallel_size": layout.tp,
        "pipeline_model_parallel_size": layout.pp,
        "context_parallel_size": layout.cp,
        "expert_model_parallel_size": layout.ep,
        "data_parallel_size": layout.dp,  # which Megatron computes from the others
        "sequence_parallel": layout.sequence_parallel,
        "micro_batch_size": layout.micro_batch,
        "global_batch_size": layout.global_batch,
        "micro_batches": layout.accumulation,  # as well
        "seq_length": job.sequence,
        "num_layers": shape.layers,
        "hidden_size": shape.hidden,
        "vocab_size": shape.vocab,
    }
    assert {name: found[name] for name in degrees} == degrees
    assert found.get("virtual_pipeline_model_parallel_size", 1) == layout.virtual_stages
    if layout.virtual_stages > 1:
        assert found.get("microbatch_group_size_per_vp_stage") == layout.group  # None: pp
    assert found["use_distributed_optimizer"] == (layout.zero_stage > 0)
    assert found["use_megatron_fsdp"] == (layout.zero_stage > 1)
    assert found["num_distributed_optimizer_instances"] == layout.shard_groups
    assert (found.get("recompute_granularity") == "full") == (job.recipe.recompute == "full")
    assert (
        found["params_dtype"] == {"bf16": "torch.bfloat16", "fp32": "torch.float32"}[precision(job)]
    )
    assert found["accumulate_allreduce_grads_in_fp32"] == (
        precision(job) == "bf16" and job.recipe.accumulated_bytes == 4
    )
    exchanges = layout.dp * layout.cp > 1  # which hides behind computing, as predicted
    assert found["overlap_grad_reduce"] == exchanges
    assert found["overlap_param_gather"] == (exchanges and layout.zero_stage > 0)
    assert found.get("init_model_with_meta_device", False) == (layout.zero_stage == 3)
    assert (found["save"], found["load"], found["train_iters"]) == ("/saved", "/saved", 7)


@pytest.mark.parametrize("name", PLANS)
def test_megatron_computes_what_the_model_does(name, answers):
    """Beyond its sizes: what Megatron would otherwise take from its own defaults."""
    found, constants = answers[name], of_shape(PLANS[name].shape)
    for key, name_there in READ_AS.items():
        if key in constants:
            assert found[name_there] == constants[key], key
    assert found["use_rope_scaling"] is False
    if name == "deepseek-v3":
        assert found["qk_layernorm"] and found["moe_router_enable_expert_bias"]
        assert (found["rope_type"], found["rotary_scaling_factor"]) == ("yarn", 40)


# Megatron's own estimate knows grouped attention and one kind of experts, and 18 bytes a parameter.
@pytest.mark.parametrize("name", ["7b ddp", "8b cp and tp", "gpt2 fp32"])
def test_its_own_estimate_counts_the_parameters_of_the_plan(name, answers):
    job, found = PLANS[name], answers[name]
    layout = job.layout
    shards = layout.dp if layout.zero_stage else 1
    each = 18 if not layout.zero_stage else 6 + 12 / shards
    parameters = found["states_bytes"] / each * layout.tp
    assert parameters == pytest.approx(job.shape.parameters().total, rel=0.02)
