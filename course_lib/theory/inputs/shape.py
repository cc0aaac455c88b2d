"""Shapes of transformers: sizes, weight matrices and exact parameter counts."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import lru_cache, partial
from operator import add
from typing import Annotated, ClassVar

from course_lib.checked import Count, CountOrZero, Text, check_public
from course_lib.validation import DERIVED, derive, divisible, whole


@dataclass(frozen=True)
class ParameterCount:
    """Trainable parameters by component; a tied embedding is counted once, under `embedding`.

    Of the routed experts' parameters a token uses `chosen_experts`, but not `idle_experts`.
    """

    embedding: int = 0
    positions: int = 0
    attention: int = 0
    mlp: int = 0
    chosen_experts: int = 0
    idle_experts: int = 0
    shared_experts: int = 0
    router: int = 0
    norms: int = 0
    head: int = 0

    def __add__(self, other: "ParameterCount") -> "ParameterCount":
        return ParameterCount(*map(add, self, other))

    def __iter__(self) -> Iterator[int]:
        """The leaves in order."""
        return (getattr(self, leaf.name) for leaf in fields(self))

    def times(self, layers: CountOrZero) -> "ParameterCount":
        """The parameters of `layers` identical layers."""
        return ParameterCount(*(layers * leaf for leaf in self))

    @property
    def total(self) -> int:
        """All trainable parameters: the sum of the leaves."""
        return sum(self)

    @property
    def active(self) -> int:
        """Parameters active for one token: total − idle_experts. The embedding is included."""
        return self.total - self.idle_experts

    @property
    def experts(self) -> int:
        """Parameters of all routed experts, which expert parallelism distributes."""
        return self.chosen_experts + self.idle_experts


# --- The sizes of a transformer, its weight matrices, and their parameter counts ---

# Some functions loop over layers; this is far more than any model has.
MOST_LAYERS = 10_000
MOST_WIDTH = 10**40  # of a matrix: heads times the width of one head
MOST_NORMS = 4  # one before and one after attention and MLP
NORM_NUMBERS = {"layernorm": 2, "rmsnorm": 1, "plain": 0}  # parameters per normalised element


@dataclass(frozen=True)
class Matrix:
    """One weight matrix of a layer. A token is multiplied with `used` of its `copies` (experts).

    `place` is the component: a field of ParameterCount, or "experts" for routed experts.
    """

    place: Text
    inputs: Annotated[int, partial(whole, least=0, most=MOST_WIDTH)]
    outputs: Annotated[int, partial(whole, least=0, most=MOST_WIDTH)]
    bias: bool
    copies: Annotated[int, partial(whole, least=0, most=MOST_WIDTH)] = 1
    used: Annotated[int, partial(whole, least=0, most=MOST_WIDTH)] = 1

    @property
    def parameters(self) -> int:
        """Parameters of one copy: inputs · outputs, plus outputs with a bias."""
        return self.outputs * (self.inputs + self.bias)

    @property
    def forward_flop(self) -> int:
        """FLOP of one token's forward pass, 2 per multiply-add: 2 · inputs · outputs · used."""
        return 2 * self.inputs * self.outputs * self.used


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention: queries, and keys with values, are projected from latents.

    Each head's query and key have `nope_dim` elements without a rotary position and `rope_dim` with
    one (the key's are shared by all heads); its value has `value_dim`. `q_rank` None means that
    queries are not compressed. Source: DeepSeek-V2, arXiv:2405.04434, section 2.1.
    """

    q_rank: Count | None
    kv_rank: Count
    nope_dim: Count
    rope_dim: Count
    value_dim: Count


@dataclass(frozen=True)
class TransformerShape:
    """The sizes of a decoder-only transformer.

    Attention. `kv_heads` below `heads` means grouped-query attention; `head_dim` None means
    hidden / heads. `attention_biases`: "none", "qkv" (queries, keys and values: Qwen2,
    arXiv:2407.10671, section 2.2.1) or "all"; None: as `biases`. `qk_norm`: norms on queries and
    keys, per "head" (Qwen3, arXiv:2505.09388, section 2) or over "all" heads together (OLMo 2,
    arXiv:2501.00656, section 3.2). `mla` replaces attention's matrices.

    Layers. `mlp` is "gelu" (two matrices) or "swiglu" (three, whatever the gate's function);
    `norm` is "layernorm" (weight and bias), "rmsnorm" (weight) or "plain" (neither: OLMo,
    arXiv:2402.00838, section 2.1). `layer_norms`: norms per layer: 1 where attention and MLP share
    it (Falcon, arXiv:2311.16867, section 3.3), 4 where each has one before and one after (Gemma 2,
    arXiv:2408.00118, section 2). `biases`: all matrices have one except router and head.

    Mixtures. With `experts` each layer after the first `dense_layers` has a router, `experts` MLPs
    of width `expert_ffn` (0: ffn) of which a token uses `top_k`, and `shared_experts` more that all
    tokens use. `shared_gate` adds a router output that weights the shared experts (Qwen2MoE's
    shared_expert_gate in Hugging Face transformers).
    Raises ValueError for inconsistent sizes.
    """

    BY_NAME: ClassVar[str] = "MODELS[{0}] or model({0})"

    layers: Annotated[int, partial(whole, most=MOST_LAYERS)]
    hidden: Count
    heads: Count
    ffn: Count
    vocab: Count
    context: Count
    kv_heads: Count = DERIVED  # as many as heads
    mlp: Annotated[str, ("gelu", "swiglu")] = "gelu"
    norm: Annotated[str, NORM_NUMBERS] = "layernorm"
    biases: bool = True
    learned_positions: bool = True
    tied_embeddings: bool = True
    head_dim: Count | None = None
    experts: CountOrZero = 0
    top_k: CountOrZero = 0
    shared_experts: CountOrZero = 0
    expert_ffn: CountOrZero = 0  # as wide as ffn
    dense_layers: CountOrZero = 0
    mla: LatentAttention | None = None
    attention_biases: Annotated[str | None, ("none", "qkv", "all")] = None
    qk_norm: Annotated[str, ("none", "head", "all")] = "none"
    layer_norms: Annotated[int, partial(whole, most=MOST_NORMS)] = 2
    shared_gate: bool = False

    def __post_init__(self) -> None:
        derive(self, kv_heads=self.heads)
        self._check_attention()
        self._check_experts()

    def _check_attention(self) -> None:
        if self.mla is None and self.head_dim is None:
            divisible("hidden", self.hidden, "heads", self.heads)
        divisible("heads", self.heads, "kv_heads", self.kv_heads)
        if self.mla is None:
            return
        if self.attention_biases is not None or self.qk_norm != "none":
            raise ValueError(
                f"mla has its own biases and norms, got attention_biases {self.attention_biases} "
                f"and qk_norm {self.qk_norm}: leave them at None and 'none'"
            )
        if self.head_dim is not None or self.kv_heads != self.heads:
            raise ValueError(
                f"mla sets the sizes of all heads, got head_dim {self.head_dim} and kv_heads "
                f"{self.kv_heads} of {self.heads}: leave both at None"
            )

    def _check_experts(self) -> None:
        if not self.experts:
            for name in ("top_k", "shared_experts", "dense_layers", "expert_ffn", "shared_gate"):
                value = getattr(self, name)
                if value:
                    raise ValueError(
                        f"{name} {value} is used only with experts, got experts 0: "
                        f"set experts, or {name}={type(value)()}"
                    )
            return
        whole("top_k", self.top_k)
        _at_most("top_k", self.top_k, "experts", self.experts)
        _at_most("dense_layers", self.dense_layers, "layers - 1", self.layers - 1)
        if self.shared_gate and not self.shared_experts:
            raise ValueError(
                "shared_gate True weighs shared experts, got shared_experts 0: set shared_experts, "
                "or shared_gate=False"
            )
        if not self.dense_layers and self.ffn != self.expert_width:
            raise ValueError(
                f"ffn {self.ffn} is used by no layer, since all have experts of width "
                f"{self.expert_width}: set ffn={self.expert_width}, or dense_layers"
            )

    @property
    def head_width(self) -> int:
        """Width of one head's query: head_dim, or hidden / heads; nope + rope under `mla`."""
        if self.mla is not None:
            return self.mla.nope_dim + self.mla.rope_dim
        return self.hidden // self.heads if self.head_dim is None else self.head_dim

    @property
    def value_width(self) -> int:
        """Width of one head's value: that of its query, or value_dim under `mla`."""
        return self.head_width if self.mla is None else self.mla.value_dim

    @property
    def expert_width(self) -> int:
        """Width of one expert's MLP: expert_ffn, or ffn if that is 0."""
        return self.expert_ffn or self.ffn

    @property
    def kv_width(self) -> int:
        """Total width of the keys of all heads: kv_heads · head_width."""
        return self.kv_heads * self.head_width

    @property
    def qkv_biases(self) -> bool:
        """Whether queries, keys and values have biases."""
        return self.biases if self.attention_biases is None else self.attention_biases != "none"

    @property
    def output_bias(self) -> bool:
        """Whether attention's output has a bias."""
        return self.biases if self.attention_biases is None else self.attention_biases == "all"

    def check_sequence(self, sequence: Count) -> None:
        """Raise ValueError for a sequence below 1 or longer than the learned positions."""
        if self.learned_positions and sequence > self.context:
            raise ValueError(
                f"sequence {sequence} is longer than the {self.context} positions the model "
                f"learned: take at most {self.context}"
            )

    def has_experts(self, layer: CountOrZero) -> bool:
        """Whether layer number `layer` has routed experts instead of a single MLP."""
        _at_most("layer", layer, "layers - 1", self.layers - 1)
        return self.experts > 0 and layer >= self.dense_layers

    def layer_matrices(self, layer: int) -> tuple[Matrix, ...]:
        """All weight matrices of one layer, from which parameters and FLOPs are counted."""
        return _matrices(self, self.has_experts(layer))

    def layer_parameters(self, layer: int) -> ParameterCount:
        """Exact parameter count of layer number `layer`, counted from 0.

        Latent attention has a norm on each latent; `qk_norm` adds one on queries and one on keys.
        """
        leaves = dict.fromkeys((leaf.name for leaf in fields(ParameterCount)), 0)
        for matrix in self.layer_matrices(layer):
            if matrix.place == "experts":
                leaves["chosen_experts"] += matrix.used * matrix.parameters
                leaves["idle_experts"] += (matrix.copies - matrix.used) * matrix.parameters
            else:
                leaves[matrix.place] += matrix.copies * matrix.parameters
        latents = 0 if self.mla is None else (self.mla.q_rank or 0) + self.mla.kv_rank
        # Norms of queries and keys have weights for one head each, or for all heads.
        heads = {"none": 0, "head": 2, "all": self.heads + self.kv_heads}[self.qk_norm]
        normed = self.layer_norms * self.hidden + latents + heads * self.head_width
        leaves["norms"] = normed * NORM_NUMBERS[self.norm]
        return ParameterCount(**leaves)

    def embedding_parameters(self) -> ParameterCount:
        """Parameters before the first layer: embedding, vocab · hidden, and learned positions."""
        positions = self.learned_positions * self.context * self.hidden
        return ParameterCount(embedding=self.vocab * self.hidden, positions=positions)

    def head_parameters(self) -> ParameterCount:
        """Parameters after the last layer: a norm, and the head unless it is tied."""
        head = 0 if self.tied_embeddings else self.vocab * self.hidden
        return ParameterCount(norms=self.hidden * NORM_NUMBERS[self.norm], head=head)

    def layer_kinds(self, start: int = 0, stop: int | None = None) -> list[tuple[int, int]]:
        """Kinds among layers start … stop-1: (index of a layer, number of such layers).

        The dense kind comes before the one with experts. Layers of a kind have equal sizes, so sums
        over layers need not loop over them. `stop` None: to the last layer.
        """
        stop = self.layers if stop is None else stop
        whole("stop", stop, least=0, most=self.layers)
        whole("start", start, least=0, most=stop)
        split = min(max(self.dense_layers, start), stop)
        kinds = [(0, split - start), (self.layers - 1, stop - split)]
        return [(layer, count) for layer, count in kinds if count]

    def parameters(self) -> ParameterCount:
        """Exact parameter count of the whole model: embedding, layers and head."""
        layers = [self.layer_parameters(layer).times(n) for layer, n in self.layer_kinds()]
        return sum(layers, self.embedding_parameters() + self.head_parameters())


def _at_most(name: str, value: int, limit_name: str, limit: int) -> None:
    if value > limit:
        raise ValueError(f"{name} {value} is above {limit_name} = {limit}: take at most {limit}")


@lru_cache(maxsize=64)  # called repeatedly for the same model in one step
def _matrices(shape: TransformerShape, experts: bool) -> tuple[Matrix, ...]:
    """The weight matrices of a dense layer, or of one with experts."""
    h, mla, bias = shape.hidden, shape.mla, shape.biases
    queries, values = shape.heads * shape.head_width, shape.heads * shape.value_width
    if mla is None:  # queries, keys, values (as wide as keys), output
        qkv = shape.qkv_biases
        attention = [(h, queries, qkv), (h, shape.kv_width, qkv), (h, shape.kv_width, qkv)]
        attention.append((queries, h, shape.output_bias))
    else:
        keys_values = shape.heads * mla.nope_dim + values
        attention = [] if mla.q_rank is None else [(h, mla.q_rank, bias)]
        attention += [(mla.q_rank or h, queries, bias), (h, mla.kv_rank + mla.rope_dim, bias)]
        attention += [(mla.kv_rank, keys_values, bias), (values, h, bias)]
    matrices = [Matrix("attention", *sizes) for sizes in attention]

    def mlp(place: str, width: int, copies: int = 1, used: int = 1) -> list[Matrix]:
        into = Matrix(place, h, width, bias, copies, used)
        back = Matrix(place, width, h, bias, copies, used)
        return [into, back] if shape.mlp == "gelu" else [into, into, back]

    if not experts:
        return (*matrices, *mlp("mlp", shape.ffn))
    matrices.append(Matrix("router", h, shape.experts + shape.shared_gate, bias=False))
    matrices += mlp("experts", shape.expert_width, shape.experts, shape.top_k)
    if shape.shared_experts:
        matrices += mlp("shared_experts", shape.expert_width, *[shape.shared_experts] * 2)
    return tuple(matrices)


check_public(globals())
