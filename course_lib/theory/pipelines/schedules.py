"""Pipeline schedules: the order in which each stage runs its passes, without times."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Annotated, NamedTuple

from course_lib.checked import Count, CountOrZero, check_public
from course_lib.theory.inputs.schedule_rules import MOST_STAGES, check_schedule
from course_lib.validation import listed, whole

# The kinds of pass, with the letters of torch.distributed.pipelining: B is the whole backward
# pass; I is its part for the input and W its part for the weights; F&B is a forward pass of one
# micro-batch that runs together with a backward pass of another.
FORWARD, BACKWARD, INPUT, WEIGHT, OVERLAPPED = "F", "B", "I", "W", "F&B"
MOST_PASSES = 130_000  # over all stages; simulated in about a second


class Pass(NamedTuple):
    """One pass of a micro-batch through a chunk of the model; `chunk` numbers those of the stage.

    For kind "F&B", `micro_batch` and `chunk` describe the forward pass, `backward` the other one.
    """

    kind: str
    micro_batch: int
    chunk: int = 0
    backward: "Pass | None" = None

    @property
    def parts(self) -> "tuple[Pass, ...]":
        """The pass itself, or both halves of an "F&B"."""
        if self.backward is None:
            return (self,)
        return Pass(FORWARD, self.micro_batch, self.chunk), self.backward


@dataclass(frozen=True)
class Schedule:
    """The order of passes on each stage.

    Each stage holds `chunks` chunks of the model. Under `way` "rounds" a micro-batch visits chunk 0
    of all stages, then chunk 1, and so on, always from the first stage to the last. Under "v" it
    visits chunk 1 from the last stage back to the first. Under "both ways" half of the
    micro-batches visit chunk 0 in this direction, the other half chunk 1 in the opposite one.
    """

    name: str
    micro_batches: int
    orders: tuple[tuple[Pass, ...], ...]
    chunks: int = 1
    way: str = "rounds"

    @property
    def stages(self) -> int:
        """Number of pipeline stages."""
        return len(self.orders)

    @property
    def visits(self) -> int:
        """Number of chunks per stage that one micro-batch visits."""
        return 1 if self.way == "both ways" else self.chunks

    @property
    def length(self) -> int:
        """Number of pieces (chunks of all stages) that one micro-batch visits."""
        return self.stages * self.visits

    @cached_property
    def homes(self) -> tuple[int, ...]:
        """The stage of each piece in visiting order: chunk 0 of all stages, chunk 1, …"""
        down = tuple(range(self.stages))
        later = down if self.way == "rounds" else down[::-1]
        return down + later * (self.chunks - 1)

    @cached_property
    def pieces(self) -> tuple[tuple[int, ...], ...]:
        """The inverse of `homes`: pieces[stage][chunk] is the index of the piece."""
        by_stage: list[list[int]] = [[] for _ in range(self.stages)]
        for piece, stage in enumerate(self.homes):
            by_stage[stage].append(piece)
        return tuple(map(tuple, by_stage))


def apart(plan: Schedule) -> Schedule:
    """A copy of `plan` with each "F&B" split into two passes, forward first."""
    orders = (tuple(part for work in order for part in work.parts) for order in plan.orders)
    return replace(plan, orders=tuple(orders))


def schedule(
    name: str,
    stages: Annotated[int, partial(whole, most=MOST_STAGES)],
    micro_batches: int,
    virtual_stages: int = 1,
    *,
    group: int | None = None,
) -> Schedule:
    """Build the schedule `name`, one of SCHEDULES: the order of passes on every stage.

    `virtual_stages` is the number of chunks per stage of "interleaved" (others: 1), `group` the
    number of micro-batches that it runs through a chunk before the next chunk; without it, the
    stages must divide the micro-batches. "zbv" needs at least 2 · stages - 1 micro-batches;
    "dualpipe" an even number of stages and an even number of micro-batches, at least twice the
    stages. Raises ValueError otherwise.
    """
    check_schedule(name, stages, micro_batches, virtual_stages, group=group)
    each = {"zb1p": 3, "zbv": 2 * 3}.get(name, 2)  # forward, and backward in one or in two parts
    passes = each * stages * micro_batches * virtual_stages
    listed("passes", passes, "take fewer stages or micro-batches", most=MOST_PASSES)
    sizes = (stages, micro_batches)
    orders = tuple(
        stage_order(name, stage, *sizes, virtual_stages=virtual_stages, group=group)
        for stage in range(stages)
    )
    way = {"dualpipe": "both ways", "zbv": "v"}.get(name, "rounds")
    chunks = virtual_stages if way == "rounds" else 2
    return Schedule(name, micro_batches, orders, chunks, way)


def stage_order(
    name: str,
    stage: int,
    stages: int,
    micro_batches: int,
    *,
    virtual_stages: int = 1,
    group: int | None = None,
) -> tuple[Pass, ...]:
    """The order of passes on one stage of schedule `name`, computed without the other stages."""
    check_schedule(name, stages, micro_batches, virtual_stages, group=group)
    _check_order(stage, stages, micro_batches * virtual_stages)
    if name == "interleaved":
        return _interleaved_order(stage, stages, micro_batches, virtual_stages, group=group)
    return _ORDERS[name](stage, stages, micro_batches)


def _check_order(stage: int, stages: int, passes: int) -> None:
    """Raise ValueError unless the stage exists and its order is short enough to build."""
    whole("stage", stage, least=0, most=stages - 1)
    listed("passes", 2 * passes, "take fewer micro-batches", most=MOST_PASSES)


def _naive_order(stage: int, stages: int, micro_batches: int) -> tuple[Pass, ...]:
    """Forward and backward of one micro-batch, then the next: one stage is active at a time."""
    return tuple(Pass(kind, i) for i in range(micro_batches) for kind in (FORWARD, BACKWARD))


def _gpipe_order(stage: int, stages: int, micro_batches: int) -> tuple[Pass, ...]:
    """All forward passes, then all backward passes in reverse order.

    Source: Huang et al. 2018, arXiv:1811.06965, figure 2.
    """
    forward = [Pass(FORWARD, i) for i in range(micro_batches)]
    return (*forward, *(Pass(BACKWARD, i) for i in reversed(range(micro_batches))))


def one_f_one_b_order(stage: int, stages: Count, micro_batches: Count) -> tuple[Pass, ...]:
    """Warm up with stages - stage - 1 forward passes, then one forward and one backward in turn.

    Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2.1.
    """
    _check_order(stage, stages, micro_batches)
    forward = [Pass(FORWARD, i) for i in range(micro_batches)]
    backward = [Pass(BACKWARD, i) for i in range(micro_batches)]
    return _one_in_turn(forward, backward, stages - stage - 1)


def _interleaved_order(
    stage: int, stages: int, micro_batches: int, virtual_stages: int, *, group: int | None = None
) -> tuple[Pass, ...]:
    """1F1B on chunks: N micro-batches through chunk 0, then through chunk 1, and so on.

    N = `group`, by default `stages`. Warm-up: 2 (stages - stage - 1) + (virtual_stages - 1) N chunk
    passes. Sources: Narayanan et al. 2021, arXiv:2104.04473, section 2.2.2, Megatron-LM's
    schedules.py; Llama 3, arXiv:2407.21783, section 3.3.2, for arbitrary N.
    """
    size = group or stages
    forward, backward = [], []
    for first in range(0, micro_batches, size):
        for chunk in range(virtual_stages):
            for i in range(first, min(first + size, micro_batches)):
                forward.append(Pass(FORWARD, i, chunk))
                backward.append(Pass(BACKWARD, i, virtual_stages - 1 - chunk))
    # With one chunk this is 1F1B, whose warm-up in Megatron has one pass per later stage, not two.
    hops = (stages - stage - 1) * (1 if virtual_stages == 1 else 2)
    return _one_in_turn(forward, backward, hops + (virtual_stages - 1) * size)


def _zb1p_order(stage: int, stages: int, micro_batches: int) -> tuple[Pass, ...]:
    """1F1B with split backward: input gradients at once, weight gradients `stage` passes later.

    Delayed weight gradients fill the idle time at the end; each stage holds at most `stages`
    micro-batches. Source: ZB-H1 in Qi et al. 2023, arXiv:2401.10241, section 2.1.
    """
    return split_backward(one_f_one_b_order(stage, stages, micro_batches), late=stage)


def split_backward(order: Sequence[Pass], late: CountOrZero) -> tuple[Pass, ...]:
    """`order` with each B split into I, run at once, and W, delayed until `late` more I are done.

    1F1B with `late` = stage is ZB-H1; with twice the warm-up and `late` = 2 · stage it is ZB-H2.
    Source: Qi et al. 2023, arXiv:2401.10241, section 2.
    """
    passes: list[Pass] = []
    waiting: list[Pass] = []
    for work in order:
        if work.kind != BACKWARD:
            passes.append(work)
            continue
        passes.append(work._replace(kind=INPUT))
        waiting.append(work._replace(kind=WEIGHT))
        if len(waiting) > late:
            passes.append(waiting.pop(0))
    return (*passes, *waiting)


def _zbv_order(stage: int, stages: int, micro_batches: int) -> tuple[Pass, ...]:
    """ZB-V: chunk 0 on the way down the stages, chunk 1 on the way back up.

    Warm up until the first micro-batches return, then alternate one pass of each kind; at the end
    input gradients go first, and weight gradients fill the gaps. Source: Qi et al.
    2023, arXiv:2401.10241, section 6; Qi et al. 2024, arXiv:2405.15362, for the V.
    """
    behind = stages - stage  # stages from this one, included, to the turn of the V
    down, up = [(FORWARD, 0)], [(FORWARD, 1)]
    back = [[(INPUT, chunk), (WEIGHT, chunk)] for chunk in (0, 1)]
    steps = down * (2 * behind - 1) + (up + down) * stage + (up + back[1]) * behind
    steps += (down + back[0] + up + back[1]) * (micro_batches - stages - behind + 1)
    steps += (back[0] + up + back[1]) * (behind - 1)
    steps += [(INPUT, 0), (INPUT, 1)] * stage + back[0] * behind
    steps += [(WEIGHT, 1)] * stage + [(WEIGHT, 0)] * stage
    done: Counter[tuple[str, int]] = Counter()
    order = []
    for kind, chunk in steps:
        order.append(Pass(kind, done[kind, chunk], chunk))
        done[kind, chunk] += 1
    return tuple(order)


def _dualpipe_order(stage: int, stages: int, micro_batches: int) -> tuple[Pass, ...]:
    """DualPipe's eight steps: two pipelines in opposite directions over the same stages.

    The "near" direction is the one whose first stage is closer. Forward passes of one direction
    overlap with backward passes of the other. Source: DeepSeek-V3, arXiv:2412.19437, section
    3.2.1 and figure 5; github.com/deepseek-ai/DualPipe, dualpipe.py.
    """
    depth = min(stage, stages - 1 - stage)  # 0 at both ends, stages / 2 - 1 in the middle
    outside = stages // 2 - 1 - depth
    run = _TwoWays(micro_batches // 2, near=int(stage >= stages // 2))
    for _ in range(2 * outside):
        run.forward(0)
    for _ in range(depth + 1):
        run.forward(0)
        run.forward(1)
    for _ in range(outside):
        run.input_gradient(1)
        run.weight_gradient()
        run.forward(1)
    for turn in range(micro_batches // 2 - stages + depth + 1):
        # The two middle stages do not overlap their first pair, which makes the bubble smaller.
        run.pair(0, overlap=turn > 0 or outside > 0)
        run.pair(1)
    for _ in range(outside):
        run.whole_backward(1)
        run.pair(1)
    # The last three steps: backward passes, of which the second half are split.
    for turn in range(2 * (depth + 1)):
        way = 1 - turn % 2
        if turn > depth:
            run.input_gradient(way)
        else:
            run.whole_backward(way)
    for _ in range(outside):
        run.weight_gradient()
        run.input_gradient(0)
    for _ in range(depth + 1):
        run.weight_gradient()
    return tuple(run.order)


class _TwoWays:
    """Builds the order of one DualPipe stage; `way` 0 is the near direction, 1 the far one."""

    def __init__(self, half: int, near: int) -> None:
        self.order: list[Pass] = []
        self._half, self._near = half, near
        self._started, self._returned = [0, 0], [0, 0]
        self._waiting: list[Pass] = []

    def _next(self, kind: str, way: int, counts: list[int]) -> Pass:
        chunk, number = way ^ self._near, counts[way]
        counts[way] += 1
        return Pass(kind, chunk * self._half + number, chunk)

    def forward(self, way: int) -> None:
        self.order.append(self._next(FORWARD, way, self._started))

    def whole_backward(self, way: int) -> None:
        self.order.append(self._next(BACKWARD, way, self._returned))

    def input_gradient(self, way: int) -> None:
        work = self._next(INPUT, way, self._returned)
        self.order.append(work)
        self._waiting.append(work._replace(kind=WEIGHT))

    def weight_gradient(self) -> None:
        self.order.append(self._waiting.pop(0))

    def pair(self, way: int, overlap: bool = True) -> None:
        """A forward pass of `way` and a backward pass of the other direction."""
        forward = self._next(FORWARD, way, self._started)
        backward = self._next(BACKWARD, 1 - way, self._returned)
        joined = [forward._replace(kind=OVERLAPPED, backward=backward)]
        self.order += joined if overlap else [forward, backward]


def _one_in_turn(forward: list[Pass], backward: list[Pass], warm_up: int) -> tuple[Pass, ...]:
    """`warm_up` forward passes, then one forward and one backward in turn, then the rest."""
    warm_up = min(warm_up, len(forward))
    order = forward[:warm_up]
    for i in range(len(forward) - warm_up):
        order += [forward[warm_up + i], backward[i]]
    return (*order, *backward[len(forward) - warm_up :])


_ORDERS = {
    "naive": _naive_order,
    "gpipe": _gpipe_order,
    "1f1b": one_f_one_b_order,
    "zb1p": _zb1p_order,
    "zbv": _zbv_order,
    "dualpipe": _dualpipe_order,
}


check_public(globals())
