"""DeepSpeed's configuration for ZeRO; the keys are those of the demo `launchers`, at full size.

DeepSpeed reads Hjson, which is JSON with comments.
"""

import json
from typing import Any

from course_lib.demos.launchers.deepspeed_config import deepspeed_config
from course_lib.emitting.head import (
    as_its_stage_does,
    head,
    keeps_fp32,
    left_to_program,
    on_each_node,
    precision,
    refuse,
    rendezvous,
)
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.recipe import PRECISION_BYTES

VERSION = "DeepSpeed 0.19.8"
FILE = "deepspeed.hjson"


def files(job: Job, model: str) -> dict[str, str]:
    """`deepspeed.hjson`. Raises ValueError for what DeepSpeed's configuration has no words for."""
    _check(job)
    more = [
        *on_each_node(job, f"{rendezvous(job)} train.py"),
        f'in train.py: deepspeed.initialize(model=model, optimizer=optimizer, config="{FILE}")',
        left_to_program(job, "sequence", "recompute", "optimizer", "attention"),
    ]
    text = json.dumps(_settings(job), indent=2)
    return {FILE: f"{head(job, model, VERSION, more)}{text}\n"}


def _check(job: Job) -> None:
    layout, recipe = job.layout, job.recipe
    refuse(
        "DeepSpeed",
        job,
        {
            "its pipeline is a kind of model, not a setting": layout.pp > 1,
            "matrices are cut by the model": layout.tp > 1,
            "sequences are cut by the model": layout.cp > 1,
            "experts are spread by the model": layout.ep > 1,
            "it shards over all ranks, since MiCS was removed": layout.shard_groups > 1,
            "its stage 3 gathers weights in every pass": not layout.reshard,
            "it exchanges gradients as its stage does": not as_its_stage_does(layout),
            "it keeps fp32 weights": not keeps_fp32(job),
            "it computes in the precision of the weights": recipe.compute is not None,
            "its stage 0 sums gradients in the precision of the weights": (
                not layout.zero_stage
                and precision(job) != "fp32"
                and recipe.accumulated_bytes == PRECISION_BYTES["fp32"]
            ),
            "it offloads the optimizer of stages 1, 2 and 3": (
                recipe.offload != "none" and not layout.zero_stage
            ),
        },
    )


def _settings(job: Job) -> dict[str, Any]:
    layout, recipe = job.layout, job.recipe
    settings = deepspeed_config(
        layout.zero_stage,
        layout.micro_batch,
        layout.accumulation,
        ranks=layout.dp,
        offload=recipe.offload == "optimizer",
    )
    zero = settings["zero_optimization"]
    zero["overlap_comm"] = True  # a GPU has streams
    # The demo's buckets are for small models: these are DeepSpeed's own.
    for name in ("reduce_bucket_size", "allgather_bucket_size"):
        zero[name] = 500_000_000
    zero.pop("stage3_param_persistence_threshold", None)
    if precision(job) != "fp32":
        settings[precision(job)] = {"enabled": True}
        sums = "fp32" if recipe.accumulated_bytes == PRECISION_BYTES["fp32"] else precision(job)
        settings["data_types"] = {"grad_accum_dtype": sums}
    return settings
