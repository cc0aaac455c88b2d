"""`course rehearse`: the rehearsal of the library, in a table or as JSON."""

import argparse
import json
from dataclasses import replace

import pytest

from course_lib import cli
from course_lib.chapters.ch15_launchers_and_recovery import rehearsal
from course_lib.chapters.ch15_launchers_and_recovery.cli import rehearse as command
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.memory.peak import gpu_memory
from course_lib.trace import Total

pytestmark = pytest.mark.torch_internals
SIZES = "--layers 1 --hidden 16 --heads 4 --ffn 20 --vocab 21 --sequence 8"
SMALL = ["rehearse", "llama2-7b", *SIZES.split(), "--dp", "4", "--tp", "2"]


@pytest.fixture
def call(capsys):
    def call(*argv, code=0):
        assert cli.main([*SMALL, *argv]) == code
        return capsys.readouterr()

    return call


def test_the_table_fits_100_columns(call):
    text = call("--rank", "7", "--sequence-parallel").out
    assert text.startswith("llama2-7b with layers 1, ")
    assert "rank 7 of 8 (dp 3 of 4, tp 1 of 2): fp32 in 4 shards, computed in bf16" in text
    assert max(len(line) for line in text.splitlines()[1:]) <= 100


# What each option changes in the job that is rehearsed.
CHANGES = {
    "--dp 3": {"dp": 3, "shard_group": 3},
    "--tp 4": {"tp": 4},
    "--shard-group 2": {"shard_group": 2},
    "--micro-batch 2": {"micro_batch": 2},
    "--accumulation 2": {"accumulation": 2},
    "--reduce update": {"reduce": "update"},
    "--reshard no": {"reshard": False},
    "--sequence-parallel": {"sequence_parallel": True},
    "--parameters bf16": {"parameters": "bf16", "gradients": "bf16", "optimizer": "adamw-bf16"},
    "--gradients bf16": {"gradients": "bf16"},
    "--compute fp32": {"compute": "fp32"},
    "--optimizer sgd": {"optimizer": "sgd"},
}


def test_each_option_is_in_the_job_that_is_rehearsed(call, monkeypatch):
    asked = []

    def rehearse(job, rank):
        asked.append({**vars(job.layout), **vars(job.recipe), "sequence": job.sequence})
        raise ValueError(f"rank {rank}")

    monkeypatch.setattr(rehearsal, "rehearse", rehearse)
    assert "rank 7" in call("--rank", "7", code=2).err
    (before,) = asked
    for change, fields in CHANGES.items():
        call(*change.split(), code=2)
        other = {name: value for name, value in asked[-1].items() if value != before[name]}
        assert other == fields, change


def test_every_option_is_tried():
    parser = argparse.ArgumentParser()
    command.add_options(parser)
    group = next(g for g in parser._action_groups if g.title == "sizes in place of the model's")
    sizes = {name for action in group._group_actions for name in action.option_strings}
    options = {name for action in parser._actions for name in action.option_strings}
    tried = {change.split()[0] for change in CHANGES} | {"--rank", "--json", "--sequence"}
    tried |= {"--gpu"}  # which changes nothing but the verdict
    assert options - sizes - {"-h", "--help"} == tried


def test_json_has_both_sides_and_the_names(call):
    found = json.loads(call("--rank", "7", "--json").out)
    assert (found["rank"], found["gpus"], found["explained"]) == (7, 8, True)
    weights = found["lines"][0]
    named = sum(difference["size_bytes"] for difference in weights["differences"])
    assert weights["what"] == "weights"
    both = weights["rehearsed"]["size_bytes"] - weights["theory"]["size_bytes"]
    assert both == named > 0


@pytest.mark.parametrize(("sequences", "verdict"), [("1", "fit"), ("20M", "do not fit")])
def test_a_gpu_is_large_enough_or_not(call, sequences, verdict):
    asked, code = ("--micro-batch", sequences, "--gpu", "rtx4090"), int(verdict != "fit")
    lines = call(*asked, code=code).out.splitlines()
    assert f" {verdict} into the 22.80 GB of RTX4090 (24.00 GB less a margin of 5%)" in lines[-1]
    found = json.loads(call(*asked, "--json", code=code).out)
    kept = sum(found["lines"][at]["rehearsed"]["size_bytes"] for at in range(3))
    layout = Layout(dp=4, tp=2, zero_stage=3, micro_batch=found["layout"]["micro_batch"])
    shape, fields = TransformerShape(**found["shape"]), found["recipe"]
    bill = gpu_memory(Job(shape, Recipe(**fields), replace(layout, keep_gathered=True), sequence=8))
    assert found["fit"]["need_bytes"] == kept + bill.total_bytes - bill.model_states_bytes
    assert found["fit"]["fits"] == (verdict == "fit")


def test_a_byte_without_a_name_exits_with_1(call, monkeypatch):
    monkeypatch.setattr(rehearsal.expected, "sent", lambda job: {"tp all-reduce": Total(1, 1)})
    assert "NOT EXPLAINED" in call(code=1).out


def test_what_cannot_be_rehearsed_is_one_sentence(call):
    assert "did you mean 'H100-SXM'" in call("--gpu", "H100", code=2).err
    problem = call("--experts", "4", "--top-k", "1", code=2).err
    assert problem.startswith("course rehearse: experts 4 cannot be rehearsed, since what sends ")
    assert problem.endswith("`course memory`\n") and problem.count("\n") == 1
