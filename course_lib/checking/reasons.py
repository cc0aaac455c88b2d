"""Why a right answer is right: what the comparisons of a check are told, kept while it runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_kept: ContextVar[list[str] | None] = ContextVar("reasons", default=None)


@contextmanager
def kept() -> Iterator[list[str]]:
    """Inside, the reasons of all comparisons that hold are collected in this list, each once."""
    found: list[str] = []
    token = _kept.set(found)
    try:
        yield found
    finally:
        _kept.reset(token)


def keep(reason: str) -> None:
    """A comparison held, because of this."""
    found = _kept.get()
    if found is not None and reason and reason not in found:
        found.append(reason)
