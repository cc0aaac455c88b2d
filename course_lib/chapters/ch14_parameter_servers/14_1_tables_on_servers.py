# %% [raw] tags=["sitting"]
# question: What does one update of a table cost if only the rows that it uses travel?
# importance: 4
# difficulty: 3
# group: alone
# needs: 6, 7

# %% [markdown]
# # 14 Tables on servers
#
# A shop recommends things to a billion customers. Its model has a table with one row of 64 numbers for each of them, in fp32: 256 GB. You train it by DDP on 8 GPUs with links of 25 GB/s, and in one update each GPU meets 100,000 customers.
# The table does not fit, and its gradient takes as much again. Suppose there were room. **How long would the all-reduce take, and how much of what it sends is anything but zeros?**
#
# Four questions lead through this chapter: who owns the state, what must travel, whose link is full, and how old may an answer be? By the end of this sitting you can
#
# - say which part of a model is sparse, and compute what one update of it sends in four ways,
# - explain a parameter server by its two requests, pull and push,
# - say when its link is full, and what recommenders do instead today.
#
# You need chapters 6, 7 and 11.

# %%
import torch
import torch.distributed as dist
from torch import nn

from course_lib import (
    demos,
    expect,
    launch,
    measure,
    predict,
    style,
)
from course_lib.chapters.ch14_parameter_servers import exchanges, figures, panels
from course_lib.scratch.parameter_server import (
    Messages,
    ParameterServer,
    RemoteTable,
)
from course_lib.theory import collectives, units

launch.warm_up()
torch.set_num_threads(1)

# %% [markdown]
# **Predict.** Suppose each GPU could fetch exactly the rows that it meets, and send their gradients back. How many times more bytes does DDP push through each GPU's link? Count the fetch and the return separately, since they cannot
# overlap. (A row number takes 8 bytes.)

# %%
factor = predict("14.factor", "All-reduced / exchanged?", yours=None)

# %% [markdown]
# ## 14.1 Sparse and dense
#
# An **embedding** (嵌入) turns a number into a row of a table. Take a table of 6 rows and look up rows 4, 1 and 4:

# %%
table = nn.Embedding(6, 2)
table(torch.tensor([4, 1, 4])).sum().backward()
figures.used_rows([4, 1, 4], table.weight.grad.tolist(), "A table of 6 rows")

# %% [markdown]
# Row 4 was used twice, so it has the sum of both gradients. Rows that nobody used are zeros. Such a table is the **sparse part** (稀疏部分) of a model: large, and hardly touched by one batch. The matrices that follow it are
# the **dense part** (稠密部分): every sample uses all of their weights.
#
# Language models are dense: their table is small, some 100,000 rows, and the output layer, which often shares it, gives every row a gradient. Recommenders are sparse, and their tables take terabytes (Meta has trained
# models of up to 12 trillion parameters, arXiv:2104.05158).
#
# DDP does not look for zeros. It all-reduces all rows, and each GPU sends $2(n-1)/n$ times the table (chapter 6):

# %%
exchange = exchanges.RowExchange(rows=100_000, width=64)
all_reduced = collectives.sent_bytes("all-reduce", 10**9 * 64 * 4, ranks=8)
expect(
    exchanges.dense_over_sparse(exchange, table_rows=10**9, ranks=8),
    all_reduced / exchange.total_bytes,
    label="all-reduced / exchanged",
    yours=factor,
)

# %% [markdown]
# **Explain.** 8,615 times. With DDP each GPU sends 448 GB, which takes 18 s, but only 0.01 % of its gradient's rows, and at most 0.08 % of the sum's, are not zero. The useful part is 52 MB and takes 2 ms:
#
# $$\underbrace{100{,}000 \cdot 64 \cdot 4}_{\text{rows, there}} + \underbrace{100{,}000 \cdot 64 \cdot 4}_{\text{gradients, back}} +
# \underbrace{100{,}000 \cdot 8}_{\text{row numbers}} = 52 \text{ MB}.$$
#
# The table's size does not appear: ten times as many customers cost ten times the memory, and not one byte more on the wire.
#
# **Remember**
# - A table's gradient has one non-zero row for each distinct row that the batch looked up.
# - All-reduce pays for the table, an exchange of rows pays for the batch.

# %% [markdown]
# ## 14.2 Pull and push by hand
#
# A **parameter server** (参数服务器) is a process that owns the table and trains nothing. The processes that compute gradients are its **trainers** (训练器). In an update each of them makes two requests (Li et al. 2014):
#
# - **pull** (拉取): "give me rows 4 and 1". Each row travels once, however often the batch names it.
# - **push** (推送): "here are their gradients". Those of one row are summed before they travel.
#
# The server applies its optimizer to them, so a trainer holds neither the table nor its optimizer states. **In step** (同步训练) means that all trainers get their rows before the table changes.
#
# **Predict.** One server, two trainers. Trainer 0 looks up the rows 7, 3, 7, 7, and trainer 1 the rows 3 and 9. How many rows or gradients of rows pass through trainer 0's link in one update, both ways together?

# %%
rows_0 = predict("14.exchange", "Rows there and back?", yours=None)

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
sent = [log["send-recv"].size_bytes for _, log in trainers]
two_rows = exchanges.RowExchange(rows=2, width=64)
# what the server sent, less trainer 1's two rows
received = from_server["send-recv"].size_bytes - two_rows.pulled_bytes
in_rows = (sent[0] + received) / 256  # a row has 256 bytes
expect(4, in_rows, within=0.05, label="rows there and back", yours=rows_0)

# %% [markdown]
# **Explain.** Four: rows 7 and 3 come, and their two gradients go back. The 3 % above that are two row numbers and two headers of 8 bytes each. Here are both trainers:

# %% tags=["drawing"]
calls, looking = [], {}
for rank, ids in LOOKED_UP.items():
    trainer = f"trainer {rank - 1}"
    rows = exchanges.RowExchange(rows=len(set(ids)), width=64)
    assert sent[rank - 1] == rows.pushed_bytes
    looking[trainer] = f"looks up {ids}"
    calls.append((trainer, "server", f"numbers, gradients: {rows.pushed_bytes} B"))
    calls.append(("server", trainer, f"rows: {rows.pulled_bytes} B"))
looking["server"] = "a table of 10 rows"
figures.who_asks_whom(looking, calls, "One update")

# %% [markdown]
# Each trainer sent a gradient of 1 for every look-up. The learning rate was 0.5, so the table has changed by half of what the server summed up:

# %%
summed = (0 - 2 * served_table[:, :2]).tolist()
assert [summed[row][0] for row in (3, 7, 9)] == [2, 3, 1]
figures.used_rows(LOOKED_UP[1] + LOOKED_UP[2], summed, "What the server summed up")

# %% [markdown]
# Row 7 was used three times by one trainer, row 3 once by each: the server *adds*. The result is the gradient of the sum of all losses.

# %% [markdown]
# ### A third way: a gradient that knows its rows
#
# PyTorch's embedding has a switch, `sparse=True`:

# %%
table = nn.Embedding(1000, 64, sparse=True)
table(torch.tensor([7, 3, 7, 7])).sum().backward()
gradient = table.weight.grad
print(gradient.layout, tuple(gradient.shape), gradient._values().nbytes, "B of values")
together = gradient.coalesce()
assert together.indices().tolist() == [[3, 7]]
print(together.indices().tolist(), together.values()[:, 0].tolist())

# %% [markdown]
# Now the gradient is a **sparse tensor** (稀疏张量): row numbers and values, at first one entry for each look-up. `coalesce` sums the entries of one row.
#
# Several ranks cannot add up such gradients entry by entry, since the third entry of each belongs to another row. So every rank gathers the rows of all ranks and adds them up itself. A rank sends its
# rows to $n-1$ others once, where a trainer moves them twice: gathering costs about $(n-1)/2$ times the bytes of a server, and the table stays whole on every rank. Gloo does this inside `dist.all_reduce`. NCCL refuses sparse tensors
# ([pytorch/pytorch issue 22400](https://github.com/pytorch/pytorch/issues/22400), open since 2019), so on the shop's GPUs DDP would stop with an error.

# %% [markdown]
# ### What recommenders do today: the table is cut over the GPUs
#
# The fourth way needs no server. Each of the 8 GPUs owns an eighth of the rows, and the GPUs ask each other by all-to-all (chapter 6). For the shop, one update is:
#
# | | what travels | by | leaves each GPU |
# |---|---|---|---|
# | 1 | row numbers, to the rows' owners | all-to-all | 0.7 MB |
# | 2 | rows, back to who asked | all-to-all | 22.4 MB |
# | 3 | gradients of the dense part | all-reduce (DDP) | $2 \cdot 7/8$ of the dense part |
# | 4 | gradients of the rows, to their owners | all-to-all | 22.4 MB |
#
# Then each owner updates its rows. TorchRec, PyTorch's library for recommenders, calls this *row-wise* sharding. It also offers *table-wise* (each GPU owns whole tables) and *column-wise* (each owns some numbers of every row), and its planner chooses for each table.
#
# All four ways, first what moves, then what is stored:

# %% tags=["drawing"]
seven_eighths = 7 / 8 * 100_000
assert round(seven_eighths * 8 / 1e6, 1) == 0.7
assert round(seven_eighths * 256 / 1e6, 1) == 22.4
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

# %% tags=["drawing"]
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
# **Remember**
# - Pull the distinct rows, push the sum of their gradients: about $2 \cdot$ rows $\cdot$ width $\cdot$ bytes of a number.
# - To gather sparse gradients costs $(n-1)/2$ times as much.
# - Recommenders cut the table over the GPUs: all-to-all of numbers, of rows, and of gradients.

# %% [markdown]
# ## 14.3 The server's link
#
# What all trainers pull and push goes through one link, the server's.
#
# **Predict.** A trainer computes for 20 ms in each update and exchanges 100,000 rows of 64 numbers. Each process has a link of 25 GB/s each way. Trainers do not wait for each other. How many of them can one server serve before its link is busy all the time?

# %%
most = predict("14.saturated", "Trainers?", yours=None)

# %%
busy = exchanges.ServedTraining(
    exchange, trainers=8, servers=1, compute_s=0.02, bytes_per_s=25e9
)
pushed_s = busy.exchange.pushed_bytes / busy.bytes_per_s
assert busy.saturating_trainers == busy.alone_s / pushed_s
expect(busy.saturating_trainers, label="trainers", yours=most)

# %% [markdown]
# **Explain.** A trainer's update takes $20 + 2.08$ ms. In this time the server must receive 26.4 MB from each trainer, which takes 1.06 ms. (Rows go the other way at the same time.) So 20.9 trainers fill its link, and a 22nd makes nothing faster.
#
# That holds if nobody waits. In step, the link is idle while all compute, and they wait while it works:

# %% tags=["drawing"]
pulled_s = 8 * exchange.pulled_bytes / busy.bytes_per_s
computed_s, end_s = pulled_s + busy.compute_s, busy.in_step_s
assert abs(computed_s + 8 * pushed_s - end_s) < 1e-9
assert round(busy.speed_up_in_step, 2) == 4.82
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

# %% [markdown]
# Move the controls:
#
# 1. 64 trainers, one server: how many times as fast as one trainer are they, in step and "as they come"? How many servers do they need?
# 2. 8 trainers, one server, but each uses 10,000 rows. How many trainers could the server take now?
# 3. A table of 100,000 rows, and every update uses all of them. Would you still take a server?

# %%
from course_lib.chapters.ch14_parameter_servers import panels

panels.parameter_server()

# %% [markdown]
# **Answers.** (1) 9.2 times in step, 20.9 as they come. With four servers they are 64 times as fast. (2) 191: a push takes a tenth of the time, while an update is hardly shorter. (3) No. The all-reduce sends 45 MB from each GPU; the server would have to move 8 times 52 MB. A
# parameter server is for tables that are large *and* hardly used.

# %%
crowd, _ = panels.parameter_server(trainers=64).result
four, _ = panels.parameter_server(trainers=64, servers=4).result
print(f"64 trainers: {crowd.speed_up_in_step:.1f} and {crowd.speed_up:.1f} times")
assert crowd.speed_up < 21 and four.speed_up == 64

# %% [markdown]
# ### Several servers
#
# Put row $i$ on server $i$ mod $S$. Then each of $S$ servers moves $1/S$ of the bytes, and every trainer can compute where a row lies. (The deeper sitting shows why ranges are worse.)
#
# The demo trains on real text. Its trainers use rows for **n-grams**, sequences of a few characters. They have first one server, then two:

# %%
six = {"batch": 6, "steps": 10, "stream": False}
one = demos.run("parameter_server", ranks=4, **six)
two = demos.run("parameter_server", ranks=5, servers=2, **six)
print("\n".join(one.report().splitlines()[1:3]))
assert sum(two.served_bytes) - sum(one.served_bytes) == 3 * 2 * 8  # more headers
assert max(two.served_bytes) < 0.6 * max(one.served_bytes)

# %% tags=["drawing"]
linked = {
    "one server": one.served_bytes[0],
    "the first of two": two.served_bytes[0],
    "the second of two": two.served_bytes[1],
    "no server, each rank": one.all_reduced_bytes,
}
figures.bars(linked, "{:,.0f} B".format, "What goes through a link in an update")

# %% [markdown]
# The losses are those of one process, up to rounding. Each trainer uses some 125 of the table's 8192 rows (the server sends 192,000 B), so the last bar, an all-reduce of the table, is long.
#
# **Remember**
# - The bytes of all $n$ trainers go through one link. It is full at (time of an update) / (time of one push) trainers.
# - $S$ servers, row $i$ on server $i$ mod $S$: each moves $1/S$.

# %% [markdown]
# ## The answer
#
# The all-reduce would take **18 s for 448 GB**, of which over 99.9 % are zeros. An exchange of the used rows takes 52 MB, **8,615 times less**, and does not depend on the size of the table.
#
# **Read on.** Li et al. 2014, *Scaling Distributed Machine Learning with the Parameter Server*, OSDI, sections 2 and 3. Naumov et al. 2019, *DLRM* (arXiv:1906.00091).

# %% tags=["exercise"]
from course_lib import check, hint, solution

# %% [markdown] tags=["exercise"]
# ### 14.1 Calculate: three ways to update a table
#
# A table of 40 million rows of 128 numbers in bf16 (2 bytes). Each of 16 GPUs makes 400,000 look-ups in an update and meets 50,000 different rows. Row numbers have 8 bytes; leave headers out. In MB (10⁶ bytes): what does a trainer
# exchange with a parameter server in an update, both ways? Without a server, what does a rank send if all gather the sparse gradients of all? And if they all-reduce the dense gradient?

# %% [raw] tags=["hints"]
# importance 3, difficulty 2
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
# ### 14.3 Debug: the table learns too fast
#
# A model was trained by DDP. Now its table lies on a parameter server. Each trainer still sends the gradient of the *mean* loss over its own samples, and the table learns too fast, the faster the more trainers there are. `table` is a dict
# of rows (of one number each), `pushed` a list with a pair for each trainer: its number of samples, and the gradients of its rows. Correct the server so that it does what one process with all samples would do.

# %% [raw] tags=["hints"]
# importance 3, difficulty 3
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
# ### 14.6 Implement: what is pushed where
#
# What a trainer pushes, and to whom. `ids` are the rows that it looked up, with repetitions, and `gradients` one number for each look-up. Row $i$ lies on server $i$ mod `servers`, as that server's row $i$ div `servers`. Return a list with a dict for each
# server: the sum of the gradients of each row that it has, by *its* number of the row.

# %% [raw] tags=["hints"]
# importance 2, difficulty 2
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
# ### 14.11 Predict: which of four ways?
#
# Four teams train a model with a table. Choose for each of them: `"DDP"` (dense gradients, all-reduced), `"gather"` (sparse gradients, gathered by all ranks), `"server"` (parameter servers) or `"all-to-all"` (the table cut over the GPUs).
#
# - A: A recommender on 64 GPUs of 80 GB with NCCL. The table has 2 TB, and each GPU meets 50,000 rows in an update.
# - B: A table of 10,000 rows of 64 numbers on 8 GPUs. Each batch meets nearly all of the rows.
# - C: 500 cheap machines without GPUs, of very different speed, that come and go. The table has 3 TB. No trainer may wait for another.
# - D: Two ranks over Gloo, each with a table of 4 GB that fits easily. A batch meets 200 rows. There is no third machine.

# %% [raw] tags=["hints"]
# importance 4, difficulty 2
# Ask for each team: does the table fit on every rank? How much of it does a batch use? Must all take part at the same time?
# Collectives need all ranks at the same time. Gathered rows need a backend that takes sparse tensors, and the whole table on each rank.
# With two ranks (n - 1)/2 is a half: who is cheaper then?

# %% tags=["exercise"]
way = {"A": ..., "B": ..., "C": ..., "D": ...}
### BEGIN SOLUTION
way = {
    "A": "all-to-all",  # 31 GB a GPU; NCCL gathers no sparse gradients
    "B": "DDP",  # nothing is sparse
    "C": "server",  # no collective works without all ranks
    "D": "gather",  # half the bytes of a server, and none is needed
}
### END SOLUTION
check("14.11", way)
