"""The story of chapter 14 that a learner steps through."""

from collections.abc import Iterator

from course_lib.figures.engines.lanes import Lanes
from course_lib.figures.engines.page import page
from course_lib.figures.paper.drawing import Drawing, counted
from course_lib.panels.controls import choice, listed
from course_lib.panels.panel import Rows
from course_lib.panels.stepper import Stepper, Story
from course_lib.theory.stories import copies as story
from course_lib.trace import Event


def _ms(time_s: float) -> str:
    return f"{1000 * time_s:.3g} ms" if time_s else "0"


_UNTIL_S = 0.16
_BOUNDS = {"together": 0, "at most 1 ahead": 1, "at most 2 ahead": 2, "nobody waits": None}


def served(rule: str = "nobody waits", slow_ms: int = 125) -> Stepper:
    """Step through three trainers that pull rows from a server and push gradients to it.

    Raises ValueError for starting values that are not offered.
    """
    controls = {
        "rule": choice("who waits", rule, list(_BOUNDS)),
        "slow_ms": listed("trainer 2 takes", slow_ms, {str(ms): ms for ms in (30, 60, 125)}, "ms"),
    }
    return Stepper(controls, _Served)


class _Served(Story):
    """A step for each event; simultaneous events are in the order of the trace."""

    def __init__(self, rule: str, slow_ms: int) -> None:
        self.compute_s = (0.030, 0.036, slow_ms / 1000)
        self.together = rule == "together"
        bound = None if self.together else _BOUNDS[rule]
        self.trace = story.served_steps(self.compute_s, _UNTIL_S, bound, self.together)
        self.count = len(self.trace)

    def picture(self, step: int) -> Drawing:
        past, last = self.trace[: step + 1], self.trace[step]
        labels = [f"trainer {t}, {1000 * s:.0f} ms" for t, s in enumerate(self.compute_s)]
        rows = {"table": list(self.versions(step))}
        rows |= {name: list(self.bars(trainer, step)) for trainer, name in enumerate(labels)}
        arrows = [
            (("table", one.at), (labels[one.who], one.at), "weights")
            if one.what == story.PULL
            else ((labels[one.who], one.at), ("table", one.at), "gradients")
            for one in past
            if one.what in (story.PULL, story.PUSH)
        ]
        version = last.part.version
        done = {
            story.PULL: f"pulls version {version}",
            story.WAIT: "must wait for its rows",
            story.PUSH: f"pushes a gradient that is {last.part.late} late",
            story.UPDATE: "was the last, and the table is updated",
        }[last.what]
        pushes = sum(one.what == story.PUSH for one in past)
        said = (
            f"At {1000 * last.at:.0f} ms trainer {last.who} {done}; the table is at version "
            f"{version} after {counted(pushes, 'gradient')} of {counted(len(labels), 'trainer')}"
        )
        lanes = Lanes(
            rows, over=(0.0, _UNTIL_S), now=last.at, high=42, gap=20, told=_ms, arrows=arrows
        )
        title = f"{1000 * last.at:.0f} ms: the table is at version {version}"
        key = ("rows", "work", "waits", "expected")
        return page(title, lanes, key=key, sentence=said, notes=["blue: pulls, orange: pushes"])

    def versions(self, step: int) -> Iterator[Event]:
        """Spans of the table's versions, from one update to the next."""
        starts = {0: 0.0}
        for event in self.trace[: step + 1]:
            starts.setdefault(event.part.version, event.at)
        ends = [*list(starts.values())[1:], self.trace[step].at]
        for (version, start), end in zip(starts.items(), ends, strict=True):
            yield Event(start, 0, "rows", end=end, label=f"v{version}")

    def bars(self, trainer: int, step: int) -> Iterator[Event]:
        """Spans of a trainer: work from pull to push, waiting, and expected work after now."""
        now = self.trace[step].at
        past = {id(event) for event in self.trace[: step + 1]}
        own = [event for event in self.trace if event.who == trainer and event.what != story.UPDATE]
        for event, following in zip(own, [*own[1:], None], strict=True):
            if event.what == story.PUSH:
                continue
            end = following.at if following else _UNTIL_S
            if event.what == story.PULL and following is None:
                end = min(event.at + self.compute_s[trainer], _UNTIL_S)
            started, over = id(event) in past, following is not None and id(following) in past
            pulls, rows = event.what == story.PULL, f"v{event.part.version}"
            if started:
                label = (
                    f"{rows}: {following.part.late} late" if over and following else f"with {rows}"
                )
                what, label = ("work", label) if pulls else ("waits", "waits")
                yield Event(event.at, trainer, what, end=end if over else now, label=label)
            if pulls and not over and end > now:
                yield Event(max(now, event.at), trainer, "expected", end=end)

    def rows(self, step: int) -> Rows:
        past = self.trace[: step + 1]
        late = [event.part.late for event in past if event.what == story.PUSH]
        mean = f", {sum(late) / len(late):.1f} updates late on average" if any(late) else ""
        return (
            ("gradients", f"{len(late)} so far{mean}"),
            ("the table", counted(past[-1].part.version, "update")),
        )

    def caption(self, step: int) -> str:
        event = self.trace[step]
        name, version = f"Trainer {event.who}", event.part.version
        if event.what == story.PULL:
            return f"{name} pulls rows of version {version} and begins to compute."
        if event.what == story.WAIT:
            return f"{name} asks for rows, and must wait: it is too far ahead of the slowest."
        if event.what == story.UPDATE:
            return f"All gradients are in: their sum makes version {version}."
        if self.together:
            return f"{name} pushes its gradient; the server keeps it until all are in."
        if event.part.late:
            updates = counted(event.part.late, "update")
            return f"{name} pushes a gradient of rows that have seen {updates} since its pull."
        return f"{name} pushes its gradient, which is on time: nobody came in between."
