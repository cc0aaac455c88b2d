"""The plans that all tests of this folder emit: what large models need, and each setting once."""

from dataclasses import replace

from course_lib.theory.inputs.hardware import Cluster, accelerator
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import model
from course_lib.theory.inputs.recipe import MIXED_16, RECIPES, Recipe
from course_lib.theory.inputs.shape import TransformerShape

FSDP = Recipe(parameters="fp32", compute="bf16", gradients="fp32", master_copy=False)
FULL = replace(MIXED_16, recompute="full")
SMALL = TransformerShape(4, 32, 4, 128, 128, 16)  # what the demos train


def _job(name, layout, recipe=MIXED_16, *, sequence=4096, nodes=None, gpus=8):
    shape = SMALL if name == "small" else model(name)
    nodes = nodes or -(-layout.world // gpus)
    cluster = Cluster(accelerator("H100-SXM"), nodes, gpus)
    return Job(shape, recipe, layout, cluster, sequence)


SEVENTY = Layout(dp=2, tp=8, pp=4, accumulation=16, zero_stage=1, sequence_parallel=True)
INTERLEAVED = replace(SEVENTY, schedule="interleaved", virtual_stages=5)

# Each plan, and the engines that can run it; slurm and trainjob can run all.
PLANS = {
    "7b ddp": (
        _job("llama2-7b", Layout(dp=8, accumulation=4)),
        "megatron deepspeed torchtitan accelerate",
    ),
    "7b zero-1": (
        _job("llama2-7b", Layout(dp=8, zero_stage=1, micro_batch=2)),
        "megatron deepspeed",
    ),
    "7b zero-2": (
        _job("llama2-7b", Layout(dp=8, zero_stage=2, accumulation=2)),
        "megatron deepspeed",
    ),
    "7b zero-3": (
        _job("llama2-7b", Layout(dp=8, zero_stage=3, micro_batch=2, accumulation=2), FULL),
        "megatron deepspeed torchtitan accelerate",
    ),
    "7b fsdp, kept gathered": (
        _job("llama2-7b", Layout(dp=8, zero_stage=3, reshard=False), FSDP),
        "torchtitan accelerate",
    ),
    "8b hsdp": (
        _job("llama3-8b", Layout(dp=16, zero_stage=3, shard_group=8), FSDP),
        "torchtitan accelerate",
    ),
    "8b hybrid zero-1": (
        _job("llama3-8b", Layout(dp=16, zero_stage=1, shard_group=8), RECIPES["megatron-18"]),
        "megatron",
    ),
    "8b cp": (
        _job("llama3-8b", Layout(dp=4, cp=4, zero_stage=3), FSDP, sequence=131072),
        "torchtitan accelerate",
    ),
    "8b cp and tp": (
        _job(
            "llama3-8b",
            Layout(dp=2, tp=2, cp=4, zero_stage=1, sequence_parallel=True),
            RECIPES["megatron-18"],
            sequence=32768,
        ),
        "megatron",
    ),
    "70b": (_job("llama3-70b", SEVENTY, FULL), "megatron"),
    "70b interleaved": (_job("llama3-70b", INTERLEAVED), "megatron"),
    "70b interleaved fsdp": (
        _job("llama3-70b", replace(INTERLEAVED, zero_stage=3)),
        "megatron torchtitan",
    ),
    "70b in groups": (_job("llama3-70b", replace(INTERLEAVED, group=8)), "megatron"),
    "70b uneven, in groups": (
        _job("llama2-70b", replace(INTERLEAVED, group=8, stage_layers=(3, *[4] * 18, 5))),
        "megatron",
    ),
    "70b uneven": (
        _job("llama2-70b", replace(SEVENTY, zero_stage=0, stage_layers=(19, 21, 21, 19))),
        "megatron torchtitan",
    ),
    "70b gpipe": (
        _job("llama2-70b", replace(SEVENTY, zero_stage=3, schedule="gpipe")),
        "torchtitan",
    ),
    "70b in a v": (
        _job("llama2-70b", replace(SEVENTY, zero_stage=3, schedule="zbv")),
        "torchtitan",
    ),
    "70b, first layers recomputed": (
        _job("llama2-70b", SEVENTY, replace(FULL, recompute_layers=5)),
        "megatron",
    ),
    "mixtral": (
        _job("mixtral-8x7b", Layout(dp=8, tp=2, ep=8, zero_stage=1, sequence_parallel=True)),
        "megatron",
    ),
    "deepseek-v3": (
        _job(
            "deepseek-v3",
            Layout(
                *(8, 8, 16, 1, 8),  # dp, tp, pp, cp, ep
                zero_stage=1,
                accumulation=32,
                sequence_parallel=True,
                stage_layers=(3, *[4] * 14, 2),
            ),
        ),
        "megatron",
    ),
    "gpt2 fp32": (
        _job("gpt2-124m", Layout(dp=2), RECIPES["fp32-16"], sequence=1024, gpus=2),
        "megatron deepspeed accelerate",
    ),
    "gpt3 zero-bubble": (
        _job("gpt3-175b", Layout(tp=8, pp=8, accumulation=16, schedule="zb1p"), sequence=2048),
        "",
    ),
    "demo": (
        _job(
            "small",
            Layout(dp=2, pp=2, micro_batch=2, accumulation=2),
            RECIPES["fp32-16"],
            sequence=16,
            gpus=2,
        ),
        "megatron",
    ),
}
JOBS = {name: job for name, (job, _) in PLANS.items()}


def of(engine):
    """The plans that an engine can run."""
    return {name: job for name, (job, engines) in PLANS.items() if engine in engines.split()}
