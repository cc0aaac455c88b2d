"""The stepper of chapter 3: one training step, and what is in the memory at each moment."""

from collections.abc import Mapping

from course_lib import figures
from course_lib.panels.controls import choice, powers_of_two, whole
from course_lib.panels.panel import View
from course_lib.panels.stepper import Stepper, Story
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.memory.step_timeline import StepMoment, StepTimeline, step_timeline

_NAMED = 3  # in the table; the picture shows the others
_CAPTIONS = {
    ("forward", "embedding"): "The tokens become vectors. Nothing is kept for backward yet.",
    ("forward", "layer"): "{what} computes, and leaves its intermediate results for backward.",
    ("forward", "again"): "{what} computes, and keeps only its input for backward.",
    ("backward", "again"): "{what} is computed once more: all it had thrown away is there again.",
    ("forward", "head"): "The head and the loss leave their results too: forward is over.",
    (
        "backward",
        "loss",
    ): "Backward begins: the logits' gradients come on top of all that was kept.",
    ("backward", "layer"): "Backward through {what}: what it kept is used for the last time.",
    ("backward", "end"): "Backward ends at the embedding: now all gradients are there.",
    ("update", "update"): "The optimizer reads the gradients and changes the weights.",
    ("update", "after"): "The gradients are thrown away. The next step begins as this one did.",
}


def memory_step(layers: int = 4, samples: int = 8, recompute: str = "none") -> Stepper:
    """One update of the chapter's small GPT in fp32, moment by moment.

    Raises ValueError for starting values outside the controls.
    """
    controls = {
        "layers": whole("layers", layers, 2, 8),
        "samples": powers_of_two("samples", samples, 1, 64),
        "recompute": choice("recompute", recompute, ["none", "full"]),
    }
    return Stepper(controls, _story)


def _story(layers: int, samples: int, recompute: str) -> Story:
    shape = TransformerShape(layers, hidden=64, heads=4, ffn=256, vocab=128, context=64)
    recipe = Recipe(
        "fp32",
        "fp32",
        master_copy=False,
        gradient_life="backward",
        loss="eager",
        recompute=recompute,
    )
    job = Job(shape, recipe, Layout(micro_batch=samples))
    run = step_timeline(job, overhead_bytes=0)
    return Story(len(run.steps), lambda step: _view(run, step, recompute))


def _view(run: StepTimeline, step: int, recompute: str) -> View:
    now = run.steps[step]
    before = run.steps[step - 1].bill.consumers if step else now.bill.consumers
    held = now.bill.consumers
    changed = [
        f"{name} {'+' if held[name] > size else '−'}{format_bytes(abs(held[name] - size))}"
        for name, size in before.items()
        if held[name] != size
    ]
    rows = (
        ("in memory", format_bytes(now.bill.total_bytes)),
        ("of it", _largest(held)),
        ("change", ", ".join(changed) or "none"),
    )
    return View(now, rows, lambda: figures.memory_step(run, step), _caption(now, recompute))


def _largest(held: Mapping[str, int]) -> str:
    """The three that hold most, and all others together: it fits in a line."""
    sizes = sorted(((size, name) for name, size in held.items() if size), reverse=True)
    said = [f"{name} {format_bytes(size)}" for size, name in sizes[:_NAMED]]
    if rest := sum(size for size, _ in sizes[_NAMED:]):
        said.append(f"the rest {format_bytes(rest)}")
    return ", ".join(said)


def _caption(now: StepMoment, recompute: str) -> str:
    kind = "end" if now.what.endswith("end") else now.what.split()[0]
    if kind == "layer" and recompute == "full":
        kind = "again"
    sentence = _CAPTIONS[now.phase, kind].format(what=now.what)
    return sentence[0].upper() + sentence[1:]
