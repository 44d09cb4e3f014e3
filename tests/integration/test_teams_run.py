"""Teams in `outrider run` and `outrider rollout`: named, told their settings, kept with who said what."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from outrider.core.event import EventKind
from outrider.core.turn import turns_of
from outrider.orchestra.teams import READY_MADE
from outrider.store import open_store
from processes import run_outrider

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "teams" / "cascade.py"
NOISY = ("--mode", "math", "--limit", "6", "--model", "builtin:noisy?p=0.5", "--num-rollouts", "6")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "cascade.py").write_text(EXAMPLE.read_text())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_json(*arguments: str) -> Any:
    return json.loads(run_outrider("run", *arguments, "--json").stdout)


async def calls(run: str) -> Counter[tuple[str, str]]:
    """How often each agent was asked, and which policy for it."""
    async with open_store(f"sqlite:///results/{run}/store.db") as store:
        ids = [rollout.rollout_id for rollout in await store.query_rollouts(limit=100)]
        turns = [turn.record.call for each in ids for turn in turns_of(await store.query_events(each))]
        named = [event.name for each in ids for event in await store.query_events(each, kind=EventKind.TURN)]
    made = [call for call in turns if call is not None]
    assert len(made) == len(turns)
    assert Counter(named) == Counter(call.agent for call in made)
    return Counter((call.agent, call.policy) for call in made)


async def test_a_ready_made_team_is_named_and_told_its_settings():
    sure = ("--policy", "sure=builtin:solver", "--team", "agents={verifier: {policy: sure}, solver: {policy: sure}}")
    outcome = run_json(*NOISY, "--agent", "team:solver-verifier", "--team", "max_rounds=2", *sure, "--name", "a")
    assert outcome["summary"]["total"]["reward"]["scored"]["mean"] == 1.0
    assert await calls("a") == {("solver", "sure"): 6, ("verifier", "sure"): 6}


async def test_a_file_gives_a_team_of_ones_own_its_settings_and_switches():
    settings = {
        "agent": "team:cascade:build",
        "team": {"n_checks": 3, "performance": {"enable_early_termination": False}},
        "policies": {"large": {"model": "builtin:solver"}},
    }
    Path("run.yaml").write_text(yaml.safe_dump(settings))
    run_json(*NOISY, "--config", "run.yaml", "--name", "off")
    made = await calls("off")
    assert (made["small", ""], made["checker", ""]) == (18, 18)
    run_json(*NOISY, "--config", "run.yaml", "--name", "on", "--team", "performance={}")
    assert (await calls("on"))["small", ""] < 18


def test_a_team_that_cannot_be_is_refused_before_anything_runs():
    for arguments, says in {
        ("--agent", "team:solver-verfier"): "did you mean team:solver-verifier?",
        ("--agent", "team:debate", "--team", "n_round=1"): "did you mean n_rounds?",
        ("--agent", "chat", "--team", "max_rounds=1"): "name team:search-critic, team:router",
        ("--agent", "team:debate", "--team", "agents={judge: {policy: big}}"): "'big'",
        ("--agent", "solver"): "team:NAME",
    }.items():
        refused = run_outrider("run", *NOISY, *arguments, code=2)
        assert says in " ".join(refused.stderr.split()), refused.stderr
    assert not Path("results").exists()


def test_the_help_names_every_ready_made_team():
    shown = "".join(run_outrider("run", "--help").stdout.split())
    assert [name for name in READY_MADE if f"team:{name}" not in shown] == []


async def test_a_team_plays_for_a_trainer():
    Path("train.yaml").write_text("""
train_env_manager:
  num_env_groups: 2
  group_size: 2
  tags: [FrozenLake]
  num_groups_partition: [2]
rollout_batch_size: 4
model: builtin:noisy?p=0.5
agent: team:planner-actor
team: {max_steps: 4}
steps: 2
""")
    shown = run_outrider("rollout", "-c", "train.yaml", "--name", "t", "--json").stdout
    *steps, end = [json.loads(line) for line in shown.splitlines()]
    assert (len(steps), end["complete"]) == (2, True)
    assert all(step["in_loss"] > 0 and step["text"] == 0 for step in steps)
    made = await calls("t")
    assert set(made) == {("info", ""), ("planner", ""), ("actor", "")}
    assert made["actor", ""] <= 4 * len(steps) * 4


def test_the_example_runs_by_itself():
    done = subprocess.run(
        [sys.executable, EXAMPLE], capture_output=True, text=True, timeout=60, check=False, env={"PATH": ""}
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "40 questions" in done.stdout
