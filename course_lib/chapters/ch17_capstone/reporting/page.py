"""The page of a report, made from facts: Markdown with HTML tables, and figures."""

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from course_lib import figures
from course_lib.chapters.ch17_capstone.reporting.facts import Facts, checks
from course_lib.chapters.ch17_capstone.reporting.guesses import (
    Guess,
    by_topic,
    largest_misses,
    typical_miss,
)
from course_lib.chapters.ch17_capstone.reporting.kept import Candidate
from course_lib.checking.gaps import in_words
from course_lib.figures.paper.drawing import Drawing
from course_lib.theory.inputs.units import format_bytes

TITLE = "How large models are trained: my report"
_GUESSES = ("", "question", "I said", "theory", "measured", "off by")


def notebook(facts: Facts) -> Any:
    """The page as a notebook: Markdown, and figures as outputs of cells without code."""
    from nbformat import v4

    cells = []
    for section in (_head, _intuition, _plan, _run, _gaps, _exercises, _library, _predictions):
        for part in section(facts):
            if isinstance(part, str):
                cells.append(v4.new_markdown_cell(part))
            else:
                output = v4.new_output("display_data", {"text/html": part.to_svg()})
                cells.append(v4.new_code_cell(outputs=[output]))
    return v4.new_notebook(cells=cells, metadata={"title": TITLE})


Parts = Iterator[str | Drawing]


def _head(facts: Facts) -> Parts:
    """The title, the automatic checks, and what was left empty."""
    whose = f"{facts.name}, " if facts.name else ""
    yield f"# {TITLE}\n\n{_plain(whose)}{facts.at[:10]}"
    found = checks(facts)
    signs = {"yes": "✓ yes", "no": "✗ no", "open": "○ open"}
    rows = [(signs[check.state], check.what, check.words) for check in found]
    yield _table(("", "checked automatically", "found"), rows, "automatic checks")
    empty = [check.what for check in found if check.state == "open"]
    none = [str(chapter.number) for chapter in facts.chapters if not chapter.passed]
    course = sum(not part["file"] for part in facts.parts)
    lines = [f"open above: {len(empty)}"] if empty else []
    lines += [f"chapters without a passed exercise: {', '.join(none)}"] if none else []
    lines += [f"{course} of {len(facts.parts)} parts are the course's own"] if course else []
    lines += [] if facts.verdicts else ["no claim was audited"]
    if lines:
        yield f"**Left empty:** {'; '.join(lines)}."


def _intuition(facts: Facts) -> Parts:
    """A figure of all guesses by topic, and a table of the worst of them."""
    yield "## Where my intuition was off"
    factors = by_topic(facts.guesses)
    if not factors:
        yield "No prediction was compared with what came."
        return
    typical = typical_miss(facts.guesses) or 1.0
    yield (
        f"{len(facts.compared)} predictions were compared. Half of those that have a factor were "
        f"off by {typical:.3g} × or more."
    )
    yield figures.guesses(factors, "My guesses, by topic")
    if misses := largest_misses(facts.guesses):
        yield "### The largest misses"
        yield _table(_GUESSES, map(_guess, misses), "the largest misses", (2, 3, 4, 5))


def _guess(one: Guess) -> Sequence[str]:
    """A table row of one guess: the learner's, the predicted and the measured number."""
    theory = one.found if one.theory is None else one.theory
    numbers = (_number(value, one.unit) for value in (one.yours, theory, one.measured))
    return (one.key, one.question, *numbers, one.words)


def _plan(facts: Facts) -> Parts:
    """The chosen plan compared with the planner's, the engines that run it, and the defence."""
    yield "## The plan"
    if plan := facts.plan:
        yield f"**{plan.question}.** {plan.mine.settings}."
        steps = (f"{name}, s a step" for name in plan.assumptions)
        head = ["layout", *steps, "memory", "settings"]
        rows = map(_candidate, (plan.mine, *plan.others))
        yield _table(head, rows, "layouts", range(1, len(head) - 1))
        yield f'The planner says of mine: "{_plain(plan.why)}".'
        # Drop the layout from the reason: it is shown above.
        reasons = {
            name: re.sub(r"^.*? cannot run [^:]*: ", "", said).partition(";")[0]
            for name, said in plan.refusals.items()
            if said
        }
        yield "".join(f"- {name} does not run it: {_plain(s)}\n" for name, s in reasons.items())
    else:
        yield "No plan was chosen."
    yield "### My defence"
    # Demote the learner's headings below the page's own.
    lowered = re.sub(r"^(#{1,4})(?=\s)", r"###\1", facts.texts.defence, flags=re.M)
    own = re.sub(r"\A\s*#+\s*Defence\s*$", "", lowered, flags=re.M).strip()
    yield own or "Nothing was written."


def _candidate(one: Candidate) -> Sequence[str]:
    steps = zip(one.steps_s, one.losses, strict=True)
    seconds = [f"{own:.2f} ({lost:+.1%})" for own, lost in steps]
    return [one.whose, *seconds, format_bytes(one.memory_bytes, digits=1), one.settings]


def _run(facts: Facts) -> Parts:
    """What rank 0 of the small run sent and stored, compared with the prediction."""
    yield "## Built small"
    run = facts.run
    if run is None:
        yield "Nothing was run."
        return
    yours, courses = (
        ", ".join(f"`{name}`" for name in names) or "none" for names in (run.yours, run.courses)
    )
    yield (
        f"{run.ranks} ranks, {run.mesh}, model {run.model}, {run.updates} updates of "
        f"{1000 * run.seconds:.0f} ms each. My own parts: {yours}. The course's: {courses}."
    )
    rows = [
        (
            row.what,
            *("–" if n is None else f"{n:,}" for n in (row.measured_calls, row.predicted_calls)),
            *(f"{n:,}" for n in (row.measured_bytes, row.predicted_bytes)),
            f"{row.gap:+.1%}" if row.gap else "0",
        )
        for row in run.rows
    ]
    head = ("rank 0, one update", "calls", "predicted", "bytes", "predicted", "gap")
    yield _table(head, rows, "predicted and measured bytes of the small run", range(1, 6))


def _gaps(facts: Facts) -> Parts:
    """Large gaps between theory and measurement, with the learner's explanations."""
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
            _number(one.theory, one.unit),
            _number(one.measured, one.unit),
            f"{one.gap or 0:+.0%}",
            facts.texts.explained.get(one.key, "not explained"),
        )
        for one in facts.large_gaps
    ]
    if rows:
        head = ("", "question", "theory", "measured", "gap", "why")
        yield _table(head, rows, "gaps of more than 10 %", (2, 3, 4))


def _exercises(facts: Facts) -> Parts:
    """Passed exercises by chapter, and the verdicts of the audits."""
    yield "## Exercises and audits"
    chapters = facts.chapters
    passed, total = sum(one.passed for one in chapters), sum(one.exercises for one in chapters)
    seen = sum(one.seen for one in chapters)
    yield f"{passed} of {total} exercises passed; the solution of {seen} was looked at."
    head = ("chapter", *(str(one.number) for one in chapters))
    rows = (
        ("passed", *(str(one.passed) for one in chapters)),
        ("of", *(str(one.exercises) for one in chapters)),
    )
    yield _table(head, rows, "exercises passed by chapter", range(1, len(head)))
    yield "".join(f"- {key}: {_plain(said)}\n" for key, said in facts.verdicts.items())


def _library(facts: Facts) -> Parts:
    """The parts that the learner has built, and their races."""
    yield "## My parallel library"
    yield figures.built(facts.parts)
    for part in facts.parts:
        if part["file"] and "laps" in part:
            laps = "".join(f"    - `{' '.join(lap.split())}`\n" for lap in part["laps"])
            yield f"- {part['title']}, {part['race']}:\n{laps}"


def _predictions(facts: Facts) -> Parts:
    """A table of every guess with theory and measurement."""
    if facts.guesses:
        yield "## All predictions"
        yield _table(_GUESSES, map(_guess, facts.guesses), "all predictions", (2, 3, 4, 5))


def _number(value: float | None, unit: str) -> str:
    """A number with its unit, to four digits; a dash for None."""
    return "–" if value is None else in_words(value, unit, digits=4)


def _plain(text: str) -> str:
    """Escape a text for Markdown, so that its characters are not taken as formatting."""
    return re.sub(r"([\\`*_{}\[\]<>#|$])", r"\\\1", text)


def _table(
    head: Sequence[str], rows: Iterable[Sequence[str]], about: str, numbers: Sequence[int] = ()
) -> str:
    """An HTML table, valid inside Markdown; the columns `numbers` are right-aligned.

    `about`: a label for screen readers. A check's state gets the CSS class of its colour.
    """

    def line(kind: str, cells: Sequence[str]) -> str:
        made = []
        for column, text in enumerate(cells):
            state = text.partition(" ")[2] if text[:1] in ("✓", "✗", "○") else ""
            name = f"state {state}" if state else "number" * (column in numbers)
            attribute = f' class="{name}"' if name else ""
            made.append(f"<{kind}{attribute}>{html.escape(' '.join(text.split()))}</{kind}>")
        return f"<tr>{''.join(made)}</tr>"

    body = "".join(line("td", row) for row in rows)
    opening = f'<table aria-label="{html.escape(about)}">'
    return f"{opening}<thead>{line('th', head)}</thead><tbody>{body}</tbody></table>"
