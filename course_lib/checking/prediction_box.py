"""The box in which a learner writes a prediction; all of it works by keyboard."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from course_lib.checking.amounts import split
from course_lib.notebook import browser_code
from course_lib.validation import told

_HERE = Path(__file__).parent


class PredictionBox(anywidget.AnyWidget):
    """A line to write in and a button; `commit` is called once, with the number."""

    _esm = browser_code(_HERE / "prediction_box.js")
    _css = _HERE / "prediction_box.css"
    unit = traitlets.Unicode().tag(sync=True)
    committed = traitlets.Bool(False).tag(sync=True)
    said = traitlets.Unicode().tag(sync=True)

    def __init__(self, unit: str, commit: Callable[[float], None]) -> None:
        self._commit = commit
        super().__init__(unit=unit)
        self.on_msg(self._on_message)

    def submit(self, text: str) -> None:
        """Commit the number that was written, or say why that is not possible."""
        if self.committed:
            return
        remedy = "write one number, such as 12, 0.5 or 3e9"
        try:
            found = split(text)
        except ValueError as comma:
            found, remedy = None, str(comma)
        if found is None or found[1] not in ("", self.unit):
            got = told(text) if text.strip() else "nothing"
            self.said = f"Got {got}: {remedy}."
            return
        self._commit(found[0])
        with self.hold_sync():
            self.committed, self.said = True, "Committed."

    def _on_message(self, _widget: object, content: dict[str, Any], _buffers: object) -> None:
        self.submit(str(content["text"]))
