"""Activations that a layer's forward pass keeps for backward, term by term, in bytes on one GPU.

A tensor is split in one of two ways. Outside the tensor-parallel region (norms, residuals, the
inputs of the first matrices) every tp rank keeps all of it, or 1/tp under sequence parallelism;
inside (heads, the MLP's width) every rank keeps 1/tp. Context parallelism splits the sequence.
Source: Korthikanti et al. 2022, arXiv:2205.05198, section 4. Small tensors are not counted: mean
and scale of the norms, flash attention's log-sum-exp, top-k indices, buffers of collectives.
"""

import math
from dataclasses import dataclass, fields, replace

from course_lib.checked import CountOrZero, check_public
from course_lib.theory.inputs import Job, Recipe, TransformerShape
from course_lib.theory.inputs.units import format_bytes


@dataclass(frozen=True)
class ActivationTerms:
    """Saved activations of one layer and micro-batch on one GPU, in bytes by kind of tensor.

    Under full recomputation only `layer_input_bytes` is kept; the other terms are 0.
    `unused_bytes`: tensors that a policy saves although the backward pass does not use them.
    """

    layer_input_bytes: int = 0
    norms_bytes: int = 0  # inputs of the layer's norms, and of the query and key norms
    matrix_inputs_bytes: int = 0  # outputs of the norms: the inputs of attention and MLP
    latents_bytes: int = 0  # latent attention's two latents and the inputs of their norms
    queries_bytes: int = 0
    keys_values_bytes: int = 0
    scores_bytes: int = 0  # softmax output, dropout mask and output: s × s for each head
    attention_output_bytes: int = 0
    mlp_inside_bytes: int = 0  # between the MLP's matrices
    routed_experts_bytes: int = 0  # the experts' input tokens, outputs and inner activations
    shared_experts_bytes: int = 0
    router_bytes: int = 0  # fp32 probabilities
    dropout_masks_bytes: int = 0  # of the two dropouts on the residual stream
    unused_bytes: int = 0  # outputs of last matrices and of reduce-scatters under "operators"

    @property
    def total_bytes(self) -> int:
        """Total bytes that the layer keeps."""
        return sum(self.leaves().values())

    def leaves(self) -> dict[str, int]:
        """Bytes of each term, by a readable name."""
        return {
            field.name.removesuffix("_bytes").replace("_", " "): getattr(self, field.name)
            for field in fields(self)
        }

    def explain(self, unit: str = "GB") -> str:
        """One line for each term that is not 0, and the total."""
        sizes = {**self.leaves(), "total": self.total_bytes}
        return "\n".join(
            f"{name:<18}{format_bytes(size, unit):>12}" for name, size in sizes.items() if size
        )


def activation_terms(job: Job, layer: int = 0) -> ActivationTerms:
    """Activations of one micro-batch that layer number `layer` keeps until its backward pass.

    16-bit, GELU with ffn = 4h, dropout, standard attention, in units of s·b·h bytes: norms 4,
    inputs of matrices 4, queries 2, keys and values 4, attention output 2, MLP 16, masks 2, which
    is 34; scores 5·a·s/h, dropped by selective recomputation. Full recomputation keeps 2, the
    layer's input. Source: Korthikanti et al. 2022, arXiv:2205.05198, section 4.1; for "operators"
    see `_saved_operators`.
    """
    if job.recipe.recompute == "full":
        job.shape.has_experts(layer)  # raises for a layer out of range
        width = job.shape.hidden * job.recipe.compute_bytes
        return ActivationTerms(layer_input_bytes=job.local_tokens.outside * width)
    if job.recipe.recompute == "operators":
        return _saved_operators(job, layer)
    terms = needed_terms(job, layer)
    return replace(terms, scores_bytes=0) if job.recipe.recompute == "selective" else terms


def layer_activation_bytes(job: Job, layer: int = 0) -> int:
    """Bytes that layer number `layer` keeps of one micro-batch: the sum of `activation_terms`.

    16-bit, GELU with ffn = 4h, dropout, standard attention (s sequence, b micro-batch, h hidden,
    a heads, t = tp): s·b·h·(10 + 24/t + 5·a·s/(h·t)), and s·b·h/t·(34 + 5·a·s/h) with sequence
    parallelism; without the last term under selective recomputation; 2·s·b·h (over t with sequence
    parallelism) under full recomputation (Korthikanti et al. 2022, arXiv:2205.05198, equations 1
    to 6). The same terms cover SwiGLU, grouped-query and latent attention, experts, no dropout,
    flash attention, and fp32, which doubles everything except the one-byte dropout masks.
    """
    return activation_terms(job, layer).total_bytes


def recomputed_bytes(job: Job, layer: int = 0) -> int:
    """Bytes that recomputation of one layer restores: all that backward needs and was not kept.

    "selective": the attention core. "full": all of one layer except its stored input. "none": 0.
    """
    kept = activation_terms(job, layer)
    return needed_terms(job, layer).total_bytes - (kept.total_bytes - kept.unused_bytes)


def layer_gradients_bytes(job: Job, layer: int = 0) -> int:
    """Peak bytes of temporary activation gradients inside one layer's backward pass.

    This is the gradient of the residual stream, s·b·h, and the larger of the MLP's (ffn/t for GELU
    and 2·ffn/t for SwiGLU once the last matrix has freed its input) and those of two s × s tensors.
    Checked against a real step's peak in tests/theory/memory/test_peak_against_torch.py.
    """
    shape, recipe, tokens = job.shape, job.recipe, job.local_tokens
    width, routed = shape.ffn, 1.0
    if shape.has_experts(layer):
        width, routed = shape.expert_width, shape.top_k * recipe.imbalance + shape.shared_experts
    width = width // job.layout.tp * (1 if shape.mlp == "gelu" else 2)
    inside = math.ceil(tokens.inside * routed) * width * recipe.compute_bytes
    scores = 2 * _score_count(job) * recipe.compute_bytes
    return tokens.outside * shape.hidden * recipe.compute_bytes + max(inside, scores)


def needed_terms(job: Job, layer: int = 0) -> ActivationTerms:
    """Activations that the backward pass of one layer needs, whether saved or recomputed."""
    shape, recipe, tp, tokens = job.shape, job.recipe, job.layout.tp, job.local_tokens
    size, h = recipe.compute_bytes, shape.hidden
    heads = shape.heads // tp
    # With more tp ranks than key-value heads, each rank holds a copy of a whole head.
    kv_heads = heads if recipe.repeat_kv else max(1, shape.kv_heads // tp)
    element = tokens.inside * size  # bytes of one element per token inside
    # Elements per token in the norms of queries and keys, before keys are copied.
    normed = (heads + max(1, shape.kv_heads // tp)) * shape.head_width * (shape.qk_norm != "none")
    terms = ActivationTerms(
        norms_bytes=tokens.outside * shape.layer_norms * norm_bytes(recipe, h)
        + tokens.inside * norm_bytes(recipe, normed),
        matrix_inputs_bytes=gathered_tokens(job) * min(2, shape.layer_norms) * h * size,
        latents_bytes=tokens.outside * _latent_bytes(shape, recipe),
        queries_bytes=element * heads * shape.head_width,
        keys_values_bytes=element * kv_heads * (shape.head_width + shape.value_width),
        # Softmax output, dropout mask and output; in 16 bits 5·a·s²·b/t.
        scores_bytes=_score_count(job) * (size + (size + 1) * recipe.dropout),
        attention_output_bytes=element * heads * shape.value_width,
        dropout_masks_bytes=tokens.outside * 2 * h * recipe.dropout,
    )
    if shape.has_experts(layer):
        return _with_experts(terms, job)
    return replace(terms, mlp_inside_bytes=element * _mlp_width(shape, recipe, shape.ffn // tp))


def _saved_operators(job: Job, layer: int) -> ActivationTerms:
    """Activations kept by torchtitan's selective policy: layer input, attention, some matmuls.

    It saves every second matmul output (first, third, …) in the order q, k, v, o, MLP: queries,
    values, the first of the MLP, and the last of SwiGLU's three, which backward does not need; and
    under sequence parallelism both reduce-scatters. It ignores the grouped matmuls of experts.
    Source: github.com/pytorch/torchtitan, torchtitan/models/llama/parallelize_llama.py,
    _apply_ac_to_transformer_block with mode "selective" and option "op".
    """
    shape, recipe, tp, tokens = job.shape, job.recipe, job.layout.tp, job.local_tokens
    needed = needed_terms(job, layer)
    size, h = recipe.compute_bytes, shape.hidden
    values = needed.keys_values_bytes * shape.value_width // (shape.head_width + shape.value_width)
    dense, gated = not shape.has_experts(layer), shape.mlp == "swiglu"
    scattered = tokens.outside * 2 * h * size * (job.layout.sequence_parallel and tp > 1)
    return ActivationTerms(
        layer_input_bytes=tokens.outside * h * size,
        queries_bytes=needed.queries_bytes,
        keys_values_bytes=values,
        attention_output_bytes=needed.attention_output_bytes,
        mlp_inside_bytes=dense * tokens.inside * shape.ffn // tp * size,
        unused_bytes=scattered + dense * gated * tokens.inside * h * size,
    )


def gathered_tokens(job: Job) -> int:
    """Tokens kept of a column-parallel matrix's input: `outside`, or all with `keep_gathered`."""
    tokens = job.local_tokens
    return tokens.inside if job.layout.keep_gathered else tokens.outside


def norm_bytes(recipe: Recipe, width: CountOrZero) -> int:
    """Bytes per token that a norm of `width` keeps: its input.

    An unfused norm in torch (fused_norms False) keeps an fp32 copy of its input and the normalised
    input in the precision of the weights, like LlamaRMSNorm in Hugging Face transformers.
    """
    return width * (recipe.compute_bytes + (0 if recipe.fused_norms else 4))


def _score_count(job: Job) -> int:
    """Elements of the s × s scores of all heads on this GPU; 0 for flash attention."""
    if job.recipe.attention == "flash":
        return 0
    return job.shape.heads // job.layout.tp * job.local_tokens.inside * job.sequence


def _latent_bytes(shape: TransformerShape, recipe: Recipe) -> int:
    """Bytes per token of latent attention's two latents, each kept as input of a norm and a matrix.

    Source: DeepSeek-V2, arXiv:2405.04434, section 2.1. The down-projections are not split over tp.
    """
    if shape.mla is None:
        return 0
    widths = (shape.mla.q_rank or 0, shape.mla.kv_rank)
    return sum(norm_bytes(recipe, width) + width * recipe.compute_bytes for width in widths)


def _mlp_width(shape: TransformerShape, recipe: Recipe, ffn: int) -> int:
    """Elements kept per token inside an MLP: inputs of the activation and of the last matrix.

    GELU keeps 2·ffn. SwiGLU keeps gate, silu(gate), up and their product, 4·ffn, or 3·ffn if a
    fused kernel recomputes silu(gate).
    """
    if shape.mlp == "gelu":
        return 2 * ffn
    return (3 if recipe.fused_swiglu else 4) * ffn


def _with_experts(terms: ActivationTerms, job: Job) -> ActivationTerms:
    """`terms` plus routed experts, shared experts and router of one layer, on the busiest rank.

    Routed tokens = tokens × top_k × imbalance for any ep, which moves tokens without changing their
    average number per rank. Each routed token keeps the expert's input and its output, which the
    router's weight multiplies; the router keeps fp32 probabilities.
    """
    shape, recipe, tokens = job.shape, job.recipe, job.local_tokens
    size = recipe.compute_bytes
    inside = math.ceil(tokens.inside * shape.top_k * recipe.imbalance)
    outside = math.ceil(tokens.outside * shape.top_k * recipe.imbalance)
    width = _mlp_width(shape, recipe, shape.expert_width // job.layout.tp)
    return replace(
        terms,
        routed_experts_bytes=outside * 2 * shape.hidden * size + inside * width * size,
        shared_experts_bytes=tokens.inside * shape.shared_experts * width * size,
        router_bytes=tokens.outside * 4 * shape.experts,
    )


# --- Activations kept before the first layer and after the last, in bytes ---


def embedding_activation_bytes(job: Job) -> int:
    """Bytes kept before the first layer: s·b·h for the embedding's dropout mask, or 0."""
    return job.local_tokens.outside * job.shape.hidden * job.recipe.dropout


def output_activation_bytes(job: Job) -> int:
    """Bytes kept after the last layer: inputs of the last norm and of the head, and the loss.

    16-bit: 4·s·b·h outside the tensor-parallel region, and 4·s·b·v/t of fp32 log-probabilities,
    with the vocabulary v split over tp ranks (Korthikanti et al. 2022, arXiv:2205.05198,
    section 4.3); for other losses see `loss_copies`.
    """
    width = job.shape.hidden
    inputs = job.local_tokens.outside * norm_bytes(job.recipe, width)
    inputs += gathered_tokens(job) * width * job.recipe.compute_bytes
    return inputs + math.ceil(logit_count(job) * loss_copies(job).kept_bytes)


def head_activation_bytes(job: Job) -> int:
    """Bytes kept outside the layers: `embedding_activation_bytes` and `output_activation_bytes`.

    In 16 bits 4·s·b·h + 4·s·b·v with v the vocabulary, and s·b·h for the mask of the embedding's
    dropout (Korthikanti et al. 2022, arXiv:2205.05198, section 4.3).
    """
    return embedding_activation_bytes(job) + output_activation_bytes(job)


def loss_temporary_bytes(job: Job) -> int:
    """Temporary bytes in the loss's backward pass, in addition to those kept from forward."""
    return math.ceil(logit_count(job) * loss_copies(job).temporary_bytes)


def logit_count(job: Job) -> int:
    """Logits of one micro-batch on this GPU: s·b·v/t, with v/t rounded up for t = tp."""
    return job.local_tokens.inside * -(-job.shape.vocab // job.layout.tp)


@dataclass(frozen=True)
class LossCopies:
    """Bytes per logit: kept from the forward pass, and temporary in the backward pass."""

    kept_bytes: float
    temporary_bytes: float


def loss_copies(job: Job) -> LossCopies:
    """Bytes per logit of all copies of the logits, for the recipe's cross-entropy implementation.

    With w bytes per weight: "eager" (PyTorch, over fp32 logits) keeps log-probabilities, 4, and
    has two fp32 gradients, 8; split over tp (DTensor's loss_parallel) one more copy, 4.
    "in-place" (Megatron-LM, core/tensor_parallel/cross_entropy.py) overwrites one fp32 copy with
    probabilities and then with the gradient: 4, and w for the head's matmul. "fused" (a kernel that
    overwrites the logits with the gradient, like Liger's; Hsu et al. 2024, arXiv:2410.10989): w.
    "chunked": w for all logits, and "eager" for one chunk.
    """
    w = job.recipe.compute_bytes
    split = 4 * (job.layout.tp > 1)  # torch computes this backward pass step by step
    eager = LossCopies(4, 8 + split)
    chunk = (eager.kept_bytes + eager.temporary_bytes) / job.recipe.loss_chunks
    return {
        "eager": eager,
        "in-place": LossCopies(4, w if w < 4 else 0),
        "fused": LossCopies(w, 0),
        "chunked": LossCopies(w, chunk),
    }[job.recipe.loss]


check_public(globals())
