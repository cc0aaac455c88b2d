"""Steppers of chapter 6."""

from itertools import pairwise

from course_lib.figures.engines.cells import Cell, Cells
from course_lib.figures.engines.lanes import Lanes
from course_lib.figures.engines.page import page
from course_lib.figures.paper.drawing import Drawing, counted
from course_lib.panels.controls import listed, whole
from course_lib.panels.panel import Rows
from course_lib.panels.stepper import Stepper, Story
from course_lib.theory.inputs.hardware import NDR
from course_lib.theory.inputs.units import format_bytes, format_seconds
from course_lib.theory.network.all_reduce import ring_or_tree
from course_lib.theory.stories.messages import ring_steps, tree_steps
from course_lib.trace import ADD, Event, Held


def _sum(held: Held, ranks: int, *, text: bool = True, came: bool = False) -> Cell:
    """A cell with a slot for each rank, filled if that rank's numbers are in the sum."""
    spelled = ("+" if ranks < 6 else "").join(map(str, held.of))
    complete = len(held.of) == ranks
    said = ("whole sum" if ranks < 7 else spelled) if complete else spelled
    filled = dict.fromkeys(held.of, "gradients")
    frame = "messages" if came else ""
    return Cell(said if text else "", filled, ranks, frame=frame, bold=complete)


def ring(ranks: int = 4) -> Stepper:
    """Stepper through a ring all-reduce. Raises ValueError for values outside the sliders."""
    return Stepper({"ranks": whole("ranks", ranks, 2, 8)}, _Ring)


class _Ring(Story):
    def __init__(self, ranks: int) -> None:
        self.ranks, self.trace = ranks, ring_steps(ranks)
        self.steps = self.count - 1

    def sent(self, step: int) -> int:
        return sum(total.calls for total in self.trace.sent(0, until=step).values())

    def complete(self, step: int) -> int:
        held = self.trace.held(step)
        return sum(len(part.of) == self.ranks for parts in held.values() for part in parts.values())

    def picture(self, step: int) -> Drawing:
        held = self.trace.held(step)
        messages = [event for event in self.now(step) if event.to is not None]
        came = {(event.to, event.part) for event in messages}
        grid = {
            f"part {part}": {
                f"rank {rank}": _sum(parts[part], self.ranks, came=(rank, part) in came)
                for rank, parts in held.items()
            }
            for part in range(self.ranks)
        }
        arrows = [
            ((f"part {one.part}", f"rank {one.who}"), (f"part {one.part}", f"rank {one.to}"))
            for one in messages
        ]
        note = "Each box: which ranks' numbers are in the sum so far."
        whole = f"{self.complete(step)} of {self.ranks**2} boxes hold the whole sum"
        sums = Cells(grid, arrows=arrows, high=13, below=True, note=note, said=whole)
        sent = self.sent(step)
        share = f"{sent} of {self.steps} parts = {sent / self.ranks:.2f} × the tensor"
        done = Cell(share, dict.fromkeys(range(sent), "messages"), self.steps)
        phase = "before the first step"
        if step:
            phase = "receivers add" if messages[0].what == ADD else "receivers copy"
        bar = Cells({"each rank has sent": {"": done}}, high=13, below=True)
        return page(f"step {step} of {self.steps}: {phase}", sums, bar, key=())

    def rows(self, step: int) -> Rows:
        return (
            ("complete", f"{self.complete(step)} of {self.ranks**2} boxes"),
            ("sent by each rank", f"{self.sent(step)} of {self.steps} messages"),
        )

    def caption(self, step: int) -> str:
        if step == 0:
            return "Every rank has its own numbers in every part of the tensor."
        sent = self.now(step)[0]
        numbers = f"step {step}, rank 0 sends part {sent.part}"
        if sent.what == ADD:
            count = len(self.trace.held(step)[1][sent.part].of)
            if step == self.steps // 2:
                end = "each rank now has the whole sum of one part"
                return f"Step {step} adds the last of {count} summands: {end}."
            return f"In {numbers}, and rank 1 adds its own: {count} summands."
        if step == self.steps // 2 + 1:
            return f"In {numbers}, which is complete; from now on receivers only copy."
        end = "; now every rank has it all" if step == self.steps else ""
        return f"In {numbers}, which it received a step ago{end}."


_SIZES = {"4 kB": 4_000, "64 kB": 64_000, "1 MB": 10**6, "16 MB": 16 * 10**6, "1 GB": 10**9}


def tree(ranks: int = 8, size_bytes: int = 64_000) -> Stepper:
    """Stepper through a tree all-reduce over NDR. Raises ValueError for values not offered."""
    controls = {
        "ranks": whole("ranks", ranks, 2, 16),
        "size_bytes": listed("tensor", size_bytes, _SIZES),
    }
    return Stepper(controls, _Tree)


class _Tree(Story):
    """Messages, with time running down the page, and a comparison of tree and ring times."""

    def __init__(self, ranks: int, size_bytes: int) -> None:
        self.ranks, self.trace = ranks, tree_steps(ranks, size_bytes)
        self.steps = self.count - 1
        self.times_s = ring_or_tree("all-reduce", size_bytes, ranks, NDR)

    def picture(self, step: int) -> Drawing:
        names = [f"rank {r}" if self.ranks < 10 else f"{r}" for r in range(self.ranks)]
        blank, lines = Cell(slots=0), ["start", *(f"step {n}" for n in range(1, self.count))]
        grid = {
            line: {
                names[rank]: _sum(held[0], self.ranks, text=False) if index <= step else blank
                for rank, held in self.trace.held(index).items()
            }
            for index, line in enumerate(lines)
        }
        arrows = [
            [
                ((lines[index - 1], names[one.who]), (lines[index], names[one.to or 0]))
                for one in (self.now(index) if index else ())
            ]
            for index in range(step + 1)
        ]
        past = [arrow for earlier in arrows[:-1] for arrow in earlier]
        whole = sum(len(held[0].of) == self.ranks for held in self.trace.held(step).values())
        said = f"{whole} of {counted(self.ranks, 'rank')} with the whole sum"
        working = [lines[step]]
        sums = Cells(
            grid, arrows=arrows[-1], past=past, high=10, below=True, gap=8, bold=working, said=said
        )
        phase = "sums go up to rank 0" if step <= self.steps // 2 else "the whole sum comes down"
        phase = phase if step else "before the first step"
        return page(f"step {step} of {self.steps}: {phase}", sums, self.clock(step), key=())

    def clock(self, step: int) -> Lanes:
        """Draw the steps of tree and ring as boxes on one scale of time."""
        size = format_bytes(self.times_s.size_bytes)
        pace = {"tree": (self.steps, self.times_s.tree_s or 0.0)}
        pace["ring"] = (self.times_s.ring_steps, self.times_s.ring_s)
        now = pace["tree"][1] * step / self.steps
        timelines = {}
        for name, (count, all_s) in pace.items():
            times = [index * all_s / count for index in range(count + 1)]
            timelines[f"{name}: {count} steps, {format_seconds(all_s)}"] = [
                Event(start, 0, "messages" if end < now * 1.0001 else "expected", end=end)
                for start, end in pairwise(times)
            ]
        return Lanes(timelines, name=f"time for {size}, each step a box", now=now)

    def rows(self, step: int) -> Rows:
        sent = [event for event in self.now(step) if event.to is not None]
        return (
            ("working in this step", f"{2 * len(sent)} of {self.ranks} ranks"),
            ("faster", f"the {self.times_s.faster}, {format_seconds(self.times_s.seconds)}"),
        )

    def caption(self, step: int) -> str:
        if not step:
            return "Every rank has its own numbers; each message will carry the whole tensor."
        sent = self.now(step)
        senders = ", ".join(str(one.who) for one in sent)
        receivers = ", ".join(str(one.to) for one in sent)
        several = len(sent) > 1
        send = f"ranks {senders} send" if several else f"rank {senders} sends"
        if sent[0].what == ADD:
            adds = "add" if several else "adds"
            end = ": it now has the sum of all" if step == self.steps // 2 else ""
            return f"Step {step}: {send} to {receivers}, which {adds}{end}."
        if step == self.steps:
            get = f"ranks {receivers} get" if several else f"rank {receivers} gets"
            return f"Step {step}: {get} the whole sum as well: now every rank has it."
        return f"Step {step}: {send} the whole sum to {receivers}."
