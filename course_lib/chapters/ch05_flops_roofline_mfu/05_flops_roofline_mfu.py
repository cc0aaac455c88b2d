# %% [markdown]
# # 5 FLOPs, roofline, MFU
#
# You can rent 64 H100 GPUs for a week. The data sheet says 989 TFLOP/s each. Is a week enough to
# train a model of 7 billion parameters on 2 trillion tokens, as LLaMA-2 7B was?
#
# Between the data sheet and the answer lie three questions: how many operations does training
# need, how fast can a chip do them, and what part of that speed does a real run reach? By the end
# of this chapter you can
#
# - count the operations of any transformer, and say where $6ND$ is wrong and by how much,
# - place your model and your own computer on a roofline,
# - tell MFU from HFU, and read a data sheet without being off by a factor of two,
# - turn operations into days, GPU-hours and money.
#
# Time: about two hours, half of them for the exercises. You need chapter 3.

# %%
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from course_lib import expect, measure, predict, scratch, show_source, style
from course_lib.chapters.ch05_flops_roofline_mfu import figures, roofline
from course_lib.demos.shared.text import VOCAB, Windows
from course_lib.theory import (
    Cluster,
    Job,
    Layout,
    Recipe,
    TransformerShape,
    budget,
    flops,
    hardware,
    models,
    units,
)
from course_lib.theory.step.step_time import step_time

torch.set_num_threads(1)

# %% [markdown]
# **Predict.** First, a gut guess. How many days do 64 H100 need for LLaMA-2 7B's 2 trillion
# tokens? Section 5.3 computes it.

# %%
days = predict("5.days", "Days on 64 H100?", yours=None, unit="days")

# %% [markdown]
# ## 5.1 Counting operations
#
# Multiply a matrix of 2 × 3 numbers by one of 3 × 4. The result has 8 numbers, and each is a sum of 3
# products: 24 multiplications and 24 additions. Together 48 **floating-point operations** (浮点运算),
# or 48 FLOP. In general, for $m \times k$ times $k \times n$:
#
# $$\text{FLOP} = 2 \, m \, k \, n .$$
#
# **FLOP** is an amount, like kilometres. **FLOP/s** is a rate (算力), like kilometres per hour. Both are often
# written "FLOPS" and then mixed up. This course always writes the "/s". T means $10^{12}$, P $10^{15}$.
#
# A linear layer uses each weight once for each token, in one multiplication and one addition: 2 FLOP per token and
# weight. Its backward pass is two more products:
#
# $$Y = XW, \qquad \nabla W = X^{\mathsf T}\, \nabla Y, \qquad \nabla X = \nabla Y\, W^{\mathsf T}.$$

# %%
three = roofline.linear_products(tokens=2, inputs=3, outputs=4)
figures.matrix_products(three)

# %% [markdown]
# Three products of the same three sizes. So backward costs 4, and training 6 FLOP per token and weight.
#
# **Predict.** A layer of 3 × 4 weights reads 2 tokens of the data; there is nothing before it. How many FLOP will
# PyTorch do, forward and backward?

# %%
first = predict("5.first_layer", "FLOP of a first layer?", yours=None, unit="FLOP")

# %% [markdown]
# **Measure.** PyTorch can count. The course's counter looks at each operation, takes the sizes of its
# matrices, and adds $2mkn$ by PyTorch's own formulas:

# %%
show_source(measure.times.matmul_flops)

# %%
layer = torch.nn.Linear(3, 4, bias=False)


def run(tokens):
    """Forward and backward of the small layer."""
    layer(tokens).sum().backward()


expect(
    4 * 2 * 12,
    measure.times.matmul_flops(lambda: run(torch.ones(2, 3))),
    label="as the first layer",
    unit="FLOP",
    yours=first,
)

# %%
expect(
    6 * 2 * 12,
    measure.times.matmul_flops(lambda: run(torch.ones(2, 3, requires_grad=True))),
    label="inside a model",
    unit="FLOP",
)

# %% [markdown]
# **Explain.** Nobody needs the gradient of the data, so a *first* layer saves a third: 4 FLOP instead of 6. Inside a
# model the tokens come from an earlier layer, which does need its gradient. In a language model the
# first layer is an embedding. It looks rows up and multiplies nothing, so every matrix after
# it costs the full 6.

# %% [markdown]
# **Remember**
# - A matrix product is $2mkn$ FLOP. FLOP is an amount, FLOP/s a rate.
# - Training costs 6 FLOP per token and weight of a matrix: 2 forward, 4 backward.

# %% [markdown]
# ## 5.2 A whole model: 6ND, and what it leaves out
#
# With $N$ parameters and $D$ tokens the rule of thumb is
#
# $$C \approx 6\,N\,D$$
#
# (Kaplan et al. 2020, arXiv:2001.08361, section 2.1). Let us test it on our small GPT: 2 layers,
# hidden size 64, 4 windows of 64 characters each.

# %%
shape = TransformerShape(layers=2, hidden=64, heads=4, ffn=256, vocab=VOCAB, context=64)
parameters, tokens = shape.parameters().total, 4 * 64
thumb = flops.six_nd(parameters, tokens)
print(f"6 · {parameters:,} · {tokens} = {units.format_flop(thumb)}")

# %% [markdown]
# **Predict.** Will the counter find more or less, and by what factor?

# %%
factor = predict("5.factor", "Counted / 6ND?", yours=None)

# %%
gpt = scratch.gpt.GPT(layers=2, hidden=64, heads=4, vocab=VOCAB, context=64)
inputs, labels = Windows(sequence=64).batch(range(4))


def step():
    """Forward and backward of the GPT, with attention as two plain matrix products."""
    with sdpa_kernel(SDPBackend.MATH):
        scratch.accumulation.loss_sum(gpt(inputs), labels).backward()


# %% [markdown]
# Outside this course you would take PyTorch's `FlopCounterMode`, which counts whatever runs inside it:

# %%
with FlopCounterMode(display=False) as counter:
    step()
counted = counter.get_total_flops()
assert counted == measure.times.matmul_flops(step)  # the course's counter agrees
expect(1.093, counted / thumb, within=0.01, label="counted / 6ND", yours=factor)

# %% [markdown]
# **Explain.** Two errors of opposite sign.
#
# *Too few:* attention multiplies queries with keys, and scores with values. No weights are involved,
# so $N$ knows nothing about it. Each of $s$ tokens meets $s$ tokens, in $h$ numbers, in two products: $4sh$
# FLOP per token and layer, times 3 with the backward pass:
#
# $$\text{attention scores} = 12\, L\, h\, s \quad \text{FLOP per token.}$$
#
# *Too many:* $N$ includes positions, biases and norms, which are not matrices. (The token embedding is not
# multiplied either. Here it is also the head, so counting it once is right. Where the
# head is a matrix of its own, $N$ counts the embedding once too often.)
#
# `theory.compute.flops` goes through all matrices and adds the scores. It must agree with the counter exactly:

# %%
exact = flops.training_flops(shape, sequences=4, sequence=64)
assert counted == exact.model_flop

# %% [markdown]
# `FlopCounterMode` also counts by module and by operation. `mm` and `addmm` are products with weights. `bmm` multiplies many pairs of matrices at a time,
# one for each head and sequence: those are the scores, $12Lhs$ for each token.

# %%
by_operation = counter.get_flop_counts()["Global"]
for operation, flop in by_operation.items():
    print(f"{operation!s:<11} {flop:>11,} FLOP")
assert (
    by_operation[torch.ops.aten.bmm] == exact.scores_flop == 12 * 2 * 64 * 64 * tokens
)

# %% [markdown]
# Where do a model's FLOP go? Before you look: does the share of attention's scores grow or shrink from GPT-2 to GPT-3, whose
# context is twice as long?

# %%
names = ("gpt2-124m", "llama2-7b", "llama2-70b", "gpt3-175b")
full = {name: flops.training_flops(models.MODELS[name]) for name in names}
bars = {}
for name, one in {"our small GPT": exact, **full}.items():
    leaves = {part.removesuffix("_flop"): flop for part, flop in one.leaves().items()}
    shown = ("projections", "scores", "mlp", "head")
    bars[name] = {part: 100 * leaves[part] / one.model_flop for part in shown}
figures.stacked_bars(bars, "Shares of the FLOP of training", "{:.0f} %".format)

# %% [markdown]
# It shrinks. The projections are attention's weight matrices. Only the *scores* are work without weights, and their share is small where
# the hidden size is large.
#
# How wrong is $6ND$ for real models? It depends on sequence length over hidden size. The scores cost $12Lhs$ FLOP per token. The
# matrices of a layer have $12h^2$ weights, so they cost $6 \cdot 12 L h^2 = 72 L h^2$. The ratio is
#
# $$\frac{12\,L\,h\,s}{72\,L\,h^2} = \frac{s}{6h}.$$

# %%
gpt3 = full["gpt3-175b"]
weights = gpt3.projections_flop + gpt3.mlp_flop
assert abs(gpt3.scores_flop / weights / (2048 / 6 / 12288) - 1) < 1e-9

bars = {}
for name in names:
    model = models.MODELS[name]
    six_n = 6 * model.parameters().total
    half = flops.training_flops(model, mask="causal")
    bars[name] = {
        "s / 6h": 100 * model.context / (6 * model.hidden),
        "all pairs": 100 * (full[name].model_flop_per_token / six_n - 1),
        "causal half": 100 * (half.model_flop_per_token / six_n - 1),
    }
    assert bars[name]["causal half"] < bars[name]["all pairs"] < bars[name]["s / 6h"]
colours = {"s / 6h": style.BLUE, "all pairs": style.SKY, "causal half": style.YELLOW}
figures.grouped_bars(
    bars, "What 6ND leaves out, in % of 6ND", "{:.1f} %".format, colours
)

# %% [markdown]
# "All pairs" and "causal half" differ by a **convention** (约定). A token may look only at earlier ones, so half of the pairs are
# not needed, and a good kernel skips them. PaLM and the papers on Megatron-LM count all pairs; Megatron-LM's own `training.py` of 2025
# counts half. The measured seconds are the same. Whoever counts more reports a higher utilisation (利用率).
#
# ### 20 tokens per parameter
#
# Chinchilla has 70 billion parameters and was trained on 1.4 trillion tokens: $6 \cdot 70 \cdot 10^9 \cdot 1.4 \cdot 10^{12} =
# 5.88 \cdot 10^{23}$ FLOP. The paper's budget was $5.76 \cdot 10^{23}$ (arXiv:2203.15556).
#
# A larger model on fewer tokens would have cost as much, and so would a smaller one on more. The paper trained over 400 models to find out which reaches the lowest loss. Its answer, at every
# budget: about **20 tokens per parameter**. Such a training is called **compute-optimal** (计算最优). With $D = 20N$ the rule of thumb gives the model for a budget:
#
# $$C = 6\,N \cdot 20\,N \quad\Rightarrow\quad N = \sqrt{C / 120} .$$

# %%
assert round(flops.six_nd(70e9, 1.4e12) / 1e23, 2) == 5.88
assert round(budget.compute_optimal_parameters(5.76e23) / 1e9) == 69

# %% [markdown]
# How many tokens per parameter did others take? (Tokens: GPT-3's paper, table D.1; LLaMA-2's, table 1; Llama 3's model card.)

# %%
trained = {"gpt3-175b": 0.3e12, "llama2-7b": 2e12, "llama3-8b": 15e12}
ratios = {
    name: tokens / models.MODELS[name].parameters().total
    for name, tokens in trained.items()
}
ratios["compute-optimal"] = budget.TOKENS_PER_PARAMETER
figures.bars(
    ratios, "{:,.1f}".format, "Tokens per parameter", style.COMPUTING, tens=True
)

# %% [markdown]
# By this rule, found two years later, GPT-3 had too few for its size. The Llamas have far too many, on purpose: a small model costs more to train to a given loss, but
# every answer that it gives afterwards is cheaper.
#
# **Remember**
# - $6ND$ is too low by at most $s/6h$: 2.8 % for GPT-3, 16.7 % for LLaMA-2 7B (counted: 2.7 % and 14.0 %). Add $12Lhs$ per token for attention.
# - In a mixture of experts (chapter 12) a token uses only some of the parameters: $N$ counts those.
# - Causal attention counted in full or in half is a convention: name yours.
# - A budget of $C$ FLOP is best spent on $\sqrt{C/120}$ parameters and 20 tokens for each.

# %% [markdown]
# ## 5.3 From FLOP to days and money
#
# Time is operations over speed. With $n$ GPUs that really do $X$ FLOP/s each:
#
# $$\text{time} = \frac{6ND}{n\,X}.$$
#
# Assume that the 64 H100 reach 40 % of their peak; section 5.5 says why not more.

# %%
total = flops.six_nd(models.MODELS["llama2-7b"].parameters().total, 2e12)
rent = budget.training_run(total, gpus=64, flop_per_s_per_gpu=0.40 * 989.4e12)
expect(37, rent.days, within=0.02, label="days", yours=days)

# %% [markdown]
# 37 days: a week buys only 379 billion tokens. How many GPUs would a week take, and what if they reach more or less of their peak?

# %%
curves = {
    f"{percent} % of the peak": [
        (gpus, budget.training_run(total, gpus, percent / 100 * 989.4e12).days)
        for gpus in (64, 128, 256, 512, 1024)
    ]
    for percent in (30, 40, 50)
}
title = "LLaMA-2 7B, 2T tokens: days of training"
figures.lines(curves, "H100", "days", title, doubling=(True, True), level={"a week": 7})

# %%
in_a_week = 64 * rent.days / 7
assert round(in_a_week) == 338 and round(rent.gpu_hours / 1000) == 57
assert round(budget.cost(rent.gpu_hours, 2) / 1000) == 114
assert budget.cost(2_788_000, 2) == 5_576_000

# %% [markdown]
# At 40 % it takes 338 GPUs. The GPU-hours are 57,000 at every point of that curve. Meta reports
# 184,320 for LLaMA-2 7B, on A100s with a third of the speed (arXiv:2307.09288, table 2). Section 5.5 finds out what part of their peak these reached.
#
# At 2 USD for a GPU-hour, 57,000 of them cost 114,000 USD. DeepSeek-V3 took 2.788 million H800 GPU-hours. At the same price, which is the authors' own
# assumption, that is 5,576,000 USD (arXiv:2412.19437, table 1). It is the final run only, without earlier experiments, salaries or failed runs. Always say what a price includes.
#
# And what is a week of your 64 GPUs good for? By the rule of section 5.2, its $1.53 \cdot 10^{22}$ FLOP are best spent on 11.3 billion parameters and
# 226 billion tokens.

# %%
week_flop = 64 * 7 * 86_400 * 0.40 * 989.4e12
assert round(week_flop / 1e22, 2) == 1.53
best = budget.compute_optimal_parameters(week_flop)
assert round(best / 1e9, 1) == 11.3
assert round(budget.TOKENS_PER_PARAMETER * best / 1e9) == 226

# %% [markdown]
# **Remember**
# - Days = FLOP / (GPUs × achieved FLOP/s). GPU-hours do not depend on the number of GPUs, as long as each achieves the same speed.
# - The achieved speed is the uncertain factor. The rest of the chapter is about it.

# %% [markdown]
# ## 5.4 The roofline
#
# A chip has two speeds: how fast it computes, and how fast its memory delivers numbers. An H100 computes
# 989.4 TFLOP/s and reads 3.35 TB/s. To be busy it must do
#
# $$\frac{989.4 \cdot 10^{12}}{3.35 \cdot 10^{12}} = 295 \quad\text{FLOP for each byte}$$
#
# that comes from memory. This is the **ridge point** (脊点). An operation's own ratio of FLOP to bytes is
# its **arithmetic intensity** (算术强度). Below the ridge an operation waits for memory; above it, for
# the arithmetic. The **roofline** (屋顶线模型) says what is reachable:
#
# $$\text{FLOP/s} \le \min(\text{peak},\ \text{intensity} \times \text{bandwidth})$$
#
# (Williams, Waterman, Patterson 2009, doi:10.1145/1498765.1498785).
#
# Two examples in bf16, 2 bytes a number. *Adding* two vectors: one FLOP for two reads and one write, so
# $1/6$ FLOP per byte. Hopelessly below 295. *Multiplying* matrices of 4096 × 4096:
# $2 \cdot 4096^3$ FLOP for three matrices of 33.6 MB, so 1365 FLOP per byte. Well above.

# %%
assert round(hardware.accelerator("H100-SXM").ridge_flop_per_byte) == 295
assert round(hardware.matmul_intensity(4096, 4096, 4096)) == 1365

# %% [markdown]
# Weights are read once for all tokens of a batch. With few tokens there is little to do with each
# weight. Move the slider and find out:
#
# 1. From how many tokens on are the matrices of LLaMA-2 7B limited by compute on an H100?
# 2. Does an H200, with its faster memory, need more tokens or fewer?
# 3. What part of the peak is left for one token, as in generating text?

# %%
from course_lib.chapters.ch05_flops_roofline_mfu import panels

panels.roofline(model="llama2-7b", gpu="H100-SXM", tokens=64)

# %%
few, many = (panels.roofline(tokens=count).result for count in (1, 4096))
assert few.peak_fraction < 0.01 and many.peak_fraction > 0.9

# %% [markdown]
# The first two answers are where the curve meets the chips' ridges. What is the other curve, the number of tokens itself, doing there?


# %%
def mlp_intensity(tokens):
    """FLOP per byte of LLaMA-2 7B's MLP."""
    chip = hardware.accelerator("H100-SXM")
    found = roofline.model_roofline(models.MODELS["llama2-7b"], chip, tokens).operations
    return next(each.flop_per_byte for each in found if each.name == "MLP")


ridges = {
    f"ridge, {gpu}": hardware.accelerator(gpu).ridge_flop_per_byte
    for gpu in ("H100-SXM", "H200-SXM")
}
curve = [(2**power, mlp_intensity(2**power)) for power in range(5, 13)]
curves = {"MLP of LLaMA-2 7B": curve, "tokens": [(t, t) for t, _ in curve]}
title = "More tokens at once, more FLOP for each byte"
figures.lines(
    curves, "tokens", "FLOP per byte", title, doubling=(True, True), level=ridges
)

# %%
h100_ridge, h200_ridge = ridges.values()
assert mlp_intensity(128) < h200_ridge < mlp_intensity(256)
assert mlp_intensity(256) < h100_ridge < mlp_intensity(512)

# %% [markdown]
# Answers. (1) From 512 tokens on, among the slider's powers of two. (2) Fewer, 256. The H200 computes and sends as fast as the H100, but its memory
# delivers 4.8 instead of 3.35 TB/s. That *lowers* the ridge, from 295 to 206. (A published mistake, note 004, has it raise the ratio of compute to
# communication.) (3) Less than one percent.
#
# The other curve is a rule of thumb. Take a weight matrix of $h \times h$, and $T$ tokens. The product does $2Th^2$ FLOP. It reads $Th$ inputs and $h^2$ weights, and writes
# $Th$ outputs, 2 bytes each:
#
# $$\text{intensity} = \frac{2\,T h^2}{2\,(2\,T h + h^2)} = \frac{T}{1 + 2T/h} \approx T \quad\text{while } T \ll h .$$
#
# So **the intensity of a linear layer is about the number of its tokens**, and the ridge says how many tokens keep a chip busy: about 295 on an H100, or exactly 346 where
# $h = 4096$. With more tokens, inputs and outputs outweigh the weights, and the curve flattens.

# %%
assert round(hardware.matmul_intensity(64, 4096, 4096)) == 62
assert hardware.matmul_intensity(345, 4096, 4096) < h100_ridge
assert hardware.matmul_intensity(346, 4096, 4096) > h100_ridge

# %% [markdown]
# ### Your own machine
#
# Measure the two speeds of your computer: one large matrix product, and one addition of long
# vectors.

# %%
show_source(measure.times.matmul_flop_per_s)

# %%
peak = max(measure.times.matmul_flop_per_s(n, n, n) for n in (256, 512, 1024))
bandwidth = measure.times.memory_bytes_per_s()
mine = hardware.Accelerator(
    "this machine, one core",
    peak,
    8 * units.GB,
    bandwidth,
    hardware.PCIE4,
    number_format="fp32",
    matmul_efficiency=1.0,  # the peak is one that a matrix product has reached
    layer_efficiency=1.0,
    attention_efficiency=1.0,
)
print(f"peak / memory bandwidth = {mine.ridge_flop_per_byte:.1f} FLOP/byte")
print(f"{peak / 1e9:.0f} GFLOP/s, {bandwidth / 1e9:.1f} GB/s")

# %% [markdown]
# **Predict.** Multiply $T$ tokens with a matrix of 2048 × 2048 in fp32, for $T$ = 1 and $T$ = 256. By
# what factor is the rate, in FLOP/s, higher for 256? (Where does each of the two lie on the roofline of your machine?)

# %%
gain = predict("5.gain", "Rate at 256 / at 1?", yours=None)

# %%
sizes = (1, 4, 16, 64, 256)
intensity = {t: hardware.matmul_intensity(t, 2048, 2048, 4) for t in sizes}
assert intensity[1] < 0.5 and intensity[256] > 100  # FLOP per byte
allowed = {t: mine.attainable_flop_per_s(each) for t, each in intensity.items()}
reached = {t: measure.times.matmul_flop_per_s(t, 2048, 2048) for t in sizes}
expect(..., reached[256] / reached[1], label="gain by batching", yours=gain)

# %%
print(f"the roofline allows a factor of {allowed[256] / allowed[1]:.1f}")
curves = {
    name: [(t, rate / 1e9) for t, rate in rates.items()]
    for name, rates in (("roofline", allowed), ("measured", reached))
}
title = "A matrix of 2048 × 2048 on this machine"
figures.lines(curves, "tokens", "GFLOP/s", title, doubling=(True, True))

# %% [markdown]
# **Explain.** The shape is right; the heights are only approximate. Points fall below the roofline because a product of few rows does not
# reach the peak of a large square one, and because other programs run at the same time. Points lie above it where part of the 16.8 MB of weights stays in the
# processor's cache, which is faster than memory; and the addition that measured the bandwidth also writes, while the product mostly reads.
#
# **Remember**
# - Ridge = peak / memory bandwidth: 295 FLOP per byte on an H100, about ten on a CPU core.
# - The intensity of a linear layer is about its number of tokens, in 16 bits. So the ridge is the number of tokens that it needs.
# - Matrix products with many tokens compute; additions, norms, single tokens wait for memory.
# - Faster memory lowers the ridge; it does not make products with many tokens faster.

# %% [markdown]
# ## 5.5 MFU and HFU
#
# **MFU**, model FLOPs utilisation (模型算力利用率), is the part of the peak that goes into operations the
# model needs:
#
# $$\text{MFU} = \frac{\text{model FLOP per token} \times \text{tokens per second}}
# {\text{GPUs} \times \text{peak}}.$$
#
# Where does the rest go? To operations that wait for memory, to chips that wait for messages or for each other, and to
# matrices too small to fill a chip. PaLM 540B reached 238,300 tokens per second on 6144 TPU v4 chips of 275 TFLOP/s
# (arXiv:2204.02311, table 3 and appendix B).

# %%
per_token = flops.palm_flop_per_token(
    540.35e9, layers=118, heads=48, head_dim=256, sequence=2048
)
print(f"{per_token / 1e12:.2f} TFLOP per token")
palm = budget.utilisation(
    per_token * 238_300, time_s=1, gpus=6144, peak_flop_per_s=275e12
)
expect(0.462, palm, within=0.002, label="PaLM's MFU")

# %% [markdown]
# **Predict.** Meta's 184,320 A100-hours for LLaMA-2 7B's 2 trillion tokens are such a measurement, too. An A100 does 312 TFLOP/s. Which MFU
# is it, by $6ND$? (Section 5.3 assumed 40 %.)

# %%
metas = predict("5.meta", "Meta's MFU in %?", yours=None, unit="%")

# %%
a100 = hardware.accelerator("A100-SXM-80GB")
meta = budget.utilisation(total, 184_320 * 3600, 1, a100.peak_flop_per_s)
expect(39.06, 100 * meta, within=1e-3, label="Meta's MFU", unit="%", yours=metas)

# %%
llama = models.MODELS["llama2-7b"]
for mask, percent in {"causal": 41, "full": 45}.items():
    per_token = flops.training_flops(llama, mask=mask).model_flop_per_token
    assert round(100 * meta * per_token * 2e12 / total) == percent

# %% [markdown]
# **Explain.** 39 %, so the assumption was fair. The same GPU-hours are 41 % with the causal half of attention's scores and 45 % with all pairs: name your convention.
# And it is an average over the whole run. Hours in a table may include restarts and evaluations, which nobody counts as FLOP.

# %% [markdown]
# ### Reading a data sheet
#
# | number | what it is |
# |---|---|
# | H100 SXM: 1979 TFLOP/s | with "sparsity": half of the weights must be zero. Dense: **989.4** |
# | H100 PCIe: 756 TFLOP/s | another card with the same name |
# | RTX 4090: 330 TFLOP/s | fp16 added up in fp16, which training does not do. With fp32 sums, and bf16: **165.2** |
#
# Even large matrix products stay below the peak. The best that one benchmark found on an H100, over many sizes, reached 794.5 of 989.4 TFLOP/s,
# 80 % (Bekman, *Machine Learning Engineering*). So an MFU of 40 to 50 % is good, and 100 % is out of reach:

# %%
h100 = hardware.accelerator("H100-SXM").peak_flop_per_s / 1e12
bars = {
    "data sheet, large print": {"computing": h100, "zeros that are skipped": h100},
    "dense": {"computing": h100},
    "best matrix product": {"computing": 794.5, "idle or slow": h100 - 794.5},
    "training at 40 % MFU": {"computing": 0.4 * h100, "idle or slow": 0.6 * h100},
}
figures.stacked_bars(bars, "H100, TFLOP/s", "{:,.0f}".format)

# %% [markdown]
# ### HFU
#
# **HFU**, hardware FLOPs utilisation (硬件算力利用率), also counts what is done twice. With full activation checkpointing
# (chapter 4) the forward pass runs again: $2 + 2 + 4 = 8$ instead of 6. The hardware is busier, the
# training no faster. The ratio is just below $4/3$, because the head is not recomputed:

# %%
plain = flops.training_flops(llama)
again = flops.training_flops(llama, recompute="full")
assert again.model_flop == plain.model_flop
assert 1.32 < again.hardware_flop / again.model_flop < 4 / 3

# %% [markdown]
# Flash attention recomputes as well: it never stores the scores, so the backward pass computes them once
# more. The counter sees it as soon as we let PyTorch choose its own attention:

# %%
chosen = measure.times.matmul_flops(
    lambda: scratch.accumulation.loss_sum(gpt(inputs), labels).backward()
)
flash = flops.training_flops(shape, sequences=4, sequence=64, attention="flash")
assert chosen == flash.hardware_flop > flash.model_flop == exact.model_flop

# %% [markdown]
# Compare MFU and HFU by one convention only. A flash kernel that skips the masked half of the pairs does fewer operations, in spite of its
# recomputation, than an MFU with all pairs assumes:

# %%
skipping = flops.training_flops(llama, mask="causal", attention="flash")
assert skipping.model_flop < skipping.hardware_flop < plain.model_flop
runs = {
    "everything kept": plain,
    "full recomputation": again,
    "flash attention": flops.training_flops(llama, attention="flash"),
    "flash, half of the pairs": skipping,
}
bars = {
    name: {
        "forward": one.forward_flop / one.tokens / 1e9,
        "backward": 2 * one.forward_flop / one.tokens / 1e9,
        "again": one.recompute_flop / one.tokens / 1e9,
    }
    for name, one in runs.items()
}
figures.stacked_bars(
    bars,
    "LLaMA-2 7B: GFLOP for each token",
    "{:.1f}".format,
    colours={"again": style.TEMPORARY},
)

# %% [markdown]
# **Remember**
# - MFU counts what the model needs, HFU also what is recomputed. Counted by one convention, HFU is never the smaller one.
# - Always divide by the dense peak of the number format that is used.

# %% [markdown]
# ## 5.6 Predict your own machine
#
# **Predict.** Your own MFU: the small GPT on one core, with your measured peak as the denominator.
# The matrices are tiny (64 × 256), and there are many operations between them. What
# is your guess, in percent?

# %%
my_mfu = predict("5.mfu", "Your MFU in %?", yours=None)

# %%
time_s = measure.times.seconds(step, repeats=9)
mfu = budget.utilisation(exact.model_flop, time_s, gpus=1, peak_flop_per_s=peak)
expect(..., 100 * mfu, label="your MFU", unit="%", yours=my_mfu)

# %%
print(f"{1000 * time_s:.1f} ms a step")

# %% [markdown]
# **Explain.** Each operation costs some microseconds to start. With matrices this small, starting takes
# about as long as computing. Make the model wider, and the MFU rises:


# %%
def mfu_at(hidden):
    """MFU in % of a GPT of this width, on one core."""
    sizes = dict(layers=2, hidden=hidden, heads=4, vocab=VOCAB, context=64)
    wider = scratch.gpt.GPT(**sizes)
    work = flops.training_flops(TransformerShape(ffn=4 * hidden, **sizes), 4, 64)
    passes_s = measure.times.seconds(
        lambda: scratch.accumulation.loss_sum(wider(inputs), labels).backward()
    )
    mfu = budget.utilisation(work.model_flop, passes_s, gpus=1, peak_flop_per_s=peak)
    return 100 * mfu


by_width = [(hidden, mfu_at(hidden)) for hidden in (32, 64, 128, 256, 512)]
curve = {"this machine": by_width}
title = "MFU of a small GPT, by its hidden size"
figures.lines(curve, "hidden size", "MFU, %", title, doubling=(True, False))

# %% [markdown]
# Where this was written, it went from 17 % at hidden size 32 to 83 % at 512.
#
# ### A whole update on your machine
#
# The function `step_time` predicts the updates of large clusters in chapter 13. It needs a peak and a memory bandwidth, and since section 5.4 you have both for your machine.
# It adds three parts:
#
# $$\text{time} = \frac{\text{FLOP of the matrix products}}{\text{peak}} + \frac{8 \cdot \text{bytes kept for backward}}{\text{bandwidth}} +
# \frac{2 \cdot \text{bytes of the states}}{\text{bandwidth}} .$$
#
# The second part is for everything between the matrix products: norms, GELU, additions and their gradients. They wait for memory, and
# each byte goes through it about 8 times. (That number was fitted to A100s.) The third part is the optimizer, which reads and writes all states once.

# %%
fp32 = Recipe("fp32", "fp32", master_copy=False)
my_cluster = Cluster(mine, gpus_per_node=1)


size = TransformerShape(4, 256, heads=4, ffn=1024, vocab=VOCAB, context=64)
predicted = step_time(Job(size, fp32, Layout(micro_batch=8), my_cluster))

wide = scratch.gpt.GPT(layers=4, hidden=256, heads=4, vocab=VOCAB, context=64)
adamw = torch.optim.AdamW(wide.parameters(), fused=True)
batch, answers = Windows(sequence=64).batch(range(8))


def update():
    """A whole update of the wide GPT on 8 windows of 64 characters."""
    scratch.accumulation.loss_sum(wide(batch), answers).backward()
    adamw.step()
    adamw.zero_grad()


# %% [markdown]
# **Predict.** The GPT is wider now: 4 layers with hidden size 256. Divide the measured time of its update by the predicted one. Is the ratio below or above 1, and by how much?

# %%
slower = predict("5.slower", "Measured / predicted, wide?", yours=None)

# %%
times = sorted(measure.times.seconds(update, repeats=1) for _ in range(9))
ratio = times[4] / predicted.total_s
expect(..., ratio, label="measured / predicted, wide", yours=slower)

# %%
wide_mfu = budget.utilisation(predicted.model_flop, times[4], 1, peak)
print(f"MFU: {wide_mfu:.0%} of your measured peak, predicted {predicted.mfu:.0%}")

# %%
bars = {
    "predicted": {
        "matrix products": predicted.compute_s,
        "between them": predicted.elementwise_s,
        "optimizer": predicted.optimizer_s,
    },
    "fastest of nine": {"measured": times[0]},
    "median": {"measured": times[4]},
}
colours = {
    "matrix products": style.COMPUTING,
    "between them": style.TEMPORARY,
    "measured": style.MEASURED,
}
figures.stacked_bars(
    bars, "An update of the wide GPT", units.format_duration, colours=colours
)

# %% [markdown]
# **Explain.** Where this was written, on a quiet core, the update took about 1.1 times as long as predicted, and its MFU was 67 to 84 %, in processor time. That is a fraction of the fastest matrix product
# we measured, not of a data sheet's peak. Yours may differ: it is the median of only nine updates, and other programs may have been running. Which of the three parts is to blame for the rest? PyTorch's profiler (性能分析器) adds up the time of each kind of operation:

# %%
with torch.profiler.profile() as profile:
    update()
products = sum(
    event.self_cpu_time_total / 1e6
    for event in profile.key_averages()
    if "mm" in event.key or "attention" in event.key
)
efficiency = predicted.compute_s / products
print(f"matrix products: {1e3 * products:.0f} ms, {efficiency:.0%} of the best rate")

# %% [markdown]
# The matrix products. Those of a real layer reach about 80 % of the rate of the best one: they are smaller, some are transposed, and biases are
# added on the way. It is the same on GPUs. Chapter 13 takes 81 % on an A100 and 75 % on an H100, fitted to published runs. Here we took 100 %, so the
# prediction is too fast.

# %% [markdown]
# **Remember**
# - From a measured peak and a measured bandwidth you can predict the time of an update. Where this was written, the prediction was about 10 % too short.
# - Whole layers reach about 80 % of the rate of the best matrix product.
# - Times vary from run to run, by 10 % on a quiet machine: take the median, and report the spread. Bytes do not vary.

# %% [markdown]
# ## What to remember
#
# 1. A matrix product is $2mkn$ FLOP. FLOP is an amount, FLOP/s a rate.
# 2. Training: 6 FLOP per weight and token, 8 with full recomputation.
# 3. Attention adds $12Lhs$ per token, about $s/6h$ of the rest; causal half is a convention.
# 4. Days = $6ND$ / (GPUs × achieved FLOP/s). A budget is best spent on 20 tokens per parameter.
# 5. Below the ridge memory is the limit, above it the arithmetic. A linear layer's intensity is about its number of tokens.
# 6. MFU of 40 to 50 % is good. Divide by the dense peak.

# %%
from course_lib import quiz

quiz("5")

# %% [raw] tags=["quiz"]
# Training costs 6 FLOP per weight and token. How many of them are the forward pass?
# [x] 2
# [ ] 3
# [ ] 4
# Why: One product forward; two backward, for the weights and for the input.
#
# A chip computes 100 TFLOP/s and reads 2 TB/s. How fast are 10 FLOP per byte?
# [ ] 100 TFLOP/s
# [x] 20 TFLOP/s
# [ ] 50 TFLOP/s
# Why: Below the ridge of 50 it waits for memory: 10 · 2 TB/s.
#
# 64 tokens go through a layer of 8192 × 8192 weights in bf16. How many FLOP per byte?
# [x] about 64
# [ ] about 4096
# [ ] about 8192
# Why: The weights are read once for all tokens, and each token adds about 1 FLOP per byte.
#
# You switch on full activation checkpointing. What happens to MFU and HFU?
# [ ] both rise
# [x] MFU falls, HFU hardly changes
# [ ] HFU falls
# Why: The step takes a third longer, and the extra FLOP count for HFU only.
#
# A colleague's MFU counts all pairs of tokens, yours the causal half. Same program?
# [ ] no, hers is faster
# [x] it may be: only the convention differs
# [ ] no, yours is wrong
# Why: The seconds are the same; the numerator is a convention.
#
# Which number belongs under the MFU of a bf16 run on H100 SXM?
# [ ] 1979 TFLOP/s
# [x] 989.4 TFLOP/s
# [ ] 794.5 TFLOP/s
# Why: The dense peak. 1979 needs sparse weights; 794.5 is one benchmark's best matmul.

# %% [markdown]
# **Now you:** open [the exercises](../exercises/05_flops_roofline_mfu.ipynb).
#
# **Read on.** Kaplan et al. 2020, *Scaling Laws*, section 2.1 (arXiv:2001.08361). PaLM, appendix B
# (arXiv:2204.02311), for MFU. Williams et al. 2009, *Roofline*. Narayanan et al. 2021, section 5.1 and
# appendix (arXiv:2104.04473), for training times. Hoffmann et al. 2022 (arXiv:2203.15556), for 20 tokens per parameter.

# %% tags=["exercise"]
from itertools import pairwise

from course_lib import check, hint, solution
from course_lib.theory.compute import budget, flops
from course_lib.theory.inputs import TransformerShape, hardware, models

# %% [markdown] tags=["exercise"]
# ### 5.1 Calculate: GPT-3
#
# 175 billion parameters, 300 billion tokens, 1024 A100 that reach 140 TFLOP/s
# each *with full recomputation counted in*. How many FLOP does the hardware do, and how many days does it
# take?

# %% [raw] tags=["hints"]
# With recomputation the forward pass runs twice: 2 + 2 + 4.
# A day has 86,400 s.

# %% tags=["exercise"]
hardware_flop, days = ..., ...
### BEGIN SOLUTION
hardware_flop = 8 * 175e9 * 300e9
days = hardware_flop / (1024 * 140e12) / 86_400
### END SOLUTION
check("5.1", [hardware_flop, days])

# %% [markdown] tags=["exercise"]
# ### 5.2 Debug: 196 Tflops
#
# (published mistake, note 004) One layer of a billion parameters and 8 × 4096 tokens take
# "a total compute of 196 Tflops". Give the amount in FLOP; its unit, "FLOP" or "FLOP/s"; and the
# seconds an RTX 4090 needs for it at its full dense bf16 peak of 165.2 TFLOP/s.

# %% [raw] tags=["hints"]
# Does 'how much' or 'how fast' have a '/s'?
# Each parameter meets each token, forward and backward: 6 · parameters · tokens.

# %% tags=["exercise"]
amount, unit, seconds = ..., ..., ...
### BEGIN SOLUTION
amount = 6 * 1e9 * 8 * 4096
unit = "FLOP"
seconds = amount / 165.2e12
### END SOLUTION
check("5.2", [amount, unit, seconds])

# %% [markdown] tags=["exercise"]
# ### 5.3 Debug: five counts of one model
#
# (published mistake, note 004) "6 is the number of multiplications and additions for each token": it is the number for each token *and parameter*, and not
# even programs that know it agree. Five of them report the FLOP of training GPT-2 (124,439,808 parameters) for one token, in sequences of 1024. What did
# each of them count: `"6N"`, `"all pairs"` of tokens, `"causal half"` of them, `"recomputation"` of all layers once more (but not of the head), or `"forward only"`?

# %% [raw] tags=["hints"]
# One of them knows nothing but the number of parameters. Start from it.
# Divide the others by one another: which counts are 1/3 and 1.24 of which?
# flops.training_flops(models.MODELS['gpt2-124m'], mask=…, recompute=…) counts them all.

# %% tags=["exercise"]
counted = {
    854_438_400: ...,
    746_638_848: ...,
    284_812_800: ...,
    1_062_056_448: ...,
    797_815_296: ...,
}
### BEGIN SOLUTION
counted = {
    854_438_400: "all pairs",  # 6N, without positions and norms, and 12 L h s
    746_638_848: "6N",
    284_812_800: "forward only",  # a third of the first
    1_062_056_448: "recomputation",  # 1.24 of the first: the head runs once
    797_815_296: "causal half",  # half way between the first and the matrices alone
}
### END SOLUTION
check("5.3", counted)

# %% [markdown] tags=["exercise"]
# ### 5.4 Implement: the FLOP of a stack of linear layers
#
# `widths` are the numbers of features, as in `[8, 16, 4]` for two
# layers. Count forward and backward for `tokens` tokens. The data needs no gradient. Fewer than two
# widths: `ValueError`.

# %% [raw] tags=["hints"]
# How many matrix products does a layer need, and which one does the first layer not need?
# Two in the first layer, then 3, each of 2 · tokens · inputs · outputs.


# %% tags=["exercise"]
def stack_flop(widths: list[int], tokens: int) -> int:
    """FLOP of training a stack of linear layers without biases on `tokens` tokens."""
    ### BEGIN SOLUTION
    if len(widths) < 2:
        raise ValueError(f"widths {widths} make no layer: give at least two")
    total = 0
    for number, (inputs, outputs) in enumerate(pairwise(widths)):
        products = (
            2 if number == 0 else 3
        )  # forward, weights, and input but for the data
        total += products * 2 * tokens * inputs * outputs
    return total
    ### END SOLUTION


check("5.4", stack_flop)

# %% [markdown] tags=["exercise"]
# ### 5.5 Debug: four proud teams
#
# Four teams train LLaMA-2 7B in sequences of 4096 on A100 (312 TFLOP/s dense), and each is proud of its utilisation:
# A of an MFU of 50 %, by all pairs of tokens; B of an MFU of 48 %, by the causal half; C of an HFU of 62 %, with full recomputation and all pairs; D of
# an MFU of 43 %, by $6N$. Give the tokens per second and GPU of each; the proudest is not the fastest.

# %% [raw] tags=["hints"]
# FLOP of a token · tokens per second / peak is a utilisation. Which FLOP did each take?
# hardware_flop of flops.training_flops(…, mask=…, recompute=…) is for a whole sequence.

# %% tags=["exercise"]
tokens_per_s = [..., ..., ..., ...]
### BEGIN SOLUTION
llama = models.MODELS["llama2-7b"]
a = flops.training_flops(llama).model_flop_per_token
b = flops.training_flops(llama, mask="causal").model_flop_per_token
c = flops.training_flops(llama, recompute="full").hardware_flop / 4096
d = 6 * llama.parameters().total
shares = zip((0.50, 0.48, 0.62, 0.43), (a, b, c, d), strict=True)
tokens_per_s = [share * 312e12 / each for share, each in shares]
### END SOLUTION
check("5.5", tokens_per_s)

# %% [markdown] tags=["exercise"]
# ### 5.6 Debug: what is faster on an H200?
#
# (published mistake, note 004) The H200's faster memory "can raise the ratio of compute to communication". You move a training from
# H100 (989.4 TFLOP/s, 3.35 TB/s, NVLink4) to H200 (the same but 4.8 TB/s). By what factor does each of these become faster at most, on the roofline? The matrix has 4096 × 4096 weights in
# bf16.

# %% [raw] tags=["hints"]
# What did NVIDIA change: the peak, NVLink, or the memory? And what waits for which?
# Compare the FLOP per byte of each product with both ridges: one of them lies between.

# %% tags=["exercise"]
faster = {
    "8192 tokens times the matrix": ...,
    "256 tokens times the matrix": ...,
    "1 token times the matrix": ...,
    "AdamW's update": ...,
    "an all-reduce over NVLink": ...,
}
### BEGIN SOLUTION
memory = 4.8 / 3.35
faster = {
    "8192 tokens times the matrix": 1,
    # 228 FLOP per byte: below the H100's ridge of 295, above the H200's of 206
    "256 tokens times the matrix": 989.4
    / (hardware.matmul_intensity(256, 4096, 4096) * 3.35),
    "1 token times the matrix": memory,
    "AdamW's update": memory,
    "an all-reduce over NVLink": 1,
}
### END SOLUTION
check("5.6", faster)

# %% [markdown] tags=["exercise"]
# ### 5.7 Debug: the 13.9 % trap
#
# Llama 3 70B took 6.4 million GPU-hours on H100 SXM (Meta's model card) for 15 trillion tokens; it has
# 70,553,706,496 parameters. Somebody divides $6ND$ by the data sheet's 1979 TFLOP/s and finds an MFU of 13.9 %. What
# is it really, to three digits? A fraction or percent.

# %% [raw] tags=["hints"]
# Section 5.5, reading a data sheet.
# GPU-hours · 3600 are GPU-seconds.

# %% tags=["exercise"]
mfu = ...
### BEGIN SOLUTION
mfu = 6 * 70_553_706_496 * 15e12 / (6.4e6 * 3600 * 989.4e12)
### END SOLUTION
check("5.7", mfu)

# %% [markdown] tags=["exercise"]
# ### 5.8 Calculate: LLaMA 65B
#
# 380 tokens per second and GPU on 2048 A100 (312 TFLOP/s dense bf16), 1.4 trillion tokens, 65.2
# billion parameters (arXiv:2302.13971, section 2.4). How many days and how many GPU-hours is that, and what is the MFU by $6ND$?

# %% [raw] tags=["hints"]
# How many tokens go through all 2048 GPUs in a second? For the MFU one GPU is enough.
# 6 N · 380 FLOP/s / 312 TFLOP/s.

# %% tags=["exercise"]
days, gpu_hours, mfu = ..., ..., ...
### BEGIN SOLUTION
seconds = 1.4e12 / (380 * 2048)
days, gpu_hours = seconds / 86_400, 2048 * seconds / 3600
mfu = 6 * 65.2e9 * 380 / 312e12
### END SOLUTION
check("5.8", [days, gpu_hours, mfu])

# %% [markdown] tags=["exercise"]
# ### 5.9 Implement: MFU as PaLM counts it
#
# MFU as the paper on PaLM counts it: $6N$ and the scores of all pairs. PaLM's 48 heads of 256 numbers are 12,288 together; its hidden size is 18,432. Why do the arguments give
# the first? Return the utilisation as a fraction. The tokens per second are those of all chips together.

# %% [raw] tags=["hints"]
# Section 5.5 has this computation for PaLM 540B, by the course's functions.
# Scores multiply queries with keys. How wide are these, and what is h in section 5.2?


# %% tags=["exercise"]
def palm_mfu(
    tokens_per_s: float,
    parameters: float,
    layers: int,
    heads: int,
    head_dim: int,
    sequence: int,
    chips: int,
    peak_flop_per_s: float,
) -> float:
    """Model FLOPs utilisation with attention over all pairs."""
    ### BEGIN SOLUTION
    # Queries and keys are heads · head_dim wide: the scores never meet the hidden size.
    per_token = 6 * parameters + 12 * layers * heads * head_dim * sequence
    return per_token * tokens_per_s / (chips * peak_flop_per_s)
    ### END SOLUTION


check("5.9", palm_mfu)

# %% [markdown] tags=["exercise"]
# ### 5.10 Predict: enough tokens
#
# A chip does 100 TFLOP/s in bf16 and reads 1 TB/s. From how many tokens on, a power of two, is the product with a matrix of 4096 × 4096 weights limited by
# compute? And with one of 256 × 256, and of 128 × 128? Write 0 where no number of tokens is enough. Guess all three, then use `hardware.matmul_intensity`.

# %% [raw] tags=["hints"]
# The ridge is 100 FLOP per byte. Few tokens: about as many FLOP per byte.
# Inputs and outputs grow with the tokens. What does T / (1 + 2T/h) tend to?

# %% tags=["exercise"]
with_4096, with_256, with_128 = ..., ..., ...
### BEGIN SOLUTION
enough = []
for width in (4096, 256, 128):
    reached = [
        2**power
        for power in range(30)
        if hardware.matmul_intensity(2**power, width, width) >= 100e12 / 1e12
    ]
    enough.append(min(reached, default=0))
# T / (1 + 2T/h) never exceeds h/2: inputs and outputs outweigh the weights.
with_4096, with_256, with_128 = enough
### END SOLUTION
check("5.10", [with_4096, with_256, with_128])
