"""Outputs of commands, each with the address of its source, kept in the folder `outputs`.

A file begins with `command:`, then `recorded:` (where a machine's output was published, shortened
where the note says so) or `built:` (from a documented format, for what nobody has published), then
perhaps `note:`, an empty line, and the output.
"""

from dataclasses import dataclass
from pathlib import Path

from course_lib.validation import choice

_FOLDER = Path(__file__).parent / "outputs"


@dataclass(frozen=True)
class Output:
    """What a command printed: on a real machine if `recorded`, else built from a format."""

    command: str
    source: str
    recorded: bool
    note: str
    text: str

    @property
    def provenance(self) -> str:
        """One line to stand below the output."""
        how = "recorded:" if self.recorded else "built, not recorded,"
        return f"{how} {self.source}" + (f" ({self.note})" if self.note else "")

    @property
    def shown(self) -> str:
        """As a terminal shows it: the command, what it printed, and where that comes from."""
        return f"$ {self.command}\n{self.text.rstrip()}\n\n[{self.provenance}]"


def names() -> list[str]:
    """All outputs, in alphabetical order."""
    return sorted(path.stem for path in _FOLDER.glob("*.txt"))


def output(name: str) -> Output:
    """One output by its name. Raises ValueError with the nearest name for an unknown one."""
    choice("name", name, names())
    head, _, text = (_FOLDER / f"{name}.txt").read_text(encoding="utf-8").partition("\n\n")
    fields = dict(line.split(": ", 1) for line in head.splitlines())
    recorded = "recorded" in fields
    source = fields["recorded" if recorded else "built"]
    return Output(fields["command"], source, recorded, fields.get("note", ""), text)
