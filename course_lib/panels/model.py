"""What a panel shows for the values of its controls, without a widget.

A kernel shows it as an ipywidget (`widget`); a page of the site runs it by itself.
"""

import html
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from course_lib.figures.paper.drawing import Drawing
from course_lib.panels.controls import Control

Rows = tuple[tuple[str, str], ...]
_SEARCH_S = 0.2  # time limit of the search for a valid value, so that the panel stays responsive


@dataclass(frozen=True)
class View:
    """The content of a panel for one setting of its controls."""

    result: Any  # of course_lib.theory
    rows: Rows  # the table: (name, value with units)
    draw: Callable[[], Drawing]
    caption: str = ""  # one sentence above the figure

    @cached_property
    def picture(self) -> Drawing:
        """The figure, drawn once."""
        return self.draw()


class Model:
    """Controls, a figure and a table of numbers; every control is an attribute by its name.

    `panel.micro_batch.value = 4` moves a control; `panel.result` is then the theory's result,
    `panel.sentence` a description of the figure, `panel.text` that and the table. While the values
    are inconsistent, `panel.problem` says why, `panel.result` is None, and the last valid figure
    stays, faded, below buttons that fix the values.
    Raises ValueError if the starting values are inconsistent.
    """

    # What the browser is told; a widget synchronises these three.
    controls: Any = ()
    values: Any  # name: index
    shown: Any

    def __init__(self, controls: Mapping[str, Control], view: Callable[..., View]) -> None:
        self._controls = dict(controls)
        self._make_view = view
        self._view = view(**self._values())
        self._sheet = self._view.picture
        self._possible = self._places()
        self.page = ""  # figure and table as HTML: the current ones, or the last valid ones
        self.problem: str | None = None
        self._begin(controls=self._specs(), values=self._places())
        self._show()
        for control in self._controls.values():
            control.moved = self._refresh

    def _begin(self, **told: Any) -> None:
        """Set what the browser is told; a widget also begins to live."""
        vars(self).update(told)

    def move(self, values: Mapping[str, int]) -> None:
        """Move the controls to these indices, as the browser does."""
        self.values = dict(values)
        self._moved_by_hand()

    def __getattr__(self, name: str) -> Any:
        controls = self.__dict__.get("_controls", {})
        if name in controls:
            return controls[name]
        raise AttributeError(f"this panel has no {name!r}; its controls are {', '.join(controls)}")

    @property
    def result(self) -> Any:
        """The theory's current result, or None while there is a problem."""
        return None if self.problem else self._view.result

    @property
    def sentence(self) -> str:
        """The description of the figure, or the problem."""
        return self.problem or self._sheet.sentence

    @property
    def text(self) -> str:
        """The caption, the sentence and the table as plain text."""
        if self.problem:
            return self.problem
        lines = [f"{name}: {value}" for name, value in self._view.rows]
        return "\n".join(filter(None, [self._view.caption, self.sentence, *lines]))

    def _values(self) -> dict[str, Any]:
        return {name: control.value for name, control in self._controls.items()}

    def _specs(self) -> list[dict[str, Any]]:
        return [{"name": name, **control.spec()} for name, control in self._controls.items()]

    def _places(self) -> dict[str, int]:
        return {name: control.index for name, control in self._controls.items()}

    def _moved_by_hand(self, _change: object = None) -> None:
        if self.values != self._places():
            for name, index in self.values.items():
                self._controls[name].index = index
            self._refresh()

    def _refresh(self) -> None:
        try:
            view = self._make_view(**self._values())
        except ValueError as problem:
            self._complain(str(problem))
        else:
            if self.problem or self._possible != self._places():
                self._view, self.problem = view, None
                self._sheet, self._possible = view.picture, self._places()
                self._show()
        self.values = self._places()

    def _show(self) -> None:
        self.page = self._sheet.to_svg() + _table(self._view.rows)
        self.shown = {
            "page": self.page,
            "caption": self._view.caption,
            "sentence": self.sentence,
            "problem": "",
            "mends": [],
            "values": self._places(),
        }

    def _complain(self, problem: str) -> None:
        self.problem = problem
        mends = [{"text": text, "values": places} for text, places in self._mends()]
        message = f"Not possible: {self._with_labels(problem)}."
        changed = {"problem": message, "mends": mends, "sentence": problem}
        self.shown = {**self.shown, **changed, "values": self._places()}

    def _with_labels(self, problem: str) -> str:
        """The theory's message with parameter names replaced by the controls' labels."""
        labels = {name: control.label for name, control in self._controls.items()}
        message = re.sub(r"\w+", lambda word: labels.get(word[0], word[0]), problem)
        return message.replace("*", " × ")

    def _mends(self) -> list[tuple[str, dict[str, int]]]:
        """Up to two fixes: another control's nearest valid value, and an undo."""
        now, fixes = self._places(), []
        moved = {name for name, index in now.items() if self._possible[name] != index}
        if nearest := self._nearest_that_fits(moved):
            name, index = nearest
            fixes.append((f"Set {self._text_of(name, index, ' to')}", {**now, name: index}))
        back = ", ".join(self._text_of(name, self._possible[name]) for name in sorted(moved))
        return [*fixes, (f"Back to {back}", dict(self._possible))]

    def _nearest_that_fits(self, moved: set[str]) -> tuple[str, int] | None:
        end = time.monotonic() + _SEARCH_S
        for name, control in self._controls.items():
            near = sorted(range(len(control.options)), key=lambda i: abs(i - control.index))
            for index in near[1:50] if name not in moved else ():
                if time.monotonic() > end:
                    return None
                with suppress(ValueError):
                    self._make_view(**{**self._values(), name: control.options[index][1]})
                    return name, index
        return None

    def _text_of(self, name: str, index: int, to: str = "") -> str:
        control = self._controls[name]
        return f"{control.label}{to} {control.options[index][0]} {control.unit}".rstrip()


def _table(rows: Rows) -> str:
    lines = "".join(
        f'<tr><th scope="row">{html.escape(name)}</th><td>{html.escape(value)}</td></tr>'
        for name, value in rows
    )
    return f'<table aria-label="The numbers">{lines}</table>' if rows else ""
