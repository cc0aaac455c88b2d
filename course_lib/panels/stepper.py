"""Stories, and the panel that steps through one, manually or automatically."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from typing import Any

from course_lib.figures.paper.drawing import Drawing
from course_lib.panels.controls import Control, Numbers, steps
from course_lib.panels.panel import Panel, Rows, View
from course_lib.trace import Event, Trace


class Story(ABC):
    """The content of a stepper, constructed from the values of its controls, by name.

    `__init__` sets `trace`, from a function of `theory.stories`, and may cache what picture,
    caption and table share. By default, a step is a time of the trace at which an event begins; a
    story with other steps overrides `times` or `count`. Pictures use `figures.engines`.
    """

    trace: Trace

    @cached_property
    def count(self) -> int:
        """The number of steps, which are numbered from 0."""
        return len(self.times)

    @cached_property
    def times(self) -> tuple[float, ...]:
        """The time of each step: the distinct start times of events."""
        return tuple(dict.fromkeys(event.at for event in self.trace))

    def now(self, step: int) -> tuple[Event, ...]:
        """The events that begin at `step`."""
        return self.trace.at(self.times[step])

    @abstractmethod
    def picture(self, step: int) -> Drawing:
        """The figure of `step`; its height must be the same at each step."""

    @abstractmethod
    def caption(self, step: int) -> str:
        """One line that says what happens at `step`."""

    def rows(self, step: int) -> Rows:  # noqa: ARG002
        """The table, if any: (name, value with units)."""
        return ()

    def result(self, step: int) -> Any:
        """The value of `stepper.result` at `step`."""
        return self.trace, step

    def view(self, step: int) -> View:
        """The panel's content at `step`."""
        caption = self.caption(step)
        return View(self.result(step), self.rows(step), lambda: self.picture(step), caption)


class Stepper(Panel):
    """Controls that choose a story, and a slider `step` over its steps with a play button.

    `story(**values)` is cached for each setting of `controls`. If a new story is shorter than the
    current step, its last step is shown.
    """

    def __init__(self, controls: Mapping[str, Control], story: Callable[..., Story]) -> None:
        self._tell = lru_cache(maxsize=16)(story)
        self._steps = steps()
        super().__init__({**controls, "step": self._steps}, self._frame)

    @property
    def count(self) -> int:
        """The number of steps of the current story."""
        return len(self._steps.options)

    def _frame(self, step: int, **values: Any) -> View:
        story = self._tell(**values)
        return story.view(min(step, story.count - 1))

    def _values(self) -> dict[str, Any]:
        """The controls' values, after fitting the step slider to the story."""
        others = {name: c.value for name, c in self._controls.items() if c is not self._steps}
        try:
            count = self._tell(**others).count
        except ValueError:
            count = self.count  # the view raises it again, and the panel shows it
        if count != self.count:
            self._steps.options = Numbers(0, count - 1)
            if self.controls:
                self.controls = self._specs()
        # A browser may still ask for a step of a longer story.
        self._steps.index = min(self._steps.index, self.count - 1)
        return {**others, "step": self._steps.value}
