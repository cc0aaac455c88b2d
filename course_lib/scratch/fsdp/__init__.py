"""Fully sharded data parallelism, and YaFSDP."""

from course_lib.scratch.fsdp import (
    checks,
    clipping,
    deferred_init,
    flat_parameter,
    hooks,
    mini,
    yafsdp,
    yafsdp_layers,
)

__all__ = [
    "checks",
    "clipping",
    "deferred_init",
    "flat_parameter",
    "hooks",
    "mini",
    "yafsdp",
    "yafsdp_layers",
]
