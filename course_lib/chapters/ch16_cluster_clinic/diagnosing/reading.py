"""Read the records of a launch from a folder, which may lack files or have damaged ones.

The content of a file never raises an error: a file that cannot be read becomes a note.
"""

import io
import json
import pickle
import re
from collections.abc import Callable
from dataclasses import is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, cast, get_args, get_origin, get_type_hints

from course_lib.chapters.ch16_cluster_clinic.diagnosing.standing import End, Evidence, Record
from course_lib.launch.page import NO_PAGE, Line, Page, call_of

DUMP = "dump"  # the launch id of a page made from a flight recorder dump
_MESSAGE = re.compile(r"(?P<way>send|recv) (?P<me>\d+)(?:->|<-)(?P<peer>\d+)")


class _Plain(pickle.Unpickler):
    """An unpickler of containers, strings and numbers only: it refuses to load any class."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no dump of torch's needs")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError(f"it asks for {pid}, which no dump of torch's needs")


def page_of_dump(data: bytes, rank: int) -> Page:
    """Convert a flight recorder dump to a page, which has its collectives but no stacks.

    Raises ValueError, KeyError, TypeError or UnpicklingError for a damaged dump.
    """
    dump = json.loads(data) if data[:1] in (b"{", b" ") else _Plain(io.BytesIO(data)).load()
    if not isinstance(dump, dict):
        raise ValueError("it is no dump of a flight recorder")
    entries = [entry for entry in dump["entries"] if isinstance(entry, dict)]
    groups = {
        str(name): tuple(int(member) for member in _ranks(config))
        for name, config in dict(dump.get("pg_config") or {}).items()
        if str(name)  # gloo's entry has an empty name
    }
    largest = [rank + 1 for ranks in groups.values() for rank in ranks if rank < MOST_RANKS]
    calls = [call_of(entry) for entry in entries if not entry.get("is_p2p")]
    message, peer = _message(entries, groups)
    return Page(
        rank=rank,
        world=max([rank + 1, *(len(ranks) for ranks in groups.values()), *largest]),
        launch=DUMP,
        at_s=max((call.at_s for call in calls), default=0.0),
        # Dumps are written after the timeout, so the rank has waited at least that long.
        still_s=float(min((int(e.get("timeout_ms") or 0) for e in entries), default=0)) / 1000,
        message=message,
        peer=peer,
        groups={name: ranks for name, ranks in groups.items() if ranks},
        calls=tuple(call for call in calls if call.number > 0),
    )


def _ranks(config: Any) -> list[Any]:
    ranks = config.get("ranks", []) if isinstance(config, dict) else []
    found = json.loads(ranks) if isinstance(ranks, str) else ranks
    return found if isinstance(found, list) else []


def _message(entries: list[dict[str, Any]], groups: dict[str, tuple[int, ...]]) -> tuple[str, int]:
    """Direction and peer of the incomplete send or receive in the last entry; else ("", -1)."""
    last = entries[-1] if entries else {}
    match = _MESSAGE.search(str(last.get("profiling_name", "")))
    if not last.get("is_p2p") or match is None or last.get("state") == "completed":
        return "", -1
    ranks = groups.get(str(last["process_group"][0]), ())
    peer = int(match["peer"])
    return match["way"], ranks[peer] if peer < len(ranks) else peer


MOST_RANKS = 100_000
_MOST_BYTES = 64 * 2**20  # limit of one file; a page has about 30 kB
_LARGE = 10**18
_LOG_CHARACTERS = 16_384
_BEHIND_S = 1.0  # a page is written four times a second
_PAGE = re.compile(r"rank(\d{1,6})\.json")
_DUMP = re.compile(r".*(?:trace|rank)_?(\d{1,6})(?:\.pickle|\.pkl)?")
_FATAL = re.compile(r"Fatal Python error: (.+)")
_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>.+)')


def read(folder: Path) -> Evidence:
    """Read all records of the folder. Raises OSError if the folder itself cannot be read."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    notes: list[str] = []
    pages: dict[int, Page] = {}
    for pattern, reader in ((_PAGE, _page), (_DUMP, _dump)):
        for path in files:
            match = pattern.fullmatch(path.name)
            if match and (rank := int(match[1])) not in pages:
                _add(pages, _tried(path, notes, partial(reader, rank)), rank, path, notes)
    path = folder / "launch.json"
    launch = _tried(path, notes, _json) if path.exists() else None
    launch = launch if isinstance(launch, dict) else {}
    known = str(launch.get("launch", ""))
    if pages and known not in {page.launch for page in pages.values()}:
        if launch:
            notes.append("launch.json is of another launch: it was left out")
        known, launch = "", {}
    pages = _of_one_launch(pages, known, notes)
    pages = {rank: _with_own_groups(page) for rank, page in pages.items()}
    ends = _ends(launch, notes)
    newest_s = max((page.at_s for page in pages.values()), default=0.0)
    behind_s = {rank: newest_s - page.at_s for rank, page in pages.items()}
    terms = {rank: _text(folder / f"rank{rank}.term") for rank in pages}
    for rank, page in pages.items():
        end = ends.get(rank)
        last = end.stack if end and end.time_up else crash_of(terms[rank])
        pages[rank] = _updated(page, last, behind_s[rank])
    worlds = [page.world for page in pages.values()]
    count = max([*worlds, *(rank + 1 for rank in (*pages, *ends)), 0])
    texts = _texts(pages)
    records = []
    for rank in range(count):
        dump = _text(folder / f"rank{rank}.crash")
        crash, fatal = crash_of(dump), _FATAL.search(dump)
        crash = tuple(replace(line, text=texts.get((line.file, line.line), "")) for line in crash)
        log = _text(folder / f"rank{rank}.log")
        records.append(
            Record(
                rank, pages.get(rank, NO_PAGE), ends.get(rank), log, crash,
                fatal[1] if fatal else "", aborted_outside(dump), bool(terms.get(rank)),
                behind_s.get(rank, 0.0),
            )
        )  # fmt: skip
    return Evidence(tuple(records), tuple(notes))


def _add(
    pages: dict[int, Page], page: Page | None, rank: int, path: Path, notes: list[str]
) -> None:
    if page is None:
        return
    if page.rank != rank:
        notes.append(f"{path.name} says that it is of rank {page.rank}: it was left out")
    elif not (0 <= page.rank < max(page.world, 1) <= MOST_RANKS):
        notes.append(f"{path.name} is of rank {page.rank} of {page.world}: it was left out")
    else:
        pages[rank] = page


def _tried(path: Path, notes: list[str], reader: Callable[[Path], Any]) -> Any:
    """Return `reader(path)`, or None with a note if it fails."""
    try:
        return reader(path)
    except Exception as error:  # anything that a hostile or half-written file may cause
        words = " ".join(str(error).split())[:120] or type(error).__name__
        notes.append(f"{path.name} could not be read ({words}): it was left out")
        return None


def _bytes(path: Path) -> bytes:
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"it has more than {_MOST_BYTES >> 20} MiB")
    return path.read_bytes()


def _page(_: int, path: Path) -> Page:
    return page_of(_json(path))


def _dump(rank: int, path: Path) -> Page:
    return page_of_dump(_bytes(path), rank)


def _json(path: Path) -> Any:
    return json.loads(_bytes(path))


def _of_one_launch(pages: dict[int, Page], known: str, notes: list[str]) -> dict[int, Page]:
    """The pages of the launch `known` from launch.json, or else of the newest launch."""
    names = {page.launch for page in pages.values()}
    if len(names) < 2:
        return pages
    newest = {name: max(p.at_s for p in pages.values() if p.launch == name) for name in names}
    right = known or max(newest, key=lambda name: newest[name])
    for rank in sorted(pages):
        if pages[rank].launch != right:
            notes.append(f"rank{rank}.json is of another launch or attempt: it was left out")
    return {rank: page for rank, page in pages.items() if page.launch == right}


def _with_own_groups(page: Page) -> Page:
    """Rename each group to its name and ranks, since several groups may share one name."""
    keys = {name: f"{name}: {ranks}" for name, ranks in page.groups.items()}
    return replace(
        page,
        groups={keys[name]: ranks for name, ranks in page.groups.items()},
        calls=tuple(replace(call, group=keys.get(call.group, call.group)) for call in page.calls),
    )


def _updated(page: Page, last: tuple[Line, ...], behind_s: float) -> Page:
    """Update a stale page from faulthandler's stack, which works even if the GIL is held."""
    if page.state != "running" or behind_s <= _BEHIND_S:
        return page
    page = replace(page, still_s=page.still_s + behind_s)
    if not last:
        return page
    inside = any(line.torch for line in last)
    calls = page.calls if inside else tuple(replace(call, over=True) for call in page.calls)
    return replace(page, stack=last, since=(), message="", peer=-1, calls=calls)


def _texts(pages: dict[int, Page]) -> dict[tuple[str, int], str]:
    """Source text by (file, line), from all pages; crash stacks have line numbers only."""
    quoted = [line for page in pages.values() for call in page.calls for line in call.path]
    return {(line.file, line.line): line.text for line in quoted if line.text}


def _text(path: Path) -> str:
    try:
        return _bytes(path).decode("utf-8", errors="replace")[-_LOG_CHARACTERS:]
    except (OSError, ValueError):
        return ""


def crash_of(dump: str) -> tuple[Line, ...]:
    """The main thread's stack in a faulthandler dump, innermost line last; it is dumped last."""
    threads = []
    for part in dump.split("\n\n"):
        matches = [match for match in map(_FRAME.match, part.splitlines()) if match]
        lines = [Line(match["file"], int(match["line"]), match["name"]) for match in matches]
        if any(line.own for line in lines):
            threads.append(tuple(lines[::-1]))
    return threads[-1] if threads else ()


def aborted_outside(dump: str) -> bool:
    """Whether faulthandler saw an abort that came from a non-Python thread."""
    return "Fatal Python error: Aborted" in dump and "Current thread" not in dump


def _ends(launch: dict[str, Any], notes: list[str]) -> dict[int, End]:
    ends = {}
    entries = launch.get("ends")
    for entry in entries if isinstance(entries, list) else ():
        try:
            rank, code = int(entry["rank"]), entry["exit_code"]
            ends[rank] = End(
                exit_code=None if code is None else int(code),
                returned=entry["returned"] is True,
                reason=str(entry["reason"])[:_LOG_CHARACTERS],
                time_up=bool(entry["stack"]),
                stack=crash_of(str(entry["stack"])[:_LOG_CHARACTERS]),
            )
        except (KeyError, TypeError, ValueError):
            notes.append("launch.json has an entry that is none: it was left out")
    return {rank: end for rank, end in ends.items() if 0 <= rank < MOST_RANKS}


def page_of(data: Any) -> Page:
    """Decode a page from JSON data. Raises KeyError, TypeError or ValueError if it is not one."""
    page: Page = _decoded(Page, data)
    if page.state not in ("joining", "running", "returned", "failed"):
        raise ValueError("its state is none that a rank can have")
    return replace(page, calls=tuple(replace(c, number=max(c.number, 1)) for c in page.calls))


def _decoded(kind: Any, value: Any) -> Any:
    """Decode a JSON value as type `kind`: a dataclass, a dict, a tuple, or a plain value."""
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        known = {n: _decoded(of, value[n]) for n, of in hints.items() if n in value}
        return cast(Any, kind)(**known)
    if get_origin(kind) is dict:
        of = get_args(kind)[1]
        return {str(name): _decoded(of, each) for name, each in dict(value).items()}
    if get_origin(kind) is tuple:
        if not isinstance(value, list) or len(value) > MOST_RANKS:
            raise ValueError(f"a list in it is none, or has more than {MOST_RANKS:,} entries")
        return tuple(_decoded(get_args(kind)[0], each) for each in value)
    if kind is bool:
        return value is True
    if kind is str:
        return str(value)[:_LOG_CHARACTERS]
    if isinstance(value, bool) or not isinstance(value, int | kind) or not abs(value) < _LARGE:
        raise ValueError("a number in it is not one that a rank writes")
    return value
