"""What the tools do by default: which of two conflicting settings wins, and the groups of an axis.

The settings in force were determined with accelerate 1.15, DeepSpeed 0.19.8 and torch 2.13 on a
CPU; tests repeat this where the packages are installed. `theory.network.mesh.groups` computes the
groups from strides. The axes, from inner to outer, are tp, cp, dp, pp, as in Megatron-core's
default "tp-cp-ep-dp-pp" (parallel_state.py).
"""

import re
from typing import NamedTuple

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from course_lib.theory.inputs.layout import Layout


class Setting(NamedTuple):
    """A conflict between two settings: each side's value, the value in force, and the advice."""

    what: str
    tool: str
    outside: str  # the command line, or a configuration file
    code: str
    in_force: str
    advice: str


_TABLE = """\
world size, torchrun
    outside:   --nproc-per-node 2
    code:      init_process_group(world_size=4)
    in force:  the code, and it waits for ranks that never come
    so:        read WORLD_SIZE, or leave it out
world size, accelerate launch
    outside:   --cpu --num_processes 2
    code:      Accelerator()
    in force:  1 process, and nothing says so
    so:        start it by torchrun on a CPU; print num_processes
precision, accelerate
    outside:   --mixed_precision no
    code:      Accelerator(mixed_precision="bf16")
    in force:  the code: bf16
    so:        name it in one place
accumulation, accelerate launch
    outside:   --gradient_accumulation_steps 4
    code:      Accelerator()
    in force:  1: without --use_deepspeed the option is not handed on
    so:        set it in the code, or by its variable
accumulation, accelerate
    outside:   ACCELERATE_GRADIENT_ACCUMULATION_STEPS=4
    code:      Accelerator(gradient_accumulation_steps=2)
    in force:  the variable: 4
    so:        print gradient_accumulation_steps
accumulation, accelerate
    outside:   nothing
    code:      a loop that calls backward() twice for a step()
    in force:  the code: each backward() sends; the loss is not divided
    so:        use accelerator.accumulate(model)
clipping, DeepSpeed
    outside:   no "gradient_clipping" in the file
    code:      no clip_grad_norm_
    in force:  a norm of 1.0 at most
    so:        write "gradient_clipping": 0.0 where nothing is to be clipped
batch, DeepSpeed
    outside:   "train_batch_size": 32, micro batch 4, accumulation 2, 1 rank
    code:      DataLoader(batch_size=4)
    in force:  neither: it refuses, 32 is not 4 · 2 · 1
    so:        give two of the three numbers
batch, DeepSpeed
    outside:   "train_micro_batch_size_per_gpu": 4
    code:      DataLoader(batch_size=8)
    in force:  the code: 8 samples are trained, and logs count 4
    so:        let deepspeed.initialize(training_data=…) make the loader
"""
SETTINGS = [
    Setting(*block) for block in re.findall(r"(.+), (.+)\n" + 4 * r"    [a-z ]+: +(.+)\n", _TABLE)
]


def table() -> str:
    """The text of all conflicting settings, one block each."""
    return _TABLE.rstrip()


Groups = tuple[tuple[int, ...], ...]
AXES = ("tp", "cp", "dp", "pp")


def by_device_mesh(layout: Layout, axis: str) -> Groups:
    """The rank groups along `axis`, from torch's DeviceMesh, whose last axis is the innermost.

    Call it outside a process group: it creates a fake one of all ranks, and destroys it.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.world)
    try:
        names = AXES[::-1]
        mesh = init_device_mesh("cpu", tuple(getattr(layout, name) for name in names),
                                mesh_dim_names=names).mesh  # fmt: skip
    finally:
        dist.destroy_process_group()
    groups = mesh.movedim(names.index(axis), -1).flatten(0, -2)
    return tuple(sorted(tuple(line) for line in groups.tolist()))
