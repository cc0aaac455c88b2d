"""Slices of a sequence: scores by hand, against a table of all pairs, and the ring that hides."""

import pytest
from every import every
from probes import Probe, by_name

from course_lib.theory.inputs.hardware import accelerator
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.network import context


@every("zigzag", [False, True])
def test_visible_pairs_against_a_table(zigzag):
    sequence, ranks = 24, 3
    size = sequence // (ranks * (2 if zigzag else 1))
    everyone = [chunk for rank in range(ranks) for chunk in context.chunks(rank, ranks, zigzag)]
    assert sorted(everyone) == list(range(sequence // size))
    for rank in range(ranks):
        mine = context.chunks(rank, ranks, zigzag)
        # A token meets all keys of its own chunk and of those before it.
        queries = [chunk for chunk in mine for _ in range(size)]
        expected = sum(key // size <= chunk for chunk in queries for key in range(sequence))
        assert context.rank_scores(sequence, rank, ranks, zigzag=zigzag) == expected


def test_the_ring_hides_from_flop_over_bytes_on():
    """Liu et al. 2023, section 3: c = F / B; fewer key heads need less."""
    h100, network = accelerator("H100-SXM").peak_flop_per_s, 50e9
    assert context.hidden_ring_tokens(h100, network, 4096, 4096) == pytest.approx(19_788)
    llama = MODELS["llama3.1-8b"]
    fewer = context.hidden_ring_tokens(h100, network, llama.hidden, llama.kv_width)
    assert fewer == pytest.approx(19_788 / 4)
    tokens = round(fewer)
    compute_s = 4 * tokens**2 * llama.hidden / h100
    send_s = 2 * tokens * llama.kv_width * 2 / network
    assert compute_s == pytest.approx(send_s, rel=1e-3)


REFUSED = [
    (lambda: context.rank_scores(25, 0, 2, zigzag=True), "sequence 25 is not divisible by chunks"),
    (lambda: context.chunks(4, 4), "rank must be at most 3"),
]
PROBES = by_name(Probe(context.chunks, {"rank": 1, "ranks": 4, "zigzag": True}))
