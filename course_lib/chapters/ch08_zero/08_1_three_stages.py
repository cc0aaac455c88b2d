# %% [raw] tags=["sitting"]
# question: Why do 108 GB of model states not fit into eight GPUs with 640 GB?
# importance: 5
# difficulty: 3
# group: alone
# needs: 3.1, 6.1, 7.1

# %% [markdown]
# # 8 ZeRO: three stages and their price
#
# You have eight GPUs with 80 GB each, 640 GB in all, and want to train LLaMA-2 7B. Its weights, gradients and
# optimizer take 108 GB. You start DDP (chapter 7), and it dies in the first update: out of memory, although the
# memory would hold these 108 GB almost six times. **Why? And what does it cost to make them fit?**
#
# After this sitting you can
#
# - say which rank stores what under ZeRO 1, 2 and 3, and compute the bytes per GPU in your head,
# - say what each stage sends, compared with plain data parallelism, and why,
# - say when each stage sends it, and choose a stage for a given model, network and batch.
#
# You need chapters 3, 6 and 7.

# %%
from course_lib import expect, predict, style
from course_lib.chapters.ch08_zero import figures, steppers
from course_lib.chapters.ch08_zero.zero_choice import (
    fewest_ranks,
    most_parameters,
    stage_timeline,
)
from course_lib.theory import RECIPES, hardware, models, zero

# %% [markdown]
# **Predict.** ZeRO's stage 3 stores one $n$-th of everything on each of $n$ GPUs, so a layer's weights must come over the
# network. How many bytes does each GPU send, as a multiple of plain data parallelism? Stage 1 cuts only the
# optimizer. How many of the 108 GB does a GPU keep?

# %%
factor = predict("8.stage3", "Sent in stage 3 / plain?", yours=None)
kept = predict("8.stage1", "GB per GPU in stage 1?", yours=None, unit="GB")

# %% [markdown]
# ## 8.1 What plain data parallelism stores n times
#
# The ZeRO paper's example has 7.5 billion parameters, trained in fp16 with Adam. bf16 with AdamW takes the same bytes (chapter 3):
#
# | | bytes per parameter | 7.5 billion |
# |---|---|---|
# | weights, bf16 | 2 | 15 GB |
# | gradients, bf16 | 2 | 15 GB |
# | optimizer: an fp32 master copy and two fp32 moments | 4 + 8 | 90 GB |
# | sum: the **model states** (模型状态) | 16 | **120 GB** |
#
# LLaMA-2 7B has 6.74 billion parameters. Under DDP each GPU keeps all states; a fair share would be an eighth:

# %% tags=["drawing"]
KINDS = "weights", "gradients", "optimizer"


def in_gb(bill):
    """The GB of model states that a GPU stores, by kind."""
    return {kind: getattr(bill, f"{kind}_bytes") / 1e9 for kind in KINDS}


llama = models.MODELS["llama2-7b"].parameters().total
ours = in_gb(zero.zero_stages(llama, 8, RECIPES["mixed-16"]).bills[0])
share = {kind: size / 8 for kind, size in ours.items()}
figures.stacked_bars(
    {"DDP keeps": ours, "a fair share": share},
    "LLaMA-2 7B on one of eight GPUs",
    "{:.1f} GB".format,
    limit=("what it has", 80),
)

# %% [markdown]
# Why does every GPU keep everything? Follow one update of the paper's example on 64 GPUs. Each rank computes gradients from its own samples: different work, nothing
# wasted. The all-reduce gives all ranks the *same* sum, and each runs the *same* optimizer on it. From the all-reduce on, everything is done 64 times, so everything it needs is stored 64 times: 7680 GB, of which 120 are different.
#
# The remedy: each rank updates one 64th of the parameters. It needs the optimizer states of that part
# only, and sends the new weights to the others. This is **ZeRO** (零冗余优化器), the Zero Redundancy
# Optimizer (Rajbhandari et al. 2020, arXiv:1910.02054). A rank's part is its **shard** (分片).
#
# ZeRO saves storage, and hardly any computation. Only the update was repeated on all ranks: with AdamW about 15 operations per
# parameter, where forward and backward take 6 per parameter *and token*. Each rank still computes whole layers for its own samples, so ZeRO is data parallelism, although it cuts the model's states. (Note 000's "reduces redundant computation" should say *storage*.)
#
# **Remember**
# - Plain data parallelism stores the same states on each GPU because each GPU makes the same update.
# - Under ZeRO each rank updates, and stores, one $n$-th. Computation hardly changes.

# %% [markdown]
# ## 8.2 Three stages: who stores what
#
# $P$ is the number of parameters and $n$ the number of ranks.
#
# **Stage 1** cuts the *optimizer* into $n$ shards. On 64 GPUs the example takes 15 + 15 + 90/64 = 31.4 GB on each:
#
# $$2P + 2P + \frac{12P}{n}$$
#
# An update has four steps. (1) Forward and backward pass. (2) A reduce-scatter (chapter 6) of the gradients: rank $r$ receives the sum over all
# ranks of *its* part. (3) Rank $r$ updates its part of the weights. (4) An all-gather: every rank gets all new weights.
#
# **Stage 2** also cuts the *gradients*. 15 + 105/64 = 16.6 GB:
#
# $$2P + \frac{2P + 12P}{n}$$
#
# Step (2) comes earlier: as soon as the backward pass has finished a layer, that layer's gradient is
# reduced and scattered, and each rank keeps only its own part. The model's whole gradient never exists.
#
# **Stage 3** also cuts the *weights*. 120/64 = 1.9 GB:
#
# $$\frac{2P + 2P + 12P}{n} = \frac{16P}{n}$$
#
# Before a layer's forward pass the ranks all-gather its weights; after it, each rank keeps only its own part. The backward pass
# gathers the weights again and reduce-scatters the gradient. Step (4) is not needed, since the next forward pass gathers anyway. FSDP (chapter 9) is this stage.

# %% tags=["drawing"]
example = zero.zero_stages(7_500_000_000, ranks=64, recipe=RECIPES["mixed-16"])
totals = [bill.total_bytes / 1e9 for bill in example.bills]
assert [round(size, 1) for size in totals] == [120.0, 31.4, 16.6, 1.9]
by_stage = {f"stage {bill.zero_stage}": in_gb(bill) for bill in example.bills}
title = "7.5 billion parameters, on each of 64 GPUs"
figures.stacked_bars(by_stage, title, "{:.1f} GB".format)

# %% [markdown]
# The paper's figure 1 has these four numbers.
#
# ### One step, moment by moment
#
# Three layers of 600 million parameters each train on four ranks. Their states take 28.8 GB. A column is a rank, a height is bytes, and white is
# what a rank does not hold.
#
# **Predict.** Between updates there are no gradients: in stage 2 a rank holds 9.0 GB, all weights (3.6 GB) and a quarter of the optimizer's 21.6 GB. Whole gradients of one layer are 1.2 GB. How many GB does a rank hold at most during the step?

# %%
at_most = predict("8.moment", "GB at most, stage 2?", yours=None, unit="GB")

# %%
from course_lib.chapters.ch08_zero import steppers

steppers.zero(stage=2, ranks=4)

# %%
trace, _ = steppers.zero(stage=2, ranks=4).result
most = trace.peak(0) / 1e9  # of rank 0
expect(10.8, most, within=1e-6, label="at most", unit="GB", yours=at_most)

# %% [markdown]
# **Explain.** $9.0 + 2 \cdot 0.3 + 1.2$: the layer that is being processed still has its full gradient, 1.2 GB. Of each of the two
# finished layers the rank keeps a quarter, 0.3 GB. Change `stage`: in stage 1 the most is held after the backward pass, 12.6 GB, since all gradients are whole. In stage 3 each layer is gathered twice.
#
# ### More GPUs
#
# LLaMA-2 7B on 1 to 1024 GPUs, the formulas as curves:

# %% tags=["drawing"]
by_ranks = {f"stage {stage}": [] for stage in zero.STAGES}
for ranks in [2**power for power in range(11)]:
    for bill in zero.zero_stages(llama, ranks, RECIPES["mixed-16"]).bills:
        point = ranks, bill.total_bytes / 1e9
        by_ranks[f"stage {bill.zero_stage}"].append(point)
figures.lines(
    by_ranks,
    "GPUs",
    "GB of model states on each GPU",
    "LLaMA-2 7B, 16 bytes per parameter",
    doubling=(True, False),
    level={"an 80-GB GPU": 80},
)

# %% [markdown]
# As the number of GPUs grows, stage 1 approaches $4P$ bytes and stage 2 approaches $2P$. Only stage 3 keeps
# falling. The activations of chapter 4 come on top: ZeRO does not touch them.
#
# Here the rank's memory is drawn to scale. It starts with DDP on eight GPUs:

# %%
from course_lib.chapters.ch08_zero import panels

panels.zero(model="llama2-7b", stage=0, ranks=8)

# %% [markdown]
# 1. Raise the stage. Which is the lowest one that fits?
# 2. GPT-3 175B: is there a number of GPUs at which stage 2 fits? How many does stage 3 need?

# %%
bills = zero.zero_stages(llama, 8, RECIPES["mixed-16"]).bills
expect(bills[1].total_bytes / 1e9, label="stage 1", unit="GB", yours=kept)
assert bills[1].total_bytes < 80e9 < bills[0].total_bytes

# %%
gpt3 = models.MODELS["gpt3-175b"].parameters().total
print(f"GPT-3, stage 3: {fewest_ranks(gpt3, 3, 80e9, RECIPES['mixed-16'])} GPUs")
assert fewest_ranks(gpt3, 2, 80e9, RECIPES["mixed-16"]) is None

# %% [markdown]
# Answers. (1) Stage 1: 37.1 GB, which leaves 43 GB for activations. (2) No: stage 2 keeps the weights whole, and
# they alone are 349 GB. Stage 3 fits on the panel's 64 GPUs, by the formula from 35 on.
#
# These are the states alone. For a moment a rank holds more, such as a layer's whole gradients. Leave a few GB free.
#
# **Remember**
# - The owner of a part sums its gradient, keeps its optimizer states and updates it.
# - 16 bytes per parameter become $4 + 12/n$, $2 + 14/n$ or $16/n$: at most a factor of 4, of 8, or of $n$.
# - Stage 1 keeps whole gradients until the update; stage 2 frees them during backward; stage 3 also frees each layer's weights.

# %% [markdown]
# ### Deeper: stored, and held for a moment
#
# What a rank holds during the passes, beside the states and the activations:
#
# | stage | held for a moment | bytes |
# |---|---|---|
# | 0 | DDP's buckets, a second copy of the gradients (chapter 7) | $2P$ |
# | 1 | nothing, if messages leave from the gradients themselves, as in Megatron-LM | $0$ |
# | 2 | one layer's gradients, a copy of them on its way, and the head's gradient | $2\,(2P_l + P_h)$ |
# | 3 | the same, and the whole weights of two layers and of what is outside the layers | $2\,(2P_l + P_h) + 2\,(2P_l + P_r)$ |
#
# $P_l$ are the parameters of a layer, $P_h$ those of the last norm and the head, $P_r$ all those outside the layers. The backward pass begins with the head, but the head's
# gradient is reduced together with the embedding's, which comes last. None of these bytes shrinks with $n$. (With a large vocabulary the end of the backward pass holds still more: section 9.2.)
#
# Few libraries reach the 0 of stage 1. Our version copies each unit's gradients during the update, and DeepSpeed keeps buckets of fixed size, 1 GB in bf16 by default (section 8.7).
#
# The update holds something, too. DeepSpeed copies the gradients that a rank updates with to fp32: $4P$ bytes in stage 0,
# $4P/n$ from stage 1 on (the recipe's `update="copied"`). LLaMA-2 7B on 8 GPUs:

# %% tags=["drawing"]
from course_lib.theory import Job, Layout, Recipe
from course_lib.theory.memory.peak import memory_moments

beside = {}
for stage in zero.STAGES:
    copied = Recipe(update="copied", recompute="full")
    layout = Layout(dp=8, zero_stage=stage)
    moments = memory_moments(Job(models.MODELS["llama2-7b"], copied, layout))
    in_layers, at_update = moments["backward begins"], moments["update"]
    in_passes = in_layers.gathered_gradients_bytes + in_layers.gathered_parameters_bytes
    beside[f"stage {stage}"] = {
        "in the passes": (in_layers.bucket_bytes + in_passes) / 1e9,
        "in the update": at_update.update_bytes / 1e9,
    }
passes = [round(held["in the passes"], 1) for held in beside.values()]
assert passes == [13.5, 0, 1.1, 2.4]
looks = {"in the passes": style.COMPUTING, "in the update": style.UPDATE}
figures.grouped_bars(
    beside, "Beside states and activations, for a moment", "{:.1f} GB".format, looks
)

# %% [markdown]
# These two peaks do not coincide. When the update begins, activations and gathered layers have gone, and the update's bytes use their room.

# %% [markdown]
# ## 8.3 What it costs in messages
#
# An all-reduce *is* a reduce-scatter followed by an all-gather (chapter 6). In each half a
# rank sends $(n-1)/n$ of the tensor. Each box below is one half: in the example on 64 GPUs, 63/64 of 15 GB.

# %% tags=["drawing"]
G, W = "gradients", "weights"
figures.halves(
    {"plain": [G, G], "stage 1": [G, W], "stage 2": [G, W], "stage 3": [W, W, G]},
    "An update with one micro-batch",
)

# %% [markdown]
# Stages 1 and 2 send nothing extra. The second half of an all-reduce gives every rank the summed *gradients*. ZeRO updates
# between the halves, and its second half carries the new *weights*, which are as large. Stage 3 needs the weights once more, for the backward pass:

# %%
ratio = example.bills[3].sent_bytes / example.bills[0].sent_bytes
expect(1.5, ratio, within=1e-9, label="stage 3 / plain", yours=factor)

# %% [markdown]
# The paper's section 7 has this factor, 1.5, under two conditions. *Gradients are as large as weights.* Megatron-LM keeps gradients in fp32. Plain data parallelism then sends two halves of $4P$ bytes,
# and stage 1 sends $4P + 2P$, which is less.
#
# *An update has one micro-batch.* With $m$ of them (chapter 2), plain data parallelism and
# stage 1 wait, by `no_sync`, and send once. Stage 2 does not keep the whole gradient, so it
# reduces after every micro-batch: $m + 1$ halves. Stage 3 gathers twice and reduces once in each: $3m$ halves. With four
# micro-batches, in the order of sending:

# %% tags=["drawing"]
recipe = RECIPES["mixed-16"]
once = example.bills[0].sent_bytes / 2
for m, expected in {4: [2, 2, 5, 12], 8: [2, 2, 9, 24]}.items():
    sent = [
        zero.sent_bytes(7_500_000_000, stage, 64, recipe, accumulation=m)
        for stage in zero.STAGES
    ]
    assert [round(each / once) for each in sent] == expected
figures.halves(
    {
        "plain": [G, G],
        "stage 1": [G, W],
        "stage 2": [G, G, G, G, W],
        "stage 3": 4 * [W, W, G],
    },
    "An update with four micro-batches",
)

# %% [markdown]
# ### When it is sent
#
# What counts is whether the bytes travel while the GPU computes. On 64 H100 with 16,384 tokens each, LLaMA-2 7B computes for 834 ms at 795 TFLOP/s, 80 % of the peak. Half an all-reduce over a 400 Gb/s network, 50 GB/s, takes 265 ms. The figure cuts the model into four blocks of eight layers:

# %% tags=["drawing"]
h100, BLOCKS = hardware.accelerator("H100-SXM"), 4
rate = h100.peak_flop_per_s * h100.matmul_efficiency
half_s = 2 * llama * 63 / 64 / hardware.NDR.bytes_per_s


def one_step(stage, tokens, **how):
    """The two rows of a step of LLaMA-2 7B on 64 H100."""
    forward_s = 2 * llama * tokens / rate
    return stage_timeline(stage, BLOCKS, forward_s / BLOCKS, half_s / BLOCKS, **how)


def step_ms(rows):
    """When the last computation or message of a step has ended."""
    return 1000 * max(span[2] for spans in rows.values() for span in spans)


steps = {
    "stage 0, DDP": one_step(0, 16384),
    "stage 1, all messages after backward": one_step(1, 16384, waits=True),
    "stage 1 or 2, overlapped": one_step(1, 16384),
    "stage 3, overlapped": one_step(3, 16384),
}
assert [round(step_ms(rows)) for rows in steps.values()] == [966, 1364, 966, 966]
named = {f"{name}: {step_ms(rows):,.0f} ms": rows for name, rows in steps.items()}
figures.lanes(named, "One step of LLaMA-2 7B on 64 H100")

# %% [markdown]
# - **Stage 0** sends each block's gradients, both halves, behind the rest of the backward pass. The last message is exposed: 133 ms.
# - **Stage 1** in our short code (section 8.4) sends everything after the backward pass, exposes 531 ms, and is slower than DDP. Production code overlaps: Megatron-LM scatters gradients during
#   backward and gathers weights during the next forward pass (`overlap_grad_reduce`, `overlap_param_gather`; docs.nvidia.com/nemo/megatron-bridge, *Communication Overlap*).
# - **Stage 3** gathers the next block while one computes. With 16,384 tokens it just keeps up.
#
# With fewer tokens there is less computation to hide behind, and stage 3 has most to hide:

# %% tags=["drawing"]
shown = {"stage 0, DDP": 0, "stage 1 or 2, overlapped": 1, "stage 3, overlapped": 3}
by_tokens = {
    f"{tokens:,} tokens": {
        name: step_ms(one_step(stage, tokens)) for name, stage in shown.items()
    }
    for tokens in (4096, 16384)
}
looks = dict(zip(shown, (style.PALE, style.SKY, style.BLUE), strict=True))
figures.grouped_bars(by_tokens, "A step, in ms", "{:,.0f}".format, looks)

# %% [markdown]
# With 4,096 tokens stage 1 beats DDP, since half of its messages hide behind the forward pass.
#
# When does stage 3 hide its messages? With $T$ tokens in a micro-batch, a GPU computes $6PT$ FLOP at $F$ FLOP/s and sends $3 \cdot 2P$ bytes at $\beta$ bytes/s. Both take
# equally long at
#
# $$T = F / \beta.$$
#
# The model's size cancels, as in section 7.4. For 795 TFLOP/s:

# %%
for wire in (hardware.NDR, h100.inside):
    print(f"{wire.bytes_per_s / 1e9:.0f} GB/s: {rate / wire.bytes_per_s:,.0f} tokens")
assert round(rate / hardware.NDR.bytes_per_s, -2) == 15_900

# %% [markdown]
# Gathering inside a server helps. ZeRO++ (Wang et al. 2023, arXiv:2306.10209; DeepSpeed's `zero_hpz_partition_size`) stores a second copy of the weights, cut
# over the GPUs of one server only. The backward pass then gathers over NVLink, for $2P/8$ more bytes per GPU. HSDP (chapter 9) cuts all states
# within each server and keeps one copy per server.
#
# ### Which stage?
#
# Suppose that 60 of a GPU's 80 GB are left for the model states. The largest model in each stage:

# %% tags=["drawing"]
ROOM = 60e9
largest = {
    f"stage {stage}": {
        f"on {ranks} GPUs": most_parameters(stage, ranks, ROOM, recipe)
        for ranks in (8, 64)
    }
    for stage in zero.STAGES
}
names = [f"llama2-{size}" for size in ("7b", "13b", "70b")]
sizes = [models.MODELS[name].parameters().total for name in names]
fewest = [[fewest_ranks(it, stage, ROOM, recipe) for it in sizes] for stage in range(4)]
assert fewest == [[None] * 3, [3, 20, None], [3, 6, None], [2, 4, 19]]
looks = {"on 8 GPUs": style.SKY, "on 64 GPUs": style.BLUE}
figures.grouped_bars(
    largest, "Largest model", lambda count: f"{count / 1e9:.1f} billion", looks
)

# %% [markdown]
# The fewest GPUs for LLaMA-2 7B, 13B and 70B, and the halves sent in an update of $m$ micro-batches:
#
# | stage | bytes per parameter | 7B | 13B | 70B | halves | $m = 8$ |
# |---|---|---|---|---|---|---|
# | 0 | $16$ | never | never | never | $2$ | 2 |
# | 1 | $4 + 12/n$ | 3 GPUs | 20 GPUs | never | $2$ | 2 |
# | 2 | $2 + 14/n$ | 3 | 6 | never | $m + 1$ | 9 |
# | 3 | $16/n$ | 2 | 4 | 19 | $3m$ | 24 |
#
# - **Stage 1 rather than 0:** yes, if the optimizer treats each number by itself, as Adam does, and the library overlaps the messages.
# - **Stage 2 rather than 1:** only if stage 1 does not fit. It sends $(m+1)/2$ times as much. A pipeline (chapter 11) with $m = 32$ would send 16.5 times as much, so pipelines use stage 1.
# - **Stage 3 rather than 2:** only if stage 2 does not fit, and then with about $F/\beta$ tokens per micro-batch.
#
# **Remember**
# - ZeRO 1 and 2 update between the halves of an all-reduce and send nothing extra. Stage 3 sends 1.5 times as much.
# - With $m$ micro-batches: 2, 2, $m + 1$, $3m$ halves.
# - Ask when the bytes travel. Stage 3 hides them behind about $F/\beta$ tokens.

# %% [markdown]
# ## The answer
#
# DDP keeps all 108 GB on *each* GPU, because each GPU makes the same update. Stage 1 leaves 37.1 GB per
# GPU and sends as many bytes as DDP. Stage 3 would leave 13.5 GB, for 1.5 times the bytes.

# %% tags=["exercise"]
import torch

from course_lib import check, hint, solution
from course_lib.theory.inputs import RECIPES, Recipe, models
from course_lib.theory.network import zero
from course_lib.chapters.ch08_zero import zero_choice

# %% [markdown] tags=["exercise"]
# ### 8.1 Calculate: ZeRO with fp32 gradients
#
# 128 billion parameters are trained on 16 GPUs with Megatron-LM's formats: weights in bf16, gradients in fp32, 12 bytes of optimizer. How many GB
# (10⁹ bytes) of model states does a GPU hold in stage 1, 2 and 3? And how many times as many bytes as plain data parallelism does
# stage 1 send, with one micro-batch?

# %% [raw] tags=["hints"]
# importance 3, difficulty 2
# Which of 2 + 4 + 12 bytes does the stage cut, and into how many parts?
# Stage 1: 6 · 128 + 12 · 128 / 16.
# Plain: two halves of 4P bytes. What does the second half carry in stage 1?

# %% tags=["exercise"]
stage_1, stage_2, stage_3 = ..., ..., ...
times = ...
### BEGIN SOLUTION
stage_1 = (2 + 4) * 128 + 12 * 128 / 16
stage_2 = 2 * 128 + (4 + 12) * 128 / 16
stage_3 = 18 * 128 / 16
times = (4 + 2) / (4 + 4)  # gradients, then weights; gradients twice
### END SOLUTION
check("8.1", [stage_1, stage_2, stage_3, times])

# %% [markdown] tags=["exercise"]
# ### 8.2 Predict: the stage that fits, and its price
#
# A model has 32 billion parameters with 16 bytes each (2 + 2 + 12). Its GPUs have 68 GB (10⁹ bytes) of room for model states. What is the
# smallest number of GPUs for stage 1, 2 and 3? Write `"never"` if no number is enough.
#
# You are given 64 GPUs, and an update has 8 micro-batches. Take the lowest stage that fits. How many times as many bytes as
# plain data parallelism does it send in an update? And how many tokens must a GPU have in a micro-batch for the messages to hide, if it
# computes 400 TFLOP/s and sends 50 GB/s? Guess each number before you compute it.

# %% [raw] tags=["hints"]
# importance 3, difficulty 3
# A stage keeps 4, 2 or 0 of the 16 bytes whole. What room do they leave for the rest?
# Count halves of an all-reduce in an update of 8 micro-batches: 2, 2, 9 or 24.
# 6PT FLOP take as long as 3 · 2P bytes when T = F / β. The model's size cancels.

# %% tags=["exercise"]
fewest = [..., ..., ...]
times, tokens = ..., ...
### BEGIN SOLUTION
recipe = RECIPES["mixed-16"]
fewest = [
    zero_choice.fewest_ranks(32 * 10**9, stage, 68e9, recipe) or "never"
    for stage in (1, 2, 3)
]  # 128 > 68; 64 + 448/n; 512/n
times = 3 * 8 / 2  # stage 3, against the two halves of an all-reduce
tokens = 400e12 / 50e9
### END SOLUTION
check("8.2", [fewest, times, tokens])

# %% [markdown] tags=["exercise"]
# ### 8.4 Predict: which stage?
#
# Which stage would you take? Training is in bf16 with AdamW and a master copy (16 bytes per parameter), on GPUs of 80 GB (10⁹ bytes). Beside the model states there are activations, given in GB, and what each stage holds for a moment in
# the passes (the deeper part of section 8.2 has the table; in stage 1 take nothing, as in Megatron-LM). Leave 2 GB free for the framework and for buckets. Take the lowest stage that fits, 0 for plain DDP, or `"none"`. A model's parameters are
# `models.MODELS["llama2-7b"].parameters().total`, those of one layer `models.MODELS["llama2-7b"].layer_parameters(0).total`, those of norm and head `models.MODELS["llama2-7b"].head_parameters().total`.

# %% [raw] tags=["hints"]
# importance 3, difficulty 3
# Go up from stage 0 and stop at the first that fits: higher ones send more, or more often.
# zero.zero_stages has the states. For a moment: 2P, nothing, 2(2P_l + P_h), and in stage 3 whole weights, 2(2P_l + P_r), on top.

# %% tags=["exercise"]
stage = {
    "gpt2-1.5b on 8 GPUs, 30 GB": ...,
    "llama2-7b on 8 GPUs, 50 GB": ...,
    "llama2-7b on 8 GPUs, 58 GB": ...,
    "llama2-13b on 16 GPUs, 10 GB": ...,
    "llama1-33b on 32 GPUs, 20 GB": ...,
    "llama2-70b on 8 GPUs, 10 GB": ...,
}
### BEGIN SOLUTION
stage = {
    "gpt2-1.5b on 8 GPUs, 30 GB": 0,  # 24.9 + 3.1 + 30
    "llama2-7b on 8 GPUs, 50 GB": 2,  # 37.1 + 50; 25.3 + 1.1 + 50
    "llama2-7b on 8 GPUs, 58 GB": 3,  # 25.3 + 1.1 + 58; 13.5 + 2.4 + 58
    "llama2-13b on 16 GPUs, 10 GB": 1,  # 61.8 + 0 + 10
    "llama1-33b on 32 GPUs, 20 GB": 3,  # 79.3 + 2.6 + 20; 16.3 + 5.6 + 20
    "llama2-70b on 8 GPUs, 10 GB": "none",  # 138 in stage 3
}
### END SOLUTION
check("8.4", stage)

# %% [markdown] tags=["exercise"]
# ### 8.7 Predict: which measure first?
#
# Six runs have a problem each. Which measure would you try first: the cheapest one that removes the cause? A measure may fit several runs or none. Choose from
# `"stage 1"`, `"stage 2"`, `"stage 3"`, `"overlap the messages"`, `"larger micro-batches"`, `"recompute activations"` and `"offload the optimizer"`. All GPUs have 80 GB.

# %% [raw] tags=["hints"]
# importance 4, difficulty 3
# Ask each run: is it short of memory, or does it wait for messages? Memory for states, or for activations?
# A and B: compute 16, 4 + 12/n and 2 + 14/n bytes per parameter. With one GPU, ZeRO has no other rank to give a part to.
# Waiting: how often does the stage send in an update? When does it send? How many tokens are there to hide behind?

# %% tags=["exercise"]
first = {
    "A: 7B under DDP on 8 GPUs, out of memory in the first update": ...,
    "B: 13B, stage 2, 64 GPUs, 16 micro-batches, 30 GB free: waits for messages": ...,
    "C: 7B, stage 3, 64 GPUs, out of memory at the end of the forward pass": ...,
    "D: 13B on one GPU, 512 GB of host memory, out of memory in the first update": ...,
    "E: 70B, stage 3, 64 GPUs, 2,000 tokens each, 40 GB free: waits for messages": ...,
    "F: 7B, stage 1, one micro-batch: the network is idle until backward has ended": ...,
}
### BEGIN SOLUTION
first = {
    "A: 7B under DDP on 8 GPUs, out of memory in the first update": "stage 1",
    # 2 halves instead of 17; 54 GB of states instead of 29
    "B: 13B, stage 2, 64 GPUs, 16 micro-batches, 30 GB free: waits for messages": "stage 1",
    # 1.7 GB of states: the rest are activations, which no stage cuts
    "C: 7B, stage 3, 64 GPUs, out of memory at the end of the forward pass": "recompute activations",
    "D: 13B on one GPU, 512 GB of host memory, out of memory in the first update": "offload the optimizer",
    # F / β is 15,900 tokens, and there is room for more of them
    "E: 70B, stage 3, 64 GPUs, 2,000 tokens each, 40 GB free: waits for messages": "larger micro-batches",
    "F: 7B, stage 1, one micro-batch: the network is idle until backward has ended": "overlap the messages",
}
### END SOLUTION
check("8.7", first)
