# %% [raw] tags=["sitting"]
# question: Can two measured speeds predict an update of your own machine?
# importance: 2
# difficulty: 3
# group: alone
# needs: 5.1

# %% [markdown]
# # 5 Counted and timed on your machine
#
# A matrix product and an addition of vectors give your machine two numbers: FLOP/s and bytes/s. Can these two predict how long a whole update of a GPT takes? Before that come three parts of the chapter that a first reading can skip: FLOP
# by operation, the best use of a week, and the FLOP of flash attention.

# %%
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from course_lib import expect, measure, scratch, style
from course_lib.chapters.ch05_flops_roofline_mfu import figures
from course_lib.demos.shared.text import VOCAB, Windows
from course_lib.theory import Job, Layout, Recipe, TransformerShape, budget, flops
from course_lib.theory import Cluster, hardware, models, units

torch.set_num_threads(1)

# %% [markdown]
# ## 5.2 FLOP by operation
#
# `FlopCounterMode` also counts by module and by operation. `mm` and `addmm` are products with weights. `bmm` multiplies many pairs of matrices at a time, one for each head and sequence: those are attention's
# scores, $12Lhs$ for each token.

# %%
sizes = dict(layers=2, hidden=64, heads=4, vocab=VOCAB, context=64)
gpt, (inputs, labels) = scratch.gpt.GPT(**sizes), Windows(sequence=64).batch(range(4))
exact = flops.training_flops(TransformerShape(ffn=256, **sizes), 4, 64)


def loss():
    """The loss of the small GPT on 4 windows of 64 characters."""
    return scratch.accumulation.loss_sum(gpt(inputs), labels)


with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
    loss().backward()
by_operation = counter.get_flop_counts()["Global"]
for operation, flop in by_operation.items():
    print(f"{operation!s:<11} {flop:>11,} FLOP")
bmm = by_operation[torch.ops.aten.bmm]
assert bmm == exact.scores_flop == 12 * 2 * 64 * 64 * 4 * 64

# %% [markdown]
# ## 5.3 What a week is good for
#
# 64 H100 at 40 % of their peak do $1.53 \cdot 10^{22}$ FLOP in a week. By the rule of 20 tokens per parameter they are best spent on 11.3 billion parameters and 226 billion tokens:

# %%
week_flop = 64 * 7 * 86_400 * 0.40 * 989.4e12
assert round(week_flop / 1e22, 2) == 1.53
best = budget.compute_optimal_parameters(week_flop)
assert round(best / 1e9, 1) == 11.3
assert round(budget.TOKENS_PER_PARAMETER * best / 1e9) == 226
assert budget.cost(2_788_000, 2) == 5_576_000

# %% [markdown]
# And what does a larger run cost? DeepSeek-V3 took 2.788 million H800 GPU-hours. At 2 USD an hour, which is the authors' own assumption, that is 5,576,000 USD (arXiv:2412.19437, table 1). It is the final run only, without earlier
# experiments, salaries or failed runs. Always say what a price includes.

# %% [markdown]
# ## 5.5 HFU of flash attention
#
# Flash attention recomputes as well. It never stores the scores, so the backward pass computes them once more. The counter sees it as soon as PyTorch may choose its own attention:

# %%
chosen = measure.times.matmul_flops(lambda: loss().backward())
shape = TransformerShape(ffn=256, **sizes)
flash = flops.training_flops(shape, sequences=4, sequence=64, attention="flash")
assert chosen == flash.hardware_flop > flash.model_flop == exact.model_flop

# %% [markdown]
# Compare MFU and HFU by one convention only. A flash kernel that skips the masked half of the pairs does fewer operations, in spite of its recomputation, than an MFU with all pairs assumes:

# %%
llama = models.MODELS["llama2-7b"]
plain = flops.training_flops(llama)
skipping = flops.training_flops(llama, mask="causal", attention="flash")
assert skipping.model_flop < skipping.hardware_flop < plain.model_flop

# %% tags=["drawing"]
runs = {
    "everything kept": plain,
    "full recomputation": flops.training_flops(llama, recompute="full"),
    "flash attention": flops.training_flops(llama, attention="flash"),
    "flash, half of the pairs": skipping,
}
bars = {
    name: {
        "forward": one.forward_flop / one.tokens / 1e9,
        "backward": 2 * one.forward_flop / one.tokens / 1e9,
        "again": one.recompute_flop / one.tokens / 1e9,
    }
    for name, one in runs.items()
}
title, looks = "LLaMA-2 7B: GFLOP for each token", {"again": style.TEMPORARY}
figures.stacked_bars(bars, title, "{:.1f}".format, colours=looks)

# %% [markdown]
# ## 5.6 One core: the wider, the better
#
# Each operation costs some microseconds to start. With small matrices, starting takes about as long as computing. Here is the MFU of a small GPT on one core, by its width, with the peak that a large matrix product reaches as the denominator:


# %%
peak = max(measure.times.matmul_flop_per_s(n, n, n) for n in (256, 512, 1024))


def mfu_at(hidden):
    """MFU in % of a GPT of this width, on one core."""
    sizes = dict(layers=2, hidden=hidden, heads=4, vocab=VOCAB, context=64)
    wider = scratch.gpt.GPT(**sizes)
    work = flops.training_flops(TransformerShape(ffn=4 * hidden, **sizes), 4, 64)
    passes_s = measure.times.seconds(
        lambda: scratch.accumulation.loss_sum(wider(inputs), labels).backward()
    )
    return 100 * budget.utilisation(work.model_flop, passes_s, 1, peak)


# %%
curve = {"this machine": [(width, mfu_at(width)) for width in (32, 64, 128, 256, 512)]}
title = "MFU of a small GPT, by its hidden size"
figures.lines(curve, "hidden size", "MFU, %", title, doubling=(True, False))

# %% [markdown]
# Where this was written, it went from 17 % at hidden size 32 to 83 % at 512.
#
# ### A whole update
#
# The function `step_time` predicts the updates of large clusters in chapter 13. From a peak and a memory bandwidth it adds three parts:
#
# $$\text{time} = \frac{\text{FLOP of the matrix products}}{\text{peak}} + \frac{8 \cdot \text{bytes kept for backward}}{\text{bandwidth}} +
# \frac{2 \cdot \text{bytes of the states}}{\text{bandwidth}} .$$
#
# The second part is for everything between the matrix products: norms, GELU, additions and their gradients. They wait for memory, and each byte goes through it about 8 times. (That number was fitted to A100s.) The
# third part is the optimizer, which reads and writes all states once. The GPT is wider now: 4 layers with hidden size 256.

# %%
from course_lib.theory.step.step_time import step_time

mine = hardware.Accelerator(
    "this machine, one core",
    peak_flop_per_s=peak,
    memory_bytes=8 * units.GB,  # not needed for a time
    memory_bytes_per_s=measure.times.memory_bytes_per_s(),
    inside=hardware.PCIE4,
    number_format="fp32",
    matmul_efficiency=1.0,  # the peak is one that a matrix product has reached
    layer_efficiency=1.0,
    attention_efficiency=1.0,
)
size = TransformerShape(4, 256, heads=4, ffn=1024, vocab=VOCAB, context=64)
fp32, alone = Recipe("fp32", "fp32", master_copy=False), Cluster(mine, gpus_per_node=1)
predicted = step_time(Job(size, fp32, Layout(micro_batch=8), alone))

# %%
wide = scratch.gpt.GPT(layers=4, hidden=256, heads=4, vocab=VOCAB, context=64)
adamw = torch.optim.AdamW(wide.parameters(), fused=True)
batch, answers = Windows(sequence=64).batch(range(8))


def update():
    """A whole update of the wide GPT on 8 windows of 64 characters."""
    scratch.accumulation.loss_sum(wide(batch), answers).backward()
    adamw.step()
    adamw.zero_grad()


times = sorted(measure.times.seconds(update, repeats=1) for _ in range(9))
theory_ms, median_ms = 1000 * predicted.total_s, 1000 * times[4]
expect(theory_ms, median_ms, within=None, label="an update, median", unit="ms")

# %%
wide_mfu = budget.utilisation(predicted.model_flop, times[4], 1, peak)
print(f"MFU: {wide_mfu:.0%} of your measured peak, predicted {predicted.mfu:.0%}")

# %% tags=["drawing"]
bars = {
    "predicted": {
        "matrix products": predicted.compute_s,
        "between them": predicted.elementwise_s,
        "optimizer": predicted.optimizer_s,
    },
    "fastest of nine": {"measured": times[0]},
    "median": {"measured": times[4]},
}
looks = {
    "matrix products": style.COMPUTING,
    "between them": style.TEMPORARY,
    "measured": style.MEASURED,
}
title = "An update of the wide GPT"
figures.stacked_bars(bars, title, units.format_duration, colours=looks)

# %% [markdown]
# **Explain.** On our machine, on a quiet core, the update took about 1.1 times as long as predicted, and the MFU, by processor time, was 67 to 84 %. That is a fraction of the fastest matrix product we measured, not of a data
# sheet's peak. Yours may differ: it is the median of only nine updates, and other programs may have been running. Which of the three parts is slower than predicted? PyTorch's profiler (性能分析器) adds up the time of each kind of operation:

# %%
with torch.profiler.profile() as profile:
    update()
products = sum(
    event.self_cpu_time_total / 1e6
    for event in profile.key_averages()
    if "mm" in event.key or "attention" in event.key
)
efficiency = predicted.compute_s / products
print(f"matrix products: {1e3 * products:.0f} ms, {efficiency:.0%} of the best rate")

# %% [markdown]
# The matrix products. Those of a real layer reach about 80 % of the rate of the best one: they are smaller, some are transposed, and biases are added on the way. It is the same on GPUs. Chapter 13 takes 81 % on an A100 and 75 % on an
# H100, fitted to published runs. Here we took 100 %, so the prediction is too fast.
#
# ## The answer
#
# Two measured speeds predict an update to about 10 %, on a quiet machine. What is missing is the difference between the best matrix product and those of a real layer. Times vary from run to run, by 10 % on a quiet machine: take the median, and
# report the spread. Bytes do not vary.
