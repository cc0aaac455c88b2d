"""Published parameter counts, FLOPs, peaks, utilisations, times and costs, case by case."""

import json
from pathlib import Path

import pytest
from every import every

from course_lib.theory.compute import budget, flops
from course_lib.theory.inputs import hardware
from course_lib.theory.inputs.hardware import Accelerator, Link
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.shape import TransformerShape

PUBLISHED = Path(__file__).parent / "published"
PARTS = ("params", "flops", "hardware", "mfu", "time", "cost", "roofline")
CASES = [
    case
    for part in PARTS
    for case in json.loads((PUBLISHED / f"{part}.json").read_text(encoding="utf-8"))
]


def shape_of(inputs):
    """The shape that a case describes; Narayanan's formula has no heads and a GPT's MLP."""
    if "preset" in inputs:
        return MODELS[inputs["preset"]]
    arch, hidden = inputs.get("arch", "gpt2"), inputs["hidden"]
    sizes = {name: inputs[name] for name in ("layers", "hidden", "vocab")}
    sizes["heads"] = inputs.get("heads", 1)
    sizes["ffn"] = inputs.get("ffn", inputs.get("expert_ffn", 4 * hidden))
    sizes["context"] = inputs.get("context", inputs.get("seq", 1))
    for name in ("kv_heads", "head_dim", "experts", "top_k"):
        sizes[name] = inputs.get(name, 0 if name in ("experts", "top_k") else None)
    if arch == "gpt2":
        return TransformerShape(**sizes)
    return TransformerShape(
        **sizes,
        mlp="swiglu",
        norm="rmsnorm",
        biases=False,
        learned_positions=False,
        tied_embeddings=arch == "palm",
    )


def params(case):
    count = shape_of(case["inputs"]).parameters()
    return count.active if case["id"].endswith(".active") else count.total


def training_flop(case):
    inputs = case["inputs"]
    if case["id"] == "flops.recompute.factor":
        assert inputs == {"forward": 2, "backward": 4, "recompute": 2}
        return flops.six_nd(1, 1, "full") / flops.six_nd(1, 1)
    if "arch" in inputs:
        return flops.training_flops(
            shape_of(inputs), inputs["micro_batch"], inputs["seq"]
        ).model_flop
    if "head_dim" in inputs:
        return inputs["seq"] * palm(inputs)
    if "N" in inputs:
        tokens = inputs["D"] if "D" in inputs else inputs["batch"] * inputs["seq"]
        return flops.six_nd(inputs["N"], tokens)
    return megatron(inputs, "full")


def palm(inputs):
    sizes = {name: inputs[name] for name in ("layers", "heads", "head_dim")}
    return flops.palm_flop_per_token(inputs["N"], **sizes, sequence=inputs["seq"])


def megatron(inputs, recompute):
    sizes = {name: inputs[name] for name in ("layers", "hidden", "vocab")}
    return flops.megatron_flop(inputs["batch"], inputs["seq"], **sizes, recompute=recompute)


def peak(case):
    inputs = case["inputs"]
    return inputs["clock_hz"] * inputs["fma_per_clk"] * 2 * inputs["tensor_cores"]


def model_utilisation(case):
    inputs = case["inputs"]
    if "peak_tflops" in inputs:
        rate = inputs["tflops_per_gpu"] * 1e12
        return budget.utilisation(rate, 1, 1, inputs["peak_tflops"] * 1e12)
    if "iteration_s" in inputs:
        flop = megatron(inputs, "none")
        return budget.utilisation(flop, inputs["iteration_s"], inputs["gpus"], inputs["peak"])
    if "flops_per_sequence" in inputs:
        flop = inputs["sequences"] * inputs["flops_per_sequence"]
        return budget.utilisation(flop, inputs["time_s"], 1, inputs["peak"])
    if "tokens_per_s_per_gpu" in inputs:
        inputs = {**inputs, "N": inputs["N_minus_embedding"], "heads": 1, "chips": 1}
        inputs |= {"head_dim": inputs["hidden"], "tokens_per_s": inputs["tokens_per_s_per_gpu"]}
    per_token = palm(inputs) if "head_dim" in inputs else flops.six_nd(inputs["N"], 1)
    flop_per_s = inputs["tokens_per_s"] * per_token
    return budget.utilisation(flop_per_s, 1, inputs["chips"], inputs["peak"])


def hardware_utilisation(case):
    inputs = case["inputs"]
    flop = megatron(inputs, inputs["recompute"])
    return budget.utilisation(flop, inputs["iteration_s"], inputs["gpus"], inputs["peak"])


def tflop_per_s(case):
    inputs = case["inputs"]
    if "gpu_hours" in inputs:
        flop, seconds = flops.six_nd(inputs["N"], inputs["D"]), inputs["gpu_hours"] * 3600
        return budget.achieved_flop_per_s(flop, seconds) / 1e12
    flop = megatron(inputs, "full")
    return budget.achieved_flop_per_s(flop, inputs["iteration_s"], inputs["gpus"]) / 1e12


def days(case):
    inputs = case["inputs"]
    if "tokens_per_s_per_gpu" in inputs:
        return budget.training_run_at(
            inputs["tokens"], inputs["gpus"], inputs["tokens_per_s_per_gpu"]
        ).days
    if "mfu" in inputs:
        rate = inputs["peak"] * inputs["mfu"]
        return budget.training_run(
            flops.six_nd(inputs["N"], inputs["D"]), inputs["gpus"], rate
        ).days
    flop = flops.six_nd(inputs["params"], inputs["tokens"], "full")
    return budget.training_run(flop, inputs["gpus"], inputs["flops_per_gpu"]).days


def gpu_hours(case):
    inputs = case["inputs"]
    return budget.training_run_at(inputs["tokens"], 1, inputs["tokens_per_s_per_gpu"]).gpu_hours


def money(case):
    return budget.cost(case["inputs"]["gpu_hours"], case["inputs"]["usd_per_gpu_hour"])


def roofline(case):
    inputs = case["inputs"]
    if "M" in inputs:
        return hardware.matmul_intensity(inputs["M"], inputs["K"], inputs["N"], inputs["bytes"])
    link = Link("any", 1e9)
    chip = Accelerator("chip", inputs["peak"], 10**9, inputs["hbm_bytes_per_s"], link)
    return chip.ridge_flop_per_byte


PREDICT = {
    "params": params,
    "flops": training_flop,
    "hw": peak,
    "mfu": model_utilisation,
    "hfu": hardware_utilisation,
    "tflops": tflop_per_s,
    "time": days,
    "hours": gpu_hours,
    "cost": money,
    "roofline": roofline,
}


@every("case", CASES)
def test_published(case):
    predicted = PREDICT[case["category"]](case)
    if case["tolerance"] == 0:
        assert predicted == case["expected"]
    slack = {"abs": 0, "rel": 0, case["tolerance_kind"]: case["tolerance"]}
    assert predicted == pytest.approx(case["expected"], **slack)


def test_narayanan_s_formula_is_the_exact_count_without_the_last_norm():
    # P = 12lh²(1 + 13/12h + (V+s)/12lh), arXiv:2104.04473 equation 2, leaves out 2h parameters.
    for name, shape in MODELS.items():
        if name.startswith("gpt-"):
            h, layers = shape.hidden, shape.layers
            formula = 12 * layers * h**2 + 13 * layers * h + (shape.vocab + 2048) * h
            assert shape.parameters().total == formula + 2 * h


def test_no_case_is_lost():
    assert len(CASES) == len({case["id"] for case in CASES}) == 77
