"""The tables for the notebook: nothing of the commands is lost, and no cell breaks a row."""

from xml.etree import ElementTree

import pytest

from course_lib.chapters.ch16_cluster_clinic import commands
from course_lib.chapters.ch16_cluster_clinic.commands import COMMANDS, FLAGS

EVERYTHING = [one.nvidia for one in COMMANDS]


@pytest.mark.parametrize(
    "table", [commands.by_vendor(*EVERYTHING), commands.how_to_read(*EVERYTHING), commands.flags()]
)
def test_every_row_has_as_many_cells_as_the_heading(table):
    root = ElementTree.fromstring(table._repr_html_())
    cells = [len(row) for row in root.iter("tr")]
    assert set(cells) == {len(table.heading)} and len(cells) == len(table.rows) + 1
    assert len(repr(table).splitlines()) == len(table.rows)


def test_code_links_and_what_html_would_swallow():
    table = commands.how_to_read("dmesg", "nvlink")
    page = table._repr_html_()
    assert "<code>dmesg -T | grep -i xid</code>" in page and "&lt;inactive&gt;" in page
    assert '<a href="https://docs.nvidia.com/' in page


def test_all_commands_and_flags_are_there():
    assert len(commands.by_vendor(*EVERYTHING).rows) == len(COMMANDS)
    assert len(commands.flags().rows) == len(FLAGS)
    assert [row[0] for row in commands.by_vendor("ibstatus").rows] == ["With how many lanes?"]


def test_an_unknown_word_is_refused():
    with pytest.raises(ValueError, match="no command has one of the words"):
        commands.how_to_read("nvidia-smart")
