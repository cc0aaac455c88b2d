"""Build 13.12: the ranks as a block with three axes, and the groups along each."""

import itertools
from types import SimpleNamespace
from typing import Any

from course_lib.checking.build import build
from course_lib.checking.builds.alike import expect_kind
from course_lib.checking.builds.compare import (
    Here,
    Never,
    Place,
    Rows,
    compare,
    compare_here,
    dist,
    later,
)
from course_lib.checking.builds.raced import device_mesh
from course_lib.checking.exercises import Wrong
from course_lib.checking.helpers import described
from course_lib.checking.races import Race

_asked, _three_d = (
    later(f"course_lib.{name}") for name in ("checking.builds.on_rank.watched", "scratch.three_d")
)
_AXES = ("pp", "dp", "tp")
# pp, dp, tp: equal and unequal ones, one of them with an axis of a single rank.
_BLOCKS = ((2, 2, 2), (1, 2, 3), (4, 3, 2), (2, 3, 1))
_REAL = ((1, 2, 2), (2, 1, 2), (2, 2, 1))  # on four ranks


def _places(block: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The place of each rank, in the order of ranks: tp changes first, pp last."""
    return list(itertools.product(*map(range, block)))


def _shells(mesh: Any) -> Any:
    """Each block, in words, and a mesh of it without its groups, which need ranks."""
    for block in _BLOCKS:
        shell = object.__new__(mesh)
        shell.size = _three_d.Coordinates(*block)
        yield block, f"pp {block[0]}, dp {block[1]}, tp {block[2]}", shell


def _place_of(parts: SimpleNamespace) -> Rows:
    for block, sizes, mesh in _shells(parts.Mesh):
        for rank, right in enumerate(_places(block)):
            where = f"{sizes}: place_of({rank})"
            given = mesh.place_of(rank)
            expect_kind(given, _three_d.Coordinates, where)
            expect_kind(tuple(given), tuple, where, int)
            said = f"{where} is {_said(given)}: {_order(block, rank, tuple(given))}"
            yield Never(tuple(given) != right, said)


def _said(place: Any) -> str:
    return ", ".join(f"{axis} {number}" for axis, number in zip(_AXES, place, strict=True))


def _order(block: tuple[int, ...], rank: int, given: tuple[int, ...]) -> str:
    """Which order of axes it is, if it is any."""
    for axes in itertools.permutations(range(3)):
        sizes = [block[axis] for axis in axes]
        place = _places(tuple(sizes))[rank]
        if tuple(place[axes.index(axis)] for axis in range(3)) == given:
            fast = _AXES[axes[-1]]
            return f"there neighbouring ranks differ in {fast}, expected the axis that sends most"
    if any(not 0 <= number < size for number, size in zip(given, block, strict=True)):
        return "a coordinate is outside its axis"
    return "it counts in no order of the axes"


def _right_lines(block: tuple[int, ...], axis: int) -> set[tuple[int, ...]]:
    found: dict[tuple[int, ...], list[int]] = {}
    for rank, place in enumerate(_places(block)):
        found.setdefault(place[:axis] + place[axis + 1 :], []).append(rank)
    return set(map(tuple, found.values()))


def _lines(parts: SimpleNamespace) -> Rows:
    for block, sizes, mesh in _shells(parts.Mesh):
        for number, axis in enumerate(_AXES):
            what = f"{sizes}: lines({axis!r})"
            given, right = mesh.lines(axis), _right_lines(block, number)
            expect_kind(given, list, what)
            found = []
            for line in given:
                expect_kind(line, list, f"each line of {what}", int)
                found.append(tuple(line))
            for line in found:
                many = f"{what} has lines of {len(found[0])} ranks, expected as many as the axis is"
                yield Never(len(line) != block[number], f"{many} long")
            each = "expected one for each rank to be in one"
            yield Never(len(found) != len(right), f"{what} has {len(found)} lines, {each}")
            for line in found:
                turned = tuple(sorted(line)) in right
                why = (
                    "in the order of the axis" if turned else "ranks that differ in this axis only"
                )
                yield Never(line not in right, f"{what} has the line {[*line]}, expected {why}")
            yield Never({*found} != right, f"{what} has a line twice, {each}")


def _groups(parts: SimpleNamespace, *_: Any) -> list[dict[str, Any]]:
    """On a rank: each block, up to the first for which the ranks ask for different groups."""
    found: list[dict[str, Any]] = []
    for block in _REAL:
        found.append(_members(parts.Mesh, block))
        if "place" not in found[-1]:
            break
    return found


def _members(mesh: Any, block: tuple[int, ...]) -> dict[str, Any]:
    """On a rank: the groups that it asks for; then its attributes, and the ranks of each group."""
    pp, dp, tp = block
    asked = _asked.groups_asked_for(lambda: mesh(dp, tp, pp))
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, asked)
    if len(set(map(str, everyone))) > 1:  # and so they would wait for ever
        return {"asked": everyone}
    made = mesh(dp, tp, pp)
    given = {name: getattr(made, name, None) for name in ("size", "place", "wires", "dp", "tp")}
    groups = {"dp": given["dp"], "tp": given["tp"]}
    for name in ("up", "down"):
        groups[f"wires.{name}"] = getattr(given["wires"], name, None)
    ranks = {
        axis: dist.get_process_group_ranks(group) if isinstance(group, dist.ProcessGroup) else None
        for axis, group in groups.items()
    }
    return {"asked": everyone, "size": given["size"], "place": given["place"], "groups": ranks}


def _expect_groups(each: list[dict[str, Any]], place: Place) -> Rows:
    for block, found in zip(_REAL, each, strict=False):
        sizes = f"pp {block[0]}, dp {block[1]}, tp {block[2]}"
        asked = itertools.zip_longest(*found["asked"], fillvalue="none")
        for number, same in enumerate(asked, start=1):
            ranks = same[place.rank]
            yield Never(
                ranks != same[0],
                f"{sizes}: group {number} that rank 0 makes is of ranks {same[0]}, on rank "
                f"{place.rank} it is {ranks}: both wait for ranks that make another one",
            )
        what = f"{sizes}, rank {place.rank} of 4:"
        for attribute, right in (("size", block), ("place", _places(block)[place.rank])):
            given = found[attribute]
            if not isinstance(given, _three_d.Coordinates):
                raise Wrong(f"{what} its {attribute} wants Coordinates, got {described(given)}")
            said = f"{what} its {attribute} is {_said(given)}, expected its own"
            yield Never(given != right, said)
        for name, ranks in found["groups"].items():
            lines = _right_lines(block, _AXES.index(name if name in _AXES else "pp"))
            yield Never(ranks is None, f"{what} there is no group {name}")
            other = tuple(ranks) != next(line for line in lines if place.rank in line)
            yield Never(other, f"{what} its group {name} is of ranks {ranks}")


MESH = build(
    "mesh",
    steps=(
        compare_here("a rank's place", ("Mesh.place_of",), _place_of),
        compare_here("the lines along an axis", ("Mesh.lines",), _lines),
        compare("the groups", ("Mesh.__init__",), _groups, _expect_groups, [Here(ranks=4)]),
    ),
    race=Race(
        "a mesh of pp 2 x dp 1 x tp 2 with its groups",
        lambda parts: lambda: parts.Mesh(dp=1, tp=2, pp=2),
        lambda: lambda: device_mesh(2, 1, 2, mesh_dim_names=("pp", "dp", "tp")),
        ranks=4,
    ),
)
