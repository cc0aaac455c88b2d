"""What wrappers change: who learns nothing, names and shapes, matrices in shards."""

import pytest
import torch

from course_lib import demos
from course_lib.chapters.ch15_launchers_and_recovery.demos.wrappers import orthogonal


@pytest.fixture(scope="module")
def result():
    return demos.run("wrappers", ranks=2, stream=False)


def test_an_optimizer_that_holds_the_old_tensors_learns_nothing(result):
    learns = {one.name: one.learns_if_built_before for one in result.wrappers}
    assert learns == {
        "DDP": True,
        "FSDP1": False,
        "FSDP1, use_orig_params": True,
        "FSDP2": False,
    }
    assert all(one.learns_if_built_after for one in result.wrappers)


def test_names_and_shapes(result):
    ddp, flat, named, sharded = result.wrappers
    assert next(iter(ddp.state_dict)) == "module.0.weight"
    assert flat.parameters == {"_fsdp_wrapped_module._flat_param": ("Parameter", (22,))}
    assert named.parameters["_fsdp_wrapped_module.0.weight"] == ("Parameter", (22,))
    assert sharded.parameters["0.weight"] == ("DTensor", (2, 6))
    for one in (flat, named, sharded):
        assert {key: shape for key, (_, shape) in one.state_dict.items()} == {
            "0.weight": (4, 6), "0.bias": (4,), "1.weight": (3, 4), "1.bias": (3,)
        }  # fmt: skip
    assert {kind for kind, _ in flat.state_dict.values()} == {"Tensor"}
    assert {kind for kind, _ in sharded.state_dict.values()} == {"DTensor"}


def test_numbers_on_a_rank_by_plain_names(result):
    ddp, flat, _, sharded = (one.numbers for one in result.wrappers)
    assert ddp == {"0.weight": 24, "0.bias": 4, "1.weight": 12, "1.bias": 3}
    assert flat == {"flat": 22}
    assert sharded == {"0.weight": 12, "0.bias": 2, "1.weight": 8, "1.bias": 2}


def test_a_rule_for_whole_matrices_does_not_work_on_shards(result):
    assert result.adam_gap == 0
    assert result.muon_gap > 0.2
    assert "Muon's by 39%" in result.report()


def test_muons_step_has_singular_values_near_one():
    found = torch.linalg.svdvals(orthogonal(torch.randn(8, 16, generator=torch.manual_seed(1))))
    assert 0.6 < found.min() and found.max() < 1.3


@pytest.mark.engine("bitsandbytes")
def test_eight_bit_states_are_bytes(result):
    states = result.eight_bit
    assert states["state1"] == states["state2"] == ("uint8", 64 * 128)
    assert states["absmax1"] == ("float32", 4 * 64 * 128 // 256)
