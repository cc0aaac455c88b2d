"""Steppers of chapter 4."""

from itertools import groupby

from course_lib.figures.engines.cells import Cell, Cells
from course_lib.figures.engines.lanes import Lanes, Levels
from course_lib.figures.engines.page import page
from course_lib.figures.paper.drawing import Drawing
from course_lib.panels.controls import choice
from course_lib.panels.panel import Rows
from course_lib.panels.stepper import Stepper, Story
from course_lib.theory.inputs import MODELS, Job, Recipe
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.memory.layer_walk import OPERATIONS, SavedTensor, layer_walk
from course_lib.trace import FREE, TAKE

_RECOMPUTE = {"nothing": "none", "attention": "selective", "the whole layer": "full"}
_PHASES = {"forward": "forward", "again": "computed again", "backward": "backward"}
_SLOTS = 60  # cells in the widest bar
_HELD = "What each operation has stored for the backward pass, and its bytes."
_LINES = [*OPERATIONS[:3], "its scores", *OPERATIONS[3:]]


def layer(recompute: str = "none", attention: str = "standard") -> Stepper:
    """Stepper through `layer_walk` for a layer of GPT-3, one sequence of 2048 tokens.

    Raises ValueError for starting values that are not offered.
    """
    controls = {
        "recompute": choice("recompute", recompute, _RECOMPUTE),
        "attention": choice("attention", attention, ["standard", "flash"]),
    }
    return Stepper(controls, _Layer)


class _Layer(Story):
    def __init__(self, recompute: str, attention: str) -> None:
        recipe = Recipe(recompute=recompute, attention=attention, dropout=True)
        self.walk = layer_walk(Job(MODELS["gpt3-175b"], recipe, sequence=2048))
        self.trace, self.steps = self.walk.trace, self.walk.steps
        self.count = len(self.steps) + 1
        self.lines: dict[str, list[SavedTensor]] = {name: [] for name in _LINES}
        for one in self.walk.tensors:
            self.lines["its scores" if one.scores else one.saver].append(one)
        self.most = max(sum(one.size_bytes for one in line) for line in self.lines.values())

    def changed(self, step: int, what: str) -> list[SavedTensor]:
        parts = [event.part for event in self.trace.at(step) if event.what == what]
        return [one for one in self.walk.tensors if one in parts]

    def picture(self, step: int) -> Drawing:
        held = self.trace.held(step)[0]
        new, gone = self.changed(step, TAKE), self.changed(step, FREE)
        doing = self.steps[step - 1] if step else None

        def line(name: str, tensors: list[SavedTensor]) -> dict[str, Cell]:
            shown = [one for one in tensors if one.size_bytes and (one in held or one in gone)]
            used = bool(shown) and all(one in gone for one in shown)
            size = sum(one.size_bytes for one in shown)
            wide = max(1, round(_SLOTS * size / self.most)) if shown else 0
            filled = dict.fromkeys(range(wide), "others" if used else "activations")
            names = [one.name.split("'s ")[-1] if n else one.name for n, one in enumerate(shown)]
            text = f"{'used: ' * used}{', '.join(names)}, {format_bytes(size)}" if shown else ""
            bold = any(one in new for one in shown)
            frame = "backward" if used else "forward" if bold else ""
            now = doing is not None and doing.part == name
            return {
                "way": Cell("", {0: doing.what} if doing and now else {}, int(now)),
                "held": Cell(text, slots=0, bold=bold, wide=4),
                **dict.fromkeys("abc", Cell(slots=0)),
                "bytes": Cell("", filled, _SLOTS, frame=frame, wide=3),
                **dict.fromkeys("de", Cell(slots=0)),
            }

        ends = [(name, "way") for name in (_LINES[0], _LINES[-1])]
        if doing and doing.what == "backward":
            ends.reverse()
        table = Cells(
            {name: line(name, tensors) for name, tensors in self.lines.items()},
            past=[(ends[0], ends[1])] if doing else [],
            heads=False,
            high=16,
            gap=8,
            bold=[str(doing.part)] if doing else [""],
            note=_HELD,
        )
        over, now = (0.0, float(self.count)), step + 1.0
        turn = float(sum(event.what == "forward" for event in self.steps) + 1)
        marks = {"the other layers run here": turn}
        stretches = [list(group) for _, group in groupby(self.steps, lambda event: event.what)]
        passes = [
            some[0]._replace(end=some[-1].at + 1, label=_PHASES[some[0].what]) for some in stretches
        ]
        strip = Lanes({"": passes}, over=over, now=now, foot=False, marks=marks)
        levels = {"activations": self.trace.levels(0)}
        curve = Levels(levels, over=over, name="held", now=now)
        title = f"{_PHASES[doing.what]}: {doing.part}" if doing else "before the layer"
        now, kept = self.walk.held_bytes(step), self.walk.kept_bytes
        note = (
            f"Now {format_bytes(now)}, most {format_bytes(self.walk.peak_bytes)}, between the "
            f"passes {format_bytes(kept)}. One layer of GPT-3, 2048 tokens, 16 bits."
        )
        said = f"Step {step} of {self.count - 1}, {title}"
        return page(title, table, curve, strip, key=(), notes=[note], sentence=said)

    def rows(self, step: int) -> Rows:
        return (
            ("held now", format_bytes(self.walk.held_bytes(step))),
            ("held while the other layers run", format_bytes(self.walk.kept_bytes)),
        )

    def caption(self, step: int) -> str:
        if not step:
            return "The layer has not begun, and nothing is held."
        doing = self.steps[step - 1]
        name, kept, gone = str(doing.part), self.changed(step, TAKE), self.changed(step, FREE)
        if doing.what == "forward":
            what = f"backward will need {_names(kept)}" if kept else "nothing is kept for backward"
            return f"Forward, {name}: {what}."
        if doing.what == "again":
            what = f"now it keeps {_names(kept)}" if kept else "nothing new is kept"
            return f"{name[0].upper()}{name[1:]} once more, and {what}."
        what = f"it uses and frees {_names(gone)}" if gone else "it needs nothing that was kept"
        return f"Backward, {name}: {what}."


def _names(tensors: list[SavedTensor]) -> str:
    """The tensors' names and their total bytes."""
    size = format_bytes(sum(one.size_bytes for one in tensors))
    return f"{', '.join(one.name for one in tensors)} ({size})"
