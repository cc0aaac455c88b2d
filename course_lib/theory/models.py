"""Shapes of published transformers and their exact parameter counts."""

from dataclasses import dataclass, fields

from course_lib.theory.units import format_count
from course_lib.theory.validation import choice, divisible, flag, whole


@dataclass(frozen=True)
class ParameterCount:
    """Trainable parameters by place; a tied embedding is counted once, under `embedding`."""

    embedding: int
    positions: int
    attention: int
    mlp: int
    norms: int
    head: int

    @property
    def total(self) -> int:
        """All trainable parameters."""
        return sum(getattr(self, leaf.name) for leaf in fields(self))

    def explain(self) -> str:
        """One line per leaf."""
        lines = [f"{leaf.name:<10}{getattr(self, leaf.name):>18,}" for leaf in fields(self)]
        return "\n".join([*lines, f"{'total':<10}{self.total:>18,}  ({format_count(self.total)})"])


@dataclass(frozen=True)
class TransformerShape:
    """The sizes of a decoder-only transformer.

    `kv_heads` below `heads` means grouped-query attention; `mlp` is "gelu" (two matrices) or
    "swiglu" (three); `norm` is "layernorm" (weight and bias) or "rmsnorm" (weight).
    Raises ValueError for sizes that do not divide.
    """

    layers: int
    hidden: int
    heads: int
    ffn: int
    vocab: int
    context: int
    kv_heads: int | None = None  # None: as many as heads
    mlp: str = "gelu"
    norm: str = "layernorm"
    biases: bool = True
    learned_positions: bool = True
    tied_embeddings: bool = True

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "ffn", "vocab", "context"):
            whole(name, getattr(self, name))
        if self.kv_heads is None:
            object.__setattr__(self, "kv_heads", self.heads)
        whole("kv_heads", self.kv_heads)
        divisible("hidden", self.hidden, "heads", self.heads)
        divisible("heads", self.heads, "kv_heads", self.kv_heads)
        choice("mlp", self.mlp, ("gelu", "swiglu"))
        choice("norm", self.norm, ("layernorm", "rmsnorm"))
        for name in ("biases", "learned_positions", "tied_embeddings"):
            flag(name, getattr(self, name))

    @property
    def kv_width(self) -> int:
        """Width of the keys, and of the values: kv_heads * hidden / heads."""
        return self.kv_heads * self.hidden // self.heads

    def parameters(self) -> ParameterCount:
        """Exact count: attention 2h(h + kv_width), MLP 2hf or 3hf, plus biases and norms."""
        h, f, kv = self.hidden, self.ffn, self.kv_width
        matrices = 2 if self.mlp == "gelu" else 3
        attention = 2 * h * (h + kv) + (self.biases * (2 * h + 2 * kv))
        mlp = matrices * h * f + self.biases * ((matrices - 1) * f + h)
        norm = h * (2 if self.norm == "layernorm" else 1)
        return ParameterCount(
            embedding=self.vocab * h,
            positions=self.learned_positions * self.context * h,
            attention=self.layers * attention,
            mlp=self.layers * mlp,
            norms=(2 * self.layers + 1) * norm,
            head=0 if self.tied_embeddings else self.vocab * h,
        )


def model(name: str) -> TransformerShape:
    """The preset called `name`; ValueError with the nearest name for an unknown one."""
    choice("model", name, MODELS)
    return MODELS[name]


def _gpt(layers: int, hidden: int, heads: int, context: int = 1024) -> TransformerShape:
    return TransformerShape(layers, hidden, heads, 4 * hidden, vocab=50257, context=context)


def _llama(
    layers: int,
    hidden: int,
    heads: int,
    ffn: int,
    context: int,
    kv_heads: int | None = None,
    vocab: int = 32000,
) -> TransformerShape:
    return TransformerShape(
        layers,
        hidden,
        heads,
        ffn,
        vocab,
        context,
        kv_heads,
        mlp="swiglu",
        norm="rmsnorm",
        biases=False,
        learned_positions=False,
        tied_embeddings=False,
    )


MODELS = {
    # Radford et al. 2019, table 2, with the sizes of the published config.json files: the paper's
    # own totals (117M, 345M, 762M, 1542M) are too small.
    "gpt2-124m": _gpt(12, 768, 12),
    "gpt2-355m": _gpt(24, 1024, 16),
    "gpt2-774m": _gpt(36, 1280, 20),
    "gpt2-1.5b": _gpt(48, 1600, 25),
    # Brown et al. 2020, arXiv:2005.14165, table 2.1.
    "gpt3-175b": _gpt(96, 12288, 96, context=2048),
    # Touvron et al. 2023, arXiv:2302.13971, table 2, and config.json of the released weights.
    "llama1-7b": _llama(32, 4096, 32, 11008, context=2048),
    "llama1-13b": _llama(40, 5120, 40, 13824, context=2048),
    "llama1-33b": _llama(60, 6656, 52, 17920, context=2048),
    "llama1-65b": _llama(80, 8192, 64, 22016, context=2048),
    # Touvron et al. 2023, arXiv:2307.09288, table 1, and config.json.
    "llama2-7b": _llama(32, 4096, 32, 11008, context=4096),
    "llama2-13b": _llama(40, 5120, 40, 13824, context=4096),
    "llama2-70b": _llama(80, 8192, 64, 28672, context=4096, kv_heads=8),
    # Grattafiori et al. 2024, arXiv:2407.21783, table 3.
    "llama3-8b": _llama(32, 4096, 32, 14336, context=8192, kv_heads=8, vocab=128256),
    "llama3-70b": _llama(80, 8192, 64, 28672, context=8192, kv_heads=8, vocab=128256),
    "llama3-405b": _llama(126, 16384, 128, 53248, context=8192, kv_heads=8, vocab=128256),
}
