# %% [raw] tags=["sitting"]
# question: What do libraries do about token counts, split gradients and a growing critical batch?
# importance: 2
# difficulty: 3
# group: alone

# %% [markdown]
# # 2 Deeper into accumulation
#
# A window of 32 micro-batches needs the number of its tokens before its first backward pass. Where does this number come from, what must a rank keep
# when its gradients are split over ranks, and how does the critical batch change while a model learns? These three sections answer one question each.

# %%
import copy
from statistics import mean

import torch

from course_lib import measure, scratch, show_source, style
from course_lib.chapters.ch02_gradient_accumulation import figures
from course_lib.demos.shared.text import VOCAB, Windows
from course_lib.scratch.accumulation import (
    IGNORE,
    accumulate,
    accumulate_and_read,
    count_tokens,
    loss_sum,
)
from course_lib.theory import batching, models, units

torch.set_num_threads(1)

# %% [markdown]
# ## 2.7 Count the tokens first
#
# `accumulate` counts tokens before its first forward pass, and it must: the first micro-batch is already divided by the tokens of
# the whole window, on all ranks. So the labels of the whole window have to be there before the first backward pass. The Hugging Face
# trainer fetches all micro-batches of an update ahead (`get_batch_samples`) and adds the counts up over the ranks
# (`average_tokens_across_devices`, now on by default). torchtitan does the same (`train_step`). Waiting is cheap. For 32
# micro-batches of 8 sequences of 4096 tokens, inputs and labels in int64:

# %%
waiting = 32 * 8 * 4096 * (8 + 8)
print(f"a window that waits: {units.format_bytes(waiting)}")
assert round(waiting / 1e6, 1) == 16.8

# %% [markdown]
# The other method is to divide late: add up the gradients of the *sums*, count the tokens along the way, and divide `.grad` once, before the update.
# Megatron-LM does this with `--calculate-per-token-loss` (`finalize_model_grads.py`). Without this option it takes the mean of means, which is
# right for pretraining, where every sequence is full. On a window in which half of the samples are nearly all padding:

# %%
text = Windows(sequence=64)
inputs, labels = text.batch(range(32))
labels = labels.clone()
labels[:16, 8:] = IGNORE  # the first 16 samples have 8 characters left
window = list(zip(inputs.split(4), labels.split(4), strict=True))
torch.manual_seed(0)
model = scratch.gpt.GPT(layers=2, hidden=64, heads=4, vocab=VOCAB, context=64)

# %%
accumulate(model, window)
truth = measure.gradients.flat_gradient(model)
model.zero_grad()
for x, y in window:
    loss_sum(model(x), y).backward()  # a sum, divided by nothing
late = measure.gradients.flat_gradient(model) / count_tokens(window)
off_late = measure.gradients.relative_difference(late, truth)
print(f"divided once, at the end: {off_late:.1e} off")
assert off_late < 1e-5

# %% [markdown]
# ## 2.8 What no_sync keeps when gradients are split
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
figures.bars(
    held, units.format_bytes, "Gradients between two micro-batches", style.GRADIENTS
)

# %% [markdown]
# 27 GB instead of 3.4. FSDP2 exchanges each time unless you call `set_requires_gradient_sync(False)`. DeepSpeed refuses `no_sync` for stages 2 and 3
# (an assertion in `engine.py`). In both cases FSDP and ZeRO 3 by default gather the *weights* again for every micro-batch: section 8.3 counts the bytes,
# and section 9.6 measures both choices.

# %%
assert round(llama_bytes / 1e9) == 27 and round(llama_bytes / 8e9, 1) == 3.4

# %% [markdown]
# ## 2.9 The critical batch while a model learns
#
# Section 2.5 measured the critical batch of an untrained model: less than one sample. Measuring it during training costs almost nothing, because accumulation makes gradients of two sizes anyway: small ones, what each
# micro-batch adds to `.grad`, and a large one, their mean (McCandlish et al. 2018, arXiv:1812.06162, appendix A.1).

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
adamw = torch.optim.AdamW(learner.parameters(), lr=1e-3)
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
#
# So a batch that is too large on the first day may be right a week later. The authors of Llama 3 name two reasons for its growing batch (section 2.5): a small one at first for stability, a larger one
# later for efficiency. DeepSeek-V3 went from 3072 to 15,360 sequences (arXiv:2412.19437, section 4.2).
#
# For Adam, the learning rate is less simple than for SGD: beyond the critical batch its best rate may
# even fall again (arXiv:2405.14578).

# %% [markdown]
# ## The answer
#
# Libraries count the tokens of a whole window first, for 16.8 MB of waiting labels, or divide once at the end. With split gradients, one exchange per window costs the memory
# of all gradients: 27 GB instead of 3.4. And the critical batch grew from 0.3 to 14 samples in 160 updates, so large batches pay off late in training.
