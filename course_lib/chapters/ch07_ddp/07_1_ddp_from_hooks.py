# %% [raw] tags=["sitting"]
# question: What must eight GPUs exchange, and when, to train like one?
# importance: 5
# difficulty: 3
# group: alone
# needs: 2, 6.1

# %% [markdown]
# # 7 DDP from hooks
#
# GPT-2 has 124 million weights, so 498 MB of gradients in fp32. Eight GPUs hold a copy of it each and compute on different samples. After every
# step all eight must have the same weights again. What do they exchange, and at which moment of the step?
#
# After this sitting you can
#
# - say what data parallelism needs, and name its two limits,
# - compute which part of the communication hides behind the backward pass,
# - build DDP, PyTorch's `DistributedDataParallel`, with hooks and buckets on real processes (exercise 7.10).
#
# You need chapters 2 and 6.

# %%
import time
from itertools import pairwise

import torch
import torch.distributed as dist

from course_lib import expect, launch, measure, predict, scratch
from course_lib.chapters.ch07_ddp import figures
from course_lib.demos.shared.text import VOCAB, Windows
from course_lib.theory import Gradient, ddp_timeline, hardware, models

launch.warm_up()
torch.set_num_threads(1)

# %% [markdown]
# ## 7.1 Copies of the model, and their two limits
#
# Two GPUs share a batch of 8 samples. Each GPU has a **replica** (模型副本), a full copy of the model, and computes the gradient of the mean loss over its own 4
# samples. Suppose that for one weight GPU 0 finds 0.2 and GPU 1 finds 0.6. The gradient over all 8 samples is their
# mean, 0.4. If both use this mean, both make the same update, and the replicas stay equal. With $n$ replicas and $g_i$ the gradient on replica $i$:
#
# $$g = \frac{1}{n} \sum_{i=1}^{n} g_i .$$
#
# An **all-reduce** (chapter 6) gives every rank the sum. In a ring, each of $n$ ranks sends $2(n-1)/n$ times the tensor, in $2(n-1)$ steps.

# %% tags=["drawing"]
own = {"rank 0": "0.2", "rank 1": "0.6"}
cell = figures.Cell
grid = {
    "samples": {"rank 0": cell("0 … 3"), "rank 1": cell("4 … 7")},
    "gradient": {rank: cell(g, {0: "own gradients"}) for rank, g in own.items()},
    "all-reduce": {"rank 0": cell("", {0: "messages"}, wide=2)},
    "mean": {rank: cell("0.4", {0: "gradients"}) for rank in own},
    "update": {rank: cell("the same", {0: "update"}) for rank in own},
}
steps = [((a, rank), (b, rank)) for a, b in pairwise(grid) for rank in own]
figures.cells(grid, "One update of one weight on two GPUs", past=steps, between=16)

# %% [markdown]
# Test it on one process: the gradient of the whole batch, and the mean of the gradients of its halves.


# %%
from course_lib.scratch.accumulation import loss_sum


def build():
    """A small GPT, the same on every call."""
    torch.manual_seed(0)
    return scratch.gpt.GPT(layers=2, hidden=64, heads=4, vocab=VOCAB, context=64)


inputs, labels = Windows(sequence=64).batch(range(8))


def mean_loss(model, rows):
    """The mean loss over some rows of the batch."""
    return loss_sum(model(inputs[rows]), labels[rows]) / labels[rows].numel()


def gradient_of(rows):
    """The gradient of that loss, as one long tensor."""
    model = build()
    mean_loss(model, rows).backward()
    return measure.gradients.flat_gradient(model)


# %%
whole = gradient_of(slice(0, 8))
mean = (gradient_of(slice(0, 4)) + gradient_of(slice(4, 8))) / 2
difference = measure.gradients.relative_difference(mean, whole)
print(f"relative difference: {difference:.1e}")
assert difference < 1e-5

# %% [markdown]
# Only rounding is left. Two sentences that you may read elsewhere are not quite right (notes 000 and 004):
#
# - "The workers sum their gradients *periodically*." They do so at **every** update. After a single update with its own gradient a replica would differ for good.
# - "The gradient is the change of the parameters." The optimizer makes the change from it: SGD takes $-\text{learning rate} \cdot g$, and Adam's change hardly depends on the size of $g$.
#
# ### The first limit: the model must fit
#
# Every GPU holds *all* weights, gradients and optimizer states: 16 bytes per parameter (chapter 3), whether there are 2 GPUs or 2000.

# %% tags=["drawing"]
bars = {}
for name in ("gpt2-1.5b", "llama2-7b", "llama2-13b"):
    gb = 4 * models.MODELS[name].parameters().total / 1e9
    bars[name] = {"weights": gb, "gradients": gb, "optimizer": 2 * gb}
room = hardware.accelerator("H100-SXM").memory_bytes / 1e9
assert sum(bars["llama2-7b"].values()) > room
title = "What each GPU holds, in fp32"
figures.stacked_bars(bars, title, "{:.0f} GB".format, limit=("one H100", room))

# %% [markdown]
# A thousand GPUs do not help. Chapters 8 to 11 remove this limit. Note 000 names one way: spread one replica over several GPUs, and run data parallelism between such groups (chapter 13).
#
# ### The second limit: the batch
#
# Each replica needs at least one sample. LLaMA-2 was trained with 4M tokens per update (arXiv:2307.09288, table 1). In sequences of 4096 tokens, $4 \cdot 2^{20}$ are 1024 samples, so data parallelism alone ends at 1024 GPUs.
# (In chapters 10 to 12 several GPUs share one sample.)
#
# **Strong scaling** (强扩展) divides the same global batch among more GPUs, so each gets less work. **Weak scaling** (弱扩展) keeps the batch *per GPU*, so the
# global batch grows, and past the critical batch (chapter 2) samples are wasted. Efficiency is the work of $n$ GPUs divided by $n$ times the work of one in the same time.

# %% tags=["drawing"]
tokens, gpus = 4 * 2**20, [2**power for power in range(13)]
figures.lines(
    {
        "strong: 4M in all": [(n, tokens / n) for n in gpus if n <= 1024],
        "weak: 16,384 each": [(n, 16_384) for n in gpus],
    },
    "GPUs",
    "tokens on a GPU",
    "Strong and weak scaling",
    doubling=(True, True),
    mark={"one sequence each": 1024},
)

# %% [markdown]
# **Remember**
# - Data parallelism: a replica on each GPU, the mean gradient at every update, so the replicas stay equal.
# - Limit 1: each GPU holds the whole model state. Limit 2: the batch.

# %% [markdown]
# ## 7.2 The old way: one process, many threads
#
# In `nn.DataParallel` (DP), PyTorch's older class, *one* process drives all GPUs with threads. In every step it scatters the batch from the first GPU, copies the weights from there to all others,
# gathers the outputs there, and adds up all gradients there. Copied one by one, 7 copies of the weights leave the first of 8 GPUs in each step, and 7 sets of gradients come back.
#
# `DistributedDataParallel` is a different idea: one process per GPU, and an all-reduce of the gradients, so no GPU is in the middle.
# What the busiest of eight GPUs sends, with $N$ parameters of 4 bytes:

# %% tags=["drawing"]
from course_lib.theory.network.all_reduce import all_reduce_ways

ways = all_reduce_ways(ranks=8)
assert ways["one rank adds"].most == 7 and ways["ring"].most == 1.75
both = {"nn.DataParallel": ways["one rank adds"], "DDP": ways["ring"]}
figures.who_sends(both, "× 4N")

# %% [markdown]
# PyTorch advises DDP even on one node (documentation of `nn.DataParallel`; Li et al. 2020, arXiv:2006.15704). [The deeper sitting](07_3) writes DP by hand.
#
# **Remember**
# - DP: one process; weights out and gradients in, at every step, through one GPU; one node only.
# - DDP: one process per GPU, each with its own optimizer. Weights are copied once, at the start. Gradients are all-reduced *during* the backward pass, on any number of nodes.

# %% [markdown]
# ## 7.3 When is a gradient ready?
#
# The backward pass goes from the loss to the input, so the gradients of the *last* layers are ready first. They could
# travel while the earlier layers still compute. For that our program must learn when a gradient is complete. A
# **hook** (钩子) is a function that PyTorch calls at a certain event, here after a gradient has been added to `.grad`.
#
# **Predict.** Our GPT has 28 parameter tensors. `embedding.weight` is the first in `named_parameters()`. It is also the weight of the head, the *last* operation of the forward pass. At which place, 1 to 28, is its gradient
# ready?

# %%
place = predict("7.place", "Place of embedding.weight?", yours=None)

# %%
model, ready = build(), []  # names and times
for name, parameter in model.named_parameters():
    parameter.register_post_accumulate_grad_hook(
        lambda _, name=name: ready.append((name, time.perf_counter()))
    )
loss = model(inputs).sum()
start = time.perf_counter()
loss.backward()

# %%
names = [name for name, _ in ready]
expect(28, 1 + names.index("embedding.weight"), label="place", yours=place)

# %% [markdown]
# On the clock of this run, a bar ends when the last gradient of its part is ready:

# %% tags=["drawing"]
last = {}
for name, at in ready:
    part = name.rpartition(".")[0].split(".")
    last[" ".join(part[:2]) if part[0] == "blocks" else part[0]] = at
begins = dict(zip(last, [start, *last.values()], strict=False))
rows = {part: [("computing", begins[part], at)] for part, at in last.items()}
figures.lanes(rows, "Backward, from the loss to the input")

# %% [markdown]
# **Explain.** The order is that of `parameters()` reversed, from the last norm to the embedding. The shared weight gets one part of its gradient from the head, at the very beginning, and the other part from the look-up,
# at the very end. The hook fires once, when both are added. So the largest tensor of many models is ready last.
#
# **Remember**
# - Gradients become ready from the last layer to the first.
# - A post-accumulate hook fires once per parameter and backward pass, also for a shared weight.

# %% [markdown]
# ## 7.4 Buckets and overlap
#
# GPT-2 has 148 parameter tensors, most of them tiny. An all-reduce for each would pay the latency, $2(n-1)$ steps of $\alpha$ seconds, 148 times. A single one would pay it once, but it could
# not begin before the last gradient is ready. So DDP collects gradients in **buckets**. A bucket closes when it holds at least 25 MiB (the first one already at 1 MiB). Then its all-reduce begins, while the backward pass goes on. That is **overlap** (计算通信重叠).
#
# ### Three layers
#
# Take three layers. The backward pass needs 5 ms for each, and each has 10 MB of gradients. Two ranks have a link of 1 GB/s and no latency; $2(n-1)/n$ is 1, so a layer travels for 10 ms.

# %%
three = [Gradient(name, 10_000_000, 0.005) for name in "cba"]
slow = hardware.Link("1 GB/s", bytes_per_s=1e9)
together = ddp_timeline(three, 2, slow, cap_bytes=30_000_000, first_bytes=30_000_000)
by_hand = ddp_timeline(three, 2, slow, cap_bytes=10_000_000)
figures.bucket_timeline(
    {"One bucket of 30 MB": together, "Three buckets of 10 MB": by_hand}
)

# %% [markdown]
# The backward pass ends at 15 ms. Communication after that moment is **exposed**, the part of the communication overhead (通信开销) that costs time: 30 ms with one bucket, 20 ms with three. The other 10 ms are
# hidden. In general, bucket $i$ of $S_i$ bytes is full at time $r_i$ and travels from $b_i$ to $e_i$ ($e_0 = 0$):
#
# $$b_i = \max(r_i,\, e_{i-1}), \qquad
# e_i = b_i + 2(n-1)\,\alpha + \frac{2(n-1)}{n} \cdot \frac{S_i}{\beta},$$
#
# with $\beta$ in bytes per second, one way. The link carries one bucket at a time, in order.

# %%
assert round(together.exposed_s, 6) == 0.030
assert round(by_hand.exposed_s, 6) == 0.020

# %% [markdown]
# ### Step by step
#
# Now seven gradients on eight ranks, with 5 ms of backward for each and a link of 4 GB/s and 0.1 ms a message. Six layers have 10 MB each. The embedding is
# the head as well and has 20 MB.
#
# **Predict.** With buckets of 20 MB the link is busy for 40.6 ms in all. All gradients are ready after 35 ms. How many milliseconds are exposed?

# %%
tail_ms = predict("7.tail", "Exposed, 20 MB?", yours=None, unit="ms")

# %%
from course_lib.chapters.ch07_ddp import steppers

steppers.buckets(bucket_mb=20, ranks=8)

# %%
walked, _ = steppers.buckets(bucket_mb=20, ranks=8).result
expect(1000 * walked.exposed_s, label="exposed", unit="ms", yours=tail_ms)

# %% [markdown]
# **Explain.** The link gets its first bucket at 10 ms and never rests again: $10 + 40.6 - 35 = 15.6$ ms. Now try two settings:
#
# 1. 80 MB: what does the link do while layers 6 to 1 are computed?
# 2. 64 ranks, 10 MB: the link never rests. Why does the last bucket arrive so late?
#
# <details><summary>Answers</summary>
#
# (1) Nothing: the only bucket is full when the embedding's gradient is ready. (2) Each of seven buckets pays $2 \cdot 63$ messages of 0.1 ms: 88 ms in all.
#
# </details>

# %% [markdown]
# **Remember**
# - A bucket leaves when it is full *and* the link is free. The last one is full when the backward pass ends, so it is always exposed.

# %% [markdown]
# ## 7.5 DDP by hand
#
# You now know all parts of DDP. Exercise 7.10 gives you the frame of two classes, `Bucket` and `DDP`, and you write their methods:
#
# - **Replicate.** The constructor broadcasts all weights and buffers from rank 0. After that no weight travels.
# - **Buckets.** A bucket is one flat tensor with a *view* of it for each parameter, so nothing is packed or unpacked. `.grad`
#   becomes the view, so the mean arrives where the optimizer looks. (PyTorch's DDP does this with `gradient_as_bucket_view=True`. Otherwise its buckets are a second copy of all gradients, $4N$ bytes more.)
# - **Mean.** Divide by the number of ranks *before* the sum, which could overflow in fp16.
# - **Send, then receive.** `send` begins an all-reduce; `receive` waits for it (section 6.1).
# - **Order.** Bucket 3 is never sent before bucket 2, even if it is full earlier. The n-th all-reduce of a rank meets the n-th of the others, whatever it contains.
# - **The end.** The first hook of a backward pass asks autograd to call `_finish` when the pass has ended. `_finish` waits for all buckets. When `backward()` returns, `.grad` is the mean.
# - **`no_sync`.** With accumulation (chapter 2) the hook does nothing until the last micro-batch: gradients only add up in `.grad`.
# - **Unused parameters.** If the loss does not depend on a parameter, its hook never fires and its bucket is never full. `_finish` reports that as an error (section 7.6).
#
# The course's own version runs here on two real ranks, each with half of the batch:


# %%
def two_halves():
    """How far this rank's gradient is off from one process; bytes of each all-reduce."""
    ddp = scratch.ddp.DDP(build(), cap_bytes=100_000, first_bytes=100_000)
    first = 4 * dist.get_rank()
    with measure.wire.log_wire() as log:
        mean_loss(ddp, slice(first, first + 4)).backward()
    sizes = [call.bytes for call in log.calls if call.what == "all-reduce"]
    gradient = measure.gradients.flat_gradient(ddp.module)
    return measure.gradients.relative_difference(gradient, whole), sizes


# %%
for difference, sizes in launch.run(two_halves, ranks=2):
    print(f"difference {difference:.1e}; all-reduces of {sizes} bytes")
    assert difference < 1e-5
    assert sum(sizes) == 4 * sum(p.numel() for p in build().parameters())

# %% [markdown]
# Both ranks have the gradient of the whole batch, up to rounding. In every backward pass
#
# $$\text{bytes given to all-reduce} = 4N, \qquad
# \text{sent by each rank} = \frac{2(n-1)}{n} \cdot 4N .$$
#
# PyTorch's DDP is one line, `DistributedDataParallel(model)`; on GPUs it takes `device_ids=[k]`, the process's own GPU, and the backend NCCL. A model held in bf16 sends $2N$.
#
# **Remember**
# - DDP = broadcast once; hooks fill buckets; asynchronous all-reduces in one order; wait at the end of the backward pass.

# %% [markdown]
# ## The answer
#
# Eight GPUs train like one if they exchange only gradients, at every update: 498 MB for GPT-2, so each sends 1.75 times that. Each bucket of 25 MiB leaves during the backward pass, as soon as it is full, and all must be back before the optimizer
# steps. Now build it: exercise 7.10.

# %% tags=["exercise"]
import torch
from torch import nn

from course_lib import check, hint, solution

# %% [markdown] tags=["exercise"]
# ### 7.1 Calculate: fits on one GPU, dies on two
#
# GPT-2 with 1,557,611,200 parameters, fp32 and AdamW, trains on one GPU of 40 GB (10⁹ bytes). Activations and all the rest take 12 GB. With DDP on two such GPUs and the same
# micro-batch on each, it runs out of memory in the second backward pass. Give the GB that it takes on one GPU, and the GB that it would take on each of two. Which one change fixes it: `"bucket_cap_mb=1"`,
# `"gradient_as_bucket_view=True"`, `"find_unused_parameters=True"` or `"more GPUs"`?

# %% [raw] tags=["hints"]
# importance 3, difficulty 3
# What does a rank of DDP hold that one process without DDP does not? Section 7.5 names it.
# AdamW in fp32 needs 16 bytes a parameter. All buckets together are as large as what?

# %% tags=["exercise"]
alone, on_each, remedy = ..., ..., ...
### BEGIN SOLUTION
alone = 16 * 1.5576112 + 12
on_each = alone + 4 * 1.5576112  # the buckets: all gradients once more
remedy = "gradient_as_bucket_view=True"
### END SOLUTION
check("7.1", [alone, on_each, remedy])

# %% [markdown] tags=["exercise"]
# ### 7.3 Debug: "periodically"
#
# (two published mistakes, notes 000 and 004) "The workers periodically sum their gradients, and the gradient is the change of the parameters." Eight programs take such sentences more or less literally.
# Each runs on two ranks that start with equal weights, unless the name says otherwise. In every step, if nothing else is said, a rank computes the gradient of its own mean loss and does what the name says. Compare with one GPU that has the samples of both. Judge each program: `"as one GPU"` (the same weights, up to rounding);
# `"equal"`, if the replicas stay equal but make other updates than one GPU; or `"drift"`, if the replicas are not equal after an update.

# %% [raw] tags=["hints"]
# importance 4, difficulty 3, group
# After one update: do both ranks hold the same weights? Only then ask whether it was the right update.
# SGD's update is linear in the gradient: does the mean of two updates equal the update with the mean?
# AdamW divides by the root of its second moment. Is that of the mean gradient the mean of the second moments?

# %% tags=["exercise"]
programs = {
    "all-reduce the mean gradient, SGD": ...,
    "all-reduce the mean gradient in every second step only, SGD": ...,
    "all-reduce the sum of the gradients, SGD, the learning rate of one GPU": ...,
    "SGD with the own gradient, then all-reduce the mean of the weights": ...,
    "AdamW with the own gradient, then all-reduce the mean of the weights": ...,
    "clip the own gradient by its norm, then all-reduce the mean, SGD": ...,
    "different random weights at the start, all-reduce the mean gradient, SGD": ...,
    "add the mean gradient to the weights, without an optimizer": ...,
}
### BEGIN SOLUTION
programs = {
    "all-reduce the mean gradient, SGD": "as one GPU",
    # in the first step each rank makes an update of its own
    "all-reduce the mean gradient in every second step only, SGD": "drift",
    "all-reduce the sum of the gradients, SGD, the learning rate of one GPU": "equal",
    # w - lr · g is linear: the mean of the weights is w - lr · mean
    "SGD with the own gradient, then all-reduce the mean of the weights": "as one GPU",
    "AdamW with the own gradient, then all-reduce the mean of the weights": "equal",
    "clip the own gradient by its norm, then all-reduce the mean, SGD": "equal",
    # equal updates keep the difference that was there at the start
    "different random weights at the start, all-reduce the mean gradient, SGD": "drift",
    # uphill, and without a learning rate
    "add the mean gradient to the weights, without an optimizer": "equal",
}
### END SOLUTION
check("7.3", programs)

# %% [markdown] tags=["exercise"]
# ### 7.8 Implement: the exposed time
#
# Bucket $i$ is full at `ready[i]` and needs `travel[i]` seconds on the link, which carries one bucket at a time, in order. The last bucket is full when the backward pass ends. How many
# seconds of communication are exposed?

# %% [raw] tags=["hints"]
# importance 3, difficulty 2
# Two things must have happened before a bucket can start. Which?
# It starts at max(full, the link is free); backward ends at ready[-1].


# %% tags=["exercise"]
def exposed(ready: list[float], travel: list[float]) -> float:
    """Seconds between the end of the backward pass and the end of the last all-reduce."""
    ### BEGIN SOLUTION
    free = 0.0
    for full, seconds in zip(ready, travel, strict=True):
        free = max(full, free) + seconds
    return free - ready[-1]
    ### END SOLUTION


check("7.8", exposed)

# %% [markdown] tags=["exercise"]
# ### 7.10 Build: DDP from hooks
#
# Write DDP: a `Bucket`, and the wrapper around a module. `fill(parameters, cap_bytes, first_bytes)` divides parameters into lists, one for each bucket. `after_backward(action)` calls `action` when the backward pass
# that is running has ended. `all_reduce(flat)` begins to sum a tensor over ranks, in place, and returns an object with a `wait()`.
#
# There are five steps, each checked on two or three real ranks: (1) one bucket, with gradients made by hand; (2) the whole wrapper: weights as on rank 0, buckets sent while the backward pass runs and in the same order
# on all ranks, gradients that are the mean; (3) `no_sync`; (4) parameters that a rank does not use; (5) the same on *your* ring of exercise 6.11. If it passes, it is kept as `mine/ddp.py`, and `course demo ddp --parts mine` trains with it.

# %% [raw] tags=["hints"]
# importance 5, difficulty 3
# take: put `.grad / ranks` into the parameter's view of the flat tensor; then `.grad` becomes the view, so that the mean arrives where the optimizer looks.
# Three places: the constructor broadcasts and sets hooks, a hook calls `_ready`, and `after_backward` calls `_finish`. Where is `after_backward` called, and how often?
# Start at the bucket with the number `self.sent`: send it if it waits for no gradient, go on to the next, and stop at the first that waits.
# no_sync: inside it, `_ready` does nothing at all.
# Unused: at the end of the backward pass some buckets still wait for parameters. Take their gradient as it is, or zeros if there is none; then send the full buckets.

# %% tags=["exercise"]
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import Parameter

from course_lib.scratch.ddp import AllReduce, fill
from course_lib.scratch.ddp import after_backward
from course_lib.scratch.wire import start_all_reduce

### BEGIN GIVEN


class Bucket:
    """Gradients that travel together: one flat tensor, and a view of it for each parameter."""

    def __init__(self, parameters: list[Parameter]) -> None:
        sizes = [p.numel() for p in parameters]
        self.flat = parameters[0].new_empty(sum(sizes))  # (elements,)
        pieces = zip(parameters, self.flat.split(sizes), strict=True)
        self.views = {p: piece.view_as(p) for p, piece in pieces}
        self.waiting = set(parameters)  # for their gradients
        self.work = None

    def take(self, parameter: Parameter) -> None:
        """Move `parameter.grad`, which is complete, into the bucket, as this rank's part of a mean."""
        ...

    def send(self, all_reduce: AllReduce) -> None:
        """Begin to sum `flat` over ranks; do not wait."""
        ...

    def receive(self) -> None:
        """Wait; `.grad` of each parameter is then the mean. Get ready for the next backward pass."""
        ...


class DDP(nn.Module):
    """`module` on every rank, with gradients that are the mean over ranks."""

    def __init__(
        self,
        module: nn.Module,
        cap_bytes: int = 25 * 2**20,
        first_bytes: int = 2**20,
        find_unused: bool = False,
        *,
        all_reduce: AllReduce = start_all_reduce,
    ) -> None:
        super().__init__()
        self.module, self.find_unused = module, find_unused
        self.all_reduce = all_reduce
        self.syncing = True  # False inside no_sync()
        self.running = False  # whether after_backward was called in this backward pass
        self.sent = 0  # how many buckets have been sent in this backward pass
        # To do: make all of module.state_dict() as on rank 0; fill self.buckets with the parameters that
        # are trained (requires_grad); give each of them a hook that calls self._ready(bucket, parameter).

    def forward(self, *args):
        return self.module(*args)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes in here only add to this rank's gradients."""
        ...

    def _ready(self, bucket: Bucket, parameter: Parameter) -> None:
        """The gradient of `parameter` is complete in `.grad`."""
        ...

    def _send_full_buckets(self) -> None:
        """Send the buckets that wait for nothing, in order, up to the first that does."""
        ...

    @torch.no_grad()
    def _finish(self) -> None:
        """Backward has ended: `_treat_unused`, wait for all buckets, get ready for the next pass."""
        ...

    def _treat_unused(self) -> None:
        """Treat parameters without a gradient: if not find_unused, a RuntimeError names them.

        Else their gradient is what they have, zeros if they have none; then all buckets are sent.
        """
        ...


### END GIVEN
### BEGIN SOLUTION
from course_lib.scratch.ddp import Bucket
from course_lib.scratch.ddp import DDP

### END SOLUTION

check("7.10", [Bucket, DDP])

# %% [markdown] tags=["exercise"]
# To go further: `from course_lib import race`, then `race("7.10")` measures a backward pass with your DDP, with ours and with PyTorch's. All three have four buckets of 1 MiB.
