"""Trees that the check must refuse: (what was thought, answer, words of the refusal)."""

import torch

from tests.checking.builds.patches import versions

_KEPT = {}


def tree_all_reduce(tensor, peers):
    """Right."""
    total, n, rank = tensor.clone(), peers.ranks, peers.rank
    levels = [1 << k for k in range((n - 1).bit_length())]
    for reach in levels:
        if rank % (2 * reach) == reach:
            peers.send(total, rank - reach)
        elif rank % (2 * reach) == 0 and rank + reach < n:
            arrived = torch.empty_like(total)
            peers.receive(arrived, rank + reach)
            total += arrived
    for reach in reversed(levels):
        if rank % (2 * reach) == reach:
            peers.receive(total, rank - reach)
        elif rank % (2 * reach) == 0 and rank + reach < n:
            peers.send(total, rank + reach)
    return total


def high_to_low(tensor, peers):
    """Right: the upper half hands over to the lower one, whatever the number of ranks."""
    total, n, active = tensor.clone(), peers.ranks, []
    left = n
    while left > 1:
        half = (left + 1) // 2
        active.append((half, left))
        left = half
    for half, upto in active:
        if half <= peers.rank < upto:
            peers.send(total, peers.rank - half)
        elif peers.rank < upto - half:
            arrived = torch.empty_like(total)
            peers.receive(arrived, peers.rank + half)
            total.add_(arrived)
    for half, upto in reversed(active):
        if half <= peers.rank < upto:
            peers.receive(total, peers.rank - half)
        elif peers.rank < upto - half:
            peers.send(total, peers.rank + half)
    return total


class _Turned:
    """The last rank is rank 0."""

    def __init__(self, peers):
        self.peers, self.ranks, self.rank = peers, peers.ranks, peers.ranks - 1 - peers.rank

    def send(self, out, to):
        self.peers.send(out, self.ranks - 1 - to)

    def receive(self, into, source):
        self.peers.receive(into, self.ranks - 1 - source)


high_to_low.__name__ = "tree_all_reduce"
RIGHT = [("the upper half to the lower half", [high_to_low])]
_PATCHES = r"""
    the mean
    - return total
    + return total / n
    ? 1 1/2 of what is expected: the mean over ranks
    adds into its argument
    - tensor.clone()
    + tensor
    ? 1 `tensor` has changed
    keeps its buffer
    - return total
    + return _KEPT.setdefault(tensor.shape, torch.empty_like(tensor)).copy_(total)
    ? 1 is changed by the next
    in fp32
    - tensor.clone()
    + tensor.float().clone()
    ? 1 bfloat16: the result is torch.float32
    among all ranks
    - peers.ranks, peers.rank
    + dist.get_world_size(), dist.get_rank()
    ? 2 in a group without rank 1|nothing moves
    the last is the root
    - total, n
    + peers = _Turned(peers)
    + total, n
    ? 1 rank 0 sends before it has
    never comes down
    - in reversed(levels)
    + in ()
    ? 1 rank 1 of 2.*is what this rank itself had
    one level too few
    - (n - 1).bit_length()
    + n.bit_length() - 1
    ? 2 rank 0 of 3.*ranks 0 to 1
    a child that is not there
    - elif rank % (2 * reach) == 0 and rank + reach < n:
    -     arrived
    + elif rank % (2 * reach) == 0:
    +     arrived
    - elif rank % (2 * reach) == 0 and rank + reach < n:
    -     peers.send
    + elif rank % (2 * reach) == 0:
    +     peers.send
    ? 2 nothing moves.*rank 2 waits for a message from rank 0
    all to rank 0
    - levels = [1 << k for k in range((n - 1).bit_length())]
    + if rank:
    +     peers.send(total, 0)
    +     peers.receive(total, 0)
    + for source in range(1, n) if not rank else ():
    +     peers.receive(arrived := torch.empty_like(total), source)
    +     total += arrived
    + for to in range(1, n) if not rank else ():
    +     peers.send(total, to)
    + levels = []
    ? 1 6 messages follow each other.*tree has 4
    a butterfly
    - levels = [1 << k for k in range((n - 1).bit_length())]
    + for reach in [1 << k for k in range((n - 1).bit_length())]:
    +     arrived = torch.empty_like(total)
    +     peers.swap(total.clone(), rank ^ reach, arrived, rank ^ reach)
    +     total += arrived
    + levels = []
    ? 1 2 ranks send 2 messages|4 ranks send 8 messages
"""
WRONG = versions(tree_all_reduce, lambda wrong: [wrong], _PATCHES)
