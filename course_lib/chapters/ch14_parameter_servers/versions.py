"""Pipelines that flush and pipelines that do not: versions of the weights, and late gradients."""

from course_lib.validation import choice, whole

# "flush": GPipe, 1F1B; "pipedream": an update after each micro-batch, with the old weights kept;
# "2bw": PipeDream-2BW, an update after as many micro-batches as there are stages, or more.
UPDATES = ("flush", "pipedream", "2bw")


def weight_versions(scheme: str, stages: int, stage: int) -> int:
    """Versions of its weights that a stage keeps: 1, stages - stage (from 0), or 2.

    Sources: Harlap et al. 2018, arXiv:1806.03377 (Narayanan et al. 2019, SOSP); Narayanan et al.
    2021, arXiv:2006.09503.
    """
    _check(scheme, stages, stage)
    if scheme == "pipedream":
        return stages - stage
    return 2 if scheme == "2bw" else 1


def late_updates(scheme: str, stages: int, stage: int) -> int:
    """Updates of a stage between a micro-batch's forward and backward pass, once it is full.

    0 with a flush, stages - stage - 1 in PipeDream, 1 in PipeDream-2BW.
    """
    return weight_versions(scheme, stages, stage) - 1


def _check(scheme: str, stages: int, stage: int) -> None:
    choice("scheme", scheme, UPDATES)
    whole("stages", stages)
    whole("stage", stage, least=0, most=stages - 1)
