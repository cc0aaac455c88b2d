"""What one dense layer keeps for the backward pass, term by term: the bars behind the formula."""

from dataclasses import dataclass, fields

from course_lib.theory.inputs.layout import ALONE, Layout
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.memory.activations import (
    check_batch,
    local_tokens,
    mlp_width,
    norm_bytes,
    score_bytes,
)


@dataclass(frozen=True)
class ActivationTerms:
    """Bytes of one layer and micro-batch on one GPU, by what needs them in the backward pass.

    Under full recomputation only `layer_input_bytes` is kept; the other terms are 0.
    """

    layer_input_bytes: int = 0
    norms_bytes: int = 0  # inputs of the two norms
    matrix_inputs_bytes: int = 0  # what the norms hand to attention and to the MLP
    queries_bytes: int = 0
    keys_values_bytes: int = 0
    scores_bytes: int = 0  # softmax's output, dropout's mask and output: s × s for each head
    attention_output_bytes: int = 0
    mlp_inside_bytes: int = 0  # between the MLP's matrices
    dropout_masks_bytes: int = 0  # of the two dropouts on the residual stream

    @property
    def total_bytes(self) -> int:
        """All that the layer keeps: `activations.layer_activation_bytes`."""
        return sum(self.leaves().values())

    def leaves(self) -> dict[str, int]:
        """Bytes by term, in words."""
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


def activation_terms(
    shape: TransformerShape,
    recipe: Recipe,
    micro_batch: int,
    sequence: int,
    layout: Layout = ALONE,
) -> ActivationTerms:
    """The terms of `activations.layer_activation_bytes` for a layer without experts or latents.

    16-bit, GELU with ffn = 4h, dropout, standard attention, in units of s·b·h bytes: norms 4,
    inputs of matrices 4, queries 2, keys and values 4, attention output 2, MLP 16, masks 2, which
    is 34; scores 5·a·s/h. Source: Korthikanti et al. 2022, arXiv:2205.05198, section 4.1.
    Raises ValueError for experts or latent attention.
    """
    check_batch(shape, micro_batch, sequence)
    if shape.experts or shape.mla:
        raise ValueError(
            f"experts {shape.experts}, mla {shape.mla}: the terms are those of a dense layer: take "
            "activations.layer_activation_bytes"
        )
    tokens = local_tokens(layout, micro_batch, sequence)
    size, h = recipe.weight_bytes, shape.hidden
    if recipe.recompute == "full":
        return ActivationTerms(layer_input_bytes=tokens.outside * h * size)
    heads = shape.heads // layout.tp
    kv_heads = heads if recipe.repeat_kv else max(1, shape.kv_heads // layout.tp)
    head = tokens.inside * shape.head_width * size
    standard = recipe.recompute == "none"
    return ActivationTerms(
        norms_bytes=tokens.outside * 2 * norm_bytes(recipe, h),
        matrix_inputs_bytes=tokens.outside * 2 * h * size,
        queries_bytes=heads * head,
        keys_values_bytes=2 * kv_heads * head,
        scores_bytes=standard * score_bytes(shape, recipe, tokens, sequence, layout),
        attention_output_bytes=heads * head,
        mlp_inside_bytes=tokens.inside * size * mlp_width(shape, recipe, shape.ffn // layout.tp),
        dropout_masks_bytes=tokens.outside * 2 * h * recipe.dropout,
    )
