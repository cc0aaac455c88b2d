"""`course upgrade`: fetch, rename what is in the way, fast-forward. Nothing else is touched.

Interrupted anywhere, even by a kill, it leaves each of the learner's files whole under its own name
or one that ends in `mine`; the next run goes on from there.
"""

from collections.abc import Mapping
from pathlib import Path

from course_lib.building import Outcome
from course_lib.launch.errors import held
from course_lib.problem import Problem
from course_lib.upgrading import git
from course_lib.upgrading.aside import Aside, in_the_way, put_back, set_aside
from course_lib.upgrading.standing import AGAIN, require_descendant, require_ready


def upgrade(root: Path) -> list[str]:
    """Bring the clone at `root` to the newest version; returns what there is to say about it.

    Raises Problem, with nothing changed, where that is not possible.
    """
    require_ready(root)
    _fetch(root)
    new = git.ask(root, "rev-parse", "@{upstream}")
    if git.agrees(root, "merge-base", "--is-ancestor", new, "HEAD"):
        return ["the course is up to date"]
    require_descendant(root, new)
    changes = _changes(root, new)
    with held():  # Ctrl-C waits for the second that this takes
        moved = _replace(root, changes, new)
    return _report(root, changes, moved)


def _fetch(root: Path) -> None:
    try:
        git.ask(root, "fetch")
    except Problem as problem:
        raise Problem(
            f"no new version could be fetched ({problem}): check the network, {AGAIN}"
        ) from None


def _changes(root: Path, new: str) -> dict[str, str]:
    """What the commit `new` changes: path → A (added), M, D (deleted) or T (another type)."""
    words = git.names(root, "diff", "--name-status", "-z", "--no-renames", "HEAD", new)
    return dict(zip(words[1::2], words[::2], strict=True))


def _replace(root: Path, changes: Mapping[str, str], new: str) -> list[Aside]:
    """Set aside what is in the way, then let git write the new version; returns what was moved."""
    moved: list[Aside] = []
    try:
        set_aside(in_the_way(root, changes, new), moved)
        # Git fills in missing files, and refuses to touch any other that is not as it was.
        options = ("--ff-only", "--no-overwrite-ignore", "--quiet")
        git.ask(root, "-c", "merge.autostash=false", "merge", *options, new, apart=True)
    except (OSError, Problem) as error:
        put_back(moved)
        raise Problem(
            f"the new version could not be written ({error}): look whether the disk is full, "
            f"{AGAIN}; {_where(moved)}"
        ) from None
    for aside in moved:
        if not aside.found.edited:
            aside.name.unlink()
    return moved


def _where(moved: list[Aside]) -> str:
    left = [aside.name.name for aside in moved if aside.name.exists()]
    return f"what you wrote is in {', '.join(left)}" if left else "what you wrote is where it was"


def _report(root: Path, changes: Mapping[str, str], moved: list[Aside]) -> list[str]:
    outcomes = [_outcome(aside) for aside in moved]
    told = {outcome.path for outcome in outcomes}
    for name, letter in changes.items():
        path = root / name
        if letter in "AD" and path.suffix == ".ipynb" and path not in told:
            outcomes.append(Outcome(path, "new" if letter == "A" else "removed"))
    lines = [outcome.line(root) for outcome in outcomes]
    lines.append(f"upgraded: {len(changes)} files of the course are new, changed or removed")
    if "pyproject.toml" in changes:
        lines.append("now run `pip install -e .`: the course may need other packages than before")
    return lines


def _outcome(aside: Aside) -> Outcome:
    path, gone = aside.found.path, not aside.found.path.exists()
    if aside.found.edited:
        text = "it is no longer in the course; yours" if gone else "you changed it; yours"
        return Outcome(path, "kept", f"{text} is {aside.name.name}")
    return Outcome(path, "removed") if gone else Outcome(path, "renewed", "you had only run it")
