"""Which ranks are a group along an axis: by torch's DeviceMesh and by Megatron-core.

`theory.network.mesh.groups` computes the same from strides. The axes, from inside to outside, are
tp, cp, dp, pp: Megatron-core's own default, "tp-cp-ep-dp-pp" (parallel_state.py).
"""

import warnings

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from course_lib.theory.inputs.layout import Layout

Groups = tuple[tuple[int, ...], ...]
AXES = ("tp", "cp", "dp", "pp")


def by_megatron(layout: Layout, axis: str) -> Groups:
    """Groups as Megatron-core would make them; ImportError where it is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of packages for GPUs that are not installed
        from megatron.core.parallel_state import RankGenerator
    sizes = {name: getattr(layout, name) for name in AXES}
    found = RankGenerator(**sizes, ep=1, order="tp-cp-ep-dp-pp").get_ranks(axis)
    return tuple(map(tuple, found))


def by_device_mesh(layout: Layout, axis: str) -> Groups:
    """Groups as torch's DeviceMesh has them: its last axis is the innermost.

    Outside of a process group: it makes one of all ranks in which nothing is sent, and leaves it.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.world)
    try:
        names = AXES[::-1]
        mesh = init_device_mesh("cpu", tuple(getattr(layout, name) for name in names),
                                mesh_dim_names=names).mesh  # fmt: skip
    finally:
        dist.destroy_process_group()
    lines = mesh.movedim(names.index(axis), -1).flatten(0, -2)
    return tuple(sorted(tuple(line) for line in lines.tolist()))
