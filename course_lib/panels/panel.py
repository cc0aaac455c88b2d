"""What all panels share: controls above a figure and its numbers, redrawn when they change."""

import base64
import html
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ipywidgets as widgets

from course_lib.figures.picture import Picture
from course_lib.panels.controls import Control

Rows = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class View:
    """What a panel shows. Two views are equal when their result and numbers are: no redraw."""

    result: Any  # of course_lib.theory
    rows: Rows  # the table: what, and its value with units
    draw: Callable[[], Picture] = field(compare=False)


class Panel(widgets.VBox):
    """Controls, a figure and a table of numbers; every control is an attribute by its name.

    `panel.micro_batch.value = 4` moves a control; `panel.result` is then the theory's result,
    `panel.sentence` the figure in words, `panel.text` that and the table. While the values do not
    fit together, `panel.problem` says why and `panel.result` is None.
    Raises ValueError when the starting values do not fit together.
    """

    def __init__(self, controls: Mapping[str, Control], view: Callable[..., View]) -> None:
        self._controls = dict(controls)
        self._make_view = view
        self._view = view(**self._values())
        self._sheet = self._view.draw()
        self.problem: str | None = None
        # One widget for figure and table: one message, so that they never disagree on the screen.
        self.picture = widgets.HTML()
        super().__init__([_grid(controls), self.picture])
        self._show()
        for control in self._controls.values():
            control.widget.observe(self._refresh, "value")

    def __getattr__(self, name: str) -> Any:
        controls = self.__dict__.get("_controls", {})
        if name in controls:
            return controls[name].widget
        raise AttributeError(f"this panel has no {name!r}; its controls are {', '.join(controls)}")

    @property
    def result(self) -> Any:
        """The theory's result that is shown, or None while there is a problem."""
        return None if self.problem else self._view.result

    @property
    def sentence(self) -> str:
        """The figure in one sentence, or the problem."""
        return self.problem or self._sheet.sentence

    @property
    def text(self) -> str:
        """The sentence and the table as plain text."""
        if self.problem:
            return self.problem
        return "\n".join([self.sentence, *(f"{name}: {value}" for name, value in self._view.rows)])

    def _values(self) -> dict[str, Any]:
        return {name: control.widget.value for name, control in self._controls.items()}

    def _refresh(self, _change: object) -> None:
        try:
            view = self._make_view(**self._values())
        except ValueError as problem:
            self._complain(str(problem))
            return
        if self.problem or view != self._view:
            self._view, self.problem = view, None
            self._sheet = view.draw()
            self._show()

    def _show(self) -> None:
        self.picture.value = self._sheet.to_svg() + _table(self._view.rows)

    def _complain(self, problem: str) -> None:
        self.problem = problem
        # As high as the figure, so that the page does not jump.
        self.picture.value = (
            f'<div role="alert" style="min-height: {self._sheet.height_px}px">'
            f"<b>Not possible:</b> {html.escape(problem)}.</div>"
        )

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The live panel; a picture and a sentence where no kernel runs."""
        data = dict(super()._repr_mimebundle_(**kwargs))
        data["text/plain"] = self.sentence
        if not self.problem:
            data["image/png"] = base64.b64encode(self._sheet.to_png()).decode()
        return data, {"image/png": {"width": self._sheet.width_px}}


def _grid(controls: Mapping[str, Control]) -> widgets.Box:
    """All rows of controls, side by side where the page is wide enough."""
    layout = widgets.Layout(flex_flow="row wrap", max_width="720px")
    return widgets.Box([control.row for control in controls.values()], layout=layout)


def _table(rows: Rows) -> str:
    lines = "".join(
        f'<tr><th scope="row" style="text-align: left; padding-right: 1em">{html.escape(name)}</th>'
        f'<td style="text-align: left">{html.escape(value)}</td></tr>'
        for name, value in rows
    )
    return f'<table aria-label="The numbers" style="line-height: 1.5">{lines}</table>'
