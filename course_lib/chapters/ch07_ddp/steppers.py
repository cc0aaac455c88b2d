"""Steppers of chapter 7."""

from course_lib.figures.engines.cells import Cell, Cells
from course_lib.figures.engines.lanes import Lanes
from course_lib.figures.engines.page import page
from course_lib.figures.paper.drawing import Drawing, counted
from course_lib.panels.controls import flag, listed
from course_lib.panels.panel import Rows
from course_lib.panels.stepper import Stepper, Story
from course_lib.theory.inputs.hardware import Link
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.network.bucket_timeline import Gradient, ddp_timeline
from course_lib.theory.stories.copies import bucket_steps
from course_lib.trace import Event

_UNIT = 10_000_000  # bytes; all sizes here are multiples of it
_LINK = Link("4 GB/s", bytes_per_s=4e9, latency_s=1e-4)
# 5 ms of backward each. The embedding shares its weights with the head, so it is ready last.
_CHAIN = (
    *(Gradient(f"layer {number}", 10_000_000, 0.005) for number in range(6, 0, -1)),
    Gradient("embedding", 20_000_000, 0.005),
)


def buckets(bucket_mb: int = 20, ranks: int = 8, overlap: bool = True) -> Stepper:
    """Stepper through a backward pass of DDP: buckets are all-reduced while backward goes on.

    Raises ValueError for starting values that are not offered.
    """
    controls = {
        "bucket_mb": listed("bucket", bucket_mb, {str(mb): mb for mb in (10, 20, 40, 80)}, "MB"),
        "ranks": listed("ranks", ranks, {str(count): count for count in (2, 8, 64)}),
        "overlap": flag("overlap", overlap),
    }
    return Stepper(controls, _Buckets)


class _Buckets(Story):
    """One step for each gradient that becomes ready and each bucket that leaves or arrives."""

    def __init__(self, bucket_mb: int, ranks: int, overlap: bool) -> None:
        cap = 1_000_000 * bucket_mb
        self.line = ddp_timeline(
            _CHAIN, ranks, _LINK, cap_bytes=cap, first_bytes=cap, overlap=overlap
        )
        self.trace = bucket_steps(self.line)
        # At equal times, gradients become ready before buckets arrive, and buckets leave last.
        backward = [event for event in self.trace if event.what == "backward"]
        self.sent = [event for event in self.trace if event.what != "backward"]
        changes = [(one.until, 0, "ready", one) for one in backward]
        changes += [(one.until, 1, "arrives", one) for one in self.sent]
        changes += [(one.at, 2, "leaves", one) for one in self.sent]
        self.changes = sorted(changes, key=lambda change: (*change[:2], change[3].at))
        self.gradients, self.count = backward, len(self.changes) + 1

    def at(self, step: int) -> float:
        return self.changes[step - 1][0] if step else 0.0

    def past(self, step: int, what: str) -> list[Event]:
        return [event for _, _, change, event in self.changes[:step] if change == what]

    def word(self, gradient: Event, step: int) -> dict[int, str]:
        """Fill of a gradient's slot: {} if not ready, else this rank's own gradient or the mean."""
        if gradient not in self.past(step, "ready"):
            return {}
        back = [event.part for event in self.past(step, "arrives")]
        return {0: "mean gradients" if gradient.part[0] in back else "own gradients"}

    def picture(self, step: int) -> Drawing:
        now, ready = self.at(step), self.past(step, "ready")
        computing = self.gradients[len(ready)] if len(ready) < len(self.gradients) else None
        working = ["layers", computing.label] if computing else ()
        layers = {
            one.label: Cell("", self.word(one, step), frame="backward" if one is computing else "")
            for one in reversed(self.gradients)
        }
        grid = {"buckets": self.containers(step)}
        back, left = len(self.past(step, "arrives")), len(self.past(step, "leaves"))
        said = (
            f"{len(ready)} of {len(self.gradients)} gradients are ready; of "
            f"{counted(len(self.sent), 'bucket')} {back} are back with the mean, and "
            f"{left - back} on the link"
        )
        return page(
            f"{1000 * now:.3g} ms after the start of the backward pass",
            Cells({"layers": layers}, high=24, said=said, bold=working),
            Cells(grid, high=24, heads=False, below=True, lined=True, said=" "),
            self.clock(step),
            key=("own gradients", "mean gradients", "messages", "exposed"),
        )

    def containers(self, step: int) -> dict[str, Cell]:
        """A cell for each bucket, as wide as its bytes, with slots for its gradients."""
        cells: dict[str, Cell] = {}
        for sent in self.sent:
            words: list[str] = []
            for gradient in self.gradients:
                if gradient.part[0] == sent.part:
                    size = self.line.gradients[gradient.part[1]].size_bytes // _UNIT
                    words += [self.word(gradient, step).get(0, "")] * size
            filled = {slot: word for slot, word in enumerate(words) if word}
            state = "full, waits" if all(words) else "filling" if filled else "empty"
            if sent in self.past(step, "leaves"):
                state = "the mean" if sent in self.past(step, "arrives") else "on the link"
            frame = "messages" if state == "on the link" else ""
            name = f"{sent.part + 1}: " if len(words) < 3 else f"bucket {sent.part + 1}: "
            # One column per 10 MB; the bucket's cell spans all of its columns.
            first = len(cells)
            cells[f"{first}"] = Cell(name + state, filled, len(words), wide=len(words), frame=frame)
            cells |= {f"{first + more}": Cell(slots=0) for more in range(1, len(words))}
        return cells

    def clock(self, step: int) -> Lanes:
        """Draw backward and link on one scale of time, up to now."""
        now, end = self.at(step), self.line.backward_s
        rows: dict[str, list[Event]] = {"backward": [], "link": [], "exposed": []}
        for event in self.trace:
            if event.at >= now and event not in self.past(step, "leaves"):
                continue
            row = "backward" if event.what == "backward" else "link"
            short = event.label.removeprefix("layer ").replace("embedding", "emb.")
            label = short or f"bucket {event.part + 1}"
            rows[row].append(event._replace(end=min(event.until, now), label=label))
        if now > end:
            label = f"{1000 * (now - end):.3g} ms"
            rows["exposed"].append(Event(end, 0, "exposed", end=now, label=label))
        return Lanes(rows, over=(0.0, self.line.end_s), now=now)

    def rows(self, step: int) -> Rows:
        exposed = f", {1000 * self.line.exposed_s:.1f} ms of it exposed"
        end = exposed if step == self.count - 1 else ""
        link = f"{_LINK.name}, {1e6 * _LINK.latency_s:.0f} µs a message; backward 35 ms"
        time = f"{1000 * self.line.communication_s:.1f} ms of link time in all"
        return (("communication", time + end), ("link", link))

    def caption(self, step: int) -> str:
        if not step:
            return "The loss is known. Backward begins at the last layer; no gradient is there yet."
        at_s, _, what, event = self.changes[step - 1]
        if what == "ready":
            bucket, index = event.part
            following = self.gradients[index + 1 : index + 2]
            is_full = not following or following[0].part[0] > bucket
            full = ", which is full now" if is_full else ""
            text = f"The gradient of {event.label} is ready and goes into bucket {bucket + 1}"
            return f"{text}{full}."
        name = f"Bucket {event.part + 1}"
        if what == "leaves":
            goes_on = at_s < self.line.backward_s
            meanwhile = "while backward goes on" if goes_on else "with nothing left to hide behind"
            size = format_bytes(event.bytes, digits=0)
            return f"{name} leaves: an all-reduce of {size}, {meanwhile}."
        end = "The optimizer may begin." if event is self.sent[-1] else ""
        return f"{name} is back, with the mean over all ranks. {end}".strip()

    def result(self, step: int) -> object:
        """Return the timeline with its times, and `step`."""
        return self.line, step
