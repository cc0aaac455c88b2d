"""What the forward pass keeps for the backward pass, in bytes on one GPU.

A tensor is cut in one of two ways. Outside the tensor-parallel region (norms, residuals, the
inputs of the first matrices) every tp rank keeps all of it, or 1/tp under sequence parallelism;
inside (heads, the MLP's width) every rank keeps 1/tp. Context parallelism cuts the sequence.
Source: Korthikanti et al. 2022, arXiv:2205.05198, section 4. Small change that is not counted: mean
and scale of the norms, flash attention's log-sum-exp, top-k indices, buffers of collectives.
"""

import math
from dataclasses import dataclass

from course_lib.theory.inputs.layout import ALONE, Layout
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.validation import whole


@dataclass(frozen=True)
class Tokens:
    """Tokens of one micro-batch on one GPU: inside and outside the tensor-parallel region."""

    inside: int
    outside: int


def local_tokens(layout: Layout, micro_batch: int, sequence: int) -> Tokens:
    """inside = micro_batch·sequence/cp; outside = inside, or inside/tp under sequence parallelism.

    Raises ValueError for a sequence that cp (and tp) do not divide.
    """
    whole("micro_batch", micro_batch)
    layout.check_sequence(sequence)
    inside = micro_batch * sequence // layout.cp
    return Tokens(inside, inside // layout.tp if layout.sequence_parallel else inside)


def layer_activation_bytes(
    shape: TransformerShape,
    recipe: Recipe,
    micro_batch: int,
    sequence: int,
    layout: Layout = ALONE,
    layer: int = 0,
) -> int:
    """Bytes that layer number `layer` keeps of one micro-batch.

    16-bit, GELU with ffn = 4h, dropout, standard attention (s sequence, b micro-batch, h hidden,
    a heads, t = tp): s·b·h·(10 + 24/t + 5·a·s/(h·t)), and s·b·h/t·(34 + 5·a·s/h) with sequence
    parallelism; without the last term under selective recomputation; 2·s·b·h (over t with sequence
    parallelism) under full recomputation (Korthikanti et al. 2022, arXiv:2205.05198, equations 1
    to 6). The same inventory serves SwiGLU, grouped-query and latent attention, experts, no
    dropout, flash attention and fp32, where everything but the one-byte dropout masks doubles.
    """
    check_batch(shape, micro_batch, sequence)
    whole("layer", layer, least=0, most=shape.layers - 1)
    tokens = local_tokens(layout, micro_batch, sequence)
    if recipe.recompute == "full":
        return tokens.outside * shape.hidden * recipe.weight_bytes
    kept = _layer_bytes(shape, recipe, tokens, layout, layer)
    if recipe.recompute == "none":
        kept += score_bytes(shape, recipe, tokens, sequence, layout)
    return kept


def recomputed_bytes(
    shape: TransformerShape,
    recipe: Recipe,
    micro_batch: int,
    sequence: int,
    layout: Layout = ALONE,
    layer: int = 0,
) -> int:
    """Bytes that come back while one layer is recomputed: everything that was not kept.

    Selective: the attention core. Full: all of one layer but its stored input. None: 0.
    """
    tokens = local_tokens(layout, micro_batch, sequence)
    if recipe.recompute == "none":
        return 0
    scores = score_bytes(shape, recipe, tokens, sequence, layout)
    if recipe.recompute == "selective":
        return scores
    stored = tokens.outside * shape.hidden * recipe.weight_bytes
    return _layer_bytes(shape, recipe, tokens, layout, layer) + scores - stored


def embedding_activation_bytes(
    shape: TransformerShape,
    recipe: Recipe,
    micro_batch: int,
    sequence: int,
    layout: Layout = ALONE,
) -> int:
    """Bytes kept before the first layer: s·b·h for the mask of the embedding's dropout, or 0."""
    tokens = local_tokens(layout, micro_batch, sequence)
    return tokens.outside * shape.hidden * recipe.dropout


def output_activation_bytes(
    shape: TransformerShape,
    recipe: Recipe,
    micro_batch: int,
    sequence: int,
    layout: Layout = ALONE,
) -> int:
    """Bytes kept after the last layer: inputs of the last norm and of the head, and the loss.

    16-bit: 4·s·b·h outside the tensor-parallel region, and 4·s·b·v/t of fp32 log-probabilities,
    v the vocabulary, of which each tp rank has its part (Korthikanti et al. 2022,
    arXiv:2205.05198, section 4.3).
    """
    tokens = local_tokens(layout, micro_batch, sequence)
    width = shape.hidden
    inputs = norm_bytes(recipe, width) + width * recipe.weight_bytes
    return tokens.outside * inputs + logits_bytes(shape, micro_batch, sequence, layout)


def head_activation_bytes(
    shape: TransformerShape,
    recipe: Recipe,
    micro_batch: int,
    sequence: int,
    layout: Layout = ALONE,
) -> int:
    """Bytes kept outside the layers: `embedding_activation_bytes` and `output_activation_bytes`.

    In 16 bits 4·s·b·h + 4·s·b·v with v the vocabulary, and s·b·h for the mask of the embedding's
    dropout (Korthikanti et al. 2022, arXiv:2205.05198, section 4.3).
    """
    check_batch(shape, micro_batch, sequence)
    where = (shape, recipe, micro_batch, sequence, layout)
    return embedding_activation_bytes(*where) + output_activation_bytes(*where)


def logits_bytes(
    shape: TransformerShape, micro_batch: int, sequence: int, layout: Layout = ALONE
) -> int:
    """One fp32 tensor as large as the logits: 4·s·b·v/t, the vocabulary rounded up over t = tp."""
    tokens = local_tokens(layout, micro_batch, sequence)
    return 4 * tokens.inside * -(-shape.vocab // layout.tp)


def score_bytes(
    shape: TransformerShape, recipe: Recipe, tokens: Tokens, sequence: int, layout: Layout
) -> int:
    """The s × s attention core of one layer: softmax output, and dropout's mask and output.

    16-bit with dropout: 5·a·s²·b/t; flash attention keeps none of it.
    """
    if recipe.attention == "flash":
        return 0
    size = recipe.weight_bytes
    pairs = shape.heads // layout.tp * tokens.inside * sequence
    return pairs * (size + (size + 1) * recipe.dropout)


def norm_bytes(recipe: Recipe, width: int) -> int:
    """Bytes per token that a norm of `width` keeps: its input.

    Written out in torch (fused_norms False) it keeps an fp32 copy of its input and the normalised
    input in the precision of the weights, as LlamaRMSNorm in Hugging Face transformers does.
    """
    return width * (recipe.weight_bytes + (0 if recipe.fused_norms else 4))


def check_batch(shape: TransformerShape, micro_batch: int, sequence: int) -> None:
    """Raise ValueError for counts below 1 and a sequence longer than the learned positions."""
    whole("micro_batch", micro_batch)
    shape.check_sequence(sequence)


def _layer_bytes(
    shape: TransformerShape, recipe: Recipe, tokens: Tokens, layout: Layout, layer: int
) -> int:
    """One layer without its attention core and without any recomputation."""
    h, size = shape.hidden, recipe.weight_bytes
    # Two norms, and what they hand to attention and to the MLP; two dropouts on the residuals.
    outside = 2 * norm_bytes(recipe, h) + 2 * h * size + 2 * h * recipe.dropout
    kept = tokens.outside * (outside + _latent_bytes(shape, recipe))
    kept += tokens.inside * size * _attention_width(shape, recipe, layout.tp)
    if shape.has_experts(layer):
        return kept + _expert_bytes(shape, recipe, tokens, layout)
    return kept + tokens.inside * size * mlp_width(shape, recipe, shape.ffn // layout.tp)


def _attention_width(shape: TransformerShape, recipe: Recipe, tp: int) -> int:
    """Elements per token of queries, keys, values and attention's output, on one tp rank."""
    heads = shape.heads // tp
    # With more tp ranks than key-value heads each rank has a whole one, copied.
    kv_heads = heads if recipe.repeat_kv else max(1, shape.kv_heads // tp)
    return (heads + kv_heads) * (shape.head_width + shape.value_width)


def _latent_bytes(shape: TransformerShape, recipe: Recipe) -> int:
    """Bytes per token of latent attention's two latents: input of a norm, then of a matrix.

    Source: DeepSeek-V2, arXiv:2405.04434, section 2.1. The down-projections are not split over tp.
    """
    if shape.mla is None:
        return 0
    widths = (shape.mla.q_rank or 0, shape.mla.kv_rank)
    return sum(norm_bytes(recipe, width) + width * recipe.weight_bytes for width in widths)


def mlp_width(shape: TransformerShape, recipe: Recipe, ffn: int) -> int:
    """Elements per token inside an MLP: input of the activation and of the last matrix.

    GELU keeps 2·ffn; SwiGLU gate, silu(gate), up and their product, 4·ffn, or 3·ffn when a fused
    kernel computes silu(gate) again. Raises ValueError for ffn below 1.
    """
    whole("ffn", ffn)
    if shape.mlp == "gelu":
        return 2 * ffn
    return (3 if recipe.fused_swiglu else 4) * ffn


def _expert_bytes(shape: TransformerShape, recipe: Recipe, tokens: Tokens, layout: Layout) -> int:
    """Routed experts, shared experts and router of one layer, on the busiest rank.

    Routed tokens = tokens × top_k × imbalance, wherever the experts are: ep moves tokens, it does
    not change how many a rank has on average. Each keeps its copy of the expert's input and the
    expert's output, which the router's weight multiplies; the router keeps fp32 probabilities.
    """
    size, h = recipe.weight_bytes, shape.hidden
    routed_inside = math.ceil(tokens.inside * shape.top_k * recipe.imbalance)
    routed_outside = math.ceil(tokens.outside * shape.top_k * recipe.imbalance)
    width = mlp_width(shape, recipe, shape.expert_ffn // layout.tp)
    routed = routed_outside * 2 * h * size + routed_inside * width * size
    shared = tokens.inside * shape.shared_experts * width * size
    return routed + shared + tokens.outside * 4 * shape.experts
