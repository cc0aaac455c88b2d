"""Stories of one layer that several GPUs share: cut matrices, experts."""

from course_lib.figures.engines.cells import Cell, Cells
from course_lib.figures.engines.page import page
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.text import counted
from course_lib.panels.controls import choice, flag, listed, powers_of_two
from course_lib.panels.panel import Rows
from course_lib.panels.stepper import Stepper
from course_lib.panels.story import Story
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.network.collectives import sent_bytes
from course_lib.theory.stories import messages as told
from course_lib.trace import COPY, TAKE

# --- a pair of cut matrices -----------------------------------------------------------------------

_HIDDEN, _TOKENS = 8192, 4096  # LLaMA-2 70B, one sequence, in bf16
# What lies where, from X to Z; a gradient lies in the place of what it is the gradient of.
_PLACES = ("X", "f", "f(X)", "A", "X·A", "Y", "B", "Y·B", "g", "Z")
_OF = {"XA": "X·A", "YB": "Y·B", "dZ": "Z", "g(dZ)": "Y·B", "dY": "Y", "dXA": "X·A"}
_OF |= {"dX part": "f(X)", "dX": "X"}
_UNFINISHED = {"YB": "unfinished activations", "dX part": "unfinished gradients"}
_BETWEEN = {
    told.MLP: ("GELU looks at one number at a time: each rank does its own columns", "GELU"),
    told.ATTENTION: ("Each rank computes the attention of its own heads", "the heads"),
}
# By what is made: what happens, and what else if the tokens are cut.
_MADE: dict[str, str | tuple[str, str]] = {
    "X": ("Every rank has all of X", "Each rank has its own tokens of X"),
    "f(X)": ("f copies X: nothing is sent", "f gathers the tokens of all ranks"),
    "XA": "Each rank multiplies with its columns of A, and gets its columns of X·A",
    "Y": "{0}; nothing is sent",
    "YB": "Each rank multiplies with its rows of B: a result of full size, but unfinished",
    "Z": (
        "g adds up the unfinished results: every rank has Z",
        "g adds up the results, and each rank keeps its own tokens",
    ),
    "dZ": (
        "Backward: every rank has the gradient of Z",
        "Backward: each rank has the gradient of its own tokens of Z",
    ),
    "g(dZ)": (
        "g only copies the gradient on the way back: nothing is sent",
        "g gathers the gradient of all tokens",
    ),
    "dY": "Each rank goes back through its rows of B, and has their gradient as well",
    "dXA": "Back through {1}, on each rank alone",
    "dX part": "Each rank goes back through its columns of A: a part of the gradient of X",
    "dX": (
        "f adds up the parts: every rank has the whole gradient of X",
        "f adds up the parts, and each rank keeps those of its tokens",
    ),
}
_UNIT = 4  # slots of the hidden size in a picture; all tokens are twice as many


def cut_pair(ranks: int = 2, kind: str = told.MLP, sequence_parallel: bool = False) -> Stepper:
    """X, A, B and Z on 2 or 4 ranks. Raises ValueError for other starting values."""
    controls = {
        "kind": choice("pair", kind, {"MLP": told.MLP, "attention": told.ATTENTION}),
        "ranks": listed("ranks", ranks, {"2": 2, "4": 4}),
        "sequence_parallel": flag("sequence parallel", sequence_parallel),
    }
    return Stepper(controls, _CutPair)


class _CutPair(Story):
    """A row for each rank: its part of X, A, X·A, Y, B, Y·B and Z as far as they are made."""

    def __init__(self, kind: str, ranks: int, sequence_parallel: bool) -> None:
        self.kind, self.ranks, self.by_tokens = kind, ranks, sequence_parallel
        self.trace = told.pair_steps(
            kind, _HIDDEN, _TOKENS, ranks, sequence_parallel=sequence_parallel
        )
        self.made = [event.part for event in self.trace if event.who == 0 and event.what == TAKE]

    def sent(self, step: int) -> float:
        """Bytes that a rank has sent, by rings."""
        totals = self.trace.sent(0, until=step).items()
        return sum(sent_bytes(name, total.size_bytes, self.ranks) for name, total in totals)

    def picture(self, step: int) -> Drawing:
        now, *call = reversed(self.now(step)[: len(self.now(step)) // self.ranks])
        backward = step >= len(self.made) // 2
        name = now.part.name
        grid = {
            f"rank {rank}": {self.head(place, backward): self.cell(place, rank, step)
                             for place in _PLACES}
            for rank in range(self.ranks)
        }  # fmt: skip
        if call:
            sent = sent_bytes(call[0].what, call[0].bytes, self.ranks)
            words = f"{call[0].what} of {format_bytes(call[0].bytes)}: each rank sends "
            words += format_bytes(sent)
        elif name in _UNFINISHED:
            words = f"{self.ranks} unfinished results of full size, to be added up"
        else:
            words = "nothing is sent"
        size = f"{now.part.rows:,} × {now.part.columns:,} numbers"
        said = f"{counted(self.ranks, 'rank')}: each makes {name}, {size}; {words}"
        bold = [self.head(_OF.get(name, name), backward)]
        pairs = Cells(grid, square=4, lined=False, bold=bold, said=said)
        way = "backward" if backward else "forward"
        if not call and name not in _UNFINISHED:
            way += ": from right to left" if backward else ": from left to right"
        key = ("weights", "activations", "gradients", "messages", *_UNFINISHED.values())
        return page(f"{way}; {words}", pairs, key=key)

    def head(self, place: str, backward: bool) -> str:
        """The name of a place, and of the gradient in it."""
        if place == "Y":
            return "GELU" if self.kind == told.MLP else "heads"
        if not backward or place in ("A", "B", "f", "g"):
            return place
        return f"∂({place})" if "·" in place else f"∂{place}"

    def cell(self, place: str, rank: int, step: int) -> Cell:
        """The outline of the whole tensor, and the rank's part of it once it is made."""
        names = [tensor.name for tensor in self.made[: step + 1]]
        inner, middle = (_UNIT * width for width in told.PAIR_WIDTHS[self.kind])
        columns = {"A": inner, "X·A": inner, "Y": middle}.get(place, _UNIT)
        rows = {"A": _UNIT, "B": middle, "f": 2 * _UNIT, "g": 2 * _UNIT}.get(place, 2 * _UNIT)
        slots, its = rows * columns, [one for one in names if _OF.get(one, one) == place]
        if place in ("f", "g"):
            active = {"f": ("f(X)", "dX"), "g": ("Z", "g(dZ)")}[place]
            sends = names[-1] in active and any(event.sends for event in self.now(step))
            return Cell("", dict.fromkeys(range(slots if sends else 0), "messages"), slots, columns)
        parts = 3 if self.kind == told.ATTENTION and place in ("A", "X·A") else 1
        own_columns = [
            c for c in range(columns) if c * parts * self.ranks // columns % self.ranks == rank
        ]
        own_rows = [r for r in range(rows) if r * self.ranks // rows == rank]
        by_columns = place in ("A", "X·A", "Y")
        by_rows = place == "B" or (place in ("X", "Z") and self.by_tokens)
        filled = [
            r * columns + c
            for r in (own_rows if by_rows else range(rows))
            for c in (own_columns if by_columns else range(columns))
        ]
        frame = "now" if its and its[-1] == names[-1] else ""
        if place in ("A", "B"):
            has = {"A": "dX part", "B": "dY"}[place] in names
            halves = dict.fromkeys(filled[len(filled) // 2 :] if has else [], "gradients")
            return Cell("", dict.fromkeys(filled, "weights") | halves, slots, columns)
        word = "gradients" if its and its[-1].startswith(("d", "g(d")) else "activations"
        word = _UNFINISHED.get(its[-1], word) if its else word
        return Cell("", dict.fromkeys(filled if its else (), word), slots, columns, frame=frame)

    def rows(self, step: int) -> Rows:
        made = self.made[step]
        size = format_bytes(made.rows * made.columns * 2)
        sent, all_ = (format_bytes(self.sent(place)) for place in (step, self.count))
        return (
            ("on each rank", f"{made.rows:,} × {made.columns:,} numbers, {size}"),
            ("sent by a rank so far", f"{sent} of {all_}"),
        )

    def caption(self, step: int) -> str:
        said = _MADE[self.made[step].name]
        text = said if isinstance(said, str) else said[self.by_tokens]
        return f"{text.format(*_BETWEEN[self.kind])}."


# --- tokens to experts and back -------------------------------------------------------------------

_EACH, _EXPERTS, _TOP_K = 64, 8, 2
_SKEWS = {f"{skew:g}": skew for skew in (0.0, 0.25, 0.5, 1.0, 2.0)}
_FACTORS = {"1": 1.0, "1.25": 1.25, "1.5": 1.5, "2": 2.0, "no limit": 0.0}
_LEVELS = 50  # of a queue
_HOME = "what stays at home"
_STAGES = {
    "chosen": "every token has chosen its experts",
    "accepted": "each expert accepts up to its capacity",
    "compute": "every rank's experts compute",
    "summed": "every token adds up its results",
}


def expert_exchange(ranks: int = 4, skew: float = 0.5, capacity_factor: float = 1.25) -> Stepper:
    """64 tokens on each rank travel to 8 experts and back, top-2.

    Capacity factor 0 means no limit. Raises ValueError for starting values that are not offered.
    """
    controls = {
        "ranks": powers_of_two("ranks", ranks, 2, 8),
        "skew": listed("router's skew", skew, _SKEWS),
        "capacity_factor": listed("capacity factor", capacity_factor, _FACTORS),
    }
    return Stepper(controls, _ExpertExchange)


class _ExpertExchange(Story):
    """Above: choices, from ranks (rows) to experts (columns). Below: experts' queues."""

    def __init__(self, ranks: int, skew: float, capacity_factor: float) -> None:
        self.table = told.skewed_exchange(
            _EACH, _EXPERTS, _TOP_K, ranks, skew=skew, factor=capacity_factor or None
        )
        self.ranks, self.trace = ranks, told.expert_steps(self.table)
        self.computing, own = 2 + ranks, self.table.experts_of_a_rank
        self.owner = [expert // own for expert in range(_EXPERTS)]
        self.starts = {
            event.part: event.at for event in self.trace if event.what in (COPY, told.STAY)
        }  # of rows and results, by what they are: when they set out

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
        told_ = f"their experts get {got} rows, {self.table.dropped} choices are dropped"
        return page(
            self.title(step),
            Cells(grid, note=note, high=18, said=said),
            Cells(queues, high=high, heads=False, below=True, said=told_),
            key=("activations", "messages", "work", "expected", "dropped"),
        )

    def choices(self, rank: int, expert: int, step: int) -> Cell:
        """A rank's rows for an expert: there, on their way or gone, and what is dropped."""
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
        """How many of a rank's results have come back."""
        back = sum(
            rows
            for owner, rows in enumerate(self.table.sent[rank])
            if self.starts["results", rank, owner] <= step
        )
        return Cell(f"{back} of {sum(self.table.counts[rank])}", slots=0)

    def queue(self, expert: int, step: int) -> Cell:
        """From below: rows that have come, those still expected, those above the capacity."""
        wanted = [sum(column) for column in zip(*self.table.counts, strict=True)]
        kept = [row[expert] for row in self.table.kept]
        came = sum(
            rows
            for rank, rows in enumerate(kept)
            if self.starts["rows", rank, self.owner[expert]] <= step
        )
        ends = (came, sum(kept) if step else wanted[expert], wanted[expert])
        levels = [round(end / max(wanted) * _LEVELS) for end in ends]
        words = ["work"] * levels[0] + ["expected"] * (levels[1] - levels[0])
        words += ["dropped"] * (levels[2] - levels[1])
        filled = {_LEVELS - 1 - place: word for place, word in enumerate(words)}
        return Cell(str(came if step > 1 else wanted[expert]), filled, _LEVELS, 1)

    def time(self, rank: int, step: int) -> Cell:
        """How long its experts compute, against the busiest rank."""
        rows, own = self.table.received[rank], self.table.experts_of_a_rank
        if step < self.computing:
            return Cell(f"rank {rank}", {}, _LEVELS, wide=own)
        works = round(_LEVELS * rows / max(self.table.received))
        filled = dict.fromkeys(range(works), "work") | dict.fromkeys(range(works, _LEVELS), "waits")
        text = f"rank {rank}: {rows} rows" if own > 1 else f"{rows} rows"
        return Cell(text, filled, _LEVELS, wide=own)

    def stage(self, step: int) -> tuple[str, int]:
        """What happens, and the turn of an all-to-all."""
        if step < 2:
            return ("chosen", "accepted")[step], 0
        if step < self.computing:
            return "dispatch", step - 2
        if step == self.computing:
            return "compute", 0
        turn = step - self.computing - 1
        return ("combine", turn) if turn < self.ranks else ("summed", 0)

    def title(self, step: int) -> str:
        name, turn = self.stage(step)
        if name in _STAGES:
            return _STAGES[name]
        on = name == "dispatch"
        way, far = ("to", "places on") if on else ("back from", "places before")
        where = f"{way} the rank {turn} {far}"
        if turn < 2:
            where = f"{way} {'the next rank' if on else 'the rank before'}" if turn else _HOME
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
        (name, turn), dropped = self.stage(step), self.table.dropped
        if name in ("dispatch", "combine"):
            # In turn k rows go to the rank k places on, and results come from k places before.
            partner = (turn if name == "dispatch" else -turn) % self.ranks
            rows = self.table.sent[0][partner]
            way = f"{rows} rows of rank 0 belong to its own experts and stay"
            if turn and name == "dispatch":
                way = f"rank 0 sends {rows} rows to rank {partner}, the others likewise"
            elif turn:
                way = f"rank {partner} gives rank 0 its {rows} results back"
            return f"{name.capitalize()}: {way}."
        received = self.table.received
        busiest = f"all wait for rank {received.index(max(received))}"
        wait = busiest if max(received) > min(received) else "nobody waits"
        lost = "nothing is dropped"
        if dropped:
            lost = f"{dropped} choices exceed capacity and are dropped, last ranks first"
        return {
            "chosen": f"Each of {self.ranks} ranks has {_EACH} tokens, and each token has chosen "
            f"{_TOP_K} experts.",
            "accepted": f"The ranks share their counts: {lost}.",
            "compute": f"Each rank computes its experts; {wait}.",
            "summed": "Each token adds up the results that came back, with the router's weights.",
        }[name]
