"""Each case can be found from its output alone, which does not name it; and the answers are kept.

`detective` is the proof: it reads nothing but what a learner sees.
"""

import re

import pytest

from course_lib import cli
from course_lib.chapters.ch16_cluster_clinic import hunting
from course_lib.chapters.ch16_cluster_clinic.hunting import Case, disguised, table
from course_lib.checking import hunts, progress
from course_lib.demos.faults.kinds import KINDS

SEEDS = {hunts.drawn(seed).kind: seed for seed in range(10)}
ENDS_AT_THE_LIMIT = ("hang", "collective")
SAID = {
    "EADDRINUSE": "taken port",
    "file </torch_": "too little shared memory",
    "Unable to find address": "wrong interface",
    "torch/utils/data/dataloader.py": "dead data loader",  # killed, reset, or the end of a file
    "can't allocate memory": "out of memory",
}
UPDATE = re.compile(
    r"\[rank (\d)\] update (\d): (\d+) ms, (\d+) of them in collectives; loss ([\d.]+); (.*)"
)


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))


def detective(output):
    """(rank, cause) from the output of a case."""
    for words, cause in SAID.items():
        if words in output:
            return int(re.search(r"RankFailed: rank (\d)", output)[1]), cause
    stacks = re.findall(r"^rank (\d) was here:\n(.*?)(?=^rank|\Z)", output, re.M | re.S)
    if stacks:
        last = {int(rank): re.findall(r"dist\.(\w+)", stack) for rank, stack in stacks}
        odd = next(r for r in last if all(last[r] != last[o] for o in last if o != r))
        return odd, "another collective" if last[odd] else "hung rank"
    rows = [match.groups() for match in UPDATE.finditer(output) if match[2] != "1"]
    losses = {rank: loss for rank, step, _, _, loss, _ in rows if step == "4"}
    for rank, loss in losses.items():
        if list(losses.values()).count(loss) == 1:
            return int(rank), "other weights"
    own = {rank: 0.0 for rank in losses}
    sent = dict(own)
    for rank, _, whole, inside, _, messages in rows:
        own[rank] += float(whole) - float(inside)
        for source, ms in re.findall(r"from rank (\d) in ([\d.]+) ms", messages):
            sent[source] += float(ms)
    late, slow = max(own, key=own.get), max(sent, key=sent.get)
    if own[late] > 500:
        return int(late), "straggler"
    assert sent[slow] > 1000, output
    return int(slow), "slow link"


def played(kind):
    found = Case(SEEDS[kind])
    assert detective(found.output) == (found._fault.rank, hunts.CAUSES[kind])
    telling = {*KINDS, *hunts.CAUSES.values(), "faults", "kinds.py", "watched", "sleep"}
    telling -= {"none", "error", "memory", "port", "worker", "collective", "shape", "interface"}
    words = set(re.findall(r"[\w.]+", output_without_torch(found.output)))
    assert not words & telling
    return found


def output_without_torch(output):
    """Without the frames of torch and Python, which are no secret."""
    return re.sub(r'  File "/.*\n.*', "", output)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[pytest.mark.slow] if kind in ENDS_AT_THE_LIMIT else [])
        for kind in hunts.CAUSES
    ],
)
def test_a_case_is_found_from_its_output_alone(kind):
    played(kind)


def test_ten_seeds_have_all_ten_causes():
    for first in (0, 10, 50):
        assert {hunts.drawn(first + n).kind for n in range(10)} == set(hunts.CAUSES)
    assert {hunts.drawn(seed).rank for seed in range(10)} == {0, 1, 2}
    assert set(hunts.CAUSES) == set(hunts.LOOK) <= set(KINDS)
    with pytest.raises(ValueError, match="seed must be at least 0"):
        hunts.drawn(-1)


@pytest.fixture
def hung(monkeypatch):
    """Case 9, a hung rank 1, without a launch."""
    monkeypatch.setattr(hunting, "_printed", lambda fault, record=None: "what was printed")
    return hunting.hunt(SEEDS["hang"])


def test_an_answer_is_told_which_half_is_wrong(capsys, hung):
    said = capsys.readouterr().out
    assert "what was printed" in said and all(cause in said for cause in hunts.CAUSES.values())
    rank = hung._fault.rank
    other = (rank + 1) % 3
    hung.answer()
    hung.answer(rank=7, cause="hung rank")
    hung.answer(rank=other, cause="hung rank")
    said = capsys.readouterr().out
    assert "[todo] name a rank" in said
    assert "[fail] wants a rank from 0 to 2, got int 7" in said
    assert "[fail] the cause is right, the rank is not" in said
    assert "Hint" not in said
    hung.answer(rank=rank, cause="straggler")
    assert "the rank is right, the cause is not\nHint: Nobody moves." in capsys.readouterr().out
    hung.answer(rank=rank, cause="hung rank")
    assert f"[pass] rank {rank}: hung rank, found in " in capsys.readouterr().out
    hung.answer(rank=rank, cause="hung")
    assert "did you mean 'hung rank'?" in capsys.readouterr().out
    assert progress.read()["hunts"]["hang"]["best_s"] < 60
    assert "1 of 10 found" in table()
    assert cli.main(["progress"]) == 0
    assert "the hunt: 1 of 10 faults found" in capsys.readouterr().out


def test_after_four_wrong_answers_it_is_told_and_not_counted(hung, capsys):
    for _ in range(4):
        hung.answer(rank=hung._fault.rank, cause="slow link")
    assert f"It is rank {hung._fault.rank}: hung rank." in capsys.readouterr().out
    hung.answer(rank=hung._fault.rank, cause="hung rank")
    assert "[pass]" in capsys.readouterr().out
    assert progress.read()["hunts"] == {}


@pytest.fixture
def at_the_prompt(monkeypatch, capsys):
    """What `course hunt` prints and its exit code, after typing something; starts no ranks."""
    monkeypatch.setattr(hunting, "_printed", lambda fault, record=None: "what was printed")

    def doctor(self):
        hunts.by_doctor(self._fault.kind, 0.1)

    monkeypatch.setattr(Case, "doctor", doctor)

    def play(*typed, seed=()):
        said = iter(typed)

        def ask(_):
            if (line := next(said, None)) is None:
                raise EOFError
            return line

        monkeypatch.setattr("builtins.input", ask)
        code = cli.main(["hunt", *map(str, seed)])
        return capsys.readouterr().out, code

    return play


def test_the_command_asks_until_it_is_found(at_the_prompt):
    rank, seed = hunts.drawn(SEEDS["hang"]).rank, [SEEDS["hang"]]
    said, code = at_the_prompt(f"{rank} straggler", f"{rank} hung rank", seed=seed)
    assert code == 0 and "the cause is not" in said
    assert "Type both, such as `1 straggler`, with one of" in said and "case.answer" not in said
    (row,) = (line for line in table().splitlines() if line.startswith("hung rank"))
    assert re.fullmatch(r"hung rank +\d+ ms +100 ms", row.strip())  # the doctor's beside it
    assert cli.main(["hunt", "-1"]) == 2
    for typed in (f"hung rank {rank}", f"rank {rank}: Hung  rank."):  # in any order
        said, code = at_the_prompt(typed, seed=seed)
        assert code == 0 and "[pass]" in said


def test_giving_up_shows_the_solution(at_the_prompt):
    for typed in ((), [""], ["9 hung rank", "  "]):  # the end of the input, nothing, later nothing
        said, code = at_the_prompt(*typed, seed=[SEEDS["hang"]])
        assert code == 1
        assert f"It is rank {hunts.drawn(SEEDS['hang']).rank}: hung rank. Nobody moves" in said
    assert "best_s" not in progress.read()["hunts"]["hang"]


def test_without_a_number_it_is_the_first_case_that_is_not_found(at_the_prompt):
    said, _ = at_the_prompt("")
    assert said.startswith("case 0: three ranks")
    first = hunts.drawn(0)
    at_the_prompt(f"{first.rank} {first.cause}")
    assert at_the_prompt("")[0].startswith("case 1: ")
    for kind in hunts.CAUSES:
        hunts.found(kind, 1.0)
    assert at_the_prompt("")[0].startswith("case 10: ")


@pytest.mark.torch_internals
def test_the_doctor_is_asked_about_the_same_case(capsys):
    Case(SEEDS["interface"]).doctor()
    said = capsys.readouterr().out
    assert f"Rank {hunts.drawn(SEEDS['interface']).rank} is the cause: it found no network" in said
    assert progress.read()["hunts"]["interface"]["doctor_s"] < 60
    assert "0 of 10 found" in table()


@pytest.mark.torch_internals
def test_what_the_doctor_does_not_find_is_not_counted_for_it(capsys):
    asked = Case(SEEDS["weights"])
    asked.doctor()
    assert "Nothing wrong found" in capsys.readouterr().out
    asked.answer(rank=asked._fault.rank, cause="other weights")  # by now it has been told
    assert progress.read()["hunts"] == {}


def test_frames_of_the_demo_are_those_of_a_train_py():
    text = """RankFailed: rank 0 hung
  File "/home/me/course_lib/demos/faults/watched.py", line 30, in main
    _say(step, update, _work(kind, update, step, faulty))
    ~~~~^^^^
  File "/home/me/course_lib/demos/faults/kinds.py", line 33, in summed
    dist.all_reduce(update.ones)
  File "/home/me/course_lib/demos/faults/watched.py", line 70, in inside
    result = call(*args, **options)
  File "/site-packages/torch/distributed/distributed_c10d.py", line 1, in all_reduce
    work.wait()
"""
    assert disguised(text) == (
        'RankFailed: rank 0 hung\n  File "train.py", in update\n    dist.all_reduce(update.ones)\n'
        '  File "/site-packages/torch/distributed/distributed_c10d.py", line 1, in all_reduce\n'
        "    work.wait()"
    )
