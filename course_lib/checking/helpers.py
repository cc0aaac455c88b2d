"""The comparisons most checks need. Each raises `Wrong` with given, expected and the reason."""

import copy
import math
import numbers
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from course_lib.checking.exercise import Unanswered, Wrong


def require_answer(answer: Any) -> None:
    """Raise `Unanswered` for `...`, None, and containers that still hold `...`."""
    items = answer.values() if isinstance(answer, dict) else answer
    holds = isinstance(answer, list | tuple | dict) and any(item is ... for item in items)
    if answer is None or answer is ... or holds:
        raise Unanswered


def show(value: Any) -> str:
    """A value as the learner reads it: numbers with thousands separators, the rest shortened."""
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, numbers.Integral):
        return f"{int(value):,}"
    if isinstance(value, numbers.Real):
        return f"{float(value):,.6g}"
    text = " ".join(repr(value).split())
    return text if len(text) <= 120 else text[:117] + "..."


def described(value: Any) -> str:
    """Type and value, for messages about a wrong type: "int 5", "a function", "str 'x'"."""
    if callable(value):
        name = getattr(value, "__name__", type(value).__name__)
        return f"the {'class' if isinstance(value, type) else 'function'} {name}"
    return f"{type(value).__name__} {show(value)}"


def plain(value: Any) -> Any:
    """Tensors and arrays as Python numbers and lists, everything else unchanged."""
    if callable(value) or not hasattr(value, "tolist"):
        return value
    return value.tolist()


def is_number(value: Any) -> bool:
    """True for real numbers, False for bool and everything else."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def same(given: Any, expected: Any, rel: float = 0.0) -> bool:
    """Equal, where lists equal tuples and tensors, and numbers may differ by `rel` × expected."""
    given, expected = plain(given), plain(expected)
    if is_number(given) and is_number(expected):
        near = math.isfinite(expected) and abs(given - expected) <= rel * abs(expected)
        return given == expected or near
    if isinstance(expected, list | tuple):
        return (
            isinstance(given, list | tuple)
            and len(given) == len(expected)
            and all(same(g, e, rel) for g, e in zip(given, expected, strict=True))
        )
    if isinstance(expected, dict):
        return (
            isinstance(given, dict)
            and given.keys() == expected.keys()
            and all(same(given[key], expected[key], rel) for key in expected)
        )
    # Of the same type, since 1 == True in Python, but a count does not answer yes or no.
    return type(given) is type(expected) and bool(given == expected)


def gave(given: Any, expected: Any, because: str, unit: str = "", what: str = "") -> Wrong:
    """The exception "gave X, expected Y because ...", with enough digits to tell X from Y."""
    given, expected = plain(given), plain(expected)
    left, right = show(given), show(expected)
    if left == right:
        left, right = repr(given), repr(expected)
    tail = f" {unit}" if unit else ""
    subject = f"{what} gave" if what else "gave"
    reason = f" because {because}" if because else ""
    return Wrong(f"{subject} {left}{tail}, expected {right}{tail}{reason}")


def expect_type(answer: Any, kind: type | tuple[type, ...], wants: str) -> None:
    """Raise `Wrong` saying `wants` ("a list of ints") unless the answer is of this type."""
    require_answer(answer)
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(answer, kinds) or (isinstance(answer, bool) and bool not in kinds):
        raise Wrong(f"wants {wants}, got {described(answer)}")


def expect_parts(answer: Any, count: int, wants: str) -> None:
    """Raise `Wrong` saying `wants` unless the answer is a list or tuple of `count` parts."""
    expect_type(answer, (list, tuple), wants)
    if len(answer) != count:
        raise Wrong(f"wants {wants}, got {len(answer)} of them")


def expect_number(
    answer: Any, expected: float, because: str, rel: float = 0.0, unit: str = ""
) -> None:
    """Raise `Wrong` unless answer is a number with |answer - expected| <= rel × |expected|."""
    require_answer(answer)
    number = plain(answer)
    if not is_number(number):
        raise Wrong(f"wants a number{f' in {unit}' if unit else ''}, got {described(answer)}")
    if math.isnan(number) or not same(number, expected, rel):
        raise gave(number, expected, because, unit)


def expect_equal(
    answer: Any, expected: Any, because: str, wants: str = "", rel: float = 0.0
) -> None:
    """Raise `Wrong` unless the answer equals `expected`; `wants` names the type in words."""
    require_answer(answer)
    given = plain(answer)
    sequence = isinstance(expected, list | tuple)
    fits = isinstance(given, list | tuple) if sequence else isinstance(given, type(expected))
    both_numbers = is_number(given) and is_number(expected)
    if not fits and not both_numbers:
        name = wants or f"a value of type {type(expected).__name__}"
        raise Wrong(f"wants {name}, got {described(answer)}")
    if not same(given, expected, rel):
        raise gave(given, expected, because)


def expect_choice(answer: Any, expected: str, because: str, choices: Sequence[str]) -> None:
    """Raise `Wrong` unless the answer is the right one of `choices`; case does not matter."""
    require_answer(answer)
    listed = ", ".join(repr(choice) for choice in choices)
    chosen = answer.strip().casefold() if isinstance(answer, str) else None
    if chosen not in [choice.casefold() for choice in choices]:
        raise Wrong(f"wants one of {listed}, got {described(answer)}")
    if chosen != expected.casefold():
        raise gave(answer, expected, because)


def expect_callable(answer: Any, signature: str = "") -> None:
    """Raise `Wrong` naming `signature` unless the answer is a function."""
    require_answer(answer)
    if not callable(answer):
        raise Wrong(f"wants {f'a function {signature}'.strip()}, got {described(answer)}")


def call(function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call the learner's function; raise `Unanswered` when it gives `...` or None."""
    expect_callable(function)
    result = function(*args, **kwargs)
    require_answer(result)
    return result


def expect_calls(
    function: Any,
    cases: Iterable[tuple[Any, ...]],
    because: str = "",
    signature: str = "",
    rel: float = 0.0,
) -> None:
    """Raise `Wrong` at the first case (args, expected[, because]) that the function gets wrong."""
    expect_callable(function, signature)
    for position, (args, expected, *reason) in enumerate(cases):
        # A copy, so that a function that changes its arguments cannot change the next case.
        given = function(*copy.deepcopy(args))
        if position == 0 and expected is not None:
            require_answer(given)
        if not same(given, expected, rel):
            why = reason[0] if reason else because
            raise gave(given, expected, why, what=_called(function, args))


def expect_raises(
    function: Any,
    args: tuple[Any, ...],
    exception: type[Exception],
    because: str,
    signature: str = "",
    naming: str = "",
) -> None:
    """Raise `Wrong` unless the call raises `exception`, its message holding the word `naming`."""
    expect_callable(function, signature)
    what = _called(function, args)
    try:
        given = function(*copy.deepcopy(args))
    except exception as error:
        if naming and naming.casefold() not in str(error).casefold():
            named = f"a message naming {naming!r} because {because}"
            raise Wrong(f"{what} gave the message {str(error)!r}, expected {named}") from None
        return
    require_answer(given)
    raise Wrong(f"{what} gave {show(given)}, expected {exception.__name__} because {because}")


def _called(function: Callable[..., Any], args: tuple[Any, ...]) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    return f"{name}({', '.join(show(arg) if not is_number(arg) else repr(arg) for arg in args)})"
