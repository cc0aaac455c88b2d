"""Floating-point operations of training: exact counts by part, and the papers' short formulas.

Only matrix products count, 2 FLOP per multiply-add. Norms, softmax, activations, rotary positions
and the embedding lookup do not. The backward pass of a product is two products of the same size, in
the first layer too, since the embedding before it is trained.
"""

from dataclasses import dataclass, fields, replace
from typing import Annotated

from course_lib.checked import Count, CountOrZero, NotNegative, check_public
from course_lib.theory.inputs.recipe import RECOMPUTE
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.inputs.units import format_flop

MASKS = ("full", "causal")
ATTENTION = ("standard", "flash")
_Mask = Annotated[str, MASKS]
_Recompute = Annotated[str, RECOMPUTE]
_Attention = Annotated[str, ATTENTION]


@dataclass(frozen=True)
class FlopBreakdown:
    """FLOP of the forward and backward pass over `tokens`, by part; `recompute_flop` is extra.

    `projections_flop` is attention's weight matrices, `scores_flop` queries times keys and scores
    times values, `experts_flop` the routed experts that the tokens use.
    """

    tokens: int
    projections_flop: int = 0
    scores_flop: int = 0
    mlp_flop: int = 0
    experts_flop: int = 0
    shared_experts_flop: int = 0
    router_flop: int = 0
    head_flop: int = 0
    recompute_flop: int = 0
    convention: str = ""

    def __add__(self, other: "FlopBreakdown") -> "FlopBreakdown":
        if self.tokens != other.tokens:
            raise ValueError(
                f"tokens {self.tokens} and {other.tokens} differ: add parts of one model only"
            )
        others = other.leaves()
        return self._with({name: flop + others[name] for name, flop in self.leaves().items()})

    def times(self, layers: CountOrZero) -> "FlopBreakdown":
        """The FLOP of `layers` identical layers over the same tokens."""
        return self._with({name: layers * flop for name, flop in self.leaves().items()})

    def _with(self, leaves: dict[str, int]) -> "FlopBreakdown":
        return FlopBreakdown(self.tokens, convention=self.convention, **leaves)

    def leaves(self) -> dict[str, int]:
        """FLOP of each leaf (the `…_flop` fields) by name."""
        names = (field.name for field in fields(self) if field.name.endswith("_flop"))
        return {name: getattr(self, name) for name in names}

    @property
    def model_flop(self) -> int:
        """Model FLOPs, which MFU uses: all leaves except recomputation.

        Source: PaLM, arXiv:2204.02311, appendix B.
        """
        return self.hardware_flop - self.recompute_flop

    @property
    def hardware_flop(self) -> int:
        """Hardware FLOPs, which HFU uses: all leaves, recomputation included."""
        return sum(self.leaves().values())

    @property
    def forward_flop(self) -> int:
        """FLOP of the forward pass: a third of the model FLOPs."""
        return self.model_flop // 3

    @property
    def backward_flop(self) -> int:
        """FLOP of the backward pass including recomputation: hardware − forward."""
        return self.hardware_flop - self.forward_flop

    @property
    def model_flop_per_token(self) -> float:
        """Model FLOPs of one token, forward and backward."""
        return self.model_flop / self.tokens

    def explain(self) -> str:
        """One line per leaf: 6 FLOP × tokens × multiply-adds of one token; then both totals."""
        rows = [
            f"{name.removesuffix('_flop'):<15} 6 × {self.tokens:,} tokens × "
            f"{flop / (6 * self.tokens):,.0f} multiply-adds = {format_flop(flop)}"
            for name, flop in self.leaves().items()
            if flop and name != "recompute_flop"
        ]
        extra = self.recompute_flop / max(1, self.model_flop)
        return "\n".join(
            [
                *rows,
                f"{'model':<15} forward {format_flop(self.forward_flop)} × 3 = "
                f"{format_flop(self.model_flop)}",
                f"{'recompute':<15} {format_flop(self.recompute_flop)} (+{extra:.1%})",
                f"{'hardware':<15} {format_flop(self.hardware_flop)}",
                f"{'convention':<15} {self.convention}",
            ]
        )


def training_flops(
    shape: TransformerShape,
    sequences: Count = 1,
    sequence: int | None = None,
    *,
    mask: _Mask = "full",
    recompute: _Recompute = "none",
    attention: _Attention = "standard",
) -> FlopBreakdown:
    """FLOP of forward and backward pass over `sequences` of `sequence` tokens (None: context).

    A weight matrix with N entries takes 6·N per token; attention 6·heads·(d_query + d_value)·s per
    token and layer. For plain and grouped-query attention that is 12·h·s, since keys and values
    shared by several heads are multiplied once per head. Conventions: `mask` "full" counts all s²
    pairs, as PaLM (arXiv:2204.02311, appendix B), Megatron-LM's papers and torch's FlopCounterMode
    do; "causal" counts half, as Megatron-LM's training.py of 2025 does. `recompute` "full" repeats
    the layers' forward pass, "selective" the scores only, "operators" every second matmul. Flash
    attention keeps no scores: its backward pass recomputes queries times keys for any `recompute`
    (Dao et al. 2022, arXiv:2205.14135, section 3.1), so "selective" adds nothing.
    """
    sequence = shape.context if sequence is None else sequence
    total = head_flops(shape, sequences, sequence)
    for layer, count in shape.layer_kinds():
        one = layer_flops(
            shape, layer, sequences, sequence, mask=mask, recompute=recompute, attention=attention
        )
        total = one.times(count) + total
    return total


def layer_flops(
    shape: TransformerShape,
    layer: int,
    sequences: Count,
    sequence: int,
    *,
    mask: _Mask = "full",
    recompute: _Recompute = "none",
    attention: _Attention = "standard",
) -> FlopBreakdown:
    """The share of layer number `layer` in `training_flops`; a pipeline stage sums its layers."""
    result = _nothing(
        shape, sequences, sequence, f"{mask} mask, {attention} attention, recompute={recompute}"
    )
    tokens, leaves = result.tokens, result.leaves()
    for matrix in shape.layer_matrices(layer):
        place = "projections" if matrix.place == "attention" else matrix.place
        leaves[f"{place}_flop"] += 3 * tokens * matrix.forward_flop
    pairs = shape.heads * tokens * sequence
    multiply = pairs if mask == "causal" else 2 * pairs  # FLOP for each number of a head's width
    leaves["scores_flop"] = 3 * multiply * (shape.head_width + shape.value_width)
    forward = sum(leaves.values()) // 3
    scores = leaves["scores_flop"]
    recomputed = _repeated_scores(shape, scores, recompute, attention)
    if recompute == "operators":
        recomputed += tokens * _every_second_matmul(shape, layer)
    elif recompute == "full":
        recomputed += forward - scores // 3
    leaves["recompute_flop"] = recomputed
    return FlopBreakdown(tokens, convention=result.convention, **leaves)


def attention_flop(
    shape: TransformerShape, one: FlopBreakdown, recompute: _Recompute, attention: _Attention
) -> int:
    """FLOP of the attention kernel in layers with breakdown `one`: scores plus recomputation."""
    return one.scores_flop + _repeated_scores(shape, one.scores_flop, recompute, attention)


def _repeated_scores(shape: TransformerShape, scores: int, recompute: str, attention: str) -> int:
    """FLOP of recomputing scores: their forward pass, or queries times keys in flash's backward."""
    forward = scores // 3
    if attention == "standard":
        return forward if recompute in ("selective", "full") else 0
    widths = shape.head_width + shape.value_width
    return forward * (recompute == "full") + forward * shape.head_width // widths


def _every_second_matmul(shape: TransformerShape, layer: int) -> int:
    """Forward FLOP per token that torchtitan's selective policy recomputes; attention is kept.

    These are the second, fourth, … matmul, and all expert matmuls, which are grouped matmuls.
    """
    matrices = shape.layer_matrices(layer)
    experts = [matrix for matrix in matrices if "experts" in matrix.place]
    single = [matrix for matrix in matrices if matrix not in experts]
    return sum(matrix.forward_flop for matrix in [*single[1::2], *experts])


def head_flops(shape: TransformerShape, sequences: Count, sequence: int) -> FlopBreakdown:
    """FLOP of the logits: 6·hidden·vocab per token, tied head or not; never recomputed."""
    result = _nothing(shape, sequences, sequence, "logits of every token")
    return replace(result, head_flop=6 * result.tokens * shape.hidden * shape.vocab)


def _nothing(
    shape: TransformerShape, sequences: int, sequence: int, convention: str
) -> FlopBreakdown:
    shape.check_sequence(sequence)
    return FlopBreakdown(sequences * sequence, convention=convention)


def six_nd(
    parameters: NotNegative,
    tokens: NotNegative,
    recompute: Annotated[str, ("none", "full")] = "none",
) -> float:
    """6·N·D: 2 FLOP forward and 4 backward for each parameter and token; 8·N·D with recomputation.

    Attention scores are left out. N may include the embedding or not: say which one you pass. For a
    mixture of experts pass the active parameters. `recompute` "full" repeats the forward pass.
    Source: Kaplan et al. 2020, arXiv:2001.08361, section 2.1.
    """
    return (6 if recompute == "none" else 8) * parameters * tokens


def palm_flop_per_token(
    parameters: NotNegative, *, layers: Count, heads: Count, head_dim: Count, sequence: Count
) -> float:
    """6·N + 12·L·H·Q·T: model FLOPs of one token with attention over all T tokens.

    L layers, H heads of width Q, T tokens per sequence. Source: PaLM, arXiv:2204.02311,
    appendix B.
    """
    return 6 * parameters + 12 * layers * heads * head_dim * sequence


# Coefficients of h² and s·h in the formulas of Megatron-LM's papers, by kind of recomputation.
_MEGATRON = {"none": (72, 12), "selective": (72, 24), "full": (96, 16)}


def megatron_flop(
    batch: Count,
    sequence: Count,
    *,
    layers: Count,
    hidden: Count,
    vocab: Count,
    recompute: Annotated[str, _MEGATRON] = "full",
) -> int:
    """FLOP of one step of a GPT with 4h GELU MLPs, as Megatron-LM's papers count them.

    recompute "none": 72·B·l·s·h²·(1 + s/6h + V/12lh). "full": 96·B·l·s·h²·(1 + s/6h + V/16lh)
    (Narayanan et al. 2021, arXiv:2104.04473, equation 3). "selective": as "none" with s/3h
    (Korthikanti et al. 2022, arXiv:2205.05198, appendix A): that charges 12·B·l·s²·h for the
    recomputed scores, whereas their forward pass is 4·B·l·s²·h, which `training_flops` adds.
    """
    matrices, scores = _MEGATRON[recompute]
    tokens = batch * sequence
    layer = tokens * (matrices * hidden**2 + scores * sequence * hidden)
    return layers * layer + 6 * tokens * hidden * vocab


check_public(globals())
