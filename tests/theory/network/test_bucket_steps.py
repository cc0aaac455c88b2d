"""The order of DDP's events: by hand, and as the hooks of real runs on two ranks have it."""

import torch
from probes import SLOW_LINK, Probe
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course_lib import launch
from course_lib.scratch.replicas import ddp as by_hand
from course_lib.scratch.wire import start_all_reduce
from course_lib.theory.inputs.hardware import Link
from course_lib.theory.network.bucket_steps import bucket_steps
from course_lib.theory.network.bucket_timeline import Gradient, ddp_timeline

SLOW = Link("one byte a second", 1.0, 0.0)
FAST = Link("nearly no time", 1e15, 0.0)
WIDTHS = [40, 8, 8, 24, 8, 16]  # of a chain of layers, in the order of forward
CAP = 1000


def test_three_layers_by_hand():
    """Full at 5, 10 and 15 s; the link has them from 5 to 15, 15 to 25 and 25 to 35 s."""
    three = [Gradient(name, 10, 5.0) for name in "cba"]
    steps = bucket_steps(ddp_timeline(three, 2, SLOW, cap_bytes=10))
    assert [(event.at_s, event.what, event.place) for event in steps.events] == [
        (5, "ready", 0),
        (5, "leaves", 0),
        (10, "ready", 1),
        (15, "ready", 2),
        (15, "arrives", 0),
        (15, "leaves", 1),
        (25, "arrives", 1),
        (25, "leaves", 2),
        (35, "arrives", 2),
    ]
    assert [steps.contents(bucket) for bucket in range(3)] == [("c",), ("b",), ("a",)]


def build():
    """Layers of different sizes, without biases: one gradient each."""
    torch.manual_seed(0)
    pairs = zip(WIDTHS, [*WIDTHS[1:], 8], strict=True)
    return nn.Sequential(*(nn.Linear(inside, outside, bias=False) for inside, outside in pairs))


def predicted():
    """The same layers in theory, with a link that never makes a bucket wait."""
    sizes = [(name, p.nbytes) for name, p in build().named_parameters()]
    backward = [Gradient(name, size, 1.0) for name, size in reversed(sizes)]
    return bucket_steps(ddp_timeline(backward, 2, FAST, cap_bytes=CAP, first_bytes=CAP))


def real_run():
    """What the hooks of the course's DDP see on this rank: events, and the buckets' contents."""
    launch.init()
    events = []

    def sending(flat):
        events.append(("leaves", sum(what == "leaves" for what, _ in events)))
        return start_all_reduce(flat)

    model = build()
    names = {parameter: name for name, parameter in model.named_parameters()}
    for parameter in names:  # before DDP's own hook, which sends
        parameter.register_post_accumulate_grad_hook(lambda p: events.append(("ready", names[p])))
    ddp = by_hand.DDP(model, CAP, CAP, all_reduce=sending)
    ddp(torch.ones(2, WIDTHS[0])).square().sum().backward()
    return events, [tuple(names[p] for p in bucket.views) for bucket in ddp.buckets]


def of_the_library():
    """Sizes of the buckets of PyTorch's DDP, in the order in which they leave."""
    launch.init()
    ddp, found = DistributedDataParallel(build(), bucket_cap_mb=CAP / 2**20), []

    def hook(_, bucket):
        found.append(sorted(parameter.nbytes for parameter in bucket.parameters()))
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    ddp.register_comm_hook(None, hook)
    for _ in range(2):  # the first pass has one bucket
        found.clear()
        ddp(torch.ones(2, WIDTHS[0])).square().sum().backward()
    return found


def test_a_real_run_has_the_same_events_and_buckets():
    steps = predicted()
    gradients = steps.timeline.gradients
    expected = [
        (event.what, gradients[event.place].name if event.what == "ready" else event.place)
        for event in steps.events
        if event.what != "arrives"
    ]
    buckets = [steps.contents(bucket) for bucket in range(len(steps.timeline.exchanges))]
    assert 2 < len(buckets) < len(gradients)  # otherwise this test shows little
    assert launch.run(real_run, ranks=2) == [(expected, buckets)] * 2
    size_of = {gradient.name: gradient.size_bytes for gradient in gradients}
    sizes = [sorted(size_of[name] for name in bucket) for bucket in buckets]
    assert launch.run(of_the_library, ranks=2) == [sizes] * 2


def test_without_overlap_all_are_ready_before_one_leaves():
    three = [Gradient(name, 10, 5.0) for name in "cba"]
    steps = bucket_steps(ddp_timeline(three, 2, SLOW, cap_bytes=10, overlap=False))
    assert [event.what for event in steps.events[:4]] == ["ready"] * 3 + ["leaves"]


def test_a_step_without_a_gradient_is_in_the_open_bucket():
    chain = [Gradient("c", 10, 1.0), Gradient("nothing", 0, 1.0), Gradient("a", 10, 1.0)]
    steps = bucket_steps(ddp_timeline(chain, 2, SLOW, cap_bytes=20, first_bytes=20))
    assert steps.bucket_of == (0, 0, 0)


TIMELINES = [
    ddp_timeline([Gradient(name, 10, 5.0) for name in names], 2, SLOW_LINK, cap_bytes=10)
    for names in ("cba", "dcba")
]
STEPS = [bucket_steps(timeline) for timeline in TIMELINES]
PROBES = {
    "bucket_steps": Probe(bucket_steps, {"timeline": TIMELINES[0]}, {"timeline": TIMELINES[1]}),
    "BucketSteps.contents": Probe(STEPS[0].contents, {"bucket": 0}, {"bucket": 1}),
}
RECORDS = {
    "BucketEvent": list(STEPS[0].events),
    "BucketSteps": STEPS,
}
