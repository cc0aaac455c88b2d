"""How a model is trained: precisions, optimizer, kernels, and what is thrown away or moved."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

from course_lib.checked import Count, check_public
from course_lib.validation import number

PRECISION_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}

# Bytes of optimizer state per parameter: number of moments times bytes of each.
# torch.optim.AdamW gives its moments the weights' own precision: without a master copy bf16.
# bitsandbytes (Dettmers et al. 2021, arXiv:2110.02861) keeps two one-byte moments; its block
# constants (under 2 %) and the small tensors that it leaves in fp32 are not counted here.
OPTIMIZER_STATE_BYTES = {"sgd": 0, "momentum": 4, "adamw": 8, "adamw-bf16": 4, "adamw-8bit": 2}

RECOMPUTE = ("none", "selective", "operators", "full")
UPDATES = ("fused", "copied", "foreach")
LOSSES = ("eager", "in-place", "fused", "chunked")


@dataclass(frozen=True)
class Recipe:
    """Everything about training that is not the model's shape or the layout over GPUs.

    States. `compute`: precision of the passes where it differs from that of the weights kept, as
    under FSDP2's MixedPrecisionPolicy. `master_copy`: fp32 weights kept beside 16-bit ones.
    `gradient_buffer`: fp32 gradients that add up over micro-batches beside 16-bit ones. `offload`:
    "optimizer" keeps the master copy and the optimizer states in the host's memory.
    `fused_accumulation`: the matmul that makes a weight's gradient adds it to the sum as well, so
    that no pass over the memory does (Megatron-LM's gradient_accumulation_fusion).

    Update. `gradient_life`: "always" for buffers that stay, as in Megatron-LM and DeepSpeed, or
    "backward" for gradients that live from the backward pass to the update, as after PyTorch's
    `zero_grad(set_to_none=True)`. `update`: "fused" reads gradients and states where they are,
    "copied" makes fp32 copies of 16-bit gradients first (DeepSpeed), "foreach" as well, and a list
    of temporaries as large as one moment (torch.optim's default on GPUs).

    Activations. `attention`: "flash" never stores the s × s scores. `recompute`: "selective"
    stores all but the attention core, "operators" the output of attention and of every second
    matmul (torchtitan's selective policy), "full" only each layer's input. `recompute_layers`: how
    many layers of each chunk of a pipeline `recompute` is for, the first ones, while the others
    keep everything (Megatron-LM's recompute_num_layers with recompute_method "block"); None: all.
    `loss`: how many copies
    of the logits there are, see `loss_copies`; `loss_chunks`: pieces in which "chunked" makes them.
    `dropout`: its masks are stored. `fused_norms`: False for an RMSNorm written out in torch, which
    keeps an fp32 copy of its input and the normalised input. `fused_swiglu`: True for a kernel that
    recomputes silu(gate) in the backward pass. `repeat_kv`: keys and values are copied to all heads
    before attention. `imbalance`: tokens on the busiest expert rank over the mean (a capacity
    factor).

    Data parallelism. `gathering`: under ZeRO-3 "fsdp" holds `gathered_units` whole layers at a time
    (one computed, the others fetched ahead) and all that is outside the layers; "yafsdp" has two
    buffers as large as the largest layer or embedding. `gradient_as_bucket_view`: DDP's buckets
    are the gradients, not a copy of them.
    """

    BY_NAME: ClassVar[str] = "RECIPES[{0}]"

    parameters: Annotated[str, PRECISION_BYTES] = "bf16"
    gradients: Annotated[str, PRECISION_BYTES] = "bf16"
    optimizer: Annotated[str, OPTIMIZER_STATE_BYTES] = "adamw"
    master_copy: bool = True
    gradient_buffer: bool = False
    compute: Annotated[str | None, PRECISION_BYTES] = None  # as the parameters
    gradient_life: Annotated[str, ("always", "backward")] = "always"
    update: Annotated[str, UPDATES] = "fused"
    attention: Annotated[str, ("flash", "standard")] = "flash"
    recompute: Annotated[str, RECOMPUTE] = "none"
    recompute_layers: Count | None = None
    loss: Annotated[str, LOSSES] = "in-place"
    loss_chunks: Count = 8
    dropout: bool = False
    fused_norms: bool = True
    fused_swiglu: bool = False
    repeat_kv: bool = False
    imbalance: Annotated[float, partial(number, least=1)] = 1.0
    gathering: Annotated[str, ("fsdp", "yafsdp")] = "fsdp"
    gathered_units: Count = 2
    gradient_as_bucket_view: bool = False
    offload: Annotated[str, ("none", "optimizer")] = "none"
    fused_accumulation: bool = False

    def __post_init__(self) -> None:
        for copy, of in (("master_copy", "parameters"), ("gradient_buffer", "gradients")):
            if getattr(self, copy) and getattr(self, of) == "fp32":
                raise ValueError(
                    f"{copy} True keeps a second fp32 copy of {of} that are fp32 already: "
                    f"set {copy}=False"
                )
        if self.recompute_layers is not None and self.recompute == "none":
            raise ValueError(
                f"recompute_layers {self.recompute_layers} has nothing to repeat with "
                "recompute 'none': set recompute='full', or leave recompute_layers out"
            )
        if self.gathering == "yafsdp" and self.gathered_units != 2:
            raise ValueError(
                f"gathered_units {self.gathered_units} is not what yafsdp does, which has two "
                "buffers: set gathered_units=2, or gathering='fsdp'"
            )

    @property
    def weight_bytes(self) -> int:
        """Bytes of one weight as it is kept."""
        return PRECISION_BYTES[self.parameters]

    @property
    def compute_bytes(self) -> int:
        """Bytes of one element of the activations, and of a weight that is gathered for a pass."""
        return PRECISION_BYTES[self.compute or self.parameters]

    @property
    def gradient_bytes(self) -> int:
        """Bytes of one element of the gradients."""
        return PRECISION_BYTES[self.gradients]

    @property
    def accumulated_bytes(self) -> int:
        """Bytes of one element of the sum over micro-batches: 4 with a `gradient_buffer`."""
        return 4 if self.gradient_buffer else self.gradient_bytes

    @property
    def bytes_per_parameter(self) -> int:
        """Model-state bytes for one parameter, wherever they are kept."""
        copies = 4 * (self.master_copy + self.gradient_buffer)
        moments = OPTIMIZER_STATE_BYTES[self.optimizer]
        return self.weight_bytes + self.gradient_bytes + copies + moments


MIXED_16 = Recipe()

# The conventions that tools and papers disagree on, by bytes per parameter.
RECIPES = {
    # ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054, section 3.1): 2 + 2 + K with K = 12.
    "mixed-16": MIXED_16,
    # Megatron-LM, theoretical_memory_usage.py: 18 bytes, since the gradients are kept in fp32.
    "megatron-18": Recipe(gradients="fp32"),
    # DeepSpeed's estimate_zero2_model_states_mem_needs on one GPU (2 + 18/n, stage_1_and_2.py) and
    # the Ultra-Scale Playbook's table: an extra fp32 gradient buffer.
    "accumulate-20": Recipe(gradient_buffer=True),
    # PyTorch with neither autocast nor cast weights.
    "fp32-16": Recipe(parameters="fp32", gradients="fp32", master_copy=False),
}


check_public(globals())
