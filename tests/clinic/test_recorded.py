"""The recorded outputs: each has a source, is short, has a parser, and survives being damaged."""

import re

import pytest

from course_lib.chapters.ch16_cluster_clinic import containers, logs
from course_lib.clinic import gpus, nccl_table, ports, recorded
from course_lib.clinic.recorded import Sign, unreadable

PARSERS = {
    "nvidia-smi_pmon": gpus.pmon,
    "nvidia-smi_dmon": gpus.dmon,
    "nvidia-smi_topo": gpus.topology,
    "nvidia-smi_nvlink": gpus.nvlink,
    "nvidia-smi_q": gpus.query,
    "amd-smi": gpus.amd_smi,
    "hy-smi": gpus.hy_smi,
    "dmesg": gpus.xids,
    "ibstatus": ports.ibstatus,
    "ibstat": ports.ibstat,
    "ibv_devinfo": ports.ibv_devinfo,
    "ibv_devices": ports.ibv_devices,
    "rdma_link": ports.rdma_link,
    "counters": ports.counters,
    "nccl": logs.nccl_log,
    "watchdog": logs.timeouts,
    "all_": nccl_table.nccl_table,
    "df": containers.shared_memory,
    "ulimit": containers.locked_memory_kbytes,
    "kubectl": containers.event_signs,
}
# Read by people only: a refusal, a table whose cells have spaces, stacks.
UNREAD = {
    "dcgmi_diag",
    "dcgmi_diag_pass",
    "mlnx_perf",
    "nvidia-smi_r",
    "rocm-smi",
    "py-spy_dump",
    "torchfrtrace",
    "docker_no_gpus",
    "docker_no_kfd",
}
REFUSALS = {
    "nvidia-smi_pmon_unsupported": "Not supported on the device",
    "hy-smi_no_device": "sh: 1: lspci: not found",
    "ibstat_panic": "ibpanic: ",
    "ibv_devinfo_closed": "Failed to open device",
}


def parser_of(name):
    return next(parser for start, parser in PARSERS.items() if name.startswith(start))


@pytest.mark.parametrize("name", recorded.names())
def test_every_output_has_a_source_and_is_short(name):
    one = recorded.output(name)
    assert one.command and one.text.strip() and len(one.text.splitlines()) < 70
    # Where it is to be found: an address, or this course's own machine.
    assert "https://" in one.source or one.source.startswith("by this course, ")
    assert one.provenance.startswith("recorded: " if one.recorded else "built, not recorded, from ")


@pytest.mark.parametrize("name", sorted(set(recorded.names()) - UNREAD - set(REFUSALS)))
def test_every_output_is_read(name):
    # `ibv_devices` without a device reads as nothing, which is its meaning.
    assert parser_of(name)(recorded.output(name).text) or name == "ibv_devices_none"


@pytest.mark.parametrize("name", sorted(REFUSALS))
def test_a_refusal_is_shown_in_one_sentence(name):
    with pytest.raises(ValueError, match=re.escape(REFUSALS[name])) as refusal:
        parser_of(name)(recorded.output(name).text)
    assert str(refusal.value).endswith(": look at that line")


@pytest.mark.parametrize("name", sorted(set(recorded.names()) - UNREAD))
def test_a_damaged_output_is_read_or_refused_in_one_sentence(name):
    text, parser = recorded.output(name).text, parser_of(name)
    step = max(1, len(text) // 40)
    damaged = [text[:end] for end in range(0, len(text), step)]
    damaged += [text[:at] + "\x00?" + text[at + 7 :] for at in range(0, len(text), step)]
    for one in damaged:
        try:
            parser(one)
        except ValueError as refusal:
            assert ": " in str(refusal) and "\n" not in str(refusal)


def test_an_unknown_output_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'ibstat_slow'"):
        recorded.output("ibstat_slo")


def test_a_sign_is_three_sentences_and_a_long_line_is_shown_in_part():
    sign = Sign("mlx5_3 is slow", "change the cable", "why")
    assert sign.sentence == "mlx5_3 is slow. Change the cable. The command can't say why."
    assert Sign("no GPU is there", "--gpus all").sentence == "No GPU is there. --gpus all."
    assert len(str(unreadable("x", "y" * 500, "z"))) < 200
