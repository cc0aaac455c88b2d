"""The report as a notebook: words in Markdown, tables and figures as outputs; no code in it."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from course_lib import figures
from course_lib.checking.predictions import in_words
from course_lib.figures.picture import Picture
from course_lib.reporting import intuition
from course_lib.reporting.checks import checks
from course_lib.reporting.facts import Chapter, Facts
from course_lib.reporting.plans import Candidate, KeptPlan
from course_lib.reporting.runs import KeptRun
from course_lib.reporting.tables import state, table
from course_lib.theory.inputs.units import format_bytes

TITLE = "How large models are trained: my report"


def notebook(facts: Facts) -> Any:
    """The cells of the page, in order."""
    import nbformat

    made = nbformat.v4.new_notebook(cells=[_cell(part) for part in _parts(facts)])
    made.metadata["title"] = TITLE
    return made


def _cell(part: str | Picture | tuple[str, str]) -> Any:
    """Markdown, or the output of a cell without code: a figure, or ("html", a table)."""
    from nbformat import v4

    if isinstance(part, str):
        return v4.new_markdown_cell(part)
    data = {"text/html": part.to_svg() if isinstance(part, Picture) else part[1]}
    return v4.new_code_cell(outputs=[v4.new_output("display_data", data)])


Part = str | Picture | tuple[str, str]


def _parts(facts: Facts) -> Iterator[Part]:
    whose = f"{facts.name}, " if facts.name else ""
    yield f"# {TITLE}\n\n{_plain(whose)}{facts.at[:10]}"
    rows = [(state(check.state), check.what, check.words) for check in checks(facts)]
    yield "html", table(("", "checked automatically", "found"), rows, "automatic checks")
    yield from _left_empty(facts)
    yield from _intuition(facts)
    yield from _plan(facts)
    yield from _run(facts)
    yield from _gaps(facts)
    yield from _exercises(facts)
    yield from _library(facts)
    yield from _all_predictions(facts)


def _left_empty(facts: Facts) -> Iterator[Part]:
    """What a reader will not find in this report, said first."""
    empty = [check.what for check in checks(facts) if check.state == "open"]
    none = [str(chapter.number) for chapter in facts.chapters if not chapter.passed]
    course = sum(not part["file"] for part in facts.parts)
    lines = [f"open above: {len(empty)}"] if empty else []
    lines += [f"chapters without a passed exercise: {', '.join(none)}"] if none else []
    lines += [f"{course} of {len(facts.parts)} parts are the course's own"] if course else []
    lines += [] if facts.verdicts else ["no claim was audited"]
    if lines:
        yield f"**Left empty:** {'; '.join(lines)}."


def _plan(facts: Facts) -> Iterator[Part]:
    yield "## The plan"
    plan = facts.plan
    if plan is None:
        yield "No plan was chosen."
    else:
        yield f"**{plan.question}.** {plan.mine.settings}."
        yield "html", _candidates(plan)
        yield f'The planner says of mine: "{_plain(plan.why)}".'
        refusals = {name: _reason(said) for name, said in plan.refusals.items() if said}
        yield "".join(f"- {name} does not run it: {_plain(s)}\n" for name, s in refusals.items())
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


def _run(facts: Facts) -> Iterator[Part]:
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


def _gaps(facts: Facts) -> Iterator[Part]:
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
            _told(one.theory, one.unit),
            _told(one.measured, one.unit),
            f"{one.gap or 0:+.0%}",
            facts.texts.explained.get(one.key, "not explained"),
        )
        for one in facts.large_gaps
    ]
    if rows:
        head = ("", "question", "theory", "measured", "gap", "why")
        yield "html", table(head, rows, "gaps of more than 10 %", (2, 3, 4))


def _intuition(facts: Facts) -> Iterator[Part]:
    yield "## Where my intuition was off"
    factors = intuition.by_topic(facts.guesses)
    if not factors:
        yield "No prediction was compared with what came."
        return
    typical = intuition.typical_miss(facts.guesses) or 1.0
    yield (
        f"{len(facts.compared)} predictions were compared. Half of those that have a factor were "
        f"off by {typical:.3g} × or more."
    )
    yield figures.guesses(factors, "My guesses, by topic")
    misses = intuition.largest_misses(facts.guesses)
    if misses:
        rows = [(one.key, one.question, *_numbers(one), one.words) for one in misses]
        yield "### The largest misses"
        yield "html", table(("", "question", *_HEAD), rows, "the largest misses", (2, 3, 4, 5))


_HEAD = ("I said", "theory", "measured", "off by")


def _numbers(one: intuition.Guess) -> tuple[str, str, str]:
    """Mine, theory's and the measured one."""
    theory = one.found if one.theory is None else one.theory
    return _told(one.yours, one.unit), _told(theory, one.unit), _told(one.measured, one.unit)


def _told(value: float | None, unit: str) -> str:
    return "–" if value is None else in_words(value, unit, digits=4)


def _exercises(facts: Facts) -> Iterator[Part]:
    yield "## Exercises and audits"
    passed = sum(chapter.passed for chapter in facts.chapters)
    total = sum(chapter.exercises for chapter in facts.chapters)
    seen = sum(chapter.seen for chapter in facts.chapters)
    yield f"{passed} of {total} exercises passed; the solution of {seen} was looked at."
    yield "html", _by_chapter(facts.chapters)
    yield "".join(f"- {key}: {_plain(said)}\n" for key, said in facts.verdicts.items())


def _by_chapter(chapters: Sequence[Chapter]) -> str:
    head = ("chapter", *(str(chapter.number) for chapter in chapters))
    rows = (
        ("passed", *(str(chapter.passed) for chapter in chapters)),
        ("of", *(str(chapter.exercises) for chapter in chapters)),
    )
    return table(head, rows, "exercises passed by chapter", range(1, len(head)))


def _library(facts: Facts) -> Iterator[Part]:
    yield "## My parallel library"
    yield figures.built(facts.parts)
    raced = [part for part in facts.parts if part["file"] and "laps" in part]
    yield "".join(
        f"- {part['title']}, {part['race']}:\n"
        + "".join(f"    - `{' '.join(lap.split())}`\n" for lap in part["laps"])
        for part in raced
    )


def _all_predictions(facts: Facts) -> Iterator[Part]:
    if facts.guesses:
        yield "## All predictions"
        rows = [(one.key, one.question, *_numbers(one), one.words) for one in facts.guesses]
        yield "html", table(("", "question", *_HEAD), rows, "all predictions", (2, 3, 4, 5))


def _count(calls: int | None) -> str:
    return "–" if calls is None else f"{calls:,}"


def _own_words(text: str) -> str:
    """The learner's Markdown, its headings below ours."""
    lowered = re.sub(r"^(#{1,4})(?=\s)", r"###\1", text, flags=re.M)
    return re.sub(r"\A\s*#+\s*Defence\s*$", "", lowered, flags=re.M).strip()


def _plain(text: str) -> str:
    """A sentence of ours inside Markdown: its signs are no formatting."""
    return re.sub(r"([\\`*_{}\[\]<>#|$])", r"\\\1", text)
