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
from course_lib.clinic import recorded
from course_lib.clinic.recorded import output

# The docker line of the study notes, its folders shortened.
NOTES = """docker run -it --rm \\
-v /hl/llama2:/root/llama2 -w /root/llama2 -v /opt/hyhal:/opt/hyhal \\
--device=/dev/kfd --device=/dev/dri --security-opt seccomp=unconfined --cap-add=SYS_PTRACE \\
--shm-size=16G --net=host llama2 bash"""


def wrong(signs):
    return [sign.wrong for sign in signs]


def test_the_size_of_shared_memory():
    small, large = (shared_memory(output(name).text) for name in ("df_shm", "df_shm_big"))
    assert small.size_bytes == 64 * 2**20 and large.used_bytes == 397 * 2**20
    assert wrong(memory_signs(small, None)) == ["/dev/shm has 64 MiB"]
    assert memory_signs(large, None) == []


def test_locked_memory():
    assert locked_memory_kbytes(output("ulimit").text) == 64
    assert locked_memory_kbytes("unlimited\n") is None and locked_memory_kbytes("8192") == 8192
    assert "lock 64 kbytes" in memory_signs(None, 64)[0].wrong


def test_the_notes_line_is_for_hygon():
    assert docker_signs(NOTES, "Hygon") == []
    assert docker_signs(NOTES, "AMD") == []
    assert wrong(docker_signs(NOTES, "NVIDIA")) == [
        "no GPU is passed",
        "/dev/kfd and /opt/hyhal belong to AMD's and Hygon's drivers",
    ]


def test_a_line_for_nvidia_is_not_for_the_others():
    line = "docker run --gpus all --ipc=host image"
    assert docker_signs(line, "NVIDIA") == []
    assert wrong(docker_signs(line, "AMD")) == ["--gpus is NVIDIA's", "a device is missing"]
    assert wrong(docker_signs(line, "Hygon"))[-1] == "Hygon's libraries are missing"
    assert wrong(docker_signs("docker run --gpus all image", "NVIDIA")) == [
        "/dev/shm will have 64 MB"
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
        (("spec", "volumes"), "trainer has the small /dev/shm"),
        ((*ONE, "resources", "limits", "rdma/rdma_shared_device_a"), "requests 1 and limits None"),
        ((*ONE, "resources", "limits", "nvidia.com/gpu"), "requests 8 and limits None"),
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
        (lambda: docker_signs("podman run x", "AMD"), "'docker run …'"),
        (lambda: docker_signs("docker run x", "Intel"), "vendor 'Intel' is not one of"),
        (lambda: pod_signs({"kind": "Pod"}), "pod has no spec.containers"),
    ],
)
def test_what_makes_no_sense_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()


COMMANDS_OF_NOTES = (
    "ibstat",
    "ibstatus",
    "ibv_devinfo",
    "ibv_devices",
    "rdma link",
    "mlnx_perf",
    "python -c",
)


def test_every_command_of_the_notes_is_there():
    asked = " ".join(command.nvidia for command in COMMANDS)
    assert all(name in asked for name in COMMANDS_OF_NOTES)
    assert "nvidia-smi pmon" in asked and "nvidia-smi -r" in asked


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.nvidia[:20])
def test_every_row_says_what_to_read_and_what_it_cant_say(command):
    assert command.question.endswith("?") and command.read and command.unsaid
    assert command.source.startswith("https://")
    assert set(command.outputs) <= set(recorded.names())


def test_every_output_that_a_command_printed_is_in_the_table():
    used = {name for command in COMMANDS for name in command.outputs}
    errors = {"docker_no_gpus", "docker_no_kfd", "hy-smi_no_device", "nvidia-smi_pmon_unsupported"}
    assert set(recorded.names()) - used == errors


def test_what_resets_or_loads_gpus_has_a_warning():
    dangers = {command.nvidia for command in COMMANDS if command.danger}
    assert "nvidia-smi -r -i 0" in dangers and "dcgmi diag -r 2" in dangers
    for command in COMMANDS:
        risky = any(word in command.nvidia for word in (" -r", "reset", "_perf -b"))
        assert risky == bool(command.danger), command.nvidia


def test_a_hundred_percent_is_explained():
    (pmon,) = (command for command in COMMANDS if "pmon" in command.nvidia)
    assert "100 % means that some kernel ran all the time" in pmon.unsaid


@pytest.mark.parametrize("vendor", ["NVIDIA", "AMD", "Hygon"])
def test_the_flags_that_a_vendor_needs_leave_nothing_to_remark(vendor):
    needed = [flag.flag for flag in FLAGS if getattr(flag, vendor.lower()).startswith("yes")]
    assert docker_signs(f"docker run {' '.join(needed)} image", vendor) == []


def test_every_flag_says_why_and_what_fails_without_it():
    assert all(flag.why and flag.without and flag.source.startswith("https://") for flag in FLAGS)
    notes = "-v -w /opt/hyhal /dev/kfd /dev/dri seccomp=unconfined SYS_PTRACE --shm-size --net=host"
    told = " ".join(flag.flag for flag in FLAGS)
    assert all(word in told for word in [*notes.split(), "--gpus", "--ipc=host", "-it --rm"])


EVERYTHING = [one.nvidia for one in COMMANDS]


@pytest.mark.parametrize(
    "table", [commands.by_vendor(*EVERYTHING), commands.how_to_read(*EVERYTHING), commands.flags()]
)
def test_every_row_has_as_many_cells_as_the_heading(table):
    root = ElementTree.fromstring(table._repr_html_())
    cells = [len(row) for row in root.iter("tr")]
    assert set(cells) == {len(table.heading)} and len(cells) == len(table.rows) + 1
    assert len(repr(table).splitlines()) == len(table.rows)


def test_code_links_and_what_html_would_swallow():
    table = commands.how_to_read("dmesg", "nvlink")
    page = table._repr_html_()
    assert "<code>dmesg -T | grep -i xid</code>" in page and "&lt;inactive&gt;" in page
    assert '<a href="https://docs.nvidia.com/' in page


def test_all_commands_and_flags_are_there():
    assert len(commands.by_vendor(*EVERYTHING).rows) == len(COMMANDS)
    assert len(commands.flags().rows) == len(FLAGS)
    assert [row[0] for row in commands.by_vendor("ibstatus").rows] == ["With how many lanes?"]


def test_an_unknown_word_is_refused():
    with pytest.raises(ValueError, match="no command has one of the words"):
        commands.how_to_read("nvidia-smart")
