"""Recorded command outputs, and `Sign`s: what is wrong, what to do, what is left open."""

from dataclasses import dataclass
from pathlib import Path

from course_lib.validation import choice


@dataclass(frozen=True)
class Sign:
    """One suspected problem: what is `wrong`, what to `do`, what the command leaves `unsaid`."""

    wrong: str
    do: str
    unsaid: str = ""

    @property
    def sentence(self) -> str:
        """The three parts as complete sentences."""
        tail = f" The command can't say {self.unsaid}." if self.unsaid else ""
        return f"{_begin(self.wrong)}. {_begin(self.do)}.{tail}"


def _begin(words: str) -> str:
    """Capitalize, unless the text begins with a name such as mlx5_3."""
    first = words.partition(" ")[0]
    return words[0].upper() + words[1:] if first.isalpha() and first.islower() else words


def unreadable(command: str, line: str, wanted: str) -> ValueError:
    """The error of a parser: the command, the line, and what was expected instead."""
    shown = line.strip() if len(line) < 100 else f"{line.strip()[:97]}..."
    return ValueError(f"{command} printed {shown!r} where {wanted} is expected: look at that line")


_FOLDER = Path(__file__).parent / "outputs"


@dataclass(frozen=True)
class Output:
    """The output of a command: from a real machine if `recorded`, else synthetic."""

    command: str
    source: str
    recorded: bool
    note: str
    text: str

    @property
    def provenance(self) -> str:
        """The source of the output, in one line."""
        how = "recorded:" if self.recorded else "built, not recorded,"
        return f"{how} {self.source}" + (f" ({self.note})" if self.note else "")

    @property
    def shown(self) -> str:
        """The command, its output as in a terminal, and its source."""
        return f"$ {self.command}\n{self.text.rstrip()}\n\n[{self.provenance}]"


def names() -> list[str]:
    """The names of all outputs, in alphabetical order."""
    return sorted(path.stem for path in _FOLDER.glob("*.txt"))


def output(name: str) -> Output:
    """Load one output. Raises ValueError that suggests the nearest name for an unknown one."""
    choice("name", name, names())
    head, _, text = (_FOLDER / f"{name}.txt").read_text(encoding="utf-8").partition("\n\n")
    fields = dict(line.split(": ", 1) for line in head.splitlines())
    recorded = "recorded" in fields
    source = fields["recorded" if recorded else "built"]
    return Output(fields["command"], source, recorded, fields.get("note", ""), text)
