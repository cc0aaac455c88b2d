# %% [raw] tags=["sitting"]
# question: 1000 samples in batches of 10: how can an epoch have 200 steps?
# importance: 5
# difficulty: 2
# group: alone

# %% [markdown]
# # 1 Steps and batches
#
# A colleague says: "Our data set has 1000 samples, the batch (批次) is 10, and the trainer's log
# says 200 steps per epoch. Is the log wrong?"
#
# It may be right. By the end of this chapter you can say when. For any number of GPUs you can compute
#
# - how many steps and updates an epoch has,
# - how large the batch behind one update is, in samples and in tokens,
# - which samples each process sees, and which nobody sees.
#
# You need PyTorch's training loop, nothing about clusters.

# %%
from dataclasses import replace
from itertools import islice

import torch
from torch.utils.data.distributed import DistributedSampler

from course_lib import demos, expect, launch, predict, scratch, show_source
from course_lib.chapters.ch01_steps_and_batches import figures
from course_lib.theory import Batching, rank_samples

launch.warm_up()

# %% [markdown]
# ## 1.1 Five words
#
# Start with one process, 1000 samples, and a GPU that can hold the intermediate results of only
# 5 samples at once.
#
# - A **sample** (样本) is one training example.
# - An **epoch** (轮次) is one pass over all samples: 1000 of them.
# - A **micro-batch** (微批次) is what goes through the model in one forward pass: 5 samples.
# - A **micro-step** is one forward pass (前向传播) and one backward pass (反向传播) on one micro-batch. Some logs,
#   our colleague's among them, call it a **step** or an **iteration** (迭代).
# - An **update** (参数更新) is one step of the optimizer (优化器), `optimizer.step()`: the weights change.
#
# Often the gradients of several micro-batches are added up before one update. That is **gradient accumulation**
# (梯度累积), the subject of chapter 2. With accumulation 2, two micro-steps make one update.
#
# Do not confuse the micro-batch with the *mini-batch* (小批次), the whole batch behind one
# update: here 10 samples.
#
# Read the picture from the top down. Where are the log's 200 steps, and where are the 100 updates?

# %%
figures.batch_ladder(Batching(samples=1000, micro_batch=5, accumulation=2))

# %% [markdown]
# The first bar has 100 pieces: the updates. Each has 2 pieces: 200 micro-steps.

# %% [markdown]
# **Predict.** 1000 samples, micro-batch 8, accumulation 3, one process. How many
# updates does an epoch have, if every sample counts? Run the cell, write a number in its box and press Enter.

# %%
updates = predict("1.count_updates", "Updates in an epoch?", yours=None)

# %% [markdown]
# **Measure.** Here is the whole loop, with counters where things happen.

# %%
show_source(scratch.gpt.train_epoch)

# %%
torch.manual_seed(0)
inputs, targets = torch.randn(1000, 3), torch.randn(1000, 1)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
counts = scratch.gpt.train_epoch(
    model, optimizer, inputs, targets, micro_batch=8, accumulation=3
)

# %%
epoch = Batching(samples=1000, micro_batch=8, accumulation=3).epoch()
expect(epoch.micro_steps, counts.micro_steps, label="micro-steps")
expect(epoch.updates, counts.updates, label="updates", yours=updates)

# %% [markdown]
# **Explain.** Counts must agree exactly, and they do: $1000/8=125$ micro-steps, and $125/3=41.7$ updates.
# After 41 updates, two micro-steps are left over. Their gradients count too, so they get an update of their own, the 42nd.
#
# And our colleague? $1000/5=200$ micro-steps and $200/2=100$ updates. The log counts the former, our colleague the latter.
#
# The difference matters because the learning-rate schedule, the warm-up and Adam's bias correction all advance once per *update*.
# A schedule for 200 updates gets only to its middle if there are 100.
#
# The **gradient** (梯度) is not "the change of the weights" (note 004) but the optimizer's input.
# SGD multiplies it by −(learning rate); Adam first divides it by its own running size.
#
# **Remember**
# - updates = micro-steps / accumulation.
# - Whenever a log says "step", find out whether it means a micro-step or an update.

# %% [markdown]
# ### Deeper: which of the two do the tools count?
#
# Most "steps" and "iterations" are updates:
#
# | | counts updates | counts micro-steps |
# |---|---|---|
# | Hugging Face Trainer | `global_step`, and with it `max_steps`, `logging_steps`, `save_steps` | – |
# | Megatron-LM | `iteration`, `--train-iters` | `num_microbatches`, within an iteration |
# | DeepSpeed | `global_steps` | `micro_steps` |
# | Lightning | `trainer.global_step` | `batch_idx` |
# | torchtitan | `step` | – |
# | your own `for step, batch in enumerate(loader)` | – | `step` |
#
# Source: the lines that do the counting, in transformers' `trainer.py`, Megatron-LM's `training.py`, DeepSpeed's `engine.py`, Lightning's
# `training_epoch_loop.py` and torchtitan's `trainer.py`. Our colleague's trainer was of the last kind.

# %% [markdown]
# ## 1.2 Ragged tails
#
# Take 1003 samples and a batch of 10, without accumulation. After 100 steps, 3 samples are left. You can
#
# - keep them: a 101st step has a micro-batch of 3 (`drop_last=False`, PyTorch's default);
# - drop them: nobody sees these 3 samples in this epoch (`drop_last=True`).
#
# With $N$ samples and batch $B$ there are $\lceil N/B\rceil$ steps, rounded up, if you keep them, and $\lfloor N/B\rfloor$, rounded down, if you drop them.
# The popular formula "epoch = batch size × iterations" gives the number of *samples* in an epoch, and is exact only if $B$ divides $N$.

# %%
from torch.utils.data import DataLoader

for drop_last in (False, True):
    ours = Batching(samples=1003, micro_batch=10, drop_last=drop_last).epoch()
    loader = DataLoader(range(1003), batch_size=10, drop_last=drop_last)
    expect(ours.micro_steps, len(loader), label=f"steps with drop_last={drop_last}")

# %% [markdown]
# In evaluation every sample must count once, so keep the tail.
# In training, many loops drop it. A batch of 3 gives a noisier gradient than one of 10, yet
# it moves the weights as far. With shuffling, other samples are dropped in each epoch, so nothing is lost for good.
#
# **Remember**
# - Steps are rounded up or down; `drop_last` decides which.

# %% [markdown]
# ### Deeper: the tail of the accumulation
#
# Accumulation has a tail too. 1003 samples in micro-batches of 5 are 201 micro-steps. With
# accumulation 2, the last update has only one of them. If your loop waits for a second one,
# the leftover gradient leaks into the next epoch. Here no argument decides: your loop does.

# %%
tail = Batching(samples=1003, micro_batch=5, accumulation=2).epoch()
print(f"{tail.micro_steps} micro-steps, {tail.updates} updates")
print(f"micro-steps in the last update: {tail.last_window}")
assert (tail.micro_steps, tail.updates, tail.last_window) == (201, 101, 1)


# %% [markdown]
# ## 1.3 Many processes
#
# Now take 2 machines, called **nodes** (节点), with 4 GPUs each, and one process per GPU. The
# **world size** (进程总数) is the number of processes, 8, and each has a **rank** (进程编号), 0 to 7.
#
# In **data parallelism** (数据并行) every rank holds the whole model and works on its own
# samples. Before each update the ranks average their gradients, so that all make the same
# update. One update uses $5\cdot2\cdot8=80$ samples: micro-batch × accumulation × ranks.
# That is the **global batch** (全局批次), or *effective batch* (有效批次). The micro-batch is also called *per-device batch*
# (单卡批次).

# %%
two_nodes = Batching(
    samples=1000, micro_batch=5, accumulation=2, nodes=2, gpus_per_node=4
)
print(two_nodes.explain())
assert two_nodes.global_batch == 80
figures.batch_ladder(two_nodes)

# %% [markdown]
# **The updates fell from 100 to 13.** Eight ranks go through the data together. If you keep the learning rate, you train less (chapter 2).
#
# How do the updates fall from 1 rank to 16? A slider shows it. It takes an `IntSlider`, an `HTML` text, and a
# function that runs whenever the slider's value changes:

# %%
from ipywidgets import HTML, IntSlider, VBox

ranks, text = IntSlider(value=1, min=1, max=16, description="ranks"), HTML()


def show(change=None):
    """Writes how many updates an epoch has on so many ranks."""
    epoch = Batching(1000, 5, 2, gpus_per_node=ranks.value).epoch()
    text.value = f"{epoch.updates} updates in an epoch"


ranks.observe(show, names="value")
show()
VBox([ranks, text])

# %%
ranks.value = 8  # as if you had moved it
assert text.value == "13 updates in an epoch"

# %% [markdown]
# Every panel of the course works like this. Exercise 1.9 asks for one of your own.
#
# **The world size is not the number of copies.** Larger models are themselves split over GPUs: by tensor
# parallelism (张量并行, TP), pipeline parallelism (流水线并行, PP) and context parallelism
# (上下文并行, CP), chapters 10 to 12. The GPUs that share one copy work on the *same*
# samples and count once:
#
# $$\text{dp}=\frac{\text{world}}{\text{tp}\times\text{pp}\times\text{cp}},\qquad
# \text{global batch}=\text{micro-batch}\times\text{accumulation}\times\text{dp}.$$
#
# Here dp counts copies (Megatron-LM, `arguments.py`).
#
# Take 64 GPUs in 8 nodes. Below, a box is a GPU, a row is a node, and the number is the part of the batch that the GPU
# works on. How many GPUs work on part 0?

# %%
pure = Batching(
    samples=100_000, micro_batch=4, accumulation=8, nodes=8, gpus_per_node=8
)
split = replace(pure, tp=8, pp=4)
assert (pure.global_batch, split.global_batch) == (2048, 64)
figures.same_samples({"data parallel only": pure, "tp 8 × pp 4": split})

# %% [markdown]
# One with data parallelism only. With tp 8 × pp 4, 32 GPUs share one copy, and the global
# batch falls from 2048 to 64.
#
# For language models the batch is counted in **tokens** (词元), the pieces of text that a
# model reads, each about three quarters of an English word. A sample is then a sequence of,
# say, 4096 tokens. LLaMA-2 was trained with 4M tokens per update (arXiv:2307.09288, table 1), which this course reads
# as $1024\times4096=4{,}194{,}304$.
#
# The length of a run is given in tokens too: 2 trillion for LLaMA-2 (same table), about 477,000 updates. Give the learning-rate
# schedule in tokens as well: "warm up over 8 billion tokens" stays right when the batch changes.

# %%
llama2 = Batching(10**6, accumulation=8, nodes=16, gpus_per_node=8, sequence=4096)
assert llama2.global_batch == 1024
assert llama2.tokens_per_batch == 4_194_304
assert round(2e12 / llama2.tokens_per_batch, -3) == 477_000

# %% [markdown]
# **Try it.** Move the sliders of the course's panel by mouse or with the arrow keys, or type a value into the box beside one.
# Double the GPUs per node and halve the accumulation: what stays the same?

# %%
from course_lib import panels

panels.batches()

# %% [markdown]
# The global batch and the number of updates stay the same; each
# rank makes about half as many micro-steps.

# %%
doubled = replace(two_nodes, gpus_per_node=8, accumulation=1)
assert doubled.global_batch == two_nodes.global_batch
assert doubled.epoch().updates == two_nodes.epoch().updates == 13
assert (two_nodes.epoch().micro_steps, doubled.epoch().micro_steps) == (25, 13)

# %% [markdown]
# **Remember**
# - global batch = micro-batch × accumulation × dp, and dp = world / (tp · pp · cp).
# - tokens per batch = global batch × sequence length.

# %% [markdown]
# ## 1.4 Who sees what
#
# 10 samples, 4 ranks. PyTorch's `DistributedSampler` deals them out in turn: rank 0 takes
# samples 0, 4, 8; rank 1 takes 1, 5, 9; and so on. Ranks 2 and 3 would have only two samples.
# But all ranks must take equally many steps, because they meet at every update. A
# rank that takes one step more waits until a timeout ends the job (chapter 15). So the sampler starts over and deals samples 0 and 1 again.

# %%
for rank in range(4):
    sampler = DistributedSampler(range(10), num_replicas=4, rank=rank, shuffle=False)
    assert rank_samples(samples=10, dp=4, rank=rank) == list(sampler)
dealt = [rank_samples(samples=10, dp=4, rank=rank) for rank in range(4)]
figures.samples_by_rank([dealt])

# %% [markdown]
# The rule: rank $r$ of $d$ takes samples $r, r+d, r+2d, \dots$ and starts over at the end, until it has
# $\lceil N/d \rceil$ of them. With `drop_last=True` it takes $\lfloor N/d \rfloor$.
#
# With `shuffle=True`, the default, the samples are first mixed, in an order that depends on
# `seed + epoch`. The seed must be the same on all ranks. The sampler does not count
# epochs by itself: your loop must call `sampler.set_epoch(epoch)`.
#
# **Predict.** 10 samples, 2 ranks, 4 epochs, shuffled, and nobody calls `set_epoch`. How many different
# samples has rank 0 seen in the end?

# %%
variety = predict("1.seen_by_rank_0", "Different samples in 4 epochs?", yours=None)

# %%
forgotten = demos.run(
    "samples", ranks=2, samples=10, batch=2, epochs=4, set_epoch=False
)

# %%
seen = {sample for epoch in range(4) for sample in forgotten.by_rank(epoch)[0]}
share = len(rank_samples(samples=10, dp=2, rank=0))
expect(share, len(seen), label="samples seen by rank 0", yours=variety)

# %%
figures.samples_by_rank([forgotten.by_rank(epoch) for epoch in range(4)])

# %% [markdown]
# **Explain.** Half of the data. Without the call every epoch has the same order, so each rank
# sees only its own half, however long it trains. There is no warning.
#
# ### The data of a language model
#
# Pretraining reads a stream of documents, most of them once, and *packs* them: all documents are joined end to
# end, with a special token after each, and the stream is cut into sequences of equal length. Below, a digit is a token of
# document 1, 2, 3 or 4, and 0 is the special token.


# %%
def sequences(documents, length):
    """Sequences of `length` tokens, cut from the documents joined end to end."""
    waiting = []
    for document in documents:
        waiting += [*document, 0]
        while len(waiting) >= length:
            yield waiting[:length]
            waiting = waiting[length:]


documents = [[1] * 5, [2] * 2, [3] * 7, [4] * 8]
print(*sequences(documents, 4), sep="\n")
assert len(list(sequences(documents, 4))) == 6

# %% [markdown]
# So every sample is a full sequence, but it may hold parts of several documents, such as `[1, 0, 2, 2]`.
# Llama 3 masks attention so that no token sees another document (arXiv:2407.21783, section 3.2).
#
# Of $d$ ranks, rank $r$ takes the sequences $r, r+d, r+2d, \dots$ of the stream.
#
# **Predict.** Two ranks make 2 updates, with micro-batch 1 and no accumulation. Then the run stops, and four ranks carry on.
# Which sequence must rank 0 read first, if the first of all has number 0?

# %%
first = predict("1.resumed", "Number of its first sequence?", yours=None)


# %%
def of_rank(stream, rank, dp, done=0):
    """What one rank reads, after all ranks together have read `done` items."""
    return list(islice(stream, done + rank, None, dp))


before = [of_rank(range(4), rank, dp=2) for rank in range(2)]
after = [of_rank(range(12), rank, dp=4, done=4) for rank in range(4)]
expect(2 * 1 * 2, after[0][0], label="first sequence after the break", yours=first)

# %%
print("2 ranks:", before, " then 4 ranks:", after)
assert sorted(number for own in before + after for number in own) == list(range(12))

# %% [markdown]
# **Explain.** Two updates with a global batch of 2 have used sequences 0 to 3. If this one number, the sequences used, is saved with the weights, the run can
# continue on any number of ranks. Megatron-LM calls it `consumed_train_samples`.
#
# **Remember**
# - All ranks take equally many steps, so the sampler repeats samples or drops some.
# - Call `set_epoch` in every epoch.
# - Language models pack documents into full sequences. Save how many have been used.

# %% [markdown]
# ## 1.5 Demo: two ranks and their samples
#
# Now with `set_epoch`, and with 11 samples, so that something must be repeated.
#
# **Predict.** Each rank takes batches of 2. How many samples are seen twice in an epoch?

# %%
twice = predict("1.demo_twice", "Samples seen twice?", yours=None)

# %%
result = demos.run("samples", ranks=2, samples=11, batch=2, epochs=3)

# %%
plan = Batching(samples=11, micro_batch=2, gpus_per_node=2)
expect(plan.epoch().micro_steps, result.steps(), label="steps per rank")
expect(
    plan.epoch().repeated,
    len(result.repeated()),
    label="samples seen twice",
    yours=twice,
)
assert sum(map(len, result.by_rank(0))) == 12  # 11 samples, one of them twice

# %%
figures.samples_by_rank([result.by_rank(epoch) for epoch in range(3)])

# %% [markdown]
# **Explain.** The samples move between ranks from epoch
# to epoch: `set_epoch` works. The number in brackets is the sample that is dealt a second time, a different
# one in each epoch. An epoch has 12 samples instead of 11, 9 % more.
#
# In a terminal, by PyTorch's own launcher:
#
# ```
# python -m torch.distributed.run --standalone --nproc-per-node 2 \
#     -m course_lib.demos samples --samples 11 --epochs 3
# ```

# %% [markdown]
# ## The answer
#
# With micro-batches of 5 and accumulation 2, 1000 samples make 200 micro-steps, and 100 updates with a batch of 10. The log counts micro-steps,
# so it is right. On two ranks there would be 100 and 50.

# %%
one = Batching(samples=1000, micro_batch=5, accumulation=2)
on_two = replace(one, gpus_per_node=2).epoch()
assert (one.epoch().micro_steps, one.epoch().updates) == (200, 100)
assert (on_two.micro_steps, on_two.updates) == (100, 50)

# %%
from course_lib import quiz

quiz("1")

# %% [raw] tags=["quiz"]
# A log shows 400 steps for an epoch; accumulation is 4 and the log counts micro-steps. How many updates were there?
# [ ] 400
# [x] 100
# [ ] 1600
# Why: Four micro-steps make one update: 400 / 4 = 100.
#
# 64 GPUs, tp 8, pp 2, micro-batch 1, accumulation 1. How large is the global batch?
# [ ] 64
# [ ] 8
# [x] 4
# Why: dp = 64 / (8 × 2) = 4: the 16 GPUs of a copy work on the same samples.
#
# You double the number of GPUs and keep micro-batch and accumulation. The epoch has …
# [ ] as many updates
# [x] half as many updates
# [ ] twice as many updates
# Why: The global batch doubles, so the same samples make half as many updates.
#
# What does a missing set_epoch cause?
# [ ] an error
# [x] the same order in every epoch
# [ ] samples that are seen twice in an epoch
# Why: The order depends on seed + epoch; without the call the epoch stays 0.
#
# Why does DistributedSampler repeat samples?
# [x] to make the ranks take equally many steps
# [ ] to mix the data better
# [ ] to fill the GPU's memory
# Why: Ranks meet at every update; one that came once more would wait in vain until a timeout ends the job.

# %% [markdown]
# **Read on.** PyTorch documentation, `torch.utils.data.distributed.DistributedSampler`.
# Goyal et al. 2017, *Accurate, Large Minibatch SGD*, section 2 (arXiv:1706.02677): what changes
# when the batch grows with the number of GPUs.

# %% tags=["exercise"]
from course_lib import check, hint, solution
from course_lib.checking import grade

# %% [markdown] tags=["exercise"]
# **How an exercise works.** Put your answer in place of `...` and run the cell. For a wrong answer, `check` tells you what kind of mistake you
# made, but not the right value. Each call of `hint` helps a little more; after the last hint, and if you have tried an answer, comes the reason.
# `solution` shows an answer, and the exercise then counts as seen. An exercise that you have already passed stays passed.
#
# A count must be exact. Any other number may be rounded to three digits, or be a text with a unit: `"15 %"` is 0.15 where a fraction is
# asked for, and `"280 GB"` is 280 where GB are asked for and 280e9 where bytes are. Write a decimal point; a comma separates thousands.
#
# A check runs your code, so a loop without an end keeps it waiting: the cell shows `[*]`. Press ■ in the bar above, mend the loop, and run the cell again.
#
# Here is what the check of exercise 1.1 says to a wrong answer. (`grade` looks at an answer and records nothing.)

# %% tags=["exercise"]
print(grade("1.1", (976, 950)).line)

# %% [markdown] tags=["exercise"]
# ### 1.1 Debug: epoch = batch × iterations?
#
# (published mistake, note 000) "Epoch = batch size × iterations." Here are two logs of one data set, each from one process without accumulation. With batch
# 16 and nothing dropped an epoch has 61 iterations; with batch 25 and `drop_last=True` it has 38. By the formula the data set has 976
# samples, or 950, and both are wrong. What are the smallest and the largest number of samples that fit both logs?

# %% [raw] tags=["hints"]
# importance 4, difficulty 3
# What does each log say about samples that do not fill a batch?
# Nothing dropped: rounded up. Which numbers of samples give 61?
# Dropped: rounded down. Both must hold: take the larger of the two smallest.

# %% tags=["exercise"]
fewest, most = ..., ...
### BEGIN SOLUTION
# The first log: more than 60 full batches, at most 61. The second: 38 full ones, not 39.
fewest = max(60 * 16 + 1, 38 * 25)
most = min(61 * 16, 39 * 25 - 1)
### END SOLUTION
check("1.1", [fewest, most])

# %% [markdown] tags=["exercise"]
# ### 1.2 Calculate: a schedule that came along
#
# A configuration was tuned on one GPU: 120,000 samples, micro-batch 8, accumulation 4, 3 epochs. Its scheduler is called once per
# update. It warms up for 500 updates and then lowers the learning rate to zero, which it reaches at the end, after 11,250 updates. A colleague starts it
# on 2 nodes with 8 GPUs each and changes nothing else. The loss falls slowly, and you look for the reason. How many updates does the run
# make in all three epochs? What fraction of them is warm-up? And how far through its schedule, as a fraction, is the scheduler when the run ends?

# %% [raw] tags=["hints"]
# importance 5, difficulty 3
# What did 16 GPUs do to the number of updates in an epoch?
# Each rank has a sixteenth of the samples, and uses 32 of them for one update.
# A short last window is an update too. The warm-up takes 500 of the run's own updates; the scheduler expects 11,250 in all.

# %% tags=["exercise"]
updates, warm_up, reached = ..., ..., ...
### BEGIN SOLUTION
per_rank = 120_000 // 16
updates = 3 * -(-per_rank // (8 * 4))  # 3 × 235, the last window of an epoch is short
warm_up = 500 / updates  # most of the run
reached = updates / 11_250  # the learning rate has hardly begun to fall
### END SOLUTION
check("1.2", [updates, warm_up, reached])

# %% [markdown] tags=["exercise"]
# ### 1.3 Debug: the global batch
#
# (published mistake, note 004) The function below is the note's formula. It is
# right only for pure data parallelism. Fix it. If tp·pp·cp does not divide the world, it must raise a `ValueError`.

# %% [raw] tags=["hints"]
# importance 2, difficulty 1
# GPUs that share one copy of the model work on the same samples.
# dp = nodes × gpus / (tp × pp × cp).


# %% tags=["exercise"]
def global_batch(
    micro_batch: int,
    accumulation: int,
    nodes: int,
    gpus: int,
    tp: int = 1,
    pp: int = 1,
    cp: int = 1,
) -> int:
    """Samples behind one update."""
    ### BEGIN GIVEN
    return accumulation * nodes * gpus * micro_batch
    ### END GIVEN
    ### BEGIN SOLUTION
    world, copies = nodes * gpus, tp * pp * cp
    if world % copies:
        raise ValueError(f"world {world} is not divisible by tp*pp*cp {copies}")
    return accumulation * micro_batch * world // copies
    ### END SOLUTION


check("1.3", global_batch)

# %% [markdown] tags=["exercise"]
# ### 1.4 Implement: who sees what
#
# Write the list of samples that `rank` sees, in order, without
# shuffling: every `world`-th one, starting over at 0 until all ranks have equally many.

# %% [raw] tags=["hints"]
# importance 3, difficulty 2
# How many samples does each rank get, if all must have equally many and none is left out?
# The i-th sample of a rank is number rank + world × i.
# Starting over is a remainder: % samples.


# %% tags=["exercise"]
def my_samples(samples: int, world: int, rank: int) -> list[int]:
    """Sample numbers of one rank, as DistributedSampler(shuffle=False) gives them."""
    ### BEGIN SOLUTION
    per_rank = -(-samples // world)
    return [(rank + world * i) % samples for i in range(per_rank)]
    ### END SOLUTION


check("1.4", my_samples)

# %% [markdown] tags=["exercise"]
# ### 1.5 Debug: a run that is resumed
#
# This function is the sampler's part of a training run that can be resumed: it starts at epoch `first` and goes through `epochs` epochs. It makes two
# mistakes. Fix them: each epoch must have a different order, all ranks together must see every sample, and a run that is stopped
# after two epochs and resumed must see what it would have seen without the break.

# %% [raw] tags=["hints"]
# importance 3, difficulty 3
# Print the orders of two ranks: do they share the samples of an epoch?
# Which epoch is the first one after the break, and which one does the sampler think it is?
# See section 1.4: the order depends on seed + epoch, and must be the same on all ranks.

# %% tags=["exercise"]
from torch.utils.data.distributed import DistributedSampler


def orders(
    samples: int, world: int, rank: int, epochs: int, first: int = 0
) -> list[list[int]]:
    """The sample numbers that `rank` sees, one list per epoch."""
    ### BEGIN GIVEN
    sampler = DistributedSampler(
        range(samples), num_replicas=world, rank=rank, seed=rank
    )
    seen = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        seen.append(list(sampler))
    return seen
    ### END GIVEN
    ### BEGIN SOLUTION
    # With another seed on each rank some samples would come twice, others never.
    sampler = DistributedSampler(range(samples), num_replicas=world, rank=rank, seed=0)
    seen = []
    for epoch in range(first, first + epochs):
        sampler.set_epoch(epoch)
        seen.append(list(sampler))
    return seen
    ### END SOLUTION


check("1.5", orders)

# %% [markdown] tags=["exercise"]
# ### 1.6 Predict: the ragged tail
#
# 1003 samples, 4 ranks, micro-batch 8, accumulation 4. For one epoch, predict `[micro_steps, updates, repeated]` when nothing is dropped, and `[micro_steps, updates,
# dropped]` when every ragged tail is dropped: that of the samples, that of the micro-batches, and that of the
# accumulation. (PyTorch's `drop_last` in sampler and loader drops the first two. Your own loop must leave out the last, short
# window.) Then compare with `Batching(...)`, whose `drop_last` does all three.

# %% [raw] tags=["hints"]
# importance 3, difficulty 3
# Go in this order: samples per rank, micro-batches, windows of 4.
# When nothing is dropped, round up each time. When every tail is dropped, round down.
# All samples outside full windows are dropped: 1003 - updates × 4 × 8 × 4.

# %% tags=["exercise"]
kept = ...
dropped = ...
### BEGIN SOLUTION
kept = [32, 8, 1]  # 251 a rank; 251/8 up; 32/4; 4*251 - 1003
dropped = [28, 7, 107]  # 250 a rank; 31 micro-batches; 7 windows; 1003 - 896
### END SOLUTION
check("1.6", [kept, dropped])

# %% [markdown] tags=["exercise"]
# ### 1.7 Debug: batch 16384
#
# (published mistake, note 004) A plan for training LLaMA-2 70B on 2048 GPUs arrives at a global batch
# of 16384 sequences of 4096 tokens and calls it "fairly large already for large-scale training". That is 16 times LLaMA-2's own batch of 1024
# sequences, and it is not necessary. Judge these settings for 2048 GPUs of 80 GB. The weights of one copy take 138 GB; tensor and
# pipeline parallelism divide them, context parallelism does not. For each setting choose "LLaMA-2's batch", "another batch", or "does not fit" (if the
# weights alone are too large for a GPU).

# %% [raw] tags=["hints"]
# importance 3, difficulty 3
# Which GPUs work on the same sequences, and count once?
# tp · pp · cp GPUs share one copy of the model. How many copies are there on 2048? And how many GPUs divide the 138 GB?

# %% tags=["exercise"]
verdicts = {
    "tp 1, pp 1, cp 2, micro-batch 1, accumulation 1": ...,
    "tp 8, pp 4, micro-batch 2, accumulation 8": ...,
    "tp 8, pp 8, micro-batch 4, accumulation 8": ...,
    "tp 8, pp 8, micro-batch 1, accumulation 16": ...,
    "tp 8, pp 1, micro-batch 4, accumulation 1": ...,
    "tp 8, pp 4, cp 2, micro-batch 2, accumulation 8": ...,
}
### BEGIN SOLUTION
verdicts = {
    # dp 1024, the right batch; but each GPU would hold all 138 GB.
    "tp 1, pp 1, cp 2, micro-batch 1, accumulation 1": "does not fit",
    "tp 8, pp 4, micro-batch 2, accumulation 8": "LLaMA-2's batch",  # dp 64
    "tp 8, pp 8, micro-batch 4, accumulation 8": "LLaMA-2's batch",  # dp 32
    "tp 8, pp 8, micro-batch 1, accumulation 16": "another batch",  # dp 32, half
    "tp 8, pp 1, micro-batch 4, accumulation 1": "LLaMA-2's batch",  # dp 256
    "tp 8, pp 4, cp 2, micro-batch 2, accumulation 8": "another batch",  # dp 32
}
### END SOLUTION
check("1.7", verdicts)

# %% [markdown] tags=["exercise"]
# ### 1.8 Debug: four runs
#
# Four runs on two ranks, shuffled, no `drop_last`, print which samples each rank worked on. The data set of A, B and C has 8 samples,
# that of D has 7. What is wrong with each? Choose among "set_epoch is missing", "every rank has all samples", "the ranks shuffle
# with different seeds" and "nothing".

# %% [raw] tags=["hints"]
# importance 4, difficulty 2
# Three things must hold: epochs differ, ranks differ, and together they miss nothing.
# Write down, for each run and epoch, which samples nobody has and which come twice.
# 8 samples on 2 ranks divide evenly. 7 do not: what does the sampler do then?

# %% tags=["exercise"]
from course_lib.chapters.ch01_steps_and_batches.exercises import RUNS

for name, ranks in RUNS.items():
    for rank, epochs in enumerate(ranks):
        print(f"{name}, rank {rank}: " + "  then  ".join(map(str, epochs)))

diagnosis = {"A": ..., "B": ..., "C": ..., "D": ...}
### BEGIN SOLUTION
diagnosis = {
    "A": "the ranks shuffle with different seeds",  # some samples twice, some never
    "B": "set_epoch is missing",
    "C": "every rank has all samples",
    "D": "nothing",  # 7 samples on 2 ranks: one is repeated
}
### END SOLUTION
check("1.8", diagnosis)

# %% [markdown] tags=["exercise"]
# ### 1.9 Implement: a slider of your own
#
# Write a slider for the accumulation, from 1 to 16, and a text below it that says how many tokens an update then uses: micro-batch 2, 4 ranks,
# sequences of `sequence` tokens. The text must be right before the slider is moved, too. Return the pair `(slider, text)`, an `IntSlider` and an `HTML`.
# To see it, run `VBox(tokens_slider(4096))` in a cell of your own.

# %% [raw] tags=["hints"]
# importance 4, difficulty 2
# Section 1.3 has such a slider. Which number changes here, and which function of it is shown?
# Define `show` inside your function, connect it by `slider.observe(show, names="value")`, and call it once yourself.
# `Batching(10**6, 2, slider.value, gpus_per_node=4, sequence=sequence).tokens_per_batch`, or one product of four numbers.

# %% tags=["exercise"]
from ipywidgets import HTML, IntSlider, VBox


def tokens_slider(sequence: int) -> tuple[IntSlider, HTML]:
    """A slider for the accumulation, and the tokens behind an update."""
    ### BEGIN SOLUTION
    slider, text = IntSlider(value=1, min=1, max=16, description="accumulation"), HTML()

    def show(change=None):
        text.value = f"{2 * slider.value * 4 * sequence:,} tokens behind an update"

    slider.observe(show, names="value")
    show()
    return slider, text
    ### END SOLUTION


check("1.9", tokens_slider)
