"""Programs, one per technique: run from a cell, by `course demo`, `python -m`, or torchrun."""

from importlib import import_module
from types import ModuleType
from typing import Any

from course_lib import launch
from course_lib.validation import choice

DEMOS = {
    "samples": "which samples each rank sees: DataLoader and DistributedSampler",
    "collectives": "ring and tree all-reduce and others from messages; this machine's α and β",
    "ddp": "DDP training with gradient accumulation, proven equal to one process",
    "data_parallel": "nn.DataParallel by hand: scatter, replicate, gather in one process",
    "multi_device": "DDP around a model whose layers lie on several devices of each rank",
    "checkpointing": "activation checkpointing: bytes kept and FLOPs computed again, with dropout",
    "overlap": "a profiler's trace of DDP: one large bucket, and small ones that travel meanwhile",
    "zero": "ZeRO 1, 2, 3 and offload: who stores and sends what, beside ZeroRedundancyOptimizer",
    "fsdp": "fully sharded data parallelism: mini-FSDP beside fully_shard",
    "yafsdp": "YaFSDP's preallocated buffers, and their memory beside FSDP's",
    "tp": "tensor and sequence parallelism: f and g, parallelize_module, Megatron-core's layers",
    "fsdp_tp": "a mesh of data and tensor parallelism: fully_shard over parallelize_module",
    "experts": "expert parallelism: a GPT with mixtures of experts, tokens routed by all-to-all",
    "context": "context parallelism: ring attention over slices of the sequence",
    "parameter_server": "a large table on a server, in step or not, beside an all-reduced one",
    "hybrid": "RPC HybridModel: remote embedding, DDP dense part, distributed autograd (legacy)",
    "pipeline": "pipeline parallelism: every schedule from theory, bubble and messages measured",
    "three_d": "data, tensor and pipeline parallelism together on a mesh of up to 8 ranks",
    "launchers": "the same job under torchrun, accelerate and DeepSpeed",
    "checkpoint": "a sharded checkpoint saved on some ranks and loaded on others, beside torch's",
    "elastic": "a rank killed in mid-training: torchrun starts all again, from the last checkpoint",
    "faults": "what is said when a rank is killed, hangs, or calls another collective",
}


def load(name: str) -> ModuleType:
    """The module of demo `name`; ValueError with the nearest name for an unknown one."""
    choice("demo", name, DEMOS)
    return import_module(f"{__name__}.{name}")


def run(
    name: str, ranks: int = 2, timeout_s: float = 120.0, stream: bool = True, **options: Any
) -> Any:
    """Run demo `name` on `ranks` processes and return rank 0's result.

    `options` are the fields of the demo's Options. Raises ValueError for a bad option and
    launch.RankFailed when a rank fails or the time limit is reached.
    """
    module = load(name)
    settings = module.Options(**options)
    return launch.run(module.main, settings, ranks=ranks, timeout_s=timeout_s, stream=stream)[0]
