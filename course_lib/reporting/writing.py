"""Writes a report into the learner's folder, and never over what is not a report of ours."""

import hashlib
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from course_lib.mine.shelf import free_name
from course_lib.problem import Problem
from course_lib.reporting import exporting, texts
from course_lib.reporting.checks import Check, checks
from course_lib.reporting.facts import gather
from course_lib.reporting.page import notebook

PAGE, PRINTED = "report.html", "report.pdf"
_MARK = "<!-- made by `course report`, unchanged: "


@dataclass(frozen=True)
class Report:
    """Where a report is, what was checked, and what is missing; `pdf` None where there is none."""

    html: Path
    pdf: Path | None
    words: Path
    checks: tuple[Check, ...]
    note: str = ""

    def __str__(self) -> str:
        lines = [check.line for check in self.checks]
        lines += [f"wrote {path}" for path in (self.html, self.pdf) if path]
        lines += [f"note: {self.note}"] if self.note else []
        return "\n".join([*lines, f"your own words: {self.words}"])

    __repr__ = __str__

    def data(self) -> dict[str, Any]:
        """The same, ready for JSON."""
        return {
            "html": str(self.html),
            "pdf": str(self.pdf) if self.pdf else None,
            "words": str(self.words),
            "checks": [asdict(check) for check in self.checks],
            "note": self.note,
        }


def report(
    name: str = "", folder: Path | str | None = None, *, pdf: bool = True, race: bool = False
) -> Report:
    """Make the page of what you have done, as HTML and as PDF; its list of checks is the result.

    `name` stands on the page if it is given. `folder`: where to, by default `report/` beside
    `mine/`. `race` measures your parts beside the course's, which takes a minute or two. Your own
    words are read from `report/defence.md`, which is made once and left alone from then on. An
    older report is replaced, but a file that somebody else made or changed is renamed first. Raises
    Problem for a folder that cannot be written.
    """
    where = Path(folder) if folder else texts.folder()
    try:
        words = texts.prepare()
        facts = gather(words, name, race)
        where.mkdir(parents=True, exist_ok=True)
        page = _free(where)
        _write(page, exporting.to_html(notebook(facts), words.parent))
    except OSError as error:
        raise Problem(
            f"{where} cannot be written ({error.strerror}): name a folder of yours"
        ) from error
    printed, note = _printed(page) if pdf else (None, "")
    return Report(page, printed, words, tuple(checks(facts)), note)


def _printed(page: Path) -> tuple[Path | None, str]:
    """The PDF beside a page, or None and the reason."""
    target = page.with_name(PRINTED)
    try:
        exporting.to_pdf(page.absolute(), target.absolute())
    except Problem as problem:
        return None, str(problem)
    return target, ""


def _free(folder: Path) -> Path:
    """The path for a new page; what stands there and is not ours, or was changed, is renamed."""
    page, printed = folder / PAGE, folder / PRINTED
    if not (page.exists() and _is_ours(page)):
        for path in (page, printed):
            if path.exists():
                os.replace(path, free_name(path))
    return page


def _write(page: Path, text: str) -> None:
    page.write_bytes(f"{text}{_MARK}{_sum_of(text)} -->\n".encode())


def _is_ours(page: Path) -> bool:
    """Whether we wrote it and nobody has changed it since: the last line has a sum of the rest."""
    text, _, mark = page.read_bytes().decode("utf-8", errors="replace").rpartition(_MARK)
    return mark.removesuffix(" -->\n") == _sum_of(text)


def _sum_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
