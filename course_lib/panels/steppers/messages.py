"""Stories of messages: a ring, a tree, and keys and values that go round."""

from itertools import accumulate, pairwise

from course_lib.figures.engines.cells import Cell, Cells
from course_lib.figures.engines.lanes import Lanes
from course_lib.figures.engines.page import page
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.text import counted
from course_lib.panels.controls import choice, listed, whole
from course_lib.panels.panel import Rows
from course_lib.panels.stepper import Stepper
from course_lib.panels.story import Story
from course_lib.theory.inputs.hardware import NDR
from course_lib.theory.inputs.units import format_bytes, format_seconds
from course_lib.theory.network.ring_or_tree import ring_or_tree
from course_lib.theory.stories import messages as told
from course_lib.trace import ADD, Event, Held

_SUM = "gradients"  # what is summed


def _sum(held: Held, ranks: int, *, text: bool = True, came: bool = False) -> Cell:
    """A slot for each rank, filled where its numbers are in the sum."""
    spelled = ("+" if ranks < 6 else "").join(map(str, held.of))
    complete = len(held.of) == ranks
    said = ("whole sum" if ranks < 7 else spelled) if complete else spelled
    filled = dict.fromkeys(held.of, _SUM)
    frame = "messages" if came else ""
    return Cell(said if text else "", filled, ranks, frame=frame, bold=complete)


# --- an all-reduce in a ring ----------------------------------------------------------------------


def ring(ranks: int = 4) -> Stepper:
    """A ring all-reduce. Raises ValueError for starting values outside the sliders."""
    return Stepper({"ranks": whole("ranks", ranks, 2, 8)}, _Ring)


class _Ring(Story):
    def __init__(self, ranks: int) -> None:
        self.ranks, self.trace = ranks, told.ring_steps(ranks)
        self.steps = self.count - 1

    def sent(self, step: int) -> int:
        return sum(total.calls for total in self.trace.sent(0, until=step).values())

    def complete(self, step: int) -> int:
        held = self.trace.held(step)
        return sum(len(part.of) == self.ranks for its in held.values() for part in its.values())

    def picture(self, step: int) -> Drawing:
        held = self.trace.held(step)
        messages = [event for event in self.now(step) if event.to is not None]
        came = {(event.to, event.part) for event in messages}
        grid = {
            f"part {part}": {
                f"rank {rank}": _sum(its[part], self.ranks, came=(rank, part) in came)
                for rank, its in held.items()
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


# --- an all-reduce in a tree ----------------------------------------------------------------------

_SIZES = {"4 kB": 4_000, "64 kB": 64_000, "1 MB": 10**6, "16 MB": 16 * 10**6, "1 GB": 10**9}


def tree(ranks: int = 8, size_bytes: int = 64_000) -> Stepper:
    """A tree all-reduce over NDR. Raises ValueError for starting values not offered."""
    controls = {
        "ranks": whole("ranks", ranks, 2, 16),
        "size_bytes": listed("tensor", size_bytes, _SIZES),
    }
    return Stepper(controls, _Tree)


class _Tree(Story):
    """Messages down the page in time, and the ring's time beside the tree's."""

    def __init__(self, ranks: int, size_bytes: int) -> None:
        self.ranks, self.trace = ranks, told.tree_steps(ranks, size_bytes)
        self.steps = self.count - 1
        self.times_s = ring_or_tree("all-reduce", size_bytes, ranks, NDR)

    def picture(self, step: int) -> Drawing:
        names = [f"rank {r}" if self.ranks < 10 else f"{r}" for r in range(self.ranks)]
        blank, lines = Cell(slots=0), ["start", *(f"step {n}" for n in range(1, self.count))]
        grid = {
            line: {
                names[rank]: _sum(its[0], self.ranks, text=False) if place <= step else blank
                for rank, its in self.trace.held(place).items()
            }
            for place, line in enumerate(lines)
        }
        arrows = [
            [
                ((lines[place - 1], names[one.who]), (lines[place], names[one.to or 0]))
                for one in (self.now(place) if place else ())
            ]
            for place in range(step + 1)
        ]
        past = [arrow for its in arrows[:-1] for arrow in its]
        whole = sum(len(its[0].of) == self.ranks for its in self.trace.held(step).values())
        said = f"{whole} of {counted(self.ranks, 'rank')} with the whole sum"
        sums = Cells(
            grid,
            arrows=arrows[-1],
            past=past,
            high=10,
            below=True,
            gap=8,
            bold=[lines[step]],
            said=said,
        )
        phase = "sums go up to rank 0" if step <= self.steps // 2 else "the whole sum comes down"
        phase = phase if step else "before the first step"
        return page(f"step {step} of {self.steps}: {phase}", sums, self.clock(step), key=())

    def clock(self, step: int) -> Lanes:
        """Tree and ring on one scale of time, each step a box."""
        size, ring_steps = format_bytes(self.times_s.size_bytes), self.times_s.ring_steps
        pace = {"tree": (self.steps, self.times_s.tree_s or 0.0)}
        pace["ring"] = (ring_steps, self.times_s.ring_s)
        now = pace["tree"][1] * step / self.steps
        lasting = {}
        for name, (count, all_s) in pace.items():
            ends = [place * all_s / count for place in range(count + 1)]
            lasting[f"{name}: {count} steps, {format_seconds(all_s)}"] = [
                Event(start, 0, "messages" if end < now * 1.0001 else "expected", end=end)
                for start, end in pairwise(ends)
            ]
        return Lanes(lasting, name=f"time for {size}, each step a box", now=now)

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


# --- keys and values in a ring --------------------------------------------------------------------

_EACH = 16  # tokens of a rank


def ring_attention(ranks: int = 4, zigzag: bool = False) -> Stepper:
    """Keys and values go round, under the causal mask; 16 tokens on each rank.

    Raises ValueError for starting values that are not offered.
    """
    controls = {
        "ranks": whole("ranks", ranks, 2, 8),
        "zigzag": choice("slices", zigzag, {"in order": False, "zig-zag": True}),
    }
    return Stepper(controls, _RingAttention)


_BELOW = [4 * row + column for row in range(4) for column in range(row + 1)]  # the diagonal


class _RingAttention(Story):
    """Queries (rows) by keys (columns), and below each rank's keys and its time so far."""

    def __init__(self, ranks: int, zigzag: bool) -> None:
        self.ranks, self.zigzag = ranks, zigzag
        self.trace = told.ring_attention_steps(_EACH * ranks, ranks, zigzag=zigzag)
        self.work = [event for event in self.trace if event.what == "work"]
        self.owner = {event.part[0]: event.who for event in self.work}  # of a chunk
        self.block = (_EACH * ranks // len(self.owner)) ** 2  # scores

    def works(self, step: int) -> list[int]:
        """Blocks of each rank in a step between two hops."""
        now = [event.who for event in self.work if event.at == 2 * step + 1]
        return [now.count(rank) for rank in range(self.ranks)]

    @property
    def lasting(self) -> list[int]:
        """Blocks of the busiest rank of each step: nobody starts the next one before it."""
        return [max(self.works(step)) for step in range(self.ranks)]

    def picture(self, moment: int) -> Drawing:
        step = (moment - 1) // 2
        title = "before the first step: every rank has its own keys and values"
        if moment % 2:
            title = f"step {step + 1} of {self.ranks}: compute"
        elif moment:
            title = f"hop {step + 1} of {self.ranks - 1}: keys and values move to the next rank"
        side = f"one square: {self.side} × {self.side} tokens; later keys are hidden"
        key = ("work", "done", "expected", "waits", "messages")
        blocks = self.mask(moment), self.keys(moment), self.lanes(moment)
        return page(title, *blocks, notes=[side], key=key)

    @property
    def side(self) -> int:
        return _EACH * self.ranks // len(self.owner)

    def mask(self, moment: int) -> Cells:
        """Who computes which block now; on the diagonal the mask hides half of it."""
        chunks = sorted(self.owner)
        half = "ab" if self.zigzag else " "  # the first and the second chunk of a rank
        names = {c: f"{self.owner[c]}{half[c >= self.ranks]}".strip() for c in chunks}
        grid: dict[str, dict[str, Cell]] = {f"queries of {names[q]}": {} for q in chunks}
        for event in sorted(self.work, key=lambda event: event.part):
            queries, keys = event.part
            word = "work" if event.at == moment else "done" if event.at < moment else "expected"
            who = str(event.who) if event.at == moment else ""
            cell = Cell(who, {0: word})
            if queries == keys:
                cell = Cell("", dict.fromkeys(_BELOW, word), 16, 4)
            grid[f"queries of {names[queries]}"][f"keys and values of rank\n{names[keys]}"] = cell
        now = [event for event in self.work if event.at == moment]
        blocks = ", ".join(str([e.who for e in now].count(rank)) for rank in range(self.ranks))
        said = f"the ranks compute {blocks} blocks" if now else "nothing is computed now"
        return Cells(grid, high=160 / len(chunks) - 2, between=2.0, gap=2, said=said)

    def keys(self, moment: int) -> Cells:
        """Whose keys and values each rank has now, and what has just moved."""
        word = "messages" if moment and moment % 2 == 0 else "done"
        row = {
            f"rank {rank}": Cell(f"of {owner}", {0: word})
            for rank, its in self.trace.held(moment).items()
            for _, owner in its
        }
        name = "has keys and values"
        hops = [
            ((name, f"rank {one.who}"), (name, f"rank {one.to}"))
            for one in self.now(moment)
            if one.to is not None
        ]
        return Cells({name: row}, arrows=hops, gap=24)

    def lanes(self, moment: int) -> Lanes:
        """The work and the waiting of each rank so far."""
        begun = (moment + 1) // 2
        starts = list(accumulate(self.lasting, initial=0))
        rows: dict[str, list[Event]] = {}
        for rank in range(self.ranks):
            rows[f"rank {rank}"] = its = []
            for step in range(begun):
                done = starts[step] + self.works(step)[rank]
                its.append(Event(starts[step], rank, "work", end=done))
                its.append(Event(done, rank, "waits", end=starts[step + 1]))
        rows = {name: [one for one in its if one.until > one.at] for name, its in rows.items()}
        # Slices in order last longest: both orders share one scale.
        longest = self.ranks * _EACH**2 / self.block
        return Lanes(rows, over=(0, longest), high=14, told=self.scores)

    def scores(self, blocks: float) -> str:
        return f"{blocks * self.block:,.0f} scores"

    def rows(self, step: int) -> Rows:  # noqa: ARG002
        each = [sum(its) for its in zip(*map(self.works, range(self.ranks)), strict=True)]
        lasting = sum(self.lasting)
        busy = sum(each) / self.ranks / lasting
        return (
            ("scores of each rank", ", ".join(f"{count * self.block:,}" for count in each)),
            ("all steps last", f"{lasting * self.block:,} scores; busy {busy:.0%}"),
        )

    def caption(self, moment: int) -> str:
        step = max(moment - 1, 0) // 2
        if moment == 0:
            return "Each rank has its own queries, and at first its own keys and values."
        if moment % 2 == 0:
            return f"Hop {step + 1}: every rank hands its keys and values on and keeps its queries."
        blocks = self.works(step)
        idle = blocks.count(0)
        if idle:
            have = "may use none of its keys, and waits"
            if idle > 1:
                have = "may use none of the keys they hold, and wait"
            return f"Step {step + 1}: {idle} of {self.ranks} ranks {have}."
        each = f"{blocks[0]} block{'s' if blocks[0] > 1 else ''}"
        return f"Step {step + 1}: every rank works on {each} of its queries."
