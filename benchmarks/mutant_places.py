"""Where a mutant can be made: the places of operators, comparisons and constants in the library."""

import ast
import copy
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("theory", "checking", "launch", "scratch", "chapters")
Located = ast.expr | ast.stmt
SWAPS: dict[type[ast.AST], tuple[Any, ...]] = {
    ast.Add: (ast.Sub,), ast.Sub: (ast.Add,), ast.Mult: (ast.Div,), ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Div, ast.Mult), ast.Mod: (ast.FloorDiv,), ast.Pow: (ast.Mult,),
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt), ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
    ast.And: (ast.Or,), ast.Or: (ast.And,),
}  # fmt: skip

_SWITCHES = ("False", "True", "0", "1", "0.0", "1.0")


@dataclass(frozen=True)
class Mutant:
    """One change of one file, and the file's source with it."""

    path: str
    line: int
    column: int  # from 1; not exact inside an f-string before Python 3.12
    change: str
    source: bytes

    @property
    def room(self) -> str:
        return self.path.split("/")[1]

    @property
    def name(self) -> str:
        return f"{self.path}:{self.line}:{self.column}  {self.change}"


def variants(node: Located) -> Iterator[Located]:
    """The node with one operator, comparison or constant changed."""
    match node:
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() as value):
            # One more of 8,192 samples is no mistake, twice as many is one.
            yield ast.Constant(value + 1 if abs(value) < 100 else 2 * value)
        case ast.Constant(value=float() as value):
            yield ast.Constant(2 * value or 1.0)
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield node.operand
        case ast.Call(func=ast.Name(id="min" | "max" as name)):
            yield ast.Call(ast.Name("max" if name == "min" else "min"), node.args, node.keywords)
        case ast.Compare():
            for place, old in enumerate(node.ops):
                for new in SWAPS[type(old)]:
                    ops = [*node.ops[:place], new(), *node.ops[place + 1 :]]
                    yield ast.Compare(node.left, ops, node.comparators)
        case ast.BinOp() | ast.BoolOp() | ast.AugAssign():
            for new in SWAPS.get(type(node.op), ()):
                changed = copy.copy(node)
                changed.op = new()
                yield changed


def chains(node: ast.AST, around: tuple[Located, ...] = ()) -> Iterator[tuple[Located, ...]]:
    """Every expression and statement that may be changed, after those around it."""
    if isinstance(node, Located):
        around = (*around, node)
        yield around
    if isinstance(node, ast.keyword) and node.arg == "strict":
        return  # of zip: it guards against lengths that differ, and none do
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns") or (name == "msg" and isinstance(node, ast.Assert)):
            continue
        for child in value if isinstance(value, list) else [value]:
            types = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
            if isinstance(child, ast.AST) and not types:
                yield from chains(child, around)


def is_case(path: Path, chain: tuple[Located, ...]) -> bool:
    """Whether this is a constant of a case that a chapter's check, a build or a demo tries.

    The expected answer is computed from it, so that another case is as good. A demo's case is the
    default of an option: not its limits, and not a flag, 0 or 1, which switch something on or off.
    """
    chapter = path.name == "exercises.py" and "chapters" in path.parts
    build = "builds" in (path.stem, path.parent.name) and isinstance(chain[0], ast.Assign)
    listed = any(isinstance(each, ast.List | ast.Tuple | ast.Dict | ast.Set) for each in chain)
    demo = "demos" in path.parts and any(
        ast.unparse(each.func) == "option" and {*each.args[:1]} & {*chain}
        for each in chain
        if isinstance(each, ast.Call)
    )
    case = build or (chapter and listed) or (demo and ast.unparse(chain[-1]) not in _SWITCHES)
    return case and isinstance(chain[-1], ast.Constant)


def mutants_of(path: Path) -> Iterator[Mutant]:
    source = path.read_bytes()
    starts = [0, *accumulate(len(line) for line in source.splitlines(keepends=True))]
    for chain in chains(ast.parse(source)):
        if is_case(path, chain):
            continue
        # Before Python 3.12 nothing inside an f-string has a sure position: replace all of it.
        whole = next((each for each in chain if isinstance(each, ast.JoinedStr)), chain[-1])
        last = whole.end_lineno or whole.lineno
        for variant in variants(chain[-1]):
            text = ast.unparse(copy.deepcopy(whole, {id(chain[-1]): variant}))
            text += "\n" * (last - whole.lineno)  # what follows keeps its line
            if isinstance(whole, ast.expr) and not isinstance(whole, ast.Constant):
                text = f"({text})"
            head = source[: starts[whole.lineno - 1] + whole.col_offset]
            tail = source[starts[last - 1] + (whole.end_col_offset or 0) :]
            change = f"{ast.unparse(chain[-1])}  ->  {ast.unparse(variant)}"
            changed = head + text.encode() + tail
            name, column = path.relative_to(ROOT).as_posix(), chain[-1].col_offset + 1
            yield Mutant(name, whole.lineno, column, change, changed)


def all_mutants(seed: int) -> list[Mutant]:
    """All mutants of all rooms, in the order in which the seed draws them."""
    rooms = (ROOT / "course_lib" / room for room in ROOMS)
    files = (path for room in rooms for path in sorted(room.rglob("[!0-9]*.py")))
    found = [mutant for path in files for mutant in mutants_of(path)]
    random.Random(seed).shuffle(found)
    return found
