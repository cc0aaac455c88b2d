"""What other people measured, as this library predicts it: see measured_runs.py.

`course memory` and `course step` say the same. Their command is written from what the source says;
what it does not say is its framework's.
"""

import json
import statistics
from pathlib import Path

import pytest
from measured_runs import (
    SLOW,
    as_said,
    fitted_ratio,
    job,
    left_out,
    predicted_bytes,
    predicted_step,
    runs,
    speed_error,
)

from course_lib import cli
from course_lib.theory.inputs.hardware import H100_LAYER_EFFICIENCY
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.memory.peak import RESERVED_OVER_ALLOCATED

MEMORY = [run for run in runs() if run.category == "memory"]
STEPS = [run for run in runs() if run.category == "step"]
UNSEEN = runs(Path(__file__).with_name("unseen_runs.json"))


def within(errors, limit):
    """How many of the errors are at most `limit`."""
    return sum(abs(error) <= limit for error in errors)


# --- memory ---


def test_the_one_fitted_number_is_the_median_of_torchtitan_in_twentieths():
    torchtitan = [run for run in MEMORY if run.framework == "torchtitan"]
    assert round(20 * fitted_ratio(torchtitan)) / 20 == RESERVED_OVER_ALLOCATED
    each = sorted(fitted_ratio([run]) for run in torchtitan)
    assert (len(each), round(each[0], 2), round(each[-1], 2)) == (16, 1.00, 1.25)


def test_measured_memory_is_predicted():
    errors = [predicted_bytes(run) / run.bytes - 1 for run in MEMORY]
    assert len(errors) == 29 and all(run.framework for run in MEMORY)
    assert within(errors, 0.1) >= 0.95 * 29
    assert round(statistics.median(map(abs, errors)), 3) == 0.044  # as section 4.3 says
    assert abs(statistics.median(errors)) < 0.04
    assert max(map(abs, errors)) < 0.16


def test_the_memory_of_a_source_is_predicted_from_the_others():
    """The ratio of reserved bytes is fitted without the source whose runs are predicted."""
    errors = left_out(MEMORY).values()
    assert within(errors, 0.1) >= 0.8 * len(errors)
    assert abs(statistics.median(errors)) < 0.05


# --- steps ---


def test_measured_steps_are_predicted():
    errors = [speed_error(run) for run in STEPS]
    assert (within(errors, 0.15), len(errors)) == (72, 89)
    assert abs(statistics.median(errors)) < 0.02
    assert round(statistics.median(map(abs, errors)), 3) == 0.071  # as benchmarks/README.md says


def test_the_steps_of_a_source_are_predicted_from_the_others():
    """Only torchtitan's 500 W machines have a number fitted to runs of this list."""
    errors = [
        speed_error(run, H100_LAYER_EFFICIENCY if job(run).cluster.accelerator is SLOW else None)
        for run in STEPS
    ]
    assert within(errors, 0.15) == 70  # this and the next as section 13.4 says
    assert round(statistics.median(map(abs, errors)), 3) == 0.065
    assert abs(statistics.median(errors)) < 0.05


def test_steps_that_nobody_had_looked_at():
    """Those on a network that their source states, as benchmarks/README.md says."""
    errors = [speed_error(run) for run in UNSEEN if "YaFSDP" not in run.source]
    assert (within(errors, 0.15), len(errors)) == (22, 29)
    assert round(statistics.median(map(abs, errors)), 3) == 0.077


# --- commands ---


def command(run):
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


def as_option(name, value):
    if isinstance(value, bool):
        value = "yes" if value else "no"
    return f"--{name}", ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def answer(capsys, *argv):
    assert cli.main([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_memory_is_within_a_users_reach(capsys):
    for run in MEMORY:
        said = answer(capsys, "memory", *command(run), "--meter", run.meter)["totals"]
        assert said["metered_bytes"] == pytest.approx(predicted_bytes(run), rel=1e-12), run.id


def test_a_step_is_within_a_users_reach(capsys):
    known = [run for run in STEPS if run.framework]
    assert len(known) >= 25
    for run in known:
        place = ["--gpu", job(run).cluster.accelerator.name]
        if "gpus_per_node" in run.inputs:
            place += ["--gpus-per-node", str(run.inputs["gpus_per_node"])]
        if "between_bytes_per_s" in run.inputs:
            place += ["--between-gb-per-s", str(run.inputs["between_bytes_per_s"] / 1e9)]
        said = answer(capsys, "step", *command(run), *place)["totals"]
        shown = said["total_s" if run.unit == "s" else "tokens_per_s_per_gpu"]
        assert shown == pytest.approx(predicted_step(run), rel=1e-12), run.id


def test_an_option_holds_whatever_the_framework_does(capsys):
    framework = ("memory", "gpt2-124m", "--framework")
    assert answer(capsys, *framework, "TorchTitan")["recipe"]["loss"] == "eager"
    both = answer(capsys, *framework, "torchtitan", "--loss", "fused")["recipe"]
    assert (both["loss"], both["compute"]) == ("fused", "bf16")
