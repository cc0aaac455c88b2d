import json
import os
import subprocess
import sys
from dataclasses import dataclass, fields

import pytest
import yaml

import course_lib
from course_lib import building, cli, demos, doctor, lab, launch
from course_lib.checking import check, progress
from course_lib.doctor import Finding
from course_lib.problem import Problem


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("COURSE_STRICT", raising=False)


@dataclass(frozen=True)
class Options:
    steps: int = 3
    json: bool = False


@dataclass(frozen=True)
class Result:
    loss: float

    def report(self):
        return f"loss {self.loss}"


@pytest.fixture
def demo(monkeypatch):
    """A demo that starts nothing: returns the list of what it was asked for."""
    asked = []

    def parse(argv):
        steps = int(argv[argv.index("--steps") + 1]) if "--steps" in argv else 3
        return Options(steps, "--json" in argv)

    def run(name, **options):
        asked.append((name, options))
        print("[rank 0] hello") if options["stream"] else None
        return Result(1.5)

    monkeypatch.setattr(demos, "DEMOS", {"ddp": "a line about it", "samples": "another"})
    known = demos.parse
    monkeypatch.setattr(
        demos,
        "parse",
        lambda name, argv, *more: parse(argv) if name == "ddp" else known(name, argv, *more),
    )
    monkeypatch.setattr(demos, "run", run)
    return asked


def test_help_is_quick_and_light():
    program = (
        "import sys; from course_lib import cli\n"
        "heavy = {'torch', 'ipywidgets', 'numpy', 'jupytext', 'nbclient'}\n"
        "cli._parser(); sys.exit(','.join(heavy & set(sys.modules)))"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert loaded.stderr.strip() == ""
    command = [sys.executable, "-m", "course_lib", "--help"]
    before = os.times()
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    after = os.times()
    # Processor time of the child: however busy this machine is, it stays the same.
    used_s = after.children_user + after.children_system
    used_s -= before.children_user + before.children_system
    assert 0 < used_s < 0.3
    for name in ("lab", "demo", "check", "progress", "doctor", "build"):
        assert name in run.stdout


def test_version(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"course {course_lib.__version__}\n"


def test_without_a_command_help_is_shown(capsys):
    assert cli.main([]) == 0
    assert "COMMAND" in capsys.readouterr().out


@pytest.mark.parametrize("argv", [["lab", "--prot", "1"], ["nonsense"], ["check"], ["doctor", "x"]])
def test_a_wrong_command_line_is_code_2(argv, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(argv)
    assert end.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "shown", "said"),
    [
        ("rehearse llama2-7b --shardgroup 8", "ranks over which weights", "mean --shard-group?"),
        ("hunt --tabel", "your best time for each cause", "course hunt: --tabel is not"),
        ("doctor x", "do not start ranks", "x is not among its options: all that there are"),
        ("memory llama3-8b --zero 3", "0 (default), 1, 2 or 3", "mean --zero-stage?"),
        ("--helpp", "COMMAND", "course: --helpp is not among its options: did you mean --help?"),
        ("nonsense", "find a hidden fault", "invalid choice: 'nonsense'"),
        ("demo fsdp --precison bf16", "fp32 or bf16, in which units", "mean --precision?"),
        ("demo fsdp --rank 4", "number of processes (default: 2)", "mean --ranks?"),
        ("demo fsdp --steps x", "--parts PARTS", "course demo fsdp: argument --steps: invalid"),
        ("demo fsdp extra", "optimizer updates", "course demo fsdp: extra is not among"),
    ],
)
def test_an_unknown_option_shows_those_that_there_are(argv, shown, said, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(argv.split())
    assert end.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == "" and shown in printed.err
    assert said in printed.err.splitlines()[-1]


@pytest.mark.parametrize("name", ["fsdp", "three_d", "elastic"])
@pytest.mark.parametrize("argv", ["demo {} --help", "demo -h {}", "demo {} --ranks 4 --help"])
def test_the_help_of_a_demo_has_its_own_options_with_their_meaning(argv, name, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(argv.format(name).split())
    shown = " ".join(capsys.readouterr().out.split())
    assert end.value.code == 0 and shown.startswith(f"usage: course demo {name} ")
    for option in fields(demos.load(name).Options):
        assert f"--{option.name.replace('_', '-')}" in shown
        assert option.metadata["help"] in shown
    assert "number of processes (default: 2)" in shown and "default: None" not in shown


def test_the_help_of_demo_says_where_those_of_a_demo_are(capsys):
    assert cli.main(["demo", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "`course demo NAME --help` shows them" in shown


def test_a_problem_becomes_one_sentence_and_code_2(monkeypatch, capsys):
    def fail(port, browser):
        raise Problem("port 1 is busy: try --port 2")

    monkeypatch.setattr(lab, "open_lab", fail)
    assert cli.main(["lab", "--port", "1"]) == 2
    assert capsys.readouterr().err == "course lab: port 1 is busy: try --port 2\n"


def test_an_interrupt_is_quiet(monkeypatch, capsys):
    def interrupt(port, browser):
        raise KeyboardInterrupt

    monkeypatch.setattr(lab, "open_lab", interrupt)
    assert cli.main(["lab"]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_lab_options_are_passed_on(monkeypatch):
    asked = []
    monkeypatch.setattr(lab, "open_lab", lambda port, browser: asked.append((port, browser)) or 0)
    cli.main(["lab"])
    cli.main(["lab", "--port", "9000", "--no-browser"])
    assert asked == [(None, True), (9000, False)]


# --- demo -------------------------------------------------------------------------------------


def test_demo_passes_its_options_on_and_prints_the_torchrun_line(demo, capsys):
    assert cli.main(["demo", "ddp", "--ranks", "4", "--steps", "20", "--timeout", "9"]) == 0
    options = {"ranks": 4, "timeout_s": 9.0, "stream": True, "steps": 20, "json": False}
    assert demo == [("ddp", options)]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("--nproc-per-node=4 -m course_lib.demos ddp --steps 20")
    assert lines[1:] == ["[rank 0] hello", "loss 1.5"]


def test_demo_with_json_prints_nothing_else_on_stdout(demo, capsys):
    assert cli.main(["demo", "ddp", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"loss": 1.5}
    assert "torch.distributed.run" in printed.err


def test_demo_on_two_nodes(demo, monkeypatch, capsys):
    asked = []

    def run(*arguments):
        asked.append(arguments)
        return ["of node 0\nresult\n", "of node 1\n"]

    monkeypatch.setattr(launch, "run_on_two_nodes", run)
    options = ["--ranks", "4", "--two-nodes", "200", "--timeout", "9"]
    assert cli.main(["demo", "ddp", *options, "--steps", "20"]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert "--node-rank=R --nproc-per-node=2" in first
    assert rest == ["of node 1", "of node 0", "result"]
    assert cli.main(["demo", "ddp", *options, "--json"]) == 0
    assert capsys.readouterr().out == "result\n"
    assert asked == [
        ("course_lib.demos", ["ddp", "--steps", "20"], 2, 200.0, 9.0),
        ("course_lib.demos", ["ddp", "--json"], 2, 200.0, 9.0),
    ]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--ranks", "3"], "ranks 3 cannot be halved: give --ranks 2, or 4"),
        (["--ranks", "2"], "node 1 ended with exit code 1"),
    ],
)
def test_demo_on_two_nodes_says_why_not(demo, monkeypatch, capsys, argv, message):
    def run(*arguments):
        raise launch.NodesFailed("node 1 ended with exit code 1")

    monkeypatch.setattr(launch, "run_on_two_nodes", run)
    assert cli.main(["demo", "ddp", "--two-nodes", "200", *argv]) == 2
    assert capsys.readouterr().err == f"course demo: {message}\n"


def test_demo_for_kubernetes_starts_nothing(demo, capsys):
    argv = ["demo", "ddp", "--emit", "trainjob", "--ranks", "3", "--steps", "20"]
    assert cli.main(argv) == 0
    head, body = capsys.readouterr().out.split("apiVersion: ")
    assert head.splitlines()[0] == "# the demo ddp on 3 ranks"
    trainer = yaml.safe_load(f"apiVersion: {body}")["spec"]["trainer"]
    assert trainer["command"][2:] == ["course_lib.demos", "ddp", "--steps", "20"]
    assert trainer["numProcPerNode"] == 3 and demo == []


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--emit", "slurm"], "emit 'slurm' is not one of trainjob: choose one of them"),
        (["--emit", "trainjob", "--ranks", "0"], "ranks must be at least 1, got 0: give 1 or more"),
    ],
)
def test_demo_for_another_launcher_says_why_not(demo, capsys, argv, message):
    assert cli.main(["demo", "ddp", *argv]) == 2
    assert capsys.readouterr().err == f"course demo: {message}\n"


def test_demo_list(demo, capsys):
    assert cli.main(["demo", "--list"]) == 0
    assert capsys.readouterr().out.splitlines()[0].split(maxsplit=1) == ["ddp", "a line about it"]


def test_demo_without_or_with_an_unknown_name(demo, capsys):
    assert cli.main(["demo"]) == 2
    assert "ddp, samples" in capsys.readouterr().err
    assert cli.main(["demo", "dpd"]) == 2
    assert "did you mean 'ddp'" in capsys.readouterr().err
    assert demo == []


@pytest.mark.parametrize(
    "error",
    [
        ValueError("ranks must be at least 1, got 0: give 1 or more"),
        MemoryError("ranks=9 needs about 3 GB: close other programs"),
        launch.RankFailed(1, "was killed by signal 9", "a traceback\nof many lines"),
    ],
)
def test_a_demo_that_fails_gets_one_sentence(demo, error, monkeypatch, capsys):
    def run(name, **options):
        raise error

    monkeypatch.setattr(demos, "run", run)
    assert cli.main(["demo", "ddp"]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("course demo: ") and printed.count("\n") == 1


def test_demo_with_a_record(demo, monkeypatch, capsys):
    assert cli.main(["demo", "ddp", "--record", "here"]) == 0
    assert demo[0][1]["record"] == "here"

    def fails(*_, **__):
        raise launch.RankFailed(1, "hung")

    monkeypatch.setattr(demos, "run", fails)
    assert cli.main(["demo", "ddp", "--record", "here"]) == 2
    assert "rank 1 hung: see `course diagnose here`" in capsys.readouterr().err
    assert cli.main(["demo", "ddp", "--record", "here", "--two-nodes", "200"]) == 2
    assert "--record does not go with --two-nodes" in capsys.readouterr().err


# --- diagnose ---------------------------------------------------------------------------------


def test_diagnose_says_a_sentence_and_has_a_code(tmp_path, capsys):
    page = {
        "rank": 0, "world": 1, "launch": "", "state": "returned", "at_s": 0.0, "still_s": 0.0,
        "step": 0, "steps": 0, "error": "", "reason": "", "peer": -1, "message": "", "stack": [],
        "since": [], "all": [], "groups": {}, "calls": [],
    }  # fmt: skip
    assert cli.main(["diagnose", str(tmp_path)]) == 1
    assert "Don't know: no rank left a page here. Record" in capsys.readouterr().out
    (tmp_path / "rank0.json").write_text(json.dumps(page))
    assert cli.main(["diagnose", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("Nothing wrong found: every rank has finished")
    (tmp_path / "rank0.json").write_text(
        json.dumps(page | {"state": "failed", "error": "ValueError: empty"})
    )
    assert cli.main(["diagnose", str(tmp_path), "--json"]) == 1
    finding = json.loads(capsys.readouterr().out)["finding"]
    assert (finding["cause"], finding["ranks"]) == ("error", [0])
    assert finding["sentence"] == "Rank 0 is the cause: it raised ValueError: empty"


def test_diagnose_of_an_absent_folder_is_a_sentence(capsys):
    assert cli.main(["diagnose", "absent"]) == 2
    assert "absent cannot be read (No such file" in capsys.readouterr().err


# --- compare ----------------------------------------------------------------------------------


def recorded_run(folder, factor=1.0):
    import torch

    from course_lib import comparing

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    with comparing.record(model, folder):
        (factor * model(torch.ones(2, 4)).sum()).backward()
    return str(folder)


def test_compare_says_a_sentence_and_has_a_code(tmp_path, capsys):
    one, same = recorded_run(tmp_path / "one"), recorded_run(tmp_path / "same")
    assert cli.main(["compare", one, same]) == 0
    assert capsys.readouterr().out.startswith("Rounding: all 6 tensors agree to the last bit.")
    other = recorded_run(tmp_path / "other", 2.0)
    assert cli.main(["compare", one, other]) == 1
    assert "differs is the gradient of the output of the model" in capsys.readouterr().out
    assert cli.main(["compare", one, other, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "more than rounding"
    assert found["tensors"][3]["looks_like"] == "it is 2 times what is expected"


def test_compare_without_a_record_is_a_sentence(tmp_path, capsys):
    assert cli.main(["compare", str(tmp_path), "absent"]) == 2
    assert f"{tmp_path} has no rank0.pt: give a folder" in capsys.readouterr().err


# --- check, progress, doctor, build -----------------------------------------------------------


def test_check_of_an_absent_notebook_is_a_sentence(capsys):
    assert cli.main(["check", "absent.ipynb"]) == 2
    assert "absent.ipynb does not exist" in capsys.readouterr().err


@pytest.fixture
def chapter(tmp_path, monkeypatch):
    from course_lib import chapters

    (tmp_path / "ch91_made").mkdir()
    (tmp_path / "ch91_made" / "exercises.py").write_text(
        "from course_lib.checking import exercise, expect_number\n"
        "@exercise('91.1', kind='calculate', title='Count', hints=('Hint.',))\n"
        "def _count(answer): expect_number(answer, 3, 'so')\n"
    )
    monkeypatch.setattr(chapters, "__path__", [*chapters.__path__, str(tmp_path)])


def test_progress_shows_what_is_done(chapter, capsys):
    assert cli.main(["progress"]) == 0
    out = capsys.readouterr().out
    assert " 1 Steps and batches: 0 of 8 exercises passed\n 2 Gradient accumulation: 0" in out
    assert "\n0 of " in out and ", next: 1.1 " in out
    check("91.1", 4)
    check("91.1", 3)
    capsys.readouterr()
    assert cli.main(["progress"]) == 0
    out = capsys.readouterr().out
    assert "91 : 1 of 1 exercises passed\n[pass] 91.1  calculate Count  (2 tries)\n1 of " in out
    assert ", next: 1.1 " in out and str(progress.path()) in out
    assert cli.main(["progress", "--json"]) == 0
    rows = {row["id"]: row for row in json.loads(capsys.readouterr().out)["exercises"]}
    assert rows["91.1"]["status"] == "pass" and rows["91.1"]["attempts"] == 2


@pytest.mark.parametrize(("answer", "code"), [("yes", 0), ("", 2), ("y", 2), (EOFError(), 2)])
def test_reset_asks_first_and_keeps_the_old_file(chapter, answer, code, monkeypatch, capsys):
    def ask(_question):
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr("builtins.input", ask)
    check("91.1", 3)
    assert cli.main(["progress", "--reset"]) == code
    assert progress.path().exists() == (code != 0)
    assert (progress.path().parent / "progress.reset-1.json").exists() == (code == 0)


def test_reset_of_nothing_does_not_ask(monkeypatch, capsys):
    monkeypatch.setattr("builtins.input", lambda _: pytest.fail("asked"))
    assert cli.main(["progress", "--reset"]) == 0


def test_doctor_exits_with_1_only_if_something_is_missing(monkeypatch, capsys):
    findings = [Finding("cores", "slow", "1", "add one")]
    asked = []
    monkeypatch.setattr(
        doctor, "examine", lambda start_ranks: asked.append(start_ranks) or findings
    )
    assert cli.main(["doctor", "--quick"]) == 0
    assert "cores" in capsys.readouterr().out
    findings.append(Finding("gloo", "missing", "not there", "install torch"))
    assert cli.main(["doctor", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)[1]["remedy"] == "install torch"
    assert asked == [False, True]


def test_build_check_names_files_and_the_remedy(tmp_path, monkeypatch, capsys):
    room = tmp_path / "course_lib" / "chapters" / "ch00_start"
    room.mkdir(parents=True)
    (room / "00_start.py").write_text("# %% [markdown]\n# # Start\n")
    monkeypatch.setattr(course_lib, "__file__", str(tmp_path / "course_lib" / "__init__.py"))
    assert cli.main(["build", "--check"]) == 1
    printed = capsys.readouterr().err
    assert printed == (
        "missing  notebooks/00_start.ipynb: run `course build`\n"
        "1 notebook does not match the chapters\n"
    )
    assert cli.main(["build"]) == 0
    assert "written  notebooks/00_start.ipynb" in capsys.readouterr().out
    assert cli.main(["build", "--check"]) == 0
    assert cli.main(["build"]) == 0
    assert "1 of 1 notebooks were up to date" in capsys.readouterr().out
    assert building.compare(tmp_path) == []
    (room / "00_start.py").write_text("# %%\n### BEGIN SOLUTION\n")
    assert cli.main(["build"]) == 2
    assert "00_start.py:2: this part has no end" in capsys.readouterr().err
