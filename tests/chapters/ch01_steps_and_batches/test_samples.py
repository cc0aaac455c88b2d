"""The samples demo against the theory of batches."""

import pytest
from together import runs

from course_lib import demos
from course_lib.theory.step.batching import Batching, rank_samples

EPOCHS = {"samples": 20, "batch": 4, "epochs": 2}


@pytest.fixture(scope="module")
def three():
    cases = {
        "unshuffled": {"samples": 10, "batch": 2, "epochs": 1, "shuffle": False},
        "dropped": {"samples": 11, "batch": 2, "drop_last": True},
    }
    return runs("samples", cases, ranks=3)


@pytest.fixture(scope="module")
def two():
    cases = {
        True: {**EPOCHS, "set_epoch": True},
        False: {**EPOCHS, "set_epoch": False},
        "repeated": {"samples": 3, "batch": 2, "epochs": 1, "shuffle": False},
    }
    return runs("samples", cases)


def test_unshuffled_samples_are_as_predicted(three):
    result = three["unshuffled"]
    assert result.by_rank(0) == [rank_samples(10, 3, rank) for rank in range(3)]
    assert len(result.repeated()) == Batching(10, 2, gpus_per_node=3).epoch().repeated


def test_drop_last_is_as_predicted(three):
    result = three["dropped"]
    epoch = Batching(11, 2, gpus_per_node=3, drop_last=True).epoch()
    assert result.steps() == epoch.micro_steps
    assert len(result.missed()) == epoch.dropped
    assert not result.repeated()


def test_set_epoch_decides_whether_the_order_changes(two):
    for set_epoch in (True, False):
        result = two[set_epoch]
        assert (result.by_rank(0) != result.by_rank(1)) == set_epoch


def test_ranks_print_what_they_see(capsys):
    demos.run("samples", ranks=2, samples=4, epochs=1, shuffle=False)
    lines = sorted(line for line in capsys.readouterr().out.splitlines() if "epoch 0" in line)
    assert lines == ["[rank 0] epoch 0: [[0, 2]]", "[rank 1] epoch 0: [[1, 3]]"]
