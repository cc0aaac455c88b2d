"""Several parameters flattened into one vector, sharded over the ranks."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from course_lib.scratch.wire import (
    Work,
    all_gather,
    all_reduce,
    start_all_gather,
    start_reduce_scatter,
)

# Several parameters as one vector, of which each rank keeps a shard.


class FlatParameter:
    """Parameters gathered together and sharded over the ranks of a group.

        whole   | weight | bias |    weight    | bias | padding |
        shards  |        rank 0        |        rank 1          |

    `shard` (size / ranks,) is what the optimizer updates: fp32, on this rank.
    It is trained as one tensor, so a frozen parameter raises ValueError.

    This is the flat vector of `scratch.zero.Unit`, with the same padding and
    shard boundaries. Two things differ. It stores names and shapes instead of
    tensors, so that `fill` can build the shard of a model that never was whole
    in memory. And gradients are averaged over ranks, where ZeRO sums them.
    Zhao et al. 2023, arXiv:2304.11277, section 4.2 (FlatParameter).
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        device: torch.device,
        group: ProcessGroup | None = None,
    ) -> None:
        frozen = [n for n, p in parameters.items() if not p.requires_grad]
        if frozen:
            raise ValueError(
                f"parameter {frozen[0]} is frozen (requires_grad=False), and "
                "its unit would be trained as one vector: train all of it, or "
                "take fully_shard, which cuts each tensor by itself"
            )
        self.group, self.rank = group, dist.get_rank(group)
        self.ranks = ranks = dist.get_world_size(group)
        self.shapes = {name: p.shape for name, p in parameters.items()}
        self.elements = sum(p.numel() for p in parameters.values())
        self.size = -(-self.elements // ranks) * ranks  # with the padding
        self.shard = nn.Parameter(torch.zeros(self.size // ranks).to(device))
        for name, parameter in parameters.items():
            if not parameter.is_meta:
                self.fill(name, parameter)

    def views(self, whole: Tensor) -> dict[str, Tensor]:
        """Each parameter's view of a full vector (size,), by name."""
        sizes = [shape.numel() for shape in self.shapes.values()]
        pieces = whole[: self.elements].split(sizes)
        return {
            name: piece.view(shape)
            for (name, shape), piece in zip(
                self.shapes.items(), pieces, strict=True
            )
        }

    @torch.no_grad()
    def fill(self, name: str, value: Tensor) -> None:
        """Copy the part of parameter `name` that lies in this rank's shard."""
        names, length = list(self.shapes), self.shard.numel()
        before = [self.shapes[n].numel() for n in names[: names.index(name)]]
        start = sum(before) - self.rank * length  # relative to this shard
        low, high = max(0, start), min(length, start + value.numel())
        if low < high:
            piece = value.detach().flatten()[low - start : high - start]
            self.shard[low:high] = piece

    def start_gather(self, whole: Tensor) -> dist.Work:
        """Start to gather all shards into `whole` (size,), in its dtype."""
        local = whole.view(self.ranks, -1)[self.rank]
        local.copy_(self.shard.detach())  # gathered in place
        return start_all_gather(whole, local, self.group)


class Reduction:
    """An asynchronous reduce-scatter of full gradients (size,), averaged."""

    def __init__(self, flat: FlatParameter, whole: Tensor) -> None:
        whole[flat.elements :].zero_()  # padding must not enter a norm
        self.flat, self.whole = flat, whole
        self.part = torch.empty_like(flat.shard, requires_grad=False)
        self.work: Work = start_reduce_scatter(self.part, whole, flat.group)

    def finish(self) -> None:
        """Wait, then add this rank's part to the gradient of its shard."""
        self.work.wait()
        self.part /= self.flat.ranks
        shard = self.flat.shard
        before = shard.grad
        shard.grad = self.part if before is None else before.add_(self.part)


def gathered(
    flats: Iterable[FlatParameter], gradients: bool = False
) -> dict[str, Tensor]:
    """Full weights, or gradients, by name; a collective call."""
    whole: dict[str, Tensor] = {}
    for flat in flats:
        shard = flat.shard.grad if gradients else flat.shard.detach()
        assert shard is not None, "there are gradients only after backward"
        whole |= flat.views(all_gather(shard, flat.group))
    return whole


# Gradient clipping where each rank holds a different shard of the gradients.


def clip_shards(
    shards: Sequence[nn.Parameter],
    max_norm: float,
    group: ProcessGroup | None = None,
) -> Tensor:
    """Clip all gradients by their global norm over all ranks; returns it.

    The squared norms of the shards add up to the global one, so one
    all-reduce of 4 bytes is enough. Clipping each rank's shard by its own
    norm would change the direction of the gradient.
    """
    gradients = [shard.grad for shard in shards if shard.grad is not None]
    squares = torch.stack([gradient.square().sum() for gradient in gradients])
    norm = all_reduce(squares.sum(), group).sqrt()
    for gradient in gradients:
        gradient *= (max_norm / (norm + 1e-6)).clamp(max=1)
    return norm


# Checks for common mistakes with FSDP, each with its own error message.


def parameters_of_units(
    model: nn.Module, modules: Sequence[nn.Module]
) -> list[dict[nn.Parameter, list[str]]]:
    """{parameter: names} of `model`'s root unit, then of each module.

    A tied parameter has several names. ValueError if two units share one.
    """
    known = {module: name for name, module in model.named_modules()}
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
        homes = [members for members in sets if parameter in members]
        if not homes:
            raise ValueError(
                f"parameter {name} is in none of the layers: name its module "
                "among them"
            )
        if any(members != homes[0] for members in homes):
            raise ValueError(
                f"parameter {name} is in two layers, which share only a part "
                "of their parameters: untie it, or give it a layer of its own"
            )
    return names


Homes = dict[Tensor, tuple[Any, str]]  # parameter -> (unit, name)


def fill(
    homes: Homes, weights: Iterable[tuple[Tensor, Tensor]] | None
) -> None:
    """Copy the weights into the shards.

    Parameters that have values are in the shards already. ValueError for one
    on meta that `weights` does not supply.
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
