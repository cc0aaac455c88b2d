"""One Chromium for each file of browser tests."""

import os
from collections.abc import Iterator

import pytest
import real_lab
from playwright.sync_api import Browser

from course_lib.lab.chromium import BROWSERS, browser_path


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if browser_path() is None:
        refuse = pytest.fail if os.environ.get("CI") else pytest.skip
        names = ", ".join(BROWSERS)
        refuse(f"no browser: none of {names} is installed (on Debian: apt install chromium)")
    with real_lab.chromium() as found:
        yield found
