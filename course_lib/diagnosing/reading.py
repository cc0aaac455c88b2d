"""From a folder to the evidence: whatever is there, and whatever it holds.

Nothing here raises for what a file contains: a file that cannot be read becomes a note.
"""

import io
import json
import pickle
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from course_lib.diagnosing.page import Call, Line, Page, Stack, call_of
from course_lib.diagnosing.standing import End, Evidence, Record

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


MOST_RANKS = 100_000
_MOST_BYTES = 64 * 2**20  # of one file: a page has 30 kB
_MOST_CALLS = 20_000  # of one rank
_LOG_CHARACTERS = 16_384
_BEHIND_S = 1.0  # a page is written four times a second
_PAGE = re.compile(r"rank(\d{1,6})\.json")
_DUMP = re.compile(r".*(?:trace|rank)_?(\d{1,6})(?:\.pickle|\.pkl)?")
_FATAL = re.compile(r"Fatal Python error: (.+)")
_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>.+)')


def read(folder: Path) -> Evidence:
    """All records of the folder. Raises OSError where the folder itself cannot be read."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    notes: list[str] = []
    pages: dict[int, Page] = {}
    for path in files:
        if match := _PAGE.fullmatch(path.name):
            page = _tried(path, notes, lambda path: page_of(_json(path)))
            _add(pages, page, int(match[1]), path, notes)
    for path in files:
        match = _DUMP.fullmatch(path.name)
        if match and path.suffix in ("", ".pickle", ".pkl") and int(match[1]) not in pages:
            rank = int(match[1])
            page = _tried(path, notes, partial(_dump, rank))
            _add(pages, page, rank, path, notes)
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
                rank, pages.get(rank), ends.get(rank), log, crash, fatal[1] if fatal else "",
                aborted_outside(dump), bool(terms.get(rank)), behind_s.get(rank, 0.0),
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
    """What `reader` makes of the file, or None and a note."""
    try:
        return reader(path)
    except Exception as error:  # whatever a hostile or half-written file does
        words = " ".join(str(error).split())[:120] or type(error).__name__
        notes.append(f"{path.name} could not be read ({words}): it was left out")
        return None


def _bytes(path: Path) -> bytes:
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"it has more than {_MOST_BYTES >> 20} MiB")
    return path.read_bytes()


def _dump(rank: int, path: Path) -> Page:
    return page_of_dump(_bytes(path), rank)


def _json(path: Path) -> Any:
    return json.loads(_bytes(path))


def _of_one_launch(pages: dict[int, Page], known: str, notes: list[str]) -> dict[int, Page]:
    """The pages of the launch that launch.json is of, or of the last one."""
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
    """The same, each group called by its name and its ranks: one name may be of several groups."""
    keys = {name: f"{name}: {ranks}" for name, ranks in page.groups.items()}
    return replace(
        page,
        groups={keys[name]: ranks for name, ranks in page.groups.items()},
        calls=tuple(replace(call, group=keys.get(call.group, call.group)) for call in page.calls),
    )


def _updated(page: Page, last: tuple[Line, ...], behind_s: float) -> Page:
    """A page that stopped early: what holds Python's lock stops the page, not faulthandler."""
    if page.state != "running" or behind_s <= _BEHIND_S:
        return page
    page = replace(page, still_s=page.still_s + behind_s)
    if not last:
        return page
    inside = any(line.torch for line in last)
    calls = page.calls if inside else tuple(replace(call, over=True) for call in page.calls)
    return replace(page, stack=last, since=(), message="", peer=-1, calls=calls)


def _texts(pages: dict[int, Page]) -> dict[tuple[str, int], str]:
    """What is written in the lines that some page quotes; a crash has numbers alone."""
    quoted = [line for page in pages.values() for call in page.calls for line in call.path]
    return {(line.file, line.line): line.text for line in quoted if line.text}


def _text(path: Path) -> str:
    try:
        return _bytes(path).decode("utf-8", errors="replace")[-_LOG_CHARACTERS:]
    except (OSError, ValueError):
        return ""


def crash_of(dump: str) -> tuple[Line, ...]:
    """The main thread's lines in faulthandler's dump, the innermost last; it is dumped last."""
    threads = []
    for part in dump.split("\n\n"):
        matches = [match for match in map(_FRAME.match, part.splitlines()) if match]
        lines = [Line(match["file"], int(match["line"]), match["name"]) for match in matches]
        if any(line.own for line in lines):
            threads.append(tuple(lines[::-1]))
    return threads[-1] if threads else ()


def aborted_outside(dump: str) -> bool:
    """Whether faulthandler saw an abort, and no thread of Python was the current one."""
    return "Fatal Python error: Aborted" in dump and "Current thread" not in dump


def _ends(launch: dict[str, Any], notes: list[str]) -> dict[int, End]:
    found = {}
    entries = launch.get("ends")
    for entry in entries if isinstance(entries, list) else ():
        try:
            rank, code = int(entry["rank"]), entry["exit_code"]
            if not 0 <= rank < MOST_RANKS:
                raise ValueError
            found[rank] = End(
                exit_code=None if code is None else int(code),
                returned=entry["returned"] is True,
                reason=str(entry["reason"])[:_LOG_CHARACTERS],
                time_up=bool(entry["stack"]),
                stack=crash_of(str(entry["stack"])[:_LOG_CHARACTERS]),
            )
        except (KeyError, TypeError, ValueError):
            notes.append("launch.json has an entry that is none: it was left out")
    return found


# --- from JSON to a page ----------------------------------------------------------------------


def page_of(data: Any) -> Page:
    """A page from what its file holds. Raises KeyError, TypeError or ValueError for others."""
    page = Page(
        rank=_whole(data["rank"]),
        world=_whole(data["world"]),
        launch=str(data["launch"])[:100],
        state=str(data["state"]),
        at_s=float(data["at_s"]),
        still_s=float(data["still_s"]),
        step=_whole(data["step"]),
        steps=_whole(data["steps"]),
        error=str(data["error"])[:_LOG_CHARACTERS],
        reason=str(data["reason"])[:_LOG_CHARACTERS],
        peer=int(data["peer"]),
        message=str(data["message"])[:40],
        tag=int(data.get("tag", 0)),
        pid=_whole(data.get("pid", 0)),
        locked_by=_whole(data.get("locked_by", 0)),
        hears=data.get("hears") is True,
        stack=_lines(data["stack"]),
        since=_stacks(data["since"]),
        all=_stacks(data["all"]),
        groups={
            str(name): tuple(_whole(rank) for rank in _some(ranks, MOST_RANKS))
            for name, ranks in data["groups"].items()
        },
        calls=tuple(_call(entry) for entry in _some(data["calls"], _MOST_CALLS)),
    )
    if page.state not in ("joining", "running", "returned", "failed"):
        raise ValueError("its state is none that a rank can have")
    if not (abs(page.at_s) < 1e12 and 0 <= page.still_s < 1e9):
        raise ValueError("its times are none")
    return page


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 10**18:
        raise ValueError("a number in it is not one that counts something")
    return value


def _some(values: Any, most: int) -> Iterable[Any]:
    if values is None:
        return ()
    if not isinstance(values, list) or len(values) > most:
        raise ValueError(f"a list in it is none, or has more than {most:,} entries")
    return values


def _lines(values: Any) -> tuple[Line, ...]:
    return tuple(_line(value) for value in _some(values, 1000))


def _line(value: Any) -> Line:
    return Line(
        str(value["file"])[:1000],
        _whole(value["line"]),
        str(value["function"])[:200],
        str(value["text"])[:1000],
    )


def _stacks(values: Any) -> tuple[Stack, ...]:
    return tuple(Stack(_whole(v["samples"]), _lines(v["lines"])) for v in _some(values, 1000))


def _call(value: Any) -> Call:
    call = Call(
        group=str(value["group"])[:200],
        number=_whole(value["number"]),
        operation=str(value["operation"])[:100],
        name=str(value["name"])[:100],
        sizes=tuple(tuple(_whole(n) for n in _some(s, 100)) for s in _some(value["sizes"], 10_000)),
        dtypes=tuple(str(kind)[:40] for kind in _some(value["dtypes"], 10_000)),
        over=value["over"] is True,
        at_s=float(value["at_s"]),
        path=_lines(value["path"]),
        root=int(value.get("root", -1)),
        operator=str(value.get("operator", ""))[:40],
    )
    if not abs(call.at_s) < 1e12:
        raise ValueError("its times are none")
    return replace(call, number=max(call.number, 1))
