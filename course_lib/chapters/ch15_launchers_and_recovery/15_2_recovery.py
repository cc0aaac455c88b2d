# %% [raw] tags=["sitting"]
# question: A machine fails every three hours: how often do you save?
# importance: 5
# difficulty: 3
# group: alone
# needs: 9

# %% [markdown]
# # 15 Recovery
#
# Llama 3 405B was trained on 16,384 GPUs. In 54 days the job had 419 interruptions that nobody had planned (arXiv:2407.21783, section 3.3.4): a GPU, a memory chip, a cable or a program failed. That is one every 3.1 hours. Each time all 16,384 GPUs had to stop, since their collectives wait for every rank, and all work since the last checkpoint was lost. If you save more often, you lose less. But a save costs time as well, say a minute. So how often do you save?
#
# After this sitting you can
#
# - load a checkpoint of four ranks on three,
# - say which rank hangs, and what an elastic job needs,
# - choose the interval between saves, and say what reduces the losses that remain.

# %%
import re
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from course_lib import demos, expect, launch, predict, scratch, show_source, style
from course_lib.chapters.ch15_launchers_and_recovery import figures, panels, recovery

launch.warm_up()
torch.set_num_threads(1)

# %%
from course_lib.theory import Recipe, hardware, models, units

# %% [markdown]
# **Predict.** A failure every 3.1 hours, one minute for a save, ten minutes until all ranks train again. How many minutes of work do you put between two saves? Section 15.8 has the answer.

# %%
interval = predict("15.interval", "Minutes between two saves?", yours=None, unit="min")

# %% [markdown]
# ## 15.7 Sharded checkpoints, and elastic restarts
#
# A checkpoint holds all that the next update needs: the weights, both moments of AdamW, the number of updates (for the learning rate, AdamW's bias correction, and the samples that come next), and the state of the random numbers if there is dropout. In mixed precision the weights are the fp32 master copy. That makes 4 + 4 + 4 bytes for each parameter:

# %% tags=["drawing"]
checkpoints = {}
for name in ("llama2-7b", "llama2-70b", "llama3-405b"):
    parameters = models.MODELS[name].parameters().total
    checkpoints[name] = {
        "weights, fp32": 4 * parameters,
        "states of AdamW": 8 * parameters,
    }
    whole_bytes = recovery.checkpoint_bytes(parameters, Recipe())
    assert whole_bytes == sum(checkpoints[name].values())
looks = {"states of AdamW": style.STATES}
figures.stacked_bars(checkpoints, "A checkpoint", units.format_bytes, colours=looks)

# %% [markdown]
# No rank has room for the 828 GB of a 70B model. In a **sharded checkpoint** (分片检查点) each rank writes the part that it holds into its own file. A last small file, the *manifest*, lists the files and their lengths. It is written when all the others are safe on the disk. The machine may die at any moment, also during a save. So a checkpoint with a manifest is complete, and one without it is garbage.
#
# After a failure you may have fewer GPUs than before. Dividing the state anew is called **resharding** (重新切分), and it is arithmetic on indices. Rank $r$ of $n$ holds the columns from $\lfloor Tr/n \rfloor$ up to, but without, $\lfloor T(r+1)/n \rfloor$ of all $T$. Here are ten columns of a state, written by four ranks and read by three:


# %% tags=["drawing"]
def rank_columns(rank, ranks):
    return range(*scratch.recovery.columns(10, rank, ranks))


files = {
    str(column): f"file {rank}" for rank in range(4) for column in rank_columns(rank, 4)
}
read = {
    f"read by rank {rank}": {
        str(column): figures.Cell("", {0: files[str(column)]})
        for column in rank_columns(rank, 3)
    }
    for rank in range(3)
}
written = {column: figures.Cell("", {0: file}) for column, file in files.items()}
title = "10 columns: written by 4 ranks, read by 3"
figures.cells({"written": written} | read, title, gap=2)

# %% [markdown]
# The middle reader takes one part of file 1 and one of file 2; each part is an intersection of two intervals. Nobody reads the whole checkpoint, and nobody has to join it into one piece first. The demo trains on four ranks, saves, and continues on three that start from other weights. It does so by hand, and by `torch.distributed.checkpoint`, which does the same for every kind of sharding that DTensors know:

# %%
moved = demos.run("checkpoint", ranks=4, save_ranks=4, load_ranks=3, stream=False)
print("\n".join(moved.report().splitlines()[-2:]))

# %% [markdown]
# The loss is that of one process that was never interrupted. By hand a parameter takes 12 bytes on the disk. (The library also writes metadata and file headers, which weigh nothing for a large model.)
#
# ### A rank that hangs
#
# An agent notices a rank that *ends*. A rank that hangs, for example on a file that never comes, looks healthy to it. The other ranks wait in their next collective, until the **timeout** of the process group: by default 10 minutes with NCCL, and 30 with other backends. Here the timeout is one second, and rank 1 comes two seconds late:


# %%
def late(rank_1_s=2.0):
    """The seconds that this rank was in the all-reduce, and its error."""
    group = dist.new_group(timeout=timedelta(seconds=1))
    time.sleep(rank_1_s * dist.get_rank())
    start, error = time.perf_counter(), "no error"
    try:
        dist.all_reduce(torch.ones(4), group=group)
    except RuntimeError as problem:
        error = str(problem)
    return time.perf_counter() - start, error


# %% [markdown]
# **Predict.** Both ranks get an error. How many of the two errors speak of a timeout?

# %%
speak = predict("15.late", "Errors that speak of a timeout?", yours=None)

# %%
said = launch.run(late, ranks=2, stream=False)
found = ["imed out" in error for _, error in said]
expect(1, sum(found), label="speak of a timeout", yours=speak)
assert found == [True, False]

# %%
for rank, (seconds, error) in enumerate(said):
    print(
        f"rank {rank}, {seconds:.1f} s in the call:",
        re.sub(r"\[/\S+\] ", "", error)[:99],
    )

# %% [markdown]
# **Explain.** One. Rank 0 waited for a second, gave up and closed its connections. When rank 1 came, nobody was there. So the innocent rank says "timed out", and the rank that is to blame says "connection closed" and suspects the other one of a crash. Of many errors, read the one with the *earliest* time of day first.
#
# With NCCL the GPU waits while Python goes on. A thread of the process group, the **watchdog** (看门狗), checks all collectives that are under way. When one is older than the timeout, it logs a message (section 16.7 reads it) and ends its process. Then the agent notices at last, and the ranks are started again. So the timeout is the first part of the restart time of every hang: on 16,384 GPUs ten minutes are 2,731 GPU-hours. `init_process_group(timeout=timedelta(minutes=2))` makes it shorter. But it must be longer than any wait that is *right*: an evaluation or a save on rank 0 alone, the first compilation.
#
# ### Elastic restarts
#
# With `--max-restarts` torchrun does by itself what Slurm did in section 15.2: when a rank dies, the agents end all ranks, meet again, and start all of them again. A job that was started with `--nnodes=1:2` is **elastic** (弹性): when one node does not come back, it can continue on the other. Three things decide whether that works:
#
# - Slurm ends a job that has lost a node, and with it the survivors, unless both `sbatch` and `srun` were given `--no-kill`.
# - With `c10d` the meeting point is a store in the agent on `$HEAD`. If *that* node dies, nobody can meet again, and the job ends ([pytorch/pytorch issue 67742](https://github.com/pytorch/pytorch/issues/67742)).
# - On one node of two the global batch is half as large, unless each rank accumulates twice as many micro-batches.
#
# **Remember**
# - A checkpoint holds weights, moments, step, data position and random state: 12 bytes for each parameter.
# - The manifest comes last. Without a manifest it is no checkpoint.
# - torchrun sees processes that end. For those that hang there is the timeout.
# - Fewer nodes, a smaller global batch: an elastic job must accumulate more.

# %% [markdown]
# ### Deeper: the course's own resharding
#
# Try exercise 15.11 first. This is the part of it that reads:

# %%
show_source(scratch.recovery.columns, scratch.recovery.load_shard)

# %% [markdown]
# In a checkpoint of LLaMA-2 70B (827.7 GB), written by 64 ranks and read by 48, the part of rank 1 begins at $64 \cdot 1/48 = 1.33$ and ends at $64 \cdot 2/48 = 2.67$: within file 1 and within file 2.

# %%
columns = scratch.recovery.columns
total = models.MODELS["llama2-70b"].parameters().total
low, high = columns(total, 1, 48)
held = [columns(total, writer, 64) for writer in range(64)]
touched = [w for w, (first, last) in enumerate(held) if first < high and low < last]
assert touched == [1, 2]

# %% [markdown]
# ### Deeper: a watchdog's message
#
# (published in [LLaMA-Factory issue 7396](https://github.com/hiyouga/LlamaFactory/issues/7396); not run here, since it needs GPUs)
#
# ```
# [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE,
#   NumelIn=466119168, NumelOut=466119168, Timeout(ms)=600000) ran for 600060 milliseconds before timing out.
# [PG 1 Rank 0] Exception (either an error or timeout) detected by watchdog at work: 1580,
#   last enqueued NCCL work: 1582, last completed NCCL work: 1579.
# ```
#
# | part | how to read it |
# |---|---|
# | `SeqNum=1580` | the 1,580th collective of this group. A rank whose *last enqueued* work is smaller never called it: look there first |
# | `OpType`, `NumelIn` | which collective, and on how many numbers: here 466 million, a bucket or a layer that you can find by its size |
# | `ran for 600060 milliseconds` | it waited for ten minutes. It says nothing about *why*, and above all not that the network is slow |
#

# %% [markdown]
# ## 15.8 How often to save
#
# What does one failure cost? A job needs two hours of work and saves after every 24 minutes of it; a save takes a minute. After 66 minutes of work a node dies. Nobody notices for five minutes, the job waits two minutes in the queue, and starting takes three.
#
# **Goodput** (有效吞吐) is the share of the wall-clock time that is spent on work which counts in the end.
#
# **Predict.** What is it when the job is done, in percent?

# %%
goodput = predict("15.goodput", "Goodput in the end, in %?", yours=None, unit="%")

# %%
job_costs = recovery.JobCosts(
    update_s=360, save_s=60, notice_s=300, queue_s=120, start_s=180
)
result = recovery.failing_job(20, every=4, fails_after=11, costs=job_costs)
saves = sum(event.what == "save" for event in result.trace)
by_hand = 120 / (120 + 18 + saves * 1 + 10)  # minutes: work, done again, saves, restart
expect(100 * by_hand, 100 * result.goodput, 1e-9, "%", "goodput", yours=goodput)

# %% [markdown]
# Step through it. Dashed is what is still to come. When the node dies, the red work is lost, and the goodput falls. Below, the thick line is the work that is done, and the filled stairs are the work that is saved.

# %%
from course_lib.chapters.ch15_launchers_and_recovery import steppers

steppers.failing_job()

# %% [markdown]
# **Explain.** 18 minutes of work are done twice, ten minutes are spent waiting and five saving. So the job takes 153 minutes for 120 minutes of work: 78 %. A failure costs most just before a save, least just after it, and on average half an interval. If you save every 6 minutes instead, a failure costs little more than the restart, but twenty saves cost 20 minutes. The best interval lies between.
#
# ### The formula
#
# Let $\tau$ be the work between two saves, $C$ the time of one save, $M$ the mean time between failures of the whole machine, and $R$ the time of a restart. For each second of new work you pay three things:
#
# $$\underbrace{\frac{C}{\tau}}_{\text{saves}} \; + \; \underbrace{\frac{\tau}{2M}}_{\text{work done again}} \; + \; \underbrace{\frac{R}{M}}_{\text{restarts}}$$
#
# The first falls with $\tau$. The second grows with it, since a failure finds on average half an interval unsaved. The third does not depend on $\tau$. A sum of $a/\tau$ and $b\,\tau$ is least where both are equal:
#
# $$\frac{C}{\tau} = \frac{\tau}{2M} \quad\Longrightarrow\quad \tau = \sqrt{2\,C\,M}$$
#
# That is Young's formula (Young 1974, doi:10.1145/361147.361115). If $n$ parts fail independently, each of them once in a time $m$, then $M = m/n$. With the numbers of Llama 3:

# %%
mtbf_s = 54 * 86_400 / 419
young_s = recovery.young_interval_s(60, mtbf_s)
expect(young_s / 60, label="interval", unit="min", yours=interval)

# %%
machine = {"save_s": 60, "mtbf_s": mtbf_s, "restart_s": 600}
terms = recovery.Saving(young_s, **machine).parts
print(f"a failure every {mtbf_s / 3600:.2f} h, an interval of {young_s / 60:.1f} min")
print(", ".join(f"{name} {part:.1%}" for name, part in terms.items()))

# %% [markdown]
# About 19 minutes. A single GPU would fail every $16{,}384 \cdot 3.1$ hours, that is once in 5.8 years; the number of GPUs turns this into every three hours. Four times as many GPUs fail four times as often, and should save twice as often.
#
# The three terms make 15.8 %. A simulated machine, for which `scratch.recovery.run` draws the moments of failures at random, loses about one and a half points more: a failure may also come during a save or a restart. Here are other intervals, from a minute to two hours. Dots are simulated, the dashed lines are the three terms, and the thick line is Daly's complete model:


# %%
def simulated(interval_s, days=400):
    """Time lost over time spent on new work."""
    spans = scratch.recovery.run(days * 86_400, interval_s=interval_s, **machine)
    return scratch.recovery.wasted(spans)


dots = [(60 * m, simulated(60 * m, days=100)) for m in (5, 10, 20, 40, 80)]
plan = recovery.Saving(young_s, **machine)
figures.wasted_time(plan, "Llama 3's machine", {"simulated, 100 days each": dots})

# %% [markdown]
# Around its lowest point the curve is flat. Half the interval or twice the interval costs about three points more, so it is enough to know $C$ and $M$ roughly. But an hour instead of 19 minutes costs ten points.
#
# Meta reports more than 90 % effective training time (arXiv:2407.21783, section 3.3.4). Daly's model says that our machine loses 17.3 s for 100 s of new work, so new work is $100 / 117.3 = 85$ % of the time. Which of Meta's numbers must differ from our minute and ten minutes? The panel's job is the 405B model, whose checkpoint is 4.87 TB:
#
# 1. Set the interval to what you guessed at the beginning. What does it cost?
# 2. Meta's storage takes 2 TB/s (same paper, section 3.3.1). Set `storage` to 2000, and `interval` to the best. Are you above 90 %? Which of the three terms is now the largest?
# 3. Back to 81 GB/s. How short must a restart be for 90 %? Are shorter restarts enough?

# %%
from course_lib.chapters.ch15_launchers_and_recovery import panels

panels.recovery()

# %%
often = panels.recovery(storage_gb_per_s=2000, interval_min=4).result
assert often.progress > 0.92
assert max(often.parts, key=often.parts.get) == "restarting"

# %% [markdown]
# **Answers.** (1) From 10 to 40 minutes it costs four points at most; with an hour, ten. (2) Yes, 93 %, and restarts are the largest term. (3) Just not: even restarts in no time reach only 89.97 %, since saves and repeated work take 10 % by themselves. So Meta's saves must be shorter.
#
# ### Saves that hide
#
# It helps most if a save does not stop training. **Asynchronous saving** (异步保存) copies the shards to the host's memory, and a thread writes them to the storage while training goes on (`torch.distributed.checkpoint.async_save`). Then $C$ is the copy alone, and the interval can be as short as the write, here a minute:

# %%
shard_bytes = sum(checkpoints["llama3-405b"].values()) / 16_384
copy_s = shard_bytes / hardware.PCIE4.bytes_per_s
behind = recovery.Saving(60, copy_s, mtbf_s, restart_s=600)
print(f"{shard_bytes / 1e6:.0f} MB a GPU, copied in {1000 * copy_s:.0f} ms")
print(", ".join(f"{name} {part:.2%}" for name, part in behind.parts.items()))
assert round(behind.progress, 2) == 0.94

# %% [markdown]
# 94 % of the time is new work, and nearly all of the loss is restarts. (A failure during a write falls back to the save before, which costs another half percent.)
#
# **Remember**
# - Young: $\tau = \sqrt{2CM}$, with $M = m/n$. Saves and repeated work then cost the same.
# - A factor of two in $\tau$ hardly matters, a factor of ten does.
# - Restarts do not depend on $\tau$: they cost less only if they are shorter or rarer.
# - Saves can hide behind training. Restarts cannot.

# %% [markdown]
# ### Deeper: Daly's model, and the mean over all failures
#
# The job of two hours again. Where the failure comes is a matter of luck, so here is the mean over all moments at which the node may die:

# %%
means = {}
for every in (1, 2, 3, 4, 5, 10, 20):
    ends = [
        recovery.failing_job(20, every, after, job_costs).goodput
        for after in range(1, 20)
    ]
    means[f"{6 * every} min of work"] = sum(ends) / len(ends)
assert max(means, key=means.get) in ("12 min of work", "18 min of work")
title = "Goodput, saved after every …"
figures.bars(means, "{:.1%}".format, title, style.FORWARD)

# %% [markdown]
# The best interval is 12 or 18 minutes, and between these two it hardly matters. Next, the simulated machine. A few hours of it, and the function:

# %%
spans = scratch.recovery.run(5 * 3600, interval_s=young_s, seed=3, **machine)
figures.lanes({"the machine": spans}, "Five hours of new work")

# %%
show_source(scratch.recovery.run)

# %% [markdown]
# Over 400 days it loses more than the three terms say, and that is not chance. The terms count each failure as if everything else went well. But a failure may also come during a save or during a restart, and then more than half an interval is lost, or the restart begins anew. Daly's complete model includes this:
#
# $$\frac{M}{\tau}\, e^{R/M} \left(e^{(\tau + C)/M} - 1\right) - 1 = 17.3\ \%$$
#
# (Daly 2006, doi:10.1016/j.future.2004.11.016. The same paper has a better interval than Young's for machines that fail often, here 18.6 instead of 19.3 minutes.)
#
# Mind the denominators. Lost time is counted over *new work*, goodput over *all* time.

# %%
lost = simulated(young_s)
complete = recovery.expected_waste(young_s, **machine)
assert round(complete, 3) == 0.173 and round(1 / (1 + complete), 2) == 0.85
expect(100 * complete, 100 * lost, within=0.04, label="lost", unit="%")

# %% tags=["drawing"]
rows = {
    "three terms": terms,
    "Daly's model": {"lost": complete},
    "simulated": {"lost": lost},
}
title, colours = "Time lost for each second of new work", {"lost": style.WARNING}
figures.stacked_bars(rows, title, "{:.1%}".format, colours=colours)

# %% [markdown]
# ### Deeper: more GPUs
#
# The more GPUs, the shorter the time between failures, and the shorter the best interval:

# %% tags=["drawing"]
of_one_s = 16_384 * mtbf_s
sizes = [2**power for power in range(6, 18)]
figures.lines(
    {
        "between failures": [(n, of_one_s / n / 60) for n in sizes],
        "between saves": [
            (n, recovery.young_interval_s(60, of_one_s / n) / 60) for n in sizes
        ],
    },
    "GPUs",
    "minutes",
    "The more GPUs, the shorter",
    doubling=(True, True),
    mark={"Llama 3": 16_384},
)

# %% [markdown]
# 131,072 GPUs of the same kind, at 81 GB/s and with restarts of ten minutes, do new work for 48 % of the time at best. A failure comes every 23 minutes. With restarts in half the time it would be 59 %, with saves in half the time 52 %, so buy shorter restarts first. Here are all combinations:


# %%
def new_work(save_s, restart_s):
    """% of the time of 131,072 GPUs, at the best interval."""
    best = recovery.daly_interval_s(save_s, mtbf_s / 8)
    return 100 * recovery.Saving(best, save_s, mtbf_s / 8, restart_s).progress


assert [round(new_work(60, 300)), round(new_work(30, 600))] == [59, 52]

# %% tags=["drawing"]
seconds = [2**power for power in range(9)]
figures.lines(
    {
        f"restart: {minutes} min": [(c, new_work(c, 60 * minutes)) for c in seconds]
        for minutes in (0, 5, 10)
    },
    "seconds of a save",
    "% of the time that is new work",
    "131,072 GPUs: shorter saves, and shorter restarts",
    doubling=(True, False),
)

# %% [markdown]
# With restarts of ten minutes even a save in one second gives only 63 %.

# %% [markdown]
# ### A job that loses a rank
#
# To end, a real job on two ranks under torchrun. It makes 20 updates and saves after every 6. When 17 updates are done, rank 1 is killed, and torchrun starts both ranks again.
#
# **Predict.** How many updates are done twice?

# %%
twice = predict("15.repeated", "Updates done twice?", yours=None)

# %%
short = {"steps": 20, "every": 6, "model": "1x16x2"}
run = demos.run("elastic", ranks=2, kill_after=17, stream=False, **short)
lost_updates = recovery.lost_steps(17, every=6)
expect(lost_updates, len(run.repeated), label="done twice", yours=twice)

# %%
print("\n".join(run.report().splitlines()[1:]))

# %% tags=["drawing"]
figures.lines(
    {"done twice": [(done, recovery.lost_steps(done, every=6)) for done in range(25)]},
    "updates that are done when a rank dies",
    "updates that are done twice",
    "Saved after every 6",
    level={"on average": (6 - 1) / 2},
    mark={"here": 17},
)

# %% [markdown]
# **Explain.** The last save was after update 12, so 13 to 17 are done again: $17 \bmod 6 = 5$, the worst case. On average it is $(6-1)/2$. In the second attempt these updates have the same losses, since the same weights meet the same samples. If your loss *jumps* after a restart, a part of the state was not saved: mostly the moments of the optimizer or the position in the data.
#
# ## The answer
#
# You save every $\sqrt{2 \cdot 60 \cdot 11{,}135} = 1{,}156$ s, that is every 19 minutes; 10 to 40 minutes are nearly as good. Saves and repeated work then cost 5 % each, and restarts another 5 %. The restarts are what you must shorten by other means.

# %% [markdown]
# ## What to remember
#
# 1. A launcher gives each process its identity in six variables, and ends all when one fails.
# 2. One agent per node; they meet at one address.
# 3. The same job has the same losses under every wrapper, if batch, clipping and precision are the same. Print them.
# 4. Wrappers replace parameters: the optimizer comes last.
# 5. Resuming is your program's duty: weights, moments, step, data position, random state.
# 6. $\tau = \sqrt{2CM}$.

# %%
from course_lib import quiz

quiz("15")

# %% [raw] tags=["quiz"]
# A second node with 8 GPUs. Its third process wants a GPU. Which number does it take?
# [ ] RANK, 10
# [x] LOCAL_RANK, 2
# [ ] RANK modulo WORLD_SIZE
# Why: Devices are counted anew on each node; RANK tells the data apart.
#
# On GPUs one rank hangs, and the others are in an all-reduce. What do the others do?
# [ ] they end with an error at once
# [ ] they go on without it
# [x] they wait until the watchdog gives up
# Why: No process has ended, so torchrun sees nothing; NCCL's timeout is 10 minutes.
#
# Slurm puts a job back into its queue after a node has died. Who restores the weights?
# [ ] Slurm
# [ ] torchrun
# [x] the program
# Why: Slurm and torchrun start the program again from its first line.
#
# Half as much time for a save, everything else as before. The best interval becomes …
# [ ] half as long
# [x] 0.71 times as long
# [ ] 1.41 times as long
# Why: √(2CM): it goes with the root of C.
#
# Four times as many GPUs of the same kind, the same save. The best interval becomes …
# [x] half as long
# [ ] a quarter as long
# [ ] as long as before
# Why: M is a quarter, and its root a half.
#
# A checkpoint's folder has all shards and no manifest. What is it?
# [ ] complete
# [x] a save that was interrupted
# [ ] a checkpoint of one rank
# Why: The manifest is written last, when all shards are safe.
#
# An optimizer is built before `fully_shard`. What happens?
# [ ] an error in its first step
# [x] it changes no weight, without an error
# [ ] the losses are those of one process
# Why: FSDP2 replaces the parameters, and an optimizer skips tensors that get no gradient.

# %% [markdown]
# **Read on.** *torchrun (Elastic Launch)*, docs.pytorch.org/docs/stable/elastic/run.html. Llama 3, section 3.3.4 (arXiv:2407.21783). Daly 2006, *A higher order estimate of the optimum checkpoint interval*. Wan et al. 2024, *ByteCheckpoint* (arXiv:2407.20143). torchtitan (arXiv:2410.06511).

# %% [markdown] tags=["exercise"]
# ### 15.1 Calculate: an interval
#
# 4,096 GPUs, each of which fails once in 1,500 days, train LLaMA-2 70B. Its checkpoint has 827.7 GB; the storage takes 20 GB/s. A restart takes 5 minutes. Give the seconds of a save, the hours between failures
# of the machine, the minutes between saves by Young's formula, and the time lost over the time of new work by the three terms of section 15.8.

# %% [raw] tags=["hints"]
# importance 3, difficulty 2
# The machine fails as often as all its parts together. And how long does the storage need?
# A save: bytes over bytes per second. Hours between failures: 1500 · 24 / 4096.
# √(2 · save · mtbf), all in seconds; then C/τ + (τ/2 + R)/M.

# %% tags=["exercise"]
save_s, mtbf_h, interval_min, lost = ..., ..., ..., ...
### BEGIN SOLUTION
save_s = 827.7 / 20
mtbf_s = 1500 * 86_400 / 4096
mtbf_h = mtbf_s / 3600
interval_s = (2 * save_s * mtbf_s) ** 0.5
interval_min = interval_s / 60
lost = save_s / interval_s + (interval_s / 2 + 300) / mtbf_s
### END SOLUTION
check("15.1", [save_s, mtbf_h, interval_min, lost])

# %% [markdown] tags=["exercise"]
# ### 15.2 Predict: what to buy?
#
# Three teams save at the best interval, and each may buy one thing: `"storage"` that is four times as fast, `"restarts"` in a third of the time, or `"GPUs"` that fail half as often. What saves each team most time? Guess first: which of the three terms is the
# largest, and which of them does each offer change? `recovery.Saving(interval_s, save_s, mtbf_s, restart_s)` has `.best_interval_s` and `.waste`.

# %% [raw] tags=["hints"]
# importance 4, difficulty 3
# How large is √(2C/M), and how large is R/M, for each team?
# Four times the storage halves √(2C/M) and leaves R/M. What do the other two do?
# Compute recovery.expected_waste at recovery.daly_interval_s for each offer.

# %% tags=["exercise"]
buy = {
    "a save takes 300 s, a restart 2 min, a failure comes every 6 h": ...,
    "a save takes 5 s, a restart 20 min, a failure comes every 3 h": ...,
    "a save takes 60 s, a restart 20 min, a failure comes every 3.1 h": ...,
}
### BEGIN SOLUTION
buy = {
    "a save takes 300 s, a restart 2 min, a failure comes every 6 h": "storage",
    "a save takes 5 s, a restart 20 min, a failure comes every 3 h": "restarts",
    "a save takes 60 s, a restart 20 min, a failure comes every 3.1 h": "GPUs",
}


def least_waste(save_s, mtbf_s, restart_s):
    best = recovery.daly_interval_s(save_s, mtbf_s)
    return recovery.expected_waste(best, save_s, mtbf_s, restart_s)


for save_s, restart_s, mtbf_s in (
    (300, 120, 21600),
    (5, 1200, 10800),
    (60, 1200, 11160),
):
    print(
        f"storage {least_waste(save_s / 4, mtbf_s, restart_s):.1%},",
        f"restarts {least_waste(save_s, mtbf_s, restart_s / 3):.1%},",
        f"GPUs {least_waste(save_s, 2 * mtbf_s, restart_s):.1%}",
    )
### END SOLUTION
check("15.2", buy)

# %% [markdown] tags=["exercise"]
# ### 15.4 Implement: four wrote, three read
#
# A state of `total` columns was written by `writers` ranks and is read by `readers`; rank $r$ of $n$ holds the columns from $\lfloor Tr/n \rfloor$ up to, but without, $\lfloor T(r+1)/n \rfloor$ of all $T$. Which pieces does reader `rank` take? Return `(file, start, stop)` for each piece, in the
# order of the columns. `file` is the writer's rank; `start` and `stop` count from the beginning of *that file*. Of the ten columns in section 15.7, written by 4 and read by 3, rank 1 takes `[(1, 1, 3), (2, 0, 1)]`.

# %% [raw] tags=["hints"]
# importance 3, difficulty 3
# First the reader's own interval of columns, then each writer's. When do they meet?
# The common part of two intervals: from the larger beginning to the smaller end.
# Take the writer's first column off, and leave out what is empty.


# %% tags=["exercise"]
def pieces(
    total: int, writers: int, readers: int, rank: int
) -> list[tuple[int, int, int]]:
    """What a reader takes from whose file."""
    ### BEGIN SOLUTION
    low, high = total * rank // readers, total * (rank + 1) // readers
    found = []
    for writer in range(writers):
        first, last = total * writer // writers, total * (writer + 1) // writers
        if max(first, low) < min(last, high):
            found.append((writer, max(first, low) - first, min(last, high) - first))
    return found
    ### END SOLUTION


check("15.4", pieces)

# %% [markdown] tags=["exercise"]
# ### 15.5 Debug: six runs
#
# Six runs, and what was seen in them. What is the cause? Choose from
# `"one process"`, `"clipping"`, `"optimizer built too early"`, `"saved too seldom"`, `"moments not saved"`, `"device by RANK"`, `"standalone"`.

# %% [raw] tags=["hints"]
# importance 4, difficulty 2
# Is it wrong from the first update on, or from some moment? What happens at that moment?
# Which causes leave the world size wrong, which the gradient, which the state?
# One of the seven is not needed: it costs time, and changes no loss.

# %% tags=["exercise"]
cause = {
    "two GPUs, no error; the losses are those of half the global batch": ...,
    "under fully_shard the loss is the same in every update": ...,
    "the losses equal those of DDP until the loss rises once; from then on they differ": ...,
    "after a restart the loss goes on where it was, jumps up at once, and comes down in an hour": ...,
    "it runs on one node; on two, each rank of the second node ends with: invalid device ordinal": ...,
    "16 GPUs on two nodes, twice eight ranks, and two log files that both begin with rank 0": ...,
}
### BEGIN SOLUTION
answers = [
    "one process",
    "optimizer built too early",
    "clipping",
    "moments not saved",
    "device by RANK",
    "standalone",
]
cause = dict(zip(cause, answers, strict=True))
### END SOLUTION
check("15.5", cause)

# %% [markdown] tags=["exercise"]
# ### 15.7 Predict: killed twice
#
# A run of 1,500 updates of 4 s each saves after every 250. It is killed when 1,120 are done, and again when its second attempt has done update 1,240. How many updates are computed in all? How many would it be if it saved after every 50? A save
# takes 20 s: how many seconds does each plan spend on saves and on repeated updates?

# %% [raw] tags=["hints"]
# importance 3, difficulty 2
# From which update does the second attempt start? And the third?
# The second attempt passes 1,000 and 1,120, but which save does it reach?
# Repeated: done % every, for each kill. Then 4 s for each of them, and 20 s for each save.

# %% tags=["exercise"]
updates_250, updates_50, seconds_250, seconds_50 = ..., ..., ..., ...
### BEGIN SOLUTION
repeated_250 = 1120 % 250 + 1240 % 250  # from 1000 both times
repeated_50 = 1120 % 50 + 1240 % 50
updates_250, updates_50 = 1500 + repeated_250, 1500 + repeated_50
seconds_250 = 1500 // 250 * 20 + 4 * repeated_250
seconds_50 = 1500 // 50 * 20 + 4 * repeated_50
### END SOLUTION
check("15.7", [updates_250, updates_50, seconds_250, seconds_50])

# %% [markdown] tags=["exercise"]
# ### 15.11 Build: a checkpoint in shards
#
# Save a training state from many ranks, and load it on another number of them. The state is a matrix (3, columns) of fp32: weights and the two moments. `columns(total, r, n)` says which columns rank r of n holds: from total·r//n up to, but without, total·(r+1)//n. The
# number of ranks need not divide them.
#
# A checkpoint is a folder `step-00000004` with a file for each rank, `rank0.shard`, `rank1.shard` and so on, which holds its numbers row by row, and `manifest.json`, which rank 0 writes last: a checkpoint that has one is complete. `write_whole` writes every file, and each rank its own. You are given `read_manifest(path, layout)`, which also
# checks the model, `read_shard(file, writer, entry)`, which checks the checksum, and `remove_old(folder, keep)`. What passes is kept as `mine/reshard.py`; `course demo checkpoint --ranks 4 --load-ranks 3 --parts mine` trains on it.

# %% [raw] tags=["hints"]
# importance 3, difficulty 4
# write_whole: write all of the data to another name in the same folder, flush, os.fsync, close; then os.replace gives it its name in one instant.
# save_shard: every rank writes its own file. What proves to rank 0 that all of them are on the disk? dist.all_gather_object, which it also needs for the manifest's entries.
# load_shard: in the state as a whole this rank wants columns start to stop, and writer w has first to last. They overlap if first < stop and start < last.
# Of a writer's shard this rank takes columns max(first, start) - first to min(last, stop) - first; torch.cat(…, dim=1) puts them together.

# %% tags=["exercise"]
import json
import math
import os
import zlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from course_lib.scratch.recovery import columns, remove_old
from course_lib.scratch.recovery import (
    MANIFEST,
    CheckpointError,
    Layout,
    read_manifest,
    read_shard,
)

### BEGIN GIVEN


def write_whole(path: Path, data: bytes) -> None:
    """All or nothing: under this name is the old file or the new one, never half.

    So it is after a power failure: the data are on the disk (os.fsync) first.
    """
    ...


def save_shard(
    folder: Path,
    step: int,
    shard: Tensor,  # (3, columns of this rank)
    layout: Layout,
    group: ProcessGroup | None = None,
    keep: int = 2,
) -> Path:
    """Write one checkpoint, all ranks of `group` together; the last `keep` remain.

    Returns its folder, f"step-{step:08d}" in `folder`, which need not be there
    yet, when all is written. Only then an old one goes. The manifest, JSON, is
    {"step": step, "layout": layout, "shards": [one entry of each rank]}; an
    entry is {"bytes": …, "crc32": zlib.crc32(data)}.
    """
    ...


def load_shard(
    path: Path,
    layout: Layout,
    group: ProcessGroup | None = None,
    reshard: bool = True,
) -> tuple[int, Tensor]:
    """The step and this rank's shard (3, columns), however many wrote them.

    `layout` has the shape of each parameter: {"weight": [5, 7], "bias": [2]}
    are 37 columns. Only shards with a column of this rank are read. What
    read_manifest and read_shard refuse is not loaded. reshard=False:
    CheckpointError if another number of ranks wrote them.
    """
    ...


### END GIVEN
### BEGIN SOLUTION
from course_lib.scratch.recovery import load_shard, save_shard
from course_lib.scratch.recovery import write_whole

### END SOLUTION

check("15.11", [write_whole, save_shard, load_shard])
