"""The demos of several devices in one process, and of checkpointing."""

import pytest
from together import by_rank, refused

from course_lib import demos, launch, mine
from course_lib.demos import checkpointing

SMALL = {"model": "3x16x2", "steps": 3, "batch": 7, "sequence": 8}


# By ranks: how many devices each of them has.
DEVICES = {2: 3, 4: 2}


def test_devices_of_one_process():
    for ranks, devices in DEVICES.items():
        result = demos.run("multi_device", ranks=ranks, stream=False, **SMALL, devices=devices)
        by_hand, library, *ddp = result.versions
        size = by_hand.stored["weights"]
        assert by_hand.stored["weights, copied"] == (devices - 1) * size
        assert by_hand.sent == library.sent == {}
        assert [version.sent for version in ddp] == [{"all-reduce": (1, size)}] * 2
        assert f"{(devices - 1) * size:,} B of weights" in result.report()
        assert "device_ids [0], output_device None" in result.report()


def test_checkpointing_keeps_and_computes_what_is_predicted():
    for ranks, segments in ((2, (0, 1)), (4, (3,))):
        cases = {segment: {"segment": segment} for segment in segments}
        for rank, results in enumerate(by_rank("checkpointing", cases, ranks, **SMALL)):
            for segment, result in results.items():
                check_costs(result, rank, ranks, segment)


OWN = """from pathlib import Path
import torch
from course_lib.scratch import checkpointing

class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, layers, x, *parameters):
        Path({trace!r}).touch()
        return checkpointing.Checkpoint.forward(ctx, layers, x, *parameters)

    @staticmethod
    def backward(ctx, gradient):
        {before}
        return checkpointing.Checkpoint.backward(ctx, gradient)
"""


def test_the_learners_own_checkpoint_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    kept = mine.file_of(mine.BY_NAME["Checkpoint"])
    kept.parent.mkdir()
    trace = tmp_path / "trace"
    kept.write_text(OWN.format(trace=str(trace), before="pass"))
    course = demos.run("checkpointing", ranks=1, stream=False, **SMALL)
    assert "checkpointing by hand" in course.report()
    assert not trace.exists()
    ours = demos.run("checkpointing", ranks=1, stream=False, parts="mine", **SMALL)
    assert "with your Checkpoint" in ours.report()
    assert trace.exists()
    kept.write_text(OWN.format(trace=str(trace), before="torch.rand(1); gradient = gradient * 2"))
    with pytest.raises(launch.RankFailed, match="with your Checkpoint: "):
        demos.run("checkpointing", ranks=1, stream=False, parts="mine", **SMALL)


def check_costs(result, rank, ranks, segment):
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


def test_fewer_samples_than_ranks_are_refused():
    few = "batch 1 leaves some of 2 ranks without a sample"
    refused("multi_device", [({"batch": 1}, few)], **SMALL)
