"""DDP's backward pass, event by event: a gradient is there, a bucket leaves, a bucket is back.

The events are those of a `BucketTimeline`, in order of time. Source: Li et al. 2020, PyTorch
Distributed, arXiv:2006.15704, section 3.2.
"""

from dataclasses import dataclass
from itertools import accumulate

from course_lib.checked import checked
from course_lib.theory.network.bucket_timeline import BucketTimeline
from course_lib.validation import whole

READY, LEAVES, ARRIVES = "ready", "leaves", "arrives"


@dataclass(frozen=True)
class BucketEvent:
    """At `at_s` something happens to gradient or bucket number `place`, counted from 0.

    `what` is "ready": backward has made a gradient; "leaves": the all-reduce of a bucket begins;
    "arrives": the bucket holds the mean.
    """

    at_s: float
    what: str
    place: int


@dataclass(frozen=True)
class BucketSteps:
    """A backward pass as `events` in order; `bucket_of[g]` is the bucket of gradient g."""

    timeline: BucketTimeline
    bucket_of: tuple[int, ...]
    events: tuple[BucketEvent, ...]

    def contents(self, bucket: int) -> tuple[str, ...]:
        """Names of a bucket's gradients, in the order in which they become ready."""
        whole("bucket", bucket, least=0, most=max(self.bucket_of))
        gradients = self.timeline.gradients
        return tuple(
            gradient.name
            for gradient, place in zip(gradients, self.bucket_of, strict=True)
            if place == bucket
        )


@checked
def bucket_steps(timeline: BucketTimeline) -> BucketSteps:
    """What happens in a backward pass, in order of time.

    Where two events have one time, a bucket arrives before the next one leaves, and a gradient is
    ready before its bucket leaves.
    """
    there = list(accumulate(gradient.size_bytes for gradient in timeline.gradients))
    full = list(accumulate(exchange.size_bytes for exchange in timeline.exchanges))
    bucket_of = tuple(sum(limit < size for limit in full) for size in there)
    times = accumulate(gradient.backward_s for gradient in timeline.gradients)
    events = [BucketEvent(at_s, READY, place) for place, at_s in enumerate(times)]
    for place, exchange in enumerate(timeline.exchanges):
        events.append(BucketEvent(exchange.start_s, LEAVES, place))
        events.append(BucketEvent(exchange.end_s, ARRIVES, place))
    order = {READY: 0, ARRIVES: 1, LEAVES: 2}
    events.sort(key=lambda event: (event.at_s, order[event.what], event.place))
    return BucketSteps(timeline, bucket_of, tuple(events))
