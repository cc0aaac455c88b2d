"""DDP's buckets: how often gradients are sent, and in how many all-reduces."""

from collections.abc import Sequence

from course_lib.checked import checked
from course_lib.theory.inputs.units import MIB
from course_lib.validation import flag, whole

# torch's DistributedDataParallel: the first bucket is small so that sending starts early
# (torch.distributed._DEFAULT_FIRST_BUCKET_BYTES), the others have bucket_cap_mb = 25.
FIRST_BUCKET_BYTES = 1 * MIB
BUCKET_CAP_BYTES = 25 * MIB


def gradient_syncs(micro_steps: int, accumulation: int, no_sync: bool) -> int:
    """Backward passes that all-reduce the gradients.

    Every one without no_sync; with it only the last of each accumulation window:
    ceil(micro_steps / accumulation).
    """
    whole("micro_steps", micro_steps)
    whole("accumulation", accumulation)
    flag("no_sync", no_sync)
    return -(-micro_steps // accumulation) if no_sync else micro_steps


@checked
def ddp_buckets(
    gradient_bytes: Sequence[int],
    cap_bytes: int = BUCKET_CAP_BYTES,
    first_bytes: int = FIRST_BUCKET_BYTES,
) -> list[int]:
    """Bytes in each bucket, for gradients in the order in which backward makes them.

    A bucket is closed as soon as it holds at least its limit: `first_bytes` for the first,
    `cap_bytes` for the others. One bucket is one all-reduce. Where a program names a
    `bucket_cap_mb`, torch takes it for the first bucket too: pass it as both.
    Source: Li et al. 2020, arXiv:2006.15704, section 3.2; torch's reducer.cpp.
    """
    whole("cap_bytes", cap_bytes)
    whole("first_bytes", first_bytes)
    buckets: list[int] = []
    size = 0
    for count, piece in enumerate(gradient_bytes):
        whole(f"gradient_bytes[{count}]", piece)
        size += piece
        if size >= (cap_bytes if buckets else min(first_bytes, cap_bytes)):
            buckets.append(size)
            size = 0
    return [*buckets, size] if size else buckets


def ddp_all_reduces(syncs: int, buckets: int) -> int:
    """All-reduces of a whole DDP run: one in the first synchronised backward, then one a bucket.

    DDP starts with a single bucket, learns in that pass in which order the gradients arrive, and
    then forms its buckets (torch 2.13, `static_graph` or `find_unused_parameters=False`).
    """
    whole("syncs", syncs)
    whole("buckets", buckets)
    return 1 + (syncs - 1) * buckets
