"""NCCL's log: which network, which ports, which way, and what it warned of."""

import pytest

from course_lib.chapters.ch16_cluster_clinic.logs import nccl_log, nccl_signs
from course_lib.clinic.recorded import output


def read(name):
    return nccl_log(output(f"nccl_{name}").text)


def words(name):
    return " | ".join(sign.sentence for sign in nccl_signs(read(name)))


def test_infiniband_in_use_is_no_sign():
    log = read("ib")
    assert log.network == "IB" and log.ports == ("mlx5_0:1/IB", "mlx5_2:1/IB")
    assert nccl_signs(log) == []


def test_sockets_and_a_wrong_interface():
    log = read("socket")
    assert (log.version, log.network, log.no_ib_device) == ("2.17.1+cuda12.1", "Socket", True)
    assert log.interfaces == ("ens5f0np0", "ens3f0np0", "ens8f1np1", "bond0", "virbr0")
    assert "over TCP sockets (it found no InfiniBand device)" in words("socket")
    assert "virbr0, which reaches no other node" in words("socket")


def test_the_ways_of_channels_and_their_number():
    assert dict(read("channels").ways) == {"P2P": 2, "NET/IB": 4}
    line = "h:1:2 [5] NCCL INFO Channel 03/0 : 5[5] -> 12[4] [send] via NET/IB/3{}"
    log = nccl_log("\n".join(line.format(end) for end in ("", "/GDRDMA", "(2)/GDRDMA/Shared")))
    assert dict(log.ways) == {"NET/IB": 1, "NET/IB/GDRDMA": 2}
    log = read("nvls")
    assert log.channels == 2 and log.nvls is False and read("ib").nvls is None


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


def test_each_warning_once_and_an_unknown_one_is_kept():
    (sign,) = nccl_signs(nccl_log("h:1:2 [0] a.cc:3 NCCL WARN odd thing\n" * 3))
    assert sign.wrong == "NCCL warned: odd thing" and "troubleshooting" in sign.do


def test_a_text_without_nccl_is_refused():
    with pytest.raises(ValueError, match="a line with 'NCCL INFO' is expected"):
        nccl_log("hello")
