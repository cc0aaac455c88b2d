# %% [raw] tags=["sitting"]
# question: Do eight cards of 24 GB train a model of 7 billion parameters?
# importance: 5
# difficulty: 3
# group: alone
# needs: 3, 6, 8

# %% [markdown]
# # 9 How FSDP works
#
# LLaMA-2 7B has 6.74 billion parameters. At 16 bytes each, its training states take 107.8 GB. You have eight cards of 24 GB. Cut into eight equal parts, the
# states take 13.5 GB of each card, and more than 10 GB stay free. Does the model train?
#
# Every card computes whole layers, though. Before a layer runs, the card must collect its other seven eighths. So the question is how much of the model
# is whole at the worst moment. At the end of this sitting you can
#
# - follow one layer through a step: gathered, used, freed, gathered again, its gradient scattered,
# - predict the number of collectives and the peak of memory, and check both in a run,
# - say how many tokens a GPU must compute to hide the messages.
#
# You need chapters 3, 6 and 8.

# %%
import torch
from torch.distributed.fsdp import fully_shard

from course_lib import expect, launch, measure, predict, scratch, show_source, style
from course_lib.chapters.ch09_fsdp import figures, panels, steppers
from course_lib.chapters.ch09_fsdp.gather_timeline import gather_timeline
from course_lib.chapters.ch09_fsdp.hiding import fsdp_hiding_tokens
from course_lib.demos.shared.training import Training, mean_loss, own_rows
from course_lib.theory import RECIPES, Job, Layout, Recipe, hardware, models, units

launch.warm_up()
torch.set_num_threads(1)

# %% [markdown]
# **Predict.** In bf16 the model has 32 layers of 0.405 GB each; embedding and head add 0.524 GB. Some layers must be whole while they compute, and so must
# their gradients. How many GB of whole weights and whole gradients does a card hold at the worst moment, beside its eighth of everything?

# %%
extra = predict("9.extra", "GB of whole tensors at the peak?", yours=None)

# %% [markdown]
# ## 9.1 One unit: gathered, used, freed
#
# In stage 3 of chapter 8, each of $n$ ranks keeps one $n$-th of weights, gradients and optimizer states, and gathers one unit of the model at a time. **FSDP**,
# fully sharded data parallelism (完全分片数据并行), is PyTorch's version of this idea: first as the class `FullyShardedDataParallel` (FSDP1), now as the function
# `fully_shard` (FSDP2). In addition, the next unit travels while one computes,
# reductions run in the background, storage and messages may have different precisions, and the model never has to exist as a whole.
#
# What should a unit be? A layer of LLaMA has nine tensors, some of only 4096 numbers. If each were gathered by itself, a layer would pay the latency of nine
# messages. If the whole model were one unit, no memory would be saved. The usual choice lies between: each layer is a unit, and everything else is the
# **root unit** (根单元): embedding, last norm, head.
#
# In one step a layer is gathered, used and freed. For its backward pass it is gathered again, used and freed again. To gather is one all-gather. Then one reduce-scatter averages
# its gradients over the ranks and leaves each rank its part.
#
# **Predict.** A model has four layers, and its root stays whole from the beginning to the end of the step. How many all-gathers and how many reduce-scatters does a step
# make?

# %%
gathers = predict("9.gathers", "All-gathers?", yours=None)
scatters = predict("9.scatters", "Reduce-scatters?", yours=None)

# %% [markdown]
# Now watch it: four layers of LLaMA-2 7B on eight H100, each in a node of its own. The two lanes at the top show what a GPU computes and what it sends. The curve in
# the middle is the memory of everything that is whole. Below are the units, number 0 the root: the shard (blue) always stays, whole weights are yellow, gradients are orange. Follow layer 2.

# %%
from course_lib.chapters.ch09_fsdp import steppers

steppers.fsdp()

# %% [markdown]
# 1. Set `prefetch` to 0. When does the GPU wait? Then set it to 2. What becomes faster, and what is the most memory then?
# 2. At the turn, between the last forward and the first backward pass, layer 4 is freed and gathered again at once. Which setting avoids that, and at what
#    price?

# %%
found = {}
for ahead in (0, 1, 2):
    found[ahead] = steppers.fsdp(prefetch=ahead).text.splitlines()[3]  # on time
    print(f"prefetch {ahead}: {found[ahead]}")
assert len(set(found.values())) == 2

# %% [markdown]
# 1. Without prefetch the GPU waits for all 14 messages. One layer ahead hides nine. Left are the gathers of the root, of layer 1 and, at the turn,
#    of layer 4, and the last two reductions. Two layers ahead are no faster: these five messages cannot start sooner. But the most memory is 2.81 GB instead of 2.41.
# 2. Switch `reshard` off. Then all layers are whole at the turn (section 9.2).
#
# ### Count it
#
# The stepper shows the calls of the course's own FSDP, `scratch.fsdp`. Now count them in a run: a GPT of four layers on 2 ranks. `log_wire` records the
# collectives. At the MLP of each layer a hook adds up the bytes of all whole units, for section 9.2.

# %%
training = Training("4x64x4", batch=8, sequence=32)
layers = training.size[0]


def look(reshard=True, prefetch=True):
    """One step: bytes of whole units at each MLP, its weight's shape, collectives."""
    rank, model = launch.init(), training.build()
    blocks, whole, shapes = model.blocks, [], []
    fsdp = scratch.fsdp.FSDP(model, blocks, reshard=reshard, prefetch=prefetch)

    def note(mlp, *_):
        sizes = [unit.whole.untyped_storage().nbytes() for unit in fsdp.units]
        whole.append(sum(sizes))
        shapes.append(tuple(mlp[0].weight.shape))

    for block in model.blocks:
        block.mlp.register_forward_hook(note)
        block.mlp.register_full_backward_hook(note)
    with measure.wire.log_wire() as log:
        mean_loss(model, own_rows(training.batches()[0], rank)).backward()
    return whole, log.sent(), shapes[0]


# %%
whole, sent, weight_shape = launch.run(look, ranks=2)[0]
expect(2 * layers + 1, sent["all-gather"][0], label="all-gathers", yours=gathers)
expect(layers + 1, sent["reduce-scatter"][0], label="reduce-scatters", yours=scatters)

# %% [markdown]
# **Explain.** Each layer is gathered twice, forward and backward, and the root once. The gradients of each unit are scattered once. With $L$ layers a step makes
#
# $$2L + 1 \ \text{all-gathers}, \qquad L + 1 \ \text{reduce-scatters}.$$
#
# For $P$ parameters, DDP's all-reduce is a reduce-scatter and an all-gather, and moves $2P$ numbers. FSDP gathers the layers twice and reduces once: $3P$ numbers, **half as many again**. The root is gathered only once, so
# the measured ratio is slightly lower:

# %%
from course_lib.theory.memory.states import local_parameters

local = local_parameters(training.shape())
gathered = 2 * layers * local.layer_dense + local.ends_dense
expect(4 * gathered, sent["all-gather"][1], label="all-gathered", unit="B")
print(f"FSDP / DDP: {(gathered + local.total) / (2 * local.total):.2f}")

# %% [markdown]
# ### What FSDP is not
#
# A rank stores one shard of a layer. What does it compute with? The first matrix of an MLP with hidden size 64 has $4 \cdot 64 \times 64$ weights. This is the
# shape that rank 0 computed with:

# %%
print(weight_shape)
assert weight_shape == (256, 64)  # all of it, though there are two ranks

# %% [markdown]
# The whole matrix. Ranks differ in what they *store* and in their *data*; all of them *compute* whole layers. Note 001 says that "each GPU processes a different shard
# of the model". That is wrong for FSDP, and right for tensor parallelism (chapter 10) and pipelines (chapter 11).
#
# So FSDP is data parallelism, with two consequences:
#
# - Activations do not shrink. Each rank keeps those of its own samples, for all layers.
# - Each rank needs at least one sample.
#
# **Remember**
# - A unit is gathered, used, freed. Each layer is a unit, and the rest is the root.
# - A step makes $2L + 1$ all-gathers and $L + 1$ reduce-scatters, with one and a half times the bytes of DDP.
# - Shards are stored, whole layers are computed, the data differ: it is data parallelism (Zhao et al. 2023, arXiv:2304.11277, section 3).

# %% [markdown]
# ### Deeper: the course's own version
#
# Exercise 9.11 lets you write these classes yourself. Try it first, then compare.
#
# How can a module's weights come and go while autograd does not notice? By hooks and one autograd function. The input of `Gather` is a shard, and its
# outputs are the whole parameters. So autograd hands it the whole gradients in the backward pass:

# %%
show_source(scratch.fsdp.Gather)

# %% [markdown]
# Hooks put these parameters into the module before its forward pass and put empty placeholders there after it. Another hook waits at the module's output: the first gradient that
# arrives there says that the backward pass has reached this layer. FSDP only decides what happens at the four moments:

# %%
from course_lib.scratch.fsdp import FSDP

show_source(
    FSDP.before_forward, FSDP.after_forward, FSDP.before_backward, FSDP.after_backward
)

# %% [markdown]
# To free a unit, the tensor stays, since autograd has saved it, and its *storage* shrinks to 0 bytes, as in chapter 8. New is `gathering`: `start_gather`
# only starts the all-gather, and `gather` waits for it. A gather that was started early needs little waiting.

# %%
show_source(scratch.fsdp.FSDPUnit.start_gather, scratch.fsdp.FSDPUnit.free)

# %% [markdown]
# ### Deeper: one vector for many tensors
#
# How is a unit of several tensors cut into equal parts?

# %% [markdown]
# As in chapter 8, the tensors of a unit are laid end to end in one vector, a **flat parameter** (扁平参数). A layer with a norm of 3 weights, a matrix of 3 × 3 and 3 biases
# has 15 numbers. On 4 ranks each gets 4 of them, since $15 / 4 = 3.75$ is rounded up, and one zero fills the end. With $P_u$ parameters in a unit:
#
# $$\text{part} = \lceil P_u / n \rceil, \qquad \text{padding} = -P_u \bmod n .$$

# %% tags=["drawing"]
figures.cut_unit({"norm": 3, "matrix": 9, "biases": 3}, ranks=4)

# %% [markdown]
# The layer is cut as a whole, and not each of its tensors. So one message brings all of it, and each rank keeps equally much, although the matrix lies on
# three of them. Note 001 praises this as YaFSDP's way (层分片, layer sharding). FSDP1 does the same; FSDP2 cuts each tensor by itself (section 9.5).

# %%
show_source(scratch.flat_parameter.FlatParameter.__init__)

# %% [markdown]
# ## 9.2 The worst moment
#
# A layer of LLaMA-2 7B has 202.4 million parameters, 0.405 GB in bf16. Embedding and head together have 262.1 million, 0.524 GB.
#
# In the middle of the backward pass a card holds its eighth of all states, 13.48 GB. Say layer 6 goes backward. Beside the shards lie six whole pieces. Three are weights:
#
# - the root's, which are there from the beginning to the end,
# - those of layer 6,
# - those of layer 5, which arrive meanwhile.
#
# Three are gradients:
#
# - those of layer 6,
# - those of layer 7, which are being scattered,
# - the head's. The head went backward first, and its gradient waits for the embedding's, with which it is reduced. The embedding's comes last of all.

# %% tags=["drawing"]
seven = models.MODELS["llama2-7b"]
numbers = local_parameters(seven)
layer_gb, root_gb, head_gb = (
    2 * count / 1e9
    for count in (numbers.layer_dense, numbers.ends_dense, numbers.head_dense)
)
weights = {"root": root_gb, "layer 6": layer_gb, "layer 5": layer_gb}
gradients = {"head": head_gb, "of layer 6": layer_gb, "of layer 7": layer_gb}
looks = dict.fromkeys(weights, style.TEMPORARY) | dict.fromkeys(
    gradients, style.GRADIENTS
)
worst = {"whole weights": weights, "gradients": gradients}
title = "One of eight cards, beside its shards"
figures.stacked_bars(worst, title, "{:.3f} GB".format, colours=looks)

# %% [markdown]
# In symbols: the largest layer has $P_l$ parameters and the root $P_r$, of which $P_h$ are the head and the last norm. $k$ layers are
# whole at a time. A weight has $w$ bytes, and a gradient $g$ bytes while it is reduced. Beside the shards, FSDP holds
#
# $$w\,(k P_l + P_r) \;+\; w\,(P_l + P_h) + g\,P_l .$$
#
# The first term is weights, the rest is gradients. Here $k = w = g = 2$, and the 16 bytes per parameter of the shards are the ZeRO paper's 2 + 2 + 12.
# `gather_timeline` does not use the formula. It goes through the step event by event and takes the maximum, here beside the sum of the six pieces:

# %%
step = gather_timeline(seven, Recipe(), ranks=8)
beside = (step.peak_bytes - step.states_bytes) / units.GB
pieces = sum(weights.values()) + sum(gradients.values())
expect(pieces, beside, 1e-9, "GB", "whole tensors", yours=extra)

# %%
print(f"with the shards: {step.peak_bytes / units.GB:.2f} GB")

# %% [markdown]
# FSDP2 is mostly used with other precisions (section 9.4). Shards are fp32, 4 + 4 + 8 bytes for weight, gradient and both moments: again 16. Layers are
# gathered in bf16, $w = 2$, and gradients are reduced in fp32, $g = 4$. So the gradients of layer 7, which are being reduced, take twice as much:

# %%
fsdp2 = Recipe("fp32", "fp32", master_copy=False, compute="bf16")
in_fp32 = gather_timeline(seven, fsdp2, ranks=8)
assert in_fp32.states_bytes == step.states_bytes
beside_fp32 = (in_fp32.peak_bytes - in_fp32.states_bytes) / units.GB
print(f"{beside_fp32:.2f} GB, so {beside_fp32 - beside:.3f} GB more")

# %% [markdown]
# ### Deeper: a large vocabulary
#
# Llama 3 8B has a vocabulary of 128,256, so its root is large beside its layers. Where is its worst moment?

# %% [markdown]
# At the end of the backward pass: the embedding's gradient is there as well, and all of the root's gradients are copied to be reduced. With the root's weights gone that is $w\,P_r + g\,P_r$:

# %%
eight = gather_timeline(models.MODELS["llama3-8b"], fsdp2, ranks=8)
when, whole_bytes = max(eight.levels(), key=lambda level: level[1])
fullest = eight.trace.at(when)[-1]
print(f"{whole_bytes / 1e9:.1f} GB: {fullest.what} of unit {fullest.part}")
root = local_parameters(models.MODELS["llama3-8b"]).ends_dense
assert whole_bytes == (2 + 4) * root

# %% [markdown]
# Units of their own for embedding and head avoid this (section 9.5).

# %% [markdown]
# ### Is there room for one sequence?
#
# The 24 GB card has 8.1 GB left for activations, temporary tensors and the framework's own gigabyte. Is that enough for one sequence of 4096 tokens? Here are
# the moments of an update (chapter 3); whole weights and gradients are among the temporary buffers:

# %% tags=["drawing"]
from course_lib.theory.memory.peak import gpu_memory, memory_moments

bills = {}
for mode, words in (("none", "all kept"), ("full", "recomputed")):
    job = Job(seven, Recipe(recompute=mode), Layout(dp=8, zero_stage=3), sequence=4096)
    assert (gpu_memory(job).total_bytes < 24 * units.GB) == (mode == "full")
    for name, bill in memory_moments(job).items():
        bills[f"{words}: {name}"] = bill
figures.consumer_bars(bills, "A card with one sequence of 4096 tokens", 24 * units.GB)

# %% [markdown]
# If all activations are kept, no: the card needs 37 GB, at the loss and when the backward pass begins. With activation checkpointing (chapter 4) it needs 19 GB, and the model
# trains.
#
# ### Prefetch and reshard
#
# Two switches change $k$, the number of whole layers.
#
# **Prefetch** (预取) asks for the next layer before this one computes, so that the network works while the GPU computes. The price is a second whole layer: $k = 2$.
# Without prefetch $k = 1$, and the GPU waits for every gather.
#
# **Reshard after forward** (前向后重新分片) frees a layer after its forward pass. Without it all layers stay until their backward pass: $k = L$. But each is gathered
# once instead of twice: $L + 1$ all-gathers, and the bytes are those of DDP again.
#
# What keeps $k$ at 2 on a GPU? The CPU runs ahead of the GPU. It could ask for layers 7, 8 and 9 while layer 5 still computes, and all would take memory. So
# FSDP1 has a **rate limiter** (限速器), `limit_all_gathers=True` by default: the CPU waits while two layers are gathered (Zhao et al. 2023, section 3.4.2). In a test by PyTorch's
# developers it lowered the peak from 38.6 to 7.2 GB ([pull request 98354](https://github.com/pytorch/pytorch/pull/98354)). FSDP2 needs none: the
# **stream** (流) of messages waits, not the CPU. A stream is a queue of work on a GPU, and two streams run side by side.
#
# Move the controls:
#
# 1. Switch `reshard` off. By what factor does the peak grow, and what falls from 65 to 33?
# 2. With reshard on, from how many ranks on are the shards smaller than what is gathered? Do more ranks help after that?

# %%
from course_lib.chapters.ch09_fsdp import panels

panels.fsdp_memory(model="llama2-7b", ranks=64)

# %%
freed = panels.fsdp_memory(ranks=64).result
kept = panels.fsdp_memory(ranks=64, reshard=False).result
assert round(kept.peak_bytes / freed.peak_bytes, 1) == 3.9
assert (freed.all_gathers, kept.all_gathers) == (65, 33)
for ranks in (44, 45):
    found = gather_timeline(seven, Recipe(), ranks)
    whole_bytes = found.peak_bytes - found.states_bytes
    assert (found.states_bytes < whole_bytes) == (ranks == 45)

# %% [markdown]
# 1. The peak grows by a factor of 3.9, and the all-gathers fall.
# 2. From 45 ranks on, so among the panel's powers of two from 64 on. More ranks can only save what is left of the shards there, 1.68 GB. The
#    whole units do not depend on $n$: they take 2.41 GB on 8 cards and on 8000.

# %% tags=["drawing"]
colours = {
    "shards of all states": style.STATES,
    "whole weights": style.TEMPORARY,
    "whole gradients": style.GRADIENTS,
}
bars = {}
for ranks in (8, 45, 64, 1024):
    found = gather_timeline(seven, Recipe(), ranks)
    parts = (found.states_bytes, found.peak_weights_bytes, found.peak_gradients_bytes)
    bars[f"{ranks} GPUs"] = dict(zip(colours, parts, strict=True))
title, limit = "The worst moment", ("one card", 24 * units.GB)
figures.stacked_bars(bars, title, units.format_bytes, colours=colours, limit=limit)

# %% [markdown]
# Our four-layer GPT in all four settings:

# %%
settings = {
    "as advised": (True, True),
    "no prefetch": (True, False),
    "no reshard": (False, True),
    "neither": (False, False),
}
fp32, both = RECIPES["fp32-16"], {}
for name, (reshard, prefetch) in settings.items():
    options = {"reshard": reshard, "prefetch": prefetch}
    peak = gather_timeline(training.shape(), fp32, 2, **options)
    seen, counts, _ = launch.run(look, reshard, prefetch, ranks=2)[0]
    both[name] = {"predicted": peak.peak_weights_bytes, "measured": max(seen)}
    assert max(seen) == peak.peak_weights_bytes
    assert counts["all-gather"][0] == peak.all_gathers

# %% tags=["drawing"]
looks = {"predicted": style.THEORY, "measured": style.MEASURED}
figures.grouped_bars(both, "Whole weights at the peak", "{:,} B".format, looks)

# %% [markdown]
# They agree to the byte. The hooks count the storages of whole units and nothing else. A GPU's caching allocator (缓存分配器) would hand out blocks of rounded
# sizes and keep freed ones.
#
# **Remember**
# - Beside the shards a card holds $k$ whole layers and the root, and the gradients of two layers and the head. This does not shrink with $n$.
# - Prefetch costs one more layer. Without reshard all layers stay whole, and $L$ gathers are saved.
# - A rate limiter, or a stream that waits, keeps the CPU from asking for more than two layers.

# %% [markdown]
# ## 9.3 Messages that hide behind computing
#
# FSDP sends half as many bytes again as DDP. It need not be slower, if the messages travel while the GPU computes.
#
# Take 64 H100 in eight nodes. Each reaches 40 % of its peak, 395.8 TFLOP/s. NCCL lays a ring through each network port, so the ports of a node add up: eight of 400 Gb/s, 50 GB/s each, are
# 400 GB/s. While one byte travels, a GPU does $395.8 \cdot 10^{12} / (400 \cdot 10^9) \approx 989$ FLOP.
#
# While a layer goes forward, each of its weights does 2 FLOP for each token. Meanwhile the next layer arrives, 2 bytes for each weight in bf16. A rank has its own
# part already, so it waits for $63/64$ of that. The message is hidden if the GPU has at least $63/64 \cdot 2/2 \cdot 989 = 974$ tokens.
#
# **Predict.** In the backward pass each weight does 4 FLOP for each token. Meanwhile one layer arrives in bf16, and the gradients of another leave in
# fp32. How many tokens on each GPU hide these messages?

# %%
hide = predict("9.hiding", "Tokens on each GPU?", yours=None)

# %%
flop_per_s = 0.40 * hardware.accelerator("H100-SXM").peak_flop_per_s
rings = {  # GPUs, bytes/s
    "8 GPUs, one node": (8, 450e9),
    "64 GPUs, 8 ports a node": (64, 400e9),
    "64 GPUs, 1 port a node": (64, 50e9),
}
needed = {
    name: fsdp_hiding_tokens(fsdp2, n, flop_per_s=flop_per_s, bytes_per_s=beta)
    for name, (n, beta) in rings.items()
}
found = needed["64 GPUs, 8 ports a node"].backward
by_hand = 63 / 64 * (2 + 4) / 4 * flop_per_s / 400e9
expect(round(by_hand), round(found), label="tokens", yours=hide)

# %% tags=["drawing"]
layer_params = numbers.layer_dense  # of LLaMA-2 7B, backward
token_ms = 1000 * 4 * layer_params / flop_per_s
messages_ms = 1000 * 63 / 64 * 6 * layer_params / 400e9
curves = {
    "computing": [(0, 0), (4096, 4096 * token_ms)],
    "messages": [(0, messages_ms), (4096, messages_ms)],
}
title = "From 1,461 tokens on, computing hides the messages"
figures.lines(
    curves, "tokens on each GPU", "ms for a layer", title, mark={"1,461": found}
)

# %% [markdown]
# **Explain.** Three times the bytes for twice the FLOP: $3/2 \cdot 974 = 1{,}461$ tokens. That is less than one sequence of 4096. With $w$ bytes for a weight, $g$ for a
# gradient as it is reduced, $F$ FLOP/s and a ring of $\beta$ bytes/s:
#
# $$T_\text{forward} = \frac{n-1}{n} \cdot \frac{w}{2} \cdot \frac{F}{\beta}, \qquad
# T_\text{backward} = \frac{n-1}{n} \cdot \frac{w + g}{4} \cdot \frac{F}{\beta} .$$
#
# The size of the model cancels, as it did for DDP in section 7.4 (*How to Scale Your Model*, jax-ml.github.io/scaling-book, chapter Training, has the same bound). Other networks have other bounds:

# %% tags=["drawing"]
rows = {
    name: {"forward": tokens.forward, "backward": tokens.backward}
    for name, tokens in needed.items()
}
looks = {"forward": style.FORWARD, "backward": style.BACKWARD}
figures.grouped_bars(rows, "Tokens that hide the messages", "{:,.0f}".format, looks)

# %% [markdown]
# With a single port in each node it takes eight times as many tokens, 11,687, and a sequence of 4096 is too short, whatever is prefetched. Messages that stay in a node, on NVLink with 450 GB/s, need
# 1,154. So gathering inside the node pays where nodes have few ports (hybrid sharding, section 9.5), and hardly with eight.
#
# Links reach about 80 % of their full rate (section 6.3), so take a quarter more tokens. And messages that hide are not free: they take multiprocessors and memory bandwidth
# from the computation beside them (section 13.4).

# %% [markdown]
# ### With activation checkpointing
#
# The cards of section 9.2 train only with checkpointing. Then each layer computes its forward pass once more during the backward pass, and for that it needs its
# weights. Here PyTorch's own FSDP, `fully_shard` (section 9.4), cuts layers that `checkpoint_wrapper` has wrapped.
#
# **Predict.** Without checkpointing, a step of our four-layer GPT makes nine all-gathers. How many does it make if each layer is checkpointed?

# %%
again = predict("9.again", "All-gathers, checkpointed?", yours=None)

# %%
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper


def checkpointed():
    """The collectives of a step in which each layer is computed again."""
    rank, model = launch.init(), training.build()
    for number, block in enumerate(model.blocks):
        wrapped = checkpoint_wrapper.checkpoint_wrapper(block)
        model.blocks[number] = fully_shard(wrapped)
    fully_shard(model)
    with measure.wire.log_wire() as log:
        mean_loss(model, own_rows(training.batches()[0], rank)).backward()
    return log.sent()


# %%
sent_again = launch.run(checkpointed, ranks=2)[0]
expect(9, sent_again["all-gather"][0], label="all-gathers", yours=again)

# %% [markdown]
# **Explain.** None is added. A layer is gathered before its backward pass begins; the repeated forward pass and the backward pass both use these weights, and only then is the layer freed.
# So the messages stay the same, and the GPU computes $2 + 4 = 6$ FLOP meanwhile instead of 4. The bound falls from 1,461 to 974 tokens. Checkpointing makes FSDP's messages *easier* to hide.

# %%
from dataclasses import replace

recomputed = fsdp_hiding_tokens(
    replace(fsdp2, recompute="full"), 64, flop_per_s=flop_per_s, bytes_per_s=400e9
)
assert round(recomputed.backward) == round(recomputed.forward) == 974
assert sent_again["reduce-scatter"] == sent["reduce-scatter"]

# %% [markdown]
# Two published runs agree with the bound. PyTorch's training program torchtitan trained Llama 3.1 8B with 16,384 tokens on each H100 and 400 Gb/s for each GPU: 5,762 tokens a second
# on each of 8 GPUs, and 5,605, or 97 %, on each of 128 (github.com/pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, tables 1 and 3).
#
# **Remember**
# - The messages are hidden from about $\frac{w+g}{4} F/\beta$ tokens on each GPU on, whatever the size of the model.
# - A checkpointed layer is gathered as often as any other, and needs a third fewer tokens to hide its messages.

# %% [markdown]
# ## The answer
#
# Do eight cards of 24 GB train the model? Only with activation checkpointing. Each card holds 13.48 GB of shards and, at the worst moment, 2.41 GB of whole
# tensors: 15.9 GB. The activations of one sequence of 4096 tokens bring the total to 37 GB if they are kept, and to 19 GB if they are recomputed.
#
# More cards shrink the shards, but neither the 2.41 GB nor the activations. FSDP sends one and a half times the bytes of DDP. In nodes of H100 with eight ports of 400 Gb/s, 974 tokens on each GPU hide them if each
# layer is recomputed.

# %% tags=["exercise"]
import torch
from torch.distributed.fsdp import fully_shard

from course_lib import check, hint, launch, solution
from course_lib.demos.shared.training import Training, mean_loss
from course_lib.theory.audits.gpt2_128 import Program
from course_lib.theory.inputs import RECIPES, Job, Layout, Recipe, models
from course_lib.chapters.ch09_fsdp.gather_timeline import gather_timeline
from course_lib.theory.memory.peak import gpu_memory
from course_lib.theory.memory.states import local_parameters

launch.warm_up()

# %% [markdown] tags=["exercise"]
# ### 9.3 Debug: what FSDP is, and what it combines with
#
# (two published mistakes, note 001) Llama 3 405B is trained with FSDP over 64 ranks. A layer has 3,187,703,808 parameters. Note 001 says that each GPU
# "processes a different shard of the model", and that FSDP is hard to combine with tensor parallelism. Check both claims by three numbers of parameters: with how many parameters of a layer
# does a rank compute? How many of them does it store? And how many of a layer does a rank gather, if tensor parallelism over 8 is added (512 GPUs)? The last number is not exactly an
# eighth, because norms are not cut: take `local_parameters` and `Layout`, and give it with six digits or more.

# %% [raw] tags=["hints"]
# importance 3, difficulty 2
# Section 9.1: which shape did the rank compute with?
# local_parameters(models.MODELS["llama3-405b"], Layout(dp=64, tp=8, zero_stage=3))

# %% tags=["exercise"]
computes, stores, gathers_with_tp = ..., ..., ...
### BEGIN SOLUTION
computes = 3_187_703_808
stores = computes // 64
layout = Layout(dp=64, tp=8, zero_stage=3)
large = models.MODELS["llama3-405b"]
gathers_with_tp = local_parameters(large, layout).layer_dense
### END SOLUTION
check("9.3", [computes, stores, gathers_with_tp])

# %% [markdown] tags=["exercise"]
# ### 9.5 Debug: read the profile
#
# Four colleagues shard LLaMA-2 7B (32 layers, bf16) with FSDP over 8 GPUs, each with other settings. All four train correctly. Their profilers count the collectives of a
# step, and the GB of whole weights at the peak. Which setting did each of them choose: `"as advised"`, `"no prefetch"`, `"no reshard"` or `"layers not wrapped"`?

# %% [raw] tags=["hints"]
# importance 4, difficulty 2
# 32 layers and the root: how many units are there, and how often is each gathered?
# 13.48 GB are all weights at once. Who gathers them one by one, and who in one piece?
# Prefetch changes no count, only how many layers are whole at a time.

# %% tags=["exercise"]
did = {
    "65 all-gathers, 33 reduce-scatters, 0.93 GB": ...,
    "33 all-gathers, 33 reduce-scatters, 13.48 GB": ...,
    "1 all-gather, 1 reduce-scatter, 13.48 GB": ...,
    "65 all-gathers, 33 reduce-scatters, 1.33 GB": ...,
}
### BEGIN SOLUTION
did = {
    "65 all-gathers, 33 reduce-scatters, 0.93 GB": "no prefetch",
    "33 all-gathers, 33 reduce-scatters, 13.48 GB": "no reshard",
    # The model is a single unit, the root.
    "1 all-gather, 1 reduce-scatter, 13.48 GB": "layers not wrapped",
    "65 all-gathers, 33 reduce-scatters, 1.33 GB": "as advised",
}
### END SOLUTION
check("9.5", did)

# %% [markdown] tags=["exercise"]
# ### 9.6 Debug: more cards
#
# You train LLaMA-2 13B with FULL_SHARD on 16 cards of 24 GB, of which 22.8 GB may be used. Each card has one sequence of 4096 tokens; AdamW takes 16 bytes a parameter, and nothing is
# recomputed. A card would need 49 GB. A colleague says: "Take 64 cards, or a thousand." Which of these changes alone makes the training fit (True or False)? And how many GB does no number of
# cards make smaller, that is, everything but the shards?

# %% [raw] tags=["hints"]
# importance 3, difficulty 3, group
# How large are the shards on 16 cards, on 64, on 1024? And how many GB are missing?
# Activations of a card's own sequence, whole layers and their gradients: do they depend on the number of cards?
# bill.total_bytes - bill.model_states_bytes.

# %% tags=["exercise"]
### BEGIN GIVEN
# layout = Layout(dp=16, zero_stage=3)
# bill = gpu_memory(Job(models.MODELS["llama2-13b"], Recipe(), layout, sequence=4096))
# bill.total_bytes; bill.model_states_bytes  # of which shards
### END GIVEN
fits = {
    "64 cards": ...,
    "1024 cards": ...,
    "sequences of 2048 tokens": ...,
    "full recomputation": ...,
    "full recomputation, on 8 cards": ...,
}
stays_gb = ...
### BEGIN SOLUTION
fits = {
    "64 cards": False,
    "1024 cards": False,
    "sequences of 2048 tokens": False,
    "full recomputation": True,
    "full recomputation, on 8 cards": False,
}
layout = Layout(dp=16, zero_stage=3)
bill = gpu_memory(Job(models.MODELS["llama2-13b"], Recipe(), layout, sequence=4096))
stays_gb = (bill.total_bytes - bill.model_states_bytes) / 1e9
### END SOLUTION
check("9.6", [fits, stays_gb])

# %% [markdown] tags=["exercise"]
# ### 9.11 Build: FSDP
#
# Write FSDP yourself: a unit, which is cut, gathered, freed and reduced, and an FSDP, which says when. `Hooked` does what surrounds them. It cuts the model
# into `self.units`, one `FSDPUnit` each (number 0 is the root, and the blocks follow in order). It puts views of a unit's `whole` into the modules while they compute, and calls your
# four methods. `self.frees(number)` says whether a unit is freed between its passes, `self.prefetch` whether to fetch ahead, and `self.sync` whether this backward pass reduces its gradients.
#
# `wire.start_all_gather(whole, part, group)` and `wire.start_reduce_scatter(part, whole, group)` fill their first argument in the background and return at once; `.wait()` on what they return
# waits. Memory goes and comes by `whole.untyped_storage().resize_(size_in_bytes)`: the tensor and its views stay, and see what the next gather brings. `group` is the ranks over which a unit is cut, None for all of them.
#
# The check runs your code on two and three ranks, on all of them and on a group: a unit alone, whose bytes it counts; a training step of a small GPT beside one process, in fp32 and with units in bf16, with every collective
# and with what is left in memory; prefetch; and updates of two micro-batches, of which the first may reduce nothing. What passes is kept as `mine/fsdp.py`, and `course demo fsdp --parts mine` trains with it, beside `fully_shard`.

# %% [raw] tags=["hints"]
# importance 5, difficulty 5
# A unit: cat of the flattened parameters, zeros up to a multiple of the ranks, and this rank's chunk, as a copy of its own. `whole` is empty(size), its storage resized to 0.
# Gather: resize the storage to whole.nbytes, copy the shard into its own part of whole, whole.view(ranks, -1)[rank], and start_all_gather from there. Who waits, and when?
# Reduce: a part like the shard, start_reduce_scatter from `gradient`; later wait, divide by the ranks, and add to what shard.grad has already.
# before_forward and before_backward: gather this unit, then fetch the next in that pass's direction. after_backward: free, finish reductions that are under way, add the gradients, start to reduce them if self.sync, and wait at once for unit 0, which is the last.

# %% tags=["exercise"]
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from course_lib.scratch import wire
from course_lib.scratch.fsdp import Hooked

### BEGIN GIVEN


class FSDPUnit:
    """Parameters that are gathered, freed and reduced together."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        device: torch.device,
        group: ProcessGroup | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Keep this rank's part of the parameters; all ranks have the same ones.

        Nothing else of their size is kept. Attributes: `group`; `shard`, an nn.Parameter (size / ranks,) in fp32, this rank's part of all parameters behind one another and zeros up
        to `size`, a multiple of the ranks; `whole` (size,) in `dtype`, without memory; `gradient`, None.
        """
        ...

    def views(self, whole: Tensor) -> dict[str, Tensor]:
        """Each parameter's view of `whole`, any vector (size,), by name, in the order of `parameters`."""
        ...

    def start_gather(self) -> None:
        """Give `whole` its memory and start to fill it from all shards, in its dtype, unless that has happened."""
        ...

    def gather(self) -> None:
        """Return when `whole` is filled."""
        ...

    def free(self) -> None:
        """Take the memory of `whole` away; a gather on its way has to end first."""
        ...

    def add_gradients(self, gradients: Sequence[Tensor]) -> None:
        """Add the gradients, one for each parameter, to `gradient` (size,) in fp32, and leave them as they are."""
        ...

    def start_reduction(self) -> None:
        """Start to average `gradient` over the ranks, in fp32, and set it to None."""
        ...

    def finish_reduction(self) -> None:
        """Wait for a reduction, if one was started, and add this rank's part to `shard.grad`, which may be None.

        Then nothing whole is left of the gradient.
        """
        ...


class FSDP(Hooked):
    """Whole units only while they compute."""

    unit = FSDPUnit

    def before_forward(self, number: int) -> None:
        """The unit must be whole when this returns; in step 3 the next one is fetched as well."""
        ...

    def after_forward(self, number: int) -> None:
        """Free the unit if it is freed between its passes."""
        ...

    def before_backward(self, number: int) -> None:
        """The unit must be whole when this returns; in step 3 the one before it is fetched as well."""
        ...

    def after_backward(self, number: int, gradients: Sequence[Tensor]) -> None:
        """Free the unit, keep its gradients, and start to reduce them if `self.sync`.

        A reduction travels while the unit before it computes: it is waited for when the next gradients come. So
        at most one is under way, and none when the backward pass ends: unit 0 is its last.
        """
        ...

    def fetch(self, number: int) -> None:
        """Start to gather a unit, without waiting, if `self.prefetch` and there is a unit of this number."""
        ...


### END GIVEN
### BEGIN SOLUTION
from course_lib.scratch.fsdp import FSDP, FSDPUnit

### END SOLUTION

check("9.11", [FSDPUnit, FSDP])
