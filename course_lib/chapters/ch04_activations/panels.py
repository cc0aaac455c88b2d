"""Panels of chapter 4, in addition to those of the library."""

from course_lib.chapters.ch04_activations import figures
from course_lib.panels.controls import DENSE, choice, flag, powers_of_two
from course_lib.panels.panel import View, panel
from course_lib.theory.inputs import MODELS, Job, Layout, Recipe
from course_lib.theory.inputs.units import format_bytes, format_number
from course_lib.theory.memory.activations import activation_terms


@panel
def activations(
    model: str = choice("model", "gpt3-175b", DENSE),
    recompute: str = choice("recompute", "none", ["none", "selective", "full"]),
    attention: str = choice("attention", "standard", ["standard", "flash"]),
    micro_batch: int = powers_of_two("micro-batch", 1, 1, 64),
    sequence: int = powers_of_two("sequence", 2048, 512, 131072),
    tp: int = powers_of_two("tensor parallel", 1, 1, 16),
    dropout: bool = flag("dropout", True),
    sequence_parallel: bool = flag("sequence parallel", False),
) -> View:
    """Controls for `activation_terms`, whose `ActivationTerms` is the panel's result.

    Raises ValueError for starting values that are not offered or do not fit together.
    """
    shape = MODELS[model]
    recipe = Recipe(recompute=recompute, attention=attention, dropout=dropout)
    layout = Layout(tp=tp, sequence_parallel=sequence_parallel, micro_batch=micro_batch)
    terms = activation_terms(Job(shape, recipe, layout, sequence=sequence))
    per_sbh = terms.total_bytes / (micro_batch * sequence * shape.hidden)
    one, all_layers = (format_bytes(count * terms.total_bytes) for count in (1, shape.layers))
    rows = (
        ("one layer", f"{one} = {format_number(per_sbh, 4)} bytes × s·b·h"),
        (f"{shape.layers} layers", f"{all_layers} for one micro-batch on one GPU"),
    )
    title = f"{model}, {micro_batch} × {sequence:,} tokens, bf16"
    return View(terms, rows, lambda: figures.activation_terms(terms, shape.layers, title))
