"""A pipeline moment by moment: against its peak, the traffic of a step, and a drawing by hand."""

from collections import Counter

import pytest
from every import every
from probes import Probe

from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.schedule_rules import SCHEDULES
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.network.step_traffic import step_traffic
from course_lib.theory.pipelines.moments import pipeline_trace
from course_lib.theory.pipelines.pass_times import PassTimes
from course_lib.theory.pipelines.simulation import timeline

SIZES = [(2, 4, 2), (4, 8, 2), (4, 8, 3), (8, 16, 2)]
SHAPE = TransformerShape(24, 64, 4, 256, 100, 16, tied_embeddings=False)


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


@every("name", ("naive", "gpipe", "1f1b", "interleaved", "zb1p", "zbv"))
def test_as_many_messages_as_a_step_sends(name):
    """step_traffic's counts are those of real runs of the demos."""
    chunks = 2 if name == "interleaved" else 1
    sent = letters(timeline(name, 4, 8, chunks))
    layout = Layout(pp=4, accumulation=8, schedule=name, virtual_stages=chunks)
    for stage in range(4):
        found = Counter(event.what for event in sent if event.who == stage)
        step = step_traffic(Job(SHAPE, layout=layout), stage).collectives
        counts = {item.what: item.count for item in step if item.axis == "pp"}
        assert {"activations": 0, "gradients": 0} | found == {
            "activations": 0,
            "gradients": 0,
        } | counts


def letters(line):
    return [event for event in pipeline_trace(line) if event.to is not None]


def test_dualpipe_sends_both_ways():
    sent = letters(timeline("dualpipe", 4, 8))
    assert len(sent) == 2 * 8 * 3  # each micro-batch crosses three cuts, there and back
    steps = {(letter.what, letter.to - letter.who) for letter in sent}
    assert steps == {("activations", 1), ("activations", -1), ("gradients", 1), ("gradients", -1)}


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
