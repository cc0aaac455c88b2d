"""One Chromium for each file of browser tests."""

import os

import pytest
import real_lab

from course_lib.lab.chromium import BROWSERS, browser_path


@pytest.fixture(scope="module")
def browser():
    if browser_path() is None:
        refuse = pytest.fail if os.environ.get("CI") else pytest.skip
        names = ", ".join(BROWSERS)
        refuse(f"no browser: none of {names} is installed (on Debian: apt install chromium)")
    with real_lab.chromium() as found:
        yield found
