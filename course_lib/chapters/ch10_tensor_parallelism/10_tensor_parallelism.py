# %% [markdown]
# # 10 Tensor parallelism
#
# LLaMA-2 70B runs on one server of eight H100: each matrix is cut into eight parts, one for each GPU. You get a second,
# equal server. If you cut each matrix into sixteen, does a layer take half the time?
#
# Each kind of parallelism splits something different. Data parallelism splits the samples, pipeline parallelism the list of layers, expert parallelism the experts,
# and context parallelism the sequence. **Tensor parallelism** splits every matrix multiplication: it goes inside a layer and makes
# it smaller and faster. The price is messages in the middle of every layer. By the end of this chapter you can
#
# - cut a matrix by columns or by rows, and say which order of the two needs one sum only,
# - write the two small functions, f and g, that make a cut model train like a whole one,
# - cut attention, the embedding and the loss, and say what stays whole,
# - count the messages of a model before it runs, and say how many GPUs can share a matrix on which wire,
# - say how much of these messages can hide behind the products, and why never all of it.
#
# Time: about three hours, half of them for the exercises. You need chapters 4 to 6.

# %%
from itertools import pairwise

import torch
from torch import nn
from torch.nn.functional import cross_entropy, linear

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
from course_lib.chapters.ch10_tensor_parallelism import figures, overlapped_product
from course_lib.theory import (
    Cluster,
    CutLayer,
    Job,
    Layout,
    Recipe,
    TransformerShape,
    activations,
    collectives,
    group_link,
    hardware,
    models,
    nccl_ways,
    tensor_parallel,
    units,
)
from course_lib.theory.network.step_traffic import step_traffic

launch.warm_up()
torch.set_num_threads(1)

# %% [markdown]
# **Predict.** Eight NVLink GPUs become sixteen in two servers, joined by one InfiniBand port of 400 Gb/s for each GPU. By what
# factor does a layer get faster? (2 would be perfect.) Section 10.7 computes it for a GPT layer as wide as that of the 70B model.

# %%
faster = predict("10.faster", "Time with 8 / time with 16?", yours=None)

# %% [markdown]
# ## 10.1 One product, two cuts
#
# One token with two features, $X = (1,\ 2)$, meets a matrix of 2 × 2 weights:
#
# $$X A = (1,\ 2) \begin{pmatrix} 1 & -2 \\ 3 & 4 \end{pmatrix}
# = (1 \cdot 1 + 2 \cdot 3,\ \ 1 \cdot (-2) + 2 \cdot 4) = (7,\ 6).$$
#
# Two GPUs are to share the work. A matrix can be cut in two directions.
#
# **By columns** (列并行, column-parallel). GPU 0 holds the column $(1, 3)$, GPU 1 the column $(-2, 4)$. Each needs all of $X$, and has a finished *part* of the result:

# %%
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
# **By rows** (行并行, row-parallel). GPU 0 holds the row $(1, -2)$, GPU 1 the row $(3, 4)$. Each needs only one feature of $X$, and has an unfinished result of *full size*:

# %%
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
# In both cases a GPU holds half of the weights and does half of the multiplications. What differs is which side is cut:
#
# | cut | input of a GPU | result of a GPU | to finish |
# |---|---|---|---|
# | columns | whole | a part | all-gather |
# | rows | a part | whole, to be summed | all-reduce |
#
# A warning about names. `nn.Linear` stores its weight transposed, with one *row* for each output. A cut by columns of $A$
# is a cut of `weight` along dimension 0.
#
# **Remember**
# - Columns: whole input, part of the output. Rows: part of the input, a sum at the end.
# - Weights and work are divided by $t$, the number of GPUs, in both cases.

# %% [markdown]
# ## 10.2 Column, then row
#
# An MLP has two matrices with a nonlinearity between them: $Z = \text{ReLU}(XA)\,B$. (Ours uses GELU; ReLU, which replaces
# negative numbers by zero, is easier to do in your head.) The output of a cut by columns is a part. A cut by rows wants a part. So put
# the two in a row:
#
# $$B = \begin{pmatrix} 1 & 0 \\ 2 & 1 \end{pmatrix}, \qquad
# Z = (7,\ 6)\, B = (7 \cdot 1 + 6 \cdot 2,\ \ 6 \cdot 1) = (19,\ 6).$$

# %%
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
# Between the two matrices nobody sends anything; at the end there is one sum.
#
# Could row, then column do the same? After the cut by rows GPU 0 has $(1, -2)$ and GPU 1 has $(6, 8)$. ReLU of these gives $(1, 0)$
# and $(6, 8)$, and their sum is $(7, 8)$ instead of $(7, 6)$. A nonlinearity needs the finished sum, so there must be a message in
# the middle, and the middle of an MLP is four times as wide as its ends.
#
# These are the four orders, for 4096 tokens with hidden size $h = 8192$ in bf16 on eight GPUs:

# %%
sent = collectives.sent_bytes
ends_bytes = 2 * 4096 * 8192
orders = {
    "column, row": ("nothing", "all-reduce"),
    "column, column": ("all-gather", "all-gather"),
    "row, row": ("reduce-scatter", "all-reduce"),
    "row, column": ("all-reduce", "all-gather"),
}
by_order, told = {}, {}
for order, (middle, end) in orders.items():
    wide = 0 if middle == "nothing" else sent(middle, 4 * ends_bytes, 8)
    by_order[order] = {"in the middle": wide, "at the end": sent(end, ends_bytes, 8)}
    told[order] = f"{middle}, {end}"
looks = {"in the middle": style.MESSAGES, "at the end": style.PALE}
title = "What each GPU sends for an MLP, forward"
figures.stacked_bars(by_order, title, units.format_bytes, told, colours=looks)

# %% [markdown]
# Column then row is the idea of Megatron-LM (Shoeybi et al. 2019, arXiv:1909.08053, section 3).

# %%
B = torch.tensor([[1.0, 0.0], [2.0, 1.0]])
assert (torch.relu(X @ A) @ B).tolist() == [[19, 6]]
too_early = sum(torch.relu(part) for part in rows)
assert too_early.tolist() == [[7, 8]]

# %% [markdown]
# ### The way back: f and g
#
# Now the backward pass. Let the loss be the sum of $Z$'s two numbers, so its gradient is $(1, 1)$. Both GPUs know it, since both
# know $Z$. Each can go back through its own row of $B$, the ReLU, and its own column of $A$. Read from right to left; ∂ is the gradient:

# %%
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
# Each knows only how the loss depends on $X$ *through its own half*. The true gradient is the sum, $(-5, 15)$. What was copied on the
# way in must be summed on the way back. What was summed on the way out is copied on the way back. Megatron-LM calls the two ends
# **f** and **g**:
#
# | | forward | backward |
# |---|---|---|
# | f, before the columns | copy: nothing to send | all-reduce |
# | g, after the rows | all-reduce | copy: nothing to send |
#
# **Question.** How wide is what the pair sends, $h$ or $4h$? And with four GPUs in place of two, does each send more or less? Answer, then walk through the MLP of LLaMA-2 70B with one
# sequence of 4096 tokens. Each row is a rank. What a rank does not have is left blank. What still has to be summed is hatched.

# %%
from course_lib.chapters.ch10_tensor_parallelism import steppers

steppers.cut_pair()

# %% [markdown]
# Two steps send: g on the way there, f on the way back, each $h$ wide. Never in the middle, where it is $4h$ wide. Set `ranks` to 4: weights and work of a rank halve, and what it sends
# *grows*, from 67 to 101 MB for each sum. (`attention` and `sequence parallel` belong to the next two sections; come back to them there.)
#
# **Remember.** Whatever is copied one way is summed on the way back. Nothing crosses between the two matrices.
#
# In PyTorch each is an autograd `Function` of a few lines. (Exercise 10.11 builds both, and the layers further below. You may want to try it first.)

# %%
show_source(scratch.tensor.Copy, scratch.tensor.Sum)

# %% [markdown]
# `forward` keeps the group of ranks for the way back. `backward` gets the gradient of the result and returns one entry for each argument of `forward`;
# the group has no gradient, hence the `None`. `Copy` returns the very tensor that it was given. PyTorch then hands out a view of it, whose history
# is `Copy`:

# %%
given = torch.ones(2, requires_grad=True)
entered = scratch.tensor.Copy.apply(given, None)
assert entered is not given and type(entered.grad_fn).__name__ == "CopyBackward"

# %% [markdown]
# A region knows its ranks. `enter` applies f, `leave` applies g, and `cut` takes this rank's share of a weight. Now the example
# on two real processes, with every message written down.
#
# **Predict.** The numbers are fp32. How many bytes does a rank hand to collectives, forward and backward together?

# %%
pair_bytes = predict("10.pair_bytes", "Bytes of the pair?", yours=None, unit="B")


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


ours = launch.run(pair, True, ranks=2)
for rank, (z, gradient, _) in enumerate(ours):
    print(f"rank {rank}: Z {z}, gradient of X {gradient}")

# %%
calls, handed = ours[0][2]["all-reduce"]
expect(2 * 2 * 4, handed, label="to collectives", unit="B", yours=pair_bytes)
assert calls == 2
assert ours[0] == ours[1]
assert ours[0][:2] == ([[19.0, 6.0]], [[-5.0, 15.0]])

# %% [markdown]
# Two all-reduces of two fp32 numbers, 16 bytes in all. Now leave f out:

# %%
broken = launch.run(pair, False, ranks=2)
print([result for result, _, _ in broken], "the results are right")
print([gradient for _, gradient, _ in broken], "the gradients are not")
assert [gradient for _, gradient, _ in broken] == [[[1.0, 3.0]], [[-6.0, 12.0]]]

# %% [markdown]
# This is the nastiest mistake in tensor parallelism. Nothing crashes, the results are right, and everything *before* the pair gets
# a wrong gradient, a different one on each rank. The copies of whatever both ranks hold whole, such as norms, then drift apart, while the loss
# keeps falling for some time. Three things show the mistake: the gradients of such a copy, compared between the ranks; the number of all-reduces, one too few for each pair; and a
# comparison with one process, which every demo of this course makes.

# %%
assert broken[0][1] != broken[1][1]  # the ranks' gradients
assert broken[0][2]["all-reduce"][0] == 1  # instead of 2

# %% [markdown]
# ### The layers
#
# The same as modules, with biases:

# %%
show_source(scratch.tensor.ColumnParallelLinear, scratch.tensor.RowParallelLinear)

# %% [markdown]
# - The bias of a column cut belongs to the outputs, so it is cut with them.
# - The bias of a row cut belongs to the finished sum. Added before the sum it would count $t$ times.
#
# ### The library's version
#
# PyTorch does the same by a plan: which module is cut in which way. `parallelize_module` replaces each weight by a `DTensor`, a tensor that
# knows how it is cut over a mesh of ranks (here two in a row), and puts f and g around the modules.


# %%
import torch.distributed as dist


def by_library():
    """The same pair, cut by torch."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import parallel

    mlp = nn.Sequential(
        nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 2, bias=False)
    )
    mlp[0].weight.data, mlp[2].weight.data = A.T.clone(), B.T.clone()
    plan = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    parallel.parallelize_module(mlp, mesh, plan)
    x = X.clone().requires_grad_()
    with measure.wire.log_wire() as log:
        z = mlp(x)
        z.sum().backward()
    return z.tolist(), x.grad.tolist(), log.sent()


library = launch.run(by_library, ranks=2)
assert library == ours

# %% [markdown]
# The same numbers, the same two messages, the same 16 bytes.
#
# **Remember**
# - Column, then row: no message between the matrices, one all-reduce at the end.
# - f: copy forward, sum backward. g: sum forward, copy backward.
# - Without f the loss looks healthy and the gradients are wrong: compare them between the ranks, or with one process.

# %% [markdown]
# ## 10.3 Attention: cut by heads
#
# LLaMA-2 70B has 64 **heads** (注意力头) of queries. Each head computes attention on its own 128 of the 8192 features, and needs
# nothing from the others until the output matrix adds them up. So eight GPUs take 8 heads each, and attention is a pair like
# that of section 10.2:
#
# - queries, keys and values are cut by columns, a whole head at a time;
# - the output matrix is cut by rows.
#
# ### A fused matrix is three matrices
#
# One detail breaks programs. Many models keep queries, keys and values in one matrix, for speed: the rows of all queries, then of all keys, then
# of all values. Cut that in one piece, and rank 0 of 2 gets all queries, half of the keys and no values. Each of the three
# must be cut on its own. With 4 heads of width 2 the matrix has 24 rows:

# %%
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
# Try both, with one process that plays two ranks. Each rank computes its two heads and multiplies them with its columns of the output
# matrix. The sum of the two should be the whole attention.

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
ways = {"part by part": by_heads, "in one piece": torch.arange(3 * 64).chunk(2)}
gaps = {}
with torch.no_grad():
    for way, rows in ways.items():
        total = sum(map(contribution, rows, torch.arange(64).chunk(2)))
        total += attention.out.bias
        gaps[way] = measure.gradients.relative_difference(total, attention(tokens))
        print(f"{way}: relative difference {gaps[way]:.0e}")
assert gaps["part by part"] < 1e-5 and gaps["in one piece"] > 0.5

# %% [markdown]
# All shapes fit both ways, so nothing warns you.
#
# In our layers `parts=3` cuts each of the three. (`region.pair` holds the four pieces from above: f, g, and the layers `column` and `row`.)

# %%
show_source(scratch.tensor.ParallelAttention)

# %% [markdown]
# ### How many GPUs can share the heads?
#
# Note 004 divides the matrices of LLaMA-2 70B by its 64 heads, as if 64 GPUs could share a layer. But 70B has grouped-query attention: 64 query heads
# share 8 heads of keys and values. Up to $t = 8$ each GPU has its own. At $t = 16$ there are not enough:


# %%
def heads_of(rank, tp):
    """Query heads and key-value heads of one GPU: each head is one row here."""
    rows = tensor_parallel.qkv_rows(64, 8, 1, tp=tp, rank=rank)
    keys = [row - 64 for row in rows if 64 <= row < 72]
    return [row for row in rows if row < 64], keys


cuts = {f"t = {tp}": [heads_of(rank, tp) for rank in range(tp)] for tp in (4, 8, 16)}
figures.heads_by_gpu(cuts)

# %% [markdown]
# Two GPUs hold a *copy* of the same key-value head, each for its 4 query heads. The copies are computed twice, stored twice, and their
# gradients must be summed over the two. So with $k$ key-value heads: $t \le k$, or each key-value head is held by $t/k$ GPUs.

# %%
llama = models.MODELS["llama2-70b"]
assert (llama.heads, llama.kv_heads) == (64, 8)
assert [tensor_parallel.kv_copies(llama.kv_heads, tp) for tp in (4, 8, 16)] == [1, 1, 2]
try:
    Layout(tp=12).check(llama)
except ValueError as problem:
    print(problem)

# %% [markdown]
# **Remember**
# - Attention is cut by heads: q, k, v each by columns, the output by rows. One all-reduce, as in an MLP.
# - A fused matrix is three matrices. Cut each.
# - $t$ must divide the heads, and the width of the MLP. Above the number of key-value heads these are copied.

# %% [markdown]
# ## 10.4 What stays whole, and sequence parallelism
#
# Between the pairs lie the norms, the residual additions and dropout. They look at one token and *all* its features, and every rank has
# all tokens there. So each rank does all of that work, and keeps all of its activations. (Dropout must even draw the same numbers
# on every rank, or the copies drift apart. Inside the pairs it must draw different ones, so Megatron-LM keeps
# [two random states](https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/tensor_parallel/random.py).)
#
# Of chapter 4's 34 bytes × sbh, 10 are not cut: inputs of the two norms (4), inputs of the first matrices (4), dropout masks (2).
#
# $$s\,b\,h\left(10 + \frac{24}{t} + 5\,\frac{a\,s}{h\,t}\right)
# \quad\text{instead of}\quad
# s\,b\,h\left(34 + 5\,\frac{a\,s}{h}\right)$$
#
# ($s$ tokens in a sequence, $b$ sequences in the micro-batch; Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.1). For GPT-3,
# with $5as/h = 80$ and $t = 8$: $10 + 24/8 + 80/8 = 23$ instead of 114.
#
# **Sequence parallelism** (序列并行) cuts the rest as well: between the pairs each rank has only its $s/t$ tokens, with all features. Then
# everything is divided by $t$: $114/8 = 14.25$.

# %%
gpt3 = models.MODELS["gpt3-175b"]
paper = Recipe(attention="standard", dropout=True)
layouts = {"one GPU": Layout(), "tp 8": Layout(tp=8)}
layouts["by tokens as well"] = Layout(tp=8, sequence_parallel=True)
kept_bytes = {}
for name, layout in layouts.items():
    terms = activations.activation_terms(Job(gpt3, paper, layout, sequence=2048))
    units_of_sbh = terms.total_bytes / (2048 * 12288)
    between = 10 / 8 if layout.sequence_parallel else 10
    kept_bytes[name] = {
        "between the pairs": between,
        "inside the pairs": units_of_sbh - between,
    }
assert units_of_sbh == 114 / 8
looks = {"between the pairs": style.PALE, "inside the pairs": style.ACTIVATIONS}
figures.stacked_bars(kept_bytes, "Bytes of a layer", "{:g} × sbh".format, colours=looks)

# %% [markdown]
# What must be sent? Before a pair, the matrices need all tokens: an **all-gather** along the sequence. After it, each rank wants the sum,
# but only for its own tokens: a **reduce-scatter**. These take the places of f and g:
#
# | | forward | backward |
# |---|---|---|
# | instead of f | all-gather | reduce-scatter |
# | instead of g | reduce-scatter | all-gather |
#
# (You build both in exercise 10.12.)

# %%
show_source(scratch.tensor.Gather, scratch.tensor.SumScatter)

# %% [markdown]
# Collectives join and cut the first dimension of a tensor. `_along_sequence` moves the sequence there and back.

# %% [markdown]
# **Predict.** Twice as many collectives. How many bytes does a rank send now, compared with the all-reduces before?

# %%
ratio = predict("10.sp", "Bytes with / without sequence parallel?", yours=None)

# %%
halves_sent = sent("all-gather", 1e6, 8) + sent("reduce-scatter", 1e6, 8)
expect(
    1,
    halves_sent / sent("all-reduce", 1e6, 8),
    label="bytes, with / without",
    yours=ratio,
)

# %% [markdown]
# In the stepper there are four messages instead of two, each half as large. "Sent by a rank" ends where it ended before:

# %%
from course_lib.chapters.ch10_tensor_parallelism import steppers

steppers.cut_pair(sequence_parallel=True)

# %% [markdown]
# **Explain.** A ring all-reduce *is* a reduce-scatter and an all-gather (chapter 6). Before, both stood at the end of a pair. Now one stands there and
# the other before the next pair. Memory is saved for the same bytes. Two small prices remain:
#
# - The gradients of norms, and of biases after the sum, come from each rank's own tokens. They have to be summed over the ranks before the
#   update; `sum_copied_gradients` does it in one all-reduce. Forget it, and the copies drift apart.
# - $t$ must divide the sequence.
#
# There is one catch in the 14.25. The gathered input of a pair is whole on every rank, and the first matrix keeps it for the backward pass: the 4 bytes
# × sbh of matrix inputs are not cut after all. Megatron-LM keeps only its own tokens and gathers them once more in the backward pass, hidden
# behind computation; then 14.25 holds. Our short version keeps the whole.
#
# **Predict.** One block of the small GPT, in fp32 and without dropout, keeps 64 bytes × sbh (chapter 4). What is left on each of 2 ranks with tensor
# parallelism? What with our sequence parallelism?

# %%
plain_units = predict("10.plain", "Units with tp 2?", yours=None)
cut_units = predict("10.cut", "And by tokens?", yours=None)


# %%
def kept(kind):
    """Bytes × sbh that a cut block keeps on this rank."""
    region = kind()
    block = scratch.tensor.cut_block(scratch.gpt.Block(64, 4), region)
    own = len(region.own_tokens(torch.arange(128)))
    x = torch.randn(2, own, 64)
    size = measure.gradients.saved_bytes(lambda: block(x).sum(), block)
    return size / (2 * 128 * 64)


whole = launch.run(kept, scratch.tensor.TensorParallel, ranks=2)
by_tokens = launch.run(kept, scratch.tensor.SequenceParallel, ranks=2)
expect(8 + 8 + 48 / 2, whole[0], within=0.01, label="kept, tp 2", yours=plain_units)
expect(
    8 / 2 + 8 + 48 / 2,
    by_tokens[0],
    within=0.01,
    label="kept, by tokens too",
    yours=cut_units,
)

# %% [markdown]
# **Explain.** In fp32 the two norms' inputs are 8 of the 64, the two matrix inputs are 8 more, and 48 lie inside the pairs:

# %%
kinds = "inputs of norms", "inputs of matrices", "inside the pairs"
kept_by = {
    "one GPU": (8, 8, 48),
    "tp 2": (8, 8, 48 / 2),
    "by tokens as well": (8 / 2, 8, 48 / 2),
    "gathered twice": (8 / 2, 8 / 2, 48 / 2),
}
rows = {name: dict(zip(kinds, parts, strict=True)) for name, parts in kept_by.items()}
told = {
    "tp 2": f"{whole[0]:.1f} measured",
    "by tokens as well": f"{by_tokens[0]:.1f} measured",
}
looks = dict(zip(kinds, (style.PALE, style.TEMPORARY, style.ACTIVATIONS), strict=True))
title = "A rank's bytes × sbh of one block"
figures.stacked_bars(rows, title, "{:g}".format, told, colours=looks)

# %% [markdown]
# What is measured beyond 40 and 36 is known from chapter 4, to the byte: a norm keeps two numbers for each token, and fused attention one for each token and head.

# %%
norms, heads = 2 * 2 * 4 / 64, 2 * 4 / 64  # numbers of 4 bytes, in units of sbh
assert whole[0] == 40 + norms + heads
assert by_tokens[0] == 36 + norms / 2 + heads

# %% [markdown]
# **Remember**
# - Plain tensor parallelism leaves 10 of 34 bytes × sbh uncut, and repeats norms and residuals on every rank.
# - Sequence parallelism cuts them by tokens. f and g become all-gather and reduce-scatter, with the same bytes.

# %% [markdown]
# ## 10.5 Embedding, head and loss: cut by words
#
# LLaMA-3 has a vocabulary of 128,256 words. For 8192 tokens the logits, one score for each word, are $8192 \cdot 128256$
# numbers: 4.2 GB in fp32. Nobody should gather those. **Vocabulary parallelism** (词表并行) cuts table and scores by words.
#
# **Embedding.** Each rank has the rows of its own words. For another rank's word, a *foreign* one, it gives zeros; one sum (g) completes all rows.

# %%
show_source(scratch.tensor.VocabParallelEmbedding)

# %% [markdown]
# The vocabulary is padded with rows that no word uses, until $t$ divides it. A foreign word looks up row 0 here, and `own` then
# multiplies the row by 0.
#
# **Head.** A matrix cut by columns: each rank computes the scores of its own words (f before it).
#
# **Loss.** For a token with scores $x_1 \ldots x_v$ and the right word $y$ the loss is
#
# $$\log \sum_j e^{x_j} - x_y .$$
#
# An example: four words, two ranks, and word 1 is right. (Words count from 0.)
#
# | | scores | largest | $\sum e^{x - 3}$ | $x_y - 3$ |
# |---|---|---|---|---|
# | rank 0 | 1, 2 | 2 | 0.1353 + 0.3679 | −1 |
# | rank 1 | 3, 0 | 3 | 1 + 0.0498 | not mine: 0 |
# | all-reduce | | maximum 3 | sum 1.5530 | sum −1 |
#
# $\log 1.5530 - (-1) = 0.4402 + 1 = 1.4402$. Three all-reduces of one number a token. The largest score is subtracted everywhere first, since
# $e^{x}$ overflows; it must be the largest of *all* ranks, or the sums would not fit together.

# %%
scores = torch.tensor([1.0, 2.0, 3.0, 0.0])
top = scores.max()
parts = [(part - top).exp().sum() for part in scores.chunk(2)]
loss = sum(parts).log() - (scores[1] - top)
print(f"{loss:.4f}")
assert torch.isclose(loss, cross_entropy(scores, torch.tensor(1)))

# %% [markdown]
# The same on real ranks, for all tokens at once. Exercise 10.13 builds it; you may want to do that before you read on.

# %%
show_source(scratch.tensor.vocab_parallel_cross_entropy)

# %% [markdown]
# - `top` needs no gradient: whatever is subtracted everywhere cancels.
# - `own` says whether the right word is one of this rank's. A foreign word looks up score 0 of the rank, and `where` replaces it by 0.
# - `region.sum` is g again: copy on the way back. So each rank gets the gradient of its own words, softmax minus one for the right word, without a message.
#
# How much is saved?

# %%
sizes = {"all scores": 8192 * 128_256 * 4, "three numbers a token": 3 * 8192 * 4}
title = "Tensors of one rank's collectives, for the loss of 8192 tokens"
figures.bars(sizes, units.format_bytes, title, tens=True)

# %%
assert sizes["all scores"] / sizes["three numbers a token"] == 128_256 / 3

# %% [markdown]
# **Remember**
# - Embedding and head are cut by words; a foreign word's row is zero, and a sum completes it.
# - The loss needs three all-reduces of one number a token: maximum, sum of exponentials, the right word's score.

# %% [markdown]
# ## 10.6 Count the messages
#
# A layer has two pairs, attention and MLP. Each has an all-reduce in the forward pass (g) and one in the backward pass (f):
# **four all-reduces** of $b \cdot s \cdot h$ numbers per layer and micro-batch. A ring all-reduce sends $2(t-1)/t$ of its size from each GPU
# (chapter 6). So a GPU sends
#
# $$4 \cdot \frac{2(t-1)}{t} \cdot b\,s\,h = 8\,b\,s\,h\,\frac{t-1}{t} \quad\text{numbers per layer}$$
#
# (Narayanan et al. 2021, arXiv:2104.04473, section 3.2). One sequence of 4096 tokens in LLaMA-2 70B, bf16, $t = 8$: $b s h$ is $4096 \cdot 8192$
# numbers, 67 MB.

# %%
per_layer = collectives.tensor_parallel_bytes(1, 4096, 8192, tp=8)
in_all = units.format_bytes(80 * per_layer)
print(f"a layer {units.format_bytes(per_layer)}, 80 layers {in_all}")
assert per_layer == 8 * 4096 * 8192 * 7 / 8 * 2

# %% [markdown]
# 470 MB for a layer, 37.6 GB for 80 layers: for *one sequence*, and all of it on the **critical path** (关键路径), the chain of steps of which each waits
# for the one before. Data parallelism sends gradients once an update, and can do it while the backward pass goes on. Here the next matrix waits for the sum.
#
# This is one layer on eight H100 in theory: a GPT layer with $h = 8192$ and $12h^2$ weights. (Its attention scores are left out; with a causal mask they would
# add 4 % to the work.) Attention is a third of the work and the MLP two thirds, and backward takes twice as long as forward:

# %%
h100 = hardware.accelerator("H100-SXM")
nvlink = group_link(Cluster(h100), "all-reduce", 8, 1)
eight = CutLayer(8192, 8, h100.peak_flop_per_s, nvlink)
passes = 1, 2, 4, 2  # ninths: attention, MLP; backward MLP, attention
now, rows = 0.0, {"computing": [], "all-reduce": []}
for ninths in passes:
    done = now + eight.compute_s * ninths / 9
    summed = done + eight.communication_s / 4
    rows["computing"].append(("computing", now, done))
    rows["all-reduce"].append(("all-reduce", done, summed))
    now = summed
title = f"forward attention, MLP; backward MLP, attention: {1000 * now:.2f} ms"
figures.lanes({title: rows}, "One layer, t = 8")

# %%
assert abs(now / eight.seconds - 1) < 1e-9
scores_flop, weights_flop = 4 * 4096 / 2 * 8192, 2 * 12 * 8192**2  # of a token, forward
assert round(scores_flop / weights_flop, 2) == 0.04

# %% [markdown]
# Now a model that you can run. The demo's tiny GPT: 2 layers, hidden size 64, 4 sequences of 32 tokens, two ranks.
#
# **Predict.** How many all-reduces in one training step? Count layers, embedding, head and loss. And how many bytes, in fp32?

# %%
count = predict("10.count", "All-reduces?", yours=None)
size = predict("10.bytes", "Bytes of their tensors?", yours=None)

# %%
from course_lib.demos.shared.text import VOCAB

tiny = TransformerShape(layers=2, hidden=64, heads=4, ffn=256, vocab=VOCAB, context=32)
fp32 = Recipe(parameters="fp32", gradients="fp32", master_copy=False)
one_server = Cluster(hardware.accelerator("H100-SXM"))
traffic = step_traffic(
    Job(tiny, fp32, Layout(tp=2, micro_batch=4), one_server, sequence=32)
)
traffic_bytes = {it.what: it.count * it.size_bytes for it in traffic.collectives}
told = {
    it.what: f"{it.count} × {it.operation}, {it.count * it.size_bytes:,} B"
    for it in traffic.collectives
}
figures.bars(traffic_bytes, told, "One training step of the tiny GPT")

# %%
assert sum(entry.count for entry in traffic.collectives) == 13

# %% [markdown]
# The embedding has a sum in the forward pass only: token numbers have no gradient. The head has one in the backward pass only: its
# result stays cut. Three belong to the loss. $8 + 1 + 1 + 3 = 13$. Section 10.9 measures it.
#
# With full recomputation (chapter 4) the forward pass of the layers runs twice, with its sums: six all-reduces a layer.
#
# **Remember**
# - Four all-reduces of $bsh$ a layer: $8bsh(t-1)/t$ numbers sent by each GPU. Six with full recomputation.
# - They lie on the critical path: the next matrix waits for them. Section 10.8 hides some of them.

# %% [markdown]
# ## 10.7 How many GPUs can share a matrix?
#
# ### The way of note 004
#
# For LLaMA-2 70B, note 004 asks how many FLOP a GPU does for each byte that it receives:
#
# $$\frac{2 \cdot 3 \cdot 8192}{64 \text{ heads} \cdot 2 \text{ bytes}} = 384 \text{ FLOP per byte.}$$
#
# The result is right, and so are the reasons for 2 and 3. The other two are not. Follow one number of the input to one of 64 GPUs that share a matrix with 8192
# columns:
#
# | factor | the note's reason | what happens to the number |
# |---|---|---|
# | 2 | "one multiplication and one addition" | the same: each column takes both |
# | 3 | "one forward, two backward" | the same: the gradients of input and weights take as many FLOP each as the forward pass |
# | 8192 / 64 | "less memory per parameter" | it meets a 64th of the columns |
# | / 2 | "memory to count" | it arrives once, as 2 bytes |
#
# Memory plays no part. The FLOP can be counted, on one GPU's columns of a small matrix:

# %%
columns = nn.Linear(512, 512 // 64, bias=False)  # one GPU's part of 512 × 512
received = torch.randn(100, 512, requires_grad=True)  # 100 tokens
forward = measure.times.matmul_flops(lambda: columns(received))
in_all = measure.times.matmul_flops(lambda: columns(received).sum().backward())
print(f"{forward:,} FLOP forward, {in_all:,} with both gradients")
assert in_all == 3 * forward == 3 * 2 * 512 // 64 * received.numel()
assert in_all / received.numel() / 2 == collectives.matrix_intensity(512, 64)

# %% [markdown]
# For $t$ GPUs it is $24576/t$: the fewer they are, the more columns each has for the number that arrived. To be worth it, that must
# be at least the ridge of chapter 5, now of a link: the FLOP that the chip does while one byte arrives.

# %%
ridge = collectives.ridge
assert collectives.matrix_intensity(8192, 64) == 384
print(f"4090, as in note 004: {ridge(330e12, 32e9):,.0f} FLOP per byte")
print(f"  t <= {collectives.matrix_tp_reach(8192, 330e12, 32e9):.2f}")

# %% [markdown]
# So "TP ≤ 2.4 on a 4090". For the H100 the note divides 989 TFLOP/s by NVLink's 900 GB/s, gets a ridge of 1100, and
# writes $24576/t \ge 1100$, so $t \le 11$.
#
# Do that division yourself: $24576 / 1100 = 22.3$. Where does 11 come from? NVLink's 900 GB/s are *both directions added*. One way it is 450, the
# ridge is 2198, and $24576/2198 = 11.2$. The printed result belongs to one way, the printed computation to both. This course always counts one
# way, as the note did for PCIe.

# %%
assert round(collectives.matrix_tp_reach(8192, 989e12, 900e9), 1) == 22.4
assert round(collectives.matrix_tp_reach(8192, 989e12, 450e9), 1) == 11.2

# %% [markdown]
# ### By the layer
#
# Tensor parallelism does not ship the input of one matrix; it sums the results of pairs. Take a whole layer of $12h^2$ weights, forward and
# backward. A GPU computes $6 \cdot 12h^2 \cdot bs / t$ FLOP (chapter 5). It sends $8bsh(t-1)/t$ numbers of 2 bytes. Divide:
#
# $$\frac{72\,b s h^2 / t}{16\,b s h (t-1)/t} = \frac{4.5\,h}{t-1} \quad\text{FLOP per byte.}$$
#
# Batch and sequence cancel. Set it equal to the ridge and solve for $t$:

# %%
cases = {
    "H100, NVLink 450 GB/s": (989.4e12, 450e9),
    "4090, PCIe 31.5 GB/s": (165.2e12, 31.5e9),
    "4090, the note's numbers": (330e12, 32e9),
}
for name, (peak, bandwidth) in cases.items():
    print(f"{name}: t <= {collectives.layer_tp_reach(8192, peak, bandwidth)}")

# %% [markdown]
# 17 on an H100, and 8 on a 4090 with its true peak (chapter 5: 165.2, not 330 TFLOP/s). Note 004 has 2.4. Both count forward and backward;
# what differs? Three things, one after the other:
#
# | | why | one 4090 reaches |
# |---|---|---|
# | note 004 | one matrix, whose input must arrive | 2.4 |
# | a layer instead of a matrix | 12 times the work, $12h^2$ weights, for 8 times the bytes: four all-reduces, which send each number nearly twice | 3.6 |
# | $t - 1$ instead of $t$ | in a ring nobody sends to itself | 4.6 |
# | the true peak | 165.2 is half of 330, so half the bytes suffice (and the slot has 31.5 GB/s, not 32) | 8 |
#
# (LLaMA-2 70B has $12.75h^2$ weights in a layer, with a narrower attention and a wider MLP, which gives 18 on the H100. This chapter goes on with the GPT layer.)

# %%
of_llama = llama.layer_parameters(0).total
assert round(of_llama / 8192**2, 2) == 12.75
rates = (989.4e12, 450e9)
assert collectives.layer_tp_reach(8192, *rates, layer_parameters=of_llama) == 18
notes_reach = collectives.matrix_tp_reach(8192, 330e12, 32e9)
a_layer = 12 / 8 * notes_reach
true_peak = 1 + a_layer * ridge(330e12, 32e9) / ridge(165.2e12, 31.5e9)
assert [round(t, 1) for t in (notes_reach, a_layer, 1 + a_layer)] == [2.4, 3.6, 4.6]
assert int(true_peak) == collectives.layer_tp_reach(8192, 165.2e12, 31.5e9) == 8

# %% [markdown]
# Do not read 17 as advice. It is ideal: matrices at their peak, links at their full rate, no latency. GeForce
# cards in a PC may have to pass data through the main memory, which is slower. And *at* the limit communication takes as
# long as computation: half of the time is lost. Move the sliders:
#
# 1. H100 and NVLink4: at $t = 16$, is communication shorter than computation, as the limit of 17 promises? The table has a term that the formula
#    lacks. Which one?
# 2. Take the InfiniBand port, or PCIe. How far does the layer's curve stay above the ridge? And with an H200, whose memory is faster?
# 3. Take GPT-2 (`gpt2-124m`). Why is a small model not worth cutting, even on NVLink?

# %%
from course_lib.chapters.ch10_tensor_parallelism import panels

panels.tp_reach()

# %%
sixteen = panels.tp_reach(tp=16).result
assert sixteen.layer_reach == 17
assert sixteen.communication_s > sixteen.compute_s  # latency
assert panels.tp_reach(link="InfiniBand NDR 400 Gb/s").result.layer_reach == 2
nvls = next(way for way in nccl_ways() if way.algorithm == "NVLS")
by_switch, by_ring = nvls.seconds(eight.summed_bytes), eight.communication_s / 4
assert (round(1000 * by_switch, 2), round(1000 * by_ring, 2)) == (0.27, 0.31)

# %% [markdown]
# **Answers.**
#
# 1. No: 1.53 ms of messages against 1.25 ms of arithmetic. The bytes alone would take 1.12 ms, but 4 × 30 steps of 3.4 µs add 0.41 ms, and the
#    formula knows no latency. (All this is a ring. Inside a server of H100s the switches can add instead, NVLS in chapter 6, in few steps: at $t = 8$ NCCL expects
#    0.27 ms for an all-reduce, our ring 0.31.)
# 2. On the InfiniBand port, as on PCIe, up to $t = 2$. An H200 changes nothing: it computes no faster and has the same NVLink, and memory plays
#    no part here.
# 3. The work shrinks with $h^2$, the bytes with $h$, and the latency not at all. For GPT-2 on eight GPUs, messages take 13 times as long as the
#    arithmetic.

# %% [markdown]
# ### The second server
#
# Back to the first question. In a group of sixteen over two servers the ring crosses from one server to the other. NCCL lets it cross through
# all eight network ports at once, $8 \times 50 = 400$ GB/s, nearly as fast as NVLink.


# %%
def layer(tp, servers=2, stride=1):
    """A GPT layer with hidden size 8192 on `tp` GPUs, every `stride`-th one."""
    cluster = Cluster(h100, nodes=servers)
    link = group_link(cluster, "all-reduce", tp, stride)
    return CutLayer(8192, tp, h100.peak_flop_per_s, link)


degrees = [2**power for power in range(7)]
groups = {t: layer(t, servers=max(1, t // 8)) for t in degrees}
one_gpu_ms = 1000 * groups[1].seconds
curves = {
    "with messages": [(t, 1000 * groups[t].seconds) for t in degrees],
    "perfect": [(t, one_gpu_ms / t) for t in degrees],
}
figures.lines(
    curves,
    "GPUs that share each matrix, t",
    "ms for a layer with h = 8192, forward and backward",
    "A layer, cut over more and more GPUs",
    doubling=(True, True),
    mark={"one server": 8},
)

# %%
eight, sixteen = groups[8], groups[16]
expect(
    1.26,
    eight.seconds / sixteen.seconds,
    within=0.01,
    label="faster with 16",
    yours=faster,
)

# %% [markdown]
# **Explain.** The arithmetic halves, 2.50 to 1.25 ms. The communication *grows*, 1.23 to 1.72 ms: each GPU sends $15/16$ instead of $7/8$ of the tensors, on a
# slightly slower wire, in 30 steps of latency instead of 14. Twice the GPUs for 1.26 times the speed: use the second server for data or pipeline
# parallelism. (A layer of LLaMA-2 70B has 6 % more arithmetic for the same messages, 2.66 ms on eight GPUs. Its factor is 1.28.)

# %%
its_work = [cut.compute_s * of_llama / (12 * 8192**2) for cut in (eight, sixteen)]
assert round(1000 * its_work[0], 2) == 2.66
its_s = [
    work + cut.communication_s
    for work, cut in zip(its_work, (eight, sixteen), strict=True)
]
assert round(its_s[0] / its_s[1], 2) == 1.28

# %% [markdown]
# Hugging Face measured as much with a model of 3B: from 8 to 16 GPUs each GPU lost 42.7 % of its tokens per second, so twice the GPUs were 1.15
# times as fast ([Ultra-Scale Playbook](https://huggingface.co/spaces/nanotron/ultrascale-playbook), "Throughput Scaling with TP").
#
# And if the eight GPUs that share a matrix do not even sit in the same server? Number the ranks wrongly, so that a group has one GPU in each
# of eight servers. Each GPU then has only its own port:

# %%
scattered = layer(8, servers=8, stride=8)
assert round(scattered.seconds / eight.seconds, 1) == 3.3

# %%
groups = {"8 GPUs, one server": eight, "16, two servers": sixteen}
groups["8, one per server"] = scattered
times = {
    name: {"computing": cut.compute_s, "all-reduces": cut.communication_s}
    for name, cut in groups.items()
}
figures.stacked_bars(
    times,
    "One layer, forward and backward",
    units.format_duration,
    colours={"all-reduces": style.MESSAGES},
)

# %% [markdown]
# The same GPUs, 3.3 times slower. This is what note 004 means by "keep the heads in one server": a tensor-parallel group belongs inside one
# NVLink island, so $t \le 8$ on most machines. A mesh of ranks is therefore laid out with tensor parallelism innermost (chapter 13).
#
# ### "Model parallelism is deprecated"
#
# Note 002 says: "model parallelism is deprecated, use data and pipeline parallelism". What was replaced is the *naive* form: layers
# on several GPUs, of which one works and the others wait. Pipeline parallelism (chapter 11) fills the waiting. Tensor parallelism is in
# daily use: Llama 3 405B was trained with $t = 8$ inside each server, 16 pipeline stages, and data parallelism around them
# (arXiv:2407.21783, table 4).
#
# **Remember**
# - A layer does $4.5h/(t-1)$ FLOP for each byte sent, in 16 bits. Compare with peak / one-way bandwidth.
# - Both ways or one way is a factor of two in $t$: 22 or 11.
# - At the limit half of the time is lost. Keep tensor parallelism inside a server.

# %% [markdown]
# ## 10.8 Multiply while the next tokens arrive
#
# Of the 3.73 ms of a layer on eight GPUs, 1.23 ms are messages, during which nothing is computed. But must a product wait for *all* of its
# input? With sequence parallelism each rank already has an eighth of the tokens. It can multiply these at once, while its neighbour's eighth
# travels to it; then those, while the next eighth travels. This is **asynchronous tensor parallelism** (异步张量并行, async TP), or *collective
# matmul* (Wang et al. 2023, [ASPLOS](https://doi.org/10.1145/3567955.3567959)).

# %%
overlapped = scratch.tensor
show_source(overlapped.gather_and_multiply, overlapped.multiply_and_scatter)

# %% [markdown]
# `ring.visits` is the ring of chapter 6. It yields one share after the other with its owner, this rank's own first, and starts the next hop
# before it yields. After a pair it works the other way round: the *sum* for a rank's tokens travels, and each rank adds its part. (This is
# the forward pass. The backward pass of each function is the other one.)
#
# **Predict.** Four ranks, 64 tokens of 32 features in fp32. One all-gather sends 6144 bytes from each rank. How many bytes when it is cut into
# shares?

# %%
share_bytes = predict("10.share_bytes", "Bytes from a rank?", yours=None, unit="B")


# %%
def in_shares():
    """A product that hides its all-gather: its error, and what was sent."""
    torch.manual_seed(0)
    ring = scratch.context.SequenceRing(dist.group.WORLD)
    x, weight = torch.randn(64, 32), torch.randn(8, 32)
    mine = x.chunk(ring.ranks)[ring.rank]
    with measure.wire.log_wire() as log:
        result = scratch.tensor.gather_and_multiply(mine, weight, ring)
    error = measure.gradients.relative_difference(result, linear(x, weight))
    return error, log.sent()["send-recv"]


# %%
cut_up = launch.run(in_shares, ranks=4)
assert all(error < 1e-5 for error, _ in cut_up)
messages, message_bytes = cut_up[0][1]
assert messages == 3
gathered = sent("all-gather", 64 * 32 * 4, 4)
expect(gathered, message_bytes, label="bytes", unit="B", yours=share_bytes)

# %% [markdown]
# **Explain.** The same bytes, in three messages instead of one collective. Only the time changes. With $C$ for the time of the product and $M$ for
# that of its messages:
#
# $$\text{one after the other: } C + M, \qquad \text{share by share: } \max\left(C,\ M + \frac{C}{t}\right).$$
#
# If the link is the slower one it never rests, and once the last share is there, one $t$-th of the product is left. Two products of our layer, on
# eight H100: `up` is a matrix of $h \times 4h$, `out` of $h \times h$. (`out` gathers in the backward pass, for the gradient of its input. Forward it
# scatters, which takes as long.) The number in a box is that of the share:

# %%
products = overlapped_product.layer_products(eight)
figures.two_lanes({name: products[name].tasks for name in ("up", "out")})

# %% [markdown]
# `up` hides its 0.15 ms of messages behind 0.28 ms of work. `out` has a quarter of that work: the messages now set the pace, and 0.09 ms of them stay
# exposed. Now all products of the layer.
#
# **Predict.** Without overlap, a layer was 1.26 times as fast with 16 GPUs in two servers as with 8 in one. What is it with overlap?

# %%
rescued = predict("10.rescued", "8 over 16, with overlap?", yours=None)

# %%
hiding = {
    t: overlapped_product.overlapped_seconds(cut)
    for t, cut in {8: eight, 16: sixteen}.items()
}
expect(1.23, hiding[8] / hiding[16], within=0.01, label="8 / 16", yours=rescued)

# %%
times = {}
for t, cut in {8: eight, 16: sixteen}.items():
    exposed = {"in turn": cut.communication_s, "overlapped": hiding[t] - cut.compute_s}
    for way, seconds in exposed.items():
        times[f"{t} GPUs, {way}"] = {
            "computing": cut.compute_s,
            "exposed messages": seconds,
        }
figures.stacked_bars(
    times,
    "One layer, forward and backward",
    units.format_duration,
    colours={"exposed messages": style.MESSAGES},
)

# %%
assert round(eight.seconds / hiding[8], 2) == 1.39

# %% [markdown]
# **Explain.** In one server 85 % of the messages disappear, and the layer gets 1.39 times as fast. Over two servers each product is half as long and its
# messages are longer, so more than half stays exposed. Overlap makes the first server better, not the second one.
#
# All this is ideal, and not measured here: it needs GPUs whose links work while they compute. What others measured: PyTorch's version in torchtitan made
# the forward pass of Llama 3 70B up to 20 % faster, and the whole step 8 %
# ([PyTorch forum](https://discuss.pytorch.org/t/distributed-w-torchtitan-introducing-async-tensor-parallelism-in-pytorch/209487)). Google's made
# training on TPUs 1.14 to 1.38 times as fast (Wang et al.). Three things take their part of our 1.39:
#
# - An eighth of a product uses a GPU less well than the whole one.
# - Messages and products share the memory's bandwidth, and sometimes the cores. So implementations copy straight from one GPU's memory into another's,
#   through *user buffers* or *symmetric memory*: buffers that all GPUs of the group have registered with each other once. Two measurements, both made for FSDP's gathers
#   of weights: on eight H100, gathers of 1 to 16 MiB became 1.3 to 2.1 times as fast, and those of 256 MiB no faster
#   ([Megatron-LM issue 5655](https://github.com/NVIDIA/Megatron-LM/issues/5655)); one share of ours has 8 MiB. A gather that leaves the cores to a product beside it
#   made both together 15 % faster ([PyTorch pull request 176613](https://github.com/pytorch/pytorch/pull/176613)).
# - The baseline hides something, too. Megatron-LM runs the reduce-scatter of a gradient beside the product for the weights' gradient, which nobody waits
#   for ([layers.py](https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/tensor_parallel/layers.py)).
#
# In Megatron-LM the option is `--tp-comm-overlap` and needs sequence parallelism; torchtitan's `enable_async_tensor_parallel` needs `torch.compile`.
#
# **Remember**
# - Share by share, a product takes $\max(C,\ M + C/t)$ instead of $C + M$. Small products stay exposed.
# - Overlap helps one server more than two.

# %% [markdown]
# ## 10.9 Demo: the same training, cut
#
# Two ranks train the tiny GPT, cut by our own f and g, and by `parallelize_module`. The demo compares losses and gradients with one process, and counts
# messages and stored bytes.

# %%
run = demos.run("tp", ranks=2, steps=4, stream=False)
print(run.report())

# %%
mine, theirs = run.versions[:2]  # a third where Megatron-core is installed
counted, counted_bytes = mine.sent["all-reduce"]
expect(2 * 4 + 1 + 1 + 3, counted, label="all-reduces", yours=count)
expect(10 * 32_768 + 3 * 512, counted_bytes, label="bytes", unit="B", yours=size)
assert mine.gradient_difference < 1e-5

# %% [markdown]
# **Explain.** Our version sends what the theory says, to the byte. The library sends 17. `ColwiseParallel` cannot cut a fused matrix by
# heads, so queries, keys and values are three modules there, each with an f of its own: the gradient of their common input is summed three
# times instead of once. Two more for each of two layers: $13 + 2 \cdot 2 = 17$. It could sum once, after adding the three, and with
# sequence parallelism the plan of our demo does.
#
# The losses do not agree to the last digit, since a sum in float32 depends on its order.

# %%
assert theirs.sent["all-reduce"][0] == counted + 2 * tiny.layers
assert theirs.sent["all-reduce"][1] == counted_bytes + 4 * 32_768

# %% [markdown]
# Each rank stores half of the matrices, and all norms. Is that half of the model? Not quite:

# %%
alone = 4 * tiny.parameters().total
whole_on_both = 4 * (32 * 64 + 5 * 2 * 64 + 4 * 64)  # positions, norms, biases
part = mine.stored["weights"] / alone
rows = {
    "one process": {"cut": alone - whole_on_both, "whole on both": whole_on_both},
    "each of two": {"cut": (alone - whole_on_both) / 2, "whole on both": whole_on_both},
}
told = {"each of two": f"{mine.stored['weights']:,} B: {part:.1%}"}
looks = {"cut": style.WEIGHTS, "whole on both": style.PALE}
title = "Weights of the tiny GPT"
figures.stacked_bars(rows, title, "{:,.0f} B".format, told, colours=looks)

# %%
assert mine.stored["weights"] == (alone + whole_on_both) / 2

# %% [markdown]
# The positions, the norms and the biases after a sum are whole on both. In a large model they are less than a thousandth.
#
# Now with sequence parallelism.
#
# **Predict.** Reduce-scatters and all-gathers take the places of most of the 13 all-reduces. How many all-reduces does a step still make? Go through
# sections 10.4 and 10.5.

# %%
left = predict("10.left", "All-reduces that are left?", yours=None)

# %%
cut = demos.run(
    "tp", ranks=2, steps=4, sequence_parallel=True, library=False, stream=False
)
sent_with = cut.versions[0].sent
expect(3 + 1, sent_with["all-reduce"][0], label="all-reduces", yours=left)
assert sent_with["all-gather"] == sent_with["reduce-scatter"] == (10, 10 * 32_768)

# %%
for operation, total in sent_with.items():
    print(f"{total.calls} × {operation}, {total.size_bytes:,} B")

# %% [markdown]
# **Explain.** Ten all-gathers and ten reduce-scatters for ten all-reduces: the same bytes on the wire. Four all-reduces are left: three of the loss, and one that
# sums the gradients of norms, positions and biases.

# %%
figures.loss(
    {
        "cut by f and g": mine.losses,
        "with sequence parallel": cut.versions[0].losses,
        "one process": run.losses_one_process,
    }
)

# %% [markdown]
# Three curves, one line. Last, together with data parallelism: four ranks as a mesh of 2 × 2. Each tensor-parallel pair is one copy of the
# model; the copies see different samples, and FSDP (chapter 9) shards the weights over them once more.

# %%
places = [{"pp": 0, "dp": rank // 2, "tp": rank % 2} for rank in range(4)]
figures.rank_mesh(places)

# %%
grid = demos.run("fsdp_tp", ranks=4, steps=4, stream=False)
report = grid.report().splitlines()
print(*(line for line in report if "predicted" not in line), sep="\n")

# %%
figures.stored_by_version(
    {it.name: it.stored for it in grid.versions},
    {
        it.name: sum(
            sent(operation, total.size_bytes, 2) for operation, total in it.sent.items()
        )
        for it in grid.versions
    },
    "One rank of four: what it stores, and sends in groups of two",
)

# %%
copies, sharded, _ = grid.versions
assert copies.sent["all-reduce"][0] == 13 + 2  # and two buckets of gradients
assert sharded.sent["all-reduce"][0] == 13
assert 2 * sharded.stored["weights"] == copies.stored["weights"]

# %% [markdown]
# The 13 are still there: tensor parallelism does not notice what goes on along the other axis. Data parallelism adds its own messages, and the
# stored weights halve once more.
#
# In a terminal: `course demo tp --ranks 2 --sequence-parallel`, `course demo fsdp_tp --ranks 4 --tp 2`. Under torchrun, as on a real
# server: `torchrun --nproc-per-node=8 -m course_lib.demos tp --model 2x512x8`.

# %% [markdown]
# ## What to remember
#
# 1. Columns, then rows: one all-reduce for two matrices. f and g do it, forward and backward.
# 2. Attention is cut by heads; $t$ at most the key-value heads, or these are copied.
# 3. Sequence parallelism cuts what lies between, with the same bytes.
# 4. Logits are never gathered: the loss needs three all-reduces of one number a token.
# 5. Four all-reduces of $bsh$ a layer; $4.5h/(t-1)$ FLOP per byte in 16 bits.
# 6. Bandwidth counts one way. Keep the group inside one server.
# 7. Products hide messages when they are cut into shares, and only as far as they take longer.

# %%
from course_lib import quiz

quiz("10")

# %% [raw] tags=["quiz"]
# A matrix is cut by columns over 4 GPUs. What has each GPU after the product?
# [x] a quarter of the outputs, finished
# [ ] all outputs, to be summed
# [ ] all outputs, finished
# Why: Columns are outputs. Rows would give full-size parts of a sum.
#
# f, before a matrix cut by columns, does nothing forward. And in the backward pass?
# [ ] nothing
# [x] it sums the gradients over the GPUs
# [ ] it gathers the weights
# Why: The input was copied to all, so the gradients through all copies add up.
#
# You switch on sequence parallelism. What happens to the bytes on the wire?
# [ ] they halve
# [ ] they double
# [x] they stay the same
# Why: An all-reduce is a reduce-scatter and an all-gather; now they stand apart.
#
# A model has 32 query heads and 4 key-value heads. What happens at tp = 8?
# [x] each key-value head is held by two GPUs
# [ ] it is impossible
# [ ] each GPU has half of a key-value head
# Why: 8 / 4 = 2 copies. Query heads are no problem: 4 for each GPU.
#
# At the largest t of the layer formula, what part of the time is communication?
# [ ] almost none
# [x] half
# [ ] all
# Why: There both take equally long, if nothing overlaps. So stay well below.

# %% [markdown]
# **Now you:** open [the exercises](../exercises/10_tensor_parallelism.ipynb).
#
# **Read on.** Shoeybi et al. 2019, *Megatron-LM*, section 3 (arXiv:1909.08053). Korthikanti et al. 2022, section 4.2
# (arXiv:2205.05198), for sequence parallelism. Narayanan et al. 2021, section 3.2 (arXiv:2104.04473), for the bytes. Wang et al. 2023,
# [ASPLOS](https://doi.org/10.1145/3567955.3567959), for the overlap.

# %% tags=["exercise"]
import math

from course_lib import check, hint, solution
from course_lib.theory.inputs import Cluster, hardware, models
from course_lib.theory.network import collectives, tensor_parallel
from course_lib.theory.network.traffic import group_link
from course_lib.chapters.ch10_tensor_parallelism import overlapped_product
from course_lib.theory.network.tensor_parallel import CutLayer

# %% [markdown] tags=["exercise"]
# ### 10.1 Calculate: a layer of GPT-3
#
# Hidden size 12288, one sequence of 2048 tokens, bf16, $t = 8$. How many bytes has the tensor of one
# all-reduce? How many bytes does a GPU send for one layer, forward and backward? How many all-reduces do the 96 layers make?

# %% [raw] tags=["hints"]
# One all-reduce carries b · s · h numbers.
# A ring all-reduce sends nearly twice its tensor. How many has a layer, both ways?

# %% tags=["exercise"]
tensor_bytes, sent_bytes, all_reduces = ..., ..., ...
### BEGIN SOLUTION
tensor_bytes = 2048 * 12288 * 2
sent_bytes = 8 * 2048 * 12288 * 7 / 8 * 2
all_reduces = 4 * 96
### END SOLUTION
check("10.1", [tensor_bytes, sent_bytes, all_reduces])

# %% [markdown] tags=["exercise"]
# ### 10.2 Debug: 64 heads, 64 GPUs
#
# (published mistake, note 004) The note cuts a layer by its heads, without a condition. You have a server of 16 GPUs, all joined by NVLink. What is the largest $t \le 16$ that can cut
# each of these models? Heads, key-value heads and the MLP's width (`ffn`) are in `models.MODELS`. And at the $t$ that you give for LLaMA-2 70B, how many GPUs hold the same key-value head?

# %% [raw] tags=["hints"]
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
# ### 10.3 Debug: FLOP and bytes, not memory
#
# (published mistake, note 004) The note explains by memory what limits $t$. Only FLOP and bytes on the link count: in training a layer does $4.5h/(t-1)$ FLOP for each byte. Guess
# first: can a layer that only runs forward, as when a model reads a prompt, be shared by more GPUs or by fewer? Then compute the FLOP per byte for $h = 8192$ and $t = 8$
#
# - when the layer only runs forward,
# - in training with full recomputation, where the second forward pass counts,
# - in training with messages of 8 bits.
#
# Up to which $t$ does the layer that only runs forward stay above an H100's ridge of 2199?

# %% [raw] tags=["hints"]
# Of 6 FLOP a weight and four all-reduces, which belong to the forward pass?
# Forward: 2 · 12 h² b s / t FLOP, two all-reduces. What does recomputation add to each?
# Set the FLOP per byte of the forward pass equal to the ridge, with t unknown.

# %% tags=["exercise"]
forward_only, recomputed, in_8_bits = ..., ..., ...
forward_reach = ...
### BEGIN SOLUTION
forward_only = 2 * 12 * 8192 / (2 * 2 * 7 * 2)  # 2 FLOP a weight, for 2 all-reduces
recomputed = 8 * 12 * 8192 / (6 * 2 * 7 * 2)  # 8 FLOP a weight, for 6
in_8_bits = 2 * 4.5 * 8192 / 7
forward_reach = int(1 + 3 * 8192 / 2199)  # 12; in training 17
### END SOLUTION
check("10.3", [forward_only, recomputed, in_8_bits, forward_reach])

# %% [markdown] tags=["exercise"]
# ### 10.4 Debug: 11 or 22
#
# (published mistake, note 004) "24576 FLOP per byte, so $t \le 11$ on an H100", or 22, whichever wire they mean. You accept that 40 % of a layer's time is communication, not more.
# Which power of two up to 8 do you choose
#
# - for hidden size 8192 on a server of H100,
# - for 8192 on a server of RTX 4090,
# - for 2048 on the H100?
#
# And how far would the layer's formula $4.5h/(t-1)$, at 450 GB/s one way, let you go in the last case (a whole number)? Guess first which term makes the difference.

# %% [raw] tags=["hints"]
# Bytes shrink with the hidden size, arithmetic with its square. And what does not shrink?
# An all-reduce on t GPUs has 2(t-1) steps, each with a latency; a layer has four of them.
# CutLayer(2048, 4, peak, link): communication_s over seconds.

# %% tags=["exercise"]
### BEGIN GIVEN
h100, rtx = hardware.accelerator("H100-SXM"), hardware.accelerator("RTX4090")
# link = group_link(Cluster(h100), "all-reduce", t, 1)
# layer = CutLayer(8192, t, h100.peak_flop_per_s, link); layer.communication_s; layer.seconds
### END GIVEN
large_h100, large_rtx, small_h100 = ..., ..., ...
by_formula = ...
### BEGIN SOLUTION
h100, rtx = hardware.accelerator("H100-SXM"), hardware.accelerator("RTX4090")
chosen = []
for hidden, gpu in ((8192, h100), (8192, rtx), (2048, h100)):
    degree = 1
    for t in (2, 4, 8):
        link = group_link(Cluster(gpu), "all-reduce", t, 1)
        layer = CutLayer(hidden, t, gpu.peak_flop_per_s, link)
        if layer.communication_s <= 0.4 * layer.seconds:
            degree = t
    chosen.append(degree)
large_h100, large_rtx, small_h100 = chosen
by_formula = int(1 + 4.5 * 2048 / (989.4e12 / 450e9))  # it knows no latency
### END SOLUTION
check("10.4", [large_h100, large_rtx, small_h100, by_formula])

# %% [markdown] tags=["exercise"]
# ### 10.5 Debug: read the numbers
#
# Four people have built the pair of section 10.2, each with another mistake, and print $Z$ and the gradient of $X$ on both ranks. The bias behind $B$ is $(1, 1)$, so $Z$
# should be $(20, 7)$, and the gradient $(-5, 15)$. Find each mistake: `"no f"`, `"no g"`, `"g sums in the backward pass as well"` or `"bias before the sum"`.

# %% [raw] tags=["hints"]
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
# ### 10.7 Debug: clipped too early
#
# To clip gradients one needs the length of the whole model's gradient, the root of the sum of the squares of all its numbers. This function lets each rank
# square what it has and sums over the ranks, which stands for an all-reduce. On one GPU it is right. On eight the model learns more slowly, as if the limit
# were lower. `cut[rank]` has the gradients of a rank's parts of matrices, `whole[rank]` those of norms and of biases after a sum. Fix it.

# %% [raw] tags=["hints"]
# Which numbers does every rank have, and how often are they counted?
# Parts of matrices differ from rank to rank. Gradients of norms are the same on all.


# %% tags=["exercise"]
def gradient_length(cut: list[list[float]], whole: list[list[float]]) -> float:
    """The length of the gradient of the whole model, the same on every rank."""
    ### BEGIN GIVEN
    squares = 0.0
    for of_cut, of_whole in zip(cut, whole, strict=True):
        squares += sum(number**2 for number in of_cut + of_whole)
    return math.sqrt(squares)
    ### END GIVEN
    ### BEGIN SOLUTION
    # The parts are different on each rank; what is whole is the same, and counts once.
    squares = sum(number**2 for of_cut in cut for number in of_cut)
    return math.sqrt(squares + sum(number**2 for number in whole[0]))
    ### END SOLUTION


check("10.7", gradient_length)

# %% [markdown] tags=["exercise"]
# ### 10.8 Predict: the messages of GPT-2
#
# 12 layers, $t = 4$, one micro-batch, embedding, head and loss cut by words. How many all-reduces does a training step make?
# How many with full recomputation of the layers? And how many *all-gathers*, without recomputation, with sequence parallelism (nothing gathered twice)?

# %% [raw] tags=["hints"]
# Section 10.6: layers, embedding, head, loss.
# Recomputation repeats what belongs to the forward pass of the layers.

# %% tags=["exercise"]
plain, recomputed, gathered = ..., ..., ...
### BEGIN SOLUTION
plain = 4 * 12 + 1 + 1 + 3
recomputed = 6 * 12 + 1 + 1 + 3
gathered = 4 * 12 + 1 + 1
### END SOLUTION
check("10.8", [plain, recomputed, gathered])

# %% [markdown] tags=["exercise"]
# ### 10.9 Implement: the loss from cut scores
#
# `parts` is a list with each rank's scores for one token, `label` the number of the right word among all. Ranks may tell
# each other only single numbers, so use a maximum and sums over ranks. Scores may be as large as 1000: $e^{1000}$ overflows.

# %% [raw] tags=["hints"]
# First the maximum over all ranks.
# Whose part holds the label, and where in it?


# %% tags=["exercise"]
def cut_loss(parts: list[list[float]], label: int) -> float:
    """log Σ exp(score) - score of the label, from one maximum and two sums over ranks."""
    ### BEGIN SOLUTION
    top = max(max(part) for part in parts)
    total = sum(sum(math.exp(score - top) for score in part) for part in parts)
    first, right = 0, 0.0
    for part in parts:
        if first <= label < first + len(part):
            right += part[label - first] - top
        first += len(part)
    return math.log(total) - right
    ### END SOLUTION


check("10.9", cut_loss)

# %% [markdown] tags=["exercise"]
# ### 10.10 Debug: read the log
#
# Six programs train a GPT of 24 layers with $t = 4$ and one micro-batch. They should cut embedding, head and loss by words, and none of them
# recomputes anything. Their logs count the collectives of a step. Which description fits each of them: `"as it should be"`, `"an f for each of q, k and v"`,
# `"no f before the MLPs"`, `"the logits are gathered"` or `"the gradients of norms are not summed"`?

# %% [raw] tags=["hints"]
# Count first what a right program makes, with and without sequence parallelism.
# How many more or fewer is it: a multiple of the layers, or a few at the ends?
# Section 10.9 has a program with 17 all-reduces, and one with 4.

# %% tags=["exercise"]
programs = {
    "149 all-reduces": ...,
    "101 all-reduces": ...,
    "77 all-reduces": ...,
    "98 all-reduces, 1 all-gather": ...,
    "3 all-reduces, 98 all-gathers, 98 reduce-scatters": ...,
    "4 all-reduces, 98 all-gathers, 98 reduce-scatters": ...,
}
### BEGIN SOLUTION
programs = {
    "149 all-reduces": "an f for each of q, k and v",  # two more a layer
    "101 all-reduces": "as it should be",  # 4 · 24 + 1 + 1 + 3
    "77 all-reduces": "no f before the MLPs",  # one less a layer
    "98 all-reduces, 1 all-gather": "the logits are gathered",  # without the loss's 3
    # sequence parallelism: the norms see only this rank's tokens
    "3 all-reduces, 98 all-gathers, 98 reduce-scatters": "the gradients of norms are not summed",
    "4 all-reduces, 98 all-gathers, 98 reduce-scatters": "as it should be",
}
### END SOLUTION
check("10.10", programs)

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
# What is copied on the way in is summed on the way back, and the other way round. Which of the two functions sends nothing in its forward pass?
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
        """The same numbers; `ctx.group` keeps the group for the way back."""
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

# %% [markdown] tags=["exercise"]
# ### 10.12 Build: into a pair and out of it, by tokens
#
# Now the two ends of a pair under sequence parallelism: outside a rank has only its own tokens. `wire.all_gather(share, group)` joins the shares of all ranks along the *first*
# dimension, and `wire.reduce_scatter(whole, group)` cuts the sum over ranks along the first one; here the sequence is the second. The number of ranks divides it.
# Each of the two makes one all-gather in one pass and one reduce-scatter in the other. What they return has the type of what they get, and what they get stays as it is.
#
# The check runs each of the two forward and backward on two or three ranks, in fp32 and bf16, also in smaller groups, several at a time, and counts the messages; then a layer of a transformer. What passes is kept as `mine/sequence.py`, and
# `course demo tp --parts mine --sequence-parallel` trains on it.

# %% [raw] tags=["hints"]
# An all-reduce is a reduce-scatter and an all-gather. What does the matrix need before it, and what do the norms after it?
# The backward pass of an all-gather is a reduce-scatter, and the other way round.
# `wire.all_gather` joins the first dimension, which is the batch here. Which dimension must stand first while it runs?
# wire.all_gather(x.transpose(0, 1), group).transpose(0, 1), and the same for reduce_scatter.

# %% tags=["exercise"]
from typing import Any

from torch import Tensor
from torch.autograd import Function
from torch.distributed import ProcessGroup

from course_lib.scratch import wire

### BEGIN GIVEN


class Gather(Function):
    """Instead of f, into a pair: all tokens, from this rank's own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup | None) -> Tensor:
        """(batch, sequence / ranks, hidden) -> (batch, sequence, hidden)."""
        ...

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """(batch, sequence, hidden) -> (batch, sequence / ranks, hidden), and None."""
        ...


class SumScatter(Function):
    """Instead of g, out of a pair: the sum over ranks, of this rank's tokens."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup | None) -> Tensor:
        """(batch, sequence, hidden) -> (batch, sequence / ranks, hidden)."""
        ...

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """(batch, sequence / ranks, hidden) -> (batch, sequence, hidden), and None."""
        ...


### END GIVEN
### BEGIN SOLUTION
from course_lib.scratch.tensor import Gather, SumScatter

### END SOLUTION

check("10.12", [Gather, SumScatter])

# %% [markdown] tags=["exercise"]
# ### 10.13 Build: the loss over a cut vocabulary
#
# Exercise 10.9 with tensors, on real ranks, and with gradients. This rank, number `region.rank` of `region.ranks`, has the words from `region.rank * n` on, $n$ of them, where $n$ is the last size of `logits`. Where the ranks do
# not divide the vocabulary the last words are padding, and their logits are $-\infty$. No label is padding, but a rank may have nothing else. `region.sum(x)` is g: the sum over the ranks, through which gradients pass.
# A maximum is taken in place by `dist.all_reduce(top, dist.ReduceOp.MAX, group=region.group)`.
#
# The ranks of the region send each other at most three numbers a token, by all-reduce, and none on the way back. `logits` and `labels` stay as they are.
#
# The check compares the losses with those of one process, then takes scores of some hundreds and a padded vocabulary, then looks at the gradients and counts the messages, also in smaller groups and under sequence parallelism. What passes is kept as
# `mine/vocabulary.py`; `course demo tp --parts mine` computes its loss with it.

# %% [raw] tags=["hints"]
# log of the sum of exp(score) minus the score of the label. Which three numbers of a token does no rank have alone?
# Take the largest score of all ranks off first: dist.all_reduce with ReduceOp.MAX, on a detached copy, since it needs no gradient.
# This rank's words are region.rank * n and the n-1 after it, n = logits.shape[-1]. A label elsewhere must look up something that exists, and then count as 0.
# region.sum((logits - top).exp().sum(-1)).log() - region.sum(the label's score, or 0).

# %% tags=["exercise"]
import torch.distributed as dist
from torch import Tensor

from course_lib.scratch.tensor import TensorParallel

### BEGIN GIVEN


def vocab_parallel_cross_entropy(
    logits: Tensor, labels: Tensor, region: TensorParallel
) -> Tensor:
    """The loss of each token, (batch, sequence), the same on every rank.

    `logits` (batch, sequence, n) are those of this rank's words; `labels` (batch, sequence) are numbers of words among all.
    """
    ...


### END GIVEN
### BEGIN SOLUTION
from course_lib.scratch.tensor import vocab_parallel_cross_entropy

### END SOLUTION

check("10.13", vocab_parallel_cross_entropy)

# %% [markdown] tags=["exercise"]
# ### 10.14 Predict: a slower NVLink
#
# The H800 is an H100 whose NVLink moves 200 GB/s one way instead of 450. Eight of them share the GPT layer of section 10.7, with products that hide their
# messages. What percentage of the messages' time is hidden? How many ms does the layer take, forward and backward? And which is faster: `"H800"` with
# overlap, or `"H100"` without? Guess the last one first.

# %% [raw] tags=["hints"]
# Hidden is what is not exposed: four products, twice each, against communication_s.
# No product hides all of its messages, so the layer takes longer than its arithmetic.

# %% tags=["exercise"]
### BEGIN GIVEN
h100, h800 = hardware.accelerator("H100-SXM"), hardware.accelerator("H800-SXM")
# layer = CutLayer(8192, 8, gpu.peak_flop_per_s, gpu.inside); layer.communication_s; layer.seconds
# overlapped_product.layer_products(layer)["qkv"].exposed_s; each product comes twice
# overlapped_product.overlapped_seconds(layer)
### END GIVEN
hidden_percent, layer_ms, faster = ..., ..., ...
### BEGIN SOLUTION
h100, h800 = hardware.accelerator("H100-SXM"), hardware.accelerator("H800-SXM")
slow = CutLayer(8192, 8, h800.peak_flop_per_s, h800.inside)
fast = CutLayer(8192, 8, h100.peak_flop_per_s, h100.inside)
products = overlapped_product.layer_products(slow).values()
exposed_s = 2 * sum(product.exposed_s for product in products)
hidden_percent = 100 * (1 - exposed_s / slow.communication_s)
layer_ms = 1000 * overlapped_product.overlapped_seconds(slow)
faster = "H800" if layer_ms < 1000 * fast.seconds else "H100"
### END SOLUTION
check("10.14", [hidden_percent, layer_ms, faster])
