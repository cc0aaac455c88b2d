"""Rows of spans on one scale: who did what when. And what was held meanwhile, below them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from course_lib.figures.engines.page import LEFT, RIGHT, Block, page
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import Box
from course_lib.figures.paper.text import width_pt
from course_lib.theory.inputs.units import format_bytes, format_duration
from course_lib.trace import Event

_NAME, _FOOT, _NUMBER = 18.0, 16.0, 7.5
_SAID = 6  # spans of a row that the sentence names
Rows = Mapping[str, Sequence[Event]]
Told = Callable[[float], str]


class Lanes:
    """{row: events} as a block: a box for each event from `at` to `until`, coloured by `what`.

    `over`: the times of the left and the right edge. `now`: what begins later is an outline, and
    a line marks it. An event's `label` stands in its box where there is room.
    """

    def __init__(
        self,
        rows: Rows,
        *,
        name: str = "",
        over: tuple[float, float] | None = None,
        now: float | None = None,
        high: float = 22.0,
        told: Told = format_duration,
        left: float | None = None,
        foot: bool = True,
    ) -> None:
        self.rows, self.name, self.now, self.high = rows, name, now, high
        self.over, self.told, self.foot = over or span(rows), told, foot
        names = max((width_pt(row, 9) for row in rows), default=0.0) + 8
        self.left = max(left or 0.0, names)
        self.scale = (RIGHT - self.left) / max(self.over[1] - self.over[0], 1e-12)

    @property
    def height_pt(self) -> float:
        """Its name, its rows, and the scale."""
        return _NAME * bool(self.name) + self.high * len(self.rows) + _FOOT * self.foot

    @property
    def words(self) -> Iterable[str]:
        """What is done."""
        return dict.fromkeys(event.what for its in self.rows.values() for event in its)

    @property
    def sentence(self) -> str:
        """The first spans of each row, in words."""
        return "; ".join(
            f"{' '.join(filter(None, (self.name, row)))}: " + self._said(its)
            for row, its in self.rows.items()
        )

    def _said(self, its: Sequence[Event]) -> str:
        first = self.over[0]
        told = [
            f"{' '.join(filter(None, (event.what, event.label)))} "
            f"{self.told(event.at - first)} to {self.told(event.until - first)}"
            for event in its[:_SAID]
        ]
        more = len(its) - _SAID
        return ", ".join(told + [f"and {more} more"] * (more > 0)) or "nothing"

    def draw(self, drawing: Drawing, top: float) -> None:
        """Rows from top to bottom; spans of one look at once."""
        if self.name:
            drawing.write(0, top + 12, self.name, style.TITLE_PT, bold=True)
            top += _NAME
        looks: dict[tuple[str, bool], list[Box]] = {}
        texts: dict[str, list[tuple[float, float, str]]] = {}
        y = top
        for row, its in self.rows.items():
            drawing.write(self.left - 6, y + self.high / 2 + 3.3, row, 9, "right")
            for event in its:
                later = self.now is not None and event.at >= self.now
                box = self._box(event, y)
                looks.setdefault((event.what, later), []).append(box)
                size = 9 if self.high > 14 else _NUMBER
                if event.label and box[2] >= width_pt(event.label, size) + 2 <= 1e6:
                    ink = style.INK if later else style.on(style.meaning(event.what)[0])
                    place = (box[0] + box[2] / 2, y + self.high / 2 + 0.36 * size, event.label)
                    texts.setdefault(ink, []).append(place)
            y += self.high
        drawing.lines([[(self.left, y), (RIGHT, y)]], style.GREY, 0.7)
        for (word, later), boxes in looks.items():
            fill, hatch = (style.WHITE, None) if later else style.meaning(word)
            narrow = max(box[2] for box in boxes) < 4
            edge = style.GREY if later else fill if narrow else style.INK
            drawing.boxes(boxes, fill, hatch, edge, dashed=later)
        for ink, written in texts.items():
            size = 9 if self.high > 14 else _NUMBER
            drawing.write_all(written, size, "center", ink)
        if self.foot:
            drawing.write(self.left, y + 12, self.told(0), 9, colour=style.GREY)
            whole = self.told(self.over[1] - self.over[0])
            drawing.write(RIGHT, y + 12, whole, 9, "right", style.GREY)
        mark(drawing, self, top, y)

    def x(self, time: float) -> float:
        """Where a time lies."""
        return self.left + (time - self.over[0]) * self.scale

    def _box(self, event: Event, y: float) -> Box:
        wide = max(0.5, (event.until - event.at) * self.scale)
        return self.x(event.at), y + 2, wide, self.high - 4


class Levels:
    """{what: [(time, bytes from then on), …]} as a block: levels stacked on one another.

    After `now` they are pale. `most`: the height of the block, in bytes, if not the peak.
    """

    def __init__(
        self,
        levels: Mapping[str, Sequence[tuple[float, float]]],
        *,
        over: tuple[float, float],
        name: str = "",
        now: float | None = None,
        high: float = 64.0,
        left: float = LEFT,
        most: float | None = None,
        told: Callable[[float], str] = format_bytes,
    ) -> None:
        self.levels, self.over, self.name, self.now = levels, over, name, now
        self.high, self.left, self.told = high, left, told
        self.scale = (RIGHT - left) / max(over[1] - over[0], 1e-12)
        times = {time for its in levels.values() for time, _ in its}
        times |= {over[0], over[1]} | ({now} if now is not None else set())
        self.times = sorted(time for time in times if over[0] <= time <= over[1])
        self.sizes = {
            what: [_level(its, time) for time in self.times] for what, its in levels.items()
        }
        self.peak = max((sum(sizes) for sizes in zip(*self.sizes.values(), strict=True)), default=0)
        self.most = most or self.peak or 1.0

    @property
    def height_pt(self) -> float:
        """The levels; their name stands beside them."""
        return self.high + 4

    @property
    def words(self) -> Iterable[str]:
        """What is held."""
        return tuple(self.levels)

    @property
    def sentence(self) -> str:
        """The peak, and what it is now."""
        end = "" if self.now is None else f", now {self.told(self._sum(self.now))}"
        return f"{self.name or 'held'}: at most {self.told(self.peak)}{end}"

    def _sum(self, time: float) -> float:
        return sum(_level(its, time) for its in self.levels.values())

    def x(self, time: float) -> float:
        """Where a time lies."""
        return self.left + (time - self.over[0]) * self.scale

    def draw(self, drawing: Drawing, top: float) -> None:
        """Boxes from the bottom up, from change to change."""
        bottom = top + self.high
        drawing.write(self.left - 6, top + 10, self.name, 9, "right")
        drawing.write(self.left - 6, top + 22, self.told(self.peak), 9, "right", style.GREY)
        drawing.lines([[(self.left, bottom), (RIGHT, bottom)]], style.GREY, 0.7)
        base = [0.0 for _ in self.times]
        later: list[Box] = []
        for what, sizes in self.sizes.items():
            boxes: list[Box] = []
            for place, (time, following) in enumerate(pairwise(self.times)):
                high = self.high * sizes[place] / self.most
                low = self.high * base[place] / self.most
                base[place] += sizes[place]
                box = (self.x(time), bottom - low - high, self.x(following) - self.x(time), high)
                if high > 0:
                    (later if self.now is not None and time >= self.now else boxes).append(box)
            fill, hatch = style.meaning(what)
            drawing.boxes(boxes, fill, hatch, edge=fill)
        drawing.boxes(later, style.PALE, edge=style.PALE)
        mark(drawing, self, top, bottom)


def mark(drawing: Drawing, block: Lanes | Levels, top: float, bottom: float) -> None:
    """The line of now, through a block."""
    if block.now is not None:
        x = block.x(block.now)
        drawing.line([(x, top - 4), (x, bottom + 3)], style.INK, 1.6)


def span(rows: Rows) -> tuple[float, float]:
    """From the first start to the last end. Raises ValueError without any event."""
    events = [event for its in rows.values() for event in its]
    if not events:
        raise ValueError('rows hold nothing: give {"rank 0": [Event(0, 0, "forward", end=1)]}')
    return min(event.at for event in events), max(event.until for event in events)


def lanes(
    charts: Mapping[str, Rows],
    title: str = "",
    *,
    now: float | None = None,
    high: float = 22.0,
    told: Told = format_duration,
    notes: Sequence[str] = (),
) -> Drawing:
    """{chart: {row: events}} below one another on one scale, each from its own beginning.

    Raises ValueError for a chart without events.
    """
    spans = {name: span(rows) for name, rows in charts.items()}
    if not spans:
        raise ValueError('charts is empty: give {"": {"rank 0": [Event(0, 0, "forward", end=1)]}}')
    whole = max(last - first for first, last in spans.values())
    left = max(width_pt(row, 9) for rows in charts.values() for row in rows) + 8
    blocks: list[Block] = [
        Lanes(
            rows,
            name=name,
            over=(spans[name][0], spans[name][0] + whole),
            now=now,
            high=high,
            told=told,
            left=left,
        )
        for name, rows in charts.items()
    ]
    return page(title, *blocks, notes=notes)


def _level(its: Sequence[tuple[float, float]], time: float) -> float:
    return next((size for at, size in reversed(its) if at <= time), 0.0)
