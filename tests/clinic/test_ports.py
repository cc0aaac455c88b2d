"""Ports of RDMA: what five commands say of them."""

import pytest

from course_lib.clinic.ports import (
    Port,
    PortCounters,
    counter_signs,
    counters,
    device_signs,
    ibstat,
    ibstatus,
    ibv_devices,
    ibv_devinfo,
    port_signs,
    rate_signs,
    rates,
    rdma_link,
)
from course_lib.clinic.recorded import output


def words(signs):
    return " | ".join(sign.sentence for sign in signs)


def test_ibstat():
    assert ibstat(output("ibstat").text) == (
        Port("mlx5_0", 1, "Active", "LinkUp", 200, link_layer="Ethernet"),
    )
    assert [port.gbit_per_s for port in ibstat(output("ibstat_slow").text)] == [200] * 3 + [50]


def test_one_slow_port_among_its_neighbours():
    (sign,) = port_signs(ibstat(output("ibstat_slow").text))
    assert sign.wrong.startswith("mlx5_3 port 1 runs at 50 Gb/s, its neighbours at 200: ")
    assert "4 times as slow for everybody" in sign.wrong and "ibstatus" in sign.do
    assert port_signs(ibstat(output("ibstat").text)) == []


def test_ibstatus_tells_the_lanes():
    ports = ibstatus(output("ibstatus_slow").text)
    assert [(port.gbit_per_s, port.lanes) for port in ports] == [(200, 4)] * 3 + [(50, 1)]
    assert ports[0].state == "Active" and ports[0].physical == "LinkUp"
    assert "mlx5_3 port 1 uses 1 of 4 lanes" in words(port_signs(ports))
    assert "mlx5_bond_0 port 1 uses 1 of 4" in words(
        port_signs(ibstatus(output("ibstatus_one_lane").text))
    )


def test_the_same_port_by_ibstat_and_by_ibstatus():
    for one, other in zip(
        ibstat(output("ibstat_slow").text), ibstatus(output("ibstatus_slow").text), strict=True
    ):
        assert (one.name, one.state, one.gbit_per_s) == (other.name, other.state, other.gbit_per_s)


def test_ports_that_are_down_say_what_is_missing():
    assert "no subnet manager" in words(port_signs(ibstat(output("ibstat_down").text)))
    assert "switched off" in words(port_signs(ibstatus(output("ibstatus").text)))
    up, down = rdma_link(output("rdma_link_polling").text)
    assert up.state == "Active" and (down.state, down.physical) == ("Down", "Polling")
    assert "finds nobody at the other end" in words(port_signs([up, down]))


def test_ibv_devinfo_tells_the_size_of_packets():
    first, second = ibv_devinfo(output("ibv_devinfo").text)
    assert (first.state, first.mtu_bytes, second.mtu_bytes) == ("Down", 4096, 1024)
    (sign,) = port_signs(ibv_devinfo(output("ibv_devinfo_small_mtu").text))
    assert "packets of 1024 bytes and could send 4096" in sign.wrong


def test_a_port_of_another_kind_is_no_neighbour():
    slow = Port("eth", 1, "Active", gbit_per_s=25, link_layer="Ethernet")
    fast = Port("ib", 1, "Active", gbit_per_s=200, link_layer="InfiniBand")
    assert port_signs([slow, fast]) == []


def test_devices():
    assert ibv_devices(output("ibv_devices").text) == {"mlx5_bond_0": "e8ebd30300381588"}
    assert "mlx5_2 has the GUID 0" in words(
        device_signs(ibv_devices(output("ibv_devices_zero").text))
    )
    assert "no RDMA device" in device_signs(ibv_devices(output("ibv_devices_none").text))[0].wrong


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        (ibstat, output("ibstat").text.replace("Rate: 200", "Rate: fast")),
        (ibstat, output("ibstat").text.replace("State: Active", "")),
        (ibstat, "command not found"),
        (ibstatus, output("ibstatus").text.replace("10 Gb/sec (4X SDR)", "10")),
        (ibv_devinfo, output("ibv_devinfo").text.replace("link_layer", "layer")),
        (ibv_devices, "mlx5_0 none"),
        (rdma_link, "link mlx5_0 is up"),
    ],
)
def test_a_broken_line_is_shown(parser, text):
    with pytest.raises(ValueError, match="is expected: look at that line"):
        parser(text)


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
    ],
)
def test_what_makes_no_sense_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
