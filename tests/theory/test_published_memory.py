"""Published model states, activations and batches, case by case."""

import json
from pathlib import Path

import pytest
from every import every
from probes import LLAMA_LIKE

from course_lib.theory.compute.flops import megatron_flop
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.recipe import RECIPES, Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.memory.activations import layer_activation_bytes, logit_count
from course_lib.theory.memory.peak import fewest_gpus, gpu_memory
from course_lib.theory.memory.states import model_states
from course_lib.theory.step import batching

PUBLISHED = Path(__file__).parent / "published"
CASES = [
    case
    for part in ("states", "activations", "batching")
    for case in json.loads((PUBLISHED / f"{part}.json").read_text(encoding="utf-8"))
]
PRECISIONS = {2: "bf16", 4: "fp32"}
# Names of the sources: optimizer, parameters, gradients, master copy.
OPTIMIZERS = {
    "sgd": ("sgd", "bf16", "bf16", False),
    "sgd-plain": ("sgd", "bf16", "bf16", False),
    "sgd-momentum": ("momentum", "bf16", "bf16", False),
    "adamw-fp32": ("adamw", "fp32", "fp32", False),
    "adamw-mixed": ("adamw", "bf16", "bf16", True),
    "adamw-8bit": ("adamw-8bit", "bf16", "bf16", False),
    "adamw": ("adamw", "fp32", "fp32", False),
}


def recipe_of(inputs):
    """The recipe that a case names, by its optimizer or by bytes per parameter."""
    if "optimizer" in inputs:
        optimizer, parameters, gradients, master = OPTIMIZERS[inputs["optimizer"]]
        return Recipe(parameters, gradients, optimizer, master)
    return Recipe(
        parameters=PRECISIONS[inputs.get("param_bytes", 2)],
        gradients=PRECISIONS[inputs.get("grad_bytes", 2)],
        gradient_buffer=inputs.get("fp32_grad_accum_bytes") == 4,
    )


def states(case):
    inputs = case["inputs"]
    layout = Layout(dp=inputs.get("dp", 1), zero_stage=inputs.get("zero_stage", 0))
    recipe = recipe_of(inputs)
    if "megatron-distopt" in case["id"]:
        layout, recipe = Layout(dp=inputs["dp"], zero_stage=1), RECIPES["megatron-18"]
    bill = model_states(int(inputs["params"]), recipe, layout)
    if case["quantity"].startswith("optimizer"):
        return bill.master_copy_bytes + bill.optimizer_state_bytes
    if set(inputs) == {"params", "param_bytes"}:
        return bill.parameters_bytes
    return bill.model_states_bytes


def block(inputs):
    """The GPT block of Korthikanti's formulas; sizes that a case leaves open play no role."""
    hidden = inputs["hidden"]
    heads = inputs.get("heads", 1)
    return TransformerShape(inputs.get("layers", 1), hidden, heads, 4 * hidden, 50257, 2**20)


def korthikanti(inputs):
    """Bytes per layer under a scheme such as "tp+sp+sel"."""
    scheme = inputs.get("scheme", "sel").split("+")
    recompute = {"sel": "selective", "full": "full"}.get(scheme[-1], "none")
    layout = Layout(
        tp=inputs["tp"] if "tp" in scheme else 1,
        sequence_parallel="sp" in scheme,
        micro_batch=inputs.get("micro_batch", 1),
    )
    recipe = Recipe(attention="standard", dropout=True, recompute=recompute)
    return layer_activation_bytes(Job(block(inputs), recipe, layout, sequence=inputs["seq"]))


def selective_saving(inputs):
    kept, everything = (korthikanti({**inputs, "scheme": scheme}) for scheme in ("sel", "none"))
    return 1 - kept / everything


def selective_flops(inputs):
    """Extra FLOPs over those of the model without its head, as the paper counts them."""
    plain, selective = (
        # The head's FLOPs do not grow with the layers, so that two layer counts cancel it.
        megatron_flop(
            1, inputs["seq"], layers=2, hidden=inputs["hidden"], vocab=1, recompute=recompute
        )
        - megatron_flop(
            1, inputs["seq"], layers=1, hidden=inputs["hidden"], vocab=1, recompute=recompute
        )
        for recompute in ("none", "selective")
    )
    return selective / plain - 1


def checkpointed(inputs):
    shape = block(inputs)
    return inputs["layers"] * layer_activation_bytes(
        Job(shape, Recipe(recompute="full"), sequence=inputs["tokens"])
    )


def copies_in_hugging_face(inputs):
    """One layer over 2·b·s·h, with norms written out and keys and values copied to all heads."""
    names = ("layers", "hidden", "heads", "ffn", "vocab", "kv_heads")
    shape = TransformerShape(
        **{name: inputs[name] for name in names}, context=inputs["seq"], **LLAMA_LIKE
    )
    recipe = Recipe(fused_norms=False, repeat_kv=True)
    kept = layer_activation_bytes(
        Job(shape, recipe, Layout(micro_batch=inputs["micro_batch"]), sequence=inputs["seq"])
    )
    return kept / (2 * inputs["micro_batch"] * inputs["seq"] * inputs["hidden"])


def first_stage(inputs):
    layout = Layout(
        tp=inputs["tp"],
        pp=inputs["pp"],
        sequence_parallel=True,
        accumulation=inputs["microbatches"],
    )
    recipe = Recipe(attention="standard", dropout=True, recompute="selective")
    shape = TransformerShape(
        inputs["layers"], inputs["hidden"], 96, 4 * inputs["hidden"], 50257, inputs["seq"]
    )
    return gpu_memory(Job(shape, recipe, layout, sequence=inputs["seq"])).activations_bytes


def logits(inputs):
    shape = TransformerShape(1, 1, 1, 4, inputs["vocab"], inputs["seq"])
    return 4 * logit_count(
        Job(shape, layout=Layout(micro_batch=inputs["micro_batch"]), sequence=inputs["seq"])
    )


def activations(case):
    inputs, name = case["inputs"], case["id"]
    special = {
        "act.selective.saving": selective_saving,
        "act.selective.flops": selective_flops,
        "act.ckpt": checkpointed,
        "act.measured": copies_in_hugging_face,
        "act.inflight": first_stage,
        "act.logits": logits,
    }
    for start, function in special.items():
        if name.startswith(start):
            return function(inputs)
    return inputs.get("layers", 1) * korthikanti(inputs)


def plan(case):
    inputs = case["inputs"]
    if "params" in inputs:
        total = model_states(int(inputs["params"]), Recipe()).model_states_bytes
        return fewest_gpus(total, inputs["budget_bytes"])
    return fewest_gpus(inputs["total_bytes"], inputs["gpu_bytes"])


def batch(case):
    inputs = case["inputs"]
    if "tokens" in inputs:
        return inputs["tokens"] // inputs["seq"]
    if "sequences" in inputs:
        layout = batching.Batching(10**6, micro_batch=inputs["sequences"], sequence=inputs["seq"])
        return layout.tokens_per_batch
    layout = batching.Batching(
        samples=inputs.get("samples", 10**6),
        micro_batch=inputs["micro_batch"],
        accumulation=inputs["grad_accum"],
        nodes=inputs.get("nnodes", 1),
        gpus_per_node=inputs.get("nproc_per_node", inputs.get("dp", 1)),
        **{name: inputs.get(name, 1) for name in ("tp", "pp", "cp")},
    )
    if "micro-steps" in case["quantity"]:
        return layout.epoch().micro_steps
    return layout.epoch().updates if "updates" in case["quantity"] else layout.global_batch


def learning_rate(case):
    inputs = case["inputs"]
    return batching.scaled_learning_rate(inputs["base_lr"], 256, inputs["batch"], "linear")


def critical_batch(case):
    return batching.batch_cost(case["inputs"]["B_over_Bcrit"], 1.0).steps


PREDICT = {
    "states": states,
    "act": activations,
    "plan": plan,
    "batch": batch,
    "lr": learning_rate,
    "critical-batch": critical_batch,
}


@every("case", CASES)
def test_published(case):
    predicted = PREDICT[case["category"]](case)
    slack = {case["tolerance_kind"]: case["tolerance"] or (1e-15 if predicted else 0)}
    assert predicted == pytest.approx(case["expected"], **{"abs": 0, "rel": 0, **slack})


def test_no_case_is_lost():
    assert len(CASES) == len({case["id"] for case in CASES}) == 51
