"""Runs a cluster's diagnostic commands, if this machine has them, and lets the clinic read them.

All are read-only: nothing here resets, loads or configures anything. A command that is missing or
fails is skipped silently.
"""

import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from course_lib.clinic import gpus, ports
from course_lib.clinic.recorded import Sign
from course_lib.doctor.machine import Finding

LIMIT_S = 10.0  # nvidia-smi takes 1 s for 8 GPUs, and minutes where one has fallen off the bus
COUNTERS = Path("/sys/class/infiniband")


@dataclass(frozen=True)
class Look:
    """A command, the parser of its output, and the function that turns the result into signs."""

    name: str
    command: list[str]
    parse: Callable[[str], object]
    signs: Callable[..., list[Sign]]


LOOKS = (
    Look(
        "GPU processes", ["nvidia-smi", "pmon", "-s", "um", "-c", "1"], gpus.pmon, gpus.pmon_signs
    ),
    Look("GPU clocks", ["nvidia-smi", "dmon", "-c", "1"], gpus.dmon, gpus.dmon_signs),
    Look(
        "GPU memory",
        ["nvidia-smi", "-q", "-d", "ECC,ROW_REMAPPER,PERFORMANCE"],
        gpus.query,
        gpus.state_signs,
    ),
    Look("GPU topology", ["nvidia-smi", "topo", "-m"], gpus.topology, gpus.topology_signs),
    Look("NVLink", ["nvidia-smi", "nvlink", "-s"], gpus.nvlink, gpus.nvlink_signs),
    Look("AMD GPUs", ["amd-smi", "monitor"], gpus.amd_smi, gpus.dmon_signs),
    Look("Hygon DCUs", ["hy-smi"], gpus.hy_smi, gpus.dmon_signs),
    Look("Xid", ["dmesg"], gpus.xids, gpus.xid_signs),
    Look("RDMA ports", ["ibstat"], ports.ibstat, ports.port_signs),
    Look("RDMA lanes", ["ibstatus"], ports.ibstatus, ports.port_signs),
    Look("RDMA packets", ["ibv_devinfo"], ports.ibv_devinfo, ports.port_signs),
    Look("RDMA devices", ["ibv_devices"], ports.ibv_devices, ports.device_signs),
    Look("RDMA links", ["rdma", "link"], ports.rdma_link, ports.port_signs),
)


def examine_cluster() -> list[Finding]:
    """One finding for each sign of trouble, and an "ok" for each command without any."""
    findings = [finding for look in LOOKS for finding in _findings(look)]
    return findings + list(_counters())


def _findings(look: Look) -> Iterator[Finding]:
    if (text := _printed(look.command)) is None:
        return
    try:
        if parsed := look.parse(text):
            fine = f"`{' '.join(look.command)}` shows no sign of trouble"
            yield from _as_findings(look.name, fine, look.signs(parsed))
    except ValueError as refusal:  # another version prints another format
        what, _, _ = str(refusal).partition(": look at that line")
        yield Finding(look.name, "slow", what, f"read `{' '.join(look.command)}` yourself")


def _counters() -> Iterator[Finding]:
    """Findings from a single reading of the counters of every RDMA port."""
    for folder in sorted(COUNTERS.glob("*/ports/*/counters")):
        device, _, port = folder.parts[-4:-1]
        lines = []
        for path in sorted(folder.iterdir()):
            name = f"/sys/class/infiniband/{device}/ports/{port}/counters/{path.name}"
            lines.append(f"{name}:{path.read_text().strip()}")
        signs = ports.counter_signs(ports.counters("\n".join(lines)))
        yield from _as_findings("RDMA counters", f"{device} port {port} counts", signs)


def _as_findings(name: str, fine: str, signs: list[Sign]) -> list[Finding]:
    if not signs:
        return [Finding(name, "ok", fine)]
    return [Finding(name, "slow", sign.wrong, sign.do) for sign in signs]


def _printed(command: list[str]) -> str | None:
    """The command's stdout; None if it is missing, fails, or takes longer than LIMIT_S."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT_S,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None
