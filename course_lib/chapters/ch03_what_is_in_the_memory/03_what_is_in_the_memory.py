# %% [markdown]
# # 3 What is in the memory
#
# LLaMA-2 7B is a file of 13.5 GB. Your card has 24 GB. Why does training stop with "CUDA out
# of memory" before the first batch is through, and why would an 80 GB card stop too?
#
# Because the weights are the small part. By the end of this chapter you can
#
# - name the seven consumers of a GPU's memory (显存) and compute each in bytes,
# - say why one tool counts 16 bytes per parameter, another 18, a third 20, and which is right,
# - tell GB from GiB before it costs you 7 %,
# - say what bf16, autocast, fp16 and fp8 save, and what they do not,
# - decide whether a model fits, before renting the GPU.
#
# Time: about two hours, with a good place for a break before section 3.5, and as long again for the exercises, two of which are optimizers that you write. You need chapter 1. Everything here is for one GPU; how several
# GPUs share the load is the subject of chapters 8 to 13.

# %%
import re
from dataclasses import replace

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
from course_lib.theory import (
    RECIPES,
    Job,
    Layout,
    Recipe,
    TransformerShape,
    layer_walk,
    logit_count,
    loss_copies,
    memory_moments,
    model_states,
    models,
    rounding,
    step_timeline,
    training_memory,
    units,
)

launch.warm_up()
torch.set_num_threads(1)

# %% [markdown]
# ## 3.1 Billions, GB and GiB
#
# A **parameter** (参数) is one number that training changes. Nearly all of them are *weights*, each of which says how strongly one number of a
# layer's input affects one number of its output. Some models add a *bias* (偏置) to each output. Of GPT-2's 124 million parameters
# 102,144 are biases, less than a thousandth, and LLaMA has none.
#
# Names of models say how many parameters they have. **B** is billion, $10^9$ (十亿);
# **M** is million, $10^6$ (百万). "70b" means about $70 \times 10^9$ parameters, "124M" about $124
# \times 10^6$. The names are rounded, sometimes generously:

# %%
for name, label in (("llama2-7b", "7b"), ("llama2-13b", "13b"), ("llama2-70b", "70b")):
    exact = models.MODELS[name].parameters().total
    off = exact / units.parse_count(label) - 1
    print(f"{name:<12}{exact:>16,}   {off:+.1%} against its name")

assert models.MODELS["llama2-70b"].parameters().total == 68_976_648_192

with torch.device("meta"):  # shapes only, no memory
    gpt2 = scratch.gpt.GPT(layers=12, hidden=768, heads=12, vocab=50257, context=1024)
named = gpt2.named_parameters()
assert sum(p.numel() for name, p in named if name.endswith("bias")) == 102_144

# %% [markdown]
# Memory has two units that look alike:
#
# - **GB** (gigabyte) is $10^9$ bytes. Disks, networks and data sheets use it.
# - **GiB** (gibibyte) is $2^{30} = 1{,}073{,}741{,}824$ bytes, 7.4 % more. PyTorch's error messages
#   ("tried to allocate 2.00 GiB") and `nvidia-smi` (in MiB, $2^{20}$) use it.
#
# 24.92 GB are 23.21 GiB. Mix them up, and a plan with 5 % to spare has 2 % too little. This
# course computes in bytes and writes the unit out. In sums by hand a card's "80 GB"
# is $80 \times 10^9$ bytes, the cautious reading. What a card reports may be more: an A100 or H100 85 GB, an H200, sold with 141 GB,
# 143,771 MiB = 150.8 GB. Planners count with that.

# %%
states_bytes = 24_921_779_200
print(
    units.format_bytes(states_bytes, "GB"), "=", units.format_bytes(states_bytes, "GiB")
)
assert round(units.gib(states_bytes), 2) == 23.21

# %% [markdown]
# **Remember**
# - B is $10^9$, M is $10^6$. GB is $10^9$ bytes, GiB is $2^{30}$: 7.4 % apart.

# %% [markdown]
# ## 3.2 Seven consumers
#
# While a GPU trains, seven kinds of things are in its memory:
#
# | | consumer | grows with | lives |
# |---|---|---|---|
# | 1 | weights (权重) | parameters | always |
# | 2 | gradients (梯度) | parameters | backward to update |
# | 3 | optimizer states (优化器状态), and a master copy where there is one (section 3.3) | parameters | always |
# | 4 | inputs and labels (标签) | batch × sequence | one micro-step |
# | 5 | intermediate results, or activations (激活值) | batch × sequence × width × layers | forward to backward |
# | 6 | temporary buffers (临时缓冲区) | the largest single operation | one operation |
# | 7 | framework overhead: what CUDA and NCCL, the library for messages between GPUs, need for themselves | hardly at all | always |
#
# The first three are called the **model states**. They depend only on the number of parameters and
# on a few choices, so they are computed exactly. Gradients and optimizer states are sometimes
# listed among the "intermediate results". They are not: they survive the micro-step.
#
# Here is the bill for GPT-2 1.5B, micro-batch 1, everything in fp32:

# %%
gpt2_xl = models.MODELS["gpt2-1.5b"]
bill = training_memory(gpt2_xl, RECIPES["fp32-16"], micro_batch=1)
print(bill.explain("GB"))
figures.consumers(
    bill, title="GPT-2 1.5B, fp32, AdamW, micro-batch 1", capacity_bytes=24 * units.GB
)

# %% [markdown]
# It does not fit into 24 GB, and no trick with the batch can help: the model states alone are
# 24.92 GB. This is a published case. The authors of an article (huggingface.co/blog/pytorch-fsdp) could train
# GPT-2 1.5B on two cards with 23.65 GiB of usable memory each only after dividing the states
# between the cards.

# %%
assert bill.model_states_bytes == 16 * gpt2_xl.parameters().total == states_bytes

# %% [markdown]
# ### One update, point by point
#
# The last column of the table says when each consumer is there. Let us watch. A GPT of 4 layers, in which 64 numbers stand for each token, has
# 0.85 MB of weights in fp32. It trains with the optimizer AdamW on 4 samples of 64 characters. It has made one update, and now it makes the second.
#
# **Predict.** When is most in memory: at the beginning, in the middle or at the end of the update? And how many MB is it then? You have
# no formula yet; guess how many times the weights.

# %%
most = predict("3.over_time", "MB at the fullest point?", yours=None, unit="MB")

# %% [markdown]
# **Measure.** `one_step` follows the memory of every tensor from birth to death, and sorts it by what it was for: what becomes
# a parameter's `.grad` is a gradient, what autograd keeps in the forward pass is an intermediate result.

# %%
show_source(measure.memory_over_time.one_step)

# %%
four = scratch.gpt.GPT(layers=4, hidden=64, heads=4, vocab=VOCAB, context=64)
inputs, labels = Windows(sequence=64).batch(range(4))
adamw = torch.optim.AdamW(four.parameters(), fused=True)


def loss_of_batch():
    """The mean loss of the 4 samples."""
    return cross_entropy(four(inputs).flatten(0, 1), labels.flatten())


first, second = [
    measure.memory_over_time.one_step(four, adamw, loss_of_batch, [inputs, labels])
    for _ in range(2)
]

# %%
# torch's habits with the logits and the gradients: section 3.4
in_torch = replace(RECIPES["fp32-16"], loss="eager", gradient_life="backward")
four_layers = Job(
    TransformerShape(layers=4, hidden=64, heads=4, ffn=256, vocab=VOCAB, context=64),
    in_torch,
    Layout(micro_batch=4),
)
run = step_timeline(four_layers, overhead_bytes=0)
expect(
    run.peak_bytes / 1e6,
    second.peak_bytes / 1e6,
    within=0.02,
    label="fullest point",
    unit="MB",
    yours=most,
)

# %%
figures.memory_over_time(
    {"predicted": run, "measured": second}, "One update of a small GPT"
)

# %% [markdown]
# **Explain.** In the middle, when the backward pass begins: 8.6 times the weights. Two things are there all the time, weights and
# the optimizer's states. The intermediate results are a mountain: layer by layer they pile up in the forward pass, and layer by layer they
# go in the backward pass, while the gradients come. When the update begins, they are gone.
#
# The measured mountain is rougher. The small yellow teeth are temporary buffers of single operations, which theory counts
# at a few points only.
#
# Walk over it yourself. At each step, before you move on, say what comes next and what goes. Then set `recompute` to full, which is
# the subject of chapter 4: what becomes of the mountain?

# %%
from course_lib.chapters.ch03_what_is_in_the_memory import steppers

steppers.memory_step()

# %% [markdown]
# Answer: with `recompute` the layers keep only their inputs, and most of the mountain is gone. In the backward pass one layer at a time comes back.
#
# The very *first* update is different: AdamW creates its state when it first needs it. So a job may get
# through its first forward and backward pass, and run out of memory in the update, or in the second step.

# %%
figures.memory_over_time({"first update": first, "second update": second})

# %%
assert first.sizes["optimizer"][0] == 0 < first.sizes["optimizer"][-1]
expect(
    step_timeline(four_layers, first_update=True, overhead_bytes=0).peak_bytes,
    first.peak_bytes,
    within=0.02,
    label="peak of the first update",
    unit="B",
)

# %% [markdown]
# ## 3.3 Bytes per parameter
#
# How do 1.5 billion parameters become 24.9 GB? Four things of 4 bytes each:
#
# weight 4 + gradient 4 + Adam's momentum 4 + Adam's variance 4 = **16 bytes per parameter**.
#
# **Adam** and **AdamW** keep two numbers per parameter: a running mean of the gradient (momentum, 动量)
# and a running mean of its square (variance, 方差). So the optimizer takes twice as much as
# the weights, if those are fp32. Other optimizers take less:
#
# | optimizer | state per parameter | remark |
# |---|---|---|
# | SGD | 0 B | plain SGD keeps nothing |
# | SGD with momentum | 4 B | one fp32 number |
# | AdamW | 8 B | two fp32 numbers |
# | 8-bit AdamW (bitsandbytes) | 2 B | two one-byte numbers, and a little more: see below |
#
# Check it: take a small GPT in fp32 and make one update. A ledger goes through the tensors that training keeps and
# adds up their bytes:

# %%
show_source(scratch.gpt.ledger)

# %%
small = scratch.gpt.GPT(layers=2, hidden=64, heads=4, vocab=VOCAB, context=64)
count = sum(p.numel() for p in small.parameters())
assert count == TransformerShape(2, 64, 4, 256, VOCAB, 64).parameters().total == 112_384
text = Windows(sequence=64)
inputs, labels = text.batch(range(8))


def ledger_after_one_update(model, optimizer):
    """Bytes by consumer after one update on 8 samples."""
    scratch.accumulation.loss_sum(model(inputs).float(), labels).backward()
    optimizer.step()
    return scratch.gpt.ledger(model, optimizer, batch=[inputs, labels])


found = ledger_after_one_update(small, torch.optim.AdamW(small.parameters(), lr=1e-3))
expect(8 * count, found["optimizer"], label="AdamW's state", unit="B")
found

# %% [markdown]
# The gap is zero, to the byte. The same for the first three optimizers of the table:

# %%
optimizers = {
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-3),
    "momentum": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3),
}
ledgers = {}
for name, make in optimizers.items():
    small.zero_grad()
    ledgers[name] = ledger_after_one_update(small, make(small.parameters()))
    recipe = Recipe("fp32", "fp32", optimizer=name, master_copy=False)
    predicted = training_memory(
        TransformerShape(2, 64, 4, 256, VOCAB, 64), recipe, micro_batch=8
    ).consumers
    for consumer, size in ledgers[name].items():
        assert size == predicted[consumer]
figures.stacked_bars(ledgers, "Measured after one update", units.format_bytes)

# %% [markdown]
# ### Mixed precision: does bf16 halve the bill?
#
# Large models compute in **bf16**, 2 bytes a number. Many programs keep weights and gradients in it as well, and use fp32 only where its digits
# matter. Training with several formats is called **mixed precision** (混合精度).
#
# **Predict.** We cast the whole small GPT to bf16 and hand it to torch's AdamW. How many bytes per parameter do weights, gradients
# and AdamW's state take together?

# %%
cast = predict("3.all_in_bf16", "Bytes per parameter?", yours=None)

# %%
short = scratch.gpt.GPT(
    layers=2, hidden=64, heads=4, vocab=VOCAB, context=64
).bfloat16()
found = ledger_after_one_update(short, torch.optim.AdamW(short.parameters(), lr=1e-3))
expect(
    Recipe(optimizer="adamw-bf16", master_copy=False).bytes_per_parameter,
    sum(list(found.values())[:3]) / count,
    label="bytes per parameter",
    yours=cast,
)

# %% [markdown]
# **Explain.** 8 bytes, half of 16: torch's AdamW gives its two numbers the precision of the weights, $2 + 2 + (2 + 2)$.
#
# It is a bad bargain, and here is why. bf16 has 8 binary digits. The next number after 1.0
# is 1.0078. An update of 0.001 is rounded away:

# %%
weight = torch.tensor(1.0, dtype=torch.bfloat16)
print(weight + 0.001)
assert weight + 0.001 == 1.0

# %% [markdown]
# So a **master copy** (主权重副本) of the weights is kept in fp32. Updates go there, and the result is
# rounded into the bf16 weights.
#
# Here is the whole of it, with AdamW's arithmetic written out. Follow one weight through its first update, with
# gradient 0.5: the momentum becomes $0.1 \cdot 0.5 = 0.05$ and the variance $0.001 \cdot 0.25 = 0.00025$. Both are too small,
# since they began at zero. Divided by $1 - 0.9$ and $1 - 0.999$ they are 0.5 and 0.25, and the weight moves by
# lr $\cdot\, 0.5 / \sqrt{0.25}$, one learning rate. You build this yourself in exercise 3.11, and may want to
# do so before you read the course's version.

# %%
show_source(scratch.precision.adamw_update, scratch.precision.MasterAdamW)

# %% [markdown]
# **Predict.** Adam's two numbers are fp32 now, like the master copy. How many bytes per parameter are there in all?

# %%
total = predict("3.with_master_copy", "Bytes per parameter?", yours=None)

# %%
half = scratch.gpt.GPT(layers=2, hidden=64, heads=4, vocab=VOCAB, context=64).bfloat16()
mixed = ledger_after_one_update(
    half, scratch.precision.MasterAdamW(half.parameters(), lr=1e-3)
)
expect(
    RECIPES["mixed-16"].bytes_per_parameter,
    sum(list(mixed.values())[:3]) / count,
    label="bytes per parameter",
    yours=total,
)
expect((4 + 8) / 2, mixed["optimizer"] / mixed["weights"], label="optimizer / weights")
assert torch.get_float32_matmul_precision() == "highest"  # fp32 products, no TF32

# %% [markdown]
# **Explain.** $2 + 2 + (4 + 8) = 16$, the same 16 as in fp32. What bf16 saves is in the
# intermediate results, and in time: an A100 multiplies at up to 312 TFLOP/s in bf16, and at 19.5 in
# fp32, PyTorch's default (data sheet; 156 in TF32, which is fp32 with fewer digits). The optimizer's part is six times the
# weights. **Adam outweighs the model.**
#
# ### Sixteen bytes remain, but the update needs more
#
# The ledger counts what is there when the update is over. What is there *during* the update? `log_memory` follows each tensor
# from its birth to its death:


# %%
def bytes_of_an_update(model, optimizer):
    """Bytes per parameter: what remains after an update, and the peak during it."""
    ledger_after_one_update(model, optimizer)  # now gradients and states exist
    kept = [value for state in optimizer.state.values() for value in state.values()]
    states = [value for value in kept if torch.is_tensor(value)]
    gradients = [p.grad for p in model.parameters()]
    with measure.peak.log_memory([*model.parameters(), *gradients, *states]) as log:
        optimizer.step()
    return log.timeline[-1] / count, log.peak_bytes / count


# %%
updates = {
    "bf16, MasterAdamW": bytes_of_an_update(
        half, scratch.precision.MasterAdamW(half.parameters(), lr=1e-3)
    )
}
for way in ("foreach", "fused"):
    adamw = torch.optim.AdamW(small.parameters(), lr=1e-3, **{way: True})
    updates[f"fp32, AdamW, {way}"] = bytes_of_an_update(small, adamw)
rows = {
    name: {"at the peak": peak, "remains": remains}
    for name, (remains, peak) in updates.items()
}
assert {round(remains) for remains, _ in updates.values()} == {16}
assert [round(peak) for _, peak in updates.values()] == [18, 20, 16]
looks = {"at the peak": style.TEMPORARY, "remains": style.STATES}
figures.grouped_bars(rows, "Bytes per parameter", "{:.1f}".format, looks)

# %% [markdown]
# **Explain.** Our `MasterAdamW` goes from tensor to tensor. For each it needs three fp32 temporaries (the gradient, the
# corrected mean and the root), 12 bytes for each of its numbers. The largest tensor has 14.6 % of this small model's weights: $0.146 \cdot 12 = 1.75$.
# PyTorch's own AdamW has several ways to do the same arithmetic. On a GPU it takes `foreach` by default: all tensors
# in a few large operations, with a temporary as large as all weights. `fused=True` needs none.
#
# So "16 bytes per parameter" is what an update leaves behind. For LLaMA-2 70B, 4 bytes more are 276 GB.
# They come when the intermediate results are gone, so the two never add up, but the larger of them must fit.
#
# ### Two bytes in place of eight
#
# **8-bit AdamW** keeps each of its two numbers, which are also called *moments*, in one byte: as a code from 0 to 255. How can a byte stand for $10^{-6}$ in one
# tensor and for 10 in another? Two things help:
#
# - **Blocks.** 256 numbers in a row share one fp32 *scale*, their largest absolute value. Divided by it, all of them lie between −1 and 1. An outlier
#   spoils only its own block.
# - **Levels.** Each code from 0 to 255 stands for a level between −1 and 1, or 0 and 1 for the variance, which has no sign. The nearest level is taken. This is
#   **quantisation** (量化).
#
# Which levels? Take two weights in one block, with gradients 1 and 0.01. Their variances are 1 and 0.0001. On a *linear* map (equal distances) the smallest
# level above 0 is $1/255 = 0.004$; the second variance is rounded to 0. Then its update is lr · 0.01 / (√0 + eps): with eps $10^{-8}$ a million learning rates. A *dynamic* map
# has 128 levels between 0.1 and 1, 64 between 0.01 and 0.1, and so on down to $10^{-7}$ (Dettmers et al. 2021, arXiv:2110.02861). A momentum
# that is rounded to 0 does no harm: the update is a little shorter.

# %%
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
# **Predict.** Blocks of 256: how many bytes of state for each of our 112,384 parameters, scales included? Give three decimals.

# %%
in_bytes = predict("3.eight_bit", "Bytes per parameter?", yours=None)

# %%
found = ledger_after_one_update(
    small, scratch.precision.AdamW8bit(small.parameters(), lr=1e-3)
)
expect(
    2 * (1 + 4 / 256),
    found["optimizer"] / count,
    within=0.001,
    label="bytes per parameter",
    yours=in_bytes,
)

# %% [markdown]
# **Explain.** Two codes, and two scales of 4 bytes for 256 parameters: 1.6 % more than the codes. (Blocks are that short since bitsandbytes 0.44; with the 2048 of the paper it is 0.2 %.) The
# gap, 4 parts in 10,000, comes from blocks that are not full: the 64 numbers of a norm have a scale to themselves. Does it train as well? The demo trains one small GPT five times: with fp32 AdamW; with
# bf16 weights, once without and once with a master copy; and with 8-bit moments on both maps.

# %%
trained = demos.run("optimizers", ranks=1, learning_rate=3e-4, stream=False)
print(trained.report())

# %%
by_name = {version.name: version for version in trained.versions}
assert by_name["8-bit"].gap < 0.05 < 1 < by_name["8-bit, linear maps"].gap
theirs, *_ = re.findall(r"AdamW8bit: ([\d.]+) %", recorded("bitsandbytes"))
assert abs(100 * by_name["8-bit"].gap - float(theirs)) < 1

# %% [markdown]
# The last column says how far from fp32 AdamW's weights each version ends, relative to how far those have moved. With 8 bits it is 3 %. (bitsandbytes 0.50.2 trained the same GPT from the same start, recorded on a CPU: 3.4 %, and 1.7 % from ours.) Without a master copy small updates are lost, and it is a third.
# With linear maps single weights are thrown very far away, and the loss stays above all others. You build the 8-bit optimizer in exercise 3.12.
#
# ### Why tools disagree
#
# | bytes | who | what |
# |---|---|---|
# | 16 | ZeRO paper | 16-bit weights 2, 16-bit gradients 2 (fp16 there, bf16 today), master 4, Adam 8 |
# | 18 | Megatron-LM | the gradients are kept in fp32: 2 + 4 + 4 + 8 |
# | 20 | DeepSpeed's `estimate_zero2_model_states_mem_needs` for one GPU, Ultra-Scale Playbook | an fp32 buffer in which gradients add up, beside the bf16 ones: 2 + 2 + 4 + 4 + 8 |
#
# None is wrong: they describe different programs. The dtype of the gradients is a separate
# choice, which does not follow from the optimizer's. When you quote a number, say which convention.

# %%
one = {name: model_states(1, recipe) for name, recipe in RECIPES.items()}
assert [r.bytes_per_parameter for r in RECIPES.values()] == [16, 18, 20, 16]
figures.stacked_bars(
    {
        name: {
            "weights": its.parameters_bytes,
            "gradients": its.gradients_bytes,
            "gradient buffer, fp32": its.gradient_buffer_bytes,
            "master copy": its.master_copy_bytes,
            "optimizer": its.optimizer_state_bytes,
        }
        for name, its in one.items()
    },
    "Bytes per parameter",
    colours={"gradient buffer, fp32": style.TEMPORARY, "master copy": style.STATES},
)

# %% [markdown]
# LLaMA-2 70B, often quoted as "140 + 140 + 840 GB":

# %%
seventy = model_states(68_976_648_192, RECIPES["mixed-16"])
print(seventy.explain("GB"))
assert round(units.gb(seventy.model_states_bytes), 1) == 1103.6

# %% [markdown]
# 138 + 138 + 828 with the exact number of parameters (exercise 3.1 takes such a sum apart). That is 14 cards of 80 GB before the first sample arrives.
#
# **Remember**
# - bf16 with AdamW: 2 + 2 + 4 + 8 = 16 bytes per parameter; the optimizer is three quarters of it.
# - That remains after an update. During it there may be 4 bytes more.
# - SGD 0, momentum 4, AdamW 8, 8-bit AdamW 2 bytes of state per parameter.
# - 8 bits suffice with a scale for each block, and levels that reach near zero: a variance of zero would be divided by.
# - 16, 18 and 20 are conventions. Say which one you use.

# %% [markdown]
# ## 3.4 The rest: inputs, intermediate results, buffers, overhead
#
# **Inputs and labels.** Two int64 numbers per token: 16 bytes. A batch of 8 × 1024 tokens is 131 kB.
# Negligible for text (not for video).
#
# **Intermediate results.** The backward pass needs what the forward pass computed: the input of
# every matrix, of every norm, of the activation function (激活函数). Inside a model each token is a row
# of $h$ numbers; $h$ is the hidden size (隐藏维度), also called embedding size. With sequence $s$ and micro-batch $b$, one tensor of
# $s \cdot b \cdot h$ numbers is $64 \cdot 8 \cdot 64 \cdot 4 = 131$ kB for our small GPT in fp32 and 8 samples. Here is one of its layers after the forward pass, with
# everything that waits for the backward pass:

# %%
tiny = TransformerShape(layers=2, hidden=64, heads=4, ffn=256, vocab=VOCAB, context=64)
walk = layer_walk(Job(tiny, RECIPES["fp32-16"], Layout(micro_batch=8)))
waits = walk.trace.held(10)[0]  # after the forward pass of ten operations
sizes = {tensor.name: kept.bytes for tensor, kept in waits.items()}
title = "One layer after its forward pass, 8 × 64 tokens, fp32"
figures.bars(sizes, units.format_bytes, title, style.ACTIVATIONS)

# %% [markdown]
# The input of the MLP (前馈网络) is `norm 2's result`. Count in units of 131 kB, that is of $sbh$ numbers: the inputs of the two norms 2; the input of the q-k-v matrix, and q, k and v, 4; attention's
# result 1; the input of the MLP 1, and the input and the result of GELU, each $4h$ wide, 8. Together 16. Chapter 4 walks through the layer step by step.
#
# In fp32 that is $64\,sbh$ bytes, in bf16 $32\,sbh$. Outside the layers come the inputs of the last norm and
# of the head, and the log-probabilities in fp32: $4\,s\,b\,v$ bytes for vocabulary $v$.
# Chapter 4 derives the general formula and shows how to keep less.
#
# **Predict.** Our small GPT works in fp32 on 8 samples of 64 characters. How many bytes does it keep for the backward pass?

# %%
kept = predict("3.kept", "Bytes kept for backward?", yours=None, unit="B")

# %% [markdown]
# **Measure.** PyTorch tells a hook about each tensor that it keeps for the backward pass:

# %%
show_source(measure.gradients.saved_bytes)


# %%
def forward():
    """Loss of the 8 samples."""
    return scratch.accumulation.loss_sum(small(inputs), labels)


measured = measure.gradients.saved_bytes(forward, small)

# %%
shape = TransformerShape(layers=2, hidden=64, heads=4, ffn=256, vocab=VOCAB, context=64)
eager = replace(
    RECIPES["fp32-16"], loss="eager", gradient_life="backward", update="fused"
)
moments = memory_moments(Job(shape, eager, Layout(micro_batch=8)), overhead_bytes=0)
in_theory = moments["loss"].consumers["intermediate results"]
expect(
    in_theory,
    measured,
    within=0.02,
    label="kept for backward",
    unit="B",
    yours=kept,
)

# %% [markdown]
# **Explain.** Under 1 % more than predicted, and we can say what it is, to the byte. Each of the
# 5 norms keeps a mean and a scale per token, and each attention one number per head and
# token, which it needs to redo the softmax. The rest are inputs, positions, labels and one counter.

# %%
tokens, layers, heads = 8 * 64, 2, 4
statistics = (2 * layers + 1) * 2 * tokens * 4  # mean and scale, fp32
softmax = layers * heads * tokens * 4  # log of the softmax's sum, fp32
indices = 2 * tokens * 8 + 64 * 8 + 4  # inputs, labels, positions; a counter
assert measured == in_theory + statistics + softmax + indices

# %% [markdown]
# **Temporary buffers** live for a moment and still count, because memory must hold the peak. You have
# seen those of the update. The backward pass begins with others. The logits (逻辑值) are the outputs of the last layer,
# one number for each token and word. PyTorch's cross-entropy keeps their log-probabilities in fp32, and its backward pass makes two
# gradients of the same size before the first one goes: three tensors of $4\,s\,b\,v$ bytes at once. For GPT-2 with
# 8 × 1024 tokens and vocabulary 50,257 that is 4.9 GB, ten times the update's 4 bytes for each of 124 million
# parameters. For GPT-2 1.5B with one sequence it is the other way round: 0.6 GB against 6.2 GB.
# Kernels that write the gradient over the logits need far less; the recipe's `loss` says which one you have.

# %%
rows = {}
for name, micro_batch in (("gpt2-124m", 8), ("gpt2-1.5b", 1)):
    model = models.MODELS[name]
    job = Job(
        model, Recipe(loss="eager"), Layout(micro_batch=micro_batch), sequence=1024
    )
    copies = loss_copies(job)
    each = copies.kept_bytes + copies.temporary_bytes
    logits, update = each * logit_count(job), 4 * model.parameters().total
    rows[f"{name}, micro-batch {micro_batch}"] = {"logits": logits, "update": update}
    assert (logits > update) == (name == "gpt2-124m")
looks = {"logits": style.TEMPORARY, "update": style.UPDATE}
figures.grouped_bars(rows, "Temporary buffers", units.format_bytes, looks)

# %% [markdown]
# Memory that is freed and used again in place never adds to the peak. Compilers save temporaries in
# that way: they fuse several operations into one, so that what passes between them is never
# stored. This has to do with the compiler, not with whether the language is "functional", as note 000 has it.
#
# **Framework overhead.** The CUDA context, NCCL's buffers and library workspaces take memory outside all tensors, for which there is no formula. PyTorch's first use of CUDA
# may take 0.5 to 2 GB (Bekman, *Machine Learning Engineering*, training/performance), and NCCL 688 MiB for a group of four A100s (NVIDIA/nccl, issue 964).
# The course takes 1 GiB for all of it, by convention. The allocator adds unused gaps (显存碎片, fragmentation), for which section 3.5 has a fitted factor.
#
# ### The peak is one point of the step
#
# A bill that adds up everything is too high, since not everything is there at once. An update has four points at
# which most memory may be needed. The intermediate results go while the gradients come, layer by layer:
#
# | point | weights, optimizer | intermediate results | gradients | temporary |
# |---|---|---|---|---|
# | loss | all | all | none yet | copies of the logits |
# | backward begins: it enters the last layer | all | all but the loss's | none yet | gradients inside the layer |
# | backward ends: it has come down to the first layer | all | of one layer | all | gradients inside the layer |
# | update | all | none | all | temporaries of the optimizer |
#
# That is PyTorch's way, where `zero_grad` throws the gradients away. Megatron-LM and DeepSpeed keep one buffer for them
# all the time: there the gradients are in every row. The recipe's `gradient_life` says which it is.
#
# **Predict.** Which of them is the peak of our small GPT with 8 samples, and how many bytes is it? You know what it keeps for the backward pass; its vocabulary has 128
# characters, and `fused=True` needs no temporaries.

# %%
peak_bytes = predict("3.peak", "Bytes at the peak of an update?", yours=None, unit="B")

# %% [markdown]
# **Measure.** A whole update of it, every tensor followed from its birth to its death:

# %%
adamw = torch.optim.AdamW(small.parameters(), fused=True)
ledger_after_one_update(small, adamw)  # now the states exist
adamw.zero_grad()
states = [tensor for kept_ in adamw.state.values() for tensor in kept_.values()]
with measure.peak.log_memory([*small.parameters(), *states, inputs, labels]) as log:
    cross_entropy(small(inputs).flatten(0, 1), labels.flatten()).backward()
    adamw.step()
expect(
    max(bill.total_bytes for bill in moments.values()),
    log.peak_bytes,
    within=0.03,
    label="peak",
    unit="B",
    yours=peak_bytes,
)

# %%
rows = {
    name: {part: size for part, size in bill.consumers.items() if size}
    for name, bill in moments.items()
}
assert max(moments, key=lambda name: moments[name].total_bytes) == "loss"
figures.stacked_bars(rows, "Four points of the update", units.format_bytes)

# %% [markdown]
# **Explain.** It is the loss: weights, AdamW's states, all intermediate results and two gradients of the logits. What is missing is small change: the norms' statistics from above, and temporaries of single operations.
#
# **Remember**
# - Intermediate results grow with micro-batch × sequence × layers; model states do not.
# - With a large vocabulary the logits and their gradients are large: 12 bytes for each logit in PyTorch.
# - The peak is the largest of four points, not the sum of everything.
# - Overhead is a convention: 1 GiB here.

# %% [markdown]
# ## 3.5 What the meters show
#
# A published run had 61 GiB of tensors on a GPU after an update, and 127 GiB of its memory were taken. By what?
#
# ### Allocated and reserved
#
# On a GPU you have three meters, and they differ:
#
# | meter | counts |
# |---|---|
# | `torch.cuda.max_memory_allocated()` | tensors |
# | `torch.cuda.max_memory_reserved()` | all that PyTorch's **caching allocator** (缓存分配器) holds: tensors, and blocks that no tensor uses just then |
# | `nvidia-smi` | that, the CUDA context, and NCCL's buffers |
#
# The allocator asks the driver for large segments, cuts blocks out of them, and keeps what is freed for the next tensor, since asking the driver is slow. Gaps arise where a free block is a little too small.
# A batch padded to 1,050 tokens does not fit into the blocks that one of 1,000 tokens left behind: the allocator gets new segments, and the old ones stay. An error
# message says so: "… GiB is reserved by PyTorch but unallocated".
#
# How much is it? Hardly anybody publishes both meters. torchtitan publishes the reserved bytes of 16 runs with sequences of one length, and this course predicts the tensors of each. Reserved over *predicted* is between 1.00 and 1.25, and 1.17 in
# the median (benchmarks/README.md, *measured runs*). So the course's **1.15**, a round number, **is fitted** and not measured: a margin for planning that covers the gaps, and whatever the formulas miss. With changing lengths the gaps can be far larger.
# With `PYTORCH_ALLOC_CONF=expandable_segments:True` a segment can grow instead (docs.pytorch.org/docs/stable/notes/cuda.html); torchtitan's start script sets it. Older versions of PyTorch call the variable
# `PYTORCH_CUDA_ALLOC_CONF`, and 2.9.1 silently ignores the new name (pytorch issue 183387): ask `torch.cuda.memory._snapshot()["allocator_settings"]` whether it took effect.
#
# Showing it needs a GPU, so here is a published measurement instead: Qwen2.5 7B in reinforcement learning, on two GPUs, before and after.

# %%
# GiB on one GPU after update 3: github.com/nvidia-cosmos/cosmos-rl, pull request 388.
# (It writes GB; beside 126.97 it prints 128.88 GiB for the same GPU from outside.)
most_reserved = {"as installed": 126.97, "expandable segments": 96.61}
allocated_after_update = 60.93  # 60.81 with expandable segments
before, after = most_reserved.values()
assert (round(before / after, 2), round(before - after)) == (1.31, 30)
states_gib = 7.6e9 * 16 / 2 / units.GIB  # half of the states on each GPU
assert round(states_gib) == 57 < allocated_after_update
figures.bars(
    most_reserved,
    lambda size: f"{size:.0f} GiB",
    "The most that was ever reserved: Qwen2.5 7B, one GPU of two",
    style.IDLE,
)

# %% [markdown]
# **Explain.** Compare a maximum with a maximum: the same training reserved at most 97 GiB instead of 127. So at least 30 GiB were gaps.
#
# The 61 GiB are something else, the tensors that were alive *after* the update: little more than the model states (7.6 billion
# parameters × 16 bytes over two GPUs, 57 GiB). Most of what lies between 61 and 97 GiB had held tensors at the peak, and the allocator kept it for the next step. So 127 over 61 does not measure gaps.
# To see the gaps of your own run, compare `max_memory_reserved()` with `max_memory_allocated()` before you buy a larger card.
#
# ### The allocator's diary
#
# On a GPU the allocator can write down what it does. `torch.cuda.memory._record_memory_history()` starts it, and
# `torch.cuda.memory._dump_snapshot("file.pickle")` saves it: a **memory snapshot** (内存快照) has every block of memory, with the stack of calls that
# asked for it. The page pytorch.org/memory_viz draws such a file. What it cannot say is what a block is *for*.
#
# `figures.snapshot("file.pickle")` says it, from two facts. The stack tells in which phase a block was born; the rest of the diary tells
# in which phase it died. Born forward and dead forward: a temporary buffer. Born forward and dead backward: an intermediate result. Born backward and
# alive in the update: a gradient. What neither tells is called "not known".
#
# For a machine without a GPU the course keeps the same diary of the CPU's tensors. Here is a training loop with a mistake:


# %%
def train(steps, seen):
    """Train a small GPT, and keep the logits for statistics at the end."""
    model = scratch.gpt.GPT(layers=2, hidden=64, heads=4, vocab=VOCAB, context=64)
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
# **Predict.** After 5 steps of 8 samples of 64 characters with a vocabulary of 128: how many bytes are there that should not be?

# %%
too_much = predict("3.leak", "Bytes that leak?", yours=None, unit="B")

# %%
import tempfile
from pathlib import Path

seen = []
with memory_history.record_history() as diary:
    train(5, seen)
path = Path(tempfile.mkdtemp()) / "leaking.pickle"
path.write_bytes(snapshot.snapshot_pickle(diary.events))  # the format of torch
figures.snapshot(path)

# %%
(leak,) = snapshot.read_snapshot(path.read_bytes()).leaks
expect(
    5 * (8 * 64 * 128) * 4,
    leak.size_bytes,
    label="the leak",
    unit="B",
    yours=too_much,
)

# %%
print(leak.explain())

# %% [markdown]
# **Explain.** Blocks that are born in every step by the same line, and never die: that is a **memory leak** (内存泄漏). Here it is the logits, $4\,s\,b\,v$ bytes a
# step. The figure names the function and the line that made them: in a notebook the line counts from the top of its cell. The list `seen` is what keeps them.
#
# Snapshots work in the other direction as well. A *predicted* step becomes a snapshot for torch's viewer, or a trace for
# ui.perfetto.dev, before you have rented the GPU:

# %%
import json

predicted_file = snapshot.snapshot_pickle(snapshot.timeline_events(run))
sorted_again = snapshot.read_snapshot(predicted_file)
assert max(sorted_again.totals) == run.peak_bytes
trace = snapshot.chrome_trace(run.phases, run.sizes)
print(
    f"{len(predicted_file):,} B of snapshot, {len(json.loads(trace)['traceEvents'])} events"
)

# %% [markdown]
# **Remember**
# - Allocated, reserved and `nvidia-smi` are three meters. Expandable segments close gaps where sizes change.
# - A memory snapshot says who asked for each block. One line's blocks that stay from step to step are a leak.

# %% [markdown]
# ## 3.6 Mixed precision in practice: autocast and fp16
#
# In section 3.3 the whole model was cast to bf16, with a master copy beside it. Megatron-LM and DeepSpeed train that way. There are three alternatives: autocast, fp16 with a loss scale, and fp8 (section 3.7). Which of
# them works depends on what a format can hold:
#
# | format | bits of exponent | bits of fraction | rounds by at most |
# |---|---|---|---|
# | fp32 | 8 | 23 | 0.000006 % |
# | bf16 | 8 | 7 | 0.4 % |
# | fp16 | 5 | 10 | 0.05 % |
# | fp8, E5M2 | 5 | 2 | 12.5 % |
# | fp8, E4M3 | 4 | 3 | 6.3 % |
#
# The fraction decides how close together the numbers are, and the exponent how far they reach:

# %%
formats = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8, E5M2": torch.float8_e5m2,
    "fp8, E4M3": torch.float8_e4m3fn,
}
limits = {name: torch.finfo(dtype) for name, dtype in formats.items()}
reach = {
    name: (its.smallest_normal * its.eps, its.smallest_normal, its.max)
    for name, its in limits.items()
}
figures.number_ranges(reach, "How far the numbers of each format reach")

# %%
fp16 = limits["fp16"]
print(f"fp16 from {fp16.smallest_normal * fp16.eps:.1g} to {fp16.max:,.0f}")
for name in ("fp32", "bf16", "fp16"):
    assert limits[name].eps / 2 == rounding.unit_roundoff(name)

# %% [markdown]
# bf16 reaches as far as fp32; fp16 does not. In the yellow part a number loses digits one by one, and below its left end
# it becomes 0: that is **underflow** (下溢). Beyond the right end it becomes infinite: **overflow** (上溢). (E4M3 has no infinity; there it is cut to 448, or becomes NaN.)
#
# ### autocast: the weights stay in fp32
#
# PyTorch's own way leaves the model as it is. Inside **autocast** (自动混合精度) each operation gets its own format. Listen to the operators of one
# forward pass:

# %%
from course_lib.measure.wire import Listener

results = {}


def hear(operator, arguments, options, result):
    """Note which operators give results in which format; views and copies left out."""
    result = result[0] if isinstance(result, tuple) else result
    name = operator.overloadpacket.__name__
    if name in ("addmm", "mm", "gelu", "native_layer_norm", "add", "_log_softmax"):
        results.setdefault(str(result.dtype), set()).add(name)


with torch.autocast("cpu", torch.bfloat16), Listener(hear):
    loss = cross_entropy(small(inputs).flatten(0, 1), labels.flatten())
loss.backward()
assert {p.grad.dtype for p in small.parameters()} == {torch.float32}
results

# %% [markdown]
# Matrix products (`addmm`, `mm`) run in bf16, and so does what follows them directly. Norms, the loss, and the additions around each layer stay in fp32.
# The weights are cast on the way in, and their gradients are cast back to fp32. On a GPU the lists are much the same
# (docs.pytorch.org/docs/stable/amp.html, "Op-Specific Behavior").
#
# **Predict.** In fp32 the small GPT kept 4.76 MB for the backward pass. How much does it keep under autocast? Go through the inventory of section 3.4: which tensors have 2
# bytes a number now? And one thing is new: the bf16 copies of the matrices are kept until the backward pass has used them.

# %%
under = predict("3.autocast", "MB kept under autocast?", yours=None, unit="MB")


# %%
def forward_in_bf16():
    """The loss of the 8 samples, under autocast."""
    with torch.autocast("cpu", torch.bfloat16):
        return scratch.accumulation.loss_sum(small(inputs), labels)


numbers = tokens * 64  # sbh
in_layers = layers * (2 * 4 + 14 * 2) * numbers  # inputs of the norms; all the rest
in_head = (4 + 2) * numbers + 4 * tokens * VOCAB
copies = 2 * (layers * 12 * 64**2 + 64 * VOCAB)
kept_then = measure.gradients.saved_bytes(forward_in_bf16, small)
expect(
    (in_layers + in_head + copies) / 1e6,
    kept_then / 1e6,
    within=0.02,
    label="kept under autocast",
    unit="MB",
    yours=under,
)

# %%
parts = {
    "fp32": {
        "norms' inputs": layers * 8 * numbers,
        "rest of the layers": layers * 56 * numbers,
        "head": 8 * numbers + 4 * tokens * VOCAB,
    },
    "autocast": {
        "norms' inputs": layers * 8 * numbers,
        "rest of the layers": layers * 28 * numbers,
        "head": in_head,
        "bf16 copies of the matrices": copies,
    },
}
assert sum(parts["fp32"].values()) == in_theory
figures.stacked_bars(parts, "Kept for the backward pass", units.format_bytes)

# %% [markdown]
# **Explain.** 3.08 MB, which is 65 % and not half. In each layer the inputs of the two norms still have 4 bytes a number: $2 \cdot 4 + 14 \cdot 2 = 36$ bytes × $sbh$ in place of 64.
# The log-probabilities stay in fp32 as well. The copies of the matrices take 2 bytes per parameter, however small the batch is.
#
# And the model states? Weights 4, gradients 4, AdamW 8: again **16 bytes per parameter**, and 2 more from the forward to the backward pass. The fp32
# weights *are* the master copy. So autocast saves activations and time, and no model states.
#
# ### fp16 needs a loss scale
#
# V100 and T4 multiply matrices fast in fp16, and not in bf16. fp16 has three more binary digits than bf16, but look at its smallest numbers. Our loss is a mean over $8 \cdot 64 = 512$
# tokens, and an untrained model gives each of the 128 characters the same probability.
#
# **Predict.** How large is the gradient of a typical logit, one of a character that is not the right one?

# %%
typical = predict("3.logit_gradient", "Gradient of a typical logit?", yours=None)

# %%
torch.manual_seed(0)
gpt = scratch.gpt.GPT(layers=2, hidden=64, heads=4, vocab=VOCAB, context=64)


def loss_of_gpt():
    """The mean loss of the 8 samples."""
    return cross_entropy(gpt(inputs).flatten(0, 1), labels.flatten())


flowing = measure.gradients.flowing_gradients(gpt, loss_of_gpt)
of_logits = flowing[: tokens * VOCAB]  # the head comes first in the backward pass
expect(
    1 / 128 / 512,
    of_logits.abs().median(),
    within=0.05,
    label="gradient of a logit",
    yours=typical,
)
assert of_logits.abs().median() < fp16.smallest_normal / 4

# %%
figures.number_ranges(
    {name: reach[name] for name in ("bf16", "fp16", "fp8, E4M3")},
    "Where a typical gradient lies",
    {"gradient of a logit": of_logits.abs().median().item()},
)

# %% [markdown]
# **Explain.** With softmax and cross-entropy, the gradient of a wrong character's logit is its probability, $p = 1/128$, here divided by 512 because the loss is a mean: $1.5 \cdot 10^{-5}$. In fp16 it is in the yellow part and has lost two of its eleven digits. And this is only the beginning. The gradients shrink on their way
# back through the layers, they shrink as the model learns, and a real micro-batch of 8,192 tokens divides by 16 times as much.
#
# The remedy is **loss scaling** (损失缩放). Multiply the loss by 65,536 before the backward pass. By the chain rule every gradient is multiplied by 65,536, and
# moves up by 16 binary places into fp16's range. Divide by it before the update. Which scale is right? As large as possible, so try: double it from time to time, and when a
# gradient overflows, halve it and leave out that update. (Scaled losses: arXiv:1710.03740, section 3.2. The rule for the scale is that of PyTorch's `GradScaler`.)

# %%
show_source(scratch.precision.LossScaler)

# %% [markdown]
# `torch.amp.GradScaler` has the same rules. It starts at 65,536, and doubles after 2000 updates in a row without an overflow. Here the scale doubles after 6, so that we can see it at work:

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

# %%
figures.lines(
    {"scale": list(enumerate(scales))},
    "update",
    "loss scale",
    "The loss scale climbs until a gradient overflows",
    doubling=(False, True),
)

# %%
print(f"{done.count(False)} of {len(done)} updates left out; loss now {loss:.2f}")
assert max(scales) > 65_536 and 0 < done.count(False) < 12
assert loss < 3.5 < 4.8  # 4.8 = ln 128, an untrained model

# %% [markdown]
# The scale climbs until a gradient overflows, is halved, and climbs again. With 2000 in place of 6, one update in some two thousand is lost; a "loss scale
# reduced" in a log is no alarm, but several in a row are.
#
# What did the scale save? Here are the gradients of the trained model, computed in fp32, and which part of them fp16 would spoil:

# %%
flowing = measure.gradients.flowing_gradients(gpt, loss_of_gpt).abs()
flowing = flowing[flowing > 0]


def share_below(border, scale):
    """Percent of the gradients that are below the border when they are scaled."""
    return 100 * (flowing * scale < border).float().mean().item()


half_of_smallest = fp16.smallest_normal * fp16.eps / 2
spoiled = {"digits lost": fp16.smallest_normal, "becomes 0": half_of_smallest}
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

# %%
for scale in (1, 65_536):
    lost = [
        share_below(border, scale)
        for border in (half_of_smallest, fp16.smallest_normal)
    ]
    print(f"scale {scale:>6,}: {lost[0]:.1f} % become 0, {lost[1]:.1f} % lose digits")
assert (
    share_below(half_of_smallest, 1) > 5 > 0.5 > share_below(half_of_smallest, 65_536)
)
assert share_below(fp16.smallest_normal, 1) > 95
bf16 = torch.finfo(torch.bfloat16)
assert share_below(bf16.smallest_normal, 1) == 0

# %% [markdown]
# Without a scale 99 % of the gradients lose digits, and one in nine becomes 0. With 65,536 it is 1.5 % and 0.1 %. In bf16 nothing is lost with no scale at all, which is
# why bf16 took fp16's place as soon as GPUs had it. Two traps remain for those who must use fp16: clip gradients after dividing (`scaler.unscale_(optimizer)` first), and keep one
# scale for all micro-batches of an update.
#
# **Remember**
# - bf16 with a master copy and autocast both take 16 bytes per parameter: they save activations and time.
# - fp16 reaches down to $6 \cdot 10^{-8}$, so the loss is scaled: up while nothing overflows, down and one update left out when something does. bf16 needs no scale.

# %% [markdown]
# ## 3.7 fp8: a scale for every tensor, or for every block
#
# An H100 multiplies matrices in fp8 twice as fast as in bf16 (data sheet: 1,979 against 989 TFLOP/s). The smallest E4M3 number with all its digits is 0.016, so now every tensor needs a scale of its own.
# You have everything for it: fp8 is another set of levels for the blocks of section 3.3.

# %%
show_source(scratch.precision.fp8_levels)

# %% [markdown]
# **Predict.** E4M3 has three bits of fraction, so rounding is off by at most 1/16 = 6.25 %. One weight matrix of our GPT, with one scale for all of it: how
# many percent is it off as a whole (the length of the error over the length of the matrix)?

# %%
off = predict("3.fp8", "Percent off?", yours=None, unit="%")


# %%
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
# **Explain.** Just below 2.7 %, less than half of the worst case: most numbers lie nearer to a level, and those just below a power of two are rounded by less of their size. E5M2 has a
# bit less of fraction: twice the error.
#
# Does a model still learn? The demo `fp8` rounds both operands of each product of a linear layer, forward and backward: inputs and weights to E4M3, gradients to E5M2, each tensor with its
# own scale. Then it multiplies in fp32. This *emulates* fp8: it shows what the rounding does to the loss, and nothing about speed.

# %%
show_source(scratch.precision.round_to)

# %% [markdown]
# **Predict.** A small GPT makes 150 updates, in fp32 and with the products of its layers in fp8; embedding, head, norms and attention stay in fp32. By what factor is the loss of fp8
# higher at the end?

# %%
higher = predict("3.fp8_training", "Loss in fp8 / in fp32?", yours=None)

# %%
rounding_run = demos.run("fp8", ranks=1, stream=False)
ends_at = rounding_run.last
ratio = ends_at["fp8"] / ends_at["fp32"]
expect(1, ratio, within=0.02, label="fp8 / fp32", yours=higher)

# %%
print(rounding_run.report())
figures.loss(rounding_run.losses)

# %%
zeros = share_below(2.0**-16 / 2, 1)  # half of the smallest number of E5M2
print(f"{zeros:.0f} % of the gradients of section 3.6 become 0 in E5M2")
assert zeros > 60 and ends_at["fp8, no scale"] > 1.1 * ends_at["fp32"]
assert abs(ends_at["bf16"] / ends_at["fp32"] - 1) < 0.01

# %% [markdown]
# **Explain.** 0.3 % higher in fp8, less than 0.1 % in bf16. (With seeds 0 to 4 fp8 is between 0.1 % below and 0.5 % above.) The errors have both signs, and in a sum of 64 or more products most of them
# cancel. Without a scale the loss ends 18 to 21 % above, since the gradients are too small: four in five become 0, and the layers hardly learn.

# %% [markdown]
# And a scale for each block? It helps tensors in which a few numbers are far larger than the rest. In large language models the activations have such features (Dettmers et
# al. 2022, arXiv:2208.07339). Multiply one feature of 64 by a factor, and see how far the *other* 63 are off:

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
factors = [4.0**power for power in range(11)]
errors = {
    name: [(factor, error_of_others(factor, *way)) for factor in factors]
    for name, way in ways.items()
}
figures.lines(
    errors,
    "factor of one feature",
    "other features off, %",
    "What one large feature does to the others",
    doubling=(True, False),
)

# %%
last = {name: curve[-1][1] for name, curve in errors.items()}
assert errors["int8, one scale"][4][1] > 40  # 256 times as large
assert errors["E4M3, one scale"][6][1] < 3  # 4096 times
assert last["E4M3, blocks of 16"] < 60 < 95 < last["E4M3, one scale"]

# %% [markdown]
# int8 has equal distances: at 256 times as large, the others are lost. E4M3 has an exponent in each number and does not notice until the
# factor is some ten thousand. Beyond that the others underflow. Blocks keep the damage in the block where it happens: here 15 of the 63 others.
#
# So there are two schools. NVIDIA's Transformer Engine began with one scale per tensor, E4M3 in the forward pass, and E5M2 for gradients, since it reaches further (its recipe's `Format.HYBRID`). DeepSeek-V3 was trained
# with a scale for each block, and E4M3 everywhere (arXiv:2412.19437, section 3.3):
#
# | | in |
# |---|---|
# | the three products of each linear layer (forward, and two backward) | E4M3; a scale for each 1 × 128 activations and each 128 × 128 weights |
# | embedding, head, router, norms, attention | bf16 or fp32 |
# | master weights, gradients | fp32 |
# | Adam's two numbers | bf16 |
#
# Its loss stayed within 0.25 % of that in bf16. The products could be twice as fast; a whole update gains less. That needs a GPU with fp8 and is not measured here:
# torchtitan trained Llama 3.1 8B on eight H100s with 6,667 tokens a second per GPU in bf16, and 8,532 with linear layers in fp8. It took 77.0 and 76.8 GiB
# (benchmarks/llama3_h100_202412_torchtitan.md, table 1, compiled). **28 % faster, and no memory saved**: the weights that are kept, and most activations, are not in fp8.
#
# ### Where to find it in libraries
#
# | here | elsewhere |
# |---|---|
# | `MasterAdamW` | Megatron-LM `--bf16`, DeepSpeed `"bf16": {"enabled": true}`; FSDP keeps fp32 shards and casts what it gathers (chapter 9) |
# | autocast | `torch.autocast("cuda", torch.bfloat16)`; Hugging Face's Trainer `--bf16` |
# | `LossScaler` | `torch.amp.GradScaler`; DeepSpeed `"fp16"` with `initial_scale_power` and `loss_scale_window` |
# | `AdamW8bit` | `bitsandbytes.optim.AdamW8bit`, `torchao.optim.AdamW8bit` |
# | `round_to` with fp8 | Transformer Engine's recipes (`Float8CurrentScaling`, `Float8BlockScaling`), torchao's `convert_to_float8_training` |
# | `log_memory`, `record_history` | `torch.cuda.max_memory_allocated`, `torch.cuda.memory._record_memory_history` |
#
# **Remember**
# - fp8 products save time, and hardly any memory.
# - fp8 E4M3 rounds by 2.7 %, and the loss hardly notices. It is for the inputs of matrix products, with a scale for each tensor or block.

# %% [markdown]
# ## 3.8 Your own bill
#
# Move the sliders. The bars show the largest of the four points, computed by `training_memory`, which this
# chapter has just measured. Find out:
#
# 1. Which is the largest model whose training fits on 80 GB with AdamW?
# 2. For GPT-2 1.5B: from which micro-batch on do the intermediate results outweigh the optimizer?
# 3. What does 8-bit AdamW save on LLaMA-2 7B, in GB and in percent?
#
# The formula for the intermediate results is the inventory above, with 2 or 4 bytes a number as the recipe
# has it, and flash attention (闪存注意力), which never stores the table of all pairs of tokens. LLaMA's
# MLP has three matrices and keeps four tensors where GELU keeps two; chapter 4 counts them.

# %%
from course_lib.chapters.ch03_what_is_in_the_memory import panels

panels.memory()

# %% [markdown]
# 1. At 16 bytes per parameter, 80 GB are gone with 5 billion parameters. In the list, that is gpt-3.6b.
# 2. This is exercise 3.8.
# 3. 6 of 8 bytes for each parameter: 40.4 GB, half of the optimizer's part. The other half is the master copy and what is left of Adam's numbers.

# %%
bills = {}
for optimizer in ("adamw", "adamw-8bit"):
    bill = panels.memory(model="llama2-7b", optimizer=optimizer).result
    bills[optimizer] = bill.consumers["optimizer"]
assert round((bills["adamw"] - bills["adamw-8bit"]) / 1e9, 1) == 40.4
assert bills["adamw"] == 2 * bills["adamw-8bit"]
for name, fits in (("gpt-3.6b", True), ("gpt-7.5b", False)):
    states = model_states(models.MODELS[name].parameters().total, RECIPES["mixed-16"])
    assert (states.model_states_bytes < 80 * units.GB) == fits

# %% [markdown]
# And the answer to the opening question. LLaMA-2 7B has 6.74 billion parameters:

# %%
llama = training_memory(models.MODELS["llama2-7b"], RECIPES["mixed-16"], micro_batch=1)
print(llama.explain("GB"))
assert llama.parameters_bytes < 13.5 * units.GB
assert llama.model_states_bytes > 80 * units.GB

# %% [markdown]
# The file is the first line. Training needs eight times as much for the model states alone. 80 GB do
# not suffice; two cards of 80 GB would, if each held half. That is what chapters 8 and 9
# are about.

# %% [markdown]
# ## What to remember
#
# 1. Seven consumers: weights, gradients, optimizer; inputs, intermediate results; temporary
#    buffers, overhead.
# 2. bf16 with AdamW: 16 bytes per parameter, 12 of them the optimizer's. Adam outweighs the model.
# 3. 16, 18, 20: three conventions, three programs.
# 4. Model states do not depend on the batch; intermediate results do.
# 5. GB is $10^9$, GiB is $2^{30}$.
# 6. A ledger of real tensors agrees with the formula to the byte.
# 7. autocast and fp8 save time and activations, hardly ever model states. fp16 needs a loss scale, fp8 a scale for each tensor or block.

# %%
from course_lib import quiz

quiz("3")

# %% [raw] tags=["quiz"]
# bf16 weights and gradients, fp32 master copy, AdamW. Bytes per parameter?
# [ ] 8
# [x] 16
# [ ] 20
# Why: 2 + 2 + 4 + 8.
#
# You double the micro-batch. What grows?
# [x] intermediate results
# [ ] optimizer states
# [ ] gradients
# Why: Model states depend on the parameters only.
#
# Megatron counts 18 bytes where the ZeRO paper counts 16. Why?
# [ ] one of them is wrong
# [x] Megatron keeps the gradients in fp32
# [ ] Megatron has another optimizer
# Why: 2 + 4 + 4 + 8: a choice of the program, not a property of the model.
#
# A tool says 24.0 GiB, the data sheet 25.8 GB. Which is more memory?
# [ ] 24.0 GiB
# [ ] 25.8 GB
# [x] they are the same
# Why: 24 × 2^30 = 25.77 × 10^9 bytes.
#
# What is the fp32 master copy good for?
# [x] it keeps updates that bf16 would round away
# [ ] it makes the matrix products exact
# [ ] it is a backup in case of a crash
# Why: bf16 has 8 binary digits: 1.0 + 0.001 stays 1.0.
#
# Why is the loss multiplied by 65,536 in fp16, and not in bf16?
# [ ] fp16 has fewer binary digits than bf16
# [x] fp16 ends at 6e-8, where many gradients lie; bf16 reaches as far down as fp32
# [ ] fp16 gradients are too large
# Why: fp16 has more digits and less range: small gradients would become 0.
#
# Your fp32 model trains under autocast in bf16, with AdamW. Model states per parameter?
# [ ] 8 bytes
# [ ] 12 bytes
# [x] 16 bytes
# Why: 4 + 4 + 8, as without autocast: it saves activations and time.

# %% [markdown]
# **Now you:** open [the exercises](../exercises/03_what_is_in_the_memory.ipynb).
#
# **Read on.** Rajbhandari et al. 2020, *ZeRO*, section 3 (arXiv:1910.02054): where the memory goes.
# Korthikanti et al. 2022, section 4 (arXiv:2205.05198): activations, for chapter 4. Dettmers
# et al. 2022, *8-bit Optimizers* (arXiv:2110.02861). Micikevicius et al., *Mixed Precision Training* (arXiv:1710.03740) and *FP8 Formats* (arXiv:2209.05433).

# %% tags=["exercise"]
import torch

from course_lib import check, hint, solution
from course_lib.theory.inputs import RECIPES, TransformerShape, models
from course_lib.theory.memory.peak import training_memory
from course_lib.theory.memory.states import model_states

# %% [markdown] tags=["exercise"]
# ### 3.1 Debug: 140 + 140 + 840, and four tools
#
# (published mistake, note 004) "LLaMA-2 70B has 140 GB of weights, 140 GB of gradients and 840 GB of optimizer states (with Adam)." How many of the 840 GB are
# not Adam's? (Compute with 70 billion parameters, as the note does.)
#
# Four tools print the model states of the same model, with its exact 68,976,648,192 parameters. All of them write "GB", and some mean GiB. How many bytes per parameter does each
# count, and does it mean GiB? One of them has an 8-bit optimizer.

# %% [raw] tags=["hints"]
# 840 GB are 12 bytes per parameter. Which things of which size are they?
# Divide what a tool prints by the parameters, once as GB and once as GiB. Bytes per parameter are whole numbers.
# The table in section 3.3 has three of the four. The fourth: 8-bit AdamW.

# %% tags=["exercise"]
not_adams_gb = ...
per_parameter = {"1,028 GB": ..., "1,242 GB": ..., "1,285 GB": ..., "690 GB": ...}
means_gib = {"1,028 GB": ..., "1,242 GB": ..., "1,285 GB": ..., "690 GB": ...}
### BEGIN SOLUTION
not_adams_gb = 4 * 70
per_parameter = {"1,028 GB": 16, "1,242 GB": 18, "1,285 GB": 20, "690 GB": 10}
for says, size in per_parameter.items():  # the unit in which it comes out
    printed = float(says.replace(",", "").split()[0])
    gb = size * 68_976_648_192 / 1e9
    means_gib[says] = abs(gb - printed) > 1
### END SOLUTION
check("3.1", [not_adams_gb, per_parameter, means_gib])

# %% [markdown] tags=["exercise"]
# ### 3.2 Debug: "AdamW takes twice the weights"
#
# (published mistake, note 000) "AdamW takes 8 bytes per parameter, twice as much as the
# weights." Of which weights? Give optimizer bytes divided by weight bytes for fp32 weights; for bf16
# weights without a master copy; and for bf16 weights with an fp32 master copy, counted with the optimizer.
# Adam's two numbers are fp32 in all three.

# %% [raw] tags=["hints"]
# Adam's two numbers are 8 bytes. How large is a weight?
# The master copy adds 4 bytes to the 8, beside a weight of 2.

# %% tags=["exercise"]
fp32, bf16, bf16_with_master = ..., ..., ...
### BEGIN SOLUTION
fp32 = 8 / 4
bf16 = 8 / 2
bf16_with_master = (8 + 4) / 2
### END SOLUTION
check("3.2", [fp32, bf16, bf16_with_master])

# %% [markdown] tags=["exercise"]
# ### 3.3 Debug: true of one optimizer
#
# (published mistakes, note 000) "SGD takes as much as the weights", and "8-bit AdamW takes half of the weights". Both leave out a condition. Each sentence below is
# true of one optimizer with one precision of weights. Write both: "SGD", "SGD with momentum", "AdamW" or "8-bit AdamW", a comma, and "fp32" or "bf16". All states are fp32, except
# those of 8-bit AdamW. Leave out master copies and scales.

# %% [raw] tags=["hints"]
# What does each optimizer keep from one update to the next? Plain SGD keeps nothing.
# Divide 4, 8 and 2 bytes by 4, and by 2.

# %% tags=["exercise"]
true_of = {  # for example "SGD, bf16"
    "the state is one number per parameter, and takes as much as the weights": ...,
    "the state is two numbers per parameter, and takes as much as the weights": ...,
    "the state takes half of the weights": ...,
    "the state takes four times the weights": ...,
}
### BEGIN SOLUTION
true_of = {
    "the state is one number per parameter, and takes as much as the weights": "SGD with momentum, fp32",
    "the state is two numbers per parameter, and takes as much as the weights": "8-bit AdamW, bf16",
    "the state takes half of the weights": "8-bit AdamW, fp32",
    "the state takes four times the weights": "AdamW, bf16",
}
### END SOLUTION
check("3.3", true_of)

# %% [markdown] tags=["exercise"]
# ### 3.4 Implement: bytes per parameter
#
# `weights` and `gradients` are "fp32" or "bf16". A master copy
# is kept exactly when the weights are bf16. AdamW's numbers are fp32. `fp32_buffer` says that
# gradients add up in an fp32 buffer beside bf16 gradients. Anything but the two dtypes: `ValueError`.

# %% [raw] tags=["hints"]
# Add five things: weight, gradient, buffer, master copy, Adam.
# fp32 weights need no master copy, fp32 gradients no fp32 buffer.


# %% tags=["exercise"]
def bytes_per_parameter(weights: str, gradients: str, fp32_buffer: bool = False) -> int:
    """Model-state bytes of one parameter under AdamW."""
    ### BEGIN SOLUTION
    size = {"fp32": 4, "bf16": 2}
    for name, dtype in (("weights", weights), ("gradients", gradients)):
        if dtype not in size:
            raise ValueError(
                f"{name} {dtype!r} is not fp32 or bf16: choose one of them"
            )
    master = 4 if weights == "bf16" else 0
    buffer = 4 if fp32_buffer and gradients == "bf16" else 0
    return size[weights] + size[gradients] + buffer + master + 8
    ### END SOLUTION


check("3.4", bytes_per_parameter)

# %% [markdown] tags=["exercise"]
# ### 3.5 Implement: read the ledger
#
# Add up the bytes of an optimizer's state. `optimizer.state` maps
# each parameter to a dict of tensors (and sometimes plain numbers). Leave out the counter "step".

# %% [raw] tags=["hints"]
# optimizer.state is a dict of dicts. Print one of AdamW's, and one of SGD's.
# Go through the values of the inner dicts. Not all are tensors; a tensor has .nbytes.


# %% tags=["exercise"]
def optimizer_bytes(optimizer) -> int:
    """Bytes of all state tensors, without step counters."""
    ### BEGIN SOLUTION
    return sum(
        value.nbytes
        for state in optimizer.state.values()
        for name, value in state.items()
        if torch.is_tensor(value) and name != "step"
    )
    ### END SOLUTION


check("3.5", optimizer_bytes)

# %% [markdown] tags=["exercise"]
# ### 3.6 Predict: six proposals
#
# GPT-2 1.5B in fp32 with AdamW, one sequence of 1024 tokens, does not fit on a card with 23.65 GiB usable. It uses PyTorch's cross-entropy and AdamW with `fused=True`, and its gradients live from the backward pass to the
# update. Six colleagues propose one change each. Which of them make it fit, with 1 GiB of overhead and no gaps? Predict, True or False.

# %% [raw] tags=["hints"]
# Which consumer is too large at the update: what depends on the batch, or what does not?
# Add up the bytes per parameter of each proposal. What does the master copy do to the sum?
# 1,557,611,200 parameters at 16 bytes are 23.2 GiB, and the intermediate results of one sequence 4.9 GiB, which are gone at the update. What does each proposal leave?

# %% tags=["exercise"]
fits = {
    "bf16 weights and gradients, with a master copy": ...,
    "bf16 weights, gradients and AdamW, without a master copy": ...,
    "half the sequence": ...,
    "no intermediate results at all": ...,
    "SGD with momentum": ...,
    "8-bit AdamW": ...,
}
### BEGIN SOLUTION
fits = {
    "bf16 weights and gradients, with a master copy": False,  # the same 16 bytes
    "bf16 weights, gradients and AdamW, without a master copy": True,  # but see 3.3
    "half the sequence": False,
    "no intermediate results at all": False,  # 23.2 GiB of states and the overhead
    "SGD with momentum": True,  # 12 bytes
    "8-bit AdamW": True,  # 10 bytes
}
### END SOLUTION
check("3.6", fits)

# %% [markdown] tags=["exercise"]
# ### 3.7 Calculate: 148 is more than 141
#
# A plan for an H200 has 129 GB of tensors at its peak. `nvidia-smi` gives the card 143,771 MiB; its data sheet says 141 GB. Plan with the course's fitted factor: the allocator reserves 1.15 times what the tensors take. The
# framework takes 1 GiB more. "129 times 1.15 is 148, that is more than 141", says a colleague, and wants to recompute activations. How many GiB are left (negative, if none)? Does it fit: "yes" or "no"?

# %% [raw] tags=["hints"]
# The colleague compares two numbers. Which unit does each of them have?
# Bring all of it to GiB: what nvidia-smi says, and the 148 × 10^9 bytes. Then 1 GiB more.

# %% tags=["exercise"]
left_gib, fits = ..., ...
### BEGIN SOLUTION
left_gib = 143_771 / 1024 - 1.15 * 129e9 / 2**30 - 1
fits = "yes"  # barely, and the 1.15 is fitted: another run may need more
### END SOLUTION
check("3.7", [left_gib, fits])

# %% [markdown] tags=["exercise"]
# ### 3.8 Predict: the turning point
#
# GPT-2 1.5B, recipe "mixed-16", sequence 1024. From
# which micro-batch on are the intermediate results larger than the optimizer's part? Guess
# first; then find it with `training_memory(...).consumers`.

# %% [raw] tags=["hints"]
# Which of the two changes with the micro-batch?
# Divide it by the intermediate results of micro-batch 1 and round up.

# %% tags=["exercise"]
micro_batch = ...
### BEGIN SOLUTION
shape, recipe = models.MODELS["gpt2-1.5b"], RECIPES["mixed-16"]
micro_batch = 1
while True:
    bill = training_memory(shape, recipe, micro_batch).consumers
    if bill["intermediate results"] > bill["optimizer"]:
        break
    micro_batch += 1
### END SOLUTION
check("3.8", micro_batch)

# %% [markdown] tags=["exercise"]
# ### 3.9 Debug: sort them
#
# (published mistakes, notes 003 and 000) Note 003 counts gradients and optimizer states among the
# "intermediate outputs" and calls Adam's numbers "momentum and change"; note 000 has the seven consumers, but
# no master copy. Give for each thing its consumer, by its number in section 3.2
# (1 weights, 2 gradients, 3 optimizer, 4 inputs, 5 intermediate results, 6 buffers, 7 overhead).

# %% [raw] tags=["hints"]
# Ask how long each thing lives: the last column of the table in section 3.2.
# What only the update reads and writes belongs to the optimizer.

# %% tags=["exercise"]
consumer = {
    "gradient of a weight": ...,
    "running mean of the squared gradient": ...,
    "fp32 master copy": ...,
    "output of GELU, kept for backward": ...,
    "gradient of the logits, freed at once": ...,
    "CUDA context": ...,
}
### BEGIN SOLUTION
consumer = {
    "gradient of a weight": 2,
    "running mean of the squared gradient": 3,
    "fp32 master copy": 3,
    "output of GELU, kept for backward": 5,
    "gradient of the logits, freed at once": 6,
    "CUDA context": 7,
}
### END SOLUTION
check("3.9", consumer)

# %% [markdown] tags=["exercise"]
# ### 3.10 Debug: two tracebacks
#
# Two runs in fp32 end with "CUDA out of memory". Both have PyTorch's cross-entropy and its AdamW with `foreach`, and gradients that live from the backward pass to the update.
#
# - A: GPT-2 124M, micro-batch 16 of 1024 tokens. The traceback ends in the first operation of `loss.backward()`.
# - B: GPT-2 1.5B, micro-batch 2. The traceback ends in `optimizer.step()`.
#
# Which changes make the peak smaller? True or False for each.

# %% [raw] tags=["hints"]
# Which of the four points of section 3.4 is the peak of A, and which that of B?
# A change helps if it makes something smaller that is there at that point.
# At the update no intermediate results and no logits are left; the optimizer's states are there at every point.

# %% tags=["exercise"]
helps = {
    "A: half the micro-batch": ...,
    "A: fused=True in AdamW": ...,
    "A: a loss that writes its gradient over the logits": ...,
    "A: 8-bit AdamW": ...,
    "B: half the micro-batch": ...,
    "B: fused=True in AdamW": ...,
    "B: a loss that writes its gradient over the logits": ...,
    "B: 8-bit AdamW": ...,
}
### BEGIN SOLUTION
helps = {
    "A: half the micro-batch": True,
    "A: fused=True in AdamW": False,  # the update is not the peak
    "A: a loss that writes its gradient over the logits": True,
    "A: 8-bit AdamW": True,  # states are there at every point
    "B: half the micro-batch": False,  # no intermediate results are left at the update
    "B: fused=True in AdamW": True,
    "B: a loss that writes its gradient over the logits": False,
    "B: 8-bit AdamW": True,
}
### END SOLUTION
check("3.10", helps)

# %% [markdown] tags=["exercise"]
# ### 3.11 Build: AdamW with a master copy
#
# Write AdamW yourself, and the fp32 master copy of bf16 weights around it. With $g$ the gradient and $n$ the number of the update:
#
# $$m \leftarrow \beta_1 m + (1-\beta_1)\,g, \qquad v \leftarrow \beta_2 v + (1-\beta_2)\,g^2, \qquad
# w \leftarrow w - \text{lr} \cdot \text{decay} \cdot w - \text{lr}\,\frac{m / (1-\beta_1^n)}{\sqrt{v / (1-\beta_2^n)} + \epsilon}$$
#
# The check follows three updates of the arithmetic; then 20 of bf16 weights beside torch's AdamW in fp32; then it counts the bytes. What passes is kept as `mine/master_adamw.py`. Exercise 3.12 and
# `course demo optimizers --parts mine` run on it.

# %% [raw] tags=["hints"]
# momentum = β₁ · momentum + (1 - β₁) · gradient, and the same of the gradient's square with β₂. Both began at zero: after n updates, which part of a mean do they hold?
# Divide each by 1 - β^step, but keep the moments themselves as they are. The weight shrinks by lr · weight_decay of itself, and loses lr · mean / (root + eps).
# In place: `momentum.mul_(β).add_(gradient, alpha=1 - β)`; `weight.sub_(…)`.
# `weight.detach().float()` is made once, in `__init__`. In `step`, under `@torch.no_grad()`: update it with the gradient in fp32, then `weight.copy_(…)` rounds.

# %% tags=["exercise"]
from collections.abc import Iterable

import torch
from torch import Tensor, nn

### BEGIN GIVEN


def adamw_update(
    weight: Tensor,
    gradient: Tensor,
    momentum: Tensor,
    variance: Tensor,
    *,
    step: int,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.01,
) -> None:
    """Update number `step` (from 1) of `weight`, `momentum` and `variance`, in place.

    All have one shape and dtype. `gradient` stays as it is.
    """
    ...


class MasterAdamW:
    """AdamW on fp32 copies of bf16 weights, rounded back into them after each update.

    `self.state` is a dict: for each parameter a dict with the fp32 tensors
    "master_copy", "momentum" and "variance", and what else you need that is no tensor.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], lr: float, weight_decay: float = 0.01
    ) -> None:
        """`parameters` may be an iterator: go through it once."""
        ...

    @torch.no_grad()
    def step(self) -> None:
        """One update by the gradients in `.grad`; a weight without one stays as it is."""
        ...


### END GIVEN
### BEGIN SOLUTION
from course_lib import show_source
from course_lib.scratch.precision import MasterAdamW, adamw_update

### END SOLUTION

check("3.11", [adamw_update, MasterAdamW])

# %% [markdown] tags=["exercise"]
# ### 3.12 Build: moments of one byte
#
# Write the 8-bit optimizer of section 3.3: `quantise`, `dequantise`, and AdamW that keeps its moments so. A block is `block` values in a row of the flattened tensor; the last one may be shorter.
# `levels` are sorted. Both maps are given, as `linear_levels(signed)` and `dynamic_levels(signed)`: choose one for each moment. `mine.adamw_update` is yours from 3.11, or the course's. (On a GPU, move `levels` to where the values are.)
#
# The check quantises tensors whose sizes no block divides, counts the bytes, and trains a small GPT beside fp32 AdamW. What passes is kept as `mine/eight_bit.py`, and runs in `course demo optimizers --parts mine`.

# %% [raw] tags=["hints"]
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
