"""Stories, and the panel that walks through one, step after step, by hand or by itself."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from typing import Any

from course_lib.figures.paper.drawing import Drawing
from course_lib.panels.controls import Control, Numbers, steps
from course_lib.panels.panel import Panel, Rows, View
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


class Stepper(Panel):
    """Controls that choose a story, and a slider `step` over its steps with a play button.

    `story(**values)` is asked once for each setting of `controls`. Where a new story is shorter,
    its last step is shown.
    """

    def __init__(self, controls: Mapping[str, Control], story: Callable[..., Story]) -> None:
        self._tell = lru_cache(maxsize=16)(story)
        self._steps = steps()
        super().__init__({**controls, "step": self._steps}, self._frame)

    @property
    def count(self) -> int:
        """How many steps the story has that is shown."""
        return len(self._steps.options)

    def _frame(self, step: int, **values: Any) -> View:
        story = self._tell(**values)
        return story.view(min(step, story.count - 1))

    def _values(self) -> dict[str, Any]:
        """Fit the slider to the story before it is read."""
        others = {name: c.value for name, c in self._controls.items() if c is not self._steps}
        try:
            count = self._tell(**others).count
        except ValueError:
            count = self.count  # the view will raise it again, and the panel say it
        if count != self.count:
            self._steps.options = Numbers(0, count - 1)
            self._steps.index = min(self._steps.index, count - 1)
            if self.controls:
                self.controls = self._specs()
        return {**others, "step": self._steps.value}
