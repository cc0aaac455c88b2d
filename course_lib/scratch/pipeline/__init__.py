"""Pipeline parallelism: the layers cut over ranks."""

from course_lib.scratch.pipeline import (
    letters,
    mail,
    runtime,
    stage,
    stashing,
)

__all__ = ["letters", "mail", "runtime", "stage", "stashing"]
