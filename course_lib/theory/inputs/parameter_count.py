"""Parameters of a model, or of a part of it, by place."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

from course_lib.checked import checked
from course_lib.theory.inputs.units import format_count
from course_lib.validation import whole


@dataclass(frozen=True)
class ParameterCount:
    """Trainable parameters by place; a tied embedding is counted once, under `embedding`.

    Of the routed experts one token uses `chosen_experts` and leaves `idle_experts` alone.
    """

    embedding: int = 0
    positions: int = 0
    attention: int = 0
    mlp: int = 0
    chosen_experts: int = 0
    idle_experts: int = 0
    shared_experts: int = 0
    router: int = 0
    norms: int = 0
    head: int = 0

    def __add__(self, other: "ParameterCount") -> "ParameterCount":
        return ParameterCount(*(mine + its for mine, its in zip(self, other, strict=True)))

    def __iter__(self) -> Iterator[int]:
        """The leaves in order."""
        return (getattr(self, leaf.name) for leaf in fields(self))

    def times(self, layers: int) -> "ParameterCount":
        """`layers` equal layers."""
        whole("layers", layers, least=0)
        return ParameterCount(*(layers * leaf for leaf in self))

    @property
    def total(self) -> int:
        """All trainable parameters: the sum of the leaves."""
        return sum(self)

    @property
    def active(self) -> int:
        """Parameters that one token meets: total − idle_experts. The embedding is counted."""
        return self.total - self.idle_experts

    @property
    def experts(self) -> int:
        """Routed experts, used by a token or not: what expert parallelism spreads."""
        return self.chosen_experts + self.idle_experts

    @property
    def without_embedding(self) -> int:
        """total − embedding − positions: N of Kaplan et al. 2020, arXiv:2001.08361, section 2.1.

        A tied embedding leaves with its head; an untied head stays, as in torchtitan's MFU.
        """
        return self.total - self.embedding - self.positions

    def explain(self) -> str:
        """One line per leaf, then the total, and the active parameters of a mixture of experts."""
        dense = ("embedding", "positions", "attention", "mlp", "norms", "head")
        leaves = {leaf.name: getattr(self, leaf.name) for leaf in fields(self)}
        lines = [f"{name:<14}{n:>18,}" for name, n in leaves.items() if n or name in dense]
        lines.append(f"{'total':<14}{self.total:>18,}  ({format_count(self.total)})")
        if self.idle_experts:
            lines.append(f"{'active':<14}{self.active:>18,}  ({format_count(self.active)})")
        return "\n".join(lines)


@checked
def sum_counts(counts: Sequence[ParameterCount]) -> ParameterCount:
    """The leaves of several counts, added: the layers of a pipeline stage, for example."""
    return sum(counts, ParameterCount())
