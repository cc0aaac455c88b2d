"""What torch.compile makes of functions and buckets, and what wrappers make of parameters."""

import pytest
import torch
from every import every

from course_lib import demos
from course_lib.chapters.ch15_launchers_and_recovery.demos import compile as compiling
from course_lib.chapters.ch15_launchers_and_recovery.demos.wrappers import orthogonal
from course_lib.chapters.ch15_launchers_and_recovery.graphs import graphs_made


@pytest.fixture(scope="module")
def result():
    return demos.run("compile", ranks=2, stream=False, steps=3)


def test_a_break_makes_two_graphs_and_is_told_with_its_line(result):
    found = {one.name: (one.graphs, one.broken_at) for one in result.functions}
    assert found == {
        "straight": (1, []),
        "prints": (2, ['print(end="")']),
        "asks_for_a_number": (2, ["largest = y.max().item()"]),
        "depends_on_data": (2, ["if y.sum() > 0:"]),
    }


def test_the_second_batch_size_is_compiled_for_all_others_but_one(result):
    straight = result.functions[0]
    assert compiling.SIZES == (4, 4, 8, 16, 1)
    assert straight.new_graphs == [1, 0, 1, 0, 1]


def test_ddp_splits_the_graph_of_the_model_at_its_buckets(result):
    assert len(result.model_graphs) == 1
    assert len(result.ddp_graphs) == result.all_reduces == 4
    assert sum(result.ddp_graphs) == sum(result.model_graphs)
    assert result.ddp_new_graphs == [4, 0, 0]
    assert "4 graphs of 5 + 29 + 19 + 21 operators" in result.report()


def epoch(samples, size):
    return [size] * (samples // size) + [samples % size] * (samples % size > 0)


@every(
    ("sizes", "graphs"),
    [
        ([], 0),
        ([8, 8], 1),
        ([8, 8, 6, 5, 8], 2),
        ([8, 1, 8], 2),
        ([8, 1, 6, 5, 1, 2, 32], 3),
        ([1, 8, 6], 2),
        ([1, 1], 1),
        (epoch(100, 8) * 2, 2),
        (epoch(97, 8) * 2, 2),
        (epoch(100, 8) + epoch(100, 32), 2),
    ],
)
def test_the_rule_counts_what_torch_makes(sizes, graphs):
    counted = []

    def backend(graph, _):
        counted.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(torch.nn.Linear(4, 4), backend=backend)
    for size in sizes:
        compiled(torch.ones(size, 4))
    torch._dynamo.reset()
    assert graphs_made(sizes) == len(counted) == graphs


@pytest.fixture(scope="module")
def wrappers_demo_result():
    return demos.run("wrappers", ranks=2, stream=False)


def test_an_optimizer_that_holds_the_old_tensors_learns_nothing(wrappers_demo_result):
    learns = {one.name: one.learns_if_built_before for one in wrappers_demo_result.wrappers}
    assert learns == {"DDP": True, "FSDP1": False, "FSDP1, use_orig_params": True, "FSDP2": False}
    assert all(one.learns_if_built_after for one in wrappers_demo_result.wrappers)


def test_names_and_shapes(wrappers_demo_result):
    ddp, flat, named, sharded = wrappers_demo_result.wrappers
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


def test_numbers_on_a_rank_by_plain_names(wrappers_demo_result):
    ddp, flat, _, sharded = (one.numbers for one in wrappers_demo_result.wrappers)
    assert ddp == {"0.weight": 24, "0.bias": 4, "1.weight": 12, "1.bias": 3}
    assert flat == {"flat": 22}
    assert sharded == {"0.weight": 12, "0.bias": 2, "1.weight": 8, "1.bias": 2}


def test_a_rule_for_whole_matrices_does_not_work_on_shards(wrappers_demo_result):
    assert wrappers_demo_result.adam_gap == 0
    assert wrappers_demo_result.muon_gap > 0.2
    assert "Muon's by 39%" in wrappers_demo_result.report()


def test_muons_step_has_singular_values_near_one():
    found = torch.linalg.svdvals(orthogonal(torch.randn(8, 16, generator=torch.manual_seed(1))))
    assert 0.6 < found.min() and found.max() < 1.3


@pytest.mark.engine("bitsandbytes")
def test_eight_bit_states_are_bytes(wrappers_demo_result):
    states = wrappers_demo_result.eight_bit
    assert states["state1"] == states["state2"] == ("uint8", 64 * 128)
    assert states["absmax1"] == ("float32", 4 * 64 * 128 // 256)
