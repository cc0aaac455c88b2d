"""The walk through a layer: its sums by the inventory, its moments by what autograd holds."""

from dataclasses import replace
from functools import partial

import torch
from every import every
from probes import FULL, STANDARD, Probe
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from course_lib.scratch.checkpointing import Segment
from course_lib.scratch.gpt import Block
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.memory.activations import layer_activation_bytes, needed_terms
from course_lib.theory.memory.layer_walk import layer_walk
from course_lib.trace import FREE, TAKE

GPT3 = MODELS["gpt3-175b"]
FP32 = Recipe(parameters="fp32", gradients="fp32", master_copy=False)
BATCH, SEQUENCE, HIDDEN, HEADS = 2, 32, 64, 4
TOKENS = BATCH * SEQUENCE
SMALL = TransformerShape(1, HIDDEN, HEADS, 4 * HIDDEN, 128, SEQUENCE)


@every("recompute", ["none", "selective", "full"])
@every("attention", ["standard", "flash"])
@every("dropout", [False, True])
def test_what_waits_is_what_the_inventory_says(recompute, attention, dropout):
    recipe = Recipe(recompute=recompute, attention=attention, dropout=dropout)
    for layout in (Layout(), Layout(tp=8, sequence_parallel=True, micro_batch=2)):
        job = Job(GPT3, recipe, layout, sequence=2048)
        walk = layer_walk(job)
        assert walk.kept_bytes == layer_activation_bytes(job)
        needed = needed_terms(job).total_bytes
        assert sum(one.size_bytes for one in walk.tensors) == needed
        # The scores come back only when the MLP's tensors are gone.
        apart = recompute == "selective" and attention == "standard"
        assert walk.peak_bytes < needed if apart else walk.peak_bytes == needed
        assert walk.held_bytes(0) == walk.held_bytes(len(walk.steps)) == 0


@every("recompute", ["none", "selective", "full"])
def test_everything_comes_and_goes_once(recompute):
    walk = layer_walk(Job(GPT3, replace(STANDARD, recompute=recompute), sequence=2048))
    come, gone = ([e.part for e in walk.trace if e.what == what] for what in (TAKE, FREE))
    assert set(come) == set(gone) and len(set(come)) == len(come) == len(gone)


class Kept:
    """Bytes that autograd holds: each storage once, as long as somebody holds what was packed."""

    def __init__(self, block):
        self.owned = {p.untyped_storage().data_ptr() for p in block.parameters()}
        self.alive = {}
        self.log = []

    def pack(self, tensor):
        box = Box(self, tensor)
        if tensor.untyped_storage().data_ptr() not in self.owned:
            self.alive[id(box)] = tensor
        return box

    def note(self, operation):
        storages = {t.untyped_storage().data_ptr(): t for t in self.alive.values()}
        size = sum(t.untyped_storage().nbytes() for t in storages.values())
        self.log.append((operation, size))


class Box:
    def __init__(self, kept, tensor):
        self.kept, self.tensor = kept, tensor

    def __del__(self):
        self.kept.alive.pop(id(self), None)


def observe(block, kept, mix):
    """Let every operation of the block note what is held after it and before its backward."""

    def noted(operation, call, *arguments):
        result = call(*arguments)
        kept.note(operation)
        if result.requires_grad:
            result.register_hook(lambda _: kept.note(f"before backward of {operation}"))
        return result

    attention = block.attention
    block.norm1.forward = partial(noted, "norm 1", block.norm1.forward)
    attention.qkv.forward = partial(noted, "queries, keys, values", attention.qkv.forward)
    attention.mix = partial(noted, "attention", mix)
    attention.out.forward = partial(noted, "projection", attention.out.forward)
    block.norm2.forward = partial(noted, "norm 2", block.norm2.forward)
    for part, name in zip(block.mlp, ("MLP up", "GELU", "MLP down"), strict=True):
        part.forward = partial(noted, name, part.forward)


def measured(recompute, attention):
    """(operation, bytes held) after each one forward, and before each one backward."""
    torch.manual_seed(0)
    block = Block(HIDDEN, HEADS)
    kept = Kept(block)
    mix = block.attention.mix
    if recompute == "selective":
        mix = partial(checkpoint, mix, use_reentrant=False)
    observe(block, kept, mix)
    layers = Segment(block) if recompute == "full" else block
    backend = SDPBackend.MATH if attention == "standard" else SDPBackend.FLASH_ATTENTION
    x = torch.randn(BATCH, SEQUENCE, HIDDEN).requires_grad_()
    with sdpa_kernel(backend), saved_tensors_hooks(kept.pack, lambda box: box.tensor):
        y = layers(x)
        upstream = torch.ones_like(y)
        kept.note("before any backward")
        y.backward(upstream)
    del y
    kept.note("after the last backward")
    return kept.log


def held_bytes(walk, step, attention):
    """All that is held, with mean and scale of norms and flash attention's log-sum-exp: fp32."""
    names = {part.label for part in walk.trace.held(step)[0].values()}
    norms = len(names & {"the layer's input", "the stream"})
    softmax = attention == "flash" and "queries" in names
    return walk.held_bytes(step) + norms * 2 * TOKENS * 4 + softmax * HEADS * TOKENS * 4


@every("attention", ["standard", "flash"])
def test_the_walk_is_that_of_torch_without_recomputation(attention):
    walk = layer_walk(_small("none", attention))
    forward, backward = _expected(walk, "forward", attention), _backward(walk, attention)
    assert measured("none", attention) == [*forward, *backward]


def test_the_walk_is_that_of_our_checkpointing():
    for attention in ("standard", "flash"):
        walk = layer_walk(_small("full", attention))
        kept = BATCH * SEQUENCE * HIDDEN * 4
        forward = [(name, 0) for name, _ in _expected(walk, "forward", attention)]
        found = measured("full", attention)
        # The input is handed to autograd when the Function's forward has ended.
        assert found[: len(forward)] == forward
        assert found[len(forward)] == ("before any backward", kept)
        assert walk.kept_bytes == kept
        again = _expected(walk, "again", attention)
        assert found[len(forward) + 1 :] == [*again, *_backward(walk, attention)[1:]]


def test_selective_recomputation_keeps_all_but_the_scores():
    walk = layer_walk(_small("selective", "standard"))
    found = measured("selective", "standard")
    for name, size in _expected(walk, "forward", "standard")[3:]:
        assert (name, size) in found


def _small(recompute, attention):
    recipe = replace(FP32, recompute=recompute, attention=attention)
    return Job(SMALL, recipe, Layout(micro_batch=BATCH), sequence=SEQUENCE)


def _expected(walk, going, attention):
    return [
        (one.part, held_bytes(walk, one.at, attention))
        for one in walk.steps
        if one.what == going and not one.part.startswith("add")
    ]


def _backward(walk, attention):
    """What is held before any backward, before each operation's, and after the last one."""
    back = [one for one in walk.steps if one.what == "backward"]
    found = [("before any backward", back[0].at - 1)]
    for one in back:
        if not one.part.startswith("add"):
            found.append((f"before backward of {one.part}", one.at - 1))
    found.append(("after the last backward", back[-1].at))
    return [(name, held_bytes(walk, at, attention)) for name, at in found]


REFUSED = [
    (lambda: layer_walk(Job(MODELS["llama2-7b"])), "shape must be a layer of two fused norms"),
    (
        lambda: layer_walk(Job(GPT3, Recipe(recompute="operators"))),
        "recompute 'operators' is not walked: take none",
    ),
]
WALKS = [
    layer_walk(Job(GPT3, STANDARD, sequence=2048)),
    layer_walk(Job(GPT3, FULL, Layout(micro_batch=2), sequence=1024)),
]
PROBES = {
    "layer_walk": Probe(
        layer_walk,
        {"job": Job(GPT3, STANDARD, Layout(tp=2), sequence=512)},
        {},
        silent=("cluster",),
        refuses=True,
    )
}
RECORDS = {"SavedTensor": [WALKS[0].tensors[0], WALKS[1].tensors[4]], "LayerWalk": WALKS}
