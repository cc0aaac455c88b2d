"""Build 11.11: the passes of a pipeline stage, in the order of any schedule."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from course_lib.checking.build import build
from course_lib.checking.builds.compare import Case, Place, compare
from course_lib.checking.builds.lazily import dist, later, nn, torch
from course_lib.checking.builds.rows import Must, Never, Rows, Sends
from course_lib.checking.races import Race
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.network.step_traffic import step_traffic
from course_lib.theory.pipelines.schedules import Pass, Schedule, schedule

_accumulation, _gpt, _stage = (
    later(f"course_lib.scratch.{name}") for name in ("accumulation", "gpt", "pipeline_stage")
)
_held, _wire = (later(f"course_lib.measure.{name}") for name in ("gradients", "wire"))

_HIDDEN, _HEADS, _VOCAB, _SEQUENCE = 16, 2, 11, 8
_TABLES = ("embedding.weight", "head.weight")
_FP32 = Recipe(parameters="fp32", gradients="fp32", master_copy=False)
_INITIAL = 2**-6  # each number of a gradient before an update; 0 in the tables' gradients


@dataclass(frozen=True)
class _Case(Case):
    """An order of passes and a number of samples; `factor` scales the default loss.

    `again`: the update is the second one of this Pipeline and starts without gradients. In groups,
    two of three ranks are a pipeline.
    """

    plan: Schedule
    samples: int
    factor: float = 1.0
    again: bool = False

    def words(self, _line: Sequence[int]) -> str:
        return ""

    def who(self, rank: int, line: Sequence[int]) -> str:
        by = f"{self.plan.micro_batches} micro-batches by {self.plan.name}"
        return f"stage {line.index(rank)} of {self.plan.stages}, {by}"

    @property
    def layers(self) -> list[int]:
        """Layers of each piece: two in the first one, one in each other."""
        return [2, *[1] * (self.plan.stages * self.plan.chunks - 1)]

    def model(self) -> Any:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return _gpt.GPT(sum(self.layers), _HIDDEN, _HEADS, _VOCAB, _SEQUENCE)

    def window(self, more: int = 0) -> list[Any]:
        """The micro-batches, in which each sample has a different number of tokens with a label."""
        size = (self.samples + more, _SEQUENCE + 1)
        text = torch.randint(_VOCAB, size, generator=torch.Generator().manual_seed(1))
        inputs, labels = text[:, :-1], text[:, 1:].clone()
        for number, row in enumerate(labels):
            row[_SEQUENCE - number :] = _accumulation.IGNORE
        pieces = (part.tensor_split(self.plan.micro_batches) for part in (inputs, labels))
        return list(zip(*pieces, strict=True))

    def sent(self, stage: int) -> dict[str, tuple[int, int]]:
        """Predicted traffic of a stage: {operation: (calls, bytes)}."""
        sizes = (sum(self.layers), _HIDDEN, _HEADS, 4 * _HIDDEN)
        shape = TransformerShape(*sizes, vocab=_VOCAB, context=_SEQUENCE)
        job = Job(shape, _FP32, self.layout, sequence=_SEQUENCE)
        sent: dict[str, tuple[int, int]] = {}
        for entry in step_traffic(job, stage).collectives:
            calls, size = sent.get(entry.operation, (0, 0))
            size += round(entry.count * entry.size_bytes)
            sent[entry.operation] = (calls + entry.count, size)
        return sent

    @property
    def layout(self) -> Layout:
        options: Any = {"schedule": self.plan.name, "virtual_stages": self.plan.chunks}
        return Layout(pp=2, accumulation=self.samples, **options)


def _forward_passes(plan: Schedule) -> Schedule:
    orders = tuple(tuple(work for work in order if work.kind == "F") for order in plan.orders)
    return Schedule(f"{plan.name}'s forward passes", plan.micro_batches, orders)


def _run_update(parts: Any, case: _Case, _: Any) -> Any:
    """Run one update: loss, gradients, calls of `compute`, peak of passes held, traffic."""
    group = _stage.wires(case.lines())
    if dist.get_world_size(group.up) == 1:
        return None
    plan, stage = case.plan, dist.get_rank(group.up)
    pieces = _stage.cut(case.model(), case.layers, stage, plan.stages)
    named = {name: p for piece in pieces for name, p in piece.named_parameters()}
    loss_sum = _accumulation.loss_sum
    own_loss = [lambda x, wanted: case.factor * loss_sum(x, wanted)] if case.factor != 1 else []
    pipeline = parts.Pipeline(pieces, plan.orders, group, *own_loss)
    for name, parameter in named.items():
        initial = 0 if name in _TABLES else _INITIAL
        parameter.grad = None if case.again else torch.full_like(parameter, initial)
    if case.again:
        pipeline.run(case.window(1))
        for parameter in named.values():
            parameter.grad = None
    pipeline.compute = watched = _CheckedCompute(pipeline.compute, plan, stage)
    with _wire.log_wire() as wire, _held.count_held(pieces) as held, _all_received():
        try:
            loss = pipeline.run(case.window())
        except AssertionError:
            if case.again or any(p.grad is not None for p in named.values()):
                raise
            raise ValueError("`run` throws away the gradients that were there before") from None
    return loss, {name: p.grad for name, p in named.items()}, watched.done, held.most, wire


@contextmanager
def _all_received() -> Iterator[None]:
    """Raise ValueError if a message is still in flight at the end."""
    mails, begin = list[Any](), _stage.Mail.__init__

    def noted(mail: Any, *args: Any, **named: Any) -> None:
        mails.append(mail)
        begin(mail, *args, **named)

    with patch.object(_stage.Mail, "__init__", noted):
        yield
    if any(mail.sent for mail in mails):
        raise ValueError("`run` returns while what it has sent is still under way")


class _CheckedCompute:
    """Replaces `compute`: counts the passes, and raises where the pipeline would hang."""

    def __init__(self, compute: Any, plan: Schedule, rank: int) -> None:
        self.compute, self.order = compute, plan.orders[rank]
        self.rank, self.plan, self.done = rank, plan, 0

    def __call__(self, work: Pass, arrived: Any) -> Any:
        wanted = [*self.order, None][self.done]
        if work != wanted:
            order = f"has {_pass_name(wanted)}" if wanted else "is over"
            raise ValueError(f"pass {self.done + 1} is {_pass_name(work)}, and its order {order}")
        self.done += 1
        result = self.compute(work, arrived)
        to = work.chunk * self.plan.stages + self.rank + (1 if work.kind == "F" else -1)
        if 0 <= to < self.plan.stages * self.plan.chunks:
            if result is None:
                waits = f"stage {to % self.plan.stages} waits for what it makes"
                raise ValueError(f"{_pass_name(work)} gives None, and {waits}")
            if result.requires_grad:
                raise ValueError(f"what {_pass_name(work)} gives still carries autograd's graph")
        return result


def _pass_name(work: Pass) -> str:
    return f"{work.kind}{work.micro_batch}" + (f" of chunk {work.chunk}" if work.chunk else "")


def _expect_loss(outcome: Any, place: Place) -> Rows:
    if outcome is None:  # a group of one rank
        return
    case, stage = place.case, place.rank
    loss, _, done, *_ = outcome
    wanted = len(case.plan.orders[stage])
    yield Never(done != wanted, f"`run` makes {done} of {wanted} passes by `self.compute`")
    if stage < case.plan.stages - 1:
        yield Must("the loss, which only the last stage knows,", loss, torch.zeros(()))
        return
    model, window = case.model(), case.window()
    with torch.no_grad():
        losses = [_accumulation.loss_sum(model(inputs), labels) for inputs, labels in window]
    sums, tokens = case.factor * torch.stack(losses), _accumulation.count_tokens(window)
    means = sums / torch.stack([_accumulation.count_tokens([one]) for one in window])
    others = {
        "the mean of the micro-batches' own means": means.mean(),
        "the sum of the micro-batches' own means": means.sum(),
        "that of the last micro-batch alone": sums[-1] / tokens,
    }
    factors = {
        1 / case.factor: "of another loss than `self.loss_sum` computes",
        float(tokens): "the sum over the tokens, not divided by their number",
    }
    yield Must("the loss", loss, sums.sum() / tokens, others, factors)
    graph = "the loss still carries autograd's graph, and so that of every micro-batch"
    yield Never(loss.requires_grad, graph)


def _expect_gradients(outcome: Any, place: Place) -> Rows:
    yield from _expect_loss(outcome, place)
    if outcome is None:
        return
    case, (_, gradients, *_) = place.case, outcome
    initial, right = 0 if case.again else _INITIAL, _one_process(case)
    table, count = right[_TABLES[0]] + right[_TABLES[1]], case.plan.micro_batches
    factors = {
        1 / count: "the mean over micro-batches, where the sum is wanted",
        2.0: "added twice",
    }
    for name, gradient in gradients.items():
        what, own = f"the gradient of {name}", right[name]
        added = f"{what} is None: gradients are added to those that are there"
        yield Never(gradient is None, added)
        if name in _TABLES:
            others = {"that of this stage's own use of the tied table": own}
            yield Must(what, gradient, table, others, factors)
            continue
        others = {"without what was there before": own - initial}
        close = 1e-4  # looser, as the initial gradient is subtracted in float32
        yield Must(what, gradient - initial, own, others, factors, close)


def _one_process(case: _Case) -> dict[str, Any]:
    """Gradients by name in one process; the tied table's two uses, "embedding" and "head", apart.

    With the table untied, each of them gets the gradient of its own use only.
    """
    model = case.model()
    model.head.weight = nn.Parameter(model.embedding.weight.detach().clone())
    _accumulation.accumulate(model, case.window())
    every = model.named_parameters()
    return {name: case.factor * p.grad for name, p in every if p.grad is not None}


def _expect_released(outcome: Any, place: Place) -> Rows:
    yield from _expect_gradients(outcome, place)
    if outcome is None:
        return
    case, (*_, held, wire) = place.case, outcome
    needed = round(sum(case.layout.in_flight(place.rank).values()))
    kept = f"{held} forward passes are held at the peak, more than wait for their backward pass"
    yield Never(held > needed, f"{kept}: what has had it must be let go")
    why = "each pass sends one message, at the ends of the model none"
    yield Sends(wire, case.sent(place.rank), why)


_STAGES, _COUNT = 2, 8  # stages and micro-batches of the race


def _race_part() -> Any:
    """A stage of 4 layers, and 8 micro-batches of 2 samples."""
    torch.manual_seed(0)
    text = torch.randint(64, (2 * _COUNT, 65))
    window = list(zip(text[:, :-1].chunk(_COUNT), text[:, 1:].chunk(_COUNT), strict=True))
    (piece,) = _stage.cut(_gpt.GPT(4, 64, 4, 64, 64), [2, 2], dist.get_rank(), _STAGES)
    return piece, window


def _pipeline(parts: SimpleNamespace) -> Callable[[], object]:
    piece, window = _race_part()
    orders = schedule("1f1b", _STAGES, _COUNT).orders
    pipeline = parts.Pipeline([piece], orders, _stage.wires([range(_STAGES)]))
    return lambda: pipeline.run(window)


def _torchs_pipeline() -> Callable[[], object]:
    piece, window = _race_part()
    inputs, labels = (torch.cat(parts) for parts in zip(*window, strict=True))
    pipelining = later("torch.distributed.pipelining")
    stage = pipelining.PipelineStage(piece, dist.get_rank(), _STAGES, torch.device("cpu"))
    loss = nn.functional.cross_entropy
    steps = pipelining.Schedule1F1B(
        stage, _COUNT, loss_fn=lambda y, wanted: loss(y.flatten(0, 1), wanted.flatten())
    )
    return lambda: steps.step(inputs) if piece.first else steps.step(target=labels)


PIPELINE = build(
    "pipeline",
    steps=(
        compare(
            "the forward passes",
            ("Pipeline.run", "Pipeline.forward"),
            _run_update,
            _expect_loss,
            [_Case(_forward_passes(schedule("gpipe", 2, 3)), 7)],
        ),
        compare(
            "the backward passes",
            ("Pipeline.backward",),
            _run_update,
            _expect_gradients,
            [_Case(schedule("gpipe", 3, 3), 7, ranks=3)],
        ),
        compare(
            "1F1B and chunks",
            ("Pipeline.backward",),
            _run_update,
            _expect_released,
            [
                _Case(schedule("1f1b", 2, 5), 5, 3.0, again=True, ranks=3, in_group=True),
                _Case(schedule("interleaved", 2, 4, 2), 4, 0.5, ranks=3, in_group=True),
            ],
        ),
    ),
    race=Race("one update of 1F1B, 8 micro-batches", _pipeline, _torchs_pipeline),
)
