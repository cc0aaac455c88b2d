"""Xid: the number by which NVIDIA's driver says in the kernel's log what happened to a GPU.

Source of the numbers, their meaning and the first thing to do: NVIDIA's Xid catalog,
https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from course_lib.clinic.sign import Sign, unreadable


@dataclass(frozen=True)
class Meaning:
    """What an Xid stands for, whose fault it mostly is ("program" or "machine"), what to do."""

    what: str
    whose: str
    do: str


_SANITIZER = "run it under `compute-sanitizer`, which names the line"
_RESET = "checkpoint, drain the node, and have the GPU reset"
MEANINGS = {
    13: Meaning("exception while computing, such as an index out of range", "program", _SANITIZER),
    31: Meaning("a kernel used an address that is not its own", "program", _SANITIZER),
    43: Meaning("the program made a mistake and was ended, the GPU is well", "program", _SANITIZER),
    45: Meaning(
        "the program's work was removed: it was killed, or another Xid came first",
        "program",
        "look for the Xid before it, and for who killed the program",
    ),
    48: Meaning("an uncorrectable error of the memory", "machine", _RESET),
    63: Meaning(
        "a bad row of memory is to be replaced at the next reset",
        "machine",
        "go on, and have the GPU reset when it suits",
    ),
    64: Meaning("a bad row of memory could not be replaced", "machine", f"{_RESET}; it is for RMA"),
    74: Meaning(
        "an error of NVLink, here or at the other end",
        "machine",
        f"look at `nvidia-smi nvlink -s` of all GPUs; {_RESET}",
    ),
    79: Meaning(
        "the GPU has fallen off the bus: it no longer answers over PCIe",
        "machine",
        "restart the node; if it comes again, it is the GPU, its slot or its power",
    ),
    92: Meaning(
        "many errors of single bits, all corrected", "machine", "go on, and tell who owns it"
    ),
    94: Meaning(
        "a memory error that hit one program only",
        "machine",
        "restart that program from its checkpoint; have the GPU reset when it suits",
    ),
    95: Meaning("a memory error that may have hit all programs", "machine", _RESET),
    119: Meaning("the GPU's own processor (GSP) did not answer", "machine", _RESET),
    120: Meaning("an error in the GPU's own processor (GSP)", "machine", _RESET),
}
_LINE = re.compile(
    r"NVRM: Xid \(PCI:(?P<pci>[\da-f:.]+)\): (?P<number>\d+)"
    r"(?:, pid='?(?P<pid>\d+|<unknown>)'?)?(?:, name=(?P<name>[^,]+))?,? *(?P<words>.*)"
)
_CAUSE = re.compile(r"caused by previous Xid (\d+)")


@dataclass(frozen=True)
class Xid:
    """One line: the GPU's place on the bus, the number, the process, the driver's words."""

    pci: str
    number: int
    pid: int | None
    name: str
    words: str

    @property
    def cause(self) -> int | None:
        """The Xid that the driver names as the cause, if it does."""
        match = _CAUSE.search(self.words)
        return int(match[1]) if match else None


def xids(text: str) -> tuple[Xid, ...]:
    """All Xids of a kernel's log, in order; other lines are passed over.

    Raises ValueError for a line that mentions an Xid without its number.
    """
    found = []
    for line in text.splitlines():
        match = _LINE.search(line)
        if not match and re.search(r"NVRM: Xid\b", line):
            raise unreadable("the kernel's log", line, "'NVRM: Xid (PCI:0000:44:00): 79, …'")
        if match:
            pid = match["pid"]
            known = int(pid) if pid and pid.isdigit() else None
            name = (match["name"] or "").strip("<>").replace("unknown", "")
            found.append(Xid(match["pci"], int(match["number"]), known, name, match["words"]))
    return tuple(found)


def xid_signs(found: Sequence[Xid]) -> list[Sign]:
    """One for each GPU and number, the machine's faults before the programs'."""
    signs: dict[tuple[bool, int, str], Sign] = {}
    for one in found:
        unknown = Meaning("it is not in this course's table", "machine", "look into the catalog")
        meaning = MEANINGS.get(one.number, unknown)
        who = f" (process {one.pid}{' ' + one.name if one.name else ''})" if one.pid else ""
        wrong = f"GPU {one.pci} reported Xid {one.number}{who}: {meaning.what}"
        do = f"look at Xid {one.cause} first, which caused it" if one.cause else meaning.do
        unsaid = "" if meaning.whose == "machine" else "that the GPU is to blame: mostly it is not"
        key = meaning.whose == "program", one.number, one.pci
        signs.setdefault(key, Sign(wrong, do, unsaid))
    return [signs[key] for key in sorted(signs)]
