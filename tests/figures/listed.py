"""One or two of each figure of the course."""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

from all_rooms import functions

from course_lib import chapters, figures, outline
from course_lib.chapters.ch03_what_is_in_the_memory.snapshot import snapshot_pickle
from course_lib.chapters.ch04_activations.segments import runs_again
from course_lib.chapters.ch05_flops_roofline_mfu.roofline import linear_products, model_roofline
from course_lib.chapters.ch06_collectives.blocks import OPERATIONS, exchange
from course_lib.chapters.ch09_fsdp.gather_timeline import gather_timeline
from course_lib.chapters.ch13_3d_planning.replay import memory_timeline
from course_lib.chapters.ch14_parameter_servers.exchanges import RowExchange, ServedTraining
from course_lib.chapters.ch15_launchers_and_recovery.recovery import Saving
from course_lib.chapters.ch16_cluster_clinic.pairwise import PairTest, name_slow, rounds
from course_lib.chapters.ch16_cluster_clinic.slowest import OneSlowLink
from course_lib.chapters.ch17_capstone import claimed
from course_lib.chapters.ch17_capstone.claimed import RunAudit, plan_2048
from course_lib.chapters.ch17_capstone.costs import sharded_backward
from course_lib.chapters.ch17_capstone.streams import Task, shared_timeline
from course_lib.checking.gaps import in_words
from course_lib.clinic.gpus import topology
from course_lib.clinic.recorded import output
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.mine import PARTS
from course_lib.theory.inputs.hardware import HDR, PCIE4, Cluster, Link, accelerator
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import RECIPES, Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.memory.activations import activation_terms
from course_lib.theory.memory.peak import training_memory
from course_lib.theory.memory.step_timeline import StepTimeline, step_timeline
from course_lib.theory.memory.unit_life import UnitCosts, unit_life
from course_lib.theory.network.all_reduce import all_reduce_ways, ring_or_tree
from course_lib.theory.network.bucket_timeline import ddp_timeline, model_gradients
from course_lib.theory.network.experts import expert_load
from course_lib.theory.network.tensor_parallel import CutLayer
from course_lib.theory.network.zero import zero_stages
from course_lib.theory.pipelines import simulation
from course_lib.theory.planner import plan
from course_lib.theory.step.assumptions import CAUTIOUS
from course_lib.theory.step.batching import Batching, batch_cost

# The figures of all chapters, by name.
rooms = SimpleNamespace(
    **functions([import_module(name) for name in chapters.files("figures.py")], Drawing)
)
TITLE = "llama3-405b, accumulate-20, adamw-8bit: 14 bytes per parameter"


def line(**values: float) -> Drawing:
    return figures.number_line(values, lambda value: in_words(value, "B"))


WORK = Task("work", "computing", 0.1, {"processor": 1.0})
SMALL_WORK = Task("prepare", "messages", 0.01, {"processor": 1.0}, weight=0.05)
GIVEN_WAY = shared_timeline(sharded_backward(6, WORK, WORK, WORK, prepare=SMALL_WORK))
ONE_TASK = shared_timeline([Task("work", "computing", 1e-6)])
PAID = RunAudit(claimed.BLOOM, claimed.BLOOM_STEP)

# A report on parts, as `checking.races` makes it.
OWN = {"file": "mine/ring.py", "lines": 121, "times_the_course": 1.25}
PARTS_BUILT = [
    {"build": f"{n}.11", "title": f"part {n} of a library", "lines_of_the_course": 33}
    | (OWN if n > 13 else {"file": None, "lines": None})
    for n in range(16)
]


SPLIT = Batching(10**5, 4, 8, 8, 8, tp=8, pp=4)
BREAKDOWN = training_memory(MODELS["llama3-405b"], RECIPES["accumulate-20"], 64, 8192)
SMALL = training_memory(MODELS["gpt2-124m"], RECIPES["mixed-16"], 1, 128)


def step_of(recompute: str) -> StepTimeline:
    """A step of a small GPT."""
    shape = TransformerShape(6, 64, 4, 256, 128, 64)
    recipe = Recipe("fp32", "fp32", master_copy=False, gradient_life="backward", loss="eager")
    recipe = replace(recipe, recompute=recompute)
    return step_timeline(Job(shape, recipe, Layout(micro_batch=8)), overhead_bytes=0)


def leaking() -> Drawing:
    """The figure of a snapshot with seven leaks, in four rounds."""
    update, forward = ("torch/optim/adamw.py", 1, "step"), ("module.py", 2, "forward")
    long = "a_script_with_a_rather_long_name.py", "the_function_of_a_leak"
    events = []
    for number in range(32):
        mine = (long[0], 10**5 + number % 8, long[1])
        events.append(("alloc", number, 10**9, (mine, forward) if number % 8 else (update,)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a snapshot with a name.pickle"
        path.write_bytes(snapshot_pickle(events))
        return rooms.snapshot(path)


MANY = range(1200)
LEAKING = SimpleNamespace(
    phases=["forward", "backward", "update"] * 400,
    moments=["an operator with a long name"] * 1200,
    sizes={
        "weights": [10**12 for _ in MANY],
        "leak": [number * 10**9 for number in MANY],
        "gradients": [number % 3 * 10**11 for number in MANY],
        "inputs and labels": [8 for _ in MANY],
    },
)
MESH = [{"pp": a, "dp": b, "tp": c} for a in range(2) for b in range(4) for c in range(2)]
ROOT, LAYER = UnitCosts(0, 4e-3, 9e-3, 9e-3, 5 * 10**8, 5 * 10**8), UnitCosts(*[7e-3] * 4, 4, 4)
LIFE = unit_life([ROOT, *[LAYER] * 4])


BUFFERED = [
    SimpleNamespace(phase="forward", layer=n, weights=[n, None], gradients=[None, n])
    for n in range(12)
]
SERVED = ServedTraining(RowExchange(100_000, 64), 8, 1, compute_s=0.02, bytes_per_s=25e9)
MOMENTS = ["submitted", "started", "training", "killed", "requeued", "restarted", "resumed", "done"]
NEAR, FAR = (topology(output(f"nvidia-smi_topo{end}").text) for end in ("", "_far"))
DEEP = [("<module>", "yours"), *[("a_function_with_a_long_name", "torch")] * 40]


def tensors(*ratios: float) -> list[SimpleNamespace]:
    """Tensors of the four kinds, one after the other."""
    kinds = ("weight", "output", "loss", "gradient of the output", "gradient of the weight")
    names = [f"tensor {place} of blocks.1.norm2" for place in range(len(ratios))]
    return [
        SimpleNamespace(
            kind=kinds[5 * n // len(ratios)], title=names[n], measured=ratio, typical=1.0
        )
        for n, ratio in enumerate(ratios)
    ]


RIGHT = tensors(*[0.0] * 30, *[0.01, 0.3, 3.9, 0.2] * 16)
BROKEN = tensors(*[0.0] * 30, *[0.3] * 22, *[86_349.1, 0.1, 12.0, 44_000.0] * 11)
PAIRS = [  # all with rank 2 are slow
    PairTest(a, b, 5.9e6 if 2 in (a, b) else 4.47e9)
    for several in rounds(4, "halving")
    for a, b in several
]

A100 = accelerator("A100-SXM-80GB")
EIGHT_H100 = Cluster(accelerator("H100-SXM"))
FEW = {"cp": (1,), "virtual_stages": (1,), "micro_batch": (1, 2)}


def judged(found, title):
    return figures.ranked_layouts(found, title, careful=found.under(CAUTIOUS))


def tasks(name, stages, micro_batches, chunks=1, times=None):
    return simulation.timeline(name, stages, micro_batches, chunks, times=times).tasks


GRADIENTS = model_gradients(MODELS["gpt2-124m"], A100, 512)

FIGURES: dict[str, Callable[[], Drawing]] = {
    "bars": lambda: figures.bars({"a": 3, "b": 0}, {"a": "3 rows", "b": "0 rows"}, TITLE),
    "bars by tens": lambda: figures.bars(
        {"all-reduced, the dense part": 4e11, "b": 52.0},
        format_bytes,
        "what 1 GPU moves",
        tens=True,
    ),
    "bars by tens, with marks": lambda: figures.bars(
        {"tensor parallel 8": 5596, "pp": 1.5e6},
        "{:,.0f}".format,
        "FLOP for each of 2 bytes",
        tens=True,
        marks={"ridge of NVLink": 2199, "ridge of the network": 19_788},
    ),
    "bars with a mark": lambda: figures.bars(
        {"a": 3.0}, "{:.0f}".format, TITLE, marks={"least": 5.0}
    ),
    "lines": lambda: figures.lines(
        {"a": [(1, 5.0), (1024, 4.9)], "b": [(1, 5.0), (1024, 5.0)]},
        "GPUs",
        "GB",
        TITLE,
        doubling=(True, False),
        level={"limit": 5},
        mark={"here": 512},
    ),
    "lines, next to nothing": lambda: figures.lines(
        {"a": [(0, 2.4e-7), (64, 0.25)]}, "code", "level", "levels", doubling=(False, True)
    ),
    "loss": lambda: figures.loss({"two ranks": [3.0, 2.5, 2.0], "one process": [3.0, 2.4]}),
    "lanes": lambda: figures.lanes(
        {
            "a cluster": [("runs", 0, 14), ("waits", 14, 32), ("runs", 32, 60, "again")],
            "node n2": [("training", 3, 12), ("dead", 12, 30), ("training", 36, 60)],
        },
        "A node dies",
    ),
    "lanes of two charts": lambda: figures.lanes(
        {
            "predicted": {"backward": [("backward", 0.0, 0.02, "1")], "link": []},
            "measured": {
                "backward": [("backward", n / 100, n / 100 + 0.01, str(n)) for n in range(60)],
                "link": [("link", 0.59, 0.61)],
            },
        },
        TITLE,
    ),
    "number line": lambda: line(you=43, theory=100, measured=103),
    "number line, far apart": lambda: line(you=3, theory=7.0e9, measured=7.1e9),
    "number line, below 0": lambda: line(you=2.5, theory=-4, measured=-3.75),
    "bars over a limit": lambda: figures.stacked_bars(
        {"a card": {"weights": 16.0, "gradients": 4.0}, "all": {"weights": 100.0, "gradients": 0}},
        "A title",
        lambda size: f"{size:.2f} GB",
        limit=("one card", 24.0),
    ),
    "grouped": lambda: figures.grouped_bars(
        {name: {"published": 7, "predicted": 0} for name in ("DDP", "SHARD_GRAD_OP, offloaded")},
        "largest batch",
        str,
        {"published": style.INK, "predicted": style.SKY},
    ),
    "bars, nothing": lambda: figures.stacked_bars({"a": {"idle": 0}, "b": {}}, "0 of all", str),
    "bars, many": lambda: figures.stacked_bars(
        {f"schedule {n}": {"computing": 90.5 - n, "idle": n / 7} for n in range(12)},
        "Twelve",
        "{:.1f} %".format,
        {"schedule 3": "holds 4 … 1 micro-batches"},
    ),
    "bars, many parts": lambda: figures.stacked_bars(
        {"a row": {f"part {n} of a long name": 1 + 9 * (n == 3) for n in range(8)}}, "Eight", str
    ),
    "built": lambda: figures.built(PARTS_BUILT),
    "one rank": lambda: figures.one_batch(Batching(1000, 5, 2)),
    "repeated": lambda: figures.one_batch(Batching(1003, 4, 3, 1, 4)),
    "dropped": lambda: figures.one_batch(Batching(1003, 4, 3, 1, 4, drop_last=True)),
    "map": lambda: rooms.course_map(outline.CHAPTERS, outline.steps(), PARTS),
    "samples": lambda: rooms.samples_by_rank([[[0, 2, 4, 0], [1, 3, 5, 1]]] * 3),
    "window": lambda: rooms.window(Batching(10**6, 4, 64, 2), {False: 64, True: 1}, True),
    "cost": lambda: rooms.batch_cost(batch_cost(64, 1024), 1024, 64),
    "roofline": lambda: rooms.on_roofline(
        model_roofline(MODELS["gpt2-124m"], accelerator("RTX4090"), 1)
    ),
    "roofline, in the middle": lambda: rooms.on_roofline(
        model_roofline(MODELS["llama2-7b"], accelerator("H100-SXM"), 64)
    ),
    "roofline, far right": lambda: rooms.on_roofline(
        model_roofline(MODELS["gpt3-175b"], accelerator("MI300X"), 65536), TITLE
    ),
    "shared rates": lambda: rooms.shared_rates({"give way": GIVEN_WAY, "one": ONE_TASK}),
    "token costs": lambda: rooms.token_costs(
        {"H100-SXM": {"training": 0.6, "generating": 2}, "A100-SXM-80GB": {"training": 1234.5}}
    ),
    "guesses": lambda: figures.guesses(
        {"memory": [1.0, 0.1, 0.5, 0.5, 3.0], "time": [0.0001, 7e9], "counts": [1.0] * 40}
    ),
    "tries": lambda: rooms.tried_batches([1, 2, 4, 3], 3),
    "audited": lambda: rooms.audited(plan_2048(), TITLE),
    "products": lambda: rooms.matrix_products(linear_products(2, 3, 4)),
    "number ranges": lambda: rooms.number_ranges(
        {"bf16": (9.2e-41, 1.2e-38, 3.4e38), "fp16": (6e-8, 6.1e-5, 65504.0)},
        "Where a gradient lies",
        {"a gradient": 1.5e-5, "a sum": 2e30},
    ),
    "number ranges, one": lambda: rooms.number_ranges({"whole": (1.0, 1.0, 2.0)}, "One format"),
    "paid time": lambda: rooms.paid_time(PAID),
    "ladder": lambda: rooms.batch_ladder(Batching(1000, 5, 2, 2, 4)),
    "memory": lambda: rooms.consumers(BREAKDOWN, "GiB", 24 * 10**9, TITLE),
    "activations": lambda: rooms.activation_terms(
        activation_terms(Job(MODELS["gpt3-175b"], Recipe(attention="standard"))), 96, TITLE
    ),
    "memory over time": lambda: figures.memory_over_time(
        {"predicted": step_of("none"), "recomputed": step_of("full")}, TITLE
    ),
    "memory over time, many steps": lambda: figures.memory_over_time({"leaking": LEAKING}),
    "consumer bars": lambda: figures.consumer_bars({"a": BREAKDOWN, "b": SMALL}, TITLE, 8e10),
    "snapshot, leaks": lambda: leaking(),
    "recomputed": lambda: rooms.recomputed_layers(
        {"one input in all": runs_again(16, 16), "one for each layer": runs_again(16, 1)}
    ),
    "cut rows": lambda: rooms.cut_rows({"norm": (3, 1), "matrix": (3, 3), "biases": (3, 1)}, 4),
    "cut unit": lambda: figures.cut_unit({"norm": 3, "matrix": 9, "biases": 3}, 4),
    "buffers": lambda: rooms.two_buffers(BUFFERED, TITLE),
    "clipped": lambda: rooms.clipped((3, 4), 1, (0.6, 0.8), (1, 1)),
    "halves": lambda: rooms.halves({"plain": 2 * ["gradients"], "stage 1": ["gradients"]}, "m"),
    "zero": lambda: rooms.who_stores_what(
        zero_stages(7_500_000_000, 64, RECIPES["mixed-16"]), 2, 80 * 10**9, "7.5B on 64 GPUs"
    ),
    "zero, a run": lambda: figures.stored_by_version(
        {"ZeroRedundancyOptimizer, stage 1": {"weights": 441_344, "optimizer": 882_688}},
        {"ZeroRedundancyOptimizer, stage 1": 882_688},
        TITLE,
    ),
    "zero, offloaded": lambda: rooms.who_stores_what(
        zero_stages(10**12, 1024, Recipe(offload="optimizer")), 3, 24 * 10**9, TITLE
    ),
    "passes": lambda: rooms.memory_of_passes(
        memory_timeline(Job(MODELS["llama2-70b"], layout=Layout(pp=4, accumulation=8))), 8e10, TITLE
    ),
    "gathering": lambda: rooms.gather_memory(
        gather_timeline(MODELS["llama3-405b"], Recipe(), 4096), TITLE
    ),
    "measured memory": lambda: rooms.measured_memory(
        {name: [n * (200 - n) for n in range(200)] for name in ("mini-FSDP", "YaFSDP", "DDP", "a")}
    ),
    "rank block": lambda: rooms.rank_block(
        [{"pp": a, "dp": b, "tp": c} for a in range(2) for b in range(2) for c in range(2)]
    ),
    "mesh": lambda: figures.rank_mesh(MESH, {"tp all-reduce": [26, 106_496]}),
    "tp reach": lambda: rooms.tp_reach(
        CutLayer(8192, 8, 989.4e12, accelerator("H100-SXM").inside), TITLE
    ),
    "tp reach, none": lambda: rooms.tp_reach(CutLayer(768, 64, 2250e12, PCIE4)),
    "families": lambda: rooms.families(),
    "experts": lambda: rooms.expert_bars(
        expert_load(8192, 8, 2, capacity_factor=1.25, ranks=4, row_bytes=8192, skew=0.5), TITLE
    ),
    "block step": lambda: rooms.block_step(
        Layout(tp=8, dp=4, pp=4), "groups", "A block", ("1", "")
    ),
    "layer paths": lambda: rooms.layer_paths(
        {"interleaved": [n % 4 for n in range(8)], "a V": [min(n, 7 - n) for n in range(8)]}
    ),
    "two lanes": lambda: figures.two_lanes({"predicted": LIFE.tasks, "measured": LIFE.tasks[:9]}),
    "heads, one": lambda: rooms.heads_by_gpu({"one GPU": [(range(64), range(8))]}),
    "shard groups": lambda: rooms.shard_groups({"FULL_SHARD": 16, "NO_SHARD": 1}, 2, 8),
    "rank groups": lambda: figures.rank_groups({"tp": [12, 13], "dp": [9, 13]}, 32, 8),
    "routing": lambda: rooms.routing((0.5, 0.2, 0.25, 0.05), (0.67, 0, 0.33, 0)),
    "same samples": lambda: rooms.same_samples({"data parallel": Batching(9, 1), "split": SPLIT}),
    "used rows": lambda: rooms.used_rows([4, 1, 4], [[0, 0]] * 4 + [[2, 2], [0, 0]], TITLE),
    "who asks whom": lambda: figures.who_asks_whom(
        {"master": "control", "a": "dense", "b": "dense", "server": "rows"},
        [("master", "a", "train"), ("server", "a", "2 B"), ("a", "b", "all-reduce")],
        TITLE,
    ),
    "requeue": lambda: rooms.requeue_timeline(dict(zip(MOMENTS, range(0, 80, 10), strict=True))),
    "collective times": lambda: rooms.collective_times(
        ring_or_tree("all-reduce", 2**32, 1024, PCIE4, tree="double-tree")
    ),
    "collective times, measured": lambda: rooms.collective_times(
        ring_or_tree("all-reduce", 2**15, 4, Link("slow", 1e7, 5e-3)),
        smallest=2**10,
        largest=2**20,
        measured={"ring": [(2**10, 0.03), (2**19, 0.1)], "tree": [(2**10, 0.02)]},
    ),
    "who sends": lambda: figures.who_sends(all_reduce_ways(8), "× S"),
    "slow ring": lambda: rooms.slow_ring(OneSlowLink(4e9, 64, HDR, 6.25e9, 8)),
    "slow ring, nothing slow": lambda: rooms.slow_ring(OneSlowLink(1e3, 2, HDR, 25e9)),
    "meters": lambda: rooms.meters(
        {f"GPU {n}": {"busy, %": 100 - n, "power, W": None} for n in range(16)},
        {"busy, %": 100, "power, W": 1400},
        TITLE,
    ),
    "late": lambda: rooms.late_gradients([[0, 1, 1, 2, 1], [0, 1, 1, 1, 1], [7, 8]]),
    "late, many": lambda: rooms.late_gradients([list(range(t, t + 90)) for t in range(8)]),
    "served": lambda: rooms.served_updates(SERVED, 10**9),
    "wasted time": lambda: rooms.wasted_time(Saving(3600, 60, 11_135, 600), TITLE),
    "wasted time, measured": lambda: rooms.wasted_time(
        Saving(1156, 60, 11_135, 600), measured={"simulated, 54 days each": [(1156, 0.17)]}
    ),
    "blocks": lambda: rooms.collective_grid([exchange(one, 3) for one in OPERATIONS[:7]]),
    "node ways": lambda: rooms.node_ways({"near": NEAR, "far": FAR}),
    "rank stacks": lambda: rooms.rank_stacks(
        {
            "rank 0": [("train", "yours"), ("unshard", "torch"), ("gather", "communication")],
            "rank 1": [("train", "yours"), ("load_batch", "yours")],
        },
        "A hang",
    ),
    "tensor by tensor": lambda: rooms.tensor_by_tensor({"right": RIGHT, "broken": BROKEN}, "TP 2"),
    "pair rates": lambda: rooms.pair_rates(PAIRS, name_slow(PAIRS), "Pairs"),
    "flight records": lambda: rooms.flight_records(
        {"rank 0": ["3 × 4", "4 × 5", "3 × 4"], "rank 1": ["3 × 4", "3 × 4"]}, "Calls"
    ),
    "buckets, nothing hidden": lambda: rooms.bucket_timeline(
        {"GPT": ddp_timeline(GRADIENTS, 1024, HDR, cap_bytes=2**20)}
    ),
    "plan under two assumptions": lambda: judged(
        plan(MODELS["llama2-7b"], Recipe(), EIGHT_H100, 64), "LLaMA-2 7B on 8 H100"
    ),
    "plan, nothing fits": lambda: figures.ranked_layouts(
        plan(MODELS["llama3.1-405b"], Recipe(), EIGHT_H100, 64, only={"cp": (1,)}), "405B"
    ),
    "one stage": lambda: figures.timeline({"alone": tasks("1f1b", 1, 4)}, seconds=False),
    "1f1b": lambda: figures.timeline({"1f1b": tasks("1f1b", 4, 8)}, seconds=False),
    "interleaved": lambda: figures.timeline({"a": tasks("interleaved", 4, 8, 2)}, seconds=False),
    "zbv": lambda: figures.timeline({"V": tasks("zbv", 4, 8)}, seconds=False),
    "dualpipe": lambda: figures.timeline({"both ways": tasks("dualpipe", 8, 20)}, seconds=False),
    "two": lambda: figures.timeline(
        {"predicted": tasks("1f1b", 4, 8), "measured": tasks("naive", 4, 8)}
    ),
}
