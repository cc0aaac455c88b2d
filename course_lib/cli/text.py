"""From the text of an option to a number or a known name; bad text is a ValueError of one sentence.

Options stay text until a command runs, so that help loads no theory and the theory's own checks
speak.
"""

import argparse
from collections.abc import Iterable, Mapping

MOST_DIGITS = 40  # of a count; Python refuses to read numbers of more than 4300


def add_text_options(
    parser: "argparse._ActionsContainer", options: Mapping[str, str], metavar: str = "N"
) -> None:
    """Add each option of `options`, name → help, to be read as text."""
    for name, about in options.items():
        parser.add_argument(name, metavar=metavar, help=about)


def count(
    arguments: argparse.Namespace,
    name: str,
    default: int | None = None,
    *,
    least: int = 0,
    most: int = 10**18,
) -> int:
    """A whole number from "8", "4k" or "15T"; `default`, if there is one, for a missing option."""
    from course_lib.validation import whole

    text: str | None = getattr(arguments, name)
    if text is None:
        if default is None:
            raise ValueError(f"{name} is missing: add --{name.replace('_', '-')} 1024")
        return default
    value = _counted(name, text)
    whole(name, value, least, most)
    return value


def _counted(name: str, text: str) -> int:
    from course_lib.theory.inputs.units import parse_count
    from course_lib.validation import told

    if text.isdecimal() and len(text) < MOST_DIGITS:
        return int(text)  # all digits of it, where a float would round
    try:
        if not text[-1:].isalpha():  # 1.5 of something that is counted
            raise ValueError
        return parse_count(text)
    except ValueError:
        raise ValueError(
            f"{name} {told(text)} is not a count: write it like 8, 4k or 15T"
        ) from None


def number(arguments: argparse.Namespace, name: str, default: float) -> float:
    """A number; whether it may be negative or infinite is checked where it is used."""
    text: str | None = getattr(arguments, name)
    if text is None:
        return default
    from course_lib.validation import told

    try:
        return float(text)
    except ValueError:
        raise ValueError(
            f"{name} {told(text)} is not a number: write it like {default:g}"
        ) from None


def yes_or_no(arguments: argparse.Namespace, name: str) -> bool:
    """The answer of an option that takes one of the two words."""
    from course_lib.validation import choice

    answer = spelled(getattr(arguments, name), ("yes", "no"))
    choice(name, answer, ("yes", "no"))
    return answer == "yes"


def spelled(name: str, known: Iterable[str]) -> str:
    """The known name that differs from `name` in capital letters only, else `name`."""
    return next((other for other in known if other.casefold() == name.casefold()), name)
