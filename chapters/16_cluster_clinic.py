# %% [markdown]
# # 16 The cluster clinic
#
# 64 GPUs train, and all of them show 100 %. Yesterday an all-reduce of 4 GB took 0.32 s, today it takes 1.26 s, on every rank. Nobody has changed the program. You log in on one node after another and type
# `ibstat`. 63 ports say `Rate: 200`. One says `Rate: 50`.
#
# Is that it? One port of 64 has lost three quarters of its speed. How much slower does that make *everybody*?
#
# By the end of this chapter you can
#
# - ask a node about its GPUs, its ports and its container, and say of each answer what it leaves open,
# - say why 100 % means less than you think,
# - turn counters into bytes per second, and a rate in `ibstat` into seconds of a training step,
# - put together a container, or a pod, in which NCCL finds its network and its memory,
# - name the rank that a hanging job waits for, and the rank or link that makes a job slow,
# - say whether two runs differ by a bug or by rounding, and whether a second node is worth it.
#
# Time: about 150 minutes. You need chapters 6, 9 and 15.
#
# A laptop has none of these devices. So most outputs here are *recorded*: real machines printed them, their owners published them, and the address stands below each. A few are *built* from the documented format, for
# what nobody has published, and they say so. What a laptop can do for real, it does: ranks that wait, hang and lag behind, a container's memory that is too small, a slow link in a ring.

# %%
import json
import shutil
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from course_lib import comparing, demos, diagnosing, expect, figures, launch
from course_lib import measure, panels, predict, quiz, recorded
from course_lib.clinic import (
    container,
    gpu_state,
    gpu_topology,
    gpu_use,
    nccl_choice,
    nccl_log,
    nccl_table,
    port_counters,
    ports,
    tables,
    xid,
)
from course_lib.clinic.commands import FLAGS, POD
from course_lib.clinic.recorded import output
from course_lib.demos.shared.batch import mean_loss, rows_of
from course_lib.demos.shared.training import Training, one_process
from course_lib.diagnosing import reading
from course_lib.doctor import cluster as cluster_doctor
from course_lib.figures.paper import style
from course_lib.launch import small_shm
from course_lib.scratch.collectives import ring
from course_lib.scratch.collectives.peers import SlowPeers
from course_lib.theory.compute import rounding
from course_lib.theory.inputs import hardware
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.network import collectives, pairwise, zero
from course_lib.theory.network.one_slow_link import OneSlowLink
from course_lib.theory.step import stragglers
from course_lib.theory.step.scaling import MoreNodes

launch.warm_up()
torch.set_num_threads(1)

# %% [markdown]
# **Predict.** One port of 64 runs at a quarter of its rate. By which factor does the all-reduce of all 64 ranks get longer? Section 16.4 has the answer.

# %%
slower = predict("16.factor", "Times as long?", yours=None)

# %% [markdown]
# A cluster has many parts, and each command looks at one of them. Before you type anything, ask which part you suspect. This is the map of the chapter; we begin with PyTorch and go down.

# %%
figures.command_map(tables.PARTS)

# %% [markdown]
# ## 16.1 Three lines to begin with
#
# Three questions come before all others, and each takes one line. They stand in the notes:
#
# ```
# python -c "import torch; print(torch.cuda.is_available()); print(torch.cuda.device_count())"
# python -c "import torch.distributed as dist; print(dist.is_nccl_available())"
# ```
#
# **Predict.** A server with eight AMD GPUs and a PyTorch for ROCm, AMD's counterpart of CUDA. What does `torch.cuda.device_count()` print there?

# %%
counted = predict("16.count", "GPUs that torch.cuda counts?", yours=None)

# %%
expect(8, label="GPUs", yours=counted)

# %% [markdown]
# **Explain.** Eight. PyTorch for ROCm keeps the name `torch.cuda`, so that programs need no change (docs.pytorch.org, *HIP (ROCm) semantics*). Hygon's DCUs follow AMD here. In the same way `is_nccl_available()` is True there: the library is called RCCL and
# answers to the name NCCL. So none of the three lines says whose GPU it is. `torch.version` does:

# %%
print("GPUs", torch.cuda.is_available(), torch.cuda.device_count())
print("ranks", dist.is_available(), "NCCL or RCCL", dist.is_nccl_available())
print("CUDA", torch.version.cuda, "ROCm", torch.version.hip)

# %% [markdown]
# How to read all of it:
#
# | line | says | can't say |
# |---|---|---|
# | `torch.cuda.is_available()` | PyTorch was built for GPUs, the driver answers, and there is at least one GPU | that a kernel runs on it, or that nobody else does |
# | `torch.cuda.device_count()` | GPUs that *this process* sees: `CUDA_VISIBLE_DEVICES`, a container or Slurm may hide some | how many the server has |
# | `dist.is_available()` | PyTorch was built with `USE_DISTRIBUTED=1` | that another machine can be reached |
# | `dist.is_nccl_available()` | NCCL, or RCCL, was compiled in | that there is a GPU, or a network |
# | `torch.version.cuda`, `.hip` | for which GPUs PyTorch was built; one of them is None | which driver is installed |
#
# Note 002 wants PyTorch to be compiled from source with `USE_DISTRIBUTED=1`. That was for those who compile it anyway: by default the switch is on for Linux and Windows and off for macOS (documentation of `torch.distributed.is_available`). The packages that `pip` brings
# have it on all three. What differs is the backend. Gloo is on all three; NCCL is on Linux only. That is one reason why the ranks of this course talk through Gloo. The switches of your own build:

# %%
build = torch.__config__.show().replace(",", "").split()
wanted = ("USE_CUDA=", "USE_ROCM=", "USE_NCCL=", "USE_GLOO=", "USE_MPI=")
print([switch for switch in build if switch.startswith(wanted)])

# %% [markdown]
# `course doctor` asks these questions, and then runs what else this machine has:

# %%
programs = {look.command[0] for look in cluster_doctor.LOOKS}
here = sorted(program for program in programs if shutil.which(program))
print(f"of {len(programs)} programs this machine has {here}")
for finding in cluster_doctor.examine_cluster():
    print(finding)

# %% [markdown]
# On a laptop that is little. On a node of a cluster it is one line for each sign of trouble. It only looks: it resets nothing, loads nothing, configures nothing.
#
# **Remember**
# - `torch.cuda` means AMD and Hygon as well; `torch.version.hip` tells them apart.
# - `device_count()` counts what this process may see.
# - Three times True means: go on asking. It says nothing about speed.

# %% [markdown]
# ## 16.2 Asking a GPU
#
# Eight questions to a GPU. NVIDIA and AMD have a command for each of them, Hygon for four, as far as we found them documented:

# %%
gpu_commands = ("pmon", "dmon", "topo", "nvlink", "-q -d", "dmesg", "dcgmi", "smi -r")
tables.by_vendor(*gpu_commands)

# %% [markdown]
# ### Who uses it: pmon
#
# `nvidia-smi pmon` lists processes. `-s um` asks for use and memory, `-c 1` for one sample; without it the command runs until you stop it. A recorded one:

# %%
print(output("nvidia-smi_pmon_shared").shown)

# %% [markdown]
# `sm` is the percentage of time in which kernels of that process ran, `mem` the time in which it read or wrote memory, `fb` the megabytes that it holds. Type C computes, G draws. Five programs share GPU 0 here. These are video encoders,
# and there it is meant to be so:

# %%
shared_gpu = gpu_use.pmon(output("nvidia-smi_pmon_shared").text)
figures.stacked_bars(
    {"GPU 0": {f"{row.pid}": row.framebuffer_mb or 0 for row in shared_gpu}},
    "Memory by process",
    "{:,.0f} MB".format,
)

# %% [markdown]
# In training, two processes on one GPU are mostly a job of yesterday that never ended, and the first sign of it is an out-of-memory error on a GPU that should be empty. The course's parser turns such an output into records, and records into signs:

# %%
text = output("nvidia-smi_pmon_shared").text
for sign in gpu_use.pmon_signs(gpu_use.pmon(text)):
    print(sign.sentence)

# %% [markdown]
# Every sign has three parts: what is wrong, what to do, and what the command can't say. The third part is the one that saves time.
#
# ### How do they reach each other: topo -m
#
# Two servers with four GPUs and four network ports (NIC) each. What stands in a cell is the way between two devices. From near to far: `NV6` is six NVLinks, `PIX` one PCIe switch, `PXB` several, `PHB` the CPU, `NODE` two
# bridges of one CPU, `SYS` the link between two CPUs.

# %%
print(output("nvidia-smi_topo").shown)

# %%
print(output("nvidia-smi_topo_far").shown)

# %% [markdown]
# A GPU sends straight through a port, without the CPU, if the way to that port is `PIX` or `PXB`. (This is NCCL's rule for GPUDirect, section 16.4.)
#
# **Predict.** In how many of the *eight* GPUs does that work?

# %%
near = predict("16.near", "GPUs with a port at PIX or PXB?", yours=None)

# %%
first, second = (
    gpu_topology.topology(output(name).text)
    for name in ("nvidia-smi_topo", "nvidia-smi_topo_far")
)
found = [server.nearest_port(gpu) for server in (first, second) for gpu in server.gpus]
by_switch = [port for port, way in found if way in ("PIX", "PXB")]
expect(4, len(by_switch), label="GPUs", yours=near)

# %% [markdown]
# Both tables again, drawn. Follow the way from a GPU to the nearest port: green by a switch, red through the CPU.

# %%
figures.node_ways({"the first server": first.ways, "the second server": second.ways})

# %% [markdown]
# **Explain.** In the first server each GPU has a port of its own behind the same switch. In the second every byte for the network crosses the CPU. Both are healthy, and none of NVIDIA's commands will ever complain about the second. But its
# network will never be as fast as that of the first. `course doctor` has a sign for it.
#
# ### Is it well: nvlink -s, -q -d, dmesg, dcgmi
#
# Links first. This GPU has six; it is one of several in its server:

# %%
print(output("nvidia-smi_nvlink").shown)
for sign in gpu_state.nvlink_signs(gpu_state.nvlink(output("nvidia-smi_nvlink").text)):
    print("\n" + sign.sentence)

# %% [markdown]
# A rate here is one link in *one* direction. An H100 has 18 of them:

# %%
nvlinks = hardware.accelerator("H100-SXM").inside.bytes_per_s
slot = hardware.PCIE4.bytes_per_s
to_compare = {
    "one NVLink of an H100, one way": nvlinks / 18,
    "all 18, one way": nvlinks,
    "all 18, both ways": 2 * nvlinks,
    "a PCIe 4.0 x16 slot, one way": slot,
    "a PCIe 4.0 x16 slot, both ways": 2 * slot,
}
told = {name: f"{rate / 1e9:g} GB/s" for name, rate in to_compare.items()}
figures.bars(to_compare, told, "Which of them do you compare?")

# %% [markdown]
# The data sheet says "900 GB/s". Note 004 sets that number beside the 32 GB/s of a PCIe slot, so one of the two is twice too large. Before you compare two rates, ask of each: one
# way or both, one link or all, bits or bytes?
#
# Next the memory. HBM makes errors, and an **error-correcting code** (纠错码, ECC) mends those of one bit. A row that makes more is replaced by a spare one at the next reset, which is called **row remapping** (行重映射).

# %%
lines = output("nvidia-smi_q_ecc").shown.splitlines()
print(*lines[:16], "    …", *lines[-2:], sep="\n")
for sign in gpu_state.state_signs(gpu_state.query(output("nvidia-smi_q_ecc").text)):
    print("\n" + sign.sentence)

# %% [markdown]
# 177 corrected errors are no reason to worry. The line that matters is `Pending: Yes`. `Volatile` counts since the last reset, `Aggregate` since ever. The section PERFORMANCE of the same command says what holds the clock down, which is called **throttling** (降频). At full load `SW Power Cap: Active` is usual. `HW Slowdown`
# never is.
#
# What goes really wrong stands in the kernel's log, as a number that NVIDIA calls **Xid**. Three lines, from one machine:

# %%
print(output("dmesg_xid").shown)

# %% [markdown]
# **Predict.** Three GPUs reported an Xid: 43, 31, 94. For how many of them do you call the people who own the hardware?

# %%
calls = predict("16.xid", "GPUs with a fault of their own?", yours=None)

# %%
log = xid.xids(output("dmesg_xid").text)
for line in log:
    meaning = xid.MEANINGS[line.number]
    print(f"{line.number}: {meaning.what} ({meaning.whose}) → {meaning.do}")
machines = [line for line in log if xid.MEANINGS[line.number].whose == "machine"]
expect(1, len(machines), label="GPUs", yours=calls)

# %% [markdown]
# **Explain.** One. 31 is what a program gets that computes a wrong address, and 43 is left of a program that was ended for its mistake. The next program runs on the same GPUs without any trouble. 94 is the memory. Two more are worth knowing by heart: 79, *the GPU has fallen off the bus*, where nothing but a restart helps, and 45, which only cleans up after another Xid
# or after a killed program: look at the line before it. (NVIDIA's Xid catalog has them all.)
#
# The last is a test under load. `dcgmi diag -r 2` takes minutes and wants the GPUs for itself; `-r 3` takes longer. Here it found a GPU that gets too hot:

# %%
print(output("dcgmi_diag").shown)

# %% [markdown]
# And here its verdict is not what it seems. Every test passed, while all NVLinks of that machine were down:

# %%
print(output("dcgmi_diag_pass").shown)

# %% [markdown]
# A test can only fail in what it tests. "Pass" stands for "none of these".
#
# ### The one that is dangerous: -r
#
# The notes list `nvidia-smi -r` beside `nvidia-smi pmon`, as if both looked at something. `-r` *resets* GPUs, all of them if you give no `-i`. What runs there is lost, and where GPUs are joined by switches the neighbours are reset with them. It needs root, and it refuses as long as anything uses
# the GPU, even a monitor:

# %%
print(output("nvidia-smi_r").shown)

# %% [markdown]
# Nothing in this course runs it. On a shared node it is for the administrator, after the job was drained.
#
# How to read each, and what none of them says:

# %%
tables.how_to_read(*gpu_commands)

# %% [markdown]
# **Remember**
# - Two processes on one GPU: a job that never ended. No process where others have one: a rank that died.
# - Pending rows, `HW Slowdown`, Xid 48, 63, 64, 74, 79, 94, 95: the machine. Xid 13, 31, 43: mostly the program.
# - `-r` is not a look. It destroys what runs.

# %% [markdown]
# ## 16.3 What 100 % means
#
# An H100 has 132 streaming multiprocessors. Start a kernel that occupies one of them, and let it run.
#
# **Predict.** What does the column `sm` of `nvidia-smi` show, in percent?

# %%
one_sm = predict("16.one_sm", "Utilization of 1 multiprocessor of 132?", yours=None)

# %%
expect(100, label="utilization", unit="%", yours=one_sm)
two_meters = {"utilization, %": 100, "multiprocessors, %": round(100 / 132, 1)}
figures.meters(
    {"one kernel": two_meters},
    dict.fromkeys(two_meters, 100),
    "One multiprocessor of 132 at work, on two meters",
)

# %% [markdown]
# **Explain.** What is called **utilization** is the percentage of *time* in which at least one kernel ran (NVIDIA's NVML reference, `nvmlUtilization_t`). It is not the part of the GPU that worked. In that it is like the percentage of time in which the light is on in an office.
#
# For training it is worse, since waiting is a kernel as well. An all-reduce of NCCL runs on the GPU, and where it has to wait for another rank, it asks a flag in memory again and again until the flag changes (`waitPeer` in NCCL's `src/device/prims_simple.h`). This is **busy-waiting** (忙等待).
#
# We can do the same here with a processor in place of a GPU. Two ranks. Rank 1 reads its samples from a slow disk, 0.3 s for each update, and computes for 0.1 s. Rank 0 has its samples at once, computes for 0.1 s, and waits in the all-reduce. The wait is written in two ways: as NCCL's kernel does it, and as Gloo
# does it, which sleeps until the operating system wakes it up. The meter is built like a GPU's: 200 times a second it looks whether the rank runs.
#
# **Predict.** Rank 0 computes in 0.1 s of every 0.4 s. If it waits as NCCL does, for how many percent of the time does it run, by that meter?

# %%
busy_guess = predict("16.busy", "Rank 0 runs, says the meter?", yours=None, unit="%")


# %%
def lopsided(spin):
    """What this rank did and when, and what its meter says."""
    rank, numbers, did = launch.init(), torch.ones(4), []
    dist.barrier()
    with measure.running.watched() as meter:
        for _ in range(3):
            start = time.time()
            if rank.rank == 1:
                time.sleep(0.3)  # the disk
                did.append(("reading", start, time.time()))
            start = time.time()
            while time.time() < start + 0.1:
                numbers @ numbers  # computing
            did.append(("computing", start, time.time()))
            start, work = time.time(), dist.all_reduce(numbers.clone(), async_op=True)
            while spin and not work.is_completed():
                pass  # "has the flag changed?"
            work.wait()
            did.append(("waiting", start, time.time()))
    return did, meter.percent


# %%
spins = launch.run(lopsided, True, ranks=2, stream=False)
sleeps = launch.run(lopsided, False, ranks=2, stream=False)
expect(100, spins[0][1], 0.5, "%", "waits as NCCL does", yours=busy_guess)
expect(100 * 0.1 / 0.4, sleeps[0][1], 0.7, "%", "waits as Gloo does")
print(f"and rank 1, while rank 0 waits as NCCL does: {spins[1][1]:.0f} %")
assert spins[0][1] > max(sleeps[0][1], spins[1][1])

# %%
(rank_0, _), (rank_1, _) = spins
meter = [("busy, says the meter", rank_0[0][1], rank_0[-1][2])]
figures.who_did_what(
    {"rank 0": rank_0, "its meter": meter, "rank 1": rank_1},
    "Rank 0 is busy all the time, and waits for three quarters of it",
)

# %% [markdown]
# **Explain.** The same work, the same waiting, and one meter says 100 and the other 25. The second is how much rank 0 had to do. A GPU has only the first kind of meter: it cannot tell a kernel that computes from one that asks for a flag. So the *slow*
# rank is the one whose meter shows less than 100, because it is the only one that waits for something else, a disk, and not for a flag.
#
# That turns the reading of `pmon` around. A job hangs on four GPUs. (This output is built. It shows what users tell: 100 % on every GPU but one.)

# %%
print(output("nvidia-smi_pmon_hang").shown)

# %% [markdown]
# **Predict.** Which GPU do you look at first?

# %%
suspect = predict("16.suspect", "GPU number?", yours=None)

# %%
rows = gpu_use.pmon(output("nvidia-smi_pmon_hang").text)
for sign in gpu_use.pmon_signs(rows):
    print(sign.sentence)
still = [row.gpu for row in rows if row.pid and not row.sm_percent]
expect(2, still[0], label="GPU", yours=suspect)

# %%
figures.meters(
    {f"GPU {row.gpu}": {"sm, %": row.sm_percent or 0} for row in rows},
    {"sm, %": 100},
    "A hang: three kernels ask for a flag, and one GPU runs none",
)

# %% [markdown]
# ### Better meters
#
# What does a GPU do that waits? It draws little power, and it reads no memory. `dmon` has both beside the utilization. Four H100s of 700 W at one moment (built as well):

# %%
samples = gpu_use.dmon(output("nvidia-smi_dmon").text)
readings = {
    f"GPU {one.gpu}": {
        "busy, %": one.sm_percent,
        "memory, %": one.memory_percent,
        "power, W": one.power_w,
    }
    for one in samples
}
full = {"busy, %": 100, "memory, %": 100, "power, W": 700}
figures.meters(readings, full, "nvidia-smi dmon: three GPUs show 100 %")

# %% [markdown]
# **Predict.** How many of these four GPUs compute at full speed?

# %%
computing = predict("16.computing", "GPUs at full speed?", yours=None)

# %%
for sign in gpu_use.dmon_signs(samples):
    print(sign.sentence)
at_work = [s for s in samples if s.power_w > 0.8 * 700]
expect(1, len(at_work), label="GPUs at full speed", yours=computing)

# %% [markdown]
# **Explain.** GPU 0. GPU 1 waits at 118 W. GPU 2 has nothing to do. GPU 3 computes, at 86 °C and with half the clock of its neighbours, so it is the one that GPU 1 may be waiting for. AMD's monitor has the same columns under other names:

# %%
print(output("amd-smi_monitor").shown)

# %% [markdown]
# The memory, 191.7 GB, tells that it is an MI300X, and its data sheet says 750 W:

# %%
for one in gpu_use.amd_smi(output("amd-smi_monitor").text):
    seen = {
        "busy, %": one.sm_percent,
        "memory, %": one.memory_percent,
        "power, W": one.power_w,
    }
title = "amd-smi monitor: busy, but with little power"
figures.meters({"MI300X": seen}, full | {"power, W": 750}, title)

# %% [markdown]
# From rough to fine, what to believe:
#
# | meter | says | with |
# |---|---|---|
# | utilization | some kernel ran | `nvidia-smi`, `pmon`, `dmon` |
# | power, memory traffic | whether it was a large kernel or a waiting one | `dmon`, `amd-smi monitor` |
# | SM active, tensor active, DRAM active | which *part* of the GPU worked, averaged over time | `dcgmi dmon -e 1002,1004,1005` (NVIDIA DCGM, *profiling metrics*) |
# | MFU | how much of the work was *yours* | chapter 5: FLOPs of the model over time and peak |
#
# Only the last cannot be raised by waiting.
#
# **Remember**
# - Utilization is the time in which some kernel ran. Waiting for other ranks is a kernel.
# - In a hang, the odd one out is the GPU that shows *less*.
# - Power and memory traffic tell waiting from working. MFU tells what you get.

# %% [markdown]
# ## 16.4 Ports, cables, RDMA
#
# A tensor of 1 GB goes from one server to another over TCP. Each byte passes the program's buffer and the buffer of the operating system's kernel, at both ends.
#
# **Predict.** Follow a byte from one GPU's memory to the other's. How many moves from one place to the next does it make? (The buffers are places, and the two network cards are, too.)

# %%
moved = predict("16.moves", "Moves over TCP?", yours=None)

# %% [markdown]
# Two of these moves are copies that a processor makes. What do they cost? Measured on your machine, over TCP to itself:

# %%
per_gb = min(measure.tcp.processor_s_per_byte() for _ in range(3)) * 1e9
cores = 25 * per_gb
print(f"{per_gb:.2f} s of a processor for 1 GB: at 25 GB/s, {cores:.0f} cores")
assert 0.02 < per_gb < 20

# %%
expect(3 + 1 + 3, label="moves", yours=moved)
figures.rdma_paths(per_gb)

# %% [markdown]
# **Explain.** At 25 GB/s, which is one port of 200 Gb/s, several cores would do nothing but copy, and eight ports would take eight times as many. (A real network costs more: your machine had no card to serve.) With **RDMA** (chapter 13) the program registers its buffer with the network card once. From then on the card reads and writes
# that memory itself, and the kernel sees nothing of it; this is also called **zero copy** (零拷贝). With GPUDirect RDMA the registered memory is the GPU's own. It needs three things, and each is one of the faults that you will look for:
#
# - a card that can do it, whose port is up: `ibstat`,
# - memory that stays where it is. The system may not move it to another place or to the disk, so it must be **locked** (锁定内存): `ulimit -l`,
# - for GPUDirect, a short way from GPU to card: `topo -m`.
#
# InfiniBand is a network made for this. RoCE does the same over Ethernet. Note 004 wants eight network cards of 200 Gb/s for eight GPUs "so that all of PCIe's bandwidth can leave the server".
#
# **Predict.** How many percent of a PCIe 4.0 ×16 slot (31.5 GB/s one way) does a port of 200 Gb/s take?

# %%
share = predict("16.share", "Percent of the slot?", yours=None, unit="%")

# %%
taken = hardware.HDR.bytes_per_s / hardware.PCIE4.bytes_per_s
expect(100 * 200 / 8 / 31.5, 100 * taken, 1e-6, "%", "share", yours=share)

# %% [markdown]
# **Explain.** 200 Gb/s are 25 GB/s: 79 %. So the note's eight cards let four fifths of it out, which is enough for its argument.
#
# ### Which port is slow
#
# Now the cluster of the beginning. One of its nodes has four ports. `ibstat` prints 17 lines for each; here is the last:

# %%
print("\n".join(output("ibstat_slow").shown.splitlines()[-19:]))

# %% [markdown]
# The four lines that count are `State`, `Physical state`, `Rate` and `Link layer`. `Rate` is in Gb/s, one way, of all lanes together. A parser takes them from all four ports:

# %%
found = ports.ibstat(output("ibstat_slow").text)
for sign in ports.port_signs(found):
    print(sign.sentence)
figures.bars(
    {port.name: port.gbit_per_s for port in found},
    {port.name: f"{port.gbit_per_s:g} Gb/s" for port in found},
    "One node, four ports: the rates that ibstat tells",
)

# %% [markdown]
# A cable has four **lanes** (通道), and `ibstatus` counts them. `200 Gb/sec (4X HDR)` is four of 50. The bad port:

# %%
print("\n".join(output("ibstatus_slow").shown.splitlines()[-9:]))

# %% [markdown]
# `1X HDR`: three of four lanes are gone. That is a plug or a cable, and no command can tell which of its two ends.
#
# ### What it costs
#
# In a ring every piece of the tensor passes over every link (chapter 6). So the ring is as fast as its slowest link, and everybody waits. First for real, in small: four ranks on your machine, a ring whose links sleep as long as 10 MB/s would take, and then with one link of 2.5 MB/s.


# %%
def ring_seconds(slow_rank):
    """An all-reduce of 1 MB round a ring of links; `slow_rank` sends at a quarter."""
    rank, numbers = launch.init(), torch.ones(250_000)
    peers = SlowPeers(2.5e6 if rank.rank == slow_rank else 10e6)
    times = []
    for _ in range(2):
        dist.barrier()
        start = time.perf_counter()
        ring.ring_all_reduce(numbers, peers)
        dist.barrier()
        times.append(time.perf_counter() - start)
    return min(times)


# %%
healthy = max(launch.run(ring_seconds, None, ranks=4, stream=False))
one_slow = max(launch.run(ring_seconds, 2, ranks=4, stream=False))
expect(4, one_slow / healthy, within=0.4, label="times as long")
took = {"four links of 10 MB/s": healthy, "one of them at 2.5 MB/s": one_slow}
figures.bars(took, "{:.2f} s".format, "An all-reduce of 1 MB by four ranks")

# %% [markdown]
# Now the numbers of the beginning: 4 GB, 64 ranks, HDR, one link of 50 Gb/s:

# %%
today = OneSlowLink(4e9, 64, hardware.HDR, slow_bytes_per_s=50e9 / 8)
print(f"yesterday {today.healthy_s:.2f} s, today {today.slow_s:.2f} s")
expect(today.factor, label="times as long", yours=slower)
figures.slow_ring(today)

# %% [markdown]
# **Explain.** The factor is the port's own, four, and not a 64th of it. It does not depend on how many other ranks there are. The bus bandwidth (chapter 6) has become 6.24 GB/s, and that is 50 Gb/s: nccl-tests prints the rate of the worst link, and does not say where it is.
#
# This was one ring, through one port of each rank. A server with eight GPUs has eight ports, and NCCL builds a ring through each. Try that in the panel:
#
# 1. Eight rings, and one bad port in one of them. What is the factor?
# 2. Why doesn't the number of rings help? Read "its ring left out": NCCL can be told to do without that port (section 16.6). What does it cost to lose one of eight ports on purpose?
# 3. One ring, 1 MB. Why does the slow link hurt so little now?

# %%
panel = panels.one_slow_link()
panel

# %%
panel.rings.value = 8
with_eight = panel.result
assert with_eight.factor > 3.9
expect(8 / 7, with_eight.without_s / with_eight.healthy_s, 0.02, label="without it")
panel.rings.value, panel.size_mb.value = 1, 1
assert panel.result.factor < 1.5
panel.size_mb.value = 4000

# %% [markdown]
# To question 2: in this model each ring carries an eighth of the bytes however slow it is, and all must be ready before the next step begins. Leaving it out costs 8/7, so 14 % in place of 290. To question 3: at 1 MB nearly all of the time is latency, which a slow link does not change:

# %%
sizes_mb = [2**power for power in range(-3, 13)]
factors = [
    (mb, OneSlowLink(mb * 1e6, 64, hardware.HDR, 50e9 / 8).factor) for mb in sizes_mb
]
figures.lines(
    {"one slow link of 64": factors},
    "MB that are all-reduced",
    "times as long as without the slow link",
    "Small messages find no slow link",
    doubling=(True, False),
)

# %% [markdown]
# So test with large messages.
#
# ### Words of four bytes
#
# How full is a port? The driver counts, in `/sys/class/infiniband/DEVICE/ports/1/counters/`. Read twice, ten seconds apart:

# %%
before, after = (
    port_counters.counters(output(name).text) for name in ("counters", "counters_later")
)
for name in ("port_xmit_data", "port_rcv_data", "symbol_error"):
    print(f"{name}: {before.values[name]:,} → {after.values[name]:,}")
for name in ("counters", "counters_later"):
    print(f"[{output(name).provenance}]")

# %% [markdown]
# **Predict.** `port_xmit_data` has grown by 15.25 billion in 10 s. How many GB/s does the port send?

# %%
rate = predict("16.words", "GB/s?", yours=None, unit="GB/s")

# %%
now = port_counters.rates(before, after, seconds=10)
expect(4 * 15.25 / 10, now.sent_bytes_per_s / 1e9, 1e-6, label="sent", yours=rate)
for sign in port_counters.rate_signs(now, link_bytes_per_s=50e9 / 8):
    print(sign.sentence)

# %% [markdown]
# The same counter read in two ways, beside what a port can send:

# %%
readings = {
    "taken for bytes": now.sent_bytes_per_s / 4,
    "words of 4 bytes": now.sent_bytes_per_s,
    "a port of 50 Gb/s": 50e9 / 8,
    "a port of 200 Gb/s": 200e9 / 8,
}
told = {name: f"{rate / 1e9:.2f} GB/s" for name, rate in readings.items()}
figures.bars(readings, told, "What the port sends, and what a port can")

# %% [markdown]
# **Explain.** These two counters count *words of four bytes* (the kernel's documentation of sysfs for InfiniBand). Who takes them for bytes reads 1.5 GB/s, a port at a quarter of its load, and looks elsewhere. It is 6.1 GB/s, which is full for 50 Gb/s. And `symbol_error`, bits that arrived wrong, grew by 14: the cable once more.
#
# Three counters stand at numbers that never change: 255, 65,535 and 4,294,967,295. They are full. Old counters have 8, 16 or 32 bits, stop at their end, and say nothing from then on:

# %%
for sign in port_counters.counter_signs(before):
    print(sign.sentence)

# %% [markdown]
# `mlnx_perf -i ib0 | grep rdma`, from the notes, reads the counters of the *network interface* once a second and converts them, to bytes and to bits:

# %%
print(output("mlnx_perf").shown)

# %% [markdown]
# The other commands of the notes, each with what it adds. `ibv_devices` and `ibv_devinfo` ask by the same library that NCCL uses, so what they can open NCCL can open too. In a container this is the test.

# %%
rdma_commands = ("ibstat", "ibv_", "rdma link", "mlnx_perf")
tables.how_to_read(*rdma_commands)

# %% [markdown]
# Three outputs, so that you have seen them. A port over Ethernet with packets of 1024 bytes where 4096 are possible:

# %%
print("\n".join(output("ibv_devinfo_small_mtu").shown.splitlines()[-11:]))

# %% [markdown]
# A container without a device, which is the most frequent of all:

# %%
print(output("ibv_devices_none").shown)

# %% [markdown]
# And a healthy pair, with the names of their network interfaces:

# %%
print(output("rdma_link").shown)

# %% [markdown]
# On Linux with network namespaces you can try it with a real slow link: `course demo pairwise --ranks 4 --two-nodes 50`, and again with 200.
#
# **Remember**
# - RDMA: the card reads registered, locked memory. No copies by a processor, no kernel.
# - One slow link of a ring makes everybody as slow as itself. The bus bandwidth tells its rate, not its place.
# - `ibstat` for the rate, `ibstatus` for the lanes. Compare with the neighbours.
# - `port_xmit_data` times four are bytes.

# %% [markdown]
# ## 16.5 Containers and pods
#
# A container begins with 64 MB of shared memory, and without a GPU and without a port, whatever the node has. A **container** (容器) is an ordinary process that sees only a part of its machine: its own files, its own network, its own `/dev`. So everything above can be healthy on the node and missing inside. The notes start one like this:

# %%
notes_line = """docker run -it --rm \\
  -v /hl/llama2:/root/llama2 -w /root/llama2 -v /opt/hyhal:/opt/hyhal \\
  --device=/dev/kfd --device=/dev/dri \\
  --security-opt seccomp=unconfined --cap-add=SYS_PTRACE \\
  --shm-size=16G --net=host llama2 bash"""
print(notes_line)

# %% [markdown]
# On the same page the notes use `nvidia-smi` and NCCL.
#
# **Predict.** How many of its options have no use on a server with NVIDIA's GPUs?

# %%
useless = predict("16.flags", "Options of no use with NVIDIA?", yours=None)

# %%
plain_line = notes_line.replace("\\\n", " ")
not_nvidia = [f for f in FLAGS if f.flag in plain_line and f.nvidia == "no"]
expect(3 + 1, len(not_nvidia), label="options", yours=useless)
for vendor in container.VENDORS:
    print(vendor, len(container.docker_signs(notes_line, vendor)), "remarks")

# %% [markdown]
# **Explain.** The line was written for Hygon's DCUs, whose driver follows AMD's: `/dev/kfd` and `/dev/dri` are its devices, and `/opt/hyhal` is the part of it that lies on the host. Those are three. The fourth is `seccomp=unconfined`, which AMD recommends for HPC and NVIDIA does not ask for. On a machine with NVIDIA's GPUs docker refuses the line, since there is no `/dev/kfd`. You mend it in exercise 16.4. The three vendors, side by side:

# %%
tables.flags()

# %% [markdown]
# Two of them open a door. `seccomp=unconfined` takes away docker's filter of system calls, and `SYS_PTRACE` lets a process look into others of the container. Take them to debug, on machines where you trust all who work there. And the outputs that you see when a device is missing:

# %%
print(output("docker_no_kfd").shown)
print()
print(output("docker_no_gpus").shown)

# %% [markdown]
# The second says that the NVIDIA Container Toolkit is not installed on the host: without it docker does not know what `--gpus` is.
#
# ### 64 MB
#
# `/dev/shm` is a folder that lies in memory, so processes of one machine use it to hand over data: **shared memory** (共享内存). Data loaders put whole batches there, and NCCL the messages between GPUs that have no better way. Docker gives 64 MB (Docker's reference of `--shm-size`; the size is 64 MiB). Is that little?
#
# Batches of 16 pictures, 3 × 224 × 224 numbers of fp32 each. The data loader has 4 workers, and each prepares 2 batches ahead (`prefetch_factor`, the default).
#
# **Predict.** How many MB lie in `/dev/shm` while one more batch is being trained on?

# %%
in_shm = predict("16.shm", "MB in /dev/shm?", yours=None, unit="MB")

# %% [markdown]
# Here is a program with this data loader. On Linux it can run where `/dev/shm` has exactly 64 MiB, without docker: a namespace of its own is what docker uses, too. (Elsewhere the cell shows what was recorded.)

# %%
program = """
import shutil, time, torch
from torch.utils.data import DataLoader, Dataset

class Pictures(Dataset):
    def __len__(self):
        return 192
    def __getitem__(self, number):
        return torch.zeros(3, 224, 224)

for workers in (2, 4):
    most = count = 0
    batches = DataLoader(Pictures(), 16, num_workers=workers, multiprocessing_context="fork")
    try:
        for batch in batches:
            count += 1
            time.sleep(1 if count == 1 else 0.1)  # training
            most = max(most, shutil.disk_usage("/dev/shm").used)
        print(workers, "workers:", count, "batches,", most, "bytes at most")
    except RuntimeError as error:
        print(workers, "workers:", count, "batches, then", str(error).splitlines()[-1])
    del batch
"""
obstacle = small_shm.obstacle()
if obstacle:
    print(f"Recorded elsewhere, since {obstacle}:")
    said = recorded("shm_64")
else:
    said = small_shm.printed([sys.executable, "-W", "ignore", "-c", program], 64)
print(said)

# %%
batch_mb = 16 * 3 * 224 * 224 * 4 / 1e6
two_workers = next(line for line in said.splitlines() if line.startswith("2 w"))
measured_mb = int(two_workers.split()[4]) / 1e6
expect((2 * 2 + 1) * batch_mb, measured_mb, within=0.25, label="2 workers", unit="MB")
expect((4 * 2 + 1) * batch_mb, label="4 workers", unit="MB", yours=in_shm)
assert "No space left on device" in said or "Bus error" in said

# %%
in_memory = {
    f"{workers} workers": {
        "prepared ahead": 2 * workers * batch_mb,
        "trained on": batch_mb,
    }
    for workers in (2, 4, 8)
}
figures.stacked_bars(
    in_memory,
    "Batches in /dev/shm, and docker's 64 MiB",
    "{:.1f} MB".format,
    colours={"prepared ahead": style.TEMPORARY, "trained on": style.COMPUTING},
    limit=("docker's /dev/shm", 64 * 2**20 / 1e6),
)

# %% [markdown]
# **Explain.** $(4 \cdot 2 + 1) \cdot 9.63 = 86.7$ MB, and 64 MiB are 67.1 MB. Two workers fit. With four the program gets through some batches and dies in the middle, and where it dies changes from run to run. PyTorch's error begins with shared memory and ends with `No space left on device`, and who reads only the end looks at the disk, which has plenty of space. Other programs ask for the memory and get it only when they write; those die of a `Bus error`, without another word. NCCL says it like this:

# %%
print(output("nccl_shm").shown)
for sign in nccl_log.nccl_signs(nccl_log.nccl_log(output("nccl_shm").text)):
    print("\n" + sign.sentence)

# %% [markdown]
# So `--shm-size=16G`, which is a limit and not a reservation, or `--ipc=host`. To look inside a running container: `df -h /dev/shm; ulimit -l`.

# %%
shm = container.shared_memory(output("df_shm").text)
locked = container.locked_memory_kbytes(output("ulimit").text)
for sign in container.memory_signs(shm, locked):
    print(sign.sentence)

# %% [markdown]
# The second sign is the other limit. A process may lock 64 kB, by old habit of Linux, and RDMA locks all that it sends. In docker: `--ulimit memlock=-1`.
#
# ### A pod
#
# Kubernetes runs containers in **pods** (容器组). What docker takes as options, a pod has as fields. The notes have the middle part of this one:

# %%
print(POD)

# %% [markdown]
# The node has four things that a container lacks until you pass them in. Above each arrow stands docker's option, below it the pod's field:

# %%
figures.container_wall(tables.GATES, "What a container gets only if you say so")

# %% [markdown]
# `requests` is what the scheduler looks for on a node, `limits` what the container gets at most. For processors and memory they may differ. Devices can't be shared out twice, so for these the two must be the same, and **limits** (资源限额) alone are enough; `requests` alone are refused (Kubernetes, *Extended resources*). The name behind `rdma/` is
# not a standard: whoever set up the device plug-in has chosen it. If it is misspelt, the pod waits for ever, and `kubectl describe pod` says why at its end:

# %%
print(output("kubectl_describe_pod_rdma").shown)
for sign in container.event_signs(output("kubectl_describe_pod_rdma").text):
    print("\n" + sign.sentence)

# %% [markdown]
# **Remember**
# - Devices, `/dev/shm`, locked memory, network: a container lacks all four until you give them.
# - `/dev/kfd`, `/dev/dri`: AMD and Hygon. `/opt/hyhal`: Hygon. `--gpus`: NVIDIA.
# - Shared memory: (workers × prefetch + 1) × batch. 64 MB are not enough.
# - In a pod: limits for GPU and RDMA, `IPC_LOCK`, an `emptyDir` in memory.

# %% [markdown]
# ## 16.6 What NCCL says
#
# NCCL chooses its network by itself, and tells nobody. If it finds no InfiniBand, it takes TCP over whatever Ethernet there is. From the 25 GB/s of HDR to the 3 GB/s of 25-gigabit Ethernet, that is a factor of eight, and no error. So let it talk once at the start of every large job:
#
# ```
# NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH torchrun …
# ```
#
# `INIT` is what it found, `NET` the network, `GRAPH` the rings and trees that it builds. (`TUNING` was in chapter 6.) Two logs:

# %%
print(output("nccl_socket").shown)

# %%
print(output("nccl_ib").shown)

# %% [markdown]
# Read the lines that begin with `NET/` and the one with `Using network`. The first machine goes over TCP, and one of the five interfaces that it would use is `virbr0`, a bridge to virtual machines that leads to no other node. (Newer NCCLs pass by `docker`, `lo` and `virbr` of themselves, if there is something else.) In the second all is as
# it should be. The parser's opinion:

# %%
for name in ("nccl_socket", "nccl_ib", "nccl_open_device", "nccl_memlock"):
    signs = nccl_log.nccl_signs(nccl_log.nccl_log(output(name).text))
    print(f"{name}:")
    for sign in signs:
        print("  -", sign.sentence)

# %% [markdown]
# Between which ranks does what travel? Lines with `via` say it, one for each channel: `P2P` is NVLink or PCIe inside the node, `SHM` the shared memory of section 16.5, `NET/IB` the network.

# %%
print(output("nccl_channels").shown)

# %% [markdown]
# ### Choosing ports
#
# Two variables choose: `NCCL_IB_HCA` the RDMA ports, `NCCL_SOCKET_IFNAME` the interfaces for TCP, over which ranks find each other even where the data goes by RDMA.
#
# **Predict.** A node has twelve ports, `mlx5_0` to `mlx5_11`. How many of them does `NCCL_IB_HCA=mlx5_1` choose?

# %%
chosen = predict("16.hca", "Ports?", yours=None)

# %%
twelve = [f"mlx5_{number}" for number in range(12)]
settings = ("mlx5_1", "=mlx5_1", "^mlx5_1", "^=mlx5_3", "=mlx5_0,mlx5_2")
choices = {setting: nccl_choice.chosen(setting, twelve) for setting in settings}
expect(3, len(choices["mlx5_1"]), label="ports", yours=chosen)
figures.chosen_ports(
    choices, twelve, "NCCL_IB_HCA, and the ports mlx5_… that it chooses"
)

# %% [markdown]
# **Explain.** Three: names are *prefixes*, and `mlx5_10` and `mlx5_11` begin so, too. A `=` before the names means exactly these, a `^` all others, `^=` all but exactly these. (NCCL's page of environment variables; the same rules hold for `NCCL_SOCKET_IFNAME`.) So the node of section 16.4 works on with `NCCL_IB_HCA=^=mlx5_3`, set on *all* nodes, since rings need
# the same ports everywhere. Take it out again when the cable is changed: a variable like this, forgotten in somebody's script, is how a healthy cluster loses a port in every node.
#
# ### The table of nccl-tests
#
# `all_reduce_perf -b 8 -e 8G -f 2 -g 1` measures NCCL alone, without your program. Two nodes, one H100 in each, and four ports of 400 Gb/s in each. The user expects $4 \cdot 50 = 200$ GB/s:

# %%
print(output("all_reduce_perf").shown)

# %% [markdown]
# **Predict.** In its last row, how many percent of *one* port, 50 GB/s, is the bus bandwidth?

# %%
of_port = predict("16.busbw", "Percent of one port?", yours=None, unit="%")

# %%
row = nccl_table.nccl_table(output("all_reduce_perf").text).rows[-1]
by_hand = 2 * (2 - 1) / 2 * row.size_bytes / row.time_s
busbw = row.bus_bytes_per_s
expect(100 * by_hand / 50e9, 100 * busbw / 50e9, 1e-3, "%", "share", yours=of_port)

# %%
table = nccl_table.nccl_table(output("all_reduce_perf").text)
figures.lines(
    {"measured": [(r.size_bytes / 2**20, r.bus_bytes_per_s / 1e9) for r in table.rows]},
    "size of the all-reduce, MiB",
    "bus bandwidth, GB/s",
    "The table as a curve",
    doubling=(True, False),
    level={"one port": 50, "four ports": 200},
)

# %% [markdown]
# **Explain.** 83 %, and the user reports 50 GB/s at larger sizes. That is one port, however many there are, and the reason stands in the first line of their `topo -m`: this GPU has *one* port at `PIX`, and the others at `SYS`. Even if they were near, its slot of PCIe 5.0 takes 63 GB/s one way. Ports are for the other GPUs. So compare with what a GPU can
# send, not with what a server has.
#
# From 80 % on at large sizes a link is well. First look at the last column, `#wrong`, which must be 0. And remember from section 16.4 what the table can't say: with one slow port in 64 it shows that port's rate on every rank. Section 16.9 finds out whose it is.
#
# **Remember**
# - `Using network Socket` where there is InfiniBand: many times as slow, and no error.
# - `NCCL_IB_HCA` takes prefixes; write `=` before the names.
# - Bus bandwidth at large sizes against one port, one way: from 80 % on it is well.

# %% [markdown]
# ## 16.7 Hangs
#
# A program that crashes says where. A program that hangs says nothing, and nothing ends it: NCCL gives up after 10 minutes, Gloo after 30 (the default timeouts of `init_process_group`). 64 GPUs at 2 dollars an hour cost 21 dollars in ten minutes, and a hang at night costs the night.
#
# What you want to know is always the same: *which rank is not where the others are, and on which line?* Five tools, from quick to thorough.
#
# **1. A barrier that names.** `dist.monitored_barrier` is a barrier with a short time limit that tells who did not come. It works with Gloo only, but a Gloo group can be had beside NCCL (`dist.new_group(backend="gloo")`). Rank 2 is a second late:


# %%
def late():
    """What the barrier says to this rank."""
    if launch.init().rank == 2:
        time.sleep(1)
    try:
        half_a_second = timedelta(seconds=0.5)
        dist.monitored_barrier(timeout=half_a_second, wait_all_ranks=True)
    except RuntimeError as error:
        return str(error)
    return "passed"


print(launch.run(late, ranks=3, stream=False)[0])

# %% [markdown]
# Only rank 0 knows. The others get an error of their connection to rank 0, and send you to its log.
#
# **2. A mismatch.** If all are in a collective, but not in the same one, `TORCH_DISTRIBUTED_DEBUG=DETAIL` lets the ranks compare each call before they make it. It is slow, so only to debug. Here rank 1 brings five numbers where the others have four:


# %%
def five():
    """All-reduces numbers, on one rank more of them."""
    rank = launch.init()
    dist.all_reduce(torch.ones(5 if rank.rank == 1 else 4))


try:
    launch.run(five, ranks=3, check_collectives=True, stream=False)
except launch.RankFailed as failure:
    print(str(failure).splitlines()[0])

# %% [markdown]
# **3. The stack of a living process.** `py-spy dump --pid` shows where a Python process stands, without stopping it. In a container it needs SYS_PTRACE. Recorded on our own machine, two ranks, one after the other:

# %%
print(output("py-spy_dump").shown)

# %% [markdown]
# Read the first line below each `Thread`. Process 3510 stands in `all_reduce`: it waits. Process 3511 stands in `forward`, line 4 of your program: it is waited for. On 64 ranks, look for the one stack that differs.
#
# **4. The flight recorder.** (飞行记录器) PyTorch can keep the last collectives of each rank in a ring buffer, with shapes and stacks: `TORCH_FR_BUFFER_SIZE=2000`, and `TORCH_NCCL_DUMP_ON_TIMEOUT=1` so that they are written when NCCL gives up. The command `torchfrtrace` compares the files of all ranks. `course diagnose` reads them too.
#
# **5. All of it together.** `launch.run(…, record=FOLDER)`, `course demo NAME --record FOLDER`, or `COURSE_RECORD=FOLDER` under torchrun, let each rank keep a page of itself, with its stack and its collectives. `course diagnose FOLDER` reads the pages and says one sentence.
#
# A real hang now. Three ranks train a model with FSDP2. In update 3, loading a batch takes forever on rank 2.


# %%
def load_batch(rank, step):
    """A batch, unless the file server does not answer."""
    if rank == 2 and step == 3:
        time.sleep(60)
    return torch.ones(2, 8)


def train():
    """Four updates of two units under FSDP2."""
    rank = launch.init()
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(2))
    )
    for unit in model:
        fully_shard(unit)
    fully_shard(model)
    for step in range(1, 5):
        batch = load_batch(rank.rank, step)
        model(batch).sum().backward()
        launch.report_step(step, 4)


# %% [markdown]
# **Predict.** Which rank will be named? And a second question. On rank 0 there are lines of Python between your line `model(batch)…` and the collective that it waits in: functions that called each other, one on top of the other, the **stack** (调用栈). With a bare `dist.all_reduce` there would be 2. How many are there under FSDP2?

# %%
named = predict("16.named", "The rank that is named?", yours=None)
depth = predict("16.depth", "Lines between yours and the collective?", yours=None)

# %%
folder = Path(tempfile.mkdtemp(prefix="clinic_"))
try:
    launch.run(train, ranks=3, timeout_s=5, stream=False, record=folder)
except launch.RankFailed as failure:
    print(str(failure).splitlines()[0])

# %% [markdown]
# This is all that a time limit knows: nobody came back. `course diagnose` on the same folder:

# %%
diagnosis = diagnosing.diagnose(folder)
print(diagnosis.report())

# %% [markdown]
# (A cell has no name, so its lines stand under a number. In a program of yours there would be `train.py:4`.)

# %%
expect(2, diagnosis.finding.ranks[0], label="rank", yours=named)

# %%
stacks = [record.stack for record in reading.read(folder).records]
shutil.rmtree(folder)
stack = stacks[0]
own = max(place for place, line in enumerate(stack) if line.own)
expect(len(stack) - own - 1, label="lines", yours=depth)
assert len(stack) - own - 1 >= 8

# %% [markdown]
# The three stacks side by side, from your first line at the bottom to where each rank stands at the top. Compare the tops.


# %%
def drawn(stack):
    """Names of the functions from your first line on, and whose they are."""
    first = next(place for place, line in enumerate(stack) if line.own)
    return [
        (
            line.function,
            "yours" if line.own else "communication" if line.torch else "torch",
        )
        for line in stack[first:]
    ]


figures.rank_stacks(
    {f"rank {rank}": drawn(stack) for rank, stack in enumerate(stacks)},
    "Three ranks hang: two wait, one is waited for",
)

# %% [markdown]
# **Explain.** Note 001 says that FSDP, "deeply integrated", is harder to debug than plain data parallelism, and this is the measure of it. Your line does not speak of communication at all. Below it lie modules that call modules, the hook that FSDP2 has put before each unit, a wrapper that keeps the compiler out, the unshard, the gather: in torch 2.13 eighteen
# lines. DDP has only three in its backward pass, all of autograd, but then nothing: its all-reduce is started by C++, and Python's stack ends at `backward()`. And on a GPU the backward pass runs on a thread of autograd's own (PyTorch, *Autograd mechanics*), whose stack does not contain your line at all.
#
# Two habits make up for it. Read a stack from the *inside*, and stop at the first line of your own. And compare ranks, not lines: one of the stacks is different.
#
# How far can you trust such a sentence? It was tried on 525 launches, most of them with a fault put in at random, some of them healthy: 523 times it was right in cause, rank and line (`benchmarks/README.md`). Where two ranks call different things, and nothing shows which is wrong, it says so and accuses neither. Try it on the faults of the demo, from `kill` to `cycle`:
#
# ```
# course demo faults --kind loader --ranks 3 --timeout 6 --record here
# course diagnose here
# ```
#
# **Remember**
# - A hang has one question: which rank is elsewhere, and where?
# - Barrier that names, DETAIL, py-spy, flight recorder, `course diagnose`: from quick to thorough.
# - From the inside of a stack to the first line of your own. Then compare the ranks.

# %% [markdown]
# ## 16.8 Is it a bug or rounding?
#
# A small model, one GPU, and beside it the same training with TP 2. The losses are close, but not equal. Is that within what one must expect, or does something fail in silence? So asks issue 1736 of Megatron-LM, and issue 1754 nine days later, and others after them. Here is
# the question in small. The demo `one_update` writes all tensors of one update into a folder: weights, the output of each module, the loss, and the gradients of all of them. Once by one process, and twice by two tensor-parallel ranks with the same weights and samples. One of
# the two is right. In the other, one layer has a bug:

# %%
runs = Path(tempfile.mkdtemp(prefix="course_runs_"))


def one_update(name, ranks=2, **options):
    return demos.run(
        "one_update", ranks=ranks, stream=False, folder=str(runs / name), **options
    )


alone = one_update("alone", ranks=1)
right = one_update("right", technique="tp")
broken = one_update("broken", technique="tp", fault="no_f")

# %% [markdown]
# The bug is the one that everybody makes who writes tensor parallelism for the first time. Before an MLP stands the function f. Forward it does nothing, backward it adds up the gradients of all ranks (chapter 10). Somebody has forgotten the adding up, in one layer.
#
# **Predict.** The loss of one process is 4.79. By how many percent does the loss of the broken run differ from it?

# %%
loss_gap = predict("16.loss_gap", "Percent?", yours=None, unit="%")

# %%
for run in (alone, right, broken):
    print(f"{Path(run.folder).name:<7}{run.loss:.7f}")
gap = 100 * abs(broken.loss - alone.loss) / alone.loss
assert gap < 1e-4
expect(0, round(gap, 3), label="loss off by", unit="%", yours=loss_gap)

# %% [markdown]
# **Explain.** By nothing at all. f does nothing in the forward pass, so the loss of the first update is right. Only from the second update on, when wrong gradients have changed the weights, can the loss differ.
# So the loss is a poor witness. It comes late, and it says neither where nor why. Look at what it is made of, tensor by tensor:

# %%
compared = comparing.compare(runs / "alone", runs / "broken")
print(compared.report())

# %%
assert compared.diverging.title == "gradient of the output of blocks.1.norm2"
assert "an all-reduce is missing" in compared.diverging.looks_like
healthy = comparing.compare(runs / "alone", runs / "right")
assert healthy.verdict == "rounding"
figures.tensor_by_tensor(
    {"the right run": healthy.tensors, "the broken run": compared.tensors},
    "Two ranks against one process: all tensors of one update, in order",
)

# %% [markdown]
# Each mark is one tensor, and its height says how many times the typical rounding it is off. All tensors of the forward pass agree. On the way back they agree down to the MLP of layer 1; the gradient of what goes *into* that MLP does not. That is where f stands. And one line more: taken alone, each rank's gradient is wrong; their *sum* is right. So what is missing is an all-reduce.
#
# In a terminal it is three lines:
#
# ```
# course demo one_update --ranks 1 --folder alone
# course demo one_update --ranks 2 --technique tp --fault no_f --folder broken
# course compare alone broken
# ```
#
# ### How large is rounding?
#
# Where does the column `rounding` of the table come from? A number in fp32 has 24 binary digits. Rounding it changes it by at most half of the last one, relative to its size by at most $u = 2^{-24}$, the **unit roundoff** (单位舍入误差). Other formats have fewer digits:

# %%
units = {
    dtype: rounding.unit_roundoff(dtype)
    for dtype in ("fp32", "fp16", "bf16", "fp8_e4m3")
}
told = {dtype: f"1 / {round(1 / unit):,}" for dtype, unit in units.items()}
figures.bars(units, told, "Rounding one number: u", style.PALE, tens=True)

# %% [markdown]
# bf16 has 8: each number is off by up to 0.4 %. That is one rounding. A sum of $n$ numbers makes $n - 1$ of them. If all went the same way, they would add up to about $n \cdot u$, and no order of summation does worse than $\gamma_n = nu/(1-nu)$ (Higham 2002, *Accuracy and Stability of Numerical Algorithms*, section 3.1). But some
# go up and some go down. As in a random walk, what is left is typically $\sqrt{n} \cdot u$ (Higham and Mary 2019).
#
# **Predict.** 4,096 numbers are added up one after the other in fp32. Typically off by how many millionths?

# %%
typical = predict("16.sum", "Millionths?", yours=None)

# %%
torch.manual_seed(0)
numbers = torch.rand(4096, 1000)  # 1,000 sums
total, so_far = torch.zeros(1000), {}
for count, row in enumerate(numbers, 1):
    total += row
    if count.bit_count() == 1:  # 1, 2, 4, …
        so_far[count] = total.clone()


def off(sums, count):
    """How far the sums of the first numbers are off, relative to their size."""
    exact = numbers[:count].double().sum(0)
    return ((sums - exact) / exact).square().mean().sqrt().item()


# %%
one_by_one = off(total, 4096)
expect(
    1e6 * rounding.typical_sum_error(4096, "fp32"),
    1e6 * one_by_one,
    within=0.9,
    label="millionths",
    yours=typical,
)

# %% [markdown]
# **Explain.** $\sqrt{4096} \cdot 2^{-24} = 3.8$ millionths. Measured it is a quarter of that, since not every rounding is as bad as $u$. The formula says how large, not exactly how much.

# %%
counts = [2**power for power in range(4, 13)]
by_torch = [off(numbers[:n].T.contiguous().sum(1), n) for n in counts]
assert by_torch[-1] < one_by_one / 10
errors = {
    "the bound": [rounding.sum_bound(n, "fp32") for n in counts],
    "typical, √n · u": [rounding.typical_sum_error(n, "fp32") for n in counts],
    "one by one": [off(so_far[n], n) for n in counts],
    "torch.sum": by_torch,
}
figures.lines(
    {
        name: [(n, 1e6 * error) for n, error in zip(counts, found, strict=True)]
        for name, found in errors.items()
    },
    "numbers in a sum",
    "millionths by which it is off",
    "Sums in fp32: two formulas, and two that were measured",
    doubling=(True, True),
)

# %% [markdown]
# `torch.sum` adds up blocks, and then the blocks. A matrix product on a GPU does likewise. This is also why tensor parallelism *must* change the result: two ranks add up two halves and then the two sums. That is another order of the same additions, and none of the two is the right one.
#
# One rounding more comes at each step of a network. So `course compare` expects $\sqrt{k}$ times as much after $k$ tensors as after one. Up to 4 times the expected size it says "rounding", above 16 times "more than rounding", and between the two "don't know". These two factors are conventions. The benchmark of the course
# (benchmarks/README.md) has the price: of 120 right runs on 2 and 4 ranks none was accused, of 360 runs with 14 kinds of bugs it named the right tensor in 340. And the other 20?
#
# ### A bug that hides
#
# A layer norm divides by $\sqrt{\text{variance} + \varepsilon}$. PyTorch's $\varepsilon$ is $10^{-5}$. Some models were trained with $10^{-6}$; load such a model with the other value, and everything seems to work. Both runs once in fp32 and once in bf16:
#
# **Predict.** In one of the two the comparison says "rounding". How many bits has a number there, 16 or 32?

# %%
hidden = predict("16.hidden", "16 or 32?", yours=None)

# %%
found = {}
for precision in ("fp32", "bf16"):
    one_update(f"{precision} alone", ranks=1, precision=precision)
    one_update(f"{precision} eps", technique="tp", fault="eps", precision=precision)
    found[precision] = comparing.compare(
        runs / f"{precision} alone", runs / f"{precision} eps"
    )
    print(f"{precision}: {found[precision].verdict}")

# %%
expect(16, label="hidden in", yours=hidden)
assert found["fp32"].diverging.title == "output of blocks.1.norm1"
assert found["bf16"].verdict == "rounding"
shutil.rmtree(runs)
figures.tensor_by_tensor(
    {f"in {precision}": one.tensors for precision, one in found.items()},
    "The same bug in two precisions",
)

# %% [markdown]
# **Explain.** In both runs the bug is the same, and only the rounding that it is measured by differs. The bug changes the norm's output by 0.013 %. In fp32 that is forty times what rounding does there. In bf16 each single number is rounded by up to 0.4 %, and the bug drowns. No method can find it there, however clever. This is the most useful thing to know about the question, and it needs no program:
#
# > **Record both runs once more with more digits.** From bf16 to fp32 rounding becomes 65,536 times smaller. A bug stays as large as it is.
#
# So debug in fp32, even if you train in bf16, with a model of two layers and on the CPU if it must be. What shows only in bf16 is then a matter of bf16 alone, such as a sum that somebody accumulates in 16 bits.
#
# ### Why the first update?
#
# Take two runs that are both right. One process, the same samples; the second computes the loss of each half of the batch and takes the mean of the two, which is another order of the same sum.
#
# **Predict.** At the first update the losses agree to 0.00001 %. By up to how many percent do they differ between update 250 and 300?

# %%
apart = predict("16.apart", "Percent, at most?", yours=None, unit="%")


# %%
def in_halves(model, batch):
    return sum(mean_loss(model, rows_of(batch, half, 2)) for half in range(2)) / 2


tiny = {"model": "2x32x2", "sequence": 16, "batch": 4}
long_run = Training(**tiny, steps=300, learning_rate=1e-2)
whole = one_process(long_run).losses
halves = one_process(long_run, loss_of=in_halves).losses
gaps = [abs(b / a - 1) for a, b in zip(whole, halves, strict=True)]
figures.loss({"the whole batch": whole, "in halves": halves})

# %% [markdown]
# By eye that is one curve. How far are the two apart?

# %%
last = max(gaps[250:])
assert max(gaps[:50]) < 1e-6 < last
expect(100 * last, label="at most", unit="%", yours=apart)
tenths = [(start + 10, max(gaps[start : start + 10])) for start in range(0, 300, 10)]
figures.lines(
    {"halves or whole": [(update, 1e6 * gap) for update, gap in tenths if gap]},
    "update",
    "the losses differ by, millionths (largest of ten updates)",
    "Two right runs",
    doubling=(False, True),
    level={"one percent": 1e4},
)

# %% [markdown]
# **Explain.** For a hundred updates nothing happens, and then the difference grows by factors, to some percent. (Theory has no formula here: the number is the measured one, and your machine's differs.) Training at a high learning rate amplifies small differences, as weather does. Both runs are right, and
# neither is *the* right one. Hence two loss curves that part after 2,000 updates prove nothing, and two that stay together prove little. Compare the first update, before anything has been amplified.
#
# ### Your own model
#
# `comparing.record` hooks itself into any model, on any number of ranks; each rank writes what it has. Give the run of one process first:
#
# ```python
# with comparing.record(model, "two") as run:   # "one" in the run of one process
#     loss = loss_of(model(inputs), labels)
#     run.loss(loss)
#     loss.backward()
# ```
#
# Then `course compare one two`. A tensor may be whole on every rank, or cut along any dimension, in one part or in three as q, k and v are; it tries all of these and takes what fits. DTensors are made whole. With samples of its own, a rank's loss is a mean over those, and the comparison knows that, too, also where pairs of ranks share each matrix and the pairs have their own samples. What it can't read
# it lists as "not compared": look at how long that list is. The weights must be the same, so load both from one checkpoint, and switch dropout off.
#
# The idea is not ours. TTrace does this for Megatron-LM, with bounds that it measures by small perturbations, and found 11 known and 3 new bugs there (arXiv:2506.09280). The list of bugs of our demo, `course demo one_update --help`, is a good exercise: let somebody else choose one, and find it.
#
# **Remember**
# - One rounding: $u$. A sum of $n$: typically $\sqrt{n} \cdot u$. Another order gives another result, and both are right.
# - First update, tensor by tensor. The first tensor that differs is where the bug is.
# - If in doubt, more digits: rounding shrinks, a bug stays.

# %% [markdown]
# ## 16.9 Stragglers, and whose fault it is
#
# Nothing hangs, nothing is wrong, it is only slow. One of 64 ranks computes 10 % more slowly than the others: a warm corner of the rack. Together they have lost 0.14 % of their speed.
#
# **Predict.** By how many percent do the *steps* get longer, if nothing but computing takes time?

# %%
longer = predict("16.straggler", "Percent longer?", yours=None, unit="%")

# %%
shared = stragglers.shared_work_factor(64, 0.1)
factor = stragglers.straggler_factor(0.1)
expect(100 * (factor - 1), label="longer", unit="%", yours=longer)

# %%
ranks = [2**power for power in range(11)]
divided = [(n, 100 * (stragglers.shared_work_factor(n, 0.1) - 1)) for n in ranks]
figures.lines(
    {"equal work": [(n, 100 * (factor - 1)) for n in ranks], "work by speed": divided},
    "ranks, of which one is 10 % slower",
    "% by which a step gets longer",
    "One of them is enough",
    doubling=(True, False),
    mark={"64 ranks": 64},
)

# %% [markdown]
# **Explain.** Ten. All ranks get equal work and wait for the last one, who is called a **straggler** (掉队者). A step takes the *maximum* over the ranks and not their mean. In small, with four ranks that compute for 50 ms, and one of them half as long again:


# %%
def steps(slower):
    """Seconds of one update, and what this rank did when; rank 2 is `slower`."""
    rank, numbers, did = launch.init(), torch.ones(4), []
    dist.barrier()
    for _ in range(6):
        start = time.time()
        time.sleep(0.05 * (1 + slower * (rank.rank == 2)))
        computed = time.time()
        dist.all_reduce(numbers)
        did.append(("computing", start, computed))
        did.append(("waiting", computed, time.time()))
    return (did[-1][2] - did[0][1]) / 6, did


# %%
alike, lagging = (
    launch.run(steps, slower, ranks=4, stream=False) for slower in (0.0, 0.5)
)
print(f"{1000 * alike[0][0]:.0f} ms, with a straggler {1000 * lagging[0][0]:.0f} ms")
longer_by = lagging[0][0] / alike[0][0]
expect(stragglers.straggler_factor(0.5), longer_by, within=0.25, label="factor")

# %%
figures.who_did_what(
    {f"rank {rank}": did for rank, (_, did) in enumerate(lagging)},
    "Six updates, with a straggler",
)

# %% [markdown]
# It needs no broken part. If every rank takes 100 ms, give or take 2 ms at random, then one of them is always late.
#
# **Predict.** How long is the average step of 64 such ranks?

# %%
average = predict("16.noise", "Milliseconds?", yours=None, unit="ms")

# %%
torch.manual_seed(0)
times_ms = 100 + 2 * torch.randn(20_000, 64)  # steps, ranks
last_ms = times_ms.max(dim=1).values
drawn = last_ms.mean().item()
by_theory = 1000 * stragglers.expected_slowest_s(64, 0.1, 0.002)
expect(by_theory, drawn, within=0.002, label="step", unit="ms", yours=average)


# %%
def shares(values):
    """In how many percent of the steps a value lay in each half of a millisecond."""
    counts = torch.histc(values, bins=40, min=91.75, max=111.75).tolist()
    return [(92 + n / 2, 100 * many / 20_000) for n, many in enumerate(counts)]


figures.lines(
    {"one rank": shares(times_ms[:, 0]), "the last of 64": shares(last_ms)},
    "ms for a step",
    "% of 20,000 steps",
    "The last one is never early",
    mark={f"{drawn:.1f} ms": drawn},
)

# %% [markdown]
# The more ranks, the later the last one:

# %%


def later_ms(ranks, noise_ms):
    return 1000 * stragglers.expected_slowest_s(ranks, 0.1, noise_ms / 1000) - 100


sizes = [2**power for power in range(13)]
figures.lines(
    {
        f"± {noise_ms} ms": [(ranks, later_ms(ranks, noise_ms)) for ranks in sizes]
        for noise_ms in (2, 4, 8)
    },
    "ranks",
    "ms by which a step is longer than the 100 ms of one rank",
    "Nothing is broken, and someone is always late",
    doubling=(True, False),
    mark={"64 ranks": 64},
)

# %% [markdown]
# **Explain.** 104.7 ms: the largest of 64 normal values lies 2.34 deviations above their mean on average, and 3.24 of 1,024. So a large job is a little slower than a small one, with every part in order.
#
# ### Naming it
#
# Who is it? The time of a step is the same on all ranks. The time *inside the collective* is not.
#
# **Predict.** Add up for each of the four ranks above how long it waited. Which rank has waited least?

# %%
least = predict("16.least", "Rank?", yours=None)

# %%
waited = [
    sum(end - start for what, start, end in did if what == "waiting")
    for _, did in lagging
]
expect(2, waited.index(min(waited)), label="rank", yours=least)
figures.stacked_bars(
    {
        f"rank {rank}": {
            "computing": 6 * lagging[rank][0] - seconds,
            "waiting": seconds,
        }
        for rank, seconds in enumerate(waited)
    },
    "Six updates: the sums are alike, their parts are not",
    lambda seconds: f"{1000 * seconds:.0f} ms",
    colours={"waiting": style.IDLE},
)

# %% [markdown]
# **Explain.** The straggler comes last, so it waits least: section 16.3 once more. Log both times on each rank, computing and waiting, and look for the rank that never waits. A monitor of the whole step sees nothing.
#
# If the network is slow, ranks don't help, and you test pairs. A pair is fast only if both ends and the way between them are. You could test all pairs, but you need not.
#
# **Predict.** 64 ranks; in each round every rank is in one pair. All pairs take 63 rounds. How many rounds are enough to name one slow rank, if it meets ranks at distance 32, 16, 8, …, 1?

# %%
enough = predict("16.rounds", "Rounds?", yours=None)

# %%
expect(6, len(pairwise.rounds(64)), label="rounds", yours=enough)
sizes = [2**power for power in range(2, 7)]
figures.lines(
    {
        "all pairs": [(n, len(pairwise.rounds(n, "all"))) for n in sizes],
        "halving": [(n, len(pairwise.rounds(n))) for n in sizes],
    },
    "ranks",
    "rounds",
    "Rounds until a slow rank has a name",
    doubling=(True, True),
)

# %% [markdown]
# The demo does it on real ranks, four of them. Rank 2 sends 10 ms late:

# %%
tested = demos.run("pairwise", ranks=4, stream=False, slow="2", slow_ms=10.0, passes=2)
print(tested.found.explain())
assert tested.found.groups == ((2,),)
figures.pair_rates(tested.tests, tested.found, "Four ranks, two rounds")

# %% [markdown]
# **Explain.** Two rounds for four ranks. Pairs without rank 2 are fast, and all pairs with it are slow; so it is the rank, not a link. If only one pair were slow, it would be the way between the two, and if all pairs between two halves were slow, it would be what joins the halves, a switch for instance. Halving has a blind spot: two ranks that
# never meet can't be tested. `--schedule all` meets everybody.
#
# Without such a program you can halve the job itself: run all_reduce_perf on one half of the nodes, then on the other, then on the halves of the slow half, and so on: six rounds for 64 nodes.
#
# **Remember**
# - A step takes the maximum over the ranks: one of 64 at 10 % costs 10 %.
# - The straggler is the rank that waits least.
# - Pairs: all with one rank slow, the rank; one pair slow, the link; all between two halves, what joins them.

# %% [markdown]
# ## 16.10 Two nodes slower than one
#
# A model of 1.54 billion parameters (Qwen2-1.5B) is fine-tuned with ZeRO stage 3. On one node with 2 GPUs an iteration takes 2.46 s. On two nodes with 2 GPUs each it takes **8.68 s** (issue 5770 of DeepSpeed). Twice the hardware, and less than a third of the speed. The author suspected the network, computed
# its load and wrote that it was not to blame. Was it?
#
# The bytes are those of chapter 8. Under stage 3 each rank sends three times $\frac{n-1}{n}$ of the weights for each micro-batch: two gathers and a reduce-scatter.
#
# **Predict.** Four ranks, weights and gradients of 2 bytes each. If all the extra time is the network's, how many Gbit/s does it carry?

# %%
carried = predict("16.carried", "Gbit/s between the nodes?", yours=None, unit="Gbit/s")

# %%
sent_bytes = zero.sent_bytes(1_540_000_000, 3, 4, Recipe())
extra_s = 8.68 - 2.46
print(f"{sent_bytes / 1e9:.1f} GB in {extra_s:.2f} s")
expect(8 * sent_bytes / extra_s / 1e9, unit="Gbit/s", label="carried", yours=carried)

# %%
figures.stacked_bars(
    {
        "1 node, measured": {"one node": 2.46},
        "2 nodes, measured": {"one node": 2.46, "what came with the second": extra_s},
        "over 10 Gbit/s": {"the bytes alone": 8 * sent_bytes / 10e9},
        "over 200 Gbit/s": {"the bytes alone": 8 * sent_bytes / 200e9},
    },
    "One iteration, and what its bytes take on two networks",
    "{:.2f} s".format,
    colours={
        "one node": style.COMPUTING,
        "what came with the second": style.IDLE,
        "the bytes alone": style.MESSAGES,
    },
)

# %% [markdown]
# **Explain.** 6.9 GB in 6.2 s are 8.9 Gbit/s: what an Ethernet port of 10 Gbit/s really carries. (We read "iteration" as one micro-batch. The issue doesn't name the port; only the arithmetic is ours.) So *nothing is broken there*. The network is as fast as it was sold, and still far too slow for this job. Keep the two
# questions apart, for they have different remedies:
#
# 1. Does a link carry less than it should? Find it, and repair it.
# 2. Are all links well, and is it still not worth it? Then change the job.
#
# ### On two nodes of your own
#
# `--two-nodes 50` builds two nodes inside one Linux machine and joins them by a link of 50 Mbit/s (section 6.8). DDP trains a GPT with 0.8 million parameters there, one rank on each node. Not every machine allows that, so here is a recorded run. (Where it is not possible, `course demo ddp --two-nodes 50` says why.)
#
# **Predict.** An update takes 0.045 s on one node. The gradients are 3.3 MB. How many seconds does an update take on two nodes?

# %%
update_s = predict("16.update", "Seconds for an update?", yours=None, unit="s")

# %%
measured = json.loads(recorded("two_nodes_seconds"))
print(recorded("two_nodes").split("\n\n")[4])

# %%
wire = hardware.Link("50 Mbit/s", 50e6 / 8, 0.0)
gradient_bytes = measured["gradient_bytes"]
exchange_s = collectives.seconds("all-reduce", gradient_bytes, 2, wire)
two = MoreNodes(measured["1 node"], exchange_s, same_batch=False)
expect(
    two.many_s,
    measured["2 nodes, 50 Mbit/s"],
    within=0.3,
    label="update",
    unit="s",
    yours=update_s,
)

# %% [markdown]
# **Explain.** An all-reduce over two ranks sends $\frac{2(n-1)}{n} = 1$ times the gradients over the link, 3.3 MB at 6.25 MB/s: 0.53 s, whatever the processors do. What is left of the gap has other reasons: both "nodes" share one machine's memory, and the link counts headers, too. Over 200 Mbit/s the exchange takes a quarter:

# %%
parts = {}
for name, exchange in {
    "1 node": 0,
    "2 nodes, 200 Mbit/s": exchange_s / 4,
    "2 nodes, 50 Mbit/s": exchange_s,
}.items():
    rest_s = measured[name] - measured["1 node"] - exchange
    parts[name] = {
        "computing": measured["1 node"],
        "exchange, by theory": exchange,
        "the rest": rest_s,
    }
figures.stacked_bars(
    parts,
    "One update, measured, and what theory explains of it",
    "{:.3f} s".format,
    colours={"exchange, by theory": style.MESSAGES, "the rest": style.IDLE},
)

# %% [markdown]
# Each update on two nodes uses twice as many samples. So what counts are samples per second, and here two nodes do it slower than one:

# %%
speedups = {
    name: (1 if name == "1 node" else 2) * measured["1 node"] / measured[name]
    for name in parts
}
assert speedups["2 nodes, 50 Mbit/s"] < 1
title = "Samples per second, times those of one node"
figures.bars(speedups, "{:.2f}".format, title, style.COMPUTING)

# %% [markdown]
# ### First: is a link slow?
#
# The step time doesn't say which link. Pairs of ranks do (section 16.9). Four ranks, two on each node: every pair is tested several times, the fastest time counts, and the grid of rates shows where it is slow.
#
# **Predict.** Four ranks make six pairs. How many of the six are slow?

# %%
slow_pairs = predict("16.slow_pairs", "Slow pairs?", yours=None)

# %%
matrix = recorded("two_nodes_pairs")
tests = [
    pairwise.PairTest(first, first + 1 + place, 1e6 * float(cell))
    for first, row in enumerate(matrix.splitlines()[3:6])
    for place, cell in enumerate(row.split()[1:])
]
slow = sum(test.bytes_per_s < 100e6 for test in tests)
expect(2 * 2, slow, label="slow pairs", yours=slow_pairs)

# %%
named_part = pairwise.name_slow(tests)
print(named_part.explain())
assert named_part.groups == ((0, 1), (2, 3))
figures.pair_rates(tests, named_part, "Two nodes of two ranks, joined by 50 Mbit/s")

# %% [markdown]
# **Explain.** The four that cross. Fast pairs join ranks into groups, {0, 1} and {2, 3}; all slow ones lie between the groups; so what joins the groups is to blame, no rank and no port of a single one. In a cluster run the same with one rank on each port: `torchrun … -m course_lib.demos pairwise`. Compare the rate that it names with that of
# the data sheet, in bytes and one way. 50 Mbit/s are 6.25 MB/s, and 5.9 of them arrive as tensors. So this link does what it was sold for. The second question, then.
#
# ### Second: is it worth it?
#
# With the same samples for each node (weak scaling) two nodes win if an update takes less than twice as long:
#
# $$c + x < 2c \quad\Longleftrightarrow\quad x < c$$
#
# where $c$ is what a node computes for an update and $x$ what shows of the exchange. If the two nodes divide one batch (strong scaling), each computes $c/2$, and two nodes win if $\frac{c}{2} + x < c$, that is, $x < \frac{c}{2}$. In general, with $n$ nodes: $x < (n-1)c$, and $x < \frac{n-1}{n}c$. The right hand side grows with the
# batch, the left one doesn't. So there is always a batch from which on it pays:

# %%
for same_batch in (False, True):
    more = MoreNodes(measured["1 node"], exchange_s, same_batch=same_batch)
    kind = "strong" if same_batch else "weak"
    print(
        f"{kind}: {more.speedup:.2f} times, even at {more.break_even_batches:.1f} batches"
    )

# %% [markdown]
# A larger batch without more memory is accumulation (chapter 2): several micro-batches, one exchange. Over 200 Mbit/s two nodes reached 0.43 times the samples per second of one.
#
# **Predict.** With 8 micro-batches in an update: how many times those of one node, which accumulates 8 as well?

# %%
accumulated = predict("16.accumulated", "Times one node?", yours=None)

# %%
faster_s = collectives.seconds(
    "all-reduce", gradient_bytes, 2, hardware.Link("200 Mbit/s", 200e6 / 8, 0.0)
)
one_node_s = measured["1 node, 8 micro-batches"]
both_s = measured["2 nodes, 200 Mbit/s, 8 micro-batches"]
eight = MoreNodes(one_node_s, faster_s, same_batch=False)
expect(
    eight.speedup,
    2 * one_node_s / both_s,
    within=0.35,
    label="times one node",
    yours=accumulated,
)

# %% [markdown]
# The same for any number of micro-batches. Above the dashed line the second node pays:

# %%
curves = {}
for mbit, seconds in ((200, faster_s), (50, exchange_s)):
    speedups = [
        (n, MoreNodes(n * measured["1 node"], seconds, same_batch=False).speedup)
        for n in (1, 2, 4, 8, 16, 32)
    ]
    both = [
        2 * measured["1 node" + more] / measured[f"2 nodes, {mbit} Mbit/s" + more]
        for more in ("", ", 8 micro-batches")
    ]
    curves[f"{mbit} Mbit/s, theory"] = speedups
    curves[f"{mbit} Mbit/s, measured"] = [*zip((1, 8), both, strict=True)]
figures.lines(
    curves,
    "micro-batches in an update",
    "samples per second, times those of one node",
    "The batch decides",
    doubling=(True, False),
    level={"one node": 1.0},
)

# %% [markdown]
# **Explain.** From 0.43 to 1.2. The exchange is as long as before; what stands beside it is eight times as long. (Theory hoped for 1.5; the recording shared its two cores with other work.) Over 50 Mbit/s eight are not enough: the lines above ask for 12.
#
# What else moves the break-even? Everything that makes $x$ smaller, in the order in which to try it:
#
# | measure | what it does to the exchange |
# |---|---|
# | NCCL on the right network (`NCCL_DEBUG=INFO` says `NET/IB`, not `NET/Socket`; section 16.6) | often ten times the rate |
# | accumulation, or a larger micro-batch | the same bytes less often |
# | ZeRO stage 3 or FSDP only *within* a node (HSDP, chapter 9), or stage 2 | weights no longer cross the network in each micro-batch |
# | TP within the node only (chapter 10) | its all-reduces, several in each layer, stay inside |
# | bf16 gradients, local SGD (chapter 14) | half the bytes, or an exchange in every $k$-th update |
#
# In the case above accumulation alone would not help: under stage 3 the gathers come with each micro-batch. Stage 2 or a hybrid shard would.
#
# **Remember**
# - Compare samples per second, not seconds per update.
# - First test pairs: they name the slow rank, link or half. Then compare with the data sheet.
# - Two healthy nodes beat one only if $x < c$, or $x < c/2$ for the same batch. The batch decides.

# %% [markdown]
# ## 16.11 The clinic's first page
#
# Begin with what you see, and ask one question. The section says how to read the answer.

# %%
figures.first_page(tables.SYMPTOMS, "From what you see to what to ask first")

# %% [markdown]
# ## What to remember
#
# 1. Every command looks at one part. Know which, and what it can't say.
# 2. 100 % is time, not work. Power, memory traffic and MFU are work.
# 3. A ring is as fast as its slowest link, and a step as fast as its slowest rank. The factor is that part's own.
# 4. Ask of every rate: one way or both, one link or all, bits, bytes or words.
# 5. A container lacks devices, shared memory, locked memory and network until you give them.
# 6. In a hang compare ranks. One of the stacks is different, and it is the one that does not wait.

# %%
quiz("16")

# %% [markdown]
# **Now you:** open [the exercises](../exercises/16_cluster_clinic.ipynb). Exercise 16.11 is a hunt: three real ranks, a fault that nobody tells you, and a clock.
#
# **Read on.** NVIDIA, *GPU Deployment and Management* (docs.nvidia.com/deploy): nvidia-smi, Xid errors, memory errors. NCCL, *Environment Variables* and *Troubleshooting* (docs.nvidia.com/deeplearning/nccl). Bekman, *Machine Learning Engineering*, chapters on debugging and on accelerators. AMD SMI and ROCm in docker (rocm.docs.amd.com). PyTorch, *Flight
# Recorder* (tutorials). Llama 3, section 3.3.4 (arXiv:2407.21783), on stragglers and what the recorder found.

# %% [markdown] tags=["exercise"]
# ## Exercises

# %% tags=["exercise"]
import statistics

from course_lib import check, hint, hunt, hunting, mine
from course_lib.clinic import container, port_counters, ports
from course_lib.clinic.recorded import output

# %% [markdown] tags=["exercise"]
# **16.1** Two readings of a port's counters, ten seconds apart. How many GB/s did it send, and receive? Which part of an HDR port is what it sent? Older devices count in 32 bits and stop at the end. After how many seconds at this rate would such a counter of
# sent data tell nothing more?

# %% tags=["exercise"]
for name in ("counters", "counters_later"):
    lines = output(name).text.splitlines()
    print(*(line for line in lines if "_data" in line), sep="\n")

# %% tags=["exercise"]
sent_gb_s, received_gb_s, part, seconds = ..., ..., ..., ...
### BEGIN SOLUTION
readings = [
    port_counters.counters(output(name).text) for name in ("counters", "counters_later")
]
rates = port_counters.rates(*readings, seconds=10)
sent_gb_s = rates.sent_bytes_per_s / 1e9
received_gb_s = rates.received_bytes_per_s / 1e9
part = sent_gb_s / 25
seconds = 2**32 * 4 / rates.sent_bytes_per_s
### END SOLUTION
check("16.1", [sent_gb_s, received_gb_s, part, seconds])

# %% [markdown] tags=["exercise"]
# **16.2** Six lines of `ibstatus`, all of cables with four lanes. How many times as fast would each port be if all four lanes of its cable worked? Write 1 where they do.

# %% tags=["exercise"]
faster = {
    "200 Gb/sec (4X HDR)": ...,
    "50 Gb/sec (1X HDR)": ...,
    "100 Gb/sec (2X HDR)": ...,
    "100 Gb/sec (4X EDR)": ...,
    "400 Gb/sec (4X NDR)": ...,
    "25 Gb/sec (1X EDR)": ...,
}
### BEGIN SOLUTION
faster = dict(zip(faster, [1, 4, 2, 1, 1, 4], strict=True))
### END SOLUTION
check("16.2", faster)

# %% [markdown] tags=["exercise"]
# **16.3** 16 nodes, each with 8 GPUs and 8 NDR ports of 50 GB/s one way. NCCL all-reduces 8 GB over eight rings; each has a port of its own in every node and carries an eighth of the bytes. Without any latency, how many ms does that take? Then one of the 128 ports
# falls back to one lane, 12.5 GB/s. How many ms does it take now, and which bus bandwidth in GB/s does `all_reduce_perf` print? Until somebody comes with a new cable, `NCCL_IB_HCA` leaves that port's ring out on all nodes: how many ms now?

# %% tags=["exercise"]
healthy_ms, slow_ms, busbw_gb_s, without_ms = ..., ..., ..., ...
### BEGIN SOLUTION
sent_gb = 2 * 127 / 128 * 8  # by each rank
healthy_ms = 1e3 * sent_gb / (8 * 50)
slow_ms = 1e3 * sent_gb / 8 / 12.5
busbw_gb_s = sent_gb / (slow_ms / 1e3)
without_ms = 1e3 * sent_gb / (7 * 50)
### END SOLUTION
check("16.3", [healthy_ms, slow_ms, busbw_gb_s, without_ms])

# %% [markdown] tags=["exercise"]
# **16.4** This line starts a container on a node with Hygon's cards. Somebody takes it to a node with NVIDIA's. Mend it, and leave alone what is right. `container.docker_signs(line, "NVIDIA")` tells what it finds.

# %% tags=["exercise"]
### BEGIN GIVEN
line = """docker run -it --rm \\
    -v /data/llama:/root/llama -w /root/llama \\
    -v /opt/hyhal:/opt/hyhal \\
    --device=/dev/kfd --device=/dev/dri \\
    --shm-size=16G --net=host \\
    llama:24.05 bash"""
### END GIVEN
### BEGIN SOLUTION
line = """docker run -it --rm \\
    -v /data/llama:/root/llama -w /root/llama \\
    --gpus all \\
    --shm-size=16G --net=host \\
    llama:24.05 bash"""
### END SOLUTION
check("16.4", line)

# %% [markdown] tags=["exercise"]
# **16.5** A pod whose node has 8 GPUs and RDMA. NCCL says `Using network Socket`, a data loader dies with a bus error, and the GPUs belong to nobody in particular. Mend it. It should be allowed what it needs, and not more.

# %% tags=["exercise"]
### BEGIN GIVEN
pod = """
apiVersion: v1
kind: Pod
metadata: {name: trainer}
spec:
  containers:
  - name: trainer
    image: llama:24.05
    resources:
      requests: {nvidia.com/gpu: 8, rdma/rdma_shared_device_a: 1}
"""
### END GIVEN
### BEGIN SOLUTION
pod = """
apiVersion: v1
kind: Pod
metadata: {name: trainer}
spec:
  containers:
  - name: trainer
    image: llama:24.05
    resources:
      requests: {nvidia.com/gpu: 8, rdma/rdma_shared_device_a: 1}
      limits: {nvidia.com/gpu: 8, rdma/rdma_shared_device_a: 1}
    securityContext:
      capabilities: {add: [IPC_LOCK]}
    volumeMounts:
    - {name: shm, mountPath: /dev/shm}
  volumes:
  - name: shm
    emptyDir: {medium: Memory, sizeLimit: 16Gi}
"""
### END SOLUTION
check("16.5", pod)

# %% [markdown] tags=["exercise"]
# **16.6** Four ranks train on gloo. First rank 2 sleeps for an hour before it calls collective number 7, and the other ranks call it. Then, in another run, ranks 1 and 3 sleep, and the others call `monitored_barrier`. Give lists of ranks, in order, and numbers.

# %% tags=["exercise"]
named = {
    "rank 2 sleeps: ranks whose stack ends in torch.distributed": ...,
    "rank 2 sleeps: ranks that raise an error when the time is up": ...,
    "rank 2 sleeps: number of the last collective in rank 2's record": ...,
    "rank 2 sleeps: number of the last collective in rank 3's record": ...,
    "ranks 1 and 3 sleep: ranks that monitored_barrier() names": ...,
    "ranks 1 and 3 sleep: ranks that monitored_barrier(wait_all_ranks=True) names": ...,
}
### BEGIN SOLUTION
answers = [[0, 1, 3], [0, 1, 3], 6, 7, [1], [1, 3]]
named = dict(zip(named, answers, strict=True))
### END SOLUTION
check("16.6", named)

# %% [markdown] tags=["exercise"]
# **16.7** One of 8 GPUs is hot and takes 25 % longer to compute, and computing is 80 % of a step. By which factor does the step of the whole job become longer? By which factor if one of 1,024 GPUs is hot? By which factor, with 8, if work could be divided by speed? Last,
# no GPU is hot, but each takes 400 ms ± 8 ms (normal, a standard deviation of 8 ms) for its part of a step. How many ms does the slowest of 1,024 take on average? `theory.step.stragglers` has a function for each; guess first.

# %% tags=["exercise"]
of_8, of_1024, divided, slowest_ms = ..., ..., ..., ...
### BEGIN SOLUTION
from course_lib.theory.step import stragglers

of_8 = of_1024 = stragglers.straggler_factor(0.25, compute_share=0.8)
divided = stragglers.shared_work_factor(8, 0.25)
slowest_ms = 1e3 * stragglers.expected_slowest_s(1024, 0.4, 0.008)
### END SOLUTION
check("16.7", [of_8, of_1024, divided, slowest_ms])

# %% [markdown] tags=["exercise"]
# **16.8** Each rank of a job writes down, for each of its updates, how many ms it took and how many of them it spent in collectives. Write what finds the rank for which the others wait: the one with the most time outside of collectives. Take the median over the updates of a rank, since any
# update may be late once. Return its number, or None unless its median is more than twice that of every other rank.


# %% tags=["exercise"]
def late_rank(total_ms: list[list[float]], inside_ms: list[list[float]]) -> int | None:
    """The straggler; total_ms[rank][update] and the part of it in collectives."""
    ### BEGIN SOLUTION
    own = [
        statistics.median(whole - inside for whole, inside in zip(*rank, strict=True))
        for rank in zip(total_ms, inside_ms, strict=True)
    ]
    second, first = sorted(own)[-2:]
    return own.index(first) if first > 2 * second else None
    ### END SOLUTION


check("16.8", late_rank)

# %% [markdown] tags=["exercise"]
# **16.9** (published mistakes) Six sentences from notes and blogs. True or false?

# %% tags=["exercise"]
claims = {
    "nvidia-smi shows 100 % for each GPU, so all of them compute": ...,
    "an H100's NVLink carries 900 GB/s, which is 28 times PCIe 4.0 x16 with 32 GB/s": ...,
    "a port of 200 Gb/s is too fast for a PCIe 4.0 x16 slot of 32 GB/s": ...,
    "dist.is_nccl_available() is True on AMD's GPUs as well": ...,
    "nvidia-smi -r without -i resets one GPU, and jobs on the others go on": ...,
    "with --ipc=host a container needs no --shm-size": ...,
}
### BEGIN SOLUTION
answers = [False, False, False, True, False, True]
claims = dict(zip(claims, answers, strict=True))
### END SOLUTION
check("16.9", claims)

# %% [markdown] tags=["exercise"]
# **16.10** Two runs of one update, on one GPU and on eight, and in some tensor they differ; the differences are relative to the size of its numbers. Each number is a sum of 4,096 products, added up one by one. Is it `"rounding"`, `"more than rounding"`, or `"don't know"`? Use the two lines of section 16.8: up to 4 times
# the typical error it is rounding, beyond 16 times it is more. Typical is $\sqrt{n}\,u$ with $u = 2^{-24}$ in fp32 and $2^{-53}$ in fp64; where sums run in fp32 and the result is stored in bf16, it is $u = 2^{-8}$.

# %% tags=["exercise"]
judged = {
    "fp32, off by 2e-6": ...,
    "fp32, off by 2e-4": ...,
    "fp32, off by 3e-5": ...,
    "stored in bf16, off by 3e-3": ...,
    "stored in bf16, off by 0.1": ...,
    "fp64, off by 1e-7": ...,
}
### BEGIN SOLUTION
answers = [
    "rounding",
    "more than rounding",
    "don't know",
    "rounding",
    "more than rounding",
    "more than rounding",  # it has passed through fp32 somewhere
]
judged = dict(zip(judged, answers, strict=True))
### END SOLUTION
check("16.10", judged)

# %% [markdown] tags=["exercise"]
# **16.11** The hunt. `hunt(seed)` starts three real ranks, one of which is broken from its second update on, shows what they print, and starts the clock. After each update a rank says how long it took, how much of that it spent in collectives, the loss on a batch that all
# ranks have, and how long a message from each other rank was under way. In these three cases nothing fails. Answer each as soon as you know, `case.answer(rank=…, cause=…)`, then collect the answers for the check.

# %% tags=["exercise"]
case = hunt(2)

# %% tags=["exercise"]
case.answer(rank=None, cause=None)

# %% tags=["exercise"]
case = hunt(4)

# %% tags=["exercise"]
case.answer(rank=None, cause=None)

# %% tags=["exercise"]
case = hunt(6)

# %% tags=["exercise"]
case.answer(rank=None, cause=None)

# %% tags=["exercise"]
found = {2: (..., ...), 4: (..., ...), 6: (..., ...)}  # (rank, cause)
### BEGIN SOLUTION
found = {2: (0, "other weights"), 4: (2, "slow link"), 6: (0, "straggler")}
### END SOLUTION
check("16.11", found)

# %% [markdown] tags=["exercise"]
# Cases 0 to 9 have all ten causes, and 10 to 19 have them again on other ranks. `case.doctor()` runs a case again with a record and asks the doctor of section 16.7; `hunting.table()` has your best time for each cause, beside the doctor's.

# %% tags=["exercise"]
print(hunting.table())

# %% [markdown] tags=["exercise"]
# **16.12** Write the parser of `ibstat` that this chapter used: a `Port` for each port, with `device`, `port` (an int), `state`, `physical`, `gbit_per_s` (a number) and `link_layer`. A device may have several ports, or none. What cannot be read raises a ValueError that shows
# the line: a clinic that guesses is worse than none. The check gives it recorded outputs: of healthy and slow ports, of one that is down, and of a device that vanished. What passes is kept as `mine/ibstat.py`.

# %% tags=["exercise"]
print(output("ibstat_slow").text[:640])

# %% tags=["exercise"]
import re

from course_lib.clinic.ports import Port

### BEGIN GIVEN


def ibstat(text: str) -> tuple[Port, ...]:
    """The ports in what `ibstat` printed, in their order.

    Raises ValueError, with the line, for a text that is not ibstat's.
    """
    ...


### END GIVEN
### BEGIN SOLUTION
from course_lib.clinic.ports import ibstat

### END SOLUTION

check("16.12", ibstat)

# %% [markdown] tags=["exercise"]
# `mine.ibstat` is yours from now on, and the course's until then. What is wrong with these four ports?

# %% tags=["exercise"]
for sign in ports.port_signs(mine.ibstat(output("ibstat_slow").text)):
    print(sign.sentence)

# %% [markdown] tags=["exercise"]
# **16.13** Eight thousand ranks hang, and each has left its flight record: a list of the collectives that it called, such as the one below. Find the first collective in which the ranks differ, and the odd ranks: those outside the one largest group that called the same. A rank
# whose record ends before that number has not come, which counts as something else. Do not accuse without reason: if two groups are equally large, nobody is odd, and a record that is empty says nothing. A record keeps the last 200 calls or so, so
# records may begin at different numbers; compare from the first number that all of them have. Entries with `is_p2p` are messages between two ranks; leave them out. What passes is kept as `mine/divergence.py`.

# %% tags=["exercise"]
from course_lib.diagnosing.divergence import flights

records = flights("collective")  # recorded on three ranks, one of which is broken
records[1][0]

# %% tags=["exercise"]
from course_lib.diagnosing.divergence import ANY_SIZE

### BEGIN GIVEN


def first_divergence(
    records: dict[int, list[dict]],
) -> tuple[int, tuple[int, ...]] | None:
    """The number of the first collective that differs, and the odd ranks.

    Two calls are the same if operation ("gloo:all_reduce" without "gloo:"),
    input_sizes and input_dtypes are; in ANY_SIZE only the operation counts.
    None if all ranks agree.
    """
    ...


### END GIVEN
### BEGIN SOLUTION
from course_lib.diagnosing.divergence import first_divergence

### END SOLUTION

check("16.13", first_divergence)

# %% tags=["exercise"]
for kind in ("none", "collective", "hang", "twice", "shape"):
    print(f"{kind:<11}{mine.first_divergence(flights(kind))}")
