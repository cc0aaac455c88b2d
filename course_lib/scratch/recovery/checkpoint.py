"""A sharded checkpoint by hand: each rank writes its own part of the state.

The state is a matrix (3, parameters) of fp32: weights and AdamW's two moments.
Rank r of n holds columns parameters*r//n to parameters*(r+1)//n, and writes
them as they are: 12 bytes per parameter. The manifest is written last, so a
checkpoint that has one is complete. A different number of ranks just cuts the
same columns differently: Wan et al. 2024, ByteCheckpoint, arXiv:2407.20143.
"""

import json
import math
import shutil
import zlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from course_lib.scratch.recovery.files import (
    MANIFEST,
    CheckpointError,
    Layout,
    read_manifest,
    read_shard,
    write_whole,
)


def columns(total: int, rank: int, ranks: int) -> tuple[int, int]:
    """First and last column, exclusive, that this rank holds."""
    return total * rank // ranks, total * (rank + 1) // ranks


def save_shard(
    folder: Path,
    step: int,
    shard: Tensor,  # (3, columns of this rank)
    layout: Layout,
    group: ProcessGroup | None = None,
    keep: int = 2,
) -> Path:
    """Write one checkpoint, all ranks together; the last `keep` remain."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    path = folder / f"step-{step:08d}"
    if (path / MANIFEST).exists():
        raise FileExistsError(f"{path} is complete: save into another folder")
    path.mkdir(parents=True, exist_ok=True)
    data = shard.detach().cpu().contiguous().numpy().tobytes()
    write_whole(path / f"rank{rank}.shard", data)
    entries: list[Any] = [None] * ranks
    entry = {"bytes": len(data), "crc32": zlib.crc32(data)}
    dist.all_gather_object(entries, entry, group)  # all shards are on disk
    if rank == 0:
        manifest = {"step": step, "layout": layout, "shards": entries}
        write_whole(path / MANIFEST, json.dumps(manifest).encode())
        remove_old(folder, keep)
    dist.barrier(group)
    return path


def load_shard(
    path: Path,
    layout: Layout,
    group: ProcessGroup | None = None,
    reshard: bool = True,
) -> tuple[int, Tensor]:
    """The step and this rank's shard (3, columns), however many wrote them."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    manifest = read_manifest(path, layout)
    writers = len(manifest["shards"])
    if writers != ranks and not reshard:
        raise CheckpointError(
            f"{path.name} was saved by {writers} ranks and is loaded by "
            f"{ranks}: start {writers} ranks or pass reshard=True"
        )
    total = sum(map(math.prod, layout.values()))
    start, stop = columns(total, rank, ranks)
    parts = []
    for writer, entry in enumerate(manifest["shards"]):
        first, last = columns(total, writer, writers)
        if first < stop and start < last:  # they share columns
            shard = read_shard(path / f"rank{writer}.shard", writer, entry)
            low, high = max(first, start) - first, min(last, stop) - first
            parts.append(shard[:, low:high])
    return manifest["step"], torch.cat(parts, dim=1)


def complete(folder: Path) -> list[Path]:
    """The complete checkpoints of the folder, the newest last."""
    return sorted(path.parent for path in folder.glob(f"step-*/{MANIFEST}"))


def remove_old(folder: Path, keep: int) -> None:
    """Keep the last `keep` complete checkpoints only."""
    for old in complete(folder)[:-keep]:
        shutil.rmtree(old)


def newest(folder: Path) -> Path:
    """The last complete checkpoint; CheckpointError where there is none."""
    if not (found := complete(folder)):
        raise CheckpointError(
            f"{folder} has no complete checkpoint: rank 0 wrote no {MANIFEST}"
        )
    return found[-1]
