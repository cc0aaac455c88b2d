"""Meshes that the check must refuse: (what was thought, answer, words of the refusal)."""

import torch
import torch.distributed as dist

from course_lib.scratch.pipeline.stage import Wires, wires
from course_lib.scratch.three_d import Coordinates, own_group


def by_divisions(self, rank):
    _, dp, tp = self.size
    return Coordinates(rank // (dp * tp), rank // tp % dp, rank % tp)


def by_places(self, axis):
    """Ranks whose other two coordinates agree."""
    found = {}
    for rank in range(self.size.pp * self.size.dp * self.size.tp):
        place = self.place_of(rank)._asdict()
        place.pop(axis)
        found.setdefault(tuple(place.values()), []).append(rank)
    return tuple(map(tuple, found.values()))


class Right:
    """A mesh by another hand; others have one method that goes wrong."""

    def __init__(self, dp, tp, pp):
        self.size = Coordinates(pp, dp, tp)
        self.place = self.place_of(dist.get_rank())
        self.tp, self.dp = own_group(self.lines("tp")), own_group(self.lines("dp"))
        self.wires = wires(self.lines("pp"))

    place_of, lines = by_divisions, by_places


def _mesh(**methods):
    return [type("Mesh", (Right,), methods)]


def pp_first(self, rank):
    """Stages are neighbours, tensor parallelism far apart."""
    rest, pp = divmod(rank, self.size.pp)
    tp, dp = divmod(rest, self.size.dp)
    return Coordinates(pp, dp, tp)


def dp_inside(self, rank):
    rest, dp = divmod(rank, self.size.dp)
    pp, tp = divmod(rest, self.size.tp)
    return Coordinates(pp, dp, tp)


def divides_by_the_wrong_size(self, rank):
    rest, tp = divmod(rank, self.size.tp)
    return Coordinates(rest // self.size.pp, rest % self.size.pp, tp)


def places_as_a_list(self, rank):
    return list(Right.place_of(self, rank))


def only_its_own_line(self, axis):
    return list(Right.lines(self, axis))[:1]


def other_axis(self, axis):
    return Right.lines(self, {"dp": "tp", "tp": "dp"}.get(axis, axis))


def backwards(self, axis):
    return [line[::-1] for line in Right.lines(self, axis)]


def keeps_the_last_group(self, dp, tp, pp):
    self.size = Coordinates(pp, dp, tp)
    self.place = self.place_of(dist.get_rank())
    self.wires = wires(self.lines("pp"))
    self.dp = own_group(self.lines("dp"))
    self.tp = own_group(self.lines("dp"))


def asks_only_for_its_own_group(self, dp, tp, pp):
    """Ranks make different groups, in which each waits for others that never come."""
    self.size = Coordinates(pp, dp, tp)
    self.place = self.place_of(dist.get_rank())
    mine = {
        axis: next(line for line in self.lines(axis) if dist.get_rank() in line)
        for axis in ("pp", "dp", "tp")
    }
    self.wires = Wires(*[dist.new_group(mine["pp"]) for _ in range(3)])
    self.dp, self.tp = dist.new_group(mine["dp"]), dist.new_group(mine["tp"])


def as_a_tuple(self, rank):
    return tuple(Right.place_of(self, rank))


def as_tensors(self, axis):
    return [list(torch.tensor(line)) for line in Right.lines(self, axis)]


def one_line_twice(self, axis):
    lines = Right.lines(self, axis)
    return [lines[0], *lines[:-1]]


def of_this_rank(self, _):
    return Right.place_of(self, dist.get_rank())


def own_line(mesh, axis):
    return next(line for line in mesh.lines(axis) if dist.get_rank() in line)


def _init(fault):
    """An __init__ in which one thing goes wrong."""

    def made(self, dp, tp, pp):
        self.size = Coordinates(pp, dp, tp)
        self.place = self.place_of(dist.get_rank())
        if fault == "a place that is a tuple":
            self.place = tuple(self.place)
        if fault == "no place":
            del self.place
        if fault == "sizes in another order":
            self.size = Coordinates(dp, pp, tp)
        lines = {axis: list(self.lines(axis)) for axis in ("pp", "dp", "tp")}
        if fault == "its own line":
            lines["dp"] = [own_line(self, "dp")]
        if fault == "own line last":
            lines["tp"].sort(key=lambda line: dist.get_rank() in line)
        if fault == "no group for one rank" and dp == 1:
            self.wires, self.dp, self.tp = wires(lines["pp"]), None, own_group(lines["tp"])
            return
        if fault == "last stage first" and self.place.pp == pp - 1:
            self.dp, self.tp, self.wires = own_group(lines["dp"]), own_group(lines["tp"]), None
        self.wires = own_group(lines["pp"]) if fault == "no wires" else wires(lines["pp"])
        self.dp, self.tp = own_group(lines["dp"]), own_group(lines["tp"])
        if fault == "dp and tp exchanged":
            self.dp, self.tp = self.tp, self.dp

    return _mesh(__init__=made)


def by_another_name(self, pp, dp, tp):
    """Its arguments are in the order of the axes, not in that of the exercise."""
    Right.__init__(self, dp, tp, pp)


WRONG = [
    ("stages are neighbours", _mesh(place_of=pp_first), "step 1.*neighbouring ranks differ in pp"),
    ("dp is innermost", _mesh(place_of=dp_inside), "step 1.*neighbouring ranks differ in dp"),
    ("divides by PP", _mesh(place_of=divides_by_the_wrong_size), "step 1.*place_of"),
    ("a list", _mesh(place_of=places_as_a_list), "step 1.*wants Coordinates"),
    ("one line only", _mesh(lines=only_its_own_line), "step 2.*expected one for each rank"),
    ("the other axis", _mesh(lines=other_axis), "step 2"),
    ("backwards", _mesh(lines=backwards), "step 2.*in the order of the axis"),
    ("the wrong group", _mesh(__init__=keeps_the_last_group), "step 3.*its group tp is of ranks"),
    (
        "only its own groups",
        _mesh(__init__=asks_only_for_its_own_group),
        r"step 3.*group \d that rank 0 makes is of ranks \[0",
    ),
    ("a tuple", _mesh(place_of=as_a_tuple), "step 1.*wants Coordinates"),
    ("the place of this rank", _mesh(place_of=of_this_rank), "step 1"),
    ("tensors", _mesh(lines=as_tensors), "step 2.*lists of whole numbers, and has Tensor"),
    ("one line twice", _mesh(lines=one_line_twice), "step 2.*a line twice"),
    ("arguments as axes", _mesh(__init__=by_another_name), "step 3"),
    *[
        (fault, _init(fault), "step 3.*" + words)
        for fault, words in [
            ("a place that is a tuple", "its place wants Coordinates"),
            ("no place", "its place wants Coordinates, got None"),
            ("sizes in another order", "its size|its place"),
            ("its own line", "group .+ that rank 0 makes is of ranks"),
            ("own line last", "group .+ that rank 0 makes is of ranks"),
            ("last stage first", "group . that rank 0 makes is of ranks"),
            ("no group for one rank", "there is no group dp"),
            ("no wires", "there is no group wires.up"),
            ("dp and tp exchanged", "its group dp is of ranks"),
        ]
    ],
]


RIGHT = [("by divisions", _mesh())]
