"""Build 15.10: a launcher, and how its ranks enter and leave a group."""

import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from course_lib.checking.build import Step, build
from course_lib.checking.builds.ranks import on_ranks
from course_lib.checking.exercises import Unanswered, Wrong
from course_lib.checking.helpers import described

_PORT = 29_123
_CODE = 3  # with which a rank fails
_WAIT_S = 2.0  # of a rank for the others, who have started as well
_SLEEP_S = 4.0  # of a rank that nobody ends
_SOON_S = 3.0  # within which a launcher on a busy machine has ended it
_GRACE_S = 0.4
_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_INHERITED = "COURSE_INHERITED"  # a variable of the launcher's own
# (local_rank, local_ranks, node, nodes): one node, and the first and last of several.
_PLACES = ((0, 2, 0, 1), (1, 2, 0, 1), (1, 4, 0, 3), (3, 4, 2, 3), (0, 1, 1, 2))

# What a rank does in a check: it writes down what it was told, waits for the others, and does what
# is said of its number in the third argument. Without torch it starts in a moment.
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


def _command(folder: Path, ranks: int, kinds: str) -> list[str]:
    folder.mkdir(exist_ok=True)
    names, seconds = " ".join((*_NAMES, _INHERITED)), (str(_WAIT_S), str(_SLEEP_S))
    program = [sys.executable, "-I", "-S", "-c", _RANK]
    return [*program, str(folder), str(ranks), kinds, names, *seconds]


def _told(folder: Path) -> list[dict[str, str | None]]:
    """What the ranks were told, in the order of their RANK."""
    import json

    told = [json.loads(path.read_text()) for path in folder.glob("told*")]
    return sorted(told, key=lambda one: str(one["RANK"]))


def _count(folder: Path, what: str) -> int:
    return len(list(folder.glob(f"{what}*")))


def _alive(folder: Path) -> int:
    """How many of the ranks that wrote down what they were told are still there."""
    found = 0
    for path in folder.glob("told*"):
        try:
            os.kill(int(path.name.removeprefix("told")), 0)
        except ProcessLookupError:
            continue
        found += 1
    return found


def _in_a_folder(work: Any, *functions: Any) -> Any:
    """What `work` finds on one rank; the folder goes when all that was started there has ended."""
    with tempfile.TemporaryDirectory(prefix="course_check_", ignore_cleanup_errors=True) as name:
        (outcome,) = on_ranks(work, *functions, Path(name), ranks=1)
    return outcome.value


# --- what a rank is told ----------------------------------------------------------------------


def _environment(parts: SimpleNamespace) -> None:
    for local_rank, local_ranks, node, nodes in _PLACES:
        address = "127.0.0.1" if nodes == 1 else "10.0.0.1"
        more = {} if nodes == 1 else {"node": node, "nodes": nodes, "address": address}
        given = parts.rank_environment(local_rank, local_ranks, _PORT, **more)
        where = f"local rank {local_rank} of {local_ranks}, node {node} of {nodes}"
        _expect_told(given, _right(local_rank, local_ranks, node, nodes, address), where)


def _right(
    local_rank: int, local_ranks: int, node: int, nodes: int, address: str
) -> dict[str, str]:
    return {
        "RANK": str(node * local_ranks + local_rank),
        "WORLD_SIZE": str(nodes * local_ranks),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(local_ranks),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(_PORT),
    }


def _expect_told(given: Any, right: dict[str, str], where: str) -> None:
    if given is None:
        raise Unanswered(f"{where}: rank_environment returns None")
    if not isinstance(given, dict):
        raise Wrong(f"{where}: rank_environment wants a dict, got {described(given)}")
    for name, value in right.items():
        if name not in given:
            raise Wrong(f"{where}: {name} is missing")
        if not isinstance(given[name], str):
            raise Wrong(f"{where}: {name} wants a string, as all of an environment, got "
                        f"{described(given[name])}")  # fmt: skip
        if given[name] != value:
            raise Wrong(f"{where}: {name} is {given[name]!r}{_meant(name, given[name], right)}")


_MEANT = {
    "RANK": "ranks are counted node by node",
    "WORLD_SIZE": "expected the ranks of all nodes",
    "LOCAL_RANK": "expected the rank's number on its own node",
    "LOCAL_WORLD_SIZE": "expected the ranks of one node",
    "MASTER_ADDR": "expected the `address` that was given",
    "MASTER_PORT": "expected the `port` that was given",
}


def _meant(name: str, given: str, right: dict[str, str]) -> str:
    same = [other for other in _NAMES if other != name and right[other] == given]
    return f", which is {same[0]}" if same else f": {_MEANT[name]}"


# --- starting them ----------------------------------------------------------------------------


def _starts(launch_ranks: Any, folder: Path) -> dict[str, Any]:
    """On one rank: three processes that wait for each other; one of another node; free ports."""
    os.environ[_INHERITED] = "yes"
    before, three = dict(os.environ), folder / "three"
    command = tuple(_command(three, 3, "ends late late"))
    with _output_to(folder / "said"):
        codes = _plain(launch_ranks(command, 3, _PORT))
    said = (folder / "said").read_text().count("said")
    changed = sorted(name for name, _ in set(os.environ.items()) ^ set(before.items()))
    found = {"codes": codes, "told": _told(three), "said": said, "changed": changed}
    if changed or (isinstance(codes, list) and any(codes)):
        return found
    more = {"node": 1, "nodes": 2, "address": "10.0.0.1"}
    launch_ranks(_command(folder / "other", 1, "ends"), 1, _PORT, **more)
    found["other told"] = _told(folder / "other")
    launch_ranks(_command(folder / "ports", 2, "ends"), 2)
    found["ports"] = [str(told["MASTER_PORT"]) for told in _told(folder / "ports")]
    with socket.socket() as taken, contextlib.suppress(ValueError, OverflowError, OSError):
        taken.bind(("127.0.0.1", int(found["ports"][0])))
        taken.listen()
        launch_ranks(_command(folder / "again", 1, "ends"), 1)
        found["ports again"] = [str(told["MASTER_PORT"]) for told in _told(folder / "again")]
    return found


@contextlib.contextmanager
def _output_to(file: Path) -> Iterator[None]:
    """What this process and those that it starts print goes to the file."""
    kept, there = os.dup(1), os.open(file, os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(there, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(there)
        os.close(kept)


def _start(parts: SimpleNamespace) -> None:
    found = _in_a_folder(_starts, parts.launch_ranks)
    told = found["told"]
    if len(told) != 3:
        raise Wrong(f"launch_ranks(command, 3) starts {len(told)} processes, expected 3")
    if 75 in _codes(found["codes"], 3):
        raise Wrong(
            "rank 0 waited for the others in vain, as it would in init_process_group: start all "
            "before you wait for one"
        )
    if len({one["RANK"] for one in told}) < 3:
        raise Wrong("two ranks are told the same RANK: each needs an environment of its own")
    _expect_codes(
        found["codes"], [0, 0, 0], "three ranks that all end well, rank 0 before the others,"
    )
    if None in {one[_INHERITED] for one in told}:
        raise Wrong("a rank has nothing of the launcher's own environment, such as PATH")
    for number, one in enumerate(told):
        _expect_told(
            one, _right(number, 3, 0, 1, "127.0.0.1"), f"launch_ranks(…, 3), rank {number}"
        )
    if found["said"] != 3:
        raise Wrong("what the ranks print does not come out where the launcher prints")
    if found["changed"]:
        raise Wrong(
            f"launch_ranks has changed {found['changed'][0]} in the launcher's own environment: "
            "each rank needs a copy, and a second launch would inherit what the first one left"
        )
    (one,) = found["other told"] or [{}]
    _expect_told(one, _right(0, 1, 1, 2, "10.0.0.1"), "launch_ranks(…, 1, node=1, nodes=2)")
    if not all(port.isdigit() for port in found["ports"]):
        raise Wrong(
            "launch_ranks without a port: MASTER_PORT is no number; free_port() has one that is"
        )
    if len(set(found["ports"])) > 1:
        raise Wrong("launch_ranks without a port tells another MASTER_PORT to each rank")
    if found.get("ports again") == found["ports"][:1]:
        raise Wrong("launch_ranks without a port takes one on which somebody listens already")


def _plain(given: Any) -> Any:
    """Exit codes, or in words what else it is: processes cannot leave a rank."""
    numbers = isinstance(given, list) and all(isinstance(code, int) for code in given)
    return given if numbers or given is None else described(given)


def _codes(given: Any, ranks: int) -> list[int]:
    if given is None:
        raise Unanswered("launch_ranks returns None")
    if isinstance(given, str):
        raise Wrong(f"launch_ranks wants a list of exit codes by rank, got {given}")
    if len(given) != ranks:
        raise Wrong(f"launch_ranks returns {len(given)} exit codes of {ranks} ranks")
    return given


def _expect_codes(given: Any, right: list[int], what: str) -> None:
    if _codes(given, len(right)) != right:
        raise Wrong(f"{what} have the exit codes {given}, expected {right}")


# --- ending them ------------------------------------------------------------------------------

_ENDED = ("ends", "stubborn", "polite", "stubborn", "stubborn")


def _ends(end_ranks: Any, folder: Path) -> dict[str, Any]:
    """On one rank: what is left where ranks are told to end, and which signals did that."""
    ended = folder / "ended"
    ranks = [subprocess.Popen(_command(ended, len(_ENDED), kind)) for kind in _ENDED]
    while len(_told(ended)) < len(_ENDED):
        time.sleep(0.01)
    ranks[0].wait()
    sent: list[tuple[int, float]] = []  # each signal, and when
    sys.addaudithook(
        lambda event, args: (
            sent.append((args[1], time.monotonic())) if event in ("os.kill", "os.killpg") else None
        )
    )
    start_s = time.monotonic()
    end_ranks(ranks, _GRACE_S)
    found: dict[str, Any] = {"seconds": time.monotonic() - start_s, "sent": list(sent)}
    found["running"] = [kind for kind, one in zip(_ENDED, ranks, strict=True) if one.poll() is None]
    found["polite left"] = _count(ended, "left")
    for one in ranks:
        one.kill()
        one.wait()
    return found


def _fails(launch_ranks: Any, folder: Path) -> dict[str, Any]:
    """On one rank: what is left where a rank fails, where one is killed, and after Ctrl-C."""
    found: dict[str, Any] = {}
    for name, kinds in (("failed", "polite fails polite"), ("killed", "ends sleeps killed")):
        start_s = time.monotonic()
        codes = _plain(launch_ranks(_command(folder / name, 3, kinds), 3, _PORT))
        seconds, there = time.monotonic() - start_s, folder / name
        found[name] = (codes, seconds, _alive(there), _count(there, "left"))
        if _alive(there) or seconds > _SLEEP_S:
            return found
    there = folder / "interrupted"
    found["interrupted"] = _interrupted(launch_ranks, there)
    found["left behind"], found["could leave"] = _alive(there), _count(there, "left")
    return found


def _interrupted(launch_ranks: Any, folder: Path) -> bool:
    """Whether Ctrl-C, pressed as soon as both ranks are there, comes out of the launcher."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    this = threading.get_ident()

    def press() -> None:
        while _count(folder, "told") < 2:
            time.sleep(0.01)
        signal.pthread_kill(this, signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()
    try:
        launch_ranks(_command(folder, 2, "polite"), 2, _PORT)
    except KeyboardInterrupt:
        return True
    return False


def _end(parts: SimpleNamespace) -> None:
    _expect_ended(_in_a_folder(_ends, parts.end_ranks))
    found = _in_a_folder(_fails, parts.launch_ranks)
    _expect_failure(found["failed"], f"rank 1 of 3 ended with exit code {_CODE}")
    codes, _, _, left = found["failed"]
    if codes[1] != _CODE or 0 in codes:
        raise Wrong(
            f"rank 1 failed with exit code {_CODE} and the others were ended: the exit codes are "
            f"{codes}, expected {_CODE} in the middle and no 0"
        )
    chance = "had no chance to save first: ranks are ended by end_ranks"
    if left < 2:
        raise Wrong(f"launch_ranks: when rank 1 of 3 had failed, the others {chance}")
    _expect_failure(found["killed"], "rank 2 of 3 was killed by a signal, which is no success,")
    codes = found["killed"][0]
    if codes[0] or codes[2] != -signal.SIGKILL or not codes[1]:
        raise Wrong(
            "rank 0 ended well, then rank 2 was killed by SIGKILL, and rank 1 was ended: the exit "
            f"codes are {codes}, expected what Popen has for each"
        )
    if not found["interrupted"]:
        raise Wrong("Ctrl-C does not come out of launch_ranks: let it pass")
    if found["left behind"]:
        raise Wrong(
            f"after Ctrl-C in launch_ranks {found['left behind']} ranks still run: end them "
            "whichever way the function is left"
        )
    if found["could leave"] < 2:
        raise Wrong(f"after Ctrl-C in launch_ranks the ranks {chance}")


def _expect_ended(found: dict[str, Any]) -> None:
    """All have ended, were asked first, all at once, and had one grace together."""
    if found["running"] and {*found["running"]} == {"stubborn"}:
        raise Wrong("end_ranks: a rank that ignores SIGTERM still runs when the grace is over")
    if found["running"]:
        raise Wrong(f"end_ranks returns while {len(found['running'])} of 5 ranks still run")
    if found["seconds"] > _SOON_S:
        raise Wrong("end_ranks waits much longer than grace_s for a rank that ignores SIGTERM")
    if not found["polite left"]:
        raise Wrong(
            "end_ranks: a rank that ends itself on SIGTERM, as one that saves first, had no chance "
            "to: ask it before you kill it"
        )
    asked = [when for number, when in found["sent"] if number == signal.SIGTERM]
    killed = [when for number, when in found["sent"] if number == signal.SIGKILL]
    if not asked or not killed:
        return  # sent in another way, which cannot be followed
    if len(asked) > 3 and asked[3] > min(killed[0], asked[0] + 0.8 * _GRACE_S):
        raise Wrong("end_ranks waits for one rank before it asks the next: ask all of them first")
    if killed[0] < asked[0] + 0.9 * _GRACE_S:
        raise Wrong("end_ranks kills a rank before its grace_s is over")
    if killed[-1] > asked[0] + 2 * _GRACE_S:
        raise Wrong("end_ranks: each rank gets a grace_s of its own, where all have one together")


def _expect_failure(found: tuple[Any, float, int, int], what: str) -> None:
    given, seconds, alive, _ = found
    _codes(given, 3)
    if seconds > _SLEEP_S:
        raise Wrong(
            f"{what} and the others went on for {_SLEEP_S:g} s: look at all ranks again and "
            "again, not at one after the other"
        )
    if alive:
        raise Wrong(f"{what} and {alive} others still run behind it")


# --- the group --------------------------------------------------------------------------------


def _joins(setup: Any, cleanup: Any, port: int) -> dict[str, Any]:
    """On a rank, outside any group: in by `setup`, a sum, out by `cleanup`."""
    import torch
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update(told)
    for name in ("RANK", "WORLD_SIZE"):
        os.environ.pop(name)  # `setup` has them as arguments
    read = _reads()
    setup(rank, ranks)
    found = {
        "joined": dist.is_initialized(),
        "unread": [name for name in told if name not in read],
        "changed": [name for name, value in told.items() if os.environ.get(name) != value],
    }
    if found["joined"]:
        total = torch.tensor(rank + 1.0)
        dist.all_reduce(total)
        found |= {"backend": dist.get_backend(), "rank": dist.get_rank(), "sum": float(total)}
        found["collected"] = _unused_model(dist.is_initialized)
        gc.disable()  # only a call collects it
        cleanup()
        gc.enable()
        found["left"] = not dist.is_initialized()
    return found


def _reads() -> set[str]:
    """The names of variables that this process looks up in its environment from now on."""
    names: set[str] = set()

    class Followed(type(os.environ)):  # type: ignore[misc]
        def __getitem__(self, name: str) -> str:
            names.add(name)
            value: str = super().__getitem__(name)
            return value

    os.environ.__class__ = Followed
    return names


def _unused_model(state: Any) -> list[Any]:
    """Something that nobody uses, in a circle; the list gets the state at the moment it goes."""
    found: list[Any] = []
    weakref.finalize(type("Model", (), {}), lambda: found.append(state()))  # a class is a circle
    return found


def _group(parts: SimpleNamespace) -> None:
    from course_lib.scratch.launcher import free_port

    outcomes = on_ranks(_joins, parts.setup, parts.cleanup, free_port(), ranks=3)
    for rank, outcome in enumerate(outcomes):
        name, found = f"rank {rank} of 3", outcome.value
        if not found["joined"]:
            raise Wrong(f"{name}: there is no process group after setup({rank}, 3)")
        if found["changed"]:
            raise Wrong(
                f"{name}: setup has changed {found['changed'][0]}, which the launcher has set: two "
                "jobs on one machine would meet in one place"
            )
        if found["unread"]:
            raise Wrong(
                f"{name}: setup does not look at {found['unread'][0]}, which says where to meet"
            )
        if found["backend"] != "gloo":
            raise Wrong(f"{name}: the backend is {found['backend']!r}, expected gloo")
        if (found["rank"], found["sum"]) != (rank, 6.0):
            raise Wrong(f"{name}: in the group it is rank {found['rank']}, expected {rank}")
        if not found["left"]:
            raise Wrong(f"{name}: the process group is still there after cleanup()")
        if found["collected"] != [True]:
            when = "after" if found["collected"] else "without"
            raise Wrong(
                f"{name}: cleanup leaves the group {when} collecting models that nobody uses any "
                "more: DDP that outlives its group can abort the process"
            )


LAUNCHER = build(
    "launcher",
    title="a launcher",
    hints=(
        "subprocess.Popen(command, env=…) starts a process and does not wait for it. Its poll() is "
        "None while it runs, and its exit code afterwards.",
        "The environment of a rank is the launcher's own, os.environ, and what the rank is told "
        "besides. On node 2 of nodes of 8 ranks, local rank 3 is rank 19.",
        "Ask all ranks in turn, every few hundredths of a second: while one still runs and none "
        "has failed, go on. any() of a list of None, 0 and 3 is True because of the 3.",
        "try: start and watch; finally: end_ranks(ranks). What has ended already is not hurt by "
        "terminate().",
        "end_ranks: terminate() all, then wait(timeout) for each until the grace is over; on "
        "subprocess.TimeoutExpired kill() it and wait().",
    ),
    steps=(
        Step("what a rank is told", ("rank_environment",), _environment),
        Step("starting all of them", ("launch_ranks",), _start),
        Step("ending all of them", ("end_ranks",), _end),
        Step("into the group and out of it", ("setup", "cleanup"), _group),
    ),
)
