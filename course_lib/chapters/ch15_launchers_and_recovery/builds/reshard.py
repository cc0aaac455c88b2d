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
from typing import Any

from course_lib.checking.build import build
from course_lib.checking.builds.compare import (
    Case,
    Here,
    Must,
    Never,
    Place,
    Rows,
    compare,
    dist,
    later,
    torch,
)
from course_lib.checking.exercises import Unanswered
from course_lib.checking.helpers import described
from course_lib.checking.races import Race
from course_lib.launch.job import STORE_VARIABLE

_files = later("course_lib.scratch.recovery")

_LAYOUT = {"weight": [5, 3, 2], "bias": [7]}
_TOTAL = 37  # columns: no number of ranks divides them
_OTHER_MODEL = {"weight": [3, 5, 2], "bias": [7]}  # of as many columns
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


def launch_folder() -> Path:
    """That of this launch, which goes with it."""
    return Path(os.environ[STORE_VARIABLE]).parent


# --- a file, whole or not at all --------------------------------------------------------------

_DATA = (b"old" * 1000, b"new" * 700, b"")


def _writes(parts: SimpleNamespace, *_: Any) -> dict[str, Any]:
    """A new file, another in its place, and an empty one; each rank has its own."""
    folder = launch_folder() / "whole"
    folder.mkdir(exist_ok=True)
    files, path = _watched(folder), folder / f"{'ab'[dist.get_rank()]}.shard"
    found = []
    for data in _DATA:
        parts.write_whole(path, data)
        found.append(path.read_bytes() == data if path.exists() else None)
    dist.barrier()
    left = [found.name for found in folder.iterdir() if found.suffix != ".shard"]
    return {"found": found, "left": left, "name": path.name} | vars(files)


def _expect_whole(found: dict[str, Any], _: Place) -> Rows:
    """Each file has its data, and came to be by one rename of what was on the disk."""
    same, renamed, synced = found["found"], found["renamed"], found["synced"]
    call = "write_whole(path, data)"
    yield Never(same[0] is None, f"{call}: there is no file at `path` afterwards")
    what = "data of 0 bytes" if all(same[:2]) else "`data`"
    yield Never(not all(same), f"{call}: the file at `path` does not hold {what}")
    yield Never(
        found["name"] in found["written"],
        "write_whole opens `path` itself for writing: who reads it at that moment, or after a "
        "crash, finds half a file",
    )
    yield Never(
        found["name"] in found["removed"],
        "write_whole removes the old file first: who reads `path` at that moment, or after a "
        "crash, finds neither the old nor the new one",
    )
    yield Never(
        len(renamed) != len(_DATA) or any(os.sep in source for source, _, _ in renamed),
        "write_whole: the data must be written beside `path`, in the same folder, and get its "
        "name by one rename: between two disks a rename is a copy",
    )
    sizes = [len(data) for data in _DATA]
    yield Never(
        [size for _, _, size in renamed] != sizes,
        "write_whole renames the file before all of it is written: what is still in Python's "
        "buffer comes later",
    )
    yield Never(found["left"], f"write_whole leaves {min(found['left'], default='')} behind")
    yield Never(
        not {0, 1} <= {renames for renames, _ in synced},
        "write_whole does not ask for the data to be on the disk (os.fsync) before the rename: "
        "after a power failure the name would be there and the data not",
    )
    yield Never(
        not {(0, sizes[0]), (1, sizes[1])} <= {*synced},
        "write_whole calls os.fsync before all data have left Python's buffer: what comes "
        "later may not be on the disk when the file gets its name",
    )


def _in_two_files(every: list[dict[str, Any]], _: Case) -> Rows:
    first, second = ({source for source, _, _ in found["renamed"]} for found in every)
    both = "write_whole: two ranks that write two files of one folder at the same time put their"
    one = min(first & second, default="")
    yield Never(one, f"{both} data into one file first, {one}")


# --- saving -----------------------------------------------------------------------------------


def _columns(ranks: int) -> list[tuple[int, int]]:
    return [(_TOTAL * rank // ranks, _TOTAL * (rank + 1) // ranks) for rank in range(ranks)]


def _state(step: int = 4) -> Any:
    """(3, 37): what all ranks hold together."""
    return torch.arange(3.0 * _TOTAL).view(3, _TOTAL) / 7 + step


def _bytes(tensor: Any) -> bytes:
    return bytes(tensor.contiguous().numpy().tobytes())


def _entries(shards: Sequence[bytes]) -> list[dict[str, int]]:
    return [{"bytes": len(data), "crc32": zlib.crc32(data)} for data in shards]


@dataclass(frozen=True)
class _Saved(Here):
    """What is saved, and how many checkpoints are kept."""

    steps: tuple[int, ...]
    keep: int


def _saves(parts: SimpleNamespace, case: _Saved, group: Any) -> dict[str, Any]:
    """What a rank does; in the first checkpoint of all ranks some files come late."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    folder = launch_folder() / f"of{ranks}" / "run"  # it is not there yet
    manifest, early = folder / "step-00000004" / "manifest.json", list[str]()

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
    if not case.in_group:
        files.before_rename = late
    start, stop = _columns(ranks)[rank]
    there, returned = [], []
    for step in case.steps:
        shard, path = _state(step)[:, start:stop], folder / f"step-{step:08d}"
        given = parts.save_shard(folder, step, shard, _LAYOUT, group, keep=case.keep)
        returned += [described(given)] if given != path else []
        there.append((path / manifest.name).exists())
        files.before_rename = lambda _: None
    dist.barrier(group)
    return {
        "early": early,
        "there": there,
        "returned": returned,
        "in place": [os.path.basename(name) for name in files.written],
        "named": [os.path.basename(target) for _, target, _ in files.renamed],
        "too soon": any(number <= case.keep for number in files.complete),
        "kept": {
            path.name: {file.name: file.read_bytes() for file in path.iterdir()}
            for path in folder.iterdir()
        },
    }


def _expect_saved(found: dict[str, Any], place: Place) -> Rows:
    """What a rank has done; then, on the first one, what is on the disk after it."""
    (rank, ranks, case, _), named, direct = place, found["named"], found["in place"]
    who = f"rank {rank} of {f'a group of {ranks} ranks' if case.in_group else ranks}"
    yield Never(
        rank and "manifest.json" in named + direct,
        f"{who} writes the manifest as well: one rank writes it for all",
    )
    own = {f"rank{rank}.shard", "manifest.json"}
    others = [*(name for name in named if name not in own), ""]
    other = f"{who} writes {others[0]}: each rank writes its own file, and no other"
    yield Never(others[0], other)
    opened = [*(name for name in direct if name in own), ""][0]
    by_hand = f"{who} opens {opened} itself for writing: write_whole is made for that"
    yield Never(opened, by_hand)
    yield Never(
        found["early"],
        f"{who}: the manifest is there before the shard of this rank is: a crash between the "
        "two leaves a checkpoint that looks complete",
    )
    yield Never(
        not all(found["there"]),
        f"{who}: save_shard has returned and there is no manifest yet: who loads now finds nothing",
    )
    yield Never(
        found["too soon"],
        f"{who} removes an old checkpoint before the new one is complete: after a crash fewer "
        "than `keep` would be left",
    )
    returned = f"{who}: save_shard returns {[*found['returned'], ''][0]}, expected the folder's"
    yield Never(found["returned"], f"{returned} Path")
    if not rank:
        yield from _on_the_disk(found["kept"], case, ranks)


def _on_the_disk(folder: dict[str, dict[str, bytes]], case: _Saved, ranks: int) -> Rows:
    """The files of a checkpoint hold the state, and the manifest says what they are."""
    by = f"a group of {ranks} ranks" if case.in_group else f"{ranks} ranks"
    kept = sorted(name for name, files in folder.items() if "manifest.json" in files)
    right = [f"step-{step:08d}" for step in case.steps[-case.keep :]]
    complete = f"after steps {case.steps} with keep={case.keep} the complete checkpoints are"
    yield Never(kept != right, f"{complete} {kept}, expected {right}")
    files, step = folder[right[-1]], case.steps[-1]
    names = {f"rank{rank}.shard" for rank in range(ranks)} | {"manifest.json"}
    yield Never(files.keys() != names, f"{by}: the checkpoint has the files {sorted(files)}")
    for rank, (start, stop) in enumerate(_columns(ranks)):
        data, shard = files[f"rank{rank}.shard"], _state(step)[:, start:stop]
        unlike = f"rank{rank}.shard of {by} {_unlike(data, shard)}"
        yield Never(data != _bytes(shard), unlike)
    try:
        manifest = json.loads(files["manifest.json"])
    except ValueError:
        manifest = None
        yield Never(True, f"{by}: manifest.json is no JSON")
    meant = {"step": (step, "the step"), "layout": (_LAYOUT, "the layout")}
    yield Never(
        not isinstance(manifest, dict) or {*manifest} != {*meant, "shards"},
        f"the manifest wants the keys step, layout, shards, got {described(manifest)}",
    )
    for key, (value, words) in meant.items():
        said = f"{by}: {key!r} of the manifest is {manifest[key]}, expected {words} given"
        yield Never(manifest[key] != value, said)
    shards = _entries([files[f"rank{rank}.shard"] for rank in range(ranks)])
    yield from _expect_entries(manifest["shards"], shards, f"{by}: 'shards' of the manifest")


def _expect_entries(found: Any, right: list[dict[str, int]], what: str) -> Rows:
    """In words, which entry of the manifest is not that of its rank, and in what."""
    several = isinstance(found, list)
    many = f"{len(found)} entries" if several else described(found)
    wanted = f"{what} has {many}, expected a list with one entry for each rank"
    yield Never(not several or len(found) != len(right), wanted)
    for rank, (one, its) in enumerate(zip(found, right, strict=True)):
        entry = f"{what}: entry {rank}"
        keys = f"{entry} wants the keys bytes and crc32, got {described(one)}"
        yield Never(not isinstance(one, dict) or {*one} != {*its}, keys)
        if one != its and one in right:
            yield Never(True, f"{entry} is that of rank {right.index(one)}")
        for name, meant in (
            ("bytes", "the size of its file"),
            ("crc32", "the checksum of its file's bytes"),
        ):
            said = f"{what}: {name} of entry {rank} is {one[name]}, expected {meant}"
            yield Never(one[name] != its[name], said)


def _unlike(data: bytes, shard: Any) -> str:
    if len(data) != 4 * shard.numel():
        return f"has {len(data)} bytes, expected 4 for each number of a shard {tuple(shard.shape)}"
    if data == _bytes(shard.t()):
        return "has the shard column by column, expected row by row"
    return "has other numbers than the shard of that rank"


# --- loading ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Load(Here):
    """A checkpoint that `writers` ranks have saved, what is wrong with it, how it is loaded.

    `refused`: what it means, in words, if the learner's function loads it.
    """

    writers: int
    what: str = ""
    damaged: int | None = None
    manifest: bool = True
    layout: dict[str, list[int]] = field(default_factory=lambda: _LAYOUT)
    reshard: bool = True
    refused: str = ""

    @property
    def step(self) -> int:
        """Each has another one."""
        return 4 + self.writers

    def write(self) -> Path:
        """The files, as so many ranks would have saved them, in a folder of this rank."""
        path = Path(tempfile.mkdtemp(dir=launch_folder())) / f"step-{self.step:08d}"
        path.mkdir()
        shards = [_bytes(_state()[:, start:stop]) for start, stop in _columns(self.writers)]
        for rank, data in enumerate(shards):
            damaged = bytes([data[0] ^ 1]) + data[1:]
            (path / f"rank{rank}.shard").write_bytes(damaged if rank == self.damaged else data)
        manifest = {"step": self.step, "layout": _LAYOUT, "shards": _entries(shards)}
        if self.manifest:
            (path / "manifest.json").write_text(json.dumps(manifest))
        return path


_SAME = [
    _Load(2, "saved by 2"),
    _Load(
        2,
        "the shard of rank 1 is damaged",
        damaged=1,
        refused="loads its shard although the checksum is not that of the manifest: read_shard "
        "would have said so",
    ),
    _Load(
        3,
        "saved by 3, reshard=False",
        reshard=False,
        refused="loads what another number of ranks has saved, expected a CheckpointError",
    ),
    _Load(2, "saved by 2, reshard=False", reshard=False),
    _Load(
        2,
        "saved of another model",
        layout=_OTHER_MODEL,
        refused="loads the checkpoint of a model with other shapes: read_manifest would have said "
        "so",
    ),
    _Load(
        2,
        "without a manifest",
        manifest=False,
        refused="raises no CheckpointError: read_manifest would have",
    ),
]
_OTHER = [
    *(_Load(writers, ranks=3) for writers in (4, 2, 1)),
    *(_Load(writers, ranks=4) for writers in (2, 3)),
    *(_Load(writers, ranks=3, in_group=True) for writers in (2, 4)),
]


def _loads(parts: SimpleNamespace, case: _Load, group: Any) -> tuple[Any, set[str]]:
    """What a rank loads, and which shards it reads for that."""
    path = case.write()
    files = _watched(path)
    try:
        result = parts.load_shard(path, case.layout, group, reshard=case.reshard)
    except _files.CheckpointError as error:
        result = str(error)
    except FileNotFoundError:
        if case.manifest:
            raise
        result = None
    return result, {name for name in files.read if name.endswith(".shard")}


def _expect_loaded(found: tuple[Any, set[str]], place: Place) -> Rows:
    (rank, ranks, case, _), (result, read) = place, found
    who = f"rank {rank} of {f'a group of {ranks}' if case.in_group else ranks}"
    what = f"{who}, {case.what or f'saved by {case.writers}'}"
    if case.refused and case.damaged in (None, rank):
        yield Never(not isinstance(result, str), f"{what}: it {case.refused}")
        return
    if result is None:
        raise Unanswered(f"{what}: load_shard returns None")
    start, stop = _columns(ranks)[rank]
    cuts = enumerate(_columns(case.writers))
    needed = {f"rank{n}.shard" for n, (first, last) in cuts if first < stop and start < last}
    more = min(read - needed, default="")
    yield Never(more, f"{what}: it reads {more}, in which it has no column")
    raised = f"{what}: load_shard raises CheckpointError: {result}"
    yield Never(isinstance(result, str), raised)
    wants = f"{what}: load_shard wants (step, shard), got {described(result)}"
    yield Never(not isinstance(result, tuple) or len(result) != 2, wants)
    step, shard = result
    told = f"{what}: the step is {described(step)}, expected the manifest's {case.step}"
    yield Never(step != case.step or not isinstance(step, int), told)
    parts = [_state()[:, first:last] for first, last in _columns(ranks)]
    others = {f"the shard of rank {n}": each for n, each in enumerate(parts) if n != rank}
    yield Must(f"{what}: the shard", shard, parts[rank], others)
    dtype = f"{what}: the shard is of {shard.dtype}, expected fp32"
    yield Never(shard.dtype != torch.float32, dtype)


def _reshard(parts: SimpleNamespace) -> Callable[[], object]:
    """A checkpoint of a million parameters, which a rank writes as 3 would."""
    inside = later("course_lib.chapters.ch15_launchers_and_recovery.builds.reshard").launch_folder()
    layout, folder = {"weight": [1000, 1000]}, Path(tempfile.mkdtemp(dir=inside)) / "step-00000004"
    folder.mkdir()
    entries = []
    for rank in range(3):
        columns = 10**6 * (rank + 1) // 3 - 10**6 * rank // 3
        data = torch.ones(3, columns).numpy().tobytes()
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
        compare(
            "a file that is whole or not there",
            ("write_whole",),
            _writes,
            _expect_whole,
            [Here()],
            last=_in_two_files,
        ),
        compare(
            "each its shard, the manifest last",
            ("save_shard",),
            _saves,
            _expect_saved,
            [_Saved((4, 8, 12), 2, ranks=4), _Saved((4, 8), 1, ranks=4, in_group=True)],
        ),
        compare("loading on as many ranks", ("load_shard",), _loads, _expect_loaded, _SAME),
        compare(
            "loading on another number of ranks", ("load_shard",), _loads, _expect_loaded, _OTHER
        ),
    ),
    race=Race("12 MB of states that 3 ranks saved, loaded", _reshard),
)
