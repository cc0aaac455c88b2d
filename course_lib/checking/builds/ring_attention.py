"""Build 12.11: attention in blocks, merged while keys and values go round a ring."""

from collections.abc import Iterable
from math import inf
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from course_lib.checking.build import Step, build
from course_lib.checking.builds.compared import (
    expect_among,
    expect_calls,
    expect_kept,
    expect_tensor,
)
from course_lib.checking.builds.outcome import Outcome
from course_lib.checking.builds.ranks import LINES, line_of, on_ranks
from course_lib.checking.exercises import Wrong
from course_lib.checking.helpers import described
from course_lib.checking.races import Race
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.network.step_traffic import step_traffic

if TYPE_CHECKING:
    from torch import Tensor

    from course_lib.scratch.context.slices import SequenceRing

_BATCH, _HEADS, _WIDTH, _SEQUENCE = 2, 3, 5, 12
_FP32 = Recipe(parameters="fp32", gradients="fp32", master_copy=False)


def _whole(tokens: int = _SEQUENCE) -> "Tensor":
    """Queries, keys and values of a sequence: (3, batch, heads, tokens, width)."""
    import torch

    numbers = torch.Generator().manual_seed(0)
    return torch.randn(3, _BATCH, _HEADS, tokens, _WIDTH, generator=numbers)


def _attention(
    q: "Tensor", k: "Tensor", v: "Tensor", seen: "Tensor", scale: float | None = None
) -> "tuple[Tensor, Tensor]":
    """Result and log-sum-exp; `seen` (queries, keys) says which keys a query sees."""
    q, k, v = q.double(), k.double(), v.double()
    scores = q @ k.transpose(-1, -2) * (scale or q.shape[-1] ** -0.5)
    scores = scores.masked_fill(~seen, -inf)
    lse = scores.logsumexp(-1, keepdim=True)
    # A query that sees nothing has a result of 0.
    return (scores - lse).exp().nan_to_num() @ v, lse


def _pair(found: Any, what: str) -> "tuple[Tensor, Tensor]":
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise Wrong(f"{what} wants a pair, the result and its log-sum-exp, got {described(found)}")
    return found[0], found[1]


def _blocks(parts: SimpleNamespace) -> None:
    import torch

    q, k, v = _whole()
    cases = (
        ("a block of 4 earlier keys, 5 queries", q[:, :, 7:], k[:, :, :4], v[:, :, :4], False),
        ("5 queries and their own keys", q[:, :, 7:], k[:, :, 7:], v[:, :, 7:], True),
        ("scores of some 1,000", 1000 * q[:, :, 7:], k[:, :, 7:], v[:, :, 7:], True),
        ("scores of some 1,000, earlier keys", 1000 * q[:, :, 7:], k[:, :, :4], v[:, :, :4], False),
    )
    for name, queries, keys, values, same in cases:
        out, lse = _pair(parts.block_forward(queries, keys, values, same), "block_forward")
        all_seen = torch.ones(queries.shape[2], keys.shape[2], dtype=torch.bool)
        seen = all_seen.tril() if same else all_seen
        right, right_lse = _attention(queries, keys, values, seen)
        others = {
            "attention without a mask": _attention(queries, keys, values, all_seen)[0],
            "attention with a mask, and all of these keys are earlier": _attention(
                queries, keys, values, all_seen.tril()
            )[0],
            "attention to keys before the query's own": _attention(
                queries, keys, values, all_seen.tril(-1) if same else seen
            )[0],
            "attention with scores that are not scaled": _attention(
                queries, keys, values, seen, scale=1.0
            )[0],
        }
        expect_tensor(out, right, f"{name}: the result of block_forward", others=others)
        sums = {"the sum, not its logarithm": right_lse.exp()}
        expect_tensor(lse, right_lse, f"{name}: the log-sum-exp of block_forward", others=sums)


def _merged(parts: SimpleNamespace) -> None:
    import torch

    q, k, v = _whole()
    for name, size, shift in (
        ("", 1.0, 0.0),
        ("scores of some 1,000: ", 1000.0, 0.0),
        ("scores of some -1,000: ", 1.0, -1000.0),
    ):
        for order in ((0, 1, 2), (2, 0, 1)):
            _expect_merged(parts.merge, size * q, k, v, order=order, shift=shift, name=name)
    out, lse = (x.float() for x in _attention(q, k, v, torch.ones(12, 12, dtype=torch.bool)))
    right, right_lse = out.clone(), lse.clone()
    parts.merge(out, lse, (torch.zeros_like(out), torch.full_like(lse, -inf)))
    expect_tensor(out, right, "a block with an lse of -inf adds nothing: `out` after merge")
    expect_tensor(lse, right_lse, "a block with an lse of -inf adds nothing: `lse` after merge")
    block = torch.zeros_like(out), torch.full_like(lse, -inf)
    block[0][:, :, ::2], block[1][:, :, ::2] = right[:, :, ::2], right_lse[:, :, ::2]
    parts.merge(out, lse, block)
    more = torch.full_like(lse, 2.0).log()
    more[:, :, 1::2] = 0
    expect_tensor(out, right, "half of the queries see nothing of a block: `out` after merge")
    expect_tensor(
        lse, right_lse + more, "half of the queries see nothing of a block: `lse` after merge"
    )


def _expect_merged(
    merge: Any,
    q: "Tensor",
    k: "Tensor",
    v: "Tensor",
    *,
    order: Iterable[int],
    shift: float,
    name: str,
) -> None:
    """Blocks of 4 keys in any order, their scores all moved by `shift`, are attention to all."""
    import torch

    out, lse = torch.zeros_like(q), torch.full_like(q[..., :1], -inf)
    places: list[int] = []
    for number, block in enumerate(order, start=1):
        own = list(range(4 * block, 4 * block + 4))
        places += own
        new, new_lse = _attention(q, k[:, :, own], v[:, :, own], torch.ones(12, 4).bool())
        new, new_lse = new.float(), (new_lse + shift).float()
        before, before_lse = out.clone(), lse.clone()
        merge(out, lse, (new, new_lse))
        what = f"{name}after {number} block{'s' * (number > 1)}"
        for tensor, was, letter in ((out, before, "out"), (lse, before_lse, "lse")):
            if torch.equal(tensor, was):
                raise Wrong(f"{what}: `{letter}` is what it was before: change it in place")
        seen = torch.ones(12, len(places)).bool()
        right, right_lse = _attention(q, k[:, :, places], v[:, :, places], seen)
        sums = {"the plain sum of both": before + new, "their plain mean": (before + new) / 2}
        # A log-sum-exp of 1,000 in float32 has an error of 1e-4, and so has its exponential.
        tolerance = 1e-3 if name else 1e-5
        expect_tensor(out, right, f"{what}: `out`", others=sums, tolerance=tolerance)
        sums = {"the plain sum of both": before_lse + new_lse}
        expect_tensor(lse, right_lse + shift, f"{what}: `lse`", others=sums)


def _slices(zigzag: bool) -> "SequenceRing":
    """On a rank: its place in the ring of all ranks."""
    import torch.distributed as dist

    from course_lib.scratch.context.slices import SequenceRing

    assert dist.group.WORLD is not None
    return SequenceRing(dist.group.WORLD, zigzag)


def _round_the_ring(forward: Any) -> list[Any]:
    """On a rank: for both kinds of slices, what comes out, and whether q and kv are unchanged.

    With three ranks also in the ring of a smaller group. q lies in memory as a model leaves it,
    token by token and not head by head.
    """
    import torch
    import torch.distributed as dist

    from course_lib.checking.builds.on_rank.hops import WatchedRing
    from course_lib.measure.wire import log_wire
    from course_lib.scratch.three_d import own_group

    world, outcomes = dist.group.WORLD, []
    assert world is not None
    rings = [(world, False), (world, True)]
    if dist.get_world_size() == 3:
        rings.append((own_group(LINES), True))
    for group, zigzag in rings:
        ring = WatchedRing(group, zigzag)
        q, k, v = (x[:, :, ring.places(_SEQUENCE)].contiguous() for x in _whole())
        q, kv = q.transpose(1, 2).contiguous().transpose(1, 2), torch.stack([k, v])
        before = q.clone(), kv.clone()
        with log_wire() as wire, ring.watch():
            found = forward(q, kv, ring)
        kept = {"q": bool((q == before[0]).all()), "kv": bool((kv == before[1]).all())}
        outcomes.append(Outcome((found, kept, ring.idle, ring.late), wire))
    return outcomes


def _ring(parts: SimpleNamespace) -> None:
    for ranks in (2, 3):
        for rank, one in enumerate(on_ranks(_round_the_ring, parts.ring_forward, ranks=ranks)):
            for place, outcome in enumerate(one.value):
                line = line_of(rank) if place == 2 else list(range(ranks))
                name = f"rank {rank} of {ranks}, {'zig-zag slices' if place else 'slices in order'}"
                _expect_outcome(outcome, line.index(rank), len(line), bool(place), name)


def _expect_outcome(outcome: Outcome, rank: int, ranks: int, zigzag: bool, what: str) -> None:
    pair, kept, idle, late = outcome.value
    _expect_ring(pair, rank, ranks, zigzag, what)
    expect_kept(kept, f"{what}: ring_forward")
    expect_among(outcome.wire, ranks, f"{what}, ring_forward")
    hops = {"send-recv": _hops(ranks)} if ranks > 1 else {}
    why = "keys and values make one hop less than there are ranks"
    expect_calls(outcome.wire, hops, f"{what},", why, at_most=True)
    if zigzag and idle:  # with slices in order some ranks have nothing to do
        raise Wrong(
            f"{what}: hop {idle[0]} is waited for before any block was computed since its start: "
            "nothing is computed while keys and values travel"
        )
    if late:
        raise Wrong(
            f"{what}: before hop {late[0]} starts, blocks are computed while nothing travels: a "
            "hop starts before the blocks of its round and is waited for after them"
        )


def _expect_ring(found: Any, rank: int, ranks: int, zigzag: bool, what: str) -> None:
    import torch

    out, lse = _pair(found, f"{what}: ring_forward")
    chunk = torch.arange(_SEQUENCE).view(ranks * (1 + zigzag), -1)
    slices = [torch.cat([chunk[r], chunk[-1 - r]]) if zigzag else chunk[r] for r in range(ranks)]
    q, k, v = _whole()
    own = slices[rank]
    seen = own[:, None] >= torch.arange(_SEQUENCE)

    def among(owners: Iterable[int], visible: "Tensor" = seen) -> "tuple[Tensor, Tensor]":
        keys = torch.cat([slices[owner] for owner in owners])
        return _attention(q[:, :, own], k[:, :, keys], v[:, :, keys], visible[:, keys])

    visits = [(rank - step) % ranks for step in range(ranks)]
    right, right_lse = among(visits)
    local = torch.arange(len(own))
    by_place, exchanged = torch.empty_like(seen), torch.empty_like(seen)
    for step, owner in enumerate(visits):
        by_place[:, slices[owner]] = local[:, None] >= local
        exchanged[:, slices[owner]] = seen[:, slices[(rank + step) % ranks]]
    same_chunk = own[:, None] // len(chunk[0]) == torch.arange(_SEQUENCE) // len(chunk[0])
    by_block = seen & (own[:, None] % len(chunk[0]) >= torch.arange(_SEQUENCE) % len(chunk[0]))
    others = {
        "attention without the last visitor": among(visits[: ranks - 1 or 1])[0],
        "attention to its own slice alone": among([rank])[0],
        "attention to later tokens as well": among(visits, torch.ones_like(seen))[0],
        "attention to later tokens of the same chunk as well": among(visits, seen | same_chunk)[0],
        "attention in which a visitor is taken for another": among(visits, exchanged)[0],
        "attention with each slice masked as if it was its own": among(visits, by_place)[0],
        "attention with each block masked as if its tokens were the same": among(visits, by_block)[
            0
        ],
    }
    expect_tensor(out, right, f"{what}: the result", others=others)
    expect_tensor(lse, right_lse, f"{what}: the log-sum-exp")


def _hops(ranks: int) -> tuple[int, int]:
    """Messages and bytes of a layer's forward pass: a third of the theory's for a step."""
    sizes = (1, _HEADS * _WIDTH, _HEADS, 4 * _HEADS * _WIDTH)
    shape = TransformerShape(*sizes, vocab=1, context=_SEQUENCE)
    layout = Layout(cp=ranks, micro_batch=_BATCH)
    traffic = step_traffic(Job(shape, _FP32, layout, sequence=_SEQUENCE))
    ring = [x for x in traffic.collectives if x.operation == "send-recv"]
    calls = sum(x.count for x in ring)
    return calls // 3, round(sum(x.count * x.size_bytes for x in ring)) // 3


_RACE_SHAPE = (1, 4, 512, 32)  # batch, heads, tokens of a rank, width


def _prepared(parts: SimpleNamespace) -> Any:
    """Forward pass of 1024 tokens, 4 heads, zig-zag."""
    import torch

    ring = _slices(zigzag=True)
    q, k, v = torch.randn(3, *_RACE_SHAPE)
    kv = torch.stack([k, v])
    return lambda: parts.ring_forward(q, kv, ring)


def _by_torch() -> Any:
    """All keys and values on every rank, and torch's attention with a mask."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    from course_lib.scratch import wire

    ring, tokens = _slices(zigzag=True), _RACE_SHAPE[2]
    q, k, v = torch.randn(3, *_RACE_SHAPE)
    kv = torch.stack([k, v])
    everyone = wire.all_gather(ring.places(ring.ranks * tokens))
    mask = ring.places(ring.ranks * tokens)[:, None] >= everyone

    def once() -> None:
        k, v = wire.all_gather(kv.movedim(-2, 0)).movedim(0, -2)
        scaled_dot_product_attention(q, k, v, attn_mask=mask)

    return once


RING_ATTENTION = build(
    "ring_attention",
    title="attention round a ring",
    hints=(
        "block_forward: scores are q @ k.transpose(-1, -2) / √width. `same` hides the keys behind "
        "the query's own: -inf in their place. The weights are exp(score - lse): no overflow.",
        "merge: with `both` the log-sum-exp of lse and block_lse (torch.logaddexp), the one weighs "
        "exp(lse - both) and the other exp(block_lse - both). Assign with mul_, add_ and copy_.",
        "ring_forward begins with a result of 0 and an lse of -inf. After k hops a rank has the "
        "keys and values of rank - k (mod ranks).",
        "Each round: start the next hop unless it is the last round, merge the blocks of all "
        "`ring.pairs(owner)` into `ring.cut(out, i)` and `ring.cut(lse, i)`, wait for the hop.",
    ),
    steps=(
        Step("one block", ("block_forward",), _blocks),
        Step("merge", ("merge",), _merged),
        Step("the ring", ("ring_forward",), _ring),
    ),
    race=Race("forward pass of 1024 tokens, 4 heads", _prepared, _by_torch),
)
