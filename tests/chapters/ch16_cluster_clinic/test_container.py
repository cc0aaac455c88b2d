"""Containers: shared memory, locked memory, docker's flags, a pod."""

import copy
from xml.etree import ElementTree

import pytest
import yaml

from course_lib.chapters.ch16_cluster_clinic import commands
from course_lib.chapters.ch16_cluster_clinic.commands import COMMANDS, FLAGS, POD
from course_lib.chapters.ch16_cluster_clinic.containers import (
    docker_signs,
    event_signs,
    locked_memory_kbytes,
    memory_signs,
    pod_signs,
    shared_memory,
)
from course_lib.clinic.recorded import output

# The docker line of the study notes, its folders shortened.
NOTES = """docker run -it --rm \\
-v /hl/llama2:/root/llama2 -w /root/llama2 -v /opt/hyhal:/opt/hyhal \\
--device=/dev/kfd --device=/dev/dri --security-opt seccomp=unconfined --cap-add=SYS_PTRACE \\
--shm-size=16G --net=host llama2 bash"""


def wrong(signs):
    return [sign.wrong for sign in signs]


def test_shared_and_locked_memory():
    small, large = (shared_memory(output(name).text) for name in ("df_shm", "df_shm_big"))
    assert small.size_bytes == 64 * 2**20 and large.used_bytes == 397 * 2**20
    assert wrong(memory_signs(small, None)) == ["/dev/shm has 64 MiB"]
    assert memory_signs(large, None) == []
    assert locked_memory_kbytes(output("ulimit").text) == 64
    assert locked_memory_kbytes("unlimited\n") is None and locked_memory_kbytes("8192") == 8192
    assert "lock 64 kbytes" in memory_signs(None, 64)[0].wrong


def test_what_a_docker_line_lacks_or_has_for_another_vendor():
    needed = [flag.flag for flag in FLAGS if flag.nvidia.startswith("yes")]
    assert docker_signs(f"docker run {' '.join(needed)} image") == []
    assert docker_signs("docker run --gpus all --ipc=host image") == []
    assert wrong(docker_signs("docker run --gpus all image")) == ["/dev/shm will have 64 MB"]
    assert wrong(docker_signs(NOTES)) == [
        "no GPU is passed",
        "/dev/kfd and /opt/hyhal belong to AMD's and Hygon's drivers",
    ]


@pytest.fixture
def pod():
    return yaml.safe_load(POD)


def without(pod, *path):
    part = found = copy.deepcopy(pod)
    for key in path[:-1]:
        part = part[key]
    del part[path[-1]]
    return found


ONE = ("spec", "containers", 0)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ((*ONE, "securityContext"), "trainer may not lock memory"),
        ((*ONE, "volumeMounts"), "trainer has the small /dev/shm"),
        ((*ONE, "resources", "limits", "rdma/rdma_shared_device_a"), "requests 1 and limits None"),
        ((*ONE, "resources"), "trainer asks for no GPU"),
    ],
)
def test_what_a_pod_lacks(pod, path, words):
    assert pod_signs(pod) == []
    assert any(words in one for one in wrong(pod_signs(without(pod, *path))))


def test_a_privileged_pod_may_lock_memory_and_too_much_else(pod):
    pod["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    assert "is privileged" in wrong(pod_signs(pod))[0] and len(pod_signs(pod)) == 1


def test_events_name_what_is_missing():
    (one,) = event_signs(output("kubectl_describe_pod").text)
    (rdma,) = event_signs(output("kubectl_describe_pod_rdma").text)
    assert one.wrong == "no node has enough nvidia.com/gpu"
    assert rdma.wrong == "no node has enough rdma/rdma_shared_device_a"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: shared_memory("nothing"), "a row that ends with /dev/shm"),
        (lambda: shared_memory("shm big 0 0 0% /dev/shm"), "a size such as 64M"),
        (lambda: locked_memory_kbytes("many"), "a number of kbytes"),
        (lambda: docker_signs("podman run x"), "'docker run …'"),
        (lambda: pod_signs({"kind": "Pod"}), "pod has no spec.containers"),
    ],
)
def test_what_makes_no_sense_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()


EVERYTHING = [one.nvidia for one in COMMANDS]


@pytest.mark.parametrize(
    "table", [commands.by_vendor(*EVERYTHING), commands.how_to_read(*EVERYTHING), commands.flags()]
)
def test_every_row_has_as_many_cells_as_the_heading(table):
    root = ElementTree.fromstring(table._repr_html_())
    cells = [len(row) for row in root.iter("tr")]
    assert set(cells) == {len(table.heading)} and len(cells) == len(table.rows) + 1
    assert len(repr(table).splitlines()) == len(table.rows)


def test_rows_say_all_and_code_links_and_what_html_would_swallow_are_shown():
    for command in COMMANDS:
        assert command.question.endswith("?") and command.read and command.unsaid
        assert command.source.startswith("https://")
    table = commands.how_to_read("dmesg", "nvlink")
    page = table._repr_html_()
    assert "<code>dmesg -T | grep -i xid</code>" in page and "&lt;inactive&gt;" in page
    assert '<a href="https://docs.nvidia.com/' in page
    assert len(commands.flags().rows) == len(FLAGS)
    assert [row[0] for row in commands.by_vendor("ibstatus").rows] == ["With how many lanes?"]
