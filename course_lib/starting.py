"""`course start` and `course upgrade`: a new edition comes beside what the learner wrote.

One mechanism, `bring`, serves folders and clones: it compares what was handed out, what the new
edition has, and what is there. The learner's files are renamed, never copied or rewritten, which
needs no space on the disk. Wherever it is interrupted, even by a kill, each of these files is
intact under its own name or one that ends in `mine`; the next run continues from there.
"""

import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from course_lib import __version__, home
from course_lib.building.folders import Outcome, expected, load, untouched, write
from course_lib.home import NEWER, Edition
from course_lib.launch.errors import uninterrupted
from course_lib.problem import Problem

# If these are set, as in a hook, git would use another repository than the clone.
_ELSEWHERE = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")
Digests = Mapping[str, str]  # by name, relative to the root


def upgrade(stay: str | None = None) -> list[str]:
    """Bring the newest edition to the folder or clone in which one is; a report's lines.

    With `stay`, a folder keeps its edition instead; "" is whichever it has.
    """
    root = home.place()
    if root == home.folder():
        return start(root, leave=True) if stay is None else _stay(root, stay)
    if stay is not None:
        raise Problem(f"--stay is for a folder of `course start`, {root} is a clone: leave it out")
    return upgrade_clone(root)


# --- A folder -------------------------------------------------------------------------------------


def start(directory: Path, solutions: bool | None = None, leave: bool = False) -> list[str]:
    """Lay the installed edition out in a directory, beside what is written there; a report's lines.

    `solutions`: with them or without; None is as before, at first with them. `leave`: no longer
    stay at an edition. Raises Problem if the directory is no place for it.
    """
    root = directory.expanduser().resolve()
    try:
        _require_a_place(root)
        before = home.edition(root)
        if before.stays and not leave:
            return [f"{root} stays at edition {before.version}: `course upgrade` in it ends that"]
        if home.is_ahead(before.version):
            raise Problem(
                f"{root} has edition {before.version}, the installed course is only {__version__}: "
                f"run {NEWER} first"
            )
        if not before.version:  # if this is interrupted, the next run knows whose folder it is
            keep(root, Edition(__version__, {}, False))
        if solutions is None:
            solutions = not before.files or any(map(_is_solution, before.files))
        texts = _texts(solutions)
        fresh = {name: digest(text) for name, text in texts.items()}
        with uninterrupted():  # for about a second
            outcomes = bring(root, before.files, fresh, lambda names: _write(root, names, texts))
            keep(root, Edition(__version__, fresh, False))
    except OSError as error:
        raise Problem(
            f"{root} cannot be written ({error.strerror}): give a directory of yours"
        ) from error
    if before.files and not outcomes:
        return [f"edition {__version__} is here; {NEWER}, then this command, brings a newer one"]
    if before.files:
        return _report(root, outcomes, f"edition {__version__}", len(outcomes))
    kept = [outcome for outcome in outcomes if outcome.state == "kept"]
    report = _report(root, kept, f"edition {__version__}", len(fresh))
    return [*report, f"now run `cd '{root}' && course lab`"]


def _require_a_place(root: Path) -> None:
    outer = home.folder(root)
    if outer and outer != root:
        raise Problem(
            f"{root} is inside {outer}, a folder of the course: run `course start '{outer}'`, or "
            "give a directory outside of it"
        )
    if clone := home.clone_around(root):
        raise Problem(
            f"{root} is in the clone {clone}, which has its notebooks: run `course lab` there, or "
            "give a directory outside of it"
        )
    if root.exists() and not root.is_dir():
        raise Problem(f"{root} is a file: give a directory")
    if outer or load(root / home.FIRST) or not root.exists():
        return
    # A virtual environment may lie here, or what an editor hides.
    other = sorted(
        each.name
        for each in root.iterdir()
        if not each.name.startswith(".") and not (each / "pyvenv.cfg").exists()
    )
    if other:
        raise Problem(
            f"{root} has other files ({', '.join(other[:3])}): give a new directory, such as "
            f"'{root / 'course'}'"
        )


def _texts(solutions: bool) -> dict[str, bytes]:
    package = home.package_root()
    texts = {path.relative_to(package): text for path, text in expected(package).items()}
    return {
        path.as_posix(): text.encode()
        for path, text in texts.items()
        if solutions or not _is_solution(path.as_posix())
    }


def _is_solution(name: str) -> bool:
    return name.startswith("solutions/")


def _write(root: Path, names: list[str], texts: Mapping[str, bytes]) -> None:
    for name in names:
        if name in texts:
            write(root / name, texts[name])
        else:
            (root / name).unlink(missing_ok=True)


def keep(root: Path, handed: Edition) -> None:
    """Write a folder's record."""
    text = json.dumps(handed._asdict(), indent=1) + "\n"
    write(root / home.RECORD, text.encode())


def _stay(root: Path, version: str) -> list[str]:
    before = home.edition(root)
    if version and version != before.version:
        raise Problem(
            f"--stay {version} is not the edition of {root}: write --stay {before.version}"
        )
    keep(root, before._replace(stays=True))
    return [f"{root} stays at edition {before.version}: `course upgrade` ends that"]


# --- The one mechanism ----------------------------------------------------------------------------


def digest(content: bytes) -> str:
    """Git's name for a file of this content; a text has the line ends of Unix."""
    if b"\0" not in content:
        content = content.replace(b"\r\n", b"\n")
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def bring(
    root: Path, handed: Digests, fresh: Digests, write_all: Callable[[list[str]], None]
) -> list[Outcome]:
    """Let `write_all` bring the files of `fresh`, with what the learner wrote there set aside.

    It gets the names of all files to be written or, if `fresh` does not have them, deleted.
    Raises Problem, with everything in its place again, if one cannot be written.
    """
    moved: dict[str, tuple[Path, bool]] = {}  # name → its new path, and whether it was edited
    names = []
    try:
        for name in _files_for_folders(root, handed, fresh):
            moved[name] = _set_aside(root / name)
        for name in sorted({*handed, *fresh}):
            there, old, new = _there(root / name), handed.get(name, ""), fresh.get(name, "")
            if there == new or (there and old == new):
                continue
            names.append(name)
            if there and there != old:
                moved[name] = _set_aside(root / name)
        write_all(names)
    except (OSError, Problem) as error:
        for name, (path, _) in moved.items():
            if not os.path.lexists(root / name):
                path.rename(root / name)
        left = ", ".join(path.name for path, _ in moved.values() if os.path.lexists(path))
        why = f"{error}: look whether the disk is full, then run it again"
        raise Problem(
            f"{error if isinstance(error, Problem) else why}; what you wrote is "
            f"{f'in {left}' if left else 'where it was'}"
        ) from None
    for path, edited in moved.values():
        if not edited:
            path.unlink()
    return [
        _outcome(root / name, handed.get(name, ""), fresh.get(name, ""), moved.get(name))
        for name in sorted({*moved, *names})
    ]


def _outcome(path: Path, old: str, new: str, moved: tuple[Path, bool] | None) -> Outcome:
    gone = not os.path.lexists(path)
    if moved and moved[1]:
        why = "it is no longer in the course" if gone else "you changed it"
        return Outcome(path, "kept", f"{why}; yours is {moved[0].name}")
    if gone or not old:
        return Outcome(path, "gone" if gone else "new")
    return Outcome(path, "changed" if old != new else "restored")


def _there(path: Path) -> str:
    """The digest of a file; "" if nothing is there, and a word for what is no plain file."""
    if not os.path.lexists(path):
        return ""
    plain = path.is_file() and not path.is_symlink()
    return digest(path.read_bytes()) if plain else "no plain file"


def _files_for_folders(root: Path, handed: Digests, fresh: Digests) -> list[str]:
    """Files of the learner's where the new edition has a folder."""
    parents = {str(parent) for name in fresh for parent in Path(name).parents[:-1]}
    return [
        name
        for name in sorted(parents - {*handed})
        if os.path.lexists(root / name) and not (root / name).is_dir()
    ]


def _set_aside(path: Path) -> tuple[Path, bool]:
    """Rename a file; its new path, and whether it was edited and not only run."""
    plain = path.suffix == ".ipynb" and path.is_file() and not path.is_symlink()
    edited = not (plain and untouched(load(path)))
    free = _free_name(path)
    path.rename(free)
    return free, edited


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


def _report(root: Path, outcomes: list[Outcome], edition: str, count: int) -> list[str]:
    """A line for each notebook and each kept file, and one about all."""
    lines = [
        outcome.line(root)
        for outcome in outcomes
        if outcome.state == "kept" or outcome.path.suffix == ".ipynb"
    ]
    return [*lines, f"{edition} is here: {count} files are new, changed or gone"]


# --- A clone --------------------------------------------------------------------------------------


def upgrade_clone(root: Path) -> list[str]:
    """Bring the clone at `root` to the newest version of its branch; a report's lines.

    Git fetches the version and, at the end, writes it: it refuses to overwrite what has changed.
    """
    if not (root / ".git").exists():
        # If the course lies inside another project's clone, that project would be upgraded.
        raise Problem(
            f"{root} is no git clone, so there is nothing to upgrade it from: clone the course "
            "beside it and copy your notebooks into the clone"
        )
    git(root, "fetch", "--quiet")
    counts = git(root, "rev-list", "--left-right", "--count", "HEAD...@{upstream}")
    ahead, behind = map(int, counts.split())
    if not behind:
        return ["the course is up to date"]
    if ahead:
        branch = f"mine-{git(root, 'rev-parse', '--short', 'HEAD').strip()}"
        raise Problem(
            f"you have committed here: run `git branch {branch} && git reset $(git merge-base HEAD "
            f"@{{upstream}})`, which keeps the commits on a branch {branch} and changes no file, "
            "then run `course upgrade` again"
        )
    all_handed, all_fresh = _tree(root, "HEAD"), _tree(root, "@{upstream}")
    same = all_handed.items() & all_fresh.items()
    handed, fresh = dict(all_handed.items() - same), dict(all_fresh.items() - same)
    with uninterrupted():  # for about a second
        outcomes = bring(root, handed, fresh, lambda _names: _merge(root, fresh))
    new = git(root, "rev-parse", "--short", "HEAD").strip()
    lines = _report(root, outcomes, f"commit {new}", len(outcomes))
    if "pyproject.toml" in fresh:
        lines.append("now run `pip install -e .`: the course may need other packages than before")
    return lines


def _merge(root: Path, fresh: Digests) -> None:
    # What a killed merge has written is told to git, which would take it for the learner's.
    if written := [name for name, new in fresh.items() if _there(root / name) == new]:
        git(root, "add", "--force", "--", *written)
    options = ("--ff-only", "--no-overwrite-ignore", "--quiet")
    git(root, "-c", "merge.autostash=false", "merge", *options, "@{upstream}")


def _tree(root: Path, commit: str) -> Digests:
    """The digests of all files in a commit."""
    rows = git(root, "ls-tree", "-r", "-z", commit).split("\0")
    pairs = (row.partition("\t") for row in rows if row)
    return {name: about.split()[2] for about, _, name in pairs}


def git(root: Path, *arguments: str) -> str:
    """What git prints. Raises Problem with git's own words if it is missing or fails."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            env={key: value for key, value in os.environ.items() if key not in _ELSEWHERE},
            start_new_session="merge" in arguments,  # which an interrupt must not break off
        )
    except FileNotFoundError:
        raise Problem("git is missing: install it, then run `course upgrade` again") from None
    if done.returncode:
        words = " ".join(os.fsdecode(done.stderr).split()) or f"it ended with {done.returncode}"
        raise Problem(
            f"git cannot go on ({words}): mend that and run `course upgrade` again, or clone the "
            f"course anew beside {root} and copy your notebooks there"
        )
    return os.fsdecode(done.stdout)
