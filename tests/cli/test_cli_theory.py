import json
import re
import subprocess
import sys
from dataclasses import asdict

import pytest

from course_lib import cli
from course_lib.theory import planner
from course_lib.theory.compute import budget, flops
from course_lib.theory.inputs import hardware, layout, models
from course_lib.theory.inputs.cluster import Cluster
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.recipe import RECIPES
from course_lib.theory.memory import report
from course_lib.theory.memory.peak import gpu_memory, worst_stage

MEMORY = ["memory", "llama3-8b"]
FLOPS = ["flops", "llama3-8b"]
RUN = [*FLOPS, "--tokens", "15T", "--gpus", "1k"]
PLAN = ["plan", "llama2-7b", "--batch", "64", "--nodes", "2"]


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
    derived = report.explain_memory(Job(shape, recipe, layout.ALONE), unit="GiB")
    assert text(*MEMORY, "--unit", "GiB", "--derive").endswith(f":\n{derived}\n")


def test_memory_names_the_layout_and_the_worst_stage(text):
    lines = text("memory", "llama3-70b", "--tp", "8", "--pp", "4").splitlines()
    assert "8,192 tokens, 32 GPUs (tp=8 pp=4 accumulation=4)" in lines[0]
    assert lines[1] == "each GPU of pipeline rank 0, the fullest:"
    assert text(*MEMORY).splitlines()[0].endswith("8,192 tokens, 1 GPU")


@pytest.mark.parametrize(
    ("schedule", "micro_batches"),
    [("1f1b", 4), ("zb1p", 4), ("naive", 4), ("dualpipe", 8), ("interleaved", 8), ("gpipe", 4)],
)
def test_memory_fills_the_pipeline_unless_told_otherwise(data, schedule, micro_batches):
    spread = ["--pp", "4", "--schedule", schedule]
    spread += ["--virtual-stages", "4"] * (schedule == "interleaved")
    filled, more = data(*MEMORY, *spread), data(*MEMORY, *spread, "--accumulation", "64")
    assert filled["layout"]["accumulation"] == micro_batches
    assert more["layout"]["accumulation"] == 64
    # Only gpipe holds all micro-batches, however many there are.
    assert (filled["leaves"] == more["leaves"]) == (schedule != "gpipe")


@pytest.mark.parametrize(
    "change",
    [
        "--recipe megatron-18",
        "--optimizer sgd",
        "--attention standard",
        "--recompute full",
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
    ],
)
def test_each_option_of_memory_changes_its_result(data, change):
    spread = ["--dp", "8", "--tp", "4", "--pp", "8", "--zero-stage", "1"]
    base = ["memory", "mixtral-8x7b", "--sequence", "4096", *spread]
    assert data(*base, *change.split())["leaves"] != data(*base)["leaves"]


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


@pytest.mark.parametrize(
    "change",
    [
        "--sequence 4096",
        "--mask causal",
        "--tokens 1T",
        "--gpus 2k",
        "--gpu A100-SXM-80GB",
        "--mfu 0.3",
        "--gpu-hour-usd 4",
    ],
)
def test_each_option_of_a_run_changes_its_result(data, change):
    assert data(*RUN, *change.split())["training"] != data(*RUN)["training"]


@pytest.mark.parametrize("change", ["--sequences 2", "--recompute full", "--attention flash"])
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
    assert (printed["gpus"], printed["capacity_bytes"]) == (16, 80 * 10**9)
    assert (printed["global_batch_sequences"], printed["sequence_tokens"]) == (64, 4096)
    for found, option in zip(printed["best"], expected.best(4), strict=True):
        assert option.as_dict().items() <= found.items()
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
        assert re.match(r"stage \d+ needs [\d.]+ GB of 80 GB: .+; try ", option["reason"])


def test_plan_prints_its_own_table_the_front_and_the_reasons(text, expected):
    printed = text(*PLAN, "--top", "3", "--rejected", "2")
    assert printed.startswith(f"llama2-7b on {expected.explain(3)}\n")
    front, rejected = expected.pareto(), next(expected.rejected())
    half = (front[0].memory_bytes + front[-1].memory_bytes) / 2
    between = next(option for option in front if option.memory_bytes <= half)
    shown = "\n".join(option.explain() for option in (front[0], between, front[-1]))
    assert f"(3 of {len(front)}):\n{shown}\n" in printed
    alone = text(*PLAN, "--top", "1")
    assert f"(1 of {len(front)}):\n{front[0].explain()}\n\n" in alone
    assert f"{rejected[0].explain()}\n  {rejected[1]}\n" in printed
    assert printed.count(" needs ") == 2
    assert " needs " not in text(*PLAN, "--rejected", "0")


def test_a_plan_in_which_nothing_fits_exits_with_1(data, text):
    argv = ["plan", "llama2-70b", "--batch", "64", "--rejected", "2"]
    printed = data(*argv, code=1)
    assert printed["fitting"] == 0 == len(printed["best"]) == len(printed["pareto"])
    assert len(printed["rejected"]) == 2
    table = text(*argv, code=1)
    # The closest one is named once, the other one below.
    assert table.count(" needs ") == 2 and "Pareto" not in table


@pytest.mark.parametrize(
    "change",
    [
        "--gpu A100-SXM-80GB",
        "--nodes 4",
        "--gpus-per-node 4",
        "--batch 128",
        "--sequence 2048",
        "--recipe fp32-16",
        "--optimizer sgd",
        "--attention standard",
        "--top 3",
    ],
)
def test_each_option_of_plan_changes_its_result(data, change):
    assert data(*PLAN, *change.split())["best"] != data(*PLAN)["best"]


# --- bad input, help --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("memory", "model is missing"),
        ("memory lama3-8b", "did you mean 'llama3-8b'"),
        ("flops lama3-8b", "did you mean 'llama3-8b'"),
        ("plan lama3-8b --batch 64", "did you mean 'llama3-8b'"),
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
    for name in ("memory", "flops", "plan"):
        assert re.search(rf"^    {name} +\w", printed, re.MULTILINE)


@pytest.mark.parametrize("command", ["memory", "flops", "plan"])
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
