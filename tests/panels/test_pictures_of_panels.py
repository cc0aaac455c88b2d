"""The figure of every panel at both ends of each of its controls."""

import re
from collections.abc import Callable, Iterator

import checks
import pytest
from approved import expect_approved
from test_panels import PANELS, ends, roomy

from course_lib.panels import Panel

# "1 GPUs" and "2,048.0 choices": what a format leaves behind at the end of a slider.
_CARELESS = re.compile(r"(?<![\d.,])1 [a-zA-Z-]+s\b|\d\.0 [a-z]{3,}s\b|10\^\d|\d[eE][+-]\d")
_FINE = re.compile(r"\b1 (times|ms)\b")


@pytest.mark.parametrize("build", PANELS)
def test_nothing_is_wrong_at_either_end_of_a_control(build: Callable[..., Panel]) -> None:
    found, everything = {}, []
    for where, panel in _both_ends(build.__name__):
        everything += [panel.page, panel.text]
        faults = checks.faults(checks.draw(panel._sheet))
        words = _FINE.sub("", panel.text)  # "1 times" is a factor
        faults += [f"careless words: {one[0]}" for one in _CARELESS.finditer(words)]
        if faults:
            found[where] = faults
    assert found == {}
    expect_approved(f"panel {build.__name__}", *everything)


def _both_ends(name: str) -> Iterator[tuple[str, Panel]]:
    """The panel with each of its controls at both ends, as far as the values fit together."""
    for control in roomy(name)._controls:
        panel = roomy(name, control)
        for value in ends(panel._controls[control]):
            panel._controls[control].value = value
            if panel.problem is None:
                yield f"{control} {value}", panel
