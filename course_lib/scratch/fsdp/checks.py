"""The mistakes that FSDP's users make, each with its own sentence."""

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle


def check_group() -> None:
    """Raise RuntimeError unless there are ranks to cut over."""
    if not dist.is_initialized():
        raise RuntimeError(
            "FSDP needs a process group and there is none: call launch.init() "
            "first, on each rank"
        )


def parameters_of_units(
    model: nn.Module, modules: Sequence[nn.Module]
) -> list[dict[nn.Parameter, list[str]]]:
    """The parameters of `model` itself, then of each module, with their names.

    A tied parameter has several names. ValueError if two units share one.
    """
    known = {module: name for name, module in model.named_modules()}
    if strangers := [type(m).__name__ for m in modules if m not in known]:
        raise ValueError(
            f"a {strangers[0]} in the list of units is no part of the model: "
            "name modules of the model"
        )
    units: list[dict[nn.Parameter, list[str]]] = [
        {} for _ in range(1 + len(modules))
    ]
    for name, parameter in model.named_parameters(remove_duplicate=False):
        inside = [name.startswith(known[module] + ".") for module in modules]
        number = inside.index(True) + 1 if any(inside) else 0
        for other, unit in enumerate(units):
            if parameter in unit and other != number:
                raise ValueError(
                    f"parameter {name} is also {unit[parameter][0]}, of "
                    "another unit, which gathers and frees at another time: "
                    "put both into one unit, or leave both to the root"
                )
        units[number].setdefault(parameter, []).append(name)
    return units


def layer_names(
    model: nn.Module, modules: Sequence[nn.Module]
) -> dict[Tensor, str]:
    """The first name of each parameter, which must be in one of `modules`.

    ValueError if it is in none, or in two that share only some parameters.
    """
    names: dict[Tensor, str] = {p: n for n, p in model.named_parameters()}
    for parameter, name in names.items():
        sets = [set(module.parameters()) for module in modules]
        homes = [own for own in sets if parameter in own]
        if not homes:
            raise ValueError(
                f"parameter {name} is in none of the layers: name its module "
                "among them"
            )
        if any(own != homes[0] for own in homes):
            raise ValueError(
                f"parameter {name} is in two layers, which share only a part "
                "of their parameters: untie it, or give it a layer of its own"
            )
    return names


Homes = dict[Tensor, tuple[Any, str]]  # a parameter's unit, and its name


def fill(
    homes: Homes, weights: Iterable[tuple[Tensor, Tensor]] | None
) -> None:
    """Copy the weights into the shards; refuse optimizers of the old ones.

    Without weights only parameters with values are allowed, which are in the
    shards already. ValueError for a parameter without values.
    """
    filled = {p for p in homes if not p.is_meta}
    for parameter, value in weights or ():
        if parameter in homes:
            unit, name = homes[parameter]
            if not value.is_meta:
                unit.fill(name, value)
                filled.add(parameter)
    for parameter, (_, name) in homes.items():
        if parameter not in filled:
            raise ValueError(
                f"parameter {name} is on the meta device and has no values: "
                "give weights=, for example those of Deferred.replay"
            )
    refuse_in_optimizers(homes)


class OptimizerGuard:
    """Raises in `step` of any optimizer that holds a refused parameter.

    torch calls its hook for every optimizer of the process, so the hook is
    there only as long as a refused parameter is.
    """

    def __init__(self) -> None:
        self.refused: set[int] = set()  # ids of parameters that are alive
        self.handle: RemovableHandle | None = None

    def refuse(self, parameter: Tensor) -> None:
        """From now on, an optimizer must not hold `parameter`."""
        if self.handle is None:
            self.handle = register_optimizer_step_pre_hook(self.check)
        if id(parameter) not in self.refused:
            self.refused.add(id(parameter))
            end = weakref.finalize(parameter, self.forget, id(parameter))
            end.atexit = False

    def forget(self, number: int) -> None:
        """The parameter is gone, and with the last one the hook."""
        self.refused.discard(number)
        if self.handle is not None and not self.refused:
            self.handle.remove()
            self.handle = None

    def check(self, optimizer: Optimizer, *_: Any) -> None:
        """Raise ValueError if the optimizer holds a refused parameter."""
        held = [p for group in optimizer.param_groups for p in group["params"]]
        if any(id(parameter) in self.refused for parameter in held):
            raise ValueError(
                f"this {type(optimizer).__name__} holds parameters that are "
                "not shards and get no gradients: build it after sharding, "
                "from `shards`"
            )


_guard = OptimizerGuard()


def refuse_in_optimizers(parameters: Iterable[Tensor]) -> None:
    """From now on `step` of an optimizer that holds one of these raises."""
    for parameter in parameters:
        _guard.refuse(parameter)
