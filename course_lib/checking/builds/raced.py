"""Functions shared by the races of several builds."""

from collections.abc import Callable
from typing import Any

from course_lib.checking.builds.lazily import later, nn, torch


def both_passes(model: Any, *inputs: Any) -> None:
    model(*inputs).sum().backward()


def four_layers() -> Any:
    """Four linear layers of 1 MiB each."""
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(512, 512, bias=False) for _ in range(4)])


def trained(model: Any, before: Any, after: Any = lambda: None) -> Callable[[], object]:
    x = torch.ones(32, 512)
    return lambda: (before(), model(x).sum().backward(), after())


def device_mesh(*sizes: int, **names: Any) -> Any:
    return later("torch.distributed.device_mesh").init_device_mesh("cpu", sizes, **names)
