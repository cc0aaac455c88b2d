"""The learner's progress: one JSON file in the user's data folder, never in the repository."""

import json
import os
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

SECTIONS = ("exercises", "predictions", "quizzes")
# Checks write for about a millisecond; whoever waits longer than this meets a stuck machine.
LOCK_TIMEOUT_S = 5.0

_warned: set[str] = set()


def home() -> Path:
    """The folder of the progress file: COURSE_HOME, else the user's data folder."""
    if folder := os.environ.get("COURSE_HOME"):
        return Path(folder).expanduser()
    import platformdirs

    return Path(platformdirs.user_data_dir("large-model-course"))


def path() -> Path:
    """The progress file, whether or not it exists."""
    return home() / "progress.json"


def now() -> str:
    """This moment as ISO text in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def read() -> dict[str, Any]:
    """Everything recorded: {"exercises": {id: record}, "predictions": …, "quizzes": …}.

    A missing or unreadable file reads as empty; a corrupt one is set aside, with a sentence.
    """
    try:
        data = json.loads(path().read_text(encoding="utf-8"))
    except OSError:
        return _empty()
    except ValueError:
        data = None
    if not _well_formed(data):
        _set_aside_corrupt()
        return _empty()
    return {**_empty(), **data}


def update(section: str, key: str, change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Let `change` edit the record `key` of a section and save it; returns the record.

    Where the folder cannot be written, the record lives for this call only; that is said once.
    """
    import filelock

    try:
        home().mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(home() / "progress.lock", timeout=LOCK_TIMEOUT_S):
            data = read()
            record: dict[str, Any] = data[section].setdefault(key, {})
            change(record)
            _write(data)
            return record
    # NotImplementedError is what filelock raises on a file system that has no locks.
    except (OSError, NotImplementedError, filelock.Timeout) as error:
        reason = getattr(error, "strerror", None) or "the file is locked by another program"
        _warn_once(
            f"progress is not saved: {home()} cannot be written ({reason}); "
            "set COURSE_HOME to a folder of yours"
        )
        record = dict(read()[section].get(key, {}))
        change(record)
        return record


def set_aside(word: str) -> Path:
    """Rename the progress file to progress.<word>-<n>.json and return the new path.

    Raises OSError when there is no file or it cannot be renamed.
    """
    number = 1
    while (target := home() / f"progress.{word}-{number}.json").exists():
        number += 1
    os.replace(path(), target)
    return target


def _empty() -> dict[str, Any]:
    return {"version": 1, **{section: {} for section in SECTIONS}}


def _well_formed(data: Any) -> bool:
    if not isinstance(data, dict):
        return False
    sections = [data.get(section, {}) for section in SECTIONS]
    return all(
        isinstance(section, dict) and all(isinstance(record, dict) for record in section.values())
        for section in sections
    )


def _set_aside_corrupt() -> None:
    try:
        target = set_aside("corrupt")
    except FileNotFoundError:
        return  # another kernel has just done it
    except OSError:
        _warn_once(f"{path()} cannot be read as progress: rename or remove it")
    else:
        print(f"The progress file was damaged; it is kept as {target} and a new one is begun.")


def _write(data: dict[str, Any]) -> None:
    # Written beside the target and then renamed, so that no reader ever sees half a file.
    handle, name = tempfile.mkstemp(dir=home(), prefix="progress.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(data, file, indent=1, sort_keys=True, ensure_ascii=False)
            file.write("\n")
        os.replace(name, path())
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _warn_once(sentence: str) -> None:
    if sentence not in _warned:
        _warned.add(sentence)
        print(f"[note] {sentence}")
