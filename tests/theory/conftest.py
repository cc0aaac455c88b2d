"""How many examples hypothesis tries, where tests find each other, and which torch some need.

100 examples for each property, or 10,000 with HYPOTHESIS_PROFILE=slow.
"""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("fast", deadline=None)
settings.register_profile(
    "slow", max_examples=10_000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))

# test_every_parameter.py imports the test files of all rooms, wherever pytest was started.
sys.path += [str(room) for room in sorted(Path(__file__).parent.iterdir()) if room.is_dir()]

INTERNALS_SINCE = (2, 13)  # the torch whose schedules, trackers and saved tensors were compared


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip comparisons with torch's internals under an older torch: they differ by release."""
    if not item.get_closest_marker("torch_internals"):
        return
    import torch  # here, so that tests of pure arithmetic run without loading it

    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < INTERNALS_SINCE:
        pytest.skip(f"compares with the internals of torch 2.13, this is {torch.__version__}")
