"""Moves panels where no kernel runs: a page of the site calls `move`, in Pyodide.

A panel is made by running the code of its cell, as a kernel would.
"""

import ast
import json
from typing import Any

from course_lib.panels.panel import Panel

_panels: dict[str, Panel] = {}


def move(key: str, source: str, values: str = "{}") -> str:
    """Move a panel's controls to these indices; return what its page has to show, as JSON.

    `key` names the panel, which is made from `source` when it is first asked for.
    Raises ValueError if the cell shows no panel.
    """
    if key not in _panels:
        _panels[key] = _made(source)
    panel = _panels[key]
    panel.move(panel.values | json.loads(values))
    return json.dumps({"controls": panel.controls, "values": panel.values, "shown": panel.shown})


def _made(source: str) -> Panel:
    """The panel that a cell shows: the value of its last line."""
    names: dict[str, Any] = {}
    *before, last = ast.parse(source).body
    exec(compile(ast.Module(before, []), "cell", "exec"), names)
    value = isinstance(last, ast.Expr) and eval(
        compile(ast.Expression(last.value), "cell", "eval"), names
    )
    if not isinstance(value, Panel):
        raise ValueError(f"the last line of {source!r} is no panel: end the cell with one")
    return value
