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


SEVENTY = Layout(dp=2, tp=8, pp=4, accumulation=16, zero_stage=1, sequence_parallel=True)
INTERLEAVED = replace(SEVENTY, schedule="interleaved", virtual_stages=5)
SHARDED = replace(SEVENTY, zero_stage=3)
# Each plan, and the engines that can run it; slurm and trainjob can run all.
PLANS: dict[str, tuple[Job, str]] = {}


def _plan(name, engines, shape, layout, recipe=MIXED_16, sequence=4096, gpus=8):
    shape = SMALL if shape == "small" else model(shape)
    cluster = Cluster(accelerator("H100-SXM"), -(-layout.world // gpus), gpus)
    PLANS[name] = Job(shape, recipe, layout, cluster, sequence), engines


ALL, TORCH = "megatron deepspeed torchtitan accelerate", "torchtitan accelerate"
_plan("7b ddp", ALL, "llama2-7b", Layout(dp=8, accumulation=4))
_plan("7b zero-1", "megatron deepspeed", "llama2-7b", Layout(dp=8, zero_stage=1, micro_batch=2))
_plan("7b zero-2", "megatron deepspeed", "llama2-7b", Layout(dp=8, zero_stage=2, accumulation=2))
_plan("7b zero-3", ALL, "llama2-7b", Layout(8, zero_stage=3, micro_batch=2, accumulation=2), FULL)
kept = Layout(dp=8, zero_stage=3, reshard=False)
_plan("7b fsdp, kept gathered", TORCH, "llama2-7b", kept, FSDP)
_plan("8b hsdp", TORCH, "llama3-8b", Layout(dp=16, zero_stage=3, shard_group=8), FSDP)
hybrid = Layout(dp=16, zero_stage=1, shard_group=8)
_plan("8b hybrid zero-1", "megatron", "llama3-8b", hybrid, RECIPES["megatron-18"])
_plan("8b cp", TORCH, "llama3-8b", Layout(dp=4, cp=4, zero_stage=3), FSDP, sequence=131072)
cut = Layout(dp=2, tp=2, cp=4, zero_stage=1, sequence_parallel=True)
_plan("8b cp and tp", "megatron", "llama3-8b", cut, RECIPES["megatron-18"], sequence=32768)
_plan("70b", "megatron", "llama3-70b", SEVENTY, FULL)
_plan("70b interleaved", "megatron", "llama3-70b", INTERLEAVED)
sharded = replace(INTERLEAVED, zero_stage=3)
_plan("70b interleaved fsdp", "megatron torchtitan", "llama3-70b", sharded)
_plan("70b in groups", "megatron", "llama3-70b", replace(INTERLEAVED, group=8))
uneven = replace(INTERLEAVED, group=8, stage_layers=(3, *[4] * 18, 5))
_plan("70b uneven, in groups", "megatron", "llama2-70b", uneven)
uneven = replace(SEVENTY, zero_stage=0, stage_layers=(19, 21, 21, 19))
_plan("70b uneven", "megatron torchtitan", "llama2-70b", uneven)
_plan("70b gpipe", "torchtitan", "llama2-70b", replace(SHARDED, schedule="gpipe"))
_plan("70b in a v", "torchtitan", "llama2-70b", replace(SHARDED, schedule="zbv"))
first = replace(FULL, recompute_layers=5)
_plan("70b, first layers recomputed", "megatron", "llama2-70b", SEVENTY, first)
mixture = Layout(dp=8, tp=2, ep=8, zero_stage=1, sequence_parallel=True)
_plan("mixtral", "megatron", "mixtral-8x7b", mixture)
mixture = Layout(dp=8, tp=8, pp=16, ep=8, zero_stage=1, accumulation=32, sequence_parallel=True)
mixture = replace(mixture, stage_layers=(3, *[4] * 14, 2))
_plan("deepseek-v3", "megatron", "deepseek-v3", mixture)
gpt2 = "megatron deepspeed accelerate"
_plan("gpt2 fp32", gpt2, "gpt2-124m", Layout(dp=2), RECIPES["fp32-16"], sequence=1024, gpus=2)
bubble = Layout(tp=8, pp=8, accumulation=16, schedule="zb1p")
_plan("gpt3 zero-bubble", "", "gpt3-175b", bubble, sequence=2048)
small = Layout(dp=2, pp=2, micro_batch=2, accumulation=2)
_plan("demo", "megatron", "small", small, RECIPES["fp32-16"], sequence=16, gpus=2)
JOBS = {name: job for name, (job, _) in PLANS.items()}


def of(engine):
    """The plans that an engine can run."""
    return {name: job for name, (job, engines) in PLANS.items() if engine in engines.split()}
