"""Streams that share a processor: one row a stream, one box a task, as high as it is fast."""

from collections.abc import Mapping

from course_lib.figures.engines.lanes import Levels
from course_lib.figures.engines.page import Block, page
from course_lib.figures.paper.drawing import Drawing
from course_lib.theory.inputs.units import format_duration
from course_lib.theory.step.streams import SharedTimeline


def shared_rates(charts: Mapping[str, SharedTimeline]) -> Drawing:
    """One chart under another on one scale: {"alone": timeline, "sharing": timeline}.

    A box as high as its row runs at full speed, half as high at half speed, so a box's area is its
    work. The first word of a task's name is its kind.
    """
    blocks: list[Block] = []
    for name, run in charts.items():
        heads = [f"{name}: {format_duration(run.total_s)}", *[""] * len(run.tasks)]
        for head, stream in zip(heads, _streams(run), strict=False):
            blocks.append(_levels(run, stream, head))
    return page("", *blocks, notes=["height: speed"])


def _levels(run: SharedTimeline, stream: str, head: str) -> Levels:
    levels: dict[str, list[tuple[float, float]]] = {}
    for span in run.spans:
        if span.stream == stream:
            times = levels.setdefault(span.task.split(" ", 1)[0], [])
            times += [(span.start_s, span.rate), (span.end_s, 0.0)]
    return Levels(
        levels,
        over=(0, run.total_s),
        name=stream,
        head=head,
        high=34,
        most=1.0,
        outlined=True,
        told="{:.0%}".format,
    )


def _streams(run: SharedTimeline) -> list[str]:
    """That with most work first, as profiles have it: what it waits for stands below."""
    work: dict[str, float] = {}
    for task in run.tasks:
        work[task.stream] = work.get(task.stream, 0) + task.alone_s
    return sorted(work, key=work.__getitem__, reverse=True)
