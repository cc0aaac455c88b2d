"""Export to Megatron-LM: a script with the arguments of pretrain_gpt.py.

Source: megatron/training/arguments.py and megatron/core/transformer/transformer_config.py of
github.com/NVIDIA/Megatron-LM at core_v0.19.2; core_v0.16.1 reads it as well.
"""

import shlex
from collections.abc import Iterator, Mapping

from course_lib.emitting.head import (
    as_its_stage_does,
    every,
    keeps_fp32,
    precision,
    rendezvous,
    script,
)
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.models import Constants, stretching, untold
from course_lib.theory.inputs.shape import TransformerShape

NAME, VERSION = "Megatron-LM", "Megatron-LM core_v0.19.2"
FILE = "megatron.sh"
# True is a flag without a value; False and None are omitted.
Arguments = Mapping[str, object]
_OPTIMIZERS = {
    "adamw": ("adam", {}),
    "sgd": ("sgd", {"sgd-momentum": 0.0}),
    "momentum": ("sgd", {}),
}
_SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
# Not part of the plan: settings for a first run, as in NVIDIA's own examples.
_RUN = {
    "lr": 3e-4,
    "min-lr": 3e-5,
    "lr-decay-style": "cosine",
    "lr-warmup-fraction": 0.01,
    "weight-decay": 0.1,
    "adam-beta2": 0.95,
    "clip-grad": 1.0,
    "eval-interval": 1000,
    "eval-iters": 32,
    "log-interval": 1,
    "log-throughput": True,
    "distributed-timeout-minutes": 60,
}
_NEEDS = {
    "MEGATRON": "a clone of github.com/NVIDIA/Megatron-LM at core_v0.19.2",
    "DATA": "mock for a first run; else the prefix of .bin and .idx from tools/preprocess_data.py",
}
_ALSO = {"TOKENIZER": "unless DATA is mock: a Hugging Face tokenizer, its name or its folder"}
_OWN = """\
if [ "$DATA" = mock ]; then
    data=(--mock-data --tokenizer-type NullTokenizer)
else
    : "${TOKENIZER:?a Hugging Face tokenizer, its name or its folder}"
    # Several prefixes with their weights are a mixture: "0.3 a 0.7 b".
    data=(--data-path $DATA --data-cache-path "$CHECKPOINTS/index")
    data+=(--tokenizer-type HuggingFaceTokenizer --tokenizer-model "$TOKENIZER")
fi
run=(
    --train-iters "${STEPS:-100}"
    --save "$CHECKPOINTS" --load "$CHECKPOINTS"
"""


def files(job: Job, model: str, constants: Constants) -> dict[str, str]:
    """The text of `megatron.sh`."""
    if _by_fsdp(job):
        connections = "unset CUDA_DEVICE_MAX_CONNECTIONS"  # required by Megatron's FSDP
    else:
        connections = "export CUDA_DEVICE_MAX_CONNECTIONS=1"  # required by its tp and cp
    body = f"""\
{connections}
model=(
{_listed({**_model(job), **_constants(job.shape, constants)})}
)
plan=(
{_listed(_plan(job))}
)
{_OWN}{_listed({"save-interval": every(job), **_RUN})}
)
{rendezvous(job)} \\
    "$MEGATRON/pretrain_gpt.py" "${{model[@]}}" "${{plan[@]}}" "${{data[@]}}" "${{run[@]}}" "$@"
"""
    more = list(_notes(job, constants))
    return {FILE: script(job, model, VERSION, body, file=FILE, needs=_NEEDS, also=_ALSO, more=more)}


def _notes(job: Job, constants: Constants) -> Iterator[str]:
    yield f"the vocabulary is padded to a multiple of {128 * job.layout.tp}"
    yield "steps and learning rates are not of the plan: the last list has a first run's"
    yield from untold(constants, ["llama3" if job.shape.mla is None else "yarn"])


def _listed(arguments: Arguments) -> str:
    """The arguments, quoted for bash, one per line."""
    lines = []
    for name, value in arguments.items():
        if value is not False and value is not None:
            words = [f"--{name}"] if value is True else [f"--{name}", str(value)]
            lines.append(f"    {shlex.join(words)}")
    return "\n".join(lines)


def _by_fsdp(job: Job) -> bool:
    """Whether Megatron's own FSDP is needed; its distributed optimizer is stage 1."""
    return job.layout.zero_stage >= 2


def reasons(job: Job) -> dict[str, bool]:
    """Limitations of Megatron-LM -> whether the job violates them."""
    layout, recipe, shape = job.layout, job.recipe, job.shape
    return {
        "its layers have two norms": shape.layer_norms != 2,
        "its norms have weights": shape.norm == "plain",
        "it has a bias in attention's output only with all others": (
            shape.output_bias != shape.biases
        ),
        "its norms of queries and keys are of one head": shape.qk_norm == "all",
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
    }


def _model(job: Job) -> Arguments:
    shape, mla = job.shape, job.shape.mla
    grouped = mla is None and shape.kv_heads != shape.heads
    undropped = None if job.recipe.dropout else 0.0
    made: dict[str, object] = {
        "num-layers": shape.layers,
        "hidden-size": shape.hidden,
        "ffn-hidden-size": shape.ffn,
        "num-attention-heads": shape.heads,
        "group-query-attention": grouped,
        "num-query-groups": shape.kv_heads if grouped else None,
        "kv-channels": shape.head_width if mla is None else None,
        "seq-length": job.sequence,
        "max-position-embeddings": max(shape.context, job.sequence),
        "position-embedding-type": "learned_absolute" if shape.learned_positions else "rope",
        "vocab-size": shape.vocab,
        "normalization": "RMSNorm" if shape.norm == "rmsnorm" else "LayerNorm",
        "swiglu": shape.mlp == "swiglu",
        "disable-bias-linear": not shape.biases,
        "add-qkv-bias": shape.qkv_biases and not shape.biases,
        "qk-layernorm": shape.qk_norm == "head" or mla is not None,  # of the latents
        "untie-embeddings-and-output-weights": not shape.tied_embeddings,
    }
    if mla is not None:
        made |= {
            "multi-latent-attention": True,
            "q-lora-rank": mla.q_rank,
            "kv-lora-rank": mla.kv_rank,
            "qk-head-dim": mla.nope_dim,
            "qk-pos-emb-head-dim": mla.rope_dim,
            "v-head-dim": mla.value_dim,
        }
    if shape.experts:
        dense, mixed = shape.dense_layers, shape.layers - shape.dense_layers
        made |= {
            "num-experts": shape.experts,
            "moe-router-topk": shape.top_k,
            "moe-ffn-hidden-size": shape.expert_width,
            "moe-layer-freq": f"([0]*{dense}+[1]*{mixed})",
            "moe-shared-expert-intermediate-size": (
                shape.shared_experts * shape.expert_width or None
            ),
            "moe-shared-expert-gate": shape.shared_gate,
            "moe-token-dispatcher-type": "alltoall",
            "moe-grouped-gemm": True,
        }
    return made | {
        "attention-dropout": undropped,
        "hidden-dropout": undropped,
        "attention-backend": "flash" if job.recipe.attention == "flash" else "unfused",
    }


# Configuration entries -> Megatron's flags; entries not listed belong to other kinds of models.
_FLAGS = {
    "rope_theta": "rotary-base",
    "partial_rotary_factor": "rotary-percent",
    **dict.fromkeys(("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps"), "norm-epsilon"),
}
_ROUTER_FLAGS = {
    "scoring_func": "moe-router-score-function",
    "n_group": "moe-router-num-groups",
    "topk_group": "moe-router-group-topk",
    "routed_scaling_factor": "moe-router-topk-scaling-factor",
    "router_aux_loss_coef": "moe-aux-loss-coeff",
    "aux_loss_alpha": "moe-aux-loss-coeff",
}
_YARN_FLAGS = {
    "factor": "rotary-scaling-factor",
    "mscale": "mscale",
    "mscale_all_dim": "mscale-all-dim",
}


def _constants(shape: TransformerShape, constants: Constants) -> Arguments:
    """Arguments for the model's constants beyond its sizes."""

    def called(names: Mapping[str, str], values: Constants) -> dict[str, object]:
        return {flag: values[key] for key, flag in names.items() if key in values}

    arguments = called(_FLAGS, constants)
    if "rotary-base" in arguments:
        arguments["rotary-base"] = round(constants["rope_theta"])  # parsed as an integer
    scaling, kind = stretching(constants)
    if shape.mla is not None:
        arguments["rope-type"] = "yarn" if kind == "yarn" else "rope"
        arguments |= called(_YARN_FLAGS, scaling)
    elif kind == "llama3":
        arguments |= {"use-rope-scaling": True, "rope-scaling-factor": scaling["factor"]}
    if shape.experts:
        # By default Megatron takes the softmax over the chosen experts, which sums to 1.
        first = not constants.get("norm_topk_prob", True) or shape.top_k == 1
        balancing = "seq_aux_loss" if constants.get("seq_aux") else "aux_loss"
        arguments |= called(_ROUTER_FLAGS, constants)
        arguments |= {
            "moe-router-dtype": "fp32",
            "moe-router-pre-softmax": first and constants.get("scoring_func") != "sigmoid",
            "moe-router-enable-expert-bias": constants.get("topk_method") == "noaux_tc",
            "moe-router-load-balancing-type": balancing,
        }
    return arguments


def _plan(job: Job) -> Arguments:
    """Arguments for degrees, pipeline, precision, optimizer, sharding and recomputation."""
    layout, recipe, experts = job.layout, job.recipe, job.shape.experts > 0
    name, more = _OPTIMIZERS[recipe.optimizer]
    exchanges = layout.dp * layout.cp > 1
    made: dict[str, object] = {
        "tensor-model-parallel-size": layout.tp,
        "sequence-parallel": layout.sequence_parallel,
        "context-parallel-size": layout.cp,
        "pipeline-model-parallel-size": layout.pp,
        "expert-model-parallel-size": layout.ep if experts else None,
        "expert-tensor-parallel-size": layout.tp if experts else None,
        "micro-batch-size": layout.micro_batch,
        "global-batch-size": layout.global_batch,
        **_pipeline(job),
        "bf16": precision(job) == "bf16",
        "fp16": precision(job) == "fp16",
        "grad-reduce-in-bf16": precision(job) == "bf16" and recipe.accumulated_bytes == 2,
        "no-gradient-accumulation-fusion": not recipe.fused_accumulation,
        "optimizer": name,
        **more,
        "use-distributed-optimizer": layout.zero_stage > 0,
        # The plan's predicted time assumes that dp messages overlap with computing.
        "overlap-grad-reduce": exchanges,
        "overlap-param-gather": exchanges and layout.zero_stage > 0,
        "num-distributed-optimizer-instances": layout.shard_groups > 1 and layout.shard_groups,
    }
    if _by_fsdp(job):
        made |= {
            "use-megatron-fsdp": True,
            "data-parallel-sharding-strategy": _SHARDING[layout.zero_stage],
            "ckpt-format": "fsdp_dtensor",
            # Recommended in docs/user-guide/features/megatron_fsdp.md: no rank ever holds the whole
            # model, and gradients are summed unscaled; the factor is applied once at the end.
            "init-model-with-meta-device": layout.zero_stage == 3,
            "calculate-per-token-loss": True,
        }
    if recipe.recompute == "selective":
        made |= {"recompute-granularity": "selective", "recompute-modules": "core_attn"}
    elif recipe.recompute != "none":
        made |= {
            "recompute-granularity": "full",
            "recompute-method": "uniform" if recipe.recompute_layers is None else "block",
            "recompute-num-layers": recipe.recompute_layers or 1,
        }
    return made


def _pipeline(job: Job) -> Arguments:
    """Arguments for the pipeline's stages; an explicit layout if chunks differ in size."""
    layout, layers = job.layout, job.layout.chunk_layers(job.shape)
    if layout.pp == 1:
        return {}
    uneven = len(set(layers)) > 1
    chunks = [f"t*{count}" if count else "" for count in layers]
    chunks[0], chunks[-1] = f"E{chunks[0]}", f"{chunks[-1]}L"
    looped = layout.virtual_stages > 1 and not uneven
    return {
        "pipeline-model-parallel-layout": "|".join(chunks) if uneven else None,
        "num-virtual-stages-per-pipeline-rank": layout.virtual_stages if looped else None,
        "microbatch-group-size-per-virtual-pipeline-stage": layout.group,
    }
