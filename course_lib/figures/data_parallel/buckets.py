"""DDP's backward pass: gradients, and below them the buckets on the link."""

from collections.abc import Iterable, Iterator

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT, Picture
from course_lib.figures.paper.text import counted
from course_lib.theory.inputs.units import format_bytes, format_number
from course_lib.theory.network.bucket_timeline import BucketTimeline

_LEFT, _RIGHT, _TOP, _BAR = 66.0, 12.0, 62.0, 26.0
_LINK = _TOP + _BAR + 26
_AXIS = _LINK + _BAR + 14
_HEIGHT = _AXIS + 56
_OUTLINED = 30  # outlines of more bars would hide their colour
_SHORTEST_PT = 5.0  # neighbours that are shorter on paper become one bar

Span = tuple[float, float]


def bucket_timeline(result: BucketTimeline, title: str = "") -> Picture:
    """Computing above, all-reduces below, on one scale of time; what is exposed is marked."""
    sheet = Drawing(_HEIGHT, sentence(result, title))
    sheet.title(title)
    sheet.write(0, 30, "Top: backward, from the head to the embedding.", colour=style.GREY)
    sheet.write(0, 44, "Below: all-reduces, one bar a bucket.", colour=style.GREY)
    scale = (WIDTH_PT - _LEFT - _RIGHT) / result.end_s
    sheet.write(_LEFT - 6, _TOP + 17, "backward", align="right")
    sheet.write(_LEFT - 6, _LINK + 17, "link", align="right")
    layers = _joined(_layers(result), scale)
    sheet.boxes([_box(span, _TOP, scale) for span in layers], style.BACKWARD)
    _arrows(sheet, result, scale)
    sent = _joined(((each.start_s, each.end_s) for each in result.exchanges), scale)
    edge = style.INK if len(sent) <= _OUTLINED else style.WHITE
    sheet.boxes([_box(span, _LINK, scale) for span in sent], style.MESSAGES, edge=edge)
    _axis(sheet, result, scale)
    return sheet


def sentence(result: BucketTimeline, title: str) -> str:
    """How long both take, and what shows, in words."""
    sent = f"{format_bytes(result.size_bytes)} of gradients"
    return (
        f"{title}: backward takes {_ms(result.backward_s)}; "
        f"{counted(len(result.exchanges), 'bucket')} with {sent} "
        f"take {_ms(result.communication_s)}: {_ms(result.hidden_s)} hidden behind backward, "
        f"{_ms(result.exposed_s)} exposed."
    )


def _layers(result: BucketTimeline) -> Iterator[Span]:
    """Head, each layer, and the embedding: gradients of the same name are one bar."""
    start = end = 0.0
    name = result.gradients[0].name
    for gradient in result.gradients:
        if gradient.name != name:
            yield start, end
            start, name = end, gradient.name
        end += gradient.backward_s
    if end > start:
        yield start, end


def _joined(spans: Iterable[Span], scale: float) -> list[Span]:
    """Spans that touch, merged as long as the result is short on paper."""
    joined: list[Span] = []
    for start, end in spans:
        touches = joined and (start - joined[-1][1]) * scale < 0.3
        if touches and (end - joined[-1][0]) * scale < _SHORTEST_PT:
            start = joined.pop()[0]
        joined.append((start, end))
    return joined


def _box(span: Span, top: float, scale: float) -> tuple[float, float, float, float]:
    return _LEFT + span[0] * scale, top, max(0.5, (span[1] - span[0]) * scale), _BAR


def _arrows(sheet: Picture, result: BucketTimeline, scale: float) -> None:
    """A line from where each bucket is full to where it is sent, unless lines would merge."""
    drawn = float("-inf")
    for each in result.exchanges:
        x = _LEFT + each.ready_s * scale
        if x - drawn >= 6:
            start = _LEFT + each.start_s * scale
            sheet.line([(x, _TOP + _BAR), (start, _LINK)], style.GREY, width=0.7)
            drawn = x


def _axis(sheet: Picture, result: BucketTimeline, scale: float) -> None:
    end, done = _LEFT + result.end_s * scale, _LEFT + result.backward_s * scale
    sheet.line([(_LEFT, _AXIS), (end, _AXIS)], style.GREY)
    sheet.write(_LEFT, _AXIS + 14, "0", colour=style.GREY)
    sheet.write(end, _AXIS + 14, f"{_ms(result.end_s)}", align="right", colour=style.GREY)
    sheet.line([(done, _TOP - 6), (done, _AXIS)], dashed=True)
    sheet.line([(done, _AXIS), (end, _AXIS)], style.WARNING, width=3)
    text = f"backward ends; {_ms(result.exposed_s)} exposed"
    room = done < WIDTH_PT / 2
    sheet.write(
        done + (5 if room else -5),
        _AXIS + 34,
        text,
        align="left" if room else "right",
        colour=style.WARNING_TEXT if result.exposed_s else style.INK,
        bold=True,
    )


def _ms(time_s: float) -> str:
    if time_s < 1:
        return f"{format_number(1000 * time_s)} ms"
    return f"{1000 * time_s:,.0f} ms" if time_s < 10 else f"{format_number(time_s)} s"
