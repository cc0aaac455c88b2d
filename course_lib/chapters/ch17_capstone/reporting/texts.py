"""The learner's own text for the report: a Markdown file, created once and never overwritten."""

import re
from dataclasses import dataclass
from pathlib import Path

from course_lib import mine

FILE = "defence.md"
LEAST_WORDS = 40  # least length of a defence, by convention: two or three sentences
LEAST_WORDS_OF_A_GAP = 5
_TEMPLATE = """\
# Defence

<!-- Why this layout? What does it rest on, what would change your mind, what would you measure
     first? Write below this line; comments like this one do not appear in the report. -->


# Gaps

<!-- One line for each gap above 10 % between theory and measurement, with its name and the cause:
     17.time: eight processes share two cores, and …
     `course report` names the gaps that have no line yet. -->

"""
_COMMENT = re.compile(r"<!--.*?-->", re.S)
_HEADING = re.compile(r"^#+\s*(.+?)\s*#*$", re.M)
# "17.time: because", in a list or not; the colon may be the Chinese one.
_CAUSE = re.compile(r"[\s*+\-`_]*(\d+\.\w+)[`*_]*\s*[:：]\s*[`*_]*(.*)")
# A Chinese character counts as a word.
_WORD = re.compile(r"[\u3400-\u9fff]|[^\W\u3400-\u9fff]+")


@dataclass(frozen=True)
class Texts:
    """The learner's own words; `explained` maps the name of a gap to its cause."""

    defence: str
    explained: dict[str, str]

    @property
    def words(self) -> int:
        """Number of words in the defence, without headings."""
        return count_words(_HEADING.sub("", self.defence))

    @property
    def defended(self) -> bool:
        """Whether the defence has at least LEAST_WORDS words."""
        return self.words >= LEAST_WORDS

    def explains(self, name: str) -> bool:
        """Whether the gap `name` has a cause of at least LEAST_WORDS_OF_A_GAP words."""
        return count_words(self.explained.get(name, "")) >= LEAST_WORDS_OF_A_GAP


def folder() -> Path:
    """The folder `report/`, next to the learner's `mine/`."""
    return mine.folder().parent / "report"


def prepare() -> Path:
    """The path of defence.md, created from a template if missing. Raises OSError if it can't."""
    path = folder() / FILE
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_TEMPLATE, encoding="utf-8")
    return path


def read(path: Path) -> Texts:
    """Read the learner's texts from `path`; they are empty if there is no such file."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    defence, gaps = _COMMENT.sub("", text), ""
    for heading in _HEADING.finditer(defence):
        if heading[1].casefold() == "gaps":
            defence, gaps = defence[: heading.start()], defence[heading.end() :]
            break
    return Texts(defence.strip(), _explained(gaps))


def count_words(text: str) -> int:
    """Number of words in a text; a Chinese character counts as one."""
    return len(_WORD.findall(text))


def _explained(gaps: str) -> dict[str, str]:
    """Parse the lines "17.time: because …", with any Markdown around the name; causes by name."""
    causes: dict[str, str] = {}
    name = ""
    for line in gaps.splitlines():
        if start := _CAUSE.match(line):
            name = start[1]
            causes[name] = start[2]
        elif name and line.strip():
            causes[name] += f" {line.strip()}"
    return causes
