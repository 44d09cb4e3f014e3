"""Every call on a store that a chaos test or its processes make is recorded, and checked in the end."""

import pytest


@pytest.fixture(autouse=True)
def _checked(history: object) -> None:
    """See `history_checking`."""
