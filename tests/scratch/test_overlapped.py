"""Products that hide their messages: the same numbers and bytes as one collective."""

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import linear

from course_lib import launch
from course_lib.measure.wire import log_wire
from course_lib.scratch.context import SequenceRing
from course_lib.scratch.tensor import gather_and_multiply, multiply_and_scatter

TOKENS, INNER, OUTER = 12, 6, 8


def both_ways():
    """The worst difference from one process, and what was sent, of each of the two."""
    launch.init()
    ring = SequenceRing(dist.group.WORLD)
    torch.manual_seed(0)
    x, weight = torch.randn(TOKENS, INNER), torch.randn(OUTER, INNER)
    whole, rank = linear(x, weight), ring.rank
    with log_wire() as gathered:
        ours = gather_and_multiply(x.chunk(ring.ranks)[rank], weight, ring)
    gap = (ours - whole).abs().max()
    # Cut by rows: each rank has some of the inner features, of all tokens.
    columns = torch.arange(INNER).chunk(ring.ranks)[rank]
    with log_wire() as scattered:
        mine = multiply_and_scatter(x[:, columns], weight[:, columns], ring)
    other = (mine - whole.chunk(ring.ranks)[rank]).abs().max()
    return float(gap), float(other), gathered.sent(), scattered.sent()


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_equal_to_one_process_with_the_bytes_of_a_collective(ranks):
    for gap, other, gathered, scattered in launch.run(both_ways, ranks=ranks):
        assert gap < 1e-5
        assert other < 1e-5
        if ranks > 1:  # each message is a share of the tokens
            hops, share = ranks - 1, 4 * TOKENS // ranks
            assert gathered == {"send-recv": (hops, hops * share * INNER)}
            assert scattered == {"send-recv": (hops, hops * share * OUTER)}
        else:
            assert gathered == scattered == {}
