# %% [raw] tags=["sitting"]
# question: How do you keep 256 narrow experts busy?
# importance: 2
# difficulty: 4
# group: alone
# needs: 12.1

# %% [markdown]
# # 12 Many narrow experts
#
# A GPU with 4096 tokens of its own has 128 rows for each of DeepSeek-V3's 256 experts, and an expert with so few rows reaches at most 40 % of an
# H100's peak. **How do you keep 256 narrow experts busy?** Before that: the z-loss, how well a bias balances, and what "MoE parallelism" means.

# %%
from dataclasses import replace

import torch
from torch.nn.utils.rnn import pad_sequence

from course_lib import expect, measure, predict, show_source, style
from course_lib.chapters.ch12_experts_and_long_sequences import balancing, figures
from course_lib.chapters.ch12_experts_and_long_sequences.demos import (
    experts as expert_demo,
)
from course_lib.theory import (
    Cluster,
    Job,
    Layout,
    Recipe,
    hardware,
    mesh,
    models,
    units,
)
from course_lib.theory.network.step_traffic import step_traffic

torch.set_num_threads(1)

# %% [markdown]
# ## 12.3 A loss that does not balance
#
# The **z-loss** is the mean of $(\log \sum_i e^{s_i})^2$ over the tokens, where $s_i$ are the router's scores before the softmax. It pulls the
# logarithm towards 0, so that the rounding of large scores does not upset the softmax (Zoph et al. 2022, arXiv:2202.08906, section 3.3). The paper
# multiplies it by 0.001. Here it is 0.01, since the mixture of [the first sitting](12_1) learns for
# 60 updates only, and there is no balance loss.
#
# **Predict.** Without any loss the busiest of the 4 experts ends at 3.8 times the mean. And with the z-loss?

# %%
with_z = predict("12.z_loss", "Imbalance with the z-loss?", yours=None)

# %%
sizes = {"mean logarithm": {}, "largest score": {}}
found = {}
for how, z in (("without", 0.0), ("with the z-loss", 0.01)):
    moe, x, wanted = balancing.task()
    found[how] = balancing.train(moe, x, wanted, z=z)
    scores = moe.router.scores(x).detach()
    sizes["mean logarithm"][how] = float(scores.logsumexp(-1).mean())
    sizes["largest score"][how] = float(scores.max())
last = found["with the z-loss"][0][-1]
expect(..., last, label="with the z-loss", yours=with_z)
assert last > 3

# %%
assert all(row["with the z-loss"] < 0.3 * row["without"] for row in sizes.values())
assert abs(found["with the z-loss"][2] / found["without"][2] - 1) < 0.15  # errors
colours = {"without": style.PALE, "with the z-loss": style.SKY}
figures.grouped_bars(sizes, "The router's scores", "{:.1f}".format, colours)

# %% [markdown]
# **Explain.** It balances nothing. But the mean logarithm falls from 2.8 to 0.2, and the largest score from 4.9 to 0.7, where numbers in bf16 are
# 0.004 apart instead of 0.03. Here it costs nothing; with seeds 0 to 5 the error rises by up to 9 %. It leaves very low scores alone, since they add
# nothing to the sum.
#
# ### How well a bias balances
#
# With the seeds 0 to 5 the balance loss ends between 1.05 and 1.3, and so does the bias with steps of $\gamma = 0.02$. The step decides: with
# $\gamma = 0.005$ some seeds are still at 2.7 after 60 updates, and with 0.05 the load swings between 1.2 and 1.7. A balance loss that is too weak
# does not help either; try `alpha=0.001`:

# %%
runs = {}
for how, options in {
    "loss, α = 0.001": {"alpha": 0.001},
    "loss, α = 0.1": {"alpha": 0.1},
    "bias, γ = 0.005": {"speed": 0.005},
    "bias, γ = 0.02": {"speed": 0.02},
}.items():
    moe, x, wanted = balancing.task()
    moe = balancing.with_biases(moe) if "speed" in options else moe
    runs[how], _, error = balancing.train(moe, x, wanted, **options)
    print(f"{how:<16} busiest / mean {runs[how][-1]:.2f}, error {error:.3f}")
figures.loss(runs, "busiest expert / mean")

# %% [markdown]
# With a good step the bias reaches the error of the loss, 0.15; with one too small it does not. Only a real model shows the price of the loss. On a model of a billion
# parameters the busiest expert has 1.72 times the mean with a balance loss and 1.04 times with the bias, at a perplexity of 9.56 and 9.50 (Wang et
# al. 2024, arXiv:2408.15664, table 2). DeepSeek-V3 moves its biases by 0.001 an update for nearly all of the training, and then not at all
# (arXiv:2412.19437, section 4.2). A small balance loss inside each sequence remains, and its probabilities are sigmoids, not a softmax (section
# 2.1.2).
#
# **Remember**
# - The z-loss keeps scores small. It balances nothing.
# - A bias needs the right step: too small is slow, too large swings.

# %% [markdown]
# ## 12.4 Five families
#
# To name a parallelism, ask *what is cut?*
#
# | | what is cut |
# |---|---|
# | data parallelism, DP | the batch |
# | tensor parallelism, TP | each matrix |
# | pipeline parallelism, PP | the stack of layers; micro-batches keep the stages busy |
# | **expert** parallelism, EP | the set of experts |
# | context parallelism, CP | the sequence (section 12.6) |
#
# MoE is not in the table. It is a kind of model, which you can train on one GPU (section 12.1) or by DP alone. EP is the parallelism, and MoE
# is what makes it possible. Note 003 lists DP, PP, TP and MoE as families, and says that PP "combines MP and DP" (model and data parallelism). But chapter 11's pipelines had one
# copy of the model: the two are *often used together*, which is not the same.
#
# The same note says that pipelines cut "vertically" (纵向切分) and tensor parallelism "horizontally" (横向切分). That is so if the layers are drawn from left to
# right. Drawn from bottom to top, it is the other way round.

# %% [markdown]
# ## 12.5 Placing experts, and filling them
#
# ### A mesh of their own for the experts
#
# 16 GPUs in two nodes train Mixtral with tp 2, cp 2 and dp 4. (Neighbours in number belong to the same tp group; then come cp and dp, as in section
# 13.1.) If tp cuts the experts' matrices as it cuts those of attention, each expert lies on a pair of GPUs. An ep group takes one GPU of each of the
# 8 pairs, so it spans both nodes. Here are the groups of rank 5:

# %%
layout = Layout(tp=2, cp=2, dp=4, ep=8)


def group_of_5(axis, etp):
    """The ranks with which rank 5 shares one axis of the experts' mesh."""
    groups = mesh.expert_groups(layout, axis, etp)
    return next(group for group in groups if 5 in group)


cut = {axis: group_of_5(axis, etp=2) for axis in ("ep", "etp")}
figures.rank_groups(cut, ranks=16, per_node=8)

# %% [markdown]
# **MoE parallel folding** gives the experts a mesh of their own over the same GPUs (Liu et al. 2025, arXiv:2504.14960, section 3.2): **etp** ranks
# share one expert's matrices, **ep** ranks have all experts between them, and **edp** ranks hold the same ones. Only pp must agree with attention's
# mesh. With etp 1 each GPU has a whole expert, and one node has all:

# %%
folded = {axis: group_of_5(axis, etp=1) for axis in ("ep", "edp")}
assert {rank // 8 for rank in cut["ep"]} == {0, 1}
assert {rank // 8 for rank in folded["ep"]} == {0}
figures.rank_groups(folded, ranks=16, per_node=8)

# %% [markdown]
# It saves bytes as well. The two halves of an expert need the same rows. So after the all-to-all each pair gathers each other's rows, and on the way
# back it sums the two results. An all-to-all among 8 sends 7/8 of a GPU's rows; the gather of a pair sends all of them. So a folded layout sends
# $\frac78 / (\frac78 + 1) = 47\,\%$ of the bytes:

# %%
CLUSTER = Cluster(hardware.accelerator("H100-SXM"), nodes=2)


def sent_for_experts(layout, sequence):
    """Bytes that a GPU sends in a step along ep, and along tp for experts."""
    shape = models.MODELS["mixtral-8x7b"]
    sent = step_traffic(Job(shape, Recipe(), layout, CLUSTER, sequence)).collectives
    return sum(
        one.total_bytes for one in sent if one.axis == "ep" or one.what == "experts"
    )


with_tp = replace(layout, sequence_parallel=True, keep_gathered=True)
halves = sent_for_experts(with_tp, 8192)  # 8192 / (tp 2 · cp 2): 2048 tokens on a GPU
whole = sent_for_experts(Layout(dp=16, ep=8), 2048)
share = 100 * (7 / 8) / (7 / 8 + 1)
assert abs(100 * whole / halves - share) < 1e-9
print(f"folded: {share:.0f} % of the bytes")

# %% [markdown]
# And they stay inside the node. NVIDIA measured it on 128 H100: Mixtral 8x22B goes from 46.3 to 49.3 % MFU, and with its experts cut into 64 narrow
# ones from 17.1 to 28.8 % (table 1 of the paper; the rows differ in more than folding). In Megatron-Core it is `--expert-tensor-parallel-size 1`. Our
# `Layout`, and so the planner of chapter 13, knows etp = tp only.
#
# ### Many small products
#
# A rank has rows for several experts, and our layer loops over them. Small experts make small products. How many rows must an expert get before the
# chip spends its time computing, and not reading weights? $m$ rows times an $h \times f$ matrix are $2mhf$ FLOP and $2(mh + hf + mf)$ bytes (section
# 5.4). Set their ratio equal to the ridge $R$ of the chip's memory, 295 FLOP per byte for an H100:
#
# $$m = \frac{R}{1 - R\,(1/h + 1/f)} .$$

# %%
H100 = hardware.accelerator("H100-SXM")
ridge = H100.ridge_flop_per_byte
by_hand = ridge / (1 - ridge * (1 / 7168 + 1 / 2048))  # DeepSeek-V3
rows = hardware.ridge_rows(7168, 2048, ridge)
assert abs(by_hand / rows - 1) < 1e-9
print(f"{rows:.0f} rows for each expert")

# %% tags=["drawing"]
curves = {}
for name in ("mixtral-8x7b", "deepseek-v3"):
    model = models.MODELS[name]
    curves[name] = []
    for m in (round(2 ** (half / 2)) for half in range(8, 27)):
        per_byte = hardware.matmul_intensity(m, model.hidden, model.expert_width)
        part = H100.attainable_flop_per_s(per_byte) / H100.peak_flop_per_s
        curves[name].append((m, 100 * part))
of_one = 4096 * 8 // 256  # rows of one expert of DeepSeek-V3
title = "What the memory of an H100 allows"
mark = {"tokens of 1 GPU": of_one, "of 64": 64 * of_one}
figures.lines(
    curves,
    "rows of an expert",
    "% of the peak",
    title,
    doubling=(True, False),
    mark=mark,
)

# %% [markdown]
# 363 rows. A GPU with 4096 tokens of its own has 128 rows for each of the 256 experts, and can reach 40 % of its peak at most. With ep 64 an expert
# gets 8192, the rows of 64 GPUs. So expert parallelism does not only spread the weights. It fills the experts.
#
# A product is a call, too, and each call has a price. Cut 2048 rows over more and more experts, so that the FLOP stay the same. Time a loop of small
# products, and one batched product, on this machine:


# %%
def rates(count):
    """GFLOP/s of `count` small products: in a loop, and in one call."""
    x, weights = torch.randn(count, 2048 // count, 32), torch.randn(count, 32, 64)
    loop = measure.times.seconds(
        lambda: [a @ w for a, w in zip(x, weights, strict=True)]
    )
    batch = measure.times.seconds(lambda: torch.bmm(x, weights))
    return [2 * 2048 * 32 * 64 / seconds / 1e9 for seconds in (loop, batch)]


counts = [2**power for power in reversed(range(10))]
found = [(2048 // count, *rates(count)) for count in counts]
curves = {"a loop": [(rows, loop) for rows, loop, _ in found]}
curves["one batched product"] = [(rows, batch) for rows, _, batch in found]
title = "2048 rows of 32 numbers, times matrices of 32 × 64"
figures.lines(curves, "rows of an expert", "GFLOP/s", title, doubling=(True, False))

# %% [markdown]
# A call takes a few microseconds, however small its product, so the loop gets slower from the start. The batch pays once. Its rate holds until each
# matrix serves so few rows that loading it dominates: the ridge again. When we ran it, the loop reached a third of the batch's rate at 32
# rows, and a tenth at 4.
#
# A batch needs the same number of rows for each expert. A **grouped product** (分组矩阵乘, grouped GEMM) does not: it is one call, with as many rows for
# each expert as the expert got. It is `--moe-grouped-gemm` in Megatron-Core, and `torch.nn.functional.grouped_mm` in PyTorch. Let a skewed router
# give the $k$-th of 64 experts $432/k$ rows: 432 for the first, 7 for the last, 2050 in all. A batch pads each to 432 and multiplies 64 · 432 rows,
# 13.5 times as many:

# %%
counts = [round(432 / k) for k in range(1, 65)]
x, weights = torch.randn(sum(counts), 32), torch.randn(64, 32, 64)
parts, last = x.split(counts), torch.tensor(counts).cumsum(0).int()
real = torch.arange(432) < torch.tensor(counts)[:, None]  # the others are padding
ways = {
    "a loop": lambda: torch.cat([a @ w for a, w in zip(parts, weights, strict=True)]),
    "padded": lambda: torch.bmm(pad_sequence(parts, True), weights)[real],
    "grouped": lambda: torch.nn.functional.grouped_mm(x, weights, offs=last),
}
for product in ways.values():
    torch.testing.assert_close(product(), ways["a loop"]())

# %%
spent = {name: measure.times.seconds(product) for name, product in ways.items()}
figures.bars(spent, units.format_duration, "64 experts, 432/k rows each")

# %% [markdown]
# When we ran it, the padded batch took eight times as long as the grouped product, and the loop 1.4 times: on a CPU the one call is a loop in
# C++. On a GPU it also fills the chip, which cuts a result into tiles of, say, 128 × 128 numbers, one for each of an H100's 132 processors. 128 rows
# × 2048 columns are 16 tiles, so 116 processors do nothing. All 256 experts in one call have 4096 tiles.
#
# ### The library
#
# PyTorch ships no MoE layer. It ships an all-to-all with a backward pass, and a setting that makes DDP leave parameters alone. Our demo puts the two
# together as the counterpart. (DDP takes the mean over ranks where we want the sum, so the loss is multiplied by the number of ranks. Experts do not
# go through DDP, so the factor is divided out of their gradients again.)

# %%
show_source(expert_demo.TorchDispatcher, expert_demo.Library)

# %% [markdown]
# Megatron-Core has a layer of its own (flags: [first sitting](12_1)), and DeepSpeed has `deepspeed.moe.layer.MoE(…, ep_size=8, k=2)`.
#
# **Remember**
# - Experts can have a mesh of their own over the same GPUs. Whole experts within a node send the fewest bytes.
# - An expert with few rows waits for its weights. EP brings it the rows of many GPUs.
# - A grouped product computes all experts of a rank in one call.

# %% [markdown]
# ## The answer
#
# Bring each expert the rows of many GPUs: with ep 64 it has 8192 instead of 128, and 363 are enough. Compute all experts of a GPU in one grouped
# product. And give the experts a mesh of their own, so that their all-to-all stays inside a node where it can.
#
# **Read on.** Liu et al. 2025, *MoE Parallel Folding*, section 3 (arXiv:2504.14960). Zoph et al. 2022, *ST-MoE*, section 3 (arXiv:2202.08906). Wang
# et al. 2024 (arXiv:2408.15664).

# %% [markdown] tags=["exercise"]
# ### 12.3 Predict: who shares what
#
# Mixtral trains on 16 GPUs with tp 2, cp 2, dp 4 and ep 4. Neighbours in number are a tp group; then come cp and dp. In the experts' mesh the order
# is etp, ep, edp. Follow the tensors of rank 6. Which ranks, rank 6 included, share each of these? Give lists in order. The last two are without
# folding: tp cuts the experts as well.

# %% [raw] tags=["hints"]
# importance 3, difficulty 4
# Write ranks 0 to 15 in rows of two (tp), and rows in blocks of two (cp): rank 6 is where?
# Who has other tokens, but the same weights? Their gradients are summed.
# The experts' mesh deals the 16 ranks out anew: etp neighbours, then 4 of ep, then edp.

# %% tags=["exercise"]
shared = {
    "tp: the matrices of its attention": ...,
    "cp: its sequences": ...,
    "the sum of the gradients of its attention": ...,
    "etp 1: the all-to-all of its tokens": ...,
    "etp 1: the sum of its experts' gradients": ...,
    "etp 2: the all-to-all of its tokens": ...,
    "etp 2: the sum of its experts' gradients": ...,
}
### BEGIN SOLUTION
attention = [6, 7], [4, 6], list(range(0, 16, 2))  # over cp and dp: the same half
folded, cut = ([4, 5, 6, 7], [2, 6, 10, 14]), ([0, 2, 4, 6], [6, 14])
shared = dict(zip(shared, [*attention, *folded, *cut], strict=True))
### END SOLUTION
check("12.3", shared)

# %% [markdown] tags=["exercise"]
# ### 12.12 Calculate: narrow experts
#
# Qwen3-30B-A3B has $h = 2048$ and 128 experts of width $f = 768$ (three matrices each), of which a token uses 8.
# Train it in bf16 on H100s (989.4 TFLOP/s, 3.35 TB/s), with 4096 tokens on a GPU and all experts equally popular.
#
# How many FLOP do the experts do for each byte that is sent under EP? What bandwidth (bytes per second, one way) must a wire have, so that
# computation at the peak could hide the all-to-all? How many rows must an expert get before reading its weights is no longer the limit? And which is
# the smallest ep, a power of two, that brings it so many?

# %% [raw] tags=["hints"]
# importance 3, difficulty 3
# "Can computation hide the all-to-all?" in the first sitting: FLOP for each byte follow from the width alone.
# A wire can be hidden if peak / bandwidth is at most that: solve for the bandwidth.
# hardware.ridge_rows(2048, 768, h100.ridge_flop_per_byte). An expert gets tokens · 8 / 128 rows from each GPU of the ep group.

# %% tags=["exercise"]
per_byte, wire = ..., ...
rows, ep = ..., ...
### BEGIN SOLUTION
h100 = hardware.accelerator("H100-SXM")
per_byte = experts.routed_intensity(768)
wire = h100.peak_flop_per_s / per_byte
rows = hardware.ridge_rows(2048, 768, h100.ridge_flop_per_byte)
ep = 2 ** math.ceil(math.log2(rows / (4096 * 8 / 128)))
### END SOLUTION
check("12.12", [per_byte, wire, rows, ep])
