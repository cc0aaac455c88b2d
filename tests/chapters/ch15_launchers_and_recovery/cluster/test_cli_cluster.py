"""`course cluster`, with and without a Slurm on this machine."""

import json
import tempfile
from pathlib import Path

import pytest

from course_lib.chapters.ch15_launchers_and_recovery import cluster
from course_lib.chapters.ch15_launchers_and_recovery.cluster import configuration
from course_lib.cli import main
from course_lib.problem import Problem

needs_slurm = pytest.mark.engine(*configuration.PROGRAMS)


@pytest.fixture(autouse=True)
def home(monkeypatch):
    with tempfile.TemporaryDirectory(prefix="course_test_", dir="/tmp") as folder:
        monkeypatch.setenv("COURSE_HOME", folder)
        yield folder
        cluster.down()


@needs_slurm
def test_a_cluster_from_its_beginning_to_its_end(home, capsys):
    assert main(["cluster", "up"]) == 0
    said = capsys.readouterr().out
    assert "node n1 is idle, node n2 is idle" in said
    assert f"export SLURM_CONF={home}/cluster/slurm.conf" in said
    cluster.status().run(["sbatch", "--begin=tomorrow", "--job-name=later", "--wrap", "true"])
    assert main(["cluster", "status"]) == 0
    assert "job 1, later: pending" in capsys.readouterr().out
    assert main(["cluster", "status", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["nodes"] == {"n1": "idle", "n2": "idle"}
    assert [job["state"] for job in data["jobs"]] == ["PENDING"]
    assert main(["cluster", "kill", "--node", "n1"]) == 0
    assert "node n1 is dead" in capsys.readouterr().out
    assert main(["cluster", "down"]) == 0
    assert "the cluster is down: unset SLURM_CONF" in capsys.readouterr().out


def test_where_there_is_none(capsys):
    assert main(["cluster", "status"]) == 1
    assert main(["cluster", "down"]) == 0
    assert main(["cluster", "kill"]) == 2
    captured = capsys.readouterr()
    assert captured.out == (
        "the cluster is down: `course cluster up` starts it\nthere was no cluster\n"
    )
    assert captured.err == (
        "course cluster: the cluster is down, start it by `course cluster up`\n"
    )


def test_a_folder_that_is_too_long_for_sockets_is_told_what_fits():
    longest = Path("/" + 61 * "h")
    assert configuration.Folder(longest / "cluster").path.name == "cluster"
    with pytest.raises(Problem, match="a folder of at most 62 letters"):
        configuration.Folder(Path("/" + 62 * "h") / "cluster")
