"""On a rank of a check: a ring that knows whether something is computed while a hop travels."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from course_lib.measure.operators import Listener
from course_lib.scratch.context import Passing, SequenceRing

_PRODUCTS = ("mm", "attention", "einsum", "matmul")


class WatchedRing(SequenceRing):
    """`idle` has the numbers of the hops between whose start and wait no product was computed.

    `late` has those before whose start products of matrices were computed with none under way.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.products, self.hops = 0, 0
        self.matrices, self.arrived = 0, 0  # products of matrices, and those until the last wait
        self.idle: list[int] = []
        self.late: list[int] = []

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Count products: of matrices, or anything of queries × keys of a chunk."""

        def heard(operator: Any, _args: Any, _options: Any, result: Any) -> None:
            shape = list(getattr(result, "shape", ()))[-2:]
            scores = len(shape) == 2 and shape[0] == shape[1]
            matrices = any(name in str(operator) for name in _PRODUCTS)
            self.products += scores or matrices
            self.matrices += matrices

        with Listener(heard):
            yield

    def start(self, tensor: Tensor) -> Passing:
        self.hops += 1
        if self.matrices > self.arrived:
            self.late.append(self.hops)
        passing, number, before = super().start(tensor), self.hops, self.products
        arrive = passing.wait

        def wait() -> Tensor:
            if self.products == before:
                self.idle.append(number)
            self.arrived = self.matrices
            return arrive()

        passing.wait = wait  # type: ignore[method-assign]
        return passing
