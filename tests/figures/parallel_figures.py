"""Copies of a model, layers, pipelines, layouts: extremes included, and what is refused."""

from collections.abc import Callable
from typing import NamedTuple

from course_lib import figures
from course_lib.theory.inputs.hardware import PCIE4, Link, accelerator
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import RECIPES, Recipe
from course_lib.theory.memory.gather_timeline import gather_timeline
from course_lib.theory.memory.replay import memory_timeline
from course_lib.theory.memory.unit_life import UnitCosts, unit_life
from course_lib.theory.network.experts import expert_load
from course_lib.theory.network.tensor_parallel import CutLayer
from course_lib.theory.network.zero import zero_stages
from course_lib.theory.step.batching import Batching

MESH = [{"pp": a, "dp": b, "tp": c} for a in range(2) for b in range(4) for c in range(2)]

ROOT, LAYER = UnitCosts(0, 4e-3, 9e-3, 9e-3, 5 * 10**8, 5 * 10**8), UnitCosts(*[7e-3] * 4, 4, 4)

LIFE, LONG_LIFE = unit_life([ROOT, *[LAYER] * 4]), unit_life([ROOT, *[LAYER] * 8], prefetch=2)

TITLE = "llama3-405b, accumulate-20, adamw-8bit: 14 bytes per parameter"


class Moment(NamedTuple):
    phase: str
    layer: int
    weights: list[int | None]
    gradients: list[int | None]


def buffered(layers: int) -> list[Moment]:
    """Layer after layer, forward, in one buffer of weights; backward in one of gradients."""
    there = [Moment("forward", n, [n, None], [None, None]) for n in range(layers)]
    back = [Moment("backward", n, [None, n], [n, n + 1]) for n in reversed(range(layers))]
    return there + back


SPLIT = Batching(10**5, 4, 8, 8, 8, tp=8, pp=4)

PARALLEL: dict[str, Callable[[], figures.Drawing]] = {
    "cut rows": lambda: figures.cut_rows({"norm": (3, 1), "matrix": (3, 3), "biases": (3, 1)}, 4),
    "cut rows, one rank": lambda: figures.cut_rows({"weight": (8, 4)}, 1),
    "cut unit": lambda: figures.cut_unit({"norm": 3, "matrix": 9, "biases": 3}, 4),
    "cut unit, one rank": lambda: figures.cut_unit({"weight": 1}, 1),
    "cut unit, mostly zeros": lambda: figures.cut_unit({"weight": 1, "bias": 1}, 8),
    "buffers": lambda: figures.two_buffers(buffered(12), TITLE),
    "clipped": lambda: figures.clipped((3, 4), 1, (0.6, 0.8), (1, 1)),
    "clipped, large": lambda: figures.clipped((30, 40), 5, (3, 4), (5, 5)),
    "halves": lambda: figures.halves({"plain": 2 * ["gradients"], "stage 1": ["gradients"]}, "m"),
    "halves, many": lambda: figures.halves({"stage 3": 4 * ["weights", "weights", "gradients"]}),
    "zero": lambda: figures.who_stores_what(
        zero_stages(7_500_000_000, 64, RECIPES["mixed-16"]), 2, 80 * 10**9, "7.5B on 64 GPUs"
    ),
    "zero, a run": lambda: figures.stored_by_version(
        {
            name: {"weights": 441_344, "gradients": 441_344, "optimizer": 882_688}
            for name in ("stage 0 from scratch", "ZeroRedundancyOptimizer, stage 1")
        },
        {"stage 0 from scratch": 441_344, "ZeroRedundancyOptimizer, stage 1": 882_688},
        "One rank of two: 110,336 parameters in fp32",
    ),
    "zero, one rank": lambda: figures.who_stores_what(
        zero_stages(124_439_808, 1, RECIPES["fp32-16"]), 0, 141 * 10**9, "GPT-2 on 1 GPU", "GiB"
    ),
    "zero, offloaded": lambda: figures.who_stores_what(
        zero_stages(10**12, 1024, Recipe(offload="optimizer")), 3, 24 * 10**9, TITLE
    ),
    "passes": lambda: figures.memory_of_passes(
        memory_timeline(
            Job(
                MODELS["llama2-70b"],
                Recipe(gradient_life="backward"),
                Layout(pp=4, accumulation=8),
                sequence=4096,
            )
        ),
        80 * 10**9,
        TITLE,
    ),
    "two passes": lambda: figures.memory_of_passes(
        memory_timeline(Job(MODELS["gpt2-124m"])), 80 * 10**9
    ),
    "gathering": lambda: figures.gather_memory(
        gather_timeline(MODELS["llama3-405b"], Recipe(), 4096), TITLE
    ),
    "gathering, everything kept": lambda: figures.gather_memory(
        gather_timeline(MODELS["gpt2-124m"], RECIPES["fp32-16"], 2, reshard=False)
    ),
    "gathering, two buffers": lambda: figures.gather_memory(
        gather_timeline(MODELS["llama2-70b"], Recipe(gathering="yafsdp"), 64), TITLE
    ),
    "measured memory": lambda: figures.measured_memory(
        {name: [n * (200 - n) for n in range(200)] for name in ("mini-FSDP", "YaFSDP", "DDP", "a")}
    ),
    "measured memory, one value": lambda: figures.measured_memory({"a": [3_000_000]}),
    "mesh": lambda: figures.rank_mesh(MESH, {"tp all-reduce": [26, 106_496]}),
    "mesh, one rank": lambda: figures.rank_mesh([{"pp": 0, "dp": 0, "tp": 0}]),
    "tp reach": lambda: figures.tp_reach(
        CutLayer(8192, 8, 989.4e12, accelerator("H100-SXM").inside), TITLE
    ),
    "tp reach, none": lambda: figures.tp_reach(CutLayer(768, 64, 2250e12, PCIE4)),
    "tp reach, all": lambda: figures.tp_reach(CutLayer(20480, 2, 165.2e12, Link("fast", 900e9))),
    "families": lambda: figures.families(),
    "families, counted": lambda: figures.families(
        {"data": 10**6, "pipeline": 128, "tensor": 64, "expert": 0}
    ),
    "experts": lambda: figures.expert_bars(
        expert_load(8192, 8, 2, capacity_factor=1.25, ranks=4, row_bytes=8192, skew=0.5), TITLE
    ),
    "experts, far too skewed": lambda: figures.expert_bars(
        expert_load(131072, 64, 8, capacity_factor=0.5, ranks=64, row_bytes=8192, skew=2.0), TITLE
    ),
    "layer paths": lambda: figures.layer_paths(
        {
            "one stage each": [n // 2 for n in range(8)],
            "interleaved": [n % 4 for n in range(8)],
            "a V": [min(n, 7 - n) for n in range(8)],
        }
    ),
    "two lanes": lambda: figures.two_lanes({"predicted": LIFE.tasks, "measured": LIFE.tasks[:9]}),
    "two lanes, long": lambda: figures.two_lanes({"predicted": LONG_LIFE.tasks}),
    "heads": lambda: figures.heads_by_gpu(
        {
            "t = 4": [(range(8), (2 * gpu, 2 * gpu + 1)) for gpu in range(4)],
            "t = 16": [(range(2), (gpu // 2,)) for gpu in range(16)],
        }
    ),
    "heads, one": lambda: figures.heads_by_gpu({"one GPU": [(range(64), range(8))]}),
    "shard groups": lambda: figures.shard_groups({"FULL_SHARD": 16, "NO_SHARD": 1}, 2, 8),
    "shard groups, one": lambda: figures.shard_groups({"DDP": 1}, 1, 1),
    "rank groups": lambda: figures.rank_groups({"tp": [12, 13], "dp": [9, 13]}, 32, 8),
    "rank groups, one": lambda: figures.rank_groups({"tp": [0]}, 1, 1),
    "experts, all alike": lambda: figures.expert_bars(
        expert_load(256, 2, 1, capacity_factor=None, ranks=1, row_bytes=128)
    ),
    "experts, capacity is the mean": lambda: figures.expert_bars(
        expert_load(256, 16, 1, capacity_factor=1.0)
    ),
    "routing": lambda: figures.routing((0.5, 0.2, 0.25, 0.05), (0.67, 0, 0.33, 0)),
    "routing, one": lambda: figures.routing((1.0,), (1.0,)),
    "routing, eight": lambda: figures.routing([1 / 8] * 8, [0, 0.5, 0, 0, 0, 0, 0, 0.5]),
    "same samples": lambda: figures.same_samples({"data parallel": Batching(9, 1), "split": SPLIT}),
    "same samples, one": lambda: figures.same_samples({"dp 128": Batching(10**5, 4, 8, 16, 8)}),
}
BAD_PARALLEL: list[Callable[[], object]] = [
    lambda: figures.two_lanes({}),
    lambda: figures.two_lanes({"a": []}),
    lambda: figures.measured_memory({}),
    lambda: figures.measured_memory({"a": []}),
    lambda: figures.stored_by_version({}, {}),
    lambda: figures.two_buffers([]),
    lambda: figures.timeline({}),
    lambda: figures.timeline({"a": []}),
]
