"""Every REFUSED table of the test files of theory."""

import pytest
from refused import accepted, rows
from test_every_parameter import modules

ROOMS = sorted({module.source.parent.name for module in modules()})


@pytest.mark.parametrize("room", ROOMS)
def test_what_is_refused_is_refused_in_its_own_words(room):
    tables = {
        module.test_file.name: module.table("REFUSED")
        for module in modules()
        if module.source.parent.name == room
    }
    wrong = {name: said for name, table in tables.items() if (said := accepted(table))}
    assert not wrong, "\n".join(f"{name}: {each}" for name, said in wrong.items() for each in said)


def test_what_is_accepted_or_refused_in_other_words_is_found():
    found = accepted([*rows(int, [("x", "invalid literal"), ("1", "y"), ("z", "y")]), (dict, "w")])
    assert [each.partition(":")[0] for each in found] == ["row 1, 'y'", "row 2, 'y'", "row 3, 'w'"]
    assert len(accepted(rows(int, ["1", "x"], "invalid literal"))) == 1
