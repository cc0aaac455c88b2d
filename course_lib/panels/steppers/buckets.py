"""The stepper of chapter 7: gradients fill buckets, and buckets leave while backward goes on."""

from course_lib import figures
from course_lib.panels.controls import flag, listed
from course_lib.panels.panel import View
from course_lib.panels.stepper import Stepper, Story
from course_lib.theory.inputs.hardware import Link
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.network.bucket_steps import LEAVES, READY, BucketSteps, bucket_steps
from course_lib.theory.network.bucket_timeline import Gradient, ddp_timeline

LINK = Link("4 GB/s", bytes_per_s=4e9, latency_s=1e-4)
# 5 ms of backward for each; the embedding, which is the head as well, is ready at the very end.
CHAIN = (
    *(Gradient(f"layer {number}", 10_000_000, 0.005) for number in range(6, 0, -1)),
    Gradient("embedding", 20_000_000, 0.005),
)


def buckets(bucket_mb: int = 20, ranks: int = 8, overlap: bool = True) -> Stepper:
    """One backward pass of DDP; what is shown is a `BucketSteps` and a step of it.

    Raises ValueError for starting values that are not offered.
    """
    controls = {
        "bucket_mb": listed("bucket", bucket_mb, {str(mb): mb for mb in (10, 20, 40, 80)}, "MB"),
        "ranks": listed("ranks", ranks, {str(count): count for count in (2, 8, 64)}),
        "overlap": flag("overlap", overlap),
    }
    return Stepper(controls, _story)


def _story(bucket_mb: int, ranks: int, overlap: bool) -> Story:
    cap = 1_000_000 * bucket_mb
    line = ddp_timeline(CHAIN, ranks, LINK, cap_bytes=cap, first_bytes=cap, overlap=overlap)
    result = bucket_steps(line)
    return Story(len(result.events) + 1, lambda step: _view(result, step))


def _view(result: BucketSteps, step: int) -> View:
    line = result.timeline
    rows = (
        ("communication", f"{1000 * line.communication_s:.1f} ms of link time in all"),
        ("link", f"{LINK.name}, {1e6 * LINK.latency_s:.0f} µs a message; backward 35 ms"),
    )
    if step == len(result.events):
        exposed = f", {1000 * line.exposed_s:.1f} ms of it exposed"
        rows = ((rows[0][0], rows[0][1] + exposed), rows[1])
    return View(
        (result, step), rows, lambda: figures.bucket_step(result, step), _said(result, step)
    )


def _said(result: BucketSteps, step: int) -> str:
    line = result.timeline
    if not step:
        return "The loss is known. Backward begins at the last layer; no gradient is there yet."
    event = result.events[step - 1]
    if event.what == READY:
        name, bucket = line.gradients[event.place].name, result.bucket_of[event.place]
        is_full = event.place == len(result.bucket_of) - 1 or (
            result.bucket_of[event.place + 1] > bucket
        )
        text = f"The gradient of {name} is ready and goes into bucket {bucket + 1}"
        return f"{text}, which is full now." if is_full else f"{text}."
    name = f"Bucket {event.place + 1}"
    size = format_bytes(line.exchanges[event.place].size_bytes, digits=0)
    if event.what == LEAVES:
        meanwhile = (
            "while backward goes on"
            if event.at_s < line.backward_s
            else "with nothing left to hide behind"
        )
        return f"{name} leaves: an all-reduce of {size}, {meanwhile}."
    end = "The optimizer may begin." if event.place == len(line.exchanges) - 1 else ""
    return f"{name} is back, with the mean over all ranks. {end}".strip()
