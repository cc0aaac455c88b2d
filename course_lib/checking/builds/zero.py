"""Build 8.11: ZeRO's stages 1 and 2, and clipping by the global norm."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from course_lib.checking.build import build
from course_lib.checking.builds.compare import (
    Case,
    Must,
    Never,
    Place,
    Row,
    Sends,
    compare,
    later,
    torch,
)
from course_lib.checking.builds.torch_races import RACES
from course_lib.theory.network.zero import shard

if TYPE_CHECKING:
    from course_lib.checking.builds.on_rank import zero as work
    from course_lib.checking.builds.on_rank.zero import Clipped, Found, FoundUnit, Weights
else:
    work = later("course_lib.checking.builds.on_rank.zero")

_LIMITS = (0.05, 5.0)  # the norm of the gradient is 1.6
_SQUARES = 64  # bytes: one number for each tensor, in fp64
_THREE = (Case(ranks=3),)


def _unit_bytes(sizes: Sequence[int], ranks: int) -> int:
    """Bytes of units of so many parameters in fp32, padded."""
    parts = [shard(size, ranks, 0) for size in sizes]
    return sum(4 * ranks * (part.stop - part.start + part.zeros) for part in parts)


def _all_units(ranks: int) -> int:
    return _unit_bytes(work.unit_sizes(), ranks)


def _others(parts: "Sequence[torch.Tensor]", place: int) -> dict[str, "torch.Tensor"]:
    return {f"the part of rank {n}": part for n, part in enumerate(parts) if n != place}


def _a_unit(found: "FoundUnit", at: Place) -> Iterator[Row]:
    place, ranks, *_ = at
    began = work.flat(work.numbers(0, 9), ranks).chunk(ranks)
    yield Must("`own`", found.own, began[place], _others(began, place))
    yield Never(not found.is_view, "`part` gives a copy, and `own` wants to be a view of `whole`")
    each = [
        torch.stack([work.flat(work.made(rank, n), ranks) for rank in range(ranks)])
        for n in range(work.REDUCED)
    ]
    for number, reduced in enumerate(found.reduced):
        total = torch.stack(each[: number + 1]).sum(0)
        sums = total.sum(0).chunk(ranks)
        others = _others(sums, place)
        own = total[place].chunk(ranks)[place]
        others["what this rank itself has, to which nothing is added"] = own
        if number:
            latest = each[number].sum(0).chunk(ranks)[place]
            others["that of the latest `reduce` alone: what came before is lost"] = latest
        yield Must(
            f"`gradient` after `reduce` number {number + 1}",
            reduced,
            sums[place],
            others,
            {1 / ranks: "the mean over ranks, where the sum is wanted"},
        )
    yield Never(
        found.left,
        f"after `reduce` {found.left} parameters still have a `.grad`: whole gradients stay in "
        "memory, and the next backward pass adds to them",
    )
    yield from _published("", place, found.published, work.numbers(0, 9), ranks)
    ones = [torch.ones(7, dtype=torch.bfloat16)]
    yield from _published(", weights in bf16: ", place, found.in_bf16, ones, ranks)
    six = torch.cat([6 * torch.ones(7), torch.zeros(2)]).chunk(ranks)[place]
    yield Must(", weights in bf16: `gradient`", found.reduced_bf16, six)
    size = _unit_bytes([7], ranks)
    right = {"reduce-scatter": (work.REDUCED, work.REDUCED * size), "all-gather": (1, size)}
    yield Sends(
        found.wire, right, "three `reduce` and one `publish` of a vector padded to 9 numbers"
    )


def _published(where: str, place: int, found: Any, began: Any, ranks: int) -> Iterator[Row]:
    """Every rank has added its number + 1 to its part."""
    flat = later("course_lib.scratch.zero.flat")
    vector = flat.flatten(began, ranks)
    added = torch.arange(1, ranks + 1, dtype=vector.dtype).repeat_interleave(len(vector) // ranks)
    own = torch.where(added == place + 1, added, 0)
    right, mine = (list(flat.views(vector + more, began)) for more in (added, own))
    for number, tensor in enumerate(found):
        others = {
            "what it was before the update": began[number],
            f"updated in the part of rank {place} only": mine[number][1],
        }
        what = f"{where}the weight of shape {tuple(tensor.shape)} after `publish`"
        yield Must(what, tensor, right[number][1], others)


def _updated(found: "Found", at: Place) -> Iterator[Row]:
    ranks = at.ranks
    mistakes = {
        "what the mean of the ranks' gradients gives, where the sum is wanted": work.alone(
            ranks, scale=1 / ranks
        ),
        "what comes out where gradients of earlier updates are still there": work.alone(
            ranks, keeps=True
        ),
    }
    yield from _weights(found, at.every[0], work.alone(ranks), mistakes)
    # Adam's two fp32 numbers for each element that a rank owns.
    size = _all_units(ranks)
    states = 2 * size // ranks
    yield Never(
        found.state_bytes != states,
        f"the optimizer keeps {found.state_bytes} bytes of states, and Adam's two fp32 numbers for "
        f"each element that this rank owns are {states}",
    )
    yield Never(
        found.given > states // 8,
        f"the optimizer is given {found.given} numbers, and this rank owns {states // 8}, the "
        "`master` of each unit",
    )
    right = {"reduce-scatter": (3, size), "all-gather": (3, size)}
    why = "each of three units is reduced once and gathered once in an update"
    yield Sends(found.wire, right, why)


def _weights(
    found: "Found",
    first: "Found",
    right: "Sequence[Weights]",
    mistakes: "Mapping[str, Sequence[Weights]]",
) -> Iterator[Row]:
    """The weights after each update are those of one process; no gradient is left."""
    before = work.at_the_start()
    for number, (expected, weights) in enumerate(zip(right, found.weights, strict=True)):
        for key, weight in weights.items():
            yield Never(
                not torch.allclose(weight, first.weights[number][key], rtol=1e-5, atol=1e-6),
                f", after update {number + 1}: `{key}` is not what rank 0 has: the updated parts "
                "have not reached all ranks",
            )
        for key, weight in weights.items():
            others = {thought: updates[number][key] for thought, updates in mistakes.items()}
            others["what it was before the update"] = before[key]
            what = f"`{key}` after update {number + 1}"
            yield Must(what, weight, expected[key], others, tolerance=1e-4)
        before = expected
    yield Never(found.left, f"after `step` {found.left}")


def _clipped(found: "tuple[list[Clipped], bool]", at: Place) -> Iterator[Row]:
    place, ranks, *_ = at
    whole, size = work.gradient_parts(ranks), _all_units(ranks)
    own, norm = whole[place], torch.cat(whole).norm()
    for limit, one in zip(_LIMITS, found[0], strict=True):
        others = {
            "that of this rank's part alone": own.norm(),
            "its square": norm.square(),
            "that after clipping": norm.clamp(max=limit),
        }
        yield Must("the norm that `clip` returns", _tensor(one.norm), norm, others, tolerance=1e-4)
        scale, alone = ((limit / (each + 1e-6)).clamp(max=1.0) for each in (norm, own.norm()))
        others = {"clipped by the norm of this rank's part alone": alone * own}
        mistake = "not clipped" if limit < norm else "lengthened to the limit"
        others[mistake] = own if limit < norm else limit / norm * own
        what = f", limit {limit:g}, norm {norm:.3g}: this rank's part of the gradient"
        yield Must(what, one.gradient, scale * own, others, tolerance=1e-4)
        sent = one.wire.sent()
        yield Never(
            sent.get("all-gather", (0, 0))[1] > ranks * _SQUARES,
            "`clip` gathers gradients, where one number is enough",
        )
        yield Never(
            sent.get("all-reduce", (0, 0))[1] > _SQUARES or sent["reduce-scatter"][1] != size,
            "`clip` sends more than what `reduce` does and a few numbers: squares of parts add up",
        )
    yield Never(
        not found[1], "`clip` changes a gradient of zeros: its norm, 0, is below every limit"
    )


def _tensor(norm: Any) -> Any:
    return torch.tensor(norm) if isinstance(norm, float) else norm


def _stage_2(found: Any, at: Place) -> Iterator[Row]:
    ranks, (passes, trained, norm) = at.ranks, found
    units = len(work.unit_sizes())
    for number, one in enumerate(passes):
        where = f", backward pass {number + 1}: "
        ended, before = one.at_the_end, one.before_the_last
        yield Never(
            ended != units,
            f"{where}when backward() returns {ended} of {units} units have been reduced",
        )
        yield Never(
            not before and number % 2 == 0,
            f"{where}no unit is reduced before the last gradient is there",
        )
        yield Never(
            before < units - 1 and number % 2 == 0,
            f"{where}before the last gradient is there {units - 1} units are complete, and "
            f"{before} of them has been reduced",
        )
        yield Never(one.left, f"{where}{one.left} whole gradients are left when backward() returns")
    right, latest = (
        work.alone(ranks, (2, 2), work.by_turns, latest=latest) for latest in (False, True)
    )
    mistakes = {"what the last micro-batch alone gives": latest}
    yield from _weights(trained, at.every[0][1], right, mistakes)
    what, last = ", stage 2: the norm that `clip` returns", work.last_norm(ranks, right[0])
    yield Must(what, _tensor(norm), last, tolerance=1e-3)
    size = _all_units(ranks)
    calls = {"reduce-scatter": (2 * units, 2 * size), "all-gather": (units, size)}
    why = "two micro-batches reduce each unit twice, and it is gathered once"
    yield Sends(trained.wire, calls, why)


ZERO = build(
    "zero",
    title="ZeRO 1 and 2",
    hints=(
        "reduce: the same `flatten` for the gradients, in the same order, and a reduce-scatter of "
        "the vector. What does a parameter without a gradient lay into it?",
        "Micro-batches: `gradient` may be there already; then the new part is added.",
        "step: reduce what is not reduced; every master gets its gradient in fp32; the optimizer "
        "steps; gradients are dropped; every unit publishes.",
        "clip: the square of a norm is a sum, so it may be summed over parts, units and ranks; one "
        "all-reduce of one number, then the root.",
        "Stage 2: at the first gradient of a pass `waiting` becomes a copy of `order`, and "
        "`after_backward(self._finish)` is called. Then: while the first that waits has all its "
        "gradients, take it out and reduce it.",
    ),
    steps=(
        compare(
            "a unit",
            ("Unit.part", "Unit.reduce", "Unit.publish"),
            lambda parts, *_: work.one_unit(parts.Unit),
            _a_unit,
            _THREE,
        ),
        compare(
            "an update of stage 1",
            ("Zero.reduce", "Zero.step"),
            lambda parts, *_: work.updates(parts.Zero),
            _updated,
            (Case(ranks=2), *_THREE),
        ),
        compare(
            "clipping",
            ("clip",),
            lambda parts, *_: work.clipped(parts.Zero, parts.clip, _LIMITS),
            _clipped,
            _THREE,
        ),
        compare(
            "stage 2",
            ("Zero._arrived", "Zero._finish"),
            lambda parts, *_: work.stage_2(parts.Zero, parts.clip),
            _stage_2,
            _THREE,
        ),
    ),
    race=RACES["zero"],
)
