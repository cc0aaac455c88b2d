"""Published numbers, case by case: sizes, memory, FLOPs, times, pipelines, volumes and costs."""

import json
from pathlib import Path

import pytest
from every import every
from probes import LLAMA_LIKE

from course_lib.theory.compute import budget, flops
from course_lib.theory.inputs import hardware
from course_lib.theory.inputs.hardware import Cluster, Link, accelerator
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS, model
from course_lib.theory.inputs.recipe import RECIPES, Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.memory.activations import layer_activation_bytes
from course_lib.theory.memory.peak import fewest_gpus, gpu_memory
from course_lib.theory.memory.states import model_states
from course_lib.theory.network import collectives
from course_lib.theory.pipelines import bubble
from course_lib.theory.pipelines.bubble import PassTimes
from course_lib.theory.pipelines.simulation import timeline
from course_lib.theory.step import batching
from course_lib.theory.step.step_time import step_time

FILES = Path(__file__).parent.glob("published/*.json")
CASES = [case for file in sorted(FILES) for case in json.loads(file.read_text(encoding="utf-8"))]


# --- models, FLOPs, utilisations, times and costs ---


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


def params(case, inputs):
    count = shape_of(inputs).parameters()
    return count.active if case["id"].endswith(".active") else count.total


def training_flop(case, inputs):
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


def model_utilisation(case, inputs):
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


def hardware_utilisation(case, inputs):
    flop = megatron(inputs, inputs["recompute"])
    return budget.utilisation(flop, inputs["iteration_s"], inputs["gpus"], inputs["peak"])


def tflop_per_s(case, inputs):
    if "gpu_hours" in inputs:
        flop, seconds = flops.six_nd(inputs["N"], inputs["D"]), inputs["gpu_hours"] * 3600
        return budget.achieved_flop_per_s(flop, seconds) / 1e12
    flop = megatron(inputs, "full")
    return budget.achieved_flop_per_s(flop, inputs["iteration_s"], inputs["gpus"]) / 1e12


def run_at(inputs):
    return budget.training_run_at(inputs["tokens"], inputs["gpus"], inputs["tokens_per_s_per_gpu"])


def days(case, inputs):
    if "tokens_per_s_per_gpu" in inputs:
        return run_at(inputs).days
    if "mfu" in inputs:
        rate = inputs["peak"] * inputs["mfu"]
        return budget.training_run(
            flops.six_nd(inputs["N"], inputs["D"]), inputs["gpus"], rate
        ).days
    flop = flops.six_nd(inputs["params"], inputs["tokens"], "full")
    return budget.training_run(flop, inputs["gpus"], inputs["flops_per_gpu"]).days


def roofline(case, inputs):
    if "M" in inputs:
        return hardware.matmul_intensity(inputs["M"], inputs["K"], inputs["N"], inputs["bytes"])
    if "hbm_bytes_per_s" in inputs:
        return hardware.ridge(inputs["peak"], inputs["hbm_bytes_per_s"])
    if "heads" in inputs:
        return collectives.matrix_intensity(inputs["hidden"], inputs["heads"], inputs["bytes"])
    if "flop_per_byte" in inputs:
        # peak / bandwidth = intensity: the bandwidth and the intensity can change places.
        return collectives.ridge(inputs["peak"], inputs["flop_per_byte"])
    reach = collectives.layer_tp_reach if "tp-layer" in case["id"] else collectives.matrix_tp_reach
    return reach(inputs["hidden"], inputs["peak"], inputs["bytes_per_s"])


# --- memory and batches ---


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


def states(case, inputs):
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


def activations(case, inputs):
    name = case["id"]
    special = {
        "act.ckpt": checkpointed,
        "act.measured": copies_in_hugging_face,
        "act.inflight": first_stage,
    }
    for start, function in special.items():
        if name.startswith(start):
            return function(inputs)
    return inputs.get("layers", 1) * korthikanti(inputs)


def plan(case, inputs):
    if "params" in inputs:
        total = model_states(int(inputs["params"]), Recipe()).model_states_bytes
        return fewest_gpus(total, inputs["budget_bytes"])
    return fewest_gpus(inputs["total_bytes"], inputs["gpu_bytes"])


def batch(case, inputs):
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


# --- pipelines and messages ---


def bubbles(case, inputs):
    if case["unit"] == "time units":
        return _bubble_time(case["id"].split(".")[1], inputs)
    sizes = inputs["stages"], inputs["microbatches"], inputs.get("virtual", 1)
    if case["unit"] == "fraction":
        return bubble.bubble_fraction(*sizes)
    return bubble.bubble_over_ideal(*sizes)


def _bubble_time(schedule, inputs):
    times = PassTimes(inputs["F"], inputs["B"], inputs["W"], inputs["FandB"])
    sizes = schedule, inputs["stages"], 4 * inputs["stages"]
    closed = bubble.bubble_time(*sizes, times=times)
    assert timeline(*sizes, times=times).bubble_time == pytest.approx(closed)
    return closed


def micro_batches_in_flight(case, inputs):
    sizes = inputs["schedule"], inputs["stages"], inputs["microbatches"]
    counted = timeline(*sizes).in_flight(inputs["stage"])
    assert counted == bubble.in_flight(*sizes, inputs["stage"])
    return counted


def volumes(case, inputs):
    name = case["id"].split(".", 1)[1]
    if name.startswith(("ring-allreduce", "allgather")):
        operation = "all-reduce" if "allreduce" in name else "all-gather"
        return collectives.sent_bytes(operation, inputs["size_bytes"], inputs["n"])
    if name == "zero3-vs-ddp":
        return collectives.zero_volume(1.0, 3) / collectives.zero_volume(1.0, 0)
    if name == "seed.pcie-4gb":
        return collectives.seconds(
            "send-recv", inputs["bytes"], 2, Link("link", inputs["bytes_per_s"])
        )
    sizes = inputs["micro_batch"], inputs["seq"], inputs["hidden"]
    if "tp" in inputs:
        return collectives.tensor_parallel_bytes(
            *sizes, inputs["tp"], element_bytes=inputs["bytes"]
        )
    return collectives.activation_bytes(*sizes, inputs["bytes"])


def speedups(case, inputs):
    gain = case["id"] == "yafsdp.throughput"
    part = budget.throughput_gain if gain else budget.saved_fraction
    return 100 * part(inputs["t_fsdp"], inputs["t_yafsdp"])


# --- steps ---


def step_shape(inputs):
    if "model" in inputs:
        return model(inputs["model"])
    layers, hidden, heads = (inputs[name] for name in ("layers", "hidden", "heads"))
    return TransformerShape(layers, hidden, heads, 4 * hidden, vocab=51200, context=2048)


def layout_of(inputs, **more):
    names = ("tp", "pp", "micro_batch", "virtual_stages")
    degrees = {name: inputs[name] for name in names} | {"cp": inputs.get("cp", 1)}
    dp = inputs["gpus"] // (degrees["tp"] * degrees["pp"] * degrees["cp"])
    steps = inputs["batch"] // dp // inputs["micro_batch"]
    schedule = "interleaved" if inputs["virtual_stages"] > 1 else "1f1b"
    return Layout(**degrees, dp=dp, accumulation=steps, schedule=schedule, **more)


def megatron_job(inputs):
    """A100s, standard attention, dropout, fp32 gradients; selective comes with sequence parallel"""
    selective = inputs["recompute"] == "selective"
    recipe = Recipe(
        gradients="fp32",
        fused_accumulation=True,
        attention="standard",
        dropout=True,
        recompute=inputs["recompute"],
    )
    cluster = Cluster(accelerator("A100-SXM-80GB"), inputs["gpus"] // 8)
    layout = layout_of(inputs, sequence_parallel=selective)
    return Job(step_shape(inputs), recipe, layout, cluster, sequence=2048)


def llama_job(inputs):
    """H100s. Optimizer sharded, gradients exchanged once a step as in table 4's footing.

    The first chunk has the embedding alone and the last the head (section 3.3.2): with 126 layers
    that makes 128 = 16 · 8 chunks.
    """
    recipe = Recipe(gradients="fp32", fused_accumulation=True, fused_swiglu=True)
    layout = layout_of(
        inputs, sequence_parallel=True, zero_stage=1, stage_layers=(0, *[1] * 126, 0)
    )
    cluster = Cluster(accelerator("H100-SXM"), inputs["gpus"] // 8)
    return Job(step_shape(inputs), recipe, layout, cluster, sequence=inputs["seq"])


def step(case, inputs):
    """Seconds, or TFLOP/s."""
    found = step_time((llama_job if "seq" in inputs else megatron_job)(inputs))
    if case["unit"] == "s":
        return found.total_s
    flop = found.model_flop
    if "seq" not in inputs:
        shape = step_shape(inputs)
        sizes = {"layers": shape.layers, "hidden": shape.hidden, "vocab": shape.vocab}
        flop = flops.megatron_flop(inputs["batch"], 2048, **sizes, recompute="full")
    return flop / found.total_s / inputs["gpus"] / 1e12


PREDICT = {
    "act": activations,
    "batch": batch,
    "bubble": bubbles,
    "comm": volumes,
    "cost": lambda case, inputs: budget.cost(*inputs.values()),
    "critical-batch": lambda case, inputs: batching.batch_cost(*inputs.values(), 1.0).steps,
    "flops": training_flop,
    "hfu": hardware_utilisation,
    "hours": lambda case, inputs: run_at({**inputs, "gpus": 1}).gpu_hours,
    "inflight": micro_batches_in_flight,
    "lr": lambda case, inputs: batching.scaled_learning_rate(
        inputs["base_lr"], 256, inputs["batch"], "linear"
    ),
    "mfu": model_utilisation,
    "params": params,
    "plan": plan,
    "roofline": roofline,
    "states": states,
    "steptime": step,
    "tflops": tflop_per_s,
    "time": days,
    "yafsdp": speedups,
}


@every("case", CASES)
def test_published(case):
    predicted = PREDICT[case["category"]](case, case["inputs"])
    slack = {case["tolerance_kind"]: case["tolerance"] or (1e-15 if predicted else 0)}
    assert predicted == pytest.approx(case["expected"], **{"abs": 0, "rel": 0, **slack})


def test_every_case_is_here_once_and_says_where_it_comes_from():
    assert len(CASES) == len({case["id"] for case in CASES}) == 175
    assert {case["category"] for case in CASES} == set(PREDICT)
    assert all(len(case["source"]) > 5 and case["quantity"] for case in CASES)
