"""Two ways to train in shards and to keep them on disk: by hand, and with torch's libraries."""

from abc import ABC, abstractmethod
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
from course_lib.demos.shared.batch import Batch, loss_share, rows_of
from course_lib.demos.shared.comparison import sum_over_ranks
from course_lib.demos.shared.prediction import FP32
from course_lib.demos.shared.training import Training
from course_lib.measure.gradients import flat_gradient
from course_lib.scratch import recovery
from course_lib.scratch.gpt import GPT
from course_lib.theory.step.recovery import checkpoint_bytes

MOMENTS = ("exp_avg", "exp_avg_sq")


class Saver(ABC):
    """Trains in shards on a group's ranks; all ranks of it call each method together.

    A subclass also saves all that the next update needs, loads it and returns the number of updates
    before it, and knows the bytes on disk by kind, counted and from the formula.
    """

    name: str

    def __init__(self, model: GPT, group: ProcessGroup) -> None:
        self.model, self.group = model, group

    def step(self, batch: Batch) -> float:
        """One update on this group's ranks; returns the mean loss over the whole batch."""
        rank, ranks = dist.get_rank(self.group), dist.get_world_size(self.group)
        share = loss_share(self.model, rows_of(batch, rank, ranks), batch)
        self.update(share)
        return sum_over_ranks(share, self.group)

    @abstractmethod
    def update(self, share: Tensor) -> None:
        """Backward pass of this rank's share of the loss, and a step of the optimizer."""


class Sharded(Saver):
    """Each rank updates its columns of the flat weights, and keeps their two moments.

    `parts`: "mine" saves and loads by what the learner has built.
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
        """Sum all gradients, update this rank's columns, and spread them."""
        share.backward()
        gradient = flat_gradient(self.model)
        dist.all_reduce(gradient, group=self.group)
        self.mine.grad = gradient[self.start : self.stop]
        self.optimizer.step()
        self._spread()
        self.model.zero_grad()

    def save(self, folder: Path, step: int) -> None:
        """Write the weights and moments of this rank's columns."""
        moments = [self.optimizer.state[self.mine][name] for name in MOMENTS]
        shard = torch.stack([self.mine.detach(), *moments])  # (3, columns)
        mine.get("save_shard", self.parts)(folder, step, shard, self.layout, self.group)

    def load(self, folder: Path) -> int:
        """Read the newest complete checkpoint, cut for this group's ranks."""
        newest, load = recovery.newest(folder), mine.get("load_shard", self.parts)
        step, shard = load(newest, self.layout, self.group)
        weights, *moments = shard.to(self.mine.device)
        self.mine.data.copy_(weights)
        state = {name: moment.clone() for name, moment in zip(MOMENTS, moments, strict=True)}
        self.optimizer.state[self.mine] = {"step": torch.tensor(float(step)), **state}
        self._spread()
        return step

    def stored(self, folder: Path) -> dict[str, int]:
        """Bytes of the shards' files."""
        return {"shards": sum(file.stat().st_size for file in folder.rglob("*.shard"))}

    def predicted_stored(self, parameters: int) -> dict[str, int]:
        """fp32 weights and two moments: 12 bytes per parameter."""
        return {"shards": checkpoint_bytes(parameters, FP32)}

    def _spread(self) -> None:
        """Copy every rank's columns into every rank's model."""
        total = sum(p.numel() for p in self.model.parameters())
        flat = self.mine.new_zeros(total)
        flat[self.start : self.stop] = self.mine.detach()
        dist.all_reduce(flat, group=self.group)  # a gather that allows uneven shards
        nn.utils.vector_to_parameters(flat, self.model.parameters())


class Dcp(Saver):
    """fully_shard, and torch.distributed.checkpoint."""

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
        """Let fully_shard average the gradients, and update the shards."""
        (share * dist.get_world_size(self.group)).backward()  # it averages over ranks
        self.optimizer.step()
        self.optimizer.zero_grad()

    def save(self, folder: Path, step: int) -> None:
        """Every rank writes its shards, rank 0 also the metadata."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        state = {"model": model, "optimizer": optimizer, "step": step}
        save(state, checkpoint_id=folder, process_group=self.group)

    def load(self, folder: Path) -> int:
        """Read the shards that this group needs, however many ranks wrote them."""
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
        """Bytes of the tensors that the metadata names, without the files' headers."""
        entries = FileSystemReader(folder).read_metadata().state_dict_metadata
        return {
            "tensors": sum(
                entry.size.numel() * entry.properties.dtype.itemsize
                for entry in entries.values()
                if isinstance(entry, TensorStorageMetadata)
            )
        }

    def predicted_stored(self, parameters: int) -> dict[str, int]:
        """12 bytes per parameter, and AdamW's step number: 4 bytes for each tensor.

        Weights that embedding and head share are saved under both names.
        """
        steps = 4 * len(list(self.model.parameters()))
        twice = 4 * self.model.head.weight.numel()
        return {"tensors": checkpoint_bytes(parameters, FP32) + twice + steps}
