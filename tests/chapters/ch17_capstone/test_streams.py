"""Streams that share: by hand, by Linux's own weights, and by what any sharing must obey."""

import random
from dataclasses import replace

import pytest
from probes import Given, Probe, by_name
from refused import rows

from course_lib.chapters.ch17_capstone.streams import (
    SharedTimeline,
    Span,
    Task,
    rates,
    shared_timeline,
)

CORE, RESOURCES = {"core": 1.0}, ("sm", "memory", "link")


def test_two_equal_tasks_share_a_core_by_hand():
    # Half each until the short one has its 2 s at 4 s; the long one has 2 of 5 and runs alone.
    run = shared_timeline([Task("long", "a", 5, CORE), Task("short", "b", 2, CORE)])
    assert run.end_s("short") == 4 and run.slowdown("short") == 2
    assert run.total_s == 7 == run.serial_s  # a core that is never idle
    assert run.ideal_s == 5


@pytest.mark.parametrize("weight", [1024, 335, 110, 15])
def test_weights_are_those_of_linux(weight):
    """kernel/sched/core.c, sched_prio_to_weight, of niceness 0, 5, 10 and 19, beside 1024."""
    polite = Task("polite", "b", 1, CORE, weight=weight / 1024)
    assert rates([Task("rude", "a", 1, CORE), polite])[1] == pytest.approx(weight / (1024 + weight))


def test_a_stream_keeps_its_order_and_events_are_waited_for():
    tasks = [
        Task("gather", "comm", 1),
        Task("compute", "main", 2, after=("gather",)),
        Task("send", "comm", 1, after=("compute",)),
    ]
    run = shared_timeline(tasks)
    assert [run.start_s(task.name) for task in tasks] == [0, 1, 3]
    assert (run.waits_s("main"), run.waits_s("comm")) == (2, 2)
    assert "total 4000.00 ms" in run.explain()


def test_a_resource_is_never_overdrawn_and_no_capacity_is_left_that_somebody_wants():
    dice = random.Random(5)
    for _ in range(300):
        tasks = [
            Task(
                f"t{place}",
                f"s{place}",
                1,
                {resource: dice.choice([0, 0.2, 0.7, 1]) for resource in RESOURCES},
                weight=dice.choice([0.1, 1, 5]),
            )
            for place in range(dice.randint(1, 5))
        ]
        found = rates(tasks)
        used = {
            resource: sum(
                speed * task.demands[resource] for speed, task in zip(found, tasks, strict=True)
            )
            for resource in RESOURCES
        }
        assert max(used.values()) < 1 + 1e-9 and max(found) < 1 + 1e-9
        for speed, task in zip(found, tasks, strict=True):
            full = [part > 0 and used[name] > 1 - 1e-9 for name, part in task.demands.items()]
            held_back = any(full)
            assert speed > 1 - 1e-9 or held_back


def test_every_task_gets_all_its_work_done():
    tasks = [Task(f"t{n}", f"s{n % 3}", 1 + n % 4, CORE, weight=1 + n % 2) for n in range(12)]
    run = shared_timeline(tasks)
    done = {task.name: 0.0 for task in tasks}
    for span in run.spans:
        done[span.task] += (span.end_s - span.start_s) * span.rate
    assert done == pytest.approx({task.name: task.alone_s for task in tasks})
    assert run.total_s == pytest.approx(run.serial_s)  # one core, and always somebody on it


A = Task("a", "s", 1)


def _beside(task):
    """The spans of a task beside another that wants the same core."""
    run = shared_timeline([Task("other", "t", 2.0, CORE), task])
    return [[span.stream, span.task, span.start_s, span.end_s, span.rate] for span in run.spans]


RUN = shared_timeline([Task("long", "a", 5, CORE), Task("short", "b", 2, CORE)])
CIRCLE = [replace(A, after=("b",)), Task("b", "t", 1, after=("a",))]
REFUSED = rows(
    shared_timeline,
    [
        ([], "tasks holds no task"),
        ([A, A], "task 'a' is there twice"),
        (CIRCLE, "a, b wait for each other"),
    ],
)
PROBES = by_name(
    Probe(
        Task,
        {"name": "a", "stream": "s", "alone_s": 1.0, "demands": CORE},
        {"demands": Given({"core": 0.5}), "after": Given(("other",))},
        see=_beside,
    ),
    Probe(rates, {"tasks": [A]}),
    Probe(RUN.end_s, {"name": "long"}, {"name": "short"}),
    Probe(RUN.slowdown, {"name": "long"}, {"name": "short"}),
    Probe(RUN.waits_s, {"stream": "a"}, {"stream": "b"}),
) | {
    "SharedTimeline.start_s": Probe(
        lambda name: shared_timeline([A, Task("b", "s", 1)]).start_s(name),
        {"name": "a"},
        {"name": "b"},
    )
}
RECORDS = {
    "Span": [Span("a", "s", 0, 1, 1.0), Span("b", "t", 1, 2, 0.5)],
    "SharedTimeline": [RUN, SharedTimeline((A,), (Span("a", "s", 0, 1, 1),), 1)],
}
