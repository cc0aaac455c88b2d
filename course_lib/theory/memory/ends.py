"""What is kept for the backward pass before the first layer and after the last, in bytes."""

from course_lib.checked import checked
from course_lib.theory.inputs.job import Job
from course_lib.theory.memory.activations import norm_bytes


@checked
def embedding_activation_bytes(job: Job) -> int:
    """Bytes kept before the first layer: s·b·h for the mask of the embedding's dropout, or 0."""
    return job.local_tokens.outside * job.shape.hidden * job.recipe.dropout


@checked
def output_activation_bytes(job: Job) -> int:
    """Bytes kept after the last layer: inputs of the last norm and of the head, and the loss.

    16-bit: 4·s·b·h outside the tensor-parallel region, and 4·s·b·v/t of fp32 log-probabilities,
    v the vocabulary, of which each tp rank has its part (Korthikanti et al. 2022,
    arXiv:2205.05198, section 4.3).
    """
    width = job.shape.hidden
    inputs = norm_bytes(job.recipe, width) + width * job.recipe.weight_bytes
    return job.local_tokens.outside * inputs + logits_bytes(job)


def head_activation_bytes(job: Job) -> int:
    """Bytes kept outside the layers: `embedding_activation_bytes` and `output_activation_bytes`.

    In 16 bits 4·s·b·h + 4·s·b·v with v the vocabulary, and s·b·h for the mask of the embedding's
    dropout (Korthikanti et al. 2022, arXiv:2205.05198, section 4.3).
    """
    return embedding_activation_bytes(job) + output_activation_bytes(job)


@checked
def logits_bytes(job: Job) -> int:
    """One fp32 tensor as large as the logits: 4·s·b·v/t, the vocabulary rounded up over t = tp."""
    return 4 * job.local_tokens.inside * -(-job.shape.vocab // job.layout.tp)
