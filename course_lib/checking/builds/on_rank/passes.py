"""On a rank of a check: an autograd function, forward and backward."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from course_lib.checking.builds.on_rank.followed import meet
from course_lib.measure.wire import log_wire


def both_passes(
    function: Any, x: Tensor, upstream: Tensor, group: Any, whose: str
) -> Iterator[tuple[Any, ...] | None]:
    """Goes forward and yields; then backward, unless the result has another shape.

    Yields result, gradient of `x`, what was sent in each pass, and what of its arguments is as it
    was, for `unchanged`.
    """
    before = x.clone(), upstream.clone()
    x.requires_grad_()
    with log_wire() as forward:
        result = function.apply(x, group)
    meet(f"has done {whose} forward pass")
    yield None
    with log_wire() as backward:
        if result.shape == upstream.shape:
            result.backward(upstream)
    meet(f"has done {whose} backward pass")
    same = map(torch.equal, (x, upstream), before)
    kept = dict(zip(("its argument", "the gradient that it is given"), same, strict=True))
    yield result.detach(), x.grad, forward, backward, kept
