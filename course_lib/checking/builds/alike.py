"""Compares a structured value with the right one: wrong types, missing and different parts."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from course_lib.checking.exercises import Unanswered, Wrong
from course_lib.checking.helpers import described
from course_lib.checking.values import kind_of_wrong

_NEAR = 1e-6
_KINDS: dict[type, tuple[Any, str]] = {
    int: (int, "a whole number"),
    float: ((int, float), "a number"),
    str: (str, "a text"),
    list: ((list, tuple), "a list"),
    tuple: ((list, tuple), "a list"),
    dict: (dict, "a dict"),
}


def expect_kind(given: Any, kind: type, what: str, of: type | None = None) -> None:
    """Raise Unanswered for None, and Wrong for another type; a tuple counts as a list.

    `of`: the type of the elements of a list.
    """
    if given is None:
        raise Unanswered(f"{what} is None")
    types, words = _KINDS.get(kind, (kind, f"a {kind.__name__}"))
    if of:
        part_types, part_words = _KINDS.get(of, (of, of.__name__))
        words += f" of {part_words.removeprefix('a ')}s"
    if not isinstance(given, types) or isinstance(given, bool):
        raise Wrong(f"{what} wants {words}, got {described(given)}")
    for part in given if of else ():
        if not isinstance(part, part_types) or isinstance(part, bool):
            raise Wrong(f"{what} wants {words}, and has {described(part)}")


def expect_alike(given: Any, right: Any, what: str, meant: Mapping[str, str] = {}) -> None:
    """Raise Wrong at the first part that differs from that of `right`, and Unanswered for None.

    `meant` describes parts by name: {"crc32": "the checksum of its file's bytes"}. A part that is
    None in `right` may be anything, and a dict may have more keys. Floats may differ by a relative
    10^-6.
    """
    expect_kind(given, type(right), what)
    if isinstance(right, list | tuple) and len(given) != len(right):
        raise Wrong(f"{what} has {len(given)} parts, expected {len(right)}")
    parts, given_parts = _parts_of(right), _parts_of(given)
    for name, part in parts.items():
        one, where = given_parts.get(name), f"{what}: {name}"
        if part is None or one == part:
            continue
        if one is None:
            raise Wrong(f"{where} is missing")
        if twin := next((other for other, value in parts.items() if value == one), ""):
            raise Wrong(f"{where} is {described(one)}, which is {twin}")
        if _parts_of(part):
            expect_alike(one, part, where, meant)
            continue
        expect_kind(one, type(part), where)
        if not (isinstance(part, float) and abs(one - part) <= _NEAR * abs(part)):
            kind = kind_of_wrong(one, part) if isinstance(part, float) else "expected another"
            raise Wrong(f"{where} is {one!r}: {meant.get(name, kind)}")


def _parts_of(value: Any) -> dict[str, Any]:
    """The parts of a container or dataclass by name; {} for a number or a text."""
    if isinstance(value, Mapping):
        return {str(key): part for key, part in value.items()}
    if isinstance(value, list | tuple):
        return {f"part {number}": part for number, part in enumerate(value, start=1)}
    if is_dataclass(value):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    return {}
