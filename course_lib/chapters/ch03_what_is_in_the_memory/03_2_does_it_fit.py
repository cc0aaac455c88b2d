# %% [raw] tags=["sitting"]
# question: Which point of an update decides whether a model fits?
# importance: 5
# difficulty: 3
# group: alone

# %% [markdown]
# # 3 Does it fit?
#
# The model states of GPT-2 124M take 2.0 GB. Train it in fp32 on 8 sequences of 1024 tokens, and at its fullest point the memory holds 12.4 GB. **What are the other ten
# gigabytes, which point of the update needs them all, and does the model fit on a card of 24 GB?**
#
# By the end of this sitting you can
#
# - compute what grows with the batch, and the peak of an update,
# - decide whether a model fits before you rent the GPU,
# - read the three meters of a GPU, and choose the first measure when memory is out,
# - say what autocast saves.

# %%
from dataclasses import replace

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from course_lib import (
    expect,
    launch,
    measure,
    predict,
    scratch,
    show_source,
    style,
)
from course_lib.chapters.ch03_what_is_in_the_memory import figures
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
    models,
    training_memory,
    units,
)

launch.warm_up()
torch.set_num_threads(1)

# %% [markdown]
# ## 3.4 The rest: inputs, intermediate results, buffers, overhead
#
# **Inputs and labels** are two int64 numbers for each token, 16 bytes. A batch of 8 × 1024 tokens takes 131 kB, next to nothing.
#
# **Intermediate results.** The backward pass needs what the forward pass has computed: the input of every matrix, of every norm and of the activation function (激活函数), here GELU. A layer has two halves: attention, which makes a query, a key and a value (q, k, v) of each token and mixes the values, and the MLP (前馈网络), two matrices around GELU. Each begins with a norm, and adds its result to the *stream*.
# Each token is a row of $h$ numbers; $h$ is the hidden size (隐藏维度). With sequence $s$ and micro-batch $b$, one such tensor has $sbh$ numbers. For a small GPT with $h = 64$, in fp32, and 8 samples of 64 tokens, that is $64 \cdot 8 \cdot 64 \cdot 4$ bytes, 131 kB. Here is what one of its layers keeps for the backward pass:

# %% tags=["drawing"]
small_shape = TransformerShape(
    layers=2, hidden=64, heads=4, ffn=256, vocab=VOCAB, context=64
)
# torch's loss and gradients, and AdamW with fused=True
eager = replace(
    RECIPES["fp32-16"], loss="eager", gradient_life="backward", update="fused"
)
walk = layer_walk(Job(small_shape, RECIPES["fp32-16"], Layout(micro_batch=8)))
waits = walk.trace.held(10)[0]  # after the forward pass of ten operations
sizes = {tensor.name: kept.bytes for tensor, kept in waits.items()}
title = "One layer after its forward pass, 8 × 64 tokens, fp32"
figures.bars(sizes, units.format_bytes, title, style.ACTIVATIONS)

# %% [markdown]
# | what is kept | times $sbh$ numbers |
# |---|---|
# | the inputs of the two norms: `the layer's input` and `the stream` | 2 |
# | the input of the q-k-v matrix, `norm 1's result`, and q, k and v | 4 |
# | attention's result | 1 |
# | the input of the MLP, `norm 2's result` | 1 |
# | the input and the result of GELU, each $4h$ wide | 8 |
#
# Together they are $16\,sbh$ numbers: $64\,sbh$ bytes in fp32, $32\,sbh$ in bf16. Outside the layers come the inputs of the last norm and of the
# head, and the log-probabilities in fp32, $4\,sbv$ bytes with a vocabulary of $v$. (Chapter 4 has the general formula.)
#
# A hook sees each tensor that PyTorch keeps. So check the formula:

# %%
show_source(measure.gradients.saved_bytes)

# %%
small = scratch.gpt.GPT(layers=2, hidden=64, heads=4, vocab=VOCAB, context=64)
text = Windows(sequence=64)
inputs, labels = text.batch(range(8))


def forward():
    """Loss of the 8 samples."""
    return scratch.accumulation.loss_sum(small(inputs), labels)


kept = measure.gradients.saved_bytes(forward, small)
sbh = 8 * 64 * 64
by_hand = 2 * 64 * sbh + 2 * 4 * sbh + 4 * 8 * 64 * VOCAB
expect(by_hand, kept, within=0.02, label="kept for backward", unit="B")

# %% [markdown]
# ### Deeper: the last percent
#
# The measurement is 1 % above the formula, and we can say to the byte why. Each of the 5 norms keeps a mean and a scale for each token. Each attention keeps one number per head and token,
# which it needs to compute the softmax again. The rest are inputs, positions, labels and one counter.

# %%
tokens, layers, heads = 8 * 64, 2, 4
statistics = (2 * layers + 1) * 2 * tokens * 4  # mean and scale, fp32
softmax = layers * heads * tokens * 4  # log of the softmax's sum, fp32
indices = 2 * tokens * 8 + 64 * 8 + 4  # inputs, labels, positions; a counter
assert kept == by_hand + statistics + softmax + indices

# %% [markdown]
# ### Buffers and overhead
#
# **Temporary buffers** live for one operation, and still count, because memory must hold the peak. The largest often belong to the logits (逻辑值),
# the outputs of the last layer: one number for each token and each word of the vocabulary. PyTorch's cross-entropy keeps their log-probabilities in fp32, and its backward pass makes two gradients of the same size before it frees the first. So three tensors of
# $4\,sbv$ bytes exist at once: 12 bytes for each logit. For GPT-2 124M with 8 × 1024 tokens and a vocabulary of 50,257 they are 4.9 GB, ten times the update's buffers of 4 bytes per parameter. A loss that writes its gradient over the logits needs far less.

# %% tags=["drawing"]
rows = {}
for name, micro_batch in (("gpt2-124m", 8), ("gpt2-1.5b", 1)):
    model = models.MODELS[name]
    layout = Layout(micro_batch=micro_batch)
    job = Job(model, Recipe(loss="eager"), layout, sequence=1024)
    copies = loss_copies(job)
    each = copies.kept_bytes + copies.temporary_bytes
    logits, update = each * logit_count(job), 4 * model.parameters().total
    rows[f"{name}, micro-batch {micro_batch}"] = {"logits": logits, "update": update}
    assert (logits > update) == (name == "gpt2-124m")
looks = {"logits": style.TEMPORARY, "update": style.UPDATE}
figures.grouped_bars(rows, "Temporary buffers", units.format_bytes, looks)

# %% [markdown]
# **Framework overhead** has no formula. PyTorch's first use of CUDA may take 0.5 to 2 GB (Bekman, *Machine Learning Engineering*, training/performance), and NCCL 688 MiB for a group of four
# A100s (NVIDIA/nccl, issue 964). This course takes 1 GiB, by convention.

# %% [markdown]
# ### The peak is one point of the step
#
# The seven consumers are never there all at once, so their sum is too high. An update has four points at which the most memory may be needed:
#
# | point | weights, optimizer | intermediate results | gradients | temporary buffers |
# |---|---|---|---|---|
# | loss | all | all | none yet | two gradients of the logits |
# | backward begins, in the last layer | all | all but the loss's | none yet | gradients inside the layer |
# | backward ends, in the first layer | all | of one layer | all | gradients inside the layer |
# | update | all | none | all | the optimizer's |
#
# That is PyTorch's way, in which `zero_grad` throws the gradients away. Megatron-LM and DeepSpeed keep a buffer for them all the time. Here are the four points of our small
# GPT, and the peak of a real update:


# %%
def second_update(gpt, batch, labels):
    """Peak bytes of the second update, in which AdamW's states are there."""
    adamw = torch.optim.AdamW(gpt.parameters(), fused=True)

    def loss():
        return cross_entropy(gpt(batch).flatten(0, 1), labels.flatten())

    one_step = measure.memory_over_time.one_step
    one_step(gpt, adamw, loss, [batch, labels])
    return one_step(gpt, adamw, loss, [batch, labels]).peak_bytes


# %%
job = Job(small_shape, eager, Layout(micro_batch=8))
points = memory_moments(job, overhead_bytes=0)
peak = second_update(small, inputs, labels)
in_theory = max(bill.total_bytes for bill in points.values())
expect(in_theory, peak, within=0.03, label="peak", unit="B")

# %% tags=["drawing"]
rows = {
    name: {part: size for part, size in bill.consumers.items() if size}
    for name, bill in points.items()
}
assert max(points, key=lambda name: points[name].total_bytes) == "loss"
figures.stacked_bars(rows, "Four points of the update", units.format_bytes)

# %% [markdown]
# Here the loss is the peak.
#
# **Remember**
# - One layer keeps about $16\,sbh$ numbers for the backward pass. Each logit takes 12 bytes in PyTorch.
# - The peak is the largest of four points, not the sum of everything.

# %% [markdown]
# ## 3.8 Your own bill
#
# The bars show the largest of the four points. Move the sliders:
#
# 1. Which is the largest model whose training fits on 80 GB with AdamW?
# 2. GPT-2 1.5B, sequences of 1024: from which micro-batch on do the intermediate results outweigh the optimizer?
# 3. How much does 8-bit AdamW save on LLaMA-2 7B?
#
# The panel assumes flash attention (闪存注意力), which does not store a number for every pair of tokens.

# %%
from course_lib.chapters.ch03_what_is_in_the_memory import panels

panels.memory()

# %% [markdown]
# **Answers.** (1) gpt-3.6b. At 16 bytes per parameter, 80 GB are gone with 5 billion parameters. (2) Micro-batch 7 in the formula, so 8 on the slider: one sequence keeps 2.7 GB, and the optimizer 18.7 GB. (3) 6
# of the optimizer's 12 bytes per parameter, 40.4 GB.

# %%
mixed = RECIPES["mixed-16"]
bills = {n: training_memory(models.MODELS["gpt2-1.5b"], mixed, n) for n in (6, 7)}
outweighs = {
    n: bill.consumers["intermediate results"] > bill.consumers["optimizer"]
    for n, bill in bills.items()
}
assert outweighs == {6: False, 7: True}
seven = models.MODELS["llama2-7b"].parameters().total
assert round(6 * seven / units.GB, 1) == 40.4

# %% [markdown]
# ## 3.5 What the meters show
#
# A GPU has three meters, and they differ:
#
# | meter | counts |
# |---|---|
# | `torch.cuda.max_memory_allocated()` | tensors |
# | `torch.cuda.max_memory_reserved()` | all that PyTorch's **caching allocator** (缓存分配器) holds: tensors, and blocks that no tensor uses at the moment |
# | `nvidia-smi` | the reserved bytes, the CUDA context, NCCL's buffers |
#
# The driver is slow to give memory. So the allocator asks it for large segments, cuts blocks out of them, and keeps what is freed for the next tensor. A free block that is a little too small is a gap (**fragmentation**, 显存碎片). For example, a
# batch padded to 1,050 tokens does not fit into the blocks that one of 1,000 tokens left behind.
#
# How large are the gaps? torchtitan publishes the reserved bytes of 16 runs with sequences of one length. Divided by the tensors that this course *predicts*, they are between 1.00 and 1.25, in the
# median 1.17 (benchmarks/README.md, *measured runs*). Rounded to a twentieth, the course plans with **1.15**. This factor is fitted, not measured: it covers the gaps and whatever the formulas miss.
#
# With changing lengths they can be far larger. Reinforcement learning with Qwen2.5 7B reserved at most 127 GiB on one of two GPUs. With the setting
# `PYTORCH_ALLOC_CONF=expandable_segments:True`, which lets segments grow, it was 97 GiB (nvidia-cosmos/cosmos-rl, pull request 388). So at least 30 GiB were gaps.

# %% [markdown]
# ### When memory is out
#
# Read the traceback first. It says at which point of the step memory ran out, and how many GiB are "reserved by PyTorch but unallocated":
#
# | what you see | what is too large | what helps, the cheapest first |
# |---|---|---|
# | many GiB "reserved but unallocated" | gaps | expandable segments; pad batches to a few lengths |
# | each step holds more than the one before | a leak | detach what is kept, such as losses in a list (the deeper sitting finds the line) |
# | in the loss, or where backward begins | intermediate results, logits | a loss that keeps no copies of the logits; a smaller micro-batch with accumulation (chapter 2); autocast (section 3.6); recomputation (chapter 4) |
# | in `optimizer.step()`, and model states alone would fit | the update's buffers | `fused=True` |
# | model states alone exceed the card | model states | 8-bit AdamW; else divide them among GPUs (chapters 8 and 9). No smaller batch helps |
#
# **Remember**
# - Compare allocated with reserved bytes before you buy a larger card. The course plans with 1.15 times the tensors and 1 GiB of overhead.
# - The point of the step says what is too large, and so what helps.

# %% [markdown]
# ## 3.6 Mixed precision in practice: autocast
#
# Megatron-LM and DeepSpeed cast the whole model to bf16 and keep a master copy beside it (section 3.3). PyTorch's own way leaves the model in fp32. Inside **autocast** (自动混合精度) each operation gets its own format. Listen to some of them:

# %%
formats = {}


def hear(operator, arguments, options, result):
    """Note which operators give results in which format; views and copies left out."""
    result = result[0] if isinstance(result, tuple) else result
    name = operator.overloadpacket.__name__
    if name in ("addmm", "mm", "gelu", "native_layer_norm", "add", "_log_softmax"):
        formats.setdefault(str(result.dtype), set()).add(name)


with torch.autocast("cpu", torch.bfloat16), measure.wire.Listener(hear):
    loss = cross_entropy(small(inputs).flatten(0, 1), labels.flatten())
loss.backward()
assert {p.grad.dtype for p in small.parameters()} == {torch.float32}
formats

# %% [markdown]
# Matrix products (`addmm`, `mm`) run in bf16, and so does what follows them directly. Norms, the loss, and the additions to the stream stay in fp32. The weights are cast on their way in, and their gradients are
# cast back to fp32. On a GPU the lists are much the same (docs.pytorch.org/docs/stable/amp.html, "Op-Specific Behavior").
#
# **Predict.** bf16 takes half the bytes of fp32. What share of its 4.76 MB does the small GPT still keep for the backward pass? Go through the table of section 3.4: which of the 16 are still fp32? One thing is new: the
# bf16 copies of the matrices stay until the backward pass has used them.

# %%
share = predict("3.autocast", "Kept under autocast / in fp32?", yours=None)


# %%
def forward_in_bf16():
    """The loss of the 8 samples, under autocast."""
    with torch.autocast("cpu", torch.bfloat16):
        return scratch.accumulation.loss_sum(small(inputs), labels)


in_layers = 2 * (2 * 4 + 14 * 2) * sbh  # inputs of the norms; all the rest
in_head = (4 + 2) * sbh + 4 * 8 * 64 * VOCAB
copies = 2 * (2 * 12 * 64**2 + 64 * VOCAB)
kept_then = measure.gradients.saved_bytes(forward_in_bf16, small)
expect(
    (in_layers + in_head + copies) / by_hand,
    kept_then / kept,
    within=0.02,
    label="kept under autocast / in fp32",
    yours=share,
)

# %% tags=["drawing"]
parts = {
    "fp32": {
        "norms' inputs": 2 * 8 * sbh,
        "rest of the layers": 2 * 56 * sbh,
        "head": 8 * sbh + 4 * 8 * 64 * VOCAB,
    },
    "autocast": {
        "norms' inputs": 2 * 8 * sbh,
        "rest of the layers": 2 * 28 * sbh,
        "head": in_head,
        "bf16 copies of the matrices": copies,
    },
}
assert sum(parts["fp32"].values()) == by_hand
figures.stacked_bars(parts, "Kept for the backward pass", units.format_bytes)

# %% [markdown]
# **Explain.** 65 %, and not half. In each layer the inputs of the two norms still have 4 bytes a number: $2 \cdot 4 + 14 \cdot 2 = 36$ bytes × $sbh$ in place of 64. The log-probabilities stay in fp32 as well, and the copies of the matrices take
# 2 bytes per parameter however small the batch is.
#
# And the model states? Weights 4, gradients 4, AdamW 8: again **16 bytes per parameter**. The fp32 weights *are* the master copy. Autocast saves intermediate results and time, but no model states. (fp16 and fp8: the deeper sitting.)
#
# **Remember**
# - bf16 with a master copy and autocast both take 16 bytes per parameter.
# - Under autocast matrix products are bf16; norms, the loss and the weights stay fp32.

# %% [markdown]
# ## A batch on two ranks
#
# Two processes, called **ranks**, each hold the whole model and take 4 of the 8 samples. (Chapter 7 averages their gradients.)
#
# **Predict.** Divide the peak of a rank by that of one process with all 8 samples. The figure of the four points has all you need.

# %%
smaller = predict("3.two_ranks", "Peak of a rank / of one process?", yours=None)


# %%
def peak_of_rank(samples):
    """Peak of this rank's second update on its share of the samples."""
    torch.set_num_threads(1)
    each = samples // dist.get_world_size()
    first = each * dist.get_rank()
    gpt = scratch.gpt.GPT(layers=2, hidden=64, heads=4, vocab=VOCAB, context=64)
    return second_update(gpt, *text.batch(range(first, first + each)))


ranks = launch.run(peak_of_rank, 8, ranks=2, stream=False)

# %%
half = Job(small_shape, eager, Layout(micro_batch=4))
theory = max(
    bill.total_bytes for bill in memory_moments(half, overhead_bytes=0).values()
)
expect(
    theory / in_theory,
    max(ranks) / peak,
    within=0.02,
    label="peak of a rank / of one process",
    yours=smaller,
)

# %% [markdown]
# **Explain.** 60 %. Intermediate results and logits are halved, from 5.2 MB to 2.6 MB. Weights and AdamW's states, 1.3 MB, are on both ranks in full. So a second GPU helps less the larger the model is: LLaMA-2 7B needs 108 GB on every rank. Chapter 8 divides that part.

# %% [markdown]
# ## The answer

# %%
# foreach: torch's AdamW as it comes on a GPU
gpt2, in_fp32 = models.MODELS["gpt2-124m"], replace(eager, update="foreach")
for micro_batch in (8, 16):
    job = Job(gpt2, in_fp32, Layout(micro_batch=micro_batch), sequence=1024)
    points = memory_moments(job)
    at = max(points, key=lambda name: points[name].total_bytes)
    planned = 1.15 * (points[at].total_bytes - units.GIB) + units.GIB
    print(f"{micro_batch} sequences: peak at the {at}, plan {planned / 1e9:.1f} GB")
    print(points[at].explain("GB"), end="\n\n")
    assert (planned < 24 * units.GB) == (micro_batch == 8)

# %% [markdown]
# The fullest point is the **loss**. The other ten gigabytes are 6.5 GB of intermediate results, 3.3 GB of gradients of the logits and 1.07 GB of overhead, while the gradients of the weights are not there yet. With the
# factor 1.15 for gaps the plan is 14 GB. So 8 sequences fit on 24 GB. 16 do not: 22.2 GB would, but with gaps they are 25.4. (A card of 24 GiB would have 0.4 GB to spare.)

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
# Memory runs out in optimizer.step(). Does a smaller micro-batch help?
# [x] no, at this point nothing depends on the batch
# [ ] yes, it halves the intermediate results
# [ ] yes, it halves the gradients
# Why: In the update the intermediate results are gone, and gradients are as large as the weights.
#
# Your fp32 model trains under autocast in bf16, with AdamW. Model states per parameter?
# [ ] 8 bytes
# [ ] 12 bytes
# [x] 16 bytes
# Why: 4 + 4 + 8, as without autocast: it saves intermediate results and time.

# %% [markdown]
# **Read on.** Korthikanti et al. 2022, section 4 (arXiv:2205.05198): activations, for chapter 4. PyTorch, *Understanding CUDA Memory Usage* (docs.pytorch.org/docs/stable/torch_cuda_memory.html).

# %% [markdown] tags=["exercise"]
# ### 3.6 Predict: six proposals
#
# GPT-2 1.5B in fp32 with AdamW, one sequence of 1024 tokens, does not fit on a card with 23.65 GiB usable. It uses PyTorch's cross-entropy and AdamW with `fused=True`, and its gradients live from the backward pass to the
# update. Six colleagues propose one change each. Which of them make it fit, with 1 GiB of overhead and no gaps? Predict, True or False.

# %% [raw] tags=["hints"]
# importance 5, difficulty 3
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
# importance 3, difficulty 2
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
# ### 3.10 Debug: two tracebacks
#
# Two runs in fp32 end with "CUDA out of memory". Both have PyTorch's cross-entropy and its AdamW with `foreach`, and gradients that live from the backward pass to the update.
#
# - A: GPT-2 124M, micro-batch 16 of 1024 tokens. The traceback ends in the first operation of `loss.backward()`.
# - B: GPT-2 1.5B, micro-batch 2. The traceback ends in `optimizer.step()`.
#
# Which changes make the peak smaller? True or False for each.

# %% [raw] tags=["hints"]
# importance 5, difficulty 3
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
# ### 3.14 Debug: which measure first?
#
# Six runs are out of memory. Which measure do you try first, because it removes the cause and slows the training least? Choose among `"expandable segments"`, `"detach"`, `"micro-batch"` (halve it, and accumulate twice), `"fused"` (`fused=True` in AdamW),
# `"divide"` (the model states, among GPUs) and `"recompute"`.
#
# - A: Batches are padded to their longest text. 9.8 GiB are "reserved by PyTorch but unallocated".
# - B: Each step holds 40 MB more than the one before. The run dies after 900 steps.
# - C: 1.5 billion parameters, 16 bytes each, on a card of 80 GB. It dies in `loss.backward()` with micro-batch 32.
# - D: 1.5 billion parameters, 16 bytes each, on a card of 24 GB. It dies in the first `optimizer.step()`, with micro-batch 1.
# - E: 1.2 billion parameters, 16 bytes each, on a card of 24 GB, AdamW with `foreach`, short sequences of one length. It dies in `optimizer.step()`.
# - F: As C, but micro-batch 1 with one sequence of 65,536 tokens, and it dies in the last layers of the forward pass.

# %% [raw] tags=["hints"]
# importance 4, difficulty 3
# The table of section 3.5: at which point did each run die, and what is there at this point?
# D: what do the model states alone take? E: what do they take, and 4 bytes per parameter more?
# F: which of the measures makes smaller what a single sequence keeps?

# %% tags=["exercise"]
first = {"A": ..., "B": ..., "C": ..., "D": ..., "E": ..., "F": ...}
### BEGIN SOLUTION
first = {
    "A": "expandable segments",
    "B": "detach",
    "C": "micro-batch",  # 24 GB of states: the rest is the batch
    "D": "divide",  # 24 GB of states alone
    "E": "fused",  # 19.2 GB of states, and 4.8 GB of buffers in the update
    "F": "recompute",  # one sequence cannot be halved
}
### END SOLUTION
check("3.14", first)
