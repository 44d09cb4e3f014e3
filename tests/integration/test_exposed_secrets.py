"""Commands warn once of each secret that they send unencrypted off loopback, and send none to two origins."""

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from outrider.policy.opening import open_policy
from outrider.policy.spec import PolicySpec
from outrider.testing import ModelServer
from warm_outrider import run_warm

KEYS = {"MY_KEY": "canary-key", "MY_HEADER": "canary-header", "MY_FIELD": "canary-field", "JUDGE_KEY": "canary-key"}
SECRETS = {
    "api_key_env": ["MY_KEY"],
    "headers": {"X-Api-Key": "env:MY_HEADER"},
    "extra_body": {"guide": {"api_key": "env:MY_FIELD"}},
}
WARNED = ("the key in MY_KEY", "the header 'X-Api-Key'", "extra_body.guide.api_key")
LAKE = {"tags": ["FrozenLake"], "num_env_groups": 1, "group_size": 1}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OUTRIDER_STORE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def own_address() -> str:
    """An address of this host that is not loopback; what is sent there does not leave the host."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return "0.0.0.0"
        address: str = asked.getsockname()[0]
        return address


async def outrider(command: str, option: str, settings: dict[str, Any], *arguments: str) -> tuple[int, str]:
    Path("settings.yaml").write_text(json.dumps(settings))
    given = (command, option, "settings.yaml", *arguments)
    done = await asyncio.to_thread(run_warm, *given, seconds=90, no_proxy="*", **KEYS)
    assert "canary" not in done.stdout + done.stderr
    return done.returncode, done.stdout + done.stderr


def model_server(host: str | None = None) -> ModelServer:
    return ModelServer("\\boxed{4}", key="canary-key", host=host or own_address())


@pytest.mark.parametrize("is_checked", [True, False], ids=["checked", "not checked"])
@pytest.mark.parametrize("command", ["run", "rollout"])
async def test_each_secret_is_warned_of_once_whether_servers_are_checked_or_not(command: str, is_checked: bool):
    async with model_server() as server:
        settings = {**SECRETS, "model": "test-model", "workers": 2}
        if command == "run":
            settings |= {"mode": "math", "limit": 2, "base_url": [server.base_url]}
            code, printed = await outrider(
                "run", "--config", settings, "--allow-failures", *([] if is_checked else ["--no-check"])
            )
        else:
            settings |= {"train_env_manager": LAKE, "custom_envs": {"FrozenLake": {}}, "steps": 1}
            settings |= {"base_urls": [server.base_url], "no_check": not is_checked}
            code, printed = await outrider("rollout", "-c", settings, "--allow-failures")
        assert code == 0, printed
        assert server.requests[-1].headers["x-api-key"] == KEYS["MY_HEADER"]
    origin = server.base_url.removesuffix("/v1")
    for what in WARNED:
        (line,) = [line for line in printed.splitlines() if what in line]
        assert f"goes to {origin} unencrypted" in line


async def test_on_loopback_nothing_is_warned_of():
    async with model_server("127.0.0.1") as server:
        settings = {**SECRETS, "model": "test-model", "mode": "math", "limit": 1, "base_url": [server.base_url]}
        code, printed = await outrider("run", "--config", settings, "--allow-failures")
    assert code == 0, printed
    assert "unencrypted" not in printed


async def test_the_key_of_a_judge_is_warned_of_once():
    async with ModelServer(await open_policy(PolicySpec(model="builtin:solver")), host=own_address()) as server:
        judge = {"model": "test-model", "base_urls": [server.base_url], "api_key_env": ["JUDGE_KEY"]}
        settings = {"mode": "math", "limit": 1, "model": "builtin:solver", "workers": 2, "scorer": "judge"}
        settings |= {"env": {"scorer_config": {"judge": judge}}}
        _, printed = await outrider("run", "--config", settings, "--no-check", "--allow-failures")
    assert printed.count("the key in JUDGE_KEY goes to") == 1


@pytest.mark.parametrize("secret", ["headers", "extra_body"])
async def test_a_secret_header_or_field_is_refused_where_it_would_go_to_two_origins(secret: str):
    async with model_server("127.0.0.1") as one, model_server("127.0.0.1") as other:
        settings = {"mode": "math", "limit": 1, "model": "test-model", "api_key_env": ["MY_KEY"]}
        settings |= {"base_url": [one.base_url, other.base_url], secret: SECRETS[secret]}
        code, printed = await outrider("run", "--config", settings, "--no-check")
        assert (one.n_calls, other.n_calls) == (0, 0)
    assert code == 2
    assert "Give each server a policy of its own" in printed
    assert not Path("results").exists()
