"""Build 10.12: what replaces f and g where norms are cut along the sequence."""

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
from course_lib.theory.network.collectives import activation_bytes

if TYPE_CHECKING:
    from torch import Tensor

_BATCH, _TOKENS, _HIDDEN = 3, 6, 4
_SHAPE = (_BATCH, _TOKENS, _HIDDEN)


def _whole(rank: int, dtype: str = "float32") -> "Tensor":
    """What a rank has of all tokens."""
    import torch

    numbers = torch.randn(*_SHAPE, generator=torch.Generator().manual_seed(rank))
    return numbers.to(getattr(torch, dtype))


def _gather(parts: SimpleNamespace) -> None:
    for ranks in (2, 3):
        _check(parts.Gather, "Gather", ranks)


def _sum_scatter(parts: SimpleNamespace) -> None:
    _check(parts.SumScatter, "SumScatter", ranks=3)


def _cases(rank: int, ranks: int) -> list[tuple[list[int], str]]:
    """The ranks that share the tokens with this one, and the type of their numbers."""
    everyone = list(range(ranks))
    more = [(line_of(rank), "float32"), (everyone, "bfloat16")] if ranks == 3 else []
    return [(everyone, "float32"), *more]


def _check(function: Any, name: str, ranks: int) -> None:
    """One function forward and backward: all tokens on one side, own tokens on the other."""
    outcomes = on_ranks(_both_passes, function, name == "Gather", ranks=ranks)
    for rank, (on_rank, found) in enumerate(each_rank(outcomes)):
        for (line, dtype), one in zip(_cases(rank, ranks), found, strict=True):
            where = f"{on_rank}, in {dtype}" + f", in the group of ranks {line}" * (
                len(line) < ranks
            )
            _expect_passes(one, name, line, line.index(rank), dtype, where)


def _expect_passes(
    found: Any, name: str, line: list[int], place: int, dtype: str, where: str
) -> None:
    result, gradient, kept, log = found
    out, back = f"{where}: {name}, forward", f"{where}: {name}, backward"
    gathers, scatters = (result, gradient) if name == "Gather" else (gradient, result)
    told = (out, back) if name == "Gather" else (back, out)
    wholes = [_whole(rank, dtype) for rank in line]
    own = _whole(0, dtype)
    shares = [_share(own, other, len(line)) for other in range(len(line))]
    _expect_gathered(gathers, own, shares, told[0])
    _expect_scattered(scatters, wholes, place, told[1])
    expect_kept(kept, f"{where}: {name}")
    expect_among(log, len(line), f"{where}, {name}")
    size = activation_bytes(_BATCH, _TOKENS, _HIDDEN, element_bytes=own.element_size())
    calls = {"all-gather": (1, size), "reduce-scatter": (1, size)} if len(line) > 1 else {}
    expect_calls(log, calls, f"{where},", f"{name} needs one call in each pass, of all tokens")


def _share(whole: "Tensor", rank: int, ranks: int) -> "Tensor":
    return whole.chunk(ranks, 1)[rank]


def _expect_gathered(found: Any, whole: "Tensor", shares: "list[Tensor]", what: str) -> None:
    import torch

    ranks, shape = len(shares), tuple(getattr(found, "shape", ()))
    if ranks > 1 and shape == (_BATCH * ranks, _TOKENS // ranks, _HIDDEN):
        raise Wrong(f"{what}: has shape {shape}: joined along the batch, not the sequence")
    if shape == (_BATCH, _TOKENS, _HIDDEN):
        flat = torch.cat(shares).view(_SHAPE)
        others = {"the shares one after another, whose samples are not kept apart": flat}
        expect_tensor(found, whole, f"{what}: the whole", others=others)
    expect_tensor(found, whole, f"{what}: the whole", same_dtype=True)


def _expect_scattered(found: Any, wholes: "list[Tensor]", rank: int, what: str) -> None:
    import torch

    ranks = len(wholes)
    exact, total = wholes[0].dtype == torch.float32, torch.stack(wholes).sum(0)
    others = {"this rank's own part, to which nothing was added": _share(wholes[rank], rank, ranks)}
    for other in set(range(ranks)) - {rank}:
        others[f"the sum for the tokens of rank {other}"] = _share(total, other, ranks)
    along_batch = total.flatten().chunk(ranks)[rank].view(_BATCH, -1, _HIDDEN)
    others["a part of the batch, not of the sequence"] = along_batch
    mean = {1 / ranks: "the mean over ranks, where the sum is wanted"}
    right = _share(total, rank, ranks)
    expect_tensor(
        found,
        right,
        f"{what}: the share",
        factors=mean,
        others=others,
        tolerance=1e-5 if exact else 2e-2,
        same_dtype=True,
    )


def _both_passes(function: Any, gathers: bool) -> list[Any]:
    """On a rank: for each case result, gradient, what is as it was, and what was sent.

    Backward begins when all cases have gone forward.
    """
    import torch.distributed as dist

    from course_lib.checking.builds.on_rank.followed import meet
    from course_lib.measure.wire import log_wire
    from course_lib.scratch.three_d import own_group

    rank, ranks, found = dist.get_rank(), dist.get_world_size(), []
    lines = own_group(LINES) if ranks == 3 else None
    for line, dtype in _cases(rank, ranks):
        group = lines if len(line) < ranks else None
        own, every = (
            _share(_whole(0, dtype), line.index(rank), len(line)).clone(),
            _whole(rank, dtype),
        )
        x, upstream = (own, every) if gathers else (every, own)
        before = x.clone(), upstream.clone()
        x.requires_grad_()
        with log_wire() as log:
            result = function.apply(x, group)
        meet("has done a forward pass")
        found.append((x, upstream, before, result, log))
    return [_backward(*each) for each in found]


def _backward(x: "Tensor", upstream: "Tensor", before: Any, result: "Tensor", log: Any) -> Any:
    import torch

    from course_lib.checking.builds.on_rank.followed import meet
    from course_lib.measure.wire import log_wire

    if result.shape == upstream.shape:
        with log_wire() as back:
            result.backward(upstream)
        log.calls.extend(back.calls)
    meet("has done a backward pass")
    same = map(torch.equal, (x, upstream), before)
    kept = dict(zip(("its argument", "the gradient that it is given"), same, strict=True))
    return result.detach(), x.grad, kept, log


def _layers(parts: SimpleNamespace) -> None:
    """A transformer's layer whose norms see this rank's tokens only."""
    outcomes = on_ranks(_cut_block, parts.Gather, parts.SumScatter, ranks=2)
    expected = _one_block()
    for rank, (name, (tensors, _)) in enumerate(each_rank(outcomes)):
        for what, right in expected.items():
            cut = what in ("the result", "the input's gradient")
            own = _share(right, rank, 2) if cut else right
            expect_tensor(tensors.get(what), own, f"{name}, a transformer's layer: {what}")
    size = 4 * activation_bytes(_BATCH, _TOKENS, _HIDDEN, element_bytes=4)
    logs = [Outcome(None, one.value[1]) for one in outcomes]
    calls = {"all-gather": (4, size), "reduce-scatter": (4, size)}
    expect_sent(logs, calls, "each of the four all-reduces of a layer becomes one of both")


def _given() -> Any:
    import torch

    from course_lib.scratch.gpt import Block

    torch.manual_seed(0)
    return Block(_HIDDEN, 2), _whole(0), _whole(1)


def _passed(block: Any, x: "Tensor", upstream: "Tensor") -> "dict[str, Tensor]":
    x = x.clone().requires_grad_()
    y = block(x)
    y.backward(upstream)
    assert x.grad is not None
    return {"the result": y.detach(), "the input's gradient": x.grad}


def _named(gradients: Any) -> dict[str, Any]:
    return {f"the gradient of {name}": gradient for name, gradient in gradients}


def _one_block() -> dict[str, Any]:
    block, x, upstream = _given()
    found = _passed(block, x, upstream)
    return found | _named((name, p.grad) for name, p in block.named_parameters())


def _cut_block(gather: Any, sum_scatter: Any) -> Any:
    from course_lib.measure.wire import log_wire
    from course_lib.scratch.tensor.layers import cut_block
    from course_lib.scratch.tensor.sequence import SequenceParallel, sum_copied_gradients
    from course_lib.scratch.tensor.vocabulary import whole_gradients

    region = SequenceParallel(gather=gather, sum_scatter=sum_scatter)
    block, x, upstream = _given()
    cut_block(block, region)
    with log_wire() as log:
        found = _passed(block, *(_share(one, region.rank, region.ranks) for one in (x, upstream)))
    sum_copied_gradients(block, region)
    return found | _named(whole_gradients(block, region).items()), log


def _prepared(parts: SimpleNamespace) -> Any:
    """Into a pair and out of it, forward and backward."""
    import torch

    x = torch.ones(4, 256, 512, requires_grad=True)

    def once() -> None:
        parts.SumScatter.apply(parts.Gather.apply(x, None), None).sum().backward()

    return once


SEQUENCE = build(
    "sequence",
    title="into a pair and out of it, by tokens",
    hints=(
        "An all-reduce is a reduce-scatter and an all-gather. What does the matrix need before it, "
        "and what do the norms after it?",
        "The backward pass of an all-gather is a reduce-scatter, and the other way round.",
        "`wire.all_gather` joins the first dimension, which is the batch here. Which dimension "
        "must stand first while it runs?",
        "wire.all_gather(x.transpose(0, 1), group).transpose(0, 1), and the same for "
        "reduce_scatter.",
    ),
    steps=(
        Step("Gather", ("Gather.forward", "Gather.backward"), _gather),
        Step("SumScatter", ("SumScatter.forward", "SumScatter.backward"), _sum_scatter),
        Step("attention and MLP", (), _layers),
    ),
    race=Race("into and out of a pair, 1024 tokens of 512 features, both passes", _prepared),
)
