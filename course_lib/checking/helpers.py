"""Comparisons for checks. Each raises `Wrong` with the answer, the kind of error and the reason."""

import copy
import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, TypeGuard

from course_lib.checking.exercises import Unanswered, Wrong, keep, kept
from course_lib.checking.own_work import learners_line
from course_lib.checking.values import amount, kind_of_wrong, to_builtin

# Near the largest float, about 1.8e308: beyond it float arithmetic would raise.
_LARGEST = 10**300
# Relative error that float arithmetic may add to a count.
_FLOAT_NOISE = 1e-9
# A right answer may be rounded to this many digits.
_ROUNDED_DIGITS = 3


def require_answer(answer: object) -> None:
    """Raise `Unanswered` for `...`, None, and containers that still hold `...`."""
    parts: Iterable[object] = [answer]
    if isinstance(answer, list | tuple | dict):
        parts = answer.values() if isinstance(answer, dict) else answer
    if answer is None or any(part is ... for part in parts):
        raise Unanswered


def show(value: object) -> str:
    """Format a value for the learner: numbers with thousands separators, other values shortened."""
    if isinstance(value, bool):
        return str(value)
    if is_number(value) and _LARGEST < abs(value) < math.inf:
        return "a number of more than 300 digits"
    if isinstance(value, numbers.Integral):
        return f"{int(value):,}"
    if isinstance(value, numbers.Real):
        return f"{float(value):,.6g}"
    text = " ".join(repr(value).split())
    return text if len(text) <= 120 else text[:117] + "..."


def described(value: object) -> str:
    """Type and value, for messages about a wrong type: "int 5", "the function f", "str 'x'"."""
    if callable(value):
        name = getattr(value, "__name__", type(value).__name__)
        return f"the {'class' if isinstance(value, type) else 'function'} {name}"
    return f"{type(value).__name__} {show(value)}"


def number_of(value: object, unit: str = "") -> Any:
    """Convert a text such as "24.9 GB" to a number in `unit`; other values as `plain` does.

    Raises `Wrong` for a decimal comma.
    """
    given = plain(value)
    if not isinstance(given, str):
        return given
    try:
        number = amount(given, unit)
    except ValueError as comma:
        raise Wrong(f"got {show(given)}: {comma}") from None
    return given if number is None else number


def read(given: object, expected: object, unit: str = "") -> Any:
    """Convert the answer to plain values; texts become numbers where `expected` has numbers."""
    given, expected = plain(given), plain(expected)
    if is_number(expected):
        return number_of(given, unit)
    if isinstance(given, list | tuple) and isinstance(expected, list | tuple):
        pairs = zip_longest(given, expected[: len(given)])
        return type(given)([read(part, right, unit) for part, right in pairs])
    if isinstance(given, dict) and isinstance(expected, dict):
        return {key: read(part, expected.get(key), unit) for key, part in given.items()}
    return given


def plain(value: object) -> Any:
    """Convert tensors and arrays to Python numbers and lists; other values as `to_builtin` does."""
    if callable(value) or not hasattr(value, "tolist"):
        return to_builtin(value)
    return to_builtin(value.tolist())


def is_number(value: object) -> TypeGuard[float]:
    """Whether the value is a real number, and not a bool."""
    return issubclass(type(value), numbers.Real) and not isinstance(value, bool)


def is_whole_numbers(value: object) -> bool:
    """Whether the value is a list or tuple of ints, without bools."""
    return isinstance(value, list | tuple) and all(
        isinstance(item, int) and not isinstance(item, bool) for item in value
    )


def same(given: object, expected: object, rel: float = 0.0, unit: str = "") -> bool:
    """Whether two values are equal; lists equal tuples and tensors.

    Numbers may differ by `rel` × expected, or be rounded to three digits or more. A whole number
    without a unit is a count and must be exact.
    """
    given, expected = plain(given), plain(expected)
    if is_number(expected):
        given = number_of(given, unit)
    if is_number(given) and is_number(expected):
        if given == expected or abs(given) > _LARGEST or not math.isfinite(expected):
            return given == expected
        if isinstance(expected, int) and not unit:
            return abs(given - expected) <= _FLOAT_NOISE * abs(expected)
        return abs(given - expected) <= rel * abs(expected) or _rounded(given, expected)
    if isinstance(expected, list | tuple):
        return (
            isinstance(given, list | tuple)
            and len(given) == len(expected)
            and all(same(g, e, rel, unit) for g, e in zip(given, expected, strict=True))
        )
    if isinstance(expected, dict):
        return (
            isinstance(given, dict)
            and given.keys() == expected.keys()
            and all(same(given[key], expected[key], rel, unit) for key in expected)
        )
    # Types must be the same, since 1 == True in Python, but a count is not a yes or no.
    return type(given) is type(expected) and bool(given == expected)


def _rounded(given: float, expected: float) -> bool:
    """Whether `given` is `expected` rounded to three digits or more."""
    if not given or not math.isfinite(given) or not math.isfinite(expected):
        return False
    digits = f"{abs(given):.12e}".partition("e")[0].replace(".", "").rstrip("0")
    return len(digits) >= _ROUNDED_DIGITS and given == float(f"{expected:.{len(digits) - 1}e}")


def gave(
    given: object,
    expected: object,
    because: str,
    unit: str = "",
    what: str = "",
    rel: float = 0.0,
) -> Wrong:
    """The exception "gave X, …: too small", whose text omits the right value and its reason."""
    given, expected = read(given, expected, unit), plain(expected)
    subject = f"{what} gave" if what else "gave"
    tail = f" {unit}" if unit else ""
    kind = kind_of_wrong(given, expected, lambda part, right: same(part, right, rel, unit))
    return Wrong(f"{subject} {show(given)}{tail}, expected another answer: {kind}", because)


def expect_type(answer: object, kind: type | tuple[type, ...], wants: str) -> None:
    """Raise `Wrong` saying `wants` ("a list of ints") unless the answer is of this type."""
    require_answer(answer)
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(answer, kinds) or (isinstance(answer, bool) and bool not in kinds):
        raise Wrong(f"wants {wants}, got {described(answer)}")


def expect_parts(answer: object, count: int, wants: str) -> None:
    """Raise `Wrong` saying `wants` unless the answer is a list or tuple of `count` parts."""
    require_answer(answer)
    if not isinstance(answer, list | tuple):
        raise Wrong(f"wants {wants}, got {described(answer)}")
    if len(answer) != count:
        raise Wrong(f"wants {wants}, got {len(answer)} of them")


def expect_whole_numbers(answer: object, wants: str) -> None:
    """Raise `Wrong` saying `wants` unless the answer is a list or tuple of whole numbers."""
    expect_type(answer, (list, tuple), wants)
    if not is_whole_numbers(answer):
        raise Wrong(f"wants {wants}, got {described(answer)}")


def expect_number(
    answer: object, expected: float, because: str, rel: float = 0.0, unit: str = ""
) -> None:
    """Raise `Wrong` unless answer is a number with |answer - expected| <= rel × |expected|."""
    require_answer(answer)
    number = number_of(answer, unit)
    if not is_number(number):
        raise Wrong(f"wants a number{f' in {unit}' if unit else ''}, got {described(answer)}")
    if not same(number, expected, rel, unit):
        raise gave(number, expected, because, unit, rel=rel)
    keep(because)


def expect_numbers(
    answer: Any, wants: str, *right: tuple[Any, ...], rel: float = 0.0, unit: str = ""
) -> None:
    """Raise `Wrong` unless the answer's parts are `right`: each (number, because[, rel, unit])."""
    expect_parts(answer, len(right), wants)
    for given, (number, because, *own) in zip(answer, right, strict=True):
        expect_number(given, number, because, *(own or (rel, unit)))


def expect_equal(
    answer: object,
    expected: object,
    because: str,
    wants: str = "",
    rel: float = 0.0,
    what: str = "",
    unit: str = "",
) -> None:
    """Raise `Wrong` unless the answer equals `expected`; `wants` describes the type.

    `what` names the part of the answer and precedes "gave" in the message.
    """
    require_answer(answer)
    given = number_of(answer, unit) if is_number(expected) else plain(answer)
    sequence = isinstance(expected, list | tuple)
    fits = isinstance(given, list | tuple) if sequence else isinstance(given, type(expected))
    both_numbers = is_number(given) and is_number(expected)
    if not fits and not both_numbers:
        name = wants or f"a value of type {type(expected).__name__}"
        raise Wrong(f"wants {name}, got {described(answer)}")
    if not same(given, expected, rel, unit):
        raise gave(given, expected, because, unit, what, rel)
    keep(because)


def expect_choice(answer: object, expected: str, because: str, choices: Sequence[str]) -> None:
    """Raise `Wrong` unless the answer is `expected`, one of `choices`; case is ignored."""
    require_answer(answer)
    listed = ", ".join(repr(choice) for choice in choices)
    chosen = answer.strip().casefold() if isinstance(answer, str) else None
    if chosen not in [choice.casefold() for choice in choices]:
        raise Wrong(f"wants one of {listed}, got {described(answer)}")
    if chosen != expected.casefold():
        raise gave(answer, expected, because)
    keep(because)


def expect_entries(
    answer: object,
    expected: Mapping[Any, tuple[object, str]],
    wants: str,
    each: str,
    rel: float = 0.0,
    unit: str = "",
) -> None:
    """Raise `Wrong` unless the answer is a dict with the values of {key: (value, because)}.

    `wants` describes the dict and `each` a value; numbers may differ by `rel` × expected.
    Where True or False is expected, 1 and 0 are accepted.
    """
    require_answer(answer)
    if not isinstance(answer, dict):
        raise Wrong(f"wants {wants}, got {described(answer)}")
    for key, (right, because) in expected.items():
        if key not in answer:
            raise Wrong(f"gave nothing for {key!r}, expected {each}")
        given = answer[key]
        if isinstance(right, bool) and is_number(given) and given in (0, 1):
            given = bool(given)
        with kept():  # discards the reason: the one with its key replaces it
            expect_equal(given, right, because, each, rel, f"for {key!r} it", unit)
        keep(f"{key}: {because}")


def expect_callable(answer: object, signature: str = "") -> None:
    """Raise `Wrong` naming `signature` unless the answer is a function."""
    require_answer(answer)
    if not callable(answer):
        raise Wrong(f"wants {_function(signature)}, got {described(answer)}")


def call(function: object, /, *args: object, signature: str = "") -> Any:
    """Call the learner's function; raises `Unanswered` if the result is `...` or None.

    Raises `Wrong` if the function does not take these arguments.
    """
    result = run(function, *args, signature=signature)
    require_answer(result)
    return result


def run(function: object, /, *args: object, signature: str = "") -> Any:
    """Call the learner's function, which may return None; exceptions from its own lines pass.

    Raises `Wrong` for any other exception: the function does not take these arguments.
    """
    expect_callable(function, signature)
    assert callable(function)
    try:
        given = function(*args)
    except Exception as error:
        raise _blamed(error, function, args, signature) from None
    return to_builtin(given)


def expect_calls(
    function: object,
    cases: Iterable[tuple[Any, ...]],
    because: str = "",
    signature: str = "",
    rel: float = 0.0,
    unit: str = "",
) -> None:
    """Raise `Wrong` for the first case (args, expected[, because]) that the function gets wrong."""
    for position, (args, expected, *reason) in enumerate(cases):
        # A copy, so that a function that changes its arguments cannot change the next case.
        given = run(function, *copy.deepcopy(args), signature=signature)
        if position == 0 and expected is not None:
            require_answer(given)
        if not same(given, expected, rel, unit):
            why = reason[0] if reason else because
            raise gave(given, expected, why, unit, _called(function, args), rel)
    keep(because)


def expect_raises(
    function: object,
    args: tuple[Any, ...],
    exception: type[Exception],
    because: str,
    signature: str = "",
    naming: str = "",
) -> None:
    """Raise `Wrong` unless the call raises `exception` with `naming` in its message."""
    expect_callable(function, signature)
    assert callable(function)
    what = _called(function, args)
    try:
        given = function(*copy.deepcopy(args))
    except exception as error:
        if naming and naming.casefold() not in str(error).casefold():
            named = f"a message naming {naming!r} because {because}"
            raise Wrong(f"{what} gave the message {str(error)!r}, expected {named}") from None
        return
    except Exception as error:
        blamed = _blamed(error, function, args, signature)
        if blamed is error:
            blamed = Wrong(
                f"{what} raised {type(error).__name__}: {error}, expected {exception.__name__} "
                f"because {because}"
            )
        raise blamed from None
    require_answer(given)
    raise Wrong(f"{what} gave {show(given)}, expected {exception.__name__} because {because}")


def _blamed(
    error: Exception, function: object, args: tuple[object, ...], signature: str
) -> Exception:
    """The error itself if the learner's code raised it, else `Wrong`: unsuitable function."""
    if learners_line(error):
        return error
    message = f"{_called(function, args)} raised {type(error).__name__}: {error}"
    return Wrong(f"wants {_function(signature)}, got {described(function)}; {message}")


def _function(signature: str) -> str:
    return f"a function {signature}".strip()


def _called(function: object, args: tuple[object, ...]) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    return f"{name}({', '.join(show(arg) if not is_number(arg) else repr(arg) for arg in args)})"
