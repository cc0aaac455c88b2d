"""The commands of a cluster and the options of `docker run`, as tables for a notebook.

Their rows are in `commands.tsv` and `flags.tsv`: the question, the command of each vendor, how to
read it, and its limits. A notebook shows them as HTML, other front ends as plain rows.
"""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace


def _rows(file: str) -> list[SimpleNamespace]:
    """The rows of a TSV file; the cells of a row are attributes named by the heading."""
    lines = Path(__file__).with_name(file).read_text(encoding="utf-8").splitlines()
    heading, *rows = (line.split("\t") for line in lines)
    return [SimpleNamespace(**dict(zip(heading, row, strict=True))) for row in rows]


# A vendor's command is "" if none is documented.
COMMANDS, FLAGS = _rows("commands.tsv"), _rows("flags.tsv")

# The pod of the notes, completed: a device of the shared RDMA plug-in, locked memory, a GPU and
# a large /dev/shm. Source: Mellanox/k8s-rdma-shared-dev-plugin, example/test-hca-pod.yaml.
POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: trainer-0
spec:
  containers:
  - name: trainer
    image: trainer:1
    resources:
      requests:
        nvidia.com/gpu: 8
        rdma/rdma_shared_device_a: 1
      limits:
        nvidia.com/gpu: 8
        rdma/rdma_shared_device_a: 1
    securityContext:
      capabilities:
        add: [IPC_LOCK]
    volumeMounts:
    - {name: shm, mountPath: /dev/shm}
  volumes:
  - name: shm
    emptyDir: {medium: Memory, sizeLimit: 64Gi}
"""
VENDORS = ("NVIDIA", "AMD", "Hygon")
_LEFT = 'style="text-align: left"'


@dataclass(frozen=True)
class Table:
    """A table of text cells, in which only `code` and [links](…) are Markdown."""

    heading: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __repr__(self) -> str:
        return "\n".join(" · ".join(cell for cell in row if cell) for row in self.rows)

    def _repr_html_(self) -> str:
        head = "".join(f"<th {_LEFT}>{_html(cell)}</th>" for cell in self.heading)
        rows = "".join(
            f"<tr>{''.join(f'<td {_LEFT}>{_html(cell)}</td>' for cell in row)}</tr>"
            for row in self.rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def by_vendor(*words: str) -> Table:
    """A table of all questions whose NVIDIA command has one of `words`, with a column by vendor."""
    rows = [
        (one.question, *(_code(name) for name in (one.nvidia, one.amd, one.hygon)))
        for one in _with(words)
    ]
    return Table(("question", *VENDORS), rows)


def how_to_read(*words: str) -> Table:
    """A table of how to read the commands that have one of `words`, and what they can't say."""
    rows = [
        (_code(one.nvidia), one.read, one.unsaid, f"[source]({one.source})") for one in _with(words)
    ]
    return Table(("command", "how to read it", "what it can't say", ""), rows)


def flags() -> Table:
    """A table of the options of `docker run`: which vendors need each, why, and what fails else."""
    rows = [
        (_code(one.flag), one.nvidia, one.amd, one.hygon, one.why, one.without) for one in FLAGS
    ]
    return Table(("option", *VENDORS, "why", "without it"), rows)


def _with(words: Sequence[str]) -> list[SimpleNamespace]:
    return [one for one in COMMANDS if any(word in one.nvidia for word in words)]


def _html(words: str) -> str:
    words = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(words, quote=False))
    return re.sub(r"\[([^]]+)\]\((https:[^)\s\"]+)\)", r'<a href="\2">\1</a>', words)


def _code(command: str) -> str:
    return f"`{command}`" if command else "–"
