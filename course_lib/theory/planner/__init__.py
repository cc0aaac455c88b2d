"""The planner: searches all layouts of a model on a cluster for those that fit and are fastest.

`planner.space` lists the layouts, `planner.tables` fills small tables with the formulas of `memory`
and `step`, `planner.search` adds them up, and `planner.reasons` explains why one is rejected.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Annotated

from course_lib.checked import Positive, check_public
from course_lib.theory.compute.flops import training_flops
from course_lib.theory.inputs import Cluster, Layout, Recipe, TransformerShape
from course_lib.theory.inputs.units import format_bytes, format_number
from course_lib.theory.memory.peak import OVERHEAD_BYTES
from course_lib.theory.memory.states import MemoryBreakdown
from course_lib.theory.planner.reasons import (
    check_one_layer,
    excluded,
    need,
    remedies,
    rule_broken,
    too_large,
)
from course_lib.theory.planner.search import Found, search, search_again
from course_lib.theory.planner.space import MARGIN, ZERO_STAGES, Question
from course_lib.theory.step.assumptions import Assumptions
from course_lib.theory.step.step_time import StepTime, step_time
from course_lib.validation import whole

if TYPE_CHECKING:
    from numpy import bool_, float64, intp
    from numpy.typing import NDArray

MOST_SHOWN = 10_000  # options built in one call
_Shown = Annotated[int, partial(whole, most=MOST_SHOWN)]
# A layout with at most this regret is near the top: the error of predictions is as large.
NEAR_THE_TOP = 0.05
# Relative differences in time too small for any prediction count as equally fast.
EQUALLY_FAST = 0.001
COLUMNS = ("tp", "pp", "cp", "ep", "dp", "zero_stage", "micro_batch", "accumulation")


@dataclass(frozen=True)
class PlannedLayout:
    """A layout with its recipe, the bytes of its worst stage and the seconds of a step.

    `as_fast`: number of equally fast layouts with the same tp, pp and ep, which it represents.
    """

    layout: Layout
    recipe: Recipe
    memory_bytes: int
    step_s: float
    as_fast: int = field(default=0, compare=False)

    def as_dict(self) -> dict[str, int | float | str]:
        """Degrees and settings of the layout, its memory and its step time, by name."""
        degrees = {name: getattr(self.layout, name) for name in COLUMNS}
        more = {"virtual_stages": self.layout.virtual_stages, "recompute": self.recipe.recompute}
        return {**degrees, **more, "memory_bytes": self.memory_bytes, "step_s": self.step_s}

    def explain(self) -> str:
        """One line: degrees, memory and time."""
        results = ("memory_bytes", "step_s")
        settings = [f"{k}={v}" for k, v in self.as_dict().items() if k not in results]
        size = format_bytes(self.memory_bytes, digits=1)
        return f"{' '.join(settings)}: {size}, {format_number(self.step_s, 4)} s a step"


@dataclass(frozen=True)
class Judged:
    """A layout with the seconds of its step under each of several assumptions.

    `regret`: the largest of its relative excess times over the best layout, one per assumption.
    """

    option: PlannedLayout
    steps_s: tuple[float, ...]
    regret: float

    @property
    def sturdy(self) -> bool:
        """Whether the layout is near the top under all assumptions."""
        return self.regret <= NEAR_THE_TOP


@dataclass(frozen=True)
class Plan:
    """All layouts of a question. Counts are properties; lists of layouts are built on demand."""

    question: Question
    found: Found

    @property
    def layouts(self) -> int:
        """Number of layouts evaluated, each kind of recomputation counted separately."""
        return self.found.count

    @property
    def fitting(self) -> int:
        """Number of layouts whose worst stage fits into a GPU."""
        return len(self._fits)

    def best(self, count: _Shown = 10) -> tuple[PlannedLayout, ...]:
        """The `count` fastest layouts that fit; ties are sorted by memory."""
        return tuple(map(self._option, self._fits[:count].tolist()))

    def ranked(self, count: _Shown = 10) -> tuple[PlannedLayout, ...]:
        """The fastest layout for each tp × pp × ep that fits, fastest first, then all others.

        tp, pp and ep determine how the model is split. Each split is represented by its fastest
        layout, and among equally fast ones (within EQUALLY_FAST) by the one with the smallest cp.
        """
        import numpy

        first, as_fast = self._one_of_each_cut(self._fits, self._time[self._fits])
        options = [*map(self._option, first[:count].tolist(), as_fast.tolist())]
        if len(options) < count:
            others = self._fits[~numpy.isin(self._fits, first)]
            options += map(self._option, others[: count - len(options)].tolist())
        return tuple(options)

    def _one_of_each_cut(
        self, numbers: "NDArray[intp]", cost: "NDArray[float64]"
    ) -> "tuple[NDArray[intp], NDArray[intp]]":
        """One layout per tp × pp × ep, and its number of ties; `numbers` are sorted by `cost`."""
        import numpy

        seen: dict[tuple[int, ...], int] = {}
        cuts = numpy.array([seen.setdefault(row.cut, len(seen)) for row in self.found.rows])
        rows = numbers // (len(self.question.recipes) * len(ZERO_STAGES))
        families, cp = cuts[rows], self.found.tables.columns["cp"][rows]
        _, first, family = numpy.unique(families, return_index=True, return_inverse=True)
        tied = numpy.flatnonzero(cost <= cost[first][family] * (1 + EQUALLY_FAST))
        tied = tied[numpy.argsort(cp[tied], kind="stable")]
        _, chosen, sizes = numpy.unique(families[tied], return_index=True, return_counts=True)
        order = numpy.argsort(cost[tied[chosen]], kind="stable")
        return numbers[tied[chosen]][order], sizes[order] - 1

    def under(self, assumptions: Assumptions) -> "Plan":
        """The plan under other assumptions, which change the times but not the memory."""
        question = replace(self.question, assumptions=assumptions)
        return Plan(question, search_again(self.found, question))

    @cached_property
    def remedies(self) -> dict[str, int]:
        """Number of unfitting layouts that each remedy would make fit, largest first."""
        return dict(sorted(remedies(self.found, self.capacity_bytes), key=lambda it: -it[1]))

    @cached_property
    def excluded(self) -> dict[str, int]:
        """Number of meshes tp × pp × cp × dp of all GPUs that break each rule, largest first."""
        return dict(sorted(excluded(self.question).items(), key=lambda item: -item[1]))

    def pareto(self) -> tuple[PlannedLayout, ...]:
        """The Pareto front of fitting layouts in step time and memory, sorted by step time."""
        import numpy

        size = self._memory[self._fits]
        if not len(size):
            return ()
        smallest_before = numpy.minimum.accumulate(size)[:-1]
        front = numpy.concatenate([[True], size[1:] < smallest_before])
        return tuple(map(self._option, self._fits[front].tolist()))

    def rejected(self) -> Iterator[tuple[PlannedLayout, str]]:
        """Each layout that does not fit, with the reason; sorted by memory."""
        for index in self._unfit.tolist():
            option = self._option(index)
            yield option, too_large(self.question, option.layout, option.recipe) or ""

    def why(self, layout: Layout, recompute: str | None = None) -> str:
        """One sentence on a layout: the rule it breaks, what does not fit, or how fast it is.

        `recompute` None: as in the recipe.
        """
        recipe = self.question.recipe
        if recompute is not None:
            recipe = replace(recipe, recompute=recompute)
        reason = rule_broken(self.question, layout) or too_large(self.question, layout, recipe)
        if reason:
            return reason
        seconds = self._step(layout, recipe).total_s
        stage, bill = need(self.question, layout, recipe)
        faster = int((self._time[self._fits] < seconds * (1 - 1e-9)).sum())
        return (
            f"fits: stage {stage} needs {format_bytes(bill.total_bytes, digits=1)} of "
            f"{format_bytes(self.capacity_bytes, digits=1)}; {format_number(seconds, 4)} s a step, "
            f"{faster:,} of {self.fitting:,} layouts are faster"
        )

    def memory(self, option: PlannedLayout) -> MemoryBreakdown:
        """The memory breakdown of the option's worst stage."""
        return need(self.question, option.layout, option.recipe)[1]

    def step(self, option: PlannedLayout) -> StepTime:
        """The breakdown of the option's step time."""
        return self._step(option.layout, option.recipe)

    @property
    def capacity_bytes(self) -> int:
        """Memory available to a layout: that of one GPU less the margin."""
        return self.question.capacity_bytes

    def explain(self, count: int = 10) -> str:
        """A table of the best layouts, or why none fits."""
        cluster = self.question.cluster
        title = (
            f"{cluster.world:,} {cluster.accelerator.name}, global batch "
            f"{self.question.global_batch:,} × {self.question.sequence:,} tokens\n"
            f"{self.fitting:,} of {self.layouts:,} layouts fit "
            f"{format_bytes(self.capacity_bytes, digits=1)} "
            f"({format_bytes(cluster.accelerator.memory_bytes, digits=1)} less a margin of "
            f"{self.question.margin:.0%})"
        )
        if not self.fitting:
            option, reason = next(self.rejected())
            return f"{title}; closest:\n{self.table([option])}\n{reason}"
        legend = (
            "One line for each tp, pp and ep, with the least cp; as fast: its other layouts within "
            f"{EQUALLY_FAST:.1%}."
        )
        return f"{title}\n{self.table(self.ranked(count))}\n{legend}"

    def table(self, options: Sequence[PlannedLayout]) -> str:
        """A table with a header and one line for each of `options`."""
        times = [f"{one.step_s:8.3f} {self.mfu(one.step_s):6.1%}" for one in options]
        tied = [f"{one.as_fast:>10,}" * (one.as_fast > 0) for one in options]
        rows = zip(times, map(_columns, options), tied, strict=True)
        lines = [f"{time} {columns:<{len(_HEAD)}}{more}".rstrip() for time, columns, more in rows]
        return "\n".join([f"  step s    MFU {_HEAD}{'   as fast' * any(tied)}", *lines])

    def mfu(self, step_s: Positive) -> float:
        """Model FLOPs utilisation of a step that takes `step_s`."""
        question, cluster = self.question, self.question.cluster
        mask = question.assumptions.attention_mask(question.recipe)
        flops = training_flops(question.shape, question.global_batch, question.sequence, mask=mask)
        peak = cluster.world * cluster.accelerator.peak_flop_per_s
        return flops.model_flop / (step_s * peak)

    def _step(self, layout: Layout, recipe: Recipe) -> StepTime:
        return step_time(self.question.job(layout, recipe), self.question.assumptions)

    def _option(self, index: int, as_fast: int = 0) -> PlannedLayout:
        row, rest = divmod(index, len(self.question.recipes) * len(ZERO_STAGES))
        recipe, zero = divmod(rest, len(ZERO_STAGES))
        return PlannedLayout(
            self.found.rows[row].layout(ZERO_STAGES[zero]),
            self.question.recipes[recipe],
            int(self._memory[index]),
            float(self._time[index]),
            as_fast,
        )

    @cached_property
    def _memory(self) -> "NDArray[float64]":
        return self.found.memory_bytes.ravel()

    @cached_property
    def _time(self) -> "NDArray[float64]":
        return self.found.step_s.ravel()

    @cached_property
    def _fits(self) -> "NDArray[intp]":
        """Indices of the layouts that fit, sorted by time and then by memory."""
        return self._ordered(self._memory <= self.capacity_bytes, self._memory, self._time)

    @cached_property
    def _unfit(self) -> "NDArray[intp]":
        """Indices of the layouts that do not fit, sorted by memory and then by time."""
        return self._ordered(self._memory > self.capacity_bytes, self._time, self._memory)

    def _ordered(
        self, which: "NDArray[bool_]", second: "NDArray[float64]", first: "NDArray[float64]"
    ) -> "NDArray[intp]":
        import numpy

        shape = self.found.memory_bytes.shape
        differs = numpy.broadcast_to(self.found.differs[:, None, :], shape).ravel()
        numbers = numpy.flatnonzero(which & differs)
        return numbers[numpy.lexsort((second[numbers], first[numbers]))]


def sturdy(plans: Sequence[Plan], count: _Shown = 5) -> tuple[Judged, ...]:
    """The `count` splits of the model, tp × pp × ep, with the least regret over all plans.

    Each is represented by its layout with the least regret, see `Plan.ranked`. `plans` answer one
    question under different assumptions, see `Plan.under`. The memory and time of a PlannedLayout
    are those of the first plan. Raises ValueError for no plans and for different layouts.
    """
    first = _same_layouts(plans)
    worst = _worst(plans, first._fits)
    order = worst.argsort(kind="stable")
    return _judged(plans, first._one_of_each_cut(first._fits[order], worst[order])[0][:count])


def fastest(plans: Sequence[Plan], count: _Shown = 5) -> tuple[Judged, ...]:
    """The first plan's fastest splits of the model, with their times in all plans; see `sturdy`."""
    first = _same_layouts(plans)
    times = first._time[first._fits]
    return _judged(plans, first._one_of_each_cut(first._fits, times)[0][:count])


def explain_sturdy(plans: Mapping[str, Plan], count: int = 5) -> str:
    """A table of the layouts of least regret, below the common and the separate assumptions."""
    best = sturdy(tuple(plans.values()), count)
    parts = {name: each.question.assumptions.explain().split("; ") for name, each in plans.items()}
    common = [
        part for part in parts[next(iter(parts))] if all(part in own for own in parts.values())
    ]
    names = [f"assumed: {part}" for part in common]
    for name, own in parts.items():
        names.append(f"{name}: {'; '.join(part for part in own if part not in common)}")
    head = "".join(f"{name[:10]:>11}" for name in plans)
    lines = []
    for one in best:
        times = "".join(f"{seconds:9.3f} s" for seconds in one.steps_s)
        lines.append(f"{times} {one.regret:8.1%} {_columns(one.option)}")
    return "\n".join([*names, f"{head}   regret {_HEAD}", *lines])


def _same_layouts(plans: Sequence[Plan]) -> Plan:
    """The first plan. Raises ValueError unless all plans have the same layouts."""
    whole("plans", len(plans))
    first = plans[0]
    if any(other.found.rows != first.found.rows for other in plans[1:]):
        raise ValueError("plans differ in more than assumptions: ask the same question")
    return first


def _worst(plans: Sequence[Plan], numbers: "NDArray[intp]") -> "NDArray[float64]":
    """Largest ratio over all plans of each layout's time to that of the best layout."""
    import numpy

    ratios = [each._time[numbers] / each._time[each._fits[:1]] for each in plans]
    worst: NDArray[float64] = numpy.max(ratios, axis=0)
    return worst


def _judged(plans: Sequence[Plan], numbers: "NDArray[intp]") -> tuple[Judged, ...]:
    """The layouts with these indices, judged under all plans."""
    regrets = (_worst(plans, numbers) - 1).tolist()
    return tuple(
        Judged(plans[0]._option(at), tuple(float(each._time[at]) for each in plans), regret)
        for at, regret in zip(numbers.tolist(), regrets, strict=True)
    )


_WIDTHS = (4, 4, 4, 4, 5, 4, 5, 5)
_HEAD = " memory   tp   pp   cp   ep    dp zero micro accum virtual recompute"


def _columns(option: PlannedLayout) -> str:
    """The columns named in `_HEAD`, as one line."""
    numbers = option.as_dict()
    pairs = zip(COLUMNS, _WIDTHS, strict=True)
    degrees = " ".join(f"{numbers[name]:>{width}}" for name, width in pairs)
    return (
        f"{option.memory_bytes / 1e9:5.1f} GB {degrees} {option.layout.virtual_stages:>7} "
        f"{option.recipe.recompute}"
    )


def plan(
    shape: TransformerShape,
    recipe: Recipe,
    cluster: Cluster,
    global_batch: int,
    *,
    sequence: int | None = None,
    assumptions: Assumptions | None = None,
    overhead_bytes: float = OVERHEAD_BYTES,
    margin: float = MARGIN,
    only: Mapping[str, Collection[int | str]] | None = None,
) -> Plan:
    """Every layout on all GPUs of `cluster` for `global_batch` sequences, with memory and time.

    tp (with sequence parallelism) within a node, pp, cp, ep and dp with tp·pp·cp·dp = world, ZeRO
    stages, micro-batches, 1F1B and interleaved 1F1B with any number of virtual stages, and all
    kinds of recomputation unless `recipe` asks for one. Layers are spread evenly, the remainder
    over the first chunks. `sequence` None: the model's context. `margin`: fraction of each GPU's
    memory that stays free for allocations other than tensors. `only`: restricts the search, as in
    {"cp": (1,), "zero_stage": (0, 1)}. Raises ValueError for invalid counts, a global batch that
    cannot be divided over the GPUs, and a cluster too small for one layer.
    """
    sequence = shape.context if sequence is None else sequence
    asked = (shape, recipe, cluster, global_batch, sequence, assumptions or Assumptions())
    question = Question(*asked, overhead_bytes, margin, dict(only or {}))
    check_one_layer(question)
    return Plan(question, search(question))


check_public(globals())
