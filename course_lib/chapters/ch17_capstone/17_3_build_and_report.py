# %% [raw] tags=["sitting"]
# question: What can eight small processes prove about a plan for 512 GPUs?
# importance: 4
# difficulty: 3
# group: alone

# %% [markdown]
# # 17 Build it small, and report
#
# You have signed a plan for 69 billion parameters on 512 GPUs. On your machine you have eight processes and a model with 0.2 million parameters. **What can they prove about the plan?** More than it seems, and less than you
# would like.
#
# By the end of this sitting you can
#
# - test the layout of a large plan on eight small ranks, and say what the test leaves open,
# - grade a defence of a plan, and your own,
# - say in which direction your estimates err.

# %%
import os

from course_lib import demos, expect, predict, style
from course_lib.chapters.ch17_capstone import figures, reporting
from course_lib.emitting import course
from course_lib.theory import Cluster, Job, Layout, Recipe, TransformerShape
from course_lib.theory import hardware, models, units
from course_lib.theory.network import step_traffic

# %% [markdown]
# ## 17.8 Build it small
#
# | eight small ranks prove | they say nothing about |
# |---|---|
# | which rank talks with which, along each axis | how long it takes |
# | how many messages, and how many bytes | what hides behind what |
# | that training equals one process | the peak of the memory |
# | that the formulas take each degree into account | kernels, links, failures |
#
# `step_traffic` predicts the left column, for small and large models alike. By that function, rank 0 sends this in one update of the sturdiest plan of section 17.7:

# %%
more = {"sequence_parallel": True, "zero_stage": 1, "accumulation": 32}
layout = Layout(tp=2, pp=4, cp=2, dp=32, virtual_stages=5, **more)
h100s = Cluster(hardware.accelerator("H100-SXM"), nodes=64)
large = Job(models.MODELS["llama2-70b"], Recipe(), layout, h100s, 4096)
handed = step_traffic.step_traffic(large, 0).bytes_by_axis
handed = {f"70B, {axis}": size for axis, size in handed.items() if size}

# %% tags=["drawing"]
told = {name: units.format_bytes(size) for name, size in handed.items()}
figures.bars(handed, told, "What rank 0 sends in one update")

# %% [markdown]
# tp's 108 GB stay inside a node, and every layer waits for them. dp sends 34 GB over the network, once in an update. The fastest plan reduces gradients after each of 16 micro-batches, so its dp sends several times as much. A
# defence has to say so.
#
# The small model can be counted. Its command is an emitted file as well, with the course's own program behind torchrun:

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
# **Explain.** The axes are the same, with far fewer bytes. Every row of the report is exact, and the gradient equals that of one process up to the rounding of fp32. With your own parts, this is *your* library: rank 0's messages came out
# of your mesh, your pair of cut matrices, your pipeline and your ring. `keep_run` keeps all of it for the report.
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
# **Explain.** No formula of chapter 13 has this gap, so explain it yourself. How many calls does an update make, and how many milliseconds does that leave for each? How long does a message of 8 KB take on this machine (you measured
# $\alpha$ in chapter 6)? How many processes share a core? Write one line into `report/defence.md`, below "Gaps", that starts with `17.time:`. The report asks for such a line wherever theory and measurement are more than 10 % apart.
#
# **Remember**
# - A small run proves counts, bytes and equality. It proves nothing about time.
# - One function predicts both sizes, so the small run tests the large prediction.
# - A gap without a cause is an open question: write it down.

# %% [markdown]
# ## 17.9 The report
#
# The course ends with a page of your own. `reporting.report()` makes it from your plan and its defence, the small run, each prediction beside theory and measurement, the gaps and their causes, exercises, audits, and your library.
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
# Here is a specimen for another cluster, the fastest layout on 512 H200. Which of its five sentences deserves 5 points, and which one does not?
#
# > 1. It fits with 17 GB to spare: 116.7 of 134.0 GB, because two whole sequences are in a micro-batch.
# > 2. It rests on ZeRO-3's gathers: 40 days of steps if they hide, 46 if half of them do not.
# > 3. tp 2 · pp 2 · dp 128 with ZeRO-1 nearly won, 40 to 41 days; but it has 8 virtual stages, and we have not debugged a pipeline yet.
# > 4. torchtitan runs it, and Megatron-LM too; there is no pipeline, so no schedule to choose.
# > 5. In the first hour we profile the step and look for problems.
#
# The first four do. The fifth does not: "profile" is no number. Better: *one update should take 7.2 s; above 7.9 s, half-way to the cautious 8.3 s, we switch to the layout of sentence 3.*

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
# Open `report.html` in a browser. It is one file that needs no network, so you can send it to a colleague. `report.pdf` is the same on paper, if Chromium or Chrome is there to print it. In a terminal: `course report --name "…" --race`,
# which also measures your parts beside the course's.
#
# The top of the page can be checked without reading. Does the plan fit? Does an engine run it? Are the bytes equal? Has each gap above 10 % a cause? An honest "no" is worth more than an empty page.
#
# Then look at the picture of your predictions. Squares left of the line are guesses that were too low, and the tall vertical mark is the median of a topic. Is there a topic whose squares lie mostly on one side? Correct your next estimate in
# that direction. Run the report again in a month with new predictions; the first numbers stay.
#
# **Remember**
# - A report has prediction, data and gap: without one of them it cannot be judged.
# - Know the direction of your own error, and correct for it.

# %% [markdown]
# ## The answer
#
# Eight processes prove who talks with whom, each count and each byte, and that the training equals one process: all rows of the report agree exactly. They prove nothing about time: the update on eight ranks is not an eighth of the update on one.
# For the 42 days, or 47, you need the first hour on the real cluster, and the number that you wrote down before.

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
# Two kernels want the whole processor. One has weight 9 and 10 ms of work, the other has weight 1 and 1 ms. When has the small one ended?
# [ ] after 1 ms
# [ ] after 2 ms
# [x] after 10 ms
# Why: It runs at a tenth of its speed as long as the other is there.
#
# FSDP gathers a layer while the one before computes. How many tokens must a GPU of 312 TFLOP/s have in a micro-batch to hide that, at 25 GB/s?
# [ ] about 125
# [ ] about 1,250
# [x] about 12,500
# Why: 2 P t / peak against 2 P / bandwidth: t = peak / bandwidth, as many as the ridge.
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
# Your prediction and the measurement differ by 8 %. What belongs into the report?
# [x] both numbers, and what the theory leaves out
# [ ] the measurement only
# [ ] the theory with a factor that closes the gap
# Why: A fitted factor agrees with one run and explains none.

# %% [markdown]
# **Read on.** Zhao et al. 2023, *PyTorch FSDP*, section 5 (arXiv:2304.11277). BigScience 2022, *BLOOM*, section 3.4 (arXiv:2211.05100), and its chronicles, github.com/bigscience-workshop/bigscience, train/tr11-176B-ml. Pope et al. 2022, *Efficiently Scaling Transformer Inference*
# (arXiv:2211.05102). Weng and Brockman 2022, *Techniques for training large neural networks*, openai.com, for the four families, and Weng 2021, *How to Train Really Large Models on Many GPUs?*, lilianweng.github.io: the two articles behind note 003.

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
