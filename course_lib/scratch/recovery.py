"""Sharded checkpoints, and a simulation of runs with failures."""

import json
import math
import os
import random
import shutil
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

# The files of a sharded checkpoint: written atomically, and checksummed.
#
# Every error message is one sentence: the file, its rank, and the reason.


MANIFEST = "manifest.json"
Layout = dict[str, list[int]]  # shape of each parameter, in the flat order


class CheckpointError(ValueError):
    """The checkpoint is unusable; the message names file, rank and reason."""


def write_whole(path: Path, data: bytes) -> None:
    """Write atomically: readers never see a partial file under this name."""
    unfinished = path.with_suffix(".unfinished")
    with open(unfinished, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())  # on the disk before it has its name
    os.replace(unfinished, path)


def read_manifest(path: Path, layout: Layout) -> dict[str, Any]:
    """The manifest of the checkpoint in `path`, checked against the model."""
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        saved = manifest["layout"]
    except FileNotFoundError:
        raise CheckpointError(
            f"{path.name} is incomplete: rank 0 wrote no {MANIFEST}, which "
            "comes last; take an older checkpoint"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise CheckpointError(
            f"{path.name}/{MANIFEST} of rank 0 is corrupt: it is not what was "
            "written; take an older checkpoint"
        ) from None
    for name in {**layout, **saved}:
        if saved.get(name) != layout.get(name):
            raise CheckpointError(
                f"{path.name} is of another model: {name} is "
                f"{saved.get(name, 'absent')} there and "
                f"{layout.get(name, 'absent')} here; build the model that "
                "was saved"
            )
    return manifest


def read_shard(path: Path, rank: int, entry: dict[str, int]) -> Tensor:
    """One rank's file, checked against the manifest: (3, rank's columns)."""
    data = path.read_bytes() if path.exists() else b""
    problem = None
    if not path.exists():
        problem = "is missing"
    elif len(data) != entry["bytes"]:
        problem = f"has {len(data)} bytes instead of {entry['bytes']}"
    elif zlib.crc32(data) != entry["crc32"]:
        problem = "is corrupt: its checksum is not the manifest's"
    if problem:
        raise CheckpointError(
            f"{path.parent.name}/{path.name} of rank {rank} {problem}; "
            "take an older checkpoint"
        )
    return torch.frombuffer(bytearray(data), dtype=torch.float32).view(3, -1)


# A sharded checkpoint by hand: each rank writes its own part of the state.
#
# The state is a matrix (3, parameters) of fp32: weights and AdamW's two
# moments. Rank r of n holds columns parameters*r//n to parameters*(r+1)//n,
# and writes them as raw bytes: 12 per parameter. The manifest is written
# last, so a checkpoint that has one is complete. A different number of ranks
# splits the same columns differently: Wan et al. 2024, ByteCheckpoint,
# arXiv:2407.20143.


def columns(total: int, rank: int, ranks: int) -> tuple[int, int]:
    """The columns start to stop (exclusive) that rank `rank` holds."""
    return total * rank // ranks, total * (rank + 1) // ranks


def save_shard(
    folder: Path,
    step: int,
    shard: Tensor,  # (3, columns of this rank)
    layout: Layout,
    group: ProcessGroup | None = None,
    keep: int = 2,
) -> Path:
    """Write one checkpoint, collectively; keeps the last `keep` of them."""
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
    """The step and this rank's shard (3, columns), resharded if need be."""
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
    """The complete checkpoints in the folder, oldest first."""
    return sorted(path.parent for path in folder.glob(f"step-*/{MANIFEST}"))


def remove_old(folder: Path, keep: int) -> None:
    """Delete all but the last `keep` complete checkpoints."""
    for old in complete(folder)[:-keep]:
        shutil.rmtree(old)


def newest(folder: Path) -> Path:
    """The last complete checkpoint; CheckpointError where there is none."""
    if not (checkpoints := complete(folder)):
        raise CheckpointError(
            f"{folder} has no complete checkpoint: rank 0 wrote no {MANIFEST}"
        )
    return checkpoints[-1]


# A simulation of a run with failures, on a virtual clock.
#
# Failures are a Poisson process, `mtbf_s` apart on average, during work, saves
# and restarts alike. Nothing sleeps: a year takes an instant.


class Span(NamedTuple):
    """One activity of the run, with its start and end in seconds."""

    kind: str  # "work", "save", "lost" or "restart"
    start_s: float
    end_s: float


def run(
    work_s: float,
    *,
    interval_s: float,
    save_s: float,
    mtbf_s: float,
    restart_s: float = 0.0,
    seed: int = 0,
) -> list[Span]:
    """Simulate until `work_s` of work is done and saved; returns spans."""
    draw = random.Random(seed)
    spans, now, done = [], 0.0, 0.0
    failure = draw.expovariate(1 / mtbf_s)
    while done < work_s:
        part_s = min(interval_s, work_s - done)
        worked = now + part_s
        saved = worked + save_s
        if saved <= failure:  # the interval is safe
            spans += [Span("work", now, worked), Span("save", worked, saved)]
            done += part_s
            now = saved
            continue
        spans.append(Span("lost", now, failure))  # since the last save
        now = failure
        failure = now + draw.expovariate(1 / mtbf_s)
        while failure < now + restart_s:  # a failure during the restart
            spans.append(Span("restart", now, failure))
            now = failure
            failure = now + draw.expovariate(1 / mtbf_s)
        spans.append(Span("restart", now, now + restart_s))
        now += restart_s
    return spans


def wasted(spans: list[Span]) -> float:
    """Overhead: time not spent on useful work over time spent on it."""
    work_s = sum(
        span.end_s - span.start_s for span in spans if span.kind == "work"
    )
    return spans[-1].end_s / work_s - 1
