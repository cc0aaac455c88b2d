"""The story of chapter 11 that a learner steps through."""

from course_lib.chapters.ch11_pipelines.panels import SCHEDULE_NAMES
from course_lib.figures.engines.cells import Cell, Cells
from course_lib.figures.engines.lanes import Lanes
from course_lib.figures.engines.page import page
from course_lib.figures.paper.drawing import Drawing, counted
from course_lib.panels.controls import choice, whole
from course_lib.panels.panel import Rows
from course_lib.panels.stepper import Stepper, Story
from course_lib.theory.pipelines.simulation import pipeline_trace, timeline
from course_lib.trace import Event

_CHUNKS = 2  # of the interleaved schedule
_NARROW = 1 / 60  # of the whole width: a shorter pass has no room for its number
_HELD = "Each stage sends what it has just made, and holds the activations of these micro-batches."
_TITLES = {
    "naive": "One after another",
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved 1F1B",
    "zb1p": "Zero bubble, ZB-H1",
    "zbv": "Zero bubble, ZB-V",
    "dualpipe": "DualPipe",
}
_SPACE = Cell(slots=0)  # space that a wider cell extends into
_RUNS, _HOLDS, _MOST = "runs", "holds", "now, most"


def schedule(name: str = "1f1b", stages: int = 4, micro_batches: int = 8) -> Stepper:
    """Step through a schedule, from pass to pass; a backward takes as long as two forwards.

    Raises ValueError for starting values outside the controls or that do not fit the schedule.
    """
    controls = {
        "name": choice("schedule", name, SCHEDULE_NAMES),
        "stages": whole("stages", stages, 2, 6),
        "micro_batches": whole("micro-batches", micro_batches, 1, 12),
    }
    return Stepper(controls, _Schedule)


class _Schedule(Story):
    """Passes so far, above what each stage runs, sends and holds; later chunks are lighter."""

    def __init__(self, name: str, stages: int, micro_batches: int) -> None:
        chunks = _CHUNKS if name == "interleaved" else 1
        self.line = timeline(name, stages, micro_batches, chunks)
        self.trace, self.end = pipeline_trace(self.line), self.line.makespan
        self.times = self.trace.times
        self.stages, self.micro_batches = range(stages), micro_batches
        self.visits = self.line.schedule.visits
        self.levels = [self.trace.levels(stage) for stage in self.stages]
        tasks = self.trace.lanes("stage {0.who}".format)
        shortest = min(event.until - event.at for row in tasks.values() for event in row)
        numbered = shortest >= _NARROW * self.end
        self.passes = {
            row: [_shade(event, numbered) for event in tasks[row]]
            for row in sorted(tasks, key=lambda row: tasks[row][0].who)
        }

    def counts(self, stage: int, now: float) -> tuple[float, float]:
        """Micro-batches held by a stage now and at most so far; a chunk counts as a fraction."""
        sizes = [size / self.visits for time, size in self.levels[stage] if time <= now] or [0.0]
        return sizes[-1], max(sizes)

    def picture(self, step: int) -> Drawing:
        now = self.times[step]
        lanes = Lanes(
            self.passes,
            now=now,
            over=(0.0, self.end),
            high=min(22.0, 168 / len(self.stages)),
            ground=True,
            told=lambda time: f"{time:.4g}",
        )
        held, row = self.trace.held(now), "stage {}".format
        wires = {
            "sends ↓": [e for e in self.now(step) if e.to is not None and e.to > e.who],
            "sends ↑": [e for e in self.now(step) if e.to is not None and e.to < e.who],
        }
        grid = {}
        for stage in self.stages:
            filled = {
                batch + self.micro_batches * min(chunk, self.visits - 1): (batch, chunk)
                for batch, chunk in held[stage]
            }
            slots = Cell(
                "",
                {slot: _later("activations", chunk) for slot, (_, chunk) in filled.items()},
                self.micro_batches * self.visits,
                self.micro_batches,
                {slot: str(batch) for slot, (batch, _) in filled.items()},
                wide=4,
            )
            count, most = self.counts(stage, now)
            grid[row(stage)] = {
                **{name: Cell(_sent_labels(stage, sent), slots=0) for name, sent in wires.items()},
                _RUNS: self._runs(stage, now),
                "": _SPACE,
                _HOLDS: slots,
                **{" " * column: _SPACE for column in (1, 2, 3)},
                _MOST: Cell(f"{count:.3g}, {most:.3g}", slots=0, bold=True),
            }
        arrows = [
            ((row(e.who), name), (row(e.to), name))
            for name, sent in wires.items()
            for e in sent
            if not _far(e)
        ]
        batches = counted(self.micro_batches, "micro-batch")
        title = f"{_TITLES[self.line.schedule.name]}: {len(self.stages)} stages, {batches}"
        cells = Cells(grid, arrows=arrows, high=16, gap=6, between=13, lined=True, note=_HELD)
        return page(title, lanes, cells, key=())

    def _runs(self, stage: int, now: float) -> Cell:
        passes = [_shade(e) for e in self.trace.running(now) if e.who == stage]
        if not passes:
            return Cell("waits" if now < self.end else "done", {0: "idle"}, wide=2)
        filled = {index: event.what for index, event in enumerate(passes)}
        names = [event.what.removeprefix("later ") for event in passes]
        if len(passes) == 1:
            return Cell(f"{names[0]} {passes[0].label}", filled, wide=2)
        letters = [f"{name[0].upper()} {e.label}" for name, e in zip(names, passes, strict=True)]
        return Cell("", filled, len(passes), texts=dict(enumerate(letters)), wide=2)

    def rows(self, step: int) -> Rows:
        now = self.times[step]
        counts = zip(*(self.counts(stage, now) for stage in self.stages), strict=True)
        held, most = (", ".join(f"{count:g}" for count in each) for each in counts)
        busy = {event.who for event in self.trace.running(now)}
        idle = len(self.stages) - len(busy) if now < self.end else 0
        return (
            ("held now", f"{held} micro-batches, from stage 0 on"),
            ("most so far", f"{most} micro-batches, from stage 0 on"),
            ("waiting now", f"{idle} of {counted(len(self.stages), 'stage')}"),
        )

    def caption(self, step: int) -> str:
        """What each stage is doing now."""
        now = self.times[step]
        time = f"After {now:.4g} of {self.end:.4g} units"
        if now == self.end:
            return f"{time}: the last backward pass is over, and nothing is held any more."
        running, doing = self.trace.running(now), dict[str, list[str]]()
        for stage in self.stages:
            whats = [event.what for event in running if event.who == stage]
            does = "forward and backward together" if len(whats) > 1 else "".join(whats)
            doing.setdefault(does, []).append(str(stage))
        idle = doing.pop("", [])
        words = [f"{what} on {_stage_names(stages)}" for what, stages in doing.items()]
        if idle:
            words.append(f"{_stage_names(idle)} wait{'s' * (len(idle) == 1)}")
        return f"{time}: {'; '.join(words)}."


def _sent_labels(stage: int, sent: list[Event]) -> str:
    """Labels of what a stage sends; receivers without an arrow, not being neighbours, are named."""
    own = [event for event in sent if event.who == stage]
    far = {f"to {event.to}" for event in own if _far(event)}
    return " ".join([", ".join(event.label for event in own), *far])


def _far(event: Event) -> bool:
    return abs((event.to or 0) - event.who) > 1


def _later(word: str, chunk: int) -> str:
    return f"later {word}" if chunk else word


def _shade(event: Event, numbered: bool = True) -> Event:
    """The event drawn lighter if its chunk is a later one, and without number if not `numbered`."""
    _, chunk = event.part
    return event._replace(what=_later(event.what, chunk), label=event.label * numbered)


def _stage_names(stages: list[str]) -> str:
    return f"stage{'s' * (len(stages) > 1)} {', '.join(stages)}"
