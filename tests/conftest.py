"""What all tests share: a clock to move, the PostgreSQL plugin, the settings of Hypothesis, and no silent skips."""

import gc
import os

import hypothesis
import pytest

from outrider.testing import FakeClock
from soaking import examples, is_soak

pytest_plugins = [
    *("docker_engine", "hypervisor_stand_ins.stage", "aws_stand_in", "postgres_server", "history_checking"),
    *("no_skips", "pytester"),
]

hypothesis.settings.register_profile(
    "outrider",
    deadline=None,
    derandomize=not is_soak(),
    print_blob=True,
    max_examples=examples(50),
    suppress_health_check=[hypothesis.HealthCheck.too_slow] if is_soak() else [],
)
hypothesis.settings.load_profile("outrider")

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy would start others whenever a process loads it
os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's workers would starve beside the other tests
os.environ.setdefault("RAY_prestart_worker_first_driver", "0")  # those that nobody asks for


def pytest_collection() -> None:
    """Collecting makes much and leaves little garbage."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Garbage is not looked for among thousands of collected tests again and again."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()
