"""A pipeline moment by moment: against its peak, the traffic of a step, and a drawing by hand."""

from itertools import pairwise

import pytest
from every import every
from probes import Probe

from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.schedule_rules import SCHEDULES
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.network.step_traffic import step_traffic
from course_lib.theory.pipelines.moments import Held, Message, pipeline_moments
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
        moments = pipeline_moments(line)
        share = line.schedule.visits
        for stage in range(line.stages):
            shown = [len(moment.stages[stage].held) / share for moment in moments]
            assert max(shown) == line.in_flight(stage) == moments[-1].stages[stage].most
            assert shown[-1] == 0, "an update leaves nothing behind"
            peaks = [moment.stages[stage].most for moment in moments]
            assert peaks == [max(shown[: place + 1]) for place in range(len(shown))]


def test_every_pass_runs_as_long_as_in_the_timeline():
    for line in lines():
        moments = pipeline_moments(line)
        assert (moments[0].time, moments[-1].time) == (0, line.makespan)
        assert all(early.time < late.time for early, late in pairwise(moments))
        busy = [0.0] * line.stages
        for early, late in pairwise(moments):
            for stage, at in enumerate(early.stages):
                busy[stage] += (late.time - early.time) * (at.running is not None)
        assert busy == pytest.approx(line.busy)


@every("name", ("naive", "gpipe", "1f1b", "interleaved", "zb1p", "zbv"))
def test_as_many_messages_as_a_step_sends(name):
    """step_traffic's counts are those of real runs of the demos."""
    chunks = 2 if name == "interleaved" else 1
    moments = pipeline_moments(timeline(name, 4, 8, chunks))
    layout = Layout(pp=4, accumulation=8, schedule=name, virtual_stages=chunks)
    for stage in range(4):
        found = {"activations": 0, "gradients": 0}
        for moment in moments:
            for message in moment.sent:
                found[message.kind] += message.sender == stage
        sent = step_traffic(Job(SHAPE, layout=layout), stage).collectives
        counts = {item.what: item.count for item in sent if item.axis == "pp"}
        assert found == {"activations": 0, "gradients": 0} | counts


def test_dualpipe_sends_both_ways():
    moments = pipeline_moments(timeline("dualpipe", 4, 8))
    sent = [message for moment in moments for message in moment.sent]
    assert len(sent) == 2 * 8 * 3  # each micro-batch crosses three cuts, there and back
    steps = {(letter.kind, letter.receiver - letter.sender) for letter in sent}
    assert steps == {("activations", 1), ("activations", -1), ("gradients", 1), ("gradients", -1)}


def test_two_stages_by_hand():
    first, second, *_ = moments = pipeline_moments(timeline("1f1b", 2, 2))
    assert [moment.time for moment in moments] == [0, 1, 2, 4, 5, 6, 7, 9]
    assert (first.stages[0].held, first.stages[1].running, first.sent) == (
        (Held(0, 0),),
        None,
        (),
    )
    assert second.sent == (Message("activations", 0, 0, 1),)
    assert second.stages[0].held == (Held(0, 0), Held(1, 0)) and second.stages[0].most == 2
    assert moments[3].sent == (Message("gradients", 0, 1, 0),)


RECORDS = {
    "Held": [Held(0, 0), Held(1, 1)],
    "Message": [Message("activations", 0, 0, 1), Message("gradients", 1, 1, 0)],
    "AtStage": list(pipeline_moments(timeline("1f1b", 2, 2))[0].stages),
    "Moment": pipeline_moments(timeline("1f1b", 2, 2))[:2],
}
PROBES = {
    "pipeline_moments": Probe(
        pipeline_moments,
        {"line": timeline("1f1b", 2, 2)},
        {"line": timeline("gpipe", 2, 3)},
    ),
}
