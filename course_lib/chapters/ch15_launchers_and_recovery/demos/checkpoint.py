"""A sharded checkpoint saved on some ranks and loaded on others, beside torch's.

Recovery, part 1. A small GPT trains on `--save-ranks` ranks, each with its shard of weights and
moments, and saves in mid-training. `--load-ranks` ranks build a model with other weights, load the
checkpoint, and go on. The loss curve is that of one process that was never interrupted. By hand
(scratch.recovery.checkpoint), and with fully_shard and torch.distributed.checkpoint.
Run it with `course demo checkpoint --ranks 4 --save-ranks 4 --load-ranks 2`, or under torchrun;
`--parts mine` saves and loads by what you have built.
"""

import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from course_lib import launch, mine
from course_lib.chapters.ch15_launchers_and_recovery.recovery import checkpoint_bytes
from course_lib.demos.shared.comparison import Comparison, Version, sum_over_ranks
from course_lib.demos.shared.options import BatchOptions, option, whose_parts, with_yours
from course_lib.demos.shared.prediction import FP32
from course_lib.demos.shared.ranks import from_rank
from course_lib.demos.shared.result import Result
from course_lib.demos.shared.training import Batch, Training, loss_share, rows_of
from course_lib.measure.gradients import flat_gradient
from course_lib.scratch import recovery
from course_lib.scratch.gpt import GPT

MOMENTS = ("exp_avg", "exp_avg_sq")


class Saver(ABC):
    """Sharded training on the ranks of a group; every method is collective.

    A subclass also has `save`, `load` (which returns the number of updates done), and `stored` and
    `predicted_stored` (bytes on disk by kind, counted and from the formula).
    """

    name: str

    def __init__(self, model: GPT, group: ProcessGroup) -> None:
        self.model, self.group = model, group

    def step(self, batch: Batch) -> float:
        """Run one update on this group's ranks; returns the mean loss over the whole batch."""
        rank, ranks = dist.get_rank(self.group), dist.get_world_size(self.group)
        share = loss_share(self.model, rows_of(batch, rank, ranks), batch)
        self.update(share)
        return sum_over_ranks(share, self.group)

    @abstractmethod
    def update(self, share: Tensor) -> None:
        """Run backward from this rank's share of the loss, and step the optimizer."""


class Sharded(Saver):
    """Each rank updates its slice of the flat weights, and stores that slice's two moments.

    With `parts` "mine" the learner's own functions save and load.
    """

    name = "by hand"

    def __init__(self, training: Training, group: ProcessGroup, parts: str = "course") -> None:
        super().__init__(training.build(launch.init().device), group)
        self.parts = parts
        self.layout = {name: list(p.shape) for name, p in self.model.named_parameters()}
        flat = nn.utils.parameters_to_vector(self.model.parameters()).detach()
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        self.start, self.stop = recovery.columns(len(flat), rank, ranks)
        self.mine = nn.Parameter(flat[self.start : self.stop].clone())
        self.optimizer = training.optimizer([self.mine])

    def update(self, share: Tensor) -> None:
        """All-reduce the gradients, update this rank's slice, and gather all slices."""
        share.backward()
        gradient = flat_gradient(self.model)
        dist.all_reduce(gradient, group=self.group)
        self.mine.grad = gradient[self.start : self.stop]
        self.optimizer.step()
        self._spread()
        self.model.zero_grad()

    def save(self, folder: Path, step: int) -> None:
        """Write the weights and moments of this rank's slice, and the manifest."""
        moments = [self.optimizer.state[self.mine][name] for name in MOMENTS]
        shard = torch.stack([self.mine.detach(), *moments])  # (3, columns)
        mine.get("save_shard", self.parts)(folder, step, shard, self.layout, self.group)

    def load(self, folder: Path) -> int:
        """Load the newest complete checkpoint, resharded for this group's ranks."""
        newest, load = recovery.newest(folder), mine.get("load_shard", self.parts)
        step, shard = load(newest, self.layout, self.group)
        weights, *moments = shard.to(self.mine.device)
        self.mine.data.copy_(weights)
        state = {name: moment.clone() for name, moment in zip(MOMENTS, moments, strict=True)}
        self.optimizer.state[self.mine] = {"step": torch.tensor(float(step)), **state}
        self._spread()
        return step

    def stored(self, folder: Path) -> dict[str, int]:
        """Bytes of the shard files."""
        return {"shards": sum(file.stat().st_size for file in folder.rglob("*.shard"))}

    def predicted_stored(self, parameters: int) -> dict[str, int]:
        """fp32 weights and two moments: 12 bytes per parameter."""
        return {"shards": checkpoint_bytes(parameters, FP32)}

    def _spread(self) -> None:
        """Gather the slices of all ranks into every rank's model."""
        total = sum(p.numel() for p in self.model.parameters())
        flat = self.mine.new_zeros(total)
        flat[self.start : self.stop] = self.mine.detach()
        dist.all_reduce(flat, group=self.group)  # a gather that allows uneven shards
        nn.utils.vector_to_parameters(flat, self.model.parameters())


class Dcp(Saver):
    """Training with fully_shard, checkpoints with torch.distributed.checkpoint."""

    name = "torch.distributed.checkpoint"

    def __init__(self, training: Training, group: ProcessGroup, _parts: str = "course") -> None:
        device = launch.init().device
        super().__init__(training.build(device), group)
        mesh = DeviceMesh.from_group(group, device.type)
        for block in self.model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = training.optimizer(self.model.parameters())

    def update(self, share: Tensor) -> None:
        """Let fully_shard reduce the gradients, and update the shards."""
        (share * dist.get_world_size(self.group)).backward()  # FSDP averages over ranks
        self.optimizer.step()
        self.optimizer.zero_grad()

    def save(self, folder: Path, step: int) -> None:
        """Write this rank's shards; rank 0 also writes the metadata."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        state = {"model": model, "optimizer": optimizer, "step": step}
        save(state, checkpoint_id=folder, process_group=self.group)

    def load(self, folder: Path) -> int:
        """Load this group's shards from a checkpoint written by any number of ranks."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        state: dict[str, Any] = {"model": model, "optimizer": optimizer, "step": 0}
        load(state, checkpoint_id=folder, process_group=self.group)
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        return int(state["step"])

    def stored(self, folder: Path) -> dict[str, int]:
        """Bytes of the tensors listed in the metadata, without the files' headers."""
        entries = FileSystemReader(folder).read_metadata().state_dict_metadata
        return {
            "tensors": sum(
                entry.size.numel() * entry.properties.dtype.itemsize
                for entry in entries.values()
                if isinstance(entry, TensorStorageMetadata)
            )
        }

    def predicted_stored(self, parameters: int) -> dict[str, int]:
        """12 bytes per parameter, and 4 bytes per tensor for AdamW's step count.

        The weights shared by embedding and head are saved twice, once under each name.
        """
        steps = 4 * len(list(self.model.parameters()))
        twice = 4 * self.model.head.weight.numel()
        return {"tensors": checkpoint_bytes(parameters, FP32) + twice + steps}


BUILT = ("save_shard", "load_shard")
KINDS: tuple[type[Sharded | Dcp], ...] = (Sharded, Dcp)


@dataclass(frozen=True)
class Options(BatchOptions):
    """The options of the demo."""

    steps: int = option(6, "optimizer updates")
    save_after: int = option(3, "updates before the checkpoint", least=1)
    save_ranks: int = option(0, "ranks that save; 0: all", least=0)
    load_ranks: int = option(0, "ranks that load and go on; 0: all", least=0)
    folder: str = option("", "keep the checkpoints in this new or empty folder")
    parts: str = whose_parts()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.save_after >= self.steps:
            raise ValueError(
                f"save_after must be below steps {self.steps}, got {self.save_after}: "
                "leave at least one update for the ranks that load"
            )


def main(options: Options) -> Result:
    """Train, save and load with both versions; every rank returns the same result."""
    rank = launch.init()
    training = options.training()
    savers = _ranks("save_ranks", options.save_ranks, rank.world)
    loaders = _ranks("load_ranks", options.load_ranks, rank.world)
    groups = dist.new_group(range(savers)), dist.new_group(range(loaders))
    comparison, notes = Comparison(training), []
    with _folder(options.folder) as folder:
        for kind in KINDS:
            subfolder = folder / kind.__name__.lower()
            version, note = _follow(kind, training, options, groups, subfolder)
            comparison.versions.append(version)
            notes.append(note)
    return comparison.result(f"checkpoint saved by {savers} and loaded by {loaders}", notes=notes)


def _follow(
    kind: type[Sharded | Dcp],
    training: Training,
    options: Options,
    groups: tuple[ProcessGroup, ProcessGroup],
    folder: Path,
) -> tuple[Version, str]:
    """Train and save on one group, load and train on with the other; rank 0 is in both."""
    device = launch.init().device
    batches = training.batches(device)
    before, after = batches[: options.save_after], batches[options.save_after :]
    losses: list[float] = []
    saved_s, loaded_s, start_s = 0.0, 0.0, time.perf_counter()
    if _member(groups[0]):
        trainee = kind(training, groups[0], options.parts)
        losses = [trainee.step(batch) for batch in before]
        saved_s = _seconds(lambda: trainee.save(folder, options.save_after))
        del trainee
    dist.barrier()
    if _member(groups[1]):
        other = replace(training, seed=training.seed + 1)
        resumed = kind(other, groups[1], options.parts)
        loaded_s = _seconds(lambda: resumed.load(folder))
        losses += [resumed.step(batch) for batch in after]
    seconds = (time.perf_counter() - start_s - saved_s - loaded_s) / len(batches)
    outcome = None
    if launch.init().rank == 0:
        parameters = training.shape().parameters().total
        yours = with_yours(options.parts, *BUILT) if kind is Sharded else ""
        version = Version(
            name=kind.name + yours,
            losses=losses,
            gradient_difference=None,
            seconds=seconds,
            stored=resumed.stored(folder),
            predicted_stored=resumed.predicted_stored(parameters),
        )
        whole_bytes = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        note = (
            f"{kind.name}: saved in {1000 * saved_s:.0f} ms, loaded in {1000 * loaded_s:.0f} ms; "
            f"{whole_bytes:,} B on disk = {whole_bytes / parameters:.2f} a parameter"
        )
        outcome = version, note
    return from_rank(0, outcome)


def _member(group: ProcessGroup) -> bool:
    return dist.get_rank(group) >= 0


def _seconds(function: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    function()
    return time.perf_counter() - start_s


def _ranks(name: str, asked: int, world: int) -> int:
    if asked > world:
        raise ValueError(f"{name} {asked} is more than the {world} ranks started: start {asked}")
    return asked or world


@contextmanager
def _folder(named: str) -> Iterator[Path]:
    """Yield a folder shared by all ranks: `named` if it is empty, or a temporary one of rank 0.

    Rank 0 removes the latter without a barrier: after an error the others may never reach it.
    """
    with ExitStack() as stack:
        name = named
        if launch.init().rank == 0 and not name:
            name = stack.enter_context(tempfile.TemporaryDirectory(prefix="course_checkpoint_"))
        folder = Path(from_rank(0, name))
        used = folder.exists() and any(folder.iterdir())
        dist.barrier()  # all ranks have looked before any of them writes
        if used:
            raise ValueError(f"folder {named} is not empty: name a new one")
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
