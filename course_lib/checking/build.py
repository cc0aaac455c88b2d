"""Builds: exercises in which the learner writes a part of a parallel library, in checked steps."""

import dis
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType, SimpleNamespace
from typing import Any

from course_lib.checking.exercises import Exercise, Unanswered, Wrong
from course_lib.checking.helpers import described, require_answer
from course_lib.checking.own_work import following, learners_line
from course_lib.checking.races import Race
from course_lib.mine import BY_FILE
from course_lib.texts import asked, room_of

_EMPTY = {"RESUME", "NOP", "LOAD_CONST", "RETURN_CONST", "RETURN_VALUE"}


@dataclass(frozen=True)
class Step:
    """One step of a build: the names that it needs, such as "DDP.forward", and its check.

    `check` gets the learner's functions and classes as attributes, and raises Wrong if they are
    wrong.
    """

    title: str
    needs: tuple[str, ...]
    check: Callable[[SimpleNamespace], None]


def build(
    file: str,
    *,
    steps: tuple[Step, ...],
    race: Race | None = None,
) -> Exercise:
    """The exercise that builds the part saved as `mine/<file>.py`.

    Its answer is the function or class, or a list of them. Steps are checked in order, up to the
    first that is unwritten or wrong. `race`: how it is benchmarked against the course's version.
    """
    part = BY_FILE[file]

    def check(answer: Any) -> None:
        parts = _by_name(answer, part.names)
        for number, step in enumerate(steps, start=1):
            where = f"step {number} of {len(steps)}, {step.title}"
            unwritten = [name for name in step.needs if _is_unwritten(parts, name)]
            if unwritten:
                done = f"{number - 1} of {len(steps)} steps are right; " if number > 1 else ""
                raise Unanswered(f"{done}{where}: write {' and '.join(unwritten)}")
            try:
                with following(part, list(vars(parts).values())):
                    step.check(parts)
            except Wrong as wrong:
                raise Wrong(f"{where}: {wrong}") from None
            except Unanswered:
                raise
            except Exception as error:
                line = learners_line(error)
                if not line:
                    raise
                raised = f"{type(error).__name__}: {error}"
                raise Wrong(f"{where}: {line} raised {raised}") from None

    room = room_of(int(part.build.partition(".")[0]))
    return Exercise(part.build, *asked(part.build, room)[:3], check, part=file, race=race)


def _by_name(answer: Any, names: tuple[str, ...]) -> SimpleNamespace:
    """The learner's functions and classes as attributes named like those of the skeleton."""
    require_answer(answer)
    answers = answer if isinstance(answer, list | tuple) else [answer]
    for one in answers:
        if not isinstance(one, type | FunctionType):
            raise Wrong(f"wants {', '.join(names)}, got {described(one)}")
    parts = {one.__name__: one for one in answers}
    missing = [name for name in names if name not in parts]
    if missing:
        raise Wrong(f"wants {', '.join(names)}, and {', '.join(missing)} is missing")
    return SimpleNamespace(**parts)


def _is_unwritten(parts: SimpleNamespace, name: str) -> bool:
    """Whether a function or method is missing or still the skeleton's: a docstring and `...`."""
    owner, _, method = name.partition(".")
    member: Any = getattr(parts, owner)
    if method:
        owners = [one for one in member.__mro__[:-1] if method in vars(one)]
        member = vars(owners[0])[method] if owners else None
        member = inspect.unwrap(getattr(member, "__func__", getattr(member, "fget", member)))
    if not isinstance(member, FunctionType):
        return member is None
    return {line.opname for line in dis.get_instructions(member)} <= _EMPTY
