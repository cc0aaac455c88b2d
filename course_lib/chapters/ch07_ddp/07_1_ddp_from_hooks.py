# %% [markdown]
# # 7 From DP to DDP
#
# You have one A100. For a step of GPT-2 124M on 16,384 tokens it needs 45 ms: forward and backward pass, at 87 % of the chip's peak, the best measured speed of a matrix product. (This counts only products with weights. Attention's scores
# would add 3 to 7 ms; section 5.2.) You buy seven more, and each of the eight has its own 200 Gb/s port. Each gets
# its own 16,384 tokens, and in every step all eight must agree on one gradient: 498 MB, which take 37 ms on this network. Is a
# step now 45 ms long, 82 ms, or something in between? In other words: how many GPUs' worth of work do you get from eight?
#
# By the end of this chapter you can
#
# - say what data parallelism needs, and name its two limits,
# - explain why `nn.DataParallel` is slow, and what `DistributedDataParallel` does instead,
# - write DDP yourself with hooks and buckets, and count what it sends,
# - predict which part of the communication hides behind computing,
# - recognise the two classic failures: unused parameters, and `device_ids` on a model that spans devices,
# - send fewer bytes by a communication hook, and say what that does to the gradient,
# - say what DDP does with buffers, BatchNorm and uneven data.
#
# Time: two sittings, 80 minutes for sections 7.1 to 7.5 and 60 for 7.6 to 7.11. Exercises 7.1 to 7.9 take about an hour more, and
# building your own DDP (7.10) one to two. You need chapters 2 and 6.

# %%
import time

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course_lib import demos, expect, launch, measure, predict, scratch, show_source
from course_lib.chapters.ch07_ddp import copies, figures
from course_lib.theory import (
    Cluster,
    Gradient,
    ddp_timeline,
    hardware,
    hiding_tokens,
    model_gradients,
    models,
    units,
)

launch.warm_up()
torch.set_num_threads(1)

# %% [markdown]
# **Predict.** How many milliseconds does a step take on the eight A100?

# %%
step_ms = predict("7.step", "Step in ms?", yours=None, unit="ms")

# %% [markdown]
# ## 7.1 Copies of the model, and their two limits
#
# Two GPUs, a batch of 8 samples. Each GPU has a **replica** (模型副本), a full copy of the model, and computes the gradient of its own 4
# samples. Suppose that for one weight GPU 0 finds 0.2 and GPU 1 finds 0.6. The gradient of the mean loss over all 8 samples is the
# mean, 0.4. If both GPUs use this mean, both make the same update, and the replicas stay equal. With $n$ replicas and $g_i$
# the gradient on replica $i$:
#
# $$g = \frac{1}{n} \sum_{i=1}^{n} g_i .$$

# %%
from itertools import pairwise

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
# That is all of data parallelism. Test it: the two halves of a batch, one after the other, on one replica.


# %%
from course_lib.demos.shared.text import VOCAB, Windows
from course_lib.scratch.accumulation import loss_sum


def build():
    """A small GPT, the same on every call."""
    torch.manual_seed(0)
    return scratch.gpt.GPT(layers=2, hidden=64, heads=4, vocab=VOCAB, context=64)


inputs, labels = Windows(sequence=64).batch(range(8))


def gradient_of(rows):
    """The gradient of the mean loss over some rows of the batch, as one long tensor."""
    model = build()
    loss = loss_sum(model(inputs[rows]), labels[rows]) / labels[rows].numel()
    loss.backward()
    return measure.gradients.flat_gradient(model)


# %%
whole = gradient_of(slice(0, 8))
mean = (gradient_of(slice(0, 4)) + gradient_of(slice(4, 8))) / 2
difference = measure.gradients.relative_difference(mean, whole)
print(f"relative difference: {difference:.1e}")
assert difference < 1e-5

# %% [markdown]
# Only rounding is left (chapter 2). Two sentences that one often reads are not quite right:
#
# - "The workers sum their gradients *periodically*." They do so at **every** update. If a replica updated even once
#   with its own gradient, the weights would differ from then on, and nothing would make them equal again.
# - "The gradient is the change of the parameters." The optimizer decides what the change is: with SGD
#   $-\text{learning rate} \cdot g$, with Adam something that hardly depends on the length of $g$.
#
# **Naive data parallelism** does it literally: backward pass to its end, then an all-reduce for each parameter, then
# the update. It is correct. Sections 7.3 to 7.5 make it fast.
#
# ### The first limit: the model must fit
#
# Every GPU holds *all* weights, gradients and optimizer states: the 16 bytes per parameter of chapter 3. On each GPU, whether there are 2 or 2000:

# %%
bars = {}
for name in ("gpt2-1.5b", "llama2-7b", "llama2-13b"):
    gb = 4 * models.MODELS[name].parameters().total / 1e9
    bars[name] = {"weights": gb, "gradients": gb, "optimizer": 2 * gb}
room = hardware.accelerator("H100-SXM").memory_bytes / 1e9
title = "What each GPU holds, in fp32"
figures.stacked_bars(bars, title, "{:.0f} GB".format, limit=("one H100", room))

# %%
assert sum(bars["llama2-7b"].values()) > room

# %% [markdown]
# A thousand GPUs do not help: each has the same problem. Chapters 8 to 11 are about this limit. One way out, named in note 000, is to cut the
# model over a few GPUs and run data parallelism between such groups, with one replica per group. Section 7.7 does it on a small scale, chapter 13 on
# a large one.
#
# ### The second limit: the batch
#
# Each replica needs at least one sample. LLaMA-2 was trained with 4M tokens per update (arXiv:2307.09288, table 1). Take
# $4 \cdot 2^{20}$ of them, in sequences of 4096: that is 1024 samples, so pure data parallelism ends at 1024 GPUs. "There can be as many devices as
# samples" is true of data parallelism *alone*: chapters 10 to 12 let several GPUs share one sample.
#
# A larger batch helps only up to a point. Past the critical batch (chapter 2) it wastes samples. And long before you are down to one sample
# per GPU, each GPU has so few tokens that it falls below its ridge (chapter 5), and the communication shows. Section 7.4 says when.
#
# Two ways to ask how well it goes: **strong scaling** (强扩展) keeps the global batch and divides it among
# more GPUs; **weak scaling** (弱扩展) keeps the batch *per GPU*, so the global batch grows. Efficiency is the work
# done by $n$ GPUs, divided by $n$ times the work of one. In tokens on each GPU:

# %%
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
# - Data parallelism: a replica per GPU, the mean gradient at every update, so the replicas stay equal.
# - Limit 1: the whole model state on each GPU. Limit 2: the batch.

# %% [markdown]
# ## 7.2 The old way: one process, many threads
#
# PyTorch has two classes with similar names. `nn.DataParallel` (DP) is the older one: *one* process drives all GPUs. In every step it
#
# 1. scatters the batch: rows go from the first GPU to the others,
# 2. copies the weights from the first GPU to each other one,
# 3. computes, one thread per GPU,
# 4. gathers the outputs on the first GPU, where the loss is computed,
# 5. sends the gradients back to the first GPU and adds them up there.
#
# We write it by hand, since without a GPU the real one only calls the module. Several "devices" may be the same one.

# %%
show_source(scratch.data_parallel.DataParallel)

# %% [markdown]
# `compute` starts the threads. Copying is an operation that autograd knows, so step 5 comes for free: the backward pass of a
# copy brings the gradient back, and where two come together they are added.

# %%
show_source(scratch.data_parallel.compute)

# %% [markdown]
# **Predict.** You had 2 devices and get 8, four times as many. How many times as many bytes of weights leave the first device in each step?

# %%
more = predict("7.more_copies", "Bytes with 8 / with 2?", yours=None)

# %%
model = build()
parameters = sum(p.numel() for p in model.parameters())
copied = {}
for devices in (2, 4, 8):
    parallel = scratch.data_parallel.DataParallel(model, ["cpu"] * devices)
    copied[devices] = copies.copied_bytes(parallel.replicate)
    assert copied[devices] == (devices - 1) * 4 * parameters
expect(7 / 1, copied[8] / copied[2], label="bytes with 8 / with 2", yours=more)
assert torch.allclose(parallel(inputs), model(inputs), atol=1e-5)
if not torch.cuda.is_available():  # a plain call
    assert torch.equal(nn.DataParallel(model)(inputs), model(inputs))

# %% [markdown]
# **Explain.** The first device keeps its own copy, so 7 copies leave it instead of 1. In general $(n-1) \cdot 4N$ bytes of weights go out of *one* device, with $N$ parameters (112,384 in our small
# GPT), and as many of gradients come back to it. (With NCCL the real class passes copies on from GPU to GPU, which
# spreads the load. The bytes in all stay, and so does the waiting.)
#
# `DistributedDataParallel` (DDP) is not a faster version of the same thing. It is another idea: the gradients are all-reduced, so no device is in the middle.
# On eight devices:

# %%
from course_lib.theory.network.all_reduce import all_reduce_ways

ways = all_reduce_ways(ranks=8)
assert ways["one rank adds"].most == copied[8] / (4 * parameters) == 7
both = {"nn.DataParallel": ways["one rank adds"], "DDP": ways["ring"]}
figures.who_sends(both, "× 4N")

# %% [markdown]
# | | `nn.DataParallel` | `DistributedDataParallel` |
# |---|---|---|
# | processes | one, with threads that share Python's global lock (GIL) | one per GPU, each with its own optimizer |
# | weights | copied in every step | copied once, at the start |
# | batch | scattered by the first GPU | each process reads its own |
# | gradients | to the first GPU, after the backward pass | all-reduced in buckets, *during* it |
# | several nodes | no | yes |
#
# PyTorch's own documentation advises DDP even on one node. From here on the chapter is about DDP (Li et al. 2020, arXiv:2006.15704).
#
# **Remember**
# - DataParallel: one process, weights out and gradients in, at every step, through one GPU.
# - DDP: one process per GPU, only gradients travel, and no GPU is in the middle.

# %% [markdown]
# ## 7.3 When is a gradient ready?
#
# The backward pass goes from the loss to the input, so the gradients of the *last* layers are ready first. They could
# travel while the earlier layers still compute. For that somebody must tell us when a gradient is complete. PyTorch does: a
# **hook** (钩子) is a function that autograd calls at a certain event, here after a gradient has been added to `.grad`.
#
# **Predict.** Our GPT has 28 parameter tensors. `embedding.weight` is the first in `named_parameters()`, and
# it is the head's weight as well, the *last* operation of the forward pass. At which place, 1 to 28, is its gradient
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
names = [name for name, _ in ready]
expect(28, 1 + names.index("embedding.weight"), label="place", yours=place)

# %% [markdown]
# When it was, on the clock of this run. A bar ends when the last gradient of its part is ready:

# %%
last = {}
for name, at in ready:
    part = name.rpartition(".")[0].split(".")
    last[" ".join(part[:2]) if part[0] == "blocks" else part[0]] = at
begins = dict(zip(last, [start, *last.values()], strict=False))
rows = {part: [("computing", begins[part], at)] for part, at in last.items()}
figures.lanes(rows, "Backward, from the loss to the input")

# %% [markdown]
# **Explain.** The order is that of `parameters()` turned round, from the last norm to the embedding. (A layer's weight and bias may swap
# places.) The shared weight gets one part of its gradient from the head, at the very beginning, and the other part from the look-up,
# at the very end. The hook fires once, when both are added. So the largest tensor of many models comes last. Remember that for the timeline.
#
# **Remember**
# - Gradients become ready from the last layer to the first.
# - A post-accumulate hook fires once per parameter and backward pass, also for a shared weight.

# %% [markdown]
# ## 7.4 Buckets and overlap
#
# An all-reduce for each tensor would be wasteful. GPT-2 124M has 148 tensors, most of them tiny, and each all-reduce pays
# its latency: $2(n-1)$ steps of $\alpha$ seconds in a ring (chapter 6). One all-reduce for all would pay once, but it could
# not begin before the last gradient is there. DDP takes the middle way: it fills buckets. A bucket closes when it holds at least 25 MiB
# (the first one already at 1 MiB), and then travels while the backward pass goes on. That is **overlap** (计算通信重叠).
#
# ### By hand
#
# Three layers. Backward takes 5 ms for each, and each has 10 MB of gradients. Two ranks, 1 GB/s, no latency: 10 ms per
# layer, since $2(n-1)/n = 1$.
#
# Both ways, drawn by the library:

# %%
three = [Gradient(name, 10_000_000, 0.005) for name in "cba"]
slow = hardware.Link("1 GB/s", bytes_per_s=1e9)
together = ddp_timeline(three, 2, slow, cap_bytes=30_000_000, first_bytes=30_000_000)
by_hand = ddp_timeline(three, ranks=2, link=slow, cap_bytes=10_000_000)
figures.bucket_timeline(
    {"One bucket of 30 MB": together, "Three buckets of 10 MB": by_hand}
)

# %% [markdown]
# The backward pass ends at 15 ms. What comes after is **exposed**, the part of the communication overhead (通信开销) that costs time: 30 ms with one bucket, 20 ms with three. The rest, 0 and 10 ms, is
# hidden. In general bucket $i$ of $S_i$ bytes is full at $r_i$, and travels from $b_i$ to $e_i$:
#
# $$b_i = \max(r_i,\, e_{i-1}), \qquad
# e_i = b_i + 2(n-1)\,\alpha + \frac{2(n-1)}{n} \cdot \frac{S_i}{\beta},$$
#
# with $\beta$ the bytes per second, one way. The link carries one bucket at a time, in order.

# %%
assert round(together.exposed_s, 6) == 0.030
assert round(by_hand.exposed_s, 6) == 0.020

# %% [markdown]
# ### Step by step
#
# Seven gradients, 5 ms of backward for each, on eight ranks with 4 GB/s and 0.1 ms a message. Layers hold 10 MB. The embedding is
# the head as well and holds 20 MB. The stepper walks from event to event: a gradient is ready, a bucket leaves, a bucket is back. Hatched gradients are those of this rank's
# own samples; plain ones are the mean.
#
# **Predict.** Buckets of 20 MB. All gradients are ready after 35 ms. How many of the link's 40.6 ms are exposed?

# %%
tail_ms = predict("7.tail", "Exposed, 20 MB?", yours=None, unit="ms")

# %%
from course_lib.chapters.ch07_ddp import steppers

steppers.buckets(bucket_mb=20, ranks=8)

# %%
walked, _ = steppers.buckets(bucket_mb=20, ranks=8).result
expect(1000 * walked.exposed_s, label="exposed", unit="ms", yours=tail_ms)

# %% [markdown]
# **Explain.** The link has its first bucket at 10 ms and never rests again: $10 + 40.6 - 35 = 15.6$ ms. Now try three settings, and look at the two bars at the bottom of the last step:
#
# 1. 80 MB: what is the link doing while layers 6 to 1 are computed?
# 2. 64 ranks, 10 MB: every bucket is full in time. Why does the step take four times as long as backward?
# 3. Overlap switched off: what has changed at the top of the picture, and what only at the bottom?
#
# Answers:
#
# 1. Nothing: the only bucket is full when the embedding is.
# 2. Each of seven buckets pays $2 \cdot 63$ messages of 0.1 ms. With 80 MB it is one payment, and the step is shorter.
# 3. Gradients and buckets fill in the same order. Only the moment at which they leave is later.
#
# **Remember**
# - A bucket leaves when it is full *and* the link is free. The last one is full when backward ends, so its way is always exposed.

# %% [markdown]
# ### Measured, on a link that we control
#
# Is PyTorch's DDP really like this? On a laptop the network is memory and the times are noise. So we start two ranks and replace both ends by something that
# we know: six layers whose backward pass *sleeps* 20 ms, and a link that makes the real all-reduce and then *sleeps*, until 30 ms have passed for each layer's bytes. Both times are set by us; nothing is fitted. DDP lets us
# replace its all-reduce: a **communication hook** gets each full bucket and returns a promise for the result.


# %%
NAPS = []  # start and end of each


class Nap(torch.autograd.Function):
    """Changes nothing; its backward pass takes 20 ms."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        start = time.perf_counter()
        time.sleep(0.020)
        NAPS.append((start, time.perf_counter()))
        return gradient


class Layer(nn.Linear):
    """256 x 256 numbers, 262,144 bytes, after which somebody naps."""

    def forward(self, x):
        return Nap.apply(super().forward(x))


# %%
from concurrent.futures import ThreadPoolExecutor

import torch.distributed as dist

LAYER = 4 * 256 * 256  # bytes
wire_speed = hardware.Link("30 ms a layer", bytes_per_s=LAYER / 0.030)


class SleepingLink:
    """Carries one bucket at a time, in a thread of its own: a real message, then sleep."""

    def __init__(self):
        self.thread, self.carried = ThreadPoolExecutor(1), []
        self.group = dist.new_group()  # DDP has messages of its own

    def hook(self, _, bucket):
        arrived = torch.futures.Future()
        self.thread.submit(self.carry, bucket.buffer(), arrived)
        return arrived

    def carry(self, flat, arrived):
        start = time.perf_counter()
        dist.all_reduce(flat.div_(dist.get_world_size()), group=self.group)
        lasts_s = flat.nbytes / wire_speed.bytes_per_s
        time.sleep(max(0, start + lasts_s - time.perf_counter()))
        self.carried.append((start, time.perf_counter()))
        arrived.set_result(flat)


# %%
def backward_passes(cap_mb, count=4, around=lambda hook: hook, **options):
    """Of so many backward passes: seconds, and the intervals of naps and of the link."""
    launch.init()
    layers = [Layer(256, 256, bias=False) for _ in range(6)]
    ddp = DistributedDataParallel(
        nn.Sequential(*layers), bucket_cap_mb=cap_mb, **options
    )
    link, passes = SleepingLink(), []
    ddp.register_comm_hook(None, around(link.hook))
    for _ in range(count):
        loss = ddp(torch.ones(1, 256)).sum()
        NAPS.clear()
        link.carried.clear()
        start = time.perf_counter()
        loss.backward()
        seconds = time.perf_counter() - start
        lanes = [[(a - start, b - start) for a, b in it] for it in (NAPS, link.carried)]
        passes.append((seconds, *lanes))
    return passes


# %% [markdown]
# **Predict.** The computing takes 6 · 20 = 120 ms, the communication 6 · 30 = 180 ms. How many seconds does the backward pass take with a
# bucket for each layer?

# %%
ends = predict("7.end", "A bucket a layer?", yours=None, unit="s")

# %% [markdown]
# `ddp_timeline` computes it by the two formulas above, for three limits:

# %%
six = [Gradient("layer", LAYER, 0.020) for _ in range(6)]
plans = {}
for mib in (0.25, 0.5, 2):  # one layer, two layers, everything
    cap = round(mib * units.MIB)
    plans[mib] = ddp_timeline(six, 2, wire_speed, cap_bytes=cap, first_bytes=cap)
in_theory = {mib: plan.end_s for mib, plan in plans.items()}


# %%
def all_limits(count):
    """The passes for each limit."""
    return {mib: backward_passes(mib, count) for mib in in_theory}


def fastest(passes):
    """The fastest pass for each limit, the first pass left out."""
    return {mib: min(found[1:]) for mib, found in passes.items()}


# %% [markdown]
# On a busy computer a sleeper wakes up late. So we measure again, with more passes, until each limit had one that was not disturbed:

# %%
for count in (4, 8, 16, 32):
    passes = launch.run(all_limits, count, ranks=2, stream=False)[0]
    best_s = {mib: seconds for mib, (seconds, *_) in fastest(passes).items()}
    if all(best_s[mib] < 1.1 * in_theory[mib] for mib in in_theory):
        break
for mib, predicted_s in in_theory.items():
    assert best_s[mib] > 0.98 * predicted_s  # nobody wakes up early

# %%
expect(
    in_theory[0.25],
    best_s[0.25],
    within=None,  # a time: its gap is shown, not judged
    label="a bucket a layer",
    unit="s",
    yours=ends,
)

# %%
from course_lib.figures.paper import style

rows = {
    f"buckets of {mib} MiB": {"predicted": in_theory[mib], "measured": best_s[mib]}
    for mib in in_theory
}
colours = {"predicted": style.THEORY, "measured": style.MEASURED}
figures.grouped_bars(rows, "A backward pass", lambda s: f"{1000 * s:.0f} ms", colours)

# %% [markdown]
# The pass with a bucket for each layer, on one scale. Numbers are layers in backward's order, and buckets:


# %%
def numbered(backward, link):
    """Both rows, with the number of each interval in its box."""
    return {
        what: [(what, *span, str(number)) for number, span in enumerate(spans, 1)]
        for what, spans in (("backward", backward), ("link", link))
    }


naps = [(0.020 * place, 0.020 * (place + 1)) for place in range(6)]
planned = [(sent.start_s, sent.end_s) for sent in plans[0.25].exchanges]
_, *measured = fastest(passes)[0.25]


def named(name, backward, link):
    """A chart whose name says when backward ends."""
    end = backward[-1][1] - backward[0][0]
    title = f"{name}: backward ends after {units.format_duration(end)}"
    return {title: numbered(backward, link)}


figures.lanes(
    named("predicted", naps, planned) | named("measured", *measured),
    "Six layers, a bucket for each, two ranks",
)

# %% [markdown]
# **Explain.** 200 ms = 20 ms until the first bucket is full + 6 · 30 ms on the link. Two layers a bucket: 40 + 180 = 220. One bucket: 120 + 180
# = 300, nothing hidden. On an idle computer the measured times lie 1 to 3 % above: sleeps last a little longer than asked, and before the first bucket leaves there is some real computing.
#
# We left the first pass out. Look at it:

# %%
assert [len(sent) for _, _, sent in passes[0.25][:4]] == [1, 6, 6, 6]
(_, *one), (_, *two) = passes[0.25][:2]
figures.lanes(
    named("pass 1", *one) | named("pass 2", *two), "The first two passes, measured"
)

# %% [markdown]
# The first pass has one bucket, whatever the limit, and takes as long as one. DDP does not know yet in which order the gradients come. It watches the first
# pass, with everything in one bucket, and forms its buckets from what it saw. Never time the first step.
#
# There is one exception, `find_unused_parameters=True`, the subject of section 7.6. With it the order may change from pass to pass, so DDP has nothing to learn: it
# has its buckets from the first pass on, and never rebuilds them (`should_rebuild_buckets` in PyTorch's `torch/csrc/distributed/c10d/reducer.hpp`). They are
# filled in the order of `parameters()`, and sent from the last to the first, so the small one of 1 MiB goes last.


# %%
def from_the_first_on():
    """The buckets of each of three passes, with find_unused_parameters."""
    passes = backward_passes(0.25, 3, find_unused_parameters=True)
    return [len(sent) for _, _, sent in passes]


assert launch.run(from_the_first_on, ranks=1, stream=False) == [[6, 6, 6]]

# %% [markdown]
# ### The panel: real chips and links
#
# Now the question from the beginning: GPT-2 on eight A100, one 200 Gb/s port for each. The panel assumes the best measured matrix speed, fp32
# gradients, a ring, and no time for anything else. So it is a lower bound for the computing. Look at it as it stands, then move the sliders:
#
# 1. Bucket 1 MiB, 25 MiB, 512 MiB: which is best, and what is wrong with each of the other two?
# 2. Back at 25 MiB: from how many tokens per rank on does only a tail stay exposed? Why does it never vanish? (Section 7.3.)
# 3. 1024 ranks, 32,768 tokens: what has grown, although each rank sends hardly more? Which bucket size now?

# %%
from course_lib.chapters.ch07_ddp import panels

panels.buckets()

# %%
result = panels.buckets().result
computed_ms = 1000 * (1.5 * result.backward_s + result.exposed_s)
expect(computed_ms, label="step", unit="ms", yours=step_ms)
assert abs(computed_ms - 62.6) < 0.1
gpt2 = models.MODELS["gpt2-124m"]  # attention's scores, over all pairs of tokens
scores = 12 * gpt2.layers * gpt2.hidden * gpt2.context * 16384
assert round(1e3 * scores / (0.87 * 312e12), 1) == 6.8  # the causal half is 3.4

# %%
print(f"8 GPUs do the work of {8 * result.efficiency:.1f}")

# %% [markdown]
# Forward and backward are 1.5 times the 29.9 ms of backward alone; 17.8 ms more are exposed. So half of the communication hides, and eight GPUs do the work
# of 5.7. (All of this is computed, not measured.)
#
# How much of that is the two assumptions, 87 % of the peak and one port of 25 GB/s for each GPU? An MFU of 45 %, which is good for a whole training (chapter 5), leaves the network
# more time. And eight A100 in one server have NVLink between them:


# %%
from dataclasses import replace


def worth(share_of_peak, link):
    """What eight A100 are worth, in GPUs, if they compute at this share of their peak."""
    chip = replace(a100, matmul_efficiency=share_of_peak)
    found = model_gradients(models.MODELS["gpt2-124m"], chip, tokens=16384)
    cap = 25 * units.MIB
    line = ddp_timeline(found, 8, link, cap_bytes=cap, first_bytes=cap)
    return round(8 * line.efficiency, 1)


a100 = hardware.accelerator("A100-SXM-80GB")
best = a100.matmul_efficiency
gpus = {
    f"{best:.0%} of the peak, 25 GB/s": worth(best, hardware.HDR),
    "45% of the peak, 25 GB/s": worth(0.45, hardware.HDR),
    f"{best:.0%} of the peak, NVLink": worth(best, a100.inside),
}
assert round(8 * result.efficiency, 1) == 5.7
assert list(gpus.values()) == [5.7, 6.9, 7.8]
figures.stacked_bars(
    {row: {"computing": each, "idle": 8 - each} for row, each in gpus.items()},
    "What eight A100 are worth, in GPUs",
    "{:.1f}".format,
)

# %% [markdown]
# A fast GPU on a slow network is the worst case. Now the first question:

# %%
exposed_s = {}
for mib in (512, 1, 25):
    exposed_s[mib] = panels.buckets(bucket_mib=mib).result.exposed_s
assert exposed_s[25] < exposed_s[1] < exposed_s[512]

# %% [markdown]
# The answers:
#
# 1. 25 MiB. 512 MiB is one bucket, and nothing is hidden. 1 MiB makes 73 buckets, each of which pays 14 steps of latency.
# 2. From 32,768 on, among the slider's powers of two. Two buckets are full only when the backward pass ends: the first layer's, 28 MB, and that of the embedding and the positions, 158 MB. Nothing remains to hide their 13 ms behind.
# 3. The latency, 2046 steps a bucket: 257 ms are exposed. Larger buckets help, 200 MiB leave 64 ms. (Real libraries change to trees there, chapter 6.)
#
# All sizes at once, at 16,384 tokens: each curve has its lowest point where neither latency nor waiting rules.

# %%
of_gpt2 = model_gradients(models.MODELS["gpt2-124m"], a100, tokens=16384)


def exposed_ms(ranks, mib):
    """Exposed communication of GPT-2 on A100 with 25 GB/s."""
    cap = mib * units.MIB
    line = ddp_timeline(of_gpt2, ranks, hardware.HDR, cap_bytes=cap, first_bytes=cap)
    return 1000 * line.exposed_s


caps = (1, 2, 4, 8, 16, 25, 50, 100, 200, 400, 512)
figures.lines(
    {
        f"{n:,} ranks": [(mib, exposed_ms(n, mib)) for mib in caps]
        for n in (8, 128, 1024)
    },
    "bucket, MiB",
    "exposed, ms",
    "Small buckets pay latency, large ones start late",
    doubling=(True, True),
)

# %%


def exposed_with(**settings):
    """What stays exposed in s when the panel's controls are set so."""
    return panels.buckets(**settings).result.exposed_s


tail_s = exposed_with(tokens=32768)
assert abs(exposed_with(tokens=65536) - tail_s) < 1e-6
latency_s = exposed_with(tokens=32768, ranks=1024)
assert latency_s > 15 * tail_s
assert exposed_with(tokens=32768, ranks=1024, bucket_mib=200) < latency_s / 3

# %% [markdown]
# ### When does communication hide at all?
#
# Backward costs 4 FLOP per parameter and token (chapter 5), the all-reduce moves $2(n-1)/n \cdot 4$ bytes per parameter. Let a GPU compute $F$ FLOP/s and send
# $\beta$ bytes/s, and let its backward pass, the one that exchanges, see $T$ tokens. Both take equally long when
#
# $$\frac{4NT}{F} = \frac{2(n-1)}{n} \cdot \frac{4N}{\beta}
# \quad\Longrightarrow\quad T = \frac{2(n-1)}{n} \cdot \frac{F}{\beta}.$$
#
# **The size of the model cancels.** What counts is the ratio of computing to network speed, and the tokens per GPU. First
# for H100 whose messages all pass through one port of 400 Gb/s, as on rented servers with a single network card, or with one GPU in each:

# %%
chip = hardware.accelerator("H100-SXM")
speed = chip.peak_flop_per_s * chip.matmul_efficiency
tokens = hiding_tokens(speed, hardware.NDR.bytes_per_s, ranks=1024)
print(f"{tokens:,.0f} tokens per GPU; a batch of 4M tokens: {2**22 / tokens:.0f} GPUs")
assert round(2**22 / tokens) == 132

# %% [markdown]
# The same as a picture, for LLaMA-2 7B and a batch of 4M tokens. Backward is shared out among the GPUs, the all-reduce is not:

# %%
from course_lib.theory.network import collectives

many = [8, 16, 32, 64, 132, 256, 512, 1024]
count = models.MODELS["llama2-7b"].parameters().total
figures.lines(
    {
        "backward": [(n, 4000 * count * 2**22 / n / speed) for n in many],
        "all-reduce": [
            (
                n,
                1000
                * collectives.sent_bytes("all-reduce", 4 * count, n)
                / hardware.NDR.bytes_per_s,
            )
            for n in many
        ],
    },
    "GPUs",
    "ms",
    "A batch of 4M tokens on more and more H100",
    doubling=(True, True),
    mark={"132 GPUs": 132},
)

# %% [markdown]
# So with LLaMA-2's batch of 4M tokens the exchange shows beyond some 130 GPUs, far fewer than the 1024 of section 7.1. Under strong scaling $T$ falls with each GPU that is
# added. This is the second limit as you meet it in practice.
#
# Good clusters buy it off. An HGX server has eight H100 and eight ports, and NCCL's rings use all of them at once, each for its part of the message. A ring through whole
# servers then moves 400 GB/s:

# %%
from course_lib.theory.network.traffic import group_link

whole_servers = group_link(Cluster(chip, nodes=128), "all-reduce", ranks=1024)
eight_ports = hiding_tokens(speed, whole_servers.bytes_per_s, ranks=1024)
print(f"{eight_ports:,.0f} tokens per GPU: {2**22 / eight_ports:,.0f} GPUs")
assert round(tokens / eight_ports) == 8

# %% [markdown]
# With eight ports a server the limit is eight times further off, at a thousand GPUs. Count the ports before you believe such a number.
#
# Three ways to move it: a larger batch, up to the critical one; 16-bit gradients, half the bytes
# (*How to Scale Your Model* derives the same rule for those, jax-ml.github.io/scaling-book, chapter Training); or not data parallelism alone.
#
# And accumulation? It makes the exchange rarer, so what is exposed weighs less. But an exchange can hide only behind the *last* micro-batch's backward pass:
# $T$ is that micro-batch's tokens.
#
# **Remember**
# - Small buckets pay latency, large ones start late.
# - Exposed = end of the last all-reduce − end of the backward pass.
# - Hidden only if tokens per GPU ≥ about $2F/\beta$, for fp32 gradients. The model's size cancels.

# %% [markdown]
# ## 7.5 DDP by hand
#
# Everything is in place: hooks, buckets, an all-reduce that does not wait. Exercise 7.10 builds the bucket and the wrapper of this section in checked steps, and
# `course demo ddp --parts mine` trains on what you wrote. If you want to write them before you see ours, do that now. First the buckets:

# %%
show_source(scratch.ddp.fill)

# %%
show_source(scratch.ddp.Bucket)

# %% [markdown]
# - The bucket is one flat tensor, with a *view* for each parameter: no packing before sending and no unpacking afterwards. `.grad`
#   becomes the view, so the mean arrives right where the optimizer looks. (PyTorch's DDP does this with `gradient_as_bucket_view=True`. Without it, the
#   buckets are a second copy of all gradients, $4N$ bytes more.)
# - `take` divides by the number of ranks *before* the sum. The sum is then the mean.
# - `send` only begins. `receive` waits. Which all-reduce carries the bucket is an argument: torch's own by default, or a ring of messages
#   (`scratch.ddp`, made of chapter 6's two halves).
#
# Now the wrapper. The constructor replicates and sets the hooks; `_ready` is what a hook calls:

# %%
DDP = scratch.ddp.DDP
show_source(DDP.__init__, DDP._ready)

# %% [markdown]
# - **Replicate:** everything is broadcast from rank 0. After that, no weight ever travels.
# - The first hook of a backward pass asks autograd to call `_finish` when the pass has ended.
# - Under `no_sync` (chapter 2) the hook does nothing: gradients only add up in `.grad`.

# %%
show_source(DDP._send_full_buckets, DDP._finish)

# %% [markdown]
# - **Order:** bucket 3 is never sent before bucket 2, even if it is full earlier. The n-th all-reduce of a rank meets the
#   n-th of the others, whatever is in it.
# - **The end:** `_finish` waits. When `backward()` returns, `.grad` is the mean.
#
# With the library it is one line, `DistributedDataParallel(model)`. On a GPU: `device_ids=[local_rank]`, backend NCCL, the rest is the same.
#
# **Predict.** The small GPT has 449,536 bytes of gradients. Two ranks, buckets of 0.1 MiB, three backward passes. How many all-reduces does the library make?

# %%
from course_lib.theory.network.bucket_timeline import ddp_all_reduces
from course_lib.theory.network.bucket_timeline import ddp_buckets

sizes = [p.nbytes for p in reversed(list(build().parameters()))]
cap = round(0.1 * units.MIB)
buckets = ddp_buckets(sizes, cap, first_bytes=cap)
print("buckets:", buckets)

# %%
calls = predict("7.calls", "All-reduces in 3 passes?", yours=None)


# %%
from course_lib.measure.wire import log_wire


def library(model):
    return DistributedDataParallel(model, bucket_cap_mb=0.1)


def from_hooks(model):
    return DDP(model, cap, first_bytes=cap)


def all_reduced(*wraps):
    """For each kind of DDP, bytes of each all-reduce in three backward passes."""
    launch.init()
    return [three_passes(wrap(build())) for wrap in wraps]


def three_passes(ddp):
    passes = []
    for _ in range(3):
        with log_wire() as log:
            ddp(inputs).sum().backward()
        calls = [call for call in log.calls if call.what == "all-reduce"]
        passes.append([call.bytes for call in calls])
    return passes


# %%
theirs, ours = launch.run(all_reduced, library, from_hooks)[0]
expect(
    ddp_all_reduces(syncs=3, buckets=len(buckets)),
    sum(len(one_pass) for one_pass in theirs),
    label="all-reduces",
    yours=calls,
)
assert ours == [buckets] * 3
assert theirs == [[4 * parameters], buckets, buckets]

# %%
rows, colours = {}, (style.MESSAGES, style.lighter(style.MESSAGES))
for who, three_of_them in {"library": theirs, "by hand": ours}.items():
    for number, one_pass in enumerate(three_of_them, start=1):
        parts = {str(place): size for place, size in enumerate(one_pass, start=1)}
        rows[f"{who}, pass {number}"] = parts
figures.stacked_bars(
    rows,
    "All-reduces of each pass, by their bytes",
    "{:,} B".format,
    colours={str(place): colours[(place - 1) % 2] for place in range(1, 5)},
)

# %% [markdown]
# **Explain.** Not 12 but 9: the library's first pass is one bucket, as before. Ours trusts that `parameters()` turned round is about the right order, and has
# its buckets from the start. The bytes are the same in every pass:
#
# $$\text{bytes given to all-reduce} = 4N, \qquad
# \text{sent by each rank} = \frac{2(n-1)}{n} \cdot 4N .$$

# %%
assert all(sum(one_pass) == 4 * parameters for one_pass in theirs + ours)
factors = [collectives.sent_bytes("all-reduce", 1, ranks) for ranks in (2, 8, 1024)]
assert [round(factor, 3) for factor in factors] == [1, 1.75, 1.998]

# %% [markdown]
# The factor is 1 for 2 ranks, 1.75 for 8 and 1.998 for 1024. That is why DDP scales weakly so well: from 8 ranks to 1024, each sends only 14 % more. What
# does grow are the latencies, and the chance that one of 1024 is late.
#
# $4N$ is a convention too. Under autocast the weights stay fp32, so the gradients have 4 bytes. A model held in bf16 sends $2N$.
#
# **Remember**
# - DDP = broadcast once; hooks fill buckets; asynchronous all-reduces in one order; wait at the end of backward.
# - $4N$ bytes per exchange in fp32, $2(n-1)/n$ times that from each rank, in one bucket the first time.

# %% [markdown]
# ## 7.6 Unused parameters
#
# A bucket waits for *all* its gradients. What if one never comes? It happens with mixtures of experts, with a head that only some
# batches use, with any `if` in `forward`:


# %%
class Branches(nn.Module):
    """Two layers, the second only where it is told to."""

    def __init__(self):
        super().__init__()
        self.always, self.sometimes = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x, both):
        x = self.always(x)
        return self.sometimes(x) if both else x


def train(users, find_unused=False, then=0):
    """Two backward passes; the second layer is used on the ranks in `users`."""
    rank = launch.init()
    ddp = DistributedDataParallel(Branches(), find_unused_parameters=find_unused)
    with log_wire() as log:
        for _ in range(2):
            ddp(torch.ones(1, 3), both=rank.rank in users).sum().backward()
            time.sleep(then)
    return [call.bytes for call in log.calls if call.what == "all-reduce"]


def what_happens(*arguments, timeout_s=20):
    """The text of the failure."""
    try:
        launch.run(train, *arguments, ranks=2, timeout_s=timeout_s, stream=False)
    except launch.RankFailed as failure:
        return str(failure)


# %% [markdown]
# Which gradients come, if no rank uses the second layer, and if only rank 0 does? Without DDP nobody waits, so we can look:


# %%
def which_came(users):
    """By name, whether this rank's backward pass made the gradient."""
    branches = Branches()
    branches(torch.ones(1, 3), both=dist.get_rank() in users).sum().backward()
    return {name: p.grad is not None for name, p in branches.named_parameters()}


rows = {}
for case, users in {"no rank": [], "only rank 0": [0]}.items():
    for number, came in enumerate(launch.run(which_came, users, ranks=2)):
        full = all(came.values())
        row = {
            name: figures.Cell(
                name.replace("sometimes", "some"),
                {0: "own gradients" if there else "missing"},
            )
            for name, there in came.items()
        }
        row["end"] = figures.Cell(
            "full: is sent" if full else "never full",
            {0: "messages" if full else "never full"},
        )
        rows[f"{case}, on rank {number}"] = row
title = "Who uses the second layer, and the bucket on each rank"
figures.cells(rows, title, heads=False, gap=2)

# %% [markdown]
# First case: *no* rank uses the second layer. Nobody sends anything, and `backward()` returns
# as if all were well. PyTorch notices in the *next forward pass*. Its message is one to know by heart:

# %%
import textwrap

message = what_happens([])
for line in message.splitlines():
    if line.startswith(("RuntimeError", "Parameters which")):
        print(textwrap.fill(line, 90))
assert "find_unused_parameters=True" in message
assert "did not receive grad for rank" in message

# %% [markdown]
# Note how late it comes: in a training, the first update would have been made with gradients that had not been averaged. The last line has the names because
# the course's launcher sets the environment variable `TORCH_DISTRIBUTED_DEBUG=INFO`. Without it PyTorch prints only their numbers: set it, or `DETAIL`.
#
# Second case: only rank 0 uses the layer. It sends its bucket, and waits for rank 1, which has nothing to send. As long as rank 1 does something
# else, here a long pause as for an evaluation, rank 0 **hangs** inside `backward()`:

# %%
message = what_happens([0], False, 30, timeout_s=5)
print(message.splitlines()[0])
assert "rank 0 hung" in message

# %% [markdown]
# On a cluster the limit is not 5 s: with NCCL PyTorch waits 10 minutes by default. A GPU that waits shows 100 % load meanwhile, since NCCL's kernels spin.
#
# **The remedy** is `find_unused_parameters=True`. After each forward pass DDP then walks through the graph, and marks everything it does not find as ready, with a gradient of zero. (A parameter that no rank used keeps the
# gradient it had.) The ranks also tell each other who used what: one more all-reduce, with an int32 for each parameter tensor. Here:

# %%
used_by_one = launch.run(train, [0], True, ranks=2, stream=False)[0]
print(used_by_one)
gradients, marks = 4 * 2 * (3 * 3 + 3), 4 * 4  # bytes: 24 numbers; 4 tensors
assert used_by_one == [gradients, marks] * 2

# %% [markdown]
# It costs a walk through the graph in every step, so it is off by default. If *all* parameters are used in every step, leave it off. If some are
# never used, freeze them (`requires_grad_(False)`) before wrapping. If the same ones are unused in every step, `static_graph=True` finds them
# once. Exercise 7.7 shows a fourth way.
#
# Our DDP looks at the end of the same backward pass, and says it by name:

# %%
show_source(DDP._treat_unused)

# %% [markdown]
# **Remember**
# - Unused on all ranks: an error one step later. Unused on some: a hang.
# - find_unused_parameters=True: a walk through the graph and one small all-reduce per step.

# %% [markdown]
# ## 7.7 A replica that spans several devices
#
# What if one replica does not fit on one GPU, but on two? Then *one process* takes two GPUs, and puts the first layers on one and the last
# on the other. DDP wraps the whole model. The rule stays: **one process per replica**, not per GPU. Four GPUs, two per replica: two
# processes.

# %%
show_source(scratch.ddp.Spread)

# %% [markdown]
# Two things to get right:
#
# - **No `device_ids`.** With `device_ids=[k]` DDP moves the inputs to GPU `k` and expects the whole module there. A module on several devices moves its tensors itself. Leave `device_ids` and `output_device` at `None`.
# - **No hard-coded devices.** `"cuda:0"` in the module would put *every* process on the same GPU. The process gets its devices as arguments: rank 0 takes 0 and 1, rank 1 takes 2 and 3. In general
#   process $r$ with $d$ devices takes $r d, \dots, r d + d - 1$.

# %%
several = demos.run("multi_device", ranks=2, steps=3, stream=False)
print(textwrap.fill(several.notes[1], 90))
assert all(v.sent == v.predicted_sent for v in several.versions)
assert "device_ids" in several.notes[1]

# %% [markdown]
# The sums and bytes are right; on this machine both devices are the CPU, so it proves the mechanics, not the memory. The message is what PyTorch says when you do pass `device_ids`.
# While one device works, the other one waits:

# %%
from course_lib.theory.pipelines import simulation

one_batch = simulation.timeline("naive", stages=2, micro_batches=1)
replicas = {"replica 0, on GPUs 0 and 1": one_batch.tasks}
replicas["replica 1, on GPUs 2 and 3"] = one_batch.tasks
figures.timeline(replicas, seconds=False)

# %% [markdown]
# You gain room, not speed. Chapter 11 fills the gaps with micro-batches.
#
# **Remember**
# - One process per replica. device_ids=None for a module on several devices.
# - Devices are arguments, never constants.

# %% [markdown]
# ## 7.8 Fewer bytes: compression in the hook
#
# In section 7.4 a communication hook of ours replaced DDP's all-reduce. PyTorch comes with hooks that send less.
#
# **Half the bytes.** `bf16_compress_hook` rounds each bucket to bf16, all-reduces it, and converts the sum back: $2N$ bytes instead of $4N$. A bf16 number has 8
# significant bits, so each one is off by up to $2^{-8}$, or 0.4 %. The sum over ranks is rounded as well.
#
# **Far fewer.** PowerSGD (Vogels et al. 2019, arXiv:1905.13727) approximates a gradient $M$, a matrix of $u \times v$ numbers, by the product of two thin matrices of **rank** (秩) $r$ (a word of linear algebra, which has nothing to do with processes),
# $M \approx P Q^T$. Only these travel:
#
# $$u \cdot v \;\longrightarrow\; r \cdot (u + v) .$$
#
# For 1024 × 4096 and $r = 4$ that is 20,480 numbers instead of 4,194,304, 1 in 205. In each step
#
# 1. each rank computes $P = M Q$, with the $Q$ of the step before; the ranks all-reduce $P$, and make its columns orthonormal,
# 2. each rank computes $Q = M^T P$; the ranks all-reduce $Q$,
# 3. all take $P Q^T$ for the gradient.
#
# Both products are linear in $M$, so the sum of the ranks' products is the product of the summed gradient. Vectors such as biases travel whole.

# %% [markdown]
# **Predict.** Our GPT has 449,536 bytes of gradients. Which percentage of them does PowerSGD of rank 4 give to all-reduce? Its matrices are 64 × 64 to 64 × 256.

# %%
left = predict("7.lowrank", "Bytes left at rank 4?", yours=None, unit="%")

# %%
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

HOOKS = "fp32", "bf16", "rank 16", "rank 4", "rank 1"
text = Windows(sequence=64)


def in_bf16(_, bucket):
    """PyTorch's hook, in a function of ours: by its name DDP would ask for a GPU."""
    return default_hooks.bf16_compress_hook(None, bucket)


def hooked(how, feedback=True, model=None):
    """A model (our GPT) in DDP, its gradients sent in fp32, in bf16 or by PowerSGD.

    All in one bucket: gloo's threads would mix up the messages of several.
    """
    ddp = DistributedDataParallel(model or build())
    if how == "fp32":  # what DDP does without a hook
        ddp.register_comm_hook(None, default_hooks.allreduce_hook)
    elif how == "bf16":
        ddp.register_comm_hook(None, in_bf16)
    else:
        state = powerSGD_hook.PowerSGDState(
            None,
            matrix_approximation_rank=int(how.split()[1]),
            start_powerSGD_iter=2,  # the first passes are exact
            use_error_feedback=feedback,
        )
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return ddp


def own_loss(ddp):
    """The mean loss of this rank's half of a batch of 8."""
    first = 4 * dist.get_rank()
    own_inputs, own_labels = text.batch(range(first, first + 4))
    return loss_sum(ddp(own_inputs), own_labels) / own_labels.numel()


# %%
from unittest import mock


def third_passes():
    """For each hook: bytes given to all-reduce, and how far the gradient is off."""
    launch.init()
    sizes, gradients = {}, {}
    for how in HOOKS:
        ddp = hooked(how)
        for _ in range(3):
            ddp.zero_grad()
            # log_wire hears one thread, and PowerSGD goes on in another one.
            with mock.patch(
                "torch.distributed.all_reduce", wraps=dist.all_reduce
            ) as log:
                own_loss(ddp).backward()
        sizes[how] = sum(call.args[0].nbytes for call in log.call_args_list)
        gradients[how] = measure.gradients.flat_gradient(ddp)
    off = measure.gradients.relative_difference
    return {how: (sizes[how], off(gradients[how], gradients["fp32"])) for how in HOOKS}


# %%
from course_lib.chapters.ch07_ddp.compression import powersgd_bytes

passes = launch.run(third_passes, ranks=2, stream=False)[0]
shapes = [tuple(p.shape) for p in build().parameters()]
in_theory = {"fp32": 4 * parameters, "bf16": 2 * parameters}
for how in HOOKS[2:]:
    in_theory[how] = powersgd_bytes(shapes, rank=int(how.split()[1]))
assert {how: size for how, (size, _) in passes.items()} == in_theory
expect(
    100 * in_theory["rank 4"] / (4 * parameters),
    100 * passes["rank 4"][0] / passes["fp32"][0],
    label="bytes left at rank 4",
    unit="%",
    yours=left,
)

# %%
figures.bars(
    {how: size for how, (size, _) in passes.items()},
    {how: f"{size:,} B, off by {error:.1%}" for how, (size, error) in passes.items()},
    "All-reduced in one pass, and the error of the gradient, |difference| / |gradient|",
)

# %% [markdown]
# **Explain.** bf16 sends half, and the gradient is off by 0.2 %. Rank 4 sends 10 %, of which a sixth is vectors, and its gradient is off by 12.5 %; with rank 1 it is 29 %. How can one train with that?
#
# By **error feedback** (误差反馈): each rank remembers what the approximation left out, and adds it to its gradient in the next step. So nothing is lost; it comes later.
#
# Does it? Take a layer whose gradient is the same in every step. Then we know where plain SGD should be after $k$ steps: $k$ gradients away. From random inputs comes a hard case: a gradient of 64 × 64 numbers, of which four columns hold only about a third.


# %%
def missing(feedback):
    """After each of 100 updates, the part of the exact movement that is missing."""
    torch.manual_seed(dist.get_rank())
    x, pull = torch.randn(2, 32, 64)
    layer = nn.Linear(64, 64, bias=False)
    nn.init.zeros_(layer.weight)
    ddp, parts = hooked("rank 4", feedback, layer), []
    total = pull.T @ x  # this rank's gradient of (layer(x) * pull).sum()
    dist.all_reduce(total)
    for number in range(1, 101):
        ddp.zero_grad()
        (ddp(x) * pull).sum().backward()
        layer.weight.data -= layer.weight.grad
        exact = -number * total / 2
        off = measure.gradients.relative_difference(layer.weight.data, exact)
        parts.append((number, 100 * off))
    return parts


def both_ways():
    """Without and with error feedback."""
    launch.init()
    return {"no feedback": missing(False), "error feedback": missing(True)}


# %%
curves = launch.run(both_ways, ranks=2, stream=False)[0]
at_the_end = {name: curve[-1][1] for name, curve in curves.items()}
assert at_the_end["no feedback"] > 75 and at_the_end["error feedback"] < 10
figures.lines(
    curves,
    "updates",
    "% of the movement missing",
    "A constant gradient, PowerSGD of rank 4",
)

# %% [markdown]
# Without feedback 80 % of the movement is missing after 100 updates, and more with each: what doesn't fit into rank 4 never arrives. With feedback it is 7 %, and less with each: what is left out stays about as large, while the movement grows. So the
# paper and PyTorch's `PowerSGDState` have feedback on by default. Real gradients fit better, as the 12.5 % above show.
#
# What is remembered is as large as the gradients: $4N$ bytes more on each rank. The three products cost about $6ruv$ FLOP, against $4uvT$ of the backward pass with $T$ tokens: nothing, for $r = 4$. The limit is quality. DALL·E's
# 12 billion parameters needed at least rank 896 to train without a visible gap, which saved about 86 % of the bytes (arXiv:2102.12092, table 1), not 99.5 %.
#
# So compress only what is exposed. By the rule of section 7.4, $T = 2F/\beta$ tokens hide the exchange in fp32, and bf16 needs half of them.

# %%
half = hiding_tokens(speed, hardware.NDR.bytes_per_s, ranks=1024, element_bytes=2)
print(f"H100 at 50 GB/s: {tokens:,.0f} tokens in fp32, {half:,.0f} in bf16")
assert half == tokens / 2

# %% [markdown]
# And seconds? `bf16_compress_wrapper` rounds around any hook: here around the sleeping link of section 7.4, where a bucket for each layer took 200 ms. Now it travels 15 ms
# instead of 30, and is there before the next one is full. That leaves 6 · 20 + 15 = 135 ms, 0.68 of the time.


# %%
def rounded(hook):
    """The hook, given its buckets in bf16; a function of ours, as above."""
    wrapped = default_hooks.bf16_compress_wrapper(hook)
    return lambda state, bucket: wrapped(state, bucket)


passes = launch.run(backward_passes, 0.25, 20, rounded, ranks=2, stream=False)[0]
slow_s = min(seconds for seconds, *_ in passes[1:])
expect(0.135, slow_s, within=None, label="slow link, bf16", unit="s")

# %% [markdown]
# Rounding is not free. There and back a number moves 4 + 2 + 2 + 4 = 12 bytes through memory, to save 2 of 4 bytes each time it passes the link. On two ranks it passes once, so the hook wins only on links slower than a
# sixth of the memory; on eight it passes 1.75 times, and 0.29 of the memory is the limit. For an H100 a sixth is 3350 / 6 = 558 GB/s, faster than NVLink. And for this machine?

# %%
bucket = torch.randn(2**18)  # 1 MiB
rounding_s = measure.times.seconds(lambda: bucket.copy_(bucket.bfloat16()))
pays_below = 2 * bucket.numel() / rounding_s / units.GB
sixth = measure.times.memory_bytes_per_s(2**18) / 6 / units.GB
expect(sixth, pays_below, within=None, label="pays below", unit="GB/s")

# %% [markdown]
# Without the sleeping link our two ranks talk through that memory. There the hook gained nothing that could be told from noise: in 24 runs with 0.25 to 16 MB of gradients a
# pass took 0.6 to 1.6 times as long with it as without. Bytes must be dear, and exposed.
#
# **Remember**
# - bf16 hook: half the bytes, gradients off by some 0.2 %. PowerSGD: $r(u+v)$ of $uv$ numbers, and an error that must be fed back.
# - Compression pays only for communication that is exposed.

# %% [markdown]
# ## 7.9 What equal gradients do not make equal
#
# ### Buffers
#
# A **buffer** is a tensor that a module keeps and no optimizer trains. BatchNorm (chapter 2) has three: the running mean and variance of its inputs, for use in evaluation, and a counter. They are no
# parameters, so they have no gradients and nothing averages them. DDP does something else: before each forward pass it broadcasts rank 0's buffers to all.
#
# **Predict.** Rank 0 sees numbers around 0, rank 1 around 4, as if the data had been sorted. BatchNorm moves its running mean by a tenth of the way in each pass. After 100 passes in DDP, what is the running mean on rank 1?

# %%
running = predict("7.running", "Running mean on rank 1?", yours=None)


# %%
def batch_norm(norm, broadcast):
    """The running mean and variance on this rank after 100 passes."""
    rank, module = launch.init(), norm(1)
    ddp = DistributedDataParallel(module, broadcast_buffers=broadcast)
    samples = torch.tensor([[-1.0], [1.0]]) + 4 * rank.rank
    for _ in range(100):
        ddp(samples).sum().backward()
    return module.running_mean.item(), module.running_var.item()


Sync = scratch.data_parallel.SyncBatchNorm
statistics = {
    case: launch.run(batch_norm, *how, ranks=2, stream=False)
    for case, how in {
        "DDP as it comes": (nn.BatchNorm1d, True),
        "no broadcast": (nn.BatchNorm1d, False),
        "synchronised": (Sync, True),
    }.items()
}

# %%
expect(
    0.1 * 4,
    statistics["DDP as it comes"][1][0],
    within=1e-3,
    label="running mean",
    yours=running,
)

# %%
rows = {
    case: {f"rank {rank}": mean for rank, (mean, _) in enumerate(found)}
    for case, found in statistics.items()
}
colours = {"rank 0": style.BLUE, "rank 1": style.ORANGE}
figures.grouped_bars(
    rows,
    "Running mean after 100 passes; of all samples it is 2",
    "{:.2f}".format,
    colours,
)

# %% [markdown]
# **Explain.** Rank 1 gets rank 0's mean, 0, before each pass, and moves it to 0.4. A checkpoint from rank 0 knows nothing of rank 1's samples. Without the broadcast each rank has statistics of its own: evaluation then gives
# another result on each. With shuffled data both are harmless, since all ranks see the same distribution; with small batches per GPU both are noisy.
#
# **SyncBatchNorm** (同步批归一化) takes mean and variance over the samples of *all* ranks, so outputs, gradients and statistics are those of one process with the whole batch. PyTorch's own refuses a CPU, so here is ours:

# %%
show_source(Sync.forward)

# %% [markdown]
# The cost: one message of $2C + 1$ numbers for $C$ features in the forward pass and one in the backward pass, for each such layer, and the GPU waits for both. ResNet-50 has 53 of them: 106 latencies in each step. `convert_sync_batchnorm` replaces the
# layers of a model.
#
# Language models use LayerNorm or RMSNorm, which have no running statistics. But they may have *other* buffers, such as masks and tables of positions, and DDP broadcasts all of them before every forward pass. A causal mask of 4096 × 4096 bytes is 16.8 MB.
# `broadcast_buffers=False` stops that. PyTorch 2.13 deprecates it in favour of `forward_sync_buffers=False`, which still makes the buffers equal once, when DDP is built.
#
# ### Uneven data: `join`
#
# Three ranks have 2, 3 and 5 batches. In the third step rank 0 has nothing to do, and the others wait for it in the all-reduce: a hang. `drop_last` and samplers that pad (chapter 1) avoid it. Where batches cannot be counted beforehand, `with ddp.join():` around the loop helps: a rank that has finished
# goes on answering the others' all-reduces, with zeros.
#
# **Predict.** Plain SGD with learning rate 1, and a weight whose gradient is 1 in each batch on each rank. How far has it moved when all have joined?

# %%
distance = predict("7.join", "Distance of the weight?", yours=None)


# %%
def uneven(by_all=True):
    """Distance of a weight, own batches, and all-reduces of gradients and of anything else."""
    rank, layer = launch.init(), nn.Linear(3, 1, bias=False)
    nn.init.zeros_(layer.weight)
    ddp, batches = DistributedDataParallel(layer), (2, 3, 5)[rank.rank]
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1.0)
    with log_wire() as log, ddp.join(divide_by_initial_world_size=by_all):
        for _ in range(batches):
            optimizer.zero_grad()
            ddp(torch.ones(1, 3)).sum().backward()
            optimizer.step()
    sizes = [call.bytes for call in log.calls if call.what == "all-reduce"]
    gradients = sizes.count(layer.weight.nbytes)
    return -layer.weight[0, 0].item(), batches, gradients, len(sizes) - gradients


# %%
joined = launch.run(uneven, ranks=3, stream=False)
expect((2 + 3 + 5) / 3, joined[0][0], within=1e-6, label="distance", yours=distance)
assert len({moved for moved, *_ in joined}) == 1  # the same on all ranks

# %%
figures.stacked_bars(
    {
        f"rank {rank}": {"own batch": batches, "zeros for others": answered - batches}
        for rank, (_, batches, answered, _) in enumerate(joined)
    },
    "All-reduces of gradients",
    "{:.0f}".format,
)

# %% [markdown]
# **Explain.** Each of the 10 batches counts a third, as in the first two steps: $10 / 3$. With `divide_by_initial_world_size=False` the sum is divided by the ranks that still have data; the weight moves by 5, and the last batches of rank 2 count three times as much.
#
# Who waits? Rank 0, in `join`'s exit, until the last rank is done. It makes no updates there: its weights stand still, and at the end everybody receives those of the last rank. Its optimizer's states do *not* come along. And each step has two more small all-reduces, so that the ranks know who is still training:

# %%
alone = launch.run(uneven, False, ranks=3, stream=False)
assert [moved for moved, *_ in alone] == [5.0] * 3
assert [others for *_, others in joined] == [2 * 5 + 2] * 3  # and two at the end

# %% [markdown]
# `join` knows DDP's collectives only. With SyncBatchNorm, or with any message of your own, a rank that has finished leaves the others hanging: `throw_on_early_termination=True` then stops all ranks at the first that is done.
#
# **Remember**
# - DDP makes gradients equal, and nothing else. Buffers are rank 0's; SyncBatchNorm shares statistics for two messages a layer.
# - `join` lets ranks with fewer batches answer with zeros. Better to give all ranks equally many.

# %% [markdown]
# ## 7.10 A compiled model
#
# `torch.compile` (chapter 15 has its graphs) makes one graph of the backward pass. A graph gives back all its gradients together, when it has run; then no bucket can leave earlier. So for a DDP model the compiler cuts the
# graph at the buckets (DDPOptimizer). Four layers of 1 MiB each, buckets of 1 MiB, with the cuts and without:


# %%
class Chain(nn.Module):
    """Four layers, one after the other."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512, bias=False) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def order(cut):
    """What happens in a compiled backward pass: graphs that have run, buckets that leave."""
    launch.init()
    events, ddp = [], DistributedDataParallel(Chain(), bucket_cap_mb=1)

    def send(group, bucket):
        events.append("bucket")
        return default_hooks.allreduce_hook(group, bucket)

    ddp.register_comm_hook(None, send)
    with measure.gradients.log_backward(lambda: events.append("graph"), cut) as backend:
        compiled = torch.compile(ddp, backend=backend)
        for _ in range(3):
            events.clear()
            compiled(torch.ones(2, 512)).sum().backward()
    return events


uncut, cut = (launch.run(order, how, ranks=2, stream=False)[0] for how in (False, True))
assert uncut == ["graph"] + 4 * ["bucket"] and cut == 4 * ["graph", "bucket"]

# %% [markdown]
# Without the cuts nothing overlaps. For GPT-2 on the eight A100 of section 7.4 that would look like this:

# %%
cap = 25 * units.MIB
late, early = (
    ddp_timeline(
        of_gpt2, 8, hardware.HDR, cap_bytes=cap, first_bytes=cap, overlap=overlap
    )
    for overlap in (False, True)
)
figures.bucket_timeline(
    {"One graph: all gradients come at its end": late, "Cut at the buckets": early}
)

# %% [markdown]
# PyTorch's authors measured it on 64 GPUs with six models: compiled DDP was up to 25 % slower than DDP that is not compiled; with the cuts at most 1 % slower and up to 15 % faster
# (*TorchDynamo Update 9*, dev-discuss.pytorch.org, topic 860). The price is that nothing is fused across a cut. So with compile, buckets have a second effect: smaller ones mean more and smaller graphs.
#
# **Remember**
# - The compiler cuts the graph of a DDP model at its buckets, so that they can leave during backward.

# %% [markdown]
# ## 7.11 Demo: DDP on real processes
#
# First a look inside. PyTorch's profiler records one backward pass of rank 0, with one bucket and with several, by hand and by the library.

# %%
traces = demos.run("overlap", ranks=2, stream=False)
title = "One backward pass of one rank"
figures.lanes({run.title: run.rows for run in traces.lanes}, title)

# %%
one_bucket = [lanes for lanes in traces.lanes if lanes.buckets == 1]
assert all(lanes.overlapped_ms == 0 for lanes in one_bucket)

# %% [markdown]
# **Explain.** With one bucket, communication begins when the last gradient is there: 0 ms overlap, always. With seven it begins during the
# backward pass. *How much* overlaps is not to be predicted here: the ranks and the threads that communicate share a few cores, so computing gets slower while
# something travels. A GPU has the same effect, smaller: NCCL's kernels take some of its processors.
#
# Now the whole training. Two ranks, 20 updates, buckets of 0.1 MiB; beside it one process with the samples of both, and DDP by hand.

# %%
run = demos.run(
    "ddp", ranks=2, steps=20, accumulation=1, bucket_cap_mb=0.1, stream=False
)
expected = ddp_all_reduces(syncs=20, buckets=len(buckets))
expect(expected, run.all_reduces, label="all-reduces")
expect(20 * 4 * parameters, run.all_reduced_bytes, label="bytes", unit="B")
assert run.scratch.all_reduces == 20 * len(buckets)
assert run.gradient_difference < demos.load("ddp").TOLERANCE

# %%
figures.loss(
    {
        "DDP": run.losses,
        "DDP by hand": run.scratch.losses,
        "one process": run.losses_one_process,
    }
)

# %% [markdown]
# **Explain.** $1 + 19 \cdot 4 = 77$ all-reduces by the library and $20 \cdot 4 = 80$ by hand, and $20 \cdot 4N$ bytes in both. Three curves that look like
# one: the gradients differ from one process by about $10^{-7}$, float32's rounding.
#
# In a terminal, the second command with PyTorch's own launcher:
#
# ```
# course demo ddp --ranks 2 --accumulation 1 --bucket-cap-mb 0.1
# python -m torch.distributed.run --standalone --nproc-per-node 2 \
#     -m course_lib.demos ddp --accumulation 1 --bucket-cap-mb 0.1
# ```

# %% [markdown]
# ## What to remember
#
# 1. Data parallelism: replicas, own samples, the mean gradient at every update.
# 2. Two limits: the model state must fit on one replica; the batch cannot grow without end.
# 3. DataParallel is one process with one busy GPU. DDP is a process per replica, with no GPU in the middle.
# 4. Hooks fill buckets, buckets travel during backward. The first pass has one bucket (not with find_unused_parameters).
# 5. $4N$ bytes per exchange, $2(n-1)/n$ times that from each rank.
# 6. Hidden only with about $2F/\beta$ tokens per GPU, whatever the model's size.
# 7. Unused parameters: an error one step later, or a hang.
# 8. Hooks send less: half in bf16, $r(u+v)$ of $uv$ numbers by PowerSGD, whose error must be fed back.
# 9. Only gradients are made equal. Buffers are rank 0's, and uneven data hangs without `join`.

# %%
from course_lib import quiz

quiz("7")

# %% [raw] tags=["quiz"]
# How often do the ranks of DDP exchange gradients?
# [x] at every update
# [ ] once an epoch
# [ ] whenever they have time
# Why: After one update with different gradients the replicas would differ forever.
#
# You double the GPUs from 64 to 128, with the same batch per GPU. Each rank's bytes …
# [ ] double
# [ ] halve
# [x] stay nearly the same
# Why: 2(n-1)/n · 4N: 1.97 and 1.98 times 4N. Only the number of latencies doubles.
#
# One bucket for everything. How much of the communication hides behind backward?
# [x] none
# [ ] half
# [ ] all
# Why: It is full only when the last gradient is there, and then backward has ended.
#
# One rank skips a layer in forward; the others use it. What happens without find_unused_parameters?
# [ ] an error at once
# [x] the others hang in backward
# [ ] the gradient is taken as zero
# Why: They send their bucket and wait for a rank that has nothing to send.
#
# A replica spans two GPUs of a node with eight. How many processes does DDP need there?
# [ ] 8
# [x] 4
# [ ] 2
# Why: One process per replica, with device_ids=None; each takes two GPUs.
#
# torch.compile makes one graph of the backward pass. When does the first bucket leave?
# [ ] when its own layers are done
# [x] when all of the graph has run
# [ ] in the next pass
# Why: A graph gives back its gradients when it ends, so the compiler cuts it at buckets.

# %% [markdown]
# **Now you:** open [the exercises](../exercises/07_ddp.ipynb).
#
# **Read on.** Li et al. 2020, *PyTorch Distributed: Experiences on Accelerating Data Parallel Training*, sections 3 and 4 (arXiv:2006.15704). PyTorch's notes
# *Distributed Data Parallel* (pytorch.org/docs, Developer Notes). *How to Scale Your Model*, chapter Training (jax-ml.github.io/scaling-book).

# %% tags=["exercise"]
import torch
from torch import nn

from course_lib import check, hint, solution

# %% [markdown] tags=["exercise"]
# ### 7.1 Calculate: fits on one GPU, dies on two
#
# GPT-2 with 1,557,611,200 parameters, fp32 and AdamW, trains on one GPU of 40 GB (10⁹ bytes); activations and all the rest are 12 GB. With DDP on two such GPUs, the same
# micro-batch on each, it dies in the second backward pass: out of memory. Give the GB that it takes on one GPU, and that it would take on each of two. Which one change fixes it: `"bucket_cap_mb=1"`,
# `"gradient_as_bucket_view=True"`, `"find_unused_parameters=True"` or `"more GPUs"`?

# %% [raw] tags=["hints"]
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
# ### 7.2 Debug: five traces
#
# Five traces of GPT-2 124M (498 MB of gradients) under DDP. Each GPU is an A100 with a port of 25 GB/s and 9.6 µs a step (NCCL's number until release 2.17). Times are those of the last backward pass of an update, in ms from its
# start:
#
# | run | GPUs | micro-batches | all-reduces in an update | the first begins | backward ends | the last one ends | the link is busy for |
# |---|---|---|---|---|---|---|---|
# | A | 8 | 1 | 1 | 29.9 | 29.9 | 64.8 | 35.0 |
# | B | 1024 | 1 | 13 | 22.1 | 59.7 | 317.2 | 295.1 |
# | C | 8 | 1 | 13 | 2.8 | 7.5 | 39.3 | 36.6 |
# | D | 8 | 1 | 13 | 44.2 | 119.4 | 132.7 | 36.6 |
# | E | 8 | 4 | 52 | 11.0 | 29.9 | 47.6 | 36.6 |
#
# What would you change first in each? `"larger buckets"`, `"smaller buckets"`, `"more tokens per GPU"` in each pass, `"no_sync"`, or `"nothing"`? Each answer fits once.

# %% [raw] tags=["hints"]
# For each: when could the first bucket go, and what is the link doing all the time?
# 498 MB are some 35 ms at 25 GB/s: what does the link of B do for 295 ms?
# C and D send alike. Compare how long each computes.

# %% tags=["exercise"]
change = {"A": ..., "B": ..., "C": ..., "D": ..., "E": ...}
### BEGIN SOLUTION
change = {
    "A": "smaller buckets",  # the only one is full when backward has ended
    "B": "larger buckets",  # 13 · 2046 steps of 9.6 µs are 255 of the 295 ms
    "C": "more tokens per GPU",  # nothing that lasts 36.6 ms hides behind 7.5 ms
    "D": "nothing",  # the tail is the embedding's bucket, which is full last
    "E": "no_sync",  # four exchanges where one will do
}
### END SOLUTION
check("7.2", change)

# %% [markdown] tags=["exercise"]
# ### 7.3 Debug: "periodically"
#
# (two published mistakes, notes 000 and 004) "The workers periodically sum their gradients, and the gradient is the change of the parameters", say the notes, and this code does what
# they say. Fix it: `gradients[step][rank]` is what each rank found, the optimizer is SGD. Return the weight of every replica after all steps.

# %% [raw] tags=["hints"]
# How often do ranks exchange, and what do they all know afterwards?
# The mean, not the sum, and in every step: weight - learning rate · mean.


# %% tags=["exercise"]
def replicas(
    weight: float, gradients: list[list[float]], learning_rate: float
) -> list[float]:
    """The weight on each rank after all steps."""
    weights = [weight] * len(gradients[0])
    ### BEGIN GIVEN
    for step, found in enumerate(gradients, start=1):
        for rank, gradient in enumerate(found):
            weights[rank] += sum(found) if step % 2 == 0 else gradient
    return weights
    ### END GIVEN
    ### BEGIN SOLUTION
    for found in gradients:
        mean = sum(found) / len(found)
        weights = [each - learning_rate * mean for each in weights]
    return weights
    ### END SOLUTION


check("7.3", replicas)

# %% [markdown] tags=["exercise"]
# ### 7.4 Predict: does it hide?
#
# LLaMA-2 7B on H100 that compute 794.5 TFLOP/s and send 50 GB/s one way. DDP, fp32 gradients and a batch of $2^{22}$ tokens (4M) for all GPUs together, if nothing else is said. Is the backward pass at least as
# long as the exchange, so that it can hide? Guess all six. Then give the tokens that a GPU needs for it in the first case (take $2(n-1)/n$ as 2), and look at your guesses again.

# %% [raw] tags=["hints"]
# What counts is the tokens of one GPU in the pass that exchanges. What cancels?
# 4 N T / F = 2 · 4 N / β: which of the six change T, and which the bytes of a gradient?

# %% tags=["exercise"]
tokens = ...
hides = {
    "64 GPUs": ...,
    "256 GPUs": ...,
    "128 GPUs, gradients in bf16": ...,
    "128 GPUs, 2 micro-batches and no_sync": ...,
    "512 GPUs, a batch of 32M tokens": ...,
    "256 GPUs, a model twice as large": ...,
}
### BEGIN SOLUTION
tokens = 2 * 794.5e12 / 50e9
hides = {
    "64 GPUs": tokens < 2**22 / 64,
    "256 GPUs": tokens < 2**22 / 256,
    "128 GPUs, gradients in bf16": tokens / 2 < 2**22 / 128,
    # only the last backward pass exchanges, and it has half of the tokens
    "128 GPUs, 2 micro-batches and no_sync": tokens < 2**22 / 128 / 2,
    "512 GPUs, a batch of 32M tokens": tokens < 2**25 / 512,
    # computing and bytes both double
    "256 GPUs, a model twice as large": tokens < 2**22 / 256,
}
### END SOLUTION
check("7.4", [tokens, hides])

# %% [markdown] tags=["exercise"]
# ### 7.5 Implement: bucketing
#
# `sizes` are the bytes of the gradients in the order in which they become ready. A bucket closes as soon as it holds *at least* its limit: `first` for the first
# bucket, `cap` for the others. Return the bytes of each bucket. The last one may hold less.

# %% [raw] tags=["hints"]
# Add first, then compare: at least the limit.
# Do not lose the last bucket.


# %% tags=["exercise"]
def fill(sizes: list[int], cap: int, first: int) -> list[int]:
    """Bytes of each bucket."""
    ### BEGIN SOLUTION
    buckets, held = [], 0
    for size in sizes:
        held += size
        if held >= (cap if buckets else first):
            buckets.append(held)
            held = 0
    return [*buckets, held] if held else buckets
    ### END SOLUTION


check("7.5", fill)

# %% [markdown] tags=["exercise"]
# ### 7.6 Predict: how many all-reduces?
#
# 16 gradients of 8 MiB each, DDP's default limits (1 MiB, then 25 MiB), 20 updates with accumulation 4. How many all-reduces does the run make with `no_sync`, without it, and with `no_sync` and
# `find_unused_parameters=True` (sections 7.4 and 7.6)? Then count them, if you like, with section 7.5's cells.

# %% [raw] tags=["hints"]
# 8 ≥ 1: the first bucket has one gradient. How many have the next ones?
# How many buckets has the first exchange? And with find_unused_parameters?
# With find_unused_parameters the ranks also tell each other who used what.

# %% tags=["exercise"]
with_no_sync, without, find_unused = ..., ..., ...
### BEGIN SOLUTION
buckets = 5  # 8 MiB, 32, 32, 32, 24
with_no_sync = 1 + 19 * buckets
without = 1 + 79 * buckets
find_unused = 20 * (buckets + 1)  # never one bucket, and the marks of who used what
### END SOLUTION
check("7.6", [with_no_sync, without, find_unused])

# %% [markdown] tags=["exercise"]
# ### 7.7 Debug: the hang
#
# Some ranks call this module with `both=True`, others with `both=False`, and DDP hangs. Fix the module, without `find_unused_parameters`: the same outputs, and
# every parameter takes part in the graph.

# %% [raw] tags=["hints"]
# Compute the branch in any case.
# Something times zero is in the graph.


# %% tags=["exercise"]
class Branches(nn.Module):
    """Two layers, the second only where it is told to."""

    def __init__(self):
        super().__init__()
        self.always, self.sometimes = nn.Linear(3, 3), nn.Linear(3, 3)

    ### BEGIN GIVEN
    def forward(self, x, both: bool):
        x = self.always(x)
        return self.sometimes(x) if both else x

    ### END GIVEN
    ### BEGIN SOLUTION
    def forward(self, x, both: bool):
        x = self.always(x)
        y = self.sometimes(x)
        return y if both else x + 0 * y

    ### END SOLUTION


check("7.7", Branches)

# %% [markdown] tags=["exercise"]
# ### 7.8 Implement: the exposed time
#
# Bucket $i$ is full at `ready[i]` and needs `travel[i]` seconds on the link, which carries one at a time, in order. The last bucket is full when the backward pass ends. How many
# seconds of communication are exposed?

# %% [raw] tags=["hints"]
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
# ### 7.9 Predict: equal on all ranks?
#
# Two ranks train in `DistributedDataParallel`: a model with BatchNorm, AdamW, gradients clipped by their norm, PowerSGD with error feedback, and batches of their own. Right after the 100th backward pass both
# write down what they have. What is equal on both, up to rounding?
#
# Then rank 0 saves weights, buffers and AdamW's states, and both ranks start again from that file. One of the seven is lost that way, and training goes on differently. Which one?

# %% [raw] tags=["hints"]
# What of the seven is made of a rank's own samples, and not exchanged since?
# When does DDP broadcast buffers: before or after the forward pass that moves them?
# Which of them is neither in the file nor made anew by the next pass?

# %% tags=["exercise"]
equal = {
    "the weights": ...,
    "their gradients": ...,
    "AdamW's second moments": ...,
    "the norm of the gradient": ...,
    "the loss": ...,
    "BatchNorm's running mean": ...,
    "what PowerSGD has left out": ...,
}
lost = ...
### BEGIN SOLUTION
equal = {
    "the weights": True,
    "their gradients": True,
    "AdamW's second moments": True,
    "the norm of the gradient": True,
    "the loss": False,
    "BatchNorm's running mean": False,  # the forward pass moved rank 0's, on each rank by its own samples
    "what PowerSGD has left out": False,
}
lost = "what PowerSGD has left out"  # rank 1's running mean would have been overwritten anyway
### END SOLUTION
check("7.9", [equal, lost])

# %% [markdown] tags=["exercise"]
# ### 7.10 Build: DDP from hooks
#
# Write DDP: a `Bucket`, and the wrapper around a module. `fill(parameters, cap_bytes, first_bytes)` divides parameters into lists, one for each bucket; `after_backward(action)` calls `action` when the backward pass
# that is running has ended. `all_reduce(flat)` begins to sum a tensor over ranks, in place, and returns something with a `wait()`.
#
# Five steps, each checked on two or three real ranks: (1) one bucket, its gradients made by hand; (2) the whole wrapper: weights as on rank 0, buckets sent while backward runs and in one order
# on all ranks, gradients that are the mean; (3) `no_sync`; (4) parameters that a rank does not use; (5) the same on *your* ring of exercise 6.11. What passes is kept as `mine/ddp.py`.

# %% [raw] tags=["hints"]
# take: `.grad / ranks` into the parameter's view of the flat tensor; and `.grad` becomes the view, so that the mean arrives where the optimizer looks.
# Three places: the constructor broadcasts and sets hooks, `_ready` is what a hook calls, `_finish` is what `after_backward` calls. Who calls `after_backward`, and how often?
# Send buckets from a counter on: the next one only if it waits for no gradient, and so on until one does.
# no_sync: while it is open, `_ready` does nothing at all.
# Unused: at the end of backward some parameters are still waited for. Take their gradient as it is, or zeros if there is none; then send what is full.

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
        """Lay `parameter.grad`, which is complete, into the bucket: this rank's part of a mean."""
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
        self.running = False  # whether _finish has been ordered in this backward pass
        self.sent = 0  # buckets that are on their way
        # Yours: all of module.state_dict() as on rank 0; self.buckets, of the parameters that are
        # trained (requires_grad); and on each of these a hook that calls self._ready(its bucket, it).

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
        """Parameters that no gradient came for: without find_unused a RuntimeError that names them.

        With it their gradient is what they have, zeros if that is nothing; then all is sent.
        """
        ...


### END GIVEN
### BEGIN SOLUTION
from course_lib.scratch.ddp import Bucket
from course_lib.scratch.ddp import DDP

### END SOLUTION

check("7.10", [Bucket, DDP])

# %% [markdown] tags=["exercise"]
# Stretch: `from course_lib import race`, and `race("7.10")` measures a backward pass with your DDP, with ours and with PyTorch's; all three have four buckets of 1 MiB.
