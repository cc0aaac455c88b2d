"""Which GPU has which heads of attention, and which of them are copies."""

from collections.abc import Mapping, Sequence

from course_lib.figures.engines.cells import Cell, Cells
from course_lib.figures.engines.page import page
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.text import counted

_OWN, _COPY = "weights of its own", "copy of a head on the GPU before"
Heads = tuple[Sequence[int], Sequence[int]]  # of queries, of keys and values


def heads_by_gpu(cuts: Mapping[str, Sequence[Heads]]) -> Drawing:
    """A block for each way to cut: {"t = 8": [(query heads, key-value heads) of GPU 0, …]}."""
    blocks = []
    for name, gpus in cuts.items():
        seen: set[int] = set()
        queries, keys = {}, {}
        for gpu, (asked, kept) in enumerate(gpus):
            queries[str(gpu)] = Cell("", dict.fromkeys(range(len(asked)), _OWN), len(asked))
            filled = {slot: _COPY if head in seen else _OWN for slot, head in enumerate(kept)}
            texts = {slot: str(head) for slot, head in enumerate(kept)}
            keys[str(gpu)] = Cell("", filled, len(kept), texts=texts, bold=True)
            seen |= set(kept)
        high = {"queries": 14.0, "keys, values": 18.0}
        grid = {"queries": queries, "keys, values": keys}
        first = [counted(len(gpus[0][0]), "query head"), counted(len(gpus[0][1]), "key-value head")]
        note = f"{name}, by GPU: {' and '.join(first)} on GPU 0"
        blocks.append(Cells(grid, high=high, lined=True, gap=5, note=note))
    return page("", *blocks)
