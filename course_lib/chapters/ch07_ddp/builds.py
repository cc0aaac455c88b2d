"""Build 7.10: buckets of gradients, and DDP from hooks."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

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
    dist,
    in_turn,
    later,
    nn,
    torch,
)
from course_lib.checking.builds.raced import four_layers, trained
from course_lib.checking.races import Race
from course_lib.theory.inputs.hardware import PCIE4
from course_lib.theory.network.bucket_timeline import Gradient, ddp_timeline
from course_lib.theory.stories.copies import bucket_steps
from course_lib.theory.stories.messages import ring_steps
from course_lib.trace import Trace

if TYPE_CHECKING:
    from course_lib.checking.builds.on_rank import small_models
else:
    small_models = later("course_lib.checking.builds.on_rank.small_models")

_buckets = later("course_lib.scratch.ddp")
_peers, _wire = later("course_lib.scratch.collectives"), later("course_lib.measure.wire")
_ring_sum = later("course_lib.scratch.ddp")

_Gradients: TypeAlias = "dict[str, torch.Tensor | None]"  # by the names of their parameters

_CAP_BYTES = 100  # each layer of `Branches` fills a bucket of its own
_FIRST_BYTES = 20  # of one bias
_SHAPES = ((2, 3), (1,), (4,))  # of what is laid into one bucket


def _exchange(first_bytes: int) -> Trace:
    """What every rank calls in a backward pass: one all-reduce for each bucket."""
    trained = small_models.trained(small_models.Branches())
    gradients = [Gradient(name, p.nbytes, 1e-3) for name, p in reversed(trained.items())]
    return bucket_steps(
        ddp_timeline(gradients, 2, PCIE4, cap_bytes=_CAP_BYTES, first_bytes=first_bytes)
    )


# What ranks do


class _Promise:
    """A sum over ranks that is made when it is waited for."""

    def __init__(self, flat: "torch.Tensor", events: list[Any]) -> None:
        self.flat, self.events, self.done = flat, events, False

    def wait(self) -> None:
        if not self.done:
            dist.all_reduce(self.flat)
            self.events.append("arrived")
        self.done = True


@dataclass
class _Diary:
    """What happens on a rank in a backward pass, in its order.

    A name: this parameter's gradient is there; a number: as many bytes are given to `all_reduce`;
    "arrived": a sum has been waited for.
    """

    events: list[Any] = field(default_factory=list)

    def all_reduce(self, flat: "torch.Tensor") -> _Promise:
        self.events.append(flat.nbytes)
        return _Promise(flat, self.events)


def _bucketed(parts: SimpleNamespace, *_: Any) -> Any:
    """`.grad` of each parameter after each of two rounds; the bytes sent; if `send` has waited."""
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in _SHAPES]
    held, diary, found, waits = parts.Bucket(parameters), _Diary(), [], False
    for number in range(2):
        for parameter, own in zip(parameters, _laid_in(dist.get_rank(), number), strict=True):
            parameter.grad = own
            held.take(parameter)
        held.send(diary.all_reduce)
        waits |= diary.events[-1:] == ["arrived"]
        held.receive()
        found.append([None if p.grad is None else p.grad.clone() for p in parameters])
    return found, [event for event in diary.events if event != "arrived"], waits


def _laid_in(rank: int, number: int) -> "list[torch.Tensor]":
    """The gradients of a rank in one round."""
    generator = torch.Generator().manual_seed(10 * number + rank)
    return [torch.randn(shape, generator=generator) for shape in _SHAPES]


def _wrapped(parts: SimpleNamespace, first_bytes: int = _CAP_BYTES, **options: Any) -> Any:
    """DDP of a model whose weights differ over the ranks."""
    model = small_models.Branches(seed=dist.get_rank())
    return parts.DDP(model, _CAP_BYTES, first_bytes, **options)


def _order_of(rank: int) -> tuple[str, ...]:
    """Odd ranks compute their branches the other way round."""
    return small_models.BOTH[::-1] if rank % 2 else small_models.BOTH


def _passed(ddp: Any, number: int, order: tuple[str, ...] = (), *, anew: bool = True) -> _Gradients:
    """The gradients after a backward pass, by default from none, in this rank's order."""
    rank = dist.get_rank()
    if anew:
        ddp.zero_grad()
    ddp(small_models.rows(rank, number), order or _order_of(rank)).backward()
    return small_models.gradients(ddp.module)


def _two_passes(parts: SimpleNamespace, *_: Any) -> dict[str, Any]:
    """Two backward passes by torch's all-reduce, then two that are written down."""
    plain = _wrapped(parts)
    state = {name: value.clone() for name, value in plain.module.state_dict().items()}
    with _wire.log_wire() as log:
        found = [_passed(plain, 0)]
    added = _passed(plain, 1, anew=False)
    diary, model, events = _Diary(), small_models.Branches(seed=dist.get_rank()), []
    for name, p in small_models.trained(model).items():
        p.register_post_accumulate_grad_hook(lambda _, name=name: diary.events.append(name))
    ddp = parts.DDP(model, _CAP_BYTES, _CAP_BYTES, all_reduce=diary.all_reduce)
    for number in range(2):
        diary.events.clear()
        found.append(_passed(ddp, number))
        events.append(list(diary.events))
    return {"state": state, "gradients": found, "log": log, "added": added, "events": events}


def _with_no_sync(parts: SimpleNamespace, *_: Any) -> Any:
    """Two passes of which the first is quiet; one after an error in no_sync; what each sent.

    And whether that error came out of it.
    """
    found, sent, came_out = [], [], False
    ddp = _wrapped(parts, _FIRST_BYTES)
    with _wire.log_wire() as log, ddp.no_sync():
        _passed(ddp, 0)
    sent.append(log)
    for number in (1, 2):
        if number == 2:
            try:
                with ddp.no_sync():
                    raise ZeroDivisionError
            except ZeroDivisionError:
                came_out = True
        with _wire.log_wire() as log:
            found.append(_passed(ddp, number, anew=number == 2))
        sent.append(log)
    return found, sent, came_out


def _one_leaves_out(parts: SimpleNamespace, *_: Any) -> list[tuple[str, str]]:
    """What is raised where rank 1 leaves a branch out: a whole bucket, or a part of one.

    Its kind and words; "" for nothing. No rank waits for another.
    """
    rank, said = dist.get_rank(), []
    nothing = SimpleNamespace(wait=lambda: None)
    for cap in (_CAP_BYTES, 2**20):
        ddp = parts.DDP(small_models.Branches(seed=rank), cap, cap, all_reduce=lambda _: nothing)
        order = small_models.BOTH[:1] if rank else small_models.BOTH
        try:
            ddp(small_models.rows(0, 0), order).backward()
            said.append(("", ""))
        except Exception as error:
            kind = RuntimeError if isinstance(error, RuntimeError) else type(error)
            said.append((kind.__name__, str(error)))
    return said


def _leave_out(parts: SimpleNamespace, *_: Any) -> list[_Gradients]:
    """The gradients where others leave a branch out, all do, or only a quiet pass has used it."""
    ddp, both = _wrapped(parts, find_unused=True), small_models.BOTH
    found = [_passed(ddp, 0, both[:1] if dist.get_rank() else both), _passed(ddp, 0, both[:1])]
    with ddp.no_sync():
        _passed(ddp, 1, both)
    return [*found, _passed(ddp, 2, both[:1], anew=False)]


def _on_a_ring(parts: SimpleNamespace, *_: Any) -> Any:
    """The gradients of one pass by a ring, and what was sent."""
    halves = {name: mine.get(f"ring_{name}") for name in ("reduce_scatter", "all_gather")}
    ring = partial(_ring_sum.RingSum, peers=_peers.Peers(), **halves)
    ddp = _wrapped(parts, all_reduce=ring)
    with _wire.log_wire() as log:
        return _passed(ddp, 0), log


# What must come out


def _alone(rank: int, *passes: tuple[int, tuple[str, ...]]) -> _Gradients:
    """The gradients of a rank's own rows, of some backward passes (number, order) together."""
    model = small_models.Branches()
    for number, order in passes:
        model(small_models.rows(rank, number), order).backward()
    return small_models.gradients(model)


def _in_order(ranks: int, *numbers: int) -> list[_Gradients]:
    """Those of each rank, in its order."""
    return [_alone(r, *((number, _order_of(r)) for number in numbers)) for r in range(ranks)]


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
    found: _Gradients, own: Sequence[_Gradients], rank: int, where: str = ""
) -> Iterator[Row]:
    like = small_models.trained(small_models.Branches())
    for key, gradient in found.items():
        each = [torch.zeros_like(like[key]) if g is None else g for g in (o[key] for o in own)]
        yield from _mean(gradient, each, rank, f"{where}the gradient of `{key}`")


def _a_bucket(seen: Any, at: Place) -> Iterator[Row]:
    found, sent, waits = seen
    yield Never(waits, "`send` waits for its sum: that is for `receive`")
    yield Never(
        len(sent) != 2,
        f"`all_reduce` is called {len(sent)} times in two rounds of `send` and `receive`: `send` "
        "calls it once",
    )
    for number, gradients in enumerate(found):
        own = list(zip(*(_laid_in(one, number) for one in range(at.ranks)), strict=True))
        for shape, gradient, each in zip(_SHAPES, gradients, own, strict=True):
            what = f", round {number + 1}: `.grad` of the parameter of shape {shape}"
            yield from _mean(gradient, each, at.rank, what)


_SENT_ONCE = "each bucket of `fill` is sent once in a backward pass"


def _while_backward_runs(found: dict[str, Any], at: Place) -> Rows:
    first, own_state = (small_models.Branches(seed=n).state_dict() for n in (0, at.rank))
    for key, value in found["state"].items():
        others = {"still what this rank began with": own_state[key]} if at.rank else {}
        yield Must(f"after the constructor `{key}`", value, first[key], others)
    yield Sends(found["log"], _exchange(_CAP_BYTES), _SENT_ONCE)
    for number, events in enumerate(found["events"]):
        ready = not number or events[len(found["added"]) :]
        yield Never(not ready, "after one backward pass DDP is not ready for a second")
        yield _overlap(f", backward pass {number + 1}: ", events)
    for number, gradients in zip((0, 0, 1), found["gradients"], strict=True):
        where = f", backward pass {number + 1}: "
        yield from _means(gradients, _in_order(at.ranks, number), at.rank, where)
    where = ", two backward passes without zero_grad: "
    yield from _means(found["added"], _in_order(at.ranks, 0, 1), at.rank, where)


def _overlap(where: str, events: list[Any]) -> Iterator[Row]:
    """Buckets are sent when they are full, in order, during backward, and waited for at its end."""
    names = {p: name for name, p in small_models.trained(small_models.Branches()).items()}
    filled = _buckets.fill(names, _CAP_BYTES, _CAP_BYTES)
    buckets, ready, sent, arrived = (
        [[names[p] for p in b] for b in filled],
        set[str](),
        list[int](),
        0,
    )
    gradients = len(names)
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
    for gradients, numbers, where in zip(
        found,
        ((0, 1), (2,)),
        ("after no_sync() and a pass behind it", "in a pass after an error inside no_sync()"),
        strict=True,
    ):
        yield from _means(gradients, _in_order(at.ranks, *numbers), at.rank, f", {where}: ")
    for log in sent[1:]:
        yield Sends(log, _exchange(_FIRST_BYTES), f"behind no_sync() {_SENT_ONCE}")


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
        "rank 0 only": [_alone(one, (0, left if one else both)) for one in ranks],
        "no rank": [_alone(one, (0, left)) for one in ranks],
        "inside no_sync() only": [_alone(one, (1, both), (2, left)) for one in ranks],
    }
    for (whom, own), gradients in zip(right.items(), found, strict=True):
        by = "" if whom.startswith("inside") else "by "
        where = f", find_unused, `right` used {by}{whom}: "
        yield from _means(gradients, own, at.rank, where)


def _ring(seen: Any, at: Place) -> Iterator[Row]:
    yield from _means(seen[0], _in_order(at.ranks, 0), at.rank, ", on a ring: ")
    buckets = [one.bytes for one in _exchange(_CAP_BYTES) if one.sends]
    hops = (hop for size in buckets for hop in ring_steps(at.ranks, size // at.ranks))
    yield Sends(seen[1], Trace(hops), "a ring carries each bucket once", who=at.rank)


_parallel = later("torch.nn.parallel")


def _ddp(ddp: Any) -> Callable[[], object]:
    return trained(ddp, ddp.zero_grad)


def _torchs_ddp() -> Any:
    wrap = _parallel.DistributedDataParallel
    return wrap(four_layers(), bucket_cap_mb=1, gradient_as_bucket_view=True)


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
        compare("a bucket", ("Bucket.take", "Bucket.send", "Bucket.receive"), _bucketed, _a_bucket),
        compare(
            "while backward runs",
            ("DDP._ready", "DDP._finish"),
            _two_passes,
            _while_backward_runs,
            (Case(ranks=3),),
        ),
        compare("no_sync", ("DDP.no_sync",), _with_no_sync, _quiet),
        in_turn(
            "unused parameters",
            ("DDP._treat_unused",),
            compare("", (), _one_leaves_out, _told),
            compare("", (), _leave_out, _finds_unused),
        ),
        compare("on the ring of 6.11", ("DDP",), _on_a_ring, _ring, (Case(ranks=3),)),
    ),
    race=Race(
        "a backward pass with 4 MB of gradients",
        lambda parts: _ddp(parts.DDP(four_layers(), 2**20, 2**20)),
        lambda: _ddp(_torchs_ddp()),
    ),
)
