"""Build 12.10: tokens to experts on other ranks and back, with gradients."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from course_lib.checking.build import Step, build
from course_lib.checking.builds.compared import expect_sent, expect_tensor
from course_lib.checking.builds.outcome import Outcome
from course_lib.checking.builds.ranks import each_rank, on_ranks
from course_lib.checking.exercises import Wrong
from course_lib.checking.races import Race
from course_lib.theory.network.experts import routed_bytes

if TYPE_CHECKING:
    from torch import Tensor

_HIDDEN = 3
# Rows that each rank sends to each: rank 1 has none.
_ROWS = ((2, 1, 3), (0, 0, 0), (1, 0, 4))


@dataclass(frozen=True)
class _Case:
    """Experts that the tokens of each rank choose: (tokens, top_k) by rank, as nested tuples."""

    chosen: tuple[tuple[tuple[int, ...], ...], ...]
    top_k: int
    limit: int = 100  # choices that an expert accepts

    @property
    def ranks(self) -> int:
        return len(self.chosen)

    @property
    def experts(self) -> int:
        return 2 * self.ranks

    def of(self, rank: int) -> "Tensor":
        import torch

        return torch.tensor(self.chosen[rank], dtype=torch.long).view(-1, self.top_k)

    def tokens(self, rank: int) -> "Tensor":
        """Different numbers for each token."""
        import torch

        count = len(self.chosen[rank])
        return torch.arange(1.0, 1 + count * _HIDDEN).view(count, _HIDDEN) + 100 * rank

    def weights(self, rank: int) -> "Tensor":
        """Positive, different for each choice, and not adding up to 1."""
        import torch

        count = len(self.chosen[rank])
        return 1 / (2 + torch.arange(float(count * self.top_k))).view(count, self.top_k)

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


# On 3 ranks: nobody wants the experts of rank 1, and rank 2 has no tokens. On 2: one expert each.
_THREE = _Case((((4, 0), (1, 4), (0, 1), (4, 1), (0, 4)), ((1, 0), (0, 4), (4, 1)), ()), top_k=2)
_FULL = _Case(_THREE.chosen, top_k=2, limit=3)
_TWO = _Case((((3, 0), (1, 3), (3, 1)), ((2, 3), (0, 3), (3, 2), (3, 0), (1, 3))), top_k=2)


def _exchanged(all_to_all: Any) -> Any:
    """On a rank: rows through the learner's all-to-all."""
    import torch.distributed as dist

    rank = dist.get_rank()
    received = [row[rank] for row in _ROWS]
    return all_to_all.apply(_rows(rank), list(_ROWS[rank]), received, dist.group.WORLD)


def _rows(rank: int) -> "Tensor":
    import torch

    count = sum(_ROWS[rank])
    return torch.arange(1.0, 1 + 2 * count).view(count, 2) + 100 * rank


def _all_to_all(parts: SimpleNamespace) -> None:
    import torch

    outcomes = on_ranks(_exchanged, parts.AllToAll, ranks=3)
    pieces = [_rows(rank).split(list(_ROWS[rank])) for rank in range(3)]
    for rank, (name, found) in enumerate(each_rank(outcomes)):
        expected = torch.cat([piece[rank] for piece in pieces])
        expect_tensor(found, expected, f"{name}: what arrives")
    sent = [{"all-to-all": (1, 4 * 2 * sum(row))} for row in _ROWS]
    expect_sent(outcomes, sent, "one all-to-all of its rows")


def _sent_out(dispatcher: Any, cases: Sequence[_Case]) -> Any:
    """On a rank: counts, and for each case the rows that arrive."""
    import torch.distributed as dist

    from course_lib.measure.wire import log_wire

    ours, rank = dispatcher(dist.group.WORLD), dist.get_rank()
    with log_wire() as wire:
        counts = ours.count(cases[0].of(rank), cases[0].experts)
    rows = [ours.dispatch(x.tokens(rank), x.of(rank), x.kept()) for x in cases]
    return counts, wire, rows


def _dispatched(parts: SimpleNamespace) -> None:
    outcomes = on_ranks(_sent_out, parts.Dispatcher, (_THREE, _FULL), ranks=3)
    for rank, (name, (counts, _, _)) in enumerate(each_rank(outcomes)):
        right = _THREE.counts()
        others = {"its own counts, for every rank": right[rank].expand_as(right)}
        expect_tensor(counts, right, f"{name}: the table of counts", others=others)
    logs = [Outcome(None, one.value[1]) for one in outcomes]
    size = 8 * _THREE.ranks * _THREE.experts
    expect_sent(logs, {"all-gather": (1, size)}, "a rank tells all others its own counts, once")
    for place, (case, full) in enumerate(((_THREE, ""), (_FULL, ", experts full"))):
        for rank, (name, (_, _, rows)) in enumerate(each_rank(outcomes)):
            _expect_dispatched(rows[place], case, rank, f"{name}{full}")


def _expect_dispatched(rows: Any, case: _Case, rank: int, name: str) -> None:
    others = {f"what rank {n} is to get": _arriving(case, n) for n in case.every if n != rank}
    others["cut from rows that are not sorted by expert"] = _arriving(case, rank, by_expert=False)
    expect_tensor(rows, _arriving(case, rank), f"{name}: what arrives", others=others)


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
    """What a rank has at the end, and its gradients."""

    out: Any
    tokens: "Tensor | None" = None
    weights: "Tensor | None" = None
    experts: "Tensor | None" = None


def _there_and_back(dispatcher: Any, case: _Case, backward: bool) -> Outcome:
    """On a rank: dispatch, experts that multiply by a number each, combine; and backward."""
    import torch.distributed as dist

    from course_lib.measure.wire import log_wire

    rank = dist.get_rank()
    ours, kept = dispatcher(dist.group.WORLD), case.kept()
    tokens, weights = case.tokens(rank), case.weights(rank)
    scales = _scales(case)[2 * rank : 2 * rank + 2].clone()
    for leaf in (tokens, weights, scales):
        leaf.requires_grad_(backward)
    with log_wire() as wire:
        rows = ours.dispatch(tokens, case.of(rank), kept)
        counts = kept[:, 2 * rank : 2 * rank + 2].flatten()
        results = rows * scales.repeat(case.ranks).repeat_interleave(counts)[:, None]
        out = ours.combine(results, weights)
        if backward:
            (out * _direction(out)).sum().backward()
    return Outcome(_Returned(out, tokens.grad, weights.grad, scales.grad), wire)


def _scales(case: _Case) -> "Tensor":
    import torch

    return 2.0 ** torch.arange(case.experts)


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
    for case in (_TWO, _FULL):
        _expect_travel(_results(parts, case, backward=False), case, passes=1)


def _with_gradients(parts: SimpleNamespace) -> None:
    outcomes = _results(parts, _FULL, backward=True)
    for rank, outcome in enumerate(outcomes):
        _expect_gradients(outcome.value, _FULL, rank)
    _expect_travel(outcomes, _FULL, passes=2)


def _results(parts: SimpleNamespace, case: _Case, backward: bool) -> list[Outcome]:
    """What each rank has at the end; its result is compared already."""
    found = on_ranks(_there_and_back, parts.Dispatcher, case, backward, ranks=case.ranks)
    outcomes: list[Outcome] = [one.value for one in found]
    for rank, (name, value) in enumerate(each_rank(outcomes)):
        others = {
            "the plain sum of the experts' results": _one_process(case, rank, power=0),
            "weighted twice": _one_process(case, rank, power=2),
            "the results in the order in which they come back": _misplaced(case, rank, "rows"),
            "each result with the weight of another choice": _misplaced(case, rank, "weights"),
        }
        expect_tensor(value.out, _one_process(case, rank), f"{name}: the result", others=others)
    return outcomes


def _expect_travel(outcomes: list[Outcome], case: _Case, passes: int) -> None:
    """Two all-to-alls in each pass, with the bytes that the theory knows from the counts."""
    kept = case.kept().tolist()
    sizes = [routed_bytes(kept, rank, 4 * _HIDDEN, passes) for rank in case.every]
    why = "rows go there and back once" + (", and so do their gradients" if passes == 2 else "")
    expect_sent(outcomes, [{"all-to-all": (2 * passes, size)} for size in sizes], why)


def _expect_gradients(found: _Returned, case: _Case, rank: int) -> None:
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
    for what, own, right in (
        ("tokens", found.tokens, tokens.grad),
        ("weights", found.weights, weights.grad),
        ("experts", found.experts, scales.grad[2 * rank : 2 * rank + 2]),
    ):
        name = f"rank {rank} of {case.ranks}: the gradient of the {what}"
        if own is None:
            raise Wrong(f"{name} is None: it has not come back")
        expect_tensor(own, torch.zeros_like(own) if right is None else right, name)


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
