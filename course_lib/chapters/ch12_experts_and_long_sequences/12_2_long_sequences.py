# %% [raw] tags=["sitting"]
# question: How do you train on a sequence that no GPU can hold?
# importance: 4
# difficulty: 4
# group: alone
# needs: 8

# %% [markdown]
# # 12 Long sequences
#
# LLaMA-3.1 8B reads 131,072 tokens. One such sequence leaves 704 GB of activations, so the sequence itself must be cut. **How do you train on a sequence that no GPU can hold?**
#
# After this sitting you can
#
# - cut one sequence over ranks without any approximation, and give all of them equal work,
# - say from how many tokens on each rank a ring of keys and values costs no time,
# - choose between a ring, an all-gather and an all-to-all of heads.

# %%
import torch

from course_lib import demos, expect, launch, predict, scratch, show_source, style
from course_lib.chapters.ch12_experts_and_long_sequences import figures
from course_lib.theory import (
    Cluster,
    Job,
    Layout,
    Recipe,
    activations,
    context,
    flops,
    gpu_memory,
    hardware,
    models,
    units,
)
from course_lib.theory.network.step_traffic import step_traffic

launch.warm_up()
torch.set_num_threads(1)

# %% [markdown]
# ## 12.6 One long sequence
#
# What grows with the sequence $s$? Weights, gradients and optimizer states do not. Activations and logits grow as $s$, and so does the work of all
# matrices. The work of attention's scores grows as $s^2$. For one layer, forward and backward, without a mask:

# %%
llama = models.MODELS["llama3.1-8b"]
layer = activations.layer_activation_bytes(Job(llama, Recipe(), sequence=131_072))
assert round(llama.layers * layer / 1e9) == 704
works = [flops.layer_flops(llama, 0, 1, 2**power) for power in range(11, 21)]
tera = {"scores": [(it.tokens, it.scores_flop / 1e12) for it in works]}
tera["matrices"] = [
    (it.tokens, (it.projections_flop + it.mlp_flop) / 1e12) for it in works
]

# %% tags=["drawing"]
figures.lines(
    tera,
    "tokens in the sequence",
    "TFLOP of one layer",
    "LLaMA-3.1 8B: what a longer sequence costs",
    doubling=(True, True),
)

# %% [markdown]
# Data parallelism cannot cut one sequence, and a pipeline does not cut the first stage's activations. *Tensor parallelism* with sequence parallelism
# cuts layers and logits, but stays in a node: 8 ways (chapter 10). Is that enough? Count all that lies on one of eight GPUs:

# %%
H100 = hardware.accelerator("H100-SXM")


def held_by(layout, tokens=131_072, recompute="none"):
    """What lies on each of the GPUs that share a sequence."""
    cluster = Cluster(H100, nodes=max(1, layout.world // 8))
    job = Job(llama, Recipe(recompute=recompute), layout, cluster, tokens)
    return {kind: x for kind, x in gpu_memory(job).consumers.items() if x > 1e8}


eight_ways = Layout(tp=8, sequence_parallel=True)
bars = {
    "131,072, recomputed": held_by(eight_ways, recompute="full"),
    "131,072, all kept": held_by(eight_ways),
    "1,048,576, recomputed": held_by(eight_ways, 1_048_576, "full"),
}
assert [round(sum(bar.values()) / 1e9) for bar in bars.values()] == [34, 118, 155]

# %%
limit = ("one GPU", 80 * units.GB)
title = "LLaMA-3.1 8B: each of 8 GPUs that share one sequence"
figures.stacked_bars(bars, title, units.format_bytes, limit=limit)

# %% [markdown]
# With full recomputation (chapter 4) it is: 34 GB fit, for a third more FLOP. Eight ways are too few if nothing may be computed twice (118 GB), and
# for a million tokens (155 GB).
#
# So cut the sequence: with $n$ ranks each has $s/n$ tokens. Norms, MLPs and logits treat tokens one by one and do not notice. Only in attention does
# a token look at others. Cutting the sequence through the whole layer is **context parallelism** (CP). The weights are the same on all ranks, as in
# data parallelism, and their gradients are summed over DP and CP ranks together. So CP alone leaves all states on every GPU; ZeRO (chapter 8) cuts
# those, over the same ranks:

# %%
bars = {
    "tp 8": held_by(eight_ways),
    "cp 16": held_by(Layout(cp=16)),
    "cp 16, ZeRO-3": held_by(Layout(cp=16, zero_stage=3)),
}
of_tp, of_cp, of_both = (sum(bar.values()) for bar in bars.values())
assert round(of_cp / 1e9) == 196 and of_both < 80e9 < of_tp

# %%
title = "Each GPU: one sequence of 131,072 tokens, all activations kept"
figures.stacked_bars(bars, title, units.format_bytes, limit=limit)

# %% [markdown]
# With cp 16 and ZeRO-3 the sequence fits, and nothing is computed twice.
#
# ### Attention in pieces: online softmax
#
# A query needs the softmax over *all* keys, and they lie on other ranks. Can it begin with some of them? Take one query and three keys, with scores
# 1, 2 and 4 and values 10, 20 and 40. At once:
#
# $$\frac{e^1 \cdot 10 + e^2 \cdot 20 + e^4 \cdot 40}{e^1 + e^2 + e^4}
# = \frac{27.2 + 147.8 + 2183.9}{64.7} = 36.46 .$$
#
# Now the first rank has keys 1 and 2, and the second has key 3. Each computes the mean of its own values, and remembers one more number, the
# logarithm of its denominator, $\ell$ ("log-sum-exp"):
#
# | block | mean $o$ | denominator | $\ell$ |
# |---|---|---|---|
# | keys 1, 2 | (27.2 + 147.8) / 10.11 = 17.31 | 10.11 | 2.313 |
# | key 3 | 40 | 54.60 | 4 |
#
# Each mean counts by its share of the whole denominator, $10.11 / 64.7 = 0.156$ and $54.60 / 64.7 = 0.844$. So the result is
# $0.156 \cdot 17.31 + 0.844 \cdot 40 = 36.46$. For two blocks $a$ and $b$:
#
# $$\ell = \log(e^{\ell_a} + e^{\ell_b}), \qquad o = e^{\ell_a - \ell}\, o_a + e^{\ell_b - \ell}\, o_b .$$
#
# This is **online softmax** (在线归一化). It is exact in any order of the blocks, and only *differences* of $\ell$ meet the exponential, so
# nothing overflows. Flash attention is built on it as well (Milakov and Gimelshein 2018, arXiv:1805.02867; Dao et al. 2022, arXiv:2205.14135, section
# 3.1).

# %%
scores, values = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([10.0, 20.0, 40.0])


def block(keys):
    """Mean of the block's values, and log-sum-exp of its scores."""
    return scores[keys].softmax(0) @ values[keys], scores[keys].logsumexp(0)


(o_a, l_a), (o_b, l_b) = block(slice(0, 2)), block(slice(2, 3))
both = torch.logaddexp(l_a, l_b)
merged = (l_a - both).exp() * o_a + (l_b - both).exp() * o_b
assert torch.isclose(merged, scores.softmax(0) @ values)
print(f"merged: {merged:.2f}")

# %% tags=["drawing"]
keys = ("key 1", "key 2", "key 3")
rows = {
    "all at once": dict(zip(keys, scores.softmax(0).tolist(), strict=True)),
    "first rank": dict(zip(keys, scores[:2].softmax(0).tolist(), strict=False)),
    "second rank": {"key 3": 1.0},
    "merged": {"first rank": float((l_a - both).exp())},
}
rows["merged"]["second rank"] = 1 - rows["merged"]["first rank"]
means = zip(rows, (merged, o_a, o_b, merged), strict=True)
notes = {name: f"mean {mean:.2f}" for name, mean in means}
figures.stacked_bars(rows, "Shares of the softmax", "{:.3f}".format, notes)

# %% [markdown]
# **Remember**
# - Activations grow with $s$, scores with $s^2$, model states not at all.
# - All layers but attention treat tokens one by one: they can be cut along the sequence at no cost.
# - Two blocks of attention merge exactly, if each remembers its log-sum-exp.

# %% [markdown]
# ## 12.7 Ring attention
#
# $n$ ranks sit in a circle. Each keeps its queries, and the keys and values travel. In each round a rank works on the block it has, sends it on to
# its neighbour, and receives the next one. After $n - 1$ hops every rank has seen all keys. At any time it holds at most three blocks, however large
# $n$ is: its own, the one that it works on, and the one that is coming. This is **ring attention** (环形注意力) (Liu et al. 2023, arXiv:2310.01889,
# section 3). Exercise 12.11 asks for it; the course's own version is folded at the end of this section.
#
# A hop carries the keys and values of $c = s/n$ tokens, $w$ numbers a token ($w = h$, or less with grouped-query attention, where several query heads
# share keys). Per layer and sequence there are $n-1$ hops forward; $n-1$ backward, since keeping all blocks would undo the saving; and $n-1$ with the
# gradients of keys and values, which end at home:
#
# $$\text{bytes of a layer} = 3\,(n-1) \cdot c \cdot 2w \cdot \text{bytes per number}.$$
#
# **Predict.** Cut the same sequence over 16 ranks instead of 4. How many times as many bytes does each rank send?

# %%
grown = predict("12.ring_bytes", "Bytes of a rank, n = 16 / n = 4?", yours=None)


# %%
def ring_bytes(ranks, tokens=131_072, width=1024):
    """Sent by a rank for one layer, in bf16."""
    return 3 * (ranks - 1) * (tokens // ranks) * 2 * width * 2


step = step_traffic(Job(llama, Recipe(), Layout(cp=16), Cluster(H100, 2), 131_072))
assert step.bytes_by_axis["cp"] == 32 * ring_bytes(16)
expect(ring_bytes(16) / ring_bytes(4), label="n = 16 / n = 4", yours=grown)

# %% [markdown]
# **Explain.** The slices are a quarter as long and there are five times as many hops. More ranks share the work but not the bytes. For LLaMA-3.1 8B
# on 16 ranks ($w = 1024$) a hop is 33.6 MB, and 45 of them in each of 32 layers are 48.3 GB a step.
#
# Do the hops hide behind the computation? A block of $c$ queries and $c$ keys takes $4c^2h$ FLOP (queries with keys, weights with values, 2 for each
# multiply-add). The next block has $4cw$ bytes. The one grows with $c^2$, the other with $c$, so somewhere the lines cross. For an H100 (989 TFLOP/s)
# and a 50 GB/s network:

# %%
needed = {
    width: context.hidden_ring_tokens(989.4e12, 50e9, hidden=4096, kv_width=width)
    for width in (4096, 1024)
}
assert round(needed[1024]) == 4947 and needed[4096] == 4 * needed[1024]

# %% tags=["drawing"]
slices = [2**power for power in range(10, 17)]
curves = {"computing": [(c, 1e6 * 4 * c**2 * 4096 / 989.4e12) for c in slices]}
for width in needed:
    curves[f"sending, w = {width:,}"] = [
        (c, 1e6 * 4 * c * width / 50e9) for c in slices
    ]
figures.lines(
    curves,
    "tokens on a rank, c",
    "µs for one block",
    "Right of the crossing the hop is hidden",
    doubling=(True, True),
    mark={f"{tokens:,.0f}": tokens for tokens in needed.values()},
)

# %% [markdown]
# LLaMA-3.1 8B needs 4947 tokens on a rank; with as many key heads as query heads it would need four times as many.
#
# ### Who has how much to do?
#
# A token sees only earlier ones. Cut 64 tokens into 4 slices of 16: rank 0's queries see one slice, rank 3's queries see four. Walk round the ring.
# In which step does a rank wait for the first time, and who works in the last one?

# %%
from course_lib.chapters.ch12_experts_and_long_sequences import steppers

steppers.ring_attention(ranks=4)

# %% [markdown]
# From the second step on, rank 0 gets only keys that its queries must not see. In the last step rank 3 works alone, and all wait for it. In general
# rank $r$ has $r + 1$ blocks. The busiest has $n$, the mean is $(n+1)/2$, and the imbalance $2n/(n+1)$ goes to 2: with many ranks half of all time is
# waiting.
#
# The remedy: cut into $2n$ chunks, and give each rank an early and a late one. Rank 0 gets chunks 0 and 7, rank 1 gets 1 and 6, rank 2 gets 2 and 5,
# rank 3 gets 3 and 4. This is the **zig-zag** (之字形) order; Llama 3 was trained with it (arXiv:2407.21783, section 3.3.2).
#
# **Predict.** Chunk $j$ sees $j + 1$ chunks, itself among them. How many pairs of chunks does each of the four ranks compute?

# %%
each = predict("12.zigzag", "Pairs of chunks of a rank?", yours=None)

# %%
in_order = [context.rank_scores(64, rank, ranks=4) for rank in range(4)]
zigzag = [context.rank_scores(64, rank, 4, zigzag=True) for rank in range(4)]
assert in_order == [256, 512, 768, 1024] and len(set(zigzag)) == 1
expect(zigzag[0] / 8**2, label="pairs of chunks of a rank", yours=each)

# %% tags=["drawing"]
rows = {
    f"rank {rank}": {"in order": in_order[rank], "zig-zag": zigzag[rank]}
    for rank in range(4)
}
colours = {"in order": style.PALE, "zig-zag": style.COMPUTING}
figures.grouped_bars(rows, "Scores that each rank computes", "{:,}".format, colours)

# %% [markdown]
# **Explain.** Rank $r$ has $(r + 1) + (2n - r)$ pairs of chunks, which is $2n + 1 = 9$ for every $r$: a short early row and a long late row always
# add up to the same. (The sum falls, since smaller chunks waste fewer scores that the mask hides.) The same ring with zig-zag slices:

# %%
from course_lib.chapters.ch12_experts_and_long_sequences import steppers

steppers.ring_attention(ranks=4, zigzag=True)

# %% [markdown]
# Do the hops still hide? With slices in order the last rank computes a whole block in every hop: 4947 tokens suffice. With zig-zag slices every rank
# computes 2 of 4 pairs of chunks in a hop, half a block. So it takes twice as many tokens, about 9900.


# %%
def part_of_block(rank, owner, zigzag):
    """Which part of a block `rank` of 4 computes when `owner`'s keys are there."""
    mine, theirs = (context.chunks(at, 4, zigzag) for at in (rank, owner))
    return sum(k <= q for q in mine for k in theirs) / len(mine) ** 2


for hop in (1, 2, 3):
    parts = [
        [part_of_block(rank, (rank - hop) % 4, zigzag) for rank in range(4)]
        for zigzag in (False, True)
    ]
    assert max(parts[0]) == 1 and parts[1] == [0.5] * 4

# %% [markdown]
# ### Documents
#
# Long sequences are often packed from several documents, and a **document mask** hides each from the others. Then zig-zag no longer balances. Let 64
# tokens be two documents of 48 and 16 tokens, 6 and 2 chunks:

# %%
seen = [1, 2, 3, 4, 5, 6, 1, 2]  # chunks of its own document that each chunk sees
pairs = [seen[rank] + seen[7 - rank] for rank in range(4)]
print(pairs)
assert max(pairs) / (sum(pairs) / 4) == 1.5

# %% [markdown]
# Ranks 2 and 3 have three times the work of ranks 0 and 1, and half as much again as the mean. Section 13.10 meets this in Llama 3.
#
# ### Two other ways
#
# **All-gather.** Llama 3 gathers all keys and values at once. With grouped-query attention they are small, and any mask can be used. It takes fewer,
# larger messages and more memory, and has less to hide behind.
#
# **All-to-all of heads.** DeepSpeed-Ulysses (arXiv:2309.14509) turns "all heads of some tokens" into "all tokens of some heads" before attention, and
# back after it. Queries and results have $h$ numbers a token, keys and values $2w$, and the backward pass sends as much again:
#
# $$\text{bytes of a layer} = 2 \cdot \tfrac{n-1}{n} \cdot c \cdot (2h + 2w) \cdot \text{bytes per number}.$$
#
# $c$ falls with $n$, so with more ranks each of them sends less. But each rank needs a head of its own, and with grouped-query attention a key head:
# LLaMA-3.1 8B has 8 of them, so at most 8 ranks, and fewer if tensor parallelism cuts the heads as well.


# %%
def ulysses_bytes(ranks, tokens=131_072, hidden=4096, width=1024):
    """Sent by a rank for one layer in two all-to-alls and their backward passes, in bf16."""
    return 2 * (ranks - 1) / ranks * tokens / ranks * 2 * (hidden + width) * 2


assert llama.kv_heads == 8
assert ring_bytes(2) < ulysses_bytes(2)
assert round(ring_bytes(8) / ulysses_bytes(8), 1) == 2.4

# %% tags=["drawing"]
curves = {
    "ring": [(n, ring_bytes(n)) for n in (2, 4, 8, 16, 32)],
    "all-to-all of heads": [(n, ulysses_bytes(n)) for n in (2, 4, 8)],
}
figures.lines(
    {name: [(n, size / 1e9) for n, size in line] for name, line in curves.items()},
    "ranks that share the sequence",
    "GB sent by a rank",
    "LLaMA-3.1 8B, 131,072 tokens: one layer, forward and backward",
    doubling=(True, False),
)

# %% [markdown]
# On 8 ranks the ring sends 2.4 times as much. But the ring can hide its bytes behind attention, and attention waits for the all-to-all.
#
# In Megatron-Core: `--context-parallel-size 16`, with `--cp-comm-type p2p` for the ring and `a2a` for the all-to-all. In PyTorch:
# `torch.distributed.tensor.experimental.context_parallel`, still experimental, for GPUs.
#
# **Remember**
# - Ring: $3(n-1)$ hops a layer. The longer the slice, the better it hides; more ranks do not send less.
# - Slices in order: imbalance up to 2. Zig-zag: all ranks equal, unless documents are masked.
# - An all-to-all of heads sends less, up to one rank per key head.

# %% [markdown]
# ### Deeper: the course's own ring
#
# Attention to a block, for all queries at once, and the merge of two blocks:

# %%
show_source(scratch.context.block_forward, scratch.context.merge)

# %%
show_source(scratch.context.ring_forward)

# %% [markdown]
# `ring.visits` starts the next hop *before* it hands out the current block, so sending and computing overlap. `ring.pairs` says which chunks see each
# other; `same` is the chunk that meets itself, where the mask hides the later half. `cut` takes one chunk out of a slice.

# %% [markdown]
# ## 12.8 Demo: a ring of four
#
# A small GPT, 4 samples of 64 characters, each cut into 4 slices. The demo trains it three times: with a ring, with a ring of zig-zag slices, and by
# PyTorch's all-gather, in which each rank gathers all keys and values of a layer once, keeps them for the backward pass, and reduce-scatters their
# gradients.
#
# **Predict.** How many times as many bytes does the all-gather version send as the ring? The ring sends each block round three times.

# %%
gathered_bytes = predict("12.gathered", "Bytes, all-gather / ring?", yours=None)

# %%
run = demos.run("context", ranks=4, steps=3, stream=False)
ring, zig, gathered = run.versions
in_ring, in_zig = (version.sent["send-recv"][1] for version in (ring, zig))
whole = sum(gathered.sent[name][1] for name in ("all-gather", "reduce-scatter"))
left = 3 / 4 * whole  # of a gathered or scattered tensor three quarters travel
expect(
    2 / 3,
    left / in_ring,
    within=1e-9,
    label="all-gather / ring",
    yours=gathered_bytes,
)

# %%
hop = 4 * 16 * 2 * 64 * 4  # batch · tokens · keys and values · width · bytes
expect(2 * 3 * 3, ring.sent["send-recv"][0], label="messages of the ring")
expect(18 * hop, in_ring, label="its bytes", unit="B")
print(run.report())

# %%
assert run.scores["ring"] == in_order and run.scores["zig-zag ring"] == zigzag
assert all(v.sent == v.predicted_sent for v in run.versions)
assert in_zig == in_ring  # other tokens, as many bytes

# %% [markdown]
# **Explain.** A ring makes 3 hops in each of 3 rounds and 2 layers, 18 in all, and the counter agrees to the byte. The all-gather version sends two
# thirds of that, because it *keeps* the gathered keys and values for the backward pass: the memory that the ring saves. The differences to one
# process are rounding ($10^{-7}$). Here the ring is usually slower, because of tiny blocks and a Python loop around each message.
#
# In a terminal:
#
# ```
# course demo context --ranks 4 --sequence 256
# ```

# %% [markdown]
# ## The answer
#
# Cut the sequence itself. With cp 16 and ZeRO-3 each GPU holds one sixteenth of the 131,072 tokens and of the states, and the sequence fits without
# any recomputation. Attention stays exact, because blocks merge by their log-sum-exps. A ring of zig-zag slices gives all ranks equal work, and its
# hops are hidden from about 9900 tokens on each rank; cp 16 leaves 8192, a little too few.

# %%
from course_lib import quiz

quiz("12")

# %% [raw] tags=["quiz"]
# Mixtral has 46.7 B parameters, 12.9 B of them active. What needs memory on the GPUs?
# [ ] states of 12.9 B
# [x] states of 46.7 B
# [ ] states of 56 B
# Why: Another token may need any expert: all are stored. Active ones decide the time.
#
# The busiest of 8 experts has 1.8 times the mean. Capacity factor 1.25. What happens?
# [ ] nothing is dropped
# [x] that expert drops 30 % of its tokens
# [ ] it drops 80 % of them
# Why: It accepts 1.25 of 1.8: (1.8 - 1.25) / 1.8 = 0.31.
#
# Four experts, top-1, balance loss 4. What does the router do?
# [ ] all experts get the same
# [x] everything goes to one expert
# [ ] it drops everything
# Why: 1 is even. E / k is the worst: 4 for k = 1, and 2 with two experts for each token.
#
# A bias for the choice replaces the balance loss. What are the experts' results multiplied by?
# [ ] the probabilities plus the biases
# [x] the probabilities alone
# [ ] the biases alone
# Why: The bias decides who is chosen; without a say in the result it disturbs no gradient.
#
# Why is an expert's gradient not all-reduced when each expert lies on one rank?
# [ ] experts are not trained
# [x] tokens of all ranks came to it: its gradient is complete
# [ ] it would be too large
# Why: The all-to-all brought it the tokens of the whole batch.
#
# Twice as many experts, half as wide, and each token uses twice as many. What changes?
# [ ] nothing: the FLOP stay the same
# [x] as many FLOP for twice the bytes: the all-to-all hides worse
# [ ] half the bytes, since the experts are smaller
# Why: FLOP per byte are 2.25 f. A token travels to each of its experts, narrow or wide.
#
# LLaMA-3.1 8B has 8 key heads, and 16 ranks share a sequence. What does not work, unless key heads are copied?
# [ ] a ring
# [ ] an all-gather of keys and values
# [x] an all-to-all of heads
# Why: Each rank needs a key head of its own. A ring and an all-gather cut tokens, not heads.
#
# Ring attention, causal, 8 ranks with slices in order. What is wrong?
# [ ] the result is an approximation
# [x] the last rank has 8 times the work of the first
# [ ] the first rank waits for its keys
# Why: The last rank's queries see all slices, the first one's only their own. Zig-zag evens it out.

# %% [markdown]
# **Read on.** Liu et al. 2023, *Ring Attention*, section 3 (arXiv:2310.01889). Jacobs et al. 2023, *DeepSpeed Ulysses*, section 3 (arXiv:2309.14509).
# Llama 3, section 3.3.2 (arXiv:2407.21783).

# %% [markdown] tags=["exercise"]
# ### 12.7 Calculate: a ring, or an all-to-all of heads?
#
# Five trainings share sequences of 131,072 tokens over CP ranks. Which of the two sends fewer bytes for each of them, `"ring"` or `"all-to-all"`? No
# head may be copied, so where key heads do not suffice, only the ring is left. LLaMA-3.1 8B has $h = 4096$ and 8 key heads of 128 numbers ($w =
# 1024$). LLaMA-2 7B has $h = w = 4096$ and 32 key heads. With tp 4 each GPU has a quarter of the heads, so a quarter of $h$ and $w$. And for the
# second training: how many times as many bytes does the ring send as the all-to-all?

# %% [raw] tags=["hints"]
# importance 4, difficulty 3
# First strike out what cannot be: how many key heads does a GPU have, and over how many ranks must they be divided?
# Divide the two formulas of section 12.7. What is left of the number of tokens?
# ring / all-to-all is 3 n w / (2 (h + w)).

# %% tags=["exercise"]
fewer = {
    "LLaMA-3.1 8B, cp 2": ...,
    "LLaMA-3.1 8B, cp 8": ...,
    "LLaMA-3.1 8B, cp 16": ...,
    "LLaMA-3.1 8B, tp 4, cp 4": ...,
    "LLaMA-2 7B, cp 16": ...,
}
factor = ...
### BEGIN SOLUTION
fewer = {
    "LLaMA-3.1 8B, cp 2": "ring",  # 0.6 times as much
    "LLaMA-3.1 8B, cp 8": "all-to-all",
    "LLaMA-3.1 8B, cp 16": "ring",  # 8 key heads
    "LLaMA-3.1 8B, tp 4, cp 4": "ring",  # 2 key heads on a GPU
    "LLaMA-2 7B, cp 16": "all-to-all",
}
factor = 3 * 8 * 1024 / (2 * (4096 + 1024))
### END SOLUTION
check("12.7", [fewer, factor])

# %% [markdown] tags=["exercise"]
# ### 12.9 Predict: as many ranks as the ring hides
#
# You train LLaMA-3.1 8B (hidden 4096, keys of 1024 numbers) on sequences of 131,072 tokens, causal, with ring attention and zig-zag slices, on H100s
# (989.4 TFLOP/s). The degree of context parallelism is a power of two. What is the largest one at which every hop still hides behind computation, at
# the chip's peak, over a network of 50 GB/s? The same for a model with as many key heads as query heads? And for LLaMA within a node of some future
# machine, over 450 GB/s?
#
# Then: at the first of the three degrees, how many times as much would the busiest rank compute if the slices lay in order? Guess each number, then
# compute it with `context.hidden_ring_tokens` and `context.rank_scores`.

# %% [raw] tags=["hints"]
# importance 3, difficulty 4
# More ranks have shorter slices. What does a shorter slice do to computing, and to a hop?
# hidden_ring_tokens(989.4e12, 50e9, hidden=4096, kv_width=1024) is for whole blocks: section 12.7 says which part of a block a rank with zig-zag slices computes in a hop.
# Tokens / tokens of a slice, rounded down to a power of two; max / max for the last.

# %% tags=["exercise"]
llama, all_heads, fast_wire = ..., ..., ...
shorter = ...
### BEGIN SOLUTION
degrees = []
for width, rate in ((1024, 50e9), (4096, 50e9), (1024, 450e9)):
    tokens = context.hidden_ring_tokens(989.4e12, rate, hidden=4096, kv_width=width)
    # Zig-zag: half a block for every rank in every hop, so slices twice as long.
    degrees.append(2 ** int(math.log2(131_072 / (2 * tokens))))
llama, all_heads, fast_wire = degrees
plain = [context.rank_scores(131_072, rank, llama) for rank in range(llama)]
mixed = [
    context.rank_scores(131_072, rank, llama, zigzag=True) for rank in range(llama)
]
shorter = max(plain) / max(mixed)
### END SOLUTION
check("12.9", [llama, all_heads, fast_wire, shorter])

# %% [markdown] tags=["exercise"]
# ### 12.11 Build: attention round a ring
#
# Write the forward pass of ring attention (sections 12.6 and 12.7): attention to one block, the merge of two blocks, and the loop over the ring.
# Tensors are (batch, heads, tokens, width). You are given `ring`, a `SequenceRing`:
#
# - This rank is number `ring.rank` of `ring.ranks`. Its slice of the sequence is one chunk, or two that are not neighbours.
# - `ring.start(tensor)` starts one hop: `tensor` to the next rank, and the previous rank's tensor to this one. It
#   returns at once; `.wait()` on what it returns gives the tensor that has come. All ranks make the same number of hops.
# - `ring.pairs(owner)` yields `(i, j, same)`: this rank's chunk `i` sees chunk `j` of the slice of rank `owner`. `same` says that both are the same
#   chunk. Pairs in which nothing is seen are left out.
# - `ring.cut(tensor, i)` is a view of chunk `i` of a slice.
#
# Keys and values travel while blocks are computed: start a hop before the blocks of its round, and wait for it after them.
#
# The check compares a block and the merge with attention to all keys, with scores as large as 1,000 and with blocks
# whose log-sum-exp is $-\infty$; then it runs the ring on 2 and 3 ranks, also in a smaller group, and looks at the hops.
# What passes is kept as `mine/ring_attention.py`, and `course demo context --parts mine` trains with it.

# %% [raw] tags=["hints"]
# importance 3, difficulty 5
# block_forward: scores are q @ k.transpose(-1, -2) / √width. `same` hides the keys behind the query's own: -inf in their place. The weights are exp(score - lse): no overflow.
# merge: with `both` the log-sum-exp of lse and block_lse (torch.logaddexp), the one weighs exp(lse - both) and the other exp(block_lse - both). Assign with mul_, add_ and copy_.
# ring_forward begins with a result of 0 and an lse of -inf. After k hops a rank has the keys and values of rank - k (mod ranks).
# Each round: start the next hop unless it is the last round, merge the blocks of all `ring.pairs(owner)` into `ring.cut(out, i)` and `ring.cut(lse, i)`, wait for the hop.

# %% tags=["exercise"]
import torch
from torch import Tensor

from course_lib.scratch.context import SequenceRing

### BEGIN GIVEN


def block_forward(q: Tensor, k: Tensor, v: Tensor, same: bool) -> tuple[Tensor, Tensor]:
    """Result of attention to this block alone, and its log-sum-exp.

    Scores are divided by the root of the width. With `same` queries and keys are the
    same tokens, and a query sees the keys up to its own; else it sees all of them.
    The log-sum-exp of each query's scores is (batch, heads, queries, 1).
    """
    ...


def merge(out: Tensor, lse: Tensor, block: tuple[Tensor, Tensor]) -> None:
    """Add a block, as `block_forward` returns it, to `out` and `lse` in place.

    Before the first block `out` is 0 and `lse` is -inf.
    """
    ...


def ring_forward(q: Tensor, kv: Tensor, ring: SequenceRing) -> tuple[Tensor, Tensor]:
    """Causal attention of this rank's queries to the keys and values of all ranks.

    `kv` is (2, batch, heads, tokens, width): this rank's keys, then its values. It
    stays as it is, and so does `q`. Returns the result and the log-sum-exp.
    """
    ...


### END GIVEN
### BEGIN SOLUTION
from course_lib.scratch.context import (
    block_forward,
    merge,
    ring_forward,
)

### END SOLUTION

check("12.11", [block_forward, merge, ring_forward])
