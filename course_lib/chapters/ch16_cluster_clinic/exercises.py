"""Exercises and quiz of chapter 16, the cluster clinic."""

from statistics import median
from typing import Any

from course_lib.chapters.ch16_cluster_clinic import containers, slowest
from course_lib.chapters.ch16_cluster_clinic.builds import divergence, ibstat
from course_lib.chapters.ch16_cluster_clinic.slowest import OneSlowLink
from course_lib.checking import (
    Unanswered,
    Wrong,
    exercise,
    expect_calls,
    expect_entries,
    expect_numbers,
    expect_type,
    hunts,
)
from course_lib.clinic import ports
from course_lib.clinic.recorded import Sign, output
from course_lib.theory.compute import rounding
from course_lib.theory.inputs.hardware import HDR, NDR, Link

_BETWEEN_S = 10.0  # time between the two readings


@exercise("16.1")
def _words(answer: Any) -> None:
    before, after = (ports.counters(output(name).text) for name in ("counters", "counters_later"))
    now = ports.rates(before, after, _BETWEEN_S)
    full_s = 2**32 * ports.WORD_BYTES / now.sent_bytes_per_s
    because = "4 bytes a word, 10 s"
    expect_numbers(
        answer,
        "two rates in GB/s, a fraction and seconds",
        (now.sent_bytes_per_s / 1e9, because, 5e-3, "GB/s"),
        (now.received_bytes_per_s / 1e9, because, 5e-3, "GB/s"),
        (now.sent_bytes_per_s / HDR.bytes_per_s, "6.1 of 25 GB/s", 1e-2, ""),
        (full_s, "2^32 words are 17.2 GB", 5e-2, "s"),
    )


_CALLS: dict[str, tuple[object, str]] = {
    "dmesg: Xid 79": ("hardware", "the GPU has fallen off the bus"),
    "dmesg: Xid 31, pid=train.py": ("program", "it used a wrong address"),
    "-q -d ECC: 12 corrected errors, Remapped Rows all 0, Pending No": (
        "nobody",
        "all were corrected, and no row waits",
    ),
    "-q -d ROW_REMAPPER: Pending Yes": ("hardware", "a row waits for its replacement"),
    "-q -d PERFORMANCE at full load: SW Power Cap Active": (
        "nobody",
        "at full load the power limit is normal",
    ),
    "-q -d PERFORMANCE: HW Slowdown Active": ("hardware", "it is never normal"),
    "nvlink -s: one of 18 links <inactive>, on one GPU of eight": (
        "hardware",
        "its neighbours have all of theirs",
    ),
    "pmon: a process of a job that ended yesterday, with 70 GB": (
        "program",
        "the job has left a process behind",
    ),
}


@exercise("16.2")
def _whom_to_call(answer: Any) -> None:
    each = "'nobody', 'program' or 'hardware'"
    expect_entries(answer, _CALLS, "a dict of whom to call", each=each)


@exercise("16.3")
def _slow_port(answer: Any) -> None:
    link = Link("NDR without latency", NDR.bytes_per_s, 0.0)
    one = OneSlowLink(8e9, 128, link, NDR.bytes_per_s / ports.LANES, rings=8)
    assert one.without_s is not None
    expect_numbers(
        answer,
        "two times in ms, a bus bandwidth in GB/s and a time in ms",
        (1e3 * one.healthy_s, "2 · 127/128 · 8 GB over 8 · 50 GB/s", 1e-2, "ms"),
        (1e3 * one.slow_s, "1 GB of the ring at 12.5 GB/s, twice", 1e-2, "ms"),
        (one.slow_bus_bytes_per_s / 1e9, "all eight rings as slow as one", 1e-2, "GB/s"),
        (1e3 * one.without_s, "seven rings of 50 GB/s carry all", 1e-2, "ms"),
    )


# --- containers -----------------------------------------------------------------------------------


def _expect_no_signs(signs: list[Sign], what: str) -> None:
    """Raise Wrong for the first sign; its remedy is shown only after the hints."""
    if signs:
        raise Wrong(f"expected another {what}: {signs[0].wrong}", signs[0].do)


_KEPT = ("--rm", "/data/llama:/root/llama", "-w /root/llama", "llama:24.05", "bash")


@exercise("16.4")
def _docker(answer: Any) -> None:
    expect_type(answer, str, "a line that begins with docker run")
    line = answer.replace("\\\n", " ")
    try:
        _expect_no_signs(containers.docker_signs(line), "line")
    except ValueError as error:
        raise Wrong(f"expected a docker line: {error}") from None
    if "/dev/dri" in line:
        raise Wrong(
            "expected another line: it still passes a device that no NVIDIA program opens",
            "/dev/dri is AMD's and Hygon's",
        )
    flat = " ".join(line.replace("=", " ").split())
    for part in _KEPT:
        if part.replace("=", " ") not in flat:
            raise Wrong(f"expected {part!r} to stay, which was right")


@exercise("16.5")
def _pod(answer: Any) -> None:
    expect_type(answer, (str, dict), "a pod, as YAML or as a dict")
    pod = _read(answer) if isinstance(answer, str) else answer
    try:
        signs = containers.pod_signs(pod)
    except (ValueError, AttributeError, TypeError, KeyError) as error:
        raise Wrong(f"expected a pod: {error}") from None
    _expect_no_signs(signs, "pod")
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    if str(limits.get("nvidia.com/gpu")) != "8":
        raise Wrong("expected as many GPUs as before, it needs 8")
    if "rdma/rdma_shared_device_a" not in limits:
        raise Wrong("expected RDMA under the name that the node offers")


def _read(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise Wrong(f"expected YAML: {' '.join(str(error).split())}") from None


# --- who is named ---------------------------------------------------------------------------------

_NAMED: dict[str, tuple[object, str]] = {
    "rank 2 sleeps: ranks whose stack ends in torch.distributed": (
        [0, 1, 3],
        "they wait in number 7; rank 2 stands in its own code",
    ),
    "rank 2 sleeps: ranks that raise an error when the time is up": (
        [0, 1, 3],
        "who waited complains; rank 2 has nothing to complain about",
    ),
    "rank 2 sleeps: number of the last collective in rank 2's record": (
        6,
        "a call is recorded when it is made",
    ),
    "rank 2 sleeps: number of the last collective in rank 3's record": (
        7,
        "it has called number 7 and waits in it",
    ),
    "ranks 1 and 3 sleep: ranks that monitored_barrier() names": (
        [1],
        "rank 0 asks the others in turn, and gives up at the first that is missing",
    ),
    "ranks 1 and 3 sleep: ranks that monitored_barrier(wait_all_ranks=True) names": (
        [1, 3],
        "it waits for all before it complains",
    ),
}


@exercise("16.6")
def _who(answer: Any) -> None:
    expect_entries(answer, _NAMED, "a dict", each="a list of ranks, or a number")


@exercise("16.7")
def _straggler(answer: Any) -> None:
    factor = slowest.straggler_factor(0.25, 0.8)
    shared = slowest.shared_work_factor(8, 0.25)
    slowest_ms = 1e3 * slowest.expected_slowest_s(1024, 0.4, 0.008)
    expect_numbers(
        answer,
        "three factors and a time in ms",
        (factor, "1 + 0.25 · 0.8", 2e-3, ""),
        (factor, "one slow rank of 1,024 costs what one of 8 costs", 2e-3, ""),
        (shared, "8 / (7 + 1/1.25)", 2e-3, ""),
        (slowest_ms, "400 + 3.25 · 8 ms", 5e-3, "ms"),
    )


_LATE = "late_rank(total_ms, inside_ms)"


def _late(total_ms: list[list[float]], inside_ms: list[list[float]]) -> int | None:
    own = [
        median(whole - inside for whole, inside in zip(*rank, strict=True))
        for rank in zip(total_ms, inside_ms, strict=True)
    ]
    second, first = sorted(own)[-2:]
    return own.index(first) if first > 2 * second else None


_UPDATES: tuple[tuple[list[list[float]], list[list[float]], str], ...] = (
    (
        [[210, 204, 206], [205, 206, 203], [207, 204, 205]],
        [[20, 4, 10], [195, 196, 193], [197, 194, 195]],
        "who waits least is waited for",
    ),
    (
        [[30, 31, 30, 33], [31, 30, 31, 32]],
        [[20, 20, 21, 21], [20, 21, 20, 21]],
        "all are alike, and nobody is late",
    ),
    (
        [[30, 31, 930, 33, 30], [31, 30, 931, 32, 30], [30, 30, 932, 31, 30]],
        [[20, 20, 20, 21, 20], [20, 21, 920, 21, 20], [20, 21, 920, 22, 20]],
        "once late is no straggler: take the median of the updates",
    ),
    (
        [[120, 121, 119], [120, 120, 121], [121, 121, 120], [120, 121, 121]],
        [[80, 81, 80], [60, 62, 61], [81, 80, 79], [80, 82, 80]],
        "1.5 times as much work as the next is not yet twice as much",
    ),
    ([[90, 80, 85], [90, 81, 85]], [[60, 52, 56], [5, 1, 2]], "two ranks: the one that computes"),
)


@exercise("16.8")
def _waited_for(function: Any) -> None:
    cases = [((total, inside), _late(total, inside), why) for total, inside, why in _UPDATES]
    expect_calls(function, cases, signature=_LATE)


_CLAIMS: dict[str, tuple[object, str]] = {
    "nvidia-smi shows 100 % for each GPU, so all of them compute": (
        False,
        "a kernel that waits for other ranks counts as busy",
    ),
    "an H100's NVLink carries 900 GB/s, which is 28 times PCIe 4.0 x16 with 32 GB/s": (
        False,
        "900 counts both ways and 32 one: it is 14 times",
    ),
    "a port of 200 Gb/s is too fast for a PCIe 4.0 x16 slot of 32 GB/s": (
        False,
        "200 Gb/s are 25 GB/s, 78 % of the slot",
    ),
    "dist.is_nccl_available() is True on AMD's GPUs as well": (
        True,
        "RCCL has taken NCCL's place there",
    ),
    "nvidia-smi -r beside a running job ends that job and resets its GPU": (
        False,
        "it refuses while anything uses the GPU",
    ),
    "with --ipc=host a container needs no --shm-size": (True, "it then has the host's /dev/shm"),
}


@exercise("16.9")
def _true_or_false(answer: Any) -> None:
    expect_entries(answer, _CLAIMS, "a dict of True and False", each="True or False")


_TERMS = 4096
_DIFFERENCES: dict[str, tuple[str, float, str]] = {
    "fp32, off by 2e-6": ("fp32", 2e-6, "typical is 64 · 2^-24 = 3.8e-6"),
    "fp32, off by 2e-4": ("fp32", 2e-4, "it is 52 times the typical 3.8e-6"),
    "fp32, off by 3e-5": ("fp32", 3e-5, "it is 8 times the typical 3.8e-6"),
    "stored in bf16, off by 3e-3": ("bf16", 3e-3, "one rounding to bf16 is up to 3.9e-3"),
    "stored in bf16, off by 0.1": ("bf16", 0.1, "it is 26 times the rounding to bf16"),
    "fp64, off by 1e-7": ("fp64", 1e-7, "fp64 would be off by 7e-15: somewhere it was fp32"),
}


@exercise("16.10")
def _bug_or_rounding(answer: Any) -> None:
    expected = {
        what: (rounding.verdict(off, rounding.typical_sum_error(_TERMS, dtype)), because)
        for what, (dtype, off, because) in _DIFFERENCES.items()
    }
    each = f"one of {', '.join(map(repr, rounding.VERDICTS))}"
    expect_entries(answer, expected, "a dict of verdicts", each=each)


_CASES = (2, 4, 6)


@exercise("16.11")
def _hunted(answer: Any) -> None:
    expect_type(answer, dict, "a dict from case to (rank, cause)")
    for seed in _CASES:
        if seed not in answer:
            raise Wrong(f"gave nothing for case {seed}, expected (rank, cause)")
        given = answer[seed]
        if not isinstance(given, list | tuple) or len(given) != 2:
            raise Wrong(f"for case {seed} it wants (rank, cause)")
        try:
            hunts.judge(seed, *given)
        except Unanswered:
            raise
        except Wrong as wrong:
            raise Wrong(f"for case {seed} expected another answer: {wrong}") from None


BUILDS = (ibstat.IBSTAT, divergence.DIVERGENCE)
