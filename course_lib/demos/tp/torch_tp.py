"""A GPT sharded by torch's `parallelize_module`, the reference of the demos tp and fsdp_tp."""

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.functional import scaled_dot_product_attention
from torch.optim import Optimizer

from course_lib.scratch.gpt import GPT, Attention, Block

_QKV = ("q", "k", "v")


class SeparateAttention(nn.Module):
    """Attention with separate q, k and v matrices, so that torch can shard them by heads.

    ColwiseParallel takes contiguous rows: rank 0 of 2 would get q and half of k of a fused matrix.
    """

    def __init__(self, fused: Attention) -> None:
        super().__init__()
        hidden = fused.out.in_features
        self.width = hidden // fused.heads
        for name, rows in zip(_QKV, torch.arange(3 * hidden).chunk(3), strict=True):
            part = nn.Linear(hidden, hidden)
            part.weight = nn.Parameter(fused.qkv.weight.detach()[rows].clone())
            part.bias = nn.Parameter(fused.qkv.bias.detach()[rows].clone())
            self.add_module(name, part)
        self.out = fused.out

    def forward(self, x: Tensor) -> Tensor:  # (batch, sequence, hidden)
        q, k, v = (
            getattr(self, name)(x).unflatten(-1, (-1, self.width)).transpose(1, 2) for name in _QKV
        )
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        result: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return result


def parallelize(model: GPT, mesh: DeviceMesh, sequence_parallel: bool = False) -> GPT:
    """Shard a GPT in place over a one-dimensional mesh; its logits become a DTensor.

    Raises ValueError if heads are not divisible, where torch would fail inside attention.
    """
    blocks = [cast(Block, block) for block in model.blocks]
    heads = blocks[0].attention.heads
    if heads % mesh.size():
        raise ValueError(f"heads {heads} is not divisible by tp {mesh.size()}: take fewer ranks")
    for block in blocks:
        block.add_module("attention", SeparateAttention(block.attention))
    parallelize_module(model, mesh, _plan(sequence_parallel))
    model.head.weight = model.embedding.weight  # each was sharded separately: tie them again
    return model


def _plan(sequence_parallel: bool) -> dict[str, ParallelStyle]:
    tokens = Shard(1) if sequence_parallel else Replicate()  # between the pairs
    plan = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=tokens),
        "blocks.*.attention.q": ColwiseParallel(),
        "blocks.*.attention.k": ColwiseParallel(),
        "blocks.*.attention.v": ColwiseParallel(),
        "blocks.*.attention.out": RowwiseParallel(output_layouts=tokens),
        "blocks.*.mlp.0": ColwiseParallel(),
        "blocks.*.mlp.2": RowwiseParallel(output_layouts=tokens),
        "head": ColwiseParallel(
            input_layouts=tokens, output_layouts=Shard(-1), use_local_output=False
        ),
    }
    if not sequence_parallel:
        return plan
    gather = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
    return plan | {
        # Every rank looks up all positions and keeps those of its own tokens.
        "positions": PrepareModuleOutput(
            output_layouts=Replicate(), desired_output_layouts=Shard(0)
        ),
        "blocks.*.norm1": SequenceParallel(),
        "blocks.*.attention": gather,  # once for q, k and v
        "blocks.*.norm2": SequenceParallel(),
        "blocks.*.mlp": gather,
        "norm": SequenceParallel(),
    }


def update_one_by_one(optimizer: Optimizer) -> None:
    """Turn off the optimizer's foreach mode.

    It rejects a mix of DTensors and plain tensors, or of DTensors on different meshes.
    """
    for group in optimizer.param_groups:
        group["foreach"] = False


def whole_loss(loss: Tensor) -> Tensor:
    """The loss as a plain tensor: with several ranks `loss_parallel` returns a DTensor."""
    return loss.full_tensor() if isinstance(loss, DTensor) else loss


def sum_pending_gradients(model: nn.Module) -> None:
    """Reduce partial gradients: those of norms under sequence parallelism.

    Otherwise AdamW repeats the reduction in each of its operations, three times per update.
    """
    for parameter in model.parameters():
        if isinstance(parameter.grad, DTensor):
            placements = cast(DTensor, parameter).placements
            parameter.grad = parameter.grad.redistribute(placements=placements)


def fused(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by their names in GPT: q, k and v joined, DTensors made whole by collectives."""
    whole = {name: _whole(tensor) for name, tensor in tensors.items()}
    for name in [name for name in whole if ".attention.q." in name]:
        parts = [whole.pop(name.replace(".q.", f".{part}.")) for part in _QKV]
        whole[name.replace(".q.", ".qkv.")] = torch.cat(parts)
    return whole


def _whole(tensor: Tensor) -> Tensor:
    if not isinstance(tensor, DTensor):
        return tensor
    # Mesh dimensions one after the other: `full_tensor` does the same, but warns.
    mesh = tensor.device_mesh
    for dimension in sorted(range(mesh.ndim), key=lambda number: mesh.size(number) > 1):
        placements = list(tensor.placements)
        placements[dimension] = Replicate()
        tensor = tensor.redistribute(placements=placements)
    return tensor.to_local()
