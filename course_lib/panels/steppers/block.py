"""The stepper of chapter 0: Llama 3 405B's 16,384 GPUs, and the groups of one of them."""

from course_lib import figures
from course_lib.panels.panel import View
from course_lib.panels.stepper import Stepper, Story
from course_lib.theory.inputs.published import LLAMA3_405B as JOB
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.memory.states import local_parameters
from course_lib.theory.network.who_talks import Talk, who_talks

_TITLE = "Llama 3 405B on 16,384 GPUs"


def block() -> Stepper:
    """Seven steps from one GPU to all; layout and model as published (arXiv:2407.21783)."""
    return Stepper({}, _story)


def _story() -> Story:
    steps = _steps(who_talks(JOB))
    return Story(len(steps), lambda step: _view(*steps[step]))


def _view(lit: str, caption: str, fact: tuple[str, str]) -> View:
    return View((lit, fact), (), lambda: figures.block_step(JOB.layout, lit, _TITLE, fact), caption)


def _steps(talks: tuple[Talk, ...]) -> list[tuple[str, str, tuple[str, str]]]:
    """What is lit, one sentence, and a number with its meaning, for each step."""
    layout, shape = JOB.layout, JOB.shape
    sent = {axis: _sent(talks, axis) for axis in ("tp", "pp", "dp")}
    (tp,) = {len(talk.group) for talk in talks if talk.message.axis == "tp"}
    (pp,) = {len(talk.group) for talk in talks if talk.message.axis == "pp"}
    (dp,) = {len(talk.group) for talk in talks if talk.message.axis == "dp"}
    weights = shape.parameters().total
    held = local_parameters(shape, layout, 1).total
    gpu = JOB.cluster.accelerator.memory_bytes
    return [
        (
            "one",
            f"One GPU has {format_bytes(gpu, digits=0)} of memory. The model does not fit.",
            (
                format_bytes(weights * JOB.recipe.weight_bytes, digits=0),
                "for the weights alone, before anything that training adds",
            ),
        ),
        (
            "tp",
            f"So {tp} GPUs of one computer share every matrix, and add up their partial results "
            "in each layer.",
            (sent["tp"], f"each of the {tp} sends in one update, over the fast links inside"),
        ),
        (
            "pp",
            f"{pp} groups hold the {shape.layers} layers, a few each, and pass their results on.",
            (sent["pp"], "each GPU sends to its neighbours in one update, over the network"),
        ),
        (
            "copy",
            f"{tp} × {pp} = {tp * pp} GPUs hold one copy of the model.",
            (f"{held / 1e9:.1f} billion", f"of {weights / 1e9:.0f} billion weights are on a GPU"),
        ),
        (
            "dp",
            f"{dp} copies read different texts. After each update all must have the same weights.",
            (sent["dp"], "of gradients and weights each GPU sends in one update"),
        ),
        (
            "groups",
            "So each GPU talks in three directions, and most bytes go the shortest way.",
            (_all(talks), "each GPU sends in one update, in all"),
        ),
        (
            "all",
            f"All {layout.world:,} GPUs work on each update together, and wait for the slowest.",
            (f"{JOB.tokens_per_update / 1e6:.1f} million", "tokens of text are read in one update"),
        ),
    ]


def _sent(talks: tuple[Talk, ...], axis: str) -> str:
    total = sum(talk.message.total_bytes for talk in talks if talk.message.axis == axis)
    return format_bytes(total, digits=0)


def _all(talks: tuple[Talk, ...]) -> str:
    return format_bytes(sum(talk.message.total_bytes for talk in talks), digits=0)
