"""What frameworks do differently when they communicate."""

from dataclasses import dataclass

from course_lib.theory.network.buckets import BUCKET_CAP_BYTES
from course_lib.theory.network.collectives import ALGORITHMS
from course_lib.validation import choice, whole


@dataclass(frozen=True)
class CommunicationPolicy:
    """What frameworks do differently.

    `bucket_bytes`: gradients of stages 0 to 2, and ZeRO-1 and 2's parameters, travel in buckets of
    this size. `algorithm`: of all-reduces, "ring", "tree" or "double-tree". `token_nodes`: None
    sends a token once for each of its experts; a number sends it over the network once to each node
    that has some of them, to so many nodes at most, and forwards it there over the inner link
    meanwhile, once to each rank (DeepSeek-V3, arXiv:2412.19437, sections 2.1.2 and 3.2.2: 4 nodes;
    DeepEP).
    """

    bucket_bytes: int = BUCKET_CAP_BYTES
    algorithm: str = "ring"
    token_nodes: int | None = None

    def __post_init__(self) -> None:
        whole("bucket_bytes", self.bucket_bytes)
        choice("algorithm", self.algorithm, ALGORITHMS)
        if self.token_nodes is not None:
            whole("token_nodes", self.token_nodes)
