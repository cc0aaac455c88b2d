"""The messages of ring and tree: those that the course's own ring and tree send."""

import pytest
import torch
import torch.distributed as dist
from every import every
from probes import Probe

from course_lib import launch
from course_lib.scratch.collectives.peers import Peers
from course_lib.scratch.collectives.ring import ring_all_reduce
from course_lib.scratch.collectives.tree import tree_all_reduce
from course_lib.theory.network import collectives
from course_lib.theory.network.all_reduce_steps import ring_steps, tree_steps


class Watched(Peers):
    """Peers that write down what they send: (round, to, part, ranks in the sum)."""

    def __init__(self, group):
        super().__init__(group)
        self.sent = []

    def swap(self, out, to, into, source):
        self._note(out, to)
        super().swap(out, to, into, source)

    def send(self, out, to):
        self._note(out, to)
        super().send(out, to)

    def _note(self, out, to):
        one, numbered = out[:2].tolist()  # a decimal for each rank, and that times its part
        digits = reversed(f"{round(one):d}")
        summands = tuple(rank for rank, digit in enumerate(digits) for _ in range(int(digit)))
        self.sent.append((self.rounds, to % self.ranks, round(numbered / one) - 1, summands))


def watched(most):
    """For each number of ranks up to `most`: what this rank sends on the ring and in the tree."""
    launch.init()
    found = {}
    for ranks in range(2, most + 1):
        group = dist.new_group(list(range(ranks)))
        if dist.get_rank() < ranks:
            for name, operation in (("ring", ring_all_reduce), ("tree", tree_all_reduce)):
                peers = Watched(group)
                own = 10.0**peers.rank
                rows = [[own, own * (part + 1)] for part in range(ranks)]
                operation(torch.tensor(rows, dtype=torch.float64).flatten(), peers)
                found[name, ranks] = peers.sent
    return found


def test_the_messages_are_those_of_the_courses_ring_and_tree():
    by_rank = launch.run(watched, 6, ranks=6)
    for ranks in range(2, 7):
        for rank in range(ranks):
            ring, tree = ring_steps(ranks), tree_steps(ranks)
            # A ring's rank takes part in every step.
            assert by_rank[rank]["ring", ranks] == [
                (step - 1, one.receiver, one.part, one.summands)
                for step, moment in enumerate(ring.moments)
                for one in moment.sent
                if one.sender == rank
            ]
            # In the tree a rank counts only the rounds in which it does something.
            expected, rounds = [], 0
            for moment in tree.moments:
                for one in moment.sent:
                    if one.sender == rank:
                        expected.append((rounds, one.receiver, one.part, one.summands))
                    rounds += rank in (one.sender, one.receiver)
            assert by_rank[rank]["tree", ranks] == expected


@every("steps", [ring_steps, tree_steps])
@every("ranks", [2, 3, 4, 5, 7, 8, 16, 32])
def test_everything_ends_complete_with_the_steps_and_bytes_of_the_formulas(steps, ranks):
    result = steps(ranks)
    everyone = tuple(range(ranks))
    assert result.complete == everyone
    assert all(part == everyone for row in result.moments[-1].held for part in row)
    assert result.steps == collectives.steps("all-reduce", ranks, result.algorithm)
    sent = [result.sent_parts(rank, result.steps) for rank in range(ranks)]
    assert sum(sent) / result.parts == pytest.approx(
        ranks * collectives.sent_bytes("all-reduce", 1, ranks)
    )
    assert result.sent_parts(0, 0) == 0


def test_no_summand_comes_twice():
    for result in (ring_steps(5), tree_steps(5)):
        for moment in result.moments:
            for row in moment.held:
                assert all(len(set(part)) == len(part) for part in row)


PROBES = {
    "ring_steps": Probe(ring_steps, {"ranks": 3}, {"ranks": 4}),
    "tree_steps": Probe(tree_steps, {"ranks": 3}, {"ranks": 4}),
    "AllReduceSteps.sent_parts": Probe(
        lambda rank, steps: tree_steps(4).sent_parts(rank, steps),
        {"rank": 0, "steps": 4},
        {"rank": 3, "steps": 1},
    ),
}
RECORDS = {
    "PartSent": [*ring_steps(3).moments[1].sent, *tree_steps(4).moments[-1].sent],
    "AllReduceStep": [ring_steps(3).moments[1], ring_steps(3).moments[2]],
    "AllReduceSteps": [ring_steps(3), tree_steps(4)],
}
