"""Records what a test and its processes ask of stores, and checks it in the end: a pytest plugin with a fixture.

A test that reads its store to the end, by `check_store`, also learns what was lost or made up.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from outrider.store.history import Outcome
from outrider.testing.history import CLAIMS, Call, HistoryViolated, calls_of, read_lines, violations_of

NEEDS_ALL = frozenset({"lost", "invented"})
"""Rules that compare what there is with all that was ever asked, of which a test may record a part only."""


@pytest.fixture
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with history_in(tmp_path_factory.mktemp("history")) as folder:
        yield folder


@contextmanager
def history_in(folder: Path) -> Iterator[Path]:
    """For a part of a test that has a store of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OUTRIDER_HISTORY", str(folder))
        yield folder
    violations = [each for each in violations_of(calls_of(read_lines(folder))) if each.rule not in NEEDS_ALL]
    if violations:
        raise HistoryViolated(violations)


def unrecorded_in(folder: Path) -> set[str]:
    """Rollouts that were attempted, though no claim of them is recorded: then the check of a test would be empty."""
    return unrecorded(calls_of(read_lines(folder)))


def unrecorded(calls: Iterable[Call]) -> set[str]:
    """Rollouts that were attempted, as reads show, and that no recorded claim has granted, or may have granted."""
    attempted, granted = set(), set()
    for call in calls:
        if call.method in CLAIMS and call.outcome is Outcome.UNKNOWN:
            return set()
        if call.outcome is Outcome.OK:
            answer = call.answer["items"] if isinstance(call.answer, dict) and "items" in call.answer else call.answer
            shown = [facts for facts in (answer if isinstance(answer, list) else [answer]) if isinstance(facts, dict)]
            if call.method in CLAIMS:
                granted |= {facts["rollout_id"] for facts in shown}
            else:
                attempted |= {facts["rollout_id"] for facts in shown if facts.get("n_attempts")}
    return attempted - granted
