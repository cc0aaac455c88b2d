"""Loss against update number."""

from collections.abc import Mapping, Sequence

from matplotlib.ticker import MaxNLocator

from course_lib.figures.paper import style
from course_lib.figures.paper.sheet import Sheet
from course_lib.theory.inputs.units import format_number


def loss(curves: Mapping[str, Sequence[float]], what: str = "loss") -> Sheet:
    """One line per name, told apart by colour and dashes; update 1 is the first value.

    `what` the values are: the loss, unless it is said.
    Raises ValueError when there is no curve or one without values.
    """
    if not curves or not all(len(values) for values in curves.values()):
        raise ValueError("curves must hold at least one value each: give {name: [loss, …]}")
    sheet = Sheet(240, _sentence(curves, what))
    axes = sheet.add_axes((0.11, 0.17, 0.86, 0.78))
    for place, (name, values) in enumerate(curves.items()):
        colour, dashes = style.LINES[place % len(style.LINES)]
        axes.plot(
            range(1, len(values) + 1),
            values,
            label=name,
            linewidth=2,
            color=colour,
            linestyle=dashes,
        )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("update", fontsize=style.TEXT_PT)
    axes.set_ylabel(what, fontsize=style.TEXT_PT)
    axes.tick_params(labelsize=style.TEXT_PT)
    axes.grid(color=style.PALE)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(fontsize=style.TEXT_PT, frameon=False)
    return sheet


def _sentence(curves: Mapping[str, Sequence[float]], what: str) -> str:
    parts = [
        f"{name}: {what} {format_number(values[0])} at update 1, {format_number(values[-1])} "
        f"at update {len(values)}"
        for name, values in curves.items()
    ]
    return "; ".join(parts) + "."
