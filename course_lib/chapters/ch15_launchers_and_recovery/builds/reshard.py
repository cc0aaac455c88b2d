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
from typing import Any, NamedTuple

from course_lib.checking.build import build
from course_lib.checking.builds.alike import expect_alike
from course_lib.checking.builds.compare import Case, Here, Place, compare
from course_lib.checking.builds.lazily import dist, later, torch
from course_lib.checking.builds.rows import Must, Never, Rows
from course_lib.checking.exercises import Unanswered, Wrong
from course_lib.checking.helpers import described
from course_lib.checking.races import Race
from course_lib.launch.job import STORE_VARIABLE

_files = later("course_lib.scratch.recovery")
_LAYOUT = {"weight": [5, 3, 2], "bias": [7]}
_TOTAL = 37  # columns; a prime, which no number of ranks divides
_OTHER_MODEL = {"weight": [3, 5, 2], "bias": [7]}  # with the same number of columns
_LATE_S = 0.5  # how long a shard is held back, to see whether the manifest waits for it


class _Done(NamedTuple):
    """An operation on a file of the folder: "read", "write", "remove", "rename" or "sync".

    `size`: bytes of a renamed or synced file; for a removal, the number of complete checkpoints.
    """

    what: str
    name: str
    size: int = 0
    source: str = ""  # the name before a rename


def _watched(
    folder: str | Path, before_rename: Callable[[str], None] = lambda _: None
) -> list[_Done]:
    """A list that grows with every operation of this process on the files of `folder`."""
    done, root = list[_Done](), os.path.abspath(folder)

    def heard(event: str, args: tuple[Any, ...]) -> None:
        """The audit hook, which Python calls for each file that is opened, renamed or removed."""
        kinds = {"open": "read", "os.rename": "rename"}
        kinds |= dict.fromkeys(("os.remove", "shutil.rmtree"), "remove")
        if event not in kinds or not isinstance(args[0], str | bytes | os.PathLike):
            return
        what, paths = kinds[event], args[: 2 if event == "os.rename" else 1]
        *source, path = (os.path.abspath(os.fsdecode(path)) for path in paths)
        if not path.startswith(root):
            return
        name, size = os.path.relpath(path, root), 0
        if what == "read":
            flags = args[2] if isinstance(args[2], int) else 0
            changes = set(args[1] or "") & set("wax+") or flags & os.O_ACCMODE
            what = "write" if changes else what
        elif what == "remove":
            size = len(list(Path(root).rglob("manifest.json")))
        else:
            size = os.path.getsize(source[0]) if os.path.isfile(source[0]) else 0
        done.append(_Done(what, name, size, *(os.path.relpath(one, root) for one in source)))
        if what == "rename":
            before_rename(os.path.basename(name))

    def recording(real: Callable[[Any], None]) -> Callable[[Any], None]:
        def sync(descriptor: Any) -> None:
            done.append(_Done("sync", "", os.fstat(descriptor).st_size))
            real(descriptor)

        return sync

    sys.addaudithook(heard)
    for name in ("fsync", "fdatasync"):
        if hasattr(os, name):
            setattr(os, name, recording(getattr(os, name)))
    return done


def _names(done: list[_Done], *what: str) -> list[str]:
    return [one.name for one in done if one.what in what]


def launch_folder() -> Path:
    """The temporary folder of this launch, which is removed at its end."""
    return Path(os.environ[STORE_VARIABLE]).parent


# --- a file, whole or not at all --------------------------------------------------------------

_DATA = (b"old" * 1000, b"new" * 700, b"")


def _writes(parts: SimpleNamespace, *_: Any) -> dict[str, Any]:
    """A new file, another in its place, and an empty one; each rank has its own."""
    folder = launch_folder() / "whole"
    folder.mkdir(exist_ok=True)
    done, path = _watched(folder), folder / f"{'ab'[dist.get_rank()]}.shard"
    same = []
    for data in _DATA:
        parts.write_whole(path, data)
        same.append(path.read_bytes() == data if path.exists() else None)
    dist.barrier()
    left = [found.name for found in folder.iterdir() if found.suffix != ".shard"]
    return {"same": same, "left": left, "name": path.name, "done": done}


def _expect_whole(found: dict[str, Any], _: Place) -> Rows:
    """Check that each file has its data, and was created by one rename of a synced file."""
    same, done, name = found["same"], found["done"], found["name"]
    call = "write_whole(path, data)"
    yield Never(same[0] is None, f"{call}: there is no file at `path` afterwards")
    what = "data of 0 bytes" if all(same[:2]) else "`data`"
    yield Never(not all(same), f"{call}: the file at `path` does not hold {what}")
    yield Never(
        name in _names(done, "write"),
        "write_whole opens `path` itself for writing: who reads it at that moment, or after a "
        "crash, finds half a file",
    )
    yield Never(
        name in _names(done, "remove"),
        "write_whole removes the old file first: who reads `path` at that moment, or after a "
        "crash, finds neither the old nor the new one",
    )
    renamed = [one for one in done if one.what == "rename"]
    yield Never(
        len(renamed) != len(_DATA) or any(os.sep in one.source for one in renamed),
        "write_whole: the data must be written beside `path`, in the same folder, and get its "
        "name by one rename: between two disks a rename is a copy",
    )
    yield Never(
        [one.size for one in renamed] != [*map(len, _DATA)],
        "write_whole renames the file before all of it is written: what is still in Python's "
        "buffer comes later",
    )
    yield Never(found["left"], f"write_whole leaves {min(found['left'], default='')} behind")
    start = 0
    for rename in renamed[:2]:  # an empty file has nothing to sync
        end = done.index(rename, start)
        synced = [one.size for one in done[start:end] if one.what == "sync"]
        yield Never(
            not synced,
            "write_whole does not ask for the data to be on the disk (os.fsync) before the rename: "
            "after a power failure the name would be there and the data not",
        )
        yield Never(
            rename.size not in synced,
            "write_whole calls os.fsync before all data have left Python's buffer: what comes "
            "later may not be on the disk when the file gets its name",
        )
        start = end + 1


def _in_two_files(every: list[dict[str, Any]], _: Case) -> Rows:
    first, second = ({one.source for one in found["done"] if one.source} for found in every)
    both = "write_whole: two ranks that write two files of one folder at the same time put their"
    one = min(first & second, default="")
    yield Never(one, f"{both} data into one file first, {one}")


# --- saving -----------------------------------------------------------------------------------


def _columns(ranks: int) -> list[tuple[int, int]]:
    return [(_TOTAL * rank // ranks, _TOTAL * (rank + 1) // ranks) for rank in range(ranks)]


def _state(step: int = 4) -> Any:
    """The state of all ranks together, shape (3, 37)."""
    return torch.arange(3.0 * _TOTAL).view(3, _TOTAL) / 7 + step


def _bytes(tensor: Any) -> bytes:
    return bytes(tensor.contiguous().numpy().tobytes())


def _entries(shards: Sequence[bytes]) -> list[dict[str, int]]:
    return [{"bytes": len(data), "crc32": zlib.crc32(data)} for data in shards]


_MEANT = {"bytes": "expected the size of its file", "crc32": "expected that of its file's bytes"}


@dataclass(frozen=True)
class _Saved(Here):
    """A case of save_shard: the steps that are saved, and how many checkpoints are kept."""

    steps: tuple[int, ...]
    keep: int


def _saves(parts: SimpleNamespace, case: _Saved, group: Any) -> dict[str, Any]:
    """Run save_shard on each rank; in the first checkpoint some files are delayed on purpose."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    folder = launch_folder() / f"of{ranks}" / "run"  # does not exist yet
    manifest, early = folder / "step-00000004" / "manifest.json", list[str]()

    def late(target: str) -> None:
        """Delay the shards of ranks above 0, and the manifest for half as long."""
        until_s = time.monotonic() + _LATE_S
        while target.endswith(".shard") and rank and time.monotonic() < until_s:
            if manifest.exists():
                return early.append(target)
            time.sleep(0.01)
        if not rank and target == manifest.name:
            time.sleep(_LATE_S / 2)

    late_ones = [] if case.in_group else [late]
    done = _watched(folder, lambda target: late_ones[0](target) if late_ones else None)
    start, stop = _columns(ranks)[rank]
    manifest_exists, returned = [], []
    for step in case.steps:
        shard, path = _state(step)[:, start:stop], folder / f"step-{step:08d}"
        given = parts.save_shard(folder, step, shard, _LAYOUT, group, keep=case.keep)
        returned += [described(given)] if given != path else []
        manifest_exists.append((path / manifest.name).exists())
        late_ones.clear()
    dist.barrier(group)
    return {
        "early": early,
        "there": manifest_exists,
        "returned": returned,
        "in place": [os.path.basename(name) for name in _names(done, "write")],
        "named": [os.path.basename(name) for name in _names(done, "rename")],
        "too soon": any(one.size <= case.keep for one in done if one.what == "remove"),
        "kept": {
            path.name: {file.name: file.read_bytes() for file in path.iterdir()}
            for path in folder.iterdir()
        },
    }


def _expect_saved(found: dict[str, Any], place: Place) -> Rows:
    """Check what each rank did, and on rank 0 the files on the disk afterwards."""
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
    """Check that the checkpoint's files hold the state and that the manifest describes them."""
    by = f"a group of {ranks} ranks" if case.in_group else f"{ranks} ranks"
    kept = sorted(name for name, files in folder.items() if "manifest.json" in files)
    steps = [f"step-{step:08d}" for step in case.steps[-case.keep :]]
    complete = f"after steps {case.steps} with keep={case.keep} the complete checkpoints are"
    yield Never(kept != steps, f"{complete} {kept}, expected {steps}")
    files, step = folder[steps[-1]], case.steps[-1]
    names = {f"rank{rank}.shard" for rank in range(ranks)} | {"manifest.json"}
    yield Never(files.keys() != names, f"{by}: the checkpoint has the files {sorted(files)}")
    for rank, (start, stop) in enumerate(_columns(ranks)):
        data, shard = files[f"rank{rank}.shard"], _state(step)[:, start:stop]
        unlike = f"rank{rank}.shard of {by} {_unlike(data, shard)}"
        yield Never(data != _bytes(shard), unlike)
    try:
        manifest = json.loads(files["manifest.json"])
    except ValueError:
        raise Wrong(f"{by}: manifest.json is no JSON") from None
    shards = _entries([files[f"rank{rank}.shard"] for rank in range(ranks)])
    expected = {"step": step, "layout": _LAYOUT, "shards": shards}
    expect_alike(manifest, expected, f"{by}: the manifest", _MEANT)


def _unlike(data: bytes, shard: Any) -> str:
    if len(data) != 4 * shard.numel():
        return f"has {len(data)} bytes, expected 4 for each number of a shard {tuple(shard.shape)}"
    if data == _bytes(shard.t()):
        return "has the shard column by column, expected row by row"
    return "has other numbers than the shard of that rank"


# --- loading ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Load(Here):
    """A case of load_shard: a checkpoint saved by `writers` ranks, its damage, how it is loaded.

    `refused`: for a checkpoint that must be rejected, the message if the learner's code loads it.
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
        """The step of the checkpoint, different for each number of writers."""
        return 4 + self.writers

    def write(self) -> Path:
        """Write the files of `writers` ranks into a new folder of this rank; returns its path."""
        path = write_checkpoint(_state(), self.step, _LAYOUT, _columns(self.writers))
        if self.damaged is not None:
            shard = path / f"rank{self.damaged}.shard"
            data = shard.read_bytes()
            shard.write_bytes(bytes([data[0] ^ 1]) + data[1:])
        if not self.manifest:
            (path / "manifest.json").unlink()
        return path


def write_checkpoint(state: Any, step: int, layout: Any, cuts: Sequence[tuple[int, int]]) -> Path:
    """Write a checkpoint of the columns `cuts` of `state`, one shard each; returns its path."""
    path = Path(tempfile.mkdtemp(dir=launch_folder())) / f"step-{step:08d}"
    path.mkdir()
    shards = [_bytes(state[:, start:stop]) for start, stop in cuts]
    for rank, data in enumerate(shards):
        (path / f"rank{rank}.shard").write_bytes(data)
    manifest = {"step": step, "layout": layout, "shards": _entries(shards)}
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
    """Run load_shard on each rank; returns its result, or the error, and the shards it read."""
    path = case.write()
    done = _watched(path)
    try:
        result = parts.load_shard(path, case.layout, group, reshard=case.reshard)
    except _files.CheckpointError as error:
        result = str(error)
    except FileNotFoundError:
        if case.manifest:
            raise
        result = None
    return result, {name for name in _names(done, "read") if name.endswith(".shard")}


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
    wrong_step = f"{what}: the step is {described(step)}, expected the manifest's {case.step}"
    yield Never(step != case.step or not isinstance(step, int), wrong_step)
    parts = [_state()[:, first:last] for first, last in _columns(ranks)]
    others = {f"the shard of rank {n}": each for n, each in enumerate(parts) if n != rank}
    yield Must(f"{what}: the shard", shard, parts[rank], others)
    dtype = f"{what}: the shard is of {shard.dtype}, expected fp32"
    yield Never(shard.dtype != torch.float32, dtype)


def _reshard(parts: SimpleNamespace) -> Callable[[], object]:
    """The race: load a checkpoint of a million parameters that 3 ranks saved."""
    module = later("course_lib.chapters.ch15_launchers_and_recovery.builds.reshard")
    layout, cuts = (
        {"weight": [1000, 1000]},
        [(10**6 * n // 3, 10**6 * (n + 1) // 3) for n in range(3)],
    )
    folder = module.write_checkpoint(torch.ones(3, 10**6), 4, layout, cuts)
    dist.barrier()
    return lambda: parts.load_shard(folder, layout)


RESHARD = build(
    "reshard",
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
