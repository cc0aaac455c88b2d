"""How long one micro-batch takes on each stage of a pipeline."""

from collections.abc import Sequence
from dataclasses import dataclass

from course_lib.theory.pipelines.schedules import (
    BACKWARD,
    FORWARD,
    INPUT,
    MOST_PASSES,
    OVERLAPPED,
    WEIGHT,
)
from course_lib.validation import listed, number, whole


@dataclass(frozen=True)
class PassTimes:
    """Seconds (or any unit) that one micro-batch takes on one stage, with all its chunks.

    Each is one number for all stages or one per stage. `backward` is the whole backward pass and
    `weight` the part of it for the gradients of the weights (default: half); `overlapped` is a
    forward and a backward pass run together (default: their sum). `transfer` is the time from a
    stage to its neighbour; sending costs the sender nothing.
    """

    forward: float | tuple[float, ...] = 1.0
    backward: float | tuple[float, ...] = 2.0
    weight: float | tuple[float, ...] | None = None
    overlapped: float | tuple[float, ...] | None = None
    transfer: float = 0.0

    def __post_init__(self) -> None:
        number("transfer", self.transfer, least=0)
        for name in ("forward", "backward", "weight", "overlapped"):
            value = getattr(self, name)
            if isinstance(value, Sequence):
                object.__setattr__(self, name, tuple(value))
                for stage, item in enumerate(value):
                    _duration(name, f"{name}[{stage}]", item)
            elif value is not None or name in ("forward", "backward"):
                _duration(name, name, value)

    def of(self, stages: int) -> list[dict[str, float]]:
        """Duration by kind of pass, for each stage; ValueError if the stages differ in number."""
        whole("stages", stages)
        listed("stages", stages, "take fewer", most=MOST_PASSES)
        forward, backward = self._each("forward", stages), self._each("backward", stages)
        weight = self._each("weight", stages) or [full / 2 for full in backward]
        both = self._each("overlapped", stages)
        both = both or [f + b for f, b in zip(forward, backward, strict=True)]
        for stage in range(stages):
            if weight[stage] > backward[stage]:
                raise ValueError(
                    f"weight {weight[stage]} is part of backward {backward[stage]} "
                    f"on stage {stage}: give at most that"
                )
        return [
            {FORWARD: f, BACKWARD: b, INPUT: b - w, WEIGHT: w, OVERLAPPED: o}
            for f, b, w, o in zip(forward, backward, weight, both, strict=True)
        ]

    def _each(self, name: str, stages: int) -> list[float]:
        value = getattr(self, name)
        if value is None:
            return []
        if isinstance(value, tuple) and len(value) != stages:
            raise ValueError(
                f"{name} has {len(value)} values for {stages} stages: give one per stage"
            )
        return list(value) if isinstance(value, tuple) else [value] * stages


def _duration(kind: str, name: str, value: object) -> None:
    """A pass takes time; only its part for the weights may take none."""
    number(name, value, **({"least": 0} if kind == "weight" else {"above": 0}))
