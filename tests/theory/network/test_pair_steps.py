"""The steps of a cut pair: shapes and messages of a real run, and the bytes of a layer."""

import pytest
import torch
from every import every
from probes import Probe

from course_lib import launch
from course_lib.measure.wire import log_wire
from course_lib.scratch.gpt import Block
from course_lib.scratch.tensor.layers import cut_block
from course_lib.scratch.tensor.region import TensorParallel
from course_lib.scratch.tensor.sequence import SequenceParallel
from course_lib.theory.network.collectives import tensor_parallel_bytes
from course_lib.theory.network.pair_steps import ATTENTION, MLP, pair_steps

HIDDEN, BATCH, SEQUENCE = 16, 2, 8


def real_steps(kind, by_tokens):
    """What a rank really makes, forward and backward: shapes by place, and its collectives."""
    torch.manual_seed(0)
    region = SequenceParallel() if by_tokens else TensorParallel()
    block = cut_block(Block(HIDDEN, 4), region)
    if kind == MLP:
        pair, (first, _, second) = block.mlp, block.mlp
    else:
        pair = block.attention
        first, second = pair.qkv, pair.out
    shapes = {}

    def rows(tensor):
        return (tensor.shape[0] * tensor.shape[1], tensor.shape[2])

    def note(name, tensor):
        shapes[name] = rows(tensor)
        tensor.register_hook(lambda gradient: shapes.update({f"d{name}": rows(gradient)}))

    first.register_forward_hook(lambda _, inputs, output: note("XA", output))
    second.register_forward_pre_hook(lambda _, inputs: note("Y", inputs[0]))
    own = len(region.own_tokens(torch.arange(SEQUENCE)))
    x = torch.randn(BATCH, own, HIDDEN, requires_grad=True)
    with log_wire() as log:
        z = pair(x)
        z.sum().backward()
    shapes |= {"X": rows(x), "Z": rows(z), "dX": rows(x.grad)}
    return shapes, [(call.what, call.bytes) for call in log.calls]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("by_tokens", [False, True])
@pytest.mark.parametrize("kind", [MLP, ATTENTION])
def test_shapes_and_messages_of_a_real_run(kind, by_tokens, ranks):
    plan = pair_steps(
        kind, HIDDEN, BATCH * SEQUENCE, ranks, element_bytes=4, sequence_parallel=by_tokens
    )
    expected = {step.makes: step.shape for step in plan.steps}
    for shapes, calls in launch.run(real_steps, kind, by_tokens, ranks=ranks):
        assert {name: expected[name] for name in shapes} == shapes
        assert calls == [(step.collective, step.size_bytes) for step in plan.messages]


@every("by_tokens", [False, True])
def test_two_pairs_send_the_bytes_of_a_layer(by_tokens):
    pairs = [
        pair_steps(kind, 8192, 4096, 8, sequence_parallel=by_tokens) for kind in (MLP, ATTENTION)
    ]
    assert sum(pair.sent_bytes for pair in pairs) == tensor_parallel_bytes(1, 4096, 8192, tp=8)


def test_the_widths():
    mlp, attention = (pair_steps(kind, 8, 2, 2) for kind in (MLP, ATTENTION))
    assert (mlp.inner, mlp.middle, attention.inner, attention.middle) == (32, 32, 24, 8)


@every(
    ("arguments", "message"),
    [
        (("mlp", 9, 8, 2), "hidden 9"),
        (("mlp", 8, 9, 2), "tokens 9"),
        (("mlp", 8, 8, 1), "ranks must be at least 2"),
        (("norm", 8, 8, 2), "kind"),
    ],
)
def test_what_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        pair_steps(*arguments, sequence_parallel=True)


PAIRS = [
    pair_steps(MLP, 8, 4, 2),
    pair_steps(ATTENTION, 16, 8, 4, element_bytes=4, sequence_parallel=True),
]
PROBES = {
    "pair_steps": Probe(
        pair_steps,
        {"kind": MLP, "hidden": 8, "tokens": 4, "ranks": 2},
        {
            "kind": ATTENTION,
            "hidden": 16,
            "tokens": 8,
            "ranks": 4,
            "element_bytes": 4,
            "sequence_parallel": True,
        },
    ),
}
RECORDS = {"PairSteps": PAIRS, "PairStep": [*PAIRS[0].steps, *PAIRS[1].steps]}
