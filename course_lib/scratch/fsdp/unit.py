"""A unit of FSDP: parameters gathered, freed and reduced together."""

from collections.abc import Iterable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.scratch.fsdp import checks
from course_lib.scratch.fsdp.flat_parameter import FlatParameter, Reduction


class Unit:
    """A module's flat parameter, whole for a while, and its gradients.

    While the module computes, views of the whole are its parameters; otherwise
    placeholders without memory are.
    """

    def __init__(
        self,
        module: nn.Module,
        flat: FlatParameter,
        places: Mapping[str, list[tuple[nn.Module, str]]],
        dtype: torch.dtype,
    ) -> None:
        self.module, self.flat, self.places = module, flat, places
        # (size,), or no memory at all behind it while the unit is freed
        self.whole = flat.shard.detach().new_empty(flat.size, dtype=dtype)
        self.placeholders = [
            torch.empty(shape, device="meta") for shape in flat.shapes.values()
        ]
        self.gathering: dist.Work | None = None
        self.reduction: Reduction | None = None
        self.free()
        self.insert(self.placeholders)
        module.register_parameter("flat_shard", flat.shard)

    def start_gather(self) -> None:
        """Start to fetch the whole parameter, unless it is here."""
        storage = self.whole.untyped_storage()
        if storage.nbytes() == 0:
            storage.resize_(self.whole.nbytes)
            self.gathering = self.flat.start_gather(self.whole)

    def gather(self) -> None:
        """Return when the whole parameter is here."""
        self.start_gather()
        if self.gathering:
            self.gathering.wait()
            self.gathering = None

    def free(self) -> None:
        """Give the memory back; the tensors that view it stay, empty."""
        if self.gathering:  # fetched ahead and never used
            self.gather()
        self.whole.untyped_storage().resize_(0)

    def views(self) -> list[Tensor]:
        """The whole parameters, each in its own shape.

        They are views of `.data`, so that autograd does not take what it saved
        for changed when the same values are gathered again.
        """
        return list(self.flat.views(self.whole.data).values())

    def insert(self, tensors: Iterable[Tensor]) -> None:
        """Make `tensors` the attributes of the modules that use them."""
        for places, tensor in zip(self.places.values(), tensors, strict=True):
            for module, attribute in places:
                setattr(module, attribute, tensor)

    def start_reduction(self, gradients: Sequence[Tensor]) -> None:
        """Start to average the whole gradients over ranks, in fp32."""
        whole = self.flat.shard.detach().new_empty(self.flat.size)
        slots = self.flat.views(whole).values()
        for slot, gradient in zip(slots, gradients, strict=True):
            slot.copy_(gradient)
        self.reduction = Reduction(self.flat, whole)

    def finish_reduction(self) -> None:
        """Wait for the reduction that was started, if any."""
        if self.reduction:
            self.reduction.finish()
            self.reduction = None


def cut(
    model: nn.Module,
    blocks: Sequence[nn.Module],
    device: torch.device | None,
    dtype: torch.dtype,
    weights: Iterable[tuple[Tensor, Tensor]] | None,
    group: dist.ProcessGroup | None,
) -> list[Unit]:
    """Replace the parameters of `model` by shards: the root unit, the blocks.

    A unit without parameters is left out.
    """
    owned = checks.parameters_of_units(model, blocks)
    units: list[Unit] = []
    homes: dict[Tensor, tuple[FlatParameter, str]] = {}
    for module, named in zip([model, *blocks], owned, strict=True):
        if not named:
            continue
        parameters = {names[0]: p for p, names in named.items()}
        place = device or next(iter(named)).device
        flat = FlatParameter(parameters, place, group)
        homes |= {p: (flat, names[0]) for p, names in named.items()}
        places = {
            names[0]: [remove(model, name) for name in names]
            for names in named.values()
        }
        units.append(Unit(module, flat, places, dtype))
    checks.fill(homes, weights)
    return units


def remove(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    """Take the parameter `name` out; return its module and attribute."""
    path, _, attribute = name.rpartition(".")
    module = model.get_submodule(path)
    delattr(module, attribute)
    return module, attribute
