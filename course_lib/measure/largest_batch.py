"""The largest batch that fits: what one would try by hand, until it does not.

On a GPU a batch does not fit when CUDA says so. A CPU would take memory from
others first, so there the limit is a number, and the bytes are those of the
tensors that a step makes.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from course_lib.measure.peak import log_memory
from course_lib.validation import whole


def largest_batch(fits: Callable[[int], bool], most: int = 2**20) -> int:
    """The largest batch for which `fits(batch)` is true; 0 where none is.

    Doubles until one does not fit, then bisects: 2·log2(batch) tries. `fits`
    must be false for all batches above one for which it is. `most` ends it.
    """
    whole("most", most)
    good, bad = 0, 1
    while bad <= most and fits(bad):
        good, bad = bad, 2 * bad
    bad = min(bad, most + 1)
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


def fits_on_gpu(step: Callable[[], object]) -> bool:
    """Whether `step()` runs to its end; what it has left is given back."""
    try:
        step()
    except torch.cuda.OutOfMemoryError:
        return False
    finally:
        torch.cuda.empty_cache()
    return True


def peak_bytes(step: Callable[[], object], before: Iterable[Tensor]) -> int:
    """The most bytes of tensors at a time in `step()`, on any device.

    `before` are the weights and whatever else is there already. The batch fits
    if this is within the limit that you set.
    """
    with log_memory(before) as log:
        step()
    return log.peak_bytes
