"""Several parameters as one vector, of which each rank keeps a part."""

from collections.abc import Iterable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from course_lib.scratch.wire import (
    Work,
    all_gather,
    start_all_gather,
    start_reduce_scatter,
)


class FlatParameter:
    """Parameters that are gathered together, cut over the ranks of a group.

        whole   | weight | bias |    weight    | bias | padding |
        shards  |        rank 0        |        rank 1          |

    `shard` (size / ranks,) is what the optimizer sees: fp32, on this rank. It
    is trained as one tensor, so ValueError for a frozen parameter.

    This is ZeRO's vector (`scratch.zero.shard.Unit`), padded and cut in the
    same places. Two things differ. It knows names and shapes instead of
    tensors, so that `fill` can make the shard of a model that never was whole
    in memory. And gradients are averaged over ranks, where ZeRO's are summed.
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
        """Each parameter's own view of a whole vector (size,)."""
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
        """Start to fill `whole` (size,) from all shards, in its dtype."""
        own = whole.view(self.ranks, -1)[self.rank]
        own.copy_(self.shard.detach())  # gathered in place
        return start_all_gather(whole, own, self.group)


class Reduction:
    """Whole gradients (size,) being averaged over ranks and scattered."""

    def __init__(self, flat: FlatParameter, whole: Tensor) -> None:
        whole[flat.elements :].zero_()  # padding must not enter a norm
        self.flat, self.whole = flat, whole
        self.part = torch.empty_like(flat.shard, requires_grad=False)
        self.work: Work = start_reduce_scatter(self.part, whole, flat.group)

    def finish(self) -> None:
        """Add this rank's part to its shard's gradient."""
        self.work.wait()
        self.part /= self.flat.ranks
        shard = self.flat.shard
        before = shard.grad
        shard.grad = self.part if before is None else before.add_(self.part)


def gathered(
    flats: Iterable[FlatParameter], gradients: bool = False
) -> dict[str, Tensor]:
    """Whole weights, or gradients, by name; every rank must call it."""
    whole: dict[str, Tensor] = {}
    for flat in flats:
        shard = flat.shard.grad if gradients else flat.shard.detach()
        assert shard is not None, "there are gradients only after backward"
        whole |= flat.views(all_gather(shard, flat.group))
    return whole
