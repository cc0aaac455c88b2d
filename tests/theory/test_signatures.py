"""How the theory's functions are called: few arguments by place, and a Job for a whole step."""

import ast
from pathlib import Path

from course_lib import theory

THEORY = Path(theory.__file__).parent
MOST_BY_PLACE = 4
PARTS_OF_A_JOB = {"shape", "recipe", "layout", "cluster", "sequence"}
# Who may take more than two of those: what has no layout yet, and what makes a Job.
WITHOUT_A_JOB = {
    "memory/peak.py training_memory": "one GPU alone: there is no layout to name",
    "planner/__init__.py plan": "the layout is what it looks for",
    "planner/space.py Question.job": "it makes the Job",
}


def public_functions(tree):
    """Functions and methods without an underscore, by name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            methods = [one for one in node.body if isinstance(one, ast.FunctionDef)]
            yield from ((f"{node.name}.{it.name}", it) for it in methods if it.name[0] != "_")
    functions = [one for one in tree.body if isinstance(one, ast.FunctionDef)]
    yield from ((it.name, it) for it in functions if it.name[0] != "_")


def by_place(function):
    """Parameters that may be given by place, but for `self`."""
    arguments = function.args.posonlyargs + function.args.args
    return [one.arg for one in arguments if one.arg != "self"]


def parameters(function):
    return by_place(function) + [one.arg for one in function.args.kwonlyargs]


def functions_of_the_theory():
    for path in sorted(THEORY.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        where = path.relative_to(THEORY).as_posix()
        yield from ((f"{where} {name}", function) for name, function in public_functions(tree))


def test_no_function_takes_more_than_four_arguments_by_place():
    long = {
        name: by_place(function)
        for name, function in functions_of_the_theory()
        if len(by_place(function)) > MOST_BY_PLACE
    }
    assert not long, f"put a * before the fifth parameter: {long}"


def test_a_whole_step_is_asked_about_by_a_job():
    found = {
        name: parts
        for name, function in functions_of_the_theory()
        if len(parts := PARTS_OF_A_JOB & set(parameters(function))) > 2
    }
    assert not set(found) - set(WITHOUT_A_JOB), f"take a Job instead: {found}"
    assert not set(WITHOUT_A_JOB) - set(found), "an exception that is no longer needed"


def test_a_function_that_takes_a_job_takes_none_of_its_parts():
    jobs = {name: parameters(it) for name, it in functions_of_the_theory()}
    jobs = {name: set(names) for name, names in jobs.items() if "job" in names}
    assert len(jobs) > 10
    assert not {name for name, names in jobs.items() if PARTS_OF_A_JOB & names}


def test_every_record_is_frozen():
    found = [
        f"{path.relative_to(THEORY)} {node.name}"
        for path in sorted(THEORY.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
        for mark in node.decorator_list
        if "dataclass" in ast.unparse(mark) and "frozen=True" not in ast.unparse(mark)
    ]
    assert not found, f"write @dataclass(frozen=True): {found}"
