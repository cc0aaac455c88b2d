"""Counters of a port: words of 4 bytes, two readings, errors between them."""

import pytest

from course_lib.clinic.ports import (
    PortCounters,
    counter_signs,
    counters,
    mlnx_perf,
    rate_signs,
    rates,
)
from course_lib.clinic.recorded import output

BEFORE, AFTER = (counters(output(name).text) for name in ("counters", "counters_later"))


def test_words_of_4_bytes_become_bytes_per_second():
    assert (BEFORE.device, BEFORE.port) == ("mlx5_1", 1)
    sent = (205158747464492 - 205143497464492) * 4 / 10
    now = rates(BEFORE, AFTER, 10)
    assert now.sent_bytes_per_s == pytest.approx(sent) == pytest.approx(6.1e9)
    assert now.received_bytes_per_s == pytest.approx(6e9)
    assert dict(now.new_errors) == {"symbol_error": 14}


def test_a_full_link_and_a_bad_cable():
    full = rate_signs(rates(BEFORE, AFTER, 10), 6.25e9)
    assert [sign.wrong for sign in full] == [
        "symbol_error grew by 14",
        "the port is full: 6.1 of 6.25 GB/s",
    ]
    assert rate_signs(rates(BEFORE, BEFORE, 10), 25e9) == []


def test_counters_at_their_end_tell_nothing_more():
    said = [sign.wrong for sign in counter_signs(BEFORE)]
    assert len(said) == 3 and "link_downed of mlx5_1 port 1 stands at its end, 255" in said


def test_a_device_without_counters():
    none = counters(output("counters_no_pma").text)
    assert dict(none.values) == {}
    assert "has no such counters" in counter_signs(none)[0].wrong


def test_mlnx_perf():
    found = mlnx_perf(output("mlnx_perf").text)
    assert found["rx_vport_rdma_unicast_bytes"] == 6_184_235_008 and len(found) == 2


PATH = "/sys/class/infiniband/a/ports/1/counters/port_xmit_data:5"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: counters("port_xmit_data 5"), "is expected: look at that line"),
        (lambda: counters(PATH + "x"), "is expected: look at that line"),
        (lambda: counters(""), "counters of 0 ports"),
        (lambda: counters(PATH + "\n" + PATH.replace("/1/", "/2/")), "counters of 2 ports"),
        (lambda: rates(BEFORE, PortCounters("mlx5_2", 1, {}), 1), "are of two ports"),
        (lambda: rates(AFTER, BEFORE, 1), "port_xmit_data went back by 15250000000"),
        (lambda: rates(BEFORE, AFTER, 0), "seconds must be above 0"),
        (lambda: rates(*[PortCounters("a", 1, {})] * 2, 1), "port_xmit_data is missing"),
        (lambda: mlnx_perf("rx_bytes: many Bps"), "is expected: look at that line"),
    ],
)
def test_what_makes_no_sense_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
