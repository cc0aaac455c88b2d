"""Figures of chapter 10, in addition to the library's."""

from collections.abc import Mapping, Sequence

from course_lib.figures import *  # noqa: F403
from course_lib.figures.engines.cells import Cell, Cells
from course_lib.figures.engines.lines import Curve, graph, powers
from course_lib.figures.engines.page import page
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing, counted
from course_lib.theory.inputs.units import format_duration, format_number
from course_lib.theory.network import collectives
from course_lib.theory.network.tensor_parallel import CutLayer

# --- heads --------------------------------------------------------------------------------------
# Which attention heads each GPU has, and which of them are copies.


_OWN, _COPY = "weights of its own", "copy of a head on the GPU before"
Heads = tuple[Sequence[int], Sequence[int]]  # query heads, key-value heads


def heads_by_gpu(cuts: Mapping[str, Sequence[Heads]]) -> Drawing:
    """Draw a block for each cut: {"t = 8": [(query heads, key-value heads) of GPU 0, …]}."""
    blocks = []
    for name, gpus in cuts.items():
        seen: set[int] = set()
        queries, keys = {}, {}
        for gpu, (heads, pairs) in enumerate(gpus):
            queries[str(gpu)] = Cell("", dict.fromkeys(range(len(heads)), _OWN), len(heads))
            filled = {slot: _COPY if head in seen else _OWN for slot, head in enumerate(pairs)}
            texts = {slot: str(head) for slot, head in enumerate(pairs)}
            keys[str(gpu)] = Cell("", filled, len(pairs), texts=texts, bold=True)
            seen |= set(pairs)
        high = {"queries": 14.0, "keys, values": 18.0}
        grid = {"queries": queries, "keys, values": keys}
        first = [counted(len(gpus[0][0]), "query head"), counted(len(gpus[0][1]), "key-value head")]
        note = f"{name}, by GPU: {' and '.join(first)} on GPU 0"
        blocks.append(Cells(grid, high=high, lined=True, gap=5, note=note))
    return page("", *blocks)


# --- reach --------------------------------------------------------------------------------------
# FLOP per byte of a layer against the number of GPUs that share it, and the ridge of the link.


_MOST = 64  # GPUs


def tp_reach(layer: CutLayer, title: str = "") -> Drawing:
    """Draw FLOP per byte of a layer and of one matrix, and the ridge, on two logarithmic axes."""
    degrees = [2 ** (1 + 5 * step / 40) for step in range(41)]
    hidden, size = layer.hidden, layer.element_bytes
    at_two = 9 * hidden / size  # FLOP per byte of a layer on two GPUs
    one_matrix = [(t, collectives.matrix_intensity(hidden, t, size)) for t in degrees]
    reaches = "above the ridge up to t = {}".format
    curves = {
        "a layer's FLOP / bytes, 4.5 h/(t-1) in 16 bits": Curve(
            [(t, at_two / (t - 1)) for t in degrees],
            style.BLUE,
            reaches(layer.layer_reach),
            dots=[(layer.tp, layer.flop_per_byte)] if layer.tp > 1 else (),
        ),
        "note 004: one matrix, 3 h/t": Curve(
            one_matrix, style.GREEN, reaches(format_number(layer.matrix_reach)), dashed=True
        ),
    }
    ridge, reach = layer.ridge_flop_per_byte, layer.layer_reach
    marks = {f"tp {layer.tp}": layer.tp, f"above the ridge up to t = {reach}": reach}
    drawing = graph(
        curves,
        title or f"hidden {hidden}",
        powers([2, _MOST], "{:.0f}".format, "GPUs that share each matrix, t", base=2, most=7),
        powers([10, 1e5], "{:,.0f}".format, "FLOP per byte sent (both axes logarithmic)"),
        marks={name: t for name, t in marks.items() if 1 < t <= _MOST},
        levels={f"ridge {ridge:,.0f}": ridge},
    ).drawing
    slower = "computing" if layer.compute_s >= layer.communication_s else "communicating"
    drawing.sentence = (
        f"Hidden {hidden}, tp {layer.tp} on {layer.link.name}: {layer.flop_per_byte:,.0f} FLOP per "
        f"byte; {slower} takes longer, {format_duration(layer.compute_s)} against "
        f"{format_duration(layer.communication_s)}. {drawing.sentence}"
    )
    return drawing
