"""The arithmetic of training, in rooms: numbers in, frozen dataclasses out, no torch.

| room | what it answers |
|---|---|
| `inputs` | what is trained, how and on what: shape, recipe, layout, cluster, one `Job` |
| `compute` | how many FLOP, how fast a chip can do them, what they cost |
| `pipelines` | in which order the stages of a pipeline work, and how long they wait |
| `memory` | what the memory of one GPU holds |
| `network` | what is sent between GPUs, and how long it takes |
| `step` | how long a step takes; batches and epochs; what a failure costs |
| `stories` | the sequence of events of an algorithm, as a trace for figures and steppers |
| `audits` | published claims recomputed, on their own terms and on the right ones |
| `planner` | which of all layouts is best; the only room that uses numpy |

A room imports from the rooms above it in this table, never from those below. The annotation of a
parameter or field states which values are allowed: `ranks: Count`. The last line of a module,
`check_public(globals())`, makes its public functions and records refuse any others.
"""

from importlib import import_module
from typing import Any

# What notebooks import from here, as in `from course_lib.theory import Job, flops`: names and
# modules by the module or package that has them. Modules load lazily, at the first access.
_SHORT = {
    "audits": "gpt2_128",
    "audits.claim": "Claim VERDICTS",
    "audits.gpt2_128": "Program",
    "compute": "budget flops rounding",
    "inputs": "Cluster Job Layout MODELS Recipe RECIPES TransformerShape "
    "hardware models published units",
    "inputs.hardware": "PCIE4",
    "inputs.job": "as_framework_does",
    "memory": "activations",
    "memory.activations": "logit_count loss_copies",
    "memory.layer_walk": "layer_walk",
    "memory.peak": "gpu_memory memory_moments metered_bytes OVERHEAD_BYTES "
    "RESERVED_OVER_ALLOCATED training_memory worst_stage",
    "memory.states": "model_states",
    "memory.step_timeline": "step_timeline",
    "memory.unit_life": "buffer_turns",
    "network": "collectives context experts fitting mesh tensor_parallel zero",
    "network.all_reduce": "nccl_ways ring_or_tree",
    "network.bucket_timeline": "ddp_timeline Gradient gradient_syncs hiding_tokens model_gradients",
    "network.collectives": "sent_bytes",
    "network.tensor_parallel": "CutLayer",
    "network.traffic": "group_link",
    "pipelines": "bubble schedules simulation",
    "pipelines.bubble": "PassTimes",
    "step": "batching",
    "step.assumptions": "Assumptions BUCKETS CAUTIOUS DEEPSEEK_V3",
    "step.batching": "Batching rank_samples",
    "stories.copies": "served_steps",
}


def __getattr__(name: str) -> Any:
    for where, names in _SHORT.items():
        if name in names.split():
            module = import_module(f"{__name__}.{where}")
            return getattr(module, name, None) or import_module(f"{module.__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
