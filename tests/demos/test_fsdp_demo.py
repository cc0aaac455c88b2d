"""The FSDP demo: both versions equal to one process, collectives and bytes as the theory says."""

import json
import subprocess
import sys
from functools import cache

import pytest

from course_lib import demos, launch
from course_lib.demos.fsdp import program as fsdp
from course_lib.demos.fsdp.prediction import flat_units, tensor_units
from course_lib.demos.shared.training import Training

MODEL = "2x32x4"


@cache
def run(ranks=2, **options):
    return demos.run("fsdp", ranks=ranks, stream=False, **{"steps": 3, "model": MODEL, **options})


def both(result, what):
    ours, library = (getattr(version, what) for version in result.versions)
    return ours, library


@pytest.mark.parametrize("ranks", [2, 4])
def test_equal_to_one_process_and_as_predicted(ranks):
    result = run(ranks)  # main() verifies losses, gradients, collectives and bytes
    for version in result.versions:
        assert version.predicted_stored == version.stored
        assert version.stored["weights"] == Training(MODEL).shape().parameters().total * 4 // ranks
    ours, library = both(result, "sent")
    assert ours == library


def test_two_gathers_and_one_reduction_a_layer():
    sent = run().versions[0].sent
    layers = 2
    assert sent["all-gather"][0] == 2 * layers + 1
    assert sent["reduce-scatter"][0] == layers + 1


def test_without_reshard_a_layer_is_gathered_once():
    result = run(reshard=False)
    for version in result.versions:
        assert version.sent["all-gather"] == version.sent["reduce-scatter"]
        assert version.sent["all-gather"][0] == 3


def test_uneven_sizes_are_padded_as_stated():
    result = run(3, model="2x20x2", batch=7, sequence=9)
    training = Training("2x20x2", batch=7, sequence=9)
    for version, units in zip(result.versions, (flat_units, tensor_units), strict=True):
        padding = units(training, 3)
        assert padding.root_padding + padding.layer_padding > 0
        gathered = padding.padded + 2 * (padding.layer + padding.layer_padding)
        assert version.sent["all-gather"] == [5, 4 * gathered]


def test_bf16_halves_the_gathers_and_nothing_else():
    whole, half = run(), run(precision="bf16")
    for one, other in zip(whole.versions, half.versions, strict=True):
        assert other.sent["all-gather"][1] * 2 == one.sent["all-gather"][1]
        assert other.sent["reduce-scatter"] == one.sent["reduce-scatter"]
        assert other.stored == one.stored
        assert 1e-4 < other.gradient_difference < half.gradient_tolerance


def test_clipping_changes_training_and_adds_one_sum():
    plain, clipped = run(), run(clip=0.1)
    assert plain.losses_one_process[2] != clipped.losses_one_process[2]
    ours, library = both(clipped, "sent")
    assert ours["all-reduce"] == [1, 4]
    assert library["all-reduce"][0] == 1
    assert library["all-reduce"][1] > 4


def test_from_the_meta_device():
    whole, meta = run(), run(meta=True)
    for one, other in zip(whole.versions, meta.versions, strict=True):
        assert other.losses == pytest.approx(one.losses, rel=1e-6)


def test_without_prefetch_the_same():
    assert run(prefetch=False).versions[0].sent == run().versions[0].sent


def test_torchrun_gives_the_same_result():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "-m", "course_lib.demos.fsdp", "--json"]
    command += ["--steps", "3", "--model", MODEL]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    under_torchrun = json.loads(done.stdout.splitlines()[-1])
    here = run()
    assert under_torchrun["versions"][0]["losses"] == pytest.approx(here.versions[0].losses)
    assert under_torchrun["versions"][0]["sent"] == here.versions[0].sent


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"steps": 1}, "steps must be at least 3"),
        ({"precision": "fp8"}, "precision"),
        ({"clip": -1.0}, "clip must be"),
        ({"reshard": 1}, "reshard must be"),
        ({"model": "2x30x4"}, "hidden 30 is not divisible by heads 4"),
    ],
)
def test_bad_options_are_explained(option, message):
    with pytest.raises(ValueError, match=message):
        fsdp.Options(**option)


def test_a_batch_smaller_than_the_ranks_is_explained():
    with pytest.raises(launch.RankFailed, match="batch 1 leaves some of 2 ranks without"):
        run(batch=1)
