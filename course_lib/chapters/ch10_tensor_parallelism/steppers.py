"""The story of chapter 10 that a learner steps through."""

from course_lib.figures.engines.cells import Cell, Cells
from course_lib.figures.engines.page import page
from course_lib.figures.paper.drawing import Drawing, counted
from course_lib.panels.controls import choice, flag, listed
from course_lib.panels.panel import Rows
from course_lib.panels.stepper import Stepper, Story
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.network.collectives import sent_bytes
from course_lib.theory.stories import messages
from course_lib.trace import TAKE

_HIDDEN, _TOKENS = 8192, 4096  # LLaMA-2 70B, one sequence, in bf16
# The columns of the picture, from X to Z; a gradient is drawn in the column of its tensor.
_COLUMNS = ("X", "f", "f(X)", "A", "X·A", "Y", "B", "Y·B", "g", "Z")
_COLUMN_OF = {
    "XA": "X·A",
    "YB": "Y·B",
    "dZ": "Z",
    "g(dZ)": "Y·B",
    "dY": "Y",
    "dXA": "X·A",
    "dX part": "f(X)",
    "dX": "X",
}
_UNFINISHED = {"YB": "unfinished activations", "dX part": "unfinished gradients"}
_BETWEEN = {
    messages.MLP: ("GELU looks at one number at a time: each rank does its own columns", "GELU"),
    messages.ATTENTION: ("Each rank computes the attention of its own heads", "the heads"),
}
# Captions by the tensor that is computed; of two, the second is for sequence parallelism.
_CAPTIONS: dict[str, str | tuple[str, str]] = {
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
_UNIT = 4  # slots for the hidden size in a picture; all tokens take twice as many


def cut_pair(ranks: int = 2, kind: str = messages.MLP, sequence_parallel: bool = False) -> Stepper:
    """A pair of cut matrices on 2 or 4 ranks. Raises ValueError for other starting values."""
    controls = {
        "kind": choice("pair", kind, {"MLP": messages.MLP, "attention": messages.ATTENTION}),
        "ranks": listed("ranks", ranks, {"2": 2, "4": 4}),
        "sequence_parallel": flag("sequence parallel", sequence_parallel),
    }
    return Stepper(controls, _CutPair)


class _CutPair(Story):
    """A row for each rank: its parts of X, A, X·A, Y, B, Y·B and Z, as far as computed."""

    def __init__(self, kind: str, ranks: int, sequence_parallel: bool) -> None:
        self.kind, self.ranks, self.by_tokens = kind, ranks, sequence_parallel
        self.trace = messages.pair_steps(
            kind, _HIDDEN, _TOKENS, ranks, sequence_parallel=sequence_parallel
        )
        self.tensors = [event.part for event in self.trace if event.who == 0 and event.what == TAKE]

    def sent(self, step: int) -> float:
        """Bytes that a rank has sent up to `step`, with ring collectives."""
        totals = self.trace.sent(0, until=step).items()
        return sum(sent_bytes(name, total.size_bytes, self.ranks) for name, total in totals)

    def picture(self, step: int) -> Drawing:
        now, *sends = reversed(self.now(step)[: len(self.now(step)) // self.ranks])
        backward = step >= len(self.tensors) // 2
        name = now.part.name
        grid = {
            f"rank {rank}": {self.head(column, backward): self.cell(column, rank, step)
                             for column in _COLUMNS}
            for rank in range(self.ranks)
        }  # fmt: skip
        words = "nothing is sent"
        if sends:
            sent = format_bytes(sent_bytes(sends[0].what, sends[0].bytes, self.ranks))
            words = f"{sends[0].what} of {format_bytes(sends[0].bytes)}: each rank sends {sent}"
        elif name in _UNFINISHED:
            words = f"{self.ranks} unfinished results of full size, to be added up"
        size = f"{now.part.rows:,} × {now.part.columns:,} numbers"
        said = f"{counted(self.ranks, 'rank')}: each makes {name}, {size}; {words}"
        bold = [self.head(_COLUMN_OF.get(name, name), backward)]
        pairs = Cells(grid, square=4, lined=False, bold=bold, said=said)
        direction = "backward" if backward else "forward"
        if not sends and name not in _UNFINISHED:
            direction += ": from right to left" if backward else ": from left to right"
        key = ("weights", "activations", "gradients", "messages", *_UNFINISHED.values())
        return page(f"{direction}; {words}", pairs, key=key)

    def head(self, column: str, backward: bool) -> str:
        """The heading of a column; in the backward pass that of the gradient in it."""
        if column == "Y":
            return "GELU" if self.kind == messages.MLP else "heads"
        if not backward or column in ("A", "B", "f", "g"):
            return column
        return f"∂({column})" if "·" in column else f"∂{column}"

    def cell(self, column: str, rank: int, step: int) -> Cell:
        """The outline of the whole tensor; the rank's part of it is filled once computed."""
        names = [tensor.name for tensor in self.tensors[: step + 1]]
        inner, middle = (_UNIT * width for width in messages.PAIR_WIDTHS[self.kind])
        columns = {"A": inner, "X·A": inner, "Y": middle}.get(column, _UNIT)
        rows = {"A": _UNIT, "B": middle}.get(column, 2 * _UNIT)
        slots, drawn = rows * columns, [one for one in names if _COLUMN_OF.get(one, one) == column]
        if column in ("f", "g"):
            active = {"f": ("f(X)", "dX"), "g": ("Z", "g(dZ)")}[column]
            sends = names[-1] in active and any(event.sends for event in self.now(step))
            return Cell("", dict.fromkeys(range(slots if sends else 0), "messages"), slots, columns)
        parts = 3 if self.kind == messages.ATTENTION and column in ("A", "X·A") else 1
        own_columns = [
            c for c in range(columns) if c * parts * self.ranks // columns % self.ranks == rank
        ]
        own_rows = [r for r in range(rows) if r * self.ranks // rows == rank]
        by_columns = column in ("A", "X·A", "Y")
        by_rows = column == "B" or (column in ("X", "Z") and self.by_tokens)
        filled = [
            r * columns + c
            for r in (own_rows if by_rows else range(rows))
            for c in (own_columns if by_columns else range(columns))
        ]
        frame = "now" if drawn and drawn[-1] == names[-1] else ""
        if column in ("A", "B"):
            has_gradient = {"A": "dX part", "B": "dY"}[column] in names
            halves = dict.fromkeys(filled[len(filled) // 2 :] if has_gradient else [], "gradients")
            return Cell("", dict.fromkeys(filled, "weights") | halves, slots, columns)
        word = "gradients" if drawn and drawn[-1].startswith(("d", "g(d")) else "activations"
        word = _UNFINISHED.get(drawn[-1], word) if drawn else word
        return Cell("", dict.fromkeys(filled if drawn else (), word), slots, columns, frame=frame)

    def rows(self, step: int) -> Rows:
        tensor = self.tensors[step]
        size = format_bytes(tensor.rows * tensor.columns * 2)
        so_far, in_all = (format_bytes(self.sent(until)) for until in (step, self.count))
        return (
            ("on each rank", f"{tensor.rows:,} × {tensor.columns:,} numbers, {size}"),
            ("sent by a rank so far", f"{so_far} of {in_all}"),
        )

    def caption(self, step: int) -> str:
        said = _CAPTIONS[self.tensors[step].name]
        text = said if isinstance(said, str) else said[self.by_tokens]
        return f"{text.format(*_BETWEEN[self.kind])}."
