"""The same memory read off different meters: what tensors need is not what a GPU shows."""

from course_lib.checked import checked
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.units import MIB
from course_lib.theory.memory.breakdown import MemoryBreakdown
from course_lib.theory.memory.peak import OVERHEAD_BYTES
from course_lib.validation import choice, number

METERS = ("allocated", "reserved", "nvidia-smi")
# Buffers of one NCCL communicator. Measured: 688 MiB among 4 A100s over NVLink, 544 MiB between
# two. github.com/NVIDIA/nccl, issue 964.
COMMUNICATOR_BYTES = 688 * MIB
# Reserved bytes over the bytes of tensors that this library predicts, at the peak. Fitted, not
# measured: the median of torchtitan's 16 published reserved memories, 1.17 of 1.00 to 1.25, rounded
# to a twentieth (benchmarks/README.md). It holds the allocator's gaps and whatever the prediction
# misses.
RESERVED_OVER_ALLOCATED = 1.15


@checked
def metered_bytes(
    bill: MemoryBreakdown,
    meter: str,
    layout: Layout,
    *,
    buffers_bytes: float = 0,
    reserved_over_allocated: float = RESERVED_OVER_ALLOCATED,
) -> float:
    """What `meter` shows at the peak of `bill`, whose own overhead is left out.

    "allocated": tensors (torch.cuda.max_memory_allocated). "reserved": what the caching allocator
    holds, taken as reserved_over_allocated (fitted) times as much, and `buffers_bytes` of the
    framework.
    "nvidia-smi": the same, CUDA's context and a communicator for each axis and for all ranks.
    Raises ValueError for another meter.
    """
    choice("meter", meter, METERS)
    number("buffers_bytes", buffers_bytes, least=0)
    number("reserved_over_allocated", reserved_over_allocated, least=1)
    allocated = bill.total_bytes - bill.overhead_bytes
    if meter == "allocated":
        return allocated
    reserved = reserved_over_allocated * allocated + buffers_bytes
    if meter == "reserved":
        return reserved
    return reserved + OVERHEAD_BYTES + communicators(layout) * COMMUNICATOR_BYTES


@checked
def communicators(layout: Layout) -> int:
    """NCCL communicators of one GPU: one for all ranks, and one for each axis that has several."""
    axes = (layout.dp * layout.cp, layout.tp, layout.cp, layout.ep, layout.pp)
    return (layout.world > 1) + sum(ranks > 1 for ranks in axes)
