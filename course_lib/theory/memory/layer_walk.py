"""One layer forward and backward, operation by operation: which tensors are held when."""

from dataclasses import dataclass

from course_lib.checked import checked
from course_lib.theory.inputs.job import Job
from course_lib.theory.memory.activations import needed_terms

NORM_1, QKV, ATTENTION = "norm 1", "queries, keys, values", "attention"
PROJECTION, ADD_1 = "projection", "add to the stream"
NORM_2, UP, GELU, DOWN, ADD_2 = "norm 2", "MLP up", "GELU", "MLP down", "add again"
OPERATIONS = (NORM_1, QKV, ATTENTION, PROJECTION, ADD_1, NORM_2, UP, GELU, DOWN, ADD_2)


@dataclass(frozen=True)
class SavedTensor:
    """A tensor that `saver` stores in the forward pass; backward of `freer` is the last to use it.

    `scores`: selective recomputation throws it away.
    """

    name: str
    size_bytes: int
    saver: str
    freer: str
    scores: bool = False


@dataclass(frozen=True)
class WalkMoment:
    """After one operation of one pass: what it stored, what it freed, and all that is held."""

    going: str  # "before", "forward", "again" (recomputation) or "backward"
    operation: str
    stored: tuple[SavedTensor, ...]
    freed: tuple[SavedTensor, ...]
    held: tuple[SavedTensor, ...]

    @property
    def held_bytes(self) -> int:
        """All that is held for the backward pass."""
        return sum(tensor.size_bytes for tensor in self.held)


@dataclass(frozen=True)
class LayerWalk:
    """A layer's forward pass and, at once behind it, its backward pass.

    `moments[0]` is before the first operation.
    """

    recompute: str
    tensors: tuple[SavedTensor, ...]  # everything that the backward pass needs
    moments: tuple[WalkMoment, ...]

    @property
    def kept_bytes(self) -> int:
        """What waits between the two passes, while the other layers run."""
        return next(one.held_bytes for one in reversed(self.moments) if one.going == "forward")

    @property
    def peak_bytes(self) -> int:
        """The most that is held at once."""
        return max(one.held_bytes for one in self.moments)


@checked
def layer_walk(job: Job) -> LayerWalk:
    """What one GELU layer holds for its backward pass after each operation, on one GPU.

    The sizes are those of `activation_terms`; a tensor goes when the last backward that needs it
    is done. Full recomputation runs all operations again before the first backward, selective
    attention's alone. Measured against torch in tests/theory/memory/test_layer_walk.py. Raises
    ValueError for experts, SwiGLU, norms or latents of queries and keys, and for "operators".
    """
    tensors = _tensors(job)
    walk = _Walk()
    full, selective = (job.recipe.recompute == one for one in ("full", "selective"))
    for operation in OPERATIONS:
        stored = [one for one in tensors if one.saver == operation]
        if full:
            stored = [one for one in stored if one is tensors[0]]
        walk.go("forward", operation, [one for one in stored if not (selective and one.scores)])
    if full:
        for operation in OPERATIONS:
            walk.go("again", operation, [one for one in tensors if one.saver == operation])
    for operation in reversed(OPERATIONS):
        if selective and operation == ATTENTION and job.recipe.attention == "standard":
            walk.go("again", operation, [one for one in tensors if one.scores])
        walk.go("backward", operation)
    return LayerWalk(job.recipe.recompute, tensors, tuple(walk.moments))


class _Walk:
    """Collects moments; `held` keeps the order in which tensors came."""

    def __init__(self) -> None:
        self.held: list[SavedTensor] = []
        self.moments = [WalkMoment("before", "", (), (), ())]

    def go(self, going: str, operation: str, stored: list[SavedTensor] | None = None) -> None:
        new = tuple(one for one in stored or () if one not in self.held and one.size_bytes)
        self.held += new
        leaving = going == "backward"
        freed = tuple(one for one in self.held if leaving and one.freer == operation)
        self.held = [one for one in self.held if one not in freed]
        self.moments.append(WalkMoment(going, operation, new, freed, tuple(self.held)))


def _tensors(job: Job) -> tuple[SavedTensor, ...]:
    """All tensors that backward needs, in the order in which they are stored."""
    shape = job.shape
    if job.recipe.recompute == "operators":
        raise ValueError("recompute 'operators' is not walked: take none, selective or full")
    plain = shape.mlp == "gelu" and not shape.experts and shape.layer_norms == 2
    if not plain or shape.qk_norm != "none" or shape.mla is not None or not job.recipe.fused_norms:
        raise ValueError(
            "shape must be a layer of two fused norms, attention and a GELU MLP: take gpt3-175b"
        )
    terms = needed_terms(job)
    stream, normed = terms.norms_bytes // 2, terms.matrix_inputs_bytes // 2
    wide, mask = terms.mlp_inside_bytes // 2, terms.dropout_masks_bytes // 2
    # Flash attention redoes its scores from queries, keys, values and its own result.
    needs_result = ATTENTION if job.recipe.attention == "flash" else PROJECTION
    return (
        SavedTensor("the layer's input", stream, NORM_1, NORM_1),
        SavedTensor("norm 1's result", normed, QKV, QKV),
        SavedTensor("queries", terms.queries_bytes, ATTENTION, ATTENTION),
        SavedTensor("keys, values", terms.keys_values_bytes, ATTENTION, ATTENTION),
        SavedTensor("scores", terms.scores_bytes, ATTENTION, ATTENTION, scores=True),
        SavedTensor("attention's result", terms.attention_output_bytes, needs_result, needs_result),
        SavedTensor("dropout mask 1", mask, ADD_1, ADD_1),
        SavedTensor("the stream", stream, NORM_2, NORM_2),
        SavedTensor("norm 2's result", normed, UP, UP),
        SavedTensor("GELU's input", wide, GELU, GELU),
        SavedTensor("GELU's result", wide, DOWN, DOWN),
        SavedTensor("dropout mask 2", mask, ADD_2, ADD_2),
    )
