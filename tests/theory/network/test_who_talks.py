"""Who talks to whom: groups against torch's device mesh and ours, bytes against the step's."""

from collections import Counter
from dataclasses import replace

import pytest
from every import every
from probes import DENSE, H100, JOB, MIXTURE, Probe

from course_lib import launch
from course_lib.theory.inputs.cluster import Cluster
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.published import LLAMA3_405B
from course_lib.theory.network.step_traffic import step_traffic
from course_lib.theory.network.who_talks import who_talks

CUBE = Layout(tp=2, dp=4, pp=2, accumulation=4, zero_stage=1)
BLOCK = Layout(tp=8, dp=4, pp=4, accumulation=8)
LONG = Layout(tp=4, cp=2, dp=2, pp=2, accumulation=4)
SPREAD = Layout(tp=2, dp=8, pp=2, ep=4, accumulation=4)
SHAPE = replace(DENSE, layers=8, kv_heads=8, tied_embeddings=False)


def job(layout, shape=SHAPE):
    return Job(shape, layout=layout, cluster=Cluster(H100, nodes=16), sequence=512)


def named(talks):
    return {(talk.message.axis, talk.message.what): talk for talk in talks}


def _torchs_groups(sizes, ranks):
    """Each rank's group along each dimension of torch's mesh; the other ranks are not there."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    launch.finish()  # what this rank has joined
    found = {}
    for rank in ranks:
        dist.init_process_group("fake", rank=rank, world_size=_world(sizes), store=FakeStore())
        names = tuple(sizes)
        mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=names)
        found[rank] = {
            name: tuple(dist.get_process_group_ranks(mesh.get_group(name))) for name in names
        }
        dist.destroy_process_group()
    return found


def _world(sizes):
    world = 1
    for size in sizes.values():
        world *= size
    return world


# Outermost first, as torch names the dimensions. Experts: dp is cut once more, ep inside.
MESHES = [
    (job(CUBE), {"pp": 2, "dp": 4, "tp": 2}, (0, 5, 15)),
    (job(BLOCK), {"pp": 4, "dp": 4, "tp": 8}, (0, 77, 127)),
    (job(LONG), {"pp": 2, "dp": 2, "cp": 2, "tp": 4}, (0, 13)),
    (job(SPREAD, MIXTURE), {"pp": 2, "copies": 2, "ep": 4, "tp": 2}, (0, 11, 30)),
]


@pytest.mark.torch_internals
def test_groups_are_those_of_torchs_device_mesh():
    pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    checked = Counter()
    for one, sizes, ranks in MESHES:
        (torchs,) = launch.run(_torchs_groups, sizes, ranks, ranks=1, stream=False)
        for rank in ranks:
            for (axis, what), talk in named(who_talks(one, rank)).items():
                name = "copies" if axis == "dp" and "experts" in what else axis
                if name not in sizes or (axis == "dp" and "cp" in sizes):
                    continue  # runs along two dimensions of torch's mesh
                assert talk.group == torchs[rank][name], (axis, what, rank)
                assert talk.group in talk.groups
                checked[name] += 1
    assert set(checked) == {"tp", "dp", "pp", "cp", "ep", "copies"}


def test_groups_are_those_of_the_scratch_mesh():
    from course_lib.scratch.three_d import Coordinates, Mesh

    for layout in (CUBE, BLOCK):
        mesh = Mesh.__new__(Mesh)  # without process groups: `lines` needs the sizes only
        mesh.size = Coordinates(layout.pp, layout.dp, layout.tp)
        for talk in who_talks(job(layout)):
            lines = [tuple(line) for line in mesh.lines(talk.message.axis)]
            assert sorted(talk.groups) == sorted(lines)


def test_gradients_go_around_dp_times_cp():
    talk = named(who_talks(job(LONG), 5))["dp", "gradients of layers"]
    assert talk.group == (1, 5, 9, 13) and talk.message.ranks == 4


@every(
    ("one", "rank"),
    [(job(CUBE), 0), (job(BLOCK), 40), (job(LONG), 31), (job(SPREAD, MIXTURE), 3), (JOB, 0)],
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


def test_llama_3_405b():
    talks = named(who_talks(LLAMA3_405B))
    assert talks["tp", "attention"].group == tuple(range(8)) and talks["tp", "attention"].nodes == 1
    assert len(talks["pp", "activations"].group) == 16
    assert len(talks["dp", "gradients of layers"].group) == 128
    assert len(talks["tp", "attention"].groups) == 2048


def test_what_has_no_groups_is_refused():
    with pytest.raises(ValueError, match="rank must be at most 15"):
        who_talks(job(CUBE), 16)
    with pytest.raises(ValueError, match="without a shard_group"):
        who_talks(job(replace(CUBE, shard_group=2)))


PROBES = {
    "who_talks": Probe(who_talks, {"job": JOB}, {"rank": 9}, refuses=True),
}
RECORDS = {"Talk": [*who_talks(job(CUBE)), *who_talks(job(LONG), 3)]}
