"""What is in the memory of a GPU that trains a model, on one device and without sharding."""

from dataclasses import dataclass, fields

from course_lib.theory.models import TransformerShape
from course_lib.theory.units import GIB, format_bytes
from course_lib.theory.validation import choice, flag, number, whole

PRECISION_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}

# Bytes of optimizer state per parameter: number of moments times bytes of each.
# bitsandbytes (Dettmers et al. 2021, arXiv:2110.02861) keeps two one-byte moments; its block
# constants (under 1 %) and the small tensors that it leaves in fp32 are not counted here.
OPTIMIZER_STATE_BYTES = {"sgd": 0, "momentum": 4, "adamw": 8, "adamw-8bit": 2}

# CUDA context, NCCL buffers, library workspaces: a convention, seen between 0.5 and 2 GiB.
# Source: Bekman, Machine Learning Engineering, training/performance.
OVERHEAD_BYTES = 1 * GIB


@dataclass(frozen=True)
class Recipe:
    """Precisions and optimizer: everything that decides the bytes per parameter.

    `master_copy`: fp32 weights kept beside 16-bit ones. `gradient_buffer`: fp32 gradients that
    add up over micro-batches beside 16-bit ones. `attention`: "flash" never stores the s × s
    scores. `recompute`: "selective" stores all but the attention core, "full" only each layer's
    input. `dropout`: its masks are stored.
    """

    parameters: str = "bf16"
    gradients: str = "bf16"
    optimizer: str = "adamw"
    master_copy: bool = True
    gradient_buffer: bool = False
    attention: str = "flash"
    recompute: str = "none"
    dropout: bool = False

    def __post_init__(self) -> None:
        choice("parameters", self.parameters, PRECISION_BYTES)
        choice("gradients", self.gradients, PRECISION_BYTES)
        choice("optimizer", self.optimizer, OPTIMIZER_STATE_BYTES)
        choice("attention", self.attention, ("flash", "standard"))
        choice("recompute", self.recompute, ("none", "selective", "full"))
        for name in ("master_copy", "gradient_buffer", "dropout"):
            flag(name, getattr(self, name))
        self._refuse_double_fp32()

    def _refuse_double_fp32(self) -> None:
        if self.master_copy and self.parameters == "fp32":
            raise ValueError(
                "master_copy True keeps a second fp32 copy of parameters that are fp32 already: "
                "set master_copy=False"
            )
        if self.gradient_buffer and self.gradients == "fp32":
            raise ValueError(
                "gradient_buffer True keeps a second fp32 copy of gradients that are fp32 already: "
                "set gradient_buffer=False"
            )

    @property
    def bytes_per_parameter(self) -> int:
        """Model-state bytes for one parameter."""
        return model_states(1, self).model_states_bytes


# The conventions that tools and papers disagree on, by bytes per parameter.
RECIPES = {
    # ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054, section 3.1): 2 + 2 + K with K = 12.
    "mixed-16": Recipe(),
    # Megatron-LM, theoretical_memory_usage.py: 18 bytes, since the gradients are kept in fp32.
    "megatron-18": Recipe(gradients="fp32"),
    # DeepSpeed's estimator and the Ultra-Scale Playbook's table: an extra fp32 gradient buffer.
    "accumulate-20": Recipe(gradient_buffer=True),
    # PyTorch with neither autocast nor cast weights.
    "fp32-16": Recipe(parameters="fp32", gradients="fp32", master_copy=False),
}


@dataclass(frozen=True)
class MemoryBreakdown:
    """Bytes on one GPU by leaf; the totals are properties."""

    parameters_bytes: int = 0
    gradients_bytes: int = 0
    gradient_buffer_bytes: int = 0
    master_copy_bytes: int = 0
    optimizer_state_bytes: int = 0
    inputs_bytes: int = 0
    activations_bytes: int = 0
    head_bytes: int = 0
    temporary_bytes: int = 0
    overhead_bytes: int = 0

    @property
    def model_states_bytes(self) -> int:
        """Parameters, gradients and optimizer states with their fp32 copies."""
        return (
            self.parameters_bytes
            + self.gradients_bytes
            + self.gradient_buffer_bytes
            + self.master_copy_bytes
            + self.optimizer_state_bytes
        )

    @property
    def total_bytes(self) -> int:
        """The sum of all leaves."""
        return sum(getattr(self, leaf.name) for leaf in fields(self))

    @property
    def consumers(self) -> dict[str, int]:
        """The seven consumers, in bytes: the leaves grouped as people speak of them."""
        return {
            "weights": self.parameters_bytes,
            "gradients": self.gradients_bytes + self.gradient_buffer_bytes,
            "optimizer": self.master_copy_bytes + self.optimizer_state_bytes,
            "inputs and labels": self.inputs_bytes,
            "intermediate results": self.activations_bytes + self.head_bytes,
            "temporary buffers": self.temporary_bytes,
            "framework overhead": self.overhead_bytes,
        }

    def explain(self, unit: str = "GB") -> str:
        """One line per consumer, then the total, in GB (10^9) or GiB (2^30)."""
        lines = [
            f"{name:<22}{format_bytes(size, unit):>12}" for name, size in self.consumers.items()
        ]
        return "\n".join([*lines, f"{'total':<22}{format_bytes(self.total_bytes, unit):>12}"])


def model_states(parameters: int, recipe: Recipe) -> MemoryBreakdown:
    """Bytes of weights, gradients and optimizer states: parameters × bytes of each kind.

    AdamW in bf16 with an fp32 master copy: 2 + 2 + (4 + 8) = 16 bytes per parameter
    (ZeRO, arXiv:1910.02054, section 3.1). Raises ValueError unless `parameters` is a whole number.
    """
    whole("parameters", parameters)
    return MemoryBreakdown(
        parameters_bytes=parameters * PRECISION_BYTES[recipe.parameters],
        gradients_bytes=parameters * PRECISION_BYTES[recipe.gradients],
        gradient_buffer_bytes=parameters * 4 * recipe.gradient_buffer,
        master_copy_bytes=parameters * 4 * recipe.master_copy,
        optimizer_state_bytes=parameters * OPTIMIZER_STATE_BYTES[recipe.optimizer],
    )


def layer_activation_bytes(
    shape: TransformerShape, recipe: Recipe, micro_batch: int, sequence: int
) -> int:
    """Bytes that one layer keeps for its backward pass.

    16-bit activations, GELU, dropout, standard attention: s·b·h·(34 + 5·a·s/h), with s sequence,
    b micro-batch, h hidden, a heads (Korthikanti et al. 2022, arXiv:2205.05198, eq. 1); the same
    inventory for SwiGLU, grouped-query attention, no dropout and flash attention. With fp32
    parameters everything but the one-byte dropout masks doubles.
    """
    _check_batch(shape, micro_batch, sequence)
    tokens, size = micro_batch * sequence, PRECISION_BYTES[recipe.parameters]
    h = shape.hidden
    if recipe.recompute == "full":
        return tokens * h * size
    # Inputs of: norm 1, q-k-v, attention (q and k-v), output matrix, norm 2, MLP; then the MLP.
    attention = 4 * h + 2 * shape.kv_width
    mlp = 2 * h + (2 if shape.mlp == "gelu" else 4) * shape.ffn
    masks = 2 * h * recipe.dropout
    return tokens * (size * (attention + mlp) + masks) + _score_bytes(
        shape, recipe, tokens * sequence, size
    )


def head_activation_bytes(
    shape: TransformerShape, recipe: Recipe, micro_batch: int, sequence: int
) -> int:
    """Bytes kept outside the layers: inputs of the last norm and the head, fp32 log-probabilities.

    In 16 bits 4·s·b·h + 4·s·b·v with v the vocabulary, and s·b·h for the mask of the embedding's
    dropout (Korthikanti et al. 2022, arXiv:2205.05198, section 4.3).
    """
    _check_batch(shape, micro_batch, sequence)
    per_token = shape.hidden * (2 * PRECISION_BYTES[recipe.parameters] + recipe.dropout)
    return micro_batch * sequence * (per_token + 4 * shape.vocab)


def _score_bytes(shape: TransformerShape, recipe: Recipe, pairs: int, size: int) -> int:
    """The s × s attention core of one layer: softmax output, and dropout's mask and output."""
    if recipe.attention == "flash" or recipe.recompute == "selective":
        return 0
    return shape.heads * pairs * (size + (size + 1) * recipe.dropout)


def training_memory(
    shape: TransformerShape,
    recipe: Recipe,
    micro_batch: int,
    sequence: int | None = None,
    overhead_bytes: int = OVERHEAD_BYTES,
) -> MemoryBreakdown:
    """All seven consumers of one GPU that trains `shape` alone; `sequence` None: its context.

    Inputs and labels are int64; the largest temporary is the fp32 gradient of the logits, 4·s·b·v
    with v the vocabulary. Raises ValueError for counts below 1 and a sequence that is too long.
    """
    sequence = shape.context if sequence is None else sequence
    number("overhead_bytes", overhead_bytes, least=0)
    states = model_states(shape.parameters().total, recipe)
    tokens = micro_batch * sequence
    layer = layer_activation_bytes(shape, recipe, micro_batch, sequence)
    return MemoryBreakdown(
        **{leaf.name: getattr(states, leaf.name) for leaf in fields(states)[:5]},
        inputs_bytes=2 * 8 * tokens,
        activations_bytes=shape.layers * layer,
        head_bytes=head_activation_bytes(shape, recipe, micro_batch, sequence),
        temporary_bytes=tokens * shape.vocab * 4,
        overhead_bytes=int(overhead_bytes),
    )


def _check_batch(shape: TransformerShape, micro_batch: int, sequence: int) -> None:
    whole("micro_batch", micro_batch)
    whole("sequence", sequence)
    if shape.learned_positions and sequence > shape.context:
        raise ValueError(
            f"sequence {sequence} is longer than the {shape.context} positions the model learned: "
            f"take at most {shape.context}"
        )
