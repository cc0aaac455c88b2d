"""The stepper of chapter 12: keys and values go round, under the causal mask."""

from course_lib import figures
from course_lib.panels.controls import choice, whole
from course_lib.panels.panel import View
from course_lib.panels.stepper import Stepper, Story
from course_lib.theory.network.context_steps import RingAttentionSteps, ring_attention_steps

_ORDERS = {"in order": False, "zig-zag": True}
_TOKENS = 16  # of each rank


def ring_attention(ranks: int = 4, zigzag: bool = False) -> Stepper:
    """The story of `ring_attention_steps`, 16 tokens on each rank.

    Raises ValueError for starting values that are not offered.
    """
    controls = {
        "ranks": whole("ranks", ranks, 2, 8),
        "zigzag": choice("slices", zigzag, _ORDERS),
    }
    return Stepper(controls, _story)


def _story(ranks: int, zigzag: bool) -> Story:
    result = ring_attention_steps(_TOKENS * ranks, ranks, zigzag=zigzag)
    return Story(2 * ranks, lambda step: _view(result, step))


def _view(result: RingAttentionSteps, moment: int) -> View:
    rows = (
        ("scores of each rank", ", ".join(f"{scores:,}" for scores in result.rank_scores)),
        ("all steps last", f"{result.lasting_scores:,} scores; busy {result.busy_fraction:.0%}"),
    )
    return View(
        (result, moment),
        rows,
        lambda: figures.ring_attention_step(result, moment),
        _caption(result, moment),
    )


def _caption(result: RingAttentionSteps, moment: int) -> str:
    step = max(moment - 1, 0) // 2
    if moment == 0:
        return "Each rank has its own queries, and at first its own keys and values."
    if moment % 2 == 0:
        return f"Hop {step + 1}: every rank hands its keys and values on and keeps its queries."
    blocks = [len(own) for own in result.steps[step].blocks]
    idle = blocks.count(0)
    if idle:
        have = (
            "may use none of the keys they hold, and wait"
            if idle > 1
            else "may use none of its keys, and waits"
        )
        wait = f"{idle} of {result.ranks} ranks {have}"
    else:
        each = f"{blocks[0]} block{'s' if blocks[0] > 1 else ''}"
        wait = f"every rank works on {each} of its queries"
    return f"Step {step + 1}: {wait}."
