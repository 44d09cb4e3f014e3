"""What all tests share: a clock to move, the PostgreSQL plugin, and the settings of Hypothesis."""

import hypothesis
import pytest

from outrider.testing import FakeClock

pytest_plugins = ["postgres_server"]

hypothesis.settings.register_profile("outrider", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("outrider")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()
