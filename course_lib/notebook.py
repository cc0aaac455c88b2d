"""Shows HTML, text and widgets in the output of a notebook's cell."""

import itertools
import os
import sys
from pathlib import Path
from typing import Any

_numbers = itertools.count()


def in_notebook() -> bool:
    """Whether stdout goes to a cell of a Jupyter kernel, and has not been redirected."""
    return type(sys.stdout).__module__.startswith("ipykernel")


class Slot:
    """A part of a cell's output whose content can be replaced."""

    def __init__(self) -> None:
        self._id = f"course-{os.getpid()}-{next(_numbers)}"
        self._used = False

    def show(self, html: str, text: str) -> None:
        """Replace the content with `html`, or with `text` where HTML cannot be shown."""
        data = {"text/html": html, "text/plain": text}
        _display(data, raw=True, display_id=self._id, update=self._used)
        self._used = True


def browser_code(path: Path) -> str:
    """The JavaScript of a widget: the code that all widgets share, then the file at `path`."""
    shared = Path(__file__).with_name("widget.js")
    return "\n".join(part.read_text(encoding="utf-8") for part in (shared, path))


def show_widget(widget: object) -> None:
    """Show a widget, or any other object that a notebook can display."""
    _display(widget)


def show(html: str, text: str) -> None:
    """Show `html` in a notebook; print `text` elsewhere."""
    if in_notebook():
        Slot().show(html, text)
    else:
        print(text)


def _display(thing: object, **how: object) -> None:
    import IPython.display

    display: Any = IPython.display.display  # it has no types
    display(thing, **how)
