"""`course`: its commands, what they pass on, and what a wrong line or a failure looks like."""

import json
import subprocess
import sys
from dataclasses import dataclass, fields

import pytest
import yaml

import course_lib
from course_lib import building, cli, demos, doctor, lab, launch
from course_lib.checking import check, progress
from course_lib.checking.exercises import find
from course_lib.doctor import Finding
from course_lib.problem import Problem


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("COURSE_STRICT", raising=False)


@pytest.fixture
def call(capsys):
    """What a command prints on stdout; it must exit with `code`."""

    def call(line, code=0):
        assert cli.main(line.split()) == code
        return capsys.readouterr().out

    return call


@pytest.fixture
def refused(capsys):
    """The one sentence of a command that exits with 2."""

    def refused(line):
        assert cli.main(line.split()) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"course {line.split()[0]}: ") and said.count("\n") == 1
        return said

    return refused


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
    asked, known = [], demos.parse

    def parse(name, argv, *more):
        if name != "ddp":
            return known(name, argv, *more)
        steps = int(argv[argv.index("--steps") + 1]) if "--steps" in argv else 3
        return Options(steps, "--json" in argv)

    def run(name, **options):
        asked.append((name, options))
        print("[rank 0] hello") if options["stream"] else None
        return Result(1.5)

    monkeypatch.setattr(demos, "DEMOS", {"ddp": "a line about it", "samples": "another"})
    monkeypatch.setattr(demos, "parse", parse)
    monkeypatch.setattr(demos, "run", run)
    return asked


def failing(error):
    def fail(*_, **__):
        raise error

    return fail


def test_help_is_quick_and_light():
    program = (
        "import contextlib, sys; from course_lib import cli\n"
        "with contextlib.suppress(SystemExit): cli.main(['--help'])\n"
        "heavy = {'torch', 'ipywidgets', 'numpy', 'nbclient'}\n"
        "print(*heavy & set(sys.modules), len(sys.modules), file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    # Modules are what it takes time for, and stay as many however busy this machine is: about 160.
    assert int(run.stderr) < 250, run.stderr
    for name in ("lab", "demo", "check", "progress", "doctor", "build", "memory", "plan"):
        assert f"\n    {name} " in run.stdout


def test_without_a_command_help_is_shown(call, capsys):
    assert "COMMAND" in call("")
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"course {course_lib.__version__}\n"


@pytest.mark.parametrize(
    ("argv", "shown", "said"),
    [
        ("rehearse llama2-7b --shardgroup 8", "ranks over which weights", "mean --shard-group?"),
        ("doctor x", "do not start ranks", "x is not among its options: all that there are"),
        ("--helpp", "COMMAND", "course: --helpp is not among its options: did you mean --help?"),
        ("nonsense", "find a hidden fault", "invalid choice: 'nonsense'"),
        ("check", "as it was last saved", "the following arguments are required: NOTEBOOK"),
        ("demo fsdp --precison bf16", "fp32 or bf16, in which units", "mean --precision?"),
        ("demo fsdp --rank 4", "number of processes (default: 2)", "mean --ranks?"),
        ("demo fsdp --steps x", "--parts PARTS", "course demo fsdp: argument --steps: invalid"),
    ],
)
def test_a_wrong_line_shows_the_options_that_there_are(argv, shown, said, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(argv.split())
    printed = capsys.readouterr()
    assert printed.out == "" and shown in printed.err
    assert said in printed.err.splitlines()[-1]


@pytest.mark.parametrize(
    "argv", ["demo fsdp --help", "demo -h three_d", "demo elastic --ranks 4 --help"]
)
def test_the_help_of_a_demo_has_its_own_options_with_their_meaning(argv, capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main(argv.split())
    shown = " ".join(capsys.readouterr().out.split())
    (name,) = {"fsdp", "three_d", "elastic"} & set(argv.split())
    assert shown.startswith(f"usage: course demo {name} ")
    for option in fields(demos.load(name).Options):
        assert f"--{option.name.replace('_', '-')}" in shown
        assert option.metadata["help"] in shown
    assert "number of processes (default: 2)" in shown and "default: None" not in shown


def test_a_problem_is_one_sentence_and_an_interrupt_is_quiet(monkeypatch, refused, capsys):
    problem = Problem("port 1 is busy: try --port 2")
    monkeypatch.setattr(lab, "open_lab", failing(problem))
    assert refused("lab --port 1") == "course lab: port 1 is busy: try --port 2\n"
    monkeypatch.setattr(lab, "open_lab", failing(KeyboardInterrupt()))
    assert cli.main(["lab"]) == 130
    assert capsys.readouterr().err == "course lab: interrupted\n"


def test_lab_options_are_passed_on(monkeypatch, call):
    asked = []
    monkeypatch.setattr(lab, "open_lab", lambda *given: asked.append(given) or 0)
    call("lab")
    call("lab --port 9000 --no-browser")
    assert asked == [(None, True, ""), (9000, False, "")]


# --- demo -------------------------------------------------------------------------------------


def test_demo_passes_its_options_on_and_prints_the_torchrun_line(demo, call, capsys):
    lines = call("demo ddp --ranks 4 --steps 20 --timeout 9 --record here").splitlines()
    options = {"ranks": 4, "timeout_s": 9.0, "stream": True, "steps": 20, "json": False}
    assert demo == [("ddp", options | {"record": "here"})]
    assert lines[0].startswith("the same by torchrun: COURSE_RECORD=here ")
    assert lines[0].endswith("--nproc-per-node=4 -m course_lib.demos ddp --steps 20")
    assert lines[1:] == ["[rank 0] hello", "loss 1.5"]
    assert cli.main(["demo", "ddp", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"loss": 1.5}
    assert "torch.distributed.run" in printed.err


def test_demo_on_two_nodes(demo, monkeypatch, call):
    asked = []

    def run(*arguments):
        asked.append(arguments)
        return ["of node 0\nresult\n", "of node 1\n"]

    monkeypatch.setattr(launch, "run_on_two_nodes", run)
    line = "demo ddp --ranks 4 --two-nodes 200 --timeout 9"
    first, *rest = call(f"{line} --steps 20").splitlines()
    assert "--node-rank=R --nproc-per-node=2" in first
    assert rest == ["of node 1", "of node 0", "result"]
    assert call(f"{line} --json") == "result\n"
    assert asked == [
        ("course_lib.demos", ["ddp", "--steps", "20"], 2, 200.0, 9.0),
        ("course_lib.demos", ["ddp", "--json"], 2, 200.0, 9.0),
    ]


def test_demo_for_kubernetes_starts_nothing(demo, call):
    head, body = call("demo ddp --emit trainjob --ranks 3 --steps 20").split("apiVersion: ")
    assert head.splitlines()[0] == "# the demo ddp on 3 ranks"
    trainer = yaml.safe_load(f"apiVersion: {body}")["spec"]["trainer"]
    assert trainer["command"][2:] == ["course_lib.demos", "ddp", "--steps", "20"]
    assert trainer["numProcPerNode"] == 3 and demo == []


def test_demos_are_listed(demo, call):
    assert call("demo --list").splitlines()[0].split(maxsplit=1) == ["ddp", "a line about it"]
    assert "`course demo NAME --help` shows them" in " ".join(call("demo --help").split())


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("", "ddp, samples"),
        ("dpd", "did you mean 'ddp'"),
        ("ddp --emit slurm", "emit 'slurm' is not one of trainjob: choose one of them"),
        ("ddp --emit trainjob --ranks 0", "ranks must be at least 1, got 0: give 1 or more"),
        ("ddp --two-nodes 200 --ranks 3", "ranks 3 cannot be halved: give --ranks 2, or 4"),
        ("ddp --two-nodes 200", "node 1 ended with exit code 1"),
        ("ddp --two-nodes 200 --record here", "--record does not go with --two-nodes"),
    ],
)
def test_what_demo_cannot_do_is_one_sentence(demo, monkeypatch, refused, argv, message):
    error = launch.NodesFailed("node 1 ended with exit code 1")
    monkeypatch.setattr(launch, "run_on_two_nodes", failing(error))
    assert message in refused(f"demo {argv}") and demo == []


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("ranks must be at least 1"), "ranks must be at least 1"),
        (MemoryError("ranks=9 needs about 3 GB: close other programs"), "about 3 GB"),
        (
            launch.RankFailed(1, "was killed by signal 9", "a traceback\nof many lines"),
            "rank 1 was killed by signal 9: see `course diagnose here`",
        ),
    ],
)
def test_a_demo_that_fails_gets_one_sentence(demo, error, words, monkeypatch, refused):
    monkeypatch.setattr(demos, "run", failing(error))
    assert words in refused("demo ddp --record here")


# --- diagnose, compare ------------------------------------------------------------------------


def test_diagnose_says_a_sentence_and_has_a_code(tmp_path, call, refused):
    page = {
        "rank": 0, "world": 1, "launch": "", "state": "returned", "at_s": 0.0, "still_s": 0.0,
        "step": 0, "steps": 0, "error": "", "reason": "", "peer": -1, "message": "", "stack": [],
        "since": [], "all": [], "groups": {}, "calls": [],
    }  # fmt: skip
    assert "absent cannot be read (No such file" in refused("diagnose absent")
    said = call(f"diagnose {tmp_path}", code=1)
    assert "Don't know: no rank left a page here. Record" in said
    (tmp_path / "rank0.json").write_text(json.dumps(page))
    said = call(f"diagnose {tmp_path}")
    assert said.startswith("Nothing wrong found: every rank has finished")
    failed = page | {"state": "failed", "error": "ValueError: empty"}
    (tmp_path / "rank0.json").write_text(json.dumps(failed))
    finding = json.loads(call(f"diagnose {tmp_path} --json", code=1))["finding"]
    assert (finding["cause"], finding["ranks"]) == ("error", [0])
    assert finding["sentence"] == "Rank 0 is the cause: it raised ValueError: empty"


def recorded_run(folder, factor=1.0):
    import torch

    from course_lib.chapters.ch16_cluster_clinic import comparing

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    with comparing.record(model, folder):
        (factor * model(torch.ones(2, 4)).sum()).backward()
    return str(folder)


def test_compare_says_a_sentence_and_has_a_code(tmp_path, call, refused):
    one, same = recorded_run(tmp_path / "one"), recorded_run(tmp_path / "same")
    said = call(f"compare {one} {same}")
    assert said.startswith("Rounding: all 6 tensors agree to the last bit.")
    other = recorded_run(tmp_path / "other", 2.0)
    said = call(f"compare {one} {other}", code=1)
    assert "differs is the gradient of the output of the model" in said
    found = json.loads(call(f"compare {one} {other} --json", code=1))
    assert found["verdict"] == "more than rounding"
    assert found["tensors"][3]["looks_like"] == "it is 2 times what is expected"
    assert f"{tmp_path} has no rank0.pt: give a folder" in refused(f"compare {tmp_path} absent")


# --- progress, doctor, build ------------------------------------------------------------------


def test_progress_shows_what_is_done(call, capsys):
    out = call("progress")
    assert " 1 Steps and batches: 0 of 9 exercises passed\n 2 Gradient accumulation: 0" in out
    assert "\n0 of " in out and ", next: 1.1 " in out
    check("1.1", [976, 950])
    check("1.1", [961, 974])
    capsys.readouterr()
    out, title = call("progress"), find("1.1").title
    assert f": 1 of 9 exercises passed\n[pass] 1.1   debug     {title}  (2 tries)\n[todo] " in out
    assert "\n1 of " in out and ", next: 1.2 " in out and str(progress.path()) in out
    rows = {row["id"]: row for row in json.loads(call("progress --json"))["exercises"]}
    assert rows["1.1"]["status"] == "pass" and rows["1.1"]["attempts"] == 2


@pytest.mark.parametrize(("answer", "code"), [("yes", 0), ("", 2), ("y", 2), (EOFError(), 2)])
def test_reset_asks_first_and_keeps_the_old_file(answer, code, monkeypatch, call):
    asks = failing(answer) if isinstance(answer, Exception) else lambda _: answer
    monkeypatch.setattr("builtins.input", asks)
    assert "nothing to reset" in call("progress --reset")
    check("1.1", 3)
    call("progress --reset", code)
    assert progress.path().exists() == (code != 0)
    assert (progress.path().parent / "progress.reset-1.json").exists() == (code == 0)


def test_doctor_exits_with_1_only_if_something_is_missing(monkeypatch, call):
    findings, asked = [Finding("cores", "slow", "1", "add one")], []
    examine = lambda start_ranks: asked.append(start_ranks) or findings  # noqa: E731
    monkeypatch.setattr(doctor, "examine", examine)
    assert "cores" in call("doctor --quick")
    findings.append(Finding("gloo", "missing", "not there", "install torch"))
    assert json.loads(call("doctor --json", code=1))[1]["remedy"] == "install torch"
    assert asked == [False, True]


def test_build_check_names_files_and_the_remedy(tmp_path, monkeypatch, call, refused, capsys):
    room = tmp_path / "course_lib" / "chapters" / "ch00_start"
    room.mkdir(parents=True)
    data = "question: Why?\n# importance: 1\n# difficulty: 1\n# group: alone"
    text = f'# %% [raw] tags=["sitting"]\n# {data}\n\n# %% [markdown]\n# # Start\n'
    (room / "00_start.py").write_text(text)
    monkeypatch.setattr(course_lib, "__file__", str(tmp_path / "course_lib" / "__init__.py"))
    assert cli.main(["build", "--check"]) == 1
    assert capsys.readouterr().err == (
        "missing  notebooks/00_start.ipynb: run `course build`\n"
        "1 notebook does not match the chapters\n"
    )
    assert "written  notebooks/00_start.ipynb" in call("build")
    assert call("build --check") == ""
    assert "1 of 1 notebooks were up to date" in call("build")
    assert building.compare(tmp_path) == []
    (room / "00_start.py").write_text("# %%\n### BEGIN SOLUTION\n")
    assert "00_start.py:2: this part has no end" in refused("build")
