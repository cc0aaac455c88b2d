"""What is read of GPUs and ports, and the signs of trouble in it."""

from dataclasses import replace

import pytest

from course_lib.clinic.gpus import (
    MEANINGS,
    GpuProcess,
    amd_smi,
    dmon,
    dmon_signs,
    hy_smi,
    nvlink,
    nvlink_signs,
    pmon,
    pmon_signs,
    query,
    state_signs,
    topology,
    topology_signs,
    xid_signs,
    xids,
)
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

ECC, PERFORMANCE = output("nvidia-smi_q_ecc").text, output("nvidia-smi_q_performance").text
NEAR, FAR = output("nvidia-smi_topo").text, output("nvidia-smi_topo_far").text
IBSTAT = output("ibstat").text

# A parser, what makes signs of what it reads, a recorded output or a text; how many signs there
# are, and words in them.
CASES = [
    (pmon, pmon_signs, "nvidia-smi_pmon", 1, ["GPU 1 has no process while others have"]),
    (
        pmon, pmon_signs, "nvidia-smi_pmon_shared", 1,
        ["shared by 5 processes (7372, 12176, 20035, 20141, 29591)", "some kernel ran"],
    ),
    (
        pmon, pmon_signs, "nvidia-smi_pmon_hang", 1,
        ["GPU 2 (process 41803) does nothing while GPU 0, 1, 3", "py-spy dump --pid 41803"],
    ),
    (
        dmon, dmon_signs, "nvidia-smi_dmon", 3,
        [
            "GPU 1 is 100 % busy at 118 W and reads no memory",
            "GPU 3 is at 86 °C",
            "GPU 3 runs at 900 MHz, another at 1980",
        ],
    ),
    (query, state_signs, "nvidia-smi_q_ecc", 1, ["replaced at the next reset"]),
    # The 5 since it was made are older than the last reset.
    (
        query, state_signs, "nvidia-smi_q_sram", 1,
        ["GPU ? had 1 uncorrectable memory errors since its reset"],
    ),
    (
        query, state_signs, ECC.replace("Occurred        : No", "Occurred        : Yes"), 1,
        ["it is for RMA"],
    ),
    (query, state_signs, "nvidia-smi_q_hot", 1, ["lowers its clock (HW Thermal Slowdown)"]),
    (
        query, state_signs, "nvidia-smi_q_performance", 1,
        ["(SW Power Cap)", "sual at full load"],
    ),
    (query, state_signs, PERFORMANCE.replace(": Active", ": Not Active"), 0, []),
    (
        nvlink, nvlink_signs, "nvidia-smi_nvlink", 1,
        ["GPU 3 has 2 of 6 NVLinks inactive or slow (3, 5)"],
    ),
    (topology, topology_signs, NEAR, 0, []),
    (topology, topology_signs, NEAR.replace("NV6", "NV18"), 0, []),
    (
        topology, topology_signs, FAR, 5,
        [
            "GPU0 reaches its nearest port NIC0 over two bridges of one NUMA node (NODE)",
            "There is no NVLink, and some pairs",
        ],
    ),
    (
        topology, topology_signs, NEAR.replace("GPU0     X      NV6", "GPU0     X      SYS", 1), 1,
        ["GPU0 and GPU1 have no NVLink (SYS), other pairs have"],
    ),
    (topology, topology_signs, "\tGPU0\tCPU Affinity\nGPU0\t X \t0-11\n", 0, []),
    (xids, xid_signs, "dmesg_xid", 3, ["Xid 94", "that the GPU is to blame"]),
    (xids, xid_signs, "dmesg_xid_45", 3, ["Look at Xid 145 first, which caused it"]),
    (xids, xid_signs, output("dmesg_xid_63").text * 5, 1, []),
    (
        xids, xid_signs, "NVRM: Xid (PCI:0019:01:00): 149, NETIR Fatal", 1,
        ["not in this course's table", "catalog"],
    ),
    (xids, xid_signs, "usb 1-1: new device\nNVRM: GPU at PCI:0000:00:05: GPU-efb", 0, []),
    (ibstat, port_signs, "ibstat", 0, []),
    (
        ibstat, port_signs, "ibstat_slow", 1,
        ["mlx5_3 port 1 runs at 50 Gb/s, its neighbours at 200: ", "4 times as slow for everybody"],
    ),
    (ibstat, port_signs, "ibstat_down", 1, ["no subnet manager"]),
    (ibstatus, port_signs, "ibstatus", 2, ["switched off"]),
    (ibstatus, port_signs, "ibstatus_slow", 2, ["mlx5_3 port 1 uses 1 of 4 lanes"]),
    (ibstatus, port_signs, "ibstatus_one_lane", 1, ["mlx5_bond_0 port 1 uses 1 of 4"]),
    (rdma_link, port_signs, "rdma_link_polling", 1, ["finds nobody at the other end"]),
    (
        ibv_devinfo, port_signs, "ibv_devinfo_small_mtu", 1,
        ["packets of 1024 bytes and could send 4096"],
    ),
    (ibv_devices, device_signs, "ibv_devices_zero", 2, ["mlx5_2 has the GUID 0"]),
    (ibv_devices, device_signs, "ibv_devices_none", 1, ["No RDMA device"]),
    (
        counters, counter_signs, "counters", 3,
        ["link_downed of mlx5_1 port 1 stands at its end, 255"],
    ),
    (counters, counter_signs, "counters_no_pma", 1, ["has no such counters"]),
]  # fmt: skip


@pytest.mark.parametrize(("parser", "signs", "text", "count", "words"), CASES)
def test_signs_of_an_output(parser, signs, text, count, words):
    text = text if any(each in text for each in "\n:") else output(text).text
    found = signs(parser(text))
    said = " | ".join(sign.sentence for sign in found)
    assert len(found) == count, said
    for piece in words:
        assert piece in said


def test_what_is_read_of_gpus():
    used, free = pmon(output("nvidia-smi_pmon").text)
    assert used == GpuProcess(0, 3908637, 5, 0, 1209, "ffmpeg")
    assert (free.gpu, free.pid, free.sm_percent) == (1, None, None)
    assert pmon_signs([used]) == [] == pmon_signs([free])
    # The columns follow the heading, and a command may have spaces.
    text = "# gpu  pid  type  fb  command\n# Idx  #  C/G  MB  name\n 0  7  C  10  my train.py \n"
    assert pmon(text) == (GpuProcess(0, 7, None, None, 10, "my train.py"),)
    samples = dmon(output("nvidia-smi_dmon").text)
    assert [s.power_w for s in samples] == [655, 118, 71, 402] and samples[3].temperature_c == 86
    (one,) = amd_smi(output("amd-smi_monitor").text)
    assert (one.power_w, one.temperature_c, one.sm_clock_mhz) == (305, 49, 2106)
    assert (one.sm_percent, one.memory_percent) == (97, 1)
    (unknown,) = amd_smi("GPU  POWER\n  0    N/A     N/A     N/A       N/A    N/A    N/A\n")
    assert unknown.power_w is None
    first = hy_smi(output("hy-smi").text)[0]
    assert (first.gpu, first.temperature_c, first.power_w, first.sm_percent) == (0, 31, 39, 0)
    links = nvlink(output("nvidia-smi_nvlink").text)
    assert [link.gb_per_s for link in links] == [25.781, 25.781, 25.781, None, 25.781, None]
    found = topology(NEAR)
    assert found.gpus == ("GPU0", "GPU1", "GPU2", "GPU3") and len(found.devices) == 8
    assert found.ways["GPU0", "GPU3"] == "NV6" == found.ways["GPU3", "GPU0"]
    assert found.nearest_port("GPU2") == ("NIC2", "PIX")


def test_the_sections_of_a_query():
    (gpu,) = query(ECC)
    assert gpu.gpu == "GPU 00000000:10:1C.0"
    assert gpu.values["/ECC Errors/Volatile/DRAM Correctable"] == "177"
    assert gpu.count("Volatile", " Correctable") == 177
    assert gpu.says("Pending", "Yes") and gpu.says("Remapping Failure Occurred", "No")
    text = output("nvidia-smi_q_hot").text
    first, second = query(text + text.replace("53:00", "64:00"))
    assert first.values == second.values and second.gpu.endswith("64:00.0")


def test_the_fields_of_an_xid():
    stopped, fault, contained = xids(output("dmesg_xid").text)
    assert (stopped.number, stopped.pid, stopped.name) == (43, 1045242, "pt_main_thread")
    assert fault.pci == "0000:00:07" and "MMU Fault" in fault.words
    assert (contained.number, contained.pid, contained.name) == (94, None, "")
    # The machine's faults come first, and programs are blamed for theirs.
    first, *others = xid_signs([stopped, fault, contained])
    assert "Xid 94" in first.wrong and first.unsaid == ""
    assert all("that the GPU is to blame" in sign.unsaid for sign in others)
    assert {13, 31, 43, 45, 48, 63, 64, 74, 79, 94, 95, 119} <= set(MEANINGS)


def test_what_is_read_of_ports():
    assert ibstat(IBSTAT) == (Port("mlx5_0", 1, "Active", "LinkUp", 200, link_layer="Ethernet"),)
    slow = ibstatus(output("ibstatus_slow").text)
    assert [(port.gbit_per_s, port.lanes) for port in slow] == [(200, 4)] * 3 + [(50, 1)]
    assert [replace(p, lanes=None) for p in slow] == list(ibstat(output("ibstat_slow").text))
    up, down = rdma_link(output("rdma_link_polling").text)
    assert up.state == "Active" and (down.state, down.physical) == ("Down", "Polling")
    first, second = ibv_devinfo(output("ibv_devinfo").text)
    assert (first.state, first.mtu_bytes, second.mtu_bytes) == ("Down", 4096, 1024)
    assert ibv_devices(output("ibv_devices").text) == {"mlx5_bond_0": "e8ebd30300381588"}
    # A port of another kind is no neighbour.
    ethernet = Port("eth", 1, "Active", gbit_per_s=25, link_layer="Ethernet")
    assert port_signs([ethernet, replace(ethernet, gbit_per_s=200, link_layer="InfiniBand")]) == []


BEFORE, AFTER = (counters(output(name).text) for name in ("counters", "counters_later"))
PATH = "/sys/class/infiniband/a/ports/1/counters/port_xmit_data:5"


def test_words_of_4_bytes_become_bytes_per_second():
    assert (BEFORE.device, BEFORE.port) == ("mlx5_1", 1)
    now = rates(BEFORE, AFTER, 10)
    assert now.sent_bytes_per_s == (205158747464492 - 205143497464492) * 4 / 10
    assert now.received_bytes_per_s == pytest.approx(6e9)
    assert dict(now.new_errors) == {"symbol_error": 14}
    full = [sign.wrong for sign in rate_signs(now, 6.25e9)]
    assert full == ["symbol_error grew by 14", "the port is full: 6.1 of 6.25 GB/s"]
    assert rate_signs(rates(BEFORE, BEFORE, 10), 25e9) == []


UNREADABLE = "is expected: look at that line"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: pmon("    0  1  C  5\n"), UNREADABLE),
        (lambda: pmon("# gpu pid type sm command\n 0 1 C\n"), UNREADABLE),
        (lambda: dmon("# gpu pwr\n zero 5\n"), UNREADABLE),
        (lambda: amd_smi("  0  305 watts\n"), UNREADABLE),
        (lambda: hy_smi("DCU Temp AvgPwr DCU%\n0 31c\n"), UNREADABLE),
        (lambda: query("GPU 0\n    ECC Errors\n        DRAM=5\n"), UNREADABLE),
        (lambda: nvlink("GPU 0: x\n   Link 0: fast\n"), UNREADABLE),
        (lambda: xids("NVRM: Xid (PCI:"), UNREADABLE),
        (lambda: topology(""), "a heading with GPU0"),
        (lambda: topology(NEAR.replace("GPU1    NV6", "GPU1    near")), "of X, NV#, PIX"),
        (lambda: topology(NEAR[: NEAR.index("NIC3    SYS     SYS")]), "a row for NIC3"),
        (lambda: ibstat(IBSTAT.replace("Rate: 200", "Rate: fast")), UNREADABLE),
        (lambda: ibstat(IBSTAT.replace("State: Active", "")), UNREADABLE),
        (lambda: ibstat("command not found"), UNREADABLE),
        (
            lambda: ibstatus(output("ibstatus").text.replace("10 Gb/sec (4X SDR)", "10")),
            UNREADABLE,
        ),
        (lambda: ibv_devices("mlx5_0 none"), UNREADABLE),
        (lambda: rdma_link("link mlx5_0 is up"), UNREADABLE),
        (lambda: counters("port_xmit_data 5"), UNREADABLE),
        (lambda: counters(PATH + "x"), UNREADABLE),
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
