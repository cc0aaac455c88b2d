"""The panel of chapter 1: samples, batches, updates and epochs."""

from course_lib.figures import batches as figure
from course_lib.panels.controls import flag, powers_of_two, whole
from course_lib.panels.panel import View, panel
from course_lib.theory.step.batching import Batching


@panel
def batches(
    samples: int = whole("samples", 1000, 1, 10_000),
    micro_batch: int = whole("micro-batch", 5, 1, 64),
    accumulation: int = whole("accumulation", 2, 1, 64),
    nodes: int = powers_of_two("nodes", 2, 1, 64),
    gpus_per_node: int = powers_of_two("GPUs per node", 4, 1, 8),
    tp: int = powers_of_two("tensor parallel", 1, 1, 8),
    pp: int = powers_of_two("pipeline parallel", 1, 1, 16),
    cp: int = powers_of_two("context parallel", 1, 1, 8),
    sequence: int = powers_of_two("sequence", 1024, 128, 8192),
    drop_last: bool = flag("drop last", False),
) -> View:
    """Sliders for `Batching`, which is the panel's result.

    Raises ValueError for starting values outside the sliders or that do not fit together.
    """
    batching = Batching(
        samples, micro_batch, accumulation, nodes, gpus_per_node, tp, pp, cp, sequence, drop_last
    )
    lines = (line.partition(" = ") for line in batching.explain().splitlines())
    rows = tuple((name, derivation) for name, _, derivation in lines)
    return View(batching, rows, lambda: figure.one_batch(batching))
