# %% [markdown]
# # 12 Experts and long sequences
#
# "Mixtral 8x7B has 8 experts of 7 billion parameters. So I need memory for 56 billion, time for 14 billion, and 8
# GPUs: one for each expert." Three claims in two sentences. How many of them are right?
#
# None. This chapter first takes such a model apart, and then cuts the last thing that no chapter has cut yet: the
# sequence. By the end of it you can
#
# - count the parameters that a mixture of experts *has*, and those that one token *meets*,
# - predict which part of the tokens a skewed router drops, and balance a router by a loss or by a bias,
# - predict the bytes that travel when experts live on different ranks, and say whether computing can hide them,
# - cut one long sequence over ranks, without any approximation, and give all of them equal work.
#
# Time: three sittings of about 45 minutes, for sections 12.1 to 12.3, 12.4 and 12.5, and 12.6 to 12.8. The exercises take
# about two hours more; two of them are builds. You need chapters 6 and 10.

# %%
from dataclasses import replace

import torch
import torch.distributed as dist
from torch.nn.utils.rnn import pad_sequence

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
from course_lib.chapters.ch12_experts_and_long_sequences import figures
from course_lib.theory import (
    Cluster,
    Job,
    Layout,
    Recipe,
    activations,
    context,
    experts,
    flops,
    gpu_memory,
    hardware,
    mesh,
    models,
    units,
)
from course_lib.theory.network.step_traffic import step_traffic

launch.warm_up()
torch.set_num_threads(1)

# %%
H100 = hardware.accelerator("H100-SXM")
CLUSTER = Cluster(H100, nodes=2)

# %% [markdown]
# **Predict.** Mixtral 8x7B sends each token through 2 of its 8 experts. How many billion parameters does one
# token meet? A guess will do; section 12.2 computes it.

# %%
active = predict("12.active", "Billion parameters met?", yours=None)

# %% [markdown]
# ## 12.1 Many MLPs, few of them used
#
# Take a transformer layer and replace its MLP by four MLPs of the same size, the **experts** (专家). A small matrix
# in front of them, the **router** (路由器), gives each token a score for each expert, and a softmax makes probabilities of them. For one token:

# %%
p = (0.50, 0.20, 0.25, 0.05)
figures.routing(p, weights=(p[0] / (p[0] + p[2]), 0, p[2] / (p[0] + p[2]), 0))

# %% [markdown]
# The token goes to the best two: experts 0 and 2. Their results are added, with weights that sum to 1:
# $0.50 / 0.75 = 0.67$ and $0.25 / 0.75 = 0.33$. Experts 1 and 3 never see this token. The next token may choose
# others. This is a **mixture of experts** (混合专家), MoE for short.
#
# In symbols: a token $x$ has $h$ numbers, the router is a matrix $R$ of $E \times h$, and each token uses $k$ of
# $E$ experts. $k$ is called **top-k**.
#
# $$p = \operatorname{softmax}(R\,x), \qquad
# y = \sum_{i \,\in\, \text{best } k} \frac{p_i}{\sum_{j \in \text{best } k} p_j}\; \mathrm{MLP}_i(x) .$$

# %%
show_source(scratch.experts.Router)

# %% [markdown]
# Two things to see in it:
#
# - `topk` returns *numbers of experts*, which have no gradient. The router learns through the weights only: if
#   expert 2 helped, its weight should grow.
# - With $k = 1$ the weight is $p_i$ itself. Divided by its own sum it would always be 1, and the router would
#   never learn (Fedus et al. 2021, arXiv:2101.03961, section 2.1).

# %%
torch.manual_seed(0)
router = scratch.experts.Router(hidden=64, experts=4, top_k=2)
chosen, weights, _ = router(torch.randn(6, 64))
print(chosen.tolist())  # (tokens, top_k)
assert torch.allclose(weights.sum(dim=1), torch.ones(6))

# %% [markdown]
# What does it cost? Take 256 tokens, $h = 64$, and 8 experts of $64 \times 256$ and $256 \times 64$ each. Every token
# goes to 2 of them.
#
# **Predict.** Now take 64 experts of the same size in place of the 8. By which factor do the FLOP of the forward pass
# grow? Three digits, if you can.

# %%
work = predict("12.more_experts", "FLOP, 64 experts / 8?", yours=None)

# %%
tokens = torch.randn(1, 256, 64)


def mixture(top_k, experts=8):
    """A mixture of experts, alone on one rank."""
    torch.manual_seed(0)
    return scratch.experts.MoE(64, experts, top_k)


counted = {
    k: measure.times.matmul_flops(lambda k=k: mixture(k)(tokens)) for k in (1, 2, 8)
}
of_64 = measure.times.matmul_flops(lambda: mixture(2, 64)(tokens))
one_expert = 2 * 64 * 256  # weights
flop, flop_64 = (2 * 256 * (2 * one_expert + count * 64) for count in (8, 64))
expect(flop_64 / flop, of_64 / counted[2], label="64 experts / 8", yours=work)

# %%
expect(flop, counted[2], label="FLOP, 2 of 8 experts", unit="FLOP")


def weights_of(top_k, experts):
    """All parameters of a mixture, whether they are used or not."""
    return sum(p.numel() for p in mixture(top_k, experts).parameters())


runs = {(k, 8): flop for k, flop in counted.items()} | {(2, 64): of_64}
rows = {}
for (k, count), flop in runs.items():
    stored = weights_of(k, count) / weights_of(1, 8)
    rows[f"{k} of {count} experts"] = {"work": flop / counted[1], "memory": stored}
assert [row["memory"] for row in rows.values()][:3] == [1, 1, 1]  # whatever top_k is
colours = {"work": style.COMPUTING, "memory": style.WEIGHTS}
title = "FLOP and parameters, relative to 1 of 8 experts"
figures.grouped_bars(rows, title, "{:.2f} ×".format, colours)

# %% [markdown]
# **Explain.** Eight times as many experts, and 5 % more work. A token multiplies with its $k$ experts and with the
# router, at 2 FLOP per weight; the experts that it does *not* use cost nothing. Only the router grows, since it has a
# row for each expert. It is also why all 8 experts cost 7.89 times as much as one, and not 8 times. And all of this ran
# in *one* process. There was nothing parallel about it.
#
# **Remember**
# - Work grows with top-k, memory with the number of experts.
# - The router is a small matrix. It learns through the weights of the experts it chose.
# - A mixture of experts is a kind of layer. It runs on one GPU as well as on a thousand.

# %% [markdown]
# ## 12.2 Total and active parameters
#
# Mixtral 8x7B has 32 layers, $h = 4096$, and SwiGLU experts (chapter 4) with three matrices of
# $4096 \times 14336$. One expert of one layer has $3 \cdot 4096 \cdot 14336 = 176.2$ million parameters; over 32 layers
# that is 5.64 billion. All parameters together:

# %%
mixtral = models.MODELS["mixtral-8x7b"].parameters()
assert mixtral.chosen_experts == 32 * 2 * 3 * 4096 * 14336
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
# **Total parameters** (总参数量) are what must be stored: 46.7 B. **Active parameters** (激活参数量) are what one token
# meets: 12.9 B. Not $8 \cdot 7 = 56$, because only the MLPs exist eight times; attention and embedding are there
# once. And not $2 \cdot 7 = 14$, for the same reason. The paper says 47 B and 13 B (Jiang et al. 2024,
# arXiv:2401.04088).

# %%
assert mixtral.total == 46_702_792_704
expect(
    12.9,
    mixtral.active / 1e9,
    within=0.005,
    label="active",
    unit="billion",
    yours=active,
)

# %% [markdown]
# DeepSeek-V3 goes further: 61 layers, of which the first 3 have an ordinary MLP; in the other 58, 256 small
# experts of $3 \cdot 7168 \cdot 2048 = 44.0$ M each. A token uses 8 of them, and one **shared expert** (共享专家)
# that all tokens use.
#
# $$58 \cdot 256 \cdot 44.0\,\text{M} = 653.9\,\text{B stored}, \qquad
# 58 \cdot (8 + 1) \cdot 44.0\,\text{M} = 23.0\,\text{B met by a token.}$$
#
# With everything else: 671 B total, 37.6 B active. (arXiv:2412.19437 says 671 B and 37 B; without the embedding, of which a
# token reads one row, ours is 36.6 B.)

# %%
deepseek = models.MODELS["deepseek-v3"].parameters()
assert deepseek.experts == 58 * 256 * 3 * 7168 * 2048
assert deepseek.chosen_experts + deepseek.shared_experts == 58 * 9 * 3 * 7168 * 2048
print(units.format_count(deepseek.total), units.format_count(deepseek.active))

# %% [markdown]
# ### What is that good for?
#
# Compare Mixtral with LLaMA-2 13B, which multiplies each token with as many weights:

# %%
counts = {}
for name in ("llama2-13b", "mixtral-8x7b", "deepseek-v3"):
    count = models.MODELS[name].parameters()
    states = units.format_bytes(16 * count.total)
    print(f"{name:<13}{6 * count.active / 1e9:>6.0f} GFLOP a token, {states} of states")
    counts[name] = {"met": count.active, "stored only": count.total - count.active}
figures.stacked_bars(
    counts,
    "Parameters that one token meets, and all that must be stored",
    units.format_count,
    colours={"met": style.COMPUTING, "stored only": style.IDLE},
)

# %% [markdown]
# Same work per token, 3.6 times the memory. An MoE pays for more parameters with memory instead of with
# computation, and a large cluster has memory to spare. But "8 GPUs, one for each expert" of the opening claim are 640 GB,
# too little even for Mixtral's 747 GB of states. In $6ND$ of chapter 5, $N$ is
# the active parameters. In the 16 bytes per parameter of chapter 3, it is the total.
#
# **Remember**
# - Total parameters decide memory, active parameters decide time.
# - Mixtral: 46.7 B and 12.9 B. DeepSeek-V3: 671 B and 37.6 B.
# - Only the MLPs are multiplied by the number of experts.

# %% [markdown]
# ## 12.3 Full experts
#
# Eight tokens, four experts, $k = 1$. The router sends 5 tokens to expert 0, 1 to expert 1, 2 to expert 2 and
# none to expert 3. The mean is 2, so the busiest expert has 2.5 times the mean: an imbalance of 2.5. If the experts work at
# the same time, everybody waits for expert 0. And on hardware that wants arrays of a fixed size, expert 0 needs room for 5,
# and nobody knew that before.
#
# So one sets a limit, the **capacity** (专家容量). With $T$ tokens:
#
# $$C = \left\lceil \text{capacity factor} \cdot \frac{T\,k}{E} \right\rceil .$$
#
# $T k / E$ is what each expert would get if all were equal. The **capacity factor** (容量因子) says how much of that
# it takes. Here with factor 1: $C = 8 / 4 = 2$. Expert 0 accepts its first 2 tokens and refuses 3. These are
# **dropped tokens** (丢弃的词元). They are not lost: the residual connection carries them on to the next layer, but
# this layer's MLP adds nothing to them.

# %%
load = experts.ExpertLoad((5, 1, 2, 0), top_k=1, capacity=2, ranks=2, row_bytes=128)
assert load.dropped == 3 and load.imbalance == 2.5
figures.expert_bars(load, "eight tokens, four experts, capacity 2")

# %% [markdown]
# In code, these are two functions. The second one has to know who came first, also when tokens lie on several
# ranks:

# %%
show_source(scratch.experts.expert_capacity)

# %%
show_source(scratch.experts.accepted)

# %% [markdown]
# A larger factor drops less and computes more padding. Switch Transformer compares 1, 1.25 and 2, and does
# best with the small ones (arXiv:2101.03961, section 2.3, table 1). Others drop nothing at all and let the sizes
# vary: MegaBlocks (arXiv:2211.15841), DeepSeek-V3.
#
# How skewed is a router? The panel assumes that expert $i$ is chosen in proportion to $1/i^{\text{skew}}$. At skew 0
# all are equally popular. Move the sliders:
#
# 1. At skew 0.5, what must the capacity factor be so that no token is dropped? Which number in the table tells
#    you?
# 2. 8 experts, then 64, at the same skew and factor. Are more or fewer choices dropped?
# 3. Set no limit. Who decides how long a step takes, with 2 ranks, and with 8?

# %%
from course_lib.chapters.ch12_experts_and_long_sequences import panels

panels.experts(skew=0.5, experts=8, top_k=2, capacity_factor=1.25, ep=4)

# %%
roomy = panels.experts(skew=0.5, experts=8, top_k=2, capacity_factor=2.0).result
assert round(roomy.imbalance, 2) == 1.83 and roomy.dropped == 0


# %%
def dropped(count, factor):
    """Dropped choices in %, of 8192 tokens at skew 0.5."""
    load = experts.expert_load(8192, count, 2, capacity_factor=factor, skew=0.5)
    return 100 * load.dropped_fraction


factors = [1 + step / 8 for step in range(9)]
curves = {
    f"{count} experts": [(factor, dropped(count, factor)) for factor in factors]
    for count in (8, 16, 64)
}
title = "How much a capacity factor drops, at skew 0.5"
mark = {"imbalance of 8": roomy.imbalance}
figures.lines(curves, "capacity factor", "choices dropped, %", title, mark=mark)

# %% [markdown]
# So: the factor must reach the imbalance, 1.83 with 8 experts (1). With more experts the mean falls faster than the
# favourite's share, and more is dropped (2). Without a limit the busiest *rank* sets the pace: 1.27 times the mean
# with 2 ranks of 4 experts, 1.83 times with 8 ranks of one. Fewer experts on a rank even each other out less (3).
#
# ### Why routers become skewed, and what helps
#
# An expert that is chosen a little more often learns a little faster, so it is chosen even more often. Left
# alone, a router ends with one or two experts that do everything. A second loss, the **balance loss** (负载均衡损失),
# works against that. Let $f_i$ be the share of all choices that fell on expert $i$, and $P_i$ its mean
# probability:
#
# $$\text{balance loss} = E \sum_{i=1}^{E} f_i\, P_i .$$
#
# Our eight tokens, if the mean probabilities were 0.5, 0.2, 0.2, 0.1:
# $4 \cdot (\frac58 \cdot 0.5 + \frac18 \cdot 0.2 + \frac28 \cdot 0.2 + 0) = 1.55$.
#
# If all experts are equally busy, every $f_i$ is $1/E$ and the loss is 1, whatever the probabilities are. At most it is $E/k$: a token names an
# expert once, so no $f_i$ is larger than $1/k$. It gets there when the same $k$ experts have all choices and all probability. But 1 is not the least. Let 2 of 5 tokens be sure of
# expert 0, and 3 prefer expert 1 by a hair. Then the busier expert has the smaller mean probability, and the loss is 0.92.

# %%
uneven = experts.balance_loss(load=(5, 1, 2, 0), probabilities=(0.5, 0.2, 0.2, 0.1))
assert abs(uneven - 1.55) < 1e-9
equally_busy = experts.balance_loss((2, 2, 2, 2), (0.5, 0.25, 0.125, 0.125))
assert equally_busy == 1
assert experts.balance_loss((5, 5, 0, 0), (0.5, 0.5, 0, 0)) == 4 / 2  # k = 2
below_1 = experts.balance_loss((2, 3), ((2 + 3 * 0.49) / 5, 3 * 0.51 / 5))
assert round(below_1, 2) == 0.92
show_source(scratch.experts.balance_loss)

# %% [markdown]
# $f_i$ is a count and has no gradient, $P_i$ has one. The gradient says: make the probability of those experts
# smaller that are chosen too often. The loss is multiplied by a small $\alpha$ ($10^{-2}$ in Switch) and added to
# the real one.
#
# **Predict.** A mixture of 4 experts, $k = 1$, learns for 60 updates: once without, once with the balance loss.
# How busy is the busiest expert at the end, relative to the mean? 1 is perfect, 4 is the worst possible.

# %%
alone = predict("12.alone", "Imbalance without the loss?", yours=None)
helped = predict("12.helped", "Imbalance with it?", yours=None)


# %%
def task():
    """A mixture, its tokens, and the random function that it learns to imitate."""
    torch.manual_seed(0)
    moe = scratch.experts.MoE(hidden=16, experts=4, top_k=1)
    x = torch.randn(512, 16) + 1.0  # tokens that are somewhat alike
    return moe, x, torch.tanh(x @ torch.randn(16, 16))


def train(moe, x, wanted, alpha=0.0, speed=0.0, z=0.0):
    """Imbalance at each of 60 updates; the last load of each expert, and the last error."""
    optimizer, seen = torch.optim.Adam(moe.parameters(), lr=1e-2), []
    for _ in range(60):
        error = (moe(x) - wanted).square().mean()
        z_loss = moe.router.scores(x).logsumexp(-1).square().mean()  # see below
        (error + alpha * moe.balance + z * z_loss).backward()
        optimizer.step()
        optimizer.zero_grad()
        load = moe.counts.sum(0)
        seen.append(4 * int(load.max()) / 512)
        if speed:  # see "Balance without a loss", below
            moe.router.nudge(load, speed)
    return seen, load.tolist(), error.item()


# %%
without, load_without, error_without = train(*task())
with_loss, load_with_loss, error_with_loss = train(*task(), alpha=0.1)
expect(3.8, without[-1], within=0.15, label="without", yours=alone)
expect(1.1, with_loss[-1], within=0.25, label="with the loss", yours=helped)

# %%
figures.loss(
    {"without": without, "with the balance loss": with_loss}, "busiest expert / mean"
)

# %% [markdown]
# **Explain.** Without the loss one expert ends up with almost everything, and the other three are dead weight
# that you pay memory for. With it the load evens out. (Of the seeds 0 to 5, five end between 3.8 and 4 without the
# loss and one at 2.5. With it all six end between 1.05 and 1.3.) A loss that is too weak does not help: try `alpha=0.001`.
#
# A third term of the loss has another aim: the **z-loss**, the mean of $(\log \sum_i e^{s_i})^2$ over the tokens, where
# $s_i$ are the router's scores before the softmax. It pulls the logarithm towards 0, so that the rounding of large scores does
# not upset the softmax (Zoph et al. 2022, arXiv:2202.08906, section 3.3). They multiply it by 0.001. We take 0.01, since 60
# updates are few, and no balance loss.
#
# **Predict.** How busy is the busiest expert now, relative to the mean?

# %%
with_z = predict("12.z_loss", "Imbalance with the z-loss?", yours=None)

# %%
sizes = {"mean logarithm": {}, "largest score": {}}
for how, z in (("without", 0.0), ("with the z-loss", 0.01)):
    moe, x, wanted = task()
    imbalance, _, error = train(moe, x, wanted, z=z)
    scores = moe.router.scores(x).detach()
    sizes["mean logarithm"][how] = float(scores.logsumexp(-1).mean())
    sizes["largest score"][how] = float(scores.max())
expect(3.8, imbalance[-1], within=0.25, label="with the z-loss", yours=with_z)
assert all(row["with the z-loss"] < 0.3 * row["without"] for row in sizes.values())
assert abs(error / error_without - 1) < 0.15

# %%
colours = {"without": style.PALE, "with the z-loss": style.SKY}
figures.grouped_bars(sizes, "The router's scores", "{:.1f}".format, colours)

# %% [markdown]
# **Explain.** It balances nothing. But the mean logarithm falls from 2.8 to 0.2, and the largest score from 4.9 to 0.7, where numbers in bf16 are 0.004 apart
# instead of 0.03. Here it costs nothing; with seeds 0 to 5 the error rises by up to 9 %. (The logarithm is 2.7 to 3.7 without it and 0.1 to 0.3 with it; with 0.001, 1.8 to 2.6.)
# Very low scores it leaves alone, since they add nothing to the sum.
#
# ### Balance without a loss
#
# The balance loss has a price: its gradient pulls tokens away from the expert that suits them best. DeepSeek-V3
# balances almost without one (arXiv:2412.19437, section 2.1.2; Wang et al. 2024, arXiv:2408.15664): a small balance loss inside each
# sequence remains. Each expert has one number, a bias $b_i$, which is added to its score *for the choice only*. After each update it moves by a fixed
# step: up if the expert got fewer choices than the mean, down if it got more.
#
# $$\text{choose the largest } k \text{ of } p_i + b_i, \qquad
# b_i \leftarrow b_i + \gamma \,\operatorname{sign}(\text{mean load} - \text{load}_i) .$$

# %%
show_source(scratch.experts.BiasedRouter)

# %% [markdown]
# The weights of the chosen experts still come from $p_i$ alone. (Here $p_i$ is a softmax. DeepSeek-V3 takes sigmoids.)
#
# **Predict.** The same mixture and the same 60 updates, with $\gamma = 0.02$ and no balance loss. How busy is the
# busiest expert at the end, relative to the mean?

# %%
biased = predict("12.biased", "Imbalance with a bias?", yours=None)

# %%
moe, x, wanted = task()
router = scratch.experts.BiasedRouter(hidden=16, experts=4, top_k=1)
router.scores = moe.router.scores  # starts where the others started
moe.router = router
with_bias, load_with_bias, error_with_bias = train(moe, x, wanted, speed=0.02)
expect(1.1, with_bias[-1], within=0.25, label="with a bias", yours=biased)

# %%
loads = {"without": load_without, "loss": load_with_loss, "bias": load_with_bias}
rows = {
    f"expert {number}": {how: load[number] for how, load in loads.items()}
    for number in range(4)
}
colours = {"without": style.PALE, "loss": style.SKY, "bias": style.BLUE}
figures.grouped_bars(rows, "Choices in the last update", "{:,}".format, colours)

# %%
print(
    f"error: {error_without:.3f} without, {error_with_loss:.3f} with the loss,", end=" "
)
print(f"{error_with_bias:.3f} with the bias")

# %% [markdown]
# **Explain.** The bias evens the load out as well as the loss does, and no expert is dead. (With seeds 0 to 5 it ends between
# 1.05 and 1.3.) The size of the step decides: with $\gamma = 0.005$ some seeds are still at 2.7 after 60 updates, and with
# 0.05 the load swings between 1.2 and 1.7. The errors differ too little here to prefer one of the remedies. It
# takes a real model to see the price of the loss.
#
# DeepSeek's own comparison, on a model of a billion parameters: the busiest expert has 1.72 times the mean with a balance
# loss and 1.04 times with the bias, at a perplexity of 9.56 and 9.50 (arXiv:2408.15664, table 2). DeepSeek-V3 moves its
# biases by 0.001 an update for nearly all of the training, then not at all (arXiv:2412.19437, section 4.2).
#
# **Remember**
# - Capacity = factor × mean load. What is above it is dropped, unless you let sizes vary.
# - To drop nothing, the factor must reach the imbalance of the busiest expert.
# - Routers skew by themselves. A balance loss (1 when all are equally busy, up to $E/k$) or a bias for the choice evens the load out.

# %% [markdown]
# ## 12.4 Expert parallelism
#
# Mixtral's experts of one layer are 1.409 B parameters, 2.82 GB in bf16. Suppose that 8 data-parallel ranks have
# 4096 tokens each. Two ways to bring tokens and experts together:
#
# - *Weights to the tokens*, as FSDP does (chapter 9): each rank gathers all 8 experts, 2.82 GB, and uses each of
#   them for few tokens.
# - *Tokens to the weights*: each rank keeps one expert, and sends each token to the ranks of its two experts.
#   $4096 \cdot 2$ choices of 4096 numbers, 2 bytes each: 67.1 MB there, and 67.1 MB back. A twentieth. Only with
#   21 times as many tokens, 86,000 on each rank, would it be as much.
#
# For one layer of one rank, on one scale:

# %%
one_rank = experts.expert_load(8 * 4096, 8, 2, ranks=8, row_bytes=2 * 4096)
one_layer = models.MODELS["mixtral-8x7b"].parameters().experts / 32
by_rows = one_rank.dispatch_bytes
assert by_rows == 4096 * 2 * 4096 * 2
figures.stacked_bars(
    {
        "weights to the tokens": {"weights, gathered": 2 * one_layer},
        "tokens to the weights": {"rows, there": by_rows, "rows, back": by_rows},
    },
    "What one rank gathers, or sends and gets back",
    units.format_bytes,
    colours={
        "weights, gathered": style.TEMPORARY,
        "rows, there": style.MESSAGES,
        "rows, back": style.ACTIVATIONS,
    },
)

# %% [markdown]
# The second is **expert parallelism** (专家并行), EP (Lepikhin et al. 2020, *GShard*, arXiv:2006.16668, section 3).
# Every rank has something for every other rank: that is chapter 6's all-to-all, twice per layer. The first is
# called **dispatch** (分发), the second **combine** (合并). The degree of EP is free: with 4 ranks each has two
# experts, with 2 ranks four. It must divide the number of experts.
#
# Follow the tokens of four ranks, 64 on each, to eight experts and back. Before you walk: every rank sends nearly the same number of rows. Do all ranks get the
# same number to work on? And whose tokens are dropped?

# %%
from course_lib.chapters.ch12_experts_and_long_sequences import steppers

steppers.expert_exchange(ranks=4)

# %% [markdown]
# Rank 0 has the two favourites and computes 160 rows, rank 3 has 84: all wait for rank 0, in every layer. The choices of ranks 2 and 3 are dropped, since the first come first.
# Set the skew to 0, then the capacity factor to "no limit": what becomes of the waiting, and what of the drops? (Without skew both
# all but vanish. Without a limit nothing is dropped, but rank 0 gets even more rows, and the others wait longer.)
#
# So what a rank sends depends on its tokens, and what it receives on its experts' popularity.

# %%
show_source(scratch.experts.MoE.forward)

# %% [markdown]
# `_count` gets a table from the dispatcher, how many choices every rank has for each expert, and derives from it
# `kept` (ranks, experts), how many of them are accepted. `_compute` works through this rank's own experts. All that
# travels is in a class of its own. Exercise 12.10 builds it; you may want to do that first, before you read on.

# %%
show_source(scratch.experts.Dispatcher)

# %% [markdown]
# - `count`: all ranks tell each other their counts, a few bytes. From the table everybody knows what will be sent
#   and received.
# - `dispatch`: `order` sorts this rank's accepted choices by expert. Experts lie on the ranks in order, so what goes
#   to one rank is one piece.
# - `combine`: the results come back in the same order. `index_add` adds each of them, times its weight, to the token
#   that it came from.
#
# In the backward pass gradients take the same two ways in the opposite direction. So the backward pass of an all-to-all is
# an all-to-all, with the sizes exchanged:

# %%
show_source(scratch.experts.AllToAll)

# %% [markdown]
# ### The bytes
#
# Convention: as in chapter 6, sizes are those of the whole tensor, with the part that stays on the rank. ($1/n$ of the
# experts are at home, so $(n-1)/n$ really leave.)
#
# **Predict.** 2 ranks, 128 tokens each, $h = 64$, fp32, 4 experts, $k = 2$, one layer. Bytes that a rank puts into its
# all-to-alls in one step, forward and backward, if all experts got the same?

# %%
routed = predict("12.routed", "Bytes, balanced?", yours=None, unit="B")


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

# %%
measured = [size for (_, size), _ in reports]
even = 4 * 128 * 2 * 64 * 4
expect(
    even,
    sum(measured) / 2,
    within=0.01,
    label="mean of the ranks",
    unit="B",
    yours=routed,
)

# %% [markdown]
# **Explain.** There are $n$ ranks with $t$ tokens each. A layer has four all-to-alls: dispatch and combine, forward and
# backward. When all experts get the same, a rank puts $t \cdot k$ rows into each of the four, and
#
# $$\text{bytes} = 4 \cdot t \cdot k \cdot h \cdot \text{bytes per number}.$$
#
# When the router is uneven, count the rows: a rank sends those of its own tokens (dispatch), and sends back those
# that it received (combine). It does both twice, because of the backward pass:
#
# $$\text{bytes} = 2 \cdot (\text{sent} + \text{received}) \cdot h \cdot \text{bytes per number}.$$
#
# Computed from the counts, each rank agrees to the byte. The balanced formula is right *on average*, since every row
# that is sent is received by somebody. A single rank is off by as much as its experts are more or less popular.
#
# Mixtral on 8 ranks, 4096 tokens each: $4 \cdot 67.1$ MB in each of 32 layers, so 8.6 GB a step, of which 7.5 GB
# leave the rank. Over NVLink (450 GB/s) that is 17 ms; over one 50 GB/s network port 150 ms.

# %%
per_rank = experts.expert_load(8 * 4096, 8, 2, ranks=8, row_bytes=2 * 4096)
traffic = step_traffic(
    Job(
        models.MODELS["mixtral-8x7b"],
        Recipe(),
        Layout(dp=8, ep=8),
        CLUSTER,
        sequence=4096,
    )
)
print(units.format_bytes(traffic.bytes_by_axis["ep"]))
assert 32 * 4 * per_rank.travelling_bytes == traffic.bytes_by_axis["ep"]

# %% [markdown]
# ### Can computing hide the way?
#
# A row of $h$ numbers travels four times in a step, at 2 bytes a number: $8h$ bytes. Its expert has three matrices of
# $h \times f$ and does 6 FLOP with each weight, forward and backward: $18hf$ FLOP. So an expert does
#
# $$\frac{18\,h\,f}{8\,h} = 2.25\,f \quad\text{FLOP per byte.}$$
#
# Neither the number of tokens nor $h$ matters, only the width $f$ of an expert. Compare it with the ridge of each wire
# (section 10.7), the FLOP that an H100 can do while it sends one byte:

# %%
wires = {"the network's": 50e9, "an H800's NVLink's": 200e9, "NVLink's": 450e9}
asked = {
    f"{wire} ridge, {speed / 1e9:g} GB/s": hardware.ridge(H100.peak_flop_per_s, speed)
    for wire, speed in wires.items()
}
for name in ("mixtral-8x7b", "deepseek-v3"):
    width = models.MODELS[name].expert_width
    asked[f"{name}, f = {width:,}"] = experts.routed_intensity(width)
found = [round(flop) for flop in asked.values()]
assert found == [19_788, 4_947, 2_199, 32_256, 4_608]
rising = dict(sorted(asked.items(), key=lambda one: one[1]))
title = "FLOP of an expert for each byte sent, and what a wire asks for"
figures.bars(rising, "{:,.0f}".format, title, style.COMPUTING)

# %% [markdown]
# Mixtral's wide experts compute long enough to hide even the network. DeepSeek-V3's narrow ones, with 4,608, do so over an H100's NVLink only:
# the price of small experts is a fast wire. It was trained on H800s, which compute as fast as an H100 but whose NVLink moves only 200 GB/s one way. That asks for
# 4,947: there, no wire is fast enough.
#
# So DeepSeek-V3 sends less. A token's 8 experts lie on at most four of eight nodes (section 2.1.2), and it travels once to
# each of the four, with 1 byte for each of its $h$ numbers on the way there and 2 on the way back. So a number takes
# $4 \cdot 3 = 12$ bytes in the forward pass. With a way to each expert, in 16 bits there and back, it would take $8 \cdot 4 = 32$. Even
# so, its authors count computing and messages as about 1 : 1 (section 3.2.1).
#
# Having enough work is not sufficient; it must be there at the right time, and an expert cannot start before its tokens have come. Three things can fill the gap:
#
# - The shared expert needs no all-to-all, so it can run meanwhile.
# - The tokens can be sent in pieces: experts work on one piece while the next one travels, as in section 10.8 (FasterMoE,
#   [PPoPP 2022](https://doi.org/10.1145/3503221.3508418); Tutel, arXiv:2206.03382; COMET, arXiv:2502.19811).
# - With two micro-batches one computes while the tokens of the other travel. DualPipe does that, and so does
#   `--overlap-moe-expert-parallel-comm` in Megatron-Core. Section 13.5 computes how much of an update of DeepSeek-V3 it hides.
#
# (Not measured here: that needs GPUs.)
#
# ### What EP does to the gradients
#
# The batch is still cut over all ranks, so EP ranks *are* data-parallel ranks. The dense part is the same on all
# of them, and its gradients are all-reduced. An expert is on one rank only; it has seen the tokens of all ranks,
# so its gradient is already complete, and stays where it is. With $n$ data-parallel ranks and EP of degree $e$,
# each expert exists $n/e$ times, and its gradients are summed over those only. With 8 ranks and
# EP 4, ranks 0 and 4 have the same experts.
#
# ### Four families, corrected
#
# Note 003 lists four "families of parallelism": DP, PP, TP and MoE, and says that PP "combines MP and DP". Ask of
# each: *what is cut?*
#
# | | what is cut |
# |---|---|
# | data parallelism, DP | the batch |
# | tensor parallelism, TP | each matrix |
# | pipeline parallelism, PP | the stack of layers; micro-batches keep the stages busy |
# | **expert** parallelism, EP | the set of experts |
# | context parallelism, CP | the sequence (section 12.6) |
#
# MoE is not in the table. It is a kind of model, which you can train on one GPU, as we did in section 12.1, or by
# DP alone. EP is the parallelism, and MoE is what makes it possible. Nor does PP contain DP: chapter 11's
# pipelines had one copy of the model. The two are *often used together*, which is not the same.
#
# The same note says that pipelines cut "vertically" (纵向切分) and tensor parallelism "horizontally" (横向切分). That is so
# if the layers stand in a row from left to right. Drawn from the bottom to the top, it is the other way round. So ask
# *what* is cut.
#
# **Remember**
# - EP moves tokens to experts: two all-to-alls per layer and direction.
# - Bytes of a rank: $2 \cdot (\text{sent} + \text{received}) \cdot h \cdot$ bytes per number. What it sends depends on its tokens, what it receives on its experts' popularity.
# - Experts of width $f$ do $2.25 f$ FLOP per byte: narrow ones need a fast wire, or fewer copies.
# - An expert's gradient is summed over its own copies only, and stays at home if there is just one.
# - MoE is an architecture. EP is a parallelism.

# %% [markdown]
# ## 12.5 Placing experts, and filling them
#
# ### A mesh of their own for the experts
#
# 16 GPUs in two nodes train Mixtral with tp 2, cp 2 and dp 4. (Neighbours in number belong to the same tp group; then come cp
# and dp. Section 13.1 numbers ranks like this.) If tp cuts the experts' matrices as it cuts those of attention, each expert
# lies on a pair of GPUs. An ep group takes one GPU of each of the 8 pairs, so it spans both nodes. Here are the groups of rank 5:

# %%
layout = Layout(tp=2, cp=2, dp=4, ep=8)


def group_of_5(axis, etp):
    """The ranks with which rank 5 shares one axis of the experts' mesh."""
    groups = mesh.expert_groups(layout, axis, etp)
    return next(group for group in groups if 5 in group)


cut = {axis: group_of_5(axis, etp=2) for axis in ("ep", "etp")}
figures.rank_groups(cut, ranks=16, per_node=8)

# %% [markdown]
# **MoE parallel folding** gives the experts a mesh of their own over the same GPUs (Liu et al. 2025, arXiv:2504.14960,
# section 3.2): **etp** ranks share one expert's matrices, **ep** ranks have all experts between them, and **edp** ranks
# hold the same ones. Only pp must agree with attention's mesh. With etp 1 each GPU has a whole expert, and one node has all:

# %%
folded = {axis: group_of_5(axis, etp=1) for axis in ("ep", "edp")}
assert {rank // 8 for rank in cut["ep"]} == {0, 1}
assert {rank // 8 for rank in folded["ep"]} == {0}
figures.rank_groups(folded, ranks=16, per_node=8)

# %% [markdown]
# It saves bytes as well. The two halves of an expert need the same rows. So after the all-to-all each pair gathers
# each other's rows, and on the way back it sums the two results.
#
# **Predict.** What percentage of the bytes does a GPU still send for its experts, if they are folded? An all-to-all among
# 8 sends 7/8 of a GPU's rows; the gather of a pair sends all of them.

# %%
left = predict("12.folded", "Bytes left, %?", yours=None, unit="%")


# %%
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
expect(share, 100 * whole / halves, within=1e-9, label="folded", unit="%", yours=left)

# %% [markdown]
# **Explain.** 47 %, and they stay inside the node. NVIDIA measured it on 128 H100: Mixtral 8x22B goes from 46.3 to 49.3 %
# MFU, and with its experts cut into 64 narrow ones from 17.1 to 28.8 % (table 1 of the paper). In
# Megatron-Core it is `--expert-tensor-parallel-size 1`. Our `Layout`, and so the planner of chapter 13, knows
# etp = tp only.
#
# ### Many small products
#
# A rank has rows for several experts, and `_compute` loops over them. Small experts make small products. How many rows
# must an expert get before the chip spends its time computing, and not reading weights? $m$ rows times an
# $h \times f$ matrix are $2mhf$ FLOP and $2(mh + hf + mf)$ bytes (section 5.4). Set their ratio equal to the ridge $R$
# of the chip's memory:
#
# $$m = \frac{R}{1 - R\,(1/h + 1/f)} .$$
#
# **Predict.** An H100's ridge is 295 FLOP per byte. DeepSeek-V3 has $h = 7168$ and $f = 2048$. How many rows?

# %%
rows_needed = predict("12.rows", "Rows of an expert?", yours=None)

# %%
ridge = H100.ridge_flop_per_byte
by_hand = ridge / (1 - ridge * (1 / 7168 + 1 / 2048))
rows = hardware.ridge_rows(7168, 2048, ridge)
expect(by_hand, rows, within=1e-9, label="rows on an H100", yours=rows_needed)

# %%
curves = {}
for name in ("mixtral-8x7b", "deepseek-v3"):
    its = models.MODELS[name]
    curves[name] = []
    for m in (round(2 ** (half / 2)) for half in range(8, 27)):
        per_byte = hardware.matmul_intensity(m, its.hidden, its.expert_width)
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
# **Explain.** 363 rows. A GPU with 4096 tokens of its own has 128 rows for each of the 256 experts, and can reach
# 40 % of its peak at most. With ep 64 an expert gets the rows of 64 GPUs, 8192. So expert parallelism does not only spread
# the weights. It fills the experts.
#
# A product is a call, too, and each call has a price. Cut 2048 rows over more and more experts, so that the FLOP stay the
# same. Time a loop of small products, and one batched product, on this machine:


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
# **Explain.** A call takes a few microseconds, however small its product, so the loop gets slower from the start. The batch
# pays once. It holds its rate until a matrix is used for so few rows that reading it takes longer than multiplying: the
# ridge again. Where this was written, the loop reached a third of the batch's rate at 32 rows, and a tenth at 4.
#
# A batch needs the same number of rows for each expert. A **grouped product** (分组矩阵乘, grouped GEMM) does not: one call,
# with as many rows for each expert as it got. It is `--moe-grouped-gemm` in Megatron-Core, and
# `torch.nn.functional.grouped_mm` in PyTorch. Let a skewed router give the $k$-th of 64 experts $432/k$ rows: 432 for the first, 7 for
# the last, 2050 in all. A batch pads each to 432 and multiplies 64 · 432 rows, 13.5 times as many:

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
for way in ways.values():
    torch.testing.assert_close(way(), ways["a loop"]())

# %%
spent = {name: measure.times.seconds(way) for name, way in ways.items()}
figures.bars(spent, units.format_duration, "64 experts, 432/k rows each")

# %% [markdown]
# **Explain.** The same numbers. Where this was written the padded batch took eight times as long as the grouped product, and the loop 1.4 times: on a CPU
# the one call is a loop in C++. On a GPU it also fills the chip, which cuts a result into
# tiles of, say, 128 × 128 numbers, one for each of an H100's 132 processors. 128 rows × 2048 columns are 16 tiles, so 116 processors do nothing. All 256
# experts in one call have 4096 tiles.
#
# ### The library
#
# PyTorch ships no MoE layer. It ships an all-to-all with a backward pass, and a way to tell DDP to leave
# parameters alone. Our demo puts the two together as the counterpart. (DDP takes the mean over ranks where we
# want the sum, so the loss is multiplied by the number of ranks. Experts do not go through DDP, so the factor is
# divided out of their gradients again.)

# %%
from course_lib.chapters.ch12_experts_and_long_sequences.demos import (
    experts as expert_demo,
)

show_source(expert_demo.TorchDispatcher, expert_demo.Library)

# %% [markdown]
# Megatron-Core has a layer of its own:
#
# ```
# --num-experts 8 --moe-router-topk 2 --moe-aux-loss-coeff 0.01
# --expert-model-parallel-size 8
# ```
#
# and `--moe-expert-capacity-factor` for those who want to drop. DeepSpeed has
# `deepspeed.moe.layer.MoE(…, ep_size=8, k=2)`.
#
# **Remember**
# - Experts can have a mesh of their own over the same GPUs. Whole experts within a node send the fewest bytes.
# - An expert with few rows waits for its weights. EP brings it the rows of many GPUs.
# - A grouped product computes all experts of a rank in one call.

# %% [markdown]
# ## 12.6 One long sequence
#
# LLaMA-3.1 8B reads 131,072 tokens. Training on *one* such sequence, bf16, flash attention:

# %%
llama = models.MODELS["llama3.1-8b"]
bars = {}
for s in (8_192, 131_072):
    layer = activations.layer_activation_bytes(Job(llama, Recipe(), sequence=s))
    inputs = activations.layer_activation_bytes(
        Job(llama, Recipe(recompute="full"), sequence=s)
    )
    kept = {"all kept": 32 * layer, "recomputed": 32 * inputs + layer}
    for how, size in kept.items():
        rest = {"states": 16 * llama.parameters().total, "logits": 4 * s * llama.vocab}
        bars[f"{s:,}, {how}"] = {**rest, "activations": size}
figures.stacked_bars(
    bars,
    "LLaMA-3.1 8B, one sequence on one GPU",
    units.format_bytes,
    colours={"logits": style.TEMPORARY},
    limit=("one GPU", 80 * units.GB),
)

# %% [markdown]
# 704 GB of activations. Even with full recomputation (chapter 4), the inputs of all layers and the one layer at work
# take 56 GB, and the logits another 67 GB. What can be cut?
#
# - *Data parallelism* cuts the batch. One sequence is not a batch.
# - *Tensor parallelism* with sequence parallelism cuts layers and logits, but it stays in a node (chapter 10): 8 ways. Is that enough?
# - *Pipeline parallelism* cuts layers, but keeps as many micro-batches in flight as it has stages (chapter 11).
#
# Count everything that lies on one of eight GPUs:


# %%
def held_by(layout, tokens=131_072, recompute="none"):
    """What lies on each of the GPUs that share a sequence."""
    job = Job(llama, Recipe(recompute=recompute), layout, CLUSTER, tokens)
    bill = gpu_memory(job).consumers
    return {kind: size for kind, size in bill.items() if size > 1e8}


eight_ways = Layout(tp=8, sequence_parallel=True)
tp_bars = {
    "131,072, recomputed": held_by(eight_ways, recompute="full"),
    "131,072, all kept": held_by(eight_ways),
    "1,048,576, recomputed": held_by(eight_ways, 1_048_576, "full"),
}
found = [round(sum(bar.values()) / 1e9, 1) for bar in tp_bars.values()]
assert found == [34.3, 118.1, 154.5]
limit = ("one GPU", 80 * units.GB)
title = "LLaMA-3.1 8B: each of 8 GPUs that share one sequence"
figures.stacked_bars(tp_bars, title, units.format_bytes, limit=limit)

# %% [markdown]
# With full recomputation, for a third more FLOP, it is: 34 GB. Eight ways are too few if nothing may be computed twice, 118 GB, and for a million tokens, 155 GB even with recomputation.
#
# And what grows with the sequence $s$? Weights, gradients and optimizer states do not. Activations and logits grow as
# $s$, and so does the work of all matrices. The work of attention's scores grows as $s^2$. For one layer, forward and
# backward, without a mask:

# %%
lengths = [2**power for power in range(11, 21)]
works = [flops.layer_flops(llama, 0, 1, s) for s in lengths]
curves = {
    "scores": [(it.tokens, it.scores_flop / 1e12) for it in works],
    "matrices": [
        (it.tokens, (it.projections_flop + it.mlp_flop) / 1e12) for it in works
    ],
}
figures.lines(
    curves,
    "tokens in the sequence",
    "TFLOP of one layer",
    "LLaMA-3.1 8B: what a longer sequence costs",
    doubling=(True, True),
)

# %% [markdown]
# So cut the sequence: with $n$ ranks each has $s/n$ tokens. Norms, MLPs, router and logits look at one token at a
# time, and do not notice. Only in attention does a token look at others. Cutting the sequence through the whole layer is context parallelism, CP, which chapter 1
# named and we now build. (Chapter 10's sequence parallelism cuts the sequence only *between* the
# tensor-parallel parts.) The weights are the same on all ranks, as in data parallelism, and their gradients are
# summed over DP and CP ranks together. So CP alone leaves the states of the whole model on every GPU. ZeRO (chapter 8) cuts those, over the same ranks:

# %%
cp_bars = {
    "tp 8": held_by(eight_ways),
    "cp 16": held_by(Layout(cp=16)),
    "cp 16, ZeRO-3": held_by(Layout(cp=16, zero_stage=3)),
}
of_tp, of_cp, of_both = (sum(bar.values()) for bar in cp_bars.values())
assert round(of_cp / 1e9) == 196 and of_both < 80e9 < of_tp
title = "Each GPU: one sequence of 131,072 tokens, all activations kept"
figures.stacked_bars(cp_bars, title, units.format_bytes, limit=limit)

# %% [markdown]
# With cp 16 and ZeRO-3 the sequence fits, on two nodes, and nothing is computed twice.
#
# ### Attention in pieces: online softmax
#
# A query needs the softmax over *all* keys, and they lie on other ranks. Can it begin with some of them? One
# query, three keys, with scores 1, 2 and 4 and values 10, 20 and 40. At once:
#
# $$\frac{e^1 \cdot 10 + e^2 \cdot 20 + e^4 \cdot 40}{e^1 + e^2 + e^4}
# = \frac{27.2 + 147.8 + 2183.9}{64.7} = 36.46 .$$
#
# Now the first rank has keys 1 and 2, and the second has key 3. Each computes the mean of its own, and remembers one more
# number, the logarithm of its denominator, $\ell$ ("log-sum-exp"):
#
# | block | mean $o$ | denominator | $\ell$ |
# |---|---|---|---|
# | keys 1, 2 | (27.2 + 147.8) / 10.11 = 17.31 | 10.11 | 2.313 |
# | key 3 | 40 | 54.60 | 4 |
#
# The result is the mean of the means, each weighted by its share of the whole denominator, $10.11 / 64.7 = 0.156$ and
# $54.60 / 64.7 = 0.844$. So $0.156 \cdot 17.31 + 0.844 \cdot 40 = 36.46$. For two blocks $a$ and $b$:
#
# $$\ell = \log(e^{\ell_a} + e^{\ell_b}), \qquad o = e^{\ell_a - \ell}\, o_a + e^{\ell_b - \ell}\, o_b .$$
#
# This is **online softmax** (在线归一化). It is exact, the order of the blocks does not matter, and only *differences*
# of $\ell$ meet the exponential, so nothing overflows. Flash attention is built on it as well (Milakov and
# Gimelshein 2018, arXiv:1805.02867; Dao et al. 2022, arXiv:2205.14135, section 3.1).

# %%
scores, values = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([10.0, 20.0, 40.0])


def block(keys):
    """Mean of the block's values, and log-sum-exp of its scores."""
    return scores[keys].softmax(0) @ values[keys], scores[keys].logsumexp(0)


(o_a, l_a), (o_b, l_b) = block(slice(0, 2)), block(slice(2, 3))
both = torch.logaddexp(l_a, l_b)
merged = (l_a - both).exp() * o_a + (l_b - both).exp() * o_b
expect(36.46, float(merged), within=1e-3, label="merged")
assert torch.isclose(merged, scores.softmax(0) @ values)


# %%
keys = ("key 1", "key 2", "key 3")
rows = {
    "all at once": dict(zip(keys, scores.softmax(0).tolist(), strict=True)),
    "first rank": dict(zip(keys, scores[:2].softmax(0).tolist(), strict=False)),
    "second rank": {"key 3": 1.0},
    "merged": {"first rank": float((l_a - both).exp())},
}
rows["merged"]["second rank"] = 1 - rows["merged"]["first rank"]
means = zip(rows, (merged, o_a, o_b, merged), strict=True)
told = {name: f"mean {mean:.2f}" for name, mean in means}
figures.stacked_bars(rows, "Shares of the softmax", "{:.3f}".format, told)

# %% [markdown]
# In the library it is two functions, for all queries of a block at once. Exercise 12.11 builds both, and the ring of
# the next section; you may want to do that first, before you read on.

# %%
show_source(scratch.context.block_forward)

# %%
show_source(scratch.context.merge)

# %% [markdown]
# **Remember**
# - Activations and logits grow with $s$, scores with $s^2$, model states not at all.
# - All layers but attention treat tokens one by one: they can be cut along the sequence at no cost.
# - Two blocks of attention merge exactly, if each remembers its log-sum-exp.

# %% [markdown]
# ## 12.7 Ring attention
#
# $n$ ranks sit in a circle. Each keeps its queries, and the keys and values travel. In each round a rank works on the
# block it has, sends it on to its neighbour, and receives the next one. After $n - 1$ hops every rank has seen
# all keys. Meanwhile it holds at most three blocks, however large $n$ is: its own, the one that it works on, and the one that is coming. This is **ring attention** (环形注意力) (Liu et al. 2023,
# arXiv:2310.01889, section 3).

# %%
show_source(scratch.context.ring_forward)

# %% [markdown]
# `ring.visits` starts the next hop *before* it hands out the current block, so sending and computing overlap.
# `ring.pairs` says which chunks see each other; `same` is the chunk that meets itself, where the mask hides the
# later half. `cut` takes one chunk out of a slice. In the backward pass keys and values go round once more
# (keeping them all would undo the saving), and the gradients of keys and values travel behind them and end at
# home.
#
# ### The bytes of the ring
#
# A hop carries the keys and values of $b$ sequences, $c = s/n$ tokens of each, $w$ numbers a token ($w = h$, or
# less with grouped-query attention, where several query heads share keys). Per layer: $n-1$ hops forward, $n-1$
# backward, $n-1$ with gradients:
#
# $$\text{bytes of a layer} = 3\,(n-1) \cdot b \cdot c \cdot 2w \cdot \text{bytes per number}.$$
#
# LLaMA-3.1 8B, $s$ = 131,072 on 16 ranks: $c = 8192$, $w = 1024$ in bf16. A hop is
# $8192 \cdot 2 \cdot 1024 \cdot 2 = 33.6$ MB; 45 of them in each of 32 layers are 48.3 GB a step.

# %%
traffic = step_traffic(Job(llama, Recipe(), Layout(cp=16), CLUSTER, sequence=131072))
print(units.format_bytes(traffic.bytes_by_axis["cp"]))
assert traffic.bytes_by_axis["cp"] == 32 * 45 * 8192 * 2 * 1024 * 2

# %% [markdown]
# Is the hop hidden behind the computation? Computing a block of $c$ queries with $c$ keys takes $4c^2h$ FLOP
# (queries with keys, weights with values, 2 for each multiply-add). The next block has $4cw$ bytes (keys and
# values, 2 bytes a number). Computing grows with $c^2$, sending with $c$, so somewhere the two lines cross. For an
# H100 (989 TFLOP/s) and a 50 GB/s network:

# %%
needed = {
    width: context.hidden_ring_tokens(989.4e12, 50e9, hidden=4096, kv_width=width)
    for width in (4096, 1024)
}
slices = [2**power for power in range(10, 17)]
curves = {"computing": [(c, 1e6 * 4 * c**2 * 4096 / 989.4e12) for c in slices]}
for width in needed:
    curves[f"sending, w = {width:,}"] = [
        (c, 1e6 * 4 * c * width / 50e9) for c in slices
    ]

# %%
assert round(needed[1024]) == 4947
marks = {f"{tokens:,.0f}": tokens for tokens in needed.values()}
figures.lines(
    curves,
    "tokens on a rank, c",
    "µs for one block",
    "Right of the crossing the hop is hidden",
    doubling=(True, True),
    mark=marks,
)

# %% [markdown]
# LLaMA-3.1 8B ($w = 1024$) needs 4947 tokens on a rank. With as many key heads as query heads it would need four times as
# many. (What a causal mask changes depends on which tokens a rank has: see below.)
# Real kernels do not reach the peak, which makes hiding easier.
#
# ### Who has how much to do?
#
# A token sees only earlier ones. Cut 64 tokens into 4 slices of 16: rank 0's queries see one slice, rank 3's
# queries see four. Walk round the ring. In which step does somebody wait for the first time, and who works in the last one?

# %%
from course_lib.chapters.ch12_experts_and_long_sequences import steppers

steppers.ring_attention(ranks=4)

# %% [markdown]
# Each block of the lower triangle is computed exactly once. From the second step on, rank 0 gets only keys that its
# queries must not see. In the last step rank 3 works alone.

# %%
in_order = [context.rank_scores(64, rank, ranks=4) for rank in range(4)]
assert in_order == [256, 512, 768, 1024]

# %% [markdown]
# All wait for rank 3. In general rank $r$ has $r + 1$ blocks; the busiest has $n$, the mean is $(n+1)/2$, and the
# imbalance, $2n/(n+1)$, goes to 2: with many ranks half of all time is waiting.
#
# The remedy: cut into $2n$ chunks, and give each rank an early and a late one. Rank 0 gets chunks 0 and 7, rank 1
# gets 1 and 6, rank 2 gets 2 and 5, rank 3 gets 3 and 4. This is the **zig-zag** (之字形) order; Llama 3 was trained
# with it (arXiv:2407.21783, section 3.3.2).
#
# **Predict.** 64 tokens, 4 ranks, chunks of 8 tokens. How many scores does each rank compute now?

# %%
each = predict("12.zigzag", "Scores of a rank?", yours=None)

# %%
zigzag = [context.rank_scores(64, rank, 4, zigzag=True) for rank in range(4)]
expect(9 * 8**2, zigzag[0], label="scores of a rank", yours=each)
assert len(set(zigzag)) == 1

# %%
rows = {
    f"rank {rank}": {"in order": in_order[rank], "zig-zag": zigzag[rank]}
    for rank in range(4)
}
colours = {"in order": style.PALE, "zig-zag": style.COMPUTING}
figures.grouped_bars(rows, "Scores that each rank computes", "{:,}".format, colours)

# %% [markdown]
# The same ring with zig-zag slices. Look for one rank's blocks in each step:

# %%
from course_lib.chapters.ch12_experts_and_long_sequences import steppers

steppers.ring_attention(ranks=4, zigzag=True)

# %% [markdown]
# Chunk $j$ sees $j + 1$ chunks, itself among them. So rank $r$ has $(r + 1) + (2n - r)$ pairs of chunks, which is
# $2n + 1 = 9$ for every $r$: a short early row and a long late row always add up to the same. (Scores that the mask
# hides inside a chunk are counted. Smaller chunks waste fewer of them, so the sum fell too.)
#
# Do the hops still hide? In each of them all wait for the busiest rank. With slices in order that is the last one, which computes a whole block in every hop: 4947 tokens
# suffice, as without a mask. With zig-zag slices every rank computes 2 of 4 pairs of chunks in a hop, half a block. Half as much work must hide the same bytes, so it
# takes twice as many tokens, about 9900.


# %%
def part_of_block(rank, owner, zigzag):
    """Which part of a block `rank` of 4 computes when `owner`'s keys are there."""
    mine, theirs = (context.chunks(at, 4, zigzag) for at in (rank, owner))
    return sum(k <= q for q in mine for k in theirs) / len(mine) ** 2


for hop in (1, 2, 3):
    parts = [
        [part_of_block(rank, (rank - hop) % 4, way) for rank in range(4)]
        for way in (False, True)
    ]
    assert max(parts[0]) == 1 and parts[1] == [0.5] * 4

# %% [markdown]
# ### Two other ways
#
# **All-gather instead of a ring.** Llama 3 gathers all keys and values at once. With grouped-query attention they
# are small, and any mask can be used. Fewer, larger messages; more memory, and less to hide behind.
#
# **DeepSpeed-Ulysses** (arXiv:2309.14509) uses an all-to-all before attention that turns "all heads of some
# tokens" into "all tokens of some heads", and another one after it that turns it back. Attention then runs
# unchanged, but the degree cannot be larger than the number of heads.
#
# In PyTorch: `torch.distributed.tensor.experimental.context_parallel`, still experimental, for GPUs. In
# Megatron-Core: `--context-parallel-size 16`.
#
# **Remember**
# - Ring: $3(n-1)$ hops a layer, each with keys and values of $s/n$ tokens.
# - Slices in order: imbalance up to 2. Zig-zag: all ranks equal.
# - The longer the slice, the better the ring hides.

# %% [markdown]
# ## 12.8 Demo: experts on four ranks, a ring of four
#
# First the experts: a GPT of 2 layers with 4 experts each, one expert per rank, $k = 2$, 256 tokens in all. Once
# with a router that deals the tokens out in turn, so that the balanced formula holds exactly, and once with the
# real one.
#
# **Predict.** Routers are free to choose. What is the least that a rank can send, as a percentage of the balanced bytes,
# whatever the router does?

# %%
least = predict("12.least", "At least, % of balanced?", yours=None, unit="%")

# %%
balanced = 2 * 4 * 64 * 2 * 64 * 4  # layers · all-to-alls · tokens · k · h · bytes
even_run = demos.run("experts", ranks=4, steps=3, fixed_routes=True, stream=False)
expect(
    balanced,
    even_run.versions[0].sent["all-to-all"][1],
    label="dealt out in turn",
    unit="B",
)

# %%
run = demos.run("experts", ranks=4, steps=4, stream=False)
print(run.report())

# %%
for version in run.versions:
    assert version.sent == version.predicted_sent
    assert version.stored == version.predicted_stored
size = run.versions[0].sent["all-to-all"][1]
expect(50, label="a rank that receives nothing", yours=least)
assert balanced / 2 <= size < balanced

# %%
print(f"rank 0: {size / balanced:.0%} of the balanced bytes; load {run.load[-1]}")

# %% [markdown]
# **Explain.** A rank always sends the rows of its own tokens, forward and (as gradients) backward. That is half of
# the balanced bytes. The other half is what it sends back, which may be nothing, or far more. Read the load (for each
# layer, for each expert): almost nobody wants expert 0, which lives on rank 0, so rank 0 has hardly anything to send
# back. The prediction is still exact, because it uses the counts. And both versions train as one process does: where
# an expert lives changes nothing in the result.
#
# Why so skewed? In an untrained model all tokens look alike, so they all ask the same experts. The balance loss
# works against that slowly: we found that after 60 updates the busiest expert has 1.70 times the mean, and without
# the loss 2.00, the worst possible for $k = 2$ of 4. What would a capacity do meanwhile? The first layer of the last
# update, with capacity factor 1.25:

# %%
seen = tuple(run.load[-1][0])
limit = experts.capacity(sum(seen), experts=4, factor=1.25)
figures.expert_bars(
    experts.ExpertLoad(seen, top_k=2, capacity=limit, ranks=4, row_bytes=256),
    "layer 0 of the demo, capacity factor 1.25",
)

# %% [markdown]
# Now the ring: the same small GPT without experts, 4 samples of 64 characters, each cut into 4 slices.
#
# The demo trains it three times: with a ring, with a ring of zig-zag slices, and by PyTorch's all-gather, in which each rank
# gathers all keys and values of a layer once, keeps them for the backward pass, and reduce-scatters their gradients.
#
# **Predict.** How many times as many bytes does the zig-zag ring send as the plain one? And the all-gather? Of a
# gathered or scattered tensor three quarters travel.

# %%
zig_bytes = predict("12.zig_bytes", "Bytes, zig-zag / ring?", yours=None)
gathered_bytes = predict("12.gathered", "Bytes, all-gather / ring?", yours=None)

# %%
context_run = demos.run("context", ranks=4, steps=3, stream=False)
ring, zig, gathered = context_run.versions
in_ring, in_zig = (version.sent["send-recv"][1] for version in (ring, zig))
whole = sum(gathered.sent[name][1] for name in ("all-gather", "reduce-scatter"))
expect(1, in_zig / in_ring, label="zig-zag / ring", yours=zig_bytes)
expect(
    2 / 3,
    3 / 4 * whole / in_ring,
    within=1e-9,
    label="all-gather / ring",
    yours=gathered_bytes,
)

# %%
hop = 4 * 16 * 2 * 64 * 4  # batch · tokens · keys and values · width · bytes
expect(2 * 3 * 3, ring.sent["send-recv"][0], label="messages of the ring")
expect(18 * hop, in_ring, label="its bytes", unit="B")
print(context_run.report())

# %%
assert context_run.scores["ring"] == in_order
assert context_run.scores["zig-zag ring"] == zigzag
assert all(v.sent == v.predicted_sent for v in context_run.versions)
assert zig.sent == ring.sent  # other tokens, as many bytes

# %% [markdown]
# **Explain.** Zig-zag changes which tokens lie where, not how many. A ring makes 3 hops in each of 3 rounds and 2 layers, 18 in all. The demo takes its predictions from `theory.network.step_traffic`, where the ring is the `cp` axis, and the
# counter agrees to the byte. Scores per rank are those of section 12.7. The differences to one process are
# rounding ($10^{-7}$).
#
# The all-gather version sends $2 \cdot 262{,}144$ B: whole tensors of all 4 ranks, of which three quarters
# travel, 393,216 B. Two thirds of the ring's 589,824, because it *keeps* the gathered keys and values for the
# backward pass. That is the memory the ring saves. On this machine the ring is usually the slower one, for reasons
# that a GPU does not have: tiny blocks, many messages, and a loop in Python around each of them. Which of the two
# rings is faster here is mostly chance.
#
# The demos in a terminal; the second line is PyTorch's own launcher:
#
# ```
# course demo experts --ranks 4 --capacity-factor 1.25
# python -m torch.distributed.run --standalone --nproc-per-node 4 -m course_lib.demos experts
# course demo context --ranks 4 --sequence 256
# ```

# %% [markdown]
# ## What to remember
#
# 1. Memory follows the total parameters, time the active ones.
# 2. Capacity = factor × mean. To drop nothing, the factor must reach the imbalance.
# 3. Routers skew by themselves; a balance loss, or a bias for the choice, evens the load out.
# 4. EP: $2\,(\text{sent} + \text{received})$ rows a layer, as all-to-alls. MoE itself is no parallelism.
# 5. An expert's width decides whether computing hides them ($2.25 f$ FLOP per byte), its rows whether the chip computes.
# 6. Attention merges from blocks exactly, with one log-sum-exp per query.
# 7. Ring: $3(n-1)$ hops a layer. Zig-zag slices give all ranks equal work.

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
# Four experts, one for each token, balance loss 4. What does the router do?
# [ ] all experts get the same
# [x] everything goes to one expert
# [ ] it drops everything
# Why: 1 is even. E / k is the worst: 4 for k = 1, and 2 if each token had two experts.
#
# A bias for the choice replaces the balance loss. With what are the results weighed?
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
# 128 rows for each expert, but it takes 363 to fill the chip. What helps?
# [x] experts on more ranks: each gets the rows of more GPUs
# [ ] more experts of the same size
# [ ] a higher capacity factor
# Why: With ep e an expert gets the rows of e GPUs: 128 · e, if all are equally popular.
#
# Ring attention, causal, 8 ranks with slices in order. What is wrong?
# [ ] the result is an approximation
# [x] the last rank has 8 times the work of the first
# [ ] the first rank waits for its keys
# Why: Its queries see all slices, those of rank 0 only their own. Zig-zag evens it out.

# %% [markdown]
# **Now you:** open [the exercises](../exercises/12_experts_and_long_sequences.ipynb).
#
# **Read on.** Fedus et al. 2021, *Switch Transformers*, section 2 (arXiv:2101.03961). Lepikhin et al. 2020,
# *GShard*, sections 2 and 3 (arXiv:2006.16668). DeepSeek-V3, sections 2.1.2 and 3.2 (arXiv:2412.19437). Liu et al. 2025,
# *MoE Parallel Folding*, section 3 (arXiv:2504.14960). Liu et
# al. 2023, *Ring Attention*, section 3 (arXiv:2310.01889). Llama 3, section 3.3.2 (arXiv:2407.21783).

# %% tags=["exercise"]
import math

import torch

from course_lib import check, hint, solution
from course_lib.theory.inputs import hardware, models
from course_lib.theory.network import context, experts

# %% [markdown] tags=["exercise"]
# ### 12.1 Calculate: Mixtral on 16 GPUs
#
# Mixtral 8x7B on 16 GPUs, all of them data parallel, with expert parallelism of degree 8. Of its 46,702,792,704
# parameters 45,097,156,608 are experts. How many parameters are on a GPU? Over how many GPUs can ZeRO-1 shard the
# optimizer states of an expert? How many bytes of states (2 + 2 + 12 a parameter) does a GPU hold without ZeRO, and with
# ZeRO-1?

# %% [raw] tags=["hints"]
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
# ### 12.3 Predict: who shares what
#
# Mixtral trains on 16 GPUs with tp 2, cp 2, dp 4 and ep 4. Neighbours in number are a tp group; then come cp and dp. In
# the experts' mesh the order is etp, ep, edp. Follow the tensors of rank 6. With which ranks, itself among them, does it share each of these? Give
# lists in order. The last two are without folding: tp cuts the experts as well.

# %% [raw] tags=["hints"]
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
# ### 12.4 Predict: a skewed router
#
# 4096 tokens, 8 experts, $k = 1$, capacity factor 1.25, the $i$-th expert
# chosen in proportion to $1/i$. Guess the dropped part first. Then compute, with `experts.expert_load`: the
# dropped fraction at factor 1.25, and the smallest of the factors 1, 1.5, 2, 2.5, 3, 3.5, 4 at which nothing is
# dropped.

# %% [raw] tags=["hints"]
# Each expert takes 1.25 times the mean. How far above it is the favourite?
# expert_load(4096, 8, 1, capacity_factor=1.25, skew=1.0).dropped_fraction; .imbalance.

# %% tags=["exercise"]
dropped_fraction, factor = ..., ...
### BEGIN SOLUTION
dropped_fraction = experts.expert_load(
    4096, 8, 1, capacity_factor=1.25, skew=1.0
).dropped_fraction
factor = 1.0
while experts.expert_load(4096, 8, 1, capacity_factor=factor, skew=1.0).dropped:
    factor += 0.5
### END SOLUTION
check("12.4", [dropped_fraction, factor])

# %% [markdown] tags=["exercise"]
# ### 12.5 Implement: the balance loss
#
# `chosen` (tokens, top_k) holds numbers of experts, `probabilities`
# (tokens, experts) the router's. Return $E \sum_i f_i P_i$ as a tensor whose gradient reaches `probabilities`.
# $f_i$ is the share of all *choices*.

# %% [raw] tags=["hints"]
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
# ### 12.6 Debug: the router that never learns
#
# This function turns the probabilities of a token's chosen experts
# (tokens, top_k) into their weights. With two experts it trains well. With one, the router's weights never
# change. Repair it.

# %% [raw] tags=["hints"]
# What is p / p?
# Section 12.1: with k = 1 the weight is the probability.


# %% tags=["exercise"]
def expert_weights(chosen_probabilities: torch.Tensor) -> torch.Tensor:
    """Weights of each token's experts."""
    ### BEGIN GIVEN
    return chosen_probabilities / chosen_probabilities.sum(dim=1, keepdim=True)
    ### END GIVEN
    ### BEGIN SOLUTION
    if chosen_probabilities.shape[1] == 1:
        return chosen_probabilities
    return chosen_probabilities / chosen_probabilities.sum(dim=1, keepdim=True)
    ### END SOLUTION


check("12.6", expert_weights)

# %% [markdown] tags=["exercise"]
# ### 12.7 Calculate: routed bytes
#
# Two ranks, four experts (0 and 1 on rank 0, 2 and 3 on rank 1), hidden 4096 in
# bf16. Accepted choices: rank 0 has `[900, 100, 600, 400]` for the experts, rank 1 has `[800, 300, 500, 400]`.
# Bytes that *rank 0* puts into the all-to-alls: in the forward dispatch; in the forward combine; in a whole step with backward?

# %% [raw] tags=["hints"]
# A row has 4096 numbers of 2 bytes.
# Combine gives back what was received.

# %% tags=["exercise"]
dispatch, combine, step = ..., ..., ...
### BEGIN SOLUTION
row = 4096 * 2
dispatch = (900 + 100 + 600 + 400) * row
combine = (900 + 100 + 800 + 300) * row
step = 2 * (dispatch + combine)
### END SOLUTION
check("12.7", [dispatch, combine, step])

# %% [markdown] tags=["exercise"]
# ### 12.8 Implement: online softmax
#
# `a` and `b` are blocks: each a pair of the mean of its values and the
# log-sum-exp of its scores, as Python floats. Return the pair of both together. Scores can be as large as 1000,
# and `math.exp(1000)` raises an error.

# %% [raw] tags=["hints"]
# Each mean counts as much as its block's denominator, which is e^ℓ.
# Only the difference of the two ℓ matters: subtract the larger one before you take exp.


# %% tags=["exercise"]
def merge(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    """(mean, log-sum-exp) of two blocks together."""
    ### BEGIN SOLUTION
    (o_a, l_a), (o_b, l_b) = a, b
    top = max(l_a, l_b)
    both = top + math.log(math.exp(l_a - top) + math.exp(l_b - top))
    return math.exp(l_a - both) * o_a + math.exp(l_b - both) * o_b, both
    ### END SOLUTION


check("12.8", merge)

# %% [markdown] tags=["exercise"]
# ### 12.9 Predict: as many ranks as the ring hides
#
# You train LLaMA-3.1 8B (hidden 4096, keys of 1024 numbers) on sequences of 131,072 tokens, causal, with ring
# attention and zig-zag slices, on H100s (989.4 TFLOP/s). The degree of context parallelism is a power of two. What is the largest one at which every hop still hides behind
# computing, at the chip's peak, over a network of 50 GB/s? The same for a model with as many key heads as query heads? And for
# LLaMA within a node of some future machine, over 450 GB/s?
#
# Then: at the first of the three degrees, how many times as much would the busiest rank compute if the slices lay in order? Guess each number, then compute it with `context.hidden_ring_tokens` and
# `context.rank_scores`.

# %% [raw] tags=["hints"]
# More ranks have shorter slices. What does a shorter slice do to computing, and to a hop?
# hidden_ring_tokens(989.4e12, 50e9, hidden=4096, kv_width=1024) is for whole blocks: section 12.7 says which part of a block a rank with zig-zag slices computes in a hop.
# Tokens / tokens of a slice, rounded down to a power of two; max / max for the last.

# %% tags=["exercise"]
llama, all_heads, fast_wire = ..., ..., ...
shorter = ...
### BEGIN SOLUTION
degrees = []
for width, wire in ((1024, 50e9), (4096, 50e9), (1024, 450e9)):
    tokens = context.hidden_ring_tokens(989.4e12, wire, hidden=4096, kv_width=width)
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
# ### 12.10 Build: tokens to experts and back
#
# Write what carries tokens to their experts and back (section 12.4), with ranks that have
# different numbers of tokens, some of them none. Each rank has equally many experts, rank 0 the first ones. `tokens` is
# (tokens, hidden), `chosen` and `weights` are (tokens, top_k): choice $c$, counted row by row, is one of token
# `c // top_k`. Given is `by_expert(chosen, kept)`, the numbers of this rank's accepted choices sorted by expert, where
# `kept` says for each expert how many are accepted.
#
# Rows and results have the type of what you get, such as bf16, and what you get stays as it is. One dispatcher serves
# batch after batch, and the next may be on its way before the gradients of the last one come back.
#
# The check runs on 3 ranks, with 1 to 3 experts on each and a top_k of 1 to 3, also in smaller groups: first the
# all-to-all with uneven numbers of rows; then counts and dispatch; then combine, where each result must find its
# token again; then the gradients, which travel back the same way. It counts the bytes; counts need one all-gather of
# at most 8 bytes each. What passes is kept as `mine/experts.py`, and `course demo experts --parts mine` trains with it.

# %% [raw] tags=["hints"]
# AllToAll: make room for `sum(received)` rows, call `dist.all_to_all_single(room, rows, received, sent, group=group)`, keep the sizes in `ctx`. Backward is the same way back.
# count: `torch.bincount(..., minlength=experts)`, and an all-gather. dispatch: the experts lie on the ranks in order, so `kept.view(ranks, ranks, -1).sum(2)` says who sends what.
# Choice c is one of token c // top_k. `by_expert` gives the choices in the order in which their rows leave. Keep it, for that is the order in which the results come back.
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

# %% [markdown] tags=["exercise"]
# ### 12.11 Build: attention round a ring
#
# Write the forward pass of ring attention (sections 12.6 and 12.7): attention to one block, the merge of
# two blocks, and the way round the ring. Tensors are (batch, heads, tokens, width). Given is `ring`, a `SequenceRing`:
#
# - This rank is number `ring.rank` of `ring.ranks`. Its slice of the sequence is one chunk, or two that are not neighbours.
# - `ring.start(tensor)` starts one hop: `tensor` to the next rank, and the previous rank's tensor to this one. It
#   returns at once; `.wait()` on what it returns gives the tensor that has come. All ranks make the same number of hops.
# - `ring.pairs(owner)` yields `(i, j, same)`: this rank's chunk `i` sees chunk `j` of the slice of rank `owner`. `same` says that both are the same chunk.
#   Chunks that are not seen do not come.
# - `ring.cut(tensor, i)` is a view of chunk `i` of a slice.
#
# Keys and values travel while blocks are computed: a hop starts before the blocks of its round and is waited for after them.
#
# The check compares a block and the merge with attention to all keys, with scores as large as 1,000 and with blocks
# whose log-sum-exp is $-\infty$; then it runs the ring on 2 and 3 ranks, also in a smaller group, and looks at the hops.
# What passes is kept as `mine/ring_attention.py`, and `course demo context --parts mine` trains with it.

# %% [raw] tags=["hints"]
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

# %% [markdown] tags=["exercise"]
# ### 12.12 Calculate: narrow experts
#
# Qwen3-30B-A3B has $h = 2048$ and 128 experts of width $f = 768$ (three matrices each), of which a token uses 8.
# Train it in bf16 on H100s (989.4 TFLOP/s, 3.35 TB/s), with 4096 tokens on a GPU and all experts equally popular.
#
# How many FLOP do the experts do for each byte that is sent under EP? What bandwidth (bytes per second, one way) must a wire have, so that
# computing at the peak could hide the way? How many rows must an expert get before reading its weights is no longer the limit? And which is
# the smallest ep, a power of two, that brings it so many?

# %% [raw] tags=["hints"]
# Section 12.4: FLOP for each byte follow from the width alone.
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
