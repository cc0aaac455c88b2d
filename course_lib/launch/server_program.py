"""The server, which has imported torch, and the keepers that it forks, one for each launch.

The parent asks, through one socket, for a keeper per launch. The server ends when that socket does,
and holds nothing else of the parent's. No CUDA and no OpenMP thread may start here: neither
survives a fork. A keeper forks its ranks, reports how they end, and ends all that they started. One
socket joins it with the parent, which can say "end". If the parent closes the socket or dies
without a word, nobody wants the launch any more: its folder goes as well."""

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


def keep(control: socket.socket, folder: str, ranks: int) -> NoReturn:
    """Keep `ranks` ranks of the launch in `folder` until the parent no longer wants them."""
    os.setpgid(0, 0)
    adopt_orphans()
    keeper = _Keeper(control, folder)
    try:
        keeper.start(ranks)
        wanted = keeper.follow()
    finally:
        end_all(keeper.started)
    if not wanted:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)  # the parent reads the end of the socket: nothing is left


class _Keeper:
    def __init__(self, control: socket.socket, folder: str) -> None:
        self.started: dict[int, int] = {}  # ranks by process id
        self._control, self._folder = control, folder
        # Ranks read from this pipe, which nobody writes to: it ends when this process does.
        self._lifeline, self._held = os.pipe()
        self._ended = listen_for(signal.SIGCHLD)

    def start(self, ranks: int) -> None:
        """Fork all ranks; if the system refuses one, say so."""
        self._say(keeper=os.getpid())
        for rank in range(ranks):
            try:
                pid = os.fork()
            except OSError as error:
                self._say(rank=rank, refused=error.errno or 0)
                return
            if pid == 0:
                self._become(rank)
            self.started[pid] = rank
            self._say(rank=rank, pid=pid)

    def _become(self, rank: int) -> NoReturn:
        try:
            forget_children()
            os.close(self._held)
            self._control.close()
            rank_program.main(self._folder, rank, self._lifeline)
        finally:
            os._exit(1)

    def follow(self) -> bool:
        """Tell the parent of each rank that ends, until it says "end"; False if it is gone."""
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
        """Only the ranks: an adopted orphan may be wanted until the end."""
        for pid, rank in self.started.items():
            with contextlib.suppress(ChildProcessError):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    self._say(rank=rank, code=os.waitstatus_to_exitcode(status))

    def _say(self, **message: int) -> None:
        with contextlib.suppress(OSError):  # the parent is gone: `follow` will see it
            self._control.sendall(json.dumps(message).encode() + b"\n")


def forget_children() -> None:
    """Listen for the ends of children no more, after a fork."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


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
    ended = listen_for(signal.SIGCHLD)
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
            keep(control, request["folder"], request["ranks"])
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
