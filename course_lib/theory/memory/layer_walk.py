"""One layer forward and backward, operation by operation: which tensors are held when."""

from collections.abc import Iterator
from dataclasses import dataclass

from course_lib.checked import CountOrZero, check_public
from course_lib.theory.inputs.job import Job
from course_lib.theory.memory.activations import needed_terms
from course_lib.trace import FREE, TAKE, Event, Trace

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
class LayerWalk:
    """A layer's forward pass and, at once behind it, its backward pass.

    A step of the trace is an operation of a pass: "forward", "again" (recomputation) or "backward".
    What it stores is there after it, what it frees is gone; steps count from 1.
    """

    tensors: tuple[SavedTensor, ...]  # everything that the backward pass needs
    trace: Trace

    @property
    def steps(self) -> tuple[Event, ...]:
        """The operations in their order."""
        return tuple(event for event in self.trace if event.what not in (TAKE, FREE))

    def held_bytes(self, step: CountOrZero) -> int:
        """All that is held for the backward pass after so many steps."""
        return sum(part.bytes for part in self.trace.held(step)[0].values())

    @property
    def kept_bytes(self) -> int:
        """What waits between the two passes, while the other layers run."""
        return self.held_bytes(sum(event.what == "forward" for event in self.trace))

    @property
    def peak_bytes(self) -> int:
        """The most that is held at once."""
        return max(size for _, size in self.trace.levels(0))


def layer_walk(job: Job) -> LayerWalk:
    """What one GELU layer holds for its backward pass after each operation, on one GPU.

    The sizes are those of `activation_terms`; a tensor goes when the last backward that needs it
    is done. Full recomputation runs all operations again before the first backward, selective
    attention's alone. Measured against torch in tests/theory/memory/test_layer_walk.py. Raises
    ValueError for experts, SwiGLU, norms or latents of queries and keys, and for "operators".
    """
    tensors = _tensors(job)
    return LayerWalk(tensors, Trace(_walk(job, tensors)))


def _walk(job: Job, tensors: tuple[SavedTensor, ...]) -> Iterator[Event]:
    held: set[SavedTensor] = set()
    for step, (going, operation, stored) in enumerate(_passes(job, tensors), start=1):
        yield Event(step, 0, going, operation)
        for one in (one for one in stored if one not in held and one.size_bytes):
            held.add(one)
            yield Event(step, 0, TAKE, one, bytes=one.size_bytes, label=one.name)
        for one in tensors:
            if one in held and (going, operation) == ("backward", one.freer):
                held.remove(one)
                yield Event(step, 0, FREE, one, bytes=one.size_bytes, label=one.name)


def _passes(
    job: Job, tensors: tuple[SavedTensor, ...]
) -> Iterator[tuple[str, str, list[SavedTensor]]]:
    """Every operation of every pass, and the tensors that it would store."""
    saved = {name: [one for one in tensors if one.saver == name] for name in OPERATIONS}
    full, selective = (job.recipe.recompute == one for one in ("full", "selective"))
    for operation, stored in saved.items():
        kept = [one for one in stored if not (selective and one.scores)]
        yield "forward", operation, [one for one in kept if not full or one is tensors[0]]
    for operation, stored in saved.items():
        if full:
            yield "again", operation, stored
    for operation in reversed(OPERATIONS):
        if selective and operation == ATTENTION and job.recipe.attention == "standard":
            yield "again", operation, [one for one in tensors if one.scores]
        yield "backward", operation, []


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


check_public(globals())
