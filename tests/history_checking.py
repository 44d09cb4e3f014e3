"""Records what a test and its processes ask of stores, and checks it in the end: a pytest plugin with a fixture.

A test that reads its store to the end, by `check_store`, also learns what was lost or made up.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider.testing.history import HistoryViolated, calls_of, read_lines, violations_of

NEEDS_ALL = frozenset({"lost", "invented"})
"""Rules that compare what there is with all that was ever asked, of which a test may record a part only."""


@pytest.fixture
def history(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("history")
    monkeypatch.setenv("OUTRIDER_HISTORY", str(folder))
    yield folder
    violations = [each for each in violations_of(calls_of(read_lines(folder))) if each.rule not in NEEDS_ALL]
    if violations:
        raise HistoryViolated(violations)
