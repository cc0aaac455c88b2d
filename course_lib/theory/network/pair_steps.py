"""Tensor parallelism step by step: a pair of cut matrices, forward and backward, on each rank."""

from dataclasses import dataclass

from course_lib.theory.network.collectives import sent_bytes
from course_lib.validation import choice, divisible, flag, whole

MLP, ATTENTION = "mlp", "attention"
# Columns of the first matrix and rows of the second, in units of the hidden size.
_WIDTHS = {MLP: (4, 4), ATTENTION: (3, 1)}


@dataclass(frozen=True)
class PairStep:
    """One step on every rank: the tensor it makes there, its shape, and what is sent for it.

    `size_bytes`: the whole tensor of the collective. In a ring, `sent_bytes` leave each rank.
    """

    phase: str  # "forward" or "backward"
    makes: str  # X, f(X), XA, Y, YB, Z; backward dZ, g(dZ), dY, dXA, dX part, dX
    shape: tuple[int, int]  # rows are tokens
    collective: str = ""
    size_bytes: int = 0
    sent_bytes: float = 0.0


@dataclass(frozen=True)
class PairSteps:
    """A pair of matrices A (by columns) and B (by rows) on `ranks` GPUs, from X to its gradient."""

    kind: str
    hidden: int
    tokens: int
    ranks: int
    element_bytes: int
    sequence_parallel: bool
    steps: tuple[PairStep, ...]

    @property
    def inner(self) -> int:
        """Columns of A."""
        return self.hidden * _WIDTHS[self.kind][0]

    @property
    def middle(self) -> int:
        """Rows of B."""
        return self.hidden * _WIDTHS[self.kind][1]

    @property
    def messages(self) -> tuple[PairStep, ...]:
        """The steps for which something is sent."""
        return tuple(step for step in self.steps if step.collective)

    @property
    def sent_bytes(self) -> float:
        """Bytes that leave one rank, forward and backward."""
        return sum(step.sent_bytes for step in self.steps)


def pair_steps(
    kind: str,
    hidden: int,
    tokens: int,
    ranks: int,
    *,
    element_bytes: int = 2,
    sequence_parallel: bool = False,
) -> PairSteps:
    """All steps of an "mlp" (A is h × 4h, B 4h × h) or an "attention" (A is h × 3h, B h × h).

    f copies forward and sums backward, g sums forward and copies backward; with
    `sequence_parallel` they gather and scatter tokens instead. `tokens` of all ranks together.
    Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3; Korthikanti et al. 2022,
    arXiv:2205.05198, section 4.2.2. Raises ValueError where the ranks do not divide hidden size
    or tokens, and for fewer than two.
    """
    choice("kind", kind, _WIDTHS)
    for name, size in {"hidden": hidden, "tokens": tokens, "element_bytes": element_bytes}.items():
        whole(name, size)
    whole("ranks", ranks, least=2)
    flag("sequence_parallel", sequence_parallel)
    divisible("hidden", hidden, "ranks", ranks)
    if sequence_parallel:
        divisible("tokens", tokens, "ranks", ranks)
    inner, middle = (hidden * width // ranks for width in _WIDTHS[kind])
    outside = (tokens // ranks if sequence_parallel else tokens), hidden
    size = tokens * hidden * element_bytes

    def exchange(phase: str, makes: str, shape: tuple[int, int], operation: str) -> PairStep:
        if not operation:
            return PairStep(phase, makes, shape)
        return PairStep(phase, makes, shape, operation, size, sent_bytes(operation, size, ranks))

    gather = "all-gather" if sequence_parallel else ""
    add = "reduce-scatter" if sequence_parallel else "all-reduce"
    forward, backward, whole_ = "forward", "backward", (tokens, hidden)
    steps = (
        PairStep(forward, "X", outside),
        exchange(forward, "f(X)", whole_, gather),
        PairStep(forward, "XA", (tokens, inner)),
        PairStep(forward, "Y", (tokens, middle)),
        PairStep(forward, "YB", whole_),
        exchange(forward, "Z", outside, add),
        PairStep(backward, "dZ", outside),
        exchange(backward, "g(dZ)", whole_, gather),
        PairStep(backward, "dY", (tokens, middle)),
        PairStep(backward, "dXA", (tokens, inner)),
        PairStep(backward, "dX part", whole_),
        exchange(backward, "dX", outside, add),
    )
    return PairSteps(kind, hidden, tokens, ranks, element_bytes, sequence_parallel, steps)
