# %% [raw] tags=["sitting"]
# question: What does Mixtral 8x7B cost in memory, time and messages?
# importance: 4
# difficulty: 3
# group: alone
# needs: 6, 10

# %% [markdown]
# # 12 Experts
#
# "Mixtral 8x7B has 8 experts of 7 billion parameters. So I need memory for 56 billion, time for 14 billion, and 8 GPUs, one for each expert." Three
# claims, and all three are wrong. **What does Mixtral 8x7B cost in memory, in time and in messages?**
#
# After this sitting you can
#
# - count the parameters that a model with experts *has*, and those that one token *meets*,
# - say what a skewed router costs, and balance it by a loss or by a bias,
# - predict the bytes that travel between ranks, and say whether computation hides them.
#
# You need chapters 6 and 10.

# %%
import torch
import torch.distributed as dist

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
from course_lib.chapters.ch12_experts_and_long_sequences import balancing, figures
from course_lib.theory import (
    Cluster,
    Job,
    Layout,
    Recipe,
    experts,
    hardware,
    models,
    units,
)
from course_lib.theory.network.step_traffic import step_traffic

launch.warm_up()
torch.set_num_threads(1)

# %% [markdown]
# ## 12.1 Many MLPs, few of them used
#
# Take a transformer layer and replace its MLP by four MLPs of the same size, the **experts** (专家). A small matrix in front of them, the **router** (路由器),
# gives each token a score for each expert. A softmax makes probabilities of the scores. For one token:

# %%
p = (0.50, 0.20, 0.25, 0.05)
figures.routing(p, weights=(p[0] / (p[0] + p[2]), 0, p[2] / (p[0] + p[2]), 0))

# %% [markdown]
# The token goes to the best two, experts 0 and 2. Their results are added with weights that sum to 1: $0.50 / 0.75 = 0.67$ and $0.25 / 0.75 = 0.33$.
# Experts 1 and 3 never see this token; the next token may choose others. This is a **mixture of experts** (混合专家), MoE for short. In symbols: a token
# $x$ has $h$ numbers, the router is a matrix $R$ of $E \times h$, and each token uses $k$ of $E$ experts. $k$ is called **top-k**.
#
# $$p = \operatorname{softmax}(R\,x), \qquad
# y = \sum_{i \,\in\, \text{best } k} \frac{p_i}{\sum_{j \in \text{best } k} p_j}\; \mathrm{MLP}_i(x) .$$

# %%
show_source(scratch.experts.Router)

# %% [markdown]
# `topk` returns *indices*, which have no gradient. So the router learns through the weights only. That is why with $k = 1$ the weight is
# $p_i$ itself: divided by its own sum it would always be 1, and the router would never learn (Fedus et al. 2021, arXiv:2101.03961, section 2.1).
#
# **Predict.** 256 tokens, $h = 64$, experts of $64 \times 256$ and $256 \times 64$, and every token goes to 2 of them. With 64 experts instead of 8,
# by which factor do the FLOP of the forward pass grow?

# %%
work = predict("12.more_experts", "FLOP, 64 experts / 8?", yours=None)

# %%
tokens = torch.randn(1, 256, 64)


def mixture(top_k, experts=8):
    """A mixture of experts, alone on one rank."""
    torch.manual_seed(0)
    return scratch.experts.MoE(64, experts, top_k)


def flop_of(top_k, experts=8):
    """FLOP of its forward pass, counted."""
    return measure.times.matmul_flops(lambda: mixture(top_k, experts)(tokens))


one_expert = 2 * 64 * 256  # weights
by_hand = [2 * 256 * (2 * one_expert + count * 64) for count in (8, 64)]
growth = by_hand[1] / by_hand[0]
expect(growth, flop_of(2, 64) / flop_of(2), label="64 experts / 8", yours=work)

# %% tags=["drawing"]
rows = {}
for k, count in ((1, 8), (2, 8), (8, 8), (2, 64)):
    stored, one = (
        sum(p.numel() for p in mixture(*sizes).parameters())
        for sizes in ((k, count), (1, 8))
    )
    work_of = flop_of(k, count) / flop_of(1)
    rows[f"{k} of {count} experts"] = {"work": work_of, "memory": stored / one}
assert [row["memory"] for row in rows.values()][:3] == [1, 1, 1]  # whatever top_k is
colours = {"work": style.COMPUTING, "memory": style.WEIGHTS}
title = "FLOP and parameters, relative to 1 of 8 experts"
figures.grouped_bars(rows, title, "{:.2f} ×".format, colours)

# %% [markdown]
# **Explain.** Eight times as many experts, and 5 % more work. A token multiplies with its $k$ experts and with the router. Experts that it does
# *not* use cost nothing; only the router grows, by a row for each expert. And all of this ran in *one* process: a mixture of experts is a kind of
# layer, not a parallelism.
#
# **Remember**
# - Work grows with top-k, memory with the number of experts.
# - The router is a small matrix. It learns through the weights of the experts that it chose.

# %% [markdown]
# ## 12.2 Total and active parameters
#
# Mixtral 8x7B has 32 layers, $h = 4096$, and in each layer 8 SwiGLU experts (chapter 4) of three matrices of $4096 \times 14336$. One expert of one
# layer has $3 \cdot 4096 \cdot 14336 = 176.2$ million parameters, over 32 layers 5.64 billion.
#
# **Predict.** Each token goes to 2 of the 8 experts. Attention, embedding and all the rest exist once and have 1.6 billion parameters. How many
# billion does one token meet?

# %%
active = predict("12.active", "Billion parameters met?", yours=None)

# %%
mixtral = models.MODELS["mixtral-8x7b"].parameters()
met_b = mixtral.active / 1e9
expect(met_b, label="met by one token, billion", yours=active)
assert round(met_b, 2) == round(2 * 5.64 + 1.6, 2)

# %% tags=["drawing"]
met = {"2 experts": mixtral.chosen_experts, "attention": mixtral.attention}
met["rest"] = mixtral.active - sum(met.values())  # embedding, head, routers, norms
colours = {"2 experts": style.WEIGHTS, "attention": style.SKY, "rest": style.YELLOW}
figures.stacked_bars(
    {
        "met by one token": met,
        "stored": {**met, "the 6 other experts": mixtral.idle_experts},
    },
    "Mixtral 8x7B, parameters",
    units.format_count,
    colours={**colours, "the 6 other experts": style.IDLE},
)

# %% [markdown]
# **Explain.** **Total parameters** (总参数量) are what must be stored: 46.7 B, and not $8 \cdot 7 = 56$, because only the MLPs exist eight times.
# **Active parameters** (激活参数量) are what one token meets: 12.9 B, and not 14. The paper says 47 B and 13 B (Jiang et al. 2024, arXiv:2401.04088).
#
# DeepSeek-V3 goes further. In 58 of its 61 layers there are 256 small experts of $3 \cdot 7168 \cdot 2048 = 44.0$ M. A token uses 8 of them, and one
# **shared expert** (共享专家) that all tokens use. With everything else, 671 B are stored and 37.6 B met; without the embedding, of which a token reads
# one row, 36.6 B. (arXiv:2412.19437 says 671 B and 37 B.)

# %%
assert mixtral.total == 46_702_792_704
deepseek = models.MODELS["deepseek-v3"].parameters()
assert deepseek.experts == 58 * 256 * 3 * 7168 * 2048
assert round((deepseek.active - deepseek.embedding) / 1e8) == 366  # 36.6 B
assert deepseek.chosen_experts + deepseek.shared_experts == 58 * 9 * 3 * 7168 * 2048
llama = models.MODELS["llama2-13b"].parameters()
assert 0.95 < mixtral.active / llama.active < 1.05
assert round(mixtral.total / llama.total, 1) == 3.6
print(units.format_count(deepseek.total), units.format_count(deepseek.active))
print("Mixtral's states:", units.format_bytes(16 * mixtral.total))

# %% [markdown]
# An MoE pays for more parameters with memory instead of computation. In $6ND$ of chapter 5, $N$ is the active parameters: Mixtral's tokens cost as
# much as those of LLaMA-2 13B. In the 16 bytes per parameter of chapter 3, it is the total: 747 GB, while the 8 GPUs of the opening claim have 640
# GB.
#
# **Remember**
# - Total parameters decide memory, active parameters decide time: 46.7 B and 12.9 B for Mixtral.

# %% [markdown]
# ## 12.3 Full experts
#
# Eight tokens, four experts, $k = 1$. The router sends 5 tokens to expert 0, 1 to expert 1, 2 to expert 2 and none to expert 3. The mean is 2, and
# the busiest expert has 2.5 times as many: an imbalance of 2.5. All wait for expert 0, and arrays of a fixed size would need room for 5, which is not
# known in advance. So one sets a limit, the **capacity** (专家容量). With $T$ tokens:
#
# $$C = \left\lceil \text{capacity factor} \cdot \frac{T\,k}{E} \right\rceil .$$
#
# $T k / E$ is what each expert would get if all were equal, and the **capacity factor** (容量因子) multiplies it. Here with factor 1: $C = 8 / 4 = 2$.
# Expert 0 accepts its first 2 tokens and refuses 3. These are **dropped tokens** (丢弃的词元): only the residual connection carries them on.

# %%
load = experts.ExpertLoad((5, 1, 2, 0), top_k=1, capacity=2, ranks=2, row_bytes=128)
assert load.dropped == 3 and load.imbalance == 2.5
figures.expert_bars(load, "eight tokens, four experts, capacity 2")

# %% [markdown]
# A larger factor drops less and computes more padding. Others, such as MegaBlocks (arXiv:2211.15841) and DeepSeek-V3, drop nothing and let the sizes
# vary.
#
# How skewed is a router? The panel assumes that expert $i$ is chosen in proportion to $1/i^{\text{skew}}$; at skew 0 all are equally popular.
#
# 1. At skew 0.5, which capacity factor drops no token? Which number in the table tells you?
# 2. Set no limit. Who decides how long a step takes, with 2 ranks and with 8?

# %%
from course_lib.chapters.ch12_experts_and_long_sequences import panels

panels.experts(skew=0.5, experts=8, top_k=2, capacity_factor=1.25, ep=4)

# %% [markdown]
# **Answers.**
#
# 1. The busiest expert's 1.83 × the mean: the imbalance.
# 2. The busiest *rank*: it has 1.27 times the mean with 2 ranks of 4 experts, 1.83 times with 8 ranks of one. Fewer experts per rank average less.
#
# ### Why routers become skewed, and what helps
#
# An expert that is chosen a little more often learns a little faster, so it is chosen even more often. A second loss works against that, the **balance
# loss** (负载均衡损失). Let $f_i$ be the share of all choices that fell on expert $i$, and $P_i$ its mean probability:
#
# $$\text{balance loss} = E \sum_{i=1}^{E} f_i\, P_i .$$
#
# If all experts are equally busy, every $f_i$ is $1/E$ and the loss is 1. If the same $k$ experts take everything, probability included, it is
# $E/k$. For our eight tokens,
# with mean probabilities 0.5, 0.2, 0.2, 0.1, it is 1.55.

# %%
uneven = experts.balance_loss(load=(5, 1, 2, 0), probabilities=(0.5, 0.2, 0.2, 0.1))
assert abs(uneven - 1.55) < 1e-9
equally_busy = experts.balance_loss((2, 2, 2, 2), (0.5, 0.25, 0.125, 0.125))
assert equally_busy == 1
assert experts.balance_loss((5, 5, 0, 0), (0.5, 0.5, 0, 0)) == 4 / 2  # k = 2

# %% [markdown]
# $f_i$ is a count and has no gradient. The gradient of $P_i$ lowers the probability of those experts that are chosen too often. The loss is
# multiplied by a small $\alpha$ ($10^{-2}$ in Switch Transformer) and added to the real one.
#
# **Predict.** A mixture of 4 experts with $k = 1$ learns for 60 updates, once without and once with the balance loss. How busy is the busiest expert at
# the end, relative to the mean? 1 is perfect, 4 is the worst possible.

# %%
alone = predict("12.alone", "Imbalance without the loss?", yours=None)
helped = predict("12.helped", "Imbalance with it?", yours=None)

# %%
without, load_without, _ = balancing.train(*balancing.task())
with_loss, load_with_loss, _ = balancing.train(*balancing.task(), alpha=0.1)
expect(..., without[-1], label="without", yours=alone)
expect(..., with_loss[-1], label="with the loss", yours=helped)
assert without[-1] > 3 > 1.4 > with_loss[-1]

# %%
figures.loss(
    {"without": without, "with the balance loss": with_loss}, "busiest expert / mean"
)

# %% [markdown]
# **Explain.** Without the loss one expert ends up with almost everything, and three take memory for nothing. With it the load evens out.
#
# ### Balance without a loss
#
# The balance loss has a price: its gradient pulls tokens away from the expert that suits them best. DeepSeek-V3 balances almost without one
# (arXiv:2412.19437, section 2.1.2). Each expert has a bias $b_i$, which is added to its probability *for the choice only*: the token takes the
# largest $k$ of $p_i + b_i$. After each update $b_i$ moves by a fixed step, up if the expert got fewer choices than the mean, down if it got more.

# %%
moe, x, wanted = balancing.task()
biased = balancing.with_biases(moe)
with_bias, load_with_bias, _ = balancing.train(biased, x, wanted, speed=0.02)
print(f"busiest expert / mean, with a bias: {with_bias[-1]:.2f}")
assert with_bias[-1] < 1.4

# %% tags=["drawing"]
loads = {"without": load_without, "loss": load_with_loss, "bias": load_with_bias}
rows = {
    f"expert {number}": {how: load[number] for how, load in loads.items()}
    for number in range(4)
}
colours = {"without": style.PALE, "loss": style.SKY, "bias": style.BLUE}
figures.grouped_bars(rows, "Choices in the last update", "{:,}".format, colours)

# %% [markdown]
# The bias evens the load out as well as the loss does. The weights of the chosen experts still come from $p_i$ alone.
#
# **Remember**
# - Capacity = factor × mean load. What is above it is dropped, unless sizes may vary. To drop nothing, the factor must reach the imbalance.
# - Routers skew by themselves. A balance loss (1 when all are equally busy) or a bias for the choice evens the load out.

# %% [markdown]
# ### Deeper: the functions behind it
#
# `accepted` has to know who came first, also when tokens lie on several ranks. For `balance_loss` try exercise 12.5 first.

# %%
show_source(scratch.experts.expert_capacity, scratch.experts.accepted)

# %%
show_source(scratch.experts.balance_loss, scratch.experts.BiasedRouter)

# %% [markdown]
# More experts at the same skew drop more, since the mean falls faster than the favourite's share:

# %% tags=["drawing"]
roomy = panels.experts(skew=0.5, experts=8, top_k=2, capacity_factor=2.0).result
assert round(roomy.imbalance, 2) == 1.83 and roomy.dropped == 0
factors = [1 + step / 8 for step in range(9)]
curves = {}
for count in (8, 16, 64):
    runs = [
        experts.expert_load(8192, count, 2, capacity_factor=factor, skew=0.5)
        for factor in factors
    ]
    shares = [100 * run.dropped_fraction for run in runs]
    curves[f"{count} experts"] = list(zip(factors, shares, strict=True))
title = "How much a capacity factor drops, at skew 0.5"
mark = {"imbalance of 8": roomy.imbalance}
figures.lines(curves, "capacity factor", "choices dropped, %", title, mark=mark)

# %% [markdown]
# 1 is not the least value of the balance loss. Let 2 of 5 tokens be sure of expert 0, and 3 prefer expert 1 by a hair. Then the busier expert has
# the smaller mean probability, and the loss is 0.92.

# %%
below_1 = experts.balance_loss((2, 3), ((2 + 3 * 0.49) / 5, 3 * 0.51 / 5))
assert round(below_1, 2) == 0.92

# %% [markdown]
# ## 12.4 Expert parallelism
#
# 8 data-parallel ranks have 4096 tokens each. There are two ways to bring tokens and experts together:
#
# - *Weights to the tokens*, as FSDP does (chapter 9): each rank gathers all 8 experts of a layer, 1.409 B parameters or 2.82 GB in bf16.
# - *Tokens to the weights*: each rank keeps one expert, and sends each token to the ranks of its two experts. $4096 \cdot 2$ choices of 4096 numbers
#   of 2 bytes are 67.1 MB there, and 67.1 MB back.

# %%
one_rank = experts.expert_load(8 * 4096, 8, 2, ranks=8, row_bytes=2 * 4096)
one_layer = models.MODELS["mixtral-8x7b"].parameters().experts / 32
by_rows = one_rank.dispatch_bytes
assert by_rows == 4096 * 2 * 4096 * 2
assert 20 < 2 * one_layer / (2 * by_rows) < 22

# %% tags=["drawing"]
figures.stacked_bars(
    {
        "weights to the tokens": {"weights, gathered": 2 * one_layer},
        "tokens to the weights": {"rows, there": by_rows, "rows, back": by_rows},
    },
    "What one rank gathers, or sends and gets back, for one layer",
    units.format_bytes,
    colours={
        "weights, gathered": style.TEMPORARY,
        "rows, there": style.MESSAGES,
        "rows, back": style.ACTIVATIONS,
    },
)

# %% [markdown]
# The second moves a twenty-first of the bytes. It is **expert parallelism** (专家并行), EP (Lepikhin et al. 2020, *GShard*, arXiv:2006.16668, section 3). Every
# rank has something for every other rank: that is chapter 6's all-to-all, twice per layer. The first is called **dispatch** (分发), the second
# **combine** (合并). The degree of EP is free, as long as it divides the number of experts: with 4 ranks each has two of Mixtral's experts.
#
# Follow the tokens of four ranks, 64 on each, to eight experts and back. Do all ranks get the same number of rows to work on? And whose tokens are
# dropped?

# %%
from course_lib.chapters.ch12_experts_and_long_sequences import steppers

steppers.expert_exchange(ranks=4)

# %% [markdown]
# Rank 0 has the two favourites and computes 160 rows, rank 3 has 84, and all wait for rank 0. Dropped are choices of ranks 2 and 3, since lower ranks
# come first. So what a rank sends depends on its tokens, and what it receives on its experts' popularity.
#
# All that travels is in one class, the dispatcher. **Try exercise 12.10 first: it asks for it.** The course's own version is folded at the end of this section.
#
# ### The bytes
#
# A layer has four all-to-alls: dispatch and combine, and in the backward pass gradients travel the same two routes in reverse. When all experts get
# the same, a rank with $t$ tokens puts $t \cdot k$ rows into each of the four. When the router is uneven, count the rows: a rank sends those of its
# own tokens (dispatch), and sends back those that it received (combine).
#
# $$\text{balanced: } 4\, t\, k\, h \cdot \text{bytes per number}, \qquad
# \text{exactly: } 2\,(\text{sent} + \text{received})\, h \cdot \text{bytes per number}.$$
#
# (These are sizes of whole tensors; $(n-1)/n$ of the rows really leave the rank.) Two ranks with 128
# tokens each, 4 experts, $k = 2$, one layer:


# %%
def one_step(count):
    """Forward and backward on this rank's tokens; what was sent, and the table of counts."""
    rank = launch.init().rank
    torch.manual_seed(0)
    moe = scratch.experts.MoE(hidden=64, experts=4, top_k=2)
    moe.spread(dist.group.WORLD)
    torch.manual_seed(rank)
    x = torch.randn(count, 64, requires_grad=True)
    with measure.wire.log_wire() as log:
        moe(x).sum().backward()
    return log.sent()["all-to-all"], moe.kept.tolist()


# %%
reports = launch.run(one_step, 128, ranks=2, stream=False)
kept = reports[0][1]  # (ranks, experts)
print(kept)
for rank, ((calls, size), _) in enumerate(reports):
    exact = experts.routed_bytes(kept, rank, row_bytes=64 * 4)
    print(f"rank {rank}: {calls} all-to-alls, {size:,} B; from the counts {exact:,} B")
    assert (calls, size) == (4, exact)
mean = sum(size for (_, size), _ in reports) / 2
assert mean == 4 * 128 * 2 * 64 * 4  # the balanced formula

# %% [markdown]
# Computed from the counts, each rank's bytes are exact. The balanced formula is right *on average*, since every row that is sent arrives somewhere. For
# Mixtral on 8 ranks, $4 \cdot 67.1$ MB in each of 32 layers are 8.6 GB a step, of which 7.5 GB leave the rank: 17 ms over NVLink (450 GB/s), 150 ms
# over one 50 GB/s network port.

# %%
H100 = hardware.accelerator("H100-SXM")
mixture_job = Job(
    models.MODELS["mixtral-8x7b"],
    Recipe(),
    Layout(dp=8, ep=8),
    Cluster(H100, nodes=1),
    sequence=4096,
)
traffic = step_traffic(mixture_job).bytes_by_axis["ep"]
print(units.format_bytes(traffic))
assert 32 * 4 * one_rank.travelling_bytes == traffic

# %% [markdown]
# ### Can computation hide the all-to-all?
#
# A row of $h$ numbers travels four times in a step, at 2 bytes a number: $8h$ bytes. Its expert has three matrices of $h \times f$ and does 6 FLOP
# with each weight, forward and backward: $18hf$ FLOP. So an expert does
#
# $$\frac{18\,h\,f}{8\,h} = 2.25\,f \quad\text{FLOP per byte.}$$
#
# Only the width $f$ matters. Compare it with the ridge of each wire (section 10.7), the FLOP that an H100 can do while it sends one byte:

# %%
wires = {"the network's": 50e9, "an H800's NVLink's": 200e9, "NVLink's": 450e9}
needed = {
    f"{wire} ridge, {speed / 1e9:g} GB/s": hardware.ridge(H100.peak_flop_per_s, speed)
    for wire, speed in wires.items()
}
for name in ("mixtral-8x7b", "deepseek-v3"):
    width = models.MODELS[name].expert_width
    needed[f"{name}, f = {width:,}"] = experts.routed_intensity(width)
assert [round(flop) for flop in needed.values()] == [
    19_788,
    4_947,
    2_199,
    32_256,
    4_608,
]

# %%
rising = dict(sorted(needed.items(), key=lambda one: one[1]))
title = "FLOP of an expert for each byte sent, and what a wire asks for"
figures.bars(rising, "{:,.0f}".format, title, style.COMPUTING)

# %% [markdown]
# Mixtral's wide experts compute long enough to hide even the network. DeepSeek-V3's narrow ones hide messages over an H100's NVLink only, and not
# even over that of the H800s it was trained on. The price of small experts is a fast wire.
#
# ### What EP does to the gradients
#
# EP ranks *are* data-parallel ranks: each has its own part of the batch. Gradients of the dense part are all-reduced as ever. An expert on one rank
# has seen the tokens of all ranks, so its gradient is complete and stays there. (If each rank's loss is a mean over its own tokens, it is a sum of
# $n$ means and must still be divided by $n$. DDP does that for the dense part only.) With EP of degree $e$ each expert exists $n/e$ times, and its
# gradients are summed over those ranks.
#
# In Megatron-Core: `--num-experts 8 --moe-router-topk 2 --expert-model-parallel-size 8`, with `--moe-aux-loss-coeff 0.01` for the balance loss and
# `--moe-expert-capacity-factor` for a capacity.

# %% [markdown]
# ### Demo: experts on four ranks
#
# A GPT of 2 layers with 4 experts each, one expert per rank, $k = 2$, 256 tokens in all: once with a router that deals the tokens out in turn, so
# that the balanced formula is exact, and once with the real one.
#
# **Predict.** What is the least that a rank can send, in percent of the balanced bytes, whatever the router does?

# %%
least = predict("12.least", "At least, % of balanced?", yours=None, unit="%")

# %%
expect(50, label="a rank that receives nothing", yours=least)

# %%
balanced = 2 * 4 * 64 * 2 * 64 * 4  # layers · all-to-alls · tokens · k · h · bytes
even = demos.run("experts", ranks=4, steps=3, fixed_routes=True, stream=False)
dealt_out = even.versions[0].sent["all-to-all"][1]
expect(balanced, dealt_out, label="dealt out in turn", unit="B")

# %%
run = demos.run("experts", ranks=4, steps=4, stream=False)
print(run.report())

# %%
for version in run.versions:
    assert version.sent == version.predicted_sent
    assert version.stored == version.predicted_stored
size = run.versions[0].sent["all-to-all"][1]
assert balanced / 2 <= size < balanced
print(f"rank 0: {size / balanced:.0%} of the balanced bytes; load {run.load[-1]}")

# %% [markdown]
# **Explain.** A rank always sends the rows of its own tokens, half of the balanced bytes. The other half is what it sends back. Read the load (for
# each layer, for each expert): almost no token goes to expert 0, so rank 0 has hardly anything to send back. Computed from the counts, the prediction
# is still exact.
#
# In a terminal, and by PyTorch's own launcher:
#
# ```
# course demo experts --ranks 4 --capacity-factor 1.25
# python -m torch.distributed.run --standalone --nproc-per-node 4 -m course_lib.demos experts
# ```
#
# **Remember**
# - EP moves tokens to experts: two all-to-alls per layer and direction, $2 \cdot (\text{sent} + \text{received})$ rows.
# - What a rank sends depends on its tokens, what it receives on its experts' popularity.
# - Experts of width $f$ do $2.25 f$ FLOP per byte: narrow ones need a fast wire.
# - An expert's gradient is summed over its own copies only.

# %% [markdown]
# ### Deeper: when can an all-to-all hide?
#
# Having enough work is not sufficient. It must be available at the right time, and an expert cannot start before its tokens have come. Three things
# fill the gap:
#
# - The shared expert needs no all-to-all, so it runs meanwhile.
# - Tokens are sent in pieces: experts work on one piece while the next one travels, as in section 10.8 (FasterMoE,
#   [PPoPP 2022](https://doi.org/10.1145/3503221.3508418); Tutel, arXiv:2206.03382; COMET, arXiv:2502.19811).
# - With two micro-batches one computes while the tokens of the other travel. DualPipe does that, and so does `--overlap-moe-expert-parallel-comm` in
#   Megatron-Core. Section 13.5 computes how much of an update of DeepSeek-V3 it hides.
#
# DeepSeek-V3 also sends less. A token's 8 experts lie on at most four of eight nodes (section 2.1.2), and it travels once to each of the four, with 1
# byte for each of its $h$ numbers on the way there and 2 on the way back: $4 \cdot 3 = 12$ bytes per number in the forward pass. Sent to each expert
# in 16 bits there and back, it would take $8 \cdot 4 = 32$. Even so, its authors count computing and messages as about 1 : 1 (section 3.2.1). (None
# of this is measured here: it needs GPUs.)
#
# What would a capacity of 1.25 have dropped in the demo? In an untrained model all tokens look alike, so they all ask the same experts:

# %%
seen = tuple(run.load[-1][0])
limit = experts.capacity(sum(seen), experts=4, factor=1.25)
figures.expert_bars(
    experts.ExpertLoad(seen, top_k=2, capacity=limit, ranks=4, row_bytes=256),
    "layer 0 of the demo, capacity factor 1.25",
)

# %% [markdown]
# ### Deeper: the course's own dispatcher
#
# In the forward pass of the layer `_count` computes how many choices of every rank each expert accepts, and `_compute` works through this rank's own
# experts.

# %%
show_source(scratch.experts.MoE.forward)

# %%
show_source(scratch.experts.Dispatcher)

# %% [markdown]
# - `count`: all ranks exchange their counts, a few bytes. From the table every rank knows what will be sent and received.
# - `dispatch`: `order` sorts this rank's accepted choices by expert. Experts lie on the ranks in order, so what goes to one rank is one piece.
# - `combine`: the results come back in the same order. `index_add` adds each of them, times its weight, to the token that it came from.
#
# The backward pass of an all-to-all is an all-to-all with the sizes exchanged:

# %%
show_source(scratch.experts.AllToAll)

# %% [markdown]
# ## The answer
#
# Mixtral 8x7B stores 46.7 billion parameters, 747 GB of states, too much for 8 GPUs of 80 GB. Each token meets 12.9 billion, so it takes the time of
# a dense model of that size. With 8 ranks for the experts and 4096 tokens each, all-to-alls cost 8.6 GB a rank and step, which wide experts can
# hide. All of this assumes a
# balanced router.
#
# **Read on.** Fedus et al. 2021, *Switch Transformers*, section 2 (arXiv:2101.03961). Lepikhin et al. 2020, *GShard*, sections 2 and 3
# (arXiv:2006.16668). DeepSeek-V3, sections 2.1.2 and 3.2 (arXiv:2412.19437).

# %% tags=["exercise"]
import math

import torch

from course_lib import check, hint, solution
from course_lib.theory.inputs import hardware, models
from course_lib.theory.network import context, experts

# %% [markdown] tags=["exercise"]
# ### 12.1 Calculate: Mixtral on 16 GPUs
#
# Mixtral 8x7B trains on 16 GPUs, all of them data parallel, with expert parallelism of degree 8. Of its 46,702,792,704
# parameters 45,097,156,608 are experts. How many parameters are on a GPU? Over how many GPUs can ZeRO-1 shard the
# optimizer states of an expert? How many bytes of states (2 + 2 + 12 a parameter) does a GPU hold without ZeRO, and with
# ZeRO-1?

# %% [raw] tags=["hints"]
# importance 3, difficulty 3
# Which parameters does expert parallelism spread, and which are on every GPU?
# Of 16 ranks 8 are one set of experts. How many ranks hold the same expert?
# ZeRO-1 shards the 12 bytes of states: over 16 GPUs for what all of them hold, over fewer for an expert.

# %% tags=["exercise"]
stored, expert_gpus = ..., ...
without_zero, with_zero_1 = ..., ...  # bytes
### BEGIN SOLUTION
in_experts = 45_097_156_608 // 8
dense = 46_702_792_704 - 45_097_156_608
stored, expert_gpus = dense + in_experts, 16 // 8
without_zero = 16 * stored
with_zero_1 = 4 * stored + 12 * (dense / 16 + in_experts / expert_gpus)
### END SOLUTION
check("12.1", [stored, expert_gpus, without_zero, with_zero_1])

# %% [markdown] tags=["exercise"]
# ### 12.2 Calculate: two wrong counts
#
# Two numbers from a report on training DeepSeek-V3: "each H800 (989.4 TFLOP/s) trains on 1,543 tokens a second,
# an MFU of 628 %", and "states of 16 bytes per parameter fit into 8 GPUs of 80 GB". Its author used one count of
# parameters where the other belongs, twice. Correct both: the MFU by $6N$, and the fewest GPUs. `models.MODELS["deepseek-v3"].parameters()`
# has both counts.

# %% [raw] tags=["hints"]
# importance 3, difficulty 2
# An MFU over 100 % multiplies with parameters that no token meets.
# Must a GPU store an expert that this token does not use?

# %% tags=["exercise"]
mfu, gpus = ..., ...  # mfu: 0.5 is a half
### BEGIN SOLUTION
count = models.MODELS["deepseek-v3"].parameters()
mfu = 6 * count.active * 1543 / 989.4e12
gpus = math.ceil(16 * count.total / 80e9)
### END SOLUTION
check("12.2", [mfu, gpus])

# %% [markdown] tags=["exercise"]
# ### 12.5 Implement: the balance loss
#
# `chosen` (tokens, top_k) holds numbers of experts, and `probabilities` (tokens, experts) those of the router. Return $E \sum_i f_i P_i$ as a tensor
# whose gradient reaches `probabilities`. $f_i$ is the share of all *choices*.

# %% [raw] tags=["hints"]
# importance 3, difficulty 2
# f is counted, P is averaged. Over which dimension, and which of them has a gradient?
# f: torch.bincount(chosen.flatten(), minlength=…), divided by all choices.


# %% tags=["exercise"]
def balance_loss(chosen: torch.Tensor, probabilities: torch.Tensor) -> torch.Tensor:
    """1 when all experts are chosen equally often; at most experts / top_k."""
    ### BEGIN SOLUTION
    experts = probabilities.shape[1]
    share = torch.bincount(chosen.flatten(), minlength=experts) / chosen.numel()
    return experts * (share * probabilities.mean(dim=0)).sum()
    ### END SOLUTION


check("12.5", balance_loss)

# %% [markdown] tags=["exercise"]
# ### 12.6 Debug: four routers
#
# Four programs train the same mixture: 4 experts on 4 ranks, $k = 1$, 64 tokens on each rank, and each rank's loss is the mean over its own tokens. Each
# program has one fault. After 100 updates their logs say:
#
# | | busiest expert / mean | gradient of the router, norm | choices dropped | an expert's gradient / that of one process |
# |---|---|---|---|---|
# | A | 1.4 | 0 | 0 % | 1 |
# | B | 3.9 | 0.2 | 0 % | 1 |
# | C | 1.1 | 0.2 | 27 % | 1 |
# | D | 1.1 | 0.2 | 0 % | 4 |
#
# Which program has which fault? `"no balance"`: neither a balance loss nor a bias; `"small capacity"`: a capacity factor of 0.75; `"weights that
# cancel"`: the weights of the chosen experts are divided by their sum; `"a sum of means"`: experts' gradients are not divided by the number of ranks;
# `"biased weights"`: the biases for the choice are also added to the weights.

# %% [raw] tags=["hints"]
# importance 4, difficulty 2
# One column of each row is out of the ordinary.
# With k = 1, what is a weight divided by the sum of the weights? What is its gradient?
# The tokens of all ranks come to an expert, each with a loss that is a mean over 64 tokens and not over 256.

# %% tags=["exercise"]
fault = {"A": ..., "B": ..., "C": ..., "D": ...}
### BEGIN SOLUTION
fault = {
    "A": "weights that cancel",  # p / p = 1 has no gradient
    "B": "no balance",
    "C": "small capacity",  # 0.75 of the mean: at least a quarter is dropped
    "D": "a sum of means",
}
### END SOLUTION
check("12.6", fault)

# %% [markdown] tags=["exercise"]
# ### 12.10 Build: tokens to experts and back
#
# Write what carries tokens to their experts and back (section 12.4), with ranks that have different numbers of tokens, some of them none. Each rank
# has equally many experts, rank 0 the first ones. `tokens` is (tokens, hidden), `chosen` and `weights` are (tokens, top_k): choice $c$, counted row
# by row, belongs to token `c // top_k`. You are given `by_expert(chosen, kept)`, the numbers of this rank's accepted choices sorted by expert, where
# `kept` says for each expert how many are accepted.
#
# Rows and results keep the dtype of your arguments, such as bf16, and you do not change the arguments. One dispatcher serves many batches, and the
# next one may start before the gradients of the last one come back.
#
# The check runs on 3 ranks, with 1 to 3 experts on each and a top_k of 1 to 3, also in smaller groups: first the all-to-all with uneven numbers of
# rows; then counts and dispatch; then combine, where each result must reach its own token; then the gradients, which travel back along the same
# route. It counts the bytes; counts need one all-gather of at most 8 bytes each. What passes is kept as `mine/experts.py`, and `course demo experts
# --parts mine` trains with it.

# %% [raw] tags=["hints"]
# importance 5, difficulty 5
# AllToAll: make room for `sum(received)` rows, call `dist.all_to_all_single(room, rows, received, sent, group=group)`, keep the sizes in `ctx`. Backward is the same call with the sizes exchanged.
# count: `torch.bincount(..., minlength=experts)`, and an all-gather. dispatch: the experts lie on the ranks in order, so `kept.view(ranks, ranks, -1).sum(2)` says who sends what.
# Choice c belongs to token c // top_k. `by_expert` gives the choices in the order in which their rows leave. Keep it, for that is the order in which the results come back.
# combine: the same all-to-all with the sizes exchanged; each row times the weight of its choice, `weights.flatten()[order]`; `index_add` adds it to its token.

# %% tags=["exercise"]
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from course_lib.scratch import wire
from course_lib.scratch.experts import by_expert

### BEGIN GIVEN


class AllToAll(torch.autograd.Function):
    """Rows (rows, …) go to other ranks; in the backward pass their gradients return."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        sent: list[int],
        received: list[int],
        group: ProcessGroup,
    ) -> Tensor:
        """The first `sent[0]` rows go to rank 0, the next `sent[1]` to rank 1, …

        Returns the `received[0]` rows of rank 0, then the `received[1]` of rank 1, …
        """
        ...

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        """The gradients of the rows, from where the rows have gone."""
        ...


class Dispatcher:
    """Sends tokens to the ranks of their experts, and the results back."""

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group
        self.rank, self.ranks = dist.get_rank(group), group.size()

    def count(self, chosen: Tensor, experts: int) -> Tensor:
        """How many choices each rank has for each expert: whole numbers, (ranks, experts).

        `wire.all_gather(own, self.group)` makes (ranks, experts) of a (1, experts).
        """
        ...

    def dispatch(self, tokens: Tensor, chosen: Tensor, kept: Tensor) -> Tensor:
        """The rows for this rank's experts, (rows, hidden): by rank, then by expert.

        `kept` (ranks, experts) says how many choices of each rank each expert accepts.
        What `combine` will need is kept in `self`.
        """
        ...

    def combine(self, results: Tensor, weights: Tensor) -> Tensor:
        """For each token the weighted sum of its experts' results: (tokens, hidden).

        `results` has a row for each row that `dispatch` returned. A choice that was
        not accepted adds nothing.
        """
        ...


### END GIVEN
### BEGIN SOLUTION
from course_lib.scratch.experts import AllToAll, Dispatcher

### END SOLUTION

check("12.10", [AllToAll, Dispatcher])
