# %% [raw] tags=["sitting"]
# question: Is a week of 64 H100 enough to train LLaMA-2 7B?
# importance: 5
# difficulty: 2
# group: alone
# needs: 3

# %% [markdown]
# # 5 FLOPs, roofline, MFU
#
# You can rent 64 H100 GPUs for a week. The data sheet says 989 TFLOP/s for each. Is a week enough to train a model of 7 billion parameters on 2 trillion tokens, as LLaMA-2 7B was?
#
# How many operations does training need? How fast can a chip do them? And what part of that speed does a real run reach? At the end you can
#
# - count the operations of any transformer, and say where $6ND$ is wrong and by how much,
# - place your model and your own computer on a roofline,
# - tell MFU from HFU, and say where most of the peak goes,
# - turn operations into days, GPU-hours and money.
#
# You need chapter 3.

# %%
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from course_lib import expect, launch, measure, predict, scratch, style
from course_lib.chapters.ch05_flops_roofline_mfu import figures, panels, roofline
from course_lib.demos.shared.text import VOCAB, Windows
from course_lib.theory import TransformerShape, budget, flops, hardware, models
from course_lib.theory.inputs.published import LLAMA3_405B

launch.warm_up()
torch.set_num_threads(1)

# %% [markdown]
# **Predict.** A guess: how many days do 64 H100 need for LLaMA-2 7B's 2 trillion tokens?

# %%
days = predict("5.days", "Days on 64 H100?", yours=None, unit="days")

# %% [markdown]
# ## 5.1 Counting operations
#
# Multiply a matrix of 2 × 3 numbers by one of 3 × 4. The result has 8 numbers, and each is a sum of 3 products: 24 multiplications and 24 additions. Together these are 48 **floating-point operations** (浮点运算),
# or 48 FLOP. In general, for $m \times k$ times $k \times n$:
#
# $$\text{FLOP} = 2 \, m \, k \, n .$$
#
# **FLOP** is an amount, like kilometres. **FLOP/s** is a rate (算力), like kilometres per hour. Both are often written "FLOPS" and then mixed up. T means $10^{12}$, P $10^{15}$.
#
# A linear layer uses each weight once for each token, in one multiplication and one addition: 2 FLOP per token and weight. Its backward pass is two more products, for both gradients (∇):
#
# $$Y = XW, \qquad \nabla W = X^{\mathsf T}\, \nabla Y, \qquad \nabla X = \nabla Y\, W^{\mathsf T}.$$

# %% tags=["drawing"]
figures.matrix_products(roofline.linear_products(tokens=2, inputs=3, outputs=4))

# %% [markdown]
# Coloured is what one number of the result needs. All three products take equally many FLOP. So the backward pass costs 4 FLOP per token and weight, and training 6.
#
# **Predict.** A layer of 3 × 4 weights reads 2 tokens of the data; there is no layer before it. How many FLOP will PyTorch do, forward and backward?

# %%
first = predict("5.first_layer", "FLOP of a first layer?", yours=None, unit="FLOP")

# %% [markdown]
# **Measure.** `matmul_flops` looks at each of PyTorch's operations, takes the sizes of its matrices, and adds $2mkn$:

# %%
layer = torch.nn.Linear(3, 4, bias=False)


def flop_of(tokens):
    """FLOP of the small layer, forward and backward."""
    return measure.times.matmul_flops(lambda: layer(tokens).sum().backward())


found = flop_of(torch.ones(2, 3))
expect(4 * 2 * 12, found, label="as the first layer", unit="FLOP", yours=first)

# %%
inside = flop_of(torch.ones(2, 3, requires_grad=True))
expect(6 * 2 * 12, inside, label="inside a model", unit="FLOP")

# %% [markdown]
# **Explain.** Nobody needs the gradient of the data, so a *first* layer saves a third: 4 FLOP instead of 6. In a language model the first layer is an embedding. It looks rows up and multiplies nothing, so every
# matrix after it costs the full 6.
#
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
# (Kaplan et al. 2020, arXiv:2001.08361, section 2.1). Test it on a GPT of 2 layers, hidden size 64, with 4 windows of 64 characters.
#
# **Predict.** PyTorch's `FlopCounterMode` counts the matrix products that run inside it. Will it find more or less than $6ND$, and by what factor?

# %%
factor = predict("5.factor", "Counted / 6ND?", yours=None)

# %%
sizes = dict(layers=2, hidden=64, heads=4, vocab=VOCAB, context=64)
shape, gpt = TransformerShape(ffn=256, **sizes), scratch.gpt.GPT(**sizes)
inputs, labels = Windows(sequence=64).batch(range(4))
thumb = flops.six_nd(shape.parameters().total, 4 * 64)
with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
    scratch.accumulation.loss_sum(gpt(inputs), labels).backward()
counted = counter.get_total_flops()
expect(1.093, counted / thumb, within=0.01, label="counted / 6ND", yours=factor)

# %% [markdown]
# **Explain.** There are two errors of opposite sign.
#
# *Too few:* attention multiplies queries with keys, and scores with values, without any weights. Each of $s$ tokens meets $s$ tokens, in $h$ numbers, in two products: $4sh$ FLOP per token and layer, times 3 with the
# backward pass:
#
# $$\text{attention scores} = 12\, L\, h\, s \quad \text{FLOP per token.}$$
#
# *Too many:* $N$ includes positions, biases and norms, which are not matrices, and, where the head is a matrix of its own, the embedding, which is only looked up.
#
# `theory.compute.flops` goes through all matrices and adds the scores. It agrees with the counter exactly:

# %%
exact = flops.training_flops(shape, sequences=4, sequence=64)
print(f"6ND {thumb:,}, counted {counted:,}, theory {exact.model_flop:,} FLOP")
assert counted == exact.model_flop

# %% [markdown]
# Where do the FLOP of larger models go?

# %% tags=["drawing"]
names = ("gpt2-124m", "llama2-7b", "llama2-70b", "gpt3-175b")
full = {name: flops.training_flops(models.MODELS[name]) for name in names}
bars = {}
for name, one in {"our small GPT": exact, **full}.items():
    leaves = {part.removesuffix("_flop"): flop for part, flop in one.leaves().items()}
    shown = ("projections", "scores", "mlp", "head")
    bars[name] = {part: 100 * leaves[part] / one.model_flop for part in shown}
figures.stacked_bars(bars, "Shares of the FLOP of training", "{:.0f} %".format)

# %% [markdown]
# The projections are attention's weight matrices. Only the *scores* are work without weights, and their share is small where the hidden size is large. So how wrong is $6ND$? The scores cost $12Lhs$ FLOP per token. The matrices of a layer have about $12h^2$ weights, and cost $6 \cdot 12 L h^2 = 72 L h^2$. The ratio is
#
# $$\frac{12\,L\,h\,s}{72\,L\,h^2} = \frac{s}{6h}.$$

# %% tags=["drawing"]
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
title = "What 6ND leaves out, in % of 6ND"
figures.grouped_bars(bars, title, "{:.1f} %".format, colours)

# %% [markdown]
# "All pairs" and "causal half" differ by a **convention** (约定). A token may look only at earlier ones, so half of the pairs are not needed, and a good kernel skips them. PaLM counts all pairs;
# Megatron-LM's `training.py` of 2025 counts half. The measured seconds are the same. The convention that counts more FLOP reports a higher utilisation (利用率).
#
# **Remember**
# - $6ND$ is too low by at most $s/6h$: 2.8 % for GPT-3, 16.7 % for LLaMA-2 7B. Add $12Lhs$ per token for attention.
# - In a mixture of experts (chapter 12), $N$ counts only the parameters that a token uses.
# - Counting causal attention in full or in half is a convention: name yours.

# %% [markdown]
# ### Deeper: 20 tokens per parameter
#
# Chinchilla has 70 billion parameters and was trained on 1.4 trillion tokens: $6 \cdot 70 \cdot 10^9 \cdot 1.4 \cdot 10^{12} = 5.88 \cdot 10^{23}$ FLOP (arXiv:2203.15556; the paper's budget was $5.76 \cdot 10^{23}$).
# A larger model on fewer tokens would have cost as much, and so would a smaller one on more. The paper trained over 400 models to find out which reaches the lowest loss. Its answer, at every budget: about **20 tokens per
# parameter**. Such a training is called **compute-optimal** (计算最优). With $D = 20N$ the rule of thumb gives the model for a budget:
#
# $$C = 6\,N \cdot 20\,N \quad\Rightarrow\quad N = \sqrt{C / 120} .$$
#
# How many tokens per parameter did other models train on? (Tokens: GPT-3's paper, table D.1; LLaMA-2's, table 1; Llama 3's model card.)

# %% tags=["drawing"]
assert round(budget.compute_optimal_parameters(5.76e23) / 1e9) == 69
trained = {"gpt3-175b": 0.3e12, "llama2-7b": 2e12, "llama3-8b": 15e12}
ratios = {
    name: tokens / models.MODELS[name].parameters().total
    for name, tokens in trained.items()
}
ratios["compute-optimal"] = budget.TOKENS_PER_PARAMETER
title = "Tokens per parameter"
figures.bars(ratios, "{:,.1f}".format, title, style.COMPUTING, tens=True)

# %% [markdown]
# By this rule, found two years later, GPT-3 had too few tokens for its size. The Llamas have far too many, on purpose: a small model costs more to train to a given loss, but every answer that it gives afterwards is cheaper.

# %% [markdown]
# ## 5.3 From FLOP to days and money
#
# Time is operations over speed. With $n$ GPUs that really do $X$ FLOP/s each:
#
# $$\text{time} = \frac{6ND}{n\,X}.$$
#
# Assume that the 64 H100 reach 40 % of their peak. Section 5.5 says why not more.

# %%
total = flops.six_nd(models.MODELS["llama2-7b"].parameters().total, 2e12)
rent = budget.training_run(total, gpus=64, flop_per_s_per_gpu=0.40 * 989.4e12)
expect(round(rent.days, 1), label="days", yours=days)
assert round(rent.days) == 37

# %% [markdown]
# 37 days. How many GPUs would a week take?

# %% tags=["drawing"]
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
print(f"{64 * rent.days / 7:.0f} GPUs for a week, {rent.gpu_hours:,.0f} GPU-hours")
assert round(budget.cost(rent.gpu_hours, 2) / 1000) == 114

# %% [markdown]
# At 40 % it takes 338 GPUs. The GPU-hours are 57,000 at every point of that curve, or 114,000 USD at 2 USD an hour. That is the final run only.
#
# **Remember**
# - Days = FLOP / (GPUs × achieved FLOP/s). The achieved speed is the uncertain factor.
# - GPU-hours do not depend on the number of GPUs, as long as each achieves the same speed.

# %% [markdown]
# ## 5.4 The roofline
#
# A chip has two speeds: how fast it computes, and how fast its memory delivers numbers. An H100 computes 989.4 TFLOP/s and reads 3.35 TB/s. To be busy it must do
#
# $$\frac{989.4 \cdot 10^{12}}{3.35 \cdot 10^{12}} = 295 \quad\text{FLOP for each byte}$$
#
# that comes from memory. This is the **ridge point** (脊点). An operation's own ratio of FLOP to bytes is its **arithmetic intensity** (算术强度). Below the ridge an operation waits for memory; above it, for
# the arithmetic. The **roofline** (屋顶线模型) says what is reachable:
#
# $$\text{FLOP/s} \le \min(\text{peak},\ \text{intensity} \times \text{bandwidth})$$
#
# (Williams et al. 2009, doi:10.1145/1498765.1498785).
#
# Two examples in bf16, 2 bytes a number. *Adding* two vectors takes one FLOP for two reads and one write: $1/6$ FLOP per byte, far below 295. *Multiplying* matrices of 4096 × 4096 takes $2 \cdot 4096^3$ FLOP for three matrices of
# 33.6 MB each: 1365 FLOP per byte, far above.
#
# Weights are read once for all tokens of a batch. With few tokens there is little to do with each weight:
#
# 1. From how many tokens on are the matrices of LLaMA-2 7B limited by compute on an H100?
# 2. Does an H200, with its faster memory, need more tokens or fewer?
# 3. What part of the peak is left for one token, as in generating text?

# %%
from course_lib.chapters.ch05_flops_roofline_mfu import panels

panels.roofline(model="llama2-7b", gpu="H100-SXM", tokens=64)

# %% tags=["drawing"]
chips = {gpu: hardware.accelerator(gpu) for gpu in ("H100-SXM", "H200-SXM")}
ridges = {f"ridge, {gpu}": chip.ridge_flop_per_byte for gpu, chip in chips.items()}


def mlp_intensity(tokens):
    """FLOP per byte of LLaMA-2 7B's MLP."""
    llama, chip = models.MODELS["llama2-7b"], chips["H100-SXM"]
    found = roofline.model_roofline(llama, chip, tokens).operations
    return next(each.flop_per_byte for each in found if each.name == "MLP")


curve = [(2**power, mlp_intensity(2**power)) for power in range(5, 13)]
curves = {"MLP of LLaMA-2 7B": curve, "tokens": [(t, t) for t, _ in curve]}
title, double = "More tokens at once, more FLOP for each byte", (True, True)
figures.lines(curves, "tokens", "FLOP per byte", title, doubling=double, level=ridges)

# %% [markdown]
# 1. From 512 tokens on, among the slider's powers of two.
# 2. Fewer, 256. The H200 computes and sends as fast as the H100, but its memory delivers 4.8 instead of 3.35 TB/s. That *lowers* the ridge, from 295 to 206. (Note 004 says that it raises the ratio of compute to communication: exercise 5.6.)
# 3. Less than one percent.
#
# Why does the figure also plot the line y = tokens? Take a weight matrix of $h \times h$, and $T$ tokens. The product does $2Th^2$ FLOP. It reads $Th$ inputs and $h^2$ weights, and writes $Th$ outputs, 2 bytes each:
#
# $$\text{intensity} = \frac{2\,T h^2}{2\,(2\,T h + h^2)} = \frac{T}{1 + 2T/h} \approx T \quad\text{while } T \ll h .$$
#
# So **the intensity of a linear layer is about the number of its tokens**, and the ridge says how many tokens keep a chip busy: about 295 on an H100, or 346 where $h = 4096$.

# %%
intensity = hardware.matmul_intensity
assert round(intensity(4096, 4096, 4096)) == 1365
assert round(intensity(64, 4096, 4096)) == 62
h100_ridge, h200_ridge = ridges.values()
assert intensity(345, 4096, 4096) < h100_ridge < intensity(346, 4096, 4096)
assert mlp_intensity(128) < h200_ridge < mlp_intensity(256)
assert mlp_intensity(256) < h100_ridge < mlp_intensity(512)
few, many = (panels.roofline(tokens=count).result for count in (1, 4096))
assert few.peak_fraction < 0.01 and many.peak_fraction > 0.9

# %% [markdown]
# ### Your own machine
#
# Measure both speeds of one core of your computer, by a large matrix product and the addition of long vectors.

# %%
peak = max(measure.times.matmul_flop_per_s(n, n, n) for n in (256, 512, 1024))
bandwidth = measure.times.memory_bytes_per_s()
print(f"{peak / 1e9:.0f} GFLOP/s, {bandwidth / 1e9:.1f} GB/s")
print(f"ridge {peak / bandwidth:.1f} FLOP/byte")

# %% [markdown]
# **Predict.** Multiply 1 token, then 256, with a matrix of 2048 × 2048 in fp32. By what factor is the rate, in FLOP/s, higher for 256? (Where do both lie on the roofline of your machine?)

# %%
gain = predict("5.gain", "Rate at 256 / at 1?", yours=None)

# %%
tokens = (1, 4, 16, 64, 256)
allowed = {t: min(peak, intensity(t, 2048, 2048, 4) * bandwidth) for t in tokens}
reached = {t: measure.times.matmul_flop_per_s(t, 2048, 2048) for t in tokens}
expect(..., reached[256] / reached[1], label="gain by batching", yours=gain)

# %% tags=["drawing"]
curves = {
    name: [(t, rate / 1e9) for t, rate in rates.items()]
    for name, rates in (("roofline", allowed), ("measured", reached))
}
title = "A matrix of 2048 × 2048 on this machine"
figures.lines(curves, "tokens", "GFLOP/s", title, doubling=double)

# %% [markdown]
# **Explain.** The shape is right; the heights are only approximate. A product of few rows does not reach the peak of a large square one. Points lie above the roofline where part of the 16.8 MB of weights stays in the processor's cache.
#
# **Remember**
# - Ridge = peak / memory bandwidth: 295 FLOP per byte on an H100, ten to thirty on a CPU core.
# - The intensity of a linear layer is about its number of tokens, in 16 bits. So the ridge is the number of tokens it needs.

# %% [markdown]
# ## 5.5 MFU and HFU
#
# **MFU**, model FLOPs utilisation (模型算力利用率), is the part of the peak that goes into operations the model needs:
#
# $$\text{MFU} = \frac{\text{model FLOP per token} \times \text{tokens per second}}
# {\text{GPUs} \times \text{peak}}.$$
#
# PaLM 540B reached 238,300 tokens per second on 6144 TPU v4 chips of 275 TFLOP/s (arXiv:2204.02311, table 3 and appendix B), an MFU of 46.2 %:

# %%
per_token = flops.palm_flop_per_token(
    540.35e9, layers=118, heads=48, head_dim=256, sequence=2048
)
print(f"{per_token / 1e12:.2f} TFLOP per token")
palm = budget.utilisation(per_token * 238_300, 1, 6144, peak_flop_per_s=275e12)
expect(100 * palm, 46.2, within=0.002, label="PaLM's MFU", unit="%")

# %% [markdown]
# **Predict.** GPU-hours are a measurement, too. For 40 % of the peak, section 5.3 found 57,000 H100-hours for LLaMA-2 7B. Meta reports 184,320 hours on A100s (arXiv:2307.09288, table 2), which have 312 instead of 989 TFLOP/s. Which MFU did Meta reach, by
# $6ND$?

# %%
metas = predict("5.meta", "Meta's MFU in %?", yours=None, unit="%")

# %%
a100 = hardware.accelerator("A100-SXM-80GB")
meta = budget.utilisation(total, 184_320 * 3600, 1, a100.peak_flop_per_s)
expect(..., round(100 * meta, 1), label="Meta's MFU", unit="%", yours=metas)
assert round(meta, 2) == 0.39

# %% [markdown]
# **Explain.** 3.2 times the hours on chips 3.2 times slower: 39 %, so the assumption was fair. The same GPU-hours are 41 % with the causal half of attention's scores and 45 % with all pairs. Published GPU-hours may include
# restarts and evaluations, whose FLOP are not in the numerator.
#
# **HFU**, hardware FLOPs utilisation (硬件算力利用率), also counts what is done twice. With full activation checkpointing (chapter 4) the forward pass runs again: $2 + 2 + 4 = 8$ FLOP instead of 6. The hardware is busier, the
# training no faster. The ratio is just below $4/3$: the head is not recomputed.

# %%
llama = models.MODELS["llama2-7b"]
for mask, percent in {"causal": 41, "full": 45}.items():
    per_token = flops.training_flops(llama, mask=mask).model_flop_per_token
    assert round(100 * meta * per_token * 2e12 / total) == percent
again = flops.training_flops(llama, recompute="full")
print(f"HFU / MFU: {again.hardware_flop / again.model_flop:.2f}")
assert 1.32 < again.hardware_flop / again.model_flop < 4 / 3

# %% [markdown]
# ### Reading a data sheet
#
# | number | what it is |
# |---|---|
# | H100 SXM: 1979 TFLOP/s | with "sparsity": half of the weights must be zero. Dense: **989.4** |
# | H100 PCIe: 756 TFLOP/s | another card with the same name |
# | RTX 4090: 330 TFLOP/s | fp16 added up in fp16, which training does not do. With fp32 sums, and bf16: **165.2** |
#
# ### Where the other 60 % go
#
# Llama 3 405B reached 400 TFLOP/s on each of 16,384 H100, by the causal half: 40 % of the peak (arXiv:2407.21783, table 4). Even the best matrix product that one benchmark found on an H100 reached only 794.5 TFLOP/s, 80 % (Bekman, *Machine
# Learning Engineering*). Whole layers are slower again: their products are smaller, and attention has its own kernels. Norms and other operations between the products wait for memory. And GPUs wait for messages and for each other.
#
# `step_time` (chapter 13) predicts a step part by part. One constant, the rate of layers on an H100, was fitted to this paper's three runs.
#
# **Predict.** The needed operations, at the full peak, would take 40 % of the step. How many of the other 60 points go to messages and to waiting for other GPUs, rather than to slow computing?

# %%
lost = predict("5.lost", "Points for messages and waiting?", yours=None, unit="%")

# %%
from dataclasses import replace

from course_lib.theory.step.step_time import step_time

on_16384 = step_time(LLAMA3_405B)
idle_s = on_16384.communication_s + on_16384.bubble_s
points = round(100 * idle_s / on_16384.total_s)
assert points == 27
expect(points, label="messages, waiting", unit="%", yours=lost)

# %% tags=["drawing"]
layout = replace(LLAMA3_405B.layout, dp=64, accumulation=32)
cluster = replace(LLAMA3_405B.cluster, nodes=1024)
on_8192 = step_time(replace(LLAMA3_405B, layout=layout, cluster=cluster))
bars = {}
for name, one in {"16,384 H100": on_16384, "8,192 H100": on_8192}.items():
    needed = one.model_flop / one.gpus / one.peak_flop_per_s
    product = needed / LLAMA3_405B.cluster.accelerator.matmul_efficiency
    seconds = {
        "needed, at the peak": needed,
        "the best product is slower": product - needed,
        "whole layers are slower": one.compute_s - product,
        "between the products": one.elementwise_s + one.optimizer_s,
        "messages": one.communication_s,
        "waiting for other GPUs": one.bubble_s,
    }
    bars[name] = {part: 100 * s / one.total_s for part, s in seconds.items()}
figures.stacked_bars(bars, "Llama 3 405B: a step, in %", "{:.0f} %".format)

# %%
for one, published in (on_16384, 400), (on_8192, 430):
    reached = one.mfu * one.peak_flop_per_s / 1e12
    expect(reached, published, within=0.02, label=f"{one.gpus:,} GPUs", unit="TFLOP/s")

# %% [markdown]
# **Explain.** Slow computing takes 33 points: 10 for the best product, 20 for whole layers, 3 between the products. Messages take 17 and waiting 10. On 8,192 GPUs the run reached 430 TFLOP/s, 43 %. With twice as many GPUs and the same batch,
# each pipeline gets half as many sequences (chapter 11), and waiting grows from 5 to 10 %. So MFU falls when a fixed batch is spread over more GPUs.
#
# How far off are such estimates? For 89 published steps, $6ND$ (or $8ND$ with recomputation) at half of the peak is off by 23 % in the median. This kind of budget is off by 7 % (`benchmarks/README.md`).
#
# **Remember**
# - MFU counts what the model needs, HFU also what is recomputed. Within one convention, HFU is never below MFU.
# - Divide by the dense peak of the number format used.
# - 40 to 50 % is good. The best product reaches 80 % of the peak, whole layers about 60 %.

# %% [markdown]
# ## 5.6 Two ranks on your own machine
#
# A GPT with 3.2 million parameters trains on one rank, and then on two with PyTorch's DDP (chapter 7). Each rank has 8 windows of its own, and the ranks add up their gradients, 13 MB. Two ranks do twice the work with twice
# the peak.
#
# **Predict.** What is the MFU of the two ranks, in % of that of one?

# %%
in_percent = predict("5.two_ranks", "MFU, % of one rank's?", yours=None, unit="%")

# %%
wide = dict(layers=4, hidden=256, heads=4, vocab=VOCAB, context=64)


def train(windows):
    """Seconds of a forward and backward pass, gradients averaged over the ranks."""
    launch.init()
    torch.set_num_threads(1)
    model = torch.nn.parallel.DistributedDataParallel(scratch.gpt.GPT(**wide))
    rows, answers = Windows(sequence=64).batch(range(windows))

    def step():
        scratch.accumulation.loss_sum(model(rows), answers).backward()

    return measure.times.seconds(step, repeats=3)


def mfu(windows, ranks):
    """MFU in %, by the peak that a matrix product reached on one core."""
    shape = TransformerShape(ffn=4 * 256, **wide)
    flop = ranks * flops.training_flops(shape, windows, 64).model_flop
    slowest_s = max(launch.run(train, windows, ranks=ranks))
    return 100 * budget.utilisation(flop, slowest_s, ranks, peak)


# %%
found = {(windows, n): mfu(windows, n) for windows in (8, 32) for n in (1, 2)}
ratio = 100 * found[8, 2] / found[8, 1]
expect(..., ratio, label="MFU of two ranks, % of one", yours=in_percent, unit="%")

# %% tags=["drawing"]
bars = {
    f"{windows} windows, {n} rank{'s' * (n > 1)}": percent
    for (windows, n), percent in found.items()
}
figures.bars(bars, "{:.0f} %".format, "MFU on this machine", style.MEASURED)

# %% [markdown]
# **Explain.** It is below 100, because the exchange takes time and adds no FLOP. With 32 windows each rank computes four times as long beside the same exchange. So two ranks come closer to one, if both cores are idle.

# %% [markdown]
# ## The answer
#
# Is a week of 64 H100 enough? No: $6ND$ is $8.1 \cdot 10^{22}$ FLOP, and at 40 % of the dense peak it takes 37 days, 57,000 GPU-hours, 114,000 USD at 2 USD an hour. A week would take 338 GPUs.

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
# **Read on.** Kaplan et al. 2020, *Scaling Laws*, section 2.1 (arXiv:2001.08361). PaLM, appendix B
# (arXiv:2204.02311), for MFU. Williams et al. 2009, *Roofline*. Narayanan et al. 2021 (arXiv:2104.04473), for training times.

# %% tags=["exercise"]
from itertools import pairwise

from course_lib import check, hint, solution
from course_lib.theory.compute import budget, flops
from course_lib.theory.inputs import TransformerShape, hardware, models

# %% [markdown] tags=["exercise"]
# ### 5.1 Calculate: three offers
#
# You want to train LLaMA-2 13B (13,015,864,320 parameters) on 1 trillion tokens within 40 days. There are three offers, and similar runs on these machines have reached this MFU, by $6N$:
#
# | offer | GPUs | MFU | USD for a GPU-hour |
# |---|---|---|---|
# | A | 256 A100, 312 TFLOP/s | 45 % | 1.40 |
# | B | 64 H100, 989.4 TFLOP/s | 40 % | 2.40 |
# | C | 48 H100, 989.4 TFLOP/s | 42 % | 2.20 |
#
# Which offer is the cheapest that is fast enough? How many days does it take, and how many USD does it cost?

# %% [raw] tags=["hints"]
# importance 3, difficulty 2
# 6 N D, over what all GPUs of an offer really do in a second. A day has 86,400 s.
# One offer is cheaper than the others, and takes more than 40 days.

# %% tags=["exercise"]
offer, days, usd = ..., ..., ...
### BEGIN SOLUTION
flop = 6 * 13_015_864_320 * 1e12
offers = {  # FLOP/s of all GPUs, USD an hour
    "A": (256 * 0.45 * 312e12, 256 * 1.40),
    "B": (64 * 0.40 * 989.4e12, 64 * 2.40),
    "C": (48 * 0.42 * 989.4e12, 48 * 2.20),
}
found = {}
for name, (rate, hour) in offers.items():
    seconds = flop / rate
    found[name] = seconds / 86_400, seconds / 3600 * hour
offer = "B"  # C is cheaper, and takes 45 days
days, usd = found[offer]
### END SOLUTION
check("5.1", [offer, days, usd])

# %% [markdown] tags=["exercise"]
# ### 5.2 Debug: 196 Tflops
#
# (published mistake, note 004) Note 004 says that one layer of a billion parameters and 8 × 4096 tokens take "a total compute of 196 Tflops". Give the amount in FLOP; its unit, "FLOP" or "FLOP/s"; and the
# seconds an RTX 4090 needs for it at its full dense bf16 peak of 165.2 TFLOP/s.

# %% [raw] tags=["hints"]
# importance 3, difficulty 1
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
# (published mistake, note 004) Note 004 says that "6 is the number of multiplications and additions for each token". It is the number for each token *and parameter*, and even programs that count so do not agree. Five of
# them report the FLOP of training GPT-2 (124,439,808 parameters) for one token, in sequences of 1024. What did each of them count: `"6N"`, `"all pairs"` of tokens, `"causal half"` of them, `"recomputation"` of all
# layers once more (but not of the head), or `"forward only"`?

# %% [raw] tags=["hints"]
# importance 4, difficulty 3
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
# `widths` are the numbers of features: `[8, 16, 4]` are two layers. Count forward and backward for `tokens` tokens. The data needs no gradient. Fewer than two widths: `ValueError`.

# %% [raw] tags=["hints"]
# importance 3, difficulty 2
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
# Four teams train LLaMA-2 7B in sequences of 4096 on A100 (312 TFLOP/s dense). Each is proud of its utilisation. A has an MFU of 50 %, by all pairs of tokens. B has an MFU of 48 %, by the causal half. C has an HFU of 62 %, with full
# recomputation and all pairs. D has an MFU of 43 %, by $6N$. Give the tokens per second and GPU of each. The proudest is not the fastest.

# %% [raw] tags=["hints"]
# importance 5, difficulty 3
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
# (published mistake, note 004) Note 004 says that the H200's faster memory "can raise the ratio of compute to communication". You move a training from H100 (989.4 TFLOP/s, 3.35 TB/s, NVLink4) to H200 (the same, but 4.8 TB/s). By what factor
# does each of these become faster at most, on the roofline? The matrix has 4096 × 4096 weights in bf16.

# %% [raw] tags=["hints"]
# importance 3, difficulty 3
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
# Llama 3 70B took 6.4 million GPU-hours on H100 SXM (Meta's model card) for 15 trillion tokens; it has 70,553,706,496 parameters. A colleague divides $6ND$ by the data sheet's 1979 TFLOP/s and finds an MFU of 13.9 %. What is it really, to
# three digits? Give a fraction or percent.

# %% [raw] tags=["hints"]
# importance 3, difficulty 2
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
# LLaMA 65B was trained on 1.4 trillion tokens with 380 tokens per second and GPU, on 2048 A100 (312 TFLOP/s dense bf16); it has 65.2 billion parameters (arXiv:2302.13971, section 2.4). How many days and how many GPU-hours is that, and what is
# the MFU by $6ND$?

# %% [raw] tags=["hints"]
# importance 2, difficulty 1
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
# Return the MFU as the paper on PaLM counts it: $6N$ and the scores of all pairs, as a fraction. PaLM's heads are 48 × 256 = 12,288 wide in total, but its hidden size is 18,432. Which one belongs in the formula? The tokens per second are those
# of all chips together.

# %% [raw] tags=["hints"]
# importance 3, difficulty 2
# Section 5.5 has this computation for PaLM 540B, by the course's functions.
# Scores multiply queries with keys. How wide are these, and what is h in section 5.2?


# %% tags=["exercise"]
def palm_mfu(
    tokens_per_s: float,
    parameters: float,
    layers: int,
    heads: int,
    head_dim: int,
    hidden: int,
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
# A chip does 100 TFLOP/s in bf16 and reads 1 TB/s. From how many tokens on, a power of two, is the product with a matrix of 4096 × 4096 weights limited by compute? And with one of 256 × 256, and of 128 × 128? Write 0 where no number of tokens
# is enough. Guess all three, then use `hardware.matmul_intensity`.

# %% [raw] tags=["hints"]
# importance 4, difficulty 3
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
