# %% [raw] tags=["sitting"]
# question: LLaMA-2 70B does not fit on sixteen GPUs: buy more, take turns, or recompute?
# importance: 5
# difficulty: 3
# group: alone
# needs: 2.1

# %% [markdown]
# # 4 Throw away and recompute
#
# LLaMA-2 70B, 8 sequences of 4096 tokens, sixteen GPUs with 80 GB: 1280 GB in all. The model states take 1104 GB
# (chapter 3); suppose that they are spread evenly. The activations are another 870 GB. **Do you buy more GPUs, or throw activations away and compute them again
# when needed?** "That costs 40 times the computation", says note 004. **Or is there a third answer?** By the end of this notebook you can
#
# - throw activations away with forty lines of code, and predict what that saves and costs,
# - explain why 40× is a myth,
# - choose the cheapest measure for a run that does not fit.

# %%
from dataclasses import replace

import torch

from course_lib import demos, expect, launch, measure, predict, scratch, show_source
from course_lib.chapters.ch04_activations import figures, segments
from course_lib.demos.shared.text import VOCAB, Windows
from course_lib.measure.gradients import saved_bytes
from course_lib.theory import Job, Layout, Recipe, activations, flops
from course_lib.theory.inputs import models, units

launch.warm_up()
torch.set_num_threads(1)

# %% [markdown]
# ## 4.3 Throw away and recompute
#
# **Activation checkpointing** (激活检查点), also called recomputation (重计算): in the forward pass keep only the *input* of each layer. In the
# backward pass, run the layer once more from its input, with everything kept, and continue from there. One layer's
# activations live at a time. For every layer this is *full* recomputation (完全重计算).
#
# For a layer of GPT-3 that is 2 bytes × $sbh$ instead of 114: 50.3 MB instead of 2.87 GB.
#
# **Predict.** By what factor does the number of operations grow, if each layer is recomputed
# when its turn comes in the backward pass?

# %%
factor = predict("4.factor", "Operations with / without?", yours=None)

# %% [markdown]
# Walk through a layer of GPT-3. How much is held while the other layers run, and how much at the highest point? Then set `recompute` so that only *attention* is
# computed again. Why is the highest point lower, although the same scores come back?

# %%
from course_lib.chapters.ch04_activations import steppers

steppers.layer(recompute="full")

# %% [markdown]
# While the other layers run, this layer holds only 50.3 MB. During its own backward pass it briefly holds 2.87 GB, but only one layer at a time does so. With attention alone it holds 856 MB, and
# 2.26 GB at the highest point: when the
# scores come back, the backward pass has already used and freed what the MLP had kept.
#
# In PyTorch, a `Function` says what happens in each pass. You build such a checkpoint in exercise 4.6. It needs three things:
#
# - `forward` runs without recording; autograd keeps `x` and nothing else.
# - `backward` runs the layers again, this time recording, and asks autograd for the gradients.
# - The state of the random generator is restored. With dropout, the second run must draw the *same* masks; otherwise the
#   gradient belongs to another function.
#
# PyTorch's own version is one call, `torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)`.
#
# ### What it saves
#
# A GPT with 6 layers, hidden size 64, 4 sequences of 64 tokens, fp32:


# %%
def build(segment=None):
    """The GPT, its blocks in segments of so many layers; None: no checkpointing."""
    torch.manual_seed(0)
    gpt = scratch.gpt.GPT(layers=6, hidden=64, heads=4, vocab=VOCAB, context=64)
    return scratch.checkpointing.cut(gpt, segment) if segment else gpt


def loss_of(gpt):
    """The loss, with its graph."""
    return scratch.accumulation.loss_sum(gpt(inputs), labels)


inputs, labels = Windows(sequence=64).batch(range(4))
normal, checkpointed = build(), build(segment=1)

# %%
from course_lib.theory import TransformerShape

six = TransformerShape(layers=6, hidden=64, heads=4, ffn=256, vocab=VOCAB, context=64)
fp32 = Recipe(parameters="fp32", gradients="fp32", master_copy=False)
job = Job(six, fp32, Layout(micro_batch=4), sequence=64)
in_full = replace(job, recipe=replace(fp32, recompute="full"))
head = activations.head_activation_bytes(job)  # outside the layers

# %%
for name, gpt, told in (
    ("everything", normal, job),
    ("inputs only", checkpointed, in_full),
):
    theory = 6 * activations.layer_activation_bytes(told)
    found = saved_bytes(lambda gpt=gpt: loss_of(gpt), gpt) - head
    expect(theory, found, within=0.15, label=f"layers keep {name}", unit="B")

# %% [markdown]
# One sixteenth is kept: 4 of 64 bytes × $sbh$. (The gaps: some 7 kB outside the layers, such as token ids, and the 49 kB of norms and fused
# attention (section 4.1).)
#
# The *peak* is another matter. Chapter 3 distinguished four points of an update; the peak is the largest. We leave the optimizer out and subtract the
# weights and the inputs. What is left is what the two passes add: activations, and gradients as they come.
#
# **Predict.** To what fraction of its former value does the peak fall?

# %%
lower = predict("4.peak", "Peak with / without?", yours=None)

# %%
from course_lib.theory import memory_moments

bare = replace(fp32, optimizer="sgd", loss="eager", gradient_life="backward")


def above_weights(recompute, samples=4):
    """The most bytes beside weights and inputs at three points of the two passes."""
    recipe = replace(bare, recompute=recompute)
    job = Job(six, recipe, Layout(micro_batch=samples), sequence=64)
    moments = memory_moments(job, overhead_bytes=0)
    return max(
        point.total_bytes - point.parameters_bytes - point.inputs_bytes
        for name, point in moments.items()
        if name in ("loss", "backward begins", "backward ends")
    )


def peak_above_weights(gpt):
    """The most bytes that a forward and a backward pass hold at once, without the weights."""
    gpt.zero_grad()
    with measure.peak.log_memory() as log:
        loss_of(gpt).backward()
    return log.peak_bytes


foretold = [above_weights(mode) for mode in ("none", "full")]
peaks = [peak_above_weights(gpt) for gpt in (normal, checkpointed)]
names = ("peak, all kept", "peak, recomputed")
for name, expected, found in zip(names, foretold, peaks, strict=True):
    expect(expected, found, within=0.04, label=name, unit="B")
expect(
    foretold[1] / foretold[0],
    peaks[1] / peaks[0],
    within=0.05,
    label="peak with / without",
    yours=lower,
)

# %% [markdown]
# **Explain.** From 6.87 to 2.55 MB: to 37 % and not to a sixteenth, because the peak has moved. Without checkpointing it is at the loss, where all
# activations are held. With it, it is at the end of the backward pass: one layer is recomputed while *all gradients* are there, 1.25 MB of them. Here is the whole update of both, weights included:

# %% tags=["drawing"]
from course_lib.theory import step_timeline

runs = {}
for mode, name, gpt in (
    ("none", "all kept", build()),
    ("full", "recomputed", build(1)),
):
    job = Job(six, replace(bare, recompute=mode), Layout(micro_batch=4), sequence=64)
    optimizer = torch.optim.SGD(gpt.parameters(), lr=0.1)
    found = measure.memory_over_time.one_step(
        gpt, optimizer, lambda gpt=gpt: loss_of(gpt), [inputs, labels]
    )
    in_theory = step_timeline(job, overhead_bytes=0)
    expect(in_theory.peak_bytes, found.peak_bytes, within=0.04, label=name, unit="B")
    runs |= {f"{name}, predicted": in_theory, f"{name}, measured": found}
figures.memory_over_time(runs, "One update, 6 layers, SGD")

# %% [markdown]
# The activations no longer pile up. The measured backward pass has a tooth for each layer: what it recomputes comes and goes. (Theory draws only the tips.) The teeth are
# equally high, but the gradients rise below them, so the last tooth is the peak.
#
# ### What it costs
#
# Count the operations, the additions and multiplications of matrix products:

# %%
work = [
    measure.times.matmul_flops(lambda gpt=gpt: loss_of(gpt).backward())
    for gpt in (normal, checkpointed)
]
expect(
    4 / 3,
    work[1] / work[0],
    within=0.06,
    label="operations with / without",
    yours=factor,
)

# %% [markdown]
# **Explain.** Where the forward pass multiplies once, the backward pass does so twice, for the gradients of weights and input. One part forward and two backward make three; a second forward pass makes four: $4/3$. The measured factor is a little lower: the head is not
# recomputed, and flash attention recomputes its scores in any case. The theory counts both exactly.
#
# And the time, on your machine? (Other programs disturb it. Run the cell twice.)

# %%
exact = [
    flops.training_flops(six, 4, 64, attention="flash", recompute=mode).hardware_flop
    for mode in ("none", "full")
]
assert work == exact
seconds = [
    measure.times.seconds(lambda gpt=gpt: loss_of(gpt).backward(), repeats=15)
    for gpt in (normal, checkpointed)
]
expect(4 / 3, seconds[1] / seconds[0], within=None, label="time with / without")

# %% [markdown]
# The training is the same:

# %%
gradients = [measure.gradients.flat_gradient(gpt) for gpt in (normal, checkpointed)]
difference = measure.gradients.relative_difference(*gradients)
print(f"relative difference of the gradients: {difference:.1e}")
assert difference < 1e-6

# %% [markdown]
# **Remember**
# - Full recomputation keeps one input per layer, for 4/3 of the operations.
# - The second run must draw the same random numbers.
# - The peak is one point of the update. Make it smaller, and another point becomes the peak.
#
# ### Where 40× comes from
#
# Each layer is recomputed once, from its own input: 80 layers run once more. On GPT-3-like layers the measured price is 39 % more time (Korthikanti et al. 2022,
# arXiv:2205.05198, table 4).
#
# Note 004 counts differently. To go back through layer 80, compute layers 1 to 80 again; for layer 79, layers 1 to 79; in all $80\cdot81/2=3240$
# layers instead of 80, "40 times". That would be so if *only the model's input* were kept. Here are both for 12 layers:

# %% tags=["drawing"]
once = segments.runs_again(layers=80, segment=1)
from_the_start = segments.runs_again(layers=80, segment=80)
assert (sum(map(len, from_the_start)), sum(map(len, once))) == (3240, 80)
figures.recomputed_layers(
    {
        "The input of each layer is kept": segments.runs_again(12, 1),
        "Only the model's input is kept": segments.runs_again(12, 12),
    }
)

# %% [markdown]
# One can also recompute less than a layer. **Selective** recomputation (选择性重计算) repeats only the attention scores, which are large and cheap: in GPT-3 that removes 80 of 114 units for 0.9 % more
# operations (section 4.5). Flash attention already does so by itself.
#
# ### Buy, take turns, or recompute?
#
# The third answer: micro-batch 1, and 8 micro-batches that take turns (chapter 2). Then only one sequence's activations are there at a time, and nothing is recomputed.
# Here are the answers, each at its peak. Tensors must not fill a card: chapter 3 adds room for gaps, by its fitted factor of 1.15, and 1 GiB of overhead.

# %% tags=["drawing"]
import math

from course_lib.theory import OVERHEAD_BYTES, RESERVED_OVER_ALLOCATED, gpu_memory
from course_lib.theory.inputs import hardware

llama = models.MODELS["llama2-70b"]
answers = {
    "keep everything": (8, "none"),
    "micro-batch 1, eight times": (1, "none"),
    "recompute every layer": (8, "full"),
    "both": (1, "full"),
}
card = 80 * units.GB
peaks, on_each, needed = {}, [], []
for name, (micro_batch, recompute) in answers.items():
    recipe = Recipe(recompute=recompute, loss="eager")
    job = Job(llama, recipe, Layout(micro_batch=micro_batch), sequence=4096)
    peaks[name] = gpu_memory(job, overhead_bytes=0)  # all of it, on one GPU
    reserved = RESERVED_OVER_ALLOCATED * peaks[name].total_bytes
    on_each.append(reserved / 16 + OVERHEAD_BYTES)
    needed.append(math.ceil(reserved / (card - OVERHEAD_BYTES)))
    work = flops.training_flops(
        llama, 8, 4096, mask="causal", attention="flash", recompute=recompute
    )
    print(
        f"{name:<27}{work.hardware_flop / work.model_flop:.3f} × FLOP; with gaps and overhead "
        f"{on_each[-1] / 1e9:5.1f} GB on each of 16, or {needed[-1]} cards"
    )
tensors = [peak.total_bytes for peak in peaks.values()]
assert [round(size / 1e9) for size in tensors] == [1987, 1214, 1161, 1111]
assert 24 * card < tensors[0] <= 25 * card and max(tensors[1:]) < 16 * card
assert needed == [29, 18, 17, 17]
reported = hardware.accelerator("A100-SXM-80GB").memory_bytes
assert [size < reported for size in on_each] == [False, False, True, True]
figures.stacked_bars(
    {
        name: {kind: size for kind, size in peak.consumers.items() if size > 1e9}
        for name, peak in peaks.items()
    },
    "Sixteen GPUs together, at the peak: 8 × 4096 tokens",
    units.format_bytes,
    limit=("sixteen GPUs", 16 * card),
)

# %% [markdown]
# - **Buy.** The tensors alone fill 25 cards. With gaps and overhead it takes 29.
# - **Take turns.** The tensors fit into 1280 GB, and not one operation is added. (The 0.6 % are flash attention's own.)
# - **Recompute.** This takes 53 GB less than taking turns, for a third more operations.
#
# So make the micro-batch small first; recompute where that is not enough, as with long sequences.
#
# Is it enough *here*? With gaps and overhead, sixteen cards of exactly $80\cdot10^9$ bytes are too few for any answer. But an "80 GB" A100 reports 85.0 GB. On each of the sixteen, micro-batch 1 alone needs 88.3 GB, recomputing 84.5, and
# both together 80.9. The 1.15 is fitted, so trust no margin of 0.5 GB: on these cards, do both.

# %% [markdown]
# With long sequences there is no smaller micro-batch than 1. One sequence of LLaMA-2 70B, in 80 layers, with flash attention:

# %%
for sequence in (4096, 32_768, 131_072):
    kept, only_inputs = (
        80 * activations.layer_activation_bytes(Job(llama, recipe, sequence=sequence))
        for recipe in (Recipe(), Recipe(recompute="full"))
    )
    print(
        f"{sequence:>7} tokens: {kept / 1e9:6.0f} GB, inputs only {only_inputs / 1e9:5.1f} GB"
    )
assert round(only_inputs / 1e9) == 172

# %% [markdown]
# At 32k tokens everything would be 870 GB again, and recomputing leaves 43 GB. At 128k even the inputs take 172 GB: the sequence itself must be split over GPUs (chapter 12).
#
# **Remember**
# - A smaller micro-batch with accumulation adds no operations. Try it before you recompute.
# - Long sequences need recomputation, and then context parallelism.

# %% [markdown]
# ### Deeper: the course's own version
#
# Do exercise 4.6 first. Then compare yours with this one:

# %%
show_source(scratch.checkpointing.Checkpoint)

# %%
show_source(scratch.checkpointing.same_random_numbers)

# %% [markdown]
# ### Deeper: where to find it in libraries
#
# Which setting is which choice?

# %% [markdown]
# - **Each layer.** PyTorch: `torch.utils.checkpoint.checkpoint`. Hugging Face: `model.gradient_checkpointing_enable()`.
#   Megatron-LM: `--recompute-granularity full --recompute-method uniform --recompute-num-layers 1`.
# - **Segments of $k$ layers.** PyTorch: `checkpoint_sequential`, which takes the *number* of segments and keeps the last one whole. Megatron-LM: the same with `--recompute-num-layers` $k$.
# - **Only the first $k$ layers.** Megatron-LM: `--recompute-method block`.
# - **The scores.** Fused attention does it. Megatron-LM: `--recompute-granularity selective --recompute-modules core_attn`.
# - **By operators.** PyTorch: `create_selective_checkpoint_contexts`; torchtitan's selective mode.
# - **By a budget.** `torch._functorch.config.activation_memory_budget`, under `torch.compile`.
# - **To the host.** PyTorch: `torch.autograd.graph.save_on_cpu`. DeepSpeed: `cpu_checkpointing`.

# %% [markdown]
# ## 4.4 Demo: three versions, one training
#
# Two ranks train a GPT of 4 layers without checkpointing, with ours, and with PyTorch's, in segments of 2 layers. All three must equal one process, and keep and compute what
# the theory says.
#
# **Predict.** With dropout the masks are random. How much does the gradient with checkpointing differ from that without, relative to its length?

# %%
random_masks = predict("4.dropout", "Relative difference of the gradients?", yours=None)

# %%
result = demos.run("checkpointing", ranks=2, steps=4, stream=False)
without, ours, library = result.costs
difference = max(cost.dropout_difference for cost in result.costs)
expect(0, round(difference, 6), label="with dropout", yours=random_masks)

# %%
print(result.report())
assert ours.kept_bytes == ours.predicted_kept_bytes
assert ours.flop == ours.predicted_flop

# %% [markdown]
# **Explain.** Exactly 0: the same masks are drawn, and the same operations run in the same order. (PyTorch's
# version skips the last matrix product of each segment: nobody needs its result.) In a terminal, `course demo checkpointing --ranks 2 --parts mine` runs on the `Checkpoint` that you
# build in exercise 4.6.

# %% [markdown]
# ## The answer
#
# Take turns first: micro-batch 1 brings 1987 GB down to 1214 and adds no operations. Recomputing every layer, 1161 GB, costs a third more operations, not 40 times as many. With gaps and
# overhead, sixteen 80 GB cards need both. Buying would take 29 cards.

# %%
from course_lib import quiz

quiz("4")

# %% [raw] tags=["quiz"]
# Which operation needs nothing kept for its backward pass?
# [ ] a matrix product
# [x] an addition
# [ ] GELU
# Why: The gradient of a sum is 1, whatever was added.
#
# You double the sequence. Flash attention. What do a layer's activations do?
# [x] double
# [ ] quadruple
# [ ] stay
# Why: Without scores everything is proportional to s.
#
# Full checkpointing of all layers: operations of a step?
# [x] 4/3 of before
# [ ] twice
# [ ] 40 times
# Why: 2 + 4 becomes 2 + 2 + 4: each layer is recomputed once, from its own input.
#
# Why does a checkpoint store the state of the random generator?
# [ ] for the next epoch
# [x] so that dropout draws the same masks again
# [ ] for the optimizer
# Why: With other masks the gradient would belong to another function.
#
# You use flash attention. What does selective recomputation save on top?
# [ ] half
# [ ] the MLP
# [x] nothing
# Why: It drops the scores, which flash attention never keeps.

# %% [markdown]
# **Read on.** Korthikanti et al. 2022, *Reducing Activation Recomputation*, sections 4 and 5 (arXiv:2205.05198). Chen et al. 2016, *Sublinear Memory
# Cost*, section 3 (arXiv:1604.06174). Dao et al. 2022, *FlashAttention*, section 3 (arXiv:2205.14135).

# %% [markdown] tags=["exercise"]
# ### 4.3 Debug: 40 times
#
# (published mistake, note 004) Full recomputation of 80 layers is said to cost 3240 layer passes instead of 80, "40 times as much", and "8 groups of 10 layers" to be the remedy. A hook counts how often
# a layer's forward pass runs in one training step. What will it count with each plan, and how many tensors (inputs of a checkpointed layer or group) are stored for recomputing? Give
# `[forward passes, stored inputs]`.

# %% [raw] tags=["hints"]
# importance 4, difficulty 2
# From which stored input is layer 80 recomputed? And layer 75, in a group of 10?
# All 80 layers run forward once. Which of them run once more, and from which inputs?

# %% tags=["exercise"]
counted = {
    "each of 80 layers checkpointed": ...,
    "8 groups of 10 layers checkpointed": ...,
    "every second layer checkpointed": ...,
    "2 groups of 5 layers checkpointed, 70 layers not": ...,
}
### BEGIN SOLUTION
counted = {
    "each of 80 layers checkpointed": [160, 80],
    "8 groups of 10 layers checkpointed": [160, 8],  # not fewer passes: fewer inputs
    "every second layer checkpointed": [120, 40],
    "2 groups of 5 layers checkpointed, 70 layers not": [90, 2],
}
### END SOLUTION
check("4.3", counted)

# %% [markdown] tags=["exercise"]
# ### 4.4 Debug: 110 GB to 5 GB
#
# (published mistake, note 001) LLaMA-2 70B, 8192 tokens, bf16: checkpointing takes the activations "from over 110 GB to 5 GB". For 8192 tokens the formula says 217 and 10.7 GB.
# Which of these explanations make *both* numbers fit, within a tenth? True or False for each.

# %% [raw] tags=["hints"]
# importance 3, difficulty 3
# What do the two numbers have in common: the layers' inputs, or all that a layer keeps?
# Everything that a layer keeps must halve, and its input as well.
# Section 4.2: without sequence parallelism the inputs of the norms are not cut.

# %% tags=["exercise"]
explains_both = {
    "4096 tokens": ...,
    "each of two GPUs has 40 layers": ...,
    "each of two GPUs has half of the tokens": ...,
    "each of two GPUs has half of every matrix, without sequence parallelism": ...,
    "an MLP with GELU, 4h wide": ...,
    "segments of two layers": ...,
}
### BEGIN SOLUTION
explains_both = {
    "4096 tokens": True,
    "each of two GPUs has 40 layers": True,
    "each of two GPUs has half of the tokens": True,
    "each of two GPUs has half of every matrix, without sequence parallelism": False,
    "an MLP with GELU, 4h wide": False,  # the inputs are as large as before
    "segments of two layers": False,  # only the inputs become fewer
}
### END SOLUTION
check("4.4", explains_both)

# %% [markdown] tags=["exercise"]
# ### 4.6 Build: run it again
#
# Write the checkpoint of section 4.3 yourself. autograd calls `forward` when the segment is run by `Checkpoint.apply(layers, x, *parameters)`, without recording what happens inside. It calls `backward` with the gradient of
# the output, and expects one value back for each argument of `forward` after `ctx`: a gradient, or None. `parameters` are the trained parameters of the layers. They are arguments so that autograd knows of them.
# (What you assign to `ctx` in `forward` is there in `backward`. Tensors from outside go through `ctx.save_for_backward`.)
#
# The check compares all gradients and counts what stays after the forward pass. Then it adds dropout and looks at the generator of random numbers, from which other layers draw as well. It runs on the CPU; on a GPU there is a second generator. What
# passes is kept as `mine/checkpointing.py`, and runs in `course demo checkpointing --parts mine`.

# %% [raw] tags=["hints"]
# importance 4, difficulty 4
# autograd records nothing inside a Function's forward, so what the layers keep there is gone at once. What must be kept, so that they can run again?
# backward: `x.detach().requires_grad_()`, then the layers once more under `torch.enable_grad()`, then `torch.autograd.grad(output, inputs, gradient)` with the parameters among the inputs.
# It returns one thing for each argument of forward: None for the layers, the gradient of x, and those of the parameters.
# `torch.get_rng_state()` in forward, before the layers; `torch.set_rng_state(…)` before the second run. What others draw afterwards should not notice either.
# `with torch.random.fork_rng([]):` puts the generator back, as it was before the block.

# %% tags=["exercise"]
from typing import Any

import torch
from torch import Tensor, nn

### BEGIN GIVEN


class Checkpoint(torch.autograd.Function):
    """Runs `layers` without a graph; the backward pass runs them again, with one."""

    @staticmethod
    def forward(
        ctx: Any, layers: nn.Module, x: Tensor, *parameters: nn.Parameter
    ) -> Tensor:
        """The output of the layers; only `x` is kept."""
        ...

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """None for the layers, the gradient of x, and one for each parameter.

        `x` may need no gradient; a gradient returned for it does no harm then.
        """
        ...


### END GIVEN
### BEGIN SOLUTION
from course_lib import show_source
from course_lib.scratch.checkpointing import Checkpoint

### END SOLUTION

check("4.6", Checkpoint)

# %% [markdown] tags=["exercise"]
# ### 4.8 Predict: which measure first?
#
# Six runs, each on GPUs with 80 GB. The model states of a GPU and the activations of *one* sequence are given in GB; of these, the scores, and the inputs of
# the layers. The tensors are allowed 69 GB, because of gaps and overhead (chapter 3).
#
# | run | micro-batch | states | one sequence | of it scores | of it inputs |
# |---|---|---|---|---|---|
# | A | 8 | 30 | 9.0 | 0 | 0.5 |
# | B | 1 | 20 | 90 | 60 | 1.5 |
# | C | 1 | 30 | 60 | 0 | 3.0 |
# | D | 2 | 72 | 4.0 | 0 | 0.2 |
# | E | 8 | 20 | 6.6 | 0 | 0.4 |
# | F | 4 | 10 | 20 | 8.0 | 1.0 |
#
# For each run, choose the first of these measures that is enough by itself: "nothing", "flash attention" (drops the scores), "micro-batch 1" (with accumulation), "recompute"
# (every layer; count one layer in 80 as kept in full), "more GPUs". They are in the order of their price. Guess first, then compute.

# %% [raw] tags=["hints"]
# importance 4, difficulty 3
# What is multiplied by the micro-batch, and what is not?
# Try the measures in their order, each alone. For "nothing": states + micro-batch × one sequence, at most 69.
# Recompute: states + micro-batch × (inputs + one sequence / 80). No measure here makes the states smaller.

# %% tags=["exercise"]
first = {"A": ..., "B": ..., "C": ..., "D": ..., "E": ..., "F": ...}
### BEGIN SOLUTION
first = {
    "A": "micro-batch 1",  # 30 + 72 is too much, 30 + 9 fits
    "B": "flash attention",  # 20 + 30 fits; the micro-batch is 1 already
    "C": "recompute",  # 30 + 60 is too much, 30 + 3 + 60 / 80 fits
    "D": "more GPUs",  # the states alone are too large
    "E": "micro-batch 1",  # 20 + 53 fits 80 GB, but leaves no room for gaps
    "F": "flash attention",  # 10 + 4 · 12 fits, and is cheaper than small pieces
}
### END SOLUTION
check("4.8", first)
