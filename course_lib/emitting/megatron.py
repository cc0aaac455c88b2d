"""A script with the arguments of Megatron-LM's pretrain_gpt.py.

Source: megatron/training/arguments.py and megatron/core/transformer/transformer_config.py of
github.com/NVIDIA/Megatron-LM at core_v0.19.2; core_v0.16.1 reads it as well.
"""

import shlex
from collections.abc import Mapping

from course_lib.emitting.head import (
    as_its_stage_does,
    head,
    keeps_fp32,
    on_each_node,
    precision,
    refuse,
    rendezvous,
)
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.shape import TransformerShape

VERSION = "Megatron-LM core_v0.19.2"
FILE = "megatron.sh"
# A value True: a flag without one; False: left out.
Arguments = Mapping[str, object]
_OPTIMIZERS = {
    "adamw": ("adam", {}),
    "sgd": ("sgd", {"sgd-momentum": 0.0}),
    "momentum": ("sgd", {}),
}
_SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
# Not of the plan: what lets a first run start at once.
_RUN = {
    "mock-data": True,
    "tokenizer-type": "NullTokenizer",
    "train-iters": 100,
    "lr": 3e-4,
    "lr-decay-style": "constant",
}


def files(job: Job, model: str) -> dict[str, str]:
    """`megatron.sh`. Raises ValueError for what Megatron-LM cannot run."""
    _check(job)
    more = [
        "in a clone of Megatron-LM",
        *on_each_node(job, f"bash {FILE}"),
        f"the vocabulary is padded to a multiple of {128 * job.layout.tp}",
        "data, steps and learning rate are not of the plan: change the last list",
    ]
    if _by_fsdp(job):
        connections = "unset CUDA_DEVICE_MAX_CONNECTIONS"  # which Megatron's FSDP insists on
    else:
        connections = "export CUDA_DEVICE_MAX_CONNECTIONS=1"  # and its tp and cp on this
    script = f"""\
set -euo pipefail
{connections}
model=(
{_listed(_model(job))}
)
plan=(
{_listed({**_degrees(job), **_pipeline(job), **_states(job), **_recompute(job)})}
)
run=(
{_listed(_RUN)}
)
{rendezvous(job)} \\
    pretrain_gpt.py "${{model[@]}}" "${{plan[@]}}" "${{run[@]}}" "$@"
"""
    return {FILE: f"#!/bin/bash\n{head(job, model, VERSION, more)}{script}"}


def _listed(arguments: Arguments) -> str:
    """One argument a line, ready for bash."""
    lines = []
    for name, value in arguments.items():
        if value is not False:
            words = [f"--{name}"] if value is True else [f"--{name}", str(value)]
            lines.append(f"    {shlex.join(words)}")
    return "\n".join(lines)


def _by_fsdp(job: Job) -> bool:
    """Whether Megatron's own FSDP is needed; its distributed optimizer is stage 1."""
    return job.layout.zero_stage >= 2


def _check(job: Job) -> None:
    layout, recipe, shape = job.layout, job.recipe, job.shape
    refuse("Megatron-LM", job, _of_the_model(shape))
    refuse(
        "Megatron-LM",
        job,
        {
            "it has the schedules 1f1b and interleaved": (
                layout.schedule not in ("1f1b", "interleaved")
            ),
            "sequence parallelism comes with tp": layout.sequence_parallel and layout.tp == 1,
            "mixtures with tp need sequence parallelism": (
                shape.experts > 0 and layout.tp > 1 and not layout.sequence_parallel
            ),
            "its context parallelism cuts the sequence into 2·cp equal parts": (
                layout.cp > 1 and job.sequence % (2 * layout.cp) > 0
            ),
            "its FSDP gathers weights in every pass": not layout.reshard,
            "its shard groups belong to stage 1": layout.shard_groups > 1 and _by_fsdp(job),
            "it exchanges gradients as its stage does": not as_its_stage_does(layout),
            "it keeps fp32 weights": not keeps_fp32(job),
            "it computes in the precision of the weights": (
                recipe.compute not in (None, recipe.parameters)
            ),
            f"it has no optimizer {recipe.optimizer!r}": recipe.optimizer not in _OPTIMIZERS,
            f"it does not recompute {recipe.recompute!r}": recipe.recompute == "operators",
            "it recomputes the core of attention in all layers": (
                recipe.recompute == "selective" and recipe.recompute_layers is not None
            ),
            "offloading is not written here": recipe.offload != "none",
        },
    )


def _of_the_model(shape: TransformerShape) -> dict[str, bool]:
    """What its GPT does not have."""
    return {
        "its layers have two norms": shape.layer_norms != 2,
        "its norms have weights": shape.norm == "plain",
        "it has a bias in attention's output only with all others": (
            shape.output_bias != shape.biases
        ),
        "its norms of queries and keys are of one head": shape.qk_norm == "all",
    }


def _model(job: Job) -> Arguments:
    shape = job.shape
    grouped = shape.mla is None and shape.kv_heads != shape.heads
    positions = "learned_absolute" if shape.learned_positions else "rope"
    return {
        "num-layers": shape.layers,
        "hidden-size": shape.hidden,
        "ffn-hidden-size": shape.ffn,
        "num-attention-heads": shape.heads,
        **({"group-query-attention": True, "num-query-groups": shape.kv_heads} if grouped else {}),
        **({"kv-channels": shape.head_width} if shape.mla is None else {}),
        "seq-length": job.sequence,
        "max-position-embeddings": max(shape.context, job.sequence),
        "position-embedding-type": positions,
        "vocab-size": shape.vocab,
        "normalization": "RMSNorm" if shape.norm == "rmsnorm" else "LayerNorm",
        "swiglu": shape.mlp == "swiglu",
        "disable-bias-linear": not shape.biases,
        "add-qkv-bias": shape.qkv_biases and not shape.biases,
        "qk-layernorm": shape.qk_norm == "head",
        "untie-embeddings-and-output-weights": not shape.tied_embeddings,
        **_latent(shape),
        **_experts(shape),
        **({} if job.recipe.dropout else {"attention-dropout": 0.0, "hidden-dropout": 0.0}),
        "attention-backend": "flash" if job.recipe.attention == "flash" else "unfused",
    }


def _latent(shape: TransformerShape) -> Arguments:
    mla = shape.mla
    if mla is None:
        return {}
    return {
        "multi-latent-attention": True,
        **({"q-lora-rank": mla.q_rank} if mla.q_rank is not None else {}),
        "kv-lora-rank": mla.kv_rank,
        "qk-head-dim": mla.nope_dim,
        "qk-pos-emb-head-dim": mla.rope_dim,
        "v-head-dim": mla.value_dim,
    }


def _experts(shape: TransformerShape) -> Arguments:
    if not shape.experts:
        return {}
    dense, mixed = shape.dense_layers, shape.layers - shape.dense_layers
    shared = shape.shared_experts * shape.expert_width
    return {
        "num-experts": shape.experts,
        "moe-router-topk": shape.top_k,
        "moe-ffn-hidden-size": shape.expert_width,
        "moe-layer-freq": f"([0]*{dense}+[1]*{mixed})",
        **({"moe-shared-expert-intermediate-size": shared} if shared else {}),
        "moe-shared-expert-gate": shape.shared_gate,
        "moe-token-dispatcher-type": "alltoall",
        "moe-grouped-gemm": True,
    }


def _degrees(job: Job) -> Arguments:
    layout = job.layout
    experts = {
        "expert-model-parallel-size": layout.ep,
        "expert-tensor-parallel-size": layout.tp,
    }
    return {
        "tensor-model-parallel-size": layout.tp,
        "sequence-parallel": layout.sequence_parallel,
        "context-parallel-size": layout.cp,
        "pipeline-model-parallel-size": layout.pp,
        **(experts if job.shape.experts else {}),
        "micro-batch-size": layout.micro_batch,
        "global-batch-size": layout.global_batch,
    }


def _pipeline(job: Job) -> Arguments:
    """How layers are dealt out; as a list where chunks differ."""
    layout = job.layout
    layers = layout.chunk_layers(job.shape)
    if layout.pp == 1:
        return {}
    group = (
        {}
        if layout.group is None
        else {"microbatch-group-size-per-virtual-pipeline-stage": layout.group}
    )
    if len(set(layers)) > 1:
        chunks = [f"t*{count}" if count else "" for count in layers]
        chunks[0], chunks[-1] = f"E{chunks[0]}", f"{chunks[-1]}L"
        return {"pipeline-model-parallel-layout": "|".join(chunks), **group}
    if layout.virtual_stages == 1:
        return group
    return {"num-virtual-stages-per-pipeline-rank": layout.virtual_stages, **group}


def _states(job: Job) -> Arguments:
    """Precision, optimizer, and which ranks keep what."""
    layout, recipe = job.layout, job.recipe
    name, more = _OPTIMIZERS[recipe.optimizer]
    sharding: Arguments = {"use-distributed-optimizer": layout.zero_stage > 0}
    if layout.shard_groups > 1:
        sharding = {**sharding, "num-distributed-optimizer-instances": layout.shard_groups}
    if _by_fsdp(job):
        sharding = {
            **sharding,
            "use-megatron-fsdp": True,
            "data-parallel-sharding-strategy": _SHARDING[layout.zero_stage],
            "ckpt-format": "fsdp_dtensor",
        }
    return {
        "bf16": precision(job) == "bf16",
        "fp16": precision(job) == "fp16",
        "grad-reduce-in-bf16": precision(job) == "bf16" and recipe.accumulated_bytes == 2,
        "no-gradient-accumulation-fusion": not recipe.fused_accumulation,
        "optimizer": name,
        **more,
        **sharding,
    }


def _recompute(job: Job) -> Arguments:
    recipe = job.recipe
    if recipe.recompute == "none":
        return {}
    if recipe.recompute == "selective":
        return {"recompute-granularity": "selective", "recompute-modules": "core_attn"}
    if recipe.recompute_layers is None:
        layers: Arguments = {"recompute-method": "uniform", "recompute-num-layers": 1}
    else:
        layers = {"recompute-method": "block", "recompute-num-layers": recipe.recompute_layers}
    return {"recompute-granularity": "full", **layers}
