# %% [raw] tags=["sitting"]
# question: Who starts 16,384 processes, and how does each know which one it is?
# importance: 4
# difficulty: 3
# group: alone
# needs: 7, 9

# %% [markdown]
# # 15 Launchers
#
# Llama 3 405B was trained by one job on 16,384 GPUs (arXiv:2407.21783): one process for each GPU, eight on each of 2,048 nodes. Who starts 16,384 processes? How does each know which one it is? And how do you notice that a job trains, without any error, on fewer ranks than you asked for?
#
# After this sitting you can
#
# - start ranks yourself, and say what torchrun and Slurm add to that (folded: Kubernetes, Ray),
# - read a batch script for several nodes, and say what breaks if a line is wrong,
# - run one job under torchrun, accelerate, DeepSpeed and Megatron, and say which of two settings wins.
#
# You need chapters 7 and 9.

# %%
import json
import re
import subprocess
import sys
import time

import torch
import torch.distributed as dist

from course_lib import demos, expect, launch, predict, recorded, scratch, show_source

launch.warm_up()
torch.set_num_threads(1)

# %%
from course_lib import emitting, style
from course_lib.chapters.ch15_launchers_and_recovery import cluster, figures, recovery
from course_lib.chapters.ch15_launchers_and_recovery.demos.launchers import tools
from course_lib.scratch.launcher import launch_ranks, rank_environment
from course_lib.theory import RECIPES, Cluster, Job, Layout, TransformerShape
from course_lib.theory import hardware, mesh

# %% [markdown]
# ## 15.1 A launcher in thirty lines
#
# Until now `launch.run` has started the ranks. A **launcher** (启动器) starts the same program several times and gives each copy its identity in environment variables. Here are those of the two processes on the second of two nodes:

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
# All values are text: write `int(os.environ["RANK"])`. A node numbers its GPUs from 0, and `LOCAL_RANK` does the same. Note 002 gives each rank two GPUs, beginning with `dev0 = rank * 2`. That is right on one node of 8 GPUs. On a second node the first rank is rank 4, and it asks for GPU 8, which does not exist.
#
# A launcher has a second duty. If one of three ranks dies in an all-reduce, the other two cannot go on: Gloo raises an error, and NCCL's kernels wait for ten minutes (section 15.7). So the launcher ends them. Here each rank would sleep for a minute, but rank 1 ends after half a second with exit code 3:

# %%
program = """
import os, sys, time
if os.environ["RANK"] == "1":
    time.sleep(0.5)
    sys.exit(3)
time.sleep(60)
"""
start = time.perf_counter()
codes = launch_ranks([sys.executable, "-c", program], 3)
print(f"exit codes {codes}, after {time.perf_counter() - start:.1f} s")
assert codes[1] == 3 and codes[0] == codes[2] < 0

# %% [markdown]
# The launcher looks at its children fifty times a second. As soon as one has failed, it ends the others by signal 15, SIGTERM, the polite request to end: that is exit code -15. You write this launcher in exercise 15.10.
#
# How do ranks find each other? At `MASTER_ADDR:MASTER_PORT` rank 0 opens a **store** (键值存储), a dictionary that all ranks can read and write. Each rank writes down its own address, waits for the addresses of the others, and connects:

# %% tags=["drawing"]
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
# Here is such a store, with a single process. The last line is how a barrier counts:

# %%
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
store.set("rank 1 listens at", "10.0.0.7:41873")
print(store.get("rank 1 listens at").decode())
print([store.add("ranks that have arrived", 1) for _ in range(3)])

# %% [markdown]
# **Remember**
# - A launcher starts copies of a program, gives each its identity in six variables, and ends all when one fails.
# - Data by `RANK`, devices by `LOCAL_RANK`.
# - Ranks find each other through a store at `MASTER_ADDR:MASTER_PORT`.

# %% [markdown]
# ### Deeper: the course's own launcher, and the toy of note 002
#
# Try exercise 15.10 first. This is the whole launcher. Two more functions appear in nearly every PyTorch example, and in note 002: `setup` joins the group, and `cleanup` leaves it. (In `cleanup` the order matters: a DDP model that outlives its group can abort the process, so the garbage collector takes such models first.)

# %%
show_source(scratch.launcher.launch_ranks, scratch.launcher.end_ranks)
show_source(scratch.launcher.setup, scratch.launcher.cleanup)

# %% [markdown]
# The example in note 002 is a toy model with two layers on two devices, wrapped in DDP:

# %%
show_source(scratch.launcher.ToyMpModel, scratch.launcher.demo_model_parallel)

# %% [markdown]
# Start it with the launcher above, on two ranks. (A small program calls `launch_ranks`, so that we can read what rank 0 prints.) One process that sees all rows learns the same. `course demo toy --ranks 2` starts it by torchrun.

# %%
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
# ## 15.2 Several nodes
#
# On one node a parent process can start all ranks. On several nodes, each needs a parent of its own. Starting these is the work of a **scheduler** (调度器) such as Slurm: it gives you nodes, runs a script on the first of them, and from there a command on all of them. `course plan … --emit slurm` writes such a script, and `sbatch plan.sbatch` submits it. Here it is for a small GPT on two nodes of eight GPUs:

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

# %%
expect(2 + 2 * 8, label="agents and ranks", yours=processes)

# %% [markdown]
# **Explain.** Eighteen. On each node Slurm starts *one* torchrun, which starts eight ranks and then watches them, as our launcher did. It is called the **agent** (代理进程). The agents meet at one address, which is called the **rendezvous** (会合), and agree on who is node 0. Then rank = 8 × node + local rank. So do not rely on rank 8 being on the second machine of your list: read `RANK`, and read it again after each restart.
#
# These options go wrong most often (`--max-restarts` is not in this script):
#
# | option | what it does | if it is wrong |
# |---|---|---|
# | `--ntasks-per-node=1` | one agent on each node | with 8, sixteen agents start; two meet, perhaps on one node, and the others wait |
# | `--gpus-per-node=8` | the GPUs that the job gets on each node | left out: the job owns no GPU, and torch may find none |
# | `--exclusive` | whole nodes, with all cores | left out: a task gets one core, which eight ranks share |
# | `HEAD=$(hostname)` | the first node's name, since the script itself runs only there | left out: the endpoint names no machine |
# | `--nnodes=2` | how many agents must meet before anything starts | too many: it waits for a node that never comes |
# | `--rdzv-endpoint=$HEAD:$PORT` | where they meet: the same on all nodes | `localhost`: each node waits alone, and gives up after ten minutes |
# | `--kill-on-bad-exit=1` | one agent that fails ends the others | left out: they wait for a timeout, and all GPUs with them |
# | `--max-restarts=3` | how often all ranks may be started again | 0, the default: one failure ends the job |
#
# `--standalone`, a rendezvous of one node with itself, is a mistake on several nodes: each then starts a job of its own.
#
# Outside the script, `scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1` prints the first node. Its name must lead to a network that all nodes share: `getent hosts $HEAD`, run on another node, shows to which address it leads.
#
# ### A node dies
#
# `course cluster up` starts a real Slurm with two nodes on this machine, and `course cluster down` ends it. (It needs Linux with Debian's packages `slurm-wlm` and `munge`, and no root.) `course cluster requeue` submits a job there and pulls the plug of node n2: all of its processes die at once, and Slurm gets no message. The script has `--requeue`, so Slurm puts the job back into the queue and later runs the script *again from its first line*. Slurm knows nothing of updates. Resuming is the program's duty, and it can do so because every start uses the same folder of checkpoints.
#
# **Predict.** The job has 24 updates and saves after every 5. Node n2 dies when 13 are done. How many updates are computed in all, if you count repeated ones twice?

# %%
in_all = predict("15.slurm", "Updates in all?", yours=None)

# %%
lost_node = cluster.recorded()
computed = len(lost_node.losses) + lost_node.repeated
by_theory = 24 + recovery.lost_steps(lost_node.lost_after, lost_node.every)
expect(by_theory, computed, label="updates", yours=in_all)

# %%
print(lost_node.report().splitlines()[0])
figures.requeue_timeline(lost_node.times)

# %% [markdown]
# **Explain.** 27. The last save was after update 10, so 11, 12 and 13 are done twice. The 24 losses of this recorded run are those of an undisturbed job, to the last bit.
#
# The picture shows where the time went. First Slurm must *notice*: a dead node cannot say that it is dead, so Slurm waits until the node has been silent for its `SlurmdTimeout` at least (5 s here, where it took 21; 300 s by default). Then comes the *queue*: Slurm holds a requeued job back for two minutes, unless it is released by hand, as here. Then Python, torch and the process group *start* on every rank, and in the end some *updates are done again*.
#
# On a real cluster the requeued job may get the bad node again. `scontrol update nodename=n2 state=drain reason=…` keeps it out for everybody, `sbatch --exclude=n2` for your job. Large jobs ask for a few spare nodes, so that a restart need not queue. And a time limit is a failure that you know beforehand: because of `--signal=B:USR1@120` the script gets a signal two minutes earlier, and puts the job back into the queue.
#
# **Remember**
# - One agent on each node, and they meet at one address. `localhost` is never that address.
# - Slurm starts the script again from its first line. Resuming is your program's part.
# - A failure costs: notice, queue, start, repeat.

# %% [markdown]
# ### Deeper: more options
#
# | option | what it does | if it is wrong |
# |---|---|---|
# | `--time=04:00:00` | when Slurm ends the job | left out: the limit of the partition, often an hour or a week |
# | `--cpus-per-task=96` | cores, if the job is not exclusive | give it to `srun` as well: since Slurm 22.05 `srun` does not take it over from `sbatch` |
# | `--nproc-per-node=8` | ranks that each agent starts, one for each GPU | |
# | `--rdzv-backend=c10d` | meet at a store of PyTorch's own; nothing else to install | |
# | `--rdzv-id=$SLURM_JOB_ID` | the name of the meeting | two jobs at one endpoint with one name meet each other |
# | `--tee 3` | marks each line that a rank prints with its local rank, and keeps the lines in files | left out: 16 ranks print into one stream, unmarked. Errors are told apart even so: each line of an uncaught exception begins with `[rank3]:`, and torchrun ends with the rank, host and exit code of the first failure |
#
# This is the whole script of the job that lost a node:

# %%
from pathlib import Path

print(cluster.batch_script(Path("/shared/job"), steps=24, every=5))

# %% tags=["drawing"]
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

# %% [markdown]
# ### Deeper: Kubernetes and Ray
#
# **Kubernetes** (容器编排系统) has no `srun`. You describe the job in a file; an operator, a program in the cluster, starts one container on each node with torchrun inside, and sets up the rendezvous. With Kubeflow's trainer the file describes a `TrainJob`. Every demo of this course can be written as one:

# %%
from course_lib.emitting import trainjob

for text in trainjob.demo_files("ddp", ["--steps", "5"], ranks=2).values():
    print(text)

# %% [markdown]
# `kubectl create` refuses a file with a misspelt key: since Kubernetes 1.25 it asks the server to validate strictly. A program that submits the same file through the API gets no error unless it asks for strict validation: by default the server drops the key and only warns ([field validation](https://kubernetes.io/docs/reference/using-api/api-concepts/#field-validation)). So check such a file against its schema before you submit it, as our tests do.
#
# **Ray Train** (a Python library for clusters) starts the workers itself *and* calls `init_process_group` before your function runs. A program that calls it a second time gets an error. So the demos ask first whether there is a group:

# %%
show_source(launch.init)

# %% [markdown]
# A program that joins an existing group can be started by any launcher. The job of section 15.3 runs under Ray unchanged. Here is a recorded run, with the same job under torchrun below it:

# %%
print(recorded("ray"))

# %% [markdown]
# ## 15.3 One job, four ways
#
# Chapter 8 said what torchrun, accelerate, DeepSpeed and Megatron are. Here they run the same job: the same small GPT, the same samples, the same AdamW. The losses should be those of one process. (The packages are large, so what follows was recorded. With `pip install accelerate deepspeed megatron-core`, `course demo launchers --ranks 2 --timeout 550 --limit-s 250` runs them on your machine.)
#
# **Predict.** On a machine without a GPU: `accelerate launch --cpu --num_processes 2 job.py`. On how many ranks does the job train?

# %%
ranks_found = predict("15.accelerate", "Ranks?", yours=None)

# %%
found = json.loads(recorded("launchers_worlds"))
expect(1, found["accelerate launch"], label="ranks", yours=ranks_found)
assert found["torchrun, accelerate inside"] == 2

# %%
said = recorded("launchers")
print(said.splitlines()[1])
print(re.search("accelerate launch: 1 of 2 ranks.*other losses", said)[0])

# %% tags=["drawing"]
equal = re.findall(r"(.+): 2 of 2 ranks.* losses off by (\S+)", said)
ways = {name: float(off) for name, off in equal}
assert len(ways) == 7
title = "Losses on two ranks: millionths off from those of one process"
figures.bars(ways, lambda off: f"{1e6 * off:,.1f}", title, style.INK, tens=True)

# %% [markdown]
# **Explain.** One. On CPUs accelerate starts several processes only through MPI, and otherwise it starts one and gives no warning. The loss falls, and the global batch is half of what you wrote down. Under torchrun the same program finds both ranks. Six of the differences are rounding, and bf16 is off by 0.4 %, which is what 8 bits of precision give. So **let rank 0 print the world size and the global batch, and compare them with your plan.**
#
# The same setting has four names:
#
# | setting | plain PyTorch | accelerate | DeepSpeed's JSON | Megatron-LM |
# |---|---|---|---|---|
# | start | `torchrun` | `accelerate launch`, or torchrun | `deepspeed`, or torchrun | torchrun |
# | micro-batch | your `DataLoader` | the same | `train_micro_batch_size_per_gpu` | `--micro-batch-size` |
# | accumulation | your loop, `no_sync()` | argument of `Accelerator` | `gradient_accumulation_steps` | follows from the global batch |
# | bf16 | `autocast` | `--mixed_precision bf16` | `"bf16": {"enabled": true}` | `--bf16` |
# | clipping | none | none | **1.0** if left out | **1.0** if left out |
# | sharded states | `fully_shard` | `--use_fsdp` | `zero_optimization.stage` | `--use-distributed-optimizer` |
#
# Two of four clip by default, and DeepSpeed does so only since June 2026 ([pull request 8068](https://github.com/deepspeedai/DeepSpeed/pull/8068)). So DDP and DeepSpeed have the same losses until the first gradient with a norm above 1, and different ones from then on.
#
# ### Which setting wins?
#
# Under accelerate with DeepSpeed many settings can be written in two places, your program and `ds.json`.
#
# **Predict.** The program says `Accelerator(gradient_accumulation_steps=4)`. The line `gradient_accumulation_steps` is missing from `ds.json`. How many micro-batches are in an update?

# %%
micro_batches = predict("15.wins", "Micro-batches in an update?", yours=None)

# %%
expect(1, label="micro-batches", yours=micro_batches)

# %%
print(recorded("settings"))

# %% [markdown]
# **Explain.** One. The file wins, and where it says nothing, DeepSpeed's default wins. A warning says so, among many others at the start. Only `"auto"` means "take it from the program". So write each value **in one place**, and `"auto"` in the other.
#
# ### Wrappers replace parameters
#
# accelerate's `prepare`, DeepSpeed's `initialize` and FSDP2's `fully_shard` look as if they put something *around* your model. The demo `wrappers` puts the same two layers into DDP, FSDP1 (by default, and with `use_orig_params=True`) and FSDP2, and trains one step with an optimizer that was built *before* the wrapping.
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
    ends = "learns nothing" if one.name in stuck else "learns"
    print(f"{one.name} {ends}: {', '.join(one.parameters)}")

# %% [markdown]
# **Explain.** Two. DDP leaves the parameters in place. FSDP1 copies them into one flat vector, and FSDP2 replaces them by **DTensors**, tensors of which each rank holds a part. The optimizer then holds tensors that no longer get a gradient, and an optimizer skips those, without an error. With `use_orig_params` FSDP1 keeps the tensors and changes their contents. So build the optimizer last. (Under FSDP2 accelerate's `prepare` puts the new parameters into the optimizer that you give it. Under FSDP1 it does not, as of accelerate 1.15.)
#
# Look at the names, too: a checkpoint finds its tensors by name. DDP's names have the prefix `module.`, so its file does not fit the bare model.
#
# **Remember**
# - The same job has the same losses under every launcher. Print world size and global batch, and compare.
# - Two of four clip by default. Write each setting in one place only, and `"auto"` in the other.
# - Wrappers replace parameters. Build the optimizer last.

# %% [markdown]
# ### Deeper: more names, and more disagreements
#
# | setting | plain PyTorch | accelerate | DeepSpeed's JSON | Megatron-LM |
# |---|---|---|---|---|
# | global batch | the product, times dp | the product, times dp | `train_batch_size`; the three must multiply | `--global-batch-size` |
# | fp16 (section 3.6) | `autocast` and `torch.amp.GradScaler` | `--mixed_precision fp16` | `"fp16": {"enabled": true}` | `--fp16` |
# | clipping | `clip_grad_norm_` | the same | `gradient_clipping` | `--clip-grad` |
# | tensor, pipeline | `parallelize_module`, `pipelining` | tensor, by a mesh | pipeline, by `PipelineModule` | `--tensor-model-parallel-size`, `--pipeline-model-parallel-size` |
#
# Note 004 computes the global batch as accumulation × nodes × processes × micro-batch. That holds as long as all ranks are data parallel (chapter 1); Megatron first divides the ranks by tp · pp · cp. And note 000 praises accelerate for "several backends, PyTorch and TensorFlow". It is for PyTorch only. Its backends are DDP, FSDP, DeepSpeed and Megatron.
#
# Another trap: `Accelerator(cpu=True, deepspeed_plugin=…)` does not use DeepSpeed at all. It makes a DDP model and says nothing. Look at what `prepare` returns: `type(model)`. Here are more disagreements, and what wins. (The tests of the course try each of them where the packages are installed. `print(tools.table())` also has what each of the two places said.)

# %%
for one in tools.SETTINGS:
    print(f"{one.what}, {one.tool}: {one.in_force}")

# %% [markdown]
# ### Deeper: Megatron's way of dividing
#
# Megatron does not wrap a model: it brings its own, whose layers are built as shards. From its rank and the sizes of tp, cp and pp, each process works out which groups it is in. Neighbouring ranks share a tp group; cp, dp and pp follow. Here are the groups of rank 13 on two nodes of 8 GPUs, with tp 4, dp 2 and pp 2:

# %%
sixteen_ranks = Layout(tp=4, dp=2, pp=2)
groups = {
    axis: next(group for group in mesh.groups(sixteen_ranks, axis) if 13 in group)
    for axis in ("tp", "dp", "pp")
}
for axis, group in groups.items():
    assert group in tools.by_device_mesh(sixteen_ranks, axis)
figures.rank_groups(groups, ranks=16, per_node=8)

# %% [markdown]
# Neighbours in tp are 1 apart, in dp 4, in pp 8. Rank 13 is 8 + 4 + 1: the second stage, the second replica, the second of its tp group. It adds up its gradients with rank 13 - 4 = 9. The assertion compares with PyTorch's `DeviceMesh`; where Megatron-core is installed, the tests compare with its `RankGenerator` as well. The Megatron-DeepSpeed of note 000 is DeepSpeed's ZeRO inside Megatron's model: ZeRO works within the dp groups.

# %% [markdown]
# ## The answer
#
# A scheduler starts one agent on each of 2,048 nodes, and each agent starts eight ranks. Six variables give each rank its identity, and all meet through one store. Nothing checks that the job is the one that you planned: let rank 0 print world size and global batch.

# %% tags=["exercise"]
from course_lib import check, hint, solution
from course_lib.chapters.ch15_launchers_and_recovery import recovery

# %% [markdown] tags=["exercise"]
# ### 15.3 Implement: without torchrun
#
# You can start ranks without torchrun: `srun --ntasks-per-node=8 --gpus-per-node=8 --cpus-per-task=12 python job.py` starts all ranks at once. Slurm gives each of them `SLURM_PROCID` (its number among all tasks, from 0), `SLURM_NTASKS` (how many there are), `SLURM_NODEID` (its node, from 0),
# `SLURM_LOCALID` (its number on that node) and `SLURM_NTASKS_PER_NODE`. Write what turns these into the six variables of section 15.1, so that `init_process_group` works. As in every environment, all values are text. Usually Slurm numbers tasks node by node. With `--distribution=cyclic` it deals them out to
# the nodes like cards, and your function must be right then, too.

# %% [raw] tags=["hints"]
# importance 3, difficulty 2
# Slurm's variables already hold four of the six, as text.
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
# ### 15.6 Debug: a script to correct
#
# This batch script is to train on 4 nodes of 8 GPUs and 96 cores each, and to survive a rank that dies. Four of its values are wrong. Correct them, and leave alone what is right.

# %% [raw] tags=["hints"]
# importance 3, difficulty 2
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
# ### 15.9 Debug: true or false?
#
# (published mistakes from notes 000 and 004, among right sentences) True or false?

# %% [raw] tags=["hints"]
# importance 3, difficulty 2
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
# Write a launcher. It starts one command on every rank of its machine, gives each rank its identity and the meeting point in six environment variables, and ends the others when one rank fails. Then write how a rank enters the
# process group, and how it leaves it.
#
# `subprocess.Popen(command, env=…)` starts a process and returns at once. The object that it returns has `poll()` (None while the process runs, then its exit code), `wait(timeout)`, `terminate()` (SIGTERM: a request) and `kill()` (SIGKILL, which no process can
# ignore). What a rank prints comes out where the launcher prints, and the launcher's own environment stays as it is. The check starts real processes: ranks that end well, one before the others, a rank that fails or is killed, ranks that ignore SIGTERM, and Ctrl-C. What passes is kept as `mine/launcher.py`; `course demo toy --parts mine` and `course demo launchers --parts mine` start their ranks by it.

# %% [raw] tags=["hints"]
# importance 4, difficulty 3
# subprocess.Popen(command, env=…) starts a process and does not wait for it. Its poll() is None while it runs, and its exit code afterwards.
# The environment of a rank is the launcher's own, os.environ, plus the six variables. On node 2 of nodes of 8 ranks, local rank 3 is rank 19.
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
