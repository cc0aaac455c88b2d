"""Shows the library's own source and recorded outputs, so that chapters need no pasted copies."""

import html
import inspect
from collections.abc import Callable
from importlib.resources import files
from types import ModuleType
from typing import Any

OPEN_LINES = 12  # a source of at most this many lines is shown unfolded


class Source:
    """Source code: highlighted in a notebook, folded if long; plain text elsewhere."""

    def __init__(self, text: str, title: str = "Source") -> None:
        self.text, self.title = text, title

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        """A `<details>` element with pygments' classes, coloured by JupyterLab's theme."""
        from pygments import highlight
        from pygments.formatters import HtmlFormatter
        from pygments.lexers import PythonLexer

        lines = self.text.count("\n") + 1
        head = html.escape(f"{self.title}, {lines} {'line' if lines == 1 else 'lines'}")
        code = highlight(self.text, PythonLexer(), HtmlFormatter())
        unfolded = " open" if lines <= OPEN_LINES else ""
        return f"<details{unfolded}><summary>{head}</summary>{code}</details>"


def show_source(*things: Callable[..., Any] | type | ModuleType) -> Source:
    """The source of functions, classes or modules; make it the last value of a cell to show it.

    Raises TypeError for anything else, or for something without Python source.
    """
    for thing in things:
        if not (callable(thing) or inspect.ismodule(thing)):
            raise TypeError(
                f"show_source takes functions, classes or modules, got {thing!r}: "
                "give the thing itself, as in show_source(scratch.accumulation.accumulate)"
            )
    text = "\n\n".join(inspect.getsource(thing).rstrip() for thing in things)
    return Source(text, f"Source: {', '.join(_name(thing) for thing in things)}")


def _name(thing: Callable[..., Any] | ModuleType) -> str:
    """The qualified name of a function or class; a module's name without "course_lib."."""
    name = thing.__name__ if inspect.ismodule(thing) else getattr(thing, "__qualname__", "code")
    return name.removeprefix("course_lib.").rpartition("<locals>.")[2]


def recorded(name: str) -> str:
    """A recorded run of an engine that may be missing here: command, date, versions, output.

    `name` is that of a file in course_lib/data/recorded. Raises ValueError for any other name.
    """
    folder = files("course_lib.data") / "recorded"
    names = sorted(file.name.removesuffix(".txt") for file in folder.iterdir())
    if name not in names:
        raise ValueError(f"{name!r} was not recorded: take one of {', '.join(names)}")
    return (folder / f"{name}.txt").read_text(encoding="utf-8").rstrip()
