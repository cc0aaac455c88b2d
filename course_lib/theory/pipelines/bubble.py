"""Durations of passes, and closed forms of a schedule's bubble and micro-batches in flight."""

from collections.abc import Sequence
from dataclasses import dataclass

from course_lib.checked import Count, NotNegative, check_public
from course_lib.theory.inputs.schedule_rules import check_schedule, full_moments
from course_lib.theory.pipelines.schedules import (
    BACKWARD,
    FORWARD,
    INPUT,
    MOST_PASSES,
    OVERLAPPED,
    WEIGHT,
)
from course_lib.validation import listed, number


@dataclass(frozen=True)
class PassTimes:
    """Seconds (or any unit) that a micro-batch takes on one stage, summed over the stage's chunks.

    Each is one number for all stages or one per stage. `backward` is the whole backward pass and
    `weight` the part of it for the weight gradients (default: half); `overlapped` is a forward and
    a backward pass run together (default: their sum). `transfer` is the time of a message to a
    neighbouring stage, which does not occupy the sender.
    """

    forward: float | tuple[float, ...] = 1.0
    backward: float | tuple[float, ...] = 2.0
    weight: float | tuple[float, ...] | None = None
    overlapped: float | tuple[float, ...] | None = None
    transfer: NotNegative = 0.0

    def __post_init__(self) -> None:
        for name in ("forward", "backward", "weight", "overlapped"):
            value = getattr(self, name)
            if value is None and name in ("weight", "overlapped"):
                continue
            several = isinstance(value, Sequence)
            if several:
                object.__setattr__(self, name, tuple(value))
            for stage, item in enumerate(value if several else [value]):
                limit = {"least": 0} if name == "weight" else {"above": 0}
                number(f"{name}[{stage}]" if several else name, item, **limit)

    def of(self, stages: Count) -> list[dict[str, float]]:
        """Durations by kind of pass, per stage. Raises ValueError for a wrong number of values."""
        listed("stages", stages, "take fewer", most=MOST_PASSES)
        forward, backward = self._each("forward", stages), self._each("backward", stages)
        weight = self._each("weight", stages) or [full / 2 for full in backward]
        both = self._each("overlapped", stages)
        both = both or [f + b for f, b in zip(forward, backward, strict=True)]
        for stage, (part, full) in enumerate(zip(weight, backward, strict=True)):
            if part > full:
                raise ValueError(
                    f"weight {part} is part of backward {full} on stage {stage}: give at most that"
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


# --- Closed forms of pipeline schedules: bubble and micro-batches in flight, without a timeline ---

# The tests prove each equal to the simulated timeline wherever it holds (equal stages, free
# transfers); uneven stages and slow links need `simulation.timeline`.


def bubble_over_ideal(stages: Count, micro_batches: Count, virtual_stages: Count = 1) -> float:
    """Ratio of idle to ideal time of GPipe, 1F1B and interleaved 1F1B: (p-1) / (v m).

    Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2.
    """
    return (stages - 1) / (virtual_stages * micro_batches)


def bubble_fraction(stages: int, micro_batches: int, virtual_stages: int = 1) -> float:
    """Ratio of idle to total time of GPipe, 1F1B and interleaved 1F1B: (p-1) / (v m + p-1).

    Source: Huang et al. 2018, arXiv:1811.06965, section 2.3, for v = 1.
    """
    ratio = bubble_over_ideal(stages, micro_batches, virtual_stages)
    return ratio / (1 + ratio)


def bubble_time(
    name: str,
    stages: int,
    micro_batches: int,
    virtual_stages: int = 1,
    *,
    group: int | None = None,
    times: PassTimes | None = None,
) -> float:
    """Idle time of a stage; F forward, B whole backward, W its weight part, F&B both overlapped.

    naive m(p-1)(F+B); gpipe, 1f1b (p-1)(F+B); interleaved (p-1)(F+B)/v with any `group`, and
    (p-1 + (v-1)(p-m))(F+B)/v for m < p; zb1p (p-1)(F+B-2W), and (p-m)W more for m < p, which
    holds for W <= min(F, B-W); zbv (p-1)(B-W)/2, which holds for F <= B-W and W <= B-W <= 2W;
    dualpipe (p/2-1)(F&B+B-3W), which holds for W <= F = B-W and F&B >= B, on the two middle
    stages (the others are not idle longer). All stages take equal times and transfers are free.
    Sources: Narayanan et al. 2021, arXiv:2104.04473, section 2.2; table 2 of DeepSeek-V3,
    arXiv:2412.19437; that of zbv was derived by simulation. Raises ValueError if a formula would
    give a negative time.
    """
    check_schedule(name, stages, micro_batches, virtual_stages, group=group)
    each = (times or PassTimes()).of(1)[0]
    weight, both = each[WEIGHT], each[FORWARD] + each[BACKWARD]
    missing = max(0, stages - micro_batches)  # micro-batches short of one per stage
    late = (virtual_stages - 1) * missing  # idle until a chunk's first micro-batch returns
    idle = {
        "naive": micro_batches * (stages - 1) * both,
        "interleaved": (stages - 1 + late) * both / virtual_stages,
        "zb1p": (stages - 1) * (both - 2 * weight) + missing * weight,
        "zbv": (stages - 1) * (each[BACKWARD] - weight) / 2,
        "dualpipe": (stages / 2 - 1) * (each[OVERLAPPED] + each[BACKWARD] - 3 * weight),
    }.get(name, (stages - 1) * both)
    if idle < 0:
        raise ValueError(
            f"weight {weight} is too large for the closed form of {name}: take simulation.timeline"
        )
    return idle


def in_flight(
    name: str,
    stages: int,
    micro_batches: int,
    stage: int = 0,
    *,
    virtual_stages: int = 1,
    group: int | None = None,
) -> float:
    """Peak number of micro-batches whose activations `stage` holds; a chunk is a fraction of one.

    For the formulas see `schedule_rules.full_moments`, whose first moment this is. A chunk of
    DualPipe counts as a whole micro-batch, one of an interleaved schedule as 1 / virtual_stages,
    one of ZB-V as a half.
    """
    sizes = (stages, micro_batches, virtual_stages)
    changes, _ = next(full_moments(name, *sizes, stage=stage, group=group))
    return sum(held for _, held in changes) / (2 if name == "zbv" else virtual_stages)


check_public(globals())
