"""Who uses which GPU: rows of real machines, and the signs in them."""

import pytest

from course_lib.clinic.gpus import (
    GpuProcess,
    amd_smi,
    dmon,
    dmon_signs,
    hy_smi,
    pmon,
    pmon_signs,
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
