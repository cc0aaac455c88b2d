"""The server: a process that has imported torch, so that each launch is a fork away.

Its parent asks, through one socket, for a keeper per launch. It ends when that socket does, and
holds nothing else of the parent's. No CUDA and no OpenMP thread may start here: neither survives a
fork.
"""

import contextlib
import gc
import json
import os
import select
import signal
import socket
from importlib import import_module
from typing import Any, NoReturn

from course_lib.launch import keeper
from course_lib.launch.descendants import adopt_orphans, children, kill

READY = b"ready"
FORKED = b"forked"


def main(descriptor: int) -> NoReturn:
    """Serve the parent at the other end of the socket until it is gone."""
    connection = socket.socket(fileno=descriptor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    adopt_orphans()
    _import_heavy_modules()
    _let_go_of_output()
    try:
        connection.sendall(READY)
        _serve(connection)
    except OSError:
        pass  # the parent is gone
    os._exit(0)  # an orderly shutdown of torch takes a second


def _import_heavy_modules() -> None:
    # OpenBLAS starts its threads when numpy is imported, unless there is only one.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import cloudpickle  # noqa: F401
    import torch._dynamo  # (the first optimizer imports it: 1.2 s)
    import torch.distributed  # noqa: F401

    _keep_from_collection()


def _import(modules: list[str]) -> None:
    """What ranks will import is shared by them, which saves each of them up to 0.3 s."""
    for name in modules:
        with contextlib.suppress(Exception):  # a rank will say what is wrong with it
            import_module(name)
    _keep_from_collection()


def _keep_from_collection() -> None:
    gc.collect()
    gc.freeze()  # ranks need not scan torch's own objects again, which saves 70 ms at their end


def _let_go_of_output() -> None:
    """Until now an error could be said there; whoever reads it must not wait for this process."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.close(null)


def _serve(connection: socket.socket) -> None:
    ended = keeper.wake_up_when_a_child_ends()
    keepers: set[int] = set()
    while True:
        ready = select.select([connection.fileno(), ended], [], [])[0]
        if ended in ready:
            os.read(ended, 4096)
            _reap(keepers)
        if connection.fileno() in ready:
            request, descriptors, _, _ = socket.recv_fds(connection, 65_536, 1)
            if not request:
                return
            asked = json.loads(request)
            if modules := asked.get("modules"):
                _import(modules)
                connection.sendall(READY)
            else:
                keepers.add(_fork_keeper(connection, asked, descriptors[0]))
                connection.sendall(FORKED)


def _fork_keeper(connection: socket.socket, request: dict[str, Any], descriptor: int) -> int:
    """The process id of a new keeper; -1 if the system refuses it, which the closed socket says."""
    control = socket.socket(fileno=descriptor)
    try:
        pid = os.fork()
    except OSError:
        pid = -1
    if pid == 0:
        try:
            connection.close()
            keeper.main(control, request["folder"], request["ranks"])
        finally:
            os._exit(1)
    control.close()
    return pid


def _reap(keepers: set[int]) -> None:
    """Forget keepers that ended; kill what was left behind by one that was killed itself."""
    try:
        while pid := os.waitpid(-1, os.WNOHANG)[0]:
            keepers.discard(pid)
    except ChildProcessError:
        return
    kill(set(children()) - keepers)
