"""Build 10.11: f and g, and the two layers that a pair of cut matrices is made of."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

from course_lib.checking.build import Step, build
from course_lib.checking.builds.compared import (
    expect_among,
    expect_calls,
    expect_kept,
    expect_tensor,
)
from course_lib.checking.builds.ranks import LINES, each_rank, line_of, on_ranks
from course_lib.checking.exercises import Wrong
from course_lib.checking.races import Race
from course_lib.theory.network.collectives import activation_bytes

if TYPE_CHECKING:
    from torch import Tensor, nn

    from course_lib.scratch.gpt import Block
    from course_lib.scratch.tensor.region import Pair

_BATCH, _TOKENS, _HIDDEN, _HEADS = 2, 5, 12, 6  # of a transformer's layer
_INPUTS, _OUTPUTS, _CUT = 18, 6, 3  # of one matrix, and the ranks that share it


def _pair(parts: SimpleNamespace) -> "Pair":
    from course_lib.scratch.tensor.region import Pair

    layers = parts.ColumnParallelLinear, parts.RowParallelLinear
    return Pair(parts.Copy, parts.Sum, *layers)


def _random(*shape: int, seed: int = 0) -> "Tensor":
    import torch

    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# Step 1


def _cases(rank: int) -> list[tuple[list[int], str]]:
    """Among three ranks, in groups of two and of one, and in 16 bits."""
    return [([0, 1, 2], "float32"), (line_of(rank), "float32"), ([0, 1, 2], "bfloat16")]


def _both_ends(parts: SimpleNamespace) -> None:
    outcomes = on_ranks(_ends, parts.Copy, parts.Sum, ranks=3)
    for number in range(len(_cases(0))):
        for rank, outcome in enumerate(outcomes):
            line, dtype = _cases(rank)[number]
            where = f"rank {rank} of 3, in {dtype}"
            where += f", in the group of ranks {line}" * (len(line) < 3)
            for name in ("f", "g"):
                _expect_end(outcome.value[name][number], name, line, rank, dtype, where)


def _ends(f: Any, g: Any) -> dict[str, Any]:
    """On a rank: each end in each case; backward begins when all cases have gone forward."""
    import torch.distributed as dist

    from course_lib.checking.builds.on_rank.followed import meet
    from course_lib.measure.wire import log_wire
    from course_lib.scratch.three_d import own_group

    rank, lines, found = dist.get_rank(), own_group(LINES), {}
    for name, function in (("f", f), ("g", g)):
        ends = []
        for line, dtype in _cases(rank):
            x, upstream = _given(name, rank, dtype)
            before, group = (x.clone(), upstream.clone()), lines if len(line) < 3 else None
            quiet = function.apply(x, group).clone()  # as in an evaluation
            meet(f"has done {name}'s forward pass without gradients")
            x.requires_grad_()
            with log_wire() as forward:
                result = function.apply(x, group)
            meet(f"has done {name}'s forward pass")
            ends.append((x, upstream, before, result, forward, quiet))
        found[name] = [_turned(name, *each) for each in ends]
    return found


def _turned(
    name: str,
    x: "Tensor",
    upstream: "Tensor",
    before: Any,
    result: "Tensor",
    forward: Any,
    quiet: "Tensor",
) -> Any:
    import torch

    from course_lib.checking.builds.on_rank.followed import meet
    from course_lib.measure.wire import log_wire

    with log_wire() as backward:
        result.backward(upstream)
    meet(f"has done {name}'s backward pass")
    same = map(torch.equal, (x, upstream), before)
    kept = dict(zip(("its argument", "the gradient that it is given"), same, strict=True))
    return result.detach(), quiet, x.grad, forward, backward, kept


def _given(name: str, rank: int, dtype: str) -> "tuple[Tensor, Tensor]":
    """Argument and gradient on a rank: f's argument is the same on all, and g's gradient."""
    import torch

    same, own = (_random(3, 5, seed=seed).to(getattr(torch, dtype)) for seed in (0, 1 + rank))
    return (same, own) if name == "f" else (own, same)


def _expect_end(found: Any, name: str, line: list[int], rank: int, dtype: str, where: str) -> None:
    result, quiet, gradient, forward, backward, kept = found
    out, back = f"{where}: the result of {name}", f"{where}: the gradient that {name} returns"
    close: dict[str, Any] = {"tolerance": 1e-5 if dtype == "float32" else 2e-2, "same_dtype": True}
    count, own = float(len(line)), _given("g", rank, dtype)[0]
    each = [_given("g", other, dtype)[0] for other in range(3)]
    wrong = {
        "the sum over more ranks than those of the group": sum(each),
        "what this rank alone has": own,
    }
    summed: dict[str, Any] = {
        "expected": sum(each[other] for other in line),
        "factors": {1 / count: "the mean over ranks, where the sum is wanted"},
        "others": wrong,
    }
    once = "f gives every rank what it gets, and adds up nothing"
    if name == "g":
        once = "every rank has the gradient of the sum already, whole"
    copied: dict[str, Any] = {
        "expected": _given("f", rank, dtype)[0],
        "factors": {count: once, 1 / count: "each summand has the whole gradient of a sum"},
    }
    first, second = (copied, summed) if name == "f" else (summed, copied)
    expect_tensor(result, what=out, **first, **close)
    expect_tensor(quiet, what=f"{out} where nothing asks for gradients", **first, **close)
    expect_tensor(gradient, what=back, **second, **close)
    size = own.element_size() * own.numel()
    for which, log, sums in (
        ("forward", forward, name == "g"),
        ("backward", backward, name == "f"),
    ):
        right = {"all-reduce": (1, size)} if sums and count > 1 else {}
        expect_among(log, len(line), f"{where}, {name}, {which}")
        why = "each of f and g sums in one of its passes, by one all-reduce"
        expect_calls(log, right, f"{where}, {name}, {which},", why)
    expect_kept(kept, f"{where}: {name}")


# Steps 2 and 3


def _columns(parts: SimpleNamespace) -> None:
    """First one matrix, then q, k and v in one, then two in one."""
    _check_layers(parts, "column", (_OUTPUTS, 1), (3 * _OUTPUTS, 3), (2 * _OUTPUTS, 2))


def _rows(parts: SimpleNamespace) -> None:
    _check_layers(parts, "row", (_OUTPUTS, 1))


def _check_layers(parts: SimpleNamespace, kind: str, *sizes: tuple[int, int]) -> None:
    """Cut layers, beside the whole ones."""
    outcomes = on_ranks(_cut_layers, _pair(parts), kind, sizes, ranks=_CUT)
    for number, (outputs, blocks) in enumerate(sizes):
        found = [(name, value[number]) for name, value in each_rank(outcomes)]
        _expect_layer(found, kind, outputs, blocks)


def _expect_layer(
    ranks: list[tuple[str, dict[str, Any]]], kind: str, outputs: int, blocks: int
) -> None:
    expected = _tried(*_given_layer(outputs))
    for rank, (name, found) in enumerate(ranks):
        where = (
            f"{name}, {outputs} outputs" + {1: "", 2: " of two parts", 3: " of q, k and v"}[blocks]
        )
        alone = _alone(kind, outputs, blocks, rank)
        for what, whole in expected.items():
            tensor, dim = found.get(what), _DIMENSIONS[kind].get(what)
            if tensor is None:
                raise Wrong(f"{where}: {what} is missing")
            if kind == "row" and what == "the result":
                _expect_one_bias(tensor, whole, expected["bias"], where)
            others = alone.get(what, {}) if dim is None else _mistaken(whole, dim, blocks, rank)
            own = whole if dim is None else _share(whole, dim, blocks, rank)
            factors = {
                float(_CUT): "it is added up over the ranks once more",
                1 / _CUT: "a share of it, and every rank has it whole",
            }
            expect_tensor(tensor, own, f"{where}: {what}", factors=factors, others=others)
            if what in ("weight", "bias") and dim is not None and what not in found["joined"]:
                raise Wrong(f"{where}: {what} is not from region.cut, so nobody can join it")
        if (way := _WAYS[kind]) not in found["ways"]:
            raise Wrong(f"{where}: it does not go by {way}, which is not in every region the same")
        if found["more"]:
            raise Wrong(
                f"{where}: the layer keeps {found['more']} bytes beside its own weight and bias"
            )


_WAYS = {"column": "region.enter", "row": "region.leave"}
# Along which dimension each is cut; what is not here is whole on every rank.
_DIMENSIONS = {
    "column": dict.fromkeys(
        ("weight", "bias", "the gradient of its weight", "the gradient of its bias"), 0
    )
    | {"the result": -1},
    "row": dict.fromkeys(("weight", "the gradient of its weight"), 1)
    | {"the gradient of its input": -1},
}


def _cut_layers(pair: "Pair", kind: str, sizes: tuple[tuple[int, int], ...]) -> list[Any]:
    return [_cut_layer(pair, kind, outputs, blocks) for outputs, blocks in sizes]


def _cut_layer(pair: "Pair", kind: str, outputs: int, blocks: int) -> dict[str, Any]:
    """On a rank: weights, result and gradients of a cut layer."""
    from course_lib.checking.builds.on_rank.reached import tensor_bytes_of
    from course_lib.scratch.tensor.region import TensorParallel

    class Watched(TensorParallel):
        ways: ClassVar[set[str]] = set()

        def enter(self, x: "Tensor") -> "Tensor":
            self.ways.add("region.enter")
            return super().enter(x)

        def leave(self, x: "Tensor") -> "Tensor":
            self.ways.add("region.leave")
            return super().leave(x)

    region = Watched(pair=pair)
    whole, _, _ = _given_layer(outputs)
    layer = pair.row(whole, region) if kind == "row" else pair.column(whole, region, blocks)
    _, x, upstream = _share_of_layer(kind, outputs, blocks, region.rank)
    joined = [name for name, p in layer.named_parameters() if hasattr(p, "cut")]
    needed = 4 * (upstream.shape[-1] * x.shape[-1] + upstream.shape[-1])
    more = max(tensor_bytes_of(layer) - needed, 0)
    return _tried(layer, x, upstream) | {"joined": joined, "more": more, "ways": region.ways}


def _share_of_layer(
    kind: str, outputs: int, blocks: int, rank: int
) -> "tuple[Tensor, Tensor, Tensor]":
    """Weight, input and gradient of the result, as a rank should have them."""
    whole, x, upstream = _given_layer(outputs)
    weight = _share(whole.weight.detach(), _DIMENSIONS[kind]["weight"], blocks, rank)
    if kind == "row":
        return weight, _share(x, -1, 1, rank), upstream
    return weight, x, _share(upstream, -1, blocks, rank)


def _alone(kind: str, outputs: int, blocks: int, rank: int) -> dict[str, Any]:
    """What a rank has where the ranks do not add up."""
    weight, x, upstream = _share_of_layer(kind, outputs, blocks, rank)
    if kind == "row":
        bias = _given_layer(outputs)[0].bias.detach()
        return {"the result": {"what this rank alone computes": x @ weight.T + bias}}
    return {"the gradient of its input": {"what this rank's columns alone give": upstream @ weight}}


def _given_layer(outputs: int) -> "tuple[nn.Linear, Tensor, Tensor]":
    """The whole layer, its input, and the gradient of its result."""
    import torch

    torch.manual_seed(0)
    return torch.nn.Linear(_INPUTS, outputs), _random(4, _INPUTS), _random(4, outputs, seed=1)


def _tried(layer: Any, x: "Tensor", upstream: "Tensor") -> dict[str, Any]:
    """Weights first: what follows is wrong if they are, and missing if they do not fit."""
    import torch

    own = dict(layer.named_parameters())
    weights = {name: own[name].detach() if name in own else None for name in ("weight", "bias")}
    inputs, outputs = x.shape[-1], upstream.shape[-1]
    shapes = [tuple(p.shape) for p in weights.values() if p is not None]
    if shapes != [(outputs, inputs), (outputs,)]:
        return weights
    with torch.no_grad():
        layer(x[:1])  # an earlier pass leaves nothing
    x = x.detach().clone().requires_grad_()
    result = layer(x)
    if getattr(result, "shape", None) != upstream.shape:
        return {**weights, "the result": result}
    result.backward(upstream)
    gradients = {f"the gradient of its {name}": own[name].grad for name in weights}
    found = {**weights, "the result": result.detach(), "the gradient of its input": x.grad}
    return found | gradients


def _share(whole: "Tensor", dim: int, blocks: int, rank: int) -> "Tensor":
    import torch

    return torch.cat([one.chunk(_CUT, dim)[rank] for one in whole.chunk(blocks, dim)], dim)


def _mistaken(whole: "Tensor", dim: int, blocks: int, rank: int) -> dict[str, Any]:
    """What the share of a rank might be by mistake."""
    others = {f"the share of rank {n}": _share(whole, dim, blocks, n) for n in range(_CUT)}
    del others[f"the share of rank {rank}"]
    if blocks > 1:
        others["the share of all parts cut in one piece"] = whole.chunk(_CUT, dim)[rank]
    return others


def _expect_one_bias(found: Any, right: "Tensor", bias: "Tensor", where: str) -> None:
    for times, words in ((0, "without the bias"), (_CUT, f"with the bias {_CUT} times")):
        wrong = right + (times - 1) * bias
        if found.shape == wrong.shape and bool((found - wrong).abs().max() < 1e-5):
            raise Wrong(f"{where}: the result is the sum {words}")


# Step 4


def _layers(parts: SimpleNamespace) -> None:
    """A transformer's layer, two pairs, in groups of two ranks and of one."""
    expected = _one_block()
    size = activation_bytes(_BATCH, _TOKENS, _HIDDEN, element_bytes=4)
    outcomes = on_ranks(_cut_block, _pair(parts), ranks=3)
    for name, (tensors, *_) in each_rank(outcomes):
        for what, right in expected.items():
            expect_tensor(tensors.get(what), right, f"{name}, a transformer's layer: {what}")
    for rank, (name, (_, *logs)) in enumerate(each_rank(outcomes)):
        for log, which in zip(logs, ("forward", "backward"), strict=True):
            why = f"{which}, attention and MLP need one sum each of batch x sequence x hidden"
            calls = {"all-reduce": (2, 2 * size)} if len(line_of(rank)) > 1 else {}
            expect_calls(log, calls, name, why)


def _given_block() -> "tuple[Block, Tensor, Tensor]":
    import torch

    from course_lib.scratch.gpt import Block

    torch.manual_seed(0)
    block, shape = Block(_HIDDEN, _HEADS), (_BATCH, _TOKENS, _HIDDEN)
    return block, _random(*shape).requires_grad_(), _random(*shape, seed=1)


def _one_block() -> dict[str, Any]:
    block, x, upstream = _given_block()
    y = block(x)
    y.backward(upstream)
    gradients = {f"the gradient of {name}": p.grad for name, p in block.named_parameters()}
    return {"the result": y.detach(), "the gradient of the input": x.grad, **gradients}


def _cut_block(pair: "Pair") -> Any:
    """On a rank: result and whole gradients of a cut layer, and both passes' messages."""
    from course_lib.measure.wire import log_wire
    from course_lib.scratch.tensor.layers import cut_block
    from course_lib.scratch.tensor.region import TensorParallel
    from course_lib.scratch.tensor.vocabulary import whole_gradients
    from course_lib.scratch.three_d import own_group

    region = TensorParallel(own_group(LINES), pair)
    block, x, upstream = _given_block()
    cut_block(block, region)
    with log_wire() as forward:
        y = block(x)
    with log_wire() as backward:
        y.backward(upstream)
    gradients = whole_gradients(block, region).items()
    named = {f"the gradient of {name}": gradient for name, gradient in gradients}
    found = {"the result": y.detach(), "the gradient of the input": x.grad, **named}
    return found, forward, backward


# The race


def _prepared(parts: SimpleNamespace) -> Any:
    """An MLP of 256 and 1024 features, forward and backward."""
    import torch
    from torch import nn

    from course_lib.scratch.tensor.region import TensorParallel

    pair = _pair(parts)
    region = TensorParallel(pair=pair)
    mlp = nn.Sequential(
        pair.column(nn.Linear(256, 1024), region), nn.GELU(), pair.row(nn.Linear(1024, 256), region)
    )
    return _pass_of(mlp, torch.ones(512, 256, requires_grad=True))


def _by_torch() -> Any:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import parallel

    mlp = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))
    plan = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    parallel.parallelize_module(mlp, mesh, plan)
    return _pass_of(mlp, torch.ones(512, 256, requires_grad=True))


def _pass_of(mlp: "nn.Module", x: "Tensor") -> Any:
    return lambda: mlp(x).sum().backward()


TENSOR = build(
    "tensor",
    title="f, g and the two cut layers",
    hints=(
        "What is copied on the way in is summed on the way back, and the other way round. Which of "
        "the two functions sends nothing in its forward pass?",
        "`backward` returns one entry for each argument of `forward`; None for the group. "
        "`wire.all_reduce` returns a new tensor and leaves its argument as it is.",
        "nn.Linear keeps a row for each output. So a cut by columns of the matrix cuts `weight` "
        "along dimension 0, and the bias with it; a cut by rows cuts `weight` along dimension 1.",
        "Column: linear(region.enter(x), weight, bias). Row: when may the bias be added, if every "
        "rank adds it and `region.leave` sums over the ranks?",
    ),
    steps=(
        Step(
            "f and g", ("Copy.forward", "Copy.backward", "Sum.forward", "Sum.backward"), _both_ends
        ),
        Step(
            "the cut by columns",
            ("ColumnParallelLinear.__init__", "ColumnParallelLinear.forward"),
            _columns,
        ),
        Step("the cut by rows", ("RowParallelLinear.__init__", "RowParallelLinear.forward"), _rows),
        Step("attention and MLP", (), _layers),
    ),
    race=Race("an MLP of 256 and 1024 features, 512 tokens, both passes", _prepared, _by_torch),
)
