"""GPU processes, health, topology and Xids: `nvidia-smi`, `amd-smi`, `hy-smi` and kernel logs.

Formats: https://docs.nvidia.com/deploy/nvidia-smi/, "Process Monitoring" and "Device Monitoring";
https://rocm.docs.amd.com/projects/amdsmi/; recorded outputs for Hygon, which has published none.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from course_lib.clinic.recorded import Sign, unreadable

# NVML's utilization is the percentage of time in which any kernel ran (nvmlUtilization_t).
BUSY_PERCENT, IDLE_MEMORY_PERCENT = 90, 2
# H100 and A100 throttle between 85 and 92 °C (exact limits: `nvidia-smi -q -d TEMPERATURE`).
HOT_C = 85
SLOW_CLOCK = 0.75  # relative to the fastest busy GPU: GPUs normally differ by a few percent
_UNSAID = "how much of the GPU was used: 100 % means that some kernel ran all the time"


@dataclass(frozen=True)
class GpuProcess:
    """A process on a GPU; `pid` is None if the GPU has none, other numbers are None for "-"."""

    gpu: int
    pid: int | None
    sm_percent: int | None
    memory_percent: int | None
    framebuffer_mb: int | None
    command: str


@dataclass(frozen=True)
class GpuSample:
    """One GPU at one moment; values are None where the driver printed "-"."""

    gpu: int
    power_w: int | None
    temperature_c: int | None
    sm_percent: int | None
    memory_percent: int | None
    sm_clock_mhz: int | None


def pmon(text: str) -> tuple[GpuProcess, ...]:
    """Parse the rows of `nvidia-smi pmon -s um`. Raises ValueError for a line that is not a row."""
    processes = []
    for row in _rows("nvidia-smi pmon", text, ("gpu", "pid", "command")):
        pid, busy, memory, used_mb = (_whole(row.get(name)) for name in ("pid", "sm", "mem", "fb"))
        processes.append(GpuProcess(int(row["gpu"]), pid, busy, memory, used_mb, row["command"]))
    return tuple(processes)


def dmon(text: str) -> tuple[GpuSample, ...]:
    """Parse the rows of `nvidia-smi dmon`. Raises ValueError for a line that is not a row."""
    rows = _rows("nvidia-smi dmon", text, ("gpu",))
    numbers = ("pwr", "gtemp", "sm", "mem", "pclk")
    return tuple(
        GpuSample(int(row["gpu"]), *(_whole(row.get(name)) for name in numbers)) for row in rows
    )


def amd_smi(text: str) -> tuple[GpuSample, ...]:
    """Parse the rows of `amd-smi monitor`. Raises ValueError for a line that is not a row."""
    samples = []
    for line in text.splitlines():
        if line.strip() and not line.startswith(("GPU ", "WARNING")):
            match = re.match(r"\s*(\d+)" + r"\s+(?:(\d+) ?(?:W|°C|MHz|%)|N/A)" * 6, line)
            if not match:
                raise unreadable("amd-smi monitor", line, "'0  305 W  49 °C  43 °C  2106 MHz …'")
            gpu, power, heat, _, clock, busy, memory = (_whole(word) for word in match.groups())
            samples.append(GpuSample(gpu or 0, power, heat, busy, memory, clock))
    return tuple(samples)


def hy_smi(text: str) -> tuple[GpuSample, ...]:
    """Parse the rows of `hy-smi`, which has no clock, and for memory only how full it is.

    Raises ValueError for a line that is not a row, such as an error message.
    """
    samples, heading = [], [""]
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["DCU"]:
            heading = words
        elif words and not line.startswith("="):
            if not words[0].isdigit() or len(words) != len(heading):
                raise unreadable("hy-smi", line, "a row under a heading that begins with DCU")
            row = dict(zip(heading, words, strict=True))
            # Values such as 31.0c are truncated to whole degrees, watts and percents.
            heat, power, busy = (
                _whole(re.split(r"\D", row[name])[0]) for name in ("Temp", "AvgPwr", "DCU%")
            )
            samples.append(GpuSample(int(words[0]), power, heat, busy, None, None))
    return tuple(samples)


def pmon_signs(processes: Sequence[GpuProcess]) -> list[Sign]:
    """Signs of GPUs shared by several processes, without a process, or waiting for another."""
    signs = []
    gpus = {process.gpu for process in processes}
    pids = {gpu: {p.pid for p in processes if p.gpu == gpu and p.pid is not None} for gpu in gpus}
    for gpu in sorted(gpus):
        if len(pids[gpu]) > 1:
            listed = ", ".join(map(str, sorted(pid for pid in pids[gpu] if pid)))
            do = f"ask `ps -o user,cmd -p {listed.replace(' ', '')}` whose they are"
            signs.append(
                Sign(f"GPU {gpu} is shared by {len(pids[gpu])} processes ({listed})", do, _UNSAID)
            )
        elif not pids[gpu] and any(pids.values()):
            do = "see whether the job was started with too few ranks, or one has died"
            signs.append(Sign(f"GPU {gpu} has no process while others have", do))
    waiting = [p for p in processes if _waits(p.sm_percent, p.memory_percent)]
    still = [p for p in processes if p.pid is not None and not p.sm_percent]
    if waiting and still:
        idle = ", ".join(f"GPU {p.gpu} (process {p.pid})" for p in still)
        others = ", ".join(str(p.gpu) for p in waiting)
        wrong = f"{idle} does nothing while GPU {others} run kernels that move no memory"
        do = f"look where it stands: `py-spy dump --pid {still[0].pid}`; the others may wait for it"
        signs.append(Sign(wrong, do, _UNSAID))
    return signs


def dmon_signs(samples: Sequence[GpuSample]) -> list[Sign]:
    """Signs of GPUs that are hot, slower than the others, or busy-waiting."""
    signs = []
    busy = [s for s in samples if (s.sm_percent or 0) >= BUSY_PERCENT]
    fastest = max((sample.sm_clock_mhz or 0 for sample in busy), default=0)
    for sample in samples:
        if (sample.temperature_c or 0) >= HOT_C:
            do = "look at its fans, its airflow, and `nvidia-smi -q -d PERFORMANCE`"
            signs.append(Sign(f"GPU {sample.gpu} is at {sample.temperature_c} °C", do))
        if sample in busy and (sample.sm_clock_mhz or fastest) < SLOW_CLOCK * fastest:
            wrong = f"GPU {sample.gpu} runs at {sample.sm_clock_mhz} MHz, another at {fastest}"
            do = "`nvidia-smi -q -d PERFORMANCE` says what holds its clock down"
            signs.append(Sign(wrong, do, "why: heat, a power cap and an idle GPU look alike here"))
        if _waits(sample.sm_percent, sample.memory_percent):
            wrong = (
                f"GPU {sample.gpu} is {sample.sm_percent} % busy at {sample.power_w} W and reads "
                "no memory"
            )
            do = "it probably waits inside a collective: find the rank that it waits for"
            signs.append(Sign(wrong, do, _UNSAID))
    return signs


def _waits(sm_percent: int | None, memory_percent: int | None) -> bool:
    return (
        (sm_percent or 0) >= BUSY_PERCENT
        and memory_percent is not None
        and memory_percent <= IDLE_MEMORY_PERCENT
    )


def _rows(command: str, text: str, needed: Sequence[str]) -> list[dict[str, str]]:
    """Each row as {column: word}; the heading with the column names may be repeated."""
    heading: list[str] = []
    rows = []
    for line in text.splitlines():
        if line.split()[:2] == ["#", "gpu"]:
            heading = line.split()[1:]
        elif line.strip() and not line.startswith("#"):
            words = line.split(maxsplit=max(len(heading) - 1, 0))
            if not {*needed} <= {*heading} or len(words) != len(heading) or not words[0].isdigit():
                raise unreadable(command, line, "a row under a heading that begins with '# gpu'")
            rows.append({name: word.strip() for name, word in zip(heading, words, strict=True)})
    return rows


def _whole(word: str | None) -> int | None:
    """The number; None for "-", a value that the GPU does not report."""
    return int(word) if word and word.isdigit() else None


# The driver's reasons for a lower clock that need attention, and what to check.
_REASONS = {
    "HW Thermal Slowdown": "it is too hot: fans, airflow, thermal paste",
    "HW Power Brake Slowdown": "the power supply asks for less: look at the rack's power",
    "SW Thermal Slowdown": "the driver keeps it from getting too hot: fans, airflow",
    "SW Power Cap": "it is at its power limit: usual at full load, a fault at low power",
    "Sync Boost": "another GPU of its boost group is slow",
}


@dataclass(frozen=True)
class GpuState:
    """One GPU: its values by "/section/…/name", as printed."""

    gpu: str
    values: dict[str, str] = field(default_factory=dict)

    def count(self, *words: str) -> int:
        """The sum of all values whose name contains all `words`; N/A counts as 0."""
        values = (value for name, value in self.values.items() if all(w in name for w in words))
        return sum(int(value) for value in values if value.isdigit())

    def says(self, name: str, value: str) -> bool:
        """Whether an entry whose path ends in `name` has this value."""
        return any(n.endswith(f"/{name}") and v == value for n, v in self.values.items())


@dataclass(frozen=True)
class NvLink:
    """One NVLink of a GPU, with its rate in one direction; None if it is inactive."""

    gpu: str
    link: int
    gb_per_s: float | None


def query(text: str) -> tuple[GpuState, ...]:
    """Parse `nvidia-smi -q -d …`; sections without a line "GPU …" are assigned to "GPU ?".

    Indentation determines the nesting. Raises ValueError for a line that is neither a heading nor
    "name : value".
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
    """Parse the links of `nvidia-smi nvlink -s`. Raises ValueError for any other line."""
    links, gpu = [], "GPU ?"
    for line in text.splitlines():
        if match := re.match(r"(GPU \d+):", line):
            gpu = match[1]
        elif match := re.match(r"\s+Link (\d+): (?:([\d.]+) GB/s|<inactive>)\s*$", line):
            links.append(NvLink(gpu, int(match[1]), float(match[2]) if match[2] else None))
        elif line.strip():
            raise unreadable("nvidia-smi nvlink -s", line, "'Link 0: 25 GB/s'")
    return tuple(links)


def state_signs(states: Sequence[GpuState]) -> list[Sign]:
    """Signs of memory errors that need a reset or a new GPU, and of lowered clocks."""
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
    """Signs of GPUs with NVLinks that are inactive or slower than the others."""
    signs = []
    best = max((link.gb_per_s or 0 for link in links), default=0)
    for gpu in dict.fromkeys(link.gpu for link in links):
        of_gpu = [link for link in links if link.gpu == gpu]
        bad = [link for link in of_gpu if (link.gb_per_s or 0) < best]
        if bad:
            numbers = ", ".join(str(link.link) for link in bad)
            wrong = f"{gpu} has {len(bad)} of {len(of_gpu)} NVLinks inactive or slow ({numbers})"
            do = "compare with the other GPUs, look for Xid 74, and have the node drained"
            unsaid = "whether the board has that link at all, or how much passes over it"
            signs.append(Sign(wrong, do, unsaid))
    return signs


# Path types, nearest first: one PCIe switch, several, the CPU, its other bridges, the other CPU.
WAYS = ("PIX", "PXB", "PHB", "NODE", "SYS")
_WAY = re.compile(rf"X|NV\d+|{'|'.join(WAYS)}")
_BY_SWITCH, _BY_CPU = WAYS[:2], WAYS[:4]
_MEANING = {
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "the CPU",
    "NODE": "two bridges of one NUMA node",
    "SYS": "the link between two NUMA nodes",
}
_NAME = re.compile(r"(GPU|NIC|mlx\d_|ib)\d+$|mlx5_\w+$")


@dataclass(frozen=True)
class Topology:
    """The path between any two devices, as printed: NV18, PIX, …, SYS."""

    devices: tuple[str, ...]
    ways: Mapping[tuple[str, str], str]

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs among the devices."""
        return tuple(name for name in self.devices if name.startswith("GPU"))

    def nearest_port(self, gpu: str) -> tuple[str, str] | None:
        """The network port with the shortest path to `gpu`, and that path; None without ports."""
        ports = [name for name in self.devices if name not in self.gpus]
        known = [(port, self.ways[gpu, port]) for port in ports]
        return min(known, key=lambda pair: WAYS.index(pair[1]), default=None)

    @property
    def near(self) -> frozenset[str]:
        """The GPUs that reach a network port through PCIe switches only."""
        nearest = {gpu: self.nearest_port(gpu) for gpu in self.gpus}
        return frozenset(gpu for gpu, port in nearest.items() if port and port[1] in _BY_SWITCH)

    @property
    def cpus(self) -> tuple[tuple[tuple[str, ...], ...], ...]:
        """The devices, grouped by CPU and, within it, by PCIe switch."""
        switches = self._joined(_BY_SWITCH)
        return tuple(
            tuple(switch for switch in switches if switch[0] in cpu)
            for cpu in self._joined(_BY_CPU)
        )

    def nvlink(self, device: str) -> str:
        """The NVLinks of a GPU as printed, such as NV18; "" if it has none."""
        ways = (self.ways[device, other] for other in self.devices)
        return ", ".join(sorted({way for way in ways if way.startswith("NV")}))

    def _joined(self, ways: Sequence[str]) -> list[tuple[str, ...]]:
        """Connected components of devices under these path types, ordered by first device."""
        groups: list[tuple[str, ...]] = []
        for device in self.devices:
            near = [
                group for group in groups if any(self.ways[device, one] in ways for one in group)
            ]
            groups = [group for group in groups if group not in near]
            groups.append((*chain(*near), device))
        return sorted(groups, key=lambda group: self.devices.index(group[0]))


def topology(text: str) -> Topology:
    """Parse the matrix of `nvidia-smi topo -m`. Raises ValueError for a malformed row."""
    lines = text.partition("Legend")[0].splitlines()
    heading = next((line.split() for line in lines if line.lstrip().startswith("GPU0")), [])
    devices = tuple(name for name in heading if _NAME.match(name))
    if not devices:
        raise unreadable("nvidia-smi topo -m", lines[0] if lines else "", "a heading with GPU0")
    ways = {}
    for line in lines:
        name, *cells = line.split() or [""]
        if name not in devices or [name, *cells] == heading:
            continue
        row = cells[: len(devices)]
        if len(row) < len(devices) or not all(map(_WAY.fullmatch, row)):
            raise unreadable("nvidia-smi topo -m", line, f"{len(devices)} of X, NV#, PIX … SYS")
        ways.update({(name, other): way for other, way in zip(devices, row, strict=True)})
    if missing := [name for name in devices if (name, name) not in ways]:
        raise unreadable("nvidia-smi topo -m", lines[-1], f"a row for {missing[0]}")
    return Topology(devices, ways)


def topology_signs(topology: Topology) -> list[Sign]:
    """Signs of GPUs far from every network port, and of pairs without the others' NVLink."""
    signs = []
    for gpu in topology.gpus:
        nearest = topology.nearest_port(gpu)
        if nearest and WAYS.index(nearest[1]) >= WAYS.index("PHB"):
            wrong = f"{gpu} reaches its nearest port {nearest[0]} over {_MEANING[nearest[1]]}"
            do = "expect less than the port's rate, and no GPUDirect RDMA by default"
            unsaid = "how fast that way is: measure it with nccl-tests on two nodes"
            signs.append(Sign(f"{wrong} ({nearest[1]})", do, unsaid))
    ways = {
        (a, b): topology.ways[a, b]
        for a in topology.gpus
        for b in topology.gpus
        if topology.gpus.index(a) < topology.gpus.index(b)
    }
    linked = [pair for pair, way in ways.items() if way.startswith("NV")]
    for (a, b), way in ways.items():
        if linked and not way.startswith("NV"):
            do = "keep tensor parallelism within GPUs that have NVLink, or look for a broken link"
            signs.append(Sign(f"{a} and {b} have no NVLink ({way}), other pairs have", do))
    if ways and not linked and "SYS" in ways.values():
        wrong = "there is no NVLink, and some pairs of GPUs talk from one NUMA node to another"
        signs.append(Sign(wrong, "keep tensor parallelism within the GPUs of one NUMA node"))
    return signs


@dataclass(frozen=True)
class Meaning:
    """The meaning of an Xid, its usual culprit ("program" or "machine"), and what to do."""

    what: str
    whose: str
    do: str


_SANITIZER = "run it under `compute-sanitizer`, which names the line"
_RESET = "checkpoint, drain the node, and have the GPU reset"
_LATER = "go on, and have the GPU reset when it suits"
MEANINGS = {
    number: Meaning(what, whose, do)
    for number, whose, what, do in (
        (13, "program", "exception while computing, such as an index out of range", _SANITIZER),
        (31, "program", "a kernel used an address that is not its own", _SANITIZER),
        (43, "program", "the program made a mistake and was ended, the GPU is well", _SANITIZER),
        (45, "program", "the program's work was removed: it was killed, or another Xid came first",
         "look for the Xid before it, and for who killed the program"),
        (48, "machine", "an uncorrectable error of the memory", _RESET),
        (63, "machine", "a bad row of memory is to be replaced at the next reset", _LATER),
        (64, "machine", "a bad row of memory could not be replaced", f"{_RESET}; it is for RMA"),
        (74, "machine", "an error of NVLink, here or at the other end",
         f"look at `nvidia-smi nvlink -s` of all GPUs; {_RESET}"),
        (79, "machine", "the GPU has fallen off the bus: it no longer answers over PCIe",
         "restart the node; if it comes again, it is the GPU, its slot or its power"),
        (92, "machine", "many errors of single bits, all corrected", "go on, and tell who owns it"),
        (94, "machine", "a memory error that hit one program only",
         "restart that program from its checkpoint; have the GPU reset when it suits"),
        (95, "machine", "a memory error that may have hit all programs", _RESET),
        (119, "machine", "the GPU's own processor (GSP) did not answer", _RESET),
        (120, "machine", "an error in the GPU's own processor (GSP)", _RESET),
    )
}  # fmt: skip
_LINE = re.compile(
    r"NVRM: Xid \(PCI:(?P<pci>[\da-f:.]+)\): (?P<number>\d+)"
    r"(?:, pid='?(?P<pid>\d+|<unknown>)'?)?(?:, name=(?P<name>[^,]+))?,? *(?P<words>.*)"
)
_CAUSE = re.compile(r"caused by previous Xid (\d+)")


@dataclass(frozen=True)
class Xid:
    """One Xid line: the GPU's PCI address, the number, the process and the message."""

    pci: str
    number: int
    pid: int | None
    name: str
    words: str

    @property
    def cause(self) -> int | None:
        """The Xid that the driver names as the cause, if any."""
        match = _CAUSE.search(self.words)
        return int(match[1]) if match else None


def xids(text: str) -> tuple[Xid, ...]:
    """Parse all Xids of a kernel log, in order; other lines are ignored.

    Raises ValueError for a line that mentions an Xid without a number.
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
    """One sign per GPU and Xid number, machine faults before program faults."""
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
