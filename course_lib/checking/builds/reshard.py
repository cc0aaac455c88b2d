"""Build 15.11: a checkpoint in shards, saved whole or not at all, loaded on any number of ranks."""

import json
import os
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from course_lib.checking.build import Step, build
from course_lib.checking.builds.compared import expect_tensor
from course_lib.checking.builds.ranks import on_ranks
from course_lib.checking.exercises import Unanswered, Wrong
from course_lib.checking.helpers import described
from course_lib.checking.races import Race

if TYPE_CHECKING:
    from torch import Tensor

_LAYOUT = {"weight": [5, 3, 2], "bias": [7]}
_TOTAL = 37  # columns: no number of ranks divides them
_OTHER_MODEL = {"weight": [3, 5, 2], "bias": [7]}  # of as many columns
_SAVED = "step-00000004"
_LATE_S = 0.5  # how long a shard is held back, to see whether the manifest waits for it


@dataclass
class _Files:
    """What this process does with the files of a folder, in order."""

    folder: str
    written: list[str] = field(default_factory=list)  # opened for writing
    read: list[str] = field(default_factory=list)
    renamed: list[tuple[str, str, int]] = field(default_factory=list)  # from, to, bytes by then
    # At each fsync: the renames before it, and the size of what is on the disk then.
    synced: list[tuple[int, int]] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)  # files and folders
    complete: list[int] = field(default_factory=list)  # checkpoints at each removal
    before_rename: Callable[[str], None] = lambda _: None

    def heard(self, event: str, args: tuple[Any, ...]) -> None:
        """An audit hook: Python calls it for each file that is opened or renamed."""
        if event == "open" and isinstance(args[0], str | bytes | os.PathLike):
            path = os.path.abspath(os.fsdecode(args[0]))
            if path.startswith(self.folder):
                flags = args[2] if isinstance(args[2], int) else 0
                changes = bool(set(args[1] or "") & set("wax+")) or flags & os.O_ACCMODE
                (self.written if changes else self.read).append(os.path.relpath(path, self.folder))
        if event in ("os.remove", "shutil.rmtree"):
            path = os.path.abspath(os.fsdecode(args[0]))
            if path.startswith(self.folder):
                self.removed.append(os.path.relpath(path, self.folder))
                self.complete.append(len(list(Path(self.folder).rglob("manifest.json"))))
        if event == "os.rename":
            source, target = (os.path.abspath(os.fsdecode(path)) for path in args[:2])
            if target.startswith(self.folder):
                size = os.path.getsize(source) if os.path.isfile(source) else 0
                source, name = (os.path.relpath(path, self.folder) for path in (source, target))
                self.renamed.append((source, name, size))
                self.before_rename(os.path.basename(target))


def _watched(folder: str | Path) -> _Files:
    """Follow the files of a folder from now on, for as long as this rank lives."""
    files = _Files(os.path.abspath(folder))
    sys.addaudithook(files.heard)
    for name in ("fsync", "fdatasync"):
        if hasattr(os, name):
            setattr(os, name, _noting(files, getattr(os, name)))
    return files


def _noting(files: _Files, real: Callable[[Any], None]) -> Callable[[Any], None]:
    def sync(descriptor: Any) -> None:
        files.synced.append((len(files.renamed), os.fstat(descriptor).st_size))
        real(descriptor)

    return sync


# --- a file, whole or not at all --------------------------------------------------------------


def _writes(write_whole: Any, folder: str) -> dict[str, Any]:
    """On a rank: a new file, another in its place, and an empty one; each rank has its own."""
    import torch.distributed as dist

    files, path = _watched(folder), Path(folder) / f"{'ab'[dist.get_rank()]}.shard"
    found = []
    for data in _DATA:
        write_whole(path, data)
        found.append(path.read_bytes() == data if path.exists() else None)
    dist.barrier()
    left = [found.name for found in Path(folder).iterdir() if found.suffix != ".shard"]
    return {"found": found, "left": left, "name": path.name} | vars(files)


_DATA = (b"old" * 1000, b"new" * 700, b"")


def _whole(parts: SimpleNamespace) -> None:
    with tempfile.TemporaryDirectory(prefix="course_check_") as folder:
        outcomes = on_ranks(_writes, parts.write_whole, folder, ranks=2)
    for found in (one.value for one in outcomes):
        _expect_whole(found)
    first, second = ({source for source, _, _ in one.value["renamed"]} for one in outcomes)
    if first & second:
        raise Wrong(
            "write_whole: two ranks that write two files of one folder at the same time put their "
            f"data into one file first, {min(first & second)}"
        )


def _expect_whole(found: dict[str, Any]) -> None:
    """Each file has its data, and came to be by one rename of what was on the disk."""
    if found["found"][0] is None:
        raise Wrong("write_whole(path, data): there is no file at `path` afterwards")
    if not all(found["found"]):
        what = "data of 0 bytes" if all(found["found"][:2]) else "`data`"
        raise Wrong(f"write_whole(path, data): the file at `path` does not hold {what}")
    if found["name"] in found["written"]:
        raise Wrong(
            "write_whole opens `path` itself for writing: who reads it at that moment, or after a "
            "crash, finds half a file"
        )
    if found["name"] in found["removed"]:
        raise Wrong(
            "write_whole removes the old file first: who reads `path` at that moment, or after a "
            "crash, finds neither the old nor the new one"
        )
    renamed = found["renamed"]
    if len(renamed) != len(_DATA) or any(os.sep in source for source, _, _ in renamed):
        raise Wrong(
            "write_whole: the data must be written beside `path`, in the same folder, and get its "
            "name by one rename: between two disks a rename is a copy"
        )
    sizes = [len(data) for data in _DATA]
    if [size for _, _, size in renamed] != sizes:
        raise Wrong(
            "write_whole renames the file before all of it is written: what is still in Python's "
            "buffer comes later"
        )
    if found["left"]:
        raise Wrong(f"write_whole leaves {min(found['left'])} behind")
    synced = found["synced"]
    if not {0, 1} <= {renames for renames, _ in synced}:
        raise Wrong(
            "write_whole does not ask for the data to be on the disk (os.fsync) before the rename: "
            "after a power failure the name would be there and the data not"
        )
    if not {(0, sizes[0]), (1, sizes[1])} <= {*synced}:
        raise Wrong(
            "write_whole calls os.fsync before all data have left Python's buffer: what comes "
            "later may not be on the disk when the file gets its name"
        )


# --- saving -----------------------------------------------------------------------------------


def _columns(ranks: int) -> list[tuple[int, int]]:
    return [(_TOTAL * rank // ranks, _TOTAL * (rank + 1) // ranks) for rank in range(ranks)]


def _state(step: int = 4) -> "Tensor":
    """(3, 37): what all ranks hold together."""
    import torch

    return torch.arange(3.0 * _TOTAL).view(3, _TOTAL) / 7 + step


@dataclass(frozen=True)
class _Saved:
    """What is saved by which of the ranks; no `members`: by all, without a group."""

    steps: tuple[int, ...]
    keep: int
    members: tuple[int, ...] = ()


_SAVES = (_Saved((4, 8, 12), 2), _Saved((4, 8), 1, (1, 3)))


def _saves(save_shard: Any, folder: str) -> list[dict[str, Any]]:
    """On a rank: what it does in each case of _SAVES, and nothing where it is not a member."""
    import torch.distributed as dist

    found: list[dict[str, Any]] = []
    for place, case in enumerate(_SAVES):
        group = dist.new_group(list(case.members)) if case.members else None
        if not case.members or dist.get_rank() in case.members:
            where = Path(folder) / f"new{place}" / "run"  # a folder that is not there yet
            found.append(_saves_by(save_shard, where, case, group))
    return found


def _saves_by(save_shard: Any, folder: Path, case: _Saved, group: Any) -> dict[str, Any]:
    """On a rank: the checkpoints of these steps; in the first one some files come late."""
    import torch.distributed as dist

    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    manifest, early = folder / _SAVED / "manifest.json", []

    def late(target: str) -> None:
        """Hold the shards of ranks after 0 back, and the manifest a little."""
        until_s = time.monotonic() + _LATE_S
        while target.endswith(".shard") and rank and time.monotonic() < until_s:
            if manifest.exists():
                return early.append(target)
            time.sleep(0.01)
        if not rank and target == manifest.name:
            time.sleep(_LATE_S / 2)

    files = _watched(folder)
    if not case.members:
        files.before_rename = late
    start, stop = _columns(ranks)[rank]
    there, returned = [], []
    for step in case.steps:
        shard = _state(step)[:, start:stop]
        returned.append(save_shard(folder, step, shard, _LAYOUT, group, keep=case.keep))
        there.append((folder / f"step-{step:08d}" / manifest.name).exists())
        files.before_rename = lambda _: None
    expected = [folder / f"step-{step:08d}" for step in case.steps]
    wrong = [one for one, right in zip(returned, expected, strict=True) if one != right]
    return {
        "early": early,
        "there": there,
        "returned": [described(one) for one in wrong],
        "in place": [os.path.basename(name) for name in files.written],
        "named": [os.path.basename(target) for _, target, _ in files.renamed],
        "too soon": any(number <= case.keep for number in files.complete),
    }


def _save(parts: SimpleNamespace) -> None:
    with tempfile.TemporaryDirectory(prefix="course_check_", ignore_cleanup_errors=True) as name:
        outcomes = on_ranks(_saves, parts.save_shard, name, ranks=4)
        for place, case in enumerate(_SAVES):
            members = case.members or tuple(range(4))
            found = [outcomes[rank].value[0 if rank == 0 else place] for rank in members]
            _expect_case(Path(name) / f"new{place}" / "run", case, found)


def _expect_case(folder: Path, case: _Saved, found: list[dict[str, Any]]) -> None:
    """What the ranks of one case did, and what is on the disk after it."""
    ranks = len(found)
    by = f"a group of {ranks} ranks" if case.members else f"{ranks} ranks"
    for rank, one in enumerate(found):
        _expect_order(one, f"rank {rank} of {by if case.members else ranks}", rank)
    kept = sorted(path.parent.name for path in folder.glob("*/manifest.json"))
    right = [f"step-{step:08d}" for step in case.steps[-case.keep :]]
    if kept != right:
        raise Wrong(
            f"after steps {case.steps} with keep={case.keep} the complete checkpoints are {kept}, "
            f"expected {right}"
        )
    _expect_saved(folder / right[-1], case.steps[-1], ranks, by)


def _expect_order(found: dict[str, Any], who: str, rank: int) -> None:
    if rank and "manifest.json" in found["named"] + found["in place"]:
        raise Wrong(f"{who} writes the manifest as well: one rank writes it for all")
    own = {f"rank{rank}.shard", "manifest.json"}
    others = [name for name in found["named"] if name not in own]
    if others:
        raise Wrong(f"{who} writes {others[0]}: each rank writes its own file, and no other")
    direct = [name for name in found["in place"] if name in own]
    if direct:
        raise Wrong(f"{who} opens {direct[0]} itself for writing: write_whole is made for that")
    if found["early"]:
        raise Wrong(
            f"{who}: the manifest is there before the shard of this rank is: a crash between the "
            "two leaves a checkpoint that looks complete"
        )
    if not all(found["there"]):
        raise Wrong(
            f"{who}: save_shard has returned and there is no manifest yet: who loads now finds "
            "nothing"
        )
    if found["too soon"]:
        raise Wrong(
            f"{who} removes an old checkpoint before the new one is complete: after a crash fewer "
            "than `keep` would be left"
        )
    if found["returned"]:
        raise Wrong(f"{who}: save_shard returns {found['returned'][0]}, expected the folder's Path")


def _expect_saved(path: Path, step: int, ranks: int, by: str) -> None:
    """The files of a checkpoint hold the state, and the manifest says what they are."""
    shards = {f"rank{rank}.shard" for rank in range(ranks)}
    found = {file.name for file in path.iterdir()}
    if found != shards | {"manifest.json"}:
        raise Wrong(f"{by}: the checkpoint has the files {sorted(found)}")
    entries = []
    for rank, (start, stop) in enumerate(_columns(ranks)):
        data = (path / f"rank{rank}.shard").read_bytes()
        if data != _bytes(_state(step)[:, start:stop]):
            raise Wrong(f"rank{rank}.shard of {by} {_unlike(data, step, start, stop)}")
        entries.append({"bytes": len(data), "crc32": zlib.crc32(data)})
    try:
        manifest = json.loads((path / "manifest.json").read_text())
    except ValueError:
        raise Wrong(f"{by}: manifest.json is no JSON") from None
    right = {"step": step, "layout": _LAYOUT, "shards": entries}
    if not isinstance(manifest, dict) or set(manifest) != set(right):
        raise Wrong(f"the manifest wants the keys step, layout, shards, got {described(manifest)}")
    for key, meant in (("step", "the step"), ("layout", "the layout")):
        if manifest[key] != right[key]:
            raise Wrong(f"{by}: {key!r} of the manifest is {manifest[key]}, expected {meant} given")
    _expect_entries(manifest["shards"], entries, by)


def _expect_entries(found: Any, right: list[dict[str, int]], by: str) -> None:
    """In words, which entry of the manifest is not that of its rank, and in what."""
    what = f"{by}: 'shards' of the manifest"
    if not isinstance(found, list) or len(found) != len(right):
        many = f"{len(found)} entries" if isinstance(found, list) else described(found)
        raise Wrong(f"{what} has {many}, expected a list with one entry for each rank")
    for rank, (one, its) in enumerate(zip(found, right, strict=True)):
        if not isinstance(one, dict) or {*one} != {*its}:
            raise Wrong(
                f"{what}: entry {rank} wants the keys bytes and crc32, got {described(one)}"
            )
        if one == its:
            continue
        if one in right:
            raise Wrong(f"{what}: entry {rank} is that of rank {right.index(one)}")
        name = next(name for name in its if one[name] != its[name])
        meant = {"bytes": "the size of its file", "crc32": "the checksum of its file's bytes"}
        raise Wrong(f"{what}: {name} of entry {rank} is {one[name]}, expected {meant[name]}")


def _unlike(data: bytes, step: int, start: int, stop: int) -> str:
    if len(data) != 12 * (stop - start):
        return f"has {len(data)} bytes, expected 4 for each number of a shard (3, {stop - start})"
    if data == _bytes(_state(step)[:, start:stop].t()):
        return "has the shard column by column, expected row by row"
    return "has other numbers than the shard of that rank"


def _bytes(tensor: "Tensor") -> bytes:
    return bytes(tensor.contiguous().numpy().tobytes())


# --- loading ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Case:
    """A checkpoint that `writers` ranks have saved, what is wrong with it, how it is loaded."""

    writers: int
    damaged: int | None = None
    manifest: bool = True
    layout: dict[str, list[int]] = field(default_factory=lambda: _LAYOUT)
    reshard: bool = True

    @property
    def step(self) -> int:
        """Each has another one."""
        return 4 + self.writers

    def write(self, folder: Path) -> Path:
        """The files, as so many ranks would have saved them."""
        path = Path(tempfile.mkdtemp(dir=folder)) / f"step-{self.step:08d}"
        path.mkdir()
        entries = []
        for rank, (start, stop) in enumerate(_columns(self.writers)):
            data = _bytes(_state()[:, start:stop])
            entries.append({"bytes": len(data), "crc32": zlib.crc32(data)})
            if rank == self.damaged:
                data = bytes([data[0] ^ 1]) + data[1:]
            (path / f"rank{rank}.shard").write_bytes(data)
        manifest = {"step": self.step, "layout": _LAYOUT, "shards": entries}
        if self.manifest:
            (path / "manifest.json").write_text(json.dumps(manifest))
        return path


def _loads(
    load_shard: Any, cases: Sequence[tuple[Path, _Case]], members: list[int]
) -> list[dict[str, Any]]:
    """On a rank: what it loads from each checkpoint, and which shards it reads for that."""
    import torch.distributed as dist

    from course_lib.scratch.recovery.files import CheckpointError

    found = []
    group = dist.new_group(members) if members else None
    for path, case in cases if not members or dist.get_rank() in members else ():
        files = _watched(path)
        try:
            result = load_shard(path, case.layout, group, reshard=case.reshard)
        except CheckpointError as error:
            result = str(error)
        except FileNotFoundError:
            if case.manifest:
                raise
            result = None
        read = sorted({name for name in files.read if name.endswith(".shard")})
        found.append({"result": result, "read": read})
    return found


def _loaded(
    parts: SimpleNamespace, cases: Sequence[_Case], ranks: int, members: Sequence[int] = ()
) -> list[tuple[str, int, list[dict[str, Any]]]]:
    """Who, its number in the group, and what it has loaded."""
    with tempfile.TemporaryDirectory(prefix="course_check_") as name:
        written = [(case.write(Path(name)), case) for case in cases]
        outcomes = on_ranks(_loads, parts.load_shard, written, list(members), ranks=ranks)
    of = f"a group of {len(members)}" if members else f"{ranks}"
    who = [(f"rank {number} of {of}", number) for number in range(len(members) or ranks)]
    own = [outcomes[rank].value for rank in members or range(ranks)]
    return [(*each, found) for each, found in zip(who, own, strict=True)]


_SAME = {
    "saved by 2": _Case(2),
    "the shard of rank 1 is damaged": _Case(2, damaged=1),
    "saved by 3, reshard=False": _Case(3, reshard=False),
    "saved by 2, reshard=False": _Case(2, reshard=False),
    "saved of another model": _Case(2, layout=_OTHER_MODEL),
    "without a manifest": _Case(2, manifest=False),
}
_REFUSED = {
    "the shard of rank 1 is damaged": "loads its shard although the checksum is not that of the "
    "manifest: read_shard would have said so",
    "saved by 3, reshard=False": "loads what another number of ranks has saved, expected a "
    "CheckpointError",
    "saved of another model": "loads the checkpoint of a model with other shapes: read_manifest "
    "would have said so",
    "without a manifest": "raises no CheckpointError: read_manifest would have",
}


def _same(parts: SimpleNamespace) -> None:
    for who, rank, loaded in _loaded(parts, list(_SAME.values()), ranks=2):
        for (what, case), found in zip(_SAME.items(), loaded, strict=True):
            if what not in _REFUSED or (case.damaged is not None and rank != case.damaged):
                _expect_loaded(found, rank, (2, case), f"{who}, {what}")
            elif not isinstance(found["result"], str):
                raise Wrong(f"{who}, {what}: it {_REFUSED[what]}")


def _expect_loaded(found: dict[str, Any], rank: int, by: tuple[int, _Case], what: str) -> None:
    import torch

    result, (ranks, case) = found["result"], by
    if result is None:
        raise Unanswered(f"{what}: load_shard returns None")
    more = set(found["read"]) - _needed(rank, ranks, case.writers)
    if more:
        raise Wrong(f"{what}: it reads {min(more)}, in which it has no column")
    if isinstance(result, str):
        raise Wrong(f"{what}: load_shard raises CheckpointError: {result}")
    if not isinstance(result, tuple) or len(result) != 2:
        raise Wrong(f"{what}: load_shard wants (step, shard), got {described(result)}")
    step, shard = result
    if step != case.step or not isinstance(step, int):
        raise Wrong(f"{what}: the step is {described(step)}, expected the manifest's {case.step}")
    parts = [_state()[:, start:stop] for start, stop in _columns(ranks)]
    others = {f"the shard of rank {n}": each for n, each in enumerate(parts) if n != rank}
    expect_tensor(shard, parts[rank], f"{what}: the shard", others=others)
    if shard.dtype != torch.float32:
        raise Wrong(f"{what}: the shard is of {shard.dtype}, expected fp32")


def _other(parts: SimpleNamespace) -> None:
    for ranks, writers, members in ((3, (4, 2, 1), ()), (4, (2, 3), ()), (4, (2, 4), (1, 3))):
        cases = [_Case(number) for number in writers]
        many = len(members) or ranks
        for who, rank, found in _loaded(parts, cases, ranks, members):
            for case, one in zip(cases, found, strict=True):
                _expect_loaded(one, rank, (many, case), f"{who}, saved by {case.writers}")


def _needed(rank: int, ranks: int, writers: int) -> set[str]:
    """The shards that have a column of this rank."""
    start, stop = _columns(ranks)[rank]
    cuts = enumerate(_columns(writers))
    return {f"rank{n}.shard" for n, (first, last) in cuts if first < stop and start < last}


def _prepared(parts: SimpleNamespace) -> Any:
    """12 MB of states, loaded by 2 ranks; 3 have saved them."""
    import torch
    import torch.distributed as dist

    layout = {"weight": [1000, 1000]}
    folder = Path(tempfile.mkdtemp(prefix="race_")) / _SAVED  # in the folder of this launch
    folder.mkdir()
    entries = []
    for rank in range(3):
        start, stop = 10**6 * rank // 3, 10**6 * (rank + 1) // 3
        data = _bytes(torch.ones(3, stop - start))
        (folder / f"rank{rank}.shard").write_bytes(data)
        entries.append({"bytes": len(data), "crc32": zlib.crc32(data)})
    manifest = {"step": 4, "layout": layout, "shards": entries}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    dist.barrier()
    return lambda: parts.load_shard(folder, layout)


RESHARD = build(
    "reshard",
    title="a checkpoint in shards",
    hints=(
        "write_whole: write all of the data to another name in the same folder, flush, os.fsync, "
        "close; then os.replace gives it its name in one instant.",
        "save_shard: every rank writes its own file. What proves to rank 0 that all of them are "
        "on the disk? dist.all_gather_object, which it also needs for the manifest's entries.",
        "load_shard: in the state as a whole this rank wants columns start to stop, and writer w "
        "has first to last. They overlap if first < stop and start < last.",
        "Of a writer's shard this rank takes columns max(first, start) - first to min(last, stop) "
        "- first; torch.cat(…, dim=1) puts them together.",
    ),
    steps=(
        Step("a file that is whole or not there", ("write_whole",), _whole),
        Step("each its shard, the manifest last", ("save_shard",), _save),
        Step("loading on as many ranks", ("load_shard",), _same),
        Step("loading on another number of ranks", ("load_shard",), _other),
    ),
    race=Race("12 MB of states that 3 ranks saved, loaded", _prepared),
)
