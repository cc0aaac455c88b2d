"""The stories of chapter 12 that a learner steps through."""

from itertools import accumulate, product

from course_lib.figures.engines.cells import Cell, Cells
from course_lib.figures.engines.lanes import Lanes
from course_lib.figures.engines.page import page
from course_lib.figures.paper.drawing import Drawing
from course_lib.panels.controls import choice, listed, powers_of_two, whole
from course_lib.panels.panel import Rows
from course_lib.panels.stepper import Stepper, Story
from course_lib.theory.stories import messages
from course_lib.trace import COPY, Event, Trace

_MANY, _EXPERTS, _TOP_K = 64, 8, 2
_SKEWS = {f"{skew:g}": skew for skew in (0.0, 0.25, 0.5, 1.0, 2.0)}
_FACTORS = {"1": 1.0, "1.25": 1.25, "1.5": 1.5, "2": 2.0, "no limit": 0.0}
_LEVELS = 50  # slots in a queue's bar
_HOME = "what stays at home"
_STAGES = {
    "chosen": "every token has chosen its experts",
    "accepted": "each expert accepts up to its capacity",
    "compute": "every rank's experts compute",
    "summed": "every token adds up its results",
}


def expert_exchange(ranks: int = 4, skew: float = 0.5, capacity_factor: float = 1.25) -> Stepper:
    """Step through the exchange of 64 tokens on each rank with 8 experts, top-2.

    Capacity factor 0 means no limit. Raises ValueError for starting values that are not offered.
    """
    controls = {
        "ranks": powers_of_two("ranks", ranks, 2, 8),
        "skew": listed("router's skew", skew, _SKEWS),
        "capacity_factor": listed("capacity factor", capacity_factor, _FACTORS),
    }
    return Stepper(controls, _ExpertExchange)


class _ExpertExchange(Story):
    """Above: choices of each rank (rows) by expert (columns). Below: the experts' queues."""

    def __init__(self, ranks: int, skew: float, capacity_factor: float) -> None:
        self.table = messages.skewed_exchange(
            _MANY, _EXPERTS, _TOP_K, ranks, skew=skew, factor=capacity_factor or None
        )
        self.ranks, self.trace = ranks, messages.expert_steps(self.table)
        self.computing, per_rank = 2 + ranks, self.table.experts_of_a_rank
        out, back = ([(way, turn) for turn in range(ranks)] for way in ("dispatch", "combine"))
        # The stage of each step, and within an all-to-all its turn.
        self.stages = [("chosen", 0), ("accepted", 0), *out, ("compute", 0), *back, ("summed", 0)]
        self.owner = [expert // per_rank for expert in range(_EXPERTS)]
        self.starts = {
            event.part: event.at for event in self.trace if event.what in (COPY, messages.STAY)
        }  # the step in which rows and results are sent, by their part

    def picture(self, step: int) -> Drawing:
        grid = {
            f"rank {rank}": {
                **{f"e{expert}": self.choices(rank, expert, step) for expert in range(_EXPERTS)},
                "back": self.results(rank, step),
            }
            for rank in range(self.ranks)
        }
        said = f"stage {step + 1} of {self.count}"
        note = "rows of tokens for each expert, and at the right results that are back"
        mean = sum(self.table.received) / self.ranks
        worst = f"{max(self.table.received) / mean:.2f} × mean" if step >= self.computing else ""
        limit = f"capacity {self.table.capacity}" if self.table.dropped else ""
        row, last = f"experts' queues\n{limit}", f"time to compute\n{worst}"
        queues = {row: {f"e{expert}": self.queue(expert, step) for expert in range(_EXPERTS)}}
        queues[last] = {
            f"e{self.owner.index(rank)}": self.time(rank, step) for rank in range(self.ranks)
        }
        high = {row: 70.0, last: 12.0}
        got = ", ".join(map(str, self.table.received))
        queued = f"their experts get {got} rows, {self.table.dropped} choices are dropped"
        return page(
            self.title(step),
            Cells(grid, note=note, high=18, said=said),
            Cells(queues, high=high, heads=False, below=True, said=queued),
            key=("activations", "messages", "work", "expected", "dropped"),
        )

    def choices(self, rank: int, expert: int, step: int) -> Cell:
        """A rank's rows for an expert: waiting, travelling or gone, and how many are dropped."""
        chosen, kept = (table[rank][expert] for table in (self.table.counts, self.table.kept))
        kept = kept if step else chosen
        leaves = self.starts["rows", rank, self.owner[expert]]
        word = {0: "activations"} if leaves > step else {}
        if step in (leaves, self.starts["results", rank, self.owner[expert]]):
            word = {0: "messages"}
        if chosen == kept:
            return Cell(str(kept), word)
        return Cell("", {**word, 1: "dropped"}, 2, texts={0: f"{kept}", 1: f"−{chosen - kept}"})

    def results(self, rank: int, step: int) -> Cell:
        """How many of a rank's results have been returned."""
        back = sum(
            rows
            for owner, rows in enumerate(self.table.sent[rank])
            if self.starts["results", rank, owner] <= step
        )
        return Cell(f"{back} of {sum(self.table.counts[rank])}", slots=0)

    def queue(self, expert: int, step: int) -> Cell:
        """From the bottom: rows received, rows still expected, and choices above the capacity."""
        wanted = [sum(column) for column in zip(*self.table.counts, strict=True)]
        kept = [row[expert] for row in self.table.kept]
        received = sum(
            rows
            for rank, rows in enumerate(kept)
            if self.starts["rows", rank, self.owner[expert]] <= step
        )
        ends = (received, sum(kept) if step else wanted[expert], wanted[expert])
        levels = [round(end / max(wanted) * _LEVELS) for end in ends]
        words = ["work"] * levels[0] + ["expected"] * (levels[1] - levels[0])
        words += ["dropped"] * (levels[2] - levels[1])
        filled = {_LEVELS - 1 - level: word for level, word in enumerate(words)}
        return Cell(str(received if step > 1 else wanted[expert]), filled, _LEVELS, 1)

    def time(self, rank: int, step: int) -> Cell:
        """How long a rank's experts compute, relative to the busiest rank."""
        rows, own = self.table.received[rank], self.table.experts_of_a_rank
        if step < self.computing:
            return Cell(f"rank {rank}", {}, _LEVELS, wide=own)
        computing = round(_LEVELS * rows / max(self.table.received))
        filled = {level: "work" if level < computing else "waits" for level in range(_LEVELS)}
        text = f"rank {rank}: {rows} rows" if own > 1 else f"{rows} rows"
        return Cell(text, filled, _LEVELS, wide=own)

    def title(self, step: int) -> str:
        name, turn = self.stages[step]
        if name in _STAGES:
            return _STAGES[name]
        direction, one, far = "back from", "the rank before", "places before"
        if name == "dispatch":
            direction, one, far = "to", "the next rank", "places on"
        where = f"{direction} {one if turn == 1 else f'the rank {turn} {far}'}" if turn else _HOME
        return f"{name}, turn {turn + 1} of {self.ranks}: {where}"

    def rows(self, step: int) -> Rows:  # noqa: ARG002
        received, sent = self.table.received, [sum(row) for row in self.table.sent]
        busiest = max(received) / (sum(received) / self.ranks)
        return (
            ("rows that the ranks send", ", ".join(map(str, sent))),
            ("rows that their experts get", ", ".join(map(str, received))),
            ("busiest rank", f"{busiest:.2f} × the mean; {self.table.dropped} dropped"),
        )

    def caption(self, step: int) -> str:
        (name, turn), dropped = self.stages[step], self.table.dropped
        if name in ("dispatch", "combine"):
            # In turn k rank r sends rows to rank r + k and gets results from r - k, modulo ranks.
            partner = (turn if name == "dispatch" else -turn) % self.ranks
            rows = self.table.sent[0][partner]
            sentence = f"{rows} rows of rank 0 belong to its own experts and stay"
            if turn and name == "dispatch":
                sentence = f"rank 0 sends {rows} rows to rank {partner}, the others likewise"
            elif turn:
                sentence = f"rank {partner} gives rank 0 its {rows} results back"
            return f"{name.capitalize()}: {sentence}."
        received = self.table.received
        alike = max(received) == min(received)
        wait = "nobody waits" if alike else f"all wait for rank {received.index(max(received))}"
        exceed = f"{dropped} choices exceed capacity and are dropped, last ranks first"
        lost = exceed if dropped else "nothing is dropped"
        return {
            "chosen": f"Each of {self.ranks} ranks has {_MANY} tokens, and each token has chosen "
            f"{_TOP_K} experts.",
            "accepted": f"The ranks share their counts: {lost}.",
            "compute": f"Each rank computes its experts; {wait}.",
            "summed": "Each token adds up the results that came back, with the router's weights.",
        }[name]


_EACH = 16  # tokens on a rank


def ring_attention(ranks: int = 4, zigzag: bool = False) -> Stepper:
    """Step through causal ring attention with 16 tokens on each rank.

    Raises ValueError for starting values that are not offered.
    """
    controls = {
        "ranks": whole("ranks", ranks, 2, 8),
        "zigzag": choice("slices", zigzag, {"in order": False, "zig-zag": True}),
    }
    return Stepper(controls, _RingAttention)


_TRIANGLE = [4 * row + column for row in range(4) for column in range(row + 1)]  # lower, of 4 × 4


class _RingAttention(Story):
    """Queries (rows) by keys (columns); below, each rank's keys and its time so far."""

    def __init__(self, ranks: int, zigzag: bool) -> None:
        self.ranks, self.zigzag = ranks, zigzag
        self.trace = messages.ring_attention_steps(_EACH * ranks, ranks, zigzag=zigzag)
        self.work = [event for event in self.trace if event.what == "work"]
        self.owner = {event.part[0]: event.who for event in self.work}  # by chunk
        self.side = _EACH * ranks // len(self.owner)  # tokens
        self.block = self.side**2  # scores

    def blocks_of(self, step: int) -> list[int]:
        """Blocks that each rank computes in a step between two hops."""
        now = [event.who for event in self.work if event.at == 2 * step + 1]
        return [now.count(rank) for rank in range(self.ranks)]

    @property
    def longest(self) -> list[int]:
        """Blocks of the busiest rank in each step; all ranks wait for it."""
        return [max(self.blocks_of(step)) for step in range(self.ranks)]

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

    def mask(self, moment: int) -> Cells:
        """Which rank computes which block now; the mask hides half of each diagonal block."""
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
                cell = Cell("", dict.fromkeys(_TRIANGLE, word), 16, 4)
            grid[f"queries of {names[queries]}"][f"keys and values of rank\n{names[keys]}"] = cell
        now = [event for event in self.work if event.at == moment]
        blocks = ", ".join(str([e.who for e in now].count(rank)) for rank in range(self.ranks))
        said = f"the ranks compute {blocks} blocks" if now else "nothing is computed now"
        return Cells(grid, high=160 / len(chunks) - 2, between=2.0, gap=2, said=said)

    def keys(self, moment: int) -> Cells:
        """Whose keys and values each rank has now, and which have just moved."""
        word = "messages" if moment and moment % 2 == 0 else "done"
        row = {
            f"rank {rank}": Cell(f"of {owner}", {0: word})
            for rank, held in self.trace.held(moment).items()
            for _, owner in held
        }
        name = "has keys and values"
        hops = [
            ((name, f"rank {one.who}"), (name, f"rank {one.to}"))
            for one in self.now(moment)
            if one.to is not None
        ]
        return Cells({name: row}, arrows=hops, gap=24)

    def lanes(self, moment: int) -> Lanes:
        """Each rank's computing and waiting so far."""
        begun = (moment + 1) // 2
        starts = list(accumulate(self.longest, initial=0))
        spans = []
        for step, rank in product(range(begun), range(self.ranks)):
            done = starts[step] + self.blocks_of(step)[rank]
            spans.append(Event(starts[step], rank, "work", end=done))
            spans.append(Event(done, rank, "waits", end=starts[step + 1]))
        none = {f"rank {rank}": tuple[Event, ...]() for rank in range(self.ranks)}
        rows = none | Trace(spans).lanes("rank {0.who}".format)
        # Slices in order take longest; both orders share their scale.
        over = (0, self.ranks * _EACH**2 / self.block)
        return Lanes(rows, over=over, high=14, told=lambda n: f"{n * self.block:,.0f} scores")

    def rows(self, step: int) -> Rows:  # noqa: ARG002
        each = [sum(blocks) for blocks in zip(*map(self.blocks_of, range(self.ranks)), strict=True)]
        longest = sum(self.longest)
        busy = sum(each) / self.ranks / longest
        return (
            ("scores of each rank", ", ".join(f"{count * self.block:,}" for count in each)),
            ("all steps last", f"{longest * self.block:,} scores; busy {busy:.0%}"),
        )

    def caption(self, moment: int) -> str:
        step = max(moment - 1, 0) // 2
        if moment == 0:
            return "Each rank has its own queries, and at first its own keys and values."
        if moment % 2 == 0:
            return f"Hop {step + 1}: every rank hands its keys and values on and keeps its queries."
        blocks = self.blocks_of(step)
        idle = blocks.count(0)
        if idle:
            one, several = "of its keys, and waits", "of the keys they hold, and wait"
            none = f"may use none {one if idle == 1 else several}"
            return f"Step {step + 1}: {idle} of {self.ranks} ranks {none}."
        each = f"{blocks[0]} block{'s' if blocks[0] > 1 else ''}"
        return f"Step {step + 1}: every rank works on {each} of its queries."
