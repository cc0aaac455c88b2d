"""Checkpoints that the check must refuse: (what was thought, answer, words of the refusal)."""

import json
import math
import os
import zlib

import torch
import torch.distributed as dist

from course_lib.scratch.recovery import checkpoint as ours
from course_lib.scratch.recovery import files
from course_lib.scratch.recovery.checkpoint import columns, remove_old
from course_lib.scratch.recovery.files import (
    MANIFEST,
    CheckpointError,
    read_manifest,
    read_shard,
)
from tests.checking.builds.patches import versions


def _with(write=files.write_whole, save=ours.save_shard, load=ours.load_shard):
    write.__name__, save.__name__, load.__name__ = "write_whole", "save_shard", "load_shard"
    return [write, save, load]


_WRITE = """
in place
- unfinished = path.with_suffix(".unfinished")
+ path.write_bytes(data)
+ return
? 1 opens `path` itself for writing
renamed too early
- file.flush()
- os.fsync(file.fileno())  # on the disk before it has its name
+ os.fsync(file.fileno())
+ os.replace(unfinished, path)
+ return
? 1 before all of it is written
another folder
- path.with_suffix(".unfinished")
+ path.parent.parent / path.name
? 1 in the same folder
a copy remains
- os.replace(unfinished, path)
+ os.replace(unfinished, path)
+ path.with_suffix(".backup").write_bytes(data)
? 1 leaves a.backup behind
not on the disk
- os.fsync(file.fileno())  # on the disk before it has its name
+ pass
? 1 os.fsync
syncs too early
- file.flush()
+ pass
? 1 os.fsync before all data have left
removes the old one
- unfinished = path.with_suffix(".unfinished")
+ path.unlink(missing_ok=True)
+ unfinished = path.with_suffix(".unfinished")
? 1 removes the old file first
one name for all
- unfinished = path.with_suffix(".unfinished")
+ unfinished = path.parent / "unfinished"
+ if dist.get_rank():
+     dist.barrier()
- os.replace(unfinished, path)
+ os.replace(unfinished, path)
+ if not dist.get_rank():
+     dist.barrier()
+ dist.barrier()
? 1 one file first, unfinished
nothing for nothing
- unfinished = path.with_suffix(".unfinished")
+ if not data:
+     return
+ unfinished = path.with_suffix(".unfinished")
? 1 does not hold data of 0 bytes
"""


def _save(fault):
    """Saving in which one thing goes wrong."""

    def save_shard(folder, step, shard, layout, group=None, keep=2):
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        if fault == "of the world":
            rank, ranks = dist.get_rank(), dist.get_world_size()
        if fault == "keeps two":
            keep = 2
        path = folder / f"step-{step:08d}"
        path.mkdir(parents=fault != "an old folder", exist_ok=True)
        if fault == "bytes of a view":
            data = (
                torch.tensor([], dtype=shard.dtype).set_(shard.untyped_storage()).numpy().tobytes()
            )
        elif fault == "column by column":
            data = shard.t().contiguous().numpy().tobytes()
        else:
            data = shard.contiguous().numpy().tobytes()
        entry = {"bytes": len(data), "crc32": zlib.crc32(data)}
        entries = [None] * ranks
        if fault == "rank 0 has them all":
            every = [None] * ranks
            dist.all_gather_object(every, data, group)
            if rank == 0:
                for writer, its in enumerate(every):
                    files.write_whole(path / f"rank{writer}.shard", its)
            dist.barrier(group)
        if fault == "removes first" and rank == 0:
            remove_old(folder, keep - 1)
        if fault == "nothing proves that all have written":
            dist.all_gather_object(entries, entry, group)
        if fault == "shards in place":
            (path / f"rank{rank}.shard").write_bytes(data)
        elif fault != "rank 0 has them all":
            files.write_whole(path / f"rank{rank}.shard", data)
        if fault == "rank 0 alone gathers":
            if rank == 0:
                dist.all_gather_object(entries, entry, group)
        elif fault == "only its own entry":
            dist.barrier(group)
            entries = [entry]
        elif fault != "nothing proves that all have written":
            dist.all_gather_object(entries, entry, group)
        if fault == "turned round":
            entries.reverse()
        if fault == "adler":
            entries = [each | {"crc32": zlib.adler32(data)} for each in entries]
        manifest = {"step": step, "layout": layout, "shards": entries}
        if fault == "the manifest in place" and rank == 0:
            (path / MANIFEST).write_text(json.dumps(manifest))
        if fault == "no layout":
            del manifest["layout"]
        elsewhere = fault == "the manifest in place"
        if (rank == 0 and not elsewhere) or fault == "everybody writes the manifest":
            files.write_whole(path / MANIFEST, json.dumps(manifest).encode())
        if rank == 0 and fault != "nothing is removed":
            remove_old(folder, keep)
        if fault != "returns at once":
            dist.barrier(group)
        return str(path) if fault == "a text" else path / MANIFEST if fault == "its file" else path

    return _with(save=save_shard)


def _load(fault=""):
    """Loading in which one thing goes wrong."""

    def load_shard(path, layout, group=None, reshard=True):
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        if fault == "of the world":
            rank, ranks = dist.get_rank(), dist.get_world_size()
        manifest = read_manifest(path, layout if fault != "any model" else _layout_of(path))
        writers = len(manifest["shards"])
        if writers != ranks and not reshard and fault != "always reshards":
            raise CheckpointError("another number of ranks")
        sizes = [
            math.prod(shape[:2] if fault == "matrices" else shape) for shape in layout.values()
        ]
        total = sum(sizes)
        start, stop = columns(total, rank, ranks)
        if fault == "its own file":
            return manifest["step"], read_shard(
                path / f"rank{rank}.shard", rank, manifest["shards"][rank]
            )
        found = []
        for writer, entry in enumerate(manifest["shards"]):
            first, last = columns(total, writer, writers)
            if fault == "equal shards":
                wide = math.ceil(total / writers)
                first, last = writer * wide, min(total, (writer + 1) * wide)
            if fault != "reads everything" and (first >= stop or start >= last):
                continue
            file = path / f"rank{writer}.shard"
            if fault == "believes every byte":
                shard = torch.frombuffer(bytearray(file.read_bytes()), dtype=torch.float32)
                shard = shard.view(3, -1)
            else:
                shard = read_shard(file, writer, entry)
            low, high = max(first, start) - first, min(last, stop) - first
            if fault == "columns of the whole":
                low, high = max(first, start), min(last, stop)
            if low < high:
                found.append(shard[:, low:high])
        if fault == "backwards":
            found.reverse()
        step = {"step of the run": 4, "a text": path.name[5:]}.get(fault, manifest["step"])
        whole = torch.cat(found, dim=0 if fault == "on top of each other" else 1)
        return step, whole.double() if fault == "fp64" else whole

    return _with(load=load_shard)


def _layout_of(path):
    return json.loads((path / MANIFEST).read_text())["layout"]


WRONG = versions(files.write_whole, lambda write: [write, ours.save_shard, ours.load_shard], _WRITE)
WRONG += [
    ("saves as the world", _save("of the world"), "step 2"),
    ("keeps two", _save("keeps two"), r"step 2.*keep=1 the complete checkpoints are"),
    ("into an old folder", _save("an old folder"), "step 2.*FileNotFoundError"),
    (
        "rank 0 has them all",
        _save("rank 0 has them all"),
        "step 2.*rank 0 of 4 writes rank1.shard: each rank writes its own",
    ),
    ("removes first", _save("removes first"), "step 2.*before the new one is complete"),
    ("shards in place", _save("shards in place"), "step 2.*opens rank0.shard itself for writing"),
    ("it in place", _save("the manifest in place"), "step 2.*opens manifest.json itself"),
    ("entries turned round", _save("turned round"), "step 2.*entry 0 is that of rank 3"),
    ("another checksum", _save("adler"), "step 2.*crc32 of entry 0 is .*checksum of its file's"),
    ("a text", _save("a text"), "step 2.*returns str .*expected the folder's Path"),
    ("its file", _save("its file"), "step 2.*expected the folder's Path"),
    ("any model", _load("any model"), "step 3.*another model: it loads the checkpoint of a model"),
    ("loads as the world", _load("of the world"), "step 4.*of a group of 2, saved by"),
    ("the step of the run", _load("step of the run"), "step 3.*the step is int 4"),
    ("the step as a text", _load("a text"), "step 3.*the step is str"),
    ("fp64", _load("fp64"), "step 3.*is of torch.float64, expected fp32"),
    ("bytes of a view", _save("bytes of a view"), "step 2.*rank0.shard of 4 ranks has 444 bytes"),
    ("transposed", _save("column by column"), "step 2.*column by column"),
    (
        "the manifest first",
        _save("nothing proves that all have written"),
        "step 2.*rank 1 of 4: the manifest is there before the shard",
    ),
    ("rank 0 gathers", _save("rank 0 alone gathers"), "step 2.*(nothing moves|raised)"),
    ("one entry", _save("only its own entry"), "step 2.*'shards' of the manifest has 1 entries"),
    ("no layout", _save("no layout"), "step 2.*wants the keys step, layout, shards"),
    (
        "all write it",
        _save("everybody writes the manifest"),
        "step 2.*(writes the manifest as well|raised FileNotFoundError)",
    ),
    ("keeps all", _save("nothing is removed"), "step 2.*with keep=2 the complete"),
    ("returns at once", _save("returns at once"), "step 2.*rank 1 of 4.*no manifest yet"),
    ("believes every byte", _load("believes every byte"), "step 3.*although the checksum"),
    ("its own file", _load("its own file"), "step 4"),
    ("equal shards", _load("equal shards"), "step [34]"),
    ("columns of the whole", _load("columns of the whole"), "step 3"),
    ("shapes of matrices", _load("matrices"), "step 3.*the shard has shape"),
    ("backwards", _load("backwards"), "step 4.*differs in"),
    ("dim 0", _load("on top of each other"), "step 4"),
    (
        "reads everything",
        _load("reads everything"),
        "step 3.*reads rank1.shard, in which it has no column",
    ),
    ("always reshards", _load("always reshards"), "step 3.*expected a CheckpointError"),
]


def _by_descriptors(path, data):
    """Without Python's buffers."""
    unfinished = path.parent / f".{path.name}.{os.getpid()}"
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(descriptor, data)
    os.fsync(descriptor)
    os.close(descriptor)
    unfinished.rename(path)


def _by_barriers(folder, step, shard, layout, group=None, keep=2):
    """Rank 0 reads sizes and checksums from the files themselves."""
    path = folder / f"step-{step:08d}"
    os.makedirs(path, exist_ok=True)
    rank = dist.get_rank(group)
    _by_descriptors(path / f"rank{rank}.shard", bytes(shard.contiguous().view(-1).numpy()))
    dist.barrier(group)
    if rank == 0:
        shards = [(path / f"rank{n}.shard").read_bytes() for n in range(dist.get_world_size(group))]
        entries = [{"bytes": len(data), "crc32": zlib.crc32(data)} for data in shards]
        text = json.dumps({"shards": entries, "layout": layout, "step": step})
        _by_descriptors(path / MANIFEST, text.encode())
        remove_old(folder, keep)
    dist.barrier(group)
    return path


def _column_by_column(path, layout, group=None, reshard=True):
    """Who has each column, one after the other."""
    manifest = read_manifest(path, layout)
    writers, ranks = len(manifest["shards"]), dist.get_world_size(group)
    if writers != ranks and not reshard:
        raise CheckpointError("another number of ranks")
    total = sum(map(math.prod, layout.values()))
    owner = [(n, i) for n in range(writers) for i in range(*columns(total, n, writers))]
    shards, mine = {}, []
    for column in range(*columns(total, dist.get_rank(group), ranks)):
        writer, _ = owner[column]
        if writer not in shards:
            file = path / f"rank{writer}.shard"
            shards[writer] = read_shard(file, writer, manifest["shards"][writer])
        mine.append(shards[writer][:, column - columns(total, writer, writers)[0]])
    return manifest["step"], torch.stack(mine, dim=1)


RIGHT = [
    (
        "descriptors, barriers, columns",
        _with(_by_descriptors, _by_barriers, _column_by_column),
    )
]
AS_MINE = """
write_whole, save_shard, load_shard = _by_descriptors, _by_barriers, _column_by_column
"""
