"""Export to torchtitan, whose configuration since version 0.3 is a function in a Python module.

Sources: config/configs.py, trainer.py, models/llama3, distributed/pipeline_parallel.py of version
0.3.0. Its Llama 3 can have any sizes; its mixtures of experts are models of their own.
"""

from collections.abc import Iterator
from typing import Any

from course_lib.emitting.head import (
    as_its_stage_does,
    every,
    head,
    keeps_fp32,
    precision,
    rendezvous,
    script,
)
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.models import Constants, stretching, untold

NAME, VERSION = "torchtitan", "torchtitan 0.3.0"
FILE, SCRIPT = "titan_plan.py", "torchtitan.sh"
# Names in torch.distributed.pipelining; other schedules are not supported.
_SCHEDULES = {
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "gpipe": "GPipe",
    "zbv": "ZBVZeroBubble",
}
_RECOMPUTE = {"none": "None", "full": "FullAC.Config()", "operators": "SelectiveAC.Config()"}
_DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


_NEEDS = {
    "DATA": "JSON lines with a text each, as one file or a pattern: /data/*.jsonl",
    "TOKENIZER": "a folder with a Hugging Face tokenizer",
}


def files(job: Job, model: str, constants: Constants) -> dict[str, str]:
    """The texts of `titan_plan.py` and `torchtitan.sh`."""
    run = {
        "hf_assets_path": '"$TOKENIZER"',
        "dump_folder": '"$CHECKPOINTS"',
        "training.steps": '"${STEPS:-100}"',
    }
    options = " ".join(f"--{name}={value}" for name, value in run.items())
    body = f"""\
export PYTHONPATH="$PWD${{PYTHONPATH:+:$PYTHONPATH}}" PYTORCH_ALLOC_CONF=expandable_segments:True
{rendezvous(job)} \\
    -m torchtitan.train --module titan_plan --config planned {options} "$@"
"""
    more = list(_notes(job, constants))
    return {
        FILE: head(job, model, VERSION, more) + _code(job, constants),
        SCRIPT: script(job, model, VERSION, body, file=SCRIPT, needs=_NEEDS),
    }


def _notes(job: Job, constants: Constants) -> Iterator[str]:
    yield f"read by {SCRIPT}; the learning rate is not of the plan"
    yield from untold(constants, ["llama3"])
    if job.recipe.master_copy:
        yield "weights and gradients are fp32 shards here, not 16-bit ones with an fp32 copy"
    if job.layout.pp > 1 and job.layout.reduces != "update":
        yield "pipelines of torch exchange gradients once in an update, not as planned"


def reasons(job: Job) -> dict[str, bool]:
    """Limitations of torchtitan -> whether the job violates them."""
    shape, layout, recipe, cp = job.shape, job.layout, job.recipe, job.layout.cp
    cut = (2 * cp if cp > 1 else 1) * (layout.tp if layout.sequence_parallel else 1)
    return {
        "its mixtures of experts have sizes of their own": shape.experts > 0,
        "its Llama has a swiglu MLP and RMSNorms, two in a layer": (
            (shape.mlp, shape.norm, shape.layer_norms) != ("swiglu", "rmsnorm", 2)
        ),
        "its Llama has no biases": shape.biases or shape.qkv_biases or shape.output_bias,
        "its Llama has rotary positions": shape.learned_positions,
        "its Llama has plain attention, without norms of queries and keys": (
            shape.mla is not None or shape.qk_norm != "none"
        ),
        "its Llama's heads together are as wide as the model": (
            shape.head_width * shape.heads != shape.hidden
        ),
        "FSDP2 shards weights, gradients and optimizer states together, which is stage 3": (
            layout.zero_stage in (1, 2)
        ),
        "it shards over the cp ranks as well, which is stage 3": (
            layout.zero_stage == 0 and cp > 1
        ),
        "a shard group holds whole groups of cp ranks": layout.shard_ranks % cp > 0,
        "without a pipeline it exchanges gradients as its stage does": (
            layout.pp == 1 and not as_its_stage_does(layout)
        ),
        f"it has no schedule {layout.schedule!r}": layout.schedule not in _SCHEDULES,
        "its groups are of pp micro-batches": layout.group not in (None, layout.pp),
        f"its cp and tp cut the {job.sequence:,} tokens into {cut} equal parts": (
            job.sequence % cut > 0
        ),
        "it computes in bf16 or fp32": precision(job) not in _DTYPES,
        "its AdamW keeps moments in the precision of the weights": (
            recipe.optimizer != ("adamw" if keeps_fp32(job) else "adamw-bf16")
        ),
        f"it does not recompute {recipe.recompute!r}": recipe.recompute not in _RECOMPUTE,
        "it recomputes in all layers or in none": recipe.recompute_layers is not None,
        "it ties no embeddings across a pipeline": layout.pp > 1 and shape.tied_embeddings,
        "it moves weights to the host as well": recipe.offload != "none",
        "FlexAttention never keeps the scores": recipe.attention != "flash",
    }


def _code(job: Job, constants: Constants) -> str:
    shape, recipe, (training, parallelism) = job.shape, job.recipe, _settings(job)
    loss = "CrossEntropyLoss.Config(global_vocab_size=VOCAB)"
    if recipe.loss == "chunked":
        loss = f"ChunkedLossWrapper.Config(loss_fn={loss}, num_chunks={recipe.loss_chunks})"
    embedding = "_EMBEDDING_SKIP_INIT" if shape.tied_embeddings else "_EMBEDDING_INIT"
    return f"""\
import os

from datasets import load_dataset
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.optimizer import default_adamw
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.distributed.pipeline_parallel import pipeline_llm
from torchtitan.hf_datasets import DatasetConfig
from torchtitan.hf_datasets.text_datasets import DATASETS, HuggingFaceTextDataLoader
from torchtitan.models import llama3
from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.trainer import Trainer

VOCAB, WIDTH, EPSILON = {shape.vocab}, {shape.hidden}, {constants.get("rms_norm_eps", 1e-5)}


def layers(first: int, behind: int) -> list[str]:
    return [f"layers.{{number}}" for number in range(first, behind)]


CHUNKS = [
{_chunks(job)}]


def texts(files: str):
    return load_dataset("json", data_files=files, split="train", streaming=True)


def text(line: dict) -> str:
    return line["text"]


DATASETS["planned"] = DatasetConfig(
    path=os.environ.get("DATA", ""), loader=texts, sample_processor=text
)


def planned() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_spec(),
        loss={loss},
        optimizer=default_adamw(lr=3e-4),
        dataloader=HuggingFaceTextDataLoader.Config(dataset="planned"),
        checkpoint=CheckpointManager.Config(
            enable=True,
            interval={every(job)},  # half an hour, as predicted
            last_save_model_only=False,
        ),
        training=TrainingConfig(
{_arguments(training)}
        ),
        parallelism=ParallelismConfig(
{_arguments(parallelism)}
            module_fqns_per_model_part=CHUNKS if len(CHUNKS) > 1 else None,
        ),
        activation_checkpoint={_RECOMPUTE[recipe.recompute]},
    )


def model_spec() -> ModelSpec:
    return ModelSpec(
        name="llama3",
        flavor="planned",
        model=model(),
        parallelize_fn=llama3.parallelize_llama,
        pipelining_fn=pipeline_llm,
        post_optimizer_build_fn=None,
        state_dict_adapter=None,
    )


def model() -> llama3.Llama3Model.Config:
    layers = llama3._build_llama3_layers(
        n_layers={shape.layers},
        dim=WIDTH,
        n_heads={shape.heads},
        n_kv_heads={shape.kv_heads},
        hidden_dim={shape.ffn},
        rope=ComplexRoPE.Config({_rotary(job, constants)}),
        attn_backend="flex",
    )
    for layer in layers:
        layer.attention_norm.eps = layer.ffn_norm.eps = EPSILON
    return llama3.Llama3Model.Config(
        dim=WIDTH,
        vocab_size=VOCAB,
        enable_weight_tying={shape.tied_embeddings},
        tok_embeddings=Embedding.Config(
            num_embeddings=VOCAB, embedding_dim=WIDTH, param_init=llama3.{embedding}
        ),
        norm=RMSNorm.Config(
            normalized_shape=WIDTH, eps=EPSILON, param_init=llama3._NORM_INIT
        ),
        lm_head=Linear.Config(
            in_features=WIDTH, out_features=VOCAB, param_init=llama3._output_linear_init(WIDTH)
        ),
        layers=layers,
    )
"""


def _rotary(job: Job, constants: Constants) -> str:
    """The arguments of torchtitan's rotary embedding, with its names for Llama 3.1's scaling."""
    settings: dict[str, float | str] = {
        "dim": job.shape.head_width,
        "max_seq_len": job.sequence,
        "theta": float(constants.get("rope_theta", 10_000)),
    }
    scaling, kind = stretching(constants)
    if kind == "llama3":
        names = ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        settings |= {"scaling": "llama", "scaling_factor": scaling["factor"]}
        settings |= {name: scaling[name] for name in names if name in scaling}
    return ", ".join(f"{name}={value!r}" for name, value in settings.items())


def _arguments(settings: dict[str, Any]) -> str:
    """Keyword arguments, one per line, indented as the call in the file."""
    return "\n".join(f"            {name}={value!r}," for name, value in settings.items())


def _settings(job: Job) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of TrainingConfig and of ParallelismConfig."""
    layout = job.layout
    sharded, pipelined = layout.zero_stage == 3, layout.pp > 1
    training = {
        # A pipeline takes all micro-batches of an update at once, otherwise they are sequential.
        "local_batch_size": layout.micro_batch * (layout.accumulation if pipelined else 1),
        "global_batch_size": layout.global_batch,
        "seq_len": job.sequence,
        "dtype": "float32" if keeps_fp32(job) else "bfloat16",
        "mixed_precision_param": _DTYPES[precision(job)],
        "disable_cuda_graphs": True,
    }
    parallelism = {
        "data_parallel_replicate_degree": layout.shard_groups if sharded else layout.dp,
        "data_parallel_shard_degree": layout.shard_ranks // layout.cp if sharded else 1,
        "fsdp_reshard_after_forward": "always" if layout.reshard else "never",
        "tensor_parallel_degree": layout.tp,
        "enable_sequence_parallel": layout.sequence_parallel,
        "context_parallel_degree": layout.cp,
        "pipeline_parallel_degree": layout.pp,
    }
    if pipelined:
        parallelism["pipeline_parallel_schedule"] = _SCHEDULES[layout.schedule]
        parallelism["pipeline_parallel_microbatch_size"] = layout.micro_batch
    return training, parallelism


def _chunks(job: Job) -> str:
    """The modules of each pipeline chunk, one chunk per line, in model order."""
    layout = job.layout
    slices = [layout.layer_slice(job.shape, chunk) for chunk in range(layout.chunks)]
    parts = [f"*layers({first}, {behind})" for first, behind in slices]
    parts[0] = f'"tok_embeddings", {parts[0]}'
    parts[-1] += ', "norm", "lm_head"'
    return "".join(f"    [{part}],\n" for part in parts)
