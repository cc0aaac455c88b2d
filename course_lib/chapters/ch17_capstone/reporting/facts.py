"""The facts of a report, gathered from what the learner has done, and its automatic checks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_lib.chapters.ch17_capstone.reporting import texts
from course_lib.chapters.ch17_capstone.reporting.guesses import Guess, guesses
from course_lib.chapters.ch17_capstone.reporting.kept import KeptPlan, KeptRun
from course_lib.chapters.ch17_capstone.reporting.texts import FILE, LEAST_WORDS, Texts
from course_lib.checking import progress, races
from course_lib.checking.exercises import chapters, exercises_of
from course_lib.theory.inputs.units import format_bytes

LARGE_GAP = 0.10  # between theory and measurement; larger ones need an explanation


@dataclass(frozen=True)
class Chapter:
    """Counts of one chapter: its exercises, those passed, and those whose solution was seen."""

    number: int
    exercises: int
    passed: int
    seen: int


@dataclass(frozen=True)
class Facts:
    """Everything a learner has done so far; `parts` come from `races.report`."""

    at: str
    name: str
    guesses: Sequence[Guess]
    chapters: Sequence[Chapter]
    verdicts: Mapping[str, str]
    parts: Sequence[Mapping[str, Any]]
    plan: KeptPlan | None
    run: KeptRun | None
    texts: Texts

    @property
    def compared(self) -> list[Guess]:
        """The guesses that were compared with a result."""
        return [guess for guess in self.guesses if guess.found is not None]

    @property
    def large_gaps(self) -> list[Guess]:
        """The guesses whose theory and measurement differ by more than 10 %."""
        return [one for one in self.guesses if one.gap is not None and abs(one.gap) > LARGE_GAP]

    @property
    def unexplained(self) -> list[Guess]:
        """The large gaps that the learner has not explained."""
        return [one for one in self.large_gaps if not self.texts.explains(one.key)]


def gather(words: Path, name: str = "", race: bool = False) -> Facts:
    """Gather the facts of the current learner, whose own text is in the file `words`.

    `race` measures the learner's parts, which takes seconds each.
    """
    stored = progress.read()
    capstone, records = stored["capstone"], stored["exercises"]
    audited = [key for key, record in records.items() if record.get("verdict")]
    return Facts(
        at=progress.now(),
        name=name,
        guesses=guesses(stored["predictions"]),
        chapters=[_chapter(number, records) for number in chapters()],
        verdicts={key: records[key]["verdict"] for key in sorted(audited, key=_by_number)},
        parts=races.report(measured=race)["parts"],
        plan=KeptPlan.read(capstone.get("plan", {})),
        run=KeptRun.read(capstone.get("run", {})),
        texts=texts.read(words),
    )


def _chapter(number: int, records: Mapping[str, Mapping[str, Any]]) -> Chapter:
    own = [records.get(exercise.id, {}) for exercise in exercises_of(number)]
    passed = sum(record.get("status") == "pass" for record in own)
    return Chapter(number, len(own), passed, sum(record.get("seen", False) for record in own))


def _by_number(key: str) -> list[int]:
    return [*map(int, key.split("."))]


# --- the automatic checks: yes, no, or open (not done yet) -------------------------------------

YES, NO, OPEN = "yes", "no", "open"


@dataclass(frozen=True)
class Check:
    """One automatic check: `state` is "yes", "no" or "open", `words` say why."""

    what: str
    state: str
    words: str

    @property
    def line(self) -> str:
        """The check as a line of text, such as "[yes]  plan fits: 79.0 of 80.8 GB"."""
        return f"{f'[{self.state}]':<7}{self.what}: {self.words}"


def checks(facts: Facts) -> list[Check]:
    """All automatic checks, in the order of the report."""
    return [*_plan(facts), _defence(facts), *_run(facts), _gaps(facts), _predictions(facts)]


def _plan(facts: Facts) -> Iterator[Check]:
    plan = facts.plan
    if plan is None:
        yield Check("a plan is chosen", OPEN, "choose one in section 17.7, with keep_plan")
        return
    need, room = (format_bytes(x, digits=1) for x in (plan.mine.memory_bytes, plan.capacity_bytes))
    yield Check("the plan fits the memory", _state(plan.fits), f"{need} of {room}")
    regret = f"{plan.mine.regret:.1%} behind the best where it does worst"
    sturdiest = min((one.regret for one in plan.others), default=0.0)
    near = plan.mine.regret <= sturdiest + 0.10
    words = f"{regret}; the sturdiest layout {sturdiest:.1%}"
    yield Check("it holds under both sets of assumptions", _state(near), words)
    engines = [name for name, refusal in plan.refusals.items() if not refusal]
    yield Check("an engine runs it", _state(bool(engines)), ", ".join(engines) or "none")


def _defence(facts: Facts) -> Check:
    words = facts.texts.words
    state = YES if facts.texts.defended else NO if words else OPEN
    said = f"{words} words" if facts.texts.defended else f"{words} words of {LEAST_WORDS} at least"
    return Check("the defence is written", state, f"{said} in {FILE}")


def _run(facts: Facts) -> Iterator[Check]:
    run = facts.run
    if run is None:
        yield Check("it was built small", OPEN, "run section 17.8, and keep_run")
        return
    parts = len(run.yours) + len(run.courses)
    own = f"{len(run.yours)} of its {parts} parts are yours"
    yield Check("it was built small from own parts", _state(bool(run.yours)), own)
    gaps = f"loss off by {run.loss_gap:.0e}, gradient by {run.gradient_gap:.0e}"
    yield Check("it equals one process", _state(run.equal), gaps)
    wrong = [row.what for row in run.rows if not row.equal]
    words = f"not {', '.join(wrong)}" if wrong else f"all {len(run.rows)} rows, calls too"
    yield Check("its bytes equal the prediction", _state(not wrong), words)


def _gaps(facts: Facts) -> Check:
    what = "gaps over 10 % are explained"
    if not any(guess.gap is not None for guess in facts.guesses):
        return Check(what, OPEN, "nothing was predicted and measured yet")
    missing = ", ".join(guess.key for guess in facts.unexplained)
    if missing:
        return Check(what, NO, f"{FILE} has no line for {missing}")
    return Check(what, YES, f"{len(facts.large_gaps)} of them")


def _predictions(facts: Facts) -> Check:
    compared, made = len(facts.compared), len(facts.guesses)
    words = f"{compared} of {made} were compared with what came"
    state = OPEN if not made else _state(compared == made)
    return Check("predictions are closed", state, words if made else "none was committed")


def _state(holds: bool) -> str:
    return YES if holds else NO
