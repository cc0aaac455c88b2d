"""The direction of imports is the architecture: these tests draw it and refuse anything else."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import course_lib
from course_lib import figures, theory

LIBRARY = Path(course_lib.__file__).parent
MODULES = {
    ".".join(path.relative_to(LIBRARY.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(LIBRARY.rglob("[!0-9]*.py"))
}
# The ground floor: one module each, which any room may use, with what each imports of ours.
GROUND = {
    "problem": set(),
    "home": {"problem"},
    "validation": set(),
    "checked": {"validation"},
    "outline": set(),
    "texts": set(),
    "sittings": {"texts"},
    "finding": {"texts", "problem"},
    "trace": set(),
    "notebook": set(),
    "short_errors": set(),
    "arguments": set(),
    "pickled_code": set(),
}
# What each room may import from the library, even inside functions. "" is `course_lib` itself.
MAY_IMPORT = {
    "": set(),
    "__main__": {"cli"},
    "show": set(),
    "data": set(),
    "theory": set(),
    "figures": {"theory"},
    "panels": {"theory", "figures"},
    "clinic": set(),
    "measure": set(),
    "launch": set(),
    "record": {"launch"},
    "scratch": {"measure", "launch"},
    "demos": {"scratch", "measure", "launch", "theory", "data", "mine"},
    "mine": {"scratch"},
    "emitting": {"theory", "demos"},
    "checking": {
        "theory",
        "figures",
        "scratch",
        "measure",
        "launch",
        "mine",
        "show",
        "clinic",
    },
    # A room for each chapter; no room of the library names it here.
    "chapters": {
        "theory",
        "figures",
        "panels",
        "clinic",
        "measure",
        "launch",
        "scratch",
        "demos",
        "mine",
        "checking",
        "data",
        "emitting",
        "lab",
        "cli",
    },
    "building": {"checking"},
    "lab": set(),
    "site": {"building", "checking", "figures", "panels"},
    "doctor": {"clinic", "lab", "launch", "checking"},
    "starting": {"building", "launch"},
    "cli": {
        "theory",
        "launch",
        "demos",
        "emitting",
        "checking",
        "building",
        "lab",
        "site",
        "doctor",
        "starting",
    },
}
# The packages from outside that each room may import when it is itself imported; any other waits
# until a function needs it. Rooms that are not here need nothing but Python.
MAY_LOAD = {
    "pickled_code": {"cloudpickle"},
    "panels": {"anywidget", "traitlets"},
    "measure": {"torch"},
    "scratch": {"torch"},
    "demos": {"torch"},
    # The last two in the modules of the quiz and of the box for predictions only.
    "chapters": {"torch"},
    "checking": {"platformdirs", "filelock", "anywidget", "traitlets"},
    "site": {"nbconvert", "pygments"},
    "lab": {"jupyter_server"},  # in the module that runs inside JupyterLab
}
LIGHT = ("course_lib", "course_lib.cli", "course_lib.launch", "course_lib.checking")
LIGHT_PARTS = {"cli", "diagnosing"}  # in chapters' rooms: what a command loads at once
HEAVY = ("torch", "numpy", "ipywidgets", "anywidget", "jupyter_server", "nbclient")
# Rooms inside a room, from the first to the last, read from the table that explains them.
INNER_ROOMS = {
    room.__name__.split(".")[1]: re.findall(r"^\| `(\w+)` \|", room.__doc__ or "", re.M)
    for room in (theory, figures)
}
# A new arrow needs a reason: there were 146 between modules before there were rooms.
# Twelve are those of audits and stories, which ask every room below and are asked by none.
MOST_THEORY_ARROWS = 28


def names_of(node: ast.AST) -> set[str]:
    """The full names that one statement imports."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        assert not node.level, f"the library imports by full name: {ast.unparse(node)}"
        return {f"{node.module}.{alias.name}" for alias in node.names}
    return set()


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


@cache
def imported(module: str) -> set[str]:
    """Full names that a module imports, inside functions as well."""
    return set().union(*(names_of(node) for node in ast.walk(tree_of(module))))


def imported_at_load(module: str) -> set[str]:
    """Full names that a module imports when it is itself imported."""
    names: set[str] = set()
    pending: list[ast.AST] = list(tree_of(module).body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        pending.extend(ast.iter_child_nodes(node))
        names |= names_of(node)
    return names


def ours(names: set[str]) -> set[str]:
    """The library's modules among imported names: of `room.module.function`, `room.module`."""
    found = {name if name in MODULES else name.rpartition(".")[0] for name in names}
    return found & set(MODULES)


def room_of(module: str) -> str:
    """The part of a module's name below `course_lib`: `theory` of course_lib.theory.planner."""
    return module.split(".")[1] if "." in module else ""


def outside(names: set[str]) -> set[str]:
    """Packages that are neither Python's own nor the library's."""
    return {name.split(".")[0] for name in names} - set(sys.stdlib_module_names) - {"course_lib"}


def test_every_room_is_in_the_table_and_nothing_else_is():
    found = {room_of(module) for module in MODULES} - set(GROUND)
    assert found == set(MAY_IMPORT), "give a new room its line in MAY_IMPORT, or remove an old one"


def test_each_room_imports_only_what_lies_below_it():
    for module in MODULES:
        room = room_of(module)
        # A package's own name is on the way to each of its modules: it is no arrow.
        used = {room_of(name) for name in ours(imported(module)) - {"course_lib.chapters"}}
        used -= {room, ""}
        allowed = GROUND[room] if room in GROUND else MAY_IMPORT[room] | set(GROUND)
        assert used <= allowed, f"{module} imports {used - allowed}, which {room} must not"


def test_no_chapter_imports_another():
    for module in MODULES:
        if room_of(module) == "chapters" and module.count(".") > 1:
            room = module.split(".")[2]
            others = {name for name in ours(imported(module)) if room_of(name) == "chapters"}
            strange = {name for name in others if name.split(".")[2:3] not in ([], [room])}
            assert not strange, f"{module} imports {strange}: move what both need into the library"


def test_packages_from_outside_load_only_where_they_are_allowed():
    for module in MODULES:
        loaded = outside(imported_at_load(module))
        allowed = MAY_LOAD.get(room_of(module), set())
        if module.startswith("course_lib.checking.builds.on_rank."):  # imported inside functions
            allowed = allowed | {"torch"}
        assert loaded <= allowed, f"{module} imports {loaded - allowed} when it is loaded"


def test_no_modules_import_each_other_in_a_circle():
    # `from course_lib import theory` names the package, which finds its rooms when asked.
    arrows = {module: ours(imported(module)) - {module, "course_lib"} for module in MODULES}
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as circle:
        raise AssertionError("a circle: " + " → ".join(reversed(circle.args[1]))) from None


# --- inside theory and figures ----------------------------------------------------------------


def inner_arrows(outer: str) -> Iterator[tuple[str, str, str]]:
    """(room, imported room, where) for each import from one room inside `outer` in another."""
    for module in MODULES:
        if room_of(module) == outer and module.count(".") > 1:
            room = module.split(".")[2]
            for name in ours(imported(module)):
                if room_of(name) == outer and name.split(".")[2] != room:
                    yield room, name.split(".")[2], f"{module} imports {name}"


def test_theory_is_standard_library_only():
    for module in MODULES:
        if room_of(module) == "theory":
            # The planner compares hundreds of thousands of layouts by numpy, inside functions.
            allowed = {"numpy"} if module.startswith("course_lib.theory.planner") else set()
            used = outside(imported(module))
            assert used <= allowed, f"{module} imports {used - allowed}: theory needs only Python"


def test_a_table_names_the_inner_rooms_and_nothing_lies_beside_them():
    for outer, rooms in INNER_ROOMS.items():
        inside = [*LIBRARY.glob(f"{outer}/*/__init__.py"), *LIBRARY.glob(f"{outer}/[!_]*.py")]
        names = [path.parent.name if path.stem == "__init__" else path.stem for path in inside]
        assert sorted(rooms) == sorted(names), outer
    assert [path.name for path in LIBRARY.glob("theory/*.py")] == ["__init__.py"]


def test_an_inner_room_imports_only_from_rooms_above_it():
    for outer, rooms in INNER_ROOMS.items():
        for room, above, where in inner_arrows(outer):
            assert rooms.index(above) < rooms.index(room), f"{where}: against the table"


def test_the_rooms_of_theory_know_few_others():
    arrows = sorted({f"{room} → {above}" for room, above, _ in inner_arrows("theory")})
    assert len(arrows) <= MOST_THEORY_ARROWS, f"{len(arrows)} arrows: {', '.join(arrows)}"


def test_engines_know_no_subject():
    """An engine takes any names and numbers; of theory it may know how to write units."""
    for module in MODULES:
        if module.startswith("course_lib.figures.engines."):
            used = {name for name in ours(imported(module)) if room_of(name) == "theory"}
            assert used <= {"course_lib.theory.inputs.units"}, f"{module} imports {used}"


# --- how light it is --------------------------------------------------------------------------

LOAD_ONE_AFTER_THE_OTHER = """
import importlib, sys
light, heavy = (names.split(",") for names in sys.argv[1:])
seen = set()
for module in light:
    importlib.import_module(module)
    loaded = {name for name in heavy if name in sys.modules} - seen
    seen |= loaded
    if loaded:
        print(f"{module} loads {', '.join(sorted(loaded))}")
"""


def test_light_modules_load_nothing_heavy():
    """One process imports them in turn; what one loads is not held against the next."""
    rooms = ("theory", "clinic", "building", "doctor", "starting", "cli")
    theirs = [
        name for name in MODULES if room_of(name) in rooms or LIGHT_PARTS & {*name.split(".")}
    ]
    light = [*LIGHT, *(name for name in theirs if name not in LIGHT)]
    arguments = [",".join(light), ",".join(HEAVY)]
    command = [sys.executable, "-c", LOAD_ONE_AFTER_THE_OTHER, *arguments]
    found = subprocess.run(command, capture_output=True, text=True)
    assert (found.stdout, found.stderr) == ("", "")
