"""The demos of several devices in one process, and of checkpointing."""

from together import by_rank

from course_lib import demos
from course_lib.chapters.ch04_activations.demos import checkpointing

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
