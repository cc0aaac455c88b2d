"""The stepper of chapter 15: a job that saves, loses a node, and resumes."""

from course_lib import figures
from course_lib.figures.paper.text import counted
from course_lib.panels.controls import listed, whole
from course_lib.panels.panel import View
from course_lib.panels.stepper import Stepper, Story
from course_lib.theory.inputs.units import format_duration
from course_lib.theory.step import failing_job as theory
from course_lib.theory.step.failing_job import FailingJob, JobCosts, JobMoment

# A save of a minute, and ten minutes until all ranks train again: five until Slurm gives a silent
# node up (SlurmdTimeout), two for which it holds a requeued job back, three to start.
_UPDATES, _COSTS = 20, JobCosts(update_s=360, save_s=60, notice_s=300, queue_s=120, start_s=180)
_EVERY = (1, 2, 3, 4, 5, 10, 20)


def failing_job(every: int = 4, fails_after: int = 11) -> Stepper:
    """Two hours of work in 20 pieces of 6 minutes. Raises ValueError for other starting values."""
    options = {f"{every_ * 6}": every_ for every_ in _EVERY}
    controls = {
        "every": listed("save every", every, options, "min"),
        "fails_after": whole("fails after", fails_after, 1, _UPDATES - 1, "pieces"),
    }
    return Stepper(controls, _story)


def _story(every: int, fails_after: int) -> Story:
    result = theory.failing_job(_UPDATES, every, fails_after, _COSTS)
    moments = result.moments
    return Story(len(moments), lambda step: _view(result, moments[step], step))


def _view(result: FailingJob, moment: JobMoment, step: int) -> View:
    new, all_time = format_duration(moment.new_work_s), format_duration(moment.now_s)
    twice = counted(result.lost, "piece")
    rows = (
        ("goodput so far", f"{new} of work that is still there / {all_time} = "
         f"{moment.goodput:.1%}" if moment.now_s else "no time has passed"),
        ("goodput in the end", f"{result.goodput:.1%}, with {twice} done twice"),
    )  # fmt: skip
    draw = lambda: figures.failing_job_step(result, step)  # noqa: E731
    return View((moment, result.every, result.fails_after), rows, draw, _caption(result, moment))


def _caption(result: FailingJob, moment: JobMoment) -> str:
    last = moment.last
    if last is None:
        return "The job begins: 20 pieces of work, 6 minutes each. Nothing is saved yet."
    if moment.now_s == result.failed_s and last.kind in ("update", "save"):
        unsaved = moment.done - moment.saved
        return f"A node dies: {unsaved} of the {moment.done} pieces done so far are not saved."
    pieces = counted(moment.saved, "piece")
    waits = {
        "notice": f"It is noticed 5 minutes late. Only what was saved is left: {pieces}.",
        "queue": "The job has waited in the queue and may start again.",
        "start": f"All ranks train again, from {_place(moment.saved)}.",
        "save": f"A checkpoint is written, and holds {pieces}.",
    }
    if last.kind in waits:
        return waits[last.kind]
    again = " for the second time" if last.again else ""
    return f"Piece {last.update} is done{again}; {moment.saved or 'nothing'} saved so far."


def _place(saved: int) -> str:
    return f"the checkpoint after piece {saved}" if saved else "the very beginning"
