"""Exercises and quiz of chapter 16, the cluster clinic."""

from course_lib.checking import Question

QUIZ = (
    Question(
        "All GPUs of a job show 100 %. What do you know?",
        (
            "they compute at their peak",
            "some kernel ran all the time, perhaps one that waits",
            "the network is not the limit",
        ),
        answer=1,
        why="Utilization counts time, and waiting for other ranks is a kernel.",
    ),
    Question(
        "A job hangs. pmon shows 99 % on seven GPUs and nothing on the eighth. Where do you look?",
        ("at the seven", "at the eighth", "at the network"),
        answer=1,
        why="The seven wait inside a collective; the eighth is the one that has not come.",
    ),
    Question(
        "One of 64 links of a ring has a quarter of its rate. An all-reduce of 4 GB takes …",
        ("1/64 longer", "three quarters longer", "four times as long"),
        answer=2,
        why="Every piece passes over every link, and everybody waits for the slowest.",
    ),
    Question(
        "port_xmit_data grows by 5,000,000,000 in 1 s. How much does the port send?",
        ("5 GB/s", "20 GB/s", "0.625 GB/s"),
        answer=1,
        why="It counts words of four bytes.",
    ),
    Question(
        "ibstatus says 100 Gb/sec (2X HDR). What is wrong?",
        ("two of four lanes are gone", "it is an older card", "nothing"),
        answer=0,
        why="HDR is 50 Gb/s for each lane, and a cable has four.",
    ),
    Question(
        "A data loader dies with 'No space left on device', and the disk is empty. What is full?",
        ("the GPU's memory", "locked memory", "/dev/shm"),
        answer=2,
        why="Workers hand over batches there, and a container has 64 MB of it.",
    ),
    Question(
        "Which capability lets a pod lock the memory that RDMA reads and writes?",
        ("SYS_PTRACE", "IPC_LOCK", "seccomp=unconfined"),
        answer=1,
        why="SYS_PTRACE is for py-spy; seccomp is docker's filter of system calls.",
    ),
    Question(
        "NCCL_IB_HCA=mlx5_1 on a node with mlx5_0 to mlx5_15. How many ports are used?",
        ("1", "7", "16"),
        answer=1,
        why="Names are prefixes: mlx5_1 and mlx5_10 to mlx5_15.",
    ),
    Question(
        "One of 1,024 ranks computes 5 % more slowly. How much longer is a step of pure computing?",
        ("5 %", "0.005 %", "it depends on the network"),
        answer=0,
        why="All wait for the slowest: the maximum, not the mean.",
    ),
)
