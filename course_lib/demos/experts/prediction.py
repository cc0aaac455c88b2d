"""What the last update of a version of expert parallelism sends, from its routes and the theory."""

from course_lib.demos.experts.training import ExpertTraining, mixtures
from course_lib.demos.experts.versions import ByHand
from course_lib.demos.shared.prediction import Sent, predicted_sent, traffic
from course_lib.measure.wire import Total
from course_lib.scratch.experts.mixture import MoE
from course_lib.theory.inputs.layout import Layout


def predicted(trainee: ByHand, training: ExpertTraining, layout: Layout) -> Sent:
    """What the last update sends.

    All-reduces: the theory's bytes, in as many calls as the version makes. All-to-all: what the
    routes of this rank ask for, 2 · (rows sent + rows received) of hidden floats per layer; with
    equal loads that is the theory's number, which is checked here. All-gather: the counts.
    """
    if layout.world == 1:
        return {}
    moes = mixtures(trainee.model)
    row_bytes = 4 * training.size[1]
    routed = sum(2 * (sent_rows(moe) + received_rows(moe)) * row_bytes for moe in moes)
    theory = predicted_sent(traffic(training, layout))
    if training.fixed_routes and not sum(trainee.dropped):
        routed = theory["all-to-all"].size_bytes
    counts = layout.world * training.experts * 8
    return {
        "all-to-all": Total(theory["all-to-all"].calls, routed),
        "all-gather": Total(len(moes), len(moes) * counts),
        "all-reduce": Total(len(trainee.sums()), theory["all-reduce"].size_bytes),
    }


def sent_rows(moe: MoE) -> int:
    """Choices of this rank's tokens that were accepted."""
    return int(moe.kept[moe.rank].sum())


def received_rows(moe: MoE) -> int:
    """Accepted choices of this rank's experts."""
    return int(moe.kept.view(moe.ranks, moe.ranks, -1)[:, moe.rank].sum())


def staying_rows(moe: MoE) -> int:
    """Accepted choices of this rank's tokens for this rank's experts."""
    return int(moe.kept.view(moe.ranks, moe.ranks, -1)[moe.rank, moe.rank].sum())
