# %% [raw] tags=["sitting"]
# question: How can eight GPUs share one layer and still train the same model?
# importance: 5
# difficulty: 3
# group: alone
# needs: 4, 5, 6.1

# %% [markdown]
# # 10 Tensor parallelism: cut a layer
#
# A layer of LLaMA-2 70B has 856 million weights. At its peak rate an H100 needs 21 ms for it, forward and backward, with 4096 tokens. Eight H100s
# that share every matrix of the layer need 2.7 ms of arithmetic each. How can they share a matrix, and still train the same model?
#
# This is **tensor parallelism** (张量并行): it splits every matrix multiplication. The price is messages in the middle of every layer.
#
# After this sitting you can
#
# - cut a matrix by columns or by rows, and say which order of the two needs only one sum,
# - write the two small functions, f and g, that make a cut model train like a whole one,
# - cut attention by its heads, and say how many GPUs can share them.
#
# You need chapters 4 to 6.

# %%
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import linear

from course_lib import expect, launch, measure, predict, scratch, show_source, style
from course_lib.chapters.ch10_tensor_parallelism import figures
from course_lib.theory import Layout, collectives, models, tensor_parallel, units

launch.warm_up()
torch.set_num_threads(1)

# %% [markdown]
# ## 10.1 One product, two cuts
#
# One token with two features, $X = (1,\ 2)$, meets a matrix of 2 × 2 weights:
#
# $$X A = (1,\ 2) \begin{pmatrix} 1 & -2 \\ 3 & 4 \end{pmatrix}
# = (1 \cdot 1 + 2 \cdot 3,\ \ 1 \cdot (-2) + 2 \cdot 4) = (7,\ 6).$$
#
# Two GPUs share the work. A matrix can be cut in two directions.
#
# **By columns** (列并行, column-parallel). GPU 0 holds the column $(1, 3)$, GPU 1 the column $(-2, 4)$. Each needs all of $X$, and computes a finished *part* of the result:

# %% tags=["drawing"]
matrix = figures.matrix
x, a, b = [[1, 2]], [[1, -2], [3, 4]], [[1, 0], [2, 1]]
by_columns = {
    f"rank {rank}\na finished part": {
        "X": matrix(x, "activations"),
        "A": matrix(a, "weights", (rank, rank + 2)),
        "X·A": matrix([[7, 6]], "activations", [rank]),
    }
    for rank in range(2)
}
by_columns["all-gather\nput them side by side"] = {
    "X·A": matrix([[7, 6]], "activations")
}
figures.cells(by_columns, "Cut by columns", square=28, between=14)

# %% [markdown]
# **By rows** (行并行, row-parallel). GPU 0 holds the row $(1, -2)$, GPU 1 the row $(3, 4)$. Each needs only one feature of $X$, and computes an unfinished result of *full size*:

# %% tags=["drawing"]
by_rows = {
    f"rank {rank}\nfull size, unfinished": {
        "X": matrix(x, "activations", [rank]),
        "A": matrix(a, "weights", (2 * rank, 2 * rank + 1)),
        "X·A": matrix([result], "unfinished activations"),
    }
    for rank, result in enumerate([[1, -2], [6, 8]])
}
by_rows["all-reduce\nadd them up"] = {"X·A": matrix([[7, 6]], "activations")}
figures.cells(by_rows, "Cut by rows", square=28, between=14)

# %% [markdown]
# The same in PyTorch:

# %%
X = torch.tensor([[1.0, 2.0]])
A = torch.tensor([[1.0, -2.0], [3.0, 4.0]])
columns = [X @ part for part in A.chunk(2, dim=1)]
rows = [x @ part for x, part in zip(X.chunk(2, dim=1), A.chunk(2, dim=0), strict=True)]
assert torch.cat(columns, dim=1).tolist() == sum(rows).tolist() == [[7, 6]]

# %% [markdown]
# | cut | input of a GPU | result of a GPU | to finish |
# |---|---|---|---|
# | columns | whole | a part | all-gather |
# | rows | a part | whole, to be summed | all-reduce |
#
# Beware: `nn.Linear` stores its weight transposed, with one *row* for each output. Cutting $A$ by columns
# means cutting `weight` along dimension 0.
#
# **Remember**
# - Columns: whole input, part of the output. Rows: part of the input, a sum at the end.
# - Weights and work are divided by $t$, the number of GPUs, in both cases.

# %% [markdown]
# ## 10.2 Column, then row
#
# An MLP has two matrices with a nonlinearity between them: $Z = \text{ReLU}(XA)\,B$. (ReLU replaces negative numbers by zero. Our GPT has GELU, which is harder to compute in your head.) A column cut produces exactly the part that a row cut needs as its input. So cut $A$ by columns and $B$ by rows:
#
# $$B = \begin{pmatrix} 1 & 0 \\ 2 & 1 \end{pmatrix}, \qquad
# Z = (7,\ 6)\, B = (7 \cdot 1 + 6 \cdot 2,\ \ 6 \cdot 1) = (19,\ 6).$$

# %% tags=["drawing"]
pair = {
    f"rank {rank}": {
        "X": matrix(x, "activations"),
        "A": matrix(a, "weights", (rank, rank + 2)),
        "ReLU(X·A)": matrix([[7, 6]], "activations", [rank]),
        "B": matrix(b, "weights", (2 * rank, 2 * rank + 1)),
        "Z": matrix([result], "unfinished activations"),
    }
    for rank, result in enumerate([[7, 0], [12, 6]])
}
ways = [
    ((row, one), (row, two)) for row, its in pair.items() for one, two in pairwise(its)
]
pair["g, all-reduce\nboth get the sum"] = {"Z": matrix([[19, 6]], "activations")}
figures.cells(pair, "Forward", square=28, between=14, past=ways)

# %% [markdown]
# Nothing is sent between the two matrices. At the end there is one sum.
#
# Could row, then column do the same? After the row cut GPU 0 has $(1, -2)$ and GPU 1 has $(6, 8)$. ReLU turns these into $(1, 0)$
# and $(6, 8)$, and their sum is $(7, 8)$ instead of $(7, 6)$. A nonlinearity needs the finished sum, so there would be a message in
# the middle, where an MLP is four times as wide as at its ends:

# %%
B = torch.tensor([[1.0, 0.0], [2.0, 1.0]])
assert (torch.relu(X @ A) @ B).tolist() == [[19, 6]]
too_early = sum(torch.relu(part) for part in rows)
assert too_early.tolist() == [[7, 8]]

# %% [markdown]
# The four orders, for 4096 tokens with hidden size $h = 8192$ in bf16 on eight GPUs:

# %% tags=["drawing"]
sent = collectives.sent_bytes
ends_bytes = 2 * 4096 * 8192
orders = {
    "column, row": ("nothing", "all-reduce"),
    "column, column": ("all-gather", "all-gather"),
    "row, row": ("reduce-scatter", "all-reduce"),
    "row, column": ("all-reduce", "all-gather"),
}
by_order, words = {}, {}
for order, (middle, end) in orders.items():
    wide = 0 if middle == "nothing" else sent(middle, 4 * ends_bytes, 8)
    by_order[order] = {"in the middle": wide, "at the end": sent(end, ends_bytes, 8)}
    total = units.format_bytes(sum(by_order[order].values()))
    words[order] = f"{total}: {middle}, {end}"
looks = {"in the middle": style.MESSAGES, "at the end": style.PALE}
title = "What each GPU sends for an MLP, forward"
figures.stacked_bars(by_order, title, units.format_bytes, words, colours=looks)

# %% [markdown]
# This *pair*, column then row, is the idea of Megatron-LM (Shoeybi et al. 2019, arXiv:1909.08053, section 3).
#
# ### Backward: f and g
#
# Let the loss be the sum of $Z$'s two numbers, so its gradient is $(1, 1)$. Both GPUs know it, since both
# know $Z$. Each can go back through its own row of $B$, the ReLU, and its own column of $A$. Read from right to left; ∂ is the gradient:

# %% tags=["drawing"]
back = {
    f"rank {rank}": {
        "∂X": matrix([part], "unfinished gradients"),
        "A": matrix(a, "weights", (rank, rank + 2)),
        "∂(X·A)": matrix([[1, 3]], "gradients", [rank]),
        "B": matrix(b, "weights", (2 * rank, 2 * rank + 1)),
        "∂Z": matrix([[1, 1]], "gradients"),
    }
    for rank, part in enumerate([[1, 3], [-6, 12]])
}
ways = [
    ((row, two), (row, one)) for row, its in back.items() for one, two in pairwise(its)
]
back["f, all-reduce\nboth get the sum"] = {"∂X": matrix([[-5, 15]], "gradients")}
figures.cells(back, "Backward", square=28, between=14, past=ways)

# %% [markdown]
# Each GPU knows only how the loss depends on $X$ *through its own half*. The true gradient is the sum, $(-5, 15)$. What was copied in the forward
# pass must be summed in the backward pass, and what was summed is copied. Megatron-LM calls the two ends
# **f** and **g**:
#
# | | forward | backward |
# |---|---|---|
# | f, before the columns | copy: nothing to send | all-reduce |
# | g, after the rows | all-reduce | copy: nothing to send |
#
# **Predict.** Four GPUs instead of two share the pair. Each has half of the weights and half of the work. How many times as many bytes does it send?

# %%
four = predict("10.four", "Sent with 4 GPUs / with 2?", yours=None)

# %% [markdown]
# The stepper walks through the MLP of LLaMA-2 70B with one
# sequence of 4096 tokens. Each row is a rank. What a rank does not have is blank, and what still has to be summed is hatched. Set `ranks` to 4.

# %%
from course_lib.chapters.ch10_tensor_parallelism import steppers

steppers.cut_pair()

# %%
ratio = sent("all-reduce", ends_bytes, 4) / sent("all-reduce", ends_bytes, 2)
expect(1.5, ratio, label="4 GPUs / 2", yours=four)

# %% [markdown]
# **Explain.** Two steps send: g forward, f backward, each $h$ wide. Nothing is sent in the middle, where the pair is $4h$ wide. Each time a rank sends $2(t-1)/t$ times the tensor, which grows with $t$: 67 MB at $t = 2$, 101 at $t = 4$.
#
# Now the example on two real processes, with every message logged. `enter` applies f, and `leave` applies g. (Exercise 10.11 builds both; try it first.)


# %%
def pair(with_f):
    """The two matrices on this rank: result, gradient of X, and what was sent."""
    region = scratch.tensor.TensorParallel()
    a, b = A.chunk(2, dim=1)[region.rank], B.chunk(2, dim=0)[region.rank]
    x = X.clone().requires_grad_()
    with measure.wire.log_wire() as log:
        entered = region.enter(x) if with_f else x
        z = region.leave(torch.relu(entered @ a) @ b)
        z.sum().backward()
    return z.tolist(), x.grad.tolist(), log.sent()


# %%
ours = launch.run(pair, True, ranks=2)
for rank, (z, gradient, log) in enumerate(ours):
    print(f"rank {rank}: Z {z}, gradient of X {gradient}, {log}")
assert ours[0] == ours[1]
assert ours[0] == ([[19.0, 6.0]], [[-5.0, 15.0]], {"all-reduce": (2, 16)})

# %% [markdown]
# Two all-reduces of two fp32 numbers, 16 bytes in all. Now leave f out:

# %%
broken = launch.run(pair, False, ranks=2)
print([result for result, _, _ in broken], "the results are right")
print([gradient for _, gradient, _ in broken], "the gradients are not")
assert [gradient for _, gradient, _ in broken] == [[[1.0, 3.0]], [[-6.0, 12.0]]]
assert broken[0][2]["all-reduce"][0] == 1  # instead of 2

# %% [markdown]
# This mistake is hard to see: the results are right. Everything *before* the pair gets
# a wrong gradient, a different one on each rank. Weights that both ranks hold whole, such as norms, drift apart, while the loss
# keeps falling for some time. Three things show it: the gradients of such weights, compared between the ranks; the number of all-reduces, one too few for each pair; and a
# comparison with one process.
#
# A real layer has biases. The bias of a column cut belongs to the outputs and is cut with them. The bias of a row cut is added after the sum; before it, it would count $t$ times.
#
# ### The library's version
#
# PyTorch cuts by a plan: which module in which way. `parallelize_module` replaces each weight by a `DTensor`, a tensor that
# knows how it is cut over a mesh of ranks, and puts f and g around the modules:


# %%
def by_library():
    """The same pair, cut by torch."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import parallel

    layers = nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 2, bias=False)
    mlp = nn.Sequential(*layers)
    mlp[0].weight.data, mlp[2].weight.data = A.T.clone(), B.T.clone()
    plan = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    parallel.parallelize_module(mlp, mesh, plan)
    x = X.clone().requires_grad_()
    with measure.wire.log_wire() as log:
        z = mlp(x)
        z.sum().backward()
    return z.tolist(), x.grad.tolist(), log.sent()


# %%
library = launch.run(by_library, ranks=2)
assert library == ours
print(library[0])

# %% [markdown]
# The same numbers, messages and bytes.
#
# **Remember**
# - Column, then row: no message between the matrices, one all-reduce at the end.
# - f: copy forward, sum backward. g: sum forward, copy backward.
# - Without f the loss looks healthy and the gradients are wrong. Compare them between the ranks, or with one process.

# %% [markdown]
# ### Deeper: the course's own version
#
# f and g are autograd `Function`s of a few lines each:

# %%
show_source(scratch.tensor.Copy, scratch.tensor.Sum)

# %% [markdown]
# `forward` keeps the group of ranks for `backward`, which gets the gradient of the result and returns one entry for each argument of `forward`. The group has no gradient, hence the `None`.
# `Copy` returns the very tensor that it was given. PyTorch then hands out a view of it, whose history is `Copy`:

# %%
given = torch.ones(2, requires_grad=True)
entered = scratch.tensor.Copy.apply(given, None)
assert entered is not given and type(entered.grad_fn).__name__ == "CopyBackward"

# %% [markdown]
# The same pair as modules, with biases. `region.cut` takes this rank's share of a weight:

# %%
show_source(scratch.tensor.ColumnParallelLinear, scratch.tensor.RowParallelLinear)

# %% [markdown]
# ## 10.3 Attention: cut by heads
#
# LLaMA-2 70B has 64 **heads** (注意力头) of queries. Each head computes attention on 128 of their 8192 features, and needs
# nothing from the others until the output matrix adds them up. So eight GPUs take 8 heads each, and attention is a pair like
# that of section 10.2:
#
# - queries, keys and values are cut by columns, a whole head at a time;
# - the output matrix is cut by rows.
#
# ### A fused matrix is three matrices
#
# Many models keep queries, keys and values in one matrix, for speed: the rows of all queries, then of all keys, then
# of all values. Cut it in one piece, and rank 0 of 2 gets all queries, half of the keys and no values. Each of the three
# must be cut on its own. With 4 heads of width 2 the matrix has 24 rows:

# %% tags=["drawing"]
rows_of = [tensor_parallel.qkv_rows(4, 4, 2, tp=2, rank=rank) for rank in range(2)]
in_half = [list(range(12)), list(range(12, 24))]


def strip(of_ranks):
    """The 8 rows of each part, in the colour of the rank that has them."""
    owner = {row: f"rank {rank}" for rank, rows in enumerate(of_ranks) for row in rows}
    return {
        f"8 rows: {part}": figures.Cell(
            "", {row: owner[start + row] for row in range(8)}, 8
        )
        for part, start in {"queries": 0, "keys": 8, "values": 16}.items()
    }


strips = {"part by part": strip(rows_of), "in one piece": strip(in_half)}
figures.cells(strips, lined=True)

# %% [markdown]
# Try both, with one process that plays two ranks. Each adds its two heads' part to the output. The sum should be the whole attention.

# %%
torch.manual_seed(0)
attention = scratch.gpt.Attention(hidden=64, heads=4)
tokens = torch.randn(1, 10, 64)


def contribution(rows, columns):
    """What a rank adds to the sum: its heads, and its columns of `out.weight`."""
    qkv = linear(tokens, attention.qkv.weight[rows], attention.qkv.bias[rows])
    q, k, v = qkv.unflatten(-1, (3, 2, 16)).permute(2, 0, 3, 1, 4)  # 2 heads of 16
    mixed = attention.mix(q, k, v).transpose(1, 2).flatten(2)  # (1, 10, 32)
    return linear(mixed, attention.out.weight[:, columns])


# %%
by_heads = [tensor_parallel.qkv_rows(4, 4, 16, tp=2, rank=rank) for rank in range(2)]
cuts = {"part by part": by_heads, "in one piece": torch.arange(3 * 64).chunk(2)}
gaps = {}
with torch.no_grad():
    for how, rows in cuts.items():
        total = sum(map(contribution, rows, torch.arange(64).chunk(2)))
        total += attention.out.bias
        gaps[how] = measure.gradients.relative_difference(total, attention(tokens))
        print(f"{how}: relative difference {gaps[how]:.0e}")
assert gaps["part by part"] < 1e-5 and gaps["in one piece"] > 0.5

# %% [markdown]
# All shapes fit both ways, so nothing warns you.
#
# ### How many GPUs can share the heads?
#
# LLaMA-2 70B has grouped-query attention: its 64 query heads
# share 8 heads of keys and values. Up to $t = 8$ each of these is on one GPU. At $t = 16$ there are not enough:

# %% tags=["drawing"]
llama = models.MODELS["llama2-70b"]


def heads_of(rank, tp):
    """Query heads and key-value heads of one GPU: each head is one row here."""
    rows = tensor_parallel.qkv_rows(64, 8, 1, tp=tp, rank=rank)
    keys = [row - 64 for row in rows if 64 <= row < 72]
    return [row for row in rows if row < 64], keys


assert (llama.heads, llama.kv_heads) == (64, 8)
assert round(6e3 * llama.layer_parameters(0).total * 4096 / 989.4e12) == 21  # ms
assert [tensor_parallel.kv_copies(llama.kv_heads, tp) for tp in (4, 8, 16)] == [1, 1, 2]
cuts = {f"t = {tp}": [heads_of(rank, tp) for rank in range(tp)] for tp in (4, 8, 16)}
figures.heads_by_gpu(cuts)

# %% [markdown]
# At $t = 16$ two GPUs hold a *copy* of the same key-value head, each for its 4 query heads. The head is computed and stored twice, and its
# gradients must be summed over the two. (Note 004 divides the layer by 64 heads without any condition.) And $t = 12$?

# %%
try:
    Layout(tp=12).check(llama)
except ValueError as problem:
    print(problem)

# %% [markdown]
# **Remember**
# - Attention is cut by heads: q, k, v each by columns, the output by rows. One all-reduce, as in an MLP.
# - A fused matrix is three matrices. Cut each.
# - $t$ must divide the heads and the width of the MLP. Above the number of key-value heads these are copied.

# %% [markdown]
# ### Deeper: attention in our layers
#
# `parts=3` cuts each of the three. `region.pair` holds the four pieces from above: f, g, and the layers `column` and `row`.

# %%
show_source(scratch.tensor.ParallelAttention)

# %% [markdown]
# ## The answer
#
# Each GPU takes whole columns of a pair's first matrix, or whole heads, and the matching rows of the second. It computes an eighth of the layer, and one all-reduce per pair
# and pass, g forward and f backward, makes results and gradients those of one process. Are eight GPUs then eight times as fast? The next sitting asks.

# %% tags=["exercise"]
import math

from course_lib import check, hint, solution
from course_lib.theory.inputs import Cluster, hardware, models
from course_lib.theory.network import collectives, tensor_parallel
from course_lib.theory.network.traffic import group_link
from course_lib.chapters.ch10_tensor_parallelism import overlapped_product
from course_lib.theory.network.tensor_parallel import CutLayer

# %% [markdown] tags=["exercise"]
# ### 10.2 Debug: 64 heads, 64 GPUs
#
# (published mistake, note 004) Note 004 cuts a layer by its heads, without a condition. You have a server of 16 GPUs, all joined by NVLink. What is the largest $t \le 16$ that can cut
# each of these models? Heads, key-value heads and the MLP's width (`ffn`) are in `models.MODELS`. And at the $t$ that you give for LLaMA-2 70B, how many GPUs hold the same key-value head?

# %% [raw] tags=["hints"]
# importance 3, difficulty 2
# Three things are cut: query heads, key-value heads and the MLP's width.
# t must divide the heads and ffn. Key-value heads may be copied: then they divide t.

# %% tags=["exercise"]
largest = {
    "gpt2-1.5b": ...,
    "llama1-33b": ...,
    "llama2-13b": ...,
    "llama2-70b": ...,
}
same_head = ...
### BEGIN SOLUTION
for name in largest:
    shape = models.MODELS[name]
    fits = [
        t
        for t in range(1, 17)
        if shape.heads % t == 0
        and shape.ffn % t == 0
        and (shape.kv_heads % t == 0 or t % shape.kv_heads == 0)
    ]
    largest[name] = max(fits)
same_head = largest["llama2-70b"] // models.MODELS["llama2-70b"].kv_heads
### END SOLUTION
check("10.2", [largest, same_head])

# %% [markdown] tags=["exercise"]
# ### 10.5 Debug: read the numbers
#
# Four people have built the pair of section 10.2, each with a different mistake. They print $Z$ and the gradient of $X$ on both ranks. The bias behind $B$ is $(1, 1)$, so $Z$
# should be $(20, 7)$, and the gradient $(-5, 15)$. Find each mistake: `"no f"`, `"no g"`, `"g sums in the backward pass as well"` or `"bias before the sum"`.

# %% [raw] tags=["hints"]
# importance 3, difficulty 2
# Do the two ranks agree on Z? Then g is there, forward. Do they agree on the gradient?
# Compare with what is right: which number is added twice, which one is doubled?

# %% tags=["exercise"]
mistakes = {
    "Z (20, 7) and (20, 7), gradient (1, 3) and (-6, 12)": ...,
    "Z (21, 8) and (21, 8), gradient (-5, 15) and (-5, 15)": ...,
    "Z (8, 1) and (13, 7), gradient (-5, 15) and (-5, 15)": ...,
    "Z (20, 7) and (20, 7), gradient (-10, 30) and (-10, 30)": ...,
}
### BEGIN SOLUTION
# Without f each rank keeps its own gradient. The bias counts once for each rank.
# Without g each rank has its own part of Z. A gradient that both know, summed, doubles.
names = ["no f", "bias before the sum", "no g", "g sums in the backward pass as well"]
mistakes = dict(zip(mistakes, names, strict=True))
### END SOLUTION
check("10.5", mistakes)

# %% [markdown] tags=["exercise"]
# ### 10.6 Implement: cut a fused matrix by heads
#
# The rows of the matrix are all queries (`heads` × `width`), then all keys
# (`kv_heads` × `width`), then all values. Return the list of rows that `rank` of `tp` needs, in this order. With `tp` above `kv_heads`, neighbouring ranks hold a
# copy of the same key-value head. If `tp` does not divide `heads`: `ValueError`.

# %% [raw] tags=["hints"]
# importance 2, difficulty 3
# Three blocks, each with its own start and its own length.
# With more ranks than key-value heads: rank // (tp // kv_heads) is the head.


# %% tags=["exercise"]
def my_rows(heads: int, kv_heads: int, width: int, tp: int, rank: int) -> list[int]:
    """Rows of the fused (q, k, v) matrix for one rank."""
    ### BEGIN SOLUTION
    if heads % tp:
        raise ValueError(f"heads {heads} is not divisible by tp {tp}")
    queries = heads // tp * width
    shared = max(1, kv_heads // tp) * width
    copies = max(1, tp // kv_heads)
    keys = heads * width + rank // copies * shared
    values = keys + kv_heads * width
    starts = [(rank * queries, queries), (keys, shared), (values, shared)]
    return [row for start, count in starts for row in range(start, start + count)]
    ### END SOLUTION


check("10.6", my_rows)

# %% [markdown] tags=["exercise"]
# ### 10.11 Build: f, g and the two cut layers
#
# Write tensor parallelism yourself: f and g, and the two layers between them. `wire.all_reduce(tensor, group)` returns the sum over the ranks of the group and leaves its
# argument as it is. A layer gets the whole `nn.Linear`, the same on every rank, and a region. The region has
#
# - `region.cut(whole, dim, parts)`: this rank's share of a weight along `dim`, as a parameter. With `parts=3` it cuts each of three equal parts, as q, k and v need it.
# - `region.enter(x)`, which applies your f, and `region.leave(x)`, which applies your g. Let the layers call these two: in exercise 10.12's region they are others.
#
# Each of f and g makes one all-reduce, in one of its two passes. What they return has the type of what they get, and what they get stays as it is. A layer keeps its share of the weights and no more.
#
# The check runs all four on three real ranks: f and g, in fp32 and bf16, also in smaller groups, several at a time; the cut by columns; the cut by rows; and last a whole layer of a transformer, whose messages it counts. What passes is kept as
# `mine/tensor.py`. `course demo tp --parts mine` trains on it, beside PyTorch's version, and chapter 13 puts it on a mesh.

# %% [raw] tags=["hints"]
# importance 5, difficulty 3
# What is copied forward is summed backward, and what is summed forward is copied backward. Which of the two functions sends nothing in its forward pass?
# `backward` returns one entry for each argument of `forward`; None for the group. `wire.all_reduce` returns a new tensor and leaves its argument as it is.
# nn.Linear keeps a row for each output. So a cut by columns of the matrix cuts `weight` along dimension 0, and the bias with it; a cut by rows cuts `weight` along dimension 1.
# Column: linear(region.enter(x), weight, bias). Row: when may the bias be added, if every rank adds it and `region.leave` sums over the ranks?

# %% tags=["exercise"]
from typing import Any

from torch import Tensor, nn
from torch.autograd import Function
from torch.distributed import ProcessGroup
from torch.nn.functional import linear

from course_lib.scratch import wire
from course_lib.scratch.tensor import TensorParallel

### BEGIN GIVEN


class Copy(Function):
    """f, before the columns: every rank takes the whole input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup | None) -> Tensor:
        """The same numbers; `ctx.group` keeps the group for the backward pass."""
        ...

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """The gradient of x, and None for the group."""
        ...


class Sum(Function):
    """g, after the rows: the results of all ranks add up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup | None) -> Tensor:
        """The sum over the ranks of the group."""
        ...

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """The gradient of x, and None for the group."""
        ...


class ColumnParallelLinear(nn.Module):
    """Cut by outputs: (…, in) -> (…, out / ranks)."""

    def __init__(
        self, whole: nn.Linear, region: TensorParallel, parts: int = 1
    ) -> None:
        """This rank's `weight` (out / ranks, in) and `bias` (out / ranks,), by `region.cut`."""
        ...

    def forward(self, x: Tensor) -> Tensor:
        """This rank's outputs, from an x that every rank has."""
        ...


class RowParallelLinear(nn.Module):
    """Cut by inputs: (…, in / ranks) -> (…, out)."""

    def __init__(self, whole: nn.Linear, region: TensorParallel) -> None:
        """This rank's `weight` (out, in / ranks), by `region.cut`, and the whole `bias` (out,)."""
        ...

    def forward(self, x: Tensor) -> Tensor:
        """All outputs, on every rank, from this rank's part of the inputs."""
        ...


### END GIVEN
### BEGIN SOLUTION
from course_lib.scratch.tensor import (
    ColumnParallelLinear,
    Copy,
    RowParallelLinear,
    Sum,
)

### END SOLUTION

check("10.11", [Copy, Sum, ColumnParallelLinear, RowParallelLinear])
