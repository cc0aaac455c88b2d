# %% [markdown]
# # 13 3D parallelism and planning
#
# You have 2048 GPUs and a model with 70 billion parameters. Note 004 plans its training in two steps. First
# it puts one layer on each card, which makes 80 pipeline stages. Each of the 2048 cards, it says, then computes its own mini-batch and takes
# part in data parallelism independently. Then it finds that 80 stages are too many, and cuts the layers as well: tensor
# parallel 8, pipeline parallel 10. Before you book the machines: would all of them train?
#
# By the end of this chapter you can
#
# - say for every rank which piece of the model and which data it has, and with whom it talks,
# - put each kind of parallelism on the right wire, and predict what the wrong one costs,
# - audit a training plan line by line,
# - have all layouts of a cluster ranked, say why one was rejected, and know how far to trust the ranking,
# - explain why a planner and a successful plan disagree.
#
# Time: two sittings, 75 minutes for sections 13.1 to 13.3 and 75 for 13.4 to 13.7. The exercises take about two hours more. You need chapters 3 to 11; chapter 12 for cp and ep.

# %%
from dataclasses import replace

import torch
from torch.distributed.device_mesh import init_device_mesh

from course_lib import demos, expect, launch, predict, scratch, show_source, style
from course_lib.chapters.ch13_3d_planning import figures
from course_lib.theory import (
    BUCKETS,
    CAUTIOUS,
    DEEPSEEK_V3,
    Assumptions,
    Cluster,
    Job,
    Layout,
    Recipe,
    activations,
    bubble,
    collectives,
    context,
    experts,
    flops,
    gpu_memory,
    hardware,
    mesh,
    models,
    planner,
    published,
    units,
    worst_stage,
)
from course_lib.theory.network import step_traffic
from course_lib.theory.step import step_time

launch.warm_up()
torch.set_num_threads(1)

# %% [markdown]
# **Predict.** Only whole copies of the model can train. How many of the 2048 GPUs have nothing to do, in either plan?

# %%
left_over = predict("13.idle", "GPUs that stay idle?", yours=None)

# %% [markdown]
# ## 13.1 A block of ranks
#
# One copy of the model takes 80 GPUs, whether as 80 stages or as $8 \cdot 10$, and $2048 / 80 = 25.6$. There is no 0.6 of
# a copy. Either 48 of the GPUs stay idle, or the plan changes. The rule, with $w$ GPUs in all:
#
# $$dp = \frac{w}{tp \cdot pp \cdot cp}, \text{ a whole number.}$$
#
# tp, pp, cp and dp are the degrees of tensor, pipeline, context and data parallelism. A replica (chapter 7) is one
# copy of the model: tp · pp · cp GPUs. Gradients are exchanged between replicas, so among 25 GPUs here and not
# among 2048. The degree that is missing from the formula is ep. Experts are spread over GPUs that data parallelism has
# anyway, so expert parallelism needs no GPUs of its own.

# %%
expect(2048 % 80, label="idle GPUs", yours=left_over)

# %%
try:
    mesh.data_parallel(2048, tp=8, pp=10)
except ValueError as error:
    print(error)
assert mesh.data_parallel(2048, tp=8, pp=8) == 32
assert Layout(dp=4, ep=4).world == 4  # ep adds no GPUs
assert Layout(dp=4, cp=2).shard_ranks == 8  # gradients go around among dp · cp

# %% [markdown]
# The ranks stand in a block with one side for each degree. People call it a **device mesh** (设备网格), and training with tp, pp and dp
# together **3D parallelism** (三维并行). Eight ranks are the smallest true example, $2 \times 2 \times 2$.
#
# Ranks are numbers, so somebody must say which number stands where. Megatron-LM's order, from the inside out, is tp,
# cp, dp, pp:
#
# $$\text{rank} = (pp_i \cdot dp + dp_i) \cdot tp + tp_i$$
#
# with coordinates $tp_i$, $dp_i$, $pp_i$ that start at 0. (With cp, replace $dp_i$ by $dp_i \cdot cp + cp_i$, and $dp$ by $dp \cdot cp$.) Neighbours in tp are neighbours in number.
# Neighbours in dp are tp apart. Neighbours in pp are tp · dp apart: that distance is the **stride** (步长) of an axis.
#
# All ranks that differ in *one* coordinate only form a group, and each axis sends inside its own groups. Every rank is in one group
# of each axis.
#
# **Predict.** In the block of $2 \times 2 \times 2$, with whom does rank 5 exchange gradients? Write down the other rank's number.

# %%
partner = predict("13.partner", "dp partner of rank 5?", yours=None)

# %%
cube = Layout(dp=2, tp=2, pp=2)
print("strides:", mesh.strides(cube))
figures.rank_block([mesh.place(cube, rank) for rank in range(8)])

# %% [markdown]
# Now real process groups. The from-scratch version:

# %%
show_source(scratch.three_d.Mesh)

# %% [markdown]
# `torch.arange(...).view(pp, dp, tp)` is the formula above: the last dimension runs fastest. `_lines` cuts the block into
# lines along one dimension, and each line becomes a process group. PyTorch's own version is `init_device_mesh`. Start
# eight ranks and ask each of them where it stands:


# %%
import torch.distributed as dist


def from_library():
    """Coordinates of this rank, and the ranks of its dp group."""
    names = ("pp", "dp", "tp")
    torch_mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=names)
    group = torch_mesh.get_group("dp")
    return torch_mesh.get_coordinate(), dist.get_process_group_ranks(group)


ranks = launch.run(from_library, ranks=8)
(other,) = set(ranks[5][1]) - {5}
expect(7, other, label="partner of rank 5", yours=partner)

# %%
for rank, (place, dp_group) in enumerate(ranks):
    ours = mesh.place(cube, rank)
    assert list(place) == [ours["pp"], ours["dp"], ours["tp"]]
    assert tuple(dp_group) in mesh.groups(cube, "dp")

# %% [markdown]
# **Explain.** $5 = (1 \cdot 2 + 0) \cdot 2 + 1$, so rank 5 has $pp_i = 1$, $dp_i = 0$, $tp_i = 1$. Its partner has $dp_i = 1$ and the rest
# the same: $(1 \cdot 2 + 1) \cdot 2 + 1 = 7$. Formula, our mesh and PyTorch's agree for all eight.
#
# What do they say to each other? Walk through one update of LLaMA-2 70B on 16 GPUs: each step is one kind of message. The group of the framed
# rank is filled; solid lines stay inside a node, dashed ones cross the network. Which axis has sent most in the end? Then choose the
# larger blocks: what changes if tp fills a node, and who are the partners where there is cp, or ep?

# %%
from course_lib.chapters.ch13_3d_planning import steppers

steppers.talks("tp 2 × dp 4 × pp 2")

# %% [markdown]
# Answers: tp has sent most. It talks in each layer, pp at each boundary of stages, and dp at the end; all groups of an axis talk at the same
# time. If tp fills a node, every other axis crosses the network. The partners of cp are the nearest ranks beyond tp, and ep's are the same ranks as those of
# dp · cp.
#
# The names in `mesh_dim_names` go from the outside in, so the *last* one is the innermost. Whoever writes `("tp", "dp", "pp")`
# gets correct training on the wrong wires. The next section says what that costs.
#
# **Remember**
# - dp = world / (tp · pp · cp), a whole number. ep divides dp · cp and adds no GPUs.
# - A group differs in one coordinate. Neighbours of an axis are one stride apart.

# %% [markdown]
# ## 13.2 Which axis on which wire
#
# An H100 sends 450 GB/s to the seven others in its node over NVLink, and 50 GB/s to the rest of the world over
# InfiniBand (both one way). Eight consecutive ranks share a node. So the order of the axes decides which axis gets
# the fast wire. Take a real case: LLaMA-2 70B on 2048 H100, tp 8, pp 8, dp 32; 1024 sequences of 4096 tokens in an update, in 32
# micro-batches of one sequence; sequence parallelism and ZeRO-1. How much does one GPU send in one update?
#
# - **tp**: four sums of $s \cdot h$ numbers in each layer, around attention and around the MLP, forward and backward (chapter 10). One has $4096 \cdot 8192 \cdot 2$ B = 67.1 MB.
#   A reduce-scatter among 8 sends 7/8 of that, and the all-gather as much again. With 10 layers and 32 micro-batches: 150 GB.
# - **dp**: the GPU's own gradients and parameters once, $2 \cdot 31/32$ of 2.1 GB (chapter 8): 4.2 GB.
# - **pp**: its eighth of one layer's output to the next stage, and as much of the gradient back (chapter 11): $2 \cdot 32 \cdot 8.4$ MB = 0.54 GB.

# %%
llama = models.MODELS["llama2-70b"]
cluster = Cluster(hardware.accelerator("H100-SXM"), nodes=256)
layout = Layout(
    tp=8,
    pp=8,
    dp=32,
    accumulation=32,
    sequence_parallel=True,
    keep_gathered=True,
    zero_stage=1,
)
sent = step_traffic.step_traffic(
    Job(llama, Recipe(), layout, cluster, sequence=4096), 1, policy=BUCKETS
)
wires = {"NVLink, inside a node": style.BLUE, "the network": style.ORANGE}
inside, between = wires
bars = {}
for axis, size in sent.bytes_by_axis.items():
    wire = inside if mesh.nodes_of(layout, axis) == 1 else between
    bars[axis] = {wire: size}
assert round(sent.bytes_by_axis["tp"] / sent.bytes_by_axis["dp"]) == 36
title = "Sent by one GPU in one update"
figures.stacked_bars(bars, title, units.format_bytes, colours=wires)

# %% [markdown]
# tp sends 36 times as much as dp and 280 times as much as pp. And it must *wait*: the next matrix product needs the
# sum. dp can hide behind the backward pass. pp has few bytes, and other micro-batches to work on meanwhile.
#
# | axis | sends | when | can it hide? | place |
# |---|---|---|---|---|
# | tp | activations, 4 times a layer | in each layer | only in pieces (section 10.8) | innermost, inside a node |
# | cp | keys and values | in each layer | behind attention | next to tp |
# | ep | routed tokens | in each layer with experts | only in pieces, or behind a second micro-batch (12.4, 13.5) | near ranks of dp · cp |
# | dp | gradients, parameters | once an update (ZeRO-3: each pass) | behind the backward pass | further out |
# | pp | a layer's output | at each boundary of stages | partly | outermost |
#
# So tp stands innermost, in every framework. Who stands outermost is a matter of taste: Megatron-LM puts pp there, because
# it sends least (Narayanan et al. 2021, arXiv:2104.04473, section 3). Llama 3 puts dp there, because it hides best, and pp next to it
# (arXiv:2407.21783, section 3.3.2).
#
# By the theory this update takes 2.9 s in the right order. It assumes that collectives reach 80 % of NVLink's 450 GB/s, 360, and that nothing of tp hides.
#
# **Predict.** Somebody swaps the order and puts tp outermost. Then the 8 ranks of a tp group stand in 8 different nodes. By which factor does the
# step get slower? You have the bytes, the 2.9 s and both wires, 360 and 50 GB/s: compute it before you read on.

# %%
slower = predict("13.slower", "Step, wrong / right order?", yours=None)

# %%
wrong_order = ("pp", "dp", "cp", "tp")
assert mesh.nodes_of(layout, "tp", order=wrong_order) == 8

# tp over the network: as if each GPU were alone in its node. (pp, now innermost, would
# stay inside. With 0.54 GB that makes no difference.)
apart = Cluster(cluster.accelerator, nodes=2048, gpus_per_node=1)
right, wrong = (
    step_time.step_time(Job(llama, Recipe(), layout, where, sequence=4096))
    for where in (cluster, apart)
)
extra = sent.bytes_by_axis["tp"] * (1 / 50e9 - 1 / 360e9)
assert round(right.total_s, 1) == 2.9
by_hand = (right.total_s + extra * (1 + 7 / 32)) / right.total_s
in_theory = wrong.total_s / right.total_s
expect(
    by_hand, in_theory, within=0.05, label="factor, by hand and computed", yours=slower
)


# %%
def parts(step):
    """What the seconds of a step are spent on."""
    return {
        "computing": step.working_s,
        "tp": step.tp_s,
        "dp and pp": step.dp_s + step.pp_s,
        "idle": step.bubble_s,
    }


bars = {"tp innermost": parts(right), "tp outermost": parts(wrong)}
figures.stacked_bars(bars, "One update", "{:.2f} s".format)

# %% [markdown]
# **Explain.** 150 GB take 0.42 s at 360 GB/s and 3.0 s at 50 GB/s, and nothing hides them: 2.58 s more. Each micro-batch is longer now, so the bubble grows with
# it, by $(p-1)/m = 7/32$ (chapter 11). The factor by hand leaves out latency and what embedding and head send, 4 %. Nothing crashes, and the loss is right. You
# notice it only if you know what to expect. (No GPU ran here: these are predictions of `theory.step.step_time`, and section 13.4 says how good they are.)
#
# ### When the network is shared
#
# 50 GB/s for each GPU is not a law of nature. Cheaper nodes have fewer network cards than GPUs. Large networks are often
# **oversubscribed** (超额订阅): the switches further up carry less than all the cards below can send. Llama 3's cluster has pods of
# 3,072 GPUs at the full rate, and a seventh of it between pods (arXiv:2407.21783, section 3.3.1).
#
# **Predict.** Take the right order, and a seventh of the network everywhere: 7.1 GB/s for each GPU. By which factor do the 2.9 s grow? (At the full rate nearly all of dp and pp hides.
# The time that dp needs in addition will not.)

# %%
shared = predict("13.shared", "Step, a seventh / all of it?", yours=None)


# %%
def with_network(share):
    """The update on the same GPUs, with a part of their network."""
    link = replace(hardware.NDR, bytes_per_s=50e9 * share)
    job = Job(llama, Recipe(), layout, replace(cluster, between=link), sequence=4096)
    return step_time.step_time(job)


a_seventh = with_network(1 / 7)
extra = sent.bytes_by_axis["dp"] * (7 - 1) / 50e9
by_hand = (right.total_s + extra) / right.total_s
in_theory = a_seventh.total_s / right.total_s
expect(by_hand, in_theory, within=0.03, label="1/7 of it", yours=shared)

# %%
bars = {
    "the whole network": parts(right),
    "a half": parts(with_network(1 / 2)),
    "a quarter": parts(with_network(1 / 4)),
    "a seventh": parts(a_seventh),
}
figures.stacked_bars(bars, "One update", "{:.2f} s".format)

# %% [markdown]
# **Explain.** A fifth slower, and nearly all of it is dp: its 4.2 GB take 0.59 s instead of 0.08. Under ZeRO-1 they can hide only behind the
# last of the 32 micro-batches, since the gradients of the others are added up first. tp never leaves its node, and pp sends
# little. So the thin part of a network belongs to what is sent once an update. Meta's scheduler places jobs accordingly.
#
# **Remember**
# - tp sends most and waits: innermost, never beyond the fast wire.
# - dp hides, pp sends least: either may be outermost.
# - A wrong order trains correctly, and slowly.

# %% [markdown]
# ## 13.3 A published plan, line by line
#
# Here is the plan of note 004 for LLaMA-2 70B, on GPUs with 24 GB (RTX 4090) and 8 network cards in each node. It comes in three
# parts: what must be stored, how long a layer takes, and how large the batch becomes. Read each line, decide
# whether it is right, and only then click on the verdict.
#
# ### What must be stored
#
# | the notes say | verdict |
# |---|---|
# | weights 140, gradients 140, optimizer 840, activations 730: 1850 GB | <details><summary>verdict</summary>sum right; 730 has conditions (chapter 4)</details> |
# | so 24 cards of 80 GB, or 78 of 24 GB | <details><summary>verdict</summary>a lower bound, nothing more</details> |
# | "LLaMA-2 has 80 layers" | <details><summary>verdict</summary>only 70B; 7B has 32, 13B has 40</details> |
# | 80 stages keep 160 times the activations | <details><summary>verdict</summary>not under 1F1B: 80 micro-batches of *one* layer</details> |
# | to recompute everything costs 3240 layer passes | <details><summary>verdict</summary>no: 80 more, if each layer keeps its input (chapter 4)</details> |
# | so recompute "selectively", in 8 groups of 10 layers | <details><summary>verdict</summary>recomputing whole layers is *full* recomputation, in groups or not (chapter 4)</details> |
#
# **24 cards.** $1850 / 80 = 23.1$. This assumes that everything can be cut into equal pieces without loss. Nothing is left for the
# CUDA context, the gathered layer of ZeRO-3 or fragmentation. 24 is not a *plan* either: which tp · pp · dp is it? And the
# activations depend on the micro-batch, which the notes set to 8. Ask the planner whether 24 GPUs can do it, for a global batch of
# 96 sequences:

# %%
h100 = hardware.accelerator("H100-SXM")
three_nodes = planner.plan(llama, Recipe(), Cluster(h100, 3), 96, sequence=4096)
assert -(-1850 // 80) == 24 and -(-1850 // 24) == 78
assert 0 < three_nodes.fitting < three_nodes.layouts / 5
print(three_nodes.explain(1))

# %% [markdown]
# It can, but with fewer than a fifth of the layouts. 78 cards of 24 GB cannot be built from nodes of 8, since $78 = 2 \cdot 3 \cdot 13$. With 80 cards and 80 sequences it fits: the fastest layout recomputes fully and shards by ZeRO-3. A quotient tells you where to start looking, no more.
#
# **×160.** A stage of one layer keeps the activations of the micro-batches that are under way. With 80 stages, 1F1B holds
# 80 at the first stage, not $2 \cdot 80$. 80 micro-batches of one layer are as much as one micro-batch of 80 layers, and
# the number of stages makes no difference (section 11.3).
#
# ### How long a layer takes, and how long its gradients travel
#
# | the notes say | verdict |
# |---|---|
# | "each layer has about 1B parameters" | <details><summary>verdict</summary>0.856B</details> |
# | its gradients are 4 GB "because the optimizer is fp32" | <details><summary>verdict</summary>4 GB if the *gradients* are fp32</details> |
# | "196 Tflops", 0.6 s | <details><summary>verdict</summary>FLOP, not a rate; 1.19 s at the right peak (chapter 5)</details> |
# | the exchange takes 0.12 s, twice: 0.24 s are a large part of 0.6 s | <details><summary>verdict</summary>right, 42 %</details> |
# | add up the gradients of 80 micro-batches first: 48 s, and the exchange stays below 1 s | <details><summary>verdict</summary>right, and the best idea of the notes</details> |
# | eight RDMA cards of 200 Gb/s keep up with eight PCIe slots | <details><summary>verdict</summary>25 GB/s, 79 % of 31.5</details> |
#
# 330 TFLOP/s is the 4090's peak with 16-bit sums; with fp32 sums, as training needs them, it is 165.2 (chapter 5). The
# exchange of 4 GB over PCIe at 32 GB/s takes 0.125 s, and a ring sends nearly everything twice, 0.25 s:

# %%
exact = llama.layer_parameters(1).total
tokens = 8 * 4096  # the notes' micro-batch
cases = {
    "the notes": (1e9, 330e12),
    "at the right peak": (1e9, 165.2e12),
    "with the exact layer": (exact, 165.2e12),
}
bars, told = {}, {}
for name, (size, rate) in cases.items():
    seconds, exchange = flops.six_nd(size, tokens) / rate, 2 * 4 * size / 32e9
    bars[name] = {"computing": seconds, "messages": exchange}
    told[name] = f"messages: {exchange / seconds:.0%} of computing"
assert exact == 855_654_400
title = "One micro-batch through one layer, and its gradients"
figures.stacked_bars(bars, title, "{:.2f} s".format, told)

# %% [markdown]
# A large part indeed. Some of it can hide behind the backward pass (chapter 7), but the notes have a remedy that needs
# no hiding.
#
# **Accumulation changes the intensity of data parallelism.** A stage runs 80 micro-batches in an update. It need not send the gradients
# of each: they can be added up on the GPU, and the sum is sent once. How many FLOP does a GPU then do for each byte that it sends? With $P$ parameters,
# $t$ tokens in a micro-batch, $m$ micro-batches and fp32 gradients, sent twice:
#
# $$\frac{6\,P\,t \cdot m}{2 \cdot 4\,P} = \frac{3}{4}\,t\,m \quad\text{FLOP per byte.}$$
#
# The parameters cancel. What counts are the tokens between two exchanges. Compare with the ridge of section
# 10.7, what the chip computes while a byte is sent, in the notes' own numbers, and with tensor parallelism over 8 GPUs,
# where batch and sequence have cancelled, $4.5h/(8-1)$:

# %%
ridge = collectives.ridge(330e12, 32e9)  # FLOP in the time of one byte
counts = [2**power for power in range(8)]
curves = {
    "data parallel": [(m, 0.75 * tokens * m) for m in counts],
    "tensor parallel 8": [(m, 4.5 * llama.hidden / 7) for m in counts],
}
figures.lines(
    curves,
    "micro-batches in an update",
    "FLOP per byte sent",
    "Accumulation raises the intensity of dp, not of tp",
    doubling=(True, True),
    level={"ridge": ridge},
)

# %%
assert round(ridge / (0.75 * tokens), 2) == 0.42
assert round(ridge / (0.75 * tokens * 80), 3) == 0.005

# %% [markdown]
# With 80 micro-batches 0.25 s stand against 80 · 0.596 = 47.7 s: 0.5 %. It costs nothing: the sum of the gradients takes
# the place of one gradient in memory, if that is fp32 anyway. That is why dp may stand on a slow wire. (ZeRO-2 and 3,
# as chapter 8 has them, give it up: they exchange with every micro-batch.)
#
# The notes' condition is right as well: the network card must carry what the slot delivers. They ask for **RDMA** (远程直接内存访问), remote direct
# memory access: the card reads and writes the GPU's memory itself, and no processor copies anything. At 25 GB/s the exchange takes 0.32 s,
# still below 1 %.
#
# And the 48 s themselves? They are the time in which one GPU is busy in an update, if everything runs at its peak. Correct one thing at a time:

# %%
micro_batches, stages = 80, 80
busy = micro_batches * flops.six_nd(1e9, tokens) / 330e12
right_peak = busy * 330 / 165.2
exact_layer = right_peak * exact / 1e9
with_bubble = exact_layer * (1 + bubble.bubble_over_ideal(stages, micro_batches))
found = (busy, right_peak, exact_layer, with_bubble)
assert [round(x) for x in found] == [48, 95, 81, 162]
bars = {
    "the notes": {"computing": busy},
    "at the right peak": {"computing": right_peak},
    "with the exact layer": {"computing": exact_layer},
    "with the bubble": {"computing": exact_layer, "idle": with_bubble - exact_layer},
}
figures.stacked_bars(bars, "One update of the published plan", "{:.0f} s".format)

# %% [markdown]
# The right peak doubles the notes' number, and the bubble doubles it once more: with as many micro-batches as stages half of the
# time is idle (section 11.2).
#
# ### How large the batch becomes
#
# | the notes say | verdict |
# |---|---|
# | batch 16384 | <details><summary>verdict</summary>right for $m = p$; 67 million tokens, 16 times LLaMA-2's own</details> |
# | "the 2048 cards take part in data parallelism independently" | <details><summary>verdict</summary>right for samples, wrong for gradients</details> |
# | tensor parallelism lowers the batch | <details><summary>verdict</summary>right: 8 times</details> |
# | mini-batch, all over the text | <details><summary>verdict</summary>micro-batch is meant (chapter 1)</details> |
# | global batch = accumulation × nodes × GPUs × micro-batch | <details><summary>verdict</summary>only for pure dp (chapter 1)</details> |
#
# 16384 is $2048 \cdot 8$, as if each card had 8 sequences of its own. No card has: a sequence goes through all 80 cards of
# its pipeline. Count again: $2048 / 80 = 25.6$ pipelines, each fed with 80 micro-batches of 8 sequences, make
# $25.6 \cdot 80 \cdot 8 = 16384$. The same number, and not by accident. With as many micro-batches as stages, $m = p$,
#
# $$dp \cdot m \cdot b = \frac{w}{p} \cdot p \cdot b = w \cdot b.$$
#
# So the sentence about 2048 independent cards counts *samples* rightly and *partners in the exchange of gradients*
# wrongly: those are 25.6, the cards that hold the same layer.
#
# Now put tp 8 × pp 10 in place of 80 stages. A copy of the model takes 80 cards as before, but ten stages are filled by ten micro-batches:

# %%
batches = {}
for tp, pp in ((1, 80), (8, 10)):
    pipelines = 2048 / (tp * pp)
    sequences = pipelines * pp * 8  # m = p micro-batches of 8 sequences
    batches[f"tp {tp}, pp {pp}"] = sequences * 4096 / 1e6
assert sequences == 2048 * 8 / 8
batches["Llama 3 405B, at most"] = 16  # arXiv:2407.21783, section 3.4.1
batches["LLaMA-2"] = 4  # arXiv:2307.09288, section 2.2, table 1
title = "Million tokens in an update"
figures.bars(batches, "{:.1f}".format, title, style.COMPUTING)

# %% [markdown]
# Eight GPUs that share a matrix work on the same sequences, so the batch is an eighth. That is the notes' argument for
# tensor parallelism, beside memory, and it is sound. It is also needed: far above the critical batch (chapter 2) tokens
# are wasted.
#
# What would the planner do with LLaMA-2's own batch, 1024 sequences, on the notes' 2048 cards?

# %%
rtx = Cluster(hardware.accelerator("RTX4090"), 256, between=hardware.HDR)
notes = planner.plan(llama, Recipe(), rtx, global_batch=1024, sequence=4096)
winner = notes.best(1)[0].layout
assert (winner.tp, winner.pp, winner.cp, winner.dp) == (2, 16, 8, 8)
figures.ranked_layouts(notes, "LLaMA-2 70B on 2048 RTX 4090, 1024 × 4096 tokens", 1)

# %% [markdown]
# It takes tp 2 and not 8, because PCIe is slow and tp has to wait for it. Instead it cuts the layers into 16 stages and
# each sequence in 8 (cp). Gradients are exchanged among $dp \cdot cp = 64$ GPUs, and not among 2048.
#
# **Remember**
# - Memory / capacity is a lower bound. A plan names its degrees.
# - Check units, then assumptions, then arithmetic. In this audit the arithmetic was fine nearly everywhere.
# - Data parallelism's intensity is $\frac{3}{4}$ of the tokens between two exchanges: accumulation raises it, and costs no memory where gradients are fp32.
# - With $m = p$ the batch is GPUs × micro-batch, divided by tp. Partners for gradients are only dp.

# %% [markdown]
# ## 13.4 The planner
#
# ### When to choose what
#
# By hand, first make it fit, and then ask one question of each kind of parallelism: how many FLOP does a GPU do for each byte that it
# sends? Above the ridge of its wire the messages can hide; below it they cannot. For H100s (19,788 FLOP per byte over the network, 2,199 over NVLink) and LLaMA-2 70B:
#
# | take | when | the number that decides |
# |---|---|---|
# | DDP | one GPU holds everything | 16 bytes a parameter: 80 GB are full at 5 billion |
# | ZeRO-1 | there are replicas | sends what DDP sends, and cuts 12 of the 16 bytes by dp |
# | ZeRO-2 | an update has one micro-batch, or a pipeline reduces the gradients of a whole group at once (see "And the memory?") | reduced after each of $m$ micro-batches, it sends $(m+1)/2$ times as much |
# | ZeRO-3 (FSDP) | the states still don't fit | FLOP per byte = tokens of a micro-batch on a GPU: 19,788 hide it |
# | HSDP | the states fit in one node: up to 40 billion | the same over NVLink: 2,199 tokens |
# | tp | a micro-batch of one sequence doesn't fit, or GPUs outnumber sequences | 5,596 FLOP per byte at tp 8: inside a node only |
# | pp | it still doesn't fit | the bubble, $(p-1)/m$ of the computing: $m = 4p$ leaves up to 20 % of the step idle, or 11 % with two chunks a stage (chapter 11) |
# | cp | a sequence is too long for that | tokens on a rank: 4,947 hide a causal zig-zag ring ($h$ is twice that of 12.7) |
# | ep | there are experts | the expert's width: $2.25f$ FLOP per byte. It hides only if something computes meanwhile |
#
# Degrees come last: tp a divisor of the GPUs in a node and of the key-value heads, dp whatever is left, and a divisor of the global batch.
# Recompute fully only if nothing else fits, because that costs a third more FLOP. Here are the intensities on one scale, with 4096 tokens in a micro-batch:

# %%
tokens, stage_layers, wire = 4096, 10, 50e9
flop, weights = flops.six_nd(exact, tokens), 2 * exact  # one layer; bf16
network = collectives.ridge(h100.peak_flop_per_s, wire)
ring = 2 * context.hidden_ring_tokens(h100.peak_flop_per_s, wire, 8192, 1024)  # causal
boundary = 2 * collectives.activation_bytes(1, tokens, llama.hidden)  # there and back
per_byte = {
    "pp, 10 layers a stage": stage_layers * flop / boundary,
    "ZeRO-1, 32 micro-batches": 32 * flop / collectives.zero_volume(weights, 1),
    "cp 16 of 131,072 tokens": 131_072 / 16 / ring * network,
    "ep, Mixtral": experts.routed_intensity(14_336),
    "tp 8": collectives.layer_intensity(llama.hidden, 8, layer_parameters=exact),
    "ep, DeepSeek-V3": experts.routed_intensity(2048),
    "ZeRO-3": flop / collectives.zero_volume(weights, 3),
}
ridges = {
    "NVLink's ridge": collectives.ridge(h100.peak_flop_per_s, 450e9),
    "the network's ridge": network,
}
assert list(per_byte.values()) == sorted(per_byte.values(), reverse=True)
assert round(ring) == 4947 and round(per_byte["tp 8"]) == 5596
assert round(per_byte["ZeRO-3"]) == tokens and round(network) == 19_788
state_bytes = Recipe().bytes_per_parameter
assert (80e9 / state_bytes, 8 * 80e9 / state_bytes) == (5e9, 40e9)  # a GPU, a node
title = "FLOP for each byte sent"
figures.bars(
    per_byte, "{:,.0f}".format, title, style.COMPUTING, tens=True, marks=ridges
)

# %% [markdown]
# What ends left of the network's ridge stays inside a node, or the GPUs wait for it. ZeRO-3 moves up with the tokens: five such micro-batches at
# once on a GPU would hide it over the network. tp 8 and DeepSeek's experts cannot be moved, since the tokens cancel. These are peaks; real
# kernels are slower than the peak, which makes hiding easier.
#
# A computer can try all layouts. `theory.planner` takes every tp, pp, cp, ep, dp with the right
# product, every ZeRO stage, micro-batch, number of chunks (chapter 11) and recomputation. For each it computes memory and time with the formulas you know from
# chapters 3 to 12, and sorts.
#
# **Predict.** LLaMA-2 70B on 64 H100, 512 sequences of 4096 tokens. Guess how many layouts there are, and how many of them fit. Then commit to a number: which tp
# does the fastest one have?

# %%
best_tp = predict("13.tp", "tp of the fastest?", yours=None)

# %%
eight_nodes = Cluster(h100, nodes=8)
plan = planner.plan(llama, Recipe(), eight_nodes, global_batch=512, sequence=4096)
winner = plan.best(1)[0]
expect(winner.layout.tp, label="tp of the fastest", yours=best_tp)
assert (winner.layout.tp, winner.layout.pp, winner.layout.cp) == (2, 4, 2)
assert plan.ranked(4)[-1].step_s < 1.02 * winner.step_s
assert plan.fitting < plan.layouts / 2

# %%
figures.ranked_layouts(plan, "LLaMA-2 70B on 64 H100, 512 × 4096 tokens", 3)

# %% [markdown]
# **Explain.** Most hand-made plans have tp 8. The winner has tp 2: four stages of five chunks each, each sequence cut in two (cp 2), and gradients that are exchanged once in an update (ZeRO-1). But look
# at the times. The first four plans of the table lie within 2 % of each other, and the model of time is not that exact.
#
# Why not FSDP alone, whose messages hide? Because hiding has a price. A message under way holds some of the GPU's multiprocessors, 20 of 132 in DeepSeek-V3's case, and each of its bytes passes the memory about four times: written and read on its way through, read and written
# by a copy. Computing beside it slows down by the scarcer of the two. So the theory takes from computing, for $t$ seconds of hidden messages that send $B$ bytes,
#
# $$\max\left(\tfrac{20}{132}\, t,\ \frac{4 B}{\text{memory bandwidth}}\right)$$
#
# That is 0.15 s a second over a slow network, and 0.4 to 0.5 s over NVLink, where measurements found 0.6 (Lee et al. 2025, arXiv:2507.03114). Besides, the first gather of a pass and the last reduction have nothing to hide behind, and no two messages hide behind the same computing.
#
# And how much hides at all? When sequences were long, Meta had to wait for the messages of cp (Llama 3, section 3.3.2). So plan twice more: as if hiding were free, and with cautious assumptions, where nothing of cp hides and half of dp:

# %%
free = plan.under(Assumptions(message_touches=0, message_sms=0))
careful = plan.under(CAUTIOUS)
fastest, sturdiest = (
    rank([free, careful], 1)[0] for rank in (planner.fastest, planner.sturdy)
)
bet = fastest.option.layout
assert (bet.tp, bet.pp, bet.zero_stage) == (2, 1, 3)
assert round(fastest.regret, 2) == 0.24 and sturdiest.regret < 0.09
assert careful.best(1)[0].layout == winner.layout
title = "From free hiding to the cautious assumptions"
figures.ranked_layouts(free, title, careful=careful)

# %% [markdown]
# The hatched end of a bar leads to the time under the cautious assumptions. If hiding were free, ZeRO-3 without stages would win. Under the cautious assumptions that layout is 24 % behind the best: it gathers all weights for each of 16 micro-batches. The diamond marks the
# layout that loses least under either, 8 %. The winner from above is the best under the cautious assumptions as well: it sends so little that nothing depends on how well it hides. Among those that lose little, choose by other criteria: memory to
# spare, what your framework does well, what you can debug.
#
# ### Why not?
#
# Ask for a reason, for any layout:

# %%
for no in (
    Layout(tp=16, dp=4, accumulation=128),
    Layout(tp=8, pp=10, accumulation=512),
    Layout(dp=64, accumulation=8, zero_stage=1),
    Layout(tp=8, pp=8, accumulation=512, sequence_parallel=True),
):
    print(plan.why(no))

# %% [markdown]
# The last one fits, and the planner says how many are faster. The lines below the figure count over all layouts: what
# would help those that do not fit ("nothing": they need another tp, pp, cp or dp, or more GPUs), and which meshes were
# not even tried, because they break a rule.

# %%
assert sum(plan.remedies.values()) == plan.layouts - plan.fitting

# %% [markdown]
# In a terminal: `course plan llama2-70b --gpu H100-SXM --nodes 8 --batch 512 --sequence 4096`.
#
# Move the sliders. (The panel searches fewer micro-batches and chunks, so that it answers at once.)
#
# 1. Raise the nodes step by step to 2048 and leave the batch. Which colour grows, and why can no layout prevent it?
# 2. Set the ZeRO stage to 0. Which degree replaces it, and what happens to the time?
# 3. Take llama3.1-405b and recompute "none". From how many nodes on does anything fit?
# 4. Take deepseek-v3, 64 nodes. What do the plans with ep pay for, and what those without? (For mixtures of experts the panel tries tp 1 and 4, pp 1, 4 and 16, ep 1, 8 and 64.)
#
# Each bar is the time under the usual assumptions, and its hatched end leads to that under the cautious ones.

# %%
from course_lib.chapters.ch13_3d_planning import panels

panels.planner()


# %%
def bubble_part(plan):
    """Part of the fastest layout's step that is bubble."""
    step = plan.step(plan.best(1)[0])
    return step.bubble_s / step.total_s


few, many = (bubble_part(panels.planner(nodes=nodes).result) for nodes in (16, 2048))
print(f"bubble: {few:.0%} on 128 GPUs, {many:.0%} on 16,384")
assert few < 0.01 and many > 0.5

# %%
with_zero, without = (
    panels.planner(zero_stage=stage).result.best(1)[0]
    for stage in ("planner's choice", "0")
)
chosen = with_zero.layout
assert (chosen.tp, chosen.pp, chosen.zero_stage) == (4, 2, 1)
assert (without.layout.tp, without.layout.pp) == (4, 8)
assert round(100 * (without.step_s / with_zero.step_s - 1)) == 4
asked = {"model": "llama3.1-405b", "recompute": "none"}
assert panels.planner(nodes=16, **asked).result.fitting == 0
assert panels.planner(nodes=32, **asked).result.fitting

# %%
found, by_ep = panels.planner(model="deepseek-v3", nodes=64).result, {}
for option in found.best(100):  # the first of each ep is its fastest
    by_ep.setdefault(option.layout.ep, found.step(option))
waits = {ep: round(step.ep_s, 2) for ep, step in by_ep.items()}
assert waits == {64: 2.49, 8: 0.45, 1: 0} and round(by_ep[8].bubble_s, 1) == 1.6
assert [round(by_ep[ep].total_s, 1) for ep in (1, 8)] == [7.3, 5.7]

# %% [markdown]
# The answers:
#
# 1. The bubble grows. With 512 sequences on 16,384 GPUs each GPU has a thirty-second of a sequence. dp can be at most 512, so the rest must be tp and pp, and each pipeline has few micro-batches. The batch
#    limits how many GPUs are of use (chapter 1).
# 2. Without ZeRO, eight stages must make it fit, in place of two with ZeRO-1, both with tp 4. The step takes 4 % longer.
# 3. From 32 nodes on: 256 GPUs for 405 billion parameters.
# 4. Plans with ep 64 wait for tokens for 2.5 to 3 of 6 seconds. With ep 8 that falls to 0.45 s, but needs 16 stages, and their bubble takes 1.6 s.
#    Without ep, tp 4 takes the place of ep, and the fastest step is 7.3 s instead of 5.7 s.
#
# ### How far to trust it
#
# The time of a step is computed from the FLOP, the messages that show and the bubble. Behind it stand a few rates that no formula gives:
#
# | rate | A100 | H100 | where from |
# |---|---|---|---|
# | matmuls of whole layers, as a share of the best single matmul's rate | 81 % | 75 %, perhaps since a busy H100 lowers its clock | fitted: ten rows of Narayanan et al. (arXiv:2104.04473, table 1); Llama 3 405B |
# | times that each byte of activations passes through memory | 8 | 8 | fitted to the same ten rows |
# | collectives inside a node, of NVLink | 80 % | 80 % | measured by Bekman: 78 % on A100, 82 % on H200 |
# | FlashAttention-2, of the peak | 60 % | 35 %; kernels written for it, 50 % | measured by its authors (arXiv:2307.08691, arXiv:2407.08608) |
# | passes of a hidden message's bytes through the memory; multiprocessors that it holds | 4; 15 % | 4; 15 % | counted; DeepSeek-V3's 20 of 132 (arXiv:2412.19437, section 3.2.2) |
#
# This is the run behind the 75 %. Its layers lie as Meta describes: 128 chunks, eight on each of 16 stages. The first chunk has only the embedding, the last one only the head.

# %%
show_source(published)

# %%
meta = published.LLAMA3_405B
step = step_time.step_time(meta)
rate = step.model_flop / step.total_s / meta.layout.world / 1e12
# arXiv:2407.21783, table 4: 400 TFLOP/s for each of 16,384 GPUs
expect(rate, 400, within=0.05, label="Llama 3 405B, as fitted", unit="TFLOP/s per GPU")

# %% [markdown]
# A fit proves nothing. Other people's runs do: LLaMA-3 70B in NVIDIA's AutoModel on 64 H100 is predicted, and so is a model of a trillion parameters on A100:

# %%
# github.com/NVIDIA-NeMo/Automodel, docs/performance-summary.mdx: 18.9 s
seventy = Job(
    models.MODELS["llama3.1-70b"],
    Recipe(recompute="full"),
    Layout(dp=32, cp=2, zero_stage=3, accumulation=4),
    Cluster(h100, nodes=8),
    sequence=8192,
)
theirs = Assumptions(attention_kernel="new")  # cuDNN's, by Transformer Engine
step = step_time.step_time(seventy, theirs)
expect(step.total_s, 18.9, within=0.10, label="70B on 64 H100, as printed", unit="s")

# %%
# Korthikanti et al. 2022, arXiv:2205.05198, tables 3 and 5: 71.49 s
trillion = models.MODELS["gpt-1008b"]
old = Recipe(
    gradients="fp32",
    fused_accumulation=True,
    attention="standard",
    dropout=True,
    recompute="selective",
)
tp8_pp64 = Layout(tp=8, pp=64, accumulation=512, sequence_parallel=True)
a100 = Cluster(hardware.accelerator("A100-SXM-80GB"), nodes=64)
step = step_time.step_time(Job(trillion, old, tp8_pp64, a100, sequence=2048))
expect(step.total_s, 71.49, within=0.10, label="1T on 512 A100, as printed", unit="s")

# %% [markdown]
# **Explain.** 20.3 s against 18.9, 7 % too slow, and 8 % too slow for the trillion. How good is it on other people's steps? Take 89 published ones, each
# predicted without any rate that was fitted to its own source. Half of them are off by more than 6.5 %, some too fast and some too slow, and 70 lie within 15 %. Some are far off:
# six runs of DeepSpeed's ZeRO-3 in its first year, whose messages took many times what the network allows, and 24 replicas over a slow network (42 % too fast). What the source doesn't say, the theory can't know.
#
# With sequences of 131,072 tokens Meta measured 380 TFLOP/s, and the theory says 335, or 322 if GPUs wait for the messages of cp, as Meta's did (section 3.3.2). Attention is 40 % of the FLOP
# there, so its rate decides. 35 % of the peak is FlashAttention-2. A kernel that reaches 50 % would close the gap. Whether Meta's did is not published:

# %%
long = replace(meta.layout, cp=16, dp=8)
job = replace(meta, layout=long, sequence=131_072)
rates = []
for percent in (30, 35, 40, 45, 50, 55, 60):
    guess = Assumptions(attention_efficiency=percent / 100, overlap={"cp": 0.0})
    step = step_time.step_time(job, guess)
    rates.append((percent, step.model_flop / step.total_s / long.world / 1e12))
assert abs(dict(rates)[50] / 380 - 1) < 0.03
usual = step_time.step_time(job)
usual_rate = usual.model_flop / usual.total_s / long.world / 1e12
assert (round(usual_rate), round(dict(rates)[35])) == (335, 322)

# 16 documents of 8192 tokens in place of one of 131,072: a sixteenth of the scores
seen = {"mask": "causal", "attention": "flash"}
whole, cut = (flops.training_flops(meta.shape, 1, s, **seen) for s in (131_072, 8192))
in_scores = [x.scores_flop / x.model_flop for x in (whole, cut)]
assert [round(100 * share) for share in in_scores] == [40, 4]
figures.lines(
    {"theory": rates},
    "rate of attention, % of the peak",
    "TFLOP/s per GPU",
    "Llama 3 405B, 131,072 tokens",
    level={"measured by Meta": 380},
    mark={"FlashAttention-2": 35},
)

# %% [markdown]
# There is a rival explanation. Llama 3 hides the documents of a sequence from each other, by a **document mask** (文档掩码; section 3.2 of the
# paper). If 131,072 tokens were 16 documents of 8192 each, a sixteenth of the scores would be left, and attention's share of the FLOP would
# fall from 40 % to 4 %. So ask what a printed TFLOP/s counts.
#
# And documents are not equally long. Let one fill the first half of a sequence of 131,072 tokens, and 64 short ones the rest. Cut it for cp 4 in the zig-zag
# order of section 12.7, eight pieces of 16,384. How many scores does the busiest rank compute, for each that a rank computes on average?

# %%
piece = 131_072 // 8
scores = [piece * (start + piece / 2) for start in range(0, 4 * piece, piece)]
scores += 4 * [piece * 1024 / 2]  # in a short document half of its 1,024 keys
work = [scores[rank] + scores[7 - rank] for rank in range(4)]
assert round(4 * max(work) / sum(work), 2) == 1.74

# %% [markdown]
# 1.74. The rank with pieces 3 and 4 has the end of the long document, and three ranks wait for it.
#
# A prediction is as good as the assumption that weighs most: name it. And believe the planner where two plans differ by
# a factor. Where they differ by 10 %, measure. Ignore 1 %.
#
# ### And the memory?
#
# Ask about Meta's layout:

# %%
fullest, bill = worst_stage(meta)
assert fullest == 1 and round(bill.total_bytes / 1e9, 1) == 88.9

bars = {}
for stage in (0, 1, 8, 15):
    sizes = gpu_memory(meta, stage).consumers
    names = ("weights", "gradients", "intermediate results")
    shown = {name: sizes[name] for name in names}
    bars[f"stage {stage}"] = {
        **shown,
        "rest": sum(sizes.values()) - sum(shown.values()),
    }
limit = ("one GPU", h100.memory_bytes)
colours = {"rest": style.TEMPORARY}
title = "Llama 3 405B, by stage"
figures.stacked_bars(bars, title, units.format_bytes, colours=colours, limit=limit)

# %% [markdown]
# Stage 1 is the fullest, not stage 0, whose first chunk has no layer. It holds 128 times the activations of a layer.
# An H100 gives PyTorch 85 GB (79.2 GiB), so 88.9 GB does not fit, and yet it trained. If a planner contradicts
# somebody's success, one of the inputs differs. Look for it.
#
# Meta shards the gradients as well (ZeRO-2), which alone does not help: a gradient that adds up over the micro-batches is whole on every GPU. But when must a chunk's gradients exist? With 16 micro-batches and 16 stages, a
# stage of the first half runs *all* its forward passes before its first backward pass. And its micro-batches go through a chunk in groups of $N$, here all 16
# (Megatron-LM: `microbatch_group_size_per_virtual_pipeline_stage`). If a chunk's gradients first exist in its backward pass, and are reduced after its group, then there is only one chunk of them while the activations
# are at their peak. `memory_timeline` replays the passes one by one:

# %%
from course_lib.chapters.ch13_3d_planning.replay import memory_timeline

late = replace(meta.recipe, gradient_life="backward")
grouped = replace(meta.layout, zero_stage=2, reduce="group")
job = replace(meta, recipe=late, layout=grouped)
replayed = memory_timeline(job, fullest)
assert round(replayed.peak_bytes / 1e9) == 78
figures.memory_of_passes(replayed, h100.memory_bytes, "Llama 3 405B, stage 1")

# %% [markdown]
# That fits: 77.8 GB. On 8192 GPUs it is tighter, with 32 micro-batches and activations of 141 chunk passes:

# %%
on_8k = replace(grouped, dp=64, accumulation=32)
job = replace(meta, recipe=late, layout=on_8k)
whole = worst_stage(replace(job, layout=replace(on_8k, reduce="update")))[1].total_bytes
peak = memory_timeline(job, fullest).peak_bytes
all_first = memory_timeline(replace(job, layout=replace(on_8k, group=32)), fullest)
sizes = {
    "a reduction per update": whole,
    "per group of 16": peak,
    "one group of 32": all_first.peak_bytes,
}
title = "Peak of stage 1 of Llama 3 405B on 8192 GPUs"
marks = {f"one GPU: {h100.memory_bytes / 1e9:.1f} GB": h100.memory_bytes}
assert h100.memory_bytes < peak < 1.01 * h100.memory_bytes < whole
figures.bars(
    sizes, lambda size: f"{size / 1e9:.1f} GB", title, style.ACTIVATIONS, marks=marks
)

# %% [markdown]
# **Explain.** Only the second is near what there is, and it is still 0.2 GB too much, without the GB or more that an
# allocator loses. That residue remains unexplained. Candidates: norms that keep their output only (67 MB a layer, 9.5 GB
# here), or a SwiGLU whose product is computed again (109 MB a layer). The paper does not say.
#
# The planner itself asks for a **margin** (余量): it compares with 95 % of what the driver gives, 80.8 GB, since allocators and communication libraries need memory, too. `--margin` changes it.

# %% [markdown]
# **Remember**
# - FLOP for each byte sent, against the ridge of the wire, say what can hide.
# - All layouts, memory first, then time. The reason for each rejection is part of the answer.
# - Among the first ten, decide by what the model of time does not know.
# - Plan under two sets of assumptions, and take what loses least under both.
# - A rate that was fitted to a run says nothing about that run. Leave a source out and predict it.

# %% [markdown]
# ## 13.5 A mixture of experts: DeepSeek-V3
#
# DeepSeek-V3 has 671 billion parameters, of which a token uses 37 (chapter 12). It was trained on 2,048 H800 with pp 16, ep 64, ZeRO-1, no tp, and the schedule DualPipe (arXiv:2412.19437, section 3.2). An H800 is an H100
# whose NVLink was cut to 400 GB/s, 200 one way. The network is an H100's, 50 GB/s for each GPU. So dp is $2048 / 16 = 128$: the 128 GPUs of a stage are two groups of 64, and each group has all experts of its layers, four on a GPU.
#
# An update takes 15,360 sequences of 4,096 tokens, which are 120 micro-batches on each of 128 ranks. A second paper prints its time: 19.926 s (arXiv:2505.09343, table 4). Check it twice. The table
# also says 272.80 billion tokens a day, and the first paper has a bill: 180,000 GPU-hours for a trillion tokens (section 1).

# %%
v3_tokens = 15_360 * 4096
published_s = 19.926
assert round(272.80e9 * published_s / (24 * 3600) / v3_tokens, 5) == 1
by_the_bill = 180e3 * 3600 * v3_tokens / 1e12 / 2048
expect(by_the_bill, published_s, within=0.001, label="by the bill, printed", unit="s")

# %% [markdown]
# Now the theory. It knows the layout and the chip, but it lets computing wait whenever tokens travel to their experts and back. Is that a detail, or is it what the step is made of?
#
# **Predict.** Which part of the theory's step do GPUs wait for tokens?

# %%
waited = predict("13.v3_waits", "Waiting, % of the step?", yours=None, unit="%")

# %% [markdown]
# Gradients and master weights are fp32, the moments of AdamW bf16 (section 3.3.3 of the paper). Which stage has which of the 61 layers is not published; here the first 13 stages have four.

# %%
v3 = models.MODELS["deepseek-v3"]
h800 = hardware.accelerator("H800-SXM")
v3_recipe = Recipe(gradients="fp32", optimizer="adamw-bf16", fused_swiglu=True)
v3_layout = Layout(
    pp=16, dp=128, ep=64, zero_stage=1, accumulation=120, schedule="dualpipe"
)
v3_job = Job(v3, v3_recipe, v3_layout, Cluster(h800, 256), 4096)
waiting = step_time.step_time(v3_job)
waits_percent = 100 * waiting.ep_s / waiting.total_s
expect(waits_percent, label="waiting for tokens", yours=waited)

# %%
expect(waiting.total_s, published_s, within=None, label="an update", unit="s")
assert round(waiting.total_s, 1) == 36.5

# %% [markdown]
# **Explain.** 36.5 s against 19.9. The gap has a name: `ep`, 16.3 s, 45 % of the step. Sending tokens to their experts and back takes as long as the matmuls, and the theory waits for it. The authors say the same of their machine: computing and messages are
# about 1 : 1 (section 3.2.1). That is why they wrote DualPipe. It pairs a forward pass with a backward pass of the other direction, and one computes while the other's tokens travel. So let `ep` and `pp` hide:

# %%
hides = Assumptions(overlap={"ep": 1.0, "pp": 1.0})
hidden = step_time.step_time(v3_job, hides)
expect(hidden.total_s, published_s, within=0.10, label="messages hidden", unit="s")
rate = hidden.model_flop / published_s / 2048 / 1e12
# arXiv:2505.09343, table 4: 385 TFLOP/s per GPU, causal attention counted
expect(rate, 385, within=0.02, label="rate, as printed", unit="TFLOP/s per GPU")

# %% [markdown]
# 21.8 s against 19.9 s. 2.5 s of them are what hidden tokens take: 20 of 132 SMs as long as they travel. Do not believe it: two things are still missing, and they pull in opposite directions. Look at them one by one.
#
# **fp8.** Most matmuls of DeepSeek-V3 run in 8 bits, in fp8, at twice the peak of bf16. The theory has one peak for all. Give the chip twice the peak and attention its old speed.
#
# **Once per node.** So far each token was sent to each of its 8 experts. DeepSeek-V3 sends it to at most 4 nodes, once to each, and NVLink distributes it there (section 3.2.2). The theory knows this
# as `token_nodes`, and the assumptions `DEEPSEEK_V3` have it.

# %%
fp8 = replace(
    h800,
    peak_flop_per_s=2 * h800.peak_flop_per_s,
    attention_efficiency=h800.attention_efficiency / 2,
)
bars = {}
for name, chip, assumed in (
    ("bf16, waiting", h800, Assumptions()),
    ("bf16, 8 copies", h800, hides),
    ("fp8, 8 copies", fp8, hides),
    ("fp8, once per node", fp8, DEEPSEEK_V3),
):
    step = step_time.step_time(replace(v3_job, cluster=Cluster(chip, 256)), assumed)
    bars[name] = {"computing": step.compute_s, "ep": step.ep_s, "idle": step.bubble_s}
    bars[name]["norms and sums"] = step.total_s - sum(bars[name].values())
assert (round(step.total_s, 1), round(step.ep_s, 1)) == (14.5, 1.2)
bars["published"] = {"measured": published_s}
colours = {"measured": style.MEASURED}
figures.stacked_bars(
    bars, "DeepSeek-V3, one update", "{:.1f} s".format, colours=colours
)

# %% [markdown]
# (Norms, sums of gradients and the like wait for the memory.) fp8 alone gains 3.5 s of the 5.8 that computing saves: 9.2 instead of 15.0 s are too short to hide 16.3 s of messages, even together with the norms. With both, the theory arrives at 14.5 s, and the real update takes 1.4 times as long. So the agreement above was luck. The honest result is a lower bound, missed by a factor of 1.4.
#
# What fills the missing 5.5 s? Table 4 splits its 19.9 s. We read F, B and W as zero bubble does (its B is chapter 11's I), and 1F1B as the time in which forward
# and backward passes run together:

# %%
printed = {"1F": 1.13, "bubble": 2.06, "1B": 1.99, "1W": 0.48, "1F1B": 13.95}
printed["optimizer"] = 0.29
assert abs(sum(printed.values()) - published_s) < 0.03
missing_s = published_s - step.total_s
named_s = printed["bubble"] - step.bubble_s, printed["optimizer"] - step.optimizer_s
assert [round(s, 1) for s in (missing_s, *named_s)] == [5.5, 1.5, 0.3]
figures.bars(printed, "{:.2f} s".format, "DeepSeek-V3, one update, as printed")

# %% [markdown]
# The theory has 0.5 s of bubble and hardly any time for the optimizer. If their words mean what ours do, 1.5 s of the missing 5.5 are bubble and 0.3 s the optimizer: a third has a name. The rest
# must lie in the passes themselves, most of it in the 13.95 s of 1F1B, of which the paper prints no parts. A GPU consists of many small processors, and each is a
# **streaming multiprocessor** (流式多处理器, SM). 20 of the 132 do nothing but run the messages (section 3.2.2); the theory charges them while messages travel, and they are away all the time. The rest are guesses. fp8 needs scaling factors. Norms and parts of attention
# are computed twice. A module that predicts a second token costs another layer and another head. Experts are never equally busy.
#
# ### Does it fit?

# %%
fullest, bill = worst_stage(v3_job)
assert round(bill.total_bytes / 1e9) == 186

# %% [markdown]
# 186 GB on a GPU of 80. Weights, gradients and moments are not the problem: 25 GB. But a stage of four layers holds
# $pp + 1 = 17$ micro-batches (chapter 11), and a layer keeps 2.34 GB of each. What did they drop?

# %%
kept = activations.activation_terms(v3_job, layer=60)
one = 8 * 4096  # tokens of a micro-batch, once for each expert they go to
dropped = {
    "norms, computed again": kept.norms_bytes,
    "queries, keys, values, again": kept.queries_bytes + kept.keys_values_bytes,
    "SwiGLU's product, again": one * 2048 * 2,
    "inputs of experts and SwiGLU in fp8": one * (7168 + 2 * 2048) * 1,
}
states = bill.total_bytes - bill.activations_bytes
held = bill.activations_bytes
bars = {"all kept": {"states": states, "activations": held}}
for name, size in dropped.items():
    held -= size * 4 * 17  # layers, micro-batches
    bars[name] = {"states": states, "activations": held}
left = (kept.total_bytes - sum(dropped.values())) * 4 * 17
outputs = one * 7168 * 2 * 4 * 17
bars["no outputs of experts"] = {"states": states, "activations": left - outputs}
assert states + left > 80e9 > states + left - outputs

# %%
title = f"DeepSeek-V3, stage {fullest}: one saving after another"
limit = ("one GPU", 80 * 10**9)
figures.stacked_bars(bars, title, units.format_bytes, limit=limit)

# %% [markdown]
# The four savings are in sections 3.2.3 and 3.3.3 of the paper: norms and the projections of latent attention are computed a second time, as is SwiGLU; the inputs of experts and of SwiGLU are kept in 8 bits. They bring 186 GB down to about 110. That is still too much. The rest may be the experts' outputs, 32 GB. They need not be kept if the router's weight is applied before the last
# matrix instead of after it. The paper does not say where it is applied.
#
# ### What would the planner do?
#
# The planner knows nothing of DualPipe or of these savings. First it plans as usual, then with messages that hide, and then on a GPU with twice the memory, which stands for halving the activations:

# %%
v3_best, seconds, told = {}, {}, {}
for gb in (80, 160):
    chip = replace(h800, memory_bytes=gb * 10**9)
    narrow = {"cp": (1,), "virtual_stages": (1, 2)}
    usual = planner.plan(
        v3,
        v3_recipe,
        Cluster(chip, 256),
        15_360,
        sequence=4096,
        only=narrow,
        margin=0,
    )
    for name, found in {"wait": usual, "hide": usual.under(hides)}.items():
        best = found.best(1)[0]
        v3_best[gb, name] = one = best.layout
        row, again = f"{gb} GB, messages {name}", best.recipe.recompute
        seconds[row] = best.step_s
        told[row] = (
            f"{best.step_s:.1f} s: tp {one.tp}, pp {one.pp}, ep {one.ep}, recompute {again}"
        )
figures.bars(seconds, told, "The fastest layouts", style.COMPUTING)

# %%
theirs = replace(v3_job, layout=replace(v3_layout, schedule="1f1b"))
print(found.why(theirs.layout))
behind = step_time.step_time(theirs, hides).total_s / found.best(1)[0].step_s
print(f"theirs: {behind - 1:.1%} behind the fastest")
assert v3_best[80, "wait"].ep <= 8 < v3_best[80, "hide"].ep
chosen = v3_best[160, "hide"]
assert (chosen.tp, chosen.pp, chosen.ep) == (1, 8, 64)
assert behind < 1.02

# %% [markdown]
# **Explain.** If tokens must be waited for, send few: ep 8, inside a node. If they hide, ep may be large. And if the activations fit too, nothing needs to be recomputed: the planner takes tp 1, pp 8, ep 64. Their own layout (pp 16, ep 64, with 1F1B) is then 1 % behind the fastest, and only three of some 13,000 layouts are better. So nobody was wrong.
# DeepSeek made two assumptions true with their own code, and then took what a planner would take. The order matters: first ask which assumption costs most, then whether you can change it.
#
# **Remember**
# - Experts over nodes make messages as long as computing. ep across nodes pays only if they hide.
# - An agreement can be two errors that cancel. Change one thing at a time.
# - A planner that contradicts a good plan tells you which assumption that plan rests on.

# %% [markdown]
# ## 13.6 Demo: 2 × 2 × 2
#
# Now everything together, on your machine: eight processes train a GPT with 5 layers and hidden size 32. Each matrix is shared by two neighbours, each pair has a copy in another pair, and the
# two halves of the eight hold layers 1 to 3 and 4 to 5. The program is short, because the parts exist:

# %%
show_source(scratch.three_d.ThreeD)

# %% [markdown]
# - First `cut_gpt` cuts all matrices for tp, then `cut` takes this stage's layers. `Pipeline` runs the schedule. It does not know about tp.
# - Each replica takes its rows of the batch, in pieces. All tp ranks of a replica take the *same* rows.
# - Gradients are averaged over dp at the end, once (with cp over dp · cp, since cp ranks hold the same weights and other
#   tokens). For most weights no other axis may touch them. There are two exceptions, weights that lie on several ranks of another axis: pp sums the tied table of
#   the first and the last stage (chapter 11), and with sequence parallelism tp sums the gradients of the norms (chapter 10).
#
# In Megatron-LM the same composition is `parallel_state.initialize_model_parallel` with three degrees; in PyTorch, `parallelize_module`, `fully_shard` and `PipelineStage`, each given its dimension of the
# `DeviceMesh`.
#
# **Predict.** Rank 0 has 3 layers and the embedding, which is cut by words like the layers' matrices (chapter 10). The batch is 8 sequences of 16 tokens in fp32; dp is 2, and each replica runs two micro-batches.
# How many bytes does rank 0 put into tp's all-reduces in one update? First the size of one message, then their number.

# %%
tp_bytes = predict("13.tp_bytes", "tp bytes?", yours=None)

# %%
eight = demos.run("three_d", ranks=8, parts="mine", stream=False)
print(eight.report())

# %%
(version,) = eight.versions
message = 2 * 16 * 32 * 4  # 2 sequences of a micro-batch · tokens · hidden · bytes
expect(
    (4 * 3 + 1) * 2 * message,
    version.sent["tp all-reduce"][1],
    label="tp",
    unit="B",
    yours=tp_bytes,
)
assert version.sent == version.predicted_sent
assert version.stored == version.predicted_stored
assert version.gradient_difference < 1e-5
assert version.sent["pp all-reduce"].calls == 1  # the tied table, along pp

# %%
figures.rank_mesh(eight.places, version.sent)

# %% [markdown]
# **Explain.** Counts and bytes are exact, for each axis. Two of the 8 sequences are a micro-batch, so its activations are $2 \cdot 16 \cdot 32$ numbers, 4096 bytes.
#
# | axis | what rank 0 sends |
# |---|---|
# | tp | four all-reduces for each of 3 layers and one for the embedding, in each of two micro-batches: 26 · 4096 bytes |
# | pp | two outputs of 4096 bytes to rank 4; the tied embedding's gradient, summed with the last stage (chapter 11) |
# | dp | all of its gradients once: 87,616 bytes |
#
# Even in this toy tp makes most calls. (dp's bytes are close, because the batch is tiny: gradients do not grow with the batch, activations do.)
#
# The gradient differs from one process by some $10^{-7}$, the rounding of fp32. Three kinds of parallelism, one training.
#
# Now with four ranks: tp 2, pp 2, and dp 1.
#
# **Predict.** The batch stays 8. First guess whether rank 0 stores as much as before. Then predict how many times as many bytes it puts into tp's all-reduces.

# %%
less = predict("13.four", "tp bytes, 4 ranks / 8?", yours=None)

# %%
four = demos.run("three_d", ranks=4, stream=False).versions[0]
ratio = four.sent["tp all-reduce"][1] / version.sent["tp all-reduce"][1]
expect(2.0, ratio, label="tp bytes, 4 ranks / 8", yours=less)
assert four.stored == version.stored
assert not any(name.startswith("dp") for name in four.sent)

# %% [markdown]
# **Explain.** dp does not change what a rank stores (without ZeRO), so rank 0 has the same weights, gradients and optimizer states. The one replica takes the whole batch, so its messages are twice as large, in as
# many calls. And dp sends nothing: a single replica has nobody to average with.
#
# The same in a terminal: `course demo three_d --ranks 8`, or `torchrun --standalone --nproc-per-node=8 -m course_lib.demos three_d`. Try `--schedule interleaved` too.

# %% [markdown]
# ## 13.7 What is yours
#
# The run on eight ranks took every part that you have built in the exercises, and the course's for the others. This is your library so far:

# %%
from course_lib.checking import races

figures.built(races.report()["parts"])

# %% [markdown]
# Each part is a plain file in `mine/`, which you may read, change and break: the next run tells. `course mine --race` in a terminal measures each of them beside the course's version and torch's, in milliseconds and in
# bytes. A part may well be faster than the course's, whose aim is to be read.

# %% [markdown]
# ## What to remember
#
# 1. dp = world / (tp · pp · cp), a whole number. Gradients go around within dp · cp; only weights that lie twice (a tied
#    table, norms under sequence parallelism) are summed along another axis too.
# 2. Rank order decides the wire: tp innermost, inside a node.
# 3. A wrong order trains correctly, and slowly.
# 4. Bytes / capacity is a lower bound; a plan names its degrees.
# 5. Search all layouts; ask why one is rejected.
# 6. Above the wire's ridge (FLOP per byte) messages can hide. Trust factors, measure percents.
# 7. Where a planner and a good plan disagree, find the assumption. With experts it is whether the messages hide.

# %%
from course_lib import quiz

quiz("13")

# %% [raw] tags=["quiz"]
# 96 GPUs, tp 4, pp 3, cp 2. What is dp?
# [x] 4
# [ ] 8
# [ ] 24
# Why: 96 / (4 · 3 · 2).
#
# tp 4, dp 2, pp 2, Megatron-LM's order. Which rank is rank 5's dp partner?
# [x] 1
# [ ] 7
# [ ] 13
# Why: The stride of dp is tp = 4, and 5 has dp coordinate 1: the partner is 5 - 4.
#
# Why does tp stand innermost?
# [ ] it has the fewest ranks
# [x] it sends most, and every layer waits for it
# [ ] its groups must be powers of two
# Why: 36 times the bytes of dp in section 13.2, and nothing to hide behind.
#
# The states are 1850 GB, so 24 GPUs of 80 GB are enough. Right?
# [ ] yes
# [x] no: it is a lower bound
# [ ] no: 48 are needed
# Why: It assumes perfect cuts and no buffers; whether a layout fits, the planner says.
#
# What decides whether ZeRO-3's gathers can hide behind computing?
# [ ] the number of parameters
# [x] the tokens of a micro-batch on a GPU, against the wire's ridge
# [ ] the number of GPUs
# Why: 6Pt FLOP for 3 · 2P bytes: t FLOP per byte. The parameters cancel.
#
# The planner ranks A 3 % ahead of B. What do you do?
# [ ] take A
# [ ] take B
# [x] decide by something else, or measure both
# Why: Half of 89 published steps are more than 6.5 % off: a difference of 3 % says nothing.

# %% [markdown]
# **Now you:** open [the exercises](../exercises/13_3d_planning.ipynb).
#
# **Read on.** Narayanan et al. 2021, *Efficient Large-Scale Language Model Training on GPU Clusters*, sections 3 and 5 (arXiv:2104.04473). *The Llama 3 Herd of Models*, section 3.3
# (arXiv:2407.21783). *DeepSeek-V3 Technical Report*, section 3 (arXiv:2412.19437).

# %% tags=["exercise"]
from dataclasses import replace

from course_lib import check, hint, solution
from course_lib.theory import planner
from course_lib.theory.inputs import Cluster, Job, Layout, Recipe, hardware, models
from course_lib.theory.inputs import published
from course_lib.theory.memory.peak import gpu_memory, worst_stage
from course_lib.theory.step import step_time
from course_lib.theory.step.assumptions import Assumptions

# %% [markdown] tags=["exercise"]
# ### 13.1 Debug: 2048 data-parallel GPUs
#
# (published mistake, note 004) "The 2048 GPUs take part in data parallelism independently." Somebody trains a mixture of experts on 2048 GPUs with tp 4, pp 8, cp 2, ep 16, sequence parallelism, and 16 micro-batches of 2 sequences. No
# ZeRO. How many sequences are in an update? And among how many GPUs must gradients be summed, for a matrix of attention, for a matrix of one expert (tp cuts both), and for the weight of a norm in front of attention?

# %% [raw] tags=["hints"]
# A pipeline with all its tp and cp ranks works on the same sequences. How many are there?
# Whose copies of a weight have seen other tokens? Those of other replicas, and of other slices of a sequence.
# Experts are spread over ep of the dp · cp ranks. Under sequence parallelism a norm on a tp rank sees only its own slice.

# %% tags=["exercise"]
sequences = ...
attention_gpus, expert_gpus, norm_gpus = ..., ..., ...
### BEGIN SOLUTION
dp = 2048 // (4 * 8 * 2)
sequences = dp * 16 * 2
attention_gpus = dp * 2
expert_gpus = dp * 2 // 16
norm_gpus = dp * 2 * 4
### END SOLUTION
check("13.1", [sequences, attention_gpus, expert_gpus, norm_gpus])

# %% [markdown] tags=["exercise"]
# ### 13.2 Calculate: stage by stage
#
# LLaMA-2 70B on 128 H100: tp 2, pp 8, dp 8, 16 micro-batches under 1F1B, ZeRO-1. Each stage has ten layers, and a layer keeps 0.679 GB of a micro-batch. How many GB do the layers' activations take on the first and on the last
# stage, when most are held?
#
# The first stage needs 80.0 GB in all and the last 32.6. Move layers, so that no GPU needs more than 68 GB. No stage may have more than 11, because the slowest one sets the pace. Which number of layers on each of the eight stages?

# %% [raw] tags=["hints"]
# Under 1F1B the first stage holds a micro-batch for each stage. And the last?
# A layer on stage 0 costs eight micro-batches, a layer on stage 7 one.
# Two layers must leave stage 0. Count stage 1 as well: it starts at 72.4 GB.

# %% tags=["exercise"]
### BEGIN GIVEN
even = Layout(tp=2, pp=8, dp=8, accumulation=16, zero_stage=1, sequence_parallel=True)
# replace(even, stage_layers=(...)); gpu_memory(Job(shape, Recipe(), layout, cluster, 4096), stage)
### END GIVEN
first_gb, last_gb = ..., ...
stage_layers = ...
### BEGIN SOLUTION
even = Layout(tp=2, pp=8, dp=8, accumulation=16, zero_stage=1, sequence_parallel=True)
first_gb, last_gb = 8 * 10 * 0.679, 1 * 10 * 0.679
stage_layers = (8, 9, 10, 10, 10, 11, 11, 11)
moved = replace(even, stage_layers=stage_layers)
cluster = Cluster(hardware.accelerator("H100-SXM"), 16)
job = Job(models.MODELS["llama2-70b"], Recipe(), moved, cluster, 4096)
print([round(gpu_memory(job, stage).total_bytes / 1e9, 1) for stage in range(8)])
### END SOLUTION
check("13.2", [first_gb, last_gb, stage_layers])

# %% [markdown] tags=["exercise"]
# ### 13.3 Implement: a small planner
#
# Write a small planner. It returns all layouts `(tp, pp, dp)` that keep these rules, in rising order:
#
# - tp is 1, 2, 4 or 8, and divides the key-value heads; pp divides the layers;
# - tp · pp · dp is the number of GPUs, and dp divides the batch, which is counted in sequences;
# - where there are stages, each replica has at least four micro-batches of one sequence for each stage;
# - the states fit into `room` bytes on every GPU, under ZeRO-1: 4 bytes a parameter are cut by tp and pp, and 12 by dp as well.
#
# Then ask it about the notes' 2048 cards, with 20 of the 24 GB for the states of LLaMA-2 70B, and LLaMA-2's batch of 1024 sequences. Which tp do all of its answers have?

# %% [raw] tags=["hints"]
# Two loops, over tp and over pp. What is left for dp, and when is there a remainder?
# A replica has batch / dp micro-batches. Without stages nothing has to be filled.
# On a GPU: (4 + 12 / dp) · parameters / (tp · pp) bytes.


# %% tags=["exercise"]
def layouts(
    gpus: int, layers: int, kv_heads: int, batch: int, parameters: int, room: float
) -> list[tuple[int, int, int]]:
    """All (tp, pp, dp) that keep the rules."""
    ### BEGIN SOLUTION
    found = []
    for tp in (1, 2, 4, 8):
        for pp in range(1, layers + 1):
            dp = gpus // (tp * pp)
            if kv_heads % tp or layers % pp or tp * pp * dp != gpus or batch % dp:
                continue
            if pp > 1 and batch // dp < 4 * pp:
                continue
            if (4 + 12 / dp) * parameters / (tp * pp) <= room:
                found.append((tp, pp, dp))
    return found
    ### END SOLUTION


print(layouts(2048, 80, 8, 1024, 68_976_648_192, 20e9))
check("13.3", layouts)

# %% [markdown] tags=["exercise"]
# ### 13.4 Debug: it trained, so it fits
#
# Meta's plan for 16,384 GPUs needs 88.9 GB by the theory, has 85.0, and trained (section 13.4). Here are six single changes to the plan below. What does each of them do: is it still "too large", does it fit but make the step "slower", or does it simply
# "fit" (in a step that is not slower)? Decide by what fills the GPU: 68.2 GB of activations, 12.8 GB of fp32 gradients, 6.4 GB of weights. Then ask `worst_stage` and `step_time` where you are not sure.

# %% [raw] tags=["hints"]
# 3.9 GB are missing. Which part of the memory does each change touch at all?
# What does selective recomputation drop, and does flash attention keep it?
# Which of them make the fullest GPU compute, or send, something more often than now?

# %% tags=["exercise"]
### BEGIN GIVEN
meta = published.LLAMA3_405B
print(meta.recipe, meta.layout, sep="\n")
# worst_stage(meta), step_time.step_time(meta)
# replace(meta, layout=replace(meta.layout, zero_stage=2, reduce="update"))  # or "micro-batch"
# replace(meta, recipe=replace(meta.recipe, recompute="full"))
### END GIVEN
changes = {
    "gradients in bf16": ...,
    "ZeRO-2, one reduction in each update": ...,
    "ZeRO-2, a reduction after each micro-batch": ...,
    "full recomputation": ...,
    "selective recomputation": ...,
    "twice the micro-batches on half the replicas": ...,
}
### BEGIN SOLUTION
changes = {
    "gradients in bf16": "fit",
    "ZeRO-2, one reduction in each update": "too large",
    "ZeRO-2, a reduction after each micro-batch": "slower",
    "full recomputation": "slower",
    "selective recomputation": "too large",
    "twice the micro-batches on half the replicas": "too large",
}
### END SOLUTION
check("13.4", changes)

# %% [markdown] tags=["exercise"]
# ### 13.5 Calculate: how many micro-batches?
#
# The notes' best idea on better cards: H100 with 989.4 TFLOP/s and 50 GB/s each, a layer of 855,654,400 parameters, micro-batches of one sequence of 4096 tokens, gradients in fp32, everything sent twice. How many
# seconds does a card compute for one micro-batch of the layer at its peak, and how long does the exchange of the gradients take?
#
# Add up the gradients of $m$ micro-batches before you send them. From which $m$ on does the exchange take at most 5 % of the computing? And from which $m$ on, if one thing is changed? Guess first which changes
# leave it as it is.

# %% [raw] tags=["hints"]
# FLOP as in chapter 5, with a layer for the model. What does a GPU send of each gradient?
# Computing grows with m, the exchange does not. Which changes touch one of them only?
# The exchange over one micro-batch's computing is 6.44. Divide by 0.05, and round up.

# %% tags=["exercise"]
computing_s, exchange_s = ..., ...
micro_batches = {
    "as it is": ...,
    "gradients in bf16": ...,
    "tp 8": ...,
    "cp 2": ...,
    "two sequences in a micro-batch": ...,
    "a model twice as large": ...,
    "full recomputation": ...,
}
### BEGIN SOLUTION
computing_s = 6 * 855_654_400 * 4096 / 989.4e12
exchange_s = 2 * 4 * 855_654_400 / 50e9
micro_batches = {
    "as it is": 129,  # 128.8
    "gradients in bf16": 65,
    "tp 8": 129,  # an eighth of the FLOP and of the gradients
    "cp 2": 258,  # half of the tokens, all gradients
    "two sequences in a micro-batch": 65,
    "a model twice as large": 129,  # the parameters cancel
    "full recomputation": 97,  # 8 FLOP a parameter and token in place of 6
}
### END SOLUTION
check("13.5", [computing_s, exchange_s, micro_batches])

# %% [markdown] tags=["exercise"]
# ### 13.6 Debug: three bills
#
# Three people train Llama 3 70B on 128 H100, with 256 sequences of 8192 tokens in an update. Each is unhappy, and sends the bill of a step and the memory of the fullest GPU (80.8 GB may be used). You may propose one change to each:
# "smaller micro-batches" (one sequence each, and more of them), "less tp" or "fewer stages" (half as many, and twice the dp), or "no recomputation". Which of them makes the step the shortest, and still fits?

# %% [raw] tags=["hints"]
# Which line of the bill is larger than it has to be? And is memory free or scarce?
# What makes a bubble small? What makes tp's messages slow? What buys the free memory?
# Check the memory of your proposal with worst_stage: one of them fits nowhere.

# %% tags=["exercise"]
### BEGIN GIVEN
shape = models.MODELS["llama3-70b"]
cluster = Cluster(hardware.accelerator("H100-SXM"), 16)
shared = {"sequence_parallel": True, "zero_stage": 1}
full, none = Recipe(recompute="full"), Recipe()
setups = {
    "Ann": (full, Layout(tp=4, pp=8, dp=4, micro_batch=4, accumulation=16, **shared)),
    "Bo": (full, Layout(tp=8, pp=2, dp=8, accumulation=32, **shared)),
    "Cy": (none, Layout(tp=16, pp=2, dp=4, accumulation=64, **shared)),
}
for name, (recipe, layout) in setups.items():
    job = Job(shape, recipe, layout, cluster, 8192)
    step, (_, bill) = step_time.step_time(job), worst_stage(job)
    print(f"{name}: {layout.tp=} {layout.pp=} {layout.dp=} {layout.micro_batch=}")
    print(f"  {step.total_s:.1f} s, of which compute {step.compute_s:.1f},", end=" ")
    print(f"tp {step.tp_s:.1f}, bubble {step.bubble_s:.1f}, dp {step.dp_s:.1f}")
    print(f"  {bill.total_bytes / 1e9:.1f} GB, recompute {recipe.recompute}")
### END GIVEN
remedies = {"Ann": ..., "Bo": ..., "Cy": ...}
### BEGIN SOLUTION
remedies = {
    "Ann": "smaller micro-batches",  # the bubble; "no recomputation" would not fit
    "Bo": "no recomputation",  # two thirds of the memory are free
    "Cy": "less tp",  # a tp group of 16 spans two nodes
}
### END SOLUTION
check("13.6", remedies)

# %% [markdown] tags=["exercise"]
# ### 13.7 Debug: audit a plan
#
# Audit a plan that nobody has published yet: LLaMA-2 70B on 96 nodes of 8 H100, tp 8, pp 12, dp 8, ZeRO-1, 500 sequences in an update, micro-batches of one sequence, ranks in Megatron-LM's order. Which of its sentences are right?

# %% [raw] tags=["hints"]
# Which numbers must divide which? 768 GPUs, 80 layers, 500 sequences.
# From the inside out: tp, dp, pp. What is the distance of neighbours along each?
# What does a GPU share with the others of its dp group, and what with those of tp and pp?

# %% tags=["exercise"]
right = {
    "no GPU is left over": ...,
    "all stages have equally many layers": ...,
    "all replicas get equally many sequences": ...,
    "ranks 0 and 8 exchange gradients": ...,
    "rank 64 gets the output of rank 0": ...,
    "a gradient is summed over 768 GPUs": ...,
    "a GPU keeps about 1/96 of the weights, 1/768 of AdamW's states": ...,
    "twice the nodes, dp 16, the same batch: half of the time": ...,
}
### BEGIN SOLUTION
right = {
    "no GPU is left over": True,  # 8 · 12 · 8 = 768
    "all stages have equally many layers": False,  # 80 / 12
    "all replicas get equally many sequences": False,  # 500 / 8
    "ranks 0 and 8 exchange gradients": True,  # the stride of dp is tp
    "rank 64 gets the output of rank 0": True,  # the stride of pp is tp · dp
    "a gradient is summed over 768 GPUs": False,  # over the 8 of its dp group
    "a GPU keeps about 1/96 of the weights, 1/768 of AdamW's states": True,
    # half the micro-batches, so the bubble weighs twice as much
    "twice the nodes, dp 16, the same batch: half of the time": False,
}
### END SOLUTION
check("13.7", right)

# %% [markdown] tags=["exercise"]
# ### 13.8 Implement: rank order
#
# All ranks of the group of `rank` along `axis` ("tp", "dp" or "pp"), in rising order, with tp innermost and pp outermost. First find the three coordinates of
# `rank`.

# %% [raw] tags=["hints"]
# Find the three coordinates first: which of them changes from each rank to the next?
# tp_i = rank % tp; then divide. Vary one coordinate, keep the two others.


# %% tags=["exercise"]
def group(rank: int, axis: str, dp: int, tp: int, pp: int) -> list[int]:
    """The ranks that differ from `rank` in this axis only, itself included."""
    ### BEGIN SOLUTION
    tp_i, dp_i, pp_i = rank % tp, rank // tp % dp, rank // tp // dp

    def number(pp_i: int, dp_i: int, tp_i: int) -> int:
        return (pp_i * dp + dp_i) * tp + tp_i

    if axis == "tp":
        return [number(pp_i, dp_i, i) for i in range(tp)]
    if axis == "dp":
        return [number(pp_i, i, tp_i) for i in range(dp)]
    return [number(i, dp_i, tp_i) for i in range(pp)]
    ### END SOLUTION


check("13.8", group)

# %% [markdown] tags=["exercise"]
# ### 13.9 Debug: the wrong wire
#
# Llama 3 70B on 64 nodes of 8 H100 with tp 8, pp 4, dp 16 is slower than promised. The log says: "tp group of rank 0: 0, 64, 128, …, 448; dp group of rank 0: 0, 1, …, 15". Name the order of the axes, innermost
# first. Then predict by which factor the step is too slow: compare the cluster as it should be with one in which every GPU is alone in its node. (This neglects that half of a dp group now sits in one node, which gains little beside what tp loses.)

# %% [raw] tags=["hints"]
# The axis with stride 1 is the innermost.
# Cluster(h100, 64), Cluster(h100, 512, 1).

# %% tags=["exercise"]
### BEGIN GIVEN
shape = models.MODELS["llama3-70b"]
layout = Layout(tp=8, pp=4, dp=16, accumulation=32, sequence_parallel=True)
h100 = hardware.accelerator("H100-SXM")
# step_time.step_time(Job(shape, Recipe(), layout, Cluster(...), sequence=8192)).total_s
### END GIVEN
order = ...  # such as ("tp", "dp", "pp")
factor = ...
### BEGIN SOLUTION
shape = models.MODELS["llama3-70b"]
layout = Layout(tp=8, pp=4, dp=16, accumulation=32, sequence_parallel=True)
h100 = hardware.accelerator("H100-SXM")
order = ("dp", "pp", "tp")
promised, found = (
    step_time.step_time(Job(shape, Recipe(), layout, cluster, sequence=8192)).total_s
    for cluster in (Cluster(h100, 64), Cluster(h100, 512, 1))
)
factor = found / promised
### END SOLUTION
check("13.9", [order, factor])

# %% [markdown] tags=["exercise"]
# ### 13.10 Predict: defend a plan
#
# Llama 3 70B on 16 nodes of 8 H100, 256 sequences of 8192 tokens in an update, bf16 with AdamW (16 bytes a parameter), no recomputation. Choose a layout by the
# rules of section 13.4, write it down, and only then ask the planner's `why`. You need tp · pp · cp · dp = 128 and
# micro_batch · accumulation · dp = 256. Your layout must fit. How slow may it be? 70 of the 89 predictions of section 13.4 were within 15 % of the measured step, each with its own source left out, and two plans may err in opposite directions, so anything up to $1.15 / 0.85 = 1.35$ times the
# fastest may be as good.
#
# Then flip an assumption that you doubt. By default all of dp's messages hide and none of tp's. Say which part hides, such as `{"tp": 0.5, "dp": 0.8}`, and let the planner search again: how many times the fastest step does
# your layout take now?

# %% [raw] tags=["hints"]
# tp 8 inside a node, a few stages, ZeRO-1 for the rest. Or less tp, and ZeRO-3 makes room.
# Search again with planner.plan(..., assumptions=Assumptions(overlap=hides)).

# %% tags=["exercise"]
### BEGIN GIVEN
shape, recipe = models.MODELS["llama3-70b"], Recipe()
cluster = Cluster(hardware.accelerator("H100-SXM"), 16)
# planner.plan(shape, recipe, cluster, 256, sequence=8192, assumptions=Assumptions(overlap=hides))
# step_time.step_time(Job(shape, recipe, plan, cluster, 8192), Assumptions(overlap=hides))
### END GIVEN
plan = ...  # Layout(tp=..., pp=..., dp=..., ...)
hides, times_the_fastest = ..., ...
### BEGIN SOLUTION
shape, recipe = models.MODELS["llama3-70b"], Recipe()
cluster = Cluster(hardware.accelerator("H100-SXM"), 16)
plan = Layout(tp=8, pp=2, dp=8, accumulation=32, sequence_parallel=True, zero_stage=1)
print(planner.plan(shape, recipe, cluster, 256, sequence=8192).why(plan))

hides = {"tp": 0.5, "dp": 0.8}
flipped = Assumptions(overlap=hides)
again = planner.plan(shape, recipe, cluster, 256, sequence=8192, assumptions=flipped)
mine = step_time.step_time(Job(shape, recipe, plan, cluster, 8192), flipped)
times_the_fastest = mine.total_s / again.best(1)[0].step_s
### END SOLUTION
check("13.10", [plan, hides, times_the_fastest])

# %% [markdown] tags=["exercise"]
# ### 13.11 Predict: experts across nodes
#
# DeepSeek-V3 on 128 nodes of 8 H200. First by hand: a micro-batch has 4096 tokens of 7168 numbers, and each token goes to 8 experts and back. How many bytes does a GPU send for one layer, forward, with a copy of 16 bits for each expert, both ways?
# How many if a token goes to 4 nodes, once to each, in 8 bits there and 16 bits back?
#
# Then ask the planner, with the question below: which ep does the fastest layout have if `ep` is waited for (the default), and which if all of it hides? And if it hides, how many times the fastest step does the layout take that was the fastest before?

# %% [raw] tags=["hints"]
# How many copies of a token leave, and how wide is a number on either way?
# Tokens · numbers · copies · (bytes there + bytes back).
# waits = planner.plan(...); hides = waits.under(Assumptions(overlap={'ep': 1.0})).
# hides.step(option) is the step of an option of the other plan.

# %% tags=["exercise"]
### BEGIN GIVEN
shape, cluster = (
    models.MODELS["deepseek-v3"],
    Cluster(hardware.accelerator("H200-SXM"), 128),
)
few = {"cp": (1,), "tp": (1,), "virtual_stages": (1,), "zero_stage": (1,)}
# planner.plan(shape, Recipe(), cluster, 4096, sequence=4096, only=few); its .under(Assumptions(...))
### END GIVEN
each_expert_bytes, each_node_bytes = ..., ...
ep_waits, ep_hides, times_slower = ..., ..., ...
### BEGIN SOLUTION
shape, cluster = (
    models.MODELS["deepseek-v3"],
    Cluster(hardware.accelerator("H200-SXM"), 128),
)
few = {"cp": (1,), "tp": (1,), "virtual_stages": (1,), "zero_stage": (1,)}
each_expert_bytes = 4096 * 7168 * 8 * (2 + 2)
each_node_bytes = 4096 * 7168 * 4 * (1 + 2)
waits = planner.plan(shape, Recipe(), cluster, 4096, sequence=4096, only=few)
all_hides = Assumptions(overlap={"ep": 1.0})
first, second = waits.best(1)[0], waits.under(all_hides).best(1)[0]
ep_waits, ep_hides = first.layout.ep, second.layout.ep
job = Job(shape, first.recipe, first.layout, cluster, 4096)
times_slower = step_time.step_time(job, all_hides).total_s / second.step_s
### END SOLUTION
answer = [each_expert_bytes, each_node_bytes, ep_waits, ep_hides, times_slower]
check("13.11", answer)

# %% [markdown] tags=["exercise"]
# ### 13.12 Build: a mesh of ranks
#
# Put the ranks on a mesh of pp × dp × tp. Tensor parallelism sends most, so its ranks are neighbours; stages send least and lie furthest apart: rank = (pp · DP + dp) · TP + tp. A *line* is a list of ranks that differ in one coordinate only, in
# the order of that axis; each line becomes a process group. `own_group(lines)` and `wires(lines)` make the groups of all lines and return this rank's own (`wires` those of a pipeline); every rank calls them, in the same order, with all lines.
#
# The check looks at places, then at lines, then at the groups on four real ranks. What passes is kept as `mine/mesh.py`, and `course demo three_d --parts mine` trains on it, together with the tensor and the pipeline parts that you have built.

# %% [raw] tags=["hints"]
# rank = (pp · DP + dp) · TP + tp. Which coordinate is the remainder by TP?
# divmod twice: first by TP, then what is left by DP.
# A line along an axis: fix the two other coordinates and let this one run.
# torch.arange(PP·DP·TP).view(PP, DP, TP).movedim(axis, -1) has the lines as its last dimension.
# Every rank makes all groups, in the same order, and keeps the one it is in.

# %% tags=["exercise"]
import torch
import torch.distributed as dist

from course_lib.scratch.pipeline_stage import wires
from course_lib.scratch.three_d import Coordinates, own_group

### BEGIN GIVEN


class Mesh:
    """All ranks as a block of pp × dp × tp, and this rank's lines through it."""

    def __init__(self, dp: int, tp: int, pp: int) -> None:
        """Attributes: size and place (Coordinates), wires (of `wires`), and the groups dp and tp."""
        ...

    def place_of(self, rank: int) -> Coordinates:
        """Coordinates(pp, dp, tp) of a rank; `self.size` has the size of each axis."""
        ...

    def lines(self, axis: str) -> list[list[int]]:
        """All lines of ranks along "pp", "dp" or "tp"."""
        ...


### END GIVEN
### BEGIN SOLUTION
from course_lib.scratch.three_d import Mesh

### END SOLUTION

check("13.12", Mesh)
