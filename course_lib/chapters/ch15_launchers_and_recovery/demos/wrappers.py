"""What a wrapper changes: which tensors an optimizer holds, names and shapes, whole matrices.

The same small model in DDP, FSDP1 (one flat parameter) and FSDP2 (a DTensor for each parameter),
with an optimizer that was built before the wrapping and one built after it.
Run it with `course demo wrappers --ranks 2`, or under torchrun.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from course_lib import launch
from course_lib.demos.shared.options import DemoOptions
from course_lib.demos.shared.result import Result
from course_lib.measure.gradients import relative_difference

Wrap = Callable[[nn.Module], nn.Module]
Options = DemoOptions  # nothing but the format


def small_model() -> nn.Module:
    """Two layers; no number of ranks divides all of its sizes."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3)).to(launch.init().device)


def fsdp1(model: nn.Module, use_orig_params: bool = False) -> nn.Module:
    """The older FSDP, which torch deprecates."""
    logging.getLogger("torch.distributed.fsdp").setLevel(logging.ERROR)  # it tells of its hooks
    device = launch.init().device
    return FullyShardedDataParallel(model, device_id=device, use_orig_params=use_orig_params)


def fsdp2(model: nn.Module) -> nn.Module:
    """`fully_shard`, which returns the same module."""
    fully_shard(model)
    return model


WRAPS: dict[str, Wrap] = {
    "DDP": DistributedDataParallel,
    "FSDP1": fsdp1,
    "FSDP1, use_orig_params": partial(fsdp1, use_orig_params=True),
    "FSDP2": fsdp2,
}


@dataclass(frozen=True)
class Wrapped:
    """A wrapper: whether the model learns, and what its parameters are on this rank."""

    name: str
    learns_if_built_before: bool  # the optimizer, before the wrapping
    learns_if_built_after: bool
    parameters: dict[str, tuple[str, tuple[int, ...]]]  # name: type, shape on this rank
    state_dict: dict[str, tuple[str, tuple[int, ...]]]  # key: type, shape

    @property
    def numbers(self) -> dict[str, int]:
        """How many numbers each parameter has on this rank, without the wrapper's prefixes."""
        return {
            "flat" if "_flat" in name else ".".join(name.split(".")[-2:]): math.prod(shape)
            for name, (_, shape) in self.parameters.items()
        }

    def lines(self) -> list[str]:
        """The findings."""
        first = [*self.parameters.items()][:2]
        kinds = "; ".join(f"{name}: {kind} {shape}" for name, (kind, shape) in first)
        before, after = (
            "learns" if learns else "learns nothing"
            for learns in (self.learns_if_built_before, self.learns_if_built_after)
        )
        keys = ", ".join(f"{key} {shape}" for key, (_, shape) in self.state_dict.items())
        return [
            f"{self.name}: with an optimizer from before the wrapping it {before}, with one from "
            f"after it {after}",
            f"    on this rank {len(self.parameters)} parameters: {kinds}",
            f"    state dict: {keys}",
        ]


def wrapped(name: str) -> Wrapped:
    """One wrapper on a fresh model; all ranks call this together."""
    wrap = WRAPS[name]
    model = wrap(small_model())
    learns = learns_with(wrap, early=True), learns_with(wrap, early=False)
    return Wrapped(
        name,
        *learns,
        parameters={key: _kind(p) for key, p in model.named_parameters()},
        state_dict={
            key: (_kind(value)[0], tuple(value.shape)) for key, value in model.state_dict().items()
        },
    )


def learns_with(wrap: Wrap, early: bool) -> bool:
    """Whether an SGD step changes a weight on any rank; `early`: built before the wrapping."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model = wrap(model)
    if not early:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [local(p).clone() for p in model.parameters()]
    model(torch.ones(2, 6, device=launch.init().device)).sum().backward()
    optimizer.step()
    pairs = zip(before, model.parameters(), strict=True)
    changed = torch.tensor(float(any(not torch.equal(old, local(new)) for old, new in pairs)))
    dist.all_reduce(changed)
    return bool(changed)


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


def _kind(tensor: Tensor) -> tuple[str, tuple[int, ...]]:
    return type(tensor).__name__, tuple(local(tensor).shape)


def orthogonal(update: Tensor, rounds: int = 5) -> Tensor:
    """Muon's step for a matrix: its singular values are brought near 1 by Newton and Schulz.

    Jordan et al. 2024, kellerjordan.github.io/posts/muon, with its coefficients.
    """
    x = update / (update.norm() + 1e-7)
    for _ in range(rounds):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x


def signs(update: Tensor) -> Tensor:
    """Adam's first step: each number for itself."""
    return update / (update.abs() + 1e-8)


def gap_of_shards(rule: Callable[[Tensor], Tensor], rows: int = 8, columns: int = 16) -> float:
    """How far the rule on each rank's rows is from the rule on the whole matrix: |a - b| / |b|."""
    rank = launch.init()
    gradient = torch.randn(rows, columns, generator=torch.manual_seed(0))
    shards = [rule(part) for part in gradient.tensor_split(rank.world)]
    return relative_difference(torch.cat(shards).double(), rule(gradient).double())


def eight_bit_states() -> dict[str, tuple[str, int]] | None:
    """bitsandbytes' AdamW8bit after one step of a 64 × 128 matrix: type and bytes of its states.

    None where it is not installed.
    """
    if find_spec("bitsandbytes") is None:
        return None
    optimizers: Any = import_module("bitsandbytes").optim
    weight = nn.Parameter(torch.ones(64, 128, device=launch.init().device))
    optimizer = optimizers.AdamW8bit([weight], lr=0.1)
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    state: dict[str, Any] = optimizer.state[weight]
    return {
        name: (str(value.dtype).removeprefix("torch."), value.nbytes)
        for name, value in state.items()
        if isinstance(value, Tensor)
    }


def main(_: Options) -> Result:
    """Try everything; rank 0's view is reported."""
    ranks, wrappers = launch.init().world, [wrapped(name) for name in WRAPS]
    muon_gap, adam_gap = gap_of_shards(orthogonal), gap_of_shards(signs)
    eight_bit = eight_bit_states()
    states = "bitsandbytes is not installed: pip install bitsandbytes"
    if eight_bit is not None:
        sizes = ", ".join(f"{key} {kind} {size:,} B" for key, (kind, size) in eight_bit.items())
        states = f"{64 * 128:,} weights: {sizes}"
    return Result(
        *(line for one in wrappers for line in one.lines()),
        f"a matrix in {ranks} shards, each updated alone: Adam's step is off by {adam_gap:.0%} "
        f"from that of the whole matrix, Muon's by {muon_gap:.0%}",
        f"AdamW8bit: {states}",
        ranks=ranks,
        wrappers=wrappers,
        muon_gap=muon_gap,
        adam_gap=adam_gap,
        eight_bit=eight_bit,
    )
