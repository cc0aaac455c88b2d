"""Checkpoints that many ranks write together."""

from course_lib.scratch.recovery import checkpoint, files

__all__ = ["checkpoint", "files"]
