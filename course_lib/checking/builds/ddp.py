"""Build 7.10: buckets of gradients, and DDP from hooks."""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from course_lib import mine
from course_lib.checking.build import build
from course_lib.checking.builds.compare import (
    Case,
    Must,
    Never,
    Place,
    Row,
    Rows,
    Sends,
    compare,
    in_turn,
    later,
    torch,
)
from course_lib.checking.builds.torch_races import RACES
from course_lib.theory.network.buckets import ddp_buckets
from course_lib.theory.network.collectives import sent_bytes, steps

if TYPE_CHECKING:
    from course_lib.checking.builds.on_rank import ddp as work
    from course_lib.checking.builds.on_rank import small_models
    from course_lib.checking.builds.on_rank.ddp import Gradients, Passes
else:
    work = later("course_lib.checking.builds.on_rank.ddp")
    small_models = later("course_lib.checking.builds.on_rank.small_models")


def _mean(found: Any, own: "Sequence[torch.Tensor]", rank: int, what: str) -> Iterator[Row]:
    """`found` is the mean over ranks of what each has by itself."""
    ranks, alone = len(own), own[rank]
    yield Never(found is None, f"{what} is None")
    factors = {
        float(ranks): "the sum over ranks, where the mean is wanted",
        1 / ranks: "it is divided by the number of ranks twice",
    }
    others = {
        f"what rank {rank} has by itself": alone,
        f"1/{ranks} of what rank {rank} has by itself": alone / ranks,
    }
    yield Must(what, found, torch.stack(list(own)).mean(0), others, factors)


def _means(
    found: "Gradients", own: "Sequence[Gradients]", rank: int, where: str = ""
) -> Iterator[Row]:
    for key, gradient in found.items():
        each = work.zero_where_none([one[key] for one in own], key)
        yield from _mean(gradient, each, rank, f"{where}the gradient of `{key}`")


def _exchange(log: Any, first_bytes: int, place: str = "") -> Sends:
    """One all-reduce for each bucket, and the theory's bytes."""
    sizes = ddp_buckets(work.gradient_bytes(), work.CAP_BYTES, first_bytes)
    why = f"{place}each bucket of `fill` is sent once in a backward pass"
    return Sends(log, {"all-reduce": (len(sizes), sum(sizes))}, why)


def _a_bucket(seen: Any, at: Place) -> Iterator[Row]:
    found, sent, waits = seen
    yield Never(waits, "`send` waits for its sum: that is for `receive`")
    yield Never(
        len(sent) != 2,
        f"`all_reduce` is called {len(sent)} times in two rounds of `send` and `receive`: `send` "
        "calls it once",
    )
    for number, gradients in enumerate(found):
        own = list(zip(*(work.laid_in(one, number) for one in range(at.ranks)), strict=True))
        for shape, gradient, each in zip(work.SHAPES, gradients, own, strict=True):
            what = f", round {number + 1}: `.grad` of the parameter of shape {shape}"
            yield from _mean(gradient, each, at.rank, what)


def _while_backward_runs(passes: "Passes", at: Place) -> Rows:
    first, own_state = (small_models.Branches(seed=n).state_dict() for n in (0, at.rank))
    for key, value in passes.state.items():
        others = {"still what this rank began with": own_state[key]} if at.rank else {}
        yield Must(f"after the constructor `{key}`", value, first[key], others)
    yield _exchange(passes.sent, work.CAP_BYTES)
    for number, events in enumerate(passes.events):
        ready = not number or events[len(work.gradient_bytes()) :]
        yield Never(not ready, "after one backward pass DDP is not ready for a second")
        yield _overlap(f", backward pass {number + 1}: ", events)
    order = [work.order_of(one) for one in range(at.ranks)]
    for place, number in enumerate((0, 0, 1)):
        own = [work.alone(one, (number, order[one])) for one in range(at.ranks)]
        where = f", backward pass {number + 1}: "
        yield from _means(passes.gradients[place], own, at.rank, where)
    both = [work.alone(one, (0, order[one]), (1, order[one])) for one in range(at.ranks)]
    where = ", two backward passes without zero_grad: "
    yield from _means(passes.added, both, at.rank, where)


def _overlap(where: str, events: list[Any]) -> Iterator[Row]:
    """Buckets are sent when they are full, in order, during backward, and waited for at its end."""
    buckets, ready, sent, arrived = work.buckets(), set[str](), list[int](), 0
    gradients = sum(map(len, buckets))
    for event in events:
        if event == "arrived":
            early = len(ready) < gradients
            yield Never(early, f"{where}waits for a sum before the last gradient is there")
            arrived += 1
        elif isinstance(event, str):
            ready.add(event)
        elif len(sent) < len(buckets):
            yield from _full(where, buckets, len(sent), ready)
            sent.append(len(ready))
    yield Never(not sent, f"{where}nothing is given to the `all_reduce` with which DDP was made")
    missing = f"sends {len(sent)} of {len(buckets)} buckets"
    if len(sent) == len(buckets):
        missing = f"waits for {arrived} of {len(sent)} sums"
    some = len(sent) < len(buckets) or arrived < len(sent)
    yield Never(some, f"{where}backward() returns, and DDP {missing}")
    yield Never(
        sent[0] == gradients,
        f"{where}the first bucket is sent when all {gradients} gradients are there: nothing "
        "travels while backward runs",
    )


def _full(where: str, buckets: list[list[str]], number: int, ready: set[str]) -> Iterator[Row]:
    there, of = ready & set(buckets[number]), len(buckets[number])
    if len(there) == of:
        return
    for other in range(number + 1, len(buckets)):
        yield Never(
            ready >= set(buckets[other]),
            f"{where}bucket {other} is sent before bucket {number}, since it is full earlier on "
            "this rank: on other ranks it is not, and different buckets would be added",
        )
    some = f"{len(there)} of its {of} gradients are there"
    yield Never(True, f"{where}bucket {number} is sent when {some}")


def _quiet(seen: Any, at: Place) -> Iterator[Row]:
    found, sent, came_out = seen
    yield Never(not came_out, "an error inside no_sync() does not come out of it")
    calls = len(sent[0].calls)
    yield Never(calls, f"a backward pass inside no_sync() sends {calls} times")
    for place, (numbers, where) in enumerate(
        (
            ((0, 1), ", after no_sync() and a pass behind it: "),
            ((2,), ", in a pass after an error inside no_sync(): "),
        )
    ):
        own = [
            work.alone(one, *((number, work.order_of(one)) for number in numbers))
            for one in range(at.ranks)
        ]
        yield from _means(found[place], own, at.rank, where)
    for log in sent[1:]:
        yield _exchange(log, work.FIRST_BYTES, "behind no_sync() ")


def _told(said: Any, at: Place) -> Iterator[Row]:
    for (kind, words), where in zip(said, ("", ", all in one bucket,"), strict=True):
        if not at.rank:
            yield Never(
                kind, f"{where} uses every parameter, and backward() raises {kind}: {words}"
            )
            continue
        why = f"{where} does not use the layer `right`, and "
        yield Never(
            kind != "RuntimeError",
            f"{why}backward() raises {kind or 'nothing'}, expected a RuntimeError",
        )
        for key in ("left.weight", "ends.bias"):
            yield Never(key in words, f"{why}the error names {key} as well: {words}")
        for key in ("right.weight", "right.bias"):
            yield Never(key not in words, f"{why}the error does not name {key}: {words}")


def _finds_unused(found: Any, at: Place) -> Iterator[Row]:
    both = small_models.BOTH
    left, ranks = both[:1], range(at.ranks)
    right = {
        "rank 0 only": [work.alone(one, (0, left if one else both)) for one in ranks],
        "no rank": [work.alone(one, (0, left)) for one in ranks],
        "inside no_sync() only": [work.alone(one, (1, both), (2, left)) for one in ranks],
    }
    for (whom, own), gradients in zip(right.items(), found, strict=True):
        by = "" if whom.startswith("inside") else "by "
        where = f", find_unused, `right` used {by}{whom}: "
        yield from _means(gradients, own, at.rank, where)


def _on_a_ring(parts: SimpleNamespace, *_: Any) -> Any:
    ring = mine.get("ring_reduce_scatter"), mine.get("ring_all_gather")
    return work.on_a_ring(parts.DDP, *ring)


def _ring(seen: Any, at: Place) -> Iterator[Row]:
    own = [work.alone(one, (0, work.order_of(one))) for one in range(at.ranks)]
    yield from _means(seen[0], own, at.rank, ", on a ring: ")
    sizes = ddp_buckets(work.gradient_bytes(), work.CAP_BYTES, work.CAP_BYTES)
    calls = len(sizes) * steps("all-reduce", at.ranks)
    size = sum(round(sent_bytes("all-reduce", each, at.ranks)) for each in sizes)
    yield Sends(seen[1], {"send-recv": (calls, size)}, "a ring carries each bucket once")


DDP = build(
    "ddp",
    title="DDP from hooks",
    hints=(
        "take: `.grad / ranks` into the parameter's view of the flat tensor; and `.grad` becomes "
        "the view, so that the mean arrives where the optimizer looks.",
        "Three places: the constructor broadcasts and sets hooks, `_ready` is what a hook calls, "
        "`_finish` is what `after_backward` calls. Who calls `after_backward`, and how often?",
        "Send buckets from a counter on: the next one only if it waits for no gradient, and so on "
        "until one does.",
        "no_sync: while it is open, `_ready` does nothing at all.",
        "Unused: at the end of backward some parameters are still waited for. Take their gradient "
        "as it is, or zeros if there is none; then send what is full.",
    ),
    steps=(
        compare(
            "a bucket",
            ("Bucket.take", "Bucket.send", "Bucket.receive"),
            lambda parts, *_: work.bucketed(parts.Bucket),
            _a_bucket,
        ),
        compare(
            "while backward runs",
            ("DDP._ready", "DDP._finish"),
            lambda parts, *_: work.two_passes(parts.DDP),
            _while_backward_runs,
            (Case(ranks=3),),
        ),
        compare(
            "no_sync",
            ("DDP.no_sync",),
            lambda parts, *_: work.with_no_sync(parts.DDP),
            _quiet,
        ),
        in_turn(
            "unused parameters",
            ("DDP._treat_unused",),
            compare("", (), lambda parts, *_: work.one_leaves_out(parts.DDP), _told),
            compare("", (), lambda parts, *_: work.finds_unused(parts.DDP), _finds_unused),
        ),
        compare("on the ring of 6.11", ("DDP",), _on_a_ring, _ring, (Case(ranks=3),)),
    ),
    race=RACES["ddp"],
)
