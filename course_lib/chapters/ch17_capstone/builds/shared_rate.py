"""Build 17.11: streams that share a processor, and a timeline of what runs when and how fast."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from course_lib.chapters.ch17_capstone import streams
from course_lib.chapters.ch17_capstone.streams import SharedTimeline, Span, Task
from course_lib.checking.build import Step, build
from course_lib.checking.builds.alike import expect_kind
from course_lib.checking.builds.compare import Case, Place, compare, in_turn
from course_lib.checking.builds.lazily import later
from course_lib.checking.builds.rows import Never, Row
from course_lib.checking.exercises import Wrong
from course_lib.checking.races import Race
from course_lib.checking.values import kind_of_wrong

_NEAR = 1e-6
_PROCESSOR, _NETWORK = {"processor": 1.0}, {"network": 1.0}


@dataclass(frozen=True)
class _Tasks(Case):
    """Tasks, and the reason for their rates or ends; run on a rank, to interrupt endless loops."""

    tasks: tuple[Task, ...]
    because: str
    ranks: int = field(default=1, kw_only=True)

    def who(self, *_: Any) -> str:
        return ""


def _task(name: str, demands: dict[str, float], weight: float = 1.0, **more: Any) -> Task:
    """A task of 10 ms in a stream of its own; `more` overrides these fields."""
    return Task(name, **{"stream": name, "alone_s": 10e-3, **more}, demands=demands, weight=weight)


_EQUAL: tuple[_Tasks, ...] = (
    _Tasks((), "nothing runs"),
    _Tasks((_task("a", _PROCESSOR),), "alone it runs at full speed"),
    _Tasks((_task("a", _PROCESSOR), _task("b", _PROCESSOR)), "two equals get a half each"),
    _Tasks(tuple(_task(name, _PROCESSOR) for name in "abc"), "three equals get a third each"),
    _Tasks((_task("a", _PROCESSOR), _task("b", _NETWORK)), "they use different things"),
    _Tasks(
        (_task("a", {"processor": 0.5}), _task("b", {"processor": 0.3})), "there is enough for both"
    ),
    _Tasks(
        (_task("a", {"processor": 0.9}), _task("b", {"processor": 0.6})),
        "equal rates until 0.9 + 0.6 parts of it are used up",
    ),
    _Tasks((_task("a", {}), _task("b", _PROCESSOR)), "what uses nothing takes nothing"),
)
_WEIGHTED: tuple[_Tasks, ...] = (
    _Tasks((_task("large", _PROCESSOR, 9), _task("small", _PROCESSOR)), "9 parts and 1 part of 10"),
    _Tasks(
        (_task("large", {"processor": 0.2}, 9), _task("small", _PROCESSOR)), "at rate 1 it is full"
    ),
    _Tasks(
        (_task("a", _PROCESSOR, 2), _task("b", _PROCESSOR), _task("c", {"processor": 0.1}, 5)),
        "c reaches full speed first, and the others share what it leaves as 2 to 1",
    ),
    _Tasks(
        (_task("a", _PROCESSOR | _NETWORK), _task("b", _PROCESSOR, 3), _task("c", _NETWORK)),
        "the processor is used up first; c goes on with the network that a leaves",
    ),
)


def _said(tasks: Sequence[Task]) -> str:
    """The tasks in words: "a (weight 9; processor 1)"."""
    words = []
    for task in tasks:
        uses = ", ".join(f"{name} {part:g}" for name, part in task.demands.items()) or "nothing"
        words.append(f"{task.name} (weight {task.weight:g}; {uses})")
    return " and ".join(words) or "no tasks"


def _rates(given: Any, at: Place) -> Iterator[Row]:
    tasks = at.case.tasks
    what = f"rates of {_said(tasks)}"
    expect_kind(given, list, what, float)
    several = f"{what} want {len(tasks)} numbers, one for each task, got {len(given)}"
    yield Never(len(given) != len(tasks), several)
    for task, rate in zip(tasks, given, strict=True):
        runs = f"{what}: {task.name} runs at {rate:.3g}; 1 is its speed alone, 0 stands"
        yield Never(not -_NEAR <= rate <= 1 + _NEAR, runs)
    used = _used(tasks, given)
    for resource, part in used.items():
        over = f"{what}: together they use {part:.3g} of the {resource}; there is only 1"
        yield Never(part > 1 + _NEAR, over)
    for task, rate in zip(tasks, given, strict=True):
        full = [name for name, part in task.demands.items() if part and used[name] > 1 - 1e-4]
        yield Never(
            rate < 1 - 1e-4 and not full,
            f"{what}: {task.name} runs at {rate:.3g}, and nothing that it uses is used up: it can "
            "run faster",
        )
    for task, rate, expected in zip(tasks, given, streams.rates(list(tasks)), strict=True):
        if abs(rate - expected) > _NEAR:
            kind = f"{kind_of_wrong(rate, expected)}; {at.case.because}"
            yield Never(True, f"{what}: {task.name} runs at {rate:.3g}, {kind}")


def _used(tasks: Sequence[Task], rates: Sequence[float]) -> dict[str, float]:
    """The part of each resource that is in use at these rates."""
    used: dict[str, float] = {}
    for task, rate in zip(tasks, rates, strict=True):
        for resource, part in task.demands.items():
            used[resource] = used.get(resource, 0.0) + part * rate
    return used


def _random_rates() -> Iterator[_Tasks]:
    dice, because = random.Random(17), "all grow together, by their weights, until one is stopped"
    for _ in range(30):
        names = "abcd"[: dice.randint(2, 4)]
        yield _Tasks(tuple(_any_task(dice, name, 1e-2) for name in names), because)


def _any_task(dice: random.Random, name: str, alone_s: float, stream: str = "") -> Task:
    """A random task that uses one or two resources."""
    chosen = dice.sample(("processor", "network", "memory"), dice.randint(1, 2))
    demands = {resource: dice.choice((0.3, 0.5, 0.8, 1.0)) for resource in chosen}
    return Task(name, stream or name, alone_s, demands, dice.choice((0.5, 1.0, 3.0)))


def backward(layers: int) -> tuple[Task, ...]:
    """The tasks of a backward pass: a computation per layer, followed by its copies and message."""
    tasks = [_task(f"layer {n}", _PROCESSOR, 9, stream="computing") for n in range(layers)]
    for n, layer in enumerate(tasks[:layers]):
        copies = _task(f"copies {n}", _PROCESSOR, stream="messages", alone_s=1e-3)
        tasks.append(replace(copies, after=(layer.name,)))
        tasks.append(_task(f"reduce {n}", _NETWORK, stream="messages", alone_s=6e-3))
    return tuple(tasks)


_TIMELINES: tuple[_Tasks, ...] = (
    _Tasks((_task("a", _PROCESSOR),), "alone it takes its time alone"),
    _Tasks(
        (_task("a", _PROCESSOR), _task("b", _PROCESSOR, alone_s=4e-3)),
        "at half speed each, until b has ended; then a has everything",
    ),
    _Tasks(
        (_task("large", _PROCESSOR, 9), _task("small", _PROCESSOR, alone_s=1e-3)),
        "small gets a tenth, and large nine tenths until small has ended",
    ),
    _Tasks(
        (_task("first", _PROCESSOR, stream="one"), _task("second", _NETWORK, stream="one")),
        "in one stream a task starts when the one before it has ended",
    ),
    _Tasks(
        (_task("a", _PROCESSOR), _task("b", _NETWORK, after=("a",))),
        "b starts when a has ended",
    ),
    _Tasks(backward(4), "copies of a layer run beside the next one"),
)


def _timeline(given: Any, at: Place) -> Iterator[Row]:
    tasks, because = at.case.tasks, at.case.because
    names = [task.name for task in tasks]
    what = f"the timeline of {', '.join(names[:3])}{' …' if names[3:] else ''}"
    expect_kind(given, SharedTimeline, what)
    own = all(isinstance(span, Span) for span in given.spans)
    yield Never(not own, f"{what} wants spans that are Span(task, stream, start_s, end_s, rate)")
    same = list(given.tasks) == list(tasks)
    yield Never(not same, f"{what} wants the tasks themselves as its `tasks`, in the order given")
    streams_of = {task.name: task.stream for task in tasks}
    for span in given.spans:
        elsewhere = streams_of.get(span.task) != span.stream
        yield Never(elsewhere, f"{what}: a span of {span.task} has the stream {span.stream!r}")
    spans = {name: [span for span in given.spans if span.task == name] for name in names}
    for task in tasks:
        yield from _work(task, spans[task.name], what)
    yield from _order(tasks, spans, what)
    expected = streams.shared_timeline(list(tasks))
    near = _NEAR * expected.total_s
    for name in names:
        end, due = given.end_s(name), expected.end_s(name)
        late = f"too {'late' if end > due else 'early'}; {because}"
        yield Never(abs(end - due) > near, f"{what}: {name} ends at {1000 * end:.4g} ms, {late}")
    ideal = given.ideal_s
    expect_kind(ideal, float, f"ideal_s of {what}")
    yield Never(
        abs(ideal - expected.ideal_s) > near,
        f"{what}: ideal_s is {1000 * ideal:.4g} ms, expected the end if every task ran at full "
        "speed, but still waited for its stream and for `after`",
    )


def _work(task: Task, spans: Sequence[Span], what: str) -> Iterator[Row]:
    yield Never(not spans, f"{what} has no span of {task.name}")
    work = sum((span.end_s - span.start_s) * span.rate for span in spans)
    yield Never(
        abs(work - task.alone_s) > _NEAR * task.alone_s,
        f"{what}: the spans of {task.name}, each its length times its rate, add up to "
        f"{1000 * work:.4g} ms of work, expected its {1000 * task.alone_s:g}",
    )


def _order(tasks: Sequence[Task], spans: dict[str, list[Span]], what: str) -> Iterator[Row]:
    """Check that no task starts before the one ahead of it in its stream, or one of its `after`."""
    ends = {name: max(span.end_s for span in own_spans) for name, own_spans in spans.items()}
    before: dict[str, str] = {}
    for task in tasks:
        start = min(span.start_s for span in spans[task.name])
        waits = [(other, "`after`") for other in task.after]
        if task.stream in before:
            waits.append((before[task.stream], "its stream"))
        for other, by in waits:
            early = start < ends[other] - _NEAR * ends[other]
            yield Never(early, f"{what}: {task.name} starts before {other} has ended; see {by}")
        before[task.stream] = task.name


def _random_timelines() -> Iterator[_Tasks]:
    """Cases of random tasks, and the same tasks with the streams reordered."""
    dice = random.Random(4)
    for _ in range(12):
        tasks = [
            _any_task(dice, f"{stream} {n}", dice.choice((1e-3, 4e-3, 7e-3)), stream)
            for stream in ("one", "two", "three")
            for n in range(dice.randint(1, 3))
        ]
        first = tasks[0].name
        tasks = [
            replace(task, after=(first,)) if task.stream != "one" and dice.random() < 0.3 else task
            for task in tasks
        ]
        yield _Tasks(tuple(tasks), "between two ends of tasks no rate changes")
        reordered = sorted(tasks, key=lambda task: task.stream)
        yield _Tasks(tuple(reordered), "the order of the streams in the list does not matter")


_A, _B = _task("a", _PROCESSOR, after=("b",)), _task("b", _NETWORK, after=("a",))
_CIRCLES = (
    _Tasks((_A, _B), "two tasks"),
    _Tasks((_task("c", _PROCESSOR), replace(_A, after=("b", "c")), _B), "two of three tasks"),
    _Tasks(
        (replace(_A, stream="one"), replace(_B, stream="one", after=())),
        "a task that waits for the one behind it in its stream",
    ),
)


def _is_refused(parts: SimpleNamespace, case: _Tasks, _: Any) -> bool:
    with suppress(ValueError):
        parts.shared_timeline(list(case.tasks))
        return False
    return True


def _refused(refused: bool, at: Place) -> Iterator[Row]:
    yield Never(not refused, f"{at.case.because} can never start: expected a ValueError")


def _circles(parts: SimpleNamespace) -> None:
    try:
        compare("", (), _is_refused, _refused, _CIRCLES).check(parts)
    except Wrong as wrong:
        raise Wrong(f"tasks that wait for each other: {wrong}") from None


def _of(name: str, rows: Any, title: str, *cases: _Tasks) -> Step:
    return compare(
        title, (name,), lambda parts, case, _: getattr(parts, name)(list(case.tasks)), rows, cases
    )


_of_rates, _of_timelines = partial(_of, "rates", _rates), partial(_of, "shared_timeline", _timeline)


def _shared_rate(parts: SimpleNamespace) -> Callable[[], object]:
    tasks = list(later("course_lib.chapters.ch17_capstone.builds.shared_rate").backward(40))
    return lambda: parts.shared_timeline(tasks)


SHARED_RATE = build(
    "shared_rate",
    steps=(
        _of_rates("equal parts", *_EQUAL),
        _of_rates("weights, and full speed", *_WEIGHTED, *_random_rates()),
        _of_timelines("a timeline", *_TIMELINES),
        in_turn(
            "any tasks, in any order",
            ("shared_timeline",),
            _of_timelines("", *_random_timelines()),
            Step("", (), _circles),
        ),
    ),
    race=Race("a backward pass of 40 layers and its messages", _shared_rate, ranks=1),
)
