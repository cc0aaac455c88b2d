# %% [raw] tags=["sitting"]
# question: What else can DDP do: fewer bytes, replicas on several devices, uneven data?
# importance: 2
# difficulty: 4
# group: alone

# %% [markdown]
# # 7 Deeper: compression, several devices, uneven data
#
# PowerSGD sends one number in 205 of a large gradient matrix. Is that free? This notebook holds what you can leave out at first and will want later. It
#
# - writes `nn.DataParallel` by hand,
# - counts what PyTorch's DDP and the course's own send,
# - runs a replica that spans two devices,
# - sends fewer bytes by a communication hook, and shows what that does to the gradient,
# - shares BatchNorm's statistics, and trains with uneven data,
# - shows what `torch.compile` does with buckets.

# %%
import textwrap

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course_lib import demos, expect, launch, measure, predict, scratch, show_source
from course_lib.chapters.ch07_ddp import copies, figures, sleeping
from course_lib.theory import ddp_timeline, hardware, hiding_tokens, models, units

launch.warm_up()
torch.set_num_threads(1)

# %%
from course_lib.demos.shared.text import VOCAB, Windows
from course_lib.figures.paper import style
from course_lib.measure.wire import log_wire
from course_lib.scratch.accumulation import loss_sum


# %%
def build():
    """A small GPT, the same on every call."""
    torch.manual_seed(0)
    return scratch.gpt.GPT(layers=2, hidden=64, heads=4, vocab=VOCAB, context=64)


text = Windows(sequence=64)
inputs, labels = text.batch(range(8))
parameters = sum(p.numel() for p in build().parameters())

# %% [markdown]
# ## 7.2 DataParallel by hand
#
# In every step `nn.DataParallel`
#
# 1. scatters the batch: rows go from the first GPU to the others,
# 2. copies the weights from the first GPU to each other one,
# 3. computes, one thread per GPU,
# 4. gathers the outputs on the first GPU, where the loss is computed,
# 5. sends the gradients back to the first GPU and adds them up there.
#
# Without a GPU the real class only calls the module, so we write it by hand. Several "devices" may be the same one.

# %%
show_source(scratch.data_parallel.DataParallel)

# %% [markdown]
# `compute` starts the threads. Autograd knows the operation of copying, so step 5 needs no code: the backward pass of a
# copy brings its gradient back, and where two gradients meet they are added.

# %%
show_source(scratch.data_parallel.compute)

# %% [markdown]
# **Predict.** You had 2 devices and get 8, four times as many. How many times as many bytes of weights leave the first device in each step?

# %%
more = predict("7.more_copies", "Bytes with 8 / with 2?", yours=None)

# %%
model = build()
copied = {}
for devices in (2, 4, 8):
    parallel = scratch.data_parallel.DataParallel(model, ["cpu"] * devices)
    copied[devices] = copies.copied_bytes(parallel.replicate)
    assert copied[devices] == (devices - 1) * 4 * parameters
expect(7 / 1, copied[8] / copied[2], label="bytes with 8 / with 2", yours=more)

# %%
assert torch.allclose(parallel(inputs), model(inputs), atol=1e-5)
if not torch.cuda.is_available():  # a plain call
    assert torch.equal(nn.DataParallel(model)(inputs), model(inputs))

# %% [markdown]
# **Explain.** The first device keeps its own copy, so 7 copies leave it instead of 1. In general $(n-1) \cdot 4N$ bytes of weights leave *one* device, and as many bytes of gradients come back to it. (With NCCL the real class passes copies on from GPU to GPU, which
# spreads the load. The total of bytes stays, and so does the waiting.)

# %% [markdown]
# ## 7.5 What is sent in three passes
#
# The small GPT has 449,536 bytes of gradients. With buckets of 0.1 MiB, how many all-reduces do PyTorch's DDP and ours make in each of three backward passes?

# %%
from course_lib.theory.network.bucket_timeline import ddp_buckets

sizes = [p.nbytes for p in reversed(list(build().parameters()))]
cap = round(0.1 * units.MIB)
buckets = ddp_buckets(sizes, cap, first_bytes=cap)
print("buckets:", buckets)


# %%
def three_passes(ddp):
    """Bytes of each all-reduce in three backward passes."""
    passes = []
    for _ in range(3):
        with log_wire() as log:
            ddp(inputs).sum().backward()
        calls = [call for call in log.calls if call.what == "all-reduce"]
        passes.append([call.bytes for call in calls])
    return passes


def both_kinds():
    """Those of PyTorch's DDP and of the course's own."""
    launch.init()
    library = DistributedDataParallel(build(), bucket_cap_mb=0.1)
    from_hooks = scratch.ddp.DDP(build(), cap, first_bytes=cap)
    return three_passes(library), three_passes(from_hooks)


theirs, ours = launch.run(both_kinds, ranks=2)[0]
assert ours == [buckets] * 3 and theirs == [[4 * parameters], buckets, buckets]

# %% tags=["drawing"]
rows, colours = {}, (style.MESSAGES, style.lighter(style.MESSAGES))
for who, three_of_them in {"library": theirs, "by hand": ours}.items():
    for number, one_pass in enumerate(three_of_them, start=1):
        parts = {str(place): size for place, size in enumerate(one_pass, start=1)}
        rows[f"{who}, pass {number}"] = parts
figures.stacked_bars(
    rows,
    "All-reduces of each pass, by their bytes",
    "{:,} B".format,
    colours={str(place): colours[(place - 1) % 2] for place in range(1, 5)},
)

# %% [markdown]
# The library makes 9, since its first pass has one bucket. Ours makes 12: it trusts that `parameters()` reversed is about the right order, and has
# its buckets from the start. The bytes are the same in every pass, $4N$.

# %% [markdown]
# ## 7.6 Which gradients come
#
# Two layers, and the second is used on no rank, or only on rank 0. Without DDP no rank waits, so we can look at the gradients that each rank has:


# %%
class Branches(nn.Module):
    """Two layers, the second only if `both`."""

    def __init__(self):
        super().__init__()
        self.always, self.sometimes = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x, both):
        x = self.always(x)
        return self.sometimes(x) if both else x


def which_came(users):
    """By name, whether this rank's backward pass made the gradient."""
    branches = Branches()
    branches(torch.ones(1, 3), both=dist.get_rank() in users).sum().backward()
    return {name: p.grad is not None for name, p in branches.named_parameters()}


# %% tags=["drawing"]
rows = {}
for case, users in {"no rank": [], "only rank 0": [0]}.items():
    for number, came in enumerate(launch.run(which_came, users, ranks=2)):
        full = all(came.values())
        row = {
            name: figures.Cell(
                name.replace("sometimes", "some"),
                {0: "own gradients" if there else "missing"},
            )
            for name, there in came.items()
        }
        row["end"] = figures.Cell(
            "full: is sent" if full else "never full",
            {0: "messages" if full else "never full"},
        )
        rows[f"{case}, on rank {number}"] = row
title = "Who uses the second layer, and the bucket on each rank"
figures.cells(rows, title, heads=False, gap=2)

# %% [markdown]
# ## 7.7 A replica that spans several devices
#
# What if one replica does not fit on one GPU, but on two? Then *one process* takes two GPUs and puts the first layers on one and the last
# on the other. DDP wraps the whole model. The rule stays **one process per replica**, not per GPU: four GPUs with two per replica make two
# processes.

# %%
show_source(scratch.ddp.Spread)

# %% [markdown]
# Two rules:
#
# - **No `device_ids`.** With `device_ids=[k]` DDP moves the inputs to GPU `k` and expects the whole module there. A module on several devices moves its tensors itself. Leave `device_ids` and `output_device` at `None`.
# - **No hard-coded devices.** `"cuda:0"` in the module would put *every* process on the same GPU. The process gets its devices as arguments: rank 0 takes 0 and 1, rank 1 takes 2 and 3. In general
#   process $r$ with $d$ devices takes $r d, \dots, r d + d - 1$.

# %%
several = demos.run("multi_device", ranks=2, steps=3, stream=False)
print(textwrap.fill(several.notes[1], 90))
assert all(v.sent == v.predicted_sent for v in several.versions)
assert "device_ids" in several.notes[1]

# %% [markdown]
# The sums and bytes are right. On this machine both devices are the CPU, so the run tests the mechanics, not the memory. The message is what PyTorch says when you do pass `device_ids`.
# While one device works, the other one waits. (The unit of time is the forward pass on one device.)

# %% tags=["drawing"]
from course_lib.theory.pipelines import simulation

one_batch = simulation.timeline("naive", stages=2, micro_batches=1)
replicas = {"replica 0, on GPUs 0 and 1": one_batch.tasks}
replicas["replica 1, on GPUs 2 and 3"] = one_batch.tasks
figures.timeline(replicas, seconds=False)

# %% [markdown]
# You gain room, not speed. Chapter 11 fills the gaps with micro-batches.
#
# **Remember**
# - One process per replica. `device_ids=None` for a module on several devices; devices are arguments, never constants.

# %% [markdown]
# ## 7.8 Fewer bytes: compression in the hook
#
# In section 7.4 a communication hook of ours replaced DDP's all-reduce. PyTorch has hooks that send less.
#
# **Half the bytes.** `bf16_compress_hook` rounds each bucket to bf16, all-reduces it, and converts the sum back: $2N$ bytes instead of $4N$. A bf16 number has 8
# significant bits, so each one is off by up to $2^{-8}$, or 0.4 %. The sum over ranks is rounded as well.
#
# **Far fewer.** PowerSGD (Vogels et al. 2019, arXiv:1905.13727) approximates a gradient $M$, a matrix of $u \times v$ numbers, by the product of two thin matrices of **rank** (秩) $r$ (a term of linear algebra, which has nothing to do with processes),
# $M \approx P Q^T$. Only these travel:
#
# $$u \cdot v \;\longrightarrow\; r \cdot (u + v) .$$
#
# For 1024 × 4096 and $r = 4$ that is 20,480 numbers instead of 4,194,304, 1 in 205. In each step
#
# 1. each rank computes $P = M Q$, with the $Q$ of the step before; the ranks all-reduce $P$ and make its columns orthonormal,
# 2. each rank computes $Q = M^T P$; the ranks all-reduce $Q$,
# 3. all ranks take $P Q^T$ for the gradient.
#
# Both products are linear in $M$, so the sum of the ranks' products is the product of the summed gradient. Vectors such as biases travel whole.

# %%
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

HOOKS = "fp32", "bf16", "rank 16", "rank 4", "rank 1"


def in_bf16(_, bucket):
    """PyTorch's hook, in a function of ours: by its name DDP would ask for a GPU."""
    return default_hooks.bf16_compress_hook(None, bucket)


def hooked(how, feedback=True, model=None):
    """A model (our GPT) in DDP, its gradients sent in fp32, in bf16 or by PowerSGD.

    All in one bucket: gloo's threads would mix up the messages of several.
    """
    ddp = DistributedDataParallel(model or build())
    if how == "fp32":  # what DDP does without a hook
        ddp.register_comm_hook(None, default_hooks.allreduce_hook)
    elif how == "bf16":
        ddp.register_comm_hook(None, in_bf16)
    else:
        state = powerSGD_hook.PowerSGDState(
            None,
            matrix_approximation_rank=int(how.split()[1]),
            start_powerSGD_iter=2,  # the first passes are exact
            use_error_feedback=feedback,
        )
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return ddp


def own_loss(ddp):
    """The mean loss of this rank's half of a batch of 8."""
    first = 4 * dist.get_rank()
    own_inputs, own_labels = text.batch(range(first, first + 4))
    return loss_sum(ddp(own_inputs), own_labels) / own_labels.numel()


# %%
from unittest import mock


def third_passes():
    """For each hook: bytes given to all-reduce, and how far the gradient is off."""
    launch.init()
    sizes, gradients = {}, {}
    for how in HOOKS:
        ddp = hooked(how)
        for _ in range(3):
            ddp.zero_grad()
            # log_wire hears one thread, and PowerSGD goes on in another one.
            with mock.patch(
                "torch.distributed.all_reduce", wraps=dist.all_reduce
            ) as log:
                own_loss(ddp).backward()
        sizes[how] = sum(call.args[0].nbytes for call in log.call_args_list)
        gradients[how] = measure.gradients.flat_gradient(ddp)
    off = measure.gradients.relative_difference
    return {how: (sizes[how], off(gradients[how], gradients["fp32"])) for how in HOOKS}


# %%
from course_lib.chapters.ch07_ddp.compression import powersgd_bytes

passes = launch.run(third_passes, ranks=2, stream=False)[0]
shapes = [tuple(p.shape) for p in build().parameters()]
in_theory = {"fp32": 4 * parameters, "bf16": 2 * parameters}
for how in HOOKS[2:]:
    in_theory[how] = powersgd_bytes(shapes, rank=int(how.split()[1]))
assert {how: size for how, (size, _) in passes.items()} == in_theory

# %% tags=["drawing"]
figures.bars(
    {how: size for how, (size, _) in passes.items()},
    {how: f"{size:,} B, off by {error:.1%}" for how, (size, error) in passes.items()},
    "All-reduced in one pass, and the error of the gradient, |difference| / |gradient|",
)

# %% [markdown]
# bf16 sends half, and the gradient is off by 0.2 %. Rank 4 sends 10 % of the bytes, a sixth of them for vectors, and its gradient is off by 12.5 %; with rank 1 it is 29 %. How can one train with that?
#
# By **error feedback** (误差反馈): each rank keeps what the approximation left out, and adds it to its gradient in the next step. So nothing is lost; it only arrives later.
#
# Test it. Take a layer whose gradient is the same in every step. Then we know where plain SGD should be after $k$ steps: $k$ gradients away from the start. We call this distance the movement. As a hard case, the gradient has 64 × 64 random numbers, of which any four columns hold only about a third of the sum of squares.


# %%
def missing(feedback):
    """After each of 100 updates, the part of the exact movement that is missing."""
    torch.manual_seed(dist.get_rank())
    x, pull = torch.randn(2, 32, 64)
    layer = nn.Linear(64, 64, bias=False)
    nn.init.zeros_(layer.weight)
    ddp, parts = hooked("rank 4", feedback, layer), []
    total = pull.T @ x  # this rank's gradient of (layer(x) * pull).sum()
    dist.all_reduce(total)
    for number in range(1, 101):
        ddp.zero_grad()
        (ddp(x) * pull).sum().backward()
        layer.weight.data -= layer.weight.grad
        exact = -number * total / 2
        off = measure.gradients.relative_difference(layer.weight.data, exact)
        parts.append((number, 100 * off))
    return parts


def both_ways():
    """Without and with error feedback."""
    launch.init()
    return {"no feedback": missing(False), "error feedback": missing(True)}


# %%
curves = launch.run(both_ways, ranks=2, stream=False)[0]
at_the_end = {name: curve[-1][1] for name, curve in curves.items()}
assert at_the_end["no feedback"] > 75 and at_the_end["error feedback"] < 10
figures.lines(
    curves,
    "updates",
    "% of the movement missing",
    "A constant gradient, PowerSGD of rank 4",
)

# %% [markdown]
# Without feedback, 80 % of the movement is missing after 100 updates. The first two passes are exact; of each later gradient rank 4 leaves out nearly the same part, $\sqrt{1 - 1/3}$, or 82 % (norms are roots of sums of squares). That part never arrives, so the share grows towards 82 %. With feedback, 7 % is missing, and the share falls. The error that is carried along stays about as large, while the movement grows. So the
# paper and PyTorch's `PowerSGDState` use feedback by default. Real gradients fit better, as the 12.5 % above show.
#
# The carried error is as large as the gradients: $4N$ bytes more on each rank. The three products cost about $6ruv$ FLOP, against $4uvT$ of the backward pass with $T$ tokens: next to nothing for $r = 4$. The limit is quality. DALL·E's
# 12 billion parameters needed at least rank 896 to train without a visible gap, which saved about 86 % of the bytes (arXiv:2102.12092, table 1), not 99.5 %.
#
# So compress only what is exposed. By the rule of section 7.4, $T = 2F/\beta$ tokens hide the exchange in fp32, and bf16 needs half of them.

# %%
chip = hardware.accelerator("H100-SXM")
speed, wire = chip.peak_flop_per_s * chip.matmul_efficiency, hardware.NDR.bytes_per_s
fp32, bf16 = (hiding_tokens(speed, wire, 1024, element_bytes=size) for size in (4, 2))
print(f"H100 at 50 GB/s: {fp32:,.0f} tokens in fp32, {bf16:,.0f} in bf16")
assert bf16 == fp32 / 2

# %% [markdown]
# And seconds? `bf16_compress_wrapper` rounds around any hook: here around the sleeping link of section 7.4, where a bucket for each layer took 200 ms.
#
# **Predict.** A bucket now travels 15 ms instead of 30. How many milliseconds does the pass take?

# %%
halved = predict("7.halved", "The pass in ms?", yours=None, unit="ms")


# %%
def rounded(hook):
    """The hook, given its buckets in bf16; a function of ours, as above."""
    wrapped = default_hooks.bf16_compress_wrapper(hook)
    return lambda state, bucket: wrapped(state, bucket)


job = (0.25, 20, rounded)
passes = launch.run(sleeping.backward_passes, *job, ranks=2, stream=False)[0]
slow_ms = 1000 * min(seconds for seconds, *_ in passes[1:])

# %%
expect(135, slow_ms, within=None, label="slow link, bf16", unit="ms", yours=halved)

# %% [markdown]
# **Explain.** Each bucket is back before the next one is full. That leaves 6 · 20 + 15 = 135 ms, 0.68 of the time.
#
# Rounding is not free. There and back a number moves 4 + 2 + 2 + 4 = 12 bytes through memory, to save 2 of 4 bytes each time it passes the link. On two ranks it passes once, so the hook wins only on links slower than a
# sixth of the memory; on eight it passes 1.75 times, and 0.29 of the memory is the limit. For an H100 a sixth is 3350 / 6 = 558 GB/s, faster than NVLink. And for this machine?

# %%
bucket = torch.randn(2**18)  # 1 MiB
rounding_s = measure.times.seconds(lambda: bucket.copy_(bucket.bfloat16()))
pays_below = 2 * bucket.numel() / rounding_s / units.GB
sixth = measure.times.memory_bytes_per_s(2**18) / 6 / units.GB
expect(sixth, pays_below, within=None, label="pays below", unit="GB/s")

# %% [markdown]
# Without the sleeping link our two ranks talk through that memory. There the gain of the hook could not be distinguished from noise: in 24 runs with 0.25 to 16 MB of gradients a
# pass took 0.6 to 1.6 times as long with it as without. Compression pays only where bandwidth is scarce and the communication is exposed.
#
# **Remember**
# - bf16 hook: half the bytes, gradients off by some 0.2 %. PowerSGD: $r(u+v)$ of $uv$ numbers, and an error that must be fed back.

# %% [markdown]
# ## 7.9 Shared statistics and uneven data
#
# **SyncBatchNorm** (同步批归一化) takes mean and variance over the samples of *all* ranks, so outputs, gradients and statistics are those of one process with the whole batch. PyTorch's own refuses a CPU, so here is ours:

# %%
Sync = scratch.data_parallel.SyncBatchNorm
show_source(Sync.forward)


# %%
def running_mean(norm, broadcast):
    """The running mean on this rank after 100 passes; ranks see numbers around 0 and 4."""
    rank, module = launch.init(), norm(1)
    ddp = DistributedDataParallel(module, broadcast_buffers=broadcast)
    samples = torch.tensor([[-1.0], [1.0]]) + 4 * rank.rank
    for _ in range(100):
        ddp(samples).sum().backward()
    return module.running_mean.item()


# %% tags=["drawing"]
rows = {}
for case, how in {
    "DDP as it comes": (nn.BatchNorm1d, True),
    "no broadcast": (nn.BatchNorm1d, False),
    "synchronised": (Sync, True),
}.items():
    found = launch.run(running_mean, *how, ranks=2, stream=False)
    rows[case] = {f"rank {rank}": mean for rank, mean in enumerate(found)}
figures.grouped_bars(
    rows,
    "Running mean after 100 passes; of all samples it is 2",
    "{:.2f}".format,
    {"rank 0": style.BLUE, "rank 1": style.ORANGE},
)

# %% [markdown]
# Without the broadcast each rank has statistics of its own, so evaluation gives another result on each. SyncBatchNorm costs one message of $2C + 1$ numbers for $C$ features in the forward pass and one in the backward pass, for each such layer, and the GPU waits for both. ResNet-50 has 53 of these layers: 106 latencies in each step. `convert_sync_batchnorm` replaces the
# layers of a model.
#
# ### Uneven data: `join`
#
# Three ranks have 2, 3 and 5 batches. In the third step rank 0 has nothing to do, and the others wait for it in the all-reduce: a hang. `drop_last` and samplers that pad (chapter 1) avoid it. Where batches cannot be counted beforehand, `with ddp.join():` around the loop helps: a rank that has finished
# goes on answering the others' all-reduces, with zeros.
#
# **Predict.** Take plain SGD with learning rate 1, and a weight whose gradient is 1 in each batch on each rank. How far has it moved when all have joined?

# %%
distance = predict("7.join", "Distance of the weight?", yours=None)


# %%
def uneven(by_all=True):
    """Distance of a weight, own batches, and all-reduces of gradients and of anything else."""
    rank, layer = launch.init(), nn.Linear(3, 1, bias=False)
    nn.init.zeros_(layer.weight)
    ddp, batches = DistributedDataParallel(layer), (2, 3, 5)[rank.rank]
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1.0)
    with log_wire() as log, ddp.join(divide_by_initial_world_size=by_all):
        for _ in range(batches):
            optimizer.zero_grad()
            ddp(torch.ones(1, 3)).sum().backward()
            optimizer.step()
    sizes = [call.bytes for call in log.calls if call.what == "all-reduce"]
    gradients = sizes.count(layer.weight.nbytes)
    return -layer.weight[0, 0].item(), batches, gradients, len(sizes) - gradients


# %%
joined = launch.run(uneven, ranks=3, stream=False)
expect((2 + 3 + 5) / 3, joined[0][0], within=1e-6, label="distance", yours=distance)
assert len({moved for moved, *_ in joined}) == 1  # the same on all ranks

# %% tags=["drawing"]
figures.stacked_bars(
    {
        f"rank {rank}": {"own batch": batches, "zeros for others": answered - batches}
        for rank, (_, batches, answered, _) in enumerate(joined)
    },
    "All-reduces of gradients",
    "{:.0f}".format,
)

# %% [markdown]
# **Explain.** Each of the 10 batches counts a third, as in the first two steps: $10 / 3$. With `divide_by_initial_world_size=False` the sum is divided by the number of ranks that still have data. Then the weight moves by 5, and the last batches of rank 2 count three times as much.
#
# Rank 0 waits in `join`'s exit until the last rank is done. It makes no updates there: its weights stand still, and at the end all ranks receive those of the last rank. Its optimizer's states are *not* updated. And each step has two more small all-reduces, by which the ranks learn who is still training:

# %%
alone = launch.run(uneven, False, ranks=3, stream=False)
assert [moved for moved, *_ in alone] == [5.0] * 3
assert [others for *_, others in joined] == [2 * 5 + 2] * 3  # and two at the end

# %% [markdown]
# `join` knows DDP's collectives only. With SyncBatchNorm, or with any message of your own, a rank that has finished leaves the others hanging: `throw_on_early_termination=True` then stops all ranks as soon as one is done.
#
# **Remember**
# - SyncBatchNorm shares statistics for two messages a layer.
# - `join` lets ranks with fewer batches answer with zeros. It is better to give all ranks equally many.

# %% [markdown]
# ## 7.10 A compiled model
#
# `torch.compile` (chapter 15 shows its graphs) makes one graph of the backward pass. A graph returns all its gradients together, when it has run, so no bucket could leave earlier. For a DDP model the compiler therefore cuts the
# graph at the buckets (DDPOptimizer). Four layers of 1 MiB each, buckets of 1 MiB, with the cuts and without:


# %%
class Chain(nn.Module):
    """Four layers, one after the other."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512, bias=False) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def order(cut):
    """What happens in a compiled backward pass: graphs that have run, buckets that leave."""
    launch.init()
    events, ddp = [], DistributedDataParallel(Chain(), bucket_cap_mb=1)

    def send(group, bucket):
        events.append("bucket")
        return default_hooks.allreduce_hook(group, bucket)

    ddp.register_comm_hook(None, send)
    with measure.gradients.log_backward(lambda: events.append("graph"), cut) as backend:
        compiled = torch.compile(ddp, backend=backend)
        for _ in range(3):
            events.clear()
            compiled(torch.ones(2, 512)).sum().backward()
    return events


# %%
uncut, cut = (launch.run(order, how, ranks=2, stream=False)[0] for how in (False, True))
assert uncut == ["graph"] + 4 * ["bucket"] and cut == 4 * ["graph", "bucket"]

# %% [markdown]
# Without the cuts nothing overlaps. For GPT-2 on the eight A100 of section 7.4 that would look like this:

# %% tags=["drawing"]
from course_lib.theory import model_gradients

a100 = hardware.accelerator("A100-SXM-80GB")
of_gpt2 = model_gradients(models.MODELS["gpt2-124m"], a100, tokens=16384)
cap = 25 * units.MIB
late, early = (
    ddp_timeline(
        of_gpt2, 8, hardware.HDR, cap_bytes=cap, first_bytes=cap, overlap=overlap
    )
    for overlap in (False, True)
)
figures.bucket_timeline(
    {"One graph: all gradients come at its end": late, "Cut at the buckets": early}
)

# %% [markdown]
# PyTorch's authors measured it on 64 GPUs with six models: compiled DDP was up to 25 % slower than DDP that is not compiled. With the cuts it was at most 1 % slower and up to 15 % faster
# (*TorchDynamo Update 9*, dev-discuss.pytorch.org, topic 860). The price is that nothing is fused across a cut. So with compile, smaller buckets also mean more and smaller graphs.
#
# **Remember**
# - The compiler cuts the graph of a DDP model at its buckets, so that they can leave during the backward pass.

# %% [markdown]
# ## The answer
#
# Compression is not free: at rank 4 the gradient is off by 12.5 %, and without error feedback most of it may never arrive. Replicas on several devices and uneven data work, if you know the rules: one process per replica without `device_ids`, and `join`.
