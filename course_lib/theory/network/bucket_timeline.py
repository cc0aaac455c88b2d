"""DDP's buckets: how often gradients are sent, and in how many all-reduces."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from course_lib.checked import Count, CountOrZero, NotNegative, Positive, Text, check_public
from course_lib.theory.inputs import Accelerator, Link, TransformerShape
from course_lib.theory.inputs.units import MIB
from course_lib.theory.network.collectives import bus_factor, seconds

# torch's DistributedDataParallel: the first bucket is small so that sending starts early
# (torch.distributed._DEFAULT_FIRST_BUCKET_BYTES), the others have bucket_cap_mb = 25.
FIRST_BUCKET_BYTES = 1 * MIB
BUCKET_CAP_BYTES = 25 * MIB


def gradient_syncs(micro_steps: Count, accumulation: Count, no_sync: bool) -> int:
    """Backward passes that all-reduce the gradients.

    Every one without no_sync; with it only the last of each accumulation window:
    ceil(micro_steps / accumulation).
    """
    return -(-micro_steps // accumulation) if no_sync else micro_steps


def ddp_buckets(
    gradient_bytes: Sequence[Count],
    cap_bytes: Count = BUCKET_CAP_BYTES,
    first_bytes: Count = FIRST_BUCKET_BYTES,
) -> list[int]:
    """Bytes in each bucket, for gradients in the order in which backward makes them.

    A bucket is closed as soon as it holds at least its limit: `first_bytes` for the first,
    `cap_bytes` for the others. One bucket is one all-reduce. Where a program names a
    `bucket_cap_mb`, torch takes it for the first bucket too: pass it as both.
    Source: Li et al. 2020, arXiv:2006.15704, section 3.2; torch's reducer.cpp.
    """
    buckets: list[int] = []
    size = 0
    for piece in gradient_bytes:
        size += piece
        if size >= (cap_bytes if buckets else min(first_bytes, cap_bytes)):
            buckets.append(size)
            size = 0
    return [*buckets, size] if size else buckets


def ddp_all_reduces(syncs: Count, buckets: Count) -> int:
    """All-reduces of a whole DDP run: one in the first synchronised backward, then one a bucket.

    DDP starts with a single bucket, learns in that pass in which order the gradients arrive, and
    then forms its buckets (torch 2.13, `static_graph` or `find_unused_parameters=False`).
    """
    return 1 + (syncs - 1) * buckets


# --- DDP's backward pass: gradients fill buckets, buckets travel while backward goes on ---

# The model: backward makes one gradient after the other; a bucket begins its ring all-reduce when
# its last gradient is there and the bucket before it has arrived; one link, one all-reduce at a
# time.
# Source: Li et al. 2020, PyTorch Distributed, arXiv:2006.15704, section 3.2.


@dataclass(frozen=True)
class Gradient:
    """One step of backward: `backward_s` of computing, then `size_bytes` of gradient are there.

    0 bytes: a step that only passes its gradient on.
    """

    name: Text
    size_bytes: CountOrZero
    backward_s: NotNegative


@dataclass(frozen=True)
class Exchange:
    """The all-reduce of one bucket: full at `ready_s`, on the link from `start_s` to `end_s`."""

    size_bytes: int
    ready_s: float
    start_s: float
    end_s: float


@dataclass(frozen=True)
class BucketTimeline:
    """One backward pass of one rank, in seconds from its start."""

    gradients: tuple[Gradient, ...]
    exchanges: tuple[Exchange, ...]

    @property
    def backward_s(self) -> float:
        """Computing: the sum over the gradients."""
        return sum(gradient.backward_s for gradient in self.gradients)

    @property
    def communication_s(self) -> float:
        """Time in which the link is busy."""
        return sum(exchange.end_s - exchange.start_s for exchange in self.exchanges)

    @property
    def size_bytes(self) -> int:
        """Bytes handed to all-reduce: those of all gradients."""
        return sum(exchange.size_bytes for exchange in self.exchanges)

    @property
    def end_s(self) -> float:
        """When the last gradient has arrived."""
        return max(self.backward_s, self.exchanges[-1].end_s)

    @property
    def exposed_s(self) -> float:
        """Communication that backward does not hide: end - backward."""
        return self.end_s - self.backward_s

    @property
    def hidden_s(self) -> float:
        """Communication behind computing: all of it but what is exposed."""
        return max(0.0, self.communication_s - self.exposed_s)

    @property
    def efficiency(self) -> float:
        """Weak scaling, against one GPU: computing / (computing + exposed).

        Computing is 1.5 times backward: forward has half of its matrix products.
        """
        computing = 1.5 * self.backward_s
        return computing / (computing + self.exposed_s) if computing else 0.0


def ddp_timeline(
    gradients: Sequence[Gradient],
    ranks: int,
    link: Link,
    *,
    cap_bytes: int = BUCKET_CAP_BYTES,
    first_bytes: int = FIRST_BUCKET_BYTES,
    overlap: bool = True,
) -> BucketTimeline:
    """When each bucket is full and when it travels, for gradients in backward's order.

    start = max(full, end of the bucket before); end = start + 2(n-1)·α + 2(n-1)/n · bytes / β.
    Without `overlap` no bucket starts before backward has ended. Buckets are those of
    `ddp_buckets`. Raises ValueError without any gradient of more than 0 bytes.
    """
    sizes = [gradient.size_bytes for gradient in gradients]
    if not any(sizes):
        raise ValueError("gradients have 0 bytes: give at least one gradient to send")
    buckets = ddp_buckets([size for size in sizes if size], cap_bytes, first_bytes)
    there = list(accumulate(sizes))  # bytes of gradients after each step
    times = list(accumulate(gradient.backward_s for gradient in gradients))
    exchanges: list[Exchange] = []
    free_s, step = (0.0 if overlap else times[-1]), 0
    for size, full in zip(buckets, accumulate(buckets), strict=True):
        while there[step] < full:
            step += 1
        start = max(times[step], free_s)
        free_s = start + seconds("all-reduce", size, ranks, link)
        exchanges.append(Exchange(size, times[step], start, free_s))
    return BucketTimeline(tuple(gradients), tuple(exchanges))


def model_gradients(
    shape: TransformerShape, accelerator: Accelerator, tokens: Count, element_bytes: Count = 4
) -> tuple[Gradient, ...]:
    """The gradients of a dense model in backward's order: head, last layer … first, embedding.

    A matrix takes 4 FLOP per weight and token, at the chip's best matmul rate; attention's scores,
    norms and activations are left out, so a real backward takes longer. A tied head sends nothing
    of its own: its gradient is the embedding's, which is complete at the very end. Norms travel
    with their layer's first matrix. `element_bytes` 4: fp32 gradients, as DDP has them under
    autocast. Raises ValueError for tokens below 1 and for a mixture of experts.
    """
    if shape.experts:
        raise ValueError(
            f"experts {shape.experts}: the tokens of a matrix depend on the router: "
            "take a dense model"
        )
    rate = accelerator.peak_flop_per_s * accelerator.matmul_efficiency
    logits_s = 4 * tokens * shape.hidden * shape.vocab / rate
    head = shape.head_parameters()
    found = [Gradient("head", element_bytes * head.total, logits_s)]
    for layer in reversed(range(shape.layers)):
        count = shape.layer_parameters(layer)
        matrices = shape.layer_matrices(layer)
        rest = count.total - sum(matrix.parameters for matrix in matrices)
        for place, matrix in reversed(list(enumerate(matrices))):
            parameters = matrix.parameters + (0 if place else rest)
            work = 2 * tokens * matrix.forward_flop / rate
            found.append(Gradient(f"layer {layer}", element_bytes * parameters, work))
    ends = shape.parameters().total - sum(g.size_bytes for g in found) // element_bytes
    return (*found, Gradient("embedding", element_bytes * ends, 0.0))


def hiding_tokens(
    flop_per_s: Positive, bytes_per_s: Positive, ranks: int, element_bytes: Count = 4
) -> float:
    """Tokens per GPU from which backward is as long as the all-reduce of its gradients.

    4·N·T / F = 2(n-1)/n · e·N / β, solved for T: e·(n-1)/(2n) · F / β. The model's size N cancels.
    F is what a GPU really computes per second, β one way, e bytes of a gradient. Not FSDP's:
    `hiding.fsdp_hiding_tokens` has its gathers as well. Compare How to Scale Your Model,
    jax-ml.github.io/scaling-book/training, for e = 2.
    """
    return bus_factor("all-reduce", ranks) * element_bytes * flop_per_s / (4 * bytes_per_s)


check_public(globals())
