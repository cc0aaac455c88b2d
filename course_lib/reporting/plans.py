"""The plan that a learner chooses: kept with what the planner says about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from course_lib import emitting
from course_lib.checking import progress
from course_lib.reporting.keeping import keep
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.planner import Plan, PlannedLayout, fastest, sturdy
from course_lib.theory.planner.reasons import need, rule_broken
from course_lib.theory.step import step_time
from course_lib.validation import whole

_RESULTS = ("memory_bytes", "step_s")


@dataclass(frozen=True)
class Candidate:
    """A layout, its step under each of some assumptions, and `losses`: over the best, less 1."""

    whose: str
    settings: str
    memory_bytes: int
    steps_s: list[float]
    losses: list[float]

    @property
    def regret(self) -> float:
        """How far it is behind the best, under the assumptions that are worst for it."""
        return max(self.losses)


@dataclass(frozen=True)
class KeptPlan:
    """What was chosen, for which question, beside the planner's own proposals; `at` is when.

    `refusals`: why an engine cannot run it, by engine; "" where it can.
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
        """Whether its worst stage fits into a GPU, less the margin."""
        return self.mine.memory_bytes <= self.capacity_bytes

    def __str__(self) -> str:
        """The choice in a few lines."""
        engines = [name for name, refusal in self.refusals.items() if not refusal]
        lines = [f"{self.question}: {self.mine.settings}", f"  {self.why}"]
        for row in zip(self.assumptions, self.mine.steps_s, self.mine.losses, strict=True):
            lines.append("  {}: {:.3f} s a step, {:.1%} behind the best".format(*row))
        lines.append(f"  engines that run it: {', '.join(engines) or 'none'}")
        return "\n".join(lines)

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Self | None:
        """From the progress file; None where nothing was chosen, or the record is damaged."""
        try:
            mine, *others = (Candidate(**one) for one in (record["mine"], *record["others"]))
            return cls(**{**record, "mine": mine, "others": others})
        except (KeyError, TypeError):
            return None


def keep_plan(
    plans: Mapping[str, Plan], layout: Layout | None, recompute: str = "none"
) -> KeptPlan | None:
    """Commit the layout that you would train with; the report shows it. The last one counts.

    `plans`: one question under several assumptions, by name. With None nothing is kept, and the
    notebook goes on. Raises ValueError for a layout that breaks a rule of the question.
    """
    whole("plans", len(plans))
    if layout is None:
        print("  Write your layout for None, then run this again.")
        return None
    first, *_ = every = tuple(plans.values())
    if broken := rule_broken(first.question, layout):
        raise ValueError(f"this layout cannot be planned: {broken}")
    recipe = replace(first.question.recipe, recompute=recompute)
    kept = KeptPlan(
        at=progress.now(),
        question=_question(first),
        assumptions=list(plans),
        capacity_bytes=first.capacity_bytes,
        why=first.why(layout, recompute),
        mine=_candidate("mine", every, layout, recipe),
        others=_others(every),
        refusals=_refusals(first, layout, recipe),
    )
    keep("plan", kept)
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
    """What tells layouts apart, without what is 1: "tp 2, pp 4, dp 64, zero stage 2"."""
    words = {name: value for name, value in option.as_dict().items() if name not in _RESULTS}
    told = {name: value for name, value in words.items() if value != 1 or name == "zero_stage"}
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in told.items())


def _others(plans: Sequence[Plan]) -> list[Candidate]:
    """The planner's fastest under the first assumptions, and the one of least regret."""
    found = {"the fastest": fastest(plans, 1), "the sturdiest": sturdy(plans, 1)}
    return [
        _candidate(name, plans, one.option.layout, one.option.recipe)
        for name, its in found.items()
        for one in its
    ]


def _refusals(plan: Plan, layout: Layout, recipe: Recipe) -> dict[str, str]:
    """What each engine says of the layout."""
    said = {}
    for target in emitting.TARGETS:
        try:
            emitting.files(target, plan.question.job(layout, recipe), "this plan")
            said[target] = ""
        except ValueError as error:
            said[target] = str(error)
    return said
