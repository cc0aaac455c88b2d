"""Tensor parallelism: the time of one split layer on a link, and the heads on each rank."""

from dataclasses import dataclass

from course_lib.checked import Count, Positive, check_public
from course_lib.theory.inputs.hardware import Link, ridge
from course_lib.theory.network import collectives
from course_lib.validation import divisible, listed, whole


@dataclass(frozen=True)
class CutLayer:
    """One layer of 12h² weights, forward and backward, on one of `tp` GPUs.

    Everything is ideal: matrices at the dense peak, the link at its full rate, nothing overlapped,
    attention scores left out. `tokens` is b·s of one micro-batch. Source: Narayanan et al. 2021,
    arXiv:2104.04473, section 3.2.
    """

    hidden: Count
    tp: Count
    peak_flop_per_s: Positive
    link: Link
    tokens: Count = 4096
    element_bytes: Count = 2

    @property
    def flop(self) -> float:
        """FLOP of one GPU: 6 · 12h² · tokens / t."""
        return 72 * self.hidden**2 * self.tokens / self.tp

    @property
    def summed_bytes(self) -> int:
        """Bytes of the tensor in one all-reduce: b·s·h elements."""
        return collectives.activation_bytes(1, self.tokens, self.hidden, self.element_bytes)

    @property
    def sent_bytes(self) -> float:
        """Bytes that one GPU sends: 8 b·s·h (t-1)/t elements, four all-reduces."""
        return collectives.tensor_parallel_bytes(
            1, self.tokens, self.hidden, self.tp, element_bytes=self.element_bytes
        )

    @property
    def flop_per_byte(self) -> float:
        """FLOP for each byte sent: 9h / ((t-1) · element); infinite at t = 1."""
        return collectives.layer_intensity(self.hidden, self.tp, self.element_bytes)

    @property
    def ridge_flop_per_byte(self) -> float:
        """FLOP per byte at which communication takes as long as computation."""
        return ridge(self.peak_flop_per_s, self.link.bytes_per_s)

    @property
    def compute_s(self) -> float:
        """Seconds of computation: flop / peak."""
        return self.flop / self.peak_flop_per_s

    @property
    def communication_s(self) -> float:
        """Seconds of four successive ring all-reduces, latency included."""
        return 4 * collectives.seconds("all-reduce", self.summed_bytes, self.tp, self.link)

    @property
    def seconds(self) -> float:
        """Seconds of the layer: compute_s + communication_s, without overlap."""
        return self.compute_s + self.communication_s

    @property
    def matrix_reach(self) -> float:
        """Largest t by the study notes' estimate, see `collectives.matrix_tp_reach`."""
        return collectives.matrix_tp_reach(
            self.hidden, self.peak_flop_per_s, self.link.bytes_per_s, self.element_bytes
        )

    @property
    def layer_reach(self) -> int:
        """Largest t by the bytes of a whole layer, see `collectives.layer_tp_reach`."""
        rates = (self.peak_flop_per_s, self.link.bytes_per_s)
        return collectives.layer_tp_reach(self.hidden, *rates, element_bytes=self.element_bytes)


def qkv_rows(heads: Count, kv_heads: Count, width: Count, *, tp: Count, rank: int) -> list[int]:
    """Row indices of a fused (q, k, v) matrix that `rank` of `tp` needs: its heads of each part.

    The matrix has heads·width rows of q, then kv_heads·width of k, then as many of v. With tp above
    kv_heads, tp/kv_heads ranks hold a copy of the same key-value head.
    Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3. Raises ValueError if the heads cannot
    be divided.
    """
    whole("rank", rank, least=0, most=tp - 1)
    divisible("heads", heads, "kv_heads", kv_heads)
    divisible("heads", heads, "tp", tp)
    copies = kv_copies(kv_heads, tp)
    queries, pairs = heads // tp * width, max(1, kv_heads // tp) * width
    listed("rows", queries + 2 * pairs, "take fewer or narrower heads, or a larger tp")
    keys = heads * width + rank // copies * pairs
    starts = ((rank * queries, queries), (keys, pairs), (keys + kv_heads * width, pairs))
    return [row for start, rows in starts for row in range(start, start + rows)]


def kv_copies(kv_heads: Count, tp: Count) -> int:
    """Ranks that hold a copy of a key-value head: 1 for tp <= kv_heads, else tp / kv_heads.

    Raises ValueError unless one of the two divides the other.
    """
    if tp <= kv_heads:
        divisible("kv_heads", kv_heads, "tp", tp)
    else:
        divisible("tp", tp, "kv_heads", kv_heads)
    return max(1, tp // kv_heads)


check_public(globals())
