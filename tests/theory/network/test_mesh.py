"""Coordinates and groups, by hand and against the order that the traffic assumes."""

import pytest
from every import every
from probes import Probe, by_name

from course_lib.theory.inputs.cluster import Cluster
from course_lib.theory.inputs.hardware import accelerator
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.network import mesh
from course_lib.theory.network.who_talks import who_talks

H100 = accelerator("H100-SXM")
CUBE = Layout(dp=2, tp=2, pp=2)


def test_replicas():
    assert mesh.data_parallel(16_384, tp=8, pp=16) == 128
    assert mesh.data_parallel(24, tp=2, pp=3, cp=2) == 2
    with pytest.raises(ValueError, match=r"25\.6 is not a whole number of replicas: use 2000"):
        mesh.data_parallel(2048, tp=8, pp=10)


def test_eight_ranks_by_hand():
    assert mesh.place(CUBE, 5) == {"tp": 1, "cp": 0, "dp": 0, "pp": 1}
    assert mesh.groups(CUBE, "tp") == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert mesh.groups(CUBE, "dp") == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert mesh.groups(CUBE, "pp") == ((0, 4), (1, 5), (2, 6), (3, 7))


def test_another_order():
    order = ("dp", "cp", "tp", "pp")
    assert mesh.groups(CUBE, "dp", order) == mesh.groups(CUBE, "tp")
    with pytest.raises(ValueError, match="must name each"):
        mesh.strides(CUBE, ("tp", "dp"))


def test_a_group_differs_in_its_axis_only():
    layout = Layout(dp=3, tp=2, pp=2, cp=2)
    for axis in mesh.ORDER:
        found = mesh.groups(layout, axis)
        assert sorted(rank for group in found for rank in group) == list(range(layout.world))
        for group in found:
            places = [mesh.place(layout, rank) for rank in group]
            assert [place[axis] for place in places] == list(range(getattr(layout, axis)))
            assert len({tuple(sorted((place | {axis: 0}).items())) for place in places}) == 1


@every("axis", mesh.ORDER)
def test_the_traffic_takes_the_same_order(axis):
    """A group that leaves its node gets the link between nodes, and no other does."""
    layout, cluster = Layout(dp=4, tp=4, pp=2, cp=2), Cluster(accelerator("H100-SXM"), nodes=8)
    stride, degree = mesh.strides(layout)[axis], getattr(layout, axis)
    inside = cluster.link(degree, stride) == cluster.inside
    assert inside == (mesh.nodes_of(layout, axis) == 1)


def test_nodes():
    layout = Layout(dp=32, tp=8, pp=8)
    spread = {axis: mesh.nodes_of(layout, axis) for axis in mesh.ORDER}
    assert spread == {"tp": 1, "cp": 1, "dp": 32, "pp": 8}
    assert mesh.nodes_of(layout, "tp", order=("pp", "dp", "cp", "tp")) == 8


def test_experts_on_a_mesh_of_their_own_by_hand():
    """Four GPUs, etp 2 and ep 2 as in figure 2 of arXiv:2504.14960; then folded to ep 4."""
    layout = Layout(tp=2, dp=2, ep=2)
    assert mesh.expert_groups(layout, "etp") == ((0, 1), (2, 3))
    assert mesh.expert_groups(layout, "ep") == ((0, 2), (1, 3))
    folded = Layout(tp=2, cp=2, dp=2, ep=4, pp=2)
    assert mesh.expert_groups(folded, "ep", 1)[:2] == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert mesh.expert_groups(folded, "edp", 1)[0] == (0, 4)


def test_with_the_tp_of_attention_they_are_the_groups_of_the_traffic():
    layout = Layout(tp=2, cp=2, dp=4, ep=4)
    job = Job(MODELS["mixtral-8x7b"], Recipe(), layout, Cluster(H100, nodes=2), 4096)
    (dispatch,) = (talk for talk in who_talks(job) if talk.message.what == "dispatch")
    assert sorted(dispatch.groups) == sorted(mesh.expert_groups(layout, "ep"))


ON_MESH = {"layout": Layout(dp=2, tp=2, pp=4)}
OTHER_MESH = {"layout": Layout(dp=4, tp=2, pp=2), "order": ("dp", "pp", "cp", "tp")}
REFUSED = [
    (
        lambda: mesh.expert_groups(Layout(tp=2, dp=2, ep=2), "ep", etp=4),
        r"tp\*cp\*dp 4 is not divisible by etp\*ep 8: take",
    ),
]
PROBES = by_name(
    Probe(mesh.data_parallel, {"world": 64}, {"world": 32, "tp": 2, "pp": 2, "cp": 2}),
    Probe(mesh.strides, ON_MESH, OTHER_MESH),
    Probe(mesh.place, ON_MESH | {"rank": 5}, OTHER_MESH | {"rank": 6}),
    Probe(mesh.groups, ON_MESH | {"axis": "dp"}, OTHER_MESH | {"axis": "tp"}),
    Probe(
        mesh.expert_groups,
        {"layout": Layout(tp=2, dp=4, ep=2), "axis": "ep"},
        {"layout": Layout(tp=2, dp=4, ep=4), "axis": "edp", "etp": 1},
    ),
    Probe(
        mesh.nodes_of,
        {"layout": Layout(dp=4, tp=4, pp=2), "axis": "dp"},
        OTHER_MESH | {"layout": Layout(dp=8, tp=4), "axis": "tp", "gpus_per_node": 4},
    ),
)
