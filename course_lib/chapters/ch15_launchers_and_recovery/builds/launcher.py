"""Build 15.10: a launcher, and how its ranks enter and leave a group."""

import contextlib
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from course_lib.chapters.ch15_launchers_and_recovery.builds.reshard import launch_folder
from course_lib.checking.build import build
from course_lib.checking.builds.alike import expect_alike, expect_kind
from course_lib.checking.builds.compare import Case, Here, Place, compare, compare_here, in_turn
from course_lib.checking.builds.lazily import dist, later, torch
from course_lib.checking.builds.rows import Never, Rows
from course_lib.checking.exercises import Wrong
from course_lib.checking.helpers import described

_launcher = later("course_lib.scratch.launcher")
_PORT = 29_123
_CODE = 3  # exit code of a rank that fails
_WAIT_S = 2.0  # how long a rank waits for the others to start
_SLEEP_S = 4.0  # how long a rank runs if nothing ends it
_SOON_S = 3.0  # time limit for ending a rank, generous for a busy machine
_GRACE_S = 0.4
_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_INHERITED = "COURSE_INHERITED"  # a variable that ranks must inherit from the launcher
_ELSEWHERE = {"node": 1, "nodes": 2, "address": "10.0.0.1"}
_ALONE = [Here(ranks=1)]
# (local_rank, local_ranks, node, nodes): one node, and the first and last of several.
_PLACES = ((0, 2, 0, 1), (1, 2, 0, 1), (1, 4, 0, 3), (3, 4, 2, 3), (0, 1, 1, 2))

# The program of a rank in a check: it writes its environment variables to a file, waits for the
# others, and behaves as the third argument says for its rank. Without torch it starts fast.
_RANK = """
import json, os, signal, sys, time
folder, ranks, kinds, names = sys.argv[1], int(sys.argv[2]), *sys.argv[3:5]
wait_s, sleep_s = map(float, sys.argv[5:7])
told = {name: os.environ.get(name) for name in names.split()}
kinds = kinds.split()
kind = kinds[int(told["RANK"] or 0) % len(kinds)]
if kind == "polite":
    def leave(*_):
        open(f"{folder}/left{os.getpid()}", "w").close()
        os._exit(7)
    signal.signal(signal.SIGTERM, leave)
if kind == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(1, b"said ")
with open(f"{folder}/part{os.getpid()}", "w") as file:
    json.dump(told, file)
os.rename(f"{folder}/part{os.getpid()}", f"{folder}/told{os.getpid()}")
until_s = time.monotonic() + wait_s
while sum(name.startswith("told") for name in os.listdir(folder)) < ranks:
    if time.monotonic() > until_s:
        sys.exit(75)
    time.sleep(0.01)
if kind == "fails":
    sys.exit(3)
if kind in ("late", "killed"):
    time.sleep(0.1)
if kind == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if kind not in ("ends", "late"):
    time.sleep(sleep_s)
"""


def _command(folder: str, ranks: int, kinds: str) -> list[str]:
    there, names = launch_folder() / folder, " ".join((*_NAMES, _INHERITED))
    there.mkdir(exist_ok=True)
    program = [sys.executable, "-I", "-S", "-c", _RANK, str(there), str(ranks), kinds, names]
    return [*program, str(_WAIT_S), str(_SLEEP_S)]


def _received(folder: str) -> list[dict[str, str | None]]:
    """The environment variables that the ranks received, sorted by RANK."""
    told = [json.loads(path.read_text()) for path in (launch_folder() / folder).glob("told*")]
    return sorted(told, key=lambda one: str(one["RANK"]))


def _count(folder: str, what: str) -> int:
    return len(list((launch_folder() / folder).glob(f"{what}*")))


def _alive(folder: str) -> int:
    """The number of ranks that have started and are still running."""
    count = 0
    for path in (launch_folder() / folder).glob("told*"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(path.name.removeprefix("told")), 0)
            count += 1
    return count


# --- the environment of a rank ----------------------------------------------------------------


def _environment(parts: SimpleNamespace) -> Rows:
    for local_rank, local_ranks, node, nodes in _PLACES:
        more = {} if nodes == 1 else {"node": node, "nodes": nodes, "address": "10.0.0.1"}
        given = parts.rank_environment(local_rank, local_ranks, _PORT, **more)
        where = f"local rank {local_rank} of {local_ranks}, node {node} of {nodes}"
        _expect_env(given, where, local_rank, local_ranks, **more)
    return ()


def _expect_env(given: Any, where: str, local_rank: int, local_ranks: int, **more: Any) -> None:
    expected = _launcher.rank_environment(local_rank, local_ranks, _PORT, **more)
    expect_alike(given, expected, where, _MEANT)


_MEANT = {
    "RANK": "ranks are counted node by node",
    "WORLD_SIZE": "expected the ranks of all nodes",
    "LOCAL_RANK": "expected the rank's number on its own node",
    "LOCAL_WORLD_SIZE": "expected the ranks of one node",
    "MASTER_ADDR": "expected the `address` that was given",
    "MASTER_PORT": "expected the `port` that was given",
}


# --- starting them ----------------------------------------------------------------------------


def _starts(parts: SimpleNamespace, *_: Any) -> dict[str, Any]:
    """Run on one rank: launch 3 processes that wait for each other, 1 of node 1, and free ports."""
    os.environ[_INHERITED] = "yes"
    before, launch_ranks, said = dict(os.environ), parts.launch_ranks, launch_folder() / "said"
    command = tuple(_command("three", 3, "ends late late"))
    with _output_to(said):
        codes = _plain(launch_ranks(command, 3, _PORT))
    changed = sorted(name for name, _ in set(os.environ.items()) ^ set(before.items()))
    found = {"codes": codes, "told": _received("three"), "changed": changed}
    found["said"] = said.read_text().count("said")
    if changed or (isinstance(codes, list) and any(codes)):
        return found
    launch_ranks(_command("other", 1, "ends"), 1, _PORT, **_ELSEWHERE)
    found["other told"] = _received("other")
    launch_ranks(_command("ports", 2, "ends"), 2)
    found["ports"] = [str(told["MASTER_PORT"]) for told in _received("ports")]
    with socket.socket() as taken, contextlib.suppress(ValueError, OverflowError, OSError):
        taken.bind(("127.0.0.1", int(found["ports"][0])))
        taken.listen()
        launch_ranks(_command("again", 1, "ends"), 1)
        found["ports again"] = [str(told["MASTER_PORT"]) for told in _received("again")]
    return found


@contextlib.contextmanager
def _output_to(file: Path) -> Iterator[None]:
    """Redirect the standard output of this process and its children to `file`."""
    stdout = os.dup(1)
    with file.open("wb") as target:
        os.dup2(target.fileno(), 1)
        try:
            yield
        finally:
            os.dup2(stdout, 1)
            os.close(stdout)


def _expect_started(found: dict[str, Any], _: Place) -> Rows:
    variables, codes, changed = found["told"], found["codes"], found["changed"]
    many = f"launch_ranks(command, 3) starts {len(variables)} processes, expected 3"
    yield Never(len(variables) != 3, many)
    yield _expect_codes(codes, 3)
    yield Never(
        75 in codes,
        "rank 0 waited for the others in vain, as it would in init_process_group: start all "
        "before you wait for one",
    )
    same = "two ranks are told the same RANK: each needs an environment of its own"
    yield Never(len({one["RANK"] for one in variables}) < 3, same)
    what = "three ranks that all end well, rank 0 before the others, have the exit codes"
    yield Never(any(codes), f"{what} {codes}, expected {[0, 0, 0]}")
    nothing = "a rank has nothing of the launcher's own environment, such as PATH"
    yield Never(None in {one[_INHERITED] for one in variables}, nothing)
    for number, one in enumerate(variables):
        _expect_env(one, f"launch_ranks(…, 3), rank {number}", number, 3)
    silent = "what the ranks print does not come out where the launcher prints"
    yield Never(found["said"] != 3, silent)
    yield Never(
        changed,
        f"launch_ranks has changed {min(changed, default='')} in the launcher's own environment: "
        "each rank needs a copy, and a second launch would inherit what the first one left",
    )
    (one,) = found["other told"] or [{}]
    _expect_env(one, "launch_ranks(…, 1, node=1, nodes=2)", 0, 1, **_ELSEWHERE)
    ports, alone = found["ports"], "launch_ranks without a port"
    no_number = f"{alone}: MASTER_PORT is no number; free_port() has one that is"
    yield Never(not all(port.isdigit() for port in ports), no_number)
    yield Never(len(set(ports)) > 1, f"{alone} tells another MASTER_PORT to each rank")
    again = found.get("ports again") == ports[:1]
    yield Never(again, f"{alone} takes one on which somebody listens already")


def _plain(given: Any) -> Any:
    """Exit codes as they are, anything else as a text: process objects cannot be sent."""
    numbers = isinstance(given, list) and all(isinstance(code, int) for code in given)
    return given if numbers or given is None else described(given)


def _expect_codes(given: Any, ranks: int) -> Never:
    if isinstance(given, str):
        raise Wrong(f"launch_ranks wants a list of exit codes by rank, got {given}")
    expect_kind(given, list, "what launch_ranks returns", int)
    many = f"launch_ranks returns {len(given)} exit codes of {ranks} ranks"
    return Never(len(given) != ranks, many)


# --- ending them ------------------------------------------------------------------------------

_ENDED = ("ends", "stubborn", "polite", "stubborn", "stubborn")


def _ends(parts: SimpleNamespace, *_: Any) -> dict[str, Any]:
    """Run on one rank: call end_ranks, and record which ranks survive and which signals it sent."""
    ranks = [subprocess.Popen(_command("ended", len(_ENDED), kind)) for kind in _ENDED]
    while len(_received("ended")) < len(_ENDED):
        time.sleep(0.01)
    ranks[0].wait()
    sent: list[tuple[int, float]] = []  # each signal and its time

    def heard(event: str, args: Any) -> None:
        if event in ("os.kill", "os.killpg"):
            sent.append((args[1], time.monotonic()))

    sys.addaudithook(heard)
    start_s = time.monotonic()
    parts.end_ranks(ranks, _GRACE_S)
    found: dict[str, Any] = {"seconds": time.monotonic() - start_s, "sent": list(sent)}
    found["running"] = [kind for kind, one in zip(_ENDED, ranks, strict=True) if one.poll() is None]
    found["polite left"] = _count("ended", "left")
    for one in ranks:
        one.kill()
        one.wait()
    return found


def _fails(parts: SimpleNamespace, *_: Any) -> dict[str, Any]:
    """Run on one rank: which ranks survive a failure, a killed rank, and Ctrl-C."""
    found: dict[str, Any] = {}
    for name, kinds in (("failed", "polite fails polite"), ("killed", "ends sleeps killed")):
        start_s = time.monotonic()
        codes = _plain(parts.launch_ranks(_command(name, 3, kinds), 3, _PORT))
        seconds = time.monotonic() - start_s
        found[name] = (codes, seconds, _alive(name), _count(name, "left"))
        if _alive(name) or seconds > _SLEEP_S:
            return found
    found["interrupted"] = _interrupted(parts.launch_ranks)
    return found | {"behind": _alive("interrupted"), "left": _count("interrupted", "left")}


def _interrupted(launch_ranks: Any) -> bool:
    """Whether launch_ranks raises KeyboardInterrupt after Ctrl-C, sent once both ranks run."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.get_ident()

    def press() -> None:
        while _count("interrupted", "told") < 2:
            time.sleep(0.01)
        signal.pthread_kill(thread, signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()
    try:
        launch_ranks(_command("interrupted", 2, "polite"), 2, _PORT)
    except KeyboardInterrupt:
        return True
    return False


def _expect_failed(found: dict[str, Any], _: Place) -> Rows:
    codes, *_, left = found["failed"]
    yield from _expect_over(found["failed"], f"rank 1 of 3 ended with exit code {_CODE}")
    yield Never(
        codes[1] != _CODE or 0 in codes,
        f"rank 1 failed with exit code {_CODE} and the others were ended: the exit codes are "
        f"{codes}, expected {_CODE} in the middle and no 0",
    )
    chance = "had no chance to save first: ranks are ended by end_ranks"
    yield Never(left < 2, f"launch_ranks: when rank 1 of 3 had failed, the others {chance}")
    codes, what = found["killed"][0], "rank 2 of 3 was killed by a signal, which is no success,"
    yield from _expect_over(found["killed"], what)
    yield Never(
        codes[0] or codes[2] != -signal.SIGKILL or not codes[1],
        "rank 0 ended well, then rank 2 was killed by SIGKILL, and rank 1 was ended: the exit "
        f"codes are {codes}, expected what Popen has for each",
    )
    through = "Ctrl-C does not come out of launch_ranks: let it pass"
    yield Never(not found["interrupted"], through)
    yield Never(
        found["behind"],
        f"after Ctrl-C in launch_ranks {found['behind']} ranks still run: end them "
        "whichever way the function is left",
    )
    yield Never(found["left"] < 2, f"after Ctrl-C in launch_ranks the ranks {chance}")


def _expect_ended(found: dict[str, Any], _: Place) -> Rows:
    """Check that all ranks ended: SIGTERM to all first, then SIGKILL after one common grace."""
    running = found["running"]
    stubborn = "end_ranks: a rank that ignores SIGTERM still runs when the grace is over"
    yield Never({*running} == {"stubborn"}, stubborn)
    yield Never(running, f"end_ranks returns while {len(running)} of 5 ranks still run")
    longer = "end_ranks waits much longer than grace_s for a rank that ignores SIGTERM"
    yield Never(found["seconds"] > _SOON_S, longer)
    yield Never(
        not found["polite left"],
        "end_ranks: a rank that ends itself on SIGTERM, as one that saves first, had no chance "
        "to: ask it before you kill it",
    )
    asked = [when for number, when in found["sent"] if number == signal.SIGTERM]
    killed = [when for number, when in found["sent"] if number == signal.SIGKILL]
    if not asked or not killed:
        return  # signals were sent in a way that the audit hook does not see
    late = len(asked) > 3 and asked[3] > min(killed[0], asked[0] + 0.8 * _GRACE_S)
    yield Never(late, "end_ranks waits for one rank before it asks the next: ask all of them first")
    early = killed[0] < asked[0] + 0.9 * _GRACE_S
    yield Never(early, "end_ranks kills a rank before its grace_s is over")
    own = "end_ranks: each rank gets a grace_s of its own, where all have one together"
    yield Never(killed[-1] > asked[0] + 2 * _GRACE_S, own)


def _expect_over(found: tuple[Any, float, int, int], what: str) -> Rows:
    given, seconds, alive, _ = found
    yield _expect_codes(given, 3)
    yield Never(
        seconds > _SLEEP_S,
        f"{what} and the others went on for {_SLEEP_S:g} s: look at all ranks again and "
        "again, not at one after the other",
    )
    yield Never(alive, f"{what} and {alive} others still run behind it")


# --- the group --------------------------------------------------------------------------------


def _joins(parts: SimpleNamespace, *_: Any) -> dict[str, Any]:
    """Run on each rank without a group: `setup`, an all-reduce, `cleanup`."""
    rank, ranks, port = dist.get_rank(), dist.get_world_size(), [_launcher.free_port()]
    dist.broadcast_object_list(port)
    dist.destroy_process_group()
    rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(*port)}
    os.environ.update(rendezvous)
    for name in ("RANK", "WORLD_SIZE"):
        os.environ.pop(name)  # `setup` has them as arguments
    parts.setup(rank, ranks)
    with socket.socket() as probe:
        reachable = probe.connect_ex(("127.0.0.1", *port)) == 0
    found = {
        "joined": dist.is_initialized(),
        "met": reachable,
        "changed": [name for name, value in rendezvous.items() if os.environ.get(name) != value],
    }
    if found["joined"]:
        total = torch.tensor(rank + 1.0)
        dist.all_reduce(total)
        found |= {"backend": dist.get_backend(), "rank": dist.get_rank(), "sum": float(total)}
        collected = _unused_model(dist.is_initialized)
        gc.disable()  # so that only an explicit gc.collect() frees the model
        parts.cleanup()
        found["collected"] = list(collected)
        gc.enable()
        found["left"] = not dist.is_initialized()
    return found


def _unused_model(state: Any) -> list[Any]:
    """Create garbage in a reference cycle; when it is collected, the list gets `state()`."""
    states: list[Any] = []
    weakref.finalize(type("Model", (), {}), lambda: states.append(state()))  # a class is a cycle
    return states


def _expect_joined(found: dict[str, Any], place: Place) -> Rows:
    rank, changed = place.rank, found["changed"]
    yield Never(not found["joined"], f"there is no process group after setup({rank}, 3)")
    yield Never(
        changed,
        f"setup has changed {[*changed, ''][0]}, which the launcher has set: two "
        "jobs on one machine would meet in one place",
    )
    elsewhere = "setup does not look at MASTER_ADDR and MASTER_PORT: nobody listens there"
    yield Never(not found["met"], elsewhere)
    yield Never(found["backend"] != "gloo", f"the backend is {found['backend']!r}, expected gloo")
    other = f"in the group it is rank {found['rank']}, expected {rank}"
    yield Never((found["rank"], found["sum"]) != (rank, 6.0), other)
    yield Never(not found["left"], "the process group is still there after cleanup()")
    when = "after" if found["collected"] else "without"
    yield Never(
        found["collected"] != [True],
        f"cleanup leaves the group {when} collecting models that nobody uses any "
        "more: DDP that outlives its group can abort the process",
    )


LAUNCHER = build(
    "launcher",
    steps=(
        compare_here("what a rank is told", ("rank_environment",), _environment),
        compare("starting all of them", ("launch_ranks",), _starts, _expect_started, _ALONE),
        in_turn(
            "ending all of them",
            ("end_ranks",),
            compare("", (), _ends, _expect_ended, _ALONE),
            compare("", (), _fails, _expect_failed, _ALONE),
        ),
        compare(
            "into the group and out of it",
            ("setup", "cleanup"),
            _joins,
            _expect_joined,
            [Case(ranks=3)],
        ),
    ),
)
