"""The server, which has imported torch, and the supervisors that it forks, one per launch.

The parent requests a supervisor per launch through one socket. The server exits when that socket is
closed, and has no other resource of the parent's. No CUDA and no OpenMP thread may start here:
neither survives a fork. A supervisor forks its ranks, reports their exit codes, and kills all that
they started. It has a socket to the parent, which can send "end". If the parent closes the socket
or dies without that, the launch is abandoned, and the supervisor removes its folder as well."""

import contextlib
import gc
import json
import os
import select
import shutil
import signal
import socket
from importlib import import_module
from typing import Any, NoReturn

from course_lib.launch import rank as rank_program
from course_lib.launch.descendants import adopt_orphans, children, end_all, kill, listen_for

END = b"end"


def supervise(control: socket.socket, folder: str, ranks: int) -> NoReturn:
    """Supervise `ranks` ranks of the launch in `folder` until the parent ends it, or is gone."""
    os.setpgid(0, 0)
    adopt_orphans()
    supervisor = _Supervisor(control, folder)
    try:
        supervisor.start(ranks)
        parent_lives = supervisor.follow()
    finally:
        end_all(supervisor.started)
    if not parent_lives:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)  # end-of-file on the socket tells the parent that no process is left


class _Supervisor:
    def __init__(self, control: socket.socket, folder: str) -> None:
        self.started: dict[int, int] = {}  # ranks by process id
        self._control, self._folder = control, folder
        # Ranks read from this pipe, which is never written: it is closed when this process exits.
        self._lifeline, self._lifeline_end = os.pipe()
        self._ended = listen_for(signal.SIGCHLD)

    def start(self, ranks: int) -> None:
        """Fork all ranks and report their pids, or that the system refused one."""
        self._report(supervisor=os.getpid())
        for rank in range(ranks):
            try:
                pid = os.fork()
            except OSError as error:
                self._report(rank=rank, refused=error.errno or 0)
                return
            if pid == 0:
                self._become(rank)
            self.started[pid] = rank
            self._report(rank=rank, pid=pid)

    def _become(self, rank: int) -> NoReturn:
        try:
            forget_children()
            os.close(self._lifeline_end)
            self._control.close()
            rank_program.main(self._folder, rank, self._lifeline)
        finally:
            os._exit(1)

    def follow(self) -> bool:
        """Report each rank that exits until the parent sends "end"; False if the parent is gone."""
        while True:
            ready = select.select([self._control.fileno(), self._ended], [], [])[0]
            if self._ended in ready:
                os.read(self._ended, 4096)
                self._reap()
            if self._control.fileno() in ready:
                with contextlib.suppress(ConnectionError):
                    return self._control.recv(16) == END
                return False

    def _reap(self) -> None:
        """Reap and report ranks that have exited; adopted orphans are left until the end."""
        for pid, rank in self.started.items():
            with contextlib.suppress(ChildProcessError):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    self._report(rank=rank, code=os.waitstatus_to_exitcode(status))

    def _report(self, **message: int) -> None:
        with contextlib.suppress(OSError):  # if the parent is gone, `follow` notices it
            self._control.sendall(json.dumps(message).encode() + b"\n")


def forget_children() -> None:
    """Undo `listen_for(SIGCHLD)` in a forked child."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


READY = b"ready"
FORKED = b"forked"


def main(descriptor: int) -> NoReturn:
    """Serve the parent at the other end of the socket until it closes it."""
    connection = socket.socket(fileno=descriptor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    adopt_orphans()
    _import_heavy_modules()
    _close_output()
    try:
        connection.sendall(READY)
        _serve(connection)
    except OSError:
        pass  # the parent is gone
    os._exit(0)  # skips torch's shutdown, which takes a second


def _import_heavy_modules() -> None:
    # OpenBLAS starts its threads when numpy is imported, unless it is limited to one.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import cloudpickle  # noqa: F401
    import torch._dynamo  # (the first optimizer imports it: 1.2 s)
    import torch.distributed  # noqa: F401

    _keep_from_collection()


def _import(modules: list[str]) -> None:
    """Import modules for all ranks at once, which saves each of them up to 0.3 s."""
    for name in modules:
        with contextlib.suppress(Exception):  # a rank will get the error and report it
            import_module(name)
    _keep_from_collection()


def _keep_from_collection() -> None:
    gc.collect()
    gc.freeze()  # ranks need not scan torch's objects again, which saves 70 ms at their exit


def _close_output() -> None:
    """Detach stdin, stdout and stderr: only errors during startup are read by the parent."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.close(null)


def _serve(connection: socket.socket) -> None:
    child_signals = listen_for(signal.SIGCHLD)
    supervisors: set[int] = set()
    while True:
        ready = select.select([connection.fileno(), child_signals], [], [])[0]
        if child_signals in ready:
            os.read(child_signals, 4096)
            _reap(supervisors)
        if connection.fileno() in ready:
            line, descriptors, _, _ = socket.recv_fds(connection, 65_536, 1)
            if not line:
                return
            request = json.loads(line)
            if modules := request.get("modules"):
                _import(modules)
                connection.sendall(READY)
            else:
                supervisors.add(_fork_supervisor(connection, request, descriptors[0]))
                connection.sendall(FORKED)


def _fork_supervisor(connection: socket.socket, request: dict[str, Any], descriptor: int) -> int:
    """Pid of a new supervisor; -1 if fork fails, which the parent sees by the closed socket."""
    control = socket.socket(fileno=descriptor)
    try:
        pid = os.fork()
    except OSError:
        pid = -1
    if pid == 0:
        try:
            connection.close()
            supervise(control, request["folder"], request["ranks"])
        finally:
            os._exit(1)
    control.close()
    return pid


def _reap(supervisors: set[int]) -> None:
    """Remove supervisors that have exited; kill the orphans of any that was killed itself."""
    try:
        while pid := os.waitpid(-1, os.WNOHANG)[0]:
            supervisors.discard(pid)
    except ChildProcessError:
        return
    kill(set(children()) - supervisors)
