"""What a learner works with: a browser, the notebooks, and a folder that keeps the progress."""

import tempfile

from course_lib.doctor.finding import Finding
from course_lib.home import home
from course_lib.lab import has_browser, repository
from course_lib.problem import Problem


def browser() -> Finding:
    """A browser for JupyterLab."""
    if has_browser():
        return Finding("browser", "ok", "found")
    remedy = "run `course lab --no-browser` and open the printed address in any browser"
    return Finding("browser", "slow", "none found on this machine", remedy)


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
