"""Build 8.11: ZeRO's stages 1 and 2, and clipping by the global norm."""

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, TypeAlias

from course_lib.checking.build import build
from course_lib.checking.builds.compare import Case, Place, compare
from course_lib.checking.builds.lazily import dist, later, nn, torch
from course_lib.checking.builds.raced import four_layers, trained
from course_lib.checking.builds.rows import Must, Never, Rows, Sends, others_parts
from course_lib.checking.races import Race
from course_lib.theory.stories.copies import zero_steps
from course_lib.trace import Event, Trace

_flat, _ledger = later("course_lib.scratch.zero"), later("course_lib.scratch.gpt")
_models = later("course_lib.checking.builds.on_rank.small_models")
_wire, _parallel = later("course_lib.measure.wire"), later("torch.nn.parallel")

_Results: TypeAlias = dict[str, Any]  # a rank's results
_Weights: TypeAlias = dict[str, Any]  # by name
_Use: TypeAlias = tuple[bool | None, bool]  # per layer: use its second half? None: skip it
_THREE = (Case(ranks=3),)
_REDUCED = 3  # calls of `reduce`
_SHAPES = ((2, 3), (1,))  # 7 numbers, divisible by neither 2 nor 3 ranks
_LIMITS = (0.05, 5.0)  # the norm of the gradient is 1.6
_SQUARES = 64  # bytes; room for one fp64 number per tensor


def _update(sizes: Sequence[int], ranks: int, reductions: int = 1) -> Trace:
    """Calls of every rank in one update, for fp32 units of `sizes` parameters, padded."""
    events = []
    for size in sizes:
        # Theory counts 16-bit numbers: two of them are one fp32 number.
        story = zero_steps(2 * (size + -size % ranks), 1, ranks, stage=2)
        calls = {(one.at, one.who, one.label): one.bytes for one in story if one.to is not None}
        for (at, who, what), slice_bytes in calls.items():
            call = Event(at, who, what, bytes=ranks * slice_bytes)
            events += [call] * (reductions if what == "reduce-scatter" else 1)
    return Trace(events)


def _all_units(ranks: int) -> int:
    """Bytes of all units, padded."""
    return _update(_unit_sizes(), ranks).sent(0)["all-gather"].size_bytes


# Step 1: a unit


def _unit(parts: SimpleNamespace, *_: Any) -> _Results:
    """Reduce three times, with gradients missing on some ranks in the last two; update; publish."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    parameters = [nn.Parameter(each) for each in _random_tensors(0, 9)]
    unit = parts.Unit(parameters, ranks)
    results: _Results = {"own": unit.own.detach().clone(), "reduced": []}
    first, whole = unit.own.untyped_storage(), unit.whole.untyped_storage()
    results["is view"] = first.data_ptr() == whole.data_ptr()
    shortest = torch.tensor(unit.own.numel())
    dist.all_reduce(shortest, dist.ReduceOp.MIN)
    if shortest != -(-sum(p.numel() for p in parameters) // ranks):
        return results  # all that follows would be wrong as well
    with _wire.log_wire() as log:
        for number in range(_REDUCED):
            for parameter, gradient in zip(parameters, _some_gradients(rank, number), strict=True):
                parameter.grad = gradient
            unit.reduce()
            part = unit.gradient
            results["reduced"].append(part.clone() if isinstance(part, torch.Tensor) else part)
        results["left"] = sum(p.grad is not None for p in parameters)
        results["published"] = _publish(unit, rank)
    half = parts.Unit([nn.Parameter(torch.ones(7, dtype=torch.bfloat16))], ranks)
    half.parameters[0].grad = torch.full((7,), rank + 1.0, dtype=torch.bfloat16)
    half.reduce()
    in_bf16 = {"in bf16": _publish(half, rank), "reduced in bf16": half.gradient}
    return results | in_bf16 | {"wire": log}


def _publish(unit: Any, rank: int) -> list[Any]:
    """Add rank + 1 to this rank's part, publish it, and return copies of all parameters."""
    with torch.no_grad():
        unit.master.add_(rank + 1)
        unit.publish()
    return [parameter.detach().clone() for parameter in unit.parameters]


def _random_tensors(rank: int, number: int) -> list[Any]:
    numbers: list[Any] = _models.several_random(10 * number + rank, _SHAPES)
    return numbers


def _some_gradients(rank: int, number: int) -> list[Any]:
    """The two gradients of a rank in one backward pass, or None where one is missing.

    For `number` 1, rank 1 has only the first and rank 2 only the second; for 2, rank 1 has none.
    """
    first, second = _random_tensors(rank, number)
    return [
        None if (rank, number) in ((1, 2), (2, 1)) else first,
        None if rank == 1 and number else second,
    ]


def _flat_grads(rank: int, number: int, ranks: int) -> Any:
    """The gradients of `_some_gradients` as one padded vector, with zeros where one is missing."""
    pieces = zip(_some_gradients(rank, number), _SHAPES, strict=True)
    return _flat.flatten([torch.zeros(s) if one is None else one for one, s in pieces], ranks)


def _check_unit(results: _Results, at: Place) -> Rows:
    rank, ranks, *_ = at
    initial = _flat.flatten(_random_tensors(0, 9), ranks).chunk(ranks)
    yield Must("`own`", results["own"], initial[rank], others_parts(initial, rank))
    copies = not results["is view"]
    yield Never(copies, "`part` gives a copy, and `own` wants to be a view of `whole`")
    each = [torch.stack([_flat_grads(r, n, ranks) for r in range(ranks)]) for n in range(_REDUCED)]
    for number, reduced in enumerate(results["reduced"]):
        total = torch.stack(each[: number + 1]).sum(0)
        sums = total.sum(0).chunk(ranks)
        others = others_parts(sums, rank)
        own = total[rank].chunk(ranks)[rank]
        others["what this rank itself has, to which nothing is added"] = own
        if number:
            latest = each[number].sum(0).chunk(ranks)[rank]
            others["that of the latest `reduce` alone: what came before is lost"] = latest
        what = f"`gradient` after `reduce` number {number + 1}"
        mean = {1 / ranks: "the mean over ranks, where the sum is wanted"}
        yield Must(what, reduced, sums[rank], others, mean)
    left = f"after `reduce` {results['left']} parameters still have a `.grad`: whole gradients "
    yield Never(results["left"], f"{left}stay in memory, and the next backward pass adds to them")
    yield from _check_published("", rank, results["published"], _random_tensors(0, 9), ranks)
    ones = [torch.ones(7, dtype=torch.bfloat16)]
    yield from _check_published(", weights in bf16: ", rank, results["in bf16"], ones, ranks)
    six = torch.cat([6 * torch.ones(7), torch.zeros(2)]).chunk(ranks)[rank]
    yield Must(", weights in bf16: `gradient`", results["reduced in bf16"], six)
    why = "three `reduce` and one `publish` of a vector padded to 9 numbers"
    yield Sends(results["wire"], _update([7], ranks, _REDUCED), why, who=rank)


def _check_published(where: str, rank: int, published: Any, initial: Any, ranks: int) -> Rows:
    """Check the published weights: each rank has added its number + 1 to its part."""
    vector = _flat.flatten(initial, ranks)
    added = torch.arange(1, ranks + 1, dtype=vector.dtype).repeat_interleave(len(vector) // ranks)
    added_here = torch.where(added == rank + 1, added, 0)
    expected, own_only = (list(_flat.views(vector + more, initial)) for more in (added, added_here))
    for number, tensor in enumerate(published):
        others = {
            "what it was before the update": initial[number],
            f"updated in the part of rank {rank} only": own_only[number][1],
        }
        what = f"{where}the weight of shape {tuple(tensor.shape)} after `publish`"
        yield Must(what, tensor, expected[number][1], others)


# Steps 2 to 4: a model


def _uneven(rank: int, number: int) -> _Use:
    """Layers used: in every second micro-batch the ranks differ, and rank 1 skips a layer."""
    return (True, True) if number % 2 == 0 else (None if rank == 1 else False, rank % 2 == 0)


def _share(
    model: Any,
    rank: int,
    ranks: int,
    number: int,
    use: Callable[..., _Use] = lambda *_: (True, True),
) -> Any:
    """This rank's contribution to the mean loss over the rows of all ranks."""
    loss = model(_models.rows(rank, number), use(rank, number))
    return loss / sum(len(_models.rows(one, number)) for one in range(ranks))


def _one_process(model: Any, ranks: int, numbers: Sequence[int], **how: Any) -> None:
    """Run both passes in one process, on the rows of all ranks."""
    for number in numbers:
        for rank in range(ranks):
            _share(model, rank, ranks, number, **how).backward()


def _adam(parameters: Any) -> Any:
    """AdamW with a large epsilon, so that scaling the gradient clearly changes the update."""
    return torch.optim.AdamW(parameters, lr=0.05, eps=0.1, weight_decay=0.1)


def _make_zero(parts: SimpleNamespace, stage: int, follow: Any = None) -> Any:
    """Return the rank, number of ranks, the model, and the learner's Zero around it.

    `follow` is called when a gradient is ready, before Zero's own hooks.
    """
    model = _models.Layered()
    for parameter in model.parameters() if follow else ():
        parameter.register_post_accumulate_grad_hook(follow)
    zero = parts.Zero(model, model.layers, _adam, stage=stage)
    return dist.get_rank(), dist.get_world_size(), model, zero


def _weights_of(model: Any) -> _Weights:
    return {name: p.detach().clone() for name, p in _models.trained(model).items()}


def _collect(model: Any, zero: Any, after: list[_Weights], log: Any) -> _Results:
    """Collect a rank's results of a training run; `log` has the messages of the last update."""
    groups = zero.optimizer.param_groups
    return {
        "weights": after,  # after each update
        "state bytes": _ledger.ledger(model, zero.optimizer)["optimizer"],
        "given": sum(p.numel() for group in groups for p in group["params"]),
        "wire": log,
        "left": _left_gradient(zero),
    }


def _left_gradient(zero: Any) -> str:
    """Description of a gradient that is still stored after `step`, or "" for none."""
    units, left = zero.units.values(), {}
    left["`gradient` of a unit"] = [unit.gradient for unit in units]
    left["`.grad` of a unit's `master`"] = [unit.master.grad for unit in units]
    left["`.grad` of a parameter"] = [p.grad for unit in units for p in unit.parameters]
    remaining = (what for what, all_ in left.items() if any(one is not None for one in all_))
    return next((f"{what} is not None" for what in remaining), "")


def _reference(
    ranks: int,
    micro_batches: Sequence[int] = (1, 2),
    scale: float = 1.0,
    keeps: bool = False,
    latest: bool = False,
    **how: Any,
) -> list[_Weights]:
    """The weights after each update of a single process that has all rows.

    `scale` multiplies the gradient. `keeps`: gradients are not dropped after an update. `latest`:
    only the gradients of the last micro-batch count.
    """
    model, begun = _models.Layered(), 0
    optimizer = _adam(model.parameters())
    gradients = [torch.zeros_like(p) for p in model.parameters()]
    after: list[_Weights] = []
    for count in micro_batches:
        numbers, begun = range(begun, begun + count), begun + count
        model.zero_grad()
        _one_process(model, ranks, numbers[-1:] if latest else numbers, **how)
        for n, parameter in enumerate(model.parameters()):
            new = 0 if parameter.grad is None else scale * parameter.grad / count
            gradients[n] = parameter.grad = (gradients[n] if keeps else 0 * gradients[n]) + new
        optimizer.step()
        after.append(_weights_of(model))
    return after


def _run_updates(parts: SimpleNamespace, *_: Any) -> _Results:
    """Two updates under stage 1; before `step` of the second, `reduce` is called twice."""
    rank, ranks, model, zero = _make_zero(parts, stage=1)
    after: list[_Weights] = []
    for numbers in (range(1), range(1, 3)):
        with _wire.log_wire() as log:
            for number in numbers:
                (_share(model, rank, ranks, number) / len(numbers)).backward()
            for _again in range(2 if after else 0):
                zero.reduce()
            zero.step()
        after.append(_weights_of(model))
    return _collect(model, zero, after, log)


def _check_updates(results: _Results, at: Place) -> Rows:
    ranks = at.ranks
    mean, stale = _reference(ranks, scale=1 / ranks), _reference(ranks, keeps=True)
    mistakes = {
        "what the mean of the ranks' gradients gives, where the sum is wanted": mean,
        "what comes out where gradients of earlier updates are still there": stale,
    }
    yield from _check_weights(results, at.every[0], _reference(ranks), mistakes)
    states, kept, given = 2 * _all_units(ranks) // ranks, results["state bytes"], results["given"]
    why = f"Adam's two fp32 numbers for each element that this rank owns are {states}"
    yield Never(kept != states, f"the optimizer keeps {kept} bytes of states, and {why}")
    why = f"this rank owns {states // 8}, the `master` of each unit"
    yield Never(given > states // 8, f"the optimizer is given {given} numbers, and {why}")
    why = "each of three units is reduced once and gathered once in an update"
    yield Sends(results["wire"], _update(_unit_sizes(), ranks), why, who=at.rank)


def _check_weights(
    results: _Results,
    first: _Results,
    right: Sequence[_Weights],
    mistakes: Mapping[str, Sequence[_Weights]],
) -> Rows:
    """Check that weights after each update equal those of one process, and no gradient is left."""
    before = _weights_of(_models.Layered())
    for number, (expected, weights) in enumerate(zip(right, results["weights"], strict=True)):
        for key, weight in weights.items():
            same = torch.allclose(weight, first["weights"][number][key], rtol=1e-5, atol=1e-6)
            why = f", after update {number + 1}: `{key}` is not what rank 0 has: the updated parts "
            yield Never(not same, f"{why}have not reached all ranks")
        for key, weight in weights.items():
            others = {thought: updates[number][key] for thought, updates in mistakes.items()}
            others["what it was before the update"] = before[key]
            what = f"`{key}` after update {number + 1}"
            yield Must(what, weight, expected[key], others, tolerance=1e-4)
        before = expected
    yield Never(results["left"], f"after `step` {results['left']}")


def _unit_sizes() -> list[int]:
    """Number of parameters of each unit."""
    model = _models.Layered()
    return [sum(p.numel() for p in unit) for _, unit in _flat.units_of(model, model.layers)]


def _run_clip(parts: SimpleNamespace, *_: Any) -> _Results:
    """One clipped backward pass per limit, and one with a gradient of zeros."""
    results: _Results = {"norms": [], "parts": [], "logs": []}
    for limit, scale in [*((limit, 1) for limit in _LIMITS), (_LIMITS[0], 0)]:
        rank, ranks, model, zero = _make_zero(parts, stage=1)
        (scale * _share(model, rank, ranks, 0)).backward()
        with _wire.log_wire() as log:
            results["norms"].append(parts.clip(zero, limit))
        results["parts"].append(torch.cat([unit.gradient for unit in zero.units.values()]))
        results["logs"].append(log)
    return results


def _check_clip(results: _Results, at: Place) -> Rows:
    rank, ranks = at.rank, at.ranks
    _one_process(model := _models.Layered(), ranks, [0])
    units = [[p.grad for p in unit] for _, unit in _flat.units_of(model, model.layers)]
    cut = [_flat.flatten(unit, ranks).chunk(ranks) for unit in units]
    whole, own = torch.cat([torch.cat(one) for one in cut]), torch.cat([one[rank] for one in cut])
    norm, size = whole.norm(), _all_units(ranks)
    for limit, returned, part, log in zip(
        _LIMITS, results["norms"], results["parts"], results["logs"], strict=False
    ):
        others = {
            "that of this rank's part alone": own.norm(),
            "its square": norm.square(),
            "that after clipping": norm.clamp(max=limit),
        }
        yield Must("the norm that `clip` returns", _tensor(returned), norm, others, tolerance=1e-4)
        scale, alone = ((limit / (each + 1e-6)).clamp(max=1.0) for each in (norm, own.norm()))
        others = {"clipped by the norm of this rank's part alone": alone * own}
        mistake = "not clipped" if limit < norm else "lengthened to the limit"
        others[mistake] = own if limit < norm else limit / norm * own
        what = f", limit {limit:g}, norm {norm:.3g}: this rank's part of the gradient"
        yield Must(what, part, scale * own, others, tolerance=1e-4)
        sent = log.sent()
        gathers = sent.get("all-gather", (0, 0))[1] > ranks * _SQUARES
        yield Never(gathers, "`clip` gathers gradients, where one number is enough")
        more = sent.get("all-reduce", (0, 0))[1] > _SQUARES or sent["reduce-scatter"][1] != size
        why = "what `reduce` does and a few numbers: squares of parts add up"
        yield Never(more, f"`clip` sends more than {why}")
    changes = "`clip` changes a gradient of zeros: its norm, 0, is below every limit"
    yield Never(results["parts"][-1].any(), changes)


def _tensor(norm: Any) -> Any:
    return torch.tensor(norm) if isinstance(norm, float) else norm


def _run_stage_2(parts: SimpleNamespace, *_: Any) -> _Results:
    """Two updates of stage 2, of two micro-batches each; the last norm that `clip` returns."""
    logs, begun = [_wire.WireLog()], list[int]()  # reduce-scatters begun before each gradient
    rank, ranks, model, zero = _make_zero(parts, 2, lambda _: begun.append(_scatters(logs[-1])))
    passes, after = [], list[_Weights]()
    for number in range(4):
        with _wire.log_wire() as log:
            logs.append(log)
            (_share(model, rank, ranks, number, _uneven) / 2).backward()
        left = sum(p.grad is not None for p in model.parameters())
        passes.append((begun[-1], _scatters(log), left))
        if number % 2:
            with _wire.log_wire() as clipping:
                norm = parts.clip(zero, 1e9)
            with _wire.log_wire() as log:
                zero.step()
            again = [call for call in clipping.calls if call.what == "reduce-scatter"]
            last = _wire.WireLog(logs[-2].calls + logs[-1].calls + again + log.calls)
            after.append(_weights_of(model))
    return _collect(model, zero, after, last) | {"passes": passes, "norm": norm}


def _scatters(log: Any) -> int:
    return sum(call.what == "reduce-scatter" for call in log.calls)


def _check_stage_2(results: _Results, at: Place) -> Rows:
    ranks, units = at.ranks, len(_unit_sizes())
    for number, (before, ended, left) in enumerate(results["passes"]):
        where = f", backward pass {number + 1}: "
        reduced = f"{where}when backward() returns {ended} of {units} units have been reduced"
        yield Never(ended != units, reduced)
        if number % 2 == 0:
            last = "before the last gradient is there"
            yield Never(not before, f"{where}no unit is reduced {last}")
            of_them = f"{units - 1} units are complete, and {before} of them has been reduced"
            yield Never(before < units - 1, f"{where}{last} {of_them}")
        yield Never(left, f"{where}{left} whole gradients are left when backward() returns")
    right, latest = (_reference(ranks, (2, 2), latest=one, use=_uneven) for one in (False, True))
    mistakes = {"what the last micro-batch alone gives": latest}
    yield from _check_weights(results, at.every[0], right, mistakes)
    model = _models.Layered()
    model.load_state_dict(right[0])
    _one_process(model, ranks, (2, 3), use=_uneven)
    norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm() / 2
    what = ", stage 2: the norm that `clip` returns"
    yield Must(what, _tensor(results["norm"]), norm, tolerance=1e-3)
    why = "two micro-batches reduce each unit twice, and it is gathered once"
    yield Sends(results["wire"], _update(_unit_sizes(), ranks, 2), why, who=at.rank)


def _raced_zero(parts: SimpleNamespace) -> Callable[[], object]:
    """A step of the learner's Zero under stage 1, with each layer as a unit."""
    model = four_layers()
    zero = parts.Zero(model, list(model), torch.optim.AdamW)
    return trained(model, lambda: None, zero.step)


def _torchs_zero() -> Callable[[], object]:
    ddp = _parallel.DistributedDataParallel(four_layers(), gradient_as_bucket_view=True)
    optimizer = later("torch.distributed.optim").ZeroRedundancyOptimizer(
        ddp.parameters(), torch.optim.AdamW, parameters_as_bucket_view=True
    )
    return trained(ddp, lambda: None, lambda: (optimizer.step(), optimizer.zero_grad()))


ZERO = build(
    "zero",
    steps=(
        compare("a unit", ("Unit.part", "Unit.reduce", "Unit.publish"), _unit, _check_unit, _THREE),
        compare(
            "an update of stage 1",
            ("Zero.reduce", "Zero.step"),
            _run_updates,
            _check_updates,
            (Case(ranks=2), *_THREE),
        ),
        compare("clipping", ("clip",), _run_clip, _check_clip, _THREE),
        compare("stage 2", ("Zero._arrived", "Zero._finish"), _run_stage_2, _check_stage_2, _THREE),
    ),
    race=Race("an update of a million parameters", _raced_zero, _torchs_zero),
)
