"""How many examples hypothesis tries: 100 for each property, or 10,000 in the slow mode.

HYPOTHESIS_PROFILE=slow pytest tests/theory/test_properties.py
"""

import os

from hypothesis import HealthCheck, settings

settings.register_profile("fast", deadline=None)
settings.register_profile(
    "slow", max_examples=10_000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))
