"""Tests of panels look at pictures as those of figures do."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "figures"))
