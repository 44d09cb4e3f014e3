"""`outrider run` against a model behind an endpoint that works, misbehaves, or was configured wrongly."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from judging import agreeing
from outrider.policy.opening import open_policy
from outrider.policy.spec import PolicySpec
from outrider.testing import ModelServer, eventually
from outrider.testing.model_server_faults import EMPTY, INVALID_UTF8, FaultPlan, cut, status

OUTRIDER = (sys.executable, "-m", "outrider")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OUTRIDER_STORE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


async def outrider(server: ModelServer, *arguments: str, key: str = "right") -> tuple[int, str, str]:
    """Run the command against `server`: its exit code and what it said."""
    return await command("--base-url", server.base_url, "--model", "test-model", *arguments, key=key)


async def command(*arguments: str, key: str = "right") -> tuple[int, str, str]:
    """Run the command: its exit code and what it said."""
    process = await asyncio.create_subprocess_exec(
        *OUTRIDER, "run", *arguments,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "OPENAI_API_KEY": key},
    )  # fmt: skip
    try:
        async with asyncio.timeout(60):
            output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert b"Traceback" not in errors
    return process.returncode or 0, output.decode(), errors.decode()


def lines_of(run_name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path("results", run_name, "results.jsonl").read_text().splitlines()]


async def solver(latency: float = 0.0) -> Any:
    return await open_policy(PolicySpec(model=f"builtin:solver?latency={latency}"))


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_run_gets_through_an_endpoint_that_fails_now_and_then(streamed: bool):
    rates = ((status(500), 0.08), (status(429, retry_after="0"), 0.08), (cut(1), 0.08))
    async with ModelServer(await solver(), faults=FaultPlan(rates=rates, seed=3)) as server:
        flags = ("--stream",) if streamed else ()
        code, output, errors = await outrider(
            server, "--mode", "FrozenLake", "--limit", "20", "--num-rollouts", "10", "--max-retries", "6",
            "--name", "faulty", *flags,
        )  # fmt: skip
    assert code == 0, (output, errors)
    lines = lines_of("faulty")
    assert [line["reward"] for line in lines] == [1.0] * 20
    assert sum(line["n_retries"] for line in lines) > 0


@pytest.mark.parametrize(
    ("arguments", "key", "says"),
    [
        ((), "wrong", "OPENAI_API_KEY"),
        (("--model", "test-modell"), "right", "test-model"),
    ],
)
async def test_a_wrong_key_or_model_is_one_message_before_anything_starts(
    arguments: tuple[str, ...], key: str, says: str
):
    async with ModelServer("yes", key="right") as server:
        code, _, errors = await outrider(server, "--mode", "math", *arguments, key=key)
        assert server.n_calls <= 1
    assert code == 2
    assert says in errors
    assert len(errors.strip().splitlines()) == 1
    assert not Path("results").exists()


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_a_key_that_is_withdrawn_stops_the_run_with_one_message_and_it_can_go_on(workers: str):
    arguments = ("--mode", "FrozenLake", "--limit", "30", "--num-rollouts", "6", "--name", "withdrawn",
                 "--workers", workers)  # fmt: skip
    async with ModelServer(await solver(0.02), key="right") as server:
        running = asyncio.ensure_future(outrider(server, *arguments))

        async def under_way() -> bool:
            return server.n_calls > 20

        await eventually(under_way, within_seconds=30)
        server.key = "another"
        code, output, _ = await running
        assert code == 1
        assert output.count("OPENAI_API_KEY") == 1
        assert not any(line["status"] == "failed" for line in lines_of("withdrawn"))

        code, output, _ = await outrider(server, *arguments, "--resume", "withdrawn", key="another")
    assert code == 0, output
    lines = lines_of("withdrawn")
    assert len(lines) == 30
    assert {line["reward"] for line in lines} == {1.0}


async def test_a_conversation_too_long_for_the_model_is_a_result_not_a_failure():
    async with ModelServer("thinking…", faults=FaultPlan(max_characters=2_000)) as server:
        code, output, errors = await outrider(server, "--mode", "FrozenLake", "--limit", "2", "--name", "long",
                                              "--env", "max_steps=1000")  # fmt: skip
    assert code == 0, (output, errors)
    for line in lines_of("long"):
        assert (line["status"], line["stop_reason"]) == ("succeeded", "context")
        assert line["reward"] <= 0


async def test_empty_answers_are_the_endpoints_failure_and_never_a_score():
    async with ModelServer("yes", faults=FaultPlan(always=EMPTY)) as server:
        code, output, _ = await outrider(server, "--mode", "math", "--limit", "2", "--max-retries", "1",
                                         "--max-attempts", "1", "--name", "void")  # fmt: skip
    assert code == 0, output
    for line in lines_of("void"):
        assert line["reward"] is None
        assert line["failure"]["boundary"] == "policy"
        assert line["failure"]["infrastructure"]
        assert "empty" in line["failure"]["message"]


async def test_bytes_that_are_no_text_are_marked_in_the_answer_and_the_run_goes_on():
    async with ModelServer("42", faults=FaultPlan(always=INVALID_UTF8)) as server:
        code, output, _ = await outrider(server, "--mode", "math", "--limit", "1", "--name", "bytes")
    assert code == 0, output
    (line,) = lines_of("bytes")
    assert line["status"] == "succeeded"
    assert "\ufffd" in Path("results/bytes/page.html").read_text()


async def test_a_model_judges_the_answers_as_the_settings_say():
    async with ModelServer(agreeing) as judge:
        judge_spec = {"model": "test-model", "base_urls": [judge.base_url]}
        settings = {"mode": "math", "model": "builtin:solver", "limit": 2, "name": "judged", "scorer": "judge"}
        settings["env"] = {"scorer_config": {"judge": judge_spec}}
        Path("judged.yaml").write_text(json.dumps(settings))  # JSON is YAML too
        code, _, errors = await command("--config", "judged.yaml")
        assert (code, judge.n_calls) == (2, 0)
        assert f"is the key in OPENAI_API_KEY for {judge.base_url.removesuffix('/v1')}?" in errors
        judge_spec["api_key_env"] = ["none"]
        Path("judged.yaml").write_text(json.dumps(settings))
        code, output, errors = await command("--config", "judged.yaml")
        assert code == 0, (output, errors)
        assert judge.n_calls >= 2
    for line in lines_of("judged"):
        assert line["reward"] == 1.0
        assert line["metrics"]["judge_prompt_tokens"] > 0
