"""Panels in plain Python, without a browser."""

import html
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from all_rooms import panels

from course_lib.chapters.ch02_gradient_accumulation.panels import accumulation, critical_batch
from course_lib.chapters.ch03_what_is_in_the_memory.panels import memory as memory_panel
from course_lib.chapters.ch07_ddp.panels import buckets
from course_lib.chapters.ch13_3d_planning.panels import planner
from course_lib.panels import Panel
from course_lib.panels.controls import Control
from course_lib.theory.inputs.hardware import ACCELERATORS, PCIE4
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import RECIPES
from course_lib.theory.memory.peak import training_memory
from course_lib.theory.network.bucket_timeline import ddp_timeline, model_gradients
from course_lib.theory.pipelines.simulation import timeline
from course_lib.theory.planner import PlannedLayout, fastest, sturdy
from course_lib.theory.planner.space import divisors
from course_lib.theory.step.assumptions import CAUTIOUS, OPTIMISTIC
from course_lib.theory.step.batching import Batching, batch_cost

PANELS = [*vars(panels).values()]
# Starting values with which every control can be moved and shows a difference; "panel.control"
# where one of them needs others. A panel that is not named here starts as it is.
ROOMY = {
    "batches": {"nodes": 64, "gpus_per_node": 8, "samples": 9999},
    "memory": {"model": "llama2-7b"},
    "activations": {"model": "llama2-7b", "tp": 2, "sequence": 512},
    "zero": {"offload": True},
    "planner": {"model": "llama2-7b"},
    "pipeline": {"schedule": "interleaved", "stages": 4, "micro_batches": 16},
    "pipeline.micro_batches": {},
    "collectives": {"size_kib": 1024},
    "experts": {"experts": 64, "ep": 2},
}


def roomy(name: str, control: str = "") -> Panel:
    return getattr(panels, name)(**ROOMY.get(f"{name}.{control}", ROOMY.get(name, {})))


def controls(panel: Panel) -> dict[str, Control]:
    return panel._controls


ONLY_SHOWN = {"unit", "gpu"}  # change how a result is told, not the result


def ends(control: Control) -> list[object]:
    """The first and the last value that a control can take."""
    return [control.options[0][1], control.options[-1][1]]


@pytest.mark.parametrize("build", PANELS)
def test_both_ends_change_what_is_shown(build: Callable[..., Panel]) -> None:
    for name in controls(build()):
        panel = roomy(build.__name__, name)
        control = controls(panel)[name]
        shown, results = [], []
        for value in ends(control):
            control.value = value
            assert panel.problem is None, (name, value)
            shown.append((panel.text, panel.page))
            results.append(panel.result)
        if name not in ONLY_SHOWN:
            assert results[0] != results[1], f"{name} does not reach the theory"
        assert shown[0][0] != shown[1][0], f"{name} changes no number and no word"
        assert shown[0][1] != shown[1][1], f"{name} changes nothing on the screen"


@pytest.mark.parametrize("build", PANELS)
def test_every_value_of_a_list_is_its_own(build: Callable[..., Panel]) -> None:
    """By what the panel says: what it draws follows from the same View."""
    for name in controls(build()):
        panel = roomy(build.__name__)
        control = controls(panel)[name]
        seen = {}
        for _, option in control.options if control.kind in ("slider", "choice") else ():
            control.value = option
            assert panel.text not in seen, f"{name}: {option} says what {seen.get(panel.text)} says"
            seen[panel.text] = option


@pytest.mark.parametrize("build", PANELS)
def test_figure_says_its_numbers_in_words(build: Callable[..., Panel]) -> None:
    panel = build()
    label = re.search(r'<svg [^>]*role="img" aria-label="([^"]+)"', panel.page)[1]
    assert html.unescape(label) == panel.sentence
    assert re.search(r"\d", label)
    assert panel.sentence in panel.text


@pytest.mark.parametrize("build", PANELS)
def test_picture_and_words_without_a_kernel(build: Callable[..., Panel]) -> None:
    data, _ = build()._repr_mimebundle_()
    assert data["image/svg+xml"].startswith("<svg") and "var(--" not in data["image/svg+xml"]
    assert re.search(r"\d", data["text/plain"])
    assert "VBox" not in data["text/plain"]
    assert "application/vnd.jupyter.widget-view+json" in data


@pytest.mark.parametrize("build", PANELS)
def test_the_browser_is_told_all_controls(build: Callable[..., Panel]) -> None:
    """What panel.js draws: a label for each, and a text for each value, in the panel's order."""
    panel = build()
    saved = json.loads(json.dumps(panel.get_state("controls"), sort_keys=True))["controls"]
    assert [spec["name"] for spec in saved] == [*controls(panel)]
    for (name, control), spec in zip(controls(panel).items(), panel.controls, strict=True):
        assert spec["label"] and spec["kind"] in ("number", "slider", "choice", "flag")
        texts = spec.get("texts") or range(spec["least"], spec["most"] + 1)
        assert len(texts) == len(control.options)
        assert panel.values[name] == control.index
    labels = [spec["label"] for spec in panel.controls]
    assert len(set(labels)) == len(labels)


def test_a_hand_moves_what_code_moves() -> None:
    """The browser sends places, not values."""
    panel, same = memory_panel(model="llama2-7b"), memory_panel(model="llama2-7b")
    panel.micro_batch.value = 4
    same.values = {**same.values, "micro_batch": 2}
    assert same.micro_batch.value == 4
    assert same.result == panel.result
    assert same.values == panel.values


def test_one_message_per_change() -> None:
    panel = memory_panel(model="llama2-7b")
    shown: list[object] = []
    panel.observe(shown.append, "shown")
    panel.micro_batch.value = 4
    assert len(shown) == 1
    panel.micro_batch.value = 4
    assert len(shown) == 1, "an equal result is not drawn again"


def test_results_are_the_theorys() -> None:
    batches = panels.batches(1000, micro_batch=5, accumulation=2, nodes=1, gpus_per_node=1)
    assert batches.result == Batching(1000, 5, 2, sequence=1024)
    assert "updates per epoch: 200 / accumulation 2, rounded up = 100" in batches.text
    assert critical_batch(64, 1024).result == batch_cost(64, 1024)
    memory = memory_panel("gpt2-1.5b", "megatron-18", micro_batch=2, sequence=512)
    expected = training_memory(MODELS["gpt2-1.5b"], RECIPES["megatron-18"], 2, 512)
    assert memory.result == expected


def test_pipeline_shows_the_formula_only_where_it_holds() -> None:
    panel = panels.pipeline("1f1b", stages=4, micro_batches=8)
    assert panel.result == timeline("1f1b", 4, 8)
    assert "(p-1) / (vm + p-1): 27.3%\n" in panel.text + "\n"
    panel.last_stage.value = 1.5
    assert panel.result.makespan == 45
    assert "27.3%, for equal stages and free transfers only" in panel.text
    panel.schedule.value = "zb1p"
    assert "is not the formula of this schedule" in panel.text


def test_buckets_are_the_theorys() -> None:
    panel = buckets("gpt2-1.5b", "H100-SXM", PCIE4.name, 64, 512, 100, overlap=False)
    gradients = model_gradients(MODELS["gpt2-1.5b"], ACCELERATORS["H100-SXM"], 512)
    cap = 100 * 2**20
    assert panel.result == ddp_timeline(
        gradients, 64, PCIE4, cap_bytes=cap, first_bytes=cap, overlap=False
    )
    assert "0 s hidden behind backward" in panel.sentence


def test_planner_is_the_theorys_under_both_assumptions() -> None:
    panel = planner(nodes=8, gpu="H200-SXM")
    assert panel.result.question.assumptions == OPTIMISTIC
    plans = (panel.result, panel.result.under(CAUTIOUS))
    (best,), (sturdiest,) = fastest(plans, 1), sturdy(plans, 1)
    assert f"fastest: {told(best.option)}" in panel.text
    assert f"under cautious assumptions {plans[1].mfu(best.steps_s[1]):.1%}" in panel.text
    assert f"sturdiest: {told(sturdiest.option)}" in panel.text
    assert sturdiest.option != best.option
    assert f"at worst {sturdiest.regret:.1%} behind the best" in panel.text


def told(option: PlannedLayout) -> str:
    one = option.layout
    chunks = f", {one.virtual_stages} chunks" if one.virtual_stages > 1 else ""
    return (
        f"tp {one.tp} × pp {one.pp} × dp {one.dp}, ZeRO-{one.zero_stage}, "
        f"{one.accumulation} × micro {one.micro_batch}{chunks}: "
        f"{option.memory_bytes / 1e9:.1f} GB, {option.step_s:.2f} s"
    )


@pytest.mark.parametrize("model", [name for name, shape in MODELS.items() if shape.experts])
def test_planner_plans_mixtures_of_experts(model: str) -> None:
    """On any number of nodes, with more than one way to spread the experts."""
    panel, degrees = planner(model, nodes=64), set()
    for option in (1, 64, 256, 2048):
        panel.nodes.value = option
        assert panel.problem is None
        found = {row.ep for row in panel.result.found.rows}
        assert MODELS[model].experts % max(found) == 0
        degrees |= found
    assert degrees == {1, 8, 64} & set(divisors(MODELS[model].experts))
    assert re.search(r"dp \d+ × ep \d+, ZeRO-", panel.sentence)
    assert "ep" not in planner("llama2-7b").sentence.split()


def test_no_sync_and_activations() -> None:
    panel = accumulation(micro_batch=4, accumulation=8, dp=2, no_sync=True)
    assert panel.result.all_reduces == 1
    assert panel.result.batching.global_batch == 64
    assert panel.result.at_once_layer_bytes == 8 * panel.result.layer_bytes
    panel.no_sync.value = False
    assert panel.result.all_reduces == 8
    layer = panel.result.layer_bytes
    panel.accumulation.value = 64
    assert panel.result.layer_bytes == layer


def test_memory_says_whether_it_fits() -> None:
    panel = memory_panel("gpt2-1.5b", gpu="RTX 4090 24 GB")
    assert "does not fit in 24.00 GB" in panel.sentence
    assert "the largest consumer is optimizer" in panel.sentence
    panel.gpu.value = "A100 40 GB"
    assert "it fits in 40.00 GB" in panel.sentence
    panel.unit.value = "GiB"
    assert "it fits in 37.25 GiB" in panel.sentence


@pytest.mark.parametrize(
    ("build", "name", "bad", "good", "reason"),
    [
        (lambda: panels.batches(gpus_per_node=1), "tp", 4, 1, "world 2 is not divisible"),
        (lambda: panels.batches(samples=5), "drop_last", True, False, "less than one global batch"),
        (lambda: memory_panel("gpt2-1.5b"), "sequence", 2048, 1024, "longer than the 1024"),
        (panels.pipeline, "virtual_stages", 2, 1, "no meaning for schedule '1f1b'"),
        (lambda: panels.pipeline("interleaved"), "micro_batches", 9, 8, "not divisible by stages"),
        (lambda: panels.pipeline("zbv"), "stages", 5, 4, "micro_batches of zbv must be at least 9"),
        (lambda: panels.pipeline("dualpipe"), "stages", 8, 4, "micro_batches of dualpipe"),
    ],
)
def test_says_why_and_recovers(
    build: Callable[[], Panel], name: str, bad: object, good: object, reason: str
) -> None:
    panel = build()
    before, text, control = panel.page, panel.text, controls(panel)[name]
    control.value = bad
    assert panel.shown["values"] == panel.values, "the kernel has answered"
    assert reason in panel.problem and reason in panel.text
    told = reason.replace("micro_batches", "micro-batches")  # as its control is labelled
    assert panel.shown["problem"].startswith("Not possible: ") and told in panel.shown["problem"]
    assert panel.result is None
    assert panel.page == before, "the last figure that was possible stays"
    data, _ = panel._repr_mimebundle_()
    assert reason in data["text/plain"] and "image/svg+xml" not in data
    control.value = good
    assert panel.problem is None and panel.result is not None and not panel.shown["problem"]
    assert panel.text == text
    assert panel.shown["values"] == panel.values
    assert without_ids(panel.page) == without_ids(before)


def test_each_button_mends_the_problem() -> None:
    panel = panels.batches(nodes=1, gpus_per_node=1)
    panel.tp.value = 4
    texts = [mend["text"] for mend in panel.shown["mends"]]
    assert texts == ["Set nodes to 4", "Back to tensor parallel 1"]
    for mend in list(panel.shown["mends"]):
        panel.tp.value = 4
        panel.nodes.value = 1
        panel.values = mend["values"]
        assert panel.problem is None
    assert (panel.tp.value, panel.nodes.value) == (1, 1)


def test_a_problem_is_told_with_the_labels_of_the_controls() -> None:
    panel = panels.batches(nodes=1, gpus_per_node=1)
    panel.tp.value = 4
    assert "tp*pp*cp 4" in panel.problem
    assert "by tensor parallel × pipeline parallel × context parallel 4" in panel.shown["problem"]
    assert not re.search(r"_|\*|\btp\b", panel.shown["problem"])


def without_ids(svg: str) -> str:
    return re.sub(r"\b[df]\d+-", "", svg)


@pytest.mark.parametrize(
    ("build", "values", "reason"),
    [
        (panels.batches, {"samples": 0}, "samples must be at least 1, got 0"),
        (panels.batches, {"samples": 10_001}, "samples must be at most 10000, got 10001"),
        (panels.batches, {"micro_batch": 65}, "micro-batch must be at most 64, got 65"),
        (panels.batches, {"micro_batch": 2.5}, "micro-batch must be a whole number, got 2.5"),
        (panels.batches, {"nodes": 3}, "nodes 3 is not one of 1, 2, 4"),
        (panels.batches, {"nodes": 1, "gpus_per_node": 1, "tp": 4}, "world 1 is not divisible"),
        (panels.batches, {"drop_last": "yes"}, "drop last must be True or False"),
        (accumulation, {"accumulation": True}, "must be a whole number, got True"),
        (memory_panel, {"model": "gpt5"}, "model 'gpt5' is not one of gpt2-124m"),
        (memory_panel, {"unit": "MB"}, "unit 'MB' is not one of"),
        (panels.pipeline, {"schedule": "2f2b"}, "schedule '2f2b' is not one of naive"),
    ],
)
def test_bad_starting_values(
    build: Callable[..., Panel], values: dict[str, object], reason: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        build(**values)


def test_unknown_control_is_named() -> None:
    with pytest.raises(AttributeError, match="no 'batch'; its controls are samples, micro_batch"):
        _ = panels.batches().batch


def test_only_the_planners_search_needs_numpy_and_nothing_a_library_for_pictures() -> None:
    """In a process of its own each panel and each stepper is drawn."""
    code = (
        "import sys\n"
        "from all_rooms import panels, steppers\n"
        "for room in (panels, steppers):\n"
        "    for name, build in vars(room).items():\n"
        "        build().page\n"
        "        for heavy in {'matplotlib', 'numpy', 'torch'} & sys.modules.keys():\n"
        "            print(name, heavy)\n"
        "            sys.modules.pop(heavy)\n"
    )
    here = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=here)
    assert found.stdout == "planner numpy\n", found.stderr
