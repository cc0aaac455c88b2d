# %% [raw] tags=["sitting"]
# question: What does one flat vector give up, and what does an update hold while it runs?
# importance: 2
# difficulty: 3
# group: alone

# %% [markdown]
# # 8 ZeRO: decay by marks, PyTorch's stage 1, one update in memory
#
# Three questions that the first two sittings left open:
#
# - One flat vector holds matrices and norms. How does weight decay act on the matrices only?
# - PyTorch's `ZeroRedundancyOptimizer` sends three halves of an all-reduce where the paper's stage 1 sends two. Why?
# - Stage 2 stores less than stage 1. Does it also hold less at the fullest moment of an update?

# %%
from functools import partial

import torch

from course_lib import demos, expect, launch, measure, scratch, show_source
from course_lib.chapters.ch08_zero import figures
from course_lib.demos.shared.text import VOCAB, Windows

launch.warm_up()
torch.set_num_threads(1)

# %% [markdown]
# ## 8.9 Weight decay for some weights only
#
# Most recipes decay matrices, but neither norms nor biases, by two groups of parameters. One vector holds them all. There are three remedies:
#
# - **A vector for each group**, padded and cut separately. DeepSpeed does this (its `stage_1_and_2.py`).
# - **Each tensor cut separately.** FSDP2 does this (chapter 9).
# - **Marks, cut like the weights.** Decay shrinks each number by itself, $w \leftarrow w \, (1 - \text{learning rate} \cdot
#   \lambda)$. So a vector of marks, 1 where an element decays, can be padded and cut in the same places:

# %%
show_source(scratch.zero.marks, scratch.zero.decay)

# %% [markdown]
# The small GPT of section 8.4, and a rank's share of a batch:


# %%
text, tokens = Windows(sequence=32), 8 * 32


def new_gpt():
    """The small GPT, with the same weights on every rank."""
    torch.manual_seed(0)
    return scratch.gpt.GPT(layers=2, hidden=64, heads=4, vocab=VOCAB, context=32)


def backward(gpt, number):
    """Backward pass of this rank's rows of batch `number`."""
    rank = launch.init()
    rows = range(8 * number + rank.rank, 8 * number + 8, rank.world)
    inputs, labels = text.batch(rows)
    (scratch.accumulation.loss_sum(gpt(inputs), labels) / tokens).backward()


# %% [markdown]
# Four updates in stage 2 on two ranks, with $\lambda = 0.1$: once by marks, and once with a decay of everything.


# %%
RATE, DECAY = 3e-3, 0.1
EPS = 1e-5  # AdamW's 1e-8 would enlarge the rounding of gradients that are nearly 0


def with_zero(marked):
    """All weights after four updates, matrices decayed by marks, or everything."""
    gpt = new_gpt()
    everywhere = 0.0 if marked else DECAY
    adamw = partial(torch.optim.AdamW, lr=RATE, eps=EPS, weight_decay=everywhere)
    trainer = scratch.zero.Zero(gpt, gpt.blocks, adamw, stage=2)
    for number in range(4):
        backward(gpt, number)
        if marked:
            scratch.zero.decay(trainer, RATE * DECAY)
        trainer.step()
    return torch.nn.utils.parameters_to_vector(gpt.parameters()).detach()


# %% [markdown]
# The reference is one process with two groups:


# %%
def with_groups():
    """The same in one process, by two groups."""
    gpt = new_gpt()
    matrices = [p for p in gpt.parameters() if p.ndim > 1]
    others = [p for p in gpt.parameters() if p.ndim == 1]
    groups = [
        {"params": matrices, "weight_decay": DECAY},
        {"params": others, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATE, eps=EPS)
    for number in range(4):
        backward(gpt, number)
        optimizer.step()
        optimizer.zero_grad()
    return torch.nn.utils.parameters_to_vector(gpt.parameters()).detach()


# %%
right = launch.run(with_groups, ranks=1, stream=False)[0]
off = {}
for how, marked in {"by marks": True, "everything": False}.items():
    found = launch.run(with_zero, marked, ranks=2, stream=False)[0]
    off[how] = measure.gradients.relative_difference(found, right)
print({how: f"{difference:.0e}" for how, difference in off.items()})
assert off["by marks"] < 1e-5 < 1e-4 < off["everything"]

# %% [markdown]
# By marks only rounding is left. With a decay of everything the weights are off by $8 \cdot 10^{-4}$ after four updates. Marks work for whatever acts on each number separately, such as a
# learning rate for each layer.
#
# **Remember**
# - Whatever acts on each number by itself can be cut with the vector.

# %% [markdown]
# ## 8.10 PyTorch's ZeroRedundancyOptimizer
#
# Two lines give stage 1 beside DDP:
#
# ```python
# model = DistributedDataParallel(model)
# optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=3e-3)
# ```
#
# It shards by a simple rule. A *whole tensor* belongs to one rank: the largest tensor first, each to the rank that has
# least so far. DDP's all-reduce stays as it is, and then each rank broadcasts its new weights. (DDP
# averages over ranks where ours sums; only bytes are compared here.)


# %%
def with_the_library():
    """Bytes of optimizer states on this rank, and the collectives of one update."""
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    gpt = DistributedDataParallel(new_gpt())
    optimizer = ZeroRedundancyOptimizer(gpt.parameters(), torch.optim.AdamW, lr=3e-3)
    with measure.wire.log_wire() as log:
        backward(gpt, 0)
        optimizer.step()
    return scratch.gpt.ledger(gpt, optimizer.optim)["optimizer"], log.sent()


# %%
library = launch.run(with_the_library, ranks=2, stream=False)
for states, sent in library:
    print(states, sent)
(first, calls), (second, _) = library
count = sum(p.numel() for p in new_gpt().parameters())
assert first + second == 8 * count and first != second
assert calls["all-reduce"][1] == calls["broadcast"][1] == 4 * count

# %% [markdown]
# 442,368 and 440,320 bytes differ by 0.5 %, because no tensor is cut. There are 28 broadcasts,
# one for each tensor (`parameters_as_bucket_view=True` packs them into one for each rank).
#
# And the volume? Let $W$ be the bytes of all weights. A broadcast goes through a chain of ranks, and all but the last one pass it on. The $n$ ranks broadcast
# $W/n$ each, so a rank sends $(n-1)/n \cdot W$ for all of them, as in an all-gather. That makes three halves:

# %% tags=["drawing"]
G, W = "gradients", "weights"
figures.halves(
    {"DDP": [G, G], "stage 1": [G, W], "library": [G, G, W]},
    "ZeroRedundancyOptimizer (library) beside the paper's stage 1",
)

# %% [markdown]
# **Remember**
# - `ZeroRedundancyOptimizer` saves the memory of stage 1, and sends half as much again.

# %% [markdown]
# ## 8.11 One update in memory
#
# The formulas say what remains after an update. On each rank the demo `step_memory` follows every tensor *through* an update, as in chapter 3. Here is
# rank 0 of two, with 4 layers and 16 samples:

# %%
updates = demos.run("step_memory", ranks=2, model="4x64x4", batch=16, stream=False)
foretold, measured = updates.predicted, updates.measured
for name in ("stage 0", "ZeRO 1", "ZeRO 2"):
    peak = measured[name].peak_bytes
    expect(foretold[name].peak_bytes, peak, within=0.04, label=name, unit="B")

# %% tags=["drawing"]
runs = {"stage 0, measured": measured["stage 0"]}
runs["ZeRO 1, predicted"] = foretold["ZeRO 1"]
runs |= {f"ZeRO {stage}, measured": measured[f"ZeRO {stage}"] for stage in (1, 2)}
figures.memory_over_time(runs, "One update on rank 0 of 2")

# %% [markdown]
# The prediction advances layer by layer, the measurement tensor by tensor. Its peaks are within 1 % for stages 0
# and 1, and 3 % too high for stage 2: it counts a layer's whole gradients from the moment at which that layer's backward pass begins.
#
# Stage 1 halves the optimizer's part at all times. The yellow in the update is mostly a second copy of the gradients, one
# vector for each unit, on its way.
#
# Stage 2 halves the gradients as well, and yet both measured peaks are equal. They lie at the beginning of the backward pass,
# when there are no gradients yet. So in a small model with many samples, sharding gradients saves nothing *at the peak*. It
# does where the update is the fullest moment, as with large models and few samples.
#
# **Remember**
# - A stage saves memory at the peak only if what it cuts is there at the peak.

# %% [markdown]
# ## 8.12 Two panels, linked
#
# A panel is an ipywidget, so `HBox` puts two side by side and `link` makes one follow the other. At the left is chapter 3's
# bill of *one* GPU, at the right ZeRO's of one of eight. Choose another GPU or another `convention`: both panels move.

# %%
from ipywidgets import HBox, link

from course_lib.chapters.ch03_what_is_in_the_memory import panels as of_chapter_3
from course_lib.chapters.ch08_zero import panels

alone = of_chapter_3.memory(model="llama2-7b", gpu="A100, H100 80 GB")
one_of_8 = panels.zero(model="llama2-7b", stage=0, ranks=8)


def follow(panel):
    """Moves two controls of `panel` as they move in the other one."""
    return lambda moved: panel.values | {it: moved[it] for it in ("convention", "gpu")}


link((alone, "values"), (one_of_8, "values"), (follow(one_of_8), follow(alone)))
alone.layout.width = one_of_8.layout.width = "50%"
HBox([alone, one_of_8])

# %%
alone.gpu.value = "RTX 4090 24 GB"
assert one_of_8.gpu.value == alone.gpu.value

# %% [markdown]
# ## The answer
#
# One vector gives up groups of parameters, and a vector of marks brings them back. PyTorch's stage 1 sends three halves because it leaves
# DDP's all-reduce in place. And no: stages 1 and 2 have the same peak in our model, at the beginning of the backward pass, when there are no gradients to cut.

# %% [markdown] tags=["exercise"]
# ### 8.6 Implement: whose weights decay
#
# A unit's tensors are laid end to end, padded at the end to a multiple of `ranks`, and cut into equal
# parts. `sizes` has the number of elements of each tensor, and `decays` says which tensors decay. Return the marks of one
# rank's part (section 8.9): for each of its elements 1 if it decays, else 0. Padding does not decay.

# %% [raw] tags=["hints"]
# importance 2, difficulty 3
# Write the marks of the whole vector first, one for each element of each tensor.
# How large is a part when the padding counts, too? Round elements / ranks up.
# Rank r has the elements from r · part to (r + 1) · part, of the padded vector.


# %% tags=["exercise"]
def own_marks(sizes: list[int], decays: list[bool], ranks: int, rank: int) -> list[int]:
    """1 or 0 for each element of this rank's part of the vector."""
    ### BEGIN SOLUTION
    marks = []
    for size, decay in zip(sizes, decays, strict=True):
        marks += size * [int(decay)]
    part = -(-len(marks) // ranks)
    marks += (part * ranks - len(marks)) * [0]
    return marks[rank * part : (rank + 1) * part]
    ### END SOLUTION


check("8.6", own_marks)
