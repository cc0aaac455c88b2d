"""Shows the library's own source, and what was recorded elsewhere, so that nothing is pasted."""

import html
import inspect
from collections.abc import Callable
from importlib.resources import files
from types import ModuleType
from typing import Any

OPEN_LINES = 12  # a source of so few lines needs no click


class Source:
    """Source code that a page shows highlighted, folded when it is long; elsewhere plain text."""

    def __init__(self, text: str, title: str = "Source") -> None:
        self.text, self.title = text, title

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        """A `<details>` with pygments' classes, to which JupyterLab's theme gives the colours."""
        from pygments import highlight
        from pygments.formatters import HtmlFormatter
        from pygments.lexers import PythonLexer

        lines = self.text.count("\n") + 1
        head = html.escape(f"{self.title}, {lines} {'line' if lines == 1 else 'lines'}")
        code = highlight(self.text, PythonLexer(), HtmlFormatter())
        unfolded = " open" if lines <= OPEN_LINES else ""
        return f"<details{unfolded}><summary>{head}</summary>{code}</details>"


def show_source(*things: Callable[..., Any] | type | ModuleType) -> Source:
    """Return the source of `things`, to be shown as the last value of a cell.

    Raises TypeError for something that has no Python source.
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
    """`ring_all_reduce`; of a method with its class, of a module without the library's name."""
    name = thing.__name__ if inspect.ismodule(thing) else getattr(thing, "__qualname__", "code")
    return name.removeprefix("course_lib.").rpartition("<locals>.")[2]


def recorded(name: str) -> str:
    """What was printed where the engines are: a command, when and by what it ran, its output.

    `name` is that of a file in course_lib/data/recorded. Raises ValueError for another one.
    """
    folder = files("course_lib.data") / "recorded"
    names = sorted(file.name.removesuffix(".txt") for file in folder.iterdir())
    if name not in names:
        raise ValueError(f"{name!r} was not recorded: take one of {', '.join(names)}")
    return (folder / f"{name}.txt").read_text(encoding="utf-8").rstrip()
