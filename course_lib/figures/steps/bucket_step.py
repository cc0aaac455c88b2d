"""One moment of DDP's backward pass: layers, the buckets that they fill, and the time so far."""

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT, Box
from course_lib.figures.paper.text import counted, width_pt
from course_lib.theory.network.bucket_steps import ARRIVES, LEAVES, READY, BucketSteps

_LEFT, _RIGHT = 66.0, WIDTH_PT - 8
_LAYERS, _BUCKETS, _LANES = 34.0, 98.0, 182.0
_BOX, _BAR, _HEIGHT = 30.0, 20.0, 290.0


def bucket_step(result: BucketSteps, step: int) -> Drawing:
    """The backward pass behind its first `step` events; 0: nothing has happened yet.

    Hatched: a gradient of this rank's own samples. Plain: the mean over ranks.
    """
    moment = _Moment(result, step)
    drawing = Drawing(_HEIGHT, moment.sentence())
    title = f"{1000 * moment.now_s:.3g} ms after the start of the backward pass"
    drawing.title(title)
    _layers(drawing, moment)
    _buckets(drawing, moment)
    _lanes(drawing, moment)
    return drawing


class _Moment:
    """What has happened to whom."""

    def __init__(self, result: BucketSteps, step: int) -> None:
        self.result, self.line = result, result.timeline
        past = result.events[:step]
        self.now_s = past[-1].at_s if past else 0.0
        self.ready, self.left, self.back = (
            {event.place for event in past if event.what == what}
            for what in (READY, LEAVES, ARRIVES)
        )

    def sentence(self) -> str:
        sent = len(self.left) - len(self.back)
        return (
            f"After {1000 * self.now_s:.3g} ms: {len(self.ready)} of "
            f"{len(self.line.gradients)} gradients are ready; of "
            f"{counted(len(self.line.exchanges), 'bucket')} {len(self.back)} are back with the "
            f"mean, and {sent} on the link."
        )

    def is_full(self, bucket: int) -> bool:
        """Whether all gradients of the bucket are ready."""
        places = enumerate(self.result.bucket_of)
        return all(place in self.ready for place, its in places if its == bucket)

    def look(self, gradient: int) -> tuple[str, str | None]:
        """Fill and hatch: not there, of this rank alone, or the mean."""
        if gradient not in self.ready:
            return style.WHITE, None
        mean = self.result.bucket_of[gradient] in self.back
        return style.GRADIENTS, None if mean else "/"


def _layers(drawing: Drawing, moment: _Moment) -> None:
    """The model in the order of forward; backward comes from the right."""
    gradients = moment.line.gradients
    drawing.write(_LEFT - 8, _LAYERS + 19, "layers", align="right")
    width = (_RIGHT - _LEFT) / len(gradients)
    for place, gradient in enumerate(gradients):
        x = _RIGHT - (place + 1) * width
        fill, hatch = moment.look(place)
        drawing.boxes([(x + 1, _LAYERS, width - 2, _BOX)], fill, hatch)
        drawing.boxes([(x + 4, _LAYERS + 8, width - 8, 14)], style.WHITE, edge=style.WHITE)
        ink = style.INK if place in moment.ready else style.GREY
        drawing.write(x + width / 2, _LAYERS + 18.5, gradient.name, 9, "center", ink)
    text = "computing" if len(moment.ready) < len(gradients) else "all gradients are ready"
    next_one = min(len(moment.ready), len(gradients) - 1)
    x = _RIGHT - (next_one + 0.5) * width
    if text == "computing":
        drawing.boxes([(x - width / 2 + 1, _LAYERS + _BOX + 3, width - 2, 4)], style.BACKWARD)
        drawing.write(x, _LAYERS + _BOX + 18, text, 9, "center")
    else:
        drawing.write((_LEFT + _RIGHT) / 2, _LAYERS + _BOX + 18, text, 9, "center")


def _buckets(drawing: Drawing, moment: _Moment) -> None:
    """A container for each bucket, as wide as its bytes, with a slot for each gradient."""
    line, result = moment.line, moment.result
    drawing.write(_LEFT - 8, _BUCKETS + 19, "buckets", align="right")
    gap = 6.0
    room = _RIGHT - _LEFT - gap * (len(line.exchanges) - 1)
    scale, x = room / line.size_bytes, _LEFT
    for bucket, exchange in enumerate(line.exchanges):
        width = exchange.size_bytes * scale
        on_link = bucket in moment.left and bucket not in moment.back
        start = x
        for place, gradient in enumerate(line.gradients):
            if result.bucket_of[place] == bucket and gradient.size_bytes:
                part = gradient.size_bytes * scale
                fill, hatch = moment.look(place)
                drawing.boxes([(start, _BUCKETS, part, _BOX)], fill, hatch, edge=style.GREY)
                start += part
        edge = style.MESSAGES if on_link else style.INK
        corners = [(x, _BUCKETS - 3), (x, _BUCKETS + _BOX + 3), (x + width, _BUCKETS + _BOX + 3)]
        drawing.line([*corners, (x + width, _BUCKETS - 3)], edge, 3 if on_link else 1.2)
        words = (f"bucket {bucket + 1}", _state(moment, bucket, on_link))
        for row, text in enumerate(words if width > 46 else (str(bucket + 1),)):
            y = _BUCKETS + _BOX + 16 + 12 * row
            drawing.write(x + width / 2, y, text, 9, "center", style.GREY if row else style.INK)
        x += width + gap


def _state(moment: _Moment, bucket: int, on_link: bool) -> str:
    if on_link:
        return "on the link"
    if bucket in moment.back:
        return "the mean"
    if moment.is_full(bucket):
        return "full, waits"
    started = any(moment.result.bucket_of[place] == bucket for place in moment.ready)
    return "filling" if started else "empty"


def _lanes(drawing: Drawing, moment: _Moment) -> None:
    """Backward and the link on one scale of time, as far as it has passed."""
    line = moment.line
    scale, now = (_RIGHT - _LEFT) / line.end_s, moment.now_s
    end, bottom = line.backward_s, _LANES + 2 * _BAR + 6
    for row, name in enumerate(("backward", "link")):
        y = _LANES + row * (_BAR + 6)
        drawing.write(_LEFT - 8, y + 14, name, align="right")
        drawing.boxes([(_LEFT, y, now * scale, _BAR)], style.IDLE, edge=style.IDLE)
    start_s = 0.0
    for gradient in line.gradients:
        stop_s = start_s + gradient.backward_s
        if start_s < now:
            box = _bar(start_s, min(stop_s, now), scale, _LANES)
            short = {"embedding": "emb."}.get(gradient.name, gradient.name.removeprefix("layer "))
            _named(drawing, box, short, style.BACKWARD)
        start_s = stop_s
    for bucket in sorted(moment.left):
        exchange = line.exchanges[bucket]
        box = _bar(exchange.start_s, min(exchange.end_s, now), scale, _LANES + _BAR + 6)
        _named(drawing, box, str(bucket + 1), style.MESSAGES)
    x = _LEFT + now * scale
    drawing.line([(x, _LANES - 5), (x, bottom + 5)], style.INK, 1.6)
    drawing.line([(_LEFT, bottom + 8), (_RIGHT, bottom + 8)], style.GREY, 0.7)
    drawing.write(_LEFT, bottom + 21, "0", 9, colour=style.GREY)
    drawing.write(_RIGHT, bottom + 21, f"{1000 * line.end_s:.3g} ms", 9, "right", style.GREY)
    if now > end:
        y, x_end = bottom + 30, _LEFT + end * scale
        drawing.line([(x_end, _LANES - 5), (x_end, _LANES + _BAR + 6)], style.WARNING, dashed=True)
        drawing.line([(x_end, bottom), (x_end, y)], style.WARNING, dashed=True)
        drawing.line([(x_end, y), (x, y)], style.WARNING, 2)
        text = f"exposed: {1000 * (now - end):.3g} ms"
        right = (x_end + x) / 2 > (_LEFT + _RIGHT) / 2
        where = x if right else x_end
        drawing.write(where, y + 14, text, 9, "right" if right else "left", style.WARNING_TEXT)


def _bar(start_s: float, stop_s: float, scale: float, y: float) -> Box:
    return _LEFT + start_s * scale, y, max(0.5, (stop_s - start_s) * scale), _BAR


def _named(drawing: Drawing, box: Box, name: str, fill: str) -> None:
    """A bar with its name inside, where there is room."""
    x, y, width, height = box
    drawing.boxes([box], fill)
    if width > width_pt(name, 9) + 4:
        drawing.write(x + width / 2, y + height / 2 + 3.3, name, 9, "center", style.ON_FILL)
