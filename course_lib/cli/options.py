"""What all commands share: how an option is read from its text, and what a command answers.

A reader loads the theory when there is a text to read, so that help does not.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from course_lib import validation
from course_lib.problem import Problem
from course_lib.validation import told

MOST_DIGITS = 40  # of a whole number; Python refuses to read numbers of more than 4300
Reader = Callable[..., Any]  # the name and the text of an option → its value
Options = Mapping[str, tuple[Reader, str]]  # the name of an option → its reader and its help


@dataclass(frozen=True)
class Answer:
    """`text`, or under --json `data`, whose keys name the units; `code` is the exit code."""

    text: str
    data: object
    code: int = 0

    def say(self, as_json: bool) -> int:
        """Print one of the two and return the exit code."""
        if as_json:
            # JSON can spell what an encoding does not have: no ? in it.
            plain = (sys.stdout.encoding or "utf-8").lower() not in ("utf-8", "utf8")
            print(json.dumps(self.data, indent=1, ensure_ascii=plain))
        else:
            print(self.text)
        return self.code


def add(parser: "argparse._ActionsContainer", options: Options) -> None:
    """Add the options to a parser or a group: `micro_batch` becomes `--micro-batch N`.

    The value of one that is not given is None.
    """
    for name, (read, about) in options.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            metavar=_METAVARS.get(getattr(read, "func", read), "N"),
            help=about,
            type=partial(_read, read, name),
        )


def add_json_option(parser: "argparse._ActionsContainer") -> None:
    """Add --json, to a parser or to a group of options that exclude each other."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def given(arguments: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """Those of the options `names` that the command has and the user gave."""
    found = {name: getattr(arguments, name, None) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def _read(read: Reader, name: str, text: str) -> Any:
    try:
        return read(name, text)
    except ValueError as error:  # argparse would print it below all of the help
        raise Problem(str(error)) from error


def count(name: str, text: str, least: int = 0, most: int = 10**18) -> int:
    """A whole number from "8", "4k" or "15T"."""
    from course_lib.theory.inputs.units import parse_count

    try:
        if text.isdecimal() and len(text) < MOST_DIGITS:
            value = int(text)  # all digits of it, where a float would round
        elif text[-1:].isalpha():
            value = parse_count(text)
        else:  # 1.5 of something that is counted
            raise ValueError
    except ValueError:
        raise ValueError(
            f"{name} {told(text)} is not a count: write it like 8, 4k or 15T"
        ) from None
    validation.whole(name, value, least, most)
    return value


def number(name: str, text: str, **limits: float) -> float:
    """A number, which may have limits: `above`, `least`, `most`."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{name} {told(text)} is not a number: write it like 0.5") from None
    validation.number(name, value, **limits)
    return value


def digits(name: str, text: str, what: str, remedy: str) -> int:
    """A whole number in digits; `what` it is and the `remedy` for other texts, in words."""
    if not text.isdecimal() or len(text) > MOST_DIGITS:
        raise ValueError(f"{name} {told(text)} is not {what}: {remedy}")
    return int(text)


def choice(name: str, text: str, allowed: tuple[str, ...]) -> str:
    """One of the `allowed` words, in small or capital letters."""
    word = spelled(text, allowed)
    validation.choice(name, word, allowed)
    return word


def yes_or_no(name: str, text: str) -> bool:
    """The answer of an option that takes one of the two words."""
    return choice(name, text, ("yes", "no")) == "yes"


def plain(_name: str, text: str) -> str:
    """The text as it is: the theory knows which words there are."""
    return text


def spelled(name: str, known: Iterable[str]) -> str:
    """The known name that differs from `name` in capital letters only, else `name`."""
    return next((other for other in known if other.casefold() == name.casefold()), name)


_METAVARS: Mapping[Any, str] = {
    number: "X",
    choice: "NAME",
    yes_or_no: "yes|no",
    plain: "NAME",
}
