"""What must be so before anything is moved: each refusal names the line that changes it."""

from pathlib import Path

from course_lib.problem import Problem
from course_lib.upgrading import git

AGAIN = "then run `course upgrade` again"


def require_ready(root: Path) -> None:
    """Raise Problem unless root is a clone on a branch that follows another, and git is idle."""
    _require_clone(root)
    _require_idle(root)
    _require_branch(root)


def _require_clone(root: Path) -> None:
    # A course in the environment of some other project would upgrade that project.
    no_clone = Problem(
        f"{root} is no git clone, so there is nothing to upgrade it from: clone the repository "
        "beside it and copy your notebooks into the clone"
    )
    try:
        top = git.ask(root, "rev-parse", "--show-toplevel")
    except Problem as problem:
        raise no_clone if "not a git repository" in str(problem) else problem from None
    if Path(top).resolve() != root:
        raise no_clone


def _require_idle(root: Path) -> None:
    """Nothing half done: no lock, no merge or rebase, no conflict, nothing staged."""
    lock = root / git.ask(root, "rev-parse", "--git-path", "index.lock")
    if lock.exists():
        raise Problem(
            f"another git works here, or was killed: if none does, delete {lock}, {AGAIN}"
        )
    for name, remedy in (("MERGE_HEAD", "merge"), ("rebase-merge", "rebase")):
        if (root / git.ask(root, "rev-parse", "--git-path", name)).exists():
            raise Problem(f"a {remedy} is not finished: run `git {remedy} --abort`, {AGAIN}")
    conflicts = git.names(root, "diff", "--name-only", "-z", "--diff-filter=U")
    if conflicts:
        # What `git stash pop` leaves: "theirs" is what was stashed, the learner's own.
        raise Problem(
            f"{', '.join(conflicts)}: git left a conflict; run `git checkout --theirs . && "
            f"git reset`, which takes your side, {AGAIN}"
        )
    if not git.agrees(root, "diff", "--cached", "--quiet"):
        raise Problem(f"changes are staged: run `git reset`, which changes no file, {AGAIN}")


def _require_branch(root: Path) -> None:
    if not git.agrees(root, "symbolic-ref", "--quiet", "HEAD"):
        raise Problem(f"no branch is checked out: run `git switch {_branch(root)}`, {AGAIN}")
    if not git.agrees(root, "rev-parse", "--verify", "--quiet", "@{upstream}"):
        remote = next(iter(git.ask(root, "remote").splitlines()), None)
        if remote is None:
            raise Problem(
                "this clone knows no address of the course: run `git remote add origin ADDRESS && "
                f"git fetch origin`, {AGAIN}"
            )
        raise Problem(
            "this branch follows no branch of the course: run "
            f"`git branch --set-upstream-to={remote}/{_branch(root)}`, {AGAIN}"
        )


def _branch(root: Path) -> str:
    """The branch of the course: the first here that follows another, else main."""
    for line in git.ask(
        root, "for-each-ref", "--format=%(refname:short) %(upstream)", "refs/heads"
    ).splitlines():
        name, _, upstream = line.partition(" ")
        if upstream:
            return name
    return "main"


def require_descendant(root: Path, new: str) -> None:
    """Raise Problem unless the commit `new` follows HEAD, without own commits in between."""
    if git.agrees(root, "merge-base", "--is-ancestor", "HEAD", new):
        return
    if not git.agrees(root, "merge-base", "HEAD", new):
        raise Problem(
            "the course has a new history: clone it beside this clone and copy your notebooks there"
        )
    base = git.ask(root, "merge-base", "HEAD", new)[:12]
    number = 1
    while git.agrees(root, "rev-parse", "--verify", "--quiet", f"refs/heads/mine-{number}"):
        number += 1
    raise Problem(
        f"you have committed here: run `git branch mine-{number} && git reset {base}`, which keeps "
        f"the commits on a branch mine-{number} and changes no file, {AGAIN}"
    )
