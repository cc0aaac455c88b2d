# %% [markdown]
# # 11 Pipeline parallelism
#
# A model is too large for one GPU, so you cut it: the first 20 layers on GPU 0, the next 20 on GPU 1, and
# so on over four GPUs. It fits, it runs, and it is as slow as one GPU would be. The monitor shows each of
# the four busy for a quarter of the time. What are you paying three more GPUs for, and how do you keep all
# four busy?
#
# By the end of this chapter you can
#
# - read and draw the timeline of any pipeline schedule, and compute its idle part in your head,
# - say how many micro-batches each stage holds under each schedule, and why more stages do not mean more activations
#   on the first one,
# - choose the schedule, the number of stages and the number of micro-batches, and say which wire they need,
# - write a pipeline with real messages, and recognise an order that hangs.
#
# Time: three to four hours, half of them for the exercises. You need chapters 2, 4 and 6.

# %%
from textwrap import fill

import torch

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
from course_lib.chapters.ch11_pipelines import figures
from course_lib.chapters.ch11_pipelines.demos import pipeline as pipeline_demo
from course_lib.demos.shared.text import VOCAB, Windows
from course_lib.theory import (
    Cluster,
    Job,
    Layout,
    PassTimes,
    Recipe,
    activations,
    bubble,
    collectives,
    flops,
    hardware,
    models,
    schedules,
    simulation,
    units,
)
from course_lib.theory.network import step_traffic

launch.warm_up()
torch.set_num_threads(1)

# %% [markdown]
# **Predict.** The remedy will be to cut the batch as well. With 4 GPUs and a batch in 8 pieces, for what
# fraction of the time is each GPU still idle? Guess a percentage; you will count it in section 11.2.

# %%
idle = predict("11.idle", "Idle in %?", yours=None, unit="%")

# %% [markdown]
# ## 11.1 One device after another
#
# Three devices: the first layers on one, the middle layers on the second, the last layers on the third.
# Each part is a **stage** (流水线阶段). Only one tensor crosses each cut on the way forward, the activations;
# one crosses it on the way back, their gradient. Cut a GPT with 6 layers into three:

# %%
gpt = scratch.gpt.GPT(layers=6, hidden=64, heads=4, vocab=VOCAB, context=64)
first, middle, last = (
    scratch.pipeline_stage.cut(gpt, [2, 2, 2], stage, 3)[0] for stage in range(3)
)
inputs, labels = Windows(sequence=64).batch(range(4))
loss_sum = scratch.accumulation.loss_sum

# %% [markdown]
# Forward, and send. `detach` cuts autograd's graph: on real devices no graph reaches across the wire.

# %%
up_1 = first(inputs)  # (4, 64, 64): batch, sequence, hidden
in_1 = up_1.detach().requires_grad_()  # what arrives on the second device
up_2 = middle(in_1)
in_2 = up_2.detach().requires_grad_()  # what arrives on the third
loss = loss_sum(last(in_2), labels)

# %% [markdown]
# Backward: each device starts from the gradient of what it sent.

# %%
loss.backward()
up_2.backward(in_2.grad)
up_1.backward(in_1.grad)
in_pieces = measure.gradients.flat_gradient(gpt)

# %%
gpt.zero_grad()
loss_sum(gpt(inputs), labels).backward()
whole = measure.gradients.flat_gradient(gpt)
assert measure.gradients.relative_difference(in_pieces, whole) < 1e-6

# %% [markdown]
# The gradient is the same, whatever the cuts. But look at the time. Say a forward pass of a stage takes 1
# unit, and a backward pass 2 (chapter 5: 2 and 4 FLOP per weight and token). One row is a device; what is
# not coloured is idle:

# %%
one = simulation.timeline("naive", stages=3, micro_batches=2)
figures.timeline({"three devices, two batches": one.tasks}, seconds=False)

# %% [markdown]
# From the first start to the last end it takes 18 units: the **makespan** (完工时间). Each device works for 6
# of them and waits for the other two devices in the rest. The idle part of a pipeline is called its
# **bubble** (气泡). With $p$ stages that take turns, each is idle for $(p-1)/p$ of the time, here two thirds.
# ($p$ is also called the *depth* of the pipeline, 流水线深度.)
# This is **naive model parallelism** (朴素模型并行). It buys memory, and no speed.

# %%
assert one.makespan == 18 and one.busy == (6, 6, 6)
assert one.bubble_fraction == 2 / 3

# %% [markdown]
# **Model parallelism** (模型并行) is a word for all ways that cut the model and not the samples: between its layers, as here, or inside
# each layer (chapter 10). Notes and blogs mix up the families. So, before we go on:
#
# | | what is cut | a device holds | what is sent | works at the same time |
# |---|---|---|---|---|
# | data parallelism | the samples | the **whole** model | gradients, once an update | all |
# | naive model parallelism | the layers | some layers | activations at each cut | one |
# | pipeline parallelism | the layers, and the batch into micro-batches | some layers | activations at each cut | all but the bubble |
# | tensor parallelism | each matrix | a part of every layer | sums within each layer | all |
#
# Three sentences from notes 002 and 003, and what is right:
#
# - "In model parallelism each worker holds a full copy." No: that is data parallelism.
# - "Pipeline parallelism combines model and data parallelism." No: it needs no copy of the model. It cuts
#   layers and *micro-batches*.
# - "Model parallelism is outdated." The naive kind is. Tensor parallelism (chapter 10) is not: Llama 3 405B
#   was trained with 8-way tensor and 16-way pipeline parallelism (arXiv:2407.21783, table 4).
#
# And a "worker" (工作进程) is a process with a rank, not a thread (线程).
#
# **Remember**
# - Cut layers: one tensor crosses each cut forward, one backward. The gradient stays the same.
# - Naive model parallelism leaves each of $p$ devices idle for $(p-1)/p$ of the time.

# %% [markdown]
# ## 11.2 Micro-batches, and counting squares
#
# Cut the batch into $m$ micro-batches. As soon as the first stage has finished micro-batch 0, the second
# stage takes it, and the first goes on with micro-batch 1. That is **GPipe** (Huang et al. 2018,
# arXiv:1811.06965): all forward passes, then all backward passes. The gradients add up, as with gradient
# accumulation in chapter 2, and the update comes at the end.

# %%
gpipe = simulation.timeline("gpipe", stages=4, micro_batches=8)
figures.timeline({"GPipe, 4 stages, 8 micro-batches": gpipe.tasks}, seconds=False)

# %% [markdown]
# Count. The picture is 33 units wide. In each row, 8 forward passes of 1 and 8 backward passes of 2 make 24
# coloured units. So 9 are empty. Where do they come from? Look at the last row: before its first pass,
# micro-batch 0 has to go through 3 other stages, 3 × 1 units. After its last pass, the gradient has to go
# back through the same 3 stages, 3 × 2 units. 3 + 6 = 9. In the other rows the gap lies elsewhere and is as
# large.

# %%
assert gpipe.makespan == 33 and gpipe.busy == (24,) * 4
measured = 100 * gpipe.bubble_time / gpipe.makespan
expect(100 * 3 / 11, measured, within=1e-9, label="idle", unit="%", yours=idle)

# %% [markdown]
# **Predict.** Four times as many micro-batches, 32 instead of 8: for what fraction of the whole time is a GPU idle now?

# %%
many = predict("11.many", "Idle in %, m = 32?", yours=None)

# %%
longer = simulation.timeline("gpipe", stages=4, micro_batches=32)
expect(
    100 * 3 / 35,
    100 * longer.bubble_fraction,
    within=1e-9,
    label="idle, m = 32",
    unit="%",
    yours=many,
)

# %% [markdown]
# **Explain.** The bubble itself is as long as before, 9 units. There is more work around it, 96 units instead of 24, so it is
# 9 of 105, or 8.6 %. A quarter of 27.3 % would be 6.8 %: the fraction falls more slowly, since the whole contains the bubble.
#
# With $p$ stages, $m$ micro-batches, and times $f$ and $b$ of a forward and a backward pass of one stage:
#
# $$\text{busy} = m\,(f+b), \qquad \text{idle} = (p-1)\,(f+b).$$
#
# Two fractions are in use, and they are easily confused:
#
# $$\frac{\text{idle}}{\text{busy}} = \frac{p-1}{m} = \frac{9}{24} = 37.5\,\%, \qquad
# \frac{\text{idle}}{\text{idle + busy}} = \frac{p-1}{m+p-1} = \frac{9}{33} = 27.3\,\%.$$
#
# The left one, over the *ideal* time, is how much longer it takes than without a bubble (Narayanan et al.
# 2021, arXiv:2104.04473, section 2.2). The right one is the part of the *whole* time in which a GPU is idle
# (GPipe, section 2.3). Name the one you use. $f$ and $b$ cancel: the fractions do not depend on how
# long the backward pass takes.

# %%
assert gpipe.bubble_over_ideal == bubble.bubble_over_ideal(4, 8) == 3 / 8
assert longer.bubble_fraction == bubble.bubble_fraction(4, 32) == 3 / 35

# %% [markdown]
# GPipe's authors call the bubble negligible from $m \ge 4p$ on (section 2.3). With 4 stages and $m = 16$ it is still 16 %
# of the whole time, and nearly 20 % for many stages. One of their reasons is that their pipeline recomputes activations
# (chapter 4): the work grows to $m(2f+b)$, and the bubble does not, since a stage can recompute while it waits. Then it
# is 9 units beside 64, or 12 %. So $4p$ is a fair rule with recomputation, or with two chunks a stage (section 11.4), which leave at most 11 % idle. A plain pipeline needs
# $m = 9p$ to get below 10 %.

# %%
assert round(bubble.bubble_fraction(4, 16), 2) == 0.16
assert 0.19 < bubble.bubble_fraction(80, 320) < 0.2
assert round(9 / (9 + 16 * (2 * 1 + 2)), 2) == 0.12  # f = 1 twice, b = 2
for p in (4, 80):
    assert bubble.bubble_fraction(p, 4 * p, virtual_stages=2) < 1 / 9
    assert bubble.bubble_fraction(p, 9 * p) < 0.1

# %% [markdown]
# ### "As many batches as layers"
#
# Note 004 says: with 80 layers on 80 stages "the batch size must equal the number of layers" for the pipeline
# to be filled. Each curve below begins at $m = p$. How much is idle there, and how far is it to 10 %?

# %%
curves = {}
for p in (4, 16, 80):
    counts = [p * 2**power for power in range(10) if p * 2**power <= 4096]
    curves[f"{p} stages"] = [(m, 100 * bubble.bubble_fraction(p, m)) for m in counts]
figures.lines(
    curves,
    "micro-batches",
    "idle, % of the whole time",
    "The bubble, from one micro-batch for each stage on",
    doubling=(True, False),
    level={"10 %": 10},
    mark={"m = 711": 711},
)

# %%
eighty = simulation.timeline("1f1b", stages=80, micro_batches=80)
assert eighty.bubble_over_ideal == 79 / 80
assert bubble.bubble_fraction(80, 710) > 0.1 >= bubble.bubble_fraction(80, 711)

# %% [markdown]
# Half. With $m = p = 80$ there is one moment at which every stage has work, and then the pipeline begins to empty.
# $m = p$ is the least that lets all stages work at once. What you want is $m \gg p$: for 10 %, 80 stages need 711
# micro-batches.

# %% [markdown]
# **Remember**
# - Idle time is $(p-1)(f+b)$, whatever $m$.
# - $(p-1)/m$ of the ideal time, $(p-1)/(m+p-1)$ of the whole time. Say which.
# - $m = p$ leaves half of the machine idle.

# %% [markdown]
# ## 11.3 What lies in memory: 1F1B
#
# More micro-batches cost no time, but they cost memory. A stage keeps the activations of each
# micro-batch from its forward pass until its backward pass. Such a micro-batch is **in flight** (在途). GPipe
# does all forward passes first, so at the peak all $m$ are in flight. 32 micro-batches, 32 times the
# activations. The GPipe of the paper could afford that because it recomputes: of each micro-batch in flight it
# keeps no more than the tensor that arrived at the stage. It pays with a second forward pass.
#
# But the last stage could do its backward pass at once. And once its gradient has arrived on the stage before,
# that stage can do the same. This is **1F1B**: one forward, one backward. Each stage warms up with just enough forward
# passes to bridge the way to the end and back, $p - 1 - k$ on stage $k$, and then does one forward and one
# backward in turn (Narayanan et al. 2021, section 2.2.1). Exercise 11.6 asks for this order; you can write it before you
# see ours.

# %%
show_source(schedules.one_f_one_b_order, schedules._one_in_turn)

# %%
in_turn = simulation.timeline("1f1b", stages=4, micro_batches=8)
assert in_turn.makespan == gpipe.makespan

# %% [markdown]
# The update takes 33 units, as with GPipe, and the bubble is the same. What is different? Walk through 1F1B, moment by
# moment. Below the timeline stands what each stage holds: a box for each micro-batch in flight. Look at stage 0. When
# does it take its fifth micro-batch, and what has to happen first? Then choose gpipe, and watch the boxes pile up.

# %%
from course_lib.chapters.ch11_pipelines import steppers

steppers.schedule("1f1b", stages=4, micro_batches=8)

# %% [markdown]
# Micro-batch 4 has to wait until micro-batch 0 has come back. From then on each backward pass frees the place that the next forward
# pass takes: stage 0 never holds more than 4, stage 3 never more than 1.
#
# **Predict.** Now 8 stages and 64 micro-batches, with 1F1B. How many micro-batches are in flight on stage 2 at most? (The
# first one is stage 0.)

# %%
held = predict("11.held_on_2", "In flight on stage 2 of 8?", yours=None)

# %%
eight = simulation.timeline("1f1b", stages=8, micro_batches=64)
expect(8 - 2, eight.in_flight(2), label="in flight on stage 2", yours=held)
assert [in_turn.in_flight(stage) for stage in range(4)] == [4, 3, 2, 1]
assert [gpipe.in_flight(stage) for stage in range(4)] == [8, 8, 8, 8]

# %% [markdown]
# **Explain.** Stage 2 warms up with 5 forward passes, one for each stage behind it. Then it runs a sixth, and from there on each forward pass
# waits for a backward pass. On stage $k$: $\min(m,\ p-k)$, however large $m$ is. This is why large runs use 1F1B and its descendants,
# and not GPipe's order.
#
# ### How such a timeline is computed
#
# A schedule is nothing but an order of passes for each stage, without times. The simulator has one rule: *a
# pass starts as soon as its stage is free and what it needs has arrived*. A stage goes through its list
# until something is missing; then it is put aside until another stage has made it.

# %%
show_source(simulation._Simulation._advance)

# %% [markdown]
# You can give it an order of your own. A careless one **hangs**: each stage waits for the other forever,
# as in chapter 6.

# %%
Pass = schedules.Pass
stage_0 = (Pass("F", 0), Pass("B", 0), Pass("F", 1), Pass("B", 1))  # waits for B0 …
stage_1 = (Pass("F", 0), Pass("F", 1), Pass("B", 0), Pass("B", 1))  # … waits for F1
careless = schedules.Schedule("careless", 2, (stage_0, stage_1))
try:
    simulation.simulate(careless, PassTimes())
except simulation.Deadlock as error:
    print(fill(str(error), 90))

# %% [markdown]
# ### "2N - 1 live activations"
#
# Note 004 says that stage 0 of $N$ stages must hold $2N-1$ micro-batches: micro-batch 0 comes back after $2N-1$
# passes, and in each of them stage 0 starts a new one. But 1F1B does not. After $N$ it waits for a backward pass.
#
# Does the wait cost time? Let us give stage $k$ twice the warm-up, $2(N-1-k)$ instead of $N-1-k$. 8 stages, 32
# micro-batches, first with a free wire:


# %%
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
# $2N-1 = 15$ in flight instead of 8, and not one unit faster. Now let each message take a quarter of a forward pass:

# %%
charts = {}
for factor in (1, 2):
    ran = simulation.simulate(ahead(factor), PassTimes(transfer=0.25))
    held_by_0 = f"stage 0 holds {ran.in_flight(0):g}"
    charts[f"{ran.schedule.name}: {held_by_0}, {ran.makespan:g} units"] = ran.tasks
figures.timeline(charts, seconds=False)

# %% [markdown]
# In 1F1B every round waits for a message: the grey stripes. With the doubled warm-up there is always another
# micro-batch at hand. So $2N-1$ is a price that can be paid for a slow wire. It is no law of pipelines.
# Section 11.5 has a second use for it, in which the same price removes the bubble altogether.
#
# ### "160 times the activations"
#
# The same note: 80 stages, about $2 \cdot 80$ micro-batches in flight, so 160 times the activations. Here
# two things went wrong. In flight are $p = 80$, not 160. And they are activations of *one stage*, which has
# $L/p$ of the $L$ layers:
#
# $$\underbrace{\tfrac{L}{p}}_{\text{layers}} \times \underbrace{p}_{\text{in flight}} = L .$$
#
# Stage 0 holds as many layers' activations as one whole model with a single micro-batch, *for any number of
# stages* (Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.3). With one sequence of 4096 tokens, a layer of LLaMA-2 70B keeps 1.36 GB,
# $40.5\,s\,b\,h$ bytes. (The famous 34 are for GELU and dropout, chapter 4.)

# %%
llama = models.MODELS["llama2-70b"]
layer = activations.layer_activation_bytes(Job(llama, Recipe(), sequence=4096))
assert layer == 40.5 * 4096 * 8192
bars = {}
for stages in (1, 8, 80):
    layers = 80 // stages
    for stage in sorted({0, stages - 1}):
        count = bubble.in_flight("1f1b", stages, micro_batches=80, stage=stage)
        name = f"stage {stage} of {stages}: layers × in flight = {layers} × {count:g}"
        bars[name] = {"activations": layers * count * layer}
assert bars["stage 0 of 80: layers × in flight = 1 × 80"]["activations"] == 80 * layer
figures.stacked_bars(bars, "Activations under 1F1B", units.format_bytes)

# %% [markdown]
# 109 GB on the first stage, with a micro-batch of one sequence. Pipeline stages divide weights,
# gradients and optimizer states by $p$. They do *not* divide the first stage's activations. For those you
# have a smaller micro-batch, tensor parallelism (chapter 10), and recomputation (chapter 4). The last stage
# has it easy, with one micro-batch in flight.
#
# On 8 stages of 10 layers, recompute whole stages, as GPipe does, and 109 GB become 14: of the 8 micro-batches in flight only the tensors that
# arrived are kept, 67 MB each, and of the one at work 13.6 GB. With all 80 in flight, in GPipe's own order, it is 19 GB.

# %%
arrived = collectives.activation_bytes(1, 4096, 8192)  # at one boundary, in bf16
assert [round(size / 1e9, 1) for size in (80 * layer, 10 * layer)] == [108.7, 13.6]
assert [round((held * arrived + 10 * layer) / 1e9) for held in (8, 80)] == [14, 19]

# %% [markdown]
# **Remember**
# - GPipe holds $m$ micro-batches, 1F1B $\min(m, p-k)$ on stage $k$. The bubble is the same.
# - Under 1F1B stage 0 holds one whole model's activations for one micro-batch, for any $p$.
# - $2N-1$ is what a doubled warm-up holds. In 1F1B it helps against slow wires only.

# %% [markdown]
# ## 11.4 Shorter pieces
#
# **Interleaved** (交错调度). Give each device several short pieces instead of one long one. With 8 layers on 4
# devices, device 0 gets layers 0 and 4, device 1 layers 1 and 5. Each piece is a **virtual stage** (虚拟阶段),
# or chunk, and a micro-batch goes round twice. (The V is for section 11.5.)

# %%
figures.layer_paths(
    {
        "one stage each": [layer // 2 for layer in range(8)],
        "interleaved": [layer % 4 for layer in range(8)],
        "as a V": [min(layer, 7 - layer) for layer in range(8)],
    }
)

# %% [markdown]
# A pass takes $1/v$ of the time for $v$ chunks. Filling the pipeline still takes $p-1$ passes, but short ones:
#
# $$\text{idle} = \frac{(p-1)(f+b)}{v}, \qquad \frac{\text{idle}}{\text{idle + busy}} = \frac{p-1}{v\,m + p-1}.$$
#
# With 4 stages, 8 micro-batches and $v = 2$ the 9 idle units of section 11.2 become 4.5, and 27.3 % become
# 15.8 %. The price: every micro-batch crosses about $v$ times as many cuts, and stage 0 holds a few more, $p + (p-1)/v$.
# Micro-batches go round in groups of $p$, so $m$ must be a multiple of $p$ (Narayanan et al.,
# section 2.2.2).

# %% [markdown]
# ### Depth first, breadth first
#
# The interleaved order above cannot take ten micro-batches on four stages: the last group of four would have two. Llama 3's order takes any number of
# micro-batches (arXiv:2407.21783, section 3.3.2). Its authors name two reasons: a limited batch may have fewer micro-batches than stages,
# which then form one group, and larger groups hide messages. If there are several groups, each needs at least $p$ micro-batches, or the stages wait for each other. Here are two of five:

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
# The bubble is the same for every $N$ from $p$ on. (Three micro-batches in one group leave 40 % idle, more than the formula's 33 %.) So what is $N$ good for? With $N = p$ a micro-batch goes on to the next chunk as soon as it
# can: **depth first** (深度优先). With $N = m$ all of them go through one chunk before any enters the next: **breadth first** (广度优先;
# Lamy-Poirier 2022, arXiv:2211.05953). A larger group gives messages more time to go round. It also holds more:
# $(2p - 1 + (v-1)N)/v$ on stage 0.
#
# **Predict.** 20 micro-batches, and a message takes a quarter of a forward pass. With $N = 4$, 11.8 % of the time is idle. With $N = 5$? (With a
# free wire it is 7.0 % for both.) Nothing so far tells you the number. Guess how much of the 4.8 points that the wire costs is hidden by one more micro-batch in a group.

# %%
groups_of_five = predict("11.groups", "Idle in %, N = 5?", yours=None, unit="%")

# %%
slow_wire, idle_of, told = PassTimes(transfer=0.25), {}, {}
for group in (4, 5, 10, 20):
    ran = simulation.timeline("interleaved", 4, 20, 2, group=group, times=slow_wire)
    idle_of[f"N = {group}"] = percent = 100 * ran.bubble_fraction
    told[f"N = {group}"] = f"{percent:.1f} %, stage 0 holds {ran.in_flight(0):g}"
    assert ran.in_flight(0) == (2 * 4 - 1 + group) / 2
found = idle_of["N = 5"]
expect(9.8, found, within=0.01, label="idle", unit="%", yours=groups_of_five)

# %%
title = "Idle, 20 micro-batches on a slow wire, by the size of the groups"
figures.bars(idle_of, told, title, style.PALE)

# %% [markdown]
# **Explain.** One micro-batch more in a group removes 2 of the 4.8 points that the wire costs. From
# $N = 10$ on nothing more is gained, and $N = 20$ holds 13.5. The best $N$ lies near $p$; the figure in the Llama 3 paper has $p = 4$ and
# $N = 5$, as here. PyTorch's `ScheduleInterleaved1F1B` makes such groups by itself. And breadth first helps FSDP: a chunk's weights are gathered
# once for all micro-batches (Lamy-Poirier).
#
# **Remember**
# - Interleaving divides the bubble by $v$, for $v$ times the messages. Groups a little larger than $p$ hide some of these.

# %% [markdown]
# ## 11.5 Zero bubble
#
# A backward pass makes two things: the gradient of the input, which the stage before
# waits for, and the gradients of the weights, for which nobody waits until the update. Split them, and call
# them I and W. Do I at once, and W when there would be a gap. That is the idea of **zero bubble** (零气泡) schedules. With $w$ the time of W, the first of them, ZB-H1,
# idles $(p-1)(f + b - 2w)$, as long as $w$ is at most $f$ and at most half of $b$ (Qi et al. 2023,
# arXiv:2401.10241, section 2). With $b = 2$ and $w = 1$ that is 3 units instead of 9. The price: activations are kept
# until W, so all stages hold $p$.

# %%
charts = {"1F1B": in_turn.tasks}
for name, schedule, chunks in (("interleaved", "interleaved", 2), ("ZB-H1", "zb1p", 1)):
    ran = simulation.timeline(schedule, 4, 8, chunks)
    charts[f"{name}: {100 * ran.bubble_fraction:.1f} % idle"] = ran.tasks
figures.timeline(charts, seconds=False)

# %% [markdown]
# ### Zero, and its price
#
# What does the last third of the bubble cost? **ZB-H2** takes `ahead(2)` from section 11.3, the warm-up
# that holds $2N-1$, splits the backward passes and does W later still:

# %%
split = [schedules.split_backward(ahead(2).orders[k], late=2 * k) for k in range(8)]
zb_h2 = schedules.Schedule("ZB-H2", 32, tuple(split))
parallelogram = simulation.simulate(zb_h2, PassTimes())
figures.timeline({"ZB-H2, no gap": parallelogram.tasks}, seconds=False)

# %% [markdown]
# No stage waits between its first pass and its last one. The picture is a parallelogram, and the next update's
# fits against it. So here the number of note 004 is right: not for 1F1B, but for a schedule without a bubble (section 2.2 of the
# same paper).
#
# **ZB-V** leaves no gap either, and holds no more than 1F1B's first stage. Each device has two chunks, laid out as
# the V of section 11.4: a micro-batch goes down the first chunks and back up the second (lighter) ones. It ends where it began, so
# the first device can start the backward pass at once, and soon frees what it kept (section 6 there). The stepper of section 11.3 has it, too.

# %%
in_a_v = simulation.timeline("zbv", stages=4, micro_batches=8)
figures.timeline({"ZB-V, no gap": in_a_v.tasks}, seconds=False)

# %% [markdown]
# Stage $k$ begins $k$ passes of a chunk late, half a unit each, ends as much later, and works all the time in between. So with $b = 2$ and $w = 1$:
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
# "If all wait": many programs clip gradients by their norm over *all* stages before anyone updates, and then the slanted end costs
# idle time after all. The authors update at once, check afterwards, and roll back if the check fails (section 4).
#
# ZB-V is made for F, I and W that take equally long, and for $m \ge 2p-1$. With other times gaps open, but they cost little: with $i = b - w$ the idle time is
# $(p-1)\,i/2$, however large $m$ is, while $f \le i$ and $w \le i \le 2w$. (We found this form with the simulator.) PyTorch's
# `ScheduleZBVZeroBubble` has our order, pass by pass. Section 11.8 runs it.
#
# ### Both ways
#
# **DualPipe** (DeepSeek-V3, arXiv:2412.19437, section 3.2.1). Feed micro-batches in from both ends (lighter: from the last stage). Every
# device holds a stage of each direction, and the messages of one hide behind the computation of the other. With $o$ for the time of
# a forward and a backward pass run together, the stages in the middle idle $(p/2-1)(o+b-3w)$ (table 2 there). The price: two copies of the
# weights, and $p+1$ in flight.

# %%
dual = simulation.timeline("dualpipe", stages=8, micro_batches=20)
figures.timeline({"DualPipe": dual.tasks}, seconds=False)

# %% [markdown]
# All side by side, for 8 stages and 16 micro-batches (`zb1p` is ZB-H1). Which one idles least, and which pays with memory? The
# `assert` compares the simulator with the closed form of each schedule:

# %%
rows = {"naive": 1, "gpipe": 1, "1f1b": 1, "interleaved": 2}
rows |= {"zb1p": 1, "dualpipe": 1, "zbv": 1}
bars, told = {}, {}
for name, chunks in rows.items():
    ran = simulation.timeline(name, 8, 16, chunks)
    idle_share = 100 * ran.bubble_fraction
    bars[name] = {"computing": 100 - idle_share, "idle": idle_share}
    told[name] = f"holds {ran.in_flight(0):g} … {ran.in_flight(7):g}"
    assert abs(ran.idle[3] - bubble.bubble_time(name, 8, 16, chunks)) < 1e-9
title = "8 stages, 16 micro-batches: idle time, and micro-batches held"
figures.stacked_bars(bars, title, "{:.1f} %".format, told)

# %% [markdown]
# ZB-V idles least, 6.8 %, and holds 8; DualPipe 11 %, for a second copy of the weights; interleaving needs 11.5 on the first stage.
#
# Now move the controls yourself. Times are in forward passes of a stage.
#
# 1. Start with 1f1b, 4 stages. How many micro-batches does it take until the bubble is at most 10 % of the
#    whole time?
# 2. Choose `interleaved` and raise the virtual stages from 1 to 4. What falls, and which number goes up?
# 3. 8 stages, 16 micro-batches, `transfer` 0.25. Which suffers more, gpipe or 1f1b? Why?
# 4. Make the last stage 1.5 × as long. Where do the others wait?

# %%
from course_lib.chapters.ch11_pipelines import panels

panels.pipeline(schedule="1f1b", stages=4, micro_batches=8)

# %%
more = panels.pipeline(schedule="1f1b", stages=4, micro_batches=27)
assert more.result.bubble_fraction == 0.1
try:
    panels.pipeline(schedule="1f1b", virtual_stages=2)
except ValueError as problem:
    print(problem)

# %% [markdown]
# **Answers.**
#
# 1. 27: $3/(27+3)$ is 10 %.
# 2. The bubble falls from 27.3 to 8.6 %. Stage 0 holds 5.5 micro-batches with two chunks, and then a little less again, $4 + 3/v$.
# 3. 1F1B: each of its stages waits for its neighbour's answer in every round. GPipe pays for messages only while it fills and empties.
# 4. In every round, for the gradient from the last stage.
#
# **Remember**
# - The gradients of the weights fill gaps, since nobody waits for them. ZB-H1 leaves a third of
#   the bubble, ZB-H2 no gap for $2p-1$ in flight, ZB-V no gap for twice the messages.

# %% [markdown]
# ## 11.6 Wires, and stages that are not equal
#
# What crosses a cut? The activations of one micro-batch, $b$ sequences of $s$ tokens with $h$ numbers each:
# $b \cdot s \cdot h$ numbers forward, and equally many backward. LLaMA-2 70B, $b=1$, $s=4096$, $h=8192$, bf16:
#
# $$1 \cdot 4096 \cdot 8192 \cdot 2 \text{ bytes} = 67.1 \text{ MB}.$$
#
# Is this much? Compare it with the computation in between: 10 layers on each of 8 stages, one layer on each of 80.

# %%
message = 1 * 4096 * 8192 * 2
wire = hardware.HDR  # InfiniBand, 200 Gb/s
send = collectives.seconds("send-recv", message, 2, wire)
one_layer = flops.layer_flops(llama, 0, 1, 4096).model_flop
forward = one_layer / 3 / (0.4 * 989.4e12)  # a third is forward; H100 at 40 % of peak

# %%
bars = {
    f"{80 // n} stages of {n}": {
        "computing": 1000 * n * forward,
        "message": 1000 * send,
    }
    for n in (10, 1)
}
parts = {
    name: f"message: {one['message'] / one['computing']:.1%} of computing"
    for name, one in bars.items()
}
title = "One micro-batch on one stage, forward, and its message"
colours = {"message": style.MESSAGES}
figures.stacked_bars(bars, title, "{:.1f} ms".format, parts, colours=colours)

# %%
assert send / (10 * forward) < 0.02 and send / forward > 0.1

# %% [markdown]
# Between one and two per cent with 8 stages, over a network, and more than a tenth with 80. Note 004 warns that more
# stages mean more bytes and more latency in total. That is true: $p$ stages have $p-1$ cuts. A single GPU does not send
# more, but it has less to compute in between.
#
# Now the same model under tensor parallelism: 4 all-reduces
# of the same $b \cdot s \cdot h$ numbers in *every layer* (chapter 10). Bytes that one GPU sends in an
# update of 64 micro-batches:

# %%
cluster = Cluster(hardware.accelerator("H100-SXM"))
layouts = {
    "8 stages": Layout(pp=8, accumulation=64),
    "tensor 8": Layout(tp=8, accumulation=64),
}
sent = {
    name: step_traffic.step_traffic(
        Job(llama, Recipe(), layout, cluster, sequence=4096), layout.pp // 2
    )
    for name, layout in layouts.items()
}
assert sent["tensor 8"].total_bytes > 250 * sent["8 stages"].total_bytes
totals = {name: wires.total_bytes for name, wires in sent.items()}
figures.bars(totals, units.format_bytes, "Sent by one GPU in one update")

# %% [markdown]
# Nearly 300 times. That settles which wire is for whom: **tensor parallelism inside the server, over
# NVLink; pipeline stages between servers, over the network.** Chapter 13 builds on it.
#
# One more message, once an update: GPT-2 uses its embedding table as head as well (tied weights). The
# embedding lies on the first stage, the head on the last. Each has a copy, and each computes a part of the
# gradient. So the two stages all-reduce it; otherwise the copies drift apart. GPT-2's 50,257 × 768 numbers:

# %%
gpt2 = models.MODELS["gpt2-124m"]
wires = step_traffic.step_traffic(
    Job(gpt2, Recipe(), Layout(pp=4, accumulation=64), cluster, sequence=1024), 0
)
print(wires.explain())
assert wires.collectives[-1].size_bytes == 50257 * 768 * 2

# %% [markdown]
# ### The slowest stage sets the pace
#
# The last stage also has the head. For LLaMA-2 70B that is as much work as 0.28 layers:

# %%
head = flops.head_flops(llama, 1, 4096).model_flop
print(f"the head is {head / one_layer:.2f} layers")

# %% [markdown]
# On a stage of 10 layers, 3 %. On the stages of *one* layer in note 004, 28 %, and all other 79 stages wait for
# it. The first micro-batch goes through all stages and back. If the slowest stage is the last one, as here, it
# never rests after its first pass:
#
# $$\text{makespan} = \sum_{k} (f_k + b_k) + (m-1)\,\max_k\,(f_k+b_k).$$
#
# Four stages, the last 1.5 times as slow, 8 micro-batches: $3 \cdot 3 + 4.5 + 7 \cdot 4.5 = 45$ instead of 33.

# %%
uneven = PassTimes(forward=(1, 1, 1, 1.5), backward=(2, 2, 2, 3))
slow = simulation.timeline("1f1b", 4, 8, times=uneven)
expect(3 * 3 + 4.5 + 7 * 4.5, slow.makespan, label="makespan", unit="units")

# %% [markdown]
# A slow stage further in front costs less. While the first micro-batch is on its way to the end and back, stage
# $k$ has its warm-up to do, $p-1-k$ forward passes, which the formula counts as if they came later. So they
# come off: $(p-1-k)\,f_k$.

# %%
charts = {}
for place in range(4):
    pace = [1.5 if stage == place else 1 for stage in range(4)]
    times = PassTimes(forward=tuple(pace), backward=tuple(2 * x for x in pace))
    ran = simulation.timeline("1f1b", 4, 8, times=times)
    charts[f"stage {place} is slow"] = ran.tasks
    assert ran.makespan == 45 - (3 - place) * 1.5
ends = ("stage 0 is slow", "stage 3 is slow")
figures.timeline({name: charts[name] for name in ends}, seconds=False)

# %% [markdown]
# Wherever it is, the slow stage sets the pace: one more micro-batch costs 4.5 units. So more micro-batches do
# not help here: for large $m$ the three others are idle for a third of the time. What helps is to move layers.
# For Llama 3 405B with its 126 layers the first and the last stage got one layer less each, because of embedding
# and head (arXiv:2407.21783, section 3.3.2).
#
# ### Choosing
#
# - **Stages:** as few as the memory needs. Each costs bubble, and 80 stages of one layer are a bad idea: a
#   bubble that needs hundreds of micro-batches, and a slowest stage 28 % over the others.
# - **Micro-batches:** $m = \text{global batch} / (b \cdot \text{dp})$. More data-parallel copies leave
#   fewer micro-batches for each pipeline. A batch of 1024 sequences with 16 copies and $b=1$ leaves 64.
# - **Micro-batch size:** small, usually 1 or 2: more micro-batches and less memory. Too few tokens, and the
#   matrices are limited by memory (chapter 5).
# - **Schedule:** 1F1B first; interleaved when $m$ is small and the wire is fast; zero bubble when every stage has
#   room for $p$ micro-batches: ZB-H1, or ZB-V on a fast wire.
#
# **Remember**
# - A cut costs $b \cdot s \cdot h$ numbers each way: cheap. Pipelines go over the network.
# - A tied table needs an all-reduce between the two ends.
# - The slowest stage sets the pace.

# %% [markdown]
# ## 11.7 From scratch, then from the library
#
# Three pieces. `Part`, which you used above, holds layers of a GPT. The second piece runs the passes, those of
# section 11.1 with a place for what is in flight. Exercise 11.11 builds it; you may want to do that first, before
# you read on.

# %%
show_source(scratch.pipeline.Pipeline.run)

# %%
show_source(
    scratch.pipeline.Pipeline.forward,
    scratch.pipeline.Pipeline.backward,
)

# %% [markdown]
# - `run` goes through the order of this stage, the *same list* that the simulator plays. It takes what the
#   pass needs, computes, and sends on what it made.
# - `held` keeps input and output of each micro-batch in flight.
# - `forward` returns `y.detach()`: over the wire goes a tensor, not a graph. `backward` starts from the
#   gradient that has arrived.
# - The loss is divided by the tokens of *all* micro-batches, as in chapter 2.
# - In a V (`way`) the same passes run, and only the letters take another way. "Both ways" is DualPipe: both copies of
#   a weight get the sum of their gradients.
#
# A backward pass in two halves, for zero bubble: autograd is asked for the input only, and later for the
# weights.

# %%
show_source(
    scratch.pipeline.Pipeline.backward_input,
    scratch.pipeline.Pipeline.backward_weight,
)

# %% [markdown]
# Read the last one again, for it has a flaw that is there on purpose. Autograd has no call for "the rest": to
# reach the weights it walks back through the layers a second time, and makes the gradients of the
# activations in between once more. Count the FLOP of a whole backward pass B, and of its two halves:


# %%
def backward_flop(*wanted):
    """FLOP of the middle stage's backward pass, for the gradients of `wanted` only."""
    y = middle(in_1)
    return measure.times.matmul_flops(
        lambda: y.backward(torch.ones_like(y), inputs=list(wanted))
    )


weights = list(middle.parameters())
whole_b = backward_flop(in_1, *weights)
only_i, only_w = backward_flop(in_1), backward_flop(*weights)
assert only_w == whole_b and only_i > 0.5 * whole_b
halves = {"gradient of the input": only_i, "gradient of the weights": only_w}
bars = {"B, in one": {"backward": whole_b}, "I, then W": halves}
figures.stacked_bars(
    bars, "FLOP of a backward pass of the middle stage", units.format_flop
)

# %% [markdown]
# W alone costs as much as all of B, and I comes on top.
# So `zb1p` shows you the order and the memory, but here it saves no real time: what the bubble loses, the second
# walk takes back. A program that wants the time keeps what I has computed for each matrix, its input and the
# gradient of its output, and leaves to W a single product of the two. (The sleeping stages of section 11.8 sleep
# for as long as such a program would compute.)
#
# The third piece is the mail. If two neighbours both *send and wait* at the same time, they hang. So nobody
# waits to send: `isend` starts, and a receive is always begun before its message is needed. `route` knows which
# tensor a pass needs or makes, and which stage has it.

# %%
show_source(scratch.pipeline_stage.Mail.take, scratch.pipeline_stage.Mail.send)

# %% [markdown]
# A `Letter` names a tensor on its way: its kind, its micro-batch, and the piece of the model that it is for. Follow
# each letter of the smallest run, two stages and two micro-batches:

# %%
print(scratch.pipeline_stage.Mail.__doc__)

# %% [markdown]
# PyTorch has all this in `torch.distributed.pipelining`. You give it the part of the model that lies on
# your rank, wrapped as a `PipelineStage`, and choose a schedule; `step` runs one update's passes:

# %%
show_source(pipeline_demo.Library)

# %% [markdown]
# Two things it does not do for you. It knows nothing of the tied table, hence the line with
# `sum_tied_gradients`. And it averages the losses of the micro-batches, each of which is a mean over its
# own tokens: right for equal lengths, wrong for ragged ones (section 2.2).
#
# **Remember**
# - A schedule is data: one list for each stage, for simulator and program alike.
# - Send without waiting, and receive in the order in which the neighbour sends.

# %% [markdown]
# ## 11.8 Demo: four stages
#
# A GPT with 9 layers and hidden size 32 on four ranks. 16 samples of 16 characters in 8 micro-batches.
# Every schedule is run from scratch, and by PyTorch where it has it.
#
# **Predict.** How many messages does the first stage send in an update of 1F1B? How many bytes, in fp32?
# And with two chunks, interleaved?

# %%
messages = predict("11.messages", "Messages, 1F1B?", yours=None)
volume = predict("11.bytes", "Bytes, 1F1B?", yours=None)
chunked = predict("11.chunks", "Messages, 2 chunks?", yours=None)

# %%
run = demos.run("pipeline", ranks=4, steps=3, sleep_ms=20, stream=False)
print("\n".join(line for line in run.report().splitlines() if "loss" in line))

# %%
by_name = {version.name: version for version in run.versions}
sends, sent_bytes = by_name["scratch 1f1b"].sent["send-recv"]
expect(8, sends, label="messages", yours=messages)
expect(8 * 2 * 16 * 32 * 4, sent_bytes, label="bytes", unit="B", yours=volume)
expect(
    8 * 3,
    by_name["torch interleaved"].sent["send-recv"][0],
    label="two chunks",
    yours=chunked,
)

# %% [markdown]
# **Explain.** The first stage sends activations only, 8 times $2 \cdot 16 \cdot 32$ numbers of 4 bytes.
# With two chunks it holds a piece in the middle too, which sends activations up and gradients down: 8 + 16.
# The gap is zero because messages are counted, not timed. Beside them there is the one all-reduce of the
# tied table:

# %%
for version in run.versions:
    assert version.sent == version.predicted_sent
    assert version.stored == version.predicted_stored
    assert version.gradient_difference < 1e-5
    in_v = version.name == "scratch zbv"
    assert version.sent.get("all-reduce") == (None if in_v else (1, VOCAB * 32 * 4))
assert by_name["scratch zbv"].sent["send-recv"] == (16, 2 * sent_bytes)

# %% [markdown]
# ZB-V sends twice as much, and needs no all-reduce: in a V the first stage holds embedding *and* head, so it has the tied table once.
# Every version has the gradient of one process up to rounding, stores a quarter of the states (one layer
# more on the first stage), and sends what is predicted. The program counted what was in flight, too:

# %%
for name, stages in run.stages.items():
    print(f"{name:<12}", [stage.most_held for stage in stages])
assert [stage.most_held for stage in run.stages["1f1b"]] == [4, 3, 2, 1]
assert [stage.most_held for stage in run.stages["gpipe"]] == [8, 8, 8, 8]
assert [stage.most_held for stage in run.stages["zbv"]] == [8, 8, 8, 8]

# %% [markdown]
# As in section 11.3. Interleaved and in a V, the program counts chunks, each of half a stage: 11 halves are 5.5
# micro-batches, $p + (p-1)/v = 4 + 3/2$, and in the V 8 halves are $p = 4$.
#
# Now the ten micro-batches of section 11.4, in two groups of five. It is the same program with another list, and stage 0 should
# hold $(2 \cdot 4 - 1 + 5)/2 = 6$:


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
# ### The bubble, measured
#
# Your laptop may have fewer cores than the pipeline has stages, and four stages that compute would disturb
# each other. Sleeping ones don't. The demo ran each schedule once more, with stages that sleep 20 ms instead of
# a forward pass and 40 ms instead of a backward pass, with the real messages between them.

# %%
asleep = {ran.schedule: ran for ran in run.sleeping}
ours = asleep["1f1b"]
figures.timeline({"1F1B, predicted": ours.predicted, "measured": ours.measured})

# %%
rows = {}
for name, ran in asleep.items():
    shares = {
        "predicted": ran.predicted_bubble_fraction,
        "measured": ran.bubble_fraction,
    }
    rows[name] = {which: 100 * share for which, share in shares.items()}
    assert ran.makespan > ran.predicted_makespan - 0.001
assert abs(ours.formula - 3 / 11) < 1e-9
colours = {"predicted": style.THEORY, "measured": style.MEASURED}
figures.grouped_bars(rows, "Idle, % of the whole time", "{:.1f}".format, colours)

# %% [markdown]
# **Explain.** Each measured bubble is larger than predicted, never smaller: a stage cannot start before
# what it needs has arrived. Two causes add time. *Timers ring late*: the operating system wakes a process
# some tenths of a millisecond after the time it asked for. *Messages
# take time*, and the four processes have to find a free core to handle them. On how many messages does
# somebody wait? Let each take 1 ms, and see how much longer 1F1B becomes.

# %%
with_messages = PassTimes(20, 40, transfer=1)  # in ms
waits = simulation.timeline("1f1b", 4, 8, times=with_messages).makespan - 660
assert waits == 16

# %%
extra = ours.makespan - ours.predicted_makespan
slept = sum(task.end - task.start for task in ours.measured if task.stage == 0)
late = slept - 8 * 0.060  # 8 micro-batches of 20 + 40 ms
print(f"{1000 * extra:.1f} ms longer: {1000 * late:.1f} ms late timers (stage 0)")
print(f"and {1000 * (extra - late) / waits:.1f} ms for each of {waits:g} messages")

# %% [markdown]
# A millisecond or more for a message of a few hundred bytes is not the wire. It is a sleeping process that has to be
# woken, and on a busy machine that takes longer. Neither cause grows with the passes. So with longer passes the
# measured bubble comes closer to the formula; try `sleep_ms=50`.
#
# Now the other half of the formula: twice the micro-batches.
#
# **Predict.** Each pass sleeps as long as before. How many times as long does 1F1B take with $m = 16$ as with $m = 8$?

# %%
twice = predict("11.twice", "Time with 16 / time with 8?", yours=None)

# %%
options = {"schedule": "1f1b", "micro_batches": 16, "sleep_ms": 20}
more = demos.run("pipeline", ranks=4, steps=3, stream=False, **options)
(longer,) = more.sleeping
times_as_long = longer.makespan / ours.makespan
# of times: the gap is shown, not judged
expect(19 / 11, times_as_long, within=None, label="16 / 8", yours=twice)

# %%
rows = {
    f"{count} micro-batches": {
        "predicted": 100 * ran.predicted_bubble_fraction,
        "measured": 100 * ran.bubble_fraction,
    }
    for count, ran in {8: ours, 16: longer}.items()
}
assert abs(longer.predicted_bubble_fraction - 3 / 19) < 1e-9
figures.grouped_bars(rows, "Idle, % of the whole time", "{:.1f}".format, colours)

# %% [markdown]
# **Explain.** Not twice as long: 8 more micro-batches add $8 \cdot 60$ ms, and the bubble of $3 \cdot 60$ ms stays as it is. Its part
# falls from 27 to 16 %. (On a busy machine both measured parts are larger.) The same samples in more pieces: 16
# messages, half as large. The bytes have not changed:

# %%
(again, _) = more.versions
assert again.sent["send-recv"] == (16, sent_bytes)

# %% [markdown]
# In a terminal, and with PyTorch's own launcher, on four GPUs without a change:
#
# ```
# course demo pipeline --ranks 4 --schedule 1f1b --micro-batches 16
# python -m torch.distributed.run --standalone --nproc-per-node 4 -m course_lib.demos pipeline --schedule zb1p
# ```

# %% [markdown]
# ## What to remember
#
# 1. A pipeline cuts the layers, and the batch into micro-batches. No copy of the model is needed.
# 2. Idle time $(p-1)(f+b)$: $(p-1)/m$ of the ideal, $(p-1)/(m+p-1)$ of the whole. Take $m \gg p$.
# 3. GPipe holds $m$ micro-batches, 1F1B $\min(m, p-k)$: one whole model's activations on stage 0.
# 4. Interleaving and zero bubble shorten the bubble and pay with messages or memory.
# 5. A cut costs $b \cdot s \cdot h$ numbers each way. Pipelines go over the network, tensor parallelism
#    over NVLink.
# 6. The slowest stage sets the pace: mind the head.
# 7. Orders can hang. Send without waiting.

# %%
from course_lib import quiz

quiz("11")

# %% [raw] tags=["quiz"]
# 4 stages, 12 micro-batches, 1F1B. For what fraction of the whole time is a stage idle?
# [ ] 25 %
# [x] 20 %
# [ ] 33 %
# Why: 3 / (12 + 3). Of the ideal time it is 3 / 12 = 25 %.
#
# You go from GPipe to 1F1B. What becomes smaller?
# [ ] the bubble
# [x] the activations in flight
# [ ] the messages
# Why: Both idle (p-1)(f+b). 1F1B holds at most p micro-batches instead of m.
#
# What does the interleaved schedule pay for its smaller bubble?
# [ ] a second copy of the weights
# [x] more messages, more in flight
# [ ] a smaller batch
# Why: With v chunks each micro-batch crosses v times as many boundaries.
#
# From 8 to 16 stages under 1F1B. How do the activations of the first stage change?
# [x] not at all
# [ ] they double
# [ ] they halve
# Why: Half as many layers, twice as many micro-batches in flight.
#
# Two wires: NVLink inside a server, InfiniBand between. Which axis goes on InfiniBand?
# [ ] tensor
# [x] pipeline
# [ ] either
# Why: A boundary is crossed once a micro-batch; tensor parallelism sends in every layer.

# %% [markdown]
# **Now you:** open [the exercises](../exercises/11_pipelines.ipynb).
#
# **Read on.** Narayanan et al. 2021, *Efficient Large-Scale Language Model Training on GPU Clusters*,
# section 2.2 (arXiv:2104.04473). Huang et al. 2018, *GPipe*, section 2 (arXiv:1811.06965). Qi et al. 2023,
# *Zero Bubble Pipeline Parallelism*, section 2 (arXiv:2401.10241). DeepSeek-V3, section 3.2.1
# (arXiv:2412.19437). Lamy-Poirier 2022, *Breadth-First Pipeline Parallelism* (arXiv:2211.05953).

# %% tags=["exercise"]
from course_lib import check, hint, solution
from course_lib.theory.pipelines import bubble, schedules, simulation
from course_lib.theory.pipelines.bubble import PassTimes

# %% [markdown] tags=["exercise"]
# ### 11.1 Calculate: the bubble
#
# 8 equal stages, 32 micro-batches, 1F1B. The idle time over the ideal time;
# over the whole time; and over the whole time with 4 chunks on each stage, interleaved?

# %% [raw] tags=["hints"]
# How many passes of a stage does the bubble last? And how many does the work last?
# One fraction is over the work, the other over work and bubble; chunks shorten the bubble.

# %% tags=["exercise"]
over_ideal, over_whole, interleaved = ..., ..., ...
### BEGIN SOLUTION
over_ideal, over_whole = 7 / 32, 7 / (32 + 7)
interleaved = 7 / (4 * 32 + 7)
### END SOLUTION
check("11.1", [over_ideal, over_whole, interleaved])

# %% [markdown] tags=["exercise"]
# ### 11.2 Debug: 2N - 1
#
# (published mistake, note 004) The note says that a stage of a pipeline with $N$ stages holds
# $2N-1$ live activations. Four runs with 4 stages and 12 micro-batches each counted the most micro-batches that every
# stage held at once. Which schedule is which? (`"gpipe"`, `"1f1b"`, `"interleaved"` with two chunks, `"zb1p"`.) And how many would a
# stage hold by the note?

# %% [raw] tags=["hints"]
# Which schedule holds all micro-batches? And which lets the last stage go back at once?
# Halves come from chunks that are half of a stage.
# What does a stage of ZB-H1 wait for, before it may free the activations?

# %% tags=["exercise"]
schedule_of = {
    "held 4, 3, 2, 1": ...,
    "held 5.5, 4.5, 3.5, 2.5": ...,
    "held 4, 4, 4, 4": ...,
    "held 12, 12, 12, 12": ...,
}
by_the_notes = ...
### BEGIN SOLUTION
schedule_of = {
    "held 4, 3, 2, 1": "1f1b",
    "held 5.5, 4.5, 3.5, 2.5": "interleaved",  # p + (p - 1) / v on the first
    "held 4, 4, 4, 4": "zb1p",  # kept until W
    "held 12, 12, 12, 12": "gpipe",
}
by_the_notes = 2 * 4 - 1
### END SOLUTION
check("11.2", [schedule_of, by_the_notes])

# %% [markdown] tags=["exercise"]
# ### 11.3 Debug: it does not get faster
#
# A pipeline of 4 stages under 1F1B is slower than its authors promised. They measure the time of an update: 4.02 s with 8
# micro-batches, 7.14 s with 16, of the same size. Three stages are alike. How long does the slowest stage need for one micro-batch, forward and backward? If
# it is the last one: how long do the others need? And what would 16 micro-batches take if layers were moved until all four were
# alike?

# %% [raw] tags=["hints"]
# 8 more micro-batches cost 3.12 s. Who decides how long each of them takes?
# The first micro-batch goes through all four stages. How long is that?
# If all stages are alike, each has a quarter of that sum, and m + p - 1 of them follow.

# %% tags=["exercise"]
slowest_s, others_s, balanced_s = ..., ..., ...
### BEGIN SOLUTION
slowest_s = (7.14 - 4.02) / 8  # each more micro-batch waits for the slowest stage
others_s = (4.02 - 8 * slowest_s) / 3  # the first one goes through all
balanced_s = (16 + 3) * (slowest_s + 3 * others_s) / 4
### END SOLUTION
check("11.3", [slowest_s, others_s, balanced_s])

# %% [markdown] tags=["exercise"]
# ### 11.4 Debug: which schedule?
#
# 8 stages, 16 micro-batches, forward 1 unit and backward 2. Choose a schedule for each of four clusters, the one with the shortest update that
# its memory allows: `"gpipe"`, `"1f1b"`, `"interleaved"` (two chunks) or `"zb1p"`. Guess from the prices in sections 11.4 and 11.5, then try them with
# `simulation.timeline(name, 8, 16, chunks, times=PassTimes(transfer=...))`.

# %% [raw] tags=["hints"]
# First strike out what does not fit: what does each schedule hold on stage 0, and on 7?
# Of those that are left: who waits for a message in each round, who only at the ends?
# timeline(name, 8, 16, chunks, times=PassTimes(transfer=1)).makespan, and .in_flight(7).

# %% tags=["exercise"]
best = {
    "a message takes 0.1 units; room for 8 micro-batches on every stage": ...,
    "the same, but the last stage, with its logits, has room for 2": ...,
    "the same, room for 12 everywhere, but no split backward passes": ...,
    "a message takes a whole unit; room for 16 everywhere": ...,
}
### BEGIN SOLUTION
best = {
    "a message takes 0.1 units; room for 8 micro-batches on every stage": "zb1p",
    "the same, but the last stage, with its logits, has room for 2": "1f1b",
    "the same, room for 12 everywhere, but no split backward passes": "interleaved",
    "a message takes a whole unit; room for 16 everywhere": "gpipe",
}
for name, chunks in {"gpipe": 1, "1f1b": 1, "interleaved": 2, "zb1p": 1}.items():
    for transfer in (0.1, 1):
        times = PassTimes(transfer=transfer)
        ran = simulation.timeline(name, 8, 16, chunks, times=times)
        held = [ran.in_flight(stage) for stage in (0, 7)]
        print(f"{name:<12}{transfer:>4}: {ran.makespan:5.1f} units, held {held}")
### END SOLUTION
check("11.4", best)

# %% [markdown] tags=["exercise"]
# ### 11.5 Debug: whose counters?
#
# (published mistake, note 003) The note attaches the definitions to the wrong family. Counters don't. Four programs train LLaMA-2 7B on 4 GPUs in bf16,
# each with one of the families of section 11.1, and 16 sequences of 4096 tokens in an update. The second GPU of each:
#
# | | weights on it | sent in an update | waits for its turn |
# |---|---|---|---|
# | A | 3.24 GB | 1.07 GB | 75 % of the time |
# | B | 3.37 GB | 105 GB | never |
# | C | 13.5 GB | 20.2 GB | never |
# | D | 3.24 GB | 1.07 GB | 15.8 % of the time |
#
# Which one is `"data"`, `"naive model"`, `"pipeline"`, `"tensor"`? By about which factor would each send more with twice the sequences in an update, and
# by which with twice the layers in the model? And how many micro-batches make an update of the pipeline?

# %% [raw] tags=["hints"]
# Which family keeps the whole model? Which lets one GPU work at a time?
# What is sent: gradients, activations at the cuts, or activations in every layer?
# The idle share of a pipeline is (p-1)/(m+p-1).

# %% tags=["exercise"]
family = {"A": ..., "B": ..., "C": ..., "D": ...}
twice_the_sequences = {"A": ..., "B": ..., "C": ..., "D": ...}
twice_the_layers = {"A": ..., "B": ..., "C": ..., "D": ...}
micro_batches = ...
### BEGIN SOLUTION
family = {"A": "naive model", "B": "tensor", "C": "data", "D": "pipeline"}
twice_the_sequences = {"A": 2, "B": 2, "C": 1, "D": 2}  # gradients have no samples
twice_the_layers = {"A": 1, "B": 2, "C": 2, "D": 1}  # as many cuts as before
micro_batches = 16  # 3 / (m + 3) is 15.8 %
### END SOLUTION
check("11.5", [family, twice_the_sequences, twice_the_layers, micro_batches])

# %% [markdown] tags=["exercise"]
# ### 11.6 Implement: the order of 1F1B
#
# Return one stage's passes under 1F1B as text, such as `["F0", "F1", "B0",
# "F2", "B1", "B2"]` for stage 0 of 2 with 3 micro-batches.

# %% [raw] tags=["hints"]
# How many stages must answer, before this one can make its first backward pass?
# Warm-up: min(m, stages - stage - 1) forward passes.
# Then one F and one B in turn, then the B that are left.


# %% tags=["exercise"]
def one_f_one_b(stage: int, stages: int, micro_batches: int) -> list[str]:
    """The order of passes of one stage."""
    ### BEGIN SOLUTION
    warm_up = min(micro_batches, stages - stage - 1)
    order = [f"F{i}" for i in range(warm_up)]
    for i in range(micro_batches - warm_up):
        order += [f"F{warm_up + i}", f"B{i}"]
    return order + [f"B{i}" for i in range(micro_batches - warm_up, micro_batches)]
    ### END SOLUTION


check("11.6", one_f_one_b)

# %% [markdown] tags=["exercise"]
# ### 11.7 Implement: choose m
#
# The smallest number of micro-batches with which 1F1B on `stages` equal
# stages is idle for at most `most_bubble` of the whole time. A bubble of 0 or less: `ValueError`.

# %% [raw] tags=["hints"]
# A loop that counts up is enough.
# Refuse most_bubble <= 0.


# %% tags=["exercise"]
def fewest_micro_batches(stages: int, most_bubble: float) -> int:
    """Micro-batches that a pipeline needs."""
    ### BEGIN SOLUTION
    if most_bubble <= 0:
        raise ValueError(
            f"most_bubble {most_bubble} is never reached: give more than 0"
        )
    micro_batches = 1
    while (stages - 1) / (micro_batches + stages - 1) > most_bubble:
        micro_batches += 1
    return micro_batches
    ### END SOLUTION


check("11.7", fewest_micro_batches)

# %% [markdown] tags=["exercise"]
# ### 11.8 Predict: a slow stage in the middle
#
# Four stages, forward 1 and backward 2 units, but stage 1 (the second one) takes 1.5 times as long. 1F1B. Predict the makespan
# with 8 and with 64 micro-batches on paper; then measure both with `simulation.timeline("1f1b", 4, 8, times=PassTimes(...))`.

# %% [raw] tags=["hints"]
# How long is the first micro-batch on its way, there and back?
# After that each later one costs the slow stage's 1.5 + 3.
# Section 11.6: what does stage 1 do while the first micro-batch is away?

# %% tags=["exercise"]
with_8, with_64 = ..., ...
### BEGIN SOLUTION
# Two of stage 1's forward passes fit into the time in which micro-batch 0 is away.
with_8, with_64 = (3 * 3 + 4.5 + (m - 1) * 4.5 - 2 * 1.5 for m in (8, 64))
### END SOLUTION
check("11.8", [with_8, with_64])

# %% [markdown] tags=["exercise"]
# ### 11.9 Calculate: on the wire
#
# GPT-3 (hidden 12288), micro-batches of one sequence of 2048 tokens, bf16,
# 8 stages of 12 layers, 64 micro-batches. How many bytes does a stage in the middle send in an update
# under 1F1B? And interleaved, with two chunks on each stage? A message should take at most 5 % of a chunk's forward pass; a layer's
# takes 19.3 ms (H100 at 40 % of peak), and the network carries 25 GB/s. Into how many equal chunks of whole layers may a stage be cut at most?

# %% [raw] tags=["hints"]
# One message has b·s·h numbers.
# A stage in the middle sends both ways, for each micro-batch and chunk.
# The message takes 2 ms, whatever the chunk. How many layers take 20 times as long?

# %% tags=["exercise"]
one_f_one_b_bytes, interleaved_bytes, most_chunks = ..., ..., ...
### BEGIN SOLUTION
message = 2048 * 12288 * 2
one_f_one_b_bytes = 2 * 64 * message
interleaved_bytes = 2 * 2 * 64 * message
fewest_layers = message / 25e9 / (0.05 * 19.3e-3)  # 2.09, so three
most_chunks = 12 // 3
### END SOLUTION
check("11.9", [one_f_one_b_bytes, interleaved_bytes, most_chunks])

# %% [markdown] tags=["exercise"]
# ### 11.10 Debug: it hangs
#
# Three stages, four micro-batches, forward 1 unit and backward 2. Stage 2 works in pairs, `F0 F1 B0 B1 F2 F3 B2 B3`, and must stay as it
# is. These orders hang. Change those of the other two, so that the run ends after 18 units, as 1F1B would, and stage 1 never holds more than 3
# micro-batches.

# %% [raw] tags=["hints"]
# Stage 2 makes B0 after F1. How many forward passes must stage 1 run before its B0?
# 1F1B's warm-up is enough to end, but not at 18: stage 2 answers later than there.
# Give both stages the doubled warm-up of section 11.3.

# %% tags=["exercise"]
### BEGIN GIVEN
stage_0 = ["F0", "F1", "F2", "B0", "F3", "B1", "B2", "B3"]
stage_1 = ["F0", "B0", "F1", "B1", "F2", "B2", "F3", "B3"]
### END GIVEN
### BEGIN SOLUTION
stage_0 = ["F0", "F1", "F2", "F3", "B0", "B1", "B2", "B3"]
stage_1 = ["F0", "F1", "F2", "B0", "F3", "B1", "B2", "B3"]  # 1F1B's own ends at 21
### END SOLUTION
check("11.10", [stage_0, stage_1])

# %% [markdown] tags=["exercise"]
# ### 11.11 Build: a pipeline's stage
#
# Write the second piece of section 11.7 yourself: what one stage does in an update, for *any* order of
# passes. Given are the parts of the model that lie on this stage (one, or several under an interleaved schedule),
# the orders of all stages, and the mail:
#
# - `mail = Mail(self.orders, self.group, self.blank)`, one for each update. `blank` is given; it needs
#   `self.window`.
# - `mail.take(work)` returns the tensor that pass `work` needs from another piece of the model. It waits until the
#   tensor has arrived. It returns None if the pass needs nothing: the forward pass of the first piece, the backward pass
#   of the last.
# - `mail.send(work, result)` starts to send what the pass has made, and does not wait. What nobody needs is not sent.
# - `mail.finish()` waits until all that was sent has arrived.
# - `sum_tied_gradients(self.parts, self.group)`, after the last pass, adds up the gradients of the tied table.
#
# Write `run`, `forward` and `backward`, some 25 lines. `run` makes each pass by `self.compute(work, arrived)`.
# The check runs real stages: the forward passes of GPipe on 2 ranks; forward and backward passes on 3, where the
# micro-batches differ in size and in the number of tokens that count; then 1F1B, and two chunks on each stage, in a
# smaller group of ranks, with other losses, and in a second update of the same `Pipeline`. It
# counts messages, and how many micro-batches you hold. What passes is kept as `mine/pipeline.py`, and
# `course demo pipeline --parts mine` trains with it.

# %% [raw] tags=["hints"]
# `run` is the same for every schedule. For each pass of `self.order`: take from the mail what it needs, compute, hand the result to the mail. Then finish the mail, and sum the gradients of the tied table.
# Forward: what has arrived starts a new graph, so it must ask for a gradient itself. Keep input and output by (micro-batch, chunk). The output of the last part becomes the loss.
# The share of a micro-batch in the loss is its sum over tokens, divided by the tokens of the whole window. What leaves the stage, and what is added up, has no graph: `detach()`.
# Backward: pop what is kept, `y.backward(arrived)` (None starts from a loss), return `x.grad`.

# %% tags=["exercise"]
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.scratch.accumulation import MicroBatch, count_tokens, loss_sum
from course_lib.scratch.pipeline_stage import Order, Pass
from course_lib.scratch.pipeline_stage import Mail
from course_lib.scratch.pipeline_stage import Part, Wires, sum_tied_gradients

### BEGIN GIVEN


class Pipeline:
    """This stage's passes of one update, in their order, on real messages."""

    def __init__(
        self,
        parts: Sequence[Part],
        orders: Sequence[Order],
        group: Wires,
        loss_sum: Callable[[Tensor, Tensor], Tensor] = loss_sum,
    ) -> None:
        self.parts = parts  # those of this stage, by chunk
        self.orders = orders  # the passes of every stage
        self.order = orders[dist.get_rank(group.up)]  # those of this stage
        self.group = group
        self.loss_sum = loss_sum  # of logits and labels, summed over tokens; any loss

    def run(self, window: Sequence[MicroBatch]) -> Tensor:
        """All passes of this stage; adds the gradients of the mean loss to `.grad`.

        `window` has the micro-batches, (inputs, labels) each, and every stage gets
        all of them. The mean is over all tokens of the window: `count_tokens(window)`.
        Returns the mean loss on the last stage, without a graph, and a 0 on the others.
        """
        ...

    def compute(self, work: Pass, arrived: Tensor | None) -> Tensor | None:
        """One pass; returns what another piece of the model needs from it."""
        do = {"F": self.forward, "B": self.backward}[work.kind]
        return do(work.micro_batch, work.chunk, arrived)

    def forward(self, i: int, chunk: int, arrived: Tensor | None) -> Tensor:
        """Micro-batch `i` through `self.parts[chunk]`; the output, without a graph.

        `arrived` is the output of the piece before, (batch, sequence, hidden), or None
        for the first piece, which takes the micro-batch's inputs. A part whose `last`
        is True returns logits, and makes of them this micro-batch's share of the loss.
        """
        ...

    def backward(self, i: int, chunk: int, arrived: Tensor | None) -> Tensor | None:
        """Add to the part's gradients; return the gradient of the part's input.

        `arrived` is the gradient of its output, or None where that became the loss.
        """
        ...

    def blank(self, i: int) -> Tensor:
        """Room for a message about micro-batch i: (batch, sequence, hidden)."""
        weight = next(
            self.parts[0].parameters()
        )  # of the right type, on the right device
        return weight.new_empty(*self.window[i][0].shape, self.parts[0].hidden)


### END GIVEN
### BEGIN SOLUTION
from course_lib.scratch.pipeline import Pipeline

### END SOLUTION

check("11.11", Pipeline)
