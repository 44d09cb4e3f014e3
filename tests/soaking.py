"""How long `make soak` lets tests run, and what it and `make strangers` note: `bench/suites.py` sums it up."""

import itertools
import json
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

NOTES = "OUTRIDER_SOAK_NOTES"
STRANGERS_NOTES = "OUTRIDER_STRANGERS_NOTES"
MINUTES = "OUTRIDER_SOAK_MINUTES"
DEFAULT_MINUTES = 30.0
LAST_ROUND_SECONDS = 600.0


def is_soak() -> bool:
    return NOTES in os.environ


def share() -> float:
    """How long the soak is, relative to one of default length."""
    return float(os.environ.get(MINUTES) or DEFAULT_MINUTES) / DEFAULT_MINUTES


def until(seconds: float) -> Iterator[int]:
    """0, 1, 2… until these seconds of a soak of default length are over; at least 0."""
    deadline = time.monotonic() + seconds * share()
    for number in itertools.count():
        yield number
        if time.monotonic() > deadline:
            return


def time_limit(seconds: float) -> float:
    """For a test that goes on `until(seconds)`: its last round may end long after that."""
    return seconds * share() + LAST_ROUND_SECONDS


def examples(n: int) -> int:
    """How many examples a property is tried on: ten times as many in a soak of default length."""
    return max(n, round(10 * n * share())) if is_soak() else n


def seeds(n: int, n_in_soak: int) -> list[Any]:
    """Parameters for `n` runs, and for more that only a soak has: `n_in_soak` in one of default length."""
    more = range(n, max(n, round(n_in_soak * share())))
    return [*range(n), *(pytest.param(seed, marks=pytest.mark.soak) for seed in more)]


def note_soak(what: str, **counts: int) -> None:
    """Print the counts of one test, and keep them where a soak run asks for them."""
    _note(NOTES, {"what": what, **counts})


def note_strangers(what: str, versions: Mapping[str, str]) -> None:
    """Print the versions of the programs of others that a test ran with, and keep them where a run asks for them."""
    _note(STRANGERS_NOTES, {"what": what, "versions": versions})


def _note(variable: str, said: Mapping[str, Any]) -> None:
    line = json.dumps(said)
    print(line)
    if file := os.environ.get(variable):
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line.encode() + b"\n")
        finally:
            os.close(descriptor)
