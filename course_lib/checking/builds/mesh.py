"""Build 13.12: the ranks as a block with three axes, and the groups along each."""

import itertools
from types import SimpleNamespace
from typing import Any

from course_lib.checking.build import Step, build
from course_lib.checking.builds.ranks import on_ranks
from course_lib.checking.exercises import Unanswered, Wrong
from course_lib.checking.helpers import described
from course_lib.checking.races import Race

_AXES = ("pp", "dp", "tp")
# pp, dp, tp: equal and unequal ones, one of them with an axis of a single rank.
_BLOCKS = ((2, 2, 2), (1, 2, 3), (4, 3, 2), (2, 3, 1))


def _places(block: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The place of each rank, in the order of ranks: tp changes first, pp last."""
    return list(itertools.product(*map(range, block)))


def _shell(mesh: Any, block: tuple[int, ...]) -> Any:
    """A mesh without its groups, which need ranks."""
    from course_lib.scratch.three_d import Coordinates

    shell = object.__new__(mesh)
    shell.size = Coordinates(*block)
    return shell


def _place_of(parts: SimpleNamespace) -> None:
    from course_lib.scratch.three_d import Coordinates

    for block in _BLOCKS:
        mesh = _shell(parts.Mesh, block)
        for rank, right in enumerate(_places(block)):
            given = mesh.place_of(rank)
            where = f"pp {block[0]}, dp {block[1]}, tp {block[2]}: place_of({rank})"
            if given is None:
                raise Unanswered(f"{where} is None")
            if not isinstance(given, Coordinates) or not all(type(x) is int for x in given):
                raise Wrong(f"{where} wants Coordinates of 3 whole numbers, got {described(given)}")
            if tuple(given) != right:
                raise Wrong(f"{where} is {_said(given)}: {_order(block, rank, tuple(given))}")


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


def _lines(parts: SimpleNamespace) -> None:
    for block in _BLOCKS:
        mesh = _shell(parts.Mesh, block)
        for number, axis in enumerate(_AXES):
            given = mesh.lines(axis)
            what = f"pp {block[0]}, dp {block[1]}, tp {block[2]}: lines({axis!r})"
            if given is None:
                raise Unanswered(f"{what} is None")
            _expect_lines(given, _right_lines(block, number), what, block[number])


def _expect_lines(given: Any, right: set[tuple[int, ...]], what: str, length: int) -> None:
    if not isinstance(given, list | tuple) or not all(isinstance(x, list | tuple) for x in given):
        raise Wrong(f"{what} wants a list of lists of ranks, got {described(given)}")
    found = [tuple(line) for line in given]
    if strange := [rank for line in found for rank in line if type(rank) is not int]:
        raise Wrong(f"{what} wants lists of whole numbers, and has {described(strange[0])}")
    if any(len(line) != length for line in found):
        raise Wrong(
            f"{what} has lines of {len(found[0])} ranks, expected as many as the axis is long"
        )
    if len(found) != len(right):
        raise Wrong(f"{what} has {len(found)} lines, expected one for each rank to be in one")
    for line in found:
        if line not in right:
            turned = tuple(sorted(line)) in right
            why = "in the order of the axis" if turned else "ranks that differ in this axis only"
            raise Wrong(f"{what} has the line {list(line)}, expected {why}")
    if set(found) != right:
        raise Wrong(f"{what} has a line twice, expected one for each rank to be in one")


_ATTRIBUTES = ("size", "place", "wires", "dp", "tp")


_REAL = ((1, 2, 2), (2, 1, 2), (2, 2, 1))  # on four ranks


def _on_rank(mesh: Any) -> list[dict[str, Any]]:
    """On a rank: each block, up to the first for which the ranks ask for different groups."""
    found: list[dict[str, Any]] = []
    for block in _REAL:
        found.append(_members(mesh, block))
        if "place" not in found[-1]:
            break
    return found


def _members(mesh: Any, block: tuple[int, ...]) -> dict[str, Any]:
    """On a rank: the groups that it asks for; then its attributes, and the ranks of each group."""
    from torch.distributed import ProcessGroup, get_process_group_ranks

    from course_lib.checking.builds.on_rank.groups import groups_asked_for

    pp, dp, tp = block
    found: dict[str, Any] = {"asked": groups_asked_for(lambda: mesh(dp, tp, pp))}
    if len(set(map(str, from_all(found["asked"])))) > 1:  # and so they would wait for ever
        return found
    made = mesh(dp, tp, pp)
    given = {name: getattr(made, name, None) for name in _ATTRIBUTES}
    groups = {"dp": given["dp"], "tp": given["tp"]}
    for name in ("up", "down"):
        groups[f"wires.{name}"] = getattr(given["wires"], name, None)
    ranks = {
        axis: get_process_group_ranks(group) if isinstance(group, ProcessGroup) else None
        for axis, group in groups.items()
    }
    return found | {"size": given["size"], "place": given["place"], "groups": ranks}


def from_all(value: Any) -> list[Any]:
    """On a rank: the value of every rank."""
    import torch.distributed as dist

    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def _groups(parts: SimpleNamespace) -> None:
    outcomes = on_ranks(_on_rank, parts.Mesh, ranks=4)
    for block, *each in zip(_REAL, *(one.value for one in outcomes), strict=False):
        sizes = f"pp {block[0]}, dp {block[1]}, tp {block[2]}"
        asked = [found["asked"] for found in each]
        for number, same in enumerate(itertools.zip_longest(*asked, fillvalue="none"), start=1):
            for rank, ranks in enumerate(same):
                if ranks != same[0]:
                    raise Wrong(
                        f"{sizes}: group {number} that rank 0 makes is of ranks {same[0]}, on rank "
                        f"{rank} it is {ranks}: both wait for ranks that make another one"
                    )
        for rank, found in enumerate(each):
            _expect_member(found, block, rank, f"{sizes}, rank {rank} of 4:")


def _expect_member(found: dict[str, Any], block: tuple[int, ...], rank: int, what: str) -> None:
    from course_lib.scratch.three_d import Coordinates

    for attribute, right in (("size", block), ("place", _places(block)[rank])):
        given = found[attribute]
        if not isinstance(given, Coordinates):
            raise Wrong(f"{what} its {attribute} wants Coordinates, got {described(given)}")
        if given != right:
            raise Wrong(f"{what} its {attribute} is {_said(given)}, expected its own")
    for name, ranks in found["groups"].items():
        number = _AXES.index(name if name in _AXES else "pp")
        right = next(x for x in _right_lines(block, number) if rank in x)
        if ranks is None:
            raise Wrong(f"{what} there is no group {name}")
        if tuple(ranks) != right:
            raise Wrong(f"{what} its group {name} is of ranks {ranks}")


def _prepared(parts: SimpleNamespace) -> Any:
    return lambda: parts.Mesh(dp=1, tp=2, pp=2)


def _by_torch() -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return lambda: init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=_AXES)


MESH = build(
    "mesh",
    title="a mesh of ranks",
    hints=(
        "rank = (pp · DP + dp) · TP + tp. Which coordinate is the remainder by TP?",
        "divmod twice: first by TP, then what is left by DP.",
        "A line along an axis: fix the two other coordinates and let this one run.",
        "torch.arange(PP·DP·TP).view(PP, DP, TP).movedim(axis, -1) has the lines as its last "
        "dimension.",
        "Every rank makes all groups, in the same order, and keeps the one it is in.",
    ),
    steps=(
        Step("a rank's place", ("Mesh.place_of",), _place_of),
        Step("the lines along an axis", ("Mesh.lines",), _lines),
        Step("the groups", ("Mesh.__init__",), _groups),
    ),
    race=Race("a mesh of pp 2 x dp 1 x tp 2 with its groups", _prepared, _by_torch, ranks=4),
)
