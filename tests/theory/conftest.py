"""How many examples hypothesis tries, and which torch the comparisons with its internals need.

100 examples for each property, or 10,000 with HYPOTHESIS_PROFILE=slow.
"""

import os

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile("fast", deadline=None)
settings.register_profile(
    "slow", max_examples=10_000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))

INTERNALS_SINCE = (2, 13)  # the torch whose schedules, trackers and saved tensors were compared


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip comparisons with torch's internals under an older torch: they differ by release."""
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if item.get_closest_marker("torch_internals") and version < INTERNALS_SINCE:
        pytest.skip(f"compares with the internals of torch 2.13, this is {torch.__version__}")
