"""Export to DeepSpeed's ZeRO, based on the demos' configuration, with full-size buckets.

DeepSpeed reads Hjson, which is JSON with comments.
"""

import json
from typing import Any

from course_lib.demos.shared.deepspeed_config import deepspeed_config
from course_lib.emitting.head import (
    as_its_stage_does,
    head,
    keeps_fp32,
    precision,
    rendezvous,
    script,
)
from course_lib.emitting.training import NEEDS, RECOMPUTE, program, program_reasons
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.models import Constants
from course_lib.theory.inputs.recipe import PRECISION_BYTES
from course_lib.theory.memory.states import local_parameters

NAME, VERSION = "DeepSpeed", "DeepSpeed 0.19.8"
FILE, SCRIPT, PROGRAM = "deepspeed.hjson", "deepspeed.sh", "train_deepspeed.py"
_MAIN = """\
def main():
    deepspeed.init_distributed()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    check()
    torch.manual_seed(0)
    with deepspeed.zero.Init(config_dict_or_path="{file}", enabled={sharded}):
        model = built()
{values}{recompute}    optimizer = optimizer_of(model.parameters())
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config="{file}")
    state = engine.load_checkpoint(CHECKPOINTS)[1] or {{}}
    for step in range(state.get("step", 0), STEPS):
        for ids in batches(step, rank, ranks):
            ids = ids.to(engine.device)
            loss = engine(input_ids=ids, labels=ids, use_cache=False).loss
            engine.backward(loss)
            engine.step()
        if rank == 0:
            print(f"update {{step + 1}}: loss {{loss.item():.4f}}", flush=True)
        if (step + 1) % SAVE_EVERY == 0 or step + 1 == STEPS:
            engine.save_checkpoint(CHECKPOINTS, client_state={{"step": step + 1}})
"""
# Each module was sharded on construction, before transformers could initialize it.
_VALUES = """\
    for module in model.modules():
        own = list(module.parameters(recurse=False))
        with deepspeed.zero.GatheredParameters(own, modifier_rank=0):
            if rank == 0:
                model._init_weights(module)
"""


def files(job: Job, model: str, _constants: Constants) -> dict[str, str]:
    """The texts of `deepspeed.hjson`, its program and its script."""
    text = json.dumps(_settings(job), indent=2)
    sharded, full = job.layout.zero_stage == 3, job.recipe.recompute == "full"
    code = program(
        job,
        "import deepspeed",
        _MAIN,
        file=FILE,
        sharded=sharded,
        values=_VALUES if sharded else "",
        recompute=RECOMPUTE if full else "",
    )
    first = head(job, model, VERSION, [f"started by {SCRIPT}"])
    body = f'{rendezvous(job)} \\\n    {PROGRAM} "$@"\n'
    return {
        FILE: f"{first}{text}\n",
        PROGRAM: f"{first}{code}",
        SCRIPT: script(job, model, VERSION, body, file=SCRIPT, needs=NEEDS),
    }


def reasons(job: Job) -> dict[str, bool]:
    """Limitations of DeepSpeed -> whether the job violates them."""
    layout, recipe = job.layout, job.recipe
    return {
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
        **program_reasons(job),
    }


def _settings(job: Job) -> dict[str, Any]:
    layout, recipe = job.layout, job.recipe
    settings = deepspeed_config(
        layout.zero_stage,
        layout.micro_batch,
        layout.accumulation,
        ranks=layout.dp,
        clip=1.0,
        offload=recipe.offload == "optimizer",
    )
    zero = settings["zero_optimization"]
    zero["overlap_comm"] = True  # a GPU has streams
    # The demo's buckets are for small models: use DeepSpeed's defaults.
    for name in ("reduce_bucket_size", "allgather_bucket_size"):
        zero[name] = 500_000_000
    zero.pop("stage3_param_persistence_threshold", None)
    if layout.zero_stage == 3:
        # As many gathered weights at a time as the plan budgets: DeepSpeed's default limits do not
        # depend on the model. A layer's weights are released after each pass.
        local, ahead = local_parameters(job.shape), recipe.gathered_units - 1
        layer = local.layer_dense + local.layer_experts
        zero |= {
            "stage3_max_live_parameters": (1 + ahead) * layer + local.ends_dense,
            "stage3_prefetch_bucket_size": ahead * layer,
            "stage3_max_reuse_distance": 0,
        }
    if recipe.optimizer == "adamw-8bit":
        settings["zero_allow_untested_optimizer"] = True
    if precision(job) != "fp32":
        settings[precision(job)] = {"enabled": True}
        sums = "fp32" if recipe.accumulated_bytes == PRECISION_BYTES["fp32"] else precision(job)
        settings["data_types"] = {"grad_accum_dtype": sums}
    return settings
