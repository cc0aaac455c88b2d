"""`course upgrade`: fetch, rename conflicting files, fast-forward. Nothing else is touched.

The learner's files are renamed, never copied or rewritten, which needs no space on the disk.
Wherever an upgrade is interrupted, even by a kill, each of these files is intact under its own name
or one that ends in `mine`; the next run continues from there.
"""

import os
import subprocess
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import NamedTuple

from course_lib.building import Outcome
from course_lib.building.folders import load, untouched
from course_lib.launch.errors import uninterrupted
from course_lib.problem import Problem

AGAIN = "then run `course upgrade` again"
# If these are set, as in a hook, git would use another repository than the one at root.
_ELSEWHERE = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")


class InTheWay(NamedTuple):
    """A file or folder that the new version would overwrite or delete.

    `edited` is false if git has the same content, and for notebooks that were only run.
    """

    path: Path
    edited: bool


Moved = dict[InTheWay, Path]  # each file that was in the way, and its new name


def upgrade(root: Path) -> list[str]:
    """Bring the clone at `root` to the newest version; return the lines of a report.

    Raises Problem, with nothing changed, if that is not possible.
    """
    _require_clone(root)
    if obstacle := _unfinished(root) or _lost(root):
        raise Problem(f"{obstacle}, {AGAIN}")
    try:
        ask(root, "fetch")
    except Problem as problem:
        raise Problem(
            f"no new version could be fetched ({problem}): check the network, {AGAIN}"
        ) from None
    new = ask(root, "rev-parse", "@{upstream}")
    if _agrees(root, "merge-base", "--is-ancestor", new, "HEAD"):
        return ["the course is up to date"]
    _require_descendant(root, new)
    words = _names(root, "diff", "--name-status", "-z", "--no-renames", "HEAD", new)
    changes = dict(zip(words[1::2], words[::2], strict=True))  # path → A, M, D or T (another type)
    with uninterrupted():  # for about a second
        moved = _replace(root, changes, new)
    return _report(root, changes, moved)


def _require_clone(root: Path) -> None:
    try:
        top = ask(root, "rev-parse", "--show-toplevel")
    except Problem as problem:
        if "not a git repository" not in str(problem):
            raise
        top = ""
    # If the course is installed inside another project's clone, that project would be upgraded.
    if not top or Path(top).resolve() != root:
        raise Problem(
            f"{root} is no git clone, so there is nothing to upgrade it from: clone the repository "
            "beside it and copy your notebooks into the clone"
        )


def _unfinished(root: Path) -> str:
    """An unfinished git operation and the command that ends it; "" if there is none."""
    lock = root / ask(root, "rev-parse", "--git-path", "index.lock")
    if lock.exists():
        return f"another git works here, or was killed: if none does, delete {lock}"
    for name, command in (("MERGE_HEAD", "merge"), ("rebase-merge", "rebase")):
        if (root / ask(root, "rev-parse", "--git-path", name)).exists():
            return f"a {command} is not finished: run `git {command} --abort`"
    if conflicts := _names(root, "diff", "--name-only", "-z", "--diff-filter=U"):
        # What `git stash pop` leaves: "theirs" is what was stashed, the learner's own.
        return (
            f"{', '.join(conflicts)}: git left a conflict; run `git checkout --theirs . && "
            "git reset`, which takes your side"
        )
    if not _agrees(root, "diff", "--cached", "--quiet"):
        return "changes are staged: run `git reset`, which changes no file"
    return ""


def _lost(root: Path) -> str:
    """Why the branch has no upstream, and the command that sets one; "" if it has one."""
    branches = ask(root, "for-each-ref", "--format=%(refname:short) %(upstream)", "refs/heads")
    pairs = (line.split(" ") for line in branches.splitlines())
    branch = next((name for name, upstream in pairs if upstream), "main")
    if not _agrees(root, "symbolic-ref", "--quiet", "HEAD"):
        return f"no branch is checked out: run `git switch {branch}`"
    if _agrees(root, "rev-parse", "--verify", "--quiet", "@{upstream}"):
        return ""
    remotes = ask(root, "remote").splitlines()
    if not remotes:
        return (
            "this clone knows no address of the course: run `git remote add origin ADDRESS && "
            "git fetch origin`"
        )
    target = f"{remotes[0]}/{branch}"
    return (
        f"this branch follows no branch of the course: run `git branch --set-upstream-to={target}`"
    )


def _require_descendant(root: Path, new: str) -> None:
    """Raise Problem unless HEAD is an ancestor of the commit `new`, so it can fast-forward."""
    if _agrees(root, "merge-base", "--is-ancestor", "HEAD", new):
        return
    if not _agrees(root, "merge-base", "HEAD", new):
        raise Problem(
            "the course has a new history: clone it beside this clone and copy your notebooks there"
        )
    base = ask(root, "merge-base", "HEAD", new)[:12]
    branches = (f"mine-{number}" for number in count(1))
    free = next(
        name
        for name in branches
        if not _agrees(root, "rev-parse", "--verify", "--quiet", f"refs/heads/{name}")
    )
    raise Problem(
        f"you have committed here: run `git branch {free} && git reset {base}`, which keeps "
        f"the commits on a branch {free} and changes no file, {AGAIN}"
    )


def _replace(root: Path, changes: Mapping[str, str], new: str) -> Moved:
    """Rename the files in the way, then fast-forward to `new`; return the renamed files."""
    moved: Moved = {}
    try:
        for thing in list(_in_the_way(root, changes, new)):
            name = _free_name(thing.path)
            thing.path.rename(name)
            moved[thing] = name
        # Git restores missing files, and refuses to overwrite any file that has changed.
        options = ("--ff-only", "--no-overwrite-ignore", "--quiet")
        ask(root, "-c", "merge.autostash=false", "merge", *options, new, apart=True)
    except (OSError, Problem) as error:
        for thing, name in moved.items():
            if not os.path.lexists(thing.path):
                name.rename(thing.path)
        left = ", ".join(name.name for name in moved.values() if name.exists())
        where = f"is in {left}" if left else "is where it was"
        raise Problem(
            f"the new version could not be written ({error}): look whether the disk is full, "
            f"{AGAIN}; what you wrote {where}"
        ) from None
    for thing, name in moved.items():
        if not thing.edited:
            name.unlink()
    return moved


def _in_the_way(root: Path, changes: Mapping[str, str], new: str) -> Iterator[InTheWay]:
    """The learner's files at paths that the commit `new` writes or deletes."""
    edited = set(_names(root, "diff", "--name-only", "-z", "--no-renames", "HEAD"))
    seen = set()
    for name, letter in changes.items():
        path = root / name
        parents = [root / parent for parent in reversed(Path(name).parents)][1:]
        files = [each for each in parents if os.path.lexists(each) and not each.is_dir()]
        if files:  # where the new version has a folder
            untracked = files[0].relative_to(root).as_posix() not in changes
            if untracked and files[0] not in seen:
                yield InTheWay(files[0], edited=True)
            seen.add(files[0])
        elif os.path.lexists(path) and (letter == "A" or name in edited):
            yield InTheWay(path, _is_edited(root, name, new))


def _is_edited(root: Path, name: str, new: str) -> bool:
    path = root / name
    if path.is_symlink() or not path.is_file():
        return True
    if path.suffix == ".ipynb" and untouched(load(path)):
        return False
    # A killed upgrade leaves files of the new version, which git reports as edited.
    blob = f"{new}:{name}"
    exists = _agrees(root, "cat-file", "-e", blob)
    return not exists or ask(root, "rev-parse", blob) != ask(root, "hash-object", "--", name)


def _free_name(path: Path) -> Path:
    """NN_name_mine.ipynb, NN_name_2_mine.ipynb …; of other files name.mine, name.2.mine …"""
    number = 1
    while True:
        middle = [str(number)] if number > 1 else []
        if path.suffix == ".ipynb":
            target = path.with_name("_".join([path.stem, *middle, "mine.ipynb"]))
        else:
            target = path.with_name(".".join([path.name, *middle, "mine"]))
        if not os.path.lexists(target):
            return target
        number += 1


def _report(root: Path, changes: Mapping[str, str], moved: Moved) -> list[str]:
    outcomes = []
    for (path, edited), name in moved.items():
        gone = not path.exists()
        if edited:
            why = "it is no longer in the course" if gone else "you changed it"
            outcomes.append(Outcome(path, "kept", f"{why}; yours is {name.name}"))
        elif gone:
            outcomes.append(Outcome(path, "removed"))
        else:
            outcomes.append(Outcome(path, "renewed", "you had only run it"))
    named = {outcome.path for outcome in outcomes}
    for changed, letter in changes.items():
        path = root / changed
        if letter in "AD" and path.suffix == ".ipynb" and path not in named:
            outcomes.append(Outcome(path, "new" if letter == "A" else "removed"))
    lines = [outcome.line(root) for outcome in outcomes]
    lines.append(f"upgraded: {len(changes)} files of the course are new, changed or removed")
    if "pyproject.toml" in changes:
        lines.append("now run `pip install -e .`: the course may need other packages than before")
    return lines


def ask(root: Path, *arguments: str, apart: bool = False) -> str:
    """git's stdout without the final newline. Raises Problem if git is missing or fails.

    `apart`: run git in a new session, without Ctrl-C and without prompts for passwords.
    """
    finished = _run(root, arguments, apart)
    if finished.returncode:
        # The first line says why; hints come after it.
        lines = os.fsdecode(finished.stderr).strip().splitlines()
        raise Problem(lines[0] if lines else f"git ended with exit code {finished.returncode}")
    return os.fsdecode(finished.stdout).rstrip("\n")


def _names(root: Path, *arguments: str) -> list[str]:
    """The NUL-separated words that git prints under -z."""
    return [word for word in ask(root, *arguments).split("\0") if word]


def _agrees(root: Path, *arguments: str) -> bool:
    """Whether git exits with code 0."""
    return _run(root, arguments).returncode == 0


def _run(
    root: Path, arguments: tuple[str, ...], apart: bool = False
) -> subprocess.CompletedProcess[bytes]:
    environment = {key: value for key, value in os.environ.items() if key not in _ELSEWHERE}
    environment["LC_ALL"] = "C"  # one of git's messages is parsed
    try:
        return subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            env=environment,
            start_new_session=apart,
        )
    except FileNotFoundError:
        raise Problem("git is missing: install it, then run `course upgrade` again") from None
