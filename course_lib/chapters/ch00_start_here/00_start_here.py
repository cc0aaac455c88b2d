# %% [raw] tags=["sitting"]
# question: How do 16,384 GPUs share one model?
# importance: 5
# difficulty: 1
# group: alone

# %% [markdown]
# # Start here
#
# In 2024 Llama 3 405B was trained on 16,384 GPUs (arXiv:2407.21783, section 3.3), in 30.84 million GPU-hours (Llama
# 3.1's model card). How do 16,384 GPUs share one model? Why did it take 30 million hours, and not 3 million? By the end of this page you can
#
# - name the three directions in which each of these GPUs talks,
# - run a program on four processes of your own computer, and explain its result,
# - choose your way through the course.
#
# The course teaches how large models are trained on many accelerators (加速器). You need a
# laptop, Python and a little PyTorch: you can say what `loss.backward()` computes, what `optimizer.step()` changes, and
# why a training loop calls `optimizer.zero_grad()`.
#
# You do not need a GPU. Programs for many GPUs
# run here on several processes (进程) of your computer, and what they send, store and compute is counted
# exactly. Where there are GPUs, they use them.

# %% [markdown]
# ## One model on 16,384 GPUs
#
# This page is a notebook: text, and cells of Python with `[ ]:` in front. Click a cell and press Shift-Enter to run it, from top
# to bottom. A grey line without brackets is a folded cell: run it too.
#
# In one *update* the model reads some text, and all its weights change a little. A *copy* is one complete set of weights.
#
# Below are all 16,384 GPUs, one small box each. Run the next two cells. Then **press the ▶ beside "step" and watch the box in
# the corner**. Which GPUs does it talk to, and how much does it send them?

# %%
from course_lib import doctor, expect, launch, outline, predict
from course_lib.chapters.ch00_start_here import figures
from course_lib.checking.report import in_brief
from course_lib.mine import PARTS
from course_lib.sittings import Overview


# %%
from course_lib.chapters.ch00_start_here import steppers

steppers.block()

# %% [markdown]
# The box talks in three directions:
#
# - **Eight GPUs divide each matrix** (chapter 10). Of the 297 GB that a GPU sends in one update, 271 GB stay
#   among these eight, inside one computer.
# - **Sixteen such groups divide the layers** (chapter 11). This costs the least traffic, 8 GB.
# - **The whole arrangement exists 128 times**, and each copy reads a different part of the text (chapter 7). Keeping the copies identical costs 18 GB.
#
# The layout is the authors'. The course computes the bytes, and in chapter 13 you will too.

# %% [markdown]
# ## Predict, measure, explain
#
# Every chapter repeats one loop:
#
# 1. **Predict** (预测). You commit to a number before anything runs.
# 2. **Measure** (测量). Code runs and counts: bytes, operations, messages, seconds.
# 3. **Explain the gap** (解释差距). Where the two differ, we explain why, and how large a difference is acceptable.
#
# Four processes have the numbers 0, 1, 2 and 3, their **ranks** (进程编号).
# They add up these numbers, and each of them gets the sum. This is called an **all-reduce** (全规约).
#
# **Predict.** They do it twice: the result of the first all-reduce goes into a second one. What does each
# process have in the end? Run the cell, write your number in its box and press Enter. Your first number counts.

# %%
total = predict("0.twice", "What does each process have in the end?", yours=None)

# %% [markdown]
# **Measure.** `launch.run` starts the processes and calls the function in each of them.


# %%
def add_up():
    """Adds up the ranks of all processes, twice."""
    import torch
    import torch.distributed as dist

    mine = torch.tensor(dist.get_rank())
    for time in ("once", "twice"):
        dist.all_reduce(mine)
        print(f"added up {time}: {mine.item()}")
    return mine.item()


results = launch.run(add_up, ranks=4)

# %%
assert len(set(results)) == 1
expect(4 * (0 + 1 + 2 + 3), results[0], label="twice", yours=total)

# %% [markdown]
# **Explain.** After the first all-reduce *every* process has 6, so the second
# one adds up four sixes: 24, not 12. Each line of the output begins with the rank that printed it.
#
# `expect` shows three numbers. *You* shows the number you committed to and how far off it was; without a prediction, the result stays
# hidden until you open it. *Theory* is what a formula says, and *measured* is what the run found. If these two differ by more than the
# notebook allows, the cell stops with an error. Your own number may be as wrong as it likes: a wrong prediction is where you learn most.

# %% [markdown]
# ## Can this computer run the course?
#
# The next cell starts 2 and then 4 processes, lets them exchange a number, and says how long
# that took. In a terminal, `course doctor` looks at more and says what to do about it.
#
# Each notebook has its own process, its **kernel** (内核), which keeps running when you close the
# notebook and holds 450 to 860 MB. End old ones: *Kernel → Shut Down All Kernels*.

# %%
doctor.self_test()

# %% [markdown]
# ## Your way through the course
#
# Seventeen chapters follow. Each notebook of a chapter is one sitting: it begins with a question and ends with the answer.

# %%
figures.course_map(outline.CHAPTERS, outline.steps(), PARTS)

# %% [markdown]
# | | chapter | the question | what you build |
# |---|---|---|---|
# | 1 | [Steps and batches](01) | 200 steps and still 100 updates: how? | |
# | 2 | [Gradient accumulation](02) | How do you train with batch 512 on two small GPUs? | accumulation, alone and with DDP |
# | 3 | [What is in the memory](03) | Why does a 13.5 GB model not train in 80 GB? | AdamW for bf16 weights, AdamW in 8 bits |
# | 4 | [Activations and recomputation](04) | What does it cost to keep less? | a checkpoint that recomputes |
# | 5 | [FLOPs, roofline, MFU](05) | How long must a training run take at least? | |
# | 6 | [Collectives and the α–β model](06) | How long does an all-reduce take? | a ring and a tree, from messages |
# | 7 | [From DP to DDP](07) | Why is the exchange of gradients almost free? | DDP, with hooks and buckets |
# | 8 | [ZeRO 1, 2, 3](08) | Who needs to store what? | ZeRO 1 and 2, with clipping |
# | 9 | [FSDP and YaFSDP](09) | How do you train what fits on no single GPU? | FSDP |
# | 10 | [Tensor parallelism](10) | How far can one matrix be split? | both cuts of a matrix, sequence parallelism, a loss cut by words |
# | 11 | [Pipeline parallelism](11) | Why do GPUs wait, and for how long? | a pipeline for any schedule |
# | 12 | [Experts and long sequences](12) | What do a trillion parameters cost, if few are used? | experts on many ranks, ring attention |
# | 13 | [3D parallelism and planning](13) | Which layout, out of a hundred thousand? | a mesh of ranks |
# | 14 | [Parameter servers and RPC](14) | What if the model is mostly a table? | a parameter server |
# | 15 | [Launchers, frameworks, recovery](15) | What happens when a machine dies? | a launcher, a checkpoint of many ranks |
# | 16 | [The cluster clinic](16) | Which cable is broken? | a parser of `ibstat`, the first call on which ranks differ |
# | 17 | [Capstone](17) | Can you defend a plan for a 70B model? | streams that share a GPU, an audit, a report |
#
# There are four routes. In a terminal, `course progress --route thread` chooses one, and `course progress`
# shows how far you are. Below are the minutes of each sitting and of a chapter's exercises; a route's hours include both:

# %%
print(in_brief())
Overview()

# %% [markdown]
# The exercises are in the folder `exercises/`. You calculate, predict, write functions, **build** a training library part by part, and find mistakes
# in code and in "the notes": five sets of Chinese study notes, 000 to 004, listed below. Chapter 1 explains how answers are checked.
#
# [The glossary](glossary.ipynb) has all terms with their Chinese names.

# %% [markdown]
# ## Conventions
#
# - **GB** is $10^9$ bytes, **GiB** is $2^{30}$ bytes.
# - **FLOP** is a floating-point operation, **FLOP/s** a speed.
# - Bandwidth is per direction: a link that sends 50 GB/s and receives 50 GB/s at once has 50 GB/s. Peak rates are those for dense matrices.
# - A number is measured or computed in the notebook, or has its source beside it.

# %% [markdown]
# ## The answer
#
# 8 GPUs for each matrix, 16 groups for the layers, 128 copies: $8\cdot16\cdot128=16{,}384$. And the hours? Pre-training took
# $3.8\cdot10^{25}$ operations (arXiv:2407.21783, section 1), and each GPU did about $400\cdot10^{12}$ a second (table 4):

# %%
hours = 3.8e25 / 400e12 / 3600
print(f"{hours / 1e6:.0f} million GPU-hours")
assert 8 * 16 * 128 == 16_384 and 26e6 < hours < 27e6

# %% [markdown]
# That explains 26 of the 30.84 million. Now open [Steps and batches](01).

# %% [markdown]
# ## Deeper: the notes
#
# This course grew out of five widely read sets of Chinese study notes on training large
# models. They ask the right questions. Many of their answers are right, some are not. Where the course
# says "the notes", it means these five, and refers to each by its number:
#
# | | what it is | about |
# |---|---|---|
# | 000 | notes with the title "ML" | data and tensor parallelism, terms, what is in a GPU's memory, commands |
# | 001 | a post of the blog 鱼雪 | FSDP and YaFSDP |
# | 002 | excerpts of several articles, as a web search shows them | DDP, FSDP, RPC |
# | 003 | "How to train large models", lryc.cn/news/422711 | the kinds of parallelism, after two English articles |
# | 004 | "Estimating the compute of GPUs", on CSDN | bandwidth, 3D parallelism on 2048 GPUs, the batch |
#
# Where a note is wrong, or leaves out a condition, it becomes an exercise, marked "published mistake, note
# 004". A published number deserves to be checked, and you will be able to. [From the notes](from_the_notes.ipynb)
# leads from their words to the sections of the course.
