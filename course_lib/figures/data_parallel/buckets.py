"""DDP's backward pass: gradients, and below them the buckets on the link."""

from collections.abc import Iterable, Iterator, Mapping

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT
from course_lib.figures.paper.text import counted
from course_lib.theory.inputs.units import format_bytes, format_number
from course_lib.theory.network.bucket_timeline import BucketTimeline

_LEFT, _RIGHT, _BAR = 66.0, 12.0, 26.0
_ROOM, _NOTES = 34.0, 34.0  # above a chart its name, below all of them the notes
_LINK = _BAR + 26  # below a chart's first bar
_AXIS = _LINK + _BAR + 14
_CHART = _ROOM + _AXIS + 48
_OUTLINED = 30  # outlines of more bars would hide their colour
_SHORTEST_PT = 5.0  # neighbours that are shorter on paper become one bar

Span = tuple[float, float]


def bucket_timeline(charts: Mapping[str, BucketTimeline]) -> Drawing:
    """Computing above, all-reduces below, what is exposed marked: {"one bucket": result, …}.

    All charts are on one scale of time. Raises ValueError without a chart.
    """
    if not charts:
        raise ValueError('charts is empty: give for example {"one bucket": ddp_timeline(…)}')
    bottom = _CHART * len(charts)
    sheet = Drawing(bottom + _NOTES, " ".join(map(sentence, charts.values(), charts)))
    scale = (WIDTH_PT - _LEFT - _RIGHT) / max(result.end_s for result in charts.values())
    for place, (name, result) in enumerate(charts.items()):
        top = _CHART * place
        sheet.write(0, top + 13, name, style.TITLE_PT, bold=True)
        _chart(sheet, result, top + _ROOM, scale)
    notes = (
        "Top: backward, from the head to the embedding.",
        "Below: all-reduces, one bar a bucket.",
    )
    for line, text in enumerate(notes):
        sheet.write(0, bottom + 14 + 14 * line, text, colour=style.GREY)
    return sheet


def _chart(sheet: Drawing, result: BucketTimeline, top: float, scale: float) -> None:
    sheet.write(_LEFT - 6, top + 17, "backward", align="right")
    sheet.write(_LEFT - 6, top + _LINK + 17, "link", align="right")
    layers = _joined(_layers(result), scale)
    sheet.boxes([_box(span, top, scale) for span in layers], style.BACKWARD)
    _arrows(sheet, result, top, scale)
    sent = _joined(((each.start_s, each.end_s) for each in result.exchanges), scale)
    edge = style.INK if len(sent) <= _OUTLINED else style.WHITE
    sheet.boxes([_box(span, top + _LINK, scale) for span in sent], style.MESSAGES, edge=edge)
    _axis(sheet, result, top, scale)


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


def _arrows(sheet: Drawing, result: BucketTimeline, top: float, scale: float) -> None:
    """A line from where each bucket is full to where it is sent, unless lines would merge."""
    drawn = float("-inf")
    for each in result.exchanges:
        x = _LEFT + each.ready_s * scale
        if x - drawn >= 6:
            start = _LEFT + each.start_s * scale
            sheet.line([(x, top + _BAR), (start, top + _LINK)], style.GREY, width=0.7)
            drawn = x


def _axis(sheet: Drawing, result: BucketTimeline, top: float, scale: float) -> None:
    end, done, axis = _LEFT + result.end_s * scale, _LEFT + result.backward_s * scale, top + _AXIS
    sheet.line([(_LEFT, axis), (end, axis)], style.GREY)
    sheet.write(_LEFT, axis + 14, "0", colour=style.GREY)
    sheet.write(end, axis + 14, f"{_ms(result.end_s)}", align="right", colour=style.GREY)
    sheet.line([(done, top - 6), (done, axis)], dashed=True)
    sheet.line([(done, axis), (end, axis)], style.WARNING, width=3)
    text = f"backward ends; {_ms(result.exposed_s)} exposed"
    room = done < WIDTH_PT / 2
    sheet.write(
        done + (5 if room else -5),
        axis + 34,
        text,
        align="left" if room else "right",
        colour=style.WARNING_TEXT if result.exposed_s else style.INK,
        bold=True,
    )


def _ms(time_s: float) -> str:
    if time_s < 1:
        return f"{format_number(1000 * time_s)} ms"
    return f"{1000 * time_s:,.0f} ms" if time_s < 10 else f"{format_number(time_s)} s"
