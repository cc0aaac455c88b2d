"""The doctor's look at a cluster: small programs on PATH that print recorded outputs."""

import pytest

from course_lib.clinic.recorded import output
from course_lib.doctor import cluster

# What each program prints for each of its arguments that is asked for.
HEALTHY = {
    "nvidia-smi": {"topo": "nvidia-smi_topo"},
    "ibstat": {"": "ibstat"},
    "rdma": {"link": "rdma_link"},
    "ibv_devices": {"": "ibv_devices"},
}
SICK = {
    "nvidia-smi": {
        "pmon": "nvidia-smi_pmon_hang",
        "dmon": "nvidia-smi_dmon",
        "-q": "nvidia-smi_q_ecc",
        "topo": "nvidia-smi_topo_far",
        "nvlink": "nvidia-smi_nvlink",
    },
    "amd-smi": {"monitor": "amd-smi_monitor"},
    "hy-smi": {"": "hy-smi"},
    "dmesg": {"": "dmesg_xid"},
    "ibstat": {"": "ibstat_slow"},
    "ibstatus": {"": "ibstatus_slow"},
    "ibv_devinfo": {"": "ibv_devinfo_small_mtu"},
    "ibv_devices": {"": "ibv_devices_zero"},
    "rdma": {"link": "rdma_link_polling"},
}


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Puts programs on an otherwise empty PATH, and counters below another folder."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(cluster, "COUNTERS", tmp_path / "infiniband")

    def program(name, script):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def programs(table):
        for name, prints in table.items():
            cases = ""
            for word, recording in prints.items():
                text = tmp_path / f"{recording}.txt"
                text.write_text(output(recording).text)
                cases += f'"{word}") /bin/cat "{text}";;\n'
            program(
                name, f'echo "$@" >> "{tmp_path}/asked"\ncase "$1" in\n{cases}*) exit 3;;\nesac'
            )

    programs.one = program
    return programs


def test_nothing_is_said_where_nothing_is(install):
    assert cluster.examine_cluster() == []


def test_a_healthy_node_is_ok(install):
    install(HEALTHY)
    findings = cluster.examine_cluster()
    assert [finding.status for finding in findings] == ["ok"] * 4
    assert [f.name for f in findings] == [
        "GPU topology",
        "RDMA ports",
        "RDMA devices",
        "RDMA links",
    ]


def test_every_sign_is_a_finding_with_a_remedy(install):
    install(SICK)
    findings = cluster.examine_cluster()
    said = "\n".join(finding.line for finding in findings)
    for words in (
        "GPU 2 (process 41803) does nothing",
        "GPU 3 is at 86",
        "bad row of memory",
        "GPU0 reaches its nearest port",
        "2 of 6 NVLinks",
        "Xid 94",
        "mlx5_3 port 1 runs at 50 Gb/s",
        "1 of 4 lanes",
        "packets of 1024 bytes",
        "GUID 0",
        "finds nobody at the other end",
    ):
        assert words in said, words
    assert {finding.name for finding in findings} == {look.name for look in cluster.LOOKS}
    assert all(finding.remedy for finding in findings if finding.status == "slow")


def test_it_only_looks(install, tmp_path):
    install(SICK)
    cluster.examine_cluster()
    asked = (tmp_path / "asked").read_text().split("\n")
    assert not [line for line in asked if "-r" in line.split() or "reset" in line]
    assert all("sudo" not in look.command for look in cluster.LOOKS)


def test_a_command_that_fails_hangs_or_prints_another_format(install, monkeypatch):
    monkeypatch.setattr(cluster, "LIMIT_S", 4.0)
    install.one("nvidia-smi", "echo 'NVIDIA-SMI has failed'; exit 9")
    install.one("ibstat", "exec /bin/sleep 3000")
    install.one("rdma", "echo 'link is fine'")
    (finding,) = cluster.examine_cluster()
    assert finding.name == "RDMA links" and finding.status == "slow"
    assert "printed 'link is fine'" in finding.what and "`rdma link` yourself" in finding.remedy


def test_counters_of_a_port(install, tmp_path):
    folder = tmp_path / "infiniband" / "mlx5_1" / "ports" / "1" / "counters"
    folder.mkdir(parents=True)
    (folder / "port_xmit_data").write_text("5\n")
    (fine,) = cluster.examine_cluster()
    assert (fine.name, fine.status) == ("RDMA counters", "ok")
    (folder / "link_downed").write_text("255\n")
    (full,) = cluster.examine_cluster()
    assert "link_downed of mlx5_1 port 1 stands at its end, 255" in full.what
