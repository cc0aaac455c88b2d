"""Panels in plain Python, without a browser; their figures at both ends of each control."""

import html
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import checks
import pytest
from all_rooms import panels
from approved import expect_approved, without_ids

from course_lib.panels import Panel
from course_lib.panels.controls import Control
from course_lib.theory.inputs.hardware import ACCELERATORS, PCIE4
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import RECIPES
from course_lib.theory.memory.peak import training_memory
from course_lib.theory.network.bucket_timeline import ddp_timeline, model_gradients
from course_lib.theory.pipelines.simulation import timeline
from course_lib.theory.planner.space import divisors
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


# "1 GPUs" and "2,048.0 choices": what a format leaves behind at the end of a slider.
CARELESS = re.compile(r"(?<![\d.,])1 [a-zA-Z-]+s\b|\d\.0 [a-z]{3,}s\b|10\^\d|\d[eE][+-]\d")
FACTORS = re.compile(r"\b1 (times|ms)\b")


@pytest.mark.parametrize("build", PANELS)
def test_every_value_is_its_own_and_both_ends_look_as_approved(build: Callable[..., Panel]) -> None:
    """Values in a list say each something else; at its ends a control reaches the theory."""
    approved: list[str] = []
    for name in controls(build()):
        panel = roomy(build.__name__, name)
        control = controls(panel)[name]
        last = len(control.options) - 1
        every = control.kind in ("slider", "choice")
        said, at_ends = {}, []
        for index in range(last + 1) if every else (0, last):
            value = control.value = control.options[index][1]
            where = f"{name} {value}"
            assert panel.text not in said, f"{where} says what {said.get(panel.text)} says"
            said[panel.text] = value
            if index in (0, last):
                assert panel.problem is None, where
                at_ends.append((panel.page, panel.result))
                approved += [panel.page, panel.text]
                assert not checks.faults(checks.draw(panel._sheet)), where
                assert not CARELESS.search(FACTORS.sub("", panel.text)), where
        (first_page, first), (last_page, other) = at_ends
        assert first_page != last_page, f"{name} changes nothing on the screen"
        assert name in ONLY_SHOWN or first != other, f"{name} does not reach the theory"
    expect_approved(f"panel {build.__name__}", *approved)


@pytest.mark.parametrize("build", PANELS)
def test_the_page_is_told_all_controls_and_the_figure_in_words(build: Callable[..., Panel]) -> None:
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
    label = re.search(r'<svg [^>]*role="img" aria-label="([^"]+)"', panel.page)[1]
    assert html.unescape(label) == panel.sentence and panel.sentence in panel.text
    # Without a kernel a picture and these words are left.
    data, _ = panel._repr_mimebundle_()
    assert data["image/svg+xml"].startswith("<svg") and "var(--" not in data["image/svg+xml"]
    assert data["text/plain"] == panel.sentence and re.search(r"\d", panel.sentence)
    assert "application/vnd.jupyter.widget-view+json" in data


def test_a_hand_moves_what_code_moves() -> None:
    """The browser sends places, not values."""
    panel, same = panels.memory(model="llama2-7b"), panels.memory(model="llama2-7b")
    panel.micro_batch.value = 4
    same.values = {**same.values, "micro_batch": 2}
    assert same.micro_batch.value == 4
    assert same.result == panel.result
    assert same.values == panel.values


def test_one_message_per_change() -> None:
    panel = panels.memory(model="llama2-7b")
    shown: list[object] = []
    panel.observe(shown.append, "shown")
    panel.micro_batch.value = 4
    assert len(shown) == 1
    panel.micro_batch.value = 4
    assert len(shown) == 1, "an equal result is not drawn again"


H100, GPT2 = ACCELERATORS["H100-SXM"], MODELS["gpt2-1.5b"]
RESULTS = {  # of a panel, and by the theory
    "batches": (
        lambda: panels.batches(1000, micro_batch=5, accumulation=2, nodes=1, gpus_per_node=1),
        lambda: Batching(1000, 5, 2, sequence=1024),
    ),
    "critical batch": (lambda: panels.critical_batch(64, 1024), lambda: batch_cost(64, 1024)),
    "memory": (
        lambda: panels.memory("gpt2-1.5b", "megatron-18", micro_batch=2, sequence=512),
        lambda: training_memory(GPT2, RECIPES["megatron-18"], 2, 512),
    ),
    "pipeline": (
        lambda: panels.pipeline("1f1b", stages=4, micro_batches=8),
        lambda: timeline("1f1b", 4, 8),
    ),
    "buckets": (
        lambda: panels.buckets("gpt2-1.5b", "H100-SXM", PCIE4.name, 64, 512, 100, overlap=False),
        lambda: ddp_timeline(
            model_gradients(GPT2, H100, 512), 64, PCIE4,
            cap_bytes=100 * 2**20, first_bytes=100 * 2**20, overlap=False,
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_the_theorys(name: str) -> None:
    panel, expected = (make() for make in RESULTS[name])
    assert panel.result == expected


@pytest.mark.parametrize("model", [name for name, shape in MODELS.items() if shape.experts])
def test_planner_plans_mixtures_of_experts(model: str) -> None:
    """On any number of nodes, with more than one way to spread the experts."""
    panel, degrees = panels.planner(model, nodes=64), set()
    for option in (1, 64, 2048):
        panel.nodes.value = option
        assert panel.problem is None
        found = {row.ep for row in panel.result.found.rows}
        assert MODELS[model].experts % max(found) == 0
        degrees |= found
    assert degrees == {1, 8, 64} & set(divisors(MODELS[model].experts))
    assert re.search(r"dp \d+ × ep \d+, ZeRO-", panel.sentence)
    assert "ep" not in panels.planner("llama2-7b").sentence.split()


@pytest.mark.parametrize(
    ("build", "name", "bad", "good", "reason"),
    [
        (lambda: panels.batches(gpus_per_node=1), "tp", 4, 1, "world 2 is not divisible"),
        (lambda: panels.batches(samples=5), "drop_last", True, False, "less than one global batch"),
        (lambda: panels.memory("gpt2-1.5b"), "sequence", 2048, 1024, "longer than the 1024"),
        (panels.pipeline, "virtual_stages", 2, 1, "no meaning for schedule '1f1b'"),
        (lambda: panels.pipeline("interleaved"), "micro_batches", 9, 8, "not divisible by stages"),
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


def test_a_problem_is_told_with_labels_and_each_button_mends_it() -> None:
    panel = panels.batches(nodes=1, gpus_per_node=1)
    panel.tp.value = 4
    assert "tp*pp*cp 4" in panel.problem
    assert "by tensor parallel × pipeline parallel × context parallel 4" in panel.shown["problem"]
    assert not re.search(r"_|\*|\btp\b", panel.shown["problem"])
    texts = [mend["text"] for mend in panel.shown["mends"]]
    assert texts == ["Set nodes to 4", "Back to tensor parallel 1"]
    for mend in list(panel.shown["mends"]):
        panel.tp.value = 4
        panel.nodes.value = 1
        panel.values = mend["values"]
        assert panel.problem is None
    assert (panel.tp.value, panel.nodes.value) == (1, 1)


@pytest.mark.parametrize(
    ("build", "values", "reason"),
    [
        (panels.batches, {"samples": 10_001}, "samples must be at most 10000, got 10001"),
        (panels.batches, {"micro_batch": 2.5}, "micro-batch must be a whole number, got 2.5"),
        (panels.batches, {"nodes": 3}, "nodes 3 is not one of 1, 2, 4"),
        (panels.batches, {"nodes": 1, "gpus_per_node": 1, "tp": 4}, "world 1 is not divisible"),
        (panels.batches, {"drop_last": "yes"}, "drop last must be True or False"),
        (panels.accumulation, {"accumulation": True}, "must be a whole number, got True"),
        (panels.memory, {"model": "gpt5"}, "model 'gpt5' is not one of gpt2-124m"),
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
