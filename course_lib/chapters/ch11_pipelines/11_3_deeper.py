# %% [raw] tags=["sitting"]
# question: What does a pipeline without any bubble cost?
# importance: 2
# difficulty: 5
# group: alone

# %% [markdown]
# # 11 Schedules without a bubble
#
# ZB-H1 leaves a third of the bubble. Three other schedules leave less: ZB-H2, ZB-V and DeepSeek's DualPipe. **What does a pipeline without any bubble
# cost?** On the way you meet a number of note 004, $2p-1$ micro-batches in flight, which is wrong for 1F1B and right for one of these
# schedules, and Llama 3's groups of micro-batches.

# %%
from textwrap import fill

import torch

from course_lib import expect, launch, measure, predict, scratch, show_source, style
from course_lib.chapters.ch11_pipelines import figures
from course_lib.demos.shared.text import VOCAB, Windows
from course_lib.theory import PassTimes, bubble, schedules, simulation, units

launch.warm_up()
torch.set_num_threads(1)

# %% [markdown]
# ## 11.3 Twice the warm-up
#
# Under 1F1B stage 0 of $p$ stages holds $p$ micro-batches. Note 004 says $2p-1$ (its $2N-1$): micro-batch 0 comes back after $2p-1$ passes, and in each of them
# stage 0 starts a new one. But under 1F1B it does not; after $p$ it waits for a backward pass. Does this wait cost time? Give stage $k$ twice the
# warm-up, $2(p-1-k)$ forward passes instead of $p-1-k$, on 8 stages with 32 micro-batches, first with a free wire:

# %%
Pass = schedules.Pass


def ahead(factor):
    """1F1B whose stages warm up `factor` times as long, 8 stages."""
    forward, backward = ([Pass(kind, i) for i in range(32)] for kind in "FB")
    orders = [
        schedules._one_in_turn(forward, backward, factor * (7 - k)) for k in range(8)
    ]
    return schedules.Schedule(f"{factor} × warm-up", 32, tuple(orders))


# %%
once, twice_ahead = (simulation.simulate(ahead(n), PassTimes()) for n in (1, 2))
assert once.makespan == twice_ahead.makespan == 117
assert (once.in_flight(0), twice_ahead.in_flight(0)) == (8, 2 * 8 - 1)

# %% [markdown]
# Stage 0 holds $2p-1 = 15$ micro-batches instead of 8, and the update is not one unit shorter. Now let each message take a quarter of a forward pass.
#
# **Predict.** Which of the two is faster now: 1 for the plain warm-up, 2 for the doubled one, 0 if they are equal?

# %%
faster = predict("11.doubled", "Faster on a slow wire?", yours=None)

# %%
slow = [simulation.simulate(ahead(n), PassTimes(transfer=0.25)) for n in (1, 2)]
spans = [ran.makespan for ran in slow]
expect(2, 1 + spans.index(min(spans)), label="the faster one", yours=faster)

# %%
charts = {
    f"{ran.schedule.name}: stage 0 holds {ran.in_flight(0):g}, {ran.makespan:g} units": (
        ran.tasks
    )
    for ran in slow
}
figures.timeline(charts, seconds=False)

# %% [markdown]
# **Explain.** Under 1F1B every round waits for a message: the grey stripes. With the doubled warm-up there is always another micro-batch at hand. So
# $2p-1$ is a price that can be paid for a slow wire, and no law of pipelines. Section 11.5 below has a second use for it.

# %% [markdown]
# ## 11.4 Depth first and breadth first
#
# The interleaved order sends micro-batches round in groups of $p$, so it cannot take ten micro-batches on four stages: the last group would have two.
# Llama 3's order takes any number (arXiv:2407.21783, section 3.3.2). Its authors give two reasons. A limited batch may have fewer micro-batches than
# stages; these then form one group. And larger groups hide messages. If there are several groups, each needs at least $p$ micro-batches, or the
# stages wait for each other. Here are two groups of five:

# %%
charts = {}
for name, chunks, group in (("1f1b", 1, None), ("interleaved", 2, 5)):
    ran = simulation.timeline(name, 4, 10, chunks, group=group)
    held_by_0 = f"stage 0 holds {ran.in_flight(0):g}"
    charts[f"{name}: {100 * ran.bubble_fraction:.1f} % idle, {held_by_0}"] = ran.tasks
figures.timeline(charts, seconds=False)

# %%
assert abs(ran.bubble_fraction - 3 / (2 * 10 + 3)) < 1e-9  # the formula knows no N
few = simulation.timeline("interleaved", 4, 3, 2, group=3)  # fewer than stages
assert (few.bubble_fraction, few.in_flight(0)) == (0.4, 3)
try:
    simulation.timeline("interleaved", 4, 6, 2, group=3)
except ValueError as problem:
    print(fill(str(problem), 90))

# %% [markdown]
# The bubble is the same for every size $N$ of a group from $p$ on. (Three micro-batches in one group leave 40 % idle, more than the formula's 33 %.) With
# $N = p$ a micro-batch enters its next chunk as soon as it can: **depth first** (深度优先). With $N = m$ all micro-batches go through one chunk before
# any enters the next: **breadth first** (广度优先; Lamy-Poirier 2022, arXiv:2211.05953). A larger group gives messages more time. It also holds more,
# $(2p - 1 + (v-1)N)/v$ on stage 0. Here are 20 micro-batches when a message takes a quarter of a forward pass; on a free wire 7.0 % would be idle:

# %%
slow_wire, idle_of, notes = PassTimes(transfer=0.25), {}, {}
for group in (4, 5, 10, 20):
    ran = simulation.timeline("interleaved", 4, 20, 2, group=group, times=slow_wire)
    idle_of[f"N = {group}"] = percent = 100 * ran.bubble_fraction
    notes[f"N = {group}"] = f"{percent:.1f} %, stage 0 holds {ran.in_flight(0):g}"
    assert ran.in_flight(0) == (2 * 4 - 1 + group) / 2
assert [round(idle_of[f"N = {n}"], 1) for n in (4, 5)] == [11.8, 9.8]

# %%
title = "Idle, 20 micro-batches on a slow wire, by the size of the groups"
figures.bars(idle_of, notes, title, style.PALE)

# %% [markdown]
# One micro-batch more in a group removes 2 of the 4.8 points that the wire costs. From $N = 10$ on nothing more is gained, and $N = 20$ holds 13.5.
# So the best $N$ lies near $p$; the figure in the Llama 3 paper has $p = 4$ and $N = 5$, as here. PyTorch's `ScheduleInterleaved1F1B` makes such
# groups by itself. Breadth first helps FSDP, because a chunk's weights are gathered once for all micro-batches (Lamy-Poirier).
#
# **Remember**
# - The bubble does not depend on the size of the groups. Groups a little larger than $p$ hide messages.

# %% [markdown]
# ## 11.5 Zero, and its price
#
# What does the last third of the bubble cost? **ZB-H2** takes `ahead(2)`, the warm-up that holds $2p-1$, splits the backward passes, and runs W later
# still (Qi et al. 2023, arXiv:2401.10241, section 2.2):

# %%
split = [schedules.split_backward(ahead(2).orders[k], late=2 * k) for k in range(8)]
zb_h2 = schedules.Schedule("ZB-H2", 32, tuple(split))
parallelogram = simulation.simulate(zb_h2, PassTimes())
figures.timeline({"ZB-H2, no gap": parallelogram.tasks}, seconds=False)

# %% [markdown]
# No stage waits between its first pass and its last one. The picture is a parallelogram, so the next update's parallelogram fits onto it without a
# gap. Here $2p-1$ is right: not for 1F1B, but for a schedule without a bubble.
#
# **ZB-V** leaves no gap either, and holds no more than the first stage of 1F1B. Each device has two chunks, laid out as a V:

# %%
figures.layer_paths(
    {
        "interleaved": [layer % 4 for layer in range(8)],
        "as a V": [min(layer, 7 - layer) for layer in range(8)],
    }
)

# %% [markdown]
# A micro-batch goes down the first chunks and back up the second ones (lighter below). It ends where it began, so the first device can start the backward
# pass at once, and soon frees what it kept (section 6 of the same paper). The stepper of [the first sitting](11_1) has ZB-V as well.

# %%
in_a_v = simulation.timeline("zbv", stages=4, micro_batches=8)
figures.timeline({"ZB-V, no gap": in_a_v.tasks}, seconds=False)

# %% [markdown]
# Stage $k$ starts $k/2$ units later than stage 0, finishes $k/2$ units later, and never idles in between. With $b = 2$ and $w = 1$:
#
# | | idle between first and last pass, at most | idle if all wait for the last stage | held on stage 0 … $p-1$ | messages |
# |---|---|---|---|---|
# | 1F1B | $3(p-1)$ | $3(p-1)$ | $p$ … 1 | 1 × |
# | ZB-H1 | $p-1$ | $p-1$ | $p$ … $p$ | 1 × |
# | ZB-H2 | 0 | $p-1$ | $2p-1$ … $2p-1$ | 1 × |
# | ZB-V | 0 | $(p-1)/2$ | $p$ … $p$ | 2 × |

# %%
one_f, h1, v = (simulation.timeline(name, 8, 32) for name in ("1f1b", "zb1p", "zbv"))
found = []
for ran in (one_f, h1, parallelogram, v):
    spans = [tasks[-1].end - tasks[0].start for tasks in ran.by_stage]
    found.append((max(spans) - 96, ran.makespan - 96, ran.in_flight(0)))
assert found == [(21, 21, 8), (7, 7, 8), (0, 7, 15), (0, 3.5, 8)]  # p = 8

# %% [markdown]
# Why would all wait for the last stage? Many programs clip gradients by their norm over *all* stages before they update, and then the slanted end
# costs idle time after all. The authors update at once, check afterwards, and roll back if the check fails (section 4).
#
# ZB-V is made for F, I and W of equal length, and for $m \ge 2p-1$. With other lengths small gaps open. We found with the simulator: while $f \le i$ and
# $w \le i \le 2w$, where $i = b - w$ is the time of I, they add up to $(p-1)\,i/2$ for any $m$. PyTorch's `ScheduleZBVZeroBubble` has our order, pass by
# pass, and the demo of [the second sitting](11_2) runs it.
#
# ### Both ways
#
# **DualPipe** feeds micro-batches in from both ends (DeepSeek-V3, arXiv:2412.19437, section 3.2.1; lighter: from the last stage). Every device holds
# a stage of each direction, and the messages of one direction hide behind the computation of the other. If a forward and a backward pass that run
# together take $o$, the stages in the middle idle $(p/2-1)(o+b-3w)$ (table 2 there). The price: two copies of the weights, and $p+1$ micro-batches in
# flight.

# %%
dual = simulation.timeline("dualpipe", stages=8, micro_batches=20)
figures.timeline({"DualPipe": dual.tasks}, seconds=False)

# %% [markdown]
# All side by side, for 8 stages and 16 micro-batches (`zb1p` is ZB-H1). Which one idles least, and which pays with memory?

# %% tags=["drawing"]
rows = {"naive": 1, "gpipe": 1, "1f1b": 1, "interleaved": 2}
rows |= {"zb1p": 1, "dualpipe": 1, "zbv": 1}
bars, notes = {}, {}
for name, chunks in rows.items():
    ran = simulation.timeline(name, 8, 16, chunks)
    idle_share = 100 * ran.bubble_fraction
    bars[name] = {"computing": 100 - idle_share, "idle": idle_share}
    notes[name] = f"holds {ran.in_flight(0):g} … {ran.in_flight(7):g}"
    assert abs(ran.idle[3] - bubble.bubble_time(name, 8, 16, chunks)) < 1e-9
title = "8 stages, 16 micro-batches: idle time, and micro-batches held"
figures.stacked_bars(bars, title, "{:.1f} %".format, notes)

# %% [markdown]
# ZB-V idles least, 6.8 %, and holds 8. DualPipe idles 11 % and needs a second copy of the weights. Interleaving needs room for 11.5 micro-batches on
# the first stage.
#
# **Remember**
# - ZB-H2 has no gap and holds $2p-1$ micro-batches; ZB-V has no gap and sends twice the messages; DualPipe holds the weights twice.
# - A slanted end costs time only if all stages wait for each other before the update.

# %% [markdown]
# ## 11.7 A backward pass in two halves
#
# In the course's pipeline autograd is first asked for the gradient of the input only, and later for those of the weights:

# %%
show_source(
    scratch.pipeline.Pipeline.backward_input,
    scratch.pipeline.Pipeline.backward_weight,
)

# %% [markdown]
# The second function has a flaw, on purpose. Autograd has no call for "the rest": to reach the weights it walks back through the layers again, and
# computes the gradients of the activations in between once more. Count the FLOP of a whole backward pass B and of its two halves, on a stage of two
# layers:

# %%
gpt = scratch.gpt.GPT(layers=6, hidden=64, heads=4, vocab=VOCAB, context=64)
(middle,) = scratch.pipeline_stage.cut(gpt, [2, 2, 2], 1, 3)
arrived = torch.randn(4, 64, 64, requires_grad=True)  # batch, sequence, hidden


def backward_flop(*wanted):
    """FLOP of the stage's backward pass, for the gradients of `wanted` only."""
    y = middle(arrived)
    return measure.times.matmul_flops(
        lambda: y.backward(torch.ones_like(y), inputs=list(wanted))
    )


# %%
weights = list(middle.parameters())
whole_b = backward_flop(arrived, *weights)
only_i, only_w = backward_flop(arrived), backward_flop(*weights)
assert only_w == whole_b and only_i > 0.5 * whole_b
halves = {"gradient of the input": only_i, "gradient of the weights": only_w}
bars = {"B, in one": {"backward": whole_b}, "I, then W": halves}
figures.stacked_bars(
    bars, "FLOP of a backward pass of the middle stage", units.format_flop
)

# %% [markdown]
# W alone costs as much as all of B, and I comes on top. So `zb1p` shows you the order and the memory, but here it saves no real time: the second
# backward walk costs more than the smaller bubble saves. A program that saves this time keeps what I has computed for each matrix, its input and the
# gradient of its output, and leaves to W a single product of the two. (The demo's sleeping stages sleep for as long as such a program would
# compute.)
#
# The course's `Pipeline` also runs ZB-V and DualPipe. For ZB-V its `way` is "v": the passes are the same, and only the routing of messages
# differs. For DualPipe it is "both ways": after the last pass both copies of a weight get the sum of their gradients.

# %% [markdown]
# ## 11.8 Groups of five, counted
#
# The ten micro-batches of section 11.4, in two groups of five, on real ranks. It is the demo's program with another list. By the formula stage 0
# holds $(2 \cdot 4 - 1 + 5)/2 = 6$ micro-batches:


# %%
def in_groups_of_five():
    """The most micro-batches that this stage holds at once, counted."""
    model = scratch.gpt.GPT(layers=8, hidden=32, heads=4, vocab=VOCAB, context=16)
    plan = schedules.schedule("interleaved", 4, 10, virtual_stages=2, group=5)
    group = scratch.pipeline_stage.wires([range(4)])
    parts = scratch.pipeline_stage.cut(model, [1] * 8, torch.distributed.get_rank(), 4)
    stage = scratch.pipeline.Pipeline(parts, plan.orders, group)
    with measure.gradients.count_held(parts) as held:
        stage.run([Windows(sequence=16).batch([i]) for i in range(10)])
    return held.most / 2  # a chunk is half a stage


# %%
most_held = launch.run(in_groups_of_five, ranks=4)
print(most_held)
assert most_held == [6, 5, 4, 3]

# %% [markdown]
# ## The answer
#
# No gap costs memory, messages or weights: ZB-H2 holds $2p-1$ micro-batches instead of $p$, ZB-V sends twice the messages, DualPipe keeps a second
# copy of the weights. And it is worth little without a program that splits its backward passes at no cost, and an update that no stage has to wait
# for.
#
# **Read on.** Qi et al. 2023, sections 2, 4 and 6 (arXiv:2401.10241). DeepSeek-V3, section 3.2.1 (arXiv:2412.19437). Lamy-Poirier 2022,
# *Breadth-First Pipeline Parallelism* (arXiv:2211.05953).
