# %% [raw] tags=["sitting"]
# question: All GPUs show 100 %: are they working?
# importance: 4
# difficulty: 2
# group: alone
# needs: 6, 9, 15

# %% [markdown]
# # 16 What a node says
#
# 64 GPUs are training, and `nvidia-smi` shows 100 % for every one of them. Yet no update has finished for ten minutes. Are the GPUs working?
#
# After this sitting you can
#
# - choose a command for the part that you suspect, and say what it cannot tell you,
# - see which GPUs have faults, and which have a short path to the network,
# - tell a GPU that computes from one that only waits.
#
# You need chapters 6, 9 and 15.
#
# A laptop has none of these devices. So most outputs in this chapter are *recorded* on real machines and published; the address stands below each. A few are *built* from the documented format, and say so.

# %%
import shutil
import time

import torch
import torch.distributed as dist

from course_lib import expect, launch, predict
from course_lib.chapters.ch16_cluster_clinic import commands, figures, processor
from course_lib.clinic import gpus
from course_lib.clinic.recorded import output

launch.warm_up()
torch.set_num_threads(1)

# %% [markdown]
# Each command looks at one part of a cluster. So first decide which part you suspect. This map goes from your program down to the cable. (If your job is broken right now, begin with section 16.11 of [sitting 3](16_3).)
#
# | part | what to ask | with |
# |---|---|---|
# | **your program** | Where is each rank? | `course diagnose`, `py-spy dump` |
# | **PyTorch** | Does it see GPUs? Can ranks talk? | `is_available()`, `device_count()` |
# | **container, pod** | Does it have devices, /dev/shm, locked memory? | `df -h /dev/shm`, `ulimit -l` |
# | **NCCL** | Which network does it use, and how fast is it? | `NCCL_DEBUG=INFO`, `all_reduce_perf` |
# | **GPU** | Who uses it? Is it healthy? | `nvidia-smi pmon`, `dmon`, `-q`; `dmesg` |
# | **inside the node** | How do bytes get from a GPU to a port? | `nvidia-smi topo -m`, `nvlink -s` |
# | **port** | Is it up, and at which rate? | `ibstat`, `ibstatus`, `ibv_devinfo` |
# | **cable, switch** | How much passes? Are there errors? | counters, `ib_write_bw`, `iblinkinfo` |

# %% [markdown]
# ## 16.1 Three questions to begin with
#
# Are there GPUs, how many, and is there NCCL? Two lines of note 000 ask this:
#
# ```
# python -c "import torch; print(torch.cuda.is_available()); print(torch.cuda.device_count())"
# python -c "import torch.distributed as dist; print(dist.is_nccl_available())"
# ```
#
# On a server with eight AMD GPUs they print True, 8 and True. PyTorch for ROCm, AMD's counterpart of CUDA, keeps the name `torch.cuda` (docs.pytorch.org, *HIP (ROCm) semantics*), and AMD's library RCCL answers to the name NCCL. Hygon's GPUs, called DCUs, follow AMD's. Only `torch.version` says whose GPU it is:

# %%
print("GPUs", torch.cuda.is_available(), torch.cuda.device_count())
print("ranks", dist.is_available(), "NCCL or RCCL", dist.is_nccl_available())
print("CUDA", torch.version.cuda, "ROCm", torch.version.hip)

# %%
commands.how_to_read("import torch")

# %% [markdown]
# `course doctor` asks all this, and then runs those commands of this chapter that the machine has. It changes nothing, and leaves out commands that fail:

# %%
from course_lib.doctor import cluster as cluster_doctor

programs = {look.command[0] for look in cluster_doctor.LOOKS}
here = sorted(program for program in programs if shutil.which(program))
print(f"of {len(programs)} programs this machine has {here}")
for finding in cluster_doctor.examine_cluster():
    print(finding)

# %% [markdown]
# **Remember**
# - `torch.cuda` also means AMD and Hygon; `torch.version.hip` tells them apart.
# - `device_count()` counts what this process may see: `CUDA_VISIBLE_DEVICES`, a container or Slurm may hide GPUs.

# %% [markdown]
# ### Deeper: what your build has
#
# Note 002 says that PyTorch must be compiled with `USE_DISTRIBUTED=1`. This concerns only people who compile it themselves: for them the switch is 1 by default on Linux and Windows, and 0 on macOS (documentation of `torch.distributed.is_available`). What `pip` installs has it on, on macOS too (pytorch/pytorch, `.ci/wheel/build_wheel.sh`). The backends differ: Gloo works on all three systems, NCCL on Linux only.

# %%
build = torch.__config__.show().replace(",", "").split()
wanted = ("USE_CUDA=", "USE_ROCM=", "USE_NCCL=", "USE_GLOO=", "USE_MPI=")
print([switch for switch in build if switch.startswith(wanted)])

# %% [markdown]
# ## 16.2 Asking a GPU
#
# NVIDIA and AMD have a command for each of eight questions; for Hygon we found four documented:

# %%
gpu_commands = ("pmon", "dmon", "topo", "nvlink", "-q -d", "dmesg", "dcgmi", "smi -r")
commands.by_vendor(*gpu_commands)

# %% [markdown]
# ### Who uses it: pmon
#
# `nvidia-smi pmon` lists processes. `-s um` asks for use and memory, and `-c 1` for one sample:

# %%
print(output("nvidia-smi_pmon_shared").shown)
for sign in gpus.pmon_signs(gpus.pmon(output("nvidia-smi_pmon_shared").text)):
    print("\n" + sign.sentence)

# %% [markdown]
# `sm` is the percentage of the time during which kernels of that process ran, `mem` the percentage during which they read or wrote memory, and `fb` the megabytes that the process holds. These five programs encode video, so here sharing is intended. In training, a second process is usually yesterday's job that never ended.
#
# The last line is a *sign*, which the course's parser adds. Each says what is wrong, what to do, and what the command cannot tell you.
#
# ### How they reach each other: topo -m
#
# Here are two servers, each with four GPUs and four network cards (NIC, network interface card). Each cell names the path between two devices. From near to far: `NV6` is six NVLinks, `PIX` one PCIe switch, `PXB` several switches, `PHB` the CPU, `NODE` two bridges of one NUMA node, and `SYS` the link between two NUMA nodes. (A NUMA node is a set of cores with the memory next to them: a whole CPU, or a part of one.)

# %%
for name in ("nvidia-smi_topo", "nvidia-smi_topo_far"):
    for line in output(name).shown.splitlines():
        print(line[:101].rstrip())  # without the last column, N/A everywhere
    print()

# %% [markdown]
# A GPU can send without going through the CPU if its path to a network card is `PIX` or `PXB`. (This is NCCL's rule for GPUDirect, which needs more than that: section 16.4.)
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

# %% tags=["drawing"]
figures.node_ways({"the first server": first, "the second server": second})

# %% [markdown]
# **Explain.** Four. In the first server each GPU shares a switch with a network card (green). In the second, every byte for the network crosses the CPU (orange). Both servers are healthy, but the second's network will be slower, and no command warns you.
#
# ### Is it healthy: -q -d, dmesg
#
# First the memory. An **error-correcting code** (纠错码, ECC) corrects errors of a single bit. A row of memory cells with an error that cannot be corrected, or with the same error again and again, is replaced by a spare one at the next reset. This is called **row remapping** (行重映射).

# %%
lines = output("nvidia-smi_q_ecc").shown.splitlines()
print(*lines[:18], "        …", *lines[-2:], sep="\n")
for sign in gpus.state_signs(gpus.query(output("nvidia-smi_q_ecc").text)):
    print("\n" + sign.sentence)

# %% [markdown]
# The code has corrected all 177 errors, so no number was wrong. The line that matters is `Pending: Yes`: one row still waits for its replacement. (`Volatile` counts since the driver was loaded, `Aggregate` over the GPU's life.)
#
# The same command's PERFORMANCE section says what slows the clock down, which is called **throttling** (降频). At full load `SW Power Cap: Active` is normal. `HW Slowdown: Active` never is.
#
# The driver writes serious faults into the kernel's log, with a number called an **Xid**. Here are three, and what they mean:

# %%
print(output("dmesg_xid").shown, "\n")
for line in gpus.xids(output("dmesg_xid").text):
    meaning = gpus.MEANINGS[line.number]
    print(f"{line.number}: {meaning.what} ({meaning.whose}) → {meaning.do}")

# %% [markdown]
# Only the third is the machine's fault. After 31, a wrong address, and 43, a program stopped for its own mistake, the next program runs without trouble. Two more are worth knowing by heart. 79 means that *the GPU has fallen off the bus*, and only a restart helps. 45 only cleans up after another Xid or after a killed program, so read the line before it.

# %% [markdown]
# ### Deeper: nvlink -s, and 900 GB/s
#
# This GPU has six NVLinks:

# %%
print(output("nvidia-smi_nvlink").shown)
for sign in gpus.nvlink_signs(gpus.nvlink(output("nvidia-smi_nvlink").text)):
    print("\n" + sign.sentence)

# %% [markdown]
# Each rate is one link in *one* direction. An H100 has 18 links of 25 GB/s: 450 GB/s one way. Its data sheet says 900, for both directions together. Note 004 compares these 900 GB/s with the 32 GB/s that a PCIe slot carries one way; the fair factor is 14, not 28. Before you compare two rates, ask of each: one direction or both, one link or all, bits or bytes?

# %% [markdown]
# ### Deeper: a test under load, and the reset
#
# `dcgmi diag -r 2` tests a GPU under load. It takes minutes and needs the GPUs for itself. The first output below found a GPU that gets too hot. In the second every test passed while all NVLinks of the machine were down:

# %%
for name in ("dcgmi_diag", "dcgmi_diag_pass"):
    print(output(name).shown, "\n")

# %% [markdown]
# A test can only fail at what it tests.
#
# The notes list `nvidia-smi -r` beside `nvidia-smi pmon`, as if both only looked. But `-r` *resets* GPUs, all of them unless you name one with `-i`. It needs root, and it refuses while anything uses the GPU, even a monitor:

# %%
print(output("nvidia-smi_r").shown)

# %% [markdown]
# The danger is the advice in the last lines, "kill all processes using this device". `-r` itself ends no job, but a person who follows that advice does, and without `-i` on every GPU of the node. (Since Ampere, GPUs joined by NVLink can be reset one by one; older ones only together. [NVIDIA's manual](https://docs.nvidia.com/deploy/nvidia-smi/).) On a shared node the reset is the administrator's job, once nothing runs there. Do not kill running jobs to please it.

# %% [markdown]
# ### All of them
#
# How to read each, and what it cannot say:

# %%
commands.how_to_read(*gpu_commands)

# %% [markdown]
# **Remember**
# - Two processes on one GPU: a job that never ended. No process where the others have one: a rank that died.
# - Pending rows, `HW Slowdown`, Xid 48, 63, 64, 74, 79, 94, 95: the machine. Xid 13, 31, 43: usually the program.

# %% [markdown]
# ## 16.3 What 100 % means
#
# An H100 has 132 streaming multiprocessors. Start a kernel that occupies just one of them, and `nvidia-smi` shows 100 %:

# %% tags=["drawing"]
two_meters = {"utilization, %": 100, "multiprocessors, %": round(100 / 132, 1)}
figures.meters(
    {"one kernel": two_meters},
    dict.fromkeys(two_meters, 100),
    "One multiprocessor of 132 at work, on two meters",
)

# %% [markdown]
# **Utilization** is the percentage of *time* during which at least one kernel ran (NVIDIA's NVML reference, `nvmlUtilization_t`). It is not the share of the GPU that worked.
#
# In training it is worse, because waiting is a kernel too. NCCL's all-reduce runs on the GPU. While it waits for another rank, it reads a flag in memory again and again until the flag changes (`waitPeer` in NCCL's `src/device/prims_simple.h`). This is **busy-waiting** (忙等待).
#
# Here a processor does the same in place of a GPU. In each of three updates, rank 1 reads its samples from a slow disk for 0.3 s and then computes for 0.1 s. Rank 0 has its samples at once, computes for 0.1 s, and waits in the all-reduce. It waits either like NCCL's kernel, or like Gloo, which sleeps until the operating system wakes it. A meter checks 200 times a second whether the rank is running.


# %%
def lopsided(spin):
    """What this rank did and when, and what its meter says."""
    rank, numbers, did = launch.init().rank, torch.ones(4), []
    dist.barrier()
    with processor.watched() as meter:
        for _ in range(3):
            start = time.time()
            time.sleep(0.3 * rank)  # rank 1 reads from the disk
            read = time.time()
            while time.time() < read + 0.1:
                numbers @ numbers  # both compute
            computed = time.time()
            work = dist.all_reduce(numbers.clone(), async_op=True)
            while spin and not work.is_completed():
                pass  # "has the flag changed?"
            work.wait()
            did.append((start, read, computed, time.time()))
    return did, meter.percent


# %% [markdown]
# **Predict.** Rank 0 computes for 0.1 s of every 0.4 s. If it waits as NCCL does, for what percentage of the time does the meter say that it runs?

# %%
busy_guess = predict("16.busy", "Rank 0 runs, says the meter?", yours=None, unit="%")

# %%
spins = launch.run(lopsided, True, ranks=2, stream=False)
sleeps = launch.run(lopsided, False, ranks=2, stream=False)
timed = {"within": None, "unit": "%"}  # of times: their gaps are shown, not judged
expect(100, spins[0][1], label="waits as NCCL does", yours=busy_guess, **timed)
expect(100 * 0.1 / 0.4, sleeps[0][1], label="waits as Gloo does", **timed)

# %%
print(f"and rank 1, while rank 0 waits as NCCL does: {spins[1][1]:.0f} %")

# %% tags=["drawing"]
rows = {
    f"rank {rank}": [
        (what, marks[place], marks[place + 1])
        for marks in did
        for place, what in enumerate(("reading", "computing", "waiting"))
        if marks[place + 1] - marks[place] > 1e-3
    ]
    for rank, (did, _) in enumerate(spins)
}
busy = [("busy, says the meter", spins[0][0][0][0], spins[0][0][-1][-1])]
title = "Rank 0 is busy all the time, and waits for three quarters of it"
figures.lanes({"rank 0": rows["rank 0"], "its meter": busy} | rows, title)

# %% [markdown]
# **Explain.** Rank 0 works and waits alike in both runs, but one meter shows 100 % and the other 25 %. A GPU's meter cannot tell a kernel that computes from one that reads a flag. So the *slow* rank is the one that shows less than 100 %: it alone waits for a disk and not for a flag.
#
# That turns the reading of `pmon` around. A job hangs on four GPUs. (The output is built. It shows what users report.)

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

# %% [markdown]
# **Explain.** GPU 2. The other three run a kernel that asks for a flag. GPU 2 holds 47 GB and runs none.
#
# ### Better meters
#
# What gives a waiting GPU away? It draws little power and reads almost no memory. `dmon` shows both beside the utilization. Here are four H100s of 700 W at one moment (also built):

# %% tags=["drawing"]
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

# %%
for sign in gpus.dmon_signs(samples):
    print(sign.sentence)

# %% [markdown]
# Only GPU 0 computes at full speed. GPU 1 waits, at 118 W. GPU 2 has nothing to do. GPU 3 computes at 86 °C with half its neighbours' clock, so GPU 1 may wait for it. From rough to fine, this is what each meter is worth:
#
# | meter | says | with |
# |---|---|---|
# | utilization | some kernel ran | `nvidia-smi`, `pmon`, `dmon` |
# | power, memory traffic | whether that kernel worked or waited | `dmon`, `amd-smi monitor` |
# | SM active, tensor active, DRAM active | which *part* of the GPU worked, averaged over time | `dcgmi dmon -e 1002,1004,1005` (NVIDIA DCGM, *profiling metrics*) |
# | MFU | how much of the peak went into *your* model | chapter 5 |
#
# Waiting raises the first to 100 %. It cannot raise tensor active or the MFU.
#
# **Remember**
# - Utilization is the share of time in which some kernel ran. Waiting for other ranks is a kernel.
# - In a hang, look at the GPU that shows *less* than the others.
# - Power and memory traffic tell waiting from working.

# %% [markdown]
# ### Deeper: AMD's monitor
#
# AMD's monitor has the same columns under other names:

# %%
print(output("amd-smi_monitor").shown)

# %% [markdown]
# Its 191.7 GB of memory say that this is an MI300X, whose data sheet allows 750 W:

# %% tags=["drawing"]
(one,) = gpus.amd_smi(output("amd-smi_monitor").text)[-1:]
seen = {"busy, %": one.sm_percent, "memory, %": one.memory_percent}
figures.meters(
    {"MI300X": seen | {"power, W": one.power_w}},
    {"busy, %": 100, "memory, %": 100, "power, W": 750},
    "amd-smi monitor: busy, but with little power",
)

# %% [markdown]
# ## The answer
#
# 100 % says only that some kernel ran all the time. GPUs at a sixth of their power, such as 118 of 700 W, only wait. Look for the one that shows less than 100 %, and at its process.

# %% tags=["exercise"]
import statistics

from course_lib import check, hint, mine, solution
from course_lib.chapters.ch16_cluster_clinic.hunting import hunt, table
from course_lib.clinic import ports
from course_lib.clinic.recorded import output

# %% [markdown] tags=["exercise"]
# ### 16.2 Predict: whom do you call?
#
# Each line below comes from another node with eight H100s, and nobody has looked further yet. Whom do you call first: `"nobody"`, `"program"` (the author of the program that runs or ran there) or `"hardware"` (the people who own the node)?

# %% [raw] tags=["hints"]
# importance 4, difficulty 2
# Which lines say that a number was wrong, or will be? Which say only that the machine protects itself?
# Xid 31 is a wrong address, 79 a GPU that has left the bus. What is a row that waits for its replacement?
# A GPU at full load is limited by its power, as intended; only HW Slowdown is a fault.

# %% tags=["exercise"]
call = {
    "dmesg: Xid 79": ...,
    "dmesg: Xid 31, pid=train.py": ...,
    "-q -d ECC: 12 corrected errors, Remapped Rows all 0, Pending No": ...,
    "-q -d ROW_REMAPPER: Pending Yes": ...,
    "-q -d PERFORMANCE at full load: SW Power Cap Active": ...,
    "-q -d PERFORMANCE: HW Slowdown Active": ...,
    "nvlink -s: one of 18 links <inactive>, on one GPU of eight": ...,
    "pmon: a process of a job that ended yesterday, with 70 GB": ...,
}
### BEGIN SOLUTION
first = ["hardware", "program", "nobody", "hardware", "nobody", "hardware"]
call = dict(zip(call, [*first, "hardware", "program"], strict=True))
### END SOLUTION
check("16.2", call)
