"""DDP's buckets: number of all-reduces, and their overlap with the backward pass."""

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
    """Number of backward passes that all-reduce the gradients.

    Without no_sync every pass does; with it only the last pass of each accumulation window:
    ceil(micro_steps / accumulation).
    """
    return -(-micro_steps // accumulation) if no_sync else micro_steps


def ddp_buckets(
    gradient_bytes: Sequence[Count],
    cap_bytes: Count = BUCKET_CAP_BYTES,
    first_bytes: Count = FIRST_BUCKET_BYTES,
) -> list[int]:
    """Bytes in each bucket, for gradients in the order in which backward produces them.

    A bucket is closed as soon as it reaches its limit: `first_bytes` for the first, `cap_bytes` for
    the others. One bucket is one all-reduce. If a program sets `bucket_cap_mb`, torch uses it for
    the first bucket too: pass it as both.
    Source: Li et al. 2020, arXiv:2006.15704, section 3.2; torch's reducer.cpp.
    """
    buckets: list[int] = []
    size = 0
    for each in gradient_bytes:
        size += each
        if size >= (cap_bytes if buckets else min(first_bytes, cap_bytes)):
            buckets.append(size)
            size = 0
    return [*buckets, size] if size else buckets


def ddp_all_reduces(syncs: Count, buckets: Count) -> int:
    """All-reduces in a DDP run: one in the first synchronised backward, then one per bucket.

    DDP starts with a single bucket, records in that pass the order in which gradients become ready,
    and then builds its buckets (torch 2.13, `static_graph` or `find_unused_parameters=False`).
    """
    return 1 + (syncs - 1) * buckets


# --- DDP's backward pass: gradients fill buckets, whose all-reduces overlap with backward ---

# The model: backward produces one gradient after another; a bucket's ring all-reduce starts when
# its last gradient is ready and the previous bucket is done, since there is a single link.
# Source: Li et al. 2020, PyTorch Distributed, arXiv:2006.15704, section 3.2.


@dataclass(frozen=True)
class Gradient:
    """One step of backward: after `backward_s` of computing, `size_bytes` of gradient are ready.

    0 bytes: a step without parameters.
    """

    name: Text
    size_bytes: CountOrZero
    backward_s: NotNegative


@dataclass(frozen=True)
class Exchange:
    """The all-reduce of one bucket: ready at `ready_s`, on the link from `start_s` to `end_s`."""

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
        """Seconds of computation: the sum over the gradients."""
        return sum(gradient.backward_s for gradient in self.gradients)

    @property
    def communication_s(self) -> float:
        """Seconds in which the link is busy."""
        return sum(exchange.end_s - exchange.start_s for exchange in self.exchanges)

    @property
    def size_bytes(self) -> int:
        """Bytes of all gradients, which are all-reduced once."""
        return sum(exchange.size_bytes for exchange in self.exchanges)

    @property
    def end_s(self) -> float:
        """Seconds until backward and the last all-reduce have ended."""
        return max(self.backward_s, self.exchanges[-1].end_s)

    @property
    def exposed_s(self) -> float:
        """Seconds of communication not hidden behind backward: end - backward."""
        return self.end_s - self.backward_s

    @property
    def hidden_s(self) -> float:
        """Seconds of communication hidden behind computation: communication - exposed."""
        return max(0.0, self.communication_s - self.exposed_s)

    @property
    def efficiency(self) -> float:
        """Weak-scaling efficiency relative to one GPU: computing / (computing + exposed).

        Computing is 1.5 times backward, since forward has half as many matrix products.
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
    """When each bucket is ready and all-reduced, for gradients in backward's order.

    start = max(ready, end of previous bucket); end = start + 2(n-1)·α + 2(n-1)/n · bytes / β.
    Without `overlap` no all-reduce starts before backward has ended. Buckets are those of
    `ddp_buckets`. Raises ValueError if no gradient has more than 0 bytes.
    """
    sizes = [gradient.size_bytes for gradient in gradients]
    if not any(sizes):
        raise ValueError("gradients have 0 bytes: give at least one gradient to send")
    buckets = ddp_buckets([size for size in sizes if size], cap_bytes, first_bytes)
    produced = list(accumulate(sizes))  # bytes of gradients after each step
    times = list(accumulate(gradient.backward_s for gradient in gradients))
    exchanges: list[Exchange] = []
    free_s, step = (0.0 if overlap else times[-1]), 0
    for size, full in zip(buckets, accumulate(buckets), strict=True):
        while produced[step] < full:
            step += 1
        start = max(times[step], free_s)
        free_s = start + seconds("all-reduce", size, ranks, link)
        exchanges.append(Exchange(size, times[step], start, free_s))
    return BucketTimeline(tuple(gradients), tuple(exchanges))


def model_gradients(
    shape: TransformerShape, accelerator: Accelerator, tokens: Count, element_bytes: Count = 4
) -> tuple[Gradient, ...]:
    """The gradients of a dense model in backward's order: head, last layer … first, embedding.

    A matrix takes 4 FLOP per weight and token, at the chip's best matmul rate; attention scores,
    norms and activations are left out, so a real backward takes longer. A tied head has 0 bytes:
    its gradient is part of the embedding's, which is complete last. The gradients of norms are sent
    with their layer's first matrix. `element_bytes` 4: fp32 gradients, as in DDP under autocast.
    Raises ValueError for tokens below 1 and for a mixture of experts.
    """
    if shape.experts:
        raise ValueError(
            f"experts {shape.experts}: the tokens of a matrix depend on the router: "
            "take a dense model"
        )
    rate = accelerator.peak_flop_per_s * accelerator.matmul_efficiency
    logits_s = 4 * tokens * shape.hidden * shape.vocab / rate
    head = shape.head_parameters()
    gradients = [Gradient("head", element_bytes * head.total, logits_s)]
    for layer in reversed(range(shape.layers)):
        count = shape.layer_parameters(layer)
        matrices = shape.layer_matrices(layer)
        rest = count.total - sum(matrix.parameters for matrix in matrices)
        for index, matrix in reversed(list(enumerate(matrices))):
            parameters = matrix.parameters + (0 if index else rest)
            work = 2 * tokens * matrix.forward_flop / rate
            gradients.append(Gradient(f"layer {layer}", element_bytes * parameters, work))
    left = shape.parameters().total - sum(g.size_bytes for g in gradients) // element_bytes
    return (*gradients, Gradient("embedding", element_bytes * left, 0.0))


def hiding_tokens(
    flop_per_s: Positive, bytes_per_s: Positive, ranks: int, element_bytes: Count = 4
) -> float:
    """Tokens per GPU at which backward takes as long as the all-reduce of its gradients.

    4·N·T / F = 2(n-1)/n · e·N / β, solved for T: e·(n-1)/(2n) · F / β. The model's size N cancels.
    F is the achieved FLOP/s of a GPU, β its bandwidth one way, e the bytes per gradient element.
    For FSDP see `hiding.fsdp_hiding_tokens`, with its gathers. Compare How to Scale Your Model,
    jax-ml.github.io/scaling-book/training, for e = 2.
    """
    return bus_factor("all-reduce", ranks) * element_bytes * flop_per_s / (4 * bytes_per_s)


check_public(globals())
