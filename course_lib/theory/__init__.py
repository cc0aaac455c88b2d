"""The arithmetic of training, in rooms: numbers in, frozen dataclasses out, no torch.

| room | what it answers |
|---|---|
| `inputs` | what is trained, how and on what: shape, recipe, layout, cluster, one `Job` |
| `compute` | how many FLOP, how fast a chip can do them, what they cost |
| `pipelines` | in which order the stages of a pipeline work, and how long they wait |
| `memory` | what is in the memory of one GPU |
| `network` | what is sent between GPUs, and how long it takes |
| `step` | how long a step takes; batches and epochs; what a failure costs |
| `stories` | what happens one after another, told as a trace, for figures and steppers |
| `audits` | what published claims come to, on their own terms and on the right ones |
| `planner` | which of all layouts is best; the only room that uses numpy |

A room imports from the rooms above it in this table, never from those below. What a number or a
word may be is said where it is a parameter or a field: `ranks: Count`. The last line of a module,
`check_public(globals())`, lets its public functions and records refuse anything else.
"""

from importlib import import_module
from typing import Any

# What notebooks import from here, `from course_lib.theory import Job, flops`: names and modules by
# where they are. A module of theory loads when a name of it is first asked for.
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
            found = import_module(f"{__name__}.{where}")
            return getattr(found, name, None) or import_module(f"{found.__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
