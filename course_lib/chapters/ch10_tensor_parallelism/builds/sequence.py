"""Build 10.12: the operations that replace f and g under sequence parallelism."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from course_lib.chapters.ch10_tensor_parallelism.builds.tensor import (
    BLOCK_BYTES,
    Boundary,
    boundaries,
    expect_one_process,
    make_block,
)
from course_lib.checking.build import build
from course_lib.checking.builds.compare import Place, compare
from course_lib.checking.builds.lazily import dist, later, torch
from course_lib.checking.builds.raced import both_passes
from course_lib.checking.builds.rows import Must, Never, Rows, Sends, others_parts, unchanged
from course_lib.checking.races import Race

_models = later("course_lib.checking.builds.on_rank.small_models")
_passes = later("course_lib.checking.builds.on_rank.watched")
_wire = later("course_lib.measure.wire")
_tensor = later("course_lib.scratch.tensor")

_BATCH, _TOKENS, _HIDDEN = _SHAPE = 3, 6, 4


def _whole(rank: int) -> Any:
    """A rank's tensor for all tokens: (batch, tokens, hidden)."""
    return _models.random(rank, *_SHAPE)


def _share(whole: Any, rank: int, ranks: int) -> Any:
    return whole.chunk(ranks, 1)[rank]


def _run_passes(parts: SimpleNamespace, case: Boundary, group: Any) -> Iterator[Any]:
    """Run both passes of one function, between a rank's own tokens and all tokens."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    tensors = [_share(case.of(_whole(0)), rank, ranks).clone(), case.of(_whole(dist.get_rank()))]
    x, upstream = tensors if case.name == "Gather" else tensors[::-1]
    yield from _passes.both_passes(getattr(parts, case.name), x, upstream, group, "a")


def _expect_passes(outcome: Any, place: Place) -> Rows:
    case, ranks = place.case, place.ranks
    result, gradient, forward, backward, same = outcome
    gathers, scatters = (result, "forward"), (gradient, "backward")
    if case.name == "SumScatter":
        gathers, scatters = scatters, gathers
    yield from _expect_gathered(gathers[0], case, ranks, f"{case.name}, {gathers[1]}")
    yield _expect_scattered(scatters[0], place, f"{case.name}, {scatters[1]}: the share")
    yield from unchanged(same, case.name)
    size = case.of(_whole(0)).nbytes
    calls = dict.fromkeys(("all-gather", "reduce-scatter"), (1, size))
    why = f"{case.name} needs one call in each pass, of all tokens"
    forward.calls.extend(backward.calls)
    yield Sends(forward, calls, why, among=ranks)


def _expect_gathered(tensor: Any, case: Boundary, ranks: int, what: str) -> Rows:
    whole, shape = case.of(_whole(0)), tuple(getattr(tensor, "shape", ()))
    along_batch = ranks > 1 and shape == (_BATCH * ranks, _TOKENS // ranks, _HIDDEN)
    words = f"{what}: has shape {shape}: joined along the batch, not the sequence"
    yield Never(along_batch, words)
    flat = torch.cat(whole.chunk(ranks, 1)).view(_SHAPE)
    others = {"the shares one after another, whose samples are not kept apart": flat}
    yield Must(f"{what}: the whole", tensor, whole, others, same_dtype=True)


def _expect_scattered(tensor: Any, place: Place, what: str) -> Must:
    rank, ranks, case, _ = place
    wholes = [case.of(_whole(each)) for each in place.line]
    total, own = sum(wholes), wholes[rank]
    others = {"this rank's own part, to which nothing was added": _share(own, rank, ranks)}
    others |= others_parts(total.chunk(ranks, 1), rank, "the sum for the tokens")
    along_batch = total.flatten().chunk(ranks)[rank].view(_BATCH, -1, _HIDDEN)
    others["a part of the batch, not of the sequence"] = along_batch
    mean = {1 / ranks: "the mean over ranks, where the sum is wanted"}
    close = 1e-5 if case.dtype == "float32" else 2e-2
    return Must(what, tensor, _share(total, rank, ranks), others, mean, close, same_dtype=True)


def _run_block(parts: SimpleNamespace, *_: Any) -> Any:
    """Run both passes of a transformer layer whose norms see only this rank's tokens."""
    region = _tensor.SequenceParallel(gather=parts.Gather, sum_scatter=parts.SumScatter)
    block, *both = make_block()
    _tensor.cut_block(block, region)
    x, upstream = (_share(one.detach(), region.rank, region.ranks).clone() for one in both)
    with _wire.log_wire() as log:
        y = block(x.requires_grad_())
        y.backward(upstream)
    _tensor.sum_copied_gradients(block, region)
    return y.detach(), x.grad, _tensor.whole_gradients(block, region), log


def _expect_layer(outcome: Any, place: Place) -> Rows:
    *tensors, log = outcome
    yield from expect_one_process(tensors, lambda whole: _share(whole, place.rank, place.ranks))
    calls = dict.fromkeys(("all-gather", "reduce-scatter"), (4, 4 * BLOCK_BYTES))
    yield Sends(log, calls, "each of the four all-reduces of a layer becomes one of both")


def _raced_sequence(parts: SimpleNamespace) -> Callable[[], object]:
    x = torch.ones(4, 256, 512, requires_grad=True)
    return lambda: both_passes(
        lambda x: parts.SumScatter.apply(parts.Gather.apply(x, None), None), x
    )


SEQUENCE = build(
    "sequence",
    steps=(
        compare(
            "Gather",
            ("Gather.forward", "Gather.backward"),
            _run_passes,
            _expect_passes,
            [Boundary("Gather", ranks=2), *boundaries("Gather")],
        ),
        compare(
            "SumScatter",
            ("SumScatter.forward", "SumScatter.backward"),
            _run_passes,
            _expect_passes,
            boundaries("SumScatter"),
        ),
        compare("attention and MLP", (), _run_block, _expect_layer),
    ),
    race=Race("into and out of a pair, 1024 tokens of 512 features, both passes", _raced_sequence),
)
