"""Timelines that the check must refuse: (what was thought, answer, words of the refusal)."""

from dataclasses import replace

from course_lib.chapters.ch17_capstone import streams
from course_lib.chapters.ch17_capstone.streams import SharedTimeline, Span
from tests.checking.builds.patches import versions


def everyone_at_full_speed(tasks):
    """Streams run at the same time, so none is slowed."""
    return [1.0] * len(tasks)


def _run(tasks, rates=streams.rates, order=True, waits=True):
    """The right loop, with one thing left out."""
    left = {task.name: task.alone_s for task in tasks}
    spans, now = [], 0.0
    while left:
        running, streams_taken = [], set()
        for task in tasks:
            if task.name not in left or (order and task.stream in streams_taken):
                continue
            streams_taken.add(task.stream)
            if not waits or not any(name in left for name in task.after):
                running.append(task)
        if not running:
            raise ValueError("they wait for each other")
        speeds = rates(running)
        step = min(left[task.name] / speed for task, speed in zip(running, speeds, strict=True))
        for task, speed in zip(running, speeds, strict=True):
            spans.append(Span(task.name, task.stream, now, now + step, speed))
            left[task.name] -= step * speed
            if left[task.name] <= 1e-9 * task.alone_s:
                del left[task.name]
        now += step
    return tuple(spans)


def shared_timeline(tasks):
    """Right."""
    spans = _run(tasks)
    ideal = max(span.end_s for span in _run(tasks, rates=everyone_at_full_speed))
    return SharedTimeline(tuple(tasks), tuple(spans), ideal)


def _named(function, name):
    """The function under the name that the skeleton gave it."""
    function.__name__ = name
    return function


def _rates(function):
    return [_named(function, "rates"), streams.shared_timeline]


def _whole(function):
    return [streams.rates, _named(function, "shared_timeline")]


_TIMELINES = """
    nothing is shared
    - spans = _run(tasks)
    + spans = _run(tasks, rates=everyone_at_full_speed)
    ? 3 ends at 10 ms, too early
    streams have no order
    - spans = _run(tasks)
    + spans = _run(tasks, order=False)
    ? 3 second starts before first
    no after
    - spans = _run(tasks)
    + spans = _run(tasks, waits=False)
    ? 3 b starts before a has ended; see `after`
    the longest task
    - span.end_s for span in _run(tasks, rates=everyone_at_full_speed)
    + task.alone_s for task in tasks
    ? 3 ideal_s is .*expected the end
    one rate for each task
    - spans = _run(tasks)
    + spans = []
    + for task in tasks:
    +     first = next(span for span in _run(tasks) if span.task == task.name)
    +     ends = first.start_s, first.start_s + task.alone_s / first.rate
    +     spans.append(Span(task.name, task.stream, *ends, first.rate))
    ? 3 ends at 20 ms, too late
    one span for each task
    - spans = _run(tasks)
    + spans = []
    + for task in tasks:
    +     own = [span for span in _run(tasks) if span.task == task.name]
    +     ends = own[0].start_s, own[-1].end_s
    +     spans.append(Span(task.name, task.stream, *ends, own[-1].rate))
    ? 3 add up to .* ms of work
    no streams
    - spans = _run(tasks)
    + spans = [replace(span, stream=span.task) for span in _run(tasks)]
    ? 3 a span of first has the stream 'first'
    no tasks
    - tuple(tasks), tuple(spans)
    + (), tuple(spans)
    ? 3 wants the tasks themselves
    drops who waits
    - spans = _run(tasks)
    + try:
    +     spans = _run(tasks)
    + except ValueError:
    +     if not (first := [task for task in tasks if not task.after]):
    +         raise
    +     return SharedTimeline(tuple(tasks), _run(first), 1.0)
    ? 4 two of three tasks.*expected a ValueErr
    no error
    - spans = _run(tasks)
    + try:
    +     spans = _run(tasks)
    + except ValueError:
    +     return SharedTimeline(tuple(tasks), (), 0.0)
    ? 4 wait for each other.*expected a ValueError
"""
_RATES = """
    full speed
    - listed("tasks", len(tasks), "leave some out", most=_MOST_TASKS)
    + return [1.0] * len(tasks)
    ? 1 use 2 of the processor; there is only 1
    one n-th each
    + return [1 / len(tasks) for _ in tasks]
    ? 1 a runs at 0.5, and nothing that it uses is used
    shares of weights
    + return [task.weight / sum(one.weight for one in tasks) for task in tasks]
    ? 1 it can run faster
    no weights
    + tasks = [Task(one.name, one.stream, one.alone_s, one.demands) for one in tasks]
    ? 2 large runs at 0.5, too small
    first come
    + left, found = {}, []
    + for task in tasks:
    +     rooms = [left.get(name, 1.0) / part for name, part in task.demands.items()]
    +     found.append(min([1.0, *rooms]))
    +     for name, part in task.demands.items():
    +         left[name] = left.get(name, 1.0) - found[-1] * part
    + return found
    ? 1 a runs at 1, too large
    never ends
    - step = max(0.0, min(steps))
    + step = 0.0
    ? 1 rank 0 still computes .* after 6 s
"""
WRONG = versions(streams.rates, _rates, _RATES) + versions(shared_timeline, _whole, _TIMELINES)


def by_bisection(tasks):
    """The level to which all weights are filled, found by halving intervals, one stop at a time."""
    fixed = {}
    while len(fixed) < len(tasks):
        low, high = 0.0, 1 / min(task.weight for task in tasks)

        def at(level):
            return [
                fixed.get(place, min(1.0, level * task.weight)) for place, task in enumerate(tasks)
            ]

        def fits(level):
            used = {}
            for task, rate in zip(tasks, at(level), strict=True):
                for name, part in task.demands.items():
                    used[name] = used.get(name, 0.0) + rate * part
            return all(part <= 1 + 1e-12 for part in used.values()), used

        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if fits(middle)[0] else (low, middle)
        found, used = at(low), fits(low)[1]
        before = len(fixed)
        for place, task in enumerate(tasks):
            full = any(part and used[name] > 1 - 1e-9 for name, part in task.demands.items())
            if place not in fixed and (full or found[place] >= 1 - 1e-9):
                fixed[place] = found[place]
        if len(fixed) == before:
            break
    return [fixed[place] for place in range(len(tasks))]


def by_events(tasks):
    """The same spans as a list, cut again in the middle."""
    halves = []
    for span in _run(tasks, rates=by_bisection):
        middle = (span.start_s + span.end_s) / 2
        halves += [replace(span, end_s=middle), replace(span, start_s=middle)]
    ideal = max(span.end_s for span in _run(tasks, rates=everyone_at_full_speed))
    return SharedTimeline(tuple(tasks), tuple(reversed(halves)), ideal)


RIGHT = [("by bisection", [_named(by_bisection, "rates"), _named(by_events, "shared_timeline")])]
