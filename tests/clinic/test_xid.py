"""Xids: lines of real machines, and whose fault they are."""

import pytest

from course_lib.clinic.gpus import MEANINGS, xid_signs, xids
from course_lib.clinic.recorded import output


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
