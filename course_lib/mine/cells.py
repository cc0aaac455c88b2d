"""Turns the cells in which a learner has defined something into a self-contained file."""

import ast
import builtins
import inspect
import linecache
import re
import symtable
import sys
from collections.abc import Collection, Iterator, Sequence
from types import FunctionType, ModuleType
from typing import Any

from course_lib.problem import Problem

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_IMPORTS = (ast.Import, ast.ImportFrom)
_ASSIGNMENTS = (ast.Assign, ast.AnnAssign)


def text_of(answers: Sequence[Any]) -> str:
    """The source of the answers' cells without calls such as check(…); "" if not from cells.

    Imports that another cell made are added. Raises Problem for any other name that is defined only
    in another cell.
    """
    cells: dict[str, dict[str, Any]] = {}
    for answer in answers:
        function = _function_of(answer)
        if function is None or not _is_cell(function.__code__.co_filename):
            return ""
        cells[function.__code__.co_filename] = function.__globals__
    texts = [_definitions("".join(linecache.getlines(name))) for name in cells]
    text = "\n\n".join(texts).strip() + "\n"
    namespace = {name: value for names in cells.values() for name, value in names.items()}
    lines = [_import_of(name, namespace) for name in sorted(_missing(text))]
    return "\n".join([*lines, "", "", text]) if lines else text


def lines_of(text: str) -> int:
    """Number of lines of code, without blank lines, comments and docstrings."""
    tree = ast.parse(text)
    documented = {
        number
        for node in ast.walk(tree)
        if isinstance(node, (*_DEFINITIONS, ast.Module)) and ast.get_docstring(node) is not None
        for number in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
    }
    numbered = enumerate(text.splitlines(), start=1)
    code = [line.strip() for number, line in numbered if number not in documented]
    return sum(bool(line) and not line.startswith("#") for line in code)


def sources_with_used(
    module: ModuleType, names: Sequence[str], given: Sequence[str] = ()
) -> dict[str, str]:
    """{name: source} of definitions in a module, and of those that they use from it, recursively.

    The names in `given` are left out.
    """
    text = inspect.getsource(module)
    nodes = {node.name: node for node in ast.parse(text).body if isinstance(node, _DEFINITIONS)}
    sources, pending = {}, [name for name in names if name in nodes]
    while pending:
        name = pending.pop()
        if name in nodes and name not in sources and name not in given:
            sources[name] = ast.get_source_segment(text, nodes[name]) or ""
            pending += [used.id for used in _names(nodes[name])]
    return sources


def taken_from_the_course(text: str, names: Collection[str]) -> set[str]:
    """Which of these names a text imports from this library, under any alias, or looks up in it.

    For `import_module("course_lib…")` the module's name is included.
    """
    taken, modules = set(), {"course_lib"}
    nodes = list(ast.walk(ast.parse(text)))
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("course_lib"):
            taken |= {each.name for each in node.names if each.name in names or each.name == "*"}
            modules |= {each.asname or each.name for each in node.names}
        if isinstance(node, ast.Import):
            modules |= {each.asname for each in node.names if each.asname}
        if isinstance(node, ast.Constant) and re.fullmatch(r"course_lib(\.\w+)+", str(node.value)):
            taken.add(str(node.value))
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr in names:
            root = next(iter(_names(node)), None)
            taken |= {node.attr} if root is not None and root.id in modules else set()
        if isinstance(node, ast.Call):
            root = next(iter(_names(node.func)), None)
            arguments = {each.value for each in node.args if isinstance(each, ast.Constant)}
            taken |= {n for n in names if n in arguments} if root and root.id in modules else set()
    return taken


def _function_of(answer: Any) -> FunctionType | None:
    """The unwrapped function, or the first method that a class itself defines; else None."""
    if isinstance(answer, FunctionType):
        bare = inspect.unwrap(answer)
        return bare if isinstance(bare, FunctionType) else answer
    for value in vars(answer).values() if isinstance(answer, type) else ():
        bare = inspect.unwrap(getattr(value, "__func__", getattr(value, "fget", value)))
        if isinstance(bare, FunctionType) and bare.__qualname__.startswith(answer.__qualname__):
            return bare
    return None


def _is_cell(filename: str) -> bool:
    """Whether linecache has this file name as a cell, which has no modification time."""
    entry = linecache.cache.get(filename)
    return entry is not None and len(entry) == 4 and entry[1] is None


def _definitions(cell: str) -> str:
    """The imports, definitions, and constants used by them in a cell, with the comments above."""
    lines, kept, after = cell.splitlines(), [], 0
    nodes = ast.parse(cell).body
    used = {x.id for node in nodes if isinstance(node, _DEFINITIONS) for x in _names(node)}
    for node in nodes:
        last = node.end_lineno or node.lineno
        constant = isinstance(node, _ASSIGNMENTS) and used & {x.id for x in _names(node)}
        if constant or isinstance(node, _DEFINITIONS + _IMPORTS):
            kept += lines[after:last]
        after = last
    return "\n".join(kept).strip("\n")


def _names(node: ast.AST) -> Iterator[ast.Name]:
    return (part for part in ast.walk(node) if isinstance(part, ast.Name))


def _missing(text: str) -> set[str]:
    """Names that the text uses but does not define, except builtins."""
    top = symtable.symtable(text, "mine", "exec")
    defined = {x.get_name() for x in top.get_symbols() if x.is_assigned() or x.is_imported()}
    used = {x.get_name() for x in top.get_symbols() if x.is_referenced()}
    pending = top.get_children()
    while pending:
        table = pending.pop()
        pending += table.get_children()
        used |= {x.get_name() for x in table.get_symbols() if x.is_global() and x.is_referenced()}
    return used - defined - set(dir(builtins)) - {"__name__", "__file__", "__doc__"}


def _import_of(name: str, namespace: dict[str, Any]) -> str:
    """The import statement for a name that another cell has imported."""
    value = namespace.get(name)
    if isinstance(value, ModuleType):
        return f"import {value.__name__}" + ("" if value.__name__ == name else f" as {name}")
    home, own = getattr(value, "__module__", ""), getattr(value, "__qualname__", "")
    # Prefer public modules to private ones: only in Python 3.13 is Path in pathlib._local.
    for module in (home.partition("._")[0], home) if home and own else ():
        if module != "__main__" and getattr(sys.modules.get(module), own, None) is value:
            return f"from {module} import {own}" + ("" if own == name else f" as {name}")
    raise Problem(
        f"{name} comes from another cell, and what you build becomes a file of its own: move "
        f"{name} into the cell that uses it"
    )
