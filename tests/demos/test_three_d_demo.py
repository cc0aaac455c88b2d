"""The 3D demo: one process, and the theory's collectives on each axis, on 1 to 8 ranks."""

import pytest
from together import keep_courses, runs

from course_lib import demos, launch
from course_lib.demos import three_d

BASE = {"model": "3x16x2", "sequence": 8, "batch": 8}
MESSAGE = 4 * 8 * 16  # one sample: b·s·h in fp32


def run(ranks, **options):
    return demos.run("three_d", ranks=ranks, stream=False, **{**BASE, **options})


# By ranks: options, the mesh, and what is sent on which axis.
MESHES = {
    1: [({}, "dp 1 x tp 1 x pp 1", [])],
    2: [
        ({"dp": 2}, "dp 2 x tp 1 x pp 1", ["dp all-reduce"]),
        ({"tp": 2}, "dp 1 x tp 2 x pp 1", ["tp all-reduce"]),
    ],
    3: [
        ({"batch": 6}, "dp 3 x tp 1 x pp 1", ["dp all-reduce"]),
        ({"pp": 3}, "dp 1 x tp 1 x pp 3", ["pp send-recv", "pp all-reduce"]),
    ],
    4: [
        ({}, "dp 1 x tp 2 x pp 2", ["tp all-reduce", "pp send-recv", "pp all-reduce"]),
        ({"dp": 2, "tp": 1}, "dp 2 x tp 1 x pp 2", None),
        ({"tp": 2, "schedule": "interleaved", "model": "5x16x2"}, "dp 1 x tp 2 x pp 2", None),
    ],
}


@pytest.fixture(scope="module")
def eight():
    return run(8)


def only(result):
    (version,) = result.versions
    return version


def test_eight_ranks_are_two_by_two_by_two(eight):
    version = only(eight)
    assert version.name == "scratch dp 2 x tp 2 x pp 2"
    assert version.losses[-1] < version.losses[0]
    assert [note.partition(";")[0] for note in eight.notes] == [
        f"rank {rank}: pp {rank // 4}, dp {rank // 2 % 2}, tp {rank % 2}" for rank in range(8)
    ]
    assert eight.notes[0].endswith("1/2 of each matrix of 2 layers")
    assert eight.notes[7].endswith("1/2 of each matrix of 1 layer")
    assert "rank 5: pp 1, dp 0, tp 1" in eight.report()


def test_each_axis_sends_what_is_predicted(eight):
    """Stage 0 of 2, micro-batches of 2 samples, 2 layers: by hand, beside the theory's count."""
    version = only(eight)
    assert version.sent["tp all-reduce"] == (2 * (4 * 2 + 1), 2 * (4 * 2 + 1) * 2 * MESSAGE)
    assert version.sent["pp send-recv"] == (2, 2 * 2 * MESSAGE)
    table = version.sent["pp all-reduce"]
    assert table[0] == 1
    assert version.sent["dp all-reduce"] == (2, version.stored["gradients"])
    assert table[1] < version.stored["gradients"]


@pytest.mark.parametrize("ranks", MESHES)
def test_other_meshes(ranks):
    """`main` verifies losses, gradients, collectives by axis and bytes on every rank."""
    cases = {number: options for number, (options, *_) in enumerate(MESHES[ranks])}
    results = runs("three_d", cases, ranks, **BASE).values()
    for result, (_, name, axes) in zip(results, MESHES[ranks], strict=True):
        assert only(result).name == f"scratch {name}"
        if axes is not None:
            assert set(only(result).sent) == set(axes), name


def test_more_micro_batches_send_more_and_smaller_messages():
    cases = {"plain": {}, "more": {"micro_batches": 4}}
    plain, more = map(only, runs("three_d", cases, **BASE).values())
    assert plain.name == "scratch dp 1 x tp 1 x pp 2"
    assert set(plain.sent) == {"pp send-recv", "pp all-reduce"}
    assert plain.sent["pp send-recv"] == (2, 8 * MESSAGE)
    assert more.sent["pp send-recv"] == (4, 8 * MESSAGE)


WRONG = {
    "mesh": "class Mesh(Mesh):\n    def lines(self, axis):\n"
    "        return super().lines({'dp': 'tp', 'tp': 'dp'}.get(axis, axis))\n",
    "tensor": "class Sum(Sum):\n    @staticmethod\n    def forward(ctx, x, group):\n"
    "        return x.clone()\n",
    "vocabulary": "right = vocab_parallel_cross_entropy\n"
    "def vocab_parallel_cross_entropy(logits, labels, region):\n"
    "    return right(logits, labels, region) + logits.sum(-1)\n",
    "pipeline": "class Pipeline(Pipeline):\n    def run(self, window):\n"
    "        return super().run(window[::-1]) + super().run(window)\n",
    "ring": "right = ring_reduce_scatter\n"
    "def ring_reduce_scatter(whole, peers):\n    return right(whole, peers) / 2\n",
}


@pytest.fixture
def built(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    for file in WRONG:
        keep_courses(tmp_path, file)
    return tmp_path


def test_all_parts_can_be_the_learners_and_equal_one_process(built):
    result = run(8, parts="mine")
    (version,) = result.versions
    assert version.name.endswith("on your parts")
    assert version.sent["dp send-recv"].calls == 4 and "dp all-reduce" not in version.sent
    assert result.notes[-1] == "the course's: none"


def test_what_is_not_built_is_the_courses(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    assert run(2, parts="mine", dp=2).versions[0].name == "scratch dp 2 x tp 1 x pp 1"
    keep_courses(tmp_path, "mesh")
    notes = run(2, parts="mine", dp=2).notes
    assert notes[-2] == "yours: Mesh" and "Pipeline" in notes[-1]


@pytest.mark.parametrize("file", WRONG)
def test_a_wrong_part_is_what_runs(file, built):
    keep_courses(built, file, WRONG[file])
    with pytest.raises(launch.RankFailed):
        run(4, parts="mine", dp=2, tp=2 if file in ("tensor", "vocabulary", "mesh") else 1)


@pytest.mark.parametrize(
    ("numbers", "ranks", "rank", "right"),
    [(10, 2, 0, (2, 10)), (7, 4, 0, (6, 10)), (7, 4, 3, (6, 11)), (2, 3, 2, (4, 3))],
)
def test_messages_of_a_ring(numbers, ranks, rank, right):
    assert three_d.ring_messages(numbers, ranks, rank) == right
