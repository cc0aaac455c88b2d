"""A search that doubles, then halves: every try on a line of batch sizes."""

from collections.abc import Sequence

from course_lib.figures.engines.bars import bars
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing


def tried_batches(tried: Sequence[int], largest: int) -> Drawing:
    """A line for each try, from the top down, as long as its batch; those that fit are green."""
    tries = {f"try {number}": batch for number, batch in enumerate(tried, 1)}
    looks = {False: (style.WARNING, "/"), True: (style.GREEN, None)}
    return bars(
        tries,
        {name: f"{it}{' (too large)' * (it > largest)}" for name, it in tries.items()},
        "batch that is tried",
        {name: looks[batch <= largest] for name, batch in tries.items()},
        marks={f"largest that fits: {largest}": largest},
    )
