"""What NCCL's variables choose, by the examples of NCCL's own page."""

import pytest

from course_lib.chapters.ch16_cluster_clinic.logs import chosen

TWELVE = [f"mlx5_{number}" for number in range(12)]


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("", TWELVE),
        ("mlx5", TWELVE),
        ("mlx5_1", ["mlx5_1", "mlx5_10", "mlx5_11"]),
        ("=mlx5_1", ["mlx5_1"]),
        ("=mlx5_0,mlx5_4", ["mlx5_0", "mlx5_4"]),
        ("^mlx5_1", [f"mlx5_{n}" for n in (0, *range(2, 10))]),
        ("^=mlx5_1,mlx5_4", [name for name in TWELVE if name not in ("mlx5_1", "mlx5_4")]),
        ("=mlx4_0", []),
    ],
)
def test_prefixes_exact_names_and_all_others(setting, expected):
    assert chosen(setting, TWELVE) == expected


def test_a_port_must_fit_where_both_name_one():
    both = ["mlx5_0:1", "mlx5_0:2"]
    assert chosen("=mlx5_0:1", both) == ["mlx5_0:1"]
    assert chosen("=mlx5_0", both) == both and chosen("mlx5_0:2", ["mlx5_0"]) == ["mlx5_0"]


def test_interfaces_follow_the_same_rules():
    assert chosen("^docker,lo", ["lo", "docker0", "eth0", "ib0"]) == ["eth0", "ib0"]


@pytest.mark.parametrize("setting", ["=", "^", "^=", "a,", ","])
def test_a_mark_without_a_name_is_refused(setting):
    with pytest.raises(ValueError, match="without a name"):
        chosen(setting, TWELVE)
