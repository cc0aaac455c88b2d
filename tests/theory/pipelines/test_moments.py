"""A pipeline moment by moment: against its peak and a drawing by hand.

tests/test_stories.py lays it beside what real ranks run, hold and send.
"""

import pytest
from probes import Probe

from course_lib.theory.inputs.schedule_rules import SCHEDULES
from course_lib.theory.pipelines.moments import pipeline_trace
from course_lib.theory.pipelines.pass_times import PassTimes
from course_lib.theory.pipelines.simulation import timeline

SIZES = [(2, 4, 2), (4, 8, 2), (4, 8, 3), (8, 16, 2)]


def lines():
    for name in SCHEDULES:
        for stages, micro_batches, chunks in SIZES:
            times = PassTimes(forward=1, backward=3) if stages == 2 else PassTimes()
            virtual = chunks if name == "interleaved" else 1
            yield timeline(name, stages, micro_batches, virtual, times=times)


def test_what_is_held_peaks_at_what_is_in_flight():
    for line in lines():
        trace, share = pipeline_trace(line), line.schedule.visits
        for stage in range(line.stages):
            sizes = [size / share for _, size in trace.levels(stage)]
            assert max(sizes) == line.in_flight(stage)
            assert sizes[-1] == 0, "an update leaves nothing behind"


def test_every_pass_runs_as_long_as_in_the_timeline():
    for line in lines():
        trace = pipeline_trace(line)
        assert (trace.times[0], trace.times[-1]) == (0, line.makespan)
        for stage, its in enumerate(trace.lanes().values()):
            spans = {(event.at, event.until) for event in its}  # both halves of an "F&B" in one
            busy = sum(end - start for start, end in spans)
            assert busy == pytest.approx(line.busy[stage])


def test_two_stages_by_hand():
    trace = pipeline_trace(timeline("1f1b", 2, 2))
    assert trace.times == (0, 1, 2, 4, 5, 6, 7, 9)
    assert list(trace.held(0)[0]) == [(0, 0)] and {e.who for e in trace.running(0)} == {0}
    assert list(trace.held(1)[0]) == [(0, 0), (1, 0)] and trace.levels(0)[1] == (1, 2)
    first, *_, back = [(e.at, e.what, e.part, e.who, e.to) for e in trace if e.to is not None][:3]
    assert first == (1, "activations", (0, 0), 0, 1) and back == (4, "gradients", (0, 0), 1, 0)


PROBES = {
    "pipeline_trace": Probe(
        pipeline_trace,
        {"line": timeline("1f1b", 2, 2)},
        {"line": timeline("gpipe", 2, 3)},
    ),
}
