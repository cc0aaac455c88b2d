"""How many examples hypothesis tries, and where tests find each other.

100 examples for each property, or 10,000 with HYPOTHESIS_PROFILE=slow.
"""

import os
import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

settings.register_profile("fast", deadline=None)
settings.register_profile(
    "slow", max_examples=10_000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))

# test_every_parameter.py imports the test files of all rooms, wherever pytest was started.
sys.path += [str(room) for room in Path(__file__).parents[1].glob("chapters/*")]
sys.path += [str(room) for room in sorted(Path(__file__).parent.iterdir()) if room.is_dir()]
