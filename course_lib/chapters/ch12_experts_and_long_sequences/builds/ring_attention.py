"""Build 12.11: attention in blocks, merged while keys and values travel around a ring."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import inf
from types import SimpleNamespace
from typing import Any

from course_lib.checking.build import build
from course_lib.checking.builds.compare import Case, Place, compare, compare_here
from course_lib.checking.builds.lazily import dist, later, nn, torch
from course_lib.checking.builds.rows import Must, Never, Rows, Sends, unchanged
from course_lib.checking.exercises import Wrong
from course_lib.checking.helpers import described
from course_lib.checking.races import Race
from course_lib.theory.stories.messages import ring_attention_steps
from course_lib.trace import Trace

_models = later("course_lib.checking.builds.on_rank.small_models")
_hops, _wire = later("course_lib.checking.builds.on_rank.watched"), later("course_lib.measure.wire")
_scratch_wire = later("course_lib.scratch.wire")

_BATCH, _HEADS, _WIDTH, _SEQUENCE = 2, 3, 5, 12
_TOKEN_BYTES = 4 * 2 * _BATCH * _HEADS * _WIDTH  # key and value of a token


def _whole() -> Any:
    """Queries, keys and values of a sequence: (3, batch, heads, tokens, width)."""
    return _models.random(0, 3, _BATCH, _HEADS, _SEQUENCE, _WIDTH)


def _attention(q: Any, k: Any, v: Any, seen: Any, scale: float | None = None) -> Any:
    """Result and log-sum-exp; `seen` (queries, keys) is True where a query sees a key."""
    q, k, v = q.double(), k.double(), v.double()
    scores = q @ k.transpose(-1, -2) * (scale or q.shape[-1] ** -0.5)
    scores = scores.masked_fill(~seen, -inf)
    lse = scores.logsumexp(-1, keepdim=True)
    # A query that sees no key has a result of 0.
    return (scores - lse).exp().nan_to_num() @ v, lse


def _pair(answer: Any, what: str) -> Any:
    if not isinstance(answer, tuple | list) or len(answer) != 2:
        raise Wrong(f"{what} wants a pair, the result and its log-sum-exp, got {described(answer)}")
    return answer


def _expect_blocks(parts: SimpleNamespace) -> Rows:
    q, k, v = _whole()
    for name, size, same in (
        ("a block of 4 earlier keys, 5 queries", 1, False),
        ("5 queries and their own keys", 1, True),
        ("scores of some 1,000", 1000, True),
        ("scores of some 1,000, earlier keys", 1000, False),
    ):
        keys = slice(7, None) if same else slice(4)
        block = size * q[:, :, 7:], k[:, :, keys], v[:, :, keys]
        out, lse = _pair(parts.block_forward(*block, same), "block_forward")
        every = torch.ones(5, block[1].shape[2], dtype=torch.bool)
        seen = every.tril() if same else every
        right, right_lse = _attention(*block, seen)
        others = {
            "attention without a mask": every,
            "attention with a mask, and all of these keys are earlier": every.tril(),
            "attention to keys before the query's own": every.tril(-1) if same else seen,
        }
        wrong = {words: _attention(*block, mask)[0] for words, mask in others.items()}
        unscaled = _attention(*block, seen, scale=1.0)[0]
        wrong["attention with scores that are not scaled"] = unscaled
        yield Must(f"{name}: the result of block_forward", out, right, wrong)
        sums = {"the sum, not its logarithm": right_lse.exp()}
        yield Must(f"{name}: the log-sum-exp of block_forward", lse, right_lse, sums)


def _expect_merged(parts: SimpleNamespace) -> Rows:
    """Blocks of 4 keys, merged in any order and with scores offset by `shift`, match attention."""
    q, k, v = _whole()
    sizes = (("", 1.0, 0.0), ("1,000: ", 1000.0, 0.0), ("-1,000: ", 1.0, -1000.0))
    for (size, scale, shift), order in product(sizes, ((0, 1, 2), (2, 0, 1))):
        name, queries, positions = size and f"scores of some {size}", scale * q, list[int]()
        out, lse = torch.zeros_like(q), torch.full_like(q[..., :1], -inf)
        for number, block in enumerate(order, start=1):
            pos = list(range(4 * block, 4 * block + 4))
            positions += pos
            new, new_lse = _attention(queries, k[:, :, pos], v[:, :, pos], torch.ones(12, 4).bool())
            new, new_lse = new.float(), (new_lse + shift).float()
            before, before_lse = out.clone(), lse.clone()
            parts.merge(out, lse, (new, new_lse))
            what = f"{name}after {number} block{'s' * (number > 1)}"
            for tensor, was, letter in ((out, before, "out"), (lse, before_lse, "lse")):
                same = f"{what}: `{letter}` is what it was before: change it in place"
                yield Never(torch.equal(tensor, was), same)
            seen = torch.ones(12, len(positions)).bool()
            right, right_lse = _attention(queries, k[:, :, positions], v[:, :, positions], seen)
            sums = {"the plain sum of both": before + new, "their plain mean": (before + new) / 2}
            # A log-sum-exp of 1,000 has an error of 1e-4 in float32, and so has its exponential.
            yield Must(f"{what}: `out`", out, right, sums, tolerance=1e-3 if name else 1e-5)
            sums = {"the plain sum of both": before_lse + new_lse}
            yield Must(f"{what}: `lse`", lse, right_lse + shift, sums)


def _expect_empty_merges(parts: SimpleNamespace) -> Rows:
    q, k, v = _whole()
    right, right_lse = (x.float() for x in _attention(q, k, v, torch.ones(12, 12).bool()))
    for what, seen in (
        ("a block with an lse of -inf adds nothing", slice(0)),
        ("half of the queries see nothing of a block", slice(0, None, 2)),
    ):
        out, lse, block_lse = right.clone(), right_lse.clone(), torch.full_like(right_lse, -inf)
        block_lse[:, :, seen] = right_lse[:, :, seen]
        expected = torch.logaddexp(right_lse, block_lse)
        parts.merge(out, lse, (right * block_lse.isfinite(), block_lse))
        yield Must(f"{what}: `out` after merge", out, right)
        yield Must(f"{what}: `lse` after merge", lse, expected)


@dataclass(frozen=True)
class _Ring(Case):
    """Slices in order or zig-zag, in a ring of all ranks or of a smaller group."""

    zigzag: bool = False

    def who(self, rank: int, _line: Sequence[int]) -> str:
        slices = "zig-zag slices" if self.zigzag else "slices in order"
        return f"rank {rank} of {self.ranks}, {slices}"

    def slices(self, ranks: int) -> list[Any]:
        """The tokens of each rank."""
        chunk = torch.arange(_SEQUENCE).view(ranks * (1 + self.zigzag), -1)
        if self.zigzag:
            return [torch.cat([chunk[rank], chunk[-1 - rank]]) for rank in range(ranks)]
        return list(chunk)


_RINGS = [_Ring(zigzag, ranks=ranks) for ranks in (2, 3) for zigzag in (True, False)]
_RINGS.append(_Ring(True, ranks=3, in_group=True))


def _run_ring(parts: SimpleNamespace, case: _Ring, group: Any) -> Any:
    """Run ring_forward: its result, whether q and kv are unchanged, and how hops overlapped.

    q has the memory layout that a model produces: token by token, not head by head.
    """
    ring = _hops.WatchedRing(group or dist.group.WORLD, case.zigzag)
    q, k, v = (x[:, :, ring.places(_SEQUENCE)].contiguous() for x in _whole())
    q, kv = q.transpose(1, 2).contiguous().transpose(1, 2), torch.stack([k, v])
    same = _hops.kept({"q": q, "kv": kv})
    with _wire.log_wire() as wire, ring.watch():
        pair = parts.ring_forward(q, kv, ring)
    return pair, same(), ring.idle, ring.late, wire


def _expect_ring(outcome: Any, place: Place) -> Rows:
    (rank, ranks, case, _), (pair, same, idle, late, wire) = place, outcome
    out, lse = _pair(pair, f"{case.who(place.line[rank], ())}: ring_forward")
    slices, (q, k, v) = case.slices(ranks), _whole()
    own, tokens = slices[rank], torch.arange(_SEQUENCE)
    size = _SEQUENCE // ranks // (1 + case.zigzag)  # of a chunk
    seen = own[:, None] >= tokens

    def among(owners: Iterable[int], visible: Any = seen) -> Any:
        keys = torch.cat([slices[owner] for owner in owners])
        return _attention(q[:, :, own], k[:, :, keys], v[:, :, keys], visible[:, keys])

    visits = [(rank - step) % ranks for step in range(ranks)]
    local = torch.arange(len(own))
    by_position, exchanged = torch.empty_like(seen), torch.empty_like(seen)
    for step, owner in enumerate(visits):
        by_position[:, slices[owner]] = local[:, None] >= local
        exchanged[:, slices[owner]] = seen[:, slices[(rank + step) % ranks]]
    same_chunk = own[:, None] // size == tokens // size
    masks = {
        "attention to later tokens as well": torch.ones_like(seen),
        "attention to later tokens of the same chunk as well": seen | same_chunk,
        "attention in which a visitor is taken for another": exchanged,
        "attention with each slice masked as if it was its own": by_position,
        "attention with each block masked as if its tokens were the same": (
            seen & (own[:, None] % size >= tokens % size)
        ),
    }
    others = {
        "attention without the last visitor": among(visits[: ranks - 1 or 1])[0],
        "attention to its own slice alone": among([rank])[0],
        **{words: among(visits, mask)[0] for words, mask in masks.items()},
    }
    right, right_lse = among(visits)
    yield Must("the result", out, right, others)
    yield Must("the log-sum-exp", lse, right_lse)
    yield from unchanged(same, "ring_forward")
    zigzag = {"zigzag": case.zigzag, "token_bytes": _TOKEN_BYTES}
    hops = ring_attention_steps(_SEQUENCE, ranks, **zigzag) if ranks > 1 else Trace()
    why = "keys and values make one hop less than there are ranks"
    yield Sends(wire, hops, why, at_most=True, among=ranks, who=rank)
    waited, started = (f"hop {[*hops, 0][0]}" for hops in (idle, late))
    nothing = f"before {started} starts, blocks are computed while nothing travels: a hop starts"
    yield Never(late, f"{nothing} before the blocks of its round and is waited for after them")
    nothing = f"{waited} is waited for before any block was computed since its start: nothing is"
    # With slices in order some ranks have nothing to compute.
    yield Never(case.zigzag and idle, f"{nothing} computed while keys and values travel")


def _own_slice() -> tuple[Any, Any, Any]:
    """Queries, keys and values, and the ring, for 4 heads of 512 zig-zag tokens on each rank."""
    ring = later("course_lib.scratch.context").SequenceRing(dist.group.WORLD, True)
    q, k, v = torch.randn(3, 1, 4, 512, 32)
    return q, torch.stack([k, v]), ring


def _gathered_attention() -> Callable[[], object]:
    """Gather all keys and values on every rank, and call torch's attention with a mask."""
    q, kv, ring = _own_slice()
    positions, attention = ring.places(ring.ranks * 512), nn.functional.scaled_dot_product_attention
    mask = positions[:, None] >= _scratch_wire.all_gather(positions)

    def once() -> None:
        k, v = _scratch_wire.all_gather(kv.movedim(-2, 0)).movedim(0, -2)
        attention(q, k, v, attn_mask=mask)

    return once


RING_ATTENTION = build(
    "ring_attention",
    steps=(
        compare_here("one block", ("block_forward",), _expect_blocks),
        compare_here("merge", ("merge",), _expect_merged, _expect_empty_merges),
        compare("the ring", ("ring_forward",), _run_ring, _expect_ring, _RINGS),
    ),
    race=Race(
        "forward pass of 1024 tokens, 4 heads",
        lambda parts: partial(parts.ring_forward, *_own_slice()),
        _gathered_attention,
    ),
)
