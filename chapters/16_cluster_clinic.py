# %% [markdown]
# # 16 The cluster clinic

# %% [markdown] tags=["exercise"]
# ## Exercises

# %% tags=["exercise"]
import statistics

from course_lib import check, hint, hunt, hunting, mine
from course_lib.clinic import container, port_counters, ports
from course_lib.clinic.recorded import output

# %% [markdown] tags=["exercise"]
# **16.1** Two readings of a port's counters, ten seconds apart. How many GB/s did it send, and receive? Which part of an HDR port is what it sent? Older devices count in 32 bits and stop at the end. After how many seconds at this rate would such a counter of
# sent data tell nothing more?

# %% tags=["exercise"]
for name in ("counters", "counters_later"):
    lines = output(name).text.splitlines()
    print(*(line for line in lines if "_data" in line), sep="\n")

# %% tags=["exercise"]
sent_gb_s, received_gb_s, part, seconds = ..., ..., ..., ...
### BEGIN SOLUTION
readings = [
    port_counters.counters(output(name).text) for name in ("counters", "counters_later")
]
rates = port_counters.rates(*readings, seconds=10)
sent_gb_s = rates.sent_bytes_per_s / 1e9
received_gb_s = rates.received_bytes_per_s / 1e9
part = sent_gb_s / 25
seconds = 2**32 * 4 / rates.sent_bytes_per_s
### END SOLUTION
check("16.1", [sent_gb_s, received_gb_s, part, seconds])

# %% [markdown] tags=["exercise"]
# **16.2** Six lines of `ibstatus`, all of cables with four lanes. How many times as fast would each port be if all four lanes of its cable worked? Write 1 where they do.

# %% tags=["exercise"]
faster = {
    "200 Gb/sec (4X HDR)": ...,
    "50 Gb/sec (1X HDR)": ...,
    "100 Gb/sec (2X HDR)": ...,
    "100 Gb/sec (4X EDR)": ...,
    "400 Gb/sec (4X NDR)": ...,
    "25 Gb/sec (1X EDR)": ...,
}
### BEGIN SOLUTION
faster = dict(zip(faster, [1, 4, 2, 1, 1, 4], strict=True))
### END SOLUTION
check("16.2", faster)

# %% [markdown] tags=["exercise"]
# **16.3** 16 nodes, each with 8 GPUs and 8 NDR ports of 50 GB/s one way. NCCL all-reduces 8 GB over eight rings; each has a port of its own in every node and carries an eighth of the bytes. Without any latency, how many ms does that take? Then one of the 128 ports
# falls back to one lane, 12.5 GB/s. How many ms does it take now, and which bus bandwidth in GB/s does `all_reduce_perf` print? Until somebody comes with a new cable, `NCCL_IB_HCA` leaves that port's ring out on all nodes: how many ms now?

# %% tags=["exercise"]
healthy_ms, slow_ms, busbw_gb_s, without_ms = ..., ..., ..., ...
### BEGIN SOLUTION
sent_gb = 2 * 127 / 128 * 8  # by each rank
healthy_ms = 1e3 * sent_gb / (8 * 50)
slow_ms = 1e3 * sent_gb / 8 / 12.5
busbw_gb_s = sent_gb / (slow_ms / 1e3)
without_ms = 1e3 * sent_gb / (7 * 50)
### END SOLUTION
check("16.3", [healthy_ms, slow_ms, busbw_gb_s, without_ms])

# %% [markdown] tags=["exercise"]
# **16.4** This line starts a container on a node with Hygon's cards. Somebody takes it to a node with NVIDIA's. Mend it, and leave alone what is right. `container.docker_signs(line, "NVIDIA")` tells what it finds.

# %% tags=["exercise"]
### BEGIN GIVEN
line = """docker run -it --rm \\
    -v /data/llama:/root/llama -w /root/llama \\
    -v /opt/hyhal:/opt/hyhal \\
    --device=/dev/kfd --device=/dev/dri \\
    --shm-size=16G --net=host \\
    llama:24.05 bash"""
### END GIVEN
### BEGIN SOLUTION
line = """docker run -it --rm \\
    -v /data/llama:/root/llama -w /root/llama \\
    --gpus all \\
    --shm-size=16G --net=host \\
    llama:24.05 bash"""
### END SOLUTION
check("16.4", line)

# %% [markdown] tags=["exercise"]
# **16.5** A pod whose node has 8 GPUs and RDMA. NCCL says `Using network Socket`, a data loader dies with a bus error, and the GPUs belong to nobody in particular. Mend it. It should be allowed what it needs, and not more.

# %% tags=["exercise"]
### BEGIN GIVEN
pod = """
apiVersion: v1
kind: Pod
metadata: {name: trainer}
spec:
  containers:
  - name: trainer
    image: llama:24.05
    resources:
      requests: {nvidia.com/gpu: 8, rdma/rdma_shared_device_a: 1}
"""
### END GIVEN
### BEGIN SOLUTION
pod = """
apiVersion: v1
kind: Pod
metadata: {name: trainer}
spec:
  containers:
  - name: trainer
    image: llama:24.05
    resources:
      requests: {nvidia.com/gpu: 8, rdma/rdma_shared_device_a: 1}
      limits: {nvidia.com/gpu: 8, rdma/rdma_shared_device_a: 1}
    securityContext:
      capabilities: {add: [IPC_LOCK]}
    volumeMounts:
    - {name: shm, mountPath: /dev/shm}
  volumes:
  - name: shm
    emptyDir: {medium: Memory, sizeLimit: 16Gi}
"""
### END SOLUTION
check("16.5", pod)

# %% [markdown] tags=["exercise"]
# **16.6** Four ranks train on gloo. First rank 2 sleeps for an hour before it calls collective number 7, and the other ranks call it. Then, in another run, ranks 1 and 3 sleep, and the others call `monitored_barrier`. Give lists of ranks, in order, and numbers.

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
# **16.7** One of 8 GPUs is hot and takes 25 % longer to compute, and computing is 80 % of a step. By which factor does the step of the whole job become longer? By which factor if one of 1,024 GPUs is hot? By which factor, with 8, if work could be divided by speed? Last,
# no GPU is hot, but each takes 400 ms ± 8 ms (normal, a standard deviation of 8 ms) for its part of a step. How many ms does the slowest of 1,024 take on average? `theory.step.stragglers` has a function for each; guess first.

# %% tags=["exercise"]
of_8, of_1024, divided, slowest_ms = ..., ..., ..., ...
### BEGIN SOLUTION
from course_lib.theory.step import stragglers

of_8 = of_1024 = stragglers.straggler_factor(0.25, compute_share=0.8)
divided = stragglers.shared_work_factor(8, 0.25)
slowest_ms = 1e3 * stragglers.expected_slowest_s(1024, 0.4, 0.008)
### END SOLUTION
check("16.7", [of_8, of_1024, divided, slowest_ms])

# %% [markdown] tags=["exercise"]
# **16.8** Each rank of a job writes down, for each of its updates, how many ms it took and how many of them it spent in collectives. Write what finds the rank for which the others wait: the one with the most time outside of collectives. Take the median over the updates of a rank, since any
# update may be late once. Return its number, or None unless its median is more than twice that of every other rank.


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
# **16.9** (published mistakes) Six sentences from notes and blogs. True or false?

# %% tags=["exercise"]
claims = {
    "nvidia-smi shows 100 % for each GPU, so all of them compute": ...,
    "an H100's NVLink carries 900 GB/s, which is 28 times PCIe 4.0 x16 with 32 GB/s": ...,
    "a port of 200 Gb/s is too fast for a PCIe 4.0 x16 slot of 32 GB/s": ...,
    "dist.is_nccl_available() is True on AMD's GPUs as well": ...,
    "nvidia-smi -r without -i resets one GPU, and jobs on the others go on": ...,
    "with --ipc=host a container needs no --shm-size": ...,
}
### BEGIN SOLUTION
answers = [False, False, False, True, False, True]
claims = dict(zip(claims, answers, strict=True))
### END SOLUTION
check("16.9", claims)

# %% [markdown] tags=["exercise"]
# **16.10** The hunt. `hunt(seed)` starts three real ranks, one of which is broken from its second update on, shows what they print, and starts the clock. After each update a rank says how long it took, how much of that it spent in collectives, the loss on a batch that all
# ranks have, and how long a message from each other rank was under way. In these three cases nothing fails. Answer each as soon as you know, `case.answer(rank=…, cause=…)`, then collect the answers for the check.

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
check("16.10", found)

# %% [markdown] tags=["exercise"]
# Cases 0 to 9 have all ten causes, and 10 to 19 have them again on other ranks. `case.doctor()` runs a case again with a record and asks the doctor of section 16.7; `hunting.table()` has your best time for each cause, beside the doctor's.

# %% tags=["exercise"]
print(hunting.table())

# %% [markdown] tags=["exercise"]
# **16.11** Write the parser of `ibstat` that this chapter used: a `Port` for each port, with `device`, `port` (an int), `state`, `physical`, `gbit_per_s` (a number) and `link_layer`. A device may have several ports, or none. What cannot be read raises a ValueError that shows
# the line: a clinic that guesses is worse than none. The check gives it recorded outputs: of healthy and slow ports, of one that is down, and of a device that vanished. What passes is kept as `mine/ibstat.py`.

# %% tags=["exercise"]
print(output("ibstat_slow").text[:640])

# %% tags=["exercise"]
import re

from course_lib.clinic.ports import Port

### BEGIN GIVEN


def ibstat(text: str) -> tuple[Port, ...]:
    """The ports in what `ibstat` printed, in their order.

    Raises ValueError, with the line, for a text that is not ibstat's.
    """
    ...


### END GIVEN
### BEGIN SOLUTION
from course_lib.clinic.ports import ibstat

### END SOLUTION

check("16.11", ibstat)

# %% [markdown] tags=["exercise"]
# `mine.ibstat` is yours from now on, and the course's until then. What is wrong with these four ports?

# %% tags=["exercise"]
for sign in ports.port_signs(mine.ibstat(output("ibstat_slow").text)):
    print(sign.sentence)

# %% [markdown] tags=["exercise"]
# **16.12** Eight thousand ranks hang, and each has left its flight record: a list of the collectives that it called, such as the one below. Find the first collective in which the ranks differ, and the odd ranks: those outside the one largest group that called the same. A rank
# whose record ends before that number has not come, which counts as something else. Do not accuse without reason: if two groups are equally large, nobody is odd, and a record that is empty says nothing. A record keeps the last 200 calls or so, so
# records may begin at different numbers; compare from the first number that all of them have. Entries with `is_p2p` are messages between two ranks; leave them out. What passes is kept as `mine/divergence.py`.

# %% tags=["exercise"]
from course_lib.diagnosing.divergence import flights

records = flights("collective")  # recorded on three ranks, one of which is broken
records[1][0]

# %% tags=["exercise"]
from course_lib.diagnosing.divergence import ANY_SIZE

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
from course_lib.diagnosing.divergence import first_divergence

### END SOLUTION

check("16.12", first_divergence)

# %% tags=["exercise"]
for kind in ("none", "collective", "hang", "twice", "shape"):
    print(f"{kind:<11}{mine.first_divergence(flights(kind))}")
