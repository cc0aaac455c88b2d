"""The tables of `commands`, to be shown in a notebook: HTML there, plain rows elsewhere."""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

from course_lib.clinic.commands import COMMANDS, FLAGS, Command
from course_lib.clinic.container import VENDORS

_LEFT = 'style="text-align: left"'
# From what you wrote down to the cable: (part, question, what to ask first).
PARTS = (
    ("your program", "Where does each rank stand?", "course diagnose, py-spy dump"),
    ("PyTorch", "Does it see GPUs? Can ranks talk?", "is_available(), device_count()"),
    ("container, pod", "Devices, /dev/shm, locked memory?", "df -h /dev/shm, ulimit -l"),
    ("NCCL", "Which network does it use? How fast?", "NCCL_DEBUG=INFO, all_reduce_perf"),
    ("GPU", "Who uses it? Is it well?", "nvidia-smi pmon, dmon, -q; dmesg"),
    ("inside the node", "By which way to GPU and port?", "nvidia-smi topo -m, nvlink -s"),
    ("port", "Is it up? At which rate?", "ibstat, ibstatus, ibv_devinfo"),
    ("cable, switch", "How much goes over it? Errors?", "counters, mlnx_perf"),
)
# What a container lacks until it is given: (part, docker's option, a pod's field, without it).
GATES = (
    ("GPUs", "--gpus all", "limits: nvidia.com/gpu: 8", "no GPU"),
    (
        "RDMA ports",
        "--device=/dev/infiniband",
        "limits: rdma/rdma_shared_device_a: 1",
        "NCCL takes TCP, silently",
    ),
    (
        "locked memory",
        "--ulimit memlock=-1",
        "capabilities: add: [IPC_LOCK]",
        "ibv_create_cq failed",
    ),
    (
        "shared memory",
        "--shm-size=16G",
        "emptyDir: {medium: Memory} at /dev/shm",
        "64 MB, then Bus error",
    ),
)
# From what you see to what to ask first: (symptom, what to ask, sections), by the kind of trouble.
SYMPTOMS = {
    "won't start": (
        ("is_available() is False", "nvidia-smi inside the container; --gpus", "16.1, 16.5"),
        ("out of memory on an empty GPU", "nvidia-smi pmon -s um -c 1", "16.2"),
        ("ibv_create_cq failed", "ulimit -l; IPC_LOCK", "16.5"),
        ("the pod is Pending", "kubectl describe pod, its last lines", "16.5"),
        ("the rendezvous times out", "--net=host, NCCL_SOCKET_IFNAME", "15.2, 16.5"),
    ),
    "dies": (
        ("a GPU is gone, “uncorrectable”", "the lines with Xid in dmesg -T", "16.2"),
        ("Bus error, No space left on device", "df -h /dev/shm", "16.5"),
    ),
    "hangs": (
        ("all show 100 %, nothing moves", "who shows less in pmon; py-spy dump", "16.3, 16.7"),
        ("in the first all-reduce", "DETAIL; monitored_barrier; interface", "16.7"),
        ("after hours", "course diagnose: the stack that differs", "16.7"),
        ("“Watchdog caught collective …”", "SeqNum, OpType, NumelIn of all ranks", "16.7"),
    ),
    "is slow": (
        ("all ranks, since yesterday", "ibstat everywhere; symbol errors; dmon", "16.4, 16.2"),
        ("many times slower than planned", "NCCL_DEBUG=INFO: Using network", "16.6"),
        ("some percent longer", "time in the collective, by rank; pairs", "16.9"),
        ("two nodes slower than one", "bytes of a step over the link", "16.10"),
    ),
    "is wrong": (("another loss than on one GPU", "course compare", "16.8"),),
}


@dataclass(frozen=True)
class Table:
    """A heading and rows of words: `code` and [links](…) as in Markdown, nothing else."""

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
    """The commands of the three vendors for all questions whose command has one of the words."""
    rows = [
        (one.question, *(_code(name) for name in (one.nvidia, one.amd, one.hygon)))
        for one in _with(words)
    ]
    return Table(("question", *VENDORS), rows)


def how_to_read(*words: str) -> Table:
    """How to read those commands (NVIDIA's, or everybody's), and what they can't say."""
    rows = [
        (_code(one.nvidia), one.read, one.unsaid, f"[source]({one.source})") for one in _with(words)
    ]
    return Table(("command", "how to read it", "what it can't say", ""), rows)


def flags() -> Table:
    """The options of `docker run`: who needs each, why, and what happens without it."""
    rows = [
        (_code(one.flag), one.nvidia, one.amd, one.hygon, one.why, one.without) for one in FLAGS
    ]
    return Table(("option", *VENDORS, "why", "without it"), rows)


def _with(words: Sequence[str]) -> list[Command]:
    found = [one for one in COMMANDS if any(word in one.nvidia for word in words)]
    if not found:
        raise ValueError(f"no command has one of the words {words}: see clinic.commands.COMMANDS")
    return found


def _html(words: str) -> str:
    words = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(words, quote=False))
    return re.sub(r"\[([^]]+)\]\((https:[^)\s\"]+)\)", r'<a href="\2">\1</a>', words)


def _code(command: str) -> str:
    return f"`{command}`" if command else "–"
