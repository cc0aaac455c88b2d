"""Build 7.10: buckets of gradients, and DDP from hooks."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from course_lib import mine
from course_lib.checking.build import Step, build
from course_lib.checking.builds.compared import expect_sent, expect_tensor
from course_lib.checking.builds.outcome import Outcome
from course_lib.checking.builds.ranks import each_rank, on_ranks
from course_lib.checking.exercises import Wrong
from course_lib.checking.races import Race
from course_lib.theory.network.buckets import ddp_buckets
from course_lib.theory.network.collectives import sent_bytes, steps

if TYPE_CHECKING:
    from torch import Tensor

    from course_lib.checking.builds.on_rank.ddp import Gradients


def _expect_mean(found: Any, own: "Sequence[Tensor]", rank: int, what: str) -> None:
    """Raise Wrong unless `found` is the mean over ranks of what each has by itself."""
    import torch

    ranks = len(own)
    if found is None:
        raise Wrong(f"{what} is None")
    expect_tensor(
        found,
        torch.stack(list(own)).mean(0),
        what,
        factors={
            float(ranks): "the sum over ranks, where the mean is wanted",
            1 / ranks: "it is divided by the number of ranks twice",
        },
        others={
            f"what rank {rank} has by itself": own[rank],
            f"1/{ranks} of what rank {rank} has by itself": own[rank] / ranks,
        },
    )


def _expect_gradients(
    name: str, rank: int, found: "Gradients", own: "Sequence[Gradients]", where: str = ""
) -> None:
    from course_lib.checking.builds.on_rank import ddp as work

    for key, gradient in found.items():
        each = work.zero_where_none([one[key] for one in own], key)
        _expect_mean(gradient, each, rank, f"{name}{where}: the gradient of `{key}`")


def _expect_exchange(outcomes: list[Outcome], first_bytes: int, place: str = "") -> None:
    """One all-reduce for each bucket, and the theory's bytes."""
    from course_lib.checking.builds.on_rank import ddp as work

    sizes = ddp_buckets(work.gradient_bytes(), work.CAP_BYTES, first_bytes)
    why = f"{place}each bucket of `fill` is sent once in a backward pass"
    expect_sent(outcomes, {"all-reduce": (len(sizes), sum(sizes))}, why)


def _a_bucket(parts: SimpleNamespace) -> None:
    from course_lib.checking.builds.on_rank import ddp as work

    ranks = 2
    outcomes = on_ranks(work.bucketed, parts.Bucket, ranks=ranks)
    for rank, (name, (found, sent, waits)) in enumerate(each_rank(outcomes)):
        if waits:
            raise Wrong(f"{name}: `send` waits for its sum: that is for `receive`")
        if len(sent) != 2:
            raise Wrong(
                f"{name}: `all_reduce` is called {len(sent)} times in two rounds of `send` and "
                "`receive`: `send` calls it once"
            )
        for number, gradients in enumerate(found):
            own = list(zip(*(work.laid_in(one, number) for one in range(ranks)), strict=True))
            for shape, gradient, each in zip(work.SHAPES, gradients, own, strict=True):
                what = f"{name}, round {number + 1}: `.grad` of the parameter of shape {shape}"
                _expect_mean(gradient, each, rank, what)


def _while_backward_runs(parts: SimpleNamespace) -> None:
    from course_lib.checking.builds.on_rank import ddp as work
    from course_lib.checking.builds.on_rank.small_models import Branches

    ranks = 3
    outcomes = on_ranks(work.two_passes, parts.DDP, ranks=ranks)
    first = Branches(seed=0).state_dict()
    for rank, (name, passes) in enumerate(each_rank(outcomes)):
        own_state = Branches(seed=rank).state_dict()
        for key, value in passes.state.items():
            others = {"still what this rank began with": own_state[key]} if rank else {}
            expect_tensor(
                value, first[key], f"{name}: after the constructor `{key}`", others=others
            )
    _expect_exchange([Outcome(None, one.value.sent) for one in outcomes], work.CAP_BYTES)
    for name, passes in each_rank(outcomes):
        for number, events in enumerate(passes.events):
            if number and not events[len(work.gradient_bytes()) :]:
                raise Wrong(f"{name}: after one backward pass DDP is not ready for a second")
            _expect_overlap(f"{name}, backward pass {number + 1}", events)
    for rank, (name, passes) in enumerate(each_rank(outcomes)):
        for place, number in enumerate((0, 0, 1)):
            own = [work.alone(one, (number, work.order_of(one))) for one in range(ranks)]
            where = f", backward pass {number + 1}"
            _expect_gradients(name, rank, passes.gradients[place], own, where)
        order = [work.order_of(one) for one in range(ranks)]
        both = [work.alone(one, (0, order[one]), (1, order[one])) for one in range(ranks)]
        where = ", two backward passes without zero_grad"
        _expect_gradients(name, rank, passes.added, both, where)


def _expect_overlap(name: str, events: list[Any]) -> None:
    """Buckets are sent when they are full, in order, during backward, and waited for at its end."""
    from course_lib.checking.builds.on_rank import ddp as work

    buckets, ready, sent, arrived = work.buckets(), set[str](), list[int](), 0
    gradients = sum(map(len, buckets))
    for event in events:
        if event == "arrived":
            if len(ready) < gradients:
                raise Wrong(f"{name}: waits for a sum before the last gradient is there")
            arrived += 1
        elif isinstance(event, str):
            ready.add(event)
        elif len(sent) < len(buckets):
            _expect_full(name, buckets, len(sent), ready)
            sent.append(len(ready))
    if not sent:
        raise Wrong(f"{name}: nothing is given to the `all_reduce` with which DDP was made")
    if len(sent) < len(buckets) or arrived < len(sent):
        missing = f"sends {len(sent)} of {len(buckets)} buckets"
        if len(sent) == len(buckets):
            missing = f"waits for {arrived} of {len(sent)} sums"
        raise Wrong(f"{name}: backward() returns, and DDP {missing}")
    if sent[0] == gradients:
        raise Wrong(
            f"{name}: the first bucket is sent when all {gradients} gradients are there: nothing "
            "travels while backward runs"
        )


def _expect_full(name: str, buckets: list[list[str]], number: int, ready: set[str]) -> None:
    there = [key for key in buckets[number] if key in ready]
    if len(there) == len(buckets[number]):
        return
    others = [n for n in range(number + 1, len(buckets)) if ready >= set(buckets[n])]
    if others:
        raise Wrong(
            f"{name}: bucket {others[0]} is sent before bucket {number}, since it is full "
            "earlier on this rank: on other ranks it is not, and different buckets would be added"
        )
    raise Wrong(
        f"{name}: bucket {number} is sent when {len(there)} of its {len(buckets[number])} "
        "gradients are there"
    )


def _quiet(parts: SimpleNamespace) -> None:
    from course_lib.checking.builds.on_rank import ddp as work

    ranks = 2
    outcomes = on_ranks(work.with_no_sync, parts.DDP, ranks=ranks)
    for rank, (name, (found, sent, came_out)) in enumerate(each_rank(outcomes)):
        if not came_out:
            raise Wrong(f"{name}: an error inside no_sync() does not come out of it")
        if calls := len(sent[0].calls):
            raise Wrong(f"{name}: a backward pass inside no_sync() sends {calls} times")
        for place, numbers in enumerate(((0, 1), (2,))):
            own = [
                work.alone(one, *((number, work.order_of(one)) for number in numbers))
                for one in range(ranks)
            ]
            where = ", after no_sync() and a pass behind it"
            where = ", in a pass after an error inside no_sync()" if place else where
            _expect_gradients(name, rank, found[place], own, where)
    for number in (1, 2):
        logs = [Outcome(None, one.value[1][number]) for one in outcomes]
        _expect_exchange(logs, work.FIRST_BYTES, "behind no_sync() ")


def _unused(parts: SimpleNamespace) -> None:
    from course_lib.checking.builds.on_rank import ddp as work
    from course_lib.checking.builds.on_rank.small_models import BOTH

    ranks = 2
    for rank, (name, said) in enumerate(
        each_rank(on_ranks(work.one_leaves_out, parts.DDP, ranks=ranks))
    ):
        for (kind, words), where in zip(said, ("", ", all in one bucket,"), strict=True):
            _expect_told(f"{name}{where}", kind, words, unused=rank > 0)
    outcomes = on_ranks(work.finds_unused, parts.DDP, ranks=ranks)
    left_out = [work.alone(one, (0, BOTH if one == 0 else BOTH[:1])) for one in range(ranks)]
    kept = [work.alone(one, (1, BOTH), (2, BOTH[:1])) for one in range(ranks)]
    nobody = [work.alone(one, (0, BOTH[:1])) for one in range(ranks)]
    for rank, (name, (first, none, second)) in enumerate(each_rank(outcomes)):
        where = ", find_unused, `right` used by rank 0 only"
        _expect_gradients(name, rank, first, left_out, where)
        where = ", find_unused, `right` used by no rank"
        _expect_gradients(name, rank, none, nobody, where)
        where = ", find_unused, `right` used inside no_sync() only"
        _expect_gradients(name, rank, second, kept, where)


def _expect_told(name: str, kind: str, said: str, unused: bool) -> None:
    if not unused and kind:
        raise Wrong(f"{name} uses every parameter, and backward() raises {kind}: {said}")
    if unused and kind != "RuntimeError":
        found = kind or "nothing"
        raise Wrong(
            f"{name} does not use the layer `right`, and backward() raises {found}, expected a "
            "RuntimeError"
        )
    if unused and (used := [key for key in ("left.weight", "ends.bias") if key in said]):
        raise Wrong(
            f"{name} does not use the layer `right`, and the error names {used[0]} as well: {said}"
        )
    missing = [key for key in ("right.weight", "right.bias") if unused and key not in said]
    if missing:
        raise Wrong(
            f"{name} does not use the layer `right`, and the error does not name {missing[0]}: "
            f"{said}"
        )


def _on_the_ring(parts: SimpleNamespace) -> None:
    from course_lib.checking.builds.on_rank import ddp as work

    ranks = 3
    ring = mine.get("ring_reduce_scatter"), mine.get("ring_all_gather")
    outcomes = on_ranks(work.on_a_ring, parts.DDP, *ring, ranks=ranks)
    own = [work.alone(one, (0, work.order_of(one))) for one in range(ranks)]
    for rank, (name, (found, _)) in enumerate(each_rank(outcomes)):
        _expect_gradients(name, rank, found, own, ", on a ring")
    sizes = ddp_buckets(work.gradient_bytes(), work.CAP_BYTES, work.CAP_BYTES)
    calls = len(sizes) * steps("all-reduce", ranks)
    size = sum(round(sent_bytes("all-reduce", each, ranks)) for each in sizes)
    logs = [Outcome(None, one.value[1]) for one in outcomes]
    expect_sent(logs, {"send-recv": (calls, size)}, "a ring carries each bucket once")


def _prepared(parts: SimpleNamespace) -> Any:
    """A backward pass with buckets of one layer each."""
    from course_lib.checking.builds.on_rank import ddp as work

    return work.backward_of(parts.DDP(work.big_model(), 2**20, 2**20))


def _by_torch() -> Any:
    from torch.nn.parallel import DistributedDataParallel

    from course_lib.checking.builds.on_rank import ddp as work

    ddp = DistributedDataParallel(work.big_model(), bucket_cap_mb=1, gradient_as_bucket_view=True)
    return work.backward_of(ddp)


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
        Step("a bucket", ("Bucket.take", "Bucket.send", "Bucket.receive"), _a_bucket),
        Step("while backward runs", ("DDP._ready", "DDP._finish"), _while_backward_runs),
        Step("no_sync", ("DDP.no_sync",), _quiet),
        Step("unused parameters", ("DDP._treat_unused",), _unused),
        Step("on the ring of 6.11", ("DDP",), _on_the_ring),
    ),
    race=Race("a backward pass with 4 MB of gradients", _prepared, _by_torch),
)
