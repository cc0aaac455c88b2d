"""Builds the site: a folder of pages that asks nobody else for anything."""

import gzip
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from course_lib.building.folders import about, load
from course_lib.notebook import browser_code
from course_lib.problem import Problem
from course_lib.site import executing, python, shell
from course_lib.site.pages import Notebook, sources

_PANELS = Path(python.__file__).parents[1] / "panels"
MARK = "course-site.json"  # in every site: a folder with it may be written anew


@dataclass(frozen=True)
class Wanted:
    """What to build: `root` has the notebooks, `kept` is the cache.

    `executed` has notebooks that were run; `still`: no panel moves; `pyodide`: its release.
    """

    root: Path
    kept: Path
    executed: Path | None = None
    pyodide: Path | None = None
    still: bool = False


def build(wanted: Wanted, folder: Path, say: Callable[[str], None] = print) -> list[str]:
    """Write the site into `folder`; return the paths of its pages.

    Raises Problem if `folder` has other files, or if anything is missing.
    """
    data = None if wanted.still else python.tarball(wanted.pyodide, wanted.kept)
    require_ours(folder)
    notebooks = [_run(path, wanted, say) for path in _notebooks(wanted.root)]
    for part in ("assets", "python"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    loads = "" if data is None else _python(notebooks, data, folder / "python")
    pages = dict(_pages(wanted.root, notebooks))
    for path, page in pages.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(page, encoding="utf-8")
    _assets(notebooks, folder / "assets", loads)
    _reference(folder / "reference", wanted.kept)
    moving = sum(len(each.live) for each in notebooks)
    about = {"pages": list(pages), "panels": len(sources(notebooks)), "moving": moving}
    (folder / MARK).write_text(json.dumps(about, indent=1), encoding="utf-8")
    return list(pages)


def require_ours(folder: Path) -> None:
    """Raise Problem if the folder has files and is no site; else empty it."""
    if folder.exists() and not folder.is_dir():
        raise Problem(f"{folder} is a file: name a folder")
    if folder.is_dir() and any(folder.iterdir()):
        if not (folder / MARK).exists():
            raise Problem(f"{folder} has files and is no site of this course: name an empty folder")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)


def _notebooks(root: Path) -> list[Path]:
    found = sorted((root / "notebooks").glob("*.ipynb"))
    found = [path for path in found if about(load(path))]
    if not found:
        raise Problem(f"{root} has no notebooks of the course: run this in its folder")
    return found


def _run(path: Path, wanted: Wanted, say: Callable[[str], None]) -> Notebook:
    say(f"{path.stem} …")
    return Notebook(path.stem, executing.run(path, wanted.kept, wanted.executed))


def _python(notebooks: list[Notebook], data: bytes, folder: Path) -> str:
    """Write Python for pages, give notebooks the panels that move; return what all of it weighs."""
    cells = sources(notebooks)
    python.unpack(data, folder)
    (folder / "course.zip").write_bytes(python.library(cells.values()))
    shutil.copy(shell.STATIC / "worker.js", folder)
    found = python.states(cells, folder / "course.zip")
    for notebook in notebooks:
        notebook.live = {
            key: {"source": source, **state}
            for key, source in notebook.panels().items()
            if isinstance(state := found[key], dict)
        }
    sizes = [file.read_bytes() for file in folder.iterdir()]
    plain, packed = sum(map(len, sizes)), sum(len(gzip.compress(each, 6)) for each in sizes)
    return f"{packed / 1e6:.0f} MB once, {plain / 1e6:.0f} MB if the server does not compress"


def _pages(root: Path, notebooks: list[Notebook]) -> Iterator[tuple[str, str]]:
    """(path, page) of everything but the reference."""
    yield "index.html", shell.page(shell.COURSE, shell.front(), here="index.html")
    others = [
        Notebook(path.stem, path)
        for folder in ("exercises", "solutions")
        for path in sorted((root / folder).glob("*.ipynb"))
        if about(load(path))
    ]
    for each in [*notebooks, *others]:
        folder = "notebooks" if each in notebooks else each.path.parent.name
        here = f"{folder}/{each.name}.html"
        more = _MOVES * bool(each.live)
        ends = shell.ends(each.name) if folder == "notebooks" else ""
        yield here, shell.page(each.title, each.body(), here=here, more=more, ends=ends)


_MOVES = (
    '<link rel="stylesheet" href="../assets/panel.css">\n<script src="../assets/panel.js"></script>'
)


def _assets(notebooks: list[Notebook], folder: Path, loads: str) -> None:
    css = shell.colours() + (shell.STATIC / "site.css").read_text(encoding="utf-8")
    (folder / "site.css").write_text(css, encoding="utf-8")
    (folder / "panel.css").write_text((_PANELS / "panel.css").read_text("utf-8"), encoding="utf-8")
    shutil.copy(shell.STATIC / "site.js", folder)
    # As a plain script it runs from a disk as well, where browsers refuse modules.
    module = browser_code(_PANELS / "panel.js").replace("export default", "window.coursePanel =")
    code = f"{{\n{module}window.courseLoads = {json.dumps(loads)};\n}}\n"
    (folder / "panel.js").write_text(code, encoding="utf-8")
    index = [
        {
            "page": each.title,
            "title": title,
            "url": f"notebooks/{each.name}.html#{anchor}",
            "words": words,
        }
        for each in notebooks
        for title, anchor, words in each.sections()
    ]
    search = f"window.courseIndex = {json.dumps(index, ensure_ascii=False)};\n"
    (folder / "search.js").write_text(search, encoding="utf-8")


# --- The reference --------------------------------------------------------------------------------

_NOT_IN_REFERENCE = ("building", "chapters", "cli", "data", "lab", "site")


def reference(folder: Path) -> None:
    """Write the reference of the library by pdoc. Raises Problem for a warning, or without pdoc."""
    command = [
        *(sys.executable, "-W", "error::UserWarning"),
        # pdoc cannot look up a named tuple that names itself.
        *("-W", "ignore:Error parsing type annotation ForwardRef('Pass | None')"),
        *("-m", "pdoc", "--no-show-source", "--no-search", "--output-directory", str(folder)),
        *("course_lib", *(f"!course_lib.{room}" for room in _NOT_IN_REFERENCE)),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1]
        raise Problem(
            f'pdoc wrote no reference: {said} (is it there? `pip install "course-lib[site]"`)'
        )


def _reference(folder: Path, kept: Path) -> None:
    """The reference, from the cache where the library is the same."""
    cached = kept / f"reference-{executing.digest('')[:16]}"
    if not cached.exists():
        for old in kept.glob("reference-*"):
            shutil.rmtree(old)
        reference(cached)
    shutil.copytree(cached, folder)
