"""Figures: what they say, that they fit their sheet, and that they can share a page."""

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.patches import PathPatch

from course_lib import figures, outline
from course_lib.clinic.tables import PARTS as LAYERS
from course_lib.figures import Sheet
from course_lib.figures.label import Label
from course_lib.mine.parts import PARTS
from course_lib.scratch.recovery import failures
from course_lib.theory.compute.roofline import model_roofline
from course_lib.theory.inputs.hardware import HDR, PCIE4, Link, accelerator
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import RECIPES, Recipe
from course_lib.theory.memory.activations import activation_terms
from course_lib.theory.memory.gather_timeline import gather_timeline
from course_lib.theory.memory.peak import training_memory
from course_lib.theory.memory.replay import memory_timeline
from course_lib.theory.network.experts import expert_load
from course_lib.theory.network.one_slow_link import OneSlowLink
from course_lib.theory.network.ring_or_tree import ring_or_tree
from course_lib.theory.network.served import ServedTraining
from course_lib.theory.network.sparse import RowExchange
from course_lib.theory.network.tensor_parallel import CutLayer
from course_lib.theory.network.zero import zero_stages
from course_lib.theory.step.batching import Batching, batch_cost
from course_lib.theory.step.give_way import sharded_backward
from course_lib.theory.step.recovery import Saving
from course_lib.theory.step.streams import Task, shared_timeline

BREAKDOWN = training_memory(MODELS["llama3-405b"], RECIPES["accumulate-20"], 64, 8192)
SMALL = training_memory(MODELS["gpt2-124m"], RECIPES["mixed-16"], 1, 128)
MESH = [{"pp": a, "dp": b, "tp": c} for a in range(2) for b in range(4) for c in range(2)]
SERVED = ServedTraining(RowExchange(100_000, 64), 8, 1, compute_s=0.02, bytes_per_s=25e9)
WORK = Task("work", "computing", 0.1, {"processor": 1.0})
SMALL_WORK = Task("prepare", "messages", 0.01, {"processor": 1.0}, weight=0.05)
GIVEN_WAY = shared_timeline(sharded_backward(6, WORK, WORK, WORK, prepare=SMALL_WORK))
ONE_TASK = shared_timeline([Task("work", "computing", 1e-6)])
TITLE = "llama3-405b, accumulate-20, adamw-8bit: 14 bytes per parameter"

MOMENTS = ["submitted", "started", "training", "killed", "requeued", "restarted", "resumed", "done"]
LATE = {"done": 3600.0, "resumed": 3599.9}
FILES = [f"part {number}" for number in range(14)] + ["ring", "mesh"]


def _parts(yours: set[str], measured: bool) -> list[dict[str, object]]:
    """A report on parts, as `checking.races` makes it."""
    rows: list[dict[str, object]] = []
    for place, name in enumerate(FILES):
        own = name in yours
        row = {"build": f"{place}.11", "title": f"{name} of a library", "lines_of_the_course": 33}
        row |= {"file": f"mine/{name}.py" if own else None, "lines": 9 + 7 * place if own else None}
        rows.append(row | ({"times_the_course": 1.25} if own and measured else {}))
    return rows


def window(micro_batch: int, accumulation: int, dp: int, no_sync: bool) -> Sheet:
    plan = Batching(10**6, micro_batch, accumulation, gpus_per_node=dp)
    return figures.window(plan, {False: accumulation, True: 1}, no_sync)


def cost(critical_batch: float, batch: float) -> Sheet:
    return figures.batch_cost(batch_cost(batch, critical_batch), critical_batch, batch)


# Extremes included: one rank, 64 ranks, one sample, ragged tails, memory beyond any GPU.
class Event(NamedTuple):
    process: str
    what: str
    at_s: float


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


EVENTS = [
    Event(process, what, number / 3)
    for number, (process, what) in enumerate(
        [("a", "gradient of the rows: leaves for the server"), ("d", "the end"), ("b", "begins")]
    )
]
FIGURES: dict[str, Callable[[], Sheet]] = {
    "built, none": lambda: figures.built(_parts(set(), measured=False)),
    "built, some": lambda: figures.built(_parts({"ring", "mesh"}, measured=True)),
    "built, all": lambda: figures.built(_parts(set(FILES), measured=True)),
    "one rank": lambda: figures.one_batch(Batching(1000, 5, 2)),
    "64 ranks": lambda: figures.one_batch(Batching(10_000, 64, 64, 64, 8)),
    "one sample": lambda: figures.one_batch(Batching(1, 1, 1)),
    "repeated": lambda: figures.one_batch(Batching(1003, 4, 3, 1, 4)),
    "dropped": lambda: figures.one_batch(Batching(1003, 4, 3, 1, 4, drop_last=True)),
    "map": lambda: figures.course_map(outline.CHAPTERS, outline.steps(), PARTS),
    "map of one chapter": lambda: figures.course_map(outline.CHAPTERS[:2], [], []),
    "cut unit": lambda: figures.cut_unit({"norm": 3, "matrix": 9, "biases": 3}, 4),
    "cut unit, one rank": lambda: figures.cut_unit({"weight": 1}, 1),
    "cut unit, mostly zeros": lambda: figures.cut_unit({"weight": 1, "bias": 1}, 8),
    "buffers": lambda: figures.two_buffers(buffered(12), TITLE),
    "buffers, one moment": lambda: figures.two_buffers(buffered(1)[:1]),
    "events": lambda: figures.event_order(EVENTS, ["a", "b", "c", "d"]),
    "one event": lambda: figures.event_order(EVENTS[:1], ["a"]),
    "samples": lambda: figures.samples_by_rank([[[0, 2, 4, 0], [1, 3, 5, 1]]] * 3),
    "many samples": lambda: figures.samples_by_rank([[list(range(900, 1000))] * 20]),
    "window": lambda: window(4, 4, 2, True),
    "long window": lambda: window(64, 64, 64, False),
    "one micro-step": lambda: window(1, 1, 1, True),
    "cost": lambda: cost(1024, 64),
    "cost, far right": lambda: cost(4096, 8),
    "cost, far up": lambda: cost(64, 16384),
    "cost, beyond the frame": lambda: cost(1, 10**6),
    "memory": lambda: figures.consumers(BREAKDOWN, "GiB", 24 * 10**9, TITLE),
    "memory, small": lambda: figures.consumers(SMALL, "GB", 141 * 10**9, TITLE),
    "memory, no GPU": lambda: figures.consumers(SMALL),
    "activations": lambda: figures.activation_terms(
        activation_terms(
            Job(
                MODELS["gpt3-175b"],
                Recipe(attention="standard"),
                Layout(micro_batch=64),
                sequence=2048,
            )
        ),
        96,
        TITLE,
    ),
    "activations, recomputed": lambda: figures.activation_terms(
        activation_terms(Job(MODELS["llama2-70b"], Recipe(recompute="full"), sequence=131072)),
        80,
        TITLE,
    ),
    "roofline": lambda: figures.on_roofline(
        model_roofline(MODELS["gpt2-124m"], accelerator("RTX4090"), 1)
    ),
    "roofline, in the middle": lambda: figures.on_roofline(
        model_roofline(MODELS["llama2-7b"], accelerator("H100-SXM"), 64)
    ),
    "roofline, far right": lambda: figures.on_roofline(
        model_roofline(MODELS["gpt3-175b"], accelerator("MI300X"), 65536), TITLE
    ),
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
    "loss": lambda: figures.loss({"two ranks": [3.0, 2.5, 2.0], "one process": [3.0, 2.4]}),
    "requeue": lambda: figures.requeue_timeline(dict(zip(MOMENTS, range(0, 80, 10), strict=True))),
    "requeue, at once": lambda: figures.requeue_timeline(dict.fromkeys(MOMENTS, 0.0)),
    "requeue, at the end": lambda: figures.requeue_timeline(dict.fromkeys(MOMENTS, 0.0) | LATE),
    "overlap": lambda: figures.overlap(
        {
            "1 bucket: 0.0 of 9.0 ms": ([(0, 12.5), (13, 20)], [(20, 29)]),
            "9 buckets: 7.5 of 9.0 ms": ([(n, n + 0.9) for n in range(20)], [(5, 12), (19, 21)]),
        }
    ),
    "overlap of copies": lambda: figures.overlap(
        {"one by one, 5 ms": ([(3, 5)], [(0, 3)])}, "Layers", ("computing", "copying")
    ),
    "overlap without communication": lambda: figures.overlap({"1 rank": ([(0, 3)], [])}),
    "collective times": lambda: figures.collective_times(
        ring_or_tree("all-reduce", 2**32, 1024, PCIE4, tree="double-tree")
    ),
    "collective times, no tree": lambda: figures.collective_times(
        ring_or_tree("all-to-all", 2**10, 2, accelerator("H100-SXM").inside), TITLE
    ),
    "collective times, measured": lambda: figures.collective_times(
        ring_or_tree("all-reduce", 2**15, 4, Link("slow", 1e7, 5e-3)),
        smallest=2**10,
        largest=2**20,
        measured={"ring": [(2**10, 0.03), (2**19, 0.1)], "tree": [(2**10, 0.02)]},
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
    "one loss": lambda: figures.loss({"a": [3.0]}),
    "tp reach": lambda: figures.tp_reach(
        CutLayer(8192, 8, 989.4e12, accelerator("H100-SXM").inside), TITLE
    ),
    "tp reach, none": lambda: figures.tp_reach(CutLayer(768, 64, 2250e12, PCIE4)),
    "tp reach, all": lambda: figures.tp_reach(CutLayer(20480, 2, 165.2e12, Link("fast", 900e9))),
    "families": lambda: figures.families(),
    "families, counted": lambda: figures.families(
        {"data": 10**6, "pipeline": 128, "tensor": 64, "expert": 0}
    ),
    "shared rates": lambda: figures.shared_rates({"give way": GIVEN_WAY, "one": ONE_TASK}),
    "shared rates, one": lambda: figures.shared_rates({"alone": ONE_TASK}),
    "token costs": lambda: figures.token_costs(
        {"H100-SXM": {"training": 0.6, "generating": 2}, "A100-SXM-80GB": {"training": 1234.5}}
    ),
    "token costs, free": lambda: figures.token_costs({"ours": {"training": 0.0}}, "a title"),
    "slow ring": lambda: figures.slow_ring(OneSlowLink(4e9, 64, HDR, 6.25e9, 8)),
    "slow ring, nothing slow": lambda: figures.slow_ring(OneSlowLink(1e3, 2, HDR, 25e9)),
    "rdma paths": lambda: figures.rdma_paths(0.33),
    "rdma paths, not measured": lambda: figures.rdma_paths(),
    "command map": lambda: figures.command_map(LAYERS),
    "command map, one": lambda: figures.command_map(LAYERS[:1], TITLE),
    "meters": lambda: figures.meters(
        {f"GPU {n}": {"busy, %": 100 - n, "power, W": None} for n in range(16)},
        {"busy, %": 100, "power, W": 1400},
        TITLE,
    ),
    "meters, three": lambda: figures.meters(
        {"GPU 0": {"busy": 0, "memory": 100, "power, W": 1400}},
        {"busy": 100, "memory": 100, "power, W": 1400},
    ),
    "late": lambda: figures.late_gradients([[0, 1, 1, 2, 1], [0, 1, 1, 1, 1], [7, 8]]),
    "late, one trainer": lambda: figures.late_gradients([[0] * 4]),
    "late, many": lambda: figures.late_gradients([list(range(t, t + 90)) for t in range(20)]),
    "served": lambda: figures.served_updates(SERVED, 10**9),
    "served, one trainer": lambda: figures.served_updates(replace(SERVED, trainers=1), 10**5),
    "served, far too many": lambda: figures.served_updates(
        replace(SERVED, trainers=4096, servers=2, compute_s=0.001), 10**10
    ),
    "served, a server each": lambda: figures.served_updates(replace(SERVED, servers=64), 10**7),
    "guesses": lambda: figures.guesses(
        {"memory": [1.0, 0.1, 0.5, 0.5, 3.0], "time": [0.0001, 7e9], "counts": [1.0] * 40}
    ),
    "guesses, one": lambda: figures.guesses({"messages": [1.005]}),
    "experts": lambda: figures.expert_bars(
        expert_load(8192, 8, 2, capacity_factor=1.25, ranks=4, row_bytes=8192, skew=0.5), TITLE
    ),
    "experts, far too skewed": lambda: figures.expert_bars(
        expert_load(131072, 64, 8, capacity_factor=0.5, ranks=64, row_bytes=8192, skew=2.0), TITLE
    ),
    "nodes and ranks": lambda: figures.nodes_and_ranks(2, 8, killed=9),
    "nodes and ranks, many": lambda: figures.nodes_and_ranks(4, 4),
    "nodes and ranks, one": lambda: figures.nodes_and_ranks(1, 1, killed=0),
    "resharded": lambda: figures.resharded(10, 4, 3),
    "resharded, large": lambda: figures.resharded(99, 3, 4),
    "resharded, alone": lambda: figures.resharded(1, 1, 1),
    "who did what": lambda: figures.who_did_what(
        {
            "a cluster": [("runs", 0, 14), ("waits", 14, 32), ("runs", 32, 60)],
            "node n2": [("training", 3, 12), ("dead", 12, 30), ("training", 36, 60)],
        },
        "A node dies",
    ),
    "who did what, long": lambda: figures.who_did_what(
        {"one": failures.run(1e5, interval_s=1e3, save_s=60, mtbf_s=1e4, restart_s=600)}
    ),
    "wasted time": lambda: figures.wasted_time(Saving(3600, 60, 11_135, 600), TITLE),
    "wasted time, measured": lambda: figures.wasted_time(
        Saving(1156, 60, 11_135, 600), measured={"simulated, 54 days each": [(1156, 0.17)]}
    ),
    "wasted time, far left": lambda: figures.wasted_time(Saving(1, 1, 10)),
    "wasted time, far right": lambda: figures.wasted_time(Saving(86_000, 60, 11_135, 600)),
    "experts, all alike": lambda: figures.expert_bars(
        expert_load(256, 2, 1, capacity_factor=None, ranks=1, row_bytes=128)
    ),
    "experts, capacity is the mean": lambda: figures.expert_bars(
        expert_load(256, 16, 1, capacity_factor=1.0)
    ),
}


@dataclass(frozen=True)
class Drawn:
    """A figure, its SVG, and itself drawn once, for all the tests."""

    sheet: Sheet
    svg: str
    renderer: RendererAgg

    @property
    def labels(self) -> list[Label]:
        return self.sheet.findobj(Label)


@pytest.fixture(scope="module")
def drawn() -> dict[str, Drawn]:
    found = {}
    for name, make in FIGURES.items():
        sheet = make()
        canvas = FigureCanvasAgg(sheet)
        canvas.draw()
        found[name] = Drawn(sheet, sheet.to_svg(), canvas.get_renderer())
    return found


def test_svg_is_labelled_and_well_formed(drawn: dict[str, Drawn]) -> None:
    for name, one in drawn.items():
        root = ElementTree.fromstring(one.svg)
        assert root.get("role") == "img", name
        assert root.get("aria-label") == one.sheet.sentence, name
        assert re.search(r"\d", one.sheet.sentence), name
        assert "<style" not in one.svg, f"{name}: it would restyle the whole page"
        assert len(one.svg) < 20_000, name


def test_svg_refers_to_its_own_ids(drawn: dict[str, Drawn]) -> None:
    for name, one in drawn.items():
        pictures = (one.svg, one.sheet.to_svg())
        ids = [set(re.findall(r'id="([^"]+)"', text)) for text in pictures]
        for text, own in zip(pictures, ids, strict=True):
            used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', text))
            assert used <= own, name
        assert not ids[0] & ids[1], name


def test_nothing_is_cut_off(drawn: dict[str, Drawn]) -> None:
    for name, one in drawn.items():
        assert one.labels or one.sheet.axes, name
        page = one.sheet.bbox.padded(0.5)
        for thing in [*one.labels, *one.sheet.findobj(PathPatch)]:
            box = thing.get_window_extent(one.renderer)
            assert page.x0 <= box.x0 and box.x1 <= page.x1, (name, thing)
            assert page.y0 <= box.y0 and box.y1 <= page.y1, (name, thing)
        for axes in one.sheet.axes:
            box = axes.get_tightbbox(one.renderer)
            assert page.x0 <= box.x0 and box.x1 <= page.x1, name
            assert page.y0 <= box.y0 and box.y1 <= page.y1, name


def test_no_text_on_another(drawn: dict[str, Drawn]) -> None:
    for name, one in drawn.items():
        boxes = [
            (text.get_text(), text.get_window_extent(one.renderer).padded(-1.5))
            for text in one.labels
        ]
        for place, (text, box) in enumerate(boxes):
            for other, other_box in boxes[:place]:
                assert not box.overlaps(other_box), f"{name}: {text!r} lies on {other!r}"


def test_the_numbers_on_a_roofline_stand_at_their_dots(drawn: dict[str, Drawn]) -> None:
    for name in ("roofline", "roofline, in the middle", "roofline, far right"):
        one = drawn[name]
        circles = [
            patch.get_window_extent(one.renderer)
            for patch in one.sheet.findobj(PathPatch)
            if len(patch.get_path()) > 20
        ]
        marks = [text for text in one.labels if text.get_text() in {"1", "2", "3", "4"}]
        dots = [box for box in circles if box.width < 12]  # those of the key below are larger
        numbers = {
            text.get_text(): text.get_window_extent(one.renderer)
            for text in marks
            if text.get_fontsize() == 9
        }
        centres = [((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2) for box in dots]
        assert len(centres) == len(numbers) == 4, name
        for row, (x, y) in enumerate(centres):
            box = numbers[str(row + 1)]
            beside = sum(abs(x - a) + abs(y - b) < 40 for a, b in centres)  # itself included
            distance = abs((box.x0 + box.x1) / 2 - x) + abs((box.y0 + box.y1) / 2 - y)
            assert distance < 18 + 12 * beside, (
                f"{name}: number {row + 1} is {distance:.0f} pt away"
            )


def test_svg_holds_the_texts_of_the_picture(drawn: dict[str, Drawn]) -> None:
    for name, one in drawn.items():
        written = "".join(ElementTree.fromstring(one.svg).itertext())
        for text in one.labels:
            assert text.get_text() in written, name


def test_notebook_gets_svg_png_and_words(drawn: dict[str, Drawn]) -> None:
    for name, one in drawn.items():
        data, metadata = one.sheet._repr_mimebundle_()
        assert data["text/html"].startswith("<svg"), name
        assert data["text/plain"] == one.sheet.sentence, name
        assert data["image/png"].startswith("iVBORw0KGgo"), name
        assert metadata["image/png"]["width"] == one.sheet.width_px, name


def test_sentences() -> None:
    assert FIGURES["one rank"]().sentence == (
        "One update: micro-batch 5 × accumulation 2 × dp 1 = global batch of 10 samples. "
        "One epoch of 1000 samples: 200 micro-steps on each rank and 100 updates; "
        "no sample repeated or dropped."
    )
    assert "1 sample repeated" in FIGURES["repeated"]().sentence
    assert "43 samples dropped" in FIGURES["dropped"]().sentence
    assert "with no_sync the gradients are all-reduced 1 of 4 times" in (
        FIGURES["window"]().sentence
    )
    assert "17 times the fewest possible steps" in FIGURES["cost"]().sentence
    assert "does not fit in 22.35 GiB" in FIGURES["memory"]().sentence
    assert "rank 0 saw 4 samples" in FIGURES["samples"]().sentence
    assert "2 samples seen again" in FIGURES["samples"]().sentence
    assert FIGURES["one event"]().sentence == (
        "1 event within 0.0 ms (a 1): a gradient of the rows: leaves for the server."
    )
    assert (
        "1 Steps and batches, after 0; 2 Gradient accumulation, after 1;"
        in FIGURES["map"]().sentence
    )
    assert "3 of biases) and 1 of padding, cut into 4 parts of 4" in FIGURES["cut unit"]().sentence
    assert "backward of 3: weights of 3, gradients of 3 and 4" in FIGURES["buffers"]().sentence
    assert "copying" in FIGURES["overlap of copies"]().to_svg()
    assert "communication" not in FIGURES["overlap of copies"]().to_svg()
    assert "two ranks: loss 3 at update 1, 2 at update 3" in FIGURES["loss"]().sentence


def test_same_order_is_pointed_out() -> None:
    assert FIGURES["samples"]().to_svg().count("the same order as the epoch before") == 2
    other = figures.samples_by_rank([[[0, 1]], [[1, 0]]])
    assert "the same order" not in other.to_svg()


def test_terms_of_experts_are_shown_where_there_are_experts() -> None:
    mixtral = Job(MODELS["mixtral-8x7b"], sequence=1024)
    drawn = figures.activation_terms(activation_terms(mixtral), 32, TITLE).to_svg()
    plain = FIGURES["activations"]().to_svg()
    for name in ("routed experts", "router"):
        assert name in drawn and name not in plain
    assert "latents" not in drawn and plain.count("not kept") == 2  # layer input, dropout masks


def test_bad_input() -> None:
    for make in (
        lambda: figures.samples_by_rank([]),
        lambda: figures.samples_by_rank([[]]),
        lambda: figures.loss({}),
        lambda: figures.loss({"a": []}),
        lambda: figures.measured_memory({}),
        lambda: figures.measured_memory({"a": []}),
        lambda: figures.overlap({}),
        lambda: figures.stored_by_version({}, {}),
        lambda: figures.overlap({"a": ([], [(0, 1)])}),
        lambda: figures.consumers(SMALL, "MB"),
        lambda: figures.course_map([outline.Entry(99, "Further")], [], []),
        lambda: figures.cut_unit({}, 2),
        lambda: figures.cut_unit({"a": 0}, 2),
        lambda: figures.cut_unit({"a": 25}, 1),
        lambda: figures.cut_unit({"a": 9}, 9),
        lambda: figures.two_buffers([]),
        lambda: figures.two_buffers(buffered(13)),
        lambda: figures.event_order([], ["a"]),
        lambda: figures.event_order(EVENTS, ["a", "b"]),
        lambda: figures.event_order(EVENTS, list("abcde")),
    ):
        with pytest.raises(ValueError):
            make()


def test_capacity_and_total_share_one_scale() -> None:
    """A total equal to the capacity ends where the capacity's line stands."""
    full = figures.consumers(SMALL, "GB", SMALL.total_bytes)
    rights = [patch.get_path().vertices[:, 0].max() for patch in full.findobj(PathPatch)]
    assert "it fits" in full.sentence
    assert rights[-1] == pytest.approx(rights[-2]), "the line is drawn last, after the total"
    assert max(rights) == pytest.approx(rights[-1])


def test_label_is_drawn_by_other_backends() -> None:
    sheet = Sheet(40, "one word")
    empty = sheet.to_png()
    sheet.write(10, 20, "word")
    assert sheet.to_png() != empty
