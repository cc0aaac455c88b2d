"""Kinds of pipeline stages: those that hold as many layers of each kind and the same ends.

Stages of a kind compute and send alike, and the first of them holds most activations, so a plan
looks at one stage of each kind.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.shape import TransformerShape


class Held(NamedTuple):
    """Layers of either kind times micro-batches in flight; micro-batches of both ends."""

    dense: int
    experts: int
    first: int
    last: int


@dataclass(frozen=True)
class StageKind:
    """`count` stages, the first of them `stage`; `chunks`: (dense, expert) layers by chunk."""

    stage: int
    count: int
    chunks: tuple[tuple[int, int], ...]
    first: bool
    last: bool

    @property
    def dense(self) -> int:
        """Layers with one MLP."""
        return sum(dense for dense, _ in self.chunks)

    @property
    def experts(self) -> int:
        """Layers with routed experts."""
        return sum(experts for _, experts in self.chunks)

    def held(self, layout: Layout) -> Held:
        """What a stage of this kind holds at its peak."""
        layers = [dense + experts for dense, experts in self.chunks]
        in_flight = layout.in_flight(self.stage, layers)
        pairs = list(zip(in_flight.values(), self.chunks, strict=True))
        chunks = list(in_flight)
        return Held(
            dense=sum(held * dense for held, (dense, _) in pairs),
            experts=sum(held * experts for held, (_, experts) in pairs),
            first=layout.most_in_flight(chunks[0]) if self.first else 0,
            last=layout.most_in_flight(chunks[-1]) if self.last else 0,
        )


def stage_kinds(shape: TransformerShape, layout: Layout) -> list[StageKind]:
    """The kinds of stages of one pipeline, by their first stages."""
    chunks, pp = _chunks(shape, layout), layout.pp
    found: dict[tuple[tuple[tuple[int, int], ...], bool, bool], list[int]] = {}
    for stage in range(pp):
        key = (tuple(chunks[stage::pp]), stage == 0, stage == pp - 1)
        found.setdefault(key, []).append(stage)
    return [StageKind(stages[0], len(stages), *key) for key, stages in found.items()]


def _chunks(shape: TransformerShape, layout: Layout) -> list[tuple[int, int]]:
    """Dense and expert layers of each chunk, in the order of the model."""
    counts = []
    for chunk in range(layout.chunks):
        kinds = {shape.has_experts(layer): n for layer, n in layout.layers_of(shape, chunk)}
        counts.append((kinds.get(False, 0), kinds.get(True, 0)))
    return counts


def pad(kinds: Iterable[list[StageKind]]) -> list[list[StageKind]]:
    """Lists made equally long with kinds of no stages, which repeat the first kind."""
    lists = list(kinds)
    width = max(len(kinds) for kinds in lists)
    return [kinds + [replace(kinds[0], count=0)] * (width - len(kinds)) for kinds in lists]
