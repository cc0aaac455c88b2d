"""YaFSDP: sharded training with two preallocated weight buffers."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from course_lib.scratch import flat_parameter
from course_lib.scratch.flat_parameter import (
    FlatParameter,
    Reduction,
    gathered,
)

# The layers of YaFSDP, and the two buffers that they share alternately.


class Layer:
    """A module whose parameters are views of a buffer, with its shard."""

    def __init__(self, number: int, module: nn.Module, flat: FlatParameter):
        self.number, self.module, self.flat = number, module, flat
        self.names = [name for name, _ in module.named_parameters()]
        self.slots: list[Tensor] = []  # where the gradients go
        self.missing: set[int] = set()  # gradients still to come

    def insert(
        self,
        weights: Tensor,
        gradients: Tensor,
        then: Callable[["Layer"], None],
    ) -> None:
        """Make each parameter permanently a view of `weights`.

        Each gradient is copied into `gradients` once it is computed; `then`
        is called after the last one.
        """
        self.slots = list(self.flat.views(gradients).values())
        views = self.flat.views(weights).values()
        for i, (name, view) in enumerate(zip(self.names, views, strict=True)):
            path, _, attribute = name.rpartition(".")
            parameter = nn.Parameter(view)
            setattr(self.module.get_submodule(path), attribute, parameter)
            parameter.register_post_accumulate_grad_hook(
                lambda p, i=i: self._arrived(i, p, then)
            )

    def _arrived(
        self, i: int, parameter: Tensor, then: Callable[["Layer"], None]
    ) -> None:
        assert parameter.grad is not None  # the hook runs after it is set
        self.slots[i].copy_(parameter.grad)
        parameter.grad = None
        self.missing.discard(i)
        if not self.missing:
            then(self)

    def expect_gradients(self) -> None:
        """Mark all gradients as missing, as this layer's backward starts."""
        self.missing = set(range(len(self.slots)))

    def check_complete(self) -> None:
        """Raise RuntimeError if a gradient is missing: ranks would hang."""
        if self.missing:
            name = self.names[min(self.missing)]
            raise RuntimeError(
                f"layer {self.number}: parameter {name} got no gradient in "
                "this backward pass: use every parameter of a layer, or take "
                "it out"
            )


class Buffers:
    """Two vectors as large as the largest layer, for odd and even layers."""

    def __init__(self, layers: Sequence[Layer], dtype: torch.dtype) -> None:
        largest = max((layer.flat for layer in layers), key=lambda f: f.size)
        new = largest.shard.detach().new_zeros
        self.pair = [new(largest.size, dtype=dtype) for _ in range(2)]

    def of(self, layer: Layer) -> Tensor:
        """The layer's part of its buffer: (flat.size,)."""
        # .data, so that autograd does not notice writes for other layers.
        return self.pair[layer.number % 2].data[: layer.flat.size]


def cut(
    model: nn.Module,
    modules: Sequence[nn.Module],
    device: torch.device | None,
    weights: Iterable[tuple[Tensor, Tensor]] | None,
    group: ProcessGroup | None,
) -> list[Layer]:
    """Give each module a flat parameter, sharded over ranks.

    Modules with the same parameters share it; any other sharing, or a
    parameter outside all modules, raises ValueError.
    """
    names = flat_parameter.layer_names(model, modules)
    layers: list[Layer] = []
    homes: dict[Tensor, tuple[FlatParameter, str]] = {}
    for number, module in enumerate(modules):
        named = {names[p]: p for p in module.parameters()}
        first = next(iter(named.values()))
        if first not in homes:
            flat = FlatParameter(named, device or first.device, group)
            homes |= {p: (flat, name) for name, p in named.items()}
        layers.append(Layer(number, module, homes[first][0]))
    flat_parameter.fill(homes, weights)
    return layers


# YaFSDP: FSDP by whole layers, in buffers allocated once, at the start.
#
# FSDP keeps allocating and freeing memory. Here two buffers hold the weights
# of odd and of even layers, two more their gradients: while one layer computes
# in its buffer, the next one arrives in the other. A weight is permanently a
# view of its layer's buffer, so nothing is inserted or allocated during a
# step. Source: github.com/yandex/YaFSDP, ya_fsdp.py, version 1 (2024), which
# keeps the layers' norms apart from them.


class YaFSDP:
    """Shards `model` over ranks, in place; it is called and trained as before.

    `layers`, in the order of the forward pass, together hold all parameters;
    two may share all of theirs, as embedding and head do. Build the optimizer
    from `shards`, with one weight decay and nothing frozen. The other
    arguments are those of FSDP.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Sequence[nn.Module],
        *,
        device: torch.device | None = None,
        dtype: torch.dtype = torch.float32,
        weights: Iterable[tuple[Tensor, Tensor]] | None = None,
        group: ProcessGroup | None = None,
    ) -> None:
        self.layers = cut(model, layers, device, weights, group)
        self.flats = list(dict.fromkeys(layer.flat for layer in self.layers))
        self.shards = [flat.shard for flat in self.flats]
        self.weights = Buffers(self.layers, dtype)
        self.gradients = Buffers(self.layers, dtype)
        # 16-bit gradients are converted to fp32 here before the reduction.
        wide = dtype != torch.float32
        self.wide = self.gradients.pair[0].float() if wide else None
        self.held: list[Layer | None] = [None, None]  # in the weight buffers
        self.gathers: dict[Layer, dist.Work] = {}
        self.reduction: Reduction | None = None
        cuda = self.shards[0].is_cuda
        self.stream = torch.cuda.Stream() if cuda else None
        for layer in self.layers:
            layer.insert(
                self.weights.of(layer),
                self.gradients.of(layer),
                self.after_backward,
            )
            on = layer.module
            on.register_forward_pre_hook(partial(self.before_forward, layer))
            on.register_forward_hook(partial(self.after_forward, layer))

    def before_forward(self, layer: Layer, *_: Any) -> None:
        """Gather this layer and prefetch the next into the other buffer."""
        if layer.number == 0:
            for unused in list(self.gathers):
                self.gathers.pop(unused).wait()
            self.held = [None, None]  # older than the optimizer's step
        self.gather(layer)
        if layer is not self.layers[-1]:
            self.start_gather(self.layers[layer.number + 1])

    def after_forward(
        self, layer: Layer, _module: nn.Module, _inputs: Any, output: Tensor
    ) -> None:
        """Register `before_backward` on the output's gradient."""
        if output.requires_grad:
            output.register_hook(partial(self.before_backward, layer))

    def before_backward(self, layer: Layer, _gradient: Tensor) -> None:
        """Gather this layer and prefetch the previous one."""
        if layer is not self.layers[-1]:
            self.layers[layer.number + 1].check_complete()
        layer.expect_gradients()
        self.gather(layer)
        if layer.number > 0:
            self.start_gather(self.layers[layer.number - 1])

    def after_backward(self, layer: Layer) -> None:
        """Start to reduce this layer's gradients."""
        self.finish_reduction()  # its buffer is the next layer's
        whole = self.gradients.of(layer)
        if self.wide is not None:
            whole = self.wide[: layer.flat.size].copy_(whole)
        self.reduction = Reduction(layer.flat, whole)
        if layer.number == 0:
            self.finish_reduction()

    def start_gather(self, layer: Layer) -> None:
        """Start to gather the layer, unless its buffer holds it."""
        slot = layer.number % 2
        if self.held[slot] is not layer:
            self.held[slot] = layer
            with self._second_stream():
                work = layer.flat.start_gather(self.weights.of(layer))
            self.gathers[layer] = work

    def gather(self, layer: Layer) -> None:
        """Gather the layer into its buffer, and wait for it."""
        self.start_gather(layer)
        if layer in self.gathers:
            self.gathers.pop(layer).wait()

    def finish_reduction(self) -> None:
        """Wait for the pending reduction, if any."""
        if self.reduction:
            self.reduction.finish()
            self.reduction = None

    def gathered(self, gradients: bool = False) -> dict[str, Tensor]:
        """Like `FSDP.gathered`; a tied parameter has its first name."""
        return gathered(self.flats, gradients)

    def _second_stream(self) -> AbstractContextManager[Any]:
        """On a GPU, a side stream that first waits for queued work."""
        if self.stream is None:
            return nullcontext()  # gloo's collectives run in threads
        self.stream.wait_stream(torch.cuda.current_stream())
        return torch.cuda.stream(self.stream)
