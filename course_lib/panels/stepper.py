"""A panel that walks through a story, one step after the other, by hand or by itself."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from course_lib.panels.controls import Control, Numbers, steps
from course_lib.panels.panel import Panel, View
from course_lib.panels.story import Story as TracedStory


@dataclass(frozen=True)
class Story:
    """What happens, in `count` steps; `view(step)` is what is shown at step 0 … count-1."""

    count: int
    view: Callable[[int], View]


Told = Story | TracedStory


class Stepper(Panel):
    """Controls that choose a story, and a slider `step` over its steps with a play button.

    `story(**values)` is asked once for each setting of `controls`. Where a new story is shorter,
    its last step is shown.
    """

    def __init__(self, controls: Mapping[str, Control], story: Callable[..., Told]) -> None:
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
