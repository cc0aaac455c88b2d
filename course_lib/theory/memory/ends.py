"""What is kept for the backward pass before the first layer and after the last, in bytes."""

import math
from dataclasses import dataclass

from course_lib.checked import checked
from course_lib.theory.inputs.job import Job
from course_lib.theory.memory.activations import gathered_tokens, norm_bytes


@checked
def embedding_activation_bytes(job: Job) -> int:
    """Bytes kept before the first layer: s·b·h for the mask of the embedding's dropout, or 0."""
    return job.local_tokens.outside * job.shape.hidden * job.recipe.dropout


@checked
def output_activation_bytes(job: Job) -> int:
    """Bytes kept after the last layer: inputs of the last norm and of the head, and the loss.

    16-bit: 4·s·b·h outside the tensor-parallel region, and 4·s·b·v/t of fp32 log-probabilities,
    v the vocabulary, of which each tp rank has its part (Korthikanti et al. 2022,
    arXiv:2205.05198, section 4.3); for other losses see `loss_copies`.
    """
    width = job.shape.hidden
    inputs = job.local_tokens.outside * norm_bytes(job.recipe, width)
    inputs += gathered_tokens(job) * width * job.recipe.compute_bytes
    return inputs + math.ceil(logit_count(job) * loss_copies(job).kept_bytes)


def head_activation_bytes(job: Job) -> int:
    """Bytes kept outside the layers: `embedding_activation_bytes` and `output_activation_bytes`.

    In 16 bits 4·s·b·h + 4·s·b·v with v the vocabulary, and s·b·h for the mask of the embedding's
    dropout (Korthikanti et al. 2022, arXiv:2205.05198, section 4.3).
    """
    return embedding_activation_bytes(job) + output_activation_bytes(job)


@checked
def loss_temporary_bytes(job: Job) -> int:
    """Bytes that the loss needs for a moment in its backward pass, beyond what it keeps."""
    return math.ceil(logit_count(job) * loss_copies(job).temporary_bytes)


@checked
def logit_count(job: Job) -> int:
    """Numbers in the logits of one micro-batch: s·b·v/t, the vocabulary rounded up over t = tp."""
    return job.local_tokens.inside * -(-job.shape.vocab // job.layout.tp)


@dataclass(frozen=True)
class LossCopies:
    """Bytes for each logit: kept from the forward pass, and added for a moment after it."""

    kept_bytes: float
    temporary_bytes: float


@checked
def loss_copies(job: Job) -> LossCopies:
    """How often the logits are there, by the implementation of the cross-entropy.

    With w bytes of a weight: "eager" (PyTorch, over fp32 logits) keeps log-probabilities, 4, and
    has two fp32 gradients, 8; cut over tp (DTensor's loss_parallel) one more copy, 4.
    "in-place" (Megatron-LM, core/tensor_parallel/cross_entropy.py) turns one fp32 copy into
    probabilities and these into the gradient: 4, and w for the head's matmul. "fused" (a kernel
    that writes the gradient over the logits, as Liger's; Hsu et al. 2024, arXiv:2410.10989): w.
    "chunked": w for all logits, and "eager" for one chunk.
    """
    w = job.recipe.compute_bytes
    split = 4 * (job.layout.tp > 1)  # torch computes this backward pass step by step
    eager = LossCopies(4, 8 + split)
    chunk = (eager.kept_bytes + eager.temporary_bytes) / job.recipe.loss_chunks
    return {
        "eager": eager,
        "in-place": LossCopies(4, w if w < 4 else 0),
        "fused": LossCopies(w, 0),
        "chunked": LossCopies(w, chunk),
    }[job.recipe.loss]
