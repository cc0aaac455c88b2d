import importlib.metadata
import sys
import webbrowser
from types import SimpleNamespace

import pytest

import course_lib
from course_lib import doctor, launch
from course_lib.doctor import Finding, machine
from course_lib.problem import Problem


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(doctor, "examine_cluster", list)  # tests/doctor/test_cluster_looks.py


def test_everything_is_looked_at_once_and_one_odd_machine_does_not_hide_the_rest(monkeypatch):
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: 1 / 0)
    findings = doctor.examine(start_ranks=False)
    names = [finding.name for finding in findings]
    assert len(set(names)) == len(names) == 16
    for name in ("Python", "torch", "gloo", "loopback", "progress", "sliders"):
        assert findings[names.index(name)].status == "ok", findings[names.index(name)].line
    odd = [f for f in findings if "could not be examined" in f.what]
    assert [f.name for f in odd] == ["shared memory"]
    assert all(finding.remedy for finding in findings if finding.status != "ok")


def versions(**found):
    """Stand-ins for importlib.metadata.version: what is installed, by name."""

    def version(name):
        name = name.replace("-", "_")
        if name not in found:
            raise importlib.metadata.PackageNotFoundError(name)
        return found[name]

    return version


BOUNDS = ["torch>=2.6,<2.14", "absent-package>=1", "pytest>=99; extra == 'test'", "numpy>=2"]
OLD = versions(torch="2.14.1+cpu", numpy="2.4.0")
NEW = versions(torch="2.13.0+cpu", numpy="2.4.0", absent_package="1.0")
REQUIRES, VERSION = "importlib.metadata.requires", "importlib.metadata.version"
FREE = "course_lib.launch.limits.available_memory_bytes"
COUNT, NCCL = "torch.cuda.device_count", "torch.distributed.is_nccl_available"
PATH, SPEC = "course_lib.doctor.machine.browser_path", "course_lib.doctor.machine.find_spec"


def fails(error):
    def call(*_, **__):
        raise error

    return call


def gives(value):
    return lambda *_, **__: value


def disk(size_bytes):
    return {"shutil.disk_usage": gives(SimpleNamespace(total=size_bytes))}


def programs(*names):
    return {"shutil.which": lambda name, path=None: name in names or None}


# What is put in the place of the machine's own, what is asked, its status, and words of its line.
CASES = [
    ({"sys.version_info": (3, 10, 9, "final", 0)}, "python", "missing", "install Python 3.11"),
    (
        {REQUIRES: gives(BOUNDS), VERSION: OLD}, "packages", "missing",
        "torch 2.14.1+cpu is outside <2.14,>=2.6; absent-package is not installed: run",
    ),
    ({REQUIRES: gives(BOUNDS), VERSION: NEW}, "packages", "ok", "all within"),
    (
        {REQUIRES: fails(importlib.metadata.PackageNotFoundError("course-lib"))},
        "packages", "missing", "the course is not installed",
    ),
    ({VERSION: versions(ipywidgets="8.1.5", jupyterlab_widgets="3.0.1")}, "widgets", "ok", "8.1.5"),
    (
        {VERSION: versions(ipywidgets="8.1.5", jupyterlab_widgets="1.1.0")},
        "widgets", "missing", "do not match",
    ),
    ({"torch.distributed.is_gloo_available": gives(False)}, "gloo", "missing", "without it"),
    ({COUNT: gives(0), NCCL: gives(False)}, "nccl", "ok", "not needed"),
    ({COUNT: gives(0), NCCL: gives(True)}, "nccl", "ok", "not used without GPUs"),
    ({COUNT: gives(2), NCCL: gives(True)}, "nccl", "ok", "there"),
    ({COUNT: gives(2), NCCL: gives(False)}, "nccl", "slow", "there are 2 GPUs"),
    (
        {COUNT: gives(2), "torch.cuda.get_device_name": gives("Model X")},
        "gpus", "ok", "2 (Model X): demos with up to 2 ranks use NCCL",
    ),
    ({COUNT: gives(0)}, "gpus", "ok", "none"),
    ({"os.sched_getaffinity": gives({0})}, "cores", "slow", "ranks take turns"),
    ({"os.sched_getaffinity": gives({0, 1})}, "cores", "ok", "2"),
    ({FREE: gives(10**10)}, "memory", "ok", "10.0 GB free"),
    ({FREE: gives(10**9)}, "memory", "slow", "until 2 GB is free"),
    ({FREE: gives(10**8)}, "memory", "missing", "until 2 GB is free"),
    ({FREE: gives(None)}, "memory", "ok", "not known"),
    (disk(64 * 2**20), "shared_memory", "slow", "--shm-size"),
    (disk(2**30), "shared_memory", "ok", "1,074 MB"),
    (
        {"socket.create_connection": fails(OSError("not permitted"))},
        "loopback", "missing", "not permitted",
    ),
    (
        {"webbrowser.get": fails(webbrowser.Error("none")), PATH: gives(None)},
        "browser", "slow", "none found on this machine",
    ),
    (
        {"webbrowser.get": fails(webbrowser.Error("none")), PATH: gives("/x/chromium")},
        "browser", "slow", "/x/chromium is there, but",
    ),
    ({PATH: gives("/x/chromium"), SPEC: gives(None)}, "pdf", "ok", "prints by /x/chromium"),
    ({PATH: gives(None), SPEC: gives(True)}, "pdf", "ok", "after `playwright install chromium`"),
    ({PATH: gives(None), SPEC: gives(None)}, "pdf", "slow", "HTML only: install Chromium or"),
    ({"os.getloadavg": gives((3.9, 0, 0)), "os.cpu_count": gives(2)}, "load", "ok", "on 2 cores"),
    ({"os.getloadavg": gives((4.0, 0, 0)), "os.cpu_count": gives(2)}, "load", "slow", "close"),
    ({"course_lib.launch.run": gives([0, 0])}, "ranks", "missing", "[0, 0] instead of 1"),
    (
        {"course_lib.launch.run": fails(launch.RankFailed(1, "was killed", "many\nlines"))},
        "ranks", "missing", "rank 1 was killed",
    ),
    (
        {"course_lib.launch.run": gives([1, 1]), "course_lib.doctor.machine.SLOW_START_S": -1.0},
        "ranks", "slow", "close other programs",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("stand_ins", "asked", "status", "words"), CASES)
def test_what_is_found(stand_ins, asked, status, words, monkeypatch):
    for name, value in stand_ins.items():
        monkeypatch.setattr(name, value)
    finding = getattr(machine, asked)()
    assert finding.status == status and words in finding.line
    assert finding.line.startswith(f"[{status}]") and "\n" not in finding.line


def test_what_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert machine.torch_build().status == "missing"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(course_lib, "__file__", str(tmp_path / "course_lib" / "__init__.py"))
    finding = machine.notebooks()
    assert finding.status == "missing" and "course start" in finding.remedy
    monkeypatch.setattr(machine, "SHARED_MEMORY", tmp_path / "absent")
    assert machine.shared_memory().status == "ok"
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
    (tmp_path / "course_lib").mkdir()
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "00_start_here.ipynb").write_text("{}")
    monkeypatch.chdir(tmp_path / "notebooks")
    doctor.self_test()
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith("[missing]") and f"{tmp_path} is a clone of the course" in said
    assert "pip install -e ." in said


def test_a_failed_self_test_raises_one_sentence(monkeypatch, capsys):
    monkeypatch.setattr(launch, "run", lambda *_, ranks, **__: [1, 1] if ranks == 2 else [0])
    with pytest.raises(Problem, match=r"^4 ranks did not start: run `course doctor`") as caught:
        doctor.self_test()
    assert "[missing]  4 ranks" in capsys.readouterr().out
    assert caught.value._render_traceback_() == [str(caught.value)]
