"""Figures of chapter 7, in addition to those of the library."""

from collections.abc import Iterator, Mapping
from itertools import groupby

from course_lib.figures import *  # noqa: F403
from course_lib.figures.engines.lanes import Lanes
from course_lib.figures.engines.page import page
from course_lib.figures.paper.drawing import Drawing, counted
from course_lib.theory.inputs.units import format_bytes, format_duration
from course_lib.theory.network.bucket_timeline import BucketTimeline
from course_lib.trace import Event

_MOST_ARROWS = 45  # more of them would merge visually


def bucket_timeline(charts: Mapping[str, BucketTimeline]) -> Drawing:
    """Draw backward, all-reduces and their exposed time for {"one bucket": timeline, …}.

    All charts share one scale of time. Raises ValueError without a chart.
    """
    if not charts:
        raise ValueError('charts is empty: give for example {"one bucket": ddp_timeline(…)}')
    notes = (
        "backward: from the head to the embedding; link: all-reduces, one box a bucket;",
        "an arrow leads from where a bucket is full to where it is sent",
    )
    return page("", *[_chart(name, run) for name, run in charts.items()], notes=notes)


def _chart(name: str, run: BucketTimeline) -> Lanes:
    sent = [Event(each.start_s, 0, "all-reduce", end=each.end_s) for each in run.exchanges]
    rows = {"backward": list(_layers(run)), "link": sent, "exposed": list[Event]()}
    if run.exposed_s:
        rows["exposed"] = [Event(run.backward_s, 0, "exposed", end=run.end_s)]
    arrows, drawn_s = [], -run.end_s
    for each in run.exchanges:
        if each.ready_s >= drawn_s + run.end_s / _MOST_ARROWS:
            drawn_s = each.ready_s
            arrows.append((("backward", drawn_s), ("link", each.start_s), "messages"))
    ends = f"backward ends; {format_duration(run.exposed_s)} exposed"
    said = (
        f"{name}: backward takes {format_duration(run.backward_s)}; "
        f"{counted(len(run.exchanges), 'bucket')} with {format_bytes(run.size_bytes)} of gradients "
        f"take {format_duration(run.communication_s)}: {format_duration(run.hidden_s)} hidden "
        f"behind backward, {format_duration(run.exposed_s)} exposed"
    )
    return Lanes(
        rows,
        name=name,
        high=30.0,
        marks={ends: run.backward_s},
        arrows=arrows,
        gap=12.0,
        sentence=said,
    )


def _layers(run: BucketTimeline) -> Iterator[Event]:
    """Yield boxes for head, layers and embedding; consecutive gradients of one name share a box."""
    end = 0.0
    for _, gradients in groupby(run.gradients, lambda gradient: gradient.name):
        start, end = end, end + sum(gradient.backward_s for gradient in gradients)
        yield Event(start, 0, "backward", end=end)
