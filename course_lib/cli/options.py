"""Readers of option values, and the Answer of a command; shared by all commands.

A reader imports the theory only when it reads a value, so that help is fast.
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

MOST_DIGITS = 40  # of an integer; Python refuses to parse more than 4300
Reader = Callable[..., Any]  # (name, text) of an option → its value
Options = Mapping[str, tuple[Reader, str]]  # name of an option → (its reader, its help)


@dataclass(frozen=True)
class Answer:
    """A command's output: `text`, or with --json `data`, whose keys name units; and exit code."""

    text: str
    data: object
    code: int = 0

    def say(self, as_json: bool) -> int:
        """Print `text` or `data` and return the exit code."""
        if as_json:
            # JSON can escape characters that the encoding lacks, instead of printing "?".
            plain = (sys.stdout.encoding or "utf-8").lower() not in ("utf-8", "utf8")
            print(json.dumps(self.data, indent=1, ensure_ascii=plain))
        else:
            print(self.text)
        return self.code


def add(parser: "argparse._ActionsContainer", options: Options) -> None:
    """Add the options to a parser or a group: `micro_batch` becomes `--micro-batch N`.

    The value of an option that is not on the command line is None.
    """
    for name, (read, about) in options.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            metavar=_METAVARS.get(getattr(read, "func", read), "N"),
            help=about,
            type=partial(_read, read, name),
        )


def add_json_option(parser: "argparse._ActionsContainer") -> None:
    """Add --json to a parser or to a mutually exclusive group."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def given(arguments: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """{name: value} of those options in `names` that the command has and the user set."""
    values = {name: getattr(arguments, name, None) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _read(read: Reader, name: str, text: str) -> Any:
    try:
        return read(name, text)
    except ValueError as error:  # argparse would print it below the full help
        raise Problem(str(error)) from error


def count(name: str, text: str, least: int = 0, most: int = 10**18) -> int:
    """Parse a whole number such as "8", "4k" or "15T"."""
    from course_lib.theory.inputs.units import parse_count

    try:
        if text.isdecimal() and len(text) < MOST_DIGITS:
            value = int(text)  # exact, where a float would round
        elif text[-1:].isalpha():
            value = parse_count(text)
        else:  # such as 1.5
            raise ValueError
    except ValueError:
        raise ValueError(
            f"{name} {told(text)} is not a count: write it like 8, 4k or 15T"
        ) from None
    validation.whole(name, value, least, most)
    return value


def number(name: str, text: str, **limits: float) -> float:
    """Parse a number; `limits` may be `above`, `least` and `most`."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{name} {told(text)} is not a number: write it like 0.5") from None
    validation.number(name, value, **limits)
    return value


def digits(name: str, text: str, what: str, remedy: str) -> int:
    """Parse a whole number written in digits; `what` and `remedy` are words of the error."""
    if not text.isdecimal() or len(text) > MOST_DIGITS:
        raise ValueError(f"{name} {told(text)} is not {what}: {remedy}")
    return int(text)


def choice(name: str, text: str, allowed: tuple[str, ...]) -> str:
    """Parse one of the `allowed` words, in any case."""
    word = spelled(text, allowed)
    validation.choice(name, word, allowed)
    return word


def yes_or_no(name: str, text: str) -> bool:
    """Parse "yes" or "no" to a bool."""
    return choice(name, text, ("yes", "no")) == "yes"


def plain(_name: str, text: str) -> str:
    """The text unchanged: the theory checks which words are valid."""
    return text


def spelled(name: str, known: Iterable[str]) -> str:
    """The known name that equals `name` except for case, else `name`."""
    return next((other for other in known if other.casefold() == name.casefold()), name)


_METAVARS: Mapping[Any, str] = {
    number: "X",
    choice: "NAME",
    yes_or_no: "yes|no",
    plain: "NAME",
}
