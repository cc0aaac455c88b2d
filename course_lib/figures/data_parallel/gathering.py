"""What sharded data parallelism holds while it computes: predicted by the theory, and measured."""

import math
from collections.abc import Mapping, Sequence

from course_lib.figures.paper import style
from course_lib.figures.paper.picture import WIDTH_PT
from course_lib.figures.paper.sheet import Sheet
from course_lib.figures.paper.text import counted
from course_lib.theory.inputs.units import GB, KB, MB, format_bytes, format_number
from course_lib.theory.memory.gather_timeline import ROOT, GatherEvent, GatherTimeline

_LEFT, _TOP, _WIDTH, _HEIGHT = 62.0, 66.0, 446.0, 170.0
_ENDS_SHOWN = 3  # layers at each end of a deep model; those between look the same
_TICKS = 4
_POINTS = 80  # of a measured line: more cannot be told apart
# From the ground up.
_STACK = {
    "shards of weights, gradients, optimizer": style.STATES,
    "whole weights, at most": style.TEMPORARY,
    "whole gradients, at most": style.GRADIENTS,
}


def gather_memory(result: GatherTimeline, title: str = "") -> Sheet:
    """Shards, whole weights and whole gradients on top of each other, change by change.

    For a deep model only the first and last three layers are drawn.
    """
    events = _shown(result)
    sheet = Sheet(_TOP + _HEIGHT + 106, sentence(result, title))
    sheet.title(title)
    sheet.write(0, 30, "Memory of one GPU without activations", colour=style.GREY)
    place = _Scale(result, len(events))
    _axes(sheet, place)
    _areas(sheet, place, result, events)
    _layers(sheet, place, result, events)
    _peak(sheet, place, result, events)
    _key(sheet, result)
    return sheet


def sentence(result: GatherTimeline, title: str = "") -> str:
    """Base, peaks and collectives in words."""
    start = f"{title}: " if title else ""
    return (
        f"{start}{format_bytes(result.states_bytes)} of shards all the time; at most "
        f"{format_bytes(result.peak_weights_bytes)} of whole weights and "
        f"{format_bytes(result.peak_gradients_bytes)} of whole gradients; the peak is "
        f"{format_bytes(result.peak_bytes)}; {counted(result.all_gathers, 'all-gather')} and "
        f"{counted(result.reduce_scatters, 'reduce-scatter')} in a step."
    )


def measured_memory(timelines: Mapping[str, Sequence[int]]) -> Sheet:
    """Measured bytes after each change (a MemoryLog's timeline), one line for each version.

    Raises ValueError when there is no line or one without values.
    """
    if not timelines or not all(len(values) for values in timelines.values()):
        raise ValueError("timelines must hold at least one value each: give {name: [bytes, …]}")
    largest = max(max(values) for values in timelines.values())
    unit, name = _unit(largest)
    peaks = [f"{key}: peak {format_number(max(v) / unit)} {name}" for key, v in timelines.items()]
    sheet = Sheet(260, "Measured in a forward and backward pass: " + "; ".join(peaks) + ".")
    axes = sheet.add_axes((0.11, 0.16, 0.86, 0.66))
    for number, (key, values) in enumerate(timelines.items()):
        colour, dashes = style.LINES[number % len(style.LINES)]
        steps, highest = _thinned(values)
        axes.plot(
            steps,
            [value / unit for value in highest],
            label=f"{key}, peak {format_number(max(values) / unit)} {name}",
            color=colour,
            linestyle=dashes,
            linewidth=1.6,
        )
    axes.set_ylim(bottom=0)
    axes.set_xlabel("part of the forward and backward pass, in % of all changes", fontsize=10)
    axes.set_ylabel(f"{name} in tensors", fontsize=style.TEXT_PT)
    axes.tick_params(labelsize=style.TEXT_PT)
    axes.grid(color=style.PALE)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(fontsize=9, frameon=False, ncols=2, loc="lower left", bbox_to_anchor=(0, 1.0))
    return sheet


def _unit(largest: float) -> tuple[int, str]:
    """The unit in which the largest value is at least 1, or kB."""
    return next(((u, n) for u, n in ((GB, "GB"), (MB, "MB")) if largest >= u), (KB, "kB"))


def _thinned(values: Sequence[int]) -> tuple[list[float], list[int]]:
    """Places in percent and the highest value of each of at most _POINTS stretches."""
    size = max(1, math.ceil(len(values) / _POINTS))
    starts = range(0, len(values), size)
    last = max(len(values) - 1, 1)
    return [100 * start / last for start in starts], [max(values[s : s + size]) for s in starts]


class _Scale:
    """Where an event and a number of bytes lie on the sheet."""

    def __init__(self, result: GatherTimeline, count: int) -> None:
        rough = 1.02 * result.peak_bytes / _TICKS
        power = 10.0 ** math.floor(math.log10(rough))
        self.tick = next(f * power for f in (1, 2, 2.5, 5, 10) if f * power >= rough)
        self.ticks = math.ceil(1.02 * result.peak_bytes / self.tick)
        self.step = _WIDTH / count
        self.unit, self.unit_name = _unit(result.peak_bytes)

    def x(self, number: int) -> float:
        return _LEFT + number * self.step

    def y(self, size_bytes: float) -> float:
        return _TOP + _HEIGHT * (1 - size_bytes / (self.tick * self.ticks))


def _shown(result: GatherTimeline) -> list[GatherEvent]:
    """Events of the first and the last layers."""
    if result.layers <= 2 * _ENDS_SHOWN:
        return list(result.events)
    last = result.layers - _ENDS_SHOWN
    return [event for event in result.events if not _ENDS_SHOWN < _during(event) <= last]


def _during(event: GatherEvent) -> int:
    """The layer that computes, for which the next one is fetched."""
    ahead = 1 if event.phase == "forward" else -1
    return event.unit - ahead * (event.action == "fetch")


def _axes(sheet: Sheet, place: _Scale) -> None:
    bottom = _TOP + _HEIGHT
    for number in range(place.ticks + 1):
        y = place.y(number * place.tick)
        sheet.line([(_LEFT, y), (_LEFT + _WIDTH, y)], style.PALE)
        text = f"{format_number(number * place.tick / place.unit, 6)}"
        sheet.write(_LEFT - 6, y + 4, text, align="right", colour=style.GREY, size=9)
    sheet.line([(_LEFT, _TOP), (_LEFT, bottom), (_LEFT + _WIDTH, bottom)])
    sheet.write(_LEFT - 6, _TOP - 12, place.unit_name, align="right", colour=style.GREY, size=9)


def _areas(
    sheet: Sheet, place: _Scale, result: GatherTimeline, events: Sequence[GatherEvent]
) -> None:
    base = [result.states_bytes] * len(events)
    weights = [result.states_bytes + event.weights_bytes for event in events]
    everything = [result.states_bytes + event.gathered_bytes for event in events]
    # The highest first, the lower ones cover it.
    for sizes, fill in zip((everything, weights, base), reversed(_STACK.values()), strict=True):
        bottom = _TOP + _HEIGHT
        points = [(_LEFT, bottom)]
        for number, size in enumerate(sizes):
            if not number or size != sizes[number - 1]:
                points += [(place.x(number), points[-1][1]), (place.x(number), place.y(size))]
        points += [(place.x(len(sizes)), points[-1][1]), (place.x(len(sizes)), bottom)]
        sheet.area(points, fill)


def _layers(
    sheet: Sheet, place: _Scale, result: GatherTimeline, events: Sequence[GatherEvent]
) -> None:
    """Numbers of the layers under the axis, and where backward starts."""
    y = _TOP + _HEIGHT + 13
    free = _LEFT  # a number to the right of this does not touch the previous one
    before = events[0]
    for number, event in enumerate(events):
        x = place.x(number)
        if abs(_during(event) - _during(before)) > 1 and ROOT not in (event.unit, before.unit):
            sheet.line([(x, _TOP), (x, y - 4)], style.WHITE, 2.5)  # the layers between
        middle = x + place.step / 2
        if event.action == "compute" and event.unit != ROOT and middle >= free:
            sheet.write(middle, y, str(event.unit), align="center", size=9)
            free = middle + 18
        before = event
    turn = next(number for number, event in enumerate(events) if event.phase == "backward")
    x = place.x(turn)
    sheet.line([(x, _TOP - 16), (x, _TOP + _HEIGHT)], style.GREY, dashed=True)
    sheet.write(x - 6, _TOP - 8, "forward", align="right", colour=style.GREY)
    sheet.write(x + 6, _TOP - 8, "backward", colour=style.GREY)
    left_out = result.layers - 2 * _ENDS_SHOWN
    text = "layer that computes; events in their order, not to scale in time"
    if left_out > 0:
        text = f"layer that computes; {counted(left_out, 'layer')} between are left out"
    sheet.write(_LEFT + _WIDTH / 2, y + 16, text, align="center")


def _peak(
    sheet: Sheet, place: _Scale, result: GatherTimeline, events: Sequence[GatherEvent]
) -> None:
    gathered = [event.gathered_bytes for event in events]
    number = gathered.index(max(gathered))
    x, y = place.x(number) + place.step / 2, place.y(result.peak_bytes)
    sheet.line([(_LEFT, y), (_LEFT + _WIDTH, y)], dashed=True)
    sheet.dot(x, y, style.INK, radius=4)
    sheet.write(_LEFT + 4, _TOP - 8, f"peak {format_bytes(result.peak_bytes)}", bold=True)


def _key(sheet: Sheet, result: GatherTimeline) -> None:
    sizes = (result.states_bytes, result.peak_weights_bytes, result.peak_gradients_bytes)
    for row, ((text, fill), size) in enumerate(zip(_STACK.items(), sizes, strict=True)):
        y = _TOP + _HEIGHT + 46 + 19 * row
        sheet.boxes([(_LEFT, y, 20, 12)], fill)
        sheet.write(_LEFT + 28, y + 10, text)
        sheet.write(WIDTH_PT - 100, y + 10, format_bytes(size), align="right")
