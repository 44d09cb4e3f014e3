"""Runs with several policies: opened, counted, paid and checked together; named in files and on the command line."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from outrider import local_workers, open_store
from outrider.cli.rollout_config import check_same, read_settings
from outrider.cli.rollout_setup import episode_spec as rollout_episode_spec
from outrider.cli.run_config import read_config
from outrider.cli.run_folder import lasting_settings
from outrider.cli.run_options import given_settings
from outrider.cli.run_setup import episode_spec
from outrider.core import wire
from outrider.core.errors import BudgetSpent, InvalidInput
from outrider.core.event import EventKind
from outrider.core.turn import turn_of
from outrider.policy import Sampling
from outrider.policy.spec import Budget, PolicySpec
from outrider.runner.kit import EnvironmentSpec, EpisodeSpec, check_episodes, open_episodes
from outrider.runner.meter import Meter
from outrider.testing import ModelServer
from processes import run_outrider

TEAM = {"agents": {"verifier": {"policy": "judge"}}}
SPEC = EpisodeSpec(
    agent="team:solver-verifier",
    team=TEAM,
    policy=PolicySpec(model="builtin:solver"),
    policies={"judge": PolicySpec(model="builtin:noisy?p=0.5")},
    environments={"math": EnvironmentSpec(name="math")},
)
QUESTION = {"task_id": "t", "question": "What is 2 + 3?", "answer": "5"}


async def played(spec: EpisodeSpec, meter: Meter) -> list[str]:
    """Which policy was asked, call by call, in one episode."""
    async with (
        open_store("memory://") as store,
        open_episodes(spec, meter) as episodes,
        local_workers(store, episodes),
    ):
        rollout = await store.enqueue_rollout(QUESTION, tag="math", seed=1)
        await store.finished_after(0, wait=20.0)
        events = await store.query_events(rollout.rollout_id, kind=EventKind.TURN)
        return [turn_of(event).model for event in events]


async def test_the_agents_of_a_team_ask_their_own_policies_and_all_calls_are_counted():
    meter = Meter()
    models = await played(SPEC, meter)
    assert models[:2] == ["builtin:solver", "builtin:noisy?p=0.5"]
    assert set(models[2:]) <= set(models)
    assert meter.reading.calls == len(models)


async def test_a_spec_with_several_policies_goes_to_other_processes():
    assert wire.from_record(wire.to_record(SPEC), EpisodeSpec) == SPEC


async def test_the_budget_is_for_all_policies_together():
    meter = Meter()
    spec = replace(SPEC, policy=PolicySpec(model="builtin:solver", budget=Budget(tokens=1)))
    with pytest.raises(BudgetSpent):
        await played(spec, meter)
    assert meter.reading.calls == 1, "the second call is of the other policy, and nothing was left for it"


@pytest.mark.parametrize(
    ("policies", "message"),
    [
        ({}, r"agent 'verifier' asks the policy 'judge', which the run has not; give one: --policy judge=MODEL"),
        ({"": PolicySpec(model="builtin:solver"), **SPEC.policies}, "a policy has no name"),
        ({"judge": PolicySpec(model="builtin:noisy?q=1")}, "policy 'judge': .*noisy"),
        ({"judge": PolicySpec(model="builtin:solver", budget=Budget(tokens=5))}, "policy 'judge' has a budget"),
    ],
)
async def test_policies_that_cannot_be_used_are_refused_before_anything_runs(
    policies: dict[str, PolicySpec], message: str
):
    await check_episodes(SPEC)
    with pytest.raises(InvalidInput, match=message):
        await check_episodes(replace(SPEC, policies=policies))


def test_policies_of_a_run_are_named_in_a_file_and_by_flags(tmp_path: Path):
    file = tmp_path / "run.yaml"
    file.write_text(
        "mode: math\nbase_url: [http://own]\nbudget_tokens: 9\n"
        "policies:\n  judge: {model: a, base_url: [http://judge]}\n  other: {model: b}\n"
    )
    config = read_config(str(file), given_settings({"policies": ("judge=c", "third=builtin:noisy?p=0.5")}))
    spec = episode_spec(config, "math", Budget(tokens=9))
    assert {name: (each.model, each.base_urls, each.budget) for name, each in spec.policies.items()} == {
        "judge": ("c", ("http://judge",), Budget()),
        "other": ("b", ("http://own",), Budget()),
        "third": ("builtin:noisy?p=0.5", ("http://own",), Budget()),
    }


def test_a_policy_has_a_key_a_sampling_and_requests_of_its_own(tmp_path: Path):
    file = tmp_path / "run.yaml"
    file.write_text(
        "mode: math\ntemperature: 1.0\ntop_k: 20\nbase_url: [http://own]\nheaders: {X-Title: run}\n"
        "policies:\n  judge: {model: a, base_url: [http://judge], top_k: 1, extra_body: {min_p: 0.1}}\n"
    )
    flags = ("judge.api_key_env=JUDGE_KEY", "judge.stop=END", "other=b", "other.temperature=0", "other.max_tokens=9")
    config = read_config(str(file), given_settings({"policies": flags}))
    spec = episode_spec(config, "math", Budget())
    judge, other = spec.policies["judge"], spec.policies["other"]
    assert (judge.base_urls, judge.api_key_env, judge.headers) == (("http://judge",), ("JUDGE_KEY",), {})
    assert (judge.extra_body, other.headers) == ({"min_p": 0.1}, {"X-Title": "run"})
    assert spec.sampling == Sampling(temperature=1.0, top_k=20)
    assert spec.sampling_of == {
        "judge": Sampling(temperature=1.0, top_k=1, stop=("END",)),
        "other": Sampling(temperature=0.0, top_k=20, max_tokens=9),
    }


async def test_each_policy_is_asked_in_its_own_way_by_the_agents_of_a_team():
    async with ModelServer("\\boxed{5}") as own, ModelServer("Approved.") as judging:
        spec = replace(
            SPEC,
            policy=PolicySpec(model="test-model", base_urls=(own.base_url,), extra_body={"min_p": 0.1}),
            policies={"judge": PolicySpec(model="test-model", base_urls=(judging.base_url,), headers={"X-Who": "j"})},
            sampling=Sampling(temperature=0.7, top_k=20),
            sampling_of={"judge": Sampling(temperature=0.1, reasoning_effort="low")},
        )
        await played(spec, Meter())
        asked, judged = own.requests[0], judging.requests[0]
    assert (asked.body["temperature"], asked.body["top_k"], asked.body["min_p"]) == (0.7, 20, 0.1)
    assert (judged.body["temperature"], judged.body["reasoning_effort"]) == (0.1, "low")
    assert "top_k" not in judged.body
    assert (judged.headers["x-who"], "x-who" in asked.headers) == ("j", False)


@pytest.mark.parametrize(
    ("policies", "flags", "message"),
    [
        ("[a]", (), "policies must hold settings"),
        ("{judge: {modle: a}}", (), r"did you mean model\?"),
        ("{judge: {}}", (), "missing required field `model`"),
        ("{'': {model: a}}", (), "policies has one without a name"),
        ("{}", ("judge",), "--policy 'judge': write it as NAME=MODEL"),
        ("{}", ("=a",), "--policy '=a': write it as NAME=MODEL"),
        ("{}", ("judge.top_k=3",), "missing required field `model`"),
        ("{}", ("judge=a", "judge.top_k=0"), "top_k is 0; give 1 or more"),
        ("{judge: {model: a, headers: {X-Api-Key: sk-1}}}", (), "the header 'X-Api-Key' looks like a secret"),
    ],
)
def test_policies_that_are_written_wrongly_are_refused(
    tmp_path: Path, policies: str, flags: tuple[str, ...], message: str
):
    file = tmp_path / "run.yaml"
    file.write_text(f"mode: math\npolicies: {policies}\n")
    with pytest.raises(InvalidInput, match=message):
        read_config(str(file), given_settings({"policies": flags}))


def test_a_run_is_gone_on_with_by_the_models_of_its_policies_wherever_they_are_served():
    def lasting(**policies: dict[str, Any]) -> dict[str, Any]:
        return lasting_settings(read_config(None, {"mode": "math", "policies": policies}))

    first = lasting(judge={"model": "a", "base_url": ["http://x"]})
    assert first["policies"] == {"judge": "a"}
    assert lasting(judge={"model": "a"}) == first != lasting(judge={"model": "b"})
    sampled = lasting(judge={"model": "a", "top_k": 3, "api_key_env": ["K"]})
    assert sampled["policies"] == {"judge": {"model": "a", "top_k": 3}}
    assert "policies" not in lasting(), "runs from before there were any can be gone on with"


def test_a_rollout_job_has_further_policies_too(tmp_path: Path):
    file = tmp_path / "rollout.yaml"
    file.write_text("base_urls: [http://own]\npolicies: {judge: {model: a}}\n")
    begun = read_settings(file)
    spec = rollout_episode_spec(begun)
    assert (spec.policies["judge"].model, spec.policies["judge"].base_urls) == ("a", ("http://own",))
    moved = read_settings(file, ["policies.judge.base_urls=[http://new]"])
    check_same(begun, moved, "run")
    for change in ("policies.judge.model=b", "policies.judge.top_k=3", "top_k=3", "headers={X-Title: t}"):
        with pytest.raises(InvalidInput, match="was begun with"):
            check_same(begun, read_settings(file, [change]), "run")
    sampled = rollout_episode_spec(read_settings(file, ["top_k=3", "policies.judge.stop=[END]", "extra_body={x: 1}"]))
    assert (sampled.sampling.top_k, sampled.sampling_of["judge"].stop) == (3, ("END",))
    assert sampled.policies["judge"].extra_body == {"x": 1}


def test_a_team_of_two_policies_is_run_from_the_command_line(tmp_path: Path):
    verifier = "agents={verifier: {policy: judge}}"
    command = ("run", "--mode", "math", "--limit", "3", "--agent", "team:solver-verifier", "--team", verifier)
    command += ("--model", "builtin:solver", "--output-dir", str(tmp_path), "--name", "two")
    assert "give one: --policy judge=MODEL" in run_outrider(*command, code=2).stderr
    run_outrider(*command, "--policy", "judge=builtin:noisy?p=0.3")
    results = [json.loads(line) for line in (tmp_path / "two" / "results.jsonl").read_text().splitlines()]
    assert [line["status"] for line in results] == ["succeeded"] * 3
    assert "| model of judge | builtin:noisy?p=0.3 |" in (tmp_path / "two" / "summary.md").read_text()
