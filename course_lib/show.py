"""Shows the library's own source, and what was recorded elsewhere, so that nothing is pasted."""

import inspect
from collections.abc import Callable
from importlib.resources import files
from types import ModuleType
from typing import Any


class Source:
    """Highlighted source code of a function, class or module; plain text where there is no HTML."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text

    def _repr_markdown_(self) -> str:
        return f"```python\n{self.text}\n```"


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
    return Source("\n\n".join(inspect.getsource(thing).rstrip() for thing in things))


def recorded(name: str) -> str:
    """What was printed where the engines are: a command, when and by what it ran, its output.

    `name` is that of a file in course_lib/data/recorded. Raises ValueError for another one.
    """
    folder = files("course_lib.data") / "recorded"
    names = sorted(file.name.removesuffix(".txt") for file in folder.iterdir())
    if name not in names:
        raise ValueError(f"{name!r} was not recorded: take one of {', '.join(names)}")
    return (folder / f"{name}.txt").read_text(encoding="utf-8").rstrip()
