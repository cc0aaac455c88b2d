"""The arithmetic of training: numbers in, frozen dataclasses out. Standard library only."""

from course_lib.theory import batching, communication, memory, models, units

__all__ = ["batching", "communication", "memory", "models", "units"]
