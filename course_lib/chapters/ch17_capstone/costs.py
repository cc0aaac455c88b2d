"""Tokens on a group of cards: how fast they are generated, what they cost, and who gives way."""

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

_BYTES = 2  # of a weight, of a number that is kept or sent
_SUMS = 2  # all-reduces in the forward pass of a layer: behind attention and behind the MLP


@checked
@dataclass(frozen=True)
class Decoding:
    """One more token for each of `batch` sequences, on `tp` GPUs that share every layer.

    Every weight is read once for all sequences, and each sequence's keys and values of `context`
    earlier tokens, all in 16 bits. The GPUs are joined by the chip's own link inside a node.
    Everything is ideal: full bandwidth, sums one after another by rings, nothing overlapped; no
    scores.
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
        """Weights that one GPU reads for a token: all but the embedding, of which it reads rows.

        A tied embedding is the head as well, and is read.
        """
        shape = self.shape
        count = shape.parameters().total - shape.embedding_parameters().total
        tied = shape.vocab * shape.hidden if shape.tied_embeddings else 0
        return (count + tied) * _BYTES / self.tp

    @property
    def cache_bytes(self) -> float:
        """Keys and values of all sequences on one GPU: 2 · layers · kv width · context · batch.

        With tp above kv_heads, several GPUs hold the same heads.
        """
        shape = self.shape
        numbers = 2 * shape.layers * shape.kv_width * self.context * self.batch
        return numbers * _BYTES * kv_copies(shape.kv_heads, self.tp) / self.tp

    @property
    def flop(self) -> float:
        """FLOP of one GPU: 2 for each weight of a matrix and each sequence; scores left out."""
        shape = self.shape
        layer = sum(matrix.forward_flop for matrix in shape.layer_matrices(0))
        one = shape.layers * layer + 2 * shape.hidden * shape.vocab
        return self.batch * one / self.tp

    @property
    def sent_bytes(self) -> float:
        """Bytes that one GPU sends: two all-reduces of batch · hidden in each layer."""
        return self._sums * collectives.sent_bytes("all-reduce", self._summed_bytes, self.tp)

    @property
    def read_s(self) -> float:
        """Seconds of reading weights and cache at the memory's bandwidth."""
        return (self.weight_bytes + self.cache_bytes) / self.accelerator.memory_bytes_per_s

    @property
    def compute_s(self) -> float:
        """Seconds of arithmetic at the dense peak."""
        return self.flop / self.accelerator.peak_flop_per_s

    @property
    def latency_s(self) -> float:
        """Seconds of the sums' steps if they carried nothing: layers · 2 · 2(tp-1) latencies."""
        return self._sums * collectives.seconds("all-reduce", 0, self.tp, self.accelerator.inside)

    @property
    def transfer_s(self) -> float:
        """Seconds of the sums' bytes."""
        return self.sent_bytes / self.accelerator.inside.bytes_per_s

    @property
    def token_s(self) -> float:
        """Seconds until each sequence has its token: the longer of reading and computing; sums."""
        return max(self.read_s, self.compute_s) + self.latency_s + self.transfer_s

    def waits(self) -> dict[str, float]:
        """Seconds by what a token waits for, without what hides; their sum is `token_s`."""
        speed = self.accelerator.memory_bytes_per_s
        longer = {"computing": self.compute_s}
        if self.read_s >= self.compute_s:
            longer = {
                "weights": self.weight_bytes / speed,
                "keys and values": self.cache_bytes / speed,
            }
        return {**longer, "messages": self.transfer_s, "latency": self.latency_s}

    @property
    def tokens_per_s(self) -> float:
        """Tokens of all sequences in a second, from all GPUs together."""
        return self.batch / self.token_s

    @property
    def _sums(self) -> int:
        return _SUMS * self.shape.layers

    @property
    def _summed_bytes(self) -> int:
        return collectives.activation_bytes(self.batch, 1, self.shape.hidden, _BYTES)


@checked
def most_sequences(decoding: Decoding, reserve_bytes: float = 0.0) -> int:
    """Sequences whose keys and values fit beside the weights: (memory - weights - reserve) / one.

    The embedding lies in memory too, though only rows of it are read. 0 where nothing fits. Raises
    ValueError for a context of 0, of which any number would fit.
    """
    number("reserve_bytes", reserve_bytes, least=0)
    whole("context", decoding.context)
    one = decoding.cache_bytes / decoding.batch
    held = decoding.shape.parameters().total * _BYTES / decoding.tp
    return max(0, int((decoding.accelerator.memory_bytes - held - reserve_bytes) / one))


@checked
@dataclass(frozen=True)
class TokenCost:
    """A group of `decoding.tp` cards that generates as `decoding` says, or trains at `mfu`.

    `mfu`: what training reaches of the dense peak, by a run of yours or by `step_time`; 0.4 is what
    Llama 3 405B reached (arXiv:2407.21783, table 4: 38 to 43 %). Whether training fits into the
    memory of the group isn't asked. Raises ValueError for a price below 0.
    """

    decoding: Decoding
    gpu_hour_usd: float
    mfu: float = 0.4

    def __post_init__(self) -> None:
        number("gpu_hour_usd", self.gpu_hour_usd, least=0)
        fraction("mfu", self.mfu)

    @property
    def trained_per_s(self) -> float:
        """Tokens in a second of training, all cards: cards · peak · MFU / 6N."""
        peak = self.decoding.tp * self.decoding.accelerator.peak_flop_per_s
        return peak * self.mfu / six_nd(self.decoding.shape.parameters().total, 1)

    @property
    def training_usd(self) -> float:
        """Money for 10^6 tokens of training."""
        return usd_per_million_tokens(self.trained_per_s, self.decoding.tp, self.gpu_hour_usd)

    @property
    def generating_usd(self) -> float:
        """Money for 10^6 generated tokens, reading the prompt not counted."""
        rate = self.decoding.tokens_per_s
        return usd_per_million_tokens(rate, self.decoding.tp, self.gpu_hour_usd)


class HourPrice(NamedTuple):
    """USD for one GPU for an hour, as `source` gave it on `date`."""

    usd: float
    date: str
    source: str

    def explain(self) -> str:
        """One line."""
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

    The four tasks are patterns; name, order and `after` are filled in. A layer is computed when it
    has been gathered. Two gathers run ahead; then, for each layer, gradients are prepared (copied
    into one buffer and divided; None: written there in the first place, as in YaFSDP), scattered,
    and the next layer but one is gathered, since only two may be whole. Gathers and scatters share
    a stream: collectives of one group run one after another.
    Source: Khrushchev 2024, "YaFSDP", Medium; Zhao et al. 2023, arXiv:2304.11277, section 3.3.
    Raises ValueError for no layers.
    """
    whole("layers", layers, most=_MOST_LAYERS)
    order = list(range(layers, 0, -1))
    tasks = [replace(gather, name=f"gather {layer}") for layer in order[:2]]
    for place, layer in enumerate(order):
        after = (f"gather {layer}",)
        tasks.append(replace(backward, name=f"backward {layer}", after=after))
        after = (f"backward {layer}",)
        if prepare is not None:
            tasks.append(replace(prepare, name=f"prepare {layer}", after=after))
        tasks.append(replace(scatter, name=f"scatter {layer}", after=after))
        if place + 2 < layers:
            tasks.append(replace(gather, name=f"gather {order[place + 2]}"))
    return tasks
