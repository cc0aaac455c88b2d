"""The 3D demo on what the learner has built: right parts run, wrong ones are refused."""

import pytest
from together import keep_courses

from course_lib import demos, launch
from course_lib.demos import three_d

BASE = {"model": "3x16x2", "sequence": 8, "batch": 8}


def run(ranks, **options):
    return demos.run("three_d", ranks=ranks, stream=False, **{**BASE, **options})


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
