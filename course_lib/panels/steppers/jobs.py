"""Stories of whole jobs: Llama 3's GPUs, who talks to whom, a pipeline, a node that dies."""

from dataclasses import replace

from course_lib import figures
from course_lib.figures.engines.cells import Cell, Cells
from course_lib.figures.engines.lanes import Lanes, Levels
from course_lib.figures.engines.page import page
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.text import counted
from course_lib.panels.controls import choice, listed, whole
from course_lib.panels.panel import Rows
from course_lib.panels.pipeline_panel import SCHEDULE_NAMES
from course_lib.panels.stepper import Stepper
from course_lib.panels.story import Story
from course_lib.theory.inputs.cluster import Cluster
from course_lib.theory.inputs.hardware import accelerator
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.published import LLAMA3_405B
from course_lib.theory.inputs.units import format_bytes, format_duration
from course_lib.theory.memory.states import local_parameters
from course_lib.theory.network.mesh import place
from course_lib.theory.network.who_talks import Talk, who_talks
from course_lib.theory.pipelines.moments import pipeline_trace
from course_lib.theory.pipelines.simulation import timeline
from course_lib.theory.step import failing_job as theory
from course_lib.theory.step.failing_job import JobCosts
from course_lib.trace import Event, Trace

# --- Llama 3 405B's 16,384 GPUs, and the groups of one of them ------------------------------------

_TITLE = "Llama 3 405B on 16,384 GPUs"
_LIT = {
    "one": "One GPU has {gpu} of memory. The model does not fit.",
    "tp": "So {tp} GPUs of one computer share every matrix, and add up their partial results in "
    "each layer.",
    "pp": "{pp} groups hold the {layers} layers, a few each, and pass their results on.",
    "copy": "{tp} × {pp} = {copy} GPUs hold one copy of the model.",
    "dp": "{dp} copies read different texts. After each update all must have the same weights.",
    "groups": "So each GPU talks in three directions, and most bytes go the shortest way.",
    "all": "All {world:,} GPUs work on each update together, and wait for the slowest.",
}


def block() -> Stepper:
    """Seven steps from one GPU to all; layout and model as published (arXiv:2407.21783)."""
    return Stepper({}, _Block)


class _Block(Story):
    def __init__(self) -> None:
        talks = who_talks(LLAMA3_405B)
        self.trace, self.steps = _trace(talks, 0), _block_steps(talks)
        self.count = len(self.steps)

    def picture(self, step: int) -> Drawing:
        lit, _, fact = self.steps[step]
        return figures.block_step(LLAMA3_405B.layout, lit, _TITLE, fact)

    def caption(self, step: int) -> str:
        return self.steps[step][1]

    def result(self, step: int) -> tuple[str, tuple[str, str]]:
        """What is lit, and the fact."""
        lit, _, fact = self.steps[step]
        return lit, fact


def _block_steps(talks: tuple[Talk, ...]) -> list[tuple[str, str, tuple[str, str]]]:
    """What is lit, one sentence, and a number with its meaning, for each step."""
    job, layout, shape = LLAMA3_405B, LLAMA3_405B.layout, LLAMA3_405B.shape
    sent = {axis: format_bytes(_sent(talks, axis), digits=0) for axis in ("tp", "pp", "dp", "")}
    groups = {talk.message.axis: len(talk.group) for talk in talks}
    tp, pp, dp = (groups[axis] for axis in ("tp", "pp", "dp"))
    weights, held = shape.parameters().total, local_parameters(shape, layout, 1).total
    gpu = format_bytes(job.cluster.accelerator.memory_bytes, digits=0)
    facts = {
        "one": (
            format_bytes(weights * job.recipe.weight_bytes, digits=0),
            "for the weights alone, before anything that training adds",
        ),
        "tp": (sent["tp"], f"each of the {tp} sends in one update, over the fast links inside"),
        "pp": (sent["pp"], "each GPU sends to its neighbours in one update, over the network"),
        "copy": (
            f"{held / 1e9:.1f} billion",
            f"of {weights / 1e9:.0f} billion weights are on a GPU",
        ),
        "dp": (sent["dp"], "of gradients and weights each GPU sends in one update"),
        "groups": (sent[""], "each GPU sends in one update, in all"),
        "all": (
            f"{job.tokens_per_update / 1e6:.1f} million",
            "tokens of text are read in one update",
        ),
    }
    sizes = {"gpu": gpu, "tp": tp, "pp": pp, "dp": dp, "copy": tp * pp, "world": layout.world}
    sizes["layers"] = shape.layers
    return [(lit, _LIT[lit].format(**sizes), fact) for lit, fact in facts.items()]


def _trace(talks: tuple[Talk, ...], rank: int) -> Trace:
    """An event of `rank` in each turn, with all bytes that it sends in an update."""
    turns = enumerate(talk.message for talk in talks)
    return Trace(
        Event(turn, rank, it.operation, it.what, bytes=round(it.total_bytes), label=it.axis)
        for turn, it in turns
    )


def _sent(talks: tuple[Talk, ...], axis: str = "") -> float:
    return sum(it.message.total_bytes for it in talks if axis in ("", it.message.axis))


# --- who talks to whom, message by message of one update ------------------------------------------

_MOST_NAMED = 8
_SLOTS = 100  # of the widest bar
_UPDATE = Layout(accumulation=8, zero_stage=1)
# By what the list of choices says: the model, and how its ranks stand.
_BLOCKS = {
    "tp 2 × dp 4 × pp 2": ("llama2-70b", replace(_UPDATE, tp=2, dp=4, pp=2)),
    "tp 8 × dp 4 × pp 4": ("llama2-70b", replace(_UPDATE, tp=8, dp=4, pp=4)),
    "tp 4 × cp 2 × dp 2 × pp 4": ("llama2-70b", replace(_UPDATE, tp=4, cp=2, dp=2, pp=4)),
    "tp 2 × dp 8 × pp 2, ep 4": ("mixtral-8x7b", replace(_UPDATE, tp=2, dp=8, pp=2, ep=4)),
}
_AXES = {
    "tp": "tensor (tp)",
    "cp": "context (cp)",
    "ep": "expert (ep)",
    "dp": "data (dp)",
    "pp": "pipeline (pp)",
}
_WHEN = {
    ("tp", "activations"): "in every layer, and the next matrix waits",
    ("cp", "activations"): "in every layer, while attention computes with what is here",
    ("cp", "gradients"): "in every layer of the backward pass",
    ("ep", "activations"): "in every layer with experts",
    ("pp", "activations"): "after the last layer of a stage, for each micro-batch",
    ("pp", "gradients"): "on the way back, for each micro-batch",
    ("dp", "gradients"): "once, at the end",
    ("dp", "parameters"): "after the update",
}


def talks(block: str = "tp 2 × dp 4 × pp 2", rank: int = 0) -> Stepper:
    """The messages of `who_talks` for one rank: LLaMA-2 70B, or Mixtral where there are experts.

    Raises ValueError for starting values that are not offered.
    """
    controls = {
        "block": choice("block", block, list(_BLOCKS)),
        "rank": whole("rank", rank, 0, 15),
    }
    return Stepper(controls, _Talks)


class _Talks(Story):
    """Every rank as a cell, stages side by side; those who talk at the same time in one shade."""

    def __init__(self, block: str, rank: int) -> None:
        name, layout = _BLOCKS[block]
        self.cluster = Cluster(accelerator("H100-SXM"), nodes=layout.world // 8)
        self.job = Job(MODELS[name], layout=layout, cluster=self.cluster, sequence=4096)
        self.rank, self.talks = rank, who_talks(self.job, rank)
        self.trace = _trace(self.talks, rank)

    def picture(self, step: int) -> Drawing:
        talk = self.talks[step]
        message, layout = talk.message, self.job.layout
        wire = "inside a node" if talk.nodes == 1 else "over the network"
        told = f"{message.count} × {format_bytes(message.sent_bytes)} from each GPU, {wire}"
        if message.operation == "send-recv":
            told += f", to the {'previous' if message.kind == 'gradients' else 'next'} stage"
        group = {rank: number for number, its in enumerate(talk.groups) for rank in its}
        per_node, many = self.cluster.gpus_per_node, layout.tp * layout.pp > 16
        grid: dict[str, dict[str, Cell]] = {}
        for rank in range(layout.world):
            at = place(layout, rank)
            row = f"dp {at['dp']}" + (f", cp {at['cp']}" if layout.cp > 1 else "")
            word = f"later {message.axis}" if group.get(rank, 1) % 2 == 0 else "others"
            cell = Cell(
                str(rank),
                {0: message.axis if rank in talk.group else word},
                frame="own node" if rank // per_node == self.rank // per_node else "",
                bold=rank == self.rank,
            )
            tp = at["tp"] if many else f"tp {at['tp']}"
            grid.setdefault(row, {})[f"stage {at['pp']}\n{tp}"] = cell
        title = f"{_AXES[message.axis]}: {message.operation} of {in_words(message.what)}"
        ranks = Cells(grid, high=min(28.0, 168.0 / len(grid) - 5),
                      gap=1.5 if many else 3, note=told)  # fmt: skip
        said = f"rank {self.rank} with {', '.join(map(str, talk.group))}, {wire}"
        return page(title, ranks, self._sums(step), key=(), notes=[_LEGEND.format(self.rank)],
                    sentence=f"{layout.world} ranks, {title}: {said}")  # fmt: skip

    def _sums(self, step: int) -> Cells:
        """Bytes of this GPU in an update by axis: sent so far, and what is to come in pale."""
        axes = dict.fromkeys(talk.message.axis for talk in self.talks)
        whole = {axis: _sent(self.talks, axis) for axis in axes}
        scale, grid = _SLOTS / max(whole.values()), {}
        for axis, size in whole.items():
            sent = _sent(self.talks[: step + 1], axis)
            filled = dict.fromkeys(range(max(1, round(size * scale))), "others")
            filled |= dict.fromkeys(range(max(sent > 0, round(sent * scale))), axis)
            text = f"{format_bytes(sent)} of {format_bytes(size)}"
            bar = Cell("", filled, _SLOTS, wide=2)
            grid[_AXES[axis]] = {"bytes": bar, " ": Cell(slots=0), "so far": Cell(text, slots=0)}
        return Cells(grid, high=12, heads=False, note="sent by this GPU in one update")

    def rows(self, step: int) -> Rows:
        talk, message = self.talks[step], self.talks[step].message
        often = "once" if message.count == 1 else f"{message.count:,} times"
        nodes = "inside one node" if talk.nodes == 1 else f"over {talk.nodes} nodes"
        return (
            ("one message", format_bytes(message.sent_bytes)),
            ("in an update", f"{often}, {format_bytes(message.total_bytes)}"),
            ("wire", f"{message.link.name}, {nodes}"),
        )

    def caption(self, step: int) -> str:
        message, others = self.talks[step].message, self._partners(self.talks[step])
        named = ", ".join(others[:_MOST_NAMED])
        if len(others) > _MOST_NAMED:
            named += f" and {len(others) - _MOST_NAMED} more"
        when = _WHEN[message.axis, message.kind]
        if message.place in ("embedding", "head"):
            when = "for each micro-batch"
        what = in_words(message.what)
        return f"{what[0].upper()}{what[1:]}: rank {self.rank} talks to {named} {when}."

    def _partners(self, talk: Talk) -> list[str]:
        """Whom a message goes to: the next or the previous stage, or the rest of the group."""
        message, own = talk.message, talk.group.index(self.rank)
        if message.axis == "pp" and message.operation == "send-recv":
            return [str(talk.group[own + (1 if message.kind == "activations" else -1)])]
        return [str(rank) for rank in talk.group if rank != self.rank]


_LEGEND = (
    "Full colour: the group of rank {}; equal shades side by side: other groups. Framed: its node."
)


def in_words(what: str) -> str:
    """The name of a message for a reader: embedding and head are the ends of the model."""
    return what.replace("of ends", "of embedding and head")


# --- a pipeline, and what each stage holds --------------------------------------------------------

_CHUNKS = 2  # of the interleaved schedule
_NARROW = 1 / 60  # a pass in which no number fits, of the whole width
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
_NOTHING = Cell(slots=0)  # under a cell that is wider
_RUNS, _HOLDS, _MOST = "runs", "holds", "now, most"


def schedule(name: str = "1f1b", stages: int = 4, micro_batches: int = 8) -> Stepper:
    """Every moment of a schedule at which a pass starts or ends; a backward takes two forwards.

    Raises ValueError for starting values outside the controls or a schedule that they do not fit.
    """
    controls = {
        "name": choice("schedule", name, SCHEDULE_NAMES),
        "stages": whole("stages", stages, 2, 6),
        "micro_batches": whole("micro-batches", micro_batches, 1, 12),
    }
    return Stepper(controls, _Schedule)


class _Schedule(Story):
    """Above what has run, below what each stage runs, sends and holds; later chunks lighter."""

    def __init__(self, name: str, stages: int, micro_batches: int) -> None:
        chunks = _CHUNKS if name == "interleaved" else 1
        self.line = timeline(name, stages, micro_batches, chunks)
        self.trace, self.end = pipeline_trace(self.line), self.line.makespan
        self.times = self.trace.times
        self.stages, self.micro_batches = range(stages), micro_batches
        self.visits = self.line.schedule.visits
        self.levels = [self.trace.levels(stage) for stage in self.stages]
        tasks = self.trace.lanes(_stage_of).values()
        shortest = min(event.until - event.at for its in tasks for event in its)
        numbered = shortest >= _NARROW * self.end
        self.passes = {
            _stage_of(its[0]): [_shade(event, numbered) for event in its]
            for its in sorted(tasks, key=lambda its: its[0].who)
        }

    def counts(self, stage: int, now: float) -> tuple[float, float]:
        """Micro-batches that a stage holds, and the most so far; a chunk is a part of one."""
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
                **{name: Cell(_letters(stage, its), slots=0) for name, its in wires.items()},
                _RUNS: self._runs(stage, now),
                "": _NOTHING,
                _HOLDS: slots,
                **{" " * place: _NOTHING for place in (1, 2, 3)},
                _MOST: Cell(f"{count:.3g}, {most:.3g}", slots=0, bold=True),
            }
        arrows = [
            ((row(e.who), name), (row(e.to), name))
            for name, its in wires.items()
            for e in its
            if not _far(e)
        ]
        several = "es" if self.micro_batches > 1 else ""
        sizes = f"{len(self.stages)} stages, {self.micro_batches} micro-batch{several}"
        title = f"{_TITLES[self.line.schedule.name]}: {sizes}"
        cells = Cells(grid, arrows=arrows, high=16, gap=6, between=13, lined=True, note=_HELD)
        return page(title, lanes, cells, key=())

    def _runs(self, stage: int, now: float) -> Cell:
        its = [_shade(e) for e in self.trace.running(now) if e.who == stage]
        if not its:
            return Cell("waits" if now < self.end else "done", {0: "idle"}, wide=2)
        filled = {place: event.what for place, event in enumerate(its)}
        names = [event.what.removeprefix("later ") for event in its]
        if len(its) == 1:
            return Cell(f"{names[0]} {its[0].label}", filled, wide=2)
        letters = [f"{name[0].upper()} {e.label}" for name, e in zip(names, its, strict=True)]
        return Cell("", filled, len(its), texts=dict(enumerate(letters)), wide=2)

    def rows(self, step: int) -> Rows:
        now = self.times[step]
        held, most = zip(*(self.counts(stage, now) for stage in self.stages), strict=True)
        busy = {event.who for event in self.trace.running(now)}
        idle = len(self.stages) - len(busy) if now < self.end else 0
        return (
            ("held now", _each(held)),
            ("most so far", _each(most)),
            ("waiting now", f"{idle} of {counted(len(self.stages), 'stage')}"),
        )

    def caption(self, step: int) -> str:
        """What starts, and what has just been freed."""
        now = self.times[step]
        time = f"After {now:.4g} of {self.end:.4g} units"
        if now == self.end:
            return f"{time}: the last backward pass is over, and nothing is held any more."
        running: dict[int, list[str]] = {stage: [] for stage in self.stages}
        for event in self.trace.running(now):
            running[event.who].append(event.what)
        doing: dict[str, list[str]] = {}
        for stage, whats in running.items():
            does = "forward and backward together" if len(whats) > 1 else "".join(whats)
            doing.setdefault(does, []).append(str(stage))
        idle = doing.pop("", [])
        words = [f"{what} on {_named(stages)}" for what, stages in doing.items()]
        if idle:
            words.append(f"{_named(idle)} wait{'s' * (len(idle) == 1)}")
        return f"{time}: {'; '.join(words)}."


def _letters(stage: int, sent: list[Event]) -> str:
    """What a stage sends; an arrow goes to a neighbour, words say who else gets it."""
    its = [event for event in sent if event.who == stage]
    far = {f"to {event.to}" for event in its if _far(event)}
    return " ".join([", ".join(event.label for event in its), *far])


def _far(event: Event) -> bool:
    return abs((event.to or 0) - event.who) > 1


def _stage_of(event: Event) -> str:
    return f"stage {event.who}"


def _later(word: str, chunk: int) -> str:
    return f"later {word}" if chunk else word


def _shade(event: Event, numbered: bool = True) -> Event:
    """Passes of later chunks are lighter."""
    _, chunk = event.part
    return event._replace(what=_later(event.what, chunk), label=event.label * numbered)


def _each(counts: tuple[float, ...]) -> str:
    return f"{', '.join(f'{count:g}' for count in counts)} micro-batches, from stage 0 on"


def _named(stages: list[str]) -> str:
    return f"stage{'s' * (len(stages) > 1)} {', '.join(stages)}"


# --- a job that saves, loses a node, and resumes --------------------------------------------------

# A save of a minute, and ten minutes until all ranks train again: five until Slurm gives a silent
# node up (SlurmdTimeout), two for which it holds a requeued job back, three to start.
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
    """Two hours of work in 20 pieces of 6 minutes. Raises ValueError for other starting values."""
    options = {f"{every_ * 6}": every_ for every_ in _EVERY}
    controls = {
        "every": listed("save every", every, options, "min"),
        "fails_after": whole("fails after", fails_after, 1, _UPDATES - 1, "pieces"),
    }
    return Stepper(controls, _Failing)


class _Bar(Lanes):
    """Saves are in their colour before they come: how much may be lost is seen at once."""

    def later(self, time: float) -> bool:
        saves = {event.at for its in self.rows.values() for event in its if event.what == "save"}
        return super().later(time) and time not in saves


class _Failing(Story):
    """A step is what has happened after so many events."""

    def __init__(self, every: int, fails_after: int) -> None:
        self.job = theory.failing_job(_UPDATES, every, fails_after, _COSTS)
        self.trace, self.count = self.job.trace, len(self.job.trace) + 1

    def clock(self, step: int) -> tuple[float, float]:
        """Time that has passed, and how much of it was work that is still there."""
        done, _ = self.job.after(step)
        return self.trace[step - 1].until if step else 0.0, done * _COSTS.update_s

    def picture(self, step: int) -> Drawing:
        now, work = self.clock(step)
        over, failed = (0.0, self.job.total_s), self.job.failed_s
        spans = []
        for number, event in enumerate(self.trace):
            if number >= step:  # what begins now is still to come
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
