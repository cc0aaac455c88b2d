"""Folders as they are found: half of the files, half of a file, or files of somebody hostile."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pages import RECORDS, written

from course_lib.chapters.ch16_cluster_clinic.diagnosing.judging import diagnose
from course_lib.chapters.ch16_cluster_clinic.diagnosing.reading import (
    aborted_outside,
    crash_of,
    page_of,
    read,
)

PAGE = RECORDS["hang"]["rank0.json"]


def test_a_folder_without_files_and_none(tmp_path):
    assert read(tmp_path).records == ()
    with pytest.raises(OSError, match="No such file"):
        read(tmp_path / "absent")


def test_a_page_comes_back_as_it_was():
    page = json.loads(json.dumps(asdict(page_of(PAGE))))
    for known, back in zip([PAGE, *PAGE["calls"]], [page, *page["calls"]], strict=True):
        assert {name: back[name] for name in known if name != "calls"} == {
            name: value for name, value in known.items() if name != "calls"
        }
    assert page_of(page) == page_of(PAGE)


def changed(name, **values):
    """The file of the record of a hang, with other values."""
    return json.dumps(RECORDS["hang"][name] | values)


HUNG, NOT_READ = ("stuck", (1,)), "rank1.json could not be read ("
NO_PAGE = ("unknown", ())
EARLIER = {"launch": "earlier", "at_s": PAGE["at_s"] - 60}


@pytest.mark.parametrize(
    ("name", "content", "note", "found"),
    [
        ("rank1.json", "", NOT_READ, NO_PAGE),
        ("rank1.json", changed("rank1.json")[:-100], NOT_READ, NO_PAGE),
        ("rank1.json", "[]", NOT_READ, NO_PAGE),
        ("rank1.json", '{"rank": -1}', NOT_READ, NO_PAGE),
        ("rank1.json", "[" * 100_000, NOT_READ, NO_PAGE),
        ("rank1.json", "\x00\xff", NOT_READ, NO_PAGE),
        ("rank1.json", changed("rank2.json"), "rank1.json says that it is of rank 2", NO_PAGE),
        (
            "rank2.json", changed("rank2.json", **EARLIER),
            "rank2.json is of another launch or attempt: it was left out", HUNG,
        ),
        # Pages of torchrun beside what an earlier launch has left.
        (
            "launch.json", json.dumps(RECORDS["kill"]["launch.json"]),
            "launch.json is of another launch: it was left out", HUNG,
        ),
    ],
)  # fmt: skip
def test_a_file_that_does_not_belong_here_is_left_out(name, content, note, found, tmp_path):
    written("hang", tmp_path)
    (tmp_path / "launch.json").unlink()
    (tmp_path / name).write_text(content, encoding="latin-1")
    evidence = read(tmp_path)
    assert len(evidence.notes) == 1 and evidence.notes[0].startswith(note)
    finding = diagnose(evidence).finding
    assert (finding.cause, finding.ranks) in (found, NO_PAGE)


def test_a_page_that_stood_still_says_nothing_of_its_last_call(tmp_path):
    """What holds Python's lock holds the recorder too: the stack of the time limit is believed."""
    written("pattern", tmp_path)
    page = json.loads((tmp_path / "rank1.json").read_text())
    page["calls"] = [RECORDS["pattern"]["rank0.json"]["calls"][0] | {"over": False}]
    (tmp_path / "rank1.json").write_text(json.dumps(page))
    found = diagnose(read(tmp_path)).finding
    assert (found.cause, found.ranks) == HUNG


@pytest.mark.parametrize(
    ("operations", "cause"),
    [
        ("broadcast broadcast reduce reduce", "nothing"),
        ("reduce reduce reduce gather", "collective"),
    ],
)
def test_one_name_may_be_of_several_groups(operations, cause, tmp_path):
    """Two pairs whose groups have one name: calls are compared inside each of them."""
    for rank, operation in enumerate(operations.split()):
        pair = [0, 1] if rank < 2 else [2, 3]
        page = PAGE | {"rank": rank, "world": 4, "state": "returned", "groups": {"7": pair}}
        page["calls"] = [PAGE["calls"][0] | {"group": "7", "number": 1, "operation": operation}]
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(page))
    found = diagnose(read(tmp_path)).finding
    assert (found.cause, found.ranks) == (cause, ())


def test_what_is_read_of_a_crash():
    """The main thread is the last."""
    dump = RECORDS["shape"]["rank0.crash" if "rank0.crash" in RECORDS["shape"] else "rank2.crash"]
    stack = crash_of(dump)
    assert (stack[-1].function, stack[-3].function) == ("all_reduce", "summed")
    assert crash_of("") == crash_of("Fatal Python error: Aborted") == ()
    # Whether a thread without Python aborted.
    dump = 'Fatal Python error: Aborted\n\n{} 0x01 (most recent call first):\n  File "a.py", line 1'
    assert aborted_outside(dump.format("Thread"))
    assert not aborted_outside(dump.format("Current thread"))
    assert not aborted_outside("")


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


def replaced(data, path, value):
    """`data` with the value at a random path replaced."""
    if not path or not isinstance(data, dict | list) or not data:
        return value
    keys = sorted(data) if isinstance(data, dict) else list(range(len(data)))
    key = keys[path[0] % len(keys)]
    copy = dict(data) if isinstance(data, dict) else list(data)
    copy[key] = replaced(data[key], path[1:], value)
    return copy


@settings(max_examples=100, deadline=None)
@given(
    kind=st.sampled_from(sorted(RECORDS)),
    path=st.lists(st.integers(0, 30), min_size=1, max_size=5),
    value=JUNK,
    lost=st.sets(st.integers(0, 6), max_size=3),
)
def test_whatever_the_files_hold_nothing_is_raised(kind, path, value, lost, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    names = sorted(RECORDS[kind])
    for place, name in enumerate(names):
        if place in lost:
            continue
        content = RECORDS[kind][name]
        if name == names[path[0] % len(names)] and not isinstance(content, str):
            content = replaced(content, path[1:], value)
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name).write_text(text, encoding="utf-8", errors="replace")
    diagnosis = diagnose(read(folder))
    assert diagnosis.report() and diagnosis.finding.cause
    assert all(0 <= rank < len(diagnosis.ranks) for rank in diagnosis.finding.ranks)


@pytest.mark.parametrize("kind", ["hang", "loader", "subgroup", "collective", "short", "order"])
def test_without_some_of_the_files_no_healthy_rank_is_accused(kind, tmp_path):
    names = sorted(RECORDS[kind])
    for lost in range(1, 2 ** len(names)):
        folder = tmp_path / str(lost)
        folder.mkdir()
        written(kind, folder)
        for place, name in enumerate(names):
            if lost >> place & 1:
                (folder / name).unlink()
        found = diagnose(read(folder)).finding
        assert set(found.ranks) <= {1}, (found, sorted(map(str, Path(folder).iterdir())))
