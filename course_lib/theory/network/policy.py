"""What frameworks do differently when they communicate."""

from dataclasses import dataclass

from course_lib.theory.network.buckets import BUCKET_CAP_BYTES
from course_lib.theory.network.collectives import ALGORITHMS
from course_lib.validation import choice, flag, whole


@dataclass(frozen=True)
class CommunicationPolicy:
    """What frameworks do differently.

    `no_sync`: DDP and ZeRO-1 exchange gradients once per update, not once per micro-batch; ZeRO-2
    and 3 always do it per micro-batch, since they keep only a part of the gradients.
    `bucket_bytes`: gradients of stages 0 to 2, and ZeRO-1 and 2's parameters, travel in buckets of
    this size. `reshard`: ZeRO-3 drops a layer's parameters after its forward pass and gathers them
    again for the backward pass. `gather_inputs_again`: with sequence parallelism the inputs of
    column-cut matrices are not kept whole but gathered once more in the backward pass (Megatron-LM
    does, and hides it; Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2).
    `algorithm`: of all-reduces, "ring", "tree" or "double-tree".
    """

    no_sync: bool = True
    bucket_bytes: int = BUCKET_CAP_BYTES
    reshard: bool = True
    gather_inputs_again: bool = False
    algorithm: str = "ring"

    def __post_init__(self) -> None:
        whole("bucket_bytes", self.bucket_bytes)
        choice("algorithm", self.algorithm, ALGORITHMS)
        for name in ("no_sync", "reshard", "gather_inputs_again"):
            flag(name, getattr(self, name))
