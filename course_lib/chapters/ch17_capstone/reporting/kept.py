"""The plan and the small run of the capstone, stored in the progress file for the report."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from course_lib import emitting
from course_lib.checking import progress
from course_lib.checking.gaps import gap_of
from course_lib.demos.shared.comparison import GRADIENT_TOLERANCE, LOSS_TOLERANCE
from course_lib.demos.shared.result import Result, loss_gaps
from course_lib.demos.three_d import BUILT
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.planner import Plan, PlannedLayout, fastest, sturdy
from course_lib.theory.planner.reasons import need, rule_broken
from course_lib.theory.step import step_time
from course_lib.trace import Total
from course_lib.validation import whole

_RESULTS = ("memory_bytes", "step_s")


@dataclass(frozen=True)
class Candidate:
    """A layout and its step time under each set of assumptions; `losses`: step / best step - 1."""

    whose: str
    settings: str
    memory_bytes: int
    steps_s: list[float]
    losses: list[float]

    @property
    def regret(self) -> float:
        """The largest loss against the best layout, over all sets of assumptions."""
        return max(self.losses)


@dataclass(frozen=True)
class KeptPlan:
    """The learner's plan for a question, with the planner's own proposals; `at` is its date.

    `refusals`: by engine, the reason why it cannot run the plan, or "".
    """

    at: str
    question: str
    assumptions: list[str]
    capacity_bytes: int
    why: str
    mine: Candidate
    others: list[Candidate]
    refusals: dict[str, str]

    @property
    def fits(self) -> bool:
        """Whether the worst stage fits into the memory of a GPU less the margin."""
        return self.mine.memory_bytes <= self.capacity_bytes

    def __str__(self) -> str:
        """The plan in a few lines of text."""
        engines = [name for name, refusal in self.refusals.items() if not refusal]
        lines = [f"{self.question}: {self.mine.settings}", f"  {self.why}"]
        for row in zip(self.assumptions, self.mine.steps_s, self.mine.losses, strict=True):
            lines.append("  {}: {:.3f} s a step, {:.1%} behind the best".format(*row))
        lines.append(f"  engines that run it: {', '.join(engines) or 'none'}")
        return "\n".join(lines)

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Self | None:
        """The plan from its record in the progress file; None if it is missing or damaged."""
        try:
            mine, *others = (Candidate(**one) for one in (record["mine"], *record["others"]))
            return cls(**{**record, "mine": mine, "others": others})
        except (KeyError, TypeError):
            return None


def keep_plan(
    plans: Mapping[str, Plan], layout: Layout | None, recompute: str = "none"
) -> KeptPlan | None:
    """Store the layout that you would train with, for the report. The last one counts.

    `plans`: one question under several sets of assumptions, by name. A `layout` of None stores
    nothing. Raises ValueError for a layout that breaks a rule of the question.
    """
    whole("plans", len(plans))
    if layout is None:
        print("  Write your layout for None, then run this again.")
        return None
    first, *_ = every = tuple(plans.values())
    if broken := rule_broken(first.question, layout):
        raise ValueError(f"this layout cannot be planned: {broken}")
    recipe = replace(first.question.recipe, recompute=recompute)
    job = first.question.job(layout, recipe)
    kept = KeptPlan(
        at=progress.now(),
        question=_question(first),
        assumptions=list(plans),
        capacity_bytes=first.capacity_bytes,
        why=first.why(layout, recompute),
        mine=_candidate("mine", every, layout, recipe),
        # The fastest under the first assumptions, and the one with the least regret.
        others=[
            _candidate(name, every, one.option.layout, one.option.recipe)
            for name, search in (("the fastest", fastest), ("the sturdiest", sturdy))
            for one in search(every, 1)
        ],
        refusals={target: _refusal(target, job) for target in emitting.TARGETS},
    )
    _keep("plan", asdict(kept))
    return kept


def _question(plan: Plan) -> str:
    asked = plan.question
    names = [name for name, shape in MODELS.items() if shape == asked.shape]
    gpus = f"{asked.cluster.world:,} {asked.cluster.accelerator.name}"
    batch = f"{asked.global_batch:,} × {asked.sequence:,} tokens in an update"
    return f"{names[0] if names else 'a model of your own'} on {gpus}, {batch}"


def _candidate(whose: str, plans: Sequence[Plan], layout: Layout, recipe: Recipe) -> Candidate:
    job = plans[0].question.job(layout, recipe)
    steps_s = [step_time.step_time(job, plan.question.assumptions).total_s for plan in plans]
    best_s = [plan.best(1)[0].step_s for plan in plans]
    return Candidate(
        whose=whose,
        settings=_settings(PlannedLayout(layout, recipe, 0, 0)),
        memory_bytes=need(plans[0].question, layout, recipe)[1].total_bytes,
        steps_s=steps_s,
        losses=[own / best - 1 for own, best in zip(steps_s, best_s, strict=True)],
    )


def _settings(option: PlannedLayout) -> str:
    """The settings of a layout that are not 1, such as "tp 2, pp 4, dp 64, zero stage 2"."""
    words = {name: value for name, value in option.as_dict().items() if name not in _RESULTS}
    shown = {name: value for name, value in words.items() if value != 1 or name == "zero_stage"}
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in shown.items())


def _refusal(target: str, job: Job) -> str:
    """The reason why an engine cannot run the step; "" if it can."""
    try:
        emitting.files(target, job, "this plan")
    except ValueError as error:
        return str(error)
    return ""


@dataclass(frozen=True)
class Row:
    """A quantity of rank 0, predicted and measured: bytes, and calls if it was sent."""

    what: str
    predicted_bytes: int
    measured_bytes: int
    predicted_calls: int | None = None
    measured_calls: int | None = None

    @property
    def equal(self) -> bool:
        """Whether measured calls and bytes equal the predicted ones."""
        return (self.predicted_bytes, self.predicted_calls) == (
            self.measured_bytes,
            self.measured_calls,
        )

    @property
    def gap(self) -> float:
        """(measured - predicted) / predicted bytes."""
        return gap_of(self.predicted_bytes, self.measured_bytes)


@dataclass(frozen=True)
class KeptRun:
    """A run of the demo three_d; `at` is its date. Gaps are relative to one process."""

    at: str
    ranks: int
    mesh: str
    model: str
    updates: int
    seconds: float
    loss_gap: float
    gradient_gap: float
    yours: list[str]
    courses: list[str]
    rows: list[Row]

    @property
    def bytes_equal(self) -> bool:
        """Whether all bytes and calls, sent and stored, are as predicted."""
        return all(row.equal for row in self.rows)

    @property
    def equal(self) -> bool:
        """Whether losses and gradients equal those of one process, up to fp32 rounding."""
        return self.loss_gap <= LOSS_TOLERANCE and self.gradient_gap <= GRADIENT_TOLERANCE

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Self | None:
        """The run from its record in the progress file; None if it is missing or damaged."""
        try:
            return cls(**{**record, "rows": [Row(**row) for row in record["rows"]]})
        except (KeyError, TypeError):
            return None


def keep_run(result: Result) -> KeptRun:
    """Store a run of the demo three_d for the report; the last one counts."""
    (version,) = result.versions
    degrees = {axis: 1 + max(at[axis] for at in result.places) for axis in ("dp", "tp", "pp")}
    predicted, stored, nothing = version.predicted_sent, version.predicted_stored, Total(0, 0)
    rows = []
    for what in sorted({*version.sent, *predicted}):
        one, other = predicted.get(what, nothing), version.sent.get(what, nothing)
        rows.append(Row(what, one.size_bytes, other.size_bytes, one.calls, other.calls))
    for what, size in version.stored.items():
        rows.append(Row(f"stored: {what}", stored.get(what, 0), size))
    kept = KeptRun(
        at=progress.now(),
        ranks=result.ranks,
        mesh=" × ".join(f"{axis} {degree}" for axis, degree in degrees.items()),
        model=result.model,
        updates=len(version.losses),
        seconds=version.seconds,
        loss_gap=max(loss_gaps(version.losses, result.losses_one_process)),
        gradient_gap=version.gradient_difference or 0.0,
        yours=result.yours,
        courses=[name for name in BUILT if name not in result.yours],
        rows=rows,
    )
    _keep("run", asdict(kept))
    return kept


def _keep(name: str, record: dict[str, Any]) -> None:
    """Replace the capstone's record `name` in the progress file by `record`."""

    def replace_all(stored: dict[str, Any]) -> None:
        stored.clear()
        stored.update(record)

    progress.update("capstone", name, replace_all)
