"""SimuMax answers questions of measured_runs.py; run by a Python that can import it.

Reads one JSON list of questions from standard input and writes one line of answers: {"value": ...}
or {"cannot": why}. Its ZeRO ends at stage 1, its optimizer is Adam with an fp32 master copy, it has
no dropout, and its embeddings are never tied.
"""

import contextlib
import json
import sys
import warnings

from simumax.core.config import ModelConfig, StrategyConfig, SystemConfig
from simumax.core.perf_llm import PerfLLM
from simumax.utils import get_simu_system_config

NVLINK3_GB_PER_S = 300  # one direction, data sheet of the A100


def why_not(question):
    """Why it cannot be asked, or None."""
    if question["gpu"] != "a100-sxm-80gb":
        return "its only chips are A100 and B200"
    if question["zero_stage"] > 1 or question["cp"] > 1 or question["shape"]["mla"]:
        return "ZeRO-2 and 3 are not supported yet"
    if question["state_bytes"] not in (16, 18) or question["optimizer"] != "adamw":
        return "16 or 18 bytes of states"
    if question["recompute"] not in ("none", "full"):
        return "no recomputation of this kind"
    return None


def system(between_bytes_per_s):
    """Its A100, with the efficiencies that it measured on NVLink; of a node with so fast a network.

    Both files are its own; an A100 with NVLink is not among them.
    """
    ours = SystemConfig.read_json_file(get_simu_system_config("a100_pcie"))
    nvlink = SystemConfig.read_json_file(get_simu_system_config("b200_bf16_ceperm"))["networks"]
    between = ours["networks"]["inter_node"]
    between["bandwidth"]["gbps"] = between_bytes_per_s / 1e9
    for link in (nvlink["low_intra_node"], nvlink["high_intra_node"]):
        link["bandwidth"]["gbps"] = NVLINK3_GB_PER_S
    return SystemConfig.init_from_dict({**ours, "networks": {**nvlink, "inter_node": between}})


def measured_run(question):
    """Bytes of the fullest GPU, reserved ones, and seconds of a step."""
    shape, pp = question["shape"], question["pp_size"]
    model = ModelConfig(
        hidden_size=shape["hidden"],
        head_num=shape["heads"],
        kv_head_num=shape["kv_heads"] or shape["heads"],
        head_size=shape["hidden"] // shape["heads"],
        intermediate_size=shape["ffn"],
        layer_num=shape["layers"],
        vocab_size=shape["vocab"],
        use_swiglu=shape["mlp"] == "swiglu",
    )
    stages = question["stage_layers"]
    full, flash = question["recompute"] == "full", question["attention"] == "flash"
    strategy = StrategyConfig(
        seq_len=question["sequence"],
        micro_batch_size=question["micro_batch"],
        micro_batch_num=question["accumulation"],
        world_size=question["dp_size"] * question["tp_size"] * pp,
        tp_size=question["tp_size"],
        pp_size=pp,
        num_layers_in_first_pipeline_stage=stages and stages[0],
        num_layers_in_last_pipeline_stage=stages and stages[-1],
        zero_state=question["zero_stage"],
        enable_sequence_parallel=question["sp_size"] > 1,
        enable_recompute=full,
        recompute_granularity="full_block" if full else None,
        recompute_layer_num=max(stages or [shape["layers"] // pp]) if full else 0,
        use_flash_sdp=flash,
        use_math_sdp=not flash,
        use_fp32_accum_grad=question["state_bytes"] == 18,
        grad_reduce_in_bf16=question["state_bytes"] == 16,
    )
    found = PerfLLM()
    found.configure(
        strategy, model_config=model, system_config=system(question["node_bytes_per_s"])
    )
    found.run_estimate()
    answer = found.analysis(None, console_log=False)
    peaks = answer["peak_mem_with_reserved"]
    stages_gib = peaks.values() if isinstance(peaks, dict) else [peaks]
    return max(map(first_number, stages_gib)) * 2**30, first_number(
        answer["duration_time_per_iter"]
    )


def first_number(printed):
    """Of its "20.6781 GB", which are GiB, and "110.2 s"."""
    number, unit = printed.split()
    if unit not in ("GB", "s"):
        raise ValueError(f"an unknown unit: {printed}")
    return float(number)


def answer(question):
    """One question's answer, or why there is none."""
    if reason := why_not(question):
        return {"cannot": reason}
    return {"value": measured_run(question)}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with contextlib.redirect_stdout(sys.stderr):
        answers = [answer(question) for question in json.load(sys.stdin)]
    print(json.dumps(answers))
