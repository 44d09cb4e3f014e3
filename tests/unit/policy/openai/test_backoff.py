"""How long to wait before the next try."""

import random
from email.utils import formatdate

import pytest

from outrider.policy.openai.backoff import asked_pause, pause

NOW = 1_750_000_000.0


def test_waits_double_up_to_a_cap_and_are_spread():
    rng = random.Random(0)
    for n_retries, longest in enumerate([0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]):
        waits = [pause(n_retries, None, rng) for _ in range(100)]
        assert longest / 2 <= min(waits) < max(waits) <= longest
    assert pause(10_000, None, rng) <= 30.0


def test_what_the_server_asks_for_is_the_least():
    rng = random.Random(0)
    waits = [pause(0, 20.0, rng) for _ in range(100)]
    assert 20.0 <= min(waits) < max(waits) <= 22.0
    assert pause(5, 0.0, rng) == 0.0


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.25"}, 0.25),
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "1500", "retry-after": "2"}, 1.5),
        ({"retry-after": formatdate(NOW + 90, usegmt=True)}, 90.0),
        ({"retry-after": formatdate(NOW - 90, usegmt=True)}, 0.0),
        ({}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after-ms": "x", "retry-after": "4"}, 4.0),
    ],
)
def test_the_asked_pause_is_read_as_seconds_milliseconds_or_a_date(headers, seconds):
    assert asked_pause(headers, NOW) == seconds
