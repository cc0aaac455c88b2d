"""What every command and every demo reads its command line with."""

import argparse
import difflib
import sys
from collections.abc import Sequence
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """A parser whose errors stand below all of its options, each with its meaning."""

    def __init__(self, **settings: Any) -> None:
        # Without abbreviations, `--step 5` can never be taken for another option.
        super().__init__(**{"allow_abbrev": False, **settings})

    def error(self, message: str) -> NoReturn:
        """End the program with code 2."""
        self.print_help(sys.stderr)
        self.exit(2, f"\n{self.prog}: {message}\n")

    def refuse(self, others: Sequence[str]) -> NoReturn:
        """End the program because of what was left over, and name the option that was meant."""
        word = others[0].partition("=")[0]
        near = difflib.get_close_matches(word, self._option_string_actions, n=1)
        remedy = f"did you mean {near[0]}?" if near else "all that there are stand above"
        self.error(f"{' '.join(others)} is not among its options: {remedy}")
