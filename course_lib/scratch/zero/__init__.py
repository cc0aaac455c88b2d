"""ZeRO: model states cut over the data-parallel ranks, stage by stage."""

from course_lib.scratch.zero import decay, flat, offload, shard, stage3, stages

__all__ = ["decay", "flat", "offload", "shard", "stage3", "stages"]
