"""Ways of doing one thing on several ranks: who sends to whom, and how much the busiest sends."""

import math
from collections.abc import Mapping

from course_lib.figures.paper import style
from course_lib.figures.paper.arrow import arrow_lines
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT, Point
from course_lib.theory.network.all_reduce import Way

_NAMES, _RADIUS, _BOX, _GAP = 13.0, 46.0, 15.0, 12.0
_MIDDLE = _NAMES + _RADIUS + 20
_BARS = _MIDDLE + _RADIUS + 28


def who_sends(ways: Mapping[str, Way], unit: str) -> Drawing:
    """Ranks in a circle, an arrow for each that sends to another; the busiest ones are filled.

    Below, on one scale, what one of these sends, in `unit`.
    """
    words = {name: _told(way, unit) for name, way in ways.items()}
    sentence = "; ".join(f"{name}: {text}" for name, text in words.items())
    drawing = Drawing(_BARS + 36, f"{sentence}.")
    width = (WIDTH_PT - _GAP * (len(ways) - 1)) / len(ways)
    most = max(way.most for way in ways.values())
    for place, (name, way) in enumerate(ways.items()):
        left = place * (width + _GAP)
        drawing.write(left + width / 2, _NAMES, name, align="center", bold=True)
        _circle(drawing, way, (left + width / 2, _MIDDLE))
        room = min(width, 120.0)
        start = left + (width - room) / 2
        drawing.boxes([(start, _BARS, room * way.most / most, 12)], style.MESSAGES)
        drawing.write(left + width / 2, _BARS + 27, words[name], 9, "center")
    return drawing


def _circle(drawing: Drawing, way: Way, middle: Point) -> None:
    """Boxes of the ranks, clockwise from the top; a switch stands in the middle."""
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
    """The line between two boxes without what lies below them."""
    away = math.dist(start, end)
    part = min(0.4, 0.72 * _BOX / away)
    across, down = part * (end[0] - start[0]), part * (end[1] - start[1])
    return (start[0] + across, start[1] + down), (end[0] - across, end[1] - down)


def _told(way: Way, unit: str) -> str:
    who = "each" if len(way.busiest) == way.ranks else f"rank {way.busiest[0]}"
    return f"{who} sends {way.most:.4g} {unit}"
