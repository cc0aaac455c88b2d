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
from course_lib.checking.builds.ranks import each_rank, on_ranks
from course_lib.checking.exercises import Unanswered, Wrong
from course_lib.checking.helpers import described
from course_lib.checking.races import Race

if TYPE_CHECKING:
    from torch import Tensor

_LAYOUT = {"weight": [5, 7], "bias": [2]}
_TOTAL = 37  # columns: no number of ranks divides them
_SAVED = "step-00000004"
_LATE_S = 0.5  # how long a shard is held back, to see whether the manifest waits for it


@dataclass
class _Files:
    """What this process does with the files of a folder, in order."""

    folder: str
    written: list[str] = field(default_factory=list)  # opened for writing
    read: list[str] = field(default_factory=list)
    renamed: list[tuple[str, str, int]] = field(default_factory=list)  # from, to, bytes by then
    synced: list[int] = field(default_factory=list)  # renames that were done before each fsync
    before_rename: Callable[[str], None] = lambda _: None

    def heard(self, event: str, args: tuple[Any, ...]) -> None:
        """An audit hook: Python calls it for each file that is opened or renamed."""
        if event == "open" and isinstance(args[0], str | bytes | os.PathLike):
            path = os.path.abspath(os.fsdecode(args[0]))
            if path.startswith(self.folder):
                flags = args[2] if isinstance(args[2], int) else 0
                changes = bool(set(args[1] or "") & set("wax+")) or flags & os.O_ACCMODE
                (self.written if changes else self.read).append(os.path.relpath(path, self.folder))
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
        files.synced.append(len(files.renamed))
        real(descriptor)

    return sync


# --- a file, whole or not at all --------------------------------------------------------------


def _writes(write_whole: Any, folder: str) -> dict[str, Any]:
    """On one rank: a new file, and another in its place."""
    files, path = _watched(folder), Path(folder) / "a.shard"
    write_whole(path, b"old" * 1000)
    first = path.read_bytes() == b"old" * 1000 if path.exists() else None
    write_whole(path, b"new" * 700)
    return {
        "first": first,
        "second": path.exists() and path.read_bytes() == b"new" * 700,
        "left": sorted(found.name for found in Path(folder).iterdir() if found != path),
        "written": files.written,
        "renamed": files.renamed,
        "synced": files.synced,
    }


def _whole(parts: SimpleNamespace) -> None:
    with tempfile.TemporaryDirectory(prefix="course_check_") as folder:
        (outcome,) = on_ranks(_writes, parts.write_whole, folder, ranks=1)
    found = outcome.value
    if found["first"] is None:
        raise Wrong("write_whole(path, data): there is no file at `path` afterwards")
    if not (found["first"] and found["second"]):
        raise Wrong("write_whole(path, data): the file at `path` does not hold `data`")
    if "a.shard" in found["written"]:
        raise Wrong(
            "write_whole opens `path` itself for writing: who reads it at that moment, or after a "
            "crash, finds half a file"
        )
    if len(found["renamed"]) != 2 or any(os.sep in source for source, _, _ in found["renamed"]):
        raise Wrong(
            "write_whole: the data must be written beside `path`, in the same folder, and get its "
            "name by one rename: between two disks a rename is a copy"
        )
    if [size for _, _, size in found["renamed"]] != [3000, 2100]:
        raise Wrong(
            "write_whole renames the file before all of it is written: what is still in Python's "
            "buffer comes later"
        )
    if found["left"]:
        raise Wrong(f"write_whole leaves {found['left'][0]} behind")
    if sorted(set(found["synced"])) != [0, 1]:
        raise Wrong(
            "write_whole does not ask for the data to be on the disk (os.fsync) before the rename: "
            "after a power failure the name would be there and the data not"
        )


# --- saving -----------------------------------------------------------------------------------


def _columns(ranks: int) -> list[tuple[int, int]]:
    return [(_TOTAL * rank // ranks, _TOTAL * (rank + 1) // ranks) for rank in range(ranks)]


def _state(step: int = 4) -> "Tensor":
    """(3, 37): what all ranks hold together."""
    import torch

    return torch.arange(3.0 * _TOTAL).view(3, _TOTAL) / 7 + step


def _saves(save_shard: Any, folder: str, steps: Sequence[int]) -> dict[str, Any]:
    """On a rank: the checkpoints of these steps; in the first one some files come late."""
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    manifest, early = Path(folder) / _SAVED / "manifest.json", []

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
    files.before_rename = late
    start, stop = _columns(ranks)[rank]
    there = []
    for step in steps:
        save_shard(Path(folder), step, _state(step)[:, start:stop], _LAYOUT)
        there.append((Path(folder) / f"step-{step:08d}" / manifest.name).exists())
        files.before_rename = lambda _: None
    changed = [*files.written, *(target for _, target, _ in files.renamed)]
    return {"early": early, "there": there, "names": list(map(os.path.basename, changed))}


def _save(parts: SimpleNamespace) -> None:
    ranks, steps = 3, (4, 8, 12)
    with tempfile.TemporaryDirectory(prefix="course_check_") as name:
        outcomes = on_ranks(_saves, parts.save_shard, name, steps, ranks=ranks)
        for rank, (who, found) in enumerate(each_rank(outcomes)):
            _expect_order(found, who, rank)
        kept = sorted(path.parent.name for path in Path(name).glob("*/manifest.json"))
        right = [f"step-{step:08d}" for step in steps[1:]]
        if kept != right:
            raise Wrong(
                f"after steps {steps} with keep=2 the complete checkpoints are {kept}, expected "
                f"{right}"
            )
        _expect_saved(Path(name) / right[-1], steps[-1], ranks)


def _expect_order(found: dict[str, Any], who: str, rank: int) -> None:
    if rank and "manifest.json" in found["names"]:
        raise Wrong(f"{who} writes the manifest as well: one rank writes it for all")
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


def _expect_saved(path: Path, step: int, ranks: int) -> None:
    """The files of a checkpoint hold the state, and the manifest says what they are."""
    shards = {f"rank{rank}.shard" for rank in range(ranks)}
    found = {file.name for file in path.iterdir()}
    if found != shards | {"manifest.json"}:
        raise Wrong(f"{ranks} ranks: the checkpoint has the files {sorted(found)}")
    entries = []
    for rank, (start, stop) in enumerate(_columns(ranks)):
        data = (path / f"rank{rank}.shard").read_bytes()
        if data != _bytes(_state(step)[:, start:stop]):
            raise Wrong(f"rank{rank}.shard of {ranks} {_unlike(data, step, start, stop)}")
        entries.append({"bytes": len(data), "crc32": zlib.crc32(data)})
    try:
        manifest = json.loads((path / "manifest.json").read_text())
    except ValueError:
        raise Wrong(f"{ranks} ranks: manifest.json is no JSON") from None
    right = {"step": step, "layout": _LAYOUT, "shards": entries}
    if not isinstance(manifest, dict) or set(manifest) != set(right):
        raise Wrong(f"the manifest wants the keys step, layout, shards, got {described(manifest)}")
    for key, value in right.items():
        if manifest[key] != value:
            raise Wrong(f"{ranks} ranks: {key!r} of the manifest is {manifest[key]}")


def _unlike(data: bytes, step: int, start: int, stop: int) -> str:
    if len(data) != 12 * (stop - start):
        return f"has {len(data)} bytes, expected 4 for each number of a shard (3, {stop - start})"
    if data == _bytes(_state(step)[:, start:stop].t()):
        return "has the shard column by column, expected row by row"
    return "has other numbers than the shard of that rank"


def _bytes(tensor: "Tensor") -> bytes:
    return bytes(tensor.contiguous().numpy().tobytes())


# --- loading ----------------------------------------------------------------------------------


def _written(folder: Path, ranks: int, damaged: int | None = None) -> Path:
    """A checkpoint as so many ranks would have saved it; one shard may be damaged."""
    path = folder / f"by_{ranks}{'' if damaged is None else '_damaged'}" / _SAVED
    path.mkdir(parents=True)
    entries = []
    for rank, (start, stop) in enumerate(_columns(ranks)):
        data = _bytes(_state()[:, start:stop])
        entries.append({"bytes": len(data), "crc32": zlib.crc32(data)})
        if rank == damaged:
            data = bytes([data[0] ^ 1]) + data[1:]
        (path / f"rank{rank}.shard").write_bytes(data)
    manifest = {"step": 4, "layout": _LAYOUT, "shards": entries}
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path


def _loads(load_shard: Any, cases: Sequence[tuple[Path, bool]]) -> list[dict[str, Any]]:
    """On a rank: what it loads from each checkpoint, and which shards it reads for that."""
    from course_lib.scratch.recovery.files import CheckpointError

    found = []
    for path, reshard in cases:
        files = _watched(path)
        try:
            result = load_shard(path, _LAYOUT, reshard=reshard)
        except CheckpointError as error:
            result = str(error)
        read = sorted({name for name in files.read if name.endswith(".shard")})
        found.append({"result": result, "read": read})
    return found


def _same(parts: SimpleNamespace) -> None:
    with tempfile.TemporaryDirectory(prefix="course_check_") as name:
        two, three = _written(Path(name), 2), _written(Path(name), 3)
        damaged = _written(Path(name), 2, damaged=1)
        cases = [(two, True), (damaged, True), (three, False), (two, False)]
        outcomes = on_ranks(_loads, parts.load_shard, cases, ranks=2)
    for rank, (who, (whole, damaged, other, same)) in enumerate(each_rank(outcomes)):
        _expect_loaded(whole, rank, (2, 2), f"{who}, saved by 2")
        if not rank:
            _expect_loaded(damaged, rank, (2, 2), f"{who}, the shard of rank 1 is damaged")
        elif not isinstance(damaged["result"], str):
            raise Wrong(
                f"{who} loads its shard although the checksum is not that of the manifest: "
                "read_shard would have said so"
            )
        if not isinstance(other["result"], str):
            raise Wrong(
                f"{who}: with reshard=False it loads what 3 ranks have saved, expected a "
                "CheckpointError"
            )
        _expect_loaded(same, rank, (2, 2), f"{who}, saved by 2, reshard=False")


def _expect_loaded(
    found: dict[str, Any], rank: int, ranks_writers: tuple[int, int], what: str
) -> None:
    result, (ranks, writers) = found["result"], ranks_writers
    if result is None:
        raise Unanswered(f"{what}: load_shard returns None")
    more = set(found["read"]) - _needed(rank, ranks, writers)
    if more:
        raise Wrong(f"{what}: it reads {min(more)}, in which it has no column")
    if isinstance(result, str):
        raise Wrong(f"{what}: load_shard raises CheckpointError: {result}")
    if not isinstance(result, tuple) or len(result) != 2:
        raise Wrong(f"{what}: load_shard wants (step, shard), got {described(result)}")
    step, shard = result
    if step != 4:
        raise Wrong(f"{what}: the step is {described(step)}, expected 4")
    parts = [_state()[:, start:stop] for start, stop in _columns(ranks)]
    others = {f"the shard of rank {n}": each for n, each in enumerate(parts) if n != rank}
    expect_tensor(shard, parts[rank], f"{what}: the shard", others=others)


def _other(parts: SimpleNamespace) -> None:
    for ranks, writers in ((3, (4, 2, 1)), (4, (2, 3))):
        with tempfile.TemporaryDirectory(prefix="course_check_") as name:
            cases = [(_written(Path(name), number), True) for number in writers]
            outcomes = on_ranks(_loads, parts.load_shard, cases, ranks=ranks)
        for rank, (who, found) in enumerate(each_rank(outcomes)):
            for number, one in zip(writers, found, strict=True):
                _expect_loaded(one, rank, (ranks, number), f"{who}, saved by {number}")


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
