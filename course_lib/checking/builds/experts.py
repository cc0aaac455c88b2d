"""Build 12.10: tokens to experts on other ranks and back, with gradients."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from course_lib.checking.build import Step, build
from course_lib.checking.builds.compared import (
    expect_among,
    expect_calls,
    expect_kept,
    expect_sent,
    expect_tensor,
)
from course_lib.checking.builds.outcome import Outcome
from course_lib.checking.builds.ranks import LINES, each_rank, line_of, on_ranks
from course_lib.checking.exercises import Wrong
from course_lib.checking.races import Race
from course_lib.theory.network.experts import routed_bytes

if TYPE_CHECKING:
    from torch import Tensor

_HIDDEN = 3
# Rows that each rank sends to each: rank 1 has none.
_ROWS = ((2, 1, 3), (0, 0, 0), (1, 0, 4))
_IN_LINE = {1: ((2,),), 2: ((0, 3), (1, 2))}  # in a group of one rank, and of two


@dataclass(frozen=True)
class _Case:
    """Experts that the tokens of each rank choose: (tokens, top_k) by rank, as nested tuples."""

    chosen: tuple[tuple[tuple[int, ...], ...], ...]
    top_k: int
    limit: int = 100  # choices that an expert accepts
    each: int = 2  # experts on a rank
    dtype: str = "float32"

    @property
    def ranks(self) -> int:
        return len(self.chosen)

    @property
    def experts(self) -> int:
        return self.each * self.ranks

    def of(self, rank: int) -> "Tensor":
        import torch

        return torch.tensor(self.chosen[rank], dtype=torch.long).view(-1, self.top_k)

    def tokens(self, rank: int) -> "Tensor":
        """Different numbers for each token."""
        import torch

        count = len(self.chosen[rank])
        tokens = torch.arange(1.0, 1 + count * _HIDDEN).view(count, _HIDDEN) + 100 * rank
        return tokens.to(getattr(torch, self.dtype))

    def weights(self, rank: int) -> "Tensor":
        """Positive, different for each choice, and not adding up to 1."""
        import torch

        count = len(self.chosen[rank])
        weights = 1 / (2 + torch.arange(float(count * self.top_k))).view(count, self.top_k)
        return weights.to(getattr(torch, self.dtype))

    def counts(self) -> "Tensor":
        import torch

        each = [self.of(rank).flatten().bincount(minlength=self.experts) for rank in self.every]
        return torch.stack(each)

    def kept(self) -> "Tensor":
        from course_lib.scratch.experts.router import accepted

        return accepted(self.counts(), self.limit)

    def order(self, rank: int) -> "Tensor":
        """Accepted choices of a rank, by expert and then by number: one after the other."""
        import torch

        found: list[int] = []
        for expert, kept in enumerate(self.kept()[rank].tolist()):
            choices = enumerate(self.of(rank).flatten().tolist())
            found += [choice for choice, each in choices if each == expert][:kept]
        return torch.tensor(found, dtype=torch.long)

    @property
    def every(self) -> range:
        return range(self.ranks)

    @property
    def name(self) -> str:
        full = ", experts full" if self.limit < 100 else ""
        return f"top_k {self.top_k}, {self.each} experts a rank{full}, {self.dtype}"

    @property
    def tolerance(self) -> float:
        return 1e-5 if self.dtype == "float32" else 2e-2


# On 3 ranks: nobody wants the experts of rank 1, and rank 2 has no tokens. On 2: one expert each.
_THREE = _Case((((4, 0), (1, 4), (0, 1), (4, 1), (0, 4)), ((1, 0), (0, 4), (4, 1)), ()), top_k=2)
_FULL = _Case(_THREE.chosen, top_k=2, limit=3)
_TWO = _Case((((3, 0), (1, 3), (3, 1)), ((2, 3), (0, 3), (3, 2), (3, 0), (1, 3))), top_k=2)
_ONE = _Case((((2,), (0,), (2,)), (), ((1,), (2,), (0,), (0,))), top_k=1, each=1)
_MANY = _Case(
    (((8, 0, 4),), ((1, 8, 2), (5, 4, 8)), ((8, 7, 0), (3, 8, 1))),
    top_k=3,
    limit=3,
    each=3,
    dtype="bfloat16",
)
_ALONE = _Case((((1, 0), (0, 1), (1, 0)),), top_k=2)  # in a group of one rank


def _exchanged(all_to_all: Any, backward: bool) -> list[Any]:
    """On a rank: rows through the learner's all-to-all among all, and in a smaller group.

    The gradient of what arrives is 3 times what arrives, so that of the rows is 3 times the rows.
    """
    import torch.distributed as dist

    from course_lib.measure.wire import log_wire
    from course_lib.scratch.three_d import own_group

    found, groups = [], (dist.group.WORLD, own_group(LINES))
    for (table, place, dtype), group in zip(_tables(dist.get_rank()), groups, strict=True):
        rows = _rows(table, place, dtype).requires_grad_(backward)
        with log_wire() as wire:
            arrived = all_to_all.apply(
                rows, list(table[place]), [row[place] for row in table], group
            )
        found.append((rows, arrived, wire))
    if backward:  # both are under way
        for _, arrived, _ in found:
            arrived.backward(3 * arrived.detach())
    return [(arrived.detach(), rows.grad, rows.detach(), wire) for rows, arrived, wire in found]


def _tables(rank: int) -> list[tuple[tuple[tuple[int, ...], ...], int, str]]:
    """What is exchanged among all ranks and in this rank's smaller group: table, place, dtype."""

    line = line_of(rank)
    return [(_ROWS, rank, "float32"), (_IN_LINE[len(line)], line.index(rank), "bfloat16")]


def _rows(table: tuple[tuple[int, ...], ...], place: int, dtype: str) -> "Tensor":
    import torch

    count = sum(table[place])
    rows = torch.arange(1.0, 1 + 2 * count).view(count, 2) + 100 * place
    return rows.to(getattr(torch, dtype))


def _all_to_all(parts: SimpleNamespace) -> None:
    _expect_exchanged(parts, backward=False)


def _expect_exchanged(parts: SimpleNamespace, backward: bool) -> None:
    import torch

    outcomes = on_ranks(_exchanged, parts.AllToAll, backward, ranks=3)
    for rank, (name, found) in enumerate(each_rank(outcomes)):
        for (table, place, dtype), (arrived, gradient, given, wire) in zip(
            _tables(rank), found, strict=True
        ):
            where = f"{name}, among {len(table)} in {dtype}"
            expect_among(wire, len(table), f"{where}, AllToAll")
            pieces = [_rows(table, n, dtype).split(list(row)) for n, row in enumerate(table)]
            right = torch.cat([piece[place] for piece in pieces])
            expect_tensor(arrived, right, f"{where}: what arrives", same_dtype=True)
            expect_kept(
                {"its rows": torch.equal(given, _rows(table, place, dtype))}, f"{where}: AllToAll"
            )
            if backward:
                rows = 3 * _rows(table, place, dtype)
                if gradient is None:
                    raise Wrong(f"{where}: the gradient of the rows is None: it has not come back")
                expect_tensor(gradient, rows, f"{where}: the gradient of the rows")
            size = right.element_size() * 2 * sum(table[place])
            sent = {"all-to-all": (1, size)} if len(table) > 1 else {}
            expect_calls(wire, sent, f"{where},", "one all-to-all of its rows")


_CASES = (_THREE, _FULL, _ONE, _MANY)


def _sent_out(dispatcher: Any) -> Any:
    """On a rank: counts, and for each case the rows that arrive; then counts in a smaller group."""
    import torch
    import torch.distributed as dist

    from course_lib.measure.wire import log_wire
    from course_lib.scratch.three_d import own_group

    ours, rank, found = dispatcher(dist.group.WORLD), dist.get_rank(), []
    for case in _CASES:
        with log_wire() as wire:
            counts = ours.count(case.of(rank), case.experts)
        rows = ours.dispatch(case.tokens(rank), case.of(rank), case.kept())
        found.append((counts, wire, rows))
    many = ours.count(torch.full((_MANY_TOKENS, 1), rank), 3)
    case, place = _trips(rank)[-1]
    with log_wire() as wire:
        counts = dispatcher(own_group(LINES)).count(case.of(place), case.experts)
    return found, many, (counts, wire)


_MANY_TOKENS = 40_000  # more than 16 bits can count


def _dispatched(parts: SimpleNamespace) -> None:
    import torch

    outcomes = on_ranks(_sent_out, parts.Dispatcher, ranks=3)
    for place, case in enumerate(_CASES):
        for rank, (name, (found, *_)) in enumerate(each_rank(outcomes)):
            counts, right = found[place][0], case.counts()
            what = f"{name}, {case.name}: the table of counts"
            others = {"its own counts, for every rank": right[rank].expand_as(right)}
            expect_tensor(counts, right, what, others=others)
            if counts.is_floating_point():
                raise Wrong(f"{what} is of {counts.dtype}, and sizes are whole numbers")
        logs = [Outcome(None, one.value[0][place][1]) for one in outcomes]
        size = 8 * case.ranks * case.experts
        why = "a rank tells all others its own counts, once"
        expect_sent(logs, {"all-gather": (1, size)}, why, at_most=True)
        for rank, (name, (found, *_)) in enumerate(each_rank(outcomes)):
            _expect_dispatched(found[place][2], case, rank, f"{name}, {case.name}")
    for rank, (name, (_, many, (counts, wire))) in enumerate(each_rank(outcomes)):
        right = _MANY_TOKENS * torch.eye(3)
        expect_tensor(many, right, f"{name}, {_MANY_TOKENS:,} tokens: the table of counts")
        case, _ = _trips(rank)[-1]
        what = f"{name}, in a group of {case.ranks}: the table of counts"
        expect_tensor(counts, case.counts(), what)
        expect_among(wire, case.ranks, what)


def _expect_dispatched(rows: Any, case: _Case, rank: int, name: str) -> None:
    others = {f"what rank {n} is to get": _arriving(case, n) for n in case.every if n != rank}
    others["cut from rows that are not sorted by expert"] = _arriving(case, rank, by_expert=False)
    right = _arriving(case, rank)
    expect_tensor(rows, right, f"{name}: what arrives", others=others, same_dtype=True)


def _arriving(case: _Case, rank: int, by_expert: bool = True) -> "Tensor":
    """Rows for the experts of a rank, from each rank in turn; or what arrives if none is sorted."""
    import torch

    rows = []
    for source in case.every:
        order = case.order(source)
        splits = case.kept()[source].view(case.ranks, -1).sum(1).tolist()
        pieces = (order if by_expert else order.sort().values).split(splits)
        rows.append(case.tokens(source)[pieces[rank] // case.top_k])
    return torch.cat(rows)


@dataclass(frozen=True)
class _Returned:
    """What a rank has at the end, its gradients, and whether its arguments are as they were."""

    out: Any
    tokens: "Tensor | None" = None
    weights: "Tensor | None" = None
    experts: "Tensor | None" = None
    kept: dict[str, bool] = field(default_factory=dict)


def _there_and_back(dispatcher: Any, backward: bool) -> list[Outcome]:
    """On a rank: each case through one Dispatcher, the last through another, of a smaller group.

    Backward begins when all of them have come back, as for micro-batches that are under way.
    """
    import torch.distributed as dist

    from course_lib.scratch.three_d import own_group

    ours, other = dispatcher(dist.group.WORLD), dispatcher(own_group(LINES))
    mine = _trips(dist.get_rank())
    trips = [
        _Trip(other if n == len(mine) - 1 else ours, *each, backward) for n, each in enumerate(mine)
    ]
    return [trip.done() for trip in trips]


def _trips(rank: int) -> list[tuple[_Case, int]]:
    """Cases in turn and the place of this rank in each; the last is that of its smaller group."""

    line = line_of(rank)
    return [
        *((case, rank) for case in (_FULL, _ONE, _MANY)),
        (_TWO if len(line) > 1 else _ALONE, line.index(rank)),
    ]


class _Trip:
    """Dispatch, experts that multiply by a number each, combine; `done` is the way back."""

    def __init__(self, ours: Any, case: _Case, rank: int, backward: bool) -> None:
        from course_lib.measure.wire import log_wire

        kept, chosen, own = case.kept(), case.of(rank), slice(case.each * rank, None)
        tokens, weights = case.tokens(rank), case.weights(rank)
        scales = _scales(case)[own][: case.each].clone()
        named = {"tokens": tokens, "chosen": chosen, "kept": kept, "weights": weights}
        before = {name: tensor.clone() for name, tensor in named.items()}
        self.leaves = tokens, weights, scales
        for leaf in self.leaves:
            leaf.requires_grad_(backward)
        with log_wire() as self.wire:
            rows = ours.dispatch(tokens, chosen, kept)
            counts = before["kept"][:, own][:, : case.each].flatten()
            results = rows * scales.repeat(case.ranks).repeat_interleave(counts)[:, None]
            named["results"], before["results"] = results, results.detach().clone()
            self.out = ours.combine(results, weights)
        same = ((name, bool((tensor == before[name]).all())) for name, tensor in named.items())
        self.backward, self.kept = backward, dict(same)

    def done(self) -> Outcome:
        from course_lib.measure.wire import log_wire

        if self.backward:
            with log_wire() as back:
                (self.out * _direction(self.out)).sum().backward()
            self.wire.calls.extend(back.calls)
        tokens, weights, scales = (leaf.grad for leaf in self.leaves)
        return Outcome(_Returned(self.out, tokens, weights, scales, self.kept), self.wire)


def _scales(case: _Case) -> "Tensor":
    import torch

    return (2.0 ** torch.arange(case.experts)).to(getattr(torch, case.dtype))


def _direction(out: "Tensor") -> "Tensor":
    """The gradient of the result."""
    import torch

    return torch.linspace(1, 2, out.numel()).view_as(out)


def _one_process(case: _Case, rank: int, power: int = 1, **leaves: "Tensor") -> "Tensor":
    """A rank's result, token by token; `power` of the weights."""
    import torch

    tokens = leaves.get("tokens", case.tokens(rank))
    weights = leaves.get("weights", case.weights(rank))
    scales, left = leaves.get("scales", _scales(case)), case.kept()[rank].tolist()
    out = [torch.zeros(_HIDDEN) for _ in tokens]
    for choice, expert in enumerate(case.of(rank).flatten().tolist()):
        token, place = divmod(choice, case.top_k)
        if left[expert]:
            left[expert] -= 1
            result = scales[expert] * tokens[token]
            out[token] = out[token] + weights[token, place] ** power * result
    return torch.stack(out) if out else torch.empty(0, _HIDDEN)


def _misplaced(case: _Case, rank: int, what: str) -> "Tensor":
    """The result where rows, or weights, are taken for those of the choices in turn."""
    import torch

    order = case.order(rank)
    rows = (
        case.tokens(rank)[order // case.top_k] * _scales(case)[case.of(rank).flatten()[order], None]
    )
    weights, places = case.weights(rank).flatten(), order.sort().values
    origin = (order if what == "weights" else places) // case.top_k
    rows = rows * (weights[: len(order)] if what == "weights" else weights[places])[:, None]
    return torch.zeros_like(case.tokens(rank)).index_add(0, origin, rows)


def _combined(parts: SimpleNamespace) -> None:
    _expect_back(parts, backward=False)


def _with_gradients(parts: SimpleNamespace) -> None:
    _expect_exchanged(parts, backward=True)
    _expect_back(parts, backward=True)


def _expect_back(parts: SimpleNamespace, backward: bool) -> None:
    """What each rank has at the end of each case; results before gradients, then messages."""
    outcomes = on_ranks(_there_and_back, parts.Dispatcher, backward, ranks=3)
    trips = [
        (
            f"{name}, {case.name}" + f", a group of {case.ranks}" * (case.ranks < 3),
            case,
            place,
            trip,
        )
        for rank, (name, found) in enumerate(each_rank(outcomes))
        for (case, place), trip in zip(_trips(rank), found, strict=True)
    ]
    for name, case, place, trip in trips:
        _expect_result(trip.value, case, place, name)
    for name, case, place, trip in trips:
        expect_among(trip.wire, case.ranks, f"{name}, Dispatcher")
        if backward:
            _expect_gradients(trip.value, case, place, name)
        _expect_travel(trip, case, place, name, 1 + backward)
        expect_kept(trip.value.kept, f"{name}: Dispatcher")


def _expect_result(value: _Returned, case: _Case, rank: int, name: str) -> None:
    right = _one_process(case, rank)
    others = {
        "the plain sum of the experts' results": _one_process(case, rank, power=0),
        "weighted twice": _one_process(case, rank, power=2),
        "the results in the order in which they come back": _misplaced(case, rank, "rows"),
        "each result with the weight of another choice": _misplaced(case, rank, "weights"),
    }
    what = f"{name}: the result"
    right = right.to(case.tokens(rank).dtype)
    expect_tensor(value.out, right, what, others=others, tolerance=case.tolerance, same_dtype=True)


def _expect_travel(outcome: Outcome, case: _Case, rank: int, name: str, passes: int) -> None:
    """Two all-to-alls in each pass, with the bytes that the theory knows from the counts."""
    row_bytes = case.tokens(rank).element_size() * _HIDDEN
    size = routed_bytes(case.kept().tolist(), rank, row_bytes, passes)
    why = "rows go there and back once" + (", and so do their gradients" if passes == 2 else "")
    sent = {"all-to-all": (2 * passes, size)} if case.ranks > 1 else {}
    expect_calls(outcome.wire, sent, f"{name},", why)


def _expect_gradients(found: _Returned, case: _Case, rank: int, name: str) -> None:
    import torch

    leaves = [(case.tokens(r), case.weights(r)) for r in case.every]
    scales = _scales(case).requires_grad_()
    total = torch.zeros(())
    for each, (tokens, weights) in enumerate(leaves):
        tokens.requires_grad_(), weights.requires_grad_()
        out = _one_process(case, each, tokens=tokens, weights=weights, scales=scales)
        total = total + (out * _direction(out)).sum()
    total.backward()
    tokens, weights = leaves[rank]
    assert scales.grad is not None
    own_scales = scales.grad[case.each * rank :][: case.each]
    for what, own, right in (
        ("tokens", found.tokens, tokens.grad),
        ("weights", found.weights, weights.grad),
        ("experts", found.experts, own_scales),
    ):
        if own is None and right is not None and bool(right.any()):
            raise Wrong(f"{name}: the gradient of the {what} is None: it has not come back")
        if own is not None:
            right = torch.zeros_like(own) if right is None else right
            what = f"{name}: the gradient of the {what}"
            expect_tensor(own, right, what, tolerance=case.tolerance)


_RACE_TOKENS, _RACE_HIDDEN = 2048, 256


def _prepared(parts: SimpleNamespace) -> Any:
    """2048 tokens of 256 numbers to 2 of 4 experts and back, forward and backward."""
    import torch
    import torch.distributed as dist

    ours = parts.Dispatcher(dist.group.WORLD)
    torch.manual_seed(dist.get_rank())
    tokens = torch.randn(_RACE_TOKENS, _RACE_HIDDEN, requires_grad=True)
    chosen = torch.rand(_RACE_TOKENS, 4).topk(2).indices
    weights = torch.full((_RACE_TOKENS, 2), 0.5)

    def once() -> None:
        kept = ours.count(chosen, 4)
        rows = ours.dispatch(tokens, chosen, kept)
        ours.combine(rows, weights).sum().backward()

    return once


def _by_torch() -> Any:
    """The course's Dispatcher on torch's own all-to-all."""
    from torch.distributed import _functional_collectives as collectives

    from course_lib.scratch.experts.all_to_all import Dispatcher

    class OnTorch(Dispatcher):
        def all_to_all(self, rows: Any, sent: list[int], received: list[int]) -> Any:
            assert self.group is not None
            return collectives.all_to_all_single_autograd(rows, received, sent, self.group)

    return _prepared(SimpleNamespace(Dispatcher=OnTorch))


EXPERTS = build(
    "experts",
    title="tokens to experts and back",
    hints=(
        "AllToAll: make room for `sum(received)` rows, call `dist.all_to_all_single(room, rows, "
        "received, sent, group=group)`, keep the sizes in `ctx`. Backward is the same way back.",
        "count: `torch.bincount(..., minlength=experts)`, and an all-gather. dispatch: the experts "
        "lie on the ranks in order, so `kept.view(ranks, ranks, -1).sum(2)` says who sends what.",
        "Choice c is one of token c // top_k. `by_expert` gives the choices in the order in which "
        "their rows leave. Keep it, for that is the order in which the results come back.",
        "combine: the same all-to-all with the sizes exchanged; each row times the weight of its "
        "choice, `weights.flatten()[order]`; `index_add` adds it to its token.",
    ),
    steps=(
        Step("the all-to-all", ("AllToAll.forward",), _all_to_all),
        Step("counts and dispatch", ("Dispatcher.count", "Dispatcher.dispatch"), _dispatched),
        Step("combine", ("Dispatcher.combine",), _combined),
        Step("the gradients", ("AllToAll.backward",), _with_gradients),
    ),
    race=Race("2048 tokens to 2 of 4 experts and back, with gradients", _prepared, _by_torch),
)
