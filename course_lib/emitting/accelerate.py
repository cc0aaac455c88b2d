"""The configuration of accelerate: FSDP2 for ZeRO-3, plain data parallelism for stage 0.

Keys: huggingface.co/docs/accelerate, "Launch tutorial" and "FSDP2"; read by version 1.15.
"""

from typing import Any

from course_lib.emitting.head import (
    head,
    keeps_fp32,
    left_to_program,
    on_each_node,
    precision,
    refuse,
)
from course_lib.theory.inputs.job import Job

VERSION = "accelerate 1.15"
FILE = "accelerate.yaml"


def files(job: Job, model: str) -> dict[str, str]:
    """`accelerate.yaml`. Raises ValueError for what accelerate cannot run."""
    import yaml

    _check(job)
    nodes = job.cluster.nodes
    where = ' --machine_rank "$SLURM_NODEID" --main_process_ip "$HEAD" --main_process_port "$PORT"'
    command = f"accelerate launch --config_file {FILE}{where if nodes > 1 else ''} train.py"
    more = [
        *on_each_node(job, command),
        left_to_program(job, "micro_batch", "sequence", "optimizer", "attention"),
    ]
    steps, each = job.layout.accumulation, job.layout.reduces == "micro-batch"
    more.append(f"and GradientAccumulationPlugin(num_steps={steps}, sync_each_batch={each})")
    if job.recipe.master_copy and job.layout.zero_stage:
        more.append("weights and gradients are fp32 shards, not 16-bit ones with an fp32 copy")
    if job.layout.zero_stage == 0 and job.recipe.recompute == "full":
        more.append("without FSDP the model itself has to recompute its layers")
    text = yaml.safe_dump(_settings(job), sort_keys=False)
    return {FILE: head(job, model, VERSION, more) + text}


def _check(job: Job) -> None:
    layout, recipe = job.layout, job.recipe
    refuse(
        "accelerate",
        job,
        {
            "it has no pipeline": layout.pp > 1,
            "its file has no word for expert parallelism": layout.ep > 1,
            "its tensor parallelism has no sequence parallelism": layout.sequence_parallel,
            "FSDP2 shards weights, gradients and optimizer states together, which is stage 3": (
                layout.zero_stage in (1, 2)
            ),
            "it cuts matrices or sequences only under FSDP2, which is stage 3": (
                layout.zero_stage == 0 and layout.tp * layout.cp > 1
            ),
            "a shard group holds whole groups of cp ranks": layout.shard_ranks % layout.cp > 0,
            "it keeps fp32 weights": not keeps_fp32(job),
            "FSDP2 recomputes whole layers or nothing": (
                recipe.recompute not in ("none", "full") or recipe.recompute_layers is not None
            ),
            "it moves weights to the host as well": recipe.offload != "none",
        },
    )


def _settings(job: Job) -> dict[str, Any]:
    layout, cluster = job.layout, job.cluster
    settings: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": _distributed_type(job),
        "mixed_precision": {"fp32": "no"}.get(precision(job), precision(job)),
        "num_machines": cluster.nodes,
        "num_processes": layout.world,
        "machine_rank": 0,
        "rdzv_backend": "static",
        "main_training_function": "main",
        "use_cpu": False,
    }
    if layout.zero_stage < 3:
        return settings
    settings["fsdp_config"] = {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": layout.reshard,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_activation_checkpointing": job.recipe.recompute == "full",
        "fsdp_offload_params": False,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }
    settings["parallelism_config"] = {
        "parallelism_config_dp_replicate_size": layout.shard_groups,
        "parallelism_config_dp_shard_size": layout.shard_ranks // layout.cp,
        "parallelism_config_tp_size": layout.tp,
        "parallelism_config_cp_size": layout.cp,
    }
    return settings


def _distributed_type(job: Job) -> str:
    if job.layout.world == 1:
        return "NO"
    return "FSDP" if job.layout.zero_stage == 3 else "MULTI_GPU"
