"""Build 10.11: f and g, and the two linear layers of a pair of cut matrices."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from course_lib.checking.build import build
from course_lib.checking.builds.compare import Case, Place, compare
from course_lib.checking.builds.lazily import dist, later, nn, torch
from course_lib.checking.builds.raced import both_passes, device_mesh
from course_lib.checking.builds.rows import Must, Never, Rows, Sends, others_parts, unchanged
from course_lib.checking.races import Race
from course_lib.theory.network.collectives import activation_bytes

_watched = later("course_lib.checking.builds.on_rank.watched")
_models = later("course_lib.checking.builds.on_rank.small_models")
_wire, _gpt = later("course_lib.measure.wire"), later("course_lib.scratch.gpt")
_tensor = later("course_lib.scratch.tensor")

_BATCH, _TOKENS, _HIDDEN, _HEADS = 2, 6, 12, 6  # of the transformer layer
BLOCK_BYTES = activation_bytes(_BATCH, _TOKENS, _HIDDEN, element_bytes=4)
_INPUTS, _OUTPUTS, _CUT = 18, 6, 3  # features of one matrix, and the ranks that share it


def pair_of(parts: SimpleNamespace) -> Any:
    """The learner's four parts as the `Pair` that the course's layers take."""
    layers = parts.ColumnParallelLinear, parts.RowParallelLinear
    return _tensor.Pair(parts.Copy, parts.Sum, *layers)


# Step 1


@dataclass(frozen=True)
class Boundary(Case):
    """An autograd function of a tensor and a group, on numbers of type `dtype`."""

    name: str
    dtype: str = "float32"
    ranks: int = field(default=3, kw_only=True)

    def words(self, line: Any) -> str:
        return f"in {self.dtype}" + f", {super().words(line)}" * self.in_group

    def of(self, numbers: Any) -> Any:
        return numbers.to(getattr(torch, self.dtype))


def boundaries(*names: str) -> list[Boundary]:
    """Cases of each function: on three ranks, in groups of two and of one, and in bf16."""
    kinds: tuple[dict[str, Any], ...] = ({}, {"in_group": True}, {"dtype": "bfloat16"})
    return [Boundary(name, **kind) for name in names for kind in kinds]


def _inputs(case: Boundary, rank: int) -> Any:
    """Argument and upstream gradient on a rank; f's argument and g's gradient are replicated."""
    both = [case.of(_models.random(seed, 3, 5)) for seed in (0, 1 + rank)]
    return both if case.name == "f" else both[::-1]


def _run_passes(parts: SimpleNamespace, case: Boundary, group: Any) -> Iterator[Any]:
    function = parts.Copy if case.name == "f" else parts.Sum
    x, upstream = _inputs(case, dist.get_rank())
    for outcome in _watched.both_passes(function, x, upstream, group, f"{case.name}'s"):
        yield outcome and (function.apply(x.detach(), group), *outcome)  # the first without grad


def _expect_boundary(outcome: Any, place: Place) -> Rows:
    quiet, result, gradient, forward, backward, same = outcome
    case, ranks, f = place.case, place.ranks, place.case.name == "f"
    each = [_inputs(replace(case, name="g"), rank)[0] for rank in range(3)]
    own = each[place.line[place.rank]]
    already = "every rank has the gradient of the sum already, whole"
    summed: dict[str, Any] = {
        "right": sum(each[rank] for rank in place.line),
        "factors": {1 / ranks: "the mean over ranks, where the sum is wanted"},
        "others": {
            "the sum over more ranks than those of the group": sum(each),
            "what this rank alone has": own,
        },
    }
    copied: dict[str, Any] = {
        "right": _inputs(replace(case, name="f"), 0)[0],
        "factors": {
            float(ranks): "f gives every rank what it gets, and adds up nothing" if f else already,
            1 / ranks: "each summand has the whole gradient of a sum",
        },
    }
    out, back = (copied, summed) if f else (summed, copied)
    close: Any = {"tolerance": 1e-5 if own.element_size() == 4 else 2e-2, "same_dtype": True}
    for what, tensor in (("", result), (" where nothing asks for gradients", quiet)):
        yield Must(f"the result of {case.name}{what}", tensor, **out, **close)
    yield Must(f"the gradient that {case.name} returns", gradient, **back, **close)
    why = "each of f and g sums in one of its passes, by one all-reduce"
    for which, log, sums in (("forward", forward, not f), ("backward", backward, f)):
        right = {"all-reduce": (1, own.nbytes)} if sums else {}
        yield Sends(log, right, why, among=ranks, what=f", {case.name}, {which}")
    yield from unchanged(same, case.name)


# Steps 2 and 3


@dataclass(frozen=True)
class _Layer(Case):
    """A linear layer cut by columns or by rows; each of its `parts` is cut separately."""

    kind: str = "column"
    parts: int = 1
    ranks: int = field(default=_CUT, kw_only=True)

    @property
    def outputs(self) -> int:
        return self.parts * _OUTPUTS

    def given(self) -> Any:
        """The whole layer, its input, and the upstream gradient of its result."""
        torch.manual_seed(0)
        whole = nn.Linear(_INPUTS, self.outputs)
        return whole, _models.random(0, 4, _INPUTS), _models.random(1, 4, self.outputs)

    def share(self, whole: Any, dim: int, rank: int) -> Any:
        return torch.cat([one.chunk(_CUT, dim)[rank] for one in whole.chunk(self.parts, dim)], dim)

    def own(self, rank: int) -> Any:
        """The weight, input and upstream gradient that a rank should have."""
        whole, x, upstream = self.given()
        weight = self.share(whole.weight.detach(), _DIMENSIONS[self.kind]["weight"], rank)
        if self.kind == "row":
            return weight, self.share(x, -1, rank), upstream
        return weight, x, self.share(upstream, -1, rank)

    def mistaken(self, what: str, whole: Any, dim: int | None, rank: int) -> dict[str, Any]:
        """Tensors that a rank has after a likely mistake, by their explanation."""
        weight, x, upstream = self.own(rank)
        if dim is not None:
            shares = [self.share(whole, dim, n) for n in range(_CUT)]
            piece = {"the share of all parts cut in one piece": whole.chunk(_CUT, dim)[rank]}
            return others_parts(shares, rank, "the share") | (piece if self.parts > 1 else {})
        if (self.kind, what) == ("row", "the result"):
            bias = self.given()[0].bias.detach()
            return {
                "what this rank alone computes": x @ weight.T + bias,
                "the sum without the bias": whole - bias,
                f"the sum with the bias {_CUT} times": whole + (_CUT - 1) * bias,
            }
        if (self.kind, what) == ("column", "the gradient of its input"):
            return {"what this rank's columns alone give": upstream @ weight}
        return {}


# The dimension along which each tensor is cut; tensors not listed are whole on every rank.
_DIMENSIONS: dict[str, dict[str, int]] = {
    "column": {
        "weight": 0,
        "bias": 0,
        "the gradient of its weight": 0,
        "the gradient of its bias": 0,
        "the result": -1,
    },
    "row": {"weight": 1, "the gradient of its weight": 1, "the gradient of its input": -1},
}


def _run_cut_layer(parts: SimpleNamespace, case: _Layer, _: Any) -> dict[str, Any]:
    """Run a cut layer; returns its weights, result and gradients, by name."""
    pair, (whole, _, _) = pair_of(parts), case.given()
    region = _tensor.TensorParallel(pair=pair)
    region.enter, region.leave = (MagicMock(wraps=end) for end in (region.enter, region.leave))
    layer = (
        pair.row(whole, region) if case.kind == "row" else pair.column(whole, region, case.parts)
    )
    del whole
    _, x, upstream = case.own(region.rank)
    joined = [name for name, p in layer.named_parameters() if hasattr(p, "cut")]
    needed = 4 * (upstream.shape[-1] * x.shape[-1] + upstream.shape[-1])
    extra_bytes = max(_watched.tensor_bytes_of(layer) - needed, 0)
    tensors = _run_layer(layer, x, upstream)
    uses_region = (region.leave if case.kind == "row" else region.enter).called
    return tensors | {"joined": joined, "kept": extra_bytes, "goes": uses_region}


def _run_layer(layer: Any, x: Any, upstream: Any) -> dict[str, Any]:
    """Run both passes of a layer; without gradients, or only weights, if shapes do not fit."""
    named = dict(layer.named_parameters())
    weights = {name: named[name].detach() if name in named else None for name in ("weight", "bias")}
    inputs, outputs = x.shape[-1], upstream.shape[-1]
    shapes = [tuple(p.shape) for p in weights.values() if p is not None]
    if shapes != [(outputs, inputs), (outputs,)]:
        return weights
    x = x.detach().clone().requires_grad_()
    result = layer(x)
    if getattr(result, "shape", None) != upstream.shape:
        return {**weights, "the result": result}
    result.backward(upstream)
    gradients = {f"the gradient of its {name}": named[name].grad for name in weights}
    tensors = {**weights, "the result": result.detach(), "the gradient of its input": x.grad}
    return tensors | gradients


def _expect_cut(tensors: dict[str, Any], place: Place) -> Rows:
    case: _Layer = place.case
    parts = {1: "", 2: " of two parts", 3: " of q, k and v"}[case.parts]
    where = f", {case.outputs} outputs{parts}: "
    for what, whole in _run_layer(*case.given()).items():
        tensor: Any = tensors.get(what)
        dim = _DIMENSIONS[case.kind].get(what)
        yield Never(tensor is None, f"{where}{what} is missing")
        factors = {
            float(_CUT): "it is added up over the ranks once more",
            1 / _CUT: "a share of it, and every rank has it whole",
        }
        right = whole if dim is None else case.share(whole, dim, place.rank)
        others = case.mistaken(what, whole, dim, place.rank)
        yield Must(f"{where}{what}", tensor, right, others, factors)
        by_hand = what in ("weight", "bias") and dim is not None and what not in tensors["joined"]
        yield Never(by_hand, f"{where}{what} is not from region.cut, so nobody can join it")
    method = "region.leave" if case.kind == "row" else "region.enter"
    other = f"{where}it does not go by {method}, which is not in every region the same"
    yield Never(not tensors["goes"], other)
    more = f"{where}the layer keeps {tensors['kept']} bytes beside its own weight and bias"
    yield Never(tensors["kept"], more)


# Step 4


def make_block() -> Any:
    """A transformer layer, its input and the upstream gradient of its result."""
    torch.manual_seed(0)
    block, shape = _gpt.Block(_HIDDEN, _HEADS), (_BATCH, _TOKENS, _HIDDEN)
    return block, _models.random(0, *shape).requires_grad_(), _models.random(1, *shape)


def _run_block(parts: SimpleNamespace, _: Case, group: Any) -> Any:
    """Run a cut transformer layer; returns its result, whole gradients, and traffic by pass."""
    region = _tensor.TensorParallel(group, pair_of(parts))
    block, x, upstream = make_block()
    _tensor.cut_block(block, region)
    with _wire.log_wire() as forward:
        y = block(x)
    with _wire.log_wire() as backward:
        y.backward(upstream)
    return y.detach(), x.grad, _tensor.whole_gradients(block, region), forward, backward


def expect_one_process(outcome: Any, share: Callable[[Any], Any] = lambda whole: whole) -> Rows:
    """Expect one process's numbers; a rank has a `share` of the result and the input's gradient."""
    y, gradient, gradients = outcome
    block, x, upstream = make_block()
    right = block(x)
    right.backward(upstream)
    what = ", a transformer's layer: the"
    yield Must(f"{what} result", y, share(right))
    yield Must(f"{what} gradient of the input", gradient, share(x.grad))
    for name, weight in block.named_parameters():
        yield Must(f"{what} gradient of {name}", gradients.get(name), weight.grad)


def _expect_block(outcome: Any, place: Place) -> Rows:
    """Check a transformer layer, two pairs, in groups of two ranks and of one."""
    *tensors, forward, backward = outcome
    yield from expect_one_process(tensors)
    for log, which in ((forward, "forward"), (backward, "backward")):
        why = f"{which}, attention and MLP need one sum each of batch x sequence x hidden"
        yield Sends(log, {"all-reduce": (2, 2 * BLOCK_BYTES)} if place.ranks > 1 else {}, why)


def _mlp(cut: Callable[[Any], object]) -> Callable[[], object]:
    mlp = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))
    cut(mlp)
    return partial(both_passes, mlp, torch.ones(512, 256, requires_grad=True))


def _by_a_pair(parts: SimpleNamespace) -> Callable[[], object]:
    pair = pair_of(parts)
    region = _tensor.TensorParallel(pair=pair)

    def cut(mlp: Any) -> None:
        mlp[0], mlp[2] = pair.column(mlp[0], region), pair.row(mlp[2], region)

    return _mlp(cut)


def _parallelized() -> Callable[[], object]:
    parallel = later("torch.distributed.tensor.parallel")
    plan = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
    return _mlp(
        lambda mlp: parallel.parallelize_module(mlp, device_mesh(dist.get_world_size()), plan)
    )


TENSOR = build(
    "tensor",
    steps=(
        compare(
            "f and g",
            ("Copy.forward", "Copy.backward", "Sum.forward", "Sum.backward"),
            _run_passes,
            _expect_boundary,
            boundaries("f", "g"),
        ),
        compare(
            "the cut by columns",
            ("ColumnParallelLinear.__init__", "ColumnParallelLinear.forward"),
            _run_cut_layer,
            _expect_cut,
            [_Layer("column", blocks) for blocks in (1, 3, 2)],
        ),
        compare(
            "the cut by rows",
            ("RowParallelLinear.__init__", "RowParallelLinear.forward"),
            _run_cut_layer,
            _expect_cut,
            [_Layer("row")],
        ),
        compare("attention and MLP", (), _run_block, _expect_block, [Case(ranks=3, in_group=True)]),
    ),
    race=Race(
        "an MLP of 256 and 1024 features, 512 tokens, both passes", _by_a_pair, _parallelized
    ),
)
