# %% [markdown]
# # 15 Launchers, frameworks, recovery
#
# Llama 3 405B was trained on 16,384 GPUs. In 54 days the job had 419 interruptions that nobody had planned
# (arXiv:2407.21783, section 3.3.4): a GPU, a memory chip, a cable or a program failed. That is one every 3.1 hours. Each
# time all 16,384 GPUs had to stop, since their collectives wait for every rank, and all work since the last checkpoint was
# lost. If you save more often, you lose less. But a save costs time as well, say a minute. So how often do you save?
#
# By the end of this chapter you can
#
# - start ranks yourself, and say what torchrun, Slurm, Kubernetes and Ray add to that,
# - run one job under torchrun, accelerate, DeepSpeed and Megatron, and say which of two settings wins,
# - name what a wrapper changes behind your back: parameters, optimizers, graphs,
# - read the message of a watchdog, and say how many updates a failure costs,
# - load a checkpoint of four ranks on three, and choose the interval between saves,
# - turn a plan into the files of an engine, and rehearse one rank of 1,024 on a laptop.
#
# Time: about 100 minutes, and two and a half hours for the exercises, two of which are parts that you build. You need chapters 7 and 9.

# %%
import re
import time

import torch

from course_lib import (
    demos,
    emitting,
    expect,
    launch,
    measure,
    predict,
    recorded,
    scratch,
    show_source,
    style,
)
from course_lib.chapters.ch15_launchers_and_recovery import cluster, figures, recovery
from course_lib.chapters.ch15_launchers_and_recovery.demos.wrappers import orthogonal
from course_lib.scratch.launcher import launch_ranks, rank_environment
from course_lib.theory import (
    RECIPES,
    Cluster,
    Job,
    Layout,
    Recipe,
    TransformerShape,
    hardware,
    mesh,
    models,
    units,
)

launch.warm_up()
torch.set_num_threads(1)

# %% [markdown]
# **Predict.** A failure every 3.1 hours, one minute for a save, ten minutes until all ranks train again. How many minutes of
# work do you put between two saves? Section 15.8 has the answer.

# %%
interval = predict("15.interval", "Minutes between two saves?", yours=None, unit="min")

# %% [markdown]
# ## 15.1 A launcher in thirty lines
#
# Until now `launch.run` has started the ranks. A **launcher** (启动器) is a small thing: it starts the same program several times and tells
# each copy who it is, by environment variables. Here is what the two processes on the second of two nodes
# are told:

# %%
for local_rank in range(2):
    print(rank_environment(local_rank, 2, 29_500, node=1, nodes=2, address="node0"))

# %% [markdown]
# | variable | meaning | used for |
# |---|---|---|
# | `RANK` | number among all processes, from 0 | which samples, which shard |
# | `LOCAL_RANK` | number among the processes of this node | **which GPU**: `torch.cuda.set_device(local_rank)` |
# | `WORLD_SIZE` | processes in all | the size of the group |
# | `LOCAL_WORLD_SIZE` | processes on this node | sharing the cores |
# | `MASTER_ADDR`, `MASTER_PORT` | where rank 0 listens | finding each other |
#
# Numbers are text here, as everything in an environment is: `int(os.environ["RANK"])`.
#
# A launcher has a second duty. Suppose that one of three ranks dies in an all-reduce. The two others cannot go on: Gloo
# sees a closed connection and raises an error, and NCCL's kernels wait for ten minutes (section 15.7). Somebody has to end them.
#
# **Predict.** Three ranks. Each would sleep for a minute, but rank 1 ends after half a second, with exit code 3. How many
# seconds does it take until all three have ended?

# %%
ended = predict("15.ended", "Seconds until all three have ended?", yours=None, unit="s")

# %%
import sys

program = """
import os, sys, time
if os.environ["RANK"] == "1":
    time.sleep(0.5)
    sys.exit(3)
time.sleep(60)
"""
start = time.perf_counter()
codes = launch_ranks([sys.executable, "-c", program], 3)
seconds = time.perf_counter() - start
print(f"exit codes by rank: {codes}")

# %%
# a time: its gap is shown, not judged
expect(0.5, seconds, within=None, label="all three ended", unit="s", yours=ended)
assert codes[1] == 3 and codes[0] == codes[2] < 0

# %% [markdown]
# **Explain.** The launcher looks at its children fifty times a second. As soon as one has failed, it ends the others. Exit code -15 says
# how: by signal 15, SIGTERM, the polite request to end. (The rest of the time is Python's own start.) This is the
# whole launcher:

# %%
show_source(scratch.launcher.launch_ranks, scratch.launcher.end_ranks)

# %% [markdown]
# ### How ranks find each other
#
# There is no magic in `MASTER_ADDR` and `MASTER_PORT`. Rank 0 opens a **store** (键值存储) there, a dictionary that all ranks can read and
# write. Each rank writes down its own address, waits for the addresses of the others, and connects:

# %%
figures.who_asks_whom(
    {"rank 1": "at 10.0.0.7", "rank 0": "keeps the store", "rank 2": "at 10.0.0.8"},
    [
        ("rank 1", "rank 0", "set: rank 1 is at 10.0.0.7"),
        ("rank 0", "rank 1", "get: rank 2 is at 10.0.0.8"),
        ("rank 2", "rank 0", "set: rank 2 is at 10.0.0.8"),
        ("rank 0", "rank 2", "get: rank 1 is at 10.0.0.7"),
    ],
    "Before the first collective",
)

# %% [markdown]
# Here is such a store, with a single process:

# %%
import torch.distributed as dist

store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
store.set("rank 1 listens at", "10.0.0.7:41873")
print(store.get("rank 1 listens at").decode())
print([store.add("ranks that have arrived", 1) for _ in range(3)])

# %% [markdown]
# The last line is how a barrier counts. Two functions appear in nearly every PyTorch example, and in note 002: `setup` joins
# the group, `cleanup` leaves it:

# %%
show_source(scratch.launcher.setup, scratch.launcher.cleanup)

# %% [markdown]
# `init_process_group` can read `rank` and `world_size` from the environment as well. In `cleanup` the order matters: a DDP model
# that outlives its group can abort the process, so the garbage collector takes such models first.
#
# The example in note 002 is a toy model with two layers on two devices, wrapped in DDP:

# %%
show_source(scratch.launcher.ToyMpModel, scratch.launcher.demo_model_parallel)

# %% [markdown]
# The note chooses the devices by `dev0 = rank * 2`. On one node this is right. On a second node with 8 GPUs, the first rank is rank 4 and asks for
# GPU 8, which does not exist. Each node numbers its devices from 0, and `LOCAL_RANK` does the same.
#
# Start the toy with the thirty lines above, on two ranks. (A small program calls `launch_ranks`, so that we can read what rank 0 prints.) One process that sees all rows learns the same:

# %%
import json
import subprocess

DEMOS = "course_lib.chapters.ch15_launchers_and_recovery.demos"
by_hand = [sys.executable, "-m", f"{DEMOS}.launchers.by_hand"]
said = subprocess.check_output([*by_hand, "2", "course", f"{DEMOS}.toy"], text=True)
learned = json.loads(said.splitlines()[-1])
print(learned["world"], "ranks:", learned["weights"][:3])

# %%
alone = scratch.launcher.toy_model("cpu", "cpu")
scratch.launcher.train(alone, slice(None))
weights = alone.net2.weight.detach().flatten()
print("one process:", weights[:3].tolist())
assert (weights - torch.tensor(learned["weights"])).abs().max() < 1e-6

# %% [markdown]
# `course demo toy --ranks 2` starts the same program by torchrun as well. In exercise 15.10 you write this launcher yourself.
#
# **Remember**
# - A launcher starts copies of a program, tells each by six variables who it is, and ends all when one fails.
# - Data by `RANK`, devices by `LOCAL_RANK`.
# - Ranks find each other through a store at `MASTER_ADDR:MASTER_PORT`.

# %% [markdown]
# ## 15.2 Several nodes
#
# On one node a parent process can start all ranks. On several nodes, each needs a parent of its own. Starting these is the work of a **scheduler** (调度器), such as Slurm: it
# gives you nodes, runs a script on the first of them, and from there a command on all of them. `course plan … --emit slurm` writes such a script. Here it is for a small GPT on two nodes of eight GPUs. `sbatch plan.sbatch` submits it:

# %%
two_nodes = Cluster(hardware.accelerator("H100-SXM"), nodes=2)
tiny = TransformerShape(layers=4, hidden=32, heads=4, ffn=128, vocab=128, context=16)
everywhere = Job(tiny, RECIPES["fp32-16"], Layout(dp=16), two_nodes, sequence=16)
(script,) = emitting.files("slurm", everywhere, "a small GPT").values()
for needed in ("--gpus-per-node=8", "--exclusive", "HEAD=$(hostname)"):
    assert needed in script
print(script)

# %% [markdown]
# **Predict.** How many Python processes does this start, on both nodes together?

# %%
processes = predict("15.processes", "Python processes?", yours=None)

# %% [markdown]
# Each torchrun is a process too, and it stays: it watches its ranks, as our launcher did. It is called the **agent** (代理进程).

# %%
expect(2 + 2 * 8, label="agents and ranks", yours=processes)

# %% [markdown]
# The agents meet at the rendezvous on node 0. Each starts its eight ranks, and numbers them: rank = 8 × node + local rank.
#
# | `LOCAL_RANK` | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 |
# |---|---|---|---|---|---|---|---|---|
# | `RANK` on node 0, started by its agent | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 |
# | `RANK` on node 1, started by its agent | 8 | 9 | 10 | 11 | 12 | 13 | 14 | 15 |
#
# The script, option by option. The last two are not in the script; a job that can resume needs them as well.
#
# | option | what it does | if it is wrong |
# |---|---|---|
# | `--ntasks-per-node=1` | Slurm starts **one** agent on each node | with 8, sixteen agents start; the first two meet, perhaps on one node, whose 8 GPUs then have 16 ranks; the others wait until they give up |
# | `--gpus-per-node=8` | the GPUs that the job gets on each node | left out: no GPU is yours; where Slurm hides what is not yours, torch finds none |
# | `--exclusive` | whole nodes, with all cores | left out: a task gets one core unless you ask for more, and eight ranks and their data loaders share it. (If you ask with `--cpus-per-task`, give it to `srun` as well: since Slurm 22.05 `srun` doesn't take it over from `sbatch`.) |
# | `--time=04:00:00` | when Slurm ends the job | left out: the limit of the partition, often an hour or a week |
# | `--signal=B:USR1@120`, `--requeue` | two minutes before that, the script hears of it, and puts the job back into the queue; so it does after a lost node | left out: the run ends, and somebody has to submit it again |
# | `HEAD=$(hostname)` | the first node's name, since the script itself runs only there | left out: the endpoint would name no machine, so `set -u` ends the script |
# | `--nnodes=2` | how many agents must meet before anything starts; `1:2` allows either | too many: it waits for a node that never comes |
# | `--nproc-per-node=8` | ranks that each agent starts, one for each GPU | |
# | `--rdzv-backend=c10d` | meet at a store of PyTorch's own; nothing else to install | |
# | `--rdzv-endpoint=$HEAD:$PORT` | where: the same on all nodes, so the *first* node's name | `localhost`: each node waits alone, and gives up after ten minutes |
# | `--rdzv-id=$SLURM_JOB_ID` | the name of the meeting | two jobs at one endpoint with one name meet each other |
# | `--kill-on-bad-exit=1` | one agent that fails ends the others | left out: they wait for it until a timeout, and all GPUs with them |
# | `-m course_lib.demos three_d …` | the program, unchanged: yours goes here | |
# | `--max-restarts=3` | how often all ranks may be started again | 0, the default: one failure ends the job |
# | `--tee 3` | marks each line that a rank prints with its local rank, and keeps the lines in files as well | left out: 16 ranks print into one stream, and nobody knows which of them printed a line. Errors are told apart even so: each line of an uncaught exception begins with `[rank3]:`, and torchrun ends with the rank, host and exit code of the first failure |
#
# The meeting is called **rendezvous** (会合). Here the agents agree on who is node 0, and thereby on all ranks. So do not rely on rank 8 being on the second machine of
# your list: read `RANK`, and read it again after each restart. `--standalone` is a rendezvous of one node with itself; on several nodes it is a mistake, and
# each node starts a job of its own (or, with `--nnodes=2` beside it, waits for the other until it gives up).
#
# ### A Slurm on your laptop
#
# `course cluster up` starts a real Slurm with two nodes on this machine, and `course cluster down` ends it. (It needs Linux with Debian's packages `slurm-wlm` and `munge`, and no root.) This is the script of a job that survives the loss of a node:

# %%
from pathlib import Path

print(cluster.batch_script(Path("/shared/job"), steps=24, every=5))

# %% [markdown]
# `--requeue` says what Slurm may do when a node is lost: put the job back into the queue. Later it runs the script *again from its first line*. Slurm knows nothing of updates or
# losses. Resuming is the program's duty. It can do so because every start uses the same folder of checkpoints.
#
# Now submit it, wait until it trains, and pull the plug of node n2: all of its processes die at once, and nobody tells Slurm. `course cluster requeue` does that. The next cells show a recorded
# run.
#
# **Predict.** The job has 24 updates and saves after every 5. Node n2 dies when 13 are done. How many updates are computed in all, if you count repeated ones twice?

# %%
in_all = predict("15.slurm", "Updates in all?", yours=None)

# %%
lost_node = cluster.recorded()
print(lost_node.report().splitlines()[0])
times = lost_node.times
before = [(times["training"], 1), (times["killed"], lost_node.lost_after)]
after = [
    (times["resumed"], lost_node.resumed_after + 1),
    (times["done"], len(lost_node.losses)),
]
figures.lines(
    {"first start": before, "second start": after},
    "seconds since the job was submitted",
    "updates that are done",
    "A node is lost, and the job starts again",
    level={"last save": lost_node.resumed_after},
    mark={"n2 dies": times["killed"]},
)

# %%
computed = len(lost_node.losses) + lost_node.repeated
by_theory = 24 + recovery.lost_steps(lost_node.lost_after, lost_node.every)
expect(by_theory, computed, label="updates", yours=in_all)

# %% [markdown]
# **Explain.** The last save was after update 10, so 11, 12 and 13 are done twice. The 24 losses are those of an undisturbed job, to the last bit: a checkpoint holds the weights, both
# moments of AdamW and the number of updates, and that number says which samples come next.
#
# And where did the time go?

# %%
figures.requeue_timeline(lost_node.times)

# %% [markdown]
# First *somebody must notice*: a dead node cannot say that it is dead. Slurm waits until it has been silent for its `SlurmdTimeout` (5 s here, 300 s by default), and a little longer. Then comes the *queue*: Slurm holds a requeued job back for two minutes, unless somebody releases it, as here. Then
# Python, torch and the process group *start* on every rank, and in the end some *updates are done again*.
#
# The first three make up the restart time $R$ of section 15.8. The last depends on how often you save.

# %%
print(f"{times['resumed'] - times['killed']:.0f} s until the first new update")

# %% [markdown]
# ### Kubernetes and Ray
#
# **Kubernetes** (容器编排系统) has no `srun`. You describe the job in a file; an operator, a program in the cluster, starts one container on each node with torchrun inside, and sets up the rendezvous. With
# Kubeflow's trainer the file describes a `TrainJob`. Every demo of this course can be written as one:

# %%
from course_lib.emitting import trainjob

for text in trainjob.demo_files("ddp", ["--steps", "5"], ranks=2).values():
    print(text)

# %% [markdown]
# `kubectl create` refuses a file with a misspelt key: since Kubernetes 1.25 it asks the server to validate strictly. A program that submits the same file through the API gets no error unless it asks for strict validation: by default the server drops the key and only warns
# ([field validation](https://kubernetes.io/docs/reference/using-api/api-concepts/#field-validation)). So check such a file against its schema before you submit it, as our tests do.
#
# **Ray Train** (a Python library for clusters) starts the workers itself *and* calls `init_process_group` before your function runs. A program that calls it a second time gets an error. So the demos ask first whether there is a group:

# %%
show_source(launch.init)

# %% [markdown]
# A program that joins an existing group can be started by any launcher. The job of section 15.3 runs under Ray unchanged. Here is a recorded run, with the same job under torchrun below it:

# %%
print(recorded("ray"))

# %% [markdown]
# **Remember**
# - One agent on each node, and they meet at one address. `localhost` is never that address.
# - Slurm starts the script again from its first line. Resuming is your program's part.
# - A failure costs: notice, queue, start, repeat.

# %% [markdown]
# ## 15.3 One job, four ways
#
# Chapter 8 said what torchrun, accelerate, DeepSpeed and Megatron are. Here they run the same job: the same small GPT, the same samples, the same AdamW. If they are what they claim to be, the losses
# are the same as those of one process.
#
# accelerate, DeepSpeed and Megatron-core are large packages that you may not have: `pip install accelerate deepspeed megatron-core`, then `course demo launchers --ranks 2 --timeout 550 --limit-s 250` runs those that are installed. (DeepSpeed compiles a part of itself on its first run. Of Megatron, only the parallel layers run on a CPU.) What follows
# was recorded.
#
# **Predict.** On a machine without a GPU: `accelerate launch --cpu --num_processes 2 job.py`. On how many ranks does the job train?

# %%
ranks_found = predict("15.accelerate", "Ranks?", yours=None)

# %%
said = recorded("launchers")
print(said.splitlines()[1])
print(re.search("accelerate launch: 1 of 2 ranks.*other losses", said)[0])
equal = re.findall(r"(.+): 2 of 2 ranks.* losses off by (\S+)", said)
ways = {name: float(off) for name, off in equal}
assert len(ways) == 7
title = "Losses on two ranks: millionths off from those of one process"
figures.bars(ways, lambda off: f"{1e6 * off:,.1f}", title, style.INK, tens=True)

# %%
found = json.loads(recorded("launchers_worlds"))
expect(1, found["accelerate launch"], label="ranks", yours=ranks_found)
assert found["torchrun, accelerate inside"] == 2

# %% [markdown]
# **Explain.** One. On CPUs accelerate starts several processes only through MPI, and otherwise it starts one, without a word. That program runs, the loss falls, and the global batch is half of what you wrote down.
# Under torchrun the same program finds both ranks. Six of the bars are rounding, whoever started the ranks, and the one in bf16 is off by 0.4 %, which is what 8 bits of precision give. The lesson is not about one package: **let rank 0 print the world size and the global batch, and compare them with
# your plan.** (Note 000 praises accelerate for "several backends, PyTorch and TensorFlow". It is for PyTorch only. Its backends are DDP, FSDP, DeepSpeed and Megatron.)
#
# ### The same setting has four names
#
# | setting | plain PyTorch | accelerate | DeepSpeed's JSON | Megatron-LM |
# |---|---|---|---|---|
# | start | `torchrun --nproc-per-node=8` | `accelerate launch --num_processes 8`, or torchrun | `deepspeed --num_gpus 8`, or torchrun | torchrun |
# | micro-batch | your `DataLoader` | your `DataLoader` | `train_micro_batch_size_per_gpu` | `--micro-batch-size` |
# | accumulation | your loop, `no_sync()` | `gradient_accumulation_steps=`, `accumulate()` | `gradient_accumulation_steps` | follows from the global batch |
# | global batch | their product, times dp | their product, times dp | `train_batch_size`; the three must multiply | `--global-batch-size` |
# | bf16 | `autocast` | `--mixed_precision bf16` | `"bf16": {"enabled": true}` | `--bf16` |
# | fp16 (section 3.6) | `autocast` and `torch.amp.GradScaler` | `--mixed_precision fp16` | `"fp16": {"enabled": true}` | `--fp16` |
# | clipping | `clip_grad_norm_`, else none | the same | `gradient_clipping`, **1.0** if left out (before June 2026: none) | `--clip-grad`, **1.0** if left out |
# | sharded states | `fully_shard` | `--use_fsdp --fsdp_version 2` | `zero_optimization.stage` | `--use-distributed-optimizer` |
# | tensor, pipeline | `parallelize_module`, `pipelining` | tensor, by a mesh | pipeline, by `PipelineModule` | `--tensor-model-parallel-size`, `--pipeline-model-parallel-size` |
#
# Two columns clip if you say nothing, and two don't; and DeepSpeed changed its default ([pull request 8068](https://github.com/deepspeedai/DeepSpeed/pull/8068)). So the same program has the same losses under DDP and DeepSpeed until the first gradient whose norm is above 1, and different ones from then on.
#
# Note 004 computes the global batch as accumulation × nodes × processes × micro-batch. That holds as long as all ranks are data parallel (chapter 1). Megatron first divides the ranks by tp · pp · cp.

# %% [markdown]
# ### Which setting wins?
#
# Under accelerate with DeepSpeed many of these settings can stand in two places, your program and `ds.json`.
#
# **Predict.** The program says `Accelerator(gradient_accumulation_steps=4)`. Somebody has deleted the line `gradient_accumulation_steps` from `ds.json`. How many micro-batches are in an update?

# %%
micro_batches = predict("15.wins", "Micro-batches in an update?", yours=None)

# %%
expect(1, label="micro-batches", yours=micro_batches)

# %%
print(recorded("settings"))

# %% [markdown]
# **Explain.** The file wins, and where it says nothing, DeepSpeed's default wins: 1, not 4. A warning says so, among many others at the start. Only `"auto"` means "take it from the program". So one rule needs no table: **each setting in one place**, and `"auto"` in the other.
#
# Another trap: `Accelerator(cpu=True, deepspeed_plugin=…)` does not use DeepSpeed at all. It makes a DDP model and says nothing. Look at what `prepare` returns: `type(model)`.
#
# Here are more disagreements, and what wins. (The tests of the course try each of them where the packages are installed.)

# %%
from course_lib.chapters.ch15_launchers_and_recovery.demos.launchers import tools

for one in tools.SETTINGS:
    print(f"{one.what}, {one.tool}: {one.in_force}")

# %% [markdown]
# You need not learn them. (`print(tools.table())` also has what each of the two places said, and what to do.) Where a tool is silent, let your own program print what it runs with.

# %% [markdown]
# ### Megatron's way of dividing
#
# Megatron does not wrap a model: it brings its own, whose layers are built as shards. Its launcher is torchrun, from which it takes the rank and the world size. From these and the sizes of tp, cp and pp each process computes to which groups it belongs, tp innermost, then cp, dp, pp.
#
# **Predict.** Two nodes of 8 GPUs: tp 4, dp 2, pp 2. With which rank does rank 13 add up its gradients?

# %%
partner = predict("15.partner", "Rank 13's partner?", yours=None)

# %%
sixteen_ranks = Layout(tp=4, dp=2, pp=2)
groups = {
    axis: next(group for group in mesh.groups(sixteen_ranks, axis) if 13 in group)
    for axis in ("tp", "dp", "pp")
}
for axis, group in groups.items():
    assert group in tools.by_device_mesh(sixteen_ranks, axis)
expect(13 - 4, groups["dp"][0], label="partner", yours=partner)

# %%
figures.rank_groups(groups, ranks=16, per_node=8)

# %% [markdown]
# **Explain.** Neighbours in tp are 1 apart, in dp 4, in pp 8. Rank 13 is 8 + 4 + 1: the second stage, the second replica, the second of its tp group. Its partner in the first replica is rank 13 - 4 = 9. The assertion compares with PyTorch's `DeviceMesh`; where Megatron-core is installed, the tests compare with its
# `RankGenerator` as well. So the Megatron-DeepSpeed of note 000, which is DeepSpeed's ZeRO inside Megatron's model, is no mystery either: ZeRO works within the dp groups.

# %% [markdown]
# **Remember**
# - The same job has the same losses under every launcher. Print world size and global batch, and compare.
# - Two of four clip by default. Set every default that matters yourself.
# - Each setting in one place only, and `"auto"` in the other.

# %% [markdown]
# ## 15.4 What wrappers change
#
# accelerate's `prepare`, DeepSpeed's `initialize` and FSDP2's `fully_shard` look as if they put something *around* your model. In fact most of them replace its parameters. This has five consequences.
#
# **1. Parameters with other names and shapes.** The demo `wrappers` puts the same two layers into DDP, FSDP1 (by default, and with `use_orig_params=True`) and FSDP2, and trains one step with an optimizer that was built *before* the wrapping.
#
# **Predict.** In how many of the four does this step change no weight at all?

# %%
frozen = predict("15.frozen", "Of the four wrappers?", yours=None)

# %%
wraps = demos.run("wrappers", ranks=2, stream=False)
stuck = [one.name for one in wraps.wrappers if not one.learns_if_built_before]
expect(2, len(stuck), label="learn nothing", yours=frozen)

# %%
for one in wraps.wrappers:
    print(f"{one.name}: {', '.join(one.parameters)}")

# %%
held = {one.name: one.numbers for one in wraps.wrappers}
learned = {name: "learns nothing" if name in stuck else "learns" for name in held}
title = "Numbers that rank 0 holds, and whether an early optimizer learns"
figures.stacked_bars(held, title, totals=learned)

# %% [markdown]
# **Explain.** DDP leaves the parameters in place. FSDP1 copies them into one flat vector, and FSDP2 replaces them by **DTensors**, tensors of which each rank holds a part. The optimizer then holds tensors that no longer get a gradient, and an optimizer skips those. There is no error. With `use_orig_params` FSDP1 keeps the tensors and changes their contents. (Under FSDP2 accelerate's `prepare` puts the new parameters into the optimizer that you give it, group by group, so there the order does not matter. Under FSDP1 it no longer touches the optimizer, as of accelerate 1.15, and the order matters unless `use_orig_params` is set.)
#
# Look at the names, too: a checkpoint finds its tensors by name. DDP's names have the prefix `module.`, so its file does not fit the bare model. FSDP2 leaves the names as they were.
#
# **2. Optimizers that need the whole matrix.** SGD and AdamW treat each number by itself, so they can work on any piece. **Muon** cannot: it takes the gradient of a matrix and makes its rows nearly orthogonal, by a few rounds of
# matrix products (Jordan et al. 2024, [Muon](https://kellerjordan.github.io/posts/muon/)):

# %%
show_source(orthogonal)

# %% [markdown]
# Take a gradient of 64 × 64 random numbers. Two ranks hold 32 rows each, and each gives its own rows to `orthogonal`. It takes them without an error.
#
# **Predict.** By how many per cent is this update off from that of the whole matrix? (The norm of the difference, over the norm of the right update.)

# %%
wrong = predict("15.muon", "Off by how many per cent?", yours=None, unit="%")


# %%
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor


def whole_and_pieces():
    """Errors of the update made from own rows and by a DTensor, and the latter's calls."""
    rank = launch.init()
    rows = slice(32 * rank.rank, 32 * rank.rank + 32)
    torch.manual_seed(0)
    g = torch.randn(64, 64)
    right = orthogonal(g)[rows]
    cut = distribute_tensor(g, init_device_mesh("cpu", (rank.world,)), [Shard(0)])
    with measure.wire.log_wire() as log:
        together = orthogonal(cut).to_local()
    own = orthogonal(cut.to_local())
    off = [((x - right).norm() / right.norm()).item() for x in (own, together)]
    return *off, log.sent()


# %%
(own, together, sent), _ = launch.run(whole_and_pieces, ranks=2)
assert together < 1e-5
off = {"of its own rows": own, "of a DTensor": together}
title = "Each rank's update, off from that of the whole matrix by"
figures.bars(
    off,
    lambda part: f"{units.format_number(100 * part, 2)} %",
    title,
    style.GRADIENTS,
    tens=True,
)

# %%
torch.manual_seed(0)
g = torch.randn(64, 64)
right = orthogonal(g)[:32]
alone = ((orthogonal(g[:32]) - right).norm() / right.norm()).item()
expect(100 * alone, 100 * own, within=1e-3, label="own rows", unit="%", yours=wrong)
assert round(own, 2) == 0.53 and round(wraps.muon_gap, 2) == 0.39

# %% [markdown]
# **Explain.** 53 %. Rows that are orthogonal among themselves are not orthogonal to those of the other rank. (There is no formula; "theory" is one process here that does the same with the upper half.) How large the error is depends on the matrix. The demo `wrappers` cuts one of 8 × 16 and reports 39 %: random rows that are long compared with their number are closer to orthogonal from the start.
#
# So the first limit in note 001 is right: results may differ for optimizers that need unsharded values. FSDP1 cuts a flat vector, in which even single rows are cut. The DTensor of FSDP2
# got it right, without a change in `orthogonal`.
#
# **3. The dispatcher.** How did it? Each operation of PyTorch goes through a switchboard, the **dispatcher** (分发器), which looks at the types of its arguments and picks the code. DTensor registers there. For each
# operation it has a rule: which cuts of the inputs give which cut of the output, and what has to be sent first. This is what note 001 means when it says that FSDP is integrated with tensors and "the dispatch system". Here it sent:

# %%
print(sent)
gathers, gathered_bytes = sent["all-gather"]
assert gathers == 3 * 5 and gathered_bytes == 15 * 64 * 64 * 4
assert sent["all-reduce"] == (1, 4)

# %% [markdown]
# There are three products in each of 5 rounds, and each of them gathers the whole matrix; the norm needs one number. That is right, but not cheap: real implementations gather each matrix once, and give
# different matrices to different ranks. `to_local()` bypasses the dispatcher, and the update is off by 53 % again.
#
# **4. Optimizers with 8 bits.** Note 000 says that bitsandbytes' AdamW takes 2 bytes for each parameter. Measured on a GPT with 1.6 million parameters:

# %%
said = recorded("bitsandbytes")
print(said.splitlines()[0])
found = re.findall(r"([\d,]+) (?:parameters in|B  two)", said)
parameters, *sizes = (int(number.replace(",", "")) for number in found)
each = [size / parameters for size in sizes]
assert round(sum(each), 3) == 2.058

# %%
eight_bit = dict(zip(("codes of 8 bits", "scales", "small tensors"), each, strict=True))
rows = {"AdamW, fp32": {"two moments": 2 * 4}, "AdamW8bit": eight_bit}
title = "Bytes of optimizer states for a parameter"
colours = {"two moments": style.STATES, "codes of 8 bits": style.STATES}
figures.stacked_bars(rows, title, "{:.2f}".format, colours=colours)

# %% [markdown]
# It is 2.06 bytes, with two parts that the note leaves out: a scale of 4 bytes for every 256 codes, and tensors with fewer than 4096 numbers, which stay in fp32. Now think of a wrapper that gives the optimizer nothing but its shards: over 64 ranks a matrix of 256 × 768 becomes 3,072 numbers on each, and nothing is
# saved. (Two bytes are half of the fp32 weights, as the note says, and all of the bf16 weights. How well it trains stands in section 3.3.)
#
# **5. fp16, and a step that is left out.** Section 3.6 trained in fp16: a `GradScaler` multiplies the loss by $2^{16}$ before the backward pass, so that small gradients survive, and divides the gradients by it before the step. If a gradient is infinite by then, the scaler leaves out the step and halves the scale. (To clip, call `scaler.unscale_(optimizer)` first, or you compare your limit with a norm that is 65,536 times too large.)
#
# **Predict.** A matrix is cut over two ranks. One number in the gradient of rank 1's part is infinite. With plain shards each rank has its own scaler and looks at its own part. How many of the two ranks leave out the step? And how many with a DTensor?

# %%
plain_ranks = predict("15.scaler", "Ranks that leave it out, plain shards?", yours=None)


# %%
def left_out(plain):
    """Whether this rank's weights stay as they are, and the calls of the scaler."""
    rank = launch.init()
    ranks = init_device_mesh("cpu", (rank.world,))
    cut = distribute_tensor(torch.ones(4, 4), ranks, [Shard(0)])
    own = cut.to_local()
    weight = torch.nn.Parameter(own if plain else cut)
    weight.grad = torch.ones_like(weight)
    if rank.rank == 1:
        (weight.grad if plain else weight.grad.to_local())[0, 0] = float("inf")
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(1))  # it makes its scale when it is first used
    with measure.wire.log_wire() as log:
        scaler.step(torch.optim.SGD([weight], lr=1.0))
    return bool((own == 1).all()), log.sent()


# %%
plain = launch.run(left_out, True, ranks=2, stream=False)
whole = launch.run(left_out, False, ranks=2, stream=False)
found = [out for out, _ in plain]
expect(1, sum(found), label="leave it out, plain", yours=plain_ranks)
assert found == [False, True] and all(out for out, _ in whole)

# %%
print("DTensor: both leave it out, after", whole[0][1])

# %% [markdown]
# **Explain.** With plain shards only rank 1 leaves out the step. From now on half of the matrix is one update ahead of the other half, without an error. With a DTensor both leave it out: the dispatcher has a rule for the scaler's check too, and all-reduces one number, the maximum of "found an infinity". FSDP1 has a `ShardedGradScaler` for this; DeepSpeed and Megatron do it themselves. Under DDP nothing is needed: the all-reduce of the gradients makes the number infinite on all ranks.
#
# ### YaFSDP in Hugging Face, and patches
#
# Note 001 says that YaFSDP "can be used with Hugging Face workflows". It is done by patches: 326 added lines in 10 files, for transformers 4.39, accelerate 0.27 and trl 0.8.3
# ([yandex/YaFSDP](https://github.com/yandex/YaFSDP)). A patch fits one version. Before you use one, ask which of your versions you would have to give up.
#
# ### From FSDP1 to FSDP2
#
# accelerate's default is still FSDP1. `accelerate to-fsdp2 --config_file old.yaml --output_file new.yaml` translates a file:
#
# | FSDP1 | FSDP2 | why |
# |---|---|---|
# | `fsdp_sharding_strategy: FULL_SHARD`, `SHARD_GRAD_OP` | `fsdp_reshard_after_forward: true`, `false` | this is all that the two differ in (chapter 9) |
# | `fsdp_use_orig_params` | gone | names and shapes are always the model's own |
# | `fsdp_backward_prefetch` | gone | weights are always prefetched before they are needed (`BACKWARD_PRE`), which hides most |
# | `fsdp_sync_module_states` | gone | `fsdp_cpu_ram_efficient_loading` implies it |
# | `fsdp_state_dict_type: FULL_STATE_DICT` | `SHARDED_STATE_DICT` by default | each rank saves its own shard, and nothing is sent (section 15.7) |
#
# (accelerate 1.15, *FSDP1 vs FSDP2*.) A checkpoint of FSDP1 is not one of FSDP2: convert it to a whole one first, or start from it once.
#
# **Remember**
# - Wrappers replace parameters. Build the optimizer last, or give it to `prepare`.
# - Optimizers that look at a whole matrix need the whole matrix. A DTensor gathers it; `to_local()` does not.
# - fp16 needs a scaler, and all ranks must agree to leave out a step.
# - A patch fits one version.

# %% [markdown]
# ## 15.5 torch.compile: graphs, breaks, recompilation
#
# `torch.compile` runs your Python once, notes which operators it calls, and makes a **graph** (计算图) of them. A compiler then turns the graph into a few fused kernels (chapter 5). From the second call on, your Python is skipped. Two things
# can spoil this, and both can be counted, on any machine and without a compiler.
#
# **Graph breaks** (图中断). Where Python needs to know a *value*, the graph must end: it has to run before Python can go on. Here are three functions. Each has one line that may break the graph:


# %%
def asks(x):
    y = torch.relu(x)
    return y / max(1.0, y.sum().item())


def branches(x):
    y = torch.relu(x)
    if x.shape[0] > 4:
        y = 2 * y
    return y.mean()


def decides(x):
    y = torch.relu(x)
    if y.sum() > 4:
        y = 2 * y
    return y.mean()


# %% [markdown]
# **Predict.** How many graphs are made of the three together, if each is called once?

# %%
all_graphs = predict("15.graphs", "Graphs of all three?", yours=None)

# %%
graphs = {}
for function in (asks, branches, decides):
    with measure.gradients.log_graphs() as log:
        compiled = torch.compile(function, backend=log.backend)
        graphs[function.__name__] = log.new_graphs(
            lambda f=compiled: f(torch.ones(8, 8))
        )
expect(2 + 1 + 2, sum(graphs.values()), label="graphs", yours=all_graphs)

# %%
figures.bars(graphs, "{:.0f}".format, "Graphs of one call", style.FORWARD)

# %% [markdown]
# **Explain.** `.item()` brings a number out of a tensor, so `asks` breaks there. `branches` looks at a *shape*; shapes are known while the graph is made, and it stays whole. `decides` looks at a value. A break costs a return to Python, and the operators before it cannot be fused with those after it. The usual culprits in
# training loops are a `print`, and `loss.item()` for the log in each step. Find them by `measure.gradients.breaks`:

# %%
for broken in measure.gradients.breaks(decides, torch.ones(8, 8)):
    print(broken.line)

# %% [markdown]
# **Recompilation** (重新编译). A graph is made for certain shapes. A call with another shape makes a new graph, and training stands still until the compiler is done, for large models minutes.
#
# **Predict.** Five calls, with batches of 8, 8, 6, 5 and 8 samples. How many graphs are there afterwards?

# %%
five_calls = predict("15.recompiled", "Graphs after five calls?", yours=None)


# %%
def new_graphs(dynamic):
    """The graphs that each of the five calls adds."""
    with measure.gradients.log_graphs() as log:
        layer = torch.nn.Linear(8, 8)
        compiled = torch.compile(layer, backend=log.backend, dynamic=dynamic)
        return [
            log.new_graphs(lambda n=n: compiled(torch.ones(n, 8)))
            for n in (8, 8, 6, 5, 8)
        ]


# %%
from course_lib.chapters.ch15_launchers_and_recovery.graphs import graphs_made

new = new_graphs(None)  # None: the default
expect(graphs_made([8, 8, 6, 5, 8]), sum(new), label="graphs", yours=five_calls)


# %%
def stairs(added):
    """The graphs just before and just after each call."""
    return [(n, sum(added[:until])) for n in range(1, 6) for until in (n - 1, n)]


figures.lines(
    {"as it is": stairs(new), "dynamic=False": stairs(new_graphs(False))},
    "calls, with 8, 8, 6, 5 and 8 samples",
    "graphs made",
    "When training stands still",
)

# %% [markdown]
# **Explain.** The first graph is for 8. At the first other size the compiler learns that the number changes, and makes one graph for all sizes. With `dynamic=False` each size gets its own graph. A size of 1 always does, since operators behave
# differently there. So the ragged last batch of an epoch (chapter 1) costs one more compilation. Set `drop_last=True`, or pad the batch.
#
# And in a wrapper? DDP wants to send a bucket while the backward pass goes on (chapter 7). A backward pass in *one* graph would be over before the first bucket could be sent. So the compiler cuts the graph of a DDP model at the borders of the buckets:

# %%
compiled = demos.run("compile", ranks=2, stream=False)
assert len(compiled.ddp_graphs) == compiled.all_reduces
cut = {"the GPT alone": compiled.model_graphs, "in DDP": compiled.ddp_graphs}
figures.stacked_bars(
    {
        name: {f"graph {n}": operators for n, operators in enumerate(graphs, 1)}
        for name, graphs in cut.items()
    },
    "Operators in each graph of one model",
)

# %% [markdown]
# There are as many graphs as all-reduces. Breaks are bad, except these: they let the communication hide.
#
# **Remember**
# - A value breaks a graph, a shape does not. No `.item()` in the middle of a step.
# - A second batch size costs one more graph, a size of 1 another.
# - A DDP model's graph is cut at the buckets on purpose.

# %% [markdown]
# ## 15.6 The batch that fits
#
# Note 002 quotes a benchmark of GPT-2 on two cards of 24 GB. Its command begins with a line that says how the batch size was found:
#
# ```
# export BS=#`try with different batch sizes till …`
# ```
#
# A program can do that: start with 1, double until the batch does not fit, then halve the gap.
#
# **Predict.** The largest batch that fits is 100. How many batches does the program try?

# %%
tries_needed = predict("15.tries", "Tries?", yours=None)

# %%
tried = []
found = measure.peak.largest_batch(lambda b: tried.append(b) or b <= 100)
assert found == 100
expect(8 + 6, len(tried), label="tries", yours=tries_needed)

# %%
print(tried)
figures.tried_batches(tried, largest=found)

# %%
show_source(measure.peak.largest_batch)

# %% [markdown]
# **Explain.** Eight tries from 1 to 128, then six to halve the gap from 64 to 128 down to one: about $2 \log_2$ of the batch. What is a try? A *whole update after the first one*. AdamW makes its states in the first `step()`, when the activations are already gone. States and activations are in the memory together
# only from the second update on. So the first update can need up to 8 bytes less for each parameter, 12.5 GB for GPT-2 XL, and a batch that just fits it is too large. If you restart the program for each try, make two updates. And a try must use the longest sequences that will come. On a GPU "does not fit" is an error of CUDA's allocator. A CPU has no such border and would crowd out other programs, so the demo counts the bytes of all tensors and compares them
# with a limit that you set. First the peaks of two updates of a small model:

# %%
layers = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
optimizer = torch.optim.AdamW(layers.parameters(), fused=True)
samples = torch.randn(500, 64)


def one_update():
    layers(samples).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def peak_bytes():
    """The most bytes at a time in the next update."""
    states = [t for kept in optimizer.state.values() for t in kept.values()]
    before = [*layers.parameters(), *states, samples]
    return measure.peak.peak_bytes(one_update, before)


first, second = peak_bytes(), peak_bytes()
parameters = sum(p.numel() for p in layers.parameters())
print(f"first update {first:,} B, second {second:,} B")
expect(8, (second - first) / parameters, 1e-3, "B", "more for a parameter")

# %% [markdown]
# And the search:

# %%
small = {"ranks": 1, "model": "tiny", "limit_mb": 8}
searched = demos.run("largest_batch", stream=False, **small)
assert searched.found == searched.predicted
figures.lines(
    {"counted": sorted((batch, size / 1e6) for batch, size, _ in searched.tries)},
    "samples in a batch",
    "MB of all tensors, at most",
    "What each try found",
    level={"the limit": searched.limit_bytes / 1e6},
    mark={f"{searched.found} samples": searched.found},
)

# %% [markdown]
# The line is straight: each sample adds the same number of bytes. So you need not try: theory gives the same batch. The demo adds what chapters 3 and 4 leave out as small: the means and scales of the norms, a sum for each token and head of attention, and the first gradients of the backward pass. Together they are 1 % here, and 1 % of 100 samples is one sample.
#
# The benchmark found that FSDP trains GPT-2 XL on those two cards, and that DDP does not. Chapter 9 computed the same: the states alone take 24.9 GB. Here is the same on a small scale: two ranks, torch's DDP and `fully_shard`, and a GPT of 0.8 million parameters, whose states take 13 MB.

# %%
shared = {}
for limit_mb in (14, 20):
    for technique in ("ddp", "fsdp"):
        how = {"technique": technique, "limit_mb": limit_mb, "stream": False}
        tried = demos.run("largest_batch", ranks=2, model="small", **how)
        print(f"{limit_mb} MB, {technique}: {tried.found}, predicted {tried.predicted}")
        assert tried.found == tried.predicted
        shared[limit_mb, technique] = tried.found
assert shared[14, "ddp"] == 0 < shared[14, "fsdp"]
assert 0 < shared[20, "ddp"] < shared[20, "fsdp"]

# %% [markdown]
# With 14 MB DDP has no room for a single sample, and FSDP trains six. With 20 MB it is 5 against 11, on each rank. When memory is fullest, DDP holds 13.0 MB beside the activations: weights, gradients and AdamW's two numbers. FSDP holds half of the weights and of AdamW's numbers, 4.9 MB, and for a moment 1.7 MB of gathered weights: two layers and what lies outside the layers. Hardly any gradients are there yet. So it saves 6.5 MB, room for nearly six samples of 1.1 MB.
#
# **Remember**
# - Double, then halve: $2 \log_2 b$ tries, each a whole update *after the first*, with the longest sequences.
# - Compute first. Try once, to be sure.

# %% [markdown]
# ## 15.7 Sharded checkpoints, and elastic restarts
#
# What must a checkpoint hold? All that the next update needs: the weights, both moments of AdamW, the number of updates (for the learning rate, AdamW's bias correction, and the samples that come next), and the state of the random numbers if there is dropout. In mixed
# precision the weights are the fp32 master copy. That makes 4 + 4 + 4 bytes for each parameter:

# %%
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
# No rank has room for 828 GB. In a **sharded checkpoint** (分片检查点) each rank writes the part that it holds into its own file. A last small file, the *manifest*, lists the files and their lengths; it is
# written when all the others are safe on the disk. The machine may die at any moment, also during a save. So a checkpoint with a manifest is complete, and one without it is garbage.
#
# After a failure you may have fewer GPUs than before. Then fewer ranks read than wrote. Dividing the state anew is called **resharding** (重新切分), and it is arithmetic on indices. Here are ten columns of a state, written by four ranks and read by three:


# %%
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
# Rank $r$ of $n$ holds the columns from $\lfloor Cr/n \rfloor$ up to, but without, $\lfloor C(r+1)/n \rfloor$ of all $C$. So the middle reader takes one part of file 1 and one of file 2. Each part is an intersection of two intervals:

# %%
show_source(scratch.recovery.columns, scratch.recovery.load_shard)

# %% [markdown]
# **Predict.** A checkpoint of LLaMA-2 70B (827.7 GB), written by 64 ranks, is read by 48. From how many files does rank 1 read at least a byte? (Its part begins at $1/48$ and ends at $2/48$.)

# %%
files_read = predict("15.files", "Files that rank 1 of 48 reads?", yours=None)


# %%
columns = scratch.recovery.columns
total = models.MODELS["llama2-70b"].parameters().total
low, high = columns(total, 1, 48)
held = [columns(total, writer, 64) for writer in range(64)]
touched = [w for w, (first, last) in enumerate(held) if first < high and low < last]
expect(2, len(touched), label="files", yours=files_read)

# %%
print(f"files {touched}")

# %% [markdown]
# **Explain.** $64 \cdot 1/48 = 1.33$ and $64 \cdot 2/48 = 2.67$: its part begins within file 1 and ends within file 2. Nobody reads the whole checkpoint, and nobody has to join it into one piece first.
#
# The demo trains on four ranks, saves, and continues on three that start from other weights. It does so by hand, and by `torch.distributed.checkpoint`, which does the same for every kind of sharding that DTensors know:

# %%
moved = demos.run("checkpoint", ranks=4, save_ranks=4, load_ranks=3, stream=False)
print("\n".join(moved.report().splitlines()[-2:]))

# %% [markdown]
# The loss is that of one process that was never interrupted. By hand a parameter takes 12 bytes on the disk. The library also writes metadata and file headers, which weigh a lot for this small model and nothing for
# a large one, and it saves a table that two modules share under both names. In exercise 15.11 you build the first of the two.
#
# ### A rank that hangs
#
# An agent notices a rank that *ends*. A rank that hangs, for example on a file that never comes, looks healthy to it. The other ranks wait for it in their next collective, until the **timeout** of the process group. By default `init_process_group` sets it to 10 minutes with NCCL and to 30 with other backends. Take one second, and let rank 1 come two seconds late:


# %%
from datetime import timedelta


def late(rank_1_s=2.0):
    """The seconds that this rank was in the all-reduce, and its error."""
    group = dist.new_group(timeout=timedelta(seconds=1))
    time.sleep(rank_1_s * dist.get_rank())
    start = time.perf_counter()
    try:
        dist.all_reduce(torch.ones(4), group=group)
    except RuntimeError as error:
        return time.perf_counter() - start, str(error)
    return time.perf_counter() - start, "no error"


# %% [markdown]
# **Predict.** Both ranks get an error. How many of the two errors speak of a timeout?

# %%
speak = predict("15.late", "Errors that speak of a timeout?", yours=None)

# %%
told = launch.run(late, ranks=2, stream=False)
found = ["imed out" in error for _, error in told]
expect(1, sum(found), label="speak of a timeout", yours=speak)
assert found == [True, False]

# %%
for rank, (seconds, error) in enumerate(told):
    print(f"rank {rank}, after {seconds:.1f} s:", re.sub(r"\[/\S+\] ", "", error)[:99])

# %%
rows = {"rank 0": [("waits", 0, told[0][0])], "rank 1": [("hangs", 0, 2)]}
figures.lanes(rows, "The group's timeout is one second")

# %% [markdown]
# **Explain.** One. Rank 0 waited for a second, gave up and closed its connections. When rank 1 came, nobody was there. So the innocent rank says "timed out", and the rank that is to blame says "connection closed" and suspects the other one of a crash. Of many errors, read the one with the *earliest* time first.
#
# With NCCL the GPU waits while Python goes on. A thread of the process group, the **watchdog** (看门狗), looks at all collectives that are under way. When one is older than the timeout, each rank that waits logs something like this
# (published in [LLaMA-Factory issue 7396](https://github.com/hiyouga/LlamaFactory/issues/7396); not run here, since it needs GPUs):
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
# Then the watchdog ends its process, the agent notices at last, and the ranks are started again. So the timeout is the first part of the restart time of every hang: on 16,384 GPUs ten minutes are 2,731 GPU-hours. `init_process_group(timeout=timedelta(minutes=2))` makes it shorter. But it must be longer than any wait that is *right*: an evaluation or a save on rank 0 alone, the first compilation. Section 16.7 finds the rank that hangs.
#
# ### Elastic restarts
#
# With `--max-restarts` torchrun does by itself what Slurm did above: when a rank dies, the agents end all ranks, meet again, and start all of them again. A job that was started with `--nnodes=1:2` is **elastic** (弹性): when one node does not come
# back, it can continue on the other. Three things decide whether that works:
#
# - Slurm ends a job that has lost a node, and with it the survivors, unless both `sbatch` and `srun` were given `--no-kill`.
# - With `c10d` the meeting point is a store in the agent on `$HEAD`. If *that* node dies, nobody can meet again, and the job ends ([pytorch/pytorch issue 67742](https://github.com/pytorch/pytorch/issues/67742)).
# - On one node of two the global batch is half as large, unless each rank accumulates twice as many micro-batches. So print world size and global batch after *each* start, as in section 15.3.
#
# Either way the program starts from its first line, and resumes.
#
# **Predict.** 20 updates on two ranks, saved after every 6. Rank 1 is killed after 17. How many updates are done twice?

# %%
twice = predict("15.repeated", "Updates done twice?", yours=None)

# %%
short = {"steps": 20, "every": 6, "model": "1x16x2"}
run = demos.run("elastic", ranks=2, kill_after=17, stream=False, **short)

# %%
lost_updates = recovery.lost_steps(17, every=6)
expect(lost_updates, len(run.repeated), label="done twice", yours=twice)

# %%
print("\n".join(run.report().splitlines()[1:]))
figures.lines(
    {"done twice": [(done, recovery.lost_steps(done, every=6)) for done in range(25)]},
    "updates that are done when a rank dies",
    "updates that are done twice",
    "Saved after every 6",
    level={"on average": (6 - 1) / 2},
    mark={"here": 17},
)

# %% [markdown]
# **Explain.** The last save was after update 12, so 13 to 17 are done again: $17 \bmod 6 = 5$, the worst case. On average it is $(6-1)/2$.
# In the second attempt these updates have the same losses, since the same weights meet the same samples. If your loss *jumps* after a restart, a part of the state was not saved: mostly the moments of the optimizer or the position in the data.
#
# **Remember**
# - A checkpoint holds weights, moments, step, data position and random state: 12 bytes for each parameter.
# - The manifest comes last. Without a manifest it is no checkpoint.
# - torchrun sees processes that end. For those that hang there is the timeout.
# - Fewer nodes, a smaller global batch: an elastic job must accumulate more.
# - A failure repeats the updates since the last save: `done % every`.

# %% [markdown]
# ## 15.8 How often to save
#
# Back to the beginning. What does one failure cost? A job needs two hours of work and saves after every 24 minutes of it; a save takes a minute. After 66 minutes of work a node dies. Nobody notices for
# five minutes, the queue takes two, the start three.
#
# **Predict.** **Goodput** (有效吞吐) is the time spent on work that still counts in the end, over all the time. What is it when the job is done, in per cent?

# %%
goodput = predict("15.goodput", "Goodput in the end, in %?", yours=None, unit="%")

# %% [markdown]
# Step through it. What is still to come is dashed. When the node dies, the red work is lost, and the goodput falls. Below, the thick line is the work that is done, and the filled stairs are the work that is saved.

# %%
from course_lib.chapters.ch15_launchers_and_recovery import steppers

steppers.failing_job()

# %%
job_costs = recovery.JobCosts(
    update_s=360, save_s=60, notice_s=300, queue_s=120, start_s=180
)
result = recovery.failing_job(20, every=4, fails_after=11, costs=job_costs)
saves = sum(event.what == "save" for event in result.trace)
by_hand = 120 / (120 + 18 + saves * 1 + 10)  # minutes: work, done again, saves, restart
expect(100 * by_hand, 100 * result.goodput, 1e-9, "%", "goodput", yours=goodput)

# %% [markdown]
# 18 minutes of work are done twice. Ten minutes are spent waiting and five saving: 120 of 153 minutes count. Now move the controls:
#
# 1. Leave the interval and move the failure: when does it cost most, and when least?
# 2. Save every 6 minutes instead. What do the saves cost, and what do they win? What if you save only once, at the end?
#
# When the failure comes is a matter of luck. So take the mean over all moments at which the node may die:

# %%
means = {}
for every in (1, 2, 3, 4, 5, 10, 20):
    ends = [
        recovery.failing_job(20, every, after, job_costs).goodput
        for after in range(1, 20)
    ]
    means[f"{6 * every} min of work"] = sum(ends) / len(ends)
title = "Goodput, saved after every …"
figures.bars(means, "{:.1%}".format, title, style.FORWARD)

# %%
assert max(means, key=means.get) in ("12 min of work", "18 min of work")

# %% [markdown]
# **Answers.** (1) A failure costs most just before a save, least just after it, and on average half an interval. (2) Twenty saves cost 20 minutes, and then a failure costs little more than the restart. A single save costs a minute, and a late failure costs nearly the whole job. Here the best interval is 12 or 18 minutes, and between these two it hardly matters.
#
# **Remember.** A failure costs the work that was not saved, and then the restart. Saves cost time even if nothing fails. The best interval lies between.
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
print(f"a failure every {mtbf_s / 3600:.2f} h")

# %% [markdown]
# About 19 minutes. A single GPU would fail every $16{,}384 \cdot 3.1$ hours, that is once in 5.8 years. The number of GPUs turns this into every three hours:

# %%
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
# Four times as many GPUs fail four times as often, and should save twice as often.
#
# **Predict.** How much time is lost with this best interval? Guess the sum of the three terms, in per cent of the time spent on new work.

# %%
waste = predict("15.waste", "Lost, in %?", yours=None, unit="%")

# %% [markdown]
# First the theory, then a simulated machine: `scratch.recovery.run` draws the moments of failures at random, and notes what the machine does in each second. A few hours of it:

# %%
machine = {"save_s": 60, "mtbf_s": mtbf_s, "restart_s": 600}
spans = scratch.recovery.run(5 * 3600, interval_s=young_s, seed=3, **machine)
figures.lanes({"the machine": spans}, "Five hours of new work")

# %%
show_source(scratch.recovery.run)

# %% [markdown]
# Now for 400 days of work:


# %%
def simulated(interval_s, days=400):
    """Time lost over time spent on new work."""
    spans = scratch.recovery.run(days * 86_400, interval_s=interval_s, **machine)
    return scratch.recovery.wasted(spans)


first_order = recovery.wasted_fraction(young_s, **machine)
lost = simulated(young_s)
expect(100 * first_order, 100 * lost, 0.15, "%", label="lost", yours=waste)

# %% [markdown]
# **Explain.** The three terms make 15.8 %, and the simulated machine loses about one and a half points more. Is that chance? No: the three terms count each failure as if everything else went well. But a failure may also come during a save or
# during a restart, and then more than half an interval is lost, or the restart begins anew. Daly's complete model includes this:
#
# $$\frac{M}{\tau}\, e^{R/M} \left(e^{(\tau + C)/M} - 1\right) - 1 = 17.3\ \%$$
#
# (Daly 2006, doi:10.1016/j.future.2004.11.016. The same paper has a better interval than Young's for machines that fail often, here 18.6 instead of 19.3 minutes.)
#
# Mind the denominators. Lost time is counted over *new work*, goodput over *all* time. For 100 hours of new work the machine needs 117.3, so its goodput is $100 / 117.3 = 85$ %.

# %%
complete = recovery.expected_waste(young_s, **machine)
assert round(complete, 3) == 0.173 and round(1 / (1 + complete), 2) == 0.85
expect(100 * complete, 100 * lost, within=0.04, label="lost", unit="%")

# %%
terms = recovery.Saving(young_s, **machine).parts
assert abs(sum(terms.values()) - first_order) < 1e-9
rows = {
    "three terms": terms,
    "Daly's model": {"lost": complete},
    "simulated": {"lost": lost},
}
title, colours = "Time lost for each second of new work", {"lost": style.WARNING}
figures.stacked_bars(rows, title, "{:.1%}".format, colours=colours)

# %% [markdown]
# And for other intervals, from a minute to two hours. Dots are simulated, the thick line is Daly's model, the dashed lines are the three terms:

# %%
dots = [(60 * m, simulated(60 * m, days=100)) for m in (5, 10, 20, 40, 80)]
plan = recovery.Saving(young_s, **machine)
figures.wasted_time(plan, "Llama 3's machine", {"simulated, 100 days each": dots})

# %% [markdown]
# Around its lowest point the curve is flat. Half the interval or twice the interval costs about three points more, so it is enough to know $C$ and $M$ roughly. But an hour instead of 19 minutes costs ten points.
#
# Meta reports more than 90 % effective training time (arXiv:2407.21783, section 3.3.4), and we have found 85 %. Their saves or their restarts must have been shorter than our minute and ten minutes. Find out which in the panel. Its job saves 4.87 TB, the 405B model:
#
# 1. Set the interval to what you guessed at the beginning. What does it cost?
# 2. Meta's storage takes 2 TB/s (same paper, section 3.3.1). Set `storage` to 2000, and `interval` to the best. Are you above 90 %? Which of the three terms is now the largest?
# 3. Back to 81 GB/s. How short must a restart be for 90 %? Are shorter restarts enough?
# 4. 131,072 GPUs of the same kind, at 81 GB/s and with restarts of ten minutes. Which part of the time is new work, at best? What would you buy first?

# %%
from course_lib.chapters.ch15_launchers_and_recovery import panels

panels.recovery()

# %%
often = panels.recovery(storage_gb_per_s=2000, interval_min=4).result
assert often.progress > 0.92
assert max(often.parts, key=often.parts.get) == "restarting"
crowd = {"save_s": 60, "mtbf_s": mtbf_s / 8, "restart_s": 600}  # 131,072 GPUs
best_s = recovery.daly_interval_s(60, mtbf_s / 8)
assert round(recovery.Saving(best_s, **crowd).progress, 2) == 0.48

# %% [markdown]
# **Answers.** (1) From 10 to 40 minutes it costs four points at most; with an hour, ten. (2) Yes, 93 %, and restarts are the largest term. (3) Just not: even restarts in no time reach only 89.97 %, since saves and repeated work take 10 % by themselves. (4) 48 %. A failure comes every 23 minutes and a restart takes 10. With restarts in half the time it would be 59 %, with saves in half the time 52 %, so buy shorter restarts first. Here are all combinations:


# %%
def new_work(save_s, restart_s):
    """% of the time of 131,072 GPUs, at the best interval."""
    best = recovery.daly_interval_s(save_s, mtbf_s / 8)
    return 100 * recovery.Saving(best, save_s, mtbf_s / 8, restart_s).progress


assert [round(new_work(60, 300)), round(new_work(30, 600))] == [59, 52]

# %%
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
# With restarts of ten minutes even a save in one second gives only 63 %. On 16,384 GPUs saves weigh more, and what helps there is a save that does not stop training. **Asynchronous saving** (异步保存) copies the shards to the host's memory, and a thread writes them
# to the storage while training goes on (`torch.distributed.checkpoint.async_save`). Then $C$ is the copy alone, and the interval can be as short as the write, here a minute:

# %%
shard_bytes = sum(checkpoints["llama3-405b"].values()) / 16_384
copy_s = shard_bytes / hardware.PCIE4.bytes_per_s
behind = recovery.Saving(60, copy_s, mtbf_s, restart_s=600)
print(f"{shard_bytes / 1e6:.0f} MB a GPU, copied in {1000 * copy_s:.0f} ms")
print(", ".join(f"{name} {part:.2%}" for name, part in behind.parts.items()))
assert round(behind.progress, 2) == 0.94

# %% [markdown]
# 94 % of the time is new work, and nearly all of the loss is restarts. (A failure during a write falls back to the save before, which costs another half per cent.)
#
# **Remember**
# - Young: $\tau = \sqrt{2CM}$, with $M = m/n$. Saves and repeated work then cost the same.
# - A factor of two in $\tau$ hardly matters, a factor of ten does.
# - Restarts do not depend on $\tau$: they cost less only if they are shorter or rarer.
# - Saves can hide behind training. Restarts cannot.

# %% [markdown]
# ## 15.9 Rehearsal
#
# Chapter 13 chose a layout for a cluster. To run it you need files: a script for Slurm, flags for Megatron, a configuration for DeepSpeed. `course plan … --emit` writes them:
#
# ```
# course plan llama3-8b --gpu H100-SXM --nodes 2 --batch 64 --emit deepspeed
# ```
#
# This command takes the fastest layout, here FSDP on all 16 GPUs, and prints three files: the configuration, the program, and a script that starts it on each node. This is the script:

# %%
sixteen = Layout(dp=16, zero_stage=3, accumulation=4)
llama = models.MODELS["llama3-8b"]
planned = Job(llama, Recipe(), sixteen, two_nodes, sequence=8192)
print(emitting.files("deepspeed", planned, "llama3-8b")["deepspeed.sh"])

# %% [markdown]
# The first lines say what the plan predicts. The list below them is all that you must give; the script ends at once, with one sentence, if something is missing. `sbatch plan.sbatch bash deepspeed.sh` starts it, with `plan.sbatch` from `--emit slurm`. There is a reason for a script: `$HEAD` and `$PORT` have values only on the nodes. On a command line your login shell would replace them, by nothing. `--emit` also knows `slurm`, `trainjob`, `torchtitan`, `megatron` and `accelerate`. The tests of the course read each of these files by the engine's own parser.
#
# Before 1,024 GPUs start, you can run one of the 1,024 ranks on your laptop. PyTorch has a process group that only pretends: every collective returns at once, with whatever is in the buffer. With tensors that have a shape and no memory, the real FSDP2 and tensor-parallel
# code of that rank runs, and its states and its collectives can be counted. This is a **rehearsal** (演练). It tells you nothing about times or losses, and everything about what is kept and sent.
#
# Take two layers of Llama 3 8B on 128 data-parallel × 8 tensor-parallel ranks, and of these the last rank, 1,023. FSDP2 cuts each tensor into blocks of rows, as `torch.chunk` does: all blocks are equally long, except at the end.
#
# **Predict.** Tensor parallelism gives this rank's group 16,032 of the 128,256 rows of the embedding. FSDP2 cuts these over 128 ranks, on average 125.25 rows for each. How many rows does the last of them really have?

# %%
rows_left = predict("15.rows", "Rows on the last rank?", yours=None)

# %%
from course_lib.chapters.ch15_launchers_and_recovery.rehearsal import rehearse
from dataclasses import replace

two_layers = replace(models.MODELS["llama3-8b"], layers=2)
fp32 = Recipe(parameters="fp32", gradients="fp32", compute="bf16", master_copy=False)
layout = Layout(dp=128, tp=8, zero_stage=3)
result = rehearse(Job(two_layers, fp32, layout, sequence=1024), rank=1023)
print("\n".join(result.report().splitlines()[:9]))
assert result.explained

# %%
block = torch.zeros(16_032, 1).chunk(128)
expect(16_032 - 127 * 126, len(block[-1]), label="rows", yours=rows_left)

# %%
rows = {
    "ranks 0 to 126, each": len(block[0]),
    "rank 127": len(block[-1]),
    "the mean": 16_032 / 128,
}
title = "Rows of the embedding on a rank of the group"
figures.bars(rows, "{:g}".format, title, style.WEIGHTS)

# %% [markdown]
# **Explain.** 30. A block has 126 rows, since 125.25 is rounded up. 127 ranks hold that many, and 30 rows are left for the last. It reserves memory for 126 all the same (the *padding* in the table), but the optimizer keeps moments only for the rows that are there.
#
# `course rehearse` does this for whole models, in about a minute. Here is a recorded one, for a layout in which Llama 3 8B could be trained, with all 32 layers and sequence parallelism:

# %%
said = recorded("rehearse_1024")
print("\n".join(said.splitlines()[:2]))
found = re.findall(r"^(\S+ \S+), calls +(\d+) +(\d+)", said, re.M)
calls = {name: {"theory": int(a), "rehearsed": int(b)} for name, a, b in found}
assert calls["tp all-reduce"] == {"theory": 3, "rehearsed": 68}
colours = {"theory": style.THEORY, "rehearsed": style.MEASURED}
figures.grouped_bars(calls, "Calls in an update", "{:.0f}".format, colours)

# %% [markdown]
# Only `tp all-reduce` differs. The rehearsal has 65 calls more: with sequence parallelism every norm sees only its part of the tokens, so the gradients of its weights must be added up, and PyTorch does that tensor by tensor. They are hardly any bytes, but 65 times the latency of a message. This is what a rehearsal finds.
#
# **Remember**
# - Let the plan write the files; do not type its numbers a second time.
# - A rehearsal runs the real code of one rank. Every byte that differs from theory gets an explanation.

# %% [markdown]
# ## What to remember
#
# 1. A launcher tells each process by six variables who it is, and ends all when one fails.
# 2. One agent per node; they meet at one address. Slurm, Kubernetes and Ray differ in who starts the agent.
# 3. The same job has the same losses under every wrapper, if batch, clipping and precision are the same. Print them.
# 4. Wrappers replace parameters: the optimizer comes last, and whole-matrix optimizers need whole matrices.
# 5. Resuming is your program's duty: weights, moments, step, data position, random state.
# 6. $\tau = \sqrt{2CM}$. A failure costs four things: somebody must notice, the job queues, it starts, and it repeats work.
# 7. Rehearse one rank before you rent a thousand.

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
# Which of these gets the wrong update if each rank uses only its own rows?
# [ ] AdamW
# [ ] SGD with momentum
# [x] Muon
# Why: Muon makes the rows of the whole matrix orthogonal; the others treat single numbers.

# %% [markdown]
# **Now you:** open [the exercises](../exercises/15_launchers_and_recovery.ipynb).
#
# **Read on.** *torchrun (Elastic Launch)*, docs.pytorch.org/docs/stable/elastic/run.html. Llama 3, section 3.3.4 (arXiv:2407.21783). Daly 2006, *A higher order estimate of the optimum checkpoint interval*. Wan et al. 2024, *ByteCheckpoint*
# (arXiv:2407.20143). torchtitan (arXiv:2410.06511).

# %% [markdown] tags=["exercise"]
# ## Exercises

# %% tags=["exercise"]
from course_lib import check, hint, solution
from course_lib.chapters.ch15_launchers_and_recovery import recovery

# %% [markdown] tags=["exercise"]
# ### 15.1 Calculate: an interval
#
# 4,096 GPUs, each of which fails once in 1,500 days, train LLaMA-2 70B. Its checkpoint has 827.7 GB; the storage takes 20 GB/s. A restart takes 5 minutes. Give the seconds of a save, the hours between failures
# of the machine, the minutes between saves by Young's formula, and the time lost over the time of new work by the three terms of section 15.8.

# %% [raw] tags=["hints"]
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
# ### 15.3 Implement: without torchrun
#
# Some start without torchrun: `srun --ntasks-per-node=8 --gpus-per-node=8 --cpus-per-task=12 python job.py` starts all ranks at once. Slurm tells each of them `SLURM_PROCID` (its number among all tasks, from 0), `SLURM_NTASKS` (how many there are), `SLURM_NODEID` (its node, from 0),
# `SLURM_LOCALID` (its number on that node) and `SLURM_NTASKS_PER_NODE`. Write what turns these into the six variables of section 15.1, so that `init_process_group` works. As in every environment, all values are text. Usually Slurm numbers tasks node by node. With `--distribution=cyclic` it deals them out to
# the nodes like cards, and your function must be right then, too.

# %% [raw] tags=["hints"]
# Four of the six stand in Slurm's variables already, as text.
# Dealt out like cards, task 1 is the first on node 1: which variable knows that it is 1?
# The port is text as well.


# %% tags=["exercise"]
def from_slurm(slurm: dict[str, str], address: str, port: int) -> dict[str, str]:
    """RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT."""
    ### BEGIN SOLUTION
    return {
        "RANK": slurm["SLURM_PROCID"],
        "WORLD_SIZE": slurm["SLURM_NTASKS"],
        "LOCAL_RANK": slurm["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": slurm["SLURM_NTASKS_PER_NODE"],
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
    }
    ### END SOLUTION


check("15.3", from_slurm)

# %% [markdown] tags=["exercise"]
# ### 15.4 Implement: four wrote, three read
#
# A state of `total` columns was written by `writers` ranks and is read by `readers`; rank $r$ of $n$ holds the columns from $\lfloor Cr/n \rfloor$ up to, but without, $\lfloor C(r+1)/n \rfloor$. Which pieces does reader `rank` take? Return `(file, start, stop)` for each piece, in the
# order of the columns. `file` is the writer's rank; `start` and `stop` count from the beginning of *that file*. Of the ten columns in section 15.7, written by 4 and read by 3, rank 1 takes `[(1, 1, 3), (2, 0, 1)]`.

# %% [raw] tags=["hints"]
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
# Six runs, and what somebody saw. What is the cause? Choose from
# `"one process"`, `"clipping"`, `"optimizer built too early"`, `"recompilation"`, `"moments not saved"`, `"to_local"`, `"standalone"`.

# %% [raw] tags=["hints"]
# Is it wrong from the first update on, or from some moment? What happens at that moment?
# Which causes leave the world size wrong, which the gradient, which the state?
# One of the seven is not needed: it costs time, and changes no loss.

# %% tags=["exercise"]
cause = {
    "two GPUs, no error; the losses are those of half the global batch": ...,
    "under fully_shard the loss is the same in every update": ...,
    "the losses equal those of DDP until the loss rises once; from then on they differ": ...,
    "after a restart the loss goes on where it was, jumps up at once, and comes down in an hour": ...,
    "Muon under FSDP2 learns worse than on one GPU, and sends less than expected": ...,
    "16 GPUs on two nodes, twice eight ranks, and two log files that both begin with rank 0": ...,
}
### BEGIN SOLUTION
answers = [
    "one process",
    "optimizer built too early",
    "clipping",
    "moments not saved",
    "to_local",
    "standalone",
]
cause = dict(zip(cause, answers, strict=True))
### END SOLUTION
check("15.5", cause)

# %% [markdown] tags=["exercise"]
# ### 15.6 Debug: a script to correct
#
# This batch script is to train on 4 nodes of 8 GPUs and 96 cores each, and to survive a rank that dies. Four of its values are wrong. Correct them, and leave alone what is right.

# %% [raw] tags=["hints"]
# 32 agents would start: who starts agents, and who starts ranks?
# On each node seven of eight ranks would find no GPU: how many did the job ask for?
# On which machine is localhost? Which name means the same machine on all nodes?
# How often may torchrun start the ranks again?

# %% tags=["exercise"]
### BEGIN GIVEN
options = {
    "sbatch --nodes": "4",
    "sbatch --ntasks-per-node": "8",
    "sbatch --gpus-per-node": "1",
    "HEAD": "localhost",
    "srun --cpus-per-task": "96",
    "torchrun --nnodes": "4",
    "torchrun --nproc-per-node": "8",
    "torchrun --rdzv-id": "$SLURM_JOB_ID",
    "torchrun --rdzv-backend": "c10d",
    "torchrun --rdzv-endpoint": "$HEAD:29400",
    "torchrun --max-restarts": "0",
}
### END GIVEN
### BEGIN SOLUTION
options = {
    "sbatch --nodes": "4",
    "sbatch --ntasks-per-node": "1",  # an agent, which starts the ranks
    "sbatch --gpus-per-node": "8",
    "HEAD": "$(hostname)",  # the script runs on the first node
    "srun --cpus-per-task": "96",
    "torchrun --nnodes": "4",
    "torchrun --nproc-per-node": "8",
    "torchrun --rdzv-id": "$SLURM_JOB_ID",
    "torchrun --rdzv-backend": "c10d",
    "torchrun --rdzv-endpoint": "$HEAD:29400",
    "torchrun --max-restarts": "3",
}
### END SOLUTION
check("15.6", options)

# %% [markdown] tags=["exercise"]
# ### 15.7 Predict: killed twice
#
# A run of 1,500 updates of 4 s each saves after every 250. It is killed when 1,120 are done, and again when its second attempt has done update 1,240. How many updates are computed in all? How many would it be if it saved after every 50? A save
# takes 20 s: how many seconds does each plan spend on saves and on repeated updates?

# %% [raw] tags=["hints"]
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
# ### 15.8 Predict: graphs
#
# A model is compiled with the default settings, and its batches have 8 samples each. How many graphs have been made (a) after the first update, (b) after three epochs of 100 samples, (c) after three epochs of 97 samples, (d) after three epochs of 97 samples with
# `drop_last=True`, (e) after one epoch of 100 samples, and a second one of batches of 32? Then count with `measure.gradients.log_graphs` as in section 15.5.

# %% [raw] tags=["hints"]
# How large is the last batch of 100 samples, and of 97?
# The second size makes one graph for all sizes. Which size is an exception?

# %% tags=["exercise"]
graphs = [..., ..., ..., ..., ...]
### BEGIN SOLUTION
graphs = [1, 2, 2, 1, 2]
# (b) 8, then 4: one graph for all sizes; (c) 8, then 1, which has its own;
# (d) 8 only; (e) 8, then 4 for all sizes, which 32 fits
### END SOLUTION
check("15.8", graphs)

# %% [markdown] tags=["exercise"]
# ### 15.9 Debug: true or false?
#
# (published mistakes from notes 000 and 004, among right sentences) True or false?

# %% [raw] tags=["hints"]
# Two are right. Sections 8.7 and 9.7, and exercise 1.7, have most of the others.
# How many replicas are there on 64 GPUs with tp 8?

# %% tags=["exercise"]
claims = {
    "accelerate runs PyTorch and TensorFlow programs": ...,
    "GPT-3 was trained with DeepSpeed": ...,
    "with tp 8, 64 GPUs, accumulation 4 and micro-batch 2 the global batch is 512": ...,
    "on two cards of 25.4 GB FSDP trains GPT-2 XL in fp32 with AdamW, and DDP cannot": ...,
    "ZeRO saves storage and no computing; its third stage sends more than DDP": ...,
    "when Slurm requeues a job, it puts the program back to where it was": ...,
}
### BEGIN SOLUTION
answers = [False, False, False, True, True, False]
claims = dict(zip(claims, answers, strict=True))
### END SOLUTION
check("15.9", claims)

# %% [markdown] tags=["exercise"]
# ### 15.10 Build: a launcher
#
# Write a launcher. It starts one command on every rank of its machine, tells each rank by six variables of its environment who it is and where all of them meet, and when one rank fails it ends the others. Then write how a rank enters the
# process group, and how it leaves it.
#
# `subprocess.Popen(command, env=…)` starts a process and returns at once. The object that it returns has `poll()` (None while the process runs, then its exit code), `wait(timeout)`, `terminate()` (SIGTERM: a request) and `kill()` (SIGKILL, which no process can
# ignore). What a rank prints comes out where the launcher prints, and the launcher's own environment stays as it is. The check starts real processes: ranks that end well, one before the others, a rank that fails or is killed, ranks that ignore SIGTERM, and Ctrl-C. What passes is kept as `mine/launcher.py`; `course demo toy --parts mine` and `course demo launchers --parts mine` start their ranks by it.

# %% [raw] tags=["hints"]
# subprocess.Popen(command, env=…) starts a process and does not wait for it. Its poll() is None while it runs, and its exit code afterwards.
# The environment of a rank is the launcher's own, os.environ, and what the rank is told besides. On node 2 of nodes of 8 ranks, local rank 3 is rank 19.
# Ask all ranks in turn, every few hundredths of a second: while one still runs and none has failed, go on. any() of a list of None, 0 and 3 is True because of the 3.
# try: start and watch; finally: end_ranks(ranks). What has ended already is not hurt by terminate().
# end_ranks: terminate() all, then wait(timeout) for each until the grace is over; on subprocess.TimeoutExpired kill() it and wait().

# %% tags=["exercise"]
import gc
import os
import subprocess
import time
from collections.abc import Sequence

import torch.distributed as dist

from course_lib.scratch.launcher import free_port

### BEGIN GIVEN


def rank_environment(
    local_rank: int,
    local_ranks: int,
    port: int,
    *,
    node: int = 0,
    nodes: int = 1,
    address: str = "127.0.0.1",
) -> dict[str, str]:
    """RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT.

    Every node has `local_ranks` ranks; rank 0 listens at `port` of `address`.
    """
    ...


def launch_ranks(
    command: Sequence[str],
    local_ranks: int,
    port: int | None = None,
    *,
    node: int = 0,
    nodes: int = 1,
    address: str = "127.0.0.1",
) -> list[int]:
    """Run `command` on every rank of this node; the exit codes, by rank.

    As soon as one is not 0, the other ranks are ended by `end_ranks`; so they
    are if this function is interrupted. `port` None: `free_port()`.
    """
    ...


def end_ranks(ranks: Sequence[subprocess.Popen], grace_s: float = 5.0) -> None:
    """Ask all that still run to end, at once; kill those that have not by then.

    All have `grace_s` together, from the first request on. Returns when none
    of them runs any more.
    """
    ...


def setup(rank: int, world_size: int) -> None:
    """Join a gloo group, at MASTER_ADDR and MASTER_PORT of the environment."""
    ...


def cleanup() -> None:
    """Leave the group, after gc.collect(): unused models that know it are gone then."""
    ...


### END GIVEN
### BEGIN SOLUTION
from course_lib.scratch.launcher import (
    cleanup,
    end_ranks,
    launch_ranks,
    rank_environment,
    setup,
)

### END SOLUTION

check("15.10", [rank_environment, launch_ranks, end_ranks, setup, cleanup])

# %% [markdown] tags=["exercise"]
# ### 15.11 Build: a checkpoint in shards
#
# Save a training state from many ranks, and load it on another number of them. The state is a matrix (3, columns) of fp32: weights and the two moments. `columns(total, r, n)` says which columns rank r of n holds: from total·r//n up to, but without, total·(r+1)//n. The
# number of ranks need not divide them.
#
# A checkpoint is a folder `step-00000004` with a file for each rank, `rank0.shard`, `rank1.shard` and so on, which holds its numbers row by row, and `manifest.json`, which rank 0 writes last: a checkpoint that has one is complete. `write_whole` writes every file, and each rank its own. You are given `read_manifest(path, layout)`, which also
# checks the model, `read_shard(file, writer, entry)`, which checks the checksum, and `remove_old(folder, keep)`. What passes is kept as `mine/reshard.py`; `course demo checkpoint --ranks 4 --load-ranks 3 --parts mine` trains on it.

# %% [raw] tags=["hints"]
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
