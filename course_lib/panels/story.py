"""A story: a trace, and for each of its steps a picture, a caption and a table."""

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

from course_lib.figures.paper.drawing import Drawing
from course_lib.panels.panel import Rows, View
from course_lib.trace import Event, Trace


class Story(ABC):
    """What a stepper walks through; made from the values of its controls, by name.

    `__init__` sets `trace`, which a function of `theory.stories` tells, and may keep what picture,
    caption and table have in common. A step is a time of the trace at which something begins; a
    story with other steps sets its own `times` or `count`. The picture comes from
    `figures.engines`.
    """

    trace: Trace

    @cached_property
    def count(self) -> int:
        """How many steps there are; the first one is step 0."""
        return len(self.times)

    @cached_property
    def times(self) -> tuple[float, ...]:
        """When something begins: the time of each step."""
        return tuple(dict.fromkeys(event.at for event in self.trace))

    def now(self, step: int) -> tuple[Event, ...]:
        """What begins at that step."""
        return self.trace.at(self.times[step])

    @abstractmethod
    def picture(self, step: int) -> Drawing:
        """What is seen; equally high at each step."""

    @abstractmethod
    def caption(self, step: int) -> str:
        """One line that says what happens."""

    def rows(self, step: int) -> Rows:  # noqa: ARG002
        """The table, if there is one: what, and its value with units."""
        return ()

    def result(self, step: int) -> Any:
        """What `stepper.result` is."""
        return self.trace, step

    def view(self, step: int) -> View:
        """All that the panel shows."""
        caption = self.caption(step)
        return View(self.result(step), self.rows(step), lambda: self.picture(step), caption)
