# %% [raw] tags=["sitting"]
# question: Why do four GPUs in a row work no faster than one?
# importance: 4
# difficulty: 3
# group: alone
# needs: 2, 4, 6

# %% [markdown]
# # 11 The bubble
#
# A model is too large for one GPU, so you put its first 20 layers on GPU 0, the next 20 on GPU 1, and so on, over four GPUs. It fits and trains, but
# it is no faster than one GPU would be, and the monitor shows each GPU busy for a quarter of the time. **Why do four GPUs in a row work no faster
# than one, and how do you keep all four busy?**
#
# After this sitting you can
#
# - draw the timeline of a pipeline and compute its idle part,
# - say how many micro-batches each stage holds, and why more stages do not mean more activations,
# - recognise an order of passes that hangs.
#
# You need chapters 2, 4 and 6.

# %%
from textwrap import fill

import torch

from course_lib import expect, measure, predict, scratch, show_source
from course_lib.chapters.ch11_pipelines import figures
from course_lib.demos.shared.text import VOCAB, Windows
from course_lib.theory import (
    Job,
    PassTimes,
    Recipe,
    activations,
    bubble,
    collectives,
    models,
    schedules,
    simulation,
    units,
)

torch.set_num_threads(1)

# %% [markdown]
# ## 11.1 One device after another
#
# Take a GPT with 6 layers and three devices: two layers on each. The layers on one device are a **stage** (流水线阶段).

# %%
gpt = scratch.gpt.GPT(layers=6, hidden=64, heads=4, vocab=VOCAB, context=64)
first, middle, last = (  # two layers each
    scratch.pipeline_stage.cut(gpt, [2, 2, 2], stage, 3)[0] for stage in range(3)
)
inputs, labels = Windows(sequence=64).batch(range(4))
loss_sum = scratch.accumulation.loss_sum

# %% [markdown]
# In the forward pass one tensor crosses each cut: the activations. `detach` cuts autograd's graph there, since no graph reaches another device.

# %%
up_1 = first(inputs)  # (4, 64, 64): batch, sequence, hidden
in_1 = up_1.detach().requires_grad_()  # what arrives on the second device
up_2 = middle(in_1)
in_2 = up_2.detach().requires_grad_()  # what arrives on the third
loss = loss_sum(last(in_2), labels)

# %% [markdown]
# In the backward pass their gradient crosses it in the other direction, and each device starts from the gradient that arrives.

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
# The gradient is that of the uncut model. Now look at the time. Let a forward pass of a stage take 1 unit and a backward pass 2 (chapter 5). Each row
# is a device; what is not coloured is idle.

# %%
one = simulation.timeline("naive", stages=3, micro_batches=2)
figures.timeline({"three devices, two batches": one.tasks}, seconds=False)

# %% [markdown]
# Two batches take 18 units from the first start to the last end. That is the **makespan** (完工时间). Each device works for 6 units and waits for 12. The
# idle time is called the **bubble** (气泡). With $p$ stages that take turns, each is idle for $(p-1)/p$ of the time; here that is two thirds.
# ($p$ is also called the *depth* of the pipeline, 流水线深度.) This is **naive model parallelism** (朴素模型并行). It buys memory but no speed.

# %%
assert one.makespan == 18 and one.busy == (6, 6, 6)
assert one.bubble_fraction == 2 / 3

# %% [markdown]
# **Model parallelism** (模型并行) means any cut of the model, between its layers or inside each layer. Four families are easily mixed up:
#
# - *Data parallelism* cuts the samples. Each device holds the whole model and sends gradients, once an update.
# - *Naive model parallelism* cuts the layers and sends activations at each cut. One device works at a time.
# - *Pipeline parallelism* cuts the layers, and the batch into micro-batches, so that all devices work. It sends the same activations.
# - *Tensor parallelism* cuts each matrix and sends sums within each layer (chapter 10).
#
# So a pipeline needs no copy of the model, although notes 002 and 003 say that it combines data and model parallelism. What
# drives a device is a **worker** (工作进程): a process with a rank, not a thread (线程).
#
# **Remember**
# - Cut the layers: one tensor crosses each cut forward, one backward. The gradient stays the same.
# - Naive model parallelism leaves each of $p$ devices idle for $(p-1)/p$ of the time.

# %% [markdown]
# ## 11.2 Micro-batches, and counting squares
#
# Now cut the batch as well, into $m$ micro-batches. When stage 0 has finished micro-batch 0, it goes on with micro-batch 1 while stage 1 works on
# micro-batch 0. That is **GPipe** (Huang et al. 2018, arXiv:1811.06965): first all forward passes, then all backward passes. The gradients add up as in
# chapter 2, and the update comes at the end.
#
# **Predict.** 4 stages, 8 micro-batches, 1 unit forward and 2 units backward. For what percentage of the time is a stage idle? Think of the last
# stage: when does it begin, and how long does the update go on after its last pass?

# %%
idle = predict("11.idle", "Idle in %?", yours=None, unit="%")

# %%
gpipe = simulation.timeline("gpipe", stages=4, micro_batches=8)
measured = 100 * gpipe.bubble_time / gpipe.makespan
expect(100 * 3 / 11, measured, within=1e-9, label="idle", unit="%", yours=idle)

# %%
figures.timeline({"GPipe, 4 stages, 8 micro-batches": gpipe.tasks}, seconds=False)

# %% [markdown]
# **Explain.** The picture is 33 units wide. In each row 8 forward and 8 backward passes make $8 \cdot 1 + 8 \cdot 2 = 24$ coloured units, so 9 are empty.
# The last stage waits until micro-batch 0 has come through 3 other stages, $3 \cdot 1$ units. After its last pass the gradient goes back through those 3
# stages, $3 \cdot 2$ units. In the other rows the gap lies elsewhere and has the same length.

# %%
assert gpipe.makespan == 33 and gpipe.busy == (24,) * 4

# %% [markdown]
# **Predict.** Four times as many micro-batches, 32 instead of 8. For what percentage of the time is a stage idle now?

# %%
many = predict("11.many", "Idle in %, m = 32?", yours=None, unit="%")

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
# **Explain.** The bubble is as long as before, 9 units. The work around it has grown from 24 to 96 units, so 9 of 105 are idle: 8.6 %.
#
# With $p$ stages, $m$ micro-batches, and times $f$ and $b$ of a forward and a backward pass of one stage:
#
# $$\text{busy} = m\,(f+b), \qquad \text{idle} = (p-1)\,(f+b).$$
#
# Two fractions are in use. Always say which one you mean:
#
# $$\frac{\text{idle}}{\text{busy}} = \frac{p-1}{m} = \frac{9}{24} = 37.5\,\%, \qquad
# \frac{\text{idle}}{\text{idle + busy}} = \frac{p-1}{m+p-1} = \frac{9}{33} = 27.3\,\%.$$
#
# The left one divides by the *ideal* time: it says how much longer an update takes than without a bubble (Narayanan et al. 2021, arXiv:2104.04473,
# section 2.2). The right one divides by the *whole* time: it is what a monitor shows (GPipe, section 2.3). Neither depends on $f$ and $b$, which
# cancel.

# %%
assert gpipe.bubble_over_ideal == bubble.bubble_over_ideal(4, 8) == 3 / 8
assert longer.bubble_fraction == bubble.bubble_fraction(4, 32) == 3 / 35

# %% [markdown]
# With $m = p$ about half of the time is idle, and with $m = 4p$ still 16 to 20 %. To get below 10 % a plain pipeline needs $m = 9p$.

# %%
for p in (4, 80):
    assert 0.42 < bubble.bubble_fraction(p, p) < 0.5
    assert 0.15 < bubble.bubble_fraction(p, 4 * p) < 0.2
    assert bubble.bubble_fraction(p, 9 * p) < 0.1

# %% [markdown]
# **Remember**
# - The idle time is $(p-1)(f+b)$, whatever $m$ is.
# - It is $(p-1)/m$ of the ideal time and $(p-1)/(m+p-1)$ of the whole time.
# - $m = p$ leaves nearly half of the machine idle.

# %% [markdown]
# ### Deeper: as many micro-batches as stages
#
# Each curve begins at $m = p$. Read off how much is idle there, and how far it is to 10 %:

# %% tags=["drawing"]
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
# With $m = p = 80$ there is one moment at which every stage has work, and then the pipeline begins to empty. So $m = p$ is the least that lets all
# stages work at once. For 10 %, 80 stages need 711 micro-batches. (Note 004 takes $m = p$ for enough: with 80 layers on 80 stages "the batch size must
# equal the number of layers".)
#
# GPipe's authors call the bubble negligible from $m \ge 4p$ on (section 2.3). One of their reasons is that their pipeline recomputes activations
# (chapter 4): the work grows to $m(2f+b)$, and the bubble does not, since a stage can recompute while it waits. With 4 stages, 16 micro-batches, $f =
# 1$ and $b = 2$ the bubble is then 9 units beside 64 units of work, 12 % of the whole time instead of 16 %.

# %%
assert round(9 / (9 + 16 * (2 * 1 + 2)), 2) == 0.12
assert round(bubble.bubble_fraction(4, 16), 2) == 0.16

# %% [markdown]
# ## 11.3 What lies in memory: 1F1B
#
# More micro-batches lower the idle share, but cost memory. A stage keeps the activations of a micro-batch from its forward pass until its
# backward pass. In between the micro-batch is **in flight** (在途). GPipe does all forward passes first, so at the peak all $m$ are in flight: 32
# micro-batches, 32 times the activations.
#
# The last stage could do its backward pass at once. When its gradient arrives on the stage before, that stage can do the same. This is
# **1F1B**, one forward, one backward (Narayanan et al. 2021, section 2.2.1). Stage $k$ first makes $p - 1 - k$ forward passes, one for each stage
# after it. Then it does one forward and one backward pass in turn.

# %%
in_turn = simulation.timeline("1f1b", stages=4, micro_batches=8)
assert in_turn.makespan == gpipe.makespan

# %% [markdown]
# The update takes 33 units, as with GPipe. Step through it to see the difference: below the timeline there is a box for each micro-batch in flight. When
# does stage 0 take its fifth micro-batch, and what has to happen first? Then choose gpipe, and watch the boxes pile up.

# %%
from course_lib.chapters.ch11_pipelines import steppers

steppers.schedule("1f1b", stages=4, micro_batches=8)

# %% [markdown]
# At 12 units, when micro-batch 0 has come back and freed its memory.
#
# **Predict.** 8 stages and 64 micro-batches under 1F1B. How many micro-batches are in flight on stage 2 at most?

# %%
held = predict("11.held_on_2", "In flight on stage 2 of 8?", yours=None)

# %%
eight = simulation.timeline("1f1b", stages=8, micro_batches=64)
expect(8 - 2, eight.in_flight(2), label="in flight on stage 2", yours=held)

# %%
assert [in_turn.in_flight(stage) for stage in range(4)] == [4, 3, 2, 1]
assert [gpipe.in_flight(stage) for stage in range(4)] == [8, 8, 8, 8]

# %% [markdown]
# **Explain.** There are 5 stages after stage 2. It warms up with 5 forward passes and runs a sixth; from there on each forward pass follows a backward
# pass. So stage $k$ holds $\min(m,\ p-k)$ micro-batches, however large $m$ is. That is why large runs use 1F1B.
#
# ### More stages, the same activations
#
# Stage 0 holds $p$ micro-batches. Does a deeper pipeline need more memory for activations? No: each of its $p$ micro-batches is in flight on *one stage*,
# which has only $L/p$ of the $L$ layers:
#
# $$\underbrace{\tfrac{L}{p}}_{\text{layers}} \times \underbrace{p}_{\text{in flight}} = L .$$
#
# Stage 0 holds as many activations as a whole model with one micro-batch, *for any number of stages* (Korthikanti et al. 2022, arXiv:2205.05198, section
# 4.2.3). For LLaMA-2 70B and a micro-batch of one sequence of 4096 tokens, a layer keeps $40.5\,sbh$ bytes (chapter 4), or 1.36 GB:

# %%
llama = models.MODELS["llama2-70b"]
layer = activations.layer_activation_bytes(Job(llama, Recipe(), sequence=4096))
assert layer == 40.5 * 4096 * 8192

# %% tags=["drawing"]
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
# The first stage keeps 109 GB, whatever $p$ is. So stages divide weights, gradients and optimizer states by $p$, but *not* the first stage's
# activations. Tensor parallelism (chapter 10) and recomputation (chapter 4) do. (Note 004's "160 times the activations" for 80 stages counts twice
# as many micro-batches, each with all layers.)
#
# ### Orders that hang
#
# A schedule is only an order of passes for each stage. The simulator has one rule: *a pass starts as soon as its stage is free and what it needs has
# arrived*. You can give it an order of your own. A careless one **hangs**, as in chapter 6, because each stage waits for the other:

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
# **Remember**
# - GPipe holds $m$ micro-batches, 1F1B $\min(m, p-k)$ on stage $k$. The bubble is the same.
# - Under 1F1B stage 0 holds one whole model's activations for one micro-batch, for any $p$.
# - A schedule is an order of passes. The order alone decides whether it ends.

# %% [markdown]
# ### Deeper: recompute whole stages
#
# On 8 stages of 10 layers, recompute each stage as GPipe does, and 109 GB become 14. Of each of the 8 micro-batches in flight only the tensor
# that arrived is kept, 67 MB, and only the one at work has all of its activations, 13.6 GB. In GPipe's own order, with all of
# 80 micro-batches in flight, it is 19 GB.

# %%
arrived = collectives.activation_bytes(1, 4096, 8192)  # at one boundary, in bf16
assert [round(size / 1e9, 1) for size in (80 * layer, 10 * layer)] == [108.7, 13.6]
assert [round((held * arrived + 10 * layer) / 1e9) for held in (8, 80)] == [14, 19]

# %% [markdown]
# ### Deeper: the course's own order and simulator
#
# Try exercise 11.6 first: it asks for the order of 1F1B. Here is ours:

# %%
show_source(schedules.one_f_one_b_order, schedules._one_in_turn)

# %% [markdown]
# The simulator goes through the list of a stage until something is missing. Then it puts the stage aside until another one has made it.

# %%
show_source(simulation._Simulation._advance)

# %% [markdown]
# ## The answer
#
# Four stages that take turns are each idle for three quarters of the time. Cut the batch as well, into $m$ micro-batches, and the idle part falls to
# $(p-1)/(m+p-1)$: 27 % with 8 micro-batches, 8.6 % with 32. 1F1B has the same bubble as GPipe, but the first of the four stages then holds 4
# micro-batches instead of 32.
#
# **Read on.** Huang et al. 2018, *GPipe*, section 2 (arXiv:1811.06965). Narayanan et al. 2021, *Efficient Large-Scale Language Model Training on GPU
# Clusters*, section 2.2 (arXiv:2104.04473).

# %% tags=["exercise"]
from course_lib import check, hint, solution
from course_lib.theory.pipelines import schedules, simulation
from course_lib.theory.pipelines.bubble import PassTimes

# %% [markdown] tags=["exercise"]
# ### 11.5 Debug: whose counters?
#
# (published mistake, note 003) The note attaches the definitions of parallelism to the wrong families. Counters cannot do that. Four programs train LLaMA-2 7B on 4 GPUs in bf16,
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
# with twice the layers in the model? And how many micro-batches make up an update of the pipeline?

# %% [raw] tags=["hints"]
# importance 3, difficulty 3
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
# Return the passes of one stage under 1F1B, in order, as text. For stage 0 of 2 with 3 micro-batches they are
# `["F0", "F1", "B0", "F2", "B1", "B2"]`.

# %% [raw] tags=["hints"]
# importance 3, difficulty 3
# How many stages must answer before this one can make its first backward pass?
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
# ### 11.10 Debug: it hangs
#
# Three stages, four micro-batches, 1 unit forward and 2 backward. Stage 2 works in pairs, `F0 F1 B0 B1 F2 F3 B2 B3`, and must stay as it is. The orders
# below hang. Change those of stages 0 and 1 so that the run ends after 18 units, as under 1F1B, and stage 1 never holds more than 3
# micro-batches.

# %% [raw] tags=["hints"]
# importance 4, difficulty 4
# Stage 2 makes B0 after F1. How many forward passes must stage 1 run before its B0?
# 1F1B's warm-up is enough to end, but not at 18: stage 2 answers later than it would under 1F1B.
# Let both stages warm up longer than under 1F1B: stage 1 with two forward passes, stage 0 with three.

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
