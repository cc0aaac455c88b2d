"""Published numbers as questions that every tool can be asked: a shape, a layout, one quantity.

A question is plain data (it travels to another Python as JSON). Its answer times `factor` is to be
compared with `published`. Cases that are one product of given numbers are left out.
"""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from course_lib.theory.compute.flops import megatron_flop, training_flops
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.shape import TransformerShape

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "theory"))
from test_published_numbers import block, layout_of, recipe_of, shape_of, step_shape

PUBLISHED = Path(__file__).parents[1] / "tests" / "theory" / "published"
DAY_S = 86400
# Cases whose model is named only in words.
NAMED = {
    "mfu.palm-540b": "params.palm-540b",
    "mfu.torchtitan-8b.nocompile": "llama3.1-8b",
    "flops.palm.gpt2-124m": "gpt2-124m",
    "time.gpt3.1024": "gpt-175b",
    "time.narayanan.1t": "gpt-1008b",
}


@dataclass(frozen=True, eq=False)
class Case:
    """One published number and the question behind it."""

    id: str
    category: str
    question: dict[str, Any]
    published: float
    tolerance: float  # relative, of the printed rounding; at least that of floating point
    factor: float = 1.0

    def error(self, answer: float) -> float:
        """Relative error, signed."""
        return answer * self.factor / self.published - 1


def _case(case: dict[str, Any], category: str, question: dict[str, Any], factor: float = 1) -> Case:
    tolerance = max(case["tolerance"], 1e-9)
    return Case(case["id"], category, question, case["expected"], tolerance, factor)


def cases() -> list[Case]:
    """All cases, category by category."""
    parts = (_parameters, _flops, _utilisation, _days, _states, _activations, _steps)
    return [case for part in parts for case in part()]


def _published(part: str) -> list[dict[str, Any]]:
    return json.loads((PUBLISHED / f"{part}.json").read_text(encoding="utf-8"))


def _shape(case: dict[str, Any]) -> TransformerShape:
    name = NAMED.get(case["id"])
    if name == "gpt-175b":  # the 96-layer GPT with the vocabulary padded as in Megatron-LM
        return TransformerShape(96, 12288, 96, 4 * 12288, 51200, 2048)
    if name and name.startswith("params."):
        return shape_of(next(c for c in _published("params") if c["id"] == name)["inputs"])
    return MODELS[name] if name else shape_of(case["inputs"])


def _parameters() -> list[Case]:
    return [
        _case(
            case,
            "parameters",
            {
                "kind": "parameters",
                "shape": asdict(_shape(case)),
                "active": case["id"].endswith(".active"),
            },
        )
        for case in _published("params")
    ]


def _flop(
    shape: TransformerShape, sequences: int, sequence: int, recompute: str = "none"
) -> dict[str, Any]:
    """FLOP of forward and backward pass; all s² pairs of attention are counted."""
    sizes = {"sequences": sequences, "sequence": sequence, "recompute": recompute}
    return {"kind": "flop", "shape": asdict(shape), **sizes}


def _flops() -> list[Case]:
    found = []
    for case in _published("flops"):
        inputs = case["inputs"]
        if "hidden" not in inputs and case["id"] not in NAMED:
            continue
        recompute = "full" if "WITH full recompute" in case["quantity"] else "none"
        question = _flop(_shape(case), inputs.get("batch", 1), inputs["seq"], recompute)
        found.append(_case(case, "FLOP of a step", question))
    return found


def _utilisation() -> list[Case]:
    found = []
    for case in _published("mfu"):
        inputs, name = case["inputs"], case["id"]
        if "iteration_s" in inputs:
            kind = "full" if name.startswith("tflops") else inputs["recompute"]
            kind = "none" if name.startswith("mfu") else kind
            question = _flop(_shape(case), inputs["batch"], inputs["seq"], kind)
            peak = 1e12 if name.startswith("tflops") else inputs["peak"]
            factor = 1 / (inputs["iteration_s"] * inputs["gpus"] * peak)
        elif name in NAMED:
            question = _flop(_shape(case), 1, inputs["seq"])
            rate = inputs.get("tokens_per_s") or inputs["tokens_per_s_per_gpu"]
            factor = rate / inputs["seq"] / inputs.get("chips", 1) / inputs["peak"]
        else:
            continue
        found.append(_case(case, "MFU and HFU", question, factor))
    return found


def _days() -> list[Case]:
    """Days at a given rate, everything recomputed; ours and peers count the shape's own FLOP."""
    found = []
    for case in _published("time"):
        inputs = case["inputs"]
        if "flops_per_gpu" not in inputs:
            continue
        name = case["id"] if case["id"] in NAMED else "time.gpt3.1024"
        question = _flop(_shape({"id": name}), 1, 2048, "full")
        per_day = inputs["gpus"] * inputs["flops_per_gpu"] * DAY_S
        factor = inputs["tokens"] / 2048 / per_day
        found.append(_case(case, "training days", question, factor))
    return found


def _states() -> list[Case]:
    found = []
    for case in _published("states"):
        inputs, name = case["inputs"], case["id"]
        if not name.startswith(("states.zero", "states.playbook", "states.opt", "states.meg")):
            continue
        recipe = recipe_of(inputs)
        megatron = "megatron" in name
        question = {
            "kind": "states",
            "parameters": int(inputs["params"]),
            "dp": inputs.get("dp", 1),
            "zero_stage": 1 if megatron else inputs.get("zero_stage", 0),
            "weight_bytes": recipe.weight_bytes,
            "gradient_bytes": 4 if megatron else recipe.gradient_bytes,
            "buffer_bytes": 4 * recipe.gradient_buffer,
            "optimizer": recipe.optimizer,
            "master_copy": recipe.master_copy,
            "only_optimizer": name.startswith("states.opt"),
        }
        found.append(_case(case, "model states", question))
    return [case for case in found if case.published]


def _activations() -> list[Case]:
    found = []
    for case in _published("activations"):
        inputs, name = case["inputs"], case["id"]
        if name.startswith(("act.selective", "act.logits")):
            continue
        question = _korthikanti(inputs) if "arch" not in inputs else _llama_layer(inputs)
        tokens = question["micro_batch"] * question["sequence"]
        factor = 1 / (2 * tokens * inputs["hidden"]) if "arch" in inputs else 1.0
        found.append(_case(case, "activations", question, factor))
    return found


def _korthikanti(inputs: dict[str, Any]) -> dict[str, Any]:
    """A GPT's layers with scores and dropout masks kept, under a scheme such as "tp+sp+sel"."""
    scheme = inputs.get("scheme", "full" if "bytes" in inputs else "sel").split("+")
    return {
        "kind": "activations",
        "shape": asdict(block({"heads": inputs["hidden"] // 128, **inputs})),
        "micro_batch": inputs.get("micro_batch", 1),
        "sequence": inputs.get("seq", inputs.get("tokens")),
        "tp": inputs["tp"] if "tp" in scheme else 1,
        "sequence_parallel": "sp" in scheme,
        "recompute": {"sel": "selective", "full": "full"}.get(scheme[-1], "none"),
        "attention": "standard",
        "dropout": True,
        "pp": inputs.get("pp", 1),
        "micro_batches": inputs.get("microbatches", 1),
    }


def _llama_layer(inputs: dict[str, Any]) -> dict[str, Any]:
    """One layer of Hugging Face's LLaMA: flash attention, keys and values copied to all heads."""
    shape = asdict(MODELS["llama3.1-8b"]) | {"layers": 1, "context": inputs["seq"]}
    changes = {"shape": shape, "recompute": "none", "attention": "flash", "dropout": False}
    return _korthikanti({**inputs, "tp": 1}) | changes | {"hugging_face": True}


def _steps() -> list[Case]:
    found = []
    for case in _published("steptime"):
        inputs, layout = case["inputs"], layout_of(case["inputs"])
        question = {
            "kind": "step",
            "shape": asdict(step_shape(inputs)),
            "inputs": inputs,
            "dp": layout.dp,
            "accumulation": layout.accumulation,
            "sequence": inputs.get("seq", 2048),
            "gpu": "h100-sxm-80gb" if "seq" in inputs else "a100-sxm-80gb",
        }
        ours = any(source in case["id"] for source in ("narayanan", "llama3"))  # fitted to these
        how = "ours fitted" if ours else "predicted"
        found.append(_case({**case, "expected": _seconds(case)}, f"step time ({how})", question))
    return found


def _seconds(case: dict[str, Any]) -> float:
    """Seconds of a step; TFLOP/s are of equation 3 on A100s, of a causal mask on H100s."""
    if case["unit"] == "s":
        return case["expected"]
    inputs, shape = case["inputs"], step_shape(case["inputs"])
    if "seq" in inputs:
        flop = training_flops(shape, inputs["batch"], inputs["seq"], mask="causal").model_flop
    else:
        flop = megatron_flop(
            inputs["batch"], 2048, layers=shape.layers, hidden=shape.hidden, vocab=shape.vocab
        )
    return flop / (case["expected"] * 1e12 * inputs["gpus"])
