"""Where there can be no cluster, one sentence says why and what to do."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from course_lib.chapters.ch15_launchers_and_recovery import cluster
from course_lib.chapters.ch15_launchers_and_recovery.cluster import configuration, life
from course_lib.chapters.ch15_launchers_and_recovery.cluster.slurm import left_in
from course_lib.launch.descendants import descendants, kill
from course_lib.problem import Problem


def test_what_a_machine_lacks_is_named_with_the_line_that_installs_it(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(configuration, "program", lambda name: name if name == "sbatch" else None)
    reason = "munged and slurmctld and slurmd not found: on Debian or Ubuntu, apt-get install "
    with pytest.raises(Problem, match=f"{reason}.*slurm-wlm munge"):
        cluster.up()
    with pytest.raises(Problem, match=reason), cluster.running():
        pass
    with pytest.raises(Problem, match=reason):
        cluster.requeue()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cluster.obstacle() == (
        "Slurm's daemons are built for Linux and this is darwin: use a Linux machine"
    )


def test_administrators_programs_are_found_on_a_short_path(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    found = configuration.program("chroot")  # on Debian in /usr/sbin
    assert (found is None) != os.path.exists("/usr/sbin/chroot")


pytestmark = pytest.mark.engine(*configuration.PROGRAMS)

SLEEP = ["sbatch", "--nodes=2", "--output=/dev/null", "--wrap", "srun sleep 600"]


def wait_for(condition, within_s=90.0):
    """Return when it holds; fails if it never does."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, "it never happened"
        time.sleep(0.05)


def job_runs(slurm):
    """Submit a job that never ends, and wait until it runs on both nodes."""
    assert slurm.run(SLEEP).returncode == 0
    wait_for(lambda: len(named(slurm.folder, "sleep")) == 2)


def named(folder, name):
    """The processes of the cluster by this name: "sleep" are those that a job has started."""
    return [pid for pid in left_in(folder) if name_of(pid) == name]


def is_alive(pid):
    """Whether it runs; its new parent may not have asked yet how it ended."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def name_of(pid):
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return ""


def test_up_twice_is_one_cluster_of_its_owner_and_down_ends_its_jobs(folder):
    slurm = cluster.up()
    assert slurm.nodes() == {"n1": "idle", "n2": "idle"}
    private = {path: path.stat().st_mode & 0o777 for path in (folder.path, folder.key)}
    assert private == {folder.path: 0o700, folder.key: 0o600}
    assert folder.configuration.stat().st_mode & 0o777 == 0o600
    ours = left_in(folder)
    listening = [
        each.laddr.ip
        for each in psutil.net_connections("inet")
        if each.pid in ours and each.status == psutil.CONN_LISTEN
    ]
    assert len(listening) == 3
    if configuration.on_loopback():
        assert set(listening) == {"127.0.0.1"}
    keeper = slurm.keeper()
    job_runs(slurm)
    assert cluster.up().keeper() == cluster.status().keeper() == keeper
    assert [job.state for job in slurm.jobs()] == ["RUNNING"]
    slurm.kill_node("n2")
    assert len(named(folder, "sleep")) == len(named(folder, "slurmd")) == 1
    assert "n2" in cluster.up().nodes()
    wait_for(lambda: len(named(folder, "slurmd")) == 2)
    assert slurm.ready()
    assert cluster.down()
    assert left_in(folder) == []
    assert not folder.path.exists()
    assert cluster.status() is None
    assert not cluster.down()


def test_after_a_crash_up_cleans_and_starts_anew_and_nothing_outlives_slurmctld(folder):
    slurm = cluster.up()
    job_runs(slurm)
    before = set(descendants(slurm.keeper()))
    assert len(before) > 12  # daemons, steps and tasks
    unknown = before - set(left_in(folder))
    assert {name_of(pid) for pid in unknown} <= {"slurmscriptd"}  # which ends with slurmctld
    kill([slurm.keeper()])
    wait_for(lambda: cluster.status() is None)
    assert named(folder, "sleep")  # they outlived their daemons
    assert cluster.up().jobs() == []
    wait_for(lambda: not any(map(is_alive, before)))
    kill(named(folder, "slurmctld"))
    wait_for(lambda: cluster.status() is None)
    assert "slurmctld was ended by signal 9" in (folder.log / "keeper").read_text()
    wait_for(lambda: left_in(folder) == [])


def test_a_shell_that_knows_the_cluster_is_not_its_own(folder, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", str(folder.configuration))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as shell:
        assert left_in(folder) == []
        shell.kill()


@pytest.mark.parametrize("place", [0, 2], ids=["of slurmctld", "of a node"])
def test_a_port_that_is_taken_meanwhile_is_named(place, folder, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        ports = configuration.free_ports(2)
        ports.insert(place, taken)
        monkeypatch.setattr(configuration, "free_ports", lambda _: ports)
        with pytest.raises(Problem, match="another program took its port meanwhile: try again"):
            cluster.up()
    assert not folder.path.exists()


def test_an_interrupt_leaves_nothing(folder, monkeypatch):
    def interrupted(*_):
        wait_for(lambda: left_in(folder))
        raise KeyboardInterrupt

    monkeypatch.setattr(life, "_wait_until_ready", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cluster.up()
    assert left_in(folder) == []
    assert not folder.path.exists()


def test_two_ups_at_once_make_one_cluster(folder):
    program = f"from {cluster.__name__} import up; print(up().keeper())"
    ups = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) for _ in range(2)
    ]
    first, second = [up.communicate(timeout=120)[0] for up in ups]
    assert first == second != b""


def test_a_cluster_of_a_test_ends_with_it_however_it_ends(tmp_path):
    program = """
import os, signal
from course_lib.chapters.ch15_launchers_and_recovery import cluster
with cluster.running() as slurm:
    print(slurm.folder.path, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL
    path = Path(done.stdout.strip())
    wait_for(lambda: not path.exists())
    wait_for(lambda: left_in(configuration.Folder(path)) == [])


def test_where_no_folder_can_be_the_problem_says_so(monkeypatch):
    monkeypatch.setenv("COURSE_HOME", "/proc/nowhere")
    with pytest.raises(Problem, match=r"cannot be made .* set COURSE_HOME to a folder of yours"):
        cluster.up()
    monkeypatch.setenv("COURSE_HOME", "/tmp/" + 90 * "x")
    with pytest.raises(Problem, match="too long a path for the sockets"):
        cluster.up()


def test_nodes_that_never_come_are_given_up(folder, monkeypatch):
    monkeypatch.setattr(life, "_START_S", 1.0)
    monkeypatch.setattr(cluster.Slurm, "ready", lambda _: False)
    with pytest.raises(Problem, match=r"after 1 s .*: run `course cluster down`, then up again"):
        cluster.up()
    assert not folder.path.exists()
