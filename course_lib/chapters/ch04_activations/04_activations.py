# %% [markdown]
# # 4 Activations and recomputation
#
# LLaMA-2 70B, 8 sequences of 4096 tokens, sixteen GPUs with 80 GB: 1280 GB in all. The model states take 1104 GB
# (chapter 3); suppose that they are spread evenly. The *intermediate results* of one forward pass are another 730 GB,
# says note 004, which counts at least 24 GPUs for all of it. You could throw the intermediate results away and compute them again
# when needed. "That costs 40 times the computation", says the same note. Do you buy 8 more GPUs, throw activations away, or is there a third answer?
#
# By the end of this chapter you can
#
# - list what a transformer layer keeps for the backward pass, and derive 34 bytes × sbh,
# - say which of the published formulas fits your model, and why 730 GB fits almost nobody's,
# - throw activations away with forty lines of code, and predict what that saves and costs,
# - say when it is better to move them to the host's memory,
# - explain why 40× is a myth.
#
# Time: about 80 minutes. The exercises take an hour more, half of it for your own checkpoint (4.6). You need chapter 3.

# %%
from dataclasses import replace

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

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
from course_lib.chapters.ch04_activations import figures, segments
from course_lib.demos.shared.text import VOCAB, Windows
from course_lib.measure.gradients import saved_bytes
from course_lib.theory import (
    OVERHEAD_BYTES,
    RESERVED_OVER_ALLOCATED,
    Job,
    Layout,
    Recipe,
    TransformerShape,
    activations,
    as_framework_does,
    flops,
    gpu_memory,
    hardware,
    memory_moments,
    metered_bytes,
    models,
    step_timeline,
    units,
)

launch.warm_up()
torch.set_num_threads(1)

# %% [markdown]
# **Predict.** You throw all intermediate results away but the input of each layer, and recompute each layer
# when its turn comes in the backward pass. By what factor does the number of operations grow?

# %%
factor = predict("4.factor", "Operations with / without?", yours=None)

# %% [markdown]
# ## 4.1 Why anything is kept
#
# $y = w \cdot x$. The gradient of $w$ is $\nabla y \cdot x$: without $x$ there is no gradient. So an operation that
# multiplies keeps its input until the backward pass comes back. What is kept are the **activations** (激活值).
# An addition keeps nothing: its gradient is 1, whatever was added.
#
# Functions that are not linear keep something as well, because their *derivative* depends on a value:
#
# - $y = \sigma(x)$, for example GELU: $\nabla x = \sigma'(x)\,\nabla y$, and $\sigma'$ must be taken at $x$. It keeps its input.
# - softmax, $p_i = e^{x_i} / \sum_j e^{x_j}$: $\nabla x_i = p_i\,(\nabla p_i - \sum_j p_j \nabla p_j)$. It keeps its result.
# - a norm divides $x$ by a size that it computes from $x$: the derivative depends on both. It keeps its input, and one size for each token.
#
# And dropout multiplies by a mask of 0s and 1s, so it keeps the mask.

# %%
numbers = torch.randn(8, requires_grad=True)
assert saved_bytes(lambda: numbers + 1, torch.nn.Module()) == 0
assert torch.equal(torch.nn.functional.gelu(numbers).grad_fn._saved_self, numbers)
p = numbers.softmax(0)
assert torch.equal(p.grad_fn._saved_result, p)
of_p = torch.randn(8)
(of_numbers,) = torch.autograd.grad(p, numbers, of_p)
assert torch.allclose(of_numbers, p * (of_p - p @ of_p), atol=1e-6)

# %% [markdown]
# Take one layer of GPT-3: hidden size $h = 12288$, $a = 96$ heads, a sequence of $s = 2048$ tokens, micro-batch
# $b = 1$, 16-bit numbers. One tensor of $s \cdot b \cdot h$ numbers is $2048 \cdot 12288 \cdot 2 = 50.3$ MB.
#
# Walk through the layer, first forward, then backward. Each operation says which tensors it must keep; they stay until its
# own backward has used them. Before you start: which operation keeps most, and which keep nothing but a small mask?

# %%
from course_lib.chapters.ch04_activations import steppers

steppers.layer()

# %% [markdown]
# Attention keeps most, because of its scores. The two additions keep only the masks of the dropout in front of them, one *byte* a number. What was kept first is used
# last, so the pile is highest between the two passes, while all the other layers run.
#
# Without the scores the layer keeps 856 MB. In units of $sbh$ bytes, and by the rules above:
#
# | kept | because | bytes / $sbh$ |
# |---|---|---|
# | the inputs of attention's and of the MLP's first matrix | matrices multiply | 2 · 2 |
# | queries, keys, values | attention multiplies them with each other | 3 · 2 |
# | attention's result | the output matrix multiplies it | 2 |
# | the result of GELU, $4h$ wide | the MLP's second matrix multiplies it | 8 |
# | the input of GELU, $4h$ wide | its derivative depends on it | 8 |
# | the inputs of the two norms | their derivatives depend on them | 2 · 2 |
# | two dropout masks, a byte a number | dropout multiplies by them | 2 · 1 |
# | **sum** | | **34** |
#
# Then there are the attention scores: for each head a table of all pairs of tokens, $a \cdot s^2 \cdot b$ numbers. They are kept three times: the
# softmax's result for its own derivative (2 bytes), its dropout mask (1), the result of the dropout, which multiplies the values (2). Together
#
# $$s\,b\,h\left(34 + 5\,\frac{a\,s}{h}\right) \text{ bytes per layer}$$
#
# (Korthikanti et al. 2022, arXiv:2205.05198, equation 1). With $5 \cdot 96 \cdot 2048 / 12288 = 80$, the scores are
# more than twice everything else.

# %%
gpt3 = models.MODELS["gpt3-175b"]
paper = Recipe(attention="standard", dropout=True)
terms = activations.activation_terms(Job(gpt3, paper, sequence=2048))
print(terms.explain())
assert terms.total_bytes == 2048 * 12288 * (34 + 80)

# %% [markdown]
# ### The same on your machine
#
# Our own GPT has no dropout, and in fp32 each number has 4 bytes.
#
# **Predict.** One block with hidden size 64 and 4 heads, 2 sequences of 128 tokens. First with PyTorch's fused
# attention, which keeps no scores. Go through the operations of the layer: what becomes of each tensor?

# %%
kept = predict("4.block", "Bytes kept by the block?", yours=None, unit="B")

# %%
shape = TransformerShape(
    layers=1, hidden=64, heads=4, ffn=256, vocab=VOCAB, context=512
)
fp32 = Recipe(parameters="fp32", gradients="fp32", master_copy=False)
per_layer = activations.layer_activation_bytes(
    Job(shape, fp32, Layout(micro_batch=2), sequence=128)
)
assert per_layer == 64 * 2 * 128 * 64
block = scratch.gpt.Block(hidden=64, heads=4)
x = torch.randn(2, 128, 64)
fused = saved_bytes(lambda: block(x).sum(), block)
expect(per_layer, fused, within=0.01, label="kept by the block", unit="B", yours=kept)

# %% [markdown]
# **Explain.** Without the two masks it is 32 bytes × $sbh$ in 16 bits, and 64 in fp32. The measurement is 0.8 % higher, and we can say why, to the byte: each norm keeps a mean and a scale per token, and fused
# attention keeps one number per head and token, with which it can redo the softmax.

# %%
tokens = 2 * 128
assert fused == per_layer + 2 * 2 * tokens * 4 + 4 * tokens * 4

# %% [markdown]
# Now attention written as plain matrix products. The table of scores has $a s^2 b$ numbers of 4 bytes. Without dropout it
# is kept once.
#
# **Predict.** By which factor does the block keep more then?

# %%
with_scores = predict("4.with_scores", "Bytes with scores / without?", yours=None)

# %%
with sdpa_kernel(SDPBackend.MATH):
    plain = saved_bytes(lambda: block(x).sum(), block)
scores = 4 * 4 * 128**2 * 2
expect(scores, plain - fused, within=0.04, label="the scores", unit="B")
expect(
    1 + scores / per_layer,
    plain / fused,
    within=0.01,
    label="with / without",
    yours=with_scores,
)
assert scores - (plain - fused) == 4 * tokens * 4 == 4096

# %% [markdown]
# The gap is 4096 bytes: the numbers with which fused attention redoes the softmax. Plain attention does not need them. Double the sequence and the
# scores quadruple, while everything else doubles. That is why
# **flash attention** (闪存注意力) never stores them: it computes them again in the backward pass, piece by piece, in the chip's
# small fast memory (Dao et al. 2022, arXiv:2205.14135).
#
# **Remember**
# - A multiplication keeps its input. A function that is not linear keeps what its derivative depends on. An addition keeps nothing.
# - 34 bytes × sbh per layer: 16 bits, GELU with $4h$, dropout. Plus $5as^2b$ with standard attention.
# - Check the assumptions before you use the number.

# %% [markdown]
# ## 4.2 Whose formula is it?
#
# Modern models are not GPT-3. LLaMA has no dropout, so no masks. It uses SwiGLU (门控线性单元), an MLP with three
# matrices, which keeps four tensors instead of two, each $2.7h$ to $3.5h$ wide. LLaMA-2 70B has 8 key-value heads for 64 query
# heads, **grouped-query attention** (分组查询注意力): its keys and values are small. And nearly everyone uses flash attention.
#
# The 730 GB of note 004 are $4096 \cdot 8 \cdot 8192 \cdot 80 \cdot 34$ bytes. The arithmetic is right. But the 34 is for a model with GELU and dropout, whose
# scores are recomputed. Ask the function, which has each of these as a parameter:

# %%
llama = models.MODELS["llama2-70b"]
notes = 4096 * 8 * 8192 * 80 * 34
real = 80 * activations.layer_activation_bytes(
    Job(llama, Recipe(), Layout(micro_batch=8), sequence=4096)
)
unfused = 80 * activations.layer_activation_bytes(
    Job(llama, Recipe(attention="standard"), Layout(micro_batch=8), sequence=4096)
)
assert round(notes / 1e9, 1) == 730.1
assert (round(real / 1e9), round(unfused / 1e12, 2)) == (870, 2.24)
figures.stacked_bars(
    {
        "note 004": {"activations": notes},
        "flash attention": {"activations": real},
        "standard attention": {"activations": unfused},
    },
    "80 layers of LLaMA-2 70B, 8 × 4096 tokens",
    units.format_bytes,
    limit=("sixteen GPUs", 16 * 80 * units.GB),
)

# %% [markdown]
# With flash attention it is 870 GB, more than the note says: SwiGLU keeps $4 \cdot 3.5h$ where GELU keeps $2 \cdot 4h$. With standard attention, which keeps its scores, it is
# 2.24 TB. Micro-batch 8 is a choice as well: with 1 it is an eighth, and accumulation (chapter 2) makes up for it.
#
# Move the sliders:
#
# 1. GPT-3: which single setting saves most? And which saves most on one GPU, for the same tokens, without computing a layer twice?
# 2. From which sequence on are the scores of LLaMA-2 70B, with standard attention, half of the layer? (Choose
#    `attention` standard, `dropout` off.)
# 3. `tensor parallel` cuts the matrices of a layer over several GPUs (chapter 10). With 8 of them, is an eighth of the activations left on each, or more?

# %%
from course_lib.chapters.ch04_activations import panels

panels.activations(model="gpt3-175b")

# %% [markdown]
# The answers, by panels that are not shown:

# %%
before = panels.activations(model="gpt3-175b").result.total_bytes


def kept_with(**settings):
    """The part of the layer's bytes that is still kept when the controls are set so."""
    layer = panels.activations(model="gpt3-175b", **settings).result
    return layer.total_bytes / before


flash = kept_with(attention="flash")
full = kept_with(recompute="full")
cut = kept_with(tp=8)
assert (round(flash, 2), round(full, 3)) == (0.30, 0.018)
assert cut > 1 / 8
settings = {
    "as it is": 1,
    "flash attention": flash,
    "8 tensor-parallel GPUs": cut,
    "full recomputation": full,
}
figures.bars(
    settings, "{:.1%}".format, "A layer of GPT-3: still kept", style.ACTIVATIONS
)

# %%
shares = {}
for sequence in (2048, 4096):
    layer = panels.activations(model="llama2-70b", sequence=sequence, dropout=False)
    shares[sequence] = layer.result.scores_bytes / layer.result.total_bytes
    print(f"{sequence} tokens: scores {shares[sequence]:.0%}")
assert shares[2048] < 0.5 < shares[4096]

# %% [markdown]
# 1. Full recomputation saves 98 %: section 4.3. Without it, and on one GPU, flash attention saves 70 %. (Eight GPUs leave 20 % on each.)
# 2. Between 2048 and 4096 tokens. At 4096, the model's own context, the scores are 61 %.
# 3. More than an eighth: the inputs of the norms, among others, are not cut. Chapter 10 says why, and what `sequence parallel` does about it.
#
# **Remember**
# - SwiGLU, grouped-query attention, dropout, flash attention: each changes the formula.
# - Activations grow with micro-batch × sequence × layers. Model states do not.

# %% [markdown]
# ## 4.3 Throw away and recompute
#
# **Activation checkpointing** (激活检查点), also called recomputation (重计算): in the forward pass keep only the *input* of each layer. In the
# backward pass, run the layer once more from its input, with everything kept, and go on from there. One layer's
# activations live at a time. Where this is done for every layer it is called *full* recomputation (完全重计算).
#
# For a layer of GPT-3 that is 2 bytes × $sbh$ instead of 114: 50.3 MB instead of 2.87 GB.
#
# Walk through it once more. How much is held while the other layers run, and how much at the highest point? Then set `recompute` so that only *attention* is
# computed again. Why is the highest point lower, although the same scores come back?

# %%
from course_lib.chapters.ch04_activations import steppers

steppers.layer(recompute="full")

# %% [markdown]
# 50.3 MB are held while the other layers run, and 2.87 GB at the highest point, but for one layer at a time. With attention alone it is 856 MB, and 2.26 GB at the highest point: when the
# scores come back, the backward pass has already used up everything that the MLP had kept.
#
# PyTorch lets us write this ourselves: a `Function` says what happens in the forward pass and in the backward pass. You build one in exercise 4.6, and may want to do so
# before you read the course's.

# %%
show_source(scratch.checkpointing.Checkpoint)

# %% [markdown]
# - `forward` runs without recording; autograd keeps `x` and nothing else.
# - `backward` runs the layers again, this time recording, and asks autograd for the gradients.
# - The state of the random generator is restored. With dropout, the second run must draw the *same* masks; otherwise the
#   gradient belongs to another function.

# %%
show_source(scratch.checkpointing.same_random_numbers)

# %% [markdown]
# PyTorch's own version is one call, `torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)`. It does the same, and
# also restores autocast (chapter 3) and takes inputs that are lists and dicts.
#
# **Predict.** A GPT with 6 layers, hidden size 64, 4 sequences of 64 tokens, fp32. Of the bytes that are kept inside the
# layers, which part is still kept with checkpointing?

# %%
less = predict("4.less", "Kept with / without?", yours=None)


# %%
def build(segment=None):
    """The GPT, its blocks in segments of so many layers; None: no checkpointing."""
    torch.manual_seed(0)
    gpt = scratch.gpt.GPT(layers=6, hidden=64, heads=4, vocab=VOCAB, context=64)
    return scratch.checkpointing.cut(gpt, segment) if segment else gpt


inputs, labels = Windows(sequence=64).batch(range(4))
six = TransformerShape(layers=6, hidden=64, heads=4, ffn=256, vocab=VOCAB, context=64)
head = activations.head_activation_bytes(
    Job(six, fp32, Layout(micro_batch=4), sequence=64)
)  # outside the layers


def loss_of(gpt):
    """The loss, with its graph."""
    return scratch.accumulation.loss_sum(gpt(inputs), labels)


# %%
normal, checkpointed = build(), build(segment=1)
bytes_normal = saved_bytes(lambda: loss_of(normal), normal) - head
bytes_less = saved_bytes(lambda: loss_of(checkpointed), checkpointed) - head

# %%
full = replace(fp32, recompute="full")
without, with_it = (
    6
    * activations.layer_activation_bytes(
        Job(six, recipe, Layout(micro_batch=4), sequence=64)
    )
    for recipe in (fp32, full)
)
expect(
    with_it / without,
    bytes_less / bytes_normal,
    within=0.15,
    label="kept with / without",
    yours=less,
)

# %% [markdown]
# **Explain.** One sixteenth, as the formula says: 4 of 64 bytes. The gap comes from some 7 kB outside the layers that both keep,
# such as token ids, labels and the last norm's statistics. They weigh more where little else is kept.
#
# The *peak* is another matter. Chapter 3 distinguished four points of an update, and the largest is the peak. We leave the optimizer out and subtract the
# weights and the inputs. What is left is what the two passes add: intermediate results, and gradients as they come.

# %%
print(f"weights {4 * sum(p.numel() for p in normal.parameters()) / 1e6:.2f} MB")
print(f"kept inside the layers: {bytes_normal / 1e6:.2f} MB, {bytes_less / 1e6:.2f} MB")

# %% [markdown]
# **Predict.** To which part does the peak fall?

# %%
lower = predict("4.peak", "Peak with / without?", yours=None)

# %% [markdown]
# Theory has the three points of the two passes:

# %%
bare = replace(fp32, optimizer="sgd", loss="eager", gradient_life="backward")


def above_weights(recompute, samples=4):
    """Bytes beside weights and inputs at three points of the two passes."""
    recipe = replace(bare, recompute=recompute)
    job = Job(six, recipe, Layout(micro_batch=samples), sequence=64)
    moments = memory_moments(job, overhead_bytes=0)
    return {
        name: moments[name].total_bytes
        - moments[name].parameters_bytes
        - moments[name].inputs_bytes
        for name in ("loss", "backward begins", "backward ends")
    }


for mode in ("none", "full"):
    sizes = {name: f"{size / 1e6:.2f}" for name, size in above_weights(mode).items()}
    print(f"{mode:<5} MB:", sizes)
foretold = [max(above_weights(mode).values()) for mode in ("none", "full")]

# %% [markdown]
# And a log of every tensor measures:


# %%
def peak_above_weights(gpt):
    """The most bytes that a forward and a backward pass hold at once, without the weights."""
    gpt.zero_grad()
    with measure.peak.log_memory() as log:
        loss_of(gpt).backward()
    return log.peak_bytes


peaks = [peak_above_weights(gpt) for gpt in (normal, checkpointed)]
for expected, found in zip(foretold, peaks, strict=True):
    expect(expected, found, within=0.04, label="peak above the weights", unit="B")
expect(
    foretold[1] / foretold[0],
    peaks[1] / peaks[0],
    within=0.05,
    label="peak with / without",
    yours=lower,
)

# %% [markdown]
# **Explain.** From 6.87 to 2.55 MB, to 37 % and not to a sixteenth, because the peak has moved. Without checkpointing it is at the loss, where all
# activations are held. With it, it is at the end of the backward pass: one layer is recomputed and *all gradients* are there, 1.25 MB of them. Gradients
# do not grow with the micro-batch. Here is the whole update of both, weights included:

# %%
recorded = {
    name: measure.memory_over_time.one_step(
        gpt,
        torch.optim.SGD(gpt.parameters(), lr=0.1),
        lambda gpt=gpt: loss_of(gpt),
        [inputs, labels],
    )
    for name, gpt in (("all kept", build()), ("recomputed", build(segment=1)))
}
runs = {}
for mode, (name, found) in zip(("none", "full"), recorded.items(), strict=True):
    job = Job(six, replace(bare, recompute=mode), Layout(micro_batch=4), sequence=64)
    in_theory = step_timeline(job, overhead_bytes=0)
    expect(in_theory.peak_bytes, found.peak_bytes, within=0.04, label=name, unit="B")
    runs |= {f"{name}, predicted": in_theory, f"{name}, measured": found}
figures.memory_over_time(runs, "One update, 6 layers, SGD")

# %% [markdown]
# The mountain of intermediate results is gone. The measured backward pass has a tooth for each layer: what it recomputes comes and goes, and counts as a
# temporary buffer. Theory, with one step for a layer, draws the tips alone. The teeth are equally high, but the gradients rise below them, so that the last tooth
# is the peak.
#
# With more samples the ratio of the peaks falls at first:

# %%
for samples in (4, 16, 64):
    most = [max(above_weights(mode, samples).values()) for mode in ("none", "full")]
    print(f"{samples:>2} samples: {most[1] / most[0]:.0%}")
assert most[1] / most[0] < 0.3 < foretold[1] / foretold[0]

# %% [markdown]
# It stays at a quarter: the one layer that is being recomputed is a sixth of this small model. With 80 layers it would be an eightieth.
#
# And the price? Count the operations, additions and multiplications of matrix products:

# %%
work = [
    measure.times.matmul_flops(lambda gpt=gpt: loss_of(gpt).backward())
    for gpt in (normal, checkpointed)
]
expect(
    4 / 3,
    work[1] / work[0],
    within=0.06,
    label="operations with / without",
    yours=factor,
)

# %% [markdown]
# **Explain.** Where the forward pass multiplies once, the backward pass does it twice, for the gradient of the weights
# and for that of the input. So three parts become four, with the forward pass once more: $4/3$. A little less, for two reasons: the head is not
# recomputed, and flash attention recomputes its scores in any case. `theory.compute.flops` knows both, exactly:

# %%
predicted = [
    flops.training_flops(six, 4, 64, attention="flash", recompute=mode).hardware_flop
    for mode in ("none", "full")
]
assert work == predicted

# %% [markdown]
# And the training is the same:

# %%
gradients = [measure.gradients.flat_gradient(gpt) for gpt in (normal, checkpointed)]
difference = measure.gradients.relative_difference(*gradients)
print(f"relative difference of the gradients: {difference:.1e}")
assert difference < 1e-6

# %% [markdown]
# ### Where 40× comes from
#
# Note 004 reasons: to come back through layer 80, compute layers 1 to 80 again; for layer 79, layers 1 to 79; in all $80 \cdot 81 / 2 = 3240$
# layers instead of 80, "40 times". That would be so if *only the model's input* were kept. With 12 layers, so that one can see it:

# %%
once = segments.runs_again(layers=80, segment=1)
from_the_start = segments.runs_again(layers=80, segment=80)
assert (sum(map(len, from_the_start)), sum(map(len, once))) == (3240, 80)
figures.recomputed_layers(
    {
        "Only the model's input is kept": segments.runs_again(12, 12),
        "The input of each layer is kept": segments.runs_again(12, 1),
    }
)

# %% [markdown]
# Nobody does what the first picture shows. One input per layer is kept, and each layer is recomputed once. Measured on GPT-3-like layers it is 39 % more time (Korthikanti et al. 2022,
# table 4): a third of the operations, and some that are slow.
#
# ### Selective recomputation and segments
#
# Two refinements:
#
# - **Selective** (选择性重计算): recompute only the attention scores, which are large and cheap. In GPT-3 that removes 80 of 114 units for 0.9 % more
#   operations. (The paper, section 5, says 2.7 %: it charges a second forward *and* backward pass of the scores, three times what is really repeated.) With flash
#   attention there is nothing left to select: it recomputes the scores anyway. (Note 004 calls "8 groups of 10 layers" selective; that is full recomputation with
#   segments, the next point.)
# - **Segments**: keep one input per $k$ layers. Then $L/k$ inputs are kept, and while one segment is recomputed, its $k$ layers are alive. The sum $L/k \cdot i + k \cdot a$, with $i$ bytes
#   per input and $a$ per layer, is smallest near $k = \sqrt{L \cdot i / a}$. With $a = i$ that is the famous $\sqrt{L}$ (Chen et al. 2016, arXiv:1604.06174).

# %%
selective = flops.training_flops(gpt3, recompute="selective")
more = selective.recompute_flop / selective.model_flop
print(f"selective recomputation: {more:.1%} more, as the paper counts {3 * more:.1%}")
assert (round(100 * more, 1), round(300 * more, 1)) == (0.9, 2.7)

# %%
in_full = Job(llama, Recipe(recompute="full"), sequence=4096)
bills = {k: segments.segment_bill(in_full, k) for k in (1, 2, 4, 8, 16)}
assert min(bills, key=lambda k: bills[k].total_bytes) == 2
figures.stacked_bars(
    {
        f"segments of {k}": {"inputs": bill.inputs_bytes, "alive": bill.alive_bytes}
        for k, bill in bills.items()
    },
    "LLaMA-2 70B, one sequence of 4096 tokens",
    units.format_bytes,
    colours={"inputs": style.ACTIVATIONS, "alive": style.TEMPORARY},
)

# %% [markdown]
# For a real transformer a layer keeps 16 times or more what its input is, so segments of one or two layers are best.
#
# ### Selection by operators
#
# LLaMA-3.1 8B, two sequences of 8192 tokens on each of eight H100s (a variant with 96 GB). torchtitan, PyTorch's own training program, measured 82.4 GiB on each
# (github.com/pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, table 1, not compiled). With everything kept it would be far more. There is flash attention, so Korthikanti's
# selection has nothing to throw away. torchtitan selects differently: it keeps the result of attention and of *every second matrix product*, and
# computes the rest again.
#
# Our block has four matrix products. Their results, in units of $sbh$ numbers, are 3 (queries, keys, values in one), 1 (attention's output matrix), 4 and 1
# (the MLP). Every second one is kept, beginning with the first.
#
# **Predict.** How many of the block's 16 units are left in all?

# %%
units_kept = predict("4.operators", "sbh kept?", yours=None)


# %%
from functools import partial
from itertools import count
from torch.utils import checkpoint


def keep_every_second():
    """A policy that lets attention and every second matrix product be kept."""
    products = count()

    def choose(context, operator, *args, **options):
        attention = "attention" in str(operator)
        product = operator is torch.ops.aten.addmm.default
        if attention or (product and next(products) % 2 == 0):
            return checkpoint.CheckpointPolicy.MUST_SAVE
        return checkpoint.CheckpointPolicy.PREFER_RECOMPUTE

    return checkpoint.create_selective_checkpoint_contexts(choose)


selected = partial(
    checkpoint.checkpoint, block, use_reentrant=False, context_fn=keep_every_second
)

# %%
with measure.peak.log_memory() as log:
    y = selected(x.requires_grad_())
alive = log.timeline[-1] - y.nbytes + x.nbytes  # the input is kept, the result is not
expect(1 + 3 + 1 + 4, alive / x.nbytes, within=0.02, label="sbh kept", yours=units_kept)

# %% [markdown]
# 9 of 16: the first and the third product, attention's result, and the block's input, as always. Flash attention's one number per head and token comes on top. What LLaMA-3.1 8B keeps in its 32 layers of one sequence of 8192 tokens, and how many
# operations each way needs, as a multiple of the model's own:

# %%
eight_b = models.MODELS["llama3.1-8b"]
bars = {}
for mode in ("none", "selective", "operators", "full"):
    long = Job(eight_b, Recipe(recompute=mode), sequence=8192)
    work = flops.training_flops(
        eight_b, 1, 8192, mask="causal", attention="flash", recompute=mode
    )
    times = work.hardware_flop / work.model_flop
    kept = 32 * activations.layer_activation_bytes(long)
    bars[f"{mode}: {times:.2f} × FLOP"] = kept
figures.bars(bars, units.format_bytes, "Kept by 32 layers", style.ACTIVATIONS)

# %% [markdown]
# "None" and "selective" are the same: flash attention has made that selection. Beside "none" (whose own 2 % are flash attention's second look at the scores), operators keep 38 %
# for 10 % more operations, full recomputation 5 % for 31 % more. A layer of LLaMA has seven products, and three of them are computed again: keys (a small one), attention's output matrix and the second of the MLP's three.
#
# **Theory beside a published number.** Back to torchtitan's 82.4 GiB. `as_framework_does` fills in what the program decides and its table doesn't say: fp32 shards,
# PyTorch's loss with its copies, gradients that are thrown away after each update. Reserved bytes are taken as 1.15 times the tensors, the factor that chapter 3 has fitted:


# %%
def on_eight_h100(mode):
    """Reserved GiB of the fullest GPU, two sequences of 8192 tokens on each of eight."""
    layout = Layout(dp=8, zero_stage=3, micro_batch=2)
    job = Job(eight_b, Recipe(recompute=mode), layout, sequence=8192)
    job = as_framework_does(job, "torchtitan")
    return metered_bytes(gpu_memory(job), "reserved", layout) / units.GIB


expect(on_eight_h100("operators"), 82.4, within=0.05, label="reserved", unit="GiB")
figures.bars(
    {mode: on_eight_h100(mode) for mode in ("none", "operators", "full")},
    "{:.1f} GiB".format,
    "Predicted: reserved on each of eight GPUs",
    style.ACTIVATIONS,
)

# %% [markdown]
# 79.0 GiB against 82.4, 4 % too low. One such number proves little: the 1.15 was fitted to sixteen runs of the same program, this one among them. Over all 29 published memories that
# the course knows, half of the predictions are within 4.5 %, and within 3 % if each is made with a factor that was fitted to other sources only (benchmarks/README.md).
#
# ### Buy, throw away, or take turns?
#
# Back to the opening question. Section 4.2 has named a third answer: micro-batch 1, and 8 micro-batches that take turns (chapter 2). Then only one sequence's activations are there at a time, and nothing is recomputed. Here are the answers side by side, each at its peak, with PyTorch's loss.
# Tensors must not fill a card: chapter 3 wants room for gaps, by its fitted factor of 1.15, and 1 GiB of overhead.

# %%
import math

answers = {
    "keep everything": (8, "none"),
    "micro-batch 1, eight times": (1, "none"),
    "recompute every layer": (8, "full"),
    "both": (1, "full"),
}
card = 80 * units.GB
peaks, on_each, needed = {}, [], []
for name, (micro_batch, recompute) in answers.items():
    recipe = Recipe(recompute=recompute, loss="eager")
    job = Job(llama, recipe, Layout(micro_batch=micro_batch), sequence=4096)
    peaks[name] = gpu_memory(job, overhead_bytes=0)  # all of it, on one GPU
    reserved = RESERVED_OVER_ALLOCATED * peaks[name].total_bytes
    on_each.append(reserved / 16 + OVERHEAD_BYTES)
    needed.append(math.ceil(reserved / (card - OVERHEAD_BYTES)))
    work = flops.training_flops(
        llama, 8, 4096, mask="causal", attention="flash", recompute=recompute
    )
    print(
        f"{name:<27}{work.hardware_flop / work.model_flop:.3f} × FLOP; with gaps and overhead "
        f"{on_each[-1] / 1e9:5.1f} GB on each of 16, or {needed[-1]} cards"
    )
figures.stacked_bars(
    {
        name: {kind: size for kind, size in peak.consumers.items() if size > 1e9}
        for name, peak in peaks.items()
    },
    "Sixteen GPUs together, at the peak: 8 × 4096 tokens",
    units.format_bytes,
    limit=("sixteen GPUs", 16 * card),
)

# %% [markdown]
# Three answers, and their prices:
#
# - **Buy.** Eight more GPUs are not enough: with what LLaMA really keeps, the tensors alone fill 25 cards. With gaps and overhead it takes 29.
# - **Take turns.** With micro-batch 1 the tensors fit into 1280 GB, and not one operation is added. (The 0.6 % are flash attention's own.) The matrix products have 4096 rows instead of 32,768, still enough to keep a GPU busy (chapter 5). How many messages it adds depends on how the states are spread (chapter 8).
# - **Recompute.** This takes 53 GB less than that, for a third more operations. Not for 40 times as many.
#
# So make the micro-batch small before you pay a third more. Recompute where that is not enough, as with very long sequences.
#
# Is it enough *here*? By the tensors, yes. With gaps and overhead, no: sixteen cards of exactly $80 \cdot 10^9$ bytes are too few for any answer, and it takes 17 or 18. But an "80 GB" A100 reports 85.0 GB. On each of the sixteen, micro-batch 1 alone needs 88.3, recomputing 84.5, and
# both together 80.9 GB. The 1.15 is fitted, so trust no margin of 0.5 GB: on these cards, do both. All of this assumes that everything is spread evenly. How to spread it is the subject of chapters 8 to 11.

# %%
tensors = [peak.total_bytes for peak in peaks.values()]
assert [round(size / 1e9) for size in tensors] == [1987, 1214, 1161, 1111]
assert 24 * card < tensors[0] <= 25 * card and max(tensors[1:]) < 16 * card
assert needed == [29, 18, 17, 17]
reported = hardware.accelerator("A100-SXM-80GB").memory_bytes
assert [size < reported for size in on_each] == [False, False, True, True]

# %% [markdown]
# ### Or move them?
#
# There is yet another way: copy activations to the host's memory in the forward pass, and bring them back for the backward pass. In PyTorch this is `torch.autograd.graph.save_on_cpu`. The copy can run beside the
# computing, if it is no slower. One layer of LLaMA-2 70B, one sequence of 4096 tokens, on an H100 that does 400 TFLOP/s, with PCIe 5.0 to the host (63 GB/s each way):

# %%
layer_flop = flops.training_flops(llama, 1, 4096, mask="causal").forward_flop / 80
milliseconds = {"forward pass, or recomputing it": 1e3 * layer_flop / 400e12}
for what, mode in (("copying all it keeps", "none"), ("copying its input", "full")):
    size = activations.layer_activation_bytes(
        Job(llama, Recipe(recompute=mode), sequence=4096)
    )
    milliseconds[what] = 1e3 * size / 63e9
everything, inputs_only = (milliseconds[name] for name in list(milliseconds)[1:])
assert everything > milliseconds["forward pass, or recomputing it"] > 10 * inputs_only
rows = {
    name: {"messages" if "copying" in name else "computing": ms}
    for name, ms in milliseconds.items()
}
figures.stacked_bars(rows, "One layer", "{:.1f} ms".format)

# %% [markdown]
# Copying everything takes longer than the forward pass in which it should hide, and several GPUs often share one bus. Recomputing takes the GPU as long as the forward pass, but waits for nothing.
# The *inputs* are another matter: their copies hide easily. Full recomputation, with the inputs on the host (DeepSpeed's `cpu_checkpointing`), keeps next to nothing
# on the GPU, for the same third of operations. These are counts: a real copy needs pinned memory and a GPU to measure on.
#
# ### Another published number
#
# On YaFSDP, note 001 says: LLaMA-2 70B with a batch of 8192 tokens, and activation checkpointing takes the activations from over 110 GB to 5 GB. Put the
# formula beside it, for a few numbers of tokens: everything kept, and only the inputs of 80 layers, $2 \cdot 8192 \cdot 80$ bytes for each token:

# %%
ways = {"everything": Recipe(), "inputs only": Recipe(recompute="full")}
formula = {
    f"{sequence} tokens": {
        name: 80
        * activations.layer_activation_bytes(Job(llama, recipe, sequence=sequence))
        for name, recipe in ways.items()
    }
    for sequence in (2048, 4096, 8192)
}
longest = [size / 1e9 for size in formula["8192 tokens"].values()]
assert (round(longest[0]), round(longest[1], 1)) == (217, 10.7)
figures.grouped_bars(  # published: note 001
    {**formula, "published": {"everything": 110e9, "inputs only": 5e9}},
    "80 layers of LLaMA-2 70B keep",
    units.format_bytes,
    {"everything": style.ACTIVATIONS, "inputs only": style.GREEN},
)

# %% [markdown]
# At 8192 tokens both published numbers are half of what the formula says: 217 and 10.7 GB. At 4096 tokens both fit: 109 and 5.4 GB. So the two numbers
# agree with each other and with the formula, and the token count does not fit them. We cannot know why, and exercise 4.4 has other
# explanations. But when two numbers are off by the same factor, look at what they have in common.
#
# **Remember**
# - Full recomputation keeps one input per layer, for 4/3 of the operations. Not 40×.
# - The second run must draw the same random numbers.
# - Selective recomputation drops the scores, and flash attention does that by itself. Selection by operators keeps attention and every second matrix product.
# - The peak is one point of the update. Make it smaller, and another point becomes the peak: here that of the gradients.
# - A smaller micro-batch with accumulation adds no operations. Try it before you recompute.

# %% [markdown]
# ## 4.4 Demo: three versions, one training
#
# Two ranks train a GPT of 4 layers without checkpointing, with ours, and with PyTorch's. All three must equal one process, keep what
# the theory says, and compute what the theory says; also with dropout.

# %%
result = demos.run("checkpointing", ranks=2, steps=4, stream=False)
print(result.report())

# %%
without, ours, library = result.costs
assert ours.kept_bytes == ours.predicted_kept_bytes
assert ours.flop == ours.predicted_flop
assert max(cost.dropout_difference for cost in result.costs) < 1e-6

# %% [markdown]
# In a terminal: `course demo checkpointing --ranks 2 --segment 1`; with `--parts mine` it runs on the `Checkpoint` that you build in exercise 4.6.
#
# ### Where to find it in libraries
#
# | here | PyTorch | Megatron-LM | others |
# |---|---|---|---|
# | each layer | `torch.utils.checkpoint.checkpoint` | `--recompute-granularity full --recompute-method uniform --recompute-num-layers 1` | Hugging Face: `model.gradient_checkpointing_enable()` |
# | segments of $k$ layers | `torch.utils.checkpoint.checkpoint_sequential` (takes the *number* of segments, and keeps the last one whole) | the same, with `--recompute-num-layers` $k$ | |
# | only the first $k$ layers | | `--recompute-method block` | |
# | the scores | fused attention does it | `--recompute-granularity selective --recompute-modules core_attn` | |
# | by operators | `create_selective_checkpoint_contexts` | | torchtitan's selective mode |
# | by a budget | `torch._functorch.config.activation_memory_budget`, under `torch.compile` | | |
# | to the host | `torch.autograd.graph.save_on_cpu` | | DeepSpeed: `cpu_checkpointing` |

# %% [markdown]
# ## What to remember
#
# 1. A multiplication keeps its input until the backward pass, and a function that is not linear keeps what its derivative depends on.
# 2. 34 bytes × sbh per layer, plus $5as^2b$: for 16 bits, GELU, dropout, standard attention. Yours may differ.
# 3. Flash attention removes the term with $s^2$.
# 4. Full recomputation: one input per layer, 4/3 of the operations.
# 5. The recomputation needs the same random numbers.
# 6. Two numbers that are wrong by one factor have something wrong in common: look there.

# %%
from course_lib import quiz

quiz("4")

# %% [raw] tags=["quiz"]
# Which operation needs nothing kept for its backward pass?
# [ ] a matrix product
# [x] an addition
# [ ] GELU
# Why: The gradient of a sum is 1, whatever was added.
#
# You double the sequence. Flash attention. What do a layer's activations do?
# [x] double
# [ ] quadruple
# [ ] stay
# Why: Without scores everything is proportional to s.
#
# Full checkpointing of all layers: operations of a step?
# [x] 4/3 of before
# [ ] twice
# [ ] 40 times
# Why: 2 + 4 becomes 2 + 2 + 4: each layer is recomputed once, from its own input.
#
# Why does a checkpoint store the state of the random generator?
# [ ] for the next epoch
# [x] so that dropout draws the same masks again
# [ ] for the optimizer
# Why: With other masks the gradient would belong to another function.
#
# You use flash attention. What does selective recomputation save on top?
# [ ] half
# [ ] the MLP
# [x] nothing
# Why: It drops the scores, which flash attention never keeps.

# %% [markdown]
# **Now you:** open [the exercises](../exercises/04_activations.ipynb).
#
# **Read on.** Korthikanti et al. 2022, *Reducing Activation Recomputation*, sections 4 and 5 (arXiv:2205.05198). Chen et al. 2016, *Sublinear Memory
# Cost*, section 3 (arXiv:1604.06174). Dao et al. 2022, *FlashAttention*, section 3 (arXiv:2205.14135).

# %% tags=["exercise"]
import torch

from course_lib import check, hint, solution
from course_lib.theory.inputs import Recipe, TransformerShape, models
from course_lib.theory.memory import activations

# %% [markdown] tags=["exercise"]
# ### 4.1 Calculate: one layer
#
# GPT-3 (hidden 12288, 96 heads), 2 sequences of 2048 tokens, 16 bits, dropout, standard attention. How many bytes does one layer
# keep without recomputation, with selective, and with full recomputation?

# %% [raw] tags=["hints"]
# Section 4.1's formula has two terms. Which of them does selective recomputation keep?
# Full recomputation keeps one tensor of s · b · h numbers of 2 bytes.

# %% tags=["exercise"]
none, selective, full = ..., ..., ...
### BEGIN SOLUTION
sbh = 2048 * 2 * 12288
none = sbh * 34 + 5 * 96 * 2048**2 * 2
selective = sbh * 34
full = sbh * 2
### END SOLUTION
check("4.1", [none, selective, full])

# %% [markdown] tags=["exercise"]
# ### 4.2 Debug: 730 GB
#
# (published mistake, note 004) LLaMA-2 70B keeps 730 GB of activations at batch size 8: $34 \cdot sbh$ for each of 80 layers, with $s = 4096$, $b = 8$, $h = 8192$. Correct the 34 with
# the table of section 4.1, one assumption after the other, each correction on top of those before: there is no dropout; the MLP is SwiGLU, whose four kept tensors are 28,672 wide; there are 8 key-value heads for 64 query
# heads. How many GB are there after each? Guess first which of the three weighs most.

# %% [raw] tags=["hints"]
# Each correction changes one line of the table, or two. In which unit are its numbers?
# Four tensors of 28,672 numbers, 2 bytes each: how many times h bytes is that?
# Keys and values are an eighth as wide as before; queries stay.

# %% tags=["exercise"]
no_dropout_gb, swiglu_gb, grouped_gb = ..., ..., ...
### BEGIN SOLUTION
sbh = 4096 * 8 * 8192 * 80 / 1e9  # GB for each byte of the 34
no_dropout_gb = 32 * sbh  # two masks less
swiglu_gb = (32 - 16 + 4 * 2 * 28672 / 8192) * sbh  # 28 in place of 16
grouped_gb = (44 - 6 + 2 + 2 * 2 / 8) * sbh  # keys and values an eighth
### END SOLUTION
check("4.2", [no_dropout_gb, swiglu_gb, grouped_gb])

# %% [markdown] tags=["exercise"]
# ### 4.3 Debug: 40 times
#
# (published mistake, note 004) Full recomputation of 80 layers costs 3240 layer passes instead of 80, "40 times as much"; "8 groups of 10 layers" are the note's remedy. A hook counts how often
# a layer's forward pass runs in one training step. What will it count with each plan, and how many tensors (inputs of a checkpointed layer or group) are stored for recomputing? Give
# `[forward passes, stored inputs]`.

# %% [raw] tags=["hints"]
# From where does layer 80 start when it is recomputed? And layer 75, in a group of 10?
# All 80 layers run forward once. Which of them run once more, and from which inputs?

# %% tags=["exercise"]
counted = {
    "each of 80 layers checkpointed": ...,
    "8 groups of 10 layers checkpointed": ...,
    "every second layer checkpointed": ...,
    "2 groups of 5 layers checkpointed, 70 layers not": ...,
}
### BEGIN SOLUTION
counted = {
    "each of 80 layers checkpointed": [160, 80],
    "8 groups of 10 layers checkpointed": [160, 8],  # not fewer passes: fewer inputs
    "every second layer checkpointed": [120, 40],
    "2 groups of 5 layers checkpointed, 70 layers not": [90, 2],
}
### END SOLUTION
check("4.3", counted)

# %% [markdown] tags=["exercise"]
# ### 4.4 Debug: 110 GB to 5 GB
#
# (published mistake, note 001) LLaMA-2 70B, 8192 tokens, bf16: checkpointing takes the activations "from over 110 GB to 5 GB". The formula says 217 and 10.7 GB. Section 4.3 found one explanation. There
# are others: which of these make *both* numbers fit, within a tenth? True or False for each.

# %% [raw] tags=["hints"]
# What do the two numbers have in common: the layers' inputs, or all that a layer keeps?
# Everything that a layer keeps must halve, and its input as well.
# Section 4.2: without sequence parallelism the inputs of the norms are not cut.

# %% tags=["exercise"]
explains_both = {
    "4096 tokens": ...,
    "each of two GPUs has 40 layers": ...,
    "each of two GPUs has half of the tokens": ...,
    "each of two GPUs has half of every matrix, without sequence parallelism": ...,
    "an MLP with GELU, 4h wide": ...,
    "segments of two layers": ...,
}
### BEGIN SOLUTION
explains_both = {
    "4096 tokens": True,
    "each of two GPUs has 40 layers": True,
    "each of two GPUs has half of the tokens": True,
    "each of two GPUs has half of every matrix, without sequence parallelism": False,
    "an MLP with GELU, 4h wide": False,  # the inputs are as large as before
    "segments of two layers": False,  # only the inputs become fewer
}
### END SOLUTION
check("4.4", explains_both)

# %% [markdown] tags=["exercise"]
# ### 4.5 Implement: the formula
#
# Bytes that one layer keeps, 16 bits, GELU with $4h$, no tensor parallelism. `flash` and `dropout` switch what you know
# from section 4.1.

# %% [raw] tags=["hints"]
# Which rows of section 4.1's table go without dropout?
# 34 = 32 + 2 masks. Of the scores' 5 bytes, softmax's result has 2.


# %% tags=["exercise"]
def layer_bytes(
    sequence: int, batch: int, hidden: int, heads: int, flash: bool, dropout: bool
) -> int:
    """Activation bytes of one layer."""
    ### BEGIN SOLUTION
    sbh = sequence * batch * hidden
    pairs = heads * sequence**2 * batch
    masks = 2 * sbh if dropout else 0
    scores = 0 if flash else pairs * (5 if dropout else 2)
    return 32 * sbh + masks + scores
    ### END SOLUTION


check("4.5", layer_bytes)

# %% [markdown] tags=["exercise"]
# ### 4.6 Build: run it again
#
# Write the checkpoint of section 4.3 yourself. autograd calls `forward` when the segment is run by `Checkpoint.apply(layers, x, *parameters)`, without recording what happens inside. It calls `backward` with the gradient of
# the output, and wants one value back for each argument of `forward` after `ctx`: a gradient, or None. `parameters` are those of the layers that are trained. They are arguments so that autograd knows of them.
# (`ctx` is yours: what you assign to it in `forward` is there in `backward`. Tensors from outside go through `ctx.save_for_backward`.)
#
# The check compares all gradients; counts what stays after the forward pass; then it adds dropout, and looks at the generator of random numbers, from which other layers draw as well. It runs on the CPU; on a GPU there is a second generator. What
# passes is kept as `mine/checkpointing.py`, and runs in `course demo checkpointing --parts mine`.

# %% [raw] tags=["hints"]
# autograd records nothing inside a Function's forward, so what the layers keep there is gone at once. What must be kept, so that they can run again?
# backward: `x.detach().requires_grad_()`, then the layers once more under `torch.enable_grad()`, then `torch.autograd.grad(output, inputs, gradient)` with the parameters among the inputs.
# It returns one thing for each argument of forward: None for the layers, the gradient of x, and those of the parameters.
# `torch.get_rng_state()` in forward, before the layers; `torch.set_rng_state(…)` before the second run. What others draw afterwards should not notice either.
# `with torch.random.fork_rng([]):` puts the generator back, as it was before the block.

# %% tags=["exercise"]
from typing import Any

import torch
from torch import Tensor, nn

### BEGIN GIVEN


class Checkpoint(torch.autograd.Function):
    """Runs `layers` without a graph; the backward pass runs them again, with one."""

    @staticmethod
    def forward(
        ctx: Any, layers: nn.Module, x: Tensor, *parameters: nn.Parameter
    ) -> Tensor:
        """The output of the layers; only `x` is kept."""
        ...

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """None for the layers, the gradient of x, and one for each parameter.

        `x` may need no gradient; a gradient returned for it does no harm then.
        """
        ...


### END GIVEN
### BEGIN SOLUTION
from course_lib import show_source
from course_lib.scratch.checkpointing import Checkpoint

### END SOLUTION

check("4.6", Checkpoint)

# %% [markdown] tags=["exercise"]
# ### 4.7 Implement: the best segment
#
# `layers` layers; a stored input takes `input_bytes`, a layer that is being recomputed `layer_bytes`. With segments of $k$ layers the peak is
# $\lceil L/k \rceil$ inputs and $k$ layers. Return the $k$ with the smallest peak (the smaller one of two equals).

# %% [raw] tags=["hints"]
# The last segment may be shorter. Is there a formula for that, or is trying cheaper?
# Try all k from 1 to layers; min(…, key=…) takes the first of equals.


# %% tags=["exercise"]
def best_segment(layers: int, input_bytes: int, layer_bytes: int) -> int:
    """Layers in a segment."""

    ### BEGIN SOLUTION
    def peak(k: int) -> int:
        return -(-layers // k) * input_bytes + k * layer_bytes

    return min(range(1, layers + 1), key=peak)
    ### END SOLUTION


check("4.7", best_segment)

# %% [markdown] tags=["exercise"]
# ### 4.8 Predict: long sequences
#
# GPT-3's layer with standard attention and dropout. Guess: from which sequence length, a multiple of 256, are the scores more
# than half of what the layer keeps? Then find it by the formula.

# %% [raw] tags=["hints"]
# Which of the formula's two terms must be the larger one?
# Divide both by s · b · h: what is left of the scores grows with s. a / h = 96 / 12288.

# %% tags=["exercise"]
sequence = ...
### BEGIN SOLUTION
sequence = 256
while 5 * 96 * sequence / 12288 <= 34:
    sequence += 256
### END SOLUTION
check("4.8", sequence)
