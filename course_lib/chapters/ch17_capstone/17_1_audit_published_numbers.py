# %% [raw] tags=["sitting"]
# question: Is a published number true, and on which terms?
# importance: 4
# difficulty: 3
# group: alone
# needs: 5, 11, 13

# %% [markdown]
# # 17 Audit published numbers
#
# In 2022 more than a thousand researchers trained BLOOM, a model with 176 billion parameters, on 366 billion tokens. A public computer near Paris gave them 384 A100 and 1,082,990 GPU-hours
# (arXiv:2211.05100, table 3 and section 3.4.1). The report says that the hardware ran at half of its peak. Is that true? Another claim: an RTX 4090 costs a sixth of an H100 and has a sixth of
# its peak, so a token costs the same on either. Is *that* true? **How do you find out whether a published number is true, and on which terms?**
#
# By the end of this sitting you can
#
# - say for each family of parallelism whether the network must understand what it moves,
# - audit a published claim: recompute it on its own terms, then on the right ones,
# - split the MFU of a whole training run into three factors,
# - say what a token of training and a generated token wait for, and which part of a card you pay for.
#
# You need chapters 5, 9, 11 and 13.

# %%
from course_lib import expect, launch, measure, predict, show_source, style
from course_lib.chapters.ch17_capstone import claimed, costs, figures
from course_lib.scratch import opaque
from course_lib.theory import VERDICTS, Claim, budget, collectives, flops
from course_lib.theory import hardware, models, units

launch.warm_up()

# %% [markdown]
# **Predict.** Over its whole training, what percentage of the A100's peak of 312 TFLOP/s did BLOOM use?

# %%
bloom_share = predict("17.bloom", "Percent of the peak?", yours=None, unit="%")

# %% [markdown]
# ## 17.1 Four families, one model
#
# Begin with a claim that you can simply run. The four families of parallelism cut the batch (data), the stack of layers (pipeline), each matrix (tensor), or the set of experts. All of
# them, says note 003, only move **opaque bits** (不透明的位) from A to B, like a network switch that forwards packets and knows nothing of what is in them.

# %%
figures.families()

# %% [markdown]
# `scratch.opaque` makes the typical move of each family, once with tensors as they are, and once with the same memory declared as bytes.
#
# **Predict.** Three ranks make the four moves as bytes. For how many of the four families is the result still that of one process?

# %%
survivors = predict("17.opaque", "Families that are still right?", yours=None)


# %%
def both_ways():
    """By family: right with types, right as bytes, bytes that were sent."""
    found = {}
    for family in opaque.FAMILIES:
        with measure.wire.log_wire() as log:
            typed = opaque.is_right(family, opaque.typed)
        size = sum(total.size_bytes for total in log.sent().values())
        found[family] = typed, opaque.is_right(family, opaque.opaque), size
    return found


first, *_ = ranks = launch.run(both_ways, ranks=3)
assert all(typed for found in ranks for typed, _, _ in found.values())
right = [all(found[family][1] for found in ranks) for family in opaque.FAMILIES]
expect(2, sum(right), label="families", yours=survivors)

# %%
for family, (typed, as_bytes, size) in first.items():
    print(f"{family:<9} typed {typed}, as bytes {as_bytes}, {size} bytes")
figures.families({family: size for family, (_, _, size) in first.items()})

# %% [markdown]
# **Explain.** Two. A pipeline passes activations on, and experts receive tokens and send them back: here the network need not understand anything. Data and tensor parallelism need a *sum*. To
# add, one must know where a number ends and that it is fp32. Added byte by byte, without a carry to the next byte, the result is noise, without an error message. So a switch that adds in transit,
# such as NVLink SHARP, needs the type. FSDP does one of each: its all-gather passes bytes on, its reduce-scatter adds.
#
# **Remember**
# - Two families pass bytes on, two add numbers. Only the first two are opaque to the network.

# %% [markdown]
# ### Deeper: the four moves in code

# %%
show_source(opaque.opaque, opaque.tensor, opaque.pipeline)

# %% [markdown]
# ## 17.2 Audit A: a plan for 2048 cards
#
# An **audit** (审计) of a claim needs three numbers:
#
# - what is *said*,
# - what you get *on its own terms*: with the source's own assumptions, whatever you think of them,
# - what you *find* on the right terms.
#
# The verdict follows from these three:
#
# | what is said agrees with its own terms | and with what you find | verdict |
# |---|---|---|
# | yes | yes | right |
# | yes | no | right on its own terms |
# | no, or unknown | yes | right number, other terms |
# | no, or unknown | no | wrong |
#
# Note 004 plans LLaMA-2 70B on 2048 RTX 4090: pipelines of 80 stages with one layer each. The first stage, it says, keeps the model's activations $2 \cdot 80 = 160$ times: one micro-batch for each hop to the last
# stage and back. Under 1F1B it holds 80, of one layer each: the model's activations once (section 11.3):

# %%
said = Claim(
    "80 stages keep 160 times the activations",
    said=160,
    own_terms=2 * 80,
    found=claimed.held(80),
    because="1F1B keeps p micro-batches of L/p layers",
)
print(said.explain())
assert said.verdict == VERDICTS[True, False]

# %% [markdown]
# Never leave out the second number: it separates wrong arithmetic from wrong assumptions.
#
# Here is the whole plan (section 13.8) as eleven claims. Nine of them say how they were computed.
#
# **Predict.** In how many of the nine is the arithmetic wrong?

# %%
slips = predict("17.slips", "Wrong sums among nine?", yours=None)

# %%
plan_audit = claimed.plan_2048()
told = [claim for claim in plan_audit.claims if claim.own_terms is not None]
wrong_sums = [claim for claim in told if not claim.verdict.startswith("right")]
expect(0, len(wrong_sums), label="wrong sums", yours=slips)

# %%
figures.audited(plan_audit, "Note 004: a plan for 2048 cards")

# %% [markdown]
# **Explain.** None. In each row, the line in the middle is the published value. A hollow square on that line: the arithmetic is right. A filled one as well: the claim itself is right.
#
# All nine sums are correct, and six of the nine still mislead, by factors from 1.7 to more than 200. What they assume is wrong: the schedule, the recomputation, the peak, or which GPUs exchange gradients.
#
# The two claims without a sum are wrong. "80 micro-batches fill 80 stages": with $m = p$ nearly half of all slots are bubble, $\frac{p-1}{m+p-1} = \frac{79}{159}$. "Such a batch is fairly
# large": in tokens it is 67 million, 16 times LLaMA-2's own.
#
# **Remember**
# - Said, on its own terms, found: the verdict follows from three numbers.
# - Right sums on wrong assumptions are the hardest mistakes to see.

# %% [markdown]
# ## 17.5 Audit D: BLOOM
#
# (Audits B and C are in the deeper part.) BLOOM's report gives parameters, tokens and GPU-hours. Chapter 5 needs no more:

# %%
bloom = claimed.BLOOM
expect(100 * bloom.mfu, label="of the peak", unit="%", yours=bloom_share)
assert round(bloom.flop_per_s / 1e12) == 99

# %%
print(f"6ND = {bloom.flop / 1e23:.2f} · 10^23 FLOP")
print(f"{bloom.flop_per_s / 1e12:.1f} TFLOP/s on each GPU")

# %% [markdown]
# 99 TFLOP/s, 32 % of the peak. The report says 156 for the fastest configuration, "half of the peak". The public log of the training says 149 (18 March 2022: 105.22 s for an update of 2048
# sequences on 384 GPUs). That makes three numbers for one training. Which is right?
#
# Begin with the log. It can be recomputed to its last digit:

# %%
step = claimed.BLOOM_STEP
by_megatron = flops.megatron_flop(2048, 2048, layers=70, hidden=14336, vocab=250_880)
logged = budget.achieved_flop_per_s(by_megatron, 105.22, gpus=384) / 1e12
expect(logged, 149.02, within=1e-4, label="TFLOP/s in the log")

# %% [markdown]
# This is Megatron's formula with the factor 96, which counts the forward pass *twice*, because BLOOM recomputed all activations. So 149 and 156 are hardware FLOP, and half of the peak is HFU
# (section 5.5). That leaves two gaps: from HFU to MFU, and from one step to the whole training.
#
# **Predict.** If all updates had taken 105.22 s, what percentage of the GPU-hours would they have used? Failures, restarts, evaluations and smaller batches at the beginning took the rest.

# %%
kept_share = predict("17.kept", "Percent of the hours?", yours=None, unit="%")

# %%
bloom_audit = claimed.RunAudit(bloom, step)
expect(100 * bloom_audit.kept, label="hours", unit="%", yours=kept_share)
assert abs(bloom_audit.hfu * bloom_audit.useful * bloom_audit.kept - bloom.mfu) < 1e-12

# %%
figures.paid_time(bloom_audit)

# %% [markdown]
# **Explain.** 90 %, and $0.478 \cdot 0.737 \cdot 0.904 = 0.318$. So all three rates are right: 149 and 156 count all arithmetic of a step, 99 the useful part over all hours. What was lost:
#
# - The grey band is speed that the hardware did not reach during a step. Better kernels, another layout or a faster network make it thinner.
# - The yellow band is arithmetic that 6ND does not count. More memory makes it thinner, because less is recomputed.
# - The hatched column is hours without such steps. Checkpoints, restarts and spare nodes make it narrower (chapter 15).
#
# Ninety percent over almost four months is good: one or two GPUs failed per week, by the report. Here is the MFU of other whole training runs:

# %% tags=["drawing"]
runs = {
    f"{run.name}, {run.flop_per_s / 1e12:.0f} TFLOP/s": run
    for run in (bloom, *claimed.OTHERS)
}
assert max(runs.values(), key=lambda run: run.mfu).name == "LLaMA 65B"
figures.bars(
    {name: run.mfu for name, run in runs.items()},
    {name: f"{run.mfu:.1%}" for name, run in runs.items()},
    "MFU of whole training runs, and the speed of one GPU",
    style.COMPUTING,
)

# %%
figures.audited(claimed.bloom(), "What is said of BLOOM's training")

# %% [markdown]
# The last claim of the picture is about months. The hours are 3.9 months of 384 GPUs, and the calendar agrees, 118 days (arXiv:2211.02001). The report's 3.5 months would be the steps alone.
#
# **Remember**
# - The MFU of a training run is a product: HFU of a step · useful part · kept hours.
# - A rate that does not say whether recomputation counts is two rates.
# - Recompute a log to its last digit. If you cannot, you do not know yet what it counts.

# %% [markdown]
# ## 17.6 Economics: training and generating
#
# Now the opening's second claim: an RTX 4090 costs about a sixth of an H100 per hour and has a sixth of its peak, so a token costs the same. Does it mean a token of
# *training*, or one that the model *generates*?
#
# Take LLaMA-2 70B on eight cards, cut by tensor parallelism. In training, for a sequence of 4096 tokens, each 4090 sends 37.6 GB. That takes 1.19 s over PCIe, beside 1.28 s of computing at the peak.
# Nothing hides these sums, so the cards wait half of the time:

# %%
llama = models.MODELS["llama2-70b"]
rtx, h100 = map(hardware.accelerator, ("RTX4090", "H100-SXM"))
trained_bytes = 80 * collectives.tensor_parallel_bytes(1, 4096, 8192, tp=8)
travel_s = trained_bytes / rtx.inside.bytes_per_s
compute_s = flops.six_nd(llama.parameters().total, 4096) / 8 / rtx.peak_flop_per_s
assert (round(travel_s, 2), round(compute_s, 2)) == (1.19, 1.28)
print(f"{trained_bytes / 1e9:.1f} GB: {travel_s:.2f} s, beside {compute_s:.2f} s")

# %% [markdown]
# Generating text is called **decoding** (解码): token by token, each computed from all before it. For one new token the messages are 4096 times smaller, and only the forward pass sends them. That leaves
# 4.6 MB, 0.15 ms on the wire. Computing takes 0.1 ms.
#
# **Predict.** So a token takes next to no time? How many milliseconds does one token of one sequence take on the eight 4090?

# %%
token_ms = predict("17.token", "Milliseconds for a token?", yours=None, unit="ms")

# %%
one = costs.Decoding(llama, rtx, tp=8)
expect(1000 * one.token_s, label="a token", unit="ms", yours=token_ms)
assert round(one.sent_bytes / 1e6, 1) == 4.6 and round(one.transfer_s * 1e3, 2) == 0.15
assert round(one.compute_s * 1e3, 1) == 0.1  # beside the reading, so it does not show

# %% tags=["drawing"]
waits = {
    "training": {
        "computing": compute_s,
        "messages": travel_s,
        "latency": 2 * one.latency_s,
    },
    "decoding": one.waits(),
}
total_s = {name: sum(parts.values()) for name, parts in waits.items()}
figures.stacked_bars(
    {
        name: {part: size / total_s[name] for part, size in parts.items() if size}
        for name, parts in waits.items()
    },
    "What eight RTX 4090 wait for: a sequence in training, a token in decoding",
    "{:.0%}".format,
    {name: units.format_seconds(total) for name, total in total_s.items()},
)

# %% [markdown]
# **Explain.** 30 ms. *Reading the weights* takes 17 ms: each card must read its 17 GB to make one token. That is 1 FLOP per byte, where the card's ridge is at 164 (section 5.4). *Latency* takes 13 ms: 160
# sums, one after another, of 14 steps of 5.7 µs. (For such small sums real engines use algorithms with fewer steps than a ring.)
#
# So training waits for FLOP and for bytes between cards, decoding for memory bandwidth and latency. A batch helps decoding, because all its sequences share one reading of the weights:

# %%
batches = {
    f"{count} at once": costs.Decoding(llama, h100, tp=8, batch=count, context=4096)
    for count in (1, 8, 32, 128)
}
assert batches["128 at once"].token_s < 2 * batches["1 at once"].token_s

# %% tags=["drawing"]
figures.stacked_bars(
    {name: many.waits() for name, many in batches.items()},
    "One more token for each sequence, on eight H100",
    units.format_seconds,
    {name: f"{many.tokens_per_s:,.0f} tokens/s" for name, many in batches.items()},
)

# %% [markdown]
# One more token for 128 sequences takes only 60 % longer than for one. But each sequence keeps the keys and values of all its earlier tokens, the **key-value cache** (键值缓存): 320 KiB
# per token for this model, 1.3 GB for 4096 tokens. So the *size* of the memory matters as much as its bandwidth. 731 sequences fit on eight H200, and 34 on eight 4090, if each card keeps 1 GB free.
#
# Prices change every month. The course has a few examples, with date and source:

# %%
for name in ("H100-SXM", "H200-SXM", "RTX4090"):
    print(f"{name:<9}", costs.PRICES[name].explain())

# %% [markdown]
# **Predict.** LLaMA-2 70B generates one million tokens, with as many sequences at once as fit. What is the price on H200 over that on 4090? Write 2 if the H200 costs twice as much, 0.5 for half.

# %%
price_ratio = predict("17.price", "H200 / 4090, for a token?", yours=None)


# %%
def cost_on(name, sequences=None):
    """Of a node of eight; None: as many sequences of 4096 tokens as fit."""
    card, node = hardware.accelerator(name), {"tp": 8, "context": 4096}
    fit = costs.most_sequences(costs.Decoding(llama, card, **node), reserve_bytes=1e9)
    decoding = costs.Decoding(llama, card, batch=sequences or fit, **node)
    return costs.TokenCost(decoding, costs.PRICES[name].usd)


found = [cost_on(name).generating_usd for name in ("H200-SXM", "RTX4090")]
expect(found[0] / found[1], label="H200 / 4090", yours=price_ratio)

# %% tags=["drawing"]
bars = {
    name: {
        "training": cost_on(name).training_usd,
        "generating, 32": cost_on(name, 32).generating_usd,
        "generating, full": cost_on(name).generating_usd,
    }
    for name in ("H100-SXM", "H200-SXM", "RTX4090")
}
assert bars["RTX4090"]["generating, 32"] < bars["H200-SXM"]["generating, 32"]
fits = [cost_on(name).decoding.batch for name in ("H200-SXM", "RTX4090")]
assert fits == [731, 34]
figures.token_costs(bars, "LLaMA-2 70B on eight cards")

# %% [markdown]
# **Explain.** With 32 sequences the cheap card wins. With as many as fit, the expensive one wins by far. Training at the same MFU of 40 % costs the same on the H100 and the 4090, because price and peak go
# together. But 40 % is an assumption, and for the 4090 a bold one: section 17.11 lets the planner decide.

# %%
from course_lib.chapters.ch17_capstone import panels

panels.token_cost()

# %% [markdown]
# At which price does a 4090 generate as cheaply as an H100, each with a full batch? And what does a context of 32,768 tokens change?
#
# **Answers.** At 0.15 USD an hour, less than half of its price above. With 32,768 tokens only 49 sequences fit on the H100s instead of 398, and a generated token costs seven times as much.
#
# **Remember**
# - Training pays for FLOP and bytes between cards; decoding for memory bandwidth, latency, and room for a batch.
# - A price has a date. The ratio of two throughputs lasts longer.

# %% [markdown]
# ## The answer
#
# Recompute it twice, on its own terms and on the right ones; or run it, as in section 17.1. "Half of the peak" is true for the hardware during a step of BLOOM, 47.8 %. But only 73.7 % of that arithmetic is useful, and only 90 % of
# the hours were kept, so the whole training used 31.8 % of the peak. Was that good? LLaMA 65B, on the same chip, reached half as much again, with much less recomputation. And a token costs the same on H100 and 4090 in training at the same MFU, but not when it is generated.
#
# Now audit a run yourself. Exercise 17.12 builds the audit as a function; in exercise 17.13 you judge a current claim with it.

# %% tags=["exercise"]
from course_lib import check, hint, solution
from course_lib.theory import planner
from course_lib.theory.inputs import Cluster, Recipe, hardware, models
from course_lib.chapters.ch17_capstone.costs import sharded_backward
from course_lib.chapters.ch17_capstone.streams import Task, shared_timeline

# %% [markdown] tags=["exercise"]
# ### 17.2 Implement: what a decoded token waits for
#
# In training, tensor parallelism over 8 cards sends 37.6 GB for each sequence of LLaMA-2 70B; in decoding it sends 4.6 MB for a token (section 17.6). A colleague concludes that the network hardly matters for decoding. Write a function that
# says what one more token for each of `sequences` sequences waits for, and how long that takes. Four things take time. Each of `tp` cards
#
# - reads its part of the weights, in bf16, once for all sequences: `"memory"` (`weights` is their number on all cards together),
# - computes 2 FLOP for each of its weights and each sequence: `"computing"`,
# - sends the bytes of two all-reduces in each layer, of `hidden` numbers in bf16 for each sequence: `"bytes"`,
# - waits for the link's latency in each of the $2(tp-1)$ steps of these all-reduces: `"latency"`.
#
# Keys and values are left out here. `hardware.accelerator(card)` has `memory_bytes_per_s`, `peak_flop_per_s`, `inside.bytes_per_s` and `inside.latency_s`. When does the conclusion fail?

# %% [raw] tags=["hints"]
# importance 3, difficulty 3
# Which of the four grow with the number of sequences, and which do not?
# Each layer has two all-reduces forward, and a ring has 2 (tp - 1) steps: each has the link's latency and carries 1/tp of the message.
# Put the four times into a dict; max(times, key=times.get) is the name of the longest.


# %% tags=["exercise"]
def waits_for(
    weights: int, layers: int, hidden: int, tp: int, sequences: int, card: str
) -> tuple[str, float]:
    """What takes longest ("memory", "computing", "bytes" or "latency"), and its seconds."""
    ### BEGIN SOLUTION
    gpu = hardware.accelerator(card)
    sums = 2 * layers
    message = 2 * hidden * sequences
    times = {
        "memory": 2 * weights / tp / gpu.memory_bytes_per_s,
        "computing": 2 * weights * sequences / tp / gpu.peak_flop_per_s,
        "bytes": sums * 2 * (tp - 1) / tp * message / gpu.inside.bytes_per_s,
        "latency": sums * 2 * (tp - 1) * gpu.inside.latency_s,
    }
    longest = max(times, key=times.get)
    return longest, times[longest]
    ### END SOLUTION


check("17.2", waits_for)

# %% [markdown] tags=["exercise"]
# ### 17.3 Debug: the plan once more, for 13B
#
# (published mistakes, note 004) A friend has read the plan for LLaMA-2 70B and makes one for LLaMA-2 13B in the same way: 512 RTX 4090, one of the 40 layers on each card, micro-batches of 8 sequences of 4096 tokens, 40 of them in an update, under 1F1B. Which of these nine lines are true?

# %% [raw] tags=["hints"]
# importance 3, difficulty 2
# Three are right. Divide cards by stages, and count the samples of all whole pipelines.
# Which lines speak of memory as if nothing but the states, or everything twice, were in it? Which speak of a ratio that does not contain the memory at all?
# Section 13.8 has these lines for 70B, exercise 4.3 has the recomputation.

# %% tags=["exercise"]
lines = {
    "32 of the 512 cards have nothing to do": ...,
    "with 40 micro-batches, one for each stage, no card ever waits": ...,
    "an update takes more than three times LLaMA-2's 4.2 million tokens": ...,
    "208 GB of states are less than 9 · 24 GB, so 9 cards can train it": ...,
    "the first stage keeps 40 times the activations of the whole model": ...,
    "full recomputation makes 820 layers out of 40": ...,
    "selective recomputation keeps the inputs of 5 groups of 8 layers, and nothing else": ...,
    "40 micro-batches between two exchanges: each pays a fortieth of one": ...,
    "on H200 instead of H100, tensor parallelism reaches further: the memory is faster": ...,
}
### BEGIN SOLUTION
answers = [True, False, True, False, False, False, False, True, False]
lines = dict(zip(lines, answers, strict=True))
### END SOLUTION
check("17.3", lines)

# %% [markdown] tags=["exercise"]
# ### Audits
#
# Exercises 17.4 to 17.7 each ask for a verdict on a published claim (17.5 and 17.6 are in the deeper part). You give four things: a number that you have found, the verdict, the cause of the difference (or of the agreement), and a source that supports your number. You have one number of your own here, not two as in section 17.2, so the verdicts are those that you would give a colleague:
#
# - `"holds"`: your number agrees with the claim,
# - `"does not hold"`: it contradicts the claim in the very case that the claim speaks of,
# - `"holds only if"`: the claim is right where it was measured; your number is from another case, in which it isn't.
#
# A verdict that passes is kept as a sentence with your records, and the report prints it.

# %% [markdown] tags=["exercise"]
# ### 17.4 Debug: audit A, 48 seconds
#
# (published mistake, note 004) "With the gradients of 80 micro-batches added up first, a training step takes 48 s", on 2,048 RTX 4090, for LLaMA-2 70B (68,976,648,192 parameters) and 16,384 sequences of 4,096 tokens. Suppose that it does. By $6ND$, how many TFLOP/s would each of the 2,048 cards have to reach if none of
# them ever waited? Compare that with what a 4090 can do in training. What makes the 48 s so short, even if no card ever waits?
#
# - `because`: `"the peak"`, `"the bubble"`, `"the exchange of gradients"`, `"attention's scores"` or `"a layer rounded up to 1B"`
# - `source`: `"NVIDIA's Ada whitepaper, appendix A"`, `"note 004"`, `"arXiv:2307.09288"` (LLaMA-2) or `"arXiv:2104.04473"` (Megatron-LM's pipelines)

# %% [raw] tags=["hints"]
# importance 3, difficulty 2
# How many FLOP has an update of 16,384 sequences of 4,096 tokens?
# Divide them by 48 s and by 2,048 cards. May a card do that?
# The claim takes 330 TFLOP/s as what a 4090 does in training. Who says what it does?

# %% tags=["exercise"]
audit_a = {"found": ..., "verdict": ..., "because": ..., "source": ...}
### BEGIN SOLUTION
audit_a = {
    "found": 6 * 68_976_648_192 * 16_384 * 4096 / (48 * 2048) / 1e12,
    "verdict": "does not hold",
    "because": "the peak",
    "source": "NVIDIA's Ada whitepaper, appendix A",
}
### END SOLUTION
check("17.4", audit_a)

# %% [markdown] tags=["exercise"]
# ### 17.7 Debug: audit D, sustained
#
# (published claim) The news about an award for BLOOM says that the model "achieved sustained performance of 156 TFlops/GPU", 50 % of an A100's peak (genci.fr). BLOOM has 176.247 billion parameters, was trained on 366 billion tokens, and took 1,082,990 GPU-hours. Activations were recomputed in full, and the 156 include what was computed twice. Take "sustained" at its word: over the whole training. Counted in the same way as the 156, how
# many TFLOP/s was the mean of the whole training?
#
# - `because`: `"hours below the best speed"`, `"recomputation"`, `"sparse matrices"`, `"attention's scores"` or `"four spare nodes"`
# - `source`: `"arXiv:2211.05100"` (BLOOM), `"github.com/bigscience-workshop/bigscience, tr11-176B-ml"`, `"genci.fr, news on BLOOM's award"` or `"arXiv:2001.08361"` (scaling laws)

# %% [raw] tags=["hints"]
# importance 3, difficulty 2
# FLOP of the whole training over seconds of all its GPUs.
# Full recomputation: 8 FLOP for each parameter and token, and the claim counts so.
# The paper says 156 of which configuration?

# %% tags=["exercise"]
audit_d = {"found": ..., "verdict": ..., "because": ..., "source": ...}
### BEGIN SOLUTION
audit_d = {
    "found": 8 * 176.247e9 * 366e9 / (1_082_990 * 3600) / 1e12,
    "verdict": "does not hold",
    "because": "hours below the best speed",
    "source": "arXiv:2211.05100",
}
### END SOLUTION
check("17.7", audit_d)

# %% [markdown] tags=["exercise"]
# ### 17.12 Build: an audit of a run
#
# Write the audit that you would run on the next claim you read. From parameters, tokens, GPU-hours and the card's dense peak it computes the model FLOP per second of one GPU by $6ND$, the utilisation, and a verdict: `"impossible"` if the utilisation is above `most`, `"poor"` if it is below `least`, else `"plausible"`. No training is faster than the best single
# matrix product, which reaches 0.87 of an A100's peak. The 0.2 is a convention. A claim without a source, or with a quantity that is 0 or less, is not judged: raise a `ValueError`.
#
# The check runs it on BLOOM, LLaMA, Llama 3.1 and DeepSeek-V3, and on claims that cannot be true. A version that passes is kept as `mine/claims.py`. From then on, `from course_lib import mine; mine.audit_run(…)` judges any claim that you meet.

# %% [raw] tags=["hints"]
# importance 4, difficulty 1
# How many FLOP are 6 N D, and how many GPU-seconds are the hours?
# JudgedRun(flop_per_s, utilisation, verdict, source): the rate of one GPU, and that over its dense peak.
# Above `most` it is impossible, below `least` it is poor; on a limit it is plausible.
# `if not source: raise ValueError(…)`, and the same for each number that is 0 or below.

# %% tags=["exercise"]
from course_lib.chapters.ch17_capstone.claimed import JudgedRun

### BEGIN GIVEN


def audit_run(
    parameters: float,
    tokens: float,
    gpu_hours: float,
    peak_flop_per_s: float,
    *,
    source: str,
    most: float = 0.87,
    least: float = 0.20,
) -> JudgedRun:
    """JudgedRun(flop_per_s, utilisation, verdict, source) of a training run."""
    ...


### END GIVEN
### BEGIN SOLUTION
from course_lib.chapters.ch17_capstone.claimed import audit_run

### END SOLUTION

check("17.12", audit_run)

# %% [markdown] tags=["exercise"]
# ### 17.13 Calculate: a claim of your own
#
# Choose a training run whose report appeared in 2024 or later, and that this chapter has not judged. You need its parameters (those active for a token, if it is a mixture of experts), its training tokens, its GPU-hours, and the *dense* peak of its GPUs in the format of
# its matmuls. Write down the source as an address or an arXiv number, so that a reader can look it up.
#
# Compute the utilisation by $6ND$, as a fraction, and give the verdict of exercise 17.12: "impossible" above 0.87, "poor" below 0.20, else "plausible". Then say it to a colleague in three sentences: what the report says, what you get on its own terms, and what could be
# missing from your number.

# %% [raw] tags=["hints"]
# importance 5, difficulty 3, group
# Model cards and technical reports print GPU-hours and tokens. A bill in dollars is GPU-hours times a price.
# utilisation = 6 · parameters · tokens / (gpu_hours · 3600 · peak). Data sheets often print the sparse peak, which is twice the dense one.

# %% tags=["exercise"]
own_claim = {
    "source": ...,  # such as "arXiv:2211.05100, table 3"
    "parameters": ...,
    "tokens": ...,
    "gpu_hours": ...,
    "peak_flop_per_s": ...,
    "utilisation": ...,
    "verdict": ...,
}
### BEGIN SOLUTION
# One of many: Llama 3.1 70B by its model card, on H100.
own_claim = {
    "source": "https://huggingface.co/meta-llama/Llama-3.1-70B",
    "parameters": 70.55e9,
    "tokens": 15e12,
    "gpu_hours": 7.0e6,
    "peak_flop_per_s": 989.4e12,
    "utilisation": 6 * 70.55e9 * 15e12 / (7.0e6 * 3600 * 989.4e12),
    "verdict": "plausible",
}
### END SOLUTION
check("17.13", own_claim)
