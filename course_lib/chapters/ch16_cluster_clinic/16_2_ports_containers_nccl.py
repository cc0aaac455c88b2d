# %% [raw] tags=["sitting"]
# question: One port of 64 runs at a quarter of its rate: how much slower is everybody?
# importance: 4
# difficulty: 3
# group: alone
# needs: 6

# %% [markdown]
# # 16 Ports, containers, NCCL
#
# Yesterday an all-reduce of 4 GB round a ring of 64 GPUs took 0.32 s. Today it takes much longer, on every rank, and nobody has changed the program. 63 network ports say `Rate: 200`. One says `Rate: 50`. Is that the cause? How much slower does one such port make *everybody*?
#
# After this sitting you can
#
# - turn a port's rate and counters into bytes per second,
# - start a container in which NCCL finds its network and its memory,
# - read from NCCL's log which network it uses.

# %%
import sys
import time

import torch
import torch.distributed as dist

from course_lib import expect, launch, predict, recorded, style
from course_lib.chapters.ch16_cluster_clinic import commands, containers, figures
from course_lib.chapters.ch16_cluster_clinic import logs, panels, processor, small_shm
from course_lib.chapters.ch16_cluster_clinic.slowest import OneSlowLink

launch.warm_up()
torch.set_num_threads(1)

# %%
from course_lib.clinic import nccl_table, ports
from course_lib.clinic.recorded import output
from course_lib.scratch.collectives import SlowPeers, ring_all_reduce
from course_lib.theory import hardware

# %% [markdown]
# **Predict.** One port of 64 runs at a quarter of its rate. How many times as long does the all-reduce take on all 64 ranks?

# %%
slower = predict("16.factor", "Times as long?", yours=None)

# %% [markdown]
# ## 16.4 Ports, cables, RDMA
#
# Three ways lead from the memory of a GPU to that of a GPU in another node. At a thick arrow (⇛) a processor copies; at all others a GPU or a network card moves the bytes (DMA):
#
# | | sending node | receiving node | transfers | by a processor |
# |---|---|---|---|---|
# | **TCP** | GPU memory → program's buffer ⇛ kernel's buffer → card | → card → kernel's buffer ⇛ program's buffer → GPU memory | 7 | 2 |
# | **RDMA** | GPU memory → program's buffer → card | → card → program's buffer → GPU memory | 5 | none |
# | **RDMA straight to the GPU** (GPUDirect) | GPU memory → card | → card → GPU memory | 3 | none |
#
# What the processor's part costs for one port of 200 Gb/s, measured over TCP from your machine to itself:

# %%
per_gb = min(processor.processor_s_per_byte() for _ in range(3)) * 1e9
cores = 25 * per_gb
print(f"{per_gb:.2f} s of a processor for 1 GB: at 25 GB/s, {cores:.0f} cores")

# %% [markdown]
# With **RDMA** (chapter 13) the program registers its buffer with the network card once. From then on the card reads and writes that memory itself: **zero copy** (零拷贝). With GPUDirect RDMA the registered memory is the GPU's own. Three things can be missing:
#
# - a card that can do it, with a port that is up: `ibstat`,
# - memory that stays where it is, which is called **locked** (锁定内存): `ulimit -l`,
# - for GPUDirect, a short path from GPU to card (`topo -m`), and a driver that opens the GPU's memory to the card: the module `nvidia-peermem`, or a kernel and driver with DMA-BUF. PCIe's access control (ACS) sends such traffic up to the CPU first; outside virtual machines it must be off.
#
# InfiniBand is a network made for this, and RoCE does the same over Ethernet. Note 004 wants eight cards of 200 Gb/s for eight GPUs: each carries 25 GB/s, 79 % of the 31.5 of its PCIe 4.0 ×16 slot.
#
# ### Which port is slow
#
# `ibstat` prints 17 lines for each port. This is one of four in a node:

# %%
print("\n".join(output("ibstat_slow").shown.splitlines()[-19:]))

# %% [markdown]
# `mlx5_3` is the *device*, `mlx5_3:1` its port. Four lines count: `State`, `Physical state`, `Link layer`, and `Rate`, in Gb/s, one way, over all lanes. A cable has four **lanes** (通道), and `ibstatus` counts them. A lane carries 25 Gb/s in the InfiniBand generation called EDR, 50 in HDR and 100 in NDR. So a healthy HDR port says `200 Gb/sec (4X HDR)`:

# %%
print("\n".join(output("ibstatus_slow").shown.splitlines()[-17:]))
for sign in ports.port_signs(ports.ibstat(output("ibstat_slow").text)):
    print("\n" + sign.sentence)

# %% [markdown]
# `1X HDR`: three of the four lanes are gone. That is a plug or a cable, and no command can tell which end of it.
#
# `iblinkinfo`, as root on any node, prints width and speed of *every* link of the network, so you need not log in to 64 nodes. And `ib_write_bw -d mlx5_3 --report_gbits` on one node, with the same command and that node's name on another, measures a pair of ports without GPUs and NCCL. If it comes near the rate, ports and cables are healthy, and the fault lies above them.
#
# ### What it costs
#
# In a ring every piece of the tensor crosses every link (chapter 6). Four ranks on your machine form a ring whose links are slowed to 10 MB/s. Then one drops to 2.5 (fastest of three runs):


# %%
def ring_seconds(slow_rank):
    """An all-reduce of 1 MB round a ring; `slow_rank` sends at a quarter."""
    rank, numbers = launch.init(), torch.ones(250_000)
    peers, took = SlowPeers(2.5e6 if rank.rank == slow_rank else 10e6), []
    for _ in range(3):
        dist.barrier()
        start = time.perf_counter()
        ring_all_reduce(numbers, peers)
        took.append(time.perf_counter() - start)
    return min(took)


healthy = max(launch.run(ring_seconds, None, ranks=4, stream=False))
one_slow = max(launch.run(ring_seconds, 2, ranks=4, stream=False))
print(f"{healthy:.2f} s, and with one slow link {one_slow:.2f} s")

# %% [markdown]
# Now the numbers of the opening: 4 GB, 64 ranks, HDR, one link of 50 Gb/s:

# %%
today = OneSlowLink(4e9, 64, hardware.HDR, slow_bytes_per_s=50e9 / 8)
expect(today.factor, one_slow / healthy, None, label="times as long", yours=slower)

# %%
print(f"yesterday {today.healthy_s:.2f} s, today {today.slow_s:.2f} s")
figures.slow_ring(today)

# %% [markdown]
# **Explain.** Four: everybody is slowed down by the port's own factor, not by a 64th of it, however many ranks there are. The bus bandwidth (chapter 6) has fallen to 6.24 GB/s, just under 50 Gb/s. So nccl-tests prints the rate of the worst link, but not its place.
#
# This was one ring. A server with eight GPUs has eight ports, and NCCL builds a ring through each. Try in the panel:
#
# 1. Eight rings, with one bad port in one of them. What is the factor?
# 2. NCCL can do without that port (section 16.6). What does it cost to leave its ring out?
# 3. Why does the slow link hurt so little at 1 MB?

# %%
from course_lib.chapters.ch16_cluster_clinic import panels

panels.one_slow_link()

# %%
with_eight = panels.one_slow_link(rings=8).result
assert with_eight.factor > 3.9
expect(8 / 7, with_eight.without_s / with_eight.healthy_s, 0.02, label="without it")
assert panels.one_slow_link(rings=1, size_mb=1).result.factor < 1.5

# %% [markdown]
# 1. Still nearly four: each ring carries an eighth of the bytes, and all must finish before the next step begins.
# 2. 8/7: 14 % longer instead of 290 %.
# 3. At 1 MB nearly all the time is latency, which a slow link does not change. So test links with large messages.
#
# ### Words of four bytes
#
# The driver counts what a port sends, in `/sys/class/infiniband/DEVICE/ports/1/counters/`. Two readings, ten seconds apart:

# %%
before, after = (
    ports.counters(output(name).text) for name in ("counters", "counters_later")
)
for name in ("port_xmit_data", "port_rcv_data", "symbol_error"):
    print(f"{name}: {before.values[name]:,} → {after.values[name]:,}")
print(f"[{output('counters').provenance}]")

# %% [markdown]
# These counters count *words of four bytes* (the kernel's documentation of sysfs for InfiniBand).
#
# **Predict.** `port_xmit_data` has grown by 15.25 billion in 10 s. What percentage of the rate of a port of 50 Gb/s is that?

# %%
rate = predict("16.words", "Percent of the port?", yours=None, unit="%")

# %%
now = ports.rates(before, after, seconds=10)
used = 100 * now.sent_bytes_per_s / (50e9 / 8)
expect(100 * 4 * 15.25 / 10 / 6.25, used, 1e-6, "%", "sent", yours=rate)

# %%
for sign in ports.rate_signs(now, link_bytes_per_s=50e9 / 8):
    print(sign.sentence)

# %% [markdown]
# **Explain.** Four bytes times 1.525 billion a second are 6.1 GB/s of 6.25: 98 %. If you take the words for bytes, you read 1.5 GB/s and look elsewhere. `symbol_error`, which counts small errors on the lanes, grew by 14: the cable again.

# %%
rdma_commands = ("ibstat", "ibv_", "rdma link", "mlnx_perf")
commands.how_to_read(*rdma_commands)

# %% [markdown]
# **Remember**
# - One slow link makes the whole ring as slow as itself. The bus bandwidth shows its rate, not its place.
# - `ibstat` for the rate, `ibstatus` for the lanes, `iblinkinfo` for all links, `ib_write_bw` for one pair.
# - `port_xmit_data` times four gives bytes.

# %% [markdown]
# ### Deeper: counters that are full, and the other commands of note 000
#
# Three counters in the readings show 255, 65,535 and 4,294,967,295, and no longer change. Old counters have 8, 16 or 32 bits, stop at their end, and say nothing from then on:

# %%
for sign in ports.counter_signs(before):
    print(sign.sentence)

# %% [markdown]
# `ibv_devices` and `ibv_devinfo` use the same library as NCCL, so what they can open NCCL can open too. `mlnx_perf` reads the counters of the network interface once a second and converts them for you. Each of these outputs has one line that matters. Which?

# %%
for name in ("ibv_devinfo_small_mtu", "rdma_link_polling", "mlnx_perf"):
    print(output(name).shown)

# %%
assert "active_mtu:             1024" in output("ibv_devinfo_small_mtu").text
assert "physical_state POLLING" in output("rdma_link_polling").text
assert round(6_184_976_384 * 8 / 1e6, 2) == 49_479.81

# %% [markdown]
# - `ibv_devinfo`: `active_mtu` is 1024, and the port could do 4096. Packets are a quarter as large, and each has its header.
# - `rdma link`: `mlx5_1` is POLLING. It looks for another side and finds none, so its cable is missing, broken, or ends in a port that is switched off.
# - `mlnx_perf`: `ib0` is the network interface that carries **IP over InfiniBand**, and the tool prints all counters of its card. `| grep rdma` keeps what RDMA received (rx) and sent (tx), NCCL's messages among it. 49,480 Mbps are all that a port of 50 Gb/s can carry.
#
# The most frequent fault of all is a container without a device. Here is `ibv_devices` with a device, and then without:

# %%
for name in ("ibv_devices", "ibv_devices_none"):
    print(output(name).shown)

# %% [markdown]
# On Linux with network namespaces you can try a link that really is slow: `course demo pairwise --ranks 4 --two-nodes 50`, and again with 200.

# %% [markdown]
# ## 16.5 Containers and pods
#
# A container starts with 64 MB of shared memory, no GPU and no network card. A **container** (容器) is an ordinary process that has its own files, its own network and its own `/dev`. So everything can be healthy on the node and missing inside. The notes start one like this:

# %%
notes_line = """docker run -it --rm \\
  -v /hl/llama2:/root/llama2 -w /root/llama2 -v /opt/hyhal:/opt/hyhal \\
  --device=/dev/kfd --device=/dev/dri \\
  --security-opt seccomp=unconfined --cap-add=SYS_PTRACE \\
  --shm-size=16G --net=host llama2 bash"""
print(notes_line)

# %% [markdown]
# The line was written for Hygon's DCUs, whose driver follows AMD's. Three of its options are of no use with NVIDIA's GPUs: `/dev/kfd` and `/dev/dri`, the driver's devices, and `/opt/hyhal`, the part of Hygon's driver that lies on the host. Here are the three vendors side by side:

# %%
commands.flags()

# %% [markdown]
# `seccomp=unconfined` removes docker's filter of system calls. `SYS_PTRACE` lets a process look into others, for debugging only. This is what you see where there is no `/dev/kfd`, and where the host lacks the NVIDIA Container Toolkit, so that docker does not know `--gpus`:

# %%
print(output("docker_no_kfd").shown, "\n")
print(output("docker_no_gpus").shown)

# %% [markdown]
# ### 64 MB
#
# `/dev/shm` is a folder in memory, through which processes on one machine share data: **shared memory** (共享内存). Data loaders put whole batches there, and NCCL uses it between GPUs that have no better path. Docker's default is 64 MB (Docker's reference of `--shm-size`; exactly, 64 MiB).
#
# A data loader has 4 workers, and each prepares 2 batches ahead (`prefetch_factor`, the default).
#
# **Predict.** While the model trains on a batch, how many lie in `/dev/shm`, this one included?

# %%
in_shm = predict("16.shm", "Batches in /dev/shm?", yours=None)

# %% [markdown]
# Here is such a program. Its batches are 16 pictures of 3 × 224 × 224 numbers in fp32, 9.6 MB. On Linux it runs with a `/dev/shm` of exactly 64 MiB, in a namespace as docker makes it. (Elsewhere you see a recorded run.)

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
measured = int(two_workers.split()[4]) / 1e6 / batch_mb
expect(2 * 2 + 1, measured, within=0.25, label="batches, 2 workers")
expect(4 * 2 + 1, label="batches, 4 workers", yours=in_shm)
ends = ("No space left on device", "Resource temporarily unavailable", "Bus error")
assert any(end in said for end in ends)

# %% tags=["drawing"]
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
# **Explain.** Nine: $4 \cdot 2$ ahead and the one in training, 86.7 MB, but 64 MiB are 67.1 MB. With four workers the program dies after a few batches. PyTorch's error ends with `No space left on device` (in torch 2.11 with `Resource temporarily unavailable`), but the disk has plenty of space. Other programs fail only when they write to the memory, with a bare `Bus error`.
#
# The remedy is `--shm-size=16G`, a limit and not a reservation, or `--ipc=host`. Inside, `df -h /dev/shm; ulimit -l` shows two limits:

# %%
shm = containers.shared_memory(output("df_shm").text)
locked = containers.locked_memory_kbytes(output("ulimit").text)
for sign in containers.memory_signs(shm, locked):
    print(sign.sentence)

# %% [markdown]
# The second is locked memory. A process may lock 64 kB (8 MB since Linux 5.16), while RDMA locks everything that it sends or receives. Docker's option is `--ulimit memlock=-1`.
#
# **Remember**
# - `/dev/kfd`, `/dev/dri`: AMD and Hygon. `/opt/hyhal`: Hygon. `--gpus`: NVIDIA.
# - RDMA needs `--device=/dev/infiniband` and `--ulimit memlock=-1`.
# - Shared memory: (workers × prefetch + 1) × batch.

# %% [markdown]
# ### Deeper: a pod
#
# Kubernetes runs containers in **pods** (容器组), which have fields in place of docker's options. A container lacks four things of its node until you pass them in:
#
# | the node has | docker's option | a pod's field | a container without it |
# |---|---|---|---|
# | **GPUs** | `--gpus all` | `limits: nvidia.com/gpu: 8` | no GPU |
# | **RDMA ports** | `--device=/dev/infiniband` | `limits: rdma/rdma_shared_device_a: 1` | NCCL takes TCP, silently |
# | **locked memory** | `--ulimit memlock=-1` | `capabilities: add: [IPC_LOCK]` | `ibv_create_cq` failed |
# | **shared memory** | `--shm-size=16G` | `emptyDir: {medium: Memory}` at `/dev/shm` | 64 MB, then Bus error |
#
# `requests` is what the scheduler looks for on a node, and `limits` is the most that the container gets. For devices the two must be equal: **limits** (资源限额) alone are enough, and `requests` alone are refused (Kubernetes, *Extended resources*). The name after `rdma/` depends on how the device plug-in was set up. The whole pod, of which the notes show the middle part:

# %%
print(commands.POD)

# %% [markdown]
# ### Deeper: the words of NCCL and Kubernetes
#
# NCCL reports too little shared memory like this:

# %%
print(output("nccl_shm").shown)
for sign in logs.nccl_signs(logs.nccl_log(output("nccl_shm").text)):
    print("\n" + sign.sentence)

# %% [markdown]
# If you misspell the name of a resource, the pod waits indefinitely, and the end of `kubectl describe pod` says why:

# %%
print(output("kubectl_describe_pod_rdma").shown)
for sign in containers.event_signs(output("kubectl_describe_pod_rdma").text):
    print("\n" + sign.sentence)

# %% [markdown]
# ## 16.6 What NCCL says
#
# If NCCL finds no InfiniBand, it takes TCP over whatever Ethernet there is. HDR carries 25 GB/s and 25-gigabit Ethernet 3.125: a factor of eight, and no error. So let NCCL report at the start of every large job:
#
# ```
# NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH torchrun …
# ```
#
# `INIT` is what it found, `NET` the network, `GRAPH` the rings and trees that it builds. Here are two logs:

# %%
print(output("nccl_socket").shown, "\n")
print(output("nccl_ib").shown)

# %% [markdown]
# Read the lines that begin with `NET/`, and the one with `Using network`. The first machine uses TCP, and one of its interfaces, `virbr0`, leads to virtual machines and to no other node. The second log is as it should be.
#
# The lines with `via` show the path of each channel: `P2P` is NVLink or PCIe inside the node, `SHM` shared memory, `NET/IB` the network. With GPUDirect RDMA a channel ends in `/GDRDMA`: `via NET/IB/3/GDRDMA`. Here is a job on two nodes that seemed healthy:

# %%
print(output("nccl_channels").shown)
without_gdr = logs.nccl_log(output("nccl_channels").text)
assert without_gdr.ways == {"P2P": 2, "NET/IB": 4}
for sign in logs.nccl_signs(without_gdr):
    print("\n" + sign.sentence)

# %% [markdown]
# nccl-tests had shown 33 GB/s, averaged over its sizes. A developer of NCCL noticed that this log nowhere says `GDRDMA`, and asked whether `nvidia-peermem` was loaded. It was not. With GPUDirect the same nodes reached 93 GB/s at 1 GB (NVIDIA/nccl issue 1412). Nothing had failed and nothing had warned: every byte went through the host's memory.
#
# ### Choosing ports
#
# `NCCL_IB_HCA` chooses the RDMA cards (HCA, host channel adapter, is InfiniBand's word for a card), and `NCCL_SOCKET_IFNAME` the interfaces for TCP, over which ranks find each other. Both take *prefixes* of names; a leading `=` asks for exactly these names, `^` for all others, and `^=` for all but exactly these (NCCL's page of environment variables).
#
# **Predict.** A node has twelve devices with a port each, `mlx5_0` to `mlx5_11`. How many of them does `NCCL_IB_HCA=mlx5_1` choose?

# %%
chosen = predict("16.hca", "Devices?", yours=None)

# %%
twelve = [f"mlx5_{number}" for number in range(12)]
settings = ("mlx5_1", "=mlx5_1", "^mlx5_1", "^=mlx5_3", "=mlx5_0,mlx5_2")
choices = {setting: logs.chosen(setting, twelve) for setting in settings}
expect(3, len(choices["mlx5_1"]), label="devices", yours=chosen)

# %% tags=["drawing"]
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
# **Explain.** Three: `mlx5_10` and `mlx5_11` begin with `mlx5_1` too. The node of section 16.4 can work on with `NCCL_IB_HCA=^=mlx5_3`, set on *all* nodes, since rings need the same ports everywhere. Remove the setting once the cable is replaced.
#
# **Remember**
# - `Using network Socket` where there is InfiniBand: many times slower, and no error.
# - `NET/IB` without `/GDRDMA`: every byte passes through the host's memory.
# - `NCCL_IB_HCA` takes prefixes; write `=` before the names.

# %% [markdown]
# ### Deeper: the table of nccl-tests
#
# `mpirun -np 2 ./all_reduce_perf -b 2M -e 16G -f 2 -g 1` measures NCCL without your program, with one process for each GPU. (Build it with `make MPI=1`; otherwise each process tests its own GPU alone and prints a table that looks real.) Here it ran on two nodes, with one H100 and four ports of 400 Gb/s in each. The user expected $4 \cdot 50 = 200$ GB/s:

# %%
print(output("all_reduce_perf").shown)
last = nccl_table.nccl_table(output("all_reduce_perf").text).rows[-1]
by_hand = 2 * (2 - 1) / 2 * last.size_bytes / last.time_s
assert abs(by_hand / last.bus_bytes_per_s - 1) < 1e-3
print(f"\nlast row: {100 * by_hand / 50e9:.0f} % of one port of 50 GB/s")

# %% [markdown]
# At larger sizes it was 50 GB/s: one port. This GPU has *one* port at `PIX`, and the others, at `SYS`, are for other GPUs. So compare with what a GPU can send, not with what a server has. At large sizes a healthy port comes near its rate; for rings over NVLink 80 % is usual. `#wrong` must be 0.

# %% tags=["drawing"]
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
# ### Deeper: four logs
#
# The parser's opinion of four logs:

# %%
for name in ("nccl_socket", "nccl_ib", "nccl_open_device", "nccl_memlock"):
    signs = logs.nccl_signs(logs.nccl_log(output(name).text))
    print(f"{name}:")
    for sign in signs:
        print("  -", sign.sentence)

# %% [markdown]
# ## The answer
#
# Everybody takes four times as long: 1.26 s instead of 0.32 s. A ring is as fast as its slowest link. `iblinkinfo` finds the link. Until its cable is replaced, `NCCL_IB_HCA=^=mlx5_3` does without the port; with eight rings that takes 8/7 of the time.

# %% [markdown] tags=["exercise"]
# ### 16.1 Calculate: words on a wire
#
# Here are two readings of a port's counters, ten seconds apart. How many GB/s did it send, and how many did it receive? What fraction of an HDR port did it use for sending? Older devices count in 32 bits and stop at the end. At this rate, after how many seconds would such a counter of
# sent data say nothing more?

# %% [raw] tags=["hints"]
# importance 3, difficulty 2
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
# ### 16.3 Calculate: one slow port of 128
#
# 16 nodes have 8 GPUs and 8 NDR ports of 50 GB/s one way each. NCCL all-reduces 8 GB over eight rings; each has a port of its own in every node and carries an eighth of the bytes. Ignoring latency, how many ms does that take? Then one of the 128 ports
# falls back to one lane, 12.5 GB/s. How many ms does it take now, and which bus bandwidth in GB/s does `all_reduce_perf` print? Until the cable is replaced, `NCCL_IB_HCA` leaves that port's ring out on all nodes. How many ms does it take then?

# %% [raw] tags=["hints"]
# importance 3, difficulty 3
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
# This line starts a container on a node with Hygon's cards. Now it is to run on a node with NVIDIA's. Correct it, and leave alone what is right.

# %% [raw] tags=["hints"]
# importance 3, difficulty 2
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
# Kubernetes refuses this pod, which is meant for a node with 8 GPUs and RDMA. Without the line `requests` it starts, but without a GPU. On top of that, NCCL said `Using network Socket` in such pods, and a data loader died with a bus error. Correct the pod. Allow it what it needs, and no more.

# %% [raw] tags=["hints"]
# importance 3, difficulty 3
# Extended resources such as nvidia.com/gpu belong under limits; requests may repeat them.
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
# ### 16.9 Debug: true or false?
#
# (published mistakes from notes 000 and 004, and from blogs, among right sentences) True or false?

# %% [raw] tags=["hints"]
# importance 3, difficulty 2
# Two are right. Which numbers count one way, which both, and which are bits?
# What does nvidia-smi count as busy, and what does -r say while a job runs?

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
# ### 16.12 Build: an ibstat parser
#
# Write the parser of `ibstat` that this chapter used: a `Port` for each port, with `device`, `port` (an int), `state`, `physical`, `gbit_per_s` (a number) and `link_layer`. A device may have several ports, or none. Anything that cannot be read raises a ValueError that shows
# the line: a clinic that guesses is worse than none. The check feeds it recorded outputs: healthy and slow ports, one that is down, and a device that vanished. A parser that passes is kept as `mine/ibstat.py`.

# %% [raw] tags=["hints"]
# importance 3, difficulty 4
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
