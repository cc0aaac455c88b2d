"""Full recomputation by segments: the layers that run again, and the bytes held for it."""

from dataclasses import dataclass

from course_lib.checked import checked
from course_lib.theory.inputs.job import Job
from course_lib.theory.memory.activations import layer_activation_bytes, recomputed_bytes
from course_lib.validation import listed, whole


@dataclass(frozen=True)
class SegmentBill:
    """Bytes of one micro-batch while a segment is recomputed."""

    inputs_bytes: int  # stored inputs of all segments
    alive_bytes: int  # activations of the segment being recomputed

    @property
    def total_bytes(self) -> int:
        """Inputs and recomputed activations together."""
        return self.inputs_bytes + self.alive_bytes


@checked
def segment_bill(job: Job, segment: int) -> SegmentBill:
    """Bytes of ceil(L/k) inputs and k live layers, for segments of k = `segment` equal layers.

    Raises ValueError if `job` does not recompute in full, or a segment is longer than the model.
    Source: Chen et al. 2016, arXiv:1604.06174, section 3.
    """
    whole("segment", segment, most=job.shape.layers)
    if job.recipe.recompute != "full":
        raise ValueError(f"recompute must be 'full', got {job.recipe.recompute!r}: take it")
    layer_input = layer_activation_bytes(job)
    layer = layer_input + recomputed_bytes(job)
    return SegmentBill(-(-job.shape.layers // segment) * layer_input, segment * layer)


def runs_again(layers: int, segment: int) -> tuple[range, ...]:
    """The layers recomputed before the backward pass of each layer, if one input is kept for each
    `segment` layers and recomputed activations are dropped before the next layer's backward pass.

    segment 1: every layer once; segment = layers: 1 + 2 + … + L, about 40 forward passes at L = 80.
    """
    whole("layers", layers)
    whole("segment", segment, most=layers)
    listed("layers", layers, "take fewer")
    return tuple(range(layer - layer % segment, layer + 1) for layer in range(layers))
