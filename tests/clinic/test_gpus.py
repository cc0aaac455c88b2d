"""What is read of GPUs: who uses them, their state, their topology, their Xids."""

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
from course_lib.clinic.recorded import output


def words(signs):
    return " | ".join(sign.sentence for sign in signs)


def test_a_process_and_a_gpu_without_one():
    used, free = pmon(output("nvidia-smi_pmon").text)
    assert used == GpuProcess(0, 3908637, 5, 0, 1209, "ffmpeg")
    assert (free.gpu, free.pid, free.sm_percent) == (1, None, None)
    assert "GPU 1 has no process while others have" in words(pmon_signs([used, free]))
    assert pmon_signs([used]) == [] == pmon_signs([free])


def test_a_shared_gpu_names_the_processes():
    said = words(pmon_signs(pmon(output("nvidia-smi_pmon_shared").text)))
    assert "shared by 5 processes (7372, 12176, 20035, 20141, 29591)" in said
    assert "100 % means that some kernel ran all the time" in said


def test_a_hang_points_at_the_gpu_that_does_nothing():
    (sign,) = pmon_signs(pmon(output("nvidia-smi_pmon_hang").text))
    assert sign.wrong.startswith("GPU 2 (process 41803) does nothing while GPU 0, 1, 3")
    assert "py-spy dump --pid 41803" in sign.do


def test_the_columns_follow_the_heading_and_a_command_may_have_spaces():
    text = "# gpu  pid  type  fb  command\n# Idx  #  C/G  MB  name\n 0  7  C  10  my train.py \n"
    assert pmon(text) == (GpuProcess(0, 7, None, None, 10, "my train.py"),)


def test_heat_a_low_clock_and_waiting():
    samples = dmon(output("nvidia-smi_dmon").text)
    assert [s.power_w for s in samples] == [655, 118, 71, 402] and samples[3].temperature_c == 86
    said = words(dmon_signs(samples))
    assert "GPU 1 is 100 % busy at 118 W and reads no memory" in said
    assert "GPU 3 is at 86 °C" in said and "GPU 3 runs at 900 MHz, another at 1980" in said
    assert "GPU 0" not in said and "GPU 2" not in said


def test_amd_and_hygon():
    (one,) = amd_smi(output("amd-smi_monitor").text)
    assert (one.power_w, one.temperature_c, one.sm_clock_mhz) == (305, 49, 2106)
    assert (one.sm_percent, one.memory_percent) == (97, 1)
    first = hy_smi(output("hy-smi").text)[0]
    assert (first.gpu, first.temperature_c, first.power_w, first.sm_percent) == (0, 31, 39, 0)
    assert (
        amd_smi("GPU  POWER\n  0    N/A     N/A     N/A       N/A    N/A    N/A\n")[0].power_w
        is None
    )


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        (pmon, "    0  1  C  5\n"),
        (pmon, "# gpu pid type sm command\n 0 1 C\n"),
        (dmon, "# gpu pwr\n zero 5\n"),
        (amd_smi, "  0  305 watts\n"),
        (hy_smi, "DCU Temp AvgPwr DCU%\n0 31c\n"),
    ],
)
def test_a_broken_row_is_shown(parser, text):
    with pytest.raises(ValueError, match="is expected: look at that line"):
        parser(text)


def test_the_sections_of_a_query():
    (gpu,) = query(output("nvidia-smi_q_ecc").text)
    assert gpu.gpu == "GPU 00000000:10:1C.0"
    assert gpu.values["/ECC Errors/Volatile/DRAM Correctable"] == "177"
    assert gpu.count("Volatile", " Correctable") == 177
    assert gpu.says("Pending", "Yes") and gpu.says("Remapping Failure Occurred", "No")
    assert gpu.values["/Remapped Rows/Bank Remap Availability Histogram/Max"] == "639 bank(s)"


def test_a_bad_row_and_an_uncorrectable_error():
    assert "replaced at the next reset" in words(
        state_signs(query(output("nvidia-smi_q_ecc").text))
    )
    (sign,) = state_signs(query(output("nvidia-smi_q_sram").text))
    # The 5 since it was made are older than the last reset.
    assert sign.wrong == "GPU ? had 1 uncorrectable memory errors since its reset"
    failed = output("nvidia-smi_q_ecc").text.replace(
        "Occurred        : No", "Occurred        : Yes"
    )
    assert "it is for RMA" in words(state_signs(query(failed)))


def test_what_holds_a_clock_down():
    (hot,) = state_signs(query(output("nvidia-smi_q_hot").text))
    assert "GPU 00000000:53:00.0 lowers its clock (HW Thermal Slowdown)" in hot.wrong
    (cap,) = state_signs(query(output("nvidia-smi_q_performance").text))
    assert "(SW Power Cap)" in cap.wrong and "usual at full load" in cap.do
    calm = output("nvidia-smi_q_performance").text.replace(": Active", ": Not Active")
    assert state_signs(query(calm)) == []


def test_two_gpus_are_two_states():
    text = output("nvidia-smi_q_hot").text
    first, second = query(text + text.replace("53:00", "64:00"))
    assert first.values == second.values and second.gpu.endswith("64:00.0")


def test_inactive_nvlinks():
    links = nvlink(output("nvidia-smi_nvlink").text)
    assert [link.gb_per_s for link in links] == [25.781, 25.781, 25.781, None, 25.781, None]
    (sign,) = nvlink_signs(links)
    assert sign.wrong == "GPU 3 has 2 of 6 NVLinks inactive or slow (3, 5)"
    assert nvlink_signs(links[:3]) == []


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        (query, "GPU 0\n    ECC Errors\n        DRAM=5\n"),
        (nvlink, "GPU 0: x\n   Link 0: fast\n"),
    ],
)
def test_a_broken_line_is_shown(parser, text):
    with pytest.raises(ValueError, match="is expected: look at that line"):
        parser(text)


NEAR, FAR = (output(name).text for name in ("nvidia-smi_topo", "nvidia-smi_topo_far"))


def test_near_ports_and_nvlink_are_no_sign():
    found = topology(NEAR)
    assert found.gpus == ("GPU0", "GPU1", "GPU2", "GPU3") and len(found.devices) == 8
    assert found.ways["GPU0", "GPU3"] == "NV6" == found.ways["GPU3", "GPU0"]
    assert found.nearest_port("GPU2") == ("NIC2", "PIX")
    assert topology_signs(found) == []


def test_far_ports_and_no_nvlink():
    said = [sign.wrong for sign in topology_signs(topology(FAR))]
    assert said[0] == "GPU0 reaches its nearest port NIC0 over two bridges of one NUMA node (NODE)"
    assert said[-1].startswith("there is no NVLink, and some pairs") and len(said) == 5


def test_one_pair_without_nvlink_is_named():
    broken = NEAR.replace("GPU0     X      NV6", "GPU0     X      SYS", 1)
    (sign,) = topology_signs(topology(broken))
    assert sign.wrong == "GPU0 and GPU1 have no NVLink (SYS), other pairs have"


def test_a_machine_without_ports_or_with_one_gpu():
    found = topology("\tGPU0\tCPU Affinity\nGPU0\t X \t0-11\n")
    assert found.nearest_port("GPU0") is None and topology_signs(found) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "a heading with GPU0"),
        (NEAR.replace("GPU1    NV6", "GPU1    near"), "of X, NV#, PIX"),
        (NEAR[: NEAR.index("NIC3    SYS     SYS")], "a row for NIC3"),
    ],
)
def test_a_broken_matrix_is_refused(text, words):
    with pytest.raises(ValueError, match=words):
        topology(text)


def test_the_fields_of_a_line():
    stopped, fault, contained = xids(output("dmesg_xid").text)
    assert (stopped.number, stopped.pid, stopped.name) == (43, 1045242, "pt_main_thread")
    assert fault.pci == "0000:00:07" and "MMU Fault" in fault.words
    assert (contained.number, contained.pid, contained.name) == (94, None, "")
    (gone,) = xids(output("dmesg_xid_79").text)
    assert (gone.number, gone.pid) == (79, None) and gone.words.startswith("GPU has fallen")


def test_the_machines_faults_come_first_and_programs_are_blamed_for_theirs():
    first, *others = xid_signs(xids(output("dmesg_xid").text))
    assert "Xid 94" in first.wrong and first.unsaid == ""
    assert all("that the GPU is to blame" in sign.unsaid for sign in others)


def test_what_only_cleans_up_points_at_the_cause():
    signs = xid_signs(xids(output("dmesg_xid_45").text))
    assert len(signs) == 3 and signs[0].do == "look at Xid 145 first, which caused it"


def test_one_sign_for_each_gpu_and_number():
    lines = output("dmesg_xid_63").text
    assert len(xid_signs(xids(lines * 5))) == 1


def test_the_important_ones_are_in_the_table_and_others_are_no_error():
    assert {13, 31, 43, 45, 48, 63, 64, 74, 79, 94, 95, 119} <= set(MEANINGS)
    (sign,) = xid_signs(xids("NVRM: Xid (PCI:0019:01:00): 149, NETIR Fatal"))
    assert "not in this course's table" in sign.wrong and "catalog" in sign.do


def test_other_lines_are_passed_over_and_a_broken_one_is_shown():
    assert xids("usb 1-1: new device\nNVRM: GPU at PCI:0000:00:05: GPU-efb") == ()
    with pytest.raises(ValueError, match="is expected: look at that line"):
        xids("NVRM: Xid (PCI:")
