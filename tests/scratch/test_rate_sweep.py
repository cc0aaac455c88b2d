"""A sweep trains each table as if it were alone."""

import pytest
import torch
from torch.optim import SGD, Adam

from course_lib.scratch.accumulation import final_losses


@pytest.fixture
def text():
    return torch.randint(0, 5, (60,), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("optimizer", [SGD, Adam])
def test_a_table_does_not_notice_the_others(text, optimizer):
    together = final_losses(optimizer, (0.1, 0.4), 4, text, vocab=5, seen=64)
    for rate, loss in together.items():
        alone = final_losses(optimizer, (rate,), 4, text, vocab=5, seen=64)
        assert alone[rate] == loss


def test_one_full_update_by_hand(text):
    batch = 30
    generator = torch.Generator().manual_seed(0)
    at = torch.randint(len(text) - 1, (batch,), generator=generator)
    counts = torch.zeros(5, 5).index_put(
        (text[at], text[at + 1]), torch.ones(batch), accumulate=True
    )
    # At zero all five characters are equally likely: the gradient is (rows' counts / 5 - counts).
    table = -2.0 * (counts.sum(1, keepdim=True) / 5 - counts) / batch
    expected = -torch.log_softmax(table, dim=1)[text[:-1], text[1:]].mean()
    found = final_losses(SGD, (2.0,), batch, text, vocab=5, seen=batch)
    assert found[2.0] == pytest.approx(float(expected), rel=1e-5)


def test_no_updates_leave_the_loss_of_guessing(text):
    found = final_losses(SGD, (1.0,), 64, text, vocab=5, seen=63)
    assert found[1.0] == pytest.approx(float(torch.tensor(5.0).log()))
