"""Checkpoints that the check must refuse: (what was thought, answer, words of the refusal)."""

import json
import math
import os
import zlib

import torch
import torch.distributed as dist

from course_lib.scratch import recovery
from course_lib.scratch import recovery as ours
from course_lib.scratch.recovery import (
    MANIFEST,
    CheckpointError,
    columns,
    read_manifest,
    read_shard,
    remove_old,
)
from tests.checking.builds.patches import versions

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
_SAVE = r"""
saves as the world
- rank, ranks = dist.get_rank(group), dist.get_world_size(group)
+ rank, ranks = dist.get_rank(), dist.get_world_size()
? 2
keeps two
+ rank, ranks, keep = dist.get_rank(group), dist.get_world_size(group), 2
? 2 keep=1 the complete checkpoints are
bytes of a view
- shard.detach().cpu().contiguous().numpy().tobytes()
+ torch.empty(0, dtype=torch.uint8).set_(shard.untyped_storage()).numpy().tobytes()
? 2 rank0.shard of 4 ranks has 444 bytes
transposed
+ shard.t().contiguous().numpy().tobytes()
? 2 column by column
removes first
- write_whole(path / f"rank{rank}.shard", data)
+ write_whole(path / f"rank{rank}.shard", data)
+ if rank == 0:
+     remove_old(folder, keep - 1)
? 2 before the new one is complete
shards in place
+ (path / f"rank{rank}.shard").write_bytes(data)
? 2 opens rank0.shard itself for writing
the manifest first
+ pass
- dist.all_gather_object(entries, entry, group)  # all shards are on disk
+ dist.all_gather_object(entries, entry, group)
+ write_whole(path / f"rank{rank}.shard", data)
? 2 rank 1 of 4: the manifest is there before the shard
entries turned round
- "shards": entries
+ "shards": entries[::-1]
? 2 part 1 is dict .*, which is part 4
another checksum
- zlib.crc32(data)
+ zlib.adler32(data)
? 2 crc32 is .*expected that of its file's bytes
a text
- return path
+ return str(path)
? 2 returns str .*expected the folder's Path
rank 0 gathers
- dist.all_gather_object(entries, entry, group)  # all shards are on disk
- if rank == 0:
+ if rank == 0:
+     dist.all_gather_object(entries, entry, group)
? 2 (nothing moves|raised)
one entry
- dist.all_gather_object(entries, entry, group)  # all shards are on disk
+ dist.barrier(group)
+ entries = [entry]
? 2 shards has 1 parts, expected 4
all write it
- if rank == 0:
+ if rank:
+     write_whole(path / MANIFEST, json.dumps({}).encode())
+ else:
? 2 (writes the manifest as well|raised FileNotFoundError)
keeps all
- remove_old(folder, keep)
+ pass
? 2 with keep=2 the complete
returns at once
- dist.barrier(group)
+ pass
? 2 rank 1 of 4.*no manifest yet
"""
_LOAD = """
any model
- read_manifest(path, layout)
+ read_manifest(path, json.loads((path / MANIFEST).read_text())["layout"])
? 3 another model: it loads the checkpoint of a model
loads as the world
- rank, ranks = dist.get_rank(group), dist.get_world_size(group)
+ rank, ranks = dist.get_rank(), dist.get_world_size()
? 4 of a group of 2, saved by
the step of the run
- return manifest["step"],
+ return 4,
? 3 the step is int 4
the step as a text
+ return path.name[5:],
? 3 the step is str
fp64
- torch.cat(parts, dim=1)
+ torch.cat(parts, dim=1).double()
? 3 is of torch.float64, expected fp32
backwards
+ torch.cat(parts[::-1], dim=1)
? 4 differs in
believes every byte
- read_shard(path / f"rank{writer}.shard", writer, entry)
+ torch.from_file(str(path / f"rank{writer}.shard"), size=entry["bytes"] // 4).view(3, -1)
? 3 although the checksum
its own file
- total = sum(map(math.prod, layout.values()))
+ own = read_shard(path / f"rank{rank}.shard", rank, manifest["shards"][rank])
+ return manifest["step"], own
? 4
equal shards
- first, last = columns(total, writer, writers)
+ wide = math.ceil(total / writers)
+ first, last = writer * wide, min(total, (writer + 1) * wide)
? [34]
columns of the whole
- low, high = max(first, start) - first, min(last, stop) - first
+ low, high = max(first, start), min(last, stop)
? 3
shapes of matrices
- total = sum(map(math.prod, layout.values()))
+ total = sum(math.prod(shape[:2]) for shape in layout.values())
? 3 the shard has shape
reads everything
- if first < stop and start < last:  # they share columns
+ read_shard(path / f"rank{writer}.shard", writer, entry)
+ if first < stop and start < last:
? 3 reads rank1.shard, in which it has no column
always reshards
- writers != ranks and not reshard:
+ False:
? 3 expected a CheckpointError
"""
WRONG = versions(
    recovery.write_whole, lambda write: [write, ours.save_shard, ours.load_shard], _WRITE
)
WRONG += versions(
    ours.save_shard, lambda save: [recovery.write_whole, save, ours.load_shard], _SAVE
)
WRONG += versions(
    ours.load_shard, lambda load: [recovery.write_whole, ours.save_shard, load], _LOAD
)


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


_MINE = _by_descriptors, _by_barriers, _column_by_column
for name, function in zip(("write_whole", "save_shard", "load_shard"), _MINE, strict=True):
    function.__name__ = name
RIGHT = [("descriptors, barriers, columns", [*_MINE])]
AS_MINE = """
write_whole, save_shard, load_shard = _by_descriptors, _by_barriers, _column_by_column
"""
