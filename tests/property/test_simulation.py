"""Whole systems under schedules that seeds choose; `make soak` tries thousands of them, this some.

A seed that fails is printed with the picks that it takes: `run_seeded(world, Schedule(seed=…, picks=…))` replays it.
"""

import logging
import subprocess
import sys
from pathlib import Path

import pytest

import simulated_worlds
from outrider.store.rows import Current
from outrider.testing.history import HistoryViolated
from outrider.testing.simulation import Program, explore, run_seeded, shrink
from soaking import note_soak

N_SEEDS = 30
LIMIT_SECONDS = simulated_worlds.LIMIT_SECONDS
WORLDS = [simulated_worlds.workers, simulated_worlds.training, simulated_worlds.pool]

REPLAY = """
import sys
import simulated_worlds
from outrider.testing.history import MemoryRecorder
from outrider.testing.simulation import run_seeded

told = []
write = MemoryRecorder.write
def noted(recorder, line):
    write(recorder, line)
    told.append(getattr(line, "method", None) or f"{line.outcome} {line.error}")
MemoryRecorder.write = noted
run_seeded(simulated_worlds.workers, int(sys.argv[1]), limit_seconds=1e5)
print("\\n".join(told))
"""


@pytest.fixture(autouse=True)
def quiet(caplog):
    """Thousands of warnings are what is wanted here, not what is to be kept."""
    caplog.set_level(logging.CRITICAL, "outrider")


def check_seeds(world: Program, seeds: range) -> None:
    for failed in explore(world, seeds, limit_seconds=LIMIT_SECONDS):
        pytest.fail(f"{shrink(world, failed, limit_seconds=LIMIT_SECONDS)}")
    note_soak(f"simulated {world.__name__}", seeds=len(seeds))


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.__name__)
def test_whatever_the_order_nothing_is_lost_or_doubled_and_nothing_hangs(world: Program):
    check_seeds(world, range(N_SEEDS))


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize(("world", "n_seeds"), list(zip(WORLDS, (6000, 2000, 2000), strict=True)))
def test_ten_thousand_orders(world: Program, n_seeds: int):
    check_seeds(world, range(N_SEEDS, N_SEEDS + n_seeds))


def test_a_store_without_a_fence_is_found_out(monkeypatch):
    monkeypatch.setattr(Current, "held_by", lambda current, _: current.is_live)
    failed = next(explore(simulated_worlds.workers, range(500), limit_seconds=LIMIT_SECONDS))
    assert isinstance(failed.error, HistoryViolated)
    assert {violation.rule for violation in failed.error.violations} <= {"fence", "result"}
    few = shrink(simulated_worlds.workers, failed, limit_seconds=LIMIT_SECONDS, n_tries=30)
    assert len(few.deviations) < len(failed.deviations)
    with pytest.raises(HistoryViolated):
        run_seeded(simulated_worlds.workers, few.schedule, limit_seconds=LIMIT_SECONDS)


def test_a_seed_is_the_same_story_in_every_process():
    def story(hash_seed: str) -> str:
        command = [sys.executable, "-c", REPLAY, "7"]
        environment = {"PYTHONPATH": str(Path(__file__).parent.parent), "PYTHONHASHSEED": hash_seed}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    assert story("1") == story("2")
    assert story("1").count("\n") > 50
