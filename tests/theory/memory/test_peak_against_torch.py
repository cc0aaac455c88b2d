"""The moments of an update against a real step: every tensor's birth and death is followed."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from every import every
from torch.utils.checkpoint import checkpoint

from course_lib.measure.peak import log_memory
from course_lib.scratch.gpt import GPT
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.memory.peak import memory_moments

FP32 = Recipe("fp32", "fp32", master_copy=False, gradient_life="backward", loss="eager")
FOREACH = {True: "foreach", False: "fused"}


class Recomputed(torch.nn.Module):
    """A layer that keeps its input alone."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.layer, x, use_reentrant=False)


def peaks(
    shape: TransformerShape, samples: int, foreach: bool, recomputed: int = 0
) -> dict[str, int]:
    """Most bytes during the backward pass and during the update of a second step.

    The first layers, `recomputed` of them, keep their inputs alone.
    """
    model = GPT(shape.layers, shape.hidden, shape.heads, shape.vocab, shape.context)
    for number in range(recomputed):
        model.blocks[number] = Recomputed(model.blocks[number])
    optimizer = torch.optim.AdamW(model.parameters(), foreach=foreach)
    tokens, labels = (torch.randint(shape.vocab, (samples, shape.context)) for _ in range(2))

    def gradients() -> None:
        loss = F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())
        loss.backward()

    gradients()
    optimizer.step()
    optimizer.zero_grad()
    states = [it for state in optimizer.state.values() for it in state.values()]
    with log_memory([*model.parameters(), *states, tokens, labels]) as log:
        gradients()
        before = log.mark()
        optimizer.step()
    backward = max(log.timeline[: before + 1])
    return {"backward": backward, "update": log.since(before).peak_bytes}


SIX, NARROW = (6, 128, 4, 64, 128), (6, 64, 4, 16, 32)


@every(
    ("sizes", "samples", "foreach", "recomputed", "moment"),
    [
        (SIX, 16, True, 0, "backward begins"),
        ((3, 64, 4, 16, 32), 64, True, 0, "backward begins"),
        ((2, 256, 4, 4096, 64), 4, True, 0, "loss"),
        (SIX, 16, False, 0, "backward begins"),
        (SIX, 16, True, 5, "backward begins"),
        *((NARROW, 64, True, some, "backward begins") for some in (3, 6)),
    ],
)
def test_moments_are_those_of_a_step(sizes, samples, foreach, recomputed, moment):
    layers, hidden, heads, vocab, context = sizes
    shape = TransformerShape(layers, hidden, heads, 4 * hidden, vocab, context)
    some = {"recompute": "full", "recompute_layers": recomputed} if recomputed else {}
    recipe = replace(FP32, update=FOREACH[foreach], **some)
    moments = memory_moments(Job(shape, recipe, Layout(micro_batch=samples)), overhead_bytes=0)
    predicted = {name: bill.total_bytes for name, bill in moments.items()}
    measured = peaks(shape, samples, foreach, recomputed)
    first = {name: predicted[name] for name in ("loss", "backward begins", "backward ends")}
    assert max(first, key=first.__getitem__) == moment
    assert max(first.values()) == pytest.approx(measured["backward"], rel=0.015 if some else 0.012)
    # AdamW that is neither fused nor foreach has temporaries of one parameter at a time.
    temporary = 0 if foreach else 3 * 4 * 4 * hidden * hidden
    assert predicted["update"] == pytest.approx(measured["update"], rel=0.015, abs=temporary)
