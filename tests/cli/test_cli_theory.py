"""`course memory`, `step`, `flops` and `plan`: their answers are those of the theory."""

import contextlib
import functools
import io
import json
import re
import subprocess
import sys
from dataclasses import asdict, fields
from pathlib import Path

import pytest

from course_lib import cli, emitting
from course_lib.cli import inputs
from course_lib.theory import planner
from course_lib.theory.compute import budget, flops
from course_lib.theory.inputs import hardware, layout, models
from course_lib.theory.inputs.hardware import Cluster
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.recipe import RECIPES, Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.memory import peak
from course_lib.theory.memory.peak import gpu_memory, worst_stage
from course_lib.theory.step.assumptions import CAUTIOUS
from course_lib.theory.step.step_time import step_time

RECIPE = RECIPES["mixed-16"]
PLAN = "plan llama2-7b --batch 64 --nodes 2"
SEVENTY = "plan llama2-70b --nodes 32 --batch 256 --top 3"
NOTHING_FITS = "plan llama2-70b --batch 64 --rejected 2"
CONFIGURATIONS = Path(__file__).parents[1] / "theory" / "inputs" / "configurations"


@functools.cache
def _printed(line):
    """Exit code and what a command prints: many tests ask for the same plan."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        return cli.main(line.split()), said.getvalue()


@pytest.fixture
def text():
    """What a command prints; its exit code must be `code`."""

    def call(line, code=0):
        found, said = _printed(line)
        assert found == code
        return said

    return call


@pytest.fixture
def data(text):
    return lambda line, code=0: json.loads(text(f"{line} --json", code))


# --- as the theory says -----------------------------------------------------------------------


def test_memory_is_that_of_the_theory(data, text):
    asked = "memory llama3-70b --tp 8 --pp 4 --dp 2 --zero-stage 1 --sequence-parallel"
    asked += " --accumulation 16 --sequence 4096"
    spread = layout.Layout(dp=2, tp=8, pp=4, zero_stage=1, sequence_parallel=True, accumulation=16)
    job = Job(models.model("llama3-70b"), RECIPE, spread, sequence=4096)
    (stage, bill), printed = worst_stage(job), data(asked)
    assert printed["leaves"] == asdict(bill)
    assert printed["layout"] == json.loads(json.dumps(asdict(spread)))
    assert (printed["gpus"], printed["stage"], printed["sequence_tokens"]) == (64, stage, 4096)
    assert printed["totals"]["total_bytes"] == sum(printed["leaves"].values()) == bill.total_bytes
    assert text(f"{asked} --unit gib").endswith(f":\n{bill.explain('GiB')}\n")
    derived = peak.explain_memory(job, stage, unit="GB")
    assert text(f"{asked} --derive").endswith(f":\n{derived}\n")
    for name in peak.METERS:
        shown = peak.metered_bytes(bill, name, spread)
        assert data(f"{asked} --meter {name.upper()}")["totals"]["metered_bytes"] == shown
        line = f"\nmeter {name}: {format_bytes(shown)} at the peak\n"
        assert text(f"{asked} --meter {name}").endswith(line)
    lines = text("memory llama3-70b --tp 8 --pp 4").splitlines()
    assert lines[0].endswith("8,192 tokens, 32 GPUs (tp=8 pp=4 accumulation=4)")
    assert lines[1:3] == [
        "70,553,706,496 parameters",
        "each GPU of pipeline rank 0, the fullest:",
    ]
    assert text("memory llama3-8b").splitlines()[0].endswith("8,192 tokens, 1 GPU")


@pytest.mark.parametrize(
    ("schedule", "micro_batches"), [("1f1b", 4), ("zbv", 8), ("interleaved", 8), ("gpipe", 4)]
)
def test_memory_fills_the_pipeline_by_default(data, schedule, micro_batches):
    asked = f"memory llama3-8b --pp 4 --schedule {schedule}"
    asked += " --virtual-stages 4" * (schedule == "interleaved")
    filled, more = data(asked), data(f"{asked} --accumulation 64")
    assert filled["layout"]["accumulation"] == micro_batches
    assert more["layout"]["accumulation"] == 64
    # Only gpipe holds all micro-batches, however many there are.
    assert (filled["leaves"] == more["leaves"]) == (schedule != "gpipe")


def test_step_is_that_of_the_theory(data, text):
    asked = "step llama3-70b --tp 8 --pp 4 --accumulation 16"
    spread = layout.Layout(tp=8, pp=4, accumulation=16)
    cluster = Cluster(hardware.accelerator("H100-SXM"), 4)
    step, printed = step_time(Job(models.model("llama3-70b"), RECIPE, spread, cluster)), data(asked)
    assert printed["leaves"] == step.leaves()
    assert printed["totals"]["total_s"] == pytest.approx(step.total_s)
    assert printed["totals"]["tokens_per_s_per_gpu"] == pytest.approx(step.tokens_per_s_per_gpu)
    assert (printed["gpus"], printed["nodes"], printed["gpu"]) == (32, 4, "H100-SXM")
    lines = text(asked).splitlines()
    assert lines[0].endswith("8,192 tokens, 32 GPUs (tp=8 pp=4 accumulation=16) on H100-SXM")
    assert "\n".join(lines[2:]) == step.explain()


def test_flops_are_those_of_the_theory(data, text):
    asked = "flops llama3-8b --sequences 4 --sequence 2048 --mask causal --recompute full"
    shape, printed = models.model("llama3-8b"), data(f"{asked} --attention flash")
    expected = flops.training_flops(
        shape, 4, 2048, mask="causal", recompute="full", attention="flash"
    )
    assert printed["leaves"] == expected.leaves() and printed["tokens"] == 4 * 2048
    totals = {name: getattr(expected, name) for name in printed["totals"]}
    assert printed["totals"] == totals and len(totals) == 4
    assert printed["six_nd_flop"] == 6 * shape.parameters().active * 4 * 2048
    assert "training" not in printed
    shown = text("flops llama3-8b --sequence 2048")
    assert flops.training_flops(shape, 1, 2048).explain() in shown and "USD" not in shown
    assert re.search(r"6·N·D +98\.68 TFLOP with N = 8,030,261,248 active .* 1\.0\d\d times", shown)


def test_a_training_run_is_that_of_the_theory(data, text):
    asked = "flops llama3-8b --tokens 15T --gpus 1k --gpu h200-sxm --mfu 0.5 --gpu-hour-usd 3"
    run = data(asked)["training"]
    each = flops.training_flops(models.model("llama3-8b")).model_flop_per_token
    expected = budget.training_run(each * 15e12, 1000, 0.5 * 989.4e12, 3.0)
    for name in ("time_s", "days", "gpu_hours", "cost_usd", "gpus", "gpu_hour_usd"):
        assert run[name] == pytest.approx(getattr(expected, name))
    assert (run["gpu"], run["mfu"], run["tokens"]) == ("H200-SXM", 0.5, 15 * 10**12)
    printed = text(asked)
    assert expected.explain() in printed and "MFU 50.0% of H200-SXM's 989.4 TFLOP/s" in printed
    assert data(f"{asked} --recompute full")["training"] == run
    # 15.6 T tokens at 38 to 43 % MFU on 16,384 H100: arXiv:2407.21783, sections 3.2 and 3.3.2;
    # 30.84 M GPU-hours: the model card of Llama 3.1 405B.
    published = data("flops llama3-405b --tokens 15.6T --gpus 16384 --mfu 0.38")["training"]
    assert published["gpu_hours"] == pytest.approx(30.84e6, rel=0.05)


@pytest.fixture(scope="module")
def expected():
    cluster = Cluster(hardware.accelerator("H100-SXM"), 2)
    return planner.plan(models.model("llama2-7b"), RECIPE, cluster, 64)


def test_plan_is_that_of_the_theory(data, text, expected):
    printed = data(f"{PLAN} --top 4 --rejected 3")
    assert (printed["layouts"], printed["fitting"]) == (expected.layouts, expected.fitting)
    assert (printed["gpus"], printed["capacity_bytes"]) == (16, int(0.95 * int(79.18 * 2**30)))
    assert (printed["global_batch_sequences"], printed["sequence_tokens"]) == (64, 4096)
    for found, option in zip(printed["best"], expected.ranked(4), strict=True):
        assert option.as_dict().items() <= found.items()
        assert found["as_fast"] == option.as_fast
        assert sum(found["memory_leaves"].values()) == found["memory_bytes"]
        assert sum(found["step_leaves"].values()) == pytest.approx(found["step_s"])
        assert found["mfu"] == pytest.approx(expected.step(option).mfu)
    front, rejected = expected.pareto(), list(expected.rejected())[:3]
    assert printed["pareto"] == [option.as_dict() for option in front]
    assert printed["rejected"] == [{**one.as_dict(), "reason": why} for one, why in rejected]
    # The table, the fastest layout for three sizes of memory, and the reasons.
    shown = text(f"{PLAN} --top 3 --rejected 2")
    assert shown.startswith(f"llama2-7b on {expected.explain(3)}\n")
    half = (front[0].memory_bytes + front[-1].memory_bytes) / 2
    between = next(option for option in front if option.memory_bytes <= half)
    table = expected.table((front[0], between, front[-1]))
    assert f"(3 of {len(front)}):\n{table}\n" in shown
    option, why = rejected[0]
    assert f"{expected.table([option])}\n  {why}\n" in shown and shown.count(" needs ") == 2
    alone = text(f"{PLAN} --top 1 --rejected 0")
    assert f"(1 of {len(front)}):\n{expected.table(front[:1])}\n" in alone
    assert " needs " not in alone


def test_plan_names_what_is_near_the_top_under_both_assumptions(data, text):
    cluster = Cluster(hardware.accelerator("H100-SXM"), 32)
    found = planner.plan(models.model("llama2-70b"), RECIPE, cluster, 256)
    both = {"optimistic": found, "cautious": found.under(CAUTIOUS)}
    best, (first,) = planner.sturdy(tuple(both.values()), 3), planner.fastest((*both.values(),), 1)
    printed, shown = data(SEVENTY), text(SEVENTY)
    assert planner.explain_sturdy(both, 3) in shown
    # The usual assumptions' winner is slower than need be, if half of dp does not hide.
    assert f"The fastest layout above loses {first.regret:.1%}" in shown and first.regret > 0.1
    assert f"the first one here loses {best[0].regret:.1%}" in shown
    assert [one["regret"] for one in printed["sturdy"]] == [one.regret for one in best]
    times = {"optimistic": best[0].steps_s[0], "cautious": best[0].steps_s[1]}
    assert printed["sturdy"][0]["steps_s"] == pytest.approx(times)
    assert printed["assumptions"]["cautious"]["overlap"]["dp"] == 0.5
    near = text("plan llama3-8b --nodes 1 --batch 64 --sequence 4096")
    assert "The fastest layout above is within 0.0% of the best under either." in near


def test_a_plan_in_which_nothing_fits_exits_with_1(data, text):
    printed, table = data(NOTHING_FITS, code=1), text(NOTHING_FITS, code=1)
    assert printed["fitting"] == 0 == len(printed["best"]) == len(printed["pareto"])
    assert len(printed["rejected"]) == 2
    # The closest one is named once, the other one below.
    assert table.count(" needs ") == 2 and "Pareto" not in table


@pytest.mark.parametrize(
    "line",
    [SEVENTY, NOTHING_FITS, "plan deepseek-v3 --nodes 64 --batch 2048 --rejected 40"],
)
def test_a_plan_fits_100_columns(line):
    assert max(map(len, _printed(line)[1].splitlines())) <= 100


def test_a_plan_tries_one_recomputation_if_it_is_named(data):
    printed = data(f"{PLAN} --recompute full")
    assert {option["recompute"] for option in printed["best"]} == {"full"}
    assert printed["layouts"] == data(PLAN)["layouts"] / 2


def test_a_plan_has_the_network_that_is_given(data):
    network = "--inside-gb-per-s 100 --inside-latency-us 5 "
    network += "--between-gb-per-s 12.5 --between-latency-us 20"
    inside, between = hardware.Link("NVLink4", 100e9, 5e-6), hardware.Link("IB", 12.5e9, 20e-6)
    cluster = Cluster(hardware.accelerator("H100-SXM"), 2, inside=inside, between=between)
    best = planner.plan(models.model("llama2-7b"), RECIPE, cluster, 64).best(1)[0]
    found = data(f"{PLAN} {network}")["best"][0]
    assert found["step_s"] == pytest.approx(best.step_s, rel=1e-12)
    # A GPU whose data sheet names no network gets one, with a network's latency.
    alone = "plan gpt2-124m --batch 64 --gpu RTX4090 --nodes 2 --between-gb-per-s 3"
    assert data(alone)["best"] == data(f"{alone} --between-latency-us 9.6")["best"]


# --- the files of a plan ----------------------------------------------------------------------


@pytest.mark.parametrize("target", emitting.TARGETS)
def test_the_best_layout_is_printed_for_each_engine(target, text, expected):
    """The best that it can run: not every engine has ZeRO-2."""
    for number, option in enumerate(expected.ranked(100), start=1):
        job = expected.question.job(option.layout, option.recipe)
        with contextlib.suppress(ValueError):
            written = emitting.files(target, job, f"llama2-7b, layout {number} of its plan,")
            break
    printed = text(f"{PLAN} --emit {target.upper()} --layout {number}")
    titles = re.findall("^==> (.+) <==$", printed, re.MULTILINE)
    assert titles == (list(written) if len(written) > 1 else [])
    assert all(each in printed for each in written.values())
    # The table's own numbers.
    size, seconds = f"{option.memory_bytes / 1e9:.1f} GB", f"{option.step_s:.4g} s a step"
    where = "each GPU" if option.layout.pp == 1 else "pipeline rank 0, the fullest"
    assert f"# predicted: {size} on {where}; {seconds}\n" in printed


def test_another_layout_is_written_into_a_folder(text, data, expected, tmp_path):
    option, path = expected.ranked(7)[6], tmp_path / "new" / "megatron.sh"
    job = expected.question.job(option.layout, option.recipe)
    written = emitting.files("megatron", job, "llama2-7b, layout 7 of its plan,")
    asked = f"{PLAN} --emit megatron --layout 7 --to {tmp_path / 'new'}"
    assert text(asked) == f"wrote {path}\n"
    assert path.read_text(encoding="utf-8") == written["megatron.sh"]
    printed, plain = data(asked), data(PLAN)  # once more: the file holds this text already
    assert printed["files"] == written and printed["best"] == plain["best"]
    assert "files" not in plain


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--emit megatorn", "emit 'megatorn' is not one of slurm, trainjob"),
        ("--layout 2", "layout is about the files of a layout: add --emit slurm"),
        ("--emit slurm --layout 9999", "layout 9999 is not there, 7,176 of 8,360 layouts fit"),
        ("--emit deepspeed --layout 40", "take another layout or engine, such as --layout 1"),
        ("--emit slurm --to taken", "plan.sbatch is there already, with another text: move it"),
        ("--gpus-per-node 1 --nodes 1 --emit slurm", "take more nodes"),
    ],
)
def test_what_cannot_be_emitted_is_one_sentence(options, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "plan.sbatch").write_text("mine")
    for more in ("", " --json"):
        assert cli.main(f"{PLAN} {options}{more}".split()) == 2
        printed = capsys.readouterr()
        assert printed.out == "" and printed.err.startswith("course plan: ")
        assert words in printed.err and printed.err.count("\n") == 1
    assert (tmp_path / "taken" / "plan.sbatch").read_text() == "mine"


# --- the model --------------------------------------------------------------------------------


def test_sizes_are_those_of_the_theory_and_are_named(data, text):
    asked = "memory llama2-7b --layers 40 --hidden 5120 --heads 40 --ffn 13824"
    printed = data(asked)
    expected = gpu_memory(Job(models.model("llama2-13b"), RECIPE, layout.ALONE))
    assert printed["leaves"] == asdict(expected)
    assert printed["shape"] == asdict(models.model("llama2-13b"))
    title = "llama2-7b with layers 40, hidden 5120, heads 40, ffn 13824, sequences of 4,096 tokens"
    assert text(asked).startswith(title)


@pytest.mark.parametrize(
    ("sizes", "kv_heads"),
    [
        ("llama2-7b --heads 64", 64),  # it had as many as heads
        ("llama3-8b --heads 64", 8),
        ("llama2-7b --heads 64 --kv-heads 16", 16),
    ],
)
def test_key_value_heads_go_along_only_where_there_are_as_many_as_heads(data, sizes, kv_heads):
    assert data(f"memory {sizes}")["shape"]["kv_heads"] == kv_heads


@pytest.mark.parametrize(
    ("model", "line"),
    [
        ("llama3-8b", "8,030,261,248 parameters"),
        ("mixtral-8x7b", "46,702,792,704 parameters, 12,879,925,248 of them active"),
        ("Mixtral-8x7B-v0.1.json", "46,702,792,704 parameters, 12,879,925,248 of them active"),
        ("gpt2.json --tied-embeddings no", "163,037,184 parameters"),
    ],
)
def test_the_parameters_are_printed_all_and_active(text, data, model, line):
    path = str(CONFIGURATIONS / model) if ".json" in model else model
    for command in ("memory", "flops", "step"):
        asked = f"{command} {path} --sequence 512"
        assert line in text(asked).splitlines()
        found = data(asked)
        sizes = [f"{found[key]:,}" for key in ("parameters", "active_parameters")]
        assert line.split(" parameters")[0] == sizes[0] and sizes[1] in line


@pytest.mark.parametrize(
    ("command", "key"),
    [("memory", "leaves"), ("flops", "leaves"), ("plan --batch 8 --top 1", "best")],
)
def test_a_configuration_stands_for_the_model(data, command, key):
    path = CONFIGURATIONS / "Meta-Llama-3-8B.json"
    printed, preset = (
        data(f"{command} {name} --sequence 1024 --layers 4") for name in (path, "llama3-8b")
    )
    assert printed[key] == preset[key] and printed["shape"] == preset["shape"]
    assert printed["model"] == f"{path} (llama) with layers 4"


def test_a_folder_with_a_configuration_stands_for_the_model(data, text, tmp_path, monkeypatch):
    (tmp_path / "gemma").mkdir()
    content = (CONFIGURATIONS / "gemma-3-4b-pt.json").read_text(encoding="utf-8")
    (tmp_path / "gemma" / "config.json").write_text(content, encoding="utf-8")
    (tmp_path / "gpt2-124m").mkdir()
    monkeypatch.chdir(tmp_path)
    printed = data("flops gemma")
    assert printed["model"] == "gemma (gemma3_text)" and printed["shape"]["hidden"] == 2560
    parts = [part.split(":")[0] for part in printed["not_counted"]]
    assert parts == ["vision_config", "sliding_window 1024"]
    for command in ("memory gemma", "flops gemma", "plan gemma --batch 8"):
        shown = text(f"{command} --sequence 1024")
        assert "\nnot counted: vision_config: only" in f"\n{shown}"
    assert data("memory gpt2-124m")["model"] == "gpt2-124m"  # a preset wins over a folder


# --- all options ------------------------------------------------------------------------------

CLUSTER = (
    "--gpu A100-SXM-80GB|--gpus-per-node 4|--inside-gb-per-s 300|--inside-latency-us 3000"
    "|--between-gb-per-s 12.5|--between-latency-us 900|--framework megatron-deepspeed"
)
# A command, a key of its answer, and options that each change it, "|" between them.
CHANGES = {
    # One option of each kind for the model, its training and its layout: the others are fields.
    ("memory mixtral-8x7b --layers 4 --dp 4", "leaves"): "--layers 3|--mlp gelu|--biases yes"
    "|--recipe megatron-18|--optimizer sgd|--parameters fp32|--gradients fp32|--dropout yes"
    "|--framework torchtitan|--sequence 2048|--recompute full|--zero-stage 3|--tp 2"
    "|--sequence-parallel --tp 2",
    ("memory gpt2-124m --norm rmsnorm --framework thunder", "leaves"): "--compiled yes",
    ("memory llama3-8b --zero-stage 3 --dp 8 --pp 8", "leaves"): "--reduce update|--reshard no"
    "|--stage-layers 8,5,4,3,3,3,3,3|--stage 3",
    ("step mixtral-8x7b --sequence 4096 --dp 8 --tp 4 --pp 8", "leaves"): f"--tp 2|{CLUSTER}"
    "|--nodes 1 --gpus-per-node 256|--recompute full",
    ("flops llama3-8b", "leaves"): "--sequences 2|--recompute full|--attention flash",
    ("flops llama3-8b --tokens 15T --gpus 1k", "training"): "--mask causal|--tokens 1T|--gpus 2k"
    "|--gpu A100-SXM-80GB|--mfu 0.3|--gpu-hour-usd 4|--sequence 4096",
    (PLAN, "best"): "--nodes 4|--batch 128|--margin 0.7|--top 3|--recompute full"
    f"|--recipe megatron-18|{CLUSTER}",
}


def test_the_options_of_a_model_its_training_and_its_layout_are_fields():
    kinds = {TransformerShape: inputs._SHAPE, Recipe: inputs._RECIPE, layout.Layout: inputs._LAYOUT}
    for kind, options in kinds.items():
        assert set(options) <= {field.name for field in fields(kind)}


@pytest.mark.parametrize(
    ("line", "key", "change"),
    [(*asked, change) for asked, changes in CHANGES.items() for change in changes.split("|")],
)
def test_each_option_changes_the_answer(data, line, key, change):
    assert data(f"{line} {change}")[key] != data(line)[key]


def test_every_option_is_tried():
    form_of_an_answer = "--unit --derive --meter --rejected --emit --layout --to -h --help --json"
    fields_of_inputs = {*inputs._SHAPE, *inputs._RECIPE, *inputs._LAYOUT}
    tried = {*form_of_an_answer.split(), *(f"--{it.replace('_', '-')}" for it in fields_of_inputs)}
    tried |= set(re.findall(r"--[\w-]+", " ".join(CHANGES.values())))
    parsers = cli._parser()._subparsers._group_actions[0].choices
    for command in ("memory", "step", "flops", "plan"):
        options = {name for it in parsers[command]._actions for name in it.option_strings}
        assert options <= tried


# --- bad input, help --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("memory", "model is missing: give the path of a config.json"),
        ("memory no/such/config.json", "there is no such file: download the model's config.json"),
        ("plan meta-llama/Llama-3.1-8B --batch 64", "and give its path or its folder's"),
        ("step lama3-8b", "did you mean 'llama3-8b'"),
        ("memory llama3-8b --micro-batch nan", "micro_batch 'nan' is not a count"),
        ("memory llama3-8b --micro-batch 1.5", "micro_batch '1.5' is not a count"),
        ("memory llama3-8b --micro-batch ²", "micro_batch '²' is not a count"),
        ("memory llama3-8b --micro-batch 0", "micro_batch must be at least 1, got 0"),
        (f"memory llama3-8b --tp {'9' * 30}", "tp must be at most 1e+18, got 1e+30"),
        (f"memory llama3-8b --tp {'9' * 5000}", "is not a count"),
        (f"flops llama3-8b --gpus 8 --tokens {'9' * 400}t", "is not a count"),
        ("memory llama3-8b --biases maybe", "biases 'maybe' is not one of yes, no"),
        ("memory llama3-8b --unit TB", "unit 'TB' is not one of GB, GiB"),
        ("memory llama3-8b --meter top", "meter 'top' is not one of allocated, reserved, nvidia"),
        ("memory llama3-8b --stage last", "write worst, or a number from 0"),
        (f"memory llama3-8b --stage {'9' * 5000}", "is not a pipeline rank"),
        ("memory llama3-8b --sequence 4k", "write all digits"),
        (f"memory llama3-8b --sequence {'9' * 5000}", "is not a number of tokens"),
        ("memory llama3-8b --recipe mixed", "did you mean 'mixed-16'"),
        ("memory llama3-8b --parameters fp32 --master-copy yes", "set master_copy=False"),
        ("memory llama3-8b --gradients fp32 --gradient-buffer yes", "set gradient_buffer=False"),
        ("memory llama3-8b --framework torchtitn", "did you mean 'torchtitan'"),
        ("memory llama3-8b --compiled yes", "compiled changes what a framework does: add --fram"),
        ("step llama3-8b --pp 2 --stage-layers 16,x", "not numbers: write them like 5,6,6,5"),
        ("plan llama3-8b --batch 64 --inside-gb-per-s 0", "inside_gb_per_s must be above 0"),
        ("plan llama3-8b --batch 64 --inside-gb-per-s fast", "'fast' is not a number"),
        ("plan llama3-8b --batch 64 --between-latency-us -1", "must be at least 0"),
        ("plan llama3-8b --batch 64 --gpu L40S --between-latency-us 5", "add --between-gb-per-s"),
        ("plan llama3-8b", "batch is missing: add --batch"),
        ("plan llama3-8b --batch 999999999999", "batch must be at most 1e+09"),
        ("plan llama3-8b --batch 64 --top 1000000000", "top must be at most 10000"),
        ("plan llama3-8b --batch 64 --rejected 1000000000", "rejected must be at most 1000"),
        ("flops llama3-8b --tokens 15T", "add --gpus"),
        ("flops llama3-8b --mfu 0.3", "mfu is about a training run"),
        ("flops llama3-8b --tokens 1T --gpus 8 --mfu 0", "mfu must be above 0"),
        ("flops llama3-8b --tokens 1T --gpus 8 --mfu 40", "write 0.4 for 40 %"),
    ],
)
def test_bad_input_is_one_sentence_with_a_remedy(command, words, capsys):
    assert cli.main(command.split()) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"course {command.split()[0]}: ") and words in printed.err
    assert printed.err.count("\n") == 1 and ": " in printed.err.removeprefix("course ")


def test_names_and_counts_may_be_written_short_and_in_any_letters(data):
    assert data("memory LLaMA3-8B --recipe Mixed-16")["model"] == "llama3-8b"
    assert data("flops llama3-8b --sequences 2k")["tokens"] == 2000 * 8192
    # Seventeen digits, which a float would round.
    exact = data("flops llama3-8b --tokens 10000000000000001 --gpus 8")["training"]
    assert exact["tokens"] == 10_000_000_000_000_001


@pytest.mark.parametrize("command", ["memory", "plan"])
def test_help_of_a_command_loads_no_theory(command):
    code = (
        "import contextlib, sys\n"
        "from course_lib import cli\n"
        "with contextlib.suppress(SystemExit):\n"
        f"    cli.main(['{command}', '--help'])\n"
        "assert not [name for name in sys.modules if name.startswith('course_lib.theory.')]\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith(f"usage: course {command}")


def test_a_reader_that_has_enough_gets_no_traceback():
    command = [sys.executable, "-m", "course_lib", *PLAN.split(), "--top", "5000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
