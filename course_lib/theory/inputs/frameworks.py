"""What frameworks decide where a recipe and a layout leave a choice."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from course_lib.checked import checked
from course_lib.theory.inputs.hardware import ATTENTION_KERNELS
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.units import GB
from course_lib.validation import choice, flag, number, whole

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@checked
@dataclass(frozen=True)
class Framework:
    """Fields of Recipe and Layout as a framework sets them, by name.

    `pipelined`: fields of Layout with more than one stage. `buffers_bytes`: what it reserves for
    itself, whatever the model is. What `step.assumptions.framework_assumptions` takes over: its
    `attention_kernel`, the `overlap` of messages, and to how many nodes a token is sent
    (`token_nodes`).
    """

    recipe: Mapping[str, Any] = field(default_factory=dict)
    layout: Mapping[str, Any] = field(default_factory=dict)
    pipelined: Mapping[str, Any] = field(default_factory=dict)
    buffers_bytes: int = 0
    attention_kernel: str = "flash-2"
    overlap: Mapping[str, float] = field(default_factory=dict)
    token_nodes: int | None = None

    def __post_init__(self) -> None:
        number("buffers_bytes", self.buffers_bytes, least=0)
        choice("attention_kernel", self.attention_kernel, ATTENTION_KERNELS)
        if self.token_nodes is not None:
            whole("token_nodes", self.token_nodes)


# Gradients in fp32 add up as they are: no recipe's second buffer beside them.
_FP32_SUMS = {"gradients": "fp32", "gradient_buffer": False}
# FSDP2 with MixedPrecisionPolicy(param_dtype=bf16, reduce_dtype=fp32): fp32 shards, gathered and
# computed in bf16.
_FSDP = _FP32_SUMS | {"parameters": "fp32", "compute": "bf16", "master_copy": False}
# PyTorch's optimizers give the moments the precision of the weights and free the gradients.
_TORCH = {"loss": "eager", "gradient_life": "backward"}

FRAMEWORKS: Mapping[str, Framework] = MappingProxyType(
    {
        # github.com/pytorch/torchtitan at v0.1: FSDP2 with MixedPrecisionPolicy(bf16, fp32),
        # DTensor, torch.optim.AdamW with foreach; under pipelines weights stay gathered
        # (reshard_after_forward "default") and gradients are reduced once (PipelineStage).
        "torchtitan": Framework(
            recipe=_TORCH | _FSDP | {"update": "foreach"},
            layout={"keep_gathered": True, "keep_outputs": True},
            pipelined={"reshard": False, "reduce": "update"},
        ),
        # github.com/Lightning-AI/lightning-thunder, benchmark_litgpt.py: bf16 everywhere.
        "thunder": Framework(
            recipe=_TORCH | {"optimizer": "adamw-bf16", "update": "foreach", "fused_norms": False},
        ),
        # github.com/pytorch/torchtune, recipes/configs: bf16 everywhere, AdamW with fused=True.
        "torchtune": Framework(
            recipe=_TORCH | {"optimizer": "adamw-bf16", "fused_norms": False},
        ),
        # github.com/NVIDIA-NeMo/Automodel, components/distributed: FSDP2. components/moe: DeepEP
        # sends a token once to a node, and in its benchmarks FakeBalancedGate gives a token
        # neighbouring experts, which lie on one node.
        "automodel": Framework(recipe=_TORCH | _FSDP, attention_kernel="new", token_nodes=1),
        # github.com/mosaicml/llm-foundry at v0.3: FSDP with bf16, attn_impl triton, which is the
        # first FlashAttention.
        "llm-foundry": Framework(recipe=_TORCH | _FSDP, attention_kernel="flash-1"),
        # github.com/bigscience-workshop/Megatron-DeepSpeed: Megatron-LM's layers and loss,
        # DeepSpeed's pipeline, which keeps what it sends, and its ZeRO-1, which copies gradients to
        # fp32 and has a bucket of reduce_bucket_size = 5e8 numbers (deepspeed.ai, config-json). Its
        # pipeline sums gradients behind the last backward pass (runtime/pipe/engine.py,
        # _exec_reduce_grads) and gathers weights after the update: nothing hides either.
        "megatron-deepspeed": Framework(
            recipe={"loss": "in-place", "update": "copied"},
            layout={"keep_outputs": True},
            buffers_bytes=1 * GB,
            overlap={"dp": 0.0},
        ),
        # github.com/NVIDIA/Megatron-LM, core/distributed and core/optimizer: buffers of gradients
        # that stay, fp32 sums made by the matmuls (--no-gradient-accumulation-fusion turns that
        # off), a fused update.
        "megatron-lm": Framework(
            recipe=_FP32_SUMS | {"loss": "in-place", "fused_accumulation": True}
        ),
    }
)
# What torch.compile changes: norms and activations are computed again from their inputs.
_COMPILED = {"fused_norms": True, "fused_swiglu": True}


@checked
def as_framework_does(job: Job, name: str, *, compiled: bool = False) -> Job:
    """The job with the choices of framework `name`, under torch.compile if `compiled`.

    Raises ValueError for an unknown framework.
    """
    choice("framework", name, FRAMEWORKS)
    flag("compiled", compiled)
    its = FRAMEWORKS[name]
    recipe = {**its.recipe, **(_COMPILED if compiled else _NOTHING)}
    layout = {**its.layout, **(its.pipelined if job.layout.pp > 1 else _NOTHING)}
    if job.layout.zero_stage < 3:
        layout.pop("reshard", None)
    return replace(job, recipe=replace(job.recipe, **recipe), layout=replace(job.layout, **layout))
