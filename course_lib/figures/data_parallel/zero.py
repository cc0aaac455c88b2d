"""ZeRO: which rank stores which part, what each stage leaves on one GPU, and what a run did."""

from collections.abc import Mapping

from course_lib.figures.paper import style
from course_lib.figures.paper.picture import WIDTH_PT, Box
from course_lib.figures.paper.sheet import Sheet
from course_lib.figures.paper.text import elide
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.network.zero import StageBill, ZeroStages

_LEFT, _TOP = 104.0, 60.0
_COLUMNS, _COLUMN, _GAP = 8, 46.0, 6.0
_HEIGHT, _LEAST = 120.0, 1.2  # of one rank's three blocks; of the thinnest part
_BARS, _ROW, _BAR, _BARS_END = 236.0, 22.0, 15.0, 368.0
_KINDS = {"weights": style.WEIGHTS, "gradients": style.GRADIENTS, "optimizer": style.STATES}


def who_stores_what(
    result: ZeroStages, stage: int, capacity_bytes: int, title: str = "", unit: str = "GB"
) -> Sheet:
    """Above: the ranks under `stage`, stored parts filled. Below: bytes per GPU of every stage.

    Raises ValueError for another unit, IndexError for a stage that does not exist.
    """
    sheet = Sheet(364, sentence(result, stage, capacity_bytes, title, unit))
    sheet.title(title)
    caption = (
        f"Stage {stage}: what each GPU stores of the whole (filled), and what it does not (white)."
    )
    sheet.write(0, 30, caption, colour=style.GREY)
    _ranks(sheet, result, stage)
    sheet.write(0, _BARS - 16, "Model states on one GPU, all bars on one scale", colour=style.GREY)
    largest = max(bill.total_bytes for bill in result.bills)
    scale = (_BARS_END - _LEFT) / max(largest, capacity_bytes)
    for row, bill in enumerate(result.bills):
        _bar(sheet, bill, _BARS + row * _ROW, scale, capacity_bytes, unit, bill.zero_stage == stage)
    x, bottom = _LEFT + capacity_bytes * scale, _BARS + 4 * _ROW + 4
    sheet.line([(x, _BARS - 6), (x, bottom)], style.INK, 2.5)
    align = "left" if x < WIDTH_PT / 2 else "right"
    text = f"this GPU holds {format_bytes(capacity_bytes, unit)}"
    sheet.write(x, bottom + 14, text, align=align, bold=True)
    return sheet


def stored_by_version(
    stored: Mapping[str, Mapping[str, int]],
    sent_bytes: Mapping[str, float],
    title: str = "",
    unit: str = "GB",
) -> Sheet:
    """A bar for each version of a run, by kind, and the bytes that a rank sent in one update.

    `stored[version]` are bytes by kind of `weights`, `gradients` and `optimizer`. Raises ValueError
    when there is no version.
    """
    if not stored:
        raise ValueError("stored must hold at least one version: give {version: {kind: bytes}}")
    totals = {name: sum(kinds.values()) for name, kinds in stored.items()}
    told = {
        name: f"{format_bytes(totals[name], unit)}, {format_bytes(sent_bytes[name], unit)}"
        for name in stored
    }
    words = "; ".join(f"{name}: stored and sent {text}" for name, text in told.items())
    sheet = Sheet(66 + 36 * len(stored), f"{title}. {words}.")
    sheet.title(title)
    sheet.write(WIDTH_PT - 84, 56, "stored", align="right", colour=style.GREY)
    sheet.write(WIDTH_PT - 4, 56, "sent", align="right", colour=style.GREY)
    for place, (kind, fill) in enumerate(_KINDS.items()):
        sheet.boxes([(110 * place, 28, 14, 10)], fill)
        sheet.write(110 * place + 20, 37, kind)
    scale = 350 / max(totals.values())
    for row, (name, kinds) in enumerate(stored.items()):
        y = 62 + 36 * row
        sheet.write(0, y + 8, name)
        x = 0.0
        for kind, fill in _KINDS.items():
            sheet.boxes([(x, y + 13, kinds[kind] * scale, 12)], fill)
            x += kinds[kind] * scale
        sheet.write(WIDTH_PT - 84, y + 23, format_bytes(totals[name], unit), align="right")
        sheet.write(WIDTH_PT - 4, y + 23, format_bytes(sent_bytes[name], unit), align="right")
    return sheet


def sentence(
    result: ZeroStages, stage: int, capacity_bytes: int, title: str = "", unit: str = "GB"
) -> str:
    """What one GPU stores under `stage`, whether it fits, and all four sums, in words."""
    bill = result.bills[stage]
    kinds = ", ".join(
        f"{format_bytes(size, unit)} of {name}" for name, size in _sizes(bill).items()
    )
    host = f", and {format_bytes(bill.host_bytes, unit)} on the host" if bill.host_bytes else ""
    sums = ", ".join(format_bytes(each.total_bytes, unit) for each in result.bills)
    return (
        f"{title}, stage {stage}: each GPU stores {kinds}{host}; "
        f"{_verdict(bill, capacity_bytes)} in {format_bytes(capacity_bytes, unit)}. "
        f"Stages 0 to 3 take {sums}."
    )


def _sizes(bill: StageBill) -> dict[str, int]:
    sizes = (bill.weights_bytes, bill.gradients_bytes, bill.optimizer_bytes)
    return dict(zip(_KINDS, sizes, strict=True))


def _verdict(bill: StageBill, capacity_bytes: int) -> str:
    return "fits" if bill.total_bytes <= capacity_bytes else "does not fit"


def _ranks(sheet: Sheet, result: ZeroStages, stage: int) -> None:
    """A column for each rank, a block for each kind; as high as the kind has bytes."""
    plain, bill = result.bills[0], result.bills[stage]
    whole = _sizes(plain) | {"optimizer": plain.optimizer_bytes + plain.host_bytes}
    held = _sizes(bill) | {"optimizer": bill.optimizer_bytes + bill.host_bytes}
    columns = elide(result.ranks, _COLUMNS)
    places = [(i, r) for i, r in enumerate(columns) if r is not None]
    for column, rank in enumerate(columns):
        x = _LEFT + column * (_COLUMN + _GAP) + _COLUMN / 2
        name = "…" if rank is None else f"GPU {rank}"
        sheet.write(x, _TOP - 8, name, align="center", size=9)
    y = _TOP
    for kind, fill in _KINDS.items():
        height = _HEIGHT * whole[kind] / sum(whole.values())
        part = held[kind] / whole[kind]
        empty, filled = [], []
        for column, rank in places:
            x = _LEFT + column * (_COLUMN + _GAP)
            empty.append((x, y, _COLUMN, height))
            filled.append(_part(x, y, height, part, rank, result.ranks))
        on_host = kind == "optimizer" and bill.host_bytes
        sheet.boxes(empty, style.WHITE, edge=style.GREY)
        thin = height * part < 3  # an outline would hide its colour
        sheet.boxes(filled, style.PALE if on_host else fill, edge=fill if thin else style.INK)
        sheet.write(_LEFT - 8, y + height / 2 + 4, kind, align="right")
        if on_host:
            sheet.write(_LEFT - 8, y + height / 2 + 17, "(on the host)", align="right", size=9)
        y += height + 4


def _part(x: float, y: float, height: float, part: float, rank: int, ranks: int) -> Box:
    """The filled part of one block: all of it, or the rank's own slice."""
    if part >= 1:
        return (x, y, _COLUMN, height)
    thick = max(height * part, _LEAST)
    return (x, y + (height - thick) * rank / max(ranks - 1, 1), _COLUMN, thick)


def _bar(
    sheet: Sheet,
    bill: StageBill,
    y: float,
    scale: float,
    capacity_bytes: int,
    unit: str,
    chosen: bool,
) -> None:
    name = f"stage {bill.zero_stage}"
    sheet.write(_LEFT - 8, y + 12, f"► {name}" if chosen else name, align="right", bold=chosen)
    x = _LEFT
    for size, fill in zip(_sizes(bill).values(), _KINDS.values(), strict=True):
        if size:
            sheet.boxes([(x, y, size * scale, _BAR)], fill)
        x += size * scale
    text = f"{format_bytes(bill.total_bytes, unit)}, {_verdict(bill, capacity_bytes)}"
    ink = style.INK if bill.total_bytes <= capacity_bytes else style.WARNING_TEXT
    sheet.write(WIDTH_PT - 4, y + 12, text, 9, "right", ink, bold=chosen)
