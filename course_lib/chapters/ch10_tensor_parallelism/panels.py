"""Panels of chapter 10, in addition to the library's."""

from course_lib.chapters.ch10_tensor_parallelism import figures
from course_lib.panels.controls import DENSE, by_name, choice, powers_of_two
from course_lib.panels.panel import View, panel
from course_lib.theory.inputs.hardware import ACCELERATORS, NDR, PCIE4
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.units import format_number
from course_lib.theory.network.tensor_parallel import CutLayer

_LINKS = by_name(
    PCIE4,
    NDR,
    *(ACCELERATORS[name].inside for name in ("A100-SXM-80GB", "H100-SXM", "B200-SXM")),
)


@panel
def tp_reach(
    model: str = choice("model", "llama2-70b", DENSE),
    gpu: str = choice("chip", "H100-SXM", list(ACCELERATORS)),
    link: str = choice("link", "NVLink4", list(_LINKS)),
    tp: int = powers_of_two("tensor parallel", 8, 2, 64),
) -> View:
    """Controls for `CutLayer`, which is the panel's result.

    Of the model only the hidden size counts: a layer has 12h² weights and processes 4096 tokens.
    Raises ValueError for starting values that are not offered.
    """
    chip = ACCELERATORS[gpu]
    layer = CutLayer(MODELS[model].hidden, tp, chip.peak_flop_per_s, _LINKS[link])
    ratio = layer.communication_s / layer.compute_s
    rows = (
        ("model", f"{model}: hidden {layer.hidden:,}"),
        ("link", layer.link.explain()),
        ("compute, one layer", f"{format_number(1000 * layer.compute_s)} ms at the peak of {gpu}"),
        (
            "communication",
            f"{format_number(1000 * layer.communication_s)} ms for "
            f"{format_number(layer.sent_bytes / 1e6, 4)} MB: "
            f"{ratio:.2f} × the computation",
        ),
    )
    title = f"{model} on {gpu}, {link}, {layer.tokens} tokens"
    return View(layer, rows, lambda: figures.tp_reach(layer, title))
