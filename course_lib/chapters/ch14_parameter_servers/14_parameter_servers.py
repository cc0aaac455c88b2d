# %% [markdown]
# # 14 Parameter servers and RPC
#
# A shop recommends things to a billion customers. Its model has a table with one row of 64 numbers for each of them, in
# fp32: 256 GB. You train it on 8 GPUs, and in one update each GPU meets 100,000 customers. You wrap the model in DDP, as in
# chapter 7. That needs at least 256 GB on every GPU, and as much again for the gradient. Suppose there were room: how long would
# the all-reduce take, and how much of what it sends would be anything but zeros?
#
# By the end of this chapter you can
#
# - say which part of a model is sparse, and compute what one update of it sends, for four ways to train it,
# - write a parameter server with its two requests, pull and push, and say when its link is full,
# - predict by how many updates a gradient is late where nobody waits, and what that does to the learning rate,
# - tell pipelines that flush from those that keep old weights, and both from local SGD,
# - say how much of a copy from the host hides behind computing, and how many tokens it takes to hide all of it,
# - say what `torch.distributed`, DDP and RPC (remote procedure calls, chapter 6) are each for, and read the order of events in a model that uses all three.
#
# Time: about 80 minutes, and 90 for the exercises, one of which is a parameter server that you write. You need chapters 6, 7 and 11.

# %%
from statistics import fmean

import torch
import torch.distributed as dist
from torch import nn

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
from course_lib.chapters.ch14_parameter_servers import exchanges, figures
from course_lib.scratch.parameter_server import (
    Messages,
    ParameterServer,
    RemoteTable,
    descend,
)
from course_lib.theory import PCIE4, collectives, served_steps, simulation, units

launch.warm_up()
torch.set_num_threads(1)

# %% [markdown]
# **Predict.** Suppose each GPU could fetch exactly the rows that it meets, wherever they are, and send their gradients back. How many
# times as many bytes pass through its link, one after the other, with DDP? (A row number has 8 bytes.)

# %%
factor = predict("14.factor", "All-reduced / exchanged?", yours=None)

# %% [markdown]
# ## 14.1 Sparse and dense
#
# An **embedding** (嵌入) turns a number into a row of a table. Take a table of 6 rows and look up rows 4, 1 and 4:

# %%
table = nn.Embedding(6, 2)
table(torch.tensor([4, 1, 4])).sum().backward()
assert table.weight.grad.any(dim=1).tolist() == [False, True, False, False, True, False]

# %%
figures.used_rows([4, 1, 4], table.weight.grad.tolist(), "A table of 6 rows")

# %% [markdown]
# Row 4 was used twice, so it has the sum of both gradients. All other rows are zeros, and we knew that before we computed anything. Such a table is the **sparse part** (稀疏部分) of a model: large, and hardly touched by one batch. The matrices that follow it are
# the **dense part** (稠密部分): every sample uses all of their weights. Language models are dense. Their embedding is a small part of them, some
# 100,000 rows, and the output layer, which often uses the same table, gives every row a gradient. Recommenders, search and advertising are sparse, and their tables take terabytes (Meta has trained models of up to 12 trillion parameters, arXiv:2104.05158).
#
# DDP does not look for zeros. It all-reduces all rows, at $2(n-1)/n$ times the table (chapter 6):

# %%
exchange = exchanges.RowExchange(rows=100_000, width=64)
all_reduced = collectives.sent_bytes("all-reduce", 10**9 * 64 * 4, ranks=8)
times = exchanges.dense_over_sparse(exchange, table_rows=10**9, ranks=8)
assert times == all_reduced / exchange.total_bytes
expect(times, label="all-reduced / exchanged", yours=factor)

# %%
print(
    f"all-reduce: {all_reduced / 1e9:,.0f} GB, exchange: {exchange.total_bytes / 1e6:.1f} MB"
)

# %% [markdown]
# **Explain.** DDP sends 448 GB, and on each GPU only 0.01 % of the rows are not zero. At 25 GB/s that takes 18 s. The useful part is 52 MB
# and takes 2 ms:
#
# $$\underbrace{100{,}000 \cdot 64 \cdot 4}_{\text{rows, there}} + \underbrace{100{,}000 \cdot 64 \cdot 4}_{\text{gradients, back}} +
# \underbrace{100{,}000 \cdot 8}_{\text{row numbers}} = 52 \text{ MB},$$
#
# plus 16 bytes of headers. (An all-reduce receives as much as it sends, but at the same time. Here the rows must come before the gradients can go, so both
# directions count.) The number of rows in the table does not appear. Ten times as many customers cost ten times the memory, and not one byte more on the
# wire.
#
# **Remember**
# - A table's gradient has as many rows that are not zero as the batch has different row numbers.
# - All-reduce pays for the table, an exchange of rows pays for the batch.

# %% [markdown]
# ## 14.2 Pull and push by hand
#
# A **parameter server** (参数服务器) is a process that owns the table and trains nothing. The processes that compute gradients are its **trainers** (训练器). Each of them makes two requests in
# an update (Li et al. 2014, OSDI, "Scaling Distributed Machine Learning with the Parameter Server"):
#
# - **pull** (拉取): "give me rows 4 and 1",
# - **push** (推送): "here are the gradients of the rows that I had".
#
# The server applies its optimizer to them, so a trainer holds neither the table nor its optimizer states. This is the trainer's end:

# %%
show_source(RemoteTable.pull, RemoteTable.push)

# %% [markdown]
# - `unique` lets each row travel once, however often the batch names it. `places` says where each row goes afterwards.
# - `index_add_` does the opposite for gradients: it sums those of one row before they travel.
# - With several servers, the rows are divided among them. For now there is one.
#
# And this is the server's end. It serves its trainers **in step** (同步训练): all of them get their rows before the table changes.

# %%
show_source(ParameterServer.serve_together, ParameterServer.gradient)

# %% [markdown]
# **Predict.** One server, two trainers, rows of 64 numbers in fp32. Trainer 0 looks up the rows 7, 3, 7, 7; trainer 1 the rows 3 and 9. How
# many bytes does trainer 0 send *and* receive in an update? A row number has 8 bytes, and so does the header before each request.

# %%
bytes_0 = predict("14.exchange", "Bytes of trainer 0?", yours=None, unit="B")

# %%
LOOKED_UP = {1: [7, 3, 7, 7], 2: [3, 9]}  # by rank; rank 0 serves


def in_step():
    """One update: the server's table and what this rank sent."""
    rank = dist.get_rank()
    messages = Messages(dist.new_group(backend="gloo"))
    with measure.wire.log_wire() as log:
        if rank == 0:
            server = ParameterServer(torch.zeros(10, 64), 0.5, [1, 2], messages)
            server.serve_together()
            return server.table, log.sent()
        remote = RemoteTable(64, [0], messages)
        rows = remote.pull(torch.tensor(LOOKED_UP[rank]))
        remote.push(torch.ones_like(rows))
    return rows, log.sent()


# %%
(served_table, from_server), *trainers = launch.run(in_step, ranks=3, stream=False)
sent_by_0 = trainers[0][1]["send-recv"].size_bytes
two_rows = exchanges.RowExchange(rows=2, width=64)
received_by_0 = from_server["send-recv"].size_bytes - two_rows.pulled_bytes
both_ways = sent_by_0 + received_by_0
expect(two_rows.total_bytes, both_ways, label="both ways", unit="B", yours=bytes_0)

# %% [markdown]
# **Explain.** Trainer 0 names two different rows. $2 \cdot 256$ bytes of rows come, as many bytes of gradients go, and with them two row numbers and two headers of 8 bytes each. Without `unique` four rows would travel, and
# nearly twice the bytes. Here are both trainers, with the bytes that were counted:

# %%
calls, looking = [], {}
for rank, ids in LOOKED_UP.items():
    trainer, (_, log) = f"trainer {rank - 1}", trainers[rank - 1]
    rows = exchanges.RowExchange(rows=len(set(ids)), width=64)
    assert log["send-recv"].size_bytes == rows.pushed_bytes
    looking[trainer] = f"looks up {ids}"
    calls.append((trainer, "server", f"numbers, gradients: {rows.pushed_bytes} B"))
    calls.append(("server", trainer, f"rows: {rows.pulled_bytes} B"))
looking["server"] = "a table of 10 rows"
figures.who_asks_whom(looking, calls, "One update")

# %% [markdown]
# And the table? Each trainer sent a gradient of 1 for every look-up. The learning rate was 0.5, so the table has changed by half of what the server summed up:

# %%
summed = (0 - 2 * served_table[:, :2]).tolist()
assert [summed[row][0] for row in (3, 7, 9)] == [2, 3, 1]
figures.used_rows(LOOKED_UP[1] + LOOKED_UP[2], summed, "What the server summed up")

# %% [markdown]
# Row 7 was used three times by one trainer, row 3 once by each: the server *adds*. The result is the gradient of the sum of all losses, as one process
# would compute it.
#
# ### A third way: a gradient that knows its rows
#
# PyTorch's embedding has a switch:

# %%
table = nn.Embedding(1000, 64, sparse=True)
table(torch.tensor([7, 3, 7, 7])).sum().backward()
gradient = table.weight.grad
print(
    gradient.layout, tuple(gradient.shape), gradient._values().nbytes, "bytes of values"
)
together = gradient.coalesce()
print(together.indices().tolist(), together.values()[:, 0].tolist())
assert together.indices().tolist() == [[3, 7]]
assert together.values()[:, 0].tolist() == [1, 3]

# %% [markdown]
# With `sparse=True` the gradient is a **sparse tensor** (稀疏张量): row numbers and values. At first it has one entry for each look-up, here four;
# `coalesce` sums those of one row. Its size depends on the look-ups, not on the table. (The optimizer must understand such gradients: SGD, Adagrad and `SparseAdam` do,
# AdamW refuses them.)
#
# How do several ranks add up such gradients? An all-reduce adds entry by entry, but the third entry of one rank belongs to another row than the third entry of the next. So every rank
# gathers the rows of all ranks, and adds them up itself:

# %%
show_source(scratch.parameter_server.sum_of_rows)

# %% [markdown]
# Gloo does this inside `dist.all_reduce` when it gets a sparse tensor, and DDP uses that for such an embedding. NCCL refuses sparse tensors
# ([pytorch/pytorch issue 22400](https://github.com/pytorch/pytorch/issues/22400), open since 2019), so on the shop's GPUs DDP with its usual backend would stop with an error.
#
# **Predict.** There is no server now. Each of 4 ranks has the whole table, and each uses 100 rows of 64 numbers that no other rank uses. Divide the bytes that a rank
# sends by the bytes that a trainer exchanges with a server for its 100 rows. What is the ratio?

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


# %%
(_, whole), same = launch.run(gathered, ranks=4, stream=False)[0]
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
# **Explain.** A rank sends its rows to each of the $n-1$ others, once. With a server it moves them twice, there and back. So gathering costs
# about $(n-1)/2$ times as much, here 1.5 times. The rest is row numbers: every row that is gathered brings its number along, while a server gets one number for two rows that move. With rows of 256 bytes and numbers of 8 this adds 1.5 %:
#
# $$\frac{(n-1)(256 + 8)}{2 \cdot 256 + 8} = 0.508\,(n-1).$$
#
# (The run counts a few bytes more, since each rank also says how many rows it has.)

# %%
sizes = range(2, 17)
moves = {
    "gathered": [(n, hundred.gathered_bytes(n) / 1e3) for n in sizes],
    "with a server": [(n, hundred.total_bytes / 1e3) for n in sizes],
}
figures.lines(
    moves, "ranks", "kB that a rank moves in an update", "100 rows for each rank"
)

# %% [markdown]
# What a rank stores does not shrink: `sparse=True` saves bytes on the wire, and not one byte of the table.
#
# Here are all four ways for the shop's table. First what moves:

# %%
ways = {
    "DDP, dense gradient": all_reduced,
    "sparse gradients gathered": exchange.gathered_bytes(ranks=8),
    "parameter server": exchange.total_bytes,
    "table cut over the GPUs": 7 / 8 * exchange.total_bytes,
}
assert [round(size / 1e6) for size in ways.values()] == [448_000, 185, 52, 46]
figures.bars(
    ways,
    lambda size: units.format_bytes(size, digits=0),
    "What passes through a GPU's link, one after the other",
    tens=True,
)

# %%
table_bytes = 10**9 * 64 * 4
stored = (2 * table_bytes, table_bytes, exchange.pulled_bytes, table_bytes / 8)
figures.bars(
    dict(zip(ways, stored, strict=True)),
    lambda size: units.format_bytes(size, digits=0),
    "What each of 8 GPUs stores: table, gradient of the table, or rows",
    style.WEIGHTS,
    tens=True,
)

# %% [markdown]
# The last bar is what recommenders do today. The GPUs themselves hold the table, each an eighth of the rows, and ask each other, by the all-to-all of chapter
# 12. Each GPU is a server for the others, and one row in eight it has itself. TorchRec, PyTorch's library for recommenders, calls this row-wise sharding. Where the table doesn't fit into the
# GPUs, parts of it stay in the memory of the hosts.
#
# **Remember**
# - Pull the different rows, push the sum of their gradients: about $2 \cdot$ rows $\cdot$ width $\cdot$ bytes.
# - `sparse=True`: row numbers and values. Ranks gather them, at about $(n-1)/2$ times the bytes of a server; the table stays whole on each.
# - The server adds gradients up; nobody divides.

# %% [markdown]
# ## 14.3 The server's link
#
# 52 MB is little for a trainer. But all trainers ask the same server, and what all of them pull and push goes through *its* link.
#
# **Predict.** A trainer computes for 20 ms in each update and exchanges 100,000 rows of 64 numbers. Each process has a link of 25 GB/s each way. Trainers do
# not wait for each other. How many of them can one server serve before its link is busy all the time?

# %%
most = predict("14.saturated", "Trainers?", yours=None)

# %%
busy = exchanges.ServedTraining(
    exchange, trainers=8, servers=1, compute_s=0.02, bytes_per_s=25e9
)
print(f"a trainer alone: {1000 * busy.alone_s:.2f} ms an update")
pushed_s = busy.exchange.pushed_bytes / busy.bytes_per_s
print(f"the server's link, for each trainer: {1000 * pushed_s:.2f} ms")

# %%
assert busy.saturating_trainers == busy.alone_s / pushed_s
expect(busy.saturating_trainers, label="trainers", yours=most)

# %% [markdown]
# **Explain.** An update takes a trainer $20 + 2.08$ ms. In this time the server must receive 26.4 MB from each trainer, which takes 1.06 ms. What it
# sends travels the other way at the same time and is a little less. So 20.9 trainers fill its link, and a 22nd makes nothing faster.
#
# That holds if nobody waits for anybody. What if all pull together and all push together?

# %%
pulled_s = 8 * exchange.pulled_bytes / busy.bytes_per_s
computed_s, end_s = pulled_s + busy.compute_s, busy.in_step_s
assert abs(computed_s + 8 * pushed_s - end_s) < 1e-9
figures.lanes(
    {
        "8 trainers": [
            ("waiting for the link", 0, pulled_s),
            ("computing", pulled_s, computed_s),
            ("waiting for the link", computed_s, end_s),
        ],
        "server's link": [
            ("rows go out", 0, pulled_s),
            ("gradients come in", computed_s, end_s),
        ],
    },
    f"8 trainers in step: {busy.speed_up_in_step:.1f} times as fast as one",
)

# %%
assert round(busy.speed_up_in_step, 2) == 4.82

# %% [markdown]
# The link is idle while they compute, and they wait while it works: 8 trainers are not 8 times as fast as one.

# %% [markdown]
# Move the controls:
#
# 1. 64 trainers, one server: how many times as fast as one trainer are they, in step and without waiting ("as they come")? How many servers do they need?
# 2. Back to 8 trainers and one server, but each uses 10,000 rows. How many trainers could the server take now?
# 3. A table of 100,000 rows, and every update uses all of them. Would you still take a server?

# %%
from course_lib.chapters.ch14_parameter_servers import panels

panels.parameter_server()

# %%
crowd, _ = panels.parameter_server(trainers=64).result
print(f"64 trainers: {crowd.speed_up_in_step:.1f} and {crowd.speed_up:.1f} times")
four, _ = panels.parameter_server(trainers=64, servers=4).result
assert crowd.speed_up < 21 and four.speed_up == 64

# %% [markdown]
# **Answers.** (1) 9.2 times in step, 20.9 as they come. If nobody waits, four servers are enough: 64 times. (2) 191: a push takes a tenth of the time, while an update has hardly become shorter. (3) No. The
# all-reduce sends 45 MB from each GPU; the server would have to move 8 times 52 MB. A parameter server is for tables that are large *and* hardly used.

# %% [markdown]
# ### Which row lies where
#
# A full link is one reason for a second server. 256 GB of rows, with their optimizer states, are another. So the rows are divided among several servers. The obvious cut is by ranges: the first half of the rows here, the second half there. But rows are not
# used equally often. A few customers, words or films are met all the time, and where rows are numbered by age or by frequency, these stand together. Let 4 servers hold
# 10,000 rows, and let row $i$ be used in proportion to $1/i$, about as words are:

# %%
torch.manual_seed(0)
use = 1 / torch.arange(1, 10_001.0)
looked_up = torch.multinomial(use, 20_000, replacement=True).unique()
by_range = (looked_up // 2500).bincount(minlength=4)
by_number = (looked_up % 4).bincount(minlength=4)
assert by_range.max() > 3 * by_range.min()
assert by_number.max() < 1.1 * by_number.min()

# %%
loads = {"ranges": by_range, "row mod 4": by_number}
rows = {
    f"{cut}, server {s}": int(n) for cut, ns in loads.items() for s, n in enumerate(ns)
}
title = "Rows that one update uses, by server"
figures.bars(rows, "{:,} rows".format, title, style.WEIGHTS)

# %% [markdown]
# By ranges the first server moves nearly half of the rows, and everybody waits for it. Put row $i$ on server $i$ mod 4, and each moves a quarter. (`pull` above does this. Where the numbers have a pattern, take hash($i$) mod 4.) The trainers need no directory: everybody can compute
# where a row lies.
#
# The demo does this with real text. Three trainers use rows for **n-grams**, sequences of a few characters; they have first one server, then two:

# %%
six = {"batch": 6, "steps": 10, "stream": False}
one = demos.run("parameter_server", ranks=4, **six)
two = demos.run("parameter_server", ranks=5, servers=2, **six)
print("\n".join(one.report().splitlines()[1:3]))
assert sum(two.served_bytes) - sum(one.served_bytes) == 3 * 2 * 8  # more headers
assert max(two.served_bytes) < 0.6 * max(one.served_bytes)

# %%
linked = {
    "one server": one.served_bytes[0],
    "the first of two": two.served_bytes[0],
    "the second of two": two.served_bytes[1],
    "no server, each rank": one.all_reduced_bytes,
}
figures.bars(linked, "{:,.0f} B".format, "What goes through a link in an update")

# %% [markdown]
# The losses are those of one process, up to rounding. The table has 8192 rows and a trainer uses about a hundred of them, so an all-reduce of the table, the last bar, sends some fifty times as much
# as a trainer exchanges.
#
# **Remember**
# - The bytes of all $n$ trainers go through one link. It is full at (time of an update) / (time of one push) trainers.
# - $S$ servers, row $i$ on server $i$ mod $S$: each moves $1/S$. A cut by ranges loads the server that has the hot rows.

# %% [markdown]
# ## 14.4 Nobody waits
#
# In step, each update takes as long as the slowest trainer. Why wait at all? A server can apply each gradient as soon as it comes, and answer each pull with
# the table as it is. This is **asynchronous training** (异步训练). Google's DistBelief did it in 2012 (Dean et al., "Large Scale Distributed Deep Networks").

# %%
show_source(ParameterServer.serve_as_they_come, ParameterServer.update)

# %% [markdown]
# The price: while a trainer computes, others change the table. Its gradient is right for a table that no longer exists. The number of updates that others make in
# between is its **staleness** (陈旧度).
#
# Walk through 160 ms of it. Three trainers compute for 30, 36 and 125 ms, and messages take no time. Each blue arrow is a pull and brings a version of the table. Each orange arrow is a push and makes a new version. What is still to be computed is dashed. Trainer 2 pushes its first gradient, which belongs to version 0.
# Which version is the table at by then?

# %%
from course_lib.chapters.ch14_parameter_servers import steppers

steppers.served(rule="nobody waits", slow_ms=125)

# %%
stories = [served_steps((0.030, 0.036, 0.125), 0.16, bound) for bound in (None, 1)]
pushes = [[it for it in story if it.what == "push"] for story in stories]
firsts = [next(push for push in story if push.who == 2) for story in pushes]
assert [push.part.late for push in firsts] == [7, 4]
assert len({push.at for push in pushes[0]}) == len(pushes[0])  # no two at one time

# %% [markdown]
# Version 7: four updates of trainer 0 and three of trainer 1 have come in between, so the gradient is 7 late. Now choose "together". Nobody is late, and the two fast trainers wait for about three quarters of the time. "At most 1 ahead" lies between the two: the first gradient of trainer 2 is 4 late instead of 7, because trainers 0 and 1 wait for it after two updates each.
#
# **Predict.** One server and three trainers, the third of which computes four times as long as the others. By how many updates is a gradient late,
# on average over *all* gradients?

# %%
late = predict("14.staleness", "Updates late, on average?", yours=None)

# %% [markdown]
# Two trainers pause for 30 ms in each update, as if they were computing, and the third for 120 ms:

# %%
slow = demos.run(
    "parameter_server", ranks=4, steps=24, pause_ms=30, slow=4, stream=False
)
print([f"{fmean(own):.1f} updates late" for own in slow.staleness])

# %%
every = [updates for own in slow.staleness for updates in own]
expect(
    exchanges.mean_staleness(trainers=3),
    fmean(every),
    within=None,  # who comes when is a matter of time: shown, not judged
    label="late, on average",
    yours=late,
)

# %%
figures.late_gradients(
    slow.staleness, "Trainers 0 and 1, and trainer 2, four times as slow"
)

# %% [markdown]
# **Explain.** About 2, as if all were equally fast. Look at one moment: the server applies a gradient, and the rows that the two *other* trainers hold
# have just become older by one. So each update makes two other gradients later by one, whoever made it, and the average is $n - 1$. (The run has a
# little less: at the start nobody is late yet, and between push and pull a trainer holds no rows.)
#
# But the trainers do not share it equally, as the figure shows. While the slow one computes once, each of the others updates four times. So its gradients are about 8 updates late, and theirs about 1.25. (In a run as short as this one it is less, and on a busy machine less again.) A slow
# trainer delays nobody here, but what it sends is old.
#
# ### What lateness does
#
# Take gradient descent on the simplest bowl, $f(w) = w^2/2$, whose gradient is $w$. If each gradient is on time, it converges with every learning rate below 2.
#
# **Predict.** Each gradient comes one update late. Below which learning rate does it converge now?

# %%
limit = predict("14.rate", "Largest learning rate?", yours=None)


# %%
def distance(late, rate, updates):
    """|w| after each update, from w = 1."""
    weights = descend(
        torch.tensor(1.0), lambda w: w, lr=rate, late=late, updates=updates
    )
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

# %%
figures.lines(
    {
        f"{late} late": list(enumerate(distance(late, rate=0.3, updates=30)))
        for late in (0, 1, 4, 5)
    },
    "updates",
    "distance from the minimum",
    "Descent with the learning rate 0.3",
)

# %% [markdown]
# **Explain.** Below 1: one late update halves the limit. If gradients are $\tau$ updates late, the limit is $2 \sin \frac{\pi}{2(2\tau + 1)}$ (Levin and May 1976). The sine of a small angle is about the angle, so the limit is about $\frac{\pi}{2\tau + 1}$. The more trainers, the
# smaller the rate. All four curves have the same learning rate. One late update even helps. Four updates late, $w$ oscillates, and five late, it diverges: each step responds to where $w$ was, overshoots, and comes back
# too late again.
#
# Sparse tables suffer less. Two trainers rarely use the same row, and a row that nobody else has touched isn't stale. Dense layers suffer
# from every late update, which is one reason why large models are trained in step today.
#
# A **staleness bound** (陈旧度上界) lies between the two. Who has finished more than $s$ updates more than the slowest trainer does not begin the next one, but waits (Ho et al. 2013, "stale synchronous parallel"). $s = 0$ is in step, $s = \infty$ is
# asynchronous. `scratch.parameter_server.BoundedServer` does it, and in the stepper it is "at most 1 ahead".
#
# This is how the largest learning rate falls as gradients come later:

# %%
import math

limits = [exchanges.largest_stable_rate(late) for late in range(21)]
assert limits[5] < 0.3 < limits[4]
assert all(
    abs(math.pi / (2 * late + 1) / limits[late] - 1) < 0.05 for late in range(1, 21)
)
figures.lines(
    {"largest rate": list(enumerate(limits))},
    "updates late",
    "learning rate",
    "Below the curve descent converges",
    level={"0.3, as above": 0.3},
)

# %% [markdown]
# **Remember**
# - Nobody waits: fast, but each gradient is late by as many updates as the others make meanwhile.
# - In step: exact, and as slow as the slowest. A bound limits both.

# %% [markdown]
# ### The same choice in a pipeline
#
# The schedules of chapter 11 wait, too. GPipe and 1F1B **flush** (清空) the pipeline before each update: they let it run empty, and the bubble is the price. PipeDream (Harlap et
# al. 2018, arXiv:1806.03377) doesn't. Each stage updates after every backward pass and never stops:

# %%
batch = simulation.timeline("1f1b", stages=4, micro_batches=4)
flowing = simulation.timeline("1f1b", stages=4, micro_batches=12)
charts = {
    "1F1B: an update and a flush after every 4": batch.repeated(3),
    "PipeDream": flowing.tasks,
}
figures.timeline(charts, seconds=False)

# %% [markdown]
# But look at stage 0 of PipeDream. Between the forward and the backward pass of a micro-batch lie three backward passes of others, and after each of them the weights change. The backward pass would
# use weights that the forward pass has never seen. Such a gradient is not stale; it belongs to no weights at all.
#
# So PipeDream keeps the old weights until the backward pass: **weight stashing** (权重暂存). Then each gradient is exact, for weights that are a few updates old.

# %%
from course_lib.scratch import pipeline

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
print("late by stage:", [stage.late[-1] for stage in kept])
assert gap(kept) < 1e-5 < 1e-2 < gap(lost)

# %%
for place, stage in enumerate(kept):
    versions = exchanges.weight_versions(stages=4, stage=place)
    assert stage.most_flying == versions
    assert stage.late[-1] == versions - 1 == 3 - place

# %% [markdown]
# The price is memory: the first of $p$ stages keeps $p$ versions of its weights. PipeDream-2BW (arXiv:2006.09503) updates once for several micro-batches and keeps two. Neither
# has a bubble, and both train with late gradients. GPipe and 1F1B keep one version of the weights, have exact gradients, and pay with the
# bubble. Large models are trained that way.
#
# ### Local SGD: where "periodically" is right
#
# Note 000 says of data parallelism that workers "periodically" sum their gradients. DDP does so in *every* update, or the replicas would
# drift apart. One method does communicate periodically, but it adds up no gradients: **local SGD** (本地随机梯度下降). Each rank updates alone, and
# every $H$ updates the ranks average their *weights*:

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


# %%
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


# %%
walked = launch.run(walk, ranks=2, stream=False)
assert walked[0][4] == walked[1][4] and walked[0][3] != walked[1][3]
figures.lines(
    {f"rank {rank}": list(enumerate(found)) for rank, found in enumerate(walked)},
    "updates",
    "weight",
    "Local SGD with H = 4: apart, and together again",
)

# %% [markdown]
# With $H = 1$ and plain SGD it *is* DDP: the mean of $w - \eta g_r$ is $w - \eta$ times the mean of $g_r$. With $H = 4$ it sends a quarter, and is another algorithm: ranks
# walk apart and meet in the middle. Federated learning on phones is built on it (arXiv:1602.05629), and so is training over slow links between data centres (DiLoCo, arXiv:2311.08105).
#
# ### What is added up, and where
#
# "How gradients are aggregated differs from method to method", says note 003 of pipelines, and stops there. That is true far beyond pipelines:
#
# | method | what is combined | how | where the result is |
# |---|---|---|---|
# | DDP | gradients of all ranks | mean | on all ranks, before the update |
# | ZeRO, FSDP | gradients of all ranks | mean (`scratch.zero`: sum) | each part on its owner |
# | accumulation, pipeline with flush | gradients of micro-batches | sum, in `.grad` | on each stage, before the update |
# | PipeDream | nothing | each micro-batch updates | on each stage |
# | parameter server, in step | gradients of trainers, by row | sum | on the server |
# | parameter server, asynchronous | nothing | each gradient updates as it comes | on the server |
# | local SGD | weights of all ranks | mean, every $H$ updates | on all ranks |
#
# If you move a model from one method to another, mean against sum is what goes wrong. Section 14.7 meets both in one model.
#
# **Remember**
# - Without waiting, a gradient is $n-1$ updates late on average; those of a slow trainer are the latest.
# - One late update halves the largest learning rate, and $\tau$ of them bring it down to about $\pi/(2\tau + 1)$.
# - Flush: exact gradients and a bubble. Stash: no bubble, up to $p$ versions of the weights, late gradients.
# - DDP sums in every update. Local SGD averages weights every $H$ updates, at $1/H$ of the bytes.

# %% [markdown]
# ## 14.5 GeePS: swapping behind the computation
#
# What if the server is your own host? GeePS (Cui et al. 2016, doi:10.1145/2901318.2901323) is a parameter server whose GPUs keep in their memory only what they need now. All the rest waits in the memory of the host, and a separate thread fetches each layer before its
# turn. Note 003 mentions it, with the condition that matters: the exchange must not slow down the computation. When is that so?
#
# While layer $i$ computes, layer $i + 1$ is copied. There is room for these two.
#
# **Predict.** 8 layers. Each computes for 20 ms, and its weights take 30 ms to arrive. One after another that is 400 ms. How long does it
# take if copies hide behind computing?

# %%
hidden = predict("14.swap", "ms for 8 layers?", yours=None, unit="ms")

# %%
show_source(scratch.checkpointing.meanwhile)

# %% [markdown]
# Sleeping slows down the link, and the layers, to imitate large ones. The copies and the products are real.

# %%
from course_lib.chapters.ch14_parameter_servers.lanes import Lanes

LAYERS, COMPUTE_S, SWAP_S = 8, 0.02, 0.03
torch.manual_seed(0)
weights = [torch.randn(64, 64) / 8 for _ in range(LAYERS)]
host = scratch.checkpointing.SlowHost(weights, bytes_per_s=weights[0].nbytes / SWAP_S)
layer = scratch.checkpointing.slow_layer(COMPUTE_S)


def swapped(order):
    """The result, and when layers were copied and computed."""
    lanes = Lanes()
    fetch = lanes.watched("copying", host.fetch)
    compute = lanes.watched("computing", layer)
    return order(fetch, LAYERS, compute, torch.ones(4, 64)), lanes


# %%
first, in_turn = swapped(scratch.checkpointing.one_by_one)
second, hiding = swapped(scratch.checkpointing.meanwhile)
assert torch.equal(first, second)
plan = exchanges.Swapping([COMPUTE_S] * LAYERS, [SWAP_S] * LAYERS)
expect(1000 * plan.overlapped_s, label="meanwhile, as planned", unit="ms", yours=hidden)

# %% [markdown]
# Your machine had other things to do, and a thread that sleeps wakes up late. So take the lengths that were measured for each copy and each layer, and let the formula
# put them together:

# %%
serial, overlapped = (
    exchanges.Swapping(run.lengths_s("computing"), run.lengths_s("copying"))
    for run in (in_turn, hiding)
)
timed = {"within": None, "unit": "s"}  # a time: its gap is shown, not judged
expect(serial.serial_s, in_turn.seconds, label="one by one", **timed)
expect(overlapped.overlapped_s, hiding.seconds, label="meanwhile", **timed)

# %%
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
# here 10 ms: $30 + 7 \cdot 10 + 8 \cdot 20 = 260$ ms. The link never rests, so here the computing hides behind the copying. With 20 ms of copying and 30 ms of computing it
# would take 260 ms as well, but then the GPU would never rest after the first copy.
#
# ### How many tokens are enough?
#
# A layer of $P$ parameters in bf16 has $2P$ bytes. On $T$ tokens its forward pass takes $2PT$ FLOP (chapter 5). With a bus of $B$ bytes/s and a GPU that reaches $F$ FLOP/s, the copy is hidden
# if
#
# $$\frac{2P}{B} \le \frac{2PT}{F}, \qquad \text{that is}\quad T \ge \frac{F}{B}.$$
#
# $P$ cancels: it doesn't matter how large the layer is. For 150 TFLOP/s and PCIe 4:

# %%
enough = 150e12 / PCIE4.bytes_per_s
layer_parameters = 202_383_360  # of LLaMA-2 7B
swap_s = 2 * layer_parameters / PCIE4.bytes_per_s
sizes = [2 ** (10 + step / 4) for step in range(13)]
compute_s = {tokens: 2 * layer_parameters * tokens / 150e12 for tokens in sizes}
run = exchanges.Swapping([compute_s[8192]] * 32, [swap_s] * 32)
assert run.exposed_s[1:] == [0] * 31

# %%
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
# So a whole model can be trained from the host's memory, if the batch is large. ZeRO-Infinity does it, and goes down to disks (arXiv:2104.07857). In section 8.6 the offloaded *optimizer* had its bus time
# added to the step. If each layer is updated while the backward pass goes on through the next one, the same formula says how much of that time is hidden.
#
# **Remember**
# - Exposed: $\max(0, \text{swap} - \text{compute})$ for each layer, and the first copy.
# - With $F/B$ tokens or more, copies of weights are hidden, whatever the layer's size.

# %% [markdown]
# ## 14.6 `torch.distributed`, DDP, RPC
#
# Note 002 asks what the packages are for, and how they differ.
#
# | | `torch.distributed` | `DistributedDataParallel` | `torch.distributed.rpc` |
# |---|---|---|---|
# | what it is | messages and collectives between processes | a module around yours that calls them for you | remote procedure calls: "run this function over there", and what is built on them |
# | who must call | all ranks of a group, the same collective in the same order | all ranks, with the same model | one caller; the callee need not know |
# | what it gives you | tensors | equal gradients on all ranks | results, references to remote objects (`RRef`), autograd and optimizers over processes |
# | backends | Gloo, NCCL, MPI and others | the same: it is a user of `torch.distributed` | see below |
# | fits | programs where all do the same | data parallelism | servers and clients, actors and learners |
# | state | the base of everything | in active development | "stable and in maintenance mode", says its documentation |
#
# (Neither of the first two is `nn.DataParallel`, which one note calls "similar": one process with threads, section 7.2.)
#
# Note 002 quotes: "Gloo is one of the default backends for DDP and RPC frameworks, alongside other backends like NCCL and MPI". Ask your own PyTorch.
#
# **Predict.** How many backends does RPC offer?

# %%
backends = predict("14.backends", "Backends of RPC?", yours=None)

# %%
from torch.distributed import rpc

names = list(rpc.BackendType.__members__)
expect(1, len(names), label="backends", yours=backends)

# %%
print("RPC:", names, "| process groups:", sorted(dist.Backend.backend_list))

# %%
assert names == ["TENSORPIPE"] and "gloo" not in map(str.lower, names)

# %% [markdown]
# **Explain.** One: TensorPipe. The sentence was true once. Until PyTorch 1.9, RPC could send its messages through a process group, which could be Gloo's; that backend was withdrawn in 1.10
# ([pytorch/pytorch issue 55615](https://github.com/pytorch/pytorch/issues/55615)).
#
# ### Legacy, and why it still matters
#
# New programs should not be built on `torch.distributed.rpc`. But the *idea* of asking one process for something is everywhere:
#
# - recommenders: tables sharded over GPUs, which ask each other by all-to-all (TorchRec),
# - reinforcement learning: actors generate, a learner trains and sends weights back, mostly by Ray's remote calls,
# - inference: one machine computes the prompt, and another pulls its keys and values and decodes.
#
# The questions are always those of this chapter: who owns the state, what must travel, whose link is full, and how old may the answer be? And old code has to be read: many systems still run what follows.
#
# **Remember**
# - Collectives need everybody; RPC needs a caller.
# - DDP is a user of `torch.distributed`, and so uses its backends. RPC has one of its own, TensorPipe.

# %% [markdown]
# ## 14.7 Demo: all of it in one model
#
# Note 002 describes a model in two parts and four processes. A **master** (主进程) makes the table on the server and tells the trainers to train. Each trainer has a dense part; the note's is a single fully connected layer
# (全连接层), `nn.Linear`. The arrow with two heads is DDP, the others are RPC:

# %%
figures.who_asks_whom(
    {
        "master": "control",
        "trainer0": "a dense part",
        "trainer1": "a dense part",
        "server": "the table",
    },
    [
        ("master", "trainer0", "train"),
        ("master", "trainer1", "train"),
        ("trainer0", "server", "numbers, gradients"),
        ("server", "trainer0", "rows"),
        ("trainer1", "server", "numbers, gradients"),
        ("server", "trainer1", "rows"),
        ("trainer0", "trainer1", "all-reduce"),
    ],
    "Two trainers, one server, and a master",
)

# %% [markdown]
# The whole model:

# %%
show_source(scratch.parameter_server.HybridModel)

# %% [markdown]
# `table` is a **remote module** (远程模块): calling `forward` sends the row numbers to the server, which looks the rows up and sends them back. The backward pass must take the same way in reverse. PyTorch's **distributed autograd** (分布式自动求导) does
# that: both ends remember each RPC that carries tensors, and the backward pass sends gradients through it. And who updates the table? The trainer asks for that as well:

# %%
show_source(scratch.parameter_server.update)

# %% [markdown]
# The `context` keeps the gradients. The server works for all trainers at once, each with its own context; in `.grad` their gradients would mix.
#
# **Predict.** Each process writes down what happens in it: look-ups, losses, gradients, messages, updates. One update of the two trainers has 22 such events. How many of them happen in the *master*?

# %%
by_master = predict("14.master", "Events in the master?", yours=None)

# %%
hybrid = demos.run("hybrid", ranks=4, stream=False)
count = sum(event.process == "master" for event in hybrid.events)
assert len(hybrid.events) == 22

# %%
expect(0, count, label="events in the master", yours=by_master)

# %%
processes = ("master", "server", "trainer0", "trainer1")
print("    ms  ", *(f"{process:9}" for process in processes))
for event in hybrid.events:
    indent = " " * 10 * processes.index(event.process)
    print(f"{1000 * event.at_s:6.1f}  {indent} {event.what}")

# %% [markdown]
# **Explain.** None. At the beginning the master called each trainer once, "train", and it waits for the answer: a master controls the job, not each step. Now read one trainer's column from top to bottom:
#
# 1. It asks the server for its rows and *waits*: rows first, then the dense part.
# 2. It has the loss, and the backward pass begins with the last dense layer.
# 3. When all dense gradients of a bucket are there, DDP starts its all-reduce (section 7.4). Here all of them fit into one bucket, so the note is right: first the dense gradients, then the all-reduce.
# 4. The gradient of the rows is computed next and leaves for the server. It does *not* wait for the all-reduce. Run the cell several times: sometimes it leaves before the all-reduce has ended, sometimes after.
# 5. The server adds up the gradients of both trainers. The faster trainer cannot update the table before the slower one has looked up its rows. Its backward pass ends with the all-reduce, the all-reduce needs the slower trainer's
#    gradients, and those need the slower trainer's rows. So DDP is already a barrier here. The first barrier in `update` is for models in which no collective joins the trainers, for example one that is nothing but a table on a server.
# 6. Then come the updates, of the table on the server and of the dense parts on the trainers.

# %%
last = hybrid.last  # when a process last did something
for trainer in ("trainer0", "trainer1"):
    starts = last(trainer, "all-reduce starts")
    assert last(trainer, "has the rows") < last(trainer, "has the loss") < starts
    assert starts < last(trainer, "leaves for the server")
    assert last(trainer, "all-reduce ends") < last(trainer, "updates its dense")
    assert last("server", "looks rows up") < last(trainer, "all-reduce ends")
assert last("server", "adds a trainer") < last("server", "updates the table")

# %% [markdown]
# ### Mean here, sum there
#
# DDP takes the *mean* of the dense gradients over trainers. The server *adds* the gradients of its rows. With two trainers, a loss that is right for one of them is wrong by a factor of 2 for the other: the table
# would learn twice as fast. The demo multiplies each trainer's share of the loss by 2, which suits the mean, and halves the learning rate of the table:

# %%
print("\n".join(hybrid.report().splitlines()[:4]))
assert hybrid.weight_difference < 1e-5

# %% [markdown]
# ### What RPC really sends
#
# The log of collectives doesn't see RPC, since TensorPipe is no process group. On one machine TensorPipe would not even use the network: it finds shared memory. So build two nodes with a link between them, as in section 6.8, with both trainers on
# one node and the server on the other. Now the kernel counts every byte on the link, whoever sent it.
#
# Three things come on top of the rows. A packet of 1514 bytes has 66 bytes of Ethernet, IP and TCP headers. For every second packet a bare header of 66 bytes comes back, to acknowledge both (RFC 1122). And each update makes small calls, with names of functions,
# autograd's records and "please step": some 15 kB, however large the rows are. (That was measured with rows of 16 and 64 numbers.)
#
# **Predict.** Both trainers together pull 1,048,576 B of rows in an update and push 1,073,152 B. The rows have 256 numbers each. How many per cent more bytes does the link count?

# %%
more = predict("14.overhead", "Per cent more?", yours=None, unit="%")

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
    expect(theory, 100 * overhead / moved, 0.35, "%", label="more", yours=more)

# %%
if obstacle:
    print(
        f"This machine can't have two nodes: {obstacle}. On another one: 7 to 8 % more."
    )
else:
    print(f"pulled and pushed {moved:,} B, counted {sum(counted['link']):,} B")

# %% [markdown]
# **Explain.** Headers are $66 / 1448 = 4.6$ % of what a packet carries, acknowledgements half as much, and the calls 0.7 %: together 7.5 %. (TCP does not always acknowledge every second packet, and sends some packets twice, so the count differs by about a per cent from run to run.) In the demo above, with
# rows of 16 numbers and a small batch, the calls take more bytes than the rows:
#
# ```
# course demo hybrid --ranks 4 --two-nodes 200
# ```
#
# **Remember**
# - HybridModel: the table by RPC, the dense part by DDP, distributed autograd through both.
# - Dense gradients, then their all-reduce; meanwhile the rows' gradient goes to the server.
# - No trainer may update the table before all have looked up their rows. DDP's all-reduce sees to that; without DDP it takes a barrier. A second barrier, after the updates, is always needed.
# - DDP averages, the server adds.

# %% [markdown]
# ## What to remember
#
# 1. If rows travel, you pay for the rows that are used. If the table is all-reduced, you pay for all of them: in our shop 8,615 times as much.
# 2. Pull different rows, push summed gradients. Row $i$ on server $i$ mod $S$.
# 3. One server's link is full at (time of an update) / (time of one push) trainers.
# 4. Nobody waits: $n-1$ updates late on average, and a smaller learning rate.
# 5. Flush or stash, in step or late: exact gradients cost waiting.
# 6. A copy hides behind computing as long as the computing lasts; copies of weights need $F/B$ tokens for that.
# 7. Collectives need everybody, RPC one caller. PyTorch's RPC is in maintenance mode; the idea is not.

# %%
from course_lib import quiz

quiz("14")

# %% [raw] tags=["quiz"]
# The table grows from 1 to 10 billion rows, the batch stays. Bytes of an exchange?
# [x] the same
# [ ] 10 times
# [ ] 20 times
# Why: Only rows that are used travel. An all-reduce of the table would send 10 times more.
#
# 8 ranks gather sparse gradients instead of asking a server. What does each of them store?
# [ ] an eighth of the table
# [x] the whole table
# [ ] its rows
# Why: sparse=True saves bytes on the wire, and no memory for weights.
#
# One server is full. A second one takes over half of the rows. Which half?
# [ ] the rows from the middle on
# [x] every second row
# [ ] those used least
# Why: Used rows stand together where rows are numbered by age or frequency.
#
# 16 trainers, nobody waits. By how many updates is a gradient late on average?
# [x] 15
# [ ] 8
# [ ] 1
# Why: Each update finds 15 others with rows in their hands.
#
# A pipeline never flushes and keeps old weights for the backward pass. What is exact?
# [ ] nothing
# [x] each gradient, for weights some updates old
# [ ] each gradient, for today's weights
# Why: Without the stash it would be the gradient for no weights at all.

# %% [markdown]
# **Now you:** open [the exercises](../exercises/14_parameter_servers.ipynb).
#
# **Read on.** Li et al. 2014, *Scaling Distributed Machine Learning with the Parameter Server*, OSDI, sections 2 and 3. Ho et al. 2013, *More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server*, NeurIPS. Harlap et al.
# 2018, *PipeDream* (arXiv:1806.03377; Narayanan et al. 2019 at SOSP). Cui et al. 2016, *GeePS* (doi:10.1145/2901318.2901323). Naumov et al. 2019, *Deep Learning Recommendation Model* (arXiv:1906.00091).

# %% tags=["exercise"]
from course_lib import check, hint, solution
from course_lib.chapters.ch14_parameter_servers import exchanges

# %% [markdown] tags=["exercise"]
# ### 14.1 Calculate: three ways to update a table
#
# A table of 40 million rows of 128 numbers in bf16 (2 bytes). Each of 16 GPUs makes 400,000 look-ups in an update and meets 50,000 different rows. Row numbers have 8 bytes; leave headers out. In MB (10⁶ bytes): what does a trainer
# exchange with a parameter server in an update, both ways? Without a server, what does a rank send if all gather the sparse gradients of all? And if they all-reduce the dense gradient?

# %% [raw] tags=["hints"]
# Which of the two, look-ups or different rows, decides what travels?
# Rows come, gradients go back, and each gradient needs the number of its row.
# Gathered: gradients and numbers to 15 others. All-reduced: 2 · 15/16 of the whole table.

# %% tags=["exercise"]
exchanged, gathered, all_reduced = ..., ..., ...
### BEGIN SOLUTION
rows = 50_000 * 128 * 2 / 1e6  # MB; a row travels once, however often it is looked up
numbers = 50_000 * 8 / 1e6
exchanged = 2 * rows + numbers
gathered = 15 * (rows + numbers)
all_reduced = 2 * 15 / 16 * 40_000_000 * 128 * 2 / 1e6
### END SOLUTION
check("14.1", [exchanged, gathered, all_reduced])

# %% [markdown] tags=["exercise"]
# ### 14.2 Calculate: a full link
#
# In each update a trainer uses 200,000 different rows of 128 numbers in fp32 and computes for 50 ms. Each process has a link of 25 GB/s each way; row numbers have 8 bytes, and there are no headers. (a) Nobody waits: how many trainers can one server
# serve before its link is full? (b) You have 128 trainers. How many servers do you need so that no link is full? (c) With so many servers, how many ms does an update of the 128 take if all go in step?

# %% [raw] tags=["hints"]
# How long does one trainer's push keep the server's link busy? And how long is its update?
# alone = 50 ms + (pulled + pushed) / 25 GB/s; trainers = alone / (pushed / 25 GB/s).
# In step each server's link carries 128/S times a trainer's bytes, while nobody computes.

# %% tags=["exercise"]
trainers, servers, in_step_ms = ..., ..., ...
### BEGIN SOLUTION
pulled = 200_000 * 128 * 4
pushed = pulled + 200_000 * 8
alone_s = 0.05 + (pulled + pushed) / 25e9
trainers = alone_s / (pushed / 25e9)
servers = -(-128 // trainers)  # rounded up
in_step_ms = 1000 * (0.05 + 128 / servers * (pulled + pushed) / 25e9)
### END SOLUTION
check("14.2", [trainers, servers, in_step_ms])

# %% [markdown] tags=["exercise"]
# ### 14.3 Debug: the table learns too fast
#
# A model was trained by DDP. Now its table lies on a parameter server. Each trainer still sends the gradient of the *mean* loss over its own samples, and the table learns too fast, the faster the more trainers there are. `table` is a dict
# of rows (of one number each), `pushed` a list with a pair for each trainer: its number of samples, and the gradients of its rows. Correct the server so that it does what one process with all samples would do.

# %% [raw] tags=["hints"]
# Two trainers, the same row, the same gradient: how far does the row move? And in one process?
# Each gradient is that of the mean over the trainer's own samples. The server adds.
# A mean over all samples gives each trainer the weight samples / all samples.


# %% tags=["exercise"]
def apply(
    table: dict[int, float], rate: float, pushed: list[tuple[int, dict[int, float]]]
) -> dict[int, float]:
    """The table after one update with the gradients of all trainers."""
    ### BEGIN GIVEN
    for samples, gradient in pushed:
        for row, value in gradient.items():
            table[row] -= rate * value
    return table
    ### END GIVEN
    ### BEGIN SOLUTION
    everybody = sum(samples for samples, _ in pushed)
    for samples, gradient in pushed:
        for row, value in gradient.items():
            table[row] -= rate * value * samples / everybody
    return table
    ### END SOLUTION


check("14.3", apply)

# %% [markdown] tags=["exercise"]
# ### 14.4 Debug: the missing barrier
#
# A model is nothing but a table on a server: it has no dense part, so no all-reduce joins its two trainers. Its program should have two barriers between them, as `update` in section 14.7 has: one *before* the updates and one *after* them. Here are five programs, with one of
# the barriers or both. Of each you have what its server did in one update and at the beginning of the next: L0 is a look-up for trainer 0, G0 the gradient of trainer 0, U0 the update of the table with it.
#
# | run | the server's events in order |
# |---|---|
# | A | L1 L0 G1 G0 U0 U1 L0 L1 |
# | B | L0 G0 U0 L1 G1 U1 L0 L1 |
# | C | L0 L1 G0 G1 U0 L0 U1 L1 |
# | D | L0 L1 G1 G0 U1 U0 L1 L0 |
# | E | L0 L1 G0 U0 G1 U1 L1 L0 |
#
# Which barrier is proven to be missing: `"before"`, `"after"`, or `"none"`?

# %% [raw] tags=["hints"]
# One barrier divides gradients from updates, the other updates from the next look-ups. Nothing else makes one trainer wait for the other.
# The order of the two trainers may be any, as long as both are on the same side.
# E gave the right numbers, by luck. Did the faster trainer wait for the slower one?

# %% tags=["exercise"]
missing = {"A": ..., "B": ..., "C": ..., "D": ..., "E": ...}
### BEGIN SOLUTION
missing = {
    "A": "none",
    "B": "before",  # trainer 1 gets rows that trainer 0 has changed
    "C": "after",  # trainer 0 gets rows without trainer 1's update
    "D": "none",
    "E": "before",  # the numbers are right this time, since both had their rows
}
### END SOLUTION
check("14.4", missing)

# %% [markdown] tags=["exercise"]
# ### 14.5 Debug: published claims about DDP and RPC
#
# (published mistakes from notes 000 and 002, among right sentences) Which sentences are `"right"`? For each of the others say what is wrong: the `"backend"`, the `"processes"`, the `"rhythm"` or the `"order"`.

# %% [raw] tags=["hints"]
# Three of the seven are right.
# Ask your PyTorch: rpc.BackendType. Look at the trace: what waits for what?
# The table of section 14.6, and the one of what is added up, have the rest.

# %% tags=["exercise"]
verdict = {
    "Gloo is a default backend of RPC": ...,
    "Gloo is a backend of DDP": ...,
    "DDP and nn.DataParallel work alike": ...,
    "DDP: create a process for each replica of the module": ...,
    "DDP: workers sum their gradients periodically": ...,
    "backward: first the dense gradients, then DDP's all-reduce": ...,
    "backward: the rows' gradient is sent when the all-reduce has ended": ...,
}
### BEGIN SOLUTION
verdict = {
    "Gloo is a default backend of RPC": "backend",
    "Gloo is a backend of DDP": "right",
    "DDP and nn.DataParallel work alike": "processes",
    "DDP: create a process for each replica of the module": "right",
    "DDP: workers sum their gradients periodically": "rhythm",
    "backward: first the dense gradients, then DDP's all-reduce": "right",
    "backward: the rows' gradient is sent when the all-reduce has ended": "order",
}
### END SOLUTION
check("14.5", verdict)

# %% [markdown] tags=["exercise"]
# ### 14.6 Implement: what is pushed where
#
# What a trainer pushes, and to whom. `ids` are the rows that it looked up, with repetitions, and `gradients` one number for each look-up. Row $i$ lies on server $i$ mod `servers`, as that server's row $i$ div `servers`. Return a list with a dict for each
# server: the sum of the gradients of each row that it has, by *its* number of the row.

# %% [raw] tags=["hints"]
# Row i lies on server i mod S. Which number has it there?
# Server 1 of 3 has the rows 1, 4, 7, …: its own rows 0, 1, 2, ….
# A dict of sums for each server: add to what is there, or begin with 0.


# %% tags=["exercise"]
def by_server(
    ids: list[int], gradients: list[float], servers: int
) -> list[dict[int, float]]:
    """For each server, the summed gradient of each of its rows that was used."""
    ### BEGIN SOLUTION
    sums = [{} for _ in range(servers)]
    for row, gradient in zip(ids, gradients, strict=True):
        own = sums[row % servers]
        own[row // servers] = own.get(row // servers, 0.0) + gradient
    return sums
    ### END SOLUTION


check("14.6", by_server)

# %% [markdown] tags=["exercise"]
# ### 14.7 Predict: one slow trainer
#
# One server, three trainers, nobody waits. Two of them need 1 s for an update and the third needs 10 s; messages take no time. In the long run, by how many updates are the slow one's gradients late on average? Those of each fast one? All gradients together? Write your numbers down first; then run
# `course demo parameter_server --ranks 4 --pause-ms 20 --slow 10 --steps 100`.

# %% [raw] tags=["hints"]
# While the slow one computes once, how many updates do the two others make together?
# A fast one is overtaken by the other fast one once, and by the slow one now and then.
# The mean of all gradients: 21 of them in 10 seconds, of which one is the slow one's.

# %% tags=["exercise"]
slow, fast, together = ..., ..., ...
### BEGIN SOLUTION
slow = 10 + 10  # updates of the two others in 10 s
fast = 1 + 0.1  # of the other fast one and of the slow one in 1 s
together = (20 * fast + 1 * slow) / 21  # 20 fast gradients and a slow one in 10 s
### END SOLUTION
check("14.7", [slow, fast, together])

# %% [markdown] tags=["exercise"]
# ### 14.8 Predict: the order of backward
#
# One update of the demo `hybrid`, with both barriers. For each pair of events: is the `"first"` always earlier, is the `"second"`, or can `"either"` be? "Dense gradients" means all gradients of a trainer's dense part.

# %% [raw] tags=["hints"]
# For each pair ask: does one need a number that the other makes, or wait at a barrier?
# Two things of different trainers meet only in the all-reduce, and at the barriers.
# The gradient of the rows waits for nobody. The table's update waits for everybody.

# %% tags=["exercise"]
earlier = {
    "server looks up for 0 | loss of 0": ...,
    "rows' gradient of 0 leaves | all-reduce of 0 ends": ...,
    "loss of 1 | dense gradients of 0": ...,
    "all-reduce of 0 ends | dense gradients of 1": ...,
    "server looks up for 1 | rows' gradient of 0 leaves": ...,
    "server updates the table | server looks up for 1": ...,
}
### BEGIN SOLUTION
earlier = {
    "server looks up for 0 | loss of 0": "first",
    "rows' gradient of 0 leaves | all-reduce of 0 ends": "either",
    "loss of 1 | dense gradients of 0": "either",
    "all-reduce of 0 ends | dense gradients of 1": "second",
    "server looks up for 1 | rows' gradient of 0 leaves": "either",
    "server updates the table | server looks up for 1": "second",
}
### END SOLUTION
check("14.8", earlier)

# %% [markdown] tags=["exercise"]
# ### 14.9 Calculate: a 70B model in the host's memory
#
# LLaMA-2 70B has 80 layers of 855,654,400 parameters. Its weights, in bf16, lie in the host's memory, behind a bus of 63 GB/s. A GPU with room for two layers reaches 400 TFLOP/s. (a) How many tokens does it take to hide the copying behind the forward pass? (b) How many
# seconds is a forward pass of 2048 tokens, if each layer is copied while the one before it computes? (c) How many times as long is it without that?

# %% [raw] tags=["hints"]
# A copy takes 2 bytes for each parameter, a token 2 FLOP for each parameter.
# With 2048 tokens, which of the two is longer? Then that one never rests.
# The first copy, 79 times the longer of the two, and the last layer's computing.

# %% tags=["exercise"]
tokens, seconds, times_as_long = ..., ..., ...
### BEGIN SOLUTION
tokens = 400e12 / 63e9
swap_s, compute_s = 2 * 855_654_400 / 63e9, 2 * 855_654_400 * 2048 / 400e12
run = exchanges.Swapping([compute_s] * 80, [swap_s] * 80)
seconds = run.overlapped_s
times_as_long = run.serial_s / run.overlapped_s
### END SOLUTION
check("14.9", [tokens, seconds, times_as_long])

# %% [markdown] tags=["exercise"]
# ### 14.10 Build: a table on servers
#
# Write both ends of a parameter server. Row i of the table lies on server i mod S, as that server's row i div S. For each request a trainer first announces to every server how many rows it wants there, even if none. For a pull it then
# sends their numbers on that server and receives the rows; for a push it sends their gradients, in the order in which it has asked for them. A batch may name a row many times: the row travels once, and so does the sum of its gradients. Trainers that are done
# announce `STOP`.
#
# `messages` has five methods: `announce(count, to)`; `announced(source)`, which returns the sender and its number, of any rank if you give none; `send(tensor, to)`; `receive_ids(count, source)` and `receive_rows(count, width, source)`.
# What has no rows is not sent at all, and you need not treat it apart.
#
# The check runs different rows on one server first, then rows drawn many times, then several servers, then trainers that do not wait for each other. What passes is kept as `mine/server.py`, and
# `course demo parameter_server --parts mine` trains on it.

# %% [raw] tags=["hints"]
# serve_together needs two loops: all trainers get their rows before the first gradient.
# ids.unique(return_inverse=True) has the different rows, and for each id its place among them; rows[places] undoes it.
# A sum by row: zeros(...).index_add_(0, places, gradients), both flattened. An assignment by index would keep one gradient only.
# distinct % S == s are the rows of server s, distinct // S their numbers there. Keep what each server was asked for until push.
# messages.announced() without a rank says who has come. A trainer whose ids you keep has rows in its hands, so what comes next from it is a gradient.

# %% tags=["exercise"]
from collections.abc import Sequence

import torch
from torch import Tensor

from course_lib.scratch.parameter_server import STOP, Messages

### BEGIN GIVEN


class RemoteTable:
    """The trainer's end of a table of rows of `width` numbers on the ranks `servers`."""

    def __init__(self, width: int, servers: Sequence[int], messages: Messages) -> None:
        self.width, self.servers, self.messages = width, servers, messages

    def pull(self, ids: Tensor) -> Tensor:
        """The rows (…, width) numbered `ids` (…), each asked for once."""
        ...

    def push(self, gradient: Tensor) -> None:
        """Send the gradient (…, width) of what was pulled last, summed by row."""
        ...

    def stop(self) -> None:
        """Announce STOP to all servers."""
        ...


class ParameterServer:
    """Serves its `table` (rows, width) to the ranks `trainers`, and applies plain SGD to it."""

    def __init__(
        self, table: Tensor, lr: float, trainers: Sequence[int], messages: Messages
    ) -> None:
        self.table, self.lr = table, lr
        self.trainers, self.messages = trainers, messages
        self.updates = 0
        self.asked = {}  # by trainer: the ids that it has pulled, and the updates until then
        self.staleness = {trainer: [] for trainer in trainers}

    def serve_together(self) -> Tensor:
        """One update of all trainers, who get their rows before the table changes.

        Returns the sum of their gradients, as large as the table; the table changes by -lr · it.
        """
        ...

    def serve_as_they_come(self) -> None:
        """Answer whoever comes, and apply each gradient at once, until all have announced STOP.

        `staleness[trainer]` gets an entry for each gradient: the updates of the table after the
        rows were pulled and before the gradient arrived.
        """
        ...


### END GIVEN
### BEGIN SOLUTION
from course_lib.scratch.parameter_server import ParameterServer, RemoteTable

### END SOLUTION

check("14.10", [RemoteTable, ParameterServer])
