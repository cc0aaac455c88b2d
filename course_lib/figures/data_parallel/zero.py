"""ZeRO: which rank stores which part, what each stage leaves on one GPU, and what a run did."""

from collections.abc import Mapping

from course_lib.figures.engines.bars import Bar, Bars, Limit, stacked_bars
from course_lib.figures.engines.cells import Cell, Cells
from course_lib.figures.engines.page import page
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.text import elide
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.network.zero import StageBill, ZeroStages

_COLUMNS, _SLOTS, _HIGH = 8, 48, 120.0  # ranks; parts of one block that can be seen; all blocks
_KINDS = {"weights": style.WEIGHTS, "gradients": style.GRADIENTS, "optimizer": style.STATES}

_ON_THE_HOST: Mapping[str, style.Look] = {"on the host": (style.STATES, "x")}


def who_stores_what(
    result: ZeroStages, stage: int, capacity_bytes: int, title: str = "", unit: str = "GB"
) -> Drawing:
    """Above: the ranks under `stage`, stored parts filled. Below: bytes per GPU of every stage.

    Raises ValueError for another unit, IndexError for a stage that does not exist.
    """
    bill, holds = result.bills[stage], format_bytes(capacity_bytes, unit)
    rows, sums = [], []
    for each in result.bills:
        fits = each.total_bytes <= capacity_bytes
        words = f"{format_bytes(each.total_bytes, unit)}, {'fits' if fits else 'does not fit'}"
        chosen = each is bill
        name = f"► stage {each.zero_stage}" if chosen else f"stage {each.zero_stage}"
        rows.append(Bar(name, _sizes(each), words, 15, 22, chosen, chosen, warns=not fits))
        sums.append(words)
    kinds = ", ".join(
        f"{format_bytes(size, unit)} of {name}" for name, size in _sizes(bill).items()
    )
    host = f", and {format_bytes(bill.host_bytes, unit)} on the host" if bill.host_bytes else ""
    sentence = (
        f"{title}, stage {stage}: each GPU stores {kinds}{host}. Stages 0 to 3 take "
        f"{'; '.join(sums)}; this GPU holds {holds}."
    )
    limits = [Limit(f"this GPU holds {holds}", capacity_bytes)]
    looks = {name: (fill, None) for name, fill in _KINDS.items()}
    note = (
        f"Stage {stage}: what each GPU stores of the whole (filled), and what it does not (white)."
    )
    whole = _wholes(result.bills[0])
    grid, high = {}, {}  # a block is as high as its kind has bytes
    for kind, its in _grid(result, bill).items():
        row = kind + "\n(on the host)" * bool(kind == "optimizer" and bill.host_bytes)
        grid[row], high[row] = its, _HIGH * whole[kind] / sum(whole.values())
    return page(
        title,
        Cells(grid, high=high, note=note, looks=_ON_THE_HOST),
        Bars(rows, looks, limits=limits, size=9, sentence=""),
        key=(),
        sentence=sentence,
    )


def stored_by_version(
    stored: Mapping[str, Mapping[str, int]],
    sent_bytes: Mapping[str, float],
    title: str = "",
    unit: str = "GB",
) -> Drawing:
    """A bar for each version of a run, by kind, and the bytes that a rank sent in one update.

    `stored[version]` are bytes by kind of `weights`, `gradients` and `optimizer`. Raises ValueError
    when there is no version.
    """
    totals = {
        name: f"{format_bytes(sum(kinds.values()), unit)} stored, "
        f"{format_bytes(sent_bytes[name], unit)} sent"
        for name, kinds in stored.items()
    }
    return stacked_bars(stored, title, lambda size: format_bytes(size, unit), totals)


def _sizes(bill: StageBill) -> dict[str, int]:
    sizes = (bill.weights_bytes, bill.gradients_bytes, bill.optimizer_bytes)
    return dict(zip(_KINDS, sizes, strict=True))


def _wholes(bill: StageBill) -> dict[str, int]:
    return _sizes(bill) | {"optimizer": bill.optimizer_bytes + bill.host_bytes}


def _grid(result: ZeroStages, bill: StageBill) -> dict[str, dict[str, Cell]]:
    """A column for each rank, a block for each kind: all of it is filled, or the own part."""
    plain, slots = _wholes(result.bills[0]), min(result.ranks, _SLOTS)
    grid: dict[str, dict[str, Cell]] = {}
    for kind, size in _wholes(bill).items():
        word = "on the host" if kind == "optimizer" and bill.host_bytes else kind
        grid[kind] = {}
        for rank in elide(result.ranks, _COLUMNS):
            if rank is None:
                grid[kind]["…"] = Cell("…", slots=1)
            elif size == plain[kind]:
                grid[kind][f"GPU {rank}"] = Cell(filled={0: word})
            else:
                own = {rank * slots // result.ranks: word}
                grid[kind][f"GPU {rank}"] = Cell(filled=own, slots=slots, across=1)
    return grid
