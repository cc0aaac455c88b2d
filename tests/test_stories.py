"""Every story keeps what a trace must keep, and real ranks send what it tells.

A story is in STORIES with what must be so at its end, and in RECORDED with a run of the course's
own code on ranks, which `measure.wire` writes down.
"""

from collections.abc import Callable, Iterator
from itertools import groupby, pairwise, product

import pytest
import torch
import torch.distributed as dist
from all_rooms import steppers
from torch import nn

from course_lib import launch, mine
from course_lib.chapters.ch09_fsdp.gather_timeline import gather_timeline
from course_lib.chapters.ch15_launchers_and_recovery.recovery import JobCosts, failing_job
from course_lib.demos.shared.training import Training, mean_loss
from course_lib.measure.peak import tensor_bytes
from course_lib.measure.wire import log_wire
from course_lib.scratch.collectives import Peers, all_to_all, ring_all_reduce
from course_lib.scratch.context import SequenceRing
from course_lib.scratch.experts import MoE
from course_lib.scratch.fsdp import FSDP, FSDPUnit
from course_lib.scratch.gpt import GPT, Block
from course_lib.scratch.pipeline import Pipeline
from course_lib.scratch.pipeline_stage import cut, wires
from course_lib.scratch.tensor import SequenceParallel, TensorParallel, cut_block
from course_lib.scratch.zero import Zero, Zero3
from course_lib.theory.inputs import MODELS, Job, Link, Recipe
from course_lib.theory.memory.layer_walk import layer_walk
from course_lib.theory.memory.step_timeline import step_timeline
from course_lib.theory.memory.unit_life import (
    UnitCosts,
    buffer_turns,
    changes,
    fsdp_calls,
    unit_life,
)
from course_lib.theory.network.bucket_timeline import Gradient, ddp_timeline
from course_lib.theory.network.collectives import sent_bytes
from course_lib.theory.pipelines.bubble import PassTimes
from course_lib.theory.pipelines.schedules import Schedule, apart, schedule
from course_lib.theory.pipelines.simulation import DOES, pipeline_trace, simulate, timeline
from course_lib.theory.stories.copies import bucket_steps, served_steps, zero_steps
from course_lib.theory.stories.messages import (
    ATTENTION,
    MLP,
    expert_exchange,
    expert_steps,
    pair_steps,
    ring_attention_steps,
    ring_steps,
    skewed_exchange,
    tree_steps,
)
from course_lib.trace import ADD, COPY, FREE, SEND, TAKE, Event, Trace

END = float("inf")


def all_summed(trace: Trace) -> bool:
    """Everybody has every part, with the numbers of all in it."""
    parts = {event.part for event in trace}
    held = trace.held(END)
    return all(set(its) == parts for its in held.values()) and all(
        part.of == trace.who for its in held.values() for part in its.values()
    )


def all_back(trace: Trace) -> bool:
    """A rank has as many bytes of results as it has sent rows."""
    held = trace.held(END)
    pairs = [(rank, owner) for rank in trace.who for owner in trace.who]
    rows = [held[owner].get(("rows", rank, owner)) for rank, owner in pairs]
    results = [held[rank].get(("results", rank, owner)) for rank, owner in pairs]
    return all(a and b and a.bytes == b.bytes for a, b in zip(rows, results, strict=True))


def all_new(trace: Trace) -> bool:
    """All weights that a rank keeps are new, gradients and gathered weights are gone."""
    parts = [item for its in trace.held(END).values() for item in its.items()]
    kinds = {kind for (kind, _, _), _ in parts}
    return kinds == {"weights", "states"} and all(
        held.label for (kind, _, _), held in parts if kind == "weights"
    )


def all_sent(trace: Trace) -> bool:
    """Each bucket leaves once: when its last gradient is there, or the bucket before it is back."""
    ready = {event.part[0]: event.until for event in trace if event.what == "backward"}
    free, left = 0.0, {}
    for event in trace:
        if event.what == "all-reduce":
            left[event.part] = event.at == max(free, ready[event.part])
            free = event.until
    return set(left) == set(ready) and all(left.values())


def all_freed(trace: Trace) -> bool:
    """What was held is gone in the end."""
    return not any(trace.held(END).values())


FAST = Link("nearly no time", 1e15, 0.0)
SLOW = Link("one byte a second", 1.0, 0.0)
ROOT, LAYER = UnitCosts(0, 0, 1, 1, 5, 5), UnitCosts(2, 4, 1, 1, 10, 10)
GPT2 = MODELS["gpt2-124m"]
THREE = [Gradient(name, 10, 5.0) for name in "cba"]

# By name: the trace, and what must be so at its end where no run on ranks or other test says it.
STORIES: dict[str, tuple[Trace, Callable[[Trace], bool] | None]] = {
    **{f"ring of {n}": (ring_steps(n, 8), all_summed) for n in (2, 3, 5, 8, 32)},
    **{f"tree of {n}": (tree_steps(n, 8), all_summed) for n in (2, 3, 5, 8, 32)},
    **{f"zero, stage {n}": (zero_steps(36, 3, 3, n), all_new) for n in range(4)},
    **{
        f"ring attention, {order}": (ring_attention_steps(64, 4, zigzag=order == "zig-zag"), None)
        for order in ("in order", "zig-zag")
    },
    "experts": (expert_steps(skewed_exchange(64, 8, 2, 4, skew=1.0, factor=1.25), 16), all_back),
    "a pair": (pair_steps(MLP, 8, 4, 2), None),
    "a pair, by tokens": (pair_steps(ATTENTION, 8, 4, 2, sequence_parallel=True), None),
    "buckets": (bucket_steps(ddp_timeline(THREE, 2, SLOW, cap_bytes=10)), all_sent),
    "units of FSDP": (unit_life([ROOT, LAYER, LAYER, LAYER]).trace, all_freed),
    "gathered bytes of FSDP": (gather_timeline(GPT2, Recipe(), 4).trace, all_freed),
    "buffers of YaFSDP": (buffer_turns(5), None),
    "memory of a step": (step_timeline(Job(GPT2)).trace, None),
    **{
        f"a layer, recompute {it}": (layer_walk(Job(GPT2, Recipe(recompute=it))).trace, all_freed)
        for it in ("none", "selective", "full")
    },
    **{
        f"a pipeline, {name}": (pipeline_trace(timeline(name, 4, 8)), all_freed)
        for name in ("naive", "gpipe", "1f1b", "zb1p", "zbv", "dualpipe")
    },
    "a failing job": (failing_job(20, 4, 11, JobCosts(360, 60, 300, 120, 180)).trace, None),
    "talks": (steppers.talks().result[0], None),
    "block": (steppers.block()._tell().trace, None),
    "a server": (served_steps((1.0, 1.5, 4.0), 20.0, 1), None),
}
stories = pytest.mark.parametrize("name", STORIES)


@stories
def test_it_ends_as_it_should(name: str) -> None:
    trace, is_right = STORIES[name]
    if is_right:
        assert is_right(trace)
        assert not is_right(Trace(trace[: 2 * len(trace) // 3]))


def steps(trace: Trace) -> Iterator[tuple[float, tuple[Event, ...]]]:
    """(time, events that begin then), in order."""
    for time, events in groupby(trace, lambda event: event.at):
        yield time, tuple(events)


@stories
def test_nobody_sends_or_frees_what_is_not_there(name: str) -> None:
    trace, _ = STORIES[name]
    before: dict[object, object] = {who: {} for who in trace.who}
    for time, now in steps(trace):
        there = {(who, part) for who, its in before.items() for part in its}
        there |= {(one.who, one.part) for one in now if one.what == TAKE}
        there |= {(one.to, one.part) for one in now if one.to is not None}
        for event in now:
            if event.what in (ADD, COPY, FREE):
                assert (event.who, event.part) in there, event
        before = trace.held(time)


@stories
def test_what_is_sent_is_received_whole_and_nothing_is_added_twice(name: str) -> None:
    trace, _ = STORIES[name]
    for time, now in steps(trace):
        held, freed = trace.held(time), {(e.who, e.part) for e in now if e.what == FREE}
        for event in now:
            if event.what in (ADD, COPY) and (event.to, event.part) not in freed:
                assert held[event.to][event.part].bytes == event.bytes
        for its in held.values():
            assert all(len(set(part.of)) == len(part.of) for part in its.values())


# --- what was told is what happens ----------------------------------------------------------------


def recorded(runs: list[tuple[Callable[..., object], *tuple[object, ...]]]) -> list[object]:
    """By run: what this rank sends meanwhile, and what the run returns."""
    rank, found = launch.init().rank, []
    for run, *given in runs:
        torch.manual_seed(0)
        with log_wire() as log:
            result = run(*given)
        found.append((log.trace.messages(rank), result))
    return found


def on_ranks(ranks: int, *runs: tuple[Callable[..., object], *tuple[object, ...]]) -> list[object]:
    """By rank, what each of some runs, on the same ranks, has sent and returned."""
    return launch.run(recorded, list(runs), ranks=ranks)


def ring_of(rows: int) -> None:
    ring_all_reduce(torch.ones(rows, dtype=torch.float64), Peers())


def ring_as_built(rows: int) -> None:
    part = mine.ring_reduce_scatter(torch.ones(rows, dtype=torch.float64), Peers())
    mine.ring_all_gather(part, Peers())


def tree_as_built(rows: int) -> None:
    mine.tree_all_reduce(torch.ones(rows, dtype=torch.float64), Peers())


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_all_reduces(ranks: int) -> None:
    told = [ring_steps(ranks, 16), ring_steps(ranks, 16), tree_steps(ranks, 80)]
    runs = (ring_of, 2 * ranks), (ring_as_built, 2 * ranks), (tree_as_built, 10)
    for rank, found in enumerate(on_ranks(ranks, *runs)):
        assert [sent for sent, _ in found] == [trace.messages(rank) for trace in told]


def visits(zigzag: bool) -> list[tuple[int, int]]:
    """The pairs of chunks that this rank works on, in order."""
    ring, met = SequenceRing(dist.group.WORLD, zigzag), []
    for owner, _ in ring.visits(torch.ones(16, 4)):
        mine_, theirs = ring.chunks(ring.rank), ring.chunks(owner)
        met += [(mine_[i], theirs[j]) for i, j, _ in ring.pairs(owner)]
    return met


def test_ring_attention() -> None:
    for rank, found in enumerate(on_ranks(4, (visits, False), (visits, True))):
        for zigzag, (sent, met) in zip((False, True), found, strict=True):
            told = ring_attention_steps(64, 4, zigzag=zigzag, token_bytes=16)
            assert sent == told.messages(rank), zigzag
            assert met == [e.part for e in told if e.who == rank and e.what == "work"], zigzag


def mixture(factor: float | None) -> object:
    moe = MoE(hidden=8, experts=8, top_k=2, capacity_factor=factor)
    moe.spread(dist.group.WORLD)
    torch.manual_seed(dist.get_rank())
    moe(torch.randn(32, 8) + 0.5)
    return moe.counts.tolist(), moe.kept.tolist()


def exchange() -> None:
    all_to_all(torch.ones(4), Peers())


def test_experts() -> None:
    """torch sends all of a dispatch in one call: the rows of all turns.

    The last run has one row from each rank to each other: who sends to whom in which turn.
    """
    turns = expert_steps(expert_exchange([[1] * 4] * 4, 100), row_bytes=4)
    runs = on_ranks(4, (mixture, None), (mixture, 1.0), (exchange,))
    for rank, (*mixtures, (sent, _)) in enumerate(runs):
        for limit, (calls, (counts, kept)) in zip((256, 256 // 8), mixtures, strict=True):
            table = expert_exchange(counts, limit)
            assert [list(row) for row in table.kept] == kept
            assert (table.dropped > 0) == (limit < 256)
            told = _sent_by(rank, expert_steps(table, row_bytes=32))
            sizes = [size for what, _, size in calls if what == "all-to-all"]
            assert sizes == [sum(event.bytes for event in its) for its in told]
        for its in _sent_by(rank, turns):
            assert sent == tuple(("send-recv", e.to, e.bytes) for e in its if e.to is not None)


def _sent_by(rank: int, told: Trace) -> list[list[Event]]:
    """The rows that a rank sends or keeps in a dispatch, and those of a combine."""
    own = [e for e in told if e.who == rank and e.part and e.what in (COPY, "stay")]
    return [[e for e in own if e.part[0] == kind] for kind in ("rows", "results")]


WIDTH, LAYERS = 12, 3


def held_by(trainer: Zero) -> int:
    """Bytes of weights, gradients and states on this rank; of a sharded unit what is whole now."""
    size = 0
    for unit in trainer.units.values():
        tensors = [unit.whole, unit.own, unit.master, unit.gradient]
        tensors += [parameter.grad for parameter in unit.parameters]
        states = trainer.optimizer.state[unit.master]
        tensors += [value for name, value in states.items() if name != "step"]
        size += tensor_bytes([one for one in tensors if one is not None])
    return size


def zero_step(stage: int) -> tuple[list[int], list[tuple[str, int]]]:
    """Bytes held before a second step, behind its backward pass and at its end; its calls."""
    layers = [nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.bfloat16) for _ in range(LAYERS)]
    model = nn.Sequential(*layers)
    trainer = (
        Zero3(model, model, torch.optim.AdamW)
        if stage == 3
        else mine.Zero(model, model, torch.optim.AdamW, stage)
    )
    inputs = torch.ones(2, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    model(inputs).sum().backward()
    trainer.step()
    held = [held_by(trainer)]
    with log_wire() as log:
        model(inputs).sum().backward()
        held.append(held_by(trainer))
        trainer.step()
    return [*held, held_by(trainer)], [(call.what, call.bytes) for call in log.calls]


@pytest.mark.parametrize(("ranks", "stages"), [(2, (0, 2)), (3, (1, 3))])
def test_zero(ranks: int, stages: tuple[int, ...]) -> None:
    """A call of torch is all messages of one moment; told and recorded bytes are those sent."""
    for rank, found in enumerate(on_ranks(ranks, *((zero_step, stage) for stage in stages))):
        for stage, (_, (held, calls)) in zip(stages, found, strict=True):
            told = zero_steps(WIDTH * WIDTH, LAYERS, ranks, stage)
            update = min(event.at for event in told if event.what == "update")
            back = max(e.at for e in told if e.at < update and (stage > 1 or e.what == "backward"))
            moments = [told.held(at)[rank].values() for at in (0, back, END)]
            assert held == [sum(part.bytes for part in parts) for parts in moments], stage
            sums: dict[tuple[int, str], int] = {}
            for event in told:
                if event.who == rank and event.to is not None:
                    moment = int(event.at), event.label
                    sums[moment] = sums.get(moment, 0) + event.bytes
            sent = [(what, sent_bytes(what, size, ranks)) for what, size in calls]
            assert sent == [(what, size) for (_, what), size in sums.items()], stage


SIZES = [40, 8, 8, 24, 8, 16, 8]  # of a chain of layers


def chain() -> nn.Module:
    pairs = pairwise(SIZES)
    return nn.Sequential(*(nn.Linear(a, b, bias=False) for a, b in pairs))


def ddp() -> None:
    model = mine.DDP(chain(), cap_bytes=1000, first_bytes=1000)
    model(torch.ones(2, SIZES[0])).sum().backward()


def test_buckets() -> None:
    sizes = [(name, weights.nbytes) for name, weights in chain().named_parameters()]
    backward = [Gradient(name, size, 1.0) for name, size in reversed(sizes)]
    told = bucket_steps(ddp_timeline(backward, 2, FAST, cap_bytes=1000, first_bytes=1000))
    for ((sent, _),) in on_ranks(2, (ddp,)):
        assert tuple(one for one in sent if one[0] == "all-reduce") == told.messages(0)


def cut_pair(kind: str, by_tokens: bool) -> dict[str, tuple[int, int]]:
    """What a rank really makes, forward and backward: shapes by place."""
    region = SequenceParallel() if by_tokens else TensorParallel()
    block = cut_block(Block(16, 4), region)
    pair = block.mlp if kind == MLP else block.attention
    first, second = (block.mlp[0], block.mlp[2]) if kind == MLP else (pair.qkv, pair.out)
    shapes: dict[str, tuple[int, int]] = {}

    def rows(tensor: torch.Tensor) -> tuple[int, int]:
        return tensor.shape[0] * tensor.shape[1], tensor.shape[2]

    def note(name: str, tensor: torch.Tensor) -> None:
        shapes[name] = rows(tensor)
        tensor.register_hook(lambda gradient: shapes.update({f"d{name}": rows(gradient)}))

    first.register_forward_hook(lambda _, inputs, output: note("XA", output))
    second.register_forward_pre_hook(lambda _, inputs: note("Y", inputs[0]))
    x = torch.randn(2, len(region.own_tokens(torch.arange(8))), 16, requires_grad=True)
    z = pair(x)
    z.sum().backward()
    return shapes | {"X": rows(x), "Z": rows(z), "dX": rows(x.grad)}


@pytest.mark.parametrize("ranks", [2, 4])
def test_cut_pairs(ranks: int) -> None:
    pairs = list(product((MLP, ATTENTION), (False, True)))
    for rank, found in enumerate(on_ranks(ranks, *((cut_pair, *pair) for pair in pairs))):
        for (kind, by_tokens), (sent, shapes) in zip(pairs, found, strict=True):
            told = pair_steps(kind, 16, 16, ranks, element_bytes=4, sequence_parallel=by_tokens)
            made = {e.part.name: e.part[1:] for e in told if e.what == TAKE and e.who == 0}
            assert sent == told.messages(rank), (kind, by_tokens)
            assert shapes == {name: made[name] for name in shapes}, (kind, by_tokens)


# What a unit's method does, and whether it does anything.
DOING = {
    "start_gather": ("gather", lambda unit: not unit.whole.untyped_storage().nbytes()),
    "gather": ("wait", lambda unit: unit.gathering or not unit.whole.untyped_storage().nbytes()),
    "free": ("free", lambda unit: unit.whole.untyped_storage().nbytes()),
    "start_reduction": ("reduce", lambda unit: True),
    "finish_reduction": ("done", lambda unit: unit.reduction),
}


class Told(FSDP):
    """FSDP with any depth of prefetch, that writes down what it really does."""

    depth, calls = 1, []

    def before_forward(self, number: int) -> None:
        super().before_forward(number)
        for ahead in range(2, self.depth + 1):
            self.fetch(number + ahead)
        self.calls.append(("forward", number))

    def before_backward(self, number: int) -> None:
        super().before_backward(number)
        for ahead in range(2, self.depth + 1):
            self.fetch(number - ahead)
        self.calls.append(("backward", number))


def tell(unit: FSDPUnit, number: int, method: str, calls: list[tuple[str, int]]) -> None:
    """Let a unit's method write down that it has done something."""
    what, does = DOING[method]
    call = getattr(unit, method)

    def told() -> None:
        new = does(unit)
        call()
        calls.extend([(what, number)] * bool(new))

    setattr(unit, method, told)


def fsdp(depth: int, reshard: bool) -> tuple[list[tuple[str, int]], list[int]]:
    """What is called in a step, and the bytes of each unit."""
    training = Training("4x16x2", batch=4, sequence=8)
    model = training.build()
    fsdp = Told(model, model.blocks, reshard=reshard, prefetch=depth > 0)
    fsdp.depth, fsdp.calls = depth, []
    for number, unit in enumerate(fsdp.units):
        for method in DOING:
            tell(unit, number, method, fsdp.calls)
    rank = dist.get_rank()
    rows = [part.chunk(2)[rank] for part in training.batches()[0]]
    mean_loss(model, rows).backward()
    return fsdp.calls, [unit.whole.nbytes for unit in fsdp.units]


def test_units() -> None:
    """FSDP calls, in its order, what is told, and sends the bytes of its units."""
    settings = [(depth, reshard) for depth in (0, 1, 2) for reshard in (True, False)]
    for found in on_ranks(2, *((fsdp, *setting) for setting in settings)):
        for (depth, reshard), (sent, (called, sizes)) in zip(settings, found, strict=True):
            calls = fsdp_calls(4, prefetch=depth, reshard=reshard)
            assert called == list(calls)
            units = [UnitCosts(0, 0, 0, 0, size, size) for size in sizes]
            told = Trace(event for its in changes(units, calls) for event in its)
            assert sent == told.messages(0)


def pipeline(plan: Schedule) -> list[tuple[str, int, list[tuple[int, int]]]]:
    """Each pass of this stage, and what it holds while that runs."""
    rank, ranks, layers, seen = dist.get_rank(), plan.stages, plan.stages * plan.visits, []
    parts = cut(GPT(layers, 16, 2, 11, 8), [1] * layers, rank, ranks, plan.way)
    pipeline = Pipeline(parts, plan.orders, wires([range(ranks)]), way=plan.way)
    compute = pipeline.compute

    def noted(work, arrived):
        here = {*pipeline.held, (work.micro_batch, work.chunk)}
        seen.append((DOES[work.kind], work.micro_batch, sorted(here)))
        return compute(work, arrived)

    pipeline.compute = noted
    pipeline.run([(torch.zeros(1, 8, dtype=torch.long),) * 2] * plan.micro_batches)
    return seen


def test_pipelines() -> None:
    """Every stage runs, holds and sends what is told; a message has the bytes of a micro-batch."""
    plans = [schedule(name, 4, 7) for name in ("naive", "gpipe", "1f1b", "zb1p", "zbv")]
    plans += [schedule("interleaved", 4, 4, 2), apart(schedule("dualpipe", 4, 8))]
    for stage, found in enumerate(on_ranks(4, *((pipeline, plan) for plan in plans))):
        for plan, (sent, seen) in zip(plans, found, strict=True):
            told = pipeline_trace(simulate(plan, PassTimes()))
            assert seen == [
                (event.what, event.part[0], sorted(told.held(event.at)[stage]))
                for event in told
                if event.who == stage and event.what in DOES.values()
            ], (plan.name, stage)
            letters = [(SEND, to, 8 * 16 * 4) for _, to, _ in told.messages(stage)]
            sends = [one for one in sent if one[0] == SEND]
            assert sends[: len(letters)] == letters, (plan.name, stage)
            # Two copies of the model add up their gradients afterwards.
            assert (len(sends) > len(letters)) == (plan.way == "both ways")
