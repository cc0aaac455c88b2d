"""The files of a sharded checkpoint: written whole or not at all, and checked.

Every problem is reported in one sentence: the file, its rank, and why.
"""

import json
import os
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

MANIFEST = "manifest.json"
Layout = dict[str, list[int]]  # shape of each parameter, in the flat order


class CheckpointError(ValueError):
    """A checkpoint that cannot be used: which file, of which rank, and why."""


def write_whole(path: Path, data: bytes) -> None:
    """All or nothing: a reader never sees half a file under this name."""
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
    """One rank's file, checked against the manifest: (3, its columns)."""
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
