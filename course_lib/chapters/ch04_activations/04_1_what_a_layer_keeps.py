# %% [raw] tags=["sitting"]
# question: What does a layer keep for the backward pass, and is it 730 GB?
# importance: 5
# difficulty: 3
# group: alone
# needs: 3

# %% [markdown]
# # 4 What a layer keeps
#
# LLaMA-2 70B, 8 sequences of 4096 tokens: the intermediate results of one forward pass take 730 GB, says note 004. The model's
# weights in 16 bits take 138 GB. **What is kept there, why, and is the number right for this model?** By the end of this notebook you can
#
# - list what a transformer layer keeps for the backward pass, and derive 34 bytes × sbh,
# - say which of the published formulas fits your model, and why 730 GB fits almost nobody's.
#
# You need chapter 3.

# %%
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from course_lib import expect, predict, scratch, style
from course_lib.chapters.ch04_activations import figures
from course_lib.demos.shared.text import VOCAB
from course_lib.measure.gradients import saved_bytes
from course_lib.theory import Job, Layout, Recipe, TransformerShape, activations
from course_lib.theory.inputs import models, units

torch.set_num_threads(1)

# %% [markdown]
# ## 4.1 Why anything is kept
#
# $y = w\cdot x$. With $\nabla y$, the gradient of the loss for $y$, that of $w$ is $\nabla y\cdot x$: without $x$ there is none. So an operation that
# multiplies keeps its input until the backward pass. What is kept are the **activations** (激活值).
# An addition keeps nothing: its gradient is 1, whatever was added.
#
# Functions that are not linear keep something as well, because their *derivative* depends on a value:
#
# - $y=\sigma(x)$, for example GELU: $\nabla x=\sigma'(x)\,\nabla y$, and $\sigma'$ must be taken at $x$. It keeps its input.
# - softmax, $p_i=e^{x_i}/\sum_j e^{x_j}$: $\nabla x_i=p_i\,(\nabla p_i-\sum_j p_j\nabla p_j)$. It keeps its result.
# - a norm divides $x$ by a size that it computes from $x$, so its derivative depends on both. It keeps its input, and one size for each token.
#
# Dropout multiplies by a mask of 0s and 1s, so it keeps the mask.

# %%
numbers = torch.randn(8, requires_grad=True)
assert saved_bytes(lambda: numbers + 1, torch.nn.Module()) == 0
assert torch.equal(torch.nn.functional.gelu(numbers).grad_fn._saved_self, numbers)
p = numbers.softmax(0)
assert torch.equal(p.grad_fn._saved_result, p)

# %% [markdown]
# Take one layer of GPT-3: hidden size $h=12288$, $a=96$ heads, a sequence of $s=2048$ tokens, micro-batch
# $b=1$, 16-bit numbers. One tensor of $s\cdot b\cdot h$ numbers is $2048\cdot12288\cdot2=50.3$ MB.
#
# Walk through the layer, first forward, then backward. Each operation says which tensors it must keep; they stay until its
# own backward pass has used them. Which operation keeps most, and which keep only a small mask?

# %%
from course_lib.chapters.ch04_activations import steppers

steppers.layer()

# %% [markdown]
# Attention keeps most, because of its scores. The two additions keep only the masks of the dropout in front of them. What was kept first is used
# last, so the pile is highest between the two passes.
#
# Without the scores the layer keeps 856 MB. In units of $sbh$ bytes:
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
# Then there are the attention scores: for each head a table of all pairs of tokens, $as^2b$ numbers. They are kept three times: the
# result of softmax (2 bytes), its dropout mask (1), and the result of the dropout, which multiplies the values (2). Together
#
# $$s\,b\,h\left(34+5\,\frac{a\,s}{h}\right)\text{ bytes per layer}$$
#
# (Korthikanti et al. 2022, arXiv:2205.05198, equation 1). Here $5\cdot96\cdot2048/12288=80$: the scores are
# more than twice everything else.

# %%
gpt3 = models.MODELS["gpt3-175b"]
paper = Recipe(attention="standard", dropout=True)
terms = activations.activation_terms(Job(gpt3, paper, sequence=2048))
assert terms.total_bytes == 2048 * 12288 * (34 + 80)
print(terms.explain())

# %% [markdown]
# ### The same on your machine
#
# Our own GPT has no dropout, and in fp32 each number has 4 bytes. We count what one block keeps, with hidden size 64 and 4 heads, for 2 sequences of 128 tokens.
# PyTorch's fused attention keeps no scores.
#
# **Predict.** How many bytes × $sbh$ does the block keep? Which lines of the table stay, and how do the bytes of each change?

# %%
kept = predict("4.per_sbh", "Kept, in bytes × sbh?", yours=None)

# %%
shape = TransformerShape(
    layers=1, hidden=64, heads=4, ffn=256, vocab=VOCAB, context=512
)
fp32 = Recipe(parameters="fp32", gradients="fp32", master_copy=False)
per_layer = activations.layer_activation_bytes(
    Job(shape, fp32, Layout(micro_batch=2), sequence=128)
)
block = scratch.gpt.Block(hidden=64, heads=4)
x = torch.randn(2, 128, 64)
fused = saved_bytes(lambda: block(x).sum(), block)
sbh = 128 * 2 * 64
expect(per_layer / sbh, fused / sbh, within=0.01, label="bytes × sbh", yours=kept)

# %% [markdown]
# **Explain.** Without the two masks it is 32 bytes × $sbh$ in 16 bits, and 64 in fp32. The measurement is 0.8 % higher: each norm keeps a mean and a scale per token, and fused
# attention keeps one number per head and token, with which it can redo the softmax. That explains it to the byte:

# %%
tokens = 2 * 128
assert per_layer == 64 * sbh
assert fused == per_layer + 2 * 2 * tokens * 4 + 4 * tokens * 4

# %% [markdown]
# Now write attention as plain matrix products. The table of scores has $as^2b$ numbers of 4 bytes, and without dropout it
# is kept once.
#
# **Predict.** By what factor do the bytes kept by the block grow?

# %%
with_scores = predict("4.with_scores", "Bytes with scores / without?", yours=None)

# %%
with sdpa_kernel(SDPBackend.MATH):
    plain = saved_bytes(lambda: block(x).sum(), block)
scores = 4 * 4 * 128**2 * 2
expect(
    1 + scores / per_layer,
    plain / fused,
    within=0.01,
    label="with / without",
    yours=with_scores,
)
assert scores - (plain - fused) == 4 * tokens * 4  # fused attention's one number

# %% [markdown]
# **Explain.** $as/16h=1/2$, so by half. Double the sequence, and the
# scores quadruple while everything else doubles. That is why
# **flash attention** (闪存注意力) never stores them: it computes them again in the backward pass, piece by piece, in the chip's
# small fast memory (Dao et al. 2022, arXiv:2205.14135).
#
# **Remember**
# - A multiplication keeps its input. A function that is not linear keeps what its derivative depends on. An addition keeps nothing.
# - 34 bytes × sbh per layer: 16 bits, GELU with $4h$, dropout. Plus $5as^2b$ with standard attention.

# %% [markdown]
# ## 4.2 Whose formula is it?
#
# Modern models are not GPT-3. LLaMA has no dropout, so no masks. It uses SwiGLU (门控线性单元), an MLP with three
# matrices, which keeps four tensors instead of two, each $2.7h$ to $3.5h$ wide. LLaMA-2 70B has 8 key-value heads for 64 query
# heads, **grouped-query attention** (分组查询注意力): its keys and values are small. And nearly everyone uses flash attention.
# Our function has a setting for each:

# %%
llama = models.MODELS["llama2-70b"]


def all_layers(attention):
    """Bytes that 80 layers keep of 8 sequences of 4096 tokens."""
    job = Job(llama, Recipe(attention=attention), Layout(micro_batch=8), sequence=4096)
    return 80 * activations.layer_activation_bytes(job)


notes = 4096 * 8 * 8192 * 80 * 34
assert round(notes / 1e9, 1) == 730.1
assert round(all_layers("flash") / 1e9) == 870
assert round(all_layers("standard") / 1e12, 2) == 2.24

# %% tags=["drawing"]
figures.stacked_bars(
    {
        "flash attention": {"activations": all_layers("flash")},
        "standard attention": {"activations": all_layers("standard")},
        "note 004": {"activations": notes},
    },
    "80 layers of LLaMA-2 70B, 8 × 4096 tokens",
    units.format_bytes,
    limit=("sixteen GPUs", 16 * 80 * units.GB),
)

# %% [markdown]
# With flash attention it is 870 GB, with standard attention 2.24 TB. Note 004's 730 GB are $4096\cdot8\cdot8192\cdot80\cdot34$ bytes: the
# arithmetic is right, but the 34 belongs to a model with GELU and dropout, whose scores are not kept. SwiGLU keeps $4\cdot3.5h$ where GELU keeps $2\cdot4h$.
#
# In the panel:
#
# 1. Which single setting saves most of GPT-3's layer? And which saves most on one GPU, without computing a layer twice?
# 2. `tensor parallel` cuts the matrices of a layer over several GPUs (chapter 10). With 8 of them, is an eighth of the activations left on each, or more?

# %%
from course_lib.chapters.ch04_activations import panels

panels.activations(model="gpt3-175b")

# %% [markdown]
# The next cell reads the answers off the same panel:

# %% tags=["drawing"]
settings = {
    "as it is": {},
    "flash attention": {"attention": "flash"},
    "8 tensor-parallel GPUs": {"tp": 8},
    "full recomputation": {"recompute": "full"},
}
sizes = {
    name: panels.activations(model="gpt3-175b", **setting).result.total_bytes
    for name, setting in settings.items()
}
still = {name: size / sizes["as it is"] for name, size in sizes.items()}
assert round(still["flash attention"], 2) == 0.30
assert round(still["full recomputation"], 3) == 0.018
assert still["8 tensor-parallel GPUs"] > 1 / 8
title = "A layer of GPT-3: still kept"
figures.bars(still, "{:.1%}".format, title, style.ACTIVATIONS)

# %% [markdown]
# 1. Full recomputation saves most, 98 % (section 4.3). If no layer may be computed twice and there is only one GPU, flash attention is best: it saves 70 %.
# 2. More than an eighth: the inputs of the norms, among others, are not cut (chapter 10).
#
# **Remember**
# - SwiGLU, grouped-query attention, dropout, flash attention: each changes the formula.
# - Activations grow with micro-batch × sequence × layers. Model states do not.

# %% [markdown]
# ## The answer
#
# A layer keeps what its multiplications and its derivatives need. LLaMA-2 70B keeps 870 GB of 8 sequences with flash attention, and 2.24 TB without; 730 GB
# would be a model with GELU and dropout. With its 1104 GB of model states (chapter 3), this does not fit on sixteen GPUs with 80 GB. [The next sitting](04_2) asks
# what to do about it.

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
# importance 3, difficulty 1
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
# importance 3, difficulty 2
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
# ### 4.5 Implement: the formula
#
# Bytes that one layer keeps, 16 bits, GELU with $4h$, no tensor parallelism. `flash` and `dropout` switch what you know
# from section 4.1.

# %% [raw] tags=["hints"]
# importance 2, difficulty 2
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
