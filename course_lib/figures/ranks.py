"""Figures of ranks: meshes and groups, shards, messages and pipeline timelines."""

import math
from collections.abc import Iterator, Mapping, Sequence

from course_lib.figures.engines.bars import stacked_bars
from course_lib.figures.engines.cells import Cell, Cells, cells
from course_lib.figures.engines.lanes import Lanes, lanes
from course_lib.figures.engines.page import page
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import (
    WIDTH_PT,
    Drawing,
    Point,
    arrow_lines,
    counted,
    width_pt,
)
from course_lib.theory.inputs.units import format_bytes, format_duration, format_number
from course_lib.theory.memory.unit_life import COMPUTES
from course_lib.theory.network.all_reduce import Way
from course_lib.theory.network.zero import shard
from course_lib.theory.pipelines.simulation import Task
from course_lib.trace import Event

# --- Ranks on nodes and meshes, and their groups --------------------------------------------------

_AXES = ("tp", "dp", "pp")


def rank_groups(groups: Mapping[str, Sequence[int]], ranks: int, per_node: int) -> Drawing:
    """Draw a row per node and a box per rank, coloured by group.

    `groups`: {"tp": [12, 13, 14, 15], …}, with exactly one rank in common, which is framed.
    """
    (me,) = set.intersection(*map(set, groups.values()))
    grid: dict[str, dict[str, Cell]] = {}
    for rank in range(ranks):
        node, column = divmod(rank, per_node)
        grid.setdefault(f"node {node}", {})[str(column)] = _rank(rank, me, groups)
    return cells(grid, f"Rank {me} of {ranks} and its groups", heads=False, high=26.0)


def rank_mesh(
    places: Sequence[Mapping[str, int]], sent: Mapping[str, Sequence[int]] | None = None
) -> Drawing:
    """Draw one box per rank: pipeline stages side by side, replicas below each other.

    The groups of rank 0 are coloured. `places[rank]` has the coordinates pp, dp and tp; `sent` has
    the calls and bytes of rank 0 by "axis operation", as in a demo's `Version`.
    """
    groups = {
        axis: [
            rank
            for rank, one in enumerate(places)
            if all(one[other] == places[0][other] for other in _AXES if other != axis)
        ]
        for axis in _AXES
    }
    grid: dict[str, dict[str, Cell]] = {}
    for rank, at in enumerate(places):
        row = grid.setdefault(f"replica {at['dp']}", {})
        row[f"stage {at['pp']}\ntp {at['tp']}"] = _rank(rank, 0, groups)
    steps = {axis: its[1] for axis, its in groups.items() if len(its) > 1}
    notes = [", ".join(f"along {axis}: + {step}" for axis, step in steps.items())] * bool(steps)
    for what, (calls, size) in (sent or {}).items():
        notes.append(f"rank 0, each update: {calls:,} × {what}, {size:,} B in all")
    sizes = " × ".join(f"{axis} {1 + max(one[axis] for one in places)}" for axis in _AXES[::-1])
    return cells(grid, f"{counted(len(places), 'rank')}: {sizes}", notes=notes, high=26.0)


def _rank(rank: int, me: int, groups: Mapping[str, Sequence[int]]) -> Cell:
    if rank == me:
        return Cell(str(rank), frame="now", bold=True)
    axis = next((axis for axis, its in groups.items() if rank in its), "")
    return Cell(str(rank), {0: f"{axis} group of rank {me}" if axis else "others"})


# --- who sends ------------------------------------------------------------------------------------
# Alternative algorithms: which ranks send to which, and how much the busiest one sends.


_NAMES, _RADIUS, _BOX, _GAP = 13.0, 46.0, 15.0, 12.0
_MIDDLE = _NAMES + _RADIUS + 20
_BARS = _MIDDLE + _RADIUS + 28


def who_sends(ways: Mapping[str, Way], unit: str) -> Drawing:
    """Draw ranks in a circle, with an arrow per sender and receiver; the busiest are filled.

    A bar below each circle shows, on one scale, how much a busiest rank sends, in `unit`.
    """
    words = {name: _label(way, unit) for name, way in ways.items()}
    sentence = "; ".join(f"{name}: {text}" for name, text in words.items())
    drawing = Drawing(_BARS + 36, f"{sentence}.")
    width = (WIDTH_PT - _GAP * (len(ways) - 1)) / len(ways)
    most = max(way.most for way in ways.values())
    for index, (name, way) in enumerate(ways.items()):
        left = index * (width + _GAP)
        drawing.write(left + width / 2, _NAMES, name, align="center", bold=True)
        _circle(drawing, way, (left + width / 2, _MIDDLE))
        room = min(width, 120.0)
        start = left + (width - room) / 2
        drawing.boxes([(start, _BARS, room * way.most / most, 12)], style.MESSAGES)
        drawing.write(left + width / 2, _BARS + 27, words[name], 9, "center")
    return drawing


def _circle(drawing: Drawing, way: Way, middle: Point) -> None:
    """Draw the ranks clockwise from the top, with a switch in the centre if there is one."""
    turns = [2 * math.pi * rank / way.ranks - math.pi / 2 for rank in range(way.ranks)]
    places = {
        rank: (middle[0] + _RADIUS * math.cos(turn), middle[1] + _RADIUS * math.sin(turn))
        for rank, turn in enumerate(turns)
    }
    switched = any(rank not in places for pair in way.sent for rank in pair)
    arrows = [
        _shortened(places.get(sender, middle), places.get(receiver, middle))
        for sender, receiver in way.sent
    ]
    drawing.lines([line for ends in arrows for line in arrow_lines(*ends)], style.MESSAGES, 1.2)
    half = _BOX / 2
    for fill in (style.MESSAGES, style.WHITE):
        chosen = [rank for rank in places if (rank in way.busiest) == (fill == style.MESSAGES)]
        boxes = [(places[r][0] - half, places[r][1] - half, _BOX, _BOX) for r in chosen]
        drawing.boxes(boxes, fill)
        texts = [(places[r][0], places[r][1] + 3.2, str(r)) for r in chosen]
        if texts:
            drawing.write_all(texts, size=9, align="center", colour=style.on(fill))
    if switched:
        x, y = middle
        drawing.boxes([(x - 12, y - half, 24, _BOX)], style.PALE)
        drawing.write(x, y + 3.2, "adds", 7.5, "center")


def _shortened(start: Point, end: Point) -> tuple[Point, Point]:
    """The line between the centres of two boxes, shortened to their edges."""
    away = math.dist(start, end)
    part = min(0.4, 0.72 * _BOX / away)
    across, down = part * (end[0] - start[0]), part * (end[1] - start[1])
    return (start[0] + across, start[1] + down), (end[0] - across, end[1] - down)


def _label(way: Way, unit: str) -> str:
    who = "each" if len(way.busiest) == way.ranks else f"rank {way.busiest[0]}"
    return f"{who} sends {way.most:.4g} {unit}"


# --- Processes with different roles, and the calls between them -----------------------------------

_TOP, _HEAD, _ROW, _SIZE = 24.0, 32.0, 22.0, 9.0
Call = tuple[str, str, str]  # from, to, what goes


def who_asks_whom(processes: Mapping[str, str], calls: Sequence[Call], title: str = "") -> Drawing:
    """Draw a sequence diagram: {process: what it holds}, and the calls, earliest on top.

    The arrow of an "all-reduce" has two heads.
    """
    said = "; ".join(f"{first} to {second}: {what}" for first, second, what in calls)
    head = f"{title} ({len(processes)} in all: {', '.join(processes)})"
    bottom = _TOP + _HEAD + _ROW * len(calls) + 8
    drawing = Drawing(bottom, f"{head}. {said}.")
    drawing.title(title)
    pitch = WIDTH_PT / len(processes)
    x = {name: pitch * (place + 0.5) for place, name in enumerate(processes)}
    drawing.lines([[(at, _TOP + _HEAD), (at, bottom)] for at in x.values()], style.GREY, 0.7)
    boxes = [(at - pitch / 2 + 6, _TOP, pitch - 12, _HEAD) for at in x.values()]
    drawing.boxes(boxes, style.PALE, edge=style.GREY)
    drawing.write_all([(x[name], _TOP + 13, name) for name in processes], 10, "center", bold=True)
    holds = [(x[name], _TOP + 26, held) for name, held in processes.items()]
    drawing.write_all(holds, _SIZE, "center")
    lines, words, grounds = [], [], []
    for row, (first, second, what) in enumerate(calls, 1):
        y, start, end = _TOP + _HEAD + _ROW * row, x[first], x[second]
        step = 2 if end > start else -2
        lines += arrow_lines((start + step, y), (end - step, y))
        if what == "all-reduce":
            lines += arrow_lines((end - step, y), (start + step, y))
        wide = width_pt(what, _SIZE)
        words.append(((start + end) / 2, y - 4, what))
        grounds.append(((start + end - wide) / 2, y - 13, wide, 12.0))
    drawing.boxes(grounds, style.WHITE, edge=style.WHITE)
    drawing.lines(lines, style.MESSAGES, 1.8)
    drawing.write_all(words, _SIZE, "center")
    return drawing


# --- A flat vector sharded over ranks -------------------------------------------------------------


class _Cut(Cells):
    """A first row that spans all columns, with a thick line at each column boundary."""

    def draw(self, drawing: Drawing, top: float) -> None:
        super().draw(drawing, top)
        first, last = self.columns[0], self.columns[-1]
        left, right = self.x[first], self.x[last] + self.width[last]
        low = top + self.height_pt - 2 * self._row_height("kept")
        ends = low - 4, low + self.high["the vector"] + 4
        parts = len(self.columns)
        cuts = [left + (right - left) * part / parts for part in range(1, parts)]
        drawing.lines([[(x, y) for y in ends] for x in cuts], style.INK, 2.5)


def cut_unit(tensors: Mapping[str, int], ranks: int) -> Drawing:
    """Draw `tensors` ({name: elements}) concatenated, zero-padded and split over ranks.

    Above: the vector. Below: the shard that each rank keeps.
    """
    names = [name for name, count in tensors.items() for _ in range(count)]
    parts = [shard(len(names), ranks, rank) for rank in range(ranks)]
    names += ["padding"] * sum(part.zeros for part in parts)
    looks = style.looks([*tensors])

    def kept(start: int, stop: int, wide: int = 1) -> Cell:
        filled = dict(enumerate(names[start:stop]))
        zeros = {slot: "0" for slot, name in filled.items() if name == "padding"}
        return Cell("", filled, stop - start, texts=zeros, wide=wide)

    size = len(names) // ranks
    shards = {f"rank {rank}": kept(rank * size, (rank + 1) * size) for rank in range(ranks)}
    grid = {"the vector": {"rank 0": kept(0, len(names), ranks)}, "kept": shards}
    title = f"A unit of {sum(tensors.values())} numbers, cut over {counted(ranks, 'rank')}"
    each = ", ".join(f"{count} of {name}" for name, count in tensors.items())
    zeros = names.count("padding")
    said = f"{each}) and {zeros} of padding, cut into {counted(ranks, 'part')} of {size}"
    vector = _Cut(grid, lined=True, gap=8, between=10, looks=looks, said=f"One vector ({said}")
    return page(title, vector)


# --- zero -----------------------------------------------------------------------------------------
# ZeRO: bytes stored and sent by each version of a run.


def stored_by_version(
    stored: Mapping[str, Mapping[str, int]], sent_bytes: Mapping[str, float], title: str = ""
) -> Drawing:
    """Draw a stacked bar of stored bytes per version, labelled with the bytes sent per update.

    `stored[version]` has bytes by kind: `weights`, `gradients` and `optimizer`.
    """
    totals = {
        name: f"{format_bytes(sum(kinds.values()))} stored, {format_bytes(sent_bytes[name])} sent"
        for name, kinds in stored.items()
    }
    return stacked_bars(stored, title, format_bytes, totals)


# --- Computing and messages of an FSDP rank over a step -------------------------------------------


def two_lanes(charts: Mapping[str, Sequence[Event]]) -> Drawing:
    """Draw the computing and message lanes of {"predicted": tasks, "measured": tasks}.

    The charts share one time scale. The number in a bar is its unit; 0 is the root.
    """
    rows: dict[str, dict[str, list[Event]]] = {}
    for name, tasks in charts.items():
        rows[name] = {"computing": [], "messages": []}
        for task in tasks:
            if task.until > task.at:
                rows[name]["computing" if task.what in COMPUTES else "messages"].append(task)
    return lanes(rows)


# --- Pipeline timelines: one row per stage, one box per pass --------------------------------------

_ROWS_HEIGHT, _ROW_LEAST, _NUMBER_PT = 190, 5, 7.5  # heights: all rows together, smallest row
# The kinds of pass of theory.pipelines.schedules.
_WORDS = {"F": "forward", "B": "backward", "I": "input's gradient", "W": "weights' gradient"}


def timeline(charts: Mapping[str, Sequence[Task]], seconds: bool = True) -> Drawing:
    """Draw pipeline timelines {"predicted": tasks, "measured": tasks} on one time scale.

    Time starts at 0, in seconds or, if not `seconds`, in any unit. The number in a box, where
    there is room, is its micro-batch.
    """
    longest = max(task.end for tasks in charts.values() for task in tasks)
    room = _ROWS_HEIGHT / len(charts)
    blocks = [_chart(name, tasks, longest, room, seconds) for name, tasks in charts.items()]
    found = {word for block in blocks for word in block.words}
    notes = ["numbers: micro-batches"] * any(block.numbered for block in blocks)
    notes += ["lighter: a later chunk"] * any(word.startswith("later ") for word in found)
    shown = [word for word in _WORDS.values() if {word, f"later {word}"} & found]
    return page("", *blocks, key=shown, notes=["; ".join(notes)])


def _chart(name: str, tasks: Sequence[Task], longest: float, room: float, seconds: bool) -> Lanes:
    stages = 1 + max(task.stage for task in tasks)
    rows: dict[str, list[Event]] = {f"stage {stage}": [] for stage in range(stages)}
    for task in tasks:
        rows[f"stage {task.stage}"] += _events(task)
    end = max(task.end for task in tasks)
    numbers = {event.label for its in rows.values() for event in its}
    format_time = format_duration if seconds else lambda time: format_number(time, 4)
    sizes = f"{counted(stages, 'stage')}, {counted(len(numbers), 'micro-batch')}"
    return Lanes(
        rows,
        name=name,
        over=(0.0, longest),
        high=max(_ROW_LEAST, room / stages),
        label_pt=_NUMBER_PT,
        told=format_time,
        ground=True,
        sentence=f"{name}: {sizes}, from 0 to {format_time(end)}",
    )


def _events(task: Task) -> Iterator[Event]:
    """The event of a task, or the two of an "F&B"; later chunks are lighter."""
    other = task.backward
    for half, kind in ((task, "F"), (other, other.kind)) if other else ((task, task.kind),):
        word = ("later " if half.chunk else "") + _WORDS[kind]
        yield Event(task.start, task.stage, word, end=task.end, label=str(half.micro_batch))
