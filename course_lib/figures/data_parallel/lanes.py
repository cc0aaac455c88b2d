"""Two lanes of a rank of FSDP, computing and messages: where a step's time goes."""

from collections.abc import Mapping, Sequence

from course_lib.figures.engines.lanes import lanes
from course_lib.figures.paper.drawing import Drawing
from course_lib.theory.memory.unit_life import COMPUTES
from course_lib.trace import Event


def two_lanes(charts: Mapping[str, Sequence[Event]]) -> Drawing:
    """Charts below one another on one scale: {"predicted": tasks, "measured": tasks}.

    The number in a bar is its unit; 0 is the root. Raises ValueError for a chart without tasks.
    """
    return lanes(
        {
            name: {
                "computing": [task for task in tasks if task.what in COMPUTES],
                "messages": [task for task in tasks if task.what not in COMPUTES],
            }
            for name, tasks in charts.items()
        }
    )
