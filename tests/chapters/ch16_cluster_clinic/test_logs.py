"""What NCCL and torch's watchdog say, and what NCCL's variables choose."""

import pytest

from course_lib.chapters.ch16_cluster_clinic.logs import (
    Timeout,
    chosen,
    nccl_log,
    nccl_signs,
    timeout_signs,
    timeouts,
)
from course_lib.clinic.recorded import output

TWELVE = [f"mlx5_{number}" for number in range(12)]


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("", TWELVE),
        ("mlx5_1", ["mlx5_1", "mlx5_10", "mlx5_11"]),
        ("=mlx5_1", ["mlx5_1"]),
        ("=mlx5_0,mlx5_4", ["mlx5_0", "mlx5_4"]),
        ("^mlx5_1", [f"mlx5_{n}" for n in (0, *range(2, 10))]),
        ("^=mlx5_1,mlx5_4", [name for name in TWELVE if name not in ("mlx5_1", "mlx5_4")]),
        ("=mlx4_0", []),
    ],
)
def test_prefixes_exact_names_and_all_others(setting, expected):
    assert chosen(setting, TWELVE) == expected


def test_a_port_must_fit_where_both_name_one():
    both = ["mlx5_0:1", "mlx5_0:2"]
    assert chosen("=mlx5_0:1", both) == ["mlx5_0:1"]
    assert chosen("=mlx5_0", both) == both and chosen("mlx5_0:2", ["mlx5_0"]) == ["mlx5_0"]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        *((lambda mark=mark: chosen(mark, TWELVE), "without a name") for mark in ("=", "^=", "a,")),
        (lambda: nccl_log("hello"), "a line with 'NCCL INFO' is expected"),
        (
            lambda: timeouts("[Rank 3] NCCL watchdog thread started!"),
            "Watchdog caught collective operation timeout",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def read(name):
    return nccl_log(output(f"nccl_{name}").text)


def words(name):
    return " | ".join(sign.sentence for sign in nccl_signs(read(name)))


def test_the_network_in_use():
    log = read("ib")
    assert log.network == "IB" and nccl_signs(log) == []
    log = read("socket")
    assert (log.network, log.no_ib_device) == ("Socket", True)
    assert log.interfaces == ("ens5f0np0", "ens3f0np0", "ens8f1np1", "bond0", "virbr0")
    assert "over TCP sockets (it found no InfiniBand device)" in words("socket")
    assert "virbr0, which reaches no other node" in words("socket")


def test_the_ways_of_channels_and_their_number():
    assert dict(read("channels").ways) == {"P2P": 2, "NET/IB": 4}
    line = "h:1:2 [5] NCCL INFO Channel 03/0 : 5[5] -> 12[4] [send] via NET/IB/3{}"
    log = nccl_log("\n".join(line.format(end) for end in ("", "/GDRDMA", "(2)/GDRDMA/Shared")))
    assert dict(log.ways) == {"NET/IB": 1, "NET/IB/GDRDMA": 2}


def test_infiniband_without_gpudirect_is_a_sign():
    assert "without GPUDirect RDMA" in words("channels") and "nvidia-peermem" in words("channels")
    said = "h:1:2 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'"
    assert len(nccl_signs(nccl_log(said))) == 1
    near = "h:1:2 [5] NCCL INFO Channel 03/0 : 5[5] -> 12[4] [send] via NET/IB/3/GDRDMA"
    assert nccl_signs(nccl_log(near)) == []


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("shm", "--shm-size=16G"),
        ("open_device", "--device=/dev/infiniband"),
        ("memlock", "IPC_LOCK"),
    ],
)
def test_a_warning_has_a_remedy(name, remedy):
    assert remedy in words(name)


def timeout_words(found):
    return " | ".join(sign.sentence for sign in timeout_signs(found))


def test_two_ranks_in_different_calls():
    found = timeouts(output("watchdog").text)
    assert found == (
        Timeout(7, 80078, "BROADCAST", 5056, 600.0),
        Timeout(3, 80078, "ALLREDUCE", 2_106_881, 600.0),
    )
    assert "rank 7 in call 80078, BROADCAST of 5,056 numbers; rank 3 in call" in timeout_words(
        found
    )
    assert "a branch that only some ranks take" in timeout_words(found)
    text = output("watchdog").text
    assert timeouts(text + text) == timeouts(text) and timeout_signs([]) == []


def test_all_in_one_call_unless_a_size_or_a_number_differs():
    said = timeout_words(timeouts(output("watchdog_same").text))
    assert said.startswith("All waited for 600 s: ranks 0, 1 and 2 in call 808, ALLREDUCE of 9,80")
    assert "a rank without such a line" in said
    one = Timeout(0, 5, "ALLREDUCE", 100, 600.0)
    for other in (Timeout(1, 5, "ALLREDUCE", 101, 600.0), Timeout(1, 6, "ALLREDUCE", 100, 600.0)):
        assert "different calls" in timeout_words([one, other])
