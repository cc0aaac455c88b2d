"""`course memory`, `step`, `flops` and `plan`: their answers are those of the theory."""

import argparse
import contextlib
import json
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from course_lib import cli, emitting
from course_lib.theory import planner
from course_lib.theory.compute import budget, flops
from course_lib.theory.inputs import hardware, layout, models
from course_lib.theory.inputs.hardware import Cluster
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.recipe import RECIPES
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.memory import peak
from course_lib.theory.memory.peak import gpu_memory, worst_stage
from course_lib.theory.step.assumptions import CAUTIOUS
from course_lib.theory.step.step_time import step_time

MEMORY = ["memory", "llama3-8b"]
FLOPS = ["flops", "llama3-8b"]
RUN = [*FLOPS, "--tokens", "15T", "--gpus", "1k"]
PLAN = ["plan", "llama2-7b", "--batch", "64", "--nodes", "2"]
CONFIGURATIONS = Path(__file__).parents[1] / "theory" / "inputs" / "configurations"

# Sizes in place of the model's, each with what it needs besides.
SIZES = [
    ("", "--layers 3"),
    ("", "--hidden 8192"),
    ("", "--heads 64"),
    ("", "--kv-heads 16"),
    ("", "--head-dim 64"),
    ("", "--ffn 8192"),
    ("", "--vocab 64000"),
    ("", "--context 8192"),
    ("", "--experts 16"),
    ("", "--top-k 1"),
    ("", "--shared-experts 1"),
    ("--dense-layers 1", "--expert-ffn 4096"),
    ("", "--dense-layers 1"),
    ("", "--layer-norms 4"),
    ("", "--mlp gelu"),
    ("", "--norm layernorm"),
    ("", "--attention-biases qkv"),
    ("", "--qk-norm head"),
    ("", "--biases yes"),
    ("", "--learned-positions yes"),
    ("", "--tied-embeddings yes"),
    ("--shared-experts 1", "--shared-gate yes"),
]
TRAINING = [
    "--recipe megatron-18",
    "--optimizer sgd",
    "--attention standard",
    "--parameters fp32",
    "--gradients fp32",
    "--master-copy no",
    "--gradient-buffer yes",
    "--recompute full",
    "--compute fp32",
    "--framework torchtitan",
    "--dropout yes",
]
# Of a small model: in the bills of large ones other moments of an update need more.
HABITS = [
    ("--sequence 1024", "--gradient-life backward"),
    ("--sequence 1024", "--loss eager"),
    ("--sequence 16", "--update foreach"),
    ("--sequence 1024 --norm rmsnorm --framework thunder", "--compiled yes"),
]


@pytest.fixture
def data(capsys):
    """The JSON that a command prints, with its exit code."""

    def call(*argv, code=0):
        assert cli.main([*argv, "--json"]) == code
        return json.loads(capsys.readouterr().out)

    return call


@pytest.fixture
def text(capsys):
    def call(*argv, code=0):
        assert cli.main(list(argv)) == code
        return capsys.readouterr().out

    return call


# --- memory -----------------------------------------------------------------------------------


def test_memory_is_that_of_the_theory(data):
    layouts = ["--tp", "8", "--pp", "4", "--dp", "2", "--zero-stage", "1", "--sequence-parallel"]
    printed = data("memory", "llama3-70b", *layouts, "--accumulation", "16", "--sequence", "4096")
    spread = layout.Layout(dp=2, tp=8, pp=4, zero_stage=1, sequence_parallel=True, accumulation=16)
    shape = models.model("llama3-70b")
    stage, bill = worst_stage(Job(shape, RECIPES["mixed-16"], spread, sequence=4096))
    assert printed["leaves"] == asdict(bill)
    assert printed["layout"] == json.loads(json.dumps(asdict(spread)))
    assert (printed["gpus"], printed["stage"], printed["sequence_tokens"]) == (64, stage, 4096)
    assert printed["totals"]["total_bytes"] == sum(printed["leaves"].values()) == bill.total_bytes


def test_memory_of_model_states_is_the_papers(data):
    # ZeRO, arXiv:1910.02054, section 3.1: 16 bytes per parameter; 6.74 B of them (LLaMA-2).
    totals = data("memory", "llama2-7b")["totals"]
    assert totals["model_states_bytes"] == 16 * 6_738_415_616


def test_memory_prints_the_breakdowns_own_table(text):
    shape, recipe = models.model("llama3-8b"), RECIPES["mixed-16"]
    bill = gpu_memory(Job(shape, recipe, layout.ALONE))
    assert text(*MEMORY).endswith(f":\n{bill.explain()}\n")
    assert text(*MEMORY, "--unit", "gib").endswith(f":\n{bill.explain('GiB')}\n")
    derived = peak.explain_memory(Job(shape, recipe, layout.ALONE), unit="GiB")
    assert text(*MEMORY, "--unit", "GiB", "--derive").endswith(f":\n{derived}\n")


def test_memory_names_the_layout_and_the_worst_stage(text):
    lines = text("memory", "llama3-70b", "--tp", "8", "--pp", "4").splitlines()
    assert "8,192 tokens, 32 GPUs (tp=8 pp=4 accumulation=4)" in lines[0]
    assert lines[1] == "70,553,706,496 parameters"
    assert lines[2] == "each GPU of pipeline rank 0, the fullest:"
    assert text(*MEMORY).splitlines()[0].endswith("8,192 tokens, 1 GPU")


@pytest.mark.parametrize(
    ("schedule", "micro_batches"),
    [
        ("1f1b", 4),
        ("zb1p", 4),
        ("naive", 4),
        ("zbv", 8),
        ("dualpipe", 8),
        ("interleaved", 8),
        ("gpipe", 4),
    ],
)
def test_memory_fills_the_pipeline_unless_told_otherwise(data, schedule, micro_batches):
    spread = ["--pp", "4", "--schedule", schedule]
    spread += ["--virtual-stages", "4"] * (schedule == "interleaved")
    filled, more = data(*MEMORY, *spread), data(*MEMORY, *spread, "--accumulation", "64")
    assert filled["layout"]["accumulation"] == micro_batches
    assert more["layout"]["accumulation"] == 64
    # Only gpipe holds all micro-batches, however many there are.
    assert (filled["leaves"] == more["leaves"]) == (schedule != "gpipe")


MEMORY_CHANGES = [
    *TRAINING,
    "--micro-batch 2",
    "--sequence 2048",
    "--stage 3",
    "--accumulation 2",
    "--dp 4",
    "--tp 2",
    "--pp 4",
    "--cp 2",
    "--ep 4",
    "--zero-stage 3",
    "--sequence-parallel",
    "--schedule gpipe",
    "--schedule interleaved --virtual-stages 2",
    "--shard-group 4",
    "--zero-stage 3 --reshard no",
    "--zero-stage 3 --reduce update",
    "--stage-layers 8,5,4,3,3,3,3,3",
]


@pytest.mark.parametrize("change", MEMORY_CHANGES)
def test_each_option_of_memory_changes_its_result(data, change):
    spread = ["--dp", "8", "--tp", "4", "--pp", "8", "--zero-stage", "1"]
    base = ["memory", "mixtral-8x7b", "--sequence", "4096", *spread]
    assert data(*base, *change.split())["leaves"] != data(*base)["leaves"]


@pytest.mark.parametrize(("first", "change"), HABITS)
def test_each_habit_changes_memory_and_plan(data, first, change):
    base = ["memory", "gpt2-124m", *first.split()]
    assert data(*base, *change.split())["leaves"] != data(*base)["leaves"]
    base = ["plan", "gpt2-124m", "--batch", "8", "--nodes", "1", *first.split()]
    assert data(*base, *change.split())["best"] != data(*base)["best"]


def test_memory_by_each_meter_is_that_of_the_theory(data, text):
    spread = layout.Layout(dp=8, zero_stage=2, accumulation=1)
    bill = gpu_memory(Job(models.model("llama3-8b"), RECIPES["mixed-16"], spread))
    asked = [*MEMORY, "--dp", "8", "--zero-stage", "2"]
    for name in peak.METERS:
        shown = peak.metered_bytes(bill, name, spread)
        totals = data(*asked, "--meter", name.upper())["totals"]
        assert totals["metered_bytes"] == shown
        assert text(*asked, "--meter", name).endswith(
            f"\nmeter {name}: {format_bytes(shown)} at the peak\n"
        )
    assert "metered_bytes" not in data(*asked)["totals"]


# --- step -------------------------------------------------------------------------------------

STEP = ["step", "mixtral-8x7b", "--sequence", "4096", "--dp", "8", "--tp", "4", "--pp", "8"]
STEP += ["--zero-stage", "1"]


def test_step_is_that_of_the_theory(data, text):
    printed = data("step", "llama3-70b", "--tp", "8", "--pp", "4", "--accumulation", "16")
    spread = layout.Layout(tp=8, pp=4, accumulation=16)
    cluster = Cluster(hardware.accelerator("H100-SXM"), 4)
    shape = models.model("llama3-70b")
    step = step_time(Job(shape, RECIPES["mixed-16"], spread, cluster))
    assert printed["leaves"] == step.leaves()
    assert printed["totals"]["total_s"] == pytest.approx(step.total_s)
    assert printed["totals"]["tokens_per_s_per_gpu"] == pytest.approx(step.tokens_per_s_per_gpu)
    assert (printed["gpus"], printed["nodes"], printed["gpu"]) == (32, 4, "H100-SXM")
    asked = ["step", "llama3-70b", "--tp", "8", "--pp", "4", "--accumulation", "16"]
    lines = text(*asked).splitlines()
    assert lines[0].endswith("8,192 tokens, 32 GPUs (tp=8 pp=4 accumulation=16) on H100-SXM")
    assert "\n".join(lines[2:]) == step.explain()


STEP_CHANGES_OF_A_LAYOUT = [
    "--micro-batch 2",
    "--accumulation 2",
    "--dp 4",
    "--tp 2",
    "--pp 4",
    "--cp 2",
    "--ep 4",
    "--zero-stage 3",
    "--sequence-parallel",
    "--schedule zb1p",
    "--schedule interleaved --virtual-stages 2",
    "--shard-group 4",
    "--zero-stage 3 --accumulation 16 --reshard no",
    "--zero-stage 3 --reduce update",
    "--stage-layers 8,5,4,3,3,3,3,3",
    "--sequence 2048",
    "--framework megatron-deepspeed",
    "--recompute full",
    "--attention standard",
    "--gpu A100-SXM-80GB",
    "--gpus-per-node 4",
    "--nodes 1 --gpus-per-node 256",
    "--inside-gb-per-s 300",
    "--inside-latency-us 3000",
    "--between-gb-per-s 12.5",
    "--between-latency-us 900",
]


@pytest.mark.parametrize("change", STEP_CHANGES_OF_A_LAYOUT)
def test_each_option_of_a_step_in_a_layout_changes_its_time(data, change):
    assert data(*STEP, *change.split())["leaves"] != data(*STEP)["leaves"]


# --- flops ------------------------------------------------------------------------------------


def test_flops_are_those_of_the_theory(data):
    options = ["--sequences", "4", "--sequence", "2048", "--mask", "causal", "--recompute", "full"]
    printed = data(*FLOPS, *options, "--attention", "flash")
    shape = models.model("llama3-8b")
    expected = flops.training_flops(
        shape, 4, 2048, mask="causal", recompute="full", attention="flash"
    )
    assert printed["leaves"] == expected.leaves()
    assert printed["tokens"] == 4 * 2048
    totals = printed["totals"]
    assert totals["hardware_flop"] == sum(printed["leaves"].values()) == expected.hardware_flop
    assert totals["forward_flop"] + totals["backward_flop"] == totals["hardware_flop"]
    assert totals["model_flop"] == totals["hardware_flop"] - printed["leaves"]["recompute_flop"]
    assert printed["six_nd_flop"] == 6 * shape.parameters().active * 4 * 2048
    assert "training" not in printed


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
    name, *more = model.split()
    path = str(CONFIGURATIONS / name) if name.endswith(".json") else name
    for command in ("memory", "flops", "step"):
        assert line in text(command, path, *more, "--sequence", "512").splitlines()
        found = data(command, path, *more, "--sequence", "512")
        sizes = [f"{found[key]:,}" for key in ("parameters", "active_parameters")]
        assert line.split(" parameters")[0] == sizes[0] and sizes[1] in line


def test_flops_prints_the_breakdowns_own_table_and_6nd(text):
    printed = text(*FLOPS, "--sequence", "2048")
    expected = flops.training_flops(models.model("llama3-8b"), 1, 2048)
    assert expected.explain() in printed
    assert re.search(
        r"6·N·D +98\.68 TFLOP with N = 8,030,261,248 active .* 1\.0\d\d times", printed
    )
    assert "USD" not in printed


def test_a_training_run_is_that_of_the_theory(data, text):
    options = ["--gpu", "h200-sxm", "--mfu", "0.5", "--gpu-hour-usd", "3"]
    run = data(*RUN, *options)["training"]
    each = flops.training_flops(models.model("llama3-8b")).model_flop_per_token
    expected = budget.training_run(each * 15e12, 1000, 0.5 * 989.4e12, 3.0)
    numbers = ("time_s", "days", "gpu_hours", "cost_usd", "gpus", "gpu_hour_usd")
    assert {name: run[name] for name in numbers} == {
        name: pytest.approx(getattr(expected, name)) for name in numbers
    }
    assert (run["gpu"], run["mfu"], run["tokens"]) == ("H200-SXM", 0.5, 15 * 10**12)
    printed = text(*RUN, *options)
    assert expected.explain() in printed and "MFU 50.0% of H200-SXM's 989.4 TFLOP/s" in printed


def test_gpu_hours_of_llama3_405b_are_the_published_ones(data):
    # 15.6 T tokens at 38 to 43 % MFU on 16,384 H100: arXiv:2407.21783, sections 3.2 and 3.3.2;
    # 30.84 M GPU-hours: the model card of Llama 3.1 405B.
    argv = ["flops", "llama3-405b", "--tokens", "15.6T", "--gpus", "16384", "--mfu", "0.38"]
    assert data(*argv)["training"]["gpu_hours"] == pytest.approx(30.84e6, rel=0.05)


def test_recomputation_does_not_change_a_run_at_a_given_mfu(data):
    again = data(*RUN, "--recompute", "full")["training"]
    assert again == data(*RUN)["training"]


RUN_CHANGES = [
    "--sequence 4096",
    "--mask causal",
    "--tokens 1T",
    "--gpus 2k",
    "--gpu A100-SXM-80GB",
    "--mfu 0.3",
    "--gpu-hour-usd 4",
]


@pytest.mark.parametrize("change", RUN_CHANGES)
def test_each_option_of_a_run_changes_its_result(data, change):
    assert data(*RUN, *change.split())["training"] != data(*RUN)["training"]


STEP_CHANGES = ["--sequences 2", "--recompute full", "--attention flash"]


@pytest.mark.parametrize("change", STEP_CHANGES)
def test_each_option_of_a_step_changes_its_result(data, change):
    assert data(*FLOPS, *change.split())["leaves"] != data(*FLOPS)["leaves"]


# --- plan -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def expected():
    cluster = Cluster(hardware.accelerator("H100-SXM"), 2)
    return planner.plan(models.model("llama2-7b"), RECIPES["mixed-16"], cluster, 64)


def test_plan_is_that_of_the_theory(data, expected):
    printed = data(*PLAN, "--top", "4", "--rejected", "3")
    assert (printed["layouts"], printed["fitting"]) == (expected.layouts, expected.fitting)
    assert (printed["gpus"], printed["capacity_bytes"]) == (16, int(0.95 * int(79.18 * 2**30)))
    assert (printed["global_batch_sequences"], printed["sequence_tokens"]) == (64, 4096)
    for found, option in zip(printed["best"], expected.ranked(4), strict=True):
        assert option.as_dict().items() <= found.items()
        assert found["as_fast"] == option.as_fast
        assert sum(found["memory_leaves"].values()) == found["memory_bytes"]
        assert sum(found["step_leaves"].values()) == pytest.approx(found["step_s"])
        assert found["mfu"] == pytest.approx(expected.step(option).mfu)
    assert printed["pareto"] == [option.as_dict() for option in expected.pareto()]
    assert len(printed["rejected"]) == 3


def test_plan_ranks_what_fits_and_gives_reasons_for_the_rest(data):
    printed = data(*PLAN)
    assert len(printed["best"]) == 10 and len(printed["rejected"]) == 5
    times = [option["step_s"] for option in printed["best"]]
    assert times == sorted(times)
    for option in printed["best"] + printed["pareto"] + printed["rejected"]:
        assert option["tp"] * option["pp"] * option["cp"] * option["dp"] == 16
        assert option["micro_batch"] * option["accumulation"] * option["dp"] == 64
        assert (option["memory_bytes"] > printed["capacity_bytes"]) == ("reason" in option)
    front = [(option["step_s"], option["memory_bytes"]) for option in printed["pareto"]]
    assert front == sorted(front) and len({size for _, size in front}) == len(front)
    assert [size for _, size in front] == sorted((size for _, size in front), reverse=True)
    for option in printed["rejected"]:
        assert re.match(r"stage \d+ needs [\d.]+ GB of 80\.(8|7679) GB: .+; try ", option["reason"])


def test_plan_prints_its_own_table_the_front_and_the_reasons(text, expected):
    printed = text(*PLAN, "--top", "3", "--rejected", "2")
    assert printed.startswith(f"llama2-7b on {expected.explain(3)}\n")
    front, rejected = expected.pareto(), next(expected.rejected())
    half = (front[0].memory_bytes + front[-1].memory_bytes) / 2
    between = next(option for option in front if option.memory_bytes <= half)
    shown = expected.table((front[0], between, front[-1]))
    assert f"(3 of {len(front)}):\n{shown}\n" in printed
    alone = text(*PLAN, "--top", "1")
    assert f"(1 of {len(front)}):\n{expected.table(front[:1])}\n\n" in alone
    assert f"{expected.table(rejected[:1])}\n  {rejected[1]}\n" in printed
    assert printed.count(" needs ") == 2
    assert " needs " not in text(*PLAN, "--rejected", "0")


@pytest.fixture(scope="module")
def seventy():
    cluster = Cluster(hardware.accelerator("H100-SXM"), 32)
    found = planner.plan(models.model("llama2-70b"), RECIPES["mixed-16"], cluster, 256)
    return {"optimistic": found, "cautious": found.under(CAUTIOUS)}


SEVENTY = ["plan", "llama2-70b", "--nodes", "32", "--batch", "256", "--top", "3"]


def test_plan_names_what_is_near_the_top_under_both_assumptions(data, text, seventy):
    best = planner.sturdy(tuple(seventy.values()), 3)
    printed = text(*SEVENTY)
    assert planner.explain_sturdy(seventy, 3) in printed
    assert "cautious: hidden at most: tp 0%, cp 0%, ep 0%, dp 50%, pp 0%\n" in printed
    # The usual assumptions' winner is slower than need be, if half of dp does not hide.
    (first,) = planner.fastest(tuple(seventy.values()), 1)
    assert f"The fastest layout above loses {first.regret:.1%}" in printed and first.regret > 0.1
    assert f"the first one here loses {best[0].regret:.1%}" in printed
    found = data(*SEVENTY)
    assert [one["regret"] for one in found["sturdy"]] == [one.regret for one in best]
    times = {"optimistic": best[0].steps_s[0], "cautious": best[0].steps_s[1]}
    assert found["sturdy"][0]["steps_s"] == pytest.approx(times)
    assert found["assumptions"]["cautious"]["overlap"]["dp"] == 0.5


def test_plan_says_so_where_the_fastest_is_near_the_top_anyway(text):
    printed = text("plan", "llama3-8b", "--nodes", "1", "--batch", "64", "--sequence", "4096")
    assert "The fastest layout above is within 0.0% of the best under either." in printed


@pytest.mark.parametrize(
    "argv",
    [
        SEVENTY,
        ["plan", "llama2-70b", "--batch", "64"],
        ["plan", "deepseek-v3", "--nodes", "64", "--batch", "2048", "--rejected", "40"],
    ],
)
def test_a_plan_fits_100_columns(argv, capsys):
    cli.main(argv)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 100


def test_a_plan_in_which_nothing_fits_exits_with_1(data, text):
    argv = ["plan", "llama2-70b", "--batch", "64", "--rejected", "2"]
    printed = data(*argv, code=1)
    assert printed["fitting"] == 0 == len(printed["best"]) == len(printed["pareto"])
    assert len(printed["rejected"]) == 2
    table = text(*argv, code=1)
    # The closest one is named once, the other one below.
    assert table.count(" needs ") == 2 and "Pareto" not in table


PLAN_CHANGES = [
    *TRAINING,
    "--gpu A100-SXM-80GB",
    "--nodes 4",
    "--gpus-per-node 4",
    "--inside-gb-per-s 300",
    "--inside-latency-us 3000",
    "--between-gb-per-s 12.5",
    "--between-latency-us 900",
    "--batch 128",
    "--sequence 2048",
    "--margin 0.7",
    "--top 3",
]


@pytest.mark.parametrize("change", PLAN_CHANGES)
def test_each_option_of_plan_changes_its_result(data, change):
    assert data(*PLAN, *change.split())["best"] != data(*PLAN)["best"]


def test_a_plan_tries_one_recomputation_if_it_is_named(data):
    every = data(*PLAN)["layouts"]
    for kind in ("none", "full"):
        printed = data(*PLAN, "--recompute", kind)
        assert {option["recompute"] for option in printed["best"]} == {kind}
        assert printed["layouts"] == every / 2


def test_a_plan_has_the_network_that_is_given(data, text):
    network = ["--inside-gb-per-s", "100", "--inside-latency-us", "5"]
    network += ["--between-gb-per-s", "12.5", "--between-latency-us", "20"]
    inside, between = hardware.Link("NVLink4", 100e9, 5e-6), hardware.Link("IB", 12.5e9, 20e-6)
    cluster = Cluster(hardware.accelerator("H100-SXM"), 2, inside=inside, between=between)
    expected = planner.plan(models.model("llama2-7b"), RECIPES["mixed-16"], cluster, 64).best(1)[0]
    assert data(*PLAN, *network)["best"][0]["step_s"] == pytest.approx(expected.step_s, rel=1e-12)
    # A GPU whose data sheet names no network gets one, with a network's latency.
    alone = ["plan", "gpt2-124m", "--batch", "64", "--gpu", "RTX4090", "--nodes", "2"]
    one = data(*alone, "--between-gb-per-s", "3")["best"]
    assert one == data(*alone, "--between-gb-per-s", "3", "--between-latency-us", "9.6")["best"]


# --- the files of a plan ----------------------------------------------------------------------

EMIT = [*PLAN, "--emit"]


@pytest.mark.parametrize("target", emitting.TARGETS)
def test_the_best_layout_is_printed_for_each_engine(target, text, expected):
    """The best that it can run: not every engine has ZeRO-2."""
    for number, option in enumerate(expected.ranked(100), start=1):
        job = expected.question.job(option.layout, option.recipe)
        with contextlib.suppress(ValueError):
            written = emitting.files(target, job, f"llama2-7b, layout {number} of its plan,")
            break
    printed = text(*EMIT, target.upper(), "--layout", str(number))
    titles = re.findall("^==> (.+) <==$", printed, re.MULTILINE)
    assert titles == (list(written) if len(written) > 1 else [])
    assert all(each in printed for each in written.values())
    # The table's own numbers.
    size, seconds = f"{option.memory_bytes / 1e9:.1f} GB", f"{option.step_s:.4g} s a step"
    where = "each GPU" if option.layout.pp == 1 else "pipeline rank 0, the fullest"
    assert f"# predicted: {size} on {where}; {seconds}\n" in printed


def test_another_layout_is_written_into_a_folder(text, data, expected, tmp_path):
    option = expected.ranked(7)[6]
    job = expected.question.job(option.layout, option.recipe)
    written = emitting.files("megatron", job, "llama2-7b, layout 7 of its plan,")
    argv = [*EMIT, "megatron", "--layout", "7", "--to", str(tmp_path / "new")]
    assert text(*argv) == f"wrote {tmp_path / 'new' / 'megatron.sh'}\n"
    assert (tmp_path / "new" / "megatron.sh").read_text(encoding="utf-8") == written["megatron.sh"]
    printed = data(*argv)  # once more: the file holds this text already
    assert printed["files"] == written and printed["best"] == data(*PLAN)["best"]
    assert "files" not in data(*PLAN)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--emit megatorn", "emit 'megatorn' is not one of slurm, trainjob"),
        ("--layout 2", "layout is about the files of a layout: add --emit slurm"),
        ("--to x", "to is about the files of a layout: add --emit slurm"),
        ("--emit slurm --layout 0", "layout must be at least 1"),
        ("--emit slurm --layout 9999", "layout 9999 is not there, 7,176 of 8,360 layouts fit"),
        ("--emit slurm --layout x", "layout 'x' is not a count"),
        ("--emit deepspeed --layout 40", "take another layout or engine, such as --layout 1"),
        ("--emit slurm --to setup.cfg", "setup.cfg cannot be written (File exists)"),
        ("--emit slurm --to taken", "plan.sbatch is there already, with another text: move it"),
    ],
)
def test_what_cannot_be_emitted_is_one_sentence(options, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "setup.cfg").write_text("")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "plan.sbatch").write_text("mine")
    for more in ([], ["--json"]):
        assert cli.main([*PLAN, *options.split(), *more]) == 2
        printed = capsys.readouterr()
        assert printed.out == "" and printed.err.startswith("course plan: ")
        assert words in printed.err and printed.err.count("\n") == 1
    assert (tmp_path / "taken" / "plan.sbatch").read_text() == "mine"


def test_nothing_is_emitted_where_nothing_fits(capsys):
    assert cli.main(["plan", "llama2-70b", "--batch", "64", "--emit", "slurm"]) == 2
    assert "0 of" in (said := capsys.readouterr().err) and "take more nodes" in said


# --- the model's sizes ------------------------------------------------------------------------

SMALL_MIXTURE = ["mixtral-8x7b", "--layers", "4"]


@pytest.mark.parametrize(("besides", "change"), SIZES)
@pytest.mark.parametrize(
    ("command", "keys"),
    [
        ("memory", ["leaves"]),
        ("flops", ["leaves", "six_nd_flop"]),
        ("plan --batch 8 --top 1 --rejected 0", ["best"]),
    ],
)
def test_each_size_of_the_model_changes_each_result(data, command, keys, besides, change):
    name, *options = command.split()
    base = [name, *SMALL_MIXTURE, *options, *besides.split()]
    changed, before = data(*base, *change.split()), data(*base)
    assert [changed[key] for key in keys] != [before[key] for key in keys]


def test_sizes_are_those_of_the_theory_and_are_named(data, text):
    sizes = ["--layers", "40", "--hidden", "5120", "--heads", "40", "--ffn", "13824"]
    printed = data("memory", "llama2-7b", *sizes)
    expected = gpu_memory(Job(models.model("llama2-13b"), RECIPES["mixed-16"], layout.ALONE))
    assert printed["leaves"] == asdict(expected)
    assert printed["shape"] == asdict(models.model("llama2-13b"))  # kv_heads went along
    title = "llama2-7b with layers 40, hidden 5120, heads 40, ffn 13824, sequences of 4,096 tokens"
    assert text("memory", "llama2-7b", *sizes).startswith(title)


def test_key_value_heads_go_along_only_where_there_are_as_many_as_heads(data):
    def kv_heads(*argv):
        return data("memory", *argv)["shape"]["kv_heads"]

    assert kv_heads("llama2-7b", "--heads", "64") == 64
    assert kv_heads("llama3-8b", "--heads", "64") == 8
    assert kv_heads("llama2-7b", "--heads", "64", "--kv-heads", "16") == 16


# --- a configuration --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "key"),
    [("memory", "leaves"), ("flops", "leaves"), ("plan --batch 8 --top 1", "best")],
)
def test_a_configuration_stands_for_the_model(data, command, key):
    name, *options = command.split()
    sizes = ["--sequence", "1024", "--layers", "4"]
    path = CONFIGURATIONS / "Meta-Llama-3-8B.json"
    printed, preset = (data(name, it, *options, *sizes) for it in (str(path), "llama3-8b"))
    assert printed[key] == preset[key] and printed["shape"] == preset["shape"]
    assert printed["model"] == f"{path} (llama) with layers 4"


def test_a_folder_with_a_configuration_stands_for_the_model(data, text, tmp_path, monkeypatch):
    content = (CONFIGURATIONS / "gemma-3-4b-pt.json").read_text(encoding="utf-8")
    folder = tmp_path / "gemma"
    folder.mkdir()
    (folder / "config.json").write_text(content, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    printed = data("flops", "gemma")
    assert printed["model"] == "gemma (gemma3_text)" and printed["shape"]["hidden"] == 2560
    assert [part.split(":")[0] for part in printed["not_counted"]] == [
        "vision_config",
        "sliding_window 1024",
    ]
    for command in (["memory", "gemma"], ["flops", "gemma"], ["plan", "gemma", "--batch", "8"]):
        shown = text(*command, "--sequence", "1024")
        assert "\nnot counted: vision_config: only" in f"\n{shown}"
    assert "not counted" not in text(*MEMORY)


def test_a_preset_wins_over_a_folder_of_its_name(data, tmp_path, monkeypatch):
    (tmp_path / "gpt2-124m").mkdir()
    monkeypatch.chdir(tmp_path)
    assert data("memory", "gpt2-124m")["model"] == "gpt2-124m"


# --- all options ------------------------------------------------------------------------------

SHOWN = {  # what only the form of an answer depends on is tested above, each by its name
    "memory": {"--unit", "--derive", "--meter"},
    "step": {*re.findall(r"--[\w-]+", " ".join(TRAINING))},
    "flops": set(),
    "plan": {"--rejected", "--emit", "--layout", "--to"},
}


@pytest.mark.parametrize(
    ("command", "changes"),
    [
        ("memory", MEMORY_CHANGES),
        ("step", [*STEP_CHANGES_OF_A_LAYOUT, *TRAINING]),
        ("flops", [*RUN_CHANGES, *STEP_CHANGES]),
        ("plan", PLAN_CHANGES),
    ],
)
def test_every_option_is_tried(command, changes):
    parser = cli._parser()
    (commands,) = (it for it in parser._actions if isinstance(it, argparse._SubParsersAction))
    options = {name for it in commands.choices[command]._actions for name in it.option_strings}
    habits = HABITS if command in ("memory", "step", "plan") else []
    changes = [*changes, *(change for _, change in [*SIZES, *habits])]
    tried = re.findall(r"--[\w-]+", " ".join(changes))
    assert options - {"-h", "--help", "--json"} == {*tried, *SHOWN[command]}


# --- bad input, help --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("memory", "model is missing"),
        ("memory", "give the path of a config.json"),
        ("memory no/such/config.json", "there is no such file: download the model's config.json"),
        ("flops config.json", "'config.json': there is no such file"),
        ("plan meta-llama/Llama-3.1-8B --batch 64", "and give its path or its folder's"),
        ("memory llama3-8b --layers x", "layers 'x' is not a count"),
        ("memory llama3-8b --layers 0", "layers must be at least 1, got 0"),
        ("flops llama3-8b --heads 33", "hidden 4096 is not divisible by heads 33"),
        ("flops llama3-8b --top-k 2", "top_k 2 is used only with experts"),
        ("plan llama3-8b --batch 64 --norm rms", "did you mean 'rmsnorm'"),
        ("memory llama3-8b --biases maybe", "biases 'maybe' is not one of yes, no"),
        ("memory llama3-8b --qk-norm heads", "did you mean 'head'"),
        ("memory llama3-8b --parameters fp8", "parameters 'fp8' is not one of fp32, bf16, fp16"),
        ("memory llama3-8b --parameters fp32 --master-copy yes", "set master_copy=False"),
        ("memory llama3-8b --gradients fp32 --gradient-buffer yes", "set gradient_buffer=False"),
        ("plan llama3-8b --batch 64 --master-copy 1", "master_copy '1' is not one of yes, no"),
        ("plan llama3-8b --batch 64 --recompute ful", "did you mean 'full'"),
        ("plan llama3-8b --batch 64 --margin 1", "margin must be at most 0.9"),
        ("plan llama3-8b --batch 64 --inside-gb-per-s 0", "inside_gb_per_s must be above 0"),
        ("plan llama3-8b --batch 64 --inside-gb-per-s fast", "'fast' is not a number"),
        ("plan llama3-8b --batch 64 --between-gb-per-s inf", "between_gb_per_s must be finite"),
        ("plan llama3-8b --batch 64 --between-gb-per-s 1e9", "must be at most 1e+06"),
        ("plan llama3-8b --batch 64 --between-latency-us -1", "must be at least 0"),
        ("plan llama3-8b --batch 64 --gpu L40S --between-latency-us 5", "add --between-gb-per-s"),
        ("memory lama3-8b", "did you mean 'llama3-8b'"),
        ("flops lama3-8b", "did you mean 'llama3-8b'"),
        ("plan lama3-8b --batch 64", "did you mean 'llama3-8b'"),
        ("memory llama3-8b --framework torchtitn", "did you mean 'torchtitan'"),
        ("memory llama3-8b --meter top", "meter 'top' is not one of allocated, reserved, nvidia"),
        ("memory llama3-8b --compiled yes", "compiled changes what a framework does: add --fram"),
        ("plan llama3-8b --batch 64 --framework fsdp", "framework 'fsdp' is not one of torchtit"),
        ("step llama3-8b --framework thunder --compiled 1", "compiled '1' is not one of yes, no"),
        ("step llama3-8b --pp 2 --stage-layers 16,15", "stage_layers (16, 15) sum to 31"),
        ("step llama3-8b --pp 2 --stage-layers 16,x", "not numbers: write them like 5,6,6,5"),
        ("step llama3-8b --dp 16 --nodes 1", "16"),
        ("step llama3-8b --gpus-per-node 0", "gpus_per_node must be at least 1"),
        ("step llama3-8b --gpu RTX4090 --dp 16", "no link between them"),
        ("step lama3-8b", "did you mean 'llama3-8b'"),
        ("memory llama3-70b --tp 3", "heads 64 is not divisible by tp 3"),
        ("memory gpt2-124m --pp 24", "take at most 12, the model's layers"),
        ("memory mixtral-8x7b --dp 16 --ep 16", "experts 8 is not divisible by ep 16"),
        ("memory mixtral-8x7b --dp 8 --ep 3", "dp*cp 8 is not divisible by ep 3"),
        ("memory llama3-8b --dp 8 --ep 8", "no experts to spread"),
        ("memory llama3-8b --micro-batch nan", "micro_batch 'nan' is not a count"),
        ("memory llama3-8b --micro-batch 1.5", "micro_batch '1.5' is not a count"),
        ("memory llama3-8b --micro-batch -1", "micro_batch '-1' is not a count"),
        ("memory llama3-8b --micro-batch 0", "micro_batch must be at least 1, got 0"),
        ("memory llama3-8b --micro-batch ²", "micro_batch '²' is not a count"),
        ("memory llama3-8b --micro-batch 99999999999999999999", "micro_batch must be at most"),
        ("memory llama3-8b --sequence 4k", "write all digits"),
        ("memory gpt2-124m --sequence 4096", "take at most 1024"),
        ("memory llama3-8b --sequence 4096 --cp 3", "sequence 4096 is not divisible by cp 3"),
        ("memory llama3-8b --stage last", "write worst, or a number from 0"),
        ("memory llama3-8b --pp 4 --stage 4", "stage must be at most 3"),
        ("memory llama3-8b --unit TB", "unit 'TB' is not one of GB, GiB"),
        ("memory llama3-8b --recipe mixed", "did you mean 'mixed-16'"),
        ("memory llama3-8b --optimizer adam", "did you mean 'adamw'"),
        ("memory llama3-8b --recompute ful", "did you mean 'full'"),
        ("memory llama3-8b --pp 4 --schedule 1f2b", "did you mean '1f1b'"),
        ("memory llama3-8b --pp 4 --schedule interleaved", "interleaved needs 2 or more"),
        ("memory llama3-8b --zero-stage 4", "zero_stage must be at most 3"),
        ("flops llama3-8b --mask triangle", "mask 'triangle' is not one of full, causal"),
        ("flops llama3-8b --tokens 15T", "add --gpus"),
        ("flops llama3-8b --gpus 8", "gpus is about a training run"),
        ("flops llama3-8b --mfu 0.3", "mfu is about a training run"),
        ("flops llama3-8b --tokens many --gpus 8", "tokens 'many' is not a count"),
        ("flops llama3-8b --tokens 1T --gpus 0", "gpus must be at least 1"),
        ("flops llama3-8b --tokens 1T --gpus 8 --mfu nan", "mfu must be finite, got nan"),
        ("flops llama3-8b --tokens 1T --gpus 8 --mfu inf", "mfu must be finite, got inf"),
        ("flops llama3-8b --tokens 1T --gpus 8 --mfu 0", "mfu must be above 0"),
        ("flops llama3-8b --tokens 1T --gpus 8 --mfu 40", "write 0.4 for 40 %"),
        ("flops llama3-8b --tokens 1T --gpus 8 --mfu x", "mfu 'x' is not a number"),
        ("flops llama3-8b --tokens 1T --gpus 8 --gpu-hour-usd inf", "gpu_hour_usd must be finite"),
        ("flops llama3-8b --tokens 1T --gpus 8 --gpu H100", "did you mean 'H100-SXM'"),
        ("plan llama3-8b", "add --batch"),
        ("plan llama3-8b --batch inf", "batch 'inf' is not a count"),
        ("plan llama3-8b --batch 999999999999", "batch must be at most 1e+09"),
        ("plan llama3-8b --batch 64 --nodes 99999999", "nodes must be at most 1e+06"),
        ("plan llama3-8b --batch 64 --gpu H1000", "did you mean 'H100-SXM'"),
        ("plan llama3-8b --batch 64 --gpu RTX4090 --nodes 2", "no link between them"),
        (f"memory llama3-8b --tp {'9' * 30}", "tp must be at most 1e+18, got 1e+30"),
        (f"memory llama3-8b --tp {'9' * 5000}", "is not a count"),
        (f"memory llama3-8b --stage {'9' * 5000}", "is not a pipeline rank"),
        (f"memory llama3-8b --sequence {'9' * 5000}", "is not a number of tokens"),
        ("memory llama3-8b --pp 1000000000", "pp must be at most 1024"),
        (f"flops llama3-8b --gpus 8 --tokens {'9' * 400}t", "is not a count"),
        ("plan llama3-8b --batch 64 --top 1000000000", "top must be at most 10000"),
        ("plan llama3-8b --batch 64 --rejected 1000000000", "rejected must be at most 1000"),
        ("plan llama3-8b --batch 64 --nodes 999999", "nodes*gpus_per_node must be at most"),
        ("plan llama3-8b --batch 64 --top 0", "top must be at least 1"),
        ("plan llama3-405b --batch 8 --gpu RTX4090 --gpus-per-node 1", "too small for one layer"),
        ("plan llama3-8b --batch 7 --sequence 5 --nodes 11", "cannot be shared out"),
    ],
)
def test_bad_input_is_one_sentence_with_a_remedy(command, words, capsys):
    assert cli.main(command.split()) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"course {command.split()[0]}: ") and words in printed.err
    assert printed.err.count("\n") == 1 and ": " in printed.err.removeprefix("course ")


def test_names_may_be_written_in_any_letters(data):
    assert data("memory", "LLaMA3-8B", "--recipe", "Mixed-16")["model"] == "llama3-8b"


def test_counts_may_be_written_short(data):
    assert data(*FLOPS, "--sequences", "2k")["tokens"] == 2000 * 8192
    # Seventeen digits, which a float would round.
    exact = data(*FLOPS, "--tokens", "10000000000000001", "--gpus", "8")["training"]
    assert exact["tokens"] == 10_000_000_000_000_001


def test_help_lists_the_commands(capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--help"])
    printed = capsys.readouterr().out
    for name in ("memory", "step", "flops", "plan"):
        assert re.search(rf"^    {name} +\w", printed, re.MULTILINE)


@pytest.mark.parametrize("command", ["memory", "step", "flops", "plan"])
def test_help_of_each_command_loads_no_theory(command):
    code = (
        "import contextlib, sys\n"
        "from course_lib import cli\n"
        "with contextlib.suppress(SystemExit):\n"
        f"    cli.main(['{command}', '--help'])\n"
        "assert not [name for name in sys.modules if name.startswith('course_lib.theory.')]\n"
        "assert 'numpy' not in sys.modules\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith(f"usage: course {command}")


def test_a_reader_that_has_enough_gets_no_traceback():
    command = [sys.executable, "-m", "course_lib", *PLAN, "--top", "5000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
