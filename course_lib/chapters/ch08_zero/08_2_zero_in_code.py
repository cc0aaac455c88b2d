# %% [markdown]
# # 8 ZeRO 1, 2, 3
#
# You have eight GPUs with 80 GB each, 640 GB in all, and want to train LLaMA-2 7B. Weights, gradients and
# optimizer take 108 GB. You start DDP (chapter 7), and it dies in the first update: out of memory. The states
# would fit almost six times into your eight GPUs. Why do they not fit at all? And what does it cost to make them fit?
#
# By the end of this chapter you can
#
# - say which rank stores what under ZeRO 1, 2 and 3, and compute the bytes per GPU in your head,
# - say what each stage sends, compared with plain data parallelism, and explain why,
# - read a sharded optimizer of a hundred lines, and clip gradients with it correctly,
# - judge what moving the optimizer to the CPU costs,
# - write a DeepSpeed configuration and say what each key does when you leave it out.
#
# Time: two sittings, 80 minutes for sections 8.1 to 8.4 and 45 for 8.5 to 8.8. Exercises 8.1 to 8.10 take about an hour more, and
# building your own ZeRO (8.11) one to two. You need chapters 3, 6 and 7.

# %%
import torch

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
from course_lib.chapters.ch08_zero import figures
from course_lib.demos.shared.text import VOCAB, Windows
from course_lib.measure.peak import tensor_bytes
from course_lib.scratch.gpt import ledger
from course_lib.scratch.zero import clip, global_norm, own_norm
from course_lib.theory import (
    RECIPES,
    Job,
    Layout,
    Recipe,
    TransformerShape,
    collectives,
    hardware,
    models,
    units,
    zero,
)

launch.warm_up()
torch.set_num_threads(1)

# %% [markdown]
# **Predict.** Stage 3 stores on each of $n$ GPUs one $n$-th of everything. Weights that are needed must then come
# over the network. How many bytes does each GPU send, as a multiple of plain data parallelism? And how many GB of
# the 108 does a GPU keep in stage 1, which cuts the optimizer only?

# %%
factor = predict("8.stage3", "Sent in stage 3 / plain?", yours=None)
kept = predict("8.stage1", "GB per GPU in stage 1?", yours=None, unit="GB")

# %% [markdown]
# ## 8.1 What plain data parallelism stores n times
#
# Take the example of the ZeRO paper: 7.5 billion parameters, trained in fp16 with Adam. bf16 with AdamW takes the same bytes. From chapter 3:
#
# | | bytes per parameter | 7.5 billion |
# |---|---|---|
# | weights, bf16 | 2 | 15 GB |
# | gradients, bf16 | 2 | 15 GB |
# | optimizer: fp32 master copy and two fp32 numbers | 4 + 8 | 90 GB |
# | sum: the **model states** (模型状态) | 16 | **120 GB** |
#
# ("Adam takes twice the weights", says note 000. That is twice the *fp32* weights. Relative to bf16 weights its two numbers are
# four times as large, and with the master copy six times.)
#
# The model of the question above is a little smaller. Under plain data parallelism each GPU keeps all of its states;
# a fair share would be an eighth:

# %%
KINDS = "weights", "gradients", "optimizer"


def in_gb(bill):
    """The GB of model states that a GPU stores, by kind."""
    return {kind: getattr(bill, f"{kind}_bytes") / 1e9 for kind in KINDS}


# %%
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
# On 64 GPUs the example of the paper takes 7680 GB, of which 120 are different. Why so wasteful? Follow one update. Each rank computes gradients from its own samples: different work, nothing
# wasted. The all-reduce gives all ranks the *same* sum. Then each rank runs the *same* optimizer on the same
# gradient, the same states and the same weights, and gets the same new weights. From the all-reduce on,
# everything is done 64 times, and everything for it is stored 64 times.
#
# The way out: let each rank look after one 64th of the parameters. It needs only *their* optimizer states. When
# it has updated its part, it gives the new weights to the others. This is **ZeRO** (零冗余优化器), the Zero Redundancy
# Optimizer (Rajbhandari et al. 2020, arXiv:1910.02054), and the part is a **shard** (分片).
#
# ### What is not saved
#
# Note 000 says that ZeRO "reduces redundant computation". It removes redundant *storage*. The only computation that
# every rank repeated is the update, and ZeRO does share that out: a rank updates only the part whose states it
# has. But the update is tiny, about 15 operations per parameter. Forward and backward take 6 per parameter *and
# token* (chapter 5). With 4096 tokens on a GPU:

# %%
update, training = 15, 6 * 4096
print(f"the update is {update / training:.2%} of the training step")
assert update / training < 0.001

# %% [markdown]
# Each rank does all 6 per token under ZeRO as well, for its own samples and with whole layers. That is why ZeRO
# is data parallelism and not model parallelism, although it cuts the model's states.
#
# **Remember**
# - Plain data parallelism stores the same model states on each GPU, since each GPU does the same update.
# - ZeRO lets each rank update, and store, one $n$-th. It removes redundant storage; computation hardly changes.

# %% [markdown]
# ## 8.2 Three stages: who stores what
#
# $P$ is the number of parameters, $n$ the number of ranks. The optimizer has 12 bytes per parameter.
#
# **Stage 1** cuts the *optimizer* in $n$ shards. 15 + 15 + 90/64 = 31.4 GB:
#
# $$2P + 2P + \frac{12P}{n}$$
#
# An update, step by step: (1) forward and backward as usual, with all gradients. (2) A reduce-scatter (chapter 6):
# rank $r$ receives the sum over all ranks of *its* part of the gradient. (3) It updates its part of the fp32
# weights. (4) An all-gather: everybody gets everybody's new weights. Our version does the four one after the other. A library may begin (2) during the backward pass,
# as DDP does with its buckets, and end (4) during the next forward pass (section 8.3); what a rank stores is the same.
#
# **Stage 2** cuts the *gradients* as well. 15 + 105/64 = 16.6 GB:
#
# $$2P + \frac{2P + 12P}{n}$$
#
# The same steps, but earlier: as soon as the backward pass has finished a layer, the layer's gradient is reduced
# and scattered, and what belongs to other ranks is thrown away. The whole gradient of the model never exists.
#
# **Stage 3** cuts the *weights* as well. 120/64 = 1.9 GB:
#
# $$\frac{2P + 2P + 12P}{n} = \frac{16P}{n}$$
#
# Between its uses no rank has a whole layer. Before a layer's forward pass the ranks all-gather its weights, and
# after it each rank throws away what belongs to others. The layer's backward pass gathers the weights again,
# reduce-scatters the gradient and throws away all but its own parts. Step (4) is no longer needed, since the next
# forward pass gathers anyway. FSDP (chapter 9) is this stage.

# %%
example = zero.zero_stages(7_500_000_000, ranks=64, recipe=RECIPES["mixed-16"])
by_stage = {f"stage {bill.zero_stage}": in_gb(bill) for bill in example.bills}
title = "7.5 billion parameters, on each of 64 GPUs"
figures.stacked_bars(by_stage, title, "{:.1f} GB".format)

# %%
totals = [bill.total_bytes / 1e9 for bill in example.bills]
assert [round(size, 1) for size in totals] == [120.0, 31.4, 16.6, 1.9]

# %% [markdown]
# These are the four numbers of the paper's figure 1.
#
# ### One step, moment by moment
#
# Three layers of 600 million parameters each, 28.8 GB of model states, on four ranks. A column is a rank, a height is bytes. White is what a rank does not hold. Start with stage 2, walk through the step, and look at the gradients.
#
# **Predict.** At rest a rank holds 9.0 GB in stage 2: 3.6 of weights and a quarter of 21.6. How many GB does it hold at most during the step? A layer has 1.2 GB of gradients.

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
# **Explain.** $9.0 + 2 \cdot 0.3 + 1.2$: the layer at work has its whole gradient, and of the two before it the rank has kept its quarter. Now look at the other stages:
#
# 1. Stage 1: after which step is the most held, and how much? When does the first message leave?
# 2. Stage 3: how often is each layer gathered, and how long does it stay? What is the last step?
# 3. Stage 0 and stage 2: compare the bytes sent at the end.
#
# Answers. (1) After the backward pass, 12.6 GB: all gradients are whole, and in this version only then does anything leave. (2) Twice, once for each pass, and only while it is at work. The update is the last step: nothing has to be sent after it, since the next forward pass gathers. (3) Both 5.4 GB.
# In stage 0 all of it is gradients, in stage 2 half of it is new weights.
#
# ### More GPUs
#
# LLaMA-2 7B on 1 to 1024 GPUs, the four formulas as curves:

# %%
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
# With ever more GPUs stage 1 approaches $4P$, a quarter of what it was. Stage 2 approaches $2P$, an eighth. Only stage 3 goes on falling. The
# activations of chapter 4 are not in here: ZeRO does not touch them. Nor are the buffers: stage 3 holds the layer
# at work whole, and usually the next one.
#
# Move the controls:
#
# 1. LLaMA-2 7B on 8 GPUs with 80 GB: which is the lowest stage that fits? That answers the question at the top.
# 2. GPT-3 175B on 80 GB: is there a number of GPUs with which stage 2 fits? How many does stage 3 need?
# 3. The 7.5B model, stage 1, from 64 to 1024 GPUs: how much does each GPU save? Why so little?

# %%
from course_lib.chapters.ch08_zero import panels

panels.zero(model="llama2-7b", stage=0, ranks=8)

# %%
before, after = (
    panels.zero(model="zero-7.5b", stage=1, ranks=ranks).result.total_bytes
    for ranks in (64, 1024)
)
print(f"saved: {units.format_bytes(before - after)}")
assert after > 4 * 7_500_000_000

# %%
bills = zero.zero_stages(llama, 8, RECIPES["mixed-16"]).bills
expect(bills[1].total_bytes / 1e9, label="stage 1", unit="GB", yours=kept)
assert bills[1].total_bytes < 80e9 < bills[0].total_bytes

# %% [markdown]
# Answers. (1) Stage 1 is enough, and leaves 43 GB for activations. (2) None: stage 2 keeps the weights whole, and
# they alone are 349 GB. Stage 3 fits from 35 GPUs on, with 79.8 of 80 GB taken and no room to compute; on 64,
# the panel's next number, it takes 43.7 GB. (3) 1.3 of 31.4 GB. Weights and
# gradients stay whole in stage 1, and the cut part was already small.

# %%
gpt3 = models.MODELS["gpt3-175b"].parameters().total


def in_stage_3(ranks):
    """Bytes of GPT-3's model states on each of so many GPUs."""
    return zero.zero_stages(gpt3, ranks, RECIPES["mixed-16"]).bills[3].total_bytes


print([f"{ranks} GPUs: {in_stage_3(ranks) / 1e9:.1f} GB" for ranks in (34, 35, 64)])
assert in_stage_3(35) <= 80e9 < in_stage_3(34)

# %% [markdown]
# ### Stored, and there for a moment
#
# Answer (1) once more: are the 43 GB for activations alone? In stage 1 that depends on the library. The other stages hold more during the
# passes than they store:
#
# | stage | for a moment | formula |
# |---|---|---|
# | 0 | DDP's buckets, a second copy of the gradients (chapter 7) | $2P$ |
# | 1 | nothing, if all gradients lie in one vector and messages leave from there, as in Megatron-LM | $0$ |
# | 2 | a layer's gradients, a copy of them on their way, and the head's gradient | $2\,(2P_l + P_h)$ |
# | 3 | the same, and whole weights of two layers and of what is outside the layers | $2\,(2P_l + P_h) + 2\,(2P_l + P_r)$ |
#
# $P_l$ are the parameters of a layer, $P_r$ those outside the layers, $P_h$ those of the last norm and the head. The head goes backward first, and its gradient is reduced with the embedding's, which
# comes last. These bytes do not shrink with $n$. (With a large vocabulary the end of the backward pass holds still more: section 9.2.)
#
# Few libraries reach the 0 of stage 1. Ours copies the gradients of each unit into one vector during the update (section 8.8 shows it). DeepSpeed keeps buckets of fixed size, 1 GB in bf16 by default
# (section 8.7). So leave a few GB free, for this and for the framework itself.
#
# The update holds something, too. DeepSpeed copies the gradients that a rank updates with to fp32: $4P$ bytes in stage 0,
# $4P/n$ from stage 1 on (the recipe's `update="copied"`). LLaMA-2 7B on 8 GPUs:

# %%
from course_lib.theory.memory.peak import memory_moments

beside = {}
for stage in zero.STAGES:
    job = Job(
        models.MODELS["llama2-7b"],
        Recipe(update="copied", recompute="full"),
        Layout(dp=8, zero_stage=stage),
    )
    moments = memory_moments(job)
    in_layers, at_update = moments["backward begins"], moments["update"]
    in_passes = in_layers.gathered_gradients_bytes + in_layers.gathered_parameters_bytes
    beside[f"stage {stage}"] = {
        "in the passes": (in_layers.bucket_bytes + in_passes) / 1e9,
        "in the update": at_update.update_bytes / 1e9,
    }
looks = {"in the passes": style.COMPUTING, "in the update": style.UPDATE}
figures.grouped_bars(
    beside, "Beside states and activations, for a moment", "{:.1f} GB".format, looks
)

# %%
passes = [round(held["in the passes"], 1) for held in beside.values()]
assert passes == [13.5, 0, 1.1, 2.4]

# %% [markdown]
# These two peaks do not coincide: when the update begins, activations and gathered layers have gone. So the update's bytes use the
# room that activations have left.
#
# **Remember**
# - Whoever owns a part sums its gradient, keeps its optimizer states and updates it.
# - Stage 1 keeps whole gradients until the update, as DDP does. Stage 2 lets go of gradients during backward, stage 3 of weights after each layer.
# - 16 bytes per parameter become $4 + 12/n$, $2 + 14/n$, $16/n$: at most a factor of 4, of 8, and of $n$.
# - Take the lowest stage that fits, with what it holds for a moment.

# %% [markdown]
# ## 8.3 What it costs in messages
#
# From chapter 6: an all-reduce *is* a reduce-scatter followed by an all-gather, and each of the halves lets a
# rank send $(n-1)/n$ of the tensor on a ring. Let $W$ be the bytes of all weights in bf16, 15 GB in the example; the
# gradients are as large. Write $q = (n-1)/n$, which is nearly 1 for many ranks. Then each box below is $qW$, 14.8 GB on 64 GPUs:

# %%
G, W = "gradients", "weights"
figures.halves(
    {"plain": [G, G], "stage 1": [G, W], "stage 2": [G, W], "stage 3": [W, W, G]},
    "An update with one micro-batch",
)

# %% [markdown]
# So stages 1 and 2 cost nothing extra. The second half of the all-reduce gives everybody the summed *gradients*,
# from which everybody computes the same weights. ZeRO updates between the two halves, and the second half carries
# the new *weights* instead. Same size, same bytes. Stage 3 needs the weights once more, for the backward pass:
# 1.5 times (the paper's section 7).

# %%
sent = [round(bill.sent_bytes / 1e9, 1) for bill in example.bills]
assert sent == [29.5, 29.5, 29.5, 44.3]
print(f"over 50 GB/s: {29.5 / 50:.2f} s and {44.3 / 50:.2f} s")

# %% [markdown]
# 50 GB/s is what one GPU can send over a 400 Gb/s network. Much of this time hides behind the computation, if the
# library sends while it computes (chapters 7 and 9).
#
# ### Two conditions
#
# *Gradients as large as weights.* Megatron-LM keeps gradients in fp32. Then plain data parallelism sends $2 \cdot
# 4P$, and stage 1 sends $4P + 2P$: even less.
#
# *One micro-batch per update.* With accumulation (chapter 2) over $m$ micro-batches, plain data parallelism and
# stage 1 wait with `no_sync` and send once. Stage 2 cannot wait: it does not keep the whole gradient, so it
# reduces every micro-batch, $m + 1$ halves. Stage 3 gathers twice and reduces once for each: $3m$. Four
# micro-batches, in the order in which they are sent:

# %%
figures.halves(
    {
        "plain": [G, G],
        "stage 1": [G, W],
        "stage 2": [G, G, G, G, W],
        "stage 3": 4 * [W, W, G],
    },
    "An update with four micro-batches",
)

# %%
recipe = RECIPES["mixed-16"]
once = zero.sent_bytes(7_500_000_000, 0, 64, recipe) / 2
sent = [
    zero.sent_bytes(7_500_000_000, stage, 64, recipe, accumulation=4) / once
    for stage in zero.STAGES
]
assert [round(count) for count in sent] == [2, 2, 5, 12]

# %% [markdown]
# 2, 2, 5, 12. Whoever quotes "1×, 1×, 1.5×" means $m = 1$.
#
# ### Which stage? The number that decides
#
# Suppose that activations, and all that a step holds for a moment, leave 60 of a GPU's 80 GB to the model states. How
# large a model does each stage train?

# %%
from course_lib.chapters.ch08_zero.zero_choice import fewest_ranks, most_parameters

ROOM = 60e9
largest = {
    f"stage {stage}": {
        f"on {ranks} GPUs": most_parameters(stage, ranks, ROOM, recipe)
        for ranks in (8, 64)
    }
    for stage in zero.STAGES
}
looks = {"on 8 GPUs": style.SKY, "on 64 GPUs": style.BLUE}
figures.grouped_bars(
    largest, "Largest model", lambda count: f"{count / 1e9:.1f} billion", looks
)

# %% [markdown]
# And how few GPUs does a given model need, and what does it send for that? (LLaMA-2; halves of an all-reduce in an update
# of $m$ micro-batches. The last column says behind what the halves can hide: F is a forward pass, B a backward pass.)
#
# | stage | bytes per parameter | 7B | 13B | 70B | halves | $m = 8$ | can hide behind |
# |---|---|---|---|---|---|---|---|
# | 0 | $16$ | never | never | never | $2$ | 2 | both behind the last B |
# | 1 | $4 + 12/n$ | 3 GPUs | 20 GPUs | never | $2$ | 2 | gradients behind the last B, weights behind the next F |
# | 2 | $2 + 14/n$ | 3 | 6 | never | $m + 1$ | 9 | gradients behind each B, weights behind the next F |
# | 3 | $16/n$ | 2 | 4 | 19 | $3m$ | 24 | weights behind each F and B, gradients behind each B |

# %%
sizes = [
    models.MODELS[f"llama2-{size}"].parameters().total for size in ("7b", "13b", "70b")
]
fewest = [
    [fewest_ranks(size, stage, ROOM, recipe) for size in sizes] for stage in zero.STAGES
]
assert fewest == [[None] * 3, [3, 20, None], [3, 6, None], [2, 4, 19]]
eight = [
    zero.sent_bytes(7_500_000_000, stage, 64, recipe, accumulation=8) / once
    for stage in zero.STAGES
]
assert [round(count) for count in eight] == [2, 2, 9, 24]

# %% [markdown]
# - **Stage 1 rather than 0:** yes, if each number can be updated by itself, as with Adam, and if the library hides the messages. Less is stored and nothing more is sent. But *when* is it sent? DDP hides its messages behind the backward
#   pass: of the 37 ms in chapter 7's first example, 17.8 are exposed. Our stage 1 sends after the backward pass and exposes all 37, so it would lose. Megatron-LM's distributed optimizer does better: it reduces and
#   scatters layer by layer in the backward pass, and gathers weights during the next forward pass (`overlap_grad_reduce` and `overlap_param_gather`; docs.nvidia.com/nemo/megatron-bridge, *Communication Overlap*).
# - **Stage 2 rather than 1:** only where stage 1 does not fit. It saves at most 2 bytes per parameter, and the number that decides is
#   $m$: it sends $(m+1)/2$ times as much. A pipeline (chapter 11) with $m = 32$ would send 16.5 times as much, so pipelines
#   take stage 1.
# - **Stage 3 rather than 2:** only where stage 2 does not fit. Its messages can hide if a micro-batch has enough tokens: with
#   $T$ of them a GPU computes $6PT$ FLOP at $F$ a second and sends $3 \cdot 2P$ bytes at $\beta$ a second. Both take equally long at
#   $T = F/\beta$. The model's size cancels, as in section 7.4.

# %%
from course_lib.theory.network.bucket_timeline import ddp_timeline, model_gradients

gpt2, a100 = models.MODELS["gpt2-124m"], hardware.accelerator("A100-SXM-80GB")
ready, cap = model_gradients(gpt2, a100, tokens=16384), 25 * units.MIB
ddp = ddp_timeline(ready, 8, hardware.HDR, cap_bytes=cap, first_bytes=cap)
sent_ms, exposed_ms = 1000 * ddp.communication_s, 1000 * ddp.exposed_s
print(f"{sent_ms:.0f} ms of messages, {exposed_ms:.1f} exposed under DDP")
assert (round(sent_ms), round(exposed_ms, 1)) == (37, 17.8)

# %%
h100 = hardware.accelerator("H100-SXM")
speed = h100.peak_flop_per_s * h100.matmul_efficiency
for link in (hardware.NDR, h100.inside):
    print(f"{link.bytes_per_s / 1e9:.0f} GB/s: {speed / link.bytes_per_s:,.0f} tokens")
assert round(speed / hardware.NDR.bytes_per_s, -2) == 15_900

# %% [markdown]
# Large matrix products reach 80 % of an H100's peak, so $F$ is 795 TFLOP/s here. That makes 15,900 tokens per GPU and
# micro-batch over a 400 Gb/s network, and 1,800 over NVLink.
#
# **Remember**
# - All-reduce = reduce-scatter + all-gather. ZeRO 1 and 2 put the update between the halves: no extra bytes.
# - Stage 3 gathers the weights once more: 1.5 times.
# - With accumulation stages 2 and 3 send in every micro-batch.
# - Take stage 1 where its messages overlap, 2 if 1 does not fit, 3 if 2 does not fit. Stage 3 hides behind about $F/\beta$ tokens a micro-batch.

# %% [markdown]
# ## 8.4 From scratch
#
# ### One vector, and its padding
#
# To cut 30 tensors over 4 ranks one by one would be tedious: few sizes divide by 4. So all tensors of a layer are
# laid end to end, as one flat vector, and the vector is cut. Zeros fill it up to a multiple of $n$. 10 numbers over 4 ranks: 3 for each, and 2 zeros at the end.

# %%
show_source(scratch.zero.flatten)

# %%
tensors = [torch.arange(1.0, 7).view(2, 3), torch.arange(7.0, 11)]
vector = scratch.zero.flatten(tensors, ranks=4)  # (12,)
assert vector.tolist() == [*range(1, 11), 0, 0]
assert [zero.shard(10, 4, rank).zeros for rank in range(4)] == [0, 0, 0, 2]

# %% [markdown]
# With their tensors, and one colour for each part:

# %%
figures.cut_unit({"matrix": 6, "bias": 4}, ranks=4)

# %% [markdown]
# The zeros never matter: their gradient is zero, and nobody reads them. They cost at most $n - 1$ elements per
# vector.
#
# Exercise 8.11 builds what follows in checked steps: a unit, stage 1, clipping, stage 2. If you want to write it before you see ours, do
# that now; `course demo zero --parts mine` trains with it.
#
# ### A unit
#
# A **unit** (单元) is such a vector: one for each layer, and one for all that is outside the layers, such as the
# embedding.

# %%
show_source(scratch.zero.Unit.__init__, scratch.zero.Unit.part)

# %% [markdown]
# - `whole` is the flat vector. The parameters become views of it: they are the same memory. Whoever fills `whole`
#   changes the model.
# - `own` is this rank's part of it, also a view.
# - `master` is what the optimizer sees: the fp32 copy of the part. If the model is in fp32 it is the part itself.
# - `place` says where the optimizer works; section 8.6 uses it.
#
# Chapter 9's flat parameter is this vector again, padded and cut in the same places. But it knows its tensors only by
# name and shape, so that a model that was never whole in memory can be cut as well.

# %%
show_source(scratch.zero.Unit.reduce, scratch.zero.Unit.publish)

# %% [markdown]
# `reduce` is step (2) of section 8.2. It lays the gradients end to end in the same order, reduces and scatters, keeps the
# own part, and sets `.grad` to None: the rest is gone. `publish` is its step (4).
#
# ### The trainer

# %%
show_source(scratch.zero.Zero)

# %% [markdown]
# Stage 0 is the same code with vectors that are cut into one part. The optimizer gets the parts and knows nothing
# of ranks: Adam treats each number by itself, so it may run on any part of the vector. (Optimizers that look at a
# whole matrix, such as Muon or Shampoo, can't be cut like this.)
#
# `_arrived` is all that makes stage 2 of stage 1. It is a hook, and calls the same `reduce` as soon as the last
# gradient of a layer is there. The layers take turns in one order, the same on all ranks, and whatever gradient
# has not come when the backward pass ends counts as zero. Why so strict? A rank may skip a parameter in one of
# its micro-batches. If each rank reduced whatever happened to be complete, one rank's layer 1 would be added to
# another rank's layer 2.
#
# ### What a flat vector gives up
#
# **Groups of parameters.** An optimizer with two groups, such as one that decays only some weights, cannot tell them
# apart in a vector, so `Zero` refuses it. The end of this section shows a way out.
#
# **Frozen weights.** AdamW's decay shrinks every number that it is given, with or without a gradient. So `units_of`
# leaves frozen parameters out, and they stay whole on each rank.
#
# **Digits.** Gradients travel and add up in the precision of the weights. In bf16 that is a bad habit. Add 1 a
# thousand times:

# %%
sums = {}
for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
    total = torch.zeros((), dtype=dtype)
    sums[name] = [(0, 0.0)]
    for number in range(1, 1001):
        total += 1
        sums[name].append((number, total.item()))
assert sums["bf16"][-1] == (1000, 256) and sums["fp32"][-1] == (1000, 1000)
figures.lines(sums, "ones added", "the sum so far", "1 + 1 + 1 + …")

# %% [markdown]
# bf16 has 8 significant bits, so there is no 257: 256 + 1 is rounded back to 256, and the other 744 ones are lost. With
# many ranks or micro-batches, add up in fp32. Megatron-LM keeps its gradients in fp32 for this reason, at 18 bytes
# per parameter instead of 16, and FSDP can reduce in fp32 (section 9.4).
#
# ### Stage 3

# %%
show_source(scratch.zero.ShardedUnit)

# %% [markdown]
# `own` is now a copy, and `whole` comes and goes. The tensor object stays, because parameters and autograd point
# to it; only the memory behind it is released (`resize_(0)`) and asked for again. Hooks call `gather` and `free`:

# %%
show_source(scratch.zero.Zero3.__init__)

# %% [markdown]
# For each layer: gather before forward, free after it; gather before backward; `reduce` frees after it. The unit
# outside the layers is gathered once and stays until the end of backward, since it is used at both ends.
#
# ### Predict, measure, explain
#
# A GPT with 110,336 parameters in fp32 on two ranks. In fp32 there is no master copy: 4 + 4 + 8 bytes per
# parameter. What does stage 2 leave on each rank?

# %%
from functools import partial

text, tokens = Windows(sequence=32), 8 * 32
adam = partial(torch.optim.AdamW, lr=3e-3)
gpt_shape = TransformerShape(
    layers=2, hidden=64, heads=4, ffn=256, vocab=VOCAB, context=32
)
count, fp32 = gpt_shape.parameters().total, RECIPES["fp32-16"]
small = zero.zero_stages(count, ranks=2, recipe=fp32)

# %%
stored_2 = predict("8.stored", "Bytes in stage 2?", yours=None, unit="B")

# %% [markdown]
# Each rank builds the same model:


# %%
def new_gpt():
    """The small GPT, with the same weights on every rank."""
    torch.manual_seed(0)
    return scratch.gpt.GPT(layers=2, hidden=64, heads=4, vocab=VOCAB, context=32)


def build(stage, place=None):
    """The GPT, and what trains it under one stage."""
    gpt = new_gpt()
    if stage == 3:
        return gpt, scratch.zero.Zero3(gpt, gpt.blocks, adam, place)
    return gpt, scratch.zero.Zero(gpt, gpt.blocks, adam, stage, place)


# %% [markdown]
# Of each batch of 8 samples a rank takes its own, and divides by the tokens of *all* ranks, so that the sum over
# ranks is the mean:


# %%
def backward(gpt, number):
    """Backward pass of this rank's rows of batch `number`; its share of the mean loss."""
    rank = launch.init()
    rows = range(8 * number + rank.rank, 8 * number + 8, rank.world)
    inputs, labels = text.batch(rows)
    loss = scratch.accumulation.loss_sum(gpt(inputs), labels) / tokens
    loss.backward()
    return loss.item()


# %% [markdown]
# The bytes are counted between backward pass and step, when everything is there. `tensor_bytes` counts each
# memory once, so views cost nothing; the ledger of chapter 3 counts the optimizer's states:


# %%
from course_lib.measure.peak import tensor_bytes
from course_lib.scratch.gpt import ledger


def stored(gpt, trainer):
    """Bytes of this rank's weights, gradients and optimizer states."""
    parts = trainer.units.values()
    weights = [tensor for part in parts for tensor in (part.whole, part.own)]
    gradients = [p.grad for p in gpt.parameters() if p.grad is not None]
    gradients += [part.gradient for part in parts if part.gradient is not None]
    states = ledger(gpt, trainer.optimizer)["optimizer"]
    return [tensor_bytes(weights), tensor_bytes(gradients), states]


# %%
def train(stage, updates=4):
    """Losses of all updates; bytes stored and collectives of the last one."""
    gpt, trainer = build(stage)
    losses = []
    for number in range(updates):
        with measure.wire.log_wire() as log:
            losses.append(backward(gpt, number))
            found = stored(gpt, trainer)
            trainer.step()
    return losses, found, log.sent()


# %%
runs = [launch.run(train, stage, ranks=2, stream=False) for stage in zero.STAGES]

# %%
in_2 = small.bills[2].total_bytes
expect(in_2, sum(runs[2][0][1]), label="stored in stage 2", unit="B", yours=stored_2)
for bill, run in zip(small.bills, runs, strict=True):
    predicted = [bill.weights_bytes, bill.gradients_bytes, bill.optimizer_bytes]
    assert all(found == predicted for _, found, _ in run)

# %%
for stage, run in enumerate(runs):
    _, found, sent = run[0]
    print(f"stage {stage}: {found} = {sum(found):,} B\n  {sent}")

# %% [markdown]
# **Explain.** 441,344 is 4 bytes for each parameter. Every number is as predicted, to the byte, on both ranks, in
# all stages. The gap is zero because these are counts of tensors; a GPU's allocator would add its rounding and
# its unused gaps (chapter 3).
#
# The second line of each stage has calls and bytes: three units (two layers and the rest) are three calls. Stage
# 3 has five all-gathers: each layer twice, the rest once.
#
# Is it still the same training? The losses of both ranks add up to the mean loss:

# %%
curves = []
for run in runs:
    first, second = (losses for losses, _, _ in run)
    curves.append([a + b for a, b in zip(first, second, strict=True)])
print([f"{loss:.4f}" for loss in curves[0]])

# %%
torch.testing.assert_close(curves[1:], 3 * [curves[0]], rtol=1e-5, atol=0)

# %% [markdown]
# The same in all stages. With more ranks the sums have more terms, in another order in each stage, and the last
# digits differ by some $10^{-7}$.
#
# And the volume? The log has the calls and the bytes of the whole tensors; the theory of chapter 6 says what a
# rank sends for each.


# %%
def sent_by_a_rank(sent, ranks=2):
    """Bytes that one rank sends for the collectives of a log."""
    return sum(
        collectives.sent_bytes(operation, size, ranks)
        for operation, (_, size) in sent.items()
    )


# %%
measured = [sent_by_a_rank(run[0][2]) for run in runs]
for bill, found in zip(small.bills[:3], measured, strict=False):
    assert found == bill.sent_bytes == measured[0]
expect(
    1.5, measured[3] / measured[0], within=0.04, label="stage 3 / plain", yours=factor
)

# %% [markdown]
# **Explain.** Stages 1 and 2 send exactly what plain data parallelism sends. Stage 3 sends 1.45 times, not 1.5.
# The cause is the unit outside the layers, with embedding and head: it is gathered once and kept. Its 10,368
# parameters are 9.4 % of this small model, and of the three halves they need only two. To the byte:

# %%
embedding = gpt_shape.embedding_parameters().total + gpt_shape.head_parameters().norms
saved = collectives.sent_bytes("all-gather", 4 * embedding, 2)
assert measured[3] == small.bills[3].sent_bytes - saved
print(f"{embedding:,} parameters outside the layers")

# %% [markdown]
# ### Weight decay for some weights only
#
# Most recipes decay matrices, but neither norms nor biases, by two groups of parameters. One vector has them all. Three ways out:
#
# - **A vector for each group**, padded and cut separately: DeepSpeed does this (its `stage_1_and_2.py`).
# - **Each tensor cut separately:** FSDP2 in chapter 9.
# - **The decay cut like the weights.** It shrinks each number by itself, $w \leftarrow w \, (1 - \text{learning rate} \cdot
#   \lambda)$. So a vector of marks, 1 where an element decays, can be padded and cut in the same places:

# %%
show_source(scratch.zero.marks, scratch.zero.decay)

# %% [markdown]
# Four updates in stage 2 on two ranks, with $\lambda = 0.1$: once by marks, once with a decay of everything. Against one process with two
# groups:


# %%
RATE, DECAY = 3e-3, 0.1
EPS = 1e-5  # AdamW's 1e-8 would enlarge the rounding of gradients that are nearly 0


def with_zero(marked):
    """All weights after four updates, matrices decayed by marks, or everything."""
    gpt = new_gpt()
    everywhere = 0.0 if marked else DECAY
    adamw = partial(torch.optim.AdamW, lr=RATE, eps=EPS, weight_decay=everywhere)
    trainer = scratch.zero.Zero(gpt, gpt.blocks, adamw, stage=2)
    for number in range(4):
        backward(gpt, number)
        if marked:
            scratch.zero.decay(trainer, RATE * DECAY)
        trainer.step()
    return torch.nn.utils.parameters_to_vector(gpt.parameters()).detach()


def with_groups():
    """The same in one process, by two groups."""
    gpt = new_gpt()
    matrices = [p for p in gpt.parameters() if p.ndim > 1]
    others = [p for p in gpt.parameters() if p.ndim == 1]
    groups = [
        {"params": matrices, "weight_decay": DECAY},
        {"params": others, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATE, eps=EPS)
    for number in range(4):
        backward(gpt, number)
        optimizer.step()
        optimizer.zero_grad()
    return torch.nn.utils.parameters_to_vector(gpt.parameters()).detach()


# %%
right = launch.run(with_groups, ranks=1, stream=False)[0]
off = {}
for how, marked in {"by marks": True, "everything": False}.items():
    found = launch.run(with_zero, marked, ranks=2, stream=False)[0]
    off[how] = measure.gradients.relative_difference(found, right)
print({how: f"{difference:.0e}" for how, difference in off.items()})
assert off["by marks"] < 1e-5 < 1e-4 < off["everything"]

# %% [markdown]
# By marks only rounding is left; with a decay of everything the weights are off by $8 \cdot 10^{-4}$ after four updates. The same trick works for whatever acts on each number separately, such as a
# learning rate for each layer.

# %% [markdown]
# **Remember**
# - All tensors of a unit are one vector, padded to a multiple of $n$ and cut.
# - Stage 2 is stage 1 with the reduction in a hook. Stage 3 adds gather and free around each layer.
# - Bytes stored and bytes sent can be predicted exactly; the training stays the same.

# %% [markdown]
# ## 8.5 Clipping when nobody has the whole gradient
#
# Clipping scales the gradient down when its norm (范数) is above a limit. Let a gradient be (3, 4), with limit 1.
# Its norm is $\sqrt{9 + 16} = 5$, so it becomes (0.6, 0.8). Now rank 0 has the 3 and rank 1 the 4. Each finds
# *its* norm above 1, divides by it, and both keep 1: the gradient is (1, 1). Its norm is $\sqrt 2$, and it points
# elsewhere.

# %%
figures.clipped((3, 4), limit=1, right=(3 / 5, 4 / 5), wrong=(1, 1))

# %% [markdown]
# The remedy: a norm's *square* is a sum, so it can be summed over ranks. One all-reduce of one number:
#
# $$\lVert g \rVert = \sqrt{\sum_{r=0}^{n-1} \lVert g_r \rVert^2},$$
#
# with $g_r$ the part of rank $r$.

# %%
show_source(scratch.zero.own_norm, scratch.zero.global_norm, clip)

# %% [markdown]
# **Predict.** *Four* ranks, a limit of 0.05, and parts of the gradient that are all far longer. If each rank wrongly divides
# by its own norm, how long is the whole gradient *after* clipping?

# %%
too_long = predict("8.clip_4", "Norm after wrong clipping?", yours=None)


# %%
def clipped(norm):
    """The norm that this rank found, and that of the whole gradient after clipping."""
    gpt, trainer = build(stage=2)
    backward(gpt, 0)
    found = clip(trainer, 0.05, norm)
    return float(found), float(global_norm(trainer))


# %%
right = launch.run(clipped, global_norm, ranks=4, stream=False)
wrong = launch.run(clipped, own_norm, ranks=4, stream=False)
divisors = {
    f"rank {rank}": {"global norm": right[rank][0], "own norm": wrong[rank][0]}
    for rank in range(4)
}
looks = {"global norm": style.GREEN, "own norm": style.WARNING}
title = "The norm that each rank finds"
figures.grouped_bars(divisors, title, "{:.2f}".format, looks)

# %%
expect(0.05, right[0][1], within=1e-3, label="after clipping by the global norm")
expect(
    0.05 * 4**0.5,
    wrong[0][1],
    within=1e-3,
    label="after clipping by the own norm",
    yours=too_long,
)
assert wrong[0][0] != wrong[1][0]

# %% [markdown]
# **Explain.** The ranks found different norms, and each brought its own part to 0.05. Together that is $\sqrt{4
# \cdot 0.05^2}$ = 0.1. On 64 ranks it would be 8 times the limit. (The gap, less than $10^{-6}$, comes from the
# $10^{-6}$ that the code adds to norms of 1 to 3 before it divides.) Nothing crashes, and the loss curve looks
# plausible: this is a mistake that only a comparison with one process shows. `torch.nn.utils.clip_grad_norm_`,
# called on a rank's shards, makes exactly this mistake. Section 9.6 shows the one case in which it does not:
# shards that are DTensors and know of the other ranks.
#
# **Remember**
# - Norms of shards: sum the squares over ranks, then take the root.
# - Whatever looks at the whole gradient needs a collective: norms, and also the check for infinities in fp16.

# %% [markdown]
# ## 8.6 Offload to the CPU
#
# The optimizer's 12 of 16 bytes are touched once per update. They could lie in the host's memory, which is larger
# and cheaper. This is **offloading** (卸载). The idea is older than ZeRO: GeePS (Cui et al. 2016,
# doi:10.1145/2901318.2901323) keeps parameters and intermediate results that are not needed soon in the CPU's
# memory and fetches them in time. ZeRO-Offload (Ren et al. 2021, arXiv:2101.06840) moves just the optimizer, and
# updates on the CPU: gradients go there, new weights come back, and the 12 bytes stay.
#
# The price is the traffic between them, over PCIe. The example on *one* GPU, PCIe 4 with 31.5 GB/s each way: 15 GB of
# gradients take 0.48 s, 15 GB of weights as long.

# %%
away = Recipe(offload="optimizer")
by_ranks, on_bus = {}, {}
for ranks in (1, 8, 64):
    bill = zero.zero_stages(7_500_000_000, ranks, away).bills[2]
    name = f"{ranks} GPU" + "s" * (ranks > 1)
    by_ranks[name] = {
        "weights": bill.weights_bytes,
        "gradients": bill.gradients_bytes,
        "optimizer, on the host": bill.host_bytes,
    }
    on_bus[name] = f"{bill.bus_seconds():.3f} s on the bus"
title = "One GPU of ZeRO 2, and what lies on the host for it"
figures.stacked_bars(by_ranks, title, units.format_bytes, on_bus)

# %%
one = zero.zero_stages(7_500_000_000, 1, away).bills[2]
assert one.bus_bytes == 4 * 7_500_000_000
assert round(one.bus_seconds(), 2) == 0.95

# %% [markdown]
# As a time line, for 4096 tokens at 150 TFLOP/s on the GPU and 200 GB/s of the host's memory, with nothing hidden:

# %%
computing_s = 6 * 7.5e9 * 4096 / 150e12
bus_s, update_s = one.bus_seconds() / 2, 28 * 7.5e9 / 200e9
starts = [0, computing_s, computing_s + bus_s, computing_s + bus_s + update_s]
figures.lanes(
    {
        "GPU": [("computing", 0, starts[1])],
        "PCIe": [
            ("copying", starts[1], starts[2]),
            ("copying", starts[3], starts[3] + bus_s),
        ],
        "host": [("updating", starts[2], starts[3])],
    },
    "One update of 7.5 billion parameters on one GPU, optimizer on the host",
)

# %% [markdown]
# The bus takes 0.95 s in each update. The update itself runs at the speed of the host's memory: it reads and writes master copy and
# states, reads a gradient and writes a weight, about 28 bytes per parameter. At an assumed 200 GB/s that is
# another 1.05 s. Against computing: 4096 tokens are $6 \cdot 7.5 \cdot 10^9 \cdot 4096$ = 184 TFLOP, or
# 1.2 s at 150 TFLOP/s. With ten micro-batches per update, bus and host together take 14 % of the step, half of it the bus. So offloading pays off with
# large batches. With ZeRO each GPU sends only its own part over its own PCIe slot: 64 GPUs need 15 ms.

# %%
away_s = one.bus_seconds() + update_s
assert round(away_s / (10 * computing_s + away_s), 2) == 0.14

# %% [markdown]
# Our count has the gradients on the GPU; ZeRO-Offload sends each away as soon as
# it is there, so that little more than 2 bytes per parameter remain. That is how 13 billion parameters (26 GB)
# fit a single V100 with 32 GB.
#
# ### The same, counted
#
# `Host` makes the copies and counts them. On a machine without a GPU there is no bus to time; the bytes are the
# same.

# %%
show_source(scratch.zero.Host)

# %% [markdown]
# **Predict.** The small GPT, stage 2, two ranks: bytes to the host in one update?

# %%
to_host = predict("8.offload", "Bytes to the host?", yours=None, unit="B")


# %%
def moved():
    """Bytes to the host and back in the second update."""
    host = scratch.zero.Host()
    gpt, trainer = build(2, host)
    for number in range(2):
        before = host.put_bytes, host.fetched_bytes
        backward(gpt, number)
        trainer.step()
    return host.put_bytes - before[0], host.fetched_bytes - before[1]


# %%
from dataclasses import replace

there, back = launch.run(moved, ranks=2, stream=False)[0]
expect(4 * count // 2, there, label="to the host", unit="B", yours=to_host)
away = replace(fp32, offload="optimizer")
assert there + back == zero.zero_stages(count, 2, away).bills[2].bus_bytes

# %% [markdown]
# **Remember**
# - Offload moves 12 of 16 bytes to the host, for 2 bytes of gradient and 2 of weight over the bus per parameter
#   and update.
# - It pays with large batches, and with ZeRO, where each GPU moves only its part.

# %% [markdown]
# ## 8.7 Libraries
#
# ### PyTorch: ZeroRedundancyOptimizer
#
# Stage 1, beside DDP. Two lines do it:
#
# ```python
# model = DistributedDataParallel(model)
# optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=3e-3)
# ```
#
# It shards by a simpler rule: a *whole tensor* belongs to one rank; the largest first, each to the rank that has
# least so far. So the parts are not quite equal. And it leaves DDP's all-reduce as it is, after which each rank
# broadcasts its new weights. So the gradients are gathered by everybody, and then the weights as well. (DDP
# averages over ranks where ours sums; here only bytes are compared, the demo compares losses.)


# %%
def with_the_library():
    """Bytes of optimizer states on this rank, and the collectives of one update."""
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    gpt = DistributedDataParallel(new_gpt())
    optimizer = ZeroRedundancyOptimizer(gpt.parameters(), torch.optim.AdamW, lr=3e-3)
    with measure.wire.log_wire() as log:
        backward(gpt, 0)
        optimizer.step()
    return ledger(gpt, optimizer.optim)["optimizer"], log.sent()


# %%
library = launch.run(with_the_library, ranks=2, stream=False)
for states, sent in library:
    print(states, sent)

# %%
(first, calls), (second, _) = library
assert first + second == 8 * count
assert first != second
reduced, published = calls["all-reduce"][1], calls["broadcast"][1]
assert reduced == published == 4 * count

# %% [markdown]
# **Explain.** 442,368 and 440,320 bytes: 0.5 % of difference, since no tensor is cut. There are 28 broadcasts,
# one for each tensor (`parameters_as_bucket_view=True` packs them into one for each rank).
#
# And the volume? A broadcast goes through a chain of ranks, and all but the last one pass it on. $n$ ranks broadcast
# $W/n$ each, so a rank sends $qW$ for all of them, as in an all-gather. That is a third half:

# %%
figures.halves(
    {"DDP": [G, G], "stage 1": [G, W], "library": [G, G, W]},
    "ZeroRedundancyOptimizer (library) beside the paper's stage 1",
)

# %% [markdown]
# It saves the memory, and costs messages.
#
# ### DeepSpeed
#
# **DeepSpeed** is the library of ZeRO's authors, for all three stages and offload. One call,
# `deepspeed.initialize(model=…, config=…)`, wraps the model; everything is decided by a configuration:

# %%
import json

from course_lib.demos.shared import deepspeed_config as deepspeed

config = deepspeed.deepspeed_config(
    stage=2, micro_batch=4, accumulation=8, ranks=2, offload=True
)
print(json.dumps(config, indent=2))

# %% [markdown]
# | key | what it does | if you leave it out (DeepSpeed 0.19.8) |
# |---|---|---|
# | `train_batch_size` | global batch of chapter 1: must be micro-batch × accumulation × ranks, or DeepSpeed refuses | computed from the other two |
# | `train_micro_batch_size_per_gpu` | micro-batch | computed |
# | `gradient_accumulation_steps` | micro-batches per update | computed; 1 if there is nothing to compute from |
# | `gradient_clipping` | limit of the global norm; 0 does not clip | **1.0**; in versions before June 2026 it was 0 |
# | `zero_optimization.stage` | 0 to 3 | 0 |
# | `overlap_comm` | reduce while the backward pass goes on | on in stage 3, otherwise off |
# | `reduce_bucket_size`, `allgather_bucket_size` | *elements* in one message | 5 · 10⁸: a buffer of 1 GB in bf16, 2 GB in fp32 |
# | `stage3_param_persistence_threshold` | tensors smaller than this stay whole | 100,000 elements: a small test model is then hardly cut at all |
# | `offload_optimizer` | `device`, and `pin_memory` for faster copies | no offload; pinned if there is one (before August 2026: **not** pinned) |
# | `zero_force_ds_cpu_optimizer` | offload insists on DeepSpeed's own Adam for the CPU | true |
# | `zero_allow_untested_optimizer` | allow an optimizer that is not on DeepSpeed's list | false |
#
# **Pinned** memory (锁页内存) is memory of the host that the operating system promises not to move. A GPU can copy
# from it directly, while it computes; any other memory is first copied into a pinned buffer.
#
# The fourth row is a trap, and so is pinned memory. A file without `gradient_clipping` trains one way with an older DeepSpeed and another
# way with a newer one (pull request 8068 of deepspeedai/DeepSpeed), without an error. Write down every default
# that matters.
#
# The function that wrote the configuration, with its reasons as comments:

# %%
show_source(deepspeed.deepspeed_config)

# %%
show_source(deepspeed.zero_section)

# %%
assert config["train_batch_size"] == 4 * 8 * 2
assert config["gradient_clipping"] == 0.0

# %% [markdown]
# `course demo launchers --ranks 2` runs one job under each launcher that is installed, DeepSpeed among them
# (chapter 15).
#
# ### What is what
#
# Five names stand side by side in note 000 and in job advertisements. They are not alternatives:
#
# | name | what it is | what it shards |
# |---|---|---|
# | torchrun (PyTorch) | starts processes, and starts them again when one dies | nothing |
# | accelerate (Hugging Face) | one interface over DDP, FSDP and DeepSpeed for PyTorch training loops; a launcher | nothing itself |
# | ZeRO (Microsoft) | a method, with three stages | model states over data-parallel ranks |
# | DeepSpeed (from Microsoft) | a library: ZeRO, offload, pipelines, its own launcher | by ZeRO |
# | Megatron-LM (NVIDIA) | a library for GPT-like models: tensor, pipeline, context and expert parallelism, fast kernels; its distributed optimizer is ZeRO 1 | matrices and layers, too |
#
# Two published claims to be careful with. Accelerate "supports PyTorch and TensorFlow": it is for PyTorch.
# DeepSpeed "was used for BERT and GPT-3": for BERT, yes (BERT-large in 8.7 hours on 64 V100, deepspeed.ai/training), for GPT-3, no. It was
# used, together with Megatron, for MT-NLG 530B (Smith et al. 2022, arXiv:2201.11990) and BLOOM 176B (arXiv:2211.05100).
#
# **Remember**
# - PyTorch's `ZeroRedundancyOptimizer` is stage 1 by whole tensors, and sends more than the paper's.
# - Write `gradient_clipping` down, and check that the three batch sizes multiply.
# - torchrun starts, accelerate wraps, DeepSpeed shards data-parallel states, Megatron also cuts the model.

# %% [markdown]
# ## 8.8 Demo: all stages on two ranks
#
# All of it at once: five updates in each stage and with PyTorch's optimizer; losses and gradients against one
# process; bytes stored and sent against the theory. (The report's lines of bytes are left out here and drawn below.)

# %%
result = demos.run("zero", ranks=2, stream=False)
report = result.report().splitlines()
print(*(line for line in report if "predicted" not in line), sep="\n")

# %%
for version in result.versions:
    assert version.stored == version.predicted_stored
    assert version.sent == version.predicted_sent

# %%
from course_lib.demos.zero import sent_volume as volume

figures.stored_by_version(
    {version.name: version.stored for version in result.versions},
    {version.name: volume(version.sent, ranks=2) for version in result.versions},
    "One rank of two: 110,336 parameters in fp32",
)

# %% [markdown]
# Two ranks halve what they cut: 1.77 MB become 1.32, 1.10 and 0.88. PyTorch's optimizer keeps 1.33, and sends
# half as much again.
#
# That is what remains after an update. And during one? On each rank the demo `step_memory` follows every tensor through an update, as in chapter 3. Here is
# rank 0 of two, with 4 layers and 16 samples:

# %%
updates = demos.run("step_memory", ranks=2, model="4x64x4", batch=16, stream=False)
foretold, measured = updates.predicted, updates.measured
for name in ("stage 0", "ZeRO 1", "ZeRO 2"):
    peak = measured[name].peak_bytes
    expect(foretold[name].peak_bytes, peak, within=0.04, label=name, unit="B")

# %%
runs = {"stage 0, measured": measured["stage 0"]}
runs["ZeRO 1, predicted"] = foretold["ZeRO 1"]
runs |= {f"ZeRO {stage}, measured": measured[f"ZeRO {stage}"] for stage in (1, 2)}
figures.memory_over_time(runs, "One update on rank 0 of 2")

# %% [markdown]
# The prediction has one step for a layer where the measurement has one for each tensor. Its peaks are within 1 % for stages 0
# and 1, and 3 % too high for stage 2: it counts a layer's whole gradients from the moment at which that layer's backward pass begins.
#
# Stage 1 halves the optimizer's part at all times. The yellow in the update is mostly a second copy of the gradients, one
# vector for each unit, on its way.
#
# Stage 2 halves the gradients as well, and yet both peaks are nearly equal. They lie at the beginning of the backward pass,
# when there are no gradients yet. So in a small model with many samples, sharding gradients saves nothing *at the peak*. It
# does where the update is the fullest moment, as with large models and few samples.
#
# The milliseconds in the report say little. Run the cell twice: they change from run to run by as much as from
# stage to stage. With layers of 50,000 parameters a message is mostly latency (chapter 6), and two processes
# share your processor. The bytes carry over to GPUs, the times do not.
#
# In a terminal, with more ranks, accumulation, or offload:
#
# ```
# course demo zero --ranks 4 --accumulation 4 --batch 16
# course demo zero --ranks 2 --stage 2 --offload
# torchrun --standalone --nproc-per-node=2 -m course_lib.demos zero
# ```

# %% [markdown]
# ## What to remember
#
# 1. Plain data parallelism stores $16P$ bytes on each GPU because each GPU does the same update.
# 2. Stage 1: $4P + 12P/n$. Stage 2: $2P + 14P/n$. Stage 3: $16P/n$.
# 3. Sent: 1×, 1×, 1.5× of plain data parallelism, with one micro-batch per update.
# 4. ZeRO removes redundant storage, not computation. Activations stay.
# 5. Clip by the global norm: sum the squares over ranks.
# 6. Offload: 12 of 16 bytes to the host, 4 bytes per parameter and update over the bus.
# 7. Take the lowest stage that fits, and write every default that matters into the configuration.

# %%
from course_lib import quiz

quiz("8")

# %% [raw] tags=["quiz"]
# Why does plain data parallelism store the optimizer states on each GPU?
# [x] each GPU does the same update
# [ ] each GPU has other gradients after the all-reduce
# [ ] the network is too slow to share them
# Why: After the all-reduce all gradients are equal, and so are states and new weights.
#
# Stage 2 sends as much as plain data parallelism. Why?
# [ ] it compresses the gradients
# [x] an all-reduce is a reduce-scatter and an all-gather, and so is stage 2
# [ ] it sends less often
# Why: The update moves between the halves; the second half carries weights.
#
# A pipeline runs 32 micro-batches in an update. Stages 1 and 2 both fit. Which one?
# [x] stage 1
# [ ] stage 2
# [ ] either: they send the same bytes
# Why: Stage 2 reduces every micro-batch: 33 halves of an all-reduce instead of 2.
#
# Stage 3, and F/β is 16,000 tokens. Each GPU has 4,000 in a micro-batch. What happens?
# [ ] the messages hide behind computing
# [x] messages take four times as long as computing
# [ ] it depends on the size of the model
# Why: Both take equally long at F/β tokens; computing shrinks with the tokens.
#
# 128 GPUs instead of 64, stage 1, 7.5B parameters. What becomes of the 31.4 GB?
# [ ] 15.7 GB
# [x] 30.7 GB
# [ ] 31.4 GB
# Why: Only 12P/n halves, from 1.4 to 0.7 GB. Weights and gradients stay whole.
#
# Your activations do not fit. Which stage helps most?
# [ ] stage 2
# [ ] stage 3
# [x] none: ZeRO does not cut activations
# Why: It may free memory for them, but each GPU keeps its own samples' activations.
#
# A rank clips its shard by the norm of its shard, on 16 ranks. The whole gradient's norm?
# [x] up to 4 times the limit
# [ ] the limit
# [ ] a sixteenth of the limit
# Why: Each part has the limit as its norm: the root of 16 · limit².
#
# Norms shall not decay, and a unit is one flat vector that is cut. What still works?
# [ ] two groups of parameters, given to the optimizer
# [x] a vector of marks, padded and cut like the weights
# [ ] a decay of the whole vector, with the norms put back by the next all-gather
# Why: Decay shrinks each number by itself, so its marks can be cut in the same places.

# %% [markdown]
# **Now you:** open [the exercises](../exercises/08_zero.ipynb).
#
# **Read on.** Rajbhandari et al. 2020, *ZeRO*, sections 5 and 7 (arXiv:1910.02054). Ren et al. 2021,
# *ZeRO-Offload*, sections 3 and 4 (arXiv:2101.06840). Rajbhandari et al. 2021, *ZeRO-Infinity*, section 3, for
# disks (arXiv:2104.07857).

# %% tags=["exercise"]
import torch

from course_lib import check, hint, solution
from course_lib.theory.inputs import RECIPES, Recipe, models
from course_lib.theory.network import zero
from course_lib.chapters.ch08_zero import zero_choice


# %% [markdown] tags=["exercise"]
# ### 8.1 Calculate: ZeRO with fp32 gradients
#
# 128 billion parameters on 16 GPUs, trained as Megatron-LM does: weights in bf16, gradients in fp32, 12 bytes of optimizer. Model
# states per GPU in GB (10⁹ bytes) under stage 1, 2 and 3? And how many times as many bytes as plain data parallelism does
# stage 1 send, with one micro-batch?

# %% [raw] tags=["hints"]
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
# 32 billion parameters, 16 bytes each (2 + 2 + 12), on GPUs that have 68 GB (10⁹ bytes) of room for model states. How
# few GPUs are enough for stage 1, 2 and 3? Write `"never"` where no number is.
#
# You are given 64 GPUs, and an update has 8 micro-batches. Take the lowest stage that fits. How many times as many bytes as
# plain data parallelism does it send in an update? And how many tokens must a GPU have in a micro-batch for the messages to hide, if it
# computes 400 TFLOP/s and sends 50 GB/s? Guess each number before you compute it.

# %% [raw] tags=["hints"]
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
# ### 8.3 Debug: the wrong clip norm
#
# Every rank calls this function with its own `part` of the gradient.
# `all_reduce(tensor)` returns the sum of the tensors of all ranks. The training diverges, and only with more than
# one rank. Fix it. A gradient within the limit must stay as it is.

# %% [raw] tags=["hints"]
# Which part of a norm can be summed?
# Sum the squares, then take the root.


# %% tags=["exercise"]
def clip_part(part: torch.Tensor, limit: float, all_reduce) -> torch.Tensor:
    """This rank's part of the gradient, clipped to the norm `limit` as a whole."""
    ### BEGIN GIVEN
    norm = part.square().sum().sqrt()
    return part * (limit / norm).clamp(max=1.0)
    ### END GIVEN
    ### BEGIN SOLUTION
    norm = all_reduce(part.square().sum()).sqrt()
    return part * (limit / norm).clamp(max=1.0)
    ### END SOLUTION


check("8.3", clip_part)

# %% [markdown] tags=["exercise"]
# ### 8.4 Predict: which stage?
#
# Which stage would you take? bf16 with AdamW and a master copy (16 bytes), GPUs of 80 GB (10⁹ bytes). Beside the model states there are activations, given here in GB, and what each stage holds for a moment in
# the passes (section 8.2; in stage 1 nothing, as in Megatron-LM). Leave 2 GB free for the framework and for buckets. Take the lowest stage that fits, 0 for plain DDP, or `"none"`. A model's parameters are
# `models.MODELS["llama2-7b"].parameters().total`, those of one layer `models.MODELS["llama2-7b"].layer_parameters(0).total`, those of norm and head `models.MODELS["llama2-7b"].head_parameters().total`.

# %% [raw] tags=["hints"]
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
# ### 8.5 Debug: six jobs, six keys
#
# Six DeepSpeed jobs that do not do what somebody expected. Which key would you look at first? Section 8.7's table has them; each of these fits once: `"gradient_clipping"`, `"overlap_comm"`, `"pin_memory"`,
# `"reduce_bucket_size"`, `"stage3_param_persistence_threshold"`, `"zero_allow_untested_optimizer"`.

# %% [raw] tags=["hints"]
# First those where a number gives it away: 2 GB, and how many elements a tiny model has.
# Which of them has another default in stage 3, and which had another one before 2026?

# %% tags=["exercise"]
look_at = {
    "the loss curve changed with the version, the file did not": ...,
    "stage 3 of a tiny model: each GPU still has all weights": ...,
    "stage 2: the network is idle in backward, busy after it": ...,
    "2 GB that nobody can explain, as many for any large model in fp32": ...,
    "offload: the GPU waits for each copy to the host": ...,
    "an error: your own optimizer is not on a list": ...,
}
### BEGIN SOLUTION
look_at = {
    "the loss curve changed with the version, the file did not": "gradient_clipping",
    "stage 3 of a tiny model: each GPU still has all weights": "stage3_param_persistence_threshold",
    "stage 2: the network is idle in backward, busy after it": "overlap_comm",
    "2 GB that nobody can explain, as many for any large model in fp32": "reduce_bucket_size",
    "offload: the GPU waits for each copy to the host": "pin_memory",
    "an error: your own optimizer is not on a list": "zero_allow_untested_optimizer",
}
### END SOLUTION
check("8.5", look_at)

# %% [markdown] tags=["exercise"]
# ### 8.6 Implement: whose weights decay
#
# A unit's tensors are laid end to end, padded at the end to a multiple of `ranks`, and cut into equal
# parts. `sizes` has the number of elements of each tensor, and `decays` says which tensors decay. Return the marks of one
# rank's part (section 8.4): for each of its elements 1 if it decays, else 0. Padding does not decay.

# %% [raw] tags=["hints"]
# Write the marks of the whole vector first, one for each element of each tensor.
# How large is a part when the padding counts, too? Round elements / ranks up.
# Rank r has the elements from r · part to (r + 1) · part, of the padded vector.


# %% tags=["exercise"]
def own_marks(sizes: list[int], decays: list[bool], ranks: int, rank: int) -> list[int]:
    """1 or 0 for each element of this rank's part of the vector."""
    ### BEGIN SOLUTION
    marks = []
    for size, decay in zip(sizes, decays, strict=True):
        marks += size * [int(decay)]
    part = -(-len(marks) // ranks)
    marks += (part * ranks - len(marks)) * [0]
    return marks[rank * part : (rank + 1) * part]
    ### END SOLUTION


check("8.6", own_marks)

# %% [markdown] tags=["exercise"]
# ### 8.7 Predict: the volume with accumulation
#
# 1,000,000 parameters, weights and gradients with 2
# bytes, 4 ranks, 8 micro-batches per update. Guess, then compute the bytes that each rank sends in one update
# under plain data parallelism (with `no_sync`) and stage 1, 2, 3. (To see the same happen: `course demo zero
# --ranks 4 --accumulation 4 --batch 16`.)

# %% [raw] tags=["hints"]
# A half is 3/4 · 2,000,000 bytes.
# Which stage can wait for the last micro-batch?

# %% tags=["exercise"]
sent = [..., ..., ..., ...]
### BEGIN SOLUTION
half = 2_000_000 * 3 / 4  # a reduce-scatter or an all-gather
sent = [2 * half, 2 * half, (8 + 1) * half, 8 * 3 * half]
### END SOLUTION
check("8.7", sent)

# %% [markdown] tags=["exercise"]
# ### 8.8 Calculate: offload
#
# 13 billion parameters, bf16 with AdamW and a master copy, optimizer offloaded. On
# one GPU: bytes in the host's memory; seconds per update over PCIe 4 (31.5 · 10⁹ B/s each way), gradients there
# and weights back one after the other. And the seconds with ZeRO 2 on 8 GPUs, each with a slot of its own?

# %% [raw] tags=["hints"]
# Which 12 of the 16 bytes move?
# Gradients and weights have 2 bytes each.

# %% tags=["exercise"]
host_bytes, seconds, seconds_on_8 = ..., ..., ...
### BEGIN SOLUTION
host_bytes = 12 * 13e9
seconds = 2 * 2 * 13e9 / 31.5e9
seconds_on_8 = seconds / 8
### END SOLUTION
check("8.8", [host_bytes, seconds, seconds_on_8])

# %% [markdown] tags=["exercise"]
# ### 8.9 Debug: a configuration
#
# This configuration is meant for 4 GPUs, and DeepSpeed refuses it. Once that is fixed, the losses differ from
# those of DDP, which does not clip, and each GPU still holds all gradients. Keep the global batch of 64 and the
# micro-batch of 4. Fix the rest: gradients sharded, weights whole, no clipping in any version.

# %% [raw] tags=["hints"]
# 64 = 4 · accumulation · 4.
# Which default changed in 2026?

# %% tags=["exercise"]
config = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "zero_optimization": {"stage": 1},
}
### BEGIN SOLUTION
config["gradient_accumulation_steps"] = 4
config["gradient_clipping"] = 0.0
config["zero_optimization"]["stage"] = 2
### END SOLUTION
check("8.9", config)

# %% [markdown] tags=["exercise"]
# ### 8.10 Debug: which run is which?
#
# Six programs train the same model on 4 ranks: a million parameters in fp32 with AdamW, 4 micro-batches an update. From each you have what a rank holds after the backward pass, and the collectives of one
# update, with the bytes of the whole tensors:
#
# | run | weights | gradients | optimizer | collectives |
# |---|---|---|---|---|
# | A | 4 MB | 4 MB | 8 MB | all-reduce 4 MB |
# | B | 4 MB | 4 MB | 2 MB | all-reduce 4 MB, broadcast 4 MB |
# | C | 4 MB | 1 MB | 2 MB | reduce-scatter 16 MB, all-gather 4 MB |
# | D | 4 MB | 4 MB | 8 MB | all-reduce 16 MB |
# | E | 1 MB | 1 MB | 2 MB | reduce-scatter 16 MB, all-gather 32 MB |
# | F | 4 MB | 4 MB | 2 MB | reduce-scatter 4 MB, all-gather 4 MB |
#
# Which is which: `"DDP"`, `"DDP without no_sync"`, `"ZeRO 1"`, `"ZeRO 2"`, `"ZeRO 3"` and `"ZeroRedundancyOptimizer"`? And how many bytes does a rank send in E, which is the most of all?

# %% [raw] tags=["hints"]
# First what is held: which of the three states has a quarter on each rank?
# Then what travels: once an update, or in each of the 4 micro-batches?
# On a ring each rank sends 3/4 of a reduce-scatter's or an all-gather's tensor.

# %% tags=["exercise"]
which = {"A": ..., "B": ..., "C": ..., "D": ..., "E": ..., "F": ...}
sent = ...
### BEGIN SOLUTION
which = {
    "A": "DDP",
    "B": "ZeroRedundancyOptimizer",  # a part of the optimizer, but whole gradients travel
    "C": "ZeRO 2",
    "D": "DDP without no_sync",  # four times the gradients
    "E": "ZeRO 3",
    "F": "ZeRO 1",
}
sent = 3 / 4 * (16e6 + 32e6)
### END SOLUTION
check("8.10", [which, sent])

# %% [markdown] tags=["exercise"]
# ### 8.11 Build: ZeRO 1 and 2
#
# Write ZeRO 1 and 2, and the clipping that goes with them. Each rank's loss is its share of the mean loss, so gradients are *summed* over ranks. Given are `flatten(tensors, ranks)`, one padded
# vector; `views(flat, like)`, pairs of a tensor and its piece of the vector; `units_of(model, layers)`, pairs of a module and its
# parameters; `wire.all_reduce`, `wire.all_gather` and `wire.reduce_scatter`, each from a tensor to a new one; and chapter 7's `after_backward`.
#
# Four steps on two and three real ranks, with sizes that do not divide: (1) a unit by itself; (2) updates of stage 1, against one process, with the bytes of the optimizer and of the messages; (3) `clip`; (4) stage 2, where units are reduced while
# backward runs, also if ranks use different parameters, or leave a whole unit out. What passes is kept as `mine/zero.py`.

# %% [raw] tags=["hints"]
# reduce: the same `flatten` for the gradients, in the same order, and a reduce-scatter of the vector. What does a parameter without a gradient lay into it?
# Micro-batches: `gradient` may be there already; then the new part is added.
# step: reduce what is not reduced; every master gets its gradient in fp32; the optimizer steps; gradients are dropped; every unit publishes.
# clip: the square of a norm is a sum, so it may be summed over parts, units and ranks; one all-reduce of one number, then the root.
# Stage 2: at the first gradient of a pass `waiting` becomes a copy of `order`, and `after_backward(self._finish)` is called. Then: while the first that waits has all its gradients, take it out and reduce it.

# %% tags=["exercise"]
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from course_lib.scratch import wire
from course_lib.scratch.ddp import after_backward
from course_lib.scratch.zero import flatten, units_of, views

### BEGIN GIVEN


class Unit:
    """Parameters that are sent together, as one vector; rank r owns part r of it."""

    def __init__(self, parameters: Iterable[nn.Parameter], ranks: int) -> None:
        self.parameters, self.ranks = list(parameters), ranks
        self.whole = flatten(self.parameters, ranks)  # (n·s)
        for parameter, view in views(self.whole, self.parameters):
            parameter.data = view
        self.own = self.part()  # (s)
        # What the optimizer updates. In fp32 this is `own` itself, otherwise a copy.
        self.master = nn.Parameter(self.own.float())
        self.gradient: Tensor | None = None  # (s), of the own part

    def part(self) -> Tensor:
        """The elements of `whole` that this rank owns: a view (s), not a copy."""
        ...

    def reduce(self) -> None:
        """Add the own part of the sum of gradients over ranks to `gradient`; set every `.grad` to None.

        A parameter that has no gradient counts as zeros.
        """
        ...

    @torch.no_grad()
    def publish(self) -> None:
        """Copy `master` into `own`, where it is a copy; then every rank gets all parts."""
        ...


class Zero:
    """Trains `model` under ZeRO stage 1 or 2. Each of `layers` is a unit, all the rest is one more."""

    def __init__(
        self,
        model: nn.Module,
        layers: Iterable[nn.Module],
        optimizer: Callable[[list[nn.Parameter]], Optimizer],
        stage: int = 1,
    ) -> None:
        self.ranks = dist.get_world_size()
        self.units = {
            module: Unit(parameters, self.ranks)
            for module, parameters in units_of(model, layers)
        }
        # Backward goes from the last layer to the first, then to the rest.
        backward = sorted(reversed(self.units), key=lambda m: m is model)
        self.order = [self.units[module] for module in backward]
        # Not yet reduced in the backward pass that runs, None if none does.
        self.waiting: list[Unit] | None = None
        # Yours: self.optimizer, made by optimizer([…]) for what this rank owns; and for stage 2 a hook
        # on each parameter of each unit that calls self._arrived.

    def reduce(self) -> None:
        """Reduce the units that have not been reduced in this update."""
        ...

    def step(self) -> None:
        """Update the own parts; then all ranks have all weights, and no gradient is left.

        That is None: `gradient` of each unit, and `.grad` of its parameters and of its `master`.
        """
        ...

    def _arrived(self, parameter: Tensor) -> None:
        """Stage 2, a gradient is there: reduce the units that are complete, in the order of `order`."""
        ...

    def _finish(self) -> None:
        """Stage 2, backward has ended: reduce what still waits, get ready for the next pass."""
        ...


def clip(zero: Zero, limit: float) -> Tensor:
    """Between backward and `step`: scale the gradient down to the norm `limit` if it is longer.

    Reduces first, what is not reduced yet; then ranks exchange a few numbers, and no gradients.
    Returns the norm of the whole gradient, as it was.
    """
    ...


### END GIVEN
### BEGIN SOLUTION
from course_lib.scratch.zero import Unit
from course_lib.scratch.zero import Zero, clip

### END SOLUTION

check("8.11", [Unit, Zero, clip])

# %% [markdown] tags=["exercise"]
# Stretch: `from course_lib import race`, and `race("8.11")` measures an update with your stage 1, with ours and with PyTorch's DDP and `ZeroRedundancyOptimizer`.
