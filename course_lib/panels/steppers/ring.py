"""The stepper of chapter 6: a ring all-reduce, message by message."""

from course_lib import figures
from course_lib.panels.controls import whole
from course_lib.panels.panel import View
from course_lib.panels.stepper import Stepper, Story
from course_lib.theory.network.all_reduce_steps import AllReduceSteps, ring_steps


def ring(ranks: int = 4) -> Stepper:
    """The story of `ring_steps`. Raises ValueError for starting values outside the sliders."""
    return Stepper({"ranks": whole("ranks", ranks, 2, 8)}, _story)


def _story(ranks: int) -> Story:
    result = ring_steps(ranks)
    return Story(len(result.moments), lambda step: _view(result, step))


def _view(result: AllReduceSteps, step: int) -> View:
    moment, ranks = result.moments[step], result.ranks
    complete = sum(part == result.complete for row in moment.held for part in row)
    rows = (
        ("complete", f"{complete} of {ranks**2} boxes"),
        ("sent by each rank", f"{result.sent_parts(0, step)} of {result.steps} messages"),
    )
    return View(moment, rows, lambda: figures.ring_step(result, step), _caption(result, step))


def _caption(result: AllReduceSteps, step: int) -> str:
    if step == 0:
        return "Every rank has its own numbers in every part of the tensor."
    sent = result.moments[step].sent[0]
    numbers = f"step {step}, rank 0 sends part {sent.part}"
    if sent.adds:
        count = len(sent.summands) + 1
        if step == result.steps // 2:
            end = "each rank now has the whole sum of one part"
            return f"Step {step} adds the last of {count} summands: {end}."
        return f"In {numbers}, and rank 1 adds its own: {count} summands."
    if step == result.steps // 2 + 1:
        return f"In {numbers}, which is complete; from now on receivers only copy."
    end = "; now every rank has it all" if step == result.steps else ""
    return f"In {numbers}, which it received a step ago{end}."
