"""Turns a Markdown cell into HTML: anchors as JupyterLab gives them, formulas as MathML."""

import html
import re
from functools import cache
from typing import Any

from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

from course_lib.problem import Problem

_NOTE = re.compile(r" · optional · \d+ min$")  # what `course build` adds to a folded heading


def plain(fragment: str) -> str:
    """The words of an HTML fragment, without annotations of formulas."""
    return html.unescape(re.sub(r"<[^>]*>", "", fragment)).strip()


def anchor(heading: str) -> str:
    """The id of a heading, as JupyterLab makes it and as links in the texts name it."""
    return _NOTE.sub("", plain(heading)).replace(" ", "-")


class _Renderer(IPythonRenderer):
    """Links lead to pages instead of notebooks."""

    def link(self, text: str, url: str, title: str | None = None) -> str:
        return str(super().link(text, re.sub(r"\.ipynb(?=$|#)", ".html", url), title))

    def heading(self, text: str, level: int, **_: Any) -> str:
        return f'<h{level} id="{html.escape(anchor(text))}">{text}</h{level}>\n'

    def table(self, text: str) -> str:
        return f'<div class="wide"><table>{text}</table></div>\n'

    def block_code(self, code: str, info: str | None = None) -> str:
        return str(super().block_code(code, info)).replace("<pre>", '<pre class="wide">')

    def block_math(self, body: str) -> str:
        return f'<div class="wide formula">{mathml(body, "block")}</div>'

    def latex_environment(self, name: str, body: str) -> str:
        return self.block_math(f"\\begin{{{name}}}{body}\\end{{{name}}}")

    def inline_math(self, body: str) -> str:
        return mathml(body, "inline")


@cache
def mathml(formula: str, display: str) -> str:
    """A formula as MathML, which browsers draw without a script. Raises Problem for a wrong one."""
    try:
        from latex2mathml.converter import convert

        written: str = convert(formula.strip(), display=display)
    except ImportError:
        raise Problem(
            'latex2mathml is missing, which writes formulas: run `pip install "course-lib[site]"`'
        ) from None
    except Exception as wrong:  # it has a class for each mistake
        raise Problem(f"the formula {formula!r} cannot be shown ({wrong!r}): correct it") from None
    if unknown := re.search(r"\\\w+", written):
        raise Problem(f"the formula {formula!r} has {unknown[0]}, which is unknown: correct it")
    return written


def to_html(source: str) -> str:
    """The HTML of a Markdown cell."""
    renderer = _Renderer(escape=False, exclude_anchor_links=True)
    return str(MarkdownWithMath(renderer=renderer).render(source))
