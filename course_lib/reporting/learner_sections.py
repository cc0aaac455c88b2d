"""The sections of a report on the learner: guesses, exercises, audits, the library."""

from collections.abc import Iterator, Sequence

from course_lib import figures
from course_lib.reporting import intuition as judging
from course_lib.reporting.facts import Chapter, Facts
from course_lib.reporting.tables import Part, plain, table, told

_HEAD = ("I said", "theory", "measured", "off by")


def intuition(facts: Facts) -> Iterator[Part]:
    """The picture of all guesses by topic, and the worst of them."""
    yield "## Where my intuition was off"
    factors = judging.by_topic(facts.guesses)
    if not factors:
        yield "No prediction was compared with what came."
        return
    typical = judging.typical_miss(facts.guesses) or 1.0
    yield (
        f"{len(facts.compared)} predictions were compared. Half of those that have a factor were "
        f"off by {typical:.3g} × or more."
    )
    yield figures.guesses(factors, "My guesses, by topic")
    misses = judging.largest_misses(facts.guesses)
    if misses:
        rows = [(one.key, one.question, *_numbers(one), one.words) for one in misses]
        yield "### The largest misses"
        yield "html", table(("", "question", *_HEAD), rows, "the largest misses", (2, 3, 4, 5))


def _numbers(one: judging.Guess) -> tuple[str, str, str]:
    """Mine, theory's and the measured one."""
    theory = one.found if one.theory is None else one.theory
    return told(one.yours, one.unit), told(theory, one.unit), told(one.measured, one.unit)


def exercises(facts: Facts) -> Iterator[Part]:
    """What was passed, and the verdicts of the audits."""
    yield "## Exercises and audits"
    passed = sum(chapter.passed for chapter in facts.chapters)
    total = sum(chapter.exercises for chapter in facts.chapters)
    seen = sum(chapter.seen for chapter in facts.chapters)
    yield f"{passed} of {total} exercises passed; the solution of {seen} was looked at."
    yield "html", _by_chapter(facts.chapters)
    yield "".join(f"- {key}: {plain(said)}\n" for key, said in facts.verdicts.items())


def _by_chapter(chapters: Sequence[Chapter]) -> str:
    head = ("chapter", *(str(chapter.number) for chapter in chapters))
    rows = (
        ("passed", *(str(chapter.passed) for chapter in chapters)),
        ("of", *(str(chapter.exercises) for chapter in chapters)),
    )
    return table(head, rows, "exercises passed by chapter", range(1, len(head)))


def library(facts: Facts) -> Iterator[Part]:
    """The parts that are the learner's, and their races."""
    yield "## My parallel library"
    yield figures.built(facts.parts)
    raced = [part for part in facts.parts if part["file"] and "laps" in part]
    yield "".join(
        f"- {part['title']}, {part['race']}:\n"
        + "".join(f"    - `{' '.join(lap.split())}`\n" for lap in part["laps"])
        for part in raced
    )


def all_predictions(facts: Facts) -> Iterator[Part]:
    """Every guess beside theory and measurement."""
    if facts.guesses:
        yield "## All predictions"
        rows = [(one.key, one.question, *_numbers(one), one.words) for one in facts.guesses]
        yield "html", table(("", "question", *_HEAD), rows, "all predictions", (2, 3, 4, 5))
