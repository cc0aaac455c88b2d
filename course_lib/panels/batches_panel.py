"""The panel of chapter 1: samples, batches, updates and epochs."""

from typing import Any

from course_lib.figures.data import batches as figure
from course_lib.panels.controls import flag, powers_of_two, whole
from course_lib.panels.panel import Panel, View
from course_lib.theory.step.batching import Batching


def batches(
    samples: int = 1000,
    micro_batch: int = 5,
    accumulation: int = 2,
    nodes: int = 2,
    gpus_per_node: int = 4,
    tp: int = 1,
    pp: int = 1,
    cp: int = 1,
    sequence: int = 1024,
    drop_last: bool = False,
) -> Panel:
    """Sliders for `Batching`, which is the panel's result.

    Raises ValueError for starting values outside the sliders or that do not fit together.
    """
    controls = {
        "samples": whole("samples", samples, 1, 10_000),
        "micro_batch": whole("micro-batch", micro_batch, 1, 64),
        "accumulation": whole("accumulation", accumulation, 1, 64),
        "nodes": powers_of_two("nodes", nodes, 1, 64),
        "gpus_per_node": powers_of_two("GPUs per node", gpus_per_node, 1, 8),
        "tp": powers_of_two("tensor parallel", tp, 1, 8),
        "pp": powers_of_two("pipeline parallel", pp, 1, 16),
        "cp": powers_of_two("context parallel", cp, 1, 8),
        "sequence": powers_of_two("sequence", sequence, 128, 8192),
        "drop_last": flag("drop last", drop_last),
    }
    return Panel(controls, _view)


def _view(**values: Any) -> View:  # the arguments of Batching
    batching = Batching(**values)
    lines = (line.partition(" = ") for line in batching.explain().splitlines())
    rows = tuple((name, derivation) for name, _, derivation in lines)
    return View(batching, rows, lambda: figure.one_batch(batching))
