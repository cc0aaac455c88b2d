"""One kind of message of an update on a mesh: which groups talk, and what is sent so far."""

from collections.abc import Sequence
from itertools import pairwise

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT, Box, Point
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.network.mesh import place
from course_lib.theory.network.who_talks import Talk

_LEFT, _TOP, _BETWEEN, _GRID = 6.0, 64.0, 20.0, 168.0
_WIDE_MOST, _HIGH_MOST, _RISE = 44.0, 24.0, 5.0  # a rank, and how far tp neighbours climb
_NUMBER_PT, _BAR_LEFT, _BAR_WIDTH, _ROW = 7.5, 74.0, 300.0, 18.0
_WORDS = {
    "tp": "tensor (tp)",
    "cp": "context (cp)",
    "ep": "expert (ep)",
    "dp": "data (dp)",
    "pp": "pipeline (pp)",
}


def mesh_step(job: Job, talks: Sequence[Talk], step: int, rank: int = 0) -> Drawing:
    """Every rank of the job as a box, stages side by side; talks[step] connects its groups.

    The group of `rank` is filled. Solid lines stay in a node, dashed ones cross the network. Below:
    the bytes that `rank` has sent along each axis, this message included.
    """
    talk = talks[step]
    grid = _Grid(job)
    axes = list(dict.fromkeys(one.message.axis for one in talks))
    bottom = _TOP + grid.height + 26
    drawing = Drawing(bottom + 22 + _ROW * len(axes), _sentence(job, talk, rank))
    _heading(drawing, job, talk, grid)
    _nodes(drawing, job, grid)
    in_a_row = talk.message.axis in ("tp", "pp")
    if in_a_row:  # behind the ranks, seen between them
        _groups(drawing, talk, grid, rank)
    _ranks(drawing, job, talk, grid, rank)
    if not in_a_row:
        _groups(drawing, talk, grid, rank)
    _numbers(drawing, job, talk, grid)
    _bars(drawing, talks, step, axes, bottom)
    return drawing


class _Grid:
    """Where ranks stand: a column of rows for each stage, whose tp ranks climb to the right."""

    def __init__(self, job: Job) -> None:
        self._layout = layout = job.layout
        rows = layout.dp * layout.cp
        room = WIDTH_PT - 2 * _LEFT - (layout.pp - 1) * _BETWEEN
        self.step = min(_WIDE_MOST + 30, room / (layout.pp * layout.tp))
        self.wide = min(_WIDE_MOST, 0.85 * self.step)
        self.rise = _RISE if layout.tp <= 4 else _RISE / 2
        climb = self.rise * (layout.tp - 1)
        self.row = min(_HIGH_MOST + 16, (_GRID - climb) / rows)
        self.high = min(_HIGH_MOST, self.row - 4)
        self.height = rows * self.row + climb
        self._climb = climb
        self._stage = (WIDTH_PT - 2 * _LEFT + _BETWEEN) / layout.pp

    def box(self, rank: int) -> Box:
        """The box of a rank."""
        at = place(self._layout, rank)
        row = at["dp"] * self._layout.cp + at["cp"]
        x = _LEFT + at["pp"] * self._stage + at["tp"] * self.step
        y = _TOP + self._climb + row * self.row - at["tp"] * self.rise
        return x, y, self.wide, self.high

    def middle(self, rank: int) -> Point:
        """The middle of a rank's box."""
        x, y, wide, high = self.box(rank)
        return x + wide / 2, y + high / 2

    def path(self, axis: str, group: Sequence[int]) -> list[Point]:
        """From member to member, beside the numbers; groups of one column lie side by side."""
        boxes = [self.box(rank) for rank in group]
        if axis in ("tp", "pp"):
            return [(x + wide / 2, y + high / 2) for x, y, wide, high in boxes]
        first = place(self._layout, group[0])
        shift = 4.0 * first["dp"] if axis == "dp" else 0.0
        return [(x + 4 + shift, y + high / 2) for x, y, wide, high in boxes]

    def stage_left(self, stage: int) -> float:
        """The left edge of a stage."""
        return _LEFT + stage * self._stage


def in_words(what: str) -> str:
    """The name of a message for a reader: embedding and head are the ends of the model."""
    return what.replace("of ends", "of embedding and head")


def _sentence(job: Job, talk: Talk, rank: int) -> str:
    message, layout = talk.message, job.layout
    where = "inside a node" if talk.nodes == 1 else f"over {talk.nodes} nodes"
    return (
        f"{layout.world} ranks, tp {layout.tp} × cp {layout.cp} × dp {layout.dp} × pp {layout.pp}: "
        f"{message.axis}, {message.what}: rank {rank} with {', '.join(map(str, talk.group))}, "
        f"{where}, {message.count} × {format_bytes(message.sent_bytes)}."
    )


def _heading(drawing: Drawing, job: Job, talk: Talk, grid: _Grid) -> None:
    message = talk.message
    title = f"{_WORDS[message.axis]}: {message.operation} of {in_words(message.what)}"
    drawing.title(title)
    wire = "inside a node" if talk.nodes == 1 else "over the network"
    told = f"{message.count} × {format_bytes(message.sent_bytes)} from each GPU, {wire}"
    drawing.write(0, 29, told)
    for stage in range(job.layout.pp):
        x = grid.stage_left(stage)
        drawing.write(x, _TOP - 12, f"stage {stage}", size=9, colour=style.GREY)


def _nodes(drawing: Drawing, job: Job, grid: _Grid) -> None:
    """An outline around the ranks of each node that lies in one stage."""
    per_node, stage = job.cluster.gpus_per_node, job.layout.world // job.layout.pp
    if stage % per_node:
        return
    outlines = []
    for first in range(0, job.layout.world, per_node):
        tops = [grid.box(rank) for rank in (first, first + job.layout.tp - 1)]
        bottoms = [grid.box(first + per_node - 1), grid.box(first + per_node - job.layout.tp)]
        (left, left_y, *_), (right, right_y, *_) = tops
        (_, low_right, *_), (_, low_left, *_) = bottoms
        right, high = right + grid.wide + 3, grid.high + 2
        corners = [(left - 3, left_y - 2), (right, right_y - 2)]
        corners += [(right, low_right + high), (left - 3, low_left + high)]
        outlines.append([*corners, corners[0]])
    drawing.lines(outlines, style.GREY, 0.8)


def _groups(drawing: Drawing, talk: Talk, grid: _Grid, rank: int) -> None:
    """A line through each group; that of the rank is thick, and drawn last."""
    axis, far = talk.message.axis, talk.nodes > 1
    others = [grid.path(axis, group) for group in talk.groups if rank not in group]
    own = grid.path(axis, talk.group)
    drawing.lines(others, style.AXES[axis], 1.4, far)
    drawing.lines([own], style.AXES[axis], 3.5, far)
    if talk.message.operation == "send-recv" and axis == "pp":
        drawing.lines(_arrows(own, back=talk.message.kind == "gradients"), style.AXES[axis], 2)


def _arrows(path: Sequence[Point], *, back: bool) -> list[list[Point]]:
    """A head in the middle of each hop."""
    sign = -1 if back else 1
    tips = [((x + end) / 2 + 6, y) for (x, y), (end, _) in pairwise(path)]
    return [[(x - 5 * sign, y - 5), (x, y), (x - 5 * sign, y + 5)] for x, y in tips]


def _ranks(drawing: Drawing, job: Job, talk: Talk, grid: _Grid, rank: int) -> None:
    ranks = range(job.layout.world)
    rest = [grid.box(other) for other in ranks if other not in talk.group]
    drawing.boxes(rest, style.WHITE, edge=style.GREY)
    drawing.boxes([grid.box(other) for other in talk.group], style.AXES[talk.message.axis])
    x, y, wide, high = grid.box(rank)
    frame = [(x, y), (x + wide, y), (x + wide, y + high), (x, y + high), (x, y)]
    drawing.line(frame, style.INK, 2)


def _numbers(drawing: Drawing, job: Job, talk: Talk, grid: _Grid) -> None:
    """The ranks' numbers, where boxes are wide enough for them."""
    if grid.wide < 0.66 * _NUMBER_PT * len(str(job.layout.world - 1)):
        return
    for inside in (False, True):
        fill = style.AXES[talk.message.axis] if inside else style.WHITE
        texts = [
            (grid.middle(rank)[0], grid.middle(rank)[1] + 2.7, str(rank))
            for rank in range(job.layout.world)
            if (rank in talk.group) == inside
        ]
        drawing.write_all(texts, size=_NUMBER_PT, align="center", colour=style.on(fill))


def _bars(
    drawing: Drawing, talks: Sequence[Talk], step: int, axes: Sequence[str], top: float
) -> None:
    """Bytes of one GPU in an update by axis: sent so far filled, what is to come in outline."""
    drawing.write(0, top + 8, "sent by this GPU in one update", size=9, colour=style.GREY)
    whole = {axis: _bytes(talks, axis) for axis in axes}
    scale = _BAR_WIDTH / max(whole.values())
    for row, axis in enumerate(axes):
        y = top + 16 + row * _ROW
        sent = _bytes(talks[: step + 1], axis)
        drawing.write(0, y + 10, _WORDS[axis], size=9)
        drawing.boxes([(_BAR_LEFT, y, whole[axis] * scale, 12)], style.WHITE, edge=style.GREY)
        drawing.boxes([(_BAR_LEFT, y, sent * scale, 12)] if sent else [], style.AXES[axis])
        text = f"{format_bytes(sent)} of {format_bytes(whole[axis])}"
        drawing.write(_BAR_LEFT + whole[axis] * scale + 6, y + 10, text, size=9)


def _bytes(talks: Sequence[Talk], axis: str) -> float:
    return sum(talk.message.total_bytes for talk in talks if talk.message.axis == axis)
