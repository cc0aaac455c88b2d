"""Launchers that the check must refuse: (what was thought, answer, words of the refusal)."""

import contextlib
import gc
import os
import signal
import subprocess
import threading
import time

import torch.distributed as dist

from course_lib.scratch import launcher as ours
from course_lib.scratch.launcher import free_port


def _with(**functions):
    """The course's own functions, with others in the place of some."""
    names = ("rank_environment", "launch_ranks", "end_ranks", "setup", "cleanup")
    found = [functions.get(name) or getattr(ours, name) for name in names]
    for name, function in zip(names, found, strict=True):
        function.__name__ = name
    return found


def _environment(**changes):
    """What a rank is told, with one value computed otherwise."""

    def rank_environment(local_rank, local_ranks, port, *, node=0, nodes=1, address="127.0.0.1"):
        told = ours.rank_environment(
            local_rank, local_ranks, port, node=node, nodes=nodes, address=address
        )
        place = (local_rank, local_ranks, node, nodes, port)
        return told | {name: change(*place) for name, change in changes.items()}

    return _with(rank_environment=rank_environment)


def forgets_the_port(local_rank, local_ranks, port, **more):
    told = ours.rank_environment(local_rank, local_ranks, port, **more)
    del told["MASTER_PORT"]
    return told


def _launch(
    fault="",
    environment=ours.rank_environment,
    end=ours.end_ranks,
):
    """A launcher in which one thing can go wrong."""

    def launch_ranks(command, local_ranks, port=None, **where):
        one = None if fault == "no port" else free_port()
        ports = [port or one] * local_ranks
        if fault == "a port of each" and not port:
            ports = [free_port() for _ in ports]
        told = [environment(n, local_ranks, ports[n], **where) for n in range(local_ranks)]
        inherited = {} if fault == "nothing inherited" else os.environ
        if fault == "one after the other":
            return [subprocess.run(command, env=inherited | one).returncode for one in told]
        if fault == "in this environment":
            for one in told:
                os.environ.update(one)
            return [rank.wait() for rank in [subprocess.Popen(command) for _ in told]]
        ranks = [subprocess.Popen(command, env=inherited | one) for one in told]
        if fault == "returns the processes":
            [rank.wait() for rank in ranks]
            return ranks
        if fault == "waits in order":
            return [rank.wait() for rank in ranks]
        codes = [rank.poll() for rank in ranks]
        while None in codes and not any(codes):
            time.sleep(0.02)
            codes = [rank.poll() for rank in ranks]
        if fault == "returns at once":
            return [code or 0 for code in codes]
        end(ranks)
        return [0 for _ in ranks] if fault == "all is well" else [rank.returncode for rank in ranks]

    return _with(launch_ranks=launch_ranks)


def only_terminates(ranks, grace_s=5.0):
    for rank in ranks:
        rank.terminate()
    for rank in ranks:
        with contextlib.suppress(subprocess.TimeoutExpired):
            rank.wait(grace_s)


def waits_for_ever(ranks, grace_s=5.0):
    for rank in ranks:
        rank.terminate()
        rank.wait()


def kills_at_once(ranks, grace_s=5.0):
    for rank in ranks:
        rank.kill()
        rank.wait()


def returns_before_they_end(ranks, grace_s=5.0):
    for rank in ranks:
        rank.terminate()


def port_of_the_listing(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12355"
    dist.init_process_group("gloo", rank=rank, world_size=world_size)


def turns_ranks_round(rank, world_size):
    dist.init_process_group("gloo", rank=world_size - 1 - rank, world_size=world_size)


def asks_the_environment(rank, world_size):
    dist.init_process_group("gloo")


def with_nccl(rank, world_size):
    dist.init_process_group("nccl", rank=rank, world_size=world_size)


def leaves_the_group_there():
    gc.collect()


WRONG = [
    (
        "the local rank",
        _environment(RANK=lambda rank, *_: str(rank)),
        "step 1.*node 2 of 3: RANK is '3', which is LOCAL_RANK",
    ),
    (
        "ranks of this node",
        _environment(WORLD_SIZE=lambda _, ranks, *__: str(ranks)),
        "step 1.*WORLD_SIZE is '4', which is LOCAL_WORLD_SIZE",
    ),
    ("numbers", _environment(RANK=lambda r, n, node, *_: r + n * node), "step 1.*wants a string"),
    ("no port told", _with(rank_environment=forgets_the_port), "step 1.*MASTER_PORT is missing"),
    (
        "ranks come in turns",
        _environment(RANK=lambda r, _, node, nodes, __: str(r * nodes + node)),
        "step 1.*counted node by node",
    ),
    (
        "one after the other",
        _launch("one after the other"),
        "step 2.*(start all before you wait|nothing moves)",
    ),
    (
        "all in one environment",
        _launch("in this environment"),
        "step 2.*same RANK: each needs an environment",
    ),
    ("nothing inherited", _launch("nothing inherited"), "step 2.*nothing of the launcher's own"),
    ("processes", _launch("returns the processes"), "step 2.*wants a list of exit codes"),
    ("no port by itself", _launch("no port"), "step 2.*MASTER_PORT is no number"),
    (
        "looks at rank 0 first",
        _launch("waits in order"),
        "step 3.*(others went on for 4 s|nothing moves)",
    ),
    ("leaves the others", _launch("returns at once"), "step 3.*2 others still run behind it"),
    ("exit codes are lost", _launch("all is well"), "step 3.*expected 3 in the middle"),
    ("not after Ctrl-C", _launch(), "step 3.*after Ctrl-C in launch_ranks 2 ranks still run"),
    ("never kills", _with(end_ranks=only_terminates), "step 3.*ignores SIGTERM still runs"),
    ("waits for ever", _with(end_ranks=waits_for_ever), "step 3.*(much longer|nothing moves)"),
    ("kills at once", _with(end_ranks=kills_at_once), "step 3.*ask it before you kill it"),
    ("does not wait", _with(end_ranks=returns_before_they_end), "step 3.*still run"),
    ("the listing's own port", _with(setup=port_of_the_listing), "step 4.*changed MASTER_"),
    ("ranks turned round", _with(setup=turns_ranks_round), "step 4.*it is rank 1, expected 0"),
    ("from RANK alone", _with(setup=asks_the_environment), "step 4.*RANK expected"),
    ("nccl", _with(setup=with_nccl), "step 4"),
    ("stays in the group", _with(cleanup=leaves_the_group_there), "step 4.*still there after"),
]


def _by_threads(command, local_ranks, port=None, **where):
    """A thread waits for each rank; the first failure wakes the launcher."""
    port = port or free_port()
    told = [ours.rank_environment(n, local_ranks, port, **where) for n in range(local_ranks)]
    ranks = [subprocess.Popen(command, env={**os.environ, **one}) for one in told]
    over = threading.Event()
    left = list(ranks)

    def follow(rank):
        code = rank.wait()
        left.remove(rank)
        if code or not left:
            over.set()

    try:
        for rank in ranks:
            threading.Thread(target=follow, args=(rank,), daemon=True).start()
        while not over.wait(0.1):
            pass
    finally:
        _by_signals(ranks)
    return [rank.wait() for rank in ranks]


def _by_signals(ranks, grace_s=5.0):
    running = [rank for rank in ranks if rank.poll() is None]
    for rank in running:
        rank.send_signal(signal.SIGTERM)
    until_s = time.time() + grace_s
    while any(rank.poll() is None for rank in running) and time.time() < until_s:
        time.sleep(0.01)
    for rank in running:
        rank.kill()
    for rank in running:
        rank.wait()


def _by_store(rank, world_size):
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world_size, is_master=rank == 0
    )
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)


RIGHT = [
    (
        "threads, and a store of its own",
        _with(launch_ranks=_by_threads, end_ranks=_by_signals, setup=_by_store),
    )
]
AS_MINE = """
rank_environment, setup, cleanup = ours.rank_environment, _by_store, ours.cleanup
launch_ranks, end_ranks = _by_threads, _by_signals
"""
