"""The panel of chapter 4: what the layers keep for the backward pass."""

from course_lib.figures.memory import activations as figure
from course_lib.panels.controls import choice, flag, powers_of_two
from course_lib.panels.panel import Panel, View
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.units import format_bytes, format_number
from course_lib.theory.memory.activations import activation_terms


def activations(
    model: str = "gpt3-175b",
    recompute: str = "none",
    attention: str = "standard",
    dropout: bool = True,
    micro_batch: int = 1,
    sequence: int = 2048,
    tp: int = 1,
    sequence_parallel: bool = False,
) -> Panel:
    """Controls for `activation_terms`, whose `ActivationTerms` is the panel's result.

    Raises ValueError for starting values that are not offered or do not fit together.
    """
    dense = [name for name, shape in MODELS.items() if not shape.experts]
    controls = {
        "model": choice("model", model, dense),
        "recompute": choice("recompute", recompute, ["none", "selective", "full"]),
        "attention": choice("attention", attention, ["standard", "flash"]),
        "micro_batch": powers_of_two("micro-batch", micro_batch, 1, 64),
        "sequence": powers_of_two("sequence", sequence, 512, 131072),
        "tp": powers_of_two("tensor parallel", tp, 1, 16),
        "dropout": flag("dropout", dropout),
        "sequence_parallel": flag("sequence parallel", sequence_parallel),
    }
    return Panel(controls, _view)


def _view(
    model: str,
    recompute: str,
    attention: str,
    micro_batch: int,
    sequence: int,
    tp: int,
    dropout: bool,
    sequence_parallel: bool,
) -> View:
    shape = MODELS[model]
    recipe = Recipe(recompute=recompute, attention=attention, dropout=dropout)
    layout = Layout(tp=tp, sequence_parallel=sequence_parallel, micro_batch=micro_batch)
    terms = activation_terms(Job(shape, recipe, layout, sequence=sequence))
    per_sbh = terms.total_bytes / (micro_batch * sequence * shape.hidden)
    rows = (
        (
            "one layer",
            f"{format_bytes(terms.total_bytes)} = {format_number(per_sbh, 4)} bytes × s·b·h",
        ),
        (
            f"{shape.layers} layers",
            f"{format_bytes(shape.layers * terms.total_bytes)} for one micro-batch on one GPU",
        ),
    )
    title = f"{model}, {micro_batch} × {sequence:,} tokens, bf16"
    return View(
        terms,
        rows,
        lambda: figure.activation_terms(terms, shape.layers, title),
    )
