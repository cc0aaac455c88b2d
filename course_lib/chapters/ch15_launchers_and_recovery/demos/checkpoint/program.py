"""A sharded checkpoint saved on some ranks and loaded on others, beside torch's.

Recovery, part 1. A small GPT trains on `--save-ranks` ranks, each with its shard of weights and
moments, and saves in mid-training. `--load-ranks` ranks build a model with other weights, load the
checkpoint, and go on. The loss curve is that of one process that was never interrupted. By hand
(scratch.recovery), and with fully_shard and torch.distributed.checkpoint.
Run it with `course demo checkpoint --ranks 4 --save-ranks 4 --load-ranks 2`, or under torchrun;
`--parts mine` saves and loads by what you have built.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch.distributed as dist
from torch.distributed import ProcessGroup

from course_lib import launch
from course_lib.chapters.ch15_launchers_and_recovery.demos.checkpoint.versions import Dcp, Sharded
from course_lib.demos.shared.comparison import Version, compared
from course_lib.demos.shared.options import BatchOptions, option, whose_parts
from course_lib.demos.shared.parts import with_yours
from course_lib.demos.shared.ranks import from_rank
from course_lib.demos.shared.result import Result
from course_lib.demos.shared.training import Training, one_process

BUILT = ("save_shard", "load_shard")
KINDS: tuple[type[Sharded | Dcp], ...] = (Sharded, Dcp)


@dataclass(frozen=True)
class Options(BatchOptions):
    """What the demo can be asked for."""

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
    """Train, save and load with both versions; every rank returns the same."""
    rank = launch.init()
    training = options.training()
    savers = _ranks("save_ranks", options.save_ranks, rank.world)
    loaders = _ranks("load_ranks", options.load_ranks, rank.world)
    groups = dist.new_group(range(savers)), dist.new_group(range(loaders))
    reference = one_process(training, rank.device)
    versions, notes = [], []
    with _folder(options.folder) as folder:
        for kind in KINDS:
            place = folder / kind.__name__.lower()
            version, note = _follow(kind, training, options, groups, place)
            versions.append(version)
            notes.append(note)
    return compared(
        f"checkpoint saved by {savers} and loaded by {loaders}",
        rank,
        options.model,
        reference,
        versions,
        notes=notes,
    )


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
        stranger = kind(other, groups[1], options.parts)
        loaded_s = _seconds(lambda: stranger.load(folder))
        losses += [stranger.step(batch) for batch in after]
    seconds = (time.perf_counter() - start_s - saved_s - loaded_s) / len(batches)
    found = None
    if launch.init().rank == 0:
        parameters = training.shape().parameters().total
        yours = with_yours(options.parts, *BUILT) if kind is Sharded else ""
        version = Version(
            name=kind.name + yours,
            losses=losses,
            gradient_difference=None,
            seconds=seconds,
            stored=stranger.stored(folder),
            predicted_stored=stranger.predicted_stored(parameters),
        )
        whole_bytes = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        note = (
            f"{kind.name}: saved in {1000 * saved_s:.0f} ms, loaded in {1000 * loaded_s:.0f} ms; "
            f"{whole_bytes:,} B on disk = {whole_bytes / parameters:.2f} a parameter"
        )
        found = version, note
    return from_rank(0, found)


def _member(group: ProcessGroup) -> bool:
    return dist.get_rank(group) >= 0


def _seconds(work: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    work()
    return time.perf_counter() - start_s


def _ranks(name: str, asked: int, world: int) -> int:
    if asked > world:
        raise ValueError(f"{name} {asked} is more than the {world} ranks started: start {asked}")
    return asked or world


@contextmanager
def _folder(named: str) -> Iterator[Path]:
    """A folder that all ranks see: the learner's if it is empty, or one that rank 0 removes.

    It does not wait for the others then: after an error they may not come.
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
