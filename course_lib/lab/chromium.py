"""Finds Chromium or Chrome, which prints pages as PDF."""

import os
import shutil

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_ON_A_MAC = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
INSTALL_CHROMIUM = (
    "install Chromium or Google Chrome (on Debian `apt install chromium`), or `pip install "
    "playwright && playwright install chromium`"
)


def browser_path() -> str | None:
    """The path of Chromium or Chrome on this machine, or None."""
    on_path = next(filter(None, map(shutil.which, BROWSERS)), None)
    return on_path or next(filter(os.path.exists, _ON_A_MAC), None)
