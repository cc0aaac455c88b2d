"""How fast the learner's own machine computes and moves numbers."""

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor


def seconds(work: Callable[[], object], repeats: int = 5) -> float:
    """Median time of `work()`, after one call to warm up."""
    work()
    times = []
    for _ in range(repeats):
        _wait()
        start = time.perf_counter()
        work()
        _wait()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def matmul_flop_per_s(
    rows: int = 512,
    inner: int = 512,
    columns: int = 512,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> float:
    """FLOP/s of one matrix product: 2 · rows · inner · columns / time."""
    a = torch.randn(rows, inner, dtype=dtype, device=device)
    b = torch.randn(inner, columns, dtype=dtype, device=device)
    out = torch.empty(rows, columns, dtype=dtype, device=device)
    return (
        2 * rows * inner * columns / seconds(lambda: torch.mm(a, b, out=out))
    )


def memory_bytes_per_s(numbers: int = 2**24, device: str = "cpu") -> float:
    """Bytes read and written per second by c = a + b on large fp32 vectors."""
    a, b, c = (torch.ones(numbers, device=device) for _ in range(3))
    return 3 * _bytes(c) / seconds(lambda: torch.add(a, b, out=c))


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
