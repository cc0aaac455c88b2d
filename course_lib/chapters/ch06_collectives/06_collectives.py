# %% [markdown]
# # 6 Collectives and the α–β model
#
# A model of 7 billion parameters has 13.5 GB of gradients in bf16. Eight H100 in one server must add them up after
# every step. NVLink moves 900 GB/s, says the data sheet, and a colleague divides: 15 ms. A stopwatch shows 64 ms
# when the GPUs pass the data round a ring, and 49 ms when NVIDIA's library chooses the way itself. Is a cable broken?
# And what can be faster than the ring?
#
# You should be able to answer before anybody starts a stopwatch. By the end of this chapter you can
#
# - say what each of the seven usual operations does, and run it on real processes,
# - build an all-reduce from messages, and derive how many bytes each rank has to send,
# - predict the time of any of them from two numbers of a link, $\alpha$ and $\beta$, and measure the two on your machine,
# - read a data sheet, a benchmark and a list of backends without being off by a factor of two,
# - say which algorithm and which protocol NVIDIA's library will choose, and why,
# - find out why processes hang, each waiting for another.
#
# Time: three to four hours, half of them for the exercises. You need chapter 5.

# %%
import torch
import torch.distributed as dist

from course_lib import (
    demos,
    expect,
    launch,
    measure,
    predict,
    scratch,
    show_source,
    style,
)
from course_lib.chapters.ch06_collectives import figures
from course_lib.clinic.nccl_table import nccl_table
from course_lib.clinic.recorded import output
from course_lib.measure.times import collective_seconds
from course_lib.theory import collectives, fitting, hardware, models, ring_or_tree

launch.warm_up()
torch.set_num_threads(1)

# %% [markdown]
# **Predict.** How many milliseconds do the eight GPUs need at least, if all data go from GPU to GPU round a ring?
# Section 6.3 computes it.

# %%
least = predict("6.ms", "Milliseconds at least?", yours=None, unit="ms")

# %% [markdown]
# ## 6.1 Seven operations
#
# A **collective** (集合通信) is an operation that all ranks of a group call together. Each rank gives a tensor, and
# each gets something back. Take three ranks that hold the rows 1 2 3, 10 20 30 and 100 200 300. Some operations use only the first number of each row.
#
# Here they are, each before and after. A colour marks the rank that the numbers come from, and a bar of three colours for a sum. Which of them add? And
# after which do all ranks hold the same numbers?

# %%
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
# Reduce, reduce-scatter and all-reduce add. After a broadcast, an all-gather and an all-reduce all ranks hold the same. What each is for:
#
# - **broadcast** (广播): rank 0 tells all. In chapter 7 all ranks start with the same weights.
# - **reduce** (规约): rank 0 gets the sum of all, such as a loss that it prints.
# - **all-gather** (全收集): everybody gets everything. Chapters 8 and 9 bring spread weights together.
# - **reduce-scatter** (规约散播): rank 0 gets the first number of the sum, rank 1 the second. Chapters 8 and 9 do it with gradients.
# - all-reduce: everybody gets the sum, of gradients in chapter 7 and of partial sums in chapter 10.
# - **all-to-all** (全交换): number $i$ of each row goes to rank $i$. Chapter 12 sends tokens to experts this way.
# - **send/recv** (点对点通信): a message from stage to stage in chapter 11. It is not a collective: two ranks take part, and the others do not notice. All the others can be built
#   from it, and section 6.2 builds four of them.
#
# Let us run them. First the operations with one special rank. They write into the tensor they are given:


# %%
def row():
    """This rank's numbers: 1 2 3, or 10 20 30, or 100 200 300."""
    return torch.tensor([1, 2, 3]) * 10 ** dist.get_rank()


def from_and_to_rank_0():
    """What rank 0 tells all, and what all add up on rank 0."""
    told, added = row()[:1], row()[:1]
    dist.broadcast(told, src=0)
    dist.reduce(added, dst=0)
    return told.tolist(), added.tolist()


results = launch.run(from_and_to_rank_0, ranks=3)
assert [told for told, _ in results] == [[1], [1], [1]]
assert results[0][1] == [111]  # the other ranks' `added` means nothing

# %% [markdown]
# Then the four in which all ranks are alike. `scratch.wire` calls PyTorch's functions and returns a new tensor:


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
# Read the last result as a table: rows have become columns. An all-to-all is a transposition. If each rank now adds up what it
# received, it has 111, 222 or 333: an all-to-all and a local sum are a reduce-scatter. Such identities are worth
# knowing. The most important one:
#
# $$\text{all-reduce} = \text{reduce-scatter, then all-gather.}$$
#
# And a message:


# %%
def passed_on():
    """Rank 0 sends its first number to rank 1."""
    box = row()[:1]
    if dist.get_rank() == 0:
        dist.send(box, dst=1)
    elif dist.get_rank() == 1:
        dist.recv(box, src=0)
    return box.item()


assert launch.run(passed_on, ranks=3) == [1, 1, 100]

# %% [markdown]
# **Remember**
# - All ranks of the group call a collective, in the same order, with the same sizes.
# - All-reduce = reduce-scatter + all-gather. All-to-all = transposition.
# - The result is where the name says: "all-" means on every rank. (After all-to-all each rank has a different one.)

# %% [markdown]
# ## 6.2 The ring
#
# Note 004 describes all-reduce as "sum, average, broadcast": everybody sends to rank 0, which adds, divides, and sends the
# result back. The result is right, except that nothing is divided unless you ask for it. But rank 0 would receive
# 7 × 13.5 GB and send 7 × 13.5 GB, while the other links are idle most of the time. At 450 GB/s that is
# 210 ms each way, 420 ms together.
#
# Now let everybody work. Put the ranks on a **ring** (环): each sends only to the next one and receives only from the one
# before. Cut the tensor into as many parts as there are ranks. With our three rows, each number is a part. Part $i$ sets out
# at rank $i + 1$, and each rank on the way adds its own number. Walk through it. After which step is the first part complete, and why is it then still not over?

# %%
from course_lib.chapters.ch06_collectives import steppers

steppers.ring(ranks=3)

# %% [markdown]
# After $n - 1 = 2$ steps each part is complete, each on another rank: that was the reduce-scatter. Then each rank passes on its finished part, and after that the part
# that it has just received, until everybody has everything. That is the all-gather, in 2 more steps. In every step every rank sends one part and receives one.
#
# **Predict.** Now four ranks, and a tensor of a million fp32 numbers, 4 MB. How many messages does each rank send, and how many
# bytes?

# %%
size = 4_000_000
messages = predict("6.messages", "Messages a rank?", yours=None)
volume = predict("6.bytes", "Bytes a rank?", yours=None, unit="B")

# %% [markdown]
# Count for $n$ ranks and a tensor of $S$ bytes. There are $2(n-1)$ steps. In each, every rank sends one part of $S/n$ bytes. So each rank sends
#
# $$2\,(n-1) \cdot \frac{S}{n} = 2\,\frac{n-1}{n}\,S.$$
#
# For 2 ranks that is $S$, for 8 ranks $1.75\,S$, for 1000 ranks $1.998\,S$. **More ranks hardly cost more bytes.** This is why
# data parallelism scales at all.
#
# Can it be done with fewer? Look at one number of the tensor. Its $n$ summands lie on $n$ ranks. To bring
# them into one sum takes at least $n - 1$ messages, since each message can join two partial sums at most. To tell the sum to the
# $n - 1$ other ranks takes $n - 1$ more. That makes $2(n-1)$ for each number, and $2(n-1)/n$ for each rank on average. The ring sends just that (Patarasuk and
# Yuan 2009, doi:10.1016/j.jpdc.2008.09.002).
#
# The proof has a gap, and hardware uses it: it takes for granted that only *ranks* add. With **in-network reduction** (网内规约) the
# switch (交换机) between them adds as well. NVIDIA calls this SHARP. The NVLink switches of an H100 server can do it (in the settings of NCCL, NVIDIA's library, it is called *NVLS*). Each GPU is
# responsible for an eighth of the numbers. It asks the switch for their sum; the switch reads the eighth from all eight GPUs, adds, and delivers one sum. The GPU sends the sum
# back once, and the switch copies it to all. So $S$ leaves each GPU in the first half and $S/n$ in the second,
# $(n+1)/n \cdot S = 1.125\,S$ together (nccl-tests, issue 212). Until section 6.4 everything goes from rank to rank.
#
# Four ways for eight ranks (section 6.4 is about the tree). Green are those that send the most:

# %%
from course_lib.theory.network.all_reduce import all_reduce_ways

ways = all_reduce_ways(ranks=8)
assert [way.most for way in ways.values()] == [7, 3, 1.75, 1.125]
figures.who_sends(ways, "× S")

# %% [markdown]
# ### In code
#
# The ring needs one kind of message: send to one rank and receive from another *at the same time*.

# %%
show_source(scratch.collectives.Peers.swap)

# %%
show_source(scratch.collectives._add_around)

# %% [markdown]
# `parts` are views of one tensor, so `into += arrived` changes that tensor. The numbers of the parts are those that you
# walked through: in step 1, rank 0 of three sends part $(0 - 1) \bmod 3 = 2$. The second half has no addition:

# %%
show_source(scratch.collectives._copy_around)

# %%
show_source(
    scratch.collectives.ring_all_reduce, scratch.collectives.ring_reduce_scatter
)

# %% [markdown]
# The library's version is one line: `dist.all_reduce(tensor)`.
#
# **Measure.** Four ranks and 4 MB, as you predicted them. `measure.wire.log_wire` writes down every message that a rank sends:


# %%
def counted(operation, numbers):
    """Messages and bytes that this rank sends; whether the sum is the library's."""
    mine = torch.arange(numbers) % 100 * (dist.get_rank() + 1.0)
    with measure.wire.log_wire() as log:
        ours = operation(mine, scratch.collectives.Peers())
    return log.sent()["send-recv"], torch.equal(ours, scratch.wire.all_reduce(mine))


by_rank = launch.run(counted, scratch.collectives.ring_all_reduce, size // 4, ranks=4)
[(sent_messages, sent_bytes), equal] = by_rank[0]
assert all(one == by_rank[0] for one in by_rank) and equal
expect(2 * (4 - 1), sent_messages, label="messages of a rank", yours=messages)
expect(2 * 3 / 4 * size, sent_bytes, label="bytes of a rank", unit="B", yours=volume)

# %% [markdown]
# **Explain.** No gap, and the same on every rank: bytes are counted, not timed. (TCP adds its headers
# below the level at which we count.) The result equals the library's in every bit, because sums of small whole numbers are exact in any order.
#
# The other operations send, in each of $n - 1$ steps, $1/n$ of the whole tensor:

# %%
operations = {  # and how many numbers each rank gives
    "reduce-scatter": (scratch.collectives.ring_reduce_scatter, 1200),
    "all-to-all": (scratch.collectives.all_to_all, 1200),
    "all-gather": (scratch.collectives.ring_all_gather, 300),  # the result has 1200
}


# %%
def sent_by(operation, numbers):
    """Messages and bytes that this rank sends for one call."""
    with measure.wire.log_wire() as log:
        operation(torch.ones(numbers), scratch.collectives.Peers())
    return log.sent()["send-recv"]


sent_of_4800 = {"all-reduce": sent_bytes * 4800 / size}  # measured above
for name, (operation, numbers) in operations.items():
    sent = launch.run(sent_by, operation, numbers, ranks=4)
    assert sent == [(3, collectives.sent_bytes(name, 4800, 4))] * 4
    sent_of_4800[name] = sent[0][1]
figures.bars(
    sent_of_4800, "{:,.0f} B".format, "A tensor of 4800 B: sent by each of 4 ranks"
)

# %% [markdown]
# What is "the tensor"? This course counts as NVIDIA's benchmark nccl-tests does: always the *whole* one. For all-gather that is the result, for
# reduce-scatter the input.
#
# **Remember**
# - A ring all-reduce sends $2(n-1)/n \cdot S$ bytes from each rank, in $2(n-1)$ steps. Ranks alone cannot manage with fewer bytes; switches that add can.
# - Its halves, reduce-scatter and all-gather, send $(n-1)/n \cdot S$ in $n-1$ steps.
# - On a ring all links work all the time.

# %% [markdown]
# ## 6.3 Two numbers: α and β
#
# How long does a message take? Two things happen. It has to get going: a program starts a transfer, a chip wakes up, the first byte
# travels. On NVLink, NCCL allows 3.4 µs for this in each step of a ring of large tensors (`src/graph/tuning.cc`, from 2020 to release 2.30). For a network it allowed 9.6 µs until release 2.17, and has allowed 14 since 2.18 (2023); the course uses 9.6. Then bytes
# flow, 450 GB a second.

# %%
from course_lib.figures.paper import style

nvlink = hardware.accelerator("H100-SXM").inside
shares = {}
for name, message in {"1 kB": 1e3, "1.53 MB": 1.53e6, "1 GB": 1e9}.items():
    parts = {"going": nvlink.latency_s, "flowing": message / nvlink.bytes_per_s}
    took = sum(parts.values())
    row_name = f"{name}: {1e6 * took:,.1f} µs"
    shares[row_name] = {part: 100 * each / took for part, each in parts.items()}
figures.stacked_bars(
    shares,
    "What the time of one message is spent on, NVLink4",
    "{:.0f} %".format,
    colours={"going": style.IDLE, "flowing": style.MESSAGES},
)

# %% [markdown]
# The first number is the **latency** (延迟) $\alpha$, in seconds per message. The second is the **bandwidth** (带宽) $\beta$, in bytes per second, *one way*. A small message is
# all latency, a large one all bandwidth. For a collective with several steps, one after the other:
#
# $$T = \text{steps} \cdot \alpha + \frac{\text{bytes that a rank sends}}{\beta}.$$
#
# (Hockney 1994 for a message; Thakur, Rabenseifner and Gropp 2005, doi:10.1177/1094342005051521, for collectives. Some authors write $\beta$ for the seconds per byte: look at the unit.)
# For the ring all-reduce:
#
# $$T_\text{ring} = 2(n-1)\,\alpha + 2\,\frac{n-1}{n}\,\frac{S}{\beta}.$$
#
# The question of the beginning: $n = 8$, $S = 13.48$ GB. Latency $14 \cdot 3.4 = 47.6$ µs. Bytes $1.75 \cdot 13.48 = 23.6$ GB, at
# 450 GB/s 52.4 ms. So 52.5 ms is the least for a ring.

# %%
gradients = 2 * models.MODELS["llama2-7b"].parameters().total  # bytes in bf16
result = ring_or_tree("all-reduce", gradients, 8, nvlink)
ring_ms = 1000 * result.ring_s
expect(52.5, ring_ms, within=2e-3, label="round a ring", unit="ms", yours=least)

# %% [markdown]
# The colleague's 15 ms lack two factors. 900 GB/s is both directions added, so one way is half. And each GPU sends 1.75 times the tensor, not once.
#
# And the stopwatch's 64 ms? 450 GB/s is what the wires carry: 18 links of 25 GB/s. NVLink's own protocol takes about a sixth of it. NCCL expects 20.6 GB/s of data from each link
# (`SM90_NVLINK_BW` in `src/graph/topo.h`), some 370 together. That is what a healthy server shows when only the ring is allowed (a maintainer in issue 212 of github.com/NVIDIA/nccl-tests;
# a user measured 365 to 370 on 2 to 8 GPUs in issue 1455 of NVIDIA/nccl). Step by step from the guess to the stopwatch:

# %%
from dataclasses import replace

carries = replace(nvlink, bytes_per_s=370e9)
healthy_s = collectives.seconds("all-reduce", gradients, 8, carries)
assert round(1000 * healthy_s) == 64
times = {
    "once, at 900 GB/s": gradients / 900e9,
    "once, at 450 GB/s": gradients / nvlink.bytes_per_s,
    "round a ring": result.ring_s,
    "370 GB/s of data": healthy_s,
    "stopwatch, NCCL's choice": 0.049,
}
figures.bars(times, lambda time_s: f"{1000 * time_s:.3g} ms", "13.5 GB on eight H100")

# %% [markdown]
# No cable is broken. The 49 ms are below the least that a ring can take, so they were not a ring. Section 6.6 explains them.
#
# Where do latency and bandwidth weigh the same? Set the two terms equal and solve for $S$: at $n\,\alpha\,\beta$, for any $n$. For these eight GPUs
# that is 12.2 MB. The gradient of one norm's 4096 weights has 8 kB, less than a thousandth of that. Send it alone, and you pay for latency only. This is why chapter 7 collects gradients in buckets.

# %%
assert abs(result.half_bytes / (8 * nvlink.latency_s * nvlink.bytes_per_s) - 1) < 1e-9

# %% [markdown]
# The model is simple on purpose. It ignores other traffic on the cable, the time for the additions themselves, and second paths. It is
# good to some 10 or 20 % for large tensors on a quiet network, with a $\beta$ that was measured; a data sheet's is a fifth too high. Section 6.5 shows how far it is off on your machine.
# Nor is $\alpha$ one number: NCCL has three ways of announcing data, each with its own latency (section 6.4).
#
# **Remember**
# - $T = \text{steps} \cdot \alpha + \text{bytes}/\beta$. Small tensors pay for steps, large ones for bytes.
# - $\beta$ counts one way; $S$ is the whole tensor.
# - A ring all-reduce spends half of its time on latency at $S = n\alpha\beta$.

# %% [markdown]
# ## 6.4 Ring or tree?
#
# 1024 ranks and one number, say the loss. The ring takes 2046 steps for it. There is a way with 20: a **tree** (树). Trees are used *between* servers, so in this section each rank is a GPU in a server of its own, with an NDR port: $\alpha$ = 9.6 µs and
# $\beta$ = 50 GB/s. Inside an NVLink server NCCL does something else, which comes at the end of the section.
#
# Eight ranks. Level 1: ranks 1, 3, 5, 7 send to 0, 2, 4, 6, which add. Level 2: 2 and 6 send to 0 and 4. Level 3: 4 sends to 0. Three steps, and
# rank 0 has the sum, since each level halves the number of ranks that still have something to send. Then the same way back. In general
# $2 \lceil \log_2 n \rceil$ steps, where $\lceil\ \rceil$ rounds up.
#
# Walk through it, and watch the two strips of time below: every step of the tree carries the *whole* tensor, a step of the ring an eighth. Which one is faster with 64 kB? And with
# 1 GB? How many ranks work in the middle?

# %%
from course_lib.chapters.ch06_collectives import steppers

steppers.tree(ranks=8)

# %% [markdown]
# Answers. With 64 kB the tree is done after 65 µs, when the ring has made 6 of its 14 steps. With 1 GB the ring is more than three times as fast. In the middle only two ranks work.
#
# Exercise 6.12 builds this function. If you want to write it before you see ours, do that one now.

# %%
show_source(scratch.collectives.tree_all_reduce, scratch.collectives._up)

# %% [markdown]
# The price: at each level the *whole* tensor travels, and a level waits for the one before.
#
# $$T_\text{tree} = 2 \lceil \log_2 n \rceil \left(\alpha + \frac{S}{\beta}\right).$$
#
# **Predict.** On four ranks the tree has 4 levels, up and down, each with $S$ bytes. How many bytes does a rank send *on average*, in units of $S$?

# %%
average = predict("6.tree", "Average bytes a rank / S?", yours=None)

# %%
by_rank = launch.run(counted, scratch.collectives.tree_all_reduce, 1000, ranks=4)
total = sum(sent for (_, sent), _ in by_rank)
expect(1.5, total / 4 / 4000, label="average bytes a rank / S", yours=average)
each = collectives.sent_bytes("all-reduce", 4000, 4)
assert total / 4 == each

# %%
rows = {
    f"rank {rank}": {"tree": sent / 4000, "ring": each / 4000}
    for rank, ((_, sent), _) in enumerate(by_rank)
}
colours = {"tree": style.BLUE, "ring": style.MESSAGES}
figures.grouped_bars(rows, "Sent by each rank", "{:g} S".format, colours)

# %% [markdown]
# **Explain.** The tree sends no more bytes than the ring: three edges, each used twice, are $6\,S$ over four ranks. But it sends them one after
# the other, and most ranks wait most of the time. The ring's $1.5\,S$ a rank travel all at once.
#
# So between servers small tensors belong to the tree and large ones to the ring. The **crossover** (交叉点) is where both take the same time. For eight ranks the tree saves $14 - 6 = 8$
# steps and costs $6 - 1.75 = 4.25$ times $S/\beta$ more:
#
# $$8\,\alpha = 4.25\,\frac{S}{\beta} \quad\Rightarrow\quad S = \frac{8}{4.25}\,\alpha\,\beta = 0.90 \text{ MB over NDR.}$$

# %%
crossover = collectives.crossover_bytes(
    "all-reduce", 8, hardware.NDR, tree="tree", efficiency=1.0
)
assert round(crossover / 1e6, 2) == 0.90

# %% [markdown]
# NCCL does better than the plain tree. It cuts the tensor into pieces that follow each other, and lets two trees share the work, so that a rank that is a leaf in
# one is a parent in the other (Sanders, Speck and Träff 2009, doi:10.1016/j.parco.2009.09.001; NCCL since 2.4). Such a **double tree** needs few steps *and* sends
# $2(n-1)/n \cdot S$; NCCL's tuning assumes that it reaches 92 % of the ring's bandwidth. Move the sliders:
#
# 1. All-reduce, 8 ranks, NDR: how much faster is the tree at 64 KiB, and who wins at 64 MiB?
# 2. Take 1024 ranks. In which direction does the crossover move, with "tree" and with "double-tree"?
# 3. At which size does the ring reach 90 % of the link (last line of the table), on 8 ranks and on 1024?

# %%
from course_lib.chapters.ch06_collectives import panels

panels.collectives(ranks=8, size_kib=64, link="InfiniBand NDR 400 Gb/s")

# %%
small, large = (
    ring_or_tree("all-reduce", kib * 1024, 8, hardware.NDR) for kib in (64, 64 * 1024)
)
assert (small.faster, large.faster) == ("tree", "ring")
assert (round(1e6 * small.tree_s), round(1e6 * small.ring_s)) == (65, 137)

# %% [markdown]
# Answers. (1) 65 against 137 µs; the ring. (2) Upward: the ring's number of steps grows linearly with the ranks, the tree's only logarithmically. With the double tree it moves much further:

# %%
curves = {
    kind: [
        (n, collectives.crossover_bytes("all-reduce", n, hardware.NDR, tree=kind) / 1e6)
        for n in (8, 16, 32, 64, 128, 256, 512, 1024)
    ]
    for kind in ("tree", "double-tree")
}
figures.lines(
    curves, "ranks", "MB", "Below the curve the tree is faster", doubling=(True, True)
)

# %% [markdown]
# (3) At nine times $n\alpha\beta$, where the bytes take nine times as long as the steps: 35 MB for 8 ranks, so 64 MiB on the slider, and 4.4 GB for 1024, just off the scale. "NCCL is slow on many GPUs" often means no more than this.
#
# ### What NCCL chooses
#
# NCCL chooses anew for every call. Its **algorithm** says who adds. For an all-reduce:
#
# | `NCCL_ALGO` | who adds | where NCCL uses it |
# |---|---|---|
# | Ring | the GPUs, in $2(n-1)$ steps | everywhere, and for every operation |
# | Tree | the GPUs, in a chain inside each server and a double tree between servers | small tensors on several servers |
# | NVLS | the NVLink switches of one server | several H100 or H200 of one server (in one report, five or more) |
# | NVLSTree | the switches inside each server, a double tree between servers | large tensors on several servers |
#
# (There are more, for other networks and other operations.) Its **protocol** says how a receiver learns that data have arrived:
#
# | `NCCL_PROTO` | how data are announced | share of data in what is sent | a ring's step on NVLink |
# |---|---|---|---|
# | LL, low latency | a flag of 4 bytes beside every 4 bytes | 1/2 | 0.6 µs |
# | LL128 | a flag of 8 bytes in every 128 bytes | 120/128 | 1.9 µs |
# | Simple | one signal after a large piece, when all of it has certainly been written | all | 3.4 µs |
#
# (Sources: `src/graph/tuning.cc` of NCCL 2.30.7; issues 281 and 919 of NVIDIA/nccl, by a maintainer; the report of five GPUs: Bekman, *Machine Learning Engineering*, network, section SHARP, for one kind of server and one release. `NCCL_NVLS_ENABLE=0` switches NVLS off.)
#
# For each pair of algorithm and protocol NCCL computes latency plus size over bandwidth, as we do, and takes the fastest. On eight H100, LL on a ring
# takes $6.6 + 14 \cdot 0.6 = 15$ µs before any byte counts, and NVLS takes 25. Then 141 GB/s flow for LL, of which each GPU must send $1.75\,S$: 81 GB of tensor a second. For NVLS it is 272.
#
# **Predict.** Which is the largest tensor that NCCL still sends round the ring, in KiB, among powers of two?

# %%
largest = predict("6.nccl", "Largest on the ring?", yours=None, unit="KiB")

# %%
from course_lib.theory.network.all_reduce import nccl_choice
from course_lib.theory.network.all_reduce import nccl_ways

ways_of_nccl = {way.name: way for way in nccl_ways()}
kib_sizes = [2**power for power in range(5, 19)]
curves = {
    name: [(kib, 1e6 * ways_of_nccl[name].seconds(1024 * kib)) for kib in kib_sizes]
    for name in ("Ring, LL", "Ring, LL128", "Ring, Simple", "NVLS, Simple")
}
figures.lines(
    curves,
    "KiB",
    "µs",
    "An all-reduce on eight H100, as NCCL expects it",
    doubling=(True, True),
)

# %%
logged = 1024  # KiB: Bekman, network, section SHARP, on eight H200
on_the_ring = [kib for kib in kib_sizes if nccl_choice(1024 * kib).algorithm == "Ring"]
expect(max(on_the_ring), logged, label="largest on the ring", unit="KiB", yours=largest)
chosen = {nccl_choice(1024 * kib).name for kib in kib_sizes}
assert chosen == {"Ring, LL", "NVLS, Simple"}

# %% [markdown]
# **Explain.** The two lowest lines cross at 1.14 MB, which is 10 µs over the difference of 1/81 and 1/272 seconds per GB. NCCL's log on eight H200, whose NVLink is the same, says just that: Ring with LL up to 1 MiB, NVLS with
# Simple from 2 MiB on. A tree never wins here, since inside a server it is a chain of 14 steps as well. Without such switches the protocols of the ring would follow each other: LL up to 3.6 MB, LL128 up to 36 MB, then Simple.


# %%
def crossing_mb(one, other):
    """The size at which two ways take the same time."""
    a, b = ways_of_nccl[one], ways_of_nccl[other]
    slower = 1 / a.bytes_per_s - 1 / b.bytes_per_s
    return (b.latency_s - a.latency_s) / slower / 1e6


assert round(crossing_mb("Ring, LL", "NVLS, Simple"), 2) == 1.14
assert round(crossing_mb("Ring, LL", "Ring, LL128"), 1) == 3.6
assert round(crossing_mb("Ring, LL128", "Ring, Simple")) == 36

# %% [markdown]
# Between servers the trees come into their own, since a ring would need a step over the network for each server. On 64 servers of eight H200, NCCL logged Tree with LL128 at 16 MiB and NVLSTree with Simple
# at 32 MiB (issue 1752 of NVIDIA/nccl).
#
# **Remember**
# - Tree: $2\lceil\log_2 n\rceil$ steps with the whole tensor each. Ring: $2(n-1)$ steps with $1/n$ each.
# - Between servers the tree is faster below the crossover and the ring above it; libraries choose for you.
# - NCCL estimates latency + size / bandwidth for each algorithm and protocol and takes the fastest. On eight H100: the ring with LL up to 1 MiB, then the switches.
# - Broadcast and reduce are half of a tree: $\lceil\log_2 n\rceil$ steps (exercise 6.4).

# %% [markdown]
# ## 6.5 Your machine's α and β
#
# On a laptop the "network" is memory that the operating system copies from process to process. It has an $\alpha$ and a $\beta$ like any other.
#
# **Predict.** What do you expect for $\alpha$, in microseconds? NVLink has 3.4, a fast network 10 to 14. Here Python starts every message, and the operating system must
# wake a sleeping process.

# %%
guess = predict("6.alpha", "α in µs?", yours=None)


# %%
from functools import partial

from course_lib.measure.times import collective_seconds


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
# Two unknowns, seven times. The fit looks for the $\alpha$ and $\beta$ with the smallest *relative* errors; otherwise the large times would drown the small ones, and
# only these know the latency.

# %%
try:
    mine = fitting.fit_alpha_beta("all-reduce", sizes, measured, ranks=2)
    print(mine.explain())
    here = hardware.Link("this machine", mine.bytes_per_s, mine.latency_s)
except ValueError as problem:
    print(f"No line fits these times: {problem}")
    here = fitting.bounding_link("all-reduce", sizes, measured, ranks=2)
    print(f"At most α, at least β: {here.explain()}")

# %% [markdown]
# If the cell says that no line fits, the machine was busy, and a small tensor took longer than a large one. Close what else is running and
# repeat the two cells. Meanwhile we go on with what your times do prove: $\alpha$ is at most the shortest time divided by its steps, and $\beta$ at least the best ratio of bytes to time.
#
# How good is the model? Compare it with each measured time:

# %%
expect(1e6 * here.latency_s, label="α of this machine", unit="µs", yours=guess)

# %%
times = list(zip(sizes, measured, strict=True))
figures.collective_times(
    ring_or_tree("all-reduce", 2**16, 2, here),
    "your machine: the model's lines, and your measured times as dots",
    2**10,
    2**22,
    {"ring": times},
)

# %% [markdown]
# **Explain.** On a quiet machine expect errors of 10 to 50 % on single lines, for these reasons:
#
# - *The additions.* The ring adds $S/2$ bytes on each rank. At some 5 GB/s that is 0.4 ms of the few ms at 4 MiB. The model books them under $\beta$.
# - *The cache.* Up to about 1 MiB the copies stay in the processor's cache, beyond they go through memory. $\beta$ is not one number; the fit takes a mean.
# - *Other programs.* Whatever wakes up meanwhile adds to a time, often 0.1 ms or more. Hence the fastest of 40 calls. A line that is off by
#   several ms belongs to a rank that had to wait for its turn on a busy processor.
#
# On a GPU cluster the first two hardly matter, and shared cables come in their place.
#
# ### A link that obeys
#
# Let us test the formula without such noise. `SlowPeers` puts each rank behind a slow link of its own: it *sleeps* for $\alpha + \text{bytes}/\beta$ before it sends.

# %%
show_source(scratch.collectives.SlowPeers._exchange)

# %% [markdown]
# **Predict.** 400 kB, links of 2 MB/s, no latency, 4 ranks. How many seconds does the ring take, and how many the tree?

# %%
slow_ring = predict("6.slow_ring", "Ring, s?", yours=None)
slow_tree = predict("6.slow_tree", "Tree, s?", yours=None)


# %%
def behind_slow_links(operation, numbers, bytes_per_s):
    """Seconds of one all-reduce, every rank behind a slow link."""
    slow, x = scratch.collectives.SlowPeers(bytes_per_s), torch.ones(numbers)
    return collective_seconds(lambda: operation(x, slow), 2, x.device)


job = (100_000, 2e6)  # numbers, bytes per second
ring_s = launch.run(
    behind_slow_links, scratch.collectives.ring_all_reduce, *job, ranks=4
)[0]
tree_s = launch.run(
    behind_slow_links, scratch.collectives.tree_all_reduce, *job, ranks=4
)[0]
timed = {"within": None, "unit": "s"}  # a time: its gap is shown, not judged
expect(1.5 * 0.4 / 2, ring_s, label="ring, 4 ranks", yours=slow_ring, **timed)
expect(4 * 0.4 / 2, tree_s, label="tree, 4 ranks", yours=slow_tree, **timed)
assert ring_s >= 1.5 * 0.4 / 2  # nobody wakes up early

# %% [markdown]
# And the factor itself: on two ranks it is 1 instead of 1.5, so the same tensor takes two thirds of the time.

# %%
two_s = launch.run(
    behind_slow_links, scratch.collectives.ring_all_reduce, *job, ranks=2
)[0]
expect(1.5, ring_s / two_s, within=None, label="4 ranks / 2 ranks")

# %% [markdown]
# **Explain.** A few percent too long, and never too short. Added to the sleep are six times the real $\alpha$ of your machine, some 0.1 ms each, and the copies.
# Against 300 ms that is little: when the link is slow enough, the formula is all there is.
#
# Here is the panel on your own link. Which size would you send at least, to get 90 % of your machine's bandwidth? (It is nine times $n\alpha\beta$ again.)
# When you open this page again later, measure the link first: *Run → Run All Above Selected Cell*, then this cell.

# %%
from course_lib.chapters.ch06_collectives import panels

panels.collectives(link=here, ranks=2, size_kib=1024)

# %% [markdown]
# **Remember**
# - $\alpha$ comes from small tensors, $\beta$ from large ones; a fit needs both.
# - A fit that fails says: these times follow no such line. Measure again; until then you have two bounds.

# %% [markdown]
# ## 6.6 Reading data sheets and benchmarks
#
# The bars show what the data sheets say, and the numbers behind them what one GPU can send and, at the same time, receive:

# %%
a100, b200 = hardware.accelerator("A100-SXM-80GB"), hardware.accelerator("B200-SXM")
sheets = {
    "NVLink5 (B200): 1800 GB/s": b200.inside,
    "NVLink4 (H100): 900 GB/s": nvlink,
    "NVLink3 (A100): 600 GB/s": a100.inside,
    "PCIe 4.0 x16: 32 or 64 GB/s": hardware.PCIE4,
    "InfiniBand NDR: 400 Gb/s": hardware.NDR,
    "InfiniBand HDR: 200 Gb/s": hardware.HDR,
}
rows = {
    row: {"one way": wire.bytes_per_s, "other way": wire.bytes_per_s}
    for row, wire in sheets.items()
}
figures.stacked_bars(
    rows,
    "Data sheets, and both ways of a link",
    totals={
        row: "{0:g} + {0:g} GB/s".format(wire.bytes_per_s / 1e9)
        for row, wire in sheets.items()
    },
    told=lambda rate: f"{rate / 1e9:g} GB/s",
    colours={"one way": style.MESSAGES, "other way": style.IDLE},
)

# %% [markdown]
# Source: Bekman, *Machine Learning Engineering*, network chapter. Three traps are in this picture.
#
# **Both ways added.** NVLink's 900 GB/s are 450 out and 450 in at the same time. A GPU that must *send* 23.6 GB has 450 GB/s for it. Note 004 divides the
# H100's compute by 900, which is both ways, and the 4090's by 32, which is one way: two conventions in one table. This course always counts one way.
#
# **Bits.** Networks are sold in Gb/s, gigabits. Divide by 8.
#
# **The slowest piece.** Between a GPU and another node lie a PCIe slot *and* a network card (网卡). PCIe 4.0 x16 has 16 lanes of 16 Gb/s, of which 128 of 130 bits are data:

# %%
pcie = 16 * 16e9 * 128 / 130 / 8
hdr = 200e9 / 8
assert round(pcie / 1e9, 1) == hardware.PCIE4.bytes_per_s / 1e9 == 31.5
assert hdr == hardware.HDR.bytes_per_s < pcie

# %% [markdown]
# Note 004 puts eight ConnectX-6 cards of 200 Gb/s beside eight PCIe slots and calls them a match. A card carries 25 GB/s, 78 % of the slot's nominal 32. So between nodes 25 counts, and a time that was computed
# with 32 is too short by 22 %.
#
# How fast *must* a link be? As fast as a GPU uses up what arrives: its FLOP/s over the FLOP that it does for each byte. Note 004 asks for 859 GB/s, one way, so that 64 GPUs can share a layer of LLaMA-2 70B:
# 330 TFLOP/s over 384 FLOP per byte. Section 10.7 takes the 384 apart. Does PCIe or NVLink carry that? Count the need and the link in the same way, either one way or both ways added:

# %%
needed = 330e12 / collectives.matrix_intensity(8192, 64)
assert round(needed / 1e9) == 859 and round(2 * needed / 1e12, 1) == 1.7
assert 31.5e9 < 450e9 < needed and 64e9 < 900e9 < 2 * needed

# %% [markdown]
# Neither of the two. One way, 859 GB/s are needed, and PCIe has 31.5 and NVLink 450. Both ways added, 1.7 TB/s are needed, and they have 64 and 900. The note compares both ways with both ways, so its conclusion is right.
#
# ### Two bandwidths in one benchmark
#
# nccl-tests, NVIDIA's benchmark, prints two bandwidths for each time:
#
# - **Algorithm bandwidth** (算法带宽), algbw: size over time. For 13.48 GB in the ring's 64 ms it is 211 GB/s. It answers "how long will mine take?"
# - **Bus bandwidth** (总线带宽), busbw: algbw times what each rank of a ring sends for one byte, here $2 \cdot 7/8$: 369 GB/s. It answers "is the link all right?", because it can be compared with the link's 450 for any
#   operation and any number of ranks (nccl-tests, `doc/PERFORMANCE.md`). 369 are 82 %: a healthy ring.
#
# **Predict.** On a server of eight H100, `all_reduce_perf` needs 15.87 ms for 4 GiB ([issue 290](https://github.com/NVIDIA/nccl-tests/issues/290) of nccl-tests). Which busbw does it print?

# %%
printed = predict("6.busbw", "busbw in GB/s?", yours=None, unit="GB/s")

# %%
from course_lib.clinic.recorded import output

one_server = output("all_reduce_perf_nvls").text
print("\n".join(line[:84] for line in one_server.splitlines()[2:]))

# %%
from course_lib.clinic.nccl_table import nccl_table

table = nccl_table(one_server)
last = table.rows[-1]
by_hand = collectives.bus_bandwidth("all-reduce", 2**32, 8, last.time_s) / 1e9
busbw = last.bus_bytes_per_s
expect(by_hand, busbw / 1e9, 1e-3, "GB/s", "busbw of 4 GiB", yours=printed)

# %% [markdown]
# Read the last row from left to right: 4 GiB are so many numbers of 4 bytes; redop says that they are added, root −1 that no rank is special, as one is in a broadcast; algbw is size / time, and busbw 1.75 times as
# much. `#wrong` counts the numbers that are not the sum: anything but 0 is an alarm. Down the column busbw still grows at 4 GiB: read the largest sizes.
# (Out-of-place means that the result goes to a tensor of its own. The full table has four more columns for a result that replaces the input, as in PyTorch's `all_reduce`.)
#
# **Explain.** 474 GB/s are 105 % of the link's 450, and no ring can do that. It is NVLS, as section 6.4 expects for such sizes: the switches add. nccl-tests cannot see which way NCCL took. It multiplies by 1.75 in any case, although
# each GPU sent only $1.125\,S$. A maintainer of NCCL expects up to 275 GB/s of algbw from such a server (issue 212). At that rate our 13.48 GB take 49 ms: that was the stopwatch.

# %%
on_the_wire = ways["a switch adds"].most * last.algorithm_bytes_per_s
assert last.algorithm_bytes_per_s < on_the_wire < carries.bytes_per_s
assert carries.bytes_per_s < nvlink.bytes_per_s < busbw
assert round(1000 * gradients / 275e9) == 49

# %% [markdown]
# Five numbers, and all of them are called "the bandwidth" of an H100's NVLink:

# %%
called = {
    "data sheet": {"one way": nvlink.bytes_per_s, "other way": nvlink.bytes_per_s},
    "wires, one way": {"one way": nvlink.bytes_per_s},
    "data on them": {"one way": carries.bytes_per_s},
    "busbw, default": {"computed": busbw},
    "sent in that run": {"one way": on_the_wire},
}
figures.stacked_bars(
    called,
    "Bandwidths of one link",
    lambda rate: f"{rate / 1e9:,.0f} GB/s",
    colours={
        "one way": style.MESSAGES,
        "other way": style.IDLE,
        "computed": style.WARNING,
    },
)

# %% [markdown]
# So neither column is a bandwidth of the wire. With in-network reduction the busbw answers another question: which link would a *ring* need to be as fast? (That is how the maintainer explains it, 5 July 2024.)
# Ask for the algorithm before you judge a number. At 4 GiB, 429 GB/s, 95 % of the link, would sound like a good busbw. It is too much for a ring, and too little for NVLS.
#
# ### Two servers and their rails
#
# A server like this has a network card for each GPU. Card $i$ of every server is connected to the same switch, so that there are eight parallel networks, called **rails** (轨道). With 400 Gb/s a
# card should carry 46 to 48 GB/s for NCCL (a maintainer in issue 290), so eight rails carry $8 \cdot 48 = 384$ GB/s out of a server.
#
# The author of that issue has two such servers. Together they show a busbw of 155 GB/s at 4 GiB, and with `NCCL_ALGO=RING`, as the maintainer recommends for such a test, 90 GB/s:

# %%
runs = {
    "one server": table,
    "two servers": nccl_table(output("all_reduce_perf_two_nodes").text),
    "two, RING": nccl_table(output("all_reduce_perf_two_nodes_ring").text),
}
curves = {
    name: [(row.size_bytes / 2**20, row.bus_bytes_per_s / 1e9) for row in run.rows]
    for name, run in runs.items()
}
figures.lines(
    curves,
    "size of the all-reduce, MiB",
    "busbw, GB/s",
    "What the benchmark prints, by size",
    doubling=(True, False),
    level={"NVLink, one way": 450, "eight rails": 384},
)

# %% [markdown]
# **Predict.** On two servers NCCL's default is a tree (issue 196). Half of the tensor is summed up in the one
# server, half in the other. How many GB/s really go over the network, one way, in the default run with its busbw of 155?

# %%
wire = predict("6.rails", "Over the network by default?", yours=None, unit="GB/s")

# %%
default, ring_only = (runs[name].rows[-1] for name in ("two servers", "two, RING"))
expect(
    default.size_bytes / default.time_s / 1e9,
    default.algorithm_bytes_per_s / 1e9,
    within=1e-3,
    label="over the network by default",
    unit="GB/s",
    yours=wire,
)

# %%
between = {
    "eight rails": 8 * 48e9,
    "RING: busbw": ring_only.bus_bytes_per_s,
    "default: algbw": default.algorithm_bytes_per_s,
    "one rail": 48e9,
}
figures.bars(between, lambda rate: f"{rate / 1e9:.0f} GB/s", "Out of one server")

# %% [markdown]
# **Explain.** Each edge of a ring carries $1.875\,S$ on 16 ranks, those between the servers too, so there busbw is the rate of the network: 90 GB/s. With the tree each server sends the other one half
# of the tensor to be added, and the sum of the other half: $S$ in all. So there the rate of the network is the *algbw*, 83 GB/s. The two runs agree, although one prints 155 and the other 90: the network carries what *two* rails
# should. NVLink is fine, the network is not. The thread does not say why; chapter 16 shows how to search.
#
# Settings for such experiments. Take them out afterwards: left in scripts they may cost speed or end in crashes and hangs, as NCCL's documentation warns.
#
# | setting | what it does | a number |
# |---|---|---|
# | `NCCL_ALGO=RING` | allows only the ring; `^NVLS` all but NVLS | eight H100: 365 to 370 GB/s of busbw in place of 480 (issue 1455) |
# | `NCCL_PROTO=^LL128` | the same for protocols; never *force* LL128 | where 128 bytes may arrive in two pieces, sums are silently wrong (issue 281) |
# | `NCCL_DEBUG=INFO` and `NCCL_DEBUG_SUBSYS=TUNING` | print NCCL's choice for every call | `AllReduce: 2097152 Bytes -> Algo NVLS proto SIMPLE` (Bekman) |
#
# **Remember**
# - One way, in bytes, and of the slowest piece on the path.
# - On a ring, busbw can be compared with the link; a healthy NVLink shows about 80 %. With in-network reduction it cannot, nor on two servers with a tree.
# - algbw falls with the number of ranks although nothing is wrong.

# %% [markdown]
# ## 6.7 Who carries it out: backends
#
# PyTorch leaves the messages to a **backend** (通信后端). Gloo and NCCL are libraries; MPI, the message passing interface, is an older standard with several libraries:
#
# | | Gloo | NCCL | MPI |
# |---|---|---|---|
# | tensors live on | CPU; most operations take GPU tensors | GPU | CPU; GPU if the MPI library can |
# | travels by | TCP | NVLink, PCIe, InfiniBand, TCP | what the MPI library knows |
# | comes with PyTorch | yes | yes, in the CUDA builds (on AMD: RCCL under the same name) | no, build PyTorch from source |
# | operations | all of this chapter; its reduce-scatter costs a whole all-reduce | all | all but reduce-scatter |
# | take it for | CPUs, tests, this course | GPUs, always | computing centres that ask for it |
#
# (Source: PyTorch's documentation of `torch.distributed`, section Backends.) Which ones does your
# PyTorch have?

# %%
found = {
    "gloo": dist.is_gloo_available(),
    "nccl": dist.is_nccl_available(),
    "mpi": dist.is_mpi_available(),
}
print(found)
assert found["gloo"]

# %% [markdown]
# **`torch.distributed` and RPC.** Collectives need everybody: all ranks run the same program and meet at the same call. That fits
# training. Sometimes one rank should do something *for* another, such as looking up rows of a large table while the others train. For this there is
# **RPC** (远程过程调用), remote procedure call: "run this function over there and give me the result", with a backend of its own, TensorPipe. The other side
# does not have to call anything. Chapter 14 uses both together.
#
# ### Everybody sends first
#
# What if `swap` of section 6.2 were two lines, first send, then receive?


# %%
def send_then_receive():
    """Each rank sends one number to the next, then receives one."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    box = torch.empty(1)
    dist.send(torch.ones(1), dst=(rank + 1) % ranks)
    dist.recv(box, src=(rank - 1) % ranks)
    return box.item()


try:
    arrived = launch.run(send_then_receive, ranks=2, timeout_s=3, stream=False)
except launch.RankFailed as failure:
    arrived = None
    print(str(failure).splitlines()[0])
assert arrived is None

# %% [markdown]
# A **deadlock** (死锁). `dist.send` returns when the other side receives; the other side is in `dist.send` as well. (This is Gloo. With NCCL the call returns, and the GPU
# waits instead.) Nothing is computed wrongly and nothing crashes, until the timeout of the process group ends it: after 10 minutes with NCCL and 30 with Gloo, unless you set another. Three cures:
#
# - start both and wait afterwards, as `swap` does: `dist.batch_isend_irecv([...])`,
# - let one of each pair of neighbours receive first (exercise 6.5),
# - use a collective, which somebody has already thought through.
#
# The same happens when one rank calls an all-reduce that the others do not call, for example inside `if rank == 0:`. Chapter 16 reads the symptoms.
#
# **Remember**
# - GPU: NCCL. CPU: Gloo. MPI where the computing centre wants it.
# - Collectives: all ranks, the same call, the same order. RPC: one rank asks another.
# - A blocking send waits for its receiver. If all send first, all wait.

# %% [markdown]
# ## 6.8 Demo: counted on real ranks, timed on slow links
#
# The demo runs all five ring and tree operations from scratch beside the library's, compares every bit, and counts what is sent. First without timing:

# %%
exact = demos.run(
    "collectives", ranks=4, times=False, largest=16384, factor=16, stream=False
)
print(exact.report())

# %%
for row_of in exact.rows:
    assert row_of.equal and row_of.steps == row_of.predicted_steps
    assert sum(row_of.sent_bytes) == 4 * row_of.predicted_sent_bytes
pair = demos.run("collectives", ranks=2, times=False, largest=1024, stream=False)
assert [one.steps for one in pair.of("ring-all-reduce")] == [2]

# %% [markdown]
# Look at the line "uneven": 28 bytes are seven numbers, which four ranks cannot share evenly. The parts have 2, 2, 2 and 1 numbers, and so the ranks send different amounts. The sum is still $2(n-1)\,S$.
#
# Then behind links of 40 Mbit/s (5 MB/s) with a latency of 10 ms.
#
# **Predict.** Up to how many bytes is the tree faster than the ring on these four ranks? Section 6.4 did it for eight.

# %%
cross = predict("6.cross", "Crossover?", yours=None, unit="B")

# %% [markdown]
# On four ranks the tree saves $6 - 4 = 2$ steps and costs $4 - 1.5 = 2.5$ times $S/\beta$ more:

# %%
link = hardware.Link("40 Mbit/s, 10 ms", bytes_per_s=5e6, latency_s=0.01)
saved, extra = 2 * link.latency_s, 2.5 / link.bytes_per_s
crossing = ring_or_tree("all-reduce", 1, 4, link).crossover_bytes
expect(saved / extra, crossing, within=1e-9, label="as fast", unit="B", yours=cross)
assert round(crossing) == 40_000

# %% [markdown]
# The stopwatch has the last word:

# %%
slow = demos.run(
    "collectives",
    ranks=4,
    operations="ring-all-reduce,tree-all-reduce",
    largest=2**19,
    factor=8,
    repeats=2,
    link_mbit=40,
    link_latency_us=10_000,
    stream=False,
)
dots = {
    kind: [(one.size_bytes, one.seconds) for one in slow.of(f"{kind}-all-reduce")]
    for kind in ("ring", "tree")
}
at_64_kib = ring_or_tree("all-reduce", 2**16, 4, link)
figures.collective_times(at_64_kib, "", 2**10, 2**20, dots)

# %% [markdown]
# **Explain.** The winner changes between 8 and 512 KiB, around the predicted 40 kB. The dots lie on the lines or a little above: your machine's own $\alpha$ adds some 0.1 ms to
# each 10 ms, or a few ms if it is busy. Never below, since nobody wakes up early.
#
# Outside the notebook, with your machine's own times, and by PyTorch's own launcher:
#
# ```
# course demo collectives --ranks 4
# python -m torch.distributed.run --standalone --nproc-per-node 4 -m course_lib.demos collectives
# ```
#
# On Linux you can have a real network: `course demo collectives --two-nodes 200` builds two nodes inside your machine, each with its own network address and its own `torchrun`, and joins them by a
# cable that the kernel limits to 200 Mbit/s, or 25 MB/s. For large tensors the fit should find a $\beta$ of 20 to 25 MB/s; the rest goes into TCP's headers and the time between messages.

# %% [markdown]
# ## What to remember
#
# 1. All-reduce = reduce-scatter + all-gather.
# 2. A ring all-reduce sends $2(n-1)/n \cdot S$ from each rank, in $2(n-1)$ steps; ranks alone cannot manage with fewer bytes; switches that add can.
# 3. $T = \text{steps} \cdot \alpha + \text{bytes}/\beta$.
# 4. Between servers, small tensors go by a tree and large ones round a ring. Inside an NVLink server it is a ring with LL for small tensors and switches that add for large ones. The crossover grows with the number of ranks. NCCL computes the same formula and chooses.
# 5. Bandwidth: one way, in bytes, the slowest piece. busbw compares with the link on a ring only.
# 6. NCCL for GPUs, Gloo for CPUs.
# 7. Everybody in the same order; never all send first.

# %%
from course_lib import quiz

quiz("6")

# %% [raw] tags=["quiz"]
# Four ranks hold 1, 2, 3 and 4. After an all-reduce (sum), rank 2 holds
# [ ] 3
# [x] 10
# [ ] 2.5
# Why: The sum of all, on every rank. Nothing is divided unless you ask for it.
#
# From 8 to 1024 GPUs: the bytes that each GPU sends in a ring all-reduce grow by
# [ ] a factor of 128
# [ ] a factor of 10
# [x] 14 %
# Why: From 1.75 to 1.998 times the tensor. It is the number of steps that grows by 146.
#
# An all-reduce of 4 bytes on 512 GPUs takes too long. What helps?
# [ ] a link with more bandwidth
# [x] a tree in place of the ring
# [ ] bf16 in place of fp32
# Why: It is all latency: 18 steps in place of 1022.
#
# Eight H100 in one server, an all-reduce of 4 kB. What will NCCL choose?
# [x] the ring with LL
# [ ] NVLS, the switches
# [ ] the ring with Simple
# Why: Latency decides: 15 µs for LL, 25 for NVLS and 56 for Simple. Above 1 MiB it is NVLS.
#
# nccl-tests, all-gather on 8 GPUs: algbw 400 GB/s. Which bus bandwidth is that?
# [x] 350 GB/s
# [ ] 400 GB/s
# [ ] 700 GB/s
# Why: An all-gather sends (n-1)/n of the result: 7/8 of 400.
#
# `if rank == 0: dist.all_reduce(loss)` in a program on 4 ranks does what?
# [ ] sums the loss for rank 0
# [ ] raises an error at once
# [x] hangs until a timeout
# Why: A collective needs all ranks, so rank 0 waits until the process group's timeout: 10 minutes with NCCL, 30 with Gloo. To get a sum on rank 0, all of them call reduce.

# %% [markdown]
# **Now you:** open [the exercises](../exercises/06_collectives.ipynb).
#
# **Read on.** Hu et al. 2025, *Demystifying NCCL* (arXiv:2507.04786), on its protocols and algorithms. Thakur, Rabenseifner and Gropp 2005, *Optimization of Collective Communication Operations in MPICH*, sections 3 and 4 (doi:10.1177/1094342005051521). Patarasuk and Yuan 2009, *Bandwidth Optimal All-reduce
# Algorithms*, section 3. nccl-tests, `doc/PERFORMANCE.md`. Bekman, *Machine Learning Engineering*, network.

# %% tags=["exercise"]
from itertools import zip_longest

from course_lib import check, hint, solution
from course_lib.theory.inputs import hardware
from course_lib.theory.network import collectives

# %% [markdown] tags=["exercise"]
# ### 6.1 Calculate: sixteen nodes
#
# 16 GPUs, one in each node, all-reduce 1 GB ($10^9$ bytes) over InfiniBand HDR: $\alpha$ = 9.6 µs (NCCL's own number until release 2.17), 25 GB/s one way. Give for the ring the bytes that each GPU sends, the
# number of steps, and the seconds.

# %% [raw] tags=["hints"]
# Two halves, each of one step less than there are GPUs. How much travels in a step?
# 2(n-1)/n · S bytes, 2(n-1) steps; then steps · α + bytes / β.

# %% tags=["exercise"]
sent, steps, seconds = ..., ..., ...
### BEGIN SOLUTION
sent = 2 * 15 / 16 * 1e9
steps = 2 * 15
seconds = steps * 9.6e-6 + sent / 25e9
### END SOLUTION
check("6.1", [sent, steps, seconds])

# %% [markdown] tags=["exercise"]
# ### 6.2 Calculate: α and β from two times
#
# A ring all-reduce on 8 ranks takes 140 µs for 8 bytes and 35.14 ms for 1 GB ($10^9$ bytes). Give $\alpha$ in seconds and $\beta$ in bytes per second. (For 8 bytes, neglect the bytes.)
# How many seconds will an all-gather of 1 MB take on 64 such ranks?

# %% [raw] tags=["hints"]
# How many steps has a ring all-reduce on 8 ranks?
# Take the latency off the second time; each rank sends 1.75 GB.
# An all-gather is half of an all-reduce: how many steps, and which part of the result?

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
# `rows[rank]` is what a rank holds, a list of numbers; `reduce_scatter(rows)` returns the shard of each rank, `all_gather(shards)` the whole on each rank. Like
# PyTorch's own, the first refuses rows whose length is not a multiple of the number of ranks. Your all-reduce must take *any* length.

# %% [raw] tags=["hints"]
# First make the length a multiple of the ranks, with numbers that do not change a sum.
# -length % ranks zeros; cut them off in the end.


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
# ### 6.4 Implement: a broadcast in few steps
#
# Rank 0 has a tensor, and all ranks need it. In one step, a rank that has the tensor may send it to one other rank, and no rank takes part in two messages. Return the steps, each a list of pairs (from, to), with as few steps as
# possible: $\lceil \log_2 n \rceil$. `ranks` need not be a power of two.

# %% [raw] tags=["hints"]
# After one step two ranks have it, after two steps four.
# In a step, let rank r < have send to r + have, unless that is no rank.


# %% tags=["exercise"]
def broadcast_steps(ranks: int) -> list[list[tuple[int, int]]]:
    """Who sends to whom in each step, until all have what rank 0 has."""
    ### BEGIN SOLUTION
    steps, have = [], 1
    while have < ranks:
        pairs = [(rank, rank + have) for rank in range(have) if rank + have < ranks]
        steps.append(pairs)
        have *= 2
    return steps
    ### END SOLUTION


check("6.4", broadcast_steps)

# %% [markdown] tags=["exercise"]
# ### 6.5 Debug: everybody sends first
#
# This function says in which order a rank of a ring calls its blocking `send` (to the next rank) and `recv` (from the one before). It hangs. Fix it, for any number of ranks from 2 on, odd numbers included.

# %% [raw] tags=["hints"]
# Who could receive while rank 0 sends?
# Even and odd ranks do not do the same.


# %% tags=["exercise"]
def order(rank: int, ranks: int) -> list[str]:
    """The two calls of `rank` in their order."""
    ### BEGIN GIVEN
    return ["send", "recv"]
    ### END GIVEN
    ### BEGIN SOLUTION
    return ["recv", "send"] if rank % 2 else ["send", "recv"]
    ### END SOLUTION


check("6.5", order)

# %% [markdown] tags=["exercise"]
# ### 6.6 Debug: sum, average, broadcast
#
# (published mistake, note 004) The note describes all-reduce as "sum, average and broadcast": all send their tensor to rank 0, and rank 0 sends the result to all. If tensors are large and latency does not matter, how many times as
# long as a ring does this take on 8 ranks, and on 1024?
#
# Then the "average". Each of 16 ranks computes the gradient of its own mean loss, calls `dist.all_reduce(gradient)` with nothing else, and updates by SGD with a learning rate of 0.01. The author of the program believes that the gradients were averaged. To get the same weights
# with gradients that really are averaged, which learning rate would you have to take?

# %% [raw] tags=["hints"]
# How many tensors must rank 0 receive, one after the other, and how many send?
# The ring sends 2(n-1)/n tensors from each rank at the same time.
# What is the default of `op` in dist.all_reduce?

# %% tags=["exercise"]
on_8, on_1024, learning_rate = ..., ..., ...
### BEGIN SOLUTION
on_8, on_1024 = (2 * (n - 1) / (2 * (n - 1) / n) for n in (8, 1024))  # n times
learning_rate = 16 * 0.01  # what arrives is the sum, 16 times the average
### END SOLUTION
check("6.6", [on_8, on_1024, learning_rate])

# %% [markdown] tags=["exercise"]
# ### 6.7 Debug: four servers
#
# Four servers with eight H100 each (NVLink4, $\alpha$ = 3.4 µs, and 8.4 µs for each call with Simple), and a line of nccl-tests from each:
#
# | server | operation | size | time |
# |---|---|---|---|
# | A | all-reduce | 8 GB | 38.2 ms |
# | B | all-reduce | 8 GB | 29.2 ms |
# | C | all-gather | 8 GB | 38.2 ms |
# | D | all-reduce, `NCCL_ALGO=RING` and `NCCL_PROTO=Simple` | 64 kB | 57 µs |
#
# Say of each `"healthy ring"`; `"switches add"`; `"latency"`, if hardly anything else is in the time; or `"links missing"`, if you would send for a technician.

# %% [raw] tags=["hints"]
# Compare with the link what can be compared with it: algbw or busbw?
# The factor of busbw is another one for all-gather: what does a rank send in it?
# For D, count the steps of the ring first.

# %% tags=["exercise"]
verdict = {"A": ..., "B": ..., "C": ..., "D": ...}
### BEGIN SOLUTION
verdict = {
    "A": "healthy ring",  # busbw 1.75 · 8 / 0.0382 = 366 of 450 GB/s
    "B": "switches add",  # 479 GB/s: more than the link has
    "C": "links missing",  # an all-gather sends half as much: 183 GB/s
    "D": "latency",  # 8.4 + 14 · 3.4 µs are 56 of the 57
}
### END SOLUTION
check("6.7", verdict)

# %% [markdown] tags=["exercise"]
# ### 6.8 Predict: what would you buy?
#
# 64 GPUs, one in each node, ring all-reduce over HDR ($\alpha$ = 9.6 µs, 25 GB/s one way). There is money for one of three: cards with twice the `"bandwidth"`, switches with half the
# `"latency"`, or a library that uses a plain `"tree"` on the old network. Guess: which one is best for tensors of 16 kB, of 10 MB, of 1 GB? Then compute the seconds that an all-reduce takes with the best one.

# %% [raw] tags=["hints"]
# Which of the two terms is larger for 16 kB, and which for 1 GB?
# At 10 MB the latencies take 1.2 ms and the bytes 0.8 ms. The tree sends all in each step.

# %% tags=["exercise"]
best = [..., ..., ...]
seconds = [..., ..., ...]
### BEGIN SOLUTION
best, seconds = [], []
for size in (16e3, 10e6, 1e9):
    steps, sent = 2 * 63, 2 * 63 / 64 * size
    takes = {
        "bandwidth": steps * 9.6e-6 + sent / 50e9,
        "latency": steps * 4.8e-6 + sent / 25e9,
        "tree": 2 * 6 * (9.6e-6 + size / 25e9),
    }
    best.append(min(takes, key=takes.get))
    seconds.append(min(takes.values()))
### END SOLUTION
check("6.8", [best, seconds])

# %% [markdown] tags=["exercise"]
# ### 6.9 Implement: who does everybody wait for?
#
# A training hangs. From each rank you have the collectives that it has begun, in order, as texts like `"all-reduce 25 MB"`. (PyTorch's flight recorder keeps such lists.) Return the place, from 0 on, of the first
# call that is not the same on all ranks, and the ranks that do not do there what most ranks do. A rank whose list has ended does nothing. If all lists are equal, return None: then look at the cables.

# %% [raw] tags=["hints"]
# Lay the lists beside each other and go through the places, not through the ranks.
# itertools.zip_longest gives all ranks' calls at a place, None where a list has ended.


# %% tags=["exercise"]
def odd_ranks(begun: list[list[str]]) -> tuple[int, list[int]] | None:
    """Where the ranks first disagree, and which ones are to be looked at."""
    ### BEGIN SOLUTION
    for place, calls in enumerate(zip_longest(*begun)):
        usual = max(calls, key=calls.count)
        odd = [rank for rank, call in enumerate(calls) if call != usual]
        if odd:
            return place, odd
    return None
    ### END SOLUTION


check("6.9", odd_ranks)

# %% [markdown] tags=["exercise"]
# ### 6.10 Predict: where tree and ring cross
#
# 64 GPUs over HDR ($\alpha$ = 9.6 µs, 25 GB/s one way), a plain tree. Guess first: is the crossover nearer to 30 kB, 3 MB or 300 MB? Then solve $T_\text{ring} = T_\text{tree}$ and give it in bytes. And its size if the link were twice as fast, with the same latency?

# %% [raw] tags=["hints"]
# How many steps does the tree save, and how many times S/β does it cost more?
# The crossover is proportional to α · β.

# %% tags=["exercise"]
crossover, twice_as_fast = ..., ...
### BEGIN SOLUTION
saved_steps = 2 * 63 - 2 * 6
more_bytes = 2 * 6 - 2 * 63 / 64
crossover = saved_steps * 9.6e-6 * 25e9 / more_bytes
twice_as_fast = 2 * crossover
### END SOLUTION
check("6.10", [crossover, twice_as_fast])

# %% [markdown] tags=["exercise"]
# ### 6.11 Build: a ring of messages
#
# Write the two halves of a ring all-reduce yourself, from messages. This rank is number `peers.rank` of `peers.ranks`. `peers.swap(out, to, into, source)` sends the tensor `out` to rank
# `to` and fills `into` with what rank `source` sends (numbers beyond the last rank start again at 0). Parts are those of `tensor.tensor_split(peers.ranks)`: the first ones are a row longer where the ranks
# do not divide the rows, and some are empty where there are fewer rows than ranks. In a ring each rank sends to one neighbour only and receives from the other, all ranks the same way round; either way is right.
#
# The check runs your functions on 2, 3 and 4 real ranks, and on a group of them, with tensors of several dtypes: first the reduce-scatter, then parts of unequal length, then the all-gather. What passes is kept as `mine/ring.py`, and chapter 7 runs on it.

# %% [raw] tags=["hints"]
# Part i must end on rank i, so it starts its way on rank i+1. Which part does rank r send in the first step?
# reduce-scatter, step k = 1 … n-1: rank r sends part r-k and receives part r-k-1 (mod n).
# all-gather, step k = 0 … n-2: rank r sends part r-k, which it has, and receives r-k-1.
# `tensor_split` gives views: what is received into a view lands in the whole tensor.

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

# %% [markdown] tags=["exercise"]
# ### 6.12 Build: a tree of messages
#
# Write the tree of section 6.4 yourself. `peers.send(tensor, to)` and `peers.receive(tensor, source)` are one message each; the second fills its tensor with what comes. Half of the ranks send their numbers to a parent, half of the
# parents to a grandparent, until rank 0 has the sum; then the same way down. It must work for any number of ranks, not only for powers of two.
#
# The check runs it on 2 and 4 real ranks, then on 3 and 5, and counts: $2(n-1)$ messages, and no more than $2 \lceil \log_2 n \rceil$ that follow each other; on a group of ranks and with other dtypes it must work as well. What passes is kept as `mine/tree.py`, and
# `course demo collectives --parts mine` runs on it.

# %% [raw] tags=["hints"]
# Up: in each round half of the ranks that still take part hand over what they have.
# The distance between child and parent is 1 in the first round, then 2, 4, … below n.
# At distance d, rank r is a child if r % (2·d) is d; its parent is r - d.
# A parent without a child (r + d is not a rank) waits for nobody. Down: the distances from the largest to 1, and the child receives.

# %% tags=["exercise"]
import torch
from torch import Tensor

from course_lib.scratch.collectives import Peers

### BEGIN GIVEN


def tree_all_reduce(tensor: Tensor, peers: Peers) -> Tensor:
    """The sum over ranks, on every rank: up the tree to rank 0, and down again.

    `tensor` stays as it is, and so does what earlier calls have returned.
    """
    ...


### END GIVEN
### BEGIN SOLUTION
from course_lib.scratch.collectives import tree_all_reduce

### END SOLUTION

check("6.12", tree_all_reduce)
