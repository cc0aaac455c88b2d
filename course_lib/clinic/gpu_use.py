"""Who uses which GPU, and how hot and fast it runs: `nvidia-smi pmon`, `dmon`, `amd-smi`, `hy-smi`.

Formats: https://docs.nvidia.com/deploy/nvidia-smi/, "Process Monitoring" and "Device Monitoring";
https://rocm.docs.amd.com/projects/amdsmi/; recorded outputs for Hygon, which has published none.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from course_lib.clinic.sign import Sign, unreadable

# NVML's utilization is the percent of time in which some kernel ran (nvmlUtilization_t).
BUSY_PERCENT, IDLE_MEMORY_PERCENT = 90, 2
# H100 and A100 slow down between 85 and 92 °C (`nvidia-smi -q -d TEMPERATURE` tells it exactly).
HOT_C = 85
SLOW_CLOCK = 0.75  # of the fastest busy GPU's: neighbours differ by a few percent
_UNSAID = "how much of the GPU was used: 100 % means that some kernel ran all the time"


@dataclass(frozen=True)
class GpuProcess:
    """A process on a GPU; `pid` None where the GPU has none, other numbers None where "-"."""

    gpu: int
    pid: int | None
    sm_percent: int | None
    memory_percent: int | None
    framebuffer_mb: int | None
    command: str


@dataclass(frozen=True)
class GpuSample:
    """One GPU at one moment; None where the driver printed "-"."""

    gpu: int
    power_w: int | None
    temperature_c: int | None
    sm_percent: int | None
    memory_percent: int | None
    sm_clock_mhz: int | None


def pmon(text: str) -> tuple[GpuProcess, ...]:
    """The rows of `nvidia-smi pmon -s um`. Raises ValueError for a line that is not a row."""
    return tuple(
        GpuProcess(
            _whole(row["gpu"]) or 0,
            _whole(row["pid"]),
            _whole(row.get("sm")),
            _whole(row.get("mem")),
            _whole(row.get("fb")),
            row["command"],
        )
        for row in _rows("nvidia-smi pmon", text, {"gpu", "pid", "command"})
    )


def dmon(text: str) -> tuple[GpuSample, ...]:
    """The rows of `nvidia-smi dmon`. Raises ValueError for a line that is not a row."""
    return tuple(
        GpuSample(
            _whole(row["gpu"]) or 0,
            _whole(row.get("pwr")),
            _whole(row.get("gtemp")),
            _whole(row.get("sm")),
            _whole(row.get("mem")),
            _whole(row.get("pclk")),
        )
        for row in _rows("nvidia-smi dmon", text, {"gpu"})
    )


def amd_smi(text: str) -> tuple[GpuSample, ...]:
    """The rows of `amd-smi monitor`. Raises ValueError for a line that is not a row."""
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
    """The rows of `hy-smi`; it gives no clock, and of the memory only how full it is.

    Raises ValueError for a line that is not a row, such as an error among them.
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
            heat, power, busy = (_whole(_digits(row[n])) for n in ("Temp", "AvgPwr", "DCU%"))
            samples.append(GpuSample(int(words[0]), power, heat, busy, None, None))
    return tuple(samples)


def pmon_signs(processes: Sequence[GpuProcess]) -> list[Sign]:
    """GPUs that several processes share, that have none, and that wait for one another."""
    signs = []
    gpus = {process.gpu for process in processes}
    pids = {gpu: {p.pid for p in processes if p.gpu == gpu and p.pid is not None} for gpu in gpus}
    for gpu in sorted(gpus):
        if len(pids[gpu]) > 1:
            told = ", ".join(map(str, sorted(pid for pid in pids[gpu] if pid)))
            do = f"ask `ps -o user,cmd -p {told.replace(' ', '')}` whose they are"
            signs.append(
                Sign(f"GPU {gpu} is shared by {len(pids[gpu])} processes ({told})", do, _UNSAID)
            )
        elif not pids[gpu] and any(pids.values()):
            do = "see whether the job was started with too few ranks, or one has died"
            signs.append(Sign(f"GPU {gpu} has no process while others have", do))
    waiting = [p for p in processes if _waits(p.sm_percent, p.memory_percent)]
    still = [p for p in processes if p.pid is not None and not p.sm_percent]
    if waiting and still:
        told = ", ".join(f"GPU {p.gpu} (process {p.pid})" for p in still)
        others = ", ".join(str(p.gpu) for p in waiting)
        wrong = f"{told} does nothing while GPU {others} run kernels that move no memory"
        do = f"look where it stands: `py-spy dump --pid {still[0].pid}`; the others may wait for it"
        signs.append(Sign(wrong, do, _UNSAID))
    return signs


def dmon_signs(samples: Sequence[GpuSample]) -> list[Sign]:
    """GPUs that are hot, that run slowly beside the others, or that are busy with waiting."""
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


def _digits(word: str) -> str:
    """The whole number that a word such as 31.0c begins with."""
    return re.split(r"\D", word, maxsplit=1)[0]


def _waits(sm_percent: int | None, memory_percent: int | None) -> bool:
    return (
        (sm_percent or 0) >= BUSY_PERCENT
        and memory_percent is not None
        and memory_percent <= IDLE_MEMORY_PERCENT
    )


def _rows(command: str, text: str, needed: set[str]) -> list[dict[str, str]]:
    """Each row as {column: word}; the first line names the columns, and may come again."""
    heading: list[str] = []
    rows = []
    for line in text.splitlines():
        words = line.split(maxsplit=max(len(heading) - 1, 0) if heading else -1)
        if line.split()[:2] == ["#", "gpu"]:
            heading = line.split()[1:]
        elif line.startswith("#") or not line.strip():
            continue
        elif not needed <= set(heading) or len(words) != len(heading) or not words[0].isdigit():
            raise unreadable(command, line, "a row under a heading that begins with '# gpu'")
        else:
            rows.append({name: word.strip() for name, word in zip(heading, words, strict=True)})
    return rows


def _whole(word: str | None) -> int | None:
    """None for "-", which stands for what the GPU does not report."""
    return int(word) if word and word.isdigit() else None
