"""Every measured run as a user asks for it: `course memory` and `course step` say what is tested.

The command is written from what the source says; what it does not say is its framework's.
"""

import json

import pytest
from measured_runs import RECOMPUTE, SLOW, Run, predicted_bytes, predicted_step, runs

from course_lib import cli

RUNS = {run.id: run for run in runs() if run.framework}
LLAMA = {"norm": "rmsnorm", "mlp": "swiglu", "biases": "no", "learned-positions": "no"}


def command(run: Run) -> list[str]:
    """The command of a run, but for the options about what is shown."""
    told = run.inputs
    options: dict[str, object] = {"framework": run.framework, "sequence": told["seq"]}
    options |= {"recompute": RECOMPUTE.get(told["recompute"], told["recompute"])}
    options |= {"compiled": "yes"} if run.compiled else {}
    options |= {"loss": "chunked"} if "loss in chunks" in run.source else {}
    options |= {"dropout": "yes"} if told.get("dropout") else {}
    options |= {"attention": told["attention"]}
    options |= {"recipe": told["states"]} if "states" in told else {"master-copy": "no"}
    degrees = {axis: told.get(axis, 1) for axis in ("tp", "pp", "cp", "ep")}
    dp = told["gpus"] // (degrees["tp"] * degrees["pp"] * degrees["cp"])
    options |= {**degrees, "dp": dp, "micro-batch": told["micro_batch"]}
    steps = told.get("accumulation") or told["global_batch"] // (told["micro_batch"] * dp)
    options |= {"accumulation": steps, "schedule": told.get("schedule", "1f1b")}
    options |= {"virtual-stages": told.get("virtual", 1)}
    fsdp2 = told["zero_stage"] == 2 and "FSDP2" in run.source
    gathers_once = fsdp2 or not told.get("reshard", True)
    options |= {"zero-stage": 3 if fsdp2 else told["zero_stage"]}
    options |= {"reshard": "no"} if gathers_once else {}
    options |= {"shard-group": told["shard_group"]} if "shard_group" in told else {}
    if "stage_layers" in told:
        options["stage-layers"] = ",".join(map(str, told["stage_layers"]))
    if "shape" in told:
        given = told["shape"]
        options |= {name: given[name] for name in ("layers", "hidden", "heads", "vocab")}
        options |= {"kv-heads": given.get("kv_heads", given["heads"])}
        options |= {"ffn": given.get("ffn", 4 * given["hidden"])}
        options |= {"context": given.get("context", 131072)}
        options |= LLAMA if given["arch"] == "llama" else {}
        options |= {"tied-embeddings": "yes" if given["tied_embeddings"] else "no"}
    flags = ["--sequence-parallel"] if told.get("sequence_parallel") else []
    texts = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    return [told.get("model", "gpt2-124m"), *texts, *flags]


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
