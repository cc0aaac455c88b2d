"""What a reading shows: what is wrong, what to do, and what the command can't say."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sign:
    """One thing that looks wrong, as three half sentences.

    Raises ValueError without the first two.
    """

    wrong: str
    do: str
    unsaid: str = ""

    def __post_init__(self) -> None:
        if not self.wrong or not self.do:
            raise ValueError("wrong and do must say something: a sign names a fault and a remedy")

    @property
    def sentence(self) -> str:
        """All of it, for a reader."""
        tail = f" The command can't say {self.unsaid}." if self.unsaid else ""
        return f"{_begin(self.wrong)}. {_begin(self.do)}.{tail}"


def _begin(words: str) -> str:
    """With a capital letter, unless it begins with a name such as mlx5_3."""
    first = words.partition(" ")[0]
    return words[0].upper() + words[1:] if first.isalpha() and first.islower() else words


def unreadable(command: str, line: str, wanted: str) -> ValueError:
    """The error of a parser: which line of which command, and what should stand there."""
    shown = line.strip() if len(line) < 100 else f"{line.strip()[:97]}..."
    return ValueError(f"{command} printed {shown!r} where {wanted} is expected: look at that line")
