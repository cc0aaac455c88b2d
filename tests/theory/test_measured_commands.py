"""Every measured run as a user asks for it: `course memory` and `course step` say what is tested.

The command is written from what the source says; what it does not say is its framework's.
"""

import json

import pytest
from measured_runs import SLOW, Run, as_said, predicted_bytes, predicted_step, runs

from course_lib import cli
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import Recipe

RUNS = {run.id: run for run in runs() if run.framework}


def command(run: Run) -> list[str]:
    """The command of a run, but for the options about what is shown."""
    said, model = as_said(run), run.inputs.get("model", "gpt2-124m")
    options = {"framework": run.framework, "sequence": said.sequence}
    options |= {"compiled": True} if run.compiled else {}
    options |= {"loss": "chunked"} if "loss in chunks" in run.source else {}
    usual = (MODELS[model], Recipe(), Layout())
    for part, default in zip((said.shape, said.recipe, said.layout), usual, strict=True):
        changed = vars(part).items() - vars(default).items()
        options |= {name.replace("_", "-"): value for name, value in changed}
    flags = ["--sequence-parallel"] if options.pop("sequence-parallel", False) else []
    return [model, *flags, *(text for item in options.items() for text in as_option(*item))]


def as_option(name: str, value: object) -> tuple[str, str]:
    if isinstance(value, bool):
        value = "yes" if value else "no"
    if isinstance(value, tuple):
        value = ",".join(map(str, value))
    return f"--{name}", str(value)


def answer(capsys, *argv: str):
    assert cli.main([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["totals"]


def test_a_memory_is_within_a_users_reach(capsys):
    memories = [run for run in RUNS.values() if run.category == "memory"]
    assert len(memories) >= 25
    for run in memories:
        said = answer(capsys, "memory", *command(run), "--meter", run.meter)
        assert said["metered_bytes"] == pytest.approx(predicted_bytes(run), rel=1e-12), run.id


def test_a_step_is_within_a_users_reach(capsys):
    steps = [run for run in RUNS.values() if run.category == "step"]
    assert len(steps) >= 25
    for run in steps:
        slow = run.inputs.get("memory_bytes_per_s") == SLOW.memory_bytes_per_s
        place = ["--gpu", SLOW.name if slow else run.inputs["gpu"]]
        if "gpus_per_node" in run.inputs:
            place += ["--gpus-per-node", str(run.inputs["gpus_per_node"])]
        if "between_bytes_per_s" in run.inputs:
            place += ["--between-gb-per-s", str(run.inputs["between_bytes_per_s"] / 1e9)]
        said = answer(capsys, "step", *command(run), *place)
        shown = said["total_s" if run.unit == "s" else "tokens_per_s_per_gpu"]
        assert shown == pytest.approx(predicted_step(run), rel=1e-12), run.id


def test_an_option_holds_whatever_the_framework_does(capsys):
    def recipe(*options):
        assert cli.main(["memory", "gpt2-124m", *options, "--json"]) == 0
        return json.loads(capsys.readouterr().out)["recipe"]

    assert recipe("--framework", "TorchTitan")["loss"] == "eager"
    both = recipe("--framework", "torchtitan", "--loss", "fused")
    assert (both["loss"], both["compute"]) == ("fused", "bf16")
