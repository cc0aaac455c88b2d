# %% [raw] tags=["sitting"]
# question: How do you lay a model over 2048 GPUs, and which ranks must share a node?
# importance: 5
# difficulty: 3
# group: alone
# needs: 8, 10, 11

# %% [markdown]
# # 13 Axes and wires
#
# You have 2048 GPUs and a model with 70 billion parameters. If you cut it by tensor parallel 8 and pipeline parallel 10, one copy takes 80 GPUs.
# $2048 / 80 = 25.6$, and 0.6 of a copy cannot train, so 48 GPUs stay idle. And even a plan that uses all GPUs can be slow: if the ranks are numbered
# in the wrong order, the largest messages leave the node. **How do you lay a model over 2048 GPUs, and which ranks must share a node?**
#
# By the end of this sitting you can
#
# - say for every rank which piece of the model and which data it has, and with whom it talks,
# - put each kind of parallelism on the right wire, and predict what the wrong wire costs,
# - say how many micro-batches make the exchange of gradients cheap.
#
# You need chapters 3 to 11; chapter 12 for cp and ep.

# %%
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from course_lib import expect, launch, predict, style
from course_lib.chapters.ch13_3d_planning import figures
from course_lib.theory import BUCKETS, Cluster, Job, Layout, Recipe
from course_lib.theory import collectives, flops, hardware, mesh, models, units
from course_lib.theory.network import step_traffic
from course_lib.theory.step import step_time

launch.warm_up()

# %% [markdown]
# ## 13.1 A block of ranks
#
# A replica (chapter 7) is one copy of the model. It takes tp · pp · cp GPUs: the degrees of tensor, pipeline and context parallelism. The number of
# replicas is the degree of data parallelism, dp. With $w$ GPUs in all,
#
# $$dp = \frac{w}{tp \cdot pp \cdot cp}, \text{ a whole number.}$$
#
# One degree is missing from the formula: ep. Experts are spread over GPUs that data parallelism uses anyway, so expert parallelism needs no GPUs of
# its own.

# %%
try:
    mesh.data_parallel(2048, tp=8, pp=10)
except ValueError as error:
    print(error)
assert mesh.data_parallel(2048, tp=8, pp=8) == 32
assert Layout(dp=4, ep=4).world == 4  # ep adds no GPUs

# %% [markdown]
# The ranks form a block with one side for each degree. It is called a **device mesh** (设备网格). Training with tp, pp and dp together is
# **3D parallelism** (三维并行). Eight ranks are the smallest example, $2 \times 2 \times 2$.
#
# Megatron-LM numbers the ranks from the inside out: tp, cp, dp, pp. Without cp this is
#
# $$\text{rank} = (pp_i \cdot dp + dp_i) \cdot tp + tp_i,$$
#
# where the coordinates $tp_i$, $dp_i$ and $pp_i$ start at 0. (With cp, replace $dp_i$ by $dp_i \cdot cp + cp_i$, and $dp$ by $dp \cdot cp$.) The
# numbers of tp neighbours differ by 1, those of dp neighbours by tp, those of pp neighbours by tp · dp. This difference is the **stride** (步长) of an
# axis.
#
# The ranks that differ in only *one* coordinate form a group. Each axis sends its messages inside its own groups.
#
# **Predict.** In the block of $2 \times 2 \times 2$, with which rank does rank 5 exchange gradients?

# %%
partner = predict("13.partner", "dp partner of rank 5?", yours=None)

# %% [markdown]
# PyTorch builds such a block with `init_device_mesh`. Ask eight ranks for their coordinates and their dp group:


# %%
def from_library():
    """Coordinates of this rank, and the ranks of its dp group."""
    names = ("pp", "dp", "tp")
    torch_mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=names)
    group = torch_mesh.get_group("dp")
    return torch_mesh.get_coordinate(), dist.get_process_group_ranks(group)


ranks = launch.run(from_library, ranks=8)

# %%
(other,) = set(ranks[5][1]) - {5}
expect(7, other, label="partner of rank 5", yours=partner)

# %% tags=["drawing"]
cube = Layout(dp=2, tp=2, pp=2)
for rank, (place, dp_group) in enumerate(ranks):
    ours = mesh.place(cube, rank)
    assert list(place) == [ours["pp"], ours["dp"], ours["tp"]]
    assert tuple(dp_group) in mesh.groups(cube, "dp")
print("strides:", mesh.strides(cube))
figures.rank_block([mesh.place(cube, rank) for rank in range(8)])

# %% [markdown]
# **Explain.** $5 = (1 \cdot 2 + 0) \cdot 2 + 1$, so rank 5 has $pp_i = 1$, $dp_i = 0$ and $tp_i = 1$. Its partner has $dp_i = 1$ and the same two other
# coordinates: $(1 \cdot 2 + 1) \cdot 2 + 1 = 7$. PyTorch agrees for all eight ranks.
#
# The names in `mesh_dim_names` go from the outside in, so the *last* one is the innermost. The order `("tp", "dp", "pp")` trains correctly as well, but
# on the wrong wires. Section 13.2 shows what that costs.
#
# What do the ranks send each other? Step through one update of LLaMA-2 70B on 16 GPUs. Each step is one kind of message. Which axis has sent most at
# the end? Then choose the larger blocks: which messages leave the node when tp fills it? Who are the partners along cp, and along ep?

# %%
from course_lib.chapters.ch13_3d_planning import steppers

steppers.talks("tp 2 × dp 4 × pp 2")

# %% [markdown]
# **Answers.** tp has sent most. It communicates in each layer, pp at each boundary between stages, and dp at the end. If tp fills a node, every other
# axis crosses the network. The partners along cp are the nearest ranks beyond tp, and those along ep are ranks of dp · cp.
#
# **Remember**
# - dp = world / (tp · pp · cp), a whole number. ep divides dp · cp and adds no GPUs.
# - The ranks of a group differ in one coordinate. Neighbours along an axis are one stride apart.

# %% [markdown]
# ### Deeper: the course's own version
#
# Try exercise 13.12 first: it asks you to write this class. `torch.arange(…).view(…)` is the formula above, because the last dimension runs fastest.
# `lines` cuts the block along one dimension, and each line becomes a process group.

# %%
from course_lib import scratch, show_source

show_source(scratch.three_d.Mesh)

# %% [markdown]
# ## 13.2 Which axis on which wire
#
# An H100 sends 450 GB/s to the other seven GPUs of its node over NVLink, and 50 GB/s over InfiniBand to all others (both one way). Eight consecutive
# ranks share a node, so the order of the axes decides which axis gets the fast wire. (In a rack such as GB200 NVL72, NVLink connects 72 GPUs, and tp and ep
# may be larger: nvidia.com/en-us/data-center/gb200-nvl72.)
#
# Take LLaMA-2 70B on 2048 H100 with tp 8, pp 8, dp 32. An update has 1024 sequences of 4096 tokens; each replica runs 32 micro-batches of one
# sequence, with sequence parallelism and ZeRO-1. How much does one GPU send in an update?
#
# - **tp** sends four sums of $s \cdot h$ numbers in each layer: after attention and after the MLP, forward and backward (chapter 10). One sum has
#   $4096 \cdot 8192 \cdot 2$ B = 67.1 MB. A reduce-scatter among 8 sends 7/8 of that, and so does the all-gather. 10 layers and 32 micro-batches make 150 GB.
# - **dp** sends gradients and parameters once. The GPU has an eighth of 10 layers, 2.1 GB: $2 \cdot 31/32 \cdot 2.1 = 4.1$ GB (chapter 8).
# - **pp** sends an eighth of a layer's output to the next stage, and a gradient of the same size back (chapter 11): $2 \cdot 32 \cdot 8.4$ MB = 0.54 GB.

# %%
llama = models.MODELS["llama2-70b"]
cluster = Cluster(hardware.accelerator("H100-SXM"), nodes=256)
more = {"sequence_parallel": True, "keep_gathered": True, "zero_stage": 1}
layout = Layout(tp=8, pp=8, dp=32, accumulation=32, **more)
job = Job(llama, Recipe(), layout, cluster, sequence=4096)
sent = step_traffic.step_traffic(job, 1, policy=BUCKETS).bytes_by_axis

# %% tags=["drawing"]
inside, between = "NVLink, inside a node", "the network"
bars = {}
for axis, size in sent.items():
    bars[axis] = {inside if mesh.nodes_of(layout, axis) == 1 else between: size}
assert round(sent["tp"] / sent["dp"]) == 36
title = "Sent by one GPU in one update"
wires = {inside: style.BLUE, between: style.ORANGE}
figures.stacked_bars(bars, title, units.format_bytes, colours=wires)

# %% [markdown]
# tp sends 36 times as much as dp and 280 times as much as pp. And GPUs *wait* for tp, because the next matrix product needs the sum. The messages of
# dp can hide behind the backward pass. pp sends few bytes, and a stage has other micro-batches to compute meanwhile.
#
# | axis | sends | when | can it hide? | place |
# |---|---|---|---|---|
# | tp | activations | four times a layer | only in pieces (section 10.8) | innermost, inside a node |
# | cp | keys and values | in each layer | behind attention | next to tp |
# | ep | routed tokens | in each layer with experts | in pieces, or behind a second micro-batch (12.4) | near ranks of dp · cp |
# | dp | gradients, parameters | once an update (ZeRO-3: each pass) | behind the backward pass | further out |
# | pp | a layer's output | at each boundary of stages | partly | outermost |
#
# Every framework puts tp innermost. Megatron-LM puts pp outermost, because it sends least (arXiv:2104.04473, section 3); Llama 3 dp, because it
# hides best (arXiv:2407.21783, section 3.3.2).
#
# With tp innermost the theory predicts 2.9 s for the update. It assumes that collectives reach 80 % of NVLink's 450 GB/s, so 360 GB/s, and that nothing of tp
# hides.
#
# **Predict.** The order is changed, and tp is outermost. The 8 ranks of a tp group are now in 8 different nodes. By which factor does the step get
# slower? You have tp's bytes, the 2.9 s, the bubble of $7/32$, and both wires: 360 and 50 GB/s.

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
extra = sent["tp"] * (1 / 50e9 - 1 / 360e9)
assert round(right.total_s, 1) == 2.9
assert (round(extra, 1), round(extra * (1 + 7 / 32), 1)) == (2.6, 3.2)
by_hand = (right.total_s + extra * (1 + 7 / 32)) / right.total_s
in_theory = wrong.total_s / right.total_s
expect(in_theory, label="step, wrong / right order", yours=slower)
assert abs(by_hand / in_theory - 1) < 0.04 and round(wrong.total_s, 1) == 6.3


# %% tags=["drawing"]
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
# **Explain.** 150 GB take 0.42 s at 360 GB/s and 3.0 s at 50 GB/s. Nothing hides them: 2.6 s more. Each micro-batch is longer, so the
# bubble grows by $(p-1)/m = 7/32$ of that (chapter 11): 3.2 s in all. The calculation by hand leaves out latency and what embedding and head send, 4 %. Nothing
# crashes and the loss is right, so you notice the wrong order only if you know which time to expect. (These times are computed; section 13.4 says how good
# they are.)
#
# **Remember**
# - tp sends most, and GPUs wait for it: put it innermost, inside a node.
# - dp hides, and pp sends least: either may be outermost.
# - A wrong order trains correctly and slowly.

# %% [markdown]
# ## 13.3 Few exchanges, and how large the batch becomes
#
# The slower wire is left to dp. Is it fast enough? Take cheap cards, RTX 4090 connected by PCIe at 32 GB/s. Note 004 plans LLaMA-2 70B for them, with one
# layer on each card and micro-batches of 8 sequences of 4096 tokens. In its numbers, 1 billion parameters a layer and 330 TFLOP/s, a card computes 0.596 s
# for one micro-batch. Its fp32 gradients are 4 GB. An all-reduce sends nearly all of them twice, in 0.25 s: 42 % of the computing.
#
# The best idea of the note is its remedy. A stage runs 80 micro-batches in an update. It can add their gradients up on the GPU, and exchange the sum once.
#
# **Predict.** What percentage of the computing does the exchange take then?

# %%
share = predict("13.accumulated", "Exchange, % of computing?", yours=None, unit="%")

# %%
tokens = 8 * 4096
computing_s, exchange_s = flops.six_nd(1e9, tokens) / 330e12, 2 * 4e9 / 32e9
assert round(exchange_s / computing_s, 2) == 0.42
percent = 100 * exchange_s / (80 * computing_s)
expect(percent, label="exchange, of computing", unit="%", yours=share)

# %% [markdown]
# **Explain.** 0.25 s of communication for $80 \cdot 0.596 = 47.7$ s of computing, 0.5 %. The exchange stays, for 80 times the computing. Count the FLOP for each byte that a GPU sends, with $P$ parameters, $t$ tokens in a micro-batch, $m$ micro-batches, and fp32 gradients
# that are sent twice:
#
# $$\frac{6\,P\,t \cdot m}{2 \cdot 4\,P} = \frac{3}{4}\,t\,m \quad\text{FLOP per byte.}$$
#
# The parameters cancel; the tokens between two exchanges count. For tensor parallelism the tokens cancel (section 10.7), so accumulation does not help it:

# %% tags=["drawing"]
counts = [2**power for power in range(8)]
exact = llama.layer_parameters(1).total
by_layer = collectives.layer_intensity(llama.hidden, 8, layer_parameters=exact)
curves = {
    "data parallel": [(m, 0.75 * tokens * m) for m in counts],
    "tensor parallel 8": [(m, by_layer) for m in counts],
}
figures.lines(
    curves,
    "micro-batches in an update",
    "FLOP per byte sent",
    "Accumulation raises the intensity of dp, not of tp",
    doubling=(True, True),
    level={"ridge": collectives.ridge(330e12, 32e9)},
)

# %% [markdown]
# The ridge is what the chip computes while one byte is sent. Above it, the exchange takes less time than the computing. This is why dp may use a slow
# wire. The accumulation buffer costs nothing if gradients are kept in fp32 anyway. (ZeRO-2 and 3, as chapter 8 has them, cannot do this: they exchange
# with every micro-batch.)
#
# **How large does the batch become?** Fill a pipeline with as many micro-batches as it has stages, $m = p$. With $w$ GPUs there are $w / p$ pipelines,
# and with micro-batches of $b$ sequences the batch is
#
# $$dp \cdot m \cdot b = \frac{w}{p} \cdot p \cdot b = w \cdot b.$$
#
# For the 2048 cards and $b = 8$ that is 16,384 sequences. With tp 8 in each stage there are an eighth as many pipelines,
# and the batch is an eighth. That is a good argument for tp:

# %% tags=["drawing"]
batches = {}
for tp, pp in ((1, 80), (8, 10)):
    sequences = 2048 / (tp * pp) * pp * 8  # m = p micro-batches of 8 sequences
    batches[f"tp {tp}, pp {pp}"] = sequences * 4096 / 1e6
assert sequences == 2048 * 8 / 8
# arXiv:2407.21783, section 3.4.1, "16M"; arXiv:2307.09288, table 1, "4M"
batches["Llama 3 405B, at most"] = 2048 * 8192 / 1e6
batches["LLaMA-2"] = 1024 * 4096 / 1e6
title = "Million tokens in an update"
figures.bars(batches, "{:.1f}".format, title, style.COMPUTING)

# %% [markdown]
# 67 million tokens are 16 times LLaMA-2's own batch, and far above the critical batch (chapter 2) tokens are wasted. Note 004 says that "the 2048 cards
# take part in data parallelism independently". But only cards that hold the same layer exchange gradients, $2048 / 80 = 25.6$. Section 13.8 audits
# this plan line by line.
#
# **Remember**
# - The intensity of dp is $\frac{3}{4}$ of the tokens between two exchanges. Accumulation raises it, and not that of tp.
# - With $m = p$ the batch is GPUs × micro-batch, divided by tp.
# - Gradients are exchanged among dp · cp ranks, not among all GPUs.

# %% [markdown]
# ## The answer
#
# Choose tp, pp and cp so that their product divides the number of GPUs; dp is the rest. For LLaMA-2 70B on 2048 H100, tp 8 · pp 8 leaves 32 replicas and
# no idle GPU. The 8 ranks of a tp group must share a node, because tp sends 36 times as much as dp and nothing hides it. In the wrong order the same
# update takes 6.3 s instead of 2.9 s. dp may use the slow wire, if
# $\frac{3}{4}\,t\,m$ is far above its ridge.

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
# (published mistake, note 004) "The 2048 GPUs take part in data parallelism independently." Take a mixture of experts on 2048 GPUs with tp 4, pp 8, cp 2, ep 16, sequence parallelism, and 16 micro-batches of 2 sequences, without
# ZeRO. How many sequences are in an update? And among how many GPUs must gradients be summed, for a matrix of attention, for a matrix of one expert (tp cuts both), and for the weight of a norm in front of attention?

# %% [raw] tags=["hints"]
# importance 3, difficulty 3
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
# ### 13.5 Calculate: how many micro-batches?
#
# The best idea of note 004 (section 13.3) on better cards: H100 with 989.4 TFLOP/s and 50 GB/s each, a layer of 855,654,400 parameters, micro-batches of one sequence of 4096 tokens, gradients in fp32, everything sent twice. How many
# seconds does a card compute for one micro-batch of the layer at its peak, and how long does the exchange of the gradients take?
#
# Add up the gradients of $m$ micro-batches before you send them. From which $m$ on does the exchange take at most 5 % of the computing? And from which $m$ on, if one thing is changed? Guess first which changes
# leave it as it is.

# %% [raw] tags=["hints"]
# importance 3, difficulty 3
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
# ### 13.7 Debug: audit a plan
#
# Audit a new plan: LLaMA-2 70B on 96 nodes of 8 H100, tp 8, pp 12, dp 8, ZeRO-1, 500 sequences in an update, micro-batches of one sequence, ranks in Megatron-LM's order. Which of its sentences are right?

# %% [raw] tags=["hints"]
# importance 3, difficulty 2
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
# ### 13.12 Build: a mesh of ranks
#
# Put the ranks on a mesh of pp × dp × tp. Tensor parallelism sends most, so the ranks of a tp group are neighbours; stages send least and are furthest apart: rank = (pp · DP + dp) · TP + tp. A *line* is a list of ranks that differ in one coordinate only, in
# the order of that axis; each line becomes a process group. `own_group(lines)` and `wires(lines)` make the groups of all lines and return this rank's own (`wires` those of a pipeline); every rank calls them, in the same order, with all lines.
#
# The check looks at places, then at lines, then at the groups on four real ranks. What passes is kept as `mine/mesh.py`, and `course demo three_d --parts mine` trains on it, together with the tensor and the pipeline parts that you have built.

# %% [raw] tags=["hints"]
# importance 5, difficulty 2
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
