"""Tensor, sequence and vocabulary parallelism: the parts together are the whole model."""

import torch
import torch.distributed as dist
from together import sentence
from torch.nn.functional import cross_entropy, linear, pad

from course_lib import launch
from course_lib.measure.gradients import relative_difference
from course_lib.measure.wire import log_wire
from course_lib.scratch.context import SequenceRing
from course_lib.scratch.gpt import GPT
from course_lib.scratch.tensor import (
    ColumnParallelLinear,
    SequenceParallel,
    TensorParallel,
    cut_block,
    cut_gpt,
    gather_and_multiply,
    multiply_and_scatter,
    sum_copied_gradients,
    vocab_parallel_cross_entropy,
    whole_gradients,
)

KINDS = {"plain": TensorParallel, "sequence": SequenceParallel}
BATCH, SEQUENCE, VOCAB = 3, 12, 51  # a word of padding


def gpt(heads=4):
    torch.manual_seed(0)
    model = GPT(2, 8 * heads, heads, VOCAB, SEQUENCE)
    for parameter in model.parameters():  # biases and norms that a mistake would show
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter)
    return model


def data():
    torch.manual_seed(1)
    return torch.randint(0, VOCAB, (BATCH, SEQUENCE)), torch.randint(0, VOCAB, (BATCH, SEQUENCE))


def one_process():
    model, (inputs, labels) = gpt(), data()
    loss = cross_entropy(model(inputs).flatten(0, 1), labels.flatten())
    loss.backward()
    return float(loss.detach()), {name: p.grad for name, p in model.named_parameters()}


def differences():
    """By kind, loss and each gradient of groups of two ranks, against one process."""
    rank = launch.init().rank
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    inputs, labels = data()
    expected_loss, expected = one_process()
    found = {}
    for kind, make in KINDS.items():
        region = make(groups[rank // 2])
        model = cut_gpt(gpt(), region)
        loss = vocab_parallel_cross_entropy(model(inputs), labels, region).mean()
        loss.backward()
        if kind == "sequence":
            sum_copied_gradients(model, region)
        ours = whole_gradients(model, region)
        gaps = {name: relative_difference(ours[name], expected[name]) for name in expected}
        found[kind] = abs(float(loss.detach()) - expected_loss), gaps
    return found


def test_loss_and_every_gradient_of_pairs_of_ranks_equal_one_process():
    for found in launch.run(differences, ranks=4):
        for loss, gaps in found.values():
            assert loss < 1e-6
            assert max(gaps.values()) < 2e-6, gaps


def losses_of_extremes(vocab):
    """Compare losses and gradients with torch's, for logits that overflow exp; what was sent."""
    torch.manual_seed(2)
    region = TensorParallel()
    rows = -(-vocab // region.ranks)
    logits = 1e4 * torch.randn(2, 3, vocab)
    labels = torch.randint(0, vocab, (2, 3))
    padded = pad(logits, (0, rows * region.ranks - vocab), value=-torch.inf)
    own = padded.split(rows, -1)[region.rank].clone().requires_grad_()
    logits.requires_grad_()
    expected = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    expected.sum().backward()
    with log_wire() as log:
        losses = vocab_parallel_cross_entropy(own, labels, region)
        losses.sum().backward()
    gradient = region.join(own.grad, 2, 1)[..., :vocab]
    torch.testing.assert_close(losses.flatten(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient, logits.grad, rtol=1e-5, atol=1e-6)
    return log.sent()


def both_vocabularies():
    return [losses_of_extremes(vocab) for vocab in (8, 5)]


def test_the_loss_needs_three_numbers_a_token():
    for sent in launch.run(both_vocabularies, ranks=4):
        # fp32, two rows of three tokens
        assert sent == [{"all-reduce": (3, 3 * 4 * 2 * 3)}] * 2


def refusals():
    plain, sequence = TensorParallel(), SequenceParallel()
    return [
        sentence(lambda: cut_block(gpt(heads=3).blocks[0], plain)),
        sentence(lambda: ColumnParallelLinear(torch.nn.Linear(4, 7), plain)),
        sentence(lambda: cut_gpt(gpt(), sequence)(torch.zeros(1, 11, dtype=torch.int64))),
    ]


def test_what_cannot_be_cut_is_explained():
    heads, ffn, sequence = launch.run(refusals, ranks=2)[0]
    assert "heads 3 is not divisible by 2 ranks: take" in heads
    assert "size 7 of a matrix of shape (7, 4) is not divisible by 2 ranks: change" in ffn
    assert "sequence 11 is not divisible by 2 ranks: pad it" in sequence


TOKENS, INNER, OUTER = 12, 6, 8


def hidden_messages():
    """Both products that hide messages: their gaps to one process, and what was sent."""
    ring = SequenceRing(dist.group.WORLD)
    torch.manual_seed(0)
    x, weight = torch.randn(TOKENS, INNER), torch.randn(OUTER, INNER)
    whole, own = linear(x, weight), ring.rank
    with log_wire() as gathered:
        ours = gather_and_multiply(x.chunk(ring.ranks)[own], weight, ring)
    # Cut by rows: each rank has some of the inner features, of all tokens.
    columns = torch.arange(INNER).chunk(ring.ranks)[own]
    with log_wire() as scattered:
        mine = multiply_and_scatter(x[:, columns], weight[:, columns], ring)
    gaps = ours - whole, mine - whole.chunk(ring.ranks)[own]
    return [float(gap.abs().max()) for gap in gaps], gathered.sent(), scattered.sent()


def test_products_that_hide_their_messages_have_the_bytes_of_a_collective():
    hops, share = 2, 4 * TOKENS // 3  # each message is a share of the tokens
    for gaps, gathered, scattered in launch.run(hidden_messages, ranks=3):
        assert max(gaps) < 1e-5
        assert gathered == {"send-recv": (hops, hops * share * INNER)}
        assert scattered == {"send-recv": (hops, hops * share * OUTER)}
