"""How a model is trained: precisions, optimizer, kernels, recomputation and offloading."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

from course_lib.checked import Count, check_public
from course_lib.validation import number

PRECISION_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}

# Bytes of optimizer state per parameter: number of moments times bytes of each.
# torch.optim.AdamW keeps its moments in the precision of the weights: bf16 without a master copy.
# bitsandbytes (Dettmers et al. 2021, arXiv:2110.02861) keeps two one-byte moments; its block
# constants (under 2 %) and the small tensors that it leaves in fp32 are not counted here.
OPTIMIZER_STATE_BYTES = {"sgd": 0, "momentum": 4, "adamw": 8, "adamw-bf16": 4, "adamw-8bit": 2}

RECOMPUTE = ("none", "selective", "operators", "full")
UPDATES = ("fused", "copied", "foreach")
LOSSES = ("eager", "in-place", "fused", "chunked")


@dataclass(frozen=True)
class Recipe:
    """Everything about training that is not the model's shape or the layout over GPUs.

    States. `compute`: precision of forward and backward if it differs from that of the stored
    weights, as under FSDP2's MixedPrecisionPolicy. `master_copy`: fp32 weights in addition to
    16-bit ones. `gradient_buffer`: an fp32 buffer that accumulates 16-bit gradients over
    micro-batches. `offload`: "optimizer" keeps master copy and optimizer states in host memory.
    `fused_accumulation`: the matmul for a weight's gradient also adds it to the accumulated sum,
    which saves a pass over the memory (Megatron-LM's gradient_accumulation_fusion).

    Update. `gradient_life`: "always" for persistent buffers, as in Megatron-LM and DeepSpeed, or
    "backward" for gradients that exist from the backward pass to the update, as with PyTorch's
    `zero_grad(set_to_none=True)`. `update`: "fused" works in place, "copied" first makes fp32
    copies of 16-bit gradients (DeepSpeed), "foreach" does so too and needs temporaries as large as
    one moment (torch.optim's default on GPUs).

    Activations. `attention`: "flash" never stores the s × s scores. `recompute`: "selective"
    stores all but the attention core, "operators" the output of attention and of every second
    matmul (torchtitan's selective policy), "full" only each layer's input. `recompute_layers`:
    number of layers per pipeline chunk to which `recompute` applies, the first ones; the others
    keep everything (Megatron-LM's recompute_num_layers with recompute_method "block"); None: all.
    `loss`: sets how many copies of the logits exist, see `loss_copies`; `loss_chunks`: chunks in
    which "chunked" computes them. `dropout`: stores its masks. `fused_norms`: False for an unfused
    RMSNorm in torch, which keeps an fp32 copy of its input and the normalised input.
    `fused_swiglu`: True for a kernel that recomputes silu(gate) in the backward pass. `repeat_kv`:
    keys and values are copied to all heads before attention. `imbalance`: tokens on the busiest
    expert rank over the mean (a capacity factor).

    Data parallelism. `gathering`: under ZeRO-3 "fsdp" holds `gathered_units` whole layers at a time
    (the current one and prefetched ones) and all parameters outside the layers; "yafsdp" has two
    buffers as large as the largest layer or embedding. `gradient_as_bucket_view`: gradients are
    views into DDP's buckets instead of copies.
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
        """Bytes of one stored weight."""
        return PRECISION_BYTES[self.parameters]

    @property
    def compute_bytes(self) -> int:
        """Bytes of one element of the activations, and of the weights as gathered for a pass."""
        return PRECISION_BYTES[self.compute or self.parameters]

    @property
    def gradient_bytes(self) -> int:
        """Bytes of one element of the gradients."""
        return PRECISION_BYTES[self.gradients]

    @property
    def accumulated_bytes(self) -> int:
        """Bytes of one element of the accumulated gradients: 4 with a `gradient_buffer`."""
        return 4 if self.gradient_buffer else self.gradient_bytes

    @property
    def bytes_per_parameter(self) -> int:
        """Model-state bytes per parameter, on the GPU or offloaded."""
        copies = 4 * (self.master_copy + self.gradient_buffer)
        moments = OPTIMIZER_STATE_BYTES[self.optimizer]
        return self.weight_bytes + self.gradient_bytes + copies + moments


MIXED_16 = Recipe()

# The conventions of different tools and papers, named by bytes per parameter.
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
