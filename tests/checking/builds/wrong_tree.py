"""Trees that the check must refuse: (what was thought, answer, words of the refusal)."""

import torch
import torch.distributed as dist

from course_lib.scratch.collectives.ring import ring_all_reduce

_KEPT = {}


def _tree(tensor, peers, levels=None, copies=True, scale=1.0, down=True, alone=True):
    """A tree in which one thing can go wrong."""
    total, n, rank = (tensor.clone() if copies else tensor), peers.ranks, peers.rank
    levels = [1 << k for k in range((n - 1).bit_length())] if levels is None else levels
    for reach in levels:
        if rank % (2 * reach) == reach:
            peers.send(total, rank - reach)
        elif rank % (2 * reach) == 0 and (rank + reach < n or not alone):
            arrived = torch.empty_like(total)
            peers.receive(arrived, rank + reach)
            total += arrived
    for reach in reversed(levels) if down else []:
        if rank % (2 * reach) == reach:
            peers.receive(total, rank - reach)
        elif rank % (2 * reach) == 0 and (rank + reach < n or not alone):
            peers.send(total, rank + reach)
    return total * scale


def the_mean(tensor, peers):
    return _tree(tensor, peers, scale=1 / peers.ranks)


def changes_its_input(tensor, peers):
    return _tree(tensor, peers, copies=False)


def in_fp32(tensor, peers):
    return _tree(tensor.float(), peers)


def tables(tensor, peers):
    """One dimension only."""
    return _tree(tensor.view(7) if tensor.numel() == 7 else tensor.flatten(), peers)


def among_all(tensor, peers):
    """Numbers of all ranks, also where a group is meant."""
    total, n, rank = tensor.clone(), dist.get_world_size(), dist.get_rank()
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


def to_the_last(tensor, peers):
    """The root is the last rank."""

    class Turned:
        ranks, rank = peers.ranks, peers.ranks - 1 - peers.rank

        def send(self, out, to):
            peers.send(out, peers.ranks - 1 - to)

        def receive(self, into, source):
            peers.receive(into, peers.ranks - 1 - source)

    return _tree(tensor, Turned())


def keeps_its_buffer(tensor, peers):
    """One buffer for each shape, which the next call fills again."""
    return _KEPT.setdefault(tensor.shape, torch.empty_like(tensor)).copy_(_tree(tensor, peers))


def only_up(tensor, peers):
    return _tree(tensor, peers, down=False)


def levels_rounded_down(tensor, peers):
    """log2 n rounded down: with 5 ranks the last one is never asked."""
    return _tree(tensor, peers, [1 << k for k in range(peers.ranks.bit_length() - 1)])


def a_child_beyond_the_last_rank(tensor, peers):
    """Numbers beyond the last rank start again at 0: rank 2 of 3 waits for rank 0."""
    return _tree(tensor, peers, alone=False)


def all_to_rank_0(tensor, peers):
    """As many messages as a tree, but all of them one after the other."""
    total = tensor.clone()
    if peers.rank:
        peers.send(total, 0)
        peers.receive(total, 0)
        return total
    arrived = torch.empty_like(total)
    for source in range(1, peers.ranks):
        peers.receive(arrived, source)
        total += arrived
    for to in range(1, peers.ranks):
        peers.send(total, to)
    return total


def butterfly(tensor, peers):
    """Partners swap their sums: half of the steps, more messages, powers of two only."""
    total, reach = tensor.clone(), 1
    while reach < peers.ranks:
        arrived = torch.empty_like(total)
        peers.swap(total.clone(), peers.rank ^ reach, arrived, peers.rank ^ reach)
        total += arrived
        reach *= 2
    return total


def around_a_ring(tensor, peers):
    return ring_all_reduce(tensor, peers)


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


def _named(function):
    function.__name__ = "tree_all_reduce"
    return function


_FIRST, _SECOND = "step 1 of 2.*", "step 2 of 2.*"
RIGHT = [("the upper half to the lower half", _named(high_to_low))]
WRONG = [
    ("the mean", _named(the_mean), _FIRST + "1/2 of what is expected: the mean over ranks"),
    ("adds into its argument", _named(changes_its_input), _FIRST + "`tensor` has changed"),
    ("keeps its buffer", _named(keeps_its_buffer), _FIRST + "is changed by the next"),
    ("in fp32", _named(in_fp32), _FIRST + "bfloat16: the result is torch.float32"),
    ("one dimension", _named(tables), _FIRST + r"the result has shape \(6,\)"),
    ("among all ranks", _named(among_all), _SECOND + "in a group without rank 1|nothing moves"),
    ("the last is the root", _named(to_the_last), _FIRST + "rank 0 sends before it has"),
    ("never comes down", _named(only_up), _FIRST + "rank 1 of 2.*is what this rank itself had"),
    ("one level too few", _named(levels_rounded_down), _SECOND + "rank 0 of 3.*ranks 0 to 1"),
    (
        "a child that is not there",
        _named(a_child_beyond_the_last_rank),
        _SECOND + "nothing moves.*rank 2 waits for a message from rank 0",
    ),
    ("all to rank 0", _named(all_to_rank_0), _FIRST + "6 messages follow each other.*tree has 4"),
    ("a butterfly", _named(butterfly), _FIRST + "2 ranks send 2 messages|4 ranks send 8 messages"),
    ("a ring", _named(around_a_ring), _FIRST + "a message is not the whole tensor|send 4 messages"),
]
