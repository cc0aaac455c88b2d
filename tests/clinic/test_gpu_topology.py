"""The matrix of ways between GPUs and ports."""

import pytest

from course_lib.clinic.gpus import topology, topology_signs
from course_lib.clinic.recorded import output

NEAR, FAR = (output(name).text for name in ("nvidia-smi_topo", "nvidia-smi_topo_far"))


def test_near_ports_and_nvlink_are_no_sign():
    found = topology(NEAR)
    assert found.gpus == ("GPU0", "GPU1", "GPU2", "GPU3") and len(found.devices) == 8
    assert found.ways["GPU0", "GPU3"] == "NV6" == found.ways["GPU3", "GPU0"]
    assert found.nearest_port("GPU2") == ("NIC2", "PIX")
    assert topology_signs(found) == []


def test_far_ports_and_no_nvlink():
    said = [sign.wrong for sign in topology_signs(topology(FAR))]
    assert said[0] == "GPU0 reaches its nearest port NIC0 over two bridges of one NUMA node (NODE)"
    assert said[-1].startswith("there is no NVLink, and some pairs") and len(said) == 5


def test_one_pair_without_nvlink_is_named():
    broken = NEAR.replace("GPU0     X      NV6", "GPU0     X      SYS", 1)
    (sign,) = topology_signs(topology(broken))
    assert sign.wrong == "GPU0 and GPU1 have no NVLink (SYS), other pairs have"


def test_a_machine_without_ports_or_with_one_gpu():
    found = topology("\tGPU0\tCPU Affinity\nGPU0\t X \t0-11\n")
    assert found.nearest_port("GPU0") is None and topology_signs(found) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "a heading with GPU0"),
        (NEAR.replace("GPU1    NV6", "GPU1    near"), "of X, NV#, PIX"),
        (NEAR[: NEAR.index("NIC3    SYS     SYS")], "a row for NIC3"),
    ],
)
def test_a_broken_matrix_is_refused(text, words):
    with pytest.raises(ValueError, match=words):
        topology(text)
