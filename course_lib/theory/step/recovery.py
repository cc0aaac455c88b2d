"""What a failure costs, how often to save against it, and how large a checkpoint is.

M is the mean time between failures of the whole machine, C the time of one save, R of a restart.
"""

import math

from course_lib.checked import checked
from course_lib.theory.inputs.recipe import OPTIMIZER_STATE_BYTES, Recipe
from course_lib.validation import number, whole


def machine_mtbf_s(part_mtbf_s: float, parts: int) -> float:
    """Mean time between failures of `parts` independent parts, each of `part_mtbf_s`: m / n."""
    number("part_mtbf_s", part_mtbf_s, above=0)
    whole("parts", parts)
    return part_mtbf_s / parts


def young_interval_s(save_s: float, mtbf_s: float) -> float:
    """Seconds of work between saves that waste least: √(2·C·M), for C far below M.

    Source: Young 1974, doi:10.1145/361147.361115.
    """
    _save_and_mtbf(save_s, mtbf_s)
    return math.sqrt(2 * save_s * mtbf_s)


def daly_interval_s(save_s: float, mtbf_s: float) -> float:
    """The same without Young's assumption: √(2CM)·(1 + √(C/2M)/3 + (C/2M)/9) − C, or M if C ≥ 2M.

    Source: Daly 2006, doi:10.1016/j.future.2004.11.016, equation 37.
    """
    _save_and_mtbf(save_s, mtbf_s)
    ratio = save_s / (2 * mtbf_s)
    if ratio >= 1:
        return mtbf_s
    return young_interval_s(save_s, mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_s


def wasted_fraction(
    interval_s: float, save_s: float, mtbf_s: float, restart_s: float = 0.0
) -> float:
    """Time not spent on new work over time spent on it: C/τ + (τ/2 + R)/M.

    A failure finds on average half an interval τ unsaved. The first order of Young's model: only
    for τ and R far below M.
    """
    number("interval_s", interval_s, above=0)
    _save_and_mtbf(save_s, mtbf_s)
    number("restart_s", restart_s, least=0)
    return save_s / interval_s + (interval_s / 2 + restart_s) / mtbf_s


def lost_steps(done: int, every: int) -> int:
    """Updates since the last save, which are done again: done mod every."""
    whole("done", done, least=0)
    whole("every", every)
    return done % every


def mean_lost_steps(every: int) -> float:
    """Mean of `lost_steps` where a failure may come after any update: (every − 1) / 2."""
    whole("every", every)
    return (every - 1) / 2


@checked
def checkpoint_bytes(parameters: int, recipe: Recipe) -> int:
    """Weights (the fp32 master copy where there is one) and optimizer states, whoever holds them.

    fp32 AdamW: 4 + 8 = 12 bytes a parameter; so it is with bf16 weights and their master copy.
    """
    whole("parameters", parameters)
    weight_bytes = 4 if recipe.master_copy else recipe.weight_bytes
    return parameters * (weight_bytes + OPTIMIZER_STATE_BYTES[recipe.optimizer])


def _save_and_mtbf(save_s: float, mtbf_s: float) -> None:
    number("save_s", save_s, above=0)
    number("mtbf_s", mtbf_s, above=0)
