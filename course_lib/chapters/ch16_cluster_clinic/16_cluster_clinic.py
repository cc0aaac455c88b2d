# %% [markdown]
# # 16 The cluster clinic
#
# 64 GPUs are training, and every one of them shows 100 %. Yesterday an all-reduce of 4 GB took 0.32 s. Today it takes much longer, on every rank. Nobody has changed the program. You log in to one node after another and type
# `ibstat`. 63 ports say `Rate: 200`. One says `Rate: 50`.
#
# Is that the cause? One port of 64 has lost three quarters of its speed. How much slower does that make *everybody*?
#
# By the end of this chapter you can
#
# - ask a node about its GPUs, ports and container, and say what each answer leaves open,
# - say why 100 % means less than it seems,
# - turn counters into bytes per second, and a rate in `ibstat` into seconds of a training step,
# - put together a container, or a pod, in which NCCL finds its network and its memory,
# - read the message of NCCL's watchdog, and name the rank that a hanging job waits for,
# - find the rank or the link that makes a job slow,
# - decide whether two runs differ by a bug or by rounding, and whether a second node is worth it.
#
# Time: two sittings without the exercises, sections 16.1 to 16.6 in about 90 minutes and 16.7 to 16.11 in about 70 more. The exercises take about two hours. You need chapters 6, 9 and 15.
#
# A laptop has none of these devices, so most outputs here are *recorded*: real machines printed them, their owners published them, and the address stands below each. A few, which nobody has published, are *built* from the documented format, and they say so. What a laptop can do, it does for real: ranks that wait, hang and fall behind, a container with too little memory, a ring with a slow link.

# %%
import shutil

import torch
import torch.distributed as dist

from course_lib import (
    demos,
    expect,
    launch,
    predict,
    recorded,
    style,
)
from course_lib.chapters.ch16_cluster_clinic import (
    commands,
    comparing,
    containers,
    diagnosing,
    figures,
    logs,
    pairwise,
    processor,
    slowest,
    small_shm,
)
from course_lib.clinic import gpus, nccl_table, ports
from course_lib.clinic.recorded import output
from course_lib.theory import Recipe, collectives, hardware, rounding, zero

launch.warm_up()
torch.set_num_threads(1)

# %% [markdown]
# **Predict.** One port of 64 runs at a quarter of its rate. How many times as long does the all-reduce take on all 64 ranks? Section 16.4 has the answer.

# %%
slower = predict("16.factor", "Times as long?", yours=None)

# %% [markdown]
# A cluster has many parts, and each command looks at one of them. Before you type anything, ask which part you suspect. This is the map of the chapter, from your program down to the cable. We start with PyTorch and work our way down.
#
# | part | what to ask | with |
# |---|---|---|
# | **your program** | Where does each rank stand? | `course diagnose`, `py-spy dump` |
# | **PyTorch** | Does it see GPUs? Can ranks talk? | `is_available()`, `device_count()` |
# | **container, pod** | Devices, /dev/shm, locked memory? | `df -h /dev/shm`, `ulimit -l` |
# | **NCCL** | Which network does it use? How fast? | `NCCL_DEBUG=INFO`, `all_reduce_perf` |
# | **GPU** | Who uses it? Is it well? | `nvidia-smi pmon`, `dmon`, `-q`; `dmesg` |
# | **inside the node** | By which way to GPU and port? | `nvidia-smi topo -m`, `nvlink -s` |
# | **port** | Is it up? At which rate? | `ibstat`, `ibstatus`, `ibv_devinfo` |
# | **cable, switch** | How much goes over it? Errors? | counters, `mlnx_perf` |

# %% [markdown]
# ## 16.1 Three questions to begin with
#
# Three questions come before all others, and two lines ask them. They are in note 000:
#
# ```
# python -c "import torch; print(torch.cuda.is_available()); print(torch.cuda.device_count())"
# python -c "import torch.distributed as dist; print(dist.is_nccl_available())"
# ```
#
# **Predict.** A server has eight AMD GPUs and a PyTorch for ROCm, AMD's counterpart of CUDA. What does `torch.cuda.device_count()` print there?

# %%
counted = predict("16.count", "GPUs that torch.cuda counts?", yours=None)

# %%
expect(8, label="GPUs", yours=counted)

# %% [markdown]
# **Explain.** Eight. PyTorch for ROCm keeps the name `torch.cuda`, so that programs need no change (docs.pytorch.org, *HIP (ROCm) semantics*). Hygon's DCUs follow AMD here. In the same way `is_nccl_available()` is True: the library is called RCCL and
# answers to the name NCCL. So none of the three answers says whose GPU it is. `torch.version` does:

# %%
print("GPUs", torch.cuda.is_available(), torch.cuda.device_count())
print("ranks", dist.is_available(), "NCCL or RCCL", dist.is_nccl_available())
print("CUDA", torch.version.cuda, "ROCm", torch.version.hip)

# %% [markdown]
# How to read all of it:
#
# | line | it says | it can't say |
# |---|---|---|
# | `torch.cuda.is_available()` | PyTorch was built for GPUs, the driver answers, and there is at least one GPU | that a kernel runs on it, or that nobody else uses it |
# | `torch.cuda.device_count()` | how many GPUs *this process* sees: `CUDA_VISIBLE_DEVICES`, a container or Slurm may hide some | how many the server has |
# | `dist.is_available()` | PyTorch was built with `USE_DISTRIBUTED=1` | that another machine can be reached |
# | `dist.is_nccl_available()` | NCCL, or RCCL, was compiled in | that there is a GPU, or a network |
# | `torch.version.cuda`, `.hip` | for which GPUs PyTorch was built; one of the two is None | which driver is installed |
#
# Note 002 says that PyTorch must be compiled from source with `USE_DISTRIBUTED=1`. That only concerns people who compile it anyway. For them the switch is 1 by default on Linux and Windows, and 0 on macOS (documentation of `torch.distributed.is_available`). What `pip` installs has it on, on macOS as well, where the script that makes the wheels sets it (pytorch/pytorch, `.ci/wheel/build_wheel.sh`).
# What differs is the backend. Gloo works on Linux, Windows and macOS; NCCL exists on Linux only. That is one reason why the ranks of this course talk through Gloo. These are the switches of your own build:

# %%
build = torch.__config__.show().replace(",", "").split()
wanted = ("USE_CUDA=", "USE_ROCM=", "USE_NCCL=", "USE_GLOO=", "USE_MPI=")
print([switch for switch in build if switch.startswith(wanted)])

# %% [markdown]
# `course doctor` asks these questions, and then runs whatever else this machine has:

# %%
from course_lib.doctor import cluster as cluster_doctor

programs = {look.command[0] for look in cluster_doctor.LOOKS}
here = sorted(program for program in programs if shutil.which(program))
print(f"of {len(programs)} programs this machine has {here}")
for finding in cluster_doctor.examine_cluster():
    print(finding)

# %% [markdown]
# On a laptop that is not much. On a cluster node it prints one line for each sign of trouble. It only looks: it resets nothing, loads nothing and configures nothing.
#
# **Remember**
# - `torch.cuda` stands for AMD and Hygon as well; `torch.version.hip` tells them apart.
# - `device_count()` counts what this process may see.
# - Three times True means: go on asking. It says nothing about speed.

# %% [markdown]
# ## 16.2 Asking a GPU
#
# There are eight questions to ask a GPU. NVIDIA and AMD have a command for each of them; for Hygon we found four documented:

# %%
gpu_commands = ("pmon", "dmon", "topo", "nvlink", "-q -d", "dmesg", "dcgmi", "smi -r")
commands.by_vendor(*gpu_commands)

# %% [markdown]
# ### Who uses it: pmon
#
# `nvidia-smi pmon` lists processes. `-s um` asks for use and memory, `-c 1` for one sample; without it the command runs until you stop it. Here is a recorded one:

# %%
print(output("nvidia-smi_pmon_shared").shown)

# %% [markdown]
# `sm` is the percentage of the time during which kernels of that process ran, `mem` the percentage during which it read or wrote memory, and `fb` the megabytes that it holds. Type C computes, G draws. Five programs share GPU 0. They are video encoders,
# so here it is intended:

# %%
shared_gpu = gpus.pmon(output("nvidia-smi_pmon_shared").text)
figures.stacked_bars(
    {"GPU 0": {f"{row.pid}": row.framebuffer_mb or 0 for row in shared_gpu}},
    "Memory by process",
    "{:,.0f} MB".format,
)

# %% [markdown]
# In training, a second process on a GPU is usually yesterday's job that never ended. The first sign of it is an out-of-memory error on a GPU that should be empty. The course's parser turns such an output into records, and records into signs:

# %%
text = output("nvidia-smi_pmon_shared").text
for sign in gpus.pmon_signs(gpus.pmon(text)):
    print(sign.sentence)

# %% [markdown]
# Every sign has three parts: what is wrong, what to do, and what the command can't say. The third part saves the most time.
#
# ### How they reach each other: topo -m
#
# Here are two servers with four GPUs and four network cards each (NIC, network interface card), each card with one port. A cell names the path between two devices. From near to far: `NV6` is six NVLinks, `PIX` one PCIe switch, `PXB` several switches, `PHB` the CPU, `NODE` two
# bridges of one NUMA node, and `SYS` the link between two NUMA nodes. (A NUMA node is a set of cores with the memory next to them: a whole CPU, or a part of one.)

# %%
print(output("nvidia-smi_topo").shown)

# %%
print(output("nvidia-smi_topo_far").shown)

# %% [markdown]
# A GPU can send through a port without going through the CPU if the path to that port is `PIX` or `PXB`. (This is NCCL's rule for GPUDirect, which needs more than that: section 16.4.)
#
# **Predict.** For how many of the *eight* GPUs is that so?

# %%
near = predict("16.near", "GPUs with a port at PIX or PXB?", yours=None)

# %%
first, second = (
    gpus.topology(output(name).text)
    for name in ("nvidia-smi_topo", "nvidia-smi_topo_far")
)
found = [server.nearest_port(gpu) for server in (first, second) for gpu in server.gpus]
by_switch = [port for port, way in found if way in ("PIX", "PXB")]
expect(4, len(by_switch), label="GPUs", yours=near)

# %% [markdown]
# Both tables again, as a picture. Each device stands on what it hangs on. Green lines lead from a GPU to its nearest port by a switch alone, red ones by the CPU, where the two have no switch in common.

# %%
figures.node_ways({"the first server": first, "the second server": second})

# %% [markdown]
# **Explain.** Four: in the first server each GPU has a port behind the same switch. In the second, every byte for the network crosses the CPU. Both servers are healthy, and no NVIDIA command will ever complain about the second. But its
# network will never be as fast as that of the first. `course doctor` has a sign for it.
#
# ### Is it healthy: nvlink -s, -q -d, dmesg, dcgmi
#
# Links first. This GPU has six, and is one of several in its server:

# %%
print(output("nvidia-smi_nvlink").shown)
for sign in gpus.nvlink_signs(gpus.nvlink(output("nvidia-smi_nvlink").text)):
    print("\n" + sign.sentence)

# %% [markdown]
# Each rate here is one link in *one* direction. An H100 has 18 such links:

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
# The data sheet says "900 GB/s". Note 004 compares that with the 32 GB/s of a PCIe slot, but the first counts both directions and the second only one. Before you compare two rates, ask of each: one
# direction or both, one link or all, bits or bytes?
#
# Next, the memory. HBM makes errors, and an **error-correcting code** (纠错码, ECC) corrects those of a single bit. A row that has an error which the code can't correct, or the same error again and again, is replaced by a spare one at the next reset. This is called **row remapping** (行重映射).

# %%
lines = output("nvidia-smi_q_ecc").shown.splitlines()
print(*lines[:18], "        …", *lines[-2:], sep="\n")
for sign in gpus.state_signs(gpus.query(output("nvidia-smi_q_ecc").text)):
    print("\n" + sign.sentence)

# %% [markdown]
# The code has corrected all 177 errors, so no number was wrong. But the driver has given up one row for its correctable errors: that is the 1 under Remapped Rows, and `Pending: Yes` says that the row still waits for its replacement. That line matters. `Volatile` counts since the last reset, `Aggregate` over the GPU's life. The PERFORMANCE section of the same command says what holds the clock down, which is called **throttling** (降频). At full load `SW Power Cap: Active` is normal. `HW Slowdown`
# never is.
#
# Serious faults appear in the kernel's log, with a number that NVIDIA calls an **Xid**. Three lines from one machine:

# %%
print(output("dmesg_xid").shown)

# %% [markdown]
# **Predict.** Three GPUs reported an Xid: 43, 31 and 94. For how many of them do you call the people who own the hardware?

# %%
calls = predict("16.xid", "GPUs with a fault of their own?", yours=None)

# %%
log = gpus.xids(output("dmesg_xid").text)
machines = [line for line in log if gpus.MEANINGS[line.number].whose == "machine"]
expect(1, len(machines), label="GPUs", yours=calls)

# %%
for line in log:
    meaning = gpus.MEANINGS[line.number]
    print(f"{line.number}: {meaning.what} ({meaning.whose}) → {meaning.do}")

# %% [markdown]
# **Explain.** One. Xid 31 is what a program gets when it uses a wrong address, and 43 is what remains when a program was stopped for its own mistake. The next program runs on the same GPUs without trouble. Xid 94 is the memory. Two more are worth knowing by heart: 79, *the GPU has fallen off the bus*, after which only a restart helps, and 45, which merely cleans up after another Xid
# or after a killed program, so look at the line before it. (NVIDIA's Xid catalog has them all.)
#
# The last question is a test under load. `dcgmi diag -r 2` takes minutes and needs the GPUs for itself; `-r 3` takes longer. Here it found a GPU that gets too hot:

# %%
print(output("dcgmi_diag").shown)

# %% [markdown]
# But here its verdict misleads. Every test passed while all NVLinks of that machine were down:

# %%
print(output("dcgmi_diag_pass").shown)

# %% [markdown]
# A test can only fail at what it tests. "Pass" means "none of these".
#
# ### The dangerous one: -r
#
# The notes list `nvidia-smi -r` beside `nvidia-smi pmon`, as if both only looked. `-r` *resets* GPUs, all of them unless you name one with `-i`. It needs root, and it refuses while anything uses
# the GPU, even a monitor:

# %%
print(output("nvidia-smi_r").shown)

# %% [markdown]
# Read the advice in the last lines: "kill all processes using this device". That is the danger. `-r` itself ends no job, but whoever follows the advice does, and without `-i` on every GPU of the node. (GPUs that NVLink joins can be reset one by one since Ampere; on Ampere's servers with switches the Fabric Manager must run.
# Older ones can only be reset together: a reset of one fails and names the others. [NVIDIA's manual](https://docs.nvidia.com/deploy/nvidia-smi/).)
#
# Nothing in this course runs it. On a shared node it belongs to the administrator, once no job runs there.
#
# Here is how to read each command, and what none of them says:

# %%
commands.how_to_read(*gpu_commands)

# %% [markdown]
# **Remember**
# - Two processes on one GPU: a job that never ended. No process where the others have one: a rank that died.
# - Pending rows, `HW Slowdown`, Xid 48, 63, 64, 74, 79, 94, 95: the machine. Xid 13, 31, 43: usually the program.
# - `-r` does not look, it resets. It refuses while something runs: don't kill what runs to please it.

# %% [markdown]
# ## 16.3 What 100 % means
#
# An H100 has 132 streaming multiprocessors. Start a kernel that occupies just one of them, and let it run.
#
# **Predict.** What does the `sm` column of `nvidia-smi` show, in percent?

# %%
one_sm = predict("16.one_sm", "Utilization of 1 multiprocessor of 132?", yours=None)

# %%
expect(100, label="utilization", unit="%", yours=one_sm)

# %%
two_meters = {"utilization, %": 100, "multiprocessors, %": round(100 / 132, 1)}
figures.meters(
    {"one kernel": two_meters},
    dict.fromkeys(two_meters, 100),
    "One multiprocessor of 132 at work, on two meters",
)

# %% [markdown]
# **Explain.** What is called **utilization** is the percentage of *time* during which at least one kernel ran (NVIDIA's NVML reference, `nvmlUtilization_t`). It is not the share of the GPU that worked. It tells you that the light in the office is on, not how many people are working.
#
# In training it gets worse, because waiting is a kernel too. An all-reduce of NCCL runs on the GPU. While it waits for another rank, it reads a flag in memory over and over until the flag changes (`waitPeer` in NCCL's `src/device/prims_simple.h`). This is **busy-waiting** (忙等待).
#
# We can do the same here with a processor in place of a GPU. There are two ranks. For each update, rank 1 reads its samples from a slow disk for 0.3 s and computes for 0.1 s. Rank 0 has its samples at once, computes for 0.1 s, and then waits in the all-reduce. The wait is written in two ways: like NCCL's kernel, and like Gloo,
# which sleeps until the operating system wakes it. The meter works like a GPU's: 200 times a second it checks whether the rank is running.
#
# **Predict.** Rank 0 computes for 0.1 s of every 0.4 s. If it waits as NCCL does, for what percentage of the time does the meter say that it runs?

# %%
busy_guess = predict("16.busy", "Rank 0 runs, says the meter?", yours=None, unit="%")


# %%
import time


def lopsided(spin):
    """What this rank did and when, and what its meter says."""
    rank, numbers, did = launch.init(), torch.ones(4), []
    dist.barrier()
    with processor.watched() as meter:
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
timed = {"within": None, "unit": "%"}  # of times: their gaps are shown, not judged
expect(100, spins[0][1], label="waits as NCCL does", yours=busy_guess, **timed)
expect(100 * 0.1 / 0.4, sleeps[0][1], label="waits as Gloo does", **timed)

# %%
print(f"and rank 1, while rank 0 waits as NCCL does: {spins[1][1]:.0f} %")

# %%
(rank_0, _), (rank_1, _) = spins
meter = [("busy, says the meter", rank_0[0][1], rank_0[-1][2])]
figures.lanes(
    {"rank 0": rank_0, "its meter": meter, "rank 1": rank_1},
    "Rank 0 is busy all the time, and waits for three quarters of it",
)

# %% [markdown]
# **Explain.** The work and the waiting are the same, but one meter says 100 and the other 25. The second shows how much rank 0 really had to do. A GPU only has the first kind of meter: it cannot tell a kernel that computes from one that reads a flag. So the *slow*
# rank is the one whose meter shows less than 100: it alone waits for something else, a disk, instead of a flag.
#
# That turns the reading of `pmon` around. A job hangs on four GPUs. (This output is built. It shows what users report: 100 % on every GPU but one.)

# %%
print(output("nvidia-smi_pmon_hang").shown)

# %% [markdown]
# **Predict.** Which GPU do you look at first?

# %%
suspect = predict("16.suspect", "GPU number?", yours=None)

# %%
rows = gpus.pmon(output("nvidia-smi_pmon_hang").text)
still = [row.gpu for row in rows if row.pid and not row.sm_percent]
expect(2, still[0], label="GPU", yours=suspect)

# %%
for sign in gpus.pmon_signs(rows):
    print(sign.sentence)

# %%
figures.meters(
    {f"GPU {row.gpu}": {"sm, %": row.sm_percent or 0} for row in rows},
    {"sm, %": 100},
    "A hang: three kernels ask for a flag, and one GPU runs none",
)

# %% [markdown]
# ### Better meters
#
# What gives a waiting GPU away? It draws little power and reads almost no memory. `dmon` shows both beside the utilization. Four H100s of 700 W at one moment (also built):

# %%
samples = gpus.dmon(output("nvidia-smi_dmon").text)
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
at_work = [s for s in samples if s.power_w > 0.8 * 700]
expect(1, len(at_work), label="GPUs at full speed", yours=computing)

# %%
for sign in gpus.dmon_signs(samples):
    print(sign.sentence)

# %% [markdown]
# **Explain.** One, GPU 0. GPU 1 waits, at 118 W. GPU 2 has nothing to do. GPU 3 computes at 86 °C with half its neighbours' clock, so it may be the one that GPU 1 waits for. AMD's monitor has the same columns under other names:

# %%
print(output("amd-smi_monitor").shown)

# %% [markdown]
# From 191.7 GB of memory you can tell that it is an MI300X. Its data sheet allows 750 W:

# %%
for one in gpus.amd_smi(output("amd-smi_monitor").text):
    seen = {
        "busy, %": one.sm_percent,
        "memory, %": one.memory_percent,
        "power, W": one.power_w,
    }
title = "amd-smi monitor: busy, but with little power"
figures.meters({"MI300X": seen}, full | {"power, W": 750}, title)

# %% [markdown]
# From rough to fine, this is what each meter is worth:
#
# | meter | says | with |
# |---|---|---|
# | utilization | some kernel ran | `nvidia-smi`, `pmon`, `dmon` |
# | power, memory traffic | whether that kernel worked or waited | `dmon`, `amd-smi monitor` |
# | SM active, tensor active, DRAM active | which *part* of the GPU worked, averaged over time | `dcgmi dmon -e 1002,1004,1005` (NVIDIA DCGM, *profiling metrics*) |
# | MFU | how much of the peak went into *your* model | chapter 5: the model's FLOPs over time and peak |
#
# Waiting raises the first to 100 %. It cannot raise tensor active or the MFU.
#
# **Remember**
# - Utilization is the share of time in which some kernel ran. Waiting for other ranks is a kernel.
# - In a hang, the odd one out is the GPU that shows *less*.
# - Power and memory traffic tell waiting from working. MFU tells what you get.

# %% [markdown]
# ## 16.4 Ports, cables, RDMA
#
# A tensor of 1 GB goes from one server to another over TCP. At both ends, each byte passes through the program's buffer and through a buffer of the operating system's kernel.
#
# **Predict.** Follow a byte from one GPU's memory to the other's. How many moves from one place to the next does it make? (Each buffer is a place, and so is each of the two network cards.)

# %%
moved = predict("16.moves", "Moves over TCP?", yours=None)

# %% [markdown]
# At each end one of these moves is a copy that a processor makes, between the program's buffer and the kernel's. What does it cost? Measured on your machine, over TCP to itself:

# %%
per_gb = min(processor.processor_s_per_byte() for _ in range(3)) * 1e9
cores = 25 * per_gb
print(f"{per_gb:.2f} s of a processor for 1 GB: at 25 GB/s, {cores:.0f} cores")

# %%
expect(3 + 1 + 3, label="moves", yours=moved)

# %% [markdown]
# From the memory of one GPU to that of a GPU in another node. A thick arrow (⇛) is a copy that a processor makes; at all others a GPU or a card moves the bytes by itself (DMA):
#
# | | sending node | receiving node | moves | by a processor |
# |---|---|---|---|---|
# | **TCP** | GPU memory → program's buffer ⇛ kernel's buffer → network card | → network card → kernel's buffer ⇛ program's buffer → GPU memory | 7 | 2 |
# | **RDMA** | GPU memory → program's buffer → network card | → network card → program's buffer → GPU memory | 5 | none |
# | **RDMA straight to the GPU** (GPUDirect) | GPU memory → network card | → network card → GPU memory | 3 | none |
#
# **Explain.** Seven: three on each side and the wire. At 25 GB/s, one port of 200 Gb/s, several cores would do nothing but copy, and eight ports would take eight times as many. (A real network costs more: your machine had no card to serve.)
#
# With **RDMA** (chapter 13) the program registers its buffer with the network card once. From then on the card reads and writes
# that memory itself, and the kernel takes no part in it. This is also called **zero copy** (零拷贝). With GPUDirect RDMA the registered memory is the GPU's own. RDMA has three requirements, and each of them is a fault to look for:
#
# - a card that can do it, with a port that is up: `ibstat`,
# - memory that stays where it is. The system must not move it elsewhere or to the disk, so it is **locked** (锁定内存): `ulimit -l`,
# - for GPUDirect, a short path from GPU to card (`topo -m`), and a driver that opens the GPU's memory to the card: the module `nvidia-peermem`, or a kernel and driver with DMA-BUF. PCIe's access control (ACS) sends such traffic up to the CPU first; outside virtual machines it must be off.
#
# InfiniBand is a network made for this; RoCE does the same over Ethernet. Note 004 wants eight network cards of 200 Gb/s for eight GPUs "so that all of PCIe's bandwidth can leave the server".
#
# **Predict.** What percentage of a PCIe 4.0 ×16 slot (31.5 GB/s one way) does a port of 200 Gb/s use?

# %%
share = predict("16.share", "Percent of the slot?", yours=None, unit="%")

# %%
taken = hardware.HDR.bytes_per_s / hardware.PCIE4.bytes_per_s
expect(100 * 200 / 8 / 31.5, 100 * taken, 1e-6, "%", "share", yours=share)

# %% [markdown]
# **Explain.** 200 Gb/s are 25 GB/s, so 79 %. The note's eight cards let four fifths of the bandwidth out, which is enough for its argument.
#
# ### Which port is slow
#
# Now to the cluster of the opening. One of its nodes has four ports. `ibstat` prints 17 lines for each; here is the last one:

# %%
print("\n".join(output("ibstat_slow").shown.splitlines()[-19:]))

# %% [markdown]
# `mlx5_3` is the *device*, named after NVIDIA's driver for these cards. Its port is `mlx5_3:1`, and here each device has one. The four lines that count are `State`, `Physical state`, `Rate` and `Link layer`. `Rate` is in Gb/s, one way, over all lanes. A parser reads them from all four ports:

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
# A cable has four **lanes** (通道), and `ibstatus` counts them. A lane carries 25 Gb/s in the InfiniBand generation called EDR, 50 in HDR and 100 in NDR. So a healthy HDR port says `200 Gb/sec (4X HDR)`. Here is one, and the bad one below it:

# %%
print("\n".join(output("ibstatus_slow").shown.splitlines()[-17:]))

# %% [markdown]
# `1X HDR`: three of the four lanes are gone. That is a plug or a cable, and no command can tell which end of it.
#
# ### What it costs
#
# In a ring every piece of the tensor crosses every link (chapter 6). So the ring is as fast as its slowest link, and everybody waits. First for real, on a small scale: four ranks on your machine form a ring in which each link sleeps for as long as 10 MB/s would take. Then one link drops to 2.5 MB/s.


# %%
from course_lib.scratch.collectives import SlowPeers, ring_all_reduce


def ring_seconds(slow_rank):
    """An all-reduce of 1 MB round a ring of links; `slow_rank` sends at a quarter."""
    rank, numbers = launch.init(), torch.ones(250_000)
    peers = SlowPeers(2.5e6 if rank.rank == slow_rank else 10e6)
    times = []
    for _ in range(2):
        dist.barrier()
        start = time.perf_counter()
        ring_all_reduce(numbers, peers)
        dist.barrier()
        times.append(time.perf_counter() - start)
    return min(times)


# %%
healthy = max(launch.run(ring_seconds, None, ranks=4, stream=False))
one_slow = max(launch.run(ring_seconds, 2, ranks=4, stream=False))
expect(4, one_slow / healthy, within=None, label="times as long")
took = {"four links of 10 MB/s": healthy, "one of them at 2.5 MB/s": one_slow}
figures.bars(took, "{:.2f} s".format, "An all-reduce of 1 MB by four ranks")

# %% [markdown]
# Now the numbers of the opening: 4 GB, 64 ranks, HDR, one link of 50 Gb/s:

# %%
from course_lib.chapters.ch16_cluster_clinic.slowest import MoreNodes, OneSlowLink

today = OneSlowLink(4e9, 64, hardware.HDR, slow_bytes_per_s=50e9 / 8)
expect(today.factor, label="times as long", yours=slower)

# %%
print(f"yesterday {today.healthy_s:.2f} s, today {today.slow_s:.2f} s")
figures.slow_ring(today)

# %% [markdown]
# **Explain.** Four: everybody is slowed down by the port's own factor, not by a 64th of it. How many other ranks there are does not matter. The bus bandwidth (chapter 6) has fallen to 6.24 GB/s, which is 50 Gb/s. So nccl-tests prints the rate of the worst link, but not where it is.
#
# This was one ring, through one port of each rank. A server with eight GPUs has eight ports, and NCCL builds a ring through each. Try it in the panel:
#
# 1. Eight rings, with one bad port in one of them. What is the factor?
# 2. Why doesn't the number of rings help? Read "its ring left out": NCCL can be told not to use that port (section 16.6). What does it cost to give up one of eight ports on purpose?
# 3. One ring, 1 MB. Why does the slow link hurt so little now?

# %%
from course_lib.chapters.ch16_cluster_clinic import panels

panels.one_slow_link()

# %%
with_eight = panels.one_slow_link(rings=8).result
assert with_eight.factor > 3.9
expect(8 / 7, with_eight.without_s / with_eight.healthy_s, 0.02, label="without it")
assert panels.one_slow_link(rings=1, size_mb=1).result.factor < 1.5

# %% [markdown]
# Answers: 1. Still nearly four. 2. In this model each ring carries an eighth of the bytes however slow it is, and all rings must finish before the next step begins. Leaving the bad one out costs 8/7: 14 % longer instead of 290 %. 3. At 1 MB nearly all the time is latency, which a slow link does not change:

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
# So test links with large messages.
#
# ### Words of four bytes
#
# How busy is a port? The driver counts, in `/sys/class/infiniband/DEVICE/ports/1/counters/`. Here are two readings, ten seconds apart:

# %%
before, after = (
    ports.counters(output(name).text) for name in ("counters", "counters_later")
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
now = ports.rates(before, after, seconds=10)
expect(4 * 15.25 / 10, now.sent_bytes_per_s / 1e9, 1e-6, label="sent", yours=rate)

# %%
for sign in ports.rate_signs(now, link_bytes_per_s=50e9 / 8):
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
# **Explain.** These two counters count *words of four bytes* (the kernel's documentation of sysfs for InfiniBand). If you take them for bytes, you read 1.5 GB/s, a port at a quarter of its load, and look elsewhere. It is 6.1 GB/s, all that 50 Gb/s can carry. And `symbol_error`, which counts small errors on the lanes of the link, grew by 14: the cable again.
#
# Three counters stand at 255, 65,535 and 4,294,967,295, and stay there. They are full. Old counters have 8, 16 or 32 bits, stop at their end, and tell nothing from then on:

# %%
for sign in ports.counter_signs(before):
    print(sign.sentence)

# %% [markdown]
# Here are the other commands of note 000. `ibv_devices` and `ibv_devinfo` use the same library as NCCL, so what they can open NCCL can open too. In a container this is the test. `mlnx_perf` reads the counters of the network interface once a second and converts them for you.

# %%
rdma_commands = ("ibstat", "ibv_", "rdma link", "mlnx_perf")
commands.how_to_read(*rdma_commands)

# %% [markdown]
# Now look at what three of them print. Each output has one line that matters. Which?

# %%
for name in ("ibv_devinfo_small_mtu", "rdma_link_polling", "mlnx_perf"):
    print(output(name).shown)

# %%
assert "active_mtu:             1024" in output("ibv_devinfo_small_mtu").text
assert "physical_state POLLING" in output("rdma_link_polling").text
left = output("mlnx_perf").text.strip().splitlines()
assert len(left) == 4 and all("rdma" in row for row in left)
assert round(6_184_976_384 * 8 / 1e6, 2) == 49_479.81

# %% [markdown]
# - `ibv_devinfo`: `active_mtu` is 1024, and the port could do 4096. Packets are a quarter as large, and each has its header.
# - `rdma link`: `mlx5_0` is ACTIVE and LINK_UP. `mlx5_1` is POLLING: it looks for another side and finds none, so its cable is missing, broken, or ends in a port that is switched off.
# - `mlnx_perf`: `ib0` is the network interface that carries **IP over InfiniBand**, and the tool prints all counters of its card. `| grep rdma` keeps the packets and bytes that RDMA received (rx) and sent (tx), NCCL's messages among them. It drops the traffic of the kernel's IP, and the errors. 49,480 Mbps are all that a port of 50 Gb/s can carry.
#
# The most frequent fault of all is a container without a device. Here is `ibv_devices` with a device, and then without:

# %%
for name in ("ibv_devices", "ibv_devices_none"):
    print(output(name).shown)

# %% [markdown]
# On Linux with network namespaces you can try a link that really is slow: `course demo pairwise --ranks 4 --two-nodes 50`, and again with 200.
#
# **Remember**
# - RDMA: the card reads registered, locked memory. No processor copies, and the kernel takes no part.
# - One slow link makes the whole ring as slow as itself. The bus bandwidth tells its rate, not its place.
# - `ibstat` for the rate, `ibstatus` for the lanes. Compare with the neighbours.
# - `port_xmit_data` times four gives bytes.

# %% [markdown]
# ## 16.5 Containers and pods
#
# A container starts with 64 MB of shared memory, no GPU and no network card, whatever the node has. A **container** (容器) is an ordinary process that sees only part of its machine: it has its own files, its own network and its own `/dev`. So everything above can be healthy on the node and missing inside. The notes start one like this:

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
# **Predict.** How many of these options are useless on a server with NVIDIA's GPUs?

# %%
useless = predict("16.flags", "Options of no use with NVIDIA?", yours=None)

# %%
from course_lib.chapters.ch16_cluster_clinic.commands import FLAGS, POD

plain_line = notes_line.replace("\\\n", " ")
not_nvidia = [f for f in FLAGS if f.flag in plain_line and f.nvidia == "no"]
expect(3, len(not_nvidia), label="options", yours=useless)

# %% [markdown]
# **Explain.** Three. The line was written for Hygon's DCUs, whose driver follows AMD's: `/dev/kfd` and `/dev/dri` are its devices, and `/opt/hyhal` is the part of it that lies on the host. The other options do the same on every node. `seccomp=unconfined`, for example, lets a program choose on which NUMA node its memory lies, whoever made the GPU. On a machine with NVIDIA's GPUs docker refuses the line, since there is no `/dev/kfd`. You will correct one like it in exercise 16.4. Here are the three vendors side by side:

# %%
commands.flags()

# %% [markdown]
# Two of these options weaken the container's walls. `seccomp=unconfined` removes docker's filter of system calls, and `SYS_PTRACE` lets a process look into the others in the container. Use them for debugging, on machines where you trust everyone. This is what you see when a device is missing:

# %%
print(output("docker_no_kfd").shown)
print()
print(output("docker_no_gpus").shown)

# %% [markdown]
# The second message means that the NVIDIA Container Toolkit is not installed on the host. Without it docker does not know what `--gpus` is.
#
# ### 64 MB
#
# `/dev/shm` is a folder that lies in memory. Processes on one machine use it to share data, so it is called **shared memory** (共享内存). Data loaders put whole batches there; NCCL uses it for messages between GPUs that have no better path. Docker's default is 64 MB (Docker's reference of `--shm-size`; exactly, 64 MiB). Is that little?
#
# A batch has 16 pictures, 3 × 224 × 224 numbers of fp32 each. The data loader has 4 workers, and each prepares 2 batches ahead (`prefetch_factor`, the default).
#
# **Predict.** How many MB lie in `/dev/shm` while the model trains on one more batch?

# %%
in_shm = predict("16.shm", "MB in /dev/shm?", yours=None, unit="MB")

# %% [markdown]
# Here is a program with this data loader. On Linux it can run with a `/dev/shm` of exactly 64 MiB, without docker, in a namespace of its own, which is what docker uses too. (Elsewhere the cell shows what was recorded.)

# %%
import sys

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
ends = ("No space left on device", "Resource temporarily unavailable", "Bus error")
assert any(end in said for end in ends)

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
# **Explain.** $(4 \cdot 2 + 1) \cdot 9.63 = 86.7$ MB, but 64 MiB are 67.1 MB. Two workers fit. With four, the program gets through a few batches and dies, at a different one each time. PyTorch's error begins with shared memory and ends with `No space left on device` (in torch 2.11 with `Resource temporarily unavailable`); if you read only the end, you check the disk, which has plenty of space. Other programs reserve the memory and only fail when they write to it; they die of a bare `Bus error`. NCCL puts it like this:

# %%
print(output("nccl_shm").shown)
for sign in logs.nccl_signs(logs.nccl_log(output("nccl_shm").text)):
    print("\n" + sign.sentence)

# %% [markdown]
# The remedy is `--shm-size=16G`, which is a limit and not a reservation, or `--ipc=host`. To look inside a running container: `df -h /dev/shm; ulimit -l`.

# %%
shm = containers.shared_memory(output("df_shm").text)
locked = containers.locked_memory_kbytes(output("ulimit").text)
for sign in containers.memory_signs(shm, locked):
    print(sign.sentence)

# %% [markdown]
# The second sign is the other limit. A process may lock 64 kB (8 MB since Linux 5.16), while RDMA locks everything that it sends. In docker: `--ulimit memlock=-1`.
#
# ### A pod
#
# Kubernetes runs containers in **pods** (容器组). What docker takes as options, a pod has as fields. The notes show the middle part of this one:

# %%
print(POD)

# %% [markdown]
# The node has four things that a container lacks until you pass them in:
#
# | the node has | docker's option | a pod's field | a container without it |
# |---|---|---|---|
# | **GPUs** | `--gpus all` | `limits: nvidia.com/gpu: 8` | no GPU |
# | **RDMA ports** | `--device=/dev/infiniband` | `limits: rdma/rdma_shared_device_a: 1` | NCCL takes TCP, silently |
# | **locked memory** | `--ulimit memlock=-1` | `capabilities: add: [IPC_LOCK]` | `ibv_create_cq` failed |
# | **shared memory** | `--shm-size=16G` | `emptyDir: {medium: Memory}` at `/dev/shm` | 64 MB, then Bus error |
#
# `requests` is what the scheduler looks for on a node; `limits` is the most that the container gets. For processors and memory the two may differ. A device cannot be promised twice, so for devices they must be equal: **limits** (资源限额) alone are enough, and `requests` alone are refused (Kubernetes, *Extended resources*). The name after `rdma/` is
# not standard; whoever set up the device plug-in chose it. If you misspell it, the pod waits indefinitely, and the end of `kubectl describe pod` says why:

# %%
print(output("kubectl_describe_pod_rdma").shown)
for sign in containers.event_signs(output("kubectl_describe_pod_rdma").text):
    print("\n" + sign.sentence)

# %% [markdown]
# **Remember**
# - A container lacks devices, `/dev/shm`, locked memory and the network until you pass them in.
# - `/dev/kfd`, `/dev/dri`: AMD and Hygon. `/opt/hyhal`: Hygon. `--gpus`: NVIDIA.
# - Shared memory: (workers × prefetch + 1) × batch. 64 MB are not enough.
# - In a pod: limits for GPU and RDMA, `IPC_LOCK`, an `emptyDir` in memory.

# %% [markdown]
# ## 16.6 What NCCL says
#
# NCCL chooses its network by itself and tells nobody. If it finds no InfiniBand, it takes TCP over whatever Ethernet there is. HDR carries 25 GB/s and 25-gigabit Ethernet 3.125: a factor of eight, and no error. So let it talk at the start of every large job:
#
# ```
# NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH torchrun …
# ```
#
# `INIT` is what it found, `NET` the network, `GRAPH` the rings and trees that it builds. (`TUNING` was in chapter 6.) Here are two logs:

# %%
print(output("nccl_socket").shown)

# %%
print(output("nccl_ib").shown)

# %% [markdown]
# Read the lines that begin with `NET/`, and the one with `Using network`. The first machine uses TCP, and one of its five interfaces is `virbr0`, a bridge to virtual machines that leads to no other node. (Newer versions of NCCL avoid `docker`, `lo` and `virbr` by themselves if there is something else.) In the second log everything is as
# it should be. The parser's opinion:

# %%
for name in ("nccl_socket", "nccl_ib", "nccl_open_device", "nccl_memlock"):
    signs = logs.nccl_signs(logs.nccl_log(output(name).text))
    print(f"{name}:")
    for sign in signs:
        print("  -", sign.sentence)

# %% [markdown]
# Which ranks talk over which path? The lines with `via` say it, one for each channel: `P2P` is NVLink or PCIe inside the node, `SHM` the shared memory of section 16.5, `NET/IB` the network. With GPUDirect RDMA a channel ends in `/GDRDMA`: `via NET/IB/3/GDRDMA`. Here is a job on two nodes that seemed healthy:

# %%
print(output("nccl_channels").shown)
without_gdr = logs.nccl_log(output("nccl_channels").text)
assert without_gdr.ways == {"P2P": 2, "NET/IB": 4}
for sign in logs.nccl_signs(without_gdr):
    print("\n" + sign.sentence)

# %% [markdown]
# nccl-tests had shown 33 GB/s, averaged over its sizes. A developer of NCCL noticed that this log nowhere says `GDRDMA`, and asked whether `nvidia-peermem` was loaded. It was not. With GPUDirect the same nodes reached 93 GB/s at 1 GB (NVIDIA/nccl issue 1412). Nothing had failed and nothing had warned: every byte went through the host's memory.
# (If NCCL finds that the card can't reach the GPU's memory, it also says `GPU Direct RDMA Disabled for HCA`.)
#
# ### Choosing ports
#
# Two variables choose. `NCCL_IB_HCA` names the RDMA cards (host channel adapter is InfiniBand's word for a card). `NCCL_SOCKET_IFNAME` names the interfaces for TCP, over which ranks find each other even when the data goes over RDMA.
#
# **Predict.** A node has twelve devices with a port each, `mlx5_0` to `mlx5_11`. How many of them does `NCCL_IB_HCA=mlx5_1` choose?

# %%
chosen = predict("16.hca", "Devices?", yours=None)

# %%
twelve = [f"mlx5_{number}" for number in range(12)]
settings = ("mlx5_1", "=mlx5_1", "^mlx5_1", "^=mlx5_3", "=mlx5_0,mlx5_2")
choices = {setting: logs.chosen(setting, twelve) for setting in settings}
expect(3, len(choices["mlx5_1"]), label="devices", yours=chosen)

# %%
rows = {
    f"{setting}\n{len(its)} of 12": {
        port: figures.Cell(
            port.removeprefix("mlx5_"),
            {0: "messages by this port" if port in its else "not chosen"},
        )
        for port in twelve
    }
    for setting, its in choices.items()
}
title = "NCCL_IB_HCA, and the devices mlx5_… that it chooses"
figures.cells(rows, title, heads=False)

# %% [markdown]
# **Explain.** Three: names are *prefixes*, and `mlx5_10` and `mlx5_11` match as well. A leading `=` means exactly these names, `^` all others, and `^=` all but exactly these. (NCCL's page of environment variables; `NCCL_SOCKET_IFNAME` follows the same rules.) So the node of section 16.4 can work on with `NCCL_IB_HCA=^=mlx5_3`, set on *all* nodes, since rings need
# the same ports everywhere. Remove it when the cable has been replaced. Forgotten in somebody's script, a variable like this costs a healthy cluster one port in every node.
#
# ### The table of nccl-tests
#
# `mpirun -np 2 ./all_reduce_perf -b 2M -e 16G -f 2 -g 1` measures NCCL alone, without your program, with one process for each GPU. For that it must have been built with `make MPI=1`. (Otherwise each of the two processes tests its own GPU alone, as one does without `mpirun`, and prints a table that looks real: the list of GPUs above it should name both.) Here it ran on two nodes, with one H100 and four ports of 400 Gb/s in each. The user expected $4 \cdot 50 = 200$ GB/s:

# %%
print(output("all_reduce_perf").shown)

# %% [markdown]
# **Predict.** In its last row, what percentage of *one* port, 50 GB/s, is the bus bandwidth?

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
# **Explain.** 83 %, and the user reports 50 GB/s at larger sizes. That is one port, however many there are. The reason is in the first line of their `topo -m`: this GPU has *one* port at `PIX`, and the others at `SYS`. Even if all were near, its PCIe 5.0 slot takes 63 GB/s one way. The other ports are for other GPUs. So compare with what a GPU can
# send, not with what a server has.
#
# At large sizes a healthy port comes near its rate, as this one did. For rings over NVLink 80 % is usual. Look at the last column first: `#wrong` must be 0. And remember from section 16.4 what the table can't say: with one slow port in 64 it shows that port's rate on every rank. Section 16.9 finds out whose it is.
#
# **Remember**
# - `Using network Socket` where there is InfiniBand: many times slower, and no error.
# - `NCCL_IB_HCA` takes prefixes; write `=` before the names.
# - `NET/IB` without `/GDRDMA`: every byte passes through the host's memory.
# - Compare the bus bandwidth at large sizes with one port, one way. A healthy port comes near its rate.
#
# *This is a good place to end the first sitting.*

# %% [markdown]
# ## 16.7 Hangs
#
# A program that crashes says where. A program that hangs says nothing until a time limit ends it: 10 minutes with NCCL, 30 with Gloo (the defaults of `init_process_group`). At 2 dollars per GPU-hour, 64 GPUs cost 21 dollars in ten minutes.
#
# The question is always the same: *which rank is not where the others are, and on which line?*
#
# ### The watchdog's message
#
# With NCCL, a thread of PyTorch called the **watchdog** (看门狗) checks every call, and ends the job when one takes too long. Each rank then prints pages. Here are three of those lines, from a training that died at the end of every epoch. Its author suspected the machine, since the program ran elsewhere:


# %%
print(output("watchdog").shown)

# %% [markdown]
# **Predict.** Rank 7 wrote its first line at 01:45:40. At how many minutes past one did things go wrong?

# %%
parted = predict("16.parted", "Minutes past one?", yours=None)

# %%
late_calls = logs.timeouts(output("watchdog").text)
expect(45 - 10, 45 - late_calls[0].limit_s / 60, label="minutes", yours=parted)

# %%
for sign in logs.timeout_signs(late_calls):
    print(sign.sentence)

# %% [markdown]
# **Explain.** At 01:35, so that is where to look in the other logs. This is how to read the message:
#
# | part | says |
# |---|---|
# | `SeqNum=80078` | the number of the call; each rank counts its own calls in a group |
# | `OpType`, `NumelIn` | which collective, and how many numbers this rank puts in |
# | `Timeout(ms)=600000` | the limit: this rank began to wait ten minutes before it wrote the line |
# | `last enqueued`, `last completed` | call 80077 is done; 80078 is the last that the program asked for |
#
# As its call 80078, rank 7 broadcasts 5,056 numbers while rank 3 all-reduces 2,106,881. No network can do that: the ranks of this *program* went different ways.
#
# A timeout has two kinds of causes, says a maintainer of PyTorch (issue 118369): either all ranks made the right call and the network failed, or, more likely, some rank did not make the right call in time. So compare the lines. Here is another job:

# %%
for sign in logs.timeout_signs(logs.timeouts(output("watchdog_same").text)):
    print(sign.sentence)

# %% [markdown]
# Only ranks that wait print this message. So if all lines name the same call, the rank to look at is the one *without* a line.
#
# ### Five tools
#
# They are ordered from quick to thorough.
#
# **1. A barrier that names.** `dist.monitored_barrier` is a barrier with a short time limit that reports who did not come. It works with Gloo only, but you can have a Gloo group beside NCCL (`dist.new_group(backend="gloo")`). Rank 2 is a second late:


# %%
from datetime import timedelta


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
# Only rank 0 knows. The others get an error about their connection to rank 0, which sends you to its log. Without `wait_all_ranks=True` rank 0 stops at the first rank that it misses, in order of their numbers, and names only that one.
#
# **2. A mismatch.** If all ranks are in a collective, but not in the same one, `TORCH_DISTRIBUTED_DEBUG=DETAIL` makes them compare each call before they make it. That is slow, so use it only for debugging. Here rank 1 brings five numbers where the others have four:


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
# **3. The stack of a living process.** The functions that have called each other, one on top of the other, are the **stack** (调用栈). `py-spy dump --pid` shows a Python process's stack without ending it. In a container it usually needs `--cap-add=SYS_PTRACE`. This was recorded on our own machine, for two ranks, one after the other:

# %%
print(output("py-spy_dump").shown)

# %% [markdown]
# Read the first line below each `Thread`. Process 3510 is in `all_reduce`: it waits. Process 3511 is in `forward`, line 4 of your program: the other waits for it. With 64 ranks, look for the one stack that differs.
#
# **4. The flight recorder** (飞行记录器). Each rank keeps its last collectives in a ring buffer (`TORCH_FR_BUFFER_SIZE=2000`). With `TORCH_NCCL_DUMP_ON_TIMEOUT=1` the watchdog writes them to a file per rank: `~/.cache/torch/comm_lib_trace_rank_0` and so on, or `FOLDER/trace_0` if you set `TORCH_FR_DUMP_TEMP_FILE=FOLDER/trace_`. All nodes should share that folder. The command `torchfrtrace --prefix trace_ FOLDER` compares the files. PyTorch's tutorial has this example: two ranks make four all-reduces of 3 × 4 numbers each, and rank 0 makes one more, of 4 × 5 numbers, as its third. The tool reports:


# %%
print(output("torchfrtrace").shown)

# %% [markdown]
# **Predict.** It names collective 5, which rank 1 did not join. How many of rank 0's five calls met another call than the one that they were meant for, or none?

# %%
unmatched = predict("16.differs", "Calls without their partner?", yours=None)

# %%
from course_lib.chapters.ch16_cluster_clinic.diagnosing.divergence import (
    first_divergence,
)
from itertools import zip_longest

sizes = {0: [(3, 4), (3, 4), (4, 5), (3, 4), (3, 4)], 1: [(3, 4)] * 4}


def entry(number, size):
    """What the recorder keeps of a call, in the part that counts here."""
    call = {"profiling_name": "nccl:all_reduce", "is_p2p": False}
    return call | {
        "collective_seq_id": number,
        "input_sizes": [size],
        "input_dtypes": ["Float"],
    }


recorded_calls = {
    rank: [entry(number, size) for number, size in enumerate(its, 1)]
    for rank, its in sizes.items()
}
number, odd_ranks = first_divergence(recorded_calls)
assert odd_ranks == ()  # of two ranks, nobody knows which is wrong

meant = zip_longest(["A", "B", "extra", "C", "D"], ["A", "B", "C", "D"])
counted = sum(one != other for one, other in meant)
expect(1 + 5 - number, counted, label="calls without partner", yours=unmatched)

# %%
figures.flight_records(
    {
        f"rank {rank}": [f"{rows} × {columns}" for rows, columns in its]
        for rank, its in sizes.items()
    },
    "Calls by number, and the sizes that were all-reduced",
)

# %% [markdown]
# **Explain.** Three: the ranks part at number 3, and from there on each call of rank 0 meets the next one of rank 1. Only for its fifth is there no partner left. A hang shows where the ranks *stopped*; the record shows where they *parted*.
#
# We gave these records to the `torchfrtrace` of torch 2.13. It also reports number 3, but with the words "Culprit rank 1", since it takes rank 0's record as the right one. Here the bug is on rank 0. So read *where* the ranks differ, and decide yourself who is wrong. In exercise 16.13 you write a comparison that accuses only a minority.
#
# **5. All of it together.** With `launch.run(…, record=FOLDER)` or `course demo NAME --record FOLDER` each rank keeps a page with its stack and its collectives. `course diagnose FOLDER` reads the pages, or the recorder's files, and answers in one sentence.
#
# A program of your own needs one line, anywhere before it hangs, and the folder from outside:
#
# ```
# import course_lib.record                                      # in train.py
# COURSE_RECORD=here torchrun --nproc-per-node=3 train.py       # in the terminal
# ```
#
# You may not edit the program? Then start it as `COURSE_RECORD=here torchrun --nproc-per-node=3 -m course_lib.record train.py`. The variable alone does nothing: Python must load something that reads it. Rank 0 prints where the pages go, or that nothing is recorded.
#
# Now a real hang. Three ranks train a model with FSDP2. In update 3, rank 2 waits for a batch that does not come.


# %%
from torch import nn
from torch.distributed.fsdp import fully_shard


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


# %%
import tempfile
from pathlib import Path

folder = Path(tempfile.mkdtemp(prefix="clinic_"))
try:
    launch.run(train, ranks=3, timeout_s=12, stream=False, record=folder)
except launch.RankFailed as failure:
    print(str(failure).splitlines()[0])

# %% [markdown]
# That is all that a time limit knows: nobody came back. Now `course diagnose` on the same folder:

# %%
diagnosis = diagnosing.diagnose(folder)
print(diagnosis.report())
assert diagnosis.finding.ranks[0] == 2

# %% [markdown]
# (A cell has no file name, so its lines stand under a number. In a program of yours it would say `train.py:4`.)

# %%
stacks = [record.stack for record in diagnosing.reading.read(folder).records]
shutil.rmtree(folder)
stack = stacks[0]
own = max(place for place, line in enumerate(stack) if line.own)
print(f"{len(stack) - own - 1} lines between yours and the collective that waits")
assert len(stack) - own - 1 >= 8

# %% [markdown]
# The three stacks side by side, from your first line at the bottom to where each rank is at the top. Compare the tops.


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
# **Explain.** Note 001 says that FSDP, being "deeply integrated", is harder to debug than plain data parallelism. Here is how much. Your line does not mention communication at all. Under it, modules call modules, then come FSDP2's hook before each unit, a wrapper that keeps the compiler out, the unshard and the gather: eighteen
# lines in torch 2.13, where a bare `dist.all_reduce` has two. DDP has only three in its backward pass, but there Python's stack ends at `backward()`, because C++ starts the all-reduce. And on a GPU the backward pass runs on a thread that belongs to autograd (PyTorch, *Autograd mechanics*), whose stack does not contain your line at all.
#
# Two habits help. Read a stack from the *inside*, and stop at the first line of your own. And compare ranks, not lines: one of the stacks is different.
#
# How far can you trust such a sentence? We tried it on 525 launches, most with a random fault and some healthy. In 523 the cause, the rank and the line were right (`benchmarks/README.md`). Where two ranks call different things and nothing shows which is wrong, it says so and accuses neither. Try it on the demo's faults, from `kill` to `cycle`:
#
# ```
# course demo faults --kind loader --ranks 3 --timeout 6 --record here
# course diagnose here
# ```
#
# **Remember**
# - A hang poses one question: which rank is elsewhere, and where?
# - The watchdog's lines: different calls mean the program; one call for all means a missing rank, or the network.
# - Read a stack from the inside to the first line of your own. Then compare the ranks.

# %% [markdown]
# ## 16.8 Is it a bug or rounding?
#
# A small model trains on one GPU, and again with TP 2. The losses are close, but not equal. Is that rounding, or is something silently wrong? Issue 1736 of Megatron-LM asks this. Nine days later its author reported a bug: after 2,000 updates the two losses were more than 50 % apart (issue 1754).
#
# The demo `one_update` writes all tensors of one update into a folder: the weights, the output of each module, the loss, and the gradients of all of them. It runs once as one process, and twice on two tensor-parallel ranks with the same weights and samples. One of the two parallel runs is right, the other has a bug:

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
# The bug is easily made. In front of an MLP stands the function f, which does nothing in the forward pass and adds up the gradients of all ranks in the backward pass (chapter 10). In one layer somebody forgot to add.
#
# **Predict.** The loss of one process is 4.79. By what percentage does the loss of the broken run differ from it?

# %%
loss_gap = predict("16.loss_gap", "Percent?", yours=None, unit="%")

# %%
gap = 100 * abs(broken.loss - alone.loss) / alone.loss
assert gap < 1e-4
expect(0, round(gap, 3), label="loss off by", unit="%", yours=loss_gap)

# %%
for run in (alone, right, broken):
    print(f"{Path(run.folder).name:<7}{run.loss:.7f}")

# %% [markdown]
# **Explain.** Not at all. f does nothing in the forward pass, so only wrong gradients can change the loss, from the second update on. The loss is a poor witness: it speaks late, and says neither where nor why. So compare what it is made of, tensor by tensor:

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
# Each mark is one tensor. Its height says how many times the typical rounding it is off. All tensors of the forward pass agree, and so do gradients, down to the MLP of layer 1; the gradient of the MLP's *input* does not. That is where f stands. The report has one more hint: each rank's gradient is wrong alone, but their *sum* is right. So an all-reduce is missing.
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
# Where does the report's `rounding` column come from? A number in fp32 has 24 binary digits. Rounding changes it by at most half of the last one, so relative to its size by at most $u = 2^{-24}$, the **unit roundoff** (单位舍入误差). Other formats have fewer digits:
#
# | | fp32 | fp16 | bf16 | fp8 (E4M3) |
# |---|---|---|---|---|
# | binary digits | 24 | 11 | 8 | 4 |
# | $u$ | 1 / 16,777,216 | 1 / 2,048 | 1 / 256 | 1 / 16 |
#
# So each number in bf16 is off by up to 0.4 %. That is one rounding. A sum of $n$ numbers makes $n - 1$.
#
# **Predict.** 4,096 numbers are added one after the other in fp32. By how many millionths is the sum off, typically?

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
expect(..., 1e6 * one_by_one, label="millionths", yours=typical)

# %%
walk = rounding.typical_sum_error(4096, "fp32")
print(
    f"√n · u is {1e6 * walk:.1f} millionths, {walk / one_by_one:.1f} times the measured"
)
assert 1 < walk / one_by_one < 5

# %% [markdown]
# **Explain.** 4,095 roundings that all err the same way would add up to about $n \cdot u$, 244 millionths; no order of summation is worse than $\gamma_n = nu/(1-nu)$ (Higham 2002, *Accuracy and Stability of Numerical Algorithms*, section 3.1). But some err up and some down. As in a random walk, typically $\sqrt{n} \cdot u$ is left (Higham and Mary 2019): $64 \cdot 2^{-24} = 3.8$ millionths. The measured
# error is a few times smaller, because most roundings are smaller than $u$, and because the first ones are made on a small total. The formula gives the size, not the exact value.

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
# `torch.sum` adds up blocks, and then adds the blocks. A matrix product on a GPU does much the same. This is also why tensor parallelism *must* change the result: two ranks add up two halves and then the two sums. That is another order of the same additions, and neither order is the right one.
#
# Each step of a network adds another rounding, so after $k$ tensors `course compare` expects $\sqrt{k}$ times as much as after one. Up to 4 times that it says "rounding", above 16 times "more than rounding", in between "don't know". The two factors are conventions. In the course's benchmark (benchmarks/README.md) they accused none of 120 right runs, and named
# the right tensor in 340 of 360 runs with 14 kinds of bugs. What about the other 20?
#
# ### A bug that hides
#
# A layer norm divides by $\sqrt{\text{variance} + \varepsilon}$. In PyTorch $\varepsilon$ is $10^{-5}$. Some models were trained with $10^{-6}$; load one with the other value, and everything seems to work. We run the right and the wrong version, once in fp32 and once in bf16:
#
# **Predict.** In one of the two precisions the comparison says "rounding". How many bits does a number have there, 16 or 32?

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

# %%
shutil.rmtree(runs)
figures.tensor_by_tensor(
    {f"in {precision}": one.tensors for precision, one in found.items()},
    "The same bug in two precisions",
)

# %% [markdown]
# **Explain.** The bug changes the norm's output by 0.013 %. In fp32 that is forty times the rounding. In bf16 each number is rounded by up to 0.4 %, and the bug drowns: no method can find it there. The remedy needs no tool:
#
# > **Record both runs again with more digits.** From bf16 to fp32, rounding becomes 65,536 times smaller. A bug stays as large as it is.
#
# So debug in fp32 even if you train in bf16, with a model of two layers, on the CPU if need be. What shows only in bf16 then comes from bf16 itself, such as a sum that somebody accumulates in 16 bits.
#
# ### Why the first update?
#
# Take two runs that are both right, in one process with the same samples. The second computes the loss of each half of the batch and averages the two, which is another order of the same sum.
#
# **Predict.** At the first update the losses agree to 0.00001 %. By what percentage do they differ at most between updates 250 and 300?

# %%
apart = predict("16.apart", "Percent, at most?", yours=None, unit="%")


# %%
from course_lib.demos.shared.training import Training, mean_loss, one_process, rows_of


def in_halves(model, batch):
    return sum(mean_loss(model, rows_of(batch, half, 2)) for half in range(2)) / 2


tiny = {"model": "2x32x2", "sequence": 16, "batch": 4}
long_run = Training(**tiny, steps=300, learning_rate=1e-2)
whole = one_process(long_run).losses
halves = one_process(long_run, loss_of=in_halves).losses
gaps = [abs(b / a - 1) for a, b in zip(whole, halves, strict=True)]
figures.loss({"the whole batch": whole, "in halves": halves})

# %% [markdown]
# To the eye that is one curve. How far apart are the two?

# %%
last = max(gaps[250:])
assert max(gaps[:50]) < 1e-6 < last
expect(100 * last, label="at most", unit="%", yours=apart)

# %%
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
# **Explain.** For a hundred updates nothing happens, and then the difference grows by factors, up to some percent. (Theory has no formula here: your machine's number is its own.) Training at a high learning rate amplifies small differences, as weather does. Both runs are right, and
# neither is *the* right one. So two loss curves that part after 2,000 updates prove nothing by themselves, and two that stay together prove little. (Issue 1754 trains with Adam at a learning rate of 0.3, far above what is usual.) Compare the first update, before anything has been amplified.
#
# ### Your own model
#
# `comparing.record` attaches itself to any model, on any number of ranks, and each rank writes what it has. Record one process first:
#
# ```python
# with comparing.record(model, "two") as run:   # "one" in the run of one process
#     loss = loss_of(model(inputs), labels)
#     run.loss(loss)
#     loss.backward()
# ```
#
# Then run `course compare one two`. Start both runs from one checkpoint, and switch dropout off. A tensor may be whole on every rank or cut along any dimension, and ranks may have different samples: the comparison works that out by itself. What it can't read it lists as "not compared". Check how long that list is.
#
# TTrace has the same idea for Megatron-LM. It measures its bounds with small perturbations, and found 11 known and 3 new bugs (arXiv:2506.09280). For practice, let somebody else choose a bug from `course demo one_update --help`, and find it.
#
# **Remember**
# - One rounding: $u$. A sum of $n$: typically $\sqrt{n} \cdot u$. Another order gives another result, and both are right.
# - Compare the first update, tensor by tensor. The bug is where the first tensor differs.
# - If in doubt, use more digits: rounding shrinks, a bug stays.

# %% [markdown]
# ## 16.9 Stragglers, and whose fault it is
#
# Nothing hangs and nothing is wrong; it is only slow. One of 64 ranks computes 10 % more slowly than the others, because it sits in a warm corner of the rack. Together the 64 have lost 0.14 % of their speed.
#
# **Predict.** By what percentage do the *steps* get longer, if computing is all that takes time?

# %%
longer = predict("16.straggler", "Percent longer?", yours=None, unit="%")

# %%
shared = slowest.shared_work_factor(64, 0.1)
factor = slowest.straggler_factor(0.1)
expect(100 * (factor - 1), label="longer", unit="%", yours=longer)

# %%
ranks = [2**power for power in range(11)]
divided = [(n, 100 * (slowest.shared_work_factor(n, 0.1) - 1)) for n in ranks]
figures.lines(
    {"equal work": [(n, 100 * (factor - 1)) for n in ranks], "work by speed": divided},
    "ranks, of which one is 10 % slower",
    "% by which a step gets longer",
    "One of them is enough",
    doubling=(True, False),
    mark={"64 ranks": 64},
)

# %% [markdown]
# **Explain.** By ten. All ranks get equal work and wait for the last one, the **straggler** (掉队者). The time of a step is the *maximum* over the ranks, not the mean. Here it is with four ranks that compute for 50 ms, one of which takes half as long again:


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
expect(slowest.straggler_factor(0.5), longer_by, within=None, label="factor")

# %%
figures.lanes(
    {f"rank {rank}": did for rank, (_, did) in enumerate(lagging)},
    "Six updates, with a straggler",
)

# %% [markdown]
# No part needs to be broken. If every rank takes 100 ms, give or take 2 ms at random, one of them is always late.
#
# **Predict.** How long is the average step of 64 such ranks?

# %%
average = predict("16.noise", "Milliseconds?", yours=None, unit="ms")

# %%
torch.manual_seed(0)
times_ms = 100 + 2 * torch.randn(20_000, 64)  # steps, ranks
last_ms = times_ms.max(dim=1).values
drawn = last_ms.mean().item()
by_theory = 1000 * slowest.expected_slowest_s(64, 0.1, 0.002)
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
    return 1000 * slowest.expected_slowest_s(ranks, 0.1, noise_ms / 1000) - 100


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
# **Explain.** 104.7 ms. On average the largest of 64 normal values lies 2.34 deviations above their mean, and the largest of 1,024 lies 3.25. So a large job is a little slower than a small one, with every part in order.
#
# ### Naming it
#
# Who is it? The time of a step is the same on all ranks. The time *inside the collective* is not.
#
# **Predict.** For each of the four ranks above, add up how long it waited. Which rank waited least?

# %%
least = predict("16.least", "Rank?", yours=None)

# %%
waited = [
    sum(end - start for what, start, end in did if what == "waiting")
    for _, did in lagging
]
# found from times: shown, not judged
expect(2, waited.index(min(waited)), within=None, label="rank", yours=least)

# %%
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
# **Explain.** Rank 2, the straggler: it comes last, so it waits least. That is section 16.3 again. Log both times on each rank, computing and waiting, and look for the rank that never waits. A monitor of whole steps sees nothing.
#
# If the network is slow, comparing ranks doesn't help, and you test pairs. A pair is fast only if both ends and the path between them are. You could test all pairs, but you need not.
#
# **Predict.** There are 64 ranks, and in each round every rank is in one pair. Testing all pairs takes 63 rounds. How many rounds are enough to name one slow rank, if each rank meets the ones at distance 32, 16, 8, …, 1?

# %%
enough = predict("16.rounds", "Rounds?", yours=None)

# %%
expect(6, len(pairwise.rounds(64)), label="rounds", yours=enough)

# %%
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
# The demo does this on four real ranks. Rank 2 sends 10 ms late:

# %%
tested = demos.run("pairwise", ranks=4, stream=False, slow="2", slow_ms=10.0, passes=2)
print(tested.found.explain())
figures.pair_rates(tested.tests, tested.found, "Four ranks, two rounds")

# %% [markdown]
# **Explain.** Six rounds for 64 ranks, and two for these four. Pairs without rank 2 are fast, and all pairs with it are slow, so it is the rank and not a link. If only one pair were slow, it would be the path between the two. If all pairs between two halves were slow, it would be whatever joins the halves, such as a switch. Halving has a blind spot: two ranks that
# never meet are never tested. `--schedule all` lets everybody meet.
#
# Without such a program you can halve the job itself. Run all_reduce_perf on each half of the nodes, then on the halves of the slow half, and so on. Of 64 nodes five rounds leave two. In a sixth, test each of them with a healthy node.
#
# **Remember**
# - A step takes the maximum over the ranks: one of 64 at 10 % costs 10 %.
# - The straggler is the rank that waits least.
# - Slow pairs: all with one rank, the rank; just one pair, the link; all between two halves, what joins them.

# %% [markdown]
# ## 16.10 Two nodes slower than one
#
# Somebody fine-tunes a model of 1.54 billion parameters (Qwen2-1.5B) with ZeRO stage 3. On one node with 2 GPUs, forward and backward take 1.03 s. On two such nodes they take **4.11 s** (issue 5770 of DeepSpeed): twice the hardware, and four times the waiting. The author worked out the network's load and wrote that it was not to blame. Was it?
#
# Under stage 3 each rank sends three times $\frac{n-1}{n}$ of the weights for each micro-batch: two gathers and a reduce-scatter (chapter 8).
#
# **Predict.** There are four ranks, and weights and gradients of 2 bytes each. If the network takes all the extra time, how many Gbit/s does it carry?

# %%
carried = predict("16.carried", "Gbit/s between the nodes?", yours=None, unit="Gbit/s")

# %%
sent_bytes = zero.sent_bytes(1_540_000_000, 3, 4, Recipe())
one_node_s, two_nodes_s = 0.357 + 0.673, 1.6 + 2.51  # forward, backward
extra_s = two_nodes_s - one_node_s
expect(8 * sent_bytes / extra_s / 1e9, unit="Gbit/s", label="carried", yours=carried)

# %%
print(f"{sent_bytes / 1e9:.1f} GB in {extra_s:.2f} s")

# %%
figures.stacked_bars(
    {
        "1 node, measured": {"one node": one_node_s},
        "2 nodes, measured": {
            "one node": one_node_s,
            "what came with the second": extra_s,
        },
        "over 25 Gbit/s": {"the bytes alone": 8 * sent_bytes / 25e9},
        "over 200 Gbit/s": {"the bytes alone": 8 * sent_bytes / 200e9},
    },
    "Forward and backward, and what their bytes take on two networks",
    "{:.2f} s".format,
    colours={
        "one node": style.COMPUTING,
        "what came with the second": style.IDLE,
        "the bytes alone": style.MESSAGES,
    },
)

# %% [markdown]
# **Explain.** 6.9 GB in 3.1 s are 18 Gbit/s, what a port of 25 Gbit/s might really carry. (The issue doesn't name the port; the arithmetic is ours. It also prints 2.46 and 8.68 s for an iteration: that is two such micro-batches and 0.4 s for the update, on one node as on two.) So probably *nothing is broken there*: the network is as fast as it was sold, and far too slow for this job. Two questions have different remedies:
#
# 1. Does a link carry less than it should? Then find it and repair it.
# 2. Are all links healthy, and is it still not worth it? Then change the job.
#
# ### On two nodes of your own
#
# `--two-nodes 50` builds two nodes inside one Linux machine and joins them by a link of 50 Mbit/s (section 6.8). DDP trains a GPT with 0.8 million parameters there, one rank on each node. Not every machine allows that, so here is a recorded run. (Where it is not possible, `course demo ddp --two-nodes 50` says why.)
#
# **Predict.** An update takes 0.045 s on one node. The gradients are 3.3 MB. How many seconds does an update take on two nodes?

# %%
update_s = predict("16.update", "Seconds for an update?", yours=None, unit="s")

# %%
import json

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
# **Explain.** An all-reduce over two ranks sends $\frac{2(n-1)}{n} = 1$ times the gradients over the link: 3.3 MB at 6.25 MB/s take 0.53 s, whatever the processors do. The rest of the gap has other reasons: both "nodes" share one machine's memory, and the link also carries headers.
#
# An update on two nodes uses twice as many samples. So compare samples per second:

# %%
for name in ("2 nodes, 200 Mbit/s", "2 nodes, 50 Mbit/s"):
    print(f"{name}: {2 * measured['1 node'] / measured[name]:.2f} times one node")
assert 2 * measured["1 node"] < measured["2 nodes, 200 Mbit/s"]

# %% [markdown]
# Two nodes are slower than one, over either link.
#
# ### First: is a link slow?
#
# The step time doesn't say which link. Pairs of ranks do (section 16.9). Here are four ranks, two on each node. Every pair was tested several times, and its fastest time counts:

# %%
matrix = recorded("two_nodes_pairs")
tests = [
    pairwise.PairTest(first, first + 1 + place, 1e6 * float(cell))
    for first, row in enumerate(matrix.splitlines()[3:6])
    for place, cell in enumerate(row.split()[1:])
]
named_part = pairwise.name_slow(tests)
print(named_part.explain())
assert named_part.groups == ((0, 1), (2, 3))
figures.pair_rates(tests, named_part, "Two nodes of two ranks, joined by 50 Mbit/s")

# %% [markdown]
# Fast pairs join the ranks into groups, {0, 1} and {2, 3}, and all four slow pairs lie between the groups. So whatever joins the groups is to blame, not a rank or a single port. Compare the rate with the data sheet's, in bytes and one way: 50 Mbit/s are 6.25 MB/s, and 5.9 of them arrive as tensors. So this
# link delivers what it promised, and the second question is left. (In a cluster, with one rank on each port: `torchrun … -m course_lib.demos pairwise`.)
#
# ### Second: is it worth it?
#
# One node computes for $c$ = 0.045 s in an update. Of the exchange, $x$ = 0.53 s are not hidden. Nodes can have the same samples each as one had (weak scaling), or divide its batch (strong scaling). When do more nodes win?
#
# | | each of 2 nodes computes | 2 nodes win if | $n$ nodes win if |
# |---|---|---|---|
# | weak: twice the samples in less than twice the time | $c$ | $x < c$ | $x < (n-1)\,c$ |
# | strong: the same samples in less time | $c/2$ | $x < c/2$ | $x < \frac{n-1}{n}\,c$ |
#
# The right-hand sides grow with the batch, $x$ doesn't. So from some batch on, a second node always pays:

# %%
for same_batch in (False, True):
    more = MoreNodes(measured["1 node"], exchange_s, same_batch=same_batch)
    kind = "strong" if same_batch else "weak"
    print(
        f"{kind}: {more.speedup:.2f} times, even at {more.break_even_batches:.1f} batches"
    )

# %% [markdown]
# A larger batch without more memory is accumulation (chapter 2): several micro-batches, one exchange.
#
# **Predict.** Over 200 Mbit/s, let both nodes accumulate 8 micro-batches per update. How many times the samples per second of one node do two nodes reach?

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
# **Explain.** From 0.43 to 1.2. The exchange is as long as before, but eight times as much computing stands beside it. (Theory expected 1.5; the two cores of the recording had other work too.) Over 50 Mbit/s eight are not enough: the lines above ask for 12.
#
# Everything that makes $x$ smaller moves the break-even. Try these in order:
#
# | measure | what it does to the exchange |
# |---|---|
# | NCCL on the right network (`NCCL_DEBUG=INFO` says `NET/IB`, not `NET/Socket`; section 16.6) | often ten times the rate |
# | accumulation, or a larger micro-batch | the same bytes, less often |
# | ZeRO stage 3 or FSDP only *within* a node (HSDP, chapter 9), or stage 2 | weights no longer cross the network in each micro-batch |
# | TP within the node only (chapter 10) | its all-reduces, several in each layer, stay inside |
# | bf16 gradients, local SGD (chapter 14) | half the bytes, or an exchange in every $k$-th update |
#
# In the DeepSpeed case accumulation alone would not help, because under stage 3 the gathers come with each micro-batch. Stage 2 or a hybrid shard would.
#
# **Remember**
# - Compare samples per second, not seconds per update.
# - First test pairs: they name the slow rank, link or half. Then compare with the data sheet.
# - Two healthy nodes beat one only if $x < c$, or $x < c/2$ for the same batch. The batch decides.

# %% [markdown]
# ## 16.11 The clinic's first page
#
# Begin with what you see, and ask one question. The section says how to read the answer.
#
# | | you see | ask first | section |
# |---|---|---|---|
# | **won't start** | `is_available()` is False | `nvidia-smi` inside the container; `--gpus` | 16.1, 16.5 |
# | | out of memory on an empty GPU | `nvidia-smi pmon -s um -c 1` | 16.2 |
# | | `ibv_create_cq` failed | `ulimit -l`; `IPC_LOCK` | 16.5 |
# | | the pod is Pending | `kubectl describe pod`, its last lines | 16.5 |
# | | the rendezvous times out | `--net=host`, `NCCL_SOCKET_IFNAME` | 15.2, 16.5 |
# | **dies** | a GPU is gone, “uncorrectable” | the lines with Xid in `dmesg -T` | 16.2 |
# | | Bus error, No space left on device | `df -h /dev/shm` | 16.5 |
# | **hangs** | all show 100 %, nothing moves | who shows less in `pmon`; `py-spy dump` | 16.3, 16.7 |
# | | in the first all-reduce | `DETAIL`; `monitored_barrier`; interface | 16.7 |
# | | after hours | `course diagnose`: the stack that differs | 16.7 |
# | | “Watchdog caught collective …” | `SeqNum`, `OpType`, `NumelIn` of all ranks | 16.7 |
# | **is slow** | all ranks, since yesterday | `ibstat` everywhere; symbol errors; `dmon` | 16.4, 16.2 |
# | | many times slower than planned | `NCCL_DEBUG=INFO`: `Using network` | 16.6 |
# | | some percent longer | time in the collective, by rank; pairs | 16.9 |
# | | two nodes slower than one | bytes of a step over the link | 16.10 |
# | **is wrong** | another loss than on one GPU | `course compare` | 16.8 |

# %% [markdown]
# ## What to remember
#
# 1. Every command looks at one part. Know which, and what it can't say.
# 2. 100 % is time, not work. Power, memory traffic and MFU show work.
# 3. A ring is as fast as its slowest link, and a step as fast as its slowest rank. The factor is that part's own.
# 4. Ask of every rate: one way or both, one link or all, bits, bytes or words.
# 5. A container lacks devices, shared memory, locked memory and the network until you pass them in.
# 6. In a hang compare ranks. One stack is different: that of the rank that does not wait.

# %%
from course_lib import quiz

quiz("16")

# %% [raw] tags=["quiz"]
# All GPUs of a job show 100 %. What do you know?
# [ ] they compute at their peak
# [x] some kernel ran all the time, perhaps one that waits
# [ ] the network is not the limit
# Why: Utilization counts time, and waiting for other ranks is a kernel.
#
# A job hangs. pmon shows 99 % on seven GPUs and nothing on the eighth. Where do you look?
# [ ] at the seven
# [x] at the eighth
# [ ] at the network
# Why: The seven wait inside a collective; the eighth is the one that has not come.
#
# 63 of 64 ranks print 'Watchdog caught collective operation timeout' with the same SeqNum and OpType. Where do you look?
# [ ] at the network
# [x] at the rank without the line
# [ ] at the rank that printed it first
# Why: Only ranks that wait print it; the one that never made the call has nothing to say.
#
# One of 64 links of a ring has a quarter of its rate. An all-reduce of 4 GB takes …
# [ ] 1/64 longer
# [ ] three quarters longer
# [x] four times as long
# Why: Every piece passes over every link, and everybody waits for the slowest.
#
# port_xmit_data grows by 5,000,000,000 in 1 s. How much does the port send?
# [ ] 5 GB/s
# [x] 20 GB/s
# [ ] 0.625 GB/s
# Why: It counts words of four bytes.
#
# ibstatus says 100 Gb/sec (2X HDR). What is wrong?
# [x] two of four lanes are gone
# [ ] it is an older card
# [ ] nothing
# Why: HDR is 50 Gb/s for each lane, and a cable has four.
#
# A data loader dies with 'No space left on device', and the disk is empty. What is full?
# [ ] the GPU's memory
# [ ] locked memory
# [x] /dev/shm
# Why: Workers pass batches through it, and a container has 64 MB of it.
#
# Which capability lets a pod lock the memory that RDMA reads and writes?
# [ ] SYS_PTRACE
# [x] IPC_LOCK
# [ ] seccomp=unconfined
# Why: SYS_PTRACE is for py-spy; seccomp is docker's filter of system calls.
#
# NCCL_IB_HCA=mlx5_1 on a node with mlx5_0 to mlx5_15. How many devices are used?
# [ ] 1
# [x] 7
# [ ] 16
# Why: Names are prefixes: mlx5_1 and mlx5_10 to mlx5_15.
#
# One of 1,024 ranks computes 5 % more slowly. How much longer is a step of pure computing?
# [x] 5 %
# [ ] 0.005 %
# [ ] it depends on the network
# Why: All wait for the slowest: the maximum, not the mean.

# %% [markdown]
# **Now you:** open [the exercises](../exercises/16_cluster_clinic.ipynb). Exercise 16.11 is a hunt: three real ranks, a hidden fault, and a clock.
#
# **Read on.** NVIDIA, *GPU Deployment and Management* (docs.nvidia.com/deploy): nvidia-smi, Xid errors, memory errors. NCCL, *Environment Variables* and *Troubleshooting* (docs.nvidia.com/deeplearning/nccl). Bekman, *Machine Learning Engineering*, the chapters on debugging and on accelerators. AMD SMI and ROCm in docker (rocm.docs.amd.com). PyTorch, [*Flight
# Recorder for Debugging Stuck Jobs*](https://docs.pytorch.org/tutorials/prototype/flight_recorder_tutorial.html). Llama 3, section 3.3.4 (arXiv:2407.21783), on stragglers and what the recorder found.

# %% [markdown] tags=["exercise"]
# ## Exercises

# %% tags=["exercise"]
import statistics

from course_lib import check, hint, mine, solution
from course_lib.chapters.ch16_cluster_clinic import containers
from course_lib.chapters.ch16_cluster_clinic.hunting import hunt, table
from course_lib.clinic import ports
from course_lib.clinic.recorded import output

# %% [markdown] tags=["exercise"]
# ### 16.1 Calculate: words on a wire
#
# Here are two readings of a port's counters, ten seconds apart. How many GB/s did it send, and how many did it receive? What fraction of an HDR port did it use for sending? Older devices count in 32 bits and stop at the end. At this rate, after how many seconds would such a counter of
# sent data say nothing more?

# %% [raw] tags=["hints"]
# By how much have port_xmit_data and port_rcv_data grown? In what unit do they count?
# A word has 4 bytes: 4 · difference / 10 s. HDR's 200 Gb/s are 25 GB/s, one way.
# An old counter stops at 2^32 - 1 words: how many bytes are those, at your rate?

# %% tags=["exercise"]
for name in ("counters", "counters_later"):
    lines = output(name).text.splitlines()
    print(*(line for line in lines if "_data" in line), sep="\n")

# %% tags=["exercise"]
sent_gb_s, received_gb_s, part, seconds = ..., ..., ..., ...
### BEGIN SOLUTION
readings = [
    ports.counters(output(name).text) for name in ("counters", "counters_later")
]
rates = ports.rates(*readings, seconds=10)
sent_gb_s = rates.sent_bytes_per_s / 1e9
received_gb_s = rates.received_bytes_per_s / 1e9
part = sent_gb_s / 25
seconds = 2**32 * 4 / rates.sent_bytes_per_s
### END SOLUTION
check("16.1", [sent_gb_s, received_gb_s, part, seconds])

# %% [markdown] tags=["exercise"]
# ### 16.2 Predict: how many lanes?
#
# Here are six lines of `ibstatus`, all for cables with four lanes. How many times as fast would each port be if all its lanes worked? Write 1 where they do.

# %% [raw] tags=["hints"]
# What does the number before the X count?
# A cable has four lanes. HDR names the rate of one: 50 Gb/s. EDR's is 25, NDR's 100.
# A port of an older generation is not broken: all of its lanes may work.

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
# ### 16.3 Calculate: one slow port of 128
#
# 16 nodes have 8 GPUs and 8 NDR ports of 50 GB/s one way each. NCCL all-reduces 8 GB over eight rings; each has a port of its own in every node and carries an eighth of the bytes. Ignoring latency, how many ms does that take? Then one of the 128 ports
# falls back to one lane, 12.5 GB/s. How many ms does it take now, and which bus bandwidth in GB/s does `all_reduce_perf` print? Until the cable is replaced, `NCCL_IB_HCA` leaves that port's ring out on all nodes. How many ms does it take then?

# %% [raw] tags=["hints"]
# A ring all-reduce sends 2(n-1)/n of the bytes. Each of the eight rings has an eighth of them, and a port of its own in each node.
# The ring with the slow port runs at 12.5 GB/s in all its links, and the others wait for it. Bus bandwidth is 2(n-1)/n · bytes / seconds.
# Without that port there are seven rings of 50 GB/s.

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
# ### 16.4 Debug: a docker line from another machine
#
# This line starts a container on a node with Hygon's cards. Somebody takes it to a node with NVIDIA's. Correct it, and leave alone what is right.

# %% [raw] tags=["hints"]
# Which three of its options are for drivers of AMD or Hygon?
# What gives a container NVIDIA's devices and libraries? The table of flags in this chapter has a column for each vendor.

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
# ### 16.5 Debug: a pod that trains over TCP
#
# Kubernetes refuses this pod, which is meant for a node with 8 GPUs and RDMA. When somebody removed the line `requests`, it started without a GPU. On top of that, NCCL said `Using network Socket` in such pods, and a data loader died with a bus error. Correct the pod. Allow it what it needs, and no more.

# %% [raw] tags=["hints"]
# Extended resources such as nvidia.com/gpu stand under limits; requests may repeat them.
# RDMA locks the memory that it sends: which capability allows that, and nothing more?
# /dev/shm of a pod is 64 MB: a volume emptyDir with medium: Memory, mounted there.

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
# ### 16.6 Predict: who is named when a rank sleeps?
#
# Four ranks train on gloo. In one run, rank 2 sleeps for an hour before it calls collective number 7, and the other ranks call it. In another run, ranks 1 and 3 sleep, and the others call `monitored_barrier`. Give lists of ranks, in order, and numbers.

# %% [raw] tags=["hints"]
# Who has a time limit running: the rank that sleeps, or those that wait for it?
# What is in the flight record of a rank that has not called a collective yet?
# Rank 0 receives a message of each other rank, one after the other.

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
# ### 16.7 Predict: the straggler's factor
#
# One of 8 GPUs is hot and takes 25 % longer to compute, and computing is 80 % of a step. By which factor does the step of the whole job become longer? By which factor if one of 1,024 GPUs is hot? By which factor would *computing* become longer, with 8, if work could be divided by speed? Finally,
# no GPU is hot, but each takes 400 ms ± 8 ms (normal, with a standard deviation of 8 ms) for its part of a step. How many ms does the slowest of 1,024 take on average? `theory.step.stragglers` has a function for each; guess first.

# %% [raw] tags=["hints"]
# All ranks wait for the slowest. Does it matter how many wait?
# Of a step only 80 % become 25 % longer.
# If work were divided by speed, eight ranks would do the work of 7.8.
# Of many normal times the longest is mean + deviation · 3.25, for 1,024 ranks.

# %% tags=["exercise"]
of_8, of_1024, divided, slowest_ms = ..., ..., ..., ...
### BEGIN SOLUTION
from course_lib.chapters.ch16_cluster_clinic import slowest

of_8 = of_1024 = slowest.straggler_factor(0.25, compute_share=0.8)
divided = slowest.shared_work_factor(8, 0.25)
slowest_ms = 1e3 * slowest.expected_slowest_s(1024, 0.4, 0.008)
### END SOLUTION
check("16.7", [of_8, of_1024, divided, slowest_ms])

# %% [markdown] tags=["exercise"]
# ### 16.8 Implement: who is waited for?
#
# Each rank of a job writes down how many ms each of its updates took, and how many of them it spent in collectives. Write the function that finds the rank for which the others wait: the one with the most time outside of collectives. Take the median over a rank's updates, since any
# single update may be late. Return its number, or None unless its median is more than twice that of every other rank.

# %% [raw] tags=["hints"]
# What is left of an update when the time in collectives is taken off?
# statistics.median of that, for each rank: one late update does not move it.
# sorted(own)[-2:] are the second largest and the largest.


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
# ### 16.9 Debug: true or false?
#
# (published mistakes from notes 000 and 004, and from blogs, among right sentences) True or false?

# %% [raw] tags=["hints"]
# Two are right. Which numbers count one way, which both, and which are bits?
# What does nvidia-smi count as busy, and what does -r say while somebody works?

# %% tags=["exercise"]
claims = {
    "nvidia-smi shows 100 % for each GPU, so all of them compute": ...,
    "an H100's NVLink carries 900 GB/s, which is 28 times PCIe 4.0 x16 with 32 GB/s": ...,
    "a port of 200 Gb/s is too fast for a PCIe 4.0 x16 slot of 32 GB/s": ...,
    "dist.is_nccl_available() is True on AMD's GPUs as well": ...,
    "nvidia-smi -r beside a running job ends that job and resets its GPU": ...,
    "with --ipc=host a container needs no --shm-size": ...,
}
### BEGIN SOLUTION
answers = [False, False, False, True, False, True]
claims = dict(zip(claims, answers, strict=True))
### END SOLUTION
check("16.9", claims)

# %% [markdown] tags=["exercise"]
# ### 16.10 Predict: bug or rounding?
#
# The same update runs on one GPU and on eight, and some tensor differs. The differences below are relative to the size of its numbers. Each number is a sum of 4,096 products, added up one by one. Is the difference `"rounding"`, `"more than rounding"`, or `"don't know"`? Use the two factors of section 16.8: up to 4 times
# the typical error it is rounding, beyond 16 times it is more. Typical is $\sqrt{n}\,u$ with $u = 2^{-24}$ in fp32 and $2^{-53}$ in fp64; where sums run in fp32 and the result is stored in bf16, it is $u = 2^{-8}$.

# %% [raw] tags=["hints"]
# Compute √4096 times u of each type first. How many times that is the difference?
# 2^-24 is 6.0e-8, so fp32 has 3.8e-6 here; bf16's one rounding is 3.9e-3.
# 1e-7 is small, but what is typical in fp64?

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
# ### 16.11 Debug: three cases without an error
#
# The hunt. `hunt(seed)` starts three real ranks, one of which is broken from its second update on, shows what they print, and starts the clock. After each update a rank reports how long it took, how much of that it spent in collectives, the loss on a batch that all
# ranks share, and how long a message from each other rank took. In these three cases nothing crashes. Answer each as soon as you know, with `case.answer(rank=…, cause=…)`, then collect the answers for the check.

# %% [raw] tags=["hints"]
# All ranks see the same batch. Which columns should be equal on all of them, or alike?
# Compare the losses; then the messages by the rank they come from; then, for each rank, the time outside of collectives.
# Who waits least is the one the others wait for.

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
# Cases 0 to 9 have all ten causes, and 10 to 19 have them again on other ranks. `case.doctor()` runs a case again with a record and asks the doctor of section 16.7; `table()` has your best time for each cause, beside the doctor's.

# %% tags=["exercise"]
print(table())

# %% [markdown] tags=["exercise"]
# ### 16.12 Build: an ibstat parser
#
# Write the parser of `ibstat` that this chapter used: a `Port` for each port, with `device`, `port` (an int), `state`, `physical`, `gbit_per_s` (a number) and `link_layer`. A device may have several ports, or none. Anything that cannot be read raises a ValueError that shows
# the line: a clinic that guesses is worse than none. The check feeds it recorded outputs: healthy and slow ports, one that is down, and a device that vanished. A parser that passes is kept as `mine/ibstat.py`.

# %% [raw] tags=["hints"]
# Go through the lines. A line that begins with CA names the device of all ports below it, until the next one. What does a port begin with?
# line.strip().partition(': ') gives a field's name and its value. 'State' and 'Physical state' are two fields.
# A port is complete when the next one, the next device or the end of the text comes. Only then make the Port, and only then can you tell which field is missing.
# Every line of a device is further in. What begins at the left edge and is no CA is an error that ibstat printed; float('fast') is a ValueError that shows 'fast'.

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
# From now on `mine.ibstat` is your parser; until then it is the course's. What is wrong with these four ports?

# %% tags=["exercise"]
for sign in ports.port_signs(mine.ibstat(output("ibstat_slow").text)):
    print(sign.sentence)

# %% [markdown] tags=["exercise"]
# ### 16.13 Build: the first divergence
#
# Thousands of ranks hang, and each has left its flight record: a list of the collectives that it called, such as the one below. Find the first collective in which the ranks differ, and the odd ranks: those outside the one largest group that called the same.
#
# - A rank whose record ends before that number has not come, which counts as something else.
# - Do not accuse without reason: if two groups are equally large, nobody is odd, and an empty record says nothing.
# - A record keeps only the last calls, 200 or so, and records may begin at different numbers. Compare from the first number that all of them have.
# - Entries with `is_p2p` are messages between two ranks; leave them out.
#
# A function that passes is kept as `mine/divergence.py`.

# %% [raw] tags=["hints"]
# For each rank a dict from collective_seq_id to what was called. Then go through the numbers, from the first that all records have to the last that any has.
# dict.get(number) is None for a rank that did not come: that is a camp as well.
# Group the ranks by what they called: a dict from the call to a list of ranks. One group: go on. Lists can't be keys of a dict; tuple(…) or str(…) of them can.
# profiling_name is 'gloo:all_reduce' or 'nccl:all_reduce'. Sizes and types count, except in operations of ANY_SIZE.
# The largest group is right if no other is as large; otherwise nobody is odd: ().

# %% tags=["exercise"]
from course_lib.chapters.ch16_cluster_clinic.diagnosing.divergence import flights

records = flights("collective")  # recorded on three ranks, one of which is broken
records[1][0]

# %% tags=["exercise"]
from course_lib.chapters.ch16_cluster_clinic.diagnosing.divergence import ANY_SIZE

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
from course_lib.chapters.ch16_cluster_clinic.diagnosing.divergence import (
    first_divergence,
)

### END SOLUTION

check("16.13", first_divergence)

# %% tags=["exercise"]
for kind in ("none", "collective", "hang", "twice", "shape"):
    print(f"{kind:<11}{mine.first_divergence(flights(kind))}")
