"""Keyboard-accessible widgets: the input box of a prediction, and the quiz."""

from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from course_lib.checking.questions import Question, feedback, record
from course_lib.checking.values import split
from course_lib.notebook import browser_code
from course_lib.validation import told

_HERE = Path(__file__).parent


class PredictionBox(anywidget.AnyWidget):
    """An input line and a button; calls `commit` once, with the number."""

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
        """Commit the number in the text, or show why that is not possible."""
        if self.committed:
            return
        remedy = "write one number, such as 12, 0.5 or 3e9"
        try:
            parts = split(text)
        except ValueError as comma:
            parts, remedy = None, str(comma)
        if parts is None or parts[1] not in ("", self.unit):
            got = told(text) if text.strip() else "nothing"
            self.said = f"Got {got}: {remedy}."
            return
        self._commit(parts[0])
        with self.hold_sync():
            self.committed, self.said = True, "Committed."

    def _on_message(self, _widget: object, content: dict[str, Any], _buffers: object) -> None:
        self.submit(str(content["text"]))


class QuizWidget(anywidget.AnyWidget):
    """A quiz of one chapter; reachable by keyboard, readable without a kernel.

    The right answers stay in the kernel until the quiz is checked.
    """

    _esm = browser_code(_HERE / "quiz.js")
    _css = _HERE / "quiz.css"
    title = traitlets.Unicode().tag(sync=True)
    shown: Any = traitlets.List().tag(sync=True)  # text and choices of each question
    answers: Any = traitlets.List().tag(sync=True)  # an index for each question, -1 for none
    feedback: Any = traitlets.List().tag(
        sync=True
    )  # state ("right", "wrong", "open") and text of each
    result = traitlets.Unicode().tag(sync=True)
    checks = traitlets.Int().tag(sync=True)  # number of checks; set last, after all else

    def __init__(self, chapter: str, questions: tuple[Question, ...]) -> None:
        self.chapter, self.questions = chapter, questions
        super().__init__(
            title=f"Quiz of chapter {chapter}",
            shown=[{"text": each.text, "choices": list(each.choices)} for each in questions],
            answers=[-1 for _ in questions],
        )
        self.on_msg(self._on_message)

    def check(self, answers: list[int]) -> None:
        """Grade the answers: for each question an index, or -1 if it is unanswered.

        The score is saved if all questions are answered.
        """
        chosen = [None if answer < 0 else answer for answer in answers]
        self.answers = answers
        self.feedback = list(map(feedback, self.questions, chosen))
        right, of = sum(one["state"] == "right" for one in self.feedback), len(self.questions)
        left = chosen.count(None)
        self.result = f"{right} of {of} right" + f", {left} not answered yet" * bool(left)
        self.checks += 1
        if not left:
            record(self.chapter, right, of)

    def _on_message(self, _widget: object, content: dict[str, Any], _buffers: object) -> None:
        self.check(content["answers"])

    def as_text(self) -> str:
        """The questions and choices as plain text, for pages without a kernel."""
        blocks = []
        for number, question in enumerate(self.questions, 1):
            letters = zip("abcdefghij", question.choices, strict=False)
            lines = [f"   {letter}) {choice}" for letter, choice in letters]
            blocks.append("\n".join([f"{number}. {question.text}", *lines]))
        return "\n\n".join(blocks)

    def as_html(self) -> str:
        """The questions and choices as a list, for static pages."""
        items = []
        for question in self.questions:
            choices = "".join(f"<li>{escape(choice)}</li>" for choice in question.choices)
            items.append(f'<li>{escape(question.text)}<ol type="a">{choices}</ol></li>')
        return f"<ol>{''.join(items)}</ol>"

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        bundle = super()._repr_mimebundle_(**kwargs)
        # anywidget returns (data, metadata), or None where no widget can be shown.
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle or {}, {})
        texts = {"text/plain": self.as_text(), "text/html": self.as_html()}
        return {**data, **texts}, metadata
