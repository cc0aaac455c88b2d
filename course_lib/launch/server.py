"""The parent's side: the server, the supervisors that it forks, and the processes of ranks."""

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from course_lib.launch.descendants import fresh_python, kill
from course_lib.launch.errors import MORE_PROCESSES, Stop
from course_lib.launch.job import Folder
from course_lib.launch.server_program import END, FORKED, READY

# Windows has no fork: there each rank is a fresh process that imports torch itself.
FORKS = hasattr(os, "fork") and hasattr(socket, "send_fds")
_IMPORT_S = 120.0  # torch takes 3 s, or a minute from a slow disk
_ANSWER_S = 10.0  # forking takes milliseconds
_POLL_S = 0.05

_lock = threading.Lock()
_server: "_Server | None" = None
# Server and supervisors exit when our end is closed, so a fork of this process must not keep it.
_sockets: "weakref.WeakSet[socket.socket]" = weakref.WeakSet()


class ServerFailed(OSError):
    """The server could not be started, does not answer, or has exited."""


@dataclass
class _Server:
    process: "subprocess.Popen[bytes]"
    connection: socket.socket
    ready: bool = False  # it has imported all modules that were requested
    imported: set[str] = field(default_factory=set)  # modules of this library, besides torch

    def close(self) -> None:
        """Kill the server; supervisors that it has forked live until their launches end."""
        self.connection.close()
        assert self.process.stderr is not None
        self.process.stderr.close()
        self.process.kill()
        self.process.wait()


def warm_up() -> None:
    """Start the server in the background, so that the first `run` need not wait 3 s for torch."""
    if FORKS:
        with contextlib.suppress(OSError), _lock:  # `run` will get the same error and report it
            _running()


def wait_until_warm(
    stop: Stop, meanwhile: Callable[[], None] = lambda: None, modules: Collection[str] = ()
) -> None:
    """Wait until the server can fork ranks; call `meanwhile` 20 times a second until then.

    The server imports `modules`, which the ranks will need, once instead of once per rank.
    Raises OSError if the server fails, Stopped after an interrupt.
    """
    if FORKS:
        with _lock:
            server = _running()
            _wait_for_imports(server, stop, meanwhile)
            if missing := set(modules) - server.imported:
                server.imported |= missing
                server.ready = False
                # A server that has exited meanwhile is replaced at the next request.
                with contextlib.suppress(OSError):
                    server.connection.sendall(json.dumps({"modules": sorted(missing)}).encode())
                with contextlib.suppress(ServerFailed):
                    _wait_for_imports(server, stop, meanwhile)


def supervisor_for(folder: Path, ranks: int, stop: Stop) -> socket.socket:
    """The socket to a new supervisor, whose ranks are about to start.

    Replaces a server that has died or does not answer, once. Raises OSError if that fails too.
    """
    with _lock:
        try:
            return _request_supervisor(_running(), folder, ranks, stop)
        except OSError:
            _forget()
            return _request_supervisor(_running(), folder, ranks, stop)


def _request_supervisor(server: _Server, folder: Path, ranks: int, stop: Stop) -> socket.socket:
    _wait_for_imports(server, stop)
    ours, theirs = _socket_pair()
    request = json.dumps({"folder": str(folder), "ranks": ranks}).encode()
    try:
        with theirs:
            socket.send_fds(server.connection, [request], [theirs.fileno()])
            if _answer(server, _ANSWER_S, Stop()) != FORKED:
                raise ServerFailed("the process that starts ranks has ended: start again")
    except BaseException:
        ours.close()
        raise
    return ours


def _wait_for_imports(
    server: _Server, stop: Stop, meanwhile: Callable[[], None] = lambda: None
) -> None:
    if not server.ready:
        server.ready = _answer(server, _IMPORT_S, stop, meanwhile) == READY
        if not server.ready:
            assert server.process.stderr is not None
            words = server.process.stderr.read().decode(errors="replace").strip().splitlines()
            _forget()
            raise ServerFailed(
                "the process that starts ranks ended while it imported torch"
                + (f" ({words[-1]})" if words else "")
            )


def _answer(
    server: _Server, limit_s: float, stop: Stop, meanwhile: Callable[[], None] = lambda: None
) -> bytes:
    """The server's next message, b"" if it has exited. ServerFailed after `limit_s` seconds."""
    until_s = time.monotonic() + limit_s
    while not select.select([server.connection], [], [], _POLL_S)[0]:
        stop.obey()
        meanwhile()
        if time.monotonic() > until_s:
            raise ServerFailed(f"the process that starts ranks said nothing for {limit_s:g} s")
    try:
        return server.connection.recv(64)
    except ConnectionError:
        return b""


def _running() -> _Server:
    global _server
    if _server is None or _server.process.poll() is not None:
        _forget()
        _server = _started()
    return _server


def _started() -> _Server:
    ours, theirs = _socket_pair()
    program = f"from course_lib.launch.server_program import main; main({theirs.fileno()})"
    with theirs:
        try:
            process = subprocess.Popen(
                fresh_python(program),
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()], start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            ours.close()
            raise ServerFailed(refused("the process that starts ranks", error.errno)) from error
    return _Server(process, ours)


def refused(what: str, number: int | None) -> str:
    """The error sentence for a process that the system did not start; `number`: its errno."""
    why = os.strerror(number) if number else "for no reason that it gave"
    return f"the system refused to start {what} ({why}): {MORE_PROCESSES}"


def _socket_pair() -> tuple[socket.socket, socket.socket]:
    """(our end, which is closed in forks of this process; the other end)."""
    ours, theirs = socket.socketpair()
    _sockets.add(ours)
    return ours, theirs


def _reset_after_fork() -> None:
    """Drop the parent's server and close our copies of its sockets, in a fork of this process."""
    global _lock, _server
    _lock, _server = threading.Lock(), None
    for inherited in list(_sockets):
        inherited.close()


def _forget() -> None:
    global _server
    if _server is not None:
        _server.close()
    _server = None


atexit.register(_forget)
if FORKS:
    os.register_at_fork(after_in_child=_reset_after_fork)


_END_S = 8.0  # a little longer than a supervisor takes at most
_WAIT_S = 0.03


class SupervisedRanks:
    """Ranks under a supervisor. Raises OSError, with a remedy, if the system refuses to start them.

    `exit_codes` by rank: None while it runs, minus the signal's number if a signal killed it.
    `pids` by rank: 0 until it is known.
    """

    def __init__(self, folder: Folder, ranks: int, stop: Stop) -> None:
        self.exit_codes: list[int | None] = [None] * ranks
        self.pids = [0] * ranks
        self._unread, self._supervisor, self._gone = b"", 0, False
        self._control = supervisor_for(folder.path, ranks, stop)

    def wait(self) -> None:
        """Return after 0.03 s, or as soon as the supervisor reports something."""
        if self._gone:
            return
        if select.select([self._control], [], [], _WAIT_S)[0]:
            self._listen()
        if self._gone and not self._supervisor:
            raise OSError(refused("the ranks", None))

    def end(self) -> None:
        """Kill the ranks and everything that they started; idempotent."""
        with contextlib.suppress(OSError):
            self._control.sendall(END)
        until_s = time.monotonic() + _END_S
        while not self._gone and time.monotonic() < until_s:
            if select.select([self._control], [], [], _WAIT_S)[0]:
                with contextlib.suppress(OSError):
                    self._listen()
        if not self._gone and self._supervisor:
            kill([self._supervisor])  # its ranks notice the closed lifeline and exit
        self._gone = True
        self._control.close()

    def _listen(self) -> None:
        try:
            new = self._control.recv(65_536)
        except ConnectionError:
            new = b""
        self._gone = not new
        *lines, self._unread = (self._unread + new).split(b"\n")
        for line in lines:
            self._handle(json.loads(line))
        if self._gone:  # the supervisor was killed, and its ranks with it
            lost = -signal.SIGKILL
            self.exit_codes = [lost if code is None else code for code in self.exit_codes]

    def _handle(self, message: dict[str, int]) -> None:
        if "refused" in message:
            raise OSError(refused(f"rank {message['rank']}", message["refused"]))
        self._supervisor = message.get("supervisor", self._supervisor)
        if "pid" in message:
            self.pids[message["rank"]] = message["pid"]
        if "code" in message:
            self.exit_codes[message["rank"]] = message["code"]


class FreshRanks:
    """Ranks as new processes, for systems without fork: each imports torch itself."""

    def __init__(self, folder: Folder, ranks: int) -> None:
        self.exit_codes: list[int | None] = [None] * ranks
        self._processes: list[subprocess.Popen[bytes]] = []
        for rank in range(ranks):
            program = (
                f"from course_lib.launch.rank import main; main({str(folder.path)!r}, {rank}, 0)"
            )
            # A rank exits when this pipe is closed, which happens when this process exits.
            self._processes.append(subprocess.Popen(fresh_python(program), stdin=subprocess.PIPE))

        self.pids = [process.pid for process in self._processes]

    def wait(self) -> None:
        time.sleep(_WAIT_S)
        self.exit_codes = [process.poll() for process in self._processes]

    def end(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.communicate()


RankProcesses = SupervisedRanks | FreshRanks


def started(folder: Folder, ranks: int, stop: Stop) -> RankProcesses:
    """Start the ranks of the job in the folder and return their processes."""
    return SupervisedRanks(folder, ranks, stop) if FORKS else FreshRanks(folder, ranks)
