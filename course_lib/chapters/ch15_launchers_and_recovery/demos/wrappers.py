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
Options = DemoOptions  # no options of its own


def small_model() -> nn.Module:
    """A model of two linear layers; no number of ranks above 1 divides all of its sizes."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3)).to(launch.init().device)


def fsdp1(model: nn.Module, use_orig_params: bool = False) -> nn.Module:
    """Wrap the model in FSDP1, which torch deprecates."""
    logging.getLogger("torch.distributed.fsdp").setLevel(logging.ERROR)  # it warns about its hooks
    device = launch.init().device
    return FullyShardedDataParallel(model, device_id=device, use_orig_params=use_orig_params)


def fsdp2(model: nn.Module) -> nn.Module:
    """Apply `fully_shard`, which modifies and returns the same module."""
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
    """A wrapper: whether the wrapped model learns, and its parameters on this rank."""

    name: str
    learns_if_built_before: bool  # with an optimizer built before wrapping
    learns_if_built_after: bool  # with an optimizer built after wrapping
    parameters: dict[str, tuple[str, tuple[int, ...]]]  # name: type, shape on this rank
    state_dict: dict[str, tuple[str, tuple[int, ...]]]  # key: type, shape

    @property
    def numbers(self) -> dict[str, int]:
        """Elements of each parameter on this rank, by name without the wrapper's prefixes."""
        return {
            "flat" if "_flat" in name else ".".join(name.split(".")[-2:]): math.prod(shape)
            for name, (_, shape) in self.parameters.items()
        }

    def lines(self) -> list[str]:
        """The results as lines of text."""
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
    """Try one wrapper on a fresh model. Collective: all ranks must call it."""
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
    """Whether an SGD step changes a weight on any rank; `early`: optimizer built before `wrap`."""
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
    """This rank's shard of a DTensor, or the whole of a plain tensor, detached."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


def _kind(tensor: Tensor) -> tuple[str, tuple[int, ...]]:
    return type(tensor).__name__, tuple(local(tensor).shape)


def orthogonal(update: Tensor, rounds: int = 5) -> Tensor:
    """Muon's step for a matrix: a Newton–Schulz iteration brings its singular values near 1.

    Coefficients from Jordan et al. 2024, kellerjordan.github.io/posts/muon.
    """
    x = update / (update.norm() + 1e-7)
    for _ in range(rounds):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x


def signs(update: Tensor) -> Tensor:
    """Adam's first step, an elementwise rule: every element becomes about ±1."""
    return update / (update.abs() + 1e-8)


def gap_of_shards(rule: Callable[[Tensor], Tensor], rows: int = 8, columns: int = 16) -> float:
    """Error of applying `rule` to each rank's rows instead of the whole matrix: |a - b| / |b|."""
    rank = launch.init()
    gradient = torch.randn(rows, columns, generator=torch.manual_seed(0))
    shards = [rule(part) for part in gradient.tensor_split(rank.world)]
    return relative_difference(torch.cat(shards).double(), rule(gradient).double())


def eight_bit_states() -> dict[str, tuple[str, int]] | None:
    """Dtype and bytes of each state of bitsandbytes' AdamW8bit after one step of a 64 × 128 matrix.

    None if bitsandbytes is not installed.
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
    """Try all wrappers and the sharded update rules; reports rank 0's results."""
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
