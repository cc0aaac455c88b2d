"""Shows the library's own source in a notebook, so that no code is pasted into a chapter."""

import inspect
from collections.abc import Callable
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
