from pathlib import Path

import pytest

from guessing import Counting
from outrider.core.chat import assistant, system, user
from outrider.core.errors import BudgetSpent, InvalidInput
from outrider.policy import Budget, PolicySpec, open_policy
from outrider.policy.recording import RecordingPolicy, ReplayPolicy, open_recording
from outrider.policy.scripted.policy import ScriptedPolicy, ScriptOptions
from processes import output_of

COUNTING = (system("A counting game."), user("Count."))


async def recording(path: Path) -> str:
    policy = ScriptedPolicy({"c": Counting()}, name="c", options=ScriptOptions())
    recorded = await open_recording(policy, str(path))
    await recorded.complete(COUNTING)
    await recorded.close()
    return str(path)


async def test_builtin_opens_a_scripted_policy():
    policy = await open_policy(PolicySpec(model="builtin:solver"))
    assert isinstance(policy, ScriptedPolicy)
    await policy.check()
    await policy.close()


async def test_replay_opens_a_recording(tmp_path: Path):
    policy = await open_policy(PolicySpec(model=f"replay:{await recording(tmp_path / 'calls.jsonl')}"))
    assert isinstance(policy, ReplayPolicy)
    await policy.check()
    assert (await policy.complete(COUNTING)).message == assistant("1")
    await policy.close()


async def test_any_other_name_opens_a_model_behind_an_endpoint(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    policy = await open_policy(PolicySpec(model="some-model", base_urls=("http://127.0.0.1:9/v1",)))
    assert type(policy).__module__.startswith("outrider.policy.openai")
    await policy.close()


async def test_a_budget_bounds_what_is_opened(tmp_path: Path):
    path = await recording(tmp_path / "calls.jsonl")
    policy = await open_policy(PolicySpec(model=f"replay:{path}", budget=Budget(tokens=1)))
    await policy.complete(COUNTING)
    with pytest.raises(BudgetSpent):
        await policy.complete(COUNTING)
    await policy.close()


async def test_what_is_opened_is_recorded_where_the_spec_says(tmp_path: Path):
    path = await recording(tmp_path / "calls.jsonl")
    copy = tmp_path / "copy.jsonl"
    policy = await open_policy(PolicySpec(model=f"replay:{path}", record_to=str(copy)))
    assert isinstance(policy, RecordingPolicy)
    await policy.complete(COUNTING)
    await policy.close()
    assert copy.read_bytes() == Path(path).read_bytes()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (PolicySpec(model=""), "no model"),
        (PolicySpec(model="replay:missing.jsonl"), "cannot replay missing.jsonl"),
        (PolicySpec(model="replay:"), "cannot replay"),
        (PolicySpec(model="replay:a\0b"), "cannot replay"),
        (PolicySpec(model="replay:/"), "not a plain file"),
        (PolicySpec(model="replay:/dev/null"), "not a plain file"),
        (PolicySpec(model="replay:x.jsonl", record_to="x.jsonl"), "at once"),
        (PolicySpec(model="builtin:solver", record_to="no/such/folder/x.jsonl"), "cannot record to no/such"),
        (PolicySpec(model="builtin:solver", record_to="/dev/full"), "not a plain file"),
    ],
)
async def test_what_cannot_be_opened_is_refused(spec: PolicySpec, message: str):
    with pytest.raises(InvalidInput, match=message):
        await open_policy(spec)


async def test_what_was_opened_before_a_failure_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    closed: list[object] = []

    async def close(self: ScriptedPolicy) -> None:
        closed.append(self)

    monkeypatch.setattr(ScriptedPolicy, "close", close)
    with pytest.raises(InvalidInput):
        await open_policy(PolicySpec(model="builtin:solver", record_to=str(tmp_path / "no" / "x")))
    assert len(closed) == 1


@pytest.mark.parametrize("statement", ["from outrider import *", "import outrider.runner.process"])
def test_neither_outrider_nor_a_worker_process_starts_with_an_http_client_or_an_extra(statement: str):
    loaded = output_of(f"import sys; {statement}; print(*sys.modules)").split()
    assert {"aiohttp", "mcp", "numpy", "yaml", "pydantic"}.isdisjoint(loaded)
    assert "outrider.runner" in loaded
