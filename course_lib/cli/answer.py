"""What a command says: a text to read, or under --json the same as data."""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from course_lib.problem import Problem


def add_json_option(parser: "argparse._ActionsContainer") -> None:
    """Add --json, to a parser or to a group of options that exclude each other."""
    parser.add_argument("--json", action="store_true", help="print JSON")


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


@contextmanager
def refusals() -> Iterator[None]:
    """Inside, a ValueError of the theory becomes a Problem: its message is one sentence already."""
    try:
        yield
    except ValueError as error:
        raise Problem(str(error)) from error
