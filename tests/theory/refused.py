"""What modules of theory refuse: in REFUSED of a test file, a call and the words it gets.

The sentences about the range of one number or the name of one choice are those of `validation`,
whose tests have them; test_every_parameter.py and test_fuzz.py try such values everywhere.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest

Row = tuple[Callable[[], Any], str]


def rows(call: Callable[..., Any], cases: Iterable[Any], words: str | None = None) -> list[Row]:
    """A row for each case: the arguments of `call`, and the words last unless all have `words`."""
    if words is not None:
        return [(partial(call, case), words) for case in cases]
    return [(partial(call, *arguments), said) for *arguments, said in cases]


def accepted(table: Iterable[Row]) -> list[str]:
    """One sentence for each row whose call is not refused in the words that it should get."""
    found = []
    for place, (call, words) in enumerate(table):
        try:
            with pytest.raises(ValueError, match=words):
                call()
        except (Exception, pytest.fail.Exception) as error:
            found.append(f"row {place}, {words!r}: {type(error).__name__}: {error}")
    return found
