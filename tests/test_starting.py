"""Real folders, real clones, real changes: nothing that a learner wrote may be lost, ever."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from pkgutil import resolve_name
from unittest.mock import DEFAULT, Mock

import pytest

import course_lib
from course_lib import cli, home, mine, starting
from course_lib.building.folders import FOLDERS
from course_lib.building.notebooks import sources_sha
from course_lib.checking import progress
from course_lib.problem import Problem

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    """Without the settings of whoever runs the tests: of git, and where progress is kept."""
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "COURSE_HOME", "JPY_SESSION_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
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


def contents(root):
    """The files of the course and the learner, name → bytes."""
    hidden = {".git", ".course"}
    files = [path for path in root.rglob("*") if path.is_file() and not hidden & {*path.parts}]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


BEGUN = {f"exercises/0{n}.ipynb": notebook("x = 1", f"version = 0  # {n}") for n in range(1, 7)}


class Folder:
    """A learner's folder, and the texts of an edition as the package would have them."""

    def __init__(self, place, monkeypatch):
        self.root, self.texts = place / "它的 folder", dict(BEGUN)
        monkeypatch.setattr(home, "package_root", lambda: place)
        built = lambda root: {root / name: text for name, text in self.texts.items()}  # noqa: E731
        monkeypatch.setattr(starting, "expected", built)
        self.upgrade()

    def release(self, files):
        merged = self.texts | files
        self.texts = {name: text for name, text in merged.items() if text is not None}

    def upgrade(self):
        return starting.start(self.root)

    def newest(self):
        return {name: text.encode() for name, text in self.texts.items()}


class Clone:
    """A learner's clone, and the repository of the course."""

    def __init__(self, place, _monkeypatch):
        if shutil.which("git") is None:
            pytest.skip("git is not installed")
        self.upstream, self.root = place / "upstream", place.resolve() / "clone"
        self.upstream.mkdir()
        shell(self.upstream, "git init --quiet --template= --initial-branch main")
        ours = {"pyproject.toml": "[project]", ".gitignore": "*_mine.ipynb\n*.mine\n"}
        self.release(BEGUN | ours)
        shell(self.upstream, f"git clone --quiet --template= . '{self.root}'")

    def release(self, files):
        for name, text in files.items():
            path = self.upstream / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink() if text is None else path.write_text(text)
        shell(self.upstream, "git add --all && git commit --quiet --message change")

    def upgrade(self):
        return starting.upgrade_clone(self.root)

    def newest(self):
        return contents(self.upstream)


@pytest.fixture(params=[Folder, Clone])
def learner(request, tmp_path, monkeypatch):
    return request.param(tmp_path, monkeypatch)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    return Folder(tmp_path, monkeypatch)


clone = pytest.fixture(lambda tmp_path: Clone(tmp_path, None), name="clone")


def learn(root):
    """Run 1, edit 2, solve 3, edit 5, leave 4 and 6; returns the texts that must stay."""
    place = root / "exercises"
    run_it(place / "01.ipynb")
    for number, own in ((2, "my try"), (3, "my solution"), (5, "mine as well")):
        change(place / f"0{number}.ipynb", source=[own])
    run_it(place / "03.ipynb")
    (place / "02_mine.ipynb").write_text("an own copy, saved earlier")
    (place / "notes.txt").write_text("notes")
    names = ("02.ipynb", "03.ipynb", "05.ipynb", "02_mine.ipynb", "notes.txt")
    return [(place / name).read_bytes() for name in names]


def release(number):
    """The course changes 1, 2 and 3, adds a chapter, and removes another: 6, then 5."""
    files = {f"exercises/0{n}.ipynb": notebook(f"version = {number}  # {n}") for n in (1, 2, 3)}
    files[f"exercises/{13 + number}.ipynb"] = notebook("new")
    return files | {f"exercises/0{7 - number}.ipynb": None}


def assert_kept(root, texts):
    """Each text of the learner stands in a file of its own."""
    lost = Counter(texts) - Counter(contents(root).values())
    assert not lost, f"lost: {lost}"


def assert_newest(learner, *own):
    """Every file is the newest edition's, byte by byte, but those that are the learner's `own`."""
    found = contents(learner.root)
    assert {name: found.pop(name, None) for name in own}.keys() == set(own)
    theirs = {name: text for name, text in learner.newest().items() if name not in own}
    assert {name: text for name, text in found.items() if "mine" not in name} == theirs


# --- what an upgrade does, to a folder and to a clone -------------------------------------------


def test_two_upgrades_bring_everything_and_lose_nothing(learner):
    texts = learn(learner.root)
    learner.release(release(1))
    said = learner.upgrade()
    assert_kept(learner.root, texts)
    assert_newest(learner, "exercises/05.ipynb", "exercises/notes.txt")
    assert said[:-1] == [
        "changed  exercises/01.ipynb",
        "kept     exercises/02.ipynb: you changed it; yours is 02_2_mine.ipynb",
        "kept     exercises/03.ipynb: you changed it; yours is 03_mine.ipynb",
        "gone     exercises/06.ipynb",
        "new      exercises/14.ipynb",
    ]
    assert said[-1].endswith(": 5 files are new, changed or gone")
    found = contents(learner.root / "exercises")
    assert [found[f"{name}_mine.ipynb"] for name in ("02_2", "03")] == texts[:2]
    assert "01_mine.ipynb" not in found
    assert len(learner.upgrade()) == 1 and contents(learner.root / "exercises") == found

    change(learner.root / "exercises" / "03.ipynb", source=["a second solution"])
    texts.append((learner.root / "exercises" / "03.ipynb").read_bytes())
    learner.release(release(2))
    said = learner.upgrade()
    assert_kept(learner.root, texts)
    assert_newest(learner, "exercises/notes.txt")
    assert "kept     exercises/03.ipynb: you changed it; yours is 03_2_mine.ipynb" in said
    gone = "it is no longer in the course; yours is 05_mine.ipynb"
    assert f"kept     exercises/05.ipynb: {gone}" in said
    assert "new      exercises/15.ipynb" in said


@pytest.mark.parametrize(
    "name", ["exercises/14.ipynb", "extra", "dist/14.ipynb", "plans/deep/note", "library.py"]
)
def test_a_file_of_the_learner_where_the_course_writes_one(learner, name):
    """Also where one of both is a folder, and where git, told to ignore the file, would write."""
    if isinstance(learner, Clone):
        (learner.root / ".git" / "info").mkdir()
        (learner.root / ".git" / "info" / "exclude").write_text("dist/\n")
    (learner.root / name).parent.mkdir(parents=True, exist_ok=True)
    (learner.root / name).write_text("an own file")
    more = {"extra/14.ipynb": "{}", "dist/14.ipynb": "{}", "plans": "a file", "library.py": "x"}
    learner.release(release(1) | more)
    learner.upgrade()
    assert_kept(learner.root, [b"an own file"])
    assert_newest(learner)


@pytest.mark.parametrize("edited", [True, False])
def test_a_folder_of_the_course_becomes_a_file_and_a_file_a_folder(learner, edited):
    learner.release({"one/a": "1", "two": "2"})
    learner.upgrade()
    learner.release({"one/a": None, "two": None})
    if isinstance(learner, Clone):
        (learner.upstream / "one").rmdir()
    learner.release({"one": "1", "two/b": "2"})
    if edited:
        (learner.root / "two").write_text("mine")
    learner.upgrade()
    found = contents(learner.root)
    assert (found["one"], found["two/b"]) == (b"1", b"2")
    assert found.get("two.mine") == (b"mine" if edited else None)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a copy of this process")
def test_killed_at_any_moment_it_loses_nothing_and_goes_on(learner, tmp_path, monkeypatch):
    """Before each rename, each write, git's merge and each removal."""
    texts = learn(learner.root)
    learner.release(release(1))
    begun = learner.root
    for moment in range(20):
        learner.root = tmp_path / f"killed-{moment}"
        shutil.copytree(begun, learner.root)
        child = os.fork()
        if child == 0:
            _upgrade_and_die(learner, moment, monkeypatch)
        _, status = os.waitpid(child, 0)
        assert_kept(learner.root, texts)
        if os.WIFEXITED(status):
            break
        learner.upgrade()
        assert_kept(learner.root, texts)
        assert_newest(learner, "exercises/05.ipynb", "exercises/notes.txt")
    assert os.WEXITSTATUS(status) == 0 and moment == (10 if isinstance(learner, Folder) else 5)


def _upgrade_and_die(learner, moment, monkeypatch):
    """Upgrade, but be killed before step number `moment`; most calls of git change nothing."""

    def dying(name):
        step = resolve_name(name)

        def call(*arguments, **options):
            nonlocal moment
            moment -= name != "subprocess.run" or "merge" in arguments[0]
            if moment < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return step(*arguments, **options)

        monkeypatch.setattr(name, call)

    try:
        for name in ("subprocess.run", "os.replace", "pathlib.Path.rename", "pathlib.Path.unlink"):
            dying(name)
        learner.upgrade()
        os._exit(0)
    finally:
        os._exit(1)


def test_what_a_killed_upgrade_has_written_is_not_taken_for_the_learners(learner):
    learner.release(release(1))
    for name in ("exercises/01.ipynb", "exercises/14.ipynb"):
        (learner.root / name).write_bytes(learner.newest()[name])
    learner.release({"notes.py": "new"})
    (learner.root / "notes.py").write_text("new")
    assert not [line for line in learner.upgrade() if line.startswith("kept")]
    assert contents(learner.root) == learner.newest()


def test_a_write_that_fails_puts_everything_back(learner, monkeypatch):
    learn(learner.root)
    before = contents(learner.root)
    learner.release(release(1))
    if isinstance(learner, Clone):
        shell(learner.root, "git add exercises/03.ipynb")  # which git then refuses to overwrite
    else:
        full = Mock(side_effect=OSError(28, "No space left on device"))
        monkeypatch.setattr(starting, "_write", full)
    with pytest.raises(Problem, match="what you wrote is where it was"):
        learner.upgrade()
    assert contents(learner.root) == before


# --- a folder -----------------------------------------------------------------------------------


def test_the_package_lays_out_what_the_repository_has(tmp_path, monkeypatch, capsys):
    assert cli.main(["start", str(tmp_path / "all")]) == 0
    found = contents(tmp_path / "all")
    names = [path for one in FOLDERS for path in (ROOT / one).glob("*.ipynb")]
    theirs = [path for path in names if not path.stem.endswith("_mine")]
    assert found.keys() == {path.relative_to(ROOT).as_posix() for path in theirs}
    assert all(found[path.relative_to(ROOT).as_posix()] == path.read_bytes() for path in theirs)
    own = tmp_path / "all" / "solutions" / "01_steps_and_batches.ipynb"
    change(own, source=["mine"])
    assert cli.main(["start", str(tmp_path / "all"), "--without-solutions"]) == 0
    solved = {name for name in contents(tmp_path / "all") if name.startswith("solutions/")}
    assert solved == {"solutions/01_steps_and_batches_mine.ipynb"}
    (tmp_path / "all" / "notebooks" / "glossary.ipynb").unlink()
    capsys.readouterr()
    assert cli.main(["start", str(tmp_path / "all")]) == 0  # still without
    assert capsys.readouterr().out.splitlines()[:-1] == ["restored notebooks/glossary.ipynb"]


def test_each_folder_keeps_what_its_learner_did(folder, tmp_path, monkeypatch):
    """By where one is: the working directory, or the notebook whose kernel changed it."""
    other = tmp_path / "other"
    starting.start(other)
    monkeypatch.chdir(other / "exercises")
    progress.update("quizzes", "1", lambda record: record.update(right=1, of=2))
    assert mine.folder() == other / "mine"
    monkeypatch.chdir(folder.root)
    assert progress.read()["quizzes"] == {} and mine.folder() == folder.root / "mine"
    monkeypatch.chdir(tmp_path)
    assert home.folder() is None
    monkeypatch.setenv("JPY_SESSION_NAME", str(other / "exercises" / "01.ipynb"))
    assert progress.read()["quizzes"]["1"]["right"] == 1 and home.place() == other
    monkeypatch.setenv("COURSE_HOME", str(tmp_path / "home"))
    assert progress.read()["quizzes"] == {} and mine.folder() == tmp_path / "home" / "mine"


def editions(monkeypatch, version):
    for place in (course_lib, starting):
        monkeypatch.setattr(place, "__version__", version)


def test_one_stays_at_an_edition_and_commands_say_so(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder.root)
    assert cli.main(["find", "FSDP"]) == 0 and capsys.readouterr().err == ""
    editions(monkeypatch, "9.0")
    folder.release(release(1))
    before = contents(folder.root)
    assert cli.main(["find", "FSDP"]) == 0
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "`course upgrade --stay` keeps yours" in said
    assert cli.main(["upgrade", "--stay", "9.0"]) == 2
    old = home.edition(folder.root).version
    assert capsys.readouterr().err.endswith(f"write --stay {old}\n")
    assert cli.main(["upgrade", "--stay", old]) == 0
    assert "stays at edition" in folder.upgrade()[0] and contents(folder.root) == before
    capsys.readouterr()
    assert cli.main(["find", "FSDP"]) == 0
    assert f"stays at edition {old}, installed is 9.0" in capsys.readouterr().err
    assert cli.main(["upgrade"]) == 0 and contents(folder.root) == folder.newest()
    editions(monkeypatch, "8.10")
    with pytest.raises(Problem, match=r"has edition 9.0, .* only 8.10: run `pip install --upgrade"):
        folder.upgrade()
    assert cli.main(["find", "FSDP"]) == 0
    assert capsys.readouterr().err.endswith(
        "installed is 8.10: run `pip install --upgrade course-lib`\n"
    )


def test_where_a_folder_cannot_be_is_one_sentence(folder, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    (tmp_path / "full" / "photos").mkdir(parents=True)
    for name in ("course_lib", home.FIRST):
        (tmp_path / "clone" / name).mkdir(parents=True)
    sentences = {
        "file": r"file is a file: give a directory",
        "file/new": r"cannot be written \(Not a directory\): give a directory of yours",
        "full": r"has other files \(photos\): give a new directory, such as '.*/full/course'",
        "clone/new": r"is in the clone .*/clone, .*: run `course lab` there",
        f"{folder.root}/new": "is inside .*, a folder of the course: run `course start",
    }
    for place, words in sentences.items():
        with pytest.raises(Problem, match=words) as caught:
            starting.start(tmp_path / place)
        assert "\n" not in str(caught.value)
    for name in (".venv", "env"):
        (tmp_path / "work" / name).mkdir(parents=True)
    (tmp_path / "work" / "env" / "pyvenv.cfg").write_text("")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        answers = Mock(side_effect=[DEFAULT, None, KeyboardInterrupt], wraps=starting.write)
        patch.setattr(starting, "write", answers)  # the record is written, a notebook is not
        starting.start(tmp_path / "work")
    (tmp_path / "work" / "exercises").mkdir()
    assert "edition" in starting.start(tmp_path / "work")[0]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Problem, match="no folder of the course is here: run `course start"):
        starting.upgrade()


def test_without_its_record_a_folder_loses_nothing(folder):
    folder.release({home.FIRST: notebook("first")})
    folder.upgrade()
    texts = learn(folder.root)
    (folder.root / home.RECORD).write_text("{")
    with pytest.raises(Problem, match="is damaged: delete it and run `course start"):
        folder.upgrade()
    (folder.root / home.RECORD).unlink()
    folder.upgrade()
    assert_kept(folder.root, texts)
    assert_newest(folder, "exercises/notes.txt")


# --- a clone ------------------------------------------------------------------------------------


def test_a_clone_says_what_else_is_to_do(clone, monkeypatch, capsys):
    clone.release({"pyproject.toml": "[project]\nname = 'other'", home.FIRST: notebook("first")})
    (clone.root / "course_lib").mkdir()
    (clone.root / home.FIRST).parent.mkdir()
    (clone.root / home.FIRST).write_text(notebook("first"))
    monkeypatch.setattr(course_lib, "__file__", str(clone.root / "course_lib" / "__init__.py"))
    monkeypatch.chdir(clone.root)
    assert cli.main(["upgrade", "--stay"]) == 2
    assert cli.main(["upgrade"]) == 0
    said = capsys.readouterr()
    assert "is a clone: leave it out" in said.err
    assert "now run `pip install -e .`" in said.out.splitlines()[-1]
    (clone.root / "dos").write_bytes(b"a\r\n")  # as git writes a file on Windows
    same = shell(clone.root, "printf 'a\\n' | git hash-object --stdin")
    assert starting.digest((clone.root / "dos").read_bytes()) == same
    picture = next((ROOT / "course_lib" / "chapters" / "pictures").glob("*.png"))
    assert starting.digest(picture.read_bytes()) == shell(ROOT, f"git hash-object '{picture}'")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Problem, match="git is missing"):
        clone.upgrade()


def test_an_interrupt_waits_for_the_second_that_git_writes(clone):
    """Ctrl-C reaches every process of the terminal, but git is apart from it by then."""
    texts = learn(clone.root)
    clone.release(release(1))
    (clone.root / ".git" / "hooks").mkdir()
    program = (
        "import os, pathlib, signal, sys\n"
        "from course_lib.starting import upgrade_clone\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "hook = pathlib.Path('.git/hooks/post-merge')\n"
        "hook.write_text(f'#!/bin/sh\\nkill -INT -{os.getpgrp()}\\n')\n"
        "hook.chmod(0o755)\n"
        "print(upgrade_clone(pathlib.Path.cwd())[-1])\n"
    )
    said = shell(clone.root, f"setsid -w {sys.executable} -c {shlex.quote(program)} 2>&1")
    assert re.fullmatch(r"commit \w+ is here: 5 files are new, changed or gone", said)
    assert_kept(clone.root, texts)
    assert_newest(clone, "exercises/05.ipynb", "exercises/notes.txt")


def test_the_remedy_for_own_commits_leads_to_an_upgrade(clone):
    texts = learn(clone.root)
    clone.release(release(1))
    shell(clone.root, "git commit -qam mine")
    before = contents(clone.root)
    with pytest.raises(Problem, match="you have committed here") as caught:
        clone.upgrade()
    shell(clone.root, re.search("run `(.*?)`", str(caught.value))[1])
    assert contents(clone.root) == before
    clone.upgrade()
    assert_kept(clone.root, texts)
    assert_newest(clone, "exercises/05.ipynb", "exercises/notes.txt")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("mv ../upstream ../elsewhere", r"git cannot go on \(.*\): mend that and run"),
        ("git remote remove origin", "no upstream configured"),
        ("git checkout -q --detach", "HEAD does not point to a branch"),
        ("touch .git/index.lock", r"remove the file manually to continue"),
        ("git rev-parse HEAD > .git/MERGE_HEAD", "MERGE_HEAD exists"),
        ("rm -rf .git", "is no git clone"),
        ("rm -rf .git && git init --quiet ..", "is no git clone"),
        ("echo '[broken' > .git/config", "bad config line"),
    ],
)
def test_what_cannot_be_upgraded_is_one_sentence(clone, command, words):
    clone.release(release(1))
    shell(clone.root, command)
    before = contents(clone.root)
    with pytest.raises(Problem, match=words) as caught:
        clone.upgrade()
    assert "\n" not in str(caught.value) and contents(clone.root) == before
