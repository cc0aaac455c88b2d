"""Build 9.11: units that are gathered, freed and reduced, and when each of these happens."""

import gc
import weakref
from collections import Counter
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from course_lib.checking.build import build
from course_lib.checking.builds.compare import Case, Place, compare, in_turn
from course_lib.checking.builds.lazily import dist, later, nn, torch
from course_lib.checking.builds.raced import both_passes
from course_lib.checking.builds.rows import TOLERANCE, Must, Never, Rows, Sends, others_parts
from course_lib.checking.races import Race
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.memory.states import local_parameters
from course_lib.theory.memory.unit_life import COMPUTES, WEIGHTS, UnitCosts, fsdp_calls, unit_life
from course_lib.trace import Trace

_models = later("course_lib.checking.builds.on_rank.small_models")
_traffic = later("course_lib.checking.builds.on_rank.watched")
_gpt, _peak = later("course_lib.scratch.gpt"), later("course_lib.measure.peak")
_fsdp = later("torch.distributed.fsdp")

_Observed = dict[str, Any]
_LAYERS, _HIDDEN, _VOCAB, _CONTEXT = 3, 6, 11, 5
_ROWS = 12  # samples of all ranks
_RATE = 0.1  # of the updates of step 4
_THREE = (Case(ranks=3), Case(ranks=3, in_group=True))
_BF16 = 0.25  # tolerance, relative to the largest number in a tensor; measured: 0.10
# Step 1: one unit
_NUMBERS = 19  # in a unit's parameters; divisible neither by 2 nor by 3
_SHAPES: dict[str, tuple[int, ...]] = {"weight": (3, 5), "bias": (3,), "scale": ()}


def _parameters() -> dict[str, Any]:
    pieces = _cut(1 + torch.arange(float(_NUMBERS)) / 7)
    return {name: nn.Parameter(piece.clone()) for name, piece in pieces.items()}


def _cut(flat: Any) -> dict[str, Any]:
    pieces = flat[:_NUMBERS].split([15, 3, 1])
    return {
        name: piece.view(shape)
        for (name, shape), piece in zip(_SHAPES.items(), pieces, strict=True)
    }


def _padded(flat: Any, ranks: int) -> Any:
    return nn.functional.pad(flat, (0, -len(flat) % ranks))


def _life(parts: SimpleNamespace, group: Any) -> Rows:
    """On a rank: check a unit from call to call, up to where the next call could only raise."""
    from course_lib.scratch import wire

    ranks = dist.get_world_size(group)
    flat = torch.cat([p.detach().flatten() for p in _parameters().values()])
    padded, rank = _padded(flat, ranks), dist.get_rank(group)
    size, pieces = len(padded), padded.chunk(ranks)
    parameters, unit_type, cpu = _parameters(), parts.FSDPUnit, torch.device("cpu")
    alive = [weakref.ref(parameter) for parameter in parameters.values()]
    unit = unit_type(parameters, cpu, group, torch.float32)
    parameters.clear()
    gc.collect()
    for name in ("shard", "whole"):
        if getattr(unit, name, None) is None:
            yield Never(True, f"the unit has no {name}")
            return
    right, shard = pieces[rank], unit.shard.detach().clone()
    yield Must(", 19 numbers: the shard", shard, right, others_parts(pieces, rank))
    trained = isinstance(unit.shard, nn.Parameter) and unit.shard.requires_grad
    yield Never(not trained, "the shard is no nn.Parameter, so no optimizer trains it")
    keeps = unit.shard.untyped_storage().nbytes()
    alive_bytes = f"the shard keeps {keeps} bytes alive, expected {right.nbytes}"
    yield Never(keeps != right.nbytes, f"{alive_bytes}: it is a view of something larger")
    kept = any(one() is not None for one in alive)
    yield Never(kept, "the unit keeps the parameters that it was given, whole")
    yield Never(unit.shard.dtype != torch.float32, "the shard is not in fp32")
    yield Never(unit.gradient is not None, "before the first pass `gradient` is not None")
    yield _expect_size(unit, size)
    yield _expect_bytes(unit, "before the first gather", 0)
    if not _all_agree(unit.shard.numel() == len(right)):
        return
    with _traffic.followed_traffic() as traffic:
        unit.start_gather()
        waits = ranks > 1 and traffic.waited["all-gather"]
        unit.start_gather()
        unit.gather()
        still_running = traffic.under_way("all-gather")
        unit.gather()
    yield _expect_bytes(unit, "after gather", 4 * size)
    why = "a unit that is here already is not gathered again"
    yield Sends(traffic.log, {"all-gather": (1, 4 * size)}, why, among=ranks)
    yield Never(waits, "start_gather waits for its all-gather: it must return at once")
    running = ranks > 1 and still_running
    yield Never(running, "gather returns while the all-gather still runs: nobody waits for it")
    if not _all_agree(not still_running):
        return
    views = unit.views(unit.whole)
    numbers = torch.arange(float(size))
    gathered = _copied(views)
    of_numbers = _copied(unit.views(torch.arange(float(unit.whole.numel()))))
    unit.free()
    unit.free()
    yield _expect_bytes(unit, "after free", 0)
    yield _expect_size(unit, size)
    if not _all_agree(unit.whole.numel() == ranks * unit.shard.numel()):
        return
    yield from _expect_views(of_numbers, numbers, "views of a vector")
    yield from _expect_views(gathered, flat, "views after gather")
    unit.shard.data += 100.0
    unit.gather()
    refilled = _copied(unit.views(unit.whole))
    yield from _expect_views(refilled, flat + 100.0, "views, gathered again after an update")
    same = all(name in views and view.equal(views[name]) for name, view in refilled.items())
    yield Never(not same, "views from before free are not filled by the next gather")
    unit.free()
    with patch.object(wire, "start_all_gather") as start:  # so that freed memory causes no crash
        unit.start_gather()
        unit.free()
    early = start.called and not start.return_value.method_calls
    yield Never(early, "free takes memory away that an all-gather is still filling")
    yield _expect_bytes(unit, "when freed on its way", 0)
    narrow = unit_type(_parameters(), cpu, group, torch.bfloat16)
    in_bf16 = narrow.whole.dtype == torch.bfloat16 and narrow.shard.dtype == torch.float32
    yield Never(not in_bf16, "with dtype bf16, whole wants bf16 and the shard stays fp32")
    with _traffic.followed_traffic() as traffic:
        narrow.gather()
    yield from _expect_views(_copied(narrow.views(narrow.whole)), flat.bfloat16(), "views in bf16")
    right = {"all-gather": (1, 2 * size)}
    yield Sends(traffic.log, right, "it is gathered in bf16", among=ranks)


def _expect_size(unit: Any, size: int) -> Never:
    shape = tuple(unit.whole.shape)
    return Never(shape != (size,), f"whole has shape {shape}, expected {(size,)}")


def _expect_bytes(unit: Any, moment: str, right: int) -> Never:
    seen = _bytes(unit)
    return Never(seen != right, f"{moment} whole has {seen} bytes, expected {right}")


def _expect_views(views: Any, flat: Any, what: str) -> Rows:
    good = isinstance(views, dict) and list(views) == list(_SHAPES)
    names = ", ".join(_SHAPES)
    yield Never(not good, f"{what}: wants a dictionary with {names}, in this order")
    for name, piece in _cut(flat).items() if good else ():
        yield Must(f"{what}: {name}", views[name], piece)


def _all_agree(good: bool) -> bool:
    agreed = torch.tensor(int(good))
    dist.all_reduce(agreed, dist.ReduceOp.MIN)
    return bool(agreed)


def _bytes(unit: Any) -> int:
    size: int = unit.whole.untyped_storage().nbytes()
    return size


def _copied(tensors: Any) -> Any:
    if isinstance(tensors, dict):
        return {name: view.detach().clone() for name, view in tensors.items()}
    return tensors.clone() if isinstance(tensors, torch.Tensor) else tensors


# Step 2, first half: a unit's gradients


def _gradients_of(rank: int, number: int) -> list[Any]:
    """The bf16 gradients of `rank` in its add_gradients call `number`."""
    return [one.bfloat16() for one in _models.several_random(10 * number + rank, _SHAPES.values())]


def _flat_of(rank: int, number: int, ranks: int) -> Any:
    """The gradients of that call as one padded vector in fp32."""
    flat = [gradient.float().flatten() for gradient in _gradients_of(rank, number)]
    return _padded(torch.cat(flat), ranks)


def _reductions(kind: Any, group: Any) -> Rows:
    """On a rank: a bf16 unit adds and reduces two gradients, then one. Its traffic comes last."""
    rank, ranks, cpu = dist.get_rank(group), dist.get_world_size(group), torch.device("cpu")
    right = [_flat_of(rank, number, ranks) for number in range(3)]
    latest, right[1] = right[1], right[0] + right[1]
    each = [torch.stack([_flat_of(n, m, ranks) for n in range(ranks)]).mean(0) for m in range(3)]
    unit = kind(_parameters(), cpu, group, torch.bfloat16)
    unit.finish_reduction()
    one = kind({"": nn.Parameter(torch.ones(12))}, cpu, group, torch.float32)
    alone = torch.ones(12)  # exactly as long as the unit's vector: no padding
    for gradient in (alone, torch.ones(12)):
        one.add_gradients([gradient])
    changed, kept, view = not alone.equal(torch.ones(12)), False, False
    waits, reduced = 0, list[Any]()
    words = ("", ", added to another", ", after a reduction")
    mistakes: tuple[dict[str, Any], ...] = (
        {},
        {"that of the latest call alone": latest},
        {"added to one that has been reduced already": right[1] + right[2]},
    )
    for numbers in ((0, 1), (2,)):
        for number in numbers:
            gradients = _gradients_of(rank, number)
            unit.add_gradients(gradients)
            what, added = f"`gradient` after add_gradients{words[number]}", _copied(unit.gradient)
            yield from _expect_fp32(what, added, right[number], mistakes[number])
            pairs = zip(gradients, _gradients_of(rank, number), strict=True)
            changed |= not all(one.equal(other) for one, other in pairs)
        summed = unit.gradient
        if not _all_agree(isinstance(summed, torch.Tensor) and summed.dtype == torch.float32):
            return  # the messages would not match in size
        with _traffic.followed_traffic() as traffic:
            unit.start_reduction()
            waits += traffic.waited["reduce-scatter"]
            kept |= unit.gradient is not None
            unit.finish_reduction()
            unit.finish_reduction()
        expected = torch.stack(each[: number + 1]).sum(0).chunk(ranks)
        others = others_parts(expected, rank)
        if number == 2:
            others["that of the latest reduction alone"] = each[2].chunk(ranks)[rank]
        what, part = f"`shard.grad` after reduction {number} of a unit", unit.shard.grad
        if isinstance(part, torch.Tensor):
            view |= part.untyped_storage().nbytes() > right[0].nbytes // ranks
        reduced += _expect_fp32(what, _copied(part), expected[rank], others, _wrong_factors(ranks))
    yield Never(changed, "add_gradients has changed the gradients that it was given")
    yield Never(kept, "`gradient` is not None after start_reduction")
    yield Never(ranks > 1 and waits, "start_reduction waits for its sum: it must return at once")
    yield from reduced
    yield Never(view, "`shard.grad` is a view that keeps a whole gradient in memory")
    calls = {"reduce-scatter": (1, right[0].nbytes)}
    yield Sends(traffic.log, calls, "a reduction in fp32", among=ranks)


def _expect_fp32(what: str, tensor: Any, right: Any, others: Any, factors: Any = None) -> Rows:
    yield Must(what, tensor, right, others, factors or {})
    dtype = getattr(tensor, "dtype", None)
    yield Never(dtype != torch.float32, f"{what} is {dtype}, expected fp32")


def _wrong_factors(ranks: int) -> dict[float, str]:
    return {
        float(ranks): "the sum over ranks, where the mean is wanted",
        1 / ranks: "divided by the number of ranks twice",
    }


# Steps 2 to 4: a model


def _model() -> Any:
    torch.manual_seed(0)
    return _gpt.GPT(_LAYERS, _HIDDEN, 2, _VOCAB, _CONTEXT)


def _loss(model: Any, rows: slice) -> Any:
    generator, size = torch.Generator().manual_seed(1), (_ROWS, _CONTEXT + 1)
    tokens = torch.randint(0, _VOCAB, size, generator=generator)[rows]
    scores = model(tokens[:, :-1]).flatten(0, 1)
    return nn.functional.cross_entropy(scores, tokens[:, 1:].flatten())


def _rows_of(rank: int, ranks: int, piece: int = 0, pieces: int = 1) -> slice:
    each = _ROWS // ranks // pieces
    first = (rank * pieces + piece) * each
    return slice(first, first + each)


def _gradients(rows: slice, model: Any = None) -> dict[str, Any]:
    """Gradients by parameter name, computed in one process on these samples."""
    model = model or _model()
    model.zero_grad()
    _loss(model, rows).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


_SHAPE = TransformerShape(
    layers=_LAYERS, hidden=_HIDDEN, heads=2, ffn=4 * _HIDDEN, vocab=_VOCAB, context=_CONTEXT
)


def _sizes(ranks: int) -> list[int]:
    """Bytes in fp32 of the gathered root and of each gathered layer, padding included."""
    local = local_parameters(_SHAPE)
    units = [local.ends_dense] + _LAYERS * [local.layer_dense]
    return [4 * (size + -size % ranks) for size in units]


def _predicted_step(
    ranks: int, prefetch: bool = True, reshard: bool = True, dtype_bytes: int = 4
) -> Trace:
    """The predicted trace of a training step: what a rank gathers, holds and reduces."""
    units = [UnitCosts(1, 1, 0, 0, size * dtype_bytes // 4, size) for size in _sizes(ranks)]
    return unit_life(units, prefetch=int(prefetch), reshard=reshard).trace


def _trained(
    kind: Any,
    prefetch: bool,
    updates: tuple[tuple[bool, ...], ...] = ((True,),),
    group: Any = None,
    **options: Any,
) -> _Observed:
    """On a rank: train one micro-batch for each `sync` of each update; return what was observed.

    Between two updates plain SGD changes the shards, and their gradients are dropped.
    """
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    model = _model()
    fsdp = kind(model, list(model.blocks), prefetch=prefetch, group=group, **options)
    observed: _Observed = {"moments": [], "absent": [], "ended": [], "early": [], "logs": []}
    now: list[Any] = []

    def note(number: int, *_: Any) -> None:
        if not _bytes(fsdp.units[number]):
            observed["absent"].append(len(observed["moments"]))
            fsdp.units[number].gather()  # so that the pass can go on
        observed["moments"].append(
            {
                "bytes": sum(_bytes(unit) for unit in fsdp.units),
                "gathers": now[-1].started("all-gather"),
                "waited": now[-1].waited["all-gather"],
                "reductions": now[-1].started("reduce-scatter"),
                "reducing": now[-1].under_way("reduce-scatter"),
            }
        )

    for number, block in enumerate(model.blocks, start=1):
        block.mlp.register_forward_hook(partial(note, number))
        block.mlp.register_full_backward_pre_hook(partial(note, number))
    for syncs in updates:
        for piece, sync in enumerate(syncs):
            fsdp.sync = sync
            with _traffic.followed_traffic() as traffic:
                now.append(traffic)
                loss = _loss(model, _rows_of(rank, ranks, piece, len(syncs)))
                (loss / len(syncs)).backward()
            observed["logs"].append(traffic.log)
            most, behind = traffic.most["reduce-scatter"], "after the backward pass some unit"
            waiting = traffic.under_way("reduce-scatter")
            kept = sync and any(unit.gradient is not None for unit in fsdp.units)
            observed["ended"] += [
                Never(any(map(_bytes, fsdp.units)), f"{behind} is still whole"),
                Never(most > 1, f"{most} reductions are under way at once"),
                Never(waiting, "backward() returns and nobody has waited for a reduction"),
                Never(kept, f"{behind}'s `gradient` is not None"),
            ]
            if not sync:
                observed["early"] += [s.grad is not None for s in fsdp.shards]
                observed.setdefault("kept", _copied(fsdp.units[0].gradient))
        observed["missing"] = [number for number, s in enumerate(fsdp.shards) if s.grad is None]
        observed["fp32"] = all(s.grad is None or s.grad.dtype == torch.float32 for s in fsdp.shards)
        if syncs is not updates[-1]:
            for shard in fsdp.shards:
                shard.data -= _RATE * (0.0 if shard.grad is None else shard.grad)
                shard.grad = None
    if not observed["missing"]:
        observed["gradients"] = fsdp.gathered(gradients=True)
    for beyond in (-1, len(fsdp.units)) if prefetch else ():
        fsdp.fetch(beyond)
    observed["beyond"] = any(_bytes(unit) for unit in fsdp.units)
    if updates[1:]:
        observed["weights"] = fsdp.gathered()
    return observed


def _step(parts: SimpleNamespace, case: Case, group: Any) -> _Observed:
    """On a rank: reductions, and a step; in a group in bf16, with the bytes that stay allocated."""
    observed: _Observed = {"reductions": list(_reductions(parts.FSDPUnit, group))}
    if not isinstance(observed["reductions"][-1], Sends):
        return observed
    if not case.in_group:
        return observed | {"step": _trained(parts.FSDP, False)}
    observed["step"] = _trained(parts.FSDP, False, group=group, dtype=torch.bfloat16)
    model = _model()
    with _peak.log_memory() as memory:
        sharded = parts.FSDP(model, list(model.blocks), prefetch=False)
        _loss(model, slice(0, 2)).backward()
    shards = sum(s.nbytes + (0 if s.grad is None else s.grad.nbytes) for s in sharded.shards)
    return observed | {"stays": memory.timeline[-1] - shards}


def _expect_step(observed: _Observed, at: Place) -> Rows:
    yield from observed["reductions"]
    if not at.case.in_group:
        yield from _expect_few_whole(observed["step"], at.ranks, prefetch=False)
        yield from _expect_pass(observed["step"], at.ranks)
        return
    yield from _expect_pass(observed["step"], at.ranks, dtype_bytes=2, where=", in bf16: ")
    stays, unit = observed["stays"], _sizes(3)[0]
    leftover = f"after a training step {stays} bytes stay beside shards and their gradients"
    yield Never(stays >= unit, f"{leftover}; the smallest whole unit takes {unit}")


def _expect_pass(observed: _Observed, ranks: int, dtype_bytes: int = 4, where: str = "") -> Rows:
    """Check a step of one pass: weights, gradients, reductions and traffic."""
    for index in observed["absent"]:
        yield Never(True, f"{where}when {_moment(index)}, its weights are not there")
    missing = "".join(map(str, observed["missing"][:1]))
    yield Never(missing, f"{where}the shard of unit {missing} has no gradient")
    yield Never(not observed["fp32"], f"{where}the gradient of a shard is not in fp32")
    factors = _wrong_factors(ranks) | _HALVES | {2.0: "added twice"}
    tolerance = TOLERANCE if dtype_bytes == 4 else _BF16
    for what, right in _gradients(slice(None)).items():
        words, gradient = f"{where}the gradient of {what}", observed["gradients"].get(what)
        yield Must(words, gradient, right, factors=factors, tolerance=tolerance)
    yield from observed["ended"]
    for index, moment in enumerate(observed["moments"][_LAYERS:] if ranks > 1 else ()):
        behind = f"{where}when {_moment(_LAYERS + index)}, the reduction of the block behind it"
        early = moment["reductions"] and not moment["reducing"]
        yield Never(early, f"{behind} has been waited for already: nothing travels meanwhile")
    why = "a block is gathered for each of its passes, the root once, and each is reduced once"
    yield _expect_sent(observed, ranks, why, where.removesuffix(": "), dtype_bytes=dtype_bytes)


_HALVES = {0.5: "a part of the micro-batches, or halved"}


def _expect_few_whole(observed: _Observed, ranks: int, prefetch: bool) -> Rows:
    """While a block computes, only the root, this block and with prefetch the next are whole."""
    trace = _predicted_step(ranks, prefetch)
    whole = Trace(e for e in trace if isinstance(e.part, tuple) and e.part[0] == WEIGHTS).peak(0)
    for index, moment in enumerate(observed["moments"]):
        take = f"whole units take {moment['bytes']} bytes, expected {whole} at most"
        why = f"while {_moment(index)}, {take}: something is not freed, or comes too early"
        yield Never(moment["bytes"] > whole, why)


def _moment(index: int) -> str:
    """Which pass moment `index` is in: blocks forward in order, then backward in reverse order."""
    if index < _LAYERS:
        return f"block {index} computes forward"
    return f"block {2 * _LAYERS - 1 - index} computes backward"


def _ahead(observed: _Observed, at: Place) -> Rows:
    right, index = Counter[str](), 0  # calls so far, by name
    for call, unit in fsdp_calls(_LAYERS):
        right[call] += 1
        if unit and call in COMPUTES:
            moment = observed["moments"][index]
            what = f"when {_moment(index)}, the gather of the unit that comes next has"
            yield Never(moment["gathers"] < right["gather"], f"{what} not begun")
            waited = moment["waited"] > right["wait"]
            yield Never(waited, f"{what} been waited for already: nothing travels meanwhile")
            index += 1
    yield from _expect_few_whole(observed, at.ranks, prefetch=True)
    yield from _expect_pass(observed, at.ranks)
    beyond = observed["beyond"]
    yield Never(beyond, "fetch gathers a unit where none has this number, -1 for example")


# `sync` of each micro-batch: one reduction in the first update, two in the second.
_UPDATES = ((False, True), (True, True))


def _expect_accumulated(observed: _Observed, at: Place) -> Rows:
    """Two updates of two micro-batches; blocks stay whole until their backward pass."""
    model = _model()
    first = _gradients(slice(None), model)
    for what, weight in model.named_parameters():
        weight.data -= _RATE * first[what]
    early = any(observed["early"]) or "reduce-scatter" in observed["logs"][0].sent()
    yield Never(early, "with sync = False gradients are reduced all the same")
    local = _gradients(_rows_of(at.rank, at.ranks, 0, 2))
    kept = torch.cat([local[key].flatten() for key in local if not key.startswith("blocks.")]) / 2
    right = _padded(kept, at.ranks)
    yield Must(", sync = False: `gradient` of the root", observed["kept"], right)
    yield from observed["ended"]
    gradients = {} if observed["missing"] else observed["gradients"]
    two = ", two micro-batches: the"
    for what, right in _gradients(slice(None), model).items():
        words = f"{two} gradient of {what} in the second update"
        yield Must(words, gradients.get(what), right, factors=_HALVES, tolerance=1e-4)
    for what, weight in model.named_parameters():
        words = f"{two} weight {what} after the first update"
        yield Must(words, observed["weights"].get(what), weight, tolerance=1e-4)
    why = "reshard = False, each pass with sync = True: one gather and one reduction of each unit"
    yield _expect_sent(observed, at.ranks, why, reshard=False)


def _expect_sent(observed: _Observed, ranks: int, why: str, what: str = "", **how: Any) -> Sends:
    """The traffic of the last pass against the predicted step."""
    return Sends(observed["logs"][-1], _predicted_step(ranks, **how), why, among=ranks, what=what)


def _methods(kind: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{kind}.{name}" for name in names)


def _small_gpt(shard: Callable[[Any], object]) -> Callable[[], object]:
    torch.manual_seed(0)
    model = _gpt.GPT(4, 128, 4, 128, 32)
    shard(model)
    tokens = torch.zeros(4, 32, dtype=torch.int64)
    return lambda: both_passes(model, tokens)


def _fully_shard(model: Any) -> None:
    for block in model.blocks:
        _fsdp.fully_shard(block)
    _fsdp.fully_shard(model, reshard_after_forward=False)


FSDP = build(
    "fsdp",
    steps=(
        compare(
            "a unit",
            _methods("FSDPUnit", "__init__", "views", "start_gather", "gather", "free"),
            lambda parts, _, group: list(_life(parts, group)),
            lambda rows, _: rows,  # already made on the rank
            (Case(), *_THREE),
        ),
        in_turn(
            "a training step",
            _methods("FSDPUnit", "add_gradients", "start_reduction", "finish_reduction")
            + _methods(
                "FSDP", "before_forward", "after_forward", "before_backward", "after_backward"
            ),
            *(compare("", (), _step, _expect_step, (case,)) for case in _THREE),
        ),
        compare("prefetch", ("FSDP.fetch",), lambda parts, *_: _trained(parts.FSDP, True), _ahead),
        compare(
            "accumulation without reduction",
            (),
            lambda parts, *_: _trained(parts.FSDP, True, _UPDATES, reshard=False),
            _expect_accumulated,
        ),
    ),
    race=Race(
        "a GPT of 4 layers and 0.8 million parameters, both passes",
        lambda parts: _small_gpt(lambda model: parts.FSDP(model, list(model.blocks))),
        lambda: _small_gpt(_fully_shard),
    ),
)
