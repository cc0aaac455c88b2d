# %% [raw] tags=["sitting"]
# question: How do you train with batch 512 on two small GPUs?
# importance: 5
# difficulty: 3
# group: alone
# needs: 1

# %% [markdown]
# # 2 The same gradient in pieces
#
# A paper trained with a batch of 512 sequences. You have two GPUs, and each runs out of memory
# at a batch of 9. Can you repeat the experiment, or do you have to buy 62 more GPUs?
#
# You can repeat it, with **gradient accumulation** (梯度累积): many small forward and
# backward passes, one update. By the end of this notebook you can
#
# - show that the gradient is the same, and name what breaks that,
# - predict how often the GPUs exchange gradients,
# - train on two processes, and prove that the result equals that of one.
#
# You need chapter 1.

# %%
import math

import torch

from course_lib import demos, expect, launch, measure, predict, scratch, show_source
from course_lib.chapters.ch02_gradient_accumulation import figures
from course_lib.demos.shared.text import VOCAB, Windows
from course_lib.scratch.accumulation import IGNORE, accumulate, loss_sum
from course_lib.theory import gradient_syncs, models, sent_bytes, units

launch.warm_up()
torch.set_num_threads(1)

# %% [markdown]
# ## 2.1 The same gradient with less memory
#
# Global batch 512, two ranks, micro-batch 8. By chapter 1's formula
#
# $$\text{accumulation}=\frac{\text{global batch}}{\text{micro-batch}\times\text{dp}}=\frac{512}{8\times2}=32.$$
#
# The 32 micro-batches that a rank works through for one update are its *window*. Find another setting with batch 512:

# %%
from course_lib import panels

panels.batches(micro_batch=8, accumulation=32, nodes=1, gpus_per_node=2)

# %% [markdown]
# Why is the gradient the same? The loss (损失) of a batch is the mean over its tokens (词元). Take 4 tokens with losses 1, 2, 3, 6: the mean
# is $12/4=3$. In two pieces, $(1+2)/4+(3+6)/4=0.75+2.25=3$. If each piece is divided
# by the number of tokens in the *whole* window, the pieces add up to the mean of the whole.

# %% tags=["drawing"]
losses = {"token 1": 1, "token 2": 2, "token 3": 3, "token 4": 6}
shares = {name: loss / 4 for name, loss in losses.items()}
rows = {
    "whole batch": shares,
    "piece 1": {name: shares[name] for name in ("token 1", "token 2")},
    "piece 2": {name: shares[name] for name in ("token 3", "token 4")},
}
figures.stacked_bars(rows, "The mean of four losses, at once and in two pieces")

# %% [markdown]
# The gradient of a sum is the sum of the gradients, so with $T$ tokens in the window and $\ell_t$ the loss of token $t$,
#
# $$\nabla\frac{1}{T}\sum_{t=1}^{T}\ell_t=\sum_{\text{micro-batches}}\nabla\frac{1}{T}\sum_{t\in\text{micro-batch}}\ell_t.$$
#
# PyTorch does the outer sum by itself: `backward()` *adds* to `.grad` until `zero_grad()` is called.
#
# `accumulate(model, window)` leaves this sum in `.grad`. You write it yourself in exercise 2.10, so it is not shown yet.
# Try it on a small GPT and a story that ships with the course, one token per
# character: 32 samples of 64 characters, once as one batch and once as 8 micro-batches of 4.

# %%
text = Windows(sequence=64)
inputs, labels = text.batch(range(32))  # (samples, characters)
whole = [(inputs, labels)]
pieces = list(zip(inputs.split(4), labels.split(4), strict=True))

# %%
torch.manual_seed(0)
model = scratch.gpt.GPT(layers=2, hidden=64, heads=4, vocab=VOCAB, context=64)


def gradient_of(method, window, of=model):
    """The flat gradient that `method` leaves for a window of micro-batches."""
    of.zero_grad()
    method(of, window)
    return measure.gradients.flat_gradient(of)


# %% [markdown]
# **Predict.** How large is the difference between the two gradients, relative to the gradient itself? Give
# it as a power of ten: −2 for a hundredth, −12 for a millionth of a millionth.

# %%
power = predict("2.power_of_ten", "Relative difference: 10 to the …?", yours=None)

# %%
one_batch, in_pieces = gradient_of(accumulate, whole), gradient_of(accumulate, pieces)
measured = measure.gradients.relative_difference(in_pieces, one_batch)
expect(-7, round(math.log10(measured)), within=0.15, label="power of ten", yours=power)

# %% [markdown]
# **Explain.** float32 keeps 24 binary digits, a
# relative precision of $2^{-24}\approx6\cdot10^{-8}$, and rounds after each addition. The
# same numbers are added in a different order, so they are rounded differently. Expect this gap
# whenever you compare fp32 training on many GPUs with one process. In bf16 (8 binary digits, chapter 3) it is about 2 %:

# %%
import copy

half = copy.deepcopy(model).bfloat16()
in_bf16 = measure.gradients.relative_difference(
    gradient_of(accumulate, pieces, half).float(),
    gradient_of(accumulate, whole, half).float(),
)
print(f"relative difference {measured:.1e}, in bf16 {in_bf16:.1%}")
assert 0.01 < in_bf16 < 0.05

# %% [markdown]
# **Predict.** With batch 32 the forward pass stores 19 MB of intermediate results. Weights, gradients and AdamW's two numbers per weight take 1.8 MB.
# The micro-batch is now 8 times smaller. By what factor does the sum fall?

# %%
saving = predict("2.memory", "Memory, batch 32 / batch 4?", yours=None)


# %%
def stored(batch):
    """Bytes that the forward pass stores for the backward pass."""
    x, y = text.batch(range(batch))
    return measure.gradients.saved_bytes(lambda: loss_sum(model(x), y), model)


states = 4 * 4 * sum(p.numel() for p in model.parameters())  # 4 numbers, 4 bytes each
expect(32 / 4, stored(32) / stored(4), within=0.01, label="intermediate results")
expect(
    (19e6 + 1.8e6) / (19e6 / 8 + 1.8e6),  # 19 MB stored, 1.8 MB of states
    (stored(32) + states) / (stored(4) + states),
    within=0.01,
    label="memory ratio",
    yours=saving,
)

# %% tags=["drawing"]
bars = {
    f"batch {batch}": {
        "activations": stored(batch),
        "weights": states / 4,
        "gradients": states / 4,
        "states of AdamW": states / 2,
    }
    for batch in (32, 4)
}
figures.stacked_bars(bars, "Memory of one backward pass", units.format_bytes)

# %% [markdown]
# **Explain.** By 5. The intermediate results (activations, chapter 3) shrink by 8.
# Weights, gradients and optimizer states do *not* shrink: $20.8 / (19/8 + 1.8)$. So why not always take micro-batch 1?
#
# **Predict.** How many times as long does a sample take with micro-batch 1 as with micro-batch 32, on your machine? (Other programs disturb such times.)

# %%
slower = predict("2.time", "Time per sample, 1 / 32?", yours=None)


# %%
def milliseconds(batch):
    """One sample's share of a forward and a backward pass."""
    x, y = text.batch(range(batch))
    work = measure.times.seconds(lambda: loss_sum(model(x), y).backward())
    return 1e3 * work / batch


times = {size: milliseconds(size) for size in (1, 2, 4, 8, 16, 32)}
expect(..., times[1] / times[32], label="1 / 32", yours=slower)

# %%
bars = {f"micro-batch {size}": time for size, time in times.items()}
figures.bars(bars, "{:.2f} ms".format, "Time per sample")

# %% [markdown]
# Each pass has costs that do not depend on its size, and small matrices keep a processor less busy (chapter 5). So
# take the largest micro-batch that fits and divides the batch.
#
# **Remember**
# - accumulation = global batch / (micro-batch × dp).
# - Divide by the tokens of the whole window: the gradient is the same, up to rounding.
# - Intermediate results shrink with the micro-batch; weights, gradients and optimizer states stay.

# %% [markdown]
# ## 2.2 What breaks it
#
# **Forgetting to divide.** Our window has $T=2048$ tokens. If the pieces are sums of losses and $1/T$
# is forgotten, the gradient is 2048 times too long. If they are means, PyTorch's default, it is 8 times too long with 8 micro-batches.
# Adam hides the mistake, because it divides the gradient by its own
# running size. Gradient clipping exposes it: a threshold of 1 now clips whenever the true gradient is longer than 1/8.


# %%
def sums(model, window):
    """Adds up sums of losses and divides by nothing."""
    for x, y in window:
        loss_sum(model(x), y).backward()


def means(model, window):
    """Adds up means of losses and divides by nothing else."""
    for x, y in window:
        (loss_sum(model(x), y) / y.numel()).backward()


for method, factor in ((sums, labels.numel()), (means, len(pieces))):
    too_long = float(gradient_of(method, pieces).norm() / in_pieces.norm())
    expect(factor, too_long, within=1e-3, label=f"too long, adding {method.__name__}")

# %% [markdown]
# **Dividing by the number of micro-batches.** This is the popular recipe:
# `loss = loss / accumulation_steps`, with the loss already a mean over the micro-batch. It is right
# if all micro-batches have equally many tokens. In fine-tuning they rarely do: short
# texts are filled up with **padding** (填充), which does not count in the loss.
#
# Micro-batch A: 10 tokens, mean loss 2.0. Micro-batch B: 90 tokens, mean loss 4.0. The mean of the means is 3.0, the mean over tokens
# $(10\cdot2+90\cdot4)/100=3.8$.

# %% tags=["drawing"]
weights = {
    "mean over tokens": {"A, 10 tokens": 10, "B, 90 tokens": 90},
    "mean of the means": {"A, 10 tokens": 50, "B, 90 tokens": 50},
}
figures.stacked_bars(weights, "Weight in the loss", "{:.0f} %".format)

# %% [markdown]
# In the mean of the means a token in A counts nine times as much as a token in B. The Hugging Face
# trainer did this until October 2024 (transformers pull request 34191).
#
# **Predict.** In half of our samples we replace all but 8 of the 64 characters by padding. How far off, in
# percent, is the gradient of the popular recipe?

# %%
off_by = predict("2.ragged_percent", "Off by how many percent?", yours=None)

# %%
from course_lib.scratch.accumulation import accumulate_by_means

ragged = labels.clone()
ragged[:16, 8:] = IGNORE  # the first 16 samples have 8 characters left
pieces = list(zip(inputs.split(4), ragged.split(4), strict=True))
truth = gradient_of(accumulate, [(inputs, ragged)])

by_tokens, by_means = (
    measure.gradients.relative_difference(gradient_of(method, pieces), truth)
    for method in (accumulate, accumulate_by_means)
)
assert by_tokens < 1e-5
expect(
    100 * (1 / 2 - 1 / 9),
    100 * by_means,
    within=0.5,
    label="off by, in percent",
    yours=off_by,
)

# %% [markdown]
# **Explain.** The short samples have 8 of every 72 tokens,
# but get half of the weight. So $1/2-1/9=39$ % of the weight is in the wrong place. The measured error is smaller, because
# the gradients of short and of long samples are partly alike. Nothing warns you: the loss falls all the same.
#
# ### A complete loop
#
# **Clipping** (梯度裁剪) comes once, before the update, and so does everything else that looks at the whole gradient:

# %%
learner = copy.deepcopy(model)
optimizer = torch.optim.AdamW(learner.parameters(), lr=1e-3)
warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=4)
for window in (pieces[:4], pieces[4:]):
    optimizer.zero_grad()
    loss = accumulate(learner, window)  # divided by the window's tokens
    norm = torch.nn.utils.clip_grad_norm_(learner.parameters(), max_norm=1.0)
    optimizer.step()
    warm_up.step()  # once an update
    print(f"loss {loss:.2f}, gradient norm {norm:.2f}")
assert warm_up.last_epoch == 2

# %% [markdown]
# Log this loss, the mean over the window and over all ranks. The loss of one micro-batch is much noisier.
#
# **Remember**
# - Divide the sum of the losses by the tokens of the whole window, over all ranks.
# - Clip, update and move the schedule once a window.

# %% [markdown]
# ### Deeper: two more differences
#
# - **Batch normalisation** (批归一化) takes its mean and variance over each micro-batch. Language
#   models use LayerNorm, which looks at one token at a time, and are safe.
# - **Dropout** (随机失活) draws other random masks. The gradient is as good, but not the same.

# %% [markdown]
# ## 2.3 Many ranks: exchange once, not every time
#
# With several ranks, `DistributedDataParallel` (分布式数据并行, DDP) averages the gradients over the ranks
# during every backward pass, by an **all-reduce** (全规约). A GPT-2 with 124 million parameters
# exchanges $4\cdot124{,}439{,}808=498$ MB of fp32 gradients each time.
#
# With accumulation 32, the first 31 exchanges of a window are wasted, because the
# gradients are not used before the update. `model.no_sync()` switches the exchange off. The gradients then
# add up locally, and the last backward pass of the window sends the sum. $S$ micro-steps with accumulation $A$ make $S$ exchanges without
# `no_sync`, and $\lceil S/A\rceil$ with it. Two details matter:
#
# 1. **The forward pass must be inside `no_sync` too.** DDP decides in *forward* whether the coming
#    backward pass will exchange. With only `backward()` inside, every micro-batch still exchanges. The result is right, only slow, so nobody notices.
# 2. **DDP averages, but we need a sum.** The loss is already divided by the tokens of all ranks, and DDP
#    divides by the number of ranks once more. So multiply the loss by that number.
#
# Below, the upper timeline exchanges in each backward pass. Move the sliders: what does accumulation save, and what not?

# %%
from course_lib.chapters.ch02_gradient_accumulation import panels

panels.accumulation()

# %% [markdown]
# It saves **memory**, compared with the same batch at once, and **communication**, compared with the same samples in small updates. But an
# update takes longer, and the number of forward and backward passes stays the same: 1000 samples in micro-batches of
# 5 take 200 passes, whatever the accumulation. (Note 004 also promises fewer training steps: exercise 2.2.)
#
# **Remember**
# - `no_sync` around forward and backward pass of all micro-batches but the last.
# - Accumulation reduces updates and exchanges, not passes.

# %% [markdown]
# ### Deeper: the course's own version
#
# Do exercise 2.10 first. Then compare yours with these:

# %%
show_source(scratch.accumulation.accumulate)

# %%
show_source(scratch.accumulation.accumulate_ddp)

# %% [markdown]
# ## 2.6 Demo: DDP on real processes
#
# Two ranks train the GPT with DDP: micro-batch 4,
# accumulation 2, 30 updates. Beside it, one process trains the same model on the
# samples of both ranks in one batch.
#
# **Predict.** For each of its samples, how many bytes does a rank put into all-reduces, as a fraction of the bytes of all gradients?

# %%
share = predict("2.share_per_sample", "Part of the gradients, per sample?", yours=None)

# %%
run = demos.run("ddp", ranks=2, steps=30, micro_batch=4, accumulation=2)

# %%
gradient_bytes = 4 * sum(p.numel() for p in model.parameters())  # the same GPT, fp32
exchanges = gradient_syncs(micro_steps=60, accumulation=2, no_sync=True)
expect(exchanges, run.all_reduces, label="all-reduces")
expect(
    1 / (4 * 2),
    run.all_reduced_bytes / (30 * 2 * 4) / gradient_bytes,
    label="part of the gradients, per sample",
    yours=share,
)
assert run.gradient_difference < demos.load("ddp").TOLERANCE

# %%
figures.loss(
    {f"DDP, {run.ranks} ranks": run.losses, "one process": run.losses_one_process}
)

# %% [markdown]
# **Explain.** There is one exchange per update, and each rank works on 8 samples for it. The number of ranks does not matter.
# The two loss curves lie on each other: at the first update the
# gradients differ by about $10^{-7}$, the rounding of section 2.1.
#
# Now without `no_sync`:

# %%
wasteful = demos.run(
    "ddp", ranks=2, steps=30, micro_batch=4, accumulation=2, no_sync=False, stream=False
)
expect(2 * run.all_reduces, wasteful.all_reduces, label="all-reduces without no_sync")
largest = max(abs(a - b) for a, b in zip(run.losses, wasteful.losses, strict=True))
print(f"largest difference of the two loss curves: {largest:.1e}")
assert largest < 1e-2

# %% [markdown]
# Twice the traffic and the same result. With GPT-2's 498 MB of gradients on 16 ranks, each with a network port of 25 GB/s, an all-reduce
# takes at least 37 ms (chapter 6). Without `no_sync` an update with accumulation 32 sends 32 of them, 1.2 s in all:

# %% tags=["drawing"]
gpt2_bytes = 4 * models.MODELS["gpt2-124m"].parameters().total
all_reduce_s = sent_bytes("all-reduce", gpt2_bytes, ranks=16) / 25e9
assert round(1000 * all_reduce_s) == 37
waits = {
    name: {"messages": gradient_syncs(32, 32, no_sync=with_it) * all_reduce_s}
    for name, with_it in {"without no_sync": False, "with no_sync": True}.items()
}
figures.stacked_bars(waits, "One update of 32 micro-steps", units.format_seconds)

# %% [markdown]
# (One exchange is one all-reduce here, because all gradients fit into one **bucket** (桶): chapter 7.)

# %% [markdown]
# ## The answer
#
# Two GPUs, micro-batch 8, accumulation 32: a batch of 512, with the gradient of one large batch up to a rounding error of $10^{-7}$. An update
# takes 32 micro-steps and, with `no_sync`, one exchange of gradients.

# %% [markdown]
# **Read on.** Li et al. 2020, *PyTorch Distributed*, section 3.2.4 on skipping synchronisation (arXiv:2006.15704).

# %% tags=["exercise"]
import torch

from course_lib import check, hint, solution
from course_lib.scratch.accumulation import loss_sum

# %% [markdown] tags=["exercise"]
# ### 2.1 Calculate: two nodes, batch 960
#
# A run needs a global batch of exactly 960 sequences, the same number on every rank and in every micro-batch. You have 2 nodes with 4 GPUs each, and a GPU
# runs out of memory at 17 sequences. A larger micro-batch keeps a GPU busier. Which micro-batch and which accumulation do you choose? Then a node fails. Which accumulation continues
# the same experiment on the remaining 4 GPUs, with the same micro-batch? And by what factor does the number of all-reduces in 1000 updates change (with `no_sync`)?

# %% [raw] tags=["hints"]
# importance 3, difficulty 2
# How many sequences does each rank have in an update? Which micro-batches divide that?
# 16 fit, but 16 does not divide 120.
# Half the ranks, the same global batch and micro-batch: what must double? And how many updates are 1000 updates?

# %% tags=["exercise"]
micro_batch, accumulation, on_four_gpus, all_reduces_ratio = ..., ..., ..., ...
### BEGIN SOLUTION
micro_batch = 15  # 120 sequences on each rank: 16 does not divide them
accumulation = 8
on_four_gpus = 16
all_reduces_ratio = 1  # one exchange for each update, however long that takes
### END SOLUTION
check("2.1", [micro_batch, accumulation, on_four_gpus, all_reduces_ratio])

# %% [markdown] tags=["exercise"]
# ### 2.2 Debug: does accumulation save steps?
#
# (published mistake, note 004) "Compared with a smaller batch, gradient accumulation reduces
# the number of training steps." Which steps? You go from accumulation 1 to accumulation 4 on 2 ranks, with the same 4096 samples and the same micro-batch of 8. By what factor
# does each of these change? (1 for what stays the same.)

# %% [raw] tags=["hints"]
# importance 3, difficulty 2
# How often does each sample go through the model in an epoch?
# Some things happen once in a micro-step, others once in an update. Sort the six.
# While a micro-batch goes through the model, the others' intermediate results are gone.

# %% tags=["exercise"]
factors = {
    "forward passes of an epoch": ...,
    "updates of an epoch": ...,
    "exchanges of an epoch, with no_sync": ...,
    "exchanges of an epoch, without no_sync": ...,
    "samples behind an update": ...,
    "bytes stored for the backward pass": ...,
}
### BEGIN SOLUTION
factors = {
    "forward passes of an epoch": 1,  # every sample goes through once
    "updates of an epoch": 1 / 4,
    "exchanges of an epoch, with no_sync": 1 / 4,
    "exchanges of an epoch, without no_sync": 1,
    "samples behind an update": 4,
    "bytes stored for the backward pass": 1,  # one micro-batch at a time
}
### END SOLUTION
check("2.2", factors)

# %% [markdown] tags=["exercise"]
# ### 2.3 Debug: three mistakes in six lines
#
# This loop should give the same weights as one
# update per window with the mean loss over all samples of the window. `batches` is a list of `(inputs, targets)`. The
# last window may be short and makes an update too, and the micro-batches may differ in size. Fix it.

# %% [raw] tags=["hints"]
# importance 3, difficulty 3
# What is in .grad when the second window begins?
# A mean per micro-batch must become the mean of the window: divide sums.
# What happens to 3 micro-batches with accumulation 2?


# %% tags=["exercise"]
def train(model, optimizer, batches, accumulation: int) -> None:
    """One epoch of least squares, one update per window of micro-batches."""
    ### BEGIN GIVEN
    for number, (inputs, targets) in enumerate(batches, start=1):
        loss = (model(inputs) - targets).square().mean()
        loss.backward()
        if number % accumulation == 0:
            optimizer.step()
    ### END GIVEN
    ### BEGIN SOLUTION
    for start in range(0, len(batches), accumulation):
        window = batches[start : start + accumulation]
        samples = sum(len(inputs) for inputs, _ in window)
        optimizer.zero_grad()
        for inputs, targets in window:
            ((model(inputs) - targets).square().sum() / samples).backward()
        optimizer.step()  # also for a short last window
    ### END SOLUTION


check("2.3", train)

# %% [markdown] tags=["exercise"]
# ### 2.4 Implement: the loss of a window
#
# You get the mean loss of each micro-batch and its number of
# tokens. Return the mean over all tokens. A micro-batch may consist of padding only: then it
# has 0 tokens and its mean is NaN.

# %% [raw] tags=["hints"]
# importance 2, difficulty 1
# A mean has forgotten over how many tokens it was taken. How does it become a sum again?
# NaN × 0 is NaN: leave micro-batches without tokens out.


# %% tags=["exercise"]
def window_loss(means: list[float], tokens: list[int]) -> float:
    """Mean loss over all tokens of the window."""
    ### BEGIN SOLUTION
    total = sum(
        mean * count for mean, count in zip(means, tokens, strict=True) if count
    )
    return total / sum(tokens)
    ### END SOLUTION


check("2.4", window_loss)

# %% [markdown] tags=["exercise"]
# ### 2.5 Debug: still slow
#
# The author of this loop added `no_sync`, but the network is as busy as
# before. Fix it. `model` behaves like DDP: `model.no_sync()` is a context manager.

# %% [raw] tags=["hints"]
# importance 3, difficulty 2
# When does DDP decide whether it will exchange? See section 2.3.
# model(inputs) must be in the block of model.no_sync(), like backward().


# %% tags=["exercise"]
def backward_window(model, window) -> None:
    """Gradients of one window, exchanged once."""
    tokens = sum(labels.numel() for _, labels in window)
    for number, (inputs, labels) in enumerate(window, start=1):
        ### BEGIN GIVEN
        loss = loss_sum(model(inputs), labels) / tokens
        if number < len(window):
            with model.no_sync():
                loss.backward()
        else:
            loss.backward()
        ### END GIVEN
        ### BEGIN SOLUTION
        if number < len(window):
            with model.no_sync():
                (loss_sum(model(inputs), labels) / tokens).backward()
        else:
            (loss_sum(model(inputs), labels) / tokens).backward()
        ### END SOLUTION


check("2.5", backward_window)

# %% [markdown] tags=["exercise"]
# ### 2.6 Debug: what the counters say
#
# Five runs claim the same settings: GPT-2 with 124,439,808 parameters, 6400 micro-steps, accumulation 32, fp32 gradients, and `no_sync` as it should be. A counter in each says how many bytes
# a rank put into all-reduces:
#
# | A | B | C | D | E |
# |---|---|---|---|---|
# | 3.186 TB | 99.55 GB | 49.78 GB | 12.44 GB | 796.4 GB |
#
# What happened in each? Choose among "as the settings say", "the forward pass is outside no_sync", "bf16 gradients", "accumulation 4" and "most updates without an exchange".

# %% [raw] tags=["hints"]
# importance 4, difficulty 3
# First compute the bytes of the run that does what its settings say.
# By what factor is each counter too large or too small? Which setting would change it by this factor: the accumulation, the bytes of a number, …?

# %% tags=["exercise"]
happened = {"A": ..., "B": ..., "C": ..., "D": ..., "E": ...}
### BEGIN SOLUTION
happened = {
    "A": "the forward pass is outside no_sync",  # 6400 exchanges of 497.8 MB
    "B": "as the settings say",  # 200 of them
    "C": "bf16 gradients",
    "D": "most updates without an exchange",  # 25: the ranks drift apart
    "E": "accumulation 4",  # 1600 updates
}
### END SOLUTION
check("2.6", happened)

# %% [markdown] tags=["exercise"]
# ### 2.10 Build: one large batch in pieces
#
# Write accumulation yourself. Exercises 2.3 to 2.5 prepared its parts: divide by the tokens of the whole window, leave padding out, exchange once. `window` is a list of
# `(inputs, labels)`, each (samples, tokens); the micro-batches may have different numbers of samples. Labels that are `IGNORE` are padding. `loss_sum(logits, labels)` adds up the losses of all tokens that are not.
#
# The check runs `accumulate` on even and uneven windows, one of them with a micro-batch of nothing but padding. Then it runs `accumulate_ddp` on 2 and 3 real ranks with
# different texts on each, and compares with one process. What passes is kept as `mine/accumulation.py`, a part of your own library, on which later chapters run; `course mine`, in a terminal, shows what is in it. `course demo ddp --parts mine` trains with it.

# %% [raw] tags=["hints"]
# importance 5, difficulty 4
# `backward()` adds to `.grad`. By what must each piece be divided, so that the pieces add up to the mean over all tokens that count?
# Count the window's tokens first: `(labels != IGNORE).sum()`, over all micro-batches. Then, for each micro-batch, the sum of its losses / tokens, and its backward pass.
# On ranks: the tokens of all ranks, by `dist.all_reduce(tokens)`. DDP takes the mean over ranks, where you want the sum.
# `with model.no_sync():` belongs around the forward pass as well, and around all micro-batches but the last; `contextlib.nullcontext()` is a `with` that does nothing.

# %% tags=["exercise"]
from collections.abc import Sequence
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from course_lib.scratch.accumulation import IGNORE, loss_sum

### BEGIN GIVEN


def accumulate(model: nn.Module, window: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Leave in `.grad` the gradient of the mean loss over all tokens of the window.

    One forward and backward pass after the other, so that only one micro-batch's
    activations are in memory. Returns the mean loss, without its graph.
    """
    ...


def accumulate_ddp(
    model: DistributedDataParallel,
    window: Sequence[tuple[Tensor, Tensor]],
    no_sync: bool = True,
) -> Tensor:
    """`accumulate` on every rank: the mean is over all tokens of all ranks.

    Every rank has its own window, all with the same number of micro-batches. DDP exchanges the gradients
    once in the window; without `no_sync`, in every micro-batch. After the window it exchanges
    again, as before, and the model is in the mode that it was in. Returns the mean loss over all ranks.
    """
    ...


### END GIVEN
### BEGIN SOLUTION
from course_lib import show_source
from course_lib.scratch.accumulation import accumulate, accumulate_ddp

### END SOLUTION

check("2.10", [accumulate, accumulate_ddp])
