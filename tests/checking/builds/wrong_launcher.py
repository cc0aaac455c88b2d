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
        fixed = {"no port": None, "one port for ever": 29_500}
        one = fixed[fault] if fault in fixed else free_port()
        ports = [port or one] * local_ranks
        if fault == "a port of each" and not port:
            ports = [free_port() for _ in ports]
        told = [environment(n, local_ranks, ports[n], **where) for n in range(local_ranks)]
        inherited = {} if fault == "nothing inherited" else os.environ
        if fault == "one after the other":
            return [subprocess.run(command, env=inherited | one).returncode for one in told]
        if fault == "updates its own":
            ranks = []
            for one in told:
                os.environ.update(one)
                ranks.append(subprocess.Popen(command))
            return [rank.wait() for rank in ranks]
        if fault == "in this environment":
            for one in told:
                os.environ.update(one)
            return [rank.wait() for rank in [subprocess.Popen(command) for _ in told]]
        quiet = subprocess.DEVNULL if fault == "in silence" else None
        ranks = [subprocess.Popen(command, env=inherited | one, stdout=quiet) for one in told]
        if fault == "returns the processes":
            [rank.wait() for rank in ranks]
            return ranks
        if fault == "waits in order":
            return [rank.wait() for rank in ranks]
        codes = [rank.poll() for rank in ranks]
        over = {
            "any end": lambda: codes != [None] * len(codes),
            "only exit codes": lambda: any((code or 0) > 0 for code in codes),
        }.get(fault, lambda: any(codes))
        try:
            while None in codes and not over():
                time.sleep(0.02)
                codes = [rank.poll() for rank in ranks]
        except KeyboardInterrupt:
            for rank in ranks if fault == "kills after Ctrl-C" else ():
                rank.kill()
                rank.wait()
            raise
        if fault == "returns at once":
            return [code or 0 for code in codes]
        end(ranks)
        if fault == "codes as they end":
            return sorted(rank.returncode for rank in ranks)
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


def one_after_the_other(ranks, grace_s=5.0):
    for rank in ranks:
        rank.terminate()
        try:
            rank.wait(grace_s)
        except subprocess.TimeoutExpired:
            rank.kill()
            rank.wait()


def asks_each_in_its_time(ranks, grace_s=5.0):
    """All are asked before one is killed; but each only when the one before it had its time."""
    for rank in ranks:
        rank.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            rank.wait(grace_s)
    for rank in ranks:
        rank.kill()
        rank.wait()


def a_grace_for_each(ranks, grace_s=5.0):
    for rank in ranks:
        rank.terminate()
    for rank in ranks:
        try:
            rank.wait(grace_s)
        except subprocess.TimeoutExpired:
            rank.kill()
            rank.wait()


def in_a_hurry(ranks, grace_s=5.0):
    ours.end_ranks(ranks, 0.1)


def by_ctrl_c(ranks, grace_s=5.0):
    for rank in ranks:
        rank.send_signal(signal.SIGINT)
    time.sleep(grace_s)
    for rank in ranks:
        rank.kill()
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


def at_a_fixed_place(rank, world_size):
    place = "tcp://127.0.0.1:29517"
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=world_size)


def on_this_machine(rank, world_size):
    place = f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}"
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=world_size)


def of_two(rank, world_size):
    dist.init_process_group("gloo", rank=rank, world_size=min(world_size, 2))


def turns_ranks_round(rank, world_size):
    dist.init_process_group("gloo", rank=world_size - 1 - rank, world_size=world_size)


def asks_the_environment(rank, world_size):
    dist.init_process_group("gloo")


def with_nccl(rank, world_size):
    dist.init_process_group("nccl", rank=rank, world_size=world_size)


def leaves_the_group_there():
    gc.collect()


def collects_nothing():
    dist.destroy_process_group()


def collects_afterwards():
    dist.destroy_process_group()
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
    ("the first end", _launch("any end"), r"step 2.*rank 0 before the others, have the exit codes"),
    ("in silence", _launch("in silence"), "step 2.*print does not come out"),
    ("its own environment", _launch("updates its own"), "step 2.*changed LOCAL_RANK in the launch"),
    ("one port for ever", _launch("one port for ever"), "step 2.*somebody listens already"),
    (
        "the address of one machine",
        _launch(environment=lambda *a, address="", **more: ours.rank_environment(*a, **more)),
        r"step 2.*MASTER_ADDR is '127.0.0.1': expected the `address` that was given",
    ),
    (
        "a port of its own",
        _launch(environment=lambda r, n, p, **more: ours.rank_environment(r, n, 29_876, **more)),
        r"step 2.*MASTER_PORT is '29876': expected the `port` that was given",
    ),
    ("only exit codes", _launch("only exit codes"), "step 3.*rank 2 of 3 was killed by a signal"),
    ("codes as they end", _launch("codes as they end"), "step 3.*the exit codes are"),
    ("kills the others", _launch(end=lambda r: kills_at_once(r)), "step 3.*chance to save first"),
    ("kills after Ctrl-C", _launch("kills after Ctrl-C"), "after Ctrl-C .*no chance to save first"),
    ("asks in turn", _with(end_ranks=one_after_the_other), "step 3.*ask all of them first"),
    ("each in its time", _with(end_ranks=asks_each_in_its_time), "step 3.*ask all of them first"),
    ("a grace for each", _with(end_ranks=a_grace_for_each), "step 3.*all have one together"),
    ("in a hurry", _with(end_ranks=in_a_hurry), "step 3.*before its grace_s is over"),
    ("by Ctrl-C", _with(end_ranks=by_ctrl_c), "step 3.*had no chance"),
    ("at a fixed place", _with(setup=at_a_fixed_place), "step 4.*look at MASTER_ADDR"),
    ("on this machine", _with(setup=on_this_machine), "step 4.*look at MASTER_ADDR"),
    ("of two", _with(setup=of_two), "step 4"),
    ("collects nothing", _with(cleanup=collects_nothing), "step 4.*group without collecting"),
    ("collects afterwards", _with(cleanup=collects_afterwards), "step 4.*group after collecting"),
    (
        "looks at rank 0 first",
        _launch("waits in order"),
        "step 3.*(others went on for 4 s|nothing moves)",
    ),
    ("leaves the others", _launch("returns at once"), "step 3.*2 others still run behind it"),
    ("exit codes are lost", _launch("all is well"), "step 3.*expected 3 in the middle"),
    ("not after Ctrl-C", _launch(), "step 3.*after Ctrl-C in launch_ranks 2 ranks still run"),
    ("never kills", _with(end_ranks=only_terminates), "step 3.*ignores SIGTERM still runs"),
    (
        "waits for ever",
        _with(end_ranks=waits_for_ever),
        "step 3.*(much longer|nothing moves|waits for one rank before)",
    ),
    ("kills at once", _with(end_ranks=kills_at_once), "step 3.*ask it before you kill it"),
    ("does not wait", _with(end_ranks=returns_before_they_end), "step 3.*still run"),
    ("the listing's own port", _with(setup=port_of_the_listing), "step 4.*changed MASTER_"),
    ("ranks turned round", _with(setup=turns_ranks_round), "step 4.*it is rank 2, expected 0"),
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
