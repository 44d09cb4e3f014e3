"""`outrider run` against a model behind an endpoint that works, misbehaves, or was configured wrongly."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from judging import agreeing
from outrider.core.chat import Role
from outrider.policy.opening import open_policy
from outrider.policy.spec import PolicySpec
from outrider.testing import ModelServer, eventually
from outrider.testing.model_server import Manner
from outrider.testing.model_server_faults import EMPTY, GARBAGE, HANG, INVALID_UTF8, Fault, FaultPlan, cut, status
from warm_outrider import run_warm


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
    done = await asyncio.to_thread(run_warm, "run", *arguments, seconds=60, OPENAI_API_KEY=key)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


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


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.soak)])
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
        assert code == 3
        lines = [line for line in output.splitlines() if not line.startswith("note:")]
        assert "\n".join(lines).count("OPENAI_API_KEY") == 1
        assert not any(line["status"] == "failed" for line in lines_of("withdrawn"))

        code, output, _ = await outrider(server, *arguments, "--resume", "withdrawn", key="another")
    assert code == 0, output
    lines = lines_of("withdrawn")
    assert len(lines) == 30
    assert {line["reward"] for line in lines} == {1.0}


ADDED = (
    "--top-k", "20", "--stop", "END", "--stop", "STOP", "--reasoning-effort", "low", "--extra-body", "min_p=0.05",
    "--extra-body", "guided={api_key: 'env:GUIDE_KEY'}", "--header", "X-Title=a test: one", "--header",
    "X-Api-Key=env:HEADER_KEY", "--system-prompt", "Think {first}.",
)  # fmt: skip


async def test_what_a_run_adds_to_its_requests_is_sent_kept_compared_and_shows_no_secret(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("HEADER_KEY", "sk-header")
    monkeypatch.setenv("GUIDE_KEY", "sk-guide")
    async with ModelServer("\\boxed{5}") as server:
        task = ("--mode", "math", "--limit", "1", "--name", "added")
        code, shown, errors = await outrider(server, *task, *ADDED, "--dry-run")
        assert code == 0, errors
        config = json.loads(shown)["config"]
        assert (config["top_k"], config["stop"], config["reasoning_effort"]) == (20, ["END", "STOP"], "low")
        assert config["headers"] == {"X-Title": "a test: one", "X-Api-Key": "env:HEADER_KEY"}
        assert config["extra_body"] == {"min_p": 0.05, "guided": {"api_key": "env:GUIDE_KEY"}}
        code, _, errors = await outrider(server, *task, *ADDED)
        assert code == 0, errors
        probe, call = server.requests[0], server.requests[-1]
        for request in (probe, call):
            body = request.body
            assert (body["top_k"], body["stop"], body["reasoning_effort"]) == (20, ["END", "STOP"], "low")
            assert (body["min_p"], body["guided"]) == (0.05, {"api_key": "sk-guide"})
            assert (request.headers["x-title"], request.headers["x-api-key"]) == ("a test: one", "sk-header")
        assert call.messages[0].content.startswith("Think {first}.\n\nSolve the problem step by step.")
        kept = [path.read_bytes() for path in Path("results/added").iterdir() if path.is_file()]
        assert not any(b"sk-header" in content or b"sk-guide" in content for content in (*kept, shown.encode()))
        for changed in (("--top-k", "21"), ("--system-prompt", "Think."), ("--header", "X-Title=b"), ("--stop", "X")):
            code, _, errors = await outrider(server, *task[:4], *ADDED, *changed, "--resume", "added")
            assert (code, changed[0].removeprefix("--").replace("header", "headers").replace("-", "_") in errors) == (
                2,
                True,
            )
        code, _, errors = await outrider(server, *task[:4], *ADDED, "--no-check", "--resume", "added")
        assert code == 0, errors


async def test_a_system_prompt_comes_from_a_file_too_and_settings_from_yaml():
    Path("prompt.md").write_text("You are terse.\n")
    Path("run.yaml").write_text(
        "mode: FrozenLake\nlimit: 1\nsystem_prompt_file: prompt.md\ntop_k: 3\nstop: [END]\nextra_body: {min_p: 0.1}\n"
        "headers: {X-Title: t}\n"
    )
    async with ModelServer("<answer>Up</answer>") as server:
        code, _, errors = await outrider(server, "--config", "run.yaml", "--extra-body", "top_a=1", "--name", "file")
        assert code == 0, errors
        call = server.requests[1]
        by_flag = ("--mode", "FrozenLake", "--limit", "1", "--system-prompt-file", "prompt.md")
        code, _, errors = await outrider(server, *by_flag, "--no-check", "--name", "flag")
        assert code == 0, errors
        assert server.requests[-1].messages[0].content.startswith("You are terse.\n\n")
    assert call.messages[0].content.startswith("You are terse.\n\n")
    assert len(call.messages[0].content) > 50, "the rules of the game are still there"
    assert (call.body["min_p"], call.body["top_a"], call.body["top_k"], call.body["stop"]) == (0.1, 1, 3, ["END"])
    Path("prompt.md").unlink()
    assert "system_prompt: " in Path("results/file/config.yaml").read_text()


async def test_a_run_with_a_system_prompt_file_is_resumed_by_the_flags_or_the_file_that_began_it():
    Path("prompt.md").write_text("You are terse.\n")
    Path("other.md").write_text("You are wordy.\n")
    Path("run.yaml").write_text("mode: FrozenLake\nlimit: 1\nsystem_prompt_file: prompt.md\n")
    begun = {
        "flags": ("--mode", "FrozenLake", "--limit", "1", "--system-prompt-file", "prompt.md"),
        "yaml": ("--config", "run.yaml"),
    }
    async with ModelServer("<answer>Up</answer>") as server:
        for name, flags in begun.items():
            code, _, errors = await outrider(server, *flags, "--no-check", "--name", name)
            assert code == 0, errors
            for again in (*begun.values(), ("--system-prompt", "You are terse.\n"), ()):
                code, _, errors = await outrider(server, *again, "--resume", name)
                assert code == 0, errors
            for changed in (("--system-prompt-file", "other.md"), ("--system-prompt", "Be brief.")):
                code, _, errors = await outrider(server, *flags[:2], *changed, "--resume", name)
                assert code == 2
                assert "system_prompt was" in errors


async def test_a_system_prompt_given_as_a_flag_replaces_that_of_the_file_of_settings():
    Path("prompt.md").write_text("From a file.")
    Path("by_file.yaml").write_text("mode: math\nsystem_prompt_file: prompt.md\n")
    Path("by_text.yaml").write_text("mode: math\nsystem_prompt: From the settings.\n")
    Path("both.yaml").write_text("mode: math\nsystem_prompt: x\nsystem_prompt_file: prompt.md\n")
    async with ModelServer("hello") as server:

        async def prompt(*flags: str) -> str:
            code, shown, errors = await outrider(server, *flags, "--dry-run")
            assert code == 0, errors
            config = json.loads(shown)["config"]
            assert config["system_prompt_file"] is None
            return str(config["system_prompt"])

        assert await prompt("--config", "by_file.yaml") == "From a file."
        assert await prompt("--config", "by_file.yaml", "--system-prompt", "From a flag.") == "From a flag."
        assert await prompt("--config", "by_text.yaml", "--system-prompt-file", "prompt.md") == "From a file."
        both = ("--system-prompt", "x", "--system-prompt-file", "prompt.md")
        for flags in (("--mode", "math", *both), ("--config", "both.yaml"), ("--config", "by_text.yaml", *both)):
            code, _, errors = await outrider(server, *flags, "--dry-run")
            assert (code, "give one of them" in errors) == (2, True)


OWN_ENVIRONMENT = """
class Agree:
    def reset(self, seed):
        return "Do you agree?"

    def step(self, action):
        return "", float(action == "yes"), True, False, {}
"""


@pytest.mark.parametrize("mode", ["math", "py", "rag", "web", "osworld", "FrozenLake", "mine:Agree"])
async def test_a_system_prompt_is_the_first_thing_in_each_request_of_every_mode(mode: str):
    Path("mine.py").write_text(OWN_ENVIRONMENT)
    prompt = "Be {terse}.\nNever mention pyautogui."
    async with ModelServer("yes" if mode == "mine:Agree" else await solver()) as server:
        flags = ("--limit", "1", "--name", "told", "--system-prompt", prompt, "--no-check")
        code, output, errors = await outrider(server, "--mode", mode, *flags)
        assert code == 0, (output, errors)
        assert len(server.requests) == server.n_calls >= 1
        for request in server.requests:
            first, second, *_ = request.messages
            assert (first.role, second.role) == (Role.SYSTEM, Role.USER)
            assert first.content.startswith(prompt)
            assert [message.role for message in request.messages].count(Role.SYSTEM) == 1
    (line,) = lines_of("told")
    assert line["reward"] == 1.0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--header", "Authorization=Bearer sk-1"), "the header 'Authorization' looks like a secret"),
        (("--header", "X-Title"), "--header 'X-Title': write it as NAME=VALUE"),
        (("--extra-body", "api_key=sk-1"), "extra_body.api_key looks like a secret"),
        (("--extra-body", "messages=[]"), "extra_body sets 'messages'"),
        (("--header", "X-Key=env:NOWHERE"), "'NOWHERE', which is not set"),
        (("--stop", ""), "stop has an empty text"),
        (("--top-k", "0"), "top_k is 0"),
        (("--system-prompt", " "), "system_prompt is empty"),
        (("--system-prompt", "x", "--agent", "team:debate"), "those of a team have system messages of their own"),
        (("--system-prompt-file", "nowhere.md"), "cannot read the system prompt nowhere.md"),
        (("--system-prompt-file", "x", "--system-prompt", "y"), "give one of them"),
    ],
)
@pytest.mark.parametrize("no_check", [(), ("--no-check",)])
async def test_what_no_request_could_carry_is_refused(arguments: tuple[str, ...], says: str, no_check: tuple[str, ...]):
    async with ModelServer("yes") as server:
        code, output, errors = await outrider(server, "--mode", "math", "--limit", "1", *arguments, *no_check)
    assert code == 2
    assert says in errors
    assert "sk-1" not in output + errors
    assert not Path("results").exists()


@pytest.mark.parametrize("fault", [status(500), GARBAGE, cut(2), status(404)], ids=["500", "garbage", "cut", "404"])
@pytest.mark.parametrize("max_retries", ["0", "1"])
async def test_a_run_loses_nothing_to_a_broken_server_beside_a_healthy_one(fault: Fault, max_retries: str):
    broken = ModelServer(await solver(), faults=FaultPlan(always=fault))
    async with broken, ModelServer(await solver()) as well:
        code, _, errors = await outrider(
            broken, "--base-url", well.base_url, "--api-key-env", "none", "--no-check", "--mode", "FrozenLake",
            "--limit", "6", "--max-retries", max_retries, "--max-attempts", "1", "--stream", "--name", "beside",
        )  # fmt: skip
        assert code == 0, errors
        assert broken.n_calls > 0
    assert [(line["status"], line["reward"]) for line in lines_of("beside")] == [("succeeded", 1.0)] * 6


@pytest.mark.parametrize(
    "flags",
    [
        ("--max-attempts", "1", "--silence-seconds", "0.3"),
        ("--max-attempts", "1", "--timeout", "4", "--stream"),
        ("--max-attempts", "3", "--timeout", "1.5", "--silence-seconds", "60"),
    ],
    ids=["another server at once", "half of the timeout", "a retry elsewhere"],
)
async def test_a_run_loses_nothing_to_a_server_that_hangs_beside_a_healthy_one(flags: tuple[str, ...]):
    hanging = ModelServer(await solver(), faults=FaultPlan(always=HANG))
    async with hanging, ModelServer(await solver()) as well:
        code, _, errors = await outrider(
            hanging, "--base-url", well.base_url, "--api-key-env", "none", "--no-check", "--mode", "FrozenLake",
            "--limit", "6", "--max-retries", "0", "--name", "hanging", *flags,
        )  # fmt: skip
        assert code == 0, errors
        assert hanging.n_calls == hanging.n_abandoned > 0
    lines = lines_of("hanging")
    assert [(line["status"], line["reward"]) for line in lines] == [("succeeded", 1.0)] * 6
    n_lost = sum(line["n_attempts"] - 1 for line in lines)
    assert (n_lost >= hanging.n_calls) == ("60" in flags)  # then each call there costs an attempt, never the last


@pytest.mark.parametrize("mode", ["math", "py", "rag"])
@pytest.mark.parametrize(
    ("manner", "answered"),
    [
        (Manner.NO_TOOLS, '400: "auto" tool choice requires'),
        (Manner.FAILS_ON_TOOLS, "500: 'Internal Server Error'"),
        (Manner.NO_SYSTEM, "400: System role not supported"),
    ],
)
async def test_a_server_that_refuses_what_the_mode_sends_is_one_message_with_a_way_out(
    mode: str, manner: Manner, answered: str
):
    async with ModelServer("\\boxed{5}", manner=manner) as server:
        code, output, errors = await outrider(server, "--mode", mode, "--limit", "2")
        assert code == 2, (output, errors)
        (line,) = errors.splitlines()
        assert answered in line
        assert not Path("results").exists()
        has_tools = manner is not Manner.NO_SYSTEM
        way = "--agent react" if has_tools else """--env instructions="''\""""
        assert way in line
        assert ("--enable-auto-tool-choice and --tool-call-parser; " in line) == has_tools
        assert ("--env calculator=false" in line) == (has_tools and mode == "math")
        assert server.n_calls <= 20

        ways = [("--agent", "react")] if has_tools else [("--env", "instructions=''")]
        ways += [("--env", "calculator=false")] * (has_tools and mode == "math")
        for name, flags in enumerate(ways):
            code, _, errors = await outrider(
                server, "--mode", mode, "--limit", "1", "--name", f"way-{name}", "--max-turns", "2", *flags
            )
            assert (code, lines_of(f"way-{name}")[0]["status"]) == (0, "succeeded"), errors


@pytest.mark.parametrize("manner", [Manner.NO_TOOLS, Manner.NO_SYSTEM])
async def test_a_training_run_is_refused_by_what_its_environments_send_too(manner: Manner):
    Path("train.yaml").write_text(
        "rollout_batch_size: 2\nmodel: test-model\napi_key_env: [none]\n"
        "train_env_manager: {num_env_groups: 1, group_size: 2, tags: [math]}\n"
    )
    async with ModelServer("\\boxed{5}", manner=manner) as server:
        settings = ("-c", "train.yaml", "--set", f"base_urls=[{server.base_url}]", "--steps", "1")
        done = await asyncio.to_thread(run_warm, "rollout", *settings, seconds=60)
        assert done.returncode == 2, (done.stdout, done.stderr)
        assert len(done.stderr.splitlines()) == 1
        assert not Path("results").exists()


async def test_without_the_check_a_run_begins_whatever_the_server_would_say():
    async with ModelServer("yes", manner=Manner.TRANSFORMERS) as server:
        arguments = ("--mode", "math", "--limit", "1", "--max-attempts", "1", "--max-retries", "0", "--model", "other")
        code, _, errors = await outrider(server, *arguments)
        assert (code, "Does it have the model 'other'" in errors) == (2, True)
        assert not Path("results").exists()
        await outrider(server, *arguments, "--no-check", "--name", "unchecked")
        (line,) = lines_of("unchecked")
        assert line["failure"]["boundary"] == "policy"


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
    assert code == 1, output
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


async def test_a_policy_of_its_own_server_gets_its_own_key_and_neither_server_sees_the_other(
    monkeypatch: pytest.MonkeyPatch,
):
    """By flags and in a file, with the usual key set too: it is for none of them."""
    keys = {"OWN_KEY": "sk-own", "VERIFIER_KEY": "sk-verifier"}
    for name, value in keys.items():
        monkeypatch.setenv(name, value)
    agents = {"verifier": {"policy": "judge"}}
    async with (
        ModelServer(await solver(), key="sk-own") as own,
        ModelServer(await solver(), key="sk-verifier") as judge,
    ):
        shared = ("--mode", "math", "--limit", "2", "--agent", "team:solver-verifier", "--api-key-env", "OWN_KEY")
        flags = (
            "--team", f"agents={json.dumps(agents)}", "--policy", "judge=test-model",
            "--policy", f"judge.base_url={judge.base_url}", "--policy", "judge.api_key_env=VERIFIER_KEY",
        )  # fmt: skip
        code, output, errors = await outrider(own, *shared, *flags, "--name", "flags", key="sk-usual")
        assert code == 0, (output, errors)
        policy = {"model": "test-model", "base_url": [judge.base_url], "api_key_env": ["VERIFIER_KEY"]}
        Path("team.yaml").write_text(json.dumps({"team": {"agents": agents}, "policies": {"judge": policy}}))
        code, output, errors = await outrider(own, *shared, "--config", "team.yaml", "--name", "file", key="sk-usual")
        assert code == 0, (output, errors)
        for server, key in ((own, "sk-own"), (judge, "sk-verifier")):
            assert server.n_calls >= 6  # one to check and two tasks, in both runs
            assert {request.headers["authorization"] for request in server.requests} == {f"Bearer {key}"}
            others = {"sk-own", "sk-verifier", "sk-usual"} - {key}
            seen = [str((request.body, request.headers)) for request in server.requests]
            assert not any(other in each for other in others for each in seen)

        Path("team.yaml").write_text(json.dumps({"team": {"agents": agents}, "policies": {"judge": policy | {
            "api_key_env": ["OWN_KEY"]}}}))  # fmt: skip
        code, output, errors = await outrider(own, *shared, "--config", "team.yaml", "--name", "wrong", key="sk-usual")
        assert code == 2
        assert f"{judge.base_url} answered 401" in errors
        assert "The key is read from the environment variable OWN_KEY" in errors
    kept = [path.read_bytes() for path in Path("results").rglob("*") if path.is_file()]
    assert not any(key.encode() in content for content in kept for key in (*keys.values(), "sk-usual"))
