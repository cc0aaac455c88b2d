"""Megatron-core's own tensor-parallel layers in the same GPT, where that package is installed.

Its GPTModel and its sequence parallelism require CUDA; these layers and the loss also run on CPUs.
"""

import os
import warnings
from importlib.util import find_spec
from typing import Any, cast

import torch.distributed as dist
from torch import Tensor, nn

from course_lib.scratch.gpt import GPT, Block
from course_lib.scratch.tensor import TensorParallel, cut_gpt


def missing(sequence_parallel: bool, vocab: int, ranks: int) -> str | None:
    """Why Megatron-core's layers cannot run here, or None."""
    if find_spec("megatron") is None or find_spec("megatron.core") is None:
        return "not installed: pip install 'course-lib[megatron]'"
    if sequence_parallel:
        return "its sequence parallelism allocates on CUDA devices only"
    if vocab % ranks:
        return f"its loss counts padding as words: vocabulary {vocab}, {ranks} ranks"
    return None


def parallelize(model: GPT, region: TensorParallel) -> GPT:
    """Shard a GPT in place with Megatron-core's layers; the region must have all ranks."""
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")  # else it warns on each rank
    tp, config = _package(), _config(region.ranks)
    cut_gpt(model, region)
    for block in (cast(Block, block) for block in model.blocks):
        pairs = ((block.attention, ("qkv", "out")), (block.mlp, ("0", "2")))
        for module, (first, second) in pairs:
            column = _column(tp, config, module.get_submodule(first), region.ranks)
            row = _row(tp, config, module.get_submodule(second), region.ranks)
            module.add_module(first, column)
            module.add_module(second, row)
    rows, hidden = model.embedding.weight.shape
    size = (rows * region.ranks, hidden)
    table = tp.VocabParallelEmbedding(*size, init_method=nn.init.normal_, config=config)
    model.add_module("embedding", _filled(table, model.embedding))
    model.add_module("head", _Head(tp, config, table.weight, size))
    return model


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Megatron-core's loss of each token; it overwrites the logits."""
    losses: Tensor = _package().vocab_parallel_cross_entropy(logits, labels)
    return losses


class _Head(nn.Module):
    """The output head, which passes the tied embedding weight to Megatron-core's layer."""

    def __init__(self, tp: Any, config: Any, table: nn.Parameter, size: tuple[int, int]) -> None:
        super().__init__()
        vocab, hidden = size
        self.weight = table
        self.layer = tp.ColumnParallelLinear(
            hidden, vocab, config=config, init_method=nn.init.normal_, bias=False,
            skip_weight_param_allocation=True,
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layer(x, self.weight)[0]
        return logits


def _column(tp: Any, config: Any, ours: nn.Module, ranks: int) -> nn.Module:
    outputs, inputs = ours.get_parameter("weight").shape
    layer = tp.ColumnParallelLinear(
        inputs, outputs * ranks, config=config, init_method=nn.init.normal_
    )
    return _without_bias(_filled(layer, ours))


def _row(tp: Any, config: Any, ours: nn.Module, ranks: int) -> nn.Module:
    outputs, inputs = ours.get_parameter("weight").shape
    layer = tp.RowParallelLinear(
        inputs * ranks, outputs, config=config, init_method=nn.init.normal_, bias=True,
        input_is_parallel=True, skip_bias_add=False,
    )  # fmt: skip
    return _without_bias(_filled(layer, ours))


def _filled(layer: nn.Module, ours: nn.Module) -> nn.Module:
    """Copy our weights into Megatron-core's layer, which is sharded in the same way."""
    for name, parameter in ours.named_parameters():
        target = getattr(layer, name)
        target.data.copy_(parameter.data)
        if hasattr(parameter, "cut"):
            target.cut = parameter.cut
    return layer


def _without_bias(layer: nn.Module) -> nn.Module:
    # Megatron-core's layers return an output and a bias to be added later, here None.
    layer.register_forward_hook(lambda _layer, _inputs, outputs: outputs[0])
    return layer


def _package() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about GPU packages that are not installed
        from megatron.core import tensor_parallel
    return tensor_parallel


def _config(ranks: int) -> Any:
    from megatron.core import parallel_state
    from megatron.core.model_parallel_config import ModelParallelConfig

    if ranks != dist.get_world_size():
        raise ValueError(f"ranks {ranks} of the group are not all: give it the whole world")
    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=ranks)
    return ModelParallelConfig(tensor_model_parallel_size=ranks, use_cpu_initialization=True)
