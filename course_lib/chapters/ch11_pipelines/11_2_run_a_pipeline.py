# %% [raw] tags=["sitting"]
# question: Which wire does a pipeline need, and which schedule should you run?
# importance: 4
# difficulty: 4
# group: group

# %% [markdown]
# # 11 Run a pipeline
#
# Cut LLaMA-2 70B into 80 stages of one layer. Each stage fits easily, but each message takes more than a tenth of a stage's computing time, and 79 stages
# wait for the one with the head. **Which wire does a pipeline need, and which schedule should you run?**
#
# After this sitting you can
#
# - say what interleaved and zero-bubble schedules save and cost,
# - predict what the slowest and the fullest stage do to the others,
# - choose stages, micro-batches and schedule, and write a pipeline with real messages.

# %%
import torch

from course_lib import demos, expect, launch, predict, scratch, show_source, style
from course_lib.chapters.ch11_pipelines import figures
from course_lib.chapters.ch11_pipelines.demos import pipeline as pipeline_demo
from course_lib.demos.shared.text import VOCAB
from course_lib.theory import (
    Cluster,
    Job,
    Layout,
    PassTimes,
    Recipe,
    collectives,
    flops,
    gpu_memory,
    hardware,
    models,
    simulation,
    units,
)
from course_lib.theory.network import step_traffic

launch.warm_up()
torch.set_num_threads(1)

# %% [markdown]
# ## 11.4 Shorter pieces
#
# 8 layers on 4 devices. Instead of layers 0 and 1, give device 0 layers 0 and 4; device 1 gets 1 and 5, and so on. Each device then has two short pieces,
# called **virtual stages** (虚拟阶段) or chunks, and a micro-batch goes round twice. This is the **interleaved** (交错调度) schedule.

# %%
figures.layer_paths(
    {
        "one stage each": [layer // 2 for layer in range(8)],
        "interleaved": [layer % 4 for layer in range(8)],
    }
)

# %% [markdown]
# With $v$ chunks a pass takes $1/v$ of the time. Filling the pipeline still takes $p-1$ passes, but short ones:
#
# $$\text{idle} = \frac{(p-1)(f+b)}{v}, \qquad \frac{\text{idle}}{\text{idle + busy}} = \frac{p-1}{v\,m + p-1}.$$
#
# With 4 stages, 8 micro-batches and $v = 2$, the 9 idle units of section 11.2 become 4.5, and 27.3 % become 15.8 %. The price: every micro-batch
# crosses about $v$ times as many cuts, and stage 0 holds a few more of them, $p + (p-1)/v$ instead of $p$. Micro-batches go round in groups of $p$,
# so $m$ must be a multiple of $p$ (Narayanan et al. 2021, arXiv:2104.04473, section 2.2.2).

# %%
chunked = simulation.timeline("interleaved", 4, 8, 2)
assert abs(chunked.bubble_fraction - 3 / (2 * 8 + 3)) < 1e-9
assert chunked.in_flight(0) == 4 + 3 / 2

# %% [markdown]
# **Remember**
# - $v$ chunks divide the bubble by $v$, for about $v$ times the messages.

# %% [markdown]
# ## 11.5 Zero bubble
#
# A backward pass makes two things: the gradient of its input, which the stage before is waiting for, and the gradients of its weights, which are not
# needed until the update. **Zero bubble** (零气泡) schedules split them into two passes, I and W. They run I immediately, and postpone W until the stage
# would otherwise idle. With $w$ for the time of W, the simplest of them, ZB-H1, idles
#
# $$(p-1)\,(f + b - 2w), \quad\text{with } b = 2,\ w = 1:\ 3 \text{ units instead of } 9$$
#
# (Qi et al. 2023, arXiv:2401.10241, section 2; as long as $w$ is at most $f$ and at most half of $b$). The price: a micro-batch's activations are kept
# until its W, so every stage holds $p$ micro-batches, even the last one.

# %%
charts = {}
for name, schedule, chunks in (
    ("1F1B", "1f1b", 1),
    ("interleaved", "interleaved", 2),
    ("ZB-H1", "zb1p", 1),
):
    ran = simulation.timeline(schedule, 4, 8, chunks)
    charts[f"{name}: {100 * ran.bubble_fraction:.1f} % idle"] = ran.tasks
assert [ran.in_flight(stage) for stage in range(4)] == [4, 4, 4, 4]  # ZB-H1
figures.timeline(charts, seconds=False)

# %% [markdown]
# Schedules without any gap (ZB-H2, ZB-V, DeepSeek's DualPipe) and their price are in [the deeper sitting](11_3).
#
# **Remember**
# - The gradients of the weights can wait, so they fill gaps. ZB-H1 leaves a third of the bubble, and every stage holds $p$ micro-batches.

# %% [markdown]
# ## 11.6 Wires, and stages that are not equal
#
# What crosses a cut? The activations of one micro-batch, $b$ sequences of $s$ tokens with $h$ numbers each. For LLaMA-2 70B with $b=1$, $s=4096$,
# $h=8192$ in bf16:
#
# $$b \cdot s \cdot h \cdot 2 \text{ bytes} = 1 \cdot 4096 \cdot 8192 \cdot 2 \text{ bytes} = 67.1 \text{ MB forward, and as much backward.}$$
#
# Compare that with the computation in between, on 8 stages of 10 layers and on 80 stages of one:

# %%
llama = models.MODELS["llama2-70b"]
wire = hardware.HDR  # InfiniBand, 200 Gb/s
send = collectives.seconds("send-recv", 1 * 4096 * 8192 * 2, 2, wire)
one_layer = flops.layer_flops(llama, 0, 1, 4096).model_flop
forward = one_layer / 3 / (0.4 * 989.4e12)  # a third is forward; H100 at 40 % of peak
assert send / (10 * forward) < 0.02 and send / forward > 0.1

# %% tags=["drawing"]
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

# %% [markdown]
# Under 2 % with 8 stages, over a network, and more than 10 % with 80.
#
# **Predict.** Now cut the same model by tensor parallelism over 8 GPUs. Each of its 80 layers then has 4 all-reduces of such a 67 MB tensor for each
# micro-batch, 2 forward and 2 backward, and a ring over 8 GPUs sends $2 \cdot \frac78$ of a tensor. A stage in the middle of a pipeline sends two
# tensors. How many times as many bytes does a GPU send under tensor parallelism?

# %%
ratio = predict("11.wire", "Bytes, tensor / pipeline?", yours=None)


# %%
def sent(layout, stage=0):
    """What one GPU sends in an update of 64 micro-batches."""
    cluster = Cluster(hardware.accelerator("H100-SXM"))
    job = Job(llama, Recipe(), layout, cluster, sequence=4096)
    return step_traffic.step_traffic(job, stage).total_bytes


totals = {
    "8 stages": sent(Layout(pp=8, accumulation=64), stage=4),
    "tensor 8": sent(Layout(tp=8, accumulation=64)),
}
factor = totals["tensor 8"] / totals["8 stages"]
expect(
    80 * 4 * 2 * 7 / 8 / 2, factor, within=0.01, label="tensor / pipeline", yours=ratio
)

# %%
figures.bars(totals, units.format_bytes, "Sent by one GPU in one update")

# %% [markdown]
# **Explain.** 280 by hand; counted, it is 282, because embedding and head are cut as well. So **tensor parallelism goes inside the server, over
# NVLink, and pipeline stages between servers, over the network.**
#
# One more message, once an update: GPT-2 uses its embedding table as head as well (tied weights). The first and the last stage each hold a copy and
# compute a part of its gradient. They all-reduce these parts; otherwise the copies drift apart.
#
# ### The slowest stage sets the pace
#
# The last stage also has the head. For LLaMA-2 70B that is as much work as 0.28 layers:

# %%
head = flops.head_flops(llama, 1, 4096).model_flop
print(f"the head is {head / one_layer:.2f} layers")

# %% [markdown]
# That is 3 % of a stage of 10 layers, but 28 % of a stage of one, and the others wait. The first micro-batch goes through all stages and
# back. If the slowest stage is the last one, it never rests after its first pass:
#
# $$\text{makespan} = \sum_{k} (f_k + b_k) + (m-1)\,\max_k\,(f_k+b_k).$$
#
# For four stages, the last 1.5 times as slow, and 8 micro-batches this is $3 \cdot 3 + 4.5 + 7 \cdot 4.5 = 45$ units instead of 33.

# %%
uneven = PassTimes(forward=(1, 1, 1, 1.5), backward=(2, 2, 2, 3))
slow = simulation.timeline("1f1b", 4, 8, times=uneven)
expect(3 * 3 + 4.5 + 7 * 4.5, slow.makespan, label="makespan", unit="units")

# %% [markdown]
# Each further micro-batch costs the slow stage's 4.5 units, so more micro-batches do not help: for large $m$ the others are idle for a third of the
# time. What helps is to move layers. In Llama 3 405B the first and the last stage got one layer less, because of embedding and head
# (arXiv:2407.21783, section 3.3.2).
#
# ### The fullest stage decides what fits
#
# Embedding, head and logits need memory, too. LLaMA-3.1 8B on 4 stages of 8 layers, 16 micro-batches of one sequence of 8192 tokens, under 1F1B:


# %%
def on_stages(layers):
    """What lies on each of four stages with so many layers, in bytes by kind."""
    shape = models.MODELS["llama3.1-8b"]
    cluster = Cluster(hardware.accelerator("H100-SXM"))
    layout = Layout(pp=4, accumulation=16, stage_layers=layers)
    job = Job(shape, Recipe(), layout, cluster, 8192)
    return [gpu_memory(job, stage).consumers for stage in range(4)]


equal, moved = (
    [round(sum(bill.values()) / 1e9) for bill in on_stages(layers)]
    for layers in ((8, 8, 8, 8), (7, 8, 9, 8))
)
assert equal == [82, 63, 52, 55] and moved == [73, 63, 58, 55]

# %%
rows = {
    f"stage {stage}": {kind: size for kind, size in bill.items() if size > 1e8}
    for stage, bill in enumerate(on_stages((8, 8, 8, 8)))
}
limit = ("one GPU", 80 * units.GB)
figures.stacked_bars(rows, "LLaMA-3.1 8B on 4 stages", units.format_bytes, limit=limit)

# %% [markdown]
# Stage 0 has the embedding and 4 micro-batches in flight, and with 82 GB it does not fit. Stage 3 has the head and the logits, but one micro-batch in
# flight. One layer moved from stage 0 to stage 2 makes it fit: 73 GB.
#
# ### Copies of a pipeline
#
# Data-parallel copies of a pipeline sum their gradients once an update, and with ZeRO-1 that stays so. ZeRO-2 reduces them after each backward pass,
# and ZeRO-3 gathers a stage's weights again for each pass, so both send in each of $m$ micro-batches. That is why pipelines take ZeRO-1. Llama 3 uses
# FSDP, but does not free the gathered weights after the forward pass (arXiv:2407.21783, section 3.3.2).

# %% [markdown]
# ### Choosing
#
# - **Stages:** as few as the memory needs. Each one adds bubble, and short stages are uneven.
# - **Micro-batches:** a global batch of 1024 sequences on 16 copies leaves each pipeline 64 micro-batches of one sequence. Take 1 or 2 sequences,
#   unless memory bandwidth then limits the matrices (chapter 5).
# - **Schedule:** 1F1B first. Interleaved, when $m$ is small and the wire is fast. ZB-H1, when every stage has room for $p$ micro-batches.
#
# 80 layers on 8 stages with two chunks of 5 layers, in Megatron-Core and in TorchTitan:
#
# ```
# --pipeline-model-parallel-size 8 --num-layers-per-virtual-pipeline-stage 5
#
# --parallelism.pipeline_parallel_degree 8
# --parallelism.pipeline_parallel_schedule Interleaved1F1B
# ```
#
# Megatron's `overlap_p2p_comm` lets messages run beside the computation.
#
# Try it. Times are in forward passes of a stage.
#
# 1. Choose `interleaved` and raise the virtual stages from 1 to 4. What falls, and which number rises?
# 2. 8 stages, 16 micro-batches, `transfer` 0.25: which suffers more, gpipe or 1f1b, and why?

# %%
from course_lib.chapters.ch11_pipelines import panels

panels.pipeline(schedule="1f1b", stages=4, micro_batches=8)

# %% [markdown]
# **Answers.**
#
# 1. The bubble falls from 27.3 to 8.6 %. With two chunks stage 0 holds 5.5 micro-batches instead of 4; with more a
#    little less, $4 + 3/v$.
# 2. 1F1B: in every round each stage waits for its neighbour's answer. GPipe pays for messages only while it fills and empties.
#
# **Remember**
# - A cut costs $b \cdot s \cdot h$ numbers each way. Pipelines go over the network, tensor parallelism over NVLink.
# - The slowest stage sets the pace, and the fullest one decides what fits. Move layers.
# - Run 1F1B first; then pay with messages or with memory.

# %% [markdown]
# ### Deeper: a slow stage further in front
#
# It costs less. While the first micro-batch is away, stage $k$ makes its $p-1-k$ warm-up passes, which the formula counts as if they came later. So
# $(p-1-k)\,f_k$ come off:

# %%
for place in range(4):
    pace = [1.5 if stage == place else 1 for stage in range(4)]
    times = PassTimes(forward=tuple(pace), backward=tuple(2 * x for x in pace))
    ran = simulation.timeline("1f1b", 4, 8, times=times)
    assert ran.makespan == 45 - (3 - place) * 1.5
    if place == 0:
        charts = {"stage 0 is slow": ran.tasks, "stage 3 is slow": slow.tasks}

# %%
figures.timeline(charts, seconds=False)

# %% [markdown]
# ## 11.7 From scratch, then from the library
#
# A pipeline program has three pieces. `Part` holds some layers of the model; section 11.1 used it. `Pipeline` runs the passes, in the order that the
# simulator plays: for each pass it takes what the pass needs, computes, and sends the result on. `Mail` carries the tensors. **Try exercise 11.11
# first: it asks for `Pipeline`.** The course's own version is folded at the end of this section.
#
# The mail follows one rule. If two neighbours both *send and wait* at the same time, they hang, so no stage waits to send: `isend` starts a message,
# and a receive is posted before its message is needed.
#
# PyTorch has all this in `torch.distributed.pipelining`. You wrap the part of the model on your rank as a `PipelineStage` and choose a schedule;
# `step` runs the passes of one update:

# %%
show_source(pipeline_demo.Library)

# %% [markdown]
# PyTorch's schedule does not know the tied table, hence the line with `sum_tied_gradients`. And it averages the losses of the micro-batches, each a
# mean over its own tokens: right for equal lengths, wrong for ragged ones (section 2.2).
#
# **Remember**
# - A schedule is data: simulator and program run the same list.
# - Send without waiting, and receive in the order in which the neighbour sends.

# %% [markdown]
# ### Deeper: the course's own pipeline

# %%
show_source(scratch.pipeline.Pipeline.run)

# %%
show_source(
    scratch.pipeline.Pipeline.forward,
    scratch.pipeline.Pipeline.backward,
)

# %% [markdown]
# - `run` goes through this stage's order, the *same list* that the simulator plays.
# - `held` keeps input and output of each micro-batch in flight.
# - `forward` returns `y.detach()`: a tensor goes over the wire, not a graph. `backward` starts from the gradient that arrived.
# - The loss is divided by the tokens of *all* micro-batches, as in chapter 2.

# %% [markdown]
# The mail: `take` and `send`, and each tensor, called a letter, on its way through the smallest run, two stages and two micro-batches.

# %%
show_source(scratch.pipeline_stage.Mail.take, scratch.pipeline_stage.Mail.send)

# %%
print(scratch.pipeline_stage.Mail.__doc__)

# %% [markdown]
# ## 11.8 Demo: four stages
#
# A GPT with 9 layers and hidden size 32 trains on four ranks, with 16 samples of 16 characters in 8 micro-batches. Every schedule runs from scratch,
# and by PyTorch where PyTorch has it (`zb1p` is ZB-H1, `zbv` ZB-V).
#
# **Predict.** How many messages does the first stage send in an update of 1F1B? And how many times as many with two chunks, interleaved? The first stage
# then holds a piece from the middle as well.

# %%
messages = predict("11.messages", "Messages, 1F1B?", yours=None)
more_messages = predict("11.chunks", "With 2 chunks, × ?", yours=None)

# %%
run = demos.run("pipeline", ranks=4, steps=3, sleep_ms=20, stream=False)
print("\n".join(line for line in run.report().splitlines() if "loss" in line))

# %%
by_name = {version.name: version for version in run.versions}
sends, sent_bytes = by_name["scratch 1f1b"].sent["send-recv"]
in_chunks, _ = by_name["torch interleaved"].sent["send-recv"]
expect(8, sends, label="messages", yours=messages)
expect(3, in_chunks / sends, label="with two chunks", yours=more_messages)

# %% [markdown]
# **Explain.** The first stage sends activations only, one message for each micro-batch. With two chunks it also holds a piece in the middle, which sends
# activations up and gradients down: $8 + 16 = 24$. Every version has the gradient of one process, and stores and sends what is predicted, to the byte:

# %%
assert sent_bytes == 8 * 2 * 16 * 32 * 4  # micro-batches · b · s · h · bytes
for version in run.versions:
    assert version.sent == version.predicted_sent
    assert version.stored == version.predicted_stored
    assert version.gradient_difference < 1e-5
    if version.name != "scratch zbv":  # in a V both ends are one stage
        assert version.sent["all-reduce"] == (1, VOCAB * 32 * 4)  # the tied table

# %%
# What was in flight, counted. Interleaved and zbv count chunks: 11 halves of a stage.
for name, stages in run.stages.items():
    print(f"{name:<12}", [stage.most_held for stage in stages])
assert [stage.most_held for stage in run.stages["1f1b"]] == [4, 3, 2, 1]
assert [stage.most_held for stage in run.stages["gpipe"]] == [8, 8, 8, 8]

# %% [markdown]
# ### The bubble, measured
#
# Four stages that compute would disturb each other on a machine with fewer cores. Sleeping ones do not. So the demo ran each schedule once more with
# real messages and stages that sleep 20 ms instead of a forward pass and 40 ms instead of a backward pass.

# %%
asleep = {ran.schedule: ran for ran in run.sleeping}
ours = asleep["1f1b"]
figures.timeline({"1F1B, predicted": ours.predicted, "measured": ours.measured})

# %% tags=["drawing"]
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
# **Explain.** Each measured bubble is larger than predicted, because *timers fire late*, by some tenths of a millisecond, and *messages take time*: a
# sleeping process has to be woken for each. With longer passes the measured bubble comes closer to the formula; try `sleep_ms=50`.
#
# **Predict.** Now twice the micro-batches, each pass as long as before. How many times as long does an update of 1F1B take with $m = 16$ as with
# $m = 8$?

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
(again, _) = more.versions
assert again.sent["send-recv"] == (16, sent_bytes)  # more messages, the same bytes
assert abs(longer.predicted_bubble_fraction - 3 / 19) < 1e-9

# %% [markdown]
# **Explain.** 8 more micro-batches add $8 \cdot 60$ ms, and the bubble stays at $3 \cdot 60$ ms, so the time grows from 11 to 19 units of 60 ms. The
# idle part falls from 27 to 16 %.
#
# In a terminal, and by PyTorch's own launcher:
#
# ```
# course demo pipeline --ranks 4 --schedule 1f1b --micro-batches 16
# python -m torch.distributed.run --standalone --nproc-per-node 4 -m course_lib.demos pipeline --schedule zb1p
# ```

# %% [markdown]
# ### Deeper: where the extra milliseconds go
#
# On how many messages does a stage wait? Let each take 1 ms, and see how much longer 1F1B becomes:

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
# A millisecond or more for a message of a few hundred bytes is not the wire. It is a sleeping process that has to be woken, and on a busy machine
# that takes longer. Neither cause grows with the length of a pass.

# %% [markdown]
# ## The answer
#
# For LLaMA-2 70B on 8 GPUs a pipeline sends 280 times less than tensor parallelism, so the network is fast enough for it. Run 1F1B with as few stages
# as the memory needs and as many micro-batches as the batch allows. Two chunks on each stage halve the bubble for twice the messages. ZB-H1 leaves a
# third of it, if every stage can hold $p$ micro-batches. Then move layers until no stage is slower or fuller than the others.

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
# Why: With v chunks each micro-batch crosses about v times as many cuts.
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
# Why: A cut is crossed once a micro-batch; tensor parallelism sends in every layer.

# %% [markdown]
# **Read on.** Narayanan et al. 2021, section 2.2 (arXiv:2104.04473). Qi et al. 2023, *Zero Bubble Pipeline Parallelism*, section 2 (arXiv:2401.10241).
# Llama 3, section 3.3.2 (arXiv:2407.21783).

# %% [markdown] tags=["exercise"]
# ### 11.2 Debug: which measure first?
#
# The card of a run under 1F1B: 8 stages, 32 micro-batches of 2 sequences each. A forward pass takes 1 unit and a backward pass 2, half of it for W.
# Messages cost nothing. Each GPU has 80 GB, of which 40 GB hold weights, gradients and states. Stage 0 holds 34 GB of activations, and stage 7 holds
# 4.25 GB. Each stage is idle for 18 % of the time.
#
# Judge each measure by itself: `"too large"` if it needs more than 80 GB on any stage, else `"slower"` or `"faster"`. Which of those that are faster
# gives the shortest update? Enter its name in the last line.

# %% [raw] tags=["hints"]
# importance 4, difficulty 3
# One micro-batch on one stage keeps 34 / 8 GB. How many does each schedule hold on the first stage, and on the last?
# The work is 96 units. Which measure makes the idle 21 units shorter, and which adds work?
# Micro-batches of half the size have passes of half the length: the bubble is 7 of those, forward and backward.

# %% tags=["exercise"]
verdicts = {
    "GPipe's order": ...,
    "two chunks on each stage, interleaved": ...,
    "ZB-H1": ...,
    "64 micro-batches of 1 sequence": ...,
    "recompute each stage before its backward pass": ...,
    "the shortest update": ...,
}
### BEGIN SOLUTION
verdicts = {
    "GPipe's order": "too large",  # 32 · 4.25 GB
    "two chunks on each stage, interleaved": "too large",  # 11.5 · 4.25 GB
    "ZB-H1": "faster",  # 7 idle units instead of 21; 8 · 4.25 GB on every stage
    "64 micro-batches of 1 sequence": "faster",  # 10.5 idle units
    "recompute each stage before its backward pass": "slower",  # 39 · 4 units
    "the shortest update": "ZB-H1",
}
### END SOLUTION
check("11.2", verdicts)

# %% [markdown] tags=["exercise"]
# ### 11.3 Debug: it does not get faster
#
# A pipeline of 4 stages under 1F1B is slower than its authors promised. They measure the time of an update: 4.02 s with 8 micro-batches, 7.14 s with
# 16, of the same size. Three stages are alike. How long does the slowest stage need for one micro-batch, forward and backward? If it is the last one,
# how long does each of the others need? And how long would an update of 16 micro-batches take if layers were moved until all four were alike?

# %% [raw] tags=["hints"]
# importance 3, difficulty 4
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
# 8 stages, 16 micro-batches, forward 1 unit and backward 2. For each of four clusters choose the schedule with the shortest update that its memory
# allows: `"gpipe"`, `"1f1b"`, `"interleaved"` (two chunks) or `"zb1p"` (ZB-H1). Guess from the prices in sections 11.4 and 11.5, then try them with
# `simulation.timeline(name, 8, 16, chunks, times=PassTimes(transfer=...))`.

# %% [raw] tags=["hints"]
# importance 3, difficulty 4
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
# ### 11.8 Predict: a slow stage in the middle
#
# Four stages run 1F1B, with 1 unit for a forward pass and 2 for a backward pass, but stage 1 (the second one) takes 1.5 times as long. Predict the
# makespan with 8 and with 64 micro-batches on paper; then measure both with `simulation.timeline("1f1b", 4, 8, times=PassTimes(...))`.

# %% [raw] tags=["hints"]
# importance 3, difficulty 4
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
# GPT-3 (hidden 12288) trains in bf16 on 8 stages of 12 layers, with 64 micro-batches of one sequence of 2048 tokens. How many bytes does a stage in
# the middle send in an update under 1F1B? And under the interleaved schedule with two chunks on each stage? A message should take at most 5 % of a
# chunk's forward pass; that of a layer takes 19.3 ms (H100 at 40 % of peak), and the network carries 25 GB/s. Into how many equal chunks of whole
# layers may a stage be cut at most?

# %% [raw] tags=["hints"]
# importance 3, difficulty 3
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
# ### 11.11 Build: a pipeline's stage
#
# Write the second piece of section 11.7 yourself: what one stage does in an update, for *any* order of
# passes. You are given the parts of the model that lie on this stage (one, or several under an interleaved schedule),
# the orders of all stages, and the mail:
#
# - `mail = Mail(self.orders, self.group, self.blank)`, one for each update. `blank` is given; it needs
#   `self.window`.
# - `mail.take(work)` returns the tensor that pass `work` needs from another piece of the model. It waits until the
#   tensor has arrived. It returns None if the pass needs nothing: the forward pass of the first piece, the backward pass
#   of the last.
# - `mail.send(work, result)` starts to send what the pass has made, and does not wait. If no stage needs it, nothing is sent.
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
# importance 5, difficulty 5
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
