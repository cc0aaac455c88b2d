"""The state of GPUs: errors of memory, low clocks, NVLinks, DCGM's tests."""

import pytest

from course_lib.clinic.gpus import (
    dcgm,
    dcgm_signs,
    nvlink,
    nvlink_signs,
    query,
    state_signs,
)
from course_lib.clinic.recorded import output


def words(signs):
    return " | ".join(sign.sentence for sign in signs)


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


def test_dcgm_joins_a_cell_that_goes_on_below():
    tests = dcgm(output("dcgmi_diag").text)
    assert [test.result for test in tests] == ["Pass", "Fail", "Warning"]
    assert "13.3 seconds started" in tests[2].words and tests[2].words.endswith("components.")
    assert len(dcgm_signs(tests)) == 2
    passed = dcgm(output("dcgmi_diag_pass").text)
    assert [test.test for test in passed] == ["Denylist", "NVML Library"]
    assert dcgm_signs(passed) == []


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        (query, "GPU 0\n    ECC Errors\n        DRAM=5\n"),
        (nvlink, "GPU 0: x\n   Link 0: fast\n"),
        (dcgm, "| a | b | c |\n"),
    ],
)
def test_a_broken_line_is_shown(parser, text):
    with pytest.raises(ValueError, match="is expected: look at that line"):
        parser(text)
