"""Real clones and real changes upstream: nothing that a learner wrote may be lost, ever."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import course_lib
from course_lib import cli
from course_lib.building.notebooks import sources_sha
from course_lib.problem import Problem
from course_lib.upgrading import upgrade


@pytest.fixture(autouse=True)
def plain_git(monkeypatch):
    """Git without the settings of whoever runs the tests."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "someone")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "someone@example.org")


def shell(folder, command):
    done = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout.strip()


def notebook(*sources):
    """The text of a notebook as `course build` writes it."""
    cells = [{"cell_type": "code", "source": [source], "outputs": []} for source in sources]
    metadata = {"course": {"sources_sha": sources_sha(cells)}}
    return json.dumps({"cells": cells, "metadata": metadata})


def change(path, **fields):
    """Change the last cell of a notebook."""
    data = json.loads(path.read_text())
    data["cells"][-1].update(fields)
    path.write_text(json.dumps(data))


def run_it(path):
    change(path, outputs=[{"text": "ran"}], execution_count=7)


def commit(root, files):
    """A commit in which these files have these texts; None deletes one."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink() if text is None else path.write_text(text)
    shell(root, "git add --all && git commit --quiet --message change")


@pytest.fixture
def upstream(tmp_path):
    """The repository of the course: six chapters and a library."""
    root = tmp_path / "upstream"
    root.mkdir()
    shell(root, "git init --quiet --template= --initial-branch main")
    files = {f"exercises/0{n}.ipynb": notebook("x = 1", f"version = 0  # {n}") for n in range(1, 7)}
    files |= {"library.py": "version = 0", "pyproject.toml": "[project]"}
    commit(root, files | {".gitignore": "*_mine.ipynb\n*.mine\n"})
    return root


@pytest.fixture
def clone(upstream):
    """The learner's clone."""
    root = upstream.with_name("clone")
    shell(upstream, f"git clone --quiet --template= . '{root}'")
    return root.resolve()


def learn(root):
    """Run 1, edit 2, solve 3, edit 5, leave 4 and 6; returns the texts that must stay."""
    folder = root / "exercises"
    run_it(folder / "01.ipynb")
    for number, mine in ((2, "my try"), (3, "my solution"), (5, "mine as well")):
        change(folder / f"0{number}.ipynb", source=[mine])
    run_it(folder / "03.ipynb")
    (folder / "02_mine.ipynb").write_text("an own copy, saved earlier")
    (folder / "notes.txt").write_text("notes")
    names = ("02.ipynb", "03.ipynb", "05.ipynb", "02_mine.ipynb", "notes.txt")
    return [(folder / name).read_bytes() for name in names]


def release(root, number):
    """The course changes 1, 2 and 3, adds a chapter, and removes another: 6, then 5."""
    files = {f"exercises/0{n}.ipynb": notebook(f"version = {number}  # {n}") for n in (1, 2, 3)}
    files[f"exercises/{13 + number}.ipynb"] = notebook("new")
    files[f"exercises/0{7 - number}.ipynb"] = None
    commit(root, files | {"library.py": f"version = {number}"})


def contents(root):
    """The files of a clone, name → bytes."""
    files = [path for path in root.rglob("*") if path.is_file() and ".git" not in path.parts]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def assert_kept(root, texts):
    """Each text of the learner stands in a file of its own."""
    lost = Counter(texts) - Counter(contents(root).values())
    assert not lost, f"lost: {lost}"


def assert_newest(root, upstream, *own):
    """Every file is upstream's, byte by byte, but those that are the learner's `own`."""
    found = contents(root)
    assert {name: found.pop(name, None) for name in own}.keys() == set(own)
    theirs = {name: text for name, text in contents(upstream).items() if name not in own}
    assert {name: text for name, text in found.items() if "mine" not in name} == theirs
    assert shell(root, "git rev-parse HEAD") == shell(upstream, "git rev-parse HEAD")


# --- what an upgrade does ---------------------------------------------------------------------


def test_two_upgrades_bring_everything_and_lose_nothing(upstream, clone):
    texts = learn(clone)
    release(upstream, 1)
    said = upgrade(clone)
    assert_kept(clone, texts)
    assert_newest(clone, upstream, "exercises/05.ipynb", "exercises/notes.txt")
    assert said == [
        "renewed  exercises/01.ipynb: you had only run it",
        "kept     exercises/02.ipynb: you changed it; yours is 02_2_mine.ipynb",
        "kept     exercises/03.ipynb: you changed it; yours is 03_mine.ipynb",
        "removed  exercises/06.ipynb",
        "new      exercises/14.ipynb",
        "upgraded: 6 files of the course are new, changed or removed",
    ]
    found = contents(clone / "exercises")
    assert [found[name] for name in ("02_2_mine.ipynb", "03_mine.ipynb")] == texts[:2]
    assert "01_mine.ipynb" not in found
    assert upgrade(clone) == ["the course is up to date"]

    change(clone / "exercises" / "03.ipynb", source=["a second solution"])
    texts.append((clone / "exercises" / "03.ipynb").read_bytes())
    release(upstream, 2)
    said = upgrade(clone)
    assert_kept(clone, texts)
    assert_newest(clone, upstream, "exercises/notes.txt")
    assert "kept     exercises/03.ipynb: you changed it; yours is 03_2_mine.ipynb" in said
    assert "kept     exercises/05.ipynb: it is no longer in the course; yours is 05_mine.ipynb" in (
        said
    )
    assert "new      exercises/15.ipynb" in said


@pytest.mark.parametrize(
    "name", ["exercises/14.ipynb", "extra", "dist/14.ipynb", "plans/deep/note", "library.py"]
)
def test_a_file_of_the_learner_where_the_course_writes_one(upstream, clone, name):
    """Also where one of both is a folder, and where git, told to ignore the file, would write."""
    (clone / ".git" / "info").mkdir()
    (clone / ".git" / "info" / "exclude").write_text("dist/\n")
    (clone / name).parent.mkdir(parents=True, exist_ok=True)
    (clone / name).write_text("an own file")
    commit(upstream, {"extra/14.ipynb": "{}", "dist/14.ipynb": "{}", "plans": "a file"})
    release(upstream, 1)
    upgrade(clone)
    assert_kept(clone, [b"an own file"])
    assert_newest(clone, upstream)


@pytest.mark.parametrize("edited", [True, False])
def test_a_folder_of_the_course_becomes_a_file_and_a_file_a_folder(upstream, clone, edited):
    commit(upstream, {"one/a": "1", "two": "2"})
    upgrade(clone)
    shell(upstream, "git rm -r --quiet one two")
    commit(upstream, {"one": "1", "two/b": "2"})
    if edited:
        (clone / "two").write_text("mine")
    upgrade(clone)
    found = contents(clone)
    assert (found["one"], found["two/b"]) == (b"1", b"2")
    assert found.get("two.mine") == (b"mine" if edited else None)


def test_other_requirements_are_said(upstream, clone, monkeypatch, capsys):
    commit(upstream, {"pyproject.toml": "[project]\nname = 'other'"})
    monkeypatch.setattr(course_lib, "__file__", str(clone / "course_lib" / "__init__.py"))
    assert cli.main(["upgrade"]) == 0
    assert "now run `pip install -e .`" in capsys.readouterr().out.splitlines()[-1]


# --- broken off -------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a copy of this process")
def test_killed_at_any_moment_it_loses_nothing_and_goes_on(upstream, clone, tmp_path, monkeypatch):
    texts = learn(clone)
    release(upstream, 1)
    for moment in range(20):
        root = tmp_path / f"killed-{moment}"
        shutil.copytree(clone, root)
        child = os.fork()
        if child == 0:
            _upgrade_and_die(root, moment, monkeypatch)
        _, status = os.waitpid(child, 0)
        assert_kept(root, texts)
        if os.WIFEXITED(status):
            break
        upgrade(root)
        assert_kept(root, texts)
        assert_newest(root, upstream, "exercises/05.ipynb", "exercises/notes.txt")
    assert os.WEXITSTATUS(status) == 0 and moment == 6


def _upgrade_and_die(root, moment, monkeypatch):
    """Upgrade, but be killed before step number `moment`: a fetch, 3 renames, a merge, a removal.

    The other calls of git change nothing.
    """
    left = [moment]

    def dying(step):
        def call(*arguments, **options):
            if step is run and not {"fetch", "merge"} & set(arguments[0]):
                return step(*arguments, **options)
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return step(*arguments, **options)

        return call

    run = subprocess.run
    try:
        monkeypatch.setattr(subprocess, "run", dying(run))
        monkeypatch.setattr(Path, "rename", dying(Path.rename))
        monkeypatch.setattr(Path, "unlink", dying(Path.unlink))
        upgrade(root)
        os._exit(0)
    finally:
        os._exit(1)


def test_what_a_killed_git_has_written_is_not_taken_for_the_learners(upstream, clone):
    release(upstream, 1)
    for name in ("library.py", "exercises/01.ipynb", "exercises/14.ipynb"):
        shutil.copy(upstream / name, clone / name)
    commit(upstream, {"notes.py": "new"})
    shutil.copy(upstream / "notes.py", clone / "notes.py")
    assert not [line for line in upgrade(clone) if line.startswith("kept")]
    assert contents(clone) == contents(upstream)


def test_a_refusal_by_git_puts_everything_back(upstream, clone):
    learn(clone)
    before = contents(clone)
    release(upstream, 1)
    # Git is told not to look at this file, so it is not seen to be edited.
    shell(clone, "git update-index --assume-unchanged library.py")
    (clone / "library.py").write_text("mine = 1")
    before["library.py"] = b"mine = 1"
    with pytest.raises(Problem, match="what you wrote is where it was"):
        upgrade(clone)
    assert contents(clone) == before


def test_an_interrupt_waits_for_the_second_that_git_writes(upstream, clone, monkeypatch):
    """Ctrl-C reaches every process of the terminal, but git is apart from it by then."""
    texts = learn(clone)
    release(upstream, 1)
    (clone / ".git" / "hooks").mkdir()
    program = (
        "import os, pathlib, signal, sys\n"
        "from course_lib.upgrading import upgrade\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "hook = pathlib.Path('.git/hooks/post-merge')\n"
        "hook.write_text(f'#!/bin/sh\\nkill -INT -{os.getpgrp()}\\n')\n"
        "hook.chmod(0o755)\n"
        "print(upgrade(pathlib.Path.cwd())[-1])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=clone,
        capture_output=True,
        text=True,
        start_new_session=True,
    )
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("upgraded")
    assert_kept(clone, texts)
    assert_newest(clone, upstream, "exercises/05.ipynb", "exercises/notes.txt")


# --- what cannot be upgraded ------------------------------------------------------------------

STATES = {
    "staged": "git add exercises/03.ipynb",
    "no branch": "git stash -q && git checkout -q HEAD~0 && git stash pop -q",
    "no upstream": "git branch --unset-upstream",
    "an own branch": "git checkout -q -b own",
    "own commits": "git commit -qam mine",
    "own commits, the third time": "git branch mine-1 && git branch mine-2 && git commit -qam mine",
    "a pull in conflict": "git commit -qam mine && ! git pull -q --no-rebase",
    "a rebase in conflict": "git commit -qam mine && ! git pull -q --rebase",
    "a stash in conflict": "git stash -q && git pull -q && ! git stash pop -q",
}


@pytest.mark.parametrize("state", STATES)
def test_the_remedy_in_the_sentence_leads_to_an_upgrade(upstream, clone, state):
    texts = learn(clone)
    release(upstream, 1)
    shell(clone, STATES[state])
    release(upstream, 2)
    for _ in range(3):  # what is not finished must be ended before the commits can be looked at
        before, head = contents(clone), shell(clone, "git rev-parse HEAD")
        try:
            upgrade(clone)
            break
        except Problem as problem:
            assert (contents(clone), shell(clone, "git rev-parse HEAD")) == (before, head)
            assert "\n" not in str(problem) and "then run `course upgrade` again" in str(problem)
            shell(clone, re.search("run `(.*?)`", str(problem))[1])
    else:
        raise AssertionError("three remedies were not enough")
    assert_kept(clone, texts)
    assert_newest(clone, upstream, "exercises/notes.txt")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("mv ../upstream ../elsewhere", "no new version could be fetched .* check the network"),
        ("git remote remove origin", "knows no address of the course"),
        ("touch .git/index.lock", r"delete .*index\.lock, then run `course upgrade` again"),
        ("cd ../upstream && git commit --quiet --amend -m new", "has a new history"),
        ("rm -rf .git", "is no git clone"),
        ("rm -rf .git && git init --quiet ..", "is no git clone"),
        ("echo '[broken' > .git/config", "bad config line"),
    ],
)
def test_what_cannot_be_upgraded_is_one_sentence(clone, command, words):
    shell(clone, command)
    before = contents(clone)
    with pytest.raises(Problem, match=words):
        upgrade(clone)
    assert contents(clone) == before


def test_without_git_the_sentence_says_so(clone, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Problem, match="git is missing"):
        upgrade(clone)
