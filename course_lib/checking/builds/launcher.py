"""Build 15.10: a launcher, and how its ranks enter and leave a group."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from course_lib.checking.build import Step, build
from course_lib.checking.builds.ranks import each_rank, on_ranks
from course_lib.checking.exercises import Unanswered, Wrong
from course_lib.checking.helpers import described

_PORT = 29_123
_CODE = 3  # with which a rank fails
_WAIT_S = 2.0  # of a rank for the others, who have started as well
_SLEEP_S = 4.0  # of a rank that nobody ends
_SOON_S = 3.0  # within which a launcher on a busy machine has ended it
_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_INHERITED = "COURSE_INHERITED"  # a variable of the launcher's own
# (local_rank, local_ranks, node, nodes): one node, and the first and last of several.
_PLACES = ((0, 2, 0, 1), (1, 2, 0, 1), (1, 4, 0, 3), (3, 4, 2, 3), (0, 1, 1, 2))

# What a rank does in a check: it writes down what it was told, waits for the others, and does what
# its third argument says. Without torch it starts in a moment.
_RANK = """
import json, os, signal, sys, time
folder, ranks, kind, names = sys.argv[1], int(sys.argv[2]), *sys.argv[3:5]
wait_s, sleep_s = map(float, sys.argv[5:7])
told = {name: os.environ.get(name) for name in names.split()}
rank = int(told["RANK"] or 0)
if kind == "polite":
    def leave(*_):
        open(f"{folder}/left{os.getpid()}", "w").close()
        sys.exit(0)
    signal.signal(signal.SIGTERM, leave)
if kind == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(f"{folder}/part{os.getpid()}", "w") as file:
    json.dump(told, file)
os.rename(f"{folder}/part{os.getpid()}", f"{folder}/told{os.getpid()}")
until_s = time.monotonic() + wait_s
while sum(name.startswith("told") for name in os.listdir(folder)) < ranks:
    if time.monotonic() > until_s:
        sys.exit(75)
    time.sleep(0.01)
if kind == "fails" and rank == 1:
    sys.exit(3)
if kind != "ends":
    time.sleep(sleep_s)
"""


def _command(folder: str, ranks: int, kind: str) -> list[str]:
    program = [sys.executable, "-I", "-S", "-c", _RANK]
    return [
        *program,
        folder,
        str(ranks),
        kind,
        " ".join((*_NAMES, _INHERITED)),
        str(_WAIT_S),
        str(_SLEEP_S),
    ]


def _told(folder: str) -> list[dict[str, str | None]]:
    """What the ranks were told, in the order of their RANK."""
    import json

    told = [json.loads(path.read_text()) for path in Path(folder).glob("told*")]
    return sorted(told, key=lambda one: str(one["RANK"]))


def _alive(folder: str) -> int:
    """How many of the ranks that wrote down what they were told are still there."""
    found = 0
    for path in Path(folder).glob("told*"):
        try:
            os.kill(int(path.name.removeprefix("told")), 0)
        except ProcessLookupError:
            continue
        found += 1
    return found


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


def _meant(name: str, given: str, right: dict[str, str]) -> str:
    same = [other for other in _NAMES if other != name and right[other] == given]
    if name.endswith("RANK") and not same:
        return ": ranks are counted node by node"
    return f", which is {same[0]}" if same else ""


# --- starting them ----------------------------------------------------------------------------


def _starts(launch_ranks: Any) -> dict[str, Any]:
    """On one rank: three processes that wait for each other; then one of another node."""
    os.environ[_INHERITED] = "yes"
    with tempfile.TemporaryDirectory(prefix="course_check_") as folder:
        codes = _plain(launch_ranks(_command(folder, 3, "ends"), 3, _PORT))
        found = {"codes": codes, "told": _told(folder)}
    if isinstance(codes, list) and any(codes):
        return found
    with tempfile.TemporaryDirectory(prefix="course_check_") as folder:
        more = {"node": 1, "nodes": 2, "address": "10.0.0.1"}
        launch_ranks(_command(folder, 1, "ends"), 1, _PORT, **more)
        found["other told"] = _told(folder)
    with tempfile.TemporaryDirectory(prefix="course_check_") as folder:
        launch_ranks(_command(folder, 2, "ends"), 2)
        found["ports"] = [str(told["MASTER_PORT"]) for told in _told(folder)]
    return found


def _start(parts: SimpleNamespace) -> None:
    (outcome,) = on_ranks(_starts, parts.launch_ranks, ranks=1)
    found = outcome.value
    told = found["told"]
    if len(told) != 3:
        raise Wrong(f"launch_ranks(command, 3) starts {len(told)} processes, expected 3")
    if 75 in _codes(found["codes"], 3):
        raise Wrong(
            "rank 0 waited for the others in vain, as it would in init_process_group: start all "
            "before you wait for one"
        )
    _expect_codes(found["codes"], [0, 0, 0], "three ranks that all end well")
    if len({one["RANK"] for one in told}) < 3:
        raise Wrong("two ranks are told the same RANK: each needs an environment of its own")
    if None in {one[_INHERITED] for one in told}:
        raise Wrong("a rank has nothing of the launcher's own environment, such as PATH")
    for number, one in enumerate(told):
        _expect_told(
            one, _right(number, 3, 0, 1, "127.0.0.1"), f"launch_ranks(…, 3), rank {number}"
        )
    (one,) = found["other told"] or [{}]
    _expect_told(one, _right(0, 1, 1, 2, "10.0.0.1"), "launch_ranks(…, 1, node=1, nodes=2)")
    if not all(port.isdigit() for port in found["ports"]):
        raise Wrong(
            "launch_ranks without a port: MASTER_PORT is no number; free_port() has one that is"
        )
    if len(set(found["ports"])) > 1:
        raise Wrong("launch_ranks without a port tells another MASTER_PORT to each rank")


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


def _ends(launch_ranks: Any, end_ranks: Any) -> dict[str, Any]:
    """On one rank: what is left where ranks are told to end, where one fails, and after Ctrl-C."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="course_check_") as folder:
        kinds = ("ends", "polite", "stubborn")
        ranks = [subprocess.Popen(_command(folder, 3, kind)) for kind in kinds]
        while len(_told(folder)) < 3:
            time.sleep(0.01)
        ranks[0].wait()
        start_s = time.monotonic()
        end_ranks(ranks, 0.4)
        found["seconds"] = time.monotonic() - start_s
        found["running"] = [
            kind for kind, one in zip(kinds, ranks, strict=True) if one.poll() is None
        ]
        found["polite left"] = bool(list(Path(folder).glob("left*")))
        for one in ranks:
            one.kill()
            one.wait()
    if found["running"] or not found["polite left"] or found["seconds"] > _SOON_S:
        return found
    with tempfile.TemporaryDirectory(prefix="course_check_") as folder:
        start_s = time.monotonic()
        found["codes"] = _plain(launch_ranks(_command(folder, 3, "fails"), 3, _PORT))
        found["failed after"] = time.monotonic() - start_s
        found["alive"] = _alive(folder)
    if found["alive"] or found["failed after"] > _SLEEP_S:
        return found
    with tempfile.TemporaryDirectory(prefix="course_check_") as folder:
        found["interrupted"] = _interrupted(launch_ranks, folder)
        found["left behind"] = _alive(folder)
    return found


def _interrupted(launch_ranks: Any, folder: str) -> bool:
    """Whether Ctrl-C, pressed as soon as both ranks are there, comes out of the launcher."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    this = threading.get_ident()

    def press() -> None:
        while len(list(Path(folder).glob("told*"))) < 2:
            time.sleep(0.01)
        signal.pthread_kill(this, signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()
    try:
        launch_ranks(_command(folder, 2, "sleeps"), 2, _PORT)
    except KeyboardInterrupt:
        return True
    return False


def _end(parts: SimpleNamespace) -> None:
    (outcome,) = on_ranks(_ends, parts.launch_ranks, parts.end_ranks, ranks=1)
    found = outcome.value
    if "stubborn" in found["running"] and len(found["running"]) == 1:
        raise Wrong("end_ranks: a rank that ignores SIGTERM still runs when the grace is over")
    if found["running"]:
        raise Wrong(f"end_ranks returns while {len(found['running'])} of 3 ranks still run")
    if not found["polite left"]:
        raise Wrong(
            "end_ranks: a rank that ends itself on SIGTERM, as one that saves first, had no chance "
            "to: ask it before you kill it"
        )
    if found["seconds"] > _SOON_S:
        raise Wrong("end_ranks waits much longer than grace_s for a rank that ignores SIGTERM")
    codes = _codes(found["codes"], 3)
    if found["failed after"] > _SLEEP_S:
        raise Wrong(
            f"rank 1 of 3 ended with exit code {_CODE} and the others went on for {_SLEEP_S:g} s: "
            "look at all ranks again and again, not at one after the other"
        )
    if found["alive"]:
        raise Wrong(f"rank 1 of 3 has failed and {found['alive']} others still run behind it")
    if codes[1] != _CODE or 0 in codes:
        raise Wrong(
            f"rank 1 failed with exit code {_CODE} and the others were ended: the exit codes are "
            f"{codes}, expected {_CODE} in the middle and no 0"
        )
    if not found["interrupted"]:
        raise Wrong("Ctrl-C does not come out of launch_ranks: let it pass")
    if found["left behind"]:
        raise Wrong(
            f"after Ctrl-C in launch_ranks {found['left behind']} ranks still run: end them "
            "whichever way the function is left"
        )


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
    setup(rank, ranks)
    found = {
        "joined": dist.is_initialized(),
        "changed": [name for name, value in told.items() if os.environ.get(name) != value],
    }
    if found["joined"]:
        total = torch.tensor(rank + 1.0)
        dist.all_reduce(total)
        found |= {"backend": dist.get_backend(), "rank": dist.get_rank(), "sum": float(total)}
        cleanup()
        found["left"] = not dist.is_initialized()
    return found


def _group(parts: SimpleNamespace) -> None:
    from course_lib.scratch.launcher import free_port

    outcomes = on_ranks(_joins, parts.setup, parts.cleanup, free_port(), ranks=2)
    for rank, (name, found) in enumerate(each_rank(outcomes)):
        if not found["joined"]:
            raise Wrong(f"{name}: there is no process group after setup({rank}, 2)")
        if found["changed"]:
            raise Wrong(
                f"{name}: setup has changed {found['changed'][0]}, which the launcher has set: two "
                "jobs on one machine would meet in one place"
            )
        if found["backend"] != "gloo":
            raise Wrong(f"{name}: the backend is {found['backend']!r}, expected gloo")
        if (found["rank"], found["sum"]) != (rank, 3.0):
            raise Wrong(f"{name}: in the group it is rank {found['rank']}, expected {rank}")
        if not found["left"]:
            raise Wrong(f"{name}: the process group is still there after cleanup()")


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
