"""What the doctor says about one thing: its state, in plain words, and the remedy."""

from dataclasses import dataclass

STATUSES = ("ok", "slow", "missing")
REINSTALL = "run `pip install -e .` in the repository"


@dataclass(frozen=True)
class Finding:
    """One thing looked at: status "ok", "slow" or "missing", what was found, what to do.

    Raises ValueError for another status, or for a fault without a remedy.
    """

    name: str
    status: str
    what: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status {self.status!r} is not ok, slow or missing: choose one")
        if self.status != "ok" and not self.remedy:
            raise ValueError(f"remedy of {self.name} is missing: say what to do about it")

    @property
    def line(self) -> str:
        """The finding on one line of text."""
        mark = f"[{self.status}]"
        tail = f": {self.remedy}" if self.remedy else ""
        return f"{mark:<10} {self.name:<16} {self.what}{tail}"
