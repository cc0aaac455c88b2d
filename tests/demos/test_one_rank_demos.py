"""The demos of data parallelism in one process, of spread models, and of checkpointing."""

import json
import subprocess
import sys

import pytest

from course_lib import demos, launch
from course_lib.demos import checkpointing, data_parallel, multi_device

SMALL = {"model": "3x16x2", "steps": 3, "batch": 7, "sequence": 8}


def run(name, ranks, **options):
    return demos.run(name, ranks=ranks, stream=False, **{**SMALL, **options})


@pytest.mark.parametrize(("ranks", "devices"), [(2, 3), (4, 2)])
def test_data_parallel_copies_its_weights_in_each_update(ranks, devices):
    result = run("data_parallel", ranks, devices=devices)
    by_hand, library, *ddp = result.versions
    size = by_hand.stored["weights"]
    assert by_hand.stored["weights, copied"] == (devices - 1) * size
    assert by_hand.sent == library.sent == {}
    assert [version.sent for version in ddp] == [{"all-reduce": [1, size]}] * (ranks > 1)
    assert f"{(devices - 1) * size:,} B of weights" in result.report()
    assert "here it is a plain call of the model" in result.report()


@pytest.mark.parametrize(("ranks", "devices"), [(2, 3), (4, 2)])
def test_a_spread_model_is_equal_to_one_process(ranks, devices):
    result = run("multi_device", ranks, devices=devices)
    assert len(result.versions) == 2
    assert "device_ids [0], output_device None" in result.report()


@pytest.mark.parametrize(("ranks", "segment"), [(2, 0), (2, 1), (4, 3)])
def test_checkpointing_keeps_and_computes_what_is_predicted(ranks, segment):
    for rank, result in enumerate(
        launch.run(
            checkpointing.main,
            checkpointing.Options(**SMALL, segment=segment),
            ranks=ranks,
            stream=False,
        )
    ):
        without, by_hand, library = result.costs
        assert result.segments == {0: 2, 1: 3, 3: 1}[segment]
        assert by_hand.kept_bytes == library.kept_bytes < without.kept_bytes
        assert [cost.dropout_difference for cost in result.costs] == [0.0, 0.0, 0.0]
        # The layers' forward pass once more: a third of their model FLOPs.
        options, samples = checkpointing.Options(**SMALL), len(range(rank, 7, ranks))
        shape, sequence = options.training().shape(), SMALL["sequence"]
        blocks = checkpointing.training_flops(shape, samples, sequence)
        extra = by_hand.flop - without.flop
        assert 3 * extra == blocks.model_flop - blocks.head_flop
        assert library.flop < by_hand.flop


def test_alone_it_is_a_world_of_one(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # several threads are slow on a busy machine
    command = [sys.executable, "-m", "course_lib.demos.checkpointing", "--json"]
    command += [f"--{key}={value}" for key, value in SMALL.items()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(done.stdout.splitlines()[-1])["comparison"]["ranks"] == 1


@pytest.mark.parametrize(
    ("module", "option", "message"),
    [
        (checkpointing, {"segment": 9}, "segment must be at most 4"),
        (checkpointing, {"dropout": 1.0}, "dropout must be below 1, got 1.0"),
        (checkpointing, {"dropout": -0.1}, "dropout must be at least 0"),
        (multi_device, {"devices": 3}, "devices 3 are more than the model's 2 layers"),
        (data_parallel, {"devices": 0}, "devices must be at least 1"),
        (data_parallel, {"model": "big"}, "neither one of tiny"),
    ],
)
def test_bad_options_are_explained(module, option, message):
    with pytest.raises(ValueError, match=message):
        module.Options(**option)


def test_fewer_samples_than_ranks_are_refused():
    with pytest.raises(launch.RankFailed, match="batch 1 leaves some of 2 ranks without a sample"):
        run("multi_device", 2, batch=1)
