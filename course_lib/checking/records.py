"""What a progress file may hold; anything else in it was broken by hand or on the way."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

VERSION = 1


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_finite(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) <= sys.float_info.max  # false for NaN as well


def _are_revisions(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(one, dict) and _is_finite(one.get("yours")) for one in value
    )


_FIELDS: Mapping[str, Mapping[str, Callable[[object], bool]]] = {
    "exercises": {
        "status": _is_text,
        "attempts": _is_count,
        "hints": _is_count,
        "seen": _is_flag,
        "first_pass": _is_text,
        "verdict": _is_text,
    },
    "predictions": {
        "yours": _is_finite,
        "unit": _is_text,
        "question": _is_text,
        "at": _is_text,
        "revised": _are_revisions,
        "found": _is_finite,
        "theory": _is_finite,
        "measured": _is_finite,
    },
    "capstone": {"at": _is_text},  # a plan and a run; course_lib.reporting reads the rest of them
    "hunts": {"best_s": _is_finite, "doctor_s": _is_finite, "at": _is_text},
    "quizzes": {"right": _is_count, "of": _is_count, "best": _is_count, "at": _is_text},
}


def empty() -> dict[str, Any]:
    """A progress file with nothing in it."""
    return {"version": VERSION, **{section: {} for section in _FIELDS}}


def is_newer(data: Mapping[str, Any]) -> bool:
    """Whether a newer version of the course wrote this, whose records may mean something else."""
    return bool(data["version"] > VERSION)


def complete(data: object) -> dict[str, Any] | None:
    """The data with every section, or None when a value is not what a check would have written.

    Names that are not known are left as they are; of a newer version only the version is judged.
    """
    if not isinstance(data, dict) or not _is_count(data.get("version", VERSION)):
        return None
    whole = {**empty(), **data}
    if all(_is_section(section, whole[section]) for section in _FIELDS):
        return whole
    return {**empty(), "version": whole["version"]} if is_newer(whole) else None


def _is_section(name: str, section: object) -> bool:
    return isinstance(section, dict) and all(
        isinstance(record, dict) and _is_record(name, record) for record in section.values()
    )


def _is_record(section: str, record: Mapping[str, object]) -> bool:
    known = _FIELDS[section]
    if section == "predictions" and ("yours" in record) != ("at" in record):
        return False
    return all(known[key](value) for key, value in record.items() if key in known)
