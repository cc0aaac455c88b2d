"""Export to accelerate: FSDP2 for ZeRO-3, plain data parallelism for stage 0.

Keys: huggingface.co/docs/accelerate, "Launch tutorial" and "FSDP2"; read by version 1.15.
"""

from typing import Any

from course_lib.emitting.head import (
    head,
    keeps_fp32,
    precision,
    script,
)
from course_lib.emitting.training import NEEDS, RECOMPUTE, program, program_reasons
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.models import Constants

NAME, VERSION = "accelerate", "accelerate 1.15"
FILE, SCRIPT, PROGRAM = "accelerate.yaml", "accelerate.sh", "train_accelerate.py"
_IMPORTS = """\
from accelerate import Accelerator, init_empty_weights
from accelerate.utils import GradientAccumulationPlugin"""
_MAIN = """\
def main():
    plugin = GradientAccumulationPlugin(num_steps=ACCUMULATION, sync_each_batch={each})
    accelerator = Accelerator(gradient_accumulation_plugin=plugin)
    check()
    torch.manual_seed(0)
    {made}
{recompute}    model, optimizer = accelerator.prepare(model, optimizer_of(model.parameters()))
    saved = sorted(CHECKPOINTS.glob("step-*/done"))
    if saved:
        accelerator.load_state(saved[-1].parent)
    start = int(saved[-1].parent.name.removeprefix("step-")) if saved else 0
    # Ranks that share their sequences, {shared} of them, follow one another.
    rank, ranks = accelerator.process_index // {shared}, accelerator.num_processes // {shared}
    for step in range(start, STEPS):
        for ids in batches(step, rank, ranks):
            ids = ids.to(accelerator.device)
            shifted = torch.nn.functional.pad(ids[:, 1:], (0, 1), value=-100)
            positions = torch.arange(SEQUENCE, device=ids.device).repeat(len(ids), 1)
            parts = {{"input_ids": ids, "labels": ids.clone(), "shift_labels": shifted}}
            parts["position_ids"] = positions
            cut = {{"buffers": list(parts.values()), "buffer_seq_dims": [1] * len(parts)}}
            with (
                accelerator.accumulate(model),
                accelerator.maybe_context_parallel(**cut, no_restore_buffers=set(cut["buffers"])),
            ):
                loss = model(**parts, use_cache=False).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        accelerator.print(f"update {{step + 1}}: loss {{loss.item():.4f}}", flush=True)
        if (step + 1) % SAVE_EVERY == 0 or step + 1 == STEPS:
            folder = CHECKPOINTS / f"step-{{step + 1:09}}"
            accelerator.save_state(folder)
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:
                (folder / "done").touch()
    accelerator.end_training()
"""
_WHOLE = "model = built()"
# Only the first rank initializes the values, in host memory, and distributes them. The others'
# tensors are never touched, and so take no memory, but must exist, since accelerate identifies an
# optimizer's weights by their addresses.
_ONCE = """\
if accelerator.is_main_process:
        model = built()
    else:
        with init_empty_weights(include_buffers=False):
            model = built()
        for module in model.modules():
            for name, weight in module.named_parameters(recurse=False):
                empty = torch.nn.Parameter(torch.empty_like(weight, device="cpu"))
                setattr(module, name, empty)
        model.tie_weights()"""
_CUT = """\
model = AutoModelForCausalLM.from_pretrained(
        os.environ["MODEL"],
        attn_implementation="{attention}",
        dtype=torch.float32,
        tp_size={tp},
        tp_plan="auto",
        device_mesh=accelerator.torch_device_mesh,
    )"""


def files(job: Job, model: str, _constants: Constants) -> dict[str, str]:
    """The texts of `accelerate.yaml`, its program and its script."""
    import yaml

    layout, recipe = job.layout, job.recipe
    more = [f"started by {SCRIPT}"]
    if recipe.master_copy and layout.zero_stage:
        more.append("weights and gradients are fp32 shards, not 16-bit ones with an fp32 copy")
    made = _CUT.format(tp=layout.tp, attention="sdpa") if layout.tp > 1 else _ONCE
    code = program(
        job,
        _IMPORTS,
        _MAIN,
        made=made if layout.zero_stage else _WHOLE,
        each=layout.reduces == "micro-batch",
        # FSDP's wrapper handles recomputation itself.
        recompute="" if layout.zero_stage or recipe.recompute == "none" else RECOMPUTE,
        shared=layout.cp * layout.tp,
    )
    first = head(job, model, VERSION, more)
    where = ' --machine_rank "${NODE:-$SLURM_NODEID}"'
    where += ' --main_process_ip "$HEAD" --main_process_port "$PORT"'
    also = {"NODE": "the number of this node from 0, where neither Slurm nor a TrainJob counts"}
    if job.cluster.nodes == 1:
        where, also = "", {}
    body = f'accelerate launch --config_file {FILE}{where} \\\n    {PROGRAM} "$@"\n'
    needs = dict(NEEDS)
    if layout.tp > 1:
        needs["MODEL"] += ", with weights: transformers cuts matrices only as it loads them"
    text = yaml.safe_dump(_settings(job), sort_keys=False)
    return {
        FILE: first + text,
        PROGRAM: first + code,
        SCRIPT: script(job, model, VERSION, body, file=SCRIPT, needs=needs, also=also),
    }


def reasons(job: Job) -> dict[str, bool]:
    """Limitations of accelerate -> whether the job violates them."""
    layout, recipe = job.layout, job.recipe
    return {
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
        "it moves weights to the host as well": recipe.offload != "none",
        **program_reasons(job),
    }


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
        "fsdp_cpu_ram_efficient_loading": layout.tp == 1,
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
