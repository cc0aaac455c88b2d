"""ZeRO against its formulas, buckets by hand, and a server against the course's own.

tests/test_stories.py lays them beside what real ranks send. The servers here are those of
`scratch.parameter_server`; only their messages are played, on a clock of their own.
"""

from heapq import heappop, heappush

import pytest
import torch
from probes import SLOW_LINK, Probe

from course_lib.chapters.ch14_parameter_servers.exchanges import mean_staleness
from course_lib.scratch.parameter_server import STOP, BoundedServer
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.recipe import MIXED_16
from course_lib.theory.memory.states import model_states
from course_lib.theory.network.bucket_timeline import Gradient, ddp_timeline
from course_lib.theory.network.zero import zero_stages
from course_lib.theory.stories.copies import Rows, bucket_steps, served_steps, zero_steps

TRAINERS = (1.0, 1.5, 4.0)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_bytes_sent_and_kept_are_those_of_the_stages(stage):
    """Second source: the closed formulas of `zero` and `states`."""
    trace = zero_steps(1200, 4, 6, stage)
    bill = zero_stages(4800, 6, MIXED_16).bills[stage]
    states = model_states(4800, MIXED_16, Layout(dp=6, zero_stage=stage))
    for rank in range(6):
        (total,) = trace.sent(rank).values()
        assert total.size_bytes == pytest.approx(bill.sent_bytes)
        at_rest = sum(part.bytes for part in trace.held(0)[rank].values())
        assert at_rest == states.total_bytes - states.gradients_bytes
        # From stage 2 on one layer's whole gradient instead of its part; in 3 its weights as well.
        extra = (0, 0, 2 * 1200 - 2 * 200, 2 * 1200 - 2 * 200 + 2 * 1200)[stage]
        assert trace.peak(rank) == states.total_bytes + extra


def test_a_step_without_a_gradient_is_in_the_open_bucket():
    chain = [Gradient("c", 10, 1.0), Gradient("nothing", 0, 1.0), Gradient("a", 10, 1.0)]
    trace = bucket_steps(ddp_timeline(chain, 2, SLOW_LINK, cap_bytes=20, first_bytes=20))
    assert [event.part for event in trace if event.what == "backward"] == [(0, 0), (0, 1), (0, 2)]


class PlayedMessages:
    """What a server hears from trainers that compute for so long: no process, no waiting."""

    def __init__(self, compute_s, until_s):
        self.compute_s, self.until_s, self.at_s = compute_s, until_s, 0.0
        self.requests = [(0.0, trainer) for trainer in range(len(compute_s))]
        self.heard = []

    def announced(self, source=None):
        if source is None:
            self.at_s, trainer = heappop(self.requests)
        else:
            (request,) = (each for each in self.requests if each[1] == source)
            self.requests.remove(request)
            self.at_s, trainer = max(self.at_s, request[0]), source
        return trainer, STOP if self.at_s > self.until_s else 1

    def receive_ids(self, count, source):
        return torch.zeros(count, dtype=torch.long)

    def send(self, rows, to):
        self.heard.append((self.at_s, "pull", to))
        heappush(self.requests, (self.at_s + self.compute_s[to], to))

    def receive_rows(self, count, width, source):
        self.heard.append((self.at_s, "push", source))
        heappush(self.requests, (self.at_s, source))
        return torch.zeros(count, width)


def late(trace):
    """By trainer: how late each of its gradients is."""
    return {
        who: [e.part.late for e in trace if e.what == "push" and e.who == who] for who in trace.who
    }


@pytest.mark.parametrize("bound", [None, 0, 1, 3])
@pytest.mark.parametrize("compute_s", [TRAINERS, (1.0, 1.0, 2.0), (3.0, 1.0)])
def test_a_real_server_serves_in_the_same_order(bound, compute_s):
    trace = served_steps(compute_s, 20.0, bound)
    messages = PlayedMessages(compute_s, 20.0)
    server = BoundedServer(torch.zeros(1, 1), 0.1, range(len(compute_s)), messages)
    if bound is None:
        server.serve_as_they_come()
    else:
        server.serve_within(bound)
    heard = [event for event in messages.heard if event[0] <= 20.0]
    assert [(e.at, e.what, e.who) for e in trace if e.what != "wait"] == heard
    assert late(trace) == server.staleness and trace[-1].part.version == server.updates
    assert any(event.what == "wait" for event in trace) == (bound is not None)


def test_together_nobody_is_late_and_all_wait_for_the_slowest():
    trace = served_steps(TRAINERS, 20.0, together=True)
    messages = PlayedMessages(TRAINERS, 20.0)
    server = BoundedServer(torch.zeros(1, 1), 0.1, range(3), messages)
    for _ in range(5):  # 20 s of rounds that last 4 s
        server.serve_together()
    assert late(trace) == server.staleness == {trainer: [0] * 5 for trainer in range(3)}
    updates = [event.at for event in trace if event.what == "update"]
    assert updates == [4, 8, 12, 16, 20] and server.updates == 5
    pulls = [(at_s, trainer) for at_s, what, trainer in messages.heard if what == "pull"]
    ours = [(event.at, event.who) for event in trace if event.what == "pull"]
    assert sorted(pulls) == sorted(ours)[: len(pulls)]


@pytest.mark.parametrize("compute_s", [TRAINERS, (1.0, 1.1, 1.2, 1.3), (1.0, 10.0)])
def test_on_average_gradients_are_late_by_the_number_of_others(compute_s):
    its = [one for of in late(served_steps(compute_s, 2000.0)).values() for one in of]
    assert sum(its) / len(its) == pytest.approx(mean_staleness(len(compute_s)), rel=0.01)


TIMELINES = [
    ddp_timeline([Gradient(name, 10, 5.0) for name in names], 2, SLOW_LINK, cap_bytes=10)
    for names in ("cba", "dcba")
]
REFUSED = [
    (lambda: zero_steps(12, 2, 2, 4), "stage must be at most 3"),
    (lambda: zero_steps(12, 2, 5, 1), "can't be cut into 5 equal parts"),
    (lambda: served_steps([1.0], 1e6), "too many updates"),
    (lambda: served_steps([1.0], 1.0, 1, True), "do not go together"),
]
PROBES = {
    "bucket_steps": Probe(bucket_steps, {"timeline": TIMELINES[0]}, {"timeline": TIMELINES[1]}),
    "served_steps": Probe(served_steps, {"compute_s": (1.0, 3.0), "until_s": 9.0}),
}
RECORDS = {"Rows": [Rows(1, 0), Rows(2, 1)]}
