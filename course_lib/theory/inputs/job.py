"""A whole training step: model shape, recipe, layout and cluster; defaults of frameworks."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Annotated, Any

from course_lib.checked import Count, NotNegative, check_public
from course_lib.theory.inputs.hardware import ACCELERATORS, ATTENTION_KERNELS, Cluster
from course_lib.theory.inputs.layout import ALONE, Layout
from course_lib.theory.inputs.recipe import MIXED_16, Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.inputs.units import GB
from course_lib.validation import DERIVED, choice, derive

GPUS_PER_NODE = 8


@dataclass(frozen=True)
class Tokens:
    """Tokens of a micro-batch on one GPU, `inside` and `outside` the tensor-parallel region."""

    inside: int
    outside: int


@dataclass(frozen=True)
class Job:
    """A training job: the input of every function about a whole training step.

    `recipe`: by default bf16 with AdamW, 16 bytes per parameter. `sequence`: tokens per sequence,
    by default the model's context. `cluster`: by default as many nodes of 8 H100 as the layout
    needs, which is enough for questions about memory, since they do not depend on the network.
    Raises ValueError for a layout that does not fit the shape, the sequence or the cluster.
    """

    shape: TransformerShape
    recipe: Recipe = MIXED_16
    layout: Layout = ALONE
    cluster: Cluster = DERIVED
    sequence: int = DERIVED

    def __post_init__(self) -> None:
        if self.cluster is DERIVED:
            nodes = -(-self.layout.world // GPUS_PER_NODE)
            derive(self, cluster=Cluster(ACCELERATORS["H100-SXM"], nodes, GPUS_PER_NODE))
        derive(self, sequence=self.shape.context)
        self.shape.check_sequence(self.sequence)
        self.layout.check(self.shape, self.sequence)
        if self.layout.world > self.cluster.world:
            self.layout.check_world(self.cluster.world)

    def layers_of(self, chunk: int) -> list[tuple["Job", int, int]]:
        """The layers of a pipeline chunk by kind: (job, index of a layer, number of such layers).

        The job is this one for the first `recipe.recompute_layers` layers, which are recomputed as
        the recipe says, and a copy of it without recomputation for the others.
        """
        start, stop = self.layout.layer_slice(self.shape, chunk)
        most = self.recipe.recompute_layers
        split = stop if most is None else min(stop, start + most)
        first = [(self, *kind) for kind in self.shape.layer_kinds(start, split)]
        if split == stop:
            return first
        plain = self._without_recomputation
        return first + [(plain, *kind) for kind in self.shape.layer_kinds(split, stop)]

    @cached_property
    def _without_recomputation(self) -> "Job":
        """A copy of this job with recompute "none"."""
        recipe = replace(self.recipe, recompute="none", recompute_layers=None)
        return replace(self, recipe=recipe)

    @property
    def tokens_per_update(self) -> int:
        """Tokens per optimizer update: global_batch · sequence."""
        return self.layout.global_batch * self.sequence

    @property
    def local_tokens(self) -> Tokens:
        """Tokens of one micro-batch on one GPU.

        inside = micro_batch · sequence / cp; outside = inside, or inside / tp under sequence
        parallelism.
        """
        inside = self.layout.micro_batch * self.sequence // self.layout.cp
        parts = self.layout.tp if self.layout.sequence_parallel else 1
        return Tokens(inside, inside // parts)


# --- Defaults of frameworks for what a recipe and a layout leave open ---

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Framework:
    """Values that a framework sets for fields of Recipe and Layout, by field name.

    `pipelined`: fields of Layout with more than one stage. `buffers_bytes`: buffers that it
    reserves for any model. `step.assumptions.framework_assumptions` applies the rest:
    `attention_kernel`, `overlap` of messages by axis, and to how many nodes a token is sent
    (`token_nodes`).
    """

    recipe: Mapping[str, Any] = field(default_factory=dict)
    layout: Mapping[str, Any] = field(default_factory=dict)
    pipelined: Mapping[str, Any] = field(default_factory=dict)
    buffers_bytes: NotNegative = 0
    attention_kernel: Annotated[str, ATTENTION_KERNELS] = "flash-2"
    overlap: Mapping[str, float] = field(default_factory=dict)
    token_nodes: Count | None = None


# fp32 gradients are accumulated in place, without the recipe's separate accumulation buffer.
_FP32_SUMS = {"gradients": "fp32", "gradient_buffer": False}
# FSDP2 with MixedPrecisionPolicy(param_dtype=bf16, reduce_dtype=fp32): fp32 shards, gathered for
# computation in bf16.
_FSDP = _FP32_SUMS | {"parameters": "fp32", "compute": "bf16", "master_copy": False}
# PyTorch's optimizers keep the moments in the precision of the weights and free the gradients.
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
            recipe=_TORCH | {"optimizer": "adamw-bf16", "update": "foreach", "fused_norms": False}
        ),
        # github.com/pytorch/torchtune, recipes/configs: bf16 everywhere, AdamW with fused=True.
        "torchtune": Framework(recipe=_TORCH | {"optimizer": "adamw-bf16", "fused_norms": False}),
        # github.com/NVIDIA-NeMo/Automodel, components/distributed: FSDP2. components/moe: DeepEP
        # sends a token once to a node, and in its benchmarks FakeBalancedGate gives a token
        # neighbouring experts, which lie on one node.
        "automodel": Framework(recipe=_TORCH | _FSDP, attention_kernel="new", token_nodes=1),
        # github.com/mosaicml/llm-foundry at v0.3: FSDP with bf16, attn_impl triton, which is
        # FlashAttention-1.
        "llm-foundry": Framework(recipe=_TORCH | _FSDP, attention_kernel="flash-1"),
        # github.com/bigscience-workshop/Megatron-DeepSpeed: Megatron-LM's layers and loss,
        # DeepSpeed's pipeline, which keeps sent activations, and its ZeRO-1, which copies gradients
        # to fp32 and has a bucket of reduce_bucket_size = 5e8 elements (deepspeed.ai, config-json).
        # Its pipeline reduces gradients after the last backward pass (runtime/pipe/engine.py,
        # _exec_reduce_grads) and gathers weights after the update: neither is overlapped.
        "megatron-deepspeed": Framework(
            recipe={"loss": "in-place", "update": "copied"},
            layout={"keep_outputs": True},
            buffers_bytes=1 * GB,
            overlap={"dp": 0.0},
        ),
        # github.com/NVIDIA/Megatron-LM, core/distributed and core/optimizer: persistent gradient
        # buffers, fp32 accumulation fused into the matmuls (--no-gradient-accumulation-fusion turns
        # it off), a fused update.
        "megatron-lm": Framework(
            recipe=_FP32_SUMS | {"loss": "in-place", "fused_accumulation": True}
        ),
    }
)
# Effect of torch.compile: norms and activations are recomputed from their inputs.
_COMPILED = {"fused_norms": True, "fused_swiglu": True}


def as_framework_does(job: Job, name: str, *, compiled: bool = False) -> Job:
    """The job with the defaults of framework `name`, under torch.compile if `compiled`."""
    choice("framework", name, FRAMEWORKS)
    framework = FRAMEWORKS[name]
    recipe = {**framework.recipe, **(_COMPILED if compiled else _NOTHING)}
    layout = {**framework.layout, **(framework.pipelined if job.layout.pp > 1 else _NOTHING)}
    if job.layout.zero_stage < 3:
        layout.pop("reshard", None)
    return replace(job, recipe=replace(job.recipe, **recipe), layout=replace(job.layout, **layout))


check_public(globals())
