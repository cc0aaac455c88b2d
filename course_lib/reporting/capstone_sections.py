"""The sections of a report on the capstone: the plan, the small run, the gaps."""

import re
from collections.abc import Iterator, Sequence

from course_lib.reporting.facts import Facts
from course_lib.reporting.plans import Candidate, KeptPlan
from course_lib.reporting.runs import KeptRun
from course_lib.reporting.tables import Part, plain, table, told
from course_lib.theory.inputs.units import format_bytes


def plan(facts: Facts) -> Iterator[Part]:
    """The choice beside the planner's own, which engines run it, and the defence."""
    yield "## The plan"
    plan = facts.plan
    if plan is None:
        yield "No plan was chosen."
    else:
        yield f"**{plan.question}.** {plan.mine.settings}."
        yield "html", _candidates(plan)
        yield f'The planner says of mine: "{plain(plan.why)}".'
        refusals = {name: _reason(said) for name, said in plan.refusals.items() if said}
        yield "".join(f"- {name} does not run it: {plain(s)}\n" for name, s in refusals.items())
    yield "### My defence"
    yield _own_words(facts.texts.defence) or "Nothing was written."


def _candidates(plan: KeptPlan) -> str:
    """My layout beside the planner's: a step under each of the assumptions, memory, settings."""
    head = ["layout", *(f"{name}, s a step" for name in plan.assumptions), "memory", "settings"]
    rows = [_candidate(one) for one in (plan.mine, *plan.others)]
    return table(head, rows, "layouts", range(1, len(head) - 1))


def _candidate(one: Candidate) -> list[str]:
    steps = zip(one.steps_s, one.losses, strict=True)
    seconds = [f"{own:.2f} ({lost:+.1%})" for own, lost in steps]
    return [one.whose, *seconds, format_bytes(one.memory_bytes, digits=1), one.settings]


def _reason(said: str) -> str:
    """An engine's refusal without the layout, which stands above."""
    return re.sub(r"^.*? cannot run [^:]*: ", "", said).partition(";")[0]


def run(facts: Facts) -> Iterator[Part]:
    """What rank 0 of the small run sent and stored, beside the prediction."""
    yield "## Built small"
    run = facts.run
    if run is None:
        yield "Nothing was run."
        return
    yield (
        f"{run.ranks} ranks, {run.mesh}, model {run.model}, {run.updates} updates of "
        f"{1000 * run.seconds:.0f} ms each. My own parts: {_code(run.yours)}. The course's: "
        f"{_code(run.courses)}."
    )
    yield "html", _bytes_of(run)


def _code(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def _bytes_of(run: KeptRun) -> str:
    head = ("rank 0, one update", "calls", "predicted", "bytes", "predicted", "gap")
    rows = [
        (
            row.what,
            _count(row.measured_calls),
            _count(row.predicted_calls),
            f"{row.measured_bytes:,}",
            f"{row.predicted_bytes:,}",
            f"{row.gap:+.1%}" if row.gap else "0",
        )
        for row in run.rows
    ]
    return table(head, rows, "predicted and measured bytes of the small run", range(1, 6))


def gaps(facts: Facts) -> Iterator[Part]:
    """Where theory and measurement are far apart, and why."""
    yield "## Gaps between theory and measurement"
    measured = [guess for guess in facts.guesses if guess.gap is not None]
    if not measured:
        yield "Nothing was predicted and measured yet."
        return
    yield (
        f"Of {len(measured)} predictions that were measured too, {len(facts.large_gaps)} have a "
        "gap of more than 10 % between theory and measurement."
    )
    rows = [
        (
            one.key,
            one.question,
            told(one.theory, one.unit),
            told(one.measured, one.unit),
            f"{one.gap or 0:+.0%}",
            facts.texts.explained.get(one.key, "not explained"),
        )
        for one in facts.large_gaps
    ]
    if rows:
        head = ("", "question", "theory", "measured", "gap", "why")
        yield "html", table(head, rows, "gaps of more than 10 %", (2, 3, 4))


def _count(calls: int | None) -> str:
    return "–" if calls is None else f"{calls:,}"


def _own_words(text: str) -> str:
    """The learner's Markdown, its headings below ours."""
    lowered = re.sub(r"^(#{1,4})(?=\s)", r"###\1", text, flags=re.M)
    return re.sub(r"\A\s*#+\s*Defence\s*$", "", lowered, flags=re.M).strip()
