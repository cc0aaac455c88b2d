"""Closed forms of pipeline schedules: bubble and micro-batches in flight, without a timeline.

The tests prove each equal to the simulated timeline wherever it holds (equal stages, free
transfers); uneven stages and slow links need `pipeline.timeline`.
"""

from course_lib.checked import checked
from course_lib.theory.inputs.schedule_rules import (
    check_schedule,
    chunks_in_flight,
    chunks_on_a_stage,
)
from course_lib.theory.pipelines.pass_times import PassTimes
from course_lib.theory.pipelines.schedules import BACKWARD, FORWARD, OVERLAPPED, WEIGHT
from course_lib.validation import whole


def bubble_over_ideal(stages: int, micro_batches: int, virtual_stages: int = 1) -> float:
    """Idle over ideal time of GPipe, 1F1B and interleaved 1F1B: (p-1) / (v m).

    Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2.
    """
    whole("stages", stages)
    whole("micro_batches", micro_batches)
    whole("virtual_stages", virtual_stages)
    return (stages - 1) / (virtual_stages * micro_batches)


def bubble_fraction(stages: int, micro_batches: int, virtual_stages: int = 1) -> float:
    """Idle over total time of the same schedules: (p-1) / (v m + p-1).

    Source: Huang et al. 2018, arXiv:1811.06965, section 2.3, for v = 1.
    """
    ratio = bubble_over_ideal(stages, micro_batches, virtual_stages)
    return ratio / (1 + ratio)


@checked
def bubble_time(
    name: str,
    stages: int,
    micro_batches: int,
    virtual_stages: int = 1,
    *,
    group: int | None = None,
    times: PassTimes | None = None,
) -> float:
    """Idle time of a stage, with F forward, B whole backward, W its weight part, F&B both at once.

    naive m(p-1)(F+B); gpipe, 1f1b (p-1)(F+B); interleaved (p-1)(F+B)/v with any `group`, and
    (p-1 + (v-1)(p-m))(F+B)/v for m < p; zb1p (p-1)(F+B-2W), and (p-m)W more for m < p, which
    holds for W <= min(F, B-W); zbv (p-1)(B-W)/2, which holds for F <= B-W and
    W <= B-W <= 2W; dualpipe (p/2-1)(F&B+B-3W), which holds for W <= F = B-W
    and F&B >= B, on the two middle stages (the others idle no longer). All stages take equal times
    and transfers are free. Sources: Narayanan et al. 2021, arXiv:2104.04473, section 2.2; table 2
    of DeepSeek-V3, arXiv:2412.19437; that of zbv was found by simulation. Raises ValueError where
    a form would give a negative time.
    """
    check_schedule(name, stages, micro_batches, virtual_stages, group=group)
    each = (times or PassTimes()).of(1)[0]
    weight, both = each[WEIGHT], each[FORWARD] + each[BACKWARD]
    missing = max(0, stages - micro_batches)  # micro-batches with which no stage would wait
    late = (virtual_stages - 1) * missing  # until a chunk's first comes back
    idle = {
        "naive": micro_batches * (stages - 1) * both,
        "interleaved": (stages - 1 + late) * both / virtual_stages,
        "zb1p": (stages - 1) * (both - 2 * weight) + missing * weight,
        "zbv": (stages - 1) * (each[BACKWARD] - weight) / 2,
        "dualpipe": (stages / 2 - 1) * (each[OVERLAPPED] + each[BACKWARD] - 3 * weight),
    }.get(name, (stages - 1) * both)
    if idle < 0:
        raise ValueError(
            f"weight {weight} is too large for the closed form of {name}: take pipeline.timeline"
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
    """Most micro-batches whose activations `stage` holds at once; a chunk is 1/v of one.

    The sum of `schedule_rules.chunks_in_flight`, whose docstring has the forms: a chunk of
    DualPipe is a whole micro-batch, one of an interleaved schedule 1 / virtual_stages, one of ZB-V
    a half.
    """
    sizes = (stages, micro_batches, virtual_stages)
    held = chunks_in_flight(name, *sizes, stage=stage, group=group)
    return sum(held.values()) / chunks_on_a_stage(name, virtual_stages)
