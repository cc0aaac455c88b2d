"""Steppers of chapter 0."""

from course_lib.chapters.ch00_start_here import figures
from course_lib.figures.paper.drawing import Drawing
from course_lib.panels.stepper import Stepper, Story
from course_lib.theory.inputs.published import LLAMA3_405B
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.memory.states import local_parameters
from course_lib.theory.network.mesh import Talk, sent_bytes, sent_in_turn, who_talks

_TITLE = "Llama 3 405B on 16,384 GPUs"
_LIT = {
    "one": "One GPU has {gpu} of memory. The model does not fit.",
    "tp": "So {tp} GPUs of one computer share every matrix, and add up their partial results in "
    "each layer.",
    "pp": "{pp} groups hold the {layers} layers, a few each, and pass their results on.",
    "copy": "{tp} × {pp} = {copy} GPUs hold one copy of the model.",
    "dp": "{dp} copies read different texts. After each update all must have the same weights.",
    "groups": "So each GPU talks in three directions, and most bytes go the shortest way.",
    "all": "All {world:,} GPUs work on each update together, and wait for the slowest.",
}


def block() -> Stepper:
    """Seven steps from one GPU to all; layout and model as published (arXiv:2407.21783)."""
    return Stepper({}, _Block)


class _Block(Story):
    def __init__(self) -> None:
        exchanges = who_talks(LLAMA3_405B)
        self.trace, self.steps = sent_in_turn(exchanges), _block_steps(exchanges)
        self.count = len(self.steps)

    def picture(self, step: int) -> Drawing:
        lit, _, fact = self.steps[step]
        return figures.block_step(LLAMA3_405B.layout, lit, _TITLE, fact)

    def caption(self, step: int) -> str:
        return self.steps[step][1]

    def result(self, step: int) -> tuple[str, tuple[str, str]]:
        """Return what is lit at `step`, and its fact: a number and what it means."""
        lit, _, fact = self.steps[step]
        return lit, fact


def _block_steps(exchanges: tuple[Talk, ...]) -> list[tuple[str, str, tuple[str, str]]]:
    """For each step: what is lit, its caption, and a number with its meaning."""
    job, layout, shape = LLAMA3_405B, LLAMA3_405B.layout, LLAMA3_405B.shape
    sent = {
        axis: format_bytes(sent_bytes(exchanges, axis), digits=0) for axis in ("tp", "pp", "dp", "")
    }
    groups = {exchange.message.axis: len(exchange.group) for exchange in exchanges}
    tp, pp, dp = (groups[axis] for axis in ("tp", "pp", "dp"))
    weights, held = shape.parameters().total, local_parameters(shape, layout, 1).total
    gpu = format_bytes(job.cluster.accelerator.memory_bytes, digits=0)
    facts = {
        "one": (
            format_bytes(weights * job.recipe.weight_bytes, digits=0),
            "for the weights alone, before anything that training adds",
        ),
        "tp": (sent["tp"], f"each of the {tp} sends in one update, over the fast links inside"),
        "pp": (sent["pp"], "each GPU sends to its neighbours in one update, over the network"),
        "copy": (
            f"{held / 1e9:.1f} billion",
            f"of {weights / 1e9:.0f} billion weights are on a GPU",
        ),
        "dp": (sent["dp"], "of gradients and weights each GPU sends in one update"),
        "groups": (sent[""], "each GPU sends in one update, in all"),
        "all": (
            f"{job.tokens_per_update / 1e6:.1f} million",
            "tokens of text are read in one update",
        ),
    }
    sizes = {"gpu": gpu, "tp": tp, "pp": pp, "dp": dp, "copy": tp * pp, "world": layout.world}
    sizes["layers"] = shape.layers
    return [(lit, _LIT[lit].format(**sizes), fact) for lit, fact in facts.items()]
