"""One tensor of a run, and the file that a rank's tensors are kept in."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from course_lib.problem import Problem


@dataclass(frozen=True)
class Entry:
    """A tensor that one rank had; `terms` is the length of the sums that made each number.

    `times`: how often it arose, as in several micro-batches; the value is the first.
    """

    kind: str
    name: str  # of the module or parameter
    value: Tensor
    terms: int
    times: int = 1

    @property
    def key(self) -> tuple[str, str]:
        """What it is called in every run."""
        return self.kind, self.name


def write(folder: Path, rank: int, ranks: int, entries: list[Entry]) -> None:
    """Write rank<rank>.pt."""
    page = {"ranks": ranks, "entries": [asdict(entry) for entry in entries]}
    torch.save(page, folder / f"rank{rank}.pt")


def read(folder: Path) -> list[dict[tuple[str, str], Entry]]:
    """The entries of each rank, by key, in the order in which they arose.

    Raises Problem for a folder that has no run, or not all of its ranks.
    """
    first = _page(folder / "rank0.pt", folder)
    pages = [first]
    for rank in range(1, first["ranks"]):
        pages.append(_page(folder / f"rank{rank}.pt", folder))
    if any(page["ranks"] != len(pages) for page in pages):
        raise Problem(f"{folder} mixes runs on different numbers of ranks: record into a new one")
    return [{entry.key: entry for entry in _entries(page)} for page in pages]


def _page(path: Path, folder: Path) -> dict[str, Any]:
    try:
        page: dict[str, Any] = torch.load(path, weights_only=True)
        if set(page) == {"ranks", "entries"}:
            return page
    except FileNotFoundError:
        raise Problem(
            f"{folder} has no {path.name}: give a folder that comparing.record, or "
            "`course demo one_update --folder`, has written on all ranks"
        ) from None
    except Exception:  # whatever else torch cannot read
        pass
    raise Problem(f"{path} is no record of an update: record it again, into a new folder")


def _entries(page: dict[str, Any]) -> list[Entry]:
    return [Entry(**fields) for fields in page["entries"]]
