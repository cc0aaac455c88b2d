"""What gradients weigh on the wire when a communication hook makes them smaller."""

from collections.abc import Sequence
from math import prod

from course_lib.checked import checked
from course_lib.validation import number, whole


def low_rank_elements(rows: int, columns: int, rank: int) -> int:
    """r · (n + m): elements of the two factors, n × r and m × r, that stand for an n × m matrix.

    r is at most n and m. Source: Vogels et al. 2019, arXiv:1905.13727, algorithm 1.
    """
    whole("rows", rows)
    whole("columns", columns)
    whole("rank", rank)
    return min(rank, rows, columns) * (rows + columns)


@checked
def powersgd_bytes(
    shapes: Sequence[Sequence[int]], rank: int, least_saving: float = 2.0, element_bytes: int = 4
) -> int:
    """Bytes of all that PowerSGD gives to all-reduce for the gradients of one backward pass.

    A tensor is taken as a matrix of n rows, n its first dimension. It travels as two factors if
    these, times `least_saving`, are smaller; otherwise, as every vector, it travels whole. A number
    is a vector of one.
    Source: torch, ddp_comm_hooks/powerSGD_hook.py, whose `min_compression_rate` is `least_saving`.
    """
    number("least_saving", least_saving, least=0)
    whole("element_bytes", element_bytes)
    elements = 0
    for count, shape in enumerate(shapes):
        for size in shape:
            whole(f"shapes[{count}]", size)
        rows, columns = (shape[0], prod(shape[1:])) if shape else (1, 1)
        factors = low_rank_elements(rows, columns, rank)
        elements += factors if factors * least_saving < rows * columns else rows * columns
    return elements * element_bytes
