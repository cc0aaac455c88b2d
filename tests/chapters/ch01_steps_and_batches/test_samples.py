"""The samples demo against the theory of batches, and what a picture of them says."""

from together import runs

from course_lib import demos
from course_lib.chapters.ch01_steps_and_batches.figures import batch_ladder
from course_lib.theory.step.batching import Batching, rank_samples


def test_samples_that_are_repeated_and_dropped_are_as_predicted():
    cases = {
        "repeated": {"samples": 10, "batch": 2, "epochs": 1, "shuffle": False},
        "dropped": {"samples": 11, "batch": 2, "drop_last": True},
    }
    found = runs("samples", cases, ranks=3)
    assert found["repeated"].by_rank(0) == [rank_samples(10, 3, rank) for rank in range(3)]
    epoch = Batching(10, 2, gpus_per_node=3).epoch()
    assert len(found["repeated"].repeated()) == epoch.repeated
    epoch = Batching(11, 2, gpus_per_node=3, drop_last=True).epoch()
    dropped = found["dropped"]
    assert dropped.steps() == epoch.micro_steps and len(dropped.missed()) == epoch.dropped
    assert not dropped.repeated()


def test_a_single_piece_of_a_batch_has_no_order():
    one, two = (batch_ladder(Batching(5 * n, 5, n)).sentence.split("; ") for n in (1, 2))
    assert one[:2] == ["One epoch has 1 update", "one update has 1 micro-step"]
    assert two[:2] == ["One epoch has 1 update", "one update has 2 micro-steps one after another"]


def test_set_epoch_decides_whether_the_order_changes():
    two_epochs = {"samples": 20, "batch": 4, "epochs": 2}
    found = runs("samples", {each: {**two_epochs, "set_epoch": each} for each in (True, False)})
    for set_epoch, result in found.items():
        assert (result.by_rank(0) != result.by_rank(1)) == set_epoch


def test_ranks_print_what_they_see(capsys):
    demos.run("samples", ranks=2, samples=4, epochs=1, shuffle=False)
    lines = sorted(line for line in capsys.readouterr().out.splitlines() if "epoch 0" in line)
    assert lines == ["[rank 0] epoch 0: [[0, 2]]", "[rank 1] epoch 0: [[1, 3]]"]
