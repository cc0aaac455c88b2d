"""One update of one rank: `fully_shard` over `parallelize_module`, as a training script has it.

The same code runs in a rehearsal, where one rank out of many exists, and on real ranks.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import loss_parallel, parallelize_module
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW, Optimizer

from course_lib.measure.storages import tensor_bytes
from course_lib.measure.wire import log_wire
from course_lib.rehearsal.model import Transformer, cuts
from course_lib.theory.inputs.job import Job
from course_lib.trace import Total

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Observed:
    """What one rank keeps, in bytes, and what it called, by axis and operation."""

    stored: dict[str, int]
    sent: dict[str, Total]


# Called with the number of layers that are cut, and of all: by far the longest part.
Tell = Callable[[int, int], None]


def one_update(
    job: Job, tensors: AbstractContextManager[Any], tell: Tell = lambda _done, _layers: None
) -> Observed:
    """Train for one update inside the process group; tensors are made and used in `tensors`."""
    mesh = _mesh(job)
    with tensors:
        model = _model(job)
    _cut(model, job, mesh, tell)
    with tensors, log_wire() as log:
        # One parameter after the other: a list of tensors on different meshes is refused.
        parameters = list(model.parameters())
        optimizer = _optimizer(job, parameters)
        for _ in _passes(job, cast(FSDPModule, model)):
            _forward_and_backward(job, model)
        optimizer.step()
    states = optimizer.state.values()
    stored = {
        "weights": tensor_bytes(parameters),
        "gradients": tensor_bytes(p.grad for p in parameters if p.grad is not None),
        "moments": tensor_bytes(value for state in states for value in state.values()),
    }
    return Observed(stored, log.sent(_axes(mesh)))


def _model(job: Job) -> Transformer:
    """The whole model, in the precision of the weights. A fake tensor cannot be converted later."""
    standard = torch.get_default_dtype()
    torch.set_default_dtype(DTYPES[job.recipe.parameters])
    try:
        return Transformer(job.shape)
    finally:
        torch.set_default_dtype(standard)


def _mesh(job: Job) -> DeviceMesh:
    """Ranks as the theory places them: tp innermost, then the shards, then their copies."""
    layout = job.layout
    sizes = (layout.shard_groups, layout.shard_ranks, layout.tp)
    return init_device_mesh("cpu", sizes, mesh_dim_names=("copies", "shards", "tp"))


def _axes(mesh: DeviceMesh) -> dict[str, str]:
    """The theory's axis of each process group, by torch's name for the group."""
    axes = {"copies": "dp", "shards": "dp", "tp": "tp"}
    return {mesh[name].get_group().group_name: axis for name, axis in axes.items()}


def _cut(model: Transformer, job: Job, mesh: DeviceMesh, tell: Tell) -> None:
    """Cut the matrices over tp; shard what is left, each layer for itself, and all the rest."""
    layout, recipe = job.layout, job.recipe
    if layout.tp > 1:
        plan = cuts(job.shape, layout.sequence_parallel)
        parallelize_module(model, mesh["tp"], plan, src_data_rank=None)
        model.tie()  # each was cut for itself
    over = mesh["copies", "shards"] if layout.shard_groups > 1 else mesh["shards"]
    policy = MixedPrecisionPolicy(
        param_dtype=DTYPES[recipe.compute or recipe.parameters],
        reduce_dtype=DTYPES[recipe.gradients],
    )
    for done, block in enumerate(model.blocks):
        tell(done, len(model.blocks))
        fully_shard(block, mesh=over, mp_policy=policy, reshard_after_forward=layout.reshard)
    fully_shard(model, mesh=over, mp_policy=policy, reshard_after_forward=False)


def _optimizer(job: Job, parameters: Iterable[torch.nn.Parameter]) -> Optimizer:
    name = job.recipe.optimizer
    if name.startswith("adamw"):
        return AdamW(parameters, foreach=False)
    return SGD(parameters, momentum=0.9 if name == "momentum" else 0.0, foreach=False)


def _passes(job: Job, model: FSDPModule) -> Iterator[int]:
    """The micro-batches of the update: when gradients travel, and when weights are let go."""
    layout = job.layout
    for number in range(layout.passes):
        last = number == layout.passes - 1
        model.set_requires_gradient_sync(last or layout.reduces == "micro-batch")
        model.set_reshard_after_backward(last or layout.reshard)
        yield number


def _forward_and_backward(job: Job, model: Transformer) -> None:
    size = (job.layout.micro_batch, job.sequence)
    tokens = torch.zeros(size, dtype=torch.int64)
    with loss_parallel():
        logits = model(tokens).flatten(0, 1).float()
        cross_entropy(logits, tokens.flatten()).backward()
