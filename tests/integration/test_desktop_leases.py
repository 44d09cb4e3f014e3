"""Hundreds of leases of real desktops that are killed and frozen, by holders without manners; nothing comes of it."""

import importlib
import logging
import sys
from collections import Counter
from pathlib import Path

import pytest

from leaks import no_leaks
from outrider.pool.providers.desktop import DesktopMachine, DesktopProvider
from soaking import note_soak, time_limit, until

BENCH = Path(__file__).parents[2] / "bench"
N_LEASES = 100
SOAK_SECONDS = 150.0


@pytest.fixture
def abuse(monkeypatch, caplog):
    """As the benchmark does it, which runs it longer."""
    monkeypatch.syspath_prepend(BENCH)
    caplog.set_level(logging.CRITICAL, "outrider.pool")
    yield importlib.import_module("pooling.abuse").Abuse
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(f"{BENCH}/"):
            del sys.modules[name]


@pytest.fixture
def provider() -> DesktopProvider:
    return DesktopProvider(width=320, height=320)


@pytest.mark.soak
@pytest.mark.timeout(time_limit(SOAK_SECONDS))
async def test_many_leases_with_faults_leave_nothing_and_nobody_sees_what_another_left(abuse, provider, store):
    faults: Counter[str] = Counter()
    for seed in until(SOAK_SECONDS):
        async with no_leaks():
            found = await abuse(provider, n_machines=4, n_leases=N_LEASES, seed=seed).run(store)
        print(f"seed {seed}: {found}")
        assert found.seen == []
        assert (found.n_dirty, found.n_double, found.n_leaks) == (0, 0, 0)
        assert found.n_leases >= N_LEASES
        faults += found.faults
        note_soak("desktops abused", leases=found.n_leases, faults=found.faults.total())
    assert len(faults) >= 8, faults


async def test_a_desktop_that_is_not_reset_is_seen_by_its_next_holder(abuse, provider, monkeypatch):
    async def nothing(*_: object) -> bool:
        return False

    monkeypatch.setattr(DesktopMachine, "reset", nothing)
    monkeypatch.setattr(DesktopMachine, "has", nothing)
    found = await abuse(provider, n_machines=1, n_leases=12, seed=1).run()
    assert found.n_dirty > 0
    traces = ("/home/user/planted-", "tail -f", "PLANTED(STRING) =")  # what is left depends on who was cut off when
    assert any(trace in seen for seen in found.seen for trace in traces), found.seen
