"""The argument parser of all commands and demos, and output that any terminal can encode."""

import argparse
import difflib
import io
import sys
from collections.abc import Sequence
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """An argument parser that prints errors below the full help."""

    def __init__(self, **settings: Any) -> None:
        # Without abbreviations, `--step 5` can never be taken for another option.
        super().__init__(**{"allow_abbrev": False, **settings})

    def error(self, message: str) -> NoReturn:
        """Print the help and the error on stderr, and exit with code 2."""
        self.print_help(sys.stderr)
        self.exit(2, f"\n{self.prog}: {message}\n")

    def refuse(self, others: Sequence[str]) -> NoReturn:
        """Exit with code 2 because of unknown arguments, suggesting the nearest option."""
        word = others[0].partition("=")[0]
        near = difflib.get_close_matches(word, self._option_string_actions, n=1)
        remedy = f"did you mean {near[0]}?" if near else "all that there are stand above"
        self.error(f"{' '.join(others)} is not among its options: {remedy}")


def never_refuse() -> None:
    """Let stdout and stderr replace characters that their encoding lacks by "?".

    Every program of the course calls this before it prints: an old Chinese or C locale has no µ,
    and an answer that took a minute must not end in a UnicodeEncodeError.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a notebook's stream accepts all characters
            stream.reconfigure(errors="replace")
