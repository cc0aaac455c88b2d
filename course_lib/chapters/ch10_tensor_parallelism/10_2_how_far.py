# %% [raw] tags=["sitting"]
# question: Eight GPUs share a layer; do sixteen in two servers take half the time?
# importance: 4
# difficulty: 3
# group: alone

# %% [markdown]
# # 10 Tensor parallelism: how many GPUs can share a matrix
#
# Eight H100s that share every matrix of a GPT layer with hidden size 8192 need 3.73 ms for it in theory, forward and backward, with 4096 tokens. Of these, 1.23 ms are messages.
# You get a second, equal server. If you cut each matrix into sixteen parts, does the layer take half the time?
#
# After this sitting you can
#
# - cut what tensor parallelism leaves whole,
# - cut the embedding and the loss by words,
# - count a model's messages before it runs, and say how many GPUs can share a matrix on which wire.

# %%
import torch
from torch.nn.functional import cross_entropy

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
from course_lib.chapters.ch10_tensor_parallelism import figures, panels
from course_lib.demos.shared.text import VOCAB
from course_lib.theory import (
    Cluster,
    CutLayer,
    Job,
    Layout,
    Recipe,
    TransformerShape,
    activations,
    collectives,
    group_link,
    hardware,
    models,
    nccl_ways,
    units,
)
from course_lib.theory.network.step_traffic import step_traffic

launch.warm_up()
torch.set_num_threads(1)

# %% [markdown]
# **Predict.** Sixteen GPUs in two servers, joined by one InfiniBand port of 400 Gb/s for each GPU, against eight in one. How many times as fast is the layer? (Section 10.7 answers.)

# %%
faster = predict("10.faster", "Time with 8 / time with 16?", yours=None)

# %% [markdown]
# ## 10.4 What stays whole, and sequence parallelism
#
# Between the pairs of section 10.2 lie the norms, the residual additions and dropout. They look at one token and *all* its features. So each rank does all of that work
# and keeps all of those activations.
#
# Of chapter 4's 34 bytes × sbh for each layer, 10 are not cut: inputs of the two norms (4), inputs of the first matrices (4), dropout masks (2).
#
# $$s\,b\,h\left(10 + \frac{24}{t} + 5\,\frac{a\,s}{h\,t}\right)
# \quad\text{instead of}\quad
# s\,b\,h\left(34 + 5\,\frac{a\,s}{h}\right)$$
#
# ($s$ tokens in a sequence, $b$ sequences in the micro-batch, $a$ heads; Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.1.) For GPT-3,
# with $5as/h = 80$ and $t = 8$: $10 + 24/8 + 80/8 = 23$ instead of 114.
#
# **Sequence parallelism** (序列并行) cuts the rest as well. Between the pairs each rank has only its $s/t$ tokens, with all features. Then
# everything is divided by $t$: $114/8 = 14.25$.

# %% tags=["drawing"]
gpt3 = models.MODELS["gpt3-175b"]
paper = Recipe(attention="standard", dropout=True)
layouts = {"one GPU": Layout(), "tp 8": Layout(tp=8)}
layouts["by tokens as well"] = Layout(tp=8, sequence_parallel=True)
kept_bytes = {}
for name, layout in layouts.items():
    terms = activations.activation_terms(Job(gpt3, paper, layout, sequence=2048))
    units_of_sbh = terms.total_bytes / (2048 * 12288)
    between = 10 / 8 if layout.sequence_parallel else 10
    kept_bytes[name] = {
        "between the pairs": between,
        "inside the pairs": units_of_sbh - between,
    }
assert units_of_sbh == 114 / 8
looks = {"between the pairs": style.PALE, "inside the pairs": style.ACTIVATIONS}
figures.stacked_bars(kept_bytes, "Bytes of a layer", "{:g} × sbh".format, colours=looks)

# %% [markdown]
# What must be sent? The matrices of a pair need all tokens, and after the pair each rank needs the sum for its own tokens only. So the tokens must be gathered before a pair and
# scattered after it.
#
# **Predict.** That makes four collectives per pair, where f and g made two all-reduces. How many times as many bytes does a rank send?

# %%
ratio = predict("10.sp", "Bytes with / without sequence parallel?", yours=None)

# %%
sent = collectives.sent_bytes
both_halves = sent("all-gather", 1e6, 8) + sent("reduce-scatter", 1e6, 8)
all_reduce = sent("all-reduce", 1e6, 8)
expect(1, both_halves / all_reduce, label="bytes, with / without", yours=ratio)

# %% [markdown]
# **Explain.** A ring all-reduce *is* a reduce-scatter and an all-gather (chapter 6). In the forward pass, plain tensor parallelism makes both at the end of a pair. Now one stands there and
# the other before the next pair:
#
# | | forward | backward |
# |---|---|---|
# | instead of f | all-gather | reduce-scatter |
# | instead of g | reduce-scatter | all-gather |
#
# The stepper has four messages instead of two, each half as large:

# %%
from course_lib.chapters.ch10_tensor_parallelism import steppers

steppers.cut_pair(sequence_parallel=True)

# %% [markdown]
# A small price remains: each rank computes the gradients of norms, and of biases after the sum, from its own tokens. One all-reduce must sum them before the
# update, or the copies drift apart.
#
# **Remember**
# - Plain tensor parallelism leaves 10 of 34 bytes × sbh uncut, and repeats norms and residuals on every rank.
# - Sequence parallelism cuts them by tokens. f and g become all-gather and reduce-scatter, with the same bytes.

# %% [markdown]
# ### Deeper: what our version keeps
#
# Exercise 10.12 builds the two functions; try it first. Collectives join and cut the first dimension of a tensor, and `_along_sequence` moves the sequence there and back:

# %%
show_source(scratch.tensor.Gather, scratch.tensor.SumScatter)

# %% [markdown]
# The gathered input of a pair is whole on every rank, and the first matrix keeps it for the backward pass. So the 4 bytes
# × sbh of matrix inputs are not cut after all. Megatron-LM keeps only its own tokens and gathers them once more in the backward pass, hidden
# behind computation; then 14.25 holds. Our short version keeps the whole. Dropout needs care, too: it must draw the same numbers
# on every rank between the pairs, and different ones inside, so Megatron-LM keeps
# [two random states](https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/tensor_parallel/random.py).
#
# **Predict.** One block of the small GPT, in fp32 and without dropout, keeps 64 bytes × sbh (chapter 4): 8 are inputs of norms, 8 inputs of matrices, and 48 lie inside the pairs. What is left on each of 2 ranks with tensor
# parallelism? What with our sequence parallelism?

# %%
plain_units = predict("10.plain", "Units with tp 2?", yours=None)
cut_units = predict("10.cut", "And by tokens?", yours=None)


# %%
def kept(kind):
    """Bytes × sbh that a cut block keeps on this rank."""
    region = kind()
    block = scratch.tensor.cut_block(scratch.gpt.Block(64, 4), region)
    own = len(region.own_tokens(torch.arange(128)))
    x = torch.randn(2, own, 64)
    size = measure.gradients.saved_bytes(lambda: block(x).sum(), block)
    return size / (2 * 128 * 64)


# %%
whole = launch.run(kept, scratch.tensor.TensorParallel, ranks=2)[0]
by_tokens = launch.run(kept, scratch.tensor.SequenceParallel, ranks=2)[0]
label = "kept, by tokens too"
expect(8 + 8 + 48 / 2, whole, within=0.01, label="kept, tp 2", yours=plain_units)
expect(8 / 2 + 8 + 48 / 2, by_tokens, within=0.01, label=label, yours=cut_units)

# %% tags=["drawing"]
kinds = "inputs of norms", "inputs of matrices", "inside the pairs"
kept_by = {
    "one GPU": (8, 8, 48),
    "tp 2": (8, 8, 48 / 2),
    "by tokens as well": (8 / 2, 8, 48 / 2),
    "gathered twice": (8 / 2, 8 / 2, 48 / 2),
}
rows = {name: dict(zip(kinds, parts, strict=True)) for name, parts in kept_by.items()}
words = {
    "tp 2": f"{whole:.1f} measured",
    "by tokens as well": f"{by_tokens:.1f} measured",
}
norms, heads = 2 * 2 * 4 / 64, 2 * 4 / 64  # numbers of 4 bytes, in units of sbh
assert whole == 40 + norms + heads
assert by_tokens == 36 + norms / 2 + heads
looks = dict(zip(kinds, (style.PALE, style.TEMPORARY, style.ACTIVATIONS), strict=True))
title = "A rank's bytes × sbh of one block"
figures.stacked_bars(rows, title, "{:g}".format, words, colours=looks)

# %% [markdown]
# Chapter 4 explains the excess over 40 and 36 exactly: a norm keeps two numbers for each token, and fused attention one for each token and head.

# %% [markdown]
# ## 10.5 Embedding, head and loss: cut by words
#
# LLaMA-3 has a vocabulary of 128,256 words. For 8192 tokens the logits, one score for each word, are $8192 \cdot 128256$
# numbers: 4.2 GB in fp32. **Vocabulary parallelism** (词表并行) cuts table and scores by words, so that no rank ever has all of them.
#
# **Embedding.** Each rank has the rows of its own words. For another rank's word it gives zeros, and one sum (g) completes all rows.
#
# **Head.** A matrix cut by columns: each rank computes the scores of its own words (f before it).
#
# **Loss.** For a token with scores $x_1 \ldots x_v$ and the right word $y$ the loss is
#
# $$\log \sum_j e^{x_j} - x_y .$$
#
# An example: four words, two ranks, and word 1 is right. (Words count from 0.)
#
# | | scores | largest | $\sum e^{x - 3}$ | $x_y - 3$ |
# |---|---|---|---|---|
# | rank 0 | 1, 2 | 2 | 0.1353 + 0.3679 | −1 |
# | rank 1 | 3, 0 | 3 | 1 + 0.0498 | another rank's: 0 |
# | all-reduce | | maximum 3 | sum 1.5530 | sum −1 |
#
# $\log 1.5530 - (-1) = 0.4402 + 1 = 1.4402$. Three all-reduces of one number per token are enough. The largest score is subtracted first, since
# $e^{x}$ overflows. It must be the largest of *all* ranks, or the sums would not fit together.

# %%
scores = torch.tensor([1.0, 2.0, 3.0, 0.0])
top = scores.max()
parts = [(part - top).exp().sum() for part in scores.chunk(2)]
loss = sum(parts).log() - (scores[1] - top)
print(f"{loss:.4f}")
assert torch.isclose(loss, cross_entropy(scores, torch.tensor(1)))

# %% tags=["drawing"]
sizes = {"all scores": 8192 * 128_256 * 4, "three numbers a token": 3 * 8192 * 4}
assert sizes["all scores"] / sizes["three numbers a token"] == 128_256 / 3
title = "Tensors of one rank's collectives, for the loss of 8192 tokens"
figures.bars(sizes, units.format_bytes, title, tens=True)

# %% [markdown]
# **Remember**
# - Embedding and head are cut by words. A sum completes the embedding's rows.
# - The loss needs three all-reduces of one number per token: maximum, sum of exponentials, the right word's score.

# %% [markdown]
# ### Deeper: the course's own version
#
# Exercise 10.13 builds the loss; try it first.

# %%
show_source(scratch.tensor.VocabParallelEmbedding)

# %% [markdown]
# The vocabulary is padded with rows that no word uses, until $t$ divides it. Another rank's word looks up row 0 here, and `own` then
# multiplies the row by 0.

# %%
show_source(scratch.tensor.vocab_parallel_cross_entropy)

# %% [markdown]
# - `top` needs no gradient: what is subtracted everywhere cancels.
# - `own` says whether the right word is one of this rank's. Otherwise score 0 of the rank is looked up, and `where` replaces it by 0.
# - `region.sum` is g: copy in the backward pass. So each rank gets the gradient of its own words, softmax minus one for the right word, without a message.

# %% [markdown]
# ## 10.6 Count the messages
#
# A layer has two pairs, attention and MLP. Each has an all-reduce in the forward pass (g) and one in the backward pass (f).
# That makes **four all-reduces** of $b \cdot s \cdot h$ numbers per layer and micro-batch, and in a ring each sends $2(t-1)/t$ of its size from each GPU. So a GPU sends
#
# $$4 \cdot \frac{2(t-1)}{t} \cdot b\,s\,h = 8\,b\,s\,h\,\frac{t-1}{t} \quad\text{numbers per layer}$$
#
# (Narayanan et al. 2021, arXiv:2104.04473, section 3.2). One sequence of 4096 tokens in LLaMA-2 70B, bf16, $t = 8$:

# %%
per_layer = collectives.tensor_parallel_bytes(1, 4096, 8192, tp=8)
in_all = units.format_bytes(80 * per_layer)
print(f"a layer {units.format_bytes(per_layer)}, 80 layers {in_all}")
assert per_layer == 8 * 4096 * 8192 * 7 / 8 * 2

# %% [markdown]
# All of it lies on the **critical path** (关键路径), the chain of steps of which each waits
# for the one before: the next matrix waits for the sum. Here is one layer on eight H100 in theory: a GPT layer with $h = 8192$ and $12h^2$ weights, without its attention scores, which would
# add 4 %. Attention is a third of the work, the MLP two thirds, and backward takes twice as long as forward:

# %% tags=["drawing"]
h100 = hardware.accelerator("H100-SXM")
nvlink = group_link(Cluster(h100), "all-reduce", 8, 1)
eight = CutLayer(8192, 8, h100.peak_flop_per_s, nvlink)
passes = 1, 2, 4, 2  # ninths: attention, MLP; backward MLP, attention
now, rows = 0.0, {"computing": [], "all-reduce": []}
for ninths in passes:
    done = now + eight.compute_s * ninths / 9
    summed = done + eight.communication_s / 4
    rows["computing"].append(("computing", now, done))
    rows["all-reduce"].append(("all-reduce", done, summed))
    now = summed
assert abs(now / eight.seconds - 1) < 1e-9
scores_flop, weights_flop = 4 * 4096 / 2 * 8192, 2 * 12 * 8192**2  # of a token, forward
assert round(scores_flop / weights_flop, 2) == 0.04
title = f"forward attention, MLP; backward MLP, attention: {1000 * now:.2f} ms"
figures.lanes({title: rows}, "One layer, t = 8")

# %% [markdown]
# Megatron-LM's flags are `--tensor-model-parallel-size 8` and, for section 10.4, `--sequence-parallel`. A profiler's trace shows the same picture: between two matrix products a kernel
# runs alone. Its name begins with `ncclDevKernel_AllReduce` (or AllGather, ReduceScatter).
#
# **Predict.** The demo's tiny GPT has 2 layers, cut over two ranks. How many all-reduces does one training step make? Count layers, embedding, head and loss.

# %%
count = predict("10.count", "All-reduces?", yours=None)

# %% [markdown]
# By theory (section 10.9 measures it):

# %% tags=["drawing"]
tiny = TransformerShape(layers=2, hidden=64, heads=4, ffn=256, vocab=VOCAB, context=32)
fp32 = Recipe(parameters="fp32", gradients="fp32", master_copy=False)
job = Job(tiny, fp32, Layout(tp=2, micro_batch=4), Cluster(h100), sequence=32)
traffic = step_traffic(job).collectives
assert sum(entry.count for entry in traffic) == 13
words = {
    it.what: f"{it.count} × {it.operation}, {it.count * it.size_bytes:,} B"
    for it in traffic
}
traffic_bytes = {it.what: it.count * it.size_bytes for it in traffic}
figures.bars(traffic_bytes, words, "One training step of the tiny GPT")

# %% [markdown]
# **Explain.** The embedding has a sum in the forward pass only, since token numbers have no gradient. The head has one in the backward pass only, since its
# result stays cut. Three belong to the loss: $8 + 1 + 1 + 3 = 13$. With full recomputation the layers' forward sums come twice, six all-reduces per layer.
#
# **Remember**
# - Four all-reduces of $bsh$ per layer: $8bsh(t-1)/t$ numbers sent by each GPU. Six with full recomputation.
# - They lie on the critical path: the next matrix waits for them.

# %% [markdown]
# ## 10.7 How many GPUs can share a matrix?
#
# ### One NVLink domain
#
# For a layer of $12h^2$ weights a GPU computes $6 \cdot 12h^2 \cdot bs / t$ FLOP, forward and backward (chapter 5). It sends $8bsh(t-1)/t$ numbers of 2 bytes. Divide:
#
# $$\frac{72\,b s h^2 / t}{16\,b s h (t-1)/t} = \frac{4.5\,h}{t-1} \quad\text{FLOP per byte.}$$
#
# Batch and sequence cancel. Messages take less time than arithmetic as long as this is above the ridge (chapter 5) of the link: the FLOP that the chip can do while it sends one byte. Bandwidth counts one way: NVLink's
# 900 GB/s are both directions added, 450 each.

# %%
for name, peak, bandwidth in (
    ("H100, NVLink 450 GB/s", 989.4e12, 450e9),
    ("RTX 4090, PCIe 31.5 GB/s", 165.2e12, 31.5e9),
):
    print(f"{name}: t <= {collectives.layer_tp_reach(8192, peak, bandwidth)}")

# %% [markdown]
# 17 assumes peak rates and no latency. And *at* the limit half of the time is lost. Move the sliders (dashed:
# note 004's estimate, see the deeper part below):
#
# 1. H100 and NVLink4, as if it joined sixteen: at $t = 16$, is communication shorter than computation? Which term does the formula lack?
# 2. Take the InfiniBand port. How far does the layer's curve stay above the ridge?
# 3. Take GPT-2 (`gpt2-124m`). Why is a small model not worth cutting, even on NVLink?

# %%
from course_lib.chapters.ch10_tensor_parallelism import panels

panels.tp_reach()

# %%
sixteen = panels.tp_reach(tp=16).result
assert sixteen.layer_reach == 17
assert sixteen.communication_s > sixteen.compute_s  # latency
assert panels.tp_reach(link="InfiniBand NDR 400 Gb/s").result.layer_reach == 2
nvls = next(way for way in nccl_ways() if way.algorithm == "NVLS")
by_switch, by_ring = nvls.seconds(eight.summed_bytes), eight.communication_s / 4
print(f"all-reduce, t = 8: {1e3 * by_ring:.2f} ms, by switch {1e3 * by_switch:.2f} ms")

# %% [markdown]
# **Answers.**
#
# 1. No: 1.53 ms of messages against 1.25 ms of arithmetic. The bytes alone would take 1.12 ms, but 4 × 30 steps of 3.4 µs add 0.41 ms of latency. (This is a ring. Inside a server of H100s the switches can add instead, by NVLS (chapter 6): NCCL then expects
#    0.27 ms for an all-reduce at $t = 8$, our ring 0.31.)
# 2. Up to $t = 2$.
# 3. The work shrinks with $h^2$, the bytes with $h$, and the latency not at all. For GPT-2 on eight GPUs, messages take 13 times as long as the
#    arithmetic.
#
# ### The second server
#
# In a group of sixteen over two servers the ring crosses from one server to the other. NCCL lets it cross through
# all eight network ports at once, $8 \times 50 = 400$ GB/s, nearly as fast as NVLink:

# %% tags=["drawing"]


def layer(tp, servers=2, stride=1):
    """A GPT layer with hidden size 8192 on `tp` GPUs, every `stride`-th one."""
    cluster = Cluster(h100, nodes=servers)
    link = group_link(cluster, "all-reduce", tp, stride)
    return CutLayer(8192, tp, h100.peak_flop_per_s, link)


degrees = [2**power for power in range(7)]
groups = {t: layer(t, servers=max(1, t // 8)) for t in degrees}
one_gpu_ms = 1000 * groups[1].seconds
curves = {
    "with messages": [(t, 1000 * groups[t].seconds) for t in degrees],
    "perfect": [(t, one_gpu_ms / t) for t in degrees],
}
figures.lines(
    curves,
    "GPUs that share each matrix, t",
    "ms for a layer with h = 8192, forward and backward",
    "A layer, cut over more and more GPUs",
    doubling=(True, True),
    mark={"one server": 8},
)

# %%
eight, sixteen = groups[8], groups[16]
gain = eight.seconds / sixteen.seconds
expect(1.26, gain, within=0.01, label="faster with 16", yours=faster)

# %% [markdown]
# **Explain.** The arithmetic halves, from 2.50 to 1.25 ms. The communication *grows*, from 1.23 to 1.72 ms: each GPU sends $15/16$ instead of $7/8$ of the tensors, on a
# slightly slower wire, in 30 steps of latency instead of 14. Twice the GPUs for 1.26 times the speed: use the second server for data or pipeline
# parallelism. Hugging Face measured the same effect on a 3B model: with 16 GPUs instead of 8, each GPU lost 42.7 % of its tokens per second, so twice the GPUs were 1.15
# times as fast ([Ultra-Scale Playbook](https://huggingface.co/spaces/nanotron/ultrascale-playbook), "Throughput Scaling with TP").
#
# It can be worse. If ranks are numbered so that a group has one GPU in each
# of eight servers, each GPU has only its own port:

# %% tags=["drawing"]
scattered = layer(8, servers=8, stride=8)
assert round(scattered.seconds / eight.seconds, 1) == 3.3
groups = {"8 GPUs, one server": eight, "16, two servers": sixteen}
groups["8, one per server"] = scattered
times = {
    name: {"computing": cut.compute_s, "all-reduces": cut.communication_s}
    for name, cut in groups.items()
}
figures.stacked_bars(
    times,
    "One layer, forward and backward",
    units.format_duration,
    colours={"all-reduces": style.MESSAGES},
)

# %% [markdown]
# Eight GPUs then take 3.3 times as long. A tensor-parallel group belongs inside one
# NVLink domain. Llama 3 405B was trained with $t = 8$ inside each server (arXiv:2407.21783, table 4).
#
# With eight GPUs in a server, $t \le 8$. That limit is the box's: a GB200 NVL72 joins 72 GPUs by NVLink
# (nvidia.com/en-us/data-center/gb200-nvl72). The formula's limit hardly moves: a B200's NVLink is twice as fast as an H100's, but its peak is 2.3 times as high:

# %%
b200 = hardware.accelerator("B200-SXM")
of_72 = {t: CutLayer(8192, t, b200.peak_flop_per_s, b200.inside) for t in (8, 16)}
print(f"16 B200s are {of_72[8].seconds / of_72[16].seconds:.2f} times as fast as 8")
print(f"limit of the formula: t <= {of_72[8].layer_reach}")

# %% [markdown]
# **Remember**
# - A layer does $4.5h/(t-1)$ FLOP for each byte sent, in 16 bits. Compare with peak / one-way bandwidth.
# - At the limit half of the time is lost. Keep tensor parallelism inside one NVLink domain.

# %% [markdown]
# ### Deeper: note 004's calculation
#
# For LLaMA-2 70B, note 004 asks how many FLOP a GPU does for each byte that it receives:
#
# $$\frac{2 \cdot 3 \cdot 8192}{64 \text{ heads} \cdot 2 \text{ bytes}} = 384 \text{ FLOP per byte.}$$
#
# The result is right for one matrix, and so are the reasons for 2 and 3. The other two are not. Follow one number of the input to one of 64 GPUs that share a matrix with 8192
# columns:
#
# | factor | the note's reason | what happens to the number |
# |---|---|---|
# | 2 | "one multiplication and one addition" | the same: each column takes both |
# | 3 | "one forward, two backward" | the same: the gradients of input and weights take as many FLOP each as the forward pass |
# | 8192 / 64 | "less memory per parameter" | it meets a 64th of the columns |
# | / 2 | "memory to count" | it arrives once, as 2 bytes |
#
# Memory plays no part. The FLOP can be counted, on one GPU's columns of a small matrix:

# %%
columns = torch.nn.Linear(512, 512 // 64, bias=False)  # one GPU's part of 512 × 512
received = torch.randn(100, 512, requires_grad=True)  # 100 tokens
forward = measure.times.matmul_flops(lambda: columns(received))
in_all = measure.times.matmul_flops(lambda: columns(received).sum().backward())
print(f"{forward:,} FLOP forward, {in_all:,} with both gradients")
assert in_all == 3 * forward == 3 * 2 * 512 // 64 * received.numel()
assert in_all / received.numel() / 2 == collectives.matrix_intensity(512, 64)

# %% [markdown]
# For $t$ GPUs it is $24576/t$. The note compares this with the ridge of the link, and gets $t \le 2.4$ on an RTX 4090. For the H100 it divides 989 TFLOP/s by NVLink's 900 GB/s, gets a ridge of 1100, and
# writes $24576/t \ge 1100$, so $t \le 11$. Do that division yourself: $24576 / 1100 = 22.3$. Where does 11 come from? One way NVLink moves 450 GB/s, the
# ridge is 2198, and $24576/2198 = 11.2$. The printed result belongs to one direction, the printed computation to both.

# %%
ridge, reach = collectives.ridge, collectives.matrix_tp_reach
assert collectives.matrix_intensity(8192, 64) == 384
assert round(reach(8192, 989e12, 900e9), 1) == 22.4
assert round(reach(8192, 989e12, 450e9), 1) == 11.2
print(f"4090, as in note 004: {ridge(330e12, 32e9):,.0f} FLOP per byte")
print(f"  t <= {reach(8192, 330e12, 32e9):.2f}")

# %% [markdown]
# Why 2.4, where the layer's formula says 8 for a 4090?
#
# | | why | one 4090 reaches |
# |---|---|---|
# | note 004 | one matrix, whose input must arrive | 2.4 |
# | a layer instead of a matrix | 12 times the work, $12h^2$ weights, for 8 times the bytes: four all-reduces, which send each number nearly twice | 3.6 |
# | $t - 1$ instead of $t$ | in a ring no GPU sends to itself | 4.6 |
# | the true peak | 165.2 TFLOP/s (chapter 5) is half of 330, so half the bytes suffice; and the slot has 31.5 GB/s, not 32 | 8 |
#
# (A layer of LLaMA-2 70B has $12.75h^2$ weights, with a narrower attention and a wider MLP. That is 6 % more arithmetic for the same messages: it reaches 18 on the H100, and sixteen GPUs are 1.28 times as fast as eight.)

# %%
notes_reach = reach(8192, 330e12, 32e9)
a_layer = 12 / 8 * notes_reach
true_peak = 1 + a_layer * ridge(330e12, 32e9) / ridge(165.2e12, 31.5e9)
assert [round(t, 1) for t in (notes_reach, a_layer, 1 + a_layer)] == [2.4, 3.6, 4.6]
assert int(true_peak) == collectives.layer_tp_reach(8192, 165.2e12, 31.5e9) == 8
of_llama = models.MODELS["llama2-70b"].layer_parameters(0).total
more = of_llama / (12 * 8192**2)
rates = (989.4e12, 450e9)
assert collectives.layer_tp_reach(8192, *rates, layer_parameters=of_llama) == 18
its_s = [more * cut.compute_s + cut.communication_s for cut in (eight, sixteen)]
assert round(its_s[0] / its_s[1], 2) == 1.28

# %% [markdown]
# Note 002 says: "model parallelism is deprecated, use data and pipeline parallelism". What was replaced is the *naive* form: layers
# on several GPUs, of which one works and the others wait. Pipeline parallelism (chapter 11) fills the waiting, and tensor parallelism is in
# daily use.

# %% [markdown]
# ## 10.9 Demo: the same training, cut
#
# (Section 10.8: the deeper notebook.) Two ranks train the tiny GPT, cut by our own f and g, and by `parallelize_module`. The demo compares with one process, and counts
# messages and stored bytes.

# %%
run = demos.run("tp", ranks=2, steps=4, stream=False)
print(run.report())

# %%
mine, theirs = run.versions[:2]  # a third where Megatron-core is installed
counted, counted_bytes = mine.sent["all-reduce"]
expect(2 * 4 + 1 + 1 + 3, counted, label="all-reduces", yours=count)
assert counted_bytes == 10 * 32_768 + 3 * 512
assert mine.gradient_difference < 1e-5
assert theirs.sent["all-reduce"] == (13 + 2 * 2, counted_bytes + 4 * 32_768)

# %% [markdown]
# **Explain.** Our version sends what the theory says, to the byte. The library makes 17 all-reduces. `ColwiseParallel` cannot cut a fused matrix by
# heads, so queries, keys and values are three modules there, each with an f of its own: two more all-reduces in each of two layers.
#
# Each rank stores half of the matrices, and all norms:

# %% tags=["drawing"]
alone = 4 * tiny.parameters().total
whole_on_both = 4 * (32 * 64 + 5 * 2 * 64 + 4 * 64)  # positions, norms, biases
part = mine.stored["weights"] / alone
assert mine.stored["weights"] == (alone + whole_on_both) / 2
rows = {
    "one process": {"cut": alone - whole_on_both, "whole on both": whole_on_both},
    "each of two": {"cut": (alone - whole_on_both) / 2, "whole on both": whole_on_both},
}
words = {"each of two": f"{mine.stored['weights']:,} B: {part:.1%}"}
looks = {"cut": style.WEIGHTS, "whole on both": style.PALE}
title = "Weights of the tiny GPT"
figures.stacked_bars(rows, title, "{:,.0f} B".format, words, colours=looks)

# %% [markdown]
# In a large model the part that is whole on both is less than a thousandth.
#
# **Predict.** Now with sequence parallelism. Reduce-scatters and all-gathers take the places of most of the 13 all-reduces. How many all-reduces are left?

# %%
left = predict("10.left", "All-reduces that are left?", yours=None)

# %%
cut = demos.run(
    "tp", ranks=2, steps=4, sequence_parallel=True, library=False, stream=False
)
sent_with = cut.versions[0].sent

# %%
expect(3 + 1, sent_with["all-reduce"][0], label="all-reduces", yours=left)
assert sent_with["all-gather"] == sent_with["reduce-scatter"] == (10, 10 * 32_768)

# %% [markdown]
# **Explain.** Ten all-gathers and ten reduce-scatters replace ten all-reduces, with the same bytes on the wire. Three all-reduces belong to the loss, and one
# sums the gradients of norms, positions and biases.

# %% tags=["drawing"]
figures.loss(
    {
        "cut by f and g": mine.losses,
        "with sequence parallel": cut.versions[0].losses,
        "one process": run.losses_one_process,
    }
)

# %% [markdown]
# Three curves coincide. In a terminal: `course demo tp --ranks 2 --sequence-parallel`, or, on a real
# server, `torchrun --nproc-per-node=8 -m course_lib.demos tp --model 2x512x8`.

# %% [markdown]
# ## The answer
#
# No. Sixteen GPUs halve the arithmetic to 1.25 ms, but the messages grow to 1.72 ms, so the layer is 1.26 times as fast as on eight.

# %%
from course_lib import quiz

quiz("10")

# %% [raw] tags=["quiz"]
# A matrix is cut by columns over 4 GPUs. What does each GPU have after the product?
# [x] a quarter of the outputs, finished
# [ ] all outputs, to be summed
# [ ] all outputs, finished
# Why: Columns are outputs. Rows would give full-size parts of a sum.
#
# f, before a matrix cut by columns, does nothing forward. And in the backward pass?
# [ ] nothing
# [x] it sums the gradients over the GPUs
# [ ] it gathers the weights
# Why: The input was copied to all, so the gradients through all copies add up.
#
# You switch on sequence parallelism. What happens to the bytes on the wire?
# [ ] they halve
# [ ] they double
# [x] they stay the same
# Why: An all-reduce is a reduce-scatter and an all-gather; now they stand apart.
#
# A model has 32 query heads and 4 key-value heads. What happens at tp = 8?
# [x] each key-value head is held by two GPUs
# [ ] it is impossible
# [ ] each GPU has half of a key-value head
# Why: 8 / 4 = 2 copies. Query heads are no problem: 4 for each GPU.
#
# At the largest t of the layer formula, what part of the time is communication?
# [ ] almost none
# [x] half
# [ ] all
# Why: There both take equally long, if nothing overlaps. So stay well below.

# %% [markdown]
# **Read on.** Shoeybi et al. 2019, *Megatron-LM*, section 3 (arXiv:1909.08053). Korthikanti et al. 2022, section 4.2
# (arXiv:2205.05198), for sequence parallelism. Narayanan et al. 2021, section 3.2 (arXiv:2104.04473), for the bytes. Wang et al. 2023,
# [ASPLOS](https://doi.org/10.1145/3567955.3567959), for the overlap.

# %% [markdown] tags=["exercise"]
# ### 10.1 Calculate: two kinds of messages
#
# A GPT layer of GPT-3's width, $h = 12288$, has $12h^2$ weights. Eight GPUs share it, $t = 8$, and eight such groups train on different samples. Everything is bf16. A micro-batch has
# one sequence of 2048 tokens, and it is the only one in the update.
#
# How many bytes does a GPU send for one layer, forward and backward, in its tensor-parallel group? How many for the gradients of its eighth of the layer, in an all-reduce over the eight
# groups? How many tokens must a micro-batch have until both are equal? And which of the two would you put on the slower network: `"tensor"` or `"data"`?

# %% [raw] tags=["hints"]
# importance 3, difficulty 2
# Section 10.6 has the first one: 8 · b · s · h · (t-1)/t numbers.
# The gradients: 12 h² / 8 numbers on each GPU, and an all-reduce sends 2 · 7/8 of its tensor.
# The first grows with the tokens, the second does not. Also ask which of them can wait while the GPU computes.

# %% tags=["exercise"]
tensor_bytes, data_bytes, equal_tokens = ..., ..., ...
slower = ...
### BEGIN SOLUTION
tensor_bytes = 8 * 2048 * 12288 * 7 / 8 * 2
data_bytes = 2 * 7 / 8 * (12 * 12288**2 / 8) * 2
equal_tokens = 2048 * data_bytes / tensor_bytes  # 3h/t
slower = "data"  # it is sent once an update, behind the backward pass
### END SOLUTION
check("10.1", [tensor_bytes, data_bytes, equal_tokens, slower])

# %% [markdown] tags=["exercise"]
# ### 10.3 Debug: FLOP and bytes, not memory
#
# (published mistake, note 004) Note 004 explains the limit of $t$ by memory. Only FLOP and bytes on the link count: in training a layer does $4.5h/(t-1)$ FLOP for each byte. Guess
# first: when a layer only runs forward, as when a model reads a prompt, can more GPUs share it, or fewer? Then compute the FLOP per byte for $h = 8192$ and $t = 8$
#
# - when the layer only runs forward,
# - in training with full recomputation, where the second forward pass counts,
# - in training with messages of 8 bits.
#
# Up to which $t$ does the layer that only runs forward stay above an H100's ridge of 2199?

# %% [raw] tags=["hints"]
# importance 4, difficulty 3
# Of 6 FLOP a weight and four all-reduces, which belong to the forward pass?
# Forward: 2 · 12 h² b s / t FLOP, two all-reduces. What does recomputation add to each?
# Set the FLOP per byte of the forward pass equal to the ridge, with t unknown.

# %% tags=["exercise"]
forward_only, recomputed, in_8_bits = ..., ..., ...
forward_reach = ...
### BEGIN SOLUTION
forward_only = 2 * 12 * 8192 / (2 * 2 * 7 * 2)  # 2 FLOP a weight, for 2 all-reduces
recomputed = 8 * 12 * 8192 / (6 * 2 * 7 * 2)  # 8 FLOP a weight, for 6
in_8_bits = 2 * 4.5 * 8192 / 7
forward_reach = int(1 + 3 * 8192 / 2199)  # 12; in training 17
### END SOLUTION
check("10.3", [forward_only, recomputed, in_8_bits, forward_reach])

# %% [markdown] tags=["exercise"]
# ### 10.4 Debug: 11 or 22
#
# (published mistake, note 004) "24576 FLOP per byte, so $t \le 11$ on an H100", or $t \le 22$ if both directions of the wire are counted. You accept that 40 % of a layer's time is communication, not more.
# Which power of two up to 8 do you choose
#
# - for hidden size 8192 on a server of H100,
# - for 8192 on a server of RTX 4090,
# - for 2048 on the H100?
#
# And how far would the layer's formula $4.5h/(t-1)$, at 450 GB/s one way, let you go in the last case (a whole number)? Guess first which term makes the difference.

# %% [raw] tags=["hints"]
# importance 3, difficulty 3
# Bytes shrink with the hidden size, arithmetic with its square. And what does not shrink?
# An all-reduce on t GPUs has 2(t-1) steps, each with a latency; a layer has four of them.
# CutLayer(2048, 4, peak, link): communication_s over seconds.

# %% tags=["exercise"]
### BEGIN GIVEN
h100, rtx = hardware.accelerator("H100-SXM"), hardware.accelerator("RTX4090")
# link = group_link(Cluster(h100), "all-reduce", t, 1)
# layer = CutLayer(8192, t, h100.peak_flop_per_s, link); layer.communication_s; layer.seconds
### END GIVEN
large_h100, large_rtx, small_h100 = ..., ..., ...
by_formula = ...
### BEGIN SOLUTION
h100, rtx = hardware.accelerator("H100-SXM"), hardware.accelerator("RTX4090")
chosen = []
for hidden, gpu in ((8192, h100), (8192, rtx), (2048, h100)):
    degree = 1
    for t in (2, 4, 8):
        link = group_link(Cluster(gpu), "all-reduce", t, 1)
        layer = CutLayer(hidden, t, gpu.peak_flop_per_s, link)
        if layer.communication_s <= 0.4 * layer.seconds:
            degree = t
    chosen.append(degree)
large_h100, large_rtx, small_h100 = chosen
by_formula = int(1 + 4.5 * 2048 / (989.4e12 / 450e9))  # it knows no latency
### END SOLUTION
check("10.4", [large_h100, large_rtx, small_h100, by_formula])

# %% [markdown] tags=["exercise"]
# ### 10.7 Debug: clipped too early
#
# Clipping needs the length of the whole model's gradient, the root of the sum of the squares of all its numbers. This function lets each rank
# square what it has and sums over the ranks, in place of an all-reduce. On one GPU it is right. On eight the model learns more slowly, as if the limit
# were lower. `cut[rank]` has the gradients of a rank's parts of matrices, `whole[rank]` those of norms and of biases after a sum. Fix it.

# %% [raw] tags=["hints"]
# importance 3, difficulty 2
# Which numbers does every rank have, and how often are they counted?
# Parts of matrices differ from rank to rank. Gradients of norms are the same on all.


# %% tags=["exercise"]
def gradient_length(cut: list[list[float]], whole: list[list[float]]) -> float:
    """The length of the gradient of the whole model, the same on every rank."""
    ### BEGIN GIVEN
    squares = 0.0
    for of_cut, of_whole in zip(cut, whole, strict=True):
        squares += sum(number**2 for number in of_cut + of_whole)
    return math.sqrt(squares)
    ### END GIVEN
    ### BEGIN SOLUTION
    # The parts are different on each rank; what is whole is the same, and counts once.
    squares = sum(number**2 for of_cut in cut for number in of_cut)
    return math.sqrt(squares + sum(number**2 for number in whole[0]))
    ### END SOLUTION


check("10.7", gradient_length)

# %% [markdown] tags=["exercise"]
# ### 10.10 Debug: read the log
#
# Six programs train a GPT of 24 layers with $t = 4$ and one micro-batch. They should cut embedding, head and loss by words, and none of them
# recomputes anything. Their logs count the collectives of a step. Which description fits each of them: `"as it should be"`, `"an f for each of q, k and v"`,
# `"no f before the MLPs"`, `"the logits are gathered"` or `"the gradients of norms are not summed"`?

# %% [raw] tags=["hints"]
# importance 4, difficulty 3
# Count first what a right program makes, with and without sequence parallelism.
# How many more or fewer is it: a multiple of the layers, or a few at the ends?
# Section 10.9 has a program with 17 all-reduces, and one with 4.

# %% tags=["exercise"]
programs = {
    "149 all-reduces": ...,
    "101 all-reduces": ...,
    "77 all-reduces": ...,
    "98 all-reduces, 1 all-gather": ...,
    "3 all-reduces, 98 all-gathers, 98 reduce-scatters": ...,
    "4 all-reduces, 98 all-gathers, 98 reduce-scatters": ...,
}
### BEGIN SOLUTION
programs = {
    "149 all-reduces": "an f for each of q, k and v",  # two more a layer
    "101 all-reduces": "as it should be",  # 4 · 24 + 1 + 1 + 3
    "77 all-reduces": "no f before the MLPs",  # one less a layer
    "98 all-reduces, 1 all-gather": "the logits are gathered",  # without the loss's 3
    # sequence parallelism: the norms see only this rank's tokens
    "3 all-reduces, 98 all-gathers, 98 reduce-scatters": "the gradients of norms are not summed",
    "4 all-reduces, 98 all-gathers, 98 reduce-scatters": "as it should be",
}
### END SOLUTION
check("10.10", programs)

# %% [markdown] tags=["exercise"]
# ### 10.9 Implement: the loss from cut scores
#
# This is the step before build 10.13, for one token and without messages. `parts` is a list with each rank's scores for the token, `label` the number of the right word among all. Ranks may send
# each other only single numbers, so use a maximum and sums over ranks. Scores may be as large as 1000: $e^{1000}$ overflows.

# %% [raw] tags=["hints"]
# importance 3, difficulty 2
# First the maximum over all ranks.
# Whose part holds the label, and where in it?


# %% tags=["exercise"]
def cut_loss(parts: list[list[float]], label: int) -> float:
    """log Σ exp(score) - score of the label, from one maximum and two sums over ranks."""
    ### BEGIN SOLUTION
    top = max(max(part) for part in parts)
    total = sum(sum(math.exp(score - top) for score in part) for part in parts)
    first, right = 0, 0.0
    for part in parts:
        if first <= label < first + len(part):
            right += part[label - first] - top
        first += len(part)
    return math.log(total) - right
    ### END SOLUTION


check("10.9", cut_loss)

# %% [markdown] tags=["exercise"]
# ### 10.12 Build: into a pair and out of it, by tokens
#
# Now the two ends of a pair under sequence parallelism: outside a rank has only its own tokens. `wire.all_gather(share, group)` joins the shares of all ranks along the *first*
# dimension, and `wire.reduce_scatter(whole, group)` cuts the sum over ranks along the first one; here the sequence is the second. The number of ranks divides it.
# Each of the two makes one all-gather in one pass and one reduce-scatter in the other. What they return has the type of what they get, and what they get stays as it is.
#
# The check runs each of the two forward and backward on two or three ranks, in fp32 and bf16, also in smaller groups, several at a time, and counts the messages; then a layer of a transformer. What passes is kept as `mine/sequence.py`, and
# `course demo tp --parts mine --sequence-parallel` trains on it.

# %% [raw] tags=["hints"]
# importance 3, difficulty 2
# An all-reduce is a reduce-scatter and an all-gather. What does the matrix need before it, and what do the norms after it?
# The backward pass of an all-gather is a reduce-scatter, and the other way round.
# `wire.all_gather` joins the first dimension, which is the batch here. Which dimension must stand first while it runs?
# wire.all_gather(x.transpose(0, 1), group).transpose(0, 1), and the same for reduce_scatter.

# %% tags=["exercise"]
from typing import Any

from torch import Tensor
from torch.autograd import Function
from torch.distributed import ProcessGroup

from course_lib.scratch import wire

### BEGIN GIVEN


class Gather(Function):
    """Instead of f, into a pair: all tokens, from this rank's own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup | None) -> Tensor:
        """(batch, sequence / ranks, hidden) -> (batch, sequence, hidden)."""
        ...

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """(batch, sequence, hidden) -> (batch, sequence / ranks, hidden), and None."""
        ...


class SumScatter(Function):
    """Instead of g, out of a pair: the sum over ranks, of this rank's tokens."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup | None) -> Tensor:
        """(batch, sequence, hidden) -> (batch, sequence / ranks, hidden)."""
        ...

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """(batch, sequence / ranks, hidden) -> (batch, sequence, hidden), and None."""
        ...


### END GIVEN
### BEGIN SOLUTION
from course_lib.scratch.tensor import Gather, SumScatter

### END SOLUTION

check("10.12", [Gather, SumScatter])

# %% [markdown] tags=["exercise"]
# ### 10.13 Build: the loss over a cut vocabulary
#
# Exercise 10.9 with tensors, on real ranks, and with gradients. This rank, number `region.rank` of `region.ranks`, has the words from `region.rank * n` on, $n$ of them, where $n$ is the last size of `logits`. Where the ranks do
# not divide the vocabulary the last words are padding, and their logits are $-\infty$. No label is padding, but a rank may have nothing else. `region.sum(x)` is g: the sum over the ranks, through which gradients pass.
# A maximum is taken in place by `dist.all_reduce(top, dist.ReduceOp.MAX, group=region.group)`.
#
# The ranks of the region send each other at most three numbers a token, by all-reduce, and none in the backward pass. `logits` and `labels` stay as they are.
#
# The check compares the losses with those of one process, then takes scores of some hundreds and a padded vocabulary, then looks at the gradients and counts the messages, also in smaller groups and under sequence parallelism. What passes is kept as
# `mine/vocabulary.py`; `course demo tp --parts mine` computes its loss with it.

# %% [raw] tags=["hints"]
# importance 3, difficulty 3
# log of the sum of exp(score) minus the score of the label. Which three numbers of a token does no rank have alone?
# Take the largest score of all ranks off first: dist.all_reduce with ReduceOp.MAX, on a detached copy, since it needs no gradient.
# This rank's words are region.rank * n and the n-1 after it, n = logits.shape[-1]. A label elsewhere must look up something that exists, and then count as 0.
# region.sum((logits - top).exp().sum(-1)).log() - region.sum(the label's score, or 0).

# %% tags=["exercise"]
import torch.distributed as dist
from torch import Tensor

from course_lib.scratch.tensor import TensorParallel

### BEGIN GIVEN


def vocab_parallel_cross_entropy(
    logits: Tensor, labels: Tensor, region: TensorParallel
) -> Tensor:
    """The loss of each token, (batch, sequence), the same on every rank.

    `logits` (batch, sequence, n) are those of this rank's words; `labels` (batch, sequence) are numbers of words among all.
    """
    ...


### END GIVEN
### BEGIN SOLUTION
from course_lib.scratch.tensor import vocab_parallel_cross_entropy

### END SOLUTION

check("10.13", vocab_parallel_cross_entropy)
