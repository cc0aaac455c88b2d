"""Bytes of gradients that are sent under a compressing communication hook."""

from collections.abc import Sequence
from math import prod

from course_lib.checked import checked
from course_lib.validation import number, whole


@checked
def powersgd_bytes(
    shapes: Sequence[Sequence[int]], rank: int, least_saving: float = 2.0, element_bytes: int = 4
) -> int:
    """Bytes that PowerSGD passes to all-reduce for the gradients of one backward pass.

    A tensor counts as an n × m matrix, with n its first dimension. It is sent as two factors, n × r
    and m × r, if their size times `least_saving` is smaller; otherwise, like every vector, it is
    sent whole. A scalar is a vector of one element; r is at most n and m.
    Source: Vogels et al. 2019, arXiv:1905.13727, algorithm 1; torch,
    ddp_comm_hooks/powerSGD_hook.py, whose `min_compression_rate` is `least_saving`.
    """
    whole("rank", rank)
    number("least_saving", least_saving, least=0)
    whole("element_bytes", element_bytes)
    elements = 0
    for count, shape in enumerate(shapes):
        for size in shape:
            whole(f"shapes[{count}]", size)
        rows, columns = (shape[0], prod(shape[1:])) if shape else (1, 1)
        factors = min(rank, rows, columns) * (rows + columns)
        elements += factors if factors * least_saving < rows * columns else rows * columns
    return elements * element_bytes
