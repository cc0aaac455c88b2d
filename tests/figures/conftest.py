"""All listed figures, drawn once."""

import checks
import pytest
from listed import FIGURES


@pytest.fixture(scope="session")
def drawn() -> dict[str, checks.Drawn]:
    """By name: the drawing and its marks."""
    return {name: checks.draw(make()) for name, make in FIGURES.items()}
