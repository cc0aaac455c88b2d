"""The quiz on the screen: radio buttons, a button, a line that screen readers announce."""

from html import escape
from typing import Any

import ipywidgets as widgets

from course_lib.checking.questions import Question, Score, feedback, record


class QuizWidget(widgets.VBox):
    """A quiz of one chapter; no output widget, reachable by keyboard, readable without a kernel."""

    def __init__(self, chapter: str, questions: tuple[Question, ...]) -> None:
        self.chapter, self.questions = chapter, questions
        self.choices = [_radio(number, question) for number, question in enumerate(questions, 1)]
        self.comments = [widgets.HTML() for _ in questions]
        self.button = widgets.Button(description="Check", tooltip="Check the answers of this quiz")
        self.button.on_click(self._check)
        self.result = widgets.HTML(_status(""))
        rows: list[widgets.Widget] = []
        for number, question in enumerate(questions, 1):
            text = widgets.HTML(f"<p><b>{number}.</b> {escape(question.text)}</p>")
            rows += [text, self.choices[number - 1], self.comments[number - 1]]
        super().__init__([*rows, self.button, self.result])

    @property
    def score(self) -> Score:
        """What is chosen at this moment."""
        return Score(self.questions, tuple(radio.index for radio in self.choices))

    def _check(self, _button: widgets.Button) -> None:
        score = self.score
        pairs = zip(self.questions, score.answers, strict=True)
        for comment, (question, chosen) in zip(self.comments, pairs, strict=True):
            comment.value = f"<p>{escape(feedback(question, chosen))}</p>"
        self.result.value = _status(score.text)
        record(self.chapter, score)

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
        # Without a widget view the bundle is that of a plain object, or absent.
        data = bundle if isinstance(bundle, dict) else {}
        return {**data, "text/plain": self.as_text(), "text/html": self.as_html()}


def _radio(number: int, question: Question) -> widgets.RadioButtons:
    return widgets.RadioButtons(
        options=list(question.choices),
        value=None,
        description=f"Answer {number}",
        layout=widgets.Layout(width="max-content"),
        style={"description_width": "initial"},
    )


def _status(text: str) -> str:
    return f'<div role="status" aria-live="polite"><b>{escape(text)}</b></div>'
