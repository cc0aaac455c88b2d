"""Calls in which one parameter differs: the table behind test_every_parameter.py.

PROBES holds for each callable a call and, for each parameter, another value with which the result
differs. RECORDS holds for each class of results some results in which every field differs.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from course_lib import validation
from course_lib.theory import planner
from course_lib.theory.compute import budget, flops, roofline
from course_lib.theory.inputs import hardware, models, parameter_count, schedule_rules, units
from course_lib.theory.inputs.cluster import Cluster
from course_lib.theory.inputs.hardware import PCIE4, Accelerator, Link, accelerator
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import ALONE, Layout
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.shape import LatentAttention, Matrix, TransformerShape
from course_lib.theory.memory import (
    activation_terms,
    activations,
    gather_timeline,
    peak,
    report,
    states,
)
from course_lib.theory.network import (
    bucket_timeline,
    buckets,
    collectives,
    context,
    experts,
    fitting,
    links,
    mesh,
    ring_or_tree,
    sparse,
    step_traffic,
    tensor_parallel,
    zero,
)
from course_lib.theory.network.policy import CommunicationPolicy
from course_lib.theory.pipelines import bubble, schedules, simulation
from course_lib.theory.pipelines.pass_times import PassTimes
from course_lib.theory.pipelines.simulation import timeline
from course_lib.theory.step import batching, recovery, stage, step_time
from course_lib.theory.step.assumptions import Assumptions

# --- what is passed around ---

DENSE = TransformerShape(6, 512, 8, 2048, 5000, 1024, kv_heads=4)
MIXTURE = replace(
    DENSE,
    layers=7,
    mlp="swiglu",
    tied_embeddings=False,
    learned_positions=False,
    experts=8,
    top_k=2,
    shared_experts=1,
    expert_ffn=1024,
    dense_layers=2,
)
LATENT = replace(MIXTURE, kv_heads=8, mla=LatentAttention(96, 64, 32, 16, 32))
PLAIN, STANDARD = Recipe(), Recipe(attention="standard", dropout=True)
FULL = Recipe(recompute="full")
TERMS = [
    activation_terms.activation_terms(Job(DENSE, recipe, sequence=512))
    for recipe in (STANDARD, PLAIN, FULL)
]
SPREAD = Layout(dp=2, tp=2, pp=2, cp=2, accumulation=4)
ZERO_3 = Layout(dp=4, zero_stage=3)
TWO_STAGES = Layout(pp=2, accumulation=4)
H100 = accelerator("H100-SXM")
CLUSTER = Cluster(H100, nodes=4)
SLOW = Cluster(accelerator("A100-SXM-80GB"), nodes=4)
GUESS = Assumptions(mask="full")
WITH_TRAFFIC = Assumptions(overlap={"dp": 0.5, "cp": 0.5})
TIMES = PassTimes(1.0, 3.0)
SLOW_LINK = Link("slow", 1e9, 1e-3)
GRADIENTS = bucket_timeline.model_gradients(DENSE, H100, tokens=64)
NO_EXPERTS = {
    name: DENSE.__dict__[name] for name in ("experts", "top_k", "shared_experts", "expert_ffn")
} | {"dense_layers": 0}


@dataclass(frozen=True)
class Given:
    """Another value of a parameter, together with other arguments; `before` is the first value."""

    value: Any
    others: dict = field(default_factory=dict)
    before: Any = None


@dataclass(frozen=True)
class Probe:
    """A callable, the arguments of a call, and for each parameter another value.

    `see` is what of the result is compared. `refuses`: a ValueError counts as a result.
    """

    call: Callable
    base: dict
    changes: dict
    see: Callable | None = None
    refuses: bool = False

    def outcome(self, arguments: dict) -> Any:
        try:
            result = self.call(**arguments)
            return self.see(result) if self.see else result
        except ValueError as error:
            if not self.refuses:
                raise
            return str(error)

    def differs(self, name: str) -> bool:
        change = self.changes[name]
        change = change if isinstance(change, Given) else Given(change)
        before = self.base | change.others
        if change.before is not None:
            before = before | {name: change.before}
        return self.outcome(before) != self.outcome(before | {name: change.value})


def check(call: Callable, base: dict, changes: dict) -> Probe:
    """A probe of a function that only raises."""
    return Probe(call, base, changes, refuses=True)


def steps_and_memory(recipe: Recipe, layouts: tuple[Layout, ...] = (Layout(dp=4), ZERO_3)) -> list:
    """What a recipe leads to, with copies of the gradients and with gathered layers."""
    return [peak.gpu_memory(Job(MIXTURE, recipe, layout, sequence=512)) for layout in layouts]


def everything(layout: Layout) -> tuple:
    """Memory of all stages, time and batch of a layout."""
    bills = [
        peak.gpu_memory(Job(MIXTURE, PLAIN, layout, sequence=512), stage)
        for stage in range(layout.pp)
    ]
    step = step_time.step_time(
        Job(MIXTURE, PLAIN, layout, Cluster(H100, nodes=16), sequence=512), GUESS
    )
    return bills, step.leaves(), layout.global_batch


def seen_shape(shape: TransformerShape) -> tuple:
    """Parameters, FLOPs and activations of a shape, with the sequence it can take."""
    sequence = min(shape.context, 512)
    kept = activations.head_activation_bytes(Job(shape, PLAIN, sequence=sequence))
    layer = activations.layer_activation_bytes(
        Job(shape, PLAIN, sequence=sequence), shape.layers - 1
    )
    return shape.parameters(), flops.training_flops(shape, 1, sequence), kept, layer, shape.context


def seen_traffic(habits: CommunicationPolicy) -> list[float]:
    """Times of layouts that differ in how they send."""
    tensor = Layout(tp=2, sequence_parallel=True)
    layouts = (Layout(dp=4, accumulation=2), replace(ZERO_3, accumulation=2), tensor)
    return [
        step_traffic.step_traffic(
            Job(DENSE, PLAIN, layout, CLUSTER, sequence=512), policy=habits
        ).seconds
        for layout in layouts
    ]


def seen_times(assumptions: Assumptions) -> list:
    """Step times with context and data parallelism, with and without an offloaded optimizer."""
    layout = Layout(dp=2, cp=2)
    recipes = (PLAIN, Recipe(offload="optimizer"))
    return [
        step_time.step_time(Job(DENSE, recipe, layout, CLUSTER, sequence=512), assumptions).leaves()
        for recipe in recipes
    ]


def seen_chip(chip: Accelerator) -> tuple:
    """Name, ridge, and the memory, rate and links of a cluster of such chips."""
    cluster = Cluster(chip, nodes=2)
    links = cluster.link(2).bytes_per_s, cluster.link(16).bytes_per_s
    fits = planner.plan(DENSE, PLAIN, cluster, 16, sequence=512).capacity_bytes
    name = chip.explain().split(":")[0]
    return name, chip.ridge_flop_per_byte, fits, cluster.matmul_flop_per_s, links


def seen_cluster(cluster: Cluster) -> tuple:
    """Size, links of a small and of a large group, rate, and the price of a step."""
    step = step_time.step_time(Job(DENSE, PLAIN, Layout(dp=8), cluster, sequence=512))
    links = cluster.link(2).bytes_per_s, cluster.link(cluster.world).bytes_per_s
    return cluster.world, links, cluster.matmul_flop_per_s, step.cost_usd(1e9)


# --- probes, module by module ---

WHERE = {"shape": MIXTURE, "recipe": PLAIN, "micro_batch": 2, "sequence": 512, "layout": ALONE}
WHERE_CHANGES = {
    "shape": LATENT,
    "recipe": Recipe("fp32", master_copy=False),
    "micro_batch": 3,
    "sequence": 256,
    "layout": Layout(cp=2),
}
LAYER = WHERE | {"layer": 0}
DROPOUT = WHERE | {"recipe": STANDARD}

ACTIVATIONS = {
    "local_tokens": Probe(
        activations.local_tokens,
        {"layout": ALONE, "micro_batch": 2, "sequence": 512},
        {"layout": Layout(cp=2), "micro_batch": 3, "sequence": 256},
    ),
    "layer_activation_bytes": Probe(
        activations.layer_activation_bytes, LAYER, WHERE_CHANGES | {"layer": 5}
    ),
    "recomputed_bytes": Probe(
        activations.recomputed_bytes,
        LAYER | {"recipe": FULL},
        WHERE_CHANGES | {"recipe": PLAIN, "layer": 5},
    ),
    "embedding_activation_bytes": Probe(
        activations.embedding_activation_bytes,
        DROPOUT,
        WHERE_CHANGES | {"recipe": PLAIN, "shape": replace(DENSE, hidden=1024)},
    ),
    "output_activation_bytes": Probe(
        activations.output_activation_bytes,
        WHERE,
        WHERE_CHANGES | {"shape": replace(DENSE, vocab=100)},
    ),
    "head_activation_bytes": Probe(
        activations.head_activation_bytes,
        WHERE,
        WHERE_CHANGES | {"shape": replace(DENSE, vocab=100)},
    ),
    "logits_bytes": Probe(
        activations.logits_bytes,
        {"shape": DENSE, "micro_batch": 2, "sequence": 512, "layout": ALONE},
        {"shape": replace(DENSE, vocab=9), "micro_batch": 1, "sequence": 4, "layout": SPREAD},
    ),
    "score_bytes": Probe(
        activations.score_bytes,
        {
            "shape": DENSE,
            "recipe": STANDARD,
            "tokens": activations.Tokens(512, 512),
            "sequence": 512,
            "layout": ALONE,
        },
        {
            "shape": replace(DENSE, heads=4),
            "recipe": PLAIN,
            "tokens": activations.Tokens(64, 64),
            "sequence": 256,
            "layout": Layout(tp=2),
        },
    ),
    "norm_bytes": Probe(
        activations.norm_bytes,
        {"recipe": PLAIN, "width": 512},
        {"recipe": Recipe(fused_norms=False), "width": 8},
    ),
    "mlp_width": Probe(
        activations.mlp_width,
        {"shape": MIXTURE, "recipe": PLAIN, "ffn": 64},
        {"shape": DENSE, "recipe": Recipe(fused_swiglu=True), "ffn": 32},
    ),
    "check_batch": check(
        activations.check_batch,
        {"shape": DENSE, "micro_batch": 1, "sequence": 1024},
        {"shape": replace(DENSE, context=512), "micro_batch": 0, "sequence": 1025},
    ),
}

BATCHING = {
    "Batching": Probe(
        batching.Batching,
        {"samples": 1003, "micro_batch": 4, "nodes": 4, "gpus_per_node": 8},
        {
            "samples": 2000,
            "micro_batch": 5,
            "accumulation": 2,
            "nodes": 8,
            "gpus_per_node": 4,
            "tp": 2,
            "pp": 2,
            "cp": 2,
            "sequence": 512,
            "drop_last": True,
        },
        see=lambda cut: (cut.epoch(), cut.tokens_per_batch),
    ),
    "rank_samples": Probe(
        batching.rank_samples,
        {"samples": 10, "dp": 3, "rank": 1},
        {"samples": 20, "dp": 2, "rank": 0, "drop_last": True},
    ),
    "scaled_learning_rate": Probe(
        batching.scaled_learning_rate,
        {"base": 0.1, "base_batch": 256, "batch": 512, "rule": "linear"},
        {"base": 0.2, "base_batch": 128, "batch": 64, "rule": "sqrt"},
    ),
    "batch_cost": Probe(
        batching.batch_cost,
        {"batch": 1.0, "critical_batch": 2.0},
        {"batch": 3.0, "critical_batch": 5.0},
    ),
    "noise_scale": Probe(
        batching.noise_scale,
        {"small": 1, "square_small": 9.0, "big": 10, "square_big": 2.0},
        {"small": 2, "square_small": 8.0, "big": 20, "square_big": 3.0},
    ),
}

BUBBLES = {"stages": 4, "micro_batches": 8, "virtual_stages": 1}
BUBBLES_CHANGES = {"stages": 2, "micro_batches": 4, "virtual_stages": 2}
IN_TURNS = Given(3, {"name": "interleaved"}, before=2)
BUBBLE = {
    "bubble_over_ideal": Probe(bubble.bubble_over_ideal, BUBBLES, BUBBLES_CHANGES),
    "bubble_fraction": Probe(bubble.bubble_fraction, BUBBLES, BUBBLES_CHANGES),
    "bubble_time": Probe(
        bubble.bubble_time,
        BUBBLES | {"name": "naive", "times": None},
        BUBBLES_CHANGES | {"name": "1f1b", "virtual_stages": IN_TURNS, "times": TIMES},
    ),
    "in_flight": Probe(
        bubble.in_flight,
        BUBBLES | {"name": "1f1b", "stage": 0},
        {
            "name": "gpipe",
            "stages": 2,
            "micro_batches": 3,
            "stage": 1,
            "virtual_stages": IN_TURNS,
        },
    ),
}

RATE = {"flop": 1e20, "time_s": 1e3, "gpus": 8}
RATE_CHANGES = {"flop": 2e20, "time_s": 2e3, "gpus": 16}
WORK = {"flops": flops.training_flops(DENSE, 1, 512), "time_s": 1.0, "gpus": 2}
USED = {
    "flops": flops.training_flops(DENSE, 2, 512),
    "time_s": 2.0,
    "gpus": 4,
    "peak_flop_per_s": 2e15,
}
MONEY = {"gpu_hour_usd": 3.0}
BUDGET = {
    "TrainingRun": Probe(
        budget.TrainingRun,
        {"time_s": 1e5, "gpus": 8},
        {"time_s": 2e5, "gpus": 16} | MONEY,
        see=lambda run: (run.gpu_hours, run.cost_usd),
    ),
    "training_run": Probe(
        budget.training_run,
        {"flop": 1e20, "gpus": 8, "flop_per_s_per_gpu": 1e14},
        {"flop": 2e20, "gpus": 9, "flop_per_s_per_gpu": 2e14} | MONEY,
        see=lambda run: (run.time_s, run.cost_usd),
    ),
    "training_run_at": Probe(
        budget.training_run_at,
        {"tokens": 1e12, "gpus": 8, "tokens_per_s_per_gpu": 400.0},
        {"tokens": 2e12, "gpus": 9, "tokens_per_s_per_gpu": 500.0} | MONEY,
        see=lambda run: (run.time_s, run.cost_usd),
    ),
    "training_days": Probe(
        budget.training_days,
        {"tokens": 1e12, "parameters": 1e9, "gpus": 8, "flop_per_s_per_gpu": 1e14},
        {
            "tokens": 2e12,
            "parameters": 2e9,
            "gpus": 9,
            "flop_per_s_per_gpu": 2e14,
            "recompute": "none",
        },
    ),
    "cost": Probe(
        budget.cost, {"gpu_hours": 10.0, "gpu_hour_usd": 2.0}, {"gpu_hours": 20.0} | MONEY
    ),
    "achieved_flop_per_s": Probe(budget.achieved_flop_per_s, RATE, RATE_CHANGES),
    "utilisation": Probe(
        budget.utilisation,
        RATE | {"peak_flop_per_s": 1e15},
        RATE_CHANGES | {"peak_flop_per_s": 2e15},
    ),
    "mfu": Probe(budget.mfu, WORK | {"peak_flop_per_s": 1e15}, USED),
    "hfu": Probe(budget.hfu, WORK | {"peak_flop_per_s": 1e15}, USED),
}

SENT = {"operation": "all-reduce", "size_bytes": 1e6, "ranks": 8}
SENT_CHANGES = {"operation": "broadcast", "size_bytes": 2e6, "ranks": 16}
CALL = {"operation": "all-reduce", "ranks": 8}
CALL_CHANGES = {"operation": "broadcast", "ranks": 16, "algorithm": "tree"}
LINK_NUMBERS = {"latency_s": 1e-5, "bytes_per_s": 1e10}
LINK_CHANGES = {"latency_s": 2e-5, "bytes_per_s": 2e10}
TENSOR = {"micro_batch": 2, "sequence": 512, "hidden": 64}
TENSOR_CHANGES = {"micro_batch": 1, "sequence": 256, "hidden": 128, "element_bytes": 4}
REACH = {"hidden": 8192, "peak_flop_per_s": 1e14, "bytes_per_s": 1e11}
REACH_CHANGES = {"hidden": 4096, "peak_flop_per_s": 2e14, "bytes_per_s": 2e11, "element_bytes": 4}
FASTER = {"peak_flop_per_s": 2e14, "bytes_per_s": 2e11}
COLLECTIVES = {
    "bus_factor": Probe(collectives.bus_factor, CALL, {"operation": "broadcast", "ranks": 16}),
    "sent_bytes": Probe(collectives.sent_bytes, SENT, SENT_CHANGES),
    "steps": Probe(collectives.steps, CALL, CALL_CHANGES),
    "messages": Probe(collectives.messages, CALL, CALL_CHANGES),
    "seconds": Probe(
        collectives.seconds,
        SENT | LINK_NUMBERS,
        SENT_CHANGES | LINK_CHANGES | {"algorithm": "tree"},
    ),
    "crossover_bytes": Probe(
        collectives.crossover_bytes,
        {"ranks": 8} | LINK_NUMBERS,
        {"ranks": 16, "tree": "tree", "efficiency": 0.5} | LINK_CHANGES,
    ),
    "algorithm_bandwidth": Probe(
        collectives.algorithm_bandwidth,
        {"size_bytes": 1e6, "time_s": 1.0},
        {"size_bytes": 2e6, "time_s": 2.0},
    ),
    "bus_bandwidth": Probe(
        collectives.bus_bandwidth, SENT | {"time_s": 1.0}, SENT_CHANGES | {"time_s": 2.0}
    ),
    "zero_volume": Probe(
        collectives.zero_volume,
        {"size_bytes": 1e6, "zero_stage": 0},
        {"size_bytes": 2e6, "zero_stage": 3, "ranks": 4},
    ),
    "tensor_parallel_bytes": Probe(
        collectives.tensor_parallel_bytes, TENSOR | {"tp": 4}, TENSOR_CHANGES | {"tp": 8}
    ),
    "activation_bytes": Probe(collectives.activation_bytes, TENSOR, TENSOR_CHANGES),
    "qkv_intensity": Probe(
        collectives.qkv_intensity,
        {"hidden": 64, "tp": 4},
        {"hidden": 32, "tp": 8, "element_bytes": 4},
    ),
    "layer_intensity": Probe(
        collectives.layer_intensity,
        {"hidden": 64, "tp": 4},
        {"hidden": 32, "tp": 8, "element_bytes": 4, "layer_parameters": 10**6},
    ),
    "qkv_tp_reach": Probe(collectives.qkv_tp_reach, REACH, REACH_CHANGES),
    "layer_tp_reach": Probe(
        collectives.layer_tp_reach, REACH, REACH_CHANGES | {"layer_parameters": 10**9}
    ),
    "ridge": Probe(collectives.ridge, {"peak_flop_per_s": 1e14, "bytes_per_s": 1e11}, FASTER),
    "needed_bytes_per_s": Probe(
        collectives.needed_bytes_per_s,
        {"peak_flop_per_s": 1e14, "flop_per_byte": 10.0},
        {"peak_flop_per_s": 2e14, "flop_per_byte": 20.0},
    ),
}

MEASURED = {"sizes_bytes": [1e3, 1e6], "seconds": [1e-3, 2e-3]}
FITTING = {
    "fit_alpha_beta": Probe(
        fitting.fit_alpha_beta,
        CALL | MEASURED,
        CALL_CHANGES | {"sizes_bytes": [1e3, 2e6], "seconds": [1e-3, 3e-3]},
    ),
}

ENTRY = step_traffic.Collective("dp", "gradients", "all-reduce", 2, 1e6, 8, H100.inside)
COMMUNICATION = {
    "gradient_syncs": Probe(
        buckets.gradient_syncs,
        {"micro_steps": 8, "accumulation": 4, "no_sync": True},
        {"micro_steps": 16, "accumulation": 2, "no_sync": False},
    ),
    "ddp_buckets": Probe(
        buckets.ddp_buckets,
        {"gradient_bytes": [4] * 8, "cap_bytes": 8, "first_bytes": 4},
        {"gradient_bytes": [4] * 9, "cap_bytes": 12, "first_bytes": 8},
    ),
    "ddp_all_reduces": Probe(
        buckets.ddp_all_reduces, {"syncs": 3, "buckets": 4}, {"syncs": 5, "buckets": 6}
    ),
    "Collective": Probe(
        step_traffic.Collective,
        {f.name: getattr(ENTRY, f.name) for f in dataclasses.fields(ENTRY)},
        {
            "axis": "tp",
            "what": "activations",
            "operation": "broadcast",
            "count": 3,
            "size_bytes": 2e6,
            "ranks": 4,
            "link": PCIE4,
            "algorithm": "tree",
        },
        see=lambda entry: (entry.seconds, entry.axis, entry.what),
    ),
    "Traffic": Probe(
        step_traffic.Traffic,
        {"collectives": (ENTRY,)},
        {"collectives": (ENTRY, ENTRY), "overlap": {"dp": 0.5}},
        see=lambda sent: sent.exposed_seconds,
    ),
    "Traffic.explain": Probe(step_traffic.Traffic((ENTRY,)).explain, {}, {"unit": "GiB"}),
    "group_link": Probe(
        links.group_link,
        {"cluster": CLUSTER, "operation": "all-to-all", "ranks": 16},
        {"cluster": SLOW, "operation": "all-reduce", "ranks": 4, "stride": 2},
        see=lambda link: (link.bytes_per_s, link.latency_s),
    ),
    "saved_fraction": Probe(
        budget.saved_fraction,
        {"before_s": 4.0, "after_s": 3.0},
        {"before_s": 5.0, "after_s": 2.0},
    ),
    "throughput_gain": Probe(
        budget.throughput_gain,
        {"before_s": 4.0, "after_s": 3.0},
        {"before_s": 5.0, "after_s": 2.0},
    ),
}

CONVENTIONS = {"mask": "causal", "recompute": "full", "attention": "flash"}
GPT = {"batch": 4, "sequence": 512, "layers": 4, "hidden": 64, "vocab": 1000}
FLOPS = {
    "FlopBreakdown.times": Probe(
        flops.training_flops(DENSE, 1, 8).times, {"layers": 2}, {"layers": 3}
    ),
    "training_flops": Probe(
        flops.training_flops,
        {"shape": DENSE},
        {"shape": MIXTURE, "sequences": 2, "sequence": 512} | CONVENTIONS,
        see=flops.FlopBreakdown.leaves,
    ),
    "layer_flops": Probe(
        flops.layer_flops,
        {"shape": MIXTURE, "layer": 0, "sequences": 1, "sequence": 512},
        {"shape": LATENT, "layer": 5, "sequences": 2, "sequence": 256} | CONVENTIONS,
        see=flops.FlopBreakdown.leaves,
    ),
    "head_flops": Probe(
        flops.head_flops,
        {"shape": DENSE, "sequences": 1, "sequence": 512},
        {"shape": replace(DENSE, vocab=100), "sequences": 2, "sequence": 256},
        see=flops.FlopBreakdown.leaves,
    ),
    "six_nd": Probe(
        flops.six_nd,
        {"parameters": 1e9, "tokens": 1e12},
        {"parameters": 2e9, "tokens": 2e12, "recompute": "full"},
    ),
    "palm_flop_per_token": Probe(
        flops.palm_flop_per_token,
        {"parameters": 1e9, "layers": 4, "heads": 4, "head_dim": 8, "sequence": 64},
        {"parameters": 2e9, "layers": 5, "heads": 5, "head_dim": 9, "sequence": 65},
    ),
    "megatron_flop": Probe(
        flops.megatron_flop,
        GPT,
        {name: size + 1 for name, size in GPT.items()} | {"recompute": "none"},
    ),
}

CHIP = {f.name: getattr(H100, f.name) for f in dataclasses.fields(H100)}
SPREAD_OUT = {"group": 16, "stride": 1}
HARDWARE = {
    "Link": Probe(
        Link,
        {"name": "wire", "bytes_per_s": 1e9},
        {"name": "cable", "bytes_per_s": 2e9, "latency_s": 1e-6},
        see=Link.explain,
    ),
    "Accelerator": Probe(
        Accelerator,
        CHIP,
        {
            "name": "chip",
            "peak_flop_per_s": 1e15,
            "memory_bytes": 10**10,
            "memory_bytes_per_s": 1e12,
            "inside": PCIE4,
            "between": PCIE4,
            "matmul_efficiency": 0.5,
        },
        see=seen_chip,
    ),
    "Accelerator.attainable_flop_per_s": Probe(
        H100.attainable_flop_per_s, {"flop_per_byte": 1.0}, {"flop_per_byte": 2.0}
    ),
    "Cluster": Probe(
        Cluster,
        {"accelerator": H100, "nodes": 2},
        {
            "accelerator": SLOW.accelerator,
            "nodes": 4,
            "gpus_per_node": 16,
            "inside": SLOW_LINK,
            "between": SLOW_LINK,
            "matmul_efficiency": 0.5,
            "gpu_hour_usd": 3.0,
        },
        see=seen_cluster,
    ),
    "Cluster.link": Probe(CLUSTER.link, {"group": 4, "stride": 1}, {"group": 16, "stride": 8}),
    "tensor_core_peak": Probe(
        hardware.tensor_core_peak,
        {"clock_hz": 1e9, "fma_per_clock": 256, "tensor_cores": 432},
        {"clock_hz": 2e9, "fma_per_clock": 512, "tensor_cores": 528},
    ),
    "ridge": Probe(
        hardware.ridge,
        {"flop_per_s": 1e14, "bytes_per_s": 1e12},
        {"flop_per_s": 2e14, "bytes_per_s": 2e12},
    ),
    "matmul_intensity": Probe(
        hardware.matmul_intensity,
        {"rows": 64, "inner": 32, "columns": 16},
        {"rows": 65, "inner": 33, "columns": 17, "element_bytes": 4},
    ),
    "accelerator": Probe(accelerator, {"name": "H100-SXM"}, {"name": "RTX4090"}),
}

LAYOUT = {
    "Layout": Probe(
        Layout,
        {"dp": 2, "tp": 2, "pp": 2, "cp": 2, "accumulation": 4},
        {
            "dp": 4,
            "tp": 4,
            "pp": 3,
            "cp": 4,
            "ep": 2,
            "zero_stage": 1,
            "sequence_parallel": True,
            "micro_batch": 2,
            "accumulation": 8,
            "schedule": "gpipe",
            "virtual_stages": Given(3, {"schedule": "interleaved"}, before=2),
            "stage_layers": (1, 6),
        },
        see=everything,
    ),
    "Layout.check": check(
        Layout(tp=8, cp=2).check,
        {"shape": replace(DENSE, kv_heads=8), "sequence": 512},
        {"shape": replace(DENSE, heads=4), "sequence": 511},
    ),
    "Layout.check_sequence": check(SPREAD.check_sequence, {"sequence": 512}, {"sequence": 511}),
    "Layout.check_world": check(SPREAD.check_world, {"world": 16}, {"world": 8}),
    "Layout.chunk_layers": Probe(SPREAD.chunk_layers, {"shape": DENSE}, {"shape": MIXTURE}),
    "Layout.stage_chunks": Probe(SPREAD.stage_chunks, {"stage": 0}, {"stage": 1}),
    "Layout.in_flight": Probe(SPREAD.in_flight, {"stage": 0}, {"stage": 1}),
}

BILL = peak.gpu_memory(Job(MIXTURE, PLAIN, SPREAD, sequence=512))
MEMORY = {
    "training_memory": Probe(
        peak.training_memory,
        {"shape": DENSE, "recipe": PLAIN, "micro_batch": 1},
        {
            "shape": MIXTURE,
            "recipe": STANDARD,
            "micro_batch": 2,
            "sequence": 512,
            "overhead_bytes": 0,
        },
    ),
    "gpu_memory": Probe(
        peak.gpu_memory,
        {"shape": DENSE, "recipe": PLAIN, "layout": TWO_STAGES},
        {
            "shape": MIXTURE,
            "recipe": STANDARD,
            "layout": SPREAD,
            "sequence": 512,
            "stage": 1,
            "overhead_bytes": 0,
        },
    ),
    "worst_stage": Probe(
        peak.worst_stage,
        {"shape": DENSE, "recipe": PLAIN, "layout": TWO_STAGES},
        {
            "shape": MIXTURE,
            "recipe": STANDARD,
            "layout": SPREAD,
            "sequence": 512,
            "overhead_bytes": 0,
        },
    ),
    "host_bytes": Probe(
        peak.host_bytes,
        {"shape": MIXTURE, "recipe": Recipe(offload="optimizer"), "layout": TWO_STAGES},
        {"shape": LATENT, "recipe": PLAIN, "layout": ALONE, "stage": 1},
    ),
    "fewest_gpus": Probe(
        peak.fewest_gpus,
        {"total_bytes": 1e12, "gpu_bytes": 8e10},
        {"total_bytes": 2e12, "gpu_bytes": 4e10},
    ),
}

PIPELINE = {
    "PassTimes": Probe(
        PassTimes,
        {"forward": 1.0, "backward": 2.0},
        {"forward": 1.5, "backward": 3.0, "weight": 0.5, "overlapped": 2.5, "transfer": 0.5},
        see=lambda times: [timeline(s, 4, 8, times=times).makespan for s in ("zb1p", "dualpipe")],
    ),
    "PassTimes.of": Probe(TIMES.of, {"stages": 2}, {"stages": 3}),
    "Timeline.in_flight": Probe(timeline("1f1b", 4, 8).in_flight, {"stage": 0}, {"stage": 1}),
    "timeline": Probe(
        timeline,
        BUBBLES | {"name": "gpipe"},
        BUBBLES_CHANGES | {"name": "1f1b", "virtual_stages": IN_TURNS, "times": TIMES},
        see=lambda run: run.tasks,
    ),
    "simulate": Probe(
        simulation.simulate,
        {"plan": schedules.schedule("gpipe", 4, 8), "times": PassTimes()},
        {"plan": schedules.schedule("1f1b", 4, 8), "times": TIMES},
        see=lambda run: run.tasks,
    ),
}

SMALL_CLUSTER = Cluster(replace(H100, memory_bytes=2 * 10**9), nodes=2, gpus_per_node=2)
PLAN = planner.plan(DENSE, PLAIN, SMALL_CLUSTER, 8, sequence=512)
FIRST, SECOND = PLAN.best(2)
PLANNER = {
    "plan": Probe(
        planner.plan,
        {
            "shape": DENSE,
            "recipe": PLAIN,
            "cluster": SMALL_CLUSTER,
            "global_batch": 8,
            "sequence": 512,
        },
        {
            "shape": MIXTURE,
            "recipe": STANDARD,
            "cluster": Cluster(H100, gpus_per_node=4),
            "global_batch": 16,
            "sequence": 256,
            "assumptions": GUESS,
            "overhead_bytes": 0,
            "only": {"tp": (2,)},
        },
        see=lambda plan: [(one.memory_bytes, one.step_s) for one in plan.best(5)],
    ),
    "Plan.best": Probe(PLAN.best, {"count": 1}, {"count": 2}),
    "Plan.meshes": Probe(PLAN.meshes, {"count": 1}, {"count": 2}),
    "Plan.why": Probe(
        PLAN.why, {"layout": FIRST.layout}, {"layout": Layout(dp=3), "recompute": "full"}
    ),
    "Plan.memory": Probe(PLAN.memory, {"option": FIRST}, {"option": SECOND}),
    "Plan.step": Probe(PLAN.step, {"option": FIRST}, {"option": SECOND}),
    "Plan.explain": Probe(PLAN.explain, {"count": 1}, {"count": 2}),
}

RECIPE = {
    "Recipe": Probe(
        Recipe,
        {},
        {
            "parameters": Given("fp32", {"master_copy": False}),
            "gradients": "fp32",
            "optimizer": "sgd",
            "master_copy": False,
            "gradient_buffer": True,
            "attention": "standard",
            "recompute": "full",
            "dropout": True,
            "fused_norms": False,
            "fused_swiglu": True,
            "repeat_kv": True,
            "imbalance": 1.5,
            "gathering": "yafsdp",
            "gathered_units": 3,
            "gradient_as_bucket_view": True,
            "offload": "optimizer",
        },
        see=steps_and_memory,
    )
}

ORDER = {"stage": 1, "stages": 4, "micro_batches": 8}
ORDER_CHANGES = {"stage": 0, "stages": 8, "micro_batches": 16}
SCHEDULES = {
    "schedule": Probe(
        schedules.schedule,
        BUBBLES | {"name": "gpipe"},
        BUBBLES_CHANGES | {"name": "1f1b", "virtual_stages": IN_TURNS},
        see=lambda plan: plan.orders,
    ),
    "check_schedule": check(
        schedule_rules.check_schedule,
        {"name": "dualpipe", "stages": 4, "micro_batches": 8, "virtual_stages": 1},
        {"name": "pipes", "stages": 3, "micro_batches": 6, "virtual_stages": 2},
    ),
    "naive_order": Probe(schedules.naive_order, ORDER, {"micro_batches": 16}),
    "gpipe_order": Probe(schedules.gpipe_order, ORDER, {"micro_batches": 16}),
    "one_f_one_b_order": Probe(schedules.one_f_one_b_order, ORDER, ORDER_CHANGES),
    "interleaved_order": Probe(
        schedules.interleaved_order,
        ORDER | {"virtual_stages": 2},
        ORDER_CHANGES | {"virtual_stages": 3},
    ),
    "zb1p_order": Probe(schedules.zb1p_order, ORDER, ORDER_CHANGES),
    "dualpipe_order": Probe(
        schedules.dualpipe_order,
        ORDER | {"micro_batches": 16},
        ORDER_CHANGES | {"micro_batches": 20},
    ),
}

ROUTED = {name: getattr(MIXTURE, name) for name in NO_EXPERTS}
SIZES = {f.name: getattr(DENSE, f.name) for f in dataclasses.fields(DENSE)}
SHAPE = {
    "LatentAttention": Probe(
        LatentAttention,
        {"q_rank": 96, "kv_rank": 64, "nope_dim": 32, "rope_dim": 16, "value_dim": 32},
        {"q_rank": None, "kv_rank": 65, "nope_dim": 33, "rope_dim": 17, "value_dim": 33},
        see=lambda latent: seen_shape(replace(LATENT, mla=latent)),
    ),
    "TransformerShape": Probe(
        TransformerShape,
        SIZES,
        {
            "layers": 7,
            "hidden": 1024,
            "heads": 16,
            "ffn": 1024,
            "vocab": 100,
            "context": 600,
            "kv_heads": 2,
            "mlp": "swiglu",
            "norm": "rmsnorm",
            "biases": False,
            "learned_positions": False,
            "tied_embeddings": False,
            "head_dim": 32,
            "experts": Given(16, ROUTED, before=8),
            "top_k": Given(3, ROUTED),
            "shared_experts": Given(2, ROUTED),
            "expert_ffn": Given(512, ROUTED),
            "dense_layers": Given(3, ROUTED),
            "mla": Given(LATENT.mla, {"kv_heads": 8}),
        },
        see=seen_shape,
    ),
    "Matrix": Probe(
        Matrix,
        {"place": "mlp", "inputs": 8, "outputs": 16, "bias": True},
        {"place": "attention", "inputs": 9, "outputs": 17, "bias": False, "copies": 4, "used": 2},
        see=lambda one: (one.place, one.copies * one.parameters, one.forward_flop),
    ),
    "TransformerShape.check_sequence": check(
        DENSE.check_sequence, {"sequence": 1024}, {"sequence": 1025}
    ),
    "TransformerShape.has_experts": Probe(MIXTURE.has_experts, {"layer": 1}, {"layer": 2}),
    "TransformerShape.layer_matrices": Probe(MIXTURE.layer_matrices, {"layer": 1}, {"layer": 2}),
    "TransformerShape.layer_parameters": Probe(
        MIXTURE.layer_parameters, {"layer": 1}, {"layer": 2}
    ),
}

ON_STAGE = {
    "shape": DENSE,
    "recipe": PLAIN,
    "layout": TWO_STAGES,
    "sequence": 512,
    "assumptions": GUESS,
}
ON_STAGE_CHANGES = {
    "shape": MIXTURE,
    "recipe": STANDARD,
    "layout": SPREAD,
    "sequence": 256,
    "assumptions": Assumptions(touches=1),
}
LOCAL = states.local_parameters(MIXTURE)
STAGETIME = {
    "Assumptions": Probe(
        Assumptions,
        {},
        {
            "layer_efficiency": 0.5,
            "touches": 1,
            "mask": "full",
            "overlap": {"dp": 0.0},
            "habits": CommunicationPolicy(),
            "host_link": SLOW_LINK,
        },
        see=seen_times,
    ),
    "Assumptions.attention_mask": Probe(
        Assumptions().attention_mask, {"recipe": PLAIN}, {"recipe": STANDARD}
    ),
    "Assumptions.exchanges_each_pass": Probe(
        Assumptions().exchanges_each_pass, {"zero_stage": 1}, {"zero_stage": 2}
    ),
    "Work.times": Probe(stage.Work(1.0, 1.0, 1.0).times, {"count": 2}, {"count": 3}),
    "stage_time": Probe(
        stage.stage_busy_time,
        ON_STAGE | {"cluster": CLUSTER, "stage": 0},
        ON_STAGE_CHANGES | {"cluster": SLOW, "stage": 1},
        see=lambda times: replace(times, stage=0),
    ),
    "exposed": Probe(
        stage.exposed,
        {"seconds": 4.0, "overlap": 0.5, "window_s": 3.0},
        {"seconds": 5.0, "overlap": 0.25, "window_s": 1.0},
    ),
    "flop_conventions": Probe(
        stage.flop_conventions,
        {"recipe": PLAIN, "assumptions": Assumptions()},
        {"recipe": FULL, "assumptions": GUESS},
    ),
    "layer_work": Probe(
        stage.layer_work,
        ON_STAGE | {"shape": MIXTURE, "layer": 0},
        ON_STAGE_CHANGES | {"shape": LATENT, "layer": 5},
    ),
    "head_work": Probe(
        stage.head_work,
        ON_STAGE,
        ON_STAGE_CHANGES | {"shape": replace(DENSE, vocab=9), "recipe": Recipe(fused_norms=False)},
    ),
    "stage_work": Probe(stage.stage_work, ON_STAGE | {"stage": 0}, ON_STAGE_CHANGES | {"stage": 1}),
    "layer_rate": Probe(
        stage.layer_rate,
        {"cluster": CLUSTER, "assumptions": GUESS},
        {"cluster": SLOW, "assumptions": Assumptions(layer_efficiency=0.5)},
    ),
    "update_seconds": Probe(
        stage.update_seconds,
        {
            "local": LOCAL,
            "recipe": PLAIN,
            "layout": ALONE,
            "cluster": CLUSTER,
            "assumptions": GUESS,
        },
        {
            "local": states.LocalParameters(10),
            "recipe": Recipe(optimizer="sgd"),
            "layout": ZERO_3,
            "cluster": SLOW,
            "assumptions": Given(
                Assumptions(host_link=SLOW_LINK), {"recipe": Recipe(offload="optimizer")}
            ),
        },
    ),
}

STATES = {
    "local_parameters": Probe(
        states.local_parameters,
        {"shape": DENSE, "layout": TWO_STAGES},
        {"shape": MIXTURE, "layout": SPREAD, "stage": 1},
    ),
    "layer_kinds": Probe(
        states.layer_kinds,
        {"shape": MIXTURE, "start": 1, "stop": 4},
        {"shape": replace(MIXTURE, dense_layers=3), "start": 0, "stop": 5},
    ),
    "model_states": Probe(
        states.model_states,
        {"parameters": 10**6, "recipe": PLAIN},
        {"parameters": 10**7, "recipe": Recipe(optimizer="sgd"), "layout": ZERO_3},
    ),
    "sharded_states": Probe(
        states.sharded_states,
        {"local": LOCAL, "recipe": PLAIN, "layout": ZERO_3},
        {"local": states.LocalParameters(8), "recipe": Recipe(optimizer="sgd"), "layout": ALONE},
    ),
    "sharding_buffers": Probe(
        states.sharding_buffers,
        {"local": LOCAL, "recipe": PLAIN, "layout": ZERO_3},
        {"local": states.LocalParameters(8), "recipe": Recipe(gathered_units=1), "layout": ALONE},
    ),
    "LocalParameters": Probe(
        states.LocalParameters,
        {f.name: 1000 for f in dataclasses.fields(LOCAL)},
        {f.name: 2000 for f in dataclasses.fields(LOCAL)} | {"table": 5000},
        see=lambda local: [
            (states.sharded_states(local, one, ZERO_3), states.sharding_buffers(local, one, ZERO_3))
            for one in (PLAIN, Recipe(gathering="yafsdp"))
        ],
    ),
}

STEP = step_time.step_time(Job(DENSE, PLAIN, TWO_STAGES, CLUSTER, sequence=512))
AMOUNT = ({"tokens": 1e9}, {"tokens": 2e9})
STEPTIME = {
    "StepTime.run": Probe(STEP.run, *AMOUNT),
    "StepTime.days": Probe(STEP.days, *AMOUNT),
    "StepTime.cost_usd": Probe(STEP.cost_usd, *AMOUNT),
    "step_time": Probe(
        step_time.step_time,
        {"shape": DENSE, "recipe": PLAIN, "layout": TWO_STAGES, "cluster": CLUSTER},
        {
            "shape": MIXTURE,
            "recipe": STANDARD,
            "layout": SPREAD,
            "cluster": SLOW,
            "sequence": 512,
            "assumptions": GUESS,
        },
        see=step_time.StepTime.leaves,
    ),
}

TRAFFIC = {
    "CommunicationPolicy": Probe(
        CommunicationPolicy,
        {},
        {
            "no_sync": False,
            "bucket_bytes": 10**6,
            "reshard": False,
            "gather_inputs_again": True,
            "algorithm": "tree",
        },
        see=seen_traffic,
    ),
    "step_traffic": Probe(
        step_traffic.step_traffic,
        {
            "shape": DENSE,
            "recipe": PLAIN,
            "layout": SPREAD,
            "sequence": 512,
            "cluster": CLUSTER,
        },
        {
            "shape": MIXTURE,
            "recipe": FULL,
            "layout": TWO_STAGES,
            "sequence": 256,
            "cluster": SLOW,
            "stage": 1,
            "habits": CommunicationPolicy(bucket_bytes=10**5),
            "overlap": {"dp": 0.5},
        },
        see=lambda sent: (sent.seconds, sent.exposed_seconds),
    ),
}

UNITS = {
    "gb": Probe(units.gb, {"size_bytes": 1e9}, {"size_bytes": 2e9}),
    "gib": Probe(units.gib, {"size_bytes": 1e9}, {"size_bytes": 2e9}),
    "format_bytes": Probe(
        units.format_bytes, {"size_bytes": 1e9}, {"size_bytes": 2e9, "unit": "GiB", "digits": 3}
    ),
    "format_count": Probe(units.format_count, {"count": 1e9}, {"count": 2e9}),
    "format_seconds": Probe(units.format_seconds, {"seconds": 1.0}, {"seconds": 2e-3}),
    "format_flop": Probe(units.format_flop, {"flop": 1e9}, {"flop": 2e9}),
    "parse_count": Probe(units.parse_count, {"text": "1B"}, {"text": "2B"}),
}

VALIDATION = {
    "whole": check(
        validation.whole,
        {"name": "dp", "value": 5, "least": 1, "most": 10},
        {"name": Given("tp", {"value": 0}), "value": 11, "least": 6, "most": 4},
    ),
    "number": check(
        validation.number,
        {"name": "x", "value": 5.0, "above": 1.0, "least": 2.0, "most": 10.0},
        {
            "name": Given("y", {"value": 0.0}),
            "value": 11.0,
            "above": 6.0,
            "least": 6.0,
            "most": 4.0,
        },
    ),
    "divisible": check(
        validation.divisible,
        {"name": "heads", "value": 9, "by_name": "tp", "by": 2},
        {"name": "layers", "value": 8, "by_name": "pp", "by": 3},
    ),
    "choice": check(
        validation.choice,
        {"name": "unit", "value": "KB", "allowed": ["GB"]},
        {"name": "size", "value": "GB", "allowed": ["GB", "KB"]},
    ),
    "flag": check(
        validation.flag,
        {"name": "dropout", "value": 1},
        {"name": "biases", "value": True},
    ),
}

OTHERS = {
    "activation_terms.activation_terms": Probe(
        activation_terms.activation_terms,
        {"shape": DENSE, "recipe": STANDARD, "micro_batch": 1, "sequence": 512},
        {
            "shape": replace(DENSE, hidden=1024),
            "recipe": PLAIN,
            "micro_batch": 2,
            "sequence": 256,
            "layout": Layout(tp=2),
        },
    ),
    "activation_terms.ActivationTerms.explain": Probe(TERMS[0].explain, {}, {"unit": "GiB"}),
    "breakdown.MemoryBreakdown.explain": Probe(BILL.explain, {}, {"unit": "GiB"}),
    "memory_report.explain_memory": Probe(
        report.explain_memory,
        {"shape": DENSE, "recipe": PLAIN, "layout": TWO_STAGES},
        {
            "shape": MIXTURE,
            "recipe": STANDARD,
            "layout": SPREAD,
            "sequence": 512,
            "stage": 1,
            "unit": "GiB",
        },
    ),
    "models.model": Probe(models.model, {"name": "gpt2-124m"}, {"name": "llama2-7b"}),
    "parameter_count.ParameterCount.times": Probe(
        DENSE.parameters().times, {"layers": 2}, {"layers": 3}
    ),
    "gather_timeline.GatherTimeline.explain": Probe(
        gather_timeline.gather_timeline(DENSE, PLAIN, 2).explain,
        {},
        {"unit": "GiB"},
    ),
    "gather_timeline.gather_timeline": Probe(
        gather_timeline.gather_timeline,
        {"shape": DENSE, "recipe": PLAIN, "ranks": 2},
        {
            "shape": replace(DENSE, layers=3),
            "recipe": Recipe(gathering="yafsdp"),
            "ranks": 4,
            "reshard": False,
            "prefetch": False,
        },
    ),
    "tensor_parallel.CutLayer": Probe(
        tensor_parallel.CutLayer,
        {"hidden": 4096, "tp": 4, "peak_flop_per_s": 1e14, "link": PCIE4},
        {
            "hidden": 2048,
            "tp": 8,
            "peak_flop_per_s": 2e14,
            "link": SLOW_LINK,
            "tokens": 1024,
            "element_bytes": 4,
        },
        see=lambda layer: (layer.compute_s, layer.communication_s, layer.qkv_reach),
    ),
    "tensor_parallel.kv_copies": Probe(
        tensor_parallel.kv_copies, {"kv_heads": 8, "tp": 16}, {"kv_heads": 4, "tp": 32}
    ),
    "tensor_parallel.qkv_rows": Probe(
        tensor_parallel.qkv_rows,
        {"heads": 8, "kv_heads": 4, "width": 2, "tp": 2, "rank": 0},
        {"heads": 16, "kv_heads": 2, "width": 4, "tp": 4, "rank": 1},
    ),
    "context.chunks": Probe(
        context.chunks,
        {"rank": 1, "ranks": 4, "zigzag": True},
        {"rank": 2, "ranks": 8, "zigzag": False},
    ),
    "context.rank_scores": Probe(
        context.rank_scores,
        {"sequence": 64, "rank": 1, "ranks": 4},
        {"sequence": 128, "rank": 2, "ranks": 8, "zigzag": True, "masked": False},
    ),
    "context.hidden_ring_tokens": Probe(
        context.hidden_ring_tokens,
        {"flop_per_s": 1e15, "bytes_per_s": 1e10, "hidden": 64, "kv_width": 16},
        {
            "flop_per_s": 2e15,
            "bytes_per_s": 2e10,
            "hidden": 128,
            "kv_width": 32,
            "element_bytes": 4,
        },
    ),
    "experts.capacity": Probe(
        experts.capacity,
        {"choices": 1024, "experts": 8, "factor": 1.25},
        {"choices": 2048, "experts": 16, "factor": None},
    ),
    "experts.zipf_load": Probe(
        experts.zipf_load,
        {"tokens": 1024, "experts": 8, "top_k": 2, "skew": 0.5},
        {"tokens": 2048, "experts": 16, "top_k": 1, "skew": 1.0},
    ),
    "experts.expert_load": Probe(
        experts.expert_load,
        {"tokens": 1024, "experts": 8, "skew": 0.5},
        {
            "tokens": 2048,
            "experts": 16,
            "top_k": 2,
            "capacity_factor": 1.0,
            "ranks": 4,
            "row_bytes": 64,
            "skew": 1.0,
        },
    ),
    "experts.balance_loss": Probe(
        experts.balance_loss,
        {"load": (3, 1), "probabilities": (0.7, 0.3)},
        {"load": (2, 2), "probabilities": (0.5, 0.6)},
    ),
    "experts.routed_bytes": Probe(
        experts.routed_bytes,
        {"kept": ((3, 1), (5, 2)), "rank": 0, "row_bytes": 4},
        {"kept": ((4, 1), (5, 2)), "rank": 1, "row_bytes": 8, "passes": 3},
    ),
    "roofline.model_roofline": Probe(
        roofline.model_roofline,
        {"shape": DENSE, "accelerator": accelerator("H100-SXM"), "tokens": 64},
        {
            "shape": replace(DENSE, layers=3),
            "accelerator": accelerator("RTX4090"),
            "tokens": 128,
            "element_bytes": 4,
        },
    ),
    "overlap.ddp_timeline": Probe(
        bucket_timeline.ddp_timeline,
        {"gradients": GRADIENTS, "ranks": 2, "link": SLOW_LINK, "cap_bytes": 10**6},
        {
            "gradients": GRADIENTS[1:],
            "ranks": 4,
            "link": PCIE4,
            "cap_bytes": 10**7,
            "first_bytes": 100,
            "overlap": False,
        },
    ),
    "overlap.model_gradients": Probe(
        bucket_timeline.model_gradients,
        {"shape": DENSE, "accelerator": H100, "tokens": 64},
        {
            "shape": replace(DENSE, layers=3),
            "accelerator": accelerator("RTX4090"),
            "tokens": 128,
            "element_bytes": 2,
        },
    ),
    "overlap.hiding_tokens": Probe(
        bucket_timeline.hiding_tokens,
        {"flop_per_s": 1e14, "bytes_per_s": 5e10, "ranks": 8},
        {"flop_per_s": 2e14, "bytes_per_s": 1e10, "ranks": 2, "element_bytes": 2},
    ),
    "ring_or_tree.ring_or_tree": Probe(
        ring_or_tree.ring_or_tree,
        {"operation": "all-reduce", "size_bytes": 1e6, "ranks": 8, "link": SLOW_LINK},
        {
            "operation": "broadcast",
            "size_bytes": 2e6,
            "ranks": 16,
            "link": H100.inside,
            "tree": "double-tree",
        },
    ),
    "parameter_count.sum_counts": Probe(
        parameter_count.sum_counts, {"counts": [DENSE.parameters()]}, {"counts": []}
    ),
}

FAILURES = {"save_s": 60.0, "mtbf_s": 10_000.0}
FAILURE_CHANGES = {"save_s": 30.0, "mtbf_s": 20_000.0}
RECOVERY = {
    "machine_mtbf_s": Probe(
        recovery.machine_mtbf_s,
        {"part_mtbf_s": 1e8, "parts": 10},
        {"part_mtbf_s": 2e8, "parts": 20},
    ),
    "young_interval_s": Probe(recovery.young_interval_s, FAILURES, FAILURE_CHANGES),
    "daly_interval_s": Probe(recovery.daly_interval_s, FAILURES, FAILURE_CHANGES),
    "wasted_fraction": Probe(
        recovery.wasted_fraction,
        FAILURES | {"interval_s": 600.0},
        FAILURE_CHANGES | {"interval_s": 900.0, "restart_s": 100.0},
    ),
    "lost_steps": Probe(recovery.lost_steps, {"done": 7, "every": 4}, {"done": 6, "every": 5}),
    "mean_lost_steps": Probe(recovery.mean_lost_steps, {"every": 4}, {"every": 5}),
    "checkpoint_bytes": Probe(
        recovery.checkpoint_bytes,
        {"parameters": 10, "recipe": PLAIN},
        {"parameters": 11, "recipe": Recipe(optimizer="sgd")},
    ),
}

EXCHANGE = {"rows": 100, "width": 64}
SPARSE = {
    "RowExchange": Probe(
        sparse.RowExchange,
        EXCHANGE,
        {"rows": 50, "width": 32, "element_bytes": 2, "id_bytes": 4, "header_bytes": 0},
        see=lambda exchange: exchange.total_bytes,
    ),
    "dense_over_sparse": Probe(
        sparse.dense_over_sparse,
        {"exchange": sparse.RowExchange(**EXCHANGE), "table_rows": 1000, "ranks": 4},
        {"exchange": sparse.RowExchange(50, 64), "table_rows": 500, "ranks": 2},
    ),
}

ZERO_CALL = {"parameters": 1000, "ranks": 4, "recipe": PLAIN}
ZERO_CHANGES = {"parameters": 2000, "ranks": 2, "recipe": Recipe(gradients="fp32")}
OFFLOADED = zero.zero_stages(1000, 4, Recipe(offload="optimizer"))
ZERO = {
    "shard": Probe(
        zero.shard,
        {"parameters": 10, "ranks": 4, "rank": 1},
        {"parameters": 20, "ranks": 2, "rank": 0},
    ),
    "zero_stages": Probe(zero.zero_stages, ZERO_CALL, ZERO_CHANGES),
    "sent_bytes": Probe(
        zero.sent_bytes,
        ZERO_CALL | {"zero_stage": 2},
        ZERO_CHANGES | {"zero_stage": 3, "accumulation": 4},
    ),
    "StageBill.bus_seconds": Probe(OFFLOADED.bills[2].bus_seconds, {}, {"link": SLOW_LINK}),
    "ZeroStages.explain": Probe(OFFLOADED.explain, {}, {"unit": "GiB"}),
}

ON_MESH = {"layout": Layout(dp=2, tp=2, pp=4)}
OTHER_MESH = {"layout": Layout(dp=4, tp=2, pp=2), "order": ("dp", "pp", "cp", "tp")}
MESH = {
    "data_parallel": Probe(
        mesh.data_parallel, {"world": 64}, {"world": 32, "tp": 2, "pp": 2, "cp": 2}
    ),
    "strides": Probe(mesh.strides, ON_MESH, OTHER_MESH),
    "place": Probe(mesh.place, ON_MESH | {"rank": 5}, OTHER_MESH | {"rank": 6}),
    "groups": Probe(mesh.groups, ON_MESH | {"axis": "dp"}, OTHER_MESH | {"axis": "tp"}),
    "nodes_of": Probe(
        mesh.nodes_of,
        {"layout": Layout(dp=4, tp=4, pp=2), "axis": "dp"},
        OTHER_MESH | {"layout": Layout(dp=8, tp=4), "axis": "tp", "gpus_per_node": 4},
    ),
}

MODULES = {
    "activations": ACTIVATIONS,
    "batching": BATCHING,
    "bubble": BUBBLE,
    "budget": BUDGET,
    "collectives": COLLECTIVES,
    "communication": COMMUNICATION,
    "fitting": FITTING,
    "flops": FLOPS,
    "hardware": HARDWARE,
    "layout": LAYOUT,
    "memory": MEMORY,
    "mesh": MESH,
    "pipeline": PIPELINE,
    "planner": PLANNER,
    "recipe": RECIPE,
    "recovery": RECOVERY,
    "schedules": SCHEDULES,
    "shape": SHAPE,
    "sparse": SPARSE,
    "stagetime": STAGETIME,
    "states": STATES,
    "steptime": STEPTIME,
    "traffic": TRAFFIC,
    "units": UNITS,
    "validation": VALIDATION,
    "zero": ZERO,
}
PROBES = OTHERS | {
    f"{module}.{name}": probe
    for module, probes in MODULES.items()
    for name, probe in probes.items()
}

# Orders have one signature. These two are the same on every stage of any pipeline.
SAME_ON_ALL_STAGES = {
    (f"schedules.{name}_order", parameter)
    for name in ("naive", "gpipe")
    for parameter in ("stage", "stages")
}

DUAL = timeline("dualpipe", 4, 8)
ZERO_1 = Layout(dp=2, tp=2, cp=2, ep=2, zero_stage=1, micro_batch=2)
BILLS = [
    peak.gpu_memory(MIXTURE, *case, 512, overhead_bytes=extra)
    for extra, case in enumerate(
        [
            (PLAIN, SPREAD),
            (Recipe(gradient_buffer=True), ZERO_3),
            (replace(FULL, dropout=True), replace(ZERO_3, zero_stage=2, micro_batch=2)),
        ]
    )
]
LATE = Cluster(SLOW.accelerator, nodes=4, gpu_hour_usd=3.0)
STEPS = [
    STEP,
    step_time.step_time(
        Job(MIXTURE, FULL, replace(ZERO_1, pp=2, accumulation=4), LATE, sequence=512), WITH_TRAFFIC
    ),
    step_time.step_time(
        Job(DENSE, PLAIN, Layout(pp=2, stage_layers=(5, 1)), CLUSTER, sequence=512)
    ),
]
ROOFLINES = [
    roofline.model_roofline(DENSE, accelerator(name), tokens)
    for name, tokens in (("H100-SXM", 64), ("RTX4090", 128))
]
STEPPED = [
    bucket_timeline.ddp_timeline(GRADIENTS, 2, SLOW_LINK, cap_bytes=cap) for cap in (10**6, 10**9)
]
GATHERS = [
    gather_timeline.gather_timeline(replace(DENSE, layers=layers), PLAIN, 2) for layers in (3, 4)
]
RECORDS = {
    "overlap.Exchange": list(STEPPED[0].exchanges),
    "overlap.Gradient": list(GRADIENTS),
    "overlap.BucketTimeline": [
        *STEPPED,
        bucket_timeline.ddp_timeline(GRADIENTS[1:], 2, SLOW_LINK),
    ],
    "activation_terms.ActivationTerms": TERMS,
    "activations.Tokens": [
        activations.local_tokens(one, 1, 512)
        for one in (ALONE, Layout(tp=2, cp=2, sequence_parallel=True))
    ],
    "batching.Epoch": [
        batching.Batching(*case).epoch()
        for case in ((1003, 4, 2, 4), (2000, 3, 4, 1), (1003, 4, 2, 1, 3, 1, 1, 1, 1, True))
    ],
    "batching.BatchCost": [batching.batch_cost(1, 2), batching.batch_cost(3, 2)],
    "breakdown.MemoryBreakdown": BILLS,
    "experts.ExpertLoad": [
        experts.expert_load(1024, 8, 1, capacity_factor=1.25, ranks=2, row_bytes=64, skew=0.5),
        experts.expert_load(1024, 8, 2, capacity_factor=2.0, ranks=4, row_bytes=128, skew=1.0),
    ],
    "fitting.FittedLink": [
        fitting.fit_alpha_beta("all-reduce", [1e3, 1e5, 1e6], seconds, 4)
        for seconds in ([1e-3, 1e-2, 1e-1], [2e-3, 1e-2, 3e-1])
    ],
    "flops.FlopBreakdown": [
        flops.training_flops(DENSE, 1, 512),
        flops.training_flops(replace(MIXTURE, layers=9), 3, 512, recompute="full"),
    ],
    "gather_timeline.GatherEvent": list(GATHERS[0].events),
    "gather_timeline.GatherTimeline": GATHERS,
    "parameter_count.ParameterCount": [
        DENSE.parameters(),
        replace(MIXTURE, vocab=100).parameters(),
    ],
    "pipeline.Task": list(DUAL.tasks),
    "pipeline.Timeline": [DUAL, timeline("1f1b", 2, 4)],
    "planner.PlannedLayout": [FIRST, *PLAN.best(200), *(one for one, _ in PLAN.rejected())],
    "planner.Plan": [PLAN, planner.plan(DENSE, PLAIN, SMALL_CLUSTER, 16, sequence=512)],
    "ring_or_tree.RingOrTree": [
        ring_or_tree.ring_or_tree(*case)
        for case in (
            ("all-reduce", 1e6, 8, SLOW_LINK),
            ("broadcast", 2e6, 16, H100.inside, "double-tree"),
        )
    ],
    "roofline.Operation": list(ROOFLINES[0].operations),
    "roofline.Roofline": ROOFLINES,
    "schedules.Pass": [one for order in DUAL.schedule.orders for one in order],
    "schedules.Schedule": [DUAL.schedule, schedules.schedule("1f1b", 2, 4)],
    "stagetime.StageTime": [
        stage.stage_busy_time(
            Job(MIXTURE, PLAIN, layout, SLOW, sequence=512), WITH_TRAFFIC, layout.pp - 1
        )
        for layout in (ALONE, replace(ZERO_1, pp=2, accumulation=4))
    ],
    "stagetime.Work": [
        stage.layer_work(DENSE, PLAIN, ALONE, sequence, GUESS, 0) for sequence in (256, 512)
    ],
    "steptime.StepTime": STEPS,
    "zero.Shard": [zero.shard(10, 4, rank) for rank in (0, 3)],
    "zero.StageBill": [*OFFLOADED.bills, *zero.zero_stages(1000, 4, PLAIN).bills],
    "zero.ZeroStages": [OFFLOADED, zero.zero_stages(2000, 2, PLAIN)],
}
