"""Steppers of chapter 8."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from course_lib.figures.engines.cells import Cell, Cells
from course_lib.figures.engines.page import page
from course_lib.figures.paper.drawing import Drawing
from course_lib.panels.controls import choice, whole
from course_lib.panels.panel import Rows
from course_lib.panels.stepper import Stepper, Story
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.stories.copies import zero_steps
from course_lib.trace import FREE, Held, Holdings

_LAYERS, _LAYER_PARAMETERS = 3, 600_000_000  # divisible by every number of ranks
_HIGH = {"weights": 10.0, "gradients": 10.0, "states": 50.0}


def zero(stage: int = 2, ranks: int = 4) -> Stepper:
    """Stepper through one update of three layers. Raises ValueError for values not offered."""
    controls = {
        "stage": choice("stage", stage, (0, 1, 2, 3)),
        "ranks": whole("ranks", ranks, 2, 6),
    }
    return Stepper(controls, _Zero)


# Titles and captions by kind of step.
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
# Frame of the affected layer's cells, by kind of step and kind of state.
_FRAMES = {
    ("forward", "weights"): "forward",
    ("backward", "weights"): "backward",
    **dict.fromkeys([("gather", "weights"), ("publish", "weights")], "messages"),
    **dict.fromkeys([("all-reduce", "gradients"), ("reduce-scatter", "gradients")], "messages"),
}


class _Zero(Story):
    """A column per rank. Heights are in proportion to bytes: states take six times the weights."""

    def __init__(self, stage: int, ranks: int) -> None:
        self.ranks, self.trace = ranks, zero_steps(_LAYER_PARAMETERS, _LAYERS, ranks, stage)
        # An all-reduce takes two times, the second one fractional; both belong to one step.
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
        """The kind of step, a key of `_TITLES`, and the index of its layer."""
        now = self.now(step)
        event = next((one for one in now if one.to is not None), now[0])
        if not step or event.what in ("forward", "backward", "update"):
            return event.what if step else "begin", event.part if step and event.part else 0
        kind, layer, _ = event.part
        kinds = {"gathered": "gather", "gradients": event.label, "weights": "publish"}
        return "free" if event.what == FREE else kinds[kind], layer

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
            for row_layer in range(_LAYERS):
                name = f"{'optimizer' if kind == 'states' else kind} {row_layer + 1}"
                frame = _FRAMES.get((what, kind), "") if row_layer == layer else ""
                high[name] = points
                grid[name] = {
                    name: self.cell(held[rank], rank, (kind, row_layer))._replace(frame=frame)
                    for rank, name in enumerate(ranks)
                }
        total = Cell(format_bytes(self.total(step), digits=1), slots=0, bold=True)
        grid["a rank holds"] = dict.fromkeys(ranks, total)
        bold = [f"{kind} {layer + 1}" for kind in ("weights", "gradients")]
        moving = [row for row, line in grid.items() if line and line[ranks[0]].frame == "messages"]
        sums = dict.fromkeys(("weights", "gathered", "gradients", "states"), 0)
        for (kind, _, _), part in held[0].items():
            sums[kind] += part.bytes
        holds = ", ".join(f"{format_bytes(size)} of {kind}" for kind, size in sums.items())
        sent = format_bytes(self.sent(step))
        cells = Cells(
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
        )
        notes = ["dots: weights of after the update; green: between all ranks, and what has come"]
        key = ("weights", "gathered", "own gradients", "summed gradients", "states", "update")
        # Arrows between neighbours stand for all pairs of ranks, so the sentence leaves them out.
        title = self.say(step, _TITLES)
        drawing = page(title, cells, notes=notes, key=key)
        said = f"each of {self.ranks} ranks holds {holds} and has sent {sent}"
        drawing.sentence = f"{title}: {said}."
        return drawing

    def cell(self, held: Mapping[Any, Held], rank: int, of: tuple[str, int]) -> Cell:
        """A cell that fills the slices a rank holds of `of`, a kind of state and a layer."""
        own = {part: held[*of, part] for part in range(self.ranks) if (*of, part) in held}
        kind, layer = of
        filled = {part: kind for part in own}
        if kind == "gradients":
            whose = {p: "own" if one.of == (rank,) else "summed" for p, one in own.items()}
            filled = {p: f"{word} {kind}" for p, word in whose.items()}
        if kind == "weights":
            gathered = {part for whole, at, part in held if (whole, at) == ("gathered", layer)}
            filled = dict.fromkeys(gathered, "gathered") | filled
        dots = [part for part, one in own.items() if one.label and kind == "weights"]
        return Cell("", filled, self.ranks, dots=dots)

    def rows(self, step: int) -> Rows:
        most = max(map(self.total, range(step + 1)))
        return (
            ("most held so far", format_bytes(most)),
            ("sent so far", f"{format_bytes(self.sent(step))} by each rank"),
        )

    def caption(self, step: int) -> str:
        return self.say(step, _CAPTIONS)
