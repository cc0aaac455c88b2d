import importlib
import os
import shlex
import socket
import sys
import webbrowser
from types import SimpleNamespace

import pytest

import course_lib
from course_lib import cli, home, starting
from course_lib.lab import start as lab
from course_lib.problem import Problem


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A repository, and a JupyterLab that only notes how it would have been started."""
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "00_start_here.ipynb").write_text("{}")
    monkeypatch.setattr(course_lib, "__file__", str(tmp_path / "course_lib" / "__init__.py"))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.delenv("JUPYTER_RUNTIME_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def started(root, monkeypatch):
    calls = []
    monkeypatch.setattr(lab.os, "execv", lambda _program, arguments: calls.append(arguments))
    monkeypatch.setattr(lab.subprocess, "call", lambda arguments: calls.append(arguments) or 0)
    return calls


@pytest.fixture(autouse=True)
def a_browser(monkeypatch):
    monkeypatch.setattr(webbrowser, "get", lambda *_: object())


def test_the_lab_opens_at_the_first_notebook(root, started, tmp_path_factory, capsys):
    """From its own folders, and from elsewhere."""
    (root / "course_lib").mkdir()
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "notebooks").mkdir()  # as in a clone, but without the library
    (elsewhere / "notebooks" / "00_start_here.ipynb").write_text("{}")
    for folder in (root, root / "notebooks", elsewhere):
        os.chdir(folder)
        lab.open_lab()
        assert capsys.readouterr().out == f"The course in {root}\n"
        arguments = started.pop()
        assert arguments[:4] == [sys.executable, "-m", "jupyter", "lab"]
        assert f"--ServerApp.root_dir={root}" in arguments
        assert "--LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb" in arguments
        assert "--no-browser" not in arguments
        assert not any("port" in argument for argument in arguments)


def test_the_lab_opens_a_learners_folder(root, started, tmp_path_factory, capsys):
    """From within, and by its name."""
    folder = tmp_path_factory.mktemp("a folder")
    starting.keep(folder, home.Edition(course_lib.__version__, {}, False))
    (folder / "exercises").mkdir()
    for command, place in (("lab", folder / "exercises"), (f"lab '{folder}/exercises'", root)):
        os.chdir(place)
        cli.main(shlex.split(command))
        assert f"--ServerApp.root_dir={folder}" in started.pop()
    os.chdir(root)
    assert cli.main(["lab", str(tmp_path_factory.mktemp("other"))]) == 2 and not started
    assert "is no folder of the course: run `course start '" in capsys.readouterr().err


def test_without_a_browser_the_lab_starts_and_says_so(started, monkeypatch, capsys):
    def get(*_):
        raise webbrowser.Error("could not locate runnable browser")

    monkeypatch.setattr(webbrowser, "get", get)
    lab.open_lab()
    assert "--no-browser" in started[0]
    assert "No browser was found" in capsys.readouterr().out


def test_a_free_port_is_passed_on_and_a_busy_one_gets_a_sentence(started):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(Problem, match=rf"port {port} is busy: try --port \d+") as caught:
            lab.open_lab(port=port)
    lab.require_free(int(str(caught.value).split("--port ")[1].split(",")[0]))
    assert started == []
    lab.open_lab(port=port, browser=False)
    options = {f"--ServerApp.port={port}", "--ServerApp.port_retries=0", "--no-browser"}
    assert options <= set(started[0])


def another_clone(root):
    (root / "other" / "notebooks").mkdir(parents=True)
    (root / "other" / "notebooks" / "00_start_here.ipynb").write_text("{}")
    (root / "other" / "course_lib").mkdir()
    os.chdir(root / "other" / "notebooks")


def not_here(root):
    (root / "notebooks" / "00_start_here.ipynb").unlink()


@pytest.mark.parametrize(
    ("changes", "port", "words"),
    [
        ([], 0, "--port must be from 1 to 65535"),
        ([], 65536, "--port must be from 1 to 65535"),
        ([not_here], None, "no folder of the course is here: run `course start DIRECTORY`"),
        (
            [another_clone],
            None,
            "{0}/other is a clone of the course, but its notebooks would run on the package in "
            "{0}/course_lib: run `pip install -e .` in {0}/other to work there, or `cd {0}` first",
        ),
        ([another_clone, not_here], None, "in {0}/other to work there"),
    ],
)
def test_what_cannot_be_opened_is_one_sentence(root, started, monkeypatch, changes, port, words):
    for change in changes:
        change(root)
    with pytest.raises(Problem) as caught:
        lab.open_lab(port=port)
    assert words.format(root) in str(caught.value) and started == []


def test_without_jupyterlab_the_sentence_says_what_to_do(started, monkeypatch):
    monkeypatch.setattr(lab.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(Problem, match="JupyterLab is missing"):
        lab.open_lab()


@pytest.mark.parametrize("name", ["JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"])
def test_a_folder_that_jupyter_cannot_make_gets_a_sentence(root, started, monkeypatch, name):
    # A file where a folder should be is closed to root as well, whom permissions do not stop.
    (root / "file").write_text("")
    folder = root / "file" / "jupyter"
    monkeypatch.setenv(name, str(folder))
    with pytest.raises(Problem) as caught:
        lab.open_lab()
    assert str(caught.value).startswith(f"Jupyter must write to {folder}, which is not possible")
    assert f"set the variable {name} to a folder of yours" in str(caught.value) and started == []
    monkeypatch.setenv(name, str(root / "folder of mine"))
    lab.open_lab()
    assert len(started) == 1 and (root / "folder of mine").is_dir()


def test_a_folder_that_can_only_be_read_gets_a_sentence(root, started, monkeypatch):
    def refuse(dir):
        raise PermissionError(13, "Permission denied", str(dir))

    monkeypatch.setattr(lab.tempfile, "TemporaryFile", refuse)
    with pytest.raises(Problem, match=r"data.runtime, .*Permission denied.*JUPYTER_RUNTIME_DIR"):
        lab.open_lab()
    assert started == []


def test_root_in_a_container_is_allowed(root, monkeypatch):
    monkeypatch.setattr(lab.os, "geteuid", lambda: 0, raising=False)
    assert "--allow-root" in lab.command(root, None, True)
    monkeypatch.setattr(lab.os, "geteuid", lambda: 1000)
    assert "--allow-root" not in lab.command(root, None, True)


def test_the_kernel_connection_does_not_wait(root, monkeypatch):
    """JupyterLab is given a connection that switches Nagle's algorithm off, then connects."""
    (option,) = (a for a in lab.command(root, None, True) if "connection_class" in a)
    module, name = option.split("=")[1].rsplit(".", 1)
    prompt = getattr(importlib.import_module(module), name)
    calls = []
    monkeypatch.setattr(prompt.__mro__[1], "connect", lambda self: calls.append("connect"))
    handler = SimpleNamespace(set_nodelay=lambda on: calls.append(f"nodelay {on}"))
    monkeypatch.setattr(prompt, "websocket_handler", handler)
    prompt.__new__(prompt).connect()
    assert calls == ["nodelay True", "connect"]
