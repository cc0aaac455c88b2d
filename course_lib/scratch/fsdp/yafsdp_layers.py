"""The layers of YaFSDP, and the buffers that they use in turn."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from course_lib.scratch.fsdp import checks
from course_lib.scratch.fsdp.flat_parameter import FlatParameter


class Layer:
    """A module whose parameters are views of a buffer, and their shard."""

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

        Its gradient is copied into `gradients` as soon as it is computed;
        `then` is called after the last one.
        """
        self.slots = list(self.flat.views(gradients).values())
        views = self.flat.views(weights).values()
        for i, (name, view) in enumerate(zip(self.names, views, strict=True)):
            path, _, attribute = name.rpartition(".")
            parameter = nn.Parameter(view)
            checks.refuse_in_optimizers([parameter])
            setattr(self.module.get_submodule(path), attribute, parameter)
            parameter.register_post_accumulate_grad_hook(
                lambda p, i=i: self._arrived(i, p, then)
            )

    def _arrived(
        self, i: int, parameter: Tensor, then: Callable[["Layer"], None]
    ) -> None:
        assert parameter.grad is not None  # the hook runs after it is made
        self.slots[i].copy_(parameter.grad)
        parameter.grad = None
        self.missing.discard(i)
        if not self.missing:
            then(self)

    def expect_gradients(self) -> None:
        """The backward pass of this layer starts."""
        self.missing = set(range(len(self.slots)))

    def check_complete(self) -> None:
        """Raise RuntimeError if a gradient never came: others would wait."""
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
        # .data, so that autograd does not see what other layers put there.
        return self.pair[layer.number % 2].data[: layer.flat.size]


def cut(
    model: nn.Module,
    modules: Sequence[nn.Module],
    device: torch.device | None,
    weights: Iterable[tuple[Tensor, Tensor]] | None,
    group: ProcessGroup | None,
) -> list[Layer]:
    """Give each module a flat parameter, cut over ranks.

    Two modules with the same parameters share it; any other sharing, and a
    parameter outside all modules, is a ValueError.
    """
    checks.check_group()
    names = checks.layer_names(model, modules)
    layers: list[Layer] = []
    homes: dict[Tensor, tuple[FlatParameter, str]] = {}
    for number, module in enumerate(modules):
        named = {names[p]: p for p in module.parameters()}
        first = next(iter(named.values()))
        if first not in homes:
            flat = FlatParameter(named, device or first.device, group)
            homes |= {p: (flat, name) for name, p in named.items()}
        layers.append(Layer(number, module, homes[first][0]))
    checks.fill(homes, weights)
    return layers
