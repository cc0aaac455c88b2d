"""What a learner works with: a browser, the notebooks, and a folder that keeps the progress."""

import tempfile
from importlib.util import find_spec

from course_lib import cluster
from course_lib.doctor.finding import Finding
from course_lib.home import home
from course_lib.lab import has_browser, repository
from course_lib.lab.chromium import INSTALL_CHROMIUM, browser_path
from course_lib.problem import Problem


def browser() -> Finding:
    """A browser for JupyterLab."""
    if has_browser():
        return Finding("browser", "ok", "found")
    remedy = "run `course lab --no-browser` and open the printed address in any browser"
    there = browser_path()
    what = f"{there} is there, but opens no window here" if there else "none found on this machine"
    return Finding("browser", "slow", what, remedy)


def pdf() -> Finding:
    """What prints the report."""
    there = browser_path()
    if there:
        return Finding("PDF", "ok", f"`course report` prints by {there}")
    if find_spec("playwright"):
        what = "`course report` prints by playwright, after `playwright install chromium`"
        return Finding("PDF", "ok", what)
    return Finding("PDF", "slow", "`course report` writes HTML only", INSTALL_CHROMIUM)


def slurm() -> Finding:
    """What `course cluster` needs, and nothing else."""
    lacking = cluster.obstacle()
    if lacking:
        return Finding("Slurm", "ok", f"not needed but by `course cluster`; {lacking}")
    return Finding("Slurm", "ok", "with munge, for `course cluster up`")


def notebooks() -> Finding:
    """The notebooks beside the package."""
    try:
        return Finding("notebooks", "ok", str(repository() / "notebooks"))
    except Problem as problem:
        what, _, remedy = str(problem).partition(": ")
        return Finding("notebooks", "missing", what, remedy)


def progress_folder() -> Finding:
    """Whether progress can be saved."""

    try:
        home().mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=home()).close()
    except OSError as error:
        remedy = "set COURSE_HOME to a folder of yours; until then progress is not saved"
        what = f"{home()} cannot be written ({error.strerror})"
        return Finding("progress", "slow", what, remedy)
    return Finding("progress", "ok", str(home()))
