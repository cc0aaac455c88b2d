"""The report as a notebook: words in Markdown, tables and figures as outputs; no code in it."""

from collections.abc import Iterator
from typing import Any

from course_lib.figures.paper.drawing import Drawing
from course_lib.reporting import capstone_sections, learner_sections
from course_lib.reporting.checks import checks
from course_lib.reporting.facts import Facts
from course_lib.reporting.tables import Part, plain, state, table

TITLE = "How large models are trained: my report"


def notebook(facts: Facts) -> Any:
    """The cells of the page, in order."""
    import nbformat

    made = nbformat.v4.new_notebook(cells=[_cell(part) for part in _parts(facts)])
    made.metadata["title"] = TITLE
    return made


def _cell(part: Part) -> Any:
    """Markdown, or the output of a cell without code: a figure, or ("html", a table)."""
    from nbformat import v4

    if isinstance(part, str):
        return v4.new_markdown_cell(part)
    data = {"text/html": part.to_svg() if isinstance(part, Drawing) else part[1]}
    return v4.new_code_cell(outputs=[v4.new_output("display_data", data)])


def _parts(facts: Facts) -> Iterator[Part]:
    whose = f"{facts.name}, " if facts.name else ""
    yield f"# {TITLE}\n\n{plain(whose)}{facts.at[:10]}"
    rows = [(state(check.state), check.what, check.words) for check in checks(facts)]
    yield "html", table(("", "checked automatically", "found"), rows, "automatic checks")
    yield from _left_empty(facts)
    yield from learner_sections.intuition(facts)
    yield from capstone_sections.plan(facts)
    yield from capstone_sections.run(facts)
    yield from capstone_sections.gaps(facts)
    yield from learner_sections.exercises(facts)
    yield from learner_sections.library(facts)
    yield from learner_sections.all_predictions(facts)


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
