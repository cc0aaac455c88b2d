"""Published training steps, row by row: seconds, or TFLOP/s turned into seconds."""

import json
from pathlib import Path

import pytest
from every import every

from course_lib.theory.compute.flops import megatron_flop
from course_lib.theory.inputs.hardware import Cluster, accelerator
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import model
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.step.step_time import step_time

FILE = Path(__file__).parent / "published" / "steptime.json"
CASES = json.loads(FILE.read_text(encoding="utf-8"))


def shape_of(inputs):
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


def megatron(inputs):
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
    return Job(shape_of(inputs), recipe, layout, cluster, sequence=2048)


def llama(inputs):
    """H100s. Optimizer sharded, gradients exchanged once a step as in table 4's footing.

    The first chunk has the embedding alone and the last the head (section 3.3.2): with 126 layers
    that makes 128 = 16 · 8 chunks.
    """
    recipe = Recipe(gradients="fp32", fused_accumulation=True, fused_swiglu=True)
    layout = layout_of(
        inputs, sequence_parallel=True, zero_stage=1, stage_layers=(0, *[1] * 126, 0)
    )
    cluster = Cluster(accelerator("H100-SXM"), inputs["gpus"] // 8)
    return Job(shape_of(inputs), recipe, layout, cluster, sequence=inputs["seq"])


@every("case", CASES)
def test_published_step(case):
    inputs = case["inputs"]
    step = step_time((llama if "seq" in inputs else megatron)(inputs))
    predicted = step.total_s
    if case["unit"] == "TFLOP/s":
        flop = step.model_flop
        if "seq" not in inputs:
            shape = shape_of(inputs)
            sizes = {"layers": shape.layers, "hidden": shape.hidden, "vocab": shape.vocab}
            flop = megatron_flop(inputs["batch"], 2048, **sizes, recompute="full")
        predicted = flop / step.total_s / inputs["gpus"] / 1e12
    assert predicted == pytest.approx(case["expected"], rel=case["tolerance"])
