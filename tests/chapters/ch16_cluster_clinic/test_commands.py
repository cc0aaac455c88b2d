"""The table of commands: complete, sourced, and honest about danger."""

import pytest

from course_lib.chapters.ch16_cluster_clinic.commands import COMMANDS, FLAGS
from course_lib.chapters.ch16_cluster_clinic.containers import docker_signs
from course_lib.clinic import recorded

NOTES = "ibstat", "ibstatus", "ibv_devinfo", "ibv_devices", "rdma link", "mlnx_perf", "python -c"


def test_every_command_of_the_notes_is_there():
    asked = " ".join(command.nvidia for command in COMMANDS)
    assert all(name in asked for name in NOTES)
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
