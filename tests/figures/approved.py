"""What was on the screen when somebody last looked at it: a digest of each picture and its words.

Where a picture is meant to change: `APPROVE=1 pytest tests/figures tests/panels`, then look at each
picture whose row in approved.tsv is another, in both themes, before you commit the rows.
"""

import hashlib
import os
import re
from pathlib import Path

from filelock import FileLock

FILE = Path(__file__).with_suffix(".tsv")


def expect_approved(name: str, *shown: str) -> None:
    """Fail unless this is what the row of this name was made of."""
    text = without_ids("\n".join(shown))
    found = hashlib.sha256(text.encode()).hexdigest()[:12]
    if os.environ.get("APPROVE"):
        with FileLock(f"{FILE}.lock"):
            rows = sorted((_rows() | {name: found}).items())
            FILE.write_text("".join(f"{key}\t{digest}\n" for key, digest in rows), "utf-8")
    assert _rows().get(name) == found, f"{name} looks different: see {Path(__file__).name}"


def without_ids(svg: str) -> str:
    """A drawing without its own ids, which no other drawing has."""
    return re.sub(r"\b[df]\d+-", "", svg)


def _rows() -> dict[str, str]:
    lines = FILE.read_text("utf-8").splitlines() if FILE.exists() else []
    return dict(line.split("\t") for line in lines)
