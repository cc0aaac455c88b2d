"""Build 8.11: ZeRO's stages 1 and 2, and clipping by the global norm."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from course_lib.checking.build import Step, build
from course_lib.checking.builds.compared import expect_sent, expect_tensor
from course_lib.checking.builds.outcome import Outcome
from course_lib.checking.builds.ranks import each_rank, on_ranks
from course_lib.checking.exercises import Wrong
from course_lib.checking.races import Race
from course_lib.theory.network.zero import shard

if TYPE_CHECKING:
    from course_lib.checking.builds.on_rank.zero import Found, Weights

_LIMITS = (0.05, 5.0)  # the norm of the gradient is 1.6
_SQUARES = 64  # bytes: one number for each tensor, in fp64


def _unit_bytes(sizes: Sequence[int], ranks: int) -> int:
    """Bytes of units of so many parameters in fp32, padded."""
    parts = [shard(size, ranks, 0) for size in sizes]
    return sum(4 * ranks * (part.stop - part.start + part.zeros) for part in parts)


def _a_unit(parts: SimpleNamespace) -> None:
    import torch

    from course_lib.checking.builds.on_rank import zero as work

    ranks = 3
    outcomes = on_ranks(work.one_unit, parts.Unit, ranks=ranks)
    began = work.flat(work.numbers(0, 9), ranks)
    made = [
        [work.flat(work.made(rank, n), ranks) for rank in range(ranks)] for n in range(work.REDUCED)
    ]
    for rank, (name, found) in enumerate(each_rank(outcomes)):
        others = {f"the part of rank {n}": began.chunk(ranks)[n] for n in range(ranks) if n != rank}
        expect_tensor(found.own, began.chunk(ranks)[rank], f"{name}: `own`", others=others)
    for rank, (name, found) in enumerate(each_rank(outcomes)):
        if not found.is_view:
            raise Wrong(f"{name}: `part` gives a copy, and `own` wants to be a view of `whole`")
        for number, reduced in enumerate(found.reduced):
            total = torch.stack([torch.stack(each) for each in made[: number + 1]]).sum(0)
            sums = total.sum(0).chunk(ranks)
            latest = torch.stack(made[number]).sum(0).chunk(ranks)[rank]
            others = {f"the part of rank {n}": sums[n] for n in range(ranks) if n != rank}
            others["what this rank itself has, to which nothing is added"] = total[rank].chunk(
                ranks
            )[rank]
            if number:
                others["that of the latest `reduce` alone: what came before is lost"] = latest
            expect_tensor(
                reduced,
                sums[rank],
                f"{name}: `gradient` after `reduce` number {number + 1}",
                factors={1 / ranks: "the mean over ranks, where the sum is wanted"},
                others=others,
            )
        if found.left:
            raise Wrong(
                f"{name}: after `reduce` {found.left} parameters still have a `.grad`: whole "
                "gradients stay in memory, and the next backward pass adds to them"
            )
        _expect_published(name, rank, found.published, work.numbers(0, 9), ranks)
        ones = [torch.ones(7, dtype=torch.bfloat16)]
        _expect_published(f"{name}, weights in bf16", rank, found.in_bf16, ones, ranks)
        six = torch.cat([6 * torch.ones(7), torch.zeros(2)]).chunk(ranks)[rank]
        expect_tensor(found.reduced_bf16, six, f"{name}, weights in bf16: `gradient`")
    size = _unit_bytes([7], ranks)
    expected = {"reduce-scatter": (work.REDUCED, work.REDUCED * size), "all-gather": (1, size)}
    why = "three `reduce` and one `publish` of a vector padded to 9 numbers"
    expect_sent([Outcome(None, one.value.wire) for one in outcomes], expected, why)


def _expect_published(name: str, rank: int, found: Any, began: Any, ranks: int) -> None:
    """Every rank has added its number + 1 to its part."""
    import torch

    from course_lib.scratch.zero.flat import flatten, views

    vector = flatten(began, ranks)
    added = torch.arange(1, ranks + 1, dtype=vector.dtype).repeat_interleave(len(vector) // ranks)
    own = torch.where(added == rank + 1, added, 0)
    right, mine = (list(views(vector + more, began)) for more in (added, own))
    for place, tensor in enumerate(found):
        expect_tensor(
            tensor,
            right[place][1],
            f"{name}: the weight of shape {tuple(tensor.shape)} after `publish`",
            others={
                "what it was before the update": began[place],
                f"updated in the part of rank {rank} only": mine[place][1],
            },
        )


def _updates(parts: SimpleNamespace) -> None:
    from course_lib.checking.builds.on_rank import zero as work

    for ranks in (2, 3):
        outcomes = on_ranks(work.updates, parts.Zero, ranks=ranks)
        found = each_rank(outcomes)
        right = work.alone(ranks)
        mistakes = {
            "what the mean of the ranks' gradients gives, where the sum is wanted": work.alone(
                ranks, scale=1 / ranks
            ),
            "what comes out where gradients of earlier updates are still there": work.alone(
                ranks, keeps=True
            ),
        }
        _expect_weights(found, right, mistakes)
        _expect_states(found, ranks)
        size = _unit_bytes(work.unit_sizes(), ranks)
        expected = {"reduce-scatter": (3, size), "all-gather": (3, size)}
        why = "each of three units is reduced once and gathered once in an update"
        expect_sent([Outcome(None, one.wire) for _, one in found], expected, why)


def _expect_weights(
    found: "Sequence[tuple[str, Found]]",
    right: "list[Weights]",
    mistakes: "dict[str, list[Weights]]",
) -> None:
    """The weights of all ranks after each update are those of one process; no gradient is left."""
    from course_lib.checking.builds.on_rank import zero as work

    for number, expected in enumerate(right):
        for name, one in found:
            _expect_same(f"{name}, after update {number + 1}", one, found[0][1], number)
        before = right[number - 1] if number else work.at_the_start()
        for name, one in found:
            for key, weight in one.weights[number].items():
                others = {thought: updates[number][key] for thought, updates in mistakes.items()}
                others["what it was before the update"] = before[key]
                what = f"{name}: `{key}` after update {number + 1}"
                expect_tensor(weight, expected[key], what, others=others, tolerance=1e-4)
    for name, one in found:
        if one.left:
            raise Wrong(f"{name}: after `step` {one.left}")


def _expect_same(name: str, one: "Found", first: "Found", number: int) -> None:
    import torch

    for key, weight in one.weights[number].items():
        if not torch.allclose(weight, first.weights[number][key], rtol=1e-5, atol=1e-6):
            raise Wrong(
                f"{name}: `{key}` is not what rank 0 has: the updated parts have not reached all "
                "ranks"
            )


def _expect_states(found: "Sequence[tuple[str, Found]]", ranks: int) -> None:
    """Two fp32 numbers for each element that a rank owns."""
    from course_lib.checking.builds.on_rank import zero as work

    expected = 2 * _unit_bytes(work.unit_sizes(), ranks) // ranks
    for name, one in found:
        if one.state_bytes != expected:
            raise Wrong(
                f"{name}: the optimizer keeps {one.state_bytes} bytes of states, and Adam's two "
                f"fp32 numbers for each element that this rank owns are {expected}"
            )
        if one.given > expected // 8:
            raise Wrong(
                f"{name}: the optimizer is given {one.given} numbers, and this rank owns "
                f"{expected // 8}, the `master` of each unit"
            )


def _clipping(parts: SimpleNamespace) -> None:
    import torch

    from course_lib.checking.builds.on_rank import zero as work

    ranks = 3
    outcomes = on_ranks(work.clipped, parts.Zero, parts.clip, _LIMITS, ranks=ranks)
    whole = work.gradient_parts(ranks)
    norm = torch.cat(whole).norm()
    size = _unit_bytes(work.unit_sizes(), ranks)
    for rank, (name, (clips, stays_zero)) in enumerate(each_rank(outcomes)):
        for limit, found in zip(_LIMITS, clips, strict=True):
            given = torch.tensor(found.norm) if isinstance(found.norm, float) else found.norm
            expect_tensor(
                given,
                norm,
                f"{name}: the norm that `clip` returns",
                others={
                    "that of this rank's part alone": whole[rank].norm(),
                    "its square": norm.square(),
                    "that after clipping": norm.clamp(max=limit),
                },
                tolerance=1e-4,
            )
            scale = (limit / (norm + 1e-6)).clamp(max=1.0)
            own = (limit / (whole[rank].norm() + 1e-6)).clamp(max=1.0)
            others = {"clipped by the norm of this rank's part alone": own * whole[rank]}
            if limit < norm:
                others["not clipped"] = whole[rank]
            else:
                others["lengthened to the limit"] = limit / norm * whole[rank]
            expect_tensor(
                found.gradient,
                scale * whole[rank],
                f"{name}, limit {limit:g}, norm {norm:.3g}: this rank's part of the gradient",
                others=others,
                tolerance=1e-4,
            )
            if found.wire.sent().get("all-gather", (0, 0))[1] > ranks * _SQUARES:
                raise Wrong(f"{name}: `clip` gathers gradients, where one number is enough")
            sent = found.wire.sent()
            if sent.get("all-reduce", (0, 0))[1] > _SQUARES or sent["reduce-scatter"][1] != size:
                raise Wrong(
                    f"{name}: `clip` sends more than what `reduce` does and a few numbers: "
                    "squares of parts add up"
                )
        if not stays_zero:
            raise Wrong(
                f"{name}: `clip` changes a gradient of zeros: its norm, 0, is below every limit"
            )


def _stage_2(parts: SimpleNamespace) -> None:
    import torch

    from course_lib.checking.builds.on_rank import zero as work

    ranks = 3
    outcomes = on_ranks(work.stage_2, parts.Zero, parts.clip, ranks=ranks)
    units = len(work.unit_sizes())
    for name, (passes, *_) in each_rank(outcomes):
        for number, one in enumerate(passes):
            place = f"{name}, backward pass {number + 1}"
            if one.at_the_end != units:
                raise Wrong(
                    f"{place}: when backward() returns {one.at_the_end} of {units} units have "
                    "been reduced"
                )
            if not one.before_the_last and number % 2 == 0:
                raise Wrong(f"{place}: no unit is reduced before the last gradient is there")
            if one.before_the_last < units - 1 and number % 2 == 0:
                raise Wrong(
                    f"{place}: before the last gradient is there {units - 1} units are complete, "
                    f"and {one.before_the_last} of them has been reduced"
                )
            if one.left:
                raise Wrong(f"{place}: {one.left} whole gradients are left when backward() returns")
    found = [(name, value[1]) for name, value in each_rank(outcomes)]
    right = work.alone(ranks, (2, 2), work.by_turns)
    latest = work.alone(ranks, (2, 2), work.by_turns, latest=True)
    _expect_weights(found, right, {"what the last micro-batch alone gives": latest})
    for name, (*_, norm) in each_rank(outcomes):
        given = torch.tensor(norm) if isinstance(norm, float) else norm
        what = f"{name}, stage 2: the norm that `clip` returns"
        expect_tensor(given, work.last_norm(ranks, right[0]), what, tolerance=1e-3)
    size = _unit_bytes(work.unit_sizes(), ranks)
    expected = {"reduce-scatter": (2 * units, 2 * size), "all-gather": (units, size)}
    why = "two micro-batches reduce each unit twice, and it is gathered once"
    expect_sent([Outcome(None, one.wire) for _, one in found], expected, why)


def _prepared(parts: SimpleNamespace) -> Any:
    """An update under stage 1, each layer a unit."""
    import torch

    from course_lib.checking.builds.on_rank import zero as work

    model = work.big_model()
    return work.update(model, parts.Zero(model, list(model), torch.optim.AdamW).step)


def _by_torch() -> Any:
    import torch
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    from course_lib.checking.builds.on_rank import zero as work

    ddp = DistributedDataParallel(work.big_model(), gradient_as_bucket_view=True)
    optimizer = ZeroRedundancyOptimizer(
        ddp.parameters(), torch.optim.AdamW, parameters_as_bucket_view=True
    )

    def step() -> None:
        optimizer.step()
        optimizer.zero_grad()

    return work.update(ddp, step)


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
        Step("a unit", ("Unit.part", "Unit.reduce", "Unit.publish"), _a_unit),
        Step("an update of stage 1", ("Zero.reduce", "Zero.step"), _updates),
        Step("clipping", ("clip",), _clipping),
        Step("stage 2", ("Zero._arrived", "Zero._finish"), _stage_2),
    ),
    race=Race("an update of a million parameters", _prepared, _by_torch),
)
