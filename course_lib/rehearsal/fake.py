"""The one module that touches what torch uses to test itself: a world of which one rank exists."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import debug
from torch.testing._internal.distributed.fake_pg import FakeStore


@contextmanager
def fake_world(rank: int, world: int) -> Iterator[FakeTensorMode]:
    """Inside, this process is rank `rank` of `world`, and collectives return at once.

    Nothing is sent, and no other rank exists. In the context that is yielded tensors have shapes
    and no memory. Raises RuntimeError if this process is in a process group already.
    """
    if dist.is_initialized():
        raise RuntimeError(
            "this process is in a process group, and a rehearsal needs one of its own: call "
            "launch.finish() first, or destroy the group where it was made"
        )
    hook = sys.excepthook  # torch puts one of its own before it, each time
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    try:
        yield FakeTensorMode()
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook
        debug._clear_sharding_prop_cache()  # which remembers the groups of this world
