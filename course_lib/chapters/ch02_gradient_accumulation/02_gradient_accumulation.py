# %% [markdown]
# # 2 Gradient accumulation
#
# A paper trained with a batch of 512 sequences. You have two GPUs, and each runs out of memory
# at a batch of 9. Can you repeat the experiment, or do you have to buy 62 more GPUs?
#
# You can repeat it, with **gradient accumulation** (梯度累积): many small forward and
# backward passes, one update. By the end of this chapter you can
#
# - show that the gradient is the same, and name what breaks that,
# - predict how often the GPUs exchange gradients, and what one missing line costs,
# - say what a larger batch does to the learning rate and to the number of samples you need, and measure both,
# - run real data-parallel training on two processes and prove it equal to one.
#
# Time: two to three hours, half of them for the exercises. You need chapter 1.

# %%
import math
from statistics import mean

import torch

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
from course_lib.chapters.ch02_gradient_accumulation import figures
from course_lib.demos.shared.text import VOCAB, Windows, load_text
from course_lib.scratch.accumulation import (
    IGNORE,
    accumulate,
    accumulate_and_read,
    accumulate_by_means,
    count_tokens,
    final_losses,
    loss_sum,
)
from course_lib.theory import (
    TransformerShape,
    batching,
    gradient_syncs,
    models,
    sent_bytes,
    units,
)

launch.warm_up()
torch.set_num_threads(1)

# %% [markdown]
# ## 2.1 The same gradient with less memory
#
# Global batch 512, two ranks, micro-batch 8. Chapter 1's formula, solved for the accumulation, says how many
# micro-batches make one update:
#
# $$\text{accumulation} = \frac{\text{global batch}}{\text{micro-batch} \times \text{dp}}
# = \frac{512}{8 \times 2} = 32.$$
#
# We call the 32 micro-batches that a rank works through for one update its *window*.
#
# Why is the gradient the same? The loss (损失) of a batch is the mean over its tokens (词元), and the
# gradient of a sum is the sum of the gradients. Take 4 tokens with losses 1, 2, 3, 6. Their mean
# is $12/4 = 3$. In two pieces: $(1+2)/4 + (3+6)/4 = 0.75 + 2.25 = 3$. So if each piece is divided
# by the number of tokens in the *whole* window, the pieces add up to the mean of the whole.
# Where in the picture is the loss of the last token?

# %%
losses = {"token 1": 1, "token 2": 2, "token 3": 3, "token 4": 6}
shares = {name: loss / 4 for name, loss in losses.items()}
rows = {
    "whole batch": shares,
    "piece 1": {name: shares[name] for name in ("token 1", "token 2")},
    "piece 2": {name: shares[name] for name in ("token 3", "token 4")},
}
figures.stacked_bars(rows, "The mean of four losses, at once and in two pieces")

# %% [markdown]
# It is half of the whole batch's bar and two thirds of piece 2's: 6 / 4 = 1.5 in both. In general:
#
# $$\nabla \frac{1}{T}\sum_{t=1}^{T} \ell_t
# = \sum_{\text{micro-batches}} \nabla \frac{1}{T} \sum_{t \in \text{micro-batch}} \ell_t .$$
#
# $T$ is the number of tokens in the window, $\ell_t$ the loss of token $t$, and $\nabla$ the
# gradient with respect to all weights. PyTorch does the outer sum by itself: `backward()` *adds*
# to `.grad` until somebody calls `zero_grad()`.
#
# Here is the course's version. You build your own in exercise 2.10. If you would rather not see ours first,
# do that exercise now.

# %%
show_source(scratch.accumulation.accumulate)

# %% [markdown]
# Try it on a small GPT and real text: a story that ships with the course, one token per
# character. We take 32 samples of 64 characters, once as one batch and once as 8 micro-batches of 4.

# %%
text = Windows(sequence=64)
inputs, labels = text.batch(range(32))
inputs.shape  # (samples, characters)

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
#
# The forward pass of the whole batch of 32 stores 19 MB of intermediate results for the backward pass. Weights, gradients and AdamW's
# two numbers per weight take 1.8 MB. With micro-batches of 4, by which factor does the sum of the two fall?

# %%
power = predict("2.power_of_ten", "Relative difference: 10 to the …?", yours=None)
saving = predict("2.memory", "Memory, batch 32 / batch 4?", yours=None)

# %%
whole = [(inputs, labels)]
pieces = list(zip(inputs.split(4), labels.split(4), strict=True))
one_batch, in_pieces = gradient_of(accumulate, whole), gradient_of(accumulate, pieces)
measured = measure.gradients.relative_difference(in_pieces, one_batch)
expect(-7, round(math.log10(measured)), within=0.15, label="power of ten", yours=power)

# %%
print(f"relative difference {measured:.1e}")


# %%
def stored(batch):
    """Bytes that the forward pass stores for the backward pass."""
    x, y = text.batch(range(batch))
    return measure.gradients.saved_bytes(lambda: loss_sum(model(x), y), model)


states = 4 * 4 * sum(p.numel() for p in model.parameters())  # 4 numbers, 4 bytes each
expect(32 / 4, stored(32) / stored(4), within=0.01, label="intermediate results")
expect(
    (19e6 + 1.8e6) / (19e6 / 8 + 1.8e6),
    (stored(32) + states) / (stored(4) + states),
    within=0.01,
    label="memory ratio",
    yours=saving,
)

# %% [markdown]
# **Explain.** The difference is not zero but about $10^{-7}$. float32 keeps 24 binary digits, a
# relative precision of $2^{-24} \approx 6 \times 10^{-8}$, and it rounds after each addition. The
# two ways add the same numbers in a different order, so they round differently. Expect this gap
# whenever you compare fp32 training on many GPUs with one process.
#
# Where the same operations run in the same order (checkpointing, chapter 4), the gap is exactly zero. And where numbers have
# fewer digits it is larger: in bf16 (8 binary digits, chapter 3) the same comparison is 2 % off.

# %%
import copy

half = copy.deepcopy(model).bfloat16()
in_bf16 = measure.gradients.relative_difference(
    gradient_of(accumulate, pieces, half).float(),
    gradient_of(accumulate, whole, half).float(),
)
print(f"relative difference in bf16: {in_bf16:.1%}")
assert 0.01 < in_bf16 < 0.05
assert torch.equal(gradient_of(accumulate, pieces), in_pieces)

# %% [markdown]
# The micro-batch is 8 times smaller. Why does the memory fall by a factor of only 5?

# %%
from torch.optim import Adam, AdamW, SGD

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
# The intermediate results (activations, chapter 3) do shrink by 8, to within a percent, because they grow with the micro-batch. So do
# the inputs and the logits, the model's outputs. But weights, gradients and optimizer
# states do *not* shrink. The smaller the micro-batch, the larger their share of what is left. Chapter 3 counts all of them.
#
# **Remember**
# - accumulation = global batch / (micro-batch × dp).
# - Dividing by the tokens of the whole window gives the same gradient, up to float32 rounding.
# - What grows with the micro-batch shrinks: intermediate results, inputs, logits. Weights, gradients and
#   optimizer states stay.

# %% [markdown]
# ## 2.2 What breaks it
#
# **Forgetting to divide.** Our window has $T = 2048$ tokens. If the pieces are sums of losses and $1/T$
# is forgotten, the gradient is 2048 times too long. If they are means, as PyTorch's losses are unless told
# otherwise, 8 micro-batches add up to 8 means, and the gradient is 8 times too long. SGD then takes
# steps 8 times too long. Adam hides the mistake, because it divides the gradient by its own
# running size; gradient clipping does not.


# %%
def sums(model, window):
    """Adds up sums of losses and divides by nothing."""
    for x, y in window:
        loss_sum(model(x), y).backward()


def means(model, window):
    """Adds up means of losses and divides by nothing else."""
    for x, y in window:
        (loss_sum(model(x), y) / y.numel()).backward()


lengths = {"divided by all tokens": 1.0}
for method, factor in ((sums, labels.numel()), (means, len(pieces))):
    name = f"adding {method.__name__}"
    lengths[name] = float(gradient_of(method, pieces).norm() / in_pieces.norm())
    expect(factor, lengths[name], within=1e-3, label=f"too long, {name}")

# %%
title = "How long the gradient is"
figures.bars(lengths, "{:,.0f} ×".format, title, style.GRADIENTS, tens=True)

# %% [markdown]
# **Dividing by the number of micro-batches.** This is the popular recipe:
# `loss = loss / accumulation_steps`, with the loss already a mean over the micro-batch. It is right
# if all micro-batches have equally many tokens. Real text does not come in equal lengths. Short
# sequences are filled up with **padding** (填充), and padding does not count in the loss.
#
# Micro-batch A: 10 tokens, mean loss 2.0. Micro-batch B: 90 tokens, mean loss 4.0.
#
# | | computation | loss |
# |---|---|---|
# | mean of the means | (2.0 + 4.0) / 2 | 3.0 |
# | mean over tokens | (10 · 2.0 + 90 · 4.0) / 100 | 3.8 |
#
# How much does each micro-batch weigh in the two losses?

# %%
weights = {
    "mean over tokens": {"A, 10 tokens": 10, "B, 90 tokens": 90},
    "mean of the means": {"A, 10 tokens": 50, "B, 90 tokens": 50},
}
figures.stacked_bars(weights, "Weight in the loss", "{:.0f} %".format)

# %% [markdown]
# In the mean of the means a token in A counts nine times as much as a token in B. This was a real bug: the Hugging Face
# trainer did it until October 2024 (transformers pull request 34191).
#
# **Predict.** In half of our samples we replace all but 8 of the 64 characters by padding. By how many
# percent is the popular recipe's gradient off, relative to the right one?

# %%
off_by = predict("2.ragged_percent", "Off by how many percent?", yours=None)

# %%
ragged = labels.clone()
ragged[:16, 8:] = IGNORE  # the first 16 samples have 8 characters left
pieces = list(zip(inputs.split(4), ragged.split(4), strict=True))
truth = gradient_of(accumulate, [(inputs, ragged)])

by_tokens = measure.gradients.relative_difference(
    gradient_of(accumulate, pieces), truth
)
by_means = measure.gradients.relative_difference(
    gradient_of(accumulate_by_means, pieces), truth
)
assert by_tokens < 1e-5
expect(
    100 * (1 / 2 - 1 / 9),
    100 * by_means,
    within=0.5,
    label="off by, in percent",
    yours=off_by,
)

# %%
print(f"divided by tokens {by_tokens:.1e}, mean of means {by_means:.1%}")

# %%
off = {
    "divided by tokens": by_tokens,
    "mean of means": by_means,
    "estimate": 1 / 2 - 1 / 9,
}
told = {name: f"{part:.1%}" for name, part in off.items()}
figures.bars(off, told, "How far the gradient is off", style.GRADIENTS)

# %% [markdown]
# **Explain.** The first four micro-batches have 32 tokens each, the others 256. In the mean of
# means all eight count alike, so a short sample's token weighs 8 times as much as a long one's. That gives a rough estimate:
# the short samples have 8 of 72 tokens and get half of the weight, so $1/2 - 1/9$ of the weight is in the wrong place, 39 %.
# It is too high, since the gradients of short and of long samples are more alike than it assumes. Nothing warns you: the loss falls in
# both cases.
#
# Other things that make accumulation differ from one large batch:
#
# - **Batch normalisation** (批归一化) computes its mean and variance in each micro-batch. Language
#   models use LayerNorm, which looks at one token at a time, and are safe.
# - **Dropout** (随机失活) draws different random masks. The gradient is as good, but not the same.
# - **Clipping** (梯度裁剪) after each micro-batch clips the pieces. Clip once, before the update.
# - **The last window** may be short. Divide by what it has, as the loop of section 1.1 does.
#
# **Remember**
# - Divide the sum of the losses by the tokens of the whole window, over all ranks.
# - "loss / accumulation_steps" is right only for equal token counts.

# %% [markdown]
# ## 2.3 Many ranks: exchange once, not every time
#
# With several ranks, `DistributedDataParallel` (分布式数据并行, DDP) averages the gradients over the ranks
# during every backward pass. The operation is an **all-reduce** (全规约): every rank gives
# a tensor, every rank gets the sum. Chapter 6 takes it apart. A GPT-2 with 124 million parameters
# exchanges $4 \times 124{,}439{,}808 = 498$ MB of fp32 gradients each time.
#
# With accumulation 32, the first 31 exchanges of a window are wasted: nobody looks at the
# gradients before the update. `model.no_sync()` switches the exchange off. The gradients then
# add up locally, and the last backward pass of the window sends the sum.
#
# For $S$ micro-steps and accumulation $A$:
#
# $$\text{exchanges} = S \;\text{ without no\_sync},\qquad
# \lceil S/A \rceil \;\text{ with it.}$$

# %%
syncs = gradient_syncs
exchanges = {
    "without no_sync": syncs(micro_steps=320, accumulation=32, no_sync=False),
    "with no_sync": syncs(micro_steps=320, accumulation=32, no_sync=True),
}
assert exchanges["without no_sync"] == 32 * exchanges["with no_sync"]
told = {name: f"{count} exchanges" for name, count in exchanges.items()}
figures.bars(exchanges, told, "320 micro-steps with accumulation 32")

# %% [markdown]
# The scratch version has two subtleties. Read it for them (or write yours first: it is the second half of exercise 2.10):

# %%
show_source(scratch.accumulation.accumulate_ddp)

# %% [markdown]
# 1. **The forward pass is inside `no_sync` too.** DDP decides in *forward* whether the coming
#    backward will exchange. With only `backward()` inside, every micro-batch still exchanges, and
#    the result is right, only slow. So nobody notices.
# 2. **DDP averages, but we need a sum.** The loss is already divided by the tokens of all ranks, and DDP
#    divides by the number of ranks once more. Multiplying by `ranks` undoes that.
#
# Here are the two timelines of an update; the upper one exchanges in each backward pass. Move the sliders. What does accumulation save, and what does it not?

# %%
from course_lib.chapters.ch02_gradient_accumulation import panels

panels.accumulation()

# %% [markdown]
# Accumulation has **two advantages**. It needs less memory than the same batch at once, and
# less communication than the same samples in small updates. Note 004 names two others. The first, a steadier gradient, is the gain of the large batch, however it is computed: sections 2.1 and 2.5. The second, fewer training steps, is exercise 2.2. Accumulation has one price: an
# update takes longer, because the micro-batches run one after another.
#
# It does *not* reduce the number of forward and backward passes. 1000 samples in micro-batches of
# 5 take 200 passes, whatever the accumulation. What falls is the number of *updates*.
#
# ### Count the tokens first
#
# `accumulate_ddp` counts tokens before its first forward pass, and it must: the first micro-batch is already divided by the tokens of
# the whole window, on all ranks. So the labels of the whole window have to be there before the first backward pass. The Hugging Face
# trainer fetches all micro-batches of an update ahead (`get_batch_samples`) and adds the counts up over the ranks
# (`average_tokens_across_devices`, now on by default). torchtitan does the same (`train_step`). Waiting is cheap. For 32
# micro-batches of 8 sequences of 4096 tokens, inputs and labels in int64:

# %%
waiting = 32 * 8 * 4096 * (8 + 8)
print(f"a window that waits: {units.format_bytes(waiting)}")
assert round(waiting / 1e6, 1) == 16.8

# %% [markdown]
# The other way is to divide late: add up the gradients of the *sums*, count along the way, and divide `.grad` once, before the update.
# Megatron-LM does this with `--calculate-per-token-loss` (`finalize_model_grads.py`). Without it, it takes the mean of means, which is
# right for pretraining, where every sequence is full. On our ragged window:

# %%
late = gradient_of(sums, pieces) / count_tokens(pieces)
off_late = measure.gradients.relative_difference(late, truth)
print(f"divided once, at the end: {off_late:.1e} off")
assert off_late < 1e-5

# %% [markdown]
# ### What no_sync keeps when gradients are split
#
# Under DDP `no_sync` needs no extra memory: every rank has all the gradients anyway. ZeRO 2 and 3 and FSDP (chapters 8 and 9) split the
# gradients, so that each rank keeps only its part. But a rank that has not yet exchanged a gradient must keep all of it. Take LLaMA-2
# 7B on 8 GPUs with fp32 gradients. What does each rank hold between two micro-batches?

# %%
llama_bytes = 4 * models.MODELS["llama2-7b"].parameters().total
held = {
    "split, an exchange each time": llama_bytes / 8,
    "split, one exchange": llama_bytes,
    "DDP": llama_bytes,
}
told = {name: units.format_bytes(size) for name, size in held.items()}
figures.bars(held, told, "Gradients between two micro-batches", style.GRADIENTS)

# %% [markdown]
# FSDP2 exchanges each time unless you call `set_requires_gradient_sync(False)`. DeepSpeed refuses `no_sync` for stages 2 and 3
# (an assertion in `engine.py`). Either way FSDP and ZeRO 3 by default gather the *weights* again for every micro-batch: section 8.3 counts the bytes,
# and section 9.6 measures both choices.
#
# **Remember**
# - no_sync around forward and backward of all micro-batches but the last.
# - Exchanges: one per update instead of one per micro-step.
# - Accumulation reduces updates and exchanges, not passes.
# - Count the tokens of the window before the first backward pass, or divide once at the end.

# %% [markdown]
# ## 2.4 The learning rate of a larger batch
#
# Accumulation 8 makes the batch 8 times as large and the updates 8 times fewer. With the same
# learning rate (学习率) SGD moves the weights only about an eighth as far in an epoch. Adam moves them $\sqrt 8 / 8$, about 35 %, as far, if noise
# dominates (the reason follows the table). There are two rules of thumb:
#
# | optimizer | rule | batch 256 → 2048 | source |
# |---|---|---|---|
# | SGD | linear: lr × ratio | 0.1 → 0.8 | Goyal et al. 2017, arXiv:1706.02677 |
# | Adam, LAMB | square root: lr × √ratio | 0.0003 → 0.00085 | You et al. 2019, arXiv:1904.00962 |
#
# Why linear for SGD: 8 small steps of length lr along nearly the same gradient are one step of
# length 8 · lr. Why a square root for Adam: it divides the gradient by its running root
# mean square. When noise dominates, that root shrinks like $1/\sqrt{B}$. With 8 times the batch each step
# is therefore already $\sqrt 8$ times as long in the direction of the true gradient. To go as far as 8 small
# steps, only another factor of $\sqrt 8$ is missing, and the learning rate supplies it. The same
# holds downward: a *smaller* batch needs a smaller learning rate.
#
# Do the rules hold? Let us try, on a model so small that we can train dozens of them: a table of 128 × 128 numbers that says, for each
# character, which one comes next. Every run sees 16,384 characters of our story, in batches of 16, 64, 256 or 1024 characters. Then we
# ask for its loss on the whole story.

# %%
show_source(scratch.accumulation.final_losses)

# %% [markdown]
# **Predict.** We try 2, 4, 8, and so on up to 512. At batch 16 SGD does best with a learning rate of 8. With which of them at batch
# 64, and with which at batch 1024?

# %%
best_64 = predict("2.rate_64", "Best rate at batch 64?", yours=None)
best_1024 = predict("2.rate_1024", "Best rate at batch 1024?", yours=None)

# %%
assert round(math.sqrt(8) / 8, 2) == 0.35
story, batches = load_text(), (16, 64, 256, 1024)


def sweep(optimizer, rates):
    """{batch: {learning rate: final loss}}."""
    return {b: final_losses(optimizer, rates, b, story, VOCAB) for b in batches}


def best_rates(swept):
    """{batch: the learning rate with the lowest loss}."""
    return {batch: min(losses, key=losses.get) for batch, losses in swept.items()}


with_sgd = sweep(SGD, [2.0**power for power in range(1, 10)])
with_adam = sweep(Adam, [2.0**power for power in range(-7, 0)])
best_sgd, best_adam = best_rates(with_sgd), best_rates(with_adam)

# %%
guessing = math.log(VOCAB)  # the loss of an empty table
curves = {
    f"batch {batch}": [point for point in losses.items() if point[1] < guessing]
    for batch, losses in with_sgd.items()
}
axes = "learning rate", "loss after 16,384 characters"
figures.lines(
    curves, *axes, "SGD: a larger batch wants a larger rate", doubling=(True, False)
)

# %%
rate = batching.scaled_learning_rate
assert rate(0.1, base_batch=256, batch=2048, rule="linear") == 0.8
assert round(rate(3e-4, base_batch=256, batch=2048, rule="sqrt"), 5) == 0.00085
expect(rate(8, 16, 64, "linear"), best_sgd[64], label="SGD at batch 64", yours=best_64)
expect(rate(best_adam[16], 16, 64, "sqrt"), best_adam[64], label="Adam at batch 64")

# %%
curves = {
    "linear rule": [(batch, rate(1.0, 16, batch, "linear")) for batch in batches],
    "SGD": [(batch, best / best_sgd[16]) for batch, best in best_sgd.items()],
    "root rule": [(batch, rate(1.0, 16, batch, "sqrt")) for batch in batches],
    "Adam": [(batch, best / best_adam[16]) for batch, best in best_adam.items()],
}
axes = "batch in characters", "best learning rate over that at batch 16"
figures.lines(curves, *axes, "The rules and the sweep", doubling=(True, True))

# %% [markdown]
# **Explain.** From batch 16 to 64 SGD's best rate grows by exactly 4 and Adam's by exactly 2, as the rules say. (We only tried
# doublings, so "exactly" means to the nearest one.) Adam stays within one doubling of its rule. But at batch 1024 SGD does best with 128, where the linear rule says
# 512. With 256 its loss is 4.0, little better than the 4.85 of guessing: the steps have become so long that they overshoot, however good
# their direction is.
#
# The number of updates counts too. At its best rate SGD reaches 2.46 with batch 16 and only 2.70 with batch 1024, from the same 16,384 characters: 16
# updates are too few for it. (Adam still reaches 2.37.) So the linear rule has a limit. The next section says where it is.

# %%
assert best_sgd[1024] == 128 and 3.5 < with_sgd[1024][256] < guessing
small, large = (min(with_sgd[batch].values()) for batch in (16, 1024))
assert abs(small - 2.46) < 0.02 and abs(large - 2.70) < 0.02

# %% [markdown]
# ## 2.5 How large is too large? Gradient noise
#
# The gradient of a batch is an estimate of the gradient over all data, and it is noisy: another
# batch gives another one. We measure the variance at batch 2 and at batch 8, summed over all weights.
#
# **Predict.** What is their ratio?

# %%
ratio = predict("2.variance", "Variance, batch 2 / batch 8?", yours=None)


# %%
def gradients(batch, count=96):
    """Gradients of `count` batches of randomly drawn samples."""
    generator = torch.Generator().manual_seed(batch)
    found = []
    for _ in range(count):
        rows = torch.randint(len(text), (batch,), generator=generator)
        found.append(gradient_of(accumulate, [text.batch(rows.tolist())]))
    return torch.stack(found)  # (count, parameters)


small, big = gradients(batch=2), gradients(batch=8)

# %%
variance_small, variance_big = small.var(dim=0).sum(), big.var(dim=0).sum()
expect(
    8 / 2,
    float(variance_small / variance_big),
    within=0.35,
    label="variance ratio",
    yours=ratio,
)

# %%
variances = {"batch 2": float(variance_small), "batch 8": float(variance_big)}
told = {name: units.format_number(variance) for name, variance in variances.items()}
figures.bars(variances, told, "Variance of the gradient", style.GRADIENTS)

# %% [markdown]
# **Explain.** Averaging over $B$ independent samples divides the variance by $B$:
#
# $$\text{variance}(B) = \frac{\operatorname{tr}\Sigma}{B}.$$
#
# $\operatorname{tr}\Sigma$ is the variance of a single sample's gradient, summed over all weights. The measured ratio is not exactly 4, because the variance itself is estimated, from 96 batches. There is no other
# cause, since the samples are drawn at random and with replacement.
#
# Now compare noise and signal. At first a larger batch helps in full, because noise dominates. Once
# the noise is smaller than the gradient itself, a larger batch estimates an already good
# direction still better, and that buys little. The turning point is about
#
# $$B_\text{crit} \approx \frac{\operatorname{tr}\Sigma}{|G|^2},$$
#
# the **critical batch size** (临界批次大小); $|G|$ is the length of the true gradient. Two batch sizes
# suffice to estimate both, because $|g_B|^2$ averages $|G|^2 + \operatorname{tr}\Sigma / B$
# (McCandlish et al. 2018, arXiv:1812.06162, appendix A.1).

# %%
critical = batching.noise_scale(
    small=2,
    square_small=measure.gradients.mean_square_norm(list(small)),
    big=8,
    square_big=measure.gradients.mean_square_norm(list(big)),
)
print(f"critical batch of the untrained model: about {critical:.1f} samples")
assert 0 < critical < 1

# %% [markdown]
# Less than one sample of 64 characters! An untrained model is easy to improve: every batch says the
# same thing, "learn which letters are frequent". Does that last?
#
# ### While it trains
#
# Measuring this during training costs almost nothing, because accumulation makes gradients of both sizes anyway: small ones, what each
# micro-batch adds to `.grad`, and a big one, their mean. (With data parallelism they are a rank's gradient before the exchange and after
# it; same appendix.)

# %%
show_source(scratch.accumulation.accumulate_and_read)


# %%
def train(model, optimizer, text, updates, micro_batches, samples):
    """The readings of all updates, each from a window of random samples."""
    generator, readings = torch.Generator().manual_seed(0), []
    for _ in range(updates):
        drawn = torch.randint(len(text), (micro_batches, samples), generator=generator)
        optimizer.zero_grad()
        window = [text.batch(rows.tolist()) for rows in drawn]
        readings.append(accumulate_and_read(model, window))
        optimizer.step()
    return readings


def critical_batch(readings, small, big):
    """The noise scale from the mean squares of several updates."""
    pieces = mean(reading.square_piece for reading in readings)
    windows = mean(reading.square_window for reading in readings)
    return batching.noise_scale(small, pieces, big, windows)


# %% [markdown]
# We train for 160 updates, each with 8 micro-batches of 2 samples. A single reading is noisy, so we average: over 5 updates at first, over 80 at the end.

# %%
learner = copy.deepcopy(model)
adamw = AdamW(learner.parameters(), lr=1e-3)
readings = train(learner, adamw, text, updates=160, micro_batches=8, samples=2)

# %%
stretches = [(0, 5), (5, 10), (10, 20), (20, 40), (40, 80), (80, 160)]
noise = {last: critical_batch(readings[first:last], 2, 16) for first, last in stretches}
assert noise[5] < 1 and 30 < noise[160] / noise[5] < 60
assert readings[0].loss > 4.7 and 2.2 < readings[-1].loss < 2.6
figures.lines(
    {"critical batch": list(noise.items())},
    "updates",
    "samples of 64 characters",
    "The critical batch while the model learns",
    doubling=(True, True),
)

# %% [markdown]
# From 0.3 to 14 samples, about forty times as much, while the loss fell from 4.8 to about 2.4. What all batches agree on has been learned; what is
# left differs from text to text. McCandlish et al. see the same in larger models: the noise scale grows as the loss falls (section 3).
# So a batch that is too large on the first day may be right a week later. Llama 3 405B began with 4M tokens per batch and ended
# with 16M. Its authors name two reasons: a small batch at first for stability, larger ones
# later for efficiency (arXiv:2407.21783, section 3.4.1). DeepSeek-V3 went from 3072 to 15,360 sequences (arXiv:2412.19437, section 4.2).
#
# ### Where the rule of 2.4 ends
#
# For SGD McCandlish et al. (section 2.2) give a formula for the best rate:
#
# $$\text{rate}(B) = \frac{\text{largest rate}}{1 + B_\text{crit}/B}.$$
#
# Far below the critical batch that is the linear rule. Far above it is constant: with hardly any noise left, only the length of a step
# limits the rate. The table of section 2.4, read in the same way while SGD trains it with batch 64:

# %%
table = torch.nn.Embedding(VOCAB, VOCAB)
torch.nn.init.zeros_(table.weight)
sgd, characters = SGD(table.parameters(), lr=best_sgd[64]), Windows(sequence=1)
of_table = critical_batch(train(table, sgd, characters, 256, 4, 16), 16, 64)
expect(
    rate(best_sgd[16], 16, 1024, "linear", critical_batch=of_table),
    best_sgd[1024],
    within=0.4,  # only doublings were tried
    label="SGD at batch 1024",
    yours=best_1024,
)

# %%
print(f"critical batch of the table: about {of_table:.0f} characters")

# %% [markdown]
# These are two independent measurements: how much the gradients disagree, and which rate wins a sweep. The first predicts the
# second as closely as a sweep in doublings can tell. (For Adam it is less simple: beyond the critical batch its best rate may
# even fall again, arXiv:2405.14578.)
#
# ### What a batch costs
#
# What does a batch $B$ cost, if training is to converge (收敛) to the same loss? McCandlish et al. give a simple model:
#
# $$\frac{\text{updates}}{\text{fewest updates}} = 1 + \frac{B_\text{crit}}{B}, \qquad
# \frac{\text{samples}}{\text{fewest samples}} = 1 + \frac{B}{B_\text{crit}}.$$
#
# At $B = B_\text{crit}$ both are 2. At a quarter of it you pay 25 % more samples than the fewest.
# So "large batches hurt" is too short a sentence: below the critical batch
# they cost little and save time; far above it they waste samples. Move the batch: from where on does doubling it nearly double the samples?

# %%
from course_lib.chapters.ch02_gradient_accumulation import panels

panels.critical_batch()

# %%
at_critical = batching.batch_cost(batch=1.0, critical_batch=1.0)
assert (at_critical.steps, at_critical.samples) == (2.0, 2.0)
assert batching.batch_cost(batch=0.5, critical_batch=1.0).steps == 3.0

# %% [markdown]
# At ten times the critical batch: doubling it raises the samples from 11 to 21 times the fewest. And a very small batch? It needs the fewest samples
# but the most updates, each with a small learning rate because it is noisy, and a GPU that works on one sample at a time is mostly idle.
#
# **Remember**
# - The variance of the gradient goes as 1/B.
# - The critical batch grows while the loss falls; accumulation and data parallelism let you read it at almost no cost.
# - Far below the critical batch: twice the batch, nearly half the updates. From half of it to all of it: a third fewer. Far above: nearly twice the samples.
# - Linear rule for SGD, square root for Adam. The linear rule ends near the critical batch.

# %% [markdown]
# ## 2.6 Demo: DDP on real processes
#
# Now everything together. Two ranks train a small GPT on the story with DDP: micro-batch 4,
# accumulation 2, 30 updates. Beside it, the same model is trained as one process would, on the
# samples of both ranks in one batch.

# %%
shape = TransformerShape(layers=2, hidden=64, heads=4, ffn=256, vocab=VOCAB, context=64)
parameters = shape.parameters().total
print(f"{parameters:,} parameters, fp32 gradients of {4 * parameters:,} bytes")

# %% [markdown]
# **Predict.** How many bytes of gradients does a rank put into all-reduces for each sample that it works on?

# %%
volume = predict("2.bytes_per_sample", "Bytes per sample?", yours=None, unit="B")

# %%
run = demos.run("ddp", ranks=2, steps=30, micro_batch=4, accumulation=2)
print(run.report())

# %%
exchanges = gradient_syncs(micro_steps=60, accumulation=2, no_sync=True)
expect(exchanges, run.all_reduces, label="all-reduces")
expect(
    4 * parameters / (4 * 2),
    run.all_reduced_bytes / (30 * 2 * 4),  # updates, micro-steps in each, samples
    label="bytes per sample",
    yours=volume,
)
assert run.gradient_difference < demos.load("ddp").TOLERANCE

# %%
by_accumulation = {
    f"accumulation {count}": 4 * parameters / (4 * count) for count in (1, 2, 4, 8)
}
told = {name: units.format_bytes(size) for name, size in by_accumulation.items()}
figures.bars(by_accumulation, told, "Bytes put into all-reduces for each sample")

# %%
figures.loss(
    {f"DDP, {run.ranks} ranks": run.losses, "one process": run.losses_one_process}
)

# %% [markdown]
# **Explain.** There is one exchange per update, and each rank works on 8 samples for it. So the price of a sample is an eighth of the gradients, and it falls
# as the accumulation grows. The number of ranks does not matter.
#
# There is one curve, because the training is the same. At the first update the
# gradients differ by about $10^{-7}$, the rounding of section 2.1. Later the two runs may
# drift apart a little, since each update builds on the one before.
#
# Here one exchange is one all-reduce, because all gradients of this small model fit into one
# **bucket** (桶). DDP groups gradients into buckets of 1 MiB first and then of 25 MiB;
# a larger model sends one all-reduce per bucket. Chapter 7 shows what that is good for.
#
# Now forget `no_sync`, on purpose:

# %%
wasteful = demos.run(
    "ddp", ranks=2, steps=30, micro_batch=4, accumulation=2, no_sync=False, stream=False
)
expect(2 * run.all_reduces, wasteful.all_reduces, label="all-reduces without no_sync")
largest = max(abs(a - b) for a, b in zip(run.losses, wasteful.losses, strict=True))
print(f"largest difference of the two loss curves: {largest:.1e}")
assert largest < 1e-2

# %% [markdown]
# Twice the traffic and the same result. With two processes on one laptop you hardly notice. Between
# nodes you do. Take GPT-2's 498 MB of gradients and 16 ranks, each with a network port of 25 GB/s. An all-reduce
# takes at least 37 ms (chapter 6 says why), and with accumulation 32 but without `no_sync` an update sends 32 of them, 1.2 s in all. (Chapter 7 says how much of that hides behind computing.)

# %%
gpt2_bytes = 4 * models.MODELS["gpt2-124m"].parameters().total
all_reduce_s = sent_bytes("all-reduce", gpt2_bytes, ranks=16) / 25e9
assert round(1000 * all_reduce_s) == 37
waits = {
    name: {"messages": syncs(32, 32, no_sync=with_it) * all_reduce_s}
    for name, with_it in {"without no_sync": False, "with no_sync": True}.items()
}
figures.stacked_bars(waits, "One update of 32 micro-steps", units.format_seconds)

# %% [markdown]
# The demo outside the notebook. The second line trains with the accumulation that you build in exercise 2.10. The third is
# PyTorch's own launcher; on a machine with two GPUs all of them use NCCL without a change:
#
# ```
# course demo ddp --ranks 2 --accumulation 2
# course demo ddp --ranks 2 --accumulation 2 --parts mine
# python -m torch.distributed.run --standalone --nproc-per-node 2 -m course_lib.demos ddp --accumulation 2
# ```

# %% [markdown]
# ## What to remember
#
# 1. accumulation = global batch / (micro-batch × dp): a large batch on few GPUs.
# 2. The gradient is the same if you divide by all tokens of the window; only rounding differs.
# 3. The mean of means is wrong for sequences of different lengths, and nothing warns you.
# 4. no_sync around forward and backward: one exchange per update.
# 5. Passes stay the same; updates become fewer. Adapt learning rate and schedule.
# 6. The variance goes as 1/B. Past the critical batch you pay in samples, and the critical batch grows during training.

# %%
from course_lib import quiz

quiz("2")

# %% [raw] tags=["quiz"]
# What does accumulation 8 reduce, with the same micro-batch and the same data?
# [ ] forward passes
# [x] updates
# [ ] memory of the weights
# Why: Every sample still passes once; the weights change an eighth as often.
#
# Two gradients that should be equal differ by 2e-7, relative to their size. Probably …
# [ ] a bug in the data order
# [x] float32 rounding
# [ ] a missing all-reduce
# Why: float32 has a relative precision of 6e-8; sums in another order round differently.
#
# When is loss.mean() / accumulation the right loss of a micro-batch?
# [ ] always
# [x] when all micro-batches have equally many tokens
# [ ] when the optimizer is Adam
# Why: Only then is the mean of the means the mean over all tokens.
#
# no_sync surrounds loss.backward() but not the forward pass. What happens?
# [ ] an error
# [ ] wrong gradients
# [x] right gradients, and an exchange in every micro-step
# Why: DDP decides in forward; it exchanges each time, and nobody notices.
#
# FSDP is told to exchange gradients only in the last of four micro-batches. What does a rank keep until then?
# [ ] its part of the gradients
# [x] the whole gradients
# [ ] no gradients
# Why: What is not exchanged yet must be kept whole: 27 GB instead of 3.4 for LLaMA-2 7B on 8 GPUs.
#
# The batch is a tenth of the critical batch. Doubling it …
# [x] nearly halves the updates
# [ ] doubles the samples needed
# [ ] changes nothing
# Why: Updates go as 1 + Bcrit/B: 11 becomes 6; samples go from 1.1 to only 1.2.

# %% [markdown]
# **Now you:** open [the exercises](../exercises/02_gradient_accumulation.ipynb).
#
# **Read on.** McCandlish et al. 2018, *An Empirical Model of Large-Batch Training*, sections 2 and
# 5. Li et al. 2020, *PyTorch Distributed*, section 3.2.4 on skipping synchronisation
# (arXiv:2006.15704). Shallue et al. 2019 (arXiv:1811.03600) on what large batches do and do not harm.

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
# the number of training steps." Which steps? You go from accumulation 1 to accumulation 4 on 2 ranks, with the same 4096 samples and the same micro-batch of 8. By which factor
# does each of these change? (1 for what stays.)

# %% [raw] tags=["hints"]
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
# The author of this loop added `no_sync`, and the network is as busy as
# before. Fix it. `model` behaves like DDP: `model.no_sync()` is a context manager.

# %% [raw] tags=["hints"]
# When does DDP decide whether it will exchange? See section 2.3.
# model(inputs) belongs into the block of model.no_sync(), like backward().


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
# First compute the bytes of the run that does what its settings say.
# By which factor is each counter too large or too small? What has this factor: the accumulation, the bytes of a number, …?

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
# ### 2.7 Predict: is batch 1024 worth it?
#
# A log gives the mean squared length of the gradient: 5.0 at batch 32, 2.0 at batch 256. Somebody proposes batch 1024. Guess first, then compute: what will the mean
# squared length be there? What is the critical batch? And how many times the fewest samples does batch 1024 need?

# %% [raw] tags=["hints"]
# The squared length has two parts. Which one does not care about the batch?
# Section 2.5: |G|² + tr Σ / B. Two batches, two equations, two unknowns.
# Subtract: 5.0 - 2.0 is tr Σ times (1/32 - 1/256).

# %% tags=["exercise"]
squared_length, critical_batch, samples_ratio = ..., ..., ...
### BEGIN SOLUTION
noise = (5.0 - 2.0) / (1 / 32 - 1 / 256)  # tr Σ: what falls as 1/B
signal = 5.0 - noise / 32  # |G|²: what stays
squared_length = signal + noise / 1024
critical_batch = noise / signal
samples_ratio = 1 + 1024 / critical_batch
### END SOLUTION
check("2.7", [squared_length, critical_batch, samples_ratio])

# %% [markdown] tags=["exercise"]
# ### 2.8 Debug: two sweeps without labels
#
# "Usually a smaller batch needs a smaller learning rate" (note 004). How much smaller? Two sweeps looked for the best rate of one model, one with SGD and one with
# Adam, but the labels are lost:
#
# | batch | sweep X | sweep Y |
# |---|---|---|
# | 128 | 0.04 | 0.05 |
# | 640 | 0.0894 | 0.2 |
#
# Which one is Adam's, `"X"` or `"Y"`, and which rate would you give Adam at batch 8? SGD's is already bent by the critical batch. How large is that? And which rate should SGD have at batch 5760?

# %% [raw] tags=["hints"]
# The batch grows by 5. By which factor would each rule let the rate grow?
# Far below the critical batch SGD's factor would be 5; near it, less. Adam's is √5.
# Section 2.5: rate · (1 + critical batch / batch) is the same number at both batches.

# %% tags=["exercise"]
adams, adam_at_8, critical_batch, sgd_at_5760 = ..., ..., ..., ...
### BEGIN SOLUTION
adams = "X"  # 5 times the batch, √5 = 2.24 times the rate
adam_at_8 = 0.04 * (8 / 128) ** 0.5
# 0.05 · (1 + critical / 128) = 0.2 · (1 + critical / 640): both are the largest rate.
critical_batch = (0.2 - 0.05) / (0.05 / 128 - 0.2 / 640)
largest = 0.05 * (1 + critical_batch / 128)
sgd_at_5760 = largest / (1 + critical_batch / 5760)  # the linear rule says 1.8 or more
### END SOLUTION
check("2.8", [adams, adam_at_8, critical_batch, sgd_at_5760])

# %% [markdown] tags=["exercise"]
# ### 2.9 Debug: do large batches hurt?
#
# (published mistake, note 004) A very large batch "affects the speed of convergence, or
# the accuracy after it". The sentence does not say what "large" is compared with. A run with a batch of 0.5M tokens reached its loss after 1.25 trillion ($10^{12}$) tokens;
# the critical batch was 2M tokens. Now you get 32 times the GPUs and let each do what it did before, so that the batch is 16M tokens and an update takes as long. For the same loss: how many trillion tokens, how many updates, and how many times as fast is the run?

# %% [raw] tags=["hints"]
# How large is each batch, measured in critical batches?
# From the tokens at 0.5M: what are the fewest tokens with which any batch gets there?
# An update takes as long as before. So which ratio is the gain in time?

# %% tags=["exercise"]
trillions, updates, times_as_fast = ..., ..., ...
### BEGIN SOLUTION
fewest = 1.25 / (1 + 0.5 / 2)  # trillion tokens
trillions = fewest * (1 + 16 / 2)
updates = trillions * 1e12 / 16e6
times_as_fast = 1.25e12 / 0.5e6 / updates  # not 32, and at 7 times the price
### END SOLUTION
check("2.9", [trillions, updates, times_as_fast])

# %% [markdown] tags=["exercise"]
# ### 2.10 Build: one large batch in pieces
#
# Write accumulation yourself, as a part of your own library. Exercises 2.3 to 2.5 were the pieces: divide by the whole window, leave padding out, exchange once. `window` is a list of
# `(inputs, labels)`, each (samples, tokens); the micro-batches may have different numbers of samples. Labels that are `IGNORE` are padding. `loss_sum(logits, labels)` adds up the losses of all tokens that are not.
#
# The check runs `accumulate` on even and uneven windows, one of them with a micro-batch of nothing but padding. Then it runs `accumulate_ddp` on 2 and 3 real ranks with
# different texts on each, and compares with one process. What passes is kept as `mine/accumulation.py`; `course demo ddp --parts mine` trains with it.

# %% [raw] tags=["hints"]
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
