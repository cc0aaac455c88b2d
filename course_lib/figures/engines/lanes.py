"""Timelines: rows of spans on one time scale, and levels (such as memory) below them."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

from course_lib.figures.engines.lines import even
from course_lib.figures.engines.page import LEFT, RIGHT, Timed, page
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Box, Drawing, arrow_lines, counted, joined, width_pt
from course_lib.theory.inputs.units import format_bytes, format_duration
from course_lib.trace import Event

_NAME, _FOOT, _MARK, _SMALL_PT = 18.0, 16.0, 13.0, 7.5
_NAME_ROOM = 11.0  # of lower rows, only some are named
_TALL = 100.0  # minimum height of levels with a scale
_NARROW = 4.0  # narrower boxes have no outline, which would hide their colour
_NUMBER_GAP = 1.8  # between numbers in adjacent boxes, so that they don't read as one
_SAID = 6  # the most rows, and spans of a row, that the sentence lists
Rows = Mapping[str, Sequence[Event]]
Span = Event | tuple[str, float, float] | tuple[str, float, float, str]
Told = Callable[[float], str]
Place = tuple[str, float]  # row, time


class _Bar(NamedTuple):
    box: Box
    label: str


class Lanes(Timed):
    """A block that draws {row: events}: a box from `at` to `until`, coloured by `what`.

    `over`: the times of the left and right edges. `now`: a line marks it, and later events are
    outlines. Simultaneous events of one row share its height. An event's `label` is written in its
    box if there is room; numeric labels appear in all boxes of a kind, in every fourth, or in none.
    `ground`: shade time without events. `marks`: {label: time}, dashed lines through all rows.
    `gap`: between rows, by default small. `arrows`: ((row, time), (row, time), word), behind the
    boxes, in the colour of the word. `sentence`: replaces the generated description.
    """

    mark = ink = style.INK  # colours of mark lines and of their labels

    def __init__(
        self,
        rows: Rows,
        *,
        name: str = "",
        over: tuple[float, float] | None = None,
        now: float | None = None,
        high: float = 22.0,
        label_pt: float = 9.0,
        told: Told = format_duration,
        ground: bool = False,
        marks: Mapping[str, float] | None = None,
        arrows: Sequence[tuple[Place, Place, str]] = (),
        gap: float | None = None,
        foot: bool = True,
        sentence: str = "",
    ) -> None:
        names = max((width_pt(row, 9) for row in rows), default=0.0) + 8
        super().__init__(over or span(rows), now, max(LEFT, names))
        self.rows, self.name, self.high, self.told = rows, name, high, told
        self.ground, self.marks, self.foot = ground, marks or {}, foot
        self.arrows = arrows
        self.pad = (2 if ground or high < 12 else 4) / 2 if gap is None else gap / 2
        self.end = max((e.until for its in rows.values() for e in its), default=self.over[1])
        self.told_in_short = sentence
        self.size = label_pt if high > 14 else min(label_pt, _SMALL_PT)

    @property
    def height_pt(self) -> float:
        """Height of name, rows, scale and mark labels."""
        head = _NAME * bool(self.name) + _MARK * len(self.marks)
        return head + self.high * len(self.rows) + _FOOT * self.foot

    @property
    def numbered(self) -> bool:
        """Whether any box has a visible label."""
        looks = self._looks(dict.fromkeys(self.rows, 0.0)).values()
        return any(self._labelled(bars, _widest(looks)) for bars in looks)

    @property
    def words(self) -> Iterable[str]:
        """The kinds of events."""
        return dict.fromkeys(event.what for its in self.rows.values() for event in its)

    @property
    def sentence(self) -> str:
        """A description of the rows; a row with many spans only has their sums."""
        if self.told_in_short:
            return self.told_in_short
        rows, first = list(self.rows.items()), self.over[0]
        said = [f"{row}: {self._said(its)}" for row, its in rows[:_SAID]]
        said += [f"and {counted(len(rows) - _SAID, 'more row')}"] * (len(rows) > _SAID)
        said += [f"{words} at {self.told(at - first)}" for words, at in self.marks.items()]
        return f"{self.name or 'in all'}, {self.told(self.end - first)}: {'; '.join(said)}"

    def _said(self, its: Sequence[Event]) -> str:
        if len(its) <= _SAID:
            spans = [
                f"{' '.join(filter(None, (event.what, event.label)))} "
                f"{self.told(event.at - self.over[0])} to {self.told(event.until - self.over[0])}"
                for event in its
            ]
            return ", ".join(spans) or "nothing"
        sums: dict[str, list[float]] = {}
        for event in its:
            sums.setdefault(event.what, []).append(event.until - event.at)
        return ", ".join(f"{len(all_)} {what} in {self.told(sum(all_))}"
                         for what, all_ in sums.items())  # fmt: skip

    def draw(self, drawing: Drawing, top: float) -> None:
        """Draw rows from top to bottom, and spans grouped by look."""
        if self.name:
            drawing.write(0, top + 12, self.name, style.TITLE_PT, bold=True)
            top += _NAME
        top = self._marks(drawing, top)
        y = {row: top + place * self.high for place, row in enumerate(self.rows)}
        bottom = top + self.high * len(y)
        named = list(y.items())[:: math.ceil(_NAME_ROOM / self.high)]
        names = [(self.left - 6, at + self.high / 2 + 3.3, row) for row, at in named]
        drawing.write_all(names, 9, "right")
        if self.ground:
            whole = (self.left, top, self.x(self.end) - self.left, bottom - top)
            drawing.boxes([whole], style.IDLE, edge=style.GREY)
        else:
            drawing.lines([[(self.left, bottom), (RIGHT, bottom)]], style.GREY, 0.7)
        for (row, start), (to, end), word in self.arrows:
            down = y[to] > y[row]
            side = 2.5 if down else -2.5  # so that opposite arrows do not overlap
            edges = (self.high - self.pad, self.pad)[:: 1 if down else -1]
            first, last = self.x(start) + side, self.x(end) + side
            ends = (first, y[row] + edges[0]), (last, y[to] + edges[1])
            drawing.lines(arrow_lines(*ends), style.meaning(word)[0], 1)
        looks = self._looks(y)
        for (word, later), bars in looks.items():
            self._bars(drawing, word, later, bars)
            texts = [
                (box[0] + box[2] / 2, box[1] + box[3] / 2 + 0.36 * self.size, label)
                for box, label in self._labelled(bars, _widest(looks.values()))
            ]
            if texts:
                ink = style.GREY if later else style.on(style.meaning(word)[0])
                drawing.write_all(texts, self.size, "center", ink)
        if self.foot:
            self._foot(drawing, bottom + 12)
        self.cursor(drawing, top, bottom)

    def _looks(self, y: Mapping[str, float]) -> Mapping[tuple[str, bool], list[_Bar]]:
        """Bars grouped by look: (word, whether they begin after `now`)."""
        looks: dict[tuple[str, bool], list[_Bar]] = {}
        for row, its in self.rows.items():
            together: dict[tuple[float, float], list[Event]] = {}
            for event in its:
                together.setdefault((event.at, event.until), []).append(event)
            for (start, end), events in together.items():
                wide, high = (end - start) * self.scale, (self.high - 2 * self.pad) / len(events)
                for place, event in enumerate(events):
                    box = self.x(start), y[row] + self.pad + place * high, max(0.5, wide), high
                    bars = looks.setdefault((event.what, self.later(start)), [])
                    bars.append(_Bar(box, event.label))
        return looks

    def _bars(self, drawing: Drawing, word: str, later: bool, bars: Sequence[_Bar]) -> None:
        fill, hatch = (style.WHITE, None) if later else style.meaning(word)
        boxes = [bar.box for bar in bars]
        if _width(bars) < _NARROW:
            edge = style.GREY if later else fill
            boxes = list(joined(boxes))
        else:
            edge = style.GREY if later else style.INK
        drawing.boxes(boxes, fill, hatch, edge, dashed=later or fill == style.WHITE)

    def _labelled(self, bars: Sequence[_Bar], widest: float) -> list[_Bar]:
        """Bars with labels that fit; numbers in all boxes, or every fourth of the widest kind."""
        bars = [bar for bar in bars if bar.label and bar.box[3] > self.size]
        if not all(bar.label.isdigit() for bar in bars):
            return [bar for bar in bars if bar.box[2] >= width_pt(bar.label, self.size) + 2]
        text = max((_number_pt(bar.label, self.size) for bar in bars), default=0.0)
        wide = _width(bars)
        if wide < text + (-_NUMBER_GAP if wide == widest else _NUMBER_GAP):
            return []
        every = 1 if wide >= text + _NUMBER_GAP else 4
        return [
            bar
            for bar in bars
            if int(bar.label) % every == 0
            and bar.box[2] >= _number_pt(bar.label, self.size) - _NUMBER_GAP
        ]

    def _marks(self, drawing: Drawing, top: float) -> float:
        """Draw dashed lines with stacked labels above the rows; returns the rows' top."""
        below = top + _MARK * len(self.marks)
        for place, (words, at) in enumerate(self.marks.items()):
            x, y = self.x(at), top + _MARK * place
            bottom = below + self.high * len(self.rows)
            drawing.line([(x, y + 2), (x, bottom + 3)], self.mark, dashed=True)
            side, shift = ("right", -4) if x > (LEFT + RIGHT) / 2 else ("left", 4)
            drawing.write(x + shift, y + 9, words, 9, side, self.ink)
        return below

    def _foot(self, drawing: Drawing, y: float) -> None:
        """Write 0, the end and, in bold, now; omits what would overlap with now."""
        texts = {"left": (self.left, self.told(0.0)), "right": (self.x(self.end), "")}
        end = self.told(self.end - self.over[0])
        least = self.left + width_pt(end, 9) + width_pt(texts["left"][1], 9)
        texts["right"] = (max(self.x(self.end), least + 8), end)
        taken = (math.inf, -math.inf)
        if self.now is not None:
            text, x = self.told(self.now - self.over[0]), self.x(self.now)
            half = width_pt(text, 9) / 2
            x = min(max(x, self.left + half), RIGHT - half)
            taken = (x - half - 4, x + half + 4)
            drawing.write(x, y, text, 9, "center", bold=True)
        for side, (x, text) in texts.items():
            wide = width_pt(text, 9)
            start = x - wide * (side == "right")
            if start > taken[1] or start + wide < taken[0]:
                drawing.write(x, y, text, 9, side, style.GREY)


class Levels(Timed):
    """A block that stacks step functions {what: [(time, size from then on), …]}.

    `head`: a heading. Levels after `now` are pale. `most`: the size of the full height, by default
    the peak. `outlined`: outline each box. `looks`: looks of words that `style.meaning` does not
    know.
    """

    def __init__(
        self,
        levels: Mapping[str, Sequence[tuple[float, float]]],
        *,
        over: tuple[float, float],
        name: str = "",
        head: str = "",
        now: float | None = None,
        high: float = 64.0,
        most: float | None = None,
        told: Told = format_bytes,
        outlined: bool = False,
        looks: Mapping[str, style.Look] = {},
    ) -> None:
        super().__init__(over, now, max(LEFT, width_pt(name, 9) + 8))
        self.levels, self.name, self.high, self.told = levels, name, high, told
        self.head, self.outlined, self.looks = head, outlined, looks
        times = {time for its in levels.values() for time, _ in its}
        times |= {*over, *([now] if now is not None else [])}
        self.times = sorted(time for time in times if over[0] <= time <= over[1])
        self.sizes = {
            what: [level(its, time) for time in self.times] for what, its in levels.items()
        }
        self.peak = max((sum(sizes) for sizes in zip(*self.sizes.values(), strict=True)), default=0)
        self.most = most or self.peak or 1.0

    @property
    def height_pt(self) -> float:
        """Height of the heading and the levels."""
        return self.high + 4 + self._above

    @property
    def words(self) -> Iterable[str]:
        """The names of the levels."""
        return tuple(self.levels)

    @property
    def sentence(self) -> str:
        """The peak, and the total at `now`."""
        now = self.now
        sizes = [] if now is None else [level(its, now) for its in self.levels.values()]
        end = "" if now is None else f", now {self.told(sum(sizes))}"
        name = " ".join(filter(None, (self.head, self.name))) or "held"
        return f"{name}: at most {self.told(self.peak)}{end}"

    def draw(self, drawing: Drawing, top: float) -> None:
        """Draw a box for each level and interval, stacked from the bottom."""
        if self.head:
            drawing.write(0, top + 12, self.head, style.TITLE_PT, bold=True)
        top += self._above
        bottom = top + self.high
        drawing.write(self.left - 6, top + 10, self.name, 9, "right")
        tall = self.high >= _TALL
        if tall:
            self._scale(drawing, bottom)
        else:
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
            fill, hatch = self.looks.get(what) or style.meaning(what)
            edge = style.INK if self.outlined else fill
            drawing.boxes(boxes if self.outlined else joined(boxes), fill, hatch, edge)
        drawing.boxes(later, style.PALE, edge=style.PALE)
        if tall:
            y = bottom - self.high * self.peak / self.most
            drawing.line([(self.left, y), (RIGHT, y)], style.INK, 1, dashed=True)
            drawing.write(RIGHT, y - 3, f"peak {self.told(self.peak)}", 9, "right", bold=True)
        self.cursor(drawing, top, bottom)

    @property
    def _above(self) -> float:
        """Height of the heading, or of the peak's label."""
        return _NAME if self.head else 10.0 if self.high >= _TALL else 0.0

    def _scale(self, drawing: Drawing, bottom: float) -> None:
        """Draw a few grid lines with sizes at the left, where there is room below the name."""
        for size in even([0, self.most], most=4).ticks:
            y = bottom - self.high * size / self.most
            if 14 * bool(self.name) <= y - bottom + self.high:
                drawing.line([(self.left, y), (RIGHT, y)], style.PALE)
                drawing.write(self.left - 6, y + 3, self.told(size), 9, "right", style.GREY)


def span(rows: Rows) -> tuple[float, float]:
    """The times of the first start and the last end."""
    events = [event for its in rows.values() for event in its]
    return min(event.at for event in events), max(event.until for event in events)


def lanes(charts: Mapping[str, Any], title: str = "") -> Drawing:
    """Draw timelines {row: spans}, or {chart: {row: spans}}, on one time scale.

    A span is an Event, (what, from, to) or (what, from, to, label). Each chart begins at its own
    first span.
    """
    several = all(isinstance(rows, Mapping) for rows in charts.values())
    by_name: Mapping[str, Mapping[str, Sequence[Span]]] = charts if several else {"": charts}
    blocks = [
        Lanes({row: [_event(one) for one in its] for row, its in rows.items()}, name=name)
        for name, rows in by_name.items()
    ]
    return page(title, *blocks)


def _event(one: Span) -> Event:
    if isinstance(one, Event):
        return one
    what, start, end, *label = one
    return Event(start, 0, what, end=end, label="".join(label))


def _width(bars: Sequence[_Bar]) -> float:
    return median([bar.box[2] for bar in bars] or [0.0])


def _widest(looks: Collection[Sequence[_Bar]]) -> float:
    return max(map(_width, looks), default=0.0)


def _number_pt(number: str, size: float) -> float:
    return 0.64 * size * len(number)


def level(its: Sequence[tuple[float, float]], time: float) -> float:
    """The value at `time` of a step function [(time, size from then on), …]; 0 before it."""
    return next((size for at, size in reversed(its) if at <= time), 0.0)
