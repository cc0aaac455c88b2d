"""llm-analysis answers the questions of theory_cases.py; run by the Python that has it installed.

Reads JSON lists of questions from standard input, a line each, and writes one line of answers:
{"value": ...} or {"cannot": why}. Its conventions: embeddings always tied, MLPs of two matrices (a
gated MLP is given as one 1.5 times as wide), gradients as wide as the master copy.
"""

import json
import logging
import sys
import time

from llm_analysis.analysis import ActivationRecomputation, DSZeRO, LLMAnalysis
from llm_analysis.config import (
    DtypeConfig,
    ModelConfig,
    ParallelismConfig,
    get_gpu_config_by_name,
)

logging.disable(logging.CRITICAL)
RECOMPUTE = {
    "none": ActivationRecomputation.NONE,
    "selective": ActivationRecomputation.SELECTIVE,
    "full": ActivationRecomputation.FULL,
}
EFFICIENCY = 0.5  # its README: "literature reports up to 0.5 for large scale model training"
MOMENTS = {"sgd": 0, "momentum": 4, "adamw": 8, "adamw-8bit": 2}


class CannotError(Exception):
    """The library has no way to say this."""


def model_config(shape):
    """Its configuration of a shape."""
    if shape["mla"] or shape["dense_layers"] or shape["shared_experts"]:
        raise CannotError("no latent attention, shared experts or leading dense layers")
    if shape["head_dim"] and shape["head_dim"] * shape["heads"] != shape["hidden"]:
        raise CannotError("heads times their width must be the hidden size")
    ffn = shape["ffn"] * (1.5 if shape["mlp"] == "swiglu" else 1)
    return ModelConfig(
        name="case",
        num_layers=shape["layers"],
        n_head=shape["heads"],
        hidden_dim=shape["hidden"],
        vocab_size=shape["vocab"],
        max_seq_len=shape["context"],
        num_key_value_heads=shape["kv_heads"],
        ffn_embed_dim=ffn,
        expansion_ratio=ffn / shape["hidden"],
        moe_num_experts=shape["experts"] or 1,
        moe_top_k=shape["top_k"] or 1,
    )


def analysis(model, dtype=None, gpu="a100-sxm-80gb", **parallel):
    """The library's one class, for a layout, with its own figures for the GPU."""
    parts = (get_gpu_config_by_name(gpu), dtype or DtypeConfig(), ParallelismConfig(**parallel))
    return LLMAnalysis(model, *parts, flops_efficiency=EFFICIENCY)


def parameters(question):
    found = analysis(model_config(question["shape"]))
    return found.total_num_active_params if question["active"] else found.total_num_params


def flop(question):
    found, recompute = analysis(model_config(question["shape"])), question["recompute"]
    batch = question["sequences"], question["sequence"]
    forward, backward = found.get_num_flops_fwd_total(*batch), found.get_num_flops_bwd_total(*batch)
    scores = found.get_num_flops_total_selective_recompute_attn(*batch)
    return forward + backward + {"none": 0, "selective": scores, "full": forward}[recompute]


def states(question):
    """A model of one embedding with exactly this many parameters; its two byte counts fitted."""
    bits = 8 * question["weight_bytes"]
    dtype = DtypeConfig(weight_bits=bits, embedding_bits=bits)
    model = ModelConfig("case", 0, 1, 1, question["parameters"] - 1)
    found = analysis(model, dtype, dp_size=question["dp"])
    gradients = question["gradient_bytes"] + question["buffer_bytes"]
    optimizer = 4 * question["master_copy"] + MOMENTS[question["optimizer"]]
    rest = (gradients, optimizer - gradients, DSZeRO(question["zero_stage"]))
    embedding = found.get_memory_optimizer_state_and_gradient_embedding(*rest)
    norm = found.get_memory_optimizer_state_and_gradient_last_layernorm(*rest)
    if question["only_optimizer"]:
        return embedding[0] + norm[0]
    weights = found.get_memory_embedding(rest[2]) + found.get_weight_memory_last_layernorm(rest[2])
    return weights + sum(embedding) + sum(norm)


def activations(question):
    sequence_parallel = question["tp"] if question["sequence_parallel"] else 1
    model = model_config(question["shape"])
    parallel = {"tp_size": question["tp"], "sp_size": sequence_parallel, "pp_size": question["pp"]}
    return model.num_layers * analysis(model, **parallel).get_activation_memory_per_layer(
        question["micro_batch"],
        question["sequence"],
        is_inference=False,
        activation_recomputation=RECOMPUTE[question["recompute"]],
        layernorm_dtype_bytes=4 if "hugging_face" in question else 2,
        flash_attn=question["attention"] == "flash",
        softmax_dropout=question["dropout"],
        mlp_gated_linear_units=question["shape"]["mlp"] == "swiglu",
    )


def training(question):
    """Everything the library says of a training step."""
    inputs = question["inputs"]
    if inputs.get("cp", 1) > 1:
        raise CannotError("no context parallelism")
    layout = {"tp_size": inputs["tp"], "pp_size": inputs["pp"], "dp_size": question["dp"]}
    found = analysis(model_config(question["shape"]), gpu=question["gpu"], **layout)
    return found.training(
        inputs["micro_batch"],
        question["accumulation"],
        inputs["batch"],
        question["sequence"],
        activation_recomputation=RECOMPUTE[inputs["recompute"]],
    )


def step(question):
    return training(question)["latency_per_iter"]


def measured_run(question):
    """Bytes of one GPU and seconds of a step, of a run of measured_runs.py."""
    if question["cp"] > 1 or question["recompute"] not in RECOMPUTE:
        raise CannotError("no context parallelism, no recomputation chosen by operators")
    shape = {
        **question["shape"],
        "context": max(question["sequence"], question["shape"]["context"]),
    }
    layout = {name: question[name] for name in ("dp_size", "tp_size", "sp_size", "pp_size")}
    found = analysis(model_config(shape), gpu=question["gpu"], **layout).training(
        question["micro_batch"],
        question["accumulation"],
        question["micro_batch"] * question["accumulation"] * question["dp_size"],
        question["sequence"],
        activation_recomputation=RECOMPUTE[question["recompute"]],
        ds_zero=DSZeRO(question["zero_stage"]),
        master_weights_dtype_bytes=question["gradient_bytes"],
        other_op_bytes=question["state_bytes"] - 2 * question["gradient_bytes"] - 2,
        flash_attn=question["attention"] == "flash",
        softmax_dropout=question["dropout"],
        mlp_gated_linear_units=shape["mlp"] == "swiglu",
    )
    return found["(weight+op_state+grad+act)_memory_per_gpu"], found["latency_per_iter"]


def speed(question):
    """Answers a second to a list of questions, over and over for some seconds."""
    count, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < question["seconds"]:
        for each in question["questions"]:
            globals()[each["kind"]](each)
        count += len(question["questions"])
    return count / spent


def answer(question):
    """One question's answer, or why there is none."""
    try:
        return {"value": globals()[question["kind"]](question)}
    except CannotError as reason:
        return {"cannot": str(reason)}
    except (ArithmeticError, AssertionError, TypeError, ValueError) as error:
        return {"cannot": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps([answer(question) for question in json.loads(line)]), flush=True)
