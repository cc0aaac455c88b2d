"""Build 12.10: sending tokens to experts on other ranks and back, with gradients."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from course_lib.checking.build import build
from course_lib.checking.builds.compare import Case, Place, compare, in_turn
from course_lib.checking.builds.lazily import dist, later, torch
from course_lib.checking.builds.raced import both_passes
from course_lib.checking.builds.rows import Must, Never, Rows, Sends, unchanged
from course_lib.checking.races import Race
from course_lib.theory.network.experts import routed_bytes

_watched = later("course_lib.checking.builds.on_rank.watched")
_wire, _experts = later("course_lib.measure.wire"), later("course_lib.scratch.experts")

_HIDDEN = 3
# _ROWS[i][j]: rows that rank i sends to rank j; rank 1 sends none.
_ROWS = ((2, 1, 3), (0, 0, 0), (1, 0, 4))
_ROWS_IN_GROUP = {1: ((2,),), 2: ((0, 3), (1, 2))}  # by the group's number of ranks
_MANY_TOKENS = 40_000  # more than 8 or 16 bits can count


@dataclass(frozen=True)
class _Tokens:
    """The experts chosen on each rank: `chosen[rank]` is (tokens, top_k), as nested tuples."""

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

    def of(self, rank: int) -> Any:
        return torch.tensor(self.chosen[rank], dtype=torch.long).view(-1, self.top_k)

    def tokens(self, rank: int) -> Any:
        """The tokens of a rank, (tokens, hidden), all numbers different."""
        count = len(self.chosen[rank])
        tokens = torch.arange(1.0, 1 + count * _HIDDEN).view(count, _HIDDEN) + 100 * rank
        return tokens.to(getattr(torch, self.dtype))

    def weights(self, rank: int) -> Any:
        """Router weights, (tokens, top_k): positive, all different, and not adding up to 1."""
        count = len(self.chosen[rank])
        weights = 1 / (2 + torch.arange(float(count * self.top_k))).view(count, self.top_k)
        return weights.to(getattr(torch, self.dtype))

    def counts(self) -> Any:
        each = [self.of(rank).flatten().bincount(minlength=self.experts) for rank in self.every]
        return torch.stack(each)

    def kept(self) -> Any:
        return _experts.accepted(self.counts(), self.limit)

    def order(self, rank: int) -> Any:
        """Indices of a rank's accepted choices, sorted by expert and then by index."""
        accepted: list[int] = []
        for expert, kept in enumerate(self.kept()[rank].tolist()):
            choices = enumerate(self.of(rank).flatten().tolist())
            accepted += [choice for choice, each in choices if each == expert][:kept]
        return torch.tensor(accepted, dtype=torch.long)

    @property
    def every(self) -> range:
        return range(self.ranks)

    @property
    def name(self) -> str:
        full = ", experts full" if self.limit < 100 else ""
        return f"top_k {self.top_k}, {self.each} experts a rank{full}, {self.dtype}"

    def scales(self) -> Any:
        """The factor of each expert, which multiplies rows by it."""
        return (2.0 ** torch.arange(self.experts)).to(getattr(torch, self.dtype))

    @property
    def tolerance(self) -> float:
        return 1e-5 if self.dtype == "float32" else 2e-2


# On 3 ranks no token chooses rank 1's experts, and rank 2 has no tokens; on 2 all are chosen.
_THREE = _Tokens((((4, 0), (1, 4), (0, 1), (4, 1), (0, 4)), ((1, 0), (0, 4), (4, 1)), ()), top_k=2)
_FULL = _Tokens(_THREE.chosen, top_k=2, limit=3)
_TWO = _Tokens((((3, 0), (1, 3), (3, 1)), ((2, 3), (0, 3), (3, 2), (3, 0), (1, 3))), top_k=2)
_ONE = _Tokens((((2,), (0,), (2,)), (), ((1,), (2,), (0,), (0,))), top_k=1, each=1)
_MANY = _Tokens(
    (((8, 0, 4),), ((1, 8, 2), (5, 4, 8)), ((8, 7, 0), (3, 8, 1))),
    top_k=3,
    limit=3,
    each=3,
    dtype="bfloat16",
)
_ALONE = _Tokens((((1, 0), (0, 1), (1, 0)),), top_k=2)  # in a group of one rank


# The all-to-all


@dataclass(frozen=True)
class _Exchange(Case):
    """An exchange among all ranks or in a smaller group, of rows and with `backward` gradients."""

    ranks: int = field(default=3, kw_only=True)

    @property
    def dtype(self) -> str:
        return "bfloat16" if self.in_group else "float32"

    def who(self, rank: int, line: Sequence[int]) -> str:
        return f"rank {rank} of 3, among {len(line)} in {self.dtype}"

    def table(self, ranks: int) -> Any:
        return _ROWS_IN_GROUP[ranks] if self.in_group else _ROWS

    def rows(self, rank: int, ranks: int) -> Any:
        count = sum(self.table(ranks)[rank])
        rows = torch.arange(1.0, 1 + 2 * count).view(count, 2) + 100 * rank
        return rows.to(getattr(torch, self.dtype))


def _exchanges(backward: bool = False) -> list[_Exchange]:
    return [_Exchange(in_group=in_group, backward=backward) for in_group in (False, True)]


def _run_exchange(parts: SimpleNamespace, case: _Exchange, group: Any) -> Iterator[Any]:
    """Send rows through the learner's all-to-all; backward starts when every exchange has started.

    The received rows' gradient is 3 times these rows, so the sent rows' is 3 times those rows.
    """
    group = group or dist.group.WORLD
    rank, ranks = dist.get_rank(group), group.size()
    rows, table = case.rows(rank, ranks).requires_grad_(case.backward), case.table(ranks)
    with _wire.log_wire() as wire:
        received = [row[rank] for row in table]
        arrived = parts.AllToAll.apply(rows, list(table[rank]), received, group)
    yield
    if case.backward:
        arrived.backward(3 * arrived.detach())
    yield arrived.detach(), rows.grad, rows.detach(), wire


def _expect_exchanged(outcome: Any, place: Place) -> Rows:
    arrived, gradient, sent_rows, wire = outcome
    rank, ranks, case, _ = place
    table, rows = case.table(ranks), case.rows(rank, ranks)
    right = torch.cat([case.rows(n, ranks).split(row)[rank] for n, row in enumerate(table)])
    yield Must("what arrives", arrived, right, same_dtype=True)
    yield from unchanged({"its rows": torch.equal(sent_rows, rows)}, "AllToAll")
    if case.backward:
        missing = "the gradient of the rows is None: it has not come back"
        yield Never(gradient is None, missing)
        yield Must("the gradient of the rows", gradient, 3 * rows)
    sent = {"all-to-all": (1, rows.nbytes)}
    yield Sends(wire, sent, "one all-to-all of its rows", among=ranks)


# Counts and dispatch


@dataclass(frozen=True)
class _Batch(Case):
    """Tokens on three ranks or in smaller groups, for the forward pass or with `backward` both."""

    tokens: _Tokens | None = None
    ranks: int = field(default=3, kw_only=True)

    def of(self, ranks: int) -> _Tokens:
        return self.tokens or {2: _TWO, 1: _ALONE}[ranks]

    def words(self, line: Sequence[int]) -> str:
        return self.of(len(line)).name + f", a group of {len(line)}" * self.in_group


def _batches(*tokens: _Tokens, backward: bool = False) -> list[_Batch]:
    """A case for each of `tokens`, and one for the smaller groups."""
    every = [_Batch(each, backward=backward) for each in tokens]
    return [*every, _Batch(in_group=True, backward=backward)]


def _setup(parts: SimpleNamespace, case: _Batch, group: Any) -> tuple[Any, _Tokens, int]:
    """A Dispatcher, shared by all batches of three ranks; the tokens; the rank in the group."""
    if group is None and not hasattr(parts, "ours"):
        parts.ours = parts.Dispatcher(dist.group.WORLD)
    dispatcher = parts.ours if group is None else parts.Dispatcher(group)
    return dispatcher, case.of(dist.get_world_size(group)), dist.get_rank(group)


def _run_dispatch(parts: SimpleNamespace, case: _Batch, group: Any) -> Any:
    """The table of counts, its traffic, the received rows, and the counts of many tokens."""
    dispatcher, tokens, rank = _setup(parts, case, group)
    with _wire.log_wire() as wire:
        counts = dispatcher.count(tokens.of(rank), tokens.experts)
    rows = dispatcher.dispatch(tokens.tokens(rank), tokens.of(rank), tokens.kept())
    return counts, wire, rows, dispatcher.count(torch.full((_MANY_TOKENS, 1), rank), tokens.ranks)


def _expect_dispatched(outcome: Any, place: Place) -> Rows:
    (counts, log, rows, many), rank, tokens = outcome, place.rank, place.case.of(place.ranks)
    what, right = "the table of counts", tokens.counts()
    mistake = {"its own counts, for every rank": right[rank].expand_as(right)}
    yield Must(what, counts, right, mistake)
    whole = f"{what} is of {counts.dtype}, and sizes are whole numbers"
    yield Never(counts.is_floating_point(), whole)
    sent = {"all-gather": (1, 8 * right.numel())}
    why = "a rank tells all others its own counts, once"
    yield Sends(log, sent, why, at_most=True, among=place.ranks)
    others = {f"what rank {n} is to get": _received(tokens, n) for n in tokens.every if n != rank}
    others["cut from rows that are not sorted by expert"] = _received(tokens, rank, False)
    yield Must("what arrives", rows, _received(tokens, rank), others, same_dtype=True)
    yield Must(f", {_MANY_TOKENS:,} tokens: {what}", many, _MANY_TOKENS * torch.eye(tokens.ranks))


def _received(case: _Tokens, rank: int, by_expert: bool = True) -> Any:
    """Rows that a rank's experts receive, by source rank; as if not sorted if not `by_expert`."""
    rows = []
    for source in case.every:
        order = case.order(source)
        splits = case.kept()[source].view(case.ranks, -1).sum(1).tolist()
        pieces = (order if by_expert else order.sort().values).split(splits)
        rows.append(case.tokens(source)[pieces[rank] // case.top_k])
    return torch.cat(rows)


# Dispatch and combine


def _run_both_ways(parts: SimpleNamespace, case: _Batch, group: Any) -> Iterator[Any]:
    """Dispatch, multiply by each expert's factor and combine; after a yield, run the backward pass.

    Backward starts when all batches have been combined, as with several micro-batches in flight.
    """
    dispatcher, batch, rank = _setup(parts, case, group)
    kept, chosen, own = batch.kept(), batch.of(rank), slice(batch.each * rank, None)
    tokens, weights = batch.tokens(rank), batch.weights(rank)
    scales = batch.scales()[own][: batch.each].clone()
    arguments = {"tokens": tokens, "chosen": chosen, "kept": kept, "weights": weights}
    unchanged_arguments = _watched.kept(arguments)
    counts = kept[:, own][:, : batch.each].flatten().clone()
    leaves = tokens, weights, scales
    for leaf in leaves:
        leaf.requires_grad_(case.backward)
    with _wire.log_wire() as wire:
        rows = dispatcher.dispatch(tokens, chosen, kept)
        results = rows * scales.repeat(batch.ranks).repeat_interleave(counts)[:, None]
        unchanged_results = _watched.kept({"results": results})
        out = dispatcher.combine(results, weights)
    same = unchanged_arguments() | unchanged_results()
    yield
    with _wire.log_wire() as back:
        if case.backward:
            (out * _upstream(out)).sum().backward()
    wire.calls.extend(back.calls)
    yield out, [leaf.grad for leaf in leaves], same, wire


def _upstream(out: Any) -> Any:
    """The upstream gradient of the result."""
    return torch.linspace(1, 2, out.numel()).view_as(out)


def _one_process(case: _Tokens, rank: int, power: int = 1, **leaves: Any) -> Any:
    """A rank's result in one process, token by token; weights are raised to `power`."""
    tokens = leaves.get("tokens", case.tokens(rank))
    weights = leaves.get("weights", case.weights(rank))
    scales, left = leaves.get("scales", case.scales()), case.kept()[rank].tolist()
    out = [torch.zeros(_HIDDEN) for _ in tokens]
    for choice, expert in enumerate(case.of(rank).flatten().tolist()):
        token, number = divmod(choice, case.top_k)
        if left[expert]:
            left[expert] -= 1
            result = scales[expert] * tokens[token]
            out[token] = out[token] + weights[token, number] ** power * result
    return torch.stack(out) if out else torch.empty(0, _HIDDEN)


def _misplaced(case: _Tokens, rank: int, what: str) -> Any:
    """The wrong result if `what`, "rows" or "weights", is used in order of choices, not sorted."""
    order, scales = case.order(rank), case.scales()[case.of(rank).flatten()]
    rows = case.tokens(rank)[order // case.top_k] * scales[order, None]
    weights, in_turn = case.weights(rank).flatten(), order.sort().values
    origin = (order if what == "weights" else in_turn) // case.top_k
    rows = rows * (weights[: len(order)] if what == "weights" else weights[in_turn])[:, None]
    return torch.zeros_like(case.tokens(rank)).index_add(0, origin, rows)


def _expect_combined(outcome: Any, place: Place) -> Rows:
    (out, gradients, same, wire), rank, case = outcome, place.rank, place.case
    batch = case.of(place.ranks)
    others = {
        "the plain sum of the experts' results": _one_process(batch, rank, power=0),
        "weighted twice": _one_process(batch, rank, power=2),
        "the results in the order in which they come back": _misplaced(batch, rank, "rows"),
        "each result with the weight of another choice": _misplaced(batch, rank, "weights"),
    }
    right = _one_process(batch, rank).to(batch.tokens(rank).dtype)
    yield Must("the result", out, right, others, tolerance=batch.tolerance, same_dtype=True)
    if case.backward:
        yield from _expect_gradients(gradients, batch, rank)
    passes, row_bytes = 1 + case.backward, batch.tokens(rank).element_size() * _HIDDEN
    size = routed_bytes(batch.kept().tolist(), rank, row_bytes, passes)
    sent = {"all-to-all": (2 * passes, size)}
    why = "rows go there and back once" + ", and so do their gradients" * case.backward
    yield Sends(wire, sent, why, among=batch.ranks)
    yield from unchanged(same, "Dispatcher")


def _expect_gradients(gradients: Any, case: _Tokens, rank: int) -> Rows:
    leaves = [(case.tokens(r), case.weights(r)) for r in case.every]
    scales, total = case.scales().requires_grad_(), torch.zeros(())
    for each, (tokens, weights) in enumerate(leaves):
        tokens.requires_grad_(), weights.requires_grad_()
        out = _one_process(case, each, tokens=tokens, weights=weights, scales=scales)
        total = total + (out * _upstream(out)).sum()
    inputs = [*leaves[rank], scales]
    *rights, every = torch.autograd.grad(total, inputs, materialize_grads=True)
    rights.append(every[case.each * rank :][: case.each])
    for name, own, right in zip(("tokens", "weights", "experts"), gradients, rights, strict=True):
        what = f"the gradient of the {name}"
        missing = own is None and bool(right.any())
        yield Never(missing, f"{what} is None: it has not come back")
        if own is not None:
            yield Must(what, own, right, tolerance=case.tolerance)


_ALL_TO_ALL, _TRIPS = (_run_exchange, _expect_exchanged), (_run_both_ways, _expect_combined)


def _raced(parts: SimpleNamespace) -> Callable[[], object]:
    dispatcher = parts.Dispatcher(dist.group.WORLD)
    torch.manual_seed(dist.get_rank())
    tokens = torch.randn(2048, 256, requires_grad=True)
    chosen, weights = torch.rand(2048, 4).topk(2).indices, torch.full((2048, 2), 0.5)

    def passed() -> Any:
        rows = dispatcher.dispatch(tokens, chosen, dispatcher.count(chosen, 4))
        return dispatcher.combine(rows, weights)

    return lambda: both_passes(passed)


def _on_torchs_all_to_all() -> Callable[[], object]:
    """The course's Dispatcher on torch's own all-to-all."""
    collectives = later("torch.distributed._functional_collectives")

    def all_to_all(self: Any, rows: Any, sent: Any, received: Any) -> Any:
        return collectives.all_to_all_single_autograd(rows, received, sent, self.group)

    on_torch = type("OnTorch", (_experts.Dispatcher,), {"all_to_all": all_to_all})
    return _raced(SimpleNamespace(Dispatcher=on_torch))


EXPERTS = build(
    "experts",
    steps=(
        compare("the all-to-all", ("AllToAll.forward",), *_ALL_TO_ALL, _exchanges()),
        compare(
            "counts and dispatch",
            ("Dispatcher.count", "Dispatcher.dispatch"),
            _run_dispatch,
            _expect_dispatched,
            _batches(_THREE, _FULL, _ONE, _MANY),
        ),
        compare("combine", ("Dispatcher.combine",), *_TRIPS, _batches(_FULL, _ONE, _MANY)),
        in_turn(
            "the gradients",
            ("AllToAll.backward",),
            compare("", (), *_ALL_TO_ALL, _exchanges(backward=True)),
            compare("", (), *_TRIPS, _batches(_FULL, _ONE, _MANY, backward=True)),
        ),
    ),
    race=Race(
        "2048 tokens to 2 of 4 experts and back, with gradients", _raced, _on_torchs_all_to_all
    ),
)
