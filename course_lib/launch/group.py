"""Joins and leaves the process group, in a notebook cell, `python -m` and torchrun alike."""

from __future__ import annotations

import contextlib
import gc
import os
import shlex
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from course_lib.launch import recorder
from course_lib.launch.errors import explain
from course_lib.launch.job import (
    ATTEMPT_VARIABLE,
    STEPS_VARIABLE,
    STORE_VARIABLE,
    TIMEOUT_VARIABLE,
)

if TYPE_CHECKING:
    import torch


_TIMEOUT_S = 600.0  # for a collective, if the launcher sets no limit
_PEERS_S = 5.0


@dataclass(frozen=True)
class Rank:
    """This process's rank among `world`, its rank on this machine, its device and backend."""

    rank: int
    world: int
    local_rank: int
    device: torch.device
    backend: str


# The rank, and the store through which the ranks wait for each other; None outside a group.
_membership: tuple[Rank, Any] | None = None


def init() -> Rank:
    """Join the process group that the environment describes, or a world of one; idempotent.

    The backend is NCCL if this machine has a GPU for each of its ranks, else gloo. A group that
    another launcher has initialized (Ray Train, for example) is used as it is. Raises RuntimeError
    if the other ranks do not join within the time limit, or if an existing group is unusable.
    """
    global _membership
    import torch.distributed as dist

    if _membership is None and dist.is_initialized():
        return _adopt()
    if _membership is None:
        _membership = _join()
        recorder.joined()
    return _membership[0]


def finish() -> None:
    """Leave the process group that `init` joined; complete results and assertions before.

    Does nothing outside a group, or for a group that another launcher initialized.
    """
    global _membership
    import torch.distributed as dist

    recorder.returned()
    # A DDP model that outlives its group can abort the process (seen with gloo): collect it first.
    gc.collect()
    if _membership is None:
        return
    _all_here(*_membership, "course_finish", _PEERS_S)  # some may still be reading from us
    if dist.is_initialized():
        dist.destroy_process_group()
    _membership = None


def report_step(step: int, steps: int) -> None:
    """Report to this rank's launcher that update `step` of `steps` is done.

    Takes about 20 µs. The progress line below the cell is updated five times a second.
    """
    recorder.step(step, steps)
    if path := os.environ.get(STEPS_VARIABLE):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
            os.write(descriptor, f"{step} {steps}".ljust(40).encode())  # one atomic write
            os.close(descriptor)


def program(main: Callable[[Any], Any], options: Any) -> NoReturn:
    """Run `main(options)` inside the process group and exit this process with code 0 or 1.

    Called by `python -m course_lib.demos`, under torchrun or alone (a world of one).
    """
    code = _exit_code(main, options)
    if code == 0:
        finish()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: gloo's threads can abort or hang while the interpreter shuts down.
    os._exit(code)


def loopback() -> str | None:
    """The name of the loopback interface; None on systems where it is not known."""
    return {"linux": "lo", "darwin": "lo0"}.get(sys.platform)


def _exit_code(main: Callable[[Any], Any], options: Any) -> int:
    try:
        init()
        main(options)
    except KeyboardInterrupt:
        return 130  # what shells expect after Ctrl-C
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    except BaseException as error:
        recorder.failed(error)
        traceback.print_exc()
        # A single write, after the traceback: torchrun interleaves what its ranks print.
        sys.stderr.write(f"rank {os.environ.get('RANK', 0)} {explain(error)}\n")
        return 1
    return 0


def _adopt() -> Rank:
    """This process's Rank in a group that another launcher initialized.

    No barrier here: that launcher has waited for all ranks, and destroys the group itself.
    """
    import torch.distributed as dist

    rank, world = dist.get_rank(), dist.get_world_size()
    stated = (os.environ.get("RANK", str(rank)), os.environ.get("WORLD_SIZE", str(world)))
    if stated != (str(rank), str(world)):
        raise RuntimeError(
            f"the process group that exists has {world} ranks, of which this is rank {rank}, and "
            f"the environment says RANK={stated[0]} and WORLD_SIZE={stated[1]}: destroy that "
            "group before launch.init(), or unset both variables"
        )
    recorder.start(rank, world)
    device, backend = device_and_backend(dist.get_backend_config())
    # If the launcher did not set it, assume that all ranks are on one machine.
    local_rank = int(os.environ.get("LOCAL_RANK", rank))
    return Rank(rank, world, local_rank, device, backend)


def device_and_backend(configuration: str) -> tuple[torch.device, str]:
    """The device and backend for a group's tensors, from `dist.get_backend_config()`.

    The current GPU if the group has NCCL and this machine has one, else the CPU with gloo. Raises
    RuntimeError for a group that has neither.
    """
    import torch

    backends = dict(part.split(":", 1) for part in configuration.split(","))
    if backends.get("cuda") == "nccl" and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device()), "nccl"
    if backends.get("cpu") == "gloo":
        return torch.device("cpu"), "gloo"
    raise RuntimeError(
        f"the process group that exists sends by {configuration}, and the course's programs need "
        "gloo, or nccl and a GPU for each rank: make it with one of these, or destroy it before "
        "launch.init()"
    )


def _join() -> tuple[Rank, Any]:
    import torch
    import torch.distributed as dist

    recorder.start(int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)))
    # INFO makes DDP name the parameters that had no gradient. The server may have read a different
    # value when it imported torch.
    os.environ.setdefault("TORCH_DISTRIBUTED_DEBUG", "INFO")
    dist.set_debug_level_from_env()
    if os.environ.get("LOCAL_WORLD_SIZE", "1") == os.environ.get("WORLD_SIZE", "1") and loopback():
        # On one machine gloo need not listen on interfaces that others can reach.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback() or "")
    timeout = timedelta(seconds=float(os.environ.get(TIMEOUT_VARIABLE, _TIMEOUT_S)))
    store, rank, world = _meeting_point(timeout)
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    local_world = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    gpus = torch.cuda.device_count() >= local_world
    device = torch.device("cuda", local_rank) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    backend = "nccl" if gpus else "gloo"
    start_s = time.monotonic()
    try:
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=world, timeout=timeout,
            device_id=device if gpus else None,
        )  # fmt: skip
    except RuntimeError as error:
        if time.monotonic() - start_s < timeout.total_seconds():
            raise
        raise RuntimeError(
            f"rank {rank} of {world} waited {timeout.total_seconds():g} s for the others:"
            f" start {world} ranks, or correct WORLD_SIZE"
        ) from error
    joined = Rank(rank, world, local_rank, device, backend)
    # If a rank failed while others were still connecting to it, they would report errors as well.
    _all_here(joined, store, "course_init", timeout.total_seconds())
    return joined, store


def _meeting_point(timeout: timedelta) -> tuple[Any, int, int]:
    """(store for the rendezvous, rank, world size) of this process."""
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    if "RANK" not in os.environ:
        return dist.HashStore(), 0, 1
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    attempt = os.environ.get(ATTEMPT_VARIABLE, "0")
    if STORE_VARIABLE in os.environ:
        return dist.FileStore(f"{os.environ[STORE_VARIABLE]}.{attempt}", world), rank, world
    store, rank, world = next(rendezvous("env://", rank, world, timeout=timeout))
    if os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]:
        # After a restart torchrun (seen with 2.13) reuses the store, in which gloo would find the
        # addresses of dead ranks. Agents on several machines count restarts differently: with more
        # than one, start torchrun with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1.
        store = dist.PrefixStore(f"attempt{attempt}", store)
    return store, rank, world


def _all_here(rank: Rank, store: Any, event: str, limit_s: float) -> None:
    """Wait until every rank has called this for the same event, at most `limit_s` seconds.

    Uses the store: dist.barrier() could be matched with another collective of a diverged rank.
    """
    deadline_s = time.monotonic() + limit_s
    # If the store is gone, so is the rank that hosted it: there is nothing to wait for.
    with contextlib.suppress(Exception):
        store.add(event, 1)
        while store.add(event, 0) < rank.world:
            if time.monotonic() > deadline_s:
                return
            time.sleep(0.002)


# Prefixes of a launcher's variables, which must not leak into launches that a rank starts.
_OF_A_LAUNCHER = (
    "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_",
    STEPS_VARIABLE, STORE_VARIABLE, TIMEOUT_VARIABLE,
)  # fmt: skip


def torchrun_command(module: str, ranks: int, argv: Sequence[str] = ()) -> str:
    """The shell command that runs `module` on `ranks` ranks of this machine with torchrun.

    It calls this Python instead of `torchrun`, which is on PATH only in an activated environment.
    """
    launcher = [sys.executable, "-m", "torch.distributed.run"]
    command = [*launcher, "--standalone", f"--nproc-per-node={ranks}", "-m", module, *argv]
    return subprocess.list2cmdline(command) if sys.platform == "win32" else shlex.join(command)


def private_torchrun(folder: Path, ranks: int) -> list[str]:
    """A single-node torchrun command, without the module; the rendezvous is a file in `folder`.

    With `--standalone` its agent listens on every network interface and unpickles what it receives
    (seen with torch 2.13), so another user could run code as this one. Files in a private folder
    need no port. Run it with `private_environment(folder)`.
    """
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--nnodes=1", f"--nproc-per-node={ranks}"),
        *("--rdzv-backend=c10d", "--rdzv-conf=store_type=file"),
        f"--rdzv-endpoint={folder}/meeting",
        f"--log-dir={folder}/logs",  # otherwise torchrun leaves an empty one behind
    ]


def private_environment(folder: Path) -> dict[str, str]:
    """Environment for `private_torchrun`: no outer launch, a FileStore in `folder` for `init`."""
    return outer_environment() | {
        STORE_VARIABLE: str(folder / "store"),
        "GLOO_SOCKET_IFNAME": loopback() or "",
    }


def outer_environment() -> dict[str, str]:
    """The environment for a torchrun that a rank starts, without the variables of its launch.

    After each restart the ranks get a new store, free of the addresses of dead ranks.
    """
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(_OF_A_LAUNCHER)
    }
    return inherited | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
