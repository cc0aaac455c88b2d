"""Many cases in one test."""

from collections.abc import Callable, Iterable
from functools import wraps
from inspect import signature
from typing import Any

import pytest


def every(names: str | tuple[str, ...], cases: Iterable[Any]) -> Callable[..., Any]:
    """Like pytest.mark.parametrize, but one test: all cases run, one message names what failed.

    It stands above @given, which then draws its examples for each case.
    """
    names = (names,) if isinstance(names, str) else names
    cases = list(cases)
    assert cases, "a test without cases cannot fail"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def run(**others: Any) -> None:
            errors: list[BaseException] = []
            failed: list[str] = []
            for case in cases:
                values = dict(zip(names, case if len(names) > 1 else (case,), strict=True))
                try:
                    test(**values, **others)
                except (Exception, pytest.fail.Exception) as error:
                    errors.append(error)
                    failed.append(f"{values}: {type(error).__name__}: {error}")
            if failed:
                message = "\n".join([f"{len(failed)} of {len(cases)} cases failed", *failed])
                raise AssertionError(message) from errors[0]

        whole = signature(test)
        rest = [it for name, it in whole.parameters.items() if name not in names]
        run.__signature__ = whole.replace(parameters=rest)  # type: ignore[attr-defined]
        run.cases = cases  # type: ignore[attr-defined]
        return run

    return decorate
