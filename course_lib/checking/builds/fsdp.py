"""Build 9.11: units that are gathered, freed and reduced, and when each of that happens."""

import gc
import weakref
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from course_lib.checking.build import Step, build
from course_lib.checking.builds.compared import TOLERANCE, expect_sent, expect_tensor
from course_lib.checking.builds.outcome import Outcome
from course_lib.checking.builds.ranks import each_rank, on_ranks
from course_lib.checking.exercises import Wrong
from course_lib.checking.races import Race
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.memory.gather_timeline import gather_timeline
from course_lib.theory.memory.states import local_parameters

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from course_lib.scratch.gpt import GPT

_LAYERS, _HIDDEN, _VOCAB, _CONTEXT = 3, 6, 11, 5
_ROWS = 12  # samples of all ranks
_RATE = 0.1  # of the updates of step 4
_BF16 = 0.25  # measured: 0.10, of the largest number in a tensor

# Step 1: one unit

_NUMBERS = 19  # of a unit's parameters: neither 2 nor 3 divides it
_GROUP = "in a group of ranks 0 and 2 and one of rank 1"


def _parameters() -> "dict[str, nn.Parameter]":
    import torch

    numbers = 1 + torch.arange(float(_NUMBERS)) / 7
    shapes = {"weight": (3, 5), "bias": (3,), "scale": ()}
    pieces = numbers.split([15, 3, 1])
    return {
        name: torch.nn.Parameter(piece.view(shape).clone())
        for (name, shape), piece in zip(shapes.items(), pieces, strict=True)
    }


def _of_a_group(found: list[tuple[str, dict[str, Any]]]) -> "list[tuple[str, Any, int, int]]":
    """(name, what it found, rank, ranks) of the ranks of 0 and 2, and of 1 by itself."""
    return [
        (f"{name}, {_GROUP}", seen["group"], rank // 2, 1 if rank == 1 else 2)
        for rank, (name, seen) in enumerate(found)
    ]


def _alone(parts: SimpleNamespace) -> None:
    for ranks in (2, 3):
        found = each_rank(on_ranks(_unit, parts.FSDPUnit, ranks=ranks))
        _expect_units([(name, seen, rank, ranks) for rank, (name, seen) in enumerate(found)])
        if ranks == 3:
            _expect_units(_of_a_group(found))


def _expect_units(found: "list[tuple[str, Any, int, int]]") -> None:
    for name, seen, rank, ranks in found:
        _expect_shard(seen, rank, ranks, name)
    for name, seen, _, ranks in found:
        _expect_whole(seen, ranks, name)


def _unit(kind: Any) -> dict[str, Any]:
    """On a rank: the lives of a unit of all ranks and, on three ranks, of one of a group."""
    import torch.distributed as dist

    from course_lib.checking.builds.on_rank.traffic import in_case, own_group

    found = _life(kind, None)
    if dist.get_world_size() == 3 and "again" in found:
        group = own_group()
        with in_case(_GROUP):
            found["group"] = _life(kind, group)
    return found


def _life(kind: Any, group: Any) -> dict[str, Any]:
    """A unit, with its bytes at each moment; it ends where what follows would only raise."""
    import torch
    import torch.distributed as dist

    from course_lib.checking.builds.on_rank.traffic import followed_traffic
    from course_lib.scratch import wire

    given = _parameters()
    alive = [weakref.ref(parameter) for parameter in given.values()]
    unit = kind(given, torch.device("cpu"), group, torch.float32)
    given.clear()
    gc.collect()
    for name in ("shard", "whole"):
        if getattr(unit, name, None) is None:
            return {"missing": name}
    found = {
        "shard": unit.shard.detach().clone(),
        "shard bytes": unit.shard.untyped_storage().nbytes(),
        "trained": isinstance(unit.shard, torch.nn.Parameter) and unit.shard.requires_grad,
        "fp32": unit.shard.dtype == torch.float32,
        "gradient": unit.gradient,
        "shape": tuple(unit.whole.shape),
        "parameters": any(one() is not None for one in alive),
        "bytes": [_bytes(unit)],
    }
    ranks = dist.get_world_size(group)
    if not _all_agree(unit.shard.numel() == -(-_NUMBERS // ranks)):
        return found
    with followed_traffic() as traffic:
        unit.start_gather()
        found["waits"] = traffic.waited["all-gather"]
        unit.start_gather()
        unit.gather()
        found["left"] = traffic.under_way("all-gather")
        unit.gather()
    found["log"] = traffic.log
    found["bytes"].append(_bytes(unit))
    if not _all_agree(not found["left"]):
        return found
    views = unit.views(unit.whole)
    found["views"] = _copied(views)
    found["of another"] = _copied(unit.views(torch.arange(float(unit.whole.numel()))))
    unit.free()
    unit.free()
    found["bytes"].append(_bytes(unit))
    found["shape"] = tuple(unit.whole.shape)
    if not _all_agree(unit.whole.numel() == ranks * unit.shard.numel()):
        return found
    unit.shard.data += 100.0
    unit.gather()
    found["again"] = _copied(unit.views(unit.whole))
    found["same memory"] = all(
        name in views and view.equal(views[name]) for name, view in found["again"].items()
    )
    unit.free()
    later: list[_Later] = []
    with patch.object(wire, "start_all_gather", partial(_Later, wire.start_all_gather, later)):
        unit.start_gather()
        unit.free()
    found["freed early"] = any(not one.ended for one in later)
    found["bytes"].append(_bytes(unit))
    half = kind(_parameters(), torch.device("cpu"), group, torch.bfloat16)
    found["bf16"] = half.whole.dtype == torch.bfloat16 and half.shard.dtype == torch.float32
    with followed_traffic() as traffic:
        half.gather()
    found["log of bf16"] = traffic.log
    found["views of bf16"] = _copied(half.views(half.whole))
    return found


class _Later:
    """A gather that is made when somebody waits: freed memory then is no crash."""

    def __init__(self, start: Any, all_of_them: "list[_Later]", *given: Any, **named: Any) -> None:
        self.start, self.ended = partial(start, *given, **named), False
        all_of_them.append(self)

    def wait(self, *_: Any) -> None:
        if not self.ended:
            self.start().wait()
        self.ended = True

    def __getattr__(self, name: str) -> Any:
        self.wait()
        return lambda: True  # is_completed, for example


def _all_agree(good: bool) -> bool:
    import torch
    import torch.distributed as dist

    word = torch.tensor(int(good))
    dist.all_reduce(word, dist.ReduceOp.MIN)
    return bool(word)


def _bytes(unit: Any) -> int:
    size: int = unit.whole.untyped_storage().nbytes()
    return size


def _copied(views: Any) -> Any:
    if not isinstance(views, dict):
        return views
    return {name: view.detach().clone() for name, view in views.items()}


def _expect_shard(found: dict[str, Any], rank: int, ranks: int, where: str) -> None:
    import torch
    from torch.nn.functional import pad

    if "missing" in found:
        raise Wrong(f"{where}: the unit has no {found['missing']}")
    flat = torch.cat([p.detach().flatten() for p in _parameters().values()])
    parts = pad(flat, (0, -len(flat) % ranks)).chunk(ranks)
    others = {f"the part of rank {n}": part for n, part in enumerate(parts) if n != rank}
    expect_tensor(found["shard"], parts[rank], f"{where}, 19 numbers: the shard", others=others)
    if not found["trained"]:
        raise Wrong(f"{where}: the shard is no nn.Parameter, so no optimizer trains it")
    if found["shard bytes"] != parts[rank].nbytes:
        raise Wrong(
            f"{where}: the shard keeps {found['shard bytes']} bytes alive, expected "
            f"{parts[rank].nbytes}: it is a view of something larger"
        )
    if found["parameters"]:
        raise Wrong(f"{where}: the unit keeps the parameters that it was given, whole")
    if not found["fp32"]:
        raise Wrong(f"{where}: the shard is not in fp32")
    if found["gradient"] is not None:
        raise Wrong(f"{where}: before the first pass `gradient` is not None")


def _expect_whole(found: dict[str, Any], ranks: int, where: str) -> None:
    import torch

    size = _NUMBERS + -_NUMBERS % ranks
    if found["shape"] != (size,):
        raise Wrong(f"{where}: whole has shape {found['shape']}, expected {(size,)}")
    moments = ("before the first gather", "after gather", "after free", "when freed on its way")
    for moment, seen, right in zip(moments, found["bytes"], (0, 4 * size, 0, 0), strict=False):
        if seen != right:
            raise Wrong(f"{where}: {moment} whole has {seen} bytes, expected {right}")
    why = "a unit that is here already is not gathered again"
    _expect_gathered(found["log"], ranks, 4 * size, f"{where}: {why}")
    if ranks > 1 and found["waits"]:
        raise Wrong(f"{where}: start_gather waits for its all-gather: it must return at once")
    if ranks > 1 and found["left"]:
        raise Wrong(f"{where}: gather returns while the all-gather still runs: nobody waits for it")
    if found["freed early"]:
        raise Wrong(f"{where}: free takes memory away that an all-gather is still filling")
    _expect_views(found["of another"], torch.arange(float(size)), f"{where}: views of a vector")
    flat = torch.cat([p.detach().flatten() for p in _parameters().values()])
    _expect_views(found["views"], flat, f"{where}: views after gather")
    _expect_views(found["again"], flat + 100.0, f"{where}: views, gathered again after an update")
    if not found["same memory"]:
        raise Wrong(f"{where}: views from before free are not filled by the next gather")
    if not found["bf16"]:
        raise Wrong(f"{where}: with dtype bf16, whole wants bf16 and the shard stays fp32")
    _expect_views(found["views of bf16"], flat.bfloat16(), f"{where}: views in bf16")
    _expect_gathered(found["log of bf16"], ranks, 2 * size, f"{where}: it is gathered in bf16")


def _expect_gathered(log: Any, ranks: int, size: int, why: str) -> None:
    calls = {"all-gather": (1, size)} if ranks > 1 else {}
    expect_sent([Outcome(None, log)], calls, why)


def _expect_views(found: Any, flat: "Tensor", what: str) -> None:
    names = list(_parameters())
    if not isinstance(found, dict) or list(found) != names:
        raise Wrong(f"{what}: wants a dictionary with {', '.join(names)}, in this order")
    pieces = flat[:_NUMBERS].split([p.numel() for p in _parameters().values()])
    for (name, parameter), piece in zip(_parameters().items(), pieces, strict=True):
        expect_tensor(found[name], piece.view(parameter.shape), f"{what}: {name}")


# Step 2, first half: a unit's gradients


def _gradients_of(place: int, number: int) -> "list[Tensor]":
    """Those of a rank, in bf16."""
    import torch

    generator = torch.Generator().manual_seed(10 * number + place)
    return [torch.randn(p.shape, generator=generator).bfloat16() for p in _parameters().values()]


def _laid(place: int, number: int, ranks: int) -> "Tensor":
    """They as one padded vector in fp32."""
    import torch

    flat = [gradient.float().flatten() for gradient in _gradients_of(place, number)]
    return torch.nn.functional.pad(torch.cat(flat), (0, -_NUMBERS % ranks))


def _reductions(kind: Any, group: Any) -> dict[str, Any]:
    """On a rank: a unit in bf16 adds twice and reduces, then once more."""
    import torch
    import torch.distributed as dist

    from course_lib.checking.builds.on_rank.traffic import followed_traffic

    place = dist.get_rank(group)
    unit = kind(_parameters(), torch.device("cpu"), group, torch.bfloat16)
    found: dict[str, Any] = {"added": [], "waits": 0, "kept": [], "parts": [], "storages": []}
    unit.finish_reduction()
    one = kind({"": torch.nn.Parameter(torch.ones(12))}, torch.device("cpu"), group, torch.float32)
    alone = torch.ones(12)  # as long as its vector, which needs no padding
    for gradient in (alone, torch.ones(12)):
        one.add_gradients([gradient])
    found["changed"] = not alone.equal(torch.ones(12))
    for numbers in ((0, 1), (2,)):
        for number in numbers:
            given = _gradients_of(place, number)
            unit.add_gradients(given)
            found["added"].append(_copied({"": unit.gradient}) if _is_tensor(unit.gradient) else {})
            pairs = zip(given, _gradients_of(place, number), strict=True)
            found["changed"] |= not all(one.equal(other) for one, other in pairs)
        if not _all_agree(_is_tensor(made := unit.gradient) and made.dtype == torch.float32):
            return found  # what is sent would not fit
        with followed_traffic() as traffic:
            unit.start_reduction()
            found["waits"] += traffic.waited["reduce-scatter"]
            found["kept"].append(unit.gradient is not None)
            unit.finish_reduction()
            unit.finish_reduction()
        found["log"] = traffic.log
        part = unit.shard.grad
        found["parts"].append(part.clone() if _is_tensor(part) else part)
        found["storages"].append(part.untyped_storage().nbytes() if _is_tensor(part) else 0)
    return found


def _is_tensor(found: Any) -> bool:
    import torch

    return isinstance(found, torch.Tensor)


def _expect_reductions(found: dict[str, Any], place: int, ranks: int, where: str) -> None:
    import torch

    right = [_laid(place, number, ranks) for number in range(3)]
    right[1] += right[0]
    words = ("", ", added to another", ", after a reduction")
    for number, (added, more) in enumerate(zip(found["added"], words, strict=False)):
        others = {"that of the latest call alone": right[1] - right[0]} if number == 1 else {}
        if number == 2:
            others["added to one that has been reduced already"] = right[1] + right[2]
        what = f"{where}: `gradient` after add_gradients{more}"
        expect_tensor(added.get(""), right[number], what, others=others)
        if added[""].dtype != torch.float32:
            raise Wrong(f"{what} is {added[''].dtype}, expected fp32")
    if found["changed"]:
        raise Wrong(f"{where}: add_gradients has changed the gradients that it was given")
    if any(found["kept"]):
        raise Wrong(f"{where}: `gradient` is not None after start_reduction")
    if ranks > 1 and found["waits"]:
        raise Wrong(f"{where}: start_reduction waits for its sum: it must return at once")
    each = [torch.stack([_laid(n, m, ranks) for n in range(ranks)]).mean(0) for m in range(3)]
    first, second = (each[0] + each[1]).chunk(ranks), each[2].chunk(ranks)
    both = [one + two for one, two in zip(first, second, strict=True)]
    for number, (part, expected) in enumerate(zip(found["parts"], (first, both), strict=True)):
        others = {f"the part of rank {n}": expected[n] for n in range(ranks) if n != place}
        if number:
            others["that of the latest reduction alone"] = second[place]
        what = f"{where}: `shard.grad` after reduction {number + 1} of a unit"
        expect_tensor(part, expected[place], what, factors=_meanings(ranks), others=others)
        if part.dtype != torch.float32:
            raise Wrong(f"{what} is {part.dtype}, expected fp32")
    if max(found["storages"]) > 4 * len(first[0]):
        raise Wrong(f"{where}: `shard.grad` is a view that keeps a whole gradient in memory")
    calls = {"reduce-scatter": (1, 4 * len(right[0]))} if ranks > 1 else {}
    expect_sent([Outcome(None, found["log"])], calls, f"{where}: a reduction in fp32")


def _meanings(ranks: int) -> dict[float, str]:
    return {
        float(ranks): "the sum over ranks, where the mean is wanted",
        1 / ranks: "divided by the number of ranks twice",
    }


# Steps 2 to 4: a model


def _model() -> "GPT":
    import torch

    from course_lib.scratch.gpt import GPT

    torch.manual_seed(0)
    return GPT(_LAYERS, _HIDDEN, 2, _VOCAB, _CONTEXT)


def _loss(model: Any, rows: slice) -> "Tensor":
    import torch
    from torch.nn.functional import cross_entropy

    tokens = torch.randint(
        0, _VOCAB, (_ROWS, _CONTEXT + 1), generator=torch.Generator().manual_seed(1)
    )[rows]
    return cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def _rows(rank: int, ranks: int, piece: int = 0, pieces: int = 1) -> slice:
    each = _ROWS // ranks // pieces
    first = (rank * pieces + piece) * each
    return slice(first, first + each)


def _gradients(rows: slice, model: "GPT | None" = None) -> "dict[str, Tensor]":
    """Those of one process, for these samples."""
    model = model or _model()
    model.zero_grad()
    loss: Any = _loss(model, rows)
    loss.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def _shape() -> TransformerShape:
    return TransformerShape(
        layers=_LAYERS, hidden=_HIDDEN, heads=2, ffn=4 * _HIDDEN, vocab=_VOCAB, context=_CONTEXT
    )


def _sizes(ranks: int) -> tuple[int, int]:
    """Bytes of the whole root and of a whole layer, with their padding."""
    local = local_parameters(_shape())
    root, layer = local.ends_dense, local.layer_dense
    return 4 * (root + -root % ranks), 4 * (layer + -layer % ranks)


def _on_rank(
    kind: Any,
    prefetch: bool,
    updates: tuple[tuple[bool, ...], ...] = ((True,),),
    group: Any = None,
    **options: Any,
) -> dict[str, Any]:
    """On a rank: a pass for each `sync` of each update, and what was seen on the way.

    Between updates the shards lose their gradients.
    """
    import torch
    import torch.distributed as dist

    from course_lib.checking.builds.on_rank.traffic import Traffic, followed_traffic

    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    model = _model()
    fsdp = kind(model, list(model.blocks), prefetch=prefetch, group=group, **options)
    found: dict[str, Any] = {"moments": [], "absent": [], "after": [], "early": [], "logs": []}
    now: list[Traffic] = []

    def note(number: int, *_: Any) -> None:
        if not _bytes(fsdp.units[number]):
            found["absent"].append(len(found["moments"]))
            fsdp.units[number].gather()  # to go on
        found["moments"].append(
            {
                "bytes": sum(_bytes(unit) for unit in fsdp.units),
                "gathers": now[-1].started("all-gather"),
                "waited": now[-1].waited["all-gather"],
                "reductions": now[-1].started("reduce-scatter"),
                "reducing": now[-1].under_way("reduce-scatter"),
            }
        )

    for number, block in enumerate(model.blocks, start=1):
        mlp: Any = block.mlp
        mlp.register_forward_hook(partial(note, number))
        mlp.register_full_backward_pre_hook(partial(note, number))
    for syncs in updates:
        for piece, sync in enumerate(syncs):
            fsdp.sync = sync
            with followed_traffic() as traffic:
                now.append(traffic)
                loss: Any = _loss(model, _rows(rank, ranks, piece, len(syncs)))
                (loss / len(syncs)).backward()
            found["logs"].append(traffic.log)
            found["after"].append(
                {
                    "whole": sum(_bytes(unit) for unit in fsdp.units),
                    "reducing": traffic.under_way("reduce-scatter"),
                    "most": traffic.most["reduce-scatter"],
                    "kept": sync and any(unit.gradient is not None for unit in fsdp.units),
                }
            )
            if not sync:
                found["early"] += [s.grad is not None for s in fsdp.shards]
                kept = fsdp.units[0].gradient
                found.setdefault("kept", kept.clone() if _is_tensor(kept) else kept)
        found["missing"] = [number for number, s in enumerate(fsdp.shards) if s.grad is None]
        found["fp32"] = all(s.grad is None or s.grad.dtype == torch.float32 for s in fsdp.shards)
        if syncs is not updates[-1]:
            for shard in fsdp.shards:
                shard.data -= _RATE * (0.0 if shard.grad is None else shard.grad)
                shard.grad = None
    if not found["missing"]:
        found["gradients"] = fsdp.gathered(gradients=True)
    for beyond in (-1, len(fsdp.units)) if prefetch else ():
        fsdp.fetch(beyond)
    found["beyond"] = any(_bytes(unit) for unit in fsdp.units)
    if updates[1:]:
        found["weights"] = fsdp.gathered()
    return found


def _step(unit: Any, fsdp: Any) -> dict[str, Any]:
    """On a rank: a unit's reductions, then a training step."""
    found = {"reductions": _reductions(unit, None)}
    if len(found["reductions"]["parts"]) == 2:
        found["step"] = _on_rank(fsdp, False)
    return found


def _others(unit: Any, fsdp: Any) -> dict[str, Any]:
    """On a rank: the same in a group, the step in bf16; and what stays after a step."""
    import torch

    from course_lib.checking.builds.on_rank.traffic import in_case, own_group
    from course_lib.measure.peak import log_memory

    group = own_group()
    with in_case(_GROUP):
        found = {"reductions": _reductions(unit, group)}
    with in_case(f"{_GROUP}, in bf16"):
        found["step"] = _on_rank(fsdp, False, group=group, dtype=torch.bfloat16)
    model = _model()
    with log_memory() as memory:
        sharded = fsdp(model, list(model.blocks), prefetch=False)
        loss: Any = _loss(model, slice(0, 2))
        loss.backward()
    shards = sum(s.nbytes + (0 if s.grad is None else s.grad.nbytes) for s in sharded.shards)
    found["kept"] = memory.timeline[-1] - shards
    return found


def _steps(parts: SimpleNamespace) -> None:
    found = each_rank(on_ranks(_step, parts.FSDPUnit, parts.FSDP, ranks=3))
    for rank, (name, one) in enumerate(found):
        _expect_reductions(one["reductions"], rank, 3, name)
    steps = [(name, one["step"]) for name, one in found]
    _expect_peak(steps, 3, prefetch=False)
    _expect_pass(steps, 3)
    found = each_rank(on_ranks(_others, parts.FSDPUnit, parts.FSDP, ranks=3))
    for rank, (name, one) in enumerate(found):
        where = f"{name}, {_GROUP}"
        _expect_reductions(one["reductions"], rank // 2, 1 if rank == 1 else 2, where)
    steps = [(f"{name}, {_GROUP}, in bf16", one["step"]) for name, one in found]
    _expect_pass([steps[0], steps[2]], 2, dtype_bytes=2)
    _expect_pass([steps[1]], 1, dtype_bytes=2)
    for name, one in found:
        if one["kept"] >= _sizes(3)[0]:
            raise Wrong(
                f"{name}: after a training step {one['kept']} bytes stay beside shards and their "
                f"gradients; the smallest whole unit takes {_sizes(3)[0]}"
            )


def _expect_pass(found: list[tuple[str, dict[str, Any]]], ranks: int, dtype_bytes: int = 4) -> None:
    """One backward pass: weights, gradients, reductions, and what is sent."""
    for name, one in found:
        if one["absent"]:
            raise Wrong(f"{name}: when {_moment(one['absent'][0])}, its weights are not there")
        _expect_gradients(one, name, ranks, TOLERANCE if dtype_bytes == 4 else _BF16)
        _expect_ended(one, name)
        for place, moment in enumerate(one["moments"][_LAYERS:] if ranks > 1 else ()):
            if moment["reductions"] and not moment["reducing"]:
                raise Wrong(
                    f"{name}: when {_moment(_LAYERS + place)}, the reduction of the block behind "
                    "it has been waited for already: nothing travels meanwhile"
                )
    why = "a block is gathered for each of its passes, the root once, and each is reduced once"
    _expect_calls([one for _, one in found], ranks, why, dtype_bytes=dtype_bytes)


def _expect_ended(found: dict[str, Any], name: str) -> None:
    for after in found["after"]:
        if after["whole"]:
            raise Wrong(f"{name}: after the backward pass some unit is still whole")
        if after["most"] > 1:
            raise Wrong(f"{name}: {after['most']} reductions are under way at once")
        if after["reducing"]:
            raise Wrong(f"{name}: backward() returns and nobody has waited for a reduction")
        if after["kept"]:
            raise Wrong(f"{name}: after the backward pass some unit's `gradient` is not None")


def _expect_gradients(found: dict[str, Any], name: str, ranks: int, tolerance: float) -> None:
    if found["missing"]:
        raise Wrong(f"{name}: the shard of unit {found['missing'][0]} has no gradient")
    if not found["fp32"]:
        raise Wrong(f"{name}: the gradient of a shard is not in fp32")
    meanings = _meanings(ranks) | {
        2.0: "added twice",
        0.5: "a part of the micro-batches, or halved",
    }
    for what, right in _gradients(slice(None)).items():
        tensor, words = found["gradients"].get(what), f"{name}: the gradient of {what}"
        expect_tensor(tensor, right, words, factors=meanings, tolerance=tolerance)


def _timeline(ranks: int, prefetch: bool) -> Any:
    recipe = Recipe(parameters="fp32", gradients="fp32", compute="fp32", master_copy=False)
    return gather_timeline(_shape(), recipe, ranks, prefetch=prefetch)


def _expect_peak(found: list[tuple[str, dict[str, Any]]], ranks: int, prefetch: bool) -> None:
    """While a block computes: the root and this block, with prefetch also the next."""
    root, layer = _sizes(ranks)
    whole = root + (2 if prefetch else 1) * layer
    for name, one in found:
        for place, moment in enumerate(one["moments"]):
            if moment["bytes"] > whole:
                raise Wrong(
                    f"{name}: while {_moment(place)}, whole units take {moment['bytes']} bytes, "
                    f"expected {whole} at most: something is not freed, or comes too early"
                )


def _moment(place: int) -> str:
    """The note's number in words: forward in order, backward in reverse order."""
    if place < _LAYERS:
        return f"block {place} computes forward"
    return f"block {2 * _LAYERS - 1 - place} computes backward"


def _ahead(parts: SimpleNamespace) -> None:
    found = each_rank(on_ranks(_on_rank, parts.FSDP, True, ranks=2))
    forward = [min(block + 3, _LAYERS + 1) for block in range(_LAYERS)]
    backward = [_LAYERS + 1 + min(n + 2, _LAYERS) for n in range(_LAYERS)]
    # Those of the root, of the blocks before it, and its own.
    needed = [*range(2, _LAYERS + 2), *range(_LAYERS + 2, 2 * _LAYERS + 2)]
    for name, one in found:
        for place, right in enumerate([*forward, *backward]):
            moment, next_one = one["moments"][place], "the gather of the unit that comes next"
            if moment["gathers"] < right:
                raise Wrong(f"{name}: when {_moment(place)}, {next_one} has not begun")
            if moment["waited"] > needed[place]:
                raise Wrong(
                    f"{name}: when {_moment(place)}, {next_one} has been waited for already: "
                    "nothing travels meanwhile"
                )
    _expect_peak(found, 2, prefetch=True)
    _expect_pass(found, 2)
    for name, one in found:
        if one["beyond"]:
            raise Wrong(f"{name}: fetch gathers a unit where none has this number, -1 for example")


def _accumulated(parts: SimpleNamespace) -> None:
    """Two updates of two micro-batches: one reduction in the first, two in the second.

    Blocks stay whole until their backward pass.
    """
    updates = ((False, True), (True, True))
    outcomes = on_ranks(_kept_whole, parts.FSDP, updates, ranks=2)
    model = _model()
    first = _gradients(slice(None), model)
    for what, weight in model.named_parameters():
        weight.data -= _RATE * first[what]
    expected = _gradients(slice(None), model)
    for rank, (name, found) in enumerate(each_rank(outcomes)):
        if any(found["early"]) or "reduce-scatter" in found["logs"][0].sent():
            raise Wrong(f"{name}: with sync = False gradients are reduced all the same")
        _expect_kept(found["kept"], rank, name)
        _expect_ended(found, name)
        for what, right in expected.items():
            last = found["gradients"].get(what) if not found["missing"] else None
            words = f"{name}, two micro-batches: the gradient of {what} in the second update"
            factors = {0.5: "a part of the micro-batches, or halved"}
            expect_tensor(last, right, words, factors=factors, tolerance=1e-4)
        for what, weight in model.named_parameters():
            words = f"{name}, two micro-batches: the weight {what} after the first update"
            expect_tensor(found["weights"].get(what), weight, words, tolerance=1e-4)
    why = "reshard = False, each pass with sync = True: one gather and one reduction of each unit"
    _expect_calls([one.value for one in outcomes], 2, why, passes=1)


def _kept_whole(kind: Any, updates: Any) -> dict[str, Any]:
    return _on_rank(kind, True, updates, reshard=False)


def _expect_kept(kept: Any, rank: int, name: str) -> None:
    """The root's gradient on this rank, of one of two micro-batches."""
    import torch

    own = _gradients(_rows(rank, 2, 0, 2))
    inside = {key for key in own if key.startswith("blocks.")}
    root = torch.cat([own[key].flatten() for key in own if key not in inside]) / 2
    root = torch.nn.functional.pad(root, (0, -len(root) % 2))
    expect_tensor(kept, root, f"{name}, sync = False: `gradient` of the root")


def _expect_calls(
    found: list[dict[str, Any]], ranks: int, why: str, passes: int = 2, dtype_bytes: int = 4
) -> None:
    """Of the last pass: as many calls as the theory says, of whole units with their padding."""
    if ranks == 1:
        return  # nothing is sent
    root, layer = _sizes(ranks)
    gathers = _timeline(ranks, True).all_gathers if passes == 2 else _LAYERS + 1
    calls = {
        "all-gather": (gathers, dtype_bytes * (root + passes * _LAYERS * layer) // 4),
        "reduce-scatter": (_LAYERS + 1, root + _LAYERS * layer),
    }
    logs = [Outcome(None, one["logs"][-1]) for one in found]
    expect_sent(logs, calls, why)


# The race


def _prepared(parts: SimpleNamespace) -> Any:
    """A GPT of 4 layers, forward and backward."""
    import torch

    model = _larger()
    parts.FSDP(model, list(model.blocks))
    return _pass_of(model, torch.zeros(4, 32, dtype=torch.int64))


def _by_torch() -> Any:
    import torch
    from torch.distributed.fsdp import fully_shard

    model = _larger()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model, reshard_after_forward=False)
    return _pass_of(model, torch.zeros(4, 32, dtype=torch.int64))


def _larger() -> "GPT":
    import torch

    from course_lib.scratch.gpt import GPT

    torch.manual_seed(0)
    return GPT(4, 128, 4, 128, 32)


def _pass_of(model: Any, tokens: "torch.Tensor") -> Any:
    return lambda: model(tokens).sum().backward()


FSDP = build(
    "fsdp",
    title="FSDP",
    hints=(
        "A unit: cat of the flattened parameters, zeros up to a multiple of the ranks, and this "
        "rank's chunk, as a copy of its own. `whole` is empty(size), its storage resized to 0.",
        "Gather: resize the storage to whole.nbytes, copy the shard into its own part of whole, "
        "whole.view(ranks, -1)[rank], and start_all_gather from there. Who waits, and when?",
        "Reduce: a part like the shard, start_reduce_scatter from `gradient`; later wait, divide "
        "by the ranks, and add to what shard.grad has already.",
        "before_forward and before_backward: gather this unit, then fetch the next in that pass's "
        "direction. after_backward: free, finish reductions that are under way, add the gradients, "
        "start to reduce them if self.sync, and wait at once for unit 0, which is the last.",
    ),
    steps=(
        Step(
            "a unit",
            (
                "FSDPUnit.__init__",
                "FSDPUnit.views",
                "FSDPUnit.start_gather",
                "FSDPUnit.gather",
                "FSDPUnit.free",
            ),
            _alone,
        ),
        Step(
            "a training step",
            (
                "FSDPUnit.add_gradients",
                "FSDPUnit.start_reduction",
                "FSDPUnit.finish_reduction",
                "FSDP.before_forward",
                "FSDP.after_forward",
                "FSDP.before_backward",
                "FSDP.after_backward",
            ),
            _steps,
        ),
        Step("prefetch", ("FSDP.fetch",), _ahead),
        Step("accumulation without reduction", (), _accumulated),
    ),
    race=Race("a GPT of 4 layers and 0.8 million parameters, both passes", _prepared, _by_torch),
)
