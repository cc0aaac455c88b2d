# %% [raw] tags=["sitting"]
# question: How long must eight GPUs take to add up 13.5 GB of gradients?
# importance: 5
# difficulty: 3
# group: alone
# needs: 5

# %% [markdown]
# # 6 How long an all-reduce takes
#
# A model with 7 billion parameters has 13.5 GB of gradients in bf16. Eight H100 GPUs in one server must add them up
# after every step. The data sheet says that NVLink moves 900 GB/s, so a colleague expects 15 ms. A stopwatch
# shows 64 ms when the GPUs pass the data round a ring, and 49 ms when NVIDIA's library chooses its own method.
# Is a cable broken?
#
# After this sitting you can
#
# - run the seven common operations on real processes, and build a ring all-reduce from messages,
# - predict its time from two numbers, $\alpha$ and $\beta$, and measure both on your machine.
#
# You need chapter 5.

# %%
from functools import partial

import torch
import torch.distributed as dist

from course_lib import expect, launch, measure, predict, scratch, show_source, style
from course_lib.chapters.ch06_collectives import figures
from course_lib.measure.times import collective_seconds
from course_lib.theory import collectives, fitting, hardware, models, ring_or_tree

launch.warm_up()
torch.set_num_threads(1)

# %% [markdown]
# **Predict.** What is the shortest time in which the eight GPUs can finish, if all data travel from GPU to GPU round a
# ring?

# %%
least = predict("6.ms", "Milliseconds at least?", yours=None, unit="ms")

# %% [markdown]
# ## 6.1 Seven operations
#
# A **collective** (集合通信) is an operation that all ranks of a group call together. Take three ranks that hold the rows 1 2 3, 10 20 30 and 100 200 300. Some operations
# use only the first number of each row.
#
# The figure shows each operation before and after. A colour marks the rank that a number comes from; a bar with three colours is
# a sum. Which operations add? After which do all ranks hold the same numbers?

# %% tags=["drawing"]
from course_lib.chapters.ch06_collectives.blocks import exchange

seven = (
    "broadcast",
    "reduce",
    "all-gather",
    "reduce-scatter",
    "all-reduce",
    "all-to-all",
    "send-recv",
)
figures.collective_grid([exchange(operation, ranks=3) for operation in seven])

# %% [markdown]
# Reduce, reduce-scatter and all-reduce add. After broadcast, all-gather and all-reduce all ranks hold the same.
#
# - **broadcast** (广播): rank 0 sends its tensor to all ranks, such as the first weights (chapter 7).
# - **reduce** (规约): rank 0 gets the sum over all ranks, such as a loss that it prints.
# - **all-gather** (全收集): every rank gets the tensors of all ranks, such as weights stored in parts (chapters 8 and 9).
# - **reduce-scatter** (规约散播): each rank gets one part of the sum, such as its part of the gradients (chapters 8 and 9).
# - **all-reduce**: every rank gets the whole sum, such as the gradients (chapter 7).
# - **all-to-all** (全交换): number $i$ of each row goes to rank $i$. It brings tokens to experts (chapter 12).
# - **send/recv** (点对点通信): a message from one rank to another (chapter 11). It is no collective, but every collective can be built from it.
#
# Run them. Broadcast and reduce have one special rank, the root, and write into the tensor that they get:


# %%
def row():
    """This rank's numbers: 1 2 3, or 10 20 30, or 100 200 300."""
    return torch.tensor([1, 2, 3]) * 10 ** dist.get_rank()


def from_and_to_rank_0():
    """A broadcast from rank 0, and a sum on rank 0."""
    sent, added = row()[:1], row()[:1]
    dist.broadcast(sent, src=0)
    dist.reduce(added, dst=0)
    return sent.tolist(), added.tolist()


results = launch.run(from_and_to_rank_0, ranks=3)
assert [sent for sent, _ in results] == [[1], [1], [1]]
assert results[0][1] == [111]  # on other ranks `added` is undefined

# %% [markdown]
# `scratch.wire` calls PyTorch's functions and returns a new tensor:


# %%
def all_alike():
    """All-reduce, all-gather and reduce-scatter of this rank's row."""
    summed = scratch.wire.all_reduce(row()[:1])
    gathered = scratch.wire.all_gather(row()[:1])
    scattered = scratch.wire.reduce_scatter(row())
    return summed.tolist(), gathered.tolist(), scattered.tolist()


results = launch.run(all_alike, ranks=3)
assert [summed for summed, _, _ in results] == [[111]] * 3
assert [gathered for _, gathered, _ in results] == [[1, 10, 100]] * 3
assert [scattered for _, _, scattered in results] == [[111], [222], [333]]


# %%
def exchanged():
    """All-to-all: number i of this rank's row goes to rank i."""
    arrived = torch.empty(3, dtype=torch.int64)
    dist.all_to_all_single(arrived, row())
    return arrived.tolist()


columns = launch.run(exchanged, ranks=3)
assert columns == [[1, 10, 100], [2, 20, 200], [3, 30, 300]]

# %% [markdown]
# Rows have become columns: an all-to-all is a transposition. If each rank now adds up its numbers, it has 111, 222 or 333. So
# an all-to-all and then a local sum is a reduce-scatter. The most important of these identities is
#
# $$\text{all-reduce} = \text{reduce-scatter, then all-gather.}$$
#
# ### Groups, and calls that do not wait
#
# `dist.init_process_group(backend)` makes the group of all ranks; here the launcher has called it.
# `dist.new_group(ranks)` makes a smaller group, and every collective takes a `group`. A call with `async_op=True` returns at once with a
# `Work`. The transfer goes on in the background, and the tensor may be read only after `work.wait()`. Chapter 7 computes
# in the meantime.


# %%
def in_pairs():
    """The sum over ranks 0 and 1, or over ranks 2 and 3; started, then awaited."""
    pairs = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    number = torch.tensor(10 ** dist.get_rank())
    work = dist.all_reduce(number, group=pairs[dist.get_rank() // 2], async_op=True)
    # … other work could be done here, but nothing that reads `number` …
    work.wait()
    return number.item()


assert launch.run(in_pairs, ranks=4) == [11, 11, 1100, 1100]

# %% [markdown]
# All ranks call `new_group` for all groups, in the same order, even for groups that they do not belong to.
#
# **Remember**
# - All ranks of a group call a collective, in the same order, with the same sizes.
# - All-reduce = reduce-scatter + all-gather. All-to-all = transposition.
# - After `async_op=True`, read the tensor only after `wait()`.

# %% [markdown]
# ## 6.2 The ring
#
# In the simplest all-reduce, one rank receives the tensors of all others, adds them, and sends the sum back. It
# must receive 7 × 13.5 GB, then send as much. At 450 GB/s, NVLink's speed in one direction, this takes 420 ms, and most links idle. (Note 004 describes all-reduce like this; exercise 6.6 takes it apart.)
#
# It is better if all ranks work at once. Arrange them in a **ring** (环): each rank sends only to the next one and receives only
# from the one before. Cut the tensor into as many parts as there are ranks. Part $i$ starts at rank
# $i + 1$, and each rank on its path adds its own numbers. After which step are the parts complete, and why is that not the end?

# %%
from course_lib.chapters.ch06_collectives import steppers

steppers.ring(ranks=3)

# %% [markdown]
# After $n - 1 = 2$ steps each part is complete, each on a different rank. That was the reduce-scatter. In 2 more steps the finished
# parts travel round the ring until every rank has all of them. That is the all-gather. In every step each rank sends one part and receives one.
#
# **Predict.** Take four ranks and a tensor of a million fp32 numbers, 4 MB. How many times the whole tensor does each rank send?

# %%
volume = predict("6.times", "Bytes a rank sends / 4 MB?", yours=None)

# %% [markdown]
# ### Deeper: the course's own ring
#
# Try exercise 6.11 first: it asks for these functions. In each step a rank sends to its successor and receives from its predecessor *at the same time*. The first half adds what arrives:

# %%
show_source(scratch.collectives.Peers.swap, scratch.collectives._add_around)

# %% [markdown]
# `parts` are views of one tensor, so `into += arrived` changes that tensor. In step 1, rank 0 of three sends part
# $(0 - 1) \bmod 3 = 2$, as in the stepper. The second half passes parts on without adding:

# %%
show_source(scratch.collectives._copy_around)

# %%
show_source(
    scratch.collectives.ring_all_reduce, scratch.collectives.ring_reduce_scatter
)

# %% [markdown]
# ### Counted
#
# `measure.wire.log_wire` records every message that a rank sends. We run the course's ring on the 4 MB and compare its sum with that of the library, `dist.all_reduce(tensor)`:


# %%
size = 4_000_000


def counted(operation, numbers):
    """Messages and bytes that this rank sends; whether the sum is the library's."""
    mine = torch.arange(numbers) % 100 * (dist.get_rank() + 1.0)
    with measure.wire.log_wire() as log:
        ours = operation(mine, scratch.collectives.Peers())
    return log.sent()["send-recv"], torch.equal(ours, scratch.wire.all_reduce(mine))


# %%
by_rank = launch.run(counted, scratch.collectives.ring_all_reduce, size // 4, ranks=4)
[(sent_messages, sent_bytes), equal] = by_rank[0]
assert all(one == by_rank[0] for one in by_rank) and equal and sent_messages == 6
expect(2 * 3 / 4, sent_bytes / size, label="bytes a rank sends / 4 MB", yours=volume)

# %% [markdown]
# **Explain.** Each rank sends 6 messages of a quarter of the tensor: 1.5 times the tensor. For $n$ ranks and $S$ bytes
# there are $2(n-1)$ steps, and in each step every rank sends one part of $S/n$ bytes. So each rank sends
#
# $$2\,(n-1) \cdot \frac{S}{n} = 2\,\frac{n-1}{n}\,S.$$
#
# That is $S$ for 2 ranks, $1.75\,S$ for 8, and $1.998\,S$ for 1000. **More ranks hardly cost more bytes.** This is why data parallelism scales at all.
# Ranks alone cannot manage with fewer bytes. But switches (交换机) can add as well, which is called **in-network reduction** (网内规约). With those of an H100
# server each GPU sends only $(n+1)/n \cdot S = 1.125\,S$ (nccl-tests, issue 212; [the deeper sitting](06_3) shows how).

# %% [markdown]
# ### Deeper: why ranks alone cannot manage with fewer bytes
#
# Look at one number of the tensor. Its $n$ summands are on $n$ ranks. Each message can join at most two
# partial sums, so at least $n - 1$ messages are needed to form the sum, and $n - 1$ more to bring it to the other ranks. This makes
# $2(n-1)$ for each number, and $2(n-1)/n$ for each rank on average. The ring sends exactly that many (Patarasuk and Yuan 2009,
# doi:10.1016/j.jpdc.2008.09.002).

# %% [markdown]
# ### Four methods side by side
#
# Eight ranks; section 6.4 explains the tree. The ranks that send the most are green:

# %% tags=["drawing"]
from course_lib.theory.network.all_reduce import all_reduce_ways

ways = all_reduce_ways(ranks=8)
assert [way.most for way in ways.values()] == [7, 3, 1.75, 1.125]
figures.who_sends(ways, "× S")

# %% [markdown]
# Reduce-scatter, all-gather and all-to-all each send $(n-1)/n \cdot S$ in $n-1$ steps. There $S$ is always the *whole* tensor, as
# in NVIDIA's benchmark nccl-tests: the result of an all-gather, the input of a reduce-scatter.


# %%
def sent_by(operation, numbers):
    """Messages and bytes that this rank sends for one call."""
    with measure.wire.log_wire() as log:
        operation(torch.ones(numbers), scratch.collectives.Peers())
    return log.sent()["send-recv"]


for name, operation, numbers in (
    ("reduce-scatter", scratch.collectives.ring_reduce_scatter, 1200),
    ("all-to-all", scratch.collectives.all_to_all, 1200),
    ("all-gather", scratch.collectives.ring_all_gather, 300),  # the result has 1200
):
    wanted = (3, collectives.sent_bytes(name, 4800, ranks=4))  # 3600 bytes
    assert launch.run(sent_by, operation, numbers, ranks=4) == [wanted] * 4

# %% [markdown]
# **Remember**
# - A ring all-reduce sends $2(n-1)/n \cdot S$ bytes from each rank, in $2(n-1)$ steps. Ranks alone cannot manage with fewer; switches that add can.
# - Reduce-scatter and all-gather are its halves: $(n-1)/n \cdot S$ in $n-1$ steps.

# %% [markdown]
# ## 6.3 Two numbers: α and β
#
# A message first has to start: a program requests the transfer, a chip wakes up, the first byte travels.
# NVIDIA's library NCCL assumes 3.4 µs for this on NVLink, for each step of a ring with large tensors (`src/graph/tuning.cc`, from 2020 to release 2.30). For a network it
# assumed 9.6 µs until release 2.17, and 14 µs since 2.18 (2023); this course uses 9.6. Then the bytes flow, over NVLink 450 GB a second:

# %% tags=["drawing"]
nvlink = hardware.accelerator("H100-SXM").inside
shares = {}
for name, message in {"1 kB": 1e3, "1.53 MB": 1.53e6, "1 GB": 1e9}.items():
    parts = {"starting": nvlink.latency_s, "flowing": message / nvlink.bytes_per_s}
    took = sum(parts.values())
    row_name = f"{name}: {1e6 * took:,.1f} µs"
    shares[row_name] = {part: 100 * each / took for part, each in parts.items()}
figures.stacked_bars(
    shares,
    "How one message spends its time, NVLink4",
    "{:.0f} %".format,
    colours={"starting": style.IDLE, "flowing": style.MESSAGES},
)

# %% [markdown]
# The first number is the **latency** (延迟) $\alpha$, in seconds per message. The second is the **bandwidth** (带宽) $\beta$, in bytes
# per second, *one way*. Small messages cost mostly latency, large ones mostly bandwidth. A collective takes several steps, one after the other:
#
# $$T = \text{steps} \cdot \alpha + \frac{\text{bytes that a rank sends}}{\beta}, \qquad
# T_\text{ring} = 2(n-1)\,\alpha + 2\,\frac{n-1}{n}\,\frac{S}{\beta}.$$
#
# (Hockney 1994 for one message; Thakur, Rabenseifner and Gropp 2005, doi:10.1177/1094342005051521, for collectives. Some authors write $\beta$ for seconds per byte, so
# check the unit.)
#
# Now the question from the beginning: $n = 8$, $S = 13.48$ GB.

# %%
gradients = 2 * models.MODELS["llama2-7b"].parameters().total  # bytes in bf16
result = ring_or_tree("all-reduce", gradients, 8, nvlink)
ring_ms = 1000 * result.ring_s
expect(52.5, ring_ms, within=2e-3, label="round a ring", unit="ms", yours=least)

# %% [markdown]
# **Explain.** The latency is $14 \cdot 3.4 = 47.6$ µs. Each GPU sends $1.75 \cdot 13.48 = 23.6$ GB, which takes 52.4 ms at 450 GB/s.
# The colleague left out two factors: the 900 GB/s of the data sheet are both directions added, so one direction has half; and each GPU sends 1.75 tensors, not one.
#
# Why does the stopwatch show 64 ms? The wires carry 450 GB/s, 18 links of 25 GB/s. NVLink's own protocol takes about a sixth of that. NCCL expects
# 20.6 GB/s of data from each link (`SM90_NVLINK_BW` in `src/graph/topo.h`), 370 GB/s together. A healthy server shows just that
# when only the ring is allowed (a maintainer in issue 212 of NVIDIA/nccl-tests; a user measured 365 to 370 in issue 1455 of NVIDIA/nccl).

# %%
from dataclasses import replace

carries = replace(nvlink, bytes_per_s=370e9)
healthy_s = collectives.seconds("all-reduce", gradients, 8, carries)
assert round(1000 * healthy_s) == 64

# %% tags=["drawing"]
times = {
    "once, at 900 GB/s": gradients / 900e9,
    "once, at 450 GB/s": gradients / nvlink.bytes_per_s,
    "a ring at 450 GB/s": result.ring_s,
    "a ring at 370 GB/s": healthy_s,
    "stopwatch, NCCL's choice": 0.049,
}
figures.bars(times, lambda time_s: f"{1000 * time_s:.3g} ms", "13.5 GB on eight H100")

# %% [markdown]
# No cable is broken. The 49 ms are less than any ring can take, so NCCL did not use one: it let the switches add. Section 6.6 checks that with a real benchmark.
#
# At which size do latency and bandwidth cost the same? Set the two terms equal: $S = n\,\alpha\,\beta$, for any
# $n$. On these eight GPUs that is 12.2 MB. The gradient of one norm layer, 8 kB, costs only latency if it is sent alone. This is why chapter 7 collects gradients in buckets.

# %%
assert abs(result.half_bytes / (8 * nvlink.latency_s * nvlink.bytes_per_s) - 1) < 1e-9

# %% [markdown]
# The model ignores other traffic on the cable, the time of the additions, and multiple paths. For large tensors on a quiet
# network it is good to 10 or 20 %, if $\beta$ was measured. A data sheet's $\beta$ is about 20 % too high.
#
# **Remember**
# - $T = \text{steps} \cdot \alpha + \text{bytes}/\beta$. Small tensors pay for steps, large ones for bytes.
# - $\beta$ counts one way; $S$ is the whole tensor.
# - A ring all-reduce spends half of its time on latency at $S = n\alpha\beta$.

# %% [markdown]
# ## 6.5 Your machine's α and β
#
# On a laptop the "network" is memory that the operating system copies from process to process. It has an $\alpha$ and a $\beta$ too.
#
# **Predict.** NVLink starts a message in 3.4 µs, a fast network in about 10. Here Python starts every message, and the operating
# system must wake a sleeping process. How many microseconds is $\alpha$?

# %%
guess = predict("6.alpha", "α in µs?", yours=None)


# %%
def ring_times(sizes):
    """Seconds of a ring all-reduce at each size: the fastest of 40 calls."""
    here = scratch.collectives.Peers()
    times = []
    for numbers in [size // 4 for size in sizes]:
        x = torch.ones(numbers)
        call = partial(scratch.collectives.ring_all_reduce, x, here)
        times.append(collective_seconds(call, 40, x.device))
    return times


sizes = [2**power for power in (10, 12, 14, 16, 18, 20, 22)]
measured = launch.run(ring_times, sizes, ranks=2)[0]

# %% [markdown]
# The fit minimises *relative* errors. With absolute ones the large times would outweigh the small ones, and only those reveal the latency.

# %%
try:
    mine = fitting.fit_alpha_beta("all-reduce", sizes, measured, ranks=2)
    print(mine.explain())
    here = hardware.Link("this machine", mine.bytes_per_s, mine.latency_s)
except ValueError as problem:
    print(f"No line fits these times: {problem}")
    here = fitting.bounding_link("all-reduce", sizes, measured, ranks=2)
    print(f"At most α, at least β: {here.explain()}")

# %%
expect(..., 1e6 * here.latency_s, label="α of this machine", unit="µs", yours=guess)

# %% [markdown]
# If no line fits, the machine was busy and a small tensor took longer than a large one. Close other programs and repeat both
# cells. How good is the model at each size?

# %% tags=["drawing"]
times = list(zip(sizes, measured, strict=True))
figures.collective_times(
    ring_or_tree("all-reduce", 2**16, 2, here),
    "your machine: the model's line, and your measured times as dots",
    2**10,
    2**22,
    {"ring": times},
)

# %% [markdown]
# **Remember**
# - Small tensors show $\alpha$, large ones $\beta$; a fit needs both. If no line fits, measure again.

# %% [markdown]
# ### Deeper: why single sizes are off, and your link in a panel
#
# - *Additions.* Each rank adds $S/2$ bytes. At 4 MiB and some 5 GB/s this takes 0.4 ms. The model has no term for it, so the fit puts it into $\beta$.
# - *Caches.* Up to about 1 MiB the copies stay in the processor's cache; larger ones go through memory. $\beta$ is not one number, and the fit takes a mean.
# - *Other programs.* When one of them wakes up, it adds 0.1 ms or more. That is why we take the fastest of 40 calls.
#
# On a GPU cluster the first two hardly matter. There, cables shared with other jobs take their place.
#
# Here is a panel with your own link. From which size on do you get 90 % of your machine's bandwidth? When you open this page again later,
# measure the link first: *Run → Run All Above Selected Cell*, then run this cell.

# %%
from course_lib.chapters.ch06_collectives import panels

panels.collectives(link=here, ranks=2, size_kib=1024)

# %% [markdown]
# From nine times $n\alpha\beta$ on, where the bytes take nine times as long as the steps.

# %% [markdown]
# ## The answer
#
# Eight H100 need at least 52.5 ms to pass 13.5 GB round a ring: each sends 1.75 times as much, one way, at 450 GB/s. Healthy links
# carry 370 GB/s of data, which makes 64 ms. A time below 52.5 ms shows that switches did the adding.

# %% tags=["exercise"]
from itertools import zip_longest

from course_lib import check, hint, solution
from course_lib.theory.inputs import hardware
from course_lib.theory.network import collectives

# %% [markdown] tags=["exercise"]
# ### 6.1 Calculate: one call or a thousand?
#
# 16 GPUs, one in each node, all-reduce 1 GB ($10^9$ bytes) of gradients by a ring over InfiniBand HDR: $\alpha$ = 9.6 µs, $\beta$ = 25 GB/s one way.
# How many seconds does it take as one tensor? How many as 1,000 tensors of 1 MB, one after the other? A colleague wants to speed up the second program and has three offers:
# `"twice the bandwidth"`, `"half the latency"`, or `"100 tensors of 10 MB"`. Which one helps most?

# %% [raw] tags=["hints"]
# importance 4, difficulty 2
# Two halves, each with one step less than there are GPUs. How much travels in a step?
# 2(n-1) steps and 2(n-1)/n · S bytes; then steps · α + bytes / β.
# Which of the two terms dominates for 1 MB? Compute the time with each offer.

# %% tags=["exercise"]
one, thousand, best = ..., ..., ...
### BEGIN SOLUTION
steps, share = 2 * 15, 2 * 15 / 16
one = steps * 9.6e-6 + share * 1e9 / 25e9
thousand = 1000 * (steps * 9.6e-6 + share * 1e6 / 25e9)
offers = {
    "twice the bandwidth": 1000 * (steps * 9.6e-6 + share * 1e6 / 50e9),
    "half the latency": 1000 * (steps * 4.8e-6 + share * 1e6 / 25e9),
    "100 tensors of 10 MB": 100 * (steps * 9.6e-6 + share * 1e7 / 25e9),
}
best = min(offers, key=offers.get)
### END SOLUTION
check("6.1", [one, thousand, best])

# %% [markdown] tags=["exercise"]
# ### 6.2 Calculate: α and β from two times
#
# A ring all-reduce on 8 ranks takes 140 µs for 8 bytes and 35.14 ms for 1 GB ($10^9$ bytes). Give $\alpha$ in seconds and $\beta$ in bytes per second. (For the 8 bytes, neglect the second term.)
# How many seconds will an all-gather of 1 MB take on 64 such ranks?

# %% [raw] tags=["hints"]
# importance 3, difficulty 3
# How many steps does a ring all-reduce on 8 ranks have?
# Subtract the latency from the second time; each rank sends 1.75 GB.
# An all-gather is half of an all-reduce: how many steps, and which part of the result does a rank send?

# %% tags=["exercise"]
alpha, beta, all_gather = ..., ..., ...
### BEGIN SOLUTION
alpha = 140e-6 / 14
beta = 1.75e9 / (35.14e-3 - 140e-6)
all_gather = 63 * alpha + 63 / 64 * 1e6 / beta  # 97 % of it is latency
### END SOLUTION
check("6.2", [alpha, beta, all_gather])

# %% [markdown] tags=["exercise"]
# ### 6.3 Implement: all-reduce from its halves
#
# `rows[rank]` is the list of numbers that a rank holds. `reduce_scatter(rows)` returns the shard of each rank, `all_gather(shards)` the whole list for each rank. Like
# PyTorch's own, `reduce_scatter` refuses rows whose length is not a multiple of the number of ranks. Your all-reduce must accept *any* length.

# %% [raw] tags=["hints"]
# importance 3, difficulty 3
# First make the length a multiple of the ranks, with numbers that do not change a sum.
# Append -length % ranks zeros, and cut them off at the end.


# %% tags=["exercise"]
def reduce_scatter(rows: list[list[float]]) -> list[list[float]]:
    """Part i of the sum for rank i."""
    ranks, length = len(rows), len(rows[0])
    if length % ranks:
        raise ValueError(f"{length} numbers do not divide by {ranks} ranks")
    total = [sum(column) for column in zip(*rows, strict=True)]
    size = length // ranks
    return [total[rank * size : (rank + 1) * size] for rank in range(ranks)]


def all_gather(shards: list[list[float]]) -> list[list[float]]:
    """All shards, one behind the other, for each rank."""
    whole = [number for shard in shards for number in shard]
    return [list(whole) for _ in shards]


def all_reduce(
    rows: list[list[float]], reduce_scatter=reduce_scatter, all_gather=all_gather
) -> list[list[float]]:
    """The sum of all rows, for each rank."""
    ### BEGIN SOLUTION
    ranks, length = len(rows), len(rows[0])
    padding = [0.0] * (-length % ranks)
    whole = all_gather(reduce_scatter([row + padding for row in rows]))
    return [row[:length] for row in whole]
    ### END SOLUTION


check("6.3", all_reduce)

# %% [markdown] tags=["exercise"]
# ### 6.6 Debug: sum, average, broadcast
#
# (published mistake, note 004) The note describes all-reduce as "sum, average and broadcast": all ranks send their tensors to rank 0, and rank 0 sends the result to all.
#
# 1. Compare this method with a ring, for tensors so large that latency does not matter. How many times as long as the ring does it take on 8 ranks, and on 1024?
# 2. Now the word "average". Each of 16 ranks computes the gradient of the mean loss over its own samples and calls `dist.all_reduce(gradient)`, with no other argument. It then updates by SGD with a
#    learning rate of 0.01. A second program averages the gradients properly. Which learning rate must the *second* program use to get the same weights as the first?

# %% [raw] tags=["hints"]
# importance 3, difficulty 3
# How many tensors must rank 0 receive, one after the other, and how many must it send?
# In the ring each rank sends 2(n-1)/n tensors, all ranks at the same time.
# What is the default of `op` in dist.all_reduce?

# %% tags=["exercise"]
on_8, on_1024, learning_rate = ..., ..., ...
### BEGIN SOLUTION
on_8, on_1024 = (2 * (n - 1) / (2 * (n - 1) / n) for n in (8, 1024))  # n times
learning_rate = 16 * 0.01  # what arrives is the sum, 16 times the average
### END SOLUTION
check("6.6", [on_8, on_1024, learning_rate])

# %% [markdown] tags=["exercise"]
# ### 6.11 Build: a ring of messages
#
# Write the two halves of a ring all-reduce yourself, from messages. This rank has the number `peers.rank` of `peers.ranks`. `peers.swap(out, to, into, source)` sends the tensor `out` to rank
# `to` and fills `into` with the tensor that rank `source` sends. Numbers beyond the last rank start again at 0. The parts are those of `tensor.tensor_split(peers.ranks)`: the first ones are a row longer if the
# rows do not divide evenly, and some are empty if there are fewer rows than ranks. In a ring each rank sends to one neighbour only and receives from the other, all ranks in the same direction. Either direction is right.
#
# The check runs your functions on 2, 3 and 4 real ranks, and on a group of them, with tensors of several dtypes: first the reduce-scatter, then parts of unequal length, then the all-gather. If they pass, they are kept as `mine/ring.py`, and chapter 7 runs on them.

# %% [raw] tags=["hints"]
# importance 5, difficulty 3
# Part i must end on rank i, so it starts on rank i+1. Which part does rank r send in the first step?
# reduce-scatter, step k = 1 … n-1: rank r sends part r-k and receives part r-k-1 (mod n).
# all-gather, step k = 0 … n-2: rank r sends part r-k, which it has, and receives r-k-1.
# `tensor_split` gives views: data received into a view land in the whole tensor.

# %% tags=["exercise"]
import torch
from torch import Tensor

from course_lib.scratch.collectives import Peers

### BEGIN GIVEN


def ring_reduce_scatter(whole: Tensor, peers: Peers) -> Tensor:
    """This rank's part of the sum over ranks, (n·s, …) -> (s, …), in n-1 steps.

    `whole` stays as it is.
    """
    ...


def ring_all_gather(shard: Tensor, peers: Peers, rows: int | None = None) -> Tensor:
    """The parts of all ranks, concatenated: (s, …) -> (n·s, …), in n-1 steps.

    `rows` is the length of the result, if the parts differ; default n·s. `shard` stays as it is.
    """
    ...


### END GIVEN
### BEGIN SOLUTION
from course_lib import show_source
from course_lib.scratch.collectives import ring_all_gather, ring_reduce_scatter

### END SOLUTION

check("6.11", [ring_reduce_scatter, ring_all_gather])
