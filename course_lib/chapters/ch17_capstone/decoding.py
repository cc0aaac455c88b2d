"""Generating text, token by token: what is read, what is sent, and how long that takes."""

from dataclasses import dataclass

from course_lib.checked import checked
from course_lib.theory.inputs.hardware import Accelerator, Link
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.inputs.units import format_bytes, format_number, format_seconds
from course_lib.theory.network import collectives
from course_lib.theory.network.tensor_parallel import kv_copies
from course_lib.validation import DERIVED, derive, divisible, number, whole

_SUMS = 2  # all-reduces in the forward pass of a layer: behind attention and behind the MLP


@checked
@dataclass(frozen=True)
class Decoding:
    """One more token for each of `batch` sequences, on `tp` GPUs that share every layer.

    Every weight is read once for all sequences, and each sequence's keys and values of `context`
    earlier tokens. `link`: between the GPUs, by default the chip's own inside a node. Everything is
    ideal: full bandwidth, sums one after another by rings, nothing overlapped; no scores.
    Source of the model: Pope et al. 2022, arXiv:2211.05102, section 2. Raises ValueError for sizes
    below 1, heads that tp does not divide, latent attention and mixtures of experts.
    """

    shape: TransformerShape
    accelerator: Accelerator
    tp: int = 1
    batch: int = 1
    context: int = 0
    element_bytes: int = 2
    link: Link = DERIVED

    def __post_init__(self) -> None:
        for name in ("tp", "batch", "element_bytes"):
            whole(name, getattr(self, name), most=10**9)
        whole("context", self.context, least=0, most=10**9)
        if self.shape.experts or self.shape.mla:
            raise ValueError(
                "shape has experts or latent attention, which read other bytes: take a dense model"
            )
        divisible("heads", self.shape.heads, "tp", self.tp)
        kv_copies(self.shape.kv_heads, self.tp)
        derive(self, link=self.accelerator.inside)

    @property
    def weight_bytes(self) -> float:
        """Weights that one GPU reads for a token: all but the embedding, of which it reads rows.

        A tied embedding is the head as well, and is read.
        """
        shape = self.shape
        count = shape.parameters().total - shape.embedding_parameters().total
        tied = shape.vocab * shape.hidden if shape.tied_embeddings else 0
        return (count + tied) * self.element_bytes / self.tp

    @property
    def cache_bytes(self) -> float:
        """Keys and values of all sequences on one GPU: 2 · layers · kv width · context · batch.

        With tp above kv_heads, several GPUs hold the same heads.
        """
        shape = self.shape
        numbers = 2 * shape.layers * shape.kv_width * self.context * self.batch
        return numbers * self.element_bytes * kv_copies(shape.kv_heads, self.tp) / self.tp

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
        return self._sums * collectives.seconds("all-reduce", 0, self.tp, self.link)

    @property
    def transfer_s(self) -> float:
        """Seconds of the sums' bytes."""
        return self.sent_bytes / self.link.bytes_per_s

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
    def flop_per_byte(self) -> float:
        """FLOP for each byte that is read: about `batch` in 16 bits with a short context."""
        return self.flop / (self.weight_bytes + self.cache_bytes)

    def explain(self) -> str:
        """Bytes and seconds, one line each."""
        read = format_bytes(self.weight_bytes + self.cache_bytes)
        return "\n".join(
            [
                f"reading   {read} at {self.accelerator.memory_bytes_per_s / 1e9:,.0f} GB/s = "
                f"{format_seconds(self.read_s)}",
                f"computing {self.flop / 1e9:,.1f} GFLOP = {format_seconds(self.compute_s)} "
                f"({format_number(self.flop_per_byte)} FLOP/byte, ridge "
                f"{self.accelerator.ridge_flop_per_byte:.0f})",
                f"sending   {self.sent_bytes / 1e6:,.2f} MB in {self._sums} sums on "
                f"{self.link.name} = {format_seconds(self.transfer_s)} and "
                f"{format_seconds(self.latency_s)} of latency",
                f"a token   {format_seconds(self.token_s)}; {self.tokens_per_s:,.1f} tokens/s",
            ]
        )

    @property
    def _sums(self) -> int:
        return _SUMS * self.shape.layers

    @property
    def _summed_bytes(self) -> int:
        return collectives.activation_bytes(self.batch, 1, self.shape.hidden, self.element_bytes)


@checked
def most_sequences(decoding: Decoding, reserve_bytes: float = 0.0) -> int:
    """Sequences whose keys and values fit beside the weights: (memory - weights - reserve) / one.

    The embedding lies in memory too, though only rows of it are read. 0 where nothing fits. Raises
    ValueError for a context of 0, of which any number would fit.
    """
    number("reserve_bytes", reserve_bytes, least=0)
    whole("context", decoding.context)
    one = decoding.cache_bytes / decoding.batch
    held = decoding.shape.parameters().total * decoding.element_bytes / decoding.tp
    return max(0, int((decoding.accelerator.memory_bytes - held - reserve_bytes) / one))
