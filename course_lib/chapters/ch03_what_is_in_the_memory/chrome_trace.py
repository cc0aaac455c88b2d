"""Memory over time as a trace that chrome://tracing and ui.perfetto.dev open."""

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from course_lib.checked import checked
from course_lib.validation import text, told, whole


@checked
def chrome_trace(phases: Sequence[str], sizes: Mapping[str, Sequence[int]]) -> str:
    """JSON with a bar for each phase and a counter of bytes by category; one microsecond a moment.

    `phases` has the phase of each moment, `sizes` its bytes by category, as timelines here have
    them. Moments are in order, not to scale in time. Raises ValueError for lists of other lengths.
    Events have the keys of those that torch.profiler exports. Source: Google's Trace Event Format:
    "M" names a process, "X" lasts, "C" counts; times in µs.
    """
    for phase in phases:
        text("phases", phase)
    for name, its in sizes.items():
        if not isinstance(its, Sequence) or len(its) != len(phases):
            raise ValueError(
                f"sizes {name!r} is {told(its)} and phases has {len(phases)} moments: "
                "give a list with the bytes of each"
            )
        for size_bytes in its:
            whole(f"sizes {name!r}", size_bytes, least=0)
    process = {"pid": 0, "tid": 0}
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "ts": 0, **process, "args": {"name": "memory of a GPU"}}
    ]
    start = 0
    for phase, group in groupby(phases):
        count = len(list(group))
        bar = {"name": phase, "ph": "X", "cat": "phase", "ts": start, "dur": count}
        events.append(bar | process)
        start += count
    for moment in range(len(phases)):
        args = {name: its[moment] for name, its in sizes.items()}
        events.append({"name": "bytes", "ph": "C", "ts": moment, **process, "args": args})
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, allow_nan=False)
