"""Launchers that the check must refuse, as patches of the course's own."""

import os
import signal
import subprocess
import threading
import time

import torch.distributed as dist

from course_lib.scratch import launcher as ours
from course_lib.scratch.launcher import free_port
from tests.checking.builds.patches import versions

NAMES = ("rank_environment", "launch_ranks", "end_ranks", "setup", "cleanup")


def _with(**functions):
    """The course's own functions, with others in the place of some."""
    return [functions.get(name) or getattr(ours, name) for name in NAMES]


def _versions(name, patches):
    return versions(getattr(ours, name), lambda made: _with(**{name: made}), patches)


_TOLD = """
the local rank
- str(node * local_ranks + local_rank)
+ str(local_rank)
? 1 node 2 of 3: RANK is str '3', which is LOCAL_RANK
numbers
+ node * local_ranks + local_rank
? 1 RANK wants a text
ranks come in turns
+ str(local_rank * nodes + node)
? 1 counted node by node
no port told
- "MASTER_PORT": str(port),
+ **{},
? 1 MASTER_PORT is missing
"""
_LAUNCH = """
one after the other
- ranks.append(subprocess.Popen(command, env=os.environ | told))
+ ranks.append(subprocess.Popen(command, env=os.environ | told))
+ ranks[-1].wait()
? 2 (start all before you wait|nothing moves)
all in one environment
+ os.environ.update(told)
- codes = [rank.poll() for rank in ranks]  # None: it still runs
+ ranks += [subprocess.Popen(command) for _ in range(local_ranks)]
+ codes = [rank.wait() for rank in ranks]
? 2 same RANK: each needs an environment
its own environment
+ os.environ.update(told)
+ ranks.append(subprocess.Popen(command))
? 2 changed LOCAL_RANK in the launch
nothing inherited
- env=os.environ | told
+ env=told
? 2 nothing of the launcher's own
in silence
+ env=os.environ | told, stdout=subprocess.DEVNULL
? 2 print does not come out
processes
- return [rank.returncode for rank in ranks]
+ return ranks
? 2 wants a list of exit codes
exit codes are lost
+ return [0 for _ in ranks]
? 3 expected 3 in the middle
no port by itself
- port = port or free_port()
+ pass
? 2 MASTER_PORT is no number
one port for ever
+ port = port or 29_500
? 2 somebody listens already
the first end
- while None in codes and not any(codes):
+ while codes == [None] * len(codes):
? 2 rank 0 before the others, have the exit codes
the address of one machine
- address=address,
+ address="127.0.0.1",
? 2 MASTER_ADDR is '127.0.0.1': expected the `address` that was given
a port of its own
- port,
- node=node,
+ 29_876,
+ node=node,
? 2 MASTER_PORT is '29876': expected the `port` that was given
only exit codes
- not any(codes):
+ not any((code or 0) > 0 for code in codes):
? 3 rank 2 of 3 was killed by a signal
kills the others
- end_ranks(ranks)
+ for rank in ranks:
+     rank.kill()
+     rank.wait()
? 3 chance to save first
kills after Ctrl-C
- finally:  # Ctrl-C comes this way as well
-     end_ranks(ranks)
+ except KeyboardInterrupt:
+     for rank in ranks:
+         rank.kill()
+         rank.wait()
+     raise
+ end_ranks(ranks)
? after Ctrl-C .*no chance to save first
not after Ctrl-C
+ except KeyboardInterrupt:
+     raise
+ end_ranks(ranks)
? 3 after Ctrl-C in launch_ranks 2 ranks still run
looks at rank 0 first
- codes = [rank.poll() for rank in ranks]  # None: it still runs
+ codes = [rank.wait() for rank in ranks]
? 3 (others went on for 4 s|nothing moves)
leaves the others
- finally:  # Ctrl-C comes this way as well
-     end_ranks(ranks)
- return [rank.returncode for rank in ranks]
+ finally:
+     pass
+ return [code or 0 for code in codes]
? 3 2 others still run behind it
"""
_END = """
never kills
- rank.kill()  # SIGKILL, which no process can ignore
- rank.wait()
+ pass
? 3 ignores SIGTERM still runs
waits for ever
- rank.wait(max(0.0, until_s - time.monotonic()))
+ rank.wait()
? 3 (much longer|nothing moves|waits for one rank before)
a grace for each
+ rank.wait(grace_s)
? 3 all have one together
asks in turn
- rank.terminate()  # SIGTERM; nothing where it has ended
+ pass
- try:
-     rank.wait(max(0.0, until_s - time.monotonic()))
+ rank.terminate()
+ try:
+     rank.wait(grace_s)
? 3 ask all of them first
kills at once
+ rank.kill()
? 3 ask it before you kill it
in a hurry
- until_s = time.monotonic() + grace_s
+ until_s = time.monotonic() + 0.1
? 3 before its grace_s is over
"""
_SETUP = """
at a fixed place
- dist.init_process_group("gloo", rank
+ place = "tcp://127.0.0.1:29517"
+ dist.init_process_group("gloo", init_method=place, rank
? 4 look at MASTER_ADDR
the listing's own port
- dist.init_process_group(
+ os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "12355"
+ dist.init_process_group(
? 4 changed MASTER_
ranks turned round
- rank=rank
+ rank=world_size - 1 - rank
? 4 it is rank 2, expected 0
from RANK alone
- dist.init_process_group("gloo", rank=rank, world_size=world_size)
+ dist.init_process_group("gloo")
? 4 RANK expected
"""
_CLEANUP = """
collects nothing
- gc.collect()  # DDP that outlives its group can abort the process
+ pass
? 4 group without collecting
collects afterwards
- gc.collect()  # DDP that outlives its group can abort the process
- dist.destroy_process_group()
+ dist.destroy_process_group()
+ gc.collect()
? 4 group after collecting
stays in the group
- dist.destroy_process_group()
+ pass
? 4 still there after
"""
WRONG = [
    row
    for name, patches in zip(NAMES, (_TOLD, _LAUNCH, _END, _SETUP, _CLEANUP), strict=True)
    for row in _versions(name, patches)
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


_MINE = {"launch_ranks": _by_threads, "end_ranks": _by_signals, "setup": _by_store}
for name, function in _MINE.items():
    function.__name__ = name
RIGHT = [("threads, and a store of its own", _with(**_MINE))]
AS_MINE = """
rank_environment, setup, cleanup = ours.rank_environment, _by_store, ours.cleanup
launch_ranks, end_ranks = _by_threads, _by_signals
"""
