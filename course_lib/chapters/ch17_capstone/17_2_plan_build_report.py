# %% [raw] tags=["sitting"]
# question: Which plan for a 70B model would you sign, and what can eight small processes prove about it?
# importance: 4
# difficulty: 3
# group: alone

# %% [markdown]
# # 17 Plan, build it small, report
#
# LLaMA-2 70B was trained on 2 trillion tokens (arXiv:2307.09288, section 2). You get 64 nodes of 8 H100. At their peak they would need 19 days. The fastest layout that the planner knows needs 42 days, if its
# messages hide as well as they can. At 2 USD per GPU-hour, a day costs 25,000 USD. **Which plan would you sign, and what can eight processes on your machine prove about it?**
#
# By the end of this sitting you can
#
# - choose a plan that loses little if less hides than you hoped, and give it a date,
# - defend a plan by five answers, and grade a defence,
# - test a layout on eight small ranks, and say what the test leaves open,
# - say in which direction your estimates err.

# %%
import os

from course_lib import demos, emitting, expect, launch, predict, style
from course_lib.chapters.ch17_capstone import claimed, figures, reporting
from course_lib.emitting import course
from course_lib.theory import CAUTIOUS, Cluster, Job, Layout, Recipe, TransformerShape
from course_lib.theory import flops, gpu_memory, hardware, models, planner, units
from course_lib.theory.network import step_traffic

launch.warm_up()

# %% [markdown]
# ## 17.7 Plan 70B
#
# Make a plan that others can judge: 2 trillion tokens, 4 million of them in an update, on 512 H100. First the scale: $6ND = 6 \cdot 69 \cdot 10^9 \cdot 2 \cdot 10^{12} = 8.3 \cdot 10^{23}$
# FLOP, and 512 H100 have $5.1 \cdot 10^{17}$ FLOP/s at their peak: hence the 19 days. The fastest layout, the one with 42, has ZeRO-2, which exchanges gradients with each of 16 micro-batches.
#
# **Predict.** Suppose that only half of dp's messages hide, and none of cp's. How many days do the steps of the same layout take?

# %%
not_hidden = predict("17.days", "Days, if less hides?", yours=None, unit="days")

# %%
llama, h100 = models.MODELS["llama2-70b"], hardware.accelerator("H100-SXM")
cluster = Cluster(h100, nodes=64)
found = planner.plan(llama, Recipe(), cluster, 1024, sequence=4096)
plans = {"optimistic": found, "cautious": found.under(CAUTIOUS)}
updates = 2e12 / (1024 * 4096)
(fastest,) = planner.fastest(tuple(plans.values()), 1)
(sturdiest,) = planner.sturdy(tuple(plans.values()), 1)
days = [updates * seconds / 86_400 for seconds in fastest.steps_s]
sturdy_days = [updates * seconds / 86_400 for seconds in sturdiest.steps_s]
assert [round(size) for size in days + sturdy_days] == [42, 47, 43, 43]
assert fastest.option.layout.zero_stage == 2 and sturdiest.option.layout.zero_stage == 1
expect(days[1], label="the fastest, cautiously", unit="days", yours=not_hidden)

# %% tags=["drawing"]
at_peak_s = flops.six_nd(llama.parameters().total, 2e12) / 512 / h100.peak_flop_per_s
spent_s = {"all at the peak": {"computing": at_peak_s}}
for which, option in {"fastest": fastest, "sturdiest": sturdiest}.items():
    for name, plan in plans.items():
        parts = plan.step(option.option).parts()
        spent_s[f"{which}, {name}"] = {part: updates * parts[part] for part in parts}
figures.stacked_bars(
    spent_s, "Where the days go", lambda part_s: f"{part_s / 86_400:.0f} days"
)

# %% [markdown]
# **Explain.** 47 days, 11 % more than promised. How much really hides, nobody knows before the first run. So rank by the worst-case *regret*: how far each layout falls behind the best one under the assumptions that suit
# it least (section 13.4).

# %%
print(planner.explain_sturdy(plans, 4))
print(f"regret: fastest {fastest.regret:.1%}, sturdiest {sturdiest.regret:.1%}")
assert 0.07 < fastest.regret < 0.10 and sturdiest.regret < 0.01

# %% [markdown]
# The sturdiest layout takes 42.8 days at best and 43.4 at worst. Its gradients are exchanged once in an update (ZeRO-1), so little depends on what hides.
#
# **From steps to the calendar.** All these are days of steps. Failures, restarts and evaluations took a tenth of BLOOM's hours (section 17.5), and they will take some of yours.
# A plan that promises a date divides by the share of hours that is kept:

# %%
kept = claimed.RunAudit(claimed.BLOOM, claimed.BLOOM_STEP).kept  # 0.90
for name, dates in {"fastest": days, "sturdiest": sturdy_days}.items():
    least, most = (size / kept for size in dates)
    print(f"{name}: {least:.0f} to {most:.0f} days on the calendar")
assert [round(size / kept) for size in days + sturdy_days] == [47, 52, 47, 48]

# %% [markdown]
# Before you sign, look at the memory of each of its four stages:

# %%
sturdy_job = found.question.job(sturdiest.option.layout)
print(f"the fastest layout: {fastest.option.memory_bytes / 1e9:.1f} GB")
figures.consumer_bars(
    {f"stage {stage}": gpu_memory(sturdy_job, stage) for stage in range(4)},
    "The sturdiest layout, by stage",
    found.capacity_bytes,
)

# %% [markdown]
# At most 68.8 of 80.8 GB. The fastest layout needs all 80.8: with a library that wants 1 GB more, it would fail in the first minute.
#
# ### Choose and defend
#
# Choose a layout: one from the table, or one of your own. `planner.plan(…, only={"zero_stage": (0, 1)})` searches among some of them only. It must satisfy tp · pp · cp · dp = 512 and
# micro_batch · accumulation · dp = 1024. `keep_plan` keeps it for your report.

# %%
choice = None  # Layout(tp=..., pp=..., dp=..., zero_stage=..., accumulation=..., ...)
print(reporting.keep_plan(plans, choice) or "")

# %% [markdown]
# Now write down why. A plan is defended when these five questions are answered:
#
# 1. **Does it fit?** With how many GB to spare, and what fills the fullest GPU?
# 2. **What does it rest on?** Which assumption, if wrong, costs it most?
# 3. **What nearly won?** Name the layout that you did not take, and why.
# 4. **Who runs it?** Which engine can do all of it, and with which schedule?
# 5. **How would you know?** What do you measure in the first hour, and which number would change your mind?
#
# Write them into `report/defence.md`. `course report` creates the file if it is missing, and nothing ever overwrites it. Section 17.9 has a specimen and a scale of points: write yours first.
#
# Do not type the plan into a configuration by hand. Here it is for Megatron-LM, your choice or the sturdiest layout:

# %%
job = found.question.job(choice or sturdiest.option.layout)
try:
    print(*emitting.files("megatron", job, "LLaMA-2 70B").values())
except ValueError as refusal:
    print(refusal)

# %% [markdown]
# In a terminal, `course plan llama2-70b --gpu H100-SXM --nodes 64 --batch 1024 --sequence 4096 --emit megatron --to run` writes the files for the fastest layout, and `--layout 7` for the seventh.
#
# **Remember**
# - Sign the plan with the least regret under both sets of assumptions, not the one that wins under one.
# - Divide days of steps by the share of the hours that you keep.
# - A defence names the assumption on which the plan rests, and the measurement that would refute it.

# %% [markdown]
# ## 17.8 Build it small
#
# You have a model with 0.2 million parameters and eight processes. What can they prove about 69 billion on 512 GPUs?
#
# | eight small ranks prove | they say nothing about |
# |---|---|
# | which rank talks with which, along each axis | how long it takes |
# | how many messages, and how many bytes | what hides behind what |
# | that training equals one process | the peak of the memory |
# | that the formulas take each degree into account | kernels, links, failures |
#
# `step_traffic` predicts the left column, for small and large models alike. By it, rank 0 sends this in one update of your plan, or of the sturdiest one:

# %% tags=["drawing"]
handed = step_traffic.step_traffic(job, 0).bytes_by_axis
handed = {f"70B, {axis}": size for axis, size in handed.items() if size}
told = {name: units.format_bytes(size) for name, size in handed.items()}
fastest_job = found.question.job(fastest.option.layout)
fastest_dp = step_traffic.step_traffic(fastest_job, 0).bytes_by_axis["dp"]
assert round(fastest_dp / 1e9) == 291
figures.bars(handed, told, "What rank 0 sends in one update")

# %% [markdown]
# In the sturdiest plan tp's 108 GB stay inside a node, and every layer waits for them. dp sends 34 GB over the network, once in an update. The fastest plan reduces gradients after each of 16 micro-batches,
# so its dp sends 291 GB. A defence has to say so.
#
# In the small model you can count. Its command is made from a `Job` as well, and starts the course's own program:

# %%
tiny = TransformerShape(layers=4, hidden=64, heads=4, ffn=256, vocab=128, context=32)
fp32 = Recipe(parameters="fp32", gradients="fp32", master_copy=False)
cube = Layout(dp=2, tp=2, pp=2, micro_batch=1, accumulation=4)
small = Job(tiny, fp32, cube, sequence=32)
print("torchrun --standalone --nproc-per-node=8", *course.program(small))

# %% [markdown]
# **Predict.** Eight processes train this model on the same batch as one process. How many times as long does an update take on eight? Think of the cores of your machine, and of the messages.

# %%
longer = predict("17.time", "Update on 8 ranks / on 1?", yours=None)

# %%
settings = {"model": "4x64x4", "sequence": 32, "batch": 8, "steps": 6}
eight = demos.run(
    "three_d", ranks=8, parts="mine", micro_batches=4, stream=False, **settings
)
(version,) = eight.versions
print(eight.report())

# %%
by_dp = sum(
    total.size_bytes for axis, total in version.sent.items() if axis[:2] == "dp"
)
dp_bytes = step_traffic.step_traffic(small, 0).bytes_by_axis["dp"]
expect(dp_bytes, by_dp, label="dp bytes of rank 0", unit="B")
assert version.sent == version.predicted_sent
assert version.stored == version.predicted_stored
kept = reporting.keep_run(eight)
assert kept.bytes_equal and kept.equal

# %%
figures.rank_mesh(eight.places, version.sent)

# %% tags=["drawing"]
for what, total in version.sent.items():
    axis = f"small, {what.split()[0]}"
    handed[axis] = handed.get(axis, 0) + total.size_bytes
title = "70B by theory, the small model counted"
figures.bars(handed, units.format_bytes, title, tens=True)

# %% [markdown]
# **Explain.** Apart from cp the axes are the same, with far fewer bytes. Every row of the report is exact, and the gradient equals that of one process up to the rounding of fp32. If you built these parts, rank 0's messages came out of your own mesh, pair of cut matrices,
# pipeline and ring. `keep_run` keeps all of it for the report.
#
# Now the time. At best, eight ranks share the work among the cores:

# %%
alone = demos.run("three_d", ranks=1, stream=False, **settings).versions[0]
ideal = 1 / min(8, os.cpu_count())
ratio = version.seconds / alone.seconds
# of times: the gap is shown, not judged
expect(ideal, ratio, within=None, label="update, 8 ranks / 1", yours=longer)

# %% tags=["drawing"]
times = {
    "one process": alone.seconds,
    "8 ranks, if only shared": alone.seconds * ideal,
    "8 ranks, measured": version.seconds,
}
told = {name: units.format_duration(time_s) for name, time_s in times.items()}
figures.bars(times, told, "One update", style.COMPUTING)

# %% [markdown]
# **Explain.** No formula of chapter 13 predicts this gap, so explain it yourself. How many calls does an update make, and how many milliseconds does that leave for each? How long does a message of 8 KB take on this machine (you measured
# $\alpha$ in chapter 6)? How many processes share a core? Write one line into `report/defence.md`, below "Gaps", that starts with `17.time:`. The report asks for such a line wherever theory and measurement are more than 10 % apart.
#
# **Remember**
# - A small run proves counts, bytes and equality. It proves nothing about time.
# - One function predicts both sizes, so the small run tests the large prediction.
# - A gap without a cause is an open question: write it down.

# %% [markdown]
# ## 17.9 The report
#
# The course ends with a page of your own. `reporting.report()` makes it from your plan and its defence, the small run, your predictions, gaps, exercises and audits, and your library.
#
# **Grade the defence first.** Ask a colleague to give points, and give them yourself:

# %% [markdown]
# | question | 1 point | 5 points |
# |---|---|---|
# | Does it fit? | "yes" | GB to spare on the fullest stage, and what fills it |
# | What does it rest on? | "a fast network" | the assumption, and the days that it costs if it fails |
# | What nearly won? | nothing | a layout, its days, and the reason against it |
# | Who runs it? | the name of an engine | the engine and its schedule, and which engine refuses |
# | How would you know? | "profile it" | a number, its limit, and what you do beyond the limit |
#
# Here is a specimen for another cluster, the fastest layout on 512 H200. Give points to its five sentences before you read on:
#
# > 1. It fits with 17 GB to spare: 116.7 of 134.0 GB, of which 109 are the activations of two sequences.
# > 2. It rests on ZeRO-3's gathers: 40 days of steps if they hide, 46 if half of them do not.
# > 3. tp 2 · pp 2 · dp 128 with ZeRO-1 nearly won, 40 to 41 days; but it has 8 virtual stages, and we have not debugged a pipeline yet.
# > 4. torchtitan and Megatron-LM run it, with no pipeline and so no schedule; DeepSpeed refuses it.
# > 5. In the first hour we profile the step and look for problems.
#
# Only the fifth does not deserve 5: "profile" is no number. Better: *one update should take 7.2 s. Above 7.5 s the layout of sentence 3 is faster even if half of its messages show, and we switch.*

# %% [markdown]
# **Predict.** You have predicted many numbers in this course. What is the median factor by which your guesses were off? (Those for which a factor makes sense.)

# %%
typical = predict("17.typical", "Your typical factor?", yours=None)

# %%
own = reporting.typical_miss()
if own:
    expect(own, label="typical miss", yours=typical)

# %%
reporting.report()

# %% [markdown]
# Open `report.html` in a browser. It is one file that needs no network, so you can send it to a colleague. `report.pdf` is the same on paper, if there is a Chromium to print it. In a terminal:
# `course report --name "…" --race`, which also measures your parts beside the course's.
#
# The top of the page shows what can be checked: does the plan fit, does an engine run it, are the bytes equal, has each gap a cause?
#
# Then look at the picture of your predictions. Squares left of the line are guesses that were too low, and the tall vertical mark is the median of a topic. Is there a topic whose squares are mostly on one side? Correct your next estimate in
# that direction. Run the report again in a month with new predictions; it keeps the first ones.
#
# **Remember**
# - A report has prediction, data and gap: without one of them it cannot be judged.
# - Know the direction of your own error, and correct for it.

# %% [markdown]
# ## The answer
#
# Sign the sturdiest plan: tp 2 · pp 4 · cp 2 · dp 32 with ZeRO-1 takes 43 days of steps whatever hides, and 47 to 48 on the calendar. 512 GPUs for 48 days cost 1.2 million USD. Eight small processes prove who talks with
# whom, each count and each byte, and that the training equals one process. They prove nothing about time. For the date you need the first hour on the real cluster, and the number that you wrote down before.

# %%
assert round(512 * 48 * 24 * 2 / 1e6, 1) == 1.2 and round(512 * 24 * 2, -3) == 25_000

# %%
from course_lib import quiz

quiz("17")

# %% [raw] tags=["quiz"]
# A run of 70B on 512 A100 claims 290 TFLOP/s of model FLOP on each GPU. What do you do?
# [ ] believe it: the peak is 312
# [x] ask what was counted: the best matrix product alone reaches 271
# [ ] call it poor
# Why: No training is faster than its matrix products; recomputation may be in the number.
#
# A step takes 20 % less time than before. How much more work is done in a day?
# [ ] 20 %
# [x] 25 %
# [ ] 17 %
# Why: 1 / 0.8: time saved and throughput gained are different numbers.
#
# A note plans a step of 48 s. With its own peak and layer size you get 47.7 s, with the right ones 162 s. Your verdict?
# [ ] wrong
# [x] right on its own terms
# [ ] right number, other terms
# Why: The arithmetic holds, the assumptions do not: its author must correct those.
#
# FSDP gathers a layer while the one before computes. How many tokens must a GPU of 312 TFLOP/s have in a micro-batch to hide that, at 25 GB/s?
# [ ] about 125
# [ ] about 1,250
# [x] about 12,500
# Why: 2 P t / peak against 2 P / bandwidth: t = peak / bandwidth, the ridge.
#
# LLaMA-2 70B decodes one sequence on 8 RTX 4090, tp 8. What does a token wait for most?
# [x] reading weights
# [ ] bytes on the link
# [ ] computing
# Why: 17 ms for 17 GB of weights. A message has 16 KB: its latency counts, not its bytes.
#
# The same training on an H200 instead of an H100. When is a step much faster?
# [ ] always: the memory is faster
# [x] when memory was short: less recomputation, fewer cuts
# [ ] when the network was slow
# Why: Peak and NVLink are the same; 141 GB save work that too little memory had caused.
#
# Your prediction and the measurement differ by 8 %. What do you write into the report?
# [x] both numbers, and what the theory leaves out
# [ ] the measurement only
# [ ] the theory with a factor that closes the gap
# Why: A fitted factor agrees with one run and explains none.

# %% [markdown]
# **Read on.** Zhao et al. 2023, *PyTorch FSDP*, section 5 (arXiv:2304.11277). BigScience 2022, *BLOOM*, section 3.4 (arXiv:2211.05100), and github.com/bigscience-workshop/bigscience, train/tr11-176B-ml/chronicles.md. Pope et al. 2022, *Efficiently Scaling Transformer Inference*
# (arXiv:2211.05102). Weng and Brockman 2022, *Techniques for training large neural networks*, openai.com, and Weng 2021, *How to Train Really Large Models on Many GPUs?*, lilianweng.github.io.

# %% [markdown] tags=["exercise"]
# ### 17.10 Predict: bytes of the built layout
#
# Before you build a layout, say what it will send. Eight ranks, $dp = tp = pp = 2$, train a GPT of 4 layers with hidden size 64 and an alphabet of 128 characters, on 8 sequences of 16 characters in an update; each replica runs its 4 sequences in two pieces. Everything is fp32. How many bytes does rank 0, on the first stage, send over tp's all-reduces, to the next
# stage, and over dp's all-reduces? It stores 55,488 parameters. Then say for each change which axis sends at least twice the bytes: `"tp"`, `"dp"`, `"both"` or `"neither"`. When you have answered, build it: `course demo three_d --ranks 8 --model 4x64x4`.

# %% [raw] tags=["hints"]
# importance 4, difficulty 3
# A micro-batch is 2 of the 8 sequences. How many numbers has one message?
# tp: four all-reduces in each of rank 0's two layers and one in the embedding, for each piece. pp: one message for each piece. dp: the gradients of what rank 0 stores, once.
# local_parameters(shape, Layout(dp=2, tp=2, pp=2), stage=0).total numbers of 4 bytes.

# %% tags=["exercise"]
tp_bytes, pp_bytes, dp_bytes = ..., ..., ...
doubles = {
    "16 sequences in an update, in 4 pieces": ...,
    "hidden 128 instead of 64": ...,
    "4 pieces of one sequence instead of 2 of two": ...,
    "4 replicas instead of 2, the same 8 sequences": ...,
}
### BEGIN SOLUTION
message = 2 * 16 * 64 * 4  # sequences of a piece · characters · hidden · bytes
tp_bytes = (4 * 2 + 1) * 2 * message  # 2 layers and the embedding, 2 pieces
pp_bytes = 2 * message
dp_bytes = 4 * 55_488
doubles = dict(zip(doubles, ["tp", "both", "neither", "neither"], strict=True))
### END SOLUTION
check("17.10", [tp_bytes, pp_bytes, dp_bytes, doubles])
