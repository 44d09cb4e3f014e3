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
from soaking import note_soak, share

N_SEEDS = 12
N_SEEDS_IN_SOAK = (7000, 1500, 1500)
N_SEEDS_TOGETHER = 500
UNFENCED_SEEDS = range(450, 1000)
"""One in 200 shows that the fence is missing; below 450 none does, and to try them takes ten seconds."""
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
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("world", "first"),
    [
        pytest.param(world, first, id=f"{world.__name__} {first}")
        for world, n_seeds in zip(WORLDS, N_SEEDS_IN_SOAK, strict=True)
        for first in range(0, round(n_seeds * share()), N_SEEDS_TOGETHER)
    ],
)
def test_ten_thousand_orders(world: Program, first: int):
    check_seeds(world, range(N_SEEDS + first, N_SEEDS + first + N_SEEDS_TOGETHER))


def test_a_store_without_a_fence_is_found_out(monkeypatch):
    monkeypatch.setattr(Current, "held_by", lambda current, _: current.is_live)
    failed = next(explore(simulated_worlds.workers, UNFENCED_SEEDS, limit_seconds=LIMIT_SECONDS))
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
