"""Stories of copies of a model that train together: ZeRO, DDP's buckets, a parameter server."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from course_lib.figures.engines.cells import Cell, Cells
from course_lib.figures.engines.lanes import Lanes
from course_lib.figures.engines.page import page
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.text import counted
from course_lib.panels.controls import choice, flag, listed, whole
from course_lib.panels.panel import Rows
from course_lib.panels.stepper import Stepper
from course_lib.panels.story import Story
from course_lib.theory.inputs.hardware import Link
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.network.bucket_timeline import Gradient, ddp_timeline
from course_lib.theory.stories import copies as told
from course_lib.trace import FREE, Event, Held, Holdings

# --- ZeRO -----------------------------------------------------------------------------------------

_LAYERS, _LAYER_PARAMETERS = 3, 600_000_000  # a multiple of every number of ranks
_HIGH = {"weights": 10.0, "gradients": 10.0, "states": 50.0}


def zero(stage: int = 2, ranks: int = 4) -> Stepper:
    """One training step of three layers. Raises ValueError for values outside the sliders."""
    controls = {
        "stage": choice("stage", stage, (0, 1, 2, 3)),
        "ranks": whole("ranks", ranks, 2, 6),
    }
    return Stepper(controls, _Zero)


# By what happens, in a word.
_TITLES = {
    "begin": "Before the step",
    "gather": "All-gather of {layer}",
    "forward": "Forward pass of {layer}",
    "free": "{Layer} is thrown away, except each rank's own part",
    "backward": "Backward pass of {layer}",
    "all-reduce": "All-reduce of the gradients of {layer}",
    "reduce-scatter": "Reduce-scatter of the gradients of {layer}",
    "update": "Update",
    "publish": "All-gather of the new weights of {layer}",
}
_CAPTIONS = {
    "begin": "In stage {stage} each rank keeps {kept}. No gradients yet.",
    "gather": "Every rank gets all parts of {layer}: whole weights, for a moment (yellow).",
    "forward": "Each rank computes {layer} on its own samples, with whole weights.",
    "free": "The output of {layer} is there: each rank throws away what is not its own part.",
    "backward": "Each rank has the gradient of {layer} from its own samples.",
    "all-reduce": "Every rank gets the whole sum of the gradients of {layer}.",
    "reduce-scatter": "Each rank gets its own part of {layer}'s summed gradient; {freed}.",
    "update": "{updates}; the gradients may go.",
    "publish": "Every rank gets the new weights of {layer} from their owners.",
}
# By what happens and to what: the frame of its layer's cells.
_FRAMES = {
    ("forward", "weights"): "forward",
    ("backward", "weights"): "backward",
    **dict.fromkeys([("gather", "weights"), ("publish", "weights")], "messages"),
    **dict.fromkeys([("all-reduce", "gradients"), ("reduce-scatter", "gradients")], "messages"),
}


class _Exchange(Cells):
    """Arrows between neighbours stand for those of all pairs: the sentence does not name them."""

    @property
    def sentence(self) -> str:
        return self.said


class _Zero(Story):
    """A column for each rank; states take six times the height of weights, as of bytes."""

    def __init__(self, stage: int, ranks: int) -> None:
        self.ranks, self.trace = ranks, told.zero_steps(_LAYER_PARAMETERS, _LAYERS, ranks, stage)
        # The second half of an all-reduce belongs to its step.
        self.times = tuple(time for time in self.trace.times if time % 1 == 0)
        some, rest = "all weights and its part of the optimizer", "the rest is thrown away"
        own = "Each rank updates its own part only"
        self.words = {
            "stage": stage,
            "kept": ("everything", some, some, "its part of everything")[stage],
            "freed": (rest, rest, rest, "the rest and the whole weights go")[stage],
            "updates": ("Every rank makes the same update of everything", own, own, own)[stage],
        }

    def what(self, step: int) -> tuple[str, int]:
        """In a word what happens, and to which layer."""
        now = self.now(step)
        event = next((one for one in now if one.to is not None), now[0])
        if not step or event.what in ("forward", "backward", "update"):
            return event.what if step else "begin", event.part if step and event.part else 0
        kind, layer, _ = event.part
        made = {"gathered": "gather", "gradients": event.label, "weights": "publish"}
        return "free" if event.what == FREE else made[kind], layer

    def held(self, step: int) -> Holdings:
        return self.trace.held(self.times[step] + 0.5)

    def total(self, step: int) -> int:
        return sum(part.bytes for part in self.held(step)[0].values())

    def sent(self, step: int) -> int:
        sent = self.trace.sent(0, until=self.times[step] + 0.5)
        return sum(total.size_bytes for total in sent.values())

    def say(self, step: int, table: Mapping[str, str]) -> str:
        what, at = self.what(step)
        return table[what].format(layer=f"layer {at + 1}", Layer=f"Layer {at + 1}", **self.words)

    def picture(self, step: int) -> Drawing:
        what, layer = self.what(step)
        held, ranks = self.held(step), [f"rank {rank}" for rank in range(self.ranks)]
        grid: dict[str, dict[str, Cell]] = {}
        high: dict[str, float] = {}
        for kind, points in _HIGH.items():
            if grid:
                grid[" " * len(grid)] = {}  # a gap
            for its in range(_LAYERS):
                name = f"{'optimizer' if kind == 'states' else kind} {its + 1}"
                frame = _FRAMES.get((what, kind), "") if its == layer else ""
                high[name] = points
                grid[name] = {
                    name: self.cell(held[rank], rank, (kind, its))._replace(frame=frame)
                    for rank, name in enumerate(ranks)
                }
        total = format_bytes(self.total(step), digits=1)
        grid["a rank holds"] = {rank: Cell(total, slots=0, bold=True) for rank in ranks}
        bold = [f"{kind} {layer + 1}" for kind in ("weights", "gradients")]
        moving = [row for row, its in grid.items() if its and its[ranks[0]].frame == "messages"]
        sums = dict.fromkeys(("weights", "gathered", "gradients", "states"), 0)
        for (kind, _, _), part in held[0].items():
            sums[kind] += part.bytes
        said = ", ".join(f"{format_bytes(size)} of {kind}" for kind, size in sums.items())
        said = (
            f"each of {self.ranks} ranks holds {said} and has sent {format_bytes(self.sent(step))}"
        )
        cells = _Exchange(
            grid,
            arrows=[
                ((row, one), (row, other))
                for row in moving
                for a, b in pairwise(ranks)
                for one, other in ([(a, b), (b, a)] if self.ranks > 2 else [(a, b)])
            ],
            high=high,
            bold=[] if what in ("begin", "update") else bold,
            gap=18,
            between=1.5,
            said=said,
        )
        notes = ["dots: weights of after the update; green: between all ranks, and what has come"]
        key = ("weights", "gathered", "own gradients", "summed gradients", "states", "update")
        return page(self.say(step, _TITLES), cells, notes=notes, key=key)

    def cell(self, held: Mapping[Any, Held], rank: int, of: tuple[str, int]) -> Cell:
        """What a rank holds of a kind and layer, each slice in its place."""
        own = {part: held[*of, part] for part in range(self.ranks) if (*of, part) in held}
        kind, layer = of
        filled = {part: kind for part in own}
        if kind == "gradients":
            filled = {
                p: f"{'own' if its.of == (rank,) else 'summed'} {kind}" for p, its in own.items()
            }
        if kind == "weights":
            gathered = {part for whole, at, part in held if (whole, at) == ("gathered", layer)}
            filled = dict.fromkeys(gathered, "gathered") | filled
        dots = [part for part, its in own.items() if its.label and kind == "weights"]
        return Cell("", filled, self.ranks, dots=dots)

    def rows(self, step: int) -> Rows:
        most = max(map(self.total, range(step + 1)))
        return (
            ("most held so far", format_bytes(most)),
            ("sent so far", f"{format_bytes(self.sent(step))} by each rank"),
        )

    def caption(self, step: int) -> str:
        return self.say(step, _CAPTIONS)


# --- DDP's buckets --------------------------------------------------------------------------------

_LINK = Link("4 GB/s", bytes_per_s=4e9, latency_s=1e-4)
# 5 ms of backward for each; the embedding, which is the head as well, is ready at the very end.
_CHAIN = (
    *(Gradient(f"layer {number}", 10_000_000, 0.005) for number in range(6, 0, -1)),
    Gradient("embedding", 20_000_000, 0.005),
)


def buckets(bucket_mb: int = 20, ranks: int = 8, overlap: bool = True) -> Stepper:
    """One backward pass of DDP: gradients fill buckets, which leave while backward goes on.

    Raises ValueError for starting values that are not offered.
    """
    controls = {
        "bucket_mb": listed("bucket", bucket_mb, {str(mb): mb for mb in (10, 20, 40, 80)}, "MB"),
        "ranks": listed("ranks", ranks, {str(count): count for count in (2, 8, 64)}),
        "overlap": flag("overlap", overlap),
    }
    return Stepper(controls, _Buckets)


class _Buckets(Story):
    """A step for each gradient that is ready and each bucket that leaves or arrives."""

    def __init__(self, bucket_mb: int, ranks: int, overlap: bool) -> None:
        cap = 1_000_000 * bucket_mb
        self.line = ddp_timeline(
            _CHAIN, ranks, _LINK, cap_bytes=cap, first_bytes=cap, overlap=overlap
        )
        self.trace = told.bucket_steps(self.line)
        # At one time a gradient is ready before a bucket arrives, and the next one leaves last.
        backward = [event for event in self.trace if event.what == "backward"]
        self.sent = [event for event in self.trace if event.what != "backward"]
        changes = [(one.until, 0, "ready", one) for one in backward]
        changes += [(one.until, 1, "arrives", one) for one in self.sent]
        changes += [(one.at, 2, "leaves", one) for one in self.sent]
        self.changes = sorted(changes, key=lambda change: (*change[:2], change[3].at))
        self.gradients, self.count = backward, len(self.changes) + 1

    def at(self, step: int) -> float:
        return self.changes[step - 1][0] if step else 0.0

    def past(self, step: int, what: str) -> list[Event]:
        return [event for _, _, its, event in self.changes[:step] if its == what]

    def word(self, gradient: Event, step: int) -> dict[int, str]:
        """Not there, of this rank alone, or the mean."""
        if gradient not in self.past(step, "ready"):
            return {}
        back = [event.part for event in self.past(step, "arrives")]
        return {0: "mean gradients" if gradient.part[0] in back else "own gradients"}

    def picture(self, step: int) -> Drawing:
        now, ready = self.at(step), self.past(step, "ready")
        computing = self.gradients[len(ready)] if len(ready) < len(self.gradients) else None
        working = ["layers", computing.label] if computing else ()
        layers = {
            one.label: Cell("", self.word(one, step), frame="backward" if one is computing else "")
            for one in reversed(self.gradients)
        }
        back, left = len(self.past(step, "arrives")), len(self.past(step, "leaves"))
        said = (
            f"{len(ready)} of {len(self.gradients)} gradients are ready; of "
            f"{counted(len(self.sent), 'bucket')} {back} are back with the mean, and "
            f"{left - back} on the link"
        )
        return page(
            f"{1000 * now:.3g} ms after the start of the backward pass",
            Cells({"layers": layers}, high=24, said=said, bold=working),
            Cells(
                {"buckets": self.containers(step)},
                high=24,
                heads=False,
                below=True,
                lined=True,
                said=" ",
            ),
            self.clock(step),
            key=("own gradients", "mean gradients", "messages", "late"),
        )

    def containers(self, step: int) -> dict[str, Cell]:
        """A cell for each bucket, as wide as its bytes, with slots for its gradients."""
        cells: dict[str, Cell] = {}
        for sent in self.sent:
            words: list[str] = []
            for gradient in self.gradients:
                if gradient.part[0] == sent.part:
                    size = self.line.gradients[gradient.part[1]].size_bytes // _UNIT
                    words += [self.word(gradient, step).get(0, "")] * size
            filled = {slot: word for slot, word in enumerate(words) if word}
            state = self.state(sent, step, len(filled), len(words))
            frame = "messages" if state == "on the link" else ""
            name = f"{sent.part + 1}: " if len(words) < 3 else f"bucket {sent.part + 1}: "
            # A column for each 10 MB; the cell lies over all of its own.
            place = len(cells)
            cells[f"{place}"] = Cell(name + state, filled, len(words), wide=len(words), frame=frame)
            cells |= {f"{place + more}": Cell(slots=0) for more in range(1, len(words))}
        return cells

    def state(self, sent: Event, step: int, ready: int, all_: int) -> str:
        if sent in self.past(step, "arrives"):
            return "the mean"
        if sent in self.past(step, "leaves"):
            return "on the link"
        return "full, waits" if ready == all_ else "filling" if ready else "empty"

    def clock(self, step: int) -> Lanes:
        """Backward and the link on one scale of time, as far as it has passed."""
        now, end = self.at(step), self.line.backward_s
        begun = [
            event for event in self.trace if event.at < now or event in self.past(step, "leaves")
        ]
        rows: dict[str, list[Event]] = {"backward": [], "link": [], "exposed": []}
        for event in begun:
            row = "backward" if event.what == "backward" else "link"
            short = event.label.removeprefix("layer ").replace("embedding", "emb.")
            short = short or f"bucket {event.part + 1}"
            until = min(event.until, now)
            rows[row].append(event._replace(end=until, label=short))
        if now > end:
            label = f"{1000 * (now - end):.3g} ms"
            rows["exposed"].append(Event(end, 0, "late", end=now, label=label))
        return Lanes(rows, over=(0.0, self.line.end_s), now=now, told=_ms)

    def rows(self, step: int) -> Rows:
        exposed = f", {1000 * self.line.exposed_s:.1f} ms of it exposed"
        end = exposed if step == self.count - 1 else ""
        link = f"{_LINK.name}, {1e6 * _LINK.latency_s:.0f} µs a message; backward 35 ms"
        time = f"{1000 * self.line.communication_s:.1f} ms of link time in all"
        return (("communication", time + end), ("link", link))

    def caption(self, step: int) -> str:
        if not step:
            return "The loss is known. Backward begins at the last layer; no gradient is there yet."
        at_s, _, what, event = self.changes[step - 1]
        if what == "ready":
            bucket, place = event.part
            following = self.gradients[place + 1 : place + 2]
            is_full = not following or following[0].part[0] > bucket
            full = ", which is full now" if is_full else ""
            text = f"The gradient of {event.label} is ready and goes into bucket {bucket + 1}"
            return f"{text}{full}."
        name = f"Bucket {event.part + 1}"
        if what == "leaves":
            meanwhile = "with nothing left to hide behind"
            if at_s < self.line.backward_s:
                meanwhile = "while backward goes on"
            size = format_bytes(event.bytes, digits=0)
            return f"{name} leaves: an all-reduce of {size}, {meanwhile}."
        end = "The optimizer may begin." if event is self.sent[-1] else ""
        return f"{name} is back, with the mean over all ranks. {end}".strip()

    def result(self, step: int) -> object:
        """The priced timeline as well."""
        return self.line, step


_UNIT = 10_000_000  # bytes: what all sizes here are multiples of


def _ms(time_s: float) -> str:
    return f"{1000 * time_s:.3g} ms" if time_s else "0"


# --- a parameter server ---------------------------------------------------------------------------

_UNTIL_S = 0.16
_BOUNDS = {"together": 0, "at most 1 ahead": 1, "at most 2 ahead": 2, "nobody waits": None}


def served(rule: str = "nobody waits", slow_ms: int = 125) -> Stepper:
    """Three trainers pull rows from a server and push gradients to it.

    Raises ValueError for starting values that are not offered.
    """
    controls = {
        "rule": choice("who waits", rule, list(_BOUNDS)),
        "slow_ms": listed("trainer 2 takes", slow_ms, {str(ms): ms for ms in (30, 60, 125)}, "ms"),
    }
    return Stepper(controls, _Served)


class _Served(Story):
    """A step for each event; of two at one time the first told comes first."""

    def __init__(self, rule: str, slow_ms: int) -> None:
        self.compute_s = (0.030, 0.036, slow_ms / 1000)
        self.together = rule == "together"
        bound = None if self.together else _BOUNDS[rule]
        self.trace = told.served_steps(self.compute_s, _UNTIL_S, bound, self.together)
        self.count = len(self.trace)

    def picture(self, step: int) -> Drawing:
        past, last = self.trace[: step + 1], self.trace[step]
        names = [f"trainer {t}, {1000 * s:.0f} ms" for t, s in enumerate(self.compute_s)]
        rows = {"table": list(self.versions(step))}
        rows |= {name: list(self.bars(trainer, step)) for trainer, name in enumerate(names)}
        arrows = [
            (("table", one.at), (names[one.who], one.at), "weights")
            if one.what == told.PULL
            else ((names[one.who], one.at), ("table", one.at), "gradients")
            for one in past
            if one.what in (told.PULL, told.PUSH)
        ]
        version = last.part.version
        done = {
            told.PULL: f"pulls version {version}",
            told.WAIT: "must wait for its rows",
            told.PUSH: f"pushes a gradient that is {last.part.late} late",
            told.UPDATE: "was the last, and the table is updated",
        }[last.what]
        pushes = sum(one.what == told.PUSH for one in past)
        said = (
            f"At {1000 * last.at:.0f} ms trainer {last.who} {done}; the table is at version "
            f"{version} after {counted(pushes, 'gradient')} of {counted(len(names), 'trainer')}"
        )
        lanes = Lanes(
            rows, over=(0.0, _UNTIL_S), now=last.at, high=42, gap=20, told=_ms, arrows=arrows
        )
        title = f"{1000 * last.at:.0f} ms: the table is at version {version}"
        key = ("rows", "work", "waits", "expected")
        return page(title, lanes, key=key, sentence=said, notes=["blue: pulls, orange: pushes"])

    def versions(self, step: int) -> Iterator[Event]:
        """Versions of the table, from one update to the next."""
        starts = {0: 0.0}
        for event in self.trace[: step + 1]:
            starts.setdefault(event.part.version, event.at)
        ends = [*list(starts.values())[1:], self.trace[step].at]
        for (version, start), end in zip(starts.items(), ends, strict=True):
            yield Event(start, 0, "rows", end=end, label=f"v{version}")

    def bars(self, trainer: int, step: int) -> Iterator[Event]:
        """From pull to push, and waiting; what is still to come is expected."""
        now = self.trace[step].at
        told_now = {id(event) for event in self.trace[: step + 1]}
        own = [event for event in self.trace if event.who == trainer and event.what != told.UPDATE]
        for event, following in zip(own, [*own[1:], None], strict=True):
            if event.what == told.PUSH:
                continue
            end = following.at if following else _UNTIL_S
            if event.what == told.PULL and following is None:
                end = min(event.at + self.compute_s[trainer], _UNTIL_S)
            begun, over = id(event) in told_now, following is not None and id(following) in told_now
            pulls, rows = event.what == told.PULL, f"v{event.part.version}"
            if begun:
                label = (
                    f"{rows}: {following.part.late} late" if over and following else f"with {rows}"
                )
                what, label = ("work", label) if pulls else ("waits", "waits")
                yield Event(event.at, trainer, what, end=end if over else now, label=label)
            if pulls and not over and end > now:
                yield Event(max(now, event.at), trainer, "expected", end=end)

    def rows(self, step: int) -> Rows:
        past = self.trace[: step + 1]
        late = [event.part.late for event in past if event.what == told.PUSH]
        mean = f", {sum(late) / len(late):.1f} updates late on average" if any(late) else ""
        return (
            ("gradients", f"{len(late)} so far{mean}"),
            ("the table", counted(past[-1].part.version, "update")),
        )

    def caption(self, step: int) -> str:
        event = self.trace[step]
        name, version = f"Trainer {event.who}", event.part.version
        if event.what == told.PULL:
            return f"{name} pulls rows of version {version} and begins to compute."
        if event.what == told.WAIT:
            return f"{name} asks for rows, and must wait: it is too far ahead of the slowest."
        if event.what == told.UPDATE:
            return f"All gradients are in: their sum makes version {version}."
        if self.together:
            return f"{name} pushes its gradient; the server keeps it until all are in."
        if event.part.late:
            updates = counted(event.part.late, "update")
            return f"{name} pushes a gradient of rows that have seen {updates} since its pull."
        return f"{name} pushes its gradient, which is on time: nobody came in between."
