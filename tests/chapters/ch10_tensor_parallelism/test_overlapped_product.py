"""Products that hide their messages: the closed form against the timeline, share by share."""

from itertools import pairwise

import pytest
from every import every
from probes import SLOW_LINK, Probe, by_name

from course_lib.chapters.ch10_tensor_parallelism.overlapped_product import (
    OverlappedProduct,
    layer_products,
    overlapped_seconds,
)
from course_lib.theory.inputs.hardware import accelerator
from course_lib.theory.network.tensor_parallel import CutLayer

H100 = accelerator("H100-SXM")
LAYER = CutLayer(8192, 8, H100.peak_flop_per_s, H100.inside)


def test_four_shares_by_hand():
    slow_wire = OverlappedProduct(8, 6, 4)  # a part 2 s, a message 2 s: each arrives in time
    assert (slow_wire.seconds, slow_wire.exposed_s) == (8, 0)
    slower = OverlappedProduct(8, 9, 4)  # 3 s a message: the last one at 9, and 2 s of work left
    assert (slower.seconds, slower.exposed_s) == (11, 3)


@every("ranks", [2, 3, 8])
@every("communication_s", [0.1, 0.9, 1, 1.1, 5])
def test_the_closed_form_is_the_end_of_the_timeline(communication_s, ranks):
    product = OverlappedProduct(1, communication_s, ranks)
    work = [task for task in product.tasks if task.what == "forward"]
    wire = [task for task in product.tasks if task.what == "all-gather"]
    assert max(task.end for task in product.tasks) == pytest.approx(product.seconds)
    assert sum(task.end - task.at for task in work) == pytest.approx(1)
    assert sum(task.end - task.at for task in wire) == pytest.approx(communication_s)
    assert [task.part for task in work] == list(range(ranks))
    arrived = {task.part: task.end for task in wire}
    assert all(task.at >= arrived.get(task.part, 0) for task in work)
    assert all(now.end <= then.at + 1e-12 for now, then in pairwise(work))


def test_the_products_make_up_the_layer():
    products = layer_products(LAYER).values()
    assert 3 * sum(it.compute_s for it in products) == pytest.approx(LAYER.compute_s)
    assert 2 * sum(it.communication_s for it in products) == pytest.approx(LAYER.communication_s)


def test_a_layer_of_70b_on_eight_h100():
    exposed = {name: it.exposed_s for name, it in layer_products(LAYER).items()}
    assert [name for name, seconds in exposed.items() if seconds > 0] == ["out"]
    assert overlapped_seconds(LAYER) == pytest.approx(LAYER.compute_s + 2 * exposed["out"])
    assert LAYER.seconds / overlapped_seconds(LAYER) == pytest.approx(1.39, abs=0.005)


OTHER = CutLayer(4096, 4, H100.peak_flop_per_s, SLOW_LINK)
REFUSED = [
    (lambda: OverlappedProduct(0, 1, 2), "compute_s must be above 0"),
    (lambda: OverlappedProduct(1, 0, 2), "communication_s must be above 0"),
    (lambda: OverlappedProduct(1, 1, 1), "ranks must be at least 2"),
    (lambda: layer_products(CutLayer(64, 1, 1e12, SLOW_LINK)), "must be above 0"),
]
PROBES = by_name(
    Probe(layer_products, {"layer": LAYER}, {"layer": OTHER}),
    Probe(overlapped_seconds, {"layer": LAYER}, {"layer": OTHER}),
)
