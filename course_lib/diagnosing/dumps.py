"""torch's own dumps: what NCCL's watchdog writes to TORCH_NCCL_DEBUG_INFO_TEMP_FILE + rank.

They are pickles, and a pickle can run any program while it is read. A dump holds nothing but dicts,
lists, words and numbers, so that every other thing is refused.
"""

import io
import json
import pickle
import re
from typing import Any, NoReturn

from course_lib.diagnosing.entries import call_of
from course_lib.diagnosing.page import Call, Page

DUMP = "dump"  # what a page of a dump has in the place of its launch
_MESSAGE = re.compile(r"(?P<way>send|recv) (?P<me>\d+)(?:->|<-)(?P<peer>\d+)")


class _Plain(pickle.Unpickler):
    """Reads containers, words and numbers, which need no class."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no dump of torch's needs")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError(f"it asks for {pid}, which no dump of torch's needs")


def page_of_dump(data: bytes, rank: int) -> Page:
    """A page from a dump: its collectives, without stacks or an end.

    Raises what reading raises: ValueError, KeyError, TypeError or UnpicklingError.
    """
    dump = json.loads(data) if data[:1] in (b"{", b" ") else _Plain(io.BytesIO(data)).load()
    if not isinstance(dump, dict):
        raise ValueError("it is no dump of a flight recorder")
    entries = [entry for entry in dump["entries"] if isinstance(entry, dict)]
    groups = {
        str(name): tuple(int(member) for member in _ranks(config))
        for name, config in dict(dump.get("pg_config") or {}).items()
        if str(name)  # gloo's is of no group
    }
    calls = tuple(call_of(entry) for entry in entries if not entry.get("is_p2p"))
    message, peer = _message(entries, groups)
    return Page(
        rank=rank,
        world=max([rank + 1, *(len(ranks) for ranks in groups.values()), *_largest(groups)]),
        launch=DUMP,
        at_s=max((call.at_s for call in calls), default=0.0),
        # Dumps are written when a time limit of minutes has passed.
        still_s=float(min((int(e.get("timeout_ms") or 0) for e in entries), default=0)) / 1000,
        message=message,
        peer=peer,
        groups={name: ranks for name, ranks in groups.items() if ranks},
        calls=_numbered(calls),
    )


def _ranks(config: Any) -> list[Any]:
    ranks = config.get("ranks", []) if isinstance(config, dict) else []
    found = json.loads(ranks) if isinstance(ranks, str) else ranks
    return found if isinstance(found, list) else []


def _largest(groups: dict[str, tuple[int, ...]]) -> list[int]:
    return [rank + 1 for ranks in groups.values() for rank in ranks if 0 <= rank < 100_000]


def _message(entries: list[dict[str, Any]], groups: dict[str, tuple[int, ...]]) -> tuple[str, int]:
    """The send or receive in which the rank is, if that is its last entry."""
    last = entries[-1] if entries else {}
    match = _MESSAGE.search(str(last.get("profiling_name", "")))
    if not last.get("is_p2p") or match is None or last.get("state") == "completed":
        return "", -1
    ranks = groups.get(str(last["process_group"][0]), ())
    peer = int(match["peer"])
    return match["way"], ranks[peer] if peer < len(ranks) else peer


def _numbered(calls: tuple[Call, ...]) -> tuple[Call, ...]:
    return tuple(call for call in calls if call.number > 0)
