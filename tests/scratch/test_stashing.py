"""A pipeline without a flush: what each gradient is the gradient of."""

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from course_lib.chapters.ch14_parameter_servers.exchanges import weight_versions
from course_lib.measure.gradients import relative_difference
from course_lib.scratch.pipeline import StashingStage, gradients_at, train

COUNT = 12


def modules(stages):
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(stages)]


def batches():
    torch.manual_seed(1)
    return [(torch.randn(4, 6), torch.randn(4, 6)) for _ in range(COUNT)]


def trained(stages, stash=True):
    found = [StashingStage(module, 0.5, stash) for module in modules(stages)]
    return found, train(found, batches())


def test_one_stage_is_plain_sgd():
    (stage,), losses = trained(1)
    (alone,) = modules(1)
    for number, (inputs, targets) in enumerate(batches()):
        loss = mse_loss(alone(inputs), targets)
        assert losses[number] == pytest.approx(loss.item(), rel=1e-6)
        alone.zero_grad()
        loss.backward()
        with torch.no_grad():
            for weight in alone.parameters():
                weight -= 0.5 * weight.grad
    for ours, theirs in zip(stage.module.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)


def test_versions_and_delays_are_those_of_the_theory():
    for stages in (1, 2, 4):
        found, losses = trained(stages)
        assert len(losses) == COUNT
        for place, stage in enumerate(found):
            versions = weight_versions(stages, place)
            assert stage.most_flying == versions
            # While the pipeline fills, micro-batches find the first weights.
            assert stage.late == [min(number, versions - 1) for number in range(COUNT)]


def gaps(stages, stash, weights):
    """|g - g_true| / |g_true| of each micro-batch and stage, at weights(stage, micro-batch)."""
    found, _ = trained(stages, stash)
    return [
        [
            float(relative_difference(stage.gradients[number], true))
            for stage, true in zip(
                found,
                gradients_at(modules(stages), [weights(x, number) for x in found], batch),
                strict=True,
            )
        ]
        for number, batch in enumerate(batches())
    ]


def test_with_the_stash_gradients_are_true_at_the_weights_of_the_forward_pass():
    for row in gaps(4, True, lambda stage, number: stage.weights[number]):
        assert max(row) < 1e-6


def test_without_the_stash_they_are_true_nowhere():
    """Neither where the forward pass was, nor where the backward pass was."""
    used = gaps(4, False, lambda stage, number: stage.weights[number])
    # Version m is what micro-batch m + late has found.
    newer = gaps(
        4, False, lambda stage, number: stage.weights[min(number + stage.late[-1], COUNT - 1)]
    )
    for row in used[4:-4] + newer[4:-4]:
        assert row[0] > 1e-3
    for row in used:
        assert row[3] < 1e-6  # the last stage goes back at once
