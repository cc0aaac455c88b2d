"""What a parameter server moves, against sums by hand."""

import pytest
from probes import Probe, by_name
from refused import rows

from course_lib.chapters.ch14_parameter_servers.sparse import RowExchange, dense_over_sparse


def test_an_exchange_by_hand():
    exchange = RowExchange(rows=190, width=128)
    assert exchange.pulled_bytes == 190 * 512
    assert exchange.pushed_bytes == 190 * 512 + 190 * 8 + 16
    assert exchange.total_bytes == 196_096


def test_only_the_rows_count():
    exchange = RowExchange(100, 16)
    assert dense_over_sparse(exchange, 2000, 4) == 2 * dense_over_sparse(exchange, 1000, 4)


def test_where_all_rows_are_used_the_all_reduce_sends_less():
    every_row = RowExchange(1000, 16)
    assert dense_over_sparse(every_row, 1000, 2) < 1  # 2(n-1)/n = 1 against 2, and the ids
    assert dense_over_sparse(every_row, 1000, 2) == pytest.approx(64 / (128 + 8), rel=1e-3)


def test_without_a_server_all_ranks_get_all_rows():
    exchange = RowExchange(rows=10, width=4)
    assert exchange.gathered_bytes(ranks=1) == 0
    assert exchange.gathered_bytes(ranks=3) == 2 * 10 * (4 * 4 + 8)
    # From 3 ranks on a server asks less of each of them, headers aside.
    plain = RowExchange(rows=10, width=4, id_bytes=0, header_bytes=0)
    assert plain.gathered_bytes(3) == plain.total_bytes


def test_a_billion_rows_of_which_each_of_8_gpus_touches_100_000():
    exchange, table_bytes = RowExchange(100_000, 64), 10**9 * 64 * 4
    assert table_bytes == 256e9
    assert exchange.total_bytes == pytest.approx(52e6, rel=1e-3)
    assert dense_over_sparse(exchange, 10**9, 8) == pytest.approx(8615, abs=1)


EXCHANGE = {"rows": 100, "width": 64}
REFUSED = [
    *rows(
        lambda wrong: RowExchange(**{"rows": 1, "width": 1, **wrong}),
        [
            ({"rows": -1}, "rows must be at least 0"),
            ({"width": 1.5}, "width must be a whole number"),
            ({"id_bytes": -1}, "id_bytes must be at least 0"),
        ],
    ),
    (lambda: dense_over_sparse(RowExchange(100, 16), 99, 2), "table_rows must be at least 100"),
    (lambda: dense_over_sparse(RowExchange(0, 16), 99, 2), "rows must be at least 1"),
]
PROBES = by_name(
    Probe(
        RowExchange,
        EXCHANGE,
        {"rows": 50, "width": 32, "element_bytes": 2, "id_bytes": 4, "header_bytes": 0},
        see=lambda exchange: exchange.total_bytes,
    ),
    Probe(RowExchange(**EXCHANGE).gathered_bytes, {"ranks": 4}, {"ranks": 2}),
    Probe(
        dense_over_sparse,
        {"exchange": RowExchange(**EXCHANGE), "table_rows": 1000, "ranks": 4},
        {"exchange": RowExchange(50, 64), "table_rows": 500, "ranks": 2},
    ),
)
