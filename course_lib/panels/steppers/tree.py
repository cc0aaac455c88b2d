"""The stepper of chapter 6: a tree all-reduce, with the ring's time beside it."""

from course_lib import figures
from course_lib.panels.controls import listed, whole
from course_lib.panels.panel import View
from course_lib.panels.stepper import Stepper, Story
from course_lib.theory.inputs.hardware import NDR
from course_lib.theory.inputs.units import format_seconds
from course_lib.theory.network.all_reduce_steps import AllReduceSteps, tree_steps
from course_lib.theory.network.ring_or_tree import RingOrTree, ring_or_tree

_SIZES = {"4 kB": 4_000, "64 kB": 64_000, "1 MB": 10**6, "16 MB": 16 * 10**6, "1 GB": 10**9}


def tree(ranks: int = 8, size_bytes: int = 64_000) -> Stepper:
    """The story of `tree_steps` over NDR. Raises ValueError for starting values not offered."""
    controls = {
        "ranks": whole("ranks", ranks, 2, 16),
        "size_bytes": listed("tensor", size_bytes, _SIZES),
    }
    return Stepper(controls, _story)


def _story(ranks: int, size_bytes: int) -> Story:
    result = tree_steps(ranks)
    times = ring_or_tree("all-reduce", size_bytes, ranks, NDR)
    return Story(len(result.moments), lambda step: _view(result, times, step))


def _view(result: AllReduceSteps, times: RingOrTree, step: int) -> View:
    moment = result.moments[step]
    rows = (
        ("working in this step", f"{2 * len(moment.sent)} of {result.ranks} ranks"),
        ("faster", f"the {times.faster}, {format_seconds(times.seconds)}"),
    )
    caption = _caption(result, step)
    return View((moment, times), rows, lambda: figures.tree_step(result, times, step), caption)


def _caption(result: AllReduceSteps, step: int) -> str:
    sent = result.moments[step].sent
    if not sent:
        return "Every rank has its own numbers; each message will carry the whole tensor."
    senders = ", ".join(str(one.sender) for one in sent)
    receivers = ", ".join(str(one.receiver) for one in sent)
    several = len(sent) > 1
    send = f"ranks {senders} send" if several else f"rank {senders} sends"
    if sent[0].adds:
        adds = "add" if several else "adds"
        end = ": it now has the sum of all" if step == result.steps // 2 else ""
        return f"Step {step}: {send} to {receivers}, which {adds}{end}."
    if step == result.steps:
        get = f"ranks {receivers} get" if several else f"rank {receivers} gets"
        return f"Step {step}: {get} the whole sum as well: now every rank has it."
    return f"Step {step}: {send} the whole sum to {receivers}."
