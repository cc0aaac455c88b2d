"""Steppers of chapter 3."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby

from course_lib.figures.engines.lanes import Lanes, Levels
from course_lib.figures.engines.page import page
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.panels.controls import choice, powers_of_two, whole
from course_lib.panels.panel import Rows
from course_lib.panels.stepper import Stepper, Story
from course_lib.theory.inputs import Job, Layout, Recipe, TransformerShape
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.memory.step_timeline import step_timeline
from course_lib.trace import TAKE

_NAMED = 3  # consumers named in the table; the picture shows all
_CAPTIONS = {
    ("forward", "embedding"): "The tokens become vectors. Nothing is kept for backward yet.",
    ("forward", "layer"): "{} computes, and leaves its intermediate results for backward.",
    ("forward", "again"): "{} computes, and keeps only its input for backward.",
    ("backward", "again"): "{} is computed once more: all it had thrown away is there again.",
    ("forward", "head"): "The head and the loss leave their results too: forward is over.",
    ("backward", "loss"): "Backward begins: "
    "the logits' gradients come on top of all that was kept.",
    ("backward", "layer"): "Backward through {}: what it kept is used for the last time.",
    ("backward", "end"): "Backward ends at the embedding: now all gradients are there.",
    ("update", "update"): "The optimizer reads the gradients and changes the weights.",
    ("update", "after"): "The gradients are thrown away. The next step begins as this one did.",
}


def memory_step(layers: int = 4, samples: int = 8, recompute: str = "none") -> Stepper:
    """Stepper through one update of the chapter's small GPT in fp32, moment by moment.

    Raises ValueError for starting values outside the controls.
    """
    controls = {
        "layers": whole("layers", layers, 2, 8),
        "samples": powers_of_two("samples", samples, 1, 64),
        "recompute": choice("recompute", recompute, ["none", "full"]),
    }
    return Stepper(controls, _Step)


class _Step(Story):
    def __init__(self, layers: int, samples: int, recompute: str) -> None:
        shape = TransformerShape(layers, hidden=64, heads=4, ffn=256, vocab=128, context=64)
        recipe = Recipe("fp32", "fp32", master_copy=False, gradient_life="backward", loss="eager")
        job = Job(shape, replace(recipe, recompute=recompute), Layout(micro_batch=samples))
        self.run, self.recompute = step_timeline(job, overhead_bytes=0), recompute
        self.trace = self.run.trace

    def held(self, step: int) -> Mapping[str, int]:
        return {str(name): part.bytes for name, part in self.trace.held(step)[0].items()}

    def picture(self, step: int) -> Drawing:
        moments, over, now = self.run.steps, (0.0, float(self.count)), step + 1.0
        passes = [event for event in self.trace if event.what != TAKE]
        stretches = [list(group) for _, group in groupby(passes, lambda event: event.what)]
        phases = [some[0]._replace(end=some[-1].until, label=some[0].what) for some in stretches]
        sizes = self.run.sizes  # the consumers that are always present are drawn at the bottom
        names = [
            name for name in dict.fromkeys(("weights", "optimizer", *sizes)) if any(sizes[name])
        ]
        levels = {name: list(enumerate(sizes[name])) for name in names}
        strip = Lanes({"": phases}, over=over, now=now, foot=False)
        curve = Levels(levels, over=over, name="in memory", now=now, high=150,
                       looks={"inputs and labels": (style.PALE, "/")})  # fmt: skip
        size, peak = format_bytes(moments[step].bill.total_bytes), self.run.peak
        title = f"now {size}: {moments[step].phase}, {moments[step].what}"
        note = f"The peak of {format_bytes(self.run.peak_bytes)}: {peak.phase}, {peak.what}."
        said = f"Moment {step + 1} of {self.count}, {title}"
        return page(title, curve, strip, key=names, notes=[note], sentence=said)

    def rows(self, step: int) -> Rows:
        held, before = self.held(step), self.held(max(0, step - 1))
        changed = [
            f"{name} {'+' if size > before.get(name, 0) else '−'}"
            f"{format_bytes(abs(size - before.get(name, 0)))}"
            for name, size in held.items()
            if size != before.get(name, 0)
        ]
        return (
            ("in memory", format_bytes(sum(held.values()))),
            ("of it", _largest(held)),
            ("change", ", ".join(changed) or "none"),
        )

    def caption(self, step: int) -> str:
        now = self.run.steps[step]
        kind = "end" if now.what.endswith("end") else now.what.split()[0]
        if kind == "layer" and self.recompute == "full":
            kind = "again"
        sentence = _CAPTIONS[now.phase, kind].format(now.what)
        return sentence[0].upper() + sentence[1:]


def _largest(held: Mapping[str, int]) -> str:
    """The three largest consumers and the sum of the others, in one line."""
    sizes = sorted(((size, name) for name, size in held.items() if size), reverse=True)
    said = [f"{name} {format_bytes(size)}" for size, name in sizes[:_NAMED]]
    if rest := sum(size for size, _ in sizes[_NAMED:]):
        said.append(f"the rest {format_bytes(rest)}")
    return ", ".join(said)
