# %% [markdown]
# # 1 Steps and batches
#
# A colleague says: "Our data set has 1000 samples, the batch (批次) is 10, and the trainer's log
# says 200 steps per epoch. Is the log wrong?"
#
# It may be right. By the end of this chapter you can say when, and you can compute for any
# number of GPUs
#
# - how many steps and how many updates an epoch has,
# - how large the batch behind one update really is, in samples and in tokens,
# - which samples each process sees, which it sees twice, and which nobody sees.
#
# Time: about an hour and a half, more than half of it for the exercises. You need PyTorch's training loop, nothing about clusters.

# %%
from dataclasses import replace

import torch
from torch.distributed import distributed_c10d
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from course_lib import demos, expect, launch, predict, scratch, show_source, style
from course_lib.chapters.ch01_steps_and_batches import figures
from course_lib.theory import Batching, rank_samples

launch.warm_up()

# %% [markdown]
# ## 1.1 Five words
#
# Start with one process, 1000 samples, and a GPU that holds the intermediate results of only
# 5 samples at once.
#
# - A **sample** (样本) is one training example: here a row of numbers, later a piece of text.
# - An **epoch** (轮次) is one pass over all samples: 1000 of them.
# - A **micro-batch** (微批次) is what goes through the model in one forward pass: 5 samples.
# - A **micro-step** is one forward pass (前向传播) and one backward pass (反向传播), on one micro-batch. Some logs call
#   it **step** or **iteration** (迭代), and so does our colleague's.
# - An **update** (参数更新) is one step of the optimizer (优化器), `optimizer.step()`: the weights change.
#
# If the weights change after every micro-step, one number is enough. But people often add up
# the gradients of several micro-batches first and update once. That is **gradient accumulation**
# (梯度累积), the subject of chapter 2. With accumulation 2, two micro-steps make one update.
#
# Two similar words are easily confused. A *mini-batch* (小批次) is the whole batch behind one
# update, as in "mini-batch gradient descent": here 10 samples. A *micro-batch* is a piece
# of it: here 5. Some texts mix them up, and then their numbers are off by the accumulation factor.
#
# Read the picture from the top down: the epoch is cut into updates, an update into micro-steps, and each of these takes one
# micro-batch of 5 samples. Where are the log's 200 steps, and where are the 100 updates?

# %%
figures.batch_ladder(Batching(samples=1000, micro_batch=5, accumulation=2))

# %% [markdown]
# <details><summary>Where they are</summary>The first bar has 100 pieces, the updates. Each has 2 pieces of its own: that makes 200 micro-steps.</details>

# %% [markdown]
# **Predict.** 1000 samples, micro-batch 8, accumulation 3, one process. How many micro-steps
# and how many updates does an epoch have, if every sample counts? Run the cell and write your numbers in its boxes.
# Your first answer is kept, so that you can compare later. Leave a box empty and the notebook goes on without it.

# %%
micro_steps = predict("1.count_micro_steps", "Micro-steps in an epoch?", yours=None)
updates = predict("1.count_updates", "Updates in an epoch?", yours=None)

# %% [markdown]
# **Measure.** Here is the whole loop. It is a training loop like any other, on a
# linear model, with counters where things happen.

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
expect(epoch.micro_steps, counts.micro_steps, label="micro-steps", yours=micro_steps)
expect(epoch.updates, counts.updates, label="updates", yours=updates)

# %% [markdown]
# **Explain.** The gap is zero, and it must be: these are counts, not timings.
#
# $$\text{micro-steps} = \frac{1000}{8} = 125, \qquad \text{updates} = \frac{125}{3} = 41.7.$$
#
# The last two micro-steps have no third one to wait for, but their gradients count: they make a 42nd update.
# The next section is about such tails.
#
# And our colleague? $1000 / 5 = 200$ micro-steps and $200 / 2 = 100$ updates. The log counts the former, our colleague the latter.
#
# Which one do the tools count? Most "steps" and "iterations" are updates:
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
# Source: the lines that count up, in transformers' `trainer.py`, Megatron-LM's `training.py`, DeepSpeed's `engine.py`, Lightning's
# `training_epoch_loop.py` and torchtitan's `trainer.py`. Our colleague's trainer was of the last kind.
#
# The difference matters because the learning-rate schedule, the warm-up and Adam's bias correction all advance once per *update*.
# A schedule set to 200 when there are 100 updates never gets past its middle.
#
# One more word is often misused. The **gradient** (梯度) is not "the change of the weights". It is
# what the optimizer starts from. Plain SGD changes the weights by −(learning rate) × gradient.
# Adam divides by a running size of the gradient, so the change is about as large as the learning rate,
# whatever the size of the gradient.

# %% [markdown]
# **Remember**
# - A micro-step is a forward and a backward pass; an update is a step of the optimizer.
# - updates = micro-steps / accumulation. Ask of every "step" in a log which one it is.

# %% [markdown]
# ## 1.2 Ragged tails
#
# Take 1003 samples and a batch of 10, without accumulation. The first 100 steps use 1000
# samples. Three are left. What happens to them is a choice:
#
# - keep them: there is a 101st step, with a micro-batch of 3 (`drop_last=False`, PyTorch's default);
# - drop them: there are 100 steps, and nobody sees these 3 samples in this epoch (`drop_last=True`).
#
# With $N$ samples and batch $B$:
#
# $$\text{steps} = \lceil N/B \rceil \text{ (keep)} \qquad\text{or}\qquad
# \lfloor N/B \rfloor \text{ (drop)}.$$
#
# $\lceil x \rceil$ rounds up, $\lfloor x \rfloor$ rounds down. The popular "epoch = batch size ×
# iterations" counts *samples*, and it is exact only when $B$ divides $N$.

# %%
keep = Batching(samples=1003, micro_batch=10).epoch()
drop = Batching(samples=1003, micro_batch=10, drop_last=True).epoch()
print(f"keep: {keep.micro_steps} steps, the last with {keep.last_micro_batch} samples")
print(f"drop: {drop.micro_steps} steps, {drop.dropped} samples that nobody sees")
assert (keep.micro_steps, keep.last_micro_batch, keep.dropped) == (101, 3, 0)
assert (drop.micro_steps, drop.last_micro_batch, drop.dropped) == (100, 10, 3)

# %%
for drop_last, ours in ((False, keep), (True, drop)):
    loader = DataLoader(range(1003), batch_size=10, drop_last=drop_last)
    expect(ours.micro_steps, len(loader), label=f"steps with drop_last={drop_last}")

# %% [markdown]
# Which one is right? Keeping is natural for evaluation, where every sample must count once.
# Many training loops drop the last batch. A batch of 3 gives a noisier gradient than one of 10, yet
# it moves the weights as far. And a batch of another size makes compiled code compile again.
# With shuffling, different samples are dropped in each epoch, so nothing is lost for good.
#
# Accumulation has a tail too. 1003 samples in micro-batches of 5 are 201 micro-steps; with
# accumulation 2, the last update has only one of them. If your loop waits for the second one,
# the leftover gradient stays in `.grad` and leaks into the next epoch.

# %%
tail = Batching(samples=1003, micro_batch=5, accumulation=2).epoch()
print(f"{tail.micro_steps} micro-steps, {tail.updates} updates")
print(f"micro-steps in the last update: {tail.last_window}")
assert (tail.micro_steps, tail.updates, tail.last_window) == (201, 101, 1)

# %% [markdown]
# **Remember**
# - Steps are rounded up or down; `drop_last` decides, and the loop decides it for accumulation.
# - "Epoch = batch × iterations" counts samples, and only without a tail.

# %% [markdown]
# ## 1.3 Many processes
#
# Now take 2 machines, called **nodes** (节点), with 4 GPUs each, and one process per GPU. The
# number of processes is the **world size** (进程总数): $2 \times 4 = 8$. Each process has a number,
# its **rank** (进程编号), here 0 to 7.
#
# In **data parallelism** (数据并行) every rank holds the whole model and works on its own
# samples. Before each update the ranks average their gradients, so that all make the same
# update. One update then rests on
#
# $$\underbrace{5}_{\text{micro-batch}} \times \underbrace{2}_{\text{accumulation}} \times
# \underbrace{8}_{\text{ranks}} = 80 \text{ samples.}$$
#
# That is the **global batch** (全局批次), or *effective batch* (有效批次). The micro-batch is also called *per-device batch*
# (单卡批次), for instance `per_device_train_batch_size` in transformers.

# %%
two_nodes = Batching(
    samples=1000, micro_batch=5, accumulation=2, nodes=2, gpus_per_node=4
)
print(two_nodes.explain())
assert two_nodes.global_batch == 80
figures.batch_ladder(two_nodes)

# %% [markdown]
# Each line above is one formula. Two of them deserve a second look. The first is the number of updates:

# %%
by_ranks = {
    f"world size {ranks}": Batching(1000, 5, 2, gpus_per_node=ranks).epoch().updates
    for ranks in (1, 2, 4, 8, 16)
}
told = {name: f"{count} updates" for name, count in by_ranks.items()}
figures.bars(by_ranks, told, "Updates in an epoch of 1000 samples", style.UPDATE)

# %% [markdown]
# **Updates fell from 100 to 13.** Eight ranks go through the data together, so an epoch has an
# eighth of the updates. If you keep the learning rate, you train less. Chapter 2 says what
# to do about it.
#
# **The world size is not the number of copies.** That is the second formula, dp. Larger models are themselves split over GPUs: by tensor
# parallelism (张量并行, TP), pipeline parallelism (流水线并行, PP) and context parallelism
# (上下文并行, CP), chapters 10 to 12. The GPUs that share one copy of the model work on the *same*
# samples. They count once:
#
# $$\text{dp} = \frac{\text{world}}{\text{tp} \times \text{pp} \times \text{cp}}, \qquad
# \text{global batch} = \text{micro-batch} \times \text{accumulation} \times \text{dp}.$$
#
# Source: Megatron-LM, `arguments.py`. The formula of note 004, accumulation ×
# nodes × processes per node × micro-batch, is this one with tp = pp = cp = 1.
#
# Take 64 GPUs in 8 nodes. Below, a box is a GPU, a row is a node, and the number says which part of the batch the GPU
# works on. How many GPUs work on part 0 with data parallelism only, and how many with tp 8 × pp 4?

# %%
pure = Batching(
    samples=100_000, micro_batch=4, accumulation=8, nodes=8, gpus_per_node=8
)
split = Batching(
    samples=100_000, micro_batch=4, accumulation=8, nodes=8, gpus_per_node=8, tp=8, pp=4
)
print(f"64 GPUs, data parallel only: global batch {pure.global_batch}")
print(f"64 GPUs, tp 8 × pp 4:        global batch {split.global_batch}")
assert (pure.global_batch, split.global_batch) == (2048, 64)
figures.same_samples({"data parallel only": pure, "tp 8 × pp 4": split})

# %% [markdown]
# One with data parallelism only. With tp 8 × pp 4, 8 · 4 = 32 GPUs share one copy of the model and see the same samples.
#
# For language models the batch is counted in **tokens** (词元), the pieces of text that a
# model reads, each about three quarters of an English word. A sample is then a sequence of,
# say, 4096 tokens.
#
# LLaMA-2 was trained with "4M" tokens per update (model card, and arXiv:2307.09288, table 1). Neither source says exactly how many that is. 4 million tokens are about 1000 sequences,
# the nearest power of two is 1024, and $1024 \times 4096 = 4{,}194{,}304$. That is how this course reads the
# 4M. On 128 GPUs, for example:

# %%
llama2 = Batching(
    samples=10**6,
    micro_batch=1,
    accumulation=8,
    nodes=16,
    gpus_per_node=8,
    sequence=4096,
)
assert llama2.global_batch == 1024
assert llama2.tokens_per_batch == 4_194_304
assert round(2e12 / llama2.tokens_per_batch, -3) == 477_000

# %% [markdown]
# At this scale the length of a run is given in tokens or updates rather than epochs. LLaMA-2 was trained on 2 trillion tokens (same
# table), which makes about 477,000 updates.

# %% [markdown]
# **Try it.** Move the sliders, by mouse or with the arrow keys. Three things to look for:
#
# 1. Double the GPUs per node and halve the accumulation. What stays the same?
# 2. Find a setting in which samples are repeated. Then tick "drop last". Who loses what?
# 3. Make the global batch 512 in three different ways.

# %%
from course_lib import panels

panels.batches()

# %% [markdown]
# Answers. 1: the global batch and the number of updates stay as they are, and each
# rank makes about half as many micro-steps. 2: 1003 samples on 4 ranks repeat one sample. With "drop last" nobody gets
# a sample twice, but some samples are seen by nobody in this epoch: here 3. 3: for example 8 × 8 × 8, 16 × 4 × 8 and 4 × 16 × 8 (micro-batch ×
# accumulation × ranks).

# %%
doubled = replace(two_nodes, gpus_per_node=8, accumulation=1)
assert doubled.global_batch == two_nodes.global_batch
assert doubled.epoch().updates == two_nodes.epoch().updates == 13
assert (two_nodes.epoch().micro_steps, doubled.epoch().micro_steps) == (25, 13)

four_ranks = Batching(samples=1003, micro_batch=5, accumulation=2, gpus_per_node=4)
assert four_ranks.epoch().repeated == 1
assert replace(four_ranks, drop_last=True).epoch().dropped == 3

# %% [markdown]
# **Remember**
# - global batch = micro-batch × accumulation × dp, and dp = world / (tp · pp · cp).
# - More ranks, fewer updates per epoch.
# - Language models: tokens per batch = global batch × sequence length.

# %% [markdown]
# ## 1.4 Who sees what
#
# 10 samples, 4 ranks. PyTorch's `DistributedSampler` deals them out like cards: rank 0 takes
# samples 0, 4, 8; rank 1 takes 1, 5, 9; and so on. Ranks 2 and 3 would have only two samples.
# But all ranks must take equally many steps: they meet at every update to average gradients. A
# rank that takes one step more than the others waits until PyTorch gives up, by default after 10 minutes with NCCL
# and 30 with gloo, and then the job dies (chapter 15). So the sampler starts over and deals sample 0 and sample 1 again. Two samples are seen twice.

# %%
from datetime import timedelta

assert distributed_c10d.default_pg_timeout == timedelta(minutes=30)
for rank in range(4):
    sampler = DistributedSampler(range(10), num_replicas=4, rank=rank, shuffle=False)
    mine = rank_samples(samples=10, dp=4, rank=rank)
    assert mine == list(sampler)
dealt = [rank_samples(samples=10, dp=4, rank=rank) for rank in range(4)]
figures.samples_by_rank([dealt])

# %% [markdown]
# The rule: rank $r$ of $d$ takes samples $r, r+d, r+2d, \dots$ and starts over at the end, until it has
# $\lceil N/d \rceil$ of them. With `drop_last=True` it takes $\lfloor N/d \rfloor$, and the
# last few samples are left out.
#
# With `shuffle=True`, the default, the samples are first mixed in an order that depends on
# `seed + epoch`. The seed must be the same on all ranks: they deal from one deck. The sampler does not count
# epochs by itself. You tell it with `sampler.set_epoch(epoch)`.
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
# **Explain.** Half of the data. The four epochs in the picture are alike: without the call every epoch has the very same order, so each rank
# sees only its own half, however long it trains. (With the call, the chance that rank 0 misses a given sample in all 4 epochs is only 1/16.) Nothing
# crashes, and there is no warning.

# %% [markdown]
# ## 1.5 Demo: two ranks and their samples
#
# Now with `set_epoch`, and with 11 samples, so that something must be repeated.
#
# **Predict.** Each rank takes batches of 2. How many steps does each rank make in an epoch,
# and how many samples are seen twice?

# %%
steps = predict("1.demo_steps", "Steps per rank?", yours=None)
twice = predict("1.demo_twice", "Samples seen twice?", yours=None)

# %%
result = demos.run("samples", ranks=2, samples=11, batch=2, epochs=3)

# %%
plan = Batching(samples=11, micro_batch=2, gpus_per_node=2)
expect(plan.epoch().micro_steps, result.steps(), label="steps per rank", yours=steps)
expect(
    plan.epoch().repeated,
    len(result.repeated()),
    label="samples seen twice",
    yours=twice,
)
turns = sum(len(samples) for samples in result.by_rank(0))
assert turns == 12  # 11 samples, one of them twice

# %%
print(result.report())
figures.samples_by_rank([result.by_rank(epoch) for epoch in range(3)])

# %% [markdown]
# **Explain.** Each row is a rank in one epoch, and each number a sample. They change places from epoch
# to epoch: `set_epoch` works. The number in brackets is the sample that is dealt a second time, a different
# one in each epoch. It counts twice, and the epoch is longer than the data:
# 12 samples instead of 11, 9 % more. With a million samples nobody notices.
#
# The same run outside the notebook, with the course's command and with PyTorch's own launcher:
#
# ```
# course demo samples --ranks 2 --samples 11 --epochs 3
# python -m torch.distributed.run --standalone --nproc-per-node 2 \
#     -m course_lib.demos samples --samples 11 --epochs 3
# ```

# %% [markdown]
# ## What to remember
#
# 1. Micro-step: forward and backward. Update: the weights change. 200 steps can be 100 updates.
# 2. global batch = micro-batch × accumulation × dp, with dp = world / (tp · pp · cp).
# 3. Steps are rounded up or down; `drop_last` decides at the tail.
# 4. All ranks take equally many steps, so the sampler repeats samples or drops them.
# 5. Call `set_epoch` in every epoch.
# 6. Language models count the batch in tokens.

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
# **Now you:** open [the exercises](../exercises/01_steps_and_batches.ipynb).
#
# **Read on.** PyTorch documentation, `torch.utils.data.distributed.DistributedSampler`.
# Goyal et al. 2017, *Accurate, Large Minibatch SGD*, section 2 (arXiv:1706.02677): what changes
# when the batch grows with the number of GPUs.

# %% tags=["exercise"]
from course_lib import check, hint, solution

# %% [markdown] tags=["exercise"]
# ### 1.1 Debug: epoch = batch × iterations?
#
# (published mistake, note 000) "Epoch = batch size × iterations." Here are two logs of one data set, each from one process without accumulation. With batch
# 16 and nothing dropped an epoch has 61 iterations; with batch 25 and `drop_last=True` it has 38. By the formula the data set has 976
# samples, or 950, and both are wrong. What are the smallest and the largest number of samples that fit both logs?

# %% [raw] tags=["hints"]
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
# update. It warms up for 500 updates and then lowers the learning rate until it is zero at the very end, after 11,250. Somebody starts it
# on 2 nodes with 8 GPUs each and changes nothing else. The loss falls slowly, and you look for the reason. How many updates does the run
# make in all three epochs? What fraction of them is warm-up? And how far through its schedule, as a fraction, is the scheduler when the run ends?

# %% [raw] tags=["hints"]
# What did 16 GPUs do to the number of updates of an epoch?
# Each rank has a sixteenth of the samples, 32 of them make one of its updates.
# A short last window is an update too. Warm-up is 500 of the run's own updates; the scheduler thinks that there are 11,250.

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
# right for pure data parallelism only. Fix it. It must refuse a world that tp·pp·cp does not
# divide, with a `ValueError`.

# %% [raw] tags=["hints"]
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
# The sampler's part of a training that can be resumed: it starts at epoch `first` and runs for `epochs` epochs. Two things are
# wrong with it. Fix it: each epoch must have a different order, all ranks together must see every sample, and a run that is broken off
# after two epochs and resumed must see what it would have seen without the break.

# %% [raw] tags=["hints"]
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
# dropped]` when every ragged tail is dropped: of the samples, of the micro-batches, and of the
# accumulation. (PyTorch's `drop_last` in sampler and loader does the first two; leaving out the last, short
# window is up to your loop.) Then compare with `Batching(...)`, whose `drop_last` does all three.

# %% [raw] tags=["hints"]
# Go in this order: samples per rank, micro-batches, windows of 4.
# When nothing is dropped round up each time, when every tail is dropped round down.
# Dropped are all samples outside full windows: 1003 - updates × 4 × 8 × 4.

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
# of 16384 sequences of 4096 tokens and calls it "fairly large already for large-scale training". It is 16 times LLaMA-2's own, and there is no need
# for it. Which of these settings train on 2048 GPUs with LLaMA-2's 1024 sequences per update? True or False for each.

# %% [raw] tags=["hints"]
# Which GPUs work on the same sequences, and count once?
# tp · pp · cp GPUs share one copy of the model. How many copies are there on 2048?

# %% tags=["exercise"]
as_llama2 = {
    "tp 1, pp 1, micro-batch 1, accumulation 1": ...,
    "tp 8, pp 4, micro-batch 2, accumulation 8": ...,
    "tp 8, pp 8, micro-batch 4, accumulation 8": ...,
    "tp 8, pp 8, micro-batch 1, accumulation 16": ...,
    "tp 8, pp 1, micro-batch 4, accumulation 1": ...,
    "tp 8, pp 4, cp 2, micro-batch 2, accumulation 8": ...,
}
### BEGIN SOLUTION
as_llama2 = {
    "tp 1, pp 1, micro-batch 1, accumulation 1": False,  # dp 2048, twice the batch
    "tp 8, pp 4, micro-batch 2, accumulation 8": True,  # dp 64
    "tp 8, pp 8, micro-batch 4, accumulation 8": True,  # dp 32
    "tp 8, pp 8, micro-batch 1, accumulation 16": False,  # dp 32, half
    "tp 8, pp 1, micro-batch 4, accumulation 1": True,  # dp 256
    "tp 8, pp 4, cp 2, micro-batch 2, accumulation 8": False,  # dp 32, half
}
### END SOLUTION
check("1.7", as_llama2)

# %% [markdown] tags=["exercise"]
# ### 1.8 Debug: four runs
#
# Four runs on two ranks, shuffled, no `drop_last`, print which samples each rank worked on. The data set of A, B and C has 8 samples,
# that of D has 7. What is wrong with each? Choose among "set_epoch is missing", "every rank has all samples", "the ranks shuffle
# with different seeds" and "nothing".

# %% [raw] tags=["hints"]
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
