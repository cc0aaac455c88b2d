"""On a rank of a check: the groups that it asks torch for."""

from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import torch.distributed as dist
from torch.distributed import distributed_c10d


def groups_asked_for(work: Callable[[], object]) -> list[list[int]]:
    """The ranks of the groups that `work()` asks torch for, in order; none of them is made."""
    asked: list[list[int]] = []

    def new_group(ranks: Sequence[int] | None = None, *_: Any, **__: Any) -> Any:
        asked.append(list(range(dist.get_world_size()) if ranks is None else ranks))
        return dist.group.WORLD if dist.get_rank() in asked[-1] else None

    with (
        patch.object(dist, "new_group", new_group),
        patch.object(distributed_c10d, "new_group", new_group),
    ):
        work()
    return asked
