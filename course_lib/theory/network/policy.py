"""What frameworks do differently when they communicate."""

from dataclasses import dataclass

from course_lib.theory.network.buckets import BUCKET_CAP_BYTES
from course_lib.theory.network.collectives import ALGORITHMS
from course_lib.validation import choice, whole


@dataclass(frozen=True)
class CommunicationPolicy:
    """What frameworks do differently.

    `bucket_bytes`: gradients of stages 0 to 2, and ZeRO-1 and 2's parameters, travel in buckets of
    this size. `algorithm`: of all-reduces, "ring", "tree" or "double-tree".
    """

    bucket_bytes: int = BUCKET_CAP_BYTES
    algorithm: str = "ring"

    def __post_init__(self) -> None:
        whole("bucket_bytes", self.bucket_bytes)
        choice("algorithm", self.algorithm, ALGORITHMS)
