"""Pulls and pushes in order: by hand, and as the servers of `scratch.parameter_server` serve them.

The servers are the real ones; only their messages are played, on a clock of their own.
"""

from heapq import heappop, heappush

import pytest
import torch
from probes import Probe

from course_lib.scratch.parameter_server.bounded import BoundedServer
from course_lib.scratch.parameter_server.messages import STOP
from course_lib.theory.network.served import mean_staleness
from course_lib.theory.network.served_steps import served_steps

TRAINERS = (1.0, 1.5, 4.0)


def story(steps, *left_out):
    return [
        (event.at_s, event.what, event.trainer)
        for event in steps.events
        if event.what not in left_out
    ]


def test_two_trainers_by_hand():
    """The second needs three times as long: two updates of the first come before its own."""
    steps = served_steps([1.0, 2.5], until_s=3.0)
    assert [
        (event.at_s, event.what, event.trainer, event.version, event.late) for event in steps.events
    ] == [
        (0, "pull", 0, 0, 0),
        (0, "pull", 1, 0, 0),
        (1, "push", 0, 1, 0),
        (1, "pull", 0, 1, 0),
        (2, "push", 0, 2, 0),
        (2, "pull", 0, 2, 0),
        (2.5, "push", 1, 3, 2),
        (2.5, "pull", 1, 3, 0),
        (3, "push", 0, 4, 1),
        (3, "pull", 0, 4, 0),
    ]
    assert (steps.pushes, steps.mean_late) == (4, 3 / 4)


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


def by_trainer(steps):
    return {
        trainer: [e.late for e in steps.events if e.what == "push" and e.trainer == trainer]
        for trainer in range(len(steps.compute_s))
    }


@pytest.mark.parametrize("bound", [None, 0, 1, 3])
@pytest.mark.parametrize("compute_s", [TRAINERS, (1.0, 1.0, 2.0), (3.0, 1.0)])
def test_a_real_server_serves_in_the_same_order(bound, compute_s):
    steps = served_steps(compute_s, 20.0, bound)
    messages = PlayedMessages(compute_s, 20.0)
    server = BoundedServer(torch.zeros(1, 1), 0.1, range(len(compute_s)), messages)
    if bound is None:
        server.serve_as_they_come()
    else:
        server.serve_within(bound)
    heard = [event for event in messages.heard if event[0] <= 20.0]
    assert story(steps, "wait") == heard
    assert by_trainer(steps) == server.staleness
    assert any(event.what == "wait" for event in steps.events) == (bound is not None)


def test_together_nobody_is_late_and_all_wait_for_the_slowest():
    steps = served_steps(TRAINERS, 20.0, together=True)
    messages = PlayedMessages(TRAINERS, 20.0)
    server = BoundedServer(torch.zeros(1, 1), 0.1, range(3), messages)
    for _ in range(5):  # 20 s of rounds that last 4 s
        server.serve_together()
    assert by_trainer(steps) == server.staleness == {trainer: [0] * 5 for trainer in range(3)}
    updates = [event.at_s for event in steps.events if event.what == "update"]
    assert updates == [4, 8, 12, 16, 20] and server.updates == 5
    pulls = [(at_s, trainer) for at_s, what, trainer in messages.heard if what == "pull"]
    ours = [(at_s, trainer) for at_s, what, trainer in story(steps) if what == "pull"]
    assert sorted(pulls) == sorted(ours)[: len(pulls)]


@pytest.mark.parametrize("compute_s", [TRAINERS, (1.0, 1.1, 1.2, 1.3), (1.0, 10.0)])
def test_on_average_gradients_are_late_by_the_number_of_others(compute_s):
    steps = served_steps(compute_s, 2000.0)
    assert steps.mean_late == pytest.approx(mean_staleness(len(compute_s)), rel=0.01)


def test_a_bound_keeps_the_slow_ones_gradients_young():
    free, bounded = (served_steps((1.0, 1.0, 8.0), 100.0, bound) for bound in (None, 1))
    assert max(by_trainer(free)[2]) > 10 > max(by_trainer(bounded)[2])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], 1.0), "trainers must be at least 1"),
        (([1.0, 0.0], 1.0), r"compute_s\[1\] must be above 0"),
        (([1.0], 1e6), "too many updates"),
        (([1.0], 1.0, -1), "bound must be at least 0"),
        (([1.0], 1.0, 1, True), "do not go together"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        served_steps(*arguments)


STEPS = [served_steps((1.0, 3.0), 9.0), served_steps((1.0, 2.0), 6.0, bound=1)]
PROBES = {
    "served_steps": Probe(
        served_steps,
        {"compute_s": (1.0, 3.0), "until_s": 9.0},
        {"compute_s": (1.0, 2.0), "until_s": 6.0, "bound": 1, "together": True},
    ),
}
RECORDS = {"ServedEvent": list(STEPS[1].events), "ServedSteps": STEPS}
