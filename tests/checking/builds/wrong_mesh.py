"""Meshes that the check must refuse: (what was thought, answer, words of the refusal)."""

import torch.distributed as dist

from course_lib.scratch import three_d
from course_lib.scratch.pipeline.stage import Wires, wires
from course_lib.scratch.three_d import Coordinates, own_group


def _mesh(**methods):
    return [type("Mesh", (three_d.Mesh,), methods)]


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
    return list(three_d.Mesh.place_of(self, rank))


def only_its_own_line(self, axis):
    return three_d.Mesh.lines(self, axis)[:1]


def other_axis(self, axis):
    return three_d.Mesh.lines(self, {"dp": "tp", "tp": "dp"}.get(axis, axis))


def backwards(self, axis):
    return [line[::-1] for line in three_d.Mesh.lines(self, axis)]


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


WRONG = [
    ("stages are neighbours", _mesh(place_of=pp_first), "step 1.*neighbouring ranks differ in pp"),
    ("dp is innermost", _mesh(place_of=dp_inside), "step 1.*neighbouring ranks differ in dp"),
    ("divides by PP", _mesh(place_of=divides_by_the_wrong_size), "step 1.*place_of"),
    ("a list", _mesh(place_of=places_as_a_list), "step 1.*wants Coordinates"),
    ("one line only", _mesh(lines=only_its_own_line), "step 2.*expected one for each rank"),
    ("the other axis", _mesh(lines=other_axis), "step 2"),
    ("backwards", _mesh(lines=backwards), "step 2.*in the order of the axis"),
    ("the wrong group", _mesh(__init__=keeps_the_last_group), "step 3.*its group tp is of ranks"),
    ("only its own groups", _mesh(__init__=asks_only_for_its_own_group), "step 3"),
]


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


RIGHT = [("by divisions", _mesh(place_of=by_divisions, lines=by_places))]
