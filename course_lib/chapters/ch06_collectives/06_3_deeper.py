# %% [raw] tags=["sitting"]
# question: Which algorithm and which protocol will NCCL choose, and why?
# importance: 2
# difficulty: 4
# group: alone

# %% [markdown]
# # 6 Deeper: NCCL's choice, rails, and slow links
#
# At 1 MiB, eight H200 all-reduce round a ring. At 2 MiB their switches add. What happens between these two sizes? You can leave this
# notebook out and come back when a benchmark surprises you. It
#
# - computes NCCL's choice of algorithm and protocol from its own constants,
# - reads a benchmark of two servers whose network is too slow, although it prints 155 GB/s,
# - tests the α–β model on links that behave exactly as it says.

# %%
import torch

from course_lib import demos, expect, launch, predict, scratch, show_source
from course_lib.chapters.ch06_collectives import figures
from course_lib.clinic.nccl_table import nccl_table
from course_lib.clinic.recorded import output
from course_lib.measure.times import collective_seconds
from course_lib.theory import collectives, hardware, nccl_ways, ring_or_tree
from course_lib.theory.network.all_reduce import nccl_choice

launch.warm_up()
torch.set_num_threads(1)

# %% [markdown]
# ## 6.4 What NCCL chooses
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
# How do switches add? Each GPU is responsible for one eighth of the numbers. It asks the switch for their sum. The switch reads this eighth from all eight
# GPUs, adds, and delivers one sum. The GPU sends the sum back once, and the switch copies it to all. So $S$ leaves each GPU in the first half and $S/n$ in the second: $(n+1)/n \cdot S$.
#
# The **protocol** says how a receiver learns that data have arrived:
#
# | `NCCL_PROTO` | how data are announced | share of data in what is sent | a ring's step on NVLink |
# |---|---|---|---|
# | LL, low latency | a flag of 4 bytes beside every 4 bytes | 1/2 | 0.6 µs |
# | LL128 | a flag of 8 bytes in every 128 bytes | 120/128 | 1.9 µs |
# | Simple | one signal after a large piece, when all of it has been written | all | 3.4 µs |
#
# (Sources: `src/graph/tuning.cc` of NCCL 2.30.7; issues 281 and 919 of NVIDIA/nccl, by a maintainer; the report of five GPUs: Bekman, *Machine Learning Engineering*, network, section SHARP, for one kind of
# server and one release. There are more algorithms, for other networks and operations. `NCCL_NVLS_ENABLE=0` switches NVLS off.)
#
# For each pair of algorithm and protocol NCCL computes latency plus size over bandwidth, as we do, and takes the fastest. On eight H100, LL on a ring
# takes $6.6 + 14 \cdot 0.6 = 15$ µs before any byte counts, and NVLS takes 25. After that LL sustains 141 GB/s on the wire; at 1.75 bytes sent per byte of the tensor this is an algbw of 81 GB/s. The algbw of NVLS is 272 GB/s.
#
# **Predict.** What is the largest tensor that NCCL still sends round the ring, in KiB, among powers of two?

# %%
largest = predict("6.nccl", "Largest on the ring?", yours=None, unit="KiB")

# %%
ways_of_nccl = {way.name: way for way in nccl_ways()}
kib_sizes = [2**power for power in range(5, 19)]
on_the_ring = [kib for kib in kib_sizes if nccl_choice(1024 * kib).algorithm == "Ring"]
logged = 1024  # KiB: Bekman, network, section SHARP, on eight H200
expect(max(on_the_ring), logged, label="largest on the ring", unit="KiB", yours=largest)

# %% tags=["drawing"]
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
chosen = {nccl_choice(1024 * kib).name for kib in kib_sizes}
assert chosen == {"Ring, LL", "NVLS, Simple"}


def crossing_mb(one, other):
    """The size at which two ways take the same time."""
    a, b = ways_of_nccl[one], ways_of_nccl[other]
    slower = 1 / a.bytes_per_s - 1 / b.bytes_per_s
    return (b.latency_s - a.latency_s) / slower / 1e6


assert round(crossing_mb("Ring, LL", "NVLS, Simple"), 2) == 1.14
assert round(crossing_mb("Ring, LL", "Ring, LL128"), 1) == 3.6
assert round(crossing_mb("Ring, LL128", "Ring, Simple")) == 36

# %% [markdown]
# **Explain.** The two lowest lines cross at 1.14 MB: 10 µs, divided by the difference between 1/81 and 1/272 seconds per GB. NCCL's log on eight H200, whose NVLink is the same, agrees: Ring with LL up to 1 MiB, NVLS with
# Simple from 2 MiB on. A tree never wins here, since inside a server it is a chain of 14 steps too. Without such switches the ring's protocols would follow each other: LL up to 3.6 MB, LL128 up to 36 MB, then Simple.
#
# Between servers, trees come into use, since a ring needs a step over the network for each server. On 64 servers of eight H200, NCCL logged Tree with LL128 at 16 MiB and NVLSTree with Simple
# at 32 MiB (issue 1752 of NVIDIA/nccl).
#
# NCCL's tree is a **double tree**. It cuts the tensor into pieces that follow each other, and divides the work between two trees, so that a leaf of
# one is a parent in the other (Sanders, Speck and Träff 2009, doi:10.1016/j.parco.2009.09.001; NCCL since 2.4). It takes few steps *and* sends only
# $2(n-1)/n \cdot S$; NCCL assumes that it reaches 92 % of the ring's bandwidth. With more ranks its crossover grows much faster than that of the plain tree:

# %% tags=["drawing"]
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
# These settings help in experiments. Remove them afterwards: left in scripts they may cost speed or end in crashes and hangs, as NCCL's documentation warns.
#
# | setting | what it does | a number |
# |---|---|---|
# | `NCCL_ALGO=RING` | allows only the ring; `^NVLS` all but NVLS | eight H100: 365 to 370 GB/s of busbw instead of 480 (issue 1455) |
# | `NCCL_PROTO=^LL128` | the same for protocols; never *force* LL128 | where 128 bytes may arrive in two pieces, sums are silently wrong (issue 281) |
# | `NCCL_DEBUG=INFO` and `NCCL_DEBUG_SUBSYS=TUNING` | print NCCL's choice for every call | `AllReduce: 2097152 Bytes -> Algo NVLS proto SIMPLE` (Bekman) |
#
# **Remember**
# - NCCL estimates latency + size / bandwidth for each algorithm and protocol and takes the fastest. On eight H100: the ring with LL up to 1 MiB, then the switches.

# %% [markdown]
# ## 6.5 A link that obeys
#
# Now test the α–β model without the noise of a laptop. `SlowPeers` puts each rank behind a slow link of its own: it *sleeps* for $\alpha + \text{bytes}/\beta$ before it sends.

# %%
show_source(scratch.collectives.SlowPeers._exchange)

# %% [markdown]
# **Predict.** On two such ranks each rank sends the tensor once. On four ranks, with the same tensor and no latency, how many times as long does it take?

# %%
ratio = predict("6.slow", "4 ranks / 2 ranks?", yours=None)


# %%
def behind_slow_links(operation, numbers, bytes_per_s):
    """Seconds of one all-reduce, every rank behind a slow link."""
    slow, x = scratch.collectives.SlowPeers(bytes_per_s), torch.ones(numbers)
    return collective_seconds(lambda: operation(x, slow), 2, x.device)


ring, tree = scratch.collectives.ring_all_reduce, scratch.collectives.tree_all_reduce
job = (100_000, 2e6)  # numbers, bytes per second
two_s = launch.run(behind_slow_links, ring, *job, ranks=2)[0]
ring_s, tree_s = (
    launch.run(behind_slow_links, each, *job, ranks=4)[0] for each in (ring, tree)
)

# %%
expect(1.5, ring_s / two_s, within=None, label="4 ranks / 2 ranks", yours=ratio)

# %%
timed = {"within": None, "unit": "s"}  # a time: its gap is shown, not judged
expect(1.5 * 0.4 / 2, ring_s, label="ring, 4 ranks", **timed)
expect(4 * 0.4 / 2, tree_s, label="tree, 4 ranks", **timed)
assert ring_s >= 1.5 * 0.4 / 2  # a sleeping rank never wakes up early

# %% [markdown]
# **Explain.** 400 kB at 2 MB/s take 0.2 s. The ring sends the tensor 1.5 times, the tree four times one after the other. Both take a few percent longer, never less: the real $\alpha$ of your machine, some 0.1 ms for each of six messages, and the copies come on
# top. When the link is slow enough, the formula is all there is.
#
# **Remember**
# - On a link that obeys the model, the formula is exact to a few percent.

# %% [markdown]
# ## 6.6 Two servers and their rails
#
# A server with eight H100 has a network card for each GPU. Card $i$ of every server is connected to the same switch, so there are eight parallel networks, called **rails** (轨道). A card of 400 Gb/s
# should carry 46 to 48 GB/s for NCCL (a maintainer in issue 290 of nccl-tests), so eight rails carry $8 \cdot 48 = 384$ GB/s out of a server.
#
# The author of that issue has two such servers. Together they show a busbw of 155 GB/s at 4 GiB. With `NCCL_ALGO=RING`, which the maintainer recommends for such a test, they show 90 GB/s:

# %% tags=["drawing"]
runs = {
    "one server": nccl_table(output("all_reduce_perf_nvls").text),
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
# **Predict.** By default NCCL uses a tree on two servers (issue 196): one server sums up one half of the tensor, the other server the other half. How many GB/s really go over the network, one way, in the default run with its busbw of 155?

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

# %% tags=["drawing"]
between = {
    "eight rails": 8 * 48e9,
    "RING: busbw": ring_only.bus_bytes_per_s,
    "default: algbw": default.algorithm_bytes_per_s,
    "one rail": 48e9,
}
figures.bars(between, lambda rate: f"{rate / 1e9:.0f} GB/s", "Out of one server")

# %% [markdown]
# **Explain.** In a ring of 16 ranks every link carries $1.875\,S$, including the one between the servers. So on a ring busbw *is* the network's rate: 90 GB/s. In the tree each server sends one half of the tensor
# to be added, and the finished sum of the other half: $S$ in all. So there the network's rate is the *algbw*, 83 GB/s. The two runs agree, although one prints 155 and the other 90. The network carries about what *two* rails
# should. NVLink is healthy, the network is not. The thread does not say why; chapter 16 shows how to search.
#
# ### The links of a layer
#
# How fast *must* a link be? Note 004 asks for 859 GB/s, one way, so that 64 GPUs can share a layer of LLaMA-2 70B. It divides a GPU's 330 TFLOP/s by 384 FLOP per byte; section 10.7 derives the 384. Does PCIe or NVLink carry that?
# The note's table divides the H100's compute by 900, which is both directions, and the 4090's by 32, which is one. Count the need and the link in the same way:

# %%
needed = 330e12 / collectives.matrix_intensity(8192, 64)
assert round(needed / 1e9) == 859 and round(2 * needed / 1e12, 1) == 1.7
assert 31.5e9 < 450e9 < needed and 64e9 < 900e9 < 2 * needed

# %% [markdown]
# Neither of the two does. One way, 859 GB/s are needed; PCIe has 31.5 and NVLink 450. Both ways added, 1.7 TB/s are needed; they have 64 and 900. The note's conclusion is right.
#
# **Remember**
# - A ring's busbw is the rate of its slowest link, also between servers. With a tree on two servers it is the algbw.
# - Eight cards of 400 Gb/s carry about 384 GB/s out of a server.

# %% [markdown]
# ## 6.7 Collectives and RPC
#
# Collectives need all ranks: they run the same program and meet at the same call. That fits training. Sometimes one rank should do something *for* another, such as looking up rows of a large table while the others train. For this there is
# **RPC** (远程过程调用), remote procedure call: "run this function over there and give me the result", with a backend of its own, TensorPipe. The other side
# does not have to call anything. Chapter 14 uses both together.

# %% [markdown]
# ## 6.8 The crossover, timed
#
# The demo puts every rank behind a link of 40 Mbit/s (5 MB/s) with a latency of 10 ms.
#
# **Predict.** Section 6.4 computed the crossover for eight ranks. On four ranks the tree has 4 steps and the ring 6, and their bytes are 4 and 1.5 times $S$. Is the tree still faster at 4 kB, 64 kB and 1 MB? Give the number of sizes, 0 to 3.

# %%
sizes_won = predict("6.won", "Of 4 kB, 64 kB and 1 MB?", yours=None)

# %% [markdown]
# On four ranks the tree saves $6 - 4 = 2$ steps and costs $4 - 1.5 = 2.5$ times $S/\beta$ more, so the crossover is at 40 kB:

# %%
link = hardware.Link("40 Mbit/s, 10 ms", bytes_per_s=5e6, latency_s=0.01)
crossing = ring_or_tree("all-reduce", 1, 4, link).crossover_bytes
assert round(crossing) == 40_000 == round(2 * 0.01 / (2.5 / 5e6))
won = sum(
    ring_or_tree("all-reduce", size, 4, link).faster == "tree"
    for size in (4e3, 64e3, 1e6)
)
expect(1, won, label="sizes at which the tree is faster", yours=sizes_won)

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

# %% tags=["drawing"]
dots = {
    kind: [(one.size_bytes, one.seconds) for one in slow.of(f"{kind}-all-reduce")]
    for kind in ("ring", "tree")
}
at_64_kib = ring_or_tree("all-reduce", 2**16, 4, link)
figures.collective_times(at_64_kib, "", 2**10, 2**20, dots)

# %% [markdown]
# **Explain.** The faster one changes between 8 and 512 KiB, around the predicted 40 kB. The dots lie on the lines or a little above: your machine's own $\alpha$ adds some 0.1 ms to
# each 10 ms, or a few ms if it is busy.
#
# On Linux you can have a real network. `course demo collectives --two-nodes 200` builds two nodes inside your machine, each with its own network address and its own `torchrun`, and joins them by a
# cable that the kernel limits to 200 Mbit/s, or 25 MB/s. For large tensors the fit should find a $\beta$ of 20 to 25 MB/s; the rest goes into TCP's headers and the time between messages.

# %% [markdown]
# ## The answer
#
# NCCL computes latency + size / bandwidth for every algorithm and protocol, and takes the fastest. On eight H100 the ring with LL starts 10 µs earlier, and the switches move 272 GB/s of tensor, not 81. They cross at 1.14 MB, between the 1 MiB and the 2 MiB of the log.
