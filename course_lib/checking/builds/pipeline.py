"""Build 11.11: the passes of a pipeline's stage, in the order of any schedule."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from course_lib.checking.build import Step, build
from course_lib.checking.builds.compared import expect_calls, expect_tensor
from course_lib.checking.builds.outcome import Outcome
from course_lib.checking.builds.ranks import LINES, on_ranks
from course_lib.checking.exercises import Wrong
from course_lib.checking.races import Race
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.network.step_traffic import step_traffic
from course_lib.theory.pipelines.schedules import Pass, Schedule, schedule

if TYPE_CHECKING:
    from torch import Tensor

    from course_lib.scratch.accumulation import MicroBatch
    from course_lib.scratch.gpt import GPT

_HIDDEN, _HEADS, _VOCAB, _SEQUENCE = 16, 2, 11, 8
_TABLES = ("embedding.weight", "head.weight")
_FP32 = Recipe(parameters="fp32", gradients="fp32", master_copy=False)


def _layers(plan: Schedule) -> list[int]:
    """Layers of each piece: one, and one more in the first."""
    return [2, *[1] * (plan.stages * plan.chunks - 1)]


def _model(plan: Schedule) -> "GPT":
    import torch

    from course_lib.scratch.gpt import GPT

    with torch.random.fork_rng():
        torch.manual_seed(0)
        return GPT(sum(_layers(plan)), _HIDDEN, _HEADS, _VOCAB, _SEQUENCE)


def _window(plan: Schedule, samples: int) -> "list[MicroBatch]":
    """The samples in micro-batches; each sample has a different number of tokens that count."""
    import torch

    from course_lib.scratch.accumulation import IGNORE

    text = torch.randint(_VOCAB, (samples, _SEQUENCE + 1), generator=torch.manual_seed(1))
    inputs, labels = text[:, :-1], text[:, 1:].clone()
    for number, row in enumerate(labels):
        row[_SEQUENCE - number :] = IGNORE
    pieces = (part.tensor_split(plan.micro_batches) for part in (inputs, labels))
    return list(zip(*pieces, strict=True))


@dataclass(frozen=True)
class _Ran:
    """What a stage has done: tensors, number of passes by `compute`, passes held at the peak."""

    loss: Any
    gradients: "dict[str, Tensor | None]"
    passes: int
    most_held: int


_THERE = 2**-6  # the numbers in each gradient before an update; the tables' are 0


@dataclass(frozen=True)
class _Case:
    """An order of passes and a number of samples; `factor`: that of a loss that is not the default.

    `again`: the update is the second one of this Pipeline, and finds no gradients.
    """

    plan: Schedule
    samples: int
    factor: float = 1.0
    again: bool = False


def _on_rank(
    pipeline: Any, cases: Sequence[_Case], pipelines: Sequence[list[int]]
) -> list[Outcome]:
    """On a rank: one update by each schedule."""
    import torch.distributed as dist

    from course_lib.scratch.pipeline.stage import wires

    group = wires(pipelines)
    if dist.get_world_size(group.up) == 1:
        return []
    return [_updated(pipeline, case, group) for case in cases]


def _updated(pipeline: Any, case: _Case, group: Any) -> Outcome:
    import torch
    import torch.distributed as dist

    from course_lib.measure.saved_tensors import count_held
    from course_lib.measure.wire import log_wire
    from course_lib.scratch.accumulation import loss_sum
    from course_lib.scratch.pipeline.stage import cut

    plan, stage = case.plan, dist.get_rank(group.up)
    parts = cut(_model(plan), _layers(plan), stage, plan.stages)
    named = {name: p for part in parts for name, p in part.named_parameters()}
    own_loss = [lambda x, wanted: case.factor * loss_sum(x, wanted)] if case.factor != 1 else []
    ours = pipeline(parts, plan.orders, group, *own_loss)
    for name, parameter in named.items():
        there = 0 if name in _TABLES else _THERE
        parameter.grad = None if case.again else torch.full_like(parameter, there)
    if case.again:
        ours.run(_window(plan, case.samples + 1))
        for parameter in named.values():
            parameter.grad = None
    ours.compute = watched = _Watched(ours.compute, plan, stage)
    with log_wire() as wire, count_held(parts) as held, _all_arrives():
        try:
            loss = ours.run(_window(plan, case.samples))
        except AssertionError:
            if case.again or any(p.grad is not None for p in named.values()):
                raise
            raise ValueError("`run` throws away the gradients that were there before") from None
    gradients = {name: p.grad for name, p in named.items()}
    return Outcome(_Ran(loss, gradients, watched.done, held.most), wire)


@contextmanager
def _all_arrives() -> Iterator[None]:
    """Raise ValueError if a message is still under way at the end."""
    from unittest.mock import patch

    from course_lib.scratch.pipeline.mail import Mail

    mails, begin = [], Mail.__init__

    def noted(mail: Mail, *args: Any, **named: Any) -> None:
        mails.append(mail)
        begin(mail, *args, **named)

    with patch.object(Mail, "__init__", noted):
        yield
    if any(mail.sent for mail in mails):
        raise ValueError("`run` returns while what it has sent is still under way")


class _Watched:
    """Stands before `compute`: writes down the passes, and refuses what would end in a hang."""

    def __init__(self, compute: Any, plan: Schedule, rank: int) -> None:
        self.compute, self.order = compute, plan.orders[rank]
        self.rank, self.plan, self.done = rank, plan, 0

    def __call__(self, work: Pass, arrived: Any) -> Any:
        right = self.order[self.done] if self.done < len(self.order) else None
        if work != right:
            wanted = f"its order has {_word(right)}" if right else "its order is over"
            raise ValueError(f"pass {self.done + 1} is {_word(work)}, and {wanted}")
        self.done += 1
        result = self.compute(work, arrived)
        to = work.chunk * self.plan.stages + self.rank + (1 if work.kind == "F" else -1)
        if 0 <= to < self.plan.stages * self.plan.chunks:
            if result is None:
                waiting = f"stage {to % self.plan.stages}"
                raise ValueError(f"{_word(work)} gives None, and {waiting} waits for what it makes")
            if result.requires_grad:
                raise ValueError(f"what {_word(work)} gives still carries autograd's graph")
        return result


def _updates(pipeline: Any, *cases: _Case, in_lines: bool = False) -> list[list[Outcome]]:
    """For each case, what each stage has done; passes and losses are compared already.

    `in_lines`: on 3 ranks, of which two are a pipeline.
    """
    stages = cases[0].plan.stages
    ranks, lines = (3, LINES) if in_lines else (stages, [list(range(stages))])
    found = on_ranks(_on_rank, pipeline, cases, lines, ranks=ranks)
    by_case = [list(each) for each in zip(*(one.value for one in found if one.value), strict=True)]
    for case, outcomes in zip(cases, by_case, strict=True):
        for stage, outcome in enumerate(outcomes):
            done, order = outcome.value.passes, case.plan.orders[stage]
            if done != len(order):
                name = _name(case.plan, stage)
                raise Wrong(f"{name}: `run` makes {done} of {len(order)} passes by `self.compute`")
            _expect_loss(outcome.value.loss, case, stage)
    return by_case


def _name(plan: Schedule, rank: int) -> str:
    return f"stage {rank} of {plan.stages}, {plan.micro_batches} micro-batches by {plan.name}"


def _word(work: Pass) -> str:
    return f"{work.kind}{work.micro_batch}" + (f" of chunk {work.chunk}" if work.chunk else "")


def _expect_loss(loss: Any, case: _Case, rank: int) -> None:
    import torch

    from course_lib.scratch.accumulation import count_tokens

    plan = case.plan
    what = f"{_name(plan, rank)}: the loss"
    if rank < plan.stages - 1:
        expect_tensor(loss, torch.zeros(()), f"{what}, which only the last stage knows,")
        return
    window = _window(plan, case.samples)
    model, tokens = _model(plan), count_tokens(window)
    sums = case.factor * torch.stack([_loss_sum(model, one) for one in window])
    means = sums / torch.stack([count_tokens([one]) for one in window])
    expect_tensor(
        loss,
        sums.sum() / tokens,
        what,
        factors={
            1 / case.factor: "of another loss than `self.loss_sum` computes",
            float(tokens): "the sum over the tokens, not divided by their number",
        },
        others={
            "the mean of the micro-batches' own means": means.mean(),
            "the sum of the micro-batches' own means": means.sum(),
            "that of the last micro-batch alone": sums[-1] / tokens,
        },
    )
    if loss.requires_grad:
        raise Wrong(f"{what} still carries autograd's graph, and so that of every micro-batch")


def _loss_sum(model: "GPT", micro_batch: "MicroBatch") -> "Tensor":
    import torch

    from course_lib.scratch.accumulation import loss_sum

    with torch.no_grad():
        return loss_sum(model(micro_batch[0]), micro_batch[1])


def _one_process(plan: Schedule, samples: int) -> "dict[str, Tensor]":
    """Gradients by name; of the two uses of the tied table, "embedding" and "head", each its own.

    A table that is not tied gets the gradient of its own use only.
    """
    from torch import nn

    from course_lib.scratch.accumulation import accumulate

    model = _model(plan)
    model.head.weight = nn.Parameter(model.embedding.weight.detach().clone())
    accumulate(model, _window(plan, samples))
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def _expect_gradients(outcomes: Sequence[Outcome], case: _Case) -> None:
    plan, there = case.plan, 0 if case.again else _THERE
    own = {name: case.factor * g for name, g in _one_process(plan, case.samples).items()}
    table = own[_TABLES[0]] + own[_TABLES[1]]
    count = plan.micro_batches
    factors = {
        1 / count: "the mean over micro-batches, where the sum is wanted",
        2.0: "added twice",
    }
    for rank, outcome in enumerate(outcomes):
        for name, found in outcome.value.gradients.items():
            what = f"{_name(plan, rank)}: the gradient of {name}"
            if found is None:
                raise Wrong(f"{what} is None: gradients are added to those that are there")
            if name not in _TABLES:
                found = found - there
                others = {"without what was there before": own[name] - there}
                close = 1e-4  # of float32, that to which it was added taken off
                expect_tensor(
                    found, own[name], what, factors=factors, others=others, tolerance=close
                )
                continue
            others = {"that of this stage's own use of the tied table": own[name]}
            expect_tensor(found, table, what, factors=factors, others=others)


def _forward(parts: SimpleNamespace) -> None:
    plan = schedule("gpipe", 2, 3)
    orders = tuple(tuple(x for x in order if x.kind == "F") for order in plan.orders)
    _updates(parts.Pipeline, _Case(Schedule("gpipe's forward passes", 3, orders), 7))


def _backward(parts: SimpleNamespace) -> None:
    case = _Case(schedule("gpipe", 3, 3), 7)
    (outcomes,) = _updates(parts.Pipeline, case)
    _expect_gradients(outcomes, case)


def _in_turn(parts: SimpleNamespace) -> None:
    cases = (
        _Case(schedule("1f1b", 2, 5), 5, factor=3.0, again=True),
        _Case(schedule("interleaved", 2, 4, 2), 4, factor=0.5),
    )
    for case, outcomes in zip(cases, _updates(parts.Pipeline, *cases, in_lines=True), strict=True):
        _expect_gradients(outcomes, case)
        plan = case.plan
        layout = Layout(
            pp=2, accumulation=case.samples, schedule=plan.name, virtual_stages=plan.chunks
        )
        for rank, outcome in enumerate(outcomes):
            held, needed = outcome.value.most_held, round(sum(layout.in_flight(rank).values()))
            if held > needed:
                raise Wrong(
                    f"{_name(plan, rank)}: {held} forward passes are held at the peak, more than "
                    "wait for their backward pass: what has had it must be let go"
                )
            why = "each pass sends one message, at the ends of the model none"
            expect_calls(outcome.wire, _sent(plan, layout, rank), f"{_name(plan, rank)},", why)


def _sent(plan: Schedule, layout: Layout, stage: int) -> dict[str, tuple[int, int]]:
    """What the theory says that a stage sends: calls and bytes by operation."""
    sizes = (sum(_layers(plan)), _HIDDEN, _HEADS, 4 * _HIDDEN)
    shape = TransformerShape(*sizes, vocab=_VOCAB, context=_SEQUENCE)
    traffic = step_traffic(Job(shape, _FP32, layout, sequence=_SEQUENCE), stage)
    sent: dict[str, tuple[int, int]] = {}
    for entry in traffic.collectives:
        calls, size = sent.get(entry.operation, (0, 0))
        more = round(entry.count * entry.size_bytes)
        sent[entry.operation] = (calls + entry.count, size + more)
    return sent


_STAGES, _COUNT = 2, 8


def _prepared(parts: SimpleNamespace) -> Any:
    """One update of 1F1B: 8 micro-batches of 2 samples through 4 layers."""
    from course_lib.scratch.pipeline.stage import wires

    piece, window = _race_part()
    group = wires([range(_STAGES)])
    pipeline = parts.Pipeline([piece], schedule("1f1b", _STAGES, _COUNT).orders, group)
    return lambda: pipeline.run(window)


def _by_torch() -> Any:
    import torch
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    from torch.nn.functional import cross_entropy

    piece, window = _race_part()
    inputs, labels = (torch.cat(parts) for parts in zip(*window, strict=True))
    stage = PipelineStage(piece, 0 if piece.first else 1, _STAGES, torch.device("cpu"))
    steps = Schedule1F1B(
        stage, _COUNT, loss_fn=lambda y, wanted: cross_entropy(y.flatten(0, 1), wanted.flatten())
    )
    return lambda: steps.step(inputs) if piece.first else steps.step(target=labels)


def _race_part() -> Any:
    import torch
    import torch.distributed as dist

    from course_lib.scratch.gpt import GPT
    from course_lib.scratch.pipeline.stage import cut

    torch.manual_seed(0)
    text = torch.randint(64, (2 * _COUNT, 65))
    window = list(zip(text[:, :-1].chunk(_COUNT), text[:, 1:].chunk(_COUNT), strict=True))
    (piece,) = cut(GPT(4, 64, 4, 64, 64), [2, 2], dist.get_rank(), _STAGES)
    return piece, window


PIPELINE = build(
    "pipeline",
    title="a pipeline's stage",
    hints=(
        "`run` is the same for every schedule. For each pass of `self.order`: take from the mail "
        "what it needs, compute, hand the result to the mail. Then finish the mail, and sum the "
        "gradients of the tied table.",
        "Forward: what has arrived starts a new graph, so it must ask for a gradient itself. Keep "
        "input and output by (micro-batch, chunk). The output of the last part becomes the loss.",
        "The share of a micro-batch in the loss is its sum over tokens, divided by the tokens of "
        "the whole window. What leaves the stage, and what is added up, has no graph: `detach()`.",
        "Backward: pop what is kept, `y.backward(arrived)` (None starts from a loss), return "
        "`x.grad`.",
    ),
    steps=(
        Step("the forward passes", ("Pipeline.run", "Pipeline.forward"), _forward),
        Step("the backward passes", ("Pipeline.backward",), _backward),
        Step("1F1B and chunks", ("Pipeline.backward",), _in_turn),
    ),
    race=Race("one update of 1F1B, 8 micro-batches", _prepared, _by_torch),
)
