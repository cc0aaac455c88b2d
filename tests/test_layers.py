"""The direction of imports is the architecture: this test draws it and refuses anything else."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from course_lib import theory

LIBRARY = Path(__file__).parent.parent / "course_lib"
TORCH = {"torch"}
# What each package may import from the library, and the heavy packages it may use at import time.
MAY_IMPORT = {
    "theory": set(),
    "figures": {"theory"},
    "panels": {"theory", "figures"},
    "measure": set(),
    "launch": set(),
    "scratch": {"measure", "launch"},
    "demos": {"scratch", "measure", "launch", "theory", "data"},
    "checking": {"theory"},
    "data": set(),
}
MAY_USE = {
    "theory": set(),
    "figures": {"matplotlib", "numpy"},
    "panels": {"ipywidgets", "traitlets", "IPython"},
    "measure": TORCH,
    "launch": set(),
    "scratch": TORCH,
    "demos": TORCH,
    "checking": {"platformdirs", "filelock", "ipywidgets"},  # the last in quiz_widget only
    "data": set(),
}
FILES = sorted(path for path in LIBRARY.rglob("*.py") if path.parent != LIBRARY)


def imported_at_load(path):
    """Full names that a module imports when it is itself imported, not inside functions."""
    names = set()
    pending = list(ast.parse(path.read_text()).body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        pending.extend(ast.iter_child_nodes(node))
        names |= names_of(node)
    return names


def names_of(node):
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        assert not node.level, "the library imports by full name"
        return {f"{node.module}.{alias.name}" for alias in node.names}
    return set()


def all_imports(path):
    return set().union(*(names_of(node) for node in ast.walk(ast.parse(path.read_text()))))


def package_of(path):
    return path.relative_to(LIBRARY).parts[0]


@pytest.mark.parametrize("path", FILES, ids=[str(p.relative_to(LIBRARY)) for p in FILES])
def test_layers(path):
    package = package_of(path)
    ours = {name.split(".")[1] for name in all_imports(path) if name.startswith("course_lib.")}
    packages = ours & (set(MAY_IMPORT) - {package})
    allowed = MAY_IMPORT[package]
    if package == "checking":  # exercises run the library's own code, inside functions
        allowed = allowed | {"scratch", "measure", "launch"}
    assert packages <= allowed, f"{package} must not import {packages - allowed}"


@pytest.mark.parametrize("path", FILES, ids=[str(p.relative_to(LIBRARY)) for p in FILES])
def test_heavy_imports(path):
    tops = {name.split(".")[0] for name in imported_at_load(path)} - {"course_lib"}
    outside = tops - set(sys.stdlib_module_names)
    assert outside <= MAY_USE[package_of(path)], f"imports {outside} when it is loaded"


THEORY = LIBRARY / "theory"
THEORY_FILES = sorted(THEORY.rglob("*.py"))


@pytest.mark.parametrize("path", THEORY_FILES, ids=lambda path: str(path.relative_to(THEORY)))
def test_theory_is_standard_library_only(path):
    tops = {name.split(".")[0] for name in all_imports(path)}
    # The planner compares hundreds of thousands of layouts by numpy, which its functions import.
    planner = path.relative_to(THEORY).parts[0] == "planner"
    allowed = {"course_lib", "numpy"} if planner else {"course_lib"}
    assert tops <= set(sys.stdlib_module_names) | allowed


def test_theory_exports_all_its_modules_in_order():
    names = {path.stem for path in THEORY.iterdir() if path.suffix == ".py" or path.is_dir()}
    parts = {name for name in names if name.startswith("__")}
    assert theory.__all__ == sorted(names - parts)
    for name in theory.__all__:
        assert getattr(theory, name).__name__ == f"course_lib.theory.{name}"
    assert set(theory.__all__) <= set(dir(theory))
    with pytest.raises(AttributeError, match="planer"):
        _ = theory.planer


def test_theory_loads_a_module_when_it_is_used():
    code = (
        "import sys, course_lib.theory; "
        "print([m for m in sys.modules if m.startswith('course_lib.theory.')])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "module",
    [
        "course_lib",
        "course_lib.cli",
        "course_lib.launch",
        "course_lib.checking",
        *(f"course_lib.theory.{name}" for name in theory.__all__),
    ],
)
def test_light_imports(module):
    code = (
        f"import sys, {module}; "
        "print([m for m in ('torch', 'numpy', 'matplotlib', 'ipywidgets') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
