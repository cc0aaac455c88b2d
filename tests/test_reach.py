"""What one chapter alone uses lives in that chapter's room: this test names what does not yet."""

import ast
from collections import defaultdict
from functools import cache

from test_layers import LIBRARY, MODULES, imported, names_of, ours, room_of, tree_of

import course_lib
from course_lib import chapters

# Library modules that only one chapter reaches, and why they are not in its room. `scratch` is left
# out: it is where techniques are read side by side, and what a learner builds takes their place.
NOT_IN_ITS_ROOM = {
    "course_lib.demos.ddp": "chapters 2 and 16 run it by its name",
    "course_lib.demos.fsdp": "chapters 13, 15 and 17 run it by its name",
    "course_lib.demos.faults.watched": "a part of the demo `faults`, as recorded runs name it",
}


def identifiers(tree: ast.AST) -> set[str]:
    """All names in code: not those in its comments and texts."""
    nodes = list(ast.walk(tree))
    return {getattr(node, "id", None) or getattr(node, "attr", "") for node in nodes}


@cache
def handed_on(package: str) -> dict[str, set[str]]:
    """By module below a package: its own name, and the names that `__init__` imports from it."""
    names = {
        module: {module.rpartition(".")[2]}
        for module in MODULES
        if module.startswith(f"{package}.")
    }
    for full in imported(package):
        module, _, name = full.rpartition(".")
        if module in names:
            names[module].add(name)
    return names


def used_in(tree: ast.AST, names: set[str]) -> set[str]:
    """The library's modules behind imported names; of a package, those whose names are written."""
    short = {
        f"course_lib.{name}": f"course_lib.{room}" for name, room in course_lib._FUNCTIONS.items()
    }
    found = ours({short.get(name, name) for name in names}) - {"course_lib"}
    for package in [module for module in found if MODULES[module].name == "__init__.py"]:
        written = identifiers(tree) | {name.rpartition(".")[2] for name in names}
        found |= {module for module, own in handed_on(package).items() if own & written}
    return {module for module in found if MODULES[module].name != "__init__.py"}


@cache
def uses(module: str) -> set[str]:
    return used_in(tree_of(module), imported(module))


def reached(first: set[str]) -> set[str]:
    seen: set[str] = set()
    pending = list(first)
    while pending:
        module = pending.pop()
        if module not in seen:
            seen.add(module)
            pending += uses(module)
    return seen


def text_uses(number: int) -> set[str]:
    """What the texts of a chapter import, or name as in `launch.run`."""
    found = set()
    for text in LIBRARY.glob(f"chapters/ch{number:02}_*/[0-9]*.py"):
        tree = ast.parse(text.read_text(encoding="utf-8"))
        nodes = [each for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)]
        found |= used_in(tree, set().union(*map(names_of, nodes)))
    return found


def test_a_module_that_one_chapter_alone_reaches_is_in_its_room():
    reaching = defaultdict(set)
    for number, room in chapters.rooms().items():
        own = {module for module in MODULES if module.startswith(f"{room}.")}
        for module in reached(own | text_uses(number)):
            reaching[module].add(number)
    tools = {"cli", "building", "lab", "doctor", "starting", "reporting", "hunting", "emitting"}
    of_tools = reached({module for module in MODULES if room_of(module) in tools})
    lonely = {
        module: numbers
        for module, numbers in reaching.items()
        if len(numbers) == 1
        and room_of(module) not in ("chapters", "scratch")
        and module not in of_tools
    }
    assert set(lonely) == set(NOT_IN_ITS_ROOM), lonely
