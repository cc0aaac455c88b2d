"""What is built, measured beside the course's version and torch's, and told."""

from pathlib import Path

import pytest

from course_lib import launch, mine
from course_lib.checking import races
from course_lib.checking.exercises import find
from course_lib.problem import Problem
from course_lib.scratch import collectives as ring_of_the_course

COPY = Path(ring_of_the_course.__file__).read_text()


@pytest.fixture
def ring(home):
    (home / "mine").mkdir(parents=True)
    (home / "mine" / "ring.py").write_text(COPY)


def test_a_race_tells_time_and_bytes_of_each_version(ring, capsys):
    laps = races.race("6.11")
    assert [lap.whose for lap in laps] == ["yours", "the course's", "torch's"]
    sent = laps[0].sent["send-recv"]
    assert laps[1].sent == laps[0].sent and sent.calls == 2 and sent.size_bytes == 16_000_000
    assert all(0 < lap.seconds < 60 for lap in laps)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("a ring of messages: ") and len(printed) == 4
    assert "2 x send-recv, 16,000,000 B" in printed[1]


def test_what_is_not_built_or_no_build_is_refused_by_a_sentence():
    with pytest.raises(Problem, match=r"6.11 is not built yet: pass its check first"):
        races.race("6.11")
    with pytest.raises(Problem, match=r"6.1 is not raced"):
        races.race("6.1")


def test_the_report_has_every_part_and_whose_it_is(ring):
    data = races.report()
    assert [row["build"] for row in data["parts"]] == [part.build for part in mine.PARTS]
    rows = {row["build"]: row for row in data["parts"]}
    assert rows["6.11"]["file"].endswith("ring.py") and rows["6.11"]["lines"] > 20
    assert rows["7.10"]["file"] is None and rows["7.10"]["lines_of_the_course"] > 50
    text = races.as_text(data)
    assert f"1 of {len(mine.PARTS)} parts are yours" in text and "not built yet" in text


def test_builds_that_are_not_raced_do_not_compute():
    without = [part.file for part in mine.PARTS if find(part.build).race is None]
    # They start processes and read texts.
    assert without == ["launcher", "ibstat", "divergence"]


def every_race(size):
    """On a rank: {part: bytes by version} of the races on `size` ranks; on 2, also those on one."""
    races._ROUNDS = 1
    specs = ((part, find(part.build).race) for part in mine.PARTS)
    return {
        part.file: {
            whose: sent for whose, (_, sent) in races._on_rank(spec, part, ["course"]).items()
        }
        for part, spec in specs
        if spec and max(spec.ranks, 2) == size
    }


def test_every_race_can_be_run_and_torch_sends_as_much():
    found = {
        file: sent
        for size in (2, 4)
        for file, sent in launch.run(every_race, size, ranks=size, stream=False)[0].items()
    }
    assert set(found) == {part.file for part in mine.PARTS if find(part.build).race}
    for file in ("fsdp", "tensor", "vocabulary", "experts"):
        assert found[file]["course"] == found[file]["torch"] != {}, file
    assert found["ddp"]["course"]["all-reduce"] == found["ddp"]["torch"]["all-reduce"]


def test_a_part_that_fails_in_its_race_is_a_line_of_the_report(ring, home, monkeypatch):
    broken = COPY + "def ring_all_gather(*_):\n    raise ValueError('broken')\n"
    (home / "mine" / "ring.py").write_text(broken)
    monkeypatch.setattr(mine, "PARTS", (mine.BY_FILE["ring"],))
    (row,) = races.report(measured=True)["parts"]
    assert "ValueError: broken" in row["laps"][0] and "times_the_course" not in row
