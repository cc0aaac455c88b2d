"""Coordinates and groups, by hand and against the order that the traffic assumes."""

from collections import Counter
from dataclasses import replace
from math import prod

import pytest
from every import every
from probes import DENSE, H100, JOB, MIXTURE, Probe, by_name

from course_lib import launch
from course_lib.theory.inputs import MODELS, Cluster, Job, Layout, Recipe
from course_lib.theory.network import mesh
from course_lib.theory.network.mesh import sent_bytes, sent_in_turn, who_talks
from course_lib.theory.network.step_traffic import step_traffic

CUBE = Layout(dp=2, tp=2, pp=2)


def test_replicas():
    assert mesh.data_parallel(16_384, tp=8, pp=16) == 128
    assert mesh.data_parallel(24, tp=2, pp=3, cp=2) == 2


def test_eight_ranks_by_hand():
    assert mesh.place(CUBE, 5) == {"tp": 1, "cp": 0, "dp": 0, "pp": 1}
    assert mesh.groups(CUBE, "tp") == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert mesh.groups(CUBE, "dp") == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert mesh.groups(CUBE, "pp") == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert mesh.groups(CUBE, "dp", ("dp", "cp", "tp", "pp")) == mesh.groups(CUBE, "tp")


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


# --- who talks ---


WHO_TALKS_CUBE = Layout(tp=2, dp=4, pp=2, accumulation=4, zero_stage=1)
BLOCK = Layout(tp=8, dp=4, pp=4, accumulation=8)
LONG = Layout(tp=4, cp=2, dp=2, pp=2, accumulation=4)
SPREAD = Layout(tp=2, dp=8, pp=2, ep=4, accumulation=4)
SHAPE = replace(DENSE, layers=8, kv_heads=8, tied_embeddings=False)


def job(layout, shape=SHAPE):
    return Job(shape, layout=layout, cluster=Cluster(H100, nodes=16), sequence=512)


def named(talks):
    return {(talk.message.axis, talk.message.what): talk for talk in talks}


def _torchs_groups(meshes):
    """Of each mesh: each rank's group along each dimension; the other ranks are not there."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    launch.finish()  # what this rank has joined
    found = []
    for sizes, ranks in meshes:
        groups, names = {}, tuple(sizes)
        for rank in ranks:
            world = prod(sizes.values())
            dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
            mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=names)
            groups[rank] = {
                name: tuple(dist.get_process_group_ranks(mesh.get_group(name))) for name in names
            }
            dist.destroy_process_group()
        found.append(groups)
    return found


# Outermost first, as torch names the dimensions. Experts: dp is cut once more, ep inside.
MESHES = [
    (job(WHO_TALKS_CUBE), {"pp": 2, "dp": 4, "tp": 2}, (0, 5, 15)),
    (job(BLOCK), {"pp": 4, "dp": 4, "tp": 8}, (0, 77, 127)),
    (job(LONG), {"pp": 2, "dp": 2, "cp": 2, "tp": 4}, (0, 13)),
    (job(SPREAD, MIXTURE), {"pp": 2, "copies": 2, "ep": 4, "tp": 2}, (0, 11, 30)),
]


@pytest.mark.torch_internals
def test_groups_are_those_of_torchs_device_mesh():
    pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    checked = Counter()
    (by_mesh,) = launch.run(_torchs_groups, [its[1:] for its in MESHES], ranks=1, stream=False)
    for (one, sizes, ranks), torchs in zip(MESHES, by_mesh, strict=True):
        for rank in ranks:
            for (axis, what), talk in named(who_talks(one, rank)).items():
                name = "copies" if axis == "dp" and "experts" in what else axis
                if name not in sizes or (axis == "dp" and "cp" in sizes):
                    continue  # runs along two dimensions of torch's mesh
                assert talk.group == torchs[rank][name], (axis, what, rank)
                assert talk.group in talk.groups
                checked[name] += 1
    assert set(checked) == {"tp", "dp", "pp", "cp", "ep", "copies"}


@every(
    ("one", "rank"), [*zip((each for each, *_ in MESHES), (0, 40, 31, 3), strict=True), (JOB, 0)]
)
def test_nothing_is_left_out_and_groups_have_the_ranks_of_the_message(one, rank):
    talks = who_talks(one, rank)
    stage = rank // (one.layout.world // one.layout.pp)
    sent = step_traffic(one, stage).bytes_by_axis
    total = Counter()
    for talk in talks:
        total[talk.message.axis] += talk.message.total_bytes
        assert {len(group) for group in talk.groups} == {talk.message.ranks}
        members = [member for group in talk.groups for member in group]
        assert len(members) == len(set(members)), "nobody is in two groups at once"
        inside = talk.message.link.name == one.cluster.inside.name
        assert inside == (talk.nodes == 1)
    assert dict(total) == pytest.approx(sent)


TALKS, LONG_TALKS = who_talks(job(WHO_TALKS_CUBE)), who_talks(job(LONG), 3)


REFUSED = [
    (lambda: mesh.data_parallel(2048, tp=8, pp=10), r"25\.6 is not a whole .* replicas: use 2000"),
    (lambda: mesh.strides(CUBE, ("tp", "dp")), "must name each"),
    (lambda: who_talks(job(WHO_TALKS_CUBE), 16), "rank must be at most 15"),
    (lambda: who_talks(job(replace(WHO_TALKS_CUBE, shard_group=2))), "without a shard_group"),
    (
        lambda: mesh.expert_groups(Layout(tp=2, dp=2, ep=2), "ep", etp=4),
        r"tp\*cp\*dp 4 is not divisible by etp\*ep 8: take",
    ),
]
PROBES = by_name(
    Probe(mesh.expert_groups, {"layout": Layout(tp=2, dp=4, ep=2), "axis": "ep"}, {"axis": "edp"}),
    Probe(mesh.nodes_of, {"layout": Layout(dp=4, tp=4, pp=2), "axis": "dp"}),
    Probe(sent_in_turn, {"talks": TALKS}),
    Probe(sent_bytes, {"talks": TALKS}),
)
RECORDS = {"Talk": [*TALKS, *LONG_TALKS]}
