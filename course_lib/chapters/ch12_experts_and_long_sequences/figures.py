"""Figures of chapter 12, in addition to the library's."""

from collections.abc import Sequence

from course_lib.figures import *  # noqa: F403
from course_lib.figures.engines.cells import Cell, Cells
from course_lib.figures.engines.lines import Axis, Curve, Frame, even, graph
from course_lib.figures.engines.page import page
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing, counted
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.network.experts import ExpertLoad

# --- experts ------------------------------------------------------------------------------------
# The number of choices of each expert, accepted and dropped.


_NUMBERED, _NAMED = 16.0, 40.0  # width that an expert's number and a rank's name need


def expert_bars(load: ExpertLoad, title: str = "") -> Drawing:
    """Draw a bar for each expert, by number, with brackets for the ranks below.

    Choices above the capacity are dropped.
    """
    experts, per_rank = len(load.load), len(load.load) // load.ranks
    lost = [taken - kept for taken, kept in zip(load.load, load.accepted, strict=True)]
    curves = {
        "accepted": Curve(
            list(enumerate(load.accepted)), fill=style.COMPUTING, told=f"{sum(load.accepted):,}"
        )
    }
    if load.dropped:
        dropped = f"{load.dropped:,} ({load.dropped_fraction:.1%})"
        curves["dropped"] = Curve(list(enumerate(lost)), fill=style.WARNING, told=dropped)
    levels = {f"mean {_short(load.mean)}": load.mean}
    if load.capacity < load.choices:
        levels[f"capacity {load.capacity:,}"] = load.capacity
    up = even([0, max(*load.load, *levels.values())], _short, "choices that fall on each expert")
    busiest = f"the busiest expert gets {max(load.load):,}, {load.imbalance:.2f} times the mean"
    note = (
        f"{counted(experts, 'expert')}, {counted(per_rank, 'expert')} on each of "
        f"{counted(load.ranks, 'rank')}, which hands over {format_bytes(load.dispatch_bytes)} in "
        "one all-to-all"
    )
    across = Axis((), ends=(0, experts))
    frame = graph(
        curves, title, across, up, levels=levels, notes=[busiest, note], gaps=True, beside=True
    )
    _ranks(frame, load.ranks, experts, per_rank)
    return frame.drawing


def _ranks(frame: Frame, ranks: int, experts: int, own: int) -> None:
    """Draw a bracket for each rank; names of ranks and numbers of experts if there is room."""
    drawing, slot, y = frame.drawing, (frame.right - frame.left) / experts, frame.bottom + 14
    if slot >= _NUMBERED:
        numbers = [(frame.x(expert + 0.5), y - 5, str(expert)) for expert in range(experts)]
        drawing.write_all(numbers, 8, "center", style.GREY)
    for rank in range(ranks):
        left, right = frame.x(rank * own) + 1, frame.x((rank + 1) * own) - 1
        drawing.line([(left, y - 2), (left, y + 1), (right, y + 1), (right, y - 2)])
    if own * slot >= _NAMED:
        names = [(frame.x((rank + 0.5) * own), y + 11, f"rank {rank}") for rank in range(ranks)]
        drawing.write_all(names, 9, "center")


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


# --- routing ------------------------------------------------------------------------------------
# One token and its router: the probabilities, the chosen experts, and their weights.


_SLOTS = 20  # in a probability's bar


def routing(probabilities: Sequence[float], weights: Sequence[float]) -> Drawing:
    """Draw a token's way through the router; `weights[i]` is 0 if expert i is not chosen."""
    count = len(probabilities)
    chosen = sorted((i for i in range(count) if weights[i]), key=lambda i: -probabilities[i])
    grid: dict[str, dict[str, Cell]] = {}
    said = []
    for expert, (probability, weight) in enumerate(zip(probabilities, weights, strict=True)):
        filled = range(round(_SLOTS * probability / max(probabilities)))
        label = f"{chosen.index(expert) + 1}. choice" if weight else "not chosen"
        look = "forward" if weight else "idle"
        grid[f"expert {expert}\n{probability:.2f}"] = {
            "probability": Cell("", dict.fromkeys(filled, look), _SLOTS),
            "router": Cell(label, slots=0),
            "expert": Cell(f"MLP {expert}", {0: "weights"} if weight else {}),
            "result": Cell(f"× {weight:.2f}" if weight else "", slots=0, bold=True),
        }
        used = f"weight {weight:.2f}" if weight else "is not used"
        said.append(f"expert {expert} has probability {probability:.2f} and {used}")
    return page("", Cells(grid, high=26, said=f"one token: {', '.join(said)}"), key=())
