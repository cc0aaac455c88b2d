"""How micro-batches form the global batch, and updates an epoch."""

from course_lib.figures.engines.cells import Cell, Cells
from course_lib.figures.engines.page import page
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing, counted, elide
from course_lib.theory.step.batching import Batching, Epoch

_ROWS, _COLUMNS, _UPDATES = 6, 8, 9  # beyond these, the middle is elided
_STRIP_PT = 22.0
_LOOKS: dict[str, style.Look] = {
    "full": (style.COMPUTING, None),
    "short": (style.PALE, None),
    "repeated": (style.PALE, "/"),
    "dropped": (style.WARNING, None),
}


def one_batch(batching: Batching) -> Drawing:
    """Draw the first update as a grid of ranks × micro-steps, and the epoch as a strip below."""
    epoch = batching.epoch()
    sizes = (
        f"micro-batch {batching.micro_batch} × accumulation {batching.accumulation} × "
        f"dp {batching.dp}"
    )
    samples = counted(batching.global_batch, "sample")
    tokens = counted(batching.tokens_per_batch, "token")
    of_epoch, updates = counted(batching.samples, "sample"), counted(epoch.updates, "update")
    steps, tail = counted(epoch.micro_steps, "micro-step"), _tail(epoch)
    last = (
        f"Last update: {epoch.last_window} of {counted(batching.accumulation, 'micro-step')}, the "
        f"last micro-batch {epoch.last_micro_batch} of {counted(batching.micro_batch, 'sample')}; "
    )
    whole = epoch.last_window == batching.accumulation
    whole = whole and epoch.last_micro_batch == batching.micro_batch
    note = f"Each cell: the samples of one forward + backward, by micro-step; {tokens} in all."
    strip = f"One epoch of {of_epoch}: {updates}"
    high = 140 / len(elide(batching.dp, _ROWS)) - 5  # constant total height
    return page(
        f"One update: {sizes} = {samples}",
        Cells(_grid(batching, epoch), high=high, looks=_LOOKS, gap=3, note=note),
        Cells({"update": _strip(batching, epoch)}, high=_STRIP_PT, looks=_LOOKS, gap=3, note=strip),
        notes=[f"{'' if whole else last}{tail}."],
        key=("full", "short", "all-reduce", "update", "repeated", "dropped"),
        sentence=(
            f"One update: {sizes} = global batch of {samples}. One epoch of {of_epoch}: {steps} on "
            f"each rank and {updates}; {tail}"
        ),
    )


def _tail(epoch: Epoch) -> str:
    if epoch.dropped:
        return f"{counted(epoch.dropped, 'sample')} dropped"
    if epoch.repeated:
        return f"{counted(epoch.repeated, 'sample')} repeated"
    return "no sample repeated or dropped"


def _grid(batching: Batching, epoch: Epoch) -> dict[str, dict[str, Cell]]:
    """Full cells, the short last micro-batch, and empty cells if the data run out."""
    ends_here = epoch.updates == 1
    filled = epoch.last_window if ends_here else batching.accumulation
    ragged = ends_here and epoch.last_micro_batch < batching.micro_batch
    row: dict[str, Cell] = {}
    for step in elide(batching.accumulation, _COLUMNS):
        if step is None:
            row["…"] = Cell("…")
        elif step >= filled:
            row[str(step + 1)] = Cell(filled={0: "not used"})
        elif ragged and step == filled - 1:
            row[str(step + 1)] = Cell(str(epoch.last_micro_batch), {0: "short"})
        else:
            row[str(step + 1)] = Cell(str(batching.micro_batch), {0: "full"})
    end = {0: "all-reduce", 1: "update"} if batching.dp > 1 else {0: "update"}
    row["update"] = Cell(filled=end, slots=len(end))
    ranks = elide(batching.dp, _ROWS)
    left_out = {name: Cell("…") for name in row}
    return {
        "…" if rank is None else f"dp rank {rank}": left_out if rank is None else row
        for rank in ranks
    }


def _strip(batching: Batching, epoch: Epoch) -> dict[str, Cell]:
    """The updates of the epoch, the last one partly filled, then dropped or repeated samples."""
    row: dict[str, Cell] = {}
    for update in elide(epoch.updates, _UPDATES):
        row["…" if update is None else f"{update + 1:,}"] = Cell(
            "…" if update is None else "", {} if update is None else {0: "full"}
        )
    share = round(10 * epoch.last_window / batching.accumulation)
    if epoch.last_window < batching.accumulation or epoch.last_micro_batch < batching.micro_batch:
        row[f"{epoch.updates:,}"] = Cell(
            filled=dict.fromkeys(range(max(1, share)), "short"), slots=10
        )
    if epoch.dropped:
        row["dropped"] = Cell(f"{epoch.dropped:,}", {0: "dropped"})
    elif epoch.repeated:
        row["repeated"] = Cell(f"{epoch.repeated:,}", {0: "repeated"})
    return row
