"""The table of commands: the question, the command of each vendor, how to read it, its limits."""

from dataclasses import dataclass

_SMI = "https://docs.nvidia.com/deploy/nvidia-smi/"
_NCCL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/"
_RDMA = "https://github.com/linux-rdma/rdma-core"
_DOCKER = "https://docs.docker.com/reference/cli/docker/container/run/"
_ROCM = "https://rocm.docs.amd.com/projects/install-on-linux/en/latest/how-to/docker.html"
_PROBE = 'python -c "import torch; print(torch.cuda.is_available(), torch.cuda.device_count())"'
_TALK = 'python -c "import torch.distributed as d; print(d.is_available(), d.is_nccl_available())"'


@dataclass(frozen=True)
class Command:
    """One question and how to ask it; "" where a vendor has nothing that is documented.

    `outputs`: names of recorded outputs. `danger`: what it may break, "" for what only looks.
    """

    question: str
    nvidia: str
    amd: str
    hygon: str
    read: str
    unsaid: str
    source: str
    danger: str = ""
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Flag:
    """An option of `docker run`: who needs it ("yes", "no", or a word), and why."""

    flag: str
    nvidia: str
    amd: str
    hygon: str
    why: str
    without: str
    source: str


def _same(command: str) -> tuple[str, str, str]:
    """A command that is the same for all three."""
    return command, command, command


COMMANDS = (
    Command(
        "Does torch see GPUs, and how many?",
        *_same(_PROBE),
        read="True and the number of GPUs; on AMD and Hygon torch.cuda means HIP, and "
        "torch.version.hip has a value",
        unsaid="whether a kernel would run, or who else uses them",
        source="https://docs.pytorch.org/docs/stable/notes/hip.html",
    ),
    Command(
        "Can torch talk between ranks?",
        *_same(_TALK),
        read="both True; is_available() is False only where torch was built with USE_DISTRIBUTED=0",
        unsaid="whose library it is: on AMD and Hygon it is RCCL and says True as well; whether "
        "there is a GPU, or a network",
        source="https://docs.pytorch.org/docs/stable/distributed.html",
    ),
    Command(
        "Which process uses which GPU?",
        "nvidia-smi pmon -s um -c 1",
        "amd-smi process",
        "hy-smi --showpids",
        read="one row for each process: sm is the percent of time in which its kernels ran, fb the "
        "memory it holds; two processes on one GPU are mostly one too many",
        unsaid="how much of the GPU was used: 100 % means that some kernel ran all the time, even "
        "one that only waits for other ranks",
        source=_SMI,
        outputs=("nvidia-smi_pmon", "nvidia-smi_pmon_shared", "nvidia-smi_pmon_hang"),
    ),
    Command(
        "How hot and how fast does each GPU run?",
        "nvidia-smi dmon -c 1",
        "amd-smi monitor",
        "hy-smi",
        read="power, temperature and clock of each GPU beside its neighbours; 100 % at a sixth of "
        "the power is a kernel that waits",
        unsaid="what holds a clock down, or which kernel runs",
        source=_SMI,
        outputs=("nvidia-smi_dmon", "amd-smi_monitor", "rocm-smi", "hy-smi"),
    ),
    Command(
        "By which way do GPUs and ports reach each other?",
        "nvidia-smi topo -m",
        "amd-smi topology",
        "hy-smi --showtopo",
        read="NV18: 18 NVLinks; PIX, PXB: PCIe switches; NODE, SYS: through the CPU, within a NUMA "
        "node or between two; each GPU should have a port at PIX or PXB",
        unsaid="how fast any of it is, whether a link works, or whether GPUDirect is on: measure",
        source=_SMI,
        outputs=("nvidia-smi_topo", "nvidia-smi_topo_far"),
    ),
    Command(
        "Are all NVLinks up?",
        "nvidia-smi nvlink -s",
        "amd-smi xgmi",
        "",
        read="one line for each link with its rate, one way; <inactive> on one GPU and not on the "
        "others is a fault",
        unsaid="what passes over it; errors are told by `nvidia-smi nvlink -e`",
        source=_SMI,
        outputs=("nvidia-smi_nvlink",),
    ),
    Command(
        "Has the memory errors, is the clock held down?",
        "nvidia-smi -q -d ECC,ROW_REMAPPER,PERFORMANCE",
        "amd-smi metric --ecc --throttle",
        "",
        read="Uncorrectable must be 0, Pending and Remapping Failure Occurred No; of the reasons "
        "for a lower clock, Idle and SW Power Cap are usual, HW Slowdown never is",
        unsaid="when it happened: Volatile counts since the last reset, Aggregate since ever",
        source=_SMI,
        outputs=(
            "nvidia-smi_q_ecc",
            "nvidia-smi_q_sram",
            "nvidia-smi_q_performance",
            "nvidia-smi_q_hot",
        ),
    ),
    Command(
        "What did the driver report?",
        "dmesg -T | grep -i xid",
        "dmesg -T | grep -i amdgpu",
        "dmesg -T | grep -i hydcu",
        read="the number after the PCI address: 13, 31, 43 are mostly the program's fault, 48, 63, "
        "64, 74, 79, 94, 95, 119 the machine's",
        unsaid="the cause, where a later Xid only cleans up (45)",
        source="https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html",
        outputs=("dmesg_xid", "dmesg_xid_63", "dmesg_xid_79", "dmesg_xid_45"),
    ),
    Command(
        "Is the node healthy under load?",
        "dcgmi diag -r 2",
        "rvs -c …",
        "",
        read="Pass, Fail or Skip for each test; -r 2 takes minutes, -r 3 longer",
        unsaid="that what passed is healthy: it has passed with all NVLinks down (DCGM issue 198)",
        source="https://docs.nvidia.com/datacenter/dcgm/latest/user-guide/dcgm-diagnostics.html",
        danger="it loads all GPUs: not beside somebody's job",
        outputs=("dcgmi_diag", "dcgmi_diag_pass"),
    ),
    Command(
        "Can a GPU be brought back without a restart?",
        "nvidia-smi -r -i 0",
        "amd-smi reset --gpureset --gpu 0",
        "",
        read="refused while anything uses the GPU, nvidia-persistenced included",
        unsaid="whether the fault is gone",
        source=_SMI,
        danger="it asks you to kill whatever uses the GPU, without -i whatever uses any of them; "
        "where GPUs can't be reset one by one it fails and names the others; needs root: leave it "
        "to an administrator",
        outputs=("nvidia-smi_r",),
    ),
    Command(
        "Which RDMA ports are up, at which rate?",
        *_same("ibstat"),
        read="State Active, Physical state LinkUp, and the Rate in Gb/s of all lanes together: "
        "all ports that carry the same traffic must say the same",
        unsaid="how many lanes work (see ibstatus), or what the switch's side says",
        source=_RDMA,
        outputs=("ibstat", "ibstat_slow", "ibstat_down", "ibstat_panic"),
    ),
    Command(
        "With how many lanes?",
        *_same("ibstatus"),
        read="rate: 200 Gb/sec (4X HDR) has four lanes, 50 Gb/sec (1X HDR) has one",
        unsaid="which end of the cable is bad",
        source=_RDMA,
        outputs=("ibstatus", "ibstatus_one_lane", "ibstatus_slow"),
    ),
    Command(
        "Can this process open the ports, and how large are packets?",
        *_same("ibv_devinfo"),
        read="PORT_ACTIVE, link_layer InfiniBand or Ethernet (RoCE), active_mtu 4096",
        unsaid="the rate; whether memory may be locked (`ulimit -l`)",
        source=_RDMA,
        outputs=("ibv_devinfo", "ibv_devinfo_small_mtu", "ibv_devinfo_closed"),
    ),
    Command(
        "Which RDMA devices does this container have?",
        *_same("ibv_devices"),
        read="one line for each; none in a container means that /dev/infiniband was not passed",
        unsaid="whether a port is up",
        source=_RDMA,
        outputs=("ibv_devices", "ibv_devices_zero", "ibv_devices_none"),
    ),
    Command(
        "Which network interface belongs to which RDMA port?",
        *_same("rdma link"),
        read="state ACTIVE physical_state LINK_UP, and netdev: the interface for "
        "NCCL_SOCKET_IFNAME",
        unsaid="rate and lanes",
        source="https://man7.org/linux/man-pages/man8/rdma-link.8.html",
        outputs=("rdma_link", "rdma_link_polling"),
    ),
    Command(
        "How much goes over a port right now?",
        *_same("mlnx_perf -i ib0 | grep rdma"),
        read="bytes per second, both ways; beside 8 × that the rate of ibstat",
        unsaid="whose bytes; on InfiniBand some drivers count RDMA only in the port's counters",
        source="https://github.com/Mellanox/mlnx-tools",
        outputs=("mlnx_perf",),
    ),
    Command(
        "How much went over a port, and with which errors?",
        *_same("grep . /sys/class/infiniband/mlx5_0/ports/1/counters/*"),
        read="port_xmit_data counts words of 4 bytes: two readings, 4 × difference / seconds; "
        "symbol_error and link_downed must not grow",
        unsaid="what came after a counter stopped at its end (255, 65535, 4294967295)",
        source="https://docs.kernel.org/infiniband/sysfs.html",
        outputs=("counters", "counters_later", "counters_no_pma"),
    ),
    Command(
        "Which network does NCCL use?",
        *_same("NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH torchrun …"),
        read="Using network IB, not Socket; NET/IB : Using names the ports; P2P, SHM and NET say "
        "how each channel goes, NET/IB/0/GDRDMA that GPUDirect is on; every WARN",
        unsaid="how fast it is, or which rank is late",
        source=_NCCL + "env.html",
        outputs=(
            "nccl_ib",
            "nccl_socket",
            "nccl_channels",
            "nccl_shm",
            "nccl_open_device",
            "nccl_memlock",
            "nccl_nvls",
        ),
    ),
    Command(
        "How fast is the network for collectives?",
        "all_reduce_perf -b 8M -e 4G -f 2 -g 8",
        "rccl-tests: all_reduce_perf -b 8M -e 4G -f 2 -g 8",
        "rccl-tests: all_reduce_perf -b 8M -e 4G -f 2 -g 8",
        read="busbw of large sizes beside the rate of a link, one way: near it for a port, 0.8 of "
        "it for NVLink; #wrong 0",
        unsaid="which link is slow: a ring runs at its slowest one",
        source="https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md",
        danger="it takes the GPUs and the network from others",
        outputs=(
            "all_reduce_perf",
            "all_reduce_perf_ranks",
            "all_reduce_perf_small",
            "all_reduce_perf_nvls",
            "all_reduce_perf_two_nodes",
            "all_reduce_perf_two_nodes_ring",
            "all_gather_perf",
        ),
    ),
    Command(
        "Is there shared memory enough?",
        *_same("df -h /dev/shm; ulimit -l"),
        read="some GB, and unlimited; 64M is docker's default",
        unsaid="how much a job will need",
        source=_NCCL + "troubleshooting.html",
        outputs=("df_shm", "df_shm_big", "ulimit"),
    ),
    Command(
        "Why does the pod not start?",
        *_same("kubectl describe pod NAME"),
        read="the events at the end: Insufficient rdma/… says that no node has that resource free, "
        "or under that name",
        unsaid="which of the two: see Allocatable in `kubectl describe node`",
        source="https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/",
        outputs=("kubectl_describe_pod", "kubectl_describe_pod_rdma"),
    ),
    Command(
        "In which call did each rank wait too long?",
        *_same("grep -h 'Watchdog caught' LOGS"),
        read="SeqNum, OpType and NumelIn beside those of other ranks: different calls under one "
        "number are the program's fault; the trouble began Timeout(ms) before the line",
        unsaid="where the rank is that wrote no such line",
        source="https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html",
        outputs=("watchdog", "watchdog_same"),
    ),
    Command(
        "Which calls did each rank make?",
        *_same("torchfrtrace --prefix trace_ FOLDER"),
        read="missing ranks, and the collective at which the others stopped; the first difference "
        "may lie before it; files lie where TORCH_FR_DUMP_TEMP_FILE=FOLDER/trace_ said",
        unsaid="what a rank without a file did",
        source="https://docs.pytorch.org/tutorials/prototype/flight_recorder_tutorial.html",
        outputs=("torchfrtrace",),
    ),
    Command(
        "Where does a rank stand?",
        *_same("py-spy dump --pid PID"),
        read="the innermost function is the first line: ranks in all_reduce wait, the one that is "
        "elsewhere is waited for",
        unsaid="why; with --native also what C++ does. A container needs SYS_PTRACE for it",
        source="https://github.com/benfred/py-spy",
        outputs=("py-spy_dump",),
    ),
)

FLAGS = (
    Flag(
        "--gpus all",
        "yes",
        "no",
        "no",
        "passes NVIDIA's devices and libraries, by the NVIDIA Container Toolkit",
        "torch.cuda.is_available() is False; without the toolkit docker says: could not select "
        "device driver",
        _DOCKER,
    ),
    Flag(
        "--device=/dev/kfd",
        "no",
        "yes",
        "yes, newer ones /dev/mkfd too",
        "the interface for computing of AMD's driver, which Hygon's follows",
        "no GPU is found; on a machine with NVIDIA's the device does not exist, and docker fails",
        _ROCM,
    ),
    Flag(
        "--device=/dev/dri",
        "no",
        "yes",
        "yes",
        "one file for each GPU; pass one of them to pass one GPU",
        "no GPU is found",
        _ROCM,
    ),
    Flag(
        "--group-add video",
        "no",
        "yes, and render",
        "yes",
        "a user who is not root may then open these devices",
        "Unable to open /dev/kfd: Permission denied",
        _ROCM,
    ),
    Flag(
        "-v /opt/hyhal:/opt/hyhal",
        "no",
        "no",
        "yes",
        "the part of Hygon's driver that runs in the program lies on the host",
        "libraries are not found when torch is imported",
        "https://github.com/gpustack/gpustack/issues/2032",
    ),
    Flag(
        "--security-opt seccomp=unconfined",
        "for NUMA",
        "for NUMA",
        "for NUMA",
        "lets a program choose on which NUMA node its memory lies; --cap-add=SYS_NICE does too",
        "docker's filter refuses mbind and set_mempolicy: slower on some machines",
        "https://docs.docker.com/engine/security/seccomp/",
    ),
    Flag(
        "--cap-add=SYS_PTRACE",
        "to debug",
        "to debug",
        "to debug",
        "py-spy and gdb may look into other processes; ranks of one node share memory by it (CMA)",
        "py-spy: Permission denied",
        _DOCKER,
    ),
    Flag(
        "--shm-size=16G",
        "yes",
        "yes",
        "yes",
        "data loaders and NCCL pass data through /dev/shm, which has 64 MB otherwise",
        "Bus error in a data loader; NCCL WARN … /dev/shm … No space left on device",
        _DOCKER,
    ),
    Flag(
        "--ipc=host",
        "instead of --shm-size",
        "instead of --shm-size",
        "instead of --shm-size",
        "the container uses the host's /dev/shm",
        "see --shm-size",
        _DOCKER,
    ),
    Flag(
        "--net=host",
        "over several nodes",
        "over several nodes",
        "over several nodes",
        "the container has the host's interfaces and ports, so that ranks of other nodes reach it",
        "NCCL and the rendezvous take the container's eth0 (172.17.…), which no other node reaches",
        _DOCKER,
    ),
    Flag(
        "--device=/dev/infiniband --ulimit memlock=-1",
        "for RDMA",
        "for RDMA",
        "for RDMA",
        "the ports, and permission to lock the memory that they read and write",
        "NET/IB : No device found; ibv_create_cq failed with error Cannot allocate memory",
        _NCCL + "troubleshooting.html",
    ),
    Flag(
        "-v /data:/data -w /data",
        "as needed",
        "as needed",
        "as needed",
        "-v shows a folder of the host inside, -w starts there",
        "what is written is lost with the container",
        _DOCKER,
    ),
    Flag(
        "-it --rm",
        "by hand",
        "by hand",
        "by hand",
        "-it: a terminal; --rm: the container is removed when it ends",
        "no prompt; ended containers pile up",
        _DOCKER,
    ),
)

# The pod of the notes, completed: a device of the shared RDMA plug-in, locked memory, a GPU and
# a large /dev/shm. Source: Mellanox/k8s-rdma-shared-dev-plugin, example/test-hca-pod.yaml.
POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: trainer-0
spec:
  containers:
  - name: trainer
    image: trainer:1
    resources:
      requests:
        nvidia.com/gpu: 8
        rdma/rdma_shared_device_a: 1
      limits:
        nvidia.com/gpu: 8
        rdma/rdma_shared_device_a: 1
    securityContext:
      capabilities:
        add: [IPC_LOCK]
    volumeMounts:
    - {name: shm, mountPath: /dev/shm}
  volumes:
  - name: shm
    emptyDir: {medium: Memory, sizeLimit: 64Gi}
"""
