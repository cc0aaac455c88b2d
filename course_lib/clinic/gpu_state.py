"""`nvidia-smi -q` (errors of the memory, what holds the clock down), `nvlink -s`, `dcgmi diag`.

Format: https://docs.nvidia.com/deploy/nvidia-smi/; the remapper's meaning:
https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from course_lib.clinic.sign import Sign, unreadable

# Reasons of the driver for a lower clock that need somebody's attention, and whose.
_REASONS = {
    "HW Thermal Slowdown": "it is too hot: fans, airflow, thermal paste",
    "HW Power Brake Slowdown": "the power supply asks for less: look at the rack's power",
    "SW Thermal Slowdown": "the driver keeps it from getting too hot: fans, airflow",
    "SW Power Cap": "it is at its power limit: usual at full load, a fault at low power",
    "Sync Boost": "another GPU of its boost group is slow",
}


@dataclass(frozen=True)
class GpuState:
    """One GPU: its values by "section/…/name", all as printed."""

    gpu: str
    values: dict[str, str] = field(default_factory=dict)

    def count(self, *words: str) -> int:
        """The sum of all values whose name has all `words`; what is N/A counts as 0."""
        found = (value for name, value in self.values.items() if all(w in name for w in words))
        return sum(int(value) for value in found if value.isdigit())

    def says(self, name: str, value: str) -> bool:
        """Whether a value with this name at the end is `value`."""
        return any(n.endswith(f"/{name}") and v == value for n, v in self.values.items())


@dataclass(frozen=True)
class NvLink:
    """One link of a GPU, one way; None where it is inactive."""

    gpu: str
    link: int
    gb_per_s: float | None


@dataclass(frozen=True)
class Diagnosis:
    """One test of `dcgmi diag`: Pass, Fail, Skip or Warning, and its words."""

    test: str
    result: str
    words: str


def query(text: str) -> tuple[GpuState, ...]:
    """The GPUs of `nvidia-smi -q -d …`; a part without a line "GPU …" belongs to "GPU ?".

    The indentation says what belongs to what. Raises ValueError for a line that is neither a
    heading nor "name : value".
    """
    states: list[GpuState] = []
    path: list[tuple[int, str]] = []
    for line in text.splitlines():
        indent, words = len(line) - len(line.lstrip()), line.strip()
        if words.startswith("GPU ") and indent == 0:
            states.append(GpuState(words))
            path = []
            continue
        if not words or indent == 0:  # the title, the time, the driver
            continue
        states = states or [GpuState("GPU ?")]
        path = [(depth, name) for depth, name in path if depth < indent]
        name, colon, value = (part.strip() for part in words.partition(" : "))
        if not colon and re.search(r"[:=<>|]", words):
            raise unreadable("nvidia-smi -q", line, "a heading or 'name : value'")
        path.append((indent, name))
        if colon:
            states[-1].values["/".join(["", *(name for _, name in path)])] = value
    return tuple(states)


def nvlink(text: str) -> tuple[NvLink, ...]:
    """The links of `nvidia-smi nvlink -s`. Raises ValueError for any other line."""
    links, gpu = [], "GPU ?"
    for line in text.splitlines():
        if match := re.match(r"(GPU \d+):", line):
            gpu = match[1]
        elif match := re.match(r"\s+Link (\d+): (?:([\d.]+) GB/s|<inactive>)\s*$", line):
            links.append(NvLink(gpu, int(match[1]), float(match[2]) if match[2] else None))
        elif line.strip():
            raise unreadable("nvidia-smi nvlink -s", line, "'Link 0: 25 GB/s'")
    return tuple(links)


def dcgm(text: str) -> tuple[Diagnosis, ...]:
    """The tests of `dcgmi diag`, warnings among them; a cell that goes on below is joined.

    Raises ValueError for a row that is not a pair of cells.
    """
    found: list[Diagnosis] = []
    for line in text.splitlines():
        if not line.startswith("|") or "----" in line or "Diagnostic  " in line:
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) not in (1, 2) or (len(cells) == 1 and not found):
            raise unreadable("dcgmi diag", line, "'| test | result |'")
        test, words = (cells[0], cells[1]) if len(cells) == 2 else ("", cells[0])
        above = found[-1].test if found else ""
        if match := re.match(r"(Pass|Fail|Skip)\b", words):
            found.append(Diagnosis(test or above, match[1], words))
        elif test in ("Warning", "Error"):
            found.append(Diagnosis(above or test, test, words))
        elif not test and found:
            last = found.pop()
            found.append(Diagnosis(last.test, last.result, last.words + words))
    return tuple(found)


def state_signs(states: Sequence[GpuState]) -> list[Sign]:
    """Errors of the memory that need a restart or a new GPU, and reasons for a low clock."""
    signs = []
    for state in states:
        gpu = state.gpu
        fresh = state.count("ECC Errors/Volatile", "Uncorrectable")
        if fresh:
            do = "restart what ran on it, then let an administrator reset the GPU"
            signs.append(Sign(f"{gpu} had {fresh} uncorrectable memory errors since its reset", do))
        if state.says("Remapping Failure Occurred", "Yes"):
            signs.append(Sign(f"{gpu} could not replace a bad row", "take it out: it is for RMA"))
        elif state.says("Pending", "Yes"):
            wrong = f"{gpu} has a bad row of memory that is replaced at the next reset"
            do = "finish or checkpoint the job, then let an administrator reset the GPU"
            signs.append(Sign(wrong, do, "whether results were wrong before it was noticed"))
        for reason, do in _REASONS.items():
            if state.says(reason, "Active"):
                signs.append(Sign(f"{gpu} lowers its clock ({reason})", do, "since when"))
    return signs


def nvlink_signs(links: Sequence[NvLink]) -> list[Sign]:
    """GPUs with inactive links, or with a link slower than the others."""
    signs = []
    best = max((link.gb_per_s or 0 for link in links), default=0)
    for gpu in dict.fromkeys(link.gpu for link in links):
        own = [link for link in links if link.gpu == gpu]
        bad = [link for link in own if (link.gb_per_s or 0) < best]
        if bad:
            numbers = ", ".join(str(link.link) for link in bad)
            wrong = f"{gpu} has {len(bad)} of {len(own)} NVLinks inactive or slow ({numbers})"
            do = "compare with the other GPUs, look for Xid 74, and have the node drained"
            unsaid = "whether the board has that link at all, or how much passes over it"
            signs.append(Sign(wrong, do, unsaid))
    return signs


def dcgm_signs(tests: Sequence[Diagnosis]) -> list[Sign]:
    """What failed or was warned about; a GPU that has never been tested has no sign."""
    do = "keep the output, drain the node, and give both to who looks after it"
    unsaid = "that what passed is healthy: a run with all NVLinks down has passed (DCGM issue 198)"
    return [
        Sign(f"{test.test}: {test.words}", do, unsaid)
        for test in tests
        if test.result in ("Fail", "Warning", "Error")
    ]
