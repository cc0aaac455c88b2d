"""A mixture of experts, against a loop over tokens; its all-to-all, against a table of rows."""

from math import ceil

import pytest
import torch

from course_lib.scratch.experts import BiasedRouter, MoE, balance_loss

HIDDEN, EXPERTS = 8, 4


def build(top_k=2, capacity_factor=None, experts=EXPERTS):
    torch.manual_seed(0)
    return MoE(HIDDEN, experts, top_k, capacity_factor)


def tokens(count):
    return torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(1))


def token_by_token(moe, x, capacity):
    """The definition: each token in turn asks its experts, which are full at `capacity`."""
    accepted_by = [0] * EXPERTS
    rows = []
    for token in x:
        probabilities = moe.router.scores(token).softmax(-1)
        best = probabilities.topk(moe.router.top_k).indices
        whole = probabilities[best].sum() if moe.router.top_k > 1 else 1.0
        row = torch.zeros(HIDDEN)
        for expert in best.tolist():
            if accepted_by[expert] < capacity:
                accepted_by[expert] += 1
                row = row + probabilities[expert] / whole * moe.experts[str(expert)](token)
        rows.append(row)
    return torch.stack(rows)


@pytest.mark.parametrize(("top_k", "factor"), [(1, 0.5), (2, None), (2, 1.0), (4, 0.01)])
def test_equal_to_a_loop_over_tokens(top_k, factor):
    moe, x = build(top_k, factor), tokens(21)
    capacity = 10**6 if factor is None else ceil(factor * 21 * top_k / EXPERTS)
    out = moe(x[None])[0]
    assert torch.allclose(out, token_by_token(moe, x, capacity), atol=1e-6)
    assert int(moe.kept.max()) <= capacity
    assert int(moe.counts.sum()) == 21 * top_k


def test_balance_loss_is_one_when_even_and_n_when_all_go_to_one():
    even = balance_loss(torch.tensor([5, 5]), torch.full((3, 2), 0.5))
    uneven = balance_loss(torch.tensor([10, 0]), torch.tensor([[1.0, 0.0]]))
    assert float(even) == pytest.approx(1.0)
    assert float(uneven) == pytest.approx(2.0)


def test_a_bias_changes_the_choice_and_not_the_weights():
    torch.manual_seed(0)
    router, x = BiasedRouter(HIDDEN, EXPERTS, 2), tokens(6)
    router.bias[3] = 2.0  # more than any probability
    chosen, weights, probabilities = router(x)
    assert (chosen == 3).any(dim=1).all()
    picked = probabilities.gather(1, chosen)
    assert torch.allclose(weights, picked / picked.sum(1, keepdim=True))
    weights[:, 0].sum().backward()
    assert router.bias.grad is None and "bias" not in dict(router.named_parameters())


def test_a_nudge_by_hand():
    router = BiasedRouter(HIDDEN, EXPERTS, 1)
    router.nudge(torch.tensor([5, 1, 2, 0]), 0.5)
    router.nudge(torch.tensor([5, 1, 2, 0]), 0.25)
    assert router.bias.tolist() == [-0.75, 0.75, 0.0, 0.75]  # 2 is the mean
