"""Megatron-LM's own formulas, run from a checkout of it: memory of one GPU and FLOP of a step.

Importing Megatron needs CUDA and its kernels, so that the few functions are executed out of their
source files, as they stand there. Its conventions: bf16 weights with fp32 gradients and Adam, so 18
bytes a parameter, or 6 + 12/dp; causal masks; neither biases nor learned positions are counted.
"""

import ast
import contextlib
import io
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from theory_answers import CannotError, Question

FILES = {
    "theoretical_memory_usage.py": (
        "compute_weight_and_optimizer_memory",
        "compute_activation_memory",
        "compute_activation_memory_without_sp",
    ),
    "training.py": ("num_floating_point_operations",),
}


def functions(checkout: Path) -> SimpleNamespace:
    """The functions above, compiled from the checkout's files. Raises OSError without them."""
    space: dict[str, Any] = {
        "math": math,
        "NUM_BYTES_IN_MEGABYTE": 1024**2,
        "is_hybrid_model": lambda args: False,
        "is_linear_attention_variant": lambda variant: False,
    }
    for file, names in FILES.items():
        path = checkout / "megatron" / "training" / file
        tree = ast.parse(path.read_text(encoding="utf-8"))
        tree.body = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name in names]
        exec(compile(tree, str(path), "exec"), space)
    return SimpleNamespace(**space)


def arguments(shape: dict[str, Any], **more: Any) -> SimpleNamespace:
    """Megatron's command line for a shape, on one GPU unless `more` says otherwise."""
    mla = shape["mla"]
    args = {
        "num_layers": shape["layers"],
        "hidden_size": shape["hidden"],
        "num_attention_heads": shape["heads"],
        "num_query_groups": shape["kv_heads"],
        "group_query_attention": not mla and shape["kv_heads"] != shape["heads"],
        "kv_channels": shape["head_dim"] or shape["hidden"] // shape["heads"],
        "ffn_hidden_size": shape["ffn"],
        "swiglu": shape["mlp"] == "swiglu",
        "padded_vocab_size": shape["vocab"],
        "untie_embeddings_and_output_weights": not shape["tied_embeddings"],
        "normalization": {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}[shape["norm"]],
        "add_bias_linear": shape["biases"],
        "multi_latent_attention": bool(mla),
        "attention_output_gate": False,
    }
    unused = ("moe_latent_size", "mtp_num_layers", "experimental_attention_variant")
    rest = dict.fromkeys(unused) | _experts(shape) | _latent(mla) | _parallel()
    return SimpleNamespace(**args | rest | more)


def _experts(shape: dict[str, Any]) -> dict[str, Any]:
    dense, width = shape["dense_layers"], shape["expert_ffn"]
    return {
        "num_experts": shape["experts"] or None,
        "moe_ffn_hidden_size": width,
        "moe_router_topk": shape["top_k"],
        "moe_layer_freq": [0] * dense + [1] * (shape["layers"] - dense),
        "moe_shared_expert_intermediate_size": shape["shared_experts"] * (width or 0),
    }


def _latent(mla: dict[str, Any] | None) -> dict[str, Any]:
    names = {
        "q_lora_rank": "q_rank",
        "kv_lora_rank": "kv_rank",
        "qk_head_dim": "nope_dim",
        "qk_pos_emb_head_dim": "rope_dim",
        "v_head_dim": "value_dim",
    }
    return {theirs: mla[ours] for theirs, ours in names.items()} if mla else {}


def _parallel() -> dict[str, Any]:
    names = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "data_parallel_size")
    names += ("expert_tensor_parallel_size", "expert_model_parallel_size", "world_size")
    more = {"virtual_pipeline_model_parallel_size": None, "use_distributed_optimizer": False}
    return {name: 1 for name in names} | more


class Megatron:
    """Megatron-LM, asked as its own trainer and its own memory report ask themselves."""

    def __init__(self, checkout: Path) -> None:
        self.run = functions(checkout)

    def parameters(self, question: Question) -> float:
        """Bytes without a distributed optimizer over 18; active ones as printed (2 decimals)."""
        args = arguments(question["shape"])
        if not question["active"]:
            return self.run.compute_weight_and_optimizer_memory(args) / 18
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            self.run.compute_weight_and_optimizer_memory(args, verbose=True)
        line = re.search(r"Total number of active.*billions: *([\d.]+)", printed.getvalue())
        return float(line.group(1)) * 1e9

    def flop(self, question: Question) -> float:
        """All s² pairs, by the argument for packed sequences: by itself it counts half of them."""
        if question["recompute"] != "none":
            raise CannotError("no recomputation in num_floating_point_operations")
        sequences, sequence = question["sequences"], question["sequence"]
        args = arguments(question["shape"], seq_length=sequence)
        pairs = 2 * sequences * sequence**2
        return self.run.num_floating_point_operations(
            args, sequences, seqlen_squared_sum_in_batch=pairs
        )

    def states(self, question: Question) -> float:
        """A model of one embedding with exactly this many parameters."""
        kind = (question["weight_bytes"], question["gradient_bytes"], question["optimizer"])
        if kind != (2, 4, "adamw") or not question["master_copy"]:
            raise CannotError("bf16 weights, fp32 gradients and Adam only")
        if question["zero_stage"] > 1 or question["only_optimizer"]:
            raise CannotError("only the sum, with optimizer states sharded or not")
        args = arguments(_one_embedding(question["parameters"]), num_layers=0, moe_layer_freq=[])
        args.use_distributed_optimizer = question["zero_stage"] == 1
        args.world_size = args.data_parallel_size = question["dp"]
        return self.run.compute_weight_and_optimizer_memory(args)

    def activations(self, question: Question) -> float:
        """The layers' part: with all layers less with none. As report_theoretical_memory chooses,
        which takes `recompute` into account only together with sequence parallelism."""
        args = arguments(
            question["shape"],
            seq_length=question["sequence"],
            micro_batch_size=question["micro_batch"],
            tensor_model_parallel_size=question["tp"],
            pipeline_model_parallel_size=question["pp"],
        )
        precise = question["sequence_parallel"] and question["recompute"] == "selective"
        name = "compute_activation_memory" + ("" if precise else "_without_sp")
        compute, micro_batches = getattr(self.run, name), question["micro_batches"]
        everything = compute(args, micro_batches)
        args.num_layers = 0
        return everything - compute(args, micro_batches)

    def step(self, question: Question) -> float:
        raise CannotError("no times")


def _one_embedding(parameters: int) -> dict[str, Any]:
    """A shape whose only parameters are an embedding one wide, and the last norm's weight."""
    sizes = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn"), 1)
    kinds = {"mlp": "gelu", "norm": "rmsnorm", "tied_embeddings": True, "biases": False}
    nothing = dict.fromkeys(("experts", "top_k", "shared_experts", "dense_layers"), 0)
    names = ("mla", "head_dim", "expert_ffn")
    return sizes | kinds | nothing | dict.fromkeys(names) | {"vocab": parameters - 1}
