"""Local SGD: what averaging the weights now and then sends."""

from course_lib.theory.network.collectives import sent_bytes
from course_lib.validation import whole


def averaged_bytes(weight_bytes: float, ranks: int, every: int) -> float:
    """Bytes that a rank sends for one update, on average: an all-reduce of the weights / `every`.

    2(n-1)/n · weight_bytes / every. With every=1 they are those of DDP, whose gradients are as
    large as the weights. Source: McMahan et al. 2017, arXiv:1602.05629, algorithm 1.
    """
    whole("every", every)
    return sent_bytes("all-reduce", weight_bytes, ranks) / every
