# %% [raw] tags=["sitting"]
# question: A job hangs, or is slow: which rank is to blame?
# importance: 5
# difficulty: 3
# group: group

# %% [markdown]
# # 16 Hangs and stragglers
#
# A program that crashes says where. A program that hangs says nothing until a time limit ends it: after 10 minutes with NCCL, after 30 with Gloo (the defaults of `init_process_group`). At 2 dollars per GPU-hour, 64 GPUs cost 21 dollars in ten minutes. Which rank is not where the others are, and on which line?
#
# After this sitting you can
#
# - read the message of NCCL's watchdog, and name the rank that a hanging job waits for,
# - find the rank or the link that makes a job slow,
# - keep a bad node out of the next job.

# %%
import shutil
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

# %%
from torch.distributed.fsdp import fully_shard

from course_lib import demos, expect, launch, predict, quiz, show_source
from course_lib.chapters.ch16_cluster_clinic import diagnosing, figures, hunting
from course_lib.chapters.ch16_cluster_clinic import logs, pairwise, slowest
from course_lib.chapters.ch16_cluster_clinic.diagnosing.divergence import (
    first_divergence,
)
from course_lib.checking import hunts
from course_lib.clinic.recorded import output

launch.warm_up()
torch.set_num_threads(1)

# %% [markdown]
# ## 16.7 Hangs
#
# With NCCL, a thread of PyTorch called the **watchdog** (section 15.7) checks every call, and ends the job when one takes too long. Here are three of its lines, from a training that died at the end of every epoch:

# %%
print(output("watchdog").shown)

# %% [markdown]
# **Predict.** Rank 7 wrote its first line at 01:45:40. At how many minutes past one did things go wrong?

# %%
parted = predict("16.parted", "Minutes past one?", yours=None)

# %%
late_calls = logs.timeouts(output("watchdog").text)
expect(45 - 10, 45 - late_calls[0].limit_s / 60, label="minutes", yours=parted)

# %%
for sign in logs.timeout_signs(late_calls):
    print(sign.sentence)

# %% [markdown]
# **Explain.** At 01:35: look there in the other logs. The message has these parts:
#
# | part | says |
# |---|---|
# | `SeqNum=80078` | the number of the call; each rank counts its own calls in a group |
# | `OpType`, `NumelIn` | which collective, and how many numbers this rank puts in |
# | `Timeout(ms)=600000` | the limit: this rank began to wait ten minutes before it wrote the line |
#
# As its call 80078, rank 7 broadcasts 5,056 numbers while rank 3 all-reduces 2,106,881: the ranks of this *program* went different ways. But if all lines name the same call, look at the rank *without* a line. Only ranks that wait print this message:

# %%
for sign in logs.timeout_signs(logs.timeouts(output("watchdog_same").text)):
    print(sign.sentence)

# %% [markdown]
# Three tools say more.
#
# **1. The stack of a living process.** The functions that have called each other are the **stack** (调用栈). `py-spy dump --pid` shows it for a Python process, without ending the process. Two ranks, recorded one after the other:

# %%
print(output("py-spy_dump").shown)

# %% [markdown]
# Read the first line below each `Thread`. Process 3510 is in `all_reduce`: it waits for 3511, which is in `forward`, line 4 of your program.
#
# **2. The flight recorder** (飞行记录器). Each rank keeps its last collectives in memory (`TORCH_FR_BUFFER_SIZE=2000`). With `TORCH_NCCL_DUMP_ON_TIMEOUT=1` the watchdog writes them to a file per rank, `FOLDER/trace_0` and so on if you set `TORCH_FR_DUMP_TEMP_FILE=FOLDER/trace_`. All nodes must share the folder. `torchfrtrace --prefix trace_ FOLDER` compares the files.
#
# **3. All of it together.** With `launch.run(…, record=FOLDER)` or `course demo NAME --record FOLDER` each rank keeps a page with its stack and its collectives, and `course diagnose FOLDER` answers in one sentence. A program of your own needs one line, anywhere before it hangs, and the folder from outside:
#
# ```
# import course_lib.record                                   # train.py
# COURSE_RECORD=here torchrun --nproc-per-node=3 train.py    # terminal
# ```
#
# Now a real hang. Three ranks train a model with FSDP2. In update 3, rank 2 waits for a batch that does not come.


# %%
def load_batch(rank, step):
    """A batch, unless the file server does not answer."""
    if rank == 2 and step == 3:
        time.sleep(60)
    return torch.ones(2, 8)


def train():
    """Four updates of two units under FSDP2."""
    rank = launch.init()
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(2))
    )
    for unit in (*model, model):
        fully_shard(unit)
    for step in range(1, 5):
        batch = load_batch(rank.rank, step)
        model(batch).sum().backward()
        launch.report_step(step, 4)


# %%
folder = Path(tempfile.mkdtemp(prefix="clinic_"))
try:
    launch.run(train, ranks=3, timeout_s=12, stream=False, record=folder)
except launch.RankFailed as failure:
    print(str(failure).splitlines()[0])

# %% [markdown]
# A time limit knows no more: it cannot tell waiting from computing. Now `course diagnose` on the same folder. (A cell has a number in place of a file name.)

# %%
diagnosis = diagnosing.diagnose(folder)
print(diagnosis.report())
assert diagnosis.finding.ranks[0] == 2
stacks = [record.stack for record in diagnosing.reading.read(folder).records]
shutil.rmtree(folder)

# %% [markdown]
# The three stacks side by side, from your first line at the bottom to where each rank is at the top:


# %% tags=["drawing"]
def drawn(stack):
    """Names of the functions from your first line on, and whose they are."""
    first = next(place for place, line in enumerate(stack) if line.own)
    return [
        (
            line.function,
            "yours" if line.own else "communication" if line.torch else "torch",
        )
        for line in stack[first:]
    ]


figures.rank_stacks(
    {f"rank {rank}": drawn(stack) for rank, stack in enumerate(stacks)},
    "Three ranks hang: two wait, one is waited for",
)

# %% [markdown]
# Read a stack from the *inside*, and stop at the first line of your own. And compare ranks: one of the stacks is different. In 523 of 525 launches, most with a random fault, `course diagnose` named cause, rank and line correctly (`benchmarks/README.md`).
#
# **Remember**
# - The watchdog's lines: different calls mean the program; one call for all means a missing rank, or the network.
# - Read a stack from the inside to the first line of your own. Then compare the ranks.

# %% [markdown]
# ### Deeper: two checks from inside the program
#
# `dist.monitored_barrier` has a short time limit and reports who did not come. It works with Gloo only, but you can have a Gloo group beside NCCL (`dist.new_group(backend="gloo")`). Rank 2 is a second late:


# %%
def late():
    """What the barrier says to this rank."""
    if launch.init().rank == 2:
        time.sleep(1)
    try:
        dist.monitored_barrier(timeout=timedelta(seconds=0.5), wait_all_ranks=True)
    except RuntimeError as error:
        return str(error)
    return "passed"


print(launch.run(late, ranks=3, stream=False)[0])

# %% [markdown]
# Only rank 0 knows. Without `wait_all_ranks=True` it stops at the first rank that it misses, in the order of their numbers, and names only that one.
#
# `TORCH_DISTRIBUTED_DEBUG=DETAIL` makes all ranks compare each call before they make it. That is slow, so use it only for debugging. Here rank 1 brings five numbers where the others have four:


# %%
def five():
    """All-reduces numbers, on one rank more of them."""
    rank = launch.init()
    dist.all_reduce(torch.ones(5 if rank.rank == 1 else 4))


try:
    launch.run(five, ranks=3, check_collectives=True, stream=False)
except launch.RankFailed as failure:
    print(str(failure).splitlines()[0])

# %% [markdown]
# ### Deeper: where the records part
#
# PyTorch's tutorial on the flight recorder has this example. Two ranks make four all-reduces of 3 × 4 numbers each, and rank 0 makes one more, of 4 × 5 numbers, as its third. The tool reports:

# %%
print(output("torchfrtrace").shown)

# %% [markdown]
# It names collective 5, which rank 1 did not join.
#
# **Predict.** How many of rank 0's five calls were matched with the wrong call on rank 1, or with none?

# %%
unmatched = predict("16.differs", "Calls without their partner?", yours=None)

# %%
meant = ["A", "B", "extra", "C", "D"], ["A", "B", "C", "D", None]
wrong = sum(one != other for one, other in zip(*meant, strict=True))
expect(3, wrong, label="calls without partner", yours=unmatched)

# %%
sizes = {0: [(3, 4), (3, 4), (4, 5), (3, 4), (3, 4)], 1: [(3, 4)] * 4}
part = {"profiling_name": "nccl:all_reduce", "is_p2p": False, "input_dtypes": ["Float"]}
recorded_calls = {
    rank: [
        part | {"collective_seq_id": number, "input_sizes": [size]}
        for number, size in enumerate(its, 1)
    ]
    for rank, its in sizes.items()
}
number, odd_ranks = first_divergence(recorded_calls)
assert (number, odd_ranks) == (3, ())  # of two ranks, nobody knows which is wrong

# %% tags=["drawing"]
figures.flight_records(
    {
        f"rank {rank}": [f"{rows} × {columns}" for rows, columns in its]
        for rank, its in sizes.items()
    },
    "Calls by number, and the sizes that were all-reduced",
)

# %% [markdown]
# **Explain.** Three: the ranks part at number 3, and from there on each call of rank 0 meets the next one of rank 1. Only the fifth has no partner left. A hang shows where the ranks *stopped*; the record shows where they *parted*.
#
# We gave these records to the `torchfrtrace` of torch 2.13. It also reports number 3, but with the words "Culprit rank 1", since it takes rank 0's record as the right one. Here the bug is on rank 0. So read *where* the ranks differ, and decide yourself who is wrong.

# %% [markdown]
# ### Deeper: the course's own comparison
#
# Try exercise 16.13 first. This is the function that it asks for:

# %%
show_source(first_divergence)

# %% [markdown]
# ### Deeper: the frames under your line
#
# Note 001 says that FSDP, being "deeply integrated", is harder to debug than plain data parallelism. Here is how much. Under your line modules call modules; then come FSDP2's hook before each unit, a wrapper that keeps the compiler out, the unshard and the gather: nearly twenty frames in torch 2.13, where a bare `dist.all_reduce` has two. DDP has three in its backward pass, but there Python's stack ends at `backward()`, because C++ starts the all-reduce. On a GPU the backward pass runs on a thread of autograd (PyTorch, *Autograd mechanics*), whose stack does not contain your line at all.

# %%
own = max(place for place, line in enumerate(stacks[0]) if line.own)
frames = len(stacks[0]) - own - 1
print(f"{frames} frames between your line and the collective that waits")
assert frames >= 8

# %% [markdown]
# `course demo faults` has a fault for each cause that the diagnosis knows, from `kill` to `cycle`:
#
# ```
# course demo faults --kind loader --ranks 3 --timeout 6 --record here
# course diagnose here
# ```
#
# If you may not edit a program, start it as `COURSE_RECORD=here torchrun --nproc-per-node=3 -m course_lib.record train.py`. The variable alone does nothing: Python must load something that reads it.

# %% [markdown]
# ## 16.9 Stragglers, and whose fault it is
#
# In a warm corner of the rack, one of 64 ranks takes 10 % longer to compute. Its speed is 9 % lower, and that of all 64 together 0.14 %. But a *step* of pure computing takes 10 % longer: all ranks get equal work and wait for the last one, the **straggler** (掉队者). The time of a step is the *maximum* over the ranks, not the mean. Here are four ranks that compute for 50 ms, one of which takes half as long again:


# %%
def steps(slower):
    """Seconds of an update, and what this rank did when; rank 2 is `slower`."""
    rank, numbers, did = launch.init(), torch.ones(4), []
    dist.barrier()
    for _ in range(6):
        start = time.time()
        time.sleep(0.05 * (1 + slower * (rank.rank == 2)))
        computed = time.time()
        dist.all_reduce(numbers)
        did += [("computing", start, computed), ("waiting", computed, time.time())]
    return (did[-1][2] - did[0][1]) / 6, did


# %%
alike, lagging = (
    launch.run(steps, slower, ranks=4, stream=False) for slower in (0.0, 0.5)
)
print(f"{1000 * alike[0][0]:.0f} ms, with a straggler {1000 * lagging[0][0]:.0f} ms")
longer_by = lagging[0][0] / alike[0][0]
expect(slowest.straggler_factor(0.5), longer_by, within=None, label="factor")

# %% [markdown]
# The time of a step is the same on all ranks. The time *inside the collective* is not.
#
# **Predict.** For each of the four ranks, add up how long it waited. Which rank waited least?

# %%
least = predict("16.least", "Rank?", yours=None)

# %%
waited = [
    sum(end - start for what, start, end in did if what == "waiting")
    for _, did in lagging
]
# found from times: shown, not judged
expect(2, waited.index(min(waited)), within=None, label="rank", yours=least)

# %% tags=["drawing"]
figures.lanes(
    {f"rank {rank}": did for rank, (_, did) in enumerate(lagging)},
    "Six updates: rank 2 never waits",
)

# %% [markdown]
# **Explain.** Rank 2, the straggler: it comes last, so it waits least. So log two times on each rank, computing and waiting. A monitor of whole steps sees nothing.
#
# If the network is slow, comparing ranks does not help, and you test pairs. A pair is fast only if both ends and the path between them are. You need not test all pairs of 64 ranks, in 63 rounds: if each rank meets those at distance 32, 16, 8, 4, 2 and 1, six rounds name one slow rank. The demo does it on four real ranks. Rank 2 sends 10 ms late:

# %%
tested = demos.run("pairwise", ranks=4, stream=False, slow="2", slow_ms=10.0, passes=2)
print(tested.found.explain())
figures.pair_rates(tested.tests, tested.found, "Four ranks, two rounds")

# %% [markdown]
# All pairs with rank 2 are slow, so it is the rank. If only one pair were slow, it would be the path between the two. If all pairs between two halves were slow, it would be whatever joins the halves, such as a switch.
#
# **Remember**
# - The straggler is the rank that waits least.
# - Slow pairs: all with one rank, the rank; just one pair, the link; all between two halves, what joins them.

# %% [markdown]
# ### Deeper: nothing is broken, and one rank is late
#
# Every one of 64 ranks takes 100 ms for a step, with a normal deviation of 2 ms. How long does the average step take?

# %%
torch.manual_seed(0)
times_ms = 100 + 2 * torch.randn(20_000, 64)  # steps, ranks
drawn_ms = times_ms.max(dim=1).values.mean().item()
by_theory = 1000 * slowest.expected_slowest_s(64, 0.1, 0.002)
expect(by_theory, drawn_ms, within=0.002, label="step", unit="ms")

# %% [markdown]
# 104.7 ms. On average the largest of 64 normal values lies 2.34 deviations above their mean, and the largest of 1,024 lies 3.25. So a large job is a little slower than a small one, with every part in order:


# %% tags=["drawing"]
def later_ms(ranks, noise_ms):
    return 1000 * slowest.expected_slowest_s(ranks, 0.1, noise_ms / 1000) - 100


sizes = [2**power for power in range(13)]
figures.lines(
    {
        f"± {noise_ms} ms": [(ranks, later_ms(ranks, noise_ms)) for ranks in sizes]
        for noise_ms in (2, 4, 8)
    },
    "ranks",
    "ms by which a step is longer than the 100 ms of one rank",
    "Nothing is broken, and one rank is always late",
    doubling=(True, False),
    mark={"64 ranks": 64},
)

# %% [markdown]
# ### Deeper: rounds of pairs
#
# The halving of section 16.9 has a blind spot: two ranks that never meet are never tested. `--schedule all` lets everybody meet. Without such a program you can halve the job itself. Run all_reduce_perf on each half of the nodes, then on the halves of the slow half, and so on. Of 64 nodes five rounds leave two. In a sixth, test each of them with a healthy node.

# %% tags=["drawing"]
sizes = [2**power for power in range(2, 7)]
figures.lines(
    {
        "all pairs": [(n, len(pairwise.rounds(n, "all"))) for n in sizes],
        "halving": [(n, len(pairwise.rounds(n))) for n in sizes],
    },
    "ranks",
    "rounds",
    "Rounds until a slow rank has a name",
    doubling=(True, True),
)

# %% [markdown]
# ## 16.11 The clinic's first page
#
# Begin with what you see, and ask one question:
#
# | | you see | ask first | section |
# |---|---|---|---|
# | **won't start** | `is_available()` is False | `nvidia-smi` inside the container; `--gpus` | 16.1, 16.5 |
# | | out of memory on an empty GPU | `nvidia-smi pmon -s um -c 1` | 16.2 |
# | | `ibv_create_cq` failed | `ulimit -l`; `IPC_LOCK` | 16.5 |
# | | the pod is Pending | `kubectl describe pod`, its last lines | 16.5 |
# | | the rendezvous times out | `--net=host`, `NCCL_SOCKET_IFNAME` | 15.2, 16.5 |
# | **dies** | a GPU is gone, “uncorrectable” | the lines with Xid in `dmesg -T` | 16.2 |
# | | Bus error, No space left on device | `df -h /dev/shm` | 16.5 |
# | **hangs** | all show 100 %, nothing moves | who shows less in `pmon`; `py-spy dump` | 16.3, 16.7 |
# | | in the first all-reduce | `DETAIL`; `monitored_barrier`; interface | 16.7 |
# | | after hours | `course diagnose`: the stack that differs | 16.7 |
# | | “Watchdog caught collective …” | `SeqNum`, `OpType`, `NumelIn` of all ranks | 16.7 |
# | **is slow** | all ranks, since yesterday | `ibstat` everywhere; symbol errors; `dmon` | 16.4, 16.2 |
# | | many times slower than planned | `NCCL_DEBUG=INFO`: `Using network` | 16.6 |
# | | some percent longer | time in the collective, by rank; pairs | 16.9 |
# | | two nodes slower than one | bytes of a step over the link | [16.10](16_4) |
# | **is wrong** | another loss than on one GPU | `course compare` | [16.8](16_4) |
#
# And then? A bad node must not get the next job. Slurm: `scontrol update nodename=node17 state=drain reason="ib 1X"`; what runs there finishes, and nothing new starts. Kubernetes: `kubectl cordon node17`. Let a script do it: Slurm's `HealthCheckProgram` runs one regularly on every node. After a restart of a server with NVSwitch, wait until `nvidia-smi -q` says `Fabric`, `State: Completed`; before that CUDA does not start.
#
# ### A hunt
#
# One of three real ranks is broken. You see what they print, but not their program:

# %%
case = hunting.hunt(59)

# %% [markdown]
# **Predict.** The error names a rank first. Is that the guilty one? Which rank is broken?

# %%
culprit = predict("16.hunted", "Rank?", yours=None)

# %%
expect(hunts.drawn(59).rank, label="rank", yours=culprit)

# %%
case.doctor()

# %% [markdown]
# **Explain.** Two of the stacks end inside `dist.all_reduce`: those ranks wait for the third, which is in its own program. The error names ranks in the order of their numbers.
#
# ## The answer
#
# The rank to blame is the one that does *not* wait. In a hang its stack differs from all others; in a slow job it spends the least time in collectives.

# %% [markdown]
# ## What to remember
#
# 1. Every command looks at one part. Know which, and what it cannot say.
# 2. 100 % is time, not work. Power, memory traffic and MFU show work.
# 3. A ring is as fast as its slowest link, and a step as fast as its slowest rank.
# 4. Ask of every rate: one way or both, one link or all, bits, bytes or words.

# %%
from course_lib import quiz

quiz("16")

# %% [raw] tags=["quiz"]
# All GPUs of a job show 100 %. What do you know?
# [ ] they compute at their peak
# [x] some kernel ran all the time, perhaps one that waits
# [ ] the network is not the limit
# Why: Utilization counts time, and waiting for other ranks is a kernel.
#
# A job hangs. pmon shows 99 % on seven GPUs and nothing on the eighth. Where do you look?
# [ ] at the seven
# [x] at the eighth
# [ ] at the network
# Why: The seven wait inside a collective; the eighth is the one that has not come.
#
# 63 of 64 ranks print 'Watchdog caught collective operation timeout' with the same SeqNum and OpType. Where do you look?
# [ ] at the network
# [x] at the rank without the line
# [ ] at the rank that printed it first
# Why: Only ranks that wait print it; the one that never made the call has nothing to say.
#
# One of 64 links of a ring has a quarter of its rate. An all-reduce of 4 GB takes …
# [ ] 1/64 longer
# [ ] three quarters longer
# [x] four times as long
# Why: Every piece passes over every link, and everybody waits for the slowest.
#
# port_xmit_data grows by 5,000,000,000 in 1 s. How much does the port send?
# [ ] 5 GB/s
# [x] 20 GB/s
# [ ] 0.625 GB/s
# Why: It counts words of four bytes.
#
# ibstatus says 100 Gb/sec (2X HDR). What is wrong?
# [x] two of four lanes are gone
# [ ] it is an older card
# [ ] nothing
# Why: HDR is 50 Gb/s for each lane, and a cable has four.
#
# A data loader dies with 'No space left on device', and the disk is empty. What is full?
# [ ] the GPU's memory
# [ ] locked memory
# [x] /dev/shm
# Why: Workers pass batches through it, and a container has 64 MB of it.
#
# Which capability lets a pod lock the memory that RDMA reads and writes?
# [ ] SYS_PTRACE
# [x] IPC_LOCK
# [ ] seccomp=unconfined
# Why: SYS_PTRACE is for py-spy; seccomp is docker's filter of system calls.
#
# NCCL_IB_HCA=mlx5_1 on a node with mlx5_0 to mlx5_15. How many devices are used?
# [ ] 1
# [x] 7
# [ ] 16
# Why: Names are prefixes: mlx5_1 and mlx5_10 to mlx5_15.
#
# One of 1,024 ranks computes 5 % more slowly. How much longer is a step of pure computing?
# [x] 5 %
# [ ] 0.005 %
# [ ] it depends on the network
# Why: All wait for the slowest: the maximum, not the mean.

# %% [markdown]
# **Read on.** NVIDIA, *GPU Deployment and Management* (docs.nvidia.com/deploy). NCCL, *Environment Variables* and *Troubleshooting* (docs.nvidia.com/deeplearning/nccl). Bekman, *Machine Learning Engineering*. PyTorch, [*Flight Recorder for Debugging Stuck Jobs*](https://docs.pytorch.org/tutorials/prototype/flight_recorder_tutorial.html). Llama 3, section 3.3.4 (arXiv:2407.21783).

# %% [markdown] tags=["exercise"]
# ### 16.6 Predict: who is named when a rank sleeps?
#
# Four ranks train on gloo. In one run, rank 2 sleeps for an hour before it calls collective number 7, and the other ranks call it. In another run, ranks 1 and 3 sleep, and the others call `monitored_barrier`. Give lists of ranks, in order, and numbers.

# %% [raw] tags=["hints"]
# importance 3, difficulty 3
# Who has a time limit running: the rank that sleeps, or those that wait for it?
# What is in the flight record of a rank that has not called a collective yet?
# Rank 0 receives a message of each other rank, one after the other.

# %% tags=["exercise"]
named = {
    "rank 2 sleeps: ranks whose stack ends in torch.distributed": ...,
    "rank 2 sleeps: ranks that raise an error when the time is up": ...,
    "rank 2 sleeps: number of the last collective in rank 2's record": ...,
    "rank 2 sleeps: number of the last collective in rank 3's record": ...,
    "ranks 1 and 3 sleep: ranks that monitored_barrier() names": ...,
    "ranks 1 and 3 sleep: ranks that monitored_barrier(wait_all_ranks=True) names": ...,
}
### BEGIN SOLUTION
answers = [[0, 1, 3], [0, 1, 3], 6, 7, [1], [1, 3]]
named = dict(zip(named, answers, strict=True))
### END SOLUTION
check("16.6", named)

# %% [markdown] tags=["exercise"]
# ### 16.7 Predict: the straggler's factor
#
# One of 8 GPUs is hot and takes 25 % longer to compute, and computing is 80 % of a step. By which factor does the step of the whole job become longer? By which factor if one of 1,024 GPUs is hot? By which factor would *computing* become longer, with 8, if work could be divided by speed? Finally,
# no GPU is hot, but each takes 400 ms ± 8 ms (normal, with a standard deviation of 8 ms) for its part of a step. How many ms does the slowest of 1,024 take on average? `course_lib.chapters.ch16_cluster_clinic.slowest` has functions for them; guess first.

# %% [raw] tags=["hints"]
# importance 3, difficulty 2
# All ranks wait for the slowest. Does it matter how many wait?
# Of a step only 80 % become 25 % longer.
# If work were divided by speed, eight ranks would do the work of 7.8.
# Of many normal times the longest is mean + deviation · 3.25, for 1,024 ranks.

# %% tags=["exercise"]
of_8, of_1024, divided, slowest_ms = ..., ..., ..., ...
### BEGIN SOLUTION
from course_lib.chapters.ch16_cluster_clinic import slowest

of_8 = of_1024 = slowest.straggler_factor(0.25, compute_share=0.8)
divided = slowest.shared_work_factor(8, 0.25)
slowest_ms = 1e3 * slowest.expected_slowest_s(1024, 0.4, 0.008)
### END SOLUTION
check("16.7", [of_8, of_1024, divided, slowest_ms])

# %% [markdown] tags=["exercise"]
# ### 16.8 Implement: who is waited for?
#
# Each rank of a job writes down how many ms each of its updates took, and how many of them it spent in collectives. Write the function that finds the rank for which the others wait: the one with the most time outside of collectives. Take the median over a rank's updates, since any
# single update may be late. Return its number, or None unless its median is more than twice that of every other rank.

# %% [raw] tags=["hints"]
# importance 3, difficulty 3
# What is left of an update when the time in collectives is taken off?
# statistics.median of that, for each rank: one late update does not move it.
# sorted(own)[-2:] are the second largest and the largest.


# %% tags=["exercise"]
def late_rank(total_ms: list[list[float]], inside_ms: list[list[float]]) -> int | None:
    """The straggler; total_ms[rank][update] and the part of it in collectives."""
    ### BEGIN SOLUTION
    own = [
        statistics.median(whole - inside for whole, inside in zip(*rank, strict=True))
        for rank in zip(total_ms, inside_ms, strict=True)
    ]
    second, first = sorted(own)[-2:]
    return own.index(first) if first > 2 * second else None
    ### END SOLUTION


check("16.8", late_rank)

# %% [markdown] tags=["exercise"]
# ### 16.11 Debug: three cases without an error
#
# The hunt. `hunt(seed)` starts three real ranks, one of which is broken from its second update on, shows what they print, and starts the clock. After each update a rank reports how long it took, how much of that it spent in collectives, the loss on a batch that all
# ranks share, and how long a message from each other rank took. In these three cases nothing crashes. Answer each as soon as you know, with `case.answer(rank=…, cause=…)`, then collect the answers for the check.

# %% [raw] tags=["hints"]
# importance 5, difficulty 3, group
# All ranks see the same batch. Which columns should be equal on all of them, or alike?
# Compare the losses; then the messages by the rank they come from; then, for each rank, the time outside of collectives.
# Who waits least is the one the others wait for.

# %% tags=["exercise"]
case = hunt(2)

# %% tags=["exercise"]
case.answer(rank=None, cause=None)

# %% tags=["exercise"]
case = hunt(4)

# %% tags=["exercise"]
case.answer(rank=None, cause=None)

# %% tags=["exercise"]
case = hunt(6)

# %% tags=["exercise"]
case.answer(rank=None, cause=None)

# %% tags=["exercise"]
found = {2: (..., ...), 4: (..., ...), 6: (..., ...)}  # (rank, cause)
### BEGIN SOLUTION
found = {2: (0, "other weights"), 4: (2, "slow link"), 6: (0, "straggler")}
### END SOLUTION
check("16.11", found)

# %% [markdown] tags=["exercise"]
# Cases 0 to 9 have all ten causes, and 10 to 19 have them again on other ranks. `case.doctor()` runs a case again with a record and asks the doctor of section 16.7; `table()` has your best time for each cause, beside the doctor's.

# %% tags=["exercise"]
print(table())

# %% [markdown] tags=["exercise"]
# ### 16.13 Build: the first divergence
#
# Thousands of ranks hang, and each has left its flight record: a list of the collectives that it called, such as the one below. Find the first collective in which the ranks differ, and the odd ranks: those outside the one largest group that called the same.
#
# - A rank whose record ends before that number has not come, which counts as something else.
# - Do not accuse without reason: if two groups are equally large, nobody is odd, and an empty record says nothing.
# - A record keeps only the last calls, 200 or so, and records may begin at different numbers. Compare from the first number that all of them have.
# - Entries with `is_p2p` are messages between two ranks; leave them out.
#
# A function that passes is kept as `mine/divergence.py`.

# %% [raw] tags=["hints"]
# importance 4, difficulty 4
# For each rank a dict from collective_seq_id to what was called. Then go through the numbers, from the first that all records have to the last that any has.
# dict.get(number) is None for a rank that did not come: that is a camp as well.
# Group the ranks by what they called: a dict from the call to a list of ranks. One group: go on. Lists can't be keys of a dict; tuple(…) or str(…) of them can.
# profiling_name is 'gloo:all_reduce' or 'nccl:all_reduce'. Sizes and types count, except in operations of ANY_SIZE.
# The largest group is right if no other is as large; otherwise nobody is odd: ().

# %% tags=["exercise"]
from course_lib.chapters.ch16_cluster_clinic.diagnosing.divergence import flights

records = flights("collective")  # recorded on three ranks, one of which is broken
records[1][0]

# %% tags=["exercise"]
from course_lib.chapters.ch16_cluster_clinic.diagnosing.divergence import ANY_SIZE

### BEGIN GIVEN


def first_divergence(
    records: dict[int, list[dict]],
) -> tuple[int, tuple[int, ...]] | None:
    """The number of the first collective that differs, and the odd ranks.

    Two calls are the same if operation ("gloo:all_reduce" without "gloo:"),
    input_sizes and input_dtypes are; in ANY_SIZE only the operation counts.
    None if all ranks agree.
    """
    ...


### END GIVEN
### BEGIN SOLUTION
from course_lib.chapters.ch16_cluster_clinic.diagnosing.divergence import (
    first_divergence,
)

### END SOLUTION

check("16.13", first_divergence)

# %% tags=["exercise"]
for kind in ("none", "collective", "hang", "twice", "shape"):
    print(f"{kind:<11}{mine.first_divergence(flights(kind))}")
