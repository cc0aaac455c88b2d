"""Lifetimes of the saved tensors in one layer's forward and backward pass, by operation."""

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
    """A tensor that operation `saver` saves in forward; the backward of `freer` uses it last.

    `scores`: True if selective recomputation discards it.
    """

    name: str
    size_bytes: int
    saver: str
    freer: str
    scores: bool = False


@dataclass(frozen=True)
class LayerWalk:
    """A layer's forward pass, followed immediately by its backward pass.

    A step of the trace is an operation in one of the passes "forward", "again" (recomputation) or
    "backward". Its tensors are stored or freed at the end of the step; steps count from 1.
    """

    tensors: tuple[SavedTensor, ...]  # all tensors that the backward pass needs
    trace: Trace

    @property
    def steps(self) -> tuple[Event, ...]:
        """The operations in order of execution."""
        return tuple(event for event in self.trace if event.what not in (TAKE, FREE))

    def held_bytes(self, step: CountOrZero) -> int:
        """Bytes held for the backward pass after `step` steps."""
        return sum(part.bytes for part in self.trace.held(step)[0].values())

    @property
    def kept_bytes(self) -> int:
        """Bytes held between the forward and the backward pass, while other layers run."""
        return self.held_bytes(sum(event.what == "forward" for event in self.trace))

    @property
    def peak_bytes(self) -> int:
        """Peak bytes held at one time."""
        return max(size for _, size in self.trace.levels(0))


def layer_walk(job: Job) -> LayerWalk:
    """Tensors that a GELU layer holds for its backward pass after each operation, on one GPU.

    Sizes are those of `activation_terms`; a tensor is freed after the last backward operation that
    needs it. Full recomputation repeats all operations before the first backward one, selective
    only attention. Checked against torch in tests/theory/memory/test_layer_walk.py. Raises
    ValueError for experts, SwiGLU, norms or latents of queries and keys, and for "operators".
    """
    tensors = _tensors(job)
    return LayerWalk(tensors, Trace(_walk(job, tensors)))


def _walk(job: Job, tensors: tuple[SavedTensor, ...]) -> Iterator[Event]:
    held: set[SavedTensor] = set()
    for step, (direction, operation, stored) in enumerate(_passes(job, tensors), start=1):
        yield Event(step, 0, direction, operation)
        for one in (one for one in stored if one not in held and one.size_bytes):
            held.add(one)
            yield Event(step, 0, TAKE, one, bytes=one.size_bytes, label=one.name)
        for one in tensors:
            if one in held and (direction, operation) == ("backward", one.freer):
                held.remove(one)
                yield Event(step, 0, FREE, one, bytes=one.size_bytes, label=one.name)


def _passes(
    job: Job, tensors: tuple[SavedTensor, ...]
) -> Iterator[tuple[str, str, list[SavedTensor]]]:
    """(pass, operation, tensors that it stores) for every operation in order of execution."""
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
    """All tensors that the backward pass needs, in the order in which they are stored."""
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
    # Flash attention recomputes its scores from queries, keys, values and its own output.
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
