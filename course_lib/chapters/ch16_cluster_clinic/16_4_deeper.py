# %% [raw] tags=["sitting"]
# question: Two runs differ, or two nodes are slower than one: is anything broken?
# importance: 2
# difficulty: 4
# group: alone
# needs: 10

# %% [markdown]
# # 16 Bug or rounding, and the second node
#
# A small model trains on one GPU, and again with TP 2. The losses are close, but not equal. Is that rounding, or is something silently wrong? Issue 1736 of Megatron-LM asks this. Nine days later its author reported a bug: after 2,000 updates the two losses were more than 50 % apart (issue 1754).
#
# After this sitting you can
#
# - decide whether two runs differ by a bug or by rounding,
# - find the first tensor that is wrong,
# - say from which batch on a second node is worth it.

# %%
import json
import shutil
import tempfile
from pathlib import Path

import torch

from course_lib import demos, expect, launch, predict, recorded, style
from course_lib.chapters.ch16_cluster_clinic import comparing, figures, pairwise
from course_lib.chapters.ch16_cluster_clinic.slowest import MoreNodes

launch.warm_up()
torch.set_num_threads(1)

# %%
from course_lib.demos.shared.training import Training, mean_loss, one_process, rows_of
from course_lib.theory import Recipe, collectives, hardware, rounding, zero

# %% [markdown]
# ## 16.8 Is it a bug or rounding?
#
# The demo `one_update` writes all tensors of one update into a folder: the weights, the output of each module, the loss, and the gradients of all of them. It runs once as one process, and twice on two tensor-parallel ranks with the same weights and samples. One of the two parallel runs is right, the other has a bug:

# %%
runs = Path(tempfile.mkdtemp(prefix="course_runs_"))


def one_update(name, ranks=2, **options):
    return demos.run(
        "one_update", ranks=ranks, stream=False, folder=str(runs / name), **options
    )


alone = one_update("alone", ranks=1)
right = one_update("right", technique="tp")
broken = one_update("broken", technique="tp", fault="no_f")

# %% [markdown]
# The bug is easily made. Before an MLP comes the function f, which does nothing in the forward pass and adds up the gradients of all ranks in the backward pass (chapter 10). In one layer this sum is missing.
#
# **Predict.** The loss of one process is 4.79. By what percentage does the loss of the broken run differ from it?

# %%
loss_gap = predict("16.loss_gap", "Percent?", yours=None, unit="%")

# %%
gap = 100 * abs(broken.loss - alone.loss) / alone.loss
assert gap < 1e-4
expect(0, round(gap, 3), label="loss off by", unit="%", yours=loss_gap)

# %%
for run in (alone, right, broken):
    print(f"{Path(run.folder).name:<7}{run.loss:.7f}")

# %% [markdown]
# **Explain.** Not at all. f does nothing in the forward pass, so only wrong gradients can change the loss, from the second update on. The loss is a poor witness: it speaks late, and says neither where nor why. So compare what it is made of, tensor by tensor:

# %%
compared = comparing.compare(runs / "alone", runs / "broken")
print(compared.report())
assert compared.diverging.title == "gradient of the output of blocks.1.norm2"
assert "an all-reduce is missing" in compared.diverging.looks_like
healthy = comparing.compare(runs / "alone", runs / "right")
assert healthy.verdict == "rounding"

# %% tags=["drawing"]
figures.tensor_by_tensor(
    {"the right run": healthy.tensors, "the broken run": compared.tensors},
    "Two ranks against one process: all tensors of one update, in order",
)

# %% [markdown]
# Each mark is one tensor. Its height is its difference divided by the typical rounding. All tensors of the forward pass agree, and so do gradients, down to the MLP of layer 1. The gradient of the MLP's *input* does not agree, and that is where f is. The report has one more hint: each rank's gradient is wrong alone, but their *sum* is right. So an all-reduce is missing.
#
# In a terminal it takes three lines:
#
# ```
# course demo one_update --ranks 1 --folder alone
# course demo one_update --ranks 2 --technique tp --fault no_f --folder broken
# course compare alone broken
# ```
#
# ### How large is rounding?
#
# Where does the report's `rounding` column come from? A number in fp32 has 24 binary digits. Rounding changes it by at most half of the last one, so relative to its size by at most $u = 2^{-24}$, the **unit roundoff** (单位舍入误差). Other formats have fewer digits:
#
# | | fp32 | fp16 | bf16 | fp8 (E4M3) |
# |---|---|---|---|---|
# | binary digits | 24 | 11 | 8 | 4 |
# | $u$ | 1 / 16,777,216 | 1 / 2,048 | 1 / 256 | 1 / 16 |
#
# So each number in bf16 is off by up to 0.4 %. That is one rounding. A sum of $n$ numbers makes $n - 1$. Here are 1,000 sums of 4,096 numbers, added one after the other in fp32:

# %%
torch.manual_seed(0)
numbers = torch.rand(4096, 1000)  # 1,000 sums
total, so_far = torch.zeros(1000), {}
for count, row in enumerate(numbers, 1):
    total += row
    if count.bit_count() == 1:  # 1, 2, 4, …
        so_far[count] = total.clone()


def off(sums, count):
    """How far the sums of the first numbers are off, relative to their size."""
    exact = numbers[:count].double().sum(0)
    return ((sums - exact) / exact).square().mean().sqrt().item()


one_by_one = off(total, 4096)
walk = rounding.typical_sum_error(4096, "fp32")
print(f"off by {1e6 * one_by_one:.1f} millionths; √n · u is {1e6 * walk:.1f}")
assert 1 < walk / one_by_one < 5

# %% [markdown]
# If all 4,095 roundings erred in the same direction, they would add up to about $n \cdot u$, 244 millionths; no order of summation is worse than $\gamma_n = nu/(1-nu)$ (Higham 2002, *Accuracy and Stability of Numerical Algorithms*, section 3.1). But some err up and some down. As in a random walk, typically $\sqrt{n} \cdot u$ is left (Higham and Mary 2019): $64 \cdot 2^{-24} = 3.8$ millionths. The measured error is a few times smaller, because most roundings are smaller than $u$, and because the first ones are made on a small total. The formula gives the size, not the exact value.

# %% tags=["drawing"]
counts = [2**power for power in range(4, 13)]
by_torch = [off(numbers[:n].T.contiguous().sum(1), n) for n in counts]
assert by_torch[-1] < one_by_one / 10
errors = {
    "the bound": [rounding.sum_bound(n, "fp32") for n in counts],
    "typical, √n · u": [rounding.typical_sum_error(n, "fp32") for n in counts],
    "one by one": [off(so_far[n], n) for n in counts],
    "torch.sum": by_torch,
}
figures.lines(
    {
        name: [(n, 1e6 * error) for n, error in zip(counts, found, strict=True)]
        for name, found in errors.items()
    },
    "numbers in a sum",
    "millionths by which it is off",
    "Sums in fp32: two formulas, and two that were measured",
    doubling=(True, True),
)

# %% [markdown]
# `torch.sum` adds up blocks, and then adds the blocks. A matrix product on a GPU does much the same. This is also why tensor parallelism *must* change the result: two ranks add up two halves and then the two sums. That is another order of the same additions, and neither order is the right one.
#
# Each step of a network adds another rounding, so after $k$ tensors `course compare` expects $\sqrt{k}$ times as much as after one. Up to 4 times that it says "rounding", above 16 times "more than rounding", in between "don't know". The two factors are conventions. In the course's benchmark (benchmarks/README.md) they accused none of 120 right runs, and named the right tensor in 340 of 360 runs with 14 kinds of bugs. What about the other 20?
#
# ### A bug that hides
#
# A layer norm divides by $\sqrt{\text{variance} + \varepsilon}$. In PyTorch $\varepsilon$ is $10^{-5}$. Some models were trained with $10^{-6}$; load one with the other value, and everything seems to work. Here are the right and the wrong version, once in fp32 and once in bf16:

# %%
found = {}
for precision in ("fp32", "bf16"):
    one_update(f"{precision} alone", ranks=1, precision=precision)
    one_update(f"{precision} eps", technique="tp", fault="eps", precision=precision)
    found[precision] = comparing.compare(
        runs / f"{precision} alone", runs / f"{precision} eps"
    )
    print(f"{precision}: {found[precision].verdict}")
assert found["fp32"].diverging.title == "output of blocks.1.norm1"
assert found["bf16"].verdict == "rounding"
shutil.rmtree(runs)

# %% tags=["drawing"]
figures.tensor_by_tensor(
    {f"in {precision}": one.tensors for precision, one in found.items()},
    "The same bug in two precisions",
)

# %% [markdown]
# The bug changes the norm's output by 0.013 %. In fp32 that is forty times the rounding. In bf16 each number is rounded by up to 0.4 %, and the bug drowns: no method can find it there. The remedy needs no tool:
#
# > **Record both runs again with more digits.** From bf16 to fp32, rounding becomes 65,536 times smaller. A bug stays as large as it is.
#
# So debug in fp32 even if you train in bf16, with a model of two layers, on the CPU if need be. What shows only in bf16 then comes from bf16 itself, such as a sum that is accumulated in 16 bits.
#
# ### Why the first update?
#
# Take two runs that are both right, in one process with the same samples. The second computes the loss of each half of the batch and averages the two, which is another order of the same sum.


# %%
def in_halves(model, batch):
    return sum(mean_loss(model, rows_of(batch, half, 2)) for half in range(2)) / 2


tiny = {"model": "2x32x2", "sequence": 16, "batch": 4}
long_run = Training(**tiny, steps=300, learning_rate=1e-2)
whole = one_process(long_run).losses
halves = one_process(long_run, loss_of=in_halves).losses
gaps = [abs(b / a - 1) for a, b in zip(whole, halves, strict=True)]
figures.loss({"the whole batch": whole, "in halves": halves})

# %% [markdown]
# To the eye that is almost one curve. But how far apart are the two?

# %%
print(f"updates 250 to 300: at most {100 * max(gaps[250:]):.2g} % apart")
assert max(gaps[:50]) < 1e-6 < max(gaps[250:])

# %% tags=["drawing"]
tenths = [(start + 10, max(gaps[start : start + 10])) for start in range(0, 300, 10)]
figures.lines(
    {"halves or whole": [(update, 1e6 * gap) for update, gap in tenths if gap]},
    "update",
    "the losses differ by, millionths (largest of ten updates)",
    "Two right runs",
    doubling=(False, True),
    level={"one percent": 1e4},
)

# %% [markdown]
# For a hundred updates nothing happens, and then the difference grows by factors, up to some percent. (Your machine's number is its own.) Training at a high learning rate amplifies small differences. Both runs are right, and neither is *the* right one. So two loss curves that part after 2,000 updates prove nothing by themselves, and two that stay together prove little. (Issue 1754 trains with Adam at a learning rate of 0.3, far above what is usual.) Compare the first update, before anything has been amplified.
#
# ### Your own model
#
# `comparing.record` attaches itself to any model, on any number of ranks, and each rank writes what it has. Record one process first:
#
# ```python
# with comparing.record(model, "two") as run:   # "one" in the first run
#     loss = loss_of(model(inputs), labels)
#     run.loss(loss)
#     loss.backward()
# ```
#
# Then run `course compare one two`. Start both runs from one checkpoint, and switch dropout off. A tensor may be whole on every rank or cut along any dimension, and ranks may have different samples: the comparison works that out by itself. What it cannot read it lists as "not compared". Check how long that list is.
#
# TTrace has the same idea for Megatron-LM. It measures its bounds with small perturbations, and found 11 known and 3 new bugs (arXiv:2506.09280). For practice, let another learner choose a bug from `course demo one_update --help`, and find it.
#
# **Remember**
# - One rounding: $u$. A sum of $n$: typically $\sqrt{n} \cdot u$. Another order gives another result, and both are right.
# - Compare the first update, tensor by tensor. The bug is where the first tensor differs.
# - If in doubt, use more digits: rounding shrinks, a bug stays.

# %% [markdown]
# ## 16.10 Two nodes slower than one
#
# Qwen2-1.5B (1.54 billion parameters) is fine-tuned with ZeRO stage 3. On one node with 2 GPUs, forward and backward take 1.03 s. On two such nodes they take **4.11 s** (issue 5770 of DeepSpeed): twice the hardware, and four times the waiting. The author worked out the network's load and wrote that it was not to blame. Was it?
#
# Under stage 3 each rank sends three times $\frac{n-1}{n}$ of the weights for each micro-batch: two gathers and a reduce-scatter (chapter 8).

# %%
sent_bytes = zero.sent_bytes(1_540_000_000, 3, 4, Recipe())
one_node_s, two_nodes_s = 0.357 + 0.673, 1.6 + 2.51  # forward, backward
extra_s = two_nodes_s - one_node_s
gbit = 8 * sent_bytes / extra_s / 1e9
print(f"{sent_bytes / 1e9:.1f} GB in {extra_s:.2f} s: {gbit:.0f} Gbit/s")

# %% tags=["drawing"]
figures.stacked_bars(
    {
        "1 node, measured": {"one node": one_node_s},
        "2 nodes, measured": {
            "one node": one_node_s,
            "what came with the second": extra_s,
        },
        "over 25 Gbit/s": {"the bytes alone": 8 * sent_bytes / 25e9},
        "over 200 Gbit/s": {"the bytes alone": 8 * sent_bytes / 200e9},
    },
    "Forward and backward, and what their bytes take on two networks",
    "{:.2f} s".format,
    colours={
        "one node": style.COMPUTING,
        "what came with the second": style.IDLE,
        "the bytes alone": style.MESSAGES,
    },
)

# %% [markdown]
# 18 Gbit/s is what a port of 25 Gbit/s might really carry. (The issue does not name the port; the arithmetic is ours. It also prints 2.46 and 8.68 s for an iteration: that is two such micro-batches and 0.4 s for the update, on one node as on two.) So probably *nothing is broken there*: the network is as fast as it was sold, and far too slow for this job. Two questions have different remedies:
#
# 1. Does a link carry less than it should? Then find it and repair it.
# 2. Are all links healthy, and is a second node still not worth it? Then change the job.
#
# ### On two nodes of your own
#
# `--two-nodes 50` builds two nodes inside one Linux machine and joins them by a link of 50 Mbit/s (section 6.8). DDP trains a GPT with 0.8 million parameters there, one rank on each node. Not every machine allows that, so here is a recorded run. (Where it is not possible, `course demo ddp --two-nodes 50` says why.)

# %%
measured = json.loads(recorded("two_nodes_seconds"))
print(recorded("two_nodes").split("\n\n")[4])

# %%
wire = hardware.Link("50 Mbit/s", 50e6 / 8, 0.0)
gradient_bytes = measured["gradient_bytes"]
exchange_s = collectives.seconds("all-reduce", gradient_bytes, 2, wire)
two = MoreNodes(measured["1 node"], exchange_s, same_batch=False)
seconds = measured["2 nodes, 50 Mbit/s"]
expect(two.many_s, seconds, within=0.3, label="update", unit="s")

# %% [markdown]
# An all-reduce over two ranks sends $\frac{2(n-1)}{n} = 1$ times the gradients over the link: 3.3 MB at 6.25 MB/s take 0.53 s, whatever the processors do. The rest of the gap has other reasons: both "nodes" share one machine's memory, and the link also carries headers.
#
# An update on two nodes uses twice as many samples. So compare samples per second:

# %%
for name in ("2 nodes, 200 Mbit/s", "2 nodes, 50 Mbit/s"):
    print(f"{name}: {2 * measured['1 node'] / measured[name]:.2f} times one node")
assert 2 * measured["1 node"] < measured["2 nodes, 200 Mbit/s"]

# %% [markdown]
# Two nodes are slower than one, over either link.
#
# ### Is a link slow?
#
# The step time does not say which link. Pairs of ranks do (section 16.9). Here are four ranks, two on each node. Every pair was tested several times, and its fastest time counts:

# %%
matrix = recorded("two_nodes_pairs")
tests = [
    pairwise.PairTest(first, first + 1 + place, 1e6 * float(cell))
    for first, row in enumerate(matrix.splitlines()[3:6])
    for place, cell in enumerate(row.split()[1:])
]
named_part = pairwise.name_slow(tests)
print(named_part.explain())
assert named_part.groups == ((0, 1), (2, 3))
figures.pair_rates(tests, named_part, "Two nodes of two ranks, joined by 50 Mbit/s")

# %% [markdown]
# Fast pairs join the ranks into groups, {0, 1} and {2, 3}, and all four slow pairs lie between the groups. So whatever joins the groups is to blame, not a rank or a single port. Compare the rate with the data sheet's, in bytes and one way: 50 Mbit/s are 6.25 MB/s, and 5.9 of them arrive as tensors. So this link delivers what it promised. (In a cluster, with one rank on each port: `torchrun … -m course_lib.demos pairwise`.)
#
# ### Is a second node worth it?
#
# One node computes for $c$ = 0.045 s in an update. Of the exchange, $x$ = 0.53 s are not hidden. Either each node has as many samples as one had (weak scaling), or the nodes divide its batch (strong scaling). When do more nodes win?
#
# | | each of 2 nodes computes | 2 nodes win if | $n$ nodes win if |
# |---|---|---|---|
# | weak: twice the samples in less than twice the time | $c$ | $x < c$ | $x < (n-1)\,c$ |
# | strong: the same samples in less time | $c/2$ | $x < c/2$ | $x < \frac{n-1}{n}\,c$ |
#
# The right-hand sides grow with the batch, and $x$ does not. So from some batch on, a second node always pays:

# %%
for same_batch in (False, True):
    more = MoreNodes(measured["1 node"], exchange_s, same_batch=same_batch)
    kind = "strong" if same_batch else "weak"
    print(
        f"{kind}: {more.speedup:.2f} times, even at {more.break_even_batches:.1f} batches"
    )

# %% [markdown]
# A larger batch without more memory is accumulation (chapter 2): several micro-batches, one exchange.
#
# **Predict.** Over 200 Mbit/s, both nodes accumulate 8 micro-batches per update. How many times the samples per second of one node do two nodes reach? (With one micro-batch it was 0.43.)

# %%
accumulated = predict("16.accumulated", "Times one node?", yours=None)

# %%
faster_s = collectives.seconds(
    "all-reduce", gradient_bytes, 2, hardware.Link("200 Mbit/s", 200e6 / 8, 0.0)
)
one_node_s = measured["1 node, 8 micro-batches"]
both_s = measured["2 nodes, 200 Mbit/s, 8 micro-batches"]
eight = MoreNodes(one_node_s, faster_s, same_batch=False)
expect(
    eight.speedup,
    2 * one_node_s / both_s,
    within=0.35,
    label="times one node",
    yours=accumulated,
)

# %% [markdown]
# The same for any number of micro-batches. Above the dashed line the second node pays:

# %% tags=["drawing"]
curves = {}
for mbit, seconds in ((200, faster_s), (50, exchange_s)):
    speedups = [
        (n, MoreNodes(n * measured["1 node"], seconds, same_batch=False).speedup)
        for n in (1, 2, 4, 8, 16, 32)
    ]
    both = [
        2 * measured["1 node" + more] / measured[f"2 nodes, {mbit} Mbit/s" + more]
        for more in ("", ", 8 micro-batches")
    ]
    curves[f"{mbit} Mbit/s, theory"] = speedups
    curves[f"{mbit} Mbit/s, measured"] = [*zip((1, 8), both, strict=True)]
figures.lines(
    curves,
    "micro-batches in an update",
    "samples per second, times those of one node",
    "The batch decides",
    doubling=(True, False),
    level={"one node": 1.0},
)

# %% [markdown]
# **Explain.** From 0.43 to 1.2. The exchange is as long as before, but eight times as much is computed for each exchange. (Theory expected 1.5; the two cores of the recording had other work too.) Over 50 Mbit/s eight are not enough: the lines above ask for 12.
#
# Everything that makes $x$ smaller moves the break-even. Try these in order:
#
# | measure | what it does to the exchange |
# |---|---|
# | NCCL on the right network (`NCCL_DEBUG=INFO` says `NET/IB`, not `NET/Socket`; section 16.6) | HDR: eight times the rate of 25-gigabit Ethernet |
# | accumulation, or a larger micro-batch | the same bytes, less often |
# | ZeRO stage 3 or FSDP only *within* a node (HSDP, chapter 9), or stage 2 | weights no longer cross the network in each micro-batch |
# | TP within the node only (chapter 10) | its all-reduces, several in each layer, stay inside |
# | bf16 gradients, local SGD (chapter 14) | half the bytes, or an exchange in every $k$-th update |
#
# In the DeepSpeed case accumulation alone would not help, because under stage 3 the gathers come with each micro-batch. Stage 2 or a hybrid shard would.
#
# **Remember**
# - Compare samples per second, not seconds per update.
# - First test pairs: they name the slow rank, link or half. Then compare with the data sheet.
# - Two healthy nodes beat one only if $x < c$, or $x < c/2$ for the same batch. The batch decides.

# %% [markdown]
# ## The answer
#
# A difference of $\sqrt{n}\,u$ is rounding; a bug stays as large as it is when you use more digits. And two nodes can be slower than one with nothing broken: 6.9 GB over 25 Gbit/s take longer than the whole update did before.

# %% [markdown] tags=["exercise"]
# ### 16.10 Predict: bug or rounding?
#
# The same update runs on one GPU and on eight, and some tensor differs. The differences below are relative to the size of its numbers. Each number is a sum of 4,096 products, added up one by one. Is the difference `"rounding"`, `"more than rounding"`, or `"don't know"`? Use the two factors of section 16.8: up to 4 times
# the typical error it is rounding, beyond 16 times it is more. Typical is $\sqrt{n}\,u$ with $u = 2^{-24}$ in fp32 and $2^{-53}$ in fp64; where sums run in fp32 and the result is stored in bf16, it is $u = 2^{-8}$.

# %% [raw] tags=["hints"]
# importance 2, difficulty 3
# Compute √4096 times u of each type first. How many times that is the difference?
# 2^-24 is 6.0e-8, so fp32 has 3.8e-6 here; bf16's one rounding is 3.9e-3.
# 1e-7 is small, but what is typical in fp64?

# %% tags=["exercise"]
judged = {
    "fp32, off by 2e-6": ...,
    "fp32, off by 2e-4": ...,
    "fp32, off by 3e-5": ...,
    "stored in bf16, off by 3e-3": ...,
    "stored in bf16, off by 0.1": ...,
    "fp64, off by 1e-7": ...,
}
### BEGIN SOLUTION
answers = [
    "rounding",
    "more than rounding",
    "don't know",
    "rounding",
    "more than rounding",
    "more than rounding",  # it has passed through fp32 somewhere
]
judged = dict(zip(judged, answers, strict=True))
### END SOLUTION
check("16.10", judged)
