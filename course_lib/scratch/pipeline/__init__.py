"""Pipeline parallelism: the layers cut over ranks."""

from course_lib.scratch.pipeline import mail, runtime, stage, stashing

__all__ = ["mail", "runtime", "stage", "stashing"]
