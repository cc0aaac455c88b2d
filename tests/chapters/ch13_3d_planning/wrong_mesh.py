"""Meshes that the check must refuse, as patches of a right one by another hand."""

import torch.distributed as dist

from course_lib.scratch.pipeline_stage import Wires, wires
from course_lib.scratch.three_d import Coordinates, own_group
from tests.checking.builds.patches import versions

__all__ = ["Wires"]  # for a patch


class Mesh:
    """By divisions."""

    def __init__(self, dp, tp, pp):
        self.size = Coordinates(pp, dp, tp)
        self.place = self.place_of(dist.get_rank())
        self.tp, self.dp = own_group(self.lines("tp")), own_group(self.lines("dp"))
        self.wires = wires(self.lines("pp"))

    def place_of(self, rank):
        _, dp, tp = self.size
        return Coordinates(rank // (dp * tp), rank // tp % dp, rank % tp)

    def lines(self, axis):
        found = {}  # ranks whose other two coordinates agree
        for rank in range(self.size.pp * self.size.dp * self.size.tp):
            place = self.place_of(rank)._asdict()
            place.pop(axis)
            found.setdefault(tuple(place.values()), []).append(rank)
        return tuple(map(tuple, found.values()))


RIGHT = [("by divisions", [Mesh])]
WRONG = versions(
    Mesh,
    lambda mesh: [mesh],
    r"""
stages are neighbours
- return Coordinates(rank // (dp * tp), rank // tp % dp, rank % tp)
+ pp = self.size.pp
+ return Coordinates(rank % pp, rank // pp % dp, rank // pp // dp)
? 1 neighbouring ranks differ in pp
dp is innermost
+ return Coordinates(rank // dp // tp, rank % dp, rank // dp % tp)
? 1 neighbouring ranks differ in dp
divides by PP
+ pp = self.size.pp
+ return Coordinates(rank // tp // pp, rank // tp % pp, rank % tp)
? 1 place_of
a list
+ return [rank // (dp * tp), rank // tp % dp, rank % tp]
? 1 wants a Coordinates
one line only
- return tuple(map(tuple, found.values()))
+ return list(found.values())[:1]
? 2 expected one for each rank
backwards
+ return [line[::-1] for line in found.values()]
? 2 in the order of the axis
tensors
+ return [list(torch.tensor(line)) for line in found.values()]
? 2 a list of whole numbers, and has Tensor
one line twice
+ return [*list(found.values())[:1], *list(found.values())[:-1]]
? 2 a line twice
the other axis
- place.pop(axis)
+ place.pop({"dp": "tp", "tp": "dp"}.get(axis, axis))
? 2
the wrong group
- self.tp, self.dp = own_group(self.lines("tp")), own_group(self.lines("dp"))
+ self.tp, self.dp = own_group(self.lines("dp")), own_group(self.lines("dp"))
? 3 its group tp is of ranks
no group for one rank
+ self.tp = own_group(self.lines("tp"))
+ self.dp = own_group(self.lines("dp")) if dp > 1 else None
? 3 there is no group dp
only its own groups
- self.tp, self.dp = own_group(self.lines("tp")), own_group(self.lines("dp"))
- self.wires = wires(self.lines("pp"))
+ rank = dist.get_rank()
+ own = [next(x for x in self.lines(axis) if rank in x) for axis in ("pp", "dp", "tp")]
+ self.wires = Wires(*[dist.new_group(own[0]) for _ in range(3)])
+ self.dp, self.tp = dist.new_group(own[1]), dist.new_group(own[2])
? 3 group \d that rank 0 makes is of ranks \[0
a place that is a tuple
- self.place = self.place_of(dist.get_rank())
+ self.place = tuple(self.place_of(dist.get_rank()))
? 3 its place wants Coordinates
sizes in another order
- self.tp, self.dp
+ self.size = Coordinates(dp, pp, tp)
+ self.tp, self.dp
? 3 (its size|its place)
no wires
- self.wires = wires(self.lines("pp"))
+ self.wires = own_group(self.lines("pp"))
? 3 there is no group wires.up
""",
)
