# %% [raw] tags=["sitting"]
# question: What does a method pay if it does not wait?
# importance: 2
# difficulty: 4
# group: alone

# %% [markdown]
# # 14 Stale gradients, averaged weights, hidden copies
#
# A gradient that is one update stale halves the largest learning rate. A pipeline that never flushes keeps up to $p$ versions of its weights. A copy of 30 ms that hides behind 20 ms of computing still costs 10. **What does a method pay if it does not wait?**
#
# By the end of this sitting you can
#
# - say how rows should be divided among servers, and what gathering them costs exactly,
# - compute the largest learning rate for stale gradients,
# - tell pipelines that flush from those that keep old weights, and both from local SGD,
# - say how much of a copy from the host hides behind computing, and how many tokens hide all of it,
# - account for the bytes that RPC puts on a wire.
#
# The parts are independent of each other.

# %%
import math

import torch
import torch.distributed as dist
from torch import nn

from course_lib import (
    expect,
    launch,
    measure,
    predict,
    scratch,
    show_source,
    style,
)
from course_lib.chapters.ch14_parameter_servers import exchanges, figures, lanes
from course_lib.scratch import checkpointing, pipeline
from course_lib.theory import PCIE4, collectives, simulation

launch.warm_up()
torch.set_num_threads(1)

# %% [markdown]
# ## Which row lies where
#
# The obvious cut of a table is by ranges: the first half of the rows on one server, the second half on another. But rows are not used equally often. A few customers, words or films are met all the time, and where rows are numbered by age or by frequency, these lie together. Let 4 servers hold
# 10,000 rows, and let row $i$ be looked up with a probability proportional to $1/i$, roughly how word frequencies fall off (Zipf's law):

# %%
torch.manual_seed(0)
use = 1 / torch.arange(1, 10_001.0)
looked_up = torch.multinomial(use, 20_000, replacement=True).unique()
by_range = (looked_up // 2500).bincount(minlength=4)
by_number = (looked_up % 4).bincount(minlength=4)
assert by_range.max() > 3 * by_range.min()
assert by_number.max() < 1.1 * by_number.min()

# %% tags=["drawing"]
loads = {"ranges": by_range, "row mod 4": by_number}
rows = {
    f"{cut}, server {s}": int(n) for cut, ns in loads.items() for s, n in enumerate(ns)
}
title = "Rows that one update uses, by server"
figures.bars(rows, "{:,} rows".format, title, style.WEIGHTS)

# %% [markdown]
# By ranges the first server moves nearly half of the rows, and all trainers wait for it. Put row $i$ on server $i$ mod 4, and each server moves a quarter. (Where the numbers have a pattern, take hash($i$) mod 4.)

# %% [markdown]
# ## What gathering costs
#
# Without a server, all ranks gather their sparse gradients (section 14.2). The optimizer must understand such gradients: SGD, Adagrad and `SparseAdam` do, AdamW refuses them. This is the whole of the gathering:

# %%
show_source(scratch.parameter_server.sum_of_rows)

# %% [markdown]
# **Predict.** Each of 4 ranks has the whole table, and each uses 100 rows of 64 numbers that no other rank uses. Divide the bytes that a rank sends by the bytes that a trainer exchanges with a server for its 100 rows. What is the ratio?

# %%
over_server = predict("14.gathered", "Gathered / exchanged?", yours=None)


# %%
def gathered():
    """What this rank sends, and whether the sum has all rows."""
    rank = dist.get_rank()
    table = nn.Embedding(1000, 64, sparse=True)
    table(torch.arange(100 * rank, 100 * rank + 100)).sum().backward()
    with measure.wire.log_wire() as log:
        total = scratch.parameter_server.sum_of_rows(table.weight.grad)
    by_gloo = table.weight.grad.coalesce()
    dist.all_reduce(by_gloo)
    same = torch.equal(total.to_dense(), by_gloo.to_dense())
    return log.sent()["all-gather"], same


(_, whole), same = launch.run(gathered, ranks=4, stream=False)[0]

# %%
sent = collectives.sent_bytes("all-gather", whole, ranks=4)
hundred = exchanges.RowExchange(rows=100, width=64)
assert same
expect(
    hundred.gathered_bytes(ranks=4) / hundred.total_bytes,
    sent / hundred.total_bytes,
    within=1e-3,
    label="gathered / exchanged",
    yours=over_server,
)

# %% [markdown]
# **Explain.** A rank sends its rows to each of the $n-1$ others once. With a server it moves them twice, there and back. So gathering costs about $(n-1)/2$ times as much, here 1.5 times. The rest is row numbers. Every row that is gathered brings its number along, while a server gets one number for two rows that move. With rows of 256 bytes
# and numbers of 8 this adds 1.5 %:
#
# $$\frac{(n-1)(256 + 8)}{2 \cdot 256 + 8} = 0.508\,(n-1).$$
#
# (The run counts a few bytes more, since each rank also says how many rows it has.)

# %% tags=["drawing"]
sizes = range(2, 17)
moves = {
    "gathered": [(n, hundred.gathered_bytes(n) / 1e3) for n in sizes],
    "with a server": [(n, hundred.total_bytes / 1e3) for n in sizes],
}
figures.lines(
    moves, "ranks", "kB that a rank moves in an update", "100 rows for each rank"
)

# %% [markdown]
# **Remember**
# - Row $i$ on server $i$ mod $S$. A cut by ranges loads the server that has the rows in demand.
# - Gathered over exchanged bytes: a little more than $(n-1)/2$.

# %% [markdown]
# ## What staleness does
#
# Take gradient descent on the simplest bowl, $f(w) = w^2/2$, whose gradient is $w$. If no gradient is stale, it converges with every learning rate below 2.
#
# **Predict.** Each gradient is one update stale. Below which learning rate does it converge now?

# %%
limit = predict("14.rate", "Largest learning rate?", yours=None)


# %%
def distance(late, rate, updates):
    """|w| after each update, from w = 1."""
    start, descend = torch.tensor(1.0), scratch.parameter_server.descend
    weights = descend(start, lambda w: w, lr=rate, late=late, updates=updates)
    return [abs(float(w)) for w in weights]


low, high = 0.0, 2.0  # converges, diverges
for _ in range(10):
    middle = (low + high) / 2
    if distance(1, middle, 400)[-1] < 1:
        low = middle
    else:
        high = middle
limit_1 = exchanges.largest_stable_rate(late=1)
expect(limit_1, middle, within=0.02, label="largest rate", yours=limit)

# %% tags=["drawing"]
figures.lines(
    {
        f"{late} stale": list(enumerate(distance(late, rate=0.3, updates=30)))
        for late in (0, 1, 4, 5)
    },
    "updates",
    "distance from the minimum",
    "Descent with the learning rate 0.3",
)

# %% [markdown]
# **Explain.** Below 1: the limit is halved. If gradients are $\tau$ updates stale, the limit is $2 \sin \frac{\pi}{2(2\tau + 1)}$ (Levin and May 1976). The sine of a small angle is about the angle, so the limit is about $\frac{\pi}{2\tau + 1}$.
#
# All four curves have the same learning rate. A staleness of one update even helps. With four, $w$ oscillates, and with five it diverges: each step responds to where $w$ was, overshoots, and comes back too late again. This is how the largest learning rate falls:

# %%
limits = [exchanges.largest_stable_rate(late) for late in range(21)]
assert limits[5] < 0.3 < limits[4]
about = [math.pi / (2 * late + 1) for late in range(21)]
assert all(abs(about[late] / limits[late] - 1) < 0.05 for late in range(1, 21))

# %% tags=["drawing"]
figures.lines(
    {"largest rate": list(enumerate(limits))},
    "updates stale",
    "learning rate",
    "Below the curve descent converges",
    level={"0.3, as above": 0.3},
)

# %% [markdown]
# **Remember**
# - One update of staleness halves the largest learning rate, and $\tau$ of them bring it down to about $\pi/(2\tau + 1)$.

# %% [markdown]
# ## The same choice in a pipeline
#
# The schedules of chapter 11 wait, too. GPipe and 1F1B **flush** (清空) the pipeline before each update: they let it run empty, and the bubble is the price. PipeDream (Harlap et al. 2018, arXiv:1806.03377) does not. Each stage updates after every backward pass and never stops:

# %% tags=["drawing"]
batch = simulation.timeline("1f1b", stages=4, micro_batches=4)
flowing = simulation.timeline("1f1b", stages=4, micro_batches=12)
charts = {
    "1F1B: an update and a flush after every 4": batch.repeated(3),
    "PipeDream": flowing.tasks,
}
figures.timeline(charts, seconds=False)

# %% [markdown]
# But look at stage 0 of PipeDream. Between the forward and the backward pass of a micro-batch lie three backward passes of others, and after each of them the weights change. The backward pass would use weights that the forward pass has never seen. Such a gradient is not stale; it belongs to no weights at all.
#
# So PipeDream keeps the old weights until the backward pass: **weight stashing** (权重暂存). Then each gradient is exact, for weights that are a few updates old.

# %%
show_source(pipeline.StashingStage.forward)


# %%
def start():
    """Four stages and 12 micro-batches, the same each time."""
    torch.manual_seed(0)
    stages = [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(4)]
    return stages, [(torch.randn(4, 6), torch.randn(4, 6)) for _ in range(12)]


def trained(stash):
    """The stages after all micro-batches, without a flush."""
    modules, batches = start()
    stages = [pipeline.StashingStage(module, 0.5, stash) for module in modules]
    pipeline.train(stages, batches)
    return stages


def gap(stages, number=6):
    """How far stage 0's gradient is from the true one, at the weights of the forward pass."""
    modules, batches = start()
    used = [stage.weights[number] for stage in stages]
    true = pipeline.gradients_at(modules, used, batches[number])[0]
    return float((stages[0].gradients[number] - true).norm() / true.norm())


# %%
kept, lost = trained(stash=True), trained(stash=False)
print(f"with the stash: off by {gap(kept):.1%}; without: by {gap(lost):.1%}")
print("updates stale, by stage:", [stage.late[-1] for stage in kept])
assert gap(kept) < 1e-5 < 1e-2 < gap(lost)
for place, stage in enumerate(kept):
    versions = exchanges.weight_versions(stages=4, stage=place)
    assert stage.most_flying == versions
    assert stage.late[-1] == versions - 1 == 3 - place

# %% [markdown]
# The price is memory: the first of $p$ stages keeps $p$ versions of its weights. PipeDream-2BW (arXiv:2006.09503) updates once for several micro-batches and keeps two. Neither has a bubble, and both train with stale gradients. PipeDream adds nothing up: each micro-batch updates each stage. GPipe and 1F1B keep one version of the weights, have exact gradients, and pay
# with the bubble. Large models are trained that way.
#
# **Remember**
# - Flush: exact gradients and a bubble. Stash: no bubble, up to $p$ versions of the weights, stale gradients.

# %% [markdown]
# ## Local SGD: where "periodically" is right
#
# DDP averages gradients in *every* update, or the replicas would drift apart. (Note 000 says "periodically".) One method does communicate periodically, but not gradients: **local SGD** (本地随机梯度下降). Each rank updates alone, and every $H$ updates the ranks average their *weights*:

# %%
show_source(scratch.data_parallel.LocalSGD.step)


# %%
def local(every, updates=8):
    """Bytes of the all-reduced tensors in an update, on average."""
    torch.manual_seed(dist.get_rank())
    model = nn.Linear(30, 40)
    scratch.data_parallel.average(model)  # begin equal
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = scratch.data_parallel.LocalSGD(model, optimizer, every)
    with measure.wire.log_wire() as log:
        for _ in range(updates):
            model(torch.randn(8, 30)).square().mean().backward()
            trainer.step()
    return log.sent()["all-reduce"].size_bytes / updates


weight_bytes = 4 * (30 * 40 + 40)
for every_h in (1, 4):
    reduced = launch.run(local, every_h, ranks=2, stream=False)[0]
    theory = exchanges.averaged_bytes(weight_bytes, ranks=2, every=every_h)
    sent = collectives.sent_bytes("all-reduce", reduced, ranks=2)
    expect(theory, sent, label=f"H = {every_h}, an update", unit="B")

# %% [markdown]
# Watch two ranks do it. Each has one weight. The loss of one is least at 1, that of the other at 3, and their mean at 2. After every fourth update they average:


# %%
def walk(updates=16):
    """This rank's weight before each update and after the last one."""
    target = 1.0 + 2 * dist.get_rank()
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = scratch.data_parallel.LocalSGD(model, optimizer, every=4)
    found = [0.0]
    for _ in range(updates):
        (model(torch.ones(1)) - target).square().mean().backward()
        trainer.step()
        found.append(model.weight.item())
    return found


walked = launch.run(walk, ranks=2, stream=False)
assert walked[0][4] == walked[1][4] and walked[0][3] != walked[1][3]

# %% tags=["drawing"]
figures.lines(
    {f"rank {rank}": list(enumerate(found)) for rank, found in enumerate(walked)},
    "updates",
    "weight",
    "Local SGD with H = 4: apart, and together again",
)

# %% [markdown]
# With $H = 1$ and plain SGD it *is* DDP: the mean of $w - \eta g_r$ is $w - \eta$ times the mean of $g_r$. With $H = 4$ it sends a quarter, and is another algorithm: ranks walk apart and meet in the middle. Federated learning on phones is built on it (arXiv:1602.05629), and so is training over slow links between data centres (DiLoCo, arXiv:2311.08105). The demo
# is `course demo local_sgd --ranks 2`.
#
# **Remember**
# - DDP averages gradients in every update. Local SGD averages weights every $H$ updates, at $1/H$ of the bytes.

# %% [markdown]
# ## 14.5 GeePS: swapping behind the computation
#
# What if the server is your own host? GeePS (Cui et al. 2016, doi:10.1145/2901318.2901323) is a parameter server whose GPUs keep in their memory only what they need now. All the rest waits in the memory of the host, and a separate thread fetches each layer before its turn. While layer $i$ computes, layer $i + 1$ is copied. Note 003 mentions GeePS, with the condition
# that matters: the exchange must not slow down the computation. When is that so?
#
# **Predict.** A model has 8 layers. Each computes for 20 ms, and its weights take 30 ms to arrive. One after another that is 400 ms. How long does it take if copies hide behind computing?

# %%
hidden = predict("14.swap", "ms for 8 layers?", yours=None, unit="ms")

# %%
show_source(checkpointing.meanwhile)

# %% [markdown]
# Sleeping slows down the link and the layers, to imitate large ones. The copies and the products are real.

# %%
LAYERS, COMPUTE_S, SWAP_S = 8, 0.02, 0.03
torch.manual_seed(0)
weights = [torch.randn(64, 64) / 8 for _ in range(LAYERS)]
host = checkpointing.SlowHost(weights, bytes_per_s=weights[0].nbytes / SWAP_S)
layer = checkpointing.slow_layer(COMPUTE_S)


def swapped(order):
    """The result, and when layers were copied and computed."""
    seen = lanes.Lanes()
    fetch, compute = (
        seen.watched("copying", host.fetch),
        seen.watched("computing", layer),
    )
    return order(fetch, LAYERS, compute, torch.ones(4, 64)), seen


first, in_turn = swapped(checkpointing.one_by_one)
second, hiding = swapped(checkpointing.meanwhile)
assert torch.equal(first, second)
plan = exchanges.Swapping([COMPUTE_S] * LAYERS, [SWAP_S] * LAYERS)
expect(1000 * plan.overlapped_s, label="meanwhile, as planned", unit="ms", yours=hidden)

# %% [markdown]
# Your machine had other things to do, and a thread that sleeps wakes up late. So we put the measured durations of each copy and each layer into the formula:

# %%
serial, overlapped = (
    exchanges.Swapping(run.lengths_s("computing"), run.lengths_s("copying"))
    for run in (in_turn, hiding)
)
timed = {"within": None, "unit": "s"}  # a time: its gap is shown, not judged
expect(serial.serial_s, in_turn.seconds, label="one by one", **timed)
expect(overlapped.overlapped_s, hiding.seconds, label="meanwhile", **timed)

# %% tags=["drawing"]
runs = {"one by one": in_turn, "meanwhile": hiding}
figures.lanes(
    {f"{name}, {run.seconds:.2f} s": run.rows for name, run in runs.items()},
    "Eight layers from the host's memory",
)

# %% [markdown]
# **Explain.** The first layer waits for its whole copy, since nothing computes before it. Each later layer waits for
#
# $$\text{exposed}_{i+1} = \max(0,\; \text{swap}_{i+1} - \text{compute}_i),$$
#
# here 10 ms: $30 + 7 \cdot 10 + 8 \cdot 20 = 260$ ms. The link never rests, so here the computing hides behind the copying. With 20 ms of copying and 30 ms of computing it would take 260 ms as well, but then the GPU would never rest after the first copy.

# %% [markdown]
# ### How many tokens are enough?
#
# A layer of $P$ parameters in bf16 has $2P$ bytes. On $T$ tokens its forward pass takes $2PT$ FLOP (chapter 5). With a bus of $B$ bytes/s and a GPU that reaches $F$ FLOP/s, the copy is hidden if
#
# $$\frac{2P}{B} \le \frac{2PT}{F}, \qquad \text{that is}\quad T \ge \frac{F}{B}.$$
#
# $P$ cancels: it does not matter how large the layer is. For 150 TFLOP/s and PCIe 4, 31.5 GB/s:

# %% tags=["drawing"]
enough = 150e12 / PCIE4.bytes_per_s
layer_parameters = 202_383_360  # of LLaMA-2 7B
swap_s = 2 * layer_parameters / PCIE4.bytes_per_s
sizes = [2 ** (10 + step / 4) for step in range(13)]
compute_s = {tokens: 2 * layer_parameters * tokens / 150e12 for tokens in sizes}
run = exchanges.Swapping([compute_s[8192]] * 32, [swap_s] * 32)
assert run.exposed_s[1:] == [0] * 31
figures.lines(
    {"computing": [(tokens, 1000 * seconds) for tokens, seconds in compute_s.items()]},
    "tokens in a batch",
    "ms for one layer of LLaMA-2 7B",
    "Right of the vertical line the copy hides",
    doubling=(True, False),
    level={"its copy": 1000 * swap_s},
    mark={f"{enough:,.0f} tokens": enough},
)

# %% [markdown]
# So a whole model can be trained from the host's memory, if the batch is large. ZeRO-Infinity does it, and goes down to disks (arXiv:2104.07857). Section 8.6 added the bus time of the offloaded *optimizer* to the step. If each layer is updated while the backward pass goes on through the next one, the same formula says how much of that time is hidden.
#
# **Remember**
# - Exposed: $\max(0, \text{swap} - \text{compute})$ for each layer, and the first copy.
# - With $F/B$ tokens or more, copies of weights are hidden, whatever the layer's size.

# %% [markdown]
# ## What RPC really sends
#
# The log of collectives does not see RPC, since TensorPipe is no process group. On one machine TensorPipe would not even use the network, because it finds shared memory. So build two nodes with a link between them, as in section 6.8, with both trainers of the demo `hybrid` on one node and the server on the other. Now the kernel counts every byte on the link, of whatever origin.
#
# Three things come on top of the rows. A packet of 1514 bytes has 66 bytes of Ethernet, IP and TCP headers. For every second packet a bare header of 66 bytes comes back, to acknowledge both (RFC 1122). And each update makes small calls, with names of functions, autograd's records and "please step": some 15 kB, however large the rows are (fitted to runs with rows of 16 and 64 numbers). Here the rows have 256:

# %%
import json

from course_lib.launch import two_nodes

obstacle = two_nodes.obstacle()
if not obstacle:
    argv = ["hybrid", "--json", "--hidden=256", "--batch=64", "--steps=6"]
    out, _ = launch.run_on_two_nodes("course_lib.demos", argv, 2, mbit=1000)
    counted = json.loads(out.splitlines()[-1])
    moved = counted["pulled_bytes"] + counted["pushed_bytes"]
    assert moved == 1_048_576 + 1_073_152
    headers = moved / (1514 - 66) * (66 + 66 / 2)
    overhead = sum(counted["link"]) - moved
    theory = 100 * (headers + 15_000) / moved
    expect(theory, 100 * overhead / moved, 0.35, "%", label="more than the rows")

# %%
if obstacle:
    print(f"This machine can't have two nodes: {obstacle}. On others: 6 to 9 % more.")
else:
    print(f"pulled and pushed {moved:,} B, counted {sum(counted['link']):,} B")

# %% [markdown]
# Headers are $66 / 1448 = 4.6$ % of what a packet carries, acknowledgements half as much, and the calls 0.7 %: together 7.5 %. (TCP does not always acknowledge every second packet, and sends some packets twice, so the count differs by about a per cent from run to run.) With rows of 16 numbers and a small batch, the calls take more bytes than the rows:
#
# ```
# course demo hybrid --ranks 4 --two-nodes 200
# ```

# %% [markdown]
# ## The answer
#
# If a method does not wait, it pays in one of three ways. **The learning rate**: a gradient that is $\tau$ updates stale allows about $\pi/(2\tau + 1)$. **Memory**: PipeDream's first stage keeps $p$ versions of its weights, and each gradient is exact for old ones. **Another algorithm**: local SGD sends $1/H$ of the bytes and is no longer SGD. Only copies are free, where they hide
# behind computing that lasts as long: $F/B$ tokens for a layer of any size.
#
# **Read on.** Harlap et al. 2018, *PipeDream* (arXiv:1806.03377; Narayanan et al. 2019 at SOSP). Cui et al. 2016, *GeePS* (doi:10.1145/2901318.2901323).
