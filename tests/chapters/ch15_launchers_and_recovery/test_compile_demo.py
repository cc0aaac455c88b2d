"""torch.compile counted: breaks, new batch sizes, and DDP's buckets as graphs."""

import pytest

from course_lib import demos
from course_lib.chapters.ch15_launchers_and_recovery.demos import compile as compiling


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
