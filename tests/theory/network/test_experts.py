"""Loads of experts: by hand, at both ends of the skew, and what a rank hands over."""

from itertools import combinations

import pytest
from every import every
from refused import rows

from course_lib.theory.compute.flops import training_flops
from course_lib.theory.inputs import MODELS, Cluster, Job, Layout, Recipe
from course_lib.theory.inputs.hardware import ACCELERATORS
from course_lib.theory.network import experts
from course_lib.theory.network.experts import ExpertLoad, expert_load, zipf_load
from course_lib.theory.network.step_traffic import step_traffic


def test_by_hand():
    load = ExpertLoad((6, 2, 3, 1), top_k=1, capacity=4, ranks=2, row_bytes=10)
    assert load.choices == 12 and load.mean == 3 and load.imbalance == 2
    assert load.accepted == (4, 2, 3, 1)
    assert load.dropped == 2 and load.dropped_fraction == pytest.approx(1 / 6)
    assert load.rank_load == (6, 4) and load.rank_imbalance == 1.2
    assert load.dispatch_bytes == 50 and load.travelling_bytes == 25 and load.received_bytes == 60


@every("skew", [0, 0.3, 1, 3, 10])
@every(("tokens", "count", "top_k"), [(1, 1, 1), (1000, 8, 2), (77, 64, 6), (5, 4, 4)])
def test_all_choices_are_made_and_no_token_asks_an_expert_twice(tokens, count, top_k, skew):
    load = zipf_load(tokens, count, top_k, skew)
    assert len(load) == count and sum(load) == tokens * top_k
    assert 0 <= min(load) and max(load) <= tokens
    assert list(load) == sorted(load, reverse=True)


@every(
    ("asked", "load"),
    [
        ((1024, 8, 2, 0), (256,) * 8),
        ((2500, 4, 1, 1), (1200, 600, 400, 300)),  # 1, 1/2, 1/3, 1/4 add up to 25/12
        # Two choices: the first expert is full at 1000, the other 1000 go as 1/2, 1/3, 1/4.
        ((1300, 4, 2, 1), (1248, 624, 416, 312)),
        ((1300, 4, 2, 2), (1300, 767, 341, 192)),
        ((1000, 4, 1, 10), (999, 1, 0, 0)),
    ],
)
def test_the_shares_are_zipfs(asked, load):
    assert zipf_load(*asked) == load


@every(
    ("choices", "count", "factor", "expected"),
    [(1024, 8, 1.0, 128), (1024, 8, 1.25, 160), (10, 4, 1.0, 3), (10, 4, None, 10)],
)
def test_capacity(choices, count, factor, expected):
    assert experts.capacity(choices, count, factor) == expected


def test_bytes_and_intensity_are_those_of_a_training_step():
    """Mixtral: four all-to-alls in each of 32 layers; FLOP of all experts over their bytes."""
    mixtral, ranks, tokens = MODELS["mixtral-8x7b"], 8, 4096
    load = expert_load(ranks * tokens, 8, 2, ranks=ranks, row_bytes=2 * mixtral.hidden)
    cluster = Cluster(ACCELERATORS["H100-SXM"])
    traffic = step_traffic(Job(mixtral, Recipe(), Layout(dp=8, ep=8), cluster, sequence=tokens))
    sent = traffic.bytes_by_axis["ep"]
    assert 4 * 32 * load.travelling_bytes == sent
    kept = [[2 * tokens // 8] * 8] * ranks
    assert experts.routed_bytes(kept, 3, 2 * mixtral.hidden) == 4 * load.dispatch_bytes
    flop = training_flops(mixtral, 1, tokens).experts_flop
    handed = sent * 8 / 7  # with what stays at home
    assert experts.routed_intensity(mixtral.expert_width) == pytest.approx(flop / handed)


def test_routed_bytes_by_hand():
    """Rank 0 sends 3 + 1 rows and receives 3 + 5; rank 1 sends 5 + 2 and receives 1 + 2."""
    kept = [[3, 1], [5, 2]]
    assert experts.routed_bytes(kept, 0, 10) == 2 * (4 + 8) * 10
    assert experts.routed_bytes(kept, 1, 10, passes=3) == 3 * (7 + 3) * 10


def test_balance_loss():
    assert experts.balance_loss([5, 5], [0.5, 0.5]) == 1
    assert experts.balance_loss([10, 0], [1, 0]) == 2
    assert experts.balance_loss([5, 5, 0, 0], [0.5, 0.5, 0, 0]) == 2  # the worst for top_k = 2
    assert experts.balance_loss([2, 3], [0.694, 0.306]) < 0.93  # 1 is not the least
    assert experts.balance_loss([3, 1], [0.7, 0.3]) == pytest.approx(2 * (0.75 * 0.7 + 0.25 * 0.3))


def test_nodes_of_a_token_are_those_of_random_choices():
    """Against all choices of 3 of 8 experts, two on each of 4 nodes."""
    chosen = list(combinations(range(8), 3))
    mean = sum(len({expert // 2 for expert in one}) for one in chosen) / len(chosen)
    assert experts.nodes_of_a_token(8, 3, 4) == pytest.approx(mean)
    assert experts.nodes_of_a_token(8, 3, 1) == 1


REFUSED = [
    (lambda: expert_load(100, 6, ranks=4), "experts 6 is not divisible by ranks 4: take"),
    (lambda: ExpertLoad((0, 0), 1, 1, 1, 2), "choices must be at least 1"),
    (lambda: experts.nodes_of_a_token(8, 9, 4), "top_k 9 is above experts 8"),
    *rows(
        lambda kept: experts.routed_bytes(kept, 0, 2),
        [
            ([[1, 2, 3], [1, 2, 3]], "experts 3 is not divisible by ranks 2"),
            ([[1, 2], [1]], r"counts\[1\] has 1 experts and counts\[0\] 2: give one"),
        ],
    ),
    *rows(
        experts.balance_loss,
        [
            ([1, 2], [1.0], "load has 2 experts and probabilities 1: give one"),
            ([0, 0], [0.5, 0.5], "sum of load must be above 0"),
        ],
    ),
]
RECORDS = {
    "ExpertLoad": [
        expert_load(1024, 8, 1, capacity_factor=1.25, ranks=2, row_bytes=64, skew=0.5),
        expert_load(1024, 8, 2, capacity_factor=2.0, ranks=4, row_bytes=128, skew=1.0),
    ]
}
