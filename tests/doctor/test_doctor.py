import importlib.metadata
import os
import shutil
import socket
import sys
import webbrowser
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

import course_lib
from course_lib import doctor, launch
from course_lib.doctor import Finding, machine
from course_lib.problem import Problem


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(doctor, "examine_cluster", list)  # tests/doctor/test_cluster_looks.py


def test_a_fault_needs_a_remedy_and_a_known_status():
    with pytest.raises(ValueError, match="remedy of cores is missing"):
        Finding("cores", "slow", "1")
    with pytest.raises(ValueError, match="status 'bad'"):
        Finding("cores", "bad", "1", "x")


def test_a_finding_is_one_line():
    assert Finding("cores", "ok", "2").line == "[ok]       cores            2"
    assert Finding("x", "slow", "y", "do z").line.endswith("y: do z")


def test_everything_is_looked_at_once():
    findings = doctor.examine(start_ranks=False)
    names = [finding.name for finding in findings]
    assert len(set(names)) == len(names) == 16
    assert {"Python", "torch", "gloo", "NCCL", "cores", "memory", "GPUs", "browser"} <= set(names)
    for name in ("Python", "torch", "gloo", "loopback", "progress", "sliders"):
        assert findings[names.index(name)].status == "ok", findings[names.index(name)].line


def test_one_odd_machine_does_not_hide_the_rest(monkeypatch):
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: 1 / 0)
    findings = doctor.examine(start_ranks=False)
    odd = [f for f in findings if "could not be examined" in f.what]
    assert [f.name for f in odd] == ["shared memory"] and len(findings) == 16


def test_an_old_python(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 10, 9, "final", 0))
    assert machine.python().status == "missing"


def test_versions_outside_the_tested_bounds_are_named(monkeypatch):
    wanted = ["torch>=2.6,<2.14", "absent-package>=1", "pytest>=99; extra == 'test'", "numpy>=2"]
    found = {"torch": "2.14.1+cpu", "numpy": "2.4.0"}

    def version(name):
        if name not in found:
            raise importlib.metadata.PackageNotFoundError(name)
        return found[name]

    monkeypatch.setattr(importlib.metadata, "requires", lambda _: wanted)
    monkeypatch.setattr(importlib.metadata, "version", version)
    finding = machine.packages()
    assert finding.status == "missing"
    assert "torch 2.14.1+cpu is outside" in finding.what
    assert "absent-package is not installed" in finding.what
    assert "numpy" not in finding.what and "pytest" not in finding.what
    found.update({"torch": "2.13.0+cpu", "absent-package": "1.0"})
    assert machine.packages().status == "ok"


def test_a_course_that_is_not_installed(monkeypatch):
    def requires(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", requires)
    assert machine.packages().status == "missing"
    assert "not installed" in machine.packages().what


@pytest.mark.parametrize(
    ("kernel", "front", "status"), [("8.1.5", "3.0.1", "ok"), ("8.1.5", "1.1.0", "missing")]
)
def test_the_two_halves_of_the_sliders_must_match(kernel, front, status, monkeypatch):
    versions = {"ipywidgets": kernel, "jupyterlab_widgets": front}
    monkeypatch.setattr(importlib.metadata, "version", versions.__getitem__)
    assert machine.widgets().status == status


def test_torch_that_cannot_be_imported(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert machine.torch_build().status == "missing"


def test_torch_without_gloo(monkeypatch):
    monkeypatch.setattr(dist, "is_gloo_available", lambda: False)
    assert machine.gloo().status == "missing"


@pytest.mark.parametrize(
    ("gpus", "nccl", "status", "word"),
    [
        (0, False, "ok", "not needed"),
        (0, True, "ok", "not used without GPUs"),
        (2, True, "ok", "there"),
        (2, False, "slow", "there are 2 GPUs"),
    ],
)
def test_nccl_matters_only_with_gpus(gpus, nccl, status, word, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: nccl)
    finding = machine.nccl()
    assert finding.status == status and word in finding.what


def test_gpus_are_named_with_what_they_change(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Model X")
    assert machine.gpus().what == "2 (Model X): demos with up to 2 ranks use NCCL"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert machine.gpus().what.startswith("none")


@pytest.mark.parametrize(("count", "status"), [(1, "slow"), (2, "ok"), (64, "ok")])
def test_cores(count, status, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(count)), raising=False)
    assert machine.cores().status == status


@pytest.mark.parametrize(
    ("free_bytes", "status"),
    [(10**10, "ok"), (10**9, "slow"), (10**8, "missing"), (None, "ok")],
)
def test_memory(free_bytes, status, monkeypatch):
    monkeypatch.setattr("course_lib.launch.limits.available_memory_bytes", lambda: free_bytes)
    assert machine.memory().status == status


def test_the_shared_memory_of_a_container_is_slow(tmp_path, monkeypatch):
    usage = SimpleNamespace(total=64 * 2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert "--shm-size" in machine.shared_memory(tmp_path).remedy
    usage.total = 2**30
    assert machine.shared_memory(tmp_path).status == "ok"
    assert machine.shared_memory(tmp_path / "absent").status == "ok"


def test_a_closed_loopback(monkeypatch):
    def refuse(*_, **__):
        raise OSError("not permitted")

    monkeypatch.setattr(socket, "create_connection", refuse)
    assert machine.loopback().status == "missing"


def test_no_browser_is_no_reason_to_stop(monkeypatch):
    def get(*_):
        raise webbrowser.Error("none")

    monkeypatch.setattr(webbrowser, "get", get)
    for there, words in ((None, "none found on this machine"), ("/x/chromium", "/x/chromium is")):
        monkeypatch.setattr(machine, "browser_path", lambda there=there: there)
        assert machine.browser().status == "slow" and machine.browser().what.startswith(words)


@pytest.mark.parametrize(
    ("path", "playwright", "status", "words"),
    [
        ("/x/chromium", False, "ok", "prints by /x/chromium"),
        (None, True, "ok", "after `playwright install chromium`"),
        (None, False, "slow", "writes HTML only: install Chromium or Google Chrome"),
    ],
)
def test_what_prints_the_report_is_what_the_report_uses(
    path, playwright, status, words, monkeypatch
):
    monkeypatch.setattr(machine, "browser_path", lambda: path)
    monkeypatch.setattr(machine, "find_spec", lambda _: playwright or None)
    assert machine.pdf().status == status and words in machine.pdf().line


@pytest.mark.parametrize(
    ("platform", "programs", "words"),
    [
        ("linux", {"munged", "slurmctld", "slurmd", "sbatch"}, "with munge, for `course cluster"),
        (
            "linux",
            {"slurmctld", "slurmd", "sbatch"},
            "not needed but by `course cluster`; mun",
        ),
        ("linux", set(), "sbatch not found: on Debian or Ubuntu, apt-get install"),
        ("darwin", set(), "Slurm's daemons are built for Linux and this is darwin"),
    ],
)
def test_slurm_is_named_and_never_missing(platform, programs, words, monkeypatch):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(shutil, "which", lambda name, path=None: name in programs or None)
    assert machine.slurm().status == "ok" and words in machine.slurm().line


def test_notebooks_that_are_not_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(course_lib, "__file__", str(tmp_path / "course_lib" / "__init__.py"))
    finding = machine.notebooks()
    assert finding.status == "missing" and "clone the repository" in finding.remedy


def test_a_progress_folder_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("COURSE_HOME", str(tmp_path / "file" / "home"))
    assert machine.progress_folder().status == "slow"


def test_ranks_really_start_and_the_table_says_so(capsys):
    assert doctor.self_test() is None
    lines = capsys.readouterr().out.splitlines()
    assert [" ".join(line.split()[1:3]) for line in lines] == ["2 ranks", "4 ranks"]
    assert all("started, exchanged numbers and ended in" in line for line in lines)


def test_a_notebook_of_another_clone_is_warned(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "ranks", lambda n: Finding(f"{n} ranks", "ok", "started"))
    doctor.self_test()
    assert "notebooks" not in capsys.readouterr().out
    (tmp_path / "course_lib").mkdir()
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "00_start_here.ipynb").write_text("{}")
    monkeypatch.chdir(tmp_path / "notebooks")
    doctor.self_test()
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith("[missing]") and f"{tmp_path} is a clone of the course" in said
    assert "pip install -e ." in said
    assert machine.notebooks().status == "missing"


def test_a_failed_self_test_raises_one_sentence(monkeypatch, capsys):
    monkeypatch.setattr(launch, "run", lambda *_, ranks, **__: [1, 1] if ranks == 2 else [0])
    with pytest.raises(Problem, match=r"^4 ranks did not start: run `course doctor`") as caught:
        doctor.self_test()
    assert "[missing]  4 ranks" in capsys.readouterr().out
    assert caught.value._render_traceback_() == [str(caught.value)]


@pytest.mark.parametrize("sums", [[0, 0], [1, 0], [1]])
def test_ranks_with_a_wrong_sum_are_found(sums, monkeypatch):
    monkeypatch.setattr(launch, "run", lambda *_, **__: sums)
    assert machine.ranks().status == "missing"
    assert "instead of 1" in machine.ranks().what


def test_ranks_that_fail_give_a_sentence(monkeypatch):
    def run(*_, **__):
        raise launch.RankFailed(1, "was killed", "many\nlines")

    monkeypatch.setattr(launch, "run", run)
    finding = machine.ranks()
    assert finding.status == "missing" and "rank 1 was killed" in finding.what
    assert "\n" not in finding.line


def test_a_slow_start_is_said(monkeypatch):
    monkeypatch.setattr(machine, "_start", lambda _count: 60.0)
    assert machine.ranks().status == "slow"
