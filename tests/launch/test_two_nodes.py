"""Two nodes on one machine: the link has its rate, and nothing outlives a run, however it ends."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import pytest
from leftovers import BUSY_S, MARK, gone, marked, needs_signals, no_folders_in, wait_for

from course_lib import launch
from course_lib.launch import two_nodes
from course_lib.theory.inputs.hardware import Link
from course_lib.theory.network.collectives import seconds

REASON = two_nodes.obstacle()
needs_namespaces = pytest.mark.skipif(REASON is not None, reason=str(REASON))
MBIT = 200.0
DEMOS = "course_lib.demos"


@pytest.fixture
def mark(monkeypatch):
    """Marks all that a run starts; afterwards nothing of it may be there."""
    name = uuid.uuid4().hex
    monkeypatch.setenv(MARK, name)
    yield name
    assert gone(marked(name))
    no_folders_in(Path(tempfile.gettempdir()))
    assert two_nodes.LINK not in os.listdir("/sys/class/net")


@pytest.fixture
def odd_folder(tmp_path, monkeypatch, mark):
    """A temporary folder of our own, whose name a shell would take for a command."""
    folder = tmp_path / "$(touch executed) 'and'"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    no_folders_in(folder)
    assert not list(tmp_path.rglob("executed"))


@needs_namespaces
def test_an_all_reduce_takes_the_time_of_the_link(odd_folder):
    argv = ["collectives", "--operations", "ring-all-reduce", "--repeats", "3", "--json"]
    first, second = launch.run_on_two_nodes(DEMOS, argv, mbit=MBIT, timeout_s=4 * BUSY_S)
    result = json.loads(first)
    assert second == ""
    assert result["ranks"] == 2 and result["backend"] == "gloo"
    large = result["rows"][-1]
    assert large["size_bytes"] == 2**20
    expected = seconds("all-reduce", large["size_bytes"], 2, Link("link", MBIT * 1000000.0 / 8))
    for measured in (large["seconds"], large["library_seconds"]):
        # Headers take 4 %; never faster, but for the few bytes that pass at once.
        assert 0.95 < measured / expected < 1.5
    for fit in result["fits"]:
        assert fit["link"] is None or 0.6 < fit["link"]["bytes_per_s"] / (MBIT * 1e6 / 8) < 1.3


@needs_namespaces
def test_a_failure_names_the_node_and_says_what_it_said(mark):
    with pytest.raises(launch.NodesFailed, match=r"^node [01] ended with exit code 1\n") as failed:
        launch.run_on_two_nodes("course_lib.demos.no_such_demo")
    assert "No module named" in str(failed.value)


@needs_namespaces
def test_the_time_limit_holds(mark):
    with pytest.raises(launch.NodesFailed, match="had no result within 1 s: allow more time"):
        launch.run_on_two_nodes(DEMOS, ["collectives"], timeout_s=1)


@needs_signals
@needs_namespaces
@pytest.mark.parametrize("how", ["SIGINT", "SIGKILL"])
def test_an_interrupt_or_the_death_of_the_parent_ends_all(mark, how):
    call = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    call += f"from course_lib import launch; launch.run_on_two_nodes({DEMOS!r}, ['collectives'])"
    environment = os.environ | {"TMPDIR": tempfile.gettempdir()}
    parent = subprocess.Popen(
        [sys.executable, "-c", call], stderr=subprocess.PIPE, env=environment, text=True
    )
    try:
        # The parent, unshare, the program inside, two nodes: all have started.
        wait_for(lambda: len(marked(mark)) >= 5 or parent.poll() is not None)
        parent.send_signal(getattr(signal, how))
        _, said = parent.communicate(timeout=BUSY_S)
    finally:
        parent.kill()
    if how == "SIGINT":
        assert said.endswith("Stopped; 2 ranks ended\n")
    else:
        assert parent.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranks_per_node": 33}, "ranks_per_node must be at most 32, got 33"),
        ({"mbit": 0.9}, "mbit must be at least 1, got 0.9"),
        ({"mbit": 30_001}, "mbit must be at most 30000, got 30001"),
        ({"timeout_s": 0.09}, "timeout_s must be at least 0.1, got 0.09"),
    ],
)
def test_bad_arguments_are_explained(arguments, message):
    with pytest.raises(ValueError, match=message):
        launch.run_on_two_nodes(DEMOS, **arguments)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has network namespaces")
def test_the_command_of_both_nodes_has_a_letter_for_the_node():
    line = two_nodes.nodes_command_line("a.module", 3, ["--of", "a name"])
    assert "--nnodes=2 --node-rank=R --nproc-per-node=3 " in line
    assert line.endswith(" -m a.module --of 'a name'")


def test_what_is_missing_is_an_obstacle(monkeypatch):
    found = shutil.which
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "which", lambda name, path: None if name == "tc" else found(name))
        assert two_nodes.obstacle() == "the command 'tc' was not found, install iproute2"
    if REASON is None:
        refuse = ["sh", "-c", "echo 'unshare failed: Operation not permitted' >&2; exit 1"]
        with monkeypatch.context() as patch:
            patch.setattr(two_nodes, "_unshare", lambda: refuse)
            assert "(unshare failed: Operation not permitted)" in two_nodes.obstacle()
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(launch.NodesFailed, match="only Linux has network namespaces"):
        launch.run_on_two_nodes(DEMOS)


@needs_namespaces
def test_a_user_becomes_root_in_there_only(monkeypatch):
    assert "--user" not in two_nodes._unshare() or os.geteuid() != 0
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert two_nodes._unshare()[:3] == ["unshare", "--user", "--map-root-user"]
