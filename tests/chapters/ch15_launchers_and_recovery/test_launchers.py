"""One job under several launchers: equal losses, what is missing is said, nothing remains.

Without DeepSpeed and accelerate much of it is skipped.
"""

import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from together import explained, keep_mine

from course_lib import demos, launch
from course_lib.chapters.ch15_launchers_and_recovery.demos import toy
from course_lib.chapters.ch15_launchers_and_recovery.demos.launchers import by_hand, lifeline
from course_lib.chapters.ch15_launchers_and_recovery.demos.launchers import program as launchers
from course_lib.chapters.ch15_launchers_and_recovery.demos.launchers.program import (
    LAUNCHERS,
    Options,
    attempt,
)
from course_lib.demos.shared.deepspeed_config import deepspeed_config
from course_lib.demos.shared.training import one_process

BY_NAME = {launcher.name: launcher for launcher in LAUNCHERS}
BUSY = {"limit_s": 250.0, "timeout_s": 280.0}  # for what takes ten seconds on a quiet machine


@pytest.fixture
def answers(monkeypatch):
    """In the place of a launcher: an exit code and what it printed; the commands are collected."""
    commands = []

    def answer(code, text="", meanwhile=lambda: None):
        def run(command, *_):
            commands.append(" ".join(command))
            meanwhile()
            return code, text

        monkeypatch.setattr(lifeline, "run", run)
        return commands

    return answer


def test_torchrun_finds_the_ranks_and_the_losses_of_one_process(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    result = demos.run("launchers", stream=False, only="torchrun", steps=3, **BUSY)
    (found,) = result.attempts
    assert found.world == result.ranks == 2
    assert found.losses == pytest.approx(result.losses_one_process, rel=1e-5)
    assert 0 < found.seconds_to_start < found.seconds
    assert "2 of 2 ranks" in result.report()
    assert "--rdzv-endpoint=FOLDER/meeting" in found.command  # no port that others can reach
    left = [path.name for path in tmp_path.iterdir()]
    assert not [name for name in left if name.startswith(("course_", "torchelastic_"))]


def test_what_is_not_installed_is_skipped_with_its_remedy(monkeypatch):
    monkeypatch.setattr(launchers, "find_spec", lambda name: None)
    for launcher in LAUNCHERS:
        if launcher.package:
            found = attempt(launcher, Options(), 2, gpus=False)
            assert found.skipped
            assert f"pip install {launcher.package}" in found.line(2, [])
            assert "--framework " + launcher.framework in found.command


def test_a_missing_compiler_is_said(monkeypatch):
    monkeypatch.setattr(launchers, "find_spec", lambda name: True)
    monkeypatch.setattr(launchers.shutil, "which", lambda name: None)
    assert "install g++" in attempt(BY_NAME["deepspeed"], Options(), 2, gpus=False).problem


@pytest.mark.engine("accelerate")
def test_accelerate_launch_on_a_cpu_silently_starts_one_process():
    for name, world in (("torchrun, accelerate inside", 2), ("accelerate launch", 1)):
        found = attempt(BY_NAME[name], Options(), 2, gpus=False)
        assert (found.world, found.problem) == (world, "")
    assert "--num_processes 2" in found.command
    assert "nothing said so" in found.line(2, [])


def test_the_launcher_by_hand_gets_the_same_job_and_whose_parts(tmp_path, monkeypatch, answers):
    keep_mine(tmp_path, monkeypatch, "launcher")
    commands = answers(0, '{"framework": "torch", "world": 2, "losses": [4.5], "ready_at": 0.0}')
    found = attempt(BY_NAME["by hand"], Options(parts="mine", steps=3), 2, gpus=False)
    assert found.launcher.startswith("by hand, with your rank_environment, launch_ranks")
    assert (found.world, found.losses, found.problem) == (2, [4.5], "")
    (command,) = commands
    assert f"{by_hand.__name__} 2 mine {launchers.job.__name__} --framework torch --" in command
    assert "--steps 3" in command and "--json" in command


@pytest.mark.engine("megatron")
def test_megatron_cores_layers_have_the_losses_of_one_process():
    options = {"only": "torchrun, Megatron-core inside", "steps": 3}
    (found,) = demos.run("launchers", stream=False, **options).attempts  # verify() compared them
    assert (found.world, found.problem) == (2, "")


@pytest.mark.engine("deepspeed", "g++")
def test_bf16_is_near_and_not_equal():
    options = {"only": "torchrun, DeepSpeed in bf16", "steps": 3}
    result = demos.run("launchers", stream=False, **options, **BUSY)
    (found,) = result.attempts
    assert (found.world, found.problem) == (2, "")
    gaps = [abs(a / b - 1) for a, b in zip(found.losses, result.losses_one_process, strict=True)]
    assert 1e-4 < max(gaps) < 1e-2


# A launcher in short: it starts a worker in a session of its own, as torchrun does, and waits.
WORKER = """
import os, sys, time
from course_lib.chapters.ch15_launchers_and_recovery.demos.launchers import lifeline
lifeline.hold()
open(sys.argv[1], "w").write(str(os.getpid()))
time.sleep(600)
"""
STUBBORN = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("started", flush=True)
subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]], start_new_session=True).wait()
"""


def ended(path, within_s=60.0):
    """Whether the process whose number is in the file is gone, or goes soon."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        try:
            os.kill(int(path.read_text()), 0)
        except (ProcessLookupError, FileNotFoundError, ValueError):
            return True
        time.sleep(0.05)
    return False


def test_at_the_limit_the_launcher_and_its_workers_end(tmp_path):
    number = tmp_path / "pid"
    command = [sys.executable, "-c", STUBBORN, WORKER, str(number)]
    for limit_s in (1.0, 4.0, 12.0):  # a busy machine starts the worker late
        start = time.monotonic()
        code, text = lifeline.run(command, tmp_path, limit_s)
        assert time.monotonic() - start < limit_s + 60
        if number.exists():
            break
    assert (code, text) == (None, "started\n")
    assert number.exists(), "the worker never started: this test shows nothing"
    assert ended(number)


def waits_for_a_launcher(number):
    """A rank that is killed as soon as the worker is there."""

    def kill():
        while not Path(number).exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    lifeline.run([sys.executable, "-c", STUBBORN, WORKER, number], Path(number).parent, 600.0)


def test_when_the_rank_is_killed_its_workers_end(tmp_path):
    number = tmp_path / "pid"
    with pytest.raises(launch.RankFailed, match="was killed by SIGKILL"):
        launch.run(waits_for_a_launcher, str(number), ranks=1, timeout_s=200.0)
    assert number.exists(), "the worker never started: this test shows nothing"
    assert ended(number)


def test_a_worker_that_nobody_waits_for_does_not_start(monkeypatch):
    with launchers.socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    monkeypatch.setenv("COURSE_LIFELINE", str(port))
    with pytest.raises(ConnectionRefusedError):
        lifeline.hold()


def test_a_launcher_sees_nothing_of_ours(monkeypatch, tmp_path):
    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT", "COURSE_STORE", "TORCHELASTIC_RUN_ID"):
        monkeypatch.setenv(name, "7")
    show = "import os; print(sorted(k for k, v in os.environ.items() if v == '7'))"
    assert lifeline.run([sys.executable, "-c", show], tmp_path, 30.0) == (0, "[]\n")


def test_a_launcher_that_fails_or_is_too_slow_is_told(answers):
    for code, text, said in (
        (1, "no such\ndevice\n", "exit code 1, last output: no such | device"),
        (0, "no result", "exit code 0, last output: no result"),
        (None, "", "no end within 60 s: raise limit_s"),
    ):
        answers(code, text)
        found = attempt(BY_NAME["torchrun"], Options(), 2, gpus=False)
        assert not found.skipped
        assert found.line(2, []) == f"failed: {said}"


@pytest.mark.parametrize("before", [False, True])
def test_a_build_that_was_ended_makes_nobody_wait(before, tmp_path, monkeypatch, answers):
    lock = tmp_path / "built" / "lock"
    lock.parent.mkdir()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))

    def compiling(at_s):
        lock.touch()
        os.utime(lock, (at_s, at_s))

    if before:
        compiling(1)
        answers(None)
    else:
        answers(None, meanwhile=lambda: compiling(time.time() + 1))
    launcher = launchers.Launcher("c", "torch", lambda *_: ["compile"], compiles=True)
    said = attempt(launcher, Options(), 2, gpus=False).line(2, [])
    assert lock.exists() is before
    assert ("raise limit_s" in said) is not before
    assert (f"{lock} says that another process compiles" in said) is before


def test_each_argument_changes_its_key():
    assert deepspeed_config(2, 3, 4, ranks=8)["train_batch_size"] == 3 * 4 * 8
    plain = deepspeed_config(1)
    assert plain["zero_optimization"]["stage"] == 1
    assert plain["gradient_clipping"] == 0.0  # its own default clips at 1.0
    assert deepspeed_config(1, clip=0.5)["gradient_clipping"] == 0.5
    assert "offload_optimizer" not in plain["zero_optimization"]
    offload = deepspeed_config(1, offload=True)
    assert offload["zero_optimization"]["offload_optimizer"]["device"] == "cpu"
    assert offload["zero_force_ds_cpu_optimizer"] is False
    assert deepspeed_config(1, bf16=True) == plain | {"bf16": {"enabled": True}}
    assert "stage3_param_persistence_threshold" in deepspeed_config(3)["zero_optimization"]


def test_a_bad_configuration_is_explained():
    bad = {"stage": 4}, "stage must be at most 3"
    explained(deepspeed_config, [bad, ({"stage": 0, "offload": True}, "needs a sharded optimizer")])


with_deepspeed = pytest.mark.engine("deepspeed", "g++")


@with_deepspeed
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("stage", "offload"), [(0, False), (1, False), (2, False), (3, False), (1, True), (3, True)]
)
def test_deepspeed_trains_as_one_process(stage, offload):
    options = Options(stage=stage, offload=offload, limit_s=300.0)
    inside = next(entry for entry in LAUNCHERS if entry.framework == "deepspeed")
    found = attempt(inside, options, 2, gpus=False)
    assert not found.problem
    assert found.world == 2
    reference = one_process(options.training(2)).losses
    assert found.losses == pytest.approx(reference, rel=1e-6)


@with_deepspeed
def test_the_configuration_is_accepted():
    from deepspeed.runtime.constants import GRADIENT_CLIPPING_DEFAULT
    from deepspeed.runtime.zero.config import get_zero_config
    from deepspeed.runtime.zero.utils import ZERO_SUPPORTED_OPTIMIZERS

    assert torch.optim.AdamW in ZERO_SUPPORTED_OPTIMIZERS
    assert GRADIENT_CLIPPING_DEFAULT == 1.0  # as the comment beside the key says
    for stage in range(4):
        config = deepspeed_config(stage, offload=stage > 0)
        known = get_zero_config(config)  # refuses keys that it does not know
        assert int(known.stage) == stage
        assert (known.offload_optimizer is not None) == (stage > 0)


def test_both_launchers_learn_what_one_process_does(tmp_path, monkeypatch):
    """The learner's launcher starts the ranks, and leaves a mark here when it does."""
    mark = tmp_path / "started by mine"
    marked = f"    open({str(mark)!r}, 'x').close()\n    over = threading.Event()"
    change = "    over = threading.Event()", marked
    keep_mine(tmp_path, monkeypatch, "launcher", change=change)
    result = demos.run("toy", ranks=2, stream=False, parts="mine", **BUSY)  # verify() compared
    mine, torchrun = result.starts
    assert mine.launcher.startswith("by hand, with your rank_environment, launch_ranks")
    assert torchrun.launcher == "torchrun" and mark.exists()
    assert mine.world == torchrun.world == 2
    assert f"{by_hand.__name__} 2 mine {toy.JOB} mine" in result.report()


def test_a_start_that_fails_is_told(answers, capfd):
    for code, said in ((1, "exit code 1\nno device"), (None, "no end within 60 s: raise limit_s")):
        answers(code, "no device")
        with pytest.raises(RuntimeError, match=f"^torchrun: {said}$"):
            toy.started("torchrun", 2, toy.Options())
    assert by_hand.main("2", "course", "course_lib.nowhere") == 1
    found = re.search(r"exit codes by rank: \[(.+)\]", capfd.readouterr().err)
    assert 1 in map(int, found[1].split(","))
