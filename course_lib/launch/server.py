"""The parent's side of the server: starts it, and asks it for the processes of a launch."""

import atexit
import contextlib
import json
import os
import select
import socket
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from course_lib.launch.explain import MORE_PROCESSES
from course_lib.launch.fresh import fresh_python
from course_lib.launch.interrupts import Stop
from course_lib.launch.server_program import FORKED, READY

# Windows has no fork: there, each rank is a fresh process that imports torch for itself.
FORKS = hasattr(os, "fork") and hasattr(socket, "send_fds")
_IMPORT_S = 120.0  # torch takes 3 s, or a minute from a slow disk
_ANSWER_S = 10.0  # forking takes milliseconds
_POLL_S = 0.05

_lock = threading.Lock()
_server: "_Server | None" = None
# Both kinds end when nobody holds our end any more, so a fork of this process must not.
_sockets: "weakref.WeakSet[socket.socket]" = weakref.WeakSet()


class ServerFailed(OSError):
    """The process that starts ranks could not be started, or ended."""


@dataclass
class _Server:
    process: "subprocess.Popen[bytes]"
    connection: socket.socket
    ready: bool = False  # it has imported all that it was asked to
    imported: set[str] = field(default_factory=set)  # our own modules, beside torch

    def close(self) -> None:
        """End it; keepers that it has forked go on until their own launches end."""
        self.connection.close()
        assert self.process.stderr is not None
        self.process.stderr.close()
        self.process.kill()
        self.process.wait()


def warm_up() -> None:
    """Start the server in the background, so that the first `run` need not wait 3 s for torch."""
    if FORKS:
        with contextlib.suppress(OSError), _lock:  # `run` will meet the same error, and report it
            _running()


def wait_until_warm(
    stop: Stop, meanwhile: Callable[[], None] = lambda: None, modules: Collection[str] = ()
) -> None:
    """Return once a rank is only a fork away; `meanwhile` is called 20 times a second until then.

    `modules` are what the ranks will need: imported once, instead of by each of them.
    Raises OSError if that cannot be, or Stopped.
    """
    if FORKS:
        with _lock:
            server = _running()
            _wait_for_imports(server, stop, meanwhile)
            _ask_to_import(server, set(modules) - server.imported)
            with contextlib.suppress(ServerFailed):  # then there will be a new one
                _wait_for_imports(server, stop, meanwhile)


def keeper_for(folder: Path, ranks: int, stop: Stop) -> socket.socket:
    """The socket of a new keeper, whose ranks are about to start.

    A server that has died or does not answer is replaced, once. Raises OSError if that fails too.
    """
    with _lock:
        try:
            return _asked(_running(), folder, ranks, stop)
        except OSError:
            _forget()
            return _asked(_running(), folder, ranks, stop)


def _asked(server: _Server, folder: Path, ranks: int, stop: Stop) -> socket.socket:
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


def _ask_to_import(server: _Server, modules: set[str]) -> None:
    if modules:
        server.imported |= modules
        server.ready = False
        with contextlib.suppress(OSError):  # who waits for its answer learns that it has ended
            server.connection.sendall(json.dumps({"modules": sorted(modules)}).encode())


def _wait_for_imports(
    server: _Server, stop: Stop, meanwhile: Callable[[], None] = lambda: None
) -> None:
    if not server.ready:
        server.ready = _answer(server, _IMPORT_S, stop, meanwhile) == READY
        if not server.ready:
            said = _last_words(server)
            _forget()
            raise ServerFailed(f"the process that starts ranks ended while it imported torch{said}")


def _answer(
    server: _Server, limit_s: float, stop: Stop, meanwhile: Callable[[], None] = lambda: None
) -> bytes:
    """What the server says next; empty when it has ended. ServerFailed if it says nothing."""
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


def _last_words(server: _Server) -> str:
    assert server.process.stderr is not None
    lines = server.process.stderr.read().decode(errors="replace").strip().splitlines()
    return f" ({lines[-1]})" if lines else ""


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
    """The sentence for a process that the system did not start."""
    why = os.strerror(number) if number else "for no reason that it gave"
    return f"the system refused to start {what} ({why}): {MORE_PROCESSES}"


def _socket_pair() -> tuple[socket.socket, socket.socket]:
    """Our end, which no fork of this process keeps, and the other end."""
    ours, theirs = socket.socketpair()
    _sockets.add(ours)
    return ours, theirs


def _begin_anew() -> None:
    """In a fork of this process: what belongs to its parent is not touched."""
    global _lock, _server
    _lock, _server = threading.Lock(), None
    for held in list(_sockets):
        held.close()


def _forget() -> None:
    global _server
    if _server is not None:
        _server.close()
    _server = None


atexit.register(_forget)
if FORKS:
    os.register_at_fork(after_in_child=_begin_anew)
