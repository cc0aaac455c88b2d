"""Step-by-step animations for chapter 15."""

from course_lib.chapters.ch15_launchers_and_recovery import recovery as theory
from course_lib.chapters.ch15_launchers_and_recovery.recovery import JobCosts
from course_lib.figures.engines.cells import Cell, Cells
from course_lib.figures.engines.lanes import Lanes, Levels
from course_lib.figures.engines.page import page
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing, counted
from course_lib.panels.controls import listed, whole
from course_lib.panels.panel import Rows
from course_lib.panels.stepper import Stepper, Story
from course_lib.theory.inputs.units import format_duration

# A save takes one minute. A failure costs ten minutes until all ranks train again: five until Slurm
# marks a silent node as down (SlurmdTimeout), two in the queue after the requeue, three to start.
_UPDATES, _COSTS = 20, JobCosts(update_s=360, save_s=60, notice_s=300, queue_s=120, start_s=180)
_EVERY = (1, 2, 3, 4, 5, 10, 20)
_ENDED = {
    "notice": "It is noticed 5 minutes late. Only what was saved is left: {pieces}.",
    "queue": "The job has waited in the queue and may start again.",
    "start": "All ranks train again, from {place}.",
    "save": "A checkpoint is written, and holds {pieces}.",
}
_LOOKS = {
    "update": "new work",
    "save": "save",
    "lost": "lost work",
    "again": "done again",
    "notice": "nobody has noticed",
    "queue": "in the queue",
    "start": "starting",
}


def failing_job(every: int = 4, fails_after: int = 11) -> Stepper:
    """Two hours of work in 20 pieces of 6 minutes. Raises ValueError for invalid start values."""
    options = {f"{every_ * 6}": every_ for every_ in _EVERY}
    controls = {
        "every": listed("save every", every, options, "min"),
        "fails_after": whole("fails after", fails_after, 1, _UPDATES - 1, "pieces"),
    }
    return Stepper(controls, _Failing)


class _Bar(Lanes):
    """Lanes that draw future saves in full colour, so that the work at risk is visible."""

    def later(self, time: float) -> bool:
        saves = {event.at for row in self.rows.values() for event in row if event.what == "save"}
        return super().later(time) and time not in saves


class _Failing(Story):
    """Step n shows the job after the first n events of its trace."""

    def __init__(self, every: int, fails_after: int) -> None:
        self.job = theory.failing_job(_UPDATES, every, fails_after, _COSTS)
        self.trace, self.count = self.job.trace, len(self.job.trace) + 1

    def clock(self, step: int) -> tuple[float, float]:
        """Seconds elapsed, and seconds of useful work (not lost so far), after `step` events."""
        done, _ = self.job.after(step)
        return self.trace[step - 1].until if step else 0.0, done * _COSTS.update_s

    def picture(self, step: int) -> Drawing:
        now, work = self.clock(step)
        over, failed = (0.0, self.job.total_s), self.job.failed_s
        spans = []
        for number, event in enumerate(self.trace):
            if number >= step:  # not yet started: shift it just past `now`
                event = event._replace(at=event.at + 1e-6 * over[1])
            lost = event.label == "lost" and now <= failed
            look = event.what if lost or not event.label else event.label
            spans.append(event._replace(what=_LOOKS[look], label=""))
        dies = "a node dies" if now >= failed else "a node will die"
        bar = _Bar({"the job": spans}, now=now, over=over, high=30, marks={dies: failed})
        if now >= failed:
            bar.ink, bar.mark = style.WARNING_TEXT, style.WARNING
        after = [(self.clock(n)[0], *self.job.after(n)) for n in range(self.count)]
        levels = {
            "save": [(time, saved) for time, _, saved in after],
            "new work": [(time, done - saved) for time, done, saved in after],
        }
        stairs = Levels(levels, over=over, now=now, name="pieces done", most=_UPDATES,
                        told=lambda pieces: f"{pieces:g}", high=70)  # fmt: skip
        goodput = work / now if now else 1.0
        part = Cell("", dict.fromkeys(range(round(100 * goodput)), "new work"), 100)
        done, saved = self.job.after(step)
        said = f"After {format_duration(now)} of {format_duration(self.job.total_s)}: "
        said += f"{counted(done, 'piece')} of {_UPDATES} done, {saved} saved"
        title = f"goodput so far {goodput:.0%}"
        share = Cells({"": {"": part}}, high=12)
        return page(title, share, bar, stairs, key=tuple(_LOOKS.values()), sentence=said)

    def rows(self, step: int) -> Rows:
        now, work = self.clock(step)
        new, all_time = format_duration(work), format_duration(now)
        so_far = f"{new} of work that is still there / {all_time} = {work / (now or 1):.1%}"
        return (
            ("goodput so far", so_far if now else "no time has passed"),
            ("goodput in the end",
             f"{self.job.goodput:.1%}, with {counted(self.job.lost, 'piece')} done twice"),
        )  # fmt: skip

    def caption(self, step: int) -> str:
        if not step:
            return "The job begins: 20 pieces of work, 6 minutes each. Nothing is saved yet."
        (done, saved), last = self.job.after(step), self.trace[step - 1]
        if last.until == self.job.failed_s and last.what in ("update", "save"):
            return f"A node dies: {done - saved} of the {done} pieces done so far are not saved."
        if last.what != "update":
            place = f"the checkpoint after piece {saved}" if saved else "the very beginning"
            return _ENDED[last.what].format(pieces=counted(saved, "piece"), place=place)
        again = " for the second time" if last.label == "again" else ""
        return f"Piece {last.part} is done{again}; {saved or 'nothing'} saved so far."
