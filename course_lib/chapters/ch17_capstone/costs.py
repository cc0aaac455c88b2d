"""The speed and the cost of generating tokens on a group of GPUs, and FSDP's backward pass."""

from dataclasses import dataclass, replace
from typing import NamedTuple

from course_lib.chapters.ch17_capstone.streams import Task
from course_lib.checked import checked
from course_lib.theory.compute.budget import usd_per_million_tokens
from course_lib.theory.compute.flops import six_nd
from course_lib.theory.inputs.hardware import Accelerator
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.network import collectives
from course_lib.theory.network.tensor_parallel import kv_copies
from course_lib.validation import divisible, fraction, number, whole

_BYTES = 2  # per weight, cached value and value sent
_SUMS = 2  # all-reduces in the forward pass of a layer: after attention and after the MLP


@checked
@dataclass(frozen=True)
class Decoding:
    """A decoding step: one token for each of `batch` sequences, on `tp` tensor-parallel GPUs.

    Every weight is read once for all sequences, and each sequence's KV cache of `context` earlier
    tokens, all in 16 bits. The GPUs are connected by the chip's link inside a node. An ideal model:
    full bandwidth, ring all-reduces one after another, nothing overlapped, attention scores free.
    Source of the model: Pope et al. 2022, arXiv:2211.05102, section 2. Raises ValueError for sizes
    below 1, heads that tp does not divide, latent attention and mixtures of experts.
    """

    shape: TransformerShape
    accelerator: Accelerator
    tp: int = 1
    batch: int = 1
    context: int = 0

    def __post_init__(self) -> None:
        for name in ("tp", "batch"):
            whole(name, getattr(self, name), most=10**9)
        whole("context", self.context, least=0, most=10**9)
        if self.shape.experts or self.shape.mla:
            raise ValueError(
                "shape has experts or latent attention, which read other bytes: take a dense model"
            )
        divisible("heads", self.shape.heads, "tp", self.tp)
        kv_copies(self.shape.kv_heads, self.tp)

    @property
    def weight_bytes(self) -> float:
        """Bytes of weights that one GPU reads per step: all but the embedding, a row lookup.

        A tied embedding is also the head, and is read.
        """
        shape = self.shape
        count = shape.parameters().total - shape.embedding_parameters().total
        tied = shape.vocab * shape.hidden if shape.tied_embeddings else 0
        return (count + tied) * _BYTES / self.tp

    @property
    def cache_bytes(self) -> float:
        """Bytes of the KV cache on one GPU: 2 · layers · kv width · context · batch values over tp.

        With tp above kv_heads, several GPUs store the same heads.
        """
        shape = self.shape
        numbers = 2 * shape.layers * shape.kv_width * self.context * self.batch
        return numbers * _BYTES * kv_copies(shape.kv_heads, self.tp) / self.tp

    @property
    def flop(self) -> float:
        """FLOP of one GPU: 2 per matrix weight and sequence, without attention scores."""
        shape = self.shape
        layer = sum(matrix.forward_flop for matrix in shape.layer_matrices(0))
        one = shape.layers * layer + 2 * shape.hidden * shape.vocab
        return self.batch * one / self.tp

    @property
    def sent_bytes(self) -> float:
        """Bytes that one GPU sends: two all-reduces of batch · hidden values per layer."""
        return self._sums * collectives.sent_bytes("all-reduce", self._summed_bytes, self.tp)

    @property
    def read_s(self) -> float:
        """Seconds to read weights and KV cache at the memory bandwidth."""
        return (self.weight_bytes + self.cache_bytes) / self.accelerator.memory_bytes_per_s

    @property
    def compute_s(self) -> float:
        """Seconds of computing at the dense peak."""
        return self.flop / self.accelerator.peak_flop_per_s

    @property
    def latency_s(self) -> float:
        """Seconds of latency in the all-reduces: layers · 2 · 2(tp-1) latencies."""
        return self._sums * collectives.seconds("all-reduce", 0, self.tp, self.accelerator.inside)

    @property
    def transfer_s(self) -> float:
        """Seconds to transfer the bytes of the all-reduces."""
        return self.sent_bytes / self.accelerator.inside.bytes_per_s

    @property
    def token_s(self) -> float:
        """Seconds of a step: max(reading, computing) + latency and transfer of the all-reduces."""
        return max(self.read_s, self.compute_s) + self.latency_s + self.transfer_s

    def waits(self) -> dict[str, float]:
        """`token_s` split into seconds by cause; the shorter of reading and computing is hidden."""
        speed = self.accelerator.memory_bytes_per_s
        bound = {"computing": self.compute_s}
        if self.read_s >= self.compute_s:
            bound = {
                "weights": self.weight_bytes / speed,
                "keys and values": self.cache_bytes / speed,
            }
        return {**bound, "messages": self.transfer_s, "latency": self.latency_s}

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of all sequences, from all GPUs together."""
        return self.batch / self.token_s

    @property
    def _sums(self) -> int:
        return _SUMS * self.shape.layers

    @property
    def _summed_bytes(self) -> int:
        return collectives.activation_bytes(self.batch, 1, self.shape.hidden, _BYTES)


@checked
def most_sequences(decoding: Decoding, reserve_bytes: float = 0.0) -> int:
    """The most sequences that fit: (memory - weights - reserve) / KV cache of one sequence.

    The weights include the embedding, though only rows of it are read. 0 if not even the weights
    fit. Raises ValueError for a context of 0, for which any number would fit.
    """
    number("reserve_bytes", reserve_bytes, least=0)
    whole("context", decoding.context)
    one = decoding.cache_bytes / decoding.batch
    weight_bytes = decoding.shape.parameters().total * _BYTES / decoding.tp
    return max(0, int((decoding.accelerator.memory_bytes - weight_bytes - reserve_bytes) / one))


@checked
@dataclass(frozen=True)
class TokenCost:
    """The cost of tokens on `decoding.tp` GPUs that either generate, or train at `mfu`.

    `mfu`: fraction of the dense peak in training, from a run of yours or from `step_time`; 0.4 is
    what Llama 3 405B reached (arXiv:2407.21783, table 4: 38 to 43 %). Whether training fits into
    the memory of the group is not checked. Raises ValueError for a price below 0.
    """

    decoding: Decoding
    gpu_hour_usd: float
    mfu: float = 0.4

    def __post_init__(self) -> None:
        number("gpu_hour_usd", self.gpu_hour_usd, least=0)
        fraction("mfu", self.mfu)

    @property
    def trained_per_s(self) -> float:
        """Tokens per second in training, on all GPUs: GPUs · peak · MFU / 6N."""
        peak = self.decoding.tp * self.decoding.accelerator.peak_flop_per_s
        return peak * self.mfu / six_nd(self.decoding.shape.parameters().total, 1)

    @property
    def training_usd(self) -> float:
        """USD for 10^6 tokens of training."""
        return usd_per_million_tokens(self.trained_per_s, self.decoding.tp, self.gpu_hour_usd)

    @property
    def generating_usd(self) -> float:
        """USD for 10^6 generated tokens, without prefill."""
        rate = self.decoding.tokens_per_s
        return usd_per_million_tokens(rate, self.decoding.tp, self.gpu_hour_usd)


class HourPrice(NamedTuple):
    """USD per GPU-hour, according to `source` on `date`."""

    usd: float
    date: str
    source: str

    def explain(self) -> str:
        """The price, its date and its source in one line."""
        return f"{self.usd:.2f} USD an hour ({self.date}, {self.source})"


_SURVEY = "mercatus-ai.com/blog/cloud-gpu-pricing, the lowest it found on demand"
# Examples to compute with, not offers: in that survey the same H100 costs 1.99 to 5.00 USD.
PRICES = {
    "H800-SXM": HourPrice(
        2.00, "December 2024", "assumed by DeepSeek-V3, arXiv:2412.19437, table 1"
    ),
    "H100-SXM": HourPrice(1.99, "May 2026", _SURVEY),
    "H200-SXM": HourPrice(2.50, "May 2026", _SURVEY),
    "RTX4090": HourPrice(0.34, "July 2025", "deploybase.ai/articles/rtx-4090-vs-h100"),
}
_MOST_LAYERS = 100


@checked
def sharded_backward(
    layers: int, backward: Task, gather: Task, scatter: Task, *, prepare: Task | None = None
) -> list[Task]:
    """The tasks of a backward pass under FSDP, one of each kind for each layer, last layer first.

    The four tasks are templates; names, order and `after` are filled in. A layer is computed once
    it is gathered. Two gathers run ahead; then, for each layer, gradients are prepared (copied into
    one buffer and divided; None: written there directly, as in YaFSDP) and scattered, and the layer
    after the next is gathered, since only two may be unsharded. Gathers and scatters share a
    stream: collectives of one group run one after another.
    Source: Khrushchev 2024, "YaFSDP", Medium; Zhao et al. 2023, arXiv:2304.11277, section 3.3.
    Raises ValueError for no layers.
    """
    whole("layers", layers, most=_MOST_LAYERS)
    order = list(range(layers, 0, -1))
    tasks = [replace(gather, name=f"gather {layer}") for layer in order[:2]]
    for index, layer in enumerate(order):
        after = (f"gather {layer}",)
        tasks.append(replace(backward, name=f"backward {layer}", after=after))
        after = (f"backward {layer}",)
        if prepare is not None:
            tasks.append(replace(prepare, name=f"prepare {layer}", after=after))
        tasks.append(replace(scatter, name=f"scatter {layer}", after=after))
        if index + 2 < layers:
            tasks.append(replace(gather, name=f"gather {order[index + 2]}"))
    return tasks
