# %% [raw] tags=["sitting"]
# question: With how few bits does a model still train?
# importance: 2
# difficulty: 4
# group: alone

# %% [markdown]
# # 3 Fewer bits, and the allocator's diary
#
# AdamW keeps 8 bytes for each parameter. They can be 2, and an H100 multiplies matrices twice as fast in fp8 as in bf16. **With how few bits does a model still train,
# and what is lost?**
#
# By the end of this sitting you can
#
# - say how much memory an update needs beside the 16 bytes per parameter,
# - store a number in one byte so that AdamW still trains,
# - say why fp16 needs a scaled loss, why bf16 does not, and what fp8 needs,
# - read a memory snapshot and find the line that leaks.
#
# The parts can be read in any order, except that fp8 uses the scales of the 8-bit optimizer and the model of the fp16 part.

# %%
import re
import tempfile
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from course_lib import (
    demos,
    expect,
    launch,
    measure,
    predict,
    recorded,
    scratch,
    show_source,
    style,
)
from course_lib.chapters.ch03_what_is_in_the_memory import (
    figures,
    memory_history,
    snapshot,
)
from course_lib.demos.shared.text import VOCAB, Windows

launch.warm_up()
torch.set_num_threads(1)

# %% [markdown]
# ## An update needs more than sixteen bytes
#
# Section 3.3 counted what is there when an update is over. What is there *during* it? `log_memory` follows each tensor from its birth to its death:

# %%
text = Windows(sequence=64)
inputs, labels = text.batch(range(8))


def new_gpt():
    """A GPT of 112,384 parameters."""
    return scratch.gpt.GPT(layers=2, hidden=64, heads=4, vocab=VOCAB, context=64)


def updated(model, optimizer):
    """Make one update on 8 samples, and return what the ledger finds."""
    scratch.accumulation.loss_sum(model(inputs).float(), labels).backward()
    optimizer.step()
    return scratch.gpt.ledger(model, optimizer, batch=[inputs, labels])


small = new_gpt()
count = sum(p.numel() for p in small.parameters())


# %%
def bytes_of_an_update(model, optimizer):
    """Bytes per parameter: what remains after an update, and the peak during it."""
    updated(model, optimizer)  # now gradients and states exist
    kept = [value for state in optimizer.state.values() for value in state.values()]
    states = [value for value in kept if torch.is_tensor(value)]
    gradients = [p.grad for p in model.parameters()]
    with measure.peak.log_memory([*model.parameters(), *gradients, *states]) as log:
        optimizer.step()
    return log.timeline[-1] / count, log.peak_bytes / count


half = new_gpt().bfloat16()
updates = {
    "bf16, MasterAdamW": bytes_of_an_update(
        half, scratch.precision.MasterAdamW(half.parameters(), lr=1e-3)
    )
}
for way in ("foreach", "fused"):
    adamw = torch.optim.AdamW(small.parameters(), lr=1e-3, **{way: True})
    updates[f"fp32, AdamW, {way}"] = bytes_of_an_update(small, adamw)

# %% tags=["drawing"]
rows = {
    name: {"at the peak": peak, "remains": remains}
    for name, (remains, peak) in updates.items()
}
assert {round(remains) for remains, _ in updates.values()} == {16}
assert [round(peak) for _, peak in updates.values()] == [18, 20, 16]
looks = {"at the peak": style.TEMPORARY, "remains": style.STATES}
figures.grouped_bars(rows, "Bytes per parameter", "{:.1f}".format, looks)

# %% [markdown]
# Our `MasterAdamW` goes from tensor to tensor. For each it needs three fp32 temporaries (the gradient, the corrected mean and the root), 12 bytes for each of its numbers. The largest tensor has 14.6 % of this small model's
# weights, so that is $0.146 \cdot 12 = 1.75$ bytes per parameter.
#
# PyTorch's own AdamW has several ways to do the same arithmetic. On a GPU it takes `foreach` by default: all tensors in a few large operations, with a temporary as large as all weights. `fused=True` needs none.
#
# For LLaMA-2 70B the 4 bytes of `foreach` are 276 GB. They appear only after the intermediate results have been freed. So you never need room for both at once, only for the larger.
#
# A compiler avoids many temporary buffers: it fuses several operations into one, so that what passes between them is never stored. (Note 000 ascribes this to functional languages. It is the compiler's work, whatever the language.)
#
# **Remember**
# - 16 bytes per parameter remain after an update. During it `foreach` needs 4 more, and `fused` none.

# %% [markdown]
# ## Two bytes in place of eight
#
# **8-bit AdamW** keeps each of its two numbers, which are also called *moments*, in one byte, as a code from 0 to 255. How can a byte stand for $10^{-6}$ in one tensor and for 10 in another? Two things help:
#
# - **Blocks.** 256 numbers in a row share one fp32 *scale*, their largest absolute value. Divided by it, all of them lie between −1 and 1. An outlier spoils only its own block.
# - **Levels.** Each code stands for a level between −1 and 1 (between 0 and 1 for the variance, which is never negative). A value is stored as the code of its nearest level. This is **quantisation** (量化).
#
# Which levels? Take two weights in one block, with gradients 1 and 0.01. Their variances are 1 and 0.0001. On a *linear* map, with equal distances, the smallest level above 0 is $1/255 = 0.004$, so the second variance is rounded to 0. Its
# update is then lr · 0.01 / (√0 + eps): with eps $= 10^{-8}$, a million learning rates. A *dynamic* map has 128 levels between 0.1 and 1, 64 between 0.01 and 0.1, and so on down to $10^{-7}$ (Dettmers et al. 2021, arXiv:2110.02861). If a *momentum*
# is rounded to 0, that does no harm: the update is a little shorter.

# %% tags=["drawing"]
maps = {
    "linear": scratch.precision.linear_levels(signed=False),
    "dynamic": scratch.precision.dynamic_levels(signed=False),
}
curves = {
    name: [(code, level) for code, level in enumerate(levels.tolist()) if level]
    for name, levels in maps.items()
}
title = "256 levels for a variance"
figures.lines(curves, "code", "level of a variance", title, doubling=(False, True))

# %%
variances = torch.tensor([1.0, 0.0001])
for name, levels in maps.items():
    codes, scales = scratch.precision.quantise(variances, levels)
    back = scratch.precision.dequantise(codes, scales, levels)
    print(f"{name:<10}codes {codes.tolist()}, back {back.tolist()}")
    assert (back[1] == 0) == (name == "linear")

# %% [markdown]
# **Predict.** In blocks of 256, how many bytes of state does each parameter have, scales included? Give three decimals.

# %%
in_bytes = predict("3.eight_bit", "Bytes per parameter?", yours=None)

# %%
found = updated(small, scratch.precision.AdamW8bit(small.parameters(), lr=1e-3))
expect(
    2 * (1 + 4 / 256),
    found["optimizer"] / count,
    within=0.001,
    label="bytes per parameter",
    yours=in_bytes,
)

# %% [markdown]
# **Explain.** Each parameter has two codes, and 256 parameters have two scales of 4 bytes: 1.6 % more than the codes alone. (bitsandbytes has blocks of 256 since version 0.44. With the 2048 of the paper it is 0.2 %.) The
# gap, 4 parts in 10,000, comes from blocks that are not full: the 64 numbers of a norm have a scale to themselves.
#
# Does it train as well? The demo trains one small GPT five times: with fp32 AdamW, with bf16 weights without and with a master copy, and with 8-bit moments on both maps.

# %%
trained = demos.run("optimizers", ranks=1, learning_rate=3e-4, stream=False)
print(trained.report())

# %%
by_name = {version.name: version for version in trained.versions}
assert by_name["8-bit"].gap < 0.05 < 1 < by_name["8-bit, linear maps"].gap
theirs, *_ = re.findall(r"AdamW8bit: ([\d.]+) %", recorded("bitsandbytes"))
assert abs(100 * by_name["8-bit"].gap - float(theirs)) < 1

# %% [markdown]
# The last column says how far from fp32 AdamW's weights each version ends, relative to how far those have moved. With 8 bits it is 3 %. (bitsandbytes 0.50.2 trained the same GPT from the same start, recorded on a CPU: it ends 3.4 % away, and 1.7 % from ours.)
# Without a master copy small updates are lost, and the weights end up a third off. With linear maps single weights are thrown very far away, and the loss explodes.
#
# You write this optimizer in exercise 3.12. Afterwards compare yours with `show_source(scratch.precision.AdamW8bit)`.
#
# **Remember**
# - 8 bits are enough for the moments, with a scale for each block.
# - The levels must come close enough to zero that no variance is rounded to 0, since the update divides by its square root.

# %% [markdown]
# ## fp16 needs a loss scale
#
# What can a format hold? The exponent decides how far its numbers reach, and the fraction how close together they are:
#
# | format | bits of exponent | bits of fraction | rounds by at most |
# |---|---|---|---|
# | fp32 | 8 | 23 | 0.000006 % |
# | bf16 | 8 | 7 | 0.4 % |
# | fp16 | 5 | 10 | 0.05 % |
# | fp8, E5M2 | 5 | 2 | 12.5 % |
# | fp8, E4M3 | 4 | 3 | 6.3 % |

# %% tags=["drawing"]
formats = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8, E5M2": torch.float8_e5m2,
    "fp8, E4M3": torch.float8_e4m3fn,
}
limits = {name: torch.finfo(dtype) for name, dtype in formats.items()}
reach = {
    name: (limit.smallest_normal * limit.eps, limit.smallest_normal, limit.max)
    for name, limit in limits.items()
}
fp16 = limits["fp16"]
figures.number_ranges(reach, "How far the numbers of each format reach")

# %% [markdown]
# bf16 reaches as far as fp32. fp16 reaches only from $6 \cdot 10^{-8}$ to 65,504. In the yellow part a number loses digits one by one, and below its left end it becomes 0: **underflow** (下溢). Beyond the right end it becomes
# infinite: **overflow** (上溢). (E4M3 has no infinity. There a number is cut to 448 or becomes NaN.)
#
# V100 and T4 multiply matrices fast in fp16 and not in bf16. Is its range enough? Take an untrained GPT that reads 8 · 64 tokens of a text with 128 different characters. Its loss is the mean over the tokens. fp16's smallest number
# with all its digits is $6.1 \cdot 10^{-5}$.
#
# **Predict.** How large is the gradient of a logit that belongs to a wrong character, divided by $6.1 \cdot 10^{-5}$?

# %%
typical = predict("3.logit_gradient", "Gradient / smallest full number?", yours=None)

# %%
torch.manual_seed(0)
gpt = new_gpt()


def loss_of_gpt():
    """The mean loss of the 8 samples."""
    return cross_entropy(gpt(inputs).flatten(0, 1), labels.flatten())


flowing = measure.gradients.flowing_gradients(gpt, loss_of_gpt)
of_logits = flowing[: 8 * 64 * VOCAB]  # the head comes first in the backward pass
expect(
    1 / 128 / 512 / fp16.smallest_normal,
    of_logits.abs().median() / fp16.smallest_normal,
    within=0.05,
    label="gradient / smallest full number",
    yours=typical,
)

# %% tags=["drawing"]
figures.number_ranges(
    {name: reach[name] for name in ("bf16", "fp16", "fp8, E4M3")},
    "Where a typical gradient lies",
    {"gradient of a logit": of_logits.abs().median().item()},
)

# %% [markdown]
# **Explain.** A quarter. With softmax and cross-entropy, the gradient of a wrong character's logit is the character's probability. An untrained model gives each of 128 characters the same, $p = 1/128$. The mean over 512 tokens divides it by
# 512: $1.5 \cdot 10^{-5}$. In fp16 this number lies in the yellow part and has lost two of its eleven digits. And this is only the beginning. Gradients shrink on their way back through the layers, they shrink as the model learns, and a real micro-batch of
# 8,192 tokens divides by 16 times as much.
#
# The remedy is **loss scaling** (损失缩放). Multiply the loss by 65,536 before the backward pass. By the chain rule every gradient is multiplied by 65,536 as well and moves up by 16 binary places, into fp16's range. Divide by it before the update.
#
# Which scale is right? The largest that does not overflow. So double it from time to time, and when a gradient overflows, halve it and leave out that update. (Scaled losses: arXiv:1710.03740, section 3.2. The rule for the scale is that of PyTorch's
# `GradScaler`.)

# %%
show_source(scratch.precision.LossScaler)

# %% [markdown]
# `torch.amp.GradScaler` follows the same rules. It starts at 65,536, and doubles after 2000 updates in a row without an overflow. Here the scale doubles after 6, so that we can see it at work:

# %%
torchs = torch.amp.GradScaler("cpu")
assert (torchs.get_scale(), torchs.get_growth_interval()) == (65_536, 2000)
assert (torchs.get_growth_factor(), torchs.get_backoff_factor()) == (2, 0.5)

# %%
scaler = scratch.precision.LossScaler(growth_interval=6)
adamw = torch.optim.AdamW(gpt.parameters(), lr=1e-3)
scales, done = [], []
for update in range(60):
    few_inputs, few_labels = text.batch(range(2 * update, 2 * update + 2))
    adamw.zero_grad()
    with torch.autocast("cpu", torch.float16):
        logits = gpt(few_inputs).flatten(0, 1)
    loss = cross_entropy(logits.float(), few_labels.flatten())
    scales.append(scaler.scale)
    scaler.scaled(loss).backward()
    done.append(scaler.step(adamw))
print(f"{done.count(False)} of {len(done)} updates left out; loss now {loss:.2f}")
assert max(scales) > 65_536 and 0 < done.count(False) < 12
assert loss < 3.5 < 4.8  # 4.8 = ln 128, an untrained model

# %% tags=["drawing"]
figures.lines(
    {"scale": list(enumerate(scales))},
    "update",
    "loss scale",
    "The loss scale climbs until a gradient overflows",
    doubling=(False, True),
)

# %% [markdown]
# The scale climbs until a gradient overflows, is halved, and climbs again. With 2000 in place of 6, one update in some two thousand is lost. So a single "loss scale reduced" in a log is no alarm, but several in a row are.
#
# What did the scale save? Here are the gradients of the trained model, computed in fp32, and the part of them that fp16 would spoil:

# %%
flowing = measure.gradients.flowing_gradients(gpt, loss_of_gpt).abs()
flowing = flowing[flowing > 0]


def share_below(border, scale):
    """Percent of the gradients that are below the border when they are scaled."""
    return 100 * (flowing * scale < border).float().mean().item()


half_of_smallest = fp16.smallest_normal * fp16.eps / 2
spoiled = {"digits lost": fp16.smallest_normal, "becomes 0": half_of_smallest}
for scale in (1, 65_536):
    shares = {name: share_below(border, scale) for name, border in spoiled.items()}
    print(
        f"scale {scale:>6,}:",
        {name: f"{share:.1f} %" for name, share in shares.items()},
    )
assert share_below(half_of_smallest, 1) > 5 > 0.5
assert share_below(half_of_smallest, 65_536) < 0.5
assert share_below(fp16.smallest_normal, 1) > 95
assert share_below(limits["bf16"].smallest_normal, 1) == 0

# %% tags=["drawing"]
figures.lines(
    {
        name: [(power, share_below(border, 2**power)) for power in range(0, 21, 2)]
        for name, border in spoiled.items()
    },
    "loss scale, as a power of two",
    "% of the gradients",
    "Gradients that fp16 spoils",
    mark={"65,536": 16},
)

# %% [markdown]
# Without a scale 99 % of the gradients lose digits, and one in nine becomes 0. With a scale of 65,536 it is 1.5 % and 0.1 %. In bf16 nothing is lost without any scale, which is why bf16 took fp16's place as soon as GPUs had it.
#
# If you must use fp16, mind two traps. Clip gradients only after dividing by the scale (`scaler.unscale_(optimizer)` first). And keep one scale for all micro-batches of an update.
#
# **Remember**
# - fp16 reaches down to $6 \cdot 10^{-8}$ only, so the loss is scaled: up while nothing overflows; down, with one update left out, when something does. bf16 needs no scale.

# %% [markdown]
# ## 3.7 fp8: a scale for every tensor, or for every block
#
# An H100 multiplies matrices in fp8 twice as fast as in bf16 (data sheet: 1,979 against 989 TFLOP/s). The smallest E4M3 number with all its digits is 0.016, so now every tensor needs a scale of its own. You have everything for it: fp8 is another set of
# levels for the blocks of the 8-bit optimizer.

# %%
show_source(scratch.precision.fp8_levels)

# %% [markdown]
# **Predict.** E4M3 has three bits of fraction, so rounding is off by at most 1/16 = 6.25 %. Take a weight matrix of our GPT, with one scale for all of it. By how many percent is it off as a whole (the length of the error over the length of the matrix)?

# %%
off = predict("3.fp8", "Percent off?", yours=None, unit="%")

# %%
from course_lib.theory import rounding


def rounded(values, levels, block=None):
    """The values as `levels` has them; one scale for each block, or for all."""
    block = block or values.numel()
    codes, scales = scratch.precision.quantise(values, levels, block)
    return scratch.precision.dequantise(codes, scales, levels, block)


weights = gpt.blocks[0].mlp[0].weight.detach()
e4m3 = scratch.precision.fp8_levels(torch.float8_e4m3fn)
expect(
    100 * rounding.typical_rounding("fp8_e4m3"),
    100 * measure.gradients.relative_difference(rounded(weights, e4m3), weights),
    within=0.05,
    label="off in E4M3",
    unit="%",
    yours=off,
)

# %% [markdown]
# **Explain.** Just below 2.7 %, less than half of the worst case. Most numbers lie nearer to a level than the worst one does. And a number just below a power of two is large compared with its rounding step. E5M2 has one bit of fraction less, so its error is
# twice as large.
#
# Does a model still learn? The demo `fp8` rounds both operands of each product of a linear layer, forward and backward: inputs and weights to E4M3, gradients to E5M2, each tensor with its own scale. Then it multiplies in fp32. This *emulates* fp8: it shows what the rounding does to
# the loss, and says nothing about speed.

# %%
show_source(scratch.precision.round_to)

# %% [markdown]
# **Predict.** A small GPT makes 150 updates, in fp32 and with the products of its layers in fp8. Embedding, head, norms and attention stay in fp32. By what factor is the loss of fp8 higher at the end?

# %%
higher = predict("3.fp8_training", "Loss in fp8 / in fp32?", yours=None)

# %%
rounding_run = demos.run("fp8", ranks=1, stream=False)
ends_at = rounding_run.last
ratio = ends_at["fp8"] / ends_at["fp32"]
expect(1, ratio, within=0.02, label="fp8 / fp32", yours=higher)

# %%
print(rounding_run.report())
zeros = share_below(2.0**-16 / 2, 1)  # half of the smallest number of E5M2
print(f"{zeros:.0f} % of the gradients of the fp16 part become 0 in E5M2")
assert zeros > 60 and ends_at["fp8, no scale"] > 1.1 * ends_at["fp32"]
assert abs(ends_at["bf16"] / ends_at["fp32"] - 1) < 0.01
figures.loss(rounding_run.losses)

# %% [markdown]
# **Explain.** 0.3 % higher in fp8, and less than 0.1 % in bf16. (With seeds 0 to 4, fp8 ends between 0.1 % below and 0.5 % above.) The errors have both signs, and in a sum of 64 or more products most of them cancel. Without a scale the loss ends 18 % above (with the other seeds up to 21 %): the gradients are too small, four in five become 0, and the layers hardly learn.
#
# What does a scale for each *block* add? It helps tensors in which a few numbers are far larger than the rest. In large language models the activations have such features (Dettmers et al. 2022, arXiv:2208.07339). Multiply one feature of 64 by a factor, and
# see how far the *other* 63 are off:

# %%
torch.manual_seed(0)
activations = torch.randn(512, 64)
others = torch.arange(64) != 7


def error_of_others(factor, levels, block=None):
    """Percent by which the other features are off when feature 7 is so much larger."""
    larger = activations.clone()
    larger[:, 7] *= factor
    found = rounded(larger, levels, block)[:, others]
    return 100 * measure.gradients.relative_difference(found, larger[:, others])


int8 = scratch.precision.linear_levels(signed=True)
ways = {
    "int8, one scale": (int8, None),
    "E4M3, one scale": (e4m3, None),
    "E4M3, blocks of 16": (e4m3, 16),
}
errors = {
    name: [(4.0**power, error_of_others(4.0**power, *way)) for power in range(11)]
    for name, way in ways.items()
}
last = {name: curve[-1][1] for name, curve in errors.items()}
assert errors["int8, one scale"][4][1] > 40  # 256 times as large
assert errors["E4M3, one scale"][6][1] < 3  # 4096 times
assert last["E4M3, blocks of 16"] < 60 < 95 < last["E4M3, one scale"]

# %% tags=["drawing"]
figures.lines(
    errors,
    "factor of one feature",
    "other features off, %",
    "What one large feature does to the others",
    doubling=(True, False),
)

# %% [markdown]
# int8 has equal distances: when the feature is 256 times as large as the others, the others are lost. E4M3 has an exponent in each number and notices nothing until the factor is some ten thousand. Beyond that the others underflow. Blocks keep the damage in the block where it happens: here
# 15 of the 63 others.
#
# So there are two schools. NVIDIA's Transformer Engine began with one scale per tensor, E4M3 in the forward pass, and E5M2 for gradients, since it reaches further (its recipe's `Format.HYBRID`). DeepSeek-V3 was trained with a scale for each block, and E4M3
# everywhere (arXiv:2412.19437, section 3.3):
#
# | | in |
# |---|---|
# | the three products of each linear layer (forward, and two backward) | E4M3; a scale for each 1 × 128 activations and each 128 × 128 weights |
# | embedding, head, router, norms, attention | bf16 or fp32 |
# | master weights, gradients | fp32 |
# | Adam's two numbers | bf16 |
#
# Its loss stayed within 0.25 % of that in bf16. GPUs of the Blackwell generation multiply numbers with block scales in hardware: *mxfp8*, one scale, a power of two, for 32 numbers (arXiv:2310.10537), and *nvfp4*, numbers of 4 bits with an E4M3 scale for
# 16 of them and one fp32 scale for the tensor (arXiv:2509.25149).
#
# The products could be twice as fast, but a whole update gains less. torchtitan trained Llama 3.1 8B on eight H100s at 6,667 tokens a second per GPU in bf16, and at 8,532 with linear layers in fp8. The runs took 77.0 and 76.8 GiB
# (benchmarks/llama3_h100_202412_torchtitan.md in its repository, table 1, compiled). **28 % faster, and no memory saved**: the weights that are kept, and most activations, are not in fp8.
#
# **Remember**
# - fp8 products save time, and hardly any memory.
# - E4M3 rounds by 2.7 %, and the loss hardly notices. It is for the inputs of matrix products, with a scale for each tensor or block.

# %% [markdown]
# ## The allocator's diary
#
# On a GPU the allocator can write down what it does. `torch.cuda.memory._record_memory_history()` starts that, and `torch.cuda.memory._dump_snapshot("file.pickle")` saves a **memory snapshot** (内存快照): every block of memory, with the stack of calls that
# asked for it. The page pytorch.org/memory_viz draws such a file. It cannot say what a block is *for*.
#
# `figures.snapshot("file.pickle")` can, from two facts. The stack shows in which phase a block was born, and the rest of the diary in which phase it died. Born forward and dead forward: a temporary buffer. Born forward and dead backward: an intermediate result. Born backward and
# alive in the update: a gradient. Where neither fact decides, it says "not known".
#
# For a machine without a GPU the course keeps the same diary of the CPU's tensors. Here is a training loop with a mistake:


# %%
def train(steps, seen):
    """Train a small GPT, and keep the logits for statistics at the end."""
    model = new_gpt()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(steps):
        inputs, labels = text.batch(range(8 * step, 8 * step + 8))
        logits = model(inputs).flatten(0, 1)
        loss = cross_entropy(logits, labels.flatten())
        loss.backward()
        seen.append(logits.detach())
        optimizer.step()
        optimizer.zero_grad()


# %% [markdown]
# **Predict.** The loop makes 5 steps of 8 samples of 64 characters, with a vocabulary of 128. How many MB are there at its end that should not be?

# %%
too_much = predict("3.leak", "MB that leak?", yours=None, unit="MB")

# %%
seen = []
with memory_history.record_history() as diary:
    train(5, seen)
path = Path(tempfile.mkdtemp()) / "leaking.pickle"
path.write_bytes(snapshot.snapshot_pickle(diary.events))  # the format of torch
(leak,) = snapshot.read_snapshot(path.read_bytes()).leaks
leaks = leak.size_bytes / 1e6
expect(5 * 8 * 64 * 128 * 4 / 1e6, leaks, label="the leak", unit="MB", yours=too_much)

# %%
print(leak.explain())
figures.snapshot(path)

# %% [markdown]
# **Explain.** Blocks that the same line makes in every step, and that never die, are a **memory leak** (内存泄漏). Here they are the logits, $4\,sbv$ bytes a step. The figure names the function and the line that made them. (In a notebook the line counts from the top of its cell.)
# The list `seen` keeps them.
#
# Snapshots work in the other direction as well. A *predicted* step becomes a snapshot for torch's viewer, or a trace for ui.perfetto.dev, before you have rented the GPU:

# %%
import json

from course_lib.theory import RECIPES, Job, Layout, TransformerShape, step_timeline

shape = TransformerShape(2, 64, 4, 256, VOCAB, 64)
run = step_timeline(Job(shape, RECIPES["fp32-16"], Layout()), overhead_bytes=0)
predicted_file = snapshot.snapshot_pickle(snapshot.timeline_events(run))
assert max(snapshot.read_snapshot(predicted_file).totals) == run.peak_bytes
trace = json.loads(snapshot.chrome_trace(run.phases, run.sizes))
print(f"{len(predicted_file):,} B of snapshot, {len(trace['traceEvents'])} events")

# %% [markdown]
# If gaps are the trouble, look at the allocator's settings. Older versions of PyTorch call the variable `PYTORCH_CUDA_ALLOC_CONF`, newer ones `PYTORCH_ALLOC_CONF`, and 2.9.1 silently ignores the new name (pytorch issue 183387). Ask `torch.cuda.memory._snapshot()["allocator_settings"]` whether
# `expandable_segments` took effect. Compare maxima with maxima: in the run of section 3.5, with 127 GiB reserved at most, 61 GiB of tensors were alive *after* an update. That is little more than the model states (7.6 billion parameters × 16 bytes over two GPUs, 57 GiB), and the quotient of the two numbers
# does not measure gaps.
#
# **Remember**
# - A memory snapshot says who asked for each block. Blocks that one line makes in every step and that stay are a leak.

# %% [markdown]
# ## Where to find it in libraries
#
# | here | elsewhere |
# |---|---|
# | `MasterAdamW` | Megatron-LM `--bf16`, DeepSpeed `"bf16": {"enabled": true}`; FSDP keeps fp32 shards and casts what it gathers (chapter 9) |
# | autocast | `torch.autocast("cuda", torch.bfloat16)`; Hugging Face's Trainer `--bf16` |
# | `LossScaler` | `torch.amp.GradScaler`; DeepSpeed `"fp16"` with `initial_scale_power` and `loss_scale_window` |
# | `AdamW8bit` | `bitsandbytes.optim.AdamW8bit`, `torchao.optim.AdamW8bit` |
# | `round_to` with fp8 | Transformer Engine's recipes (`Float8CurrentScaling`, `Float8BlockScaling`), torchao's `convert_to_float8_training` |
# | `log_memory`, `record_history` | `torch.cuda.max_memory_allocated`, `torch.cuda.memory._record_memory_history` |

# %% [markdown]
# ## The answer
#
# 8 bits are enough for AdamW's two numbers, if each block of 256 has a scale and the levels come close to zero: 2 bytes per parameter in place of 8, and weights that end 3 % away from those of fp32. 8 bits are enough for matrix products as well, with a scale for each tensor or block: the loss ends
# 0.3 % higher here. fp16 trains with a scaled loss, and bf16 without one. But weights need more: without an fp32 master copy they end a third off.
#
# **Read on.** Dettmers et al. 2021, *8-bit Optimizers via Block-wise Quantization* (arXiv:2110.02861). Micikevicius et al., *Mixed Precision Training* (arXiv:1710.03740) and *FP8 Formats for Deep Learning* (arXiv:2209.05433).

# %% [markdown] tags=["exercise"]
# ### 3.12 Build: moments of one byte
#
# Write the 8-bit optimizer of section 3.3: `quantise`, `dequantise`, and AdamW that keeps its moments so. A block is `block` values in a row of the flattened tensor; the last one may be shorter.
# `levels` are sorted. Both maps are given, as `linear_levels(signed)` and `dynamic_levels(signed)`: choose one for each moment. `mine.adamw_update` is yours from 3.11, or the course's. (On a GPU, move `levels` to where the values are.)
#
# The check quantises tensors whose sizes no block divides, counts the bytes, and trains a small GPT beside fp32 AdamW. What passes is kept as `mine/eight_bit.py`, and runs in `course demo optimizers --parts mine`.

# %% [raw] tags=["hints"]
# importance 2, difficulty 5
# Flatten, fill the last block with zeros (`torch.nn.functional.pad`), and make it a table of one block a row. A block of zeros has scale 0: divide by something else there.
# Between two neighbouring levels lies the border at which the nearer one changes; `torch.bucketize(shares, borders)` counts the borders below each share.
# dequantise: `levels[codes.int()]`, times `scales.repeat_interleave(block)` without what is too much at the end.
# One update of a tensor: dequantise both moments, `mine.adamw_update(…)`, quantise both. Which of the two is divided by, and what happens to its small numbers on either map?

# %% tags=["exercise"]
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from course_lib import mine
from course_lib.scratch.precision import dynamic_levels, linear_levels

### BEGIN GIVEN


def quantise(values: Tensor, levels: Tensor, block: int = 256) -> tuple[Tensor, Tensor]:
    """Codes, uint8 in the shape of `values`, and scales, fp32: one for each block.

    A scale is the largest absolute value of its block; a code is the number of the level
    that is nearest to value / scale. A block may be all zeros.
    """
    ...


def dequantise(
    codes: Tensor, scales: Tensor, levels: Tensor, block: int = 256
) -> Tensor:
    """The values that codes and scales stand for, in the shape of `codes`."""
    ...


class AdamW8bit:
    """AdamW for fp32 weights that keeps its moments quantised between updates.

    `self.state` is a dict: for each parameter a dict with the tensors "momentum" and
    "variance" (codes), "momentum_scales" and "variance_scales", and what else you need
    that is no tensor.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float,
        weight_decay: float = 0.01,
        block: int = 256,
    ) -> None:
        """Both moments begin at zero. `parameters` may be an iterator."""
        ...

    @torch.no_grad()
    def step(self) -> None:
        """One update by the gradients in `.grad`; a weight without one stays as it is."""
        ...


### END GIVEN
### BEGIN SOLUTION
from course_lib import show_source
from course_lib.scratch.precision import AdamW8bit, dequantise, quantise

### END SOLUTION

check("3.12", [quantise, dequantise, AdamW8bit])

# %% [markdown] tags=["exercise"]
# ### 3.13 Calculate: a scale that went up and down
#
# A run in fp16 uses torch's `GradScaler` as it comes. Its first three batches overflow, the next 6,000 do not, then one does, then 1,999 do not. "The scale was reduced four times," says a
# colleague, "and with 2,000 batches between two doublings it must be 65,536 / 16 = 4,096 by now." Which scale will the next batch have, and how many updates has the optimizer made?

# %% [raw] tags=["hints"]
# importance 2, difficulty 2
# Start at 65,536 and go from one stretch of batches to the next. How many doublings do 6,000 good batches bring?
# 2,000 good batches in a row double the scale; an overflow sets the count back to 0, and that batch makes no update.

# %% tags=["exercise"]
scale, updates = ..., ...
### BEGIN SOLUTION
scale = (
    65_536 / 2**3 * 2**3 / 2
)  # three down, three up, one down; 1,999 are one too few
updates = 6_000 + 1_999
### END SOLUTION
check("3.13", [scale, updates])
