# %% [raw] tags=["sitting"]
# question: How many GPUs' worth of work do you get from eight?
# importance: 4
# difficulty: 3
# group: alone

# %% [markdown]
# # 7 How much hides, and what breaks
#
# You have one A100. A step of GPT-2 124M on 16,384 tokens takes it 45 ms. You buy seven more. Each of the eight gets its own 16,384 tokens and its own port of 200 Gb/s, or 25 GB/s. In every step all eight must agree on
# one gradient: 498 MB, which takes 37 ms on this network. Is a step now 45 ms long, 82 ms, or something in between?
#
# (The 45 ms are the products with weights, at 87 % of the peak, the best measured speed. Attention's scores would add 3 to 7 ms, section 5.2.)
#
# After this sitting you can
#
# - predict which part of the communication hides, and say when data parallelism stops paying,
# - recognise an unused parameter by its error or its hang,
# - say what equal gradients do not make equal: buffers and random numbers.

# %%
import textwrap
import time
from dataclasses import replace

import torch
from torch import nn

from course_lib import demos, expect, launch, predict, scratch, show_source
from course_lib.chapters.ch07_ddp import figures, sleeping
from course_lib.theory import ddp_timeline, hardware, hiding_tokens, models, units

launch.warm_up()
torch.set_num_threads(1)

# %% [markdown]
# **Predict.** How many milliseconds does a step take on the eight A100?

# %%
step_ms = predict("7.step", "Step in ms?", yours=None, unit="ms")

# %% [markdown]
# ## 7.4 Overlap, measured on a link that we control
#
# Does PyTorch's DDP overlap as the formulas of the first sitting say? On a laptop times are noisy. So we start two ranks and replace computing and network by parts with known times: six layers whose
# backward pass *sleeps* 20 ms each, and a link that performs the real all-reduce and then sleeps until 30 ms per layer have passed. DDP lets us replace its all-reduce by a **communication hook**: a function that
# gets each full bucket and returns a promise of the result.

# %%
show_source(sleeping.SleepingLink)

# %% [markdown]
# **Predict.** Computing takes 6 · 20 = 120 ms, communication 6 · 30 = 180 ms. How many milliseconds does the backward pass take with a bucket for each layer?

# %%
ends = predict("7.end", "A bucket a layer?", yours=None, unit="ms")

# %% [markdown]
# `ddp_timeline` computes it for three limits: buckets of one layer, of two layers, and of all six.

# %%
from course_lib.theory import Gradient

wire = hardware.Link("30 ms a layer", sleeping.LAYER_BYTES / sleeping.LINK_S)
six = [Gradient("layer", sleeping.LAYER_BYTES, sleeping.BACKWARD_S) for _ in range(6)]
in_theory = {}
for mib in (0.25, 0.5, 2):  # one layer, two layers, everything
    cap = round(mib * units.MIB)
    plan = ddp_timeline(six, 2, wire, cap_bytes=cap, first_bytes=cap)
    in_theory[mib] = plan.end_s


# %%
def all_limits(count):
    """The passes for each limit."""
    return {mib: sleeping.backward_passes(mib, count) for mib in in_theory}


def fastest(passes):
    """The fastest pass for each limit, the first pass left out."""
    return {mib: min(found[1:]) for mib, found in passes.items()}


# %% [markdown]
# On a busy computer sleepers wake up late, so we repeat until each limit has one undisturbed pass:

# %%
for count in (4, 8, 16, 32):
    passes = launch.run(all_limits, count, ranks=2, stream=False)[0]
    best_s = {mib: seconds for mib, (seconds, *_) in fastest(passes).items()}
    if all(best_s[mib] < 1.1 * in_theory[mib] for mib in in_theory):
        break
assert all(best_s[mib] > 0.98 * in_theory[mib] for mib in in_theory)  # never early

# %%
expect(
    1000 * in_theory[0.25],
    1000 * best_s[0.25],
    within=None,  # a time: its gap is shown, not judged
    label="a bucket a layer",
    unit="ms",
    yours=ends,
)

# %% tags=["drawing"]
from course_lib.figures.paper import style

rows = {
    f"buckets of {mib} MiB": {"predicted": in_theory[mib], "measured": best_s[mib]}
    for mib in in_theory
}
colours = {"predicted": style.THEORY, "measured": style.MEASURED}
figures.grouped_bars(rows, "A backward pass", lambda s: f"{1000 * s:.0f} ms", colours)

# %% [markdown]
# The pass with a bucket for each layer. The numbers count layers in backward's order, and buckets:

# %% tags=["drawing"]


def named(name, backward, link):
    """A chart whose name says when backward ends; each box has its number."""
    end = backward[-1][1] - backward[0][0]
    rows = {
        what: [(what, *span, str(number)) for number, span in enumerate(spans, 1)]
        for what, spans in (("backward", backward), ("link", link))
    }
    return {f"{name}: backward ends after {units.format_duration(end)}": rows}


cap = sleeping.LAYER_BYTES
plan = ddp_timeline(six, 2, wire, cap_bytes=cap, first_bytes=cap)
naps = [(0.020 * place, 0.020 * (place + 1)) for place in range(6)]
planned = [(sent.start_s, sent.end_s) for sent in plan.exchanges]
_, *measured = fastest(passes)[0.25]
figures.lanes(
    named("predicted", naps, planned) | named("measured", *measured),
    "Six layers, a bucket for each, two ranks",
)

# %% [markdown]
# **Explain.** With a bucket for each layer: 20 ms until the first one is full, and 6 · 30 ms on the link, 200 ms. With two layers a bucket: 40 + 180 = 220. With one bucket: 120 + 180
# = 300, and nothing is hidden. Measured times are 1 to 3 % longer on an idle computer, since sleeps last a little longer than asked.
#
# On real GPUs, overlap made steps of ResNet-50 and BERT 38 % and 35 % faster with NCCL (Li et al. 2020, arXiv:2006.15704, section 5.1).
#
# We left the first pass out. Here it is, above the second:

# %% tags=["drawing"]
assert [len(sent) for _, _, sent in passes[0.25][:4]] == [1, 6, 6, 6]
(_, *one), (_, *two) = passes[0.25][:2]
figures.lanes(
    named("pass 1", *one) | named("pass 2", *two), "The first two passes, measured"
)

# %% [markdown]
# The first pass has one bucket, whatever the limit. In it DDP records the order in which gradients come, and then forms its buckets from that order. So never time the first step.

# %% [markdown]
# ### Deeper: the exception, `find_unused_parameters`
#
# With `find_unused_parameters=True` (section 7.6) the order may change from pass to pass, so DDP has nothing to learn. It
# has its buckets from the first pass on, and never rebuilds them (`should_rebuild_buckets` in PyTorch's `torch/csrc/distributed/c10d/reducer.hpp`). They are
# filled in the order of `parameters()` and sent from the last to the first, so the small one of 1 MiB goes last.


# %%
def from_the_first_on():
    """The buckets of each of three passes, with find_unused_parameters."""
    passes = sleeping.backward_passes(0.25, 3, find_unused_parameters=True)
    return [len(sent) for _, _, sent in passes]


assert launch.run(from_the_first_on, ranks=1, stream=False) == [[6, 6, 6]]

# %% [markdown]
# ### Real chips and links
#
# Now the question from the beginning. The panel assumes the best measured matrix speed, fp32 gradients, a ring, and that nothing else takes time. Move the sliders:
#
# 1. Bucket 1 MiB, 25 MiB, 512 MiB: which is best, and what is wrong with each of the other two?
# 2. Back at 25 MiB: from how many tokens per rank on does only the last part stay exposed? Why does it never vanish?
# 3. 1024 ranks, 32,768 tokens: what has grown? Which bucket size is better now?

# %%
from course_lib.chapters.ch07_ddp import panels

panels.buckets()

# %%
result = panels.buckets().result
computed_ms = 1000 * (1.5 * result.backward_s + result.exposed_s)
expect(computed_ms, label="step", unit="ms", yours=step_ms)

# %%
print(f"8 GPUs do the work of {8 * result.efficiency:.1f}")
assert abs(computed_ms - 62.6) < 0.1

# %% [markdown]
# Forward and backward together take 1.5 times the 29.9 ms of backward alone; 17.8 ms more are exposed. So about half of the communication hides, and eight GPUs do the work
# of 5.7. (This is computed, not measured.)
#
# How much of this is due to our two assumptions, 87 % of the peak and 25 GB/s for each GPU? An MFU of 45 % (chapter 5) leaves the network
# more time, and one server has NVLink:


# %%
from course_lib.theory import model_gradients

a100, gpt2 = hardware.accelerator("A100-SXM-80GB"), models.MODELS["gpt2-124m"]
best = a100.matmul_efficiency


def worth(share_of_peak, link):
    """What eight A100 are worth, in GPUs, if they compute at this share of their peak."""
    chip = replace(a100, matmul_efficiency=share_of_peak)
    found, cap = model_gradients(gpt2, chip, tokens=16384), 25 * units.MIB
    line = ddp_timeline(found, 8, link, cap_bytes=cap, first_bytes=cap)
    return round(8 * line.efficiency, 1)


# %% tags=["drawing"]
gpus = {
    f"{best:.0%} of the peak, 25 GB/s": worth(best, hardware.HDR),
    "45% of the peak, 25 GB/s": worth(0.45, hardware.HDR),
    f"{best:.0%} of the peak, NVLink": worth(best, a100.inside),
}
assert list(gpus.values()) == [5.7, 6.9, 7.8]
figures.stacked_bars(
    {row: {"computing": each, "idle": 8 - each} for row, each in gpus.items()},
    "What eight A100 are worth, in GPUs",
    "{:.1f}".format,
)

# %% [markdown]
# A fast GPU on a slow network is the worst case. The answers to the three questions:
#
# 1. 25 MiB. 512 MiB is one bucket, and nothing is hidden. 1 MiB makes 73 buckets, each of which pays 14 steps of latency.
# 2. From 32,768 on, among the slider's powers of two. Two buckets are full only when the backward pass ends: the first layer's, 28 MB, and that of the embedding and the positions, 158 MB. Nothing remains to hide their 13 ms behind.
# 3. The latency, 2046 steps a bucket: 257 ms are exposed. Now even a single bucket is better, 59 ms. (Real libraries change to trees there, chapter 6.)


# %%
def exposed_with(**settings):
    """What stays exposed in s when the panel's controls are set so."""
    return panels.buckets(**settings).result.exposed_s


assert exposed_with() < exposed_with(bucket_mib=1) < exposed_with(bucket_mib=512)
tail_s = exposed_with(tokens=32768)
assert abs(exposed_with(tokens=65536) - tail_s) < 1e-6
latency_s = exposed_with(tokens=32768, ranks=1024)
assert latency_s > 15 * tail_s
assert exposed_with(tokens=32768, ranks=1024, bucket_mib=512) < latency_s / 4

# %% tags=["drawing"]
of_gpt2 = model_gradients(gpt2, a100, tokens=16384)


def exposed_ms(ranks, mib):
    """Exposed communication of GPT-2 on A100 with 25 GB/s."""
    cap = mib * units.MIB
    line = ddp_timeline(of_gpt2, ranks, hardware.HDR, cap_bytes=cap, first_bytes=cap)
    return 1000 * line.exposed_s


caps = (1, 2, 4, 8, 16, 25, 50, 100, 200, 400, 512)
figures.lines(
    {
        f"{n:,} ranks": [(mib, exposed_ms(n, mib)) for mib in caps]
        for n in (8, 128, 1024)
    },
    "bucket, MiB",
    "exposed, ms",
    "Small buckets pay latency, large ones start late (16,384 tokens)",
    doubling=(True, True),
)

# %% [markdown]
# ### When does communication hide at all?
#
# Backward costs 4 FLOP per parameter and token (chapter 5). The all-reduce moves $2(n-1)/n \cdot 4$ bytes per parameter. Let a GPU compute $F$ FLOP/s and send
# $\beta$ bytes/s, and let its backward pass see $T$ tokens. Both take equally long when
#
# $$\frac{4NT}{F} = \frac{2(n-1)}{n} \cdot \frac{4N}{\beta}
# \quad\Longrightarrow\quad T = \frac{2(n-1)}{n} \cdot \frac{F}{\beta}.$$
#
# **The size of the model cancels.** What counts are the ratio of computing to network speed and the tokens per GPU. Take H100 whose messages all pass through one port of 400 Gb/s (50 GB/s), as on rented servers with a single
# network card. How many GPUs can share a batch of 4M tokens?

# %%
chip = hardware.accelerator("H100-SXM")
speed = chip.peak_flop_per_s * chip.matmul_efficiency
tokens = hiding_tokens(speed, hardware.NDR.bytes_per_s, ranks=1024)
print(f"{tokens:,.0f} tokens per GPU; a batch of 4M tokens: {2**22 / tokens:.0f} GPUs")
assert round(2**22 / tokens) == 132

# %%
from course_lib.theory import Cluster, group_link

ports = group_link(Cluster(chip, nodes=128), "all-reduce", ranks=1024)  # eight a server
eight_ports = hiding_tokens(speed, ports.bytes_per_s, ranks=1024)
print(f"with eight ports: {eight_ports:,.0f} tokens, {2**22 / eight_ports:,.0f} GPUs")
assert round(tokens / eight_ports) == 8

# %% tags=["drawing"]
from course_lib.theory.network import collectives

many = [8, 16, 32, 64, 132, 256, 512, 1024]
count = models.MODELS["llama2-7b"].parameters().total
rate = hardware.NDR.bytes_per_s


def sent(n):
    return collectives.sent_bytes("all-reduce", 4 * count, n)


figures.lines(
    {
        "backward": [(n, 4000 * count * 2**22 / n / speed) for n in many],
        "all-reduce": [(n, 1000 * sent(n) / rate) for n in many],
    },
    "GPUs",
    "ms",
    "LLaMA-2 7B, a batch of 4M tokens on more and more H100",
    doubling=(True, True),
    mark={"132 GPUs": 132},
)

# %% [markdown]
# With one port the exchange shows beyond some 130 GPUs, far fewer than the 1024 of section 7.1. Strong scaling reduces $T$ with each added GPU: this is the second limit as you meet it in practice.
# A good cluster moves it. An HGX server has eight H100 *and* eight ports. NCCL's rings use all of them, 400 GB/s together, so the limit is eight times further off, at a thousand GPUs.
#
# The limit also moves with a larger batch, up to the critical one, or with 16-bit gradients, half the bytes
# (*How to Scale Your Model*, jax-ml.github.io/scaling-book, chapter Training, has the rule for them). With accumulation, exchanges become rarer, so exposed time matters less. But an exchange can hide only behind the *last* micro-batch's backward pass:
# $T$ is that micro-batch's tokens.
#
# **Stragglers.** An all-reduce ends when the last rank has come. Suppose that each rank, independently, is late because of a garbage collection or a slow read in one step of a thousand. With $n$ ranks a step is punctual with probability $0.999^n$:

# %%
late = {n: 1 - 0.999**n for n in (8, 128, 1024)}
print({n: f"{share:.0%} of the steps wait" for n, share in late.items()})
assert [round(100 * share) for share in late.values()] == [1, 12, 64]

# %% [markdown]
# Rare delays on one GPU become normal on many.
#
# **Remember**
# - Small buckets pay latency, large ones start late. The first pass has one bucket.
# - Communication hides only if tokens per GPU ≥ about $2F/\beta$, for fp32 gradients. The model's size cancels.

# %% [markdown]
# ## 7.5 Deeper: the course's own DDP
#
# Try exercise 7.10 first: it asks for these functions.

# %%
show_source(scratch.ddp.fill)

# %%
show_source(scratch.ddp.Bucket)

# %%
DDP = scratch.ddp.DDP
show_source(DDP.__init__, DDP._ready)

# %%
show_source(DDP._send_full_buckets, DDP._finish, DDP._treat_unused)

# %% [markdown]
# ## 7.6 Unused parameters
#
# A bucket waits for *all* its gradients. What if one never comes? It happens with mixtures of experts, with a head that only some
# batches use, with any `if` in `forward`:

# %%
from torch.nn.parallel import DistributedDataParallel

from course_lib.measure.wire import log_wire


class Branches(nn.Module):
    """Two layers, the second only if `both`."""

    def __init__(self):
        super().__init__()
        self.always, self.sometimes = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x, both):
        x = self.always(x)
        return self.sometimes(x) if both else x


# %%
def train(users, find_unused=False, pause_s=0):
    """Two backward passes; the second layer is used on the ranks in `users`."""
    rank = launch.init()
    ddp = DistributedDataParallel(Branches(), find_unused_parameters=find_unused)
    with log_wire() as log:
        for _ in range(2):
            ddp(torch.ones(1, 3), both=rank.rank in users).sum().backward()
            time.sleep(pause_s)
    return [call.bytes for call in log.calls if call.what == "all-reduce"]


def what_happens(*arguments, timeout_s=20):
    """The text of the failure."""
    try:
        launch.run(train, *arguments, ranks=2, timeout_s=timeout_s, stream=False)
    except launch.RankFailed as failure:
        return str(failure)


# %% [markdown]
# **First case: no rank uses the second layer.** No rank sends anything, and `backward()` returns
# as usual. PyTorch notices in the *next forward pass*:

# %%
message = what_happens([])
for line in message.splitlines():
    if line.startswith(("RuntimeError", "Parameters which")):
        print(textwrap.fill(line, 90))
assert "find_unused_parameters=True" in message
assert "did not receive grad for rank" in message

# %% [markdown]
# By then a training would have made its first update without averaging. The last line has names because
# the launcher sets `TORCH_DISTRIBUTED_DEBUG=INFO`. Without it PyTorch prints only numbers.
#
# **Second case: only rank 0 uses the layer.** It sends its bucket and waits for rank 1, which has nothing to send. As long as rank 1 does something
# else, here a long pause as for an evaluation, rank 0 **hangs** inside `backward()`:

# %%
message = what_happens([0], False, 30, timeout_s=5)
print(message.splitlines()[0])
assert "rank 0 hung" in message

# %% [markdown]
# On a cluster, PyTorch waits 10 minutes by default with NCCL. Meanwhile the waiting GPU shows 100 % load, since NCCL's kernels spin.
#
# **The remedy** is `find_unused_parameters=True`. After each forward pass DDP walks through the graph and marks every parameter that it does not find as ready, with a gradient of zero. (If no rank used a parameter, it keeps
# the gradient it had.) The ranks also exchange which parameters they used: one more all-reduce, with an int32 for each parameter tensor.

# %%
used_by_one = launch.run(train, [0], True, ranks=2, stream=False)[0]
print(used_by_one)
gradients, marks = 4 * 2 * (3 * 3 + 3), 4 * 4  # bytes: 24 numbers; 4 tensors
assert used_by_one == [gradients, marks] * 2

# %% [markdown]
# It costs a walk through the graph in every step, so it is off by default. If some parameters are
# never used, freeze them (`requires_grad_(False)`) before wrapping. If the same ones are unused in every step, `static_graph=True` finds them
# once. Exercise 7.7 shows another way.
#
# **Remember**
# - Unused on all ranks: an error one step later. Unused on some: a hang.
# - `find_unused_parameters=True` costs a walk through the graph and one small all-reduce per step.

# %% [markdown]
# ## 7.9 What equal gradients do not make equal
#
# **Buffers.** A buffer is a tensor that a module keeps and that no optimizer trains. BatchNorm (chapter 2) keeps the running mean of its inputs in one, for evaluation. Buffers have no gradients, so nothing averages them.
# Instead DDP broadcasts rank 0's buffers to all ranks before each forward pass.
#
# **Predict.** Rank 0 sees numbers around 0, rank 1 around 4, as if the data had been sorted. In each pass BatchNorm moves its running mean a tenth of the way to the mean of its inputs. After 100 passes in DDP, what is the running mean on rank 1?

# %%
running = predict("7.running", "Running mean on rank 1?", yours=None)


# %%
def batch_norm():
    """The running mean on this rank after 100 passes."""
    rank, module = launch.init(), nn.BatchNorm1d(1)
    ddp = DistributedDataParallel(module)
    samples = torch.tensor([[-1.0], [1.0]]) + 4 * rank.rank
    for _ in range(100):
        ddp(samples).sum().backward()
    return module.running_mean.item()


means = launch.run(batch_norm, ranks=2, stream=False)

# %%
expect(0.1 * 4, means[1], within=1e-3, label="running mean", yours=running)

# %% [markdown]
# **Explain.** Before each pass rank 1 gets rank 0's mean, 0, and then moves it to 0.4. A checkpoint from rank 0 knows nothing of rank 1's samples. With shuffled data this is harmless, since all ranks see the same distribution.
# Language models use LayerNorm or RMSNorm, which have no running statistics. But other buffers are broadcast in every pass too: a causal mask of 4096 × 4096 bytes is 16.8 MB.
# `broadcast_buffers=False` stops that. (PyTorch 2.13 deprecates it in favour of `forward_sync_buffers=False`, which still makes the buffers equal once, when DDP is built.)
#
# **Random numbers.** Each rank has its own generator, and DDP leaves it alone. If all ranks start with the same seed, they drop the *same* neurons in each step, and random crops are the same on all ranks. So give each rank a seed of its own:


# %%
def masks(own_seed):
    """Which of 16 neurons dropout keeps on this rank."""
    rank = launch.init().rank
    torch.manual_seed(1234 + rank * own_seed)
    return nn.functional.dropout(torch.ones(16)).bool().tolist()


same, own = (launch.run(masks, seeds, ranks=2, stream=False) for seeds in (0, 1))
assert same[0] == same[1] and own[0] != own[1]

# %% [markdown]
# **Remember**
# - DDP makes gradients equal, and nothing else. Buffers are rank 0's. Give each rank its own seed.
# - Uneven data hangs too: a rank without a batch does not join the all-reduce. Give all ranks equally many batches (chapter 1), or use `join` ([deeper](07_3)).

# %% [markdown]
# ## 7.11 Demo: DDP on real processes
#
# Two ranks train for 20 updates, with four buckets of about 0.1 MiB. Beside them train the course's own DDP, and one process with the samples of both.
#
# **Predict.** How many all-reduces does PyTorch's DDP make in the 20 updates?

# %%
all_reduces = predict("7.all_reduces", "All-reduces in 20 updates?", yours=None)

# %%
run = demos.run(
    "ddp", ranks=2, steps=20, accumulation=1, bucket_cap_mb=0.1, stream=False
)
expect(1 + 19 * 4, run.all_reduces, label="all-reduces", yours=all_reduces)

# %% tags=["drawing"]
assert run.scratch.all_reduces == 20 * 4
assert run.gradient_difference < demos.load("ddp").TOLERANCE
figures.loss(
    {
        "DDP": run.losses,
        "DDP by hand": run.scratch.losses,
        "one process": run.losses_one_process,
    }
)

# %% [markdown]
# **Explain.** The library makes $1 + 19 \cdot 4 = 77$ all-reduces, since its first pass has one bucket; ours makes $20 \cdot 4 = 80$. The three curves look like
# one: the gradients differ from those of one process by about $10^{-7}$, the rounding of fp32.
#
# In a terminal (the second command uses PyTorch's own launcher):
#
# ```
# course demo ddp --ranks 2 --accumulation 1 --bucket-cap-mb 0.1
# python -m torch.distributed.run --standalone --nproc-per-node 2 \
#     -m course_lib.demos ddp --accumulation 1 --bucket-cap-mb 0.1
# ```

# %% [markdown]
# ### Deeper: inside one backward pass
#
# PyTorch's profiler records one backward pass of rank 0, with one bucket and with several, by hand and by the library.

# %%
traces = demos.run("overlap", ranks=2, stream=False)
title = "One backward pass of one rank"
figures.lanes({run.title: run.rows for run in traces.lanes}, title)

# %%
one_bucket = [lanes for lanes in traces.lanes if lanes.buckets == 1]
assert all(lanes.overlapped_ms == 0 for lanes in one_bucket)

# %% [markdown]
# With one bucket, communication begins when the last gradient is there: 0 ms overlap, always. With seven it begins during the
# backward pass. *How much* overlaps cannot be predicted here: the ranks and their communication threads share a few cores, so computing slows down while
# data travel. On a GPU the effect is smaller: NCCL's kernels occupy some of its processors.

# %% [markdown]
# ## The answer
#
# A step on the eight A100 takes 62.6 ms: 44.8 of computing and 17.8 of exposed communication. Eight GPUs do the work of 5.7. With NVLink between them it would be 7.8.

# %%
from course_lib import quiz

quiz("7")

# %% [raw] tags=["quiz"]
# How often do the ranks of DDP exchange gradients?
# [x] at every update
# [ ] once an epoch
# [ ] whenever they have time
# Why: After one update with different gradients the replicas would differ forever.
#
# You double the GPUs from 64 to 128, with the same batch per GPU. Each rank's bytes …
# [ ] double
# [ ] halve
# [x] stay nearly the same
# Why: 2(n-1)/n · 4N: 1.97 and 1.98 times 4N. Only the number of latencies doubles.
#
# One bucket for everything. How much of the communication hides behind backward?
# [x] none
# [ ] half
# [ ] all
# Why: It is full only when the last gradient is there, and then backward has ended.
#
# One rank skips a layer in forward; the others use it. What happens without find_unused_parameters?
# [ ] an error at once
# [x] the others hang in backward
# [ ] the gradient is taken as zero
# Why: They send their bucket and wait for a rank that has nothing to send.
#
# On your GPUs and network the communication of GPT-2 just hides. You take a model twice as large, with the same tokens per GPU. Its communication
# [ ] shows, since twice the bytes travel
# [x] hides just as well
# [ ] hides twice as well
# Why: Computing and bytes both double: the size of the model cancels in T = 2F/β.
#
# All ranks of DDP begin with the same seed. What happens to dropout?
# [x] all ranks drop the same neurons in each step
# [ ] nothing, DDP gives each rank its own seed
# [ ] it is switched off
# Why: DDP leaves random generators alone. Give each rank a seed of its own.

# %% [markdown]
# **Read on.** Li et al. 2020, *PyTorch Distributed: Experiences on Accelerating Data Parallel Training*, sections 3 and 4 (arXiv:2006.15704). PyTorch's developer notes, *Distributed Data Parallel*.

# %% [markdown] tags=["exercise"]
# ### 7.2 Debug: five traces
#
# These are five traces of GPT-2 124M (498 MB of gradients) under DDP. Each GPU is an A100 with a port of 25 GB/s and 9.6 µs a step (NCCL's number until release 2.17). Times are in ms from the start of the last backward pass of an update:
#
# | run | GPUs | micro-batches | all-reduces in an update | the first begins | backward ends | the last one ends | the link is busy for |
# |---|---|---|---|---|---|---|---|
# | A | 8 | 1 | 1 | 29.9 | 29.9 | 64.8 | 35.0 |
# | B | 1024 | 1 | 13 | 22.1 | 59.7 | 317.2 | 295.1 |
# | C | 8 | 1 | 13 | 2.8 | 7.5 | 39.3 | 36.6 |
# | D | 8 | 1 | 13 | 44.2 | 119.4 | 132.7 | 36.6 |
# | E | 8 | 4 | 52 | 11.0 | 29.9 | 47.6 | 36.6 |
#
# What would you change first in each run: `"larger buckets"`, `"smaller buckets"`, `"more tokens per GPU"` in each pass, `"no_sync"`, or `"nothing"`? Each answer fits once.

# %% [raw] tags=["hints"]
# importance 5, difficulty 3, group
# For each run: when could the first bucket leave, and when is the link idle?
# 498 MB take some 35 ms at 25 GB/s: what does the link of B do for 295 ms?
# C and D send the same. Compare how long each computes.

# %% tags=["exercise"]
change = {"A": ..., "B": ..., "C": ..., "D": ..., "E": ...}
### BEGIN SOLUTION
change = {
    "A": "smaller buckets",  # the only one is full when backward has ended
    "B": "larger buckets",  # 13 · 2046 steps of 9.6 µs are 255 of the 295 ms
    "C": "more tokens per GPU",  # nothing that lasts 36.6 ms hides behind 7.5 ms
    "D": "nothing",  # the tail is the embedding's bucket, which is full last
    "E": "no_sync",  # four exchanges where one will do
}
### END SOLUTION
check("7.2", change)

# %% [markdown] tags=["exercise"]
# ### 7.4 Predict: does it hide?
#
# LLaMA-2 7B trains with DDP on H100 that compute 794.5 TFLOP/s and send 50 GB/s one way. Unless the name says otherwise, gradients are fp32 and the batch has $2^{22}$ tokens (4M) for all GPUs together. Is the backward pass at least as
# long as the exchange, so that the exchange can hide? Guess all six. Then give the tokens that a GPU needs in the first case (take $2(n-1)/n$ as 2), and look at your guesses again.

# %% [raw] tags=["hints"]
# importance 3, difficulty 3
# What counts are the tokens of one GPU in the pass that exchanges. What cancels?
# 4 N T / F = 2 · 4 N / β: which of the six change T, and which the bytes of a gradient?

# %% tags=["exercise"]
tokens = ...
hides = {
    "64 GPUs": ...,
    "256 GPUs": ...,
    "128 GPUs, gradients in bf16": ...,
    "128 GPUs, 2 micro-batches and no_sync": ...,
    "512 GPUs, a batch of 32M tokens": ...,
    "256 GPUs, a model twice as large": ...,
}
### BEGIN SOLUTION
tokens = 2 * 794.5e12 / 50e9
hides = {
    "64 GPUs": tokens < 2**22 / 64,
    "256 GPUs": tokens < 2**22 / 256,
    "128 GPUs, gradients in bf16": tokens / 2 < 2**22 / 128,
    # only the last backward pass exchanges, and it has half of the tokens
    "128 GPUs, 2 micro-batches and no_sync": tokens < 2**22 / 128 / 2,
    "512 GPUs, a batch of 32M tokens": tokens < 2**25 / 512,
    # computing and bytes both double
    "256 GPUs, a model twice as large": tokens < 2**22 / 256,
}
### END SOLUTION
check("7.4", [tokens, hides])

# %% [markdown] tags=["exercise"]
# ### 7.5 Predict: the last of 1024
#
# A step of DDP takes 400 ms. In one step of a thousand, at random and independently of the others, a rank is late by 100 ms, and all ranks wait for it. Give the mean milliseconds of a step on 8 ranks and on 1024. If several ranks are late in the same step, it still takes 500 ms.
# Guess first: on 1024 ranks, does it help more to make a rank late half as often (`"half as often"`) or half as long (`"half as long"`)?

# %% [raw] tags=["hints"]
# importance 3, difficulty 2
# How probable is it that no rank is late? Section 7.4 has the formula.
# 400 + 100 · (1 - 0.999ⁿ). Then compute it with 0.9995 in place of 0.999, and with 50 in place of 100.

# %% tags=["exercise"]
on_8, on_1024, better = ..., ..., ...
### BEGIN SOLUTION
on_8, on_1024 = (400 + 100 * (1 - 0.999**n) for n in (8, 1024))
half_as_often = 400 + 100 * (1 - 0.9995**1024)  # 440 ms: still 40 % of the steps
half_as_long = 400 + 50 * (1 - 0.999**1024)  # 432 ms
better = "half as long" if half_as_long < half_as_often else "half as often"
### END SOLUTION
check("7.5", [on_8, on_1024, better])

# %% [markdown] tags=["exercise"]
# ### 7.6 Predict: how many all-reduces?
#
# A model has 16 gradients of 8 MiB each. DDP has its default limits (1 MiB, then 25 MiB). The run makes 20 updates with accumulation 4. How many all-reduces does it make with `no_sync`, without it, and with both `no_sync` and
# `find_unused_parameters=True` (section 7.6, and the folded part of 7.4)?

# %% [raw] tags=["hints"]
# importance 3, difficulty 3
# 8 ≥ 1, so the first bucket has one gradient. How many have the next ones?
# How many buckets does the first exchange have? And with find_unused_parameters?
# With find_unused_parameters the ranks also exchange which parameters they used.

# %% tags=["exercise"]
with_no_sync, without, find_unused = ..., ..., ...
### BEGIN SOLUTION
buckets = 5  # 8 MiB, 32, 32, 32, 24
with_no_sync = 1 + 19 * buckets
without = 1 + 79 * buckets
find_unused = 20 * (buckets + 1)  # never one bucket, and the marks of who used what
### END SOLUTION
check("7.6", [with_no_sync, without, find_unused])

# %% [markdown] tags=["exercise"]
# ### 7.7 Debug: the hang
#
# Some ranks call this module with `both=True`, others with `both=False`, and DDP hangs. Fix the module, without `find_unused_parameters`: its outputs stay the same, and
# every parameter takes part in the graph.

# %% [raw] tags=["hints"]
# importance 3, difficulty 2
# Compute the branch in any case.
# A tensor times zero is still in the graph.


# %% tags=["exercise"]
class Branches(nn.Module):
    """Two layers, the second only if `both`."""

    def __init__(self):
        super().__init__()
        self.always, self.sometimes = nn.Linear(3, 3), nn.Linear(3, 3)

    ### BEGIN GIVEN
    def forward(self, x, both: bool):
        x = self.always(x)
        return self.sometimes(x) if both else x

    ### END GIVEN
    ### BEGIN SOLUTION
    def forward(self, x, both: bool):
        x = self.always(x)
        y = self.sometimes(x)
        return y if both else x + 0 * y

    ### END SOLUTION


check("7.7", Branches)

# %% [markdown] tags=["exercise"]
# ### 7.9 Predict: equal on all ranks?
#
# Two ranks train in `DistributedDataParallel`: a model with BatchNorm and dropout, AdamW, gradients clipped by their norm, batches of their own, and a random generator that each rank has seeded with its own number. Right after the 100th backward pass both
# ranks write down what they have. What is equal on both, up to rounding?
#
# Then rank 0 saves weights, buffers and AdamW's states, and both ranks start again from that file. One of the seven is lost, and so the training goes on differently. Which one?

# %% [raw] tags=["hints"]
# importance 3, difficulty 3
# Which of the seven come from a rank's own samples or seed, and have not been exchanged since?
# When does DDP broadcast buffers: before or after the forward pass that moves them?
# Which of them is neither in the file nor computed anew in the next pass?

# %% tags=["exercise"]
equal = {
    "the weights": ...,
    "their gradients": ...,
    "AdamW's second moments": ...,
    "the norm of the gradient": ...,
    "the loss": ...,
    "BatchNorm's running mean": ...,
    "the state of dropout's random generator": ...,
}
lost = ...
### BEGIN SOLUTION
equal = {
    "the weights": True,
    "their gradients": True,
    "AdamW's second moments": True,
    "the norm of the gradient": True,
    "the loss": False,
    "BatchNorm's running mean": False,  # the forward pass moved rank 0's, on each rank by its own samples
    "the state of dropout's random generator": False,
}
lost = "the state of dropout's random generator"  # rank 1's running mean would have been overwritten anyway
### END SOLUTION
check("7.9", [equal, lost])
