"""The learner's progress: one JSON file in the learner's folder or data folder, never in a clone.

A file with a value that no check would write is damaged and is set aside.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from course_lib.home import home

VERSION = 1
# The type of each field: int is a count; list has the revised predictions.
_FIELDS: Mapping[str, Mapping[str, type]] = {
    "exercises": {
        **dict.fromkeys(("status", "first_pass", "verdict"), str),
        **dict.fromkeys(("attempts", "hints"), int),
        "seen": bool,
    },
    "predictions": {
        **dict.fromkeys(("unit", "question", "at"), str),
        **dict.fromkeys(("yours", "found", "theory", "measured"), float),
        "revised": list,
    },
    "capstone": {"at": str},  # a plan and a run; the report of chapter 17 validates the rest
    "hunts": {"best_s": float, "doctor_s": float, "at": str},
    "quizzes": {**dict.fromkeys(("right", "of", "best"), int), "at": str},
    "route": {"name": str},
}


def _is(kind: type, value: object) -> bool:
    """Whether the value is of this kind and one that a check would write."""
    if kind is list:
        return isinstance(value, list) and all(
            isinstance(one, dict) and _is(float, one.get("yours")) for one in value
        )
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return abs(value) <= sys.float_info.max  # false for NaN as well
    return type(value) is kind and not (isinstance(value, int) and value < 0)


def empty() -> dict[str, Any]:
    """The data of an empty progress file."""
    return {"version": VERSION, **{section: {} for section in _FIELDS}}


def is_newer(data: Mapping[str, Any]) -> bool:
    """Whether a newer version of the course wrote the data, whose format may differ."""
    return bool(data["version"] > VERSION)


def complete(data: object) -> dict[str, Any] | None:
    """The data with missing sections added; None if a value is not one that a check would write.

    Unknown names are left as they are. Of a newer version's data, only the version is validated.
    """
    if not isinstance(data, dict) or not _is(int, data.get("version", VERSION)):
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
    return all(_is(known[key], value) for key, value in record.items() if key in known)


# A write takes about a millisecond; a longer wait than this means that the machine is stuck.
LOCK_TIMEOUT_S = 5.0

_noted: set[str] = set()


def path() -> Path:
    """The path of the progress file, whether or not it exists."""
    return home() / "progress.json"


def now() -> str:
    """The current UTC time as ISO text, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def local(at: str) -> str:
    """Convert a time of `now()` to local time: "2026-11-24 06:42"."""
    with suppress(ValueError):  # an edited text is shown as it is
        return datetime.fromisoformat(at).astimezone().strftime("%Y-%m-%d %H:%M")
    return at


def read() -> dict[str, Any]:
    """All records: {"exercises": {id: record}, "predictions": …, "quizzes": …}.

    A missing or unreadable file reads as empty; a damaged one is set aside, with a message.
    """
    try:
        data = complete(_parsed(path().read_bytes()))
    except OSError:
        return empty()
    if data is None:
        _set_aside_damaged()
        return empty()
    if is_newer(data):
        newer = f"a newer version of the course wrote {path()}"
        _note(f"progress is not saved: {newer}; run `course upgrade`")
    return data


def update(section: str, key: str, change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Let `change` edit the record `key` of a section and save it; returns the record.

    If the folder cannot be written, or a newer version of the course wrote the file, nothing is
    saved; a note says so once.
    """
    import filelock

    folder = _target().parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(folder / "progress.lock", timeout=LOCK_TIMEOUT_S):
            data = read()
            record: dict[str, Any] = data[section].setdefault(key, {})
            change(record)
            if not is_newer(data):
                _write(data)
            return record
    # On a file system without locks, filelock raises the second of these.
    except (OSError, NotImplementedError, filelock.Timeout) as error:
        reason = getattr(error, "strerror", None) or "the file is locked by another program"
        _note(
            f"progress is not saved: {folder} cannot be written ({reason}); "
            "set COURSE_HOME to a folder of yours"
        )
        record = dict(read()[section].get(key, {}))
        change(record)
        return record


def set_aside(word: str) -> Path:
    """Rename the progress file to progress.<word>-<n>.json and return the new path.

    Raises OSError if there is no file or it cannot be renamed.
    """
    number, file = 1, _target()
    while (aside := file.with_name(f"progress.{word}-{number}.json")).exists():
        number += 1
    os.replace(file, aside)
    return aside


def _target() -> Path:
    """The progress file, following a symbolic link, to a synchronised folder for example."""
    return Path(os.path.realpath(path())) if os.path.islink(path()) else path()


def _parsed(text: bytes) -> object:
    """Parse JSON; None if it is invalid or could not be written back."""
    try:
        data = json.loads(text.decode("utf-8"))
        _text(data)
    except (ValueError, RecursionError):
        return None
    return data


def _text(data: object) -> bytes:
    text = json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False)
    return f"{text}\n".encode()


def _set_aside_damaged() -> None:
    try:
        aside = set_aside("corrupt")
    except FileNotFoundError:
        return  # another kernel has just set it aside
    except OSError:
        _note(f"{path()} cannot be read as progress: rename or remove it")
    else:
        _say(f"The progress file was damaged; it is kept as {aside} and a new one is begun.")


def _write(data: dict[str, Any]) -> None:
    # Write a temporary file and rename it, so that no reader ever sees half a file. Only the holder
    # of the lock writes it; a leftover of a killed kernel is overwritten.
    target = _target()
    half = target.with_name("progress.tmp")
    half.write_bytes(_text(data))
    os.replace(half, target)


def _note(sentence: str) -> None:
    if sentence not in _noted:
        _noted.add(sentence)
        _say(f"[note] {sentence}")


def _say(sentence: str) -> None:
    # Not on stdout, where `course progress --json` prints only JSON.
    print(sentence, file=sys.stderr)
