# %% [raw] tags=["sitting"]
# question: How old is a gradient where nobody waits?
# importance: 3
# difficulty: 3
# group: alone

# %% [markdown]
# # 14 Nobody waits
#
# Three trainers share a parameter server. Two need 30 ms for an update and the third 120 ms. In step, all take 120 ms. If nobody waits, the fast two make four times as many updates, but the table changes while each of them computes. **How many updates old is a gradient? And where DDP joins the trainers?**
#
# By the end of this sitting you can
#
# - predict by how many updates a gradient is stale, and say what that does to the learning rate,
# - say what `torch.distributed`, DDP and RPC (chapter 6) are for, and read the order of events in a model that uses all three,
# - say what each method adds up, and where.

# %%
from statistics import fmean

import torch.distributed as dist

from course_lib import (
    demos,
    expect,
    launch,
    predict,
    scratch,
    show_source,
)
from course_lib.chapters.ch14_parameter_servers import exchanges, figures
from course_lib.theory import served_steps

launch.warm_up()

# %% [markdown]
# ## 14.4 Nobody waits
#
# A server need not wait for the slowest trainer. It can apply each gradient as soon as it comes, and answer each pull with the table as it is: **asynchronous training** (异步训练; Dean et al. 2012, "Large Scale Distributed Deep Networks").
#
# The price: while a trainer computes, others change the table, so its gradient is right for a table that no longer exists. The number of updates that others make in between is its **staleness** (陈旧度).
#
# Step through 160 ms of it. Three trainers compute for 30, 36 and 125 ms, so that no two push at once. Messages take no time. A blue arrow is a pull and brings a version of the table, an orange one is a push and makes a new version. When trainer 2 pushes
# its first gradient, which belongs to version 0, which version is the table at?

# %%
from course_lib.chapters.ch14_parameter_servers import steppers

steppers.served(rule="nobody waits", slow_ms=125)

# %% [markdown]
# Version 7: trainer 0 has made four updates and trainer 1 three, so the gradient is 7 updates stale ("7 late" in the picture). Now choose "together": no gradient is stale, and the two fast trainers wait for about three quarters of the time. "At most 1 ahead" is a **staleness bound** (陈旧度上界): a trainer that is
# more than one update ahead of the slowest waits before it starts its next (Ho et al. 2013). How stale is trainer 2's first gradient then?

# %%
stories = [served_steps((0.030, 0.036, 0.125), 0.16, bound) for bound in (None, 1)]
pushes = [[event for event in story if event.what == "push"] for story in stories]
firsts = [next(push for push in story if push.who == 2) for story in pushes]
assert [push.part.late for push in firsts] == [7, 4]
assert len({push.at for push in pushes[0]}) == len(pushes[0])  # no two at one time
print("updates stale without and with the bound:", [it.part.late for it in firsts])

# %% [markdown]
# Four: each fast trainer makes two updates, and then waits.
#
# **Predict.** One server and three trainers, of which the third computes four times as long as the others. Nobody waits. How many updates stale is a gradient, on average over *all* gradients?

# %%
late = predict("14.staleness", "Updates stale, on average?", yours=None)

# %%
slow = demos.run(
    "parameter_server", ranks=4, steps=24, pause_ms=30, slow=4, stream=False
)
every = [updates for own in slow.staleness for updates in own]
expect(
    exchanges.mean_staleness(trainers=3),
    fmean(every),
    within=None,  # who comes when is a matter of time: shown, not judged
    label="updates stale, on average",
    yours=late,
)

# %% tags=["drawing"]
figures.late_gradients(
    slow.staleness, "Trainers 0 and 1, and trainer 2, four times as slow"
)

# %% [markdown]
# **Explain.** About 2, as if all were equally fast. Whenever the server applies a gradient, the rows that the two *other* trainers hold become older by one update. So each update, from a fast trainer or a slow one, makes two other gradients staler by one. The average is $n - 1$. (The run has less: at the start
# no gradient is stale yet, and between push and pull a trainer holds no rows, for long on a busy machine.)
#
# But the trainers do not share it equally. While the slow one computes once, each of the others updates four times. So in a long run its gradients are about 8 updates stale, and theirs about 1.25.
#
# What does staleness do? Gradient descent on $f(w) = w^2/2$ converges for every learning rate below 2. If each gradient is $\tau \ge 1$ updates stale, the limit falls to about $\pi/(2\tau + 1)$ (Levin and May 1976). **The more trainers, the smaller the learning rate.** Sparse tables suffer less,
# since two trainers rarely use the same row at the same time. Dense layers suffer from every stale update, one reason why large models are trained in step.

# %% [markdown]
# ### Where you meet staleness today
#
# In reinforcement learning of language models, *actors* generate texts with a copy of the weights while a *learner* updates them. If nobody waits, a text was written with weights some versions old: **policy lag**. AReaL bounds the number of versions (arXiv:2505.24298). IMPALA scales each sample by how much more or less probable the new weights make it (arXiv:1802.01561).
#
# **Remember**
# - Nobody waits: each gradient is $n-1$ updates stale on average, and a slow trainer's are the stalest.
# - In step: exact, and as slow as the slowest. A bound limits both.

# %% [markdown]
# ### Deeper: the course's own server
#
# Try exercise 14.10 first: there you write both ends. `unique` lets each row travel once, and `places` says where each row goes afterwards. `index_add_` does the opposite for gradients.

# %%
from course_lib.scratch.parameter_server import ParameterServer, RemoteTable

show_source(RemoteTable.pull, RemoteTable.push)

# %%
show_source(ParameterServer.serve_together, ParameterServer.gradient)

# %%
show_source(ParameterServer.serve_as_they_come, ParameterServer.update)

# %% [markdown]
# `scratch.parameter_server.BoundedServer` is the one with a staleness bound.

# %% [markdown]
# ## 14.6 `torch.distributed`, DDP, RPC
#
# | | `torch.distributed` | `DistributedDataParallel` | `torch.distributed.rpc` |
# |---|---|---|---|
# | what it is | messages and collectives between processes | a module around yours that calls them for you | remote procedure calls: "run this function over there" |
# | who must call | all ranks of a group, in the same order | all ranks, with the same model | one caller; the callee need not know |
# | state | the base of everything | in active development | "stable and in maintenance mode", says its documentation |
#
# Build no new program on `torch.distributed.rpc`, but old code has to be read. The idea lives on: reinforcement learning calls its actors through Ray.
#
# **Remember**
# - Collectives need everybody; RPC, in maintenance mode, needs a caller.

# %% [markdown]
# ### Deeper: which backends RPC has
#
# `nn.DataParallel` is a fourth thing, though note 000 calls it similar: a single process with one thread per GPU (section 7.2).
#
# Which backends do they use? Ask your own PyTorch.
#
# **Predict.** How many backends does RPC offer?

# %%
backends = predict("14.backends", "Backends of RPC?", yours=None)

# %%
from torch.distributed import rpc

names = list(rpc.BackendType.__members__)
assert names == ["TENSORPIPE"]
expect(1, len(names), label="backends", yours=backends)

# %%
print("RPC:", names, "| process groups:", sorted(dist.Backend.backend_list))

# %% [markdown]
# **Explain.** One: TensorPipe. Until PyTorch 1.9, RPC could also use a process group, which could be Gloo's
# ([pytorch/pytorch issue 55615](https://github.com/pytorch/pytorch/issues/55615)). Note 002 says: "Gloo is one of the default backends for DDP and RPC frameworks". That was true once, and of DDP it still is.

# %% [markdown]
# ## 14.7 Demo: all of it in one model
#
# Note 002 describes four processes. A **master** (主进程) makes the table on the server and starts two trainers. Each trainer has a dense part, a fully connected layer (全连接层). The arrow with two heads is DDP, the others are RPC:

# %% tags=["drawing"]
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

# %%
show_source(scratch.parameter_server.HybridModel)

# %% [markdown]
# `table` is a **remote module** (远程模块): calling `forward` sends the row numbers to the server, which looks the rows up and sends them back. PyTorch's **distributed autograd** (分布式自动求导) takes the same way in reverse: both ends remember each RPC that carried tensors, and the backward pass
# sends gradients through it. The trainer also asks for the update of the table:

# %%
show_source(scratch.parameter_server.update)

# %% [markdown]
# The `context` keeps the gradients, because in the server's `.grad` those of all trainers would mix.
#
# **Predict.** Each process writes down its look-ups, losses, gradients, messages and updates. One update of the two trainers has 22 such events. How many of them happen in the *master*?

# %%
by_master = predict("14.master", "Events in the master?", yours=None)

# %%
hybrid = demos.run("hybrid", ranks=4, stream=False)
count = sum(event.process == "master" for event in hybrid.events)
assert len(hybrid.events) == 22
expect(0, count, label="events in the master", yours=by_master)

# %%
processes = ("master", "server", "trainer0", "trainer1")
print("    ms  ", *(f"{process:9}" for process in processes))
for event in hybrid.events:
    indent = " " * 10 * processes.index(event.process)
    print(f"{1000 * event.at_s:6.1f}  {indent} {event.what}")

# %% [markdown]
# **Explain.** None. The master called each trainer once, "train", and waits for the answer: it controls the job, not each step. Now read one trainer's column downwards:
#
# 1. The trainer asks the server for its rows and *waits*.
# 2. It has the loss, and the backward pass begins.
# 3. When all dense gradients of a bucket are there, DDP starts its all-reduce (section 7.4). Here one bucket holds them all, so the order of note 002 is right: first the dense gradients, then the all-reduce.
# 4. The gradient of the rows leaves for the server. It does *not* wait for the all-reduce: in some runs it leaves before the all-reduce has ended, in others after.
# 5. DDP is a barrier here: the all-reduce needs the gradients of both trainers, so neither can update the table before the other has looked up its rows. The first barrier in `update` is for models
#    without a collective.
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
# DDP takes the *mean* of the dense gradients over trainers. The server *adds* the gradients of its rows. With a loss that suits the mean, the table of two trainers would learn twice as fast as it should. So the demo halves its learning rate:

# %%
print("\n".join(hybrid.report().splitlines()[:4]))
assert hybrid.weight_difference < 1e-5

# %% [markdown]
# If you move a model from one method to another, the usual bug is a mean where the other method expects a sum.
#
# | method | what is combined | how | where the result is |
# |---|---|---|---|
# | DDP | gradients of all ranks | mean | on all ranks, before the update |
# | ZeRO, FSDP | gradients of all ranks | mean (`scratch.zero`: sum) | each part on its owner |
# | accumulation, pipeline with flush | gradients of micro-batches | sum, in `.grad` | on each stage, before the update |
# | parameter server, in step | gradients of trainers, by row | sum | on the server |
# | parameter server, asynchronous | nothing | each gradient updates as it comes | on the server |
# | local SGD (deeper sitting) | weights of all ranks | mean, every $H$ updates | on all ranks |
#
# **Remember**
# - No trainer may update the table before all have looked up their rows. DDP's all-reduce sees to that; without DDP a barrier must. After the updates a barrier is always needed.
# - DDP averages, the server adds.

# %% [markdown]
# ## The answer
#
# With $n$ trainers a gradient is **$n-1$ updates stale** on average, however fast each of them is: 2 for three trainers. The slow trainer's gradients are about 8 updates stale, and the fast ones' about 1.25. Where DDP joins the trainers, they wait for each other in its all-reduce, and no gradient is stale.

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
# 8 GPUs hold an eighth of the rows each and serve each other. Which collective moves the rows?
# [x] all-to-all
# [ ] all-reduce
# [ ] broadcast
# Why: Each GPU has other rows for every other GPU.
#
# 16 trainers, nobody waits. How many updates stale is a gradient on average?
# [x] 15
# [ ] 8
# [ ] 1
# Why: Each update finds 15 others with rows in their hands.
#
# A model moves from DDP to a parameter server with 4 trainers, and nothing else changes. Its table then learns
# [x] four times as fast
# [ ] as fast
# [ ] a quarter as fast
# Why: DDP takes the mean of the gradients, and the server adds them.

# %% [markdown]
# **Read on.** Ho et al. 2013, *More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server*, NeurIPS. Damania et al. 2023, *PyTorch RPC*, MLSys.

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
# importance 3, difficulty 3
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
# importance 3, difficulty 2
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
# ### 14.7 Predict: one slow trainer
#
# One server, three trainers, nobody waits. Two of them need 1 s for an update and the third needs 10 s; messages take no time. In the long run, how many updates stale are the gradients of the slow one on average? Those of each fast one? All gradients together? Write your numbers down first; then run
# `course demo parameter_server --ranks 4 --pause-ms 20 --slow 10 --steps 100`.

# %% [raw] tags=["hints"]
# importance 3, difficulty 3
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
# importance 5, difficulty 4
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
# importance 4, difficulty 5
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
        """Answer requests as they come, and apply each gradient at once, until all announced STOP.

        `staleness[trainer]` gets an entry for each gradient: the updates of the table after the
        rows were pulled and before the gradient arrived.
        """
        ...


### END GIVEN
### BEGIN SOLUTION
from course_lib.scratch.parameter_server import ParameterServer, RemoteTable

### END SOLUTION

check("14.10", [RemoteTable, ParameterServer])
