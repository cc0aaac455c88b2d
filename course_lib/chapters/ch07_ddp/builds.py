"""Build 7.10: gradient buckets, and DDP by hooks."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, TypeAlias

from course_lib import mine
from course_lib.checking.build import build
from course_lib.checking.builds.compare import Case, Place, compare, in_turn
from course_lib.checking.builds.lazily import dist, later, nn, torch
from course_lib.checking.builds.raced import four_layers, trained
from course_lib.checking.builds.rows import Must, Never, Row, Rows, Sends
from course_lib.checking.races import Race
from course_lib.theory.inputs.hardware import PCIE4
from course_lib.theory.network.bucket_timeline import Gradient, ddp_timeline
from course_lib.theory.stories.copies import bucket_steps
from course_lib.theory.stories.messages import ring_steps
from course_lib.trace import Trace

_models = later("course_lib.checking.builds.on_rank.small_models")
_ddp, _peers = later("course_lib.scratch.ddp"), later("course_lib.scratch.collectives")
_wire, _parallel = later("course_lib.measure.wire"), later("torch.nn.parallel")

_Gradients: TypeAlias = dict[str, Any]  # by parameter name
_CAP_BYTES = 100  # each layer of `Branches` fills a bucket of its own
_FIRST_BYTES = 20  # size of one bias
_SHAPES = ((2, 3), (1,), (4,))  # of the gradients in one bucket
_BOTH = ("left", "right")  # the branches of `Branches`


def _exchange(first_bytes: int) -> Trace:
    """Calls of every rank in a backward pass: one all-reduce per bucket."""
    trained = _models.trained(_models.Branches())
    gradients = [Gradient(name, p.nbytes, 1e-3) for name, p in reversed(trained.items())]
    return bucket_steps(
        ddp_timeline(gradients, 2, PCIE4, cap_bytes=_CAP_BYTES, first_bytes=first_bytes)
    )


# Run on each rank


class _DeferredSum:
    """A sum over ranks that is computed only by `wait`.

    Appends its bytes to `events` when created, and "arrived" once it has been waited for.
    """

    def __init__(self, events: list[Any], flat: Any) -> None:
        self.events, self.flat, self.done = events, flat, False
        events.append(flat.nbytes)

    def wait(self) -> None:
        if not self.done:
            dist.all_reduce(self.flat)
            self.events.append("arrived")
        self.done = True


def _bucket(parts: SimpleNamespace, *_: Any) -> Any:
    """Return each parameter's `.grad` after each of two rounds, and the events."""
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in _SHAPES]
    bucket, events, gradients = parts.Bucket(parameters), list[Any](), []
    for number in range(2):
        for parameter, grad in zip(parameters, _grads(dist.get_rank(), number), strict=True):
            parameter.grad = grad
            bucket.take(parameter)
        bucket.send(partial(_DeferredSum, events))
        events.append("has returned")
        bucket.receive()
        gradients.append([None if p.grad is None else p.grad.clone() for p in parameters])
    return gradients, events


def _grads(rank: int, number: int) -> list[Any]:
    """The gradients that a rank puts into the bucket in one round."""
    gradients: list[Any] = _models.several_random(10 * number + rank, _SHAPES)
    return gradients


def _make_ddp(parts: SimpleNamespace, first_bytes: int = _CAP_BYTES, **options: Any) -> Any:
    """The learner's DDP around a model whose weights differ between ranks."""
    model = _models.Branches(seed=dist.get_rank())
    return parts.DDP(model, _CAP_BYTES, first_bytes, **options)


def _order_of(rank: int) -> tuple[str, ...]:
    """Order of branches on a rank: odd ranks compute them in reverse."""
    return _BOTH[::-1] if rank % 2 else _BOTH


def _backward(ddp: Any, number: int, order: tuple[str, ...] = (), *, anew: bool = True) -> Any:
    """Run a backward pass, after zero_grad if `anew`; return the gradients and the messages."""
    rank = dist.get_rank()
    if anew:
        ddp.zero_grad()
    with _wire.log_wire() as log:
        ddp(_models.rows(rank, number), order or _order_of(rank)).backward()
    return _models.gradients(ddp.module), log


def _run_passes(parts: SimpleNamespace, *_: Any) -> Any:
    """Two backward passes with torch's all-reduce, then two that record events.

    A parameter's name is recorded as the event that its gradient is ready.
    """
    plain = _make_ddp(parts)
    state = {name: value.clone() for name, value in plain.module.state_dict().items()}
    first, log = _backward(plain, 0)
    added, _ = _backward(plain, 1, anew=False)
    model, now, gradients, events = _models.Branches(seed=dist.get_rank()), list[Any](), [first], []
    for name, p in _models.trained(model).items():
        p.register_post_accumulate_grad_hook(lambda _, name=name: now.append(name))
    ddp = parts.DDP(model, _CAP_BYTES, _CAP_BYTES, all_reduce=partial(_DeferredSum, now))
    for number in range(2):
        now.clear()
        gradients.append(_backward(ddp, number)[0])
        events.append(list(now))
    return state, log, gradients, added, events


def _run_no_sync(parts: SimpleNamespace, *_: Any) -> Any:
    """Two passes, the first in no_sync; one after an error in no_sync; whether it was swallowed."""
    ddp = _make_ddp(parts, _FIRST_BYTES)
    with ddp.no_sync():
        quiet = _backward(ddp, 0)
    behind = _backward(ddp, 1, anew=False)
    swallowed = False
    with suppress(ZeroDivisionError):
        with ddp.no_sync():
            raise ZeroDivisionError
        swallowed = True
    return quiet, behind, _backward(ddp, 2), swallowed


def _unused_error(parts: SimpleNamespace, cap: int) -> tuple[str, str]:
    """Type and message of the error when rank 1 skips a branch, or "" and "" for no error.

    The all-reduce is a stub, so that no rank waits for another.
    """
    rank, stub = dist.get_rank(), SimpleNamespace(wait=lambda: None)
    model = _models.Branches(seed=rank)
    ddp = parts.DDP(model, cap, cap, all_reduce=lambda _: stub)
    try:
        ddp(_models.rows(0, 0), _BOTH[:1] if rank else _BOTH).backward()
    except Exception as error:
        kind = RuntimeError if isinstance(error, RuntimeError) else type(error)
        return kind.__name__, str(error)
    return "", ""


def _run_unused(parts: SimpleNamespace, *_: Any) -> list[_Gradients]:
    """Gradients if all but rank 0 skip a branch, if all do, or if only a no_sync pass uses it."""
    ddp, left = _make_ddp(parts, find_unused=True), _BOTH[:1]
    passes = [_backward(ddp, 0, left if dist.get_rank() else _BOTH), _backward(ddp, 0, left)]
    with ddp.no_sync():
        _backward(ddp, 1, _BOTH)
    return [gradients for gradients, _ in (*passes, _backward(ddp, 2, left, anew=False))]


def _run_ring(parts: SimpleNamespace, *_: Any) -> Any:
    """Gradients of one pass with ring all-reduces, and the messages."""
    halves = {name: mine.get(f"ring_{name}") for name in ("reduce_scatter", "all_gather")}
    ring = partial(_ddp.RingSum, peers=_peers.Peers(), **halves)
    return _backward(_make_ddp(parts, all_reduce=ring), 0)


# Check the results


def _alone(rank: int, *passes: tuple[int, tuple[str, ...]]) -> _Gradients:
    """Gradients of a rank's own rows, summed over backward passes (number, order)."""
    model = _models.Branches()
    for number, order in passes:
        model(_models.rows(rank, number), order).backward()
    return _models.gradients(model)


def _all_alone(ranks: int, *numbers: int) -> list[_Gradients]:
    """Gradients of each rank by itself, with its own order of branches."""
    return [_alone(r, *((number, _order_of(r)) for number in numbers)) for r in range(ranks)]


def _mean(actual: Any, by_rank: Sequence[Any], rank: int, what: str) -> Iterator[Row]:
    """Check that `found` is the mean of the tensors `own`, one per rank."""
    ranks, alone = len(by_rank), by_rank[rank]
    yield Never(actual is None, f"{what} is None")
    factors = {
        float(ranks): "the sum over ranks, where the mean is wanted",
        1 / ranks: "it is divided by the number of ranks twice",
    }
    others = {
        f"what rank {rank} has by itself": alone,
        f"1/{ranks} of what rank {rank} has by itself": alone / ranks,
    }
    yield Must(what, actual, torch.stack(list(by_rank)).mean(0), others, factors)


def _means(found: _Gradients, own: list[_Gradients], rank: int, where: str = "") -> Iterator[Row]:
    like = _models.trained(_models.Branches())
    for key, gradient in found.items():
        each = [torch.zeros_like(like[key]) if g is None else g for g in (o[key] for o in own)]
        yield from _mean(gradient, each, rank, f"{where}the gradient of `{key}`")


def _check_sums(seen: Any, at: Place) -> Rows:
    rounds, events = seen
    waits = ("arrived", "has returned") in pairwise(events)
    yield Never(waits, "`send` waits for its sum: that is for `receive`")
    calls = sum(isinstance(event, int) for event in events)
    often = f"`all_reduce` is called {calls} times in two rounds of `send` and `receive`: "
    yield Never(calls != 2, f"{often}`send` calls it once")
    for number, gradients in enumerate(rounds):
        own = list(zip(*(_grads(one, number) for one in range(at.ranks)), strict=True))
        for shape, gradient, each in zip(_SHAPES, gradients, own, strict=True):
            what = f", round {number + 1}: `.grad` of the parameter of shape {shape}"
            yield from _mean(gradient, each, at.rank, what)


_SENT_ONCE = "each bucket of `fill` is sent once in a backward pass"


def _check_passes(seen: Any, at: Place) -> Rows:
    state, log, passes, added, all_events = seen
    first, own_state = (_models.Branches(seed=n).state_dict() for n in (0, at.rank))
    for key, value in state.items():
        others = {"still what this rank began with": own_state[key]} if at.rank else {}
        yield Must(f"after the constructor `{key}`", value, first[key], others)
    yield Sends(log, _exchange(_CAP_BYTES), _SENT_ONCE)
    for number, events in enumerate(all_events):
        ready = not number or events[len(added) :]
        yield Never(not ready, "after one backward pass DDP is not ready for a second")
        yield _check_overlap(f", backward pass {number + 1}: ", events)
    for number, gradients in zip((0, 0, 1), passes, strict=True):
        where = f", backward pass {number + 1}: "
        yield from _means(gradients, _all_alone(at.ranks, number), at.rank, where)
    where = ", two backward passes without zero_grad: "
    yield from _means(added, _all_alone(at.ranks, 0, 1), at.rank, where)


def _check_overlap(where: str, events: list[Any]) -> Iterator[Row]:
    """Buckets are sent in order, once full, during backward; all are waited for at its end."""
    names = {p: name for name, p in _models.trained(_models.Branches()).items()}
    buckets = [{names[p] for p in bucket} for bucket in _ddp.fill(names, _CAP_BYTES, _CAP_BYTES)]
    ready, sent, arrived = set[str](), list[int](), 0  # `sent`: gradients ready at each send
    for event in events:
        if event == "arrived":
            early = len(ready) < len(names)
            yield Never(early, f"{where}waits for a sum before the last gradient is there")
            arrived += 1
        elif isinstance(event, str):
            ready.add(event)
        elif len(sent) < len(buckets):
            yield from _check_full(where, buckets, len(sent), ready)
            sent.append(len(ready))
    yield Never(not sent, f"{where}nothing is given to the `all_reduce` with which DDP was made")
    missing = f"sends {len(sent)} of {len(buckets)} buckets"
    if len(sent) == len(buckets):
        missing = f"waits for {arrived} of {len(sent)} sums"
    unfinished = len(sent) < len(buckets) or arrived < len(sent)
    yield Never(unfinished, f"{where}backward() returns, and DDP {missing}")
    late = f"{where}the first bucket is sent when all {len(names)} gradients are there: "
    yield Never(sent[0] == len(names), f"{late}nothing travels while backward runs")


def _check_full(where: str, buckets: list[set[str]], number: int, ready: set[str]) -> Iterator[Row]:
    if buckets[number] <= ready:
        return
    for other in range(number + 1, len(buckets)):
        yield Never(
            buckets[other] <= ready,
            f"{where}bucket {other} is sent before bucket {number}, since it is full earlier on "
            "this rank: on other ranks it is not, and different buckets would be added",
        )
    some = f"{len(ready & buckets[number])} of its {len(buckets[number])} gradients are there"
    yield Never(True, f"{where}bucket {number} is sent when {some}")


def _check_no_sync(seen: Any, at: Place) -> Rows:
    (_, quiet), (added, one), (after, other), swallowed = seen
    yield Never(swallowed, "an error inside no_sync() does not come out of it")
    calls = len(quiet.calls)
    yield Never(calls, f"a backward pass inside no_sync() sends {calls} times")
    where = ", after no_sync() and a pass behind it: "
    yield from _means(added, _all_alone(at.ranks, 0, 1), at.rank, where)
    where = ", in a pass after an error inside no_sync(): "
    yield from _means(after, _all_alone(at.ranks, 2), at.rank, where)
    for log in (one, other):
        yield Sends(log, _exchange(_FIRST_BYTES), f"behind no_sync() {_SENT_ONCE}")


def _check_errors(errors: list[tuple[str, str]], at: Place) -> Rows:
    """Check errors where the branch fills a bucket, and where it is part of the only one."""
    for (kind, words), where in zip(errors, ("", ", all in one bucket,"), strict=True):
        if not at.rank:
            yield Never(
                kind, f"{where} uses every parameter, and backward() raises {kind}: {words}"
            )
            continue
        why = f"{where} does not use the layer `right`, and "
        raises = f"backward() raises {kind or 'nothing'}, expected a RuntimeError"
        yield Never(kind != "RuntimeError", why + raises)
        for key in ("left.weight", "ends.bias"):
            yield Never(key in words, f"{why}the error names {key} as well: {words}")
        for key in ("right.weight", "right.bias"):
            yield Never(key not in words, f"{why}the error does not name {key}: {words}")


def _check_unused(cases: Any, at: Place) -> Rows:
    left = _BOTH[:1]
    used: dict[str, Callable[[int], Any]] = {
        "by rank 0 only": lambda rank: [(0, left if rank else _BOTH)],
        "by no rank": lambda _: [(0, left)],
        "inside no_sync() only": lambda _: [(1, _BOTH), (2, left)],
    }
    for (how, passes), gradients in zip(used.items(), cases, strict=True):
        own = [_alone(rank, *passes(rank)) for rank in range(at.ranks)]
        yield from _means(gradients, own, at.rank, f", find_unused, `right` used {how}: ")


def _check_ring(seen: Any, at: Place) -> Rows:
    yield from _means(seen[0], _all_alone(at.ranks, 0), at.rank, ", on a ring: ")
    buckets = [one.bytes for one in _exchange(_CAP_BYTES) if one.sends]
    hops = (hop for size in buckets for hop in ring_steps(at.ranks, size // at.ranks))
    yield Sends(seen[1], Trace(hops), "a ring carries each bucket once", who=at.rank)


def _raced(ddp: Any) -> Callable[[], object]:
    return trained(ddp, ddp.zero_grad)


DDP = build(
    "ddp",
    steps=(
        compare("a bucket", ("Bucket.take", "Bucket.send", "Bucket.receive"), _bucket, _check_sums),
        compare(
            "while backward runs",
            ("DDP._ready", "DDP._finish"),
            _run_passes,
            _check_passes,
            (Case(ranks=3),),
        ),
        compare("no_sync", ("DDP.no_sync",), _run_no_sync, _check_no_sync),
        in_turn(
            "unused parameters",
            ("DDP._treat_unused",),
            compare(
                "",
                (),
                lambda parts, *_: [_unused_error(parts, cap) for cap in (_CAP_BYTES, 2**20)],
                _check_errors,
            ),
            compare("", (), _run_unused, _check_unused),
        ),
        compare("on the ring of 6.11", ("DDP",), _run_ring, _check_ring, (Case(ranks=3),)),
    ),
    race=Race(
        "a backward pass with 4 MB of gradients",
        lambda parts: _raced(parts.DDP(four_layers(), 2**20, 2**20)),
        lambda: _raced(
            _parallel.DistributedDataParallel(
                four_layers(), bucket_cap_mb=1, gradient_as_bucket_view=True
            )
        ),
    ),
)
