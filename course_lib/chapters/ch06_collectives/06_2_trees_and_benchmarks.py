# %% [raw] tags=["sitting"]
# question: How can a benchmark show 474 GB/s on a link that carries 450?
# importance: 4
# difficulty: 3
# group: alone

# %% [markdown]
# # 6 Trees, several servers, and benchmarks
#
# On eight H100, NVIDIA's benchmark needs 15.87 ms for an all-reduce of 4 GiB and prints a bandwidth of 474 GB/s. The wires carry 450 one way.
# Is the benchmark wrong? And on 1024 GPUs a ring needs 2046 steps to sum up a single number, the loss. Is there a shorter way?
#
# After this sitting you can
#
# - choose between a ring and a tree, for one server and for several,
# - read a data sheet and a benchmark without being wrong by a factor of two,
# - explain why processes hang, each waiting for another.

# %%
import torch
import torch.distributed as dist

from course_lib import demos, expect, launch, measure, predict, scratch, show_source
from course_lib.chapters.ch06_collectives import figures
from course_lib.clinic.nccl_table import nccl_table
from course_lib.clinic.recorded import output
from course_lib.figures.paper import style
from course_lib.theory import Cluster, collectives, group_link, hardware, ring_or_tree

launch.warm_up()
torch.set_num_threads(1)

# %% [markdown]
# ## 6.4 Ring or tree?
#
# A **tree** (树) sums one number over 1024 ranks and returns the result in 20 steps. Trees are used *between* servers, so here each rank is alone in a server
# with one NDR port (400 Gb/s): $\alpha$ = 9.6 µs and $\beta$ = 50 GB/s.
#
# Take eight ranks. In step 1, ranks 1, 3, 5 and 7 send to 0, 2, 4 and 6, which add. In step 2, ranks 2 and 6 send to 0 and 4. In step 3, rank 4 sends to 0, which now has the sum.
# The sum returns the same way. Each step halves the number of senders, so there are
# $2 \lceil \log_2 n \rceil$ steps ($\lceil\ \rceil$ rounds up).
#
# Watch the two time lines at the bottom: a step of the tree carries the *whole* tensor, a step of the ring one eighth. Which one is faster for 64 kB, and which for 1 GB?

# %%
from course_lib.chapters.ch06_collectives import steppers

steppers.tree(ranks=8)

# %% [markdown]
# For 64 kB the tree is done after 65 µs, when the ring has made 6 of its 14 steps. For 1 GB the ring is more than three times as fast. Each level sends the *whole* tensor
# and waits for the one before:
#
# $$T_\text{tree} = 2 \lceil \log_2 n \rceil \left(\alpha + \frac{S}{\beta}\right).$$
#
# **Predict.** In the ring every rank of four sends $1.5\,S$. In the tree some ranks send more than others. How many bytes does a rank of four send *on average*, in units of $S$?

# %%
average = predict("6.tree", "Average bytes a rank / S?", yours=None)


# %%
def sent_by_this_rank(numbers):
    """Bytes that this rank sends in one tree all-reduce; the sum is checked."""
    mine = torch.arange(numbers) % 100 * (dist.get_rank() + 1.0)
    with measure.wire.log_wire() as log:
        ours = scratch.collectives.tree_all_reduce(mine, scratch.collectives.Peers())
    assert torch.equal(ours, scratch.wire.all_reduce(mine))
    return log.sent()["send-recv"].size_bytes


# %%
by_rank = launch.run(sent_by_this_rank, 1000, ranks=4)
expect(1.5, sum(by_rank) / 4 / 4000, label="average bytes a rank / S", yours=average)

# %% tags=["drawing"]
rows = {
    f"rank {rank}": {"tree": sent / 4000, "ring": 1.5}
    for rank, sent in enumerate(by_rank)
}
colours = {"tree": style.BLUE, "ring": style.MESSAGES}
figures.grouped_bars(rows, "Sent by each rank", "{:g} S".format, colours)

# %% [markdown]
# **Explain.** Both send the same bytes: the tree's three edges carry $S$ twice each, $6\,S$ in all. But the tree sends them one after
# the other, while most wait. The ring sends from all ranks at once.
#
# At the **crossover** (交叉点) both take the same time. For eight ranks the tree saves
# $14 - 6 = 8$ steps and costs $6 - 1.75 = 4.25$ times $S/\beta$ more:
#
# $$8\,\alpha = 4.25\,\frac{S}{\beta} \quad\Rightarrow\quad S = \frac{8}{4.25}\,\alpha\,\beta = 0.90 \text{ MB over NDR.}$$

# %%
crossover = collectives.crossover_bytes(
    "all-reduce", 8, hardware.NDR, tree="tree", efficiency=1.0
)
assert round(crossover / 1e6, 2) == 0.90

# %% [markdown]
# Move the sliders:
#
# 1. All-reduce, 8 ranks, NDR: how much faster is the tree at 64 KiB, and which is faster at 64 MiB?
# 2. With more ranks, up to 1024, in which direction does the crossover move?

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
# (1) The tree takes 65 µs, the ring 137; at 64 MiB the ring wins. (2) Upward: the ring's steps grow linearly with the ranks, the tree's only logarithmically.
# The ring reaches 90 % of the link only at nine times $n\alpha\beta$: 35 MB for 8 ranks, 4.4 GB for 1024. "NCCL is slow on many GPUs" often means no more than this.
#
# Between servers NCCL uses a better tree ([deeper](06_3)). *Inside* one NVLink server it uses none: on eight H200 it logs a ring up to 1 MiB, with a low-latency protocol called LL, and from 2 MiB on the switches, called NVLS
# (Bekman, *Machine Learning Engineering*, network, section SHARP).

# %% [markdown]
# ### Deeper: the course's own tree
#
# Try exercise 6.12 first: it asks for this function.

# %%
show_source(scratch.collectives.tree_all_reduce, scratch.collectives._up)

# %% [markdown]
# ### Several servers: sum inside, then between
#
# Two servers have eight GPUs each. Inside a server NVLink moves 450 GB/s, but each GPU's network card (网卡) only 50. So as few bytes as possible should cross the network:
#
# 1. reduce-scatter inside each server: GPU $i$ then has part $i$ of its server's sum, $S/8$,
# 2. all-reduce of part $i$ between the GPUs $i$ of all servers, over the network,
# 3. all-gather inside each server.
#
# Chapters 9 and 13 rely on this **hierarchical all-reduce**.
#
# **Predict.** Four ranks act as two servers with two GPUs each. How many bytes does each rank send *between* the servers, in units of $S$?

# %%
between = predict("6.between", "Bytes between servers / S?", yours=None)


# %%
def hierarchical(numbers):
    """What this rank calls, as (operation, bytes); the sum is checked."""
    rank, x = dist.get_rank(), torch.arange(numbers) * (dist.get_rank() + 1.0)
    server = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])][rank // 2]
    across = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])][rank % 2]
    with measure.wire.log_wire() as log:
        part = scratch.wire.reduce_scatter(x, server)
        part = scratch.wire.all_reduce(part, across)
        whole = scratch.wire.all_gather(part, server)
    assert torch.equal(whole, scratch.wire.all_reduce(x))
    return [(call.what, call.bytes) for call in log.calls]


# %%
calls = launch.run(hierarchical, 1000, ranks=4)[0]
assert [what for what, _ in calls] == ["reduce-scatter", "all-reduce", "all-gather"]
crossing = collectives.sent_bytes("all-reduce", calls[1][1], ranks=2)
expect(0.5, crossing / 4000, label="bytes between servers / S", yours=between)

# %% [markdown]
# **Explain.** Only part $i$, here $S/2$, crosses the network. In an all-reduce of two ranks each sends it once. With $g$ GPUs in each of $m$ servers each card sends $\frac{2(m-1)}{m} \cdot \frac{S}{g}$.
# Rings through all cards send about as much. But on 64 servers of eight GPUs they take 1022 steps, and the hierarchy $14 + 126 = 140$.
#
# A real network? Hugging Face measured all-reduces of 256 MB on 1 to 64 servers (*The Ultra-Scale Playbook*, section Pipeline Parallelism; it plots a
# "bandwidth", which fits the busbw of section 6.6). The ring formula is for H100 with eight ports of 50 GB/s a server:

# %%
nodes = (1, 2, 4, 8, 16, 32, 64)
on_the_cluster = (436.0, 361.7, 160.1, 99.6, 84.7, 64.9, 32.9)
chip = hardware.accelerator("H100-SXM")


def ring_busbw(servers, size=256e6):
    """GB/s that a ring over all cards of so many servers would show."""
    link = group_link(Cluster(chip, nodes=servers), "all-reduce", ranks=8 * servers)
    ring = ring_or_tree("all-reduce", size, 8 * servers, link)
    return ring.bus_bytes_per_s / 1e9


# %% tags=["drawing"]
figures.lines(
    {
        "ring formula": [(n, ring_busbw(n)) for n in nodes],
        "measured": list(zip(nodes, on_the_cluster, strict=True)),
    },
    "servers with eight GPUs",
    "GB/s",
    "All-reduce of 256 MB on more and more servers",
    doubling=(True, False),
)

# %%
shares = [got / ring_busbw(n) for n, got in zip(nodes, on_the_cluster, strict=True)]
assert all(0.95 < share < 1.05 for share in shares[:2])
assert all(0.3 < share < 0.5 for share in shares[2:])

# %% [markdown]
# Up to two servers the formula fits within 5 %. On one this is luck: 436 GB/s exceed a real ring's 370, so the switches probably added. From four on the cluster reaches 30 to 50 %. So measure *your* network, with as many servers as you will use.
#
# **Remember**
# - Tree: $2\lceil\log_2 n\rceil$ steps, each with the whole tensor. Ring: $2(n-1)$ steps, each with $1/n$ of it.
# - Between servers small tensors go by a tree, large ones round a ring. The crossover grows with the ranks.
# - Hierarchical: reduce-scatter inside, all-reduce between, all-gather inside.

# %% [markdown]
# ## 6.6 Reading data sheets and benchmarks
#
# The labels show what the data sheets say; the bars show what one GPU can send (one way) and receive (other way):

# %% tags=["drawing"]
nvlink = chip.inside
sheets = {
    "NVLink5 (B200): 1800 GB/s": hardware.accelerator("B200-SXM").inside,
    "NVLink4 (H100): 900 GB/s": nvlink,
    "NVLink3 (A100): 600 GB/s": hardware.accelerator("A100-SXM-80GB").inside,
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
    "Data sheets, and both directions of a link",
    totals={
        row: "{0:g} + {0:g} GB/s".format(wire.bytes_per_s / 1e9)
        for row, wire in sheets.items()
    },
    told=lambda rate: f"{rate / 1e9:g} GB/s",
    colours={"one way": style.MESSAGES, "other way": style.IDLE},
)

# %% [markdown]
# (Source: Bekman, *Machine Learning Engineering*, network.) There are three traps:
#
# - **Both directions added.** NVLink's 900 GB/s are 450 out and 450 in. This course counts one way.
# - **Bits.** Networks are sold in gigabits. Divide by 8: 400 Gb/s are 50 GB/s.
# - **The slowest piece.** Between a GPU and another server lie a PCIe slot *and* a network card. PCIe 4.0 x16 has 16 lanes of 16 Gb/s, of which 128 of 130 bits are data: 31.5 GB/s. A ConnectX-6 card of 200 Gb/s
#   carries 25, so 25 counts. (Note 004 says that slot and card match.)

# %%
assert round(16 * 16e9 * 128 / 130 / 8 / 1e9, 1) == 31.5
assert hardware.PCIE4.bytes_per_s == 31.5e9 > hardware.HDR.bytes_per_s == 200e9 / 8

# %% [markdown]
# ### Two bandwidths in one benchmark
#
# nccl-tests prints two bandwidths for each time:
#
# - **Algorithm bandwidth** (算法带宽), algbw: size over time. For 13.48 GB in 64 ms it is 211 GB/s. It answers "how long will mine take?"
# - **Bus bandwidth** (总线带宽), busbw: algbw times the bytes that a rank of a ring sends for each byte of the tensor, here $2 \cdot 7/8$: 369 GB/s. It answers "is the link healthy?", because it can be
#   compared with the link's 450 for any operation and any number of ranks (nccl-tests, `doc/PERFORMANCE.md`). 369 is 82 %: a healthy ring.
#
# This is its table from a server of eight H100 ([issue 290](https://github.com/NVIDIA/nccl-tests/issues/290) of nccl-tests):

# %%
one_server = output("all_reduce_perf_nvls").text
print("\n".join(line[:84] for line in one_server.splitlines()[2:]))

# %% [markdown]
# `count` is the number of 4-byte elements; `redop` is the reduction, a sum; `root` is −1 because an all-reduce has no root rank. `#wrong` counts wrong results: anything but 0 is an alarm.
#
# **Predict.** The last row has a busbw of 474 GB/s. Suppose that the switches added, so that each GPU sent $1.125\,S$. How many GB/s did each GPU really send?

# %%
really = predict("6.really", "Really sent, GB/s?", yours=None, unit="GB/s")

# %%
last = nccl_table(one_server).rows[-1]
busbw = collectives.bus_bandwidth("all-reduce", 2**32, 8, last.time_s)
sent = 1.125 * last.algorithm_bytes_per_s
assert abs(busbw / last.bus_bytes_per_s - 1) < 1e-3
expect(busbw / 1.75 * 1.125 / 1e9, sent / 1e9, 1e-3, "GB/s", "sent", yours=really)

# %% [markdown]
# **Explain.** 474 GB/s are 105 % of the link's 450. No ring can do that, so the switches added. nccl-tests cannot see which algorithm NCCL used, and always multiplies by 1.75. Each GPU sent $1.125/1.75$ of
# 473.6: 304 GB/s.
#
# A maintainer of NCCL expects up to 275 GB/s of algbw from such a server (issue 212). At that rate the 13.48 GB of the first sitting take 49 ms, as the stopwatch showed.

# %% tags=["drawing"]
gradients, carries = 13.48e9, 370e9
assert last.algorithm_bytes_per_s < sent < carries < nvlink.bytes_per_s < busbw
assert round(1000 * gradients / 275e9) == 49
called = {
    "data sheet": {"one way": nvlink.bytes_per_s, "other way": nvlink.bytes_per_s},
    "wires, one way": {"one way": nvlink.bytes_per_s},
    "data on them": {"one way": carries},
    "busbw, default": {"computed": busbw},
    "sent in that run": {"one way": sent},
}
figures.stacked_bars(
    called,
    'Five numbers, all called "the bandwidth" of an NVLink',
    lambda rate: f"{rate / 1e9:,.0f} GB/s",
    colours={
        "one way": style.MESSAGES,
        "other way": style.IDLE,
        "computed": style.WARNING,
    },
)

# %% [markdown]
# With in-network reduction, busbw answers a different question: how fast would a link have to be for a *ring* to match this time? So ask for the algorithm before you judge a number. Suppose you read 429 GB/s, 95 % of the
# link. That is too much for a ring, and too little for switches that add.
#
# **Remember**
# - Count one way, in bytes, on the slowest piece of the path.
# - On a ring, busbw can be compared with the link; a healthy NVLink shows about 80 %. With switches that add it cannot.
# - algbw falls as ranks are added, although nothing is wrong.

# %% [markdown]
# ## 6.7 Who carries it out: backends
#
# PyTorch leaves the messages to a **backend** (通信后端): NCCL for GPUs, Gloo for CPUs, or the older MPI, where a computing centre requires it.

# %% [markdown]
# ### Deeper: the backends in a table
#
# | | Gloo | NCCL | MPI |
# |---|---|---|---|
# | tensors live on | CPU; most operations take GPU tensors | GPU | CPU; GPU if the MPI library can |
# | travels by | TCP | NVLink, PCIe, InfiniBand, TCP | what the MPI library supports |
# | comes with PyTorch | yes | yes, in the CUDA builds (on AMD: RCCL under the same name) | no, build PyTorch from source |
# | use it for | CPUs, tests, this course | GPUs, always | computing centres that require it |
#
# (Source: PyTorch's documentation of `torch.distributed`, section Backends.)

# %%
found = {
    "gloo": dist.is_gloo_available(),
    "nccl": dist.is_nccl_available(),
    "mpi": dist.is_mpi_available(),
}
print(found)
assert found["gloo"]

# %% [markdown]
# ### Everybody sends first
#
# In a ring all ranks send and receive at once. What happens if each rank first sends and then receives?


# %%
def send_then_receive():
    """Each rank sends one number to the next, then receives one."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    box = torch.empty(1)
    dist.send(torch.ones(1), dst=(rank + 1) % ranks)
    dist.recv(box, src=(rank - 1) % ranks)
    return box.item()


# %%
try:
    arrived = launch.run(send_then_receive, ranks=2, timeout_s=3, stream=False)
except launch.RankFailed as failure:
    arrived = None
    print(str(failure).splitlines()[0])
assert arrived is None

# %% [markdown]
# Each rank waits for the other: a **deadlock** (死锁). `dist.send` returns when the other side receives, and the other side is in `dist.send` too. (This is Gloo. With NCCL the call returns, and the GPU
# waits.) Nothing crashes before the group's timeout, by default 10 minutes with NCCL and 30 with Gloo. Three cures:
#
# - start both and wait afterwards: `dist.batch_isend_irecv([...])`,
# - let every second rank receive first (exercise 6.5),
# - use a collective.
#
# An all-reduce inside `if rank == 0:` hangs in the same way. Chapter 16 reads the symptoms.
#
# **Remember**
# - A blocking send waits for its receiver. All ranks call collectives in the same order.

# %% [markdown]
# ## 6.8 Demo: counted on real ranks
#
# The demo runs ring and tree operations beside the library's, compares every bit, and counts the bytes.
#
# **Predict.** One tensor has seven numbers, which four ranks cannot share evenly. How many numbers do all four together send in a ring all-reduce?

# %%
uneven = predict("6.uneven", "Numbers sent by all?", yours=None)

# %%
exact = demos.run(
    "collectives", ranks=4, times=False, largest=16384, factor=16, stream=False
)
expect(2 * 3 * 7, sum(exact.uneven.sent_bytes) / 4, label="sent", yours=uneven)

# %%
print(exact.report())
for row_of in exact.rows:
    assert row_of.equal and row_of.steps == row_of.predicted_steps
    assert sum(row_of.sent_bytes) == 4 * row_of.predicted_sent_bytes

# %% [markdown]
# **Explain.** The parts have 2, 2, 2 and 1 numbers, so the ranks send different amounts. Together they still send $2(n-1)\,S$: 42 numbers. In a terminal, with your own times:
#
# ```
# course demo collectives --ranks 4
# python -m torch.distributed.run --standalone --nproc-per-node 4 \
#     -m course_lib.demos collectives
# ```

# %% [markdown]
# ## The answer
#
# The benchmark did not measure a wire. It multiplied size over time by a ring's 1.75. But the switches added, so each GPU sent 304 GB/s, less than the link's 450.
# And a single number on 1024 ranks goes by a tree, in 20 steps, not 2046.

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
# Why: From 1.75 to 1.998 times the tensor. The number of steps grows by a factor of 146.
#
# An all-reduce of 4 bytes on 512 GPUs takes too long. What helps?
# [ ] a link with more bandwidth
# [x] a tree in place of the ring
# [ ] bf16 in place of fp32
# Why: It is all latency: 18 steps instead of 1022.
#
# Eight H100 in one server, an all-reduce of 4 kB. What will NCCL choose?
# [x] the ring with LL
# [ ] NVLS, the switches
# [ ] the ring with Simple, for large tensors
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
# **Read on.** Hu et al. 2025, *Demystifying NCCL* (arXiv:2507.04786). Thakur, Rabenseifner and Gropp 2005, sections 3 and 4 (doi:10.1177/1094342005051521). nccl-tests, `doc/PERFORMANCE.md`.

# %% [markdown] tags=["exercise"]
# ### 6.4 Implement: a broadcast in few steps
#
# Rank 0 has a tensor, and all ranks need it. In one step, a rank that has the tensor may send it to one other rank, and no rank takes part in two messages. Return the steps, each a list of pairs (from, to), with as few steps as
# possible: $\lceil \log_2 n \rceil$. `ranks` need not be a power of two.

# %% [raw] tags=["hints"]
# importance 2, difficulty 3
# After one step two ranks have it, after two steps four.
# In each step, let every rank r below `have` send to r + have, unless there is no such rank.


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
# This function says in which order a rank of a ring calls its blocking `send` (to the next rank) and `recv` (from the one before). The program hangs. Fix it for any number of ranks from 2 on, odd numbers included.

# %% [raw] tags=["hints"]
# importance 3, difficulty 2
# Which rank could receive while rank 0 sends?
# Even and odd ranks need not do the same.


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
# ### 6.7 Debug: four servers
#
# There are four servers with eight H100 each (NVLink4, $\alpha$ = 3.4 µs, and 8.4 µs for each call with NCCL's protocol Simple). Each has printed one line of nccl-tests:
#
# | server | operation | size | time |
# |---|---|---|---|
# | A | all-reduce | 8 GB | 38.2 ms |
# | B | all-reduce | 8 GB | 29.2 ms |
# | C | all-gather | 8 GB | 38.2 ms |
# | D | all-reduce, `NCCL_ALGO=RING` and `NCCL_PROTO=Simple` | 64 kB | 57 µs |
#
# Judge each server: `"healthy ring"`; `"switches add"`; `"latency"`, if the time contains hardly anything else; or `"links missing"`, if you would send for a technician.

# %% [raw] tags=["hints"]
# importance 5, difficulty 3, group
# Which number can be compared with the link: algbw or busbw?
# The factor of busbw is different for C: what does a rank send in an all-gather?
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
# 64 GPUs, one in each node, use a ring all-reduce over HDR ($\alpha$ = 9.6 µs, 25 GB/s one way). There is money for one of three improvements: cards with twice the `"bandwidth"`, switches with half the
# `"latency"`, or a library that uses a plain `"tree"` on the old network. Guess first which one is best for tensors of 16 kB, of 10 MB and of 1 GB. Then compute the seconds of an all-reduce with the best one.

# %% [raw] tags=["hints"]
# importance 3, difficulty 3, group
# Which of the two terms is larger for 16 kB, and which for 1 GB?
# At 10 MB the latencies take 1.2 ms and the bytes 0.8 ms. The tree sends the whole tensor in each step.

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
# ### 6.9 Implement: which rank does everybody wait for?
#
# A training hangs. For each rank you have the list of collectives that it has begun, in order, as texts such as `"all-reduce 25 MB"`. (PyTorch's flight recorder keeps such lists.) Find the first place, counted from 0, at which
# the calls are not the same on all ranks. Return it with the list of ranks that differ from the majority there. A rank whose list has ended calls nothing. If all lists are equal, return None: then look at the cables.

# %% [raw] tags=["hints"]
# importance 3, difficulty 3
# Lay the lists side by side and go through the places, not through the ranks.
# itertools.zip_longest gives all ranks' calls at a place, None where a list has ended.


# %% tags=["exercise"]
def odd_ranks(begun: list[list[str]]) -> tuple[int, list[int]] | None:
    """Where the ranks first disagree, and which ranks differ from the majority."""
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
# ### 6.10 Predict: inside or between?
#
# Eight servers with eight H100 each all-reduce 1.6 GB hierarchically, every stage by a ring. Inside a server NVLink has $\alpha$ = 3.4 µs and 450 GB/s one way. Between servers each GPU has its own port with $\alpha$ = 9.6 µs and 50 GB/s one way.
# Guess first: does more time pass inside the servers or between them? Then give the seconds of the two stages inside together, and of the stage between. Which one improvement would help most: `"twice the NVLink"`, `"twice the ports"` or `"half the latencies"`?

# %% [raw] tags=["hints"]
# importance 3, difficulty 3
# How large is the tensor of the stage between, and how many ranks take part in it?
# Inside: a reduce-scatter and an all-gather on 8 ranks, 7 steps and 7/8 of the tensor each. Between: an all-reduce of an eighth of the tensor on 8 ranks.

# %% tags=["exercise"]
inside, between, best = ..., ..., ...
### BEGIN SOLUTION
size, part = 1.6e9, 1.6e9 / 8
flow_inside, flow_between = 2 * 7 / 8 * size / 450e9, 2 * 7 / 8 * part / 50e9
inside = 2 * 7 * 3.4e-6 + flow_inside
between = 2 * 7 * 9.6e-6 + flow_between
saves = {
    "twice the NVLink": flow_inside / 2,
    "twice the ports": flow_between / 2,
    "half the latencies": 7 * (3.4e-6 + 9.6e-6),
}
best = max(saves, key=saves.get)
### END SOLUTION
check("6.10", [inside, between, best])

# %% [markdown] tags=["exercise"]
# ### 6.12 Build: a tree of messages
#
# Write the tree of section 6.4 yourself. `peers.send(tensor, to)` and `peers.receive(tensor, source)` are one message each; `receive` fills its tensor with what arrives. On the way up, half of the ranks send their numbers to a parent, then half of the
# parents to a grandparent, until rank 0 has the sum. On the way down the sum takes the same edges back. The tree must work for any number of ranks, not only for powers of two.
#
# The check runs it on 2 and 4 real ranks, then on 3 and 5, and counts: $2(n-1)$ messages, and no more than $2 \lceil \log_2 n \rceil$ that follow each other. It must also work on a group of ranks and with other dtypes. If it passes, it is kept as `mine/tree.py`, and
# `course demo collectives --parts mine` runs on it.

# %% [raw] tags=["hints"]
# importance 3, difficulty 3
# Up: in each round half of the ranks that still take part hand over what they have.
# The distance between child and parent is 1 in the first round, then 2, 4, … below n.
# At distance d, rank r is a child if r % (2·d) is d; its parent is r - d.
# A parent without a child (r + d is not a rank) waits for no one. Down: the distances from the largest to 1, and the child receives.

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
