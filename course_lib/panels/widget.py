"""A panel as an ipywidget: controls above a figure and a table, redrawn when a control changes."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from course_lib.notebook import browser_code
from course_lib.panels.controls import Control
from course_lib.panels.model import Model, View

_HERE = Path(__file__).parent


class Panel(Model, anywidget.AnyWidget):
    __doc__ = Model.__doc__

    # ipywidgets' own sliders have no accessible name and announce the index as the value; anywidget
    # allows native browser controls, and one message for a whole panel.
    _esm = browser_code(_HERE / "panel.js")
    _css = _HERE / "panel.css"
    # A list, because saving a notebook sorts the keys of a dict.
    controls = traitlets.List(traitlets.Dict()).tag(sync=True)
    values = traitlets.Dict().tag(sync=True, echo_update=False)  # name: index
    # One trait, so one message, for everything visible: its parts are always consistent.
    shown = traitlets.Dict().tag(sync=True)

    def __init__(self, controls: Mapping[str, Control], view: Callable[..., View]) -> None:
        super().__init__(controls, view)
        self.observe(self._moved_by_hand, "values")

    def _begin(self, **told: Any) -> None:
        anywidget.AnyWidget.__init__(self, **told)

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        """The live panel, with a static figure and its description for when no kernel runs."""
        data, metadata = super()._repr_mimebundle_(**kwargs) or ({}, {})
        picture = {} if self.problem else {"image/svg+xml": self._sheet.to_svg(themed=False)}
        return {**data, **picture, "text/plain": self.sentence}, metadata
