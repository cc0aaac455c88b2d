"""Build 9.11: units that are gathered, freed and reduced, and when each of that happens."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from course_lib.checking.build import Step, build
from course_lib.checking.builds.compared import expect_sent, expect_tensor
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

# Step 1: one unit


def _parameters() -> "dict[str, nn.Parameter]":
    """19 numbers, which neither 2 nor 3 divides."""
    import torch

    numbers = torch.arange(1.0, 20)
    return {
        "weight": torch.nn.Parameter(numbers[:15].view(3, 5).clone()),
        "bias": torch.nn.Parameter(numbers[15:].clone()),
    }


def _alone(parts: SimpleNamespace) -> None:
    for ranks in (2, 3):
        found = each_rank(on_ranks(_unit, parts.FSDPUnit, ranks=ranks))
        for rank, (name, seen) in enumerate(found):
            _expect_shard(seen, rank, ranks, name)
        for name, seen in found:
            _expect_whole(seen, ranks, name)


def _unit(kind: Any) -> dict[str, Any]:
    """On a rank: a unit's life, with its bytes at each moment."""
    import torch
    import torch.distributed as dist

    from course_lib.measure.wire import log_wire

    unit = kind(_parameters(), torch.device("cpu"), None, torch.float32)
    if getattr(unit, "shard", None) is None or getattr(unit, "whole", None) is None:
        return {"missing": "shard" if getattr(unit, "shard", None) is None else "whole"}
    found = {
        "shard": unit.shard.detach().clone(),
        "shard bytes": unit.shard.untyped_storage().nbytes(),
        "trained": isinstance(unit.shard, torch.nn.Parameter),
        "shape": tuple(unit.whole.shape),
        "bytes": [_bytes(unit)],
    }
    ranks = dist.get_world_size()
    if not _all_agree(found["shard"].numel() == -(-19 // ranks)):
        return found  # a collective of such parts would only raise
    with log_wire() as log, _watched_gathers() as works:
        unit.gather()
        found["waited"] = all(work.waited for work in works)
        for work in works:
            work.wait()
        unit.gather()
    found["log"] = log
    found["bytes"].append(_bytes(unit))
    views = unit.views(unit.whole)
    found["views"] = _copied(views)
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
    unit.start_gather()
    unit.free()
    found["bytes"].append(_bytes(unit))
    half = kind(_parameters(), torch.device("cpu"), None, torch.bfloat16)
    half.gather()
    found["bf16"] = half.whole.dtype == torch.bfloat16 and half.shard.dtype == torch.float32
    return found


class _Watched:
    """A collective that has been started, and whether somebody has waited for it."""

    def __init__(self, work: Any) -> None:
        self.work, self.waited = work, False

    def wait(self) -> Any:
        self.waited = True
        return self.work.wait()


@contextmanager
def _watched_gathers() -> Iterator[list[_Watched]]:
    """The all-gathers that are started by `wire.start_all_gather`."""
    from course_lib.scratch import wire

    works: list[_Watched] = []
    start = wire.start_all_gather

    def watched(*given: Any, **more: Any) -> _Watched:
        works.append(_Watched(start(*given, **more)))
        return works[-1]

    with patch.object(wire, "start_all_gather", watched):
        yield works


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


def _expect_whole(found: dict[str, Any], ranks: int, where: str) -> None:
    size = 19 + -19 % ranks
    if found["shape"] != (size,):
        raise Wrong(f"{where}: whole has shape {found['shape']}, expected {(size,)}")
    moments = ("before the first gather", "after gather", "after free", "when freed on its way")
    for moment, seen, right in zip(moments, found["bytes"], (0, 4 * size, 0, 0), strict=True):
        if seen != right:
            raise Wrong(f"{where}: {moment} whole has {seen} bytes, expected {right}")
    if not found["waited"]:
        raise Wrong(f"{where}: gather returns while the all-gather still runs: nobody waits for it")
    for key, more in (("views", 0.0), ("again", 100.0)):
        if not isinstance(found[key], dict) or found[key].keys() != _parameters().keys():
            raise Wrong(f"{where}: views wants a dictionary with weight and bias")
        after = ", gathered again after an update" if more else ""
        for name, parameter in _parameters().items():
            what = f"{where}: the view of {name}{after}"
            expect_tensor(found[key][name], parameter.detach() + more, what)
    if not found["same memory"]:
        raise Wrong(f"{where}: views from before free are not filled by the next gather")
    if not found["bf16"]:
        raise Wrong(f"{where}: with dtype bf16, whole wants bf16 and the shard stays fp32")
    calls = {"all-gather": (1, 4 * size)}
    why = "a unit that is here already is not gathered again"
    expect_sent([Outcome(None, found["log"])], calls, why)


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


def _gradients(rows: slice) -> "dict[str, Tensor]":
    """Those of one process, for these samples."""
    model = _model()
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


def _on_rank(kind: Any, prefetch: bool, syncs: tuple[bool, ...]) -> dict[str, Any]:
    """On a rank: a backward pass for each of `syncs`, and what was seen on the way."""
    import torch
    import torch.distributed as dist

    from course_lib.measure.wire import log_wire

    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = _model()
    fsdp = kind(model, list(model.blocks), prefetch=prefetch)
    found: dict[str, Any] = {"gathers": [], "bytes": [], "absent": [], "after": [], "logs": []}

    def note(number: int, *_: Any) -> None:
        if not _bytes(fsdp.units[number]):
            found["absent"].append(len(found["bytes"]))
            fsdp.units[number].gather()  # to go on
        calls = found["logs"][-1].calls
        found["gathers"].append(sum(call.operation == "all-gather" for call in calls))
        found["bytes"].append(sum(_bytes(unit) for unit in fsdp.units))

    for number, block in enumerate(model.blocks, start=1):
        mlp: Any = block.mlp
        mlp.register_forward_hook(partial(note, number))
        mlp.register_full_backward_pre_hook(partial(note, number))
    for piece, sync in enumerate(syncs):
        fsdp.sync = sync
        with log_wire() as log:
            found["logs"].append(log)
            loss: Any = _loss(model, _rows(rank, ranks, piece, len(syncs)))
            (loss / len(syncs)).backward()
        found["after"].append(sum(_bytes(unit) for unit in fsdp.units))
        if not sync:
            found["reduced early"] = [s.grad is not None for s in fsdp.shards]
            kept = fsdp.units[0].gradient
            found["kept"] = kept.clone() if isinstance(kept, torch.Tensor) else kept
    found["missing"] = [number for number, s in enumerate(fsdp.shards) if s.grad is None]
    if not found["missing"]:
        found["gradients"] = fsdp.gathered(gradients=True)
    return found


def _steps(parts: SimpleNamespace) -> None:
    outcomes = on_ranks(_on_rank, parts.FSDP, False, (True,), ranks=3)
    _expect_peak(outcomes, prefetch=False)
    _expect_pass(outcomes)


def _expect_pass(outcomes: list[Outcome]) -> None:
    ranks, expected = len(outcomes), _gradients(slice(None))
    for name, found in each_rank(outcomes):
        if found["absent"]:
            raise Wrong(f"{name}: when {_moment(found['absent'][0])}, its weights are not there")
        _expect_gradients(found, expected, name, ranks)
        if found["after"][-1]:
            raise Wrong(f"{name}: after the backward pass some unit is still whole")
    why = "a block is gathered for each of its passes, the root once, and each is reduced once"
    _expect_calls(outcomes, why)


def _expect_gradients(found: dict[str, Any], expected: Any, name: str, ranks: int) -> None:
    if found["missing"]:
        raise Wrong(f"{name}: the shard of unit {found['missing'][0]} has no gradient")
    meanings = {
        float(ranks): "the sum over ranks, where the mean is wanted",
        1 / ranks: "divided by the number of ranks twice",
        2.0: "added twice",
        0.5: "a part of the micro-batches, or halved",
    }
    for what, right in expected.items():
        tensor = found["gradients"].get(what)
        expect_tensor(tensor, right, f"{name}: the gradient of {what}", factors=meanings)


def _timeline(ranks: int, prefetch: bool) -> Any:
    recipe = Recipe(parameters="fp32", gradients="fp32", compute="fp32", master_copy=False)
    return gather_timeline(_shape(), recipe, ranks, prefetch=prefetch)


def _expect_peak(outcomes: list[Outcome], prefetch: bool) -> None:
    """While a block computes: the root and this block, with prefetch also the next."""
    root, layer = _sizes(len(outcomes))
    whole = root + (2 if prefetch else 1) * layer
    for name, found in each_rank(outcomes):
        for place, seen in enumerate(found["bytes"]):
            if seen > whole:
                raise Wrong(
                    f"{name}: while {_moment(place)}, whole units take {seen} bytes, expected "
                    f"{whole} at most: something is not freed, or comes too early"
                )


def _moment(place: int) -> str:
    """The note's number in words: forward in order, backward in reverse order."""
    if place < _LAYERS:
        return f"block {place} computes forward"
    return f"block {2 * _LAYERS - 1 - place} computes backward"


def _ahead(parts: SimpleNamespace) -> None:
    outcomes = on_ranks(_started, parts.FSDPUnit, parts.FSDP, ranks=2)
    forward = [min(block + 3, _LAYERS + 1) for block in range(_LAYERS)]
    backward = [_LAYERS + 1 + min(n + 2, _LAYERS) for n in range(_LAYERS)]
    for name, found in each_rank(outcomes):
        for place, right in enumerate([*forward, *backward]):
            if found["gathers"][place] < right:
                raise Wrong(
                    f"{name}: when {_moment(place)}, the gather of the unit that comes next has "
                    "not begun"
                )
    _expect_peak(outcomes, prefetch=True)
    _expect_pass(outcomes)


def _started(unit: Any, fsdp: Any) -> dict[str, Any]:
    _start(unit)
    return _on_rank(fsdp, True, (True,))


def _start(kind: Any) -> None:
    """On a rank: rank 1 begins only when rank 0 says that it has begun."""
    import torch

    from course_lib.scratch.collectives.peers import Peers

    peers, word = Peers(), torch.zeros(1)
    unit = kind(_parameters(), torch.device("cpu"), None, torch.float32)
    if peers.rank == 0:
        unit.start_gather()
        peers.send(word, 1)
    else:
        peers.receive(word, 0)
        unit.start_gather()
    unit.gather()


def _accumulated(parts: SimpleNamespace) -> None:
    outcomes = on_ranks(_on_rank, parts.FSDP, True, (False, True), ranks=2)
    expected = _gradients(slice(None))
    for rank, (name, found) in enumerate(each_rank(outcomes)):
        if any(found["reduced early"]) or "reduce-scatter" in found["logs"][0].sent():
            raise Wrong(f"{name}: with sync = False gradients are reduced all the same")
        _expect_kept(found["kept"], rank, name)
        _expect_gradients(found, expected, f"{name}, two micro-batches", 2)
    _expect_calls(outcomes, "the last of two micro-batches reduces what both have added up")


def _expect_kept(kept: Any, rank: int, name: str) -> None:
    """The root's gradient on this rank, of one of two micro-batches."""
    import torch

    own = _gradients(_rows(rank, 2, 0, 2))
    inside = {key for key in own if key.startswith("blocks.")}
    root = torch.cat([own[key].flatten() for key in own if key not in inside]) / 2
    root = torch.nn.functional.pad(root, (0, -len(root) % 2))
    expect_tensor(kept, root, f"{name}, sync = False: `gradient` of the root")


def _expect_calls(outcomes: list[Outcome], why: str) -> None:
    """Of the last pass: as many calls as the theory says, of whole units with their padding."""
    root, layer = _sizes(len(outcomes))
    gathers = _timeline(len(outcomes), True).all_gathers
    calls = {
        "all-gather": (gathers, root + 2 * _LAYERS * layer),
        "reduce-scatter": (_LAYERS + 1, root + _LAYERS * layer),
    }
    expect_sent([Outcome(None, one.value["logs"][-1]) for one in outcomes], calls, why)


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
