"""Full recomputation by segments: which layers run again, and what is held for it."""

from dataclasses import dataclass

from course_lib.checked import checked
from course_lib.theory.inputs.job import Job
from course_lib.theory.memory.activations import layer_activation_bytes, recomputed_bytes
from course_lib.validation import listed, whole


@dataclass(frozen=True)
class SegmentBill:
    """Bytes of one micro-batch while a segment is computed again."""

    inputs_bytes: int  # of all segments
    alive_bytes: int  # the layers of the segment that is being recomputed

    @property
    def total_bytes(self) -> int:
        """Both together."""
        return self.inputs_bytes + self.alive_bytes


@checked
def segment_bill(job: Job, segment: int) -> SegmentBill:
    """L/k inputs and k layers alive, for segments of k = `segment` layers, all layers alike.

    `job` recomputes in full. Raises ValueError otherwise, and for a segment longer than the model.
    Source: Chen et al. 2016, arXiv:1604.06174, section 3.
    """
    whole("segment", segment, most=job.shape.layers)
    if job.recipe.recompute != "full":
        raise ValueError(f"recompute must be 'full', got {job.recipe.recompute!r}: take it")
    layer_input = layer_activation_bytes(job)
    layer = layer_input + recomputed_bytes(job)
    return SegmentBill(-(-job.shape.layers // segment) * layer_input, segment * layer)


def runs_again(layers: int, segment: int) -> tuple[range, ...]:
    """The layers that run again before the backward pass of each layer, if one input is kept for
    each `segment` layers and nothing of a recomputed layer is kept for the next backward pass.

    segment 1: every layer once; segment = layers: 1 + 2 + … + L, the fortyfold of L = 80.
    """
    whole("layers", layers)
    whole("segment", segment, most=layers)
    listed("layers", layers, "take fewer")
    return tuple(range(layer - layer % segment, layer + 1) for layer in range(layers))
