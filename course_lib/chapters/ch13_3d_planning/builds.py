"""Build 13.12: the ranks as a mesh with three axes, and the groups along each axis."""

import itertools
from types import SimpleNamespace
from typing import Any

from course_lib.checking.build import build
from course_lib.checking.builds.alike import expect_kind
from course_lib.checking.builds.compare import Here, Place, compare, compare_here
from course_lib.checking.builds.lazily import dist, later
from course_lib.checking.builds.raced import device_mesh
from course_lib.checking.builds.rows import Never, Rows
from course_lib.checking.exercises import Wrong
from course_lib.checking.helpers import described
from course_lib.checking.races import Race

_watched, _three_d = (
    later(f"course_lib.{name}") for name in ("checking.builds.on_rank.watched", "scratch.three_d")
)
_AXES = ("pp", "dp", "tp")
# (pp, dp, tp): equal and unequal sizes, one with an axis of size 1.
_MESHES = ((2, 2, 2), (1, 2, 3), (4, 3, 2), (2, 3, 1))
_MESHES_OF_4 = ((1, 2, 2), (2, 1, 2), (2, 2, 1))  # on four ranks


def _coordinates(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The coordinates of each rank, by rank: tp varies fastest, pp slowest."""
    return list(itertools.product(*map(range, shape)))


def _without_groups(mesh: Any) -> Any:
    """Yield (shape, words, mesh); the mesh has no groups, as these need running ranks."""
    for shape in _MESHES:
        shell = object.__new__(mesh)
        shell.size = _three_d.Coordinates(*shape)
        yield shape, f"pp {shape[0]}, dp {shape[1]}, tp {shape[2]}", shell


def _expect_places(parts: SimpleNamespace) -> Rows:
    for shape, words, mesh in _without_groups(parts.Mesh):
        for rank, right in enumerate(_coordinates(shape)):
            where = f"{words}: place_of({rank})"
            place = mesh.place_of(rank)
            expect_kind(place, _three_d.Coordinates, where)
            expect_kind(tuple(place), tuple, where, int)
            said = f"{where} is {_in_words(place)}: {_explain(shape, rank, tuple(place))}"
            yield Never(tuple(place) != right, said)


def _in_words(coordinates: Any) -> str:
    return ", ".join(f"{axis} {number}" for axis, number in zip(_AXES, coordinates, strict=True))


def _explain(shape: tuple[int, ...], rank: int, coordinates: tuple[int, ...]) -> str:
    """Explain wrong coordinates: another order of the axes, or none at all."""
    for axes in itertools.permutations(range(3)):
        sizes = [shape[axis] for axis in axes]
        axes_coordinates = _coordinates(tuple(sizes))[rank]
        if tuple(axes_coordinates[axes.index(axis)] for axis in range(3)) == coordinates:
            fast = _AXES[axes[-1]]
            return f"there neighbouring ranks differ in {fast}, expected the axis that sends most"
    if any(not 0 <= number < size for number, size in zip(coordinates, shape, strict=True)):
        return "a coordinate is outside its axis"
    return "it counts in no order of the axes"


def _right_lines(shape: tuple[int, ...], axis: int) -> set[tuple[int, ...]]:
    lines: dict[tuple[int, ...], list[int]] = {}
    for rank, coordinates in enumerate(_coordinates(shape)):
        lines.setdefault(coordinates[:axis] + coordinates[axis + 1 :], []).append(rank)
    return set(map(tuple, lines.values()))


def _expect_lines(parts: SimpleNamespace) -> Rows:
    for shape, words, mesh in _without_groups(parts.Mesh):
        for number, axis in enumerate(_AXES):
            what = f"{words}: lines({axis!r})"
            answer, right = mesh.lines(axis), _right_lines(shape, number)
            expect_kind(answer, list, what)
            lines = []
            for line in answer:
                expect_kind(line, list, f"each line of {what}", int)
                lines.append(tuple(line))
            for line in lines:
                many = f"{what} has lines of {len(lines[0])} ranks, expected as many as the axis is"
                yield Never(len(line) != shape[number], f"{many} long")
            each = "expected one for each rank to be in one"
            yield Never(len(lines) != len(right), f"{what} has {len(lines)} lines, {each}")
            for line in lines:
                mixed = tuple(sorted(line)) in right
                why = "in the order of the axis" if mixed else "ranks that differ in this axis only"
                yield Never(line not in right, f"{what} has the line {[*line]}, expected {why}")
            yield Never({*lines} != right, f"{what} has a line twice, {each}")


def _run_meshes(parts: SimpleNamespace, *_: Any) -> list[dict[str, Any]]:
    """On a rank: the groups of each mesh, up to one for which ranks request different groups."""
    results: list[dict[str, Any]] = []
    for shape in _MESHES_OF_4:
        results.append(_run_mesh(parts.Mesh, shape))
        if "place" not in results[-1]:
            break
    return results


def _run_mesh(mesh: Any, shape: tuple[int, ...]) -> dict[str, Any]:
    """On a rank: the groups that it requests, its attributes, and the ranks of each group."""
    pp, dp, tp = shape
    requested = _watched.groups_asked_for(lambda: mesh(dp, tp, pp))
    by_rank: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(by_rank, requested)
    if len(set(map(str, by_rank))) > 1:  # creating them would hang
        return {"asked": by_rank}
    built = mesh(dp, tp, pp)
    state = {name: getattr(built, name, None) for name in ("size", "place", "wires", "dp", "tp")}
    groups = {"dp": state["dp"], "tp": state["tp"]}
    for name in ("up", "down"):
        groups[f"wires.{name}"] = getattr(state["wires"], name, None)
    ranks = {
        axis: dist.get_process_group_ranks(group) if isinstance(group, dist.ProcessGroup) else None
        for axis, group in groups.items()
    }
    return {"asked": by_rank, "size": state["size"], "place": state["place"], "groups": ranks}


def _expect_groups(results: list[dict[str, Any]], place: Place) -> Rows:
    for shape, result in zip(_MESHES_OF_4, results, strict=False):
        words = f"pp {shape[0]}, dp {shape[1]}, tp {shape[2]}"
        requested = itertools.zip_longest(*result["asked"], fillvalue="none")
        for number, on_ranks in enumerate(requested, start=1):
            ranks = on_ranks[place.rank]
            yield Never(
                ranks != on_ranks[0],
                f"{words}: group {number} that rank 0 makes is of ranks {on_ranks[0]}, on rank "
                f"{place.rank} it is {ranks}: both wait for ranks that make another one",
            )
        what = f"{words}, rank {place.rank} of 4:"
        for attribute, right in (("size", shape), ("place", _coordinates(shape)[place.rank])):
            value = result[attribute]
            if not isinstance(value, _three_d.Coordinates):
                raise Wrong(f"{what} its {attribute} wants Coordinates, got {described(value)}")
            said = f"{what} its {attribute} is {_in_words(value)}, expected its own"
            yield Never(value != right, said)
        for name, ranks in result["groups"].items():
            lines = _right_lines(shape, _AXES.index(name if name in _AXES else "pp"))
            yield Never(ranks is None, f"{what} there is no group {name}")
            other = tuple(ranks) != next(line for line in lines if place.rank in line)
            yield Never(other, f"{what} its group {name} is of ranks {ranks}")


MESH = build(
    "mesh",
    steps=(
        compare_here("a rank's place", ("Mesh.place_of",), _expect_places),
        compare_here("the lines along an axis", ("Mesh.lines",), _expect_lines),
        compare("the groups", ("Mesh.__init__",), _run_meshes, _expect_groups, [Here(ranks=4)]),
    ),
    race=Race(
        "a mesh of pp 2 x dp 1 x tp 2 with its groups",
        lambda parts: lambda: parts.Mesh(dp=1, tp=2, pp=2),
        lambda: lambda: device_mesh(2, 1, 2, mesh_dim_names=("pp", "dp", "tp")),
        ranks=4,
    ),
)
